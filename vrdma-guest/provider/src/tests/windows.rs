//! Memory windows, invalidation, and regions that change.

use std::ptr;

use vrdma_abi::ring::*;
use zerocopy::FromBytes;

use super::machine::{Machine, Qp, bind_info, cap, errno, send};
use crate::verbs::*;

const MR_LKEY: u32 = 0x300;

struct Fixture {
    machine: Machine,
    cq: *mut ibv_cq,
    mr: ibv_mr,
}

impl Fixture {
    fn new() -> Self {
        let machine = Machine::open();
        let cq = machine.cq(8);
        let mr = ibv_mr {
            context: machine.context,
            pd: machine.pd,
            addr: ptr::null_mut(),
            length: 0,
            handle: 1,
            lkey: MR_LKEY,
            rkey: MR_LKEY,
        };
        Self { machine, cq, mr }
    }

    fn qp(&self) -> Qp<'_> {
        let qp = self.machine.qp(self.cq, self.cq, cap(4, 1, 0));
        assert_eq!(qp.modify(IBV_QPS_RTS), 0);
        qp
    }

    fn mw(&self, mw_type: i32) -> *mut ibv_mw {
        // SAFETY: the domain is live.
        let mw = unsafe { self.machine.ops.alloc_mw.unwrap()(self.machine.pd, mw_type) };
        assert!(!mw.is_null());
        mw
    }

    fn close(self, mw: *mut ibv_mw) {
        // SAFETY: the window is used no more.
        assert_eq!(unsafe { self.machine.ops.dealloc_mw.unwrap()(mw) }, 0);
        self.machine.destroy_cq(self.cq);
        self.machine.close();
    }
}

fn bind_segment(sent: &super::machine::Sent) -> BindSegment {
    BindSegment::read_from_prefix(&sent.rest).unwrap().0
}

#[test]
fn a_window_of_type_1_gets_a_new_key_with_each_binding() {
    let mut fixture = Fixture::new();
    let (mw, mr) = (fixture.mw(IBV_MW_TYPE_1), &raw mut fixture.mr);
    let qp = fixture.qp();
    let bind = |info| {
        let mut bind = ibv_mw_bind { wr_id: 5, send_flags: IBV_SEND_SIGNALED, bind_info: info };
        // SAFETY: the objects are live.
        unsafe { fixture.machine.ops.bind_mw.unwrap()(qp.qp, mw, &mut bind) }
    };
    // SAFETY: the window is live.
    let rkey = || unsafe { (*mw).rkey };
    let first = rkey();
    assert_eq!(first & 0xff, 0xff);
    // The right of local writes means nothing to a window.
    assert_eq!(bind(bind_info(mr, 0x1000, 64, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE)), 0);
    // The upper bits name the window, also when the lower ones start over.
    assert_eq!(rkey(), first & !0xff);
    assert_eq!(bind(bind_info(ptr::null_mut(), 0, 0, 0)), 0);
    assert_eq!(rkey(), first & !0xff | 1);
    assert!(qp.marked());

    let sent = qp.take_sends();
    let header = &sent[0].header;
    assert_eq!(
        (header.opcode, header.flags, header.wr_id, header.rkey),
        (SEND_OP_BIND_MW, SEND_SIGNALED, 5, first & !0xff)
    );
    let expected = BindSegment {
        mr_lkey: MR_LKEY,
        access: IBV_ACCESS_REMOTE_WRITE,
        addr: 0x1000,
        length: 64,
        reserved: 0,
    };
    assert_eq!(bind_segment(&sent[0]), expected);
    assert_eq!(bind_segment(&sent[1]), BindSegment::ZERO);

    // A binding that is not posted leaves the key as it is.
    assert_eq!(bind(bind_info(mr, 0, 1, 1 << 4)), libc::EINVAL); // windows cannot be bound to a window
    assert_eq!(bind(bind_info(mr, 0, 1, 0)), 0);
    assert_eq!(bind(bind_info(mr, 0, 1, 0)), 0);
    let last = rkey();
    assert_eq!(bind(bind_info(mr, 0, 1, 0)), libc::ENOMEM);
    assert_eq!(rkey(), last);
    qp.modify(IBV_QPS_RESET);
    assert_eq!(bind(bind_info(mr, 0, 1, 0)), libc::EINVAL);
    qp.destroy();
    fixture.close(mw);
}

/// The entries of an XRC initiator have a segment for the target, whatever they ask for; datagrams bind nothing.
#[test]
fn the_type_of_the_qp_counts_when_a_window_is_bound() {
    let mut fixture = Fixture::new();
    let (mw, mr) = (fixture.mw(IBV_MW_TYPE_1), &raw mut fixture.mr);
    for (qp_type, expected) in [(IBV_QPT_XRC_SEND, 0), (IBV_QPT_UC, 0), (IBV_QPT_UD, libc::EINVAL)] {
        let (send_cq, recv_cq) = (fixture.cq, fixture.cq);
        let init = fixture.machine.init(qp_type, cap(4, 1, 0));
        let qp = fixture.machine.qp_ex(&mut ibv_qp_init_attr_ex { send_cq, recv_cq, ..init }).unwrap();
        qp.modify(IBV_QPS_RTS);
        let bind_info = bind_info(mr, 0x1000, 64, IBV_ACCESS_REMOTE_WRITE);
        let mut bind = ibv_mw_bind { wr_id: 5, send_flags: 0, bind_info };
        // SAFETY: the objects are live.
        assert_eq!(unsafe { fixture.machine.ops.bind_mw.unwrap()(qp.qp, mw, &mut bind) }, expected);
        let target = if qp_type == IBV_QPT_XRC_SEND { XrcSegment::SIZE } else { 0 };
        for sent in qp.take_sends() {
            let segment = BindSegment::read_from_prefix(&sent.rest[target..]).unwrap().0;
            assert_eq!((segment.mr_lkey, segment.length), (MR_LKEY, 64));
        }
        qp.destroy();
    }
    fixture.close(mw);
}

#[test]
fn a_window_of_type_2_is_bound_by_a_work_request() {
    let mut fixture = Fixture::new();
    let (mw, mr) = (fixture.mw(IBV_MW_TYPE_2), &raw mut fixture.mr);
    let qp = fixture.qp();
    // SAFETY: the window is live.
    let key = unsafe { (*mw).rkey } ^ 0x0f;
    let request = |mw, rkey, bind_info| {
        let mut request = send(IBV_WR_BIND_MW, 6, &mut []);
        // What has no data has no entries either, whatever the request says of them.
        (request.num_sge, request.send_flags) = (99, IBV_SEND_INLINE);
        request.bind_mw = bind_mw_wr { mw, rkey, bind_info };
        request
    };
    let info = bind_info(mr, 0x2000, 8, IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_ZERO_BASED);
    qp.post_send(&mut [request(mw, key, info)]).unwrap();
    let mut invalidate = send(IBV_WR_LOCAL_INV, 7, &mut []);
    invalidate.imm_data = key;
    let mut send_inv = send(IBV_WR_SEND_WITH_INV, 8, &mut []);
    send_inv.imm_data = 0xabcd;
    qp.post_send(&mut [invalidate, send_inv]).unwrap();

    let sent = qp.take_sends();
    assert_eq!((sent[0].header.rkey, sent[0].header.flags, sent[0].header.num_sge), (key, 0, 0));
    let segment = bind_segment(&sent[0]);
    assert_eq!((segment.mr_lkey, segment.access, segment.length), (MR_LKEY, 8 | 32, 8));
    assert_eq!((sent[1].header.opcode, sent[1].header.imm_or_inv), (SEND_OP_LOCAL_INV, key));
    assert_eq!((sent[2].header.opcode, sent[2].header.imm_or_inv), (SEND_OP_SEND_INV, 0xabcd));

    let type_1 = fixture.mw(IBV_MW_TYPE_1);
    // SAFETY: the window is live.
    let type_1_key = unsafe { (*type_1).rkey };
    for (index, bad) in [
        request(type_1, type_1_key, info),
        request(ptr::null_mut(), key, info),
        request(mw, key ^ 0x100, info),
        request(mw, key, bind_info(ptr::null_mut(), 0, 0, 0)),
        request(mw, key, bind_info(mr, 0, 1, 1 << 4)),
    ]
    .into_iter()
    .enumerate()
    {
        assert_eq!(qp.post_send(&mut [bad]), Err((libc::EINVAL, 0)), "request {index}");
    }
    // The completion of a receive tells which key the peer has made invalid.
    fixture
        .machine
        .complete(fixture.cq, Cqe { imm_or_inv: 0xabcd, flags: CQE_RECV | CQE_WITH_INV, ..qp.recv_cqe(0) });
    let wc = fixture.machine.poll(fixture.cq, 1).unwrap()[0];
    assert_eq!((wc.wc_flags, wc.imm_data), (IBV_WC_WITH_INV, 0xabcd));
    qp.destroy();
    // SAFETY: the window is used no more.
    assert_eq!(unsafe { fixture.machine.ops.dealloc_mw.unwrap()(type_1) }, 0);
    fixture.close(mw);
}

#[test]
fn windows_of_other_types_and_the_kernels_refusal_are_errors() {
    let machine = Machine::open();
    let alloc = machine.ops.alloc_mw.unwrap();
    // SAFETY: the domain is live.
    unsafe {
        assert!(alloc(machine.pd, 3).is_null());
        assert_eq!(errno(), libc::EINVAL);
        machine.kernel(|kernel| kernel.fail = Some(libc::EDQUOT));
        assert!(alloc(machine.pd, IBV_MW_TYPE_2).is_null());
        assert_eq!(errno(), libc::EDQUOT);
    }
    machine.close();
}

#[test]
fn a_region_is_changed_by_the_kernel() {
    let machine = Machine::open();
    let mut bytes = [0u8; 64];
    let addr = bytes.as_mut_ptr().cast();
    let ops = &machine.ops;
    // SAFETY: domain and region are live.
    unsafe {
        let mr = ops.reg_mr.unwrap()(machine.pd, addr, 64, 0x1000, 1);
        let rereg = |flags| ops.rereg_mr.unwrap()(mr.cast(), flags, machine.pd, addr, 32, 7);
        let (at, pd) = (addr.addr() as u64, machine.pd.addr() as u64);
        assert_eq!(rereg(7), 0);
        assert_eq!(machine.kernel(|kernel| kernel.asked.clone()), [7, at, 32, at, 7, pd]);
        assert_eq!(rereg(4), 0);
        assert_eq!(machine.kernel(|kernel| kernel.asked.clone()), [4, at, 32, 0, 7, pd]);
        machine.kernel(|kernel| kernel.fail = Some(libc::EFAULT));
        assert_eq!((rereg(7), errno()), (libc::EFAULT, libc::EFAULT));
        assert_eq!(ops.dereg_mr.unwrap()(mr.cast()), 0);
    }
    machine.close();
}
