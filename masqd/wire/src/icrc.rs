//! The invariant CRC of RoCEv2 packets (IBTA Vol 1 §7.8.1, RoCEv2 Annex A17).
//!
//! It is the CRC-32 of Ethernet over eight bytes of ones, the IP header, the UDP header and the UDP
//! payload up to the ICRC, where fields that may change on the way read as ones: in IPv4 the type of
//! service, time to live and header checksum; in IPv6 the traffic class, flow label and hop limit; the
//! UDP checksum; and the byte of the BTH with the congestion bits. It is sent in little-endian order.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crc32fast::Hasher;

use crate::ip::{IPV4_LEN, PROTO_UDP, UDP_LEN};
use crate::{Bth, ROCEV2_UDP_PORT};

/// Length of the ICRC in bytes.
pub const ICRC_BYTES: usize = 4;

/// Offset in the UDP payload of the BTH byte that is masked.
const MASKED_BTH_BYTE: usize = 4;

/// IPv4 header from its total length on, and UDP header.
const V4_REST: usize = 18 + UDP_LEN;
/// IPv6 header from its payload length on, and UDP header.
const V6_REST: usize = 36 + UDP_LEN;

/// What the ICRC covers before the UDP payload, for all packets of one flow: addresses and ports.
/// Made once per flow; [`begin`](Self::begin) fills in what differs per packet.
#[derive(Clone, Debug)]
pub struct IcrcFlow {
    /// Has taken the masked bytes up to the first length field.
    prefix: Hasher,
    rest: Rest,
}

#[derive(Clone, Copy, Debug)]
enum Rest {
    V4([u8; V4_REST]),
    V6([u8; V6_REST]),
}

impl IcrcFlow {
    /// A flow over IPv4 to port 4791, with the don't-fragment flag set and no options.
    pub fn v4(src: Ipv4Addr, dst: Ipv4Addr, src_port: u16) -> Self {
        Self::v4_with_df(src, dst, src_port, true)
    }

    /// As [`v4`](Self::v4), with the don't-fragment flag as given.
    pub fn v4_with_df(src: Ipv4Addr, dst: Ipv4Addr, src_port: u16, dont_fragment: bool) -> Self {
        let mut rest = [0; V4_REST];
        rest[4] = if dont_fragment { 0x40 } else { 0 };
        rest[6..10].copy_from_slice(&[0xff, PROTO_UDP, 0xff, 0xff]);
        rest[10..14].copy_from_slice(&src.octets());
        rest[14..18].copy_from_slice(&dst.octets());
        put_udp(&mut rest[18..], src_port);
        let mut prefix = Hasher::new();
        prefix.update(&[0xff; 8]);
        prefix.update(&[0x45, 0xff]);
        Self { prefix, rest: Rest::V4(rest) }
    }

    /// A flow over IPv6 to port 4791, without extension headers.
    pub fn v6(src: Ipv6Addr, dst: Ipv6Addr, src_port: u16) -> Self {
        let mut rest = [0; V6_REST];
        rest[2..4].copy_from_slice(&[PROTO_UDP, 0xff]);
        rest[4..20].copy_from_slice(&src.octets());
        rest[20..36].copy_from_slice(&dst.octets());
        put_udp(&mut rest[36..], src_port);
        let mut prefix = Hasher::new();
        prefix.update(&[0xff; 8]);
        prefix.update(&[0x6f, 0xff, 0xff, 0xff]);
        Self { prefix, rest: Rest::V6(rest) }
    }

    /// A flow between two addresses of one family, or `None` when the families differ.
    pub fn new(src: IpAddr, dst: IpAddr, src_port: u16) -> Option<Self> {
        match (src, dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => Some(Self::v4(src, dst, src_port)),
            (IpAddr::V6(src), IpAddr::V6(dst)) => Some(Self::v6(src, dst, src_port)),
            _ => None,
        }
    }

    /// Whether the flow runs over IPv4, whose ICRC depends on the Identification field.
    pub fn is_v4(&self) -> bool {
        matches!(self.rest, Rest::V4(_))
    }

    /// Begins the ICRC of a packet whose UDP payload has `udp_payload_len` bytes, the ICRC among them.
    /// `ip_id` is the IPv4 Identification (with UDP GSO on Linux and DF: the segment's index); it has no
    /// part in IPv6. Lengths that no datagram can have give a CRC that no packet has.
    pub fn begin(&self, udp_payload_len: usize, ip_id: u16) -> Icrc {
        Icrc { hasher: self.hash_head(udp_payload_len, ip_id, &[]), position: 0 }
    }

    /// The ICRC of a packet, given its UDP payload without the ICRC.
    pub fn compute(&self, covered: &[u8], ip_id: u16) -> u32 {
        let udp_payload_len = covered.len() + ICRC_BYTES;
        let Some((bth, behind)) = covered.split_first_chunk::<{ Bth::LEN }>() else {
            let mut icrc = self.begin(udp_payload_len, ip_id);
            icrc.update(covered);
            return icrc.value();
        };
        let mut bth = *bth;
        bth[MASKED_BTH_BYTE] = 0xff;
        let mut hasher = self.hash_head(udp_payload_len, ip_id, &bth);
        hasher.update(behind);
        hasher.finalize()
    }

    /// Takes what comes before the UDP payload, and `bth`, at most as long as one, behind it: in one piece, since a CRC of few bytes costs many
    /// times as much for each as that of a payload, which then begins and mostly ends where the fast way does, too.
    fn hash_head(&self, udp_payload_len: usize, ip_id: u16, bth: &[u8]) -> Hasher {
        let mut head = [0; V6_REST + Bth::LEN];
        let udp_len = (udp_payload_len.wrapping_add(UDP_LEN) as u16).to_be_bytes();
        let len = match &self.rest {
            Rest::V4(rest) => {
                let total_len = (udp_payload_len.wrapping_add(IPV4_LEN + UDP_LEN) as u16).to_be_bytes();
                head[..V4_REST].copy_from_slice(rest);
                head[0..2].copy_from_slice(&total_len);
                head[2..4].copy_from_slice(&ip_id.to_be_bytes());
                head[22..24].copy_from_slice(&udp_len);
                V4_REST
            }
            Rest::V6(rest) => {
                head[..V6_REST].copy_from_slice(rest);
                head[0..2].copy_from_slice(&udp_len);
                head[40..42].copy_from_slice(&udp_len);
                V6_REST
            }
        };
        let mut hasher = self.prefix.clone();
        head[len..len + bth.len()].copy_from_slice(bth);
        hasher.update(&head[..len + bth.len()]);
        hasher
    }

    /// Checks the ICRC at the end of a UDP payload, where `likely_id` is the IPv4 Identification that
    /// the packet may have had.
    pub fn check(&self, udp_payload: &[u8], likely_id: u16) -> IcrcVerdict {
        let Some((covered, icrc)) = udp_payload.split_last_chunk() else {
            return IcrcVerdict::Bad;
        };
        let got = u32::from_le_bytes(*icrc);
        let expected = self.compute(covered, likely_id);
        if got == expected {
            return IcrcVerdict::Exact;
        }
        let explained = match self.rest {
            Rest::V4(rest) => explain_ipv4_ident(expected, got, udp_payload.len()).map(|delta| Ipv4Ident {
                id: likely_id ^ delta.id,
                dont_fragment: delta.dont_fragment ^ (rest[4] & 0x40 != 0),
            }),
            Rest::V6(_) => None,
        };
        explained.map_or(IcrcVerdict::Bad, IcrcVerdict::Explained)
    }
}

fn put_udp(header: &mut [u8], src_port: u16) {
    header[0..2].copy_from_slice(&src_port.to_be_bytes());
    header[2..4].copy_from_slice(&ROCEV2_UDP_PORT.to_be_bytes());
    header[6..8].fill(0xff);
}

/// What [`IcrcFlow::check`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IcrcVerdict {
    /// The ICRC is right, with the Identification that was likely (IPv4) or without any (IPv6).
    Exact,
    /// The ICRC is right if the IPv4 header had this Identification and flag. That is a check of 15 bits
    /// only: it lets one corrupted packet in 2^15 pass, where [`Exact`](Self::Exact) lets one in 2^32.
    Explained(Ipv4Ident),
    /// The ICRC is wrong.
    Bad,
}

/// The ICRC of one packet, in the making. Takes the bytes of the UDP payload in order, from the first
/// byte of the BTH to the last pad byte, in pieces of any size.
#[derive(Clone, Debug)]
pub struct Icrc {
    hasher: Hasher,
    /// UDP payload bytes taken so far, up to one past the masked byte.
    position: usize,
}

impl Icrc {
    /// As `flow.begin(…)`, for a packet that is the only one of its flow.
    pub fn begin_v4(src: Ipv4Addr, dst: Ipv4Addr, src_port: u16, udp_payload_len: usize, ip_id: u16) -> Self {
        IcrcFlow::v4(src, dst, src_port).begin(udp_payload_len, ip_id)
    }

    /// As `flow.begin(…)`, for a packet that is the only one of its flow.
    pub fn begin_v6(src: Ipv6Addr, dst: Ipv6Addr, src_port: u16, udp_payload_len: usize) -> Self {
        IcrcFlow::v6(src, dst, src_port).begin(udp_payload_len, 0)
    }

    /// Takes the next bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        let bytes = if self.position <= MASKED_BTH_BYTE { self.update_masked(bytes) } else { bytes };
        self.hasher.update(bytes);
    }

    /// Takes bytes up to the masked one; returns the rest.
    fn update_masked<'b>(&mut self, bytes: &'b [u8]) -> &'b [u8] {
        let before = MASKED_BTH_BYTE - self.position;
        match bytes.split_at_checked(before) {
            Some((head, [_, rest @ ..])) => {
                self.hasher.update(head);
                self.hasher.update(&[0xff]);
                self.position = MASKED_BTH_BYTE + 1;
                rest
            }
            _ => {
                self.position += bytes.len();
                bytes
            }
        }
    }

    /// The ICRC's value.
    pub fn value(self) -> u32 {
        self.hasher.finalize()
    }

    /// The ICRC's bytes as they stand in the packet.
    pub fn finish(self) -> [u8; ICRC_BYTES] {
        self.value().to_le_bytes()
    }
}

/// The part of an IPv4 header that the ICRC covers and that a socket does not show.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ipv4Ident {
    /// Identification.
    pub id: u16,
    /// The don't-fragment flag.
    pub dont_fragment: bool,
}

/// The IPv4 Identification that explains an ICRC: given the value computed with Identification 0
/// (`expected`), the value in the packet (`got`) and the length of the UDP payload with its ICRC, finds
/// the one Identification with which `got` is right, or `None`.
///
/// A CRC is linear: the difference of two CRCs depends only on the difference of the messages and on the
/// number of bytes behind it. Dividing it by x once for each bit behind the Identification gives the
/// difference of the four bytes that begin there, which must be zero outside the Identification.
pub fn explain_ipv4_id(expected: u32, got: u32, udp_payload_len: usize) -> Option<u16> {
    explain_ipv4_ident(expected, got, udp_payload_len).filter(|i| !i.dont_fragment).map(|i| i.id)
}

/// As [`explain_ipv4_id`], and the don't-fragment flag may differ as well: both fields of the result are
/// differences (exclusive or) from the header that `expected` was computed with.
pub fn explain_ipv4_ident(expected: u32, got: u32, udp_payload_len: usize) -> Option<Ipv4Ident> {
    // Identification, flags and offset are the last 4 bytes before time to live, protocol, checksum and
    // the two addresses.
    let behind = 12 + UDP_LEN + udp_payload_len.checked_sub(ICRC_BYTES)?;
    let difference = divide::by_bytes(expected ^ got, behind + 4)?;
    let [id_high, id_low, flags, offset] = difference.to_le_bytes();
    let dont_fragment = match (flags, offset) {
        (0, 0) => false,
        (0x40, 0) => true,
        _ => return None,
    };
    Some(Ipv4Ident { id: u16::from_be_bytes([id_high, id_low]), dont_fragment })
}

/// Division by powers of x modulo the CRC-32 polynomial. Polynomials are reflected: bit 31 is x^0.
mod divide {
    const POLYNOMIAL: u32 = 0xedb8_8320;
    const ONE: u32 = 1 << 31;

    /// `LOW[n]` is x^(-8n), `HIGH[n]` is x^(-8·256·n).
    static LOW: [u32; 256] = powers(divide_by_x8(ONE));
    static HIGH: [u32; 257] = powers(multiply(LOW[255], LOW[1]));

    /// `value` as it was `bytes` zero bytes earlier, or `None` for more bytes than a datagram has.
    pub(super) fn by_bytes(value: u32, bytes: usize) -> Option<u32> {
        let (low, high) = (LOW[bytes % 256], HIGH.get(bytes / 256)?);
        Some(multiply(multiply(value, low), *high))
    }

    const fn divide_by_x8(mut value: u32) -> u32 {
        let mut bit = 0;
        while bit < 8 {
            // A multiplication by x shifts right and adds the polynomial when x^31 falls out at bit 0; the
            // polynomial's own x^0 term, at bit 31, tells here whether that happened.
            let wrapped = value >> 31;
            value = ((value ^ (POLYNOMIAL & wrapped.wrapping_neg())) << 1) | wrapped;
            bit += 1;
        }
        value
    }

    const fn multiply(a: u32, mut b: u32) -> u32 {
        let mut product = 0;
        let mut bit = 0;
        while bit < 32 {
            product ^= b & (a << bit >> 31).wrapping_neg();
            b = (b >> 1) ^ (POLYNOMIAL & (b & 1).wrapping_neg());
            bit += 1;
        }
        product
    }

    const fn powers<const N: usize>(base: u32) -> [u32; N] {
        let mut powers = [ONE; N];
        let mut i = 1;
        while i < N {
            powers[i] = multiply(powers[i - 1], base);
            i += 1;
        }
        powers
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn division_undoes_zero_bytes() {
        // Without its initial and final inversion, a CRC of zeros stays what it was, times x^8 per byte.
        let times_zeros = |mut value: u32, bytes: usize| {
            for _ in 0..bytes * 8 {
                value = (value >> 1) ^ (0xedb8_8320 & (value & 1).wrapping_neg());
            }
            value
        };
        for bytes in [0, 1, 2, 3, 255, 256, 257, 4096, 65_535] {
            for value in [0, 1, 0x8000_0000, 0xdead_beef] {
                assert_eq!(divide::by_bytes(times_zeros(value, bytes), bytes), Some(value), "{bytes}");
            }
        }
        assert_eq!(divide::by_bytes(1, 257 * 256), None);
    }

    #[test]
    fn a_flow_needs_one_family() {
        let (v4, v6) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([1u16; 8]));
        assert!(IcrcFlow::new(v4, v4, 1).unwrap().is_v4());
        assert!(!IcrcFlow::new(v6, v6, 1).unwrap().is_v4());
        assert!(IcrcFlow::new(v4, v6, 1).is_none());
        assert!(IcrcFlow::new(v6, v4, 1).is_none());
    }

    #[test]
    fn the_identification_matters_in_ipv4_only() {
        let v4 = IcrcFlow::v4([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), 0xc000);
        let v6 = IcrcFlow::v6([1; 8].into(), [2; 8].into(), 0xc000);
        assert_ne!(v4.compute(&[0; 16], 0), v4.compute(&[0; 16], 1));
        assert_eq!(v6.compute(&[0; 16], 0), v6.compute(&[0; 16], 1));
    }

    #[test]
    fn one_packet_needs_no_flow() {
        let (a, b) = ([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
        let mut icrc = Icrc::begin_v4(a, b, 0xc000, 20, 7);
        icrc.update(&[9; 16]);
        assert_eq!(icrc.value(), IcrcFlow::v4(a, b, 0xc000).compute(&[9; 16], 7));
        let (a, b) = ([1; 8].into(), [2; 8].into());
        let mut icrc = Icrc::begin_v6(a, b, 0xc000, 20);
        icrc.update(&[9; 16]);
        assert_eq!(icrc.value(), IcrcFlow::v6(a, b, 0xc000).compute(&[9; 16], 0));
    }

    #[test]
    fn whole_and_in_pieces_is_the_same() {
        let packet: [u8; 4200] = core::array::from_fn(|i| i as u8);
        let flows = [
            IcrcFlow::v4([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), 0xc000),
            IcrcFlow::v6([1; 8].into(), [2; 8].into(), 0xc000),
        ];
        for (flow, len) in flows.iter().flat_map(|f| [0, 4, 5, 11, 12, 13, 140, 4108, 4124].map(|n| (f, n))) {
            let covered = &packet[..len];
            let mut icrc = flow.begin(len + ICRC_BYTES, 7);
            covered.chunks(3).for_each(|piece| icrc.update(piece));
            assert_eq!(flow.compute(covered, 7), icrc.value(), "{len}");
        }
    }

    #[test]
    fn too_short_for_an_icrc_is_bad() {
        let v4 = IcrcFlow::v4([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), 0xc000);
        assert_eq!(v4.check(&[0; 3], 0), IcrcVerdict::Bad);
        assert_eq!(explain_ipv4_id(0, 0, 3), None);
    }
}
