//! What is reported, and how single measurements become it.

use std::fmt;
use std::time::Duration;

use serde::Serialize;

/// One result.
#[derive(Debug, Serialize)]
pub struct Record {
    name: String,
    scope: String,
    value: f64,
    unit: &'static str,
    /// What it is compared with.
    peer: Option<String>,
    peer_value: Option<f64>,
    /// Ours by the peer's.
    ratio: Option<f64>,
    /// The ratio that is aimed at.
    bar: Option<f64>,
    met: Option<bool>,
    #[serde(skip)]
    aim: &'static str,
}

impl Record {
    /// A value alone.
    pub fn new(name: impl Into<String>, scope: impl Into<String>, value: f64, unit: &'static str) -> Self {
        Record {
            name: name.into(),
            scope: scope.into(),
            value,
            unit,
            peer: None,
            peer_value: None,
            ratio: None,
            bar: None,
            met: None,
            aim: "",
        }
    }

    /// Beside another value of the same unit.
    pub fn beside(mut self, peer: impl Into<String>, value: f64) -> Self {
        (self.peer, self.peer_value, self.ratio) = (Some(peer.into()), Some(value), Some(self.value / value));
        self
    }

    /// The ratio shall be `bar` or less.
    pub fn at_most(self, bar: f64) -> Self {
        self.judged(bar, "at most", |ratio| ratio <= bar)
    }

    /// The ratio shall differ from 1 by `error` at most.
    pub fn within(self, error: f64) -> Self {
        self.judged(1.0 - error, "within", |ratio| (ratio - 1.0).abs() <= error)
    }

    fn judged(mut self, bar: f64, aim: &'static str, meets: impl Fn(f64) -> bool) -> Self {
        (self.bar, self.aim) = (Some(bar), aim);
        self.met = self.ratio.map(meets);
        self
    }
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:<26} {:<30} {:>10.2} {:<8}", self.name, self.scope, self.value, self.unit)?;
        if let (Some(peer), Some(value), Some(ratio)) = (&self.peer, self.peer_value, self.ratio) {
            write!(f, "  {peer}: {value:.2}; {ratio:.3}")?;
        }
        if let (Some(bar), Some(met)) = (self.bar, self.met) {
            write!(f, " (aim: {} {bar:.2}: {})", self.aim, if met { "met" } else { "MISSED" })?;
        }
        Ok(())
    }
}

/// Single measurements of one thing.
#[derive(Clone, Debug, Default)]
pub struct Samples(Vec<f64>);

impl Samples {
    /// One more.
    pub fn push(&mut self, value: f64) {
        self.0.push(value);
    }

    /// One more, in microseconds.
    pub fn push_us(&mut self, time: Duration) {
        self.push(time.as_secs_f64() * 1e6);
    }

    /// The value that `percent` of the samples do not exceed; NaN without any.
    pub fn percentile(&self, percent: f64) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        let last = sorted.len().saturating_sub(1);
        let at = (last as f64 * percent / 100.0).round() as usize;
        sorted.get(at).copied().unwrap_or(f64::NAN)
    }

    /// The middle one.
    pub fn median(&self) -> f64 {
        self.percentile(50.0)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }
}
