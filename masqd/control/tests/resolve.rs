//! Requests that miss something in the directory wait for one reading of the store, and not for two.

mod common;

use common::*;
use masq_control::store::Snapshot;
use masq_control::{Directory, Errno, Outcome};
use masq_model::{Key, Kind};
use vrdma_abi::control::*;

/// A guest whose directory does not know yet that `vnic` is realised.
fn before(vnic: &str) -> (Guest, Snapshot, ModifyQp) {
    let mut g = Guest::ready("blue-1");
    g.base();
    g.qp_in_init(1);
    let whole = snapshot(WORLD);
    let key = Key::new(Kind::Endpoint, vnic).to_string();
    let mut old = whole.clone();
    old.entries.retain(|e| e.key != key);
    let qpn = g.qpn_of(vnic);
    g.directory = Directory::from_snapshot(&old).0;
    let attr = g.rtr_attr(gid("192.168.0.2"), qpn);
    (g, Snapshot { revision: 2, ..whole }, ModifyQp { qp: 1, mask: RTR_MASK, attr })
}

#[test]
fn a_peer_that_the_store_knows_is_found_after_one_reading() {
    let (mut g, store, request) = before("blue-2");
    let ticket = g.send_pending(OP_MODIFY_QP, &request);
    assert_eq!(g.query(1).attr.state, QP_STATE_INIT, "nothing has happened, and others do not wait");
    g.directory.replace(&store);
    assert!(g.resolve(ticket).unwrap().is_ok());
    assert_eq!(g.query(1).attr.state, QP_STATE_RTR);
    assert!(g.resolve(ticket).is_none(), "a ticket serves once");
}

#[test]
fn a_peer_that_the_store_does_not_know_either_is_refused() {
    let (mut g, _, request) = before("blue-2");
    let ticket = g.send_pending(OP_MODIFY_QP, &request);
    let refusal = g.resolve(ticket).unwrap().unwrap_err();
    assert_eq!(refusal.errno(), Errno::EHOSTUNREACH);
    assert!(refusal.to_string().contains("its host h2 has not realised it"), "{refusal}");
    assert_eq!(g.session.refusals().get("unreachable"), 1);
}

#[test]
fn a_qpn_in_a_block_that_is_new_is_found_after_one_reading() {
    let (mut g, mut store, mut request) = before("blue-9");
    let key = Key::new(Kind::Endpoint, "blue-2").to_string();
    let entry = store.entries.iter_mut().find(|e| e.key == key).unwrap();
    let mut endpoint: masq_model::Endpoint = serde_json::from_slice(&entry.value).unwrap();
    let block = masq_types::QpnBlock::new(0x80_0000, 4096).unwrap();
    endpoint.qpn_blocks.push(block);
    entry.value = masq_model::Object::Endpoint(endpoint).to_json();
    request.attr.dest_qpn = block.first;
    let ticket = g.send_pending(OP_MODIFY_QP, &request);
    g.directory.replace(&store);
    assert!(g.resolve(ticket).unwrap().is_ok());
}

#[test]
fn a_reset_drops_what_waits() {
    let (mut g, store, request) = before("blue-2");
    let ticket = g.send_pending(OP_MODIFY_QP, &request);
    g.session.reset(&g.rnic);
    g.directory.replace(&store);
    assert!(g.resolve(ticket).is_none());
    assert_eq!(g.rnic.held(), 0);
}

#[test]
fn what_happened_meanwhile_counts() {
    let (mut g, store, request) = before("blue-2");
    let ticket = g.send_pending(OP_MODIFY_QP, &request);
    g.destroy(OP_DESTROY_QP, 1).unwrap();
    g.directory.replace(&store);
    assert_eq!(g.resolve(ticket).unwrap().unwrap_err().errno(), Errno::ENOENT);
}

#[test]
fn a_guest_cannot_make_an_unbounded_number_of_requests_wait() {
    let (mut g, _, request) = before("blue-2");
    let bytes = g.bytes(OP_MODIFY_QP, &request);
    let tickets = (0..256).map(|_| match g.raw(&bytes) {
        Outcome::Pending(ticket) => ticket,
        Outcome::Reply(r) => panic!("{r:?}"),
    });
    let tickets: std::collections::BTreeSet<_> = tickets.collect();
    assert_eq!(tickets.len(), 256, "each has its own");
    let Outcome::Reply(reply) = g.raw(&bytes) else { panic!() };
    let refusal = reply.refusal.unwrap();
    assert_eq!((refusal.errno(), refusal.reason.label()), (Errno::EAGAIN, "too_many_waiting"));
}

#[test]
fn denials_do_not_read_the_store() {
    let mut g = Guest::ready("blue-1");
    g.base();
    g.qp_in_init(1);
    let qpn = g.qpn_of("blue-9");
    let attr = g.rtr_attr(gid("192.168.9.9"), qpn);
    let bytes = g.bytes(OP_MODIFY_QP, &ModifyQp { qp: 1, mask: RTR_MASK, attr });
    assert!(matches!(g.raw(&bytes), Outcome::Reply(_)));
}

#[test]
fn a_guest_that_misses_again_and_again_is_refused_without_a_reading() {
    let (mut g, store, request) = before("blue-2");
    let mut readings = 0;
    for _ in 0..100 {
        g.now += std::time::Duration::from_millis(200);
        let bytes = g.bytes(OP_MODIFY_QP, &request);
        match g.raw(&bytes) {
            Outcome::Pending(ticket) => {
                readings += 1;
                g.resolve(ticket).unwrap().unwrap_err();
            }
            Outcome::Reply(reply) => {
                assert_eq!(reply.refusal.unwrap().errno(), Errno::EHOSTUNREACH);
            }
        }
    }
    assert!((16..25).contains(&readings), "{readings}");
    // What the watch has told counts at once, and a reading that helps makes good.
    g.directory.replace(&store);
    g.send(OP_MODIFY_QP, &request).unwrap();
}
