//! Many guests of one engine: who has been idle for long is found when it posts.

mod common;

use common::*;
use masq_rnic::RnicConfig;
use masq_rnic::transport::Time;
use vrdma_abi::ring::*;

/// More than a busy engine looks at in each turn when all are idle.
const GUESTS: usize = 60;
/// Turns after which a guest counts as idle.
const LONG: usize = 150;

/// A guest with a queue pair that is connected with itself.
struct Loner {
    guest: Guest,
    qp: TestQp,
    cq: TestCq,
    mr: Mr,
}

impl Loner {
    fn new(net: &mut Net, id: u32, address: &str) -> Self {
        let mut guest = Guest::attach(net, 0, id, 100, address, 2 << 20);
        let cq = guest.cq(net, 64);
        let qp = guest.qp(net, &cq, &cq);
        let mr = guest.mr(net, 1 << 20, all_access());
        guest.to_rtr(net, &qp, &qp, &Options::default());
        guest.to_rts(net, &qp, &Options::default());
        Self { guest, qp, cq, mr }
    }

    fn write(&mut self, len: u32) {
        let write = to(&self.mr, 0, request(SEND_OP_RDMA_WRITE, 1));
        self.guest.post(&mut self.qp, &write, &[sge(&self.mr, 0, len)]);
    }

    fn is_done(&mut self) -> bool {
        let Some(cqe) = self.cq.ring.poll() else { return false };
        self.cq.ring.publish();
        self.qp.sq.complete(cqe.consumer);
        assert_eq!(cqe.status, WC_SUCCESS);
        true
    }
}

/// Guests that have been idle for long, and one turn of their engine.
fn idle_guests() -> (Net, Vec<Loner>) {
    let mut net = Net::new(&[RnicConfig::default()]);
    let address = fresh_address();
    let guests = (0..GUESTS).map(|n| Loner::new(&mut net, n as u32 + 1, &address)).collect();
    for _ in 0..LONG {
        turn(&mut net);
    }
    (net, guests)
}

fn turn(net: &mut Net) -> bool {
    net.now += 1000;
    net.engines[0].turn(Time::from_nanos(net.now))
}

#[test]
fn an_engine_with_nothing_to_do_finds_all_at_once() {
    let (mut net, mut guests) = idle_guests();
    for guest in &mut guests {
        guest.write(8);
        assert!(turn(&mut net));
        assert!(guest.is_done());
    }
    assert!(!turn(&mut net));
}

#[test]
fn a_busy_engine_finds_them_soon() {
    let (mut net, mut guests) = idle_guests();
    for n in 1..GUESTS {
        (0..4).for_each(|_| guests[0].write(1 << 20));
        assert!(turn(&mut net));
        guests[n].write(8);
        let mut turns = 0;
        while !guests[n].is_done() {
            turns += 1;
            assert!(turn(&mut net) && turns <= 8, "guest {n} is not found");
        }
        let done = (0..4).filter(|_| guests[0].is_done()).count();
        assert!(done < 4, "the engine was busy all the time");
        while turn(&mut net) {}
        assert_eq!((done..4).filter(|_| guests[0].is_done()).count(), 4 - done);
    }
}

#[test]
fn an_engine_that_sleeps_wants_kicks_of_all() {
    let (mut net, mut guests) = idle_guests();
    for n in 0..GUESTS {
        guests[n].write(8);
        assert!(!net.engines[0].prepare_sleep(), "guest {n} has posted");
        assert!(turn(&mut net) && guests[n].is_done());
        while turn(&mut net) {}
        assert!(net.engines[0].prepare_sleep());
        assert!(guests.iter().all(|g| g.guest.need_kick(g.qp.slot)));
        guests[n].write(8);
        assert!(turn(&mut net) && guests[n].is_done(), "the first turn after a sleep");
        assert!(guests.iter().all(|g| !g.guest.need_kick(g.qp.slot)));
    }
}
