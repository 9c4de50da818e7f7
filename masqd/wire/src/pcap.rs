//! Classic pcap files: enough to read what tcpdump, Wireshark and Scapy write, and to write captures for
//! them to read.

use core::fmt;

const MAGIC_MICROSECONDS: u32 = 0xa1b2_c3d4;
const MAGIC_NANOSECONDS: u32 = 0xa1b2_3c4d;
const FILE_HEADER_LEN: usize = 24;
const RECORD_HEADER_LEN: usize = 16;

/// What stands before the IP header in a capture's frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkType {
    /// Ethernet, with or without VLAN tags (1).
    Ethernet,
    /// Nothing (101).
    RawIp,
    /// Linux "cooked" header, version 1 (113), as tcpdump writes for `-i any`.
    LinuxSll,
    /// Linux "cooked" header, version 2 (276).
    LinuxSll2,
}

impl LinkType {
    /// The type with this number, or `None` for one that is not read here.
    pub const fn from_number(number: u32) -> Option<Self> {
        match number {
            1 => Some(LinkType::Ethernet),
            101 => Some(LinkType::RawIp),
            113 => Some(LinkType::LinuxSll),
            276 => Some(LinkType::LinuxSll2),
            _ => None,
        }
    }

    /// The number of this type.
    pub const fn number(self) -> u32 {
        match self {
            LinkType::Ethernet => 1,
            LinkType::RawIp => 101,
            LinkType::LinuxSll => 113,
            LinkType::LinuxSll2 => 276,
        }
    }

    /// The IP packet in a frame, or `None` when the frame holds something else.
    pub fn ip_packet(self, frame: &[u8]) -> Option<&[u8]> {
        let (ethertype_at, header_len) = match self {
            LinkType::RawIp => return Some(frame),
            LinkType::Ethernet => (12, 14),
            LinkType::LinuxSll => (14, 16),
            LinkType::LinuxSll2 => (0, 20),
        };
        let mut ethertype = be16(frame, ethertype_at)?;
        let mut rest = frame.get(header_len..)?;
        // 802.1Q and 802.1ad tags: two bytes of tag, then the next type.
        while matches!(ethertype, 0x8100 | 0x88a8) {
            ethertype = be16(rest, 2)?;
            rest = rest.get(4..)?;
        }
        matches!(ethertype, 0x0800 | 0x86dd).then_some(rest)
    }
}

fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().copied().map(u16::from_be_bytes)
}

/// Why bytes are no capture file that is read here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PcapError {
    /// The file does not begin as a pcap file does.
    #[error("not a classic pcap file (pcapng is not read: convert it with `editcap -F pcap`)")]
    Magic,
    /// The frames begin with a header that is not read here.
    #[error("link type {0} is not read")]
    LinkType(u32),
    /// The file ends inside a record.
    #[error("record {0} is cut off")]
    Truncated(usize),
}

/// One captured frame.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Record<'a> {
    /// When it was captured: nanoseconds since the epoch.
    pub time_ns: u64,
    /// Bytes that it had on the link; more than `frame` holds when the capture cut it.
    pub original_len: u32,
    /// The bytes captured.
    pub frame: &'a [u8],
}

impl fmt::Debug for Record<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Record({} of {} bytes at {} ns)", self.frame.len(), self.original_len, self.time_ns)
    }
}

/// The records of a capture file. Iteration ends with the first error.
#[derive(Clone, Debug)]
pub struct Pcap<'a> {
    link_type: LinkType,
    big_endian: bool,
    nanoseconds: bool,
    rest: &'a [u8],
    index: usize,
}

impl<'a> Pcap<'a> {
    /// Judges a file's header.
    pub fn new(file: &'a [u8]) -> Result<Self, PcapError> {
        let (header, rest) = file.split_first_chunk::<FILE_HEADER_LEN>().ok_or(PcapError::Magic)?;
        let (big_endian, nanoseconds) = match (word(header, 0, false), word(header, 0, true)) {
            (MAGIC_MICROSECONDS, _) => (false, false),
            (MAGIC_NANOSECONDS, _) => (false, true),
            (_, MAGIC_MICROSECONDS) => (true, false),
            (_, MAGIC_NANOSECONDS) => (true, true),
            _ => return Err(PcapError::Magic),
        };
        // The upper bits say whether frames end with a frame check sequence; IP lengths make that moot.
        let number = word(header, 20, big_endian) & 0x0fff_ffff;
        let link_type = LinkType::from_number(number).ok_or(PcapError::LinkType(number))?;
        Ok(Self { link_type, big_endian, nanoseconds, rest, index: 0 })
    }

    /// What the frames begin with.
    pub const fn link_type(&self) -> LinkType {
        self.link_type
    }

    fn read(&mut self) -> Option<Record<'a>> {
        let (header, rest) = self.rest.split_first_chunk::<RECORD_HEADER_LEN>()?;
        let [seconds, fraction, captured, original_len] =
            [0, 4, 8, 12].map(|at| word(header, at, self.big_endian));
        let (frame, rest) = rest.split_at_checked(captured as usize)?;
        self.rest = rest;
        let fraction_ns = u64::from(fraction) * if self.nanoseconds { 1 } else { 1000 };
        Some(Record { time_ns: u64::from(seconds) * 1_000_000_000 + fraction_ns, original_len, frame })
    }
}

fn word<const N: usize>(header: &[u8; N], at: usize, big_endian: bool) -> u32 {
    let bytes = [header[at], header[at + 1], header[at + 2], header[at + 3]];
    if big_endian { u32::from_be_bytes(bytes) } else { u32::from_le_bytes(bytes) }
}

impl<'a> Iterator for Pcap<'a> {
    type Item = Result<Record<'a>, PcapError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let index = self.index;
        self.index += 1;
        match self.read() {
            Some(record) => Some(Ok(record)),
            None => {
                self.rest = &[];
                Some(Err(PcapError::Truncated(index)))
            }
        }
    }
}

/// The header of a pcap file of Ethernet frames with time in nanoseconds.
pub fn ethernet_file_header() -> [u8; FILE_HEADER_LEN] {
    let mut header = [0; FILE_HEADER_LEN];
    header[0..4].copy_from_slice(&MAGIC_NANOSECONDS.to_le_bytes());
    header[4..8].copy_from_slice(&[2, 0, 4, 0]);
    header[16..20].copy_from_slice(&0x4_0000u32.to_le_bytes());
    header[20..24].copy_from_slice(&1u32.to_le_bytes());
    header
}

/// What stands before a frame of `len` bytes in a file with [`ethernet_file_header`].
pub fn record_header(time_ns: u64, len: u32) -> [u8; RECORD_HEADER_LEN] {
    let mut header = [0; RECORD_HEADER_LEN];
    header[0..4].copy_from_slice(&((time_ns / 1_000_000_000) as u32).to_le_bytes());
    header[4..8].copy_from_slice(&((time_ns % 1_000_000_000) as u32).to_le_bytes());
    header[8..12].copy_from_slice(&len.to_le_bytes());
    header[12..16].copy_from_slice(&len.to_le_bytes());
    header
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::*;

    fn file(link_type: u32, magic: u32, big_endian: bool, frames: &[&[u8]]) -> Vec<u8> {
        let word = |value: u32| if big_endian { value.to_be_bytes() } else { value.to_le_bytes() };
        let mut bytes = Vec::new();
        for value in [magic, 0x0004_0002, 0, 0, 0xffff, link_type] {
            bytes.extend_from_slice(&word(value));
        }
        for frame in frames {
            let len = frame.len() as u32;
            for value in [1, 500, len, len + 1] {
                bytes.extend_from_slice(&word(value));
            }
            bytes.extend_from_slice(frame);
        }
        bytes
    }

    #[test]
    fn reads_both_byte_orders_and_both_units_of_time() {
        for big_endian in [false, true] {
            for (magic, time_ns) in [(MAGIC_MICROSECONDS, 1_000_500_000), (MAGIC_NANOSECONDS, 1_000_000_500)]
            {
                let bytes = file(101, magic, big_endian, &[b"one", b"", b"three"]);
                let pcap = Pcap::new(&bytes).unwrap();
                assert_eq!(pcap.link_type(), LinkType::RawIp);
                let records: Vec<_> = pcap.map(Result::unwrap).collect();
                let expected = [&b"one"[..], b"", b"three"].map(|frame| Record {
                    time_ns,
                    original_len: frame.len() as u32 + 1,
                    frame,
                });
                assert_eq!(records, expected);
            }
        }
    }

    #[test]
    fn a_cut_file_ends_with_an_error() {
        let bytes = file(1, MAGIC_MICROSECONDS, false, &[b"one", b"two"]);
        for cut in 1..19 {
            let records: Vec<_> = Pcap::new(&bytes[..bytes.len() - cut]).unwrap().collect();
            assert_eq!(records.len(), 2);
            assert_eq!(records[1], Err(PcapError::Truncated(1)));
        }
    }

    #[test]
    fn other_files_are_refused() {
        assert_eq!(Pcap::new(&[0; 23]).unwrap_err(), PcapError::Magic);
        assert_eq!(Pcap::new(&[0; 24]).unwrap_err(), PcapError::Magic);
        let pcapng = file(1, 0x0a0d_0d0a, false, &[]);
        assert_eq!(Pcap::new(&pcapng).unwrap_err(), PcapError::Magic);
        let wifi = file(105, MAGIC_MICROSECONDS, false, &[]);
        assert_eq!(Pcap::new(&wifi).unwrap_err(), PcapError::LinkType(105));
    }

    #[test]
    fn what_is_written_is_read() {
        let mut bytes = ethernet_file_header().to_vec();
        bytes.extend_from_slice(&record_header(3_000_000_007, 5));
        bytes.extend_from_slice(b"frame");
        let pcap = Pcap::new(&bytes).unwrap();
        assert_eq!(pcap.link_type(), LinkType::Ethernet);
        let record = Record { time_ns: 3_000_000_007, original_len: 5, frame: b"frame" };
        assert_eq!(pcap.collect::<Vec<_>>(), [Ok(record)]);
    }

    #[test]
    fn finds_ip_behind_each_link_header() {
        let mut ethernet = [0; 14].to_vec();
        ethernet[12..].copy_from_slice(&[0x08, 0x00]);
        ethernet.extend_from_slice(b"ip");
        assert_eq!(LinkType::Ethernet.ip_packet(&ethernet), Some(&b"ip"[..]));
        let mut tagged = [0; 12].to_vec();
        tagged.extend_from_slice(&[0x88, 0xa8, 0, 1, 0x81, 0x00, 0, 2, 0x86, 0xdd]);
        tagged.extend_from_slice(b"ip");
        assert_eq!(LinkType::Ethernet.ip_packet(&tagged), Some(&b"ip"[..]));
        tagged[20..22].copy_from_slice(&[0x08, 0x06]);
        assert_eq!(LinkType::Ethernet.ip_packet(&tagged), None);
        let mut sll = [0; 16].to_vec();
        sll[14..].copy_from_slice(&[0x08, 0x00]);
        sll.extend_from_slice(b"ip");
        assert_eq!(LinkType::LinuxSll.ip_packet(&sll), Some(&b"ip"[..]));
        let mut sll2 = [0; 20].to_vec();
        sll2[..2].copy_from_slice(&[0x86, 0xdd]);
        sll2.extend_from_slice(b"ip");
        assert_eq!(LinkType::LinuxSll2.ip_packet(&sll2), Some(&b"ip"[..]));
        assert_eq!(LinkType::RawIp.ip_packet(b"ip"), Some(&b"ip"[..]));
        assert_eq!(LinkType::Ethernet.ip_packet(&ethernet[..13]), None);
    }
}
