//! What a requester knows of a loss: which packets have arrived although one before them has not, and which to send again.
//!
//! Two things get lost. A **request** is needed again while the peer neither has carried it out (it precedes `heard`) nor keeps it (`there`, from the bitmap of a
//! selective acknowledgement). The **answer** to a READ or atomic that was carried out is needed again while it is not among `answers`, where those that came
//! too early wait.
//!
//! What is needed is lost when something that was sent after it has arrived (as RACK says, RFC 8985): each packet on its way has its place in the order of sending,
//! and the newest that is known to have arrived is kept. To send again gives a new place, so that nothing is sent again twice before something younger has
//! arrived. A link that changes the order of packets costs some repetitions, and nothing else.

use core::time::Duration;

use masq_types::Psn;
use masq_wire::Arrived;

use super::inflight::Inflight;
use super::reorder::Reorder;
use super::request::Request;
use super::time::Time;

/// PSNs on their way at once, at most: what a bitmap can name.
pub(super) const MOST: usize = Arrived::MAX_BITS as usize;

/// Exists from when a loss shows until all that is known of is in order again.
#[derive(Debug)]
pub(super) struct Recovery {
    /// What the peer expects, as far as it is known: all before it is carried out.
    heard: Psn,
    /// Requests behind it that the peer keeps.
    there: Bits,
    /// Answers that came too early.
    pub(super) answers: Reorder,
    /// What is to be sent again now.
    lost: Bits,
    /// The place of each PSN on its way in the order of sending, by its low bits.
    order: [u32; MOST],
    /// The last place.
    last: u32,
    /// The newest place of what has arrived.
    newest: u32,
}

impl Recovery {
    /// Of what is on its way, which was sent in the order of PSNs.
    pub(super) fn new(inflight: &Inflight) -> Box<Self> {
        let mut new = Box::new(Self {
            heard: inflight.una(),
            there: Bits::default(),
            answers: Reorder::default(),
            lost: Bits::default(),
            order: [0; MOST],
            last: 0,
            newest: 0,
        });
        new.sent(inflight.una(), inflight.on_their_way());
        new
    }

    /// What the peer expects.
    pub(super) fn heard(&self) -> Psn {
        self.heard
    }

    /// `packets` PSNs from `psn` on have been sent, once more or for the first time.
    pub(super) fn sent(&mut self, psn: Psn, packets: u32) {
        for place in 0..packets.min(MOST as u32) {
            let psn = psn.plus(place);
            self.last = self.last.wrapping_add(1);
            self.order[slot(psn)] = self.last;
            self.lost.clear(psn);
        }
    }

    /// The peer has carried out all before `heard`, of what was sent from `una` on. With `keeps`, it names what it keeps behind that; without, it keeps nothing
    /// if this is news. What was said earlier and comes late changes nothing.
    pub(super) fn hear(&mut self, inflight: &Inflight, heard: Psn, keeps: Option<Arrived<'_>>) {
        let una = inflight.una();
        self.catch_up(una);
        let (known, told, sent) = (self.heard.since(una), heard.since(una), inflight.on_their_way());
        if told > Psn::HALF || told < known {
            return;
        }
        for place in known..told.min(sent) {
            self.arrived(una.plus(place));
        }
        if told > known {
            self.heard = heard;
            self.there = Bits::default();
        }
        for place in keeps.into_iter().flat_map(Arrived::places) {
            let psn = heard.plus(place + 1);
            // What was never sent, or is to be sent again anyway, means nothing.
            if psn.since(una) < sent {
                self.there.set(psn);
                self.arrived(psn);
            }
        }
    }

    /// An answer that lies before `end` has come, which is the end of its request: that was carried out.
    pub(super) fn answered(&mut self, inflight: &Inflight, psn: Psn, end: Psn) {
        let una = inflight.una();
        self.catch_up(una);
        self.arrived(psn);
        if end.since(una) > self.heard.since(una) && end.since(una) <= inflight.unacknowledged() {
            self.heard = end;
        }
    }

    /// All before `una` is done, of what was sent from `before` on.
    pub(super) fn pass(&mut self, before: Psn, una: Psn) {
        for place in 0..una.since(before).min(MOST as u32) {
            let psn = before.plus(place);
            self.arrived(psn);
            self.there.clear(psn);
            self.lost.clear(psn);
        }
        self.catch_up(una);
    }

    fn catch_up(&mut self, una: Psn) {
        if self.heard.precedes(una) {
            self.heard = una;
        }
    }

    fn arrived(&mut self, psn: Psn) {
        let place = self.order[slot(psn)];
        if is_newer(place, self.newest) {
            self.newest = place;
        }
    }

    /// Looks for what is lost.
    pub(super) fn find_lost(&mut self, inflight: &Inflight, read_packets: u32) {
        self.mark_lost(inflight, read_packets, |r, psn| is_newer(r.newest, r.order[slot(psn)]));
    }

    /// Takes all gaps that are known for lost again: what was sent to fill them has had time enough.
    pub(super) fn doubt(&mut self, inflight: &Inflight, read_packets: u32) {
        let una = inflight.una();
        let sent = inflight.on_their_way();
        let furthest = (0..sent).rev().find(|place| self.there.has(una.plus(*place)));
        let known = furthest.unwrap_or(0).max(self.heard.since(una));
        self.mark_lost(inflight, read_packets, |_, psn| psn.since(una) < known);
    }

    fn mark_lost(&mut self, inflight: &Inflight, read_packets: u32, is_late: impl Fn(&Self, Psn) -> bool) {
        let una = inflight.una();
        let mut place = 0;
        for request in inflight.requests() {
            let end = request.end().since(una).min(inflight.on_their_way());
            while place < end {
                let psn = una.plus(place);
                if is_late(self, psn) && self.is_needed(una, request, psn, read_packets) {
                    self.lost.set(psn);
                }
                place += 1;
            }
            if place == inflight.on_their_way() {
                return;
            }
        }
    }

    /// Whether `psn` of `request` has to arrive yet, there or here.
    fn is_needed(&self, una: Psn, request: &Request, psn: Psn, read_packets: u32) -> bool {
        let done = psn.since(una) < self.heard.since(una);
        if done {
            return request.work.op.is_fetch() && !self.answers.has(una, psn);
        }
        !self.there.has(request.first.plus(request.piece_start(psn.since(request.first), read_packets)))
    }

    /// The first PSN to send again, and how many lost ones there are from there on without a gap, one or more.
    pub(super) fn next_lost(&self, inflight: &Inflight) -> Option<(Psn, u32)> {
        let sent = inflight.on_their_way();
        let first = self.lost.first(inflight.una(), sent)?;
        let psn = inflight.una().plus(first);
        let run = (1..sent - first).find(|n| !self.lost.has(psn.plus(*n))).unwrap_or(sent - first);
        Some((psn, run))
    }

    /// The last PSN on its way that is needed yet, and can be sent again.
    pub(super) fn last_needed(&self, inflight: &Inflight, read_packets: u32) -> Option<Psn> {
        let una = inflight.una();
        (0..inflight.on_their_way()).rev().map(|place| una.plus(place)).find(|psn| {
            let sendable = inflight.find(*psn).filter(|(_, r)| r.failure.is_none());
            sendable.is_some_and(|(_, r)| self.is_needed(una, r, *psn, read_packets))
        })
    }

    /// Whether nothing is known but what is in order.
    pub(super) fn is_over(&self, inflight: &Inflight) -> bool {
        self.heard == inflight.una()
            && self.answers.is_empty()
            && self.there.is_empty()
            && self.lost.is_empty()
    }
}

fn slot(psn: Psn) -> usize {
    psn.get() as usize % MOST
}

/// Whether one place in the order of sending comes after another; they wrap.
fn is_newer(place: u32, than: u32) -> bool {
    (1..1 << 31).contains(&place.wrapping_sub(than))
}

/// A set of PSNs of which no two lie [`MOST`] or more apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Bits([u64; MOST / 64]);

impl Bits {
    fn set(&mut self, psn: Psn) {
        self.0[slot(psn) / 64] |= 1 << (slot(psn) % 64);
    }

    fn clear(&mut self, psn: Psn) {
        self.0[slot(psn) / 64] &= !(1 << (slot(psn) % 64));
    }

    fn has(&self, psn: Psn) -> bool {
        self.0[slot(psn) / 64] >> (slot(psn) % 64) & 1 != 0
    }

    fn is_empty(&self) -> bool {
        self.0.iter().all(|word| *word == 0)
    }

    /// How far behind `from` the first one lies, among `count`.
    fn first(&self, from: Psn, count: u32) -> Option<u32> {
        let mut place = 0;
        while place < count {
            let at = slot(from.plus(place));
            let word = self.0[at / 64] >> (at % 64);
            if word != 0 {
                let found = place + word.trailing_zeros();
                return (found < count).then_some(found);
            }
            place += 64 - (at % 64) as u32;
        }
        None
    }
}

/// When to ask the peer what has arrived, because nothing tells: the end of what was sent may be lost, or all answers.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Probe {
    deadline: Option<Time>,
    /// Probes since something was heard.
    unanswered: u32,
    /// When something was heard last, while more was to come.
    last: Option<Time>,
    /// How long it was quiet at most between two such times, of late.
    pause: Option<Duration>,
    /// One is to be sent.
    pub(super) is_due: bool,
}

impl Probe {
    /// While nothing has been measured.
    const FIRST: Duration = Duration::from_millis(5);
    /// How long to wait at most: the local ACK timeout may be hours.
    const LONGEST: Duration = Duration::from_secs(1);

    /// Something that asks for an answer was sent, or more of an answer is to come, as `trickles` tells. `timeout` is how long answers take at most as a rule,
    /// `most` the local ACK timeout.
    ///
    /// The peer may have to pace the data of a READ: how long it pauses is not known before it has, and no part of the round trip.
    pub(super) fn sent(
        &mut self,
        now: Time,
        trickles: bool,
        timeout: Option<Duration>,
        most: Option<Duration>,
    ) {
        if self.deadline.is_none() {
            let most = most.map_or(Self::LONGEST, |most| most.min(Self::LONGEST));
            let least = match self.pause {
                _ if !trickles => Duration::ZERO,
                None => most / 2,
                // It may have been allowed a burst.
                Some(_) => most / 16,
            };
            let pause = least.max(self.pause.unwrap_or_default() * 2);
            let wait = timeout.unwrap_or(Self::FIRST).max(pause);
            self.deadline = Some(now.plus(wait.saturating_mul(1 << self.unanswered.min(20)).min(most)));
        }
    }

    /// The peer has told news, and more is on its way, or not.
    pub(super) fn heard(&mut self, now: Time, more: bool) {
        if let Some(last) = self.last {
            let faded = self.pause.unwrap_or_default() / 64 * 63;
            self.pause = Some(faded.max(now.since(last)));
        }
        (self.deadline, self.unanswered, self.is_due) = (None, 0, false);
        self.last = more.then_some(now);
    }

    /// Time passes. Returns whether to probe now.
    pub(super) fn handle_timeout(&mut self, now: Time) -> bool {
        if self.deadline.is_none_or(|t| t > now) {
            return false;
        }
        self.deadline = None;
        self.unanswered += 1;
        self.is_due = true;
        true
    }

    pub(super) fn deadline(&self) -> Option<Time> {
        self.deadline
    }
}

#[cfg(test)]
#[path = "selective_tests.rs"]
mod tests;
