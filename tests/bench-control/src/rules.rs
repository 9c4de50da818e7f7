//! What a verdict costs, and the directory that is asked for it.

use std::hint::black_box;
use std::time::Instant;

use bench_record::{Record, Samples};
use masq_control::Directory;
use masq_model::Object;
use masq_policy::rules::Transport;
use masq_types::Gid;

use crate::objects::{CLIENTS, SERVERS, address, network, rules, snapshot, vni, vnic};

const PEERS: u32 = 1000;
/// Verdicts between two looks at the clock.
const BATCH: u32 = 32;

/// The vNIC `server` with `count` rules, and its peers.
fn directory(count: u32) -> Directory {
    let mut objects = network();
    objects.extend(rules(count).into_iter().map(Object::SecurityGroupRule));
    objects.push(Object::Vnic(vnic("server", 1, None, &[SERVERS])));
    objects.extend((0..PEERS).map(|n| Object::Vnic(vnic(format!("client-{n}"), 1000 + n, None, &[CLIENTS]))));
    let (directory, bad) = Directory::from_snapshot(&snapshot(&objects));
    assert!(bad.is_empty(), "{bad:?}");
    directory
}

/// Nanoseconds of a verdict, as RTR asks for it, with few rules and with many.
pub fn measure(batches: u32) -> Vec<Record> {
    let counts = [10, 10_000];
    let directories = counts.map(directory);
    let mut samples = [Samples::default(), Samples::default()];
    let local = Gid::from(std::net::IpAddr::from(address(1)));
    for batch in 0..batches {
        for (directory, samples) in directories.iter().zip(&mut samples) {
            let start = Instant::now();
            for k in 0..BATCH {
                let peer = 1000 + (batch * BATCH + k).wrapping_mul(617) % PEERS;
                let remote = Gid::from(std::net::IpAddr::from(address(peer)));
                let verdict = directory.evaluate(vni(), "server", Transport::Rc, local, black_box(remote));
                assert!(verdict.is_allowed());
            }
            samples.push(start.elapsed().as_nanos() as f64 / f64::from(BATCH));
        }
    }
    let [few, many] = &samples;
    [("p50", 50.0), ("p99", 99.0)]
        .map(|(scope, percent)| {
            Record::new(
                "verdict_10000_rules",
                format!("pure, {scope} of batches"),
                many.percentile(percent),
                "ns",
            )
            .beside("10 rules", few.percentile(percent))
        })
        .into()
}
