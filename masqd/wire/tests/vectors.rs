//! Packets made by software that is not ours; see data/README.md.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use masq_wire::ip::Datagram;
use masq_wire::pcap::Pcap;
use masq_wire::{
    Extension, ICRC_BYTES, IcrcFlow, IcrcVerdict, Ipv4Ident, MAX_HEADER_BYTES, Opcode, ROCEV2_UDP_PORT,
    Transport, explain_ipv4_id, parse,
};

fn data_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data")
}

/// The IP packets of all RoCEv2 frames in a capture.
fn roce_packets(file: &Path) -> Vec<Vec<u8>> {
    let bytes = fs::read(file).unwrap();
    let pcap = Pcap::new(&bytes).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
    let link_type = pcap.link_type();
    let records: Vec<_> = pcap.map(|r| r.unwrap_or_else(|e| panic!("{}: {e}", file.display()))).collect();
    let ip = records.iter().filter_map(|r| link_type.ip_packet(r.frame));
    ip.filter(|p| Datagram::parse(p).is_ok_and(|d| d.dst_port == ROCEV2_UDP_PORT))
        .map(<[u8]>::to_vec)
        .collect()
}

/// The IP packets of both files that Scapy wrote.
fn scapy_packets() -> Vec<Vec<u8>> {
    ["scapy_v4.pcap", "scapy_v6.pcap"].iter().flat_map(|name| roce_packets(&data_dir().join(name))).collect()
}

#[test]
fn every_captured_packet_parses_and_has_a_right_icrc() {
    let mut files = 0;
    for entry in fs::read_dir(data_dir()).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|e| e != "pcap") {
            continue;
        }
        files += 1;
        let packets = roce_packets(&path);
        assert!(!packets.is_empty(), "{}: no RoCEv2 packet", path.display());
        for (i, packet) in packets.iter().enumerate() {
            let datagram = Datagram::parse(packet).unwrap();
            let at = format!("{}: RoCEv2 packet {i}", path.display());
            assert_eq!(datagram.check_icrc(), IcrcVerdict::Exact, "{at}");
            parse(datagram.payload).unwrap_or_else(|e| panic!("{at}: {e}"));
        }
    }
    assert!(files >= 2, "only {files} captures");
}

#[test]
fn scapy_covers_the_whole_opcode_table() {
    for version in [4, 6] {
        // Scapy has no XRCETH, and nobody else has our own opcodes.
        let foreign = [Transport::Xrc, Transport::Manufacturer];
        for info in Opcode::TABLE.iter().filter(|i| !foreign.contains(&i.transport)) {
            let found = scapy_packets().iter().any(|p| {
                let payload = Datagram::parse(p).unwrap().payload;
                p[0] >> 4 == version && payload[0] == info.opcode.0
            });
            assert!(found, "IPv{version} {}", info.name);
        }
    }
}

#[test]
fn emitting_what_was_parsed_gives_the_same_bytes() {
    for packet in scapy_packets() {
        let payload = Datagram::parse(&packet).unwrap().payload;
        let parsed = parse(payload).unwrap();
        let mut headers = [0xa5; MAX_HEADER_BYTES];
        let len = parsed.repr.emit_headers(&mut headers).unwrap();
        assert_eq!(headers[..len], payload[..len], "{}", parsed.info.name);
    }
}

/// A second reading of the standard: mask a copy of the whole packet, then take one CRC over it.
fn masked_copy_icrc(ip_packet: &[u8], covered: usize) -> u32 {
    let mut masked = [&[0xff; 8], &ip_packet[..covered]].concat();
    let (ip, udp) = (8, 8 + if ip_packet[0] >> 4 == 4 { 20 } else { 40 });
    if ip_packet[0] >> 4 == 4 {
        for at in [1, 8, 10, 11] {
            masked[ip + at] = 0xff;
        }
    } else {
        masked[ip] |= 0x0f;
        for at in [1, 2, 3, 7] {
            masked[ip + at] = 0xff;
        }
    }
    for at in [6, 7, 8 + 4] {
        masked[udp + at] = 0xff;
    }
    crc32fast::hash(&masked)
}

#[test]
fn a_masked_copy_of_the_packet_gives_the_same_icrc() {
    for packet in scapy_packets() {
        let icrc = parse(Datagram::parse(&packet).unwrap().payload).unwrap().icrc;
        assert_eq!(masked_copy_icrc(&packet, packet.len() - ICRC_BYTES), icrc);
    }
}

#[test]
fn any_flipped_bit_of_the_payload_is_noticed_unless_it_is_masked() {
    for packet in scapy_packets().iter().step_by(7) {
        let datagram = Datagram::parse(packet).unwrap();
        for bit in 0..datagram.payload.len() * 8 {
            let mut payload = datagram.payload.to_vec();
            payload[bit / 8] ^= 1 << (bit % 8);
            let verdict = Datagram { payload: &payload, ..datagram }.check_icrc();
            let masked = bit / 8 == 4;
            assert_eq!(verdict == IcrcVerdict::Exact, masked, "bit {bit}");
        }
    }
}

#[test]
fn an_unseen_identification_is_found() {
    let mut seen = 0;
    for packet in scapy_packets() {
        let d = Datagram::parse(&packet).unwrap();
        let (Some(ident), std::net::IpAddr::V4(src), std::net::IpAddr::V4(dst)) = (d.ident, d.src, d.dst)
        else {
            continue;
        };
        let covered = &d.payload[..d.payload.len() - ICRC_BYTES];
        let got = parse(d.payload).unwrap().icrc;

        let same_flag = IcrcFlow::v4_with_df(src, dst, d.src_port, ident.dont_fragment);
        assert_eq!(explain_ipv4_id(same_flag.compute(covered, 0), got, d.payload.len()), Some(ident.id));
        let other_flag = IcrcFlow::v4_with_df(src, dst, d.src_port, !ident.dont_fragment);
        assert_eq!(explain_ipv4_id(other_flag.compute(covered, 0), got, d.payload.len()), None);

        for flow in [same_flag, other_flag] {
            // A likely Identification that is wrong.
            assert_eq!(flow.check(d.payload, !ident.id), IcrcVerdict::Explained(ident));
        }
        seen += 1;
    }
    assert!(seen > 100);
}

/// The weakened check lets about one in 2^15 wrong ICRCs pass, as its documentation says, and the exact
/// one none of these.
#[test]
fn an_unseen_identification_explains_few_wrong_icrcs() {
    let flow = IcrcFlow::v4([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), 0xc000);
    let mut packet = vec![0x5a; 64];
    let right = flow.compute(&packet, 0);
    packet.extend_from_slice(&right.to_le_bytes());
    let mut explained = 0;
    let tries = 1 << 19;
    for i in 1..=tries {
        let wrong = right ^ (i as u32).wrapping_mul(0x9e37_79b1);
        packet[64..].copy_from_slice(&wrong.to_le_bytes());
        match flow.check(&packet, 0) {
            IcrcVerdict::Exact => panic!("{wrong:#x}"),
            IcrcVerdict::Explained(Ipv4Ident { .. }) => explained += 1,
            IcrcVerdict::Bad => {}
        }
    }
    let expected = tries / (1 << 15);
    assert!(
        (expected / 2..=expected * 2).contains(&explained),
        "{explained} of {tries}, {expected} expected"
    );
}

/// A line of what tshark read: the fields that it found, by name.
type Row = HashMap<String, String>;

fn tshark_rows(file: &Path) -> Vec<Row> {
    let text = fs::read_to_string(file).unwrap();
    let mut lines = text.lines();
    let names: Vec<_> = lines.next().unwrap().split('\t').collect();
    let row = |line: &str| -> Row {
        let cells = names.iter().zip(line.split('\t')).filter(|(_, value)| !value.is_empty());
        cells.map(|(name, value)| (name.trim_start_matches("infiniband.").into(), value.into())).collect()
    };
    lines.map(row).collect()
}

fn number(field: &str, text: &str) -> u64 {
    // Fields of type "bytes" are hexadecimal without a prefix.
    let bytes = matches!(field, "immdt" | "ieth").then_some(text);
    match bytes.or(text.strip_prefix("0x")) {
        Some(hex) => u64::from_str_radix(hex, 16).unwrap(),
        None => text.parse().unwrap(),
    }
}

/// The same fields as we read them.
fn our_row(datagram: &Datagram<'_>) -> Vec<(&'static str, u64)> {
    let parsed = parse(datagram.payload).unwrap();
    let bth = parsed.repr.bth;
    let mut row = vec![
        ("udp.srcport", datagram.src_port.into()),
        ("udp.length", datagram.payload.len() as u64 + 8),
        ("bth.opcode", bth.opcode.0.into()),
        ("bth.se", bth.solicited.into()),
        ("bth.m", bth.mig_req.into()),
        ("bth.padcnt", bth.pad.get() as u64),
        ("bth.p_key", bth.pkey.into()),
        ("bth.destqp", bth.dest_qp.get().into()),
        ("bth.a", bth.ack_req.into()),
        ("bth.psn", bth.psn.get().into()),
    ];
    let ext = parsed.repr.ext;
    if let Some(r) = ext.reth() {
        row.extend([("reth.va", r.va), ("reth.r_key", r.rkey.0.into()), ("reth.dmalen", r.dma_len.into())]);
    }
    if let Some(a) = ext.aeth() {
        row.extend([("aeth.syndrome", a.syndrome.to_byte().into()), ("aeth.msn", a.msn.get().into())]);
    }
    if let Some(d) = ext.deth() {
        row.extend([("deth.q_key", d.qkey.into()), ("deth.srcqp", d.src_qp.get().into())]);
    }
    if let Extension::Atomic(a) = ext {
        // tshark names address and key of this header as it does those of a RETH.
        row.extend([("reth.va", a.va), ("reth.r_key", a.rkey.0.into())]);
        row.extend([("atomiceth.swapdt", a.swap_or_add), ("atomiceth.cmpdt", a.compare)]);
    }
    if let Some(a) = ext.atomic_ack() {
        row.push(("atomicacketh.origremdt", a.original));
    }
    if let Some(imm) = ext.imm() {
        row.push(("immdt", u32::from_be_bytes(imm.0).into()));
    }
    if let Some(ieth) = ext.ieth() {
        row.push(("ieth", ieth.0.0.into()));
    }
    row
}

#[test]
fn wireshark_reads_the_same_fields() {
    for name in ["scapy_v4", "scapy_v6"] {
        let rows = tshark_rows(&data_dir().join(name).with_extension("tsv"));
        let packets = roce_packets(&data_dir().join(name).with_extension("pcap"));
        assert_eq!(rows.len(), packets.len());
        for (i, (mut row, packet)) in rows.into_iter().zip(packets).enumerate() {
            let datagram = Datagram::parse(&packet).unwrap();
            for (field, ours) in our_row(&datagram) {
                let theirs = row.remove(field).unwrap_or_else(|| panic!("{name} packet {i}: no {field}"));
                assert_eq!(number(field, &theirs), ours, "{name} packet {i}: {field}");
            }
            // Whole headers as bytes, and the ICRC, which tshark shows for some packets only.
            row.retain(|field, _| !matches!(field.as_str(), "deth" | "atomiceth" | "invariant.crc"));
            assert!(row.is_empty(), "{name} packet {i}: tshark alone reads {row:?}");
        }
    }
}
