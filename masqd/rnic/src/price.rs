//! What a message between two queue pairs of one RNIC would be on the wire.

use masq_types::Mtu;
use masq_wire::{ICRC_BYTES, PadCount, Transport};

use crate::transport::SendOp;

/// Bytes of a BTH.
const BTH: u64 = masq_wire::Bth::LEN as u64;
const RETH: u64 = 16;
const AETH: u64 = 4;
const IMM: u64 = 4;
const IETH: u64 = 4;
const XRC_ETH: u64 = masq_wire::XrcEth::LEN as u64;
const ATOMIC_ETH: u64 = 28;
const ATOMIC_ACK_ETH: u64 = 8;

/// The packets of one message's data: for a READ, of its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Price {
    /// MTUs are powers of two, and this is worked out for every message.
    mtu_shift: u32,
    /// Headers of every packet.
    per_packet: u64,
    /// Further headers of the first packet.
    first: u64,
    /// Further headers of the last packet.
    last: u64,
    /// Headers of a READ's or atomic's request besides.
    request: u64,
    /// A message of one packet has the header of the first and the last once.
    once: bool,
}

/// Packets and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wire {
    /// How many.
    pub packets: u64,
    /// Bytes of them all, as IP packets.
    pub bytes: u64,
}

impl Price {
    /// The price of a message of this transport; `ip_overhead` bytes are the IP and UDP headers.
    pub fn new(op: SendOp, transport: Transport, mtu: Mtu, ip_overhead: u64) -> Self {
        let (first, last) = match op {
            SendOp::Send => (0, 0),
            SendOp::SendImm => (0, IMM),
            SendOp::SendInv => (0, IETH),
            SendOp::Write | SendOp::Steer => (RETH, 0),
            SendOp::WriteImm => (RETH, IMM),
            SendOp::Read => (AETH, AETH),
            SendOp::CmpSwap | SendOp::FetchAdd => (ATOMIC_ETH, 0),
            // They send nothing.
            SendOp::LocalInv | SendOp::BindMw | SendOp::RegMr => (0, 0),
        };
        // Requests of XRC have one header more, and answers have not.
        let request = if transport == Transport::Xrc { XRC_ETH } else { 0 };
        let per_packet = ip_overhead + BTH + ICRC_BYTES as u64 + if op.is_fetch() { 0 } else { request };
        Self {
            mtu_shift: mtu.bytes().trailing_zeros(),
            per_packet,
            first,
            last,
            request,
            once: op == SendOp::Read,
        }
    }

    /// The request for a READ.
    pub fn read_request(&self) -> Wire {
        Wire { packets: 1, bytes: self.per_packet + self.request + RETH }
    }

    /// An atomic: its request and its answer.
    pub fn atomic(&self) -> [Wire; 2] {
        [self.request + ATOMIC_ETH, AETH + ATOMIC_ACK_ETH]
            .map(|ext| Wire { packets: 1, bytes: self.per_packet + ext })
    }

    /// The bytes `from .. from + bytes` of a message of `len`.
    pub fn piece(&self, len: u32, from: u32, bytes: usize) -> Wire {
        if len == 0 {
            return Wire { packets: 1, bytes: self.per_packet + self.first + self.last_of(1) };
        }
        let (before, after) = (self.sent(len, from.into()), self.sent(len, u64::from(from) + bytes as u64));
        Wire { packets: after.packets - before.packets, bytes: after.bytes - before.bytes }
    }

    /// How many of the `room` bytes behind `from` of a message of `len` cost at most `available`: all, or whole packets;
    /// otherwise what must be available for some.
    pub fn affordable(&self, len: u32, from: u32, room: usize, available: u64) -> Result<usize, u64> {
        let room = room.min((len - from.min(len)) as usize);
        if self.piece(len, from, room).bytes <= available {
            return Ok(room);
        }
        let ends = self.first + self.last + 3;
        let mtu = 1 << self.mtu_shift;
        let packets = available.saturating_sub(ends) / (mtu + self.per_packet);
        let affordable = usize::try_from(packets * mtu).unwrap_or(usize::MAX).min(room);
        if affordable > 0 {
            return Ok(affordable);
        }
        Err(self.piece(len, from, room).bytes.min(mtu + self.per_packet + ends))
    }

    /// Further headers of the last of so many packets.
    fn last_of(&self, packets: u64) -> u64 {
        if self.once && packets == 1 { 0 } else { self.last }
    }

    fn sent(&self, len: u32, done: u64) -> Wire {
        if done == 0 {
            return Wire::default();
        }
        let packets = ((done - 1) >> self.mtu_shift) + 1;
        let mut bytes = done + packets * self.per_packet + self.first;
        if done >= len.into() {
            bytes += self.last_of(packets) + PadCount::for_payload(done as usize).get() as u64;
        }
        Wire { packets, bytes }
    }
}

#[cfg(test)]
mod tests {
    use masq_types::{Psn, Rkey, WireQpn};
    use masq_wire::{
        AethRepr, AtomicAckEthRepr, AtomicEthRepr, Credits, Extension, ImmDt, Msn, Opcode, PacketRepr,
        RethRepr, Syndrome,
    };
    use proptest::prelude::*;

    use super::*;

    const IP4: u64 = 28;

    fn bytes(opcode: Opcode, ext: Extension, payload: usize) -> u64 {
        let repr = PacketRepr::new(opcode, WireQpn::from_wire(1), Psn::new(0), ext);
        repr.udp_payload_len(payload) as u64 + IP4
    }

    /// As the transport's packets.
    #[test]
    fn messages_cost_what_their_packets_are() {
        let reth = Extension::Reth(RethRepr { va: 0, rkey: Rkey(0), dma_len: 0 });
        let reth_imm = Extension::RethImm(RethRepr { va: 0, rkey: Rkey(0), dma_len: 0 }, ImmDt([0; 4]));
        let imm = Extension::Imm(ImmDt([0; 4]));
        let aeth_repr = AethRepr { syndrome: Syndrome::Ack(Credits::UNLIMITED), msn: Msn::new(0) };
        let aeth = Extension::Aeth(aeth_repr);
        let whole = |op, len: u32| Price::new(op, Transport::Rc, Mtu::B256, IP4).piece(len, 0, len as usize);
        let none = Extension::None;
        let rows = [
            (SendOp::Send, 0, vec![bytes(Opcode::RC_SEND_ONLY, none, 0)]),
            (SendOp::SendImm, 5, vec![bytes(Opcode::RC_SEND_ONLY_IMM, imm, 5)]),
            (SendOp::Write, 0, vec![bytes(Opcode::RC_WRITE_ONLY, reth, 0)]),
            (SendOp::WriteImm, 0, vec![bytes(Opcode::RC_WRITE_ONLY_IMM, reth_imm, 0)]),
            (
                SendOp::WriteImm,
                600,
                vec![
                    bytes(Opcode::RC_WRITE_FIRST, reth, 256),
                    bytes(Opcode::RC_WRITE_MIDDLE, none, 256),
                    bytes(Opcode::RC_WRITE_LAST_IMM, imm, 88),
                ],
            ),
            (SendOp::Read, 0, vec![bytes(Opcode::RC_READ_RESPONSE_ONLY, aeth, 0)]),
            (SendOp::Read, 255, vec![bytes(Opcode::RC_READ_RESPONSE_ONLY, aeth, 255)]),
            (
                SendOp::Read,
                514,
                vec![
                    bytes(Opcode::RC_READ_RESPONSE_FIRST, aeth, 256),
                    bytes(Opcode::RC_READ_RESPONSE_MIDDLE, none, 256),
                    bytes(Opcode::RC_READ_RESPONSE_LAST, aeth, 2),
                ],
            ),
        ];
        for (op, len, packets) in rows {
            let expected = Wire { packets: packets.len() as u64, bytes: packets.iter().sum() };
            assert_eq!(whole(op, len), expected, "{op:?} of {len}");
        }
        let price = Price::new(SendOp::FetchAdd, Transport::Rc, Mtu::B256, IP4);
        let atomic = Extension::Atomic(AtomicEthRepr { va: 0, rkey: Rkey(0), swap_or_add: 0, compare: 0 });
        let ack = Extension::AethAtomicAck(aeth_repr, AtomicAckEthRepr { original: 0 });
        let expected = [bytes(Opcode::RC_FETCH_ADD, atomic, 0), bytes(Opcode::RC_ATOMIC_ACK, ack, 0)];
        assert_eq!(price.atomic().map(|w| w.bytes), expected);
        let read = Price::new(SendOp::Read, Transport::Rc, Mtu::B256, IP4);
        assert_eq!(read.read_request().bytes, bytes(Opcode::RC_READ_REQUEST, reth, 0));
    }

    /// The XRCETH stands in each request, and in no answer.
    #[test]
    fn xrc_costs_a_header_more() {
        let of = |op, transport| Price::new(op, transport, Mtu::B256, IP4);
        let whole = |op, transport| of(op, transport).piece(600, 0, 600).bytes;
        assert_eq!(whole(SendOp::SendInv, Transport::Xrc), whole(SendOp::SendInv, Transport::Rc) + 3 * 4);
        assert_eq!(whole(SendOp::Read, Transport::Xrc), whole(SendOp::Read, Transport::Rc));
        let [rc, xrc] = [Transport::Rc, Transport::Xrc].map(|t| of(SendOp::Read, t).read_request().bytes);
        assert_eq!(xrc, rc + 4);
        let [rc, xrc] = [Transport::Rc, Transport::Xrc].map(|t| of(SendOp::CmpSwap, t).atomic());
        assert_eq!([xrc[0].bytes, xrc[1].bytes], [rc[0].bytes + 4, rc[1].bytes]);
    }

    proptest! {
        /// However a message is cut, its pieces cost what the whole costs, and what is affordable is afforded.
        #[test]
        fn pieces_add_up(
            op in prop::sample::select(&SendOp::ALL[..5]),
            len in 0u32..20_000,
            steps in prop::collection::vec((0u64..6_000, 1usize..9_000), 1..60),
        ) {
            let price = Price::new(op, Transport::Rc, Mtu::B1024, IP4);
            let whole = price.piece(len, 0, len as usize);
            let (mut done, mut sum) = (0u32, Wire::default());
            for (available, room) in steps {
                if done == len {
                    break;
                }
                match price.affordable(len, done, room, available) {
                    Ok(bytes) => {
                        let piece = price.piece(len, done, bytes);
                        prop_assert!(bytes > 0 && bytes <= room && piece.bytes <= available);
                        sum = Wire { packets: sum.packets + piece.packets, bytes: sum.bytes + piece.bytes };
                        done += bytes as u32;
                    }
                    Err(needed) => {
                        prop_assert!(needed > available && needed <= 1024 + 100);
                        prop_assert!(price.affordable(len, done, room, needed).is_ok());
                    }
                }
            }
            if done == len && len > 0 {
                prop_assert_eq!(sum, whole);
            }
        }
    }
}
