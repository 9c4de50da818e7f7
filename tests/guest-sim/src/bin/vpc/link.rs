//! Connections between two processes of guests.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use guest_sim::ControlError;
use guest_sim::suite::{Conn, Setup, Side, assert_same, assert_status, pattern};
use guest_sim::verbs::{ConnectAttr, wr};
use vrdma_abi::control::{QP_STATE_ERR, QP_STATE_INIT, QP_STATE_RTS};
use vrdma_abi::event::EVENT_QP_FATAL;
use vrdma_abi::ring::*;

/// How long something may take that other hosts have to learn of first.
pub const PATIENCE: Duration = Duration::from_secs(5);

/// Two connected processes.
pub struct Link {
    pub a: Side,
    pub b: Side,
    pub c: Conn,
}

impl Link {
    /// Connects two processes; the peers are found by the sides' addresses.
    pub fn try_connect(a: Side, b: Side) -> Result<Link, ControlError> {
        let setup = Setup::default();
        let c = Conn { a: a.qp(&setup.caps_a, 64), b: b.qp(&setup.caps_b, 64) };
        c.a.connect(&setup.a, b.address, c.b.qpn)?;
        c.b.connect(&setup.b, a.address, c.a.qpn)?;
        Ok(Link { a, b, c })
    }

    /// Connects two processes.
    ///
    /// # Panics
    /// When that is refused.
    #[track_caller]
    pub fn connect(a: Side, b: Side) -> Link {
        Link::try_connect(a, b).expect("a connection that rules allow")
    }

    /// Moves data both ways, and checks it.
    ///
    /// # Panics
    /// When it does not arrive.
    #[track_caller]
    pub fn works(&self) {
        const LEN: usize = 20_000;
        let (here, there) = (self.a.buffer(LEN), self.b.buffer(LEN));
        for (round, from, to, at) in [(1, &here, &there, &self.c.a), (2, &there, &here, &self.c.b)] {
            let data = pattern(round, LEN);
            from.write(0, &data);
            at.post_send(&wr::rdma(SEND_OP_RDMA_WRITE, round, to, 0), &[from.sge(0, LEN)]).unwrap();
            assert_status(&at.send_completion(), WC_SUCCESS);
            assert_same(&to.read(0, LEN), &data, "written");
        }
        here.destroy().unwrap();
        there.destroy().unwrap();
    }

    /// Both queue pairs are in RTS.
    #[track_caller]
    pub fn assert_alive(&self) {
        assert_eq!((self.c.a.state(), self.c.b.state()), (QP_STATE_RTS, QP_STATE_RTS));
    }

    /// Both queue pairs are in ERR now, and both processes have been told.
    #[track_caller]
    pub fn assert_revoked(&self) {
        for (side, qp) in [(&self.a, &self.c.a), (&self.b, &self.c.b)] {
            assert_eq!(qp.state(), QP_STATE_ERR);
            side.guest.expect_event(EVENT_QP_FATAL, qp.handle());
        }
    }

    /// Ends both processes.
    #[track_caller]
    pub fn close(self) {
        self.a.ctx.destroy().expect("DESTROY_CONTEXT");
        self.b.ctx.destroy().expect("DESTROY_CONTEXT");
    }
}

/// Asks from `side` for a connection to queue pair `qpn` at `peer`. A refusal leaves the queue pair in INIT.
#[track_caller]
pub fn rtr(side: &Side, peer: IpAddr, qpn: u32) -> Result<(), ControlError> {
    let qp = side.qp(&Setup::default().caps_a, 64);
    let attr = ConnectAttr::default();
    qp.to_init(&attr).expect("RESET to INIT");
    let outcome = qp.to_rtr(&attr, peer, qpn);
    if outcome.is_err() {
        assert_eq!(qp.state(), QP_STATE_INIT);
    }
    qp.destroy().expect("DESTROY_QP");
    qp.send_cq().destroy().expect("DESTROY_CQ");
    qp.recv_cq().destroy().expect("DESTROY_CQ");
    outcome
}

/// Asks until a connection is made, or refused with an errno that is not `not_yet`: the peer's host needs a moment to publish
/// what has changed there.
#[track_caller]
pub fn rtr_eventually(side: &Side, peer: IpAddr, qpn: u32, not_yet: i32) -> Result<(), ControlError> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match rtr(side, peer, qpn) {
            Err(e) if e.errno() == not_yet && Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(20));
            }
            outcome => return outcome,
        }
    }
}

/// Waits until something is so.
///
/// # Panics
/// When it is not in time.
#[track_caller]
pub fn wait_until(what: &str, patience: Duration, mut so: impl FnMut() -> bool) {
    let deadline = Instant::now() + patience;
    while !so() {
        assert!(Instant::now() < deadline, "not within {patience:?}: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}
