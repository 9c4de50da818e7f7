//! What is reported, and how single measurements become it.

use std::fmt;

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
    /// The ratio that is aimed at; the value, where there is no peer.
    bar: Option<f64>,
    met: Option<bool>,
    /// What repeats the measurement.
    command: String,
    /// Whose doing was measured.
    process: &'static str,
    /// The single measurements, of which the value is the median.
    values: Vec<f64>,
    peer_values: Vec<f64>,
    #[serde(skip)]
    aim: &'static str,
}

impl Record {
    /// The median of some measurements of `process`.
    pub fn new(
        name: impl Into<String>,
        scope: impl Into<String>,
        values: &Samples,
        unit: &'static str,
        process: &'static str,
    ) -> Self {
        Record {
            name: name.into(),
            scope: scope.into(),
            value: values.median(),
            unit,
            peer: None,
            peer_value: None,
            ratio: None,
            bar: None,
            met: None,
            command: String::new(),
            process,
            values: values.0.clone(),
            peer_values: vec![],
            aim: "",
        }
    }

    /// Beside another value of the same unit, measured in turns with this one.
    pub fn beside(mut self, peer: impl Into<String>, values: &Samples) -> Self {
        let value = values.median();
        (self.peer, self.peer_value, self.ratio) = (Some(peer.into()), Some(value), Some(self.value / value));
        self.peer_values = values.0.clone();
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

/// Single measurements of one thing.
#[derive(Clone, Debug, Default)]
pub struct Samples(Vec<f64>);

impl Samples {
    /// None yet.
    pub const EMPTY: Self = Samples(Vec::new());

    /// A measurement that is made once.
    pub fn one(value: f64) -> Self {
        Samples(vec![value])
    }

    /// One more.
    pub fn push(&mut self, value: f64) {
        self.0.push(value);
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
}

/// How evenly `shares` are shared out: 1 when all are alike, 1/n when one has all (Jain's index).
pub fn jain(shares: &[f64]) -> f64 {
    let sum: f64 = shares.iter().sum();
    let squares: f64 = shares.iter().map(|s| s * s).sum();
    sum * sum / (shares.len() as f64 * squares)
}

/// The exponent `e` of the curve `c * x^e` that lies closest to the points: the slope of a line through their logarithms.
pub fn exponent(points: &[(f64, f64)]) -> f64 {
    let logs: Vec<(f64, f64)> = points.iter().map(|(x, y)| (x.ln(), y.ln())).collect();
    let n = logs.len() as f64;
    let (mean_x, mean_y) =
        (logs.iter().map(|p| p.0).sum::<f64>() / n, logs.iter().map(|p| p.1).sum::<f64>() / n);
    let covariance: f64 = logs.iter().map(|(x, y)| (x - mean_x) * (y - mean_y)).sum();
    let variance: f64 = logs.iter().map(|(x, _)| (x - mean_x).powi(2)).sum();
    covariance / variance
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fairness() {
        assert_eq!(jain(&[3.0, 3.0, 3.0]), 1.0);
        assert_eq!(jain(&[4.0, 0.0, 0.0, 0.0]), 0.25);
    }

    #[test]
    fn the_exponent_of_a_power() {
        let points: Vec<(f64, f64)> =
            (0..6).map(|k| f64::from(1 << k)).map(|x| (x, 7.0 * x.powf(0.8))).collect();
        assert!((exponent(&points) - 0.8).abs() < 1e-9);
        assert!(exponent(&[(1.0, 5.0), (2.0, 5.0), (4.0, 5.0)]).abs() < 1e-9);
    }

    #[test]
    fn a_bar_without_a_peer_is_a_value() {
        assert_eq!(Record::new("a", "b", &Samples(vec![3.0, 1.0, 2.0]), "ns", "p").value, 2.0);
        let make = || Record::new("a", "b", &Samples::one(2.0), "ns", "p");
        let beside = |r: Record| r.beside("other", &Samples::one(4.0));
        assert_eq!(make().at_most(1.9).met, Some(false));
        assert_eq!(beside(make()).at_most(0.5).met, Some(true));
        assert_eq!(beside(make()).at_least(0.6).met, Some(false));
    }
}
