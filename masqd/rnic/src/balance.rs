//! Which vNIC moves to which engine, if any: a pure decision over what the engines were doing.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use std::time::Duration;

use masq_driver::VnicId;
use rustc_hash::FxHasher;

use crate::transport::Time;

/// How long the engines are watched for one look.
pub const WINDOW: Duration = Duration::from_millis(200);
/// An engine that works for more of its time than this is overloaded, in thousandths.
const HOT: u64 = 800;
/// An engine that works for less takes on more.
const COLD: u64 = 500;
/// So many looks one after another must say the same.
const LOOKS: u32 = 3;
/// A vNIC that has moved stays for this long.
const REST: Duration = Duration::from_secs(5);
/// What a move must take off the busier of the two engines, in thousandths of its time.
const GAIN: u64 = 100;

/// Remembers what the engines did, and decides.
#[derive(Debug, Default)]
pub struct Balancer {
    /// The two engines that the last looks were about.
    candidates: Option<(usize, usize)>,
    looks: u32,
    moved: HashMap<VnicId, Time, BuildHasherDefault<FxHasher>>,
}

impl Balancer {
    /// What each engine did in the last window, in thousandths of its time. Names the engine from which something should move, and where to, when that has been
    /// so for long enough; then [`choose`](Self::choose) what.
    pub fn look(&mut self, busy: &[u64]) -> Option<(usize, usize)> {
        let by_load = |(_, load): &(usize, &u64)| **load;
        let hot = busy.iter().enumerate().max_by_key(by_load).filter(|(_, load)| **load > HOT);
        let cold = busy.iter().enumerate().min_by_key(by_load).filter(|(_, load)| **load < COLD);
        let pair = hot.zip(cold).map(|((hot, _), (cold, _))| (hot, cold));
        self.looks = if pair.is_some() && pair == self.candidates { self.looks + 1 } else { 1 };
        self.candidates = pair;
        pair.filter(|_| self.looks >= LOOKS)
    }

    /// The vNIC that should move, of those of the busy engine with the work of each in the window (in any unit): the one that leaves the
    /// busier of the two least to do afterwards, if that is a gain. One that does all of the work would only carry the load along.
    pub fn choose(
        &mut self,
        now: Time,
        (hot, cold): (u64, u64),
        work: impl IntoIterator<Item = (VnicId, u64)>,
    ) -> Option<VnicId> {
        self.moved.retain(|_, at| now.since(*at) < REST);
        let work: Vec<(VnicId, u64)> = work.into_iter().collect();
        let sum: u128 = work.iter().map(|(_, w)| u128::from(*w)).sum();
        let after = |w: u64| {
            let share = u128::from(hot) * u128::from(w) / sum.max(1);
            let share = u64::try_from(share).unwrap_or(hot).min(hot);
            (hot - share).max(cold + share)
        };
        let free = work.iter().filter(|(vnic, w)| *w > 0 && !self.moved.contains_key(vnic));
        let (vnic, left) = free.map(|(vnic, w)| (*vnic, after(*w))).min_by_key(|(_, left)| *left)?;
        if left + GAIN > hot {
            return None;
        }
        self.moved.insert(vnic, now);
        (self.looks, self.candidates) = (0, None);
        Some(vnic)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(seconds: u64) -> Time {
        Time::from_nanos(seconds * 1_000_000_000)
    }

    #[test]
    fn only_what_lasts_counts() {
        let mut b = Balancer::default();
        let looks = [[900, 100], [900, 100], [700, 100], [900, 100], [900, 100], [900, 600]];
        assert!(looks.iter().all(|l| b.look(l).is_none()));
        assert_eq!([[100, 900]; 3].map(|l| b.look(&l)), [None, None, Some((1, 0))]);
        let three = [300, 990, 200];
        assert_eq!([three; 3].map(|l| b.look(&l)), [None, None, Some((1, 2))]);
    }

    #[test]
    fn the_one_that_evens_the_load_moves_and_then_stays() {
        let mut b = Balancer::default();
        let vnics =
            |works: &[u64]| -> Vec<_> { works.iter().zip(1..).map(|(w, id)| (VnicId(id), *w)).collect() };
        assert_eq!(b.choose(at(0), (950, 50), vnics(&[60, 30, 10])), Some(VnicId(1)));
        assert_eq!(b.choose(at(1), (950, 50), vnics(&[60, 30, 10])), Some(VnicId(2)), "1 has just moved");
        assert_eq!(b.choose(at(20), (950, 50), vnics(&[60, 30, 10])), Some(VnicId(1)));
        assert_eq!(b.choose(at(40), (950, 0), vnics(&[7])), None, "all of the load would move");
        assert_eq!(b.choose(at(40), (950, 50), vnics(&[99, 1])), None, "nearly all, or nearly nothing");
        assert_eq!(b.choose(at(40), (950, 50), vnics(&[0, 0])), None);
    }

    proptest! {
        /// However the loads are, a move never makes the busier of the two engines busier, and nothing goes to and fro.
        #[test]
        fn a_move_is_a_gain(
            works in prop::collection::vec(0u64..1000, 1..8),
            hot in 801u64..1000,
            cold in 0u64..500,
        ) {
            let mut b = Balancer::default();
            let sum: u64 = works.iter().sum();
            let vnics: Vec<_> = works.iter().zip(0..).map(|(w, id)| (VnicId(id), *w)).collect();
            if let Some(vnic) = b.choose(at(0), (hot, cold), vnics.clone()) {
                let share = hot * works[vnic.0 as usize] / sum;
                prop_assert!((hot - share).max(cold + share) + GAIN <= hot);
                prop_assert_ne!(b.choose(at(1), (hot, cold), vnics), Some(vnic));
            }
        }
    }
}
