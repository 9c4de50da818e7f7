use core::fmt;
use core::time::Duration;

/// A moment, as nanoseconds of whatever monotonic clock the caller keeps. The transport only compares moments
/// and adds durations to them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Time(u64);

impl Time {
    /// The clock's start.
    pub const ZERO: Time = Time(0);

    /// The moment `nanos` after the clock's start.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds since the clock's start.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// The moment `duration` later; the end of the clock if that lies beyond it.
    #[must_use]
    pub const fn plus(self, duration: Duration) -> Self {
        let nanos = duration.as_nanos();
        let nanos = if nanos > u64::MAX as u128 { u64::MAX } else { nanos as u64 };
        Self(self.0.saturating_add(nanos))
    }

    /// The moment `duration` earlier; the clock's start if that lies before it.
    #[must_use]
    pub const fn minus(self, duration: Duration) -> Self {
        let nanos = duration.as_nanos();
        let nanos = if nanos > u64::MAX as u128 { u64::MAX } else { nanos as u64 };
        Self(self.0.saturating_sub(nanos))
    }

    /// How long after `earlier` this moment lies; zero if it lies before.
    pub const fn since(self, earlier: Time) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl fmt::Debug for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}ns", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn saturates() {
        let late = Time::from_nanos(u64::MAX - 1);
        assert_eq!(late.plus(Duration::from_secs(1)).as_nanos(), u64::MAX);
        assert_eq!(Time::ZERO.plus(Duration::MAX).as_nanos(), u64::MAX);
        assert_eq!(Time::from_nanos(5).minus(Duration::from_nanos(3)).as_nanos(), 2);
        assert_eq!(late.minus(Duration::MAX), Time::ZERO);
        assert_eq!(Time::ZERO.since(late), Duration::ZERO);
        assert_eq!(Time::from_nanos(5).since(Time::from_nanos(2)), Duration::from_nanos(3));
    }
}
