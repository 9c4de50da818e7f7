//! What paths carry.

use alloc::vec::Vec;

use crate::Nanos;

/// The smallest probing flow: shorter ones tell more of delay than of capacity (Virtuoso).
pub const PROBE_BYTES_MIN: u32 = 512 << 10;

/// Estimates what each path carries, from what was posted and completed on it.
pub trait PathMonitor {
    /// `bytes` bytes, posted on `path` at `posted`, are complete at `now`.
    fn completed(&mut self, path: usize, bytes: u64, posted: Nanos, now: Nanos);

    /// A flow that was sent to measure `path` at `posted` is complete at `now`.
    fn probed(&mut self, path: usize, bytes: u64, posted: Nanos, now: Nanos) {
        self.completed(path, bytes, posted, now);
    }

    /// What was known of `path` no longer holds: it has failed, or is another one.
    fn forget(&mut self, path: usize);

    /// Bytes per second, or 0 if nothing is known.
    fn bytes_per_sec(&self, path: usize) -> u64;

    /// The path that wants a probing flow at `now`, and of how many bytes. It is not asked for again before it was [`probed`](Self::probed), or
    /// [forgotten](Self::forget).
    fn probe(&mut self, now: Nanos, paths: usize) -> Option<(usize, u32)> {
        let _ = (now, paths);
        None
    }

    /// When [`probe`](Self::probe) has something to say.
    fn next_probe(&self) -> Option<Nanos> {
        None
    }
}

fn rate(bytes: u64, time: Nanos) -> u64 {
    u64::try_from(u128::from(bytes) * 1_000_000_000 / u128::from(time.max(1))).unwrap_or(u64::MAX)
}

/// From what is sent in any case: each completion tells how long its bytes took since the one before, or since they were posted if the path was idle until then.
/// A sliding mean over about eight completions.
#[derive(Clone, Debug, Default)]
pub struct Passive {
    paths: Vec<Estimate>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Estimate {
    /// When the last completion was seen.
    last: Nanos,
    /// Nanoseconds for 1 MiB; a mean of times, since rates of unequal spans have none.
    time_per_mib: u64,
    /// Bytes that were complete at the same time as the last ones: completions that are polled together say something only together.
    pending_bytes: u64,
}

impl PathMonitor for Passive {
    fn completed(&mut self, path: usize, bytes: u64, posted: Nanos, now: Nanos) {
        if self.paths.len() <= path {
            self.paths.resize(path + 1, Estimate::default());
        }
        let estimate = &mut self.paths[path];
        let bytes = bytes + estimate.pending_bytes;
        let time = now.saturating_sub(estimate.last.max(posted));
        // Few bytes tell of delay, and no time tells nothing.
        if time == 0 || bytes < 4096 {
            estimate.pending_bytes = bytes;
            return;
        }
        estimate.pending_bytes = 0;
        let sample = u64::try_from((u128::from(time) << 20) / u128::from(bytes)).unwrap_or(u64::MAX);
        let old = estimate.time_per_mib;
        estimate.time_per_mib = if old == 0 { sample } else { old - old / 8 + sample / 8 }.max(1);
        estimate.last = now;
    }

    fn forget(&mut self, path: usize) {
        if let Some(estimate) = self.paths.get_mut(path) {
            *estimate = Estimate::default();
        }
    }

    fn bytes_per_sec(&self, path: usize) -> u64 {
        match self.paths.get(path) {
            Some(estimate) if estimate.time_per_mib > 0 => rate(1 << 20, estimate.time_per_mib),
            _ => 0,
        }
    }
}

/// From probing flows, one path after the other: a flow's length over its completion time.
#[derive(Clone, Debug)]
pub struct Probing {
    bytes: u32,
    interval: Nanos,
    rates: Vec<u64>,
    next: usize,
    due: Nanos,
    under_way: Option<usize>,
}

impl Probing {
    /// Flows of `bytes` bytes, at least [`PROBE_BYTES_MIN`]; each path is measured every `interval` nanoseconds, the first time at once.
    pub fn new(bytes: u32, interval: Nanos) -> Self {
        let bytes = bytes.max(PROBE_BYTES_MIN);
        Self { bytes, interval, rates: Vec::new(), next: 0, due: 0, under_way: None }
    }
}

impl PathMonitor for Probing {
    fn completed(&mut self, _path: usize, _bytes: u64, _posted: Nanos, _now: Nanos) {}

    fn probed(&mut self, path: usize, bytes: u64, posted: Nanos, now: Nanos) {
        if self.under_way == Some(path) {
            self.under_way = None;
        }
        if self.rates.len() <= path {
            self.rates.resize(path + 1, 0);
        }
        self.rates[path] = rate(bytes, now.saturating_sub(posted)).max(1);
    }

    fn forget(&mut self, path: usize) {
        if self.under_way == Some(path) {
            self.under_way = None;
        }
        if let Some(rate) = self.rates.get_mut(path) {
            *rate = 0;
        }
    }

    fn bytes_per_sec(&self, path: usize) -> u64 {
        self.rates.get(path).copied().unwrap_or(0)
    }

    fn probe(&mut self, now: Nanos, paths: usize) -> Option<(usize, u32)> {
        if paths == 0 || self.under_way.is_some() || now < self.due {
            return None;
        }
        let path = self.next % paths;
        self.next = path + 1;
        self.under_way = Some(path);
        // The first round measures all at once, one after the other.
        let first_round = self.bytes_per_sec(self.next % paths) == 0 && self.next < paths;
        self.due = if first_round { now } else { now + self.interval / paths as u64 };
        Some((path, self.bytes))
    }

    fn next_probe(&self) -> Option<Nanos> {
        self.under_way.is_none().then_some(self.due)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Nanos = 1_000_000;

    #[test]
    fn a_busy_path_is_measured_by_its_completions() {
        let mut passive = Passive::default();
        assert_eq!(passive.bytes_per_sec(3), 0);
        // Two in flight all the time: 64 KiB each 5 ms are 13 MB/s, though each takes 10 ms.
        for i in 1..50 {
            passive.completed(3, 64 << 10, (i - 1) * 5 * MS, (i + 1) * 5 * MS);
        }
        let measured = passive.bytes_per_sec(3);
        assert!((12_900_000..13_300_000).contains(&measured), "{measured}");
        // An idle while is not a slow path.
        passive.completed(3, 64 << 10, 10_000 * MS, 10_005 * MS);
        assert!((12_900_000..13_300_000).contains(&passive.bytes_per_sec(3)));
        passive.forget(3);
        assert_eq!(passive.bytes_per_sec(3), 0);
    }

    #[test]
    fn completions_that_are_seen_together_count_together() {
        let mut passive = Passive::default();
        for i in 1..60 {
            for _ in 0..4 {
                passive.completed(0, 1 << 20, (i - 1) * 100 * MS, i * 100 * MS);
            }
        }
        let measured = passive.bytes_per_sec(0);
        assert!((38_000_000..47_000_000).contains(&measured), "{measured}");
    }

    #[test]
    fn a_change_is_followed() {
        let mut passive = Passive::default();
        let mut now = 0;
        for time in [10 * MS; 40].into_iter().chain([100 * MS; 40]) {
            now += time;
            passive.completed(0, 1 << 20, now - time, now);
        }
        let measured = passive.bytes_per_sec(0);
        assert!((10_000_000..11_500_000).contains(&measured), "{measured}");
    }

    #[test]
    fn probes_go_round_and_are_not_short() {
        let mut probing = Probing::new(1, 1000 * MS);
        let mut now = 0;
        for path in 0..4 {
            assert_eq!(probing.probe(now, 4), Some((path, PROBE_BYTES_MIN)));
            assert_eq!(probing.probe(now, 4), None);
            now += MS * (1 + path as u64);
            probing.probed(path, u64::from(PROBE_BYTES_MIN), now - MS * (1 + path as u64), now);
        }
        assert_eq!(probing.bytes_per_sec(0), 524_288_000);
        assert_eq!(probing.bytes_per_sec(3), 131_072_000);
        assert_eq!(probing.probe(now, 4), None);
        let due = probing.next_probe().unwrap_or(0);
        assert!(due > now && due <= now + 1000 * MS);
        assert_eq!(probing.probe(due, 4), Some((0, PROBE_BYTES_MIN)));
        // A path that dies under its probe does not stop the others.
        probing.forget(0);
        assert_eq!(probing.probe(due + 1000 * MS, 4), Some((1, PROBE_BYTES_MIN)));
    }
}
