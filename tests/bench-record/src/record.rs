//! One result, beside what it is compared with and what is aimed at.

use std::fmt;

use serde::Serialize;

use crate::Samples;

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
    /// The ratio that is aimed at; the value, where there is no peer.
    bar: Option<f64>,
    met: Option<bool>,
    /// What repeats the measurement.
    command: String,
    /// Whose doing was measured, where that is not told by the scope.
    process: Option<&'static str>,
    /// The single measurements, where the value is their median.
    values: Vec<f64>,
    peer_values: Vec<f64>,
    #[serde(skip)]
    aim: &'static str,
}

/// A value, and the single measurements of which it is the median.
#[derive(Clone, Debug)]
pub struct Measured {
    value: f64,
    values: Vec<f64>,
}

/// A value by itself.
impl From<f64> for Measured {
    fn from(value: f64) -> Self {
        Measured { value, values: Vec::new() }
    }
}

/// The median.
impl From<&Samples> for Measured {
    fn from(samples: &Samples) -> Self {
        Measured { value: samples.median(), values: samples.values().to_vec() }
    }
}

impl Record {
    /// What was measured.
    pub fn new(
        name: impl Into<String>,
        scope: impl Into<String>,
        measured: impl Into<Measured>,
        unit: &'static str,
    ) -> Self {
        let Measured { value, values } = measured.into();
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
            command: String::new(),
            process: None,
            values,
            peer_values: vec![],
            aim: "",
        }
    }

    /// Whose doing was measured.
    pub fn of(mut self, process: &'static str) -> Self {
        self.process = Some(process);
        self
    }

    /// Beside another value of the same unit, measured in turns with this one.
    pub fn beside(mut self, peer: impl Into<String>, measured: impl Into<Measured>) -> Self {
        let Measured { value, values } = measured.into();
        (self.peer, self.peer_value, self.ratio) = (Some(peer.into()), Some(value), Some(self.value / value));
        self.peer_values = values;
        self
    }

    /// The ratio, or the value where there is no peer, shall be `bar` or more.
    pub fn at_least(self, bar: f64) -> Self {
        self.judged(bar, "at least", |value| value >= bar)
    }

    /// The ratio, or the value where there is no peer, shall be `bar` or less.
    pub fn at_most(self, bar: f64) -> Self {
        self.judged(bar, "at most", |value| value <= bar)
    }

    /// The ratio shall differ from 1 by `error` at most.
    pub fn within(self, error: f64) -> Self {
        self.judged(1.0 - error, "within", |ratio| (ratio - 1.0).abs() <= error)
    }

    /// What repeats it.
    pub fn by(mut self, command: &str) -> Self {
        self.command = command.into();
        self
    }

    fn judged(mut self, bar: f64, aim: &'static str, meets: impl Fn(f64) -> bool) -> Self {
        (self.bar, self.aim) = (Some(bar), aim);
        self.met = Some(meets(self.ratio.unwrap_or(self.value)));
        self
    }
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:<30} {:<34} {:>10.2} {:<8}", self.name, self.scope, self.value, self.unit)?;
        if let (Some(peer), Some(value), Some(ratio)) = (&self.peer, self.peer_value, self.ratio) {
            write!(f, "  {peer}: {value:.2}; {ratio:.3}")?;
        }
        if let (Some(bar), Some(met)) = (self.bar, self.met) {
            write!(f, " (aim: {} {bar}: {})", self.aim, if met { "met" } else { "MISSED" })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_without_a_peer_is_a_value() {
        let make = || Record::new("a", "b", 2.0, "ns");
        assert_eq!(make().at_most(1.9).met, Some(false));
        assert_eq!(make().beside("other", 4.0).at_most(0.5).met, Some(true));
        assert_eq!(make().beside("other", 4.0).at_least(0.6).met, Some(false));
        assert_eq!(make().beside("other", 1.99).within(0.01).met, Some(true));
        assert_eq!(make().beside("other", 2.03).within(0.01).met, Some(false));
    }

    #[test]
    fn of_samples_the_median_counts_and_all_are_kept() {
        let mut samples = Samples::one(3.0);
        samples.push(1.0);
        samples.push(2.0);
        let record = Record::new("a", "b", &samples, "ns").beside("other", &Samples::one(4.0));
        assert_eq!((record.value, record.ratio), (2.0, Some(0.5)));
        assert_eq!((record.values, record.peer_values), (vec![3.0, 1.0, 2.0], vec![4.0]));
    }
}
