//! Datagrams between guests of one RNIC, of two, and from strangers: what is expected holds whichever way they go.

mod common;
mod datagrams;

use common::two::{WAYS, Way};
use common::*;
use datagrams::*;
use masq_driver::*;
use masq_types::{Mtu, WireQpn};
use vrdma_abi::ring::*;

#[test]
fn a_datagram_crosses_with_its_grh() {
    for way in WAYS {
        for family in [V6, V4] {
            let mut t = Ends::known(way);
            t.a.guest.write(t.a.mr.gpa, &pattern(1001, 1));
            // GRH and payload are cut where it hurts.
            let sges = [sge(&t.b.mr, 0, 30), sge(&t.b.mr, 4096, 500), sge(&t.b.mr, 8192, 2000)];
            t.b.guest.post_recv(&mut t.b.qp, 7, &sges);
            let mut send = t.to_b(family, 42);
            send.opcode = SEND_OP_SEND_IMM;
            send.flags |= SEND_SOLICITED;
            send.imm_or_inv = 0x1234;
            t.a.guest.post(&mut t.a.qp, &send, &[sge(&t.a.mr, 0, 1), sge(&t.a.mr, 1, 1000)]);
            let s = wait(&mut t.net, &mut t.a.cq);
            assert_eq!((s.wr_id, s.status, s.opcode, s.consumer), (42, WC_SUCCESS, WC_SEND, 1));
            let r = wait(&mut t.net, &mut t.b.cq);
            assert_eq!((r.wr_id, r.status, r.opcode, r.byte_len), (7, WC_SUCCESS, WC_RECV, 1041), "{way:?}");
            assert_eq!((r.imm_or_inv, r.src_qpn, r.sl), (0x1234, t.a.qp.wire.get(), 0));
            let ipv4 = if family == V4 { CQE_IPV4 } else { 0 };
            assert_eq!(r.flags, CQE_RECV | CQE_WITH_IMM | CQE_SOLICITED | CQE_GRH | ipv4);
            let mut got = t.b.guest.read(t.b.mr.gpa, 30);
            got.extend(t.b.guest.read(t.b.mr.gpa + 4096, 500));
            got.extend(t.b.guest.read(t.b.mr.gpa + 8192, 511));
            assert_eq!(got[40..], pattern(1001, 1));
            let (source, destination) = (t.a.gids[usize::from(family)].0, t.b.gids[usize::from(family)].0);
            if family == V4 {
                assert_eq!(got[..20], [0; 20]);
                // 20 + 8 + 12 + 8 + 4 + 1001 + 3 + 4 bytes.
                assert_eq!(got[20..24], [0x45, 0, 4, 0x24]);
                assert_eq!((&got[32..36], &got[36..40]), (&source[12..], &destination[12..]));
            } else {
                assert_eq!(got[..8], [0x60, 0, 0, 0, 4, 0x10, 17, 64]);
                assert_eq!((&got[8..24], &got[24..40]), (&source[..], &destination[..]));
            }
            assert_eq!(t.losses(), []);
            assert_eq!(t.events(), []);
        }
    }
}

#[test]
fn inline_and_empty_ones_cross_too() {
    for way in WAYS {
        let mut t = Ends::known(way);
        for wr_id in 0..2 {
            t.b.guest.post_recv(&mut t.b.qp, wr_id, &[sge(&t.b.mr, 0, 1000)]);
        }
        let send = t.to_b(V4, 1);
        t.a.guest.post_inline(&mut t.a.qp, &send, b"inline");
        let r = wait(&mut t.net, &mut t.b.cq);
        assert_eq!((r.byte_len, t.b.guest.read(t.b.mr.gpa + 40, 6)), (46, b"inline".to_vec()));
        let silent = vrdma_rings::SendRequest { flags: 0, ..t.to_b(V4, 2) };
        t.a.guest.post(&mut t.a.qp, &silent, &[]);
        assert_eq!(wait(&mut t.net, &mut t.b.cq).byte_len, 40);
        assert_eq!(wait(&mut t.net, &mut t.a.cq).wr_id, 1);
        assert!(t.a.cq.ring.poll().is_none(), "the second is not signalled");
    }
}

#[test]
fn a_queue_pair_reaches_itself_and_others_of_its_vnic() {
    let mut t = Ends::known(Way::Local);
    let own = t.a.peer();
    t.set_peer(A, own);
    let mut other = t.a.more(&mut t.net, QpType::Ud);
    t.a.guest.write(t.a.mr.gpa, &pattern(100, 3));
    for (to, wire) in [(0, t.a.qp.wire), (1, other.wire)] {
        let receiver = if to == 0 { &mut t.a.qp } else { &mut other };
        t.a.guest.post_recv(receiver, 5, &[sge(&t.a.mr, 4096, 140)]);
        let send = datagram(V4, t.a.gids[1], wire.get(), 6);
        t.a.guest.post(&mut t.a.qp, &send, &[sge(&t.a.mr, 0, 100)]);
        let seen = [wait(&mut t.net, &mut t.a.cq), wait(&mut t.net, &mut t.a.cq)];
        assert_eq!(seen.map(|c| (c.wr_id, c.status)), [(5, WC_SUCCESS), (6, WC_SUCCESS)]);
        assert_eq!(t.a.guest.read(t.a.mr.gpa + 4136, 100), pattern(100, 3));
    }
}

#[test]
fn management_datagrams_have_a_verdict_and_a_number_of_their_own() {
    for way in WAYS {
        let mut t = Ends::known(way);
        let mut a_gsi = t.a.gsi(&mut t.net);
        let mut b_gsi = t.b.gsi(&mut t.net);
        let only_cm = Verdict { cm: true, ..Verdict::default() };
        let (a, b) = (Peer { verdict: only_cm, ..t.a.peer() }, Peer { verdict: only_cm, ..t.b.peer() });
        t.set_peer(A, b);
        t.set_peer(B, a);
        t.b.guest.post_recv(&mut b_gsi, 1, &[sge(&t.b.mr, 0, 296)]);
        let mut send = datagram(V4, t.b.gids[1], 1, 9);
        segment(&mut send).qkey = QKEY_OF_QP;
        t.a.guest.post(&mut a_gsi, &send, &[sge(&t.a.mr, 0, 256)]);
        let r = wait(&mut t.net, &mut t.b.cq);
        assert_eq!((r.wr_id, r.status, r.byte_len, r.src_qpn, r.qpn), (1, WC_SUCCESS, 296, 1, 1), "{way:?}");
        wait(&mut t.net, &mut t.a.cq);
        // What is no management datagram does not get there, and takes no receive.
        t.b.guest.post_recv(&mut b_gsi, 2, &[sge(&t.b.mr, 0, 20)]);
        t.a.guest.post(&mut a_gsi, &send, &[sge(&t.a.mr, 0, 255)]);
        t.b.guest.post_recv(&mut b_gsi, 3, &[sge(&t.b.mr, 0, 296)]);
        wait(&mut t.net, &mut t.a.cq);
        t.net.run(1);
        assert_eq!(t.losses(), [("ud_rx_malformed", 1)]);
        assert!(t.b.cq.ring.poll().is_none());
        assert_eq!(t.b.guest.state(&mut t.net, &b_gsi), QpState::Rts);
        // The rules leave ordinary datagrams out.
        let send = t.to_b(V4, 10);
        t.a.guest.post(&mut t.a.qp, &send, &[]);
        wait(&mut t.net, &mut t.a.cq);
        assert_eq!(t.losses(), [("ud_tx_denied", 1)]);
        let none = Peer { verdict: Verdict::default(), ..t.a.peer() };
        t.set_peer(B, none);
        let mut send = datagram(V4, t.b.gids[1], 1, 11);
        segment(&mut send).qkey = QKEY_OF_QP;
        t.a.guest.post(&mut a_gsi, &send, &[sge(&t.a.mr, 0, 256)]);
        wait(&mut t.net, &mut t.a.cq);
        t.net.run(1);
        assert_eq!(t.losses(), [("ud_rx_denied", 1)]);
    }
}

/// vNICs with an underlay address of their own have the number 1 there; their other addresses they may share with one another.
#[test]
fn the_well_known_gsi_is_at_a_vnics_first_address_only() {
    let (mut t, [a_addresses, b_addresses]) = Ends::sharing_an_address();
    let well_known = WireQpn::from_wire(1);
    let mut a_gsi = t.a.gsi_with(&mut t.net, well_known);
    let mut b_gsi = t.b.gsi_with(&mut t.net, well_known);
    let (a, b) = (t.a.peer(), t.b.peer());
    t.set_peer(A, Peer { addresses: b_addresses, gsi_qpn: well_known, ..b });
    t.set_peer(B, Peer { addresses: a_addresses.clone(), gsi_qpn: well_known, ..a });
    t.b.guest.post_recv(&mut b_gsi, 1, &[sge(&t.b.mr, 0, 296)]);
    t.a.guest.post_recv(&mut a_gsi, 2, &[sge(&t.a.mr, 0, 296)]);
    let mut send = datagram(V4, t.b.gids[1], 1, 3);
    segment(&mut send).qkey = QKEY_OF_QP;
    t.a.guest.post(&mut a_gsi, &send, &[sge(&t.a.mr, 512, 256)]);
    assert_eq!(wait(&mut t.net, &mut t.a.cq).wr_id, 3);
    let r = wait(&mut t.net, &mut t.b.cq);
    assert_eq!((r.wr_id, r.status, r.src_qpn, r.qpn), (1, WC_SUCCESS, 1, 1));
    // Number 1 of the shared address is nobody's.
    let shared = a_addresses[1];
    let mut packet = t.packet(well_known, &[0; 256]);
    packet.0.bth.dest_qp = well_known;
    t.inject_at(A, shared, a_addresses[0], 0xc021, packet.clone());
    t.inject(B, shared, 0xc021, packet);
    assert_eq!(t.events(), [asks(B, PeerName::Source(shared, well_known))]);
}

#[test]
fn qkeys() {
    for way in WAYS {
        let mut t = Ends::known(way);
        t.b.guest.post_recv(&mut t.b.qp, 1, &[sge(&t.b.mr, 0, 4096)]);
        let mut send = t.to_b(V4, 2);
        segment(&mut send).qkey = QKEY + 1;
        t.a.guest.post(&mut t.a.qp, &send, &[]);
        wait(&mut t.net, &mut t.a.cq);
        t.net.run(1);
        assert_eq!(t.losses(), [("ud_rx_qkey_violations", 1)]);
        segment(&mut send).qkey = QKEY_OF_QP | 5;
        t.a.guest.post(&mut t.a.qp, &send, &[]);
        assert_eq!(wait(&mut t.net, &mut t.b.cq).status, WC_SUCCESS);
        let other = QpChange { qkey: Some(QKEY + 1), ..QpChange::default() };
        t.a.guest.modify(&mut t.net, &t.a.qp, other).unwrap();
        t.a.guest.post(&mut t.a.qp, &send, &[]);
        t.net.run(1);
        assert_eq!(t.losses(), [("ud_rx_qkey_violations", 1)], "{way:?}");
    }
}

#[test]
fn a_failed_send_puts_the_send_queue_in_error() {
    for way in WAYS {
        let mut t = Ends::known(way);
        for wr_id in 10..14 {
            t.b.guest.post_recv(&mut t.b.qp, wr_id, &[sge(&t.b.mr, 0, 4096)]);
            t.a.guest.post_recv(&mut t.a.qp, wr_id, &[sge(&t.a.mr, 0, 4096)]);
        }
        let bad = ring_sge(t.a.mr.gpa, 8, t.a.mr.key ^ 0x100);
        for wr_id in 1..4 {
            let send = t.to_b(V4, wr_id);
            t.a.guest.post(&mut t.a.qp, &send, if wr_id == 2 { std::slice::from_ref(&bad) } else { &[] });
        }
        let seen = [(); 3].map(|()| wait(&mut t.net, &mut t.a.cq));
        let expected = [(1, WC_SUCCESS), (2, WC_LOC_PROT_ERR), (3, WC_WR_FLUSH_ERR)];
        assert_eq!(seen.map(|c| (c.wr_id, c.status)), expected);
        assert_eq!(t.a.guest.state(&mut t.net, &t.a.qp), QpState::Sqe);
        // What is posted from now on is flushed; receives go on.
        let send = t.to_b(V4, 4);
        t.a.guest.post(&mut t.a.qp, &send, &[]);
        assert_eq!(wait(&mut t.net, &mut t.a.cq).status, WC_WR_FLUSH_ERR);
        let to_a = datagram(V4, t.a.gids[1], t.a.qp.wire.get(), 5);
        t.b.guest.post(&mut t.b.qp, &to_a, &[]);
        let r = wait(&mut t.net, &mut t.a.cq);
        assert_eq!((r.wr_id, r.status), (10, WC_SUCCESS), "{way:?}");
        t.a.guest.modify(&mut t.net, &t.a.qp, into(QpState::Rts)).unwrap();
        t.a.guest.post(&mut t.a.qp, &send, &[]);
        assert_eq!(wait(&mut t.net, &mut t.a.cq).status, WC_SUCCESS);
        assert_eq!(t.events(), [], "the completions tell it");
    }
}

#[test]
fn sends_that_make_no_sense_fail() {
    let mut t = Ends::known(Way::Local);
    let multicast = ["ff02::1", "239.0.0.1"].map(gid);
    type Spoil = fn(&mut vrdma_rings::SendRequest, &[masq_types::Gid; 2]);
    let spoil: [(Spoil, u8); 8] = [
        (|r, m| segment(r).dgid = m[0].0, WC_LOC_QP_OP_ERR),
        (|r, m| segment(r).dgid = m[1].0, WC_LOC_QP_OP_ERR),
        (|r, _| segment(r).dgid = [0; 16], WC_LOC_QP_OP_ERR),
        (|r, _| segment(r).sgid_index = 2, WC_LOC_QP_OP_ERR),
        (|r, _| segment(r).sgid_index = 255, WC_LOC_QP_OP_ERR),
        // An IPv6 address cannot send to an IPv4 one.
        (|r, _| segment(r).sgid_index = 0, WC_LOC_QP_OP_ERR),
        (|r, _| r.opcode = SEND_OP_RDMA_WRITE, WC_LOC_QP_OP_ERR),
        (|r, _| r.opcode = 77, WC_LOC_QP_OP_ERR),
    ];
    for (i, (spoil, status)) in spoil.into_iter().enumerate() {
        let mut send = t.to_b(V4, 1);
        spoil(&mut send, &multicast);
        t.a.guest.post(&mut t.a.qp, &send, &[]);
        assert_eq!(wait(&mut t.net, &mut t.a.cq).status, status, "{i}");
        t.a.guest.modify(&mut t.net, &t.a.qp, into(QpState::Rts)).unwrap();
    }
    assert_eq!((t.losses(), t.events()), (vec![], vec![]));
    // An address that peers do not know yet.
    let (table, published) = (t.a.gids.to_vec(), vec![t.a.gids[0]]);
    t.execute(A, |vnic| Command::SetGids { vnic, table, published });
    let send = t.to_b(V4, 1);
    t.a.guest.post(&mut t.a.qp, &send, &[]);
    assert_eq!(wait(&mut t.net, &mut t.a.cq).status, WC_SUCCESS);
    assert_eq!(t.losses(), [("ud_tx_unpublished_gid", 1)]);
}

#[test]
fn the_path_mtu_is_the_longest_payload() {
    for mtu in [None, Some(Mtu::B1024)] {
        let mut t = Ends::known(Way::Remote);
        t.a.guest.modify(&mut t.net, &t.a.qp, into(QpState::Reset)).unwrap();
        t.a.to_rts(&mut t.net, &t.a.qp, mtu);
        let longest = mtu.map_or(4096, Mtu::bytes);
        t.b.guest.post_recv(&mut t.b.qp, 1, &[sge(&t.b.mr, 0, 8192)]);
        let send = t.to_b(V4, 2);
        t.a.guest.post(&mut t.a.qp, &send, &[sge(&t.a.mr, 0, longest)]);
        assert_eq!(wait(&mut t.net, &mut t.b.cq).byte_len, longest + 40);
        wait(&mut t.net, &mut t.a.cq);
        t.a.guest.post(&mut t.a.qp, &send, &[sge(&t.a.mr, 0, longest + 1)]);
        assert_eq!(wait(&mut t.net, &mut t.a.cq).status, WC_LOC_LEN_ERR);
    }
}

#[test]
fn receives_that_are_missing_or_too_short() {
    for way in WAYS {
        let mut t = Ends::known(way);
        let send = t.to_b(V4, 2);
        t.a.guest.post(&mut t.a.qp, &send, &[sge(&t.a.mr, 0, 100)]);
        wait(&mut t.net, &mut t.a.cq);
        t.net.run(1);
        assert_eq!(t.losses(), [("ud_rx_no_receive", 1)]);
        t.b.guest.post_recv(&mut t.b.qp, 1, &[sge(&t.b.mr, 0, 140)]);
        t.b.guest.post_recv(&mut t.b.qp, 2, &[sge(&t.b.mr, 0, 139)]);
        for len in [100, 100, 99] {
            t.a.guest.post(&mut t.a.qp, &send, &[sge(&t.a.mr, 0, len)]);
            assert_eq!(wait(&mut t.net, &mut t.a.cq).status, WC_SUCCESS);
        }
        let seen = [(); 2].map(|()| wait(&mut t.net, &mut t.b.cq)).map(|c| (c.wr_id, c.status, c.byte_len));
        assert_eq!(seen, [(1, WC_SUCCESS, 140), (2, WC_SUCCESS, 139)], "{way:?}");
        assert_eq!(t.losses(), [("ud_rx_too_long", 1)]);
    }
}

#[test]
fn a_receive_that_cannot_be_written_ends_its_queue_pair() {
    for way in WAYS {
        let mut t = Ends::known(way);
        let send = t.to_b(V4, 2);
        let nowhere = ring_sge(t.b.mr.gpa, 139, !t.b.mr.key);
        t.b.guest.post_recv(&mut t.b.qp, 1, &[nowhere]);
        t.b.guest.post_recv(&mut t.b.qp, 2, &[sge(&t.b.mr, 0, 139)]);
        t.a.guest.post(&mut t.a.qp, &send, &[]);
        assert_eq!(wait(&mut t.net, &mut t.a.cq).status, WC_SUCCESS);
        let seen = [(); 2].map(|()| wait(&mut t.net, &mut t.b.cq)).map(|c| (c.wr_id, c.status));
        assert_eq!(seen, [(1, WC_LOC_PROT_ERR), (2, WC_WR_FLUSH_ERR)], "{way:?}");
        assert_eq!(t.b.guest.state(&mut t.net, &t.b.qp), QpState::Err);
        t.a.guest.post(&mut t.a.qp, &send, &[]);
        wait(&mut t.net, &mut t.a.cq);
        t.net.run(1);
        assert_eq!(t.losses(), [("ud_rx_no_qp", 1)], "a queue pair in error receives nothing");
    }
}

#[test]
fn err_flushes_and_reset_begins_anew() {
    let mut t = Ends::new(Way::Local);
    t.a.guest.post_recv(&mut t.a.qp, 1, &[sge(&t.a.mr, 0, 140)]);
    // Sixteen wait for their peer, the others in the queue.
    for wr_id in 0..18 {
        let send = t.to_b(V4, wr_id);
        t.a.guest.post(&mut t.a.qp, &send, &[]);
    }
    t.net.run(1);
    t.a.guest.modify(&mut t.net, &t.a.qp, into(QpState::Err)).unwrap();
    t.net.run(5);
    let seen: Vec<_> = std::iter::from_fn(|| t.a.cq.ring.poll()).collect();
    assert_eq!(seen.len(), 19);
    let flushed: Vec<_> = seen.iter().filter(|c| c.status == WC_WR_FLUSH_ERR).map(|c| c.wr_id).collect();
    assert_eq!(flushed, [16, 17, 1]);
    t.a.cq.ring.publish();
    t.a.guest.modify(&mut t.net, &t.a.qp, into(QpState::Reset)).unwrap();
    t.a.qp.sq.reset();
    t.a.qp.rq.reset();
    t.a.to_rts(&mut t.net, &t.a.qp, None);
    // What was to be sent before the reset is not sent after it.
    let (a, b) = (t.a.peer(), t.b.peer());
    t.set_peer(A, b);
    t.set_peer(B, a);
    t.net.run(1);
    assert_eq!(t.losses(), []);
    t.b.guest.post_recv(&mut t.b.qp, 1, &[sge(&t.b.mr, 0, 140)]);
    let send = t.to_b(V4, 50);
    t.a.guest.post(&mut t.a.qp, &send, &[]);
    assert_eq!(wait(&mut t.net, &mut t.a.cq).wr_id, 50);
    assert_eq!(wait(&mut t.net, &mut t.b.cq).wr_id, 1);
}

#[test]
fn a_draining_queue_pair_finishes_what_waits_in_its_queue() {
    let mut t = Ends::new(Way::Local);
    for wr_id in 0..17 {
        let send = t.to_b(V4, wr_id);
        t.a.guest.post(&mut t.a.qp, &send, &[]);
    }
    t.net.run(1);
    t.events();
    let drain = QpChange { to: Some(QpState::Sqd), sq_drained_notify: Some(true), ..QpChange::default() };
    t.a.guest.modify(&mut t.net, &t.a.qp, drain).unwrap();
    t.net.run(1);
    assert_eq!(t.events(), []);
    let b = t.b.peer();
    t.set_peer(A, b);
    t.net.run(1);
    let drained = Event::SqDrained { vnic: t.a.guest.id, qp: t.a.qp.handle };
    assert!(t.events().contains(&drained));
    assert_eq!(std::iter::from_fn(|| t.a.cq.ring.poll()).count(), 17);
}

#[test]
fn packets_that_are_no_datagrams_are_dropped() {
    let mut t = Ends::known(Way::Remote);
    t.b.guest.post_recv(&mut t.b.qp, 1, &[sge(&t.b.mr, 0, 8192)]);
    let address = t.a.guest.address;
    let too_long = t.packet(t.a.qp.wire, &[0; 4097]);
    t.inject(B, address, 0xc000, too_long);
    let rc = masq_wire::PacketRepr::new(
        masq_wire::Opcode::RC_SEND_ONLY,
        t.b.qp.wire,
        masq_types::Psn::new(1),
        masq_wire::Extension::None,
    );
    t.inject(B, address, 0xc000, (rc, Vec::new()));
    assert_eq!(t.losses(), [("ud_rx_malformed", 2)]);
    let before = t.net.counter(1, "rx_icrc_errors");
    let (mut repr, payload) = t.packet(t.a.qp.wire, b"bad");
    repr.bth.pkey = 0;
    t.inject_spoilt(B, address, 0xc000, (repr, payload));
    assert_eq!(t.net.counter(1, "rx_icrc_errors"), before + 1);
    assert!(t.b.cq.ring.poll().is_none());
}

/// A peer that is no masq, as its packets are: its UDP source port says nothing of addresses.
#[test]
fn strangers_are_known_by_their_first_address() {
    let mut t = Ends::known(Way::Remote);
    t.b.guest.post_recv(&mut t.b.qp, 1, &[sge(&t.b.mr, 0, 4096)]);
    let (address, packet) = (t.a.guest.address, t.packet(t.a.qp.wire, b"hi"));
    t.inject(B, address, 0xe123, packet);
    let r = wait(&mut t.net, &mut t.b.cq);
    assert_eq!((r.byte_len, r.flags & CQE_IPV4), (42, CQE_IPV4));
    let grh = t.b.guest.read(t.b.mr.gpa, 40);
    assert_eq!((&grh[32..36], &grh[36..]), (&t.a.gids[1].0[12..], &t.b.gids[1].0[12..]));
}

/// The underlay's family is none of the guests' business.
#[test]
fn an_ipv6_underlay() {
    let Some(mut t) = Ends::at_ipv6_loopback() else {
        eprintln!("::1 does not exist here: nothing to test");
        return;
    };
    for family in [V6, V4] {
        t.b.guest.post_recv(&mut t.b.qp, 1, &[sge(&t.b.mr, 0, 4096)]);
        let send = t.to_b(family, 2);
        t.a.guest.post_inline(&mut t.a.qp, &send, b"local");
        let r = wait(&mut t.net, &mut t.b.cq);
        assert_eq!((r.byte_len, r.flags & CQE_IPV4 != 0), (45, family == V4));
    }
    // And from another host.
    let elsewhere = "2001:db8::5".parse().unwrap();
    let peer = Peer { addresses: vec![elsewhere], ..t.a.peer() };
    t.set_peer(B, peer);
    t.b.guest.post_recv(&mut t.b.qp, 1, &[sge(&t.b.mr, 0, 4096)]);
    let packet = t.packet(t.a.qp.wire, b"remote");
    t.inject(B, elsewhere, 0xc000, packet);
    let r = wait(&mut t.net, &mut t.b.cq);
    assert_eq!((r.byte_len, r.flags & CQE_IPV4), (46, 0));
    assert_eq!(t.b.guest.read(t.b.mr.gpa + 40, 6), b"remote");
}

#[test]
fn a_rate_holds_datagrams_back() {
    for way in WAYS {
        let mut t = Ends::known(way);
        let rate = Rate { bits_per_sec: 8_000_000, burst_bytes: Rate::MIN_BURST_BYTES };
        let limits = Limits { rate: Some(rate), ..Limits::default() };
        t.execute(A, |vnic| Command::SetLimits { vnic, limits });
        // Nobody receives them; they are sent all the same.
        for wr_id in 0..60 {
            let send = t.to_b(V4, wr_id);
            t.a.guest.post(&mut t.a.qp, &send, &[sge(&t.a.mr, 0, 4000)]);
        }
        t.net.run(100);
        let Ok(Reply::VnicCounters(sent)) = t.net.execute(0, Command::VnicCounters { vnic: t.a.guest.id })
        else {
            panic!("no counters")
        };
        let due = 100_000 + rate.burst_bytes;
        assert!(sent.tx_ip_bytes <= due && sent.tx_ip_bytes + 20_000 >= due, "{way:?}: {sent:?}");
        let done = std::iter::from_fn(|| t.a.cq.ring.poll()).count() as u64;
        assert_eq!((done, sent.tx_packets, sent.tx_messages), (sent.tx_messages, done, done));
        assert_eq!(sent.tx_ip_bytes, done * (28 + 12 + 8 + 4000 + 4));
    }
}

#[test]
fn a_shared_receive_queue_takes_datagrams() {
    for way in WAYS {
        let mut t = Ends::known(way);
        let mut srq = t.b.guest.srq(&mut t.net, None);
        let cq = &t.b.cq;
        let qps: Vec<TestQp> = (0..2)
            .map(|_| {
                let shared = |init: &mut QpInit| {
                    (init.qp_type, init.receives) = (QpType::Ud, Receives::Shared(srq.handle));
                };
                t.b.guest.qp_with(&mut t.net, cq, cq, shared)
            })
            .collect();
        for (wr_id, qp) in qps.iter().enumerate() {
            t.b.to_rts(&mut t.net, qp, None);
            t.b.guest.post_srq_recv(&mut srq, wr_id as u64, &[sge(&t.b.mr, 0, 64)]);
        }
        for (wr_id, qp) in qps.iter().enumerate() {
            let send = datagram(V4, t.b.gids[1], qp.wire.get(), 1);
            t.a.guest.post(&mut t.a.qp, &send, &[]);
            let r = wait(&mut t.net, &mut t.b.cq);
            assert_eq!((r.wr_id, r.qpn), (wr_id as u64, qp.wire.get()));
            assert_eq!(r.flags, CQE_RECV | CQE_SRQ | CQE_GRH | CQE_IPV4);
        }
    }
}

/// What goes out, as another implementation sees it.
#[test]
fn the_bytes_on_the_wire() {
    let mut t = Ends::new(Way::Local);
    let address = fresh_address();
    let socket = std::net::UdpSocket::bind((address.as_str(), masq_wire::ROCEV2_UDP_PORT)).unwrap();
    socket.set_read_timeout(Some(std::time::Duration::from_secs(10))).unwrap();
    let peer = Peer { addresses: vec![address.parse().unwrap()], ..t.b.peer() };
    t.set_peer(A, peer);
    let mut send = t.to_b(V4, 1);
    send.opcode = SEND_OP_SEND_IMM;
    send.imm_or_inv = u32::from_ne_bytes(*b"imm!");
    t.a.guest.post_inline(&mut t.a.qp, &send, b"hello");
    wait(&mut t.net, &mut t.a.cq);
    let mut bytes = [0; 100];
    let (len, source) = socket.recv_from(&mut bytes).unwrap();
    // Both addresses stand second in their records.
    assert_eq!((source.ip(), source.port()), (t.a.guest.address, 0xc021));
    let [_, d0, d1, d2] = t.b.qp.wire.get().to_be_bytes();
    let [_, s0, s1, s2] = t.a.qp.wire.get().to_be_bytes();
    #[rustfmt::skip]
    let expected = [
        0x65, 0x70, 0xff, 0xff, 0, d0, d1, d2, 0, 0xff, 0xff, 0xff, // BTH: UD SEND Only with Immediate, pad 3
        0x11, 0x11, 0x11, 0x11, 77, s0, s1, s2, // DETH, and the check of the addresses
        b'i', b'm', b'm', b'!',
        b'h', b'e', b'l', b'l', b'o', 0, 0, 0,
    ];
    assert_eq!(bytes[..len - 4], expected);
    let local = socket.local_addr().unwrap().ip();
    let flow = masq_wire::IcrcFlow::new(source.ip(), local, source.port()).unwrap();
    assert_eq!(flow.check(&bytes[..len], 0), masq_wire::IcrcVerdict::Exact);
}

/// Other implementations take their source ports from where our RNICs write places, and read nothing from ours.
#[test]
fn a_strangers_ports_say_nothing_of_addresses() {
    let mut t = Ends::known(Way::Remote);
    let from = t.a.guest.address;
    // The port says that both are the first in their records, which are those of IPv6.
    for is_stranger in [false, true] {
        let peer = Peer { is_stranger, ..t.a.peer() };
        t.set_peer(B, peer);
        t.b.guest.post_recv(&mut t.b.qp, 1, &[sge(&t.b.mr, 0, 4096)]);
        let packet = t.packet(t.a.qp.wire, b"hello");
        t.inject(B, from, 0xc000, packet);
        let r = wait(&mut t.net, &mut t.b.cq);
        assert_eq!(r.flags & CQE_IPV4 != 0, is_stranger);
    }
    // An address that nobody has published has no place, and needs none.
    let (unpublished, published) = (gid("10.9.9.9"), t.a.gids.to_vec());
    t.execute(A, |vnic| Command::SetGids { vnic, table: vec![unpublished], published });
    let send = datagram(0, t.b.gids[1], t.b.qp.wire.get(), 4);
    for (is_stranger, lost) in [(false, "ud_tx_unpublished_gid"), (true, "ud_rx_no_receive")] {
        let peer = Peer { is_stranger, ..t.b.peer() };
        t.set_peer(A, peer);
        t.a.guest.post(&mut t.a.qp, &send, &[]);
        wait(&mut t.net, &mut t.a.cq);
        t.net.run(1);
        assert_eq!(t.losses(), [(lost, 1)]);
    }
}

/// A stranger knows a vNIC by the first of its addresses; the others it shares.
#[test]
fn a_stranger_hears_from_a_vnics_first_address_alone() {
    let Some(mut t) = Ends::of_two_families() else {
        eprintln!("::1 does not exist here: nothing to test");
        return;
    };
    for (is_stranger, lost) in [(false, &[][..]), (true, &[("ud_tx_unreachable", 1)])] {
        let peer = Peer { is_stranger, ..t.b.peer() };
        t.set_peer(A, peer);
        let send = t.to_b(V4, 1);
        t.a.guest.post(&mut t.a.qp, &send, &[]);
        wait(&mut t.net, &mut t.a.cq);
        assert_eq!(t.losses(), lost, "{is_stranger}");
    }
}

/// Who sends each datagram by another source port has fewer turns: each is a socket that is opened, and another one closed.
#[test]
fn new_ports_count_in_the_share() {
    let mut t = Ends::known(Way::Remote);
    let own: Vec<_> = (1..=16).map(|i| gid(&format!("10.1.0.{i}"))).collect();
    let theirs: Vec<_> = (1..=32).map(|i| gid(&format!("10.2.0.{i}"))).collect();
    t.execute(A, |vnic| Command::SetGids { vnic, table: own.clone(), published: own.clone() });
    t.set_peer(A, Peer { gids: theirs.clone(), ..t.b.peer() });
    let mut sent_in_a_turn = |spread: usize| {
        for n in 0..32 {
            let place = n * spread;
            let send = datagram((place % 16) as u8, theirs[place / 16], t.b.qp.wire.get(), 1);
            t.a.guest.post(&mut t.a.qp, &send, &[]);
        }
        let now = masq_rnic::transport::Time::from_nanos(t.net.now);
        t.net.engines[0].turn(now);
        let sent = std::iter::from_fn(|| t.a.cq.ring.poll()).count();
        t.net.run(1);
        let rest = std::iter::from_fn(|| t.a.cq.ring.poll()).last();
        t.a.qp.sq.complete(rest.map_or(0, |c| c.consumer));
        t.a.cq.ring.publish();
        sent
    };
    assert_eq!(sent_in_a_turn(0), 32);
    assert!(sent_in_a_turn(5) <= 4);
}
