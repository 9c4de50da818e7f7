//! Rings in guest memory (ring format 1).
//!
//! A ring is a list of pages that need not be contiguous. It starts with a header that takes one
//! stride; entry `i` stands `(1 + i) * stride` bytes from the start. Strides are powers of two from 64 to 1024,
//! so that no entry crosses a page. Indexes are free-running 32-bit counters; the entry is the index
//! modulo the number of entries, a power of two.
//!
//! # Work queues
//!
//! The guest writes entries, then stores [`WorkHeader::producer`] with release; the RNIC loads it with
//! acquire, copies an entry once, and uses only the copy. Completions tell how far the RNIC has come
//! ([`Cqe::consumer`]): the guest may reuse entries below it. A send entry is a
//! [`SendHeader`], then the segment of its QP's type, if it has one ([`DatagramSegment`] for UD and GSI, [`XrcSegment`] for XRC initiators), then that of
//! its opcode, if it has one ([`AtomicSegment`], [`BindSegment`], [`RegSegment`]), then `num_sge` times [`Sge`],
//! or, with [`SEND_INLINE`], `inline_bytes` bytes of data. A receive entry is a [`RecvHeader`], then `num_sge` times [`Sge`].
//!
//! The entries of a shared receive queue are copied when a queue pair takes them, so they may be reused at once: the RNIC stores how far
//! it has come in [`WorkHeader::taken`] with release, and completions ([`CQE_SRQ`]) say nothing of it.
//!
//! A received datagram begins with 40 bytes of GRH area (IBTA Vol 1 §11.4.1.2, RoCEv2 Annex A17 §A17.4.5.2): for IPv6 the IP header, for IPv4 20
//! bytes of zeros and the IP header, both with virtual addresses. They count in [`Cqe::byte_len`].
//!
//! # Multipath
//!
//! A queue pair with [`QP_MULTIPATH`](crate::control::QP_MULTIPATH) uses several paths of the underlay. Behind it stand hidden queue pairs of the
//! RNIC, one a path, and a second work queue of send entries, the **chunk ring**, with a doorbell in common with the send queue. The guest cuts large
//! messages: their chunks go into the chunk ring, from which every path takes the next one when it has room; the send queue gets a
//! [`SEND_OP_WAIT`] for those chunks, and then the end of the message as an ordinary request. So completions come in the order of the requests, and a message's last
//! bytes come last.
//!
//! - A chunk is an [`SEND_OP_RDMA_WRITE`], [`SEND_OP_RDMA_READ`] or [`SEND_OP_STEER`] and never writes a completion. Chunks start in the order of the ring and
//!   are done in any order; one that must not start yet ([`SEND_AFTER_CHUNK`], [`SEND_AFTER_SQ`]) holds up those behind it. Other flags are not
//!   allowed.
//! - [`WorkHeader::taken`] of the chunk ring is the index of the first chunk that is not done: the RNIC stores it with release, and entries below it may be
//!   reused. Indexes are compared by their wrapping difference.
//! - At the move to RTR the RNIC stores [`WorkHeader::paths`] with release, before it answers. With 1 (the peer is on the same host, or has one path, or does not
//!   know the protocol) the guest puts nothing into the chunk ring. A guest that wants fewer than there are stores [`WorkHeader::most_paths`] before; then the RNIC
//!   answers no more than that. It is about this end's chunks: what the peer sends may come by all. Hosts before version 1.4 look at nothing there.
//! - A chunk that fails fails the queue pair: the first request of the send queue that is not done completes with the chunk's status, all others are flushed.
//!
//! # Completion queues
//!
//! Entries are 64 bytes. The RNIC writes one, then stores its last word (status, opcode, flags, phase) with release.
//! On pass `n` over the ring, counted from 0, `phase` is `1 - n % 2`: an entry at index `i` is valid when
//! its phase equals `((i / entries) & 1) ^ 1`. The guest loads the last word with acquire, reads the rest, and stores
//! [`CqHeader::consumer`] with release when it has done so. When the ring is full, the queue is in error.
//!
//! Arming, guest side: store [`CqHeader::arm`] with release; full fence; poll once more. RNIC side, after an entry:
//! full fence; load `arm`; if the entry calls for an event, exchange `arm` with 0, and if it was not 0 then send one [`CompEvent`](crate::event::CompEvent).
//! The two fences make sure that the guest sees the entry or the RNIC sees the arm.

use crate::control::{QP_TYPE_GSI, QP_TYPE_UD, QP_TYPE_XRC_INI};

abi_constants! {
    /// Bytes of a completion queue entry.
    pub const CQE_BYTES: u32 = 64;
    /// Smallest stride of a work queue, as a power of two.
    pub const STRIDE_SHIFT_MIN: u8 = 6;
    /// Largest stride of a work queue, as a power of two.
    pub const STRIDE_SHIFT_MAX: u8 = 10;
    /// Send opcodes: the values of enum ibv_wr_opcode. RDMA write.
    pub const SEND_OP_RDMA_WRITE: u8 = 0;
    /// RDMA write with immediate data.
    pub const SEND_OP_RDMA_WRITE_IMM: u8 = 1;
    /// Send.
    pub const SEND_OP_SEND: u8 = 2;
    /// Send with immediate data.
    pub const SEND_OP_SEND_IMM: u8 = 3;
    /// RDMA read.
    pub const SEND_OP_RDMA_READ: u8 = 4;
    /// Atomic compare and swap.
    pub const SEND_OP_CMP_SWAP: u8 = 5;
    /// Atomic fetch and add.
    pub const SEND_OP_FETCH_ADD: u8 = 6;
    /// Local invalidate: imm_or_inv is the key of a window of type 2 or of a region with MR_FAST_REG.
    pub const SEND_OP_LOCAL_INV: u8 = 7;
    /// Bind a memory window: rkey is its key from then on.
    pub const SEND_OP_BIND_MW: u8 = 8;
    /// Send with remote invalidate of the key imm_or_inv.
    pub const SEND_OP_SEND_INV: u8 = 9;
    /// Fast registration (IB_WR_REG_MR): rkey is the key of the region from then on. Only QPs of a context with CONTEXT_KERNEL.
    pub const SEND_OP_REG_MR: u8 = 0x20;
    /// In the send queue of a queue pair with QP_MULTIPATH: what is behind it starts when the chunks below the index rkey of the chunk ring are
    /// done. It never writes a completion: what it stands for is told by the request behind it. Since version 1.3.
    pub const SEND_OP_WAIT: u8 = 0x80;
    /// In a chunk ring: data of a message that the peer places into one of its receives. rkey is that receive's number, counted from 0 at RTS over the
    /// requests of the send queue that take one (sends, and writes with immediate data); remote_addr is the offset in the message. The chunks of a
    /// message have each byte before its end once, and are done before the end starts; otherwise the peer refuses it. It also refuses a number that is 64 or
    /// more beyond that of the first receive whose message it does not have whole. Only with FEATURE_STEER. Since version 1.3.
    pub const SEND_OP_STEER: u8 = 0x81;
    /// The request writes a completion even if it succeeds.
    pub const SEND_SIGNALED: u8 = 1;
    /// The peer's completion is solicited.
    pub const SEND_SOLICITED: u8 = 2;
    /// Wait for earlier reads and atomics of this QP.
    pub const SEND_FENCE: u8 = 4;
    /// The data stands in the entry.
    pub const SEND_INLINE: u8 = 8;
    /// In a chunk ring: the chunk starts when the chunks below the index imm_or_inv of that ring are done.
    pub const SEND_AFTER_CHUNK: u8 = 16;
    /// In a chunk ring: the chunk starts when the entries of the send queue below the index in the low half of wr_id are done.
    pub const SEND_AFTER_SQ: u8 = 32;
    /// In a send queue, with SEND_OP_SEND and SEND_OP_SEND_IMM: the end of a message whose beginning chunks have placed (SEND_OP_STEER). remote_addr is
    /// the offset of its data in the message; the peer's completion tells the length of the whole.
    pub const SEND_STEERED: u8 = 64;
    /// WorkHeader::splits: RDMA writes with immediate data. Their chunks are SEND_OP_RDMA_WRITE, and the end is a SEND_OP_RDMA_WRITE_IMM with
    /// SendHeader::inline_bytes; the peer's completion tells the length of the whole.
    pub const SPLIT_WRITE_IMM: u32 = 1;
    /// Completion opcodes: the values of enum ibv_wc_opcode.
    pub const WC_SEND: u8 = 0;
    /// RDMA write.
    pub const WC_RDMA_WRITE: u8 = 1;
    /// RDMA read.
    pub const WC_RDMA_READ: u8 = 2;
    /// Compare and swap.
    pub const WC_COMP_SWAP: u8 = 3;
    /// Fetch and add.
    pub const WC_FETCH_ADD: u8 = 4;
    /// Bind a memory window.
    pub const WC_BIND_MW: u8 = 5;
    /// Local invalidate.
    pub const WC_LOCAL_INV: u8 = 6;
    /// Fast registration (IB_WC_REG_MR has another value in some kernels: the module translates).
    pub const WC_REG_MR: u8 = 8;
    /// A received send.
    pub const WC_RECV: u8 = 128;
    /// A received RDMA write with immediate data.
    pub const WC_RECV_RDMA_WITH_IMM: u8 = 129;
    /// Completion status: the values of enum ibv_wc_status.
    pub const WC_SUCCESS: u8 = 0;
    /// Local length error.
    pub const WC_LOC_LEN_ERR: u8 = 1;
    /// Local QP operation error.
    pub const WC_LOC_QP_OP_ERR: u8 = 2;
    /// Local protection error.
    pub const WC_LOC_PROT_ERR: u8 = 4;
    /// Work request flushed.
    pub const WC_WR_FLUSH_ERR: u8 = 5;
    /// Memory window bind error.
    pub const WC_MW_BIND_ERR: u8 = 6;
    /// Bad response.
    pub const WC_BAD_RESP_ERR: u8 = 7;
    /// Local access error.
    pub const WC_LOC_ACCESS_ERR: u8 = 8;
    /// Remote invalid request.
    pub const WC_REM_INV_REQ_ERR: u8 = 9;
    /// Remote access error.
    pub const WC_REM_ACCESS_ERR: u8 = 10;
    /// Remote operation error.
    pub const WC_REM_OP_ERR: u8 = 11;
    /// Transport retry counter exceeded.
    pub const WC_RETRY_EXC_ERR: u8 = 12;
    /// RNR retry counter exceeded.
    pub const WC_RNR_RETRY_EXC_ERR: u8 = 13;
    /// Remote aborted.
    pub const WC_REM_ABORT_ERR: u8 = 16;
    /// Fatal error.
    pub const WC_FATAL_ERR: u8 = 19;
    /// General error.
    pub const WC_GENERAL_ERR: u8 = 21;
    /// Cqe::flags: imm_or_inv holds immediate data.
    pub const CQE_WITH_IMM: u8 = 1;
    /// Cqe::flags: the entry belongs to a receive queue.
    pub const CQE_RECV: u8 = 2;
    /// Cqe::flags: the received message was solicited (or the entry reports an error).
    pub const CQE_SOLICITED: u8 = 4;
    /// Cqe::flags: the received data begins with a GRH (always so for datagrams).
    pub const CQE_GRH: u8 = 8;
    /// Cqe::flags: imm_or_inv holds a key that the peer has invalidated.
    pub const CQE_WITH_INV: u8 = 16;
    /// Cqe::flags: the receive came from a shared receive queue.
    pub const CQE_SRQ: u8 = 32;
    /// Cqe::flags: the GRH's network header is IPv4.
    pub const CQE_IPV4: u8 = 64;
    /// DatagramSegment::qkey: with this bit the QP's own Q_Key is sent instead (IBTA Vol 1 §10.2.5).
    pub const QKEY_OF_QP: u32 = 1 << 31;
    /// CqHeader::arm: no event wanted.
    pub const ARM_NONE: u32 = 0;
    /// CqHeader::arm: an event for the next solicited or failed completion.
    pub const ARM_SOLICITED: u32 = 1;
    /// CqHeader::arm: an event for the next completion.
    pub const ARM_NEXT: u32 = 2;
}

abi_structs! {
    /// First stride of a send or receive queue.
    pub struct WorkHeader {
        /// Index of the next entry that the guest will write; only the guest stores it.
        pub producer: u32,
        /// In a shared receive queue, index of the next entry that the RNIC will take; in a chunk ring, index of the first chunk that is not
        /// done. Only the RNIC stores it.
        pub taken: u32,
        /// In a chunk ring, from RTR on: how many paths are used, at least 1. With 1 the ring is not used. Only the RNIC stores it.
        pub paths: u32,
        /// In a chunk ring: how many paths may carry chunks at a time; 0: as many as there are. Only the guest stores it, before RTR. Since version 1.4.
        pub most_paths: u32,
        /// In a chunk ring, from RTR on: what can be split towards this peer besides WRITEs, READs and, with FEATURE_STEER, SENDs: SPLIT_ bits, of which
        /// those that the guest does not know mean nothing. Only the RNIC stores it, before `paths`. Since version 1.4.
        pub splits: u32,
        /// Zero.
        pub reserved: [u32; 11],
    }

    /// First stride of a completion queue.
    pub struct CqHeader {
        /// Index of the next entry that the guest will read; only the guest stores it.
        pub consumer: u32,
        /// ARM_.
        pub arm: u32,
        /// Zero.
        pub reserved: [u32; 14],
    }

    /// A scatter/gather entry.
    pub struct Sge {
        /// Address within the region (its iova counts).
        pub addr: u64,
        /// Bytes.
        pub length: u32,
        /// The region.
        pub lkey: u32,
    }

    /// Head of a send entry.
    pub struct SendHeader {
        /// SEND_OP_.
        pub opcode: u8,
        /// SEND_ bits.
        pub flags: u8,
        /// Scatter/gather entries that follow; 0 with SEND_INLINE.
        pub num_sge: u8,
        /// Zero.
        pub reserved: u8,
        /// Immediate data, as four bytes in the order of the wire; or the key to invalidate.
        pub imm_or_inv: u32,
        /// Returned in the completion.
        pub wr_id: u64,
        /// The peer's address of an RDMA request.
        pub remote_addr: u64,
        /// The peer's key of an RDMA request.
        pub rkey: u32,
        /// Bytes of inline data, with SEND_INLINE. Of a SEND_OP_RDMA_READ in the send queue of a queue pair with QP_MULTIPATH: bytes of the message that chunks
        /// have read; its completion counts them. Of a SEND_OP_RDMA_WRITE_IMM there, where SPLIT_WRITE_IMM is set: bytes that chunks have written. Else zero.
        pub inline_bytes: u32,
    }

    /// Follows SendHeader in the queue of a UD or GSI QP: where the datagram goes. An address handle is these fields; the RNIC checks
    /// them when it sends.
    pub struct DatagramSegment {
        /// The destination GID.
        pub dgid: [u8; 16],
        /// The destination QP; 1 is the destination's GSI.
        pub dest_qpn: u32,
        /// Q_Key; see QKEY_OF_QP.
        pub qkey: u32,
        /// Flow label, 20 bits.
        pub flow_label: u32,
        /// Entry of the GID table.
        pub sgid_index: u8,
        /// Hop limit.
        pub hop_limit: u8,
        /// Traffic class.
        pub traffic_class: u8,
        /// Service level.
        pub sl: u8,
    }

    /// Follows SendHeader in the queue of an XRC initiator.
    pub struct XrcSegment {
        /// The number of the destination's shared receive queue.
        pub srqn: u32,
        /// Zero.
        pub reserved: [u32; 3],
    }

    /// Follows SendHeader with SEND_OP_BIND_MW. A length of 0 unbinds a window of type 1.
    pub struct BindSegment {
        /// The region's key; it needs ACCESS_MW_BIND.
        pub mr_lkey: u32,
        /// ACCESS_REMOTE_ bits, and ACCESS_ZERO_BASED.
        pub access: u32,
        /// First address, in the region.
        pub addr: u64,
        /// Bytes.
        pub length: u64,
        /// Zero.
        pub reserved: u64,
    }

    /// Follows SendHeader with SEND_OP_REG_MR.
    pub struct RegSegment {
        /// The address by which work requests name the first byte.
        pub iova: u64,
        /// Length in bytes.
        pub length: u64,
        /// ACCESS_ bits.
        pub access: u32,
        /// Size of each page: a power of two, 12 or more.
        pub page_shift: u32,
        /// Guest-physical address of the list: up to FAST_REG_MAX_PAGES guest-physical addresses, all in one page.
        pub list: u64,
    }

    /// Follows SendHeader when the opcode is an atomic.
    pub struct AtomicSegment {
        /// What to compare with, or to add.
        pub compare_add: u64,
        /// What to store if the comparison holds.
        pub swap: u64,
    }

    /// Head of a receive entry.
    pub struct RecvHeader {
        /// Returned in the completion.
        pub wr_id: u64,
        /// Scatter/gather entries that follow.
        pub num_sge: u32,
        /// Zero.
        pub reserved: u32,
    }

    /// A completion queue entry.
    pub struct Cqe {
        /// The work request's.
        pub wr_id: u64,
        /// The QP's number.
        pub qpn: u32,
        /// CreateQp::cookie of the QP.
        pub cookie: u32,
        /// Bytes received, read or swapped.
        pub byte_len: u32,
        /// Immediate data, as four bytes in the order of the wire.
        pub imm_or_inv: u32,
        /// The sender's QP number, for UD.
        pub src_qpn: u32,
        /// Index of the work queue's entry after this one: all entries below it may be reused.
        pub consumer: u32,
        /// Why the request failed, for people: an RNIC's own number, 0 on success.
        pub vendor_err: u32,
        /// Zero.
        pub reserved0: u32,
        /// Time of completion in nanoseconds of the host's monotonic clock, or 0.
        pub timestamp_ns: u64,
        /// Service level of a datagram.
        pub sl: u8,
        /// Zero.
        pub reserved1: [u8; 11],
        /// WC_ status.
        pub status: u8,
        /// WC_ opcode.
        pub opcode: u8,
        /// CQE_ bits.
        pub flags: u8,
        /// The phase: see the module's text.
        pub phase: u8,
    }
}

/// Bytes of ring memory for `entries` entries of `1 << stride_shift` bytes and their header.
pub const fn ring_bytes(entries: u32, stride_shift: u8) -> u64 {
    (entries as u64 + 1) << stride_shift
}

/// Pages of ring memory for `entries` entries of `1 << stride_shift` bytes and their header.
pub const fn ring_pages(entries: u32, stride_shift: u8) -> u64 {
    ring_bytes(entries, stride_shift).div_ceil(crate::config::PAGE_BYTES as u64)
}

/// The smallest stride for send entries of `max_sge` scatter/gather entries or `max_inline_bytes` of data,
/// or `None` when it would exceed [`STRIDE_SHIFT_MAX`],
/// of a QP of type `qp_type` (a `QP_TYPE_`). A QP that registers regions needs at least [`REG_STRIDE_SHIFT`].
pub const fn send_stride_shift(qp_type: u8, max_sge: u32, max_inline_bytes: u32) -> Option<u8> {
    let segment = type_segment_bytes(qp_type) as u64;
    // An atomic has one scatter/gather entry behind its segment, whatever the QP was created with; a binding fits as well.
    let atomic = (AtomicSegment::SIZE + Sge::SIZE) as u64;
    let data = max(max(max_sge as u64 * Sge::SIZE as u64, max_inline_bytes as u64), atomic);
    stride_shift(SendHeader::SIZE as u64 + segment + data)
}

/// Bytes of the segment that follows [`SendHeader`] in every entry of a QP of type `qp_type`.
pub const fn type_segment_bytes(qp_type: u8) -> usize {
    match qp_type {
        QP_TYPE_UD | QP_TYPE_GSI => DatagramSegment::SIZE,
        QP_TYPE_XRC_INI => XrcSegment::SIZE,
        _ => 0,
    }
}

/// The smallest stride of a send queue that can hold a [`RegSegment`], as a power of two.
pub const REG_STRIDE_SHIFT: u8 = 7;

/// The smallest stride for receive entries of `max_sge` scatter/gather entries, or `None` when it
/// would exceed [`STRIDE_SHIFT_MAX`].
pub const fn recv_stride_shift(max_sge: u32) -> Option<u8> {
    stride_shift(RecvHeader::SIZE as u64 + max_sge as u64 * Sge::SIZE as u64)
}

const fn max(a: u64, b: u64) -> u64 {
    if a > b { a } else { b }
}

const fn stride_shift(bytes: u64) -> Option<u8> {
    let mut shift = STRIDE_SHIFT_MIN;
    while (1u64 << shift) < bytes {
        shift += 1;
    }
    if shift > STRIDE_SHIFT_MAX { None } else { Some(shift) }
}

/// The phase of a valid completion at free-running index `index` in a ring of `entries`.
pub const fn phase(index: u32, entries: u32) -> u8 {
    ((index / entries) & 1) as u8 ^ 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::QP_TYPE_RC;

    #[test]
    fn strides_hold_what_the_issue_asks_for() {
        // 30 scatter/gather entries and 256 bytes inline fit half a kilobyte.
        assert_eq!(send_stride_shift(QP_TYPE_RC, 30, 256), Some(9));
        assert_eq!(send_stride_shift(QP_TYPE_RC, 1, 0), Some(6));
        assert_eq!(recv_stride_shift(1), Some(6));
        assert_eq!(recv_stride_shift(31), Some(9));
        assert_eq!(send_stride_shift(QP_TYPE_RC, 0, 2000), None);
    }

    #[test]
    fn phase_flips_on_each_pass() {
        assert_eq!([0, 3, 4, 7, 8].map(|i| phase(i, 4)), [1, 1, 0, 0, 1]);
        // The counter's wrap falls on a pass boundary of every power of two.
        assert_eq!(phase(u32::MAX, 4), 0);
        assert_eq!(phase(u32::MAX.wrapping_add(1), 4), 1);
    }

    #[test]
    fn ring_sizes_count_the_header() {
        assert_eq!(ring_bytes(64, 6), 65 * 64);
        assert_eq!(ring_pages(64, 6), 2);
        assert_eq!(ring_pages(63, 6), 1);
    }
}
