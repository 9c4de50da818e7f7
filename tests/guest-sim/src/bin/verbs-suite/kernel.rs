//! What kernels do: they register pages by work requests, and use physical addresses.

use std::sync::Arc;

use guest_sim::suite::{Conn, Pair, Setup, Side, assert_same, assert_status, pattern};
use guest_sim::verbs::{ACCESS_ALL, FastReg, Mw, Qp, QpCaps, wr};
use vrdma_abi::control::*;
use vrdma_abi::ring::*;
use vrdma_rings::SendRequest;

use crate::Test;
use crate::windows::run;

pub const TESTS: &[Test] = &[
    ("pages_are_registered_by_a_work_request", registered),
    ("a_registration_is_invalidated_by_its_owner", local_invalidate),
    ("a_registration_is_invalidated_by_a_peer", remote_invalidate),
    ("a_registration_and_its_use_in_one_burst", burst),
    ("registrations_without_end", again_and_again),
    ("all_memory_by_physical_addresses", all_memory),
];

/// Kernels of both guests, connected.
pub struct Kernels {
    pub a: Side,
    pub b: Side,
}

impl Kernels {
    #[track_caller]
    pub fn open(p: &Pair) -> Self {
        let [a, b] = [&p.a, &p.b].map(|side| Side::kernel_of(side.guest.clone(), side.address));
        Kernels { a, b }
    }

    #[track_caller]
    pub fn connect(&self) -> Conn {
        let setup = Setup::caps(QpCaps { send_wr: 128, ..QpCaps::default() });
        let c = Conn { a: self.a.qp(&setup.caps_a, 256), b: self.b.qp(&setup.caps_b, 256) };
        for (qp, peer, qpn) in [(&c.a, self.b.address, c.b.qpn), (&c.b, self.a.address, c.a.qpn)] {
            qp.connect(&setup.a, peer, qpn).expect("RESET to RTS");
        }
        c
    }

    pub fn close(self) {
        self.a.ctx.destroy().expect("DESTROY_CONTEXT");
        self.b.ctx.destroy().expect("DESTROY_CONTEXT");
    }
}

/// Any address, not that of a page.
const IOVA: u64 = 0x7_1000_0000;

/// A request of the peer's at an address by a key.
pub fn at(opcode: u8, addr: u64, key: u32) -> SendRequest {
    SendRequest { remote_addr: addr, rkey: key, ..wr::request(opcode, 1) }
}

#[track_caller]
fn register(qp: &Arc<Qp>, region: &FastReg, key: u32, memory: &guest_sim::Mapping, access: u32) {
    assert_status(&run(qp, wr::register(41, key, region.map(memory, IOVA, access))), WC_SUCCESS);
}

#[track_caller]
fn expect(c: &Conn, request: SendRequest, sge: Sge, status: u8) {
    c.a.post_send(&request, &[sge]).expect("room");
    assert_status(&c.a.send_completion(), status);
}

fn registered(p: &Pair) {
    let k = Kernels::open(p);
    let here = k.a.buffer(1 << 16);
    let data = pattern(71, 5 * 4096);
    here.write(0, &data);
    let region = k.b.pd.alloc_fast_reg(16).unwrap();
    let memory = k.b.guest.ram.alloc_scattered(5).unwrap();
    let c = k.connect();
    register(&c.b, &region, region.key, &memory, ACCESS_ALL);
    expect(&c, at(SEND_OP_RDMA_WRITE, IOVA, region.key), here.sge(0, 5 * 4096), WC_SUCCESS);
    assert_same(&memory.read(0, 5 * 4096), &data, "written");
    here.fill(0, 1 << 16, 0);
    expect(&c, at(SEND_OP_RDMA_READ, IOVA + 4000, region.key), here.sge(0, 200), WC_SUCCESS);
    assert_same(&here.read(0, 200), &data[4000..4200], "read");
    // It serves local requests as well.
    let sge = Sge { addr: IOVA + 100, length: 50, lkey: region.key };
    c.b.post_send(&wr::rdma(SEND_OP_RDMA_WRITE, 1, &here, 1000), &[sge]).unwrap();
    assert_status(&c.b.send_completion(), WC_SUCCESS);
    assert_same(&here.read(1000, 50), &data[100..150], "written back");
    // Its end is that of the registration, not that of what it could hold.
    expect(&c, at(SEND_OP_RDMA_WRITE, IOVA + 5 * 4096 - 7, region.key), here.sge(0, 8), WC_REM_ACCESS_ERR);
    let c = k.connect();
    expect(&c, at(SEND_OP_RDMA_WRITE, IOVA - 1, region.key), here.sge(0, 8), WC_REM_ACCESS_ERR);
    k.close();
}

fn local_invalidate(p: &Pair) {
    let k = Kernels::open(p);
    let here = k.a.buffer(64);
    let region = k.b.pd.alloc_fast_reg(4).unwrap();
    let memory = k.b.guest.ram.alloc_scattered(4).unwrap();
    let c = k.connect();
    expect(&k.connect(), at(SEND_OP_RDMA_READ, IOVA, region.key), here.sge(0, 8), WC_REM_ACCESS_ERR);
    let mut key = region.key;
    for _ in 0..4 {
        register(&c.b, &region, key, &memory, ACCESS_ALL);
        expect(&c, at(SEND_OP_RDMA_WRITE, IOVA, key), here.sge(0, 8), WC_SUCCESS);
        assert_status(&run(&c.b, wr::local_inv(2, key)), WC_SUCCESS);
        expect(&k.connect(), at(SEND_OP_RDMA_WRITE, IOVA, key), here.sge(0, 8), WC_REM_ACCESS_ERR);
        key = Mw::next_key(key);
    }
    register(&c.b, &region, key, &memory, ACCESS_REMOTE_READ);
    expect(&k.connect(), at(SEND_OP_RDMA_READ, IOVA, key), here.sge(0, 8), WC_SUCCESS);
    expect(&k.connect(), at(SEND_OP_RDMA_WRITE, IOVA, key), here.sge(0, 8), WC_REM_ACCESS_ERR);
    expect(&k.connect(), at(SEND_OP_RDMA_READ, IOVA, region.key), here.sge(0, 8), WC_REM_ACCESS_ERR);
    region.destroy().unwrap();
    expect(&k.connect(), at(SEND_OP_RDMA_READ, IOVA, key), here.sge(0, 8), WC_REM_ACCESS_ERR);
    k.close();
}

fn remote_invalidate(p: &Pair) {
    let k = Kernels::open(p);
    let here = k.a.buffer(64);
    let region = k.b.pd.alloc_fast_reg(1).unwrap();
    let memory = k.b.guest.ram.alloc_scattered(1).unwrap();
    let c = k.connect();
    register(&c.b, &region, region.key, &memory, ACCESS_ALL);
    c.b.post_recv(3, &[]).unwrap();
    assert_status(&run(&c.a, wr::send_inv(1, region.key)), WC_SUCCESS);
    let cqe = c.b.recv_completion();
    assert_status(&cqe, WC_SUCCESS);
    assert_eq!((cqe.flags & CQE_WITH_INV, cqe.imm_or_inv), (CQE_WITH_INV, region.key));
    expect(&c, at(SEND_OP_RDMA_READ, IOVA, region.key), here.sge(0, 8), WC_REM_ACCESS_ERR);
    k.close();
}

/// As storage and file systems do it: register, tell the peer, and invalidate when it has answered, all posted without waiting.
fn burst(p: &Pair) {
    let k = Kernels::open(p);
    let c = k.connect();
    let here = k.a.buffer(1 << 17);
    let memory = k.b.guest.ram.alloc_scattered(8).unwrap();
    let region = k.b.pd.alloc_fast_reg(8).unwrap();
    let mut key = region.key;
    for round in 0..20u64 {
        let data = pattern(round + 1, 8 * 4096);
        memory.write(0, &data);
        let sge = Sge { addr: IOVA, length: 8 * 4096, lkey: key };
        c.b.post_sends(&[
            (wr::register(1, key, region.map(&memory, IOVA, ACCESS_ALL)), vec![]),
            (wr::rdma(SEND_OP_RDMA_WRITE, 2, &here, 0), vec![sge]),
            (SendRequest { flags: SEND_SIGNALED | SEND_FENCE, ..wr::local_inv(3, key) }, vec![]),
        ])
        .unwrap();
        for wr_id in 1..4 {
            let cqe = c.b.send_completion();
            assert_status(&cqe, WC_SUCCESS);
            assert_eq!(cqe.wr_id, wr_id);
        }
        assert_same(&here.read(0, 8 * 4096), &data, "written");
        key = Mw::next_key(key);
    }
    k.close();
}

/// More than there are keys for one region.
fn again_and_again(p: &Pair) {
    let k = Kernels::open(p);
    let c = k.connect();
    let here = k.a.buffer(64);
    let memories = [0; 2].map(|_| k.b.guest.ram.alloc_scattered(2).unwrap());
    let region = k.b.pd.alloc_fast_reg(2).unwrap();
    let mut key = region.key;
    for round in 0..600u64 {
        let memory = &memories[round as usize % 2];
        register(&c.b, &region, key, memory, ACCESS_ALL);
        here.write_u64(0, round);
        expect(&c, at(SEND_OP_RDMA_WRITE, IOVA + 4090, key), here.sge(0, 8), WC_SUCCESS);
        assert_eq!(memory.read(4090, 8), round.to_ne_bytes());
        assert_status(&run(&c.b, wr::local_inv(2, key)), WC_SUCCESS);
        key = Mw::next_key(key);
    }
    k.close();
}

fn all_memory(p: &Pair) {
    let k = Kernels::open(p);
    let c = k.connect();
    let [keys_a, keys_b] = [&k.a, &k.b].map(|side| side.pd.all_memory(ACCESS_ALL).expect("CREATE_MR"));
    // Neighbours in physical addresses.
    let from = k.a.guest.ram.alloc(4);
    let to = k.b.guest.ram.alloc(4);
    let data = pattern(72, 3 * 4096);
    from.write(50, &data);
    to.fill(0, 4 * 4096, 0);
    let write = at(SEND_OP_RDMA_WRITE, to.gpa(70), keys_b.rkey);
    expect(&c, write, keys_a.sge(from.gpa(50), 3 * 4096), WC_SUCCESS);
    assert_same(&to.read(70, 3 * 4096), &data, "written");
    c.b.post_recv(1, &[keys_b.sge(to.gpa(0), 64)]).unwrap();
    c.a.post_send(&wr::request(SEND_OP_SEND, 2), &[keys_a.sge(from.gpa(50), 64)]).unwrap();
    assert_status(&c.b.recv_completion(), WC_SUCCESS);
    assert_status(&c.a.send_completion(), WC_SUCCESS);
    assert_same(&to.read(0, 64), &data[..64], "received");
    for beyond in [1u64 << 50, u64::MAX - 7] {
        let c = k.connect();
        let read = at(SEND_OP_RDMA_READ, beyond, keys_b.rkey);
        c.a.post_send(&read, &[keys_a.sge(from.gpa(0), 8)]).expect("room");
        let status = c.a.send_completion().status;
        assert!([WC_REM_ACCESS_ERR, WC_REM_OP_ERR].contains(&status), "status {status} beyond all memory");
    }
    k.close();
}
