//! Checks every RoCEv2 packet of a capture: `check-pcap [--list] FILE`.
//!
//! Prints how many frames there are, how many are RoCEv2 (UDP to port 4791), how many of those parse, and
//! how many ICRCs are right and wrong. With `--list`, prints one line per RoCEv2 packet first. The exit
//! status is 0 when the file holds RoCEv2 packets and each parses and has a right ICRC, 1 when not, and 2
//! when the file cannot be read. A capture that cut frames (`tcpdump -s`) cannot be checked: that is 1 too.

use std::error::Error;
use std::ffi::OsStr;
use std::io::{self, BufWriter, Write};
use std::process::ExitCode;

use masq_wire::ip::Datagram;
use masq_wire::pcap::Pcap;
use masq_wire::{Bth, IcrcVerdict, Parsed, ROCEV2_UDP_PORT, WireError, parse};

#[derive(Default)]
struct Counts {
    frames: u64,
    cut: u64,
    roce: u64,
    parsed: u64,
    icrc_ok: u64,
    icrc_bad: u64,
}

fn main() -> ExitCode {
    let mut list = false;
    let mut file = None;
    for arg in std::env::args_os().skip(1) {
        if arg == "--list" {
            list = true;
        } else if file.replace(arg).is_some() {
            return usage();
        }
    }
    let Some(file) = file else { return usage() };
    match run(&file, list) {
        Ok(good) => ExitCode::from(if good { 0 } else { 1 }),
        Err(reason) => {
            eprintln!("check-pcap: {}: {reason}", file.to_string_lossy());
            ExitCode::from(2)
        }
    }
}

fn usage() -> ExitCode {
    eprintln!("usage: check-pcap [--list] FILE");
    ExitCode::from(2)
}

fn run(file: &OsStr, list: bool) -> Result<bool, Box<dyn Error>> {
    let mut out = BufWriter::new(io::stdout().lock());
    let counts = check(&std::fs::read(file)?, list, &mut out)?;
    let good = counts.print(&mut out)?;
    out.flush()?;
    Ok(good)
}

fn check(capture: &[u8], list: bool, out: &mut impl Write) -> Result<Counts, Box<dyn Error>> {
    let pcap = Pcap::new(capture)?;
    let link_type = pcap.link_type();
    let mut counts = Counts::default();
    for record in pcap {
        let record = record?;
        counts.frames += 1;
        if (record.frame.len() as u64) < u64::from(record.original_len) {
            counts.cut += 1;
        }
        let Some(Ok(datagram)) = link_type.ip_packet(record.frame).map(Datagram::parse) else { continue };
        if datagram.dst_port != ROCEV2_UDP_PORT {
            continue;
        }
        let parsed = parse(datagram.payload);
        let icrc_ok = datagram.check_icrc() == IcrcVerdict::Exact;
        counts.add(parsed.is_ok(), icrc_ok);
        if list {
            let icrc = if icrc_ok { "ok" } else { "BAD" };
            let what = describe(datagram.payload, &parsed);
            writeln!(out, "{} {} {what} icrc={icrc}", datagram.src, datagram.dst)?;
        }
    }
    Ok(counts)
}

impl Counts {
    fn add(&mut self, parsed: bool, icrc_ok: bool) {
        self.roce += 1;
        self.parsed += u64::from(parsed);
        *(if icrc_ok { &mut self.icrc_ok } else { &mut self.icrc_bad }) += 1;
    }

    /// Prints the counts and tells whether every packet is good.
    fn print(&self, out: &mut impl Write) -> io::Result<bool> {
        let Counts { frames, cut, roce, parsed, icrc_ok, icrc_bad } = *self;
        writeln!(
            out,
            "frames {frames} cut {cut} roce {roce} parsed {parsed} icrc-ok {icrc_ok} icrc-bad {icrc_bad}"
        )?;
        Ok(roce > 0 && cut == 0 && parsed == roce && icrc_bad == 0)
    }
}

fn describe(payload: &[u8], parsed: &Result<Parsed<'_>, WireError>) -> String {
    let Some(bth) = Bth::from_prefix(payload) else { return "no BTH".into() };
    let line = format!("opcode={} qpn={} psn={}", bth.opcode().0, bth.dest_qp(), bth.psn());
    match parsed {
        Ok(p) => format!("{line} len={} ({})", p.payload.len(), p.info.name),
        Err(reason) => format!("{line} unparsed: {reason}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CAPTURE: &[u8] = include_bytes!("../tests/data/scapy_v4.pcap");
    /// In the first frame: file and record headers 40, Ethernet 14, IPv4 20, UDP 8, BTH 12.
    const FIRST_PAYLOAD_BYTE: usize = 94;

    fn judge(capture: &[u8]) -> (bool, String) {
        let mut out = Vec::new();
        let good = check(capture, true, &mut out).unwrap().print(&mut out).unwrap();
        (good, String::from_utf8(out).unwrap())
    }

    #[test]
    fn a_good_capture_is_listed_and_counted() {
        let (good, text) = judge(CAPTURE);
        assert!(good);
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.len(), 154);
        assert_eq!(
            lines[0],
            "10.1.248.120 192.0.2.216 opcode=0 qpn=0x9369aa psn=16172399 len=256 (RC SEND First) icrc=ok"
        );
        assert_eq!(lines[153], "frames 153 cut 0 roce 153 parsed 153 icrc-ok 153 icrc-bad 0");
    }

    #[test]
    fn one_wrong_bit_is_found() {
        let mut capture = CAPTURE.to_vec();
        capture[FIRST_PAYLOAD_BYTE] ^= 1;
        let (good, text) = judge(&capture);
        assert!(!good);
        assert!(text.lines().next().unwrap().ends_with("icrc=BAD"));
        assert!(text.ends_with("icrc-ok 152 icrc-bad 1\n"));
    }

    #[test]
    fn a_capture_without_roce_or_with_cut_frames_is_not_good() {
        let (good, text) = judge(&CAPTURE[..24]);
        assert!(!good && text.starts_with("frames 0 "));
        let mut cut = CAPTURE.to_vec();
        // The first record's original length, one byte more than was captured.
        cut[36] += 1;
        let (good, text) = judge(&cut);
        assert!(!good && text.contains(" cut 1 "));
    }
}
