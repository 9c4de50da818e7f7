//! Who sends to a queue pair behind the underlay.
//!
//! A packet does not say which queue pair has sent it, so a peer cannot tell several queue pairs at one address apart: a guest could connect to its
//! neighbour's peer, and be taken for the neighbour. A reliable connection has two ends. So of those that are connected to the same peer from the same address, only the oldest that
//! is alive sends, and where several paths are used, by the others than the first only one whose connection the peer's RNIC has confirmed ([`inquiry`](super::inquiry)). To the others the peer seems not to answer, as is the case where both ends are local.
//!
//! The engines of an RNIC share one list of all of them. Commands change it, and the death of the one that sends; packets ask the queue pair alone
//! ([`Claim::sends`]). Who comes to the head of a list is told so: by its own engine, or by a note to it ([`Note::Speaker`]), which only says that there is something to look at, so
//! that one that comes late does no harm.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use masq_driver::QpState;
use rustc_hash::FxHashMap;

use super::fabric::Note;
use super::world::{RemoteQp, World};
use crate::qp::QpKey;

/// A queue pair's place among those that are connected to the same peer behind the underlay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Which of all of the RNIC's connections it was.
    pub age: u64,
    /// It is the one that sends.
    pub sends: bool,
}

/// What the engines of an RNIC share.
#[derive(Debug, Default)]
pub struct Speakers(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    connections: u64,
    /// Oldest first.
    claimants: FxHashMap<RemoteQp, VecDeque<Claimant>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Claimant {
    age: u64,
    engine: usize,
    key: QpKey,
}

impl Speakers {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Nothing that can panic runs under the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A queue pair is connected to `remote`.
    fn join(&self, remote: RemoteQp, engine: usize, key: QpKey) -> Claim {
        let mut inner = self.lock();
        let age = inner.connections;
        inner.connections += 1;
        let all = inner.claimants.entry(remote).or_insert_with(|| VecDeque::with_capacity(1));
        all.push_back(Claimant { age, engine, key });
        Claim { age, sends: all.len() == 1 }
    }

    /// The RNIC of `remote` has confirmed that it is connected to this queue pair, so to nobody else, whoever was before. Returns those who have no claim any more.
    fn confirm(&self, remote: RemoteQp, engine: usize, key: QpKey) -> (Claim, VecDeque<Claimant>) {
        let mut inner = self.lock();
        let age = inner.connections;
        inner.connections += 1;
        let all = VecDeque::from([Claimant { age, engine, key }]);
        (Claim { age, sends: true }, inner.claimants.insert(remote, all).unwrap_or_default())
    }

    /// It is connected no more. Returns whether others are.
    fn leave(&self, remote: &RemoteQp, age: u64) -> bool {
        let mut inner = self.lock();
        let Some(all) = inner.claimants.get_mut(remote) else { return false };
        remove(all, age);
        let others = !all.is_empty();
        if !others {
            inner.claimants.remove(remote);
        }
        others
    }

    /// It is dead. Returns whether it has left that to others, of whom there are any.
    fn leave_to_others(&self, remote: &RemoteQp, age: u64) -> bool {
        let mut inner = self.lock();
        let Some(all) = inner.claimants.get_mut(remote).filter(|all| all.len() > 1) else { return false };
        remove(all, age);
        true
    }

    /// It is on its way to another engine, or has come there. Returns whether it is the one that sends.
    fn moved(&self, remote: &RemoteQp, age: u64, engine: usize, key: QpKey) -> bool {
        let mut inner = self.lock();
        let Some(all) = inner.claimants.get_mut(remote) else { return false };
        if let Ok(at) = all.binary_search_by_key(&age, |c| c.age)
            && let Some(claimant) = all.get_mut(at)
        {
            (claimant.engine, claimant.key) = (engine, key);
        }
        all.front().is_some_and(|c| c.age == age)
    }

    fn first(&self, remote: &RemoteQp) -> Option<Claimant> {
        self.lock().claimants.get(remote)?.front().copied()
    }
}

fn remove(all: &mut VecDeque<Claimant>, age: u64) {
    if let Ok(at) = all.binary_search_by_key(&age, |c| c.age) {
        all.remove(at);
    }
}

impl World {
    /// This engine's number.
    pub(super) fn index(&self) -> usize {
        self.fabric.as_ref().map_or(0, |f| f.index)
    }

    /// A queue pair is connected to `remote`.
    pub(super) fn claim_remote(&mut self, key: QpKey, remote: RemoteQp) {
        let claim = self.speakers.join(remote, self.index(), key);
        if let Some(qp) = self.qps.get_mut(key) {
            qp.keep_claim(remote, claim);
        }
        if !claim.sends {
            let (_, address, qpn) = remote;
            tracing::debug!(%address, %qpn, "the peer is connected to another queue pair");
            // Which may be dead.
            self.find_speaker(remote);
        }
    }

    /// The peer's RNIC has confirmed that `remote` is connected to a queue pair.
    pub(super) fn confirm_remote(&mut self, key: QpKey, remote: RemoteQp) {
        let index = self.index();
        let Some(qp) = self.qps.get_mut(key) else { return };
        qp.drop_claim(&remote);
        let (claim, others) = self.speakers.confirm(remote, index, key);
        qp.keep_claim(remote, claim);
        for other in others.into_iter().filter(|other| (other.engine, other.key) != (index, key)) {
            if other.engine == index {
                self.silence(other.key, &remote, other.age);
            } else if let Some(fabric) = &mut self.fabric {
                fabric.note(other.engine, Note::Silent { key: other.key, remote, age: other.age });
            }
        }
    }

    /// A queue pair has lost a claim to who is connected to `remote`. One that is on its way between engines finds that out when it comes.
    pub(super) fn silence(&mut self, key: QpKey, remote: &RemoteQp, age: u64) {
        let Some(qp) = self.qps.get_mut(key) else { return };
        if qp.claim_on(remote).is_none_or(|claim| claim.age != age) {
            return;
        }
        qp.drop_claim(remote);
        if let Some((_, group)) = self.group_of(key) {
            // If the peer is connected to this one after all, and an answer has been late, it says so again.
            group.paths.doubt();
            group.question.reopen();
        }
    }

    /// A queue pair does not count any more among those that are connected to its peer behind the underlay.
    pub(super) fn forget_remote(&mut self, key: QpKey) {
        let Some(qp) = self.qps.get_mut(key) else { return };
        let home = qp.path.remote_qp().zip(qp.claim.take());
        let others = std::mem::take(&mut qp.other_claims);
        for (remote, claim) in home.into_iter().chain(others) {
            if self.speakers.leave(&remote, claim.age) && claim.sends {
                self.find_speaker(remote);
            }
        }
    }

    /// A queue pair is in ERR: if it is the one that sends, another may.
    pub(super) fn cede_remote(&mut self, key: QpKey) {
        let Some(qp) = self.qps.get(key) else { return };
        let others = qp.other_claims.len();
        if let Some(remote) = qp.path.remote_qp().filter(|_| qp.claim.is_some_and(|c| c.sends)) {
            self.find_speaker(remote);
        }
        // From the last to the first, since those that are left to others are removed.
        for place in (0..others).rev() {
            let claim = self.qps.get(key).and_then(|q| q.other_claims.get(place)).copied();
            if let Some((remote, _)) = claim.filter(|(_, claim)| claim.sends) {
                self.find_speaker(remote);
            }
        }
    }

    /// A queue pair goes to another engine, where [`World::take_claim`] follows; between them nobody younger gets its place.
    pub(super) fn hand_claim(&mut self, key: QpKey, to: usize) {
        let Some(qp) = self.qps.get(key) else { return };
        for (remote, claim) in qp.claims() {
            self.speakers.moved(&remote, claim.age, to, key);
        }
    }

    /// A queue pair that has come from another engine is here under this key.
    pub(super) fn take_claim(&mut self, key: QpKey) {
        let index = self.index();
        let Some(qp) = self.qps.get_mut(key) else { return };
        let home = qp.path.remote_qp();
        let home = home.iter().zip(&mut qp.claim);
        for (remote, claim) in home.chain(qp.other_claims.iter_mut().map(|(remote, claim)| (&*remote, claim)))
        {
            claim.sends = self.speakers.moved(remote, claim.age, index, key);
        }
    }

    /// The oldest of those that are connected to `remote` and alive is told that it sends, wherever it is. Where all are dead, the last one may still say why.
    pub(super) fn find_speaker(&mut self, remote: RemoteQp) {
        let index = self.index();
        while let Some(first) = self.speakers.first(&remote) {
            if first.engine != index {
                if let Some(fabric) = &mut self.fabric {
                    fabric.note(first.engine, Note::Speaker(remote));
                }
                return;
            }
            // One that is not here yet looks for itself when it comes.
            let Some(qp) = self.qps.get_mut(first.key) else { return };
            if qp.core.state() != QpState::Err || !self.speakers.leave_to_others(&remote, first.age) {
                let claim = qp.claim_on_mut(&remote);
                if claim.is_some_and(|c| !std::mem::replace(&mut c.sends, true)) {
                    self.schedule(first.key);
                }
                return;
            }
            qp.drop_claim(&remote);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use masq_types::WireQpn;

    use super::*;
    use crate::udp::LocalId;

    #[test]
    fn the_oldest_comes_first_wherever_it_is() {
        let shared = Speakers::default();
        let remote = (LocalId(1), IpAddr::from([192, 0, 2, 1]), WireQpn::from_wire(7));
        let key = QpKey::for_test;
        let first = |shared: &Speakers| shared.first(&remote).map(|c| (c.engine, c.key));
        let claims = [0, 1, 2, 3].map(|n| shared.join(remote, n % 2, key(n)));
        assert_eq!(claims.map(|c| c.sends), [true, false, false, false]);
        // A younger one that moves stays younger.
        assert!(!shared.moved(&remote, claims[3].age, 0, key(30)));
        assert!(shared.moved(&remote, claims[0].age, 1, key(10)));
        assert_eq!(first(&shared), Some((1, key(10))));
        assert!(shared.leave(&remote, claims[1].age));
        assert_eq!(first(&shared), Some((1, key(10))));
        assert!(shared.leave_to_others(&remote, claims[0].age));
        assert_eq!(first(&shared), Some((0, key(2))));
        assert!(shared.leave(&remote, claims[2].age));
        assert!(!shared.leave_to_others(&remote, claims[3].age), "who is alone leaves it to nobody");
        assert_eq!(first(&shared), Some((0, key(30))));
        assert!(!shared.leave(&remote, claims[3].age));
        assert_eq!((first(&shared), shared.lock().claimants.len()), (None, 0));
        assert!(shared.join(remote, 1, key(5)).sends);
    }

    #[test]
    fn who_is_confirmed_is_the_only_one() {
        let shared = Speakers::default();
        let remote = (LocalId(1), IpAddr::from([192, 0, 2, 1]), WireQpn::from_wire(7));
        let key = QpKey::for_test;
        let claims = [0, 1].map(|n| shared.join(remote, n, key(n)));
        let (claim, others) = shared.confirm(remote, 0, key(2));
        assert!(claim.sends);
        assert_eq!(others.iter().map(|c| (c.age, c.key)).collect::<Vec<_>>(), [(0, key(0)), (1, key(1))]);
        assert!(!shared.moved(&remote, claims[0].age, 1, key(10)), "not any more");
        shared.leave(&remote, claims[1].age);
        assert_eq!(shared.first(&remote).map(|c| c.key), Some(key(2)), "who has no claim takes none away");
        // The peer is connected anew, to another one.
        let (newer, others) = shared.confirm(remote, 1, key(3));
        assert_eq!(others.iter().map(|c| c.age).collect::<Vec<_>>(), [claim.age]);
        assert_eq!(shared.first(&remote).map(|c| c.key), Some(key(3)));
        shared.leave(&remote, claim.age);
        assert!(!shared.leave_to_others(&remote, newer.age));
        assert!(!shared.leave(&remote, newer.age));
        assert_eq!(shared.lock().claimants.len(), 0);
    }
}
