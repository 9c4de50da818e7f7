//! Standard output.

use std::fmt::Display;
use std::io::Write;

use clap::ValueEnum;
use serde::Serialize;

use crate::failure::Failure;

/// For whom output is: people, or programs, which get what the API answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Output {
    Table,
    Json,
}

/// Writes text, and lets it be seen at once.
pub fn print(text: impl Display) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    write!(out, "{text}")?;
    Ok(out.flush()?)
}

/// Writes JSON over several lines.
pub fn print_json(value: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(value).map_err(std::io::Error::from)?;
    print(format_args!("{text}\n"))
}
