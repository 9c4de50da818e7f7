//! Whom datagrams may go to and come from: peers that are unknown at first, denied, moved or forged.

mod common;
mod datagrams;

use common::two::{WAYS, Way};
use common::*;
use datagrams::*;
use masq_driver::*;
use masq_types::WireQpn;
use vrdma_abi::ring::*;

#[test]
fn datagrams_wait_at_both_ends_for_their_peers() {
    for way in WAYS {
        let mut t = Ends::new(way);
        t.a.guest.write(t.a.mr.gpa, &pattern(300, 5));
        t.b.guest.post_recv(&mut t.b.qp, 1, &[sge(&t.b.mr, 0, 4096)]);
        let send = t.to_b(V4, 2);
        t.a.guest.post(&mut t.a.qp, &send, &[sge(&t.a.mr, 0, 300)]);
        // The sender is done at once, and its memory its own.
        assert_eq!(wait(&mut t.net, &mut t.a.cq).status, WC_SUCCESS);
        t.a.guest.write(t.a.mr.gpa, &[0; 300]);
        assert_eq!(t.events(), [asks(A, PeerName::Gid(t.b.gids[1]))]);
        let b = t.b.peer();
        t.set_peer(A, b);
        t.net.run(1);
        let source = PeerName::Source(t.a.guest.address, t.a.qp.wire);
        assert_eq!(t.events(), [asks(B, source)], "{way:?}");
        assert!(t.b.cq.ring.poll().is_none());
        let a = t.a.peer();
        t.set_peer(B, a);
        let r = wait(&mut t.net, &mut t.b.cq);
        assert_eq!((r.status, r.byte_len, r.src_qpn), (WC_SUCCESS, 340, t.a.qp.wire.get()));
        assert_eq!(t.b.guest.read(t.b.mr.gpa + 40, 300), pattern(300, 5));
        assert_eq!(t.losses(), []);
    }
}

#[test]
fn without_an_answer_they_are_lost_and_asked_for_again() {
    for way in WAYS {
        let mut t = Ends::new(way);
        t.b.guest.post_recv(&mut t.b.qp, 1, &[sge(&t.b.mr, 0, 4096)]);
        let send = t.to_b(V4, 2);
        for round in 0..2 {
            t.a.guest.post(&mut t.a.qp, &send, &[]);
            wait(&mut t.net, &mut t.a.cq);
            assert_eq!(t.events().len(), 1, "round {round}");
            t.net.run(99);
            assert_eq!(t.losses(), []);
            t.net.run(2);
            assert_eq!(t.losses(), [("ud_tx_unknown_peer", 1)]);
        }
        let b = t.b.peer();
        t.set_peer(A, b);
        t.a.guest.post(&mut t.a.qp, &send, &[]);
        wait(&mut t.net, &mut t.a.cq);
        t.net.run(102);
        assert_eq!(t.losses(), [("ud_rx_unknown_peer", 1)], "{way:?}");
        assert!(t.b.cq.ring.poll().is_none());
    }
}

#[test]
fn a_peer_that_there_is_not_is_not_asked_for_again_for_a_while() {
    let mut t = Ends::new(Way::Local);
    let name = PeerName::Gid(t.b.gids[1]);
    let send = t.to_b(V4, 2);
    t.a.guest.post(&mut t.a.qp, &send, &[]);
    wait(&mut t.net, &mut t.a.cq);
    assert_eq!(t.events(), [asks(A, name)]);
    t.execute(A, |vnic| Command::NoPeer { vnic, name });
    assert_eq!(t.losses(), [("ud_tx_unknown_peer", 1)]);
    for (ms, asked) in [(0, 0), (199, 0), (2, 1)] {
        t.net.run(ms);
        t.a.guest.post(&mut t.a.qp, &send, &[]);
        assert_eq!(wait(&mut t.net, &mut t.a.cq).status, WC_SUCCESS);
        assert_eq!(t.events().len(), asked, "after {ms} ms");
    }
    assert_eq!(t.losses(), [("ud_tx_unknown_peer", 2)]);
    // The peer appears after all.
    let b = t.b.peer();
    t.set_peer(A, b);
    t.execute(A, |vnic| Command::NoPeer { vnic, name });
    t.a.guest.post(&mut t.a.qp, &send, &[]);
    wait(&mut t.net, &mut t.a.cq);
    assert_eq!(t.losses(), [], "an answer that comes late takes nothing away");
    t.execute(A, |vnic| Command::RemovePeer { vnic, peer: PeerId(2) });
    t.events();
    t.a.guest.post(&mut t.a.qp, &send, &[]);
    wait(&mut t.net, &mut t.a.cq);
    assert_eq!(t.events(), [asks(A, name)]);
}

/// A burst to an unknown peer is whole when the peer is known in time: sends for which there is no room wait in their queue, and
/// nothing else does.
#[test]
fn sends_wait_in_their_queue_when_too_many_wait_already() {
    let mut t = Ends::new(Way::Remote);
    let a = t.a.peer();
    t.set_peer(B, a);
    for i in 0..40 {
        t.b.guest.post_recv(&mut t.b.qp, i, &[sge(&t.b.mr, i * 64, 64)]);
        let send = t.to_b(V4, i);
        t.a.guest.post_inline(&mut t.a.qp, &send, &i.to_ne_bytes());
    }
    t.net.run(20);
    assert_eq!(t.events(), [asks(A, PeerName::Gid(t.b.gids[1]))]);
    let done = std::iter::from_fn(|| t.a.cq.ring.poll()).count();
    assert_eq!(done, 16);
    let b = t.b.peer();
    t.set_peer(A, b);
    for i in 0..40 {
        let r = wait(&mut t.net, &mut t.b.cq);
        assert_eq!((r.wr_id, t.b.guest.read_u64(t.b.mr.gpa + i * 64 + 40)), (i, i));
    }
    assert_eq!(t.losses(), []);
    // Those that left together had the Identifications that their ICRCs were made for.
    assert_eq!(t.net.counter(1, "rx_icrc_explained"), 0);
}

/// Whoever has to wait gets its turn, and nobody is forgotten.
#[test]
fn many_queue_pairs_wait_for_room() {
    let mut t = Ends::new(Way::Local);
    let a = t.a.peer();
    t.set_peer(B, a);
    let mut qps: Vec<TestQp> = (0..40).map(|_| t.a.more(&mut t.net, QpType::Ud)).collect();
    let send = t.to_b(V4, 1);
    for qp in &mut qps {
        t.b.guest.post_recv(&mut t.b.qp, 1, &[sge(&t.b.mr, 0, 64)]);
        t.a.guest.post(qp, &send, &[]);
    }
    // Nobody answers: the first sixteen are lost, then as many wait, and eight for room.
    t.net.run(150);
    assert_eq!(t.losses(), [("ud_tx_unknown_peer", 16)]);
    // Three of the eight go, among them those who would wake the next.
    for qp in &qps[33..35] {
        t.a.guest.modify(&mut t.net, qp, into(QpState::Err)).unwrap();
    }
    let gone = QpHandle(qps[39].handle.0);
    t.net.execute(0, Command::DestroyQp { vnic: t.a.guest.id, qp: gone }).unwrap();
    let b = t.b.peer();
    t.set_peer(A, b);
    t.net.run(250);
    let sent = std::iter::from_fn(|| t.a.cq.ring.poll()).filter(|c| c.status == WC_SUCCESS).count();
    let received = std::iter::from_fn(|| t.b.cq.ring.poll()).count();
    assert_eq!((sent, received), (37, 21));
}

#[test]
fn both_ends_judge() {
    for way in WAYS {
        let mut t = Ends::known(way);
        t.b.guest.post_recv(&mut t.b.qp, 1, &[sge(&t.b.mr, 0, 4096)]);
        let all = Verdict { send: true, receive: true, cm: true };
        for (end, verdict, loss) in [
            (A, Verdict { send: false, ..all }, "ud_tx_denied"),
            (B, Verdict { receive: false, ..all }, "ud_rx_denied"),
        ] {
            let peer = if end == A { t.b.peer() } else { t.a.peer() };
            t.set_peer(end, Peer { verdict, ..peer.clone() });
            let send = t.to_b(V4, 2);
            t.a.guest.post(&mut t.a.qp, &send, &[]);
            assert_eq!(wait(&mut t.net, &mut t.a.cq).status, WC_SUCCESS, "a loss is no error");
            t.net.run(1);
            assert_eq!(t.losses(), [(loss, 1)], "{way:?}");
            // It is about one pair of addresses only.
            let (local, remote) = if end == A { (&t.a, &t.b) } else { (&t.b, &t.a) };
            let exception = PairVerdict { local: local.gids[0], remote: remote.gids[0], verdict: all };
            t.set_peer(end, Peer { verdict, exceptions: vec![exception], ..peer.clone() });
            t.a.guest.post(&mut t.a.qp, &send, &[]);
            wait(&mut t.net, &mut t.a.cq);
            t.net.run(1);
            assert_eq!(t.losses(), [(loss, 1)], "{way:?}");
            let send = t.to_b(V6, 3);
            t.a.guest.post(&mut t.a.qp, &send, &[]);
            wait(&mut t.net, &mut t.a.cq);
            assert_eq!(wait(&mut t.net, &mut t.b.cq).status, WC_SUCCESS);
            t.set_peer(end, peer);
            t.b.guest.post_recv(&mut t.b.qp, 1, &[sge(&t.b.mr, 0, 4096)]);
        }
    }
}

#[test]
fn a_peer_that_has_moved_is_heard_from_its_new_place_only() {
    let mut t = Ends::known(Way::Remote);
    t.b.guest.post_recv(&mut t.b.qp, 1, &[sge(&t.b.mr, 0, 4096)]);
    let moved = Peer { addresses: vec!["192.0.2.77".parse().unwrap()], ..t.a.peer() };
    t.set_peer(B, moved);
    let send = t.to_b(V4, 2);
    t.a.guest.post(&mut t.a.qp, &send, &[]);
    wait(&mut t.net, &mut t.a.cq);
    t.net.run(1);
    assert_eq!(t.events(), [asks(B, PeerName::Source(t.a.guest.address, t.a.qp.wire))]);
    let back = t.a.peer();
    t.set_peer(B, back);
    assert_eq!(wait(&mut t.net, &mut t.b.cq).status, WC_SUCCESS);
    t.execute(B, |vnic| Command::RemovePeer { vnic, peer: PeerId(1) });
    t.a.guest.post(&mut t.a.qp, &send, &[]);
    t.net.run(1);
    assert_eq!(t.events().len(), 1, "it is forgotten");
}

#[test]
fn numbers_outside_the_peers_blocks_are_nobodys() {
    let mut t = Ends::known(Way::Local);
    // A number of A's own vNIC, at B's address; none at all; a number that is too large.
    for qpn in [t.a.qp.wire.get(), 0, u32::MAX] {
        let send = datagram(V4, t.b.gids[1], qpn, 1);
        t.a.guest.post(&mut t.a.qp, &send, &[]);
        assert_eq!(wait(&mut t.net, &mut t.a.cq).status, WC_SUCCESS);
        assert_eq!(t.losses(), [("ud_tx_foreign_qpn", 1)]);
    }
    let send = datagram(V4, t.b.gids[1], t.b.qp.wire.get() + 100, 1);
    t.a.guest.post(&mut t.a.qp, &send, &[]);
    wait(&mut t.net, &mut t.a.cq);
    assert_eq!(t.losses(), [("ud_rx_no_qp", 1)]);
}

/// Whatever the peer tables say, nothing goes from one network to another.
#[test]
fn networks_are_apart() {
    let mut t = Ends::with_networks(Way::Local, [100, 101]);
    let (a, b) = (t.a.peer(), t.b.peer());
    t.set_peer(A, b);
    t.set_peer(B, a);
    t.b.guest.post_recv(&mut t.b.qp, 1, &[sge(&t.b.mr, 0, 4096)]);
    let send = t.to_b(V4, 2);
    t.a.guest.post(&mut t.a.qp, &send, &[]);
    wait(&mut t.net, &mut t.a.cq);
    assert_eq!(t.losses(), [("ud_rx_unknown_peer", 1)]);
    assert!(t.b.cq.ring.poll().is_none());
}

#[test]
fn a_vnic_goes_while_datagrams_wait() {
    let mut t = Ends::new(Way::Local);
    let send = t.to_b(V4, 1);
    t.a.guest.post(&mut t.a.qp, &send, &[]);
    wait(&mut t.net, &mut t.a.cq);
    let Ends { mut net, a, .. } = t;
    a.guest.detach(&mut net);
    net.run(300);
    assert_eq!(net.counter(0, "ud_tx_unknown_peer"), 0);
}

/// What comes from addresses or numbers that are no peer's never reaches a guest, and bothers masqd a bounded number of times.
#[test]
fn forged_sources() {
    let mut t = Ends::known(Way::Remote);
    t.b.guest.post_recv(&mut t.b.qp, 1, &[sge(&t.b.mr, 0, 4096)]);
    let stranger = "192.0.2.1".parse().unwrap();
    let own = t.a.guest.address;
    let mut asked = 0;
    for i in 0..2000u32 {
        // From nobody; from a peer's host, but of no peer's number; as if from B itself.
        let source = if i % 2 == 0 { stranger } else { own };
        let src_qpn = WireQpn::from_wire(0x80_0000 + i);
        t.inject(B, source, 0xc000, t.packet(src_qpn, b"forged"));
        t.net.run(1);
        for event in t.events() {
            let Event::UnknownPeer { name, .. } = event else { panic!("{event:?}") };
            asked += 1;
            t.execute(B, |vnic| Command::NoPeer { vnic, name });
        }
    }
    assert!(t.b.cq.ring.poll().is_none());
    assert_eq!(t.losses(), [("ud_rx_unknown_peer", 2000)]);
    // Two seconds and more.
    assert!(asked > 128 && asked <= 12 * 128, "{asked}");
    // A real peer gets through all the same.
    let send = t.to_b(V4, 2);
    t.a.guest.post(&mut t.a.qp, &send, &[]);
    assert_eq!(wait(&mut t.net, &mut t.b.cq).status, WC_SUCCESS);
}

/// Those that nobody answers for take no more than their share of memory.
#[test]
fn unanswered_floods_are_bounded() {
    let mut t = Ends::known(Way::Remote);
    for i in 0..1000u32 {
        let packet = t.packet(WireQpn::from_wire(0x80_0000 + i), &[0; 4096]);
        t.inject(B, "192.0.2.1".parse().unwrap(), 0xc000, packet);
    }
    assert_eq!(t.losses(), [("ud_rx_unknown_peer", 1000 - 48)]);
    assert_eq!(t.events().len(), 48);
    // Whoever sends in the meantime is not held up.
    t.b.guest.post_recv(&mut t.b.qp, 1, &[sge(&t.b.mr, 0, 4096)]);
    let send = t.to_b(V4, 2);
    t.a.guest.post(&mut t.a.qp, &send, &[]);
    assert_eq!(wait(&mut t.net, &mut t.b.cq).status, WC_SUCCESS);
}
