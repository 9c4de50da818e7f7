//! What was made and destroyed is gone, in masqd as well.

use std::collections::BTreeMap;
use std::fs;

use guest_sim::Cluster;
use guest_sim::suite::{Pair, Setup, assert_status};
use guest_sim::verbs::{ACCESS_ALL, ConnectAttr, QpCaps, To, wr};
use vrdma_abi::control::*;
use vrdma_abi::ring::*;

use crate::Test;
use crate::windows::{bind, run};

pub const TESTS: &[Test] = &[
    ("a_thousand_rounds_leave_nothing_behind", each_object),
    ("processes_that_end_leave_nothing_behind", whole_processes),
];

/// What masqd has and its guests have asked for.
struct Footprint {
    objects: [BTreeMap<String, u64>; 2],
    descriptors: Vec<usize>,
    resident_kib: Vec<u64>,
}

impl Footprint {
    fn take(p: &Pair) -> Self {
        let cluster = &p.world.cluster;
        let (a, b) = p.placement.vnics();
        Footprint {
            objects: [a, b].map(|vnic| cluster.objects(vnic)),
            descriptors: cluster.hosts().map(|host| descriptors(cluster, host)).collect(),
            resident_kib: cluster.hosts().map(|host| resident_kib(cluster, host)).collect(),
        }
    }

    /// Nothing has grown since `before`, but for what an allocator keeps.
    #[track_caller]
    fn assert_no_more_than(&self, before: &Footprint) {
        assert!(self.objects[0].len() >= 5, "masqd tells of too few kinds of objects: {:?}", self.objects);
        assert_eq!(self.objects, before.objects, "objects of the guests");
        for (now, then) in self.descriptors.iter().zip(&before.descriptors) {
            // The API's connections come and go.
            assert!(*now < then + 8, "masqd has {now} descriptors, after {then}");
        }
        for (now, then) in self.resident_kib.iter().zip(&before.resident_kib) {
            assert!(*now < then + 4096, "masqd has grown from {then} KiB to {now} KiB");
        }
    }
}

fn process(cluster: &Cluster, host: u8) -> String {
    format!("/proc/{}", cluster.masqd_pid(host).expect("masqd runs"))
}

fn descriptors(cluster: &Cluster, host: u8) -> usize {
    fs::read_dir(process(cluster, host) + "/fd").expect("masqd's descriptors").count()
}

fn resident_kib(cluster: &Cluster, host: u8) -> u64 {
    let status = fs::read_to_string(process(cluster, host) + "/status").expect("masqd's status");
    let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:")).expect("VmRSS");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}

/// Makes one of each object, uses them, and destroys them one by one.
fn one_round(p: &Pair) {
    let attr = ConnectAttr::default();
    let srq = p.b.pd.create_srq(16, 1).unwrap();
    let setup = Setup { caps_b: QpCaps::on(&srq), cqe: 16, ..Setup::default() };
    let c = p.connect_with(&setup);
    let (here, there) = (p.a.buffer(64), p.b.pd.buffer_with(64, ACCESS_ALL | ACCESS_MW_BIND).unwrap());
    let mw = p.b.pd.alloc_mw(MW_TYPE_2).unwrap();
    bind(&c.b, mw.rkey, &there, 0, 64, ACCESS_REMOTE_WRITE);
    srq.post_recv(1, &[there.sge(0, 8)]).unwrap();
    c.a.post_send(&wr::request(SEND_OP_SEND, 1), &[here.sge(0, 8)]).unwrap();
    assert_status(&c.a.send_completion(), WC_SUCCESS);
    assert_status(&c.b.recv_completion(), WC_SUCCESS);
    assert_status(&run(&c.b, wr::local_inv(1, mw.rkey)), WC_SUCCESS);
    c.a.send_cq().resize(32).unwrap();
    let there = there.rereg(None, Some(ACCESS_ALL), None).unwrap();

    let caps = QpCaps { send_wr: 4, recv_wr: 4, ..QpCaps::of(QP_TYPE_UD) };
    let [from, to] = [&p.a, &p.b].map(|side| side.qp(&caps, 16));
    from.activate(&attr).unwrap();
    to.activate(&attr).unwrap();
    to.post_recv(1, &[there.sge(0, 64)]).unwrap();
    let name = To::new(p.b.address, to.qpn, attr.qkey);
    from.post_send(&wr::datagram(SEND_OP_SEND, 1, &name), &[here.sge(0, 8)]).unwrap();
    assert_status(&from.send_completion(), WC_SUCCESS);
    assert_status(&to.recv_completion(), WC_SUCCESS);
    // One that fails with work outstanding.
    let unused = p.a.qp(&caps, 16);
    unused.activate(&attr).unwrap();
    unused.post_recv(1, &[]).unwrap();

    for qp in [&c.a, &c.b, &from, &to, &unused] {
        qp.destroy().unwrap();
        for cq in [qp.send_cq(), qp.recv_cq()] {
            cq.destroy().unwrap();
        }
    }
    mw.destroy().unwrap();
    srq.destroy().unwrap();
    for region in [here, there] {
        region.destroy().unwrap();
    }
}

fn each_object(p: &Pair) {
    // What tables and pools keep is there after some rounds.
    (0..200).for_each(|_| one_round(p));
    let before = Footprint::take(p);
    (0..1000).for_each(|_| one_round(p));
    Footprint::take(p).assert_no_more_than(&before);
}

/// The end of a process takes all that it had along, in whatever state it is.
fn whole_processes(p: &Pair) {
    let round = || {
        let inner = Pair::open(p.world, p.placement);
        let srq = inner.b.pd.create_srq(16, 1).unwrap();
        let c = inner.connect_with(&Setup { caps_b: QpCaps::on(&srq), ..Setup::default() });
        let there = inner.b.pd.buffer_with(64, ACCESS_ALL | ACCESS_MW_BIND).unwrap();
        let mw = inner.b.pd.alloc_mw(MW_TYPE_1).unwrap();
        bind(&c.b, mw.rkey, &there, 0, 64, ACCESS_REMOTE_WRITE);
        // Their rings are the guest's again only when masqd knows them no more.
        let others =
            [QP_TYPE_UD, QP_TYPE_UC, QP_TYPE_XRC_INI].map(|qp_type| inner.a.qp(&QpCaps::of(qp_type), 64));
        for qp in &others {
            qp.to_init(&ConnectAttr::default()).unwrap();
        }
        c.a.post_send(&wr::request(SEND_OP_SEND, 1), &[]).unwrap();
        inner.close().unwrap();
    };
    (0..50).for_each(|_| round());
    let before = Footprint::take(p);
    (0..300).for_each(|_| round());
    Footprint::take(p).assert_no_more_than(&before);
}
