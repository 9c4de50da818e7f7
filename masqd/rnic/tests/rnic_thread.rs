//! The running RNIC: a thread that sleeps when there is nothing to do, doorbells that wake it, completion events.

mod common;

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::*;
use masq_driver::*;
use masq_rnic::{Rnic, RnicConfig};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use vrdma_abi::event::CompEvent;
use vrdma_abi::ring::*;
use vrdma_rings::Arm;
use zerocopy::FromBytes;

const QUEUE: u16 = 8;
const VECTOR: u16 = 1;
const SLOT_QUEUES: u16 = 6;

/// The driver's side of a completion-event queue: a descriptor for each buffer, all posted in order.
struct EventRing {
    memory: u64,
    buffers: u64,
    posted: u16,
    seen: u16,
    call: OwnedFd,
    kick: OwnedFd,
}

impl EventRing {
    const AVAIL: u64 = 0x400;
    const USED: u64 = 0x800;

    fn attach(net: &mut Net, guest: &mut Guest, event_idx: bool) -> Self {
        let memory = guest.alloc(2);
        let buffers = memory + PAGE;
        for i in 0..u64::from(QUEUE) {
            let mut desc = [0; 16];
            desc[..8].copy_from_slice(&(buffers + i * 16).to_le_bytes());
            desc[8..12].copy_from_slice(&16u32.to_le_bytes());
            desc[12..14].copy_from_slice(&2u16.to_le_bytes());
            guest.write(memory + i * 16, &desc);
        }
        let ((call, our_call), (kick, our_kick)) = (event_pair(), event_pair());
        let queue = Virtqueue {
            index: 2 + VECTOR,
            role: QueueRole::Completion { vector: VECTOR },
            size: QUEUE,
            desc: Gpa(memory),
            avail: Gpa(memory + Self::AVAIL),
            used: Gpa(memory + Self::USED),
            base: 0,
            event_idx,
            kick: Some(kick),
            call: Some(call),
        };
        net.execute(0, Command::AttachQueue { vnic: guest.id, queue }).unwrap();
        EventRing { memory, buffers, posted: 0, seen: 0, call: our_call, kick: our_kick }
    }

    fn post(&mut self, guest: &Guest) {
        let slot = u64::from(self.posted % QUEUE);
        guest.write(self.memory + Self::AVAIL + 4 + slot * 2, &(self.posted % QUEUE).to_le_bytes());
        self.posted += 1;
        guest.write(self.memory + Self::AVAIL + 2, &self.posted.to_le_bytes());
        rustix::io::write(&self.kick, &1u64.to_ne_bytes()).unwrap();
    }

    /// Asks for an interrupt at the next event (with EVENT_IDX).
    fn want_interrupt(&self, guest: &Guest) {
        let used_event = Self::AVAIL + 4 + 2 * u64::from(QUEUE);
        guest.write(self.memory + used_event, &self.seen.to_le_bytes());
    }

    fn next(&mut self, guest: &Guest) -> Option<CompEvent> {
        let used = u16::from_le_bytes(guest.read(self.memory + Self::USED + 2, 2).try_into().unwrap());
        if used == self.seen {
            return None;
        }
        let at = self.memory + Self::USED + 4 + u64::from(self.seen % QUEUE) * 8;
        let id = u32::from_le_bytes(guest.read(at, 4).try_into().unwrap());
        assert_eq!(u32::from_le_bytes(guest.read(at + 4, 4).try_into().unwrap()), 16);
        self.seen += 1;
        Some(CompEvent::read_from_bytes(&guest.read(self.buffers + u64::from(id) * 16, 16)).unwrap())
    }

    /// Waits for an interrupt.
    fn interrupted(&self, within: Duration) -> bool {
        let mut fds = [PollFd::new(&self.call, PollFlags::IN)];
        let timeout = Timespec { tv_sec: within.as_secs() as i64, tv_nsec: within.subsec_nanos().into() };
        let ready = poll(&mut fds, Some(&timeout)).unwrap() > 0;
        if ready {
            rustix::io::read(&self.call, &mut [0; 8]).unwrap();
        }
        ready
    }
}

fn kick_slots(net: &mut Net, guest: &Guest) -> Vec<OwnedFd> {
    (0..SLOTS as u16)
        .map(|slot| {
            let (theirs, ours) = event_pair();
            let queue = Virtqueue {
                index: SLOT_QUEUES + slot,
                role: QueueRole::Doorbell { slot },
                size: 4,
                desc: Gpa(BASE),
                avail: Gpa(BASE),
                used: Gpa(BASE),
                base: 3,
                event_idx: false,
                kick: Some(theirs),
                call: None,
            };
            net.execute(0, Command::AttachQueue { vnic: guest.id, queue }).unwrap();
            ours
        })
        .collect()
}

struct One {
    net: Net,
    guest: Guest,
    cq: TestCq,
    qp: TestQp,
    mr: Mr,
    kicks: Vec<OwnedFd>,
}

/// A guest with a queue pair that talks to itself, on a running RNIC.
fn one() -> One {
    let events = Arc::new(Events::default());
    let rnic = Rnic::start(RnicConfig::default(), events.clone()).unwrap();
    let mut net = Net::running(rnic, events);
    let mut guest = Guest::attach(&mut net, 0, 1, 100, &fresh_address(), 4 << 20);
    let kicks = kick_slots(&mut net, &guest);
    let cq = guest.cq(&mut net, 64);
    let qp = guest.qp(&mut net, &cq, &cq);
    let mr = guest.mr(&mut net, 1 << 20, all_access());
    let options = Options::default();
    guest.to_rtr(&mut net, &qp, &qp, &options);
    guest.to_rts(&mut net, &qp, &options);
    One { net, guest, cq, qp, mr, kicks }
}

impl One {
    fn write(&mut self, wr_id: u64) {
        let write = to(&self.mr, 4096, request(SEND_OP_RDMA_WRITE, wr_id));
        if self.guest.post(&mut self.qp, &write, &[sge(&self.mr, 0, 64)]) {
            rustix::io::write(&self.kicks[usize::from(self.qp.slot)], &1u64.to_ne_bytes()).unwrap();
        }
    }

    fn poll(&mut self) -> Cqe {
        let end = Instant::now() + Duration::from_secs(20);
        loop {
            if let Some(c) = self.cq.ring.poll() {
                self.cq.ring.publish();
                self.qp.sq.complete(c.consumer);
                return c;
            }
            assert!(Instant::now() < end, "no completion came");
            std::thread::yield_now();
        }
    }

    fn need_kick(&self) -> bool {
        self.guest.need_kick(self.qp.slot)
    }

    fn wait_for_sleep(&self) {
        let end = Instant::now() + Duration::from_secs(20);
        while !self.need_kick() {
            assert!(Instant::now() < end, "the engine does not sleep");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

#[test]
fn doorbells_wake_a_sleeping_engine() {
    let mut t = one();
    for i in 0..200 {
        if i % 10 == 0 {
            t.wait_for_sleep();
        }
        t.write(i);
        let c = t.poll();
        assert_eq!((c.wr_id, c.status), (i, WC_SUCCESS));
        assert_ne!(c.timestamp_ns, 0);
    }
}

#[test]
fn completion_events() {
    for event_idx in [false, true] {
        let mut t = one();
        let mut ring = EventRing::attach(&mut t.net, &mut t.guest, event_idx);
        let within = Duration::from_secs(20);
        for i in 0..3u64 * u64::from(QUEUE) {
            ring.post(&t.guest);
            ring.want_interrupt(&t.guest);
            t.cq.ring.arm(Arm::Next);
            t.write(i);
            assert!(ring.interrupted(within), "event {i}");
            assert_eq!(ring.next(&t.guest), Some(CompEvent { cq: t.cq.handle.0, reserved: 0, epoch: EPOCH }));
            assert_eq!(t.poll().wr_id, i);
        }
        // Not armed: no event.
        ring.post(&t.guest);
        t.write(99);
        assert_eq!(t.poll().wr_id, 99);
        assert_eq!(ring.next(&t.guest), None);
        let detach = Command::DetachQueue { vnic: t.guest.id, index: 2 + VECTOR };
        let base = 3 * QUEUE;
        assert_eq!(t.net.execute(0, detach).unwrap(), Reply::QueueBase { base });
    }
}

#[test]
fn events_wait_for_buffers_and_for_their_queue() {
    let mut t = one();
    t.cq.ring.arm(Arm::Next);
    t.write(1);
    t.poll();
    let mut ring = EventRing::attach(&mut t.net, &mut t.guest, true);
    assert_eq!(ring.next(&t.guest), None);
    // A second arming, while the first event waits, adds none.
    t.cq.ring.arm(Arm::Next);
    t.write(2);
    t.poll();
    ring.want_interrupt(&t.guest);
    ring.post(&t.guest);
    ring.post(&t.guest);
    assert!(ring.interrupted(Duration::from_secs(20)));
    assert!(ring.next(&t.guest).is_some());
    t.wait_for_sleep();
    assert_eq!(ring.next(&t.guest), None);
}

#[test]
fn doorbell_queues_keep_their_base() {
    let mut t = one();
    let detach = Command::DetachQueue { vnic: t.guest.id, index: SLOT_QUEUES };
    assert_eq!(t.net.execute(0, detach).unwrap(), Reply::QueueBase { base: 3 });
}
