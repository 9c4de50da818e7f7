//! The responder of an unreliable connection (IBTA Vol 1 §9.8.3).

use masq_wire::Parsed;

use super::{Message, Refusal, Responder};
use crate::transport::counters::Counters;
use crate::transport::env::{Env, Status};
use crate::transport::link::{Broken, Link};

impl Responder {
    /// A request that nobody waits for an answer to. A message that lacks a packet, has no receive or names memory that cannot be accessed
    /// is dropped (class D errors, §9.9.3); only what is wrong with a receive itself fails the queue pair.
    pub(in crate::transport) fn handle_unreliable<E: Env>(
        &mut self,
        link: &Link<'_>,
        env: &mut E,
        counters: &mut Counters,
        packet: &Parsed<'_>,
    ) -> Result<(), Broken> {
        self.establish(link, env);
        let (psn, position) = (packet.repr.bth.psn, packet.info.position);
        let gap = psn != self.expected;
        counters.out_of_sequence += u64::from(gap);
        self.expected = psn.plus(1);
        if gap || position.begins() {
            // Whatever was under way ends here; its receive is used for the next message.
            self.message = Message::None;
        }
        if !position.begins() && self.message == Message::None {
            counters.rx_dropped += 1;
            return Ok(());
        }
        match self.execute(link, env, packet) {
            Ok(_) => {
                counters.rcvd_msgs += u64::from(position.ends());
                Ok(())
            }
            Err(refusal @ Refusal::Receive(failure, _)) if failure.status != Status::LocLenErr => {
                let broken = self.refuse(env, counters, packet, refusal);
                self.silence();
                Err(broken)
            }
            Err(_) => {
                self.message = Message::None;
                counters.rx_dropped += 1;
                Ok(())
            }
        }
    }
}
