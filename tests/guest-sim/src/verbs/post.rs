//! Posting work to queue pairs, and taking its completions.

use std::time::Duration;

use vrdma_abi::ring::{self, Cqe, Sge};
use vrdma_rings::{PostError, SendRequest};

use super::qp::SendQueue;
use super::{Cq, Qp};

impl SendQueue {
    fn post(&mut self, request: &SendRequest, sges: &[Sge]) -> Result<(), PostError> {
        self.ring.post(request, sges)?;
        self.next = self.next.wrapping_add(1);
        Ok(())
    }
}

impl Qp {
    /// Posts a send.
    pub fn post_send(&self, request: &SendRequest, sges: &[Sge]) -> Result<(), PostError> {
        let mut sq = self.sends().queue.lock().unwrap();
        sq.post(request, sges)?;
        self.ctx.seen.note_operation(request.opcode);
        self.publish(&mut sq);
        Ok(())
    }

    /// Posts several sends with one doorbell.
    pub fn post_sends(&self, requests: &[(SendRequest, Vec<Sge>)]) -> Result<(), PostError> {
        let mut sq = self.sends().queue.lock().unwrap();
        for (request, sges) in requests {
            sq.post(request, sges)?;
            self.ctx.seen.note_operation(request.opcode);
        }
        self.publish(&mut sq);
        Ok(())
    }

    /// Posts a send of inline data.
    pub fn post_inline(&self, request: &SendRequest, data: &[u8]) -> Result<(), PostError> {
        let mut sq = self.sends().queue.lock().unwrap();
        sq.ring.post_inline(request, [data])?;
        sq.next = sq.next.wrapping_add(1);
        self.ctx.seen.note_operation(request.opcode);
        self.publish(&mut sq);
        Ok(())
    }

    /// Posts a send whose entry `spoil` changes first: (bytes from the entry's start, what to write there).
    pub fn post_spoiled(
        &self,
        request: &SendRequest,
        sges: &[Sge],
        spoil: &[(usize, &[u8])],
    ) -> Result<(), PostError> {
        let mut sq = self.sends().queue.lock().unwrap();
        let entry = sq.offset(sq.next);
        sq.post(request, sges)?;
        for (at, bytes) in spoil {
            self.sq_memory().write(entry + at, bytes);
        }
        self.publish(&mut sq);
        Ok(())
    }

    /// Posts a receive to its own receive queue.
    pub fn post_recv(&self, wr_id: u64, sges: &[Sge]) -> Result<(), PostError> {
        let mut rq = self.recvs().ring.lock().unwrap();
        rq.post(wr_id, sges)?;
        rq.publish();
        Ok(())
    }

    /// Sends that can be posted now.
    pub fn send_room(&self) -> u32 {
        self.sends().queue.lock().unwrap().ring.free()
    }

    /// Frees what a completion of this queue pair tells to be free.
    pub fn retire(&self, cqe: &Cqe) {
        if cqe.flags & ring::CQE_RECV == 0 {
            self.sends().queue.lock().unwrap().ring.complete(cqe.consumer);
        } else if cqe.flags & ring::CQE_SRQ == 0 {
            self.recvs().ring.lock().unwrap().complete(cqe.consumer);
        }
    }

    /// The next completion of sends, which must belong to this queue pair.
    ///
    /// # Panics
    /// When none comes within ten seconds.
    #[track_caller]
    pub fn send_completion(&self) -> Cqe {
        self.completion(self.send_cq(), "send")
    }

    /// The next completion of receives, likewise.
    ///
    /// # Panics
    /// When none comes within ten seconds.
    #[track_caller]
    pub fn recv_completion(&self) -> Cqe {
        self.completion(self.recv_cq(), "receive")
    }

    /// Tells the RNIC of new sends, whether there are or not; for tests that write rings themselves.
    pub fn ring_doorbell(&self) {
        if self.ctx.doorbells.mark(self.slot, self.index) {
            self.guest().kick(self.slot);
        }
    }

    fn publish(&self, sq: &mut SendQueue) {
        if sq.ring.publish() {
            self.ring_doorbell();
        }
    }

    #[track_caller]
    fn completion(&self, cq: &Cq, what: &str) -> Cqe {
        let Some(cqe) = cq.wait(Duration::from_secs(10)) else {
            panic!("no {what} completion of QP {:#x} in 10 s, its state is {}", self.qpn, self.state())
        };
        assert_eq!(cqe.cookie, self.cookie, "a completion of another queue pair: {cqe:?}");
        assert_eq!(cqe.qpn, self.qpn, "{cqe:?}");
        self.retire(&cqe);
        cqe
    }
}
