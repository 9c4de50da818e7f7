//! `masqctl qp`: how queue pairs are.

use std::net::IpAddr;
use std::time::Duration;

use clap::Subcommand;
use masq_model::api::{QueuePair, QueuePairConnection};

use crate::table::Table;
use crate::units;

/// What can be asked about queue pairs.
#[derive(Subcommand, Clone, Debug)]
pub enum QpAction {
    /// List queue pairs of this host's guests.
    List {
        /// Only those of this vNIC.
        vnic: Option<String>,
        /// Only those in this network.
        #[arg(long, value_name = "NAME")]
        vpc: Option<String>,
    },
    /// Show how a queue pair is, or list those of a vNIC or of all.
    Show {
        /// The vNIC.
        vnic: Option<String>,
        /// The queue pair's number as its guest knows it, decimal or in hexadecimal with 0x.
        #[arg(value_parser = parse_qpn)]
        qpn: Option<u32>,
    },
}

/// A queue pair number: 24 bits, decimal or in hexadecimal with 0x.
pub fn parse_qpn(text: &str) -> Result<u32, String> {
    let number = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) => u32::from_str_radix(digits, 16),
        None => text.parse(),
    };
    match number {
        Ok(qpn) if qpn < 1 << 24 => Ok(qpn),
        _ => Err("a queue pair number is a number below 2^24, such as 17 or 0x11".into()),
    }
}

/// A line for each queue pair.
pub fn list(all: &[QueuePair]) -> String {
    let mut table = Table::new([
        "VNIC",
        "VPC",
        "QPN",
        "TYPE",
        "STATE",
        "PEER",
        "REMOTE",
        "REMOTE-QPN",
        "UNDERLAY",
        ">OUTSTANDING",
        ">RTT",
        ">SENT",
        ">RECEIVED",
        "LAST-ERROR",
    ]);
    for q in all {
        let c = q.connection.as_ref();
        let p = q.protocol.as_ref();
        let rtt = p.and_then(|p| p.round_trip.as_ref()).map(|r| duration(r.smoothed_ns));
        table.row([
            q.vnic.clone(),
            q.vpc.clone(),
            format!("{:#x}", q.qpn),
            q.transport.clone(),
            q.state.to_uppercase(),
            c.and_then(|c| c.peer.clone()).unwrap_or_default(),
            c.map(|c| c.remote.to_string()).unwrap_or_default(),
            c.map(|c| format!("{:#x}", c.remote_qpn)).unwrap_or_default(),
            c.map(where_it_is).unwrap_or_default(),
            p.map(|p| format!("{}/{}", p.outstanding_packets, p.window_packets)).unwrap_or_default(),
            rtt.unwrap_or_default(),
            units::about_bytes(q.tx_bytes),
            units::about_bytes(q.rx_bytes),
            q.last_error.as_ref().map(|e| e.cause.clone().unwrap_or(e.reason.clone())).unwrap_or_default(),
        ]);
    }
    table.to_string()
}

/// A line for each path of those that use several, at a time in seconds since 1970.
pub fn paths(all: &[QueuePair], now_unix_seconds: u64) -> String {
    let mut table = Table::new([
        "VNIC",
        "QPN",
        "PATH",
        "LOCAL",
        "REMOTE",
        "STATE",
        "VIA",
        ">SENT",
        ">RECEIVED",
        ">CHUNKS",
        ">SWITCHES",
        "LAST-SWITCH",
        ">RTO",
    ]);
    for (q, p) in all.iter().flat_map(|q| q.paths.iter().map(move |p| (q, p))) {
        let ago = |at: u64| format!("{} ago", units::age(now_unix_seconds.saturating_sub(at)));
        table.row([
            q.vnic.clone(),
            format!("{:#x}", q.qpn),
            p.path.to_string(),
            p.local.to_string(),
            p.remote.to_string(),
            p.state.clone(),
            p.taken.to_string(),
            units::about_bytes(p.tx_bytes),
            units::about_bytes(p.rx_bytes),
            p.chunks.to_string(),
            p.changes.to_string(),
            match (p.last_change_unix_seconds.map(ago), p.last_change_unanswered_ns) {
                (Some(ago), Some(ns)) => format!("{ago}, after {}", duration(ns)),
                (ago, _) => ago.unwrap_or_default(),
            },
            duration(p.answer_timeout_ns),
        ]);
    }
    table.to_string()
}

/// All about one, at a time in seconds since 1970.
pub fn single(q: &QueuePair, now_unix_seconds: u64) -> String {
    let mut table = Table::default();
    let mut line = |title: &str, value: String| table.row([title.to_owned(), value]);
    line("vnic", format!("{} ({})", q.vnic, q.vpc));
    line("qpn", format!("{:#x}", q.qpn));
    line("type", q.transport.clone());
    line("state", q.state.to_uppercase());
    if let Some(c) = &q.connection {
        line("local", format!("{}, underlay {}", c.local, address(c.local_underlay)));
        line("peer", peer(c));
        if c.same_host {
            line("path", "memory to memory: the peer is on this host".into());
        } else if let Some(port) = c.udp_source_port {
            line("path", format!("UDP, source port {port}"));
        }
    }
    if let Some(p) = &q.protocol {
        let repeats = if p.next_psn == p.new_psn { "" } else { ", sending again" };
        let psns = (p.unacknowledged_psn, p.next_psn, p.new_psn);
        line(
            "sending",
            format!(
                "oldest unacknowledged PSN {:#08x}, next {:#08x}, new {:#08x}{repeats}",
                psns.0, psns.1, psns.2
            ),
        );
        line("receiving", format!("expected PSN {:#08x}", p.expected_psn));
        line("window", format!("{} of {} packets on their way", p.outstanding_packets, p.window_packets));
        if let Some(bytes) = p.congestion_window_bytes {
            line("congestion window", units::about_bytes(bytes));
        }
        if let Some(rate) = p.rate_bits_per_sec {
            line("congestion rate", units::about_rate(rate));
        }
        line("path MTU", format!("{} B", p.path_mtu_bytes));
        line("ACK timeout", p.ack_timeout_ns.map_or("never".into(), duration));
        line(
            "round trip",
            match &p.round_trip {
                Some(r) => format!(
                    "{} smoothed, {} at least, lost after {}",
                    duration(r.smoothed_ns),
                    duration(r.min_ns),
                    duration(r.timeout_ns)
                ),
                None => "not measured yet".into(),
            },
        );
    }
    line("requests", format!("{} taken and not done", q.requests));
    let rnr = match q.rnr_retries_left {
        7 => "without end".into(),
        n => n.to_string(),
    };
    line("retries left", format!("{} without an answer, {rnr} without a receive", q.retries_left));
    line("waits for", q.waits_for.clone().unwrap_or_default());
    line("sent", units::about_bytes(q.tx_bytes));
    line("received", units::about_bytes(q.rx_bytes));
    line("last error", if q.last_error.is_some() { "see below".into() } else { "none".into() });
    let mut text = table.to_string();
    if let Some(e) = &q.last_error {
        let mut table = Table::default();
        let mut line = |title: &str, value: String| table.row([title.to_owned(), value]);
        line("when", format!("{} ago", units::age(now_unix_seconds.saturating_sub(e.unix_seconds))));
        line("why", e.reason.clone());
        if let (Some(request), Some(status), Some(cause)) = (&e.request, &e.status, &e.cause) {
            line("failed", format!("a {request}, {status}: {cause}"));
        }
        if let Some(c) = &q.connection {
            line("peer", peer(c));
        }
        if let (Some(una), Some(expected)) = (e.unacknowledged_psn, e.expected_psn) {
            line("at", format!("oldest unacknowledged PSN {una:#08x}, expected PSN {expected:#08x}"));
        }
        text += &format!("\nlast error:\n{table}");
    }
    if !q.counters.is_empty() {
        let mut table = Table::new(["COUNTER", ">VALUE"]);
        q.counters.iter().for_each(|(name, n)| table.row([name.clone(), n.to_string()]));
        text += &format!("\n{table}");
    }
    text
}

fn peer(c: &QueuePairConnection) -> String {
    let vnic = c.peer.as_deref().unwrap_or("unknown vNIC");
    format!("{} QP {:#x} ({vnic}), underlay {}", c.remote, c.remote_qpn, address(c.remote_underlay))
}

fn address(address: Option<IpAddr>) -> String {
    address.map_or("-".into(), |a| a.to_string())
}

fn where_it_is(c: &QueuePairConnection) -> String {
    if c.same_host {
        "same host".into()
    } else {
        c.remote_underlay.map(|a| a.to_string()).unwrap_or_default()
    }
}

/// About how long, for people.
fn duration(ns: u64) -> String {
    format!("{:.1?}", Duration::from_nanos(ns))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn numbers_are_decimal_or_hexadecimal() {
        assert_eq!(["17", "0x11", "0X11"].map(parse_qpn), [Ok(17), Ok(17), Ok(17)]);
        for bad in ["", "x", "-1", "16777216", "0x1000000", "1.5"] {
            assert!(parse_qpn(bad).is_err(), "{bad}");
        }
    }

    fn failed() -> QueuePair {
        serde_json::from_value(json!({
            "vnic": "blue-1", "vpc": "blue", "qpn": 17, "transport": "rc", "state": "err",
            "connection": {"local": "192.168.0.1", "remote": "192.168.0.2", "remote_qpn": 256, "peer": "blue-2",
                "local_underlay": "10.77.0.1", "remote_underlay": "10.77.0.2", "same_host": false, "udp_source_port": 49321},
            "protocol": {"path_mtu_bytes": 4096, "unacknowledged_psn": 16, "next_psn": 16, "new_psn": 20, "expected_psn": 7,
                "window_packets": 256, "outstanding_packets": 4, "ack_timeout_ns": 67_108_864,
                "round_trip": {"smoothed_ns": 120_000, "min_ns": 80_000, "timeout_ns": 1_120_000}},
            "requests": 0, "retries_left": 0, "rnr_retries_left": 7, "tx_bytes": 1536, "rx_bytes": 0,
            "counters": {"retry_exceeded_err": 1, "sent_pkts": 12},
            "last_error": {"unix_seconds": 1000, "reason": "a send request failed", "request": "send",
                "status": "RETRY_EXC_ERR", "cause": "the peer did not answer", "unacknowledged_psn": 16, "expected_psn": 7}
        }))
        .unwrap()
    }

    #[test]
    fn a_failed_queue_pair_tells_with_whom_and_why() {
        let expected = "\
vnic          blue-1 (blue)
qpn           0x11
type          rc
state         ERR
local         192.168.0.1, underlay 10.77.0.1
peer          192.168.0.2 QP 0x100 (blue-2), underlay 10.77.0.2
path          UDP, source port 49321
sending       oldest unacknowledged PSN 0x000010, next 0x000010, new 0x000014, sending again
receiving     expected PSN 0x000007
window        4 of 256 packets on their way
path MTU      4096 B
ACK timeout   67.1ms
round trip    120.0µs smoothed, 80.0µs at least, lost after 1.1ms
requests      0 taken and not done
retries left  0 without an answer, without end without a receive
waits for     -
sent          1.50 KiB
received      0 B
last error    see below

last error:
when    3m12s ago
why     a send request failed
failed  a send, RETRY_EXC_ERR: the peer did not answer
peer    192.168.0.2 QP 0x100 (blue-2), underlay 10.77.0.2
at      oldest unacknowledged PSN 0x000010, expected PSN 0x000007

COUNTER             VALUE
retry_exceeded_err      1
sent_pkts              12
";
        assert_eq!(single(&failed(), 1192), expected);
    }

    #[test]
    fn paths_have_a_line_each() {
        let mut several = failed();
        several.paths = serde_json::from_value(json!([
            {"path": 0, "local": "10.77.0.1", "remote": "10.77.0.2", "udp_source_port": 49321, "state": "up", "taken": 0,
                "tx_bytes": 3072, "rx_bytes": 64, "chunks": 7, "chunks_under_way": 1, "changes": 0, "answer_timeout_ns": 1_200_000},
            {"path": 1, "local": "10.77.1.1", "remote": "10.77.1.2", "udp_source_port": 49322, "state": "down", "taken": 0,
                "tx_bytes": 1536, "rx_bytes": 0, "chunks": 2, "chunks_under_way": 2, "changes": 1,
                "last_change_unix_seconds": 1180, "last_change_unanswered_ns": 2_900_000, "answer_timeout_ns": 1_300_000}
        ]))
        .unwrap();
        let expected = "\
VNIC    QPN   PATH  LOCAL      REMOTE     STATE  VIA      SENT  RECEIVED  CHUNKS  SWITCHES  LAST-SWITCH             RTO
blue-1  0x11  0     10.77.0.1  10.77.0.2  up     0    3.00 KiB      64 B       7         0  -                     1.2ms
blue-1  0x11  1     10.77.1.1  10.77.1.2  down   0    1.50 KiB       0 B       2         1  12s ago, after 2.9ms  1.3ms
";
        assert_eq!(paths(&[failed(), several], 1192), expected);
    }

    #[test]
    fn a_list_has_a_line_for_each() {
        let mut idle = failed();
        (idle.connection, idle.protocol, idle.last_error) = (None, None, None);
        idle.state = "init".into();
        let mut local = failed();
        (local.protocol, local.last_error) = (None, None);
        local.connection.as_mut().unwrap().same_host = true;
        let text = list(&[failed(), idle, local]);
        let lines: Vec<Vec<&str>> =
            text.lines().map(|l| l.split("  ").map(str::trim).filter(|c| !c.is_empty()).collect()).collect();
        assert_eq!(lines.len(), 4);
        assert_eq!(
            lines[1],
            [
                "blue-1",
                "blue",
                "0x11",
                "rc",
                "ERR",
                "blue-2",
                "192.168.0.2",
                "0x100",
                "10.77.0.2",
                "4/256",
                "120.0µs",
                "1.50 KiB",
                "0 B",
                "the peer did not answer"
            ]
        );
        assert_eq!(lines[2][4..], ["INIT", "-", "-", "-", "-", "-", "-", "1.50 KiB", "0 B", "-"]);
        assert_eq!(lines[3][8], "same host");
    }
}
