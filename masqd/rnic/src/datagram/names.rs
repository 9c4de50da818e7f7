//! Who has been asked for.

use std::time::Duration;

use masq_driver::PeerName;
use rustc_hash::FxHashMap;

use super::Direction;
use crate::transport::Time;

/// How long datagrams wait for an answer.
pub const ANSWER_TIME: Duration = Duration::from_millis(100);
/// How long nobody is asked again for a peer that there is not.
pub const REFUSAL_TIME: Duration = Duration::from_millis(200);
/// Names in each direction that may be asked for, or not to be asked for again, at the same time: more are not asked for. So whatever
/// a guest sends and strangers forge, masqd is asked at most so many times in [`REFUSAL_TIME`] for peers that there are not.
pub const MAX_NAMES: usize = 128;

/// The names of unknown peers of one vNIC that count at the moment. What comes in takes no place from what goes out.
#[derive(Debug, Default)]
pub struct Names {
    outgoing: FxHashMap<PeerName, Entry>,
    incoming: FxHashMap<PeerName, Entry>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    refused: bool,
    until: Time,
}

/// What is to be done about an unknown peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unknown {
    /// Ask for it, and wait.
    Ask,
    /// It has been asked for: wait.
    Asked,
    /// There is no such peer, or too many others have been asked for.
    GiveUp,
}

impl Names {
    /// Judges the name of a peer that is not known; nothing is noted.
    pub fn judge(&mut self, now: Time, name: &PeerName) -> Unknown {
        let names = self.of(name);
        match names.get(name).filter(|e| e.until > now).copied() {
            Some(Entry { refused: true, .. }) => Unknown::GiveUp,
            Some(Entry { refused: false, .. }) => Unknown::Asked,
            None if has_room(names, now) => Unknown::Ask,
            None => Unknown::GiveUp,
        }
    }

    /// It is asked for.
    pub fn asked(&mut self, now: Time, name: PeerName) {
        self.of(&name).insert(name, Entry { refused: false, until: now.plus(ANSWER_TIME) });
    }

    /// There is no such peer.
    pub fn refused(&mut self, now: Time, name: PeerName) {
        let names = self.of(&name);
        if names.contains_key(&name) || has_room(names, now) {
            names.insert(name, Entry { refused: true, until: now.plus(REFUSAL_TIME) });
        }
    }

    /// Forgets the names of peers that are known now.
    pub fn forget(&mut self, is_known: impl Fn(&PeerName) -> bool) {
        for names in [&mut self.outgoing, &mut self.incoming] {
            names.retain(|name, _| !is_known(name));
        }
    }

    fn of(&mut self, name: &PeerName) -> &mut FxHashMap<PeerName, Entry> {
        match Direction::of(name) {
            Direction::Out => &mut self.outgoing,
            Direction::In => &mut self.incoming,
        }
    }
}

/// Whether there is room for one more name; those whose time is over make it.
fn has_room(names: &mut FxHashMap<PeerName, Entry>, now: Time) -> bool {
    if names.len() >= MAX_NAMES {
        names.retain(|_, e| e.until > now);
    }
    names.len() < MAX_NAMES
}

#[cfg(test)]
mod tests {
    use masq_types::{Gid, WireQpn};

    use super::*;

    fn source(qpn: u32) -> PeerName {
        PeerName::Source([192, 0, 2, 1].into(), WireQpn::from_wire(qpn))
    }

    fn gid(last: u8) -> PeerName {
        PeerName::Gid(Gid([last; 16]))
    }

    #[test]
    fn a_name_is_asked_for_once_and_a_refusal_lasts_for_a_while() {
        let mut names = Names::default();
        let at = |ms: u64| Time::from_nanos(ms * 1_000_000);
        assert_eq!(names.judge(at(0), &gid(1)), Unknown::Ask);
        names.asked(at(0), gid(1));
        assert_eq!(names.judge(at(99), &gid(1)), Unknown::Asked);
        assert_eq!(names.judge(at(100), &gid(1)), Unknown::Ask, "no answer came");
        names.asked(at(100), gid(1));
        names.refused(at(110), gid(1));
        assert_eq!(names.judge(at(309), &gid(1)), Unknown::GiveUp);
        assert_eq!(names.judge(at(310), &gid(1)), Unknown::Ask);
        names.refused(at(310), gid(1));
        names.forget(|n| *n == gid(1));
        assert_eq!(names.judge(at(311), &gid(1)), Unknown::Ask);
    }

    /// A flood of forged sources, each refused at once, is asked about a bounded number of times, and stops nobody from sending.
    #[test]
    fn forged_sources_do_not_ask_without_bound() {
        let mut names = Names::default();
        let mut asked = 0;
        for i in 0..10_000u32 {
            let now = Time::from_nanos(u64::from(i) * 100_000);
            if names.judge(now, &source(i)) == Unknown::Ask {
                names.asked(now, source(i));
                names.refused(now, source(i));
                asked += 1;
            }
            assert!(names.incoming.len() <= MAX_NAMES);
        }
        // One second.
        assert!(asked <= 6 * MAX_NAMES, "{asked}");
        assert_eq!(names.judge(Time::from_nanos(999_900_000), &gid(1)), Unknown::Ask);
        // An answer to what nobody has asked takes no room either.
        for i in 0..1000 {
            names.refused(Time::ZERO, source(i));
        }
        assert!(names.incoming.len() <= MAX_NAMES);
    }
}
