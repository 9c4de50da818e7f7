//! Datagrams.

use std::net::IpAddr;
use std::thread;
use std::time::{Duration, Instant};

use guest_sim::suite::{DatagramEnd, Pair, Side, assert_same, assert_status, pattern};
use guest_sim::verbs::{ACCESS_ALL, ConnectAttr, GRH_BYTES, Grh, QpCaps, To, wr};
use masq_types::{Gid, MacAddr};
use vrdma_abi::control::*;
use vrdma_abi::ring::*;
use vrdma_rings::{Arm, SendRequest};

use crate::Test;

pub const TESTS: &[Test] = &[
    ("a_datagram_and_its_answer", ping_pong),
    ("the_first_datagram_to_a_peer_arrives", first),
    ("datagrams_to_oneself", to_oneself),
    ("a_datagram_with_immediate", immediate),
    ("inline_datagrams", inline),
    ("datagrams_of_many_sizes", sizes),
    ("datagrams_by_every_gid", every_gid),
    ("a_datagram_into_several_pieces", scattered),
    ("datagrams_into_a_shared_queue", shared_queue),
    ("a_datagram_without_receive_is_lost", no_receive),
    ("the_queue_pairs_own_key_is_sent", qkey_of_qp),
    ("solicited_datagrams_bring_events", solicited),
    ("a_queue_pair_hears_from_many", many_to_one),
];

pub const ON_A_BAD_LINK: &[Test] = &[("datagrams_are_whole_or_lost", lossy)];

fn ping_pong(p: &Pair) {
    let (a, b) = (DatagramEnd::open(&p.a, 4), DatagramEnd::open(&p.b, 4));
    for round in 0..200u64 {
        let data = pattern(round + 1, 1 + round as usize * 5);
        a.send(&b.name(), &data);
        let got = b.receive();
        assert_eq!(got.cqe.wr_id, round);
        got.assert_is(&data, (p.a.address, a.qp.qpn), p.b.address);
        b.post_recv(round + 4);
        // The answer goes to whom the datagram names.
        let back = To::new(got.grh.source, got.cqe.src_qpn, a.qkey);
        b.send(&back, &data);
        a.receive().assert_is(&data, (p.b.address, b.qp.qpn), p.a.address);
        a.post_recv(round + 4);
    }
}

/// Whom a guest has never talked to must be asked for, while its datagrams wait; none of a burst is lost.
fn first(p: &Pair) {
    let vnic = p.placement.spare_vnic();
    p.world.stop_guest(vnic);
    let fresh = Side::open(p.world, vnic);
    let (a, b) = (DatagramEnd::open(&fresh, 20), DatagramEnd::open(&p.b, 20));
    for k in 0..20u8 {
        a.send(&b.name(), &[k; 64]);
    }
    for k in 0..20u8 {
        b.receive().assert_is(&[k; 64], (fresh.address, a.qp.qpn), p.b.address);
    }
    b.send(&a.name(), b"back");
    a.receive().assert_is(b"back", (p.b.address, b.qp.qpn), fresh.address);
    fresh.ctx.destroy().unwrap();
    drop(a);
    drop(fresh);
    p.world.stop_guest(vnic);
}

fn to_oneself(p: &Pair) {
    let (one, two) = (DatagramEnd::open(&p.a, 4), DatagramEnd::open(&p.a, 4));
    one.send(&two.name(), b"to another queue pair");
    two.receive().assert_is(b"to another queue pair", (p.a.address, one.qp.qpn), p.a.address);
    one.send(&one.name(), b"to itself");
    one.receive().assert_is(b"to itself", (p.a.address, one.qp.qpn), p.a.address);
}

fn immediate(p: &Pair) {
    let (a, b) = (DatagramEnd::open(&p.a, 1), DatagramEnd::open(&p.b, 2));
    let imm = u32::from_ne_bytes([0xde, 0xad, 0x01, 0x02]);
    a.send_as(SendRequest { imm_or_inv: imm, ..wr::datagram(SEND_OP_SEND_IMM, 8, &b.name()) }, b"data");
    let got = b.receive();
    got.assert_is(b"data", (p.a.address, a.qp.qpn), p.b.address);
    assert_eq!((got.cqe.flags & CQE_WITH_IMM, got.cqe.imm_or_inv), (CQE_WITH_IMM, imm));
    a.send(&b.name(), b"data");
    assert_eq!(b.receive().cqe.flags & CQE_WITH_IMM, 0);
}

fn inline(p: &Pair) {
    let (a, b) = (DatagramEnd::open(&p.a, 1), DatagramEnd::open(&p.b, 80));
    for len in 0..=64 {
        let data = pattern(len as u64 + 70, len);
        a.qp.post_inline(&wr::datagram(SEND_OP_SEND, 1, &b.name()), &data).unwrap();
        assert_status(&a.qp.send_completion(), WC_SUCCESS);
        b.receive().assert_is(&data, (p.a.address, a.qp.qpn), p.b.address);
    }
}

/// Up to the MTU of the port.
fn sizes(p: &Pair) {
    let mtu = 128usize << p.a.guest.config.active_mtu;
    let (a, b) = (DatagramEnd::open(&p.a, 1), DatagramEnd::open(&p.b, 32));
    for len in [0, 1, 2, 3, 4, 5, 63, 64, 65, 255, 256, 1000, 1023, 1024, 1025, 2047, 2048, mtu - 1, mtu] {
        let data = pattern(len as u64 + 700, len);
        a.send(&b.name(), &data);
        let got = b.receive();
        assert_eq!(got.cqe.byte_len as usize, GRH_BYTES + len);
        got.assert_is(&data, (p.a.address, a.qp.qpn), p.b.address);
    }
}

/// The link-local address of a guest's MAC, which each has.
pub fn link_local(side: &Side) -> Gid {
    Gid::from(MacAddr(side.guest.config.mac).link_local())
}

/// By IPv4 and by IPv6 addresses, each way; the receiver sees the addresses that the sender chose.
fn every_gid(p: &Pair) {
    let sixes = [&p.a, &p.b].map(link_local);
    for (side, gid) in [&p.a, &p.b].into_iter().zip(sixes) {
        side.guest.add_gid(1, gid).expect("ADD_GID");
    }
    let (a, b) = (DatagramEnd::open(&p.a, 8), DatagramEnd::open(&p.b, 8));
    let four = Gid::from(p.b.address);
    for (dgid, sgid_index, source) in [(four, 0, p.a.address), (sixes[1], 1, sixes[0].ip())] {
        a.send(&b.name_by(dgid, sgid_index), b"by this address");
        let got = b.receive();
        got.assert_is(b"by this address", (source, a.qp.qpn), dgid.ip());
        let ipv4 = matches!(dgid.ip(), IpAddr::V4(_));
        assert_eq!(got.cqe.flags & CQE_IPV4 != 0, ipv4);
    }
    for side in [&p.a, &p.b] {
        side.guest.del_gid(1).expect("DEL_GID");
    }
}

/// The area of the GRH is no unit: pieces may end within it.
fn scattered(p: &Pair) {
    let (a, b) = (DatagramEnd::open(&p.a, 1), DatagramEnd::open(&p.b, 0));
    let into = p.b.pd.buffer_with(4096, ACCESS_ALL).unwrap();
    let data = pattern(77, 300);
    let pieces = [(0, 7), (100, 50), (1000, 3), (2000, 400)];
    b.qp.post_recv(5, &pieces.map(|(at, len)| into.sge(at, len))).unwrap();
    a.send(&b.name(), &data);
    let cqe = b.qp.recv_completion();
    assert_status(&cqe, WC_SUCCESS);
    assert_eq!((cqe.wr_id, cqe.byte_len), (5, 340));
    let bytes: Vec<u8> = pieces.iter().flat_map(|&(at, len)| into.read(at, len)).take(340).collect();
    let grh = Grh::read(&bytes[..GRH_BYTES], &cqe);
    assert_eq!(grh, Grh { source: p.a.address, destination: p.b.address });
    assert_same(&bytes[GRH_BYTES..], &data, "received");
    assert_eq!(into.read(2000 + 280, 120), [0; 120], "nothing behind it");
    // A gather as well.
    b.qp.post_recv(6, &[into.sge(0, 4096)]).unwrap();
    a.here.write(0, &data);
    let sges = [a.here.sge(0, 1), a.here.sge(1, 0), a.here.sge(1, 150), a.here.sge(151, 149)];
    a.qp.post_send(&wr::datagram(SEND_OP_SEND, 1, &b.name()), &sges).unwrap();
    assert_status(&a.qp.send_completion(), WC_SUCCESS);
    assert_status(&b.qp.recv_completion(), WC_SUCCESS);
    assert_same(&into.read(GRH_BYTES, 300), &data, "gathered");
}

fn shared_queue(p: &Pair) {
    let srq = p.b.pd.create_srq(16, 1).unwrap();
    let caps = QpCaps { srq: Some(srq.clone()), ..QpCaps::of(QP_TYPE_UD) };
    let ends = [DatagramEnd::open_with(&p.b, &caps, 0), DatagramEnd::open_with(&p.b, &caps, 0)];
    let a = DatagramEnd::open(&p.a, 1);
    let into = p.b.buffer(8192);
    for round in 0..40u64 {
        srq.post_recv(round, &[into.sge(0, 8192)]).unwrap();
        let data = pattern(round, 200);
        let to = &ends[round as usize % 2];
        a.send(&to.name(), &data);
        let cqe = to.qp.recv_completion();
        assert_status(&cqe, WC_SUCCESS);
        assert_eq!((cqe.wr_id, cqe.flags & CQE_SRQ), (round, CQE_SRQ));
        assert_same(&into.read(GRH_BYTES, 200), &data, "received");
    }
}

fn no_receive(p: &Pair) {
    let (a, b) = (DatagramEnd::open(&p.a, 1), DatagramEnd::open(&p.b, 1));
    let host = p.world.host(p.placement.vnics().1);
    let lost = || p.world.cluster.counter(host, "ud_rx_no_receive");
    let before = lost();
    for k in 0..5u8 {
        a.send(&b.name(), &[k]);
    }
    b.receive().assert_is(&[0], (p.a.address, a.qp.qpn), p.b.address);
    // One that is still on its way would find the next receive.
    let deadline = Instant::now() + Duration::from_secs(5);
    while lost() < before + 4 {
        assert!(Instant::now() < deadline, "four are lost");
        thread::sleep(Duration::from_millis(1));
    }
    b.post_recv(1);
    assert!(b.receive_within(Duration::from_millis(50)).is_none(), "what was lost is lost");
    a.send(&b.name(), &[9]);
    b.receive().assert_is(&[9], (p.a.address, a.qp.qpn), p.b.address);
}

/// With its highest bit, a work request's Q_Key stands for the queue pair's own.
fn qkey_of_qp(p: &Pair) {
    let (a, b) = (DatagramEnd::open(&p.a, 1), DatagramEnd::open(&p.b, 4));
    assert_eq!(a.qkey, b.qkey);
    a.send(&To { qkey: QKEY_OF_QP | 0x1234, ..b.name() }, b"own key");
    b.receive().assert_is(b"own key", (p.a.address, a.qp.qpn), p.b.address);
    let other = ConnectAttr { qkey: 0x2222, ..ConnectAttr::default() };
    let qp = p.b.qp(&QpCaps::of(QP_TYPE_UD), 64);
    qp.activate(&other).unwrap();
    let into = p.b.buffer(256);
    qp.post_recv(1, &[into.sge(0, 256)]).unwrap();
    a.send(&To::new(p.b.address, qp.qpn, QKEY_OF_QP), b"not this one's");
    a.send(&To::new(p.b.address, qp.qpn, 0x2222), b"this one's");
    assert_status(&qp.recv_completion(), WC_SUCCESS);
    assert_eq!(into.read(GRH_BYTES, 10), b"this one's");
}

fn solicited(p: &Pair) {
    let (a, b) = (DatagramEnd::open(&p.a, 1), DatagramEnd::open(&p.b, 4));
    b.qp.recv_cq().arm(Arm::Solicited);
    a.send(&b.name(), b"quiet");
    b.receive();
    assert!(p.b.guest.next_comp_event(0, Duration::from_millis(20)).is_none());
    let request = wr::datagram(SEND_OP_SEND, 1, &b.name());
    a.send_as(SendRequest { flags: request.flags | SEND_SOLICITED, ..request }, b"loud");
    let event = p.b.guest.next_comp_event(0, Duration::from_secs(5)).expect("an event");
    assert_eq!(event.cq, b.qp.recv_cq().handle());
    assert_ne!(b.receive().cqe.flags & CQE_SOLICITED, 0);
}

/// From guests on both hosts and from itself.
fn many_to_one(p: &Pair) {
    let b = DatagramEnd::open(&p.b, 200);
    let names = ["blue-1", "blue-2", "blue-3", "blue-4", "blue-5"];
    let sides = names.map(|vnic| Side::open(p.world, vnic));
    let senders: Vec<DatagramEnd> =
        sides.iter().flat_map(|side| [DatagramEnd::open(side, 1), DatagramEnd::open(side, 1)]).collect();
    for round in 0..10u64 {
        for (n, sender) in senders.iter().enumerate() {
            sender.send(&b.name(), &[round.to_le_bytes(), (n as u64).to_le_bytes()].concat());
        }
    }
    let mut next = vec![0u64; senders.len()];
    for _ in 0..10 * senders.len() {
        let got = b.receive();
        let n = u64::from_le_bytes(got.data[8..].try_into().expect("8 bytes")) as usize;
        let data = [next[n].to_le_bytes(), (n as u64).to_le_bytes()].concat();
        got.assert_is(&data, (senders[n].side.address, senders[n].qp.qpn), p.b.address);
        next[n] += 1;
    }
    drop(senders);
    for side in &sides {
        side.ctx.destroy().unwrap();
    }
}

fn lossy(p: &Pair) {
    const COUNT: u64 = 1000;
    let (a, b) = (DatagramEnd::open(&p.a, 1), DatagramEnd::open(&p.b, 256));
    let (mut received, mut seen) = (0, std::collections::HashSet::new());
    let mut take = |wait: Duration| {
        while let Some(got) = b.receive_within(wait) {
            let number = u64::from_le_bytes(got.data[..8].try_into().expect("8 bytes"));
            got.assert_is(&message(number), (p.a.address, a.qp.qpn), p.b.address);
            b.post_recv(256 + received);
            received += 1;
            seen.insert(number);
        }
    };
    for number in 0..COUNT {
        a.send(&b.name(), &message(number));
        take(Duration::ZERO);
    }
    take(Duration::from_millis(200));
    let arrived = seen.len() as u64;
    assert!(arrived > COUNT * 8 / 10 && arrived < COUNT, "{arrived} of {COUNT} have arrived");
}

fn message(number: u64) -> Vec<u8> {
    let mut data = pattern(number + 1, 100 + number as usize);
    data[..8].copy_from_slice(&number.to_le_bytes());
    data
}
