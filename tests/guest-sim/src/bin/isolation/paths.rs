//! Neighbours on one host, of which one has an underlay address of its own on its first path, and shares the others.

use std::time::{Duration, Instant};

use guest_sim::Layout;
use guest_sim::suite::{Conn, Setup, Side, World, assert_same, assert_status, pattern};
use guest_sim::verbs::{ConnectAttr, Mr, Qp, QpCaps, wr};
use vrdma_abi::ring::{SEND_OP_RDMA_WRITE, WC_RETRY_EXC_ERR, WC_SUCCESS};
use vrdma_rings::SendRequest;

use crate::Test;

pub const TESTS: &[Test] =
    &[("a_neighbour_that_names_the_peer_first_gets_no_path", |world| neighbour(world, true))];

/// The same without an address of its own.
pub const SHARED_TESTS: &[Test] =
    &[("a_neighbour_that_names_the_peer_later_gets_no_path", |world| neighbour(world, false))];

const PATHS: u8 = 4;
const CHUNK: usize = 64 << 10;
const CHUNKS: usize = 16;
const TAIL: usize = 4096;
const PATIENCE: Duration = Duration::from_secs(20);

/// Four paths; `blue-1` has an alias or not.
pub fn four_paths(layout: Layout, alias: bool) -> Layout {
    let aliases = if alias { vec![("blue-1", 0)] } else { Vec::new() };
    Layout { paths: PATHS, switches: true, aliases, ..layout }
}

/// Posts chunks and what waits for them.
fn post(qp: &Qp, wr_id: u64, here: &Mr, there: &Mr) {
    let mut until = 0;
    for offset in (0..CHUNKS * CHUNK).step_by(CHUNK) {
        let chunk = SendRequest { flags: 0, ..wr::rdma(SEND_OP_RDMA_WRITE, 0, there, offset) };
        until = qp.post_chunk(&chunk, &[here.sge(offset, CHUNK)]).expect("room for a chunk");
    }
    qp.post_wait(wr_id, until).expect("room to wait");
    let end = CHUNKS * CHUNK;
    qp.post_send(&wr::rdma(SEND_OP_RDMA_WRITE, wr_id, there, end), &[here.sge(end, TAIL)]).expect("room");
}

/// The neighbour connects to the number of the guest's peer, before the guest does or later, and says there what the guest could say.
fn neighbour(world: &mut World, is_first: bool) {
    let [own, other, peer] = ["blue-1", "blue-2", "blue-3"].map(|vnic| Side::open(world, vnic));
    let len = CHUNKS * CHUNK + TAIL;
    let [here, there, lies, target] =
        [own.buffer(len), peer.buffer(len), other.buffer(len), peer.buffer(len)];
    lies.write(0, &vec![0xee; len]);
    let setup = Setup::caps(QpCaps::multipath());
    let conn = Conn { a: own.qp(&setup.caps_a, 512), b: peer.qp(&setup.caps_b, 512) };
    let liar = other.qp(&setup.caps_a, 512);
    let names_the_peer = || {
        let attr = ConnectAttr { retry_cnt: 2, timeout: 14, ..ConnectAttr::default() };
        liar.to_init(&attr).expect("RESET to INIT");
        liar.to_rtr(&attr, peer.address, conn.b.qpn).expect("the rules allow it");
        liar.to_rts(&attr).expect("RTR to RTS");
    };
    if is_first {
        names_the_peer();
    }
    conn.connect_between(&own, &peer, &setup);
    if !is_first {
        names_the_peer();
    }
    post(&liar, 66, &lies, &target);

    let sent = || (1..PATHS).map(|path| world.cluster.sent_bytes(1, path).expect("the link's counters"));
    let (before, end) = (sent().collect::<Vec<u64>>(), Instant::now() + PATIENCE);
    let carries = |(now, before): (u64, &u64)| now >= before + CHUNK as u64;
    for round in 0.. {
        here.write(0, &pattern(round, len));
        post(&conn.a, round, &here, &there);
        assert_status(&conn.a.send_completion(), WC_SUCCESS);
        assert_same(&there.read(0, len), &pattern(round, len), "the message");
        if sent().zip(&before).all(carries) {
            break;
        }
        assert!(
            Instant::now() < end,
            "the guest has lost paths to its neighbour: {:?}",
            sent().collect::<Vec<_>>()
        );
    }
    assert_status(&liar.send_completion(), WC_RETRY_EXC_ERR);
    assert_same(&target.read(0, len), &vec![0; len], "what the neighbour wanted to write");
    for side in [own, other, peer] {
        side.ctx.destroy().expect("DESTROY_CONTEXT");
    }
}
