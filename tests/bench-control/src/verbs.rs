//! Control commands alone: the guest's memory behind them is laid out once and shared, so that only the commands cost time.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use guest_sim::verbs::{ACCESS_ALL, Guest};
use guest_sim::{ControlError, Mapping};
use masq_types::Gid;
use vrdma_abi::control::*;
use vrdma_abi::ring::{CQE_BYTES, recv_stride_shift, ring_pages, send_stride_shift};

/// Entries of work and completion queues.
pub const ENTRIES: u32 = 64;
/// Scatter/gather entries of a request.
pub const SGES: u16 = 4;
/// Bytes of inline data.
pub const INLINE: u16 = 64;
/// Bytes of a large region.
pub const GIB: u64 = 1 << 30;

/// The commands of one guest.
pub struct Verbs {
    /// The guest.
    pub guest: Arc<Guest>,
    doorbells: PageTable,
    page: PageTable,
    cq: PageTable,
    sq: PageTable,
    rq: PageTable,
    _memory: Vec<Mapping>,
}

/// A queue pair.
#[derive(Clone, Copy, Debug)]
pub struct BareQp {
    /// Its handle.
    pub qp: u32,
    /// Its number.
    pub qpn: u32,
}

/// A context with what a queue pair needs.
#[derive(Clone, Copy, Debug)]
pub struct Opened {
    /// The context.
    pub ctx: u32,
    /// A protection domain.
    pub pd: u32,
    /// A completion queue.
    pub cq: u32,
}

/// The stride of a send queue.
pub fn sq_shift() -> u8 {
    send_stride_shift(QP_TYPE_RC, SGES.into(), INLINE.into()).expect("a stride")
}

/// The stride of a receive queue.
pub fn rq_shift() -> u8 {
    recv_stride_shift(SGES.into()).expect("a stride")
}

/// How long something takes.
pub fn timed<T>(what: impl FnOnce() -> Result<T, ControlError>) -> Result<(T, Duration), ControlError> {
    let start = Instant::now();
    let done = what()?;
    Ok((done, start.elapsed()))
}

impl Verbs {
    /// The commands of `guest`.
    pub fn new(guest: Arc<Guest>) -> Verbs {
        let mut memory = Vec::new();
        let mut list = |pages: u64| {
            let mapping = guest.ram.alloc_scattered(pages as usize).expect("pages can be mapped");
            let (table, tables) = guest.control().page_table(&mapping.gpas(), 12);
            memory.push(mapping);
            memory.extend(tables);
            table
        };
        let doorbells = list(guest.config.num_db_slots.into());
        let page = list(1);
        let cq = list(ring_pages(ENTRIES, CQE_BYTES.trailing_zeros() as u8));
        let sq = list(ring_pages(ENTRIES, sq_shift()));
        let rq = list(ring_pages(ENTRIES, rq_shift()));
        Verbs { guest, doorbells, page, cq, sq, rq, _memory: memory }
    }

    /// A context, a protection domain and a completion queue.
    pub fn open(&self) -> Result<Opened, ControlError> {
        let ctx = self.create_context()?;
        Ok(Opened { ctx, pd: self.create_pd(ctx)?, cq: self.create_cq(ctx)? })
    }

    /// Something that does nothing: empties an entry of the GID table that is empty.
    pub fn nothing(&self) -> Result<(), ControlError> {
        self.guest.del_gid(9)
    }

    /// CREATE_CONTEXT.
    pub fn create_context(&self) -> Result<u32, ControlError> {
        let command = CreateContext { ctx: self.guest.handle(), flags: 0, doorbells: self.doorbells };
        self.guest.control().run(OP_CREATE_CONTEXT, &command)?;
        Ok(command.ctx)
    }

    /// CREATE_PD.
    pub fn create_pd(&self, ctx: u32) -> Result<u32, ControlError> {
        let command = CreatePd { pd: self.guest.handle(), ctx };
        self.guest.control().run(OP_CREATE_PD, &command)?;
        Ok(command.pd)
    }

    /// CREATE_MR of one page.
    pub fn create_small_mr(&self, pd: u32) -> Result<u32, ControlError> {
        self.create_mr(pd, self.page, 4096)
    }

    /// CREATE_MR.
    pub fn create_mr(&self, pd: u32, pages: PageTable, length: u64) -> Result<u32, ControlError> {
        let mr = self.guest.handle();
        let command = CreateMr { mr, pd, access: ACCESS_ALL, flags: 0, iova: 1 << 32, length, pages };
        self.guest.control().call::<_, CreateMrReply>(OP_CREATE_MR, &command)?;
        Ok(mr)
    }

    /// CREATE_CQ.
    pub fn create_cq(&self, ctx: u32) -> Result<u32, ControlError> {
        let command = CreateCq { cq: self.guest.handle(), ctx, entries: ENTRIES, vector: 0, ring: self.cq };
        self.guest.control().call::<_, CreateCqReply>(OP_CREATE_CQ, &command)?;
        Ok(command.cq)
    }

    /// CREATE_QP.
    pub fn create_qp(&self, of: Opened) -> Result<BareQp, ControlError> {
        let command = CreateQp {
            qp: self.guest.handle(),
            pd: of.pd,
            send_cq: of.cq,
            recv_cq: of.cq,
            srq: HANDLE_NONE,
            xrcd: HANDLE_NONE,
            sq_entries: ENTRIES,
            rq_entries: ENTRIES,
            max_send_sge: SGES,
            max_recv_sge: SGES,
            max_inline_bytes: INLINE,
            sq_stride_shift: sq_shift(),
            rq_stride_shift: rq_shift(),
            qp_type: QP_TYPE_RC,
            sq: self.sq,
            rq: self.rq,
            ..CreateQp::ZERO
        };
        let reply: CreateQpReply = self.guest.control().call(OP_CREATE_QP, &command)?;
        Ok(BareQp { qp: command.qp, qpn: reply.qpn })
    }

    /// To RESET.
    pub fn reset(&self, qp: BareQp) -> Result<(), ControlError> {
        self.modify(qp, QP_ATTR_STATE, QpAttr { state: QP_STATE_RESET, ..QpAttr::ZERO })
    }

    /// RESET to INIT.
    pub fn init(&self, qp: BareQp) -> Result<(), ControlError> {
        let attr = QpAttr { state: QP_STATE_INIT, access: ACCESS_REMOTE_WRITE, ..QpAttr::ZERO };
        self.modify(qp, QP_ATTR_STATE | QP_ATTR_PKEY_INDEX | QP_ATTR_PORT | QP_ATTR_ACCESS_FLAGS, attr)
    }

    /// INIT to RTR.
    pub fn rtr(&self, qp: BareQp, peer: IpAddr, dest_qpn: u32) -> Result<(), ControlError> {
        let attr = QpAttr {
            state: QP_STATE_RTR,
            path_mtu: 3,
            dest_qpn,
            sgid: self.guest.gid().0,
            dgid: Gid::from(peer).0,
            hop_limit: 64,
            max_dest_rd_atomic: 16,
            min_rnr_timer: 12,
            ..QpAttr::ZERO
        };
        let mask = QP_ATTR_STATE
            | QP_ATTR_AV
            | QP_ATTR_PATH_MTU
            | QP_ATTR_DEST_QPN
            | QP_ATTR_RQ_PSN
            | QP_ATTR_MAX_DEST_RD_ATOMIC
            | QP_ATTR_MIN_RNR_TIMER;
        self.modify(qp, mask, attr)
    }

    /// RTR to RTS.
    pub fn rts(&self, qp: BareQp) -> Result<(), ControlError> {
        let attr = QpAttr {
            state: QP_STATE_RTS,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            max_rd_atomic: 16,
            ..QpAttr::ZERO
        };
        let mask = QP_ATTR_STATE
            | QP_ATTR_SQ_PSN
            | QP_ATTR_TIMEOUT
            | QP_ATTR_RETRY_CNT
            | QP_ATTR_RNR_RETRY
            | QP_ATTR_MAX_RD_ATOMIC;
        self.modify(qp, mask, attr)
    }

    /// RESET to RTS.
    pub fn connect(&self, qp: BareQp, peer: IpAddr, dest_qpn: u32) -> Result<(), ControlError> {
        self.init(qp)?;
        self.rtr(qp, peer, dest_qpn)?;
        self.rts(qp)
    }

    /// QUERY_QP.
    pub fn state(&self, qp: BareQp) -> Result<u8, ControlError> {
        let asked = Destroy { handle: qp.qp, reserved: 0 };
        let reply: QueryQpReply = self.guest.control().call(OP_QUERY_QP, &asked)?;
        Ok(reply.attr.state)
    }

    /// One of the OP_DESTROY_ commands.
    pub fn destroy(&self, opcode: u16, handle: u32) -> Result<(), ControlError> {
        self.guest.control().run(opcode, &Destroy { handle, reserved: 0 })
    }

    fn modify(&self, qp: BareQp, mask: u32, attr: QpAttr) -> Result<(), ControlError> {
        self.guest.control().run(OP_MODIFY_QP, &ModifyQp { qp: qp.qp, mask, attr })
    }
}
