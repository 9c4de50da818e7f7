//! Properties of all inputs, hostile ones among them.

use masq_types::{Mtu, Psn, Rkey, WireQpn};
use masq_wire::ip::{Datagram, IPV4_LEN, IPV6_LEN, Ipv4Repr, Ipv6Repr, PROTO_UDP, UDP_LEN, UdpRepr};
use masq_wire::pcap::{LinkType, Pcap};
use masq_wire::{
    AethRepr, AtomicAckEthRepr, AtomicEthRepr, BeforeRepr, BthRepr, DethRepr, Extension, HoldRepr,
    ICRC_BYTES, IcrcFlow, IcrcVerdict, Ieth, ImmDt, Ipv4Ident, Kind, Layout, MAX_HEADER_BYTES, Msn, Opcode,
    PacketRepr, Position, ROCEV2_UDP_PORT, RethRepr, Syndrome, XrcEth, explain_ipv4_id, parse,
};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

fn config(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, rng_seed: RngSeed::Fixed(4791), failure_persistence: None, ..Default::default() }
}

fn qpn() -> impl Strategy<Value = WireQpn> {
    any::<u32>().prop_map(WireQpn::from_wire)
}

fn reth() -> impl Strategy<Value = RethRepr> {
    any::<(u64, u32, u32)>().prop_map(|(va, rkey, dma_len)| RethRepr { va, rkey: Rkey(rkey), dma_len })
}

fn aeth() -> impl Strategy<Value = AethRepr> {
    any::<(u8, u32)>()
        .prop_map(|(byte, msn)| AethRepr { syndrome: Syndrome::from_byte(byte), msn: Msn::new(msn) })
}

fn deth() -> impl Strategy<Value = DethRepr> {
    (any::<u32>(), qpn(), any::<u8>()).prop_map(|(qkey, src_qp, check)| DethRepr { qkey, src_qp, check })
}

fn imm() -> impl Strategy<Value = ImmDt> {
    any::<[u8; 4]>().prop_map(ImmDt)
}

fn extension(layout: Layout) -> BoxedStrategy<Extension> {
    match layout {
        Layout::None => Just(Extension::None).boxed(),
        Layout::Imm => imm().prop_map(Extension::Imm).boxed(),
        Layout::Ieth => any::<u32>().prop_map(|k| Extension::Ieth(Ieth(Rkey(k)))).boxed(),
        Layout::Reth => reth().prop_map(Extension::Reth).boxed(),
        Layout::RethImm => (reth(), imm()).prop_map(|(r, i)| Extension::RethImm(r, i)).boxed(),
        Layout::Aeth => aeth().prop_map(Extension::Aeth).boxed(),
        Layout::AethAtomicAck => (aeth(), any::<u64>())
            .prop_map(|(a, original)| Extension::AethAtomicAck(a, AtomicAckEthRepr { original }))
            .boxed(),
        Layout::AethHold => {
            (aeth(), any::<u32>()).prop_map(|(a, nanos)| Extension::AethHold(a, HoldRepr { nanos })).boxed()
        }
        Layout::Atomic => any::<(u64, u32, u64, u64)>()
            .prop_map(|(va, rkey, swap_or_add, compare)| {
                Extension::Atomic(AtomicEthRepr { va, rkey: Rkey(rkey), swap_or_add, compare })
            })
            .boxed(),
        Layout::Deth => deth().prop_map(Extension::Deth).boxed(),
        Layout::DethImm => (deth(), imm()).prop_map(|(d, i)| Extension::DethImm(d, i)).boxed(),
        Layout::ImmBefore => {
            (imm(), any::<u32>()).prop_map(|(i, bytes)| Extension::ImmBefore(i, BeforeRepr { bytes })).boxed()
        }
        Layout::RethImmBefore => (reth(), imm(), any::<u32>())
            .prop_map(|(r, i, bytes)| Extension::RethImmBefore(r, i, BeforeRepr { bytes }))
            .boxed(),
    }
}

/// Headers of any opcode, and payload that may follow them.
fn packet() -> impl Strategy<Value = (PacketRepr, Vec<u8>)> {
    let rows = prop::sample::select(Opcode::TABLE);
    let flags = any::<[bool; 5]>();
    (rows, flags, qpn(), any::<u32>(), any::<u16>()).prop_flat_map(|(info, flags, dest_qp, psn, pkey)| {
        let [solicited, mig_req, fecn, becn, ack_req] = flags;
        let bth = BthRepr {
            solicited,
            mig_req,
            fecn,
            becn,
            ack_req,
            pkey,
            ..BthRepr::new(info.opcode, dest_qp, Psn::new(psn))
        };
        let payload = match info.position {
            _ if info.kind == Kind::SelectiveAck => {
                (1usize..=32).prop_flat_map(|words| prop::collection::vec(any::<u8>(), 4 * words)).boxed()
            }
            _ if !info.has_payload() => prop::collection::vec(any::<u8>(), 0..1).boxed(),
            Position::First | Position::Middle => prop::collection::vec(any::<u8>(), 256..257).boxed(),
            Position::Last => prop::collection::vec(any::<u8>(), 1..40).boxed(),
            Position::Only => prop::collection::vec(any::<u8>(), 0..40).boxed(),
        };
        (extension(info.layout), payload).prop_map(move |(ext, payload)| {
            let xrc = info.has_xrceth().then(|| XrcEth::new(psn ^ 0x55_5555));
            let mut repr = PacketRepr { bth, xrc, ext };
            repr.set_payload_len(payload.len());
            (repr, payload)
        })
    })
}

fn flow() -> impl Strategy<Value = IcrcFlow> {
    prop_oneof![
        any::<([u8; 4], [u8; 4], u16, bool)>().prop_map(|(src, dst, port, df)| IcrcFlow::v4_with_df(
            src.into(),
            dst.into(),
            port,
            df
        )),
        any::<([u8; 16], [u8; 16], u16)>().prop_map(|(src, dst, port)| IcrcFlow::v6(
            src.into(),
            dst.into(),
            port
        )),
    ]
}

/// The UDP payload of a packet.
fn assemble(repr: &PacketRepr, payload: &[u8], flow: &IcrcFlow, ip_id: u16) -> Vec<u8> {
    // Poisoned, so that a byte that emit leaves out shows.
    let mut bytes = vec![0xa5; MAX_HEADER_BYTES];
    let len = repr.emit_headers(&mut bytes).unwrap();
    bytes.truncate(len);
    bytes.extend_from_slice(payload);
    bytes.extend_from_slice(repr.bth.pad.bytes());
    if repr.bth.opcode == Opcode::CNP {
        bytes.extend_from_slice(&[0; 16]);
    }
    let icrc = flow.compute(&bytes, ip_id);
    bytes.extend_from_slice(&icrc.to_le_bytes());
    bytes
}

proptest! {
    #![proptest_config(config(1000))]

    #[test]
    fn parse_undoes_emit((repr, payload) in packet(), flow in flow(), id: u16) {
        let bytes = assemble(&repr, &payload, &flow, id);
        let parsed = parse(&bytes).unwrap();
        prop_assert_eq!(parsed.repr, repr);
        prop_assert_eq!(parsed.payload, &payload[..]);
        prop_assert_eq!(parsed.check_payload_len(Mtu::B256), Ok(()));
        prop_assert_eq!(flow.check(&bytes, id), IcrcVerdict::Exact);
        if repr.bth.opcode != Opcode::CNP {
            prop_assert_eq!(bytes.len(), repr.udp_payload_len(payload.len()));
        }
    }

    #[test]
    fn every_other_length_is_refused((repr, payload) in packet(), flow in flow(), cut in 1usize..300) {
        let bytes = assemble(&repr, &payload, &flow, 0);
        let keep = bytes.len().saturating_sub(cut);
        match parse(&bytes[..keep]) {
            Err(_) => {}
            // Only payload can be missing unnoticed here; the ICRC then tells.
            Ok(parsed) => {
                prop_assert!(parsed.info.has_payload() || parsed.info.kind == Kind::SelectiveAck);
                prop_assert!(parsed.payload.len() < payload.len());
                prop_assert!(keep % 4 == 0);
                prop_assert!(flow.check(&bytes[..keep], 0) != IcrcVerdict::Exact);
            }
        }
    }

    #[test]
    fn emit_needs_exactly_the_headers_room((repr, _) in packet(), room in 0usize..=MAX_HEADER_BYTES) {
        let mut bytes = [0xa5; MAX_HEADER_BYTES];
        match repr.emit_headers(&mut bytes[..room]) {
            Ok(len) => {
                prop_assert!(len == repr.header_len() && len <= room);
                prop_assert!(bytes[len..].iter().all(|b| *b == 0xa5));
            }
            Err(_) => {
                prop_assert!(room < repr.header_len());
                prop_assert_eq!(bytes, [0xa5; MAX_HEADER_BYTES]);
            }
        }
    }

    #[test]
    fn emit_refuses_headers_of_another_opcode((repr, _) in packet(), (other, _) in packet()) {
        let mixed = PacketRepr { bth: repr.bth, ..other };
        let fits = repr.ext.layout() == other.ext.layout() && repr.xrc.is_some() == other.xrc.is_some();
        prop_assert_eq!(mixed.emit_headers(&mut [0; MAX_HEADER_BYTES]).is_ok(), fits);
    }

    #[test]
    fn icrc_does_not_depend_on_the_pieces(
        flow in flow(), id: u16, bytes in prop::collection::vec(any::<u8>(), 0..200), cuts: [u8; 6],
    ) {
        let mut cuts = cuts.map(|c| usize::from(c).min(bytes.len()));
        cuts.sort_unstable();
        let mut icrc = flow.begin(bytes.len() + ICRC_BYTES, id);
        let mut from = 0;
        for to in cuts.into_iter().chain([bytes.len()]) {
            icrc.update(&bytes[from..to]);
            from = to;
        }
        prop_assert_eq!(icrc.finish(), flow.compute(&bytes, id).to_le_bytes());
    }

    #[test]
    fn ip_packets_come_back(
        v4: bool, addresses: ([u8; 16], [u8; 16]), ports: (u16, u16), tos: u8, ttl: u8, flow_label in 0u32..1 << 20,
        id: u16, dont_fragment: bool, checksum: u16, payload in prop::collection::vec(any::<u8>(), 0..100),
        trailer in prop::collection::vec(any::<u8>(), 0..10),
    ) {
        let udp_len = (UDP_LEN + payload.len()) as u16;
        let (src6, dst6) = addresses;
        let ident = Ipv4Ident { id, dont_fragment };
        let mut packet = vec![];
        let (src, dst) = if v4 {
            let (src, dst) = (*src6.first_chunk::<4>().unwrap(), *dst6.first_chunk::<4>().unwrap());
            let ip = Ipv4Repr {
                src: src.into(), dst: dst.into(), protocol: PROTO_UDP, tos, ident, ttl, payload_len: udp_len,
            };
            let mut header = [0xa5; IPV4_LEN];
            ip.emit(&mut header);
            packet.extend_from_slice(&header);
            (std::net::IpAddr::from(src), std::net::IpAddr::from(dst))
        } else {
            let ip = Ipv6Repr {
                src: src6.into(), dst: dst6.into(), next_header: PROTO_UDP, traffic_class: tos, flow_label,
                hop_limit: ttl, payload_len: udp_len,
            };
            let mut header = [0xa5; IPV6_LEN];
            ip.emit(&mut header);
            packet.extend_from_slice(&header);
            packet.extend_from_slice(&vec![0; usize::from(udp_len)]);
            prop_assert_eq!(Ipv6Repr::parse(&packet).unwrap().0, ip);
            packet.truncate(IPV6_LEN);
            (src6.into(), dst6.into())
        };
        let mut udp = [0xa5; UDP_LEN];
        let (src_port, dst_port) = ports;
        UdpRepr { src_port, dst_port, payload_len: payload.len() as u16, checksum }.emit(&mut udp);
        packet.extend_from_slice(&udp);
        packet.extend_from_slice(&payload);
        let end = packet.len();
        // Short Ethernet frames are padded.
        packet.extend_from_slice(&trailer);
        let expected =
            Datagram { src, dst, src_port, dst_port, ident: v4.then_some(ident), tos, payload: &payload };
        prop_assert_eq!(Datagram::parse(&packet), Ok(expected));
        for keep in 0..end {
            prop_assert!(Datagram::parse(&packet[..keep]).is_err());
        }
    }
}

/// Bytes under the ICRC of the longest UDP datagram over IPv4.
const MAX_COVERED_BYTES: usize = 65_535 - IPV4_LEN - UDP_LEN - ICRC_BYTES;

proptest! {
    #![proptest_config(config(100))]

    #[test]
    fn identification_is_found_at_any_length(
        src: [u8; 4], dst: [u8; 4], port: u16, id: u16, likely: u16, df: bool, len in 0usize..=MAX_COVERED_BYTES, seed: u8,
    ) {
        let flow = |df| IcrcFlow::v4_with_df(src.into(), dst.into(), port, df);
        let mut bytes = vec![seed; len];
        let icrc = flow(df).compute(&bytes, id);
        prop_assert_eq!(explain_ipv4_id(flow(df).compute(&bytes, 0), icrc, len + ICRC_BYTES), Some(id));
        bytes.extend_from_slice(&icrc.to_le_bytes());
        let verdict = flow(true).check(&bytes, likely);
        let found = IcrcVerdict::Explained(Ipv4Ident { id, dont_fragment: df });
        prop_assert_eq!(verdict, if df && id == likely { IcrcVerdict::Exact } else { found });
    }
}

proptest! {
    #![proptest_config(config(4000))]

    /// Whatever parses must emit into the bytes that it came from, but for reserved bits.
    #[test]
    fn parse_survives_any_bytes(mut bytes in prop::collection::vec(any::<u8>(), 0..120), steer: bool) {
        if let (true, Some([opcode, flags])) = (steer, bytes.first_chunk_mut::<2>()) {
            // A known opcode and version reach deeper.
            *opcode = Opcode::TABLE[usize::from(*opcode) % Opcode::TABLE.len()].opcode.0;
            *flags &= 0xf0;
        }
        if let Ok(parsed) = parse(&bytes) {
            let mut headers = [0xa5; MAX_HEADER_BYTES];
            let len = parsed.repr.emit_headers(&mut headers).unwrap();
            let mut original = bytes[..len].to_vec();
            original[4] &= 0xc0;
            original[8] &= 0x80;
            if parsed.repr.xrc.is_some() {
                original[12] = 0;
            }
            prop_assert_eq!(&headers[..len], &original[..]);
            prop_assert!(Mtu::ALL.iter().all(|m| parsed.check_payload_len(*m).is_ok() || parsed.info.has_payload()));
        }
    }

    #[test]
    fn ip_and_icrc_survive_any_bytes(mut bytes in prop::collection::vec(any::<u8>(), 0..120), version in 4u8..=6) {
        if let Some(first) = bytes.first_mut() {
            *first = version << 4 | 5;
        }
        if let Ok(datagram) = Datagram::parse(&bytes) {
            datagram.check_icrc();
        }
        let flow = IcrcFlow::v4([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), ROCEV2_UDP_PORT);
        prop_assert!(flow.check(&bytes, 0) != IcrcVerdict::Exact);
        for link in [LinkType::Ethernet, LinkType::RawIp, LinkType::LinuxSll, LinkType::LinuxSll2] {
            link.ip_packet(&bytes);
        }
    }

    #[test]
    fn pcap_survives_any_bytes(mut bytes in prop::collection::vec(any::<u8>(), 0..200), swap: bool) {
        if let Some(magic) = bytes.first_chunk_mut::<4>() {
            *magic = if swap { [0xa1, 0xb2, 0xc3, 0xd4] } else { [0xd4, 0xc3, 0xb2, 0xa1] };
        }
        if let Some(link) = bytes.get_mut(20..24) {
            link.copy_from_slice(if swap { &[0, 0, 0, 1] } else { &[1, 0, 0, 0] });
        }
        if let Ok(pcap) = Pcap::new(&bytes) {
            prop_assert!(pcap.count() <= bytes.len());
        }
    }
}
