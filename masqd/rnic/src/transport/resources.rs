//! What a responder keeps of READs and atomics, to answer them, and to answer them again (IBTA Vol 1 §9.4.5, §9.7.5.1.4).

use std::collections::VecDeque;

use masq_types::{Mtu, Psn, Rkey};
use masq_wire::{Msn, RethRepr};

use super::request::packets_of;
use super::time::Time;

/// A READ or an atomic that was executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Resource {
    /// The PSN of its request and of its first response.
    pub(super) first: Psn,
    /// PSNs that its responses take.
    pub(super) packets: u32,
    pub(super) served: Served,
    /// The message sequence number after it.
    pub(super) msn: Msn,
    /// When this host received the READ, if the peer asks how long it is held.
    asked_at: Option<Time>,
    /// Responses that are still to be sent.
    sending: Option<Sending>,
    /// Its responses have been sent once.
    answered: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Served {
    /// The data is read when it is sent; by an XRC target, as the shared receive queue `srqn` sees memory.
    /// Its message may go on behind it.
    Read { rkey: Rkey, va: u64, len: u32, srqn: u32, goes_on: bool },
    /// The value before the atomic.
    Atomic { original: u64 },
}

/// Responses on their way out, as places counted from the resource's first PSN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Sending {
    begin: u32,
    next: u32,
    end: u32,
    /// Where in the READ's range the last response ends.
    end_offset: u32,
}

/// One response to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Response {
    pub(super) psn: Psn,
    pub(super) msn: Msn,
    pub(super) begins: bool,
    pub(super) ends: bool,
    pub(super) body: Body,
    /// When this host received the READ, if the peer asks how long it was held.
    pub(super) asked_at: Option<Time>,
    /// The message ends with it, as far as the request told.
    pub(super) ends_message: bool,
    /// It answers a repetition.
    pub(super) repeated: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Body {
    Data { rkey: Rkey, va: u64, len: u32, srqn: u32 },
    Value(u64),
}

/// Of the last READs and atomics as many as the peer may have outstanding, oldest first.
#[derive(Debug, Default)]
pub(super) struct Resources {
    ring: VecDeque<Resource>,
    /// What a peer that repairs selectively lacks of answers that have been sent: the first PSN of the READ or atomic, and the gap.
    again: VecDeque<(Psn, Sending)>,
}

/// Gaps that are remembered at most. Of more, the peer asks again.
const MAX_GAPS: usize = 64;

/// The peer has more READs and atomics outstanding than was agreed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TooMany;

impl Resource {
    /// The place from which on responses are still to be sent for the first time.
    fn unsent(&self) -> u32 {
        self.sending.filter(|_| !self.answered).map_or(self.packets, |s| s.next)
    }
}

impl Resources {
    /// Makes room for one more of at most `limit`. The oldest goes, if it has been answered: that the peer sends a
    /// new one tells that it has that answer, even when it is just being repeated.
    pub(super) fn make_room(&mut self, limit: u8) -> Result<(), TooMany> {
        let limit = usize::from(limit);
        if limit == 0 {
            return Err(TooMany);
        }
        while self.ring.len() >= limit {
            if self.ring.front().is_some_and(|r| !r.answered) {
                return Err(TooMany);
            }
            if let Some(oldest) = self.ring.pop_front() {
                self.again.retain(|(first, _)| *first != oldest.first);
            }
        }
        Ok(())
    }

    /// Keeps a READ or atomic that was executed, and begins to answer it.
    pub(super) fn push(
        &mut self,
        first: Psn,
        served: Served,
        msn: Msn,
        mtu: Mtu,
        asked_at: Option<Time>,
    ) -> u32 {
        let len = match served {
            Served::Read { len, .. } => len,
            Served::Atomic { .. } => 0,
        };
        let packets = packets_of(len, mtu);
        let sending = Sending { begin: 0, next: 0, end: packets, end_offset: len };
        self.ring.push_back(Resource {
            first,
            packets,
            served,
            msn,
            asked_at,
            sending: Some(sending),
            answered: false,
        });
        packets
    }

    /// Answers a repeated READ again, from memory: at once in place of what was being sent of it, or, for a peer that repairs selectively, before
    /// everything else and as far as it has been sent. Returns whether it belongs to one that is kept.
    pub(super) fn repeat_read(&mut self, psn: Psn, reth: &RethRepr, mtu: Mtu, selective: bool) -> bool {
        let Some(resource) = self.find(psn) else { return false };
        let Served::Read { rkey, va, len, .. } = resource.served else { return false };
        let begin = psn.since(resource.first);
        let offset = begin * mtu.bytes();
        let within = offset.checked_add(reth.dma_len).filter(|&end| end <= len);
        let Some(end_offset) = within else { return false };
        if reth.rkey != rkey || reth.va != va.wrapping_add(offset.into()) {
            return false;
        }
        let end = begin + packets_of(reth.dma_len, mtu);
        let sending = Sending { begin, next: begin, end, end_offset };
        if selective {
            let (first, unsent) = (resource.first, resource.unsent());
            self.fill_gap(first, unsent, sending, mtu);
        } else {
            resource.sending = Some(sending);
        }
        true
    }

    /// Answers a repeated atomic again, with the value of its only execution. Returns whether it is kept.
    pub(super) fn repeat_atomic(&mut self, psn: Psn, selective: bool) -> bool {
        let Some(resource) = self.find(psn) else { return false };
        if !matches!(resource.served, Served::Atomic { .. }) {
            return false;
        }
        let sending = Sending { begin: 0, next: 0, end: 1, end_offset: 0 };
        if selective {
            let (first, unsent) = (resource.first, resource.unsent());
            self.fill_gap(first, unsent, sending, Mtu::B256);
        } else {
            resource.sending = Some(sending);
        }
        true
    }

    /// Notes a gap in the answer to `first`, of which everything from place `unsent` on is still to be sent anyway.
    fn fill_gap(&mut self, first: Psn, unsent: u32, gap: Sending, mtu: Mtu) {
        let end = gap.end.min(unsent);
        let end_offset = if end < gap.end { end * mtu.bytes() } else { gap.end_offset };
        let gap = Sending { end, end_offset, ..gap };
        if gap.begin < end && self.again.len() < MAX_GAPS && !self.again.contains(&(first, gap)) {
            self.again.push_back((first, gap));
        }
    }

    fn find(&mut self, psn: Psn) -> Option<&mut Resource> {
        self.ring.iter_mut().find(|r| psn.since(r.first) < r.packets)
    }

    fn resource(&self, first: Psn) -> Option<&Resource> {
        self.ring.iter().find(|r| r.first == first)
    }

    /// Whether there is a response to send.
    pub(super) fn are_to_be_answered(&self) -> bool {
        !self.again.is_empty() || self.ring.iter().any(|r| r.sending.is_some())
    }

    /// The next response to send, in the order of PSNs, gaps before all else.
    pub(super) fn next_response(&self, mtu: Mtu) -> Option<Response> {
        let gap = self.again.front().and_then(|(first, gap)| Some((self.resource(*first)?, *gap)));
        let in_order = || self.ring.iter().find_map(|r| r.sending.map(|s| (r, s)));
        let (resource, sending) = gap.or_else(in_order)?;
        let body = match resource.served {
            Served::Atomic { original } => Body::Value(original),
            Served::Read { rkey, va, srqn, .. } => {
                let offset = sending.next * mtu.bytes();
                let len = sending.end_offset.saturating_sub(offset).min(mtu.bytes());
                Body::Data { rkey, va: va.wrapping_add(offset.into()), len, srqn }
            }
        };
        let ends = sending.next + 1 == sending.end;
        Some(Response {
            psn: resource.first.plus(sending.next),
            msn: resource.msn,
            begins: sending.next == sending.begin,
            ends,
            body,
            asked_at: resource.asked_at,
            ends_message: ends && !matches!(resource.served, Served::Read { goes_on: true, .. }),
            repeated: resource.answered || gap.is_some(),
        })
    }

    /// The response that [`Resources::next_response`] gave has been sent.
    pub(super) fn sent(&mut self) {
        if let Some((_, gap)) = self.again.front_mut() {
            gap.next += 1;
            if gap.next == gap.end {
                self.give_up();
            }
            return;
        }
        let Some(resource) = self.ring.iter_mut().find(|r| r.sending.is_some()) else { return };
        if let Some(sending) = &mut resource.sending {
            sending.next += 1;
            if sending.next == sending.end {
                resource.answered = true;
                resource.sending = None;
            }
        }
    }

    /// The response that [`Resources::next_response`] gave cannot be sent, nor those after it of the same request.
    pub(super) fn give_up(&mut self) {
        if self.again.pop_front().is_some() {
            if self.again.is_empty() {
                self.again = VecDeque::new();
            }
            return;
        }
        if let Some(resource) = self.ring.iter_mut().find(|r| r.sending.is_some()) {
            resource.sending = None;
        }
    }

    pub(super) fn clear(&mut self) {
        self.ring.clear();
        self.again = VecDeque::new();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MTU: Mtu = Mtu::B256;

    fn read(va: u64, len: u32) -> Served {
        Served::Read { rkey: Rkey(1), va, len, srqn: 0, goes_on: false }
    }

    fn drain(r: &mut Resources) -> Vec<(u32, bool, bool)> {
        let mut all = Vec::new();
        while let Some(response) = r.next_response(MTU) {
            all.push((response.psn.get(), response.begins, response.ends));
            r.sent();
        }
        all
    }

    #[test]
    fn responses_come_in_the_order_of_psns() {
        let mut r = Resources::default();
        r.make_room(4).unwrap();
        assert_eq!(r.push(Psn::new(10), read(0, 257), Msn::new(1), MTU, None), 2);
        r.push(Psn::new(12), Served::Atomic { original: 5 }, Msn::new(2), MTU, None);
        assert_eq!(drain(&mut r), [(10, true, false), (11, false, true), (12, true, true)]);
        assert!(r.repeat_atomic(Psn::new(12), false));
        assert!(r.repeat_read(Psn::new(11), &RethRepr { va: 256, rkey: Rkey(1), dma_len: 1 }, MTU, false));
        assert!(r.next_response(MTU).unwrap().repeated);
        assert_eq!(drain(&mut r), [(11, true, true), (12, true, true)]);
    }

    #[test]
    fn a_repetition_must_be_one() {
        let mut r = Resources::default();
        r.push(Psn::new(10), read(0, 512), Msn::new(1), MTU, None);
        drain(&mut r);
        let reth = |va, dma_len| RethRepr { va, rkey: Rkey(1), dma_len };
        assert!(!r.repeat_read(Psn::new(9), &reth(0, 512), MTU, false), "not kept");
        assert!(!r.repeat_read(Psn::new(10), &reth(1, 512), MTU, false), "another address");
        assert!(!r.repeat_read(Psn::new(11), &reth(256, 512), MTU, false), "longer than the original");
        assert!(!r.repeat_read(Psn::new(10), &reth(0, u32::MAX), MTU, false));
        assert!(!r.repeat_read(Psn::new(10), &RethRepr { rkey: Rkey(2), ..reth(0, 512) }, MTU, false));
        assert!(!r.repeat_atomic(Psn::new(10), false), "a read is no atomic");
        assert_eq!(r.next_response(MTU), None);
        assert!(r.repeat_read(Psn::new(10), &reth(0, 256), MTU, false), "a part");
        assert_eq!(drain(&mut r), [(10, true, true)]);
    }

    /// A peer that repairs selectively has several gaps filled, first of all, and none that is still to be sent anyway.
    #[test]
    fn gaps_are_filled_one_after_the_other() {
        let reth = |va, dma_len| RethRepr { va, rkey: Rkey(1), dma_len };
        let mut r = Resources::default();
        r.push(Psn::new(10), read(0, 1024), Msn::new(1), MTU, None);
        r.push(Psn::new(14), Served::Atomic { original: 5 }, Msn::new(2), MTU, None);
        r.sent();
        r.sent();
        for (psn, va, len) in [(13, 768, 256), (10, 0, 256), (10, 0, 256), (11, 256, 512)] {
            assert!(r.repeat_read(Psn::new(psn), &reth(va, len), MTU, true));
        }
        assert!(r.repeat_atomic(Psn::new(14), true), "it has not been answered yet");
        let all =
            [(10, true, true), (11, true, true), (12, false, false), (13, false, true), (14, true, true)];
        assert_eq!(drain(&mut r), all);
        assert!(r.repeat_atomic(Psn::new(14), true));
        assert!(r.repeat_read(Psn::new(13), &reth(768, 256), MTU, true));
        assert!(r.next_response(MTU).unwrap().repeated);
        r.give_up();
        assert_eq!(drain(&mut r), [(13, true, true)]);
        for n in 0..1000 {
            assert!(r.repeat_read(Psn::new(10), &reth(0, 1 + n), MTU, true));
        }
        assert_eq!(r.again.len(), MAX_GAPS);
        r.make_room(1).unwrap();
        assert_eq!((r.again.len(), r.next_response(MTU)), (0, None), "the gaps go with what they are in");
    }

    #[test]
    fn unanswered_ones_stay() {
        let mut r = Resources::default();
        assert_eq!(r.make_room(0), Err(TooMany));
        r.push(Psn::new(10), read(0, 1), Msn::new(1), MTU, None);
        assert_eq!(r.make_room(1), Err(TooMany));
        drain(&mut r);
        assert!(r.repeat_read(Psn::new(10), &RethRepr { va: 0, rkey: Rkey(1), dma_len: 1 }, MTU, false));
        assert_eq!(r.make_room(1), Ok(()), "a new request tells that the old answer arrived");
        assert_eq!(r.next_response(MTU), None);
    }
}
