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

/// Decides whether a session's misses are worth reading the store for: after a number of readings that did not help, it has to do
/// without for ever longer, so that one guest that asks for what does not exist does not keep the store busy.
#[derive(Clone, Debug, Default)]
pub(crate) struct Backoff {
    /// Readings since the last one that helped.
    fruitless: u32,
    /// The last of them.
    last: Duration,
}

impl Backoff {
    /// So many readings in vain cost nothing: programs ask for peers that come a little later.
    const FREE: u32 = 16;
    /// What is closer together than this was one reading.
    const READING: Duration = Duration::from_millis(100);
    const LONGEST: Duration = Duration::from_secs(10);

    /// Whether a miss at `now` may wait for a reading.
    pub(crate) fn admits(&self, now: Duration) -> bool {
        let Some(over) = self.fruitless.checked_sub(Self::FREE) else { return true };
        let pause = Self::READING.saturating_mul(1 << over.min(10)).min(Self::LONGEST);
        now >= self.last + pause
    }

    /// A reading has been made for a miss; `helped` if it found what was missing.
    pub(crate) fn read(&mut self, now: Duration, helped: bool) {
        if helped {
            *self = Backoff::default();
        } else if self.fruitless == 0 || now >= self.last + Self::READING {
            self.fruitless = self.fruitless.saturating_add(1);
            self.last = now;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_asks_in_vain_again_and_again_has_to_do_without_for_ever_longer() {
        let ms = Duration::from_millis;
        let mut backoff = Backoff::default();
        // Reads whenever it may, for a minute.
        let readings = |backoff: &mut Backoff, from: u64| {
            let mut count = 0;
            for now in (from..from + 60_000).step_by(200).map(ms) {
                if backoff.admits(now) {
                    backoff.read(now, false);
                    // Others that waited for the same one.
                    backoff.read(now, false);
                    count += 1;
                }
            }
            count
        };
        let first = readings(&mut backoff, 0);
        assert!((22..30).contains(&first), "{first}");
        let later = readings(&mut backoff, 60_000);
        assert!((5..7).contains(&later), "{later}");
        backoff.read(ms(200_000), true);
        assert!(backoff.admits(ms(200_000)), "one that helps makes good");
    }

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
