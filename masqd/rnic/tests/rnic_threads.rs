//! A running RNIC with several engines: vNICs are spread, work together across threads, and move while they do.

mod common;

use std::sync::Arc;
use std::time::{Duration, Instant};

use common::*;
use masq_driver::*;
use masq_rnic::{Rnic, RnicConfig};
use vrdma_abi::ring::*;

/// Long enough for the slowest machine; nothing waits for it when all is well.
const PATIENCE: Duration = Duration::from_secs(60);

fn start(engines: u16) -> Net {
    let events = Arc::new(Events::default());
    let config = RnicConfig { engines, ..RnicConfig::default() };
    let rnic = Rnic::start(config, events.clone()).unwrap();
    Net::running(rnic, events)
}

fn poll(cq: &mut TestCq) -> Cqe {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(cqe) = cq.ring.poll() {
            cq.ring.publish();
            return cqe;
        }
        assert!(Instant::now() < end, "no completion came");
        std::thread::yield_now();
    }
}

struct End {
    guest: Guest,
    cq: TestCq,
    qp: TestQp,
    mr: Mr,
    /// Kicks of its doorbell queues; an event descriptor rings for every slot.
    kicks: Vec<std::os::fd::OwnedFd>,
}

const MR: u64 = 1 << 20;

impl End {
    fn new(net: &mut Net, id: u32, address: &str) -> Self {
        let mut guest = Guest::attach(net, 0, id, 100, address, 8 << 20);
        let kicks = (0..SLOTS as u16)
            .map(|slot| {
                let (kick, ours) = event_pair();
                let page = Gpa(guest.alloc(1));
                let role = QueueRole::Doorbell { slot };
                let (index, size, call) = (6 + slot, 16, None);
                let queue = Virtqueue {
                    index,
                    role,
                    size,
                    desc: page,
                    avail: page,
                    used: page,
                    base: 0,
                    event_idx: false,
                    kick: Some(kick),
                    call,
                };
                net.execute(0, Command::AttachQueue { vnic: guest.id, queue }).unwrap();
                ours
            })
            .collect();
        let cq = guest.cq(net, 128);
        let qp = guest.qp(net, &cq, &cq);
        let mr = guest.mr(net, MR, all_access());
        End { guest, cq, qp, mr, kicks }
    }

    fn post(&mut self, request: &vrdma_rings::SendRequest, sges: &[Sge]) {
        if self.guest.post(&mut self.qp, request, sges) {
            rustix::io::write(&self.kicks[usize::from(self.qp.slot)], &1u64.to_ne_bytes()).unwrap();
        }
    }
}

fn rnic(net: &Net) -> &Rnic {
    net.running.as_ref().unwrap()
}

#[test]
fn vnics_are_spread_and_replies_of_all_engines_are_one() {
    let mut net = start(3);
    let address = fresh_address();
    let guests: Vec<Guest> =
        (1..7).map(|id| Guest::attach(&mut net, 0, id, 100, &address, 1 << 20)).collect();
    let mut engines: Vec<usize> = guests.iter().map(|g| rnic(&net).engine_of(g.id).unwrap()).collect();
    engines.sort_unstable();
    assert_eq!(engines, [0, 0, 1, 1, 2, 2]);
    let Ok(Reply::Objects(mut all)) = net.execute(0, Command::List) else { panic!("no list") };
    all.sort_unstable_by_key(|o| o.vnic);
    assert_eq!(all.iter().map(|o| o.vnic.0).collect::<Vec<_>>(), [1, 2, 3, 4, 5, 6]);
    let again = Command::AttachVnic {
        vnic: guests[4].id,
        vni: masq_types::Vni::new(7).unwrap(),
        epoch: 1,
        addresses: vec![guests[0].address],
    };
    assert!(matches!(net.execute(0, again), Err(DriverError::Exists(_))));
    let id = guests[2].id;
    guests.into_iter().for_each(|g| g.detach(&mut net));
    assert_eq!(rnic(&net).engine_of(id), None);
    let gone = net.execute(0, Command::VnicCounters { vnic: id });
    assert!(matches!(gone, Err(DriverError::UnknownObject(_))));
}

/// Writes, reads and atomics between two guests, one of which moves all the time, and regions that come and go meanwhile.
#[test]
fn guests_work_together_while_they_move() {
    let mut net = start(2);
    let (mut a, b) = (End::new(&mut net, 1, &fresh_address()), End::new(&mut net, 2, &fresh_address()));
    connect(&mut net, (&a.guest, &a.qp), (&b.guest, &b.qp), &Options::default());
    assert_ne!(rnic(&net).engine_of(a.guest.id), rnic(&net).engine_of(b.guest.id));
    let mut sum = 0;
    b.guest.write(b.mr.gpa, &0u64.to_ne_bytes());
    for round in 0..400u64 {
        let len = [8u32, 3000, 300_000][round as usize % 3];
        a.guest.write(a.mr.gpa, &pattern(len as usize, round as u8));
        a.post(&to(&b.mr, 64, request(SEND_OP_RDMA_WRITE, 1)), &[sge(&a.mr, 0, len)]);
        a.post(&to(&b.mr, 64, request(SEND_OP_RDMA_READ, 2)), &[sge(&a.mr, 400_000, len)]);
        let operands = vrdma_rings::Operands::Atomic(AtomicSegment { compare_add: round, swap: 0 });
        let add = vrdma_rings::SendRequest { operands, ..request(SEND_OP_FETCH_ADD, 3) };
        a.post(&to(&b.mr, 0, add), &[sge(&a.mr, 800_000, 8)]);
        let guest = if round % 2 == 0 { &a.guest } else { &b.guest };
        let to = (round / 2 % 2) as usize;
        rnic(&net).relocate(guest.id, to).unwrap();
        // Commands that other engines must not hold up, and that wait for them.
        let spare = a.guest.mr_at(&mut net, a.mr.gpa, 4096, all_access(), PD);
        net.execute(0, Command::DestroyMr { vnic: a.guest.id, mr: spare.handle }).unwrap();
        for wr_id in 1..4 {
            let c = poll(&mut a.cq);
            assert_eq!((c.wr_id, c.status), (wr_id, WC_SUCCESS), "round {round}");
            a.qp.sq.complete(c.consumer);
        }
        assert_eq!(a.guest.read(a.mr.gpa + 400_000, len as usize), pattern(len as usize, round as u8));
        assert_eq!(a.guest.read_u64(a.mr.gpa + 800_000), sum, "round {round}");
        sum += round;
    }
    assert_eq!(b.guest.read_u64(b.mr.gpa), sum);
}

/// A guest that goes in the middle of all this takes nobody with it.
#[test]
fn a_guest_goes_in_the_middle() {
    for round in 0..20 {
        let mut net = start(2);
        let (mut a, b) = (End::new(&mut net, 1, &fresh_address()), End::new(&mut net, 2, &fresh_address()));
        let options = Options { timeout: 10, retry_cnt: 1, ..Options::default() };
        connect(&mut net, (&a.guest, &a.qp), (&b.guest, &b.qp), &options);
        for wr_id in 0..16 {
            a.post(&to(&b.mr, 0, request(SEND_OP_RDMA_WRITE, wr_id)), &[sge(&a.mr, 0, 1 << 20)]);
        }
        if round % 2 == 0 {
            rnic(&net).relocate(b.guest.id, 0).unwrap();
        }
        b.guest.detach(&mut net);
        for wr_id in 0..16 {
            let c = poll(&mut a.cq);
            assert_eq!(c.wr_id, wr_id);
        }
        a.guest.detach(&mut net);
    }
}
