//! Datagrams and management datagrams between tenants, and from whoever sends packets of his own.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use guest_sim::suite::{DatagramEnd, Side, World, pattern};
use guest_sim::verbs::{GSI_QKEY, To};
use guest_sim::{Cluster, Forger};
use masq_types::{Psn, WireQpn};
use masq_wire::{DethRepr, Extension, Opcode, PacketRepr};

use crate::Test;

pub const TESTS: &[Test] = &[
    ("datagrams_of_two_tenants_on_the_same_addresses", same_addresses),
    ("management_datagrams_of_two_tenants_on_the_same_addresses", same_addresses_gsi),
    ("datagrams_to_queue_pairs_of_others", foreign_numbers),
    ("datagrams_that_no_rule_allows", denied),
    ("datagrams_from_an_address_that_is_not_the_peers", wrong_address),
    ("datagrams_in_the_name_of_another_tenant", wrong_tenant),
];

const QUIET: Duration = Duration::from_millis(50);
/// Bytes of a MAD.
const MAD: usize = 256;

#[track_caller]
fn nothing_arrives(end: &DatagramEnd) {
    let got = end.receive_within(QUIET);
    assert!(got.is_none(), "{got:?}");
}

/// A datagram goes there, one comes back.
#[track_caller]
fn works(a: &DatagramEnd, b: &DatagramEnd) {
    for (from, to) in [(a, b), (b, a)] {
        from.send(&to.name(), &[1; MAD]);
        to.receive().assert_is(&[1; MAD], (from.side.address, from.qp.qpn), to.side.address);
    }
}

/// The same exchange in both tenants at the same time; every byte that arrives is of the own tenant.
fn exchange(
    world: &World,
    pairs: &[(&'static str, &'static str)],
    open: fn(&World, &str) -> Side,
    gsi: bool,
) {
    const ROUNDS: u64 = 100;
    let run = |from: &str, to: &str, seed: u64| {
        let (a, b) = (open(world, from), open(world, to));
        let end = |side| if gsi { DatagramEnd::gsi(side, 8) } else { DatagramEnd::open(side, 8) };
        let (at_a, at_b) = (end(&a), end(&b));
        for round in 0..ROUNDS {
            let data = pattern(seed << 32 | round, MAD);
            for (from, to) in [(&at_a, &at_b), (&at_b, &at_a)] {
                from.send(&to.name(), &data);
                to.receive().assert_is(&data, (from.side.address, from.qp.qpn), to.side.address);
                to.post_recv(round);
            }
        }
        a.ctx.destroy().unwrap();
        b.ctx.destroy().unwrap();
    };
    std::thread::scope(|s| {
        for (k, (from, to)) in pairs.iter().enumerate() {
            s.spawn(move || run(from, to, k as u64 + 1));
        }
    });
}

fn same_addresses(world: &mut World) {
    let pairs = [("blue-1", "blue-2"), ("red-1", "red-2"), ("blue-4", "blue-3"), ("red-4", "red-3")];
    exchange(world, &pairs, |world, vnic| Side::open(world, vnic), false);
}

/// QP1 of one is not QP1 of the other, although both guests call it so, at the same address.
fn same_addresses_gsi(world: &mut World) {
    let pairs = [("blue-1", "blue-2"), ("red-1", "red-2"), ("blue-4", "blue-3"), ("red-4", "red-3")];
    exchange(world, &pairs, |world, vnic| Side::kernel(world, vnic), true);
}

/// At an address of one's own network only the queue pairs of who has it can be reached.
fn foreign_numbers(world: &mut World) {
    for (to, other) in [("blue-2", "blue-3"), ("blue-3", "blue-2")] {
        // Those on the peer's host are at the same underlay address.
        let names = ["blue-1", to, other, "blue-4", "blue-5", "red-2", "red-3", "red-4", "red-5"];
        let sides = names.map(|vnic| Side::open(world, vnic));
        let ends = sides.each_ref().map(|side| DatagramEnd::open(side, 8));
        let [me, peer, others @ ..] = &ends;
        works(me, peer);
        for foreign in others {
            me.send(&To { dgid: peer.side.address.into(), ..foreign.name() }, b"to another guest's");
        }
        // Nor by addresses that are the hosts', not a tenant's.
        for host in [1, 2] {
            let dgid = IpAddr::from(Cluster::underlay(host)).into();
            ends.iter().for_each(|end| me.send(&To { dgid, ..end.name() }, b"by the underlay"));
        }
        ends.iter().for_each(nothing_arrives);
        works(me, peer);
        drop(ends);
        for side in sides {
            side.ctx.destroy().unwrap();
        }
    }
}

/// Neither datagrams nor MADs, in neither direction; senders do not learn of it.
fn denied(world: &mut World) {
    for to in ["green-2", "green-3"] {
        let sides = ["green-1", to].map(|vnic| Side::open(world, vnic));
        let kernels = ["green-1", to].map(|vnic| Side::kernel(world, vnic));
        let ends = sides.each_ref().map(|side| DatagramEnd::open(side, 4));
        let gsis = kernels.each_ref().map(|side| DatagramEnd::gsi(side, 4));
        let host = world.host("green-1");
        let before = world.cluster.counter(host, "ud_tx_denied");
        for [a, b] in [&ends, &gsis] {
            for (from, to) in [(a, b), (b, a)] {
                for _ in 0..3 {
                    from.send(&to.name(), &[1; MAD]);
                }
            }
        }
        ends.iter().chain(&gsis).for_each(nothing_arrives);
        assert!(world.cluster.counter(host, "ud_tx_denied") >= before + 6, "each of them was counted");
        // Nor does the receiver's host take what a sender's has let through.
        if host != world.host(to) {
            let neighbour = Forger::new(&world.cluster, host, Cluster::underlay(host)).unwrap();
            let before = world.cluster.counter(world.host(to), "ud_rx_denied");
            let forged = packet(wire(&ends[1]), wire(&ends[0]), ends[1].qkey);
            neighbour.send(Cluster::underlay(world.host(to)), forged, &[0xee; MAD]).unwrap();
            nothing_arrives(&ends[1]);
            assert_eq!(world.cluster.counter(world.host(to), "ud_rx_denied") - before, 1, "it was counted");
        }
        // To oneself is no matter of rules.
        for end in ends.iter().chain(&gsis) {
            end.send(&end.name(), &[2; MAD]);
            end.receive().assert_is(&[2; MAD], (end.side.address, end.qp.qpn), end.side.address);
        }
        drop((ends, gsis));
        for side in sides.into_iter().chain(kernels) {
            side.ctx.destroy().unwrap();
        }
    }
}

/// An address on the underlay that no host's masqd has.
const STRANGER: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 67);

fn packet(dest: WireQpn, src_qp: WireQpn, qkey: u32) -> PacketRepr {
    let deth = Extension::Deth(DethRepr { qkey, src_qp, check: 0 });
    PacketRepr::new(Opcode::UD_SEND_ONLY, dest, Psn::new(7), deth)
}

fn wire(end: &DatagramEnd) -> WireQpn {
    WireQpn::from_wire(end.qp.qpn)
}

/// All is right but where it comes from. From the peer's address the same packet arrives: the forgery is a good one.
fn wrong_address(world: &mut World) {
    world.cluster.add_address(1, STRANGER).unwrap();
    let (a, b) = (Side::open(world, "blue-1"), Side::open(world, "blue-3"));
    let (at_a, at_b) = (DatagramEnd::open(&a, 4), DatagramEnd::open(&b, 8));
    works(&at_a, &at_b);
    let to = Cluster::underlay(2);
    let stranger = Forger::new(&world.cluster, 1, STRANGER).unwrap();
    let before = world.cluster.counter(2, "ud_rx_unknown_peer");
    for _ in 0..5 {
        stranger.send(to, packet(wire(&at_b), wire(&at_a), at_b.qkey), &[0xee; 64]).unwrap();
    }
    nothing_arrives(&at_b);
    // They have waited for an answer for a tenth of a second at most.
    std::thread::sleep(Duration::from_millis(150));
    nothing_arrives(&at_b);
    assert_eq!(world.cluster.counter(2, "ud_rx_unknown_peer") - before, 5, "each of them was counted");
    let neighbour = Forger::new(&world.cluster, 1, Cluster::underlay(1)).unwrap();
    neighbour.send(to, packet(wire(&at_b), wire(&at_a), at_b.qkey), &[0xee; 64]).unwrap();
    at_b.receive().assert_is(&[0xee; 64], (a.address, at_a.qp.qpn), b.address);
    neighbour.send(to, packet(wire(&at_b), wire(&at_a), at_b.qkey ^ 1), &[0xee; 64]).unwrap();
    nothing_arrives(&at_b);
    drop((at_a, at_b));
    for side in [a, b] {
        side.ctx.destroy().unwrap();
    }
}

/// A packet from the right host in the name of a queue pair that is no peer's of the receiver.
fn wrong_tenant(world: &mut World) {
    let sides = ["blue-3", "red-1", "red-3"].map(|vnic| Side::open(world, vnic));
    let ends = sides.each_ref().map(|side| DatagramEnd::open(side, 8));
    let [blue, red, red_there] = &ends;
    works(red, red_there);
    let kernel = Side::kernel(world, "blue-3");
    let gsi = DatagramEnd::gsi(&kernel, 4);
    let forger = Forger::new(&world.cluster, 1, Cluster::underlay(1)).unwrap();
    let to = Cluster::underlay(2);
    let nobody = [0, 1, 2, 0xff_ffff, red.qp.qpn, red_there.qp.qpn, blue.qp.qpn];
    for src in nobody.map(WireQpn::from_wire) {
        for _ in 0..3 {
            forger.send(to, packet(wire(blue), src, blue.qkey), &[0xee; MAD]).unwrap();
            // The number that its guest sees, which is not the one on the wire.
            forger.send(to, packet(WireQpn::from_wire(1), src, GSI_QKEY), &[0xee; MAD]).unwrap();
        }
    }
    nothing_arrives(blue);
    std::thread::sleep(Duration::from_millis(150));
    nothing_arrives(blue);
    nothing_arrives(&gsi);
    nothing_arrives(red_there);
    works(red, red_there);
    drop((ends, gsi));
    for side in sides.into_iter().chain([kernel]) {
        side.ctx.destroy().unwrap();
    }
}
