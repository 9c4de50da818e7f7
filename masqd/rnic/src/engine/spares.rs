//! Requests that are done, whose buffers serve those to come: of all queue pairs, so that idle ones keep none and busy ones allocate none.

use crate::transport::SendWork;

/// The spare requests of an engine.
#[derive(Debug, Default)]
pub struct Spares(Vec<SendWork>);

impl Spares {
    /// How many are kept: as many as one queue pair has on its way at most. Each is at most about a KiB, by the longest inline data and most
    /// scatter/gather entries that queue pairs can have.
    const MOST: usize = 1024;

    /// A request to fill, without data.
    pub fn lend(&mut self) -> SendWork {
        self.0.pop().unwrap_or_default()
    }

    /// Keeps the buffers of a request, if not too many are kept. What it held is its guest's, and goes no further.
    pub fn give_back(&mut self, mut work: SendWork) {
        if self.0.len() < Self::MOST {
            work.inline_data.clear();
            work.sges.clear();
            self.0.push(work);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_used_again_without_what_was_in_them() {
        let mut spares = Spares::default();
        let work = SendWork { inline_data: vec![7; 200], ..spares.lend() };
        spares.give_back(work);
        let again = spares.lend();
        assert_eq!((again.inline_data.len(), again.sges.len()), (0, 0));
        assert!(again.inline_data.capacity() >= 200);
        assert_eq!(spares.lend().inline_data.capacity(), 0, "there was one");
    }

    #[test]
    fn no_more_are_kept_than_one_queue_pair_uses() {
        let mut spares = Spares::default();
        (0..2 * Spares::MOST).for_each(|_| spares.give_back(SendWork::default()));
        assert_eq!(spares.0.len(), Spares::MOST);
    }
}
