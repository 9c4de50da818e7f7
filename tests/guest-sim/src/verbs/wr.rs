//! Work requests in short.

use vrdma_abi::ring::{self, AtomicSegment};
use vrdma_rings::{Operands, SendRequest};

use super::Mr;

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
    SendRequest {
        operands: Operands::Atomic(AtomicSegment { compare_add, swap }),
        ..rdma(opcode, wr_id, remote, offset)
    }
}
