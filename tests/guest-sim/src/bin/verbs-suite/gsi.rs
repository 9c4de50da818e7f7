//! QP1, over which guests' kernels manage connections.

use std::time::Duration;

use guest_sim::suite::{DatagramEnd, Pair, Placement, Side, World, assert_status, pattern};
use guest_sim::verbs::{ConnectAttr, GSI_QKEY, QpCaps, To, wr};
use vrdma_abi::control::*;
use vrdma_abi::ring::*;

use crate::Test;

pub const TESTS: &[Test] = &[
    ("two_fresh_guests_exchange_management_datagrams", fresh_guests),
    ("management_datagrams_to_oneself", to_oneself),
    ("there_is_one_qp1_and_it_is_the_kernels", only_one),
    ("processes_cannot_speak_to_qp1", not_for_processes),
    ("qp1_comes_and_goes", comes_and_goes),
];

/// Bytes of a MAD.
const MAD: usize = 256;

/// Guests of another tenant, of which nobody has used any since they were started.
fn fresh(world: &World, placement: Placement) -> [&'static str; 2] {
    let vnics = match placement {
        Placement::Local => ["red-1", "red-2"],
        Placement::Remote => ["red-1", "red-3"],
    };
    vnics.map(|vnic| {
        world.stop_guest(vnic);
        vnic
    })
}

/// Both send at once, before either end of either host knows the other: what must be asked for waits, and nothing is lost.
fn fresh_guests(p: &Pair) {
    const COUNT: usize = 20;
    for _ in 0..3 {
        let vnics = fresh(p.world, p.placement);
        let kernels = vnics.map(|vnic| Side::kernel(p.world, vnic));
        let [a, b] = kernels.each_ref().map(|kernel| DatagramEnd::gsi(kernel, 2 * COUNT));
        for k in 0..COUNT as u64 {
            for (from, to) in [(&a, &b), (&b, &a)] {
                let mad = pattern(k + u64::from(from.qp.cookie), MAD);
                from.here.write(k as usize * MAD, &mad);
                let sge = from.here.sge(k as usize * MAD, MAD);
                from.qp.post_send(&wr::datagram(SEND_OP_SEND, k, &to.name()), &[sge]).unwrap();
            }
        }
        for (from, to) in [(&a, &b), (&b, &a)] {
            for k in 0..COUNT as u64 {
                let cqe = from.qp.send_completion();
                assert_status(&cqe, WC_SUCCESS);
                assert_eq!(cqe.wr_id, k);
                let mad = pattern(k + u64::from(from.qp.cookie), MAD);
                to.receive().assert_is(&mad, (from.side.address, 1), to.side.address);
            }
        }
        for kernel in &kernels {
            kernel.ctx.destroy().unwrap();
        }
        vnics.iter().for_each(|vnic| p.world.stop_guest(vnic));
    }
}

fn to_oneself(p: &Pair) {
    let kernel = Side::kernel_of(p.a.guest.clone(), p.a.address);
    let gsi = DatagramEnd::gsi(&kernel, 4);
    gsi.send(&gsi.name(), &[5; MAD]);
    gsi.receive().assert_is(&[5; MAD], (p.a.address, 1), p.a.address);
    // What is no MAD is none of its business.
    gsi.send(&gsi.name(), b"no MAD");
    gsi.send(&gsi.name(), &[6; MAD]);
    gsi.receive().assert_is(&[6; MAD], (p.a.address, 1), p.a.address);
    kernel.ctx.destroy().unwrap();
}

fn only_one(p: &Pair) {
    let cq = p.a.ctx.create_cq(64, 0).unwrap();
    let caps = QpCaps::of(QP_TYPE_GSI);
    p.a.pd.create_qp(&cq, &cq, &caps).err().expect("a process has no QP1");
    let kernel = Side::kernel_of(p.a.guest.clone(), p.a.address);
    let _first = DatagramEnd::gsi(&kernel, 1);
    let second = Side::kernel_of(p.a.guest.clone(), p.a.address);
    let cq = second.ctx.create_cq(64, 0).unwrap();
    second.pd.create_qp(&cq, &cq, &caps).err().expect("a second QP1 of one device");
    for kernel in [&kernel, &second] {
        kernel.ctx.destroy().unwrap();
    }
}

/// The Q_Key of QP1 has its highest bit set, and a work request with such a key sends its queue pair's own instead.
fn not_for_processes(p: &Pair) {
    let kernel = Side::kernel_of(p.b.guest.clone(), p.b.address);
    let gsi = DatagramEnd::gsi(&kernel, 4);
    let process = DatagramEnd::open(&p.a, 1);
    for qkey in [GSI_QKEY, process.qkey, 0, 0x0001_0000] {
        process.send(&To { qkey, ..gsi.name() }, &[0; MAD]);
    }
    assert!(gsi.receive_within(Duration::from_millis(50)).is_none(), "a process has spoken to QP1");
    // QP1 can be spoken to: by the other kernel.
    let peer = Side::kernel_of(p.a.guest.clone(), p.a.address);
    let at_peer = DatagramEnd::gsi(&peer, 4);
    at_peer.send(&gsi.name(), &[7; MAD]);
    gsi.receive().assert_is(&[7; MAD], (p.a.address, 1), p.b.address);
    // And QP1 speaks to no queue pair that has another key.
    let other = DatagramEnd::open(&p.b, 2);
    at_peer.send(&To { qkey: GSI_QKEY, ..other.name() }, &[8; MAD]);
    assert!(other.receive_within(Duration::from_millis(50)).is_none());
    for kernel in [&kernel, &peer] {
        kernel.ctx.destroy().unwrap();
    }
}

/// A guest's kernel reloads its driver; peers go on with it.
fn comes_and_goes(p: &Pair) {
    let peer = Side::kernel_of(p.b.guest.clone(), p.b.address);
    let at_peer = DatagramEnd::gsi(&peer, 64);
    for round in 0..10u8 {
        let kernel = Side::kernel_of(p.a.guest.clone(), p.a.address);
        let gsi = DatagramEnd::gsi(&kernel, 4);
        gsi.send(&at_peer.name(), &[round; MAD]);
        at_peer.receive().assert_is(&[round; MAD], (p.a.address, 1), p.b.address);
        at_peer.send(&gsi.name(), &[round; MAD]);
        gsi.receive().assert_is(&[round; MAD], (p.b.address, 1), p.a.address);
        gsi.qp.destroy().unwrap();
        at_peer.send(&gsi.name(), &[round; MAD]);
        let attr = ConnectAttr::default();
        let again = kernel.qp(&QpCaps::of(QP_TYPE_GSI), 64);
        assert_eq!(again.qpn, 1);
        again.activate(&attr).unwrap();
        kernel.ctx.destroy().unwrap();
    }
    peer.ctx.destroy().unwrap();
}
