//! What a requester does about a loss that the peer can tell of: it sends only that again, and keeps answers that came too early.

use masq_types::Psn;
use masq_wire::{Arrived, Kind, Parsed};

use super::tell::costs;
use super::{Requester, is_ack, payload};
use crate::transport::batch::Batch;
use crate::transport::counters::Counters;
use crate::transport::env::{Env, SendOp};
use crate::transport::link::{Broken, Link};
use crate::transport::reorder::Reorder;
use crate::transport::request::{Failure, Request};
use crate::transport::selective::Recovery;
use crate::transport::time::Time;

impl Requester {
    /// Bytes of answers that are kept.
    #[inline]
    pub(in crate::transport) fn early_bytes(&self) -> usize {
        self.recovery.as_ref().map_or(0, |r| size_of_val(&**r) + r.answers.bytes())
    }

    /// Something that asks for an answer has been sent, or still waits for one.
    pub(super) fn await_answer(&mut self, link: &Link<'_>, now: Time) {
        let most = link.ack_timeout();
        self.retry.sent(now, most);
        if link.is_selective() && self.probe.deadline().is_none() {
            let trickles = self.inflight.is_within_piece();
            self.probe.sent(now, trickles, self.rtt.round_trip().map(|r| r.timeout), most);
        }
    }

    /// An acknowledgement that names what has arrived behind a gap.
    pub(super) fn selective_acknowledgement(&mut self, counters: &mut Counters, packet: &Parsed<'_>) {
        let expected = packet.repr.bth.psn.plus(1);
        if expected.since(self.inflight.una()) > self.inflight.unacknowledged() || !is_ack(packet) {
            counters.rx_dropped += 1;
            return;
        }
        counters.rcvd_selective_acks += 1;
        let recovery = self.recovery.get_or_insert_with(|| Recovery::new(&self.inflight));
        recovery.hear(&self.inflight, expected, Some(Arrived::new(packet.payload)));
    }

    /// The peer has carried out all before `heard`.
    pub(super) fn hear(&mut self, heard: Psn) {
        if let Some(recovery) = &mut self.recovery {
            recovery.hear(&self.inflight, heard, None);
        }
    }

    /// The peer has gone on, and the data of a READ or atomic that comes before has not: it is lost.
    pub(super) fn answers_missing<E: Env>(
        &mut self,
        link: &Link<'_>,
        env: &mut E,
        counters: &mut Counters,
    ) -> Result<(), Broken> {
        counters.implied_nak_request += u64::from(self.recovery.is_none());
        if link.is_selective() {
            self.recovery.get_or_insert_with(|| Recovery::new(&self.inflight));
            Ok(())
        } else {
            self.lost(env, counters)
        }
    }

    /// An answer with data, while data of an earlier one is missing: it is kept, if there is room.
    pub(super) fn answer_came_early<E: Env>(
        &mut self,
        link: &Link<'_>,
        env: &mut E,
        counters: &mut Counters,
        packet: &Parsed<'_>,
    ) -> Result<(), Broken> {
        self.answers_missing(link, env, counters)?;
        let (una, psn) = (self.inflight.una(), packet.repr.bth.psn);
        let Some(recovery) = &mut self.recovery else { return Ok(()) };
        let Some((_, request)) = self.inflight.find(psn) else { return Ok(()) };
        if !answers(request, psn, packet, link) {
            counters.rx_dropped += 1;
            return Ok(());
        }
        let end = match request.work.op {
            SendOp::Read => self.inflight.piece_end(psn),
            _ => psn.plus(1),
        };
        recovery.answered(&self.inflight, psn, end);
        let room = env.may_keep(recovery.answers.bytes(), Reorder::bytes_for(packet));
        let kept = room && recovery.answers.keep(una, packet, || env.lend_buffer());
        counters.early_pkts_kept += u64::from(kept);
        counters.early_pkts_dropped += u64::from(!kept);
        Ok(())
    }

    /// During a recovery, after an answer: what is now in order is done, and what is lost is looked for. Before the answer, all before `una` was
    /// acknowledged.
    pub(super) fn recover<E: Env>(
        &mut self,
        link: &Link<'_>,
        env: &mut E,
        counters: &mut Counters,
        una: Psn,
    ) -> Result<(), Broken> {
        let mut before = una;
        loop {
            let Some(recovery) = &mut self.recovery else { return Ok(()) };
            recovery.pass(before, self.inflight.una());
            before = self.inflight.una();
            let heard = recovery.heard();
            self.settle(link, env, counters, heard);
            let una = self.inflight.una();
            let Some(kept) = self.recovery.as_mut().and_then(|r| r.answers.take(una)) else { break };
            let packet = kept.parsed();
            match packet.info.kind {
                Kind::AtomicAck => self.atomic_response(link, env, counters, &packet)?,
                _ => self.read_response(link, env, counters, &packet)?,
            }
            env.give_back_buffer(kept.into_buffer());
        }
        let Some(recovery) = &mut self.recovery else { return Ok(()) };
        recovery.pass(before, self.inflight.una());
        if recovery.is_over(&self.inflight) {
            self.recovery = None;
        } else {
            recovery.find_lost(&self.inflight);
        }
        Ok(())
    }

    /// Nothing has been heard for so long that what was sent to fill gaps is probably lost, too.
    pub(super) fn doubt(&mut self) {
        if let Some(recovery) = &mut self.recovery {
            recovery.doubt(&self.inflight);
        }
    }

    /// Appends what is to be sent again. Returns whether that is all, so that new packets may follow.
    pub(super) fn repair<E: Env>(
        &mut self,
        link: &Link<'_>,
        now: Time,
        env: &mut E,
        counters: &mut Counters,
        batch: &mut Batch<'_>,
    ) -> Result<bool, Broken> {
        while let Some((psn, most)) = self.recovery.as_ref().and_then(|r| r.next_lost(&self.inflight)) {
            match self.send_again(link, now, env, counters, batch, psn, most)? {
                Some(packets) => {
                    self.note_sent(psn, packets);
                    if packets > 0 {
                        counters.selective_repairs += 1;
                        self.tell_of_loss(now, psn);
                    }
                }
                None => return Ok(false),
            }
        }
        if !self.probe.is_due {
            return Ok(true);
        }
        while let Some(last) = self.last_to_send_again() {
            let psn = self.inflight.find(last).map_or(last, |(_, r)| self.inflight.piece_start(r, last));
            match self.send_again(link, now, env, counters, batch, psn, u32::MAX)? {
                None => return Ok(false),
                // That one fails when all before it is done; another may go.
                Some(0) => {}
                Some(_) => {
                    // It keeps its place in the order of sending: whether it or what was sent first arrives, nobody can tell.
                    counters.probes += 1;
                    break;
                }
            }
        }
        self.probe.is_due = false;
        Ok(true)
    }

    /// The last packet on its way that is needed yet, as far as that is known, and can be sent again.
    fn last_to_send_again(&self) -> Option<Psn> {
        if let Some(recovery) = &self.recovery {
            return recovery.last_needed(&self.inflight);
        }
        let una = self.inflight.una();
        let sendable = |psn: &Psn| self.inflight.find(*psn).is_some_and(|(_, r)| r.failure.is_none());
        (0..self.inflight.on_their_way()).rev().map(|place| una.plus(place)).find(sendable)
    }

    /// Sends the packet `psn` again, of a READ at most `most` PSNs from there on. Returns how many PSNs that took, or `None` when nothing can be sent now.
    #[allow(clippy::too_many_arguments)] // what surrounds every step, and what to send
    fn send_again<E: Env>(
        &mut self,
        link: &Link<'_>,
        now: Time,
        env: &mut E,
        counters: &mut Counters,
        batch: &mut Batch<'_>,
        psn: Psn,
        most: u32,
    ) -> Result<Option<u32>, Broken> {
        let mtu = link.mtu();
        let Some((at, request)) = self.inflight.find(psn).filter(|(_, r)| r.failure.is_none()) else {
            // It fails when all before it is done.
            self.note_sent(psn, 1);
            return Ok(Some(0));
        };
        let to_end = self.inflight.piece_end(psn).since(psn);
        let piece = request.piece(psn.since(request.first), mtu, most.min(to_end));
        let mut repr = request.headers(&piece, link);
        repr.bth.ack_req = true;
        let bytes = repr.udp_payload_len(piece.payload);
        let costs = costs(link, &piece, bytes);
        // It has its place in the window already.
        let admitted = batch.admits(&repr, piece.payload)
            && self.flow.may_send(now, costs, false)
            && env.may_send(bytes);
        if !admitted {
            return Ok(None);
        }
        let Some(request) = self.inflight.request_mut(at) else { return Ok(None) };
        let work = &request.work;
        if let Err(fault) = batch.push(repr, piece.payload, |out| payload(env, work, &piece, out)) {
            request.failure = Some(Failure::local_protection(fault));
            self.judge_front(env, counters)?;
            self.note_sent(psn, 1);
            return Ok(Some(0));
        }
        counters.sent_pkts += 1;
        counters.retransmitted_pkts += 1;
        self.flow.sent_again(now, costs);
        self.rtt.forget();
        let (una, end) = (self.inflight.una(), psn.plus(piece.packets));
        if !self.awaits_answer() || self.asked.since(una) < end.since(una) {
            self.asked = end;
        }
        self.await_answer(link, now);
        Ok(Some(piece.packets))
    }

    fn note_sent(&mut self, psn: Psn, packets: u32) {
        if let Some(recovery) = &mut self.recovery {
            recovery.sent(psn, packets);
        }
    }
}

/// Whether `packet` can be the answer for `psn` of a READ or atomic. It is judged in full when its turn has come.
fn answers(request: &Request, psn: Psn, packet: &Parsed<'_>, link: &Link<'_>) -> bool {
    let index = psn.since(request.first);
    is_ack(packet)
        && match request.work.op {
            SendOp::Read => {
                let bytes = request.bytes_at(index, link.mtu()) as usize;
                packet.info.kind == Kind::ReadResponse && packet.payload.len() == bytes
            }
            op => op.is_atomic() && packet.info.kind == Kind::AtomicAck,
        }
}
