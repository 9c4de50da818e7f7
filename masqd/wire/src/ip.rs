//! As much of IPv4, IPv6 and UDP as captures and raw sockets need (RFC 791, RFC 8200, RFC 768).

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::view::{field, put};
use crate::{IcrcFlow, IcrcVerdict, Ipv4Ident};

/// The protocol number of UDP.
pub const PROTO_UDP: u8 = 17;
/// Length of an IPv4 header without options.
pub const IPV4_LEN: usize = 20;
/// Length of an IPv6 header.
pub const IPV6_LEN: usize = 40;
/// Length of a UDP header.
pub const UDP_LEN: usize = 8;

/// Why bytes are no UDP datagram that RoCEv2 could use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IpError {
    /// Fewer bytes than the header itself needs, or than its length field says.
    #[error("{what}: {got} bytes where {need} are needed")]
    Truncated {
        /// What does not fit.
        what: &'static str,
        /// Bytes that it needs.
        need: usize,
        /// Bytes that there are.
        got: usize,
    },
    /// Neither IPv4 nor IPv6, or not the one expected.
    #[error("IP version {0}")]
    Version(u8),
    /// An IPv4 header with options, which RoCEv2 does not use, or shorter than a header can be.
    #[error("an IPv4 header of {0} words where RoCEv2 has 5")]
    HeaderLength(u8),
    /// The IPv4 header checksum is wrong.
    #[error("wrong IPv4 header checksum")]
    Checksum,
    /// A fragment of an IPv4 datagram.
    #[error("a fragment of a datagram")]
    Fragment,
    /// The IP payload is not UDP.
    #[error("IP protocol {0} where UDP is 17")]
    Protocol(u8),
    /// The UDP length does not fill the IP payload exactly.
    #[error("UDP length {udp} in an IP payload of {ip} bytes")]
    UdpLength {
        /// The UDP header's length field.
        udp: usize,
        /// Bytes of IP payload.
        ip: usize,
    },
}

/// An IPv4 header's meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipv4Repr {
    /// Source address.
    pub src: Ipv4Addr,
    /// Destination address.
    pub dst: Ipv4Addr,
    /// Protocol of the payload.
    pub protocol: u8,
    /// Type of service: DSCP and ECN.
    pub tos: u8,
    /// Identification and the don't-fragment flag.
    pub ident: Ipv4Ident,
    /// Time to live.
    pub ttl: u8,
    /// Bytes behind the header, at most 65,515.
    pub payload_len: u16,
}

impl Ipv4Repr {
    /// Judges a header and returns it with its payload. Bytes behind the total length (an Ethernet
    /// frame's padding) are dropped.
    pub fn parse(bytes: &[u8]) -> Result<(Self, &[u8]), IpError> {
        let got = bytes.len();
        let truncated = |need| IpError::Truncated { what: "IPv4", need, got };
        let header: &[u8; IPV4_LEN] = bytes.first_chunk().ok_or(truncated(IPV4_LEN))?;
        match (header[0] >> 4, header[0] & 0xf) {
            (4, 5) => {}
            (4, words) => return Err(IpError::HeaderLength(words)),
            (version, _) => return Err(IpError::Version(version)),
        }
        if checksum(header) != 0 {
            return Err(IpError::Checksum);
        }
        let total_len = usize::from(field!(header, 2, u16));
        let payload = bytes.get(IPV4_LEN..total_len).ok_or(truncated(total_len.max(IPV4_LEN)))?;
        // More-fragments, the offset, and the reserved bit must be zero.
        if field!(header, 6, u16) & !0x4000 != 0 {
            return Err(IpError::Fragment);
        }
        let repr = Self {
            src: field!(header, 12, u32).into(),
            dst: field!(header, 16, u32).into(),
            protocol: header[9],
            tos: header[1],
            ident: Ipv4Ident { id: field!(header, 4, u16), dont_fragment: header[6] & 0x40 != 0 },
            ttl: header[8],
            payload_len: payload.len() as u16,
        };
        Ok((repr, payload))
    }

    /// Writes all twenty bytes, with the checksum.
    pub fn emit(&self, bytes: &mut [u8; IPV4_LEN]) {
        bytes[0] = 0x45;
        bytes[1] = self.tos;
        put!(bytes, 2, u16, self.payload_len.wrapping_add(IPV4_LEN as u16));
        put!(bytes, 4, u16, self.ident.id);
        bytes[6] = if self.ident.dont_fragment { 0x40 } else { 0 };
        bytes[7] = 0;
        bytes[8] = self.ttl;
        bytes[9] = self.protocol;
        put!(bytes, 10, u16, 0);
        put!(bytes, 12, u32, self.src.to_bits());
        put!(bytes, 16, u32, self.dst.to_bits());
        let sum = checksum(bytes);
        put!(bytes, 10, u16, sum);
    }
}

/// The Internet checksum (RFC 1071) of an IPv4 header: 0 for a header whose checksum field is right.
fn checksum(header: &[u8; IPV4_LEN]) -> u16 {
    let mut sum = 0;
    for word in header.chunks_exact(2) {
        sum += u32::from(field!(word, 0, u16));
    }
    // Ten words carry at most into bit 19, so that two folds reach 16 bits.
    sum = (sum & 0xffff) + (sum >> 16);
    sum = (sum & 0xffff) + (sum >> 16);
    !(sum as u16)
}

/// An IPv6 header's meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipv6Repr {
    /// Source address.
    pub src: Ipv6Addr,
    /// Destination address.
    pub dst: Ipv6Addr,
    /// Protocol of the payload, or of the first extension header.
    pub next_header: u8,
    /// Traffic class: DSCP and ECN.
    pub traffic_class: u8,
    /// Flow label, below 2^20; higher bits are not emitted.
    pub flow_label: u32,
    /// Hop limit.
    pub hop_limit: u8,
    /// Bytes behind the header.
    pub payload_len: u16,
}

impl Ipv6Repr {
    /// Judges a header and returns it with its payload. Bytes behind the payload length are dropped.
    pub fn parse(bytes: &[u8]) -> Result<(Self, &[u8]), IpError> {
        let got = bytes.len();
        let truncated = |need| IpError::Truncated { what: "IPv6", need, got };
        let header: &[u8; IPV6_LEN] = bytes.first_chunk().ok_or(truncated(IPV6_LEN))?;
        let version = header[0] >> 4;
        if version != 6 {
            return Err(IpError::Version(version));
        }
        let payload_len = field!(header, 4, u16);
        let end = IPV6_LEN + usize::from(payload_len);
        let payload = bytes.get(IPV6_LEN..end).ok_or(truncated(end))?;
        let word = field!(header, 0, u32);
        let address = |high: u64, low: u64| Ipv6Addr::from(u128::from(high) << 64 | u128::from(low));
        let repr = Self {
            src: address(field!(header, 8, u64), field!(header, 16, u64)),
            dst: address(field!(header, 24, u64), field!(header, 32, u64)),
            next_header: header[6],
            traffic_class: (word >> 20) as u8,
            flow_label: word & 0xf_ffff,
            hop_limit: header[7],
            payload_len,
        };
        Ok((repr, payload))
    }

    /// Writes all forty bytes.
    pub fn emit(&self, bytes: &mut [u8; IPV6_LEN]) {
        let word = 6 << 28 | u32::from(self.traffic_class) << 20 | self.flow_label & 0xf_ffff;
        put!(bytes, 0, u32, word);
        put!(bytes, 4, u16, self.payload_len);
        bytes[6] = self.next_header;
        bytes[7] = self.hop_limit;
        bytes[8..24].copy_from_slice(&self.src.octets());
        bytes[24..40].copy_from_slice(&self.dst.octets());
    }
}

/// A UDP header's meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdpRepr {
    /// Source port.
    pub src_port: u16,
    /// Destination port.
    pub dst_port: u16,
    /// Bytes behind the header, at most 65,527.
    pub payload_len: u16,
    /// Checksum as it stands there; 0 means none. Not judged: the ICRC protects RoCEv2.
    pub checksum: u16,
}

impl UdpRepr {
    /// Judges a header and returns it with its payload, which must fill `bytes`.
    pub fn parse(bytes: &[u8]) -> Result<(Self, &[u8]), IpError> {
        let got = bytes.len();
        let truncated = IpError::Truncated { what: "UDP", need: UDP_LEN, got };
        let (header, payload) = bytes.split_first_chunk::<UDP_LEN>().ok_or(truncated)?;
        let udp = usize::from(field!(header, 4, u16));
        if udp != got {
            return Err(IpError::UdpLength { udp, ip: got });
        }
        let repr = Self {
            src_port: field!(header, 0, u16),
            dst_port: field!(header, 2, u16),
            payload_len: payload.len() as u16,
            checksum: field!(header, 6, u16),
        };
        Ok((repr, payload))
    }

    /// Writes all eight bytes.
    pub fn emit(&self, bytes: &mut [u8; UDP_LEN]) {
        put!(bytes, 0, u16, self.src_port);
        put!(bytes, 2, u16, self.dst_port);
        put!(bytes, 4, u16, self.payload_len.wrapping_add(UDP_LEN as u16));
        put!(bytes, 6, u16, self.checksum);
    }
}

/// The checksum of a UDP datagram between these addresses (RFC 8200 §8.1), whose payload may not be longer than `udp` says.
pub fn udp_checksum_v6(src: Ipv6Addr, dst: Ipv6Addr, udp: &UdpRepr, payload: &[u8]) -> u16 {
    let mut header = [0; UDP_LEN];
    UdpRepr { checksum: 0, ..*udp }.emit(&mut header);
    let len = u32::from(udp.payload_len) + UDP_LEN as u32;
    let sum = words(&src.octets())
        + words(&dst.octets())
        + words(&len.to_be_bytes())
        + u64::from(PROTO_UDP)
        + words(&header)
        + words(payload);
    let mut folded = sum;
    while folded > 0xffff {
        folded = (folded & 0xffff) + (folded >> 16);
    }
    // Zero would mean that there is none.
    match !(folded as u16) {
        0 => 0xffff,
        sum => sum,
    }
}

/// The sum of all 16-bit words, the last one filled up with zero.
fn words(bytes: &[u8]) -> u64 {
    let (pairs, rest) = bytes.as_chunks::<2>();
    let sum: u64 = pairs.iter().map(|p| u64::from(u16::from_be_bytes(*p))).sum();
    sum + rest.first().map_or(0, |b| u64::from(*b) << 8)
}

/// A UDP datagram with the IP fields that RoCEv2 reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Datagram<'a> {
    /// Source address.
    pub src: IpAddr,
    /// Destination address.
    pub dst: IpAddr,
    /// Source port.
    pub src_port: u16,
    /// Destination port.
    pub dst_port: u16,
    /// Identification and flag of an IPv4 header.
    pub ident: Option<Ipv4Ident>,
    /// DSCP and ECN.
    pub tos: u8,
    /// The UDP payload.
    pub payload: &'a [u8],
}

impl<'a> Datagram<'a> {
    /// Judges an IP packet, as it stands behind the link layer's header.
    pub fn parse(packet: &'a [u8]) -> Result<Self, IpError> {
        let version = packet.first().ok_or(IpError::Truncated { what: "IP", need: 1, got: 0 })? >> 4;
        let (src, dst, protocol, ident, tos, rest) = if version == 6 {
            let (ip, rest) = Ipv6Repr::parse(packet)?;
            (ip.src.into(), ip.dst.into(), ip.next_header, None, ip.traffic_class, rest)
        } else {
            let (ip, rest) = Ipv4Repr::parse(packet)?;
            (ip.src.into(), ip.dst.into(), ip.protocol, Some(ip.ident), ip.tos, rest)
        };
        if protocol != PROTO_UDP {
            return Err(IpError::Protocol(protocol));
        }
        let (udp, payload) = UdpRepr::parse(rest)?;
        Ok(Self { src, dst, src_port: udp.src_port, dst_port: udp.dst_port, ident, tos, payload })
    }

    /// Checks the ICRC at the end of the payload against this very IP header: the verdict is never
    /// [`IcrcVerdict::Explained`].
    pub fn check_icrc(&self) -> IcrcVerdict {
        let flow = match (self.src, self.dst, self.ident) {
            (IpAddr::V4(src), IpAddr::V4(dst), Some(ident)) => {
                IcrcFlow::v4_with_df(src, dst, self.src_port, ident.dont_fragment)
            }
            (IpAddr::V6(src), IpAddr::V6(dst), _) => IcrcFlow::v6(src, dst, self.src_port),
            _ => return IcrcVerdict::Bad,
        };
        match flow.check(self.payload, self.ident.map_or(0, |ident| ident.id)) {
            IcrcVerdict::Exact => IcrcVerdict::Exact,
            IcrcVerdict::Explained(_) | IcrcVerdict::Bad => IcrcVerdict::Bad,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of the Internet checksum that many texts use, with its UDP header completed.
    const V4: [u8; 28] = [
        0x45, 0, 0, 0x1c, 0, 0, 0x40, 0, 0x40, 0x11, 0xb8, 0xb8, 0xc0, 0xa8, 0, 1, 0xc0, 0xa8, 0,
        0xc7, // IPv4
        0xc0, 0x12, 0x12, 0xb7, 0, 8, 0, 0, // UDP
    ];

    #[test]
    fn golden_bytes_of_ipv4_both_ways() {
        let ip = Ipv4Repr {
            src: [192, 168, 0, 1].into(),
            dst: [192, 168, 0, 199].into(),
            protocol: PROTO_UDP,
            tos: 0,
            ident: Ipv4Ident { id: 0, dont_fragment: true },
            ttl: 64,
            payload_len: 8,
        };
        assert_eq!(Ipv4Repr::parse(&V4), Ok((ip, &V4[20..])));
        let mut out = [0xa5; IPV4_LEN];
        ip.emit(&mut out);
        assert_eq!(out, V4[..20]);
    }

    #[test]
    fn the_published_checksum_example() {
        let header =
            [0x45, 0, 0, 0x73, 0, 0, 0x40, 0, 0x40, 0x11, 0xb8, 0x61, 0xc0, 0xa8, 0, 1, 0xc0, 0xa8, 0, 0xc7];
        assert_eq!(checksum(&header), 0);
        let mut blank = header;
        blank[10..12].fill(0);
        assert_eq!(checksum(&blank), 0xb861);
    }

    /// By hand: the words of a pseudo header and of a datagram, added up.
    #[test]
    fn the_checksum_of_udp_over_ipv6() {
        let (src, dst) = ("::1".parse().unwrap(), "::2".parse().unwrap());
        let udp = |payload_len| UdpRepr { src_port: 3, dst_port: 4, payload_len, checksum: 0x5555 };
        // 1 + 2, length 8 twice, 17, ports 3 + 4.
        assert_eq!(udp_checksum_v6(src, dst, &udp(0), &[]), !(1 + 2 + 8 + 17 + 3 + 4 + 8));
        let odd = 1 + 2 + 11 + 17 + 3 + 4 + 11;
        assert_eq!(udp_checksum_v6(src, dst, &udp(3), &[0x01, 0x02, 0x03]), !(odd + 0x0102 + 0x0300));
        // A sum of all ones must not look like none.
        let rest = 0xffff - (1 + 2 + 10 + 17 + 3 + 4 + 10);
        assert_eq!(udp_checksum_v6(src, dst, &udp(2), &u16::to_be_bytes(rest)), 0xffff);
    }

    #[test]
    fn golden_bytes_of_ipv6_both_ways() {
        let mut bytes = [0; IPV6_LEN];
        bytes[..8].copy_from_slice(&[0x6a, 0xbc, 0xde, 0xf1, 0, 0, 17, 63]);
        bytes[8] = 0xfe;
        bytes[23] = 1;
        bytes[24] = 0x20;
        bytes[39] = 2;
        let ip = Ipv6Repr {
            src: "fe00::1".parse().unwrap(),
            dst: "2000::2".parse().unwrap(),
            next_header: PROTO_UDP,
            traffic_class: 0xab,
            flow_label: 0xc_def1,
            hop_limit: 63,
            payload_len: 0,
        };
        assert_eq!(Ipv6Repr::parse(&bytes), Ok((ip, &[][..])));
        let mut out = [0xa5; IPV6_LEN];
        ip.emit(&mut out);
        assert_eq!(out, bytes);
    }

    /// V4 with some bytes changed and the checksum made right.
    fn changed(changes: &[(usize, u8)]) -> [u8; 28] {
        let mut bytes = V4;
        for &(at, value) in changes {
            bytes[at] = value;
        }
        let (header, _) = bytes.split_first_chunk_mut::<IPV4_LEN>().unwrap();
        header[10..12].fill(0);
        let sum = checksum(header);
        put!(header, 10, u16, sum);
        bytes
    }

    #[test]
    fn refusals_name_their_reason() {
        let refusal = |bytes: &[u8]| Datagram::parse(bytes).unwrap_err();
        assert_eq!(refusal(&[]), IpError::Truncated { what: "IP", need: 1, got: 0 });
        assert_eq!(refusal(&changed(&[(0, 0x55)])), IpError::Version(5));
        assert_eq!(refusal(&changed(&[(0, 0x46)])), IpError::HeaderLength(6));
        assert_eq!(refusal(&changed(&[(0, 0x44)])), IpError::HeaderLength(4));
        let mut bytes = V4;
        bytes[8] = 1;
        assert_eq!(refusal(&bytes), IpError::Checksum);
        // More fragments; an offset; the reserved bit.
        for (at, value) in [(6, 0x20), (7, 1), (6, 0x80)] {
            assert_eq!(refusal(&changed(&[(at, value)])), IpError::Fragment);
        }
        assert_eq!(refusal(&changed(&[(9, 6)])), IpError::Protocol(6));
        assert_eq!(refusal(&changed(&[(3, 29)])), IpError::Truncated { what: "IPv4", need: 29, got: 28 });
        assert_eq!(refusal(&changed(&[(3, 10)])), IpError::Truncated { what: "IPv4", need: 20, got: 28 });
        assert_eq!(refusal(&changed(&[(3, 27)])), IpError::Truncated { what: "UDP", need: 8, got: 7 });
        for udp in [7, 9] {
            let error = IpError::UdpLength { udp: udp.into(), ip: 8 };
            assert_eq!(refusal(&changed(&[(25, udp)])), error);
        }
    }
}
