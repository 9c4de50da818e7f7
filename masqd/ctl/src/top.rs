//! `masqctl top`: how much each vNIC of the host sends and receives, from two samples of its counters.

use std::collections::HashMap;
use std::time::Duration;

use masq_model::api::Traffic;
use serde::Serialize;

use crate::table::Table;
use crate::units::{about_count, about_rate, percent, rate};

/// What a vNIC has done between two samples.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Rates {
    /// The vNIC.
    pub vnic: String,
    /// Its network.
    pub vpc: String,
    /// What it sent, in bits of IP packets per second.
    pub tx_bits_per_sec: u64,
    /// What it received.
    pub rx_bits_per_sec: u64,
    /// Packets sent per second.
    pub tx_packets_per_sec: u64,
    /// Packets received per second.
    pub rx_packets_per_sec: u64,
    /// What it may send, if there is a limit.
    pub limit_bits_per_sec: Option<u64>,
    /// How much of the limit it used; 1 is all.
    pub limit_share: Option<f64>,
    /// Share of the time in which the limit held it back; 1 is all.
    pub limited_share: f64,
}

/// Compares two samples, the second taken `elapsed` after the first; those that send and receive most come first. A vNIC
/// that the first sample lacks is left out.
pub fn rates(before: &[Traffic], after: &[Traffic], elapsed: Duration) -> Vec<Rates> {
    let before: HashMap<&str, &Traffic> = before.iter().map(|t| (t.vnic.as_str(), t)).collect();
    let seconds = elapsed.as_secs_f64();
    if seconds <= 0.0 {
        return Vec::new();
    }
    let mut rates: Vec<Rates> = after
        .iter()
        .filter_map(|now| {
            let then = before.get(now.vnic.as_str())?;
            // A counter that has fallen began anew with another guest.
            let grown = |now: u64, then: u64| now.checked_sub(then).unwrap_or(now) as f64 / seconds;
            let tx_bits = grown(now.tx_bytes, then.tx_bytes) * 8.0;
            let limit = now.rate_bits_per_sec;
            Some(Rates {
                vnic: now.vnic.clone(),
                vpc: now.vpc.clone(),
                tx_bits_per_sec: tx_bits.round() as u64,
                rx_bits_per_sec: (grown(now.rx_bytes, then.rx_bytes) * 8.0).round() as u64,
                tx_packets_per_sec: grown(now.tx_packets, then.tx_packets).round() as u64,
                rx_packets_per_sec: grown(now.rx_packets, then.rx_packets).round() as u64,
                limit_bits_per_sec: limit,
                limit_share: limit.filter(|l| *l > 0).map(|l| tx_bits / l as f64),
                limited_share: grown(now.limited_ns, then.limited_ns) / 1e9,
            })
        })
        .collect();
    let volume = |r: &Rates| r.tx_bits_per_sec.saturating_add(r.rx_bits_per_sec);
    rates.sort_by(|a, b| volume(b).cmp(&volume(a)).then_with(|| a.vnic.cmp(&b.vnic)));
    rates
}

/// What is printed for people.
pub fn text(rates: &[Rates]) -> String {
    let mut table = Table::new([
        "VNIC",
        "VPC",
        ">TX",
        ">RX",
        ">TX-PKT/S",
        ">RX-PKT/S",
        ">LIMIT",
        ">OF-LIMIT",
        ">LIMITED",
    ]);
    for r in rates {
        table.row([
            r.vnic.clone(),
            r.vpc.clone(),
            about_rate(r.tx_bits_per_sec),
            about_rate(r.rx_bits_per_sec),
            about_count(r.tx_packets_per_sec),
            about_count(r.rx_packets_per_sec),
            r.limit_bits_per_sec.map(rate).unwrap_or_default(),
            r.limit_share.map(percent).unwrap_or_default(),
            percent(r.limited_share),
        ]);
    }
    table.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(vnic: &str, tx_bytes: u64, limited_ns: u64) -> Traffic {
        Traffic {
            vnic: vnic.into(),
            vpc: "blue".into(),
            tx_bytes,
            tx_packets: tx_bytes / 1000,
            limited_ns,
            rate_bits_per_sec: (vnic == "b").then_some(1_000_000_000),
            ..Traffic::default()
        }
    }

    #[test]
    fn rates_come_from_what_has_grown() {
        let before = [sample("a", 1000, 0), sample("b", 0, 0), sample("gone", 0, 0)];
        let after = [sample("a", 251_000, 0), sample("b", 125_000_000, 500_000_000), sample("new", 5, 0)];
        let got = rates(&before, &after, Duration::from_secs(2));
        let expected = "\
VNIC  VPC            TX       RX  TX-PKT/S  RX-PKT/S     LIMIT  OF-LIMIT  LIMITED
b     blue   500 Mbit/s  0 bit/s    62.5 k         0  1 Gbit/s     50.0%    25.0%
a     blue  1.00 Mbit/s  0 bit/s       125         0         -         -     0.0%
";
        assert_eq!(text(&got), expected);
        assert_eq!((got[0].limit_share, got[0].limited_share), (Some(0.5), 0.25));
    }

    #[test]
    fn a_counter_that_began_anew_counts_from_zero() {
        let got = rates(&[sample("a", 1_000_000, 0)], &[sample("a", 1000, 0)], Duration::from_secs(1));
        assert_eq!(got[0].tx_bits_per_sec, 8000);
        assert!(rates(&[sample("a", 0, 0)], &[sample("a", 1, 0)], Duration::ZERO).is_empty());
    }
}
