use std::time::Duration;

/// Decides when the store is read again because a session missed something in the directory.
///
/// All sessions of a host share one gate: one reading serves every request that waits, and readings begin at
/// least an interval apart, however many requests miss. Times count from any fixed moment.
///
/// - [`handle_miss`](Self::handle_miss): a request waits.
/// - [`poll_timeout`](Self::poll_timeout): when to begin reading; then call [`handle_begin`](Self::handle_begin).
///
/// After a reading, resume every request that waited when it began.
#[derive(Clone, Debug)]
pub struct RefreshGate {
    interval: Duration,
    last: Option<Duration>,
    wanted: Option<Duration>,
}

impl RefreshGate {
    /// A gate that lets a reading begin every `interval`.
    pub fn new(interval: Duration) -> RefreshGate {
        RefreshGate { interval, last: None, wanted: None }
    }

    /// A request waits for a reading that begins after `now`.
    pub fn handle_miss(&mut self, now: Duration) {
        let earliest = self.last.map_or(now, |last| (last + self.interval).max(now));
        self.wanted.get_or_insert(earliest);
    }

    /// When the next reading shall begin, if one is wanted.
    pub fn poll_timeout(&self) -> Option<Duration> {
        self.wanted
    }

    /// A reading begins.
    pub fn handle_begin(&mut self, now: Duration) {
        self.last = Some(now);
        self.wanted = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readings_are_an_interval_apart_however_many_miss() {
        let ms = Duration::from_millis;
        let mut gate = RefreshGate::new(ms(100));
        assert_eq!(gate.poll_timeout(), None);
        gate.handle_miss(ms(5));
        gate.handle_miss(ms(6));
        assert_eq!(gate.poll_timeout(), Some(ms(5)), "the first miss is served at once");
        gate.handle_begin(ms(7));
        assert_eq!(gate.poll_timeout(), None);
        gate.handle_miss(ms(8));
        gate.handle_miss(ms(50));
        assert_eq!(gate.poll_timeout(), Some(ms(107)));
        gate.handle_begin(ms(107));
        gate.handle_miss(ms(1000));
        assert_eq!(gate.poll_timeout(), Some(ms(1000)));
    }
}
