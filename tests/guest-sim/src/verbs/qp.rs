//! Queue pairs.

use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use masq_types::Gid;
use vrdma_abi::control::*;
use vrdma_abi::ring::{self, Cqe, Sge};
use vrdma_rings::{PostError, RecvRing, SendRequest, SendRing};

use super::{Cq, Guest, Pd, SharedRing};
use crate::control::ControlError;
use crate::memory::Mapping;

/// What a queue pair can hold.
#[derive(Clone, Debug)]
pub struct QpCaps {
    /// Sends outstanding.
    pub send_wr: u32,
    /// Receives outstanding.
    pub recv_wr: u32,
    /// Scatter/gather entries of a send.
    pub send_sge: u16,
    /// Scatter/gather entries of a receive.
    pub recv_sge: u16,
    /// Bytes of inline data.
    pub inline_bytes: u16,
    /// Every send is signalled.
    pub signal_all: bool,
}

impl Default for QpCaps {
    fn default() -> Self {
        QpCaps { send_wr: 64, recv_wr: 64, send_sge: 4, recv_sge: 4, inline_bytes: 64, signal_all: false }
    }
}

/// How two queue pairs are connected.
#[derive(Clone, Debug)]
pub struct ConnectAttr {
    /// Path MTU in the verbs encoding.
    pub path_mtu: u8,
    /// First PSN to send.
    pub sq_psn: u32,
    /// First PSN to receive.
    pub rq_psn: u32,
    /// Reads and atomics outstanding.
    pub max_rd_atomic: u8,
    /// Reads and atomics served.
    pub max_dest_rd_atomic: u8,
    /// RNR NAK timer code.
    pub min_rnr_timer: u8,
    /// Local ACK timeout exponent.
    pub timeout: u8,
    /// Retries after a timeout or sequence error.
    pub retry_cnt: u8,
    /// Retries after RNR NAK.
    pub rnr_retry: u8,
    /// Rights of the peer.
    pub access: u32,
}

impl Default for ConnectAttr {
    fn default() -> Self {
        ConnectAttr {
            path_mtu: 3,
            sq_psn: 0x00ab_cdef,
            rq_psn: 0x00ab_cdef,
            max_rd_atomic: 16,
            max_dest_rd_atomic: 16,
            min_rnr_timer: 12,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            access: ACCESS_REMOTE_WRITE | ACCESS_REMOTE_READ | ACCESS_REMOTE_ATOMIC,
        }
    }
}

/// A queue pair.
pub struct Qp {
    pub(super) sq: Mutex<SendQueue>,
    pub(super) rq: Mutex<RecvRing<SharedRing>>,
    pub(super) pd: Arc<Pd>,
    pub(super) qp: u32,
    /// Its number.
    pub qpn: u32,
    pub(super) slot: u16,
    pub(super) index: u16,
    /// The number that stands in its completions.
    pub cookie: u32,
    pub(super) send_cq: Arc<Cq>,
    pub(super) recv_cq: Arc<Cq>,
    pub(super) sq_memory: Mapping,
    pub(super) rq_memory: Mapping,
}

/// A send ring, and where its next entry will stand.
pub(super) struct SendQueue {
    ring: SendRing<SharedRing>,
    next: u32,
    entries: u32,
    stride_shift: u8,
}

impl SendQueue {
    pub(super) fn new(memory: SharedRing, entries: u32, stride_shift: u8) -> Self {
        let ring = SendRing::new(memory, entries, stride_shift).expect("the ring fits its pages");
        SendQueue { ring, next: 0, entries, stride_shift }
    }

    fn post(&mut self, request: &SendRequest, sges: &[Sge]) -> Result<(), PostError> {
        self.ring.post(request, sges)?;
        self.next = self.next.wrapping_add(1);
        Ok(())
    }

    fn offset(&self, index: u32) -> usize {
        ((index & (self.entries - 1)) as usize + 1) << self.stride_shift
    }
}

impl Qp {
    /// The queue pair's handle, as it stands in asynchronous events.
    pub fn handle(&self) -> u32 {
        self.qp
    }

    /// The protection domain.
    pub fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }

    /// Where completions of sends appear.
    pub fn send_cq(&self) -> &Arc<Cq> {
        &self.send_cq
    }

    /// Where completions of receives appear.
    pub fn recv_cq(&self) -> &Arc<Cq> {
        &self.recv_cq
    }

    /// MODIFY_QP.
    pub fn modify(&self, mask: u32, attr: QpAttr) -> Result<(), ControlError> {
        let command = ModifyQp { qp: self.qp, mask, attr };
        self.guest().control().run(OP_MODIFY_QP, &command)?;
        if mask & QP_ATTR_STATE != 0 && attr.state == QP_STATE_RESET {
            let mut sq = self.sq.lock().unwrap();
            sq.ring.reset();
            sq.next = 0;
            self.rq.lock().unwrap().reset();
            self.send_cq.discard(self.cookie);
            self.recv_cq.discard(self.cookie);
        }
        Ok(())
    }

    /// RESET → INIT.
    pub fn to_init(&self, a: &ConnectAttr) -> Result<(), ControlError> {
        let attr = QpAttr { state: QP_STATE_INIT, access: a.access, ..QpAttr::ZERO };
        self.modify(QP_ATTR_STATE | QP_ATTR_PKEY_INDEX | QP_ATTR_PORT | QP_ATTR_ACCESS_FLAGS, attr)
    }

    /// INIT → RTR, to the queue pair `qpn` at `address`.
    pub fn to_rtr(&self, a: &ConnectAttr, address: IpAddr, qpn: u32) -> Result<(), ControlError> {
        self.to_rtr_from(a, 0, self.guest().gid(), address.into(), qpn)
    }

    /// INIT → RTR with any source.
    pub fn to_rtr_from(
        &self,
        a: &ConnectAttr,
        sgid_index: u8,
        sgid: Gid,
        dgid: Gid,
        qpn: u32,
    ) -> Result<(), ControlError> {
        let attr = QpAttr {
            state: QP_STATE_RTR,
            path_mtu: a.path_mtu,
            dest_qpn: qpn,
            rq_psn: a.rq_psn,
            sgid_index,
            sgid: sgid.0,
            dgid: dgid.0,
            hop_limit: 64,
            max_dest_rd_atomic: a.max_dest_rd_atomic,
            min_rnr_timer: a.min_rnr_timer,
            ..QpAttr::ZERO
        };
        let mask = QP_ATTR_STATE
            | QP_ATTR_AV
            | QP_ATTR_PATH_MTU
            | QP_ATTR_DEST_QPN
            | QP_ATTR_RQ_PSN
            | QP_ATTR_MAX_DEST_RD_ATOMIC
            | QP_ATTR_MIN_RNR_TIMER;
        self.modify(mask, attr)
    }

    /// RTR → RTS.
    pub fn to_rts(&self, a: &ConnectAttr) -> Result<(), ControlError> {
        let attr = QpAttr {
            state: QP_STATE_RTS,
            sq_psn: a.sq_psn,
            timeout: a.timeout,
            retry_cnt: a.retry_cnt,
            rnr_retry: a.rnr_retry,
            max_rd_atomic: a.max_rd_atomic,
            ..QpAttr::ZERO
        };
        let mask = QP_ATTR_STATE
            | QP_ATTR_SQ_PSN
            | QP_ATTR_TIMEOUT
            | QP_ATTR_RETRY_CNT
            | QP_ATTR_RNR_RETRY
            | QP_ATTR_MAX_RD_ATOMIC;
        self.modify(mask, attr)
    }

    /// RESET → INIT → RTR → RTS.
    pub fn connect(&self, a: &ConnectAttr, address: IpAddr, qpn: u32) -> Result<(), ControlError> {
        self.to_init(a)?;
        self.to_rtr(a, address, qpn)?;
        self.to_rts(a)
    }

    /// To any state that needs no attribute.
    pub fn to_state(&self, state: u8) -> Result<(), ControlError> {
        self.modify(QP_ATTR_STATE, QpAttr { state, ..QpAttr::ZERO })
    }

    /// QUERY_QP.
    pub fn query(&self) -> Result<QueryQpReply, ControlError> {
        self.guest().control().call(OP_QUERY_QP, &Destroy { handle: self.qp, reserved: 0 })
    }

    /// The state that QUERY_QP tells.
    pub fn state(&self) -> u8 {
        self.query().expect("QUERY_QP of an existing queue pair").attr.state
    }

    /// Posts a send.
    pub fn post_send(&self, request: &SendRequest, sges: &[Sge]) -> Result<(), PostError> {
        let mut sq = self.sq.lock().unwrap();
        sq.post(request, sges)?;
        self.pd.ctx.seen.note_operation(request.opcode);
        self.publish(&mut sq);
        Ok(())
    }

    /// Posts several sends with one doorbell.
    pub fn post_sends(&self, requests: &[(SendRequest, Vec<Sge>)]) -> Result<(), PostError> {
        let mut sq = self.sq.lock().unwrap();
        for (request, sges) in requests {
            sq.post(request, sges)?;
            self.pd.ctx.seen.note_operation(request.opcode);
        }
        self.publish(&mut sq);
        Ok(())
    }

    /// Posts a send of inline data.
    pub fn post_inline(&self, request: &SendRequest, data: &[u8]) -> Result<(), PostError> {
        let mut sq = self.sq.lock().unwrap();
        sq.ring.post_inline(request, [data])?;
        sq.next = sq.next.wrapping_add(1);
        self.pd.ctx.seen.note_operation(request.opcode);
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
        let mut sq = self.sq.lock().unwrap();
        let entry = sq.offset(sq.next);
        sq.post(request, sges)?;
        for (at, bytes) in spoil {
            self.sq_memory.write(entry + at, bytes);
        }
        self.publish(&mut sq);
        Ok(())
    }

    /// Posts a receive.
    pub fn post_recv(&self, wr_id: u64, sges: &[Sge]) -> Result<(), PostError> {
        let mut rq = self.rq.lock().unwrap();
        rq.post(wr_id, sges)?;
        rq.publish();
        Ok(())
    }

    /// Sends that can be posted now.
    pub fn send_room(&self) -> u32 {
        self.sq.lock().unwrap().ring.free()
    }

    /// Frees what a completion of this queue pair tells to be free.
    pub fn retire(&self, cqe: &Cqe) {
        if cqe.flags & ring::CQE_RECV != 0 {
            self.rq.lock().unwrap().complete(cqe.consumer);
        } else {
            self.sq.lock().unwrap().ring.complete(cqe.consumer);
        }
    }

    /// The next completion of sends, which must belong to this queue pair.
    ///
    /// # Panics
    /// When none comes within ten seconds.
    #[track_caller]
    pub fn send_completion(&self) -> Cqe {
        self.completion(&self.send_cq, "send")
    }

    /// The next completion of receives, likewise.
    ///
    /// # Panics
    /// When none comes within ten seconds.
    #[track_caller]
    pub fn recv_completion(&self) -> Cqe {
        self.completion(&self.recv_cq, "receive")
    }

    /// Tells the RNIC of new sends, whether there are or not; for tests that write rings themselves.
    pub fn ring_doorbell(&self) {
        if self.pd.ctx.doorbells.mark(self.slot, self.index) {
            self.guest().kick(self.slot);
        }
    }

    /// The send queue's memory, for tests that spoil it.
    pub fn sq_memory(&self) -> &Mapping {
        &self.sq_memory
    }

    /// The receive queue's memory, for tests that spoil it.
    pub fn rq_memory(&self) -> &Mapping {
        &self.rq_memory
    }

    /// Destroys the queue pair.
    pub fn destroy(&self) -> Result<(), ControlError> {
        self.guest().destroy(OP_DESTROY_QP, self.qp)
    }

    fn guest(&self) -> &Arc<Guest> {
        &self.pd.ctx.guest
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
