//! Datagrams that cannot be sent or received.

use std::net::IpAddr;
use std::time::Duration;

use guest_sim::Cluster;
use guest_sim::suite::{DatagramEnd, Pair, assert_status};
use guest_sim::verbs::{ConnectAttr, GRH_BYTES, QpCaps, To, wr};
use masq_types::Gid;
use vrdma_abi::control::*;
use vrdma_abi::ring::*;
use vrdma_rings::SendRequest;

use crate::Test;
use crate::ud::link_local;

pub const TESTS: &[Test] = &[
    ("a_datagram_above_the_mtu", too_long),
    ("operations_that_datagrams_do_not_have", wrong_operations),
    ("a_send_queue_recovers_from_its_error", recovers),
    ("a_datagram_from_memory_that_is_not_registered", foreign_memory),
    ("a_datagram_longer_than_its_receive", short_receive),
    ("a_datagram_with_a_wrong_key", wrong_qkey),
    ("datagrams_to_nobody", to_nobody),
    ("datagrams_from_a_gid_that_is_not_there", no_source),
    ("multicast_is_refused", multicast),
    ("a_failed_queue_pair_flushes_its_datagrams", flushed),
    ("datagrams_to_a_queue_pair_that_does_not_receive", not_ready),
];

/// Nothing arrives at this end.
#[track_caller]
fn nothing_arrives(b: &DatagramEnd) {
    let got = b.receive_within(Duration::from_millis(50));
    assert!(got.is_none(), "{got:?}");
}

/// This datagram arrives.
#[track_caller]
fn arrives(a: &DatagramEnd, b: &DatagramEnd) {
    a.send(&b.name(), b"fine");
    b.receive().assert_is(b"fine", (a.side.address, a.qp.qpn), b.side.address);
}

/// The request fails with `status`, what is behind it is flushed, and the send queue is in error, the rest of the queue pair not.
#[track_caller]
fn fails(a: &DatagramEnd, b: &DatagramEnd, request: &SendRequest, sges: &[Sge], status: u8) {
    let behind = wr::datagram(SEND_OP_SEND, 2, &b.name());
    a.qp.post_sends(&[(*request, sges.to_vec()), (behind, vec![])]).unwrap();
    let cqe = a.qp.send_completion();
    assert_status(&cqe, status);
    assert_eq!(cqe.wr_id, request.wr_id);
    let cqe = a.qp.send_completion();
    assert_status(&cqe, WC_WR_FLUSH_ERR);
    assert_eq!(cqe.wr_id, 2);
    assert_eq!(a.qp.state(), QP_STATE_SQE);
    // What is posted in this state is flushed as well.
    a.qp.post_send(&SendRequest { wr_id: 3, ..behind }, &[]).unwrap();
    assert_status(&a.qp.send_completion(), WC_WR_FLUSH_ERR);
    arrives(b, a);
    nothing_arrives(b);
    a.qp.to_state(QP_STATE_RTS).expect("SQE to RTS");
    arrives(a, b);
}

fn too_long(p: &Pair) {
    let mtu = 128usize << p.a.guest.config.active_mtu;
    let (a, b) = (DatagramEnd::open(&p.a, 4), DatagramEnd::open(&p.b, 4));
    let large = p.a.buffer(2 * mtu);
    for len in [mtu + 1, 2 * mtu] {
        fails(&a, &b, &wr::datagram(SEND_OP_SEND, 1, &b.name()), &[large.sge(0, len)], WC_LOC_LEN_ERR);
    }
}

fn wrong_operations(p: &Pair) {
    let (a, b) = (DatagramEnd::open(&p.a, 8), DatagramEnd::open(&p.b, 8));
    let there = p.b.buffer(64);
    for opcode in
        [SEND_OP_RDMA_WRITE, SEND_OP_RDMA_WRITE_IMM, SEND_OP_RDMA_READ, SEND_OP_SEND_INV, SEND_OP_WAIT]
    {
        let request =
            SendRequest { remote_addr: there.addr, rkey: there.rkey, ..wr::datagram(opcode, 1, &b.name()) };
        fails(&a, &b, &request, &[a.here.sge(0, 8)], WC_LOC_QP_OP_ERR);
    }
    let target = wr::datagram(SEND_OP_FETCH_ADD, 1, &b.name()).target;
    let atomic = SendRequest { target, ..wr::atomic(SEND_OP_FETCH_ADD, 1, &there, 0, 1, 0) };
    fails(&a, &b, &atomic, &[a.here.sge(0, 8)], WC_LOC_QP_OP_ERR);
    assert_eq!(there.read(0, 64), [0; 64]);
}

fn recovers(p: &Pair) {
    let (a, b) = (DatagramEnd::open(&p.a, 40), DatagramEnd::open(&p.b, 40));
    for _ in 0..20 {
        fails(&a, &b, &wr::datagram(SEND_OP_RDMA_WRITE, 1, &b.name()), &[], WC_LOC_QP_OP_ERR);
    }
    // From there a queue pair may also go to ERR, and from ERR to RESET.
    a.qp.post_send(&wr::datagram(SEND_OP_RDMA_WRITE, 1, &b.name()), &[]).unwrap();
    assert_status(&a.qp.send_completion(), WC_LOC_QP_OP_ERR);
    a.qp.to_state(QP_STATE_ERR).unwrap();
    a.qp.to_state(QP_STATE_RESET).unwrap();
    a.qp.activate(&ConnectAttr::default()).unwrap();
    arrives(&a, &b);
}

fn foreign_memory(p: &Pair) {
    let (a, b) = (DatagramEnd::open(&p.a, 8), DatagramEnd::open(&p.b, 8));
    let foreign = p.a.ctx.alloc_pd().unwrap().buffer(64).unwrap();
    let send = wr::datagram(SEND_OP_SEND, 1, &b.name());
    fails(&a, &b, &send, &[foreign.sge(0, 8)], WC_LOC_PROT_ERR);
    fails(&a, &b, &send, &[Sge { lkey: !a.here.lkey, ..a.here.sge(0, 8) }], WC_LOC_PROT_ERR);
    fails(&a, &b, &send, &[a.here.sge(8190, 8)], WC_LOC_PROT_ERR);
}

fn short_receive(p: &Pair) {
    let (a, b) = (DatagramEnd::open(&p.a, 1), DatagramEnd::open(&p.b, 0));
    let host = p.world.host(p.placement.vnics().1);
    let into = p.b.buffer(4096);
    b.qp.post_recv(4, &[into.sge(0, GRH_BYTES + 100)]).unwrap();
    let before = p.world.cluster.counter(host, "ud_rx_too_long");
    a.send(&b.name(), &[0xaa; 101]);
    a.send(&b.name(), &[0xaa; 100]);
    let cqe = b.qp.recv_completion();
    assert_status(&cqe, WC_SUCCESS);
    assert_eq!((cqe.wr_id, cqe.byte_len), (4, GRH_BYTES as u32 + 100), "the receive took the one that fits");
    assert_eq!(p.world.cluster.counter(host, "ud_rx_too_long"), before + 1);
    assert_eq!(into.read(GRH_BYTES + 100, 1000), vec![0; 1000], "nothing behind the receive");
}

fn wrong_qkey(p: &Pair) {
    let (a, b) = (DatagramEnd::open(&p.a, 1), DatagramEnd::open(&p.b, 4));
    let host = p.world.host(p.placement.vnics().1);
    let count = || p.world.cluster.counter(host, "ud_rx_qkey_violations");
    arrives(&a, &b);
    let before = count();
    let wrong = [0, 1, b.qkey ^ 1, b.qkey + 1, i32::MAX as u32];
    for qkey in wrong {
        a.send(&To { qkey, ..b.name() }, b"wrong");
    }
    nothing_arrives(&b);
    assert_eq!(count() - before, wrong.len() as u64, "each was counted");
    arrives(&a, &b);
}

fn to_nobody(p: &Pair) {
    let (a, b) = (DatagramEnd::open(&p.a, 1), DatagramEnd::open(&p.b, 4));
    p.a.guest.add_gid(1, link_local(&p.a)).expect("ADD_GID");
    let nowhere = ["192.168.0.77", "192.168.99.1", "0.0.0.0", "127.0.0.1", "fd00::1", "fe80::1", "::1"];
    let nowhere = nowhere.map(|text| text.parse::<IpAddr>().expect("an address"));
    for address in nowhere.into_iter().chain([Cluster::underlay(1).into(), Cluster::underlay(2).into()]) {
        let sgid_index = u8::from(address.is_ipv6());
        for _ in 0..3 {
            a.send(&To { dgid: address.into(), sgid_index, ..b.name() }, b"lost");
        }
    }
    for qpn in [0, 2, 0xff_ffff, b.qp.qpn ^ 0x80_0000] {
        a.send(&To { qpn, ..b.name() }, b"lost");
    }
    let gone = DatagramEnd::open(&p.b, 1);
    gone.qp.destroy().unwrap();
    a.send(&gone.name(), b"lost");
    nothing_arrives(&b);
    arrives(&a, &b);
    p.a.guest.del_gid(1).expect("DEL_GID");
}

fn no_source(p: &Pair) {
    let (a, b) = (DatagramEnd::open(&p.a, 30), DatagramEnd::open(&p.b, 30));
    for sgid_index in [1, 2, 15, 16, 255] {
        let request = wr::datagram(SEND_OP_SEND, 1, &To { sgid_index, ..b.name() });
        fails(&a, &b, &request, &[a.here.sge(0, 8)], WC_LOC_QP_OP_ERR);
    }
    // Nor from one of another family, or to no address at all.
    for dgid in [link_local(&p.b), Gid::ZERO] {
        let request = wr::datagram(SEND_OP_SEND, 1, &To { dgid, ..b.name() });
        fails(&a, &b, &request, &[a.here.sge(0, 8)], WC_LOC_QP_OP_ERR);
    }
}

fn multicast(p: &Pair) {
    let (a, b) = (DatagramEnd::open(&p.a, 8), DatagramEnd::open(&p.b, 8));
    for group in ["224.0.0.1", "ff02::1", "ff1e::ffff:e000:1"] {
        let group: IpAddr = group.parse().expect("an address");
        let to = To { dgid: group.into(), ..b.name() };
        fails(&a, &b, &wr::datagram(SEND_OP_SEND, 1, &to), &[a.here.sge(0, 8)], WC_LOC_QP_OP_ERR);
    }
}

fn flushed(p: &Pair) {
    let (a, b) = (DatagramEnd::open(&p.a, 5), DatagramEnd::open(&p.b, 2));
    a.qp.to_state(QP_STATE_ERR).unwrap();
    for k in 0..5 {
        let cqe = a.qp.recv_completion();
        assert_status(&cqe, WC_WR_FLUSH_ERR);
        assert_eq!(cqe.wr_id, k);
    }
    a.qp.post_send(&wr::datagram(SEND_OP_SEND, 1, &b.name()), &[]).unwrap();
    assert_status(&a.qp.send_completion(), WC_WR_FLUSH_ERR);
    b.send(&a.name(), b"to one that failed");
    nothing_arrives(&b);
}

/// In INIT receives may be posted, but nothing arrives; from RTR on it does.
fn not_ready(p: &Pair) {
    let a = DatagramEnd::open(&p.a, 1);
    let attr = ConnectAttr::default();
    let qp = p.b.qp(&QpCaps::of(QP_TYPE_UD), 64);
    let to = To::new(p.b.address, qp.qpn, attr.qkey);
    let into = p.b.buffer(256);
    a.send(&to, b"in reset");
    qp.to_init(&attr).unwrap();
    qp.post_recv(1, &[into.sge(0, 256)]).unwrap();
    a.send(&to, b"in init");
    assert!(qp.recv_cq().wait(Duration::from_millis(30)).is_none());
    qp.modify(QP_ATTR_STATE, QpAttr { state: QP_STATE_RTR, ..QpAttr::ZERO }).unwrap();
    a.send(&to, b"in rtr");
    assert_status(&qp.recv_completion(), WC_SUCCESS);
    assert_eq!(into.read(GRH_BYTES, 6), b"in rtr");
}
