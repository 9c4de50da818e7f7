//! Rules that change under living connections.

use std::time::{Duration, Instant};

use guest_sim::ControlError;
use guest_sim::suite::{Conn, Setup, Side, World, assert_status};
use guest_sim::verbs::wr;
use vrdma_abi::control::{QP_STATE_ERR, QP_STATE_RTS};
use vrdma_abi::event::EVENT_QP_FATAL;
use vrdma_abi::ring::*;

use crate::Test;

pub const TESTS: &[Test] = &[("a_rule_that_goes_takes_its_connections", revoked)];

struct Link {
    a: Side,
    b: Side,
    c: Conn,
}

fn try_link(world: &World, from: &str, to: &str) -> Result<Link, ControlError> {
    let (a, b) = (Side::open(world, from), Side::open(world, to));
    let setup = Setup::default();
    let c = Conn { a: a.qp(&setup.caps_a, 64), b: b.qp(&setup.caps_b, 64) };
    c.a.connect(&setup.a, b.address, c.b.qpn)?;
    c.b.connect(&setup.b, a.address, c.a.qpn)?;
    Ok(Link { a, b, c })
}

#[track_caller]
fn link(world: &World, from: &str, to: &str) -> Link {
    try_link(world, from, to).expect("a connection that rules allow")
}

#[track_caller]
fn works(l: &Link) {
    let (here, there) = (l.a.buffer(64), l.b.buffer(64));
    l.c.a.post_send(&wr::rdma(SEND_OP_RDMA_WRITE, 1, &there, 0), &[here.sge(0, 8)]).unwrap();
    assert_status(&l.c.a.send_completion(), WC_SUCCESS);
}

fn revoked(world: &mut World) {
    let blue = [link(world, "blue-1", "blue-2"), link(world, "blue-1", "blue-3")];
    let red = [link(world, "red-1", "red-2"), link(world, "red-1", "red-3")];
    blue.iter().chain(&red).for_each(works);
    for l in &blue {
        l.c.a.post_recv(9, &[]).unwrap();
        l.c.b.post_recv(9, &[]).unwrap();
    }
    let marks = [world.cluster.log(1).len(), world.cluster.log(2).len()];
    world.cluster.set_groups(&["red"]).unwrap();
    for l in &blue {
        for (side, qp) in [(&l.a, &l.c.a), (&l.b, &l.c.b)] {
            let deadline = Instant::now() + Duration::from_secs(5);
            while qp.state() != QP_STATE_ERR {
                assert!(Instant::now() < deadline, "the connection outlives its rule");
                std::thread::sleep(Duration::from_millis(5));
            }
            side.guest.expect_event(EVENT_QP_FATAL, qp.handle());
            let cqe = qp.recv_completion();
            assert_status(&cqe, WC_WR_FLUSH_ERR);
            assert_eq!(cqe.wr_id, 9);
        }
    }
    world.cluster.expect_log(1, marks[0], &["blue-1", "192.168.0.2", "revoked"]);
    world.cluster.expect_log(1, marks[0], &["blue-1", "192.168.0.3", "revoked"]);
    world.cluster.expect_log(2, marks[1], &["blue-3", "192.168.0.1", "revoked"]);
    for l in &red {
        assert_eq!((l.c.a.state(), l.c.b.state()), (QP_STATE_RTS, QP_STATE_RTS), "another tenant's rules");
        works(l);
    }
    let setup = Setup::default();
    let qp = blue[0].a.qp(&setup.caps_a, 64);
    let again = qp.connect(&setup.a, blue[0].b.address, blue[0].c.b.qpn);
    assert_eq!(again.expect_err("a new connection").errno(), libc::EACCES);

    world.cluster.set_groups(&["blue", "red"]).unwrap();
    for (from, to) in [("blue-1", "blue-2"), ("blue-1", "blue-3")] {
        let deadline = Instant::now() + Duration::from_secs(5);
        // Each host learns of the rule by its own watch.
        let l = loop {
            match try_link(world, from, to) {
                Ok(l) => break l,
                Err(e) => assert!(Instant::now() < deadline, "allowed again, but refused: {e}"),
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        works(&l);
        l.a.ctx.destroy().unwrap();
        l.b.ctx.destroy().unwrap();
    }
    for l in blue.iter().chain(&red) {
        l.a.ctx.destroy().unwrap();
        l.b.ctx.destroy().unwrap();
    }
}
