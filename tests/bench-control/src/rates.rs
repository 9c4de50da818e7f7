//! How well rates and weights are kept, and what keeping them costs masqd.

use std::path::Path;
use std::time::{Duration, Instant};

use bench_record::{Record, Res, Samples};
use masq_model::api::Traffic;
use masq_model::{Key, Kind, Object};
use serde_json::{Value, json};

use crate::flow::Flow;
use crate::objects;
use crate::world::{World, name};

/// Mbit/s.
const RATES: [u64; 6] = [50, 100, 500, 1000, 2000, 5000];
/// By how much a rate may be missed.
const RATE_BAR: f64 = 0.02;
/// By how much the share of a weight may be missed.
const SHARE_BAR: f64 = 0.05;
/// What the vNICs of the class share, in Mbit/s.
const CLASS_RATE: u64 = 400;
/// A rate is judged when the machine reaches so many times of it without a limit.
const HEADROOM: f64 = 1.1;
/// How long a change gets before it is measured: its burst is over.
const SETTLE: Duration = Duration::from_millis(500);

/// How much to measure.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// For each rate.
    pub limited: Duration,
    /// For each rate that the guest keeps to by itself, and for each share.
    pub paced: Duration,
}

/// Senders 1 and 3 and receiver 2 are on one host, receiver 4 is on the other.
const HOSTS: [u8; 4] = [1, 1, 1, 2];
const SENDERS: [u32; 2] = [1, 3];

/// Rates and shares, on one host and between two.
pub fn measure(programs: &Path, effort: Effort) -> Res<Vec<Record>> {
    let world = World::start(programs, 2, &HOSTS)?;
    let policies =
        [objects::policy("rate", 1, 0), objects::policy("one", 1, 1), objects::policy("three", 3, 1)];
    world.apply(&policies.map(Object::QosPolicy))?;
    let mut records = Vec::new();
    for (scope, receiver, hosts) in [("one host", 2, &[1][..]), ("two namespaces", 4, &[1, 2])] {
        rates(&world, scope, receiver, hosts, effort, &mut records)?;
        shares(&world, scope, receiver, effort, &mut records)?;
    }
    Ok(records)
}

/// What flowed for a while, and what masqd took for it.
struct Sampled {
    /// IP packets, bits a second.
    bits_per_sec: f64,
    /// CPU milliseconds of the masqds in a second.
    cpu_ms: f64,
    /// Bytes of payload a second.
    payload: f64,
}

fn sample(world: &World, flow: &Flow, hosts: &[u8], run: Duration) -> Res<Sampled> {
    let cpu = || hosts.iter().map(|h| cpu_seconds(world, *h)).sum::<Res<f64>>();
    let (bytes, at) = sent(world, SENDERS[0])?;
    let (cpu_before, payload) = (cpu()?, flow.written());
    std::thread::sleep(run);
    let (bytes_after, after) = sent(world, SENDERS[0])?;
    let seconds = (after - at).as_secs_f64();
    Ok(Sampled {
        bits_per_sec: (bytes_after - bytes) as f64 * 8.0 / seconds,
        cpu_ms: (cpu()? - cpu_before) * 1e3 / seconds,
        payload: (flow.written() - payload) as f64 / seconds,
    })
}

/// Bytes that a vNIC of host 1 has sent, and when.
fn sent(world: &World, vnic: u32) -> Res<(u64, Instant)> {
    let before = Instant::now();
    let all: Vec<Traffic> = serde_json::from_value(world.api(1, "GET", "/v1/traffic", None)?)?;
    let at = before + before.elapsed() / 2;
    let of = all.iter().find(|t| t.vnic == name(vnic)).ok_or("the traffic of a vNIC")?;
    Ok((of.tx_bytes, at))
}

/// CPU time that the threads of a host's masqd have used.
fn cpu_seconds(world: &World, host: u8) -> Res<f64> {
    let pid = world.cluster().masqd_pid(host).ok_or("masqd runs")?;
    let mut nanos = 0.0;
    for task in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        let text = std::fs::read_to_string(task?.path().join("schedstat"))?;
        nanos += text.split(' ').next().ok_or("the time of a thread")?.parse::<f64>()?;
    }
    Ok(nanos / 1e9)
}

/// Each rate, changed while the traffic flows; then the same rate kept by the guest.
fn rates(
    world: &World,
    scope: &str,
    receiver: u32,
    hosts: &[u8],
    effort: Effort,
    records: &mut Vec<Record>,
) -> Res<()> {
    set_policy(world, SENDERS[0], json!("rate"))?;
    let policy = Key::new(Kind::QosPolicy, "rate");
    let set_rate = |rate: Value| world.patch(&policy, &json!({ "rate_bits_per_sec": rate }));
    let flow = Flow::start(world, SENDERS[0], receiver)?;
    std::thread::sleep(SETTLE);
    let unlimited = sample(world, &flow, hosts, effort.paced)?;
    let mbits = unlimited.bits_per_sec / 1e6;
    records.push(Record::new("rate_unlimited", scope, mbits, "Mbit/s"));
    records.push(Record::new("cpu_unlimited", scope, unlimited.cpu_ms, "ms/s"));
    for rate in RATES {
        let reachable = mbits >= rate as f64 * HEADROOM;
        set_rate(json!(rate * 1_000_000))?;
        std::thread::sleep(SETTLE);
        let limited = sample(world, &flow, hosts, effort.limited)?;
        let achieved = Record::new(format!("rate_{rate}M"), scope, limited.bits_per_sec / 1e6, "Mbit/s");
        let achieved = achieved.beside(
            if reachable { "the rate that is set" } else { "set, but too fast for this machine" },
            rate as f64,
        );
        records.push(if reachable { achieved.within(RATE_BAR) } else { achieved });
        if !reachable {
            continue;
        }
        set_rate(Value::Null)?;
        flow.pace(Some(limited.payload));
        std::thread::sleep(SETTLE);
        let paced = sample(world, &flow, hosts, effort.paced)?;
        flow.pace(None);
        let peer = format!("paced by the guest, {:.0} Mbit/s", paced.bits_per_sec / 1e6);
        records.push(
            Record::new(format!("cpu_{rate}M"), scope, limited.cpu_ms, "ms/s").beside(peer, paced.cpu_ms),
        );
    }
    set_rate(Value::Null)
}

/// Two senders of one class with weights 1 and 3 under one rate.
fn shares(world: &World, scope: &str, receiver: u32, effort: Effort, records: &mut Vec<Record>) -> Res<()> {
    let host = Key::new(Kind::Host, "h1");
    world.patch(
        &host,
        &json!({ "class_rates": [{ "class": 1, "rate_bits_per_sec": CLASS_RATE * 1_000_000 }] }),
    )?;
    for (sender, policy) in SENDERS.into_iter().zip(["one", "three"]) {
        set_policy(world, sender, json!(policy))?;
    }
    let flows = [Flow::start(world, SENDERS[0], receiver)?, Flow::start(world, SENDERS[1], receiver)?];
    std::thread::sleep(SETTLE);
    let sample = || -> Res<Vec<(u64, Instant)>> { SENDERS.iter().map(|n| sent(world, *n)).collect() };
    let mut achieved = [Samples::default(), Samples::default()];
    let mut before = sample()?;
    for _ in 0..3 {
        std::thread::sleep(effort.paced);
        let after = sample()?;
        for ((samples, (b, from)), (a, to)) in achieved.iter_mut().zip(&before).zip(&after) {
            samples.push((a - b) as f64 * 8.0 / 1e6 / (*to - *from).as_secs_f64());
        }
        before = after;
    }
    drop(flows);
    for sender in SENDERS {
        set_policy(world, sender, Value::Null)?;
    }
    world.patch(&host, &json!({ "class_rates": [] }))?;
    let total: f64 = achieved.iter().map(Samples::median).sum();
    let all = Record::new("class_rate", scope, total, "Mbit/s");
    records.push(all.beside("the rate of the class", CLASS_RATE as f64).within(RATE_BAR));
    for (samples, share) in achieved.iter().zip([0.25, 0.75]) {
        let name = format!("share_of_weight_{}", if share < 0.5 { 1 } else { 3 });
        let record = Record::new(name, scope, samples.median() / total * 100.0, "%");
        records.push(record.beside("its weight's share", share * 100.0).within(SHARE_BAR));
    }
    Ok(())
}

fn set_policy(world: &World, vnic: u32, policy: Value) -> Res<()> {
    world.patch(&Key::new(Kind::Vnic, &name(vnic)), &json!({ "qos_policy": policy }))
}
