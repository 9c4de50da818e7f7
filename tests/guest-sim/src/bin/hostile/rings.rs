//! Rings and doorbells full of nonsense.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use guest_sim::suite::{Rng, Setup, Side, World};
use guest_sim::verbs::{Mr, Qp, QpCaps};
use vrdma_abi::doorbell::DoorbellPage;
use vrdma_abi::ring::*;
use zerocopy::IntoBytes;

use crate::{ATTACKERS, Test};

pub const TESTS: &[Test] = &[
    ("send_rings_of_random_bytes", random_rings),
    ("send_requests_of_random_fields", random_requests),
    ("producer_indexes_that_jump", jumping_producers),
    ("receive_rings_of_random_bytes", random_receives),
    ("completion_queues_with_a_wild_consumer", wild_consumers),
    ("entries_that_change_while_they_are_read", changing_entries),
    ("doorbell_areas_of_random_bytes", random_doorbells),
];

/// A hostile guest's connection to a guest of its own tenant, on the same host or on the other.
struct Attack {
    own: Side,
    peer: Side,
    qp: Arc<Qp>,
    here: Mr,
    there: Mr,
}

impl Attack {
    fn new(world: &World, vnic: &str) -> Self {
        let (own, peer) = (Side::open(world, vnic), Side::open(world, "blue-1"));
        let caps = QpCaps { send_sge: 30, recv_sge: 30, inline_bytes: 256, ..QpCaps::default() };
        let setup = Setup::caps(caps);
        let (qp, other) = (own.qp(&setup.caps_a, 256), peer.qp(&setup.caps_b, 256));
        qp.connect(&setup.a, peer.address, other.qpn).unwrap();
        other.connect(&setup.b, own.address, qp.qpn).unwrap();
        let (here, there) = (own.buffer(8192), peer.buffer(8192));
        for k in 0..64 {
            other.post_recv(k, &[there.sge(0, 8192)]).unwrap();
        }
        Attack { own, peer, qp, here, there }
    }

    /// Makes the RNIC look at the ring, whatever it holds.
    fn publish(&self, producer: u32) {
        self.qp.sq_memory().write(0, &producer.to_le_bytes());
        self.qp.ring_doorbell();
    }

    fn end(self) {
        self.own.ctx.destroy().unwrap();
        self.peer.ctx.destroy().unwrap();
    }
}

/// Memory of the attacking guest that is registered nowhere: nothing may ever write there.
pub struct Canary(guest_sim::Mapping);

impl Canary {
    pub fn new(side: &Side) -> Self {
        let memory = side.guest.ram.alloc(64);
        memory.fill(0, memory.len(), 0xc5);
        Canary(memory)
    }

    pub fn check(&self) {
        assert!(self.0.read(0, self.0.len()).iter().all(|&b| b == 0xc5), "unregistered memory was written");
    }
}

fn random_rings(world: &mut World) {
    let mut rng = Rng::new(21);
    for round in 0..40 {
        let attack = Attack::new(world, ATTACKERS[round % 2]);
        let canary = Canary::new(&attack.own);
        let ring = attack.qp.sq_memory();
        let bytes = rng.bytes(ring.len());
        ring.write(64, &bytes[64..]);
        attack.publish(1 + rng.below(64) as u32);
        std::thread::sleep(Duration::from_millis(2));
        canary.check();
        attack.end();
    }
}

/// Values that are interesting in a field, or none at all.
pub fn number(rng: &mut Rng, own: &[u64]) -> u64 {
    match rng.below(4) {
        0 => rng.next_u64(),
        1 => {
            rng.pick(&[0, 1, 7, 4095, 4096, 8191, 8192, u64::from(u32::MAX), u64::MAX, u64::MAX - 7, 1 << 63])
        }
        _ => rng.pick(own),
    }
}

fn random_requests(world: &mut World) {
    let mut rng = Rng::new(22);
    for round in 0..60 {
        let attack = Attack::new(world, ATTACKERS[round % 2]);
        let canary = Canary::new(&attack.own);
        let keys = [attack.here.lkey, attack.here.rkey, attack.there.rkey].map(u64::from);
        let places = [attack.here.addr, attack.there.addr, canary.0.as_ptr() as u64, attack.here.addr + 8100];
        let stride = 512;
        let count = 1 + rng.below(20) as u32;
        for k in 0..count {
            let head = SendHeader {
                opcode: rng.pick(&[0, 1, 2, 3, 4, 5, 6, 6, 5, 4, 0x80, 0x82]),
                flags: rng.pick(&[0, 1, 2, 4, 8, 9, 15, 0xff]),
                num_sge: rng.pick(&[0, 1, 2, 3, 29, 30, 31, 255]),
                reserved: 0,
                imm_or_inv: rng.next_u64() as u32,
                wr_id: u64::from(k),
                remote_addr: number(&mut rng, &places),
                rkey: number(&mut rng, &keys) as u32,
                inline_bytes: number(&mut rng, &[0, 8, 256, 257]) as u32,
            };
            let mut entry = head.as_bytes().to_vec();
            while entry.len() + Sge::SIZE <= stride {
                let sge = Sge {
                    addr: number(&mut rng, &places),
                    length: number(&mut rng, &[0, 8, 100, 8192]) as u32,
                    lkey: number(&mut rng, &keys) as u32,
                };
                entry.extend_from_slice(sge.as_bytes());
            }
            attack.qp.sq_memory().write(stride * (1 + k as usize), &entry);
        }
        attack.publish(count);
        std::thread::sleep(Duration::from_millis(2));
        canary.check();
        attack.end();
    }
}

fn jumping_producers(world: &mut World) {
    let mut rng = Rng::new(23);
    for round in 0..40 {
        let attack = Attack::new(world, ATTACKERS[round % 2]);
        for producer in [rng.next_u64() as u32, 65, u32::MAX, 0x8000_0000, 0, 1 << 20] {
            attack.publish(producer.rotate_left(round as u32));
        }
        std::thread::sleep(Duration::from_millis(1));
        attack.end();
    }
}

fn random_receives(world: &mut World) {
    let mut rng = Rng::new(24);
    for round in 0..30 {
        let attack = Attack::new(world, ATTACKERS[round % 2]);
        let canary = Canary::new(&attack.own);
        let ring = attack.qp.rq_memory();
        ring.write(64, &rng.bytes(ring.len() - 64));
        ring.write(0, &rng.pick(&[1, 2, 64, 65, u32::MAX]).to_le_bytes());
        // The peer sends, so that the ring is read.
        let other = attack.peer.qp(&Default::default(), 64);
        let loop_back = attack.own.qp(&Default::default(), 64);
        other.connect(&Default::default(), attack.own.address, loop_back.qpn).unwrap();
        loop_back.connect(&Default::default(), attack.peer.address, other.qpn).unwrap();
        let spoilt = loop_back.rq_memory();
        spoilt.write(64, &rng.bytes(spoilt.len() - 64));
        spoilt.write(0, &rng.pick(&[1, 2, 64, 65, u32::MAX]).to_le_bytes());
        for k in 0..4 {
            let send = guest_sim::verbs::wr::request(SEND_OP_SEND, k);
            other.post_send(&send, &[attack.there.sge(0, 100)]).unwrap();
        }
        std::thread::sleep(Duration::from_millis(2));
        canary.check();
        attack.end();
    }
}

fn wild_consumers(world: &mut World) {
    let mut rng = Rng::new(25);
    for round in 0..30 {
        let attack = Attack::new(world, ATTACKERS[round % 2]);
        let cq = attack.qp.send_cq().memory();
        for k in 0..40u64 {
            let consumer = rng.pick(&[0, 1, 255, 256, 257, 0x8000_0000, u32::MAX]);
            cq.write(0, &consumer.to_le_bytes());
            cq.write(4, &rng.pick(&[0, 1, 2, 3, u32::MAX]).to_le_bytes());
            let write = guest_sim::verbs::wr::rdma(SEND_OP_RDMA_WRITE, k, &attack.there, 0);
            attack.qp.post_send(&write, &[attack.here.sge(0, 8)]).unwrap();
            if rng.below(4) == 0 {
                cq.write(64, &rng.bytes(cq.len() - 64));
            }
        }
        std::thread::sleep(Duration::from_millis(1));
        attack.end();
    }
}

/// A thread changes the entries' fields all the time, between right and wrong.
fn changing_entries(world: &mut World) {
    let attack = Attack::new(world, ATTACKERS[0]);
    let canary = Canary::new(&attack.own);
    let stop = AtomicBool::new(false);
    std::thread::scope(|s| {
        s.spawn(|| {
            let mut rng = Rng::new(26);
            let ring = attack.qp.sq_memory();
            while !stop.load(Ordering::Relaxed) {
                let entry = 512 * (1 + rng.below(64) as usize);
                let byte = rng.pick(&[0, 1, 2, 4, 8, 30, 255]);
                ring.write(entry + rng.below(80) as usize, &[byte]);
            }
        });
        for _ in 0..150 {
            let qp = attack.own.qp(&QpCaps { send_sge: 30, inline_bytes: 256, ..QpCaps::default() }, 64);
            qp.connect(&Default::default(), attack.own.address, qp.qpn).unwrap();
            for k in 0..8 {
                let write = guest_sim::verbs::wr::rdma(SEND_OP_RDMA_WRITE, k, &attack.here, 0);
                qp.post_send(&write, &[attack.here.sge(0, 4000)]).unwrap();
                attack.publish(k as u32);
            }
            qp.destroy().unwrap();
            canary.check();
        }
        stop.store(true, Ordering::Relaxed);
    });
    attack.end();
}

/// Every queue pair is dirty all the time, those that do not exist as well.
fn random_doorbells(world: &mut World) {
    let mut rng = Rng::new(27);
    for vnic in ATTACKERS {
        let attack = Attack::new(world, vnic);
        let area = attack.own.ctx.doorbell_area();
        let slots = attack.own.guest.config.num_db_slots;
        for round in 0..300 {
            let bytes = if round % 3 == 0 { vec![0xff; area.len()] } else { rng.bytes(area.len()) };
            area.write(0, &bytes);
            attack.own.guest.kick(rng.below(u64::from(slots)) as u16);
            // The last summary byte belongs to no group.
            area.write(DoorbellPage::SIZE - 1, &[0xff]);
            std::thread::sleep(Duration::from_micros(300));
        }
        // The status page is the RNIC's; a guest that writes to it harms itself at most.
        attack.own.guest.status_page().write(0, &rng.bytes(4096));
        attack.end();
    }
}
