use masq_wire::ArrivedRepr;
use proptest::prelude::*;

use super::super::env::{SendOp, SendWork};
use super::*;

/// What is on its way from `FIRST` on: an operation and its packets each.
fn inflight(requests: &[(SendOp, u32)]) -> Inflight {
    let mut q = Inflight::default();
    q.start(FIRST);
    for &(op, packets) in requests {
        q.push(SendWork { op, ..SendWork::default() }, packets, packets, None);
        let piece = if op == SendOp::Read { READ_PACKETS } else { 1 };
        for sent in (0..packets).step_by(piece as usize) {
            q.advance(piece.min(packets - sent));
        }
    }
    q
}

const FIRST: Psn = Psn::new(0xff_fff0);
const READ_PACKETS: u32 = 4;

fn hear(r: &mut Recovery, q: &Inflight, heard: u32, places: &[u32]) {
    let bitmap = ArrivedRepr::of(places.iter().copied());
    r.hear(q, FIRST.plus(heard), Some(Arrived::new(bitmap.bytes())));
    r.find_lost(q);
}

/// Sends again what is lost, and returns it.
fn resend(r: &mut Recovery, q: &Inflight) -> Vec<(u32, u32)> {
    let mut all = Vec::new();
    while let Some((psn, run)) = r.next_lost(q) {
        all.push((psn.since(FIRST), run));
        r.sent(psn, run);
    }
    all
}

#[test]
fn a_gap_is_lost_once_until_something_younger_arrives() {
    let q = inflight(&[(SendOp::Write, 40)]);
    let mut r = Recovery::new(&q);
    hear(&mut r, &q, 10, &[0, 1, 3, 4]);
    assert_eq!(resend(&mut r, &q), [(10, 1), (13, 1)]);
    hear(&mut r, &q, 10, &[0, 1, 3, 4, 9]);
    assert_eq!(resend(&mut r, &q), [(16, 4)], "what was sent again is not sent again");
    hear(&mut r, &q, 14, &[1, 2, 3]);
    assert_eq!(resend(&mut r, &q), [(14, 2), (20, 20)], "all that was sent before what filled 16 to 18");
    assert!(!r.is_over(&q));
    // What comes late says nothing new.
    hear(&mut r, &q, 12, &[0]);
    assert_eq!(resend(&mut r, &q), []);
}

#[test]
fn doubt_takes_all_gaps_for_lost_and_nothing_else() {
    let q = inflight(&[(SendOp::Write, 40)]);
    let mut r = Recovery::new(&q);
    hear(&mut r, &q, 10, &[0, 5]);
    assert_eq!(resend(&mut r, &q), [(10, 1), (12, 4)]);
    r.doubt(&q);
    assert_eq!(resend(&mut r, &q), [(10, 1), (12, 4)]);
    assert_eq!(r.last_needed(&q), Some(FIRST.plus(39)));
}

/// A READ request is one packet, and its answers are several.
#[test]
fn reads_are_needed_until_their_answers_have_come() {
    let mut q = inflight(&[(SendOp::Read, 8), (SendOp::Write, 2)]);
    let mut r = Recovery::new(&q);
    // The second piece of the READ is missing there.
    hear(&mut r, &q, 4, &[3, 4]);
    assert_eq!(
        resend(&mut r, &q),
        [(0, 8)],
        "no answer of the first has come, and the second has not arrived"
    );
    r.answered(&q, FIRST.plus(5), FIRST.plus(8));
    r.find_lost(&q);
    assert_eq!((r.heard().since(FIRST), resend(&mut r, &q)), (8, vec![(0, 5)]));
    q.acknowledge(FIRST.plus(7));
    r.pass(FIRST, FIRST.plus(7));
    r.hear(&q, FIRST.plus(10), None);
    r.find_lost(&q);
    assert_eq!(r.last_needed(&q), Some(FIRST.plus(7)));
    q.acknowledge(FIRST.plus(10));
    r.pass(FIRST.plus(7), FIRST.plus(10));
    assert!(r.is_over(&q));
}

#[test]
fn places_behind_what_was_sent_mean_nothing() {
    let q = inflight(&[(SendOp::Write, 10)]);
    let mut r = Recovery::new(&q);
    let all: Vec<u32> = (9..1024).collect();
    hear(&mut r, &q, 0, &all);
    assert_eq!(resend(&mut r, &q), []);
    r.hear(&q, FIRST.minus(1), None);
    r.hear(&q, FIRST.plus(Psn::HALF + 1), None);
    assert_eq!(r.heard(), FIRST);
    assert!(r.is_over(&q));
}

/// A peer that keeps packets, lets go of them, and says so late or never.
#[derive(Clone, Debug)]
enum Step {
    /// Up to here it has carried out, and behind that it keeps these.
    Hear {
        heard: u32,
        places: Vec<u32>,
    },
    /// Up to here it has carried out, and it keeps nothing.
    HearNone(u32),
    /// What is lost is sent again, this many times at most.
    Resend(usize),
    /// All before this one is acknowledged.
    Pass(u32),
    Doubt,
}

fn step() -> impl Strategy<Value = Step> {
    let places = proptest::collection::vec(0u32..160, 0..40);
    prop_oneof![
        4 => (0u32..120, places).prop_map(|(heard, places)| Step::Hear { heard, places }),
        1 => (0u32..120).prop_map(Step::HearNone),
        4 => (0usize..50).prop_map(Step::Resend),
        1 => (0u32..120).prop_map(Step::Pass),
        1 => Just(Step::Doubt),
    ]
}

proptest! {
    /// To look at each place once finds all that a look at everything finds.
    #[test]
    fn nothing_that_is_lost_is_overlooked(steps in proptest::collection::vec(step(), 1..120)) {
        let mut q = inflight(&[(SendOp::Write, 60), (SendOp::Send, 60)]);
        let mut r = Recovery::new(&q);
        for step in steps {
            match step {
                Step::Hear { heard, places } => {
                    let bitmap = ArrivedRepr::of(places);
                    r.hear(&q, FIRST.plus(heard), Some(Arrived::new(bitmap.bytes())));
                }
                Step::HearNone(heard) => r.hear(&q, FIRST.plus(heard), None),
                Step::Resend(most) => {
                    for _ in 0..most {
                        let Some((psn, run)) = r.next_lost(&q) else { break };
                        r.sent(psn, run);
                    }
                }
                Step::Pass(to) => {
                    let (before, una) = (q.una(), FIRST.plus(to));
                    if before.precedes(una) && !r.heard().precedes(una) {
                        q.acknowledge(una);
                        r.pass(before, una);
                    }
                }
                Step::Doubt => r.doubt(&q),
            }
            r.find_lost(&q);
            for place in 0..q.on_their_way() {
                let psn = q.una().plus(place);
                let (_, request) = q.find(psn).unwrap();
                let late = is_newer(r.newest, r.order[slot(psn)]);
                let needed = r.is_needed(&q, request, psn);
                prop_assert!(!late || !needed || r.lost.has(psn), "{psn} is overlooked");
            }
        }
    }
}

#[test]
fn bits_are_found_across_the_wrap() {
    let mut bits = PsnSet::default();
    let from = Psn::new(0xff_ff00);
    for place in [0, 63, 64, 300, 1023] {
        bits.set(from.plus(place));
        assert_eq!((bits.first(from, 1024), bits.first(from, place)), (Some(place), None));
        bits.clear(from.plus(place));
    }
    assert!(bits.is_empty());
    assert!(is_newer(0, u32::MAX) && !is_newer(u32::MAX, 0) && !is_newer(7, 7));
}

#[test]
fn probes_come_ever_more_seldom() {
    let at = |millis| Time::ZERO.plus(Duration::from_millis(millis));
    let mut p = Probe::default();
    let mut now = at(0);
    for expected in [2, 4, 8, 10, 10] {
        p.sent(now, false, Some(Duration::from_millis(2)), Some(Duration::from_millis(10)));
        let deadline = p.deadline().unwrap();
        assert_eq!(deadline.since(now), Duration::from_millis(expected));
        assert!(!p.handle_timeout(now) && !p.is_due);
        assert!(p.handle_timeout(deadline) && p.is_due && p.deadline().is_none());
        (now, p.is_due) = (deadline, false);
    }
    p.heard(now, false, true);
    assert!(!p.is_due);
    p.sent(now, false, None, None);
    assert_eq!(p.deadline(), Some(now.plus(Probe::FIRST)));
    p.heard(now, false, true);
    p.sent(now, true, None, Some(Duration::from_millis(60)));
    assert_eq!(p.deadline(), Some(now.plus(Duration::from_millis(30))), "who knows how the peer is paced");
    p.heard(now, true, true);
    let later = now.plus(Duration::from_millis(10));
    p.heard(later, true, true);
    p.sent(later, true, Some(Duration::from_millis(2)), Some(Duration::from_millis(60)));
    assert_eq!(p.deadline(), Some(later.plus(Duration::from_millis(20))));
}

/// Whoever probes before answers can come would never time one, and go on probing.
#[test]
fn a_probe_that_came_too_early_makes_the_next_wait_longer() {
    let mut p = Probe::default();
    let mut now = Time::ZERO;
    // An answer takes three times as long as is thought at first.
    let answer = |p: &mut Probe, now: &mut Time, timeout| {
        let (from, mut probes) = (*now, 0);
        loop {
            p.sent(*now, false, timeout, None);
            let deadline = p.deadline().unwrap();
            if deadline.since(from) > Probe::FIRST * 3 {
                *now = from.plus(Probe::FIRST * 3);
                p.heard(*now, false, probes == 0);
                return probes;
            }
            assert!(p.handle_timeout(deadline));
            (*now, probes) = (deadline, probes + 1);
        }
    };
    assert_eq!(answer(&mut p, &mut now, None), 2, "after one time and after three");
    assert_eq!(answer(&mut p, &mut now, None), 0, "four times");
    assert_eq!(answer(&mut p, &mut now, Some(Probe::FIRST * 6)), 0);
    // Where nothing can be timed for other reasons, less is tried again.
    for (waits, probes) in [(1, true), (2, false), (1, false)] {
        p.sent(now, false, None, None);
        let deadline = p.deadline().unwrap();
        assert_eq!(deadline.since(now), Probe::FIRST * waits);
        assert_eq!(probes && p.handle_timeout(deadline), probes);
        p.heard(deadline, false, false);
        now = deadline;
    }
}
