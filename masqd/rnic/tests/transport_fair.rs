//! Connections that share a slow link with Swift: in equal parts, without wasting it, and with little delay for what is short.

mod transport_support;

use std::time::Duration;

use masq_rnic::transport::*;
use masq_types::{Features, Mtu};
use transport_support::Setup;
use transport_support::bottleneck::*;

/// More than any window.
const LOAD: Load = Load { op: SendOp::Write, from: 0, len: 16 << 10, depth: 32, both: false };
const MBIT: u64 = 1_000_000;
/// How long READs, and both directions, are simulated.
const SECS: u64 = 2;

fn setup() -> Setup {
    let config = QpConfig { congestion: Congestion::Swift, window_packets: 1024, ..QpConfig::default() };
    // 67 ms.
    Setup { mtu: Mtu::B4096, timeout: 14, features: [Features::SELECTIVE; 2], config, ..Setup::default() }
}

/// Flows that begin at once, after `secs`: Jain's index, the part of the link that their data took, and what came of each.
fn share(mbit: u64, flows: usize, secs: u64, seed: u64) -> (f64, f64, Vec<Share>) {
    let rate = mbit * MBIT;
    let mut b = Bottleneck::new(&setup(), Slow::tbf(rate), &vec![LOAD; flows], seed);
    b.run_for(Duration::from_secs(secs));
    let shares = b.shares();
    let sum: f64 = shares.iter().map(|s| s.messages as f64).sum();
    let squares: f64 = shares.iter().map(|s| (s.messages as f64).powi(2)).sum();
    let part = sum * f64::from(LOAD.len) * 8.0 / (rate * secs) as f64;
    (sum * sum / (flows as f64 * squares), part, shares)
}

#[test]
fn a_few_flows_share_a_slow_link() {
    for (mbit, flows) in [(200, 2), (200, 8), (1000, 2)] {
        let (jain, part, shares) = share(mbit, flows, 2, 1);
        assert!(jain >= 0.97 && part >= 0.9, "{mbit} {flows}: {jain} {part} {shares:?}");
    }
}

/// Each has three megabits a second, less than a packet in a round trip, and the queue that all of them begin with is longer than their first guess of how long an
/// answer takes.
#[test]
fn sixty_four_flows_share_a_slow_link() {
    let (jain, part, shares) = share(200, 64, 10, 1);
    assert!(jain >= 0.97 && part >= 0.85, "{jain} {part} {shares:?}");
    let most = shares.iter().map(|s| s.timeouts).max();
    assert!(most <= Some(3), "{most:?} timeouts; the eighth is the end");
    let [sent, repeated] =
        [|s: &Share| s.sent, |s: &Share| s.repeated].map(|of| shares.iter().map(of).sum::<u64>());
    assert!(repeated * 8 < sent, "{repeated} of {sent} for the second time");
}

/// A WRITE of two bytes at a time beside two streams.
#[test]
fn mice_pass_beside_elephants() {
    let mouse = Load { op: SendOp::Write, from: 0, len: 2, depth: 1, both: false };
    let mut b = Bottleneck::new(&setup(), Slow::tbf(200 * MBIT), &[LOAD, LOAD, mouse], 1);
    b.run_for(Duration::from_secs(1));
    b.times(2);
    b.run_for(Duration::from_secs(2));
    let times = b.times(2);
    let of = |percent: usize| times[times.len() * percent / 100];
    // Without control it would be twenty milliseconds.
    let (median, p99) = (of(50), of(99));
    assert!(median < Duration::from_millis(2) && p99 < Duration::from_millis(4), "{median:?} {p99:?}");
}

/// READs by a link whose queue is shorter than what a requester may have asked for: the delay of the answers tells.
#[test]
fn reads_ask_for_what_a_slow_link_can_bring() {
    let load = Load { op: SendOp::Read, from: 0, len: 256 << 10, depth: 16, both: false };
    let link = Slow { burst: 64 << 10, room: 200_000, ..Slow::tbf(100 * MBIT) };
    let setup = Setup { features: [Features::SELECTIVE | Features::TIMED_READS; 2], ..setup() };
    let mut b = Bottleneck::new(&setup, link, &[load], 1);
    b.run_for(Duration::from_secs(SECS));
    let share = b.shares()[0];
    let bytes = share.messages * u64::from(load.len);
    let part = (8 * bytes) as f64 / (SECS * link.bits_per_sec) as f64;
    let passed = (4096 * share.passed) as f64 / bytes as f64;
    assert!(part >= 0.95 && passed <= 1.05, "{part} of the link, each byte {passed} times, {share:?}");
}

/// Both ends of a queue pair ask for as much as both directions bring: answers and requests of each wait in the other's queue.
#[test]
fn both_directions_are_busy() {
    let link = Slow { burst: 64 << 10, room: 200_000, ..Slow::tbf(100 * MBIT) };
    let setup = Setup { features: [Features::SELECTIVE | Features::TIMED_READS; 2], ..setup() };
    for op in [SendOp::Read, SendOp::Write] {
        let load = Load { op, from: 0, len: 1 << 20, depth: 1, both: true };
        let mut b = Bottleneck::new(&setup, link, &[load], 1);
        b.run_for(Duration::from_secs(SECS));
        let share = b.shares()[0];
        let part =
            |messages: u64| (8 * messages * u64::from(load.len)) as f64 / (SECS * link.bits_per_sec) as f64;
        let parts = [part(share.messages), part(share.back)];
        assert!(parts.iter().all(|part| *part >= 0.9), "{op:?}: {parts:?} of the link, {share:?}");
    }
}
