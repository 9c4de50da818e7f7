use masq_driver::{Access, DriverError, QpType, WorkQueueAttr};
use masq_types::{Lkey, Rkey};
use masq_wire::ImmDt;
use vrdma_abi::control::{
    ACCESS_LOCAL_WRITE, ACCESS_MW_BIND, ACCESS_REMOTE_ATOMIC, ACCESS_REMOTE_READ, ACCESS_REMOTE_WRITE,
    ACCESS_ZERO_BASED, QP_TYPE_GSI, QP_TYPE_RC, QP_TYPE_UC, QP_TYPE_UD, QP_TYPE_XRC_INI, QP_TYPE_XRC_TGT,
};
use vrdma_abi::ring::{
    AtomicSegment, BindSegment, RecvHeader, RegSegment, SEND_AFTER_CHUNK, SEND_AFTER_SQ, SEND_FENCE,
    SEND_INLINE, SEND_OP_SEND, SEND_OP_SEND_IMM, SEND_OP_STEER, SEND_OP_WAIT, SEND_SIGNALED, SEND_SOLICITED,
    SEND_STEERED, STRIDE_SHIFT_MAX, STRIDE_SHIFT_MIN, SendHeader, WorkHeader, XrcSegment, recv_stride_shift,
    send_stride_shift,
};
use zerocopy::{FromBytes, IntoBytes};

use super::pages::RingPages;
use crate::limits;
use crate::memory::{GuestMemory, Span};
use crate::transport::{Bind, KeyChange, RecvWork, Registration, SendOp, SendWork, Sge, Status};

const PRODUCER: usize = std::mem::offset_of!(WorkHeader, producer);
const TAKEN: usize = std::mem::offset_of!(WorkHeader, taken);
const PATHS: usize = std::mem::offset_of!(WorkHeader, paths);
const MOST_PATHS: usize = std::mem::offset_of!(WorkHeader, most_paths);
const SPLITS: usize = std::mem::offset_of!(WorkHeader, splits);
const SGE_BYTES: usize = vrdma_abi::ring::Sge::SIZE;

/// The ring can no longer be read: the guest announced more entries than it has, or its memory has gone. The queue
/// pair must fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingBroken;

/// What the two kinds of work queues share.
///
/// Memory order: the guest stores `producer` with release behind the entries; it is loaded here with acquire, so the
/// entries below it are whole. They stay so until a completion names them, unless the guest is hostile; hence the copy.
#[derive(Debug)]
struct WorkRing {
    pages: RingPages,
    /// Index of the next entry to take.
    consumer: u32,
    /// The guest's index as last read; re-read when it is used up.
    producer: u32,
}

impl WorkRing {
    fn new(what: &str, attr: WorkQueueAttr, memory: &GuestMemory) -> Result<Self, DriverError> {
        let WorkQueueAttr { entries, stride_shift, ring, .. } = attr;
        if !entries.is_power_of_two() || entries > limits::MAX_QP_WR {
            let max = limits::MAX_QP_WR;
            return Err(DriverError::Invalid(format!("{what}: entries must be a power of two up to {max}")));
        }
        if !(STRIDE_SHIFT_MIN..=STRIDE_SHIFT_MAX).contains(&stride_shift) {
            return Err(DriverError::Invalid(format!("{what}: stride 2^{stride_shift} is not supported")));
        }
        let pages = RingPages::new(what, ring, entries, stride_shift, memory)?;
        Ok(Self { pages, consumer: 0, producer: 0 })
    }

    /// Whether the guest has posted what was not taken yet.
    fn has_work(&mut self, memory: &GuestMemory) -> Result<bool, RingBroken> {
        if self.consumer == self.producer {
            self.load_producer(memory)?;
        }
        Ok(self.consumer != self.producer)
    }

    fn load_producer(&mut self, memory: &GuestMemory) -> Result<(), RingBroken> {
        let producer = self.pages.header(memory).and_then(|h| h.load_u32(PRODUCER)).ok_or(RingBroken)?;
        if producer.wrapping_sub(self.consumer) > self.pages.entries() {
            return Err(RingBroken);
        }
        self.producer = producer;
        Ok(())
    }

    /// Entries that were posted and not taken, as far as is known without another look.
    fn left(&self) -> u32 {
        self.producer.wrapping_sub(self.consumer)
    }

    /// The next entry, which is taken.
    fn take<'m>(&mut self, memory: &'m GuestMemory) -> Result<Option<Span<'m>>, RingBroken> {
        if !self.has_work(memory)? {
            return Ok(None);
        }
        let entry = self.pages.entry(memory, self.consumer).ok_or(RingBroken)?;
        self.consumer = self.consumer.wrapping_add(1);
        Ok(Some(entry))
    }

    /// A reset queue pair starts again at index 0, as its owner does.
    fn reset(&mut self) {
        self.consumer = 0;
        self.producer = 0;
    }
}

/// What an entry of the send queue of a queue pair with several paths is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// A request.
    Request,
    /// What is behind it starts when the chunks below this index are done.
    Wait {
        /// The index, in the chunk ring.
        until: u32,
    },
}

/// The send queue of a queue pair.
#[derive(Debug)]
pub struct SendRing {
    ring: WorkRing,
    qp_type: QpType,
    /// The guest's kernel owns it, and may register regions.
    kernel: bool,
    max_sge: usize,
    max_inline_bytes: usize,
}

impl SendRing {
    /// A send queue with an empty ring, of a queue pair of this type.
    pub fn new(
        what: &str,
        qp_type: QpType,
        kernel: bool,
        attr: WorkQueueAttr,
        max_inline_bytes: u16,
        memory: &GuestMemory,
    ) -> Result<Self, DriverError> {
        let (max_sge, stride) = (attr.max_sge, attr.stride_shift);
        if max_sge > limits::MAX_SEND_SGE || max_inline_bytes > limits::MAX_INLINE_BYTES {
            let refusal =
                format!("{what}: {max_sge} entries and {max_inline_bytes} inline bytes are too many");
            return Err(DriverError::Invalid(refusal));
        }
        if send_stride_shift(abi_type(qp_type), max_sge.into(), max_inline_bytes.into())
            .is_none_or(|needed| needed > stride)
        {
            return Err(DriverError::Invalid(format!("{what}: its entries do not fit its stride")));
        }
        let ring = WorkRing::new(what, attr, memory)?;
        let (max_sge, max_inline_bytes) = (max_sge.into(), max_inline_bytes.into());
        Ok(Self { ring, qp_type, kernel, max_sge, max_inline_bytes })
    }

    /// Starts again at index 0.
    pub fn reset(&mut self) {
        self.ring.reset();
    }

    /// Bytes between two entries, as a power of two.
    pub fn stride_shift(&self) -> u8 {
        self.ring.pages.stride_shift()
    }

    /// Whether the guest has posted something that has not been taken.
    pub fn has_work(&mut self, memory: &GuestMemory) -> Result<bool, RingBroken> {
        self.ring.has_work(memory)
    }

    /// Takes the next request, if there is one. A request that makes no sense has a [`SendWork::defect`].
    pub fn take(&mut self, memory: &GuestMemory, work: &mut SendWork) -> Result<bool, RingBroken> {
        let Some((head, entry)) = self.take_head(memory, work)? else { return Ok(false) };
        self.read(&head, entry, work);
        Ok(true)
    }

    /// Takes the next entry of a queue pair with several paths, if there is one.
    #[inline]
    pub fn take_of_group(
        &mut self,
        memory: &GuestMemory,
        work: &mut SendWork,
    ) -> Result<Option<Entry>, RingBroken> {
        let Some((mut head, entry)) = self.take_head(memory, work)? else { return Ok(None) };
        let plain = head.flags == 0 && head.num_sge == 0 && head.reserved == 0;
        if head.opcode == SEND_OP_WAIT && plain {
            return Ok(Some(Entry::Wait { until: head.rkey }));
        }
        if head.flags & SEND_STEERED != 0 && matches!(head.opcode, SEND_OP_SEND | SEND_OP_SEND_IMM) {
            head.flags &= !SEND_STEERED;
            work.steered = true;
        }
        self.read(&head, entry, work);
        if work.op == SendOp::Read || (work.op == SendOp::WriteImm && !work.inline) {
            work.before_bytes = head.inline_bytes;
        }
        Ok(Some(Entry::Request))
    }

    /// Copies the next entry's header, and what of it every request has into `work`.
    fn take_head<'m>(
        &mut self,
        memory: &'m GuestMemory,
        work: &mut SendWork,
    ) -> Result<Option<(SendHeader, Span<'m>)>, RingBroken> {
        let Some(entry) = self.ring.take(memory)? else { return Ok(None) };
        let mut head = [0; SendHeader::SIZE];
        entry.read(&mut head);
        let head = SendHeader::read_from_bytes(&head).map_err(|_| RingBroken)?;
        work.wr_id = head.wr_id;
        work.next_index = self.ring.consumer;
        work.is_chunk = false;
        work.before_bytes = 0;
        work.steered = false;
        work.signalled = head.flags & SEND_SIGNALED != 0;
        work.solicited = head.flags & SEND_SOLICITED != 0;
        work.fence = head.flags & SEND_FENCE != 0;
        work.inline = head.flags & SEND_INLINE != 0;
        work.imm = ImmDt(head.imm_or_inv.to_ne_bytes());
        work.inv = Rkey(head.imm_or_inv);
        work.srqn = 0;
        work.key_change = None;
        work.remote_addr = head.remote_addr;
        work.rkey = Rkey(head.rkey);
        work.compare_add = 0;
        work.swap = 0;
        work.inline_data.clear();
        work.sges.clear();
        Ok(Some((head, entry)))
    }

    /// Judges a request by its copied header, and copies the rest of it.
    fn read(&self, head: &SendHeader, entry: Span<'_>, work: &mut SendWork) {
        work.op = SendOp::from_abi(head.opcode).unwrap_or(SendOp::Send);
        work.defect = self.judge(head).or_else(|| self.read_body(head, entry, work));
        if work.defect.is_some() {
            work.inline = false;
            work.inline_data.clear();
            work.sges.clear();
        }
    }

    /// Judges the copied header.
    fn judge(&self, head: &SendHeader) -> Option<Status> {
        const FLAGS: u8 = SEND_SIGNALED | SEND_SOLICITED | SEND_FENCE | SEND_INLINE;
        let Some(op) = SendOp::from_abi(head.opcode) else { return Some(Status::LocQpOpErr) };
        if head.flags & !FLAGS != 0 || head.reserved != 0 {
            return Some(Status::LocQpOpErr);
        }
        if head.flags & SEND_INLINE != 0 {
            return match (op.is_fetch() || op.is_local(), head.num_sge) {
                (false, 0) if head.inline_bytes as usize <= self.max_inline_bytes => None,
                (false, 0) => Some(Status::LocLenErr),
                _ => Some(Status::LocQpOpErr),
            };
        }
        let max_sge = match op {
            SendOp::RegMr if !self.kernel => return Some(Status::LocQpOpErr),
            // The one entry of an atomic needs no allowance.
            SendOp::CmpSwap | SendOp::FetchAdd => self.max_sge.max(1),
            SendOp::LocalInv | SendOp::BindMw | SendOp::RegMr => 0,
            _ => self.max_sge,
        };
        (usize::from(head.num_sge) > max_sge).then_some(Status::LocQpOpErr)
    }

    /// Copies what follows a header that has been judged.
    fn read_body(&self, head: &SendHeader, entry: Span<'_>, work: &mut SendWork) -> Option<Status> {
        let mut at = SendHeader::SIZE;
        if self.read_segments(head, entry, &mut at, work).is_none() {
            return Some(Status::LocQpOpErr);
        }
        if work.inline {
            let Some(data) = entry.part(at, head.inline_bytes as usize) else {
                return Some(Status::LocQpOpErr);
            };
            data.append_to(&mut work.inline_data);
            return None;
        }
        read_sges(entry, at, head.num_sge.into(), &mut work.sges)
    }

    /// Copies the segments between header and data, and moves `at` behind them. `None` when one does not fit the entry or makes no sense.
    fn read_segments(
        &self,
        head: &SendHeader,
        entry: Span<'_>,
        at: &mut usize,
        work: &mut SendWork,
    ) -> Option<()> {
        if self.qp_type == QpType::XrcIni {
            let segment: XrcSegment = read_segment(entry, at)?;
            if segment.srqn >> 24 != 0 || segment.reserved != [0; 3] {
                return None;
            }
            work.srqn = segment.srqn;
        }
        if matches!(self.qp_type, QpType::Ud | QpType::Gsi) {
            work.datagram = read_segment(entry, at)?;
        }
        match work.op {
            SendOp::CmpSwap | SendOp::FetchAdd => {
                let segment: AtomicSegment = read_segment(entry, at)?;
                (work.compare_add, work.swap) = (segment.compare_add, segment.swap);
            }
            SendOp::LocalInv => work.key_change = Some(KeyChange::Invalidate(work.inv)),
            SendOp::BindMw => {
                const RIGHTS: u32 =
                    ACCESS_REMOTE_WRITE | ACCESS_REMOTE_READ | ACCESS_REMOTE_ATOMIC | ACCESS_ZERO_BASED;
                let BindSegment { mr_lkey, access, addr, length, reserved } = read_segment(entry, at)?;
                if reserved != 0 || access & !RIGHTS != 0 {
                    return None;
                }
                let (key, lkey, access) = (Rkey(head.rkey), Lkey(mr_lkey), access_of(access)?);
                work.key_change = Some(KeyChange::Bind(Bind { key, lkey, access, addr, length }));
            }
            SendOp::RegMr => {
                let RegSegment { iova, length, access, page_shift, list } = read_segment(entry, at)?;
                let (key, access) = (Rkey(head.rkey), access_of(access)?);
                let registration = Registration { key, access, iova, length, page_shift, list };
                work.key_change = Some(KeyChange::Register(registration));
            }
            _ => {}
        }
        Some(())
    }
}

/// Copies a segment at `at`, and moves that behind it.
fn read_segment<T: FromBytes + IntoBytes>(entry: Span<'_>, at: &mut usize) -> Option<T> {
    let mut segment = T::new_zeroed();
    let bytes = segment.as_mut_bytes();
    let part = entry.part(*at, bytes.len())?;
    *at += part.read(bytes);
    Some(segment)
}

/// Rights by their bits. Optional ones (`IBV_ACCESS_OPTIONAL_RANGE`) mean nothing here; all others must be known.
fn access_of(bits: u32) -> Option<Access> {
    const OPTIONAL: u32 = !0 << 20;
    const KNOWN: u32 = ACCESS_LOCAL_WRITE
        | ACCESS_REMOTE_WRITE
        | ACCESS_REMOTE_READ
        | ACCESS_REMOTE_ATOMIC
        | ACCESS_MW_BIND
        | ACCESS_ZERO_BASED;
    let has = |bit| bits & bit != 0;
    (bits & !(KNOWN | OPTIONAL) == 0).then(|| Access {
        local_write: has(ACCESS_LOCAL_WRITE),
        remote_write: has(ACCESS_REMOTE_WRITE),
        remote_read: has(ACCESS_REMOTE_READ),
        remote_atomic: has(ACCESS_REMOTE_ATOMIC),
        mw_bind: has(ACCESS_MW_BIND),
        zero_based: has(ACCESS_ZERO_BASED),
    })
}

/// The chunk ring of a queue pair with several paths.
#[derive(Debug)]
pub struct ChunkRing {
    ring: WorkRing,
    max_sge: usize,
}

/// What must be done before a chunk starts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct After {
    /// The chunks below this index.
    pub chunks: Option<u32>,
    /// The entries of the send queue below this index.
    pub requests: Option<u32>,
}

impl ChunkRing {
    /// An empty chunk ring. Its entries are those of a send queue that has no inline data.
    pub fn new(what: &str, attr: WorkQueueAttr, memory: &GuestMemory) -> Result<Self, DriverError> {
        let SendRing { ring, max_sge, .. } = SendRing::new(what, QpType::Rc, false, attr, 0, memory)?;
        Ok(Self { ring, max_sge })
    }

    /// Starts again at index 0, and is not used.
    pub fn reset(&mut self) {
        self.ring.reset();
    }

    /// How many entries it has.
    pub fn entries(&self) -> u32 {
        self.ring.pages.entries()
    }

    /// Index of the next entry to take.
    pub fn taken(&self) -> u32 {
        self.ring.consumer
    }

    /// Whether there is a chunk that has not been taken.
    pub fn has_work(&mut self, memory: &GuestMemory) -> Result<bool, RingBroken> {
        self.ring.has_work(memory)
    }

    /// Takes the next chunk, if there is one. A chunk that makes no sense has a [`SendWork::defect`].
    pub fn take(&mut self, memory: &GuestMemory, work: &mut SendWork) -> Result<Option<After>, RingBroken> {
        let Some(entry) = self.ring.take(memory)? else { return Ok(None) };
        let mut head = [0; SendHeader::SIZE];
        entry.read(&mut head);
        let head = SendHeader::read_from_bytes(&head).map_err(|_| RingBroken)?;
        work.make_chunk(head.wr_id, self.ring.consumer, head.remote_addr, Rkey(head.rkey));
        let has = |flag| head.flags & flag != 0;
        let sound = head.flags & !(SEND_AFTER_CHUNK | SEND_AFTER_SQ) == 0
            && head.reserved == 0
            && usize::from(head.num_sge) <= self.max_sge;
        work.defect = match chunk_op(head.opcode) {
            Some(op) if sound => {
                work.op = op;
                read_sges(entry, SendHeader::SIZE, head.num_sge.into(), &mut work.sges)
            }
            _ => Some(Status::LocQpOpErr),
        };
        Ok(Some(After {
            chunks: has(SEND_AFTER_CHUNK).then_some(head.imm_or_inv),
            requests: has(SEND_AFTER_SQ).then_some(head.wr_id as u32),
        }))
    }

    /// Tells the guest that the chunks below `index` are done.
    pub fn publish_done(&self, memory: &GuestMemory, index: u32) -> Result<(), RingBroken> {
        self.publish(memory, TAKEN, index)
    }

    /// How many paths the guest wants chunks to take at most; 0 means all.
    pub fn most_paths(&self, memory: &GuestMemory) -> Result<u32, RingBroken> {
        self.ring.pages.header(memory).and_then(|h| h.load_u32(MOST_PATHS)).ok_or(RingBroken)
    }

    /// Tells the guest how many paths are used, and what may be split besides what always may (SPLIT_).
    pub fn publish_paths(&self, memory: &GuestMemory, paths: u32, splits: u32) -> Result<(), RingBroken> {
        self.publish(memory, SPLITS, splits)?;
        self.publish(memory, PATHS, paths)
    }

    fn publish(&self, memory: &GuestMemory, field: usize, value: u32) -> Result<(), RingBroken> {
        let stored = self.ring.pages.header(memory).is_some_and(|h| h.store_u32(field, value));
        if stored { Ok(()) } else { Err(RingBroken) }
    }
}

/// What a chunk with this opcode asks for.
fn chunk_op(opcode: u8) -> Option<SendOp> {
    match opcode {
        SEND_OP_STEER => Some(SendOp::Steer),
        _ => SendOp::from_abi(opcode).filter(|op| matches!(op, SendOp::Write | SendOp::Read)),
    }
}

/// A receive queue, of one queue pair or shared.
#[derive(Debug)]
pub struct RecvRing {
    ring: WorkRing,
    max_sge: usize,
}

impl RecvRing {
    /// A receive queue with an empty ring.
    pub fn new(what: &str, attr: WorkQueueAttr, memory: &GuestMemory) -> Result<Self, DriverError> {
        let (max_sge, stride) = (attr.max_sge, attr.stride_shift);
        if max_sge > limits::MAX_RECV_SGE {
            return Err(DriverError::Invalid(format!(
                "{what}: {max_sge} scatter/gather entries are too many"
            )));
        }
        if recv_stride_shift(max_sge.into()).is_none_or(|needed| needed > stride) {
            return Err(DriverError::Invalid(format!("{what}: its entries do not fit its stride")));
        }
        Ok(Self { ring: WorkRing::new(what, attr, memory)?, max_sge: max_sge.into() })
    }

    /// Starts again at index 0.
    pub fn reset(&mut self) {
        self.ring.reset();
    }

    /// Whether fewer than `limit` requests are left.
    pub fn has_fewer_than(&mut self, limit: u32, memory: &GuestMemory) -> Result<bool, RingBroken> {
        if self.ring.left() < limit {
            self.ring.load_producer(memory)?;
        }
        Ok(self.ring.left() < limit)
    }

    /// Tells the guest how many requests have been taken, so that it may reuse their entries.
    pub fn publish_taken(&self, memory: &GuestMemory) -> Result<(), RingBroken> {
        let stored = self.ring.pages.header(memory).is_some_and(|h| h.store_u32(TAKEN, self.ring.consumer));
        if stored { Ok(()) } else { Err(RingBroken) }
    }

    /// Takes the next request, if there is one. A request that makes no sense has a [`RecvWork::defect`].
    pub fn take(&mut self, memory: &GuestMemory, work: &mut RecvWork) -> Result<bool, RingBroken> {
        let Some(entry) = self.ring.take(memory)? else { return Ok(false) };
        let mut head = [0; RecvHeader::SIZE];
        entry.read(&mut head);
        let head = RecvHeader::read_from_bytes(&head).map_err(|_| RingBroken)?;
        work.wr_id = head.wr_id;
        work.next_index = self.ring.consumer;
        work.placed.clear();
        work.failure = None;
        work.sges.clear();
        work.defect = if head.num_sge as usize > self.max_sge || head.reserved != 0 {
            Some(Status::LocQpOpErr)
        } else {
            read_sges(entry, RecvHeader::SIZE, head.num_sge as usize, &mut work.sges)
        };
        Ok(true)
    }
}

fn abi_type(qp_type: QpType) -> u8 {
    match qp_type {
        QpType::Rc => QP_TYPE_RC,
        QpType::Uc => QP_TYPE_UC,
        QpType::Ud => QP_TYPE_UD,
        QpType::Gsi => QP_TYPE_GSI,
        QpType::XrcIni => QP_TYPE_XRC_INI,
        QpType::XrcTgt => QP_TYPE_XRC_TGT,
    }
}

/// Copies `count` scatter/gather entries at `at`; a defect when the entry is too short for them.
fn read_sges(entry: Span<'_>, at: usize, count: usize, sges: &mut Vec<Sge>) -> Option<Status> {
    let mut bytes = [0; SGE_BYTES];
    for i in 0..count {
        let Some(part) = entry.part(at + i * SGE_BYTES, SGE_BYTES) else {
            sges.clear();
            return Some(Status::LocQpOpErr);
        };
        part.read(&mut bytes);
        if let Ok(sge) = vrdma_abi::ring::Sge::read_from_bytes(&bytes) {
            sges.push(Sge { addr: sge.addr, length: sge.length, lkey: Lkey(sge.lkey) });
        }
    }
    None
}
