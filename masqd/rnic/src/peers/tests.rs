use super::*;

const RTO: Duration = Duration::from_millis(2);
const LONG: usize = 4128;

fn at(ms: u64) -> Time {
    Time::from_nanos(ms * 1_000_000)
}

fn ends(path: u8) -> Ends {
    Ends { local: LocalId(path.into()), remote: [192, 0, 2, path].into() }
}

/// One peer, over a network of which a test says what it carries.
struct Net {
    peers: Peers,
    key: usize,
    now: Time,
    nonce: u64,
    asks: u64,
    changes: Vec<(u8, bool)>,
    /// What is under way, by the time at which it comes.
    answers: Vec<(Time, Ask)>,
}

impl Net {
    fn new(paths: u8) -> Self {
        let mut peers = Peers::new(3);
        let all: Vec<Ends> = (0..paths).map(ends).collect();
        let key = peers.join(&all, Time::ZERO, |_| false).unwrap();
        Self { peers, key, now: Time::ZERO, nonce: 0, asks: 0, changes: Vec::new(), answers: Vec::new() }
    }

    fn suspect(&mut self) {
        self.peers.suspect(self.key, self.now, RTO, LONG);
    }

    /// Lets time pass; a probe is answered after half a millisecond if `carries` its path and length.
    fn run(&mut self, ms: u64, carries: impl Fn(u8, usize) -> bool) {
        let end = self.now.plus(Duration::from_millis(ms));
        loop {
            let next =
                self.answers.first().map(|(at, _)| *at).into_iter().chain(self.peers.poll_timeout()).min();
            let Some(now) = next.filter(|at| *at <= end) else { break };
            self.now = now;
            while self.answers.first().is_some_and(|(at, _)| *at <= now) {
                let (_, ask) = self.answers.remove(0);
                self.peers.answered(&ask.token, ask.ends, now);
            }
            let nonce = &mut self.nonce;
            self.peers.handle_timeout(now, now, || {
                *nonce += 1;
                *nonce
            });
            while let Some(ask) = self.peers.poll_ask() {
                self.asks += 1;
                assert_eq!(Peers::engine_of(&ask.token), 3);
                if carries(ask.ends.local.0 as u8, ask.bytes) {
                    self.answers.push((now.plus(RTO / 4), ask));
                }
            }
            while let Some(change) = self.peers.poll_change() {
                assert_eq!((change.peer, change.ends), (self.key, ends(change.path)));
                self.changes.push((change.path, change.is_up));
            }
        }
        self.now = end;
    }

    fn states(&self) -> Vec<PathState> {
        let peer = self.peers.get(self.key).unwrap();
        (0..peer.lines.len()).map(|path| peer.state(path as u8)).collect()
    }

    fn take_changes(&mut self) -> Vec<(u8, bool)> {
        std::mem::take(&mut self.changes)
    }
}

use PathState::{Down, Silent, Up};

#[test]
fn a_dead_path_is_told_once_and_found_again() {
    let mut n = Net::new(4);
    n.run(1000, |_, _| true);
    assert_eq!((n.asks, n.peers.poll_timeout()), (0, None), "nobody asks without a reason");
    n.suspect();
    n.run(15, |path, _| path != 1);
    assert_eq!((n.states(), n.take_changes()), (vec![Up, Silent, Up, Up], vec![]));
    // A thousand queue pairs find the same.
    (0..1000).for_each(|_| n.suspect());
    n.run(20, |path, _| path != 1);
    assert_eq!((n.states(), n.take_changes()), (vec![Up, Down, Up, Up], vec![(1, false)]));
    assert!(n.asks <= 4 * 4, "{}", n.asks);
    let before = n.asks;
    n.run(60_000, |path, _| path != 1);
    assert!(n.asks - before < 25, "more and more rarely: {}", n.asks - before);
    n.run(6000, |_, _| true);
    assert_eq!((n.states(), n.take_changes()), (vec![Up; 4], vec![(1, true)]));
    assert_eq!(n.peers.poll_timeout(), None);
}

/// What a queue pair with a peer that is stopped, or lies, causes: the other host answers for it.
#[test]
fn silence_of_a_queue_pair_blames_no_path() {
    let mut n = Net::new(4);
    for _ in 0..2000 {
        n.suspect();
        n.run(1, |_, _| true);
    }
    assert_eq!((n.states(), n.take_changes()), (vec![Up; 4], vec![]));
    // And costs no more than a round every 10 ms.
    assert!(n.asks <= 4 * 201, "{}", n.asks);
}

#[test]
fn a_silent_host_blames_no_path() {
    let mut n = Net::new(4);
    n.suspect();
    n.run(20_000, |_, _| false);
    assert_eq!((n.states(), n.take_changes()), (vec![Silent; 4], vec![]));
    assert!(n.asks < 4 * 12, "{}", n.asks);
    // Two come back: only then it is known that the others are dead.
    n.run(6000, |path, _| path < 2);
    assert_eq!(n.states(), [Up, Up, Down, Down]);
    let mut changes = n.take_changes();
    changes.sort();
    assert_eq!(changes, [(2, false), (3, false)]);
}

#[test]
fn one_lost_probe_is_no_dead_path() {
    let mut n = Net::new(2);
    for _ in 0..10 {
        n.suspect();
        n.run(15, |path, _| path != 1);
        assert_eq!(n.states(), [Up, Silent]);
        n.run(100, |_, _| true);
        assert_eq!((n.states(), n.take_changes()), (vec![Up; 2], vec![]));
    }
}

/// A path that loses long packets is dead; where all do, it is the one who sends them.
#[test]
fn paths_for_short_packets_only() {
    let mut n = Net::new(3);
    n.suspect();
    n.run(100, |path, bytes| path != 2 || bytes < 1000);
    assert_eq!((n.states(), n.take_changes()), (vec![Up, Up, Down], vec![(2, false)]));
    n.run(20_000, |path, bytes| path != 2 || bytes < 1000);
    assert_eq!(n.states(), [Up, Up, Down]);

    let mut n = Net::new(3);
    for _ in 0..100 {
        n.suspect();
        n.run(100, |_, bytes| bytes < 1000);
    }
    assert_eq!((n.states(), n.take_changes()), (vec![Up; 3], vec![]));
    // A path that dies meanwhile is found.
    n.suspect();
    n.run(100, |path, bytes| bytes < 1000 && path > 0);
    assert_eq!((n.states(), n.take_changes()), (vec![Down, Up, Up], vec![(0, false)]));
}

#[test]
fn a_path_that_flaps_is_not_trusted_sooner() {
    let mut n = Net::new(2);
    for _ in 0..6 {
        n.suspect();
        n.run(40, |path, _| path != 1);
        assert_eq!(n.states(), [Up, Down]);
        n.run(6000, |_, _| true);
        n.now = n.now.minus(Duration::from_secs(3));
    }
    assert_eq!(n.take_changes().len(), 12);
    let pause = |n: &Net| n.peers.get(n.key).unwrap().lines[1].pause;
    assert_eq!(pause(&n), LAST_PAUSE);
    n.run(10_000, |_, _| true);
    n.suspect();
    n.run(40, |path, _| path != 1);
    assert_eq!(pause(&n), FIRST_PAUSE, "it has been up for long");
}

/// An engine that comes late to the end of a round has not heard what came meanwhile.
#[test]
fn who_does_not_listen_judges_nobody() {
    let mut peers = Peers::new(0);
    let key = peers.join(&[ends(0), ends(1)], Time::ZERO, |_| false).unwrap();
    peers.suspect(key, at(0), RTO, LONG);
    let mut rounds = 0;
    for turn in 0..100u64 {
        // Every turn comes 40 ms late, and only path 0 is ever heard before it.
        let now = at(turn * 50);
        peers.handle_timeout(now, now, || turn);
        let asks: Vec<Ask> = std::iter::from_fn(|| peers.poll_ask()).collect();
        rounds += u64::from(!asks.is_empty());
        let down: Vec<Change> = std::iter::from_fn(|| peers.poll_change()).collect();
        if !down.is_empty() {
            assert!(rounds > 9, "after {rounds} rounds");
            return;
        }
        asks.iter()
            .filter(|ask| ask.ends == ends(0))
            .for_each(|ask| peers.answered(&ask.token, ask.ends, now));
    }
    panic!("a machine that is always late finds no dead path at all");
}

#[test]
fn answers_count_from_where_they_were_asked_for_and_once() {
    let mut peers = Peers::new(0);
    let key = peers.join(&[ends(0), ends(1)], Time::ZERO, |_| false).unwrap();
    peers.suspect(key, at(1), RTO, LONG);
    peers.handle_timeout(at(1), at(1), || 7);
    let ask = std::iter::from_fn(|| peers.poll_ask()).find(|ask| ask.ends == ends(1)).unwrap();
    let proved = |peers: &Peers| peers.get(key).unwrap().proved(1);
    peers.answered(&ask.token, ends(0), at(2));
    let mut other = ask.token;
    other[15] ^= 1;
    peers.answered(&other, ends(1), at(2));
    for strange in [[0; 16], [0xff; 16]] {
        peers.answered(&strange, ends(1), at(2));
    }
    assert_eq!(proved(&peers), None);
    peers.answered(&ask.token, ends(1), at(3));
    assert_eq!(proved(&peers), Some(at(3)));
    peers.answered(&ask.token, ends(1), at(4));
    assert_eq!(proved(&peers), Some(at(3)));
}

#[test]
fn peers_are_shared_by_who_has_the_same_ends_and_go_with_the_last() {
    let mut peers = Peers::new(0);
    let all: Vec<Ends> = (0..4).map(ends).collect();
    let up = |_: &Ends| false;
    let two = peers.join(&all[..2], at(0), up).unwrap();
    let four = peers.join(&all, at(0), up).unwrap();
    assert_eq!(two, four);
    let crossed = peers.join(&[ends(0), ends(2)], at(0), up).unwrap();
    assert_ne!(crossed, two);
    assert_eq!(peers.join(&[], at(0), up), None);
    assert_eq!(peers.len(), 2);

    // Path 3 is known to be down by the time somebody uses it again, and is asked at once.
    assert_eq!(peers.leave(four, 4), []);
    assert_eq!(peers.get(two).unwrap().lines.len(), 2);
    let four = peers.join(&all, at(5), |e| *e == ends(3)).unwrap();
    assert_eq!(peers.get(four).unwrap().state(3), Down);
    assert_eq!(peers.poll_timeout(), Some(at(5)));
    assert_eq!(peers.leave(four, 4), [ends(3)], "nobody knows it any more");
    assert_eq!(peers.poll_timeout(), None);
    peers.leave(two, 2);
    peers.leave(crossed, 2);
    assert_eq!((peers.len(), peers.by_first.len(), peers.due.len()), (0, 0, 0));
}

#[test]
fn what_other_engines_find_counts_here() {
    let mut n = Net::new(3);
    let down = n.peers.judged(ends(1), false, at(1));
    assert_eq!(down, [Change { peer: n.key, path: 1, is_up: false, ends: ends(1) }]);
    assert_eq!(n.peers.judged(ends(1), false, at(1)), [], "it is known");
    assert_eq!(n.peers.judged(ends(9), false, at(1)), []);
    assert_eq!(n.states(), [Up, Down, Up]);
    assert_eq!(n.peers.judged(ends(1), true, at(2)).len(), 1);
    assert_eq!(n.states(), [Up; 3]);
    assert_eq!(n.peers.get(n.key).unwrap().proved(1), Some(at(2)));
}
