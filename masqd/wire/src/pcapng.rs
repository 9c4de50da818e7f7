//! Captures as pcapng files (draft-ietf-opsawg-pcapng), for Wireshark to read: one section, one interface whose packets begin with their IP
//! headers. Each function appends one block, in the byte order of this format's magic: little-endian.

use alloc::vec::Vec;

use crate::pcap::LinkType;

const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const INTERFACE_DESCRIPTION: u32 = 1;
const INTERFACE_STATISTICS: u32 = 5;
const ENHANCED_PACKET: u32 = 6;
const BYTE_ORDER_MAGIC: u32 = 0x1a2b_3c4d;

const OPT_COMMENT: u16 = 1;
const SHB_USERAPPL: u16 = 4;
const IF_NAME: u16 = 2;
const IF_TSRESOL: u16 = 9;
const EPB_FLAGS: u16 = 2;
const EPB_DROPCOUNT: u16 = 4;
const ISB_STARTTIME: u16 = 2;
const ISB_ENDTIME: u16 = 3;
const ISB_IFRECV: u16 = 4;
const ISB_IFDROP: u16 = 5;

/// A packet, without its IP and UDP headers or with them.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    /// When: nanoseconds since 1970.
    pub time_ns: u64,
    /// Whether it was sent; else received.
    pub is_sent: bool,
    /// Its first bytes, and those that follow.
    pub parts: [&'a [u8]; 2],
    /// Bytes that it had, also those that `parts` lack.
    pub original_len: u32,
    /// Packets between the one before and this one that are not in the file.
    pub dropped: u64,
}

/// What is known at the end of a capture.
#[derive(Clone, Copy, Debug)]
pub struct Statistics<'a> {
    /// When it began: nanoseconds since 1970.
    pub start_ns: u64,
    /// When it ended.
    pub end_ns: u64,
    /// Packets that there were, those included that are not in the file.
    pub seen: u64,
    /// Packets that are not in the file.
    pub dropped: u64,
    /// Anything, such as why it ended.
    pub comment: &'a str,
}

/// The beginning of a file: what program writes it, and what is to be said about all of it.
pub fn section_header(out: &mut Vec<u8>, program: &str, comment: &str) {
    block(out, SECTION_HEADER, |out| {
        put32(out, BYTE_ORDER_MAGIC);
        out.extend_from_slice(&[1, 0, 0, 0]);
        // The section ends with the file.
        out.extend_from_slice(&[0xff; 8]);
        option(out, SHB_USERAPPL, &[program.as_bytes()]);
        option(out, OPT_COMMENT, &[comment.as_bytes()]);
        end_of_options(out);
    });
}

/// The interface: packets begin with their IP headers, have at most `snaplen` bytes, and times are in nanoseconds.
pub fn interface(out: &mut Vec<u8>, name: &str, snaplen: u32) {
    block(out, INTERFACE_DESCRIPTION, |out| {
        put32(out, LinkType::RawIp.number());
        put32(out, snaplen);
        option(out, IF_NAME, &[name.as_bytes()]);
        option(out, IF_TSRESOL, &[&[9]]);
        end_of_options(out);
    });
}

/// A packet.
pub fn packet(out: &mut Vec<u8>, packet: &Packet<'_>) {
    block(out, ENHANCED_PACKET, |out| {
        put32(out, 0);
        time(out, packet.time_ns);
        put32(out, packet.parts.iter().map(|p| p.len()).sum::<usize>() as u32);
        put32(out, packet.original_len);
        packet.parts.iter().for_each(|p| out.extend_from_slice(p));
        pad(out);
        let direction: u32 = if packet.is_sent { 0b10 } else { 0b01 };
        option(out, EPB_FLAGS, &[&direction.to_le_bytes()]);
        if packet.dropped > 0 {
            option(out, EPB_DROPCOUNT, &[&packet.dropped.to_le_bytes()]);
        }
        end_of_options(out);
    });
}

/// The end of a capture.
pub fn statistics(out: &mut Vec<u8>, statistics: &Statistics<'_>) {
    let moment = |ns: u64| [((ns >> 32) as u32).to_le_bytes(), (ns as u32).to_le_bytes()];
    block(out, INTERFACE_STATISTICS, |out| {
        put32(out, 0);
        time(out, statistics.end_ns);
        for (code, ns) in [(ISB_STARTTIME, statistics.start_ns), (ISB_ENDTIME, statistics.end_ns)] {
            let [high, low] = moment(ns);
            option(out, code, &[&high, &low]);
        }
        option(out, ISB_IFRECV, &[&statistics.seen.to_le_bytes()]);
        option(out, ISB_IFDROP, &[&statistics.dropped.to_le_bytes()]);
        option(out, OPT_COMMENT, &[statistics.comment.as_bytes()]);
        end_of_options(out);
    });
}

/// A block: its type, its length, what `body` appends, and its length again.
fn block(out: &mut Vec<u8>, kind: u32, body: impl FnOnce(&mut Vec<u8>)) {
    const FRAME: usize = 12;
    let begin = out.len();
    put32(out, kind);
    put32(out, 0);
    body(out);
    let len = (out.len() - begin + FRAME - 8) as u32;
    if let Some(field) = out.get_mut(begin + 4..begin + 8) {
        field.copy_from_slice(&len.to_le_bytes());
    }
    put32(out, len);
}

/// An option, of at most 65,535 bytes; what is longer is cut.
fn option(out: &mut Vec<u8>, code: u16, parts: &[&[u8]]) {
    let len: usize = parts.iter().map(|p| p.len()).sum::<usize>().min(u16::MAX.into());
    out.extend_from_slice(&code.to_le_bytes());
    out.extend_from_slice(&(len as u16).to_le_bytes());
    let begin = out.len();
    parts.iter().for_each(|p| out.extend_from_slice(p));
    out.truncate(begin + len);
    pad(out);
}

fn end_of_options(out: &mut Vec<u8>) {
    put32(out, 0);
}

fn put32(out: &mut Vec<u8>, value: u32) {
    out.extend_from_slice(&value.to_le_bytes());
}

/// The upper half first.
fn time(out: &mut Vec<u8>, ns: u64) {
    put32(out, (ns >> 32) as u32);
    put32(out, ns as u32);
}

/// Blocks begin, and their fields end, at multiples of four bytes; so does whatever `out` holds before.
fn pad(out: &mut Vec<u8>) {
    out.resize(out.len().next_multiple_of(4), 0);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By hand, from the draft's figures.
    #[test]
    fn golden_bytes_of_a_packet() {
        let mut out = Vec::new();
        let time_ns = 0x0102_0304_0506_0708;
        packet(
            &mut out,
            &Packet { time_ns, is_sent: true, parts: [&[0xaa, 0xbb], &[0xcc]], original_len: 9, dropped: 5 },
        );
        #[rustfmt::skip]
        let expected = [
            6, 0, 0, 0,  60, 0, 0, 0,  0, 0, 0, 0,  4, 3, 2, 1,  8, 7, 6, 5,  3, 0, 0, 0,  9, 0, 0, 0,
            0xaa, 0xbb, 0xcc, 0,
            2, 0, 4, 0, 2, 0, 0, 0,
            4, 0, 8, 0, 5, 0, 0, 0, 0, 0, 0, 0,
            0, 0, 0, 0,
            60, 0, 0, 0,
        ];
        assert_eq!(out, expected);
    }

    #[test]
    fn golden_bytes_of_the_headers() {
        let mut out = Vec::new();
        section_header(&mut out, "p", "abcde");
        interface(&mut out, "q", 0x1_0000);
        #[rustfmt::skip]
        let expected = [
            0x0a, 0x0d, 0x0d, 0x0a,  52, 0, 0, 0,  0x4d, 0x3c, 0x2b, 0x1a,  1, 0, 0, 0,
            0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
            4, 0, 1, 0, b'p', 0, 0, 0,  1, 0, 5, 0, b'a', b'b', b'c', b'd', b'e', 0, 0, 0,  0, 0, 0, 0,
            52, 0, 0, 0,
            1, 0, 0, 0,  40, 0, 0, 0,  101, 0, 0, 0,  0, 0, 1, 0,
            2, 0, 1, 0, b'q', 0, 0, 0,  9, 0, 1, 0, 9, 0, 0, 0,  0, 0, 0, 0,
            40, 0, 0, 0,
        ];
        assert_eq!(out, expected);
    }

    #[test]
    fn golden_bytes_of_the_end() {
        let mut out = Vec::new();
        let end = Statistics { start_ns: 1 << 32, end_ns: 2, seen: 3, dropped: 4, comment: "" };
        statistics(&mut out, &end);
        #[rustfmt::skip]
        let expected = [
            5, 0, 0, 0,  80, 0, 0, 0,  0, 0, 0, 0,  0, 0, 0, 0,  2, 0, 0, 0,
            2, 0, 8, 0, 1, 0, 0, 0, 0, 0, 0, 0,  3, 0, 8, 0, 0, 0, 0, 0, 2, 0, 0, 0,
            4, 0, 8, 0, 3, 0, 0, 0, 0, 0, 0, 0,  5, 0, 8, 0, 4, 0, 0, 0, 0, 0, 0, 0,
            1, 0, 0, 0,  0, 0, 0, 0,
            80, 0, 0, 0,
        ];
        assert_eq!(out, expected);
    }

    #[test]
    fn what_is_too_long_is_cut() {
        let mut out = Vec::new();
        section_header(&mut out, "", core::str::from_utf8(&[b'x'; 70_000]).unwrap());
        let len = u32::from_le_bytes(out[4..8].try_into().unwrap()) as usize;
        assert_eq!((len, out.len() % 4), (out.len(), 0));
        assert!(len < 66_000);
    }
}
