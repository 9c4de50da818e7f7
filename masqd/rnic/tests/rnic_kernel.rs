//! What a guest's kernel has besides: all of its memory as one region, and regions that work requests register.

mod common;

use common::two::*;
use common::*;
use masq_driver::*;
use vrdma_abi::config::FAST_REG_MAX_PAGES;
use vrdma_abi::control::{ACCESS_LOCAL_WRITE, ACCESS_REMOTE_READ, ACCESS_REMOTE_WRITE};
use vrdma_abi::ring::*;
use vrdma_rings::{Operands, SendRequest};

const RIGHTS: u32 = ACCESS_LOCAL_WRITE | ACCESS_REMOTE_READ | ACCESS_REMOTE_WRITE;

struct Rc {
    two: Two,
    a_qp: TestQp,
    /// The kernel's.
    b_qp: TestQp,
    /// A page of B for lists of pages.
    list: u64,
}

fn rc(way: Way) -> Rc {
    let mut two = Two::new(way);
    let list = two.b.alloc(1);
    let (a_qp, b_qp) = pair(&mut two, true);
    Rc { two, a_qp, b_qp, list }
}

fn pair(two: &mut Two, kernel: bool) -> (TestQp, TestQp) {
    let Two { net, a, b, a_cq, b_cq, .. } = two;
    let (a_qp, b_qp) = (a.qp(net, a_cq, a_cq), b.qp_with(net, b_cq, b_cq, |init| init.kernel = kernel));
    connect(net, (a, &a_qp), (b, &b_qp), &Options::default());
    (a_qp, b_qp)
}

fn invalidate(opcode: u8, key: u32) -> SendRequest {
    SendRequest { imm_or_inv: key, ..request(opcode, 60) }
}

impl Rc {
    fn b(&mut self, command: Command) -> Result<Reply, DriverError> {
        self.two.net.execute(self.two.b.engine, command)
    }

    /// A region of B of this kind.
    fn region(&mut self, pd: PdHandle, kind: MrKind) -> u32 {
        let mr = MrAttr { mr: MrHandle(self.two.b.handle()), pd, access: all_access(), kind };
        let create = Command::CreateMr { vnic: self.two.b.id, mr };
        match self.b(create) {
            Ok(Reply::MrCreated { lkey, .. }) => lkey.0,
            other => panic!("{other:?}"),
        }
    }

    /// Registers `key` as `length` bytes at `iova`, in these pages.
    fn register(&self, key: u32, iova: u64, length: u64, pages: &[u64]) -> SendRequest {
        let bytes: Vec<u8> = pages.iter().flat_map(|p| p.to_ne_bytes()).collect();
        self.two.b.write(self.list, &bytes);
        let segment = RegSegment { iova, length, access: RIGHTS, page_shift: 12, list: self.list };
        SendRequest { rkey: key, operands: Operands::Register(segment), ..request(SEND_OP_REG_MR, 50) }
    }

    fn b_does(&mut self, r: &SendRequest) -> Cqe {
        self.two.b.post(&mut self.b_qp, r, &[]);
        wait(&mut self.two.net, &mut self.two.b_cq)
    }

    fn a_writes(&mut self, key: u32, addr: u64, len: u32) -> u8 {
        let r = SendRequest { rkey: key, remote_addr: addr, ..request(SEND_OP_RDMA_WRITE, 1) };
        let data = sge(&self.two.a_mr, 0, len);
        self.two.a.post(&mut self.a_qp, &r, &[data]);
        wait(&mut self.two.net, &mut self.two.a_cq).status
    }
}

#[test]
fn regions_are_registered_and_invalidated() {
    for way in WAYS {
        let mut t = rc(way);
        let pages: Vec<u64> = (0..3).map(|_| t.two.b.alloc(2)).collect();
        let key = t.region(PD, MrKind::FastReg { max_pages: 4 });
        t.two.a.write(t.two.a_mr.gpa, &pattern(9000, 1));
        assert_eq!(key & 0xff, 0);
        let c = t.b_does(&t.register(key | 1, 0x7010, 9000, &pages));
        assert_eq!((c.wr_id, c.status, c.opcode), (50, WC_SUCCESS, WC_REG_MR));
        assert_eq!(t.a_writes(key | 1, 0x7010, 9000), WC_SUCCESS);
        let mut got = t.two.b.read(pages[0] + 0x10, 4080);
        got.extend(t.two.b.read(pages[1], 4096));
        got.extend(t.two.b.read(pages[2], 824));
        assert!(got == pattern(9000, 1));
        // Its key is a local one too.
        t.two.b.post_recv(&mut t.b_qp, 7, &[Sge { addr: 0x7010, length: 8, lkey: key | 1 }]);
        let data = sge(&t.two.a_mr, 100, 8);
        t.two.a.post(&mut t.a_qp, &request(SEND_OP_SEND, 2), &[data]);
        assert_eq!(wait(&mut t.two.net, &mut t.two.b_cq).status, WC_SUCCESS);
        assert_eq!(wait(&mut t.two.net, &mut t.two.a_cq).status, WC_SUCCESS);
        assert_eq!(t.two.b.read(pages[0] + 0x10, 8), pattern(9000, 1)[100..108]);
        // Anew, with another low byte.
        let c = t.b_does(&invalidate(SEND_OP_LOCAL_INV, key | 1));
        assert_eq!((c.status, c.opcode), (WC_SUCCESS, WC_LOCAL_INV));
        assert_eq!(t.b_does(&invalidate(SEND_OP_LOCAL_INV, key | 1)).status, WC_SUCCESS);
        assert_eq!(t.b_does(&t.register(key | 2, 0, 4096, &pages[1..2])).status, WC_SUCCESS);
        assert_eq!(t.a_writes(key | 2, 0, 8), WC_SUCCESS);
        assert_eq!(t.two.b.read(pages[1], 8), pattern(9000, 1)[..8]);
        assert_eq!(t.a_writes(key | 1, 0, 8), WC_REM_ACCESS_ERR);
    }
}

/// As nvme-rdma does: registration and the message that names the key in one go, and the peer's answer invalidates.
#[test]
fn a_chain_is_carried_out_in_order() {
    for way in WAYS {
        let mut t = rc(way);
        let page = t.two.b.alloc(1);
        let key = t.region(PD, MrKind::FastReg { max_pages: 1 });
        for round in 0..20u32 {
            let key = key | (round & 0xff);
            t.two.a.post_recv(&mut t.a_qp, 1, &[sge(&t.two.a_mr, 4096, 64)]);
            t.two.b.post_recv(&mut t.b_qp, 2, &[]);
            let register = SendRequest { flags: 0, ..t.register(key, 0, 4096, &[page]) };
            t.two.b.write(page, &pattern(64, round as u8));
            // The send's own data lies in the region that is only being registered.
            t.b_qp.sq.post(&register, &[]).unwrap();
            t.two.b.post(&mut t.b_qp, &request(SEND_OP_SEND, 3), &[Sge { addr: 0, length: 64, lkey: key }]);
            assert_eq!(wait(&mut t.two.net, &mut t.two.a_cq).byte_len, 64);
            assert_eq!(t.two.a.read(t.two.a_mr.gpa + 4096, 64), pattern(64, round as u8));
            t.two.a.write(t.two.a_mr.gpa, &pattern(64, !round as u8));
            let data = sge(&t.two.a_mr, 0, 64);
            let write =
                SendRequest { rkey: key, remote_addr: 128, flags: 0, ..request(SEND_OP_RDMA_WRITE, 4) };
            t.a_qp.sq.post(&write, &[data]).unwrap();
            t.two.a.post(&mut t.a_qp, &invalidate(SEND_OP_SEND_INV, key), &[]);
            let mut seen = [wait(&mut t.two.net, &mut t.two.b_cq), wait(&mut t.two.net, &mut t.two.b_cq)];
            seen.sort_by_key(|c| c.flags & CQE_RECV);
            assert_eq!((seen[0].wr_id, seen[0].status), (3, WC_SUCCESS));
            assert_eq!(
                (seen[1].wr_id, seen[1].flags & CQE_WITH_INV, seen[1].imm_or_inv),
                (2, CQE_WITH_INV, key)
            );
            t.b_qp.sq.complete(seen[0].consumer);
            t.b_qp.rq.complete(seen[1].consumer);
            assert_eq!(t.two.b.read(page + 128, 64), pattern(64, !round as u8));
            let sent = wait(&mut t.two.net, &mut t.two.a_cq);
            assert_eq!((sent.wr_id, sent.status), (60, WC_SUCCESS));
            t.a_qp.sq.complete(sent.consumer);
            t.a_qp.rq.complete(round + 1);
        }
    }
}

#[test]
fn what_cannot_be_registered() {
    let mut t = rc(Way::Local);
    let page = t.two.b.alloc(1);
    let key = t.region(PD, MrKind::FastReg { max_pages: 2 });
    let most = t.region(PD, MrKind::FastReg { max_pages: FAST_REG_MAX_PAGES });
    let foreign = t.region(PdHandle(9), MrKind::FastReg { max_pages: 2 });
    let plain = t.two.b_mr.key;
    let good = t.register(key, 0, 4096, &[page]);
    type Adjust = fn(&mut RegSegment);
    let with = |key, adjust: Adjust| {
        let mut r = SendRequest { rkey: key, ..good };
        if let Operands::Register(segment) = &mut r.operands {
            adjust(segment);
        }
        r
    };
    let cases = [
        // Too many pages, of a size that there is not, that wrap.
        (with(key, |s| s.length = 2 * 4096 + 1), WC_MW_BIND_ERR),
        (with(key, |s| s.iova = 1 << 63), WC_SUCCESS),
        (with(key, |s| (s.iova, s.length) = (4095, 4098)), WC_MW_BIND_ERR),
        (with(key, |s| s.page_shift = 11), WC_MW_BIND_ERR),
        (with(key, |s| s.page_shift = 64), WC_MW_BIND_ERR),
        (with(key, |s| s.page_shift = 256 + 12), WC_MW_BIND_ERR),
        (with(key, |s| (s.iova, s.length) = (u64::MAX, 2)), WC_MW_BIND_ERR),
        (with(key, |s| s.length = u64::MAX), WC_MW_BIND_ERR),
        // A list that is no memory, or leaves its page.
        (with(key, |s| s.list = 0), WC_MW_BIND_ERR),
        (with(key, |s| s.list = u64::MAX - 7), WC_MW_BIND_ERR),
        (with(key, |s| (s.list, s.length) = (s.list + 4088, 8192)), WC_MW_BIND_ERR),
        (with(most, |s| (s.list, s.length) = (s.list + 8, 512 * 4096)), WC_MW_BIND_ERR),
        (with(most, |s| s.length = 512 * 4096), WC_SUCCESS),
        // Rights that there are not.
        (with(key, |s| s.access = 1 << 19), WC_LOC_QP_OP_ERR),
        // Keys of something else.
        (with(plain, |_| ()), WC_MW_BIND_ERR),
        (with(foreign, |_| ()), WC_MW_BIND_ERR),
        (with(key ^ 0x8000_0000, |_| ()), WC_MW_BIND_ERR),
    ];
    for (i, (r, status)) in cases.iter().enumerate() {
        (t.a_qp, t.b_qp) = pair(&mut t.two, true);
        assert_eq!(t.b_does(r).status, *status, "{i}: {r:?}");
        if *status == WC_SUCCESS {
            // Not again before it is invalidated.
            assert_eq!(t.b_does(r).status, WC_MW_BIND_ERR, "{i}");
            (t.a_qp, t.b_qp) = pair(&mut t.two, true);
            assert_eq!(t.b_does(&invalidate(SEND_OP_LOCAL_INV, r.rkey)).status, WC_SUCCESS);
        }
    }
    let kind = MrKind::FastReg { max_pages: FAST_REG_MAX_PAGES + 1 };
    let mr = MrAttr { mr: MrHandle(NOBODY), pd: PD, access: all_access(), kind };
    let vnic = t.two.b.id;
    assert!(matches!(t.b(Command::CreateMr { vnic, mr }), Err(DriverError::Invalid(_))));
}

/// A page in the list that is no memory costs the access, and nobody else anything.
#[test]
fn pages_that_are_no_memory() {
    for way in WAYS {
        let mut t = rc(way);
        let key = t.region(PD, MrKind::FastReg { max_pages: 2 });
        let page = t.two.b.alloc(1);
        assert_eq!(t.b_does(&t.register(key, 0, 8192, &[page, 0])).status, WC_SUCCESS);
        assert_eq!(t.a_writes(key, 0, 8), WC_SUCCESS);
        assert_eq!(t.a_writes(key, 4096, 8), WC_REM_OP_ERR);
    }
}

#[test]
fn all_memory_is_the_kernels() {
    for way in WAYS {
        let mut t = rc(way);
        let key = t.region(PD, MrKind::AllMemory);
        let gpa = t.two.b.alloc(1);
        t.two.a.write(t.two.a_mr.gpa, &pattern(64, 7));
        assert_eq!(t.a_writes(key, gpa, 64), WC_SUCCESS);
        assert_eq!(t.two.b.read(gpa, 64), pattern(64, 7));
        // As local key, for both directions.
        t.two.b.post_recv(&mut t.b_qp, 7, &[Sge { addr: gpa + 100, length: 64, lkey: key }]);
        let data = sge(&t.two.a_mr, 0, 64);
        t.two.a.post(&mut t.a_qp, &request(SEND_OP_SEND, 2), &[data]);
        assert_eq!(wait(&mut t.two.net, &mut t.two.b_cq).status, WC_SUCCESS);
        assert_eq!(wait(&mut t.two.net, &mut t.two.a_cq).status, WC_SUCCESS);
        assert_eq!(t.two.b.read(gpa + 100, 64), pattern(64, 7));
        // Where there is no memory.
        assert_eq!(t.a_writes(key, 0x10, 8), WC_REM_OP_ERR);
        (t.a_qp, t.b_qp) = pair(&mut t.two, true);
        assert_eq!(t.a_writes(key, u64::MAX - 7, 8), WC_REM_ACCESS_ERR);
    }
}

/// Queue pairs of programs have none of it.
#[test]
fn programs_cannot_use_the_kernels() {
    for way in WAYS {
        let mut t = rc(way);
        let all = t.region(PD, MrKind::AllMemory);
        let fast = t.region(PD, MrKind::FastReg { max_pages: 1 });
        let gpa = t.two.b.alloc(1);
        (t.a_qp, t.b_qp) = pair(&mut t.two, false);
        assert_eq!(t.a_writes(all, gpa, 8), WC_REM_ACCESS_ERR);
        (t.a_qp, t.b_qp) = pair(&mut t.two, false);
        assert_eq!(t.b_does(&t.register(fast, 0, 4096, &[gpa])).status, WC_LOC_QP_OP_ERR);
        (t.a_qp, t.b_qp) = pair(&mut t.two, false);
        t.two.b.post(&mut t.b_qp, &request(SEND_OP_SEND, 1), &[Sge { addr: gpa, length: 8, lkey: all }]);
        assert_eq!(wait(&mut t.two.net, &mut t.two.b_cq).status, WC_LOC_PROT_ERR);
    }
}

/// A queue full of requests that send nothing is carried out in parts, and to its end.
#[test]
fn many_requests_that_send_nothing() {
    for way in WAYS {
        let mut t = rc(way);
        let key = t.region(PD, MrKind::FastReg { max_pages: 1 });
        let page = t.two.b.alloc(1);
        for i in 0..32u32 {
            let register = SendRequest { flags: 0, ..t.register(key | i, 0, 4096, &[page]) };
            t.b_qp.sq.post(&register, &[]).unwrap();
            let wr_id = u64::from(i);
            let flags = SEND_SIGNALED | if i % 2 == 0 { SEND_FENCE } else { 0 };
            let inv = SendRequest { wr_id, flags, ..invalidate(SEND_OP_LOCAL_INV, key | i) };
            t.b_qp.sq.post(&inv, &[]).unwrap();
        }
        t.two.b.ring(&mut t.b_qp);
        for i in 0..32 {
            let c = wait(&mut t.two.net, &mut t.two.b_cq);
            assert_eq!((c.wr_id, c.status, c.opcode), (i, WC_SUCCESS, WC_LOCAL_INV));
        }
    }
}
