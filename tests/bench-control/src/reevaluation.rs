//! What it costs to judge again the connections that a change touches, among many that it does not.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use bench_record::{Record, Samples};
use masq_control::Directory;
use masq_control::store::{Batch, Change};
use masq_driver::QpHandle;
use masq_model::{Action, Direction, IpNet, Object, SecurityGroupRule};
use masq_policy::conntrack::{Connection, Conntrack};
use masq_policy::rename::resolve;
use masq_policy::rules::Transport;
use masq_types::{Gid, PathId, WireQpn};

use crate::objects::{CLIENTS, FEW, SERVERS, address, endpoint, network, rule, rules, snapshot, vni, vnic};

const RULES: u32 = 10_000;
const CLIENTS_COUNT: u32 = 10_000;
/// Connections with each client; a change is about one client.
const PER_CLIENT: u32 = 10;
const TRACKED: [u32; 2] = [1000, 100_000];
/// The largest part of the time that 99 % of the connections, which are not touched, may take.
const BAR: f64 = 2.0;

/// A change: what it is about, and what the object becomes, forth and back.
type Kind = (&'static str, fn(bool) -> Object);

/// Changes that touch the connections with client 0.
const CHANGES: [Kind; 3] = [
    ("rule about a prefix", |flip| Object::SecurityGroupRule(prefix_rule(flip))),
    ("rule about a group", |flip| Object::SecurityGroupRule(group_rule(flip))),
    ("membership of a vNIC", |flip| Object::Vnic(client(0, flip))),
];

/// Another priority changes nothing about the verdicts, so that connections stay.
fn prefix_rule(flip: bool) -> SecurityGroupRule {
    let remote_prefix = IpNet::new(address(first_client()).into(), 32).ok();
    let ours = rule(SERVERS, "about-a-client", Direction::Ingress, Action::Allow);
    SecurityGroupRule { remote_prefix, priority: 20_000 + u32::from(flip), ..ours }
}

fn group_rule(flip: bool) -> SecurityGroupRule {
    let ours = rule(SERVERS, "about-a-group", Direction::Ingress, Action::Allow);
    SecurityGroupRule { remote_group: Some(FEW.into()), priority: 30_000 + u32::from(flip), ..ours }
}

fn first_client() -> u32 {
    1000
}

fn client(n: u32, is_one_of_few: bool) -> masq_model::Vnic {
    let groups: &[&str] = if is_one_of_few { &[CLIENTS, FEW] } else { &[CLIENTS] };
    vnic(format!("client-{n}"), first_client() + n, Some("h2"), groups)
}

fn directory() -> Directory {
    let mut objects = network();
    objects.extend(rules(RULES).into_iter().map(Object::SecurityGroupRule));
    objects.extend([prefix_rule(true), group_rule(true)].map(Object::SecurityGroupRule));
    objects.push(Object::Vnic(vnic("server", 1, Some("h1"), &[SERVERS])));
    for n in 0..CLIENTS_COUNT {
        let client = client(n, n == 0);
        objects.push(Object::Endpoint(endpoint(&client, n)));
        objects.push(Object::Vnic(client));
    }
    let (directory, bad) = Directory::from_snapshot(&snapshot(&objects));
    assert!(bad.is_empty(), "{bad:?}");
    directory
}

fn gid(n: u32) -> Gid {
    IpAddr::from(address(n)).into()
}

/// Connection `i` of `server`.
fn connection(i: u32) -> Connection {
    let n = i / PER_CLIENT;
    Connection {
        vni: vni(),
        transport: Transport::Rc,
        local: gid(1),
        local_qpn: WireQpn::from_wire(0x1000 + i),
        remote: gid(first_client() + n),
        remote_qpn: WireQpn::from_wire(0x2000 + i),
        peer: format!("client-{n}").into(),
        peer_host: "h2".into(),
        remote_address: [10, 77, 0, 2].into(),
        other_addresses: Vec::new(),
        allowed_by: "a rule".into(),
        since: Duration::ZERO,
    }
}

/// Its first `count` connections.
fn tracked(count: u32) -> Conntrack<QpHandle> {
    let mut conntrack = Conntrack::default();
    for i in 0..count {
        conntrack.insert(QpHandle(i), connection(i));
    }
    conntrack
}

/// Microseconds of tracking one more connection, and of forgetting it.
fn tracking(conntracks: &mut [Conntrack<QpHandle>; 2], rounds: u32) -> Record {
    let mut samples = [Samples::default(), Samples::default()];
    for round in 0..rounds {
        for ((conntrack, samples), count) in conntracks.iter_mut().zip(&mut samples).zip(TRACKED) {
            let new = connection(round.wrapping_mul(7919) % count);
            let start = Instant::now();
            conntrack.insert(QpHandle(count), new);
            conntrack.remove(QpHandle(count));
            samples.push_us(start.elapsed());
        }
    }
    let [few, many] = &samples;
    let record = Record::new("track_and_forget", "pure, 100000 tracked", many.median(), "us");
    record.beside("1000 tracked", few.median())
}

/// The time of a change: the directory takes it over, and the connections that it touches are judged again, as a session judges
/// them.
fn change(directory: &mut Directory, conntrack: &Conntrack<QpHandle>, to: &Object) -> Duration {
    let put = Change::Put { key: to.key().to_string(), value: to.to_json() };
    let batch = Batch { changes: vec![put], revision: directory.revision() + 1 };
    let mut judged = 0;
    let start = Instant::now();
    let delta = directory.apply(&batch);
    let directory = &*directory;
    let revoked = conntrack.reevaluate(&delta.touched, |c| {
        judged += 1;
        let found = resolve(directory, c.vni, c.remote, &[[10, 77, 0, 1].into()], PathId(0));
        let found = found.map_err(|e| e.to_string())?;
        if found.peer.vnic != c.peer || found.remote != c.remote_address {
            return Err("moved".to_owned());
        }
        let verdict = directory.evaluate(c.vni, "server", c.transport, c.local, c.remote);
        if verdict.is_allowed() { Ok(()) } else { Err(format!("{verdict:?}")) }
    });
    let time = start.elapsed();
    assert_eq!((judged, revoked.as_slice()), (PER_CLIENT, [].as_slice()), "{to:?}");
    time
}

/// Microseconds of each change with many tracked connections, beside few.
pub fn measure(rounds: u32) -> Vec<Record> {
    let mut directory = directory();
    let mut conntracks = TRACKED.map(tracked);
    let mut records = vec![tracking(&mut conntracks, rounds * 10)];
    for (name, object) in CHANGES {
        let mut samples = [Samples::default(), Samples::default()];
        for _ in 0..rounds {
            for (flip, (conntrack, samples)) in
                [false, true].into_iter().zip(conntracks.iter().zip(&mut samples))
            {
                samples.push_us(change(&mut directory, conntrack, &object(flip)));
            }
        }
        let [few, many] = &samples;
        let scope = format!("pure, {name}");
        let record = Record::new("reevaluate_100000_tracked", scope, many.median(), "us");
        records.push(record.beside("1000 tracked", few.median()).at_most(BAR));
    }
    records
}
