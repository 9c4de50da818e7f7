//! Requests that come before their turn, and masq's own acknowledgements, which tell the peer of them.

use masq_wire::{AethRepr, ArrivedRepr, Credits, Extension, HoldRepr, Opcode, PacketRepr, Parsed, Syndrome};

use super::{Reply, Responder};
use crate::transport::counters::Counters;
use crate::transport::env::Env;
use crate::transport::link::{Broken, Link};
use crate::transport::reorder::Reorder;
use crate::transport::time::Time;

impl Responder {
    /// Bytes of what is kept.
    #[inline]
    pub(in crate::transport) fn early_bytes(&self) -> usize {
        self.early.bytes()
    }

    /// A request behind the expected one. Of a peer that repairs selectively it is kept, if there is room; else it is dropped, and the peer is told
    /// to send everything again from the expected one.
    pub(super) fn came_early<E: Env>(
        &mut self,
        link: &Link<'_>,
        env: &mut E,
        counters: &mut Counters,
        packet: &Parsed<'_>,
    ) {
        counters.out_of_sequence += 1;
        // Once told, the peer sends everything again.
        if link.is_selective() && !self.told {
            let kept = env.may_keep(self.early.bytes(), Reorder::bytes_for(packet))
                && self.early.keep(self.expected, packet, || env.lend_buffer());
            counters.early_pkts_kept += u64::from(kept);
            counters.early_pkts_dropped += u64::from(!kept);
            if !self.early.is_empty() {
                self.reply.get_or_insert(Reply::Ack);
                return;
            }
        }
        if !self.told {
            self.reply = Some(Reply::Missing);
        }
        self.drop_packet(packet.repr.bth.psn);
    }

    /// Carries out what was waiting for the request before it, as far as there is no gap.
    pub(super) fn catch_up<E: Env>(
        &mut self,
        link: &Link<'_>,
        env: &mut E,
        counters: &mut Counters,
    ) -> Result<(), Broken> {
        while let Some(kept) = self.early.take(self.expected) {
            let done = self.carry_out(link, env, counters, &kept.parsed());
            env.give_back_buffer(kept.into_buffer());
            if !done? {
                return Ok(());
            }
        }
        if !self.early.is_empty() {
            self.reply.get_or_insert(Reply::Ack);
        }
        Ok(())
    }

    /// The acknowledgement for a peer that understands masq's own, unless it is one for which the standard's must do.
    pub(super) fn own_acknowledgement(&self, reply: Reply, link: &Link<'_>, now: Time) -> Option<PacketRepr> {
        let opcode = match reply {
            Reply::Ack | Reply::Missing if !self.early.is_empty() => Opcode::MASQ_SELECTIVE_ACK,
            Reply::Ack => Opcode::MASQ_TIMED_ACK,
            Reply::Missing | Reply::NotReady | Reply::Refused { .. } => return None,
        };
        let aeth = AethRepr { syndrome: Syndrome::Ack(Credits::UNLIMITED), msn: self.msn };
        let ext = Extension::AethHold(aeth, HoldRepr::from(now.since(self.newest)));
        Some(PacketRepr::new(opcode, link.attributes.remote_qpn, self.expected.minus(1), ext))
    }

    /// What goes with the headers of an acknowledgement.
    pub(super) fn bitmap(&self, repr: &PacketRepr) -> Option<ArrivedRepr> {
        let selective = repr.bth.opcode == Opcode::MASQ_SELECTIVE_ACK;
        selective.then(|| self.early.bitmap(self.expected))
    }
}
