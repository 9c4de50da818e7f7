//! `masqctl capture`: the packets of a queue pair, into a file.

use std::fs::File;
use std::io::{self, Write};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use clap::Args;

use crate::client::{Call, Client};
use crate::failure::Failure;
use crate::qp::parse_qpn;

/// What to capture.
#[derive(Args, Clone, Debug)]
pub struct Capture {
    /// The vNIC.
    vnic: String,
    /// The queue pair's number as its guest knows it, decimal or in hexadecimal with 0x.
    #[arg(value_parser = parse_qpn)]
    qpn: u32,
    /// The pcapng file to write, which Wireshark reads; "-" writes to standard output.
    #[arg(short, long, value_name = "FILE")]
    write: PathBuf,
    /// End after so many packets.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// End after so many seconds, at most 3600.
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=3600))]
    seconds: u32,
    /// Keep at most so many bytes of each packet, 128 to 65535; all by default.
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(128..=65535))]
    snaplen: Option<u32>,
}

/// Captures until there is enough, or the user interrupts it; tells how much there was.
pub async fn run(client: &Client, capture: &Capture) -> Result<(), Failure> {
    let call = Call::get(&["queue-pairs", &capture.vnic, &capture.qpn.to_string(), "capture"])
        .query("seconds", &capture.seconds.to_string())
        .query_if("count", capture.count.map(|n| n.to_string()).as_deref())
        .query_if("snaplen", capture.snaplen.map(|n| n.to_string()).as_deref());
    let (mut summary, mut file, mut failed) = (Summary::default(), None, None);
    let download = client.download(call, |bytes| {
        summary.take(bytes);
        match write(&mut file, &capture.write, bytes) {
            Ok(()) => ControlFlow::Continue(()),
            Err(source) => {
                failed = Some(Failure::WriteFile { path: capture.write.clone(), source });
                ControlFlow::Break(())
            }
        }
    });
    let interrupted = tokio::select! {
        done = download => {
            done?;
            false
        }
        _ = tokio::signal::ctrl_c() => true,
    };
    if let Some(failure) = failed {
        return Err(failure);
    }
    eprintln!("{}", summary.text());
    if summary.end.is_none() && !interrupted {
        return Err(Failure::BrokenCapture);
    }
    Ok(())
}

/// The file comes into being with its first bytes: not when masqd refuses.
fn write(file: &mut Option<Box<dyn Write>>, path: &Path, bytes: &[u8]) -> io::Result<()> {
    let out: &mut Box<dyn Write> = match file {
        Some(out) => out,
        None if path == Path::new("-") => file.insert(Box::new(io::stdout())),
        None => file.insert(Box::new(File::create(path)?)),
    };
    out.write_all(bytes)?;
    out.flush()
}

/// Reads along what is written.
#[derive(Debug, Default)]
struct Summary {
    /// The beginning of a block.
    pending: Vec<u8>,
    packets: u64,
    end: Option<End>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct End {
    dropped: u64,
    comment: String,
}

const INTERFACE_STATISTICS: u32 = 5;
const ENHANCED_PACKET: u32 = 6;
/// Type and length.
const BLOCK_HEAD_BYTES: usize = 8;

impl Summary {
    fn take(&mut self, bytes: &[u8]) {
        self.pending.extend_from_slice(bytes);
        let mut at = 0;
        while let Some(block) = next_block(self.pending.get(at..).unwrap_or_default()) {
            match word(block, 0) {
                Some(ENHANCED_PACKET) => self.packets += 1,
                Some(INTERFACE_STATISTICS) => self.end = Some(End::of(block)),
                _ => {}
            }
            at += block.len();
        }
        self.pending.drain(..at);
    }

    fn text(&self) -> String {
        let packets = self.packets;
        match &self.end {
            Some(End { dropped: 0, comment }) => format!("{packets} packets captured. {comment}"),
            Some(End { dropped, comment }) => {
                format!("{packets} packets captured, and {dropped} that did not fit. {comment}")
            }
            None => format!("{packets} packets captured."),
        }
    }
}

impl End {
    fn of(block: &[u8]) -> End {
        let mut end = End::default();
        // Behind the interface and the time.
        let mut rest = block.get(BLOCK_HEAD_BYTES + 12..).unwrap_or_default();
        while let (Some(code), Some(len)) = (half(rest, 0), half(rest, 2)) {
            let len = usize::from(len);
            let Some(value) = rest.get(4..4 + len).filter(|_| code != 0) else { break };
            match (code, value.first_chunk()) {
                (1, _) => end.comment = String::from_utf8_lossy(value).into(),
                (5, Some(n)) => end.dropped = u64::from_le_bytes(*n),
                _ => {}
            }
            rest = rest.get(4 + len.next_multiple_of(4)..).unwrap_or_default();
        }
        end
    }
}

/// The first block, if it is there whole.
fn next_block(bytes: &[u8]) -> Option<&[u8]> {
    let len = word(bytes, 4)? as usize;
    bytes.get(..len.max(BLOCK_HEAD_BYTES))
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().copied().map(u32::from_le_bytes)
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().copied().map(u16::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use masq_wire::pcapng;

    use super::*;

    #[test]
    fn packets_are_counted_however_they_come() {
        let mut file = Vec::new();
        pcapng::section_header(&mut file, "masqd", "who");
        pcapng::interface(&mut file, "blue-1:0x11", 65_535);
        for len in [28, 1000, 4150] {
            let bytes = vec![5; len];
            let packet = pcapng::Packet {
                time_ns: 1,
                is_sent: true,
                parts: [&bytes, &[]],
                original_len: len as u32,
                dropped: 0,
            };
            pcapng::packet(&mut file, &packet);
        }
        let comment = "It ended.";
        let end = pcapng::Statistics { start_ns: 0, end_ns: 9, seen: 5, dropped: 2, comment };
        pcapng::statistics(&mut file, &end);
        for piece in [1, 7, 64, file.len()] {
            let mut summary = Summary::default();
            file.chunks(piece).for_each(|bytes| summary.take(bytes));
            assert_eq!((summary.packets, summary.pending.len()), (3, 0), "in pieces of {piece}");
            assert_eq!(summary.text(), "3 packets captured, and 2 that did not fit. It ended.");
        }
        let mut cut = Summary::default();
        cut.take(&file[..file.len() - 1]);
        assert_eq!((cut.packets, cut.end), (3, None));
    }

    #[test]
    fn nonsense_is_no_block() {
        let mut summary = Summary::default();
        summary.take(&[0xff; 100]);
        summary.take(&[0; 100]);
        assert_eq!((summary.packets, summary.end), (0, None));
    }
}
