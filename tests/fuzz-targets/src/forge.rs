//! Packets that look right enough to get past the first checks, and others.

use masq_types::{Psn, WireQpn};
use masq_wire::{Bth, BthRepr, Header, ICRC_BYTES, Opcode, PadCount};

use crate::input::Input;

/// Whom packets are for.
pub struct Victim<'a> {
    /// The queue pair.
    pub qpn: WireQpn,
    /// The PSN of the next request that it expects.
    pub expected: Psn,
    /// The PSN of the next request that it sends.
    pub next_send: Psn,
    /// Keys of memory that it has.
    pub keys: &'a [u32],
    /// Where that memory begins.
    pub base: u64,
    /// Bytes of that memory.
    pub len: u64,
}

/// A datagram, with room for an ICRC at its end if it is long enough to have one.
pub fn datagram(input: &mut Input<'_>, victim: &Victim<'_>) -> Vec<u8> {
    match input.below(8) {
        0 => {
            let len = input.u8().into();
            input.bytes(len).to_vec()
        }
        1 => {
            let opcode = opcode(input);
            let mut datagram = base_header(input, victim, opcode, 0);
            let len = input.below(80);
            datagram.extend_from_slice(input.bytes(len));
            datagram.resize(datagram.len().next_multiple_of(4), 0);
            datagram
        }
        _ => {
            let opcode = opcode(input);
            packet(input, victim, opcode)
        }
    }
}

/// Mostly one of a reliable connection.
fn opcode(input: &mut Input<'_>) -> Opcode {
    match input.u8() {
        byte @ ..0xf0 => Opcode(byte % 0x18),
        _ => Opcode(input.u8()),
    }
}

fn psn(input: &mut Input<'_>, victim: &Victim<'_>) -> Psn {
    let near = |from: Psn, by: i32| Psn::new(from.get().wrapping_add_signed(by));
    match input.u8() {
        byte @ ..0xa0 => near(victim.expected, i32::from(byte % 7) - 3),
        byte @ ..0xf0 => near(victim.next_send, i32::from(byte % 16) - 13),
        _ => Psn::new(input.u32()),
    }
}

fn base_header(input: &mut Input<'_>, victim: &Victim<'_>, opcode: Opcode, payload: usize) -> Vec<u8> {
    let mut bth = BthRepr::new(opcode, victim.qpn, psn(input, victim));
    let flags = input.u8();
    (bth.ack_req, bth.solicited) = (flags & 1 != 0, flags & 2 != 0);
    // A pad count that is wrong, sometimes.
    bth.pad = PadCount::for_payload(if flags & 0xf0 == 0xf0 { flags.into() } else { payload });
    let mut bytes = [0; Bth::LEN];
    bth.emit(&mut bytes);
    bytes.to_vec()
}

/// A packet with the headers that its opcode brings, and with room for an ICRC.
pub fn packet(input: &mut Input<'_>, victim: &Victim<'_>, opcode: Opcode) -> Vec<u8> {
    let Some(info) = opcode.info() else { return base_header(input, victim, opcode, 0) };
    let payload = match input.below(4) {
        _ if !info.has_payload() => 0,
        0 | 1 => 256,
        2 => input.u8().into(),
        _ => usize::from(input.u16()) % 5000,
    };
    let mut datagram = base_header(input, victim, opcode, payload);
    for header in info.layout.headers() {
        match header {
            Header::Reth | Header::AtomicEth => {
                datagram.extend(input.address(victim.base, victim.len).to_be_bytes());
                datagram.extend(input.key(victim.keys).to_be_bytes());
                match header {
                    Header::Reth => datagram.extend(input.length(payload as u32).to_be_bytes()),
                    _ => datagram.extend(input.exactly(16)),
                }
            }
            Header::Ieth => datagram.extend(input.key(victim.keys).to_be_bytes()),
            other => datagram.extend(input.exactly(other.len_bytes())),
        }
    }
    let end = datagram.len() + payload.next_multiple_of(4) + ICRC_BYTES;
    datagram.resize(end, 0xdd);
    datagram
}
