//! Which path takes the next chunk.

use alloc::vec::Vec;

/// What a scheduler sees of a path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PathView {
    /// Bytes that it may be given now; 0 if it may be given nothing.
    pub room_bytes: u64,
    /// Bytes that have been posted on it and are not complete.
    pub in_flight_bytes: u64,
    /// What it carries, as far as a [`PathMonitor`](crate::monitor::PathMonitor) knows; 0 if it does not.
    pub bytes_per_sec: u64,
}

impl PathView {
    /// Nanoseconds until what is in flight and `bytes` more are complete, at the path's rate; in bytes, if the rate is unknown.
    fn backlog(&self, bytes: u64, known: bool) -> u128 {
        let bytes = u128::from(self.in_flight_bytes) + u128::from(bytes);
        if known { bytes * 1_000_000_000 / u128::from(self.bytes_per_sec.max(1)) } else { bytes }
    }
}

/// Chooses among paths. Implementations may keep state; they are asked once for each chunk.
pub trait PathScheduler {
    /// The path for a chunk of up to `bytes` bytes, among those that have room; `None` if none has.
    fn choose(&mut self, paths: &[PathView], bytes: u64) -> Option<usize>;
}

/// Each path in turn, as Virtuoso posts work requests.
#[derive(Clone, Debug, Default)]
pub struct RoundRobin {
    next: usize,
}

impl PathScheduler for RoundRobin {
    fn choose(&mut self, paths: &[PathView], _bytes: u64) -> Option<usize> {
        let turn = (0..paths.len()).map(|i| (self.next + i) % paths.len());
        let path = turn.into_iter().find(|path| paths[*path].room_bytes > 0)?;
        self.next = path + 1;
        Some(path)
    }
}

/// In proportion to fixed weights, whatever is measured. A path that had no room does not catch up later.
#[derive(Clone, Debug)]
pub struct Weighted {
    weights: Vec<u32>,
    /// For each path, how far it has come: bytes over weight.
    served: Vec<u128>,
    /// How far the last chosen path had come.
    now: u128,
}

impl Weighted {
    /// Weights of paths, in order. Paths without one, and with 0, are chosen only when no other has room.
    pub fn new(weights: Vec<u32>) -> Self {
        let served = weights.iter().map(|_| 0).collect();
        Self { weights, served, now: 0 }
    }
}

impl PathScheduler for Weighted {
    fn choose(&mut self, paths: &[PathView], bytes: u64) -> Option<usize> {
        self.weights.resize(paths.len(), 0);
        self.served.resize(paths.len(), 0);
        let has_room = |path: &usize| paths[*path].room_bytes > 0;
        let weighted = (0..paths.len()).filter(|path| self.weights[*path] > 0).filter(has_room);
        let Some(path) = weighted.min_by_key(|path| self.served[*path].max(self.now)) else {
            return (0..paths.len()).find(has_room);
        };
        self.now = self.served[path].max(self.now);
        let bytes = bytes.min(paths[path].room_bytes).max(1);
        self.served[path] = self.now + (u128::from(bytes) << 32) / u128::from(self.weights[path]);
        Some(path)
    }
}

/// The path that would be done with the chunk first, given what is in flight and what the paths have been measured to carry.
#[derive(Clone, Debug, Default)]
pub struct LeastLoaded;

impl PathScheduler for LeastLoaded {
    fn choose(&mut self, paths: &[PathView], bytes: u64) -> Option<usize> {
        // Times and bytes cannot be compared: rates count when all are known.
        let known = paths.iter().all(|path| path.room_bytes == 0 || path.bytes_per_sec > 0);
        let with_room = (0..paths.len()).filter(|path| paths[*path].room_bytes > 0);
        with_room.min_by_key(|path| paths[*path].backlog(bytes, known))
    }
}

#[cfg(test)]
mod tests {
    use std::{vec, vec::Vec};

    use super::*;

    fn path(room_bytes: u64, in_flight_bytes: u64, bytes_per_sec: u64) -> PathView {
        PathView { room_bytes, in_flight_bytes, bytes_per_sec }
    }

    fn choices(scheduler: &mut dyn PathScheduler, paths: &[PathView], n: usize) -> Vec<Option<usize>> {
        (0..n).map(|_| scheduler.choose(paths, 1000)).collect()
    }

    #[test]
    fn round_robin_passes_over_paths_without_room() {
        let paths = [path(1, 0, 0), path(0, 0, 0), path(1, 0, 0)];
        let turns = choices(&mut RoundRobin::default(), &paths, 4);
        assert_eq!(turns, vec![Some(0), Some(2), Some(0), Some(2)]);
        assert_eq!(RoundRobin::default().choose(&[path(0, 0, 0)], 1), None);
    }

    #[test]
    fn weights_are_kept_to() {
        let paths = [path(1000, 0, 0); 3];
        let turns = choices(&mut Weighted::new(vec![4, 2, 1]), &paths, 700);
        let count = |which| turns.iter().filter(|turn| **turn == Some(which)).count();
        assert_eq!([count(0), count(1), count(2)], [400, 200, 100]);
    }

    #[test]
    fn who_had_no_room_does_not_catch_up() {
        let mut weighted = Weighted::new(vec![1, 1, 0]);
        choices(&mut weighted, &[path(1000, 0, 0), path(0, 0, 0), path(0, 0, 0)], 100);
        let turns = choices(&mut weighted, &[path(1000, 0, 0); 3], 10);
        assert!(turns.iter().filter(|turn| **turn == Some(0)).count() >= 4, "{turns:?}");
        // A path without weight is better than none.
        assert_eq!(weighted.choose(&[path(0, 0, 0), path(0, 0, 0), path(1, 0, 0)], 1), Some(2));
    }

    #[test]
    fn the_least_loaded_path_is_the_one_that_is_done_first() {
        let paths = [path(1, 5000, 1_000_000), path(1, 1000, 100_000), path(0, 0, 1_000_000_000)];
        assert_eq!(LeastLoaded.choose(&paths, 1000), Some(0));
        // With a rate that nobody knows, bytes decide.
        assert_eq!(LeastLoaded.choose(&[path(1, 5000, 1_000_000), path(1, 1000, 0)], 1000), Some(1));
    }
}
