//! Datagrams and captures: parsing judges, and what it accepts is what is emitted again.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use masq_wire::ip::Datagram;
use masq_wire::pcap::Pcap;
use masq_wire::{Arrived, Bth, IcrcFlow, IcrcVerdict, Inquiry, Kind, MAX_HEADER_BYTES, PathProbe, parse};

/// One input: as a datagram's payload, an IP packet, and a capture.
pub fn run(data: &[u8]) {
    payload(data);
    checksums(data);
    if let Ok(datagram) = Datagram::parse(data) {
        assert!(datagram.payload.len() < data.len());
        datagram.check_icrc();
        payload(datagram.payload);
    }
    if let Ok(records) = Pcap::new(data) {
        let link = records.link_type();
        let mut bytes = 0;
        for record in records.map_while(Result::ok) {
            bytes += record.frame.len();
            if let Some(packet) = link.ip_packet(record.frame) {
                let _ = Datagram::parse(packet).map(|d| payload(d.payload));
            }
        }
        assert!(bytes < data.len(), "records overlap");
    }
}

fn payload(bytes: &[u8]) {
    if let Some(bth) = Bth::from_prefix(bytes) {
        bth.opcode().info();
    }
    if let Some(probe) = PathProbe::parse(bytes) {
        let mut again = Vec::new();
        assert_eq!(probe.emit(&mut again, bytes.len()).next_multiple_of(4), again.len());
        assert!(again.len() < bytes.len() + 4);
        assert_eq!(PathProbe::parse(&again), Some(probe));
    }
    if let Some(inquiry) = Inquiry::parse(bytes) {
        let mut again = Vec::new();
        assert_eq!(inquiry.emit(&mut again), bytes.len());
        assert_eq!(Inquiry::parse(&again), Some(inquiry));
    }
    let Ok(parsed) = parse(bytes) else { return };
    let mut headers = [0x5a; MAX_HEADER_BYTES];
    let len = parsed.repr.emit_headers(&mut headers).expect("what was parsed can be emitted");
    let bitmap = parsed.info.kind == Kind::SelectiveAck;
    assert!(parsed.payload.is_empty() || parsed.info.has_payload() || bitmap);
    assert!(Arrived::new(parsed.payload).places().all(|place| place < Arrived::MAX_BITS));
    assert!(len + parsed.payload.len() < bytes.len());
    // Reserved bits are lost; what is left has the same meaning.
    let rest = bytes.get(len..).unwrap_or_default();
    let again = [headers.get(..len).unwrap_or_default(), rest].concat();
    let reparsed = parse(&again).expect("what was emitted can be parsed");
    assert_eq!((reparsed.repr, reparsed.payload), (parsed.repr, parsed.payload));
}

/// A datagram with the right ICRC passes, and one with another ICRC does not pass as exact.
fn checksums(bytes: &[u8]) {
    let Some((covered, id)) = bytes.split_last_chunk::<2>() else { return };
    let id = u16::from_le_bytes(*id);
    let (v4, v6) = (IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST));
    for address in [v4, v6] {
        let flow = IcrcFlow::new(address, address, id).expect("one family");
        let mut sealed = covered.to_vec();
        sealed.extend(flow.compute(covered, id).to_le_bytes());
        assert_eq!(flow.check(&sealed, id), IcrcVerdict::Exact);
        flow.check(bytes, id);
        if let Some(last) = sealed.last_mut() {
            *last ^= 0x10;
        }
        assert_ne!(flow.check(&sealed, id), IcrcVerdict::Exact);
    }
}
