//! What the benchmarks report: a benchmark consists of parts, which make records out of samples.

mod record;
mod report;
mod samples;

pub use record::{Measured, Record};
pub use report::{Res, report};
pub use samples::{Samples, exponent, jain};
