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
use super::psn_set::{MOST, PsnSet, slot};
use super::reorder::Reorder;
use super::request::Request;
use super::time::Time;

/// How many places are remembered: those of all that is on its way, and as many of what has got another since.
const PLACES: usize = 2 * MOST;

/// Exists from when a loss shows until all that is known of is in order again.
#[derive(Debug)]
pub(super) struct Recovery {
    /// What the peer expects, as far as it is known: all before it is carried out.
    heard: Psn,
    /// Requests behind it that the peer keeps.
    there: PsnSet,
    /// Answers that came too early.
    pub(super) answers: Reorder,
    /// What is to be sent again now.
    lost: PsnSet,
    /// The place of each PSN on its way in the order of sending, by its low bits.
    order: [u32; MOST],
    /// Which PSN has a place, by the place's low bits; it may have got another since.
    places: [Psn; PLACES],
    /// The last place.
    last: u32,
    /// The newest place of what has arrived.
    newest: u32,
    /// What has places before this one has been looked at: it is known to be lost, or not needed any more.
    seen: u32,
    /// Something that was not needed when it was looked at may be needed again.
    look_at_all: bool,
}

impl Recovery {
    /// Of what is on its way, which was sent in the order of PSNs.
    pub(super) fn new(inflight: &Inflight) -> Box<Self> {
        let mut new = Box::new(Self {
            heard: inflight.una(),
            there: PsnSet::default(),
            answers: Reorder::default(),
            lost: PsnSet::default(),
            order: [0; MOST],
            places: [inflight.una(); PLACES],
            last: 0,
            newest: 0,
            seen: 0,
            look_at_all: false,
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
            self.places[self.last as usize % PLACES] = psn;
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
            let psn = una.plus(place);
            self.arrived(psn);
            self.there.clear(psn);
        }
        // What was never sent, or is to be sent again anyway, means nothing.
        let count = sent.saturating_sub(told + 1);
        let keeps = keeps.map(|keeps| PsnSet::from_words(heard.plus(1), &keeps.words(), count));
        let keeps = keeps.unwrap_or_default();
        for slot in keeps.without(&self.there).slots() {
            self.arrived_at(slot);
        }
        if told > known {
            self.heard = heard;
            self.look_at_all |= !self.there.without(&keeps).is_empty();
            self.there = keeps;
        } else {
            self.there.add(&keeps);
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
        self.arrived_at(slot(psn));
    }

    fn arrived_at(&mut self, slot: usize) {
        let place = self.order[slot];
        if is_newer(place, self.newest) {
            self.newest = place;
        }
    }

    /// Looks for what is lost.
    ///
    /// Of what asks for no data, each place is looked at once, when something newer has arrived: what is needed then is lost, what is not will not be needed again,
    /// unless the peer lets go of what it kept. Whether the data of a READ is missing shows later than that.
    pub(super) fn find_lost(&mut self, inflight: &Inflight) {
        let missed = self.last.wrapping_sub(self.seen) as usize >= PLACES;
        if self.look_at_all || missed || inflight.has_fetch() {
            self.look_at_all = false;
            self.mark_lost(inflight, |r, psn| is_newer(r.newest, r.order[slot(psn)]));
        } else {
            let (una, sent) = (inflight.una(), inflight.on_their_way());
            while self.seen != self.newest {
                let psn = self.places[self.seen as usize % PLACES];
                let current = self.order[slot(psn)] == self.seen && psn.since(una) < sent;
                if current && !psn.precedes(self.heard) && !self.there.has(psn) {
                    self.lost.set(psn);
                }
                self.seen = self.seen.wrapping_add(1);
            }
        }
        self.seen = self.newest;
    }

    /// Takes all gaps that are known for lost again: what was sent to fill them has had time enough.
    pub(super) fn doubt(&mut self, inflight: &Inflight) {
        let una = inflight.una();
        let sent = inflight.on_their_way();
        let furthest = (0..sent).rev().find(|place| self.there.has(una.plus(*place)));
        let known = furthest.unwrap_or(0).max(self.heard.since(una));
        self.mark_lost(inflight, |_, psn| psn.since(una) < known);
    }

    fn mark_lost(&mut self, inflight: &Inflight, is_late: impl Fn(&Self, Psn) -> bool) {
        let una = inflight.una();
        let mut place = 0;
        for request in inflight.requests() {
            let end = request.end().since(una).min(inflight.on_their_way());
            while place < end {
                let psn = una.plus(place);
                if is_late(self, psn) && self.is_needed(inflight, request, psn) {
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
    fn is_needed(&self, inflight: &Inflight, request: &Request, psn: Psn) -> bool {
        let una = inflight.una();
        let done = psn.since(una) < self.heard.since(una);
        if done {
            return request.work.op.is_fetch() && !self.answers.has(una, psn);
        }
        !self.there.has(inflight.piece_start(request, psn))
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
    pub(super) fn last_needed(&self, inflight: &Inflight) -> Option<Psn> {
        let una = inflight.una();
        (0..inflight.on_their_way()).rev().map(|place| una.plus(place)).find(|psn| {
            let sendable = inflight.find(*psn).filter(|(_, r)| r.failure.is_none());
            sendable.is_some_and(|(_, r)| self.is_needed(inflight, r, *psn))
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

/// Whether one place in the order of sending comes after another; they wrap.
fn is_newer(place: u32, than: u32) -> bool {
    (1..1 << 31).contains(&place.wrapping_sub(than))
}

/// When to ask the peer what has arrived, because nothing tells: the end of what was sent may be lost, or all answers.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Probe {
    deadline: Option<Time>,
    /// The next one waits twice as long for each of these: probes that nothing has shown to have been due.
    backoff: u32,
    /// Some have been sent since something was heard.
    unanswered: bool,
    /// When something was heard last, while more was to come.
    last: Option<Time>,
    /// How long it was quiet at most between two such times, of late.
    pause: Option<Duration>,
    /// One is to be sent.
    pub(super) is_due: bool,
}

impl Probe {
    /// While nothing has been measured.
    pub(super) const FIRST: Duration = Duration::from_millis(5);
    /// How long to wait at most: the local ACK timeout may be hours.
    pub(super) const LONGEST: Duration = Duration::from_secs(1);

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
            self.deadline = Some(now.plus(wait.saturating_mul(1 << self.backoff.min(20)).min(most)));
        }
    }

    /// The peer has told news, and more is on its way, or not. Whether how long it took could be `measured`.
    ///
    /// What has been sent again is never timed. So who has probed too early would not learn how long answers take, and go on doing so, had the next
    /// packet not as much time as this one needed in the end (as RFC 6298 §5 has it).
    pub(super) fn heard(&mut self, now: Time, more: bool, measured: bool) {
        if let Some(last) = self.last {
            let faded = self.pause.unwrap_or_default() / 64 * 63;
            self.pause = Some(faded.max(now.since(last)));
        }
        self.backoff = match self.unanswered {
            _ if measured => 0,
            true => self.backoff,
            false => self.backoff.saturating_sub(1),
        };
        (self.deadline, self.unanswered, self.is_due) = (None, false, false);
        self.last = more.then_some(now);
    }

    /// Time passes. Returns whether to probe now.
    pub(super) fn handle_timeout(&mut self, now: Time) -> bool {
        if self.deadline.is_none_or(|t| t > now) {
            return false;
        }
        self.deadline = None;
        self.backoff = self.backoff.saturating_add(1);
        (self.unanswered, self.is_due) = (true, true);
        true
    }

    /// What is unanswered is known to be lost: one is to be sent now.
    pub(super) fn hurry(&mut self) {
        (self.deadline, self.is_due) = (None, true);
    }

    pub(super) fn deadline(&self) -> Option<Time> {
        self.deadline
    }
}

#[cfg(test)]
#[path = "selective_tests.rs"]
mod tests;
