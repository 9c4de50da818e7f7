//! Keys and requests of kernels that processes must not have.

use guest_sim::ControlError;
use guest_sim::suite::{Pair, assert_status};
use guest_sim::verbs::{ACCESS_ALL, Pd, wr};
use std::sync::Arc;
use vrdma_abi::control::*;
use vrdma_abi::ring::*;
use vrdma_rings::{Operands, SendRequest};

use crate::Test;
use crate::kernel::{Kernels, at};
use crate::windows::run;

pub const TESTS: &[Test] = &[
    ("processes_register_nothing_by_work_requests", no_registration),
    ("processes_have_no_region_of_all_memory", no_all_memory),
    ("keys_of_kernels_are_nothing_to_processes", foreign_keys),
    ("registrations_that_make_no_sense", impossible),
];

const IOVA: u64 = 0x4000_0000;

fn errno<T>(result: Result<T, ControlError>) -> i32 {
    result.err().expect("refused").errno()
}

#[track_caller]
fn refused_to(pd: &Arc<Pd>) {
    for errno in [errno(pd.alloc_fast_reg(4)), errno(pd.all_memory(ACCESS_ALL))] {
        assert!(
            [libc::EPERM, libc::EACCES, libc::EINVAL, libc::EOPNOTSUPP].contains(&errno),
            "errno {errno}"
        );
    }
}

fn no_registration(p: &Pair) {
    refused_to(&p.b.pd);
    let k = Kernels::open(p);
    let region = k.b.pd.alloc_fast_reg(1).unwrap();
    let memory = p.b.guest.ram.alloc_scattered(1).unwrap();
    let c = p.connect();
    let register = wr::register(1, region.key, region.map(&memory, IOVA, ACCESS_ALL));
    assert_status(&run(&c.b, register), WC_LOC_QP_OP_ERR);
    assert_eq!(c.b.state(), QP_STATE_ERR);
    let here = k.a.buffer(64);
    let c = k.connect();
    c.a.post_send(&at(SEND_OP_RDMA_READ, IOVA, region.key), &[here.sge(0, 8)]).unwrap();
    assert_status(&c.a.send_completion(), WC_REM_ACCESS_ERR);
    k.close();
}

fn no_all_memory(p: &Pair) {
    refused_to(&p.a.pd);
    // Nor has a process a domain of the kernel's.
    let k = Kernels::open(p);
    let cq = p.a.ctx.create_cq(64, 0).unwrap();
    assert_eq!(errno(k.a.pd.create_qp(&cq, &cq, &Default::default())), libc::EINVAL);
    k.close();
}

/// By whatever queue pair of a process they are used, locally or by its peer.
fn foreign_keys(p: &Pair) {
    let k = Kernels::open(p);
    let [of_a, of_b] = [&k.a, &k.b].map(|side| side.pd.all_memory(ACCESS_ALL).expect("CREATE_MR"));
    let secret = p.b.guest.ram.alloc(1);
    secret.write(0, b"a secret");
    let (here, there) = (p.a.buffer(64), p.b.buffer(64));
    for opcode in [SEND_OP_RDMA_READ, SEND_OP_RDMA_WRITE] {
        let c = p.connect();
        c.a.post_send(&at(opcode, secret.gpa(0), of_b.rkey), &[here.sge(0, 8)]).unwrap();
        assert_status(&c.a.send_completion(), WC_REM_ACCESS_ERR);
        let c = p.connect();
        c.a.post_send(&wr::rdma(opcode, 1, &there, 0), &[of_a.sge(0, 8)]).unwrap();
        assert_status(&c.a.send_completion(), WC_LOC_PROT_ERR);
    }
    let c = p.connect();
    c.b.post_recv(1, &[of_b.sge(secret.gpa(0), 8)]).unwrap();
    c.a.post_send(&wr::request(SEND_OP_SEND, 1), &[here.sge(0, 8)]).unwrap();
    assert_status(&c.b.recv_completion(), WC_LOC_PROT_ERR);
    assert_eq!((secret.read(0, 8), here.read(0, 8)), (b"a secret".to_vec(), vec![0; 8]));
    k.close();
}

fn impossible(p: &Pair) {
    let k = Kernels::open(p);
    for pages in [0, vrdma_abi::config::FAST_REG_MAX_PAGES + 1] {
        assert_eq!(errno(k.b.pd.alloc_fast_reg(pages)), libc::EINVAL, "{pages} pages");
    }
    let region = k.b.pd.alloc_fast_reg(4).unwrap();
    let plain = k.b.buffer(4096);
    let four = k.b.guest.ram.alloc_scattered(4).unwrap();
    let five = k.b.guest.ram.alloc_scattered(5).unwrap();
    let good = wr::register(1, region.key, region.map(&four, IOVA, ACCESS_ALL));
    let spoil = |change: &dyn Fn(&mut RegSegment)| {
        let Operands::Register(mut segment) = good.operands else { unreachable!("a registration") };
        change(&mut segment);
        SendRequest { operands: Operands::Register(segment), ..good }
    };
    for (what, request) in [
        ("more bytes than pages", spoil(&|s| s.length = 5 * 4096)),
        ("a length beyond all", spoil(&|s| s.length = u64::MAX)),
        ("pages of 2 KiB", spoil(&|s| s.page_shift = 11)),
        ("pages of 2^64", spoil(&|s| s.page_shift = 64)),
        ("an unknown right", spoil(&|s| s.access = 1 << 12)),
        ("a list outside of memory", spoil(&|s| s.list = 1 << 50)),
        ("a list across a page", spoil(&|s| s.list += 4096 - 8)),
        ("a plain region's key", SendRequest { rkey: plain.rkey, ..good }),
        ("nobody's key", SendRequest { rkey: !region.key, ..good }),
    ] {
        let c = k.connect();
        let cqe = run(&c.b, request);
        assert_ne!(cqe.status, WC_SUCCESS, "{what}");
        assert_eq!(c.b.state(), QP_STATE_ERR, "{what}");
    }
    let c = k.connect();
    let too_many = wr::register(1, region.key, region.map(&five, IOVA, ACCESS_ALL));
    assert_ne!(run(&c.b, too_many).status, WC_SUCCESS, "more pages than it was made for");
    // All that has left it as it was.
    let c = k.connect();
    region.map(&four, IOVA, ACCESS_ALL);
    assert_status(&run(&c.b, good), WC_SUCCESS);
    // It is registered now, and must be invalidated first.
    assert_ne!(run(&c.b, good).status, WC_SUCCESS, "twice");
    k.close();
}
