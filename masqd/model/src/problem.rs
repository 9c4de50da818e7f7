use std::fmt;

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
