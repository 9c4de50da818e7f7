//! Send queues, guest side.

use vrdma_abi::ring::{
    AtomicSegment, BindSegment, DatagramSegment, RegSegment, SEND_INLINE, SendHeader, Sge, XrcSegment,
};
use zerocopy::IntoBytes;

use crate::geometry::GeometryError;
use crate::memory::SharedMemory;
use crate::work::{PostError, WorkRing};

/// What each request says of its destination: it depends on the type of the QP alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Target {
    /// The peer that the QP is connected to (RC, UC).
    #[default]
    Connected,
    /// UD and GSI.
    Datagram(DatagramSegment),
    /// XRC initiators.
    Xrc(XrcSegment),
}

impl Target {
    #[inline]
    fn segment(&self) -> &[u8] {
        match self {
            Self::Connected => &[],
            Self::Datagram(segment) => segment.as_bytes(),
            Self::Xrc(segment) => segment.as_bytes(),
        }
    }
}

/// What an opcode needs beyond the header: it depends on the opcode alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Operands {
    /// Nothing.
    #[default]
    None,
    /// SEND_OP_CMP_SWAP and SEND_OP_FETCH_ADD.
    Atomic(AtomicSegment),
    /// SEND_OP_BIND_MW.
    Bind(BindSegment),
    /// SEND_OP_REG_MR.
    Register(RegSegment),
}

impl Operands {
    #[inline]
    fn segment(&self) -> &[u8] {
        match self {
            Self::None => &[],
            Self::Atomic(segment) => segment.as_bytes(),
            Self::Bind(segment) => segment.as_bytes(),
            Self::Register(segment) => segment.as_bytes(),
        }
    }
}

/// What a send asks for, apart from its data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendRequest {
    /// SEND_OP_.
    pub opcode: u8,
    /// SEND_ bits, without SEND_INLINE: the way of posting decides about that.
    pub flags: u8,
    /// Immediate data, as four bytes in the order of the wire; or the key to invalidate.
    pub imm_or_inv: u32,
    /// Returned in the completion.
    pub wr_id: u64,
    /// The peer's address of an RDMA request.
    pub remote_addr: u64,
    /// The peer's key of an RDMA request; the new key of a window or region.
    pub rkey: u32,
    /// Of the end of a split RDMA READ, or of an RDMA WRITE with immediate data: bytes of the message that chunks have read or written.
    pub before_bytes: u32,
    /// The destination.
    pub target: Target,
    /// What the opcode needs.
    pub operands: Operands,
}

impl SendRequest {
    /// Where the data begins in an entry.
    #[inline]
    fn data_offset(&self) -> usize {
        SendHeader::SIZE + self.target.segment().len() + self.operands.segment().len()
    }
}

/// The data of a request that stands in an entry already. The default is no data at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendData(Data);

/// Words, so that a result of this type is put together and taken apart by words: this is the fast path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Data {
    /// So many scatter/gather entries.
    Gathered(u32),
    /// So many bytes.
    Inline(u32),
}

impl Default for SendData {
    fn default() -> Self {
        Self(Data::Gathered(0))
    }
}

/// The guest's side of a send queue.
///
/// [`post`](Self::post) and [`post_inline`](Self::post_inline) write an entry at once. A caller that learns its parts one after the other
/// writes the data first, with [`gather`](Self::gather) or [`copy_inline`](Self::copy_inline), and then the rest with
/// [`push`](Self::push).
#[derive(Debug)]
pub struct SendRing<M>(pub(crate) WorkRing<M>);

impl<M: SharedMemory> SendRing<M> {
    /// A queue of `entries` entries, `1 << stride_shift` bytes apart, in zeroed memory that begins with its header.
    pub fn new(memory: M, entries: u32, stride_shift: u8) -> Result<Self, GeometryError> {
        Ok(Self(WorkRing::new(memory, entries, stride_shift)?))
    }

    /// Writes a send whose data is gathered from memory regions. The RNIC sees it after [`publish`](Self::publish).
    #[inline]
    pub fn post(&mut self, request: &SendRequest, sges: &[Sge]) -> Result<(), PostError> {
        let data = self.gather(request, sges)?;
        self.push(request, data)
    }

    /// Writes a send whose data is copied into the entry, piece by piece. The RNIC sees it after [`publish`](Self::publish).
    #[inline]
    pub fn post_inline<'a>(
        &mut self,
        request: &SendRequest,
        pieces: impl IntoIterator<Item = &'a [u8]>,
    ) -> Result<(), PostError> {
        let data = self.copy_inline(request, pieces)?;
        self.push(request, data)
    }

    /// Writes the scatter/gather entries of the next send. Of `request`, only the kinds of its segments matter.
    #[inline]
    pub fn gather(&mut self, request: &SendRequest, sges: &[Sge]) -> Result<SendData, PostError> {
        let entry = self.0.next()?;
        let data = request.data_offset();
        if data + sges.as_bytes().len() > self.0.stride() {
            return Err(PostError::TooManySges);
        }
        self.0.memory.write(entry + data, sges.as_bytes());
        Ok(SendData(Data::Gathered(sges.len() as u32))) // at most a stride
    }

    /// Copies the data of the next send into it, piece by piece. Of `request`, only the kinds of its segments matter.
    #[inline]
    pub fn copy_inline<'a>(
        &mut self,
        request: &SendRequest,
        pieces: impl IntoIterator<Item = &'a [u8]>,
    ) -> Result<SendData, PostError> {
        let entry = self.0.next()?;
        let data = request.data_offset();
        let room = self.0.stride() - data;
        let mut filled = 0;
        for piece in pieces {
            if piece.len() > room - filled {
                return Err(PostError::InlineTooLong);
            }
            self.0.memory.write(entry + data + filled, piece);
            filled += piece.len();
        }
        Ok(SendData(Data::Inline(filled as u32))) // at most a stride
    }

    /// Completes the next send, whose data has been written. The RNIC sees it after [`publish`](Self::publish).
    #[inline]
    pub fn push(&mut self, request: &SendRequest, data: SendData) -> Result<(), PostError> {
        let entry = self.0.next()?;
        let (inline, num_sge, inline_bytes) = match data.0 {
            Data::Gathered(entries) => (0, entries as u8, request.before_bytes), // at most 64 in the largest stride
            Data::Inline(bytes) => (SEND_INLINE, 0, bytes),
        };
        let header = SendHeader {
            opcode: request.opcode,
            flags: request.flags & !SEND_INLINE | inline,
            num_sge,
            reserved: 0,
            imm_or_inv: request.imm_or_inv,
            wr_id: request.wr_id,
            remote_addr: request.remote_addr,
            rkey: request.rkey,
            inline_bytes,
        };
        self.0.memory.write(entry, header.as_bytes());
        let (target, operands) = (request.target.segment(), request.operands.segment());
        if !target.is_empty() {
            self.0.memory.write(entry + SendHeader::SIZE, target);
        }
        if !operands.is_empty() {
            self.0.memory.write(entry + SendHeader::SIZE + target.len(), operands);
        }
        self.0.advance();
        Ok(())
    }

    /// Takes back all sends that have not been published.
    pub fn rollback(&mut self) {
        self.0.rollback();
    }

    /// Shows all posted entries to the RNIC. Tells whether there were new ones; then the doorbell must be marked.
    #[inline]
    pub fn publish(&mut self) -> bool {
        self.0.publish()
    }

    /// Frees the entries below `consumer`, as [`Cqe::consumer`](vrdma_abi::ring::Cqe::consumer) of a completion of this queue tells.
    #[inline]
    pub fn complete(&mut self, consumer: u32) {
        self.0.complete(consumer);
    }

    /// Index of the entry that is posted next.
    #[inline]
    pub fn producer(&self) -> u32 {
        self.0.producer
    }

    /// Entries that can be posted now.
    #[inline]
    pub fn free(&self) -> u32 {
        self.0.free()
    }

    /// Index of the first entry that is not known to be done.
    #[inline]
    pub fn consumer(&self) -> u32 {
        self.0.consumer
    }

    /// Entries that could be posted now, were there no [limit](Self::set_limit).
    pub fn unused(&self) -> u32 {
        self.0.entries() - self.0.pending()
    }

    /// From now on so many entries may be in use at once, or all of them if that is less.
    pub fn set_limit(&mut self, limit: u32) {
        self.0.limit = limit.min(self.0.entries());
    }

    /// Empties the queue, after the RNIC has moved its QP to RESET.
    pub fn reset(&mut self) {
        self.0.reset();
    }
}
