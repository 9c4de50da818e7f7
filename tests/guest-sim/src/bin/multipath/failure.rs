//! Links that go down under connections over several paths, and come up again.

use std::thread::sleep;
use std::time::{Duration, Instant};

use guest_sim::suite::{Conn, Setup, World, assert_same, assert_status, pattern};
use guest_sim::verbs::{QpCaps, wr};
use serde_json::Value;
use vrdma_abi::control::{QP_STATE_ERR, QP_STATE_RTS};
use vrdma_abi::ring::*;

use crate::{Ends, PATHS, Test, post_message};

pub const TESTS: &[Test] = &[
    ("a_link_that_goes_down_under_a_message", |w| goes_down(w, SEND_OP_RDMA_WRITE)),
    ("a_link_that_goes_down_under_a_read", |w| goes_down(w, SEND_OP_RDMA_READ)),
    ("sends_and_atomics_while_links_flap", flaps),
    ("all_links_go_down", all_down),
];

const BYTES: usize = 3 << 20;

/// What a host tells of the paths of a vNIC's only connection.
pub fn paths(world: &World, host: u8, vnic: &str) -> Vec<Value> {
    let (status, text) = world.cluster.get(host, &format!("/v1/queue-pairs?vnic={vnic}")).expect("an answer");
    assert_eq!(status, 200, "{text}");
    let all: Vec<Value> = serde_json::from_str(&text).expect("queue pairs");
    let mut several = all.into_iter().filter_map(|q| q.get("paths").and_then(Value::as_array).cloned());
    several.next().unwrap_or_else(|| panic!("no paths: {text}"))
}

fn until(what: &str, seconds: u64, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(seconds);
    while !done() {
        assert!(Instant::now() < end, "{what}: not within {seconds} s");
        sleep(Duration::from_millis(20));
    }
}

fn changes(world: &World, to: &str) -> f64 {
    world.cluster.metric(1, "masqd_path_changes_total", &[&format!("to=\"{to}\"")])
}

/// Puts a link up again, whatever happens.
struct Down<'a>(&'a World, u8);

impl<'a> Down<'a> {
    fn take(world: &'a World, path: u8) -> Self {
        world.cluster.set_path(path, false).expect("the link goes down");
        Down(world, path)
    }
}

impl Drop for Down<'_> {
    fn drop(&mut self) {
        let _ = self.0.cluster.set_path(self.1, true);
    }
}

fn message(c: &Conn, id: u64, (here, there): (&guest_sim::verbs::Mr, &guest_sim::verbs::Mr), opcode: u8) {
    let data = pattern(id, BYTES);
    let (from, to) = if opcode == SEND_OP_RDMA_WRITE { (here, there) } else { (there, here) };
    from.write(0, &data);
    to.fill(0, BYTES, 0);
    post_message(c, opcode, id, (here, there), 0, BYTES);
    let cqe = c.a.send_completion();
    assert_status(&cqe, WC_SUCCESS);
    assert_eq!(cqe.wr_id, id);
    assert_same(&to.read(0, BYTES), &data, "the message");
}

/// In the middle of messages. Nobody sees an error, masqd tells of it, and the path is used again when it is back.
fn goes_down(world: &World, opcode: u8) {
    const DEAD: usize = 2;
    let e = Ends::open(world);
    let (here, there) = (e.a.buffer(BYTES), e.b.buffer(BYTES));
    let c = e.connect();
    let (log, down, up) = (world.cluster.log(1).len(), changes(world, "down"), changes(world, "up"));
    message(&c, 1, (&here, &there), opcode);
    let link = std::thread::scope(|threads| {
        let cut = threads.spawn(|| {
            sleep(Duration::from_millis(30));
            Down::take(world, DEAD as u8)
        });
        let mut id = 2;
        while !cut.is_finished() {
            message(&c, id, (&here, &there), opcode);
            id += 1;
        }
        cut.join().expect("the link goes down")
    });
    for id in 100..110 {
        message(&c, id, (&here, &there), opcode);
    }
    until("the path is down", 5, || {
        let told = paths(world, 1, "blue-1");
        told[DEAD]["state"] == "down" && told[DEAD]["taken"] != DEAD
    });
    let told = paths(world, 1, "blue-1");
    assert_eq!(told.len(), usize::from(PATHS));
    assert!(told.iter().enumerate().all(|(i, p)| i == DEAD || p["state"] == "up"), "{told:?}");
    assert_eq!(changes(world, "down"), down + 1.0, "the path, once for all who use it");
    world.cluster.expect_log(1, log, &["a path to another host is down", "path=2"]);
    let table = world.cluster.masqctl(1, &["paths", "blue-1"]).expect("masqctl paths");
    let words = |l: &str| ["blue-1", "10.77.2.1", "10.77.2.2", "down", "ago"].iter().all(|w| l.contains(w));
    assert!(table.lines().any(words), "{table}");
    drop(link);
    until("the path is up", 20, || {
        message(&c, 200, (&here, &there), opcode);
        let told = paths(world, 1, "blue-1");
        told[DEAD]["state"] == "up" && told[DEAD]["taken"] == DEAD
    });
    assert_eq!(changes(world, "up"), up + 1.0);
    world.cluster.expect_log(1, log, &["a path to another host is up again", "path=2"]);
    assert_eq!((c.a.state(), c.b.state()), (QP_STATE_RTS, QP_STATE_RTS));
}

/// The leader's link and others go and come: each SEND takes one receive, each atomic adds once.
fn flaps(world: &World) {
    let e = Ends::open(world);
    let (here, there) = (e.a.buffer(8192), e.b.buffer(8192));
    let c = e.connect();
    there.write(4096, &0u64.to_ne_bytes());
    let mut link = None;
    for round in 0..60u64 {
        if round % 10 == 3 {
            link = Some(Down::take(world, (round / 10 % 2) as u8));
        }
        if round % 10 == 8 {
            link = None;
        }
        c.b.post_recv(round, &[there.sge(0, 64)]).unwrap();
        here.write(0, &[round as u8; 64]);
        c.a.post_send(&wr::request(SEND_OP_SEND, 2 * round), &[here.sge(0, 64)]).unwrap();
        let add = wr::atomic(SEND_OP_FETCH_ADD, 2 * round + 1, &there, 4096, 1, 0);
        c.a.post_send(&add, &[here.sge(4096, 8)]).unwrap();
        for id in [2 * round, 2 * round + 1] {
            let cqe = c.a.send_completion();
            assert_status(&cqe, WC_SUCCESS);
            assert_eq!(cqe.wr_id, id);
        }
        let cqe = c.b.recv_completion();
        assert_status(&cqe, WC_SUCCESS);
        assert_eq!((cqe.wr_id, cqe.byte_len), (round, 64));
        assert_eq!(there.read(0, 64), [round as u8; 64]);
        assert_eq!(here.read(4096, 8), round.to_ne_bytes(), "what the atomic has found");
    }
    drop(link);
    assert_eq!(there.read(4096, 8), 60u64.to_ne_bytes());
    assert!(c.b.recv_cq().poll().is_none());
}

/// Retries end, and the connection with them, as that of one path would: nothing hangs.
fn all_down(world: &World) {
    let e = Ends::open(world);
    let (here, there) = (e.a.buffer(BYTES), e.b.buffer(BYTES));
    let mut setup = Setup::caps(QpCaps::multipath());
    (setup.a.timeout, setup.a.retry_cnt) = (10, 3);
    let c = e.connect_with(&setup);
    let links: Vec<Down> = (0..PATHS).map(|path| Down::take(world, path)).collect();
    post_message(&c, SEND_OP_RDMA_WRITE, 1, (&here, &there), 0, BYTES);
    let cqe = c.a.send_completion();
    drop(links);
    assert_status(&cqe, WC_RETRY_EXC_ERR);
    assert_eq!((cqe.wr_id, c.a.state()), (1, QP_STATE_ERR));
}
