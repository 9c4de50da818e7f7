//! Work requests in short.

use vrdma_abi::ring::{self, AtomicSegment, BindSegment, RegSegment, XrcSegment};
use vrdma_rings::{Operands, SendRequest, Target};

use super::{Mr, To};

/// A signalled request of `opcode`.
pub fn request(opcode: u8, wr_id: u64) -> SendRequest {
    SendRequest { opcode, flags: ring::SEND_SIGNALED, wr_id, ..Default::default() }
}

/// A signalled request to a range of the peer's memory.
pub fn rdma(opcode: u8, wr_id: u64, remote: &Mr, offset: usize) -> SendRequest {
    SendRequest {
        remote_addr: remote.addr.wrapping_add(offset as u64),
        rkey: remote.rkey,
        ..request(opcode, wr_id)
    }
}

/// A signalled atomic.
pub fn atomic(
    opcode: u8,
    wr_id: u64,
    remote: &Mr,
    offset: usize,
    compare_add: u64,
    swap: u64,
) -> SendRequest {
    let operands = Operands::Atomic(AtomicSegment { compare_add, swap });
    SendRequest { operands, ..rdma(opcode, wr_id, remote, offset) }
}

/// A signalled datagram.
pub fn datagram(opcode: u8, wr_id: u64, to: &To) -> SendRequest {
    SendRequest { target: Target::Datagram(to.segment()), ..request(opcode, wr_id) }
}

/// A request of an XRC initiator, to the shared receive queue of this number.
pub fn xrc(srqn: u32, request: SendRequest) -> SendRequest {
    SendRequest { target: Target::Xrc(XrcSegment { srqn, reserved: [0; 3] }), ..request }
}

/// Binds a window, whose key is `rkey` from then on, to `len` bytes from `offset` of a region.
pub fn bind(wr_id: u64, rkey: u32, region: &Mr, offset: usize, len: usize, access: u32) -> SendRequest {
    let segment = BindSegment {
        mr_lkey: region.lkey,
        access,
        addr: region.addr.wrapping_add(offset as u64),
        length: len as u64,
        reserved: 0,
    };
    SendRequest { rkey, operands: Operands::Bind(segment), ..request(ring::SEND_OP_BIND_MW, wr_id) }
}

/// Makes a key invalid, on this side.
pub fn local_inv(wr_id: u64, key: u32) -> SendRequest {
    SendRequest { imm_or_inv: key, ..request(ring::SEND_OP_LOCAL_INV, wr_id) }
}

/// A send that makes a key of the receiver's invalid.
pub fn send_inv(wr_id: u64, key: u32) -> SendRequest {
    SendRequest { imm_or_inv: key, ..request(ring::SEND_OP_SEND_INV, wr_id) }
}

/// Registers memory under a key, as [`FastReg::map`](super::FastReg::map) has laid it out.
pub fn register(wr_id: u64, key: u32, segment: RegSegment) -> SendRequest {
    SendRequest { rkey: key, operands: Operands::Register(segment), ..request(ring::SEND_OP_REG_MR, wr_id) }
}
