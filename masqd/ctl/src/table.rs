//! Tables for people.

use std::fmt;

/// Rows; each column is as wide as its widest cell. An empty cell shows as `-`.
#[derive(Debug, Default)]
pub struct Table {
    rows: Vec<Vec<String>>,
    right: Vec<usize>,
}

impl Table {
    /// A table whose first row is a header. A column whose title begins with `>` is aligned to the right.
    pub fn new<'a>(header: impl IntoIterator<Item = &'a str>) -> Self {
        let mut table = Table::default();
        let mut titles = Vec::new();
        for (i, title) in header.into_iter().enumerate() {
            if title.starts_with('>') {
                table.right.push(i);
            }
            titles.push(title.trim_start_matches('>').to_owned());
        }
        table.rows.push(titles);
        table
    }

    /// Adds a row.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        let cell = |c: String| if c.is_empty() { "-".into() } else { c };
        self.rows.push(cells.into_iter().map(cell).collect());
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |c| {
            self.rows.iter().filter_map(|r| r.get(c)).map(|s: &String| s.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        for row in &self.rows {
            let cells = row.iter().zip(&widths).enumerate().map(|(i, (cell, w))| {
                if self.right.contains(&i) { format!("{cell:>w$}") } else { format!("{cell:<w$}") }
            });
            writeln!(f, "{}", cells.collect::<Vec<_>>().join("  ").trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned() {
        let mut t = Table::new(["NAME", ">VNI", "HOST"]);
        t.row(["blue-long".into(), "1".into(), "h1".into()]);
        t.row(["b".into(), "1000".into(), "".into()]);
        assert_eq!(t.to_string(), "NAME        VNI  HOST\nblue-long     1  h1\nb          1000  -\n");
    }

    #[test]
    fn there_need_not_be_a_header() {
        let mut t = Table::default();
        t.row(["name".into(), "blue".into()]);
        t.row(["qos-policy".into(), "".into()]);
        assert_eq!(t.to_string(), "name        blue\nqos-policy  -\n");
    }
}
