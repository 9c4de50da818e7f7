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
    peer: Option<&'static str>,
    peer_value: Option<f64>,
    /// Ours by the peer's.
    ratio: Option<f64>,
    /// The ratio that is aimed at.
    bar: Option<f64>,
    met: Option<bool>,
}

impl Record {
    /// Medians of (ours, the peer's), in bytes per second.
    pub fn compared(name: &str, scope: &str, runs: &[(f64, f64)], peer: &'static str, bar: f64) -> Self {
        let value = median(runs.iter().map(|r| r.0)) / 1e6;
        let peer_value = median(runs.iter().map(|r| r.1)) / 1e6;
        let ratio = value / peer_value;
        Record {
            name: name.to_owned(),
            scope: scope.to_owned(),
            value,
            unit: "MB/s",
            peer: Some(peer),
            peer_value: Some(peer_value),
            ratio: Some(ratio),
            bar: Some(bar),
            met: Some(ratio >= bar),
        }
    }

    /// A value without a peer.
    pub fn informative(name: &str, scope: &str, value: f64, unit: &'static str) -> Self {
        Record {
            name: name.to_owned(),
            scope: scope.to_owned(),
            value,
            unit,
            peer: None,
            peer_value: None,
            ratio: None,
            bar: None,
            met: None,
        }
    }
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:<16} {:<16} {:>10.1} {:<5}", self.name, self.scope, self.value, self.unit)?;
        if let (Some(peer), Some(value), Some(ratio), Some(bar), Some(met)) =
            (self.peer, self.peer_value, self.ratio, self.bar, self.met)
        {
            let verdict = if met { "met" } else { "MISSED" };
            write!(f, "  {peer}: {value:.1}; {:.0} % (aim {:.0} %: {verdict})", ratio * 100.0, bar * 100.0)?;
        }
        Ok(())
    }
}

/// The middle of some values.
pub fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
