//! Large SENDs as a guest's library posts them, and receives for them.

use vrdma_abi::ring::*;
use vrdma_rings::SendRequest;

use super::multipath::*;
use super::*;

/// Bytes of a chunk at most.
pub const CHUNK: u32 = 64 << 10;
/// The receives' buffers begin here, one each `SLOT` bytes of B's region.
pub const SLOT: u64 = 512 << 10;

/// Bytes of a large message's end: several packets, or one.
pub const TAILS: [u32; 2] = [4096, 1000];

/// Posts a chunk for the receive `number`, `len` bytes behind the beginning of the message at `offset` of A's region.
pub fn steer(m: &mut Multi, number: u32, offset: u64, at: u32, len: u32) -> u32 {
    let chunk =
        SendRequest { opcode: SEND_OP_STEER, remote_addr: at.into(), rkey: number, ..SendRequest::default() };
    m.chunk_as(&chunk, offset + u64::from(at), len)
}

/// Posts the end of a message, `len` bytes that lie `at` bytes behind its beginning.
pub fn end(m: &mut Multi, opcode: u8, wr_id: u64, offset: u64, at: u32, len: u32) {
    let until = m.a_qp.chunks.producer();
    m.wait_for(wr_id, until);
    let flags = SEND_SIGNALED | SEND_SOLICITED | SEND_STEERED;
    let imm_or_inv = wr_id as u32;
    let end =
        SendRequest { opcode, flags, wr_id, imm_or_inv, remote_addr: at.into(), ..SendRequest::default() };
    m.a.post(&mut m.a_qp.qp, &end, &[sge(&m.a_mr, offset + u64::from(at), len)]);
}

/// Posts a large SEND of `len` bytes at `offset` of A's region, which takes the receive `number`.
pub fn send(m: &mut Multi, opcode: u8, wr_id: u64, number: u32, offset: u64, len: u32) {
    let tail = TAILS[wr_id as usize % TAILS.len()];
    let mut at = 0;
    while at < len - tail {
        let bytes = CHUNK.min(len - tail - at);
        steer(m, number, offset, at, bytes);
        at += bytes;
    }
    end(m, opcode, wr_id, offset, at, tail);
}

/// Two pieces of B's region, from slot `slot` on, that make a receive of `len` bytes, with a gap between them.
pub fn pieces(m: &Multi, slot: u64, len: u32) -> [Sge; 2] {
    let (offset, first) = (slot * SLOT, len / 3);
    [sge(&m.b_mr, offset, first), sge(&m.b_mr, offset + u64::from(first) + 64, len - first)]
}

/// Posts a receive of two pieces.
pub fn post_recv(m: &mut Multi, wr_id: u64, slot: u64, len: u32) {
    let pieces = pieces(m, slot, len);
    m.b.post_recv(&mut m.b_qp.qp, wr_id, &pieces);
}

/// What B has in a receive's pieces at `slot`, and between and behind them.
pub fn received(m: &Multi, slot: u64, len: u32) -> (Vec<u8>, Vec<u8>) {
    let [first, second] = pieces(m, slot, len);
    let mut data = m.b.read(first.addr, first.length as usize);
    data.extend(m.b.read(second.addr, second.length as usize));
    let mut rest = m.b.read(first.addr + u64::from(first.length), 64);
    let end = second.addr + u64::from(second.length);
    rest.extend(m.b.read(end, (m.b_mr.gpa + (slot + 1) * SLOT - end) as usize));
    (data, rest)
}
