//! Large messages: all bytes, by all paths, one completion.

use guest_sim::suite::{Conn, Rng, Setup, World, assert_same, assert_status, pattern};
use guest_sim::verbs::{QpCaps, wr};
use vrdma_abi::control::{QP_STATE_RESET, QP_STATE_RTS};
use vrdma_abi::ring::*;

use crate::failure::paths;
use crate::{Ends, MOST_PATHS, PATHS, Test, post_message, sent};

pub const TESTS: &[Test] = &[
    ("a_write_goes_by_all_paths", |w| by_all_paths(w, "blue-1", PATHS, SEND_OP_RDMA_WRITE)),
    ("a_read_goes_by_all_paths", |w| by_all_paths(w, "blue-1", PATHS, SEND_OP_RDMA_READ)),
    ("writes_with_immediate_data", write_imm),
    ("a_guest_that_wants_fewer_paths", fewer),
    ("both_ends_at_once", both_ways),
    ("many_queue_pairs_with_several_paths", many),
    ("random_messages", random),
    ("a_queue_pair_is_reset_and_used_again", again),
    ("numbers_and_quotas_of_hidden_queue_pairs", |w| numbers(w, "blue-1", PATHS)),
];

/// Where there are as many paths as there can be, and one vNIC has ten.
pub const MANY_PATHS_TESTS: &[Test] = &[
    ("a_write_goes_by_sixteen_paths", |w| by_all_paths(w, "blue-1", MOST_PATHS, SEND_OP_RDMA_WRITE)),
    ("a_read_goes_by_ten_paths", |w| by_all_paths(w, "blue-2", 10, SEND_OP_RDMA_READ)),
    ("random_messages_over_sixteen_paths", random),
    ("numbers_and_quotas_of_ten_paths", |w| numbers(w, "blue-2", 10)),
];

pub const LOSSY_TESTS: &[Test] =
    &[("random_messages_over_bad_links", random), ("writes_with_immediate_data_over_bad_links", write_imm)];
pub const ENGINE_TESTS: &[Test] =
    &[("random_messages_on_several_engines", random), ("many_queue_pairs_on_several_engines", many)];

const BYTES: usize = 3 << 20;

fn by_all_paths(world: &World, vnic: &str, paths: u8, opcode: u8) {
    let e = Ends::of(world, vnic, "blue-3");
    let (here, there) = (e.a.buffer(BYTES), e.b.buffer(BYTES));
    let data = pattern(opcode.into(), BYTES);
    let (from, to, sender) = match opcode {
        SEND_OP_RDMA_WRITE => (&here, &there, 0),
        _ => (&there, &here, 1),
    };
    from.write(0, &data);
    let c = e.connect();
    assert_eq!((c.a.paths(), c.b.paths()), (paths.into(), paths.into()));
    let before = sent(world, paths);
    let chunks = post_message(&c, opcode, 7, (&here, &there), 0, BYTES);
    let cqe = c.a.send_completion();
    assert_status(&cqe, WC_SUCCESS);
    assert_eq!(cqe.wr_id, 7);
    // Of a WRITE it says nothing.
    assert!(opcode == SEND_OP_RDMA_WRITE || cqe.byte_len as usize == BYTES, "{} bytes read", cqe.byte_len);
    assert_same(&to.read(0, BYTES), &data, "the message");
    assert_eq!(c.a.chunk_indexes(), (chunks, chunks));
    assert!(c.a.send_cq().poll().is_none(), "one completion");
    // A chunk and its headers by each, whatever else the links carry.
    for (path, (before, after)) in before.iter().zip(sent(world, paths)).enumerate() {
        let bytes = after[sender] - before[sender];
        assert!(bytes > crate::CHUNK as u64, "path {path} has carried {bytes} bytes");
    }
}

/// The receiver of a WRITE with immediate data is told once, of the whole, when all of it is there.
fn write_imm(world: &World) {
    let e = Ends::open(world);
    let (here, there) = (e.a.buffer(BYTES), e.b.buffer(BYTES));
    let c = e.connect();
    assert_eq!((c.a.splits(), c.b.splits()), (SPLIT_WRITE_IMM, SPLIT_WRITE_IMM));
    for round in 0..8 {
        let (at, len) = (round * 999, (1 << 20) + round * 12_345);
        here.write(at, &pattern(round as u64, len));
        c.b.post_recv(round as u64, &[]).expect("room for a receive");
        post_message(&c, SEND_OP_RDMA_WRITE_IMM, 7, (&here, &there), at, len);
        let told = c.b.recv_completion();
        assert_status(&told, WC_SUCCESS);
        assert_eq!((told.wr_id, told.opcode), (round as u64, WC_RECV_RDMA_WITH_IMM));
        assert_eq!(told.byte_len as usize, len, "the length of the whole");
        assert_same(&there.read(at, len), &pattern(round as u64, len), "the message");
        assert_status(&c.a.send_completion(), WC_SUCCESS);
    }
    assert!(paths(world, 1, "blue-1").iter().all(|path| path["chunks"].as_u64() > Some(0)));
}

/// A guest sends by as many paths as it wants, and its peer as it wants itself.
fn fewer(world: &World) {
    let e = Ends::open(world);
    let (here, there) = (e.a.buffer(BYTES), e.b.buffer(BYTES));
    let setup = Setup::caps(QpCaps::multipath());
    let c = Conn { a: e.a.qp(&setup.caps_a, 512), b: e.b.qp(&setup.caps_b, 512) };
    c.a.limit_paths(2);
    c.connect_between(&e.a, &e.b, &setup);
    assert_eq!((c.a.paths(), c.b.paths()), (2, PATHS.into()));
    let back = Conn { a: c.b.clone(), b: c.a.clone() };
    let ends = [
        (&c, (&here, &there), (1, "blue-1"), 2),
        (&back, (&there, &here), (2, "blue-3"), usize::from(PATHS)),
    ];
    for (conn, mr, (host, vnic), used) in ends {
        mr.0.write(0, &pattern(host.into(), BYTES));
        post_message(conn, SEND_OP_RDMA_WRITE, 7, mr, 0, BYTES);
        assert_status(&conn.a.send_completion(), WC_SUCCESS);
        assert_same(&mr.1.read(0, BYTES), &pattern(host.into(), BYTES), "the message");
        let carried: Vec<_> = paths(world, host, vnic).iter().map(|p| p["chunks"].as_u64()).collect();
        let is_used = carried.iter().map(|chunks| *chunks != Some(0));
        assert!((0..usize::from(PATHS)).map(|path| path < used).eq(is_used), "{vnic}: {carried:?}");
    }
}

/// Each end writes and reads at once.
fn both_ways(world: &World) {
    const HALF: usize = BYTES / 2;
    let e = Ends::open(world);
    let (here, there) = (e.a.buffer(2 * BYTES), e.b.buffer(2 * BYTES));
    let c = e.connect();
    let back = Conn { a: c.b.clone(), b: c.a.clone() };
    here.write(0, &pattern(1, BYTES));
    there.write(BYTES, &pattern(2, BYTES));
    for round in 0..3 {
        post_message(&c, SEND_OP_RDMA_WRITE, 10 + round, (&here, &there), 0, HALF);
        post_message(&back, SEND_OP_RDMA_WRITE, 20 + round, (&there, &here), BYTES, HALF);
        post_message(&c, SEND_OP_RDMA_READ, 30 + round, (&here, &there), BYTES + HALF, HALF);
        post_message(&back, SEND_OP_RDMA_READ, 40 + round, (&there, &here), HALF, HALF);
        for (qp, ids) in [(&c.a, [10, 30]), (&c.b, [20, 40])] {
            for id in ids {
                let cqe = qp.send_completion();
                assert_status(&cqe, WC_SUCCESS);
                assert_eq!(cqe.wr_id, id + round);
            }
        }
        assert_same(&there.read(0, BYTES), &pattern(1, BYTES), "what b got");
        assert_same(&here.read(BYTES, BYTES), &pattern(2, BYTES), "what a got");
    }
}

/// Forty groups at once, of which each has its own data.
fn many(world: &World) {
    const COUNT: usize = 40;
    const EACH: usize = 300_000;
    let e = Ends::open(world);
    let (here, there) = (e.a.buffer(COUNT * EACH), e.b.buffer(COUNT * EACH));
    let data = pattern(3, COUNT * EACH);
    here.write(0, &data);
    let conns: Vec<_> = (0..COUNT).map(|_| e.connect()).collect();
    for (i, c) in conns.iter().enumerate() {
        assert_eq!(c.a.paths(), u32::from(PATHS));
        post_message(c, SEND_OP_RDMA_WRITE, i as u64, (&here, &there), i * EACH, EACH);
    }
    for (i, c) in conns.iter().enumerate() {
        let cqe = c.a.send_completion();
        assert_status(&cqe, WC_SUCCESS);
        assert_eq!(cqe.wr_id, i as u64);
    }
    assert_same(&there.read(0, COUNT * EACH), &data, "all of it");
}

/// WRITEs and READs of any length at any place, one after another and several at once, small requests between them.
fn random(world: &World) {
    const MESSAGES: u64 = 60;
    let e = Ends::open(world);
    let (here, there) = (e.a.buffer(BYTES), e.b.buffer(BYTES));
    let (mut mine, mut its) = (pattern(11, BYTES), pattern(12, BYTES));
    here.write(0, &mine);
    there.write(0, &its);
    let c = e.connect();
    let mut rng = Rng::new(5);
    for id in 0..MESSAGES {
        // In halves of the regions, so that a READ and the WRITE after it touch different bytes.
        let read = rng.below(2) == 1;
        let base = if read { BYTES / 2 } else { 0 };
        let len = crate::TAIL + 1 + rng.below((BYTES / 2 - crate::TAIL - 1) as u64) as usize;
        let at = base + rng.below((BYTES / 2 - len + 1) as u64) as usize;
        let opcode = if read { SEND_OP_RDMA_READ } else { SEND_OP_RDMA_WRITE };
        post_message(&c, opcode, id, (&here, &there), at, len);
        match read {
            true => mine[at..at + len].copy_from_slice(&its[at..at + len]),
            false => its[at..at + len].copy_from_slice(&mine[at..at + len]),
        }
        if rng.below(3) == 0 {
            c.a.post_send(&wr::rdma(SEND_OP_RDMA_WRITE, 1000 + id, &there, 0), &[here.sge(0, 8)]).unwrap();
            its[..8].copy_from_slice(&mine[..8]);
            finish(&c, &[id, 1000 + id]);
        } else {
            finish(&c, &[id]);
        }
    }
    assert_same(&there.read(0, BYTES), &its, "the peer's memory");
    assert_same(&here.read(0, BYTES), &mine, "its own memory");
    assert_eq!((c.a.state(), c.b.state()), (QP_STATE_RTS, QP_STATE_RTS));
}

fn finish(c: &guest_sim::suite::Conn, ids: &[u64]) {
    for id in ids {
        let cqe = c.a.send_completion();
        assert_status(&cqe, WC_SUCCESS);
        assert_eq!(cqe.wr_id, *id);
    }
}

/// RESET in the middle of a message; then another connection with the same queue pair.
fn again(world: &World) {
    let e = Ends::open(world);
    let (here, there) = (e.a.buffer(BYTES), e.b.buffer(BYTES));
    here.write(0, &pattern(21, BYTES));
    let c = e.connect();
    for round in 0..5 {
        post_message(&c, SEND_OP_RDMA_WRITE, round, (&here, &there), 0, BYTES);
        if round % 2 == 0 {
            assert_status(&c.a.send_completion(), WC_SUCCESS);
        }
        c.a.to_state(QP_STATE_RESET).expect("RESET");
        c.b.to_state(QP_STATE_RESET).expect("RESET");
        let attr = Setup::default().a;
        c.a.to_init(&attr).unwrap();
        c.b.to_init(&attr).unwrap();
        c.a.to_rtr(&attr, e.b.address, c.b.qpn).unwrap();
        c.b.to_rtr(&attr, e.a.address, c.a.qpn).unwrap();
        c.a.to_rts(&attr).unwrap();
        c.b.to_rts(&attr).unwrap();
        assert_eq!((c.a.paths(), c.a.chunk_indexes()), (PATHS.into(), (0, 0)));
    }
    there.fill(0, BYTES, 0);
    post_message(&c, SEND_OP_RDMA_WRITE, 9, (&here, &there), 0, BYTES);
    assert_status(&c.a.send_completion(), WC_SUCCESS);
    assert_same(&there.read(0, BYTES), &pattern(21, BYTES), "the last one");
}

/// A group has as many numbers as paths, and takes as much of the quota; no other queue pair has any of them.
fn numbers(world: &World, vnic: &str, paths: u8) {
    let e = Ends::of(world, vnic, "blue-3");
    let used = || world.cluster.objects(vnic)["qps"];
    let (mut groups, mut plain) = (Vec::new(), Vec::new());
    for i in 0..64 {
        match i % 3 {
            0 => groups.push(e.a.qp(&QpCaps::multipath(), 64)),
            _ => plain.push(e.a.qp(&QpCaps::default(), 64)),
        }
    }
    let (paths, aligned) = (u32::from(paths), u32::from(paths).next_power_of_two());
    let mut all: Vec<u32> = groups.iter().flat_map(|q| q.qpn..q.qpn + paths).collect();
    all.extend(plain.iter().map(|q| q.qpn));
    assert!(groups.iter().all(|q| q.qpn % aligned == 0) && plain.iter().all(|q| q.qpn % aligned != 0));
    let count = all.len();
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), count, "no number twice");
    let before = used();
    assert!(before >= count as u64, "the quota counts hidden queue pairs: {before}");
    e.a.ctx.destroy().expect("DESTROY_CONTEXT");
    assert_eq!(used(), before - count as u64);
}
