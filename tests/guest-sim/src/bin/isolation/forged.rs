//! Packets that somebody forges on the underlay. They carry a right ICRC.

use std::net::Ipv4Addr;
use std::time::Duration;

use guest_sim::suite::{Conn, Pair, Placement, World, assert_same, assert_status, pattern};
use guest_sim::verbs::{ConnectAttr, Mr, wr};
use guest_sim::{Cluster, Forger};
use masq_types::{Psn, Rkey, WireQpn};
use masq_wire::{AethRepr, Credits, Extension, Msn, NakCode, Opcode, PacketRepr, RethRepr, Syndrome};
use vrdma_abi::control::QP_STATE_RTS;
use vrdma_abi::ring::*;

use crate::Test;

pub const TESTS: &[Test] = &[
    ("packets_from_an_address_that_is_not_the_peers", wrong_address),
    ("packets_of_the_peer_with_wrong_numbers", wrong_numbers),
    ("packets_that_are_no_packets", garbage),
    ("packets_from_the_network_to_a_local_connection", into_local),
];

/// An address on the underlay that no host's masqd has.
const STRANGER: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 66);

fn first_psn() -> Psn {
    Psn::new(ConnectAttr::default().rq_psn)
}

fn write_packet(qpn: u32, psn: Psn, target: &Mr) -> PacketRepr {
    let reth = RethRepr { va: target.addr, rkey: Rkey(target.rkey), dma_len: 8 };
    PacketRepr::new(Opcode::RC_WRITE_ONLY, WireQpn::from_wire(qpn), psn, Extension::Reth(reth))
}

fn ack_packet(qpn: u32, psn: Psn, syndrome: Syndrome) -> PacketRepr {
    let aeth = AethRepr { syndrome, msn: Msn::new(1) };
    PacketRepr::new(Opcode::RC_ACK, WireQpn::from_wire(qpn), psn, Extension::Aeth(aeth))
}

/// The connection is as if nothing had happened: data goes both ways, and the target holds what it held.
fn unharmed(p: &Pair, c: &Conn, target: &Mr) {
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(target.read(0, 64), [0x55; 64], "a forged packet has written");
    assert_eq!((c.a.state(), c.b.state()), (QP_STATE_RTS, QP_STATE_RTS));
    let (here, there) = (p.a.buffer(1 << 16), p.b.buffer(1 << 16));
    let data = pattern(6, 30_000);
    here.write(0, &data);
    for (from, to, at) in [(&here, &there, &c.a), (&there, &here, &c.b)] {
        at.post_send(&wr::rdma(SEND_OP_RDMA_WRITE, 1, to, 0), &[from.sge(0, 30_000)]).unwrap();
        assert_status(&at.send_completion(), WC_SUCCESS);
        assert_same(&to.read(0, 30_000), &data, "written");
    }
    assert!(c.a.recv_cq().poll().is_none() && c.b.recv_cq().poll().is_none());
}

fn target(p: &Pair) -> Mr {
    let target = p.b.buffer(64);
    target.fill(0, 64, 0x55);
    target
}

fn wrong_address(world: &mut World) {
    world.cluster.add_address(1, STRANGER).unwrap();
    let p = Pair::open(world, Placement::Remote);
    let c = p.connect();
    let target = target(&p);
    let forger = Forger::new(&world.cluster, 1, STRANGER).unwrap();
    let before = world.cluster.counter(2, "rx_wrong_peer");
    // All that a connection's own packets have, but the address.
    for psn in [first_psn(), first_psn().plus(1)] {
        forger.send(Cluster::underlay(2), write_packet(c.b.qpn, psn, &target), &[0xee; 8]).unwrap();
    }
    let nak = Syndrome::Nak(NakCode::RemoteOperational);
    forger.send(Cluster::underlay(2), ack_packet(c.b.qpn, first_psn(), nak), &[]).unwrap();
    unharmed(&p, &c, &target);
    assert_eq!(world.cluster.counter(2, "rx_wrong_peer") - before, 3, "each of them was counted");
    // From the peer's address the same packet does write: the forgery is a good one.
    let c = p.connect();
    let forger = Forger::new(&world.cluster, 1, Cluster::underlay(1)).unwrap();
    forger.send(Cluster::underlay(2), write_packet(c.b.qpn, first_psn(), &target), &[0xee; 8]).unwrap();
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(target.read(0, 8), [0xee; 8], "a packet of the peer's is accepted");
    p.close().unwrap();
}

fn wrong_numbers(world: &mut World) {
    let p = Pair::open(world, Placement::Remote);
    let c = p.connect();
    let target = target(&p);
    let forger = Forger::new(&world.cluster, 1, Cluster::underlay(1)).unwrap();
    let to = Cluster::underlay(2);
    // Queue pairs that do not exist, or are connected to somebody else.
    let silent = p.b.qp(&Default::default(), 64);
    let before = world.cluster.counter(2, "rx_no_qp");
    for qpn in [1, 0xff_ffff, c.b.qpn ^ 0x80_0000, silent.qpn] {
        forger.send(to, write_packet(qpn, first_psn(), &target), &[0xee; 8]).unwrap();
    }
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(world.cluster.counter(2, "rx_no_qp") - before, 4, "each of them was counted");
    // Number 0 is that of probes between the RNICs, and this is none.
    let before = world.cluster.counter(2, "rx_malformed");
    forger.send(to, write_packet(0, first_psn(), &target), &[0xee; 8]).unwrap();
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(world.cluster.counter(2, "rx_malformed") - before, 1, "it was counted");
    // Far from the expected PSN, ahead and behind. What is not too far ahead is kept until its turn comes, as packets of the peer behind a lost one.
    let kept = masq_wire::Arrived::MAX_BITS;
    for psn in
        [first_psn().plus(kept + 1), first_psn().plus(5000), first_psn().plus(1 << 22), first_psn().minus(1)]
    {
        forger.send(to, write_packet(c.b.qpn, psn, &target), &[0xee; 8]).unwrap();
    }
    // Answers to what was never asked.
    for psn in [first_psn(), first_psn().minus(1), first_psn().plus(1 << 20)] {
        for syndrome in [Syndrome::Ack(Credits::UNLIMITED), Syndrome::Nak(NakCode::RemoteAccess)] {
            forger.send(to, ack_packet(c.b.qpn, psn, syndrome), &[]).unwrap();
        }
    }
    unharmed(&p, &c, &target);
    p.close().unwrap();
}

fn garbage(world: &mut World) {
    let p = Pair::open(world, Placement::Remote);
    let c = p.connect();
    let target = target(&p);
    let forger = Forger::new(&world.cluster, 1, Cluster::underlay(1)).unwrap();
    let to = Cluster::underlay(2);
    for len in (0..64).chain([100, 1024, 4096]) {
        forger.send_bytes(to, &pattern(len as u64, len)).unwrap();
        forger.send_bytes(to, &vec![0; len]).unwrap();
        forger.send_bytes(to, &vec![0xff; len]).unwrap();
    }
    // Right in all but the ICRC.
    let mut packet = vec![0; masq_wire::MAX_HEADER_BYTES];
    let headers = write_packet(c.b.qpn, first_psn(), &target).emit_headers(&mut packet).unwrap();
    packet.truncate(headers);
    packet.extend_from_slice(&[0xee; 8]);
    packet.extend_from_slice(&[1, 2, 3, 4]);
    let before = world.cluster.counter(2, "rx_icrc_errors");
    forger.send_bytes(to, &packet).unwrap();
    unharmed(&p, &c, &target);
    assert_eq!(world.cluster.counter(2, "rx_icrc_errors") - before, 1, "it was counted");
    p.close().unwrap();
}

/// Two guests on one host are connected without packets; a packet from outside does not come in between.
fn into_local(world: &mut World) {
    let p = Pair::open(world, Placement::Local);
    let c = p.connect();
    let target = target(&p);
    let to = Cluster::underlay(1);
    for (host, source) in [(2, Cluster::underlay(2)), (1, Cluster::underlay(1))] {
        let forger = Forger::new(&world.cluster, host, source).unwrap();
        forger.send(to, write_packet(c.b.qpn, first_psn(), &target), &[0xee; 8]).unwrap();
    }
    unharmed(&p, &c, &target);
    p.close().unwrap();
}
