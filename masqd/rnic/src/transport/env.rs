//! What a queue pair needs from the world around it: [`Env`], and the plain values that cross it.

use std::ops::Range;

use masq_driver::{Access, QpFault};
use masq_types::{Lkey, Rkey};
use masq_wire::ImmDt;
use vrdma_abi::ring;

use super::inflight::Room;
use super::placed::Placed;
use super::request::Failure;
pub use super::send_op::SendOp;

/// What surrounds one queue pair: its work queues, its completion queues, and memory as its protection domain
/// lets it be seen.
///
/// The transport calls these only from inside a call of [`QpCore`](super::QpCore), and never keeps anything that
/// points into guest memory. A value of this type stands for one queue pair during one call.
///
/// # Memory
///
/// Lists of [`Sge`] form one message: offset 0 is the first byte of the first entry. Entries of length 0 name
/// nothing and are not checked. Every access is checked when it happens, although [`Env::check_local`] or
/// [`Env::check_remote`] has agreed to it before: a region can be destroyed in between. An access that fails
/// changes nothing.
///
/// Writes into memory ([`Env::scatter`], [`Env::write_remote`]) store the last aligned eight bytes of each
/// contiguous run last, behind a release fence, because programs poll them. The transport passes the pieces of a
/// message on in order, so that the message's last bytes are the last to change.
pub trait Env {
    /// Takes the next send request out of the ring, copied once, into `work` (whose buffers are reused), or
    /// returns `false` when there is none. A request that makes no sense is handed over with
    /// [`SendWork::defect`]; it fails when its turn comes.
    fn next_send(&mut self, work: &mut SendWork) -> bool;

    /// Takes the next send request that this queue pair flushes in ERR.
    fn next_send_to_flush(&mut self, work: &mut SendWork) -> bool {
        self.next_send(work)
    }

    /// A send request is done and has its completion, if it wanted one. Those of a queue pair are done in the order in which they were taken.
    fn send_done(&mut self, _work: &SendWork) {}

    /// A request to fill. It may have the buffers of one that was [given back](Self::give_back).
    fn lend(&mut self) -> SendWork {
        SendWork::default()
    }

    /// Takes a request that is done, whose buffers may serve another.
    fn give_back(&mut self, _work: SendWork) {}

    /// Room for requests that are taken out of a ring. It may have been [given back](Self::give_back_room).
    fn lend_room(&mut self) -> Room {
        Room::default()
    }

    /// Takes the room of a queue pair that holds none any more.
    fn give_back_room(&mut self, _room: Room) {}

    /// An empty buffer for a packet that is kept. It may have been [given back](Self::give_back_buffer).
    fn lend_buffer(&mut self) -> Vec<u8> {
        Vec::new()
    }

    /// Takes the buffer of a packet that is not kept any more.
    fn give_back_buffer(&mut self, _buffer: Vec<u8>) {}

    /// Whether a queue pair that keeps the memory of `buffers` send requests may keep that of one more. Without, it goes on
    /// when one of its requests is done; it is not asked for the first.
    fn may_hold(&self, _buffers: usize) -> bool {
        true
    }

    /// Whether a queue pair half that keeps `own` bytes of packets that came before their turn may keep `more`. Without, such packets are lost.
    fn may_keep(&self, _own: usize, _more: usize) -> bool {
        true
    }

    /// Asks for leave to send a packet whose UDP payload, from BTH to ICRC, has `bytes` bytes: a request or a part of one, or an
    /// answer to a READ or atomic. When it is agreed to, the packet is sent. When not, it waits as if it had not been
    /// asked for: no timer runs for it, and [`QpCore::poll_transmit`](super::QpCore::poll_transmit) asks again when it is called.
    fn may_send(&mut self, _bytes: usize) -> bool {
        true
    }

    /// An acknowledgement of `bytes` bytes, counted likewise, is sent; it never waits for leave.
    fn reply_sent(&mut self, _bytes: usize) {}

    /// Takes the next receive request, as [`Env::next_send`].
    fn next_recv(&mut self, work: &mut RecvWork) -> bool;

    /// Takes the next receive request that this queue pair flushes in ERR. Those in a shared receive queue are others' too and stay.
    fn next_recv_to_flush(&mut self, work: &mut RecvWork) -> bool {
        self.next_recv(work)
    }

    /// Of a queue pair with several paths: takes the next of the receives that have been [assigned](Self::assign_recv) and belong to no message that has
    /// begun otherwise, to flush it. There is nothing to place data into from then on.
    fn next_assigned_to_flush(&mut self, _work: &mut RecvWork) -> bool {
        false
    }

    /// Of a queue pair with several paths: makes sure that the receive with this number is at hand, counted from 0 over those that its messages take, and takes
    /// these bytes of its message, which nothing has been steered to before.
    fn assign_recv(&mut self, _number: u32, _bytes: Range<u64>) -> Result<(), SteerFault> {
        Err(SteerFault::Invalid("data is steered to a queue pair that has one path"))
    }

    /// Writes `data` at `offset` of a receive that has been [assigned](Self::assign_recv).
    fn steer(&mut self, _number: u32, _offset: u64, _data: &[u8]) -> Result<(), SteerFault> {
        Err(SteerFault::Invalid("data is steered to a queue pair that has one path"))
    }

    /// Whether it is no wonder that the peer has no receive for this request: there are others that take receives before it does, and have not been
    /// sent.
    fn is_ahead(&self, _work: &SendWork) -> bool {
        false
    }

    /// Writes a completion.
    fn complete(&mut self, completion: &Completion);

    /// Reports something that no completion tells.
    fn event(&mut self, event: QpEvent);

    /// Checks that every byte of `sges` may be accessed by this queue pair.
    fn check_local(&mut self, sges: &[Sge], access: LocalAccess) -> Result<(), MemoryFault>;

    /// Appends the `len` bytes at `offset` of the message that `sges` name to `out`. On failure `out` is as it was.
    fn gather(&mut self, sges: &[Sge], offset: u64, len: usize, out: &mut Vec<u8>)
    -> Result<(), MemoryFault>;

    /// Appends `count` pieces of `len` bytes, one or more, which lie one behind the other from `offset` on, as [`Env::gather`] appends
    /// each; `before` is called ahead of each with its place, and may append something. Returns how many there are: fewer when memory cannot be
    /// accessed. `out` ends with the last of them.
    fn gather_pieces(
        &mut self,
        sges: &[Sge],
        offset: u64,
        len: usize,
        count: usize,
        out: &mut Vec<u8>,
        mut before: impl FnMut(usize, &mut Vec<u8>),
    ) -> usize {
        for place in 0..count {
            let end = out.len();
            before(place, out);
            if self.gather(sges, offset + (place * len) as u64, len, out).is_err() {
                out.truncate(end);
                return place;
            }
        }
        count
    }

    /// Writes `data` at `offset` of the message that `sges` name.
    fn scatter(&mut self, sges: &[Sge], offset: u64, data: &[u8]) -> Result<(), MemoryFault>;

    /// Checks that the peer may access all of `target`. A target of length 0 is always agreed to, whatever its
    /// key (IBTA Vol 1 §9.7.4.1.5), and is not asked for.
    fn check_remote(&mut self, target: RemoteRange, access: RemoteAccess) -> Result<(), MemoryFault>;

    /// Appends the bytes of `source` to `out`, for a peer with [`RemoteAccess::Read`]. On failure `out` is as it was.
    fn read_remote(&mut self, source: RemoteRange, out: &mut Vec<u8>) -> Result<(), MemoryFault>;

    /// Writes `data` at `va` of the region `rkey`, for a peer with [`RemoteAccess::Write`].
    fn write_remote(&mut self, rkey: Rkey, va: u64, data: &[u8]) -> Result<(), MemoryFault>;

    /// Carries out `op` on the aligned eight bytes at `va` of the region `rkey`, for a peer with
    /// [`RemoteAccess::Atomic`], as one CPU atomic, and returns the value before. The bytes are a number in host order.
    fn atomic_remote(&mut self, rkey: Rkey, va: u64, op: AtomicOp) -> Result<u64, MemoryFault>;

    /// Changes what a key stands for, at this queue pair's request or, as an invalidation, at its peer's: all of it, or nothing.
    fn change_key(&mut self, _change: &KeyChange) -> Result<(), KeyFault> {
        Err(KeyFault::Unknown)
    }

    /// Of an XRC target: from now on receives come from the shared receive queue with this number, and memory is seen as its protection
    /// domain lets it be seen (IBTA Vol 1 Annex A14). Returns whether the XRC domain has such a queue.
    fn select_srq(&mut self, _srqn: u32) -> bool {
        false
    }
}

/// Why data cannot be placed into a receive ahead of its message's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SteerFault {
    /// The receive has not been posted.
    NotReady,
    /// The peer may not name this receive.
    Invalid(&'static str),
    /// The receive cannot take it; it is to be completed so.
    Receive(Failure),
}

/// A change of what a key stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyChange {
    /// The key of a window of type 2, or of a region for fast registration, becomes invalid.
    Invalidate(Rkey),
    /// A window is bound.
    Bind(Bind),
    /// A region for fast registration gets its pages.
    Register(Registration),
}

/// The binding of a memory window (IBTA Vol 1 §10.6.7.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bind {
    /// The window's key from now on; its upper 24 bits name the window.
    pub key: Rkey,
    /// The region.
    pub lkey: Lkey,
    /// Rights of peers.
    pub access: Access,
    /// Address of the first byte, in the region.
    pub addr: u64,
    /// Bytes; 0 unbinds a window of type 1.
    pub length: u64,
}

/// A fast registration (IBTA Vol 1 §11.4.1.1, fast register physical MR).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registration {
    /// The region's key from now on; its upper 24 bits name the region.
    pub key: Rkey,
    /// Its rights.
    pub access: Access,
    /// Address of its first byte.
    pub iova: u64,
    /// Bytes.
    pub length: u64,
    /// Size of each page as a power of two.
    pub page_shift: u32,
    /// Guest-physical address of the list of its pages.
    pub list: u64,
}

/// Why a key cannot be changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyFault {
    /// Nothing has this key.
    #[error("no window or region has this key")]
    Unknown,
    /// The window, the region or the queue pair belongs to another protection domain.
    #[error("the window or region belongs to another protection domain")]
    ForeignDomain,
    /// What has the key is none that can be changed so.
    #[error("the key is that of something that cannot be changed so")]
    WrongKind,
    /// The window is bound, or the region registered.
    #[error("the window or region is valid and must be invalidated before")]
    InUse,
    /// The region does not allow such a window, or another queue pair has bound it.
    #[error("the window or region does not allow it")]
    NotPermitted,
    /// The window leaves the region, or there are too many pages.
    #[error("the range leaves the region, or needs too many pages")]
    OutOfRange,
    /// The list of pages is not in guest memory.
    #[error("the list of pages cannot be read")]
    Unavailable,
}

/// A scatter/gather entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sge {
    /// Address within the region (its iova counts).
    pub addr: u64,
    /// Bytes.
    pub length: u32,
    /// The region.
    pub lkey: Lkey,
}

/// Bytes that a peer names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteRange {
    /// The region.
    pub rkey: Rkey,
    /// Address of the first byte.
    pub va: u64,
    /// Bytes.
    pub len: u32,
}

/// What a queue pair wants to do with its own memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LocalAccess {
    /// Read it, to send it. Every region allows that.
    Read,
    /// Write received or read data into it.
    Write,
}

/// What a peer wants to do with memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemoteAccess {
    /// RDMA READ.
    Read,
    /// RDMA WRITE.
    Write,
    /// An atomic.
    Atomic,
}

/// An atomic operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtomicOp {
    /// Stores `swap` if the value is `compare`.
    CmpSwap {
        /// The value that must be there.
        compare: u64,
        /// The value to store.
        swap: u64,
    },
    /// Adds `add`, wrapping.
    FetchAdd {
        /// What to add.
        add: u64,
    },
}

/// Why memory cannot be accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MemoryFault {
    /// No region has this key.
    #[error("no memory region has this key")]
    UnknownKey,
    /// The region belongs to another protection domain.
    #[error("the memory region belongs to another protection domain")]
    ForeignDomain,
    /// The range leaves the region, or wraps.
    #[error("the range leaves the memory region")]
    OutOfRange,
    /// The region does not allow such an access.
    #[error("the memory region does not allow the access")]
    NotPermitted,
    /// The region is there, but the guest memory behind it is not.
    #[error("the guest memory behind the region cannot be accessed")]
    Unavailable,
}

/// A send request, copied out of the ring.
#[derive(Clone, Debug)]
pub struct SendWork {
    /// Returned in the completion.
    pub wr_id: u64,
    /// Free-running index of the ring's entry behind this one; goes into [`Completion::next_index`].
    pub next_index: u32,
    /// What it asks for.
    pub op: SendOp,
    /// It comes from the chunk ring of a queue pair with several paths.
    pub is_chunk: bool,
    /// A READ, or a WRITE with immediate data, is the end of a message of which chunks have read or written so many bytes.
    pub before_bytes: u32,
    /// A reason to fail it when its turn comes, found while reading the ring: an unknown opcode, too many entries
    /// ([`Status::LocQpOpErr`]), too much inline data ([`Status::LocLenErr`]).
    pub defect: Option<Status>,
    /// A completion is wanted even on success.
    pub signalled: bool,
    /// The peer's completion is solicited.
    pub solicited: bool,
    /// Wait for earlier reads and atomics.
    pub fence: bool,
    /// Immediate data.
    pub imm: ImmDt,
    /// The peer's key that is to become invalid.
    pub inv: Rkey,
    /// Of an XRC initiator: the number of the peer's shared receive queue.
    pub srqn: u32,
    /// What an operation that [is local](SendOp::is_local) does.
    pub key_change: Option<KeyChange>,
    /// The peer's address.
    pub remote_addr: u64,
    /// The peer's key; of [`SendOp::Steer`] the receive's number.
    pub rkey: Rkey,
    /// A SEND whose beginning has been steered: `remote_addr` is the offset of its data in the message.
    pub steered: bool,
    /// What to compare with, or to add.
    pub compare_add: u64,
    /// What to store if the comparison holds.
    pub swap: u64,
    /// Where a datagram goes; of other types it means nothing.
    pub datagram: ring::DatagramSegment,
    /// The data stands in `inline_data`; `sges` is empty.
    pub inline: bool,
    /// Inline data.
    pub inline_data: Vec<u8>,
    /// Where the data is, or goes.
    pub sges: Vec<Sge>,
}

impl Default for SendWork {
    fn default() -> Self {
        Self {
            wr_id: 0,
            next_index: 0,
            op: SendOp::Send,
            is_chunk: false,
            before_bytes: 0,
            defect: None,
            signalled: false,
            solicited: false,
            fence: false,
            imm: ImmDt([0; 4]),
            inv: Rkey(0),
            srqn: 0,
            key_change: None,
            remote_addr: 0,
            rkey: Rkey(0),
            steered: false,
            compare_add: 0,
            swap: 0,
            datagram: ring::DatagramSegment::ZERO,
            inline: false,
            inline_data: Vec::new(),
            sges: Vec::new(),
        }
    }
}

impl SendWork {
    /// Makes it a chunk, a WRITE of nothing.
    pub(crate) fn make_chunk(&mut self, wr_id: u64, next_index: u32, remote_addr: u64, rkey: Rkey) {
        self.clear();
        (self.op, self.wr_id, self.next_index, self.is_chunk) = (SendOp::Write, wr_id, next_index, true);
        (self.remote_addr, self.rkey) = (remote_addr, rkey);
    }

    /// Makes it an empty request, which has its buffers still.
    fn clear(&mut self) {
        let (mut inline_data, mut sges) =
            (std::mem::take(&mut self.inline_data), std::mem::take(&mut self.sges));
        inline_data.clear();
        sges.clear();
        *self = Self { inline_data, sges, ..Self::default() };
    }

    /// Whether its data has a place in a receive of the peer's, `remote_addr` bytes behind the receive's beginning.
    pub fn is_steered(&self) -> bool {
        self.steered || self.op == SendOp::Steer
    }

    /// Bytes of the message.
    pub fn len_bytes(&self) -> u64 {
        if self.inline { self.inline_data.len() as u64 } else { total_bytes(&self.sges) }
    }

    /// Its completion.
    pub fn completion(&self, status: Status, cause: Cause, byte_len: u32) -> Completion {
        Completion {
            queue: if self.is_chunk { WorkQueue::Chunk } else { WorkQueue::Send },
            wr_id: self.wr_id,
            next_index: self.next_index,
            srqn: 0,
            status,
            opcode: self.op.wc_opcode(),
            byte_len,
            imm: None,
            inv: None,
            solicited: false,
            cause,
        }
    }
}

/// A receive request, copied out of the ring.
#[derive(Clone, Debug, Default)]
pub struct RecvWork {
    /// Returned in the completion.
    pub wr_id: u64,
    /// Free-running index of the ring's entry behind this one.
    pub next_index: u32,
    /// Number of the shared receive queue that it comes from, when that is one for XRC; else 0.
    pub srqn: u32,
    /// A reason to fail it when its turn comes.
    pub defect: Option<Status>,
    /// What of its message has been steered into it.
    pub placed: Placed,
    /// How it fails, because something has been steered into it that it cannot take.
    pub failure: Option<Failure>,
    /// Where the data goes.
    pub sges: Vec<Sge>,
}

impl RecvWork {
    /// Its completion, without what a message brings.
    pub fn completion(&self, status: Status, cause: Cause) -> Completion {
        Completion {
            queue: WorkQueue::Recv,
            wr_id: self.wr_id,
            next_index: self.next_index,
            srqn: self.srqn,
            status,
            opcode: WcOpcode::Recv,
            byte_len: 0,
            imm: None,
            inv: None,
            solicited: false,
            cause,
        }
    }
}

/// Bytes that scatter/gather entries name together.
pub fn total_bytes(sges: &[Sge]) -> u64 {
    sges.iter().map(|s| u64::from(s.length)).sum()
}

/// Which of a queue pair's work queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WorkQueue {
    /// The send queue.
    Send,
    /// The receive queue.
    Recv,
    /// The chunk ring of a queue pair with several paths: its requests have no entries in a completion queue.
    Chunk,
}

/// A completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The queue whose request is done; it says which completion queue gets this.
    pub queue: WorkQueue,
    /// The request's.
    pub wr_id: u64,
    /// The request's; all ring entries below may be reused.
    pub next_index: u32,
    /// The request's [`RecvWork::srqn`].
    pub srqn: u32,
    /// How it went.
    pub status: Status,
    /// What was done.
    pub opcode: WcOpcode,
    /// Bytes received, read or fetched.
    pub byte_len: u32,
    /// Immediate data, with a receive that got some.
    pub imm: Option<ImmDt>,
    /// The key that the peer has invalidated with a message.
    pub inv: Option<Rkey>,
    /// The received message was solicited. (That a failed completion counts as solicited is the ring's affair.)
    pub solicited: bool,
    /// Why it failed, more precisely than `status`.
    pub cause: Cause,
}

macro_rules! abi_enum {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $abi:ident,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum $name {
            $($(#[$vdoc])* $variant = ring::$abi,)*
        }

        impl $name {
            /// All values.
            pub const ALL: &'static [$name] = &[$($name::$variant,)*];

            /// The name of that value in the contract.
            pub const fn name(self) -> &'static str {
                match self {
                    $($name::$variant => stringify!($abi),)*
                }
            }

            /// The value in a completion queue entry.
            pub const fn to_abi(self) -> u8 {
                self as u8
            }
        }
    };
}

abi_enum! {
    /// How a request went: all values of enum ibv_wc_status that occur (IBTA Vol 1 §11.6.2). The others belong to
    /// reliable datagrams.
    Status {
        /// Done.
        Success = WC_SUCCESS,
        /// A message is longer than its receive, or too long for the transport.
        LocLenErr = WC_LOC_LEN_ERR,
        /// The request is malformed.
        LocQpOpErr = WC_LOC_QP_OP_ERR,
        /// A scatter/gather entry may not be accessed.
        LocProtErr = WC_LOC_PROT_ERR,
        /// The queue pair is in error; the request was not carried out, or it is unknown whether it was.
        WrFlushErr = WC_WR_FLUSH_ERR,
        /// A window cannot be bound, a region registered, or a key invalidated: the standard's memory management operation error.
        MwBindErr = WC_MW_BIND_ERR,
        /// The peer's answer makes no sense.
        BadRespErr = WC_BAD_RESP_ERR,
        /// A receive's memory could not be written by data that an RDMA WRITE or a SEND brought.
        LocAccessErr = WC_LOC_ACCESS_ERR,
        /// The peer refused the request as invalid.
        RemInvReqErr = WC_REM_INV_REQ_ERR,
        /// The peer refused access to its memory.
        RemAccessErr = WC_REM_ACCESS_ERR,
        /// The peer could not carry out the request.
        RemOpErr = WC_REM_OP_ERR,
        /// The peer did not answer.
        RetryExcErr = WC_RETRY_EXC_ERR,
        /// The peer had no receive for too long.
        RnrRetryExcErr = WC_RNR_RETRY_EXC_ERR,
    }
}

abi_enum! {
    /// What a completed request did: values of enum ibv_wc_opcode.
    WcOpcode {
        /// SEND.
        Send = WC_SEND,
        /// RDMA WRITE.
        RdmaWrite = WC_RDMA_WRITE,
        /// RDMA READ.
        RdmaRead = WC_RDMA_READ,
        /// Compare and swap.
        CompSwap = WC_COMP_SWAP,
        /// Fetch and add.
        FetchAdd = WC_FETCH_ADD,
        /// Binding of a memory window.
        BindMw = WC_BIND_MW,
        /// Local invalidate.
        LocalInv = WC_LOCAL_INV,
        /// Fast registration.
        RegMr = WC_REG_MR,
        /// A received SEND.
        Recv = WC_RECV,
        /// A received RDMA WRITE with immediate data.
        RecvRdmaWithImm = WC_RECV_RDMA_WITH_IMM,
    }
}

/// Why a request failed, for people: `vendor_err` of its completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[repr(u32)]
pub enum Cause {
    /// It did not fail.
    #[error("no failure")]
    None = 0,
    /// The request in the ring is malformed or not supported.
    #[error("the work request is malformed or not supported")]
    MalformedWork = 1,
    /// The message is longer than the transport allows.
    #[error("the message is too long")]
    MessageTooLong = 2,
    /// A datagram's addresses cannot be: there is no such entry of the GID table, they are of two families, or the destination is a group.
    #[error("the datagram's addresses make no sense")]
    DatagramAddress = 8,
    /// A read or atomic on a queue pair with max_rd_atomic 0.
    #[error("a read or atomic where max_rd_atomic is 0")]
    NoInitiatorDepth = 3,
    /// An atomic needs eight bytes of memory for its result.
    #[error("the result of an atomic needs eight bytes")]
    AtomicLength = 4,
    /// A scatter/gather entry's key is unknown.
    #[error("a scatter/gather entry's key is unknown")]
    LocalUnknownKey = 16,
    /// A scatter/gather entry's region belongs to another protection domain.
    #[error("a scatter/gather entry's region belongs to another protection domain")]
    LocalForeignDomain = 17,
    /// A scatter/gather entry leaves its region.
    #[error("a scatter/gather entry leaves its region")]
    LocalOutOfRange = 18,
    /// A scatter/gather entry's region does not allow the access.
    #[error("a scatter/gather entry's region does not allow the access")]
    LocalNotPermitted = 19,
    /// The guest memory behind a scatter/gather entry cannot be accessed.
    #[error("the guest memory behind a scatter/gather entry cannot be accessed")]
    LocalUnavailable = 20,
    /// The received message is longer than its receive.
    #[error("the received message is longer than its receive")]
    ReceiveTooShort = 32,
    /// The peer's request names memory that it may not access.
    #[error("the peer's request names memory that it may not access")]
    PeerAccess = 34,
    /// The peer refused: invalid request.
    #[error("the peer refused the request as invalid")]
    NakInvalid = 48,
    /// The peer refused: remote access.
    #[error("the peer refused access to its memory")]
    NakAccess = 49,
    /// The peer refused: operational error.
    #[error("the peer could not carry out the request")]
    NakOperational = 50,
    /// The peer did not answer within retry_cnt timeouts.
    #[error("the peer did not answer")]
    RetryExceeded = 51,
    /// The peer had no receive for rnr_retry tries.
    #[error("the peer posted no receive in time")]
    RnrRetryExceeded = 52,
    /// The peer's response does not fit the request.
    #[error("the peer's response does not fit the request")]
    BadResponse = 53,
    /// Another request failed, or the queue pair was moved to ERR.
    #[error("flushed")]
    Flushed = 64,
    /// Nothing has the key that was to be bound, registered or invalidated, or bound to.
    #[error("no window or region has this key")]
    KeyUnknown = 80,
    /// A window or region belongs to another protection domain.
    #[error("the window or region belongs to another protection domain")]
    KeyForeignDomain = 81,
    /// The key is that of something that cannot be changed so.
    #[error("the key is that of something that cannot be changed so")]
    KeyWrongKind = 82,
    /// The window is bound, or the region registered.
    #[error("the window or region is valid and must be invalidated before")]
    KeyInUse = 83,
    /// The region does not allow such a window, or another queue pair has bound it.
    #[error("the window or region does not allow it")]
    KeyNotPermitted = 84,
    /// The window leaves the region, or there are too many pages.
    #[error("the range leaves the region, or needs too many pages")]
    KeyOutOfRange = 85,
    /// The list of pages is not in guest memory.
    #[error("the list of pages cannot be read")]
    KeyUnavailable = 86,
}

impl From<KeyFault> for Cause {
    fn from(fault: KeyFault) -> Self {
        match fault {
            KeyFault::Unknown => Cause::KeyUnknown,
            KeyFault::ForeignDomain => Cause::KeyForeignDomain,
            KeyFault::WrongKind => Cause::KeyWrongKind,
            KeyFault::InUse => Cause::KeyInUse,
            KeyFault::NotPermitted => Cause::KeyNotPermitted,
            KeyFault::OutOfRange => Cause::KeyOutOfRange,
            KeyFault::Unavailable => Cause::KeyUnavailable,
        }
    }
}

impl From<MemoryFault> for Cause {
    fn from(fault: MemoryFault) -> Self {
        match fault {
            MemoryFault::UnknownKey => Cause::LocalUnknownKey,
            MemoryFault::ForeignDomain => Cause::LocalForeignDomain,
            MemoryFault::OutOfRange => Cause::LocalOutOfRange,
            MemoryFault::NotPermitted => Cause::LocalNotPermitted,
            MemoryFault::Unavailable => Cause::LocalUnavailable,
        }
    }
}

/// Something that a queue pair reports without a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QpEvent {
    /// The queue pair moved to ERR for a reason that its send queue's completions do not tell.
    Fault {
        /// The verbs' event.
        fault: QpFault,
        /// For the log.
        reason: &'static str,
    },
    /// The first packet arrived in RTR.
    CommEstablished,
    /// The send queue is drained, as was asked for.
    SqDrained,
    /// In ERR, it takes no more receives from its shared receive queue.
    LastWqe,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_and_opcodes_have_their_abi_numbers() {
        assert_eq!(Status::RetryExcErr.to_abi(), 12);
        assert_eq!(WcOpcode::RecvRdmaWithImm.to_abi(), 129);
    }

    #[test]
    fn lengths_add_up_beyond_32_bits() {
        let sge = Sge { addr: 0, length: u32::MAX, lkey: Lkey(1) };
        assert_eq!(total_bytes(&[sge, sge]), 2 * u64::from(u32::MAX));
        let work = SendWork { inline: true, inline_data: vec![1, 2, 3], ..SendWork::default() };
        assert_eq!(work.len_bytes(), 3);
    }
}
