//! Runs: the packets in the middle of a long message, which differ in their PSNs alone. They are most of what is sent, so they are planned, and their
//! memory is looked up, once for all that fit a batch.

use super::Requester;
use super::tell::costs;
use crate::transport::batch::Batch;
use crate::transport::counters::Counters;
use crate::transport::env::Env;
use crate::transport::link::Link;
use crate::transport::request::Piece;
use crate::transport::time::Time;

impl Requester {
    /// Appends what comes next of a message that has been begun, as long as it is sent for the first time, asks for nothing and does not end the
    /// message. Whatever ends the run, [`Requester::transmit`] finds it with the next packet.
    pub(super) fn send_run<E: Env>(
        &mut self,
        link: &Link<'_>,
        now: Time,
        env: &mut E,
        counters: &mut Counters,
        batch: &mut Batch<'_>,
    ) {
        let Some((piece, most)) = self.plan_run(link) else { return };
        let Some((request, _)) = self.inflight.current() else { return };
        let work = &request.work;
        let repr = request.headers(&piece, link);
        let bytes = repr.udp_payload_len(piece.payload);
        let costs = costs(link, &piece, bytes);
        let most = batch.room_for(bytes).min(most as usize);
        let (awaited, packet_bytes) = (self.awaits_answer(), link.packet_bytes());
        let mut allowed = 0;
        while allowed < most
            && !(link.is_reliable() && self.flow.is_filled_by(packet_bytes))
            && self.flow.may_send(now, costs, awaited)
            && env.may_send(bytes)
        {
            self.flow.sent(now, costs);
            allowed += 1;
        }
        if allowed == 0 {
            return;
        }
        let sent = batch.push_run(repr, piece.payload, |out, before| {
            env.gather_pieces(&work.sges, piece.offset.into(), piece.payload, allowed, out, before)
        }) as u32;
        counters.sent_pkts += u64::from(sent);
        self.inflight.advance(sent);
        if !link.is_reliable() {
            self.inflight.acknowledge(self.inflight.next());
        }
    }

    /// The first packet of a run, and how many there are at most.
    fn plan_run(&self, link: &Link<'_>) -> Option<(Piece, u32)> {
        let (request, index) = self.inflight.current()?;
        let work = &request.work;
        let is_middle = index > 0 && index + 1 < request.packets;
        if !is_middle || work.inline || work.op.is_fetch() {
            return None;
        }
        let is_first_time = self.inflight.next() == self.inflight.high();
        if !is_first_time || self.recovery.is_some() || request.failure.is_some() {
            return None;
        }
        let config = link.config;
        let to_end = request.packets - 1 - index;
        let most = if link.is_reliable() {
            let ack_every = self.flow.ack_every(link.packet_bytes(), config.ack_every);
            let to_ask = ack_every - 1 - index % ack_every;
            let to_full = config.window_packets.saturating_sub(self.inflight.on_their_way() + 1);
            to_end.min(to_ask).min(to_full)
        } else {
            to_end
        };
        (most > 0).then(|| (request.piece(index, link.mtu(), 1), most))
    }
}
