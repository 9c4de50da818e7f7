//! How much a path is given at a time.

use alloc::vec::Vec;

/// Limits the work requests of each path.
pub trait ChunkControl {
    /// The most bytes that the next work request on `path` may have while `in_flight_bytes` are; 0 if it must wait.
    fn room_bytes(&self, path: usize, in_flight_bytes: u64) -> u64;

    /// A work request of `bytes` bytes is complete.
    fn completed(&mut self, path: usize, bytes: u64);

    /// A work request of `bytes` bytes was not answered (IBV_WC_RETRY_EXC_ERR).
    fn lost(&mut self, path: usize, bytes: u64);
}

/// For networks that lose nothing: work requests of at most `chunk_bytes`, and at most `window_bytes` in flight. A path
/// whose window is as long as a message takes its whole share at once; a shorter one lets fast paths take more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lossless {
    /// Bytes of the largest work request; not 0.
    pub chunk_bytes: u64,
    /// Bytes in flight on each path. One work request is allowed in any case.
    pub window_bytes: u64,
}

impl Default for Lossless {
    /// Work requests of 256 KiB, two in flight.
    fn default() -> Self {
        Self { chunk_bytes: 256 << 10, window_bytes: 512 << 10 }
    }
}

impl ChunkControl for Lossless {
    fn room_bytes(&self, _path: usize, in_flight_bytes: u64) -> u64 {
        // No chunk is cut to fit the window: small ones cost as much as large ones.
        let fits = in_flight_bytes.saturating_add(self.chunk_bytes) <= self.window_bytes;
        if in_flight_bytes == 0 || fits { self.chunk_bytes } else { 0 }
    }

    fn completed(&mut self, _path: usize, _bytes: u64) {}

    fn lost(&mut self, _path: usize, _bytes: u64) {}
}

/// For networks that lose what comes too thick (Virtuoso): a path has one work request at a time, whose size doubles with each that is answered, until one is
/// not. Then it goes back to the last that was, and grows by `step_bytes` each.
///
/// A loss costs the path its queue pair for a while, and the last path's loss the connection. So one path at a time tries a new size, in turn, and only while
/// another one works.
#[derive(Clone, Debug)]
pub struct Lossy {
    start: u64,
    step: u64,
    most: u64,
    paths: Vec<Growth>,
    /// The path that may try, and how many work requests others have had since.
    turn: usize,
    others: usize,
}

#[derive(Clone, Copy, Debug)]
struct Growth {
    size: u64,
    /// The last size that was answered.
    good: u64,
    doubles: bool,
    /// Nothing has been answered since the last loss.
    failed: bool,
}

impl Lossy {
    /// Sizes from `start_bytes` to `most_bytes`, in steps of `step_bytes` after the first loss; none is 0.
    pub fn new(start_bytes: u64, step_bytes: u64, most_bytes: u64) -> Self {
        let (start, step) = (start_bytes.max(1), step_bytes.max(1));
        Self { start, step, most: most_bytes.max(start), paths: Vec::new(), turn: 0, others: 0 }
    }

    fn growth(&self, path: usize) -> Growth {
        let new = Growth { size: self.start, good: self.start, doubles: true, failed: false };
        self.paths.get(path).copied().unwrap_or(new)
    }

    fn set(&mut self, path: usize, growth: Growth) {
        while self.paths.len() <= path {
            self.paths.push(self.growth(self.paths.len()));
        }
        self.paths[path] = growth;
    }

    /// Whether a path may try a size that may be too long.
    fn may_try(&self, path: usize) -> bool {
        let mut others = self.paths.iter().enumerate().filter(|(other, _)| *other != path).peekable();
        path == self.turn && (others.peek().is_none() || others.any(|(_, other)| !other.failed))
    }

    /// A path has tried a size, or it was not its turn, or what it had under way when its turn came is complete. The turn ends with a try; and when the path lets
    /// others pass again and again: it may be dead.
    fn next_turn(&mut self, path: usize, tried: bool) {
        self.others += 1;
        if path == self.turn && tried || self.others > 4 * self.paths.len() {
            (self.turn, self.others) = ((self.turn + 1) % self.paths.len(), 0);
        }
    }
}

impl ChunkControl for Lossy {
    fn room_bytes(&self, path: usize, in_flight_bytes: u64) -> u64 {
        let Growth { size, good, .. } = self.growth(path);
        match in_flight_bytes {
            0 if self.may_try(path) => size,
            0 => good,
            _ => 0,
        }
    }

    fn completed(&mut self, path: usize, bytes: u64) {
        let Growth { size, good, doubles, .. } = self.growth(path);
        // A shorter one, at a message's end or from before the path's turn, says nothing of this size.
        let tried = bytes >= size;
        if tried {
            let next = if doubles { size.saturating_mul(2) } else { size.saturating_add(self.step) };
            self.set(path, Growth { size: next.min(self.most), good: size, doubles, failed: false });
        } else {
            self.set(path, Growth { size, good, doubles, failed: false });
        }
        self.next_turn(path, tried);
    }

    fn lost(&mut self, path: usize, bytes: u64) {
        let Growth { size, good, .. } = self.growth(path);
        // If the last good size is lost as well, it was none.
        let back = if bytes.min(size) > good { good } else { (bytes.min(size) / 2).max(self.start) };
        self.set(path, Growth { size: back, good: back, doubles: false, failed: true });
        self.next_turn(path, true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_bounds_what_is_in_flight() {
        let control = Lossless { chunk_bytes: 100, window_bytes: 250 };
        let room = [0, 100, 150, 151, 300].map(|in_flight| control.room_bytes(0, in_flight));
        assert_eq!(room, [100, 100, 100, 0, 0]);
        // Even a window that is too small moves something.
        assert_eq!(Lossless { chunk_bytes: 100, window_bytes: 10 }.room_bytes(0, 0), 100);
    }

    #[test]
    fn sizes_double_go_back_and_then_grow_in_steps() {
        let mut lossy = Lossy::new(1000, 100, 100_000);
        assert_eq!(lossy.room_bytes(0, 1), 0);
        let mut sizes = std::vec![];
        // The network loses what is longer than 5,000.
        for _ in 0..16 {
            let size = lossy.room_bytes(0, 0);
            sizes.push(size);
            if size > 5000 { lossy.lost(0, size) } else { lossy.completed(0, size) }
        }
        assert_eq!(sizes[..6], [1000, 2000, 4000, 8000, 4000, 4100]);
        assert_eq!(sizes[13..], [4900, 5000, 5100]);
        assert_eq!(lossy.room_bytes(0, 0), 5000);
        // Others know nothing of it.
        assert_eq!(lossy.room_bytes(1, 0), 1000);
    }

    #[test]
    fn one_path_at_a_time_tries() {
        let mut lossy = Lossy::new(1000, 100, 100_000);
        lossy.completed(1, 1000);
        lossy.completed(0, 1000);
        // Each has a new size, and it is the second's turn.
        assert_eq!([0, 1].map(|path| lossy.room_bytes(path, 0)), [1000, 2000]);
        lossy.completed(1, 2000);
        assert_eq!([0, 1].map(|path| lossy.room_bytes(path, 0)), [2000, 2000]);
        // A path that does nothing has its turn no longer than the others do a few.
        for _ in 0..9 {
            lossy.completed(1, 2000);
        }
        assert_eq!(lossy.room_bytes(1, 0), 4000);
    }

    #[test]
    fn nobody_tries_while_no_other_path_works() {
        let mut lossy = Lossy::new(1000, 100, 100_000);
        lossy.completed(1, 1000);
        lossy.completed(0, 1000);
        lossy.lost(1, 2000);
        for _ in 0..20 {
            assert_eq!(lossy.room_bytes(0, 0), 1000);
            lossy.completed(0, 1000);
        }
        lossy.completed(1, 1000);
        for _ in 0..9 {
            lossy.completed(0, lossy.room_bytes(0, 0));
        }
        assert!(lossy.room_bytes(0, 0) > 1000);
    }

    #[test]
    fn a_turn_waits_for_a_size_that_is_tried() {
        let mut lossy = Lossy::new(1024, 100, 1 << 20);
        let mut under_way = [0; 4].map(|_| 1024);
        // All paths are always busy, and none gets its turn while it is idle.
        for round in 0..200 {
            let path = round % under_way.len();
            lossy.completed(path, under_way[path]);
            under_way[path] = lossy.room_bytes(path, 0);
        }
        assert_eq!(under_way, [1 << 20; 4]);
    }

    #[test]
    fn a_path_that_loses_everything_ends_where_it_began() {
        let mut lossy = Lossy::new(1000, 100, 100_000);
        for _ in 0..4 {
            lossy.completed(0, lossy.room_bytes(0, 0));
        }
        for _ in 0..10 {
            lossy.lost(0, lossy.room_bytes(0, 0));
        }
        assert_eq!(lossy.room_bytes(0, 0), 1000);
        // Short ends of messages do not make it grow.
        lossy.completed(0, 10);
        assert_eq!(lossy.room_bytes(0, 0), 1000);
    }
}
