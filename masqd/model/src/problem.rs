use std::fmt;

/// Characters of a line of a message that are shown, and lines of it.
const SHOWN: usize = 160;
const SHOWN_LINES: usize = 8;

/// One thing that is wrong with a desired state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The object, for instance `vnic "blue-1"`, or `vnic number 3` of the file when its name cannot be read.
    pub object: String,
    /// The field, as a path; empty when it is not about a single one.
    pub field: String,
    /// What is wrong with it, and what would be right.
    pub reason: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.object)?;
        if !self.field.is_empty() {
            write!(f, "field {}: ", self.field)?;
        }
        f.write_str(&self.reason)
    }
}

impl std::error::Error for Problem {}

/// Everything that is wrong with a desired state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Problems {
    /// The text is not of the right form; the message tells where.
    Syntax(String),
    /// It is, but what it says is not consistent.
    Content(Vec<Problem>),
}

/// One line for each problem.
impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Problems::Syntax(message) => f.write_str(message.trim_end()),
            Problems::Content(problems) => {
                for (i, problem) in problems.iter().enumerate() {
                    if i > 0 {
                        f.write_str("\n")?;
                    }
                    write!(f, "{problem}")?;
                }
                Ok(())
            }
        }
    }
}

impl std::error::Error for Problems {}

/// A parser's message, which may repeat what it was given, in a length that people read.
pub(crate) fn excerpt(message: &str) -> String {
    let mut lines = message.lines();
    let mut shown: Vec<String> = lines
        .by_ref()
        .take(SHOWN_LINES)
        .map(|line| match line.char_indices().nth(SHOWN) {
            Some((end, _)) => format!("{}…", line.get(..end).unwrap_or_default()),
            None => line.into(),
        })
        .collect();
    if lines.next().is_some() {
        shown.push("…".into());
    }
    shown.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn excerpts_are_cut_between_characters() {
        let exact = "ä".repeat(SHOWN);
        assert_eq!(excerpt(&exact), exact);
        assert_eq!(excerpt(&format!("{exact}ä")), format!("{exact}…"));
        assert_eq!(excerpt("one\ntwo\n"), "one\ntwo");
        let lines = ["x"; SHOWN_LINES].join("\n");
        assert_eq!(excerpt(&lines), lines);
        assert_eq!(excerpt(&format!("{lines}\nx")), format!("{lines}\n…"));
    }
}
