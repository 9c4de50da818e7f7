//! What stands before a received datagram.

use std::net::IpAddr;

use masq_types::Gid;
use masq_wire::Ipv4Ident;
use masq_wire::ip::{IPV4_LEN, IPV6_LEN, Ipv4Repr, Ipv6Repr, PROTO_UDP, UDP_LEN};

/// Bytes of the GRH area.
pub const GRH_BYTES: usize = IPV6_LEN;

/// The network header of a received datagram, with virtual addresses.
///
/// What the underlay did to hop limit and traffic class does not concern a guest, and a local datagram has crossed none: they
/// are constants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grh {
    /// The sender.
    pub source: Gid,
    /// The receiver.
    pub destination: Gid,
    /// Bytes of UDP payload, from BTH to ICRC.
    pub udp_payload_bytes: usize,
}

impl Grh {
    const HOPS: u8 = 64;

    /// Whether it is an IPv4 header.
    pub fn is_ipv4(&self) -> bool {
        self.source.ip().is_ipv4() && self.destination.ip().is_ipv4()
    }

    /// The GRH area: an IPv6 header, or twenty bytes of zeroes and an IPv4 header (IBTA Vol 1 §11.4.1.2, RoCEv2 Annex A17
    /// §A17.4.5.2).
    pub fn to_bytes(self) -> [u8; GRH_BYTES] {
        let mut bytes = [0; GRH_BYTES];
        let payload_len = u16::try_from(UDP_LEN + self.udp_payload_bytes).unwrap_or(u16::MAX);
        if let (IpAddr::V4(src), IpAddr::V4(dst)) = (self.source.ip(), self.destination.ip()) {
            let header = Ipv4Repr {
                src,
                dst,
                protocol: PROTO_UDP,
                tos: 0,
                ident: Ipv4Ident { id: 0, dont_fragment: true },
                ttl: Self::HOPS,
                payload_len,
            };
            if let Some(area) = bytes.last_chunk_mut::<IPV4_LEN>() {
                header.emit(area);
            }
            return bytes;
        }
        let header = Ipv6Repr {
            src: self.source.0.into(),
            dst: self.destination.0.into(),
            next_header: PROTO_UDP,
            traffic_class: 0,
            flow_label: 0,
            hop_limit: Self::HOPS,
            payload_len,
        };
        header.emit(&mut bytes);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grh(source: &str, destination: &str) -> Grh {
        let gid = |s: &str| Gid::from(s.parse::<IpAddr>().unwrap());
        Grh { source: gid(source), destination: gid(destination), udp_payload_bytes: 24 + 256 }
    }

    #[test]
    fn ipv4_stands_in_the_last_twenty_bytes() {
        let header = grh("192.168.0.1", "192.168.0.199");
        assert!(header.is_ipv4());
        let mut expected = [0; 40];
        // 20 + 8 + 280 bytes; the checksum was worked out by hand.
        expected[20..].copy_from_slice(&[
            0x45, 0, 1, 0x34, 0, 0, 0x40, 0, 64, 17, 0xb7, 0xa0, 192, 168, 0, 1, 192, 168, 0, 199,
        ]);
        assert_eq!(header.to_bytes(), expected);
    }

    #[test]
    fn ipv6_fills_all_forty() {
        let header = grh("fe80::1", "2001:db8::2");
        assert!(!header.is_ipv4());
        let mut expected = [0; 40];
        expected[..8].copy_from_slice(&[0x60, 0, 0, 0, 1, 0x20, 17, 64]);
        expected[8..10].copy_from_slice(&[0xfe, 0x80]);
        expected[23] = 1;
        expected[24..28].copy_from_slice(&[0x20, 1, 0x0d, 0xb8]);
        expected[39] = 2;
        assert_eq!(header.to_bytes(), expected);
    }
}
