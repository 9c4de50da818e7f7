//! Memory windows and remote invalidation (IBTA Vol 1 §10.6.7), between guests of one RNIC and of two.

mod common;

use common::two::*;
use common::*;
use masq_driver::*;
use vrdma_abi::control::{
    ACCESS_LOCAL_WRITE, ACCESS_REMOTE_ATOMIC, ACCESS_REMOTE_READ, ACCESS_REMOTE_WRITE, ACCESS_ZERO_BASED,
};
use vrdma_abi::ring::*;
use vrdma_rings::{Operands, SendRequest};

const RIGHTS: u32 = ACCESS_REMOTE_WRITE | ACCESS_REMOTE_READ | ACCESS_REMOTE_ATOMIC;

struct Rc {
    two: Two,
    a_qp: TestQp,
    b_qp: TestQp,
}

fn rc(way: Way) -> Rc {
    let mut two = Two::new(way);
    let (a_qp, b_qp) = pair(&mut two);
    Rc { two, a_qp, b_qp }
}

fn pair(two: &mut Two) -> (TestQp, TestQp) {
    let Two { net, a, b, a_cq, b_cq, .. } = two;
    let (a_qp, b_qp) = (a.qp(net, a_cq, a_cq), b.qp(net, b_cq, b_cq));
    connect(net, (a, &a_qp), (b, &b_qp), &Options::default());
    (a_qp, b_qp)
}

/// Binds `key` to `len` bytes at `offset` of a region.
fn bind(key: u32, mr: &Mr, offset: u64, length: u64, access: u32) -> SendRequest {
    let addr = mr.gpa + offset;
    let segment = BindSegment { mr_lkey: mr.key, access, addr, length, reserved: 0 };
    SendRequest { rkey: key, operands: Operands::Bind(segment), ..request(SEND_OP_BIND_MW, 50) }
}

fn invalidate(opcode: u8, key: u32) -> SendRequest {
    SendRequest { imm_or_inv: key, ..request(opcode, 60) }
}

impl Rc {
    fn window(&mut self, mw_type: MwType) -> (MwHandle, u32) {
        let mw = MwHandle(self.two.b.handle());
        let create = Command::CreateMw { vnic: self.two.b.id, mw, pd: PD, mw_type };
        match self.two.net.execute(self.two.b.engine, create) {
            Ok(Reply::MwCreated { rkey }) => (mw, rkey.0),
            other => panic!("{other:?}"),
        }
    }

    /// Carries out a request of B.
    fn b_does(&mut self, r: &SendRequest) -> Cqe {
        self.two.b.post(&mut self.b_qp, r, &[]);
        wait(&mut self.two.net, &mut self.two.b_cq)
    }

    fn binds(&mut self, r: &SendRequest) {
        let c = self.b_does(r);
        assert_eq!((c.wr_id, c.status, c.opcode), (50, WC_SUCCESS, WC_BIND_MW));
    }

    /// A writes, reads or adds at `addr` with `key`.
    fn a_does(&mut self, opcode: u8, key: u32, addr: u64) -> u8 {
        let operands = if opcode == SEND_OP_FETCH_ADD {
            Operands::Atomic(AtomicSegment { compare_add: 1, swap: 0 })
        } else {
            Operands::None
        };
        let r = SendRequest { rkey: key, remote_addr: addr, operands, ..request(opcode, 1) };
        let data = sge(&self.two.a_mr, 0, 8);
        self.two.a.post(&mut self.a_qp, &r, &[data]);
        wait(&mut self.two.net, &mut self.two.a_cq).status
    }

    fn gpa(&self) -> u64 {
        self.two.b_mr.gpa
    }

    fn b(&mut self, command: Command) -> Result<Reply, DriverError> {
        self.two.net.execute(self.two.b.engine, command)
    }

    fn b_failed(&mut self, c: Cqe, status: u8) {
        assert_eq!(c.status, status, "{c:?}");
        assert_ne!(c.vendor_err, 0);
        assert_eq!(self.two.b.state(&mut self.two.net, &self.b_qp), QpState::Err);
    }
}

#[test]
fn a_window_gives_what_it_was_bound_with() {
    for way in WAYS {
        for mw_type in [MwType::One, MwType::Two] {
            let mut t = rc(way);
            let (_, key) = t.window(mw_type);
            assert_eq!(t.two.b_mr.key & 0xff, 0);
            t.two.a.write(t.two.a_mr.gpa, &pattern(8, 5));
            let (b_mr, gpa) = (t.two.b_mr, t.gpa());
            t.binds(&bind(key | 0x42, &b_mr, 4096, 16, RIGHTS));
            assert_eq!(t.a_does(SEND_OP_RDMA_WRITE, key | 0x42, gpa + 4104), WC_SUCCESS);
            assert_eq!(t.two.b.read(gpa + 4104, 8), pattern(8, 5));
            assert_eq!(t.a_does(SEND_OP_RDMA_READ, key | 0x42, gpa + 4096), WC_SUCCESS);
            assert_eq!(t.a_does(SEND_OP_FETCH_ADD, key | 0x42, gpa + 4096), WC_SUCCESS);
            assert_eq!(t.two.b.read_u64(gpa + 4096), 1);
        }
    }
}

#[test]
fn a_window_gives_nothing_else() {
    for way in WAYS {
        for mw_type in [MwType::One, MwType::Two] {
            // Unbound, another low byte, before it, behind it, without the right.
            for case in 0..5 {
                let mut t = rc(way);
                let (_, key) = t.window(mw_type);
                let (mr, gpa) = (t.two.b_mr, t.gpa());
                let rights = if case == 4 { ACCESS_REMOTE_READ } else { RIGHTS };
                if case > 0 {
                    t.binds(&bind(key | 1, &mr, 4096, 16, rights));
                }
                let (key, at) =
                    [(key, 4096), (key, 4096), (key | 1, 4088), (key | 1, 4105), (key | 1, 4096)][case];
                assert_eq!(
                    t.a_does(SEND_OP_RDMA_WRITE, key, gpa + at),
                    WC_REM_ACCESS_ERR,
                    "{way:?} {mw_type:?} {case}"
                );
                assert_eq!(t.two.b.read(gpa + 4088, 40), [0; 40]);
            }
        }
    }
}

#[test]
fn a_window_of_type_2_belongs_to_its_queue_pair() {
    for way in WAYS {
        for (mw_type, expected) in [(MwType::One, WC_SUCCESS), (MwType::Two, WC_REM_ACCESS_ERR)] {
            let mut t = rc(way);
            let (_, key) = t.window(mw_type);
            let mr = t.two.b_mr;
            t.binds(&bind(key | 1, &mr, 0, 64, RIGHTS));
            (t.a_qp, t.b_qp) = pair(&mut t.two);
            assert_eq!(t.a_does(SEND_OP_RDMA_WRITE, key | 1, mr.gpa), expected, "{way:?} {mw_type:?}");
        }
    }
}

#[test]
fn addresses_of_a_window_can_begin_at_zero() {
    for way in WAYS {
        let mut t = rc(way);
        let (_, key) = t.window(MwType::Two);
        let mr = t.two.b_mr;
        t.two.a.write(t.two.a_mr.gpa, &pattern(8, 9));
        t.binds(&bind(key | 1, &mr, 4000, 200, RIGHTS | ACCESS_ZERO_BASED));
        assert_eq!(t.a_does(SEND_OP_RDMA_WRITE, key | 1, 192), WC_SUCCESS);
        assert_eq!(t.two.b.read(mr.gpa + 4192, 8), pattern(8, 9));
        assert_eq!(t.a_does(SEND_OP_RDMA_WRITE, key | 1, 193), WC_REM_ACCESS_ERR);
    }
}

#[test]
fn windows_of_type_1_are_bound_anew_and_unbound() {
    for way in WAYS {
        let mut t = rc(way);
        let (_, key) = t.window(MwType::One);
        let mr = t.two.b_mr;
        t.binds(&bind(key | 1, &mr, 0, 64, RIGHTS));
        t.binds(&bind(key | 2, &mr, 64, 64, RIGHTS));
        assert_eq!(t.a_does(SEND_OP_RDMA_WRITE, key | 2, mr.gpa + 64), WC_SUCCESS);
        t.binds(&bind(key | 3, &mr, 0, 0, RIGHTS));
        let destroy = Command::DestroyMr { vnic: t.two.b.id, mr: mr.handle };
        t.b(destroy).unwrap();
        assert_eq!(t.a_does(SEND_OP_RDMA_WRITE, key | 3, mr.gpa), WC_REM_ACCESS_ERR);
    }
}

#[test]
fn windows_of_type_2_are_invalidated_before() {
    for way in WAYS {
        let mut t = rc(way);
        let (_, key) = t.window(MwType::Two);
        let mr = t.two.b_mr;
        t.binds(&bind(key | 1, &mr, 0, 64, RIGHTS));
        let c = t.b_does(&invalidate(SEND_OP_LOCAL_INV, key | 1));
        assert_eq!((c.wr_id, c.status, c.opcode), (60, WC_SUCCESS, WC_LOCAL_INV));
        t.binds(&bind(key | 2, &mr, 64, 64, RIGHTS));
        assert_eq!(t.a_does(SEND_OP_RDMA_WRITE, key | 2, mr.gpa + 64), WC_SUCCESS);
        let c = t.b_does(&bind(key | 3, &mr, 64, 64, RIGHTS));
        t.b_failed(c, WC_MW_BIND_ERR);
    }
}

#[test]
fn a_message_invalidates() {
    for way in WAYS {
        for len in [8, 3000] {
            let mut t = rc(way);
            let (_, key) = t.window(MwType::Two);
            let mr = t.two.b_mr;
            t.binds(&bind(key | 1, &mr, 0, 64, RIGHTS));
            assert_eq!(t.a_does(SEND_OP_RDMA_WRITE, key | 1, mr.gpa), WC_SUCCESS);
            t.two.b.post_recv(&mut t.b_qp, 7, &[sge(&mr, 4096, 3000)]);
            let data = sge(&t.two.a_mr, 0, len);
            t.two.a.post(&mut t.a_qp, &invalidate(SEND_OP_SEND_INV, key | 1), &[data]);
            let c = wait(&mut t.two.net, &mut t.two.b_cq);
            assert_eq!((c.wr_id, c.status, c.byte_len), (7, WC_SUCCESS, len));
            assert_eq!((c.flags, c.imm_or_inv), (CQE_RECV | CQE_WITH_INV, key | 1));
            let c = wait(&mut t.two.net, &mut t.two.a_cq);
            assert_eq!((c.status, c.opcode), (WC_SUCCESS, WC_SEND));
            assert_eq!(t.a_does(SEND_OP_RDMA_WRITE, key | 1, mr.gpa), WC_REM_ACCESS_ERR);
        }
    }
}

#[test]
fn a_message_invalidates_nothing_but_what_may_be() {
    for way in WAYS {
        // A region, nothing, a window of type 1, another's window of type 2.
        for case in 0..4 {
            let mut t = rc(way);
            let mr = t.two.b_mr;
            let (_, one) = t.window(MwType::One);
            let (_, two) = t.window(MwType::Two);
            t.binds(&bind(one, &mr, 0, 64, RIGHTS));
            t.binds(&bind(two, &mr, 0, 64, RIGHTS));
            if case == 3 {
                (t.a_qp, t.b_qp) = pair(&mut t.two);
            }
            let key = [mr.key, 0x77, one, two][case];
            t.two.b.post_recv(&mut t.b_qp, 7, &[]);
            t.two.a.post(&mut t.a_qp, &invalidate(SEND_OP_SEND_INV, key), &[]);
            let c = wait(&mut t.two.net, &mut t.two.b_cq);
            assert_eq!(c.wr_id, 7);
            t.b_failed(c, WC_REM_INV_REQ_ERR);
            assert_eq!(wait(&mut t.two.net, &mut t.two.a_cq).status, WC_REM_ACCESS_ERR);
        }
    }
}

#[test]
fn what_cannot_be_bound() {
    let mut t = rc(Way::Local);
    let other_pd = t.two.b.mr_at(&mut t.two.net, t.two.b_mr.gpa, MR, all_access(), PdHandle(9));
    let no_windows = t.two.b.mr_at(&mut t.two.net, t.two.b_mr.gpa, MR, all_access(), PD);
    let read_only = Access { local_write: false, mw_bind: true, ..all_access() };
    let read_only = t.two.b.mr_at(&mut t.two.net, t.two.b_mr.gpa, MR, read_only, PD);
    let (_, one) = t.window(MwType::One);
    let (_, two) = t.window(MwType::Two);
    let (mw, pd, mw_type) = (MwHandle(NOBODY), PdHandle(9), MwType::One);
    let create = Command::CreateMw { vnic: t.two.b.id, mw, pd, mw_type };
    let Ok(Reply::MwCreated { rkey: foreign }) = t.b(create) else { panic!("no window") };
    let mr = t.two.b_mr;
    let mut wraps = bind(two, &mr, 0, 64, RIGHTS);
    if let Operands::Bind(segment) = &mut wraps.operands {
        (segment.addr, segment.length) = (u64::MAX - 3, 8);
    }
    let cases = [
        (bind(two, &mr, MR - 7, 8, RIGHTS), WC_MW_BIND_ERR),
        (bind(two, &mr, 0, u64::MAX, RIGHTS), WC_MW_BIND_ERR),
        (wraps, WC_MW_BIND_ERR),
        (bind(two, &mr, 0, 0, RIGHTS), WC_MW_BIND_ERR),
        (bind(two, &other_pd, 0, 8, RIGHTS), WC_MW_BIND_ERR),
        (bind(two, &no_windows, 0, 8, RIGHTS), WC_MW_BIND_ERR),
        (bind(two, &read_only, 0, 8, ACCESS_REMOTE_WRITE), WC_MW_BIND_ERR),
        (bind(two, &Mr { key: mr.key | 1, ..mr }, 0, 8, RIGHTS), WC_MW_BIND_ERR),
        (bind(two, &Mr { key: one, ..mr }, 0, 8, RIGHTS), WC_MW_BIND_ERR),
        (bind(one, &mr, 0, 8, RIGHTS | ACCESS_ZERO_BASED), WC_MW_BIND_ERR),
        (bind(mr.key, &mr, 0, 8, RIGHTS), WC_MW_BIND_ERR),
        (bind(foreign.0, &mr, 0, 8, RIGHTS), WC_MW_BIND_ERR),
        (bind(two ^ 0x8000_0000, &mr, 0, 8, RIGHTS), WC_MW_BIND_ERR),
        // Malformed: rights that a window does not have, data.
        (bind(two, &mr, 0, 8, ACCESS_LOCAL_WRITE), WC_LOC_QP_OP_ERR),
        (bind(two, &mr, 0, 8, 1 << 19), WC_LOC_QP_OP_ERR),
        (invalidate(SEND_OP_LOCAL_INV, mr.key), WC_MW_BIND_ERR),
        (invalidate(SEND_OP_LOCAL_INV, one), WC_MW_BIND_ERR),
        (invalidate(SEND_OP_LOCAL_INV, two | 1), WC_MW_BIND_ERR),
        (invalidate(SEND_OP_LOCAL_INV, foreign.0), WC_MW_BIND_ERR),
    ];
    for (i, (r, status)) in cases.iter().enumerate() {
        (t.a_qp, t.b_qp) = pair(&mut t.two);
        let c = t.b_does(r);
        assert_eq!(c.status, *status, "{i}: {r:?}");
        t.b_failed(c, *status);
    }
    // A read-only region can have windows that are read through.
    (t.a_qp, t.b_qp) = pair(&mut t.two);
    t.binds(&bind(two | 9, &read_only, 0, 8, ACCESS_REMOTE_READ));
    assert_eq!(t.a_does(SEND_OP_RDMA_READ, two | 9, mr.gpa), WC_SUCCESS);
}

#[test]
fn a_region_outlives_its_windows() {
    let mut t = rc(Way::Local);
    let mr = t.two.b_mr;
    let vnic = t.two.b.id;
    let (mw, key) = t.window(MwType::Two);
    t.binds(&bind(key, &mr, 0, 64, RIGHTS));
    let destroy = |mr| Command::DestroyMr { vnic, mr };
    let rereg = Command::ReregMr { vnic, mr: mr.handle, pd: None, access: Some(all_access()), memory: None };
    assert!(matches!(t.b(destroy(mr.handle)), Err(DriverError::Busy(_))));
    assert!(matches!(t.b(rereg), Err(DriverError::Busy(_))));
    t.b(Command::DestroyMw { vnic, mw }).unwrap();
    t.b(Command::DestroyMw { vnic, mw }).unwrap();
    assert_eq!(t.a_does(SEND_OP_RDMA_WRITE, key, mr.gpa), WC_REM_ACCESS_ERR);
    let counted = |t: &mut Rc| match t.b(Command::VnicCounters { vnic }) {
        Ok(Reply::VnicCounters(c)) => (c.objects.mrs, c.objects.mws),
        other => panic!("{other:?}"),
    };
    let (mrs, mws) = counted(&mut t);
    assert_eq!(mws, 0);
    t.b(destroy(mr.handle)).unwrap();
    assert_eq!(counted(&mut t), (mrs - 1, 0));
    let Ok(Reply::Objects(all)) = t.b(Command::List) else { panic!("no list") };
    assert!(all.iter().all(|v| v.mws.is_empty()));
}

#[test]
fn a_region_changes_as_a_whole() {
    for way in WAYS {
        let mut t = rc(way);
        let (vnic, mr, gpa) = (t.two.b.id, t.two.b_mr.handle, t.gpa());
        let key = t.two.b_mr.key;
        let other = t.two.b.alloc(1);
        let rereg = |pd, access, memory| Command::ReregMr { vnic, mr, pd, access, memory };
        let memory =
            |iova, length, pages| Some(MrKind::Pages { iova, length, pages: PageList { shift: 12, pages } });
        // Refused: nothing has changed.
        for bad in [
            rereg(None, Some(Access::default()), memory(0, 4097, vec![other])),
            rereg(Some(PdHandle(9)), None, Some(MrKind::AllMemory)),
            rereg(Some(PdHandle(9)), Some(Access { zero_based: true, ..all_access() }), None),
        ] {
            assert!(matches!(t.b(bad), Err(DriverError::Invalid(_))));
        }
        assert_eq!(t.a_does(SEND_OP_RDMA_WRITE, key, gpa), WC_SUCCESS);
        // Other memory at another address.
        t.b(rereg(None, None, memory(0x8010, 64, vec![other]))).unwrap();
        t.two.a.write(t.two.a_mr.gpa, &pattern(8, 1));
        assert_eq!(t.a_does(SEND_OP_RDMA_WRITE, key, 0x8010), WC_SUCCESS);
        assert_eq!(t.two.b.read(other + 0x10, 8), pattern(8, 1));
        // Addresses that begin at zero, the place in the page stays.
        let zero_based = Access { zero_based: true, ..all_access() };
        t.b(rereg(None, Some(zero_based), memory(0x8020, 64, vec![other]))).unwrap();
        assert_eq!(t.a_does(SEND_OP_RDMA_WRITE, key, 56), WC_SUCCESS);
        assert_eq!(t.two.b.read(other + 0x58, 8), pattern(8, 1));
        // Other rights; then another domain.
        t.b(rereg(None, Some(Access { remote_write: false, ..zero_based }), None)).unwrap();
        assert_eq!(t.a_does(SEND_OP_RDMA_WRITE, key, 0), WC_REM_ACCESS_ERR);
        t.b(rereg(Some(PdHandle(9)), Some(zero_based), None)).unwrap();
        (t.a_qp, t.b_qp) = pair(&mut t.two);
        assert_eq!(t.a_does(SEND_OP_RDMA_WRITE, key, 0), WC_REM_ACCESS_ERR);
        let unknown = Command::ReregMr { vnic, mr: MrHandle(NOBODY), pd: None, access: None, memory: None };
        assert!(matches!(t.b(unknown), Err(DriverError::UnknownObject(_))));
    }
}
