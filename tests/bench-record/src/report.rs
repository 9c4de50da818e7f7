//! The parts of a benchmark, one after another.

use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use clap::ValueEnum;

use crate::Record;

/// What a measurement gives, or why it has failed.
pub type Res<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Measures the parts of `program` that are in `only`, or all where that is empty: prints each record, and writes all of them to `json` as an array. A part
/// that fails does not keep the others from being measured.
pub fn report<P: ValueEnum + PartialEq>(
    program: &str,
    only: &[P],
    json: Option<&Path>,
    measure: impl Fn(&P) -> Res<Vec<Record>>,
) -> ExitCode {
    let mut records = Vec::new();
    let mut failed = false;
    for part in P::value_variants() {
        if !only.is_empty() && !only.contains(part) {
            continue;
        }
        let name = part.to_possible_value().map(|v| v.get_name().to_owned()).unwrap_or_default();
        let command = format!("tests/sim/{program} --only {name}");
        let start = Instant::now();
        match measure(part) {
            Ok(more) => {
                for record in more {
                    println!("{record}");
                    records.push(record.by(&command));
                }
            }
            Err(e) => {
                eprintln!("{program}: {name}: {e}");
                failed = true;
            }
        }
        println!("-- {name}: {:.0} s", start.elapsed().as_secs_f64());
    }
    if let Some(file) = json {
        let text = serde_json::to_string_pretty(&records).expect("records are plain data");
        if let Err(e) = std::fs::write(file, text + "\n") {
            eprintln!("{program}: {}: {e}", file.display());
            failed = true;
        }
    }
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
