//! Control commands: what a guest asks of its host.
//!
//! A request is one descriptor chain on the control queue. Its readable part holds
//! [`Request`] and the command's structure, its writable part takes [`Reply`] and the command's
//! reply structure, if it has one. Requests complete out of order.
//!
//! The guest chooses the handles of its objects and names the epoch in which it asks:
//!
//! - creating an object again with the same handle and the same parameters returns the same
//!   reply, so that a request can be repeated; other parameters: EEXIST;
//! - destroying an object that does not exist succeeds;
//! - a request of another epoch gets ESTALE and changes nothing.
//!
//! Errors are positive Linux errno values in [`Reply::status`]. Those that have a meaning of their own here:
//!
//! | errno | meaning |
//! |---|---|
//! | EACCES | a rule denies the connection, or the GID is not the vNIC's |
//! | EHOSTUNREACH | the destination GID is unknown in this network |
//! | ENXIO | the destination QPN lies outside the blocks of the destination |
//! | EADDRNOTAVAIL | the source GID is not in the vNIC's table |
//! | EDQUOT | a quota is reached |
//! | EOPNOTSUPP | the host does not know the command, feature or bit |
//! | ESTALE | the request names another epoch |
//! | EINVAL | a field is out of range or reserved and not zero |
//! | ENOENT | a handle that the command refers to does not exist |
//! | EEXIST | the handle names an object with other parameters |
//! | EBUSY | the object is still in use |
//! | EFAULT | an address lies outside the guest's memory |
//! | EAGAIN | too many requests of this guest wait for the store |
//! | ENOMEM | the RNIC has no room |
//! | EIO | the RNIC failed |
//!
//! The reason in words stands in the host's log.

abi_constants! {
    /// DeviceInit: agree on the contract; the first command of an epoch.
    pub const OP_DEVICE_INIT: u16 = 1;
    /// AddGid: fill an entry of the GID table.
    pub const OP_ADD_GID: u16 = 2;
    /// DelGid: clear an entry of the GID table.
    pub const OP_DEL_GID: u16 = 3;
    /// CreateContext: an open of the device.
    pub const OP_CREATE_CONTEXT: u16 = 16;
    /// Destroy: end a context and everything in it.
    pub const OP_DESTROY_CONTEXT: u16 = 17;
    /// CreatePd: a protection domain.
    pub const OP_CREATE_PD: u16 = 18;
    /// Destroy: a protection domain.
    pub const OP_DESTROY_PD: u16 = 19;
    /// CreateMr: a memory region; replies with CreateMrReply.
    pub const OP_CREATE_MR: u16 = 20;
    /// Destroy: a memory region.
    pub const OP_DESTROY_MR: u16 = 21;
    /// CreateCq: a completion queue; replies with CreateCqReply.
    pub const OP_CREATE_CQ: u16 = 22;
    /// Destroy: a completion queue.
    pub const OP_DESTROY_CQ: u16 = 23;
    /// CreateQp: a queue pair; replies with CreateQpReply.
    pub const OP_CREATE_QP: u16 = 24;
    /// ModifyQp: change a QP's state and attributes.
    pub const OP_MODIFY_QP: u16 = 25;
    /// Destroy (as the name of an object): asks for a QP's attributes; replies with QueryQpReply.
    pub const OP_QUERY_QP: u16 = 26;
    /// Destroy: a queue pair.
    pub const OP_DESTROY_QP: u16 = 27;
    /// ReregMr: change a memory region; replies with CreateMrReply.
    pub const OP_REREG_MR: u16 = 28;
    /// ResizeCq: give a completion queue another ring.
    pub const OP_RESIZE_CQ: u16 = 29;
    /// CreateSrq: a shared receive queue; replies with CreateSrqReply.
    pub const OP_CREATE_SRQ: u16 = 30;
    /// ModifySrq: arm a shared receive queue's limit.
    pub const OP_MODIFY_SRQ: u16 = 31;
    /// Destroy (as the name of an object): asks for a shared receive queue's limit; replies with QuerySrqReply.
    pub const OP_QUERY_SRQ: u16 = 32;
    /// Destroy: a shared receive queue.
    pub const OP_DESTROY_SRQ: u16 = 33;
    /// CreateMw: a memory window; replies with CreateMwReply.
    pub const OP_CREATE_MW: u16 = 34;
    /// Destroy: a memory window, bound or not.
    pub const OP_DESTROY_MW: u16 = 35;
    /// CreateXrcd: an XRC domain.
    pub const OP_CREATE_XRCD: u16 = 36;
    /// Destroy: an XRC domain.
    pub const OP_DESTROY_XRCD: u16 = 37;
    /// QueryCounters: what the device has counted; replies with QueryCountersReply. Since version 1.2.
    pub const OP_QUERY_COUNTERS: u16 = 38;
    /// Places in QueryCountersReply.
    pub const COUNTERS_MAX: u32 = 128;
    /// The handle that means "none", for instance CreateQp::srq.
    pub const HANDLE_NONE: u32 = 0xffff_ffff;
    /// The context is the kernel's own; only its objects may use kernel-only features.
    pub const CONTEXT_KERNEL: u32 = 1;
    /// QP1, the General Services Interface: unreliable datagrams with the well-known Q_Key. One of a device, in a context with
    /// CONTEXT_KERNEL; its number is 1.
    pub const QP_TYPE_GSI: u8 = 1;
    /// Reliable connected.
    pub const QP_TYPE_RC: u8 = 2;
    /// Unreliable connected.
    pub const QP_TYPE_UC: u8 = 3;
    /// Unreliable datagram.
    pub const QP_TYPE_UD: u8 = 4;
    /// Extended reliable connected, initiator: it has no receive queue.
    pub const QP_TYPE_XRC_INI: u8 = 9;
    /// Extended reliable connected, target: it has no queues, and each message names a shared receive queue of its XRC domain.
    pub const QP_TYPE_XRC_TGT: u8 = 10;
    /// A shared receive queue for queue pairs of any kind but XRC.
    pub const SRQ_TYPE_BASIC: u8 = 0;
    /// A shared receive queue that XRC messages name, with a completion queue of its own.
    pub const SRQ_TYPE_XRC: u8 = 1;
    /// CreateMr::flags: the region is all of the guest's memory, addresses are guest-physical, and there are no pages. Only in a context
    /// with CONTEXT_KERNEL.
    pub const MR_ALL_MEMORY: u32 = 1;
    /// CreateMr::flags: the region is filled by work requests (SEND_OP_REG_MR): at first it is invalid, iova and pages are zero, and length is the most
    /// that it will have: FAST_REG_MAX_PAGES pages at most. Only in a context with CONTEXT_KERNEL.
    pub const MR_FAST_REG: u32 = 2;
    /// ReregMr::flags: iova, length and pages are given (IBV_REREG_MR_CHANGE_TRANSLATION).
    pub const REREG_TRANSLATION: u32 = 1;
    /// ReregMr::flags: pd is given.
    pub const REREG_PD: u32 = 2;
    /// ReregMr::flags: access is given.
    pub const REREG_ACCESS: u32 = 4;
    /// A window that every queue pair of its domain may bind and use (IBV_MW_TYPE_1).
    pub const MW_TYPE_1: u8 = 1;
    /// A window that belongs to the queue pair that binds it (IBV_MW_TYPE_2; 2B of IBTA Vol 1 §10.6.7.2.2).
    pub const MW_TYPE_2: u8 = 2;
    /// Every send is signalled, whatever its flags say.
    pub const QP_SIGNAL_ALL: u32 = 1;
    /// The queue pair may use all paths (module ring, Multipath). Reliable connected only; EOPNOTSUPP when Config::paths is 1. Since version 1.3.
    pub const QP_MULTIPATH: u32 = 2;
    /// The region accepts local writes (IBV_ACCESS_LOCAL_WRITE).
    pub const ACCESS_LOCAL_WRITE: u32 = 1;
    /// The region or QP accepts RDMA writes (IBV_ACCESS_REMOTE_WRITE).
    pub const ACCESS_REMOTE_WRITE: u32 = 2;
    /// The region or QP accepts RDMA reads (IBV_ACCESS_REMOTE_READ).
    pub const ACCESS_REMOTE_READ: u32 = 4;
    /// The region or QP accepts atomics (IBV_ACCESS_REMOTE_ATOMIC).
    pub const ACCESS_REMOTE_ATOMIC: u32 = 8;
    /// Memory windows can be bound to the region (IBV_ACCESS_MW_BIND).
    pub const ACCESS_MW_BIND: u32 = 16;
    /// A region's or window's addresses begin at 0 (IBV_ACCESS_ZERO_BASED).
    pub const ACCESS_ZERO_BASED: u32 = 32;
    /// Reset.
    pub const QP_STATE_RESET: u8 = 0;
    /// Initialised.
    pub const QP_STATE_INIT: u8 = 1;
    /// Ready to receive.
    pub const QP_STATE_RTR: u8 = 2;
    /// Ready to send.
    pub const QP_STATE_RTS: u8 = 3;
    /// Send queue drained.
    pub const QP_STATE_SQD: u8 = 4;
    /// Send queue error.
    pub const QP_STATE_SQE: u8 = 5;
    /// Error.
    pub const QP_STATE_ERR: u8 = 6;
    /// The format of rings that is described in the module ring.
    pub const RING_FORMAT_1: u32 = 1;
    /// Most levels of a PageTable.
    pub const PAGE_TABLE_MAX_LEVELS: u8 = 3;
    /// Bits of ModifyQp::mask: the values of enum ibv_qp_attr_mask.
    pub const QP_ATTR_STATE: u32 = 1 << 0;
    /// QpAttr::cur_state is given.
    pub const QP_ATTR_CUR_STATE: u32 = 1 << 1;
    /// QpAttr::sq_drained_notify is given.
    pub const QP_ATTR_EN_SQD_ASYNC_NOTIFY: u32 = 1 << 2;
    /// QpAttr::access is given.
    pub const QP_ATTR_ACCESS_FLAGS: u32 = 1 << 3;
    /// QpAttr::pkey_index is given; only index 0 exists.
    pub const QP_ATTR_PKEY_INDEX: u32 = 1 << 4;
    /// The port is given; only port 1 exists, so no field carries it.
    pub const QP_ATTR_PORT: u32 = 1 << 5;
    /// QpAttr::qkey is given.
    pub const QP_ATTR_QKEY: u32 = 1 << 6;
    /// The address vector is given: sgid_index, sgid, dgid, flow_label, hop_limit, traffic_class, sl.
    pub const QP_ATTR_AV: u32 = 1 << 7;
    /// QpAttr::path_mtu is given.
    pub const QP_ATTR_PATH_MTU: u32 = 1 << 8;
    /// QpAttr::timeout is given.
    pub const QP_ATTR_TIMEOUT: u32 = 1 << 9;
    /// QpAttr::retry_cnt is given.
    pub const QP_ATTR_RETRY_CNT: u32 = 1 << 10;
    /// QpAttr::rnr_retry is given.
    pub const QP_ATTR_RNR_RETRY: u32 = 1 << 11;
    /// QpAttr::rq_psn is given.
    pub const QP_ATTR_RQ_PSN: u32 = 1 << 12;
    /// QpAttr::max_rd_atomic is given.
    pub const QP_ATTR_MAX_RD_ATOMIC: u32 = 1 << 13;
    /// QpAttr::min_rnr_timer is given.
    pub const QP_ATTR_MIN_RNR_TIMER: u32 = 1 << 15;
    /// QpAttr::sq_psn is given.
    pub const QP_ATTR_SQ_PSN: u32 = 1 << 16;
    /// QpAttr::max_dest_rd_atomic is given.
    pub const QP_ATTR_MAX_DEST_RD_ATOMIC: u32 = 1 << 17;
    /// QpAttr::dest_qpn is given.
    pub const QP_ATTR_DEST_QPN: u32 = 1 << 20;
}

abi_structs! {
    /// Head of every request.
    pub struct Request {
        /// One of the OP_ numbers.
        pub opcode: u16,
        /// Zero.
        pub flags: u16,
        /// The guest's name for this request, returned in the reply; it stands in the host's log.
        pub tag: u32,
        /// The epoch in which the guest asks.
        pub epoch: u64,
    }

    /// Head of every reply.
    pub struct Reply {
        /// 0, or a positive Linux errno.
        pub status: u32,
        /// The request's tag.
        pub tag: u32,
    }

    /// A list of guest pages, as a radix tree of 4096-byte tables that hold 512 guest-physical addresses each.
    /// With levels 0, addr is the only page (count 1). With levels 1, addr is a table of count addresses. With levels 2 or 3,
    /// addr is a table of tables. The last table of each level may be partly filled. Tables are read once, while the command runs.
    pub struct PageTable {
        /// Guest-physical address of the page or of the top table, aligned to what it is.
        pub addr: u64,
        /// Pages in the list.
        pub count: u32,
        /// Size of each page: a power of two, 12 or more.
        pub page_shift: u8,
        /// Levels of tables above the pages, 0 to PAGE_TABLE_MAX_LEVELS.
        pub levels: u8,
        /// Zero.
        pub reserved: u16,
    }

    /// OP_DEVICE_INIT.
    pub struct DeviceInit {
        /// ABI_MAJOR of the guest.
        pub abi_major: u16,
        /// ABI_MINOR of the guest.
        pub abi_minor: u16,
        /// Zero.
        pub reserved: u32,
        /// The subset of Config::features that the guest will use; other bits are refused with EOPNOTSUPP.
        pub features: u64,
        /// Guest-physical address of the page of StatusLines, which only the RNIC writes from now on.
        pub status_page: u64,
    }

    /// OP_ADD_GID.
    pub struct AddGid {
        /// Entry of the table, below GID_TABLE_LEN.
        pub index: u32,
        /// Zero.
        pub reserved: u32,
        /// The GID; it must belong to the vNIC.
        pub gid: [u8; 16],
    }

    /// OP_DEL_GID.
    pub struct DelGid {
        /// Entry of the table, below GID_TABLE_LEN.
        pub index: u32,
        /// Zero.
        pub reserved: u32,
    }

    /// Names one object: all OP_DESTROY_ and OP_QUERY_ commands.
    pub struct Destroy {
        /// The object's handle.
        pub handle: u32,
        /// Zero.
        pub reserved: u32,
    }

    /// OP_CREATE_CONTEXT.
    pub struct CreateContext {
        /// Handle of the new context.
        pub ctx: u32,
        /// CONTEXT_ bits.
        pub flags: u32,
        /// The doorbell area: one DoorbellPage for each slot, in order, zeroed.
        pub doorbells: PageTable,
    }

    /// OP_CREATE_PD.
    pub struct CreatePd {
        /// Handle of the new protection domain.
        pub pd: u32,
        /// Its context.
        pub ctx: u32,
    }

    /// OP_CREATE_MR. The byte at address iova + k lies in page (iova % page_size + k) / page_size of the list.
    pub struct CreateMr {
        /// Handle of the new region.
        pub mr: u32,
        /// Its protection domain.
        pub pd: u32,
        /// ACCESS_ bits; bits from 1 << 20 up are optional (IBV_ACCESS_OPTIONAL_RANGE) and ignored, others are refused.
        pub access: u32,
        /// MR_ bits.
        pub flags: u32,
        /// The address by which work requests name the first byte.
        pub iova: u64,
        /// Length in bytes; may be 0.
        pub length: u64,
        /// The pages.
        pub pages: PageTable,
    }

    /// Reply to OP_CREATE_MR.
    pub struct CreateMrReply {
        /// Key for scatter/gather entries.
        pub lkey: u32,
        /// Key for peers.
        pub rkey: u32,
    }

    /// OP_REREG_MR. What is not given stays; the keys stay too. When it is refused, nothing has changed.
    pub struct ReregMr {
        /// The region.
        pub mr: u32,
        /// REREG_ bits.
        pub flags: u32,
        /// Its new protection domain, or HANDLE_NONE.
        pub pd: u32,
        /// Its new ACCESS_ bits.
        pub access: u32,
        /// Its new first address.
        pub iova: u64,
        /// Its new length in bytes.
        pub length: u64,
        /// Its new pages.
        pub pages: PageTable,
    }

    /// OP_CREATE_MW. A window gives no access before a work request binds it (SEND_OP_BIND_MW).
    pub struct CreateMw {
        /// Handle of the new window.
        pub mw: u32,
        /// Its protection domain.
        pub pd: u32,
        /// MW_TYPE_.
        pub mw_type: u8,
        /// Zero.
        pub reserved: [u8; 7],
    }

    /// Reply to OP_CREATE_MW.
    pub struct CreateMwReply {
        /// The window's first key. A binding may choose another low byte; the upper 24 bits name the window.
        pub rkey: u32,
        /// Zero.
        pub reserved: u32,
    }

    /// OP_CREATE_XRCD. Contexts share XRC domains, so it belongs to none.
    pub struct CreateXrcd {
        /// Handle of the new XRC domain.
        pub xrcd: u32,
        /// Zero.
        pub reserved: u32,
    }

    /// OP_CREATE_SRQ.
    pub struct CreateSrq {
        /// Handle of the new shared receive queue.
        pub srq: u32,
        /// Its protection domain.
        pub pd: u32,
        /// With SRQ_TYPE_XRC: the completion queue of its receives; else HANDLE_NONE.
        pub cq: u32,
        /// With SRQ_TYPE_XRC: its XRC domain; else HANDLE_NONE.
        pub xrcd: u32,
        /// Number of entries: a power of two, at most Config::max_srq_wr.
        pub entries: u32,
        /// Most scatter/gather entries of a receive, at most Config::max_srq_sge.
        pub max_sge: u16,
        /// Bytes between two entries, as a power of two: 6 (64 bytes) to 10 (1024 bytes).
        pub stride_shift: u8,
        /// SRQ_TYPE_.
        pub srq_type: u8,
        /// The limit, as with OP_MODIFY_SRQ.
        pub limit: u32,
        /// Zero.
        pub reserved: u32,
        /// The ring: WorkHeader in the first stride, then the entries; zeroed.
        pub ring: PageTable,
    }

    /// Reply to OP_CREATE_SRQ.
    pub struct CreateSrqReply {
        /// Its number, by which XRC messages name it; 0 with SRQ_TYPE_BASIC.
        pub srqn: u32,
        /// RING_FORMAT_1.
        pub ring_format: u32,
    }

    /// OP_MODIFY_SRQ.
    pub struct ModifySrq {
        /// The shared receive queue.
        pub srq: u32,
        /// When fewer receives than this are left, one EVENT_SRQ_LIMIT is sent and the limit is 0 again; 0: none.
        pub limit: u32,
    }

    /// Reply to OP_QUERY_SRQ.
    pub struct QuerySrqReply {
        /// The limit, 0 when none is armed.
        pub limit: u32,
        /// Zero.
        pub reserved: u32,
    }

    /// OP_CREATE_CQ.
    pub struct CreateCq {
        /// Handle of the new completion queue.
        pub cq: u32,
        /// Its context.
        pub ctx: u32,
        /// Number of entries: a power of two, at most Config::max_cqe.
        pub entries: u32,
        /// The completion vector, below Config::num_comp_vectors.
        pub vector: u32,
        /// The ring: CqHeader in the first stride, then the entries; zeroed.
        pub ring: PageTable,
    }

    /// Reply to OP_CREATE_CQ.
    pub struct CreateCqReply {
        /// RING_FORMAT_1.
        pub ring_format: u32,
        /// Zero.
        pub reserved: u32,
    }

    /// OP_RESIZE_CQ. Indexes begin at 0 in the new ring, where the entries stand that the guest has not read yet, and its CqHeader takes over
    /// arm. From the reply on the old ring is the guest's. The guest does not poll or arm the queue meanwhile. Refused with EINVAL when more
    /// entries wait than the new ring has, and with EBUSY when so many wait that moving them would hold up others.
    pub struct ResizeCq {
        /// The completion queue.
        pub cq: u32,
        /// Number of entries: a power of two, at most Config::max_cqe.
        pub entries: u32,
        /// The new ring, zeroed.
        pub ring: PageTable,
    }

    /// OP_CREATE_QP.
    pub struct CreateQp {
        /// Handle of the new queue pair.
        pub qp: u32,
        /// Its protection domain; HANDLE_NONE with QP_TYPE_XRC_TGT, which uses that of the shared receive queue.
        pub pd: u32,
        /// Completion queue of sends; HANDLE_NONE with QP_TYPE_XRC_TGT.
        pub send_cq: u32,
        /// Completion queue of receives; HANDLE_NONE with QP_TYPE_XRC_INI and QP_TYPE_XRC_TGT.
        pub recv_cq: u32,
        /// Shared receive queue, or HANDLE_NONE.
        pub srq: u32,
        /// QP_ bits.
        pub flags: u32,
        /// A number of the guest's choice that stands in every completion of this QP.
        pub cookie: u32,
        /// Entries of the send queue: a power of two, at most Config::max_qp_wr; 0, and no ring, with QP_TYPE_XRC_TGT.
        pub sq_entries: u32,
        /// Entries of the receive queue, likewise; 0, and no ring, with a shared receive queue and with XRC.
        pub rq_entries: u32,
        /// Most scatter/gather entries of a send.
        pub max_send_sge: u16,
        /// Most scatter/gather entries of a receive.
        pub max_recv_sge: u16,
        /// Most bytes of inline data.
        pub max_inline_bytes: u16,
        /// Bytes between two entries of the send queue, as a power of two: 6 (64 bytes) to 10 (1024 bytes).
        pub sq_stride_shift: u8,
        /// Bytes between two entries of the receive queue, as a power of two: 6 (64 bytes) to 10 (1024 bytes).
        pub rq_stride_shift: u8,
        /// QP_TYPE_.
        pub qp_type: u8,
        /// Zero.
        pub reserved0: [u8; 3],
        /// With QP_TYPE_XRC_TGT: its XRC domain; else HANDLE_NONE.
        pub xrcd: u32,
        /// With QP_MULTIPATH: entries of the chunk ring, a power of two, at most Config::max_qp_wr; else 0. Since version 1.3.
        pub chunk_entries: u32,
        /// The send queue: WorkHeader in the first stride, then the entries; zeroed.
        pub sq: PageTable,
        /// The receive queue, likewise.
        pub rq: PageTable,
        /// With QP_MULTIPATH: the chunk ring, likewise, with the stride of the send queue; else zero. Since version 1.3: the structure of older versions
        /// ends before it.
        pub chunks: PageTable,
    }

    /// Reply to OP_CREATE_QP.
    pub struct CreateQpReply {
        /// The QP number.
        pub qpn: u32,
        /// RING_FORMAT_1.
        pub ring_format: u32,
        /// Doorbell slot that the QP belongs to.
        pub db_slot: u16,
        /// The QP's index in its context's DoorbellPage of that slot.
        pub db_index: u16,
        /// Zero.
        pub reserved: u32,
    }

    /// A QP's attributes, as in struct ibv_qp_attr.
    pub struct QpAttr {
        /// QP_STATE_.
        pub state: u8,
        /// QP_STATE_ that the guest believes the QP to be in.
        pub cur_state: u8,
        /// Path MTU, in the verbs encoding.
        pub path_mtu: u8,
        /// 1: report SQ_DRAINED.
        pub sq_drained_notify: u8,
        /// ACCESS_REMOTE_ bits.
        pub access: u32,
        /// The peer's QP number.
        pub dest_qpn: u32,
        /// First PSN to receive, 24 bits.
        pub rq_psn: u32,
        /// First PSN to send, 24 bits.
        pub sq_psn: u32,
        /// Q_Key of a UD QP.
        pub qkey: u32,
        /// Local GID, as bytes: the entry that sgid_index named when the guest asked.
        pub sgid: [u8; 16],
        /// The peer's GID.
        pub dgid: [u8; 16],
        /// Flow label, 20 bits.
        pub flow_label: u32,
        /// P_Key index: 0.
        pub pkey_index: u16,
        /// Entry of the GID table.
        pub sgid_index: u8,
        /// Hop limit.
        pub hop_limit: u8,
        /// Traffic class.
        pub traffic_class: u8,
        /// Service level.
        pub sl: u8,
        /// RDMA reads and atomics outstanding as initiator, at most.
        pub max_rd_atomic: u8,
        /// RDMA reads and atomics served as responder, at most.
        pub max_dest_rd_atomic: u8,
        /// RNR NAK timer code, 0 to 31 (IBTA Vol 1 table 45).
        pub min_rnr_timer: u8,
        /// Local ACK timeout: 4.096 µs · 2^timeout, 0 = none, at most 31.
        pub timeout: u8,
        /// Retries after a timeout or sequence error, 0 to 7.
        pub retry_cnt: u8,
        /// Retries after RNR NAK, 0 to 7; 7 = without end.
        pub rnr_retry: u8,
    }

    /// OP_MODIFY_QP.
    pub struct ModifyQp {
        /// The queue pair.
        pub qp: u32,
        /// QP_ATTR_ bits: which attributes are given.
        pub mask: u32,
        /// The attributes.
        pub attr: QpAttr,
    }

    /// Reply to OP_QUERY_QP.
    pub struct QueryQpReply {
        /// The attributes. sq_psn and rq_psn are the next PSNs to send and to receive.
        pub attr: QpAttr,
        /// 1 while a QP in SQD still has sends to finish.
        pub sq_draining: u8,
        /// Zero.
        pub reserved: [u8; 7],
    }

    /// OP_QUERY_COUNTERS.
    pub struct QueryCounters {
        /// Zero.
        pub reserved: u64,
    }

    /// Reply to OP_QUERY_COUNTERS: what this guest's traffic has been since its device was attached.
    pub struct QueryCountersReply {
        /// How many of the values the host knows; at most COUNTERS_MAX. Later versions append, so a guest and its host have the first of them in
        /// common.
        pub count: u32,
        /// Zero.
        pub reserved: u32,
        /// The counters, in the order of their names in COUNTER_NAMES; zero from count on.
        pub values: [u64; 128],
    }
}
