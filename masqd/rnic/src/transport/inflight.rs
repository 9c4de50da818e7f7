//! The requests of a send queue that have their PSNs, and three marks in the space of PSNs.
//!
//! ```text
//!  acknowledged │ on their way │ to be sent again │ to be sent      │ to be fetched
//!  ─────────────┼──────────────┼──────────────────┼─────────────────┼──────────────
//!               una            next               high              end
//! ```
//!
//! `una` ≤ `next` ≤ `high` ≤ `end`, modulo 2^24. When nothing is repeated, `next` is `high`.

use std::collections::VecDeque;

use masq_types::Psn;

use super::env::{SendOp, SendWork};
use super::psn_set::PsnSet;
use super::request::{Failure, Request};

/// Room for requests, none of which are in it.
#[derive(Debug, Default)]
pub struct Room(VecDeque<Request>);

impl Room {
    /// For how many.
    pub fn capacity(&self) -> usize {
        self.0.capacity()
    }
}

#[derive(Debug, Default)]
pub(super) struct Inflight {
    requests: VecDeque<Request>,
    /// Oldest PSN that is not acknowledged.
    una: Psn,
    /// Next PSN to send.
    next: Psn,
    /// Next PSN to send for the first time.
    high: Psn,
    /// Next PSN to give to a request.
    end: Psn,
    /// Which request `next` lies in; the number of requests when it is `end`.
    cursor: usize,
    /// How many of them are READs and atomics.
    fetches: usize,
    /// The last PSNs of pieces: what a packet asks for of a READ. They stay while they are not acknowledged: what is asked for again must not span two
    /// packets that the responder has seen.
    piece_ends: PsnSet,
    /// None ended before `una`, when it last moved.
    within_piece: bool,
}

impl Inflight {
    /// Forgets everything and begins at `psn`.
    pub(super) fn start(&mut self, psn: Psn) {
        self.requests.clear();
        self.fetches = 0;
        self.piece_ends = PsnSet::default();
        (self.una, self.next, self.high, self.end, self.cursor) = (psn, psn, psn, psn, 0);
    }

    pub(super) fn una(&self) -> Psn {
        self.una
    }

    pub(super) fn next(&self) -> Psn {
        self.next
    }

    pub(super) fn high(&self) -> Psn {
        self.high
    }

    /// PSNs sent and not acknowledged, those to be sent again left out.
    pub(super) fn on_their_way(&self) -> u32 {
        self.next.since(self.una)
    }

    /// PSNs sent at least once and not acknowledged.
    pub(super) fn unacknowledged(&self) -> u32 {
        self.high.since(self.una)
    }

    /// PSNs that requests hold.
    pub(super) fn held(&self) -> u32 {
        self.end.since(self.una)
    }

    /// Whether some request has been begun and is not wholly acknowledged.
    pub(super) fn has_begun(&self) -> bool {
        self.una != self.high || self.front().is_some_and(|r| r.first != self.una)
    }

    /// Whether nothing can be held behind the last request: it fails, so that none behind it is ever sent, or is still to be carried out
    /// here, and what is behind it may use the key that it changes.
    pub(super) fn is_closed(&self) -> bool {
        self.requests.back().is_some_and(|r| r.failure.is_some() || r.is_to_be_carried_out())
    }

    pub(super) fn front(&self) -> Option<&Request> {
        self.requests.front()
    }

    /// The requests that are held, oldest first.
    pub(super) fn requests(&self) -> impl Iterator<Item = &Request> {
        self.requests.iter()
    }

    /// The request that `psn` belongs to, which lies before `next`, and its place.
    pub(super) fn find(&self, psn: Psn) -> Option<(usize, &Request)> {
        let base = self.front()?.first;
        // Those without PSNs stand before the one that has the PSN at their place.
        let behind = self.requests.partition_point(|r| r.first.since(base) <= psn.since(base));
        let at = behind.checked_sub(1)?;
        self.requests.get(at).filter(|r| psn.since(r.first) < r.packets).map(|r| (at, r))
    }

    pub(super) fn request_mut(&mut self, at: usize) -> Option<&mut Request> {
        self.requests.get_mut(at)
    }

    /// Whether a READ or atomic is held.
    pub(super) fn has_fetch(&self) -> bool {
        self.fetches > 0
    }

    /// How many requests are held.
    pub(super) fn len(&self) -> usize {
        self.requests.len()
    }

    /// Whether there is no room for a request, nor has any been taken back since nothing was held.
    pub(super) fn needs_room(&self) -> bool {
        self.requests.capacity() == 0
    }

    /// Room to begin with; it grows by itself.
    pub(super) fn take_room(&mut self, room: Room) {
        self.requests = room.0;
    }

    /// Nothing more is posted for the moment: if nothing is held either, no room is needed.
    pub(super) fn rest(&mut self) -> Option<Room> {
        let idle = self.requests.is_empty() && !self.needs_room();
        idle.then(|| Room(std::mem::take(&mut self.requests)))
    }

    /// Gives a request its PSNs.
    pub(super) fn push(&mut self, work: SendWork, packets: u32, len: u32, failure: Option<Failure>) {
        self.fetches += usize::from(work.op.is_fetch());
        self.requests.push_back(Request { work, first: self.end, packets, len, failure, carried_out: false });
        self.end = self.end.plus(packets);
    }

    /// The request to send from next, and the place in it; `None` when all has been sent.
    pub(super) fn current(&self) -> Option<(&Request, u32)> {
        self.requests.get(self.cursor).map(|r| (r, self.next.since(r.first)))
    }

    /// Whether all requests before the one to send from are done.
    pub(super) fn current_is_first(&self) -> bool {
        self.cursor == 0
    }

    pub(super) fn current_mut(&mut self) -> Option<&mut Request> {
        self.requests.get_mut(self.cursor)
    }

    /// Where the piece ends that `psn` belongs to, which has been asked for at least once.
    pub(super) fn piece_end(&self, psn: Psn) -> Psn {
        psn.plus(self.piece_ends.first(psn, self.high.since(psn)).unwrap_or(0) + 1)
    }

    /// Where the piece of `request` begins that `psn` belongs to, as far as it is not acknowledged.
    pub(super) fn piece_start(&self, request: &Request, psn: Psn) -> Psn {
        if request.work.op != SendOp::Read {
            return psn;
        }
        let most = psn.since(self.una).min(psn.since(request.first));
        psn.minus(self.piece_ends.last(psn, most).unwrap_or(most))
    }

    /// Whether a part of a piece has been answered, and more is to come.
    pub(super) fn is_within_piece(&self) -> bool {
        self.within_piece && self.front().is_some_and(|r| r.work.op == SendOp::Read && r.first != self.una)
    }

    /// Whether a piece ends with `psn`.
    pub(super) fn ends_piece(&self, psn: Psn) -> bool {
        self.piece_ends.has(psn)
    }

    /// `packets` PSNs from `next` on have been sent, or asked for.
    pub(super) fn advance(&mut self, packets: u32) {
        if self.current().is_some_and(|(r, _)| r.work.op == SendOp::Read) {
            self.piece_ends.set(self.next.plus(packets - 1));
        }
        if self.next.plus(packets).since(self.una) > self.high.since(self.una) {
            self.high = self.next.plus(packets);
        }
        self.next = self.next.plus(packets);
        if self.current().is_some_and(|(r, at)| at >= r.packets) {
            self.cursor += 1;
            self.pass_carried_out();
        }
    }

    /// The request at `next` has been carried out here.
    pub(super) fn carried_out(&mut self) {
        if let Some(request) = self.requests.get_mut(self.cursor) {
            request.carried_out = true;
        }
        self.pass_carried_out();
    }

    /// When something is repeated, what was carried out in between is not.
    fn pass_carried_out(&mut self) {
        while self.requests.get(self.cursor).is_some_and(|r| r.carried_out) {
            self.cursor += 1;
        }
    }

    /// Everything unacknowledged is to be sent again.
    pub(super) fn go_back(&mut self) {
        self.next = self.una;
        self.cursor = 0;
    }

    /// All PSNs before `una` are acknowledged; `una` lies in the first request or at its end.
    pub(super) fn acknowledge(&mut self, una: Psn) {
        if una.since(self.una) > self.next.since(self.una) {
            // An answer to something that was about to be repeated.
            self.next = una;
        }
        if self.has_fetch() && una != self.una {
            self.within_piece = !self.piece_ends.has(una.minus(1));
            self.piece_ends.clear_run(self.una, una.since(self.una));
        }
        self.una = una;
    }

    /// Takes the first request out; it is wholly acknowledged, or has failed.
    pub(super) fn pop(&mut self) -> Option<Request> {
        let request = self.requests.pop_front()?;
        self.cursor = self.cursor.saturating_sub(1);
        self.fetches -= usize::from(request.work.op.is_fetch());
        Some(request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inflight(packets: &[u32]) -> Inflight {
        let mut q = Inflight::default();
        q.start(Psn::new(0xff_fffe));
        for &n in packets {
            q.push(SendWork::default(), n, n, None);
        }
        q
    }

    fn at(q: &Inflight) -> Option<(u32, u32)> {
        q.current().map(|(r, at)| (r.first.since(Psn::new(0xff_fffe)), at))
    }

    #[test]
    fn marks_move_across_the_wrap() {
        let mut q = inflight(&[1, 3, 1]);
        assert_eq!((q.held(), at(&q)), (5, Some((0, 0))));
        q.advance(1);
        q.advance(2);
        assert_eq!((q.on_their_way(), at(&q)), (3, Some((1, 2))));
        q.go_back();
        assert_eq!((q.on_their_way(), q.unacknowledged(), at(&q)), (0, 3, Some((0, 0))));
        q.advance(1);
        q.advance(1);
        q.advance(1);
        q.advance(1);
        assert_eq!((q.unacknowledged(), at(&q)), (4, Some((4, 0))));
        q.advance(1);
        assert_eq!(at(&q), None);
        q.acknowledge(Psn::new(0xff_ffff));
        assert_eq!(q.pop().map(|r| r.packets), Some(1));
        q.go_back();
        assert_eq!((at(&q), q.has_begun()), (Some((1, 0)), true));
    }

    #[test]
    fn an_answer_overtakes_the_repetition() {
        let mut q = inflight(&[2, 1]);
        q.advance(1);
        q.advance(1);
        q.go_back();
        q.acknowledge(Psn::new(0));
        q.pop();
        assert_eq!((q.next(), q.una(), at(&q)), (Psn::new(0), Psn::new(0), Some((2, 0))));
        assert!(!q.has_begun());
    }

    /// What is held stays, and nothing when idle.
    #[test]
    fn memory_follows_what_is_held() {
        let mut q = inflight(&[1; 1000]);
        assert!(q.rest().is_none());
        assert_eq!(q.len(), 1000);
        (0..1000).for_each(|_| q.advance(1));
        while q.pop().is_some() {}
        assert!(q.rest().is_some_and(|room| room.capacity() >= 1000));
        assert!(q.needs_room() && q.rest().is_none());
        q.take_room(Room(VecDeque::with_capacity(8)));
        assert!(!q.needs_room());
    }
}
