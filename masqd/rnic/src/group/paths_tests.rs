use std::net::IpAddr;

use super::*;
use crate::peers::{Ends, Peers};
use crate::udp::LocalId;

const RTO: Duration = Duration::from_millis(2);
const ANSWER: Arrivals = Arrivals { answers: true, requests: false };

fn at(micros: u64) -> Time {
    Time::from_nanos(micros * 1000)
}

/// Four members, and the host that their paths lead to.
struct Four {
    paths: Paths,
    peers: Peers,
    key: usize,
}

fn ends(path: u8) -> Ends {
    Ends { local: LocalId(path.into()), remote: IpAddr::from([192, 0, 2, path]) }
}

impl Four {
    fn new() -> Self {
        let mut peers = Peers::new(0);
        let all: Vec<Ends> = (0..4).map(ends).collect();
        let key = peers.join(&all, Time::ZERO, |_| false).unwrap();
        let mut paths = Paths::new(4);
        paths.confirm();
        Self { paths, peers, key }
    }

    fn peer(&self) -> &Peer {
        self.peers.get(self.key).unwrap()
    }

    /// The peer answers a member by a path.
    fn answer(&mut self, number: u8, path: u8, now: Time) {
        self.paths.arrived(number, path, ANSWER);
        self.peers.heard(self.key, path, now);
    }

    /// And its host answers probes of all paths.
    fn prove(&mut self, path: u8, now: Time) {
        self.peers.suspect(self.key, now.minus(Duration::from_millis(20)), RTO, 0);
        self.peers.handle_timeout(now, now, || 1);
        while let Some(ask) = self.peers.poll_ask() {
            self.peers.answered(&ask.token, ask.ends, now);
        }
        assert_eq!(self.peer().proved(path), Some(now));
    }

    fn unanswered(&mut self, number: u8, now: Time) -> Verdict {
        let peer = self.peers.get(self.key).unwrap();
        self.paths.unanswered(number, peer, now, RTO, Some(RTO))
    }

    fn settle(&mut self, number: u8, now: Time) -> (bool, u8) {
        let peer = self.peers.get(self.key).unwrap();
        let leaves = self.paths.settle(number, peer, now);
        (leaves, self.paths.out(number, false))
    }
}

#[test]
fn a_member_leaves_a_silent_path_and_comes_home() {
    let mut f = Four::new();
    [0, 2, 3].into_iter().for_each(|path| f.answer(path, path, at(1000 + u64::from(path))));
    assert_eq!(f.unanswered(1, at(2000)), Verdict::Leaves);
    assert_eq!((f.paths.out(1, false), f.paths.out(1, true)), (3, 1), "where an answer came last");
    assert_eq!(f.settle(1, at(2100)), (false, 3));
    let told = |f: &Four, now| f.paths.describe(1, f.peer(), now).unwrap();
    let change = Migration { at: at(2000), unanswered: Some(RTO) };
    let there = Described { traffic: QpTraffic::default(), taken: 3, changes: 1, change: Some(change) };
    assert_eq!(told(&f, at(2100)), there);
    // A packet of another queue pair that was answered is no proof, a probe is.
    f.peers.heard(f.key, 1, at(2200));
    assert_eq!(f.settle(1, at(2200)), (false, 3));
    f.prove(1, at(30_000));
    assert_eq!(
        (told(&f, at(30_000)).taken, told(&f, at(30_000)).changes),
        (1, 1),
        "its next requests go there"
    );
    assert_eq!(f.settle(1, at(30_000)), (false, 1));
    assert_eq!(told(&f, at(30_000)).changes, 2);
}

#[test]
fn a_path_that_answers_others_is_left_the_second_time() {
    let mut f = Four::new();
    f.answer(0, 1, at(1500));
    assert_eq!(f.unanswered(1, at(2000)), Verdict::Lost);
    f.answer(0, 1, at(3500));
    f.answer(1, 1, at(3600));
    assert_eq!(f.unanswered(1, at(4000)), Verdict::Lost, "it has been answered since");
    f.answer(0, 1, at(5500));
    assert_eq!(f.unanswered(1, at(6000)), Verdict::Leaves);
    assert_eq!(f.paths.out(1, false), 0);
}

#[test]
fn who_has_left_often_stays_away_for_longer() {
    let mut f = Four::new();
    let mut now = at(0);
    let mut away = Vec::new();
    for _ in 0..8 {
        now = now.plus(Duration::from_millis(100));
        assert_eq!(f.unanswered(1, now), Verdict::Leaves);
        let left = now;
        while f.settle(1, now).1 != 1 {
            now = now.plus(Duration::from_millis(25));
            f.prove(1, now);
        }
        away.push(now.since(left).as_millis());
    }
    assert_eq!(away, [25, 25, 250, 500, 1000, 2000, 4000, 5000]);
    // Until it is answered at home.
    f.answer(1, 1, now);
    now = now.plus(Duration::from_secs(1));
    assert_eq!(f.unanswered(1, now), Verdict::Leaves);
    now = now.plus(Duration::from_millis(25));
    f.prove(1, now);
    assert_eq!(f.settle(1, now), (false, 1));
}

#[test]
fn a_path_that_is_dead_is_left_by_all_and_avoided() {
    let mut f = Four::new();
    f.peers.judged(ends(2), false, at(1000));
    assert_eq!(f.paths.describe(2, f.peer(), at(1000)).unwrap().taken, 0);
    assert_eq!(f.settle(2, at(1000)), (true, 0));
    assert_eq!(f.settle(2, at(1001)), (false, 0));
    let change = f.paths.describe(2, f.peer(), at(1001)).unwrap().change;
    assert_eq!(change, Some(Migration { at: at(1000), unanswered: None }));
    // Nobody goes there from elsewhere, and whoever is there goes on.
    f.peers.heard(f.key, 2, at(1002));
    assert_eq!(f.unanswered(1, at(10_000)), Verdict::Leaves);
    assert_eq!(f.paths.out(1, false), 0);
    f.peers.judged(ends(0), false, at(11_000));
    assert_eq!([f.settle(0, at(11_000)).0, f.settle(1, at(11_000)).0, f.settle(2, at(11_000)).0], [true; 3]);
    f.peers.judged(ends(2), true, at(12_000));
    assert_eq!(f.settle(2, at(12_000)), (false, 2));
    assert_eq!(f.paths.out(0, false), 1);
}

#[test]
fn nobody_leaves_the_last_path() {
    let mut f = Four::new();
    for path in 0..3 {
        assert_eq!(f.peers.judged(ends(path), false, at(1)).len(), 1);
    }
    assert_eq!(f.settle(0, at(2)), (true, 3));
    assert_eq!(f.unanswered(0, at(3)), Verdict::Stays);
    assert_eq!(f.unanswered(3, at(3)), Verdict::Stays);
    f.peers.judged(ends(3), false, at(4));
    assert_eq!((f.settle(3, at(5)), f.settle(0, at(5))), ((false, 3), (false, 3)));
}

/// A new connection begins elsewhere when a path is dead.
#[test]
fn paths_begin_anew() {
    let mut f = Four::new();
    f.peers.judged(ends(1), false, at(1));
    f.paths.sent(1, 100);
    assert!(f.settle(1, at(2)).0);
    f.paths.begin(4);
    f.paths.confirm();
    let told = f.paths.describe(1, f.peer(), at(3)).unwrap();
    assert_eq!((told.traffic.tx_bytes, told.changes, told.change, told.taken), (100, 1, None, 0));
    assert_eq!(f.settle(1, at(3)), (true, 0));
}

#[test]
fn answers_follow_requests() {
    let mut p = Paths::new(4);
    p.confirm();
    p.arrived(2, 3, Arrivals { requests: true, answers: false });
    assert_eq!((p.out(2, true), p.out(2, false)), (3, 2));
    p.arrived(2, 1, ANSWER);
    assert_eq!(p.out(2, true), 3);
    assert_eq!((p.out(9, true), p.out(9, false)), (9, 9));
}

/// As long as the peer's RNIC has not said that its queue pair is connected to this one, the other paths are not to be used, whatever comes by them.
#[test]
fn what_is_not_confirmed_takes_the_first_path() {
    let mut f = Four::new();
    f.paths.begin(4);
    f.peers.judged(ends(0), false, at(1));
    f.paths.arrived(2, 3, Arrivals { requests: true, answers: true });
    assert_eq!(f.settle(2, at(2)), (false, 0));
    assert_eq!(f.unanswered(2, at(3)), Verdict::Stays);
    assert_eq!((f.paths.out(2, false), f.paths.out(2, true)), (0, 0));
    assert_eq!(f.paths.describe(2, f.peer(), at(3)).unwrap().taken, 0);
    f.paths.confirm();
    assert_eq!((f.paths.out(2, false), f.paths.out(2, true)), (2, 3));
}
