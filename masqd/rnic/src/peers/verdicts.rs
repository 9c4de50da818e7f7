//! What the engines of an RNIC know together of paths that are down.

use std::sync::{Mutex, MutexGuard, PoisonError};

use rustc_hash::FxHashMap;

use super::Ends;

/// Paths that are down, each with the engines that use it, as bits. The lock is taken when a path goes down or comes up, and when connections with several paths come and
/// go; packets do without.
#[derive(Debug, Default)]
pub struct Verdicts(Mutex<FxHashMap<Ends, u64>>);

impl Verdicts {
    fn lock(&self) -> MutexGuard<'_, FxHashMap<Ends, u64>> {
        // Nothing that can panic runs under the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An engine finds a path down. Returns whether it is the first, and tells of it.
    pub fn down(&self, ends: Ends, engine: usize) -> bool {
        let mut down = self.lock();
        let is_news = !down.contains_key(&ends);
        *down.entry(ends).or_default() |= bit(engine);
        is_news
    }

    /// An engine finds a path up. Returns whether that is news.
    pub fn up(&self, ends: Ends) -> bool {
        self.lock().remove(&ends).is_some()
    }

    /// Whether a path is down.
    pub fn is_down(&self, ends: &Ends) -> bool {
        self.lock().contains_key(ends)
    }

    /// An engine uses a path that it has not used. Returns whether that is down.
    pub fn join(&self, ends: Ends, engine: usize) -> bool {
        match self.lock().get_mut(&ends) {
            Some(users) => {
                *users |= bit(engine);
                true
            }
            None => false,
        }
    }

    /// An engine does not use a path any more. What nobody uses is forgotten.
    pub fn leave(&self, ends: Ends, engine: usize) {
        let mut down = self.lock();
        if let Some(users) = down.get_mut(&ends) {
            *users &= !bit(engine);
            if *users == 0 {
                down.remove(&ends);
            }
        }
    }
}

fn bit(engine: usize) -> u64 {
    // More than 64 engines share bits: then a path is remembered for a little too short, and found down again.
    1 << (engine % 64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::udp::LocalId;

    #[test]
    fn the_first_tells_and_the_last_forgets() {
        let shared = Verdicts::default();
        let ends = Ends { local: LocalId(1), remote: [192, 0, 2, 1].into() };
        assert!(!shared.join(ends, 0), "it is up");
        assert_eq!([shared.down(ends, 0), shared.down(ends, 1)], [true, false]);
        assert!(shared.join(ends, 2));
        assert_eq!([shared.up(ends), shared.up(ends)], [true, false]);
        assert!(shared.down(ends, 0) && shared.join(ends, 3));
        shared.leave(ends, 0);
        assert!(shared.join(ends, 3), "one is left");
        shared.leave(ends, 3);
        assert!(!shared.join(ends, 3) && shared.lock().is_empty());
    }
}
