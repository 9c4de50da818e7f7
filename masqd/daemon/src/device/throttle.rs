//! Limits log lines that a guest can provoke.

use std::time::{Duration, Instant};

const BURST: u32 = 20;
const INTERVAL: Duration = Duration::from_secs(10);

/// Lets through a few lines in each interval and counts the rest.
#[derive(Debug, Default)]
pub struct Throttle {
    began: Option<Instant>,
    lines: u32,
    suppressed: u64,
}

impl Throttle {
    /// Whether a line may be written at `now`; if so, how many have been suppressed since the last one.
    pub fn admit(&mut self, now: Instant) -> Option<u64> {
        if self.began.is_none_or(|began| now.saturating_duration_since(began) >= INTERVAL) {
            self.began = Some(now);
            self.lines = 0;
        }
        if self.lines == BURST {
            self.suppressed += 1;
            return None;
        }
        self.lines += 1;
        Some(std::mem::take(&mut self.suppressed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_counted_not_written() {
        let mut t = Throttle::default();
        let start = Instant::now();
        assert_eq!((0..1000).filter(|_| t.admit(start).is_some()).count() as u32, BURST);
        assert_eq!(t.admit(start + INTERVAL / 2), None);
        assert_eq!(t.admit(start + INTERVAL), Some(1000 - u64::from(BURST) + 1));
        assert_eq!(t.admit(start + INTERVAL), Some(0));
    }
}
