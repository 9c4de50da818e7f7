//! Single measurements, and what is said of many.

use std::time::Duration;

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

    /// There are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All, in the order in which they came.
    pub fn values(&self) -> &[f64] {
        &self.0
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
    fn percentiles() {
        let mut samples = Samples::EMPTY;
        assert!(samples.median().is_nan());
        for value in [5.0, 1.0, 4.0, 2.0, 3.0] {
            samples.push(value);
        }
        assert_eq!([0.0, 50.0, 75.0, 100.0].map(|p| samples.percentile(p)), [1.0, 3.0, 4.0, 5.0]);
        assert_eq!((samples.len(), samples.values()[0]), (5, 5.0));
    }

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
}
