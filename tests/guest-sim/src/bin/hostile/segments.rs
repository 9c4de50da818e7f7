//! The parts of work requests that depend on the type of the queue pair or on the operation, and shared receive queues, full of
//! nonsense.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use guest_sim::Cluster;
use guest_sim::suite::{DatagramEnd, Rng, Setup, Side, World};
use guest_sim::verbs::{ACCESS_ALL, GSI_QKEY, Qp, QpCaps, wr};
use masq_types::Gid;
use vrdma_abi::control::*;
use vrdma_abi::ring::*;
use zerocopy::IntoBytes;

use crate::rings::{Canary, number};
use crate::{ATTACKERS, Test};

pub const TESTS: &[Test] = &[
    ("datagrams_of_random_fields", datagrams),
    ("datagrams_that_change_while_they_are_read", changing_datagrams),
    ("bindings_and_registrations_of_random_fields", keys),
    ("xrc_requests_of_random_fields", xrc),
    ("shared_receive_queues_of_random_bytes", shared_receives),
    ("a_guest_that_looks_for_nobody", looks_for_nobody),
];

/// Bytes between entries of all send queues here.
const STRIDE: usize = 256;

fn caps(qp_type: u8) -> QpCaps {
    QpCaps { send_sge: 8, inline_bytes: 128, ..QpCaps::of(qp_type) }
}

/// Writes an entry at `index` that consists of `parts`, whatever they are, then makes the RNIC look at it.
fn post(qp: &Qp, index: u32, parts: &[&[u8]]) {
    let mut entry = parts.concat();
    entry.resize(STRIDE, 0);
    qp.sq_memory().write(STRIDE * (1 + index as usize), &entry);
    qp.sq_memory().write(0, &(index + 1).to_le_bytes());
    qp.ring_doorbell();
}

fn header(rng: &mut Rng, opcodes: &[u8], keys: &[u64], places: &[u64]) -> SendHeader {
    SendHeader {
        opcode: if rng.below(10) == 0 { rng.next_u64() as u8 } else { rng.pick(opcodes) },
        flags: rng.pick(&[0, 1, 1, 2, 4, 8, 9, 15, 0xff]),
        num_sge: rng.pick(&[0, 1, 1, 1, 2, 8, 9, 255]),
        reserved: u8::from(rng.below(30) == 0),
        imm_or_inv: number(rng, keys) as u32,
        wr_id: rng.next_u64(),
        remote_addr: number(rng, places),
        rkey: number(rng, keys) as u32,
        inline_bytes: number(rng, &[0, 8, 128, 129]) as u32,
    }
}

fn sges(rng: &mut Rng, keys: &[u64], places: &[u64]) -> Vec<u8> {
    let sge = |rng: &mut Rng| Sge {
        addr: number(rng, places),
        length: number(rng, &[0, 8, 100, 4096, 8192]) as u32,
        lkey: number(rng, keys) as u32,
    };
    (0..3).flat_map(|_| sge(rng).as_bytes().to_vec()).collect()
}

/// A segment that names somebody, by whatever address, number and key.
fn datagram_segment(rng: &mut Rng, gids: &[Gid], qpns: &[u32]) -> DatagramSegment {
    let mut dgid = rng.pick(gids).0;
    if rng.below(8) == 0 {
        dgid[rng.below(16) as usize] ^= 1 << rng.below(8);
    }
    DatagramSegment {
        dgid,
        dest_qpn: if rng.below(8) == 0 { rng.next_u64() as u32 } else { rng.pick(qpns) },
        qkey: rng.pick(&[0x1111_1111, 0x1111_1111, GSI_QKEY, QKEY_OF_QP, 0, u32::MAX]),
        flow_label: rng.pick(&[0, 1, 0xf_ffff, u32::MAX]),
        sgid_index: rng.pick(&[0, 0, 0, 1, 15, 16, 255]),
        hop_limit: rng.next_u64() as u8,
        traffic_class: rng.next_u64() as u8,
        sl: rng.next_u64() as u8,
    }
}

/// Whom a hostile guest may know of: itself, its peers, others, the hosts, groups, nobody.
fn all_gids() -> Vec<Gid> {
    let texts =
        ["192.168.0.1", "192.168.0.2", "192.168.0.3", "192.168.0.4", "192.168.0.77", "0.0.0.0", "224.0.0.1"];
    let texts = texts.into_iter().chain(["::", "::1", "fe80::1", "ff02::1", "fe80::5054:ff:fe00:1"]);
    let addresses = texts.map(|text| text.parse::<IpAddr>().expect("an address"));
    addresses.chain([1, 2].map(|host| Cluster::underlay(host).into())).map(Gid::from).collect()
}

/// From a process and from a kernel's QP1. Another tenant's queue pairs, whose numbers are among those that are tried, hear nothing.
fn datagrams(world: &mut World) {
    let mut rng = Rng::new(41);
    let gids = all_gids();
    let victims = ["red-1", "red-3"].map(|vnic| Side::open(world, vnic));
    let at_victims = victims.each_ref().map(|side| DatagramEnd::open(side, 16));
    for round in 0..60 {
        let vnic = ATTACKERS[round % 2];
        let peer = Side::open(world, "blue-1");
        let at_peer = DatagramEnd::open(&peer, 64);
        let own = if round % 3 == 0 { Side::kernel(world, vnic) } else { Side::open(world, vnic) };
        let canary = Canary::new(&own);
        let qp_type = if round % 3 == 0 { QP_TYPE_GSI } else { QP_TYPE_UD };
        let here = own.buffer(8192);
        let mut qpns = vec![0, 1, 2, 0xff_ffff, at_peer.qp.qpn];
        qpns.extend(at_victims.each_ref().map(|end| end.qp.qpn));
        let (keys, places) = ([u64::from(here.lkey)], [here.addr, here.addr + 8100]);
        let qp = own.qp(&caps(qp_type), 64);
        qp.activate(&Default::default()).unwrap();
        for k in 0..20 {
            let head = header(&mut rng, &[SEND_OP_SEND, SEND_OP_SEND, SEND_OP_SEND_IMM], &keys, &places);
            let segment = datagram_segment(&mut rng, &gids, &qpns);
            post(&qp, k, &[head.as_bytes(), segment.as_bytes(), &sges(&mut rng, &keys, &places)]);
            // What fails puts the queue in error, where the rest is flushed.
            let _ = qp.to_state(QP_STATE_RTS);
        }
        std::thread::sleep(Duration::from_millis(2));
        canary.check();
        drop(at_peer);
        own.ctx.destroy().unwrap();
        peer.ctx.destroy().unwrap();
    }
    for end in &at_victims {
        assert!(
            end.receive_within(Duration::ZERO).is_none(),
            "another tenant's queue pair has heard something"
        );
    }
    drop(at_victims);
    for side in victims {
        side.ctx.destroy().unwrap();
    }
}

/// A thread changes addresses, numbers and lengths all the time, between right and wrong.
fn changing_datagrams(world: &mut World) {
    let own = Side::open(world, ATTACKERS[0]);
    let canary = Canary::new(&own);
    let here = own.buffer(8192);
    let qp = own.qp(&caps(QP_TYPE_UD), 256);
    qp.activate(&Default::default()).unwrap();
    let gids = all_gids();
    let stop = AtomicBool::new(false);
    std::thread::scope(|s| {
        s.spawn(|| {
            let mut rng = Rng::new(42);
            while !stop.load(Ordering::Relaxed) {
                let entry = STRIDE * (1 + rng.below(64) as usize);
                qp.sq_memory().write(entry + 32, &rng.pick(&gids).0);
                qp.sq_memory().write(entry + rng.below(100) as usize, &[rng.next_u64() as u8]);
            }
        });
        let mut rng = Rng::new(43);
        for k in 0..2000u32 {
            let head = SendHeader { opcode: SEND_OP_SEND, flags: 1, num_sge: 1, ..SendHeader::ZERO };
            let segment = datagram_segment(&mut rng, &gids, &[1, qp.qpn]);
            qp.sq_memory().write(
                STRIDE * (1 + k as usize % 64),
                &[head.as_bytes(), segment.as_bytes(), here.sge(0, 100).as_bytes()].concat(),
            );
            qp.sq_memory().write(0, &(k + 1).to_le_bytes());
            qp.ring_doorbell();
            while qp.send_cq().poll().is_some() {}
            if k % 16 == 0 {
                let _ = qp.to_state(QP_STATE_RTS);
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    canary.check();
    own.ctx.destroy().unwrap();
}

const ABOUT_KEYS: &[u8] =
    &[SEND_OP_BIND_MW, SEND_OP_LOCAL_INV, SEND_OP_REG_MR, SEND_OP_SEND_INV, SEND_OP_RDMA_WRITE];

/// Windows and registrations by a process and by a kernel, at keys and addresses of all kinds.
fn keys(world: &mut World) {
    let mut rng = Rng::new(44);
    for round in 0..80 {
        let vnic = ATTACKERS[round % 2];
        let kernel = round % 3 == 0;
        let own = if kernel { Side::kernel(world, vnic) } else { Side::open(world, vnic) };
        let canary = Canary::new(&own);
        let here = own.pd.buffer_with(8192, ACCESS_ALL | ACCESS_MW_BIND).unwrap();
        let windows = [MW_TYPE_1, MW_TYPE_2].map(|mw_type| own.pd.alloc_mw(mw_type).unwrap());
        let other = own.ctx.alloc_pd().unwrap();
        let foreign = other.buffer_with(8192, ACCESS_ALL | ACCESS_MW_BIND).unwrap();
        let mut keys = vec![here.lkey, foreign.rkey, windows[0].rkey, windows[1].rkey];
        let region = kernel.then(|| own.pd.alloc_fast_reg(8).unwrap());
        keys.extend(region.iter().map(|r| r.key));
        let keys: Vec<u64> = keys.into_iter().flat_map(|key| [key, key + 1]).map(u64::from).collect();
        let places = [here.addr, foreign.addr, here.addr + 8100, 0];
        let pages = here.memory().gpas();
        for attempt in 0..4 {
            let qp = own.qp(&caps(QP_TYPE_RC), 256);
            qp.connect(&Default::default(), own.address, qp.qpn).unwrap();
            for k in 0..12 {
                let head = header(&mut rng, ABOUT_KEYS, &keys, &places);
                let tail = if head.opcode == SEND_OP_REG_MR {
                    let segment = RegSegment {
                        iova: number(&mut rng, &places),
                        length: number(&mut rng, &[0, 1, 4096, 8 * 4096]),
                        access: rng.pick(&[0, 1, 15, 31, 63, u32::MAX]),
                        page_shift: rng.pick(&[12, 12, 12, 0, 11, 21, 63, 64, u32::MAX]),
                        list: number(&mut rng, &[pages[0], pages[1], 0, 1 << 32, 1 << 50]),
                    };
                    segment.as_bytes().to_vec()
                } else if head.opcode == SEND_OP_BIND_MW {
                    let segment = BindSegment {
                        mr_lkey: number(&mut rng, &keys) as u32,
                        access: rng.pick(&[0, 2, 4, 8, 14, 32, 46, u32::MAX]),
                        addr: number(&mut rng, &places),
                        length: number(&mut rng, &[0, 1, 64, 8192]),
                        reserved: 0,
                    };
                    segment.as_bytes().to_vec()
                } else {
                    sges(&mut rng, &keys, &places)
                };
                post(&qp, k, &[head.as_bytes(), &tail]);
            }
            std::thread::sleep(Duration::from_millis(1 + attempt % 2));
            qp.destroy().unwrap();
        }
        canary.check();
        own.ctx.destroy().unwrap();
    }
}

/// Numbers of queues that exist, existed, or never did, from another guest of the tenant.
fn xrc(world: &mut World) {
    let mut rng = Rng::new(45);
    for round in 0..30 {
        let (own, peer) = (Side::open(world, ATTACKERS[round % 2]), Side::open(world, "blue-1"));
        let canary = Canary::new(&peer);
        let kernel = peer.guest.open_kernel().unwrap();
        let xrcd = peer.guest.open_xrcd().unwrap();
        let target = Qp::create_xrc_target(&kernel, &xrcd).unwrap();
        let cq = peer.ctx.create_cq(64, 0).unwrap();
        let srq = peer.pd.create_xrc_srq(16, 1, &xrcd, &cq).unwrap();
        let (here, there) = (own.buffer(8192), peer.buffer(8192));
        for k in 0..8 {
            srq.post_recv(k, &[there.sge(0, 64)]).unwrap();
        }
        let qp = own.qp(&caps(QP_TYPE_XRC_INI), 64);
        qp.connect(&Default::default(), peer.address, target.qpn).unwrap();
        target.connect(&Default::default(), own.address, qp.qpn).unwrap();
        let keys = [here.lkey, there.rkey].map(u64::from);
        let places = [here.addr, there.addr, there.addr + 8100];
        for k in 0..16 {
            let head = header(&mut rng, &[0, 1, 2, 3, 4, 5, 6], &keys, &places);
            let srqn = number(&mut rng, &[u64::from(srq.srqn), u64::from(srq.srqn), 0, 1]) as u32;
            let segment = XrcSegment { srqn, reserved: [u32::from(rng.below(20) == 0), 0, 0] };
            post(&qp, k, &[head.as_bytes(), segment.as_bytes(), &sges(&mut rng, &keys, &places)]);
        }
        std::thread::sleep(Duration::from_millis(2));
        canary.check();
        target.destroy().unwrap();
        own.ctx.destroy().unwrap();
        peer.ctx.destroy().unwrap();
        xrcd.destroy().unwrap();
        kernel.destroy().unwrap();
    }
}

/// Entries, producer and what the RNIC alone may store, while peers send into the queue.
fn shared_receives(world: &mut World) {
    let mut rng = Rng::new(46);
    for round in 0..40 {
        let (own, peer) = (Side::open(world, ATTACKERS[round % 2]), Side::open(world, "blue-1"));
        let canary = Canary::new(&own);
        let srq = own.pd.create_srq(64, 8).unwrap();
        let setup = Setup { caps_b: QpCaps::on(&srq), ..Setup::default() };
        let ends: Vec<(Arc<Qp>, Arc<Qp>)> = (0..3)
            .map(|_| {
                let (from, to) = (peer.qp(&setup.caps_a, 64), own.qp(&setup.caps_b, 64));
                from.connect(&setup.a, own.address, to.qpn).unwrap();
                to.connect(&setup.b, peer.address, from.qpn).unwrap();
                (from, to)
            })
            .collect();
        let there = peer.buffer(4096);
        let ring = srq.memory();
        ring.write(64, &rng.bytes(ring.len() - 64));
        if round % 2 == 0 {
            // Entries that are nearly right.
            let here = own.buffer(8192);
            for k in 0..64 {
                let head = RecvHeader { wr_id: k, num_sge: rng.pick(&[0, 1, 8, 9, u32::MAX]), reserved: 0 };
                let sge = Sge { length: rng.next_u64() as u32, ..here.sge(rng.below(9000) as usize, 0) };
                ring.write(256 * (1 + k as usize), &[head.as_bytes(), sge.as_bytes()].concat());
            }
        }
        for k in 0..6 {
            let producer = rng.pick(&[1, 2, 64, 65, 1 << 20, u32::MAX]);
            let taken = rng.pick(&[0, 1, 64, u32::MAX]);
            ring.write(0, &[producer.to_le_bytes(), taken.to_le_bytes()].concat());
            for (from, _) in &ends {
                let _ = from.post_send(&wr::request(SEND_OP_SEND, k), &[there.sge(0, 100)]);
            }
            let _ = srq.modify(rng.below(64) as u32);
        }
        std::thread::sleep(Duration::from_millis(2));
        canary.check();
        own.ctx.destroy().unwrap();
        peer.ctx.destroy().unwrap();
    }
}

/// Datagrams to thousands of addresses that nobody has, for half a second; others find their peers meanwhile.
fn looks_for_nobody(world: &mut World) {
    let own = Side::open(world, ATTACKERS[0]);
    let here = own.buffer(4096);
    let qp = own.qp(&QpCaps { send_wr: 256, ..QpCaps::of(QP_TYPE_UD) }, 1024);
    qp.activate(&Default::default()).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|s| {
        s.spawn(|| {
            let mut rng = Rng::new(47);
            let mut sent = 0u64;
            while !stop.load(Ordering::Relaxed) {
                let [_, _, _, _, _, _, _, d] = rng.next_u64().to_be_bytes();
                let nobody = IpAddr::from([192, 168, rng.below(256) as u8, d.max(100)]);
                let to = guest_sim::verbs::To::new(nobody, 0x1234, 1);
                if qp.post_send(&wr::datagram(SEND_OP_SEND, sent, &to), &[here.sge(0, 1000)]).is_ok() {
                    sent += 1;
                }
                while let Some(cqe) = qp.send_cq().poll() {
                    qp.retire(&cqe);
                }
            }
        });
        let found = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for round in 0..5u64 {
                // A guest that has just started knows nobody.
                world.stop_guest(ATTACKERS[1]);
                let (fresh, peer) = (Side::open(world, ATTACKERS[1]), Side::open(world, "blue-1"));
                let (from, to) = (DatagramEnd::open(&fresh, 1), DatagramEnd::open(&peer, 8));
                from.send(&to.name(), &round.to_le_bytes());
                to.receive().assert_is(&round.to_le_bytes(), (fresh.address, from.qp.qpn), peer.address);
                drop((from, to));
                fresh.ctx.destroy().unwrap();
                peer.ctx.destroy().unwrap();
                std::thread::sleep(Duration::from_millis(50));
            }
        }));
        stop.store(true, Ordering::Relaxed);
        if let Err(panic) = found {
            std::panic::resume_unwind(panic);
        }
    });
    own.ctx.destroy().unwrap();
}
