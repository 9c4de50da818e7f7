use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use masq_types::{Features, Gid, Mtu, Psn, Qpn, QpnBlock, Vni, WireQpn};

use crate::{GroupAttr, Limits, PacketTap, Rate, UnderlayPath};

/// One attached guest device; masqd chooses it, and never twice in the life of an RNIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct VnicId(pub u32);

/// A guest-physical address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Gpa(pub u64);

macro_rules! handle {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
            pub struct $name(pub u32);
        )*
    };
}

handle! {
    /// A context: one open of the guest device.
    CtxHandle,
    /// A protection domain.
    PdHandle,
    /// A memory region.
    MrHandle,
    /// A completion queue.
    CqHandle,
    /// A queue pair.
    QpHandle,
    /// A shared receive queue.
    SrqHandle,
    /// A memory window.
    MwHandle,
    /// An XRC domain: a name that queue pairs and shared receive queues have in common.
    XrcdHandle,
}

/// A command. Each is refused with [`DriverError::UnknownObject`](crate::DriverError::UnknownObject)
/// when a vNIC or an object that it names does not exist; each `Create` of an existing handle with
/// [`DriverError::Exists`](crate::DriverError::Exists); each `Destroy` of an unknown object succeeds.
#[derive(Debug)]
pub enum Command {
    /// A new guest device, without memory, queues and objects.
    AttachVnic {
        /// Its id.
        vnic: VnicId,
        /// Its network: packets and local copies never cross from one network to another.
        vni: Vni,
        /// Names the lifetime of its objects in the completion events that it gets; the same as in its config space.
        epoch: u64,
        /// Local underlay addresses, one for each path, at least one. The RNIC listens on UDP port 4791 of each.
        addresses: Vec<IpAddr>,
    },
    /// Ends a guest device and everything in it. In-flight work is dropped; peers find out by timeout.
    DetachVnic {
        /// Its id.
        vnic: VnicId,
    },
    /// The guest's memory, whole; replaces what was there. Regions must be sealed against shrinking.
    SetMemory {
        /// The device.
        vnic: VnicId,
        /// All regions; they do not overlap.
        regions: Vec<MemoryRegion>,
    },
    /// The page of status lines (`vrdma_abi::doorbell::StatusLine`), or none any more.
    SetStatusPage {
        /// The device.
        vnic: VnicId,
        /// Where it is.
        page: Option<Gpa>,
    },
    /// Starts a doorbell or completion-event queue.
    AttachQueue {
        /// The device.
        vnic: VnicId,
        /// The queue.
        queue: Virtqueue,
    },
    /// The call descriptor of a started queue has changed.
    ReplaceCall {
        /// The device.
        vnic: VnicId,
        /// Virtqueue index.
        index: u16,
        /// The new descriptor; `None` when the guest polls.
        call: Option<OwnedFd>,
    },
    /// The kick descriptor of a started queue has changed.
    ReplaceKick {
        /// The device.
        vnic: VnicId,
        /// Virtqueue index.
        index: u16,
        /// The new descriptor; `None` when the guest does not kick.
        kick: Option<OwnedFd>,
    },
    /// Stops a queue. Replies [`Reply::QueueBase`](crate::Reply::QueueBase).
    DetachQueue {
        /// The device.
        vnic: VnicId,
        /// Virtqueue index.
        index: u16,
    },
    /// An open of the device.
    CreateContext {
        /// The device.
        vnic: VnicId,
        /// The new context.
        ctx: CtxHandle,
        /// Its doorbell pages, one for each slot.
        doorbells: Vec<Gpa>,
    },
    /// Ends a context; its queue pairs must have been destroyed ([`DriverError::Busy`](crate::DriverError::Busy)).
    DestroyContext {
        /// The device.
        vnic: VnicId,
        /// The context.
        ctx: CtxHandle,
    },
    /// A memory region. Replies [`Reply::MrCreated`](crate::Reply::MrCreated). That a page lies outside the guest's memory, or is
    /// not aligned, is found when it is accessed, and fails that access.
    CreateMr {
        /// The device.
        vnic: VnicId,
        /// The region.
        mr: MrAttr,
    },
    /// Changes a memory region as a whole or not at all; its keys stay. No access by what it was begins after the reply. Refused with
    /// [`DriverError::Busy`](crate::DriverError::Busy) while windows are bound to it.
    ReregMr {
        /// The device.
        vnic: VnicId,
        /// The region, of kind [`MrKind::Pages`].
        mr: MrHandle,
        /// Its new domain.
        pd: Option<PdHandle>,
        /// Its new rights.
        access: Option<Access>,
        /// Its new memory, of kind [`MrKind::Pages`].
        memory: Option<MrKind>,
    },
    /// A memory window, bound to nothing. Replies [`Reply::MwCreated`](crate::Reply::MwCreated).
    CreateMw {
        /// The device.
        vnic: VnicId,
        /// The window.
        mw: MwHandle,
        /// Its protection domain.
        pd: PdHandle,
        /// Its type.
        mw_type: MwType,
    },
    /// Ends a memory window: no access through it begins after the reply.
    DestroyMw {
        /// The device.
        vnic: VnicId,
        /// The window.
        mw: MwHandle,
    },
    /// Ends a memory region: no access through it begins after the reply. Refused with [`DriverError::Busy`](crate::DriverError::Busy) while windows are
    /// bound to it (IBTA Vol 1 §11.2.8.5).
    DestroyMr {
        /// The device.
        vnic: VnicId,
        /// The region.
        mr: MrHandle,
    },
    /// A completion queue.
    CreateCq {
        /// The device.
        vnic: VnicId,
        /// The queue.
        cq: CqAttr,
    },
    /// Ends a completion queue that no queue pair uses ([`DriverError::Busy`](crate::DriverError::Busy)).
    DestroyCq {
        /// The device.
        vnic: VnicId,
        /// The queue.
        cq: CqHandle,
    },
    /// Gives a completion queue another ring, as `vrdma_abi::control::ResizeCq` says. Refused with
    /// [`DriverError::Invalid`](crate::DriverError::Invalid) when more entries wait than it has, and with [`DriverError::Busy`](crate::DriverError::Busy)
    /// when more wait than are moved at once; then nothing has changed.
    ResizeCq {
        /// The device.
        vnic: VnicId,
        /// The queue.
        cq: CqHandle,
        /// Number of entries, a power of two.
        entries: u32,
        /// The ring (4096-byte pages).
        ring: PageList,
    },
    /// A shared receive queue.
    CreateSrq {
        /// The device.
        vnic: VnicId,
        /// The queue.
        srq: SrqAttr,
    },
    /// Arms a shared receive queue's limit: see [`SrqAttr::limit`].
    ModifySrq {
        /// The device.
        vnic: VnicId,
        /// The queue.
        srq: SrqHandle,
        /// The limit.
        limit: u32,
    },
    /// Asks for a shared receive queue's limit. Replies [`Reply::SrqLimit`](crate::Reply::SrqLimit).
    QuerySrq {
        /// The device.
        vnic: VnicId,
        /// The queue.
        srq: SrqHandle,
    },
    /// Ends a shared receive queue that no queue pair uses ([`DriverError::Busy`](crate::DriverError::Busy)); XRC targets, which name it
    /// by message, do not count.
    DestroySrq {
        /// The device.
        vnic: VnicId,
        /// The queue.
        srq: SrqHandle,
    },
    /// A queue pair, in state RESET. Replies [`Reply::QpCreated`](crate::Reply::QpCreated).
    CreateQp {
        /// The device.
        vnic: VnicId,
        /// The queue pair.
        qp: QpInit,
    },
    /// Changes a queue pair; the transition has been checked against the verbs' table, but an RNIC
    /// refuses with [`DriverError::WrongState`](crate::DriverError::WrongState) when the QP is no longer in `from`.
    ModifyQp {
        /// The device.
        vnic: VnicId,
        /// The queue pair.
        qp: QpHandle,
        /// The change.
        change: QpChange,
    },
    /// Asks for a queue pair's state. Replies [`Reply::Qp`](crate::Reply::Qp).
    QueryQp {
        /// The device.
        vnic: VnicId,
        /// The queue pair.
        qp: QpHandle,
    },
    /// Ends a queue pair. No completion of it is written after the reply.
    DestroyQp {
        /// The device.
        vnic: VnicId,
        /// The queue pair.
        qp: QpHandle,
    },
    /// Moves a queue pair to ERR, because a rule has revoked its connection: its work is flushed, and
    /// nothing that it receives is placed any more. The guest gets an async event.
    RevokeQp {
        /// The device.
        vnic: VnicId,
        /// The queue pair.
        qp: QpHandle,
    },
    /// The vNIC's GIDs, from now on: what its datagrams may name as their source.
    SetGids {
        /// The device.
        vnic: VnicId,
        /// The guest's table: entry by index, [`Gid::ZERO`] where there is none.
        table: Vec<Gid>,
        /// Those that its endpoint record has, in that order: peers know them by their place.
        published: Vec<Gid>,
    },
    /// Whom datagrams may go to and come from, from now on: adds a peer, or replaces what was known of it. Datagrams that
    /// waited for it go on. A vNIC remembers a bounded number of peers: those that were not used for longest are
    /// forgotten, and asked for again.
    SetPeer {
        /// The device.
        vnic: VnicId,
        /// The peer.
        peer: Peer,
    },
    /// Forgets a peer; the next datagram to or from it asks for it again ([`Event::UnknownPeer`](crate::Event::UnknownPeer)).
    RemovePeer {
        /// The device.
        vnic: VnicId,
        /// The peer.
        peer: PeerId,
    },
    /// The answer to [`Event::UnknownPeer`](crate::Event::UnknownPeer) when there is no such peer: datagrams that waited are dropped, and it is not asked for
    /// again for a while.
    NoPeer {
        /// The device.
        vnic: VnicId,
        /// Who was asked for.
        name: PeerName,
    },
    /// What a vNIC may send, from now on. Takes effect at once, also for what is under way; a rate that was not limited begins with
    /// a full burst. Refused with [`DriverError::Invalid`](crate::DriverError::Invalid) when [`Limits::check`] is.
    SetLimits {
        /// The device.
        vnic: VnicId,
        /// All its limits; they replace what was there.
        limits: Limits,
    },
    /// What all vNICs of a class may send together, from now on, as [`Command::SetLimits`].
    SetClassRate {
        /// The class, 0 to 7.
        class: u8,
        /// The rate; `None`, as at first, is without limit.
        rate: Option<Rate>,
    },
    /// What a vNIC has sent and received. Replies [`Reply::VnicCounters`](crate::Reply::VnicCounters).
    VnicCounters {
        /// The device.
        vnic: VnicId,
    },
    /// What each queue pair of a vNIC has sent and received. Replies [`Reply::QpTraffic`](crate::Reply::QpTraffic).
    QpTraffic {
        /// The device.
        vnic: VnicId,
    },
    /// What a vNIC's queue pairs have counted since it was attached, those included that are gone. Replies
    /// [`Reply::Counters`](crate::Reply::Counters), with the same names in the same order as [`Command::Counters`] for what queue pairs count.
    VnicEvents {
        /// The device.
        vnic: VnicId,
    },
    /// How queue pairs are. Replies [`Reply::QpDetails`](crate::Reply::QpDetails). Refused with
    /// [`DriverError::Invalid`](crate::DriverError::Invalid) when they are more than [`MAX_DESCRIBED_QPS`](crate::MAX_DESCRIBED_QPS): whoever wants to
    /// know of more asks again, and the data path has its turns between.
    DescribeQps {
        /// The device.
        vnic: VnicId,
        /// The queue pairs; those that do not exist are left out of the reply.
        qps: Vec<QpHandle>,
    },
    /// Shows a queue pair's packets, on all its paths, to `tap`, until that wants no more, [`Command::StopCapture`], or the queue pair's end, when `tap` is dropped.
    /// Refused with [`DriverError::Invalid`](crate::DriverError::Invalid) when there are no packets: of datagrams, without a connection, and when the
    /// peer is on this RNIC; with [`DriverError::Busy`](crate::DriverError::Busy) when there is a tap already.
    StartCapture {
        /// The device.
        vnic: VnicId,
        /// The queue pair.
        qp: QpHandle,
        /// Takes the packets.
        tap: Arc<dyn PacketTap>,
    },
    /// Ends what [`Command::StartCapture`] has begun with the same `tap`; succeeds if that has ended already.
    StopCapture {
        /// The device.
        vnic: VnicId,
        /// The queue pair.
        qp: QpHandle,
        /// What took the packets.
        tap: Arc<dyn PacketTap>,
    },
    /// What exists. Replies [`Reply::Objects`](crate::Reply::Objects).
    List,
    /// Counters. Replies [`Reply::Counters`](crate::Reply::Counters).
    Counters,
}

impl Command {
    /// The vNIC that it is about; `None` when it is about all of the RNIC.
    pub fn vnic(&self) -> Option<VnicId> {
        match self {
            Command::AttachVnic { vnic, .. }
            | Command::DetachVnic { vnic, .. }
            | Command::SetMemory { vnic, .. }
            | Command::SetStatusPage { vnic, .. }
            | Command::AttachQueue { vnic, .. }
            | Command::ReplaceCall { vnic, .. }
            | Command::ReplaceKick { vnic, .. }
            | Command::DetachQueue { vnic, .. }
            | Command::CreateContext { vnic, .. }
            | Command::DestroyContext { vnic, .. }
            | Command::CreateMr { vnic, .. }
            | Command::ReregMr { vnic, .. }
            | Command::CreateMw { vnic, .. }
            | Command::DestroyMw { vnic, .. }
            | Command::DestroyMr { vnic, .. }
            | Command::CreateCq { vnic, .. }
            | Command::DestroyCq { vnic, .. }
            | Command::ResizeCq { vnic, .. }
            | Command::CreateSrq { vnic, .. }
            | Command::ModifySrq { vnic, .. }
            | Command::QuerySrq { vnic, .. }
            | Command::DestroySrq { vnic, .. }
            | Command::CreateQp { vnic, .. }
            | Command::ModifyQp { vnic, .. }
            | Command::QueryQp { vnic, .. }
            | Command::DestroyQp { vnic, .. }
            | Command::RevokeQp { vnic, .. }
            | Command::SetGids { vnic, .. }
            | Command::SetPeer { vnic, .. }
            | Command::RemovePeer { vnic, .. }
            | Command::NoPeer { vnic, .. }
            | Command::SetLimits { vnic, .. }
            | Command::VnicCounters { vnic, .. }
            | Command::QpTraffic { vnic, .. }
            | Command::VnicEvents { vnic, .. }
            | Command::DescribeQps { vnic, .. }
            | Command::StartCapture { vnic, .. }
            | Command::StopCapture { vnic, .. } => Some(*vnic),
            Command::SetClassRate { .. } | Command::List | Command::Counters => None,
        }
    }
}

/// A region of guest memory.
#[derive(Debug)]
pub struct MemoryRegion {
    /// Guest-physical address.
    pub gpa: Gpa,
    /// Bytes.
    pub len: u64,
    /// The memory.
    pub fd: OwnedFd,
    /// Where the region begins in `fd`.
    pub offset: u64,
}

/// What a virtqueue that the RNIC owns is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueRole {
    /// The doorbell of a slot: only its kick matters.
    Doorbell {
        /// The slot.
        slot: u16,
    },
    /// Completion events of a vector.
    Completion {
        /// The vector.
        vector: u16,
    },
}

/// A virtqueue (split format), as the vhost-user front end described it.
#[derive(Debug)]
pub struct Virtqueue {
    /// Virtqueue index.
    pub index: u16,
    /// What it is for.
    pub role: QueueRole,
    /// Number of descriptors, a power of two.
    pub size: u16,
    /// Descriptor table.
    pub desc: Gpa,
    /// Available ring.
    pub avail: Gpa,
    /// Used ring.
    pub used: Gpa,
    /// Next available index to take.
    pub base: u16,
    /// Whether VIRTIO_RING_F_EVENT_IDX was negotiated.
    pub event_idx: bool,
    /// The guest's kicks come here.
    pub kick: Option<OwnedFd>,
    /// Interrupts go here.
    pub call: Option<OwnedFd>,
}

/// A list of guest pages of one size.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct PageList {
    /// Page size as a power of two, 12 or more.
    pub shift: u8,
    /// Guest-physical addresses, each aligned to the page size.
    pub pages: Vec<u64>,
}

/// Access rights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Access {
    /// Local writes (receives, read results).
    pub local_write: bool,
    /// RDMA writes of peers.
    pub remote_write: bool,
    /// RDMA reads of peers.
    pub remote_read: bool,
    /// Atomics of peers.
    pub remote_atomic: bool,
    /// Memory windows can be bound to it.
    pub mw_bind: bool,
    /// Its addresses begin at 0.
    pub zero_based: bool,
}

/// A memory region to create.
#[derive(Clone, Debug)]
pub struct MrAttr {
    /// Its handle.
    pub mr: MrHandle,
    /// Its protection domain.
    pub pd: PdHandle,
    /// Its rights.
    pub access: Access,
    /// Its memory.
    pub kind: MrKind,
}

/// What memory a region has.
#[derive(Clone, Debug)]
pub enum MrKind {
    /// Pages. The byte at `iova + k` lies in page `(iova % page_size + k) / page_size`.
    Pages {
        /// Address of its first byte in work requests.
        iova: u64,
        /// Bytes.
        length: u64,
        /// Its pages.
        pages: PageList,
    },
    /// All memory of the guest; addresses are guest-physical. Only for queue pairs with [`QpInit::kernel`].
    AllMemory,
    /// Pages that work requests of queue pairs with [`QpInit::kernel`] register and invalidate; at first none.
    FastReg {
        /// How many at most, up to `vrdma_abi::config::FAST_REG_MAX_PAGES`.
        max_pages: u32,
    },
}

/// The type of a memory window (IBTA Vol 1 §10.6.7.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MwType {
    /// Any queue pair of its domain binds it, also anew, and every one gives access through it.
    One,
    /// A queue pair binds it when it is unbound or invalidated, and only that queue pair gives access through it (type 2B).
    Two,
}

/// A shared receive queue to create.
#[derive(Clone, Debug)]
pub struct SrqAttr {
    /// Its handle.
    pub srq: SrqHandle,
    /// Its protection domain.
    pub pd: PdHandle,
    /// What it has when messages of XRC targets name it.
    pub xrc: Option<XrcSrq>,
    /// When fewer receives are left, one [`Event::SrqLimit`](crate::Event::SrqLimit) is sent and the limit is 0 again; 0: none.
    pub limit: u32,
    /// The queue.
    pub queue: WorkQueueAttr,
}

/// What a shared receive queue for XRC has besides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XrcSrq {
    /// Its domain.
    pub xrcd: XrcdHandle,
    /// Completion queue of its receives.
    pub cq: CqHandle,
    /// Its number on the wire, unique among the queues of this vNIC.
    pub srqn: u32,
}

/// A completion queue to create.
#[derive(Clone, Debug)]
pub struct CqAttr {
    /// Its handle.
    pub cq: CqHandle,
    /// Number of entries, a power of two.
    pub entries: u32,
    /// Completion vector of its events.
    pub vector: u16,
    /// Its ring (4096-byte pages).
    pub ring: PageList,
}

/// The transport service of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QpType {
    /// Reliable connected.
    Rc,
    /// Unreliable connected.
    Uc,
    /// Unreliable datagram.
    Ud,
    /// Unreliable datagram with the number 1 in the guest, for management: [`Verdict::cm`] and the well-known Q_Key 0x80010000 are its.
    Gsi,
    /// Extended reliable connected, initiator.
    XrcIni,
    /// Extended reliable connected, target.
    XrcTgt,
}

/// Where a queue pair's receives come from.
#[derive(Clone, Debug)]
pub enum Receives {
    /// A queue of its own.
    Own(WorkQueueAttr),
    /// A shared receive queue.
    Shared(SrqHandle),
    /// Of an XRC target: the queue of this domain that the message names.
    Named(XrcdHandle),
    /// None can come: an XRC initiator.
    None,
}

/// One work queue of a queue pair.
#[derive(Clone, Debug)]
pub struct WorkQueueAttr {
    /// Number of entries, a power of two.
    pub entries: u32,
    /// Bytes between entries as a power of two, 6 to 10.
    pub stride_shift: u8,
    /// Most scatter/gather entries of a request.
    pub max_sge: u16,
    /// Its ring (4096-byte pages).
    pub ring: PageList,
}

/// A queue pair to create.
#[derive(Clone, Debug)]
pub struct QpInit {
    /// Its handle.
    pub qp: QpHandle,
    /// The context whose doorbell pages it uses.
    pub ctx: CtxHandle,
    /// Its protection domain; `None` of an XRC target, which has that of the shared receive queue.
    pub pd: Option<PdHandle>,
    /// Its transport.
    pub qp_type: QpType,
    /// The guest's kernel owns it: it may use regions of all memory and register pages by work requests.
    pub kernel: bool,
    /// Its number as the guest sees it; stands in completions.
    pub qpn: Qpn,
    /// Its number on the wire. A GSI with number 1 receives at its vNIC's first address only: others share the rest, and may have the same
    /// number.
    pub wire_qpn: WireQpn,
    /// Completion queue of sends; `None` of an XRC target.
    pub send_cq: Option<CqHandle>,
    /// Completion queue of receives; `None` of XRC, both ends.
    pub recv_cq: Option<CqHandle>,
    /// The guest's number for it; stands in completions.
    pub cookie: u32,
    /// Every send is signalled.
    pub signal_all: bool,
    /// Most bytes of inline data.
    pub max_inline_bytes: u16,
    /// The send queue; `None` of an XRC target.
    pub sq: Option<WorkQueueAttr>,
    /// Its receives.
    pub receives: Receives,
    /// It may use several paths; [`QpType::Rc`] only.
    pub group: Option<GroupAttr>,
}

/// Names a peer of datagrams; masqd chooses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PeerId(pub u64);

/// A peer of datagrams as a vNIC sees it: another vNIC of its network, itself, or a stranger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its name.
    pub id: PeerId,
    /// Its virtual addresses, in the order of its endpoint record.
    pub gids: Vec<Gid>,
    /// Its underlay addresses, path by path. One of this RNIC's own: it is local.
    pub addresses: Vec<IpAddr>,
    /// Its blocks of wire QPNs.
    pub qpn_blocks: Vec<QpnBlock>,
    /// The wire number of its GSI; 0: none. Number 1 is at the first of its addresses only.
    pub gsi_qpn: WireQpn,
    /// It is another kind of RoCEv2 station, behind which there is one machine alone: its UDP source ports say nothing of addresses, and
    /// it knows the vNIC by the first of its addresses.
    pub is_stranger: bool,
    /// What the rules allow, whichever of the two's addresses are used, but for `exceptions`.
    pub verdict: Verdict,
    /// Pairs of addresses about which the rules say something else, as rules about prefixes can. Mostly none.
    pub exceptions: Vec<PairVerdict>,
}

/// What the rules allow between one address of a vNIC and one of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PairVerdict {
    /// The vNIC's address.
    pub local: Gid,
    /// The peer's.
    pub remote: Gid,
    /// What is allowed between them.
    pub verdict: Verdict,
}

impl Peer {
    /// What the rules allow between the vNIC's address `local` and the peer's address `remote`.
    pub fn verdict_between(&self, local: Gid, remote: Gid) -> Verdict {
        let exception = self.exceptions.iter().find(|e| e.local == local && e.remote == remote);
        exception.map_or(self.verdict, |e| e.verdict)
    }
}

/// What the rules allow between a vNIC and a peer of datagrams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Datagrams to the peer.
    pub send: bool,
    /// Datagrams from the peer.
    pub receive: bool,
    /// Management datagrams, both ways.
    pub cm: bool,
}

/// Whom the RNIC asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PeerName {
    /// Who has this virtual address.
    Gid(Gid),
    /// Who sends from this underlay address and wire QPN.
    Source(IpAddr, WireQpn),
}

/// State of a queue pair (IBTA Vol 1 §10.3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QpState {
    /// Reset.
    Reset,
    /// Initialised.
    Init,
    /// Ready to receive.
    Rtr,
    /// Ready to send.
    Rts,
    /// Send queue drained.
    Sqd,
    /// Send queue error.
    Sqe,
    /// Error.
    Err,
}

/// The renamed connection of an RC or UC queue pair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connection {
    /// Local underlay address; one of the vNIC's.
    pub local: IpAddr,
    /// The peer's underlay address. When it is one of this RNIC's own, the peer is local.
    pub remote: IpAddr,
    /// The peer's QP.
    pub remote_qpn: WireQpn,
    /// Further paths that it uses at once, of a queue pair with [`QpInit::group`] whose peer is another with at least as many: path `i` from 1 on stands
    /// at `i - 1`, and belongs to the siblings with number `i` at both ends. A change of the connection keeps their number.
    pub other_paths: Vec<UnderlayPath>,
    /// UDP source port, 0xc000 to 0xffff (RoCEv2 Annex A17 §A17.4.4 leaves it to the sender, for path entropy).
    pub udp_source_port: u16,
    /// DSCP and ECN field of the IP header.
    pub traffic_class: u8,
    /// Hop limit or TTL.
    pub hop_limit: u8,
    /// What both ends can do beyond standard RoCEv2. Towards the peer nothing else is used; what the peer uses is understood in any case, as
    /// the two ends may have read different versions of each other's records.
    pub features: Features,
    /// The virtual addresses, for messages to people.
    pub virtual_local: Gid,
    /// The virtual address of the peer.
    pub virtual_remote: Gid,
}

/// A change of a queue pair. Attributes that are `None` stay as they are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QpChange {
    /// State before, if the guest said so or the transition needs it.
    pub from: Option<QpState>,
    /// State after; `None` leaves it.
    pub to: Option<QpState>,
    /// Remote access rights.
    pub access: Option<Access>,
    /// The connection (at RTR).
    pub connection: Option<Connection>,
    /// Path MTU. A datagram queue pair, which has none among its attributes, is given that of the underlay at RTR: longer datagrams it does not
    /// send. Without, it is 4096 bytes.
    pub path_mtu: Option<Mtu>,
    /// First PSN to receive.
    pub rq_psn: Option<Psn>,
    /// First PSN to send.
    pub sq_psn: Option<Psn>,
    /// RDMA reads and atomics outstanding as initiator.
    pub max_rd_atomic: Option<u8>,
    /// RDMA reads and atomics served as responder.
    pub max_dest_rd_atomic: Option<u8>,
    /// RNR NAK timer code, 0..32.
    pub min_rnr_timer: Option<u8>,
    /// Local ACK timeout exponent, 0..32; 0 = none.
    pub timeout: Option<u8>,
    /// Retries after a timeout or sequence error, 0..8.
    pub retry_cnt: Option<u8>,
    /// Retries after RNR NAK, 0..8; 7 = without end.
    pub rnr_retry: Option<u8>,
    /// Q_Key (UD).
    pub qkey: Option<u32>,
    /// Report when the send queue is drained.
    pub sq_drained_notify: Option<bool>,
}
