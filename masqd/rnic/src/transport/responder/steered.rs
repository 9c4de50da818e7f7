//! Messages of which parts come by other paths, ahead of the end, and go to their places in a receive at once.
//!
//! ```text
//!  message   │ STEER │ STEER │ STEER │ steered SEND │      the SEND comes when all STEERs have been acknowledged
//!  receive   │ 0     │ …     │ …     │ va           │ room of the receive │
//! ```

use masq_wire::{NakCode, Parsed};

use super::{Message, Receive, Refusal, Responder, flush_recv};
use crate::transport::counters::Counters;
use crate::transport::env::{Env, RecvWork, Status};
use crate::transport::link::Link;
use crate::transport::request::Failure;

/// The part of a STEER that is still to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Steer {
    /// Number of the receive.
    number: u32,
    /// Where the next byte goes.
    offset: u64,
    left: u32,
}

impl Responder {
    /// Whether there is a receive, and whether it has room, is found out for the whole of it when it begins: what has begun needs no receive any more.
    pub(super) fn execute_steer<E: Env>(
        &mut self,
        link: &Link<'_>,
        env: &mut E,
        packet: &Parsed<'_>,
    ) -> Result<(), Refusal> {
        let begun = match (self.message, packet.repr.ext.reth()) {
            (Message::Steer(steer), _) => Some(steer),
            (_, Some(reth)) => Some(Steer { number: reth.rkey.0, offset: reth.va, left: reth.dma_len }),
            _ => None,
        };
        let Some(steer) = begun else { return Err(Refusal::Invalid("a STEER without a RETH")) };
        let (ends, bytes) = (packet.info.position.ends(), packet.payload.len() as u32);
        let fits = if ends { bytes == steer.left } else { bytes < steer.left };
        if !fits {
            return Err(Refusal::Invalid("a STEER's packets do not add up to its length"));
        }
        if packet.info.position.begins() {
            let end = steer.offset.checked_add(steer.left.into());
            let Some(end) = end.filter(|end| *end <= link.config.max_msg_bytes.into()) else {
                return Err(Refusal::Invalid("a STEER lies beyond the longest message"));
            };
            env.assign_recv(steer.number, steer.offset..end)?;
        }
        if bytes > 0 {
            env.steer(steer.number, steer.offset, packet.payload)?;
        }
        if ends {
            self.message = Message::None;
            self.message_done();
        } else {
            let offset = steer.offset + u64::from(bytes);
            self.message = Message::Steer(Steer { offset, left: steer.left - bytes, ..steer });
        }
        Ok(())
    }
}

impl Responder {
    /// Completes receives that messages to come have been assigned as flushed.
    pub(in crate::transport) fn flush_assigned<E: Env>(&mut self, env: &mut E, counters: &mut Counters) {
        let mut assigned = RecvWork::default();
        while env.next_assigned_to_flush(&mut assigned) {
            flush_recv(env, counters, &assigned);
        }
    }
}

impl Receive {
    /// Whether what has been placed into the receive fits the message that begins: all that lies before `steered_from`, of a message whose end is there, or nothing.
    pub(super) fn check_placed(&self, steered_from: Option<u64>) -> Result<(), Refusal> {
        let fits = match steered_from {
            None => self.work.placed.is_empty(),
            Some(offset) => offset > 0 && self.work.placed.is_all_before(offset),
        };
        let refusal = Refusal::Invalid("a message does not fit what was steered into its receive before");
        if fits { Ok(()) } else { Err(refusal) }
    }
}

/// What the peer is told of a receive that cannot take what was steered to it: as of a SEND.
pub(super) fn nak_of(failure: &Failure) -> NakCode {
    match failure.status {
        Status::LocLenErr => NakCode::InvalidRequest,
        _ => NakCode::RemoteOperational,
    }
}
