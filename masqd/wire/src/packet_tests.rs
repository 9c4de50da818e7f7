use std::string::ToString;
use std::vec;
use std::vec::Vec;

use masq_types::Rkey;

use super::*;
use crate::{Credits, Msn, Syndrome};

/// Bytes of transport headers by opcode, from the standard, apart from the table under test.
const HEADER_BYTES: &[(u8, usize)] = &[
    (0x00, 12),
    (0x01, 12),
    (0x02, 12),
    (0x03, 16),
    (0x04, 12),
    (0x05, 16),
    (0x06, 28),
    (0x07, 12),
    (0x08, 12),
    (0x09, 16),
    (0x0a, 28),
    (0x0b, 32),
    (0x0c, 28),
    (0x0d, 16),
    (0x0e, 12),
    (0x0f, 16),
    (0x10, 16),
    (0x11, 16),
    (0x12, 24),
    (0x13, 40),
    (0x14, 40),
    (0x16, 16),
    (0x17, 16),
    (0x20, 12),
    (0x21, 12),
    (0x22, 12),
    (0x23, 16),
    (0x24, 12),
    (0x25, 16),
    (0x26, 28),
    (0x27, 12),
    (0x28, 12),
    (0x29, 16),
    (0x2a, 28),
    (0x2b, 32),
    (0x64, 20),
    (0x65, 24),
    (0x81, 12),
    (0xa0, 16),
    (0xa1, 16),
    (0xa2, 16),
    (0xa3, 20),
    (0xa4, 16),
    (0xa5, 20),
    (0xa6, 32),
    (0xa7, 16),
    (0xa8, 16),
    (0xa9, 20),
    (0xaa, 32),
    (0xab, 36),
    (0xac, 32),
    (0xad, 16),
    (0xae, 12),
    (0xaf, 16),
    (0xb0, 16),
    (0xb1, 16),
    (0xb2, 24),
    (0xb3, 44),
    (0xb4, 44),
    (0xb6, 20),
    (0xb7, 20),
    (0xc0, 20),
    (0xc1, 20),
    (0xc2, 28),
    (0xc3, 12),
    (0xc4, 12),
    (0xc5, 28),
    (0xc6, 28),
    (0xc7, 28),
    (0xc8, 32),
    (0xc9, 20),
    (0xca, 36),
    (0xcb, 28),
    (0xcc, 20),
    (0xcd, 20),
];

/// A packet of `len` bytes in all with this opcode and pad count, and zeros elsewhere.
fn packet(opcode: u8, pad: u8, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    if let Some([first, second]) = bytes.first_chunk_mut() {
        (*first, *second) = (opcode, pad << 4);
    }
    bytes
}

fn header_bytes(opcode: u8) -> Option<usize> {
    HEADER_BYTES.iter().find(|(o, _)| *o == opcode).map(|(_, len)| *len)
}

#[test]
fn every_opcode_needs_its_headers_and_trailer() {
    for opcode in 0..=255 {
        let Some(headers) = header_bytes(opcode) else {
            assert_eq!(parse(&packet(opcode, 0, 64)), Err(WireError::UnknownOpcode(Opcode(opcode))));
            continue;
        };
        for len in 0..headers + ICRC_BYTES {
            match parse(&packet(opcode, 0, len)) {
                Err(WireError::Truncated { got, need, .. }) => assert!(got == len && need > len),
                Err(WireError::Misaligned(got)) => assert!(got == len && len % 4 != 0),
                other => panic!("{opcode:#x} with {len} bytes: {other:?}"),
            }
        }
    }
}

#[test]
fn payload_is_judged_by_opcode() {
    for &(opcode, headers) in HEADER_BYTES {
        let info = Opcode(opcode).info().unwrap();
        let with =
            |pad, body| parse(&packet(opcode, pad, headers + body + ICRC_BYTES)).map(|p| p.payload.len());
        let opcode = Opcode(opcode);
        if info.has_payload() && info.position.ends() {
            assert_eq!(with(0, 0), Ok(0));
            assert_eq!(with(0, 8), Ok(8));
            assert_eq!(with(3, 8), Ok(5));
            assert_eq!(with(3, 0), Err(WireError::PadExceedsPayload { pad: 3, got: 0 }));
        } else if info.has_payload() {
            assert_eq!(with(0, 256), Ok(256));
            assert_eq!(with(0, 0), Err(WireError::PayloadLength { opcode, got: 0 }));
            assert_eq!(with(1, 256), Err(WireError::PayloadLength { opcode, got: 255 }));
        } else if opcode == Opcode::CNP {
            assert_eq!(with(0, 16), Ok(0));
            assert_eq!(with(0, 0), Err(WireError::PayloadLength { opcode, got: 0 }));
            assert_eq!(with(0, 20), Err(WireError::PayloadLength { opcode, got: 20 }));
            assert_eq!(with(1, 16), Err(WireError::UnexpectedPad { opcode, pad: 1 }));
        } else if opcode == Opcode::MASQ_SELECTIVE_ACK {
            assert_eq!([with(0, 4), with(0, 8), with(0, 128)], [Ok(4), Ok(8), Ok(128)]);
            for got in [0, 132] {
                assert_eq!(with(0, got), Err(WireError::PayloadLength { opcode, got }));
            }
            assert_eq!(with(3, 4), Err(WireError::UnexpectedPad { opcode, pad: 3 }));
        } else {
            assert_eq!(with(0, 0), Ok(0));
            assert_eq!(with(0, 4), Err(WireError::UnexpectedPayload { opcode, got: 4 }));
            assert_eq!(with(2, 0), Err(WireError::UnexpectedPad { opcode, pad: 2 }));
        }
        assert_eq!(with(0, 257), Err(WireError::Misaligned(headers + 257 + ICRC_BYTES)));
    }
}

#[test]
fn payload_lengths_follow_the_path_mtu() {
    let length = |opcode: Opcode, len: usize| {
        let pad = PadCount::for_payload(len);
        let total = header_bytes(opcode.0).unwrap() + len + pad.get() + ICRC_BYTES;
        parse(&packet(opcode.0, pad.get() as u8, total)).unwrap().check_payload_len(Mtu::B1024)
    };
    let wrong = |opcode, got| Err(WireError::PayloadLength { opcode, got });
    for opcode in [Opcode::RC_SEND_FIRST, Opcode::RC_WRITE_MIDDLE, Opcode::RC_READ_RESPONSE_FIRST] {
        assert_eq!(length(opcode, 1024), Ok(()));
        assert_eq!(length(opcode, 1020), wrong(opcode, 1020));
        assert_eq!(length(opcode, 2048), wrong(opcode, 2048));
    }
    for opcode in [Opcode::RC_SEND_LAST_IMM, Opcode::UC_WRITE_LAST, Opcode::RC_READ_RESPONSE_LAST] {
        assert_eq!(length(opcode, 0), wrong(opcode, 0));
        assert_eq!(length(opcode, 1), Ok(()));
        assert_eq!(length(opcode, 1024), Ok(()));
        assert_eq!(length(opcode, 1025), wrong(opcode, 1025));
    }
    for opcode in [Opcode::RC_SEND_ONLY, Opcode::UD_SEND_ONLY, Opcode::RC_READ_RESPONSE_ONLY] {
        assert_eq!(length(opcode, 0), Ok(()));
        assert_eq!(length(opcode, 1024), Ok(()));
        assert_eq!(length(opcode, 1025), wrong(opcode, 1025));
    }
    assert_eq!(length(Opcode::RC_READ_REQUEST, 0), Ok(()));
}

/// A whole RC WRITE Only with Immediate of five bytes.
const WRITE: [u8; 44] = [
    0x0b, 0xf0, 0xff, 0xff, 0, 0, 0, 0x11, 0x80, 0, 0, 7, // BTH
    0, 0, 0x7f, 0xff, 0, 0, 0x10, 0, 0, 0, 0x12, 0x34, 0, 0, 0, 5, // RETH
    0xca, 0xfe, 0, 1, // ImmDt
    b'h', b'e', b'l', b'l', b'o', 0, 0, 0, // payload and pad
    0x78, 0x56, 0x34, 0x12, // ICRC
];

#[test]
fn golden_bytes_of_a_write_both_ways() {
    let reth = RethRepr { va: 0x7fff_0000_1000, rkey: Rkey(0x1234), dma_len: 5 };
    let ext = Extension::RethImm(reth, ImmDt([0xca, 0xfe, 0, 1]));
    let (qpn, psn) = (WireQpn::from_wire(0x11), Psn::new(7));
    let mut repr = PacketRepr::new(Opcode::RC_WRITE_ONLY_IMM, qpn, psn, ext);
    repr.bth.solicited = true;
    repr.bth.ack_req = true;
    repr.set_payload_len(5);

    let parsed = parse(&WRITE).unwrap();
    assert_eq!(parsed.repr, repr);
    assert_eq!(parsed.payload, b"hello");
    assert_eq!(parsed.icrc, 0x1234_5678);
    assert_eq!(repr.udp_payload_len(5), WRITE.len());

    let mut out = [0xa5; MAX_HEADER_BYTES];
    assert_eq!(repr.emit_headers(&mut out), Ok(32));
    assert_eq!(out[..32], WRITE[..32]);
    assert!(out[32..].iter().all(|b| *b == 0xa5));
}

#[test]
fn golden_bytes_of_an_atomic_answer_both_ways() {
    let bytes = [
        0x12, 0x40, 0xff, 0xff, 0, 0, 0, 9, 0, 0, 1, 0, // BTH
        0x1f, 0, 0, 3, // AETH
        0, 0, 0, 0, 0, 0, 0, 42, // AtomicAckETH
        0, 0, 0, 0, // ICRC
    ];
    let aeth = AethRepr { syndrome: Syndrome::Ack(Credits::UNLIMITED), msn: Msn::new(3) };
    let ext = Extension::AethAtomicAck(aeth, AtomicAckEthRepr { original: 42 });
    let repr = PacketRepr::new(Opcode::RC_ATOMIC_ACK, WireQpn::from_wire(9), Psn::new(0x100), ext);
    assert_eq!(parse(&bytes).unwrap().repr, repr);
    let mut out = [0xa5; MAX_HEADER_BYTES];
    assert_eq!(repr.emit_headers(&mut out), Ok(24));
    assert_eq!(out[..24], bytes[..24]);
}

#[test]
fn golden_bytes_of_own_acknowledgements_both_ways() {
    let bytes = [
        0xc1, 0x40, 0xff, 0xff, 0, 0, 0, 9, 0, 0, 1, 0, // BTH
        0x1f, 0, 0, 3, // AETH
        0, 0, 0x30, 0x39, // hold time
        0x06, 0, 0, 0, // bitmap
        0, 0, 0, 0, // ICRC
    ];
    let aeth = AethRepr { syndrome: Syndrome::Ack(Credits::UNLIMITED), msn: Msn::new(3) };
    let ext = Extension::AethHold(aeth, HoldRepr { nanos: 12_345 });
    let repr = |opcode| PacketRepr::new(opcode, WireQpn::from_wire(9), Psn::new(0x100), ext);
    let parsed = parse(&bytes).unwrap();
    assert_eq!(parsed.repr, repr(Opcode::MASQ_SELECTIVE_ACK));
    assert_eq!(Arrived::new(parsed.payload).places().collect::<Vec<_>>(), [1, 2]);
    assert_eq!(
        parsed.repr.ext.hold().map(HoldRepr::duration),
        Some(core::time::Duration::from_nanos(12_345))
    );

    let timed = [&[0xc0], &bytes[1..20], &bytes[24..]].concat();
    assert_eq!(parse(&timed).unwrap().repr, repr(Opcode::MASQ_TIMED_ACK));
    for (opcode, bytes) in
        [(Opcode::MASQ_SELECTIVE_ACK, &bytes[..20]), (Opcode::MASQ_TIMED_ACK, &timed[..20])]
    {
        let mut out = [0xa5; MAX_HEADER_BYTES];
        assert_eq!(repr(opcode).emit_headers(&mut out), Ok(20));
        assert_eq!(&out[..20], bytes);
    }
}

#[test]
fn golden_bytes_of_timed_answers_both_ways() {
    let bytes = [
        0xcd, 0x00, 0xff, 0xff, 0, 0, 0, 9, 0, 0, 1, 0, // BTH
        0x1f, 0, 0, 3, // AETH
        0, 0, 0x30, 0x39, // hold time
        1, 2, 3, 4, // payload
        0, 0, 0, 0, // ICRC
    ];
    let aeth = AethRepr { syndrome: Syndrome::Ack(Credits::UNLIMITED), msn: Msn::new(3) };
    let ext = Extension::AethHold(aeth, HoldRepr { nanos: 12_345 });
    for (first, opcode) in [(0xcd, Opcode::MASQ_READ_RESPONSE_ONLY), (0xcc, Opcode::MASQ_READ_RESPONSE_FIRST)]
    {
        let bytes = [&[first], &bytes[1..]].concat();
        let parsed = parse(&bytes).unwrap();
        let mut repr = PacketRepr::new(opcode, WireQpn::from_wire(9), Psn::new(0x100), ext);
        repr.bth.mig_req = false;
        assert_eq!((parsed.repr, parsed.payload), (repr, &[1, 2, 3, 4][..]));
        let mut out = [0xa5; MAX_HEADER_BYTES];
        assert_eq!(repr.emit_headers(&mut out), Ok(20));
        assert_eq!(out[..20], bytes[..20]);
    }
}

/// What goes to its place in a receive: the RETH has the offset in the message, and of a STEER the receive's number.
#[test]
fn golden_bytes_of_steered_messages_both_ways() {
    let bytes = [
        0xc8, 0x40, 0xff, 0xff, 0, 0, 0, 9, 0, 0, 1, 0, // BTH
        0, 0, 0, 0, 0, 0x0f, 0xf0, 0, 0, 0, 0, 7, 0, 0, 0, 0, // RETH
        b'i', b'm', b'm', b'!', // ImmDt
        0, 0, 0, 0, // ICRC
    ];
    let reth = RethRepr { va: 0xf_f000, rkey: Rkey(7), dma_len: 0 };
    let ext = Extension::RethImm(reth, ImmDt(*b"imm!"));
    let repr = |opcode, ext| PacketRepr::new(opcode, WireQpn::from_wire(9), Psn::new(0x100), ext);
    for (opcode, ext, len) in [
        (Opcode::MASQ_STEER_ONLY, Extension::Reth(reth), 28),
        (Opcode::MASQ_SEND_ONLY, Extension::Reth(reth), 28),
        (Opcode::MASQ_SEND_ONLY_IMM, ext, 32),
    ] {
        let expected = [&[opcode.0], &bytes[1..len], &bytes[32..]].concat();
        assert_eq!(parse(&expected).unwrap().repr, repr(opcode, ext));
        let mut out = [0xa5; MAX_HEADER_BYTES];
        assert_eq!(repr(opcode, ext).emit_headers(&mut out), Ok(len));
        assert_eq!(out[..len], expected[..len]);
    }
    // The first of several has the same headers, and data.
    for opcode in [Opcode::MASQ_STEER_FIRST, Opcode::MASQ_SEND_FIRST] {
        let packet = [&[opcode.0], &bytes[1..28], &[5; 256], &bytes[32..]].concat();
        let parsed = parse(&packet).unwrap();
        assert_eq!(parsed.repr, repr(opcode, Extension::Reth(reth)));
        assert_eq!(parsed.payload, [5; 256]);
    }
}

/// The end of a WRITE says how much of the message came before.
#[test]
fn golden_bytes_of_the_ends_of_writes_both_ways() {
    let bytes = [
        0xca, 0x40, 0xff, 0xff, 0, 0, 0, 9, 0, 0, 1, 0, // BTH
        0, 0, 0, 0, 0, 0x0f, 0xf0, 0, 0, 0, 0, 7, 0, 0, 0, 4, // RETH
        b'i', b'm', b'm', b'!', // ImmDt
        0, 0x0f, 0xe0, 0, // what came before
        1, 2, 3, 4, // payload
        0, 0, 0, 0, // ICRC
    ];
    let reth = RethRepr { va: 0xf_f000, rkey: Rkey(7), dma_len: 4 };
    let (imm, before) = (ImmDt(*b"imm!"), BeforeRepr { bytes: 0xf_e000 });
    let repr = |opcode, ext| PacketRepr::new(opcode, WireQpn::from_wire(9), Psn::new(0x100), ext);
    for (opcode, ext, from) in [
        (Opcode::MASQ_WRITE_ONLY_IMM, Extension::RethImmBefore(reth, imm, before), 12),
        (Opcode::MASQ_WRITE_LAST_IMM, Extension::ImmBefore(imm, before), 28),
    ] {
        let expected = [&[opcode.0], &bytes[1..12], &bytes[from..]].concat();
        let parsed = parse(&expected).unwrap();
        assert_eq!((parsed.repr, parsed.payload), (repr(opcode, ext), &bytes[36..40]));
        assert_eq!((parsed.repr.ext.imm(), parsed.repr.ext.before()), (Some(imm), Some(before)));
        let mut out = [0xa5; MAX_HEADER_BYTES];
        let len = expected.len() - 8;
        assert_eq!(repr(opcode, ext).emit_headers(&mut out), Ok(len));
        assert_eq!(out[..len], expected[..len]);
        for short in 0..len {
            assert!(parse(&expected[..short]).is_err());
        }
    }
}

/// The XRCETH comes right behind the BTH, and only in requests (IBTA Vol 1 Annex A14).
#[test]
fn golden_bytes_of_xrc_both_ways() {
    let request = [
        0xaa, 0x40, 0xff, 0xff, 0, 0, 0, 9, 0, 0, 1, 0, // BTH
        0, 0x12, 0x34, 0x56, // XRCETH
        0, 0, 0, 0, 0, 0, 0x10, 0, 0, 0, 0, 7, 0, 0, 0, 0, // RETH
        0, 0, 0, 0, // ICRC
    ];
    let reth = RethRepr { va: 0x1000, rkey: Rkey(7), dma_len: 0 };
    let (qpn, psn) = (WireQpn::from_wire(9), Psn::new(0x100));
    let mut repr = PacketRepr::new(Opcode::XRC_WRITE_ONLY, qpn, psn, Extension::Reth(reth));
    let mut out = [0xa5; MAX_HEADER_BYTES];
    assert_eq!(repr.emit_headers(&mut out), Err(WireError::XrcEthMismatch(Opcode::XRC_WRITE_ONLY)));
    repr.xrc = Some(XrcEth::new(0x12_3456));
    assert_eq!(repr.emit_headers(&mut out), Ok(32));
    assert_eq!(out[..32], request[..32]);
    assert_eq!(parse(&request).unwrap().repr, repr);

    let aeth = Extension::Aeth(AethRepr { syndrome: Syndrome::Ack(Credits::UNLIMITED), msn: Msn::new(3) });
    let answer = [0xb1, 0x40, 0xff, 0xff, 0, 0, 0, 9, 0, 0, 1, 0, 0x1f, 0, 0, 3, 0, 0, 0, 0];
    let mut repr = PacketRepr::new(Opcode::XRC_ACK, qpn, psn, aeth);
    assert_eq!(parse(&answer).unwrap().repr, repr);
    repr.xrc = Some(XrcEth::new(1));
    assert_eq!(repr.emit_headers(&mut out), Err(WireError::XrcEthMismatch(Opcode::XRC_ACK)));
}

#[test]
fn emit_refuses_what_no_receiver_would_understand() {
    let with = |opcode, ext| {
        let repr = PacketRepr::new(opcode, WireQpn::from_wire(9), Psn::new(0), ext);
        repr.emit_headers(&mut [0; MAX_HEADER_BYTES])
    };
    let imm = Extension::Imm(ImmDt([0; 4]));
    let (opcode, got) = (Opcode::RC_SEND_ONLY, Layout::Imm);
    assert_eq!(with(opcode, imm), Err(WireError::LayoutMismatch { opcode, got }));
    assert_eq!(with(Opcode(0xd0), Extension::None), Err(WireError::UnknownOpcode(Opcode(0xd0))));
    assert_eq!(with(Opcode::RC_SEND_ONLY_IMM, imm), Ok(16));
}

#[test]
fn errors_say_what_is_wrong() {
    let says = |bytes: &[u8]| parse(bytes).unwrap_err().to_string();
    assert_eq!(says(&[]), "BTH and ICRC: 0 bytes where at least 16 are needed");
    assert_eq!(says(&WRITE[..32]), "RC WRITE Only with Immediate: 32 bytes where at least 36 are needed");
    assert_eq!(
        says(&packet(0x0c, 0, 36)),
        "RC READ Request carries no payload but 4 bytes follow its headers"
    );
    assert_eq!(says(&packet(0xd1, 0, 36)), "opcode 0xd1 is reserved or not supported");
}
