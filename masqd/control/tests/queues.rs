//! Shared receive queues, XRC, resized completion queues, and queue pairs of all kinds.

mod common;

use common::*;
use masq_control::Errno;
use masq_driver::{DriverError, QpState, QpType, Receives, SrqHandle, XrcdHandle};
use masq_policy::quota::Resource;
use masq_policy::rules::Transport;
use vrdma_abi::control::*;
use zerocopy::FromBytes;

const EINVAL: (Errno, &str) = (Errno::EINVAL, "malformed");
const ENOENT: (Errno, &str) = (Errno::ENOENT, "no_such_object");
const EBUSY: (Errno, &str) = (Errno::EBUSY, "busy");

fn ready() -> Guest {
    let mut g = Guest::ready("blue-1");
    g.base();
    g
}

fn sharing(g: &Guest, qp: u32, qp_type: u8, srq: u32) -> CreateQp {
    let sq_stride_shift = 7;
    let sq = g.memory.list(3);
    CreateQp {
        qp_type,
        srq,
        rq_entries: 0,
        rq: PageTable::ZERO,
        sq_stride_shift,
        sq,
        ..g.qp_request(qp, 1, 1, 1)
    }
}

fn of_type(g: &Guest, qp: u32, qp_type: u8) -> CreateQp {
    CreateQp { qp_type, sq_stride_shift: 7, sq: g.memory.list(3), ..g.qp_request(qp, 1, 1, 1) }
}

/// XRC domain 1 with queue 1 in it.
fn xrc(g: &mut Guest) -> CreateSrqReply {
    g.xrcd(1).unwrap();
    let r = CreateSrq { srq_type: SRQ_TYPE_XRC, cq: 1, xrcd: 1, ..g.srq_request(1, 1) };
    CreateSrqReply::read_from_bytes(&g.send(OP_CREATE_SRQ, &r).unwrap()).unwrap()
}

#[test]
fn a_shared_receive_queue_serves_queue_pairs_and_goes_after_them() {
    let mut g = ready();
    let r = g.srq_request(1, 1);
    let first = g.send(OP_CREATE_SRQ, &r).unwrap();
    assert_eq!(g.send(OP_CREATE_SRQ, &r).unwrap(), first, "a replay");
    assert_eq!(CreateSrqReply::read_from_bytes(&first).unwrap(), CreateSrqReply { srqn: 0, ring_format: 1 });
    let other = CreateSrq { entries: 32, ring: g.memory.list(1), ..r };
    assert_eq!(refused(g.send(OP_CREATE_SRQ, &other)), (Errno::EEXIST, "exists"));
    for (qp, qp_type) in [(1, QP_TYPE_RC), (2, QP_TYPE_UC), (3, QP_TYPE_UD)] {
        let r = sharing(&g, qp, qp_type, 1);
        g.send(OP_CREATE_QP, &r).unwrap();
        g.rnic.qp(qp, |q| assert!(matches!(q.init.receives, Receives::Shared(SrqHandle(1)))));
    }
    assert_eq!(refused(g.destroy(OP_DESTROY_SRQ, 1)), EBUSY);
    assert_eq!(refused(g.destroy(OP_DESTROY_PD, 1)), EBUSY);
    (1..=3).for_each(|qp| drop(g.destroy(OP_DESTROY_QP, qp).unwrap()));
    g.destroy(OP_DESTROY_SRQ, 1).unwrap();
    g.destroy(OP_DESTROY_SRQ, 1).unwrap();
    g.destroy(OP_DESTROY_PD, 1).unwrap();
    assert_eq!(g.used(Resource::Srqs), 0);
}

#[test]
fn shared_receive_queues_are_described_consistently() {
    let mut g = ready();
    let base = g.srq_request(1, 1);
    for (what, r) in [
        ("no entries", CreateSrq { entries: 0, ..base }),
        ("not a power of two", CreateSrq { entries: 48, ..base }),
        ("too many", CreateSrq { entries: 1024, ..base }),
        ("too many scatter entries", CreateSrq { max_sge: 17, stride_shift: 9, ..base }),
        ("stride too short", CreateSrq { max_sge: 16, ..base }),
        ("ring too short", CreateSrq { entries: 128, ..base }),
        ("a limit above the entries", CreateSrq { limit: 65, ..base }),
        ("no such type", CreateSrq { srq_type: 2, ..base }),
        ("tag matching", CreateSrq { srq_type: 255, ..base }),
        ("reserved", CreateSrq { reserved: 1, ..base }),
        ("a queue for completions", CreateSrq { cq: 1, ..base }),
        ("a domain", CreateSrq { xrcd: 1, ..base }),
        ("no handle", CreateSrq { srq: HANDLE_NONE, ..base }),
    ] {
        assert_eq!(refused(g.send(OP_CREATE_SRQ, &r)), EINVAL, "{what}");
    }
    assert_eq!(refused(g.send(OP_CREATE_SRQ, &CreateSrq { pd: 9, ..base })), ENOENT);
    let xrc = CreateSrq { srq_type: SRQ_TYPE_XRC, cq: 1, ..base };
    assert_eq!(refused(g.send(OP_CREATE_SRQ, &CreateSrq { xrcd: 9, ..xrc })), ENOENT);
    g.xrcd(1).unwrap();
    assert_eq!(refused(g.send(OP_CREATE_SRQ, &CreateSrq { xrcd: 1, cq: 9, ..xrc })), ENOENT);
    g.context(2).unwrap();
    g.cq(2, 2).unwrap();
    let foreign = (Errno::EINVAL, "foreign_context");
    assert_eq!(refused(g.send(OP_CREATE_SRQ, &CreateSrq { xrcd: 1, cq: 2, ..xrc })), foreign);
    g.pd(2, 2).unwrap();
    g.srq(2, 2).unwrap();
    let r = sharing(&g, 1, QP_TYPE_RC, 2);
    assert_eq!(refused(g.send(OP_CREATE_QP, &r)), foreign, "a queue of another program");
    g.rnic.fail(DriverError::Exhausted("queues".into()));
    assert_eq!(refused(g.send(OP_CREATE_SRQ, &base)), (Errno::ENOMEM, "rnic"));
    for srq in 3..8 {
        g.srq(srq, 1).unwrap();
    }
    assert_eq!(refused(g.srq(8, 1)), (Errno::EDQUOT, "quota"));
}

#[test]
fn a_limit_is_armed_and_told() {
    let mut g = ready();
    let r = CreateSrq { limit: 5, ..g.srq_request(1, 1) };
    g.send(OP_CREATE_SRQ, &r).unwrap();
    let limit = |g: &mut Guest| {
        let reply = g.destroy(OP_QUERY_SRQ, 1).unwrap();
        QuerySrqReply::read_from_bytes(&reply).unwrap().limit
    };
    assert_eq!(limit(&mut g), 5);
    g.send(OP_MODIFY_SRQ, &ModifySrq { srq: 1, limit: 64 }).unwrap();
    assert_eq!(limit(&mut g), 64);
    assert_eq!(refused(g.send(OP_MODIFY_SRQ, &ModifySrq { srq: 1, limit: 65 })), EINVAL);
    assert_eq!(refused(g.send(OP_MODIFY_SRQ, &ModifySrq { srq: 2, limit: 1 })), ENOENT);
    assert_eq!(refused(g.destroy(OP_QUERY_SRQ, 2)), ENOENT);
    assert_eq!(refused(g.send(OP_QUERY_SRQ, &Destroy { handle: 1, reserved: 1 })), EINVAL);
}

#[test]
fn xrc_joins_initiators_and_targets_by_a_domain() {
    let mut g = ready();
    let srq = xrc(&mut g);
    assert!((1..1 << 24).contains(&srq.srqn));
    g.rnic.srq(1, |s| assert_eq!(s.xrc.map(|x| (x.xrcd, x.srqn)), Some((XrcdHandle(1), srq.srqn))));
    assert_eq!(refused(g.destroy(OP_DESTROY_CQ, 1)), EBUSY, "its receives complete there");
    let target = g.target_request(1, 1);
    assert_eq!(refused(g.send(OP_CREATE_QP, &target)), (Errno::EINVAL, "kernel_only"), "nowhere to live");
    g.kernel();
    g.send(OP_CREATE_QP, &target).unwrap();
    g.rnic.qp(1, |q| {
        assert!(matches!(q.init.receives, Receives::Named(XrcdHandle(1))));
        assert!(!q.init.kernel, "it is a program's");
        assert_eq!((q.init.ctx.0, q.init.pd, q.init.sq.is_none()), (7, None, true));
    });
    assert_eq!(refused(g.destroy(OP_DESTROY_XRCD, 1)), EBUSY);
    let ini = CreateQp {
        recv_cq: HANDLE_NONE,
        rq_entries: 0,
        rq: PageTable::ZERO,
        ..of_type(&g, 2, QP_TYPE_XRC_INI)
    };
    g.send(OP_CREATE_QP, &ini).unwrap();
    g.rnic.qp(2, |q| assert!(matches!(q.init.receives, Receives::None) && q.init.recv_cq.is_none()));
    for (what, r) in [
        ("an initiator that receives", CreateQp { qp: 3, recv_cq: 1, ..ini }),
        ("an initiator with receives", CreateQp { qp: 3, rq_entries: 64, ..ini }),
        ("an initiator that shares", CreateQp { qp: 3, srq: 1, ..ini }),
        ("an initiator of a domain", CreateQp { qp: 3, xrcd: 1, ..ini }),
        ("a target with a PD", CreateQp { qp: 3, pd: 1, ..target }),
        ("a target with a CQ", CreateQp { qp: 3, send_cq: 1, ..target }),
        ("a target with sends", CreateQp { qp: 3, sq_entries: 64, ..target }),
        ("a target that shares", CreateQp { qp: 3, srq: 1, ..target }),
        ("RC over a queue for XRC", sharing(&g, 3, QP_TYPE_RC, 1)),
        ("RC of a domain", CreateQp { xrcd: 1, ..g.qp_request(3, 1, 1, 1) }),
    ] {
        assert_eq!(refused(g.send(OP_CREATE_QP, &r)), EINVAL, "{what}");
    }
    assert_eq!(refused(g.send(OP_CREATE_QP, &CreateQp { qp: 3, xrcd: 9, ..target })), ENOENT);
    // The program goes; the target stays, and with it the domain.
    g.destroy(OP_DESTROY_CONTEXT, 1).unwrap();
    assert_eq!((g.used(Resource::Srqs), g.used(Resource::Qps), g.used(Resource::Xrcds)), (0, 1, 1));
    assert_eq!(refused(g.destroy(OP_DESTROY_XRCD, 1)), EBUSY);
    g.destroy(OP_DESTROY_CONTEXT, 7).unwrap();
    g.destroy(OP_DESTROY_XRCD, 1).unwrap();
    g.destroy(OP_DESTROY_XRCD, 1).unwrap();
    assert!(Resource::ALL.iter().all(|r| g.used(*r) == 0));
}

#[test]
fn numbers_of_queues_for_xrc_are_never_in_use_twice() {
    let mut g = ready();
    g.xrcd(1).unwrap();
    let mut last = 0;
    // The RNIC panics over a number that is in use.
    for round in 0..40 {
        let srq = round % 5;
        g.destroy(OP_DESTROY_SRQ, srq).unwrap();
        let r = CreateSrq { srq_type: SRQ_TYPE_XRC, cq: 1, xrcd: 1, ..g.srq_request(srq, 1) };
        let reply = CreateSrqReply::read_from_bytes(&g.send(OP_CREATE_SRQ, &r).unwrap()).unwrap();
        assert_ne!(reply.srqn, last, "what has become free is taken late");
        last = reply.srqn;
    }
}

#[test]
fn every_kind_of_queue_pair_goes_its_way_to_rts() {
    let mut g = ready();
    let peer = g.qpn_of("blue-2");
    let to = gid("192.168.0.2");
    let set = |state| QpAttr { state, ..QpAttr::ZERO };
    // Datagrams: no connection, and a Q_Key.
    g.send(OP_CREATE_QP, &of_type(&g, 1, QP_TYPE_UD)).unwrap();
    let init = QpAttr { qkey: 0x1111_1111, ..set(QP_STATE_INIT) };
    let mask = QP_ATTR_STATE | QP_ATTR_PKEY_INDEX | QP_ATTR_PORT | QP_ATTR_QKEY;
    assert_eq!(refused(g.modify(1, INIT_MASK, init_attr())).1, "transition");
    g.modify(1, mask, init).unwrap();
    g.rnic.qp(1, |q| assert_eq!(q.change.qkey, Some(0x1111_1111)));
    let attr = g.rtr_attr(to, peer);
    assert_eq!(refused(g.modify(1, RTR_MASK, attr)).1, "transition", "it is connected to nobody");
    g.modify(1, QP_ATTR_STATE, set(QP_STATE_RTR)).unwrap();
    g.modify(1, QP_ATTR_STATE | QP_ATTR_SQ_PSN, QpAttr { sq_psn: 7, ..set(QP_STATE_RTS) }).unwrap();
    assert_eq!((g.query(1).attr.qkey, g.session.connections().count()), (0x1111_1111, 0));
    g.rnic.fail_send(1);
    let back = QpAttr { cur_state: QP_STATE_SQE, ..set(QP_STATE_RTS) };
    g.modify(1, QP_ATTR_STATE | QP_ATTR_CUR_STATE, back).unwrap();
    g.rnic.qp(1, |q| assert_eq!((q.state, q.init.qp_type), (QpState::Rts, QpType::Ud)));
    // UC: connected, and judged as such.
    g.send(OP_CREATE_QP, &of_type(&g, 2, QP_TYPE_UC)).unwrap();
    g.modify(2, INIT_MASK, init_attr()).unwrap();
    let uc = RTR_MASK & !(QP_ATTR_MAX_DEST_RD_ATOMIC | QP_ATTR_MIN_RNR_TIMER);
    assert_eq!(refused(g.modify(2, RTR_MASK, attr)).1, "transition");
    g.modify(2, uc, attr).unwrap();
    g.modify(2, QP_ATTR_STATE | QP_ATTR_SQ_PSN, set(QP_STATE_RTS)).unwrap();
    assert_eq!(g.session.connections().next().unwrap().1.transport, Transport::Uc);
    // XRC: an initiator and a target, judged as reliable connections.
    g.kernel();
    xrc(&mut g);
    let none = (HANDLE_NONE, 0, PageTable::ZERO);
    let ini = CreateQp { recv_cq: none.0, rq_entries: none.1, rq: none.2, ..of_type(&g, 3, QP_TYPE_XRC_INI) };
    g.send(OP_CREATE_QP, &ini).unwrap();
    g.modify(3, INIT_MASK, init_attr()).unwrap();
    g.modify(3, uc, attr).unwrap();
    g.modify(3, RTS_MASK, rts_attr()).unwrap();
    let r = g.target_request(4, 1);
    g.send(OP_CREATE_QP, &r).unwrap();
    g.modify(4, INIT_MASK, init_attr()).unwrap();
    // As ib_cm does it.
    g.modify(4, INIT_MASK, init_attr()).unwrap();
    g.modify(4, RTR_MASK, QpAttr { flow_label: 0x1234, ..attr }).unwrap();
    g.modify(4, QP_ATTR_STATE | QP_ATTR_TIMEOUT | QP_ATTR_SQ_PSN, rts_attr()).unwrap();
    let rc = g.session.connections().filter(|(_, c)| c.transport == Transport::Rc).count();
    assert_eq!((rc, g.session.connections().count()), (2, 3));
}

#[test]
fn a_device_has_one_gsi_and_only_its_kernel_may_have_it() {
    let mut g = ready();
    let gsi = of_type(&g, 1, QP_TYPE_GSI);
    assert_eq!(refused(g.send(OP_CREATE_QP, &gsi)), (Errno::EINVAL, "kernel_only"));
    g.kernel();
    let gsi = CreateQp { pd: 7, send_cq: 7, recv_cq: 7, ..gsi };
    assert_eq!(refused(g.send(OP_CREATE_QP, &CreateQp { srq: 1, ..gsi })), EINVAL);
    let reply = CreateQpReply::read_from_bytes(&g.send(OP_CREATE_QP, &gsi).unwrap()).unwrap();
    assert_eq!(reply.qpn, 1);
    let wire = g.session.identity().gsi_qpn;
    g.rnic.qp(1, |q| assert!(q.init.kernel && q.init.wire_qpn == wire && q.init.qpn.get() == 1));
    assert_eq!(refused(g.send(OP_CREATE_QP, &CreateQp { qp: 2, ..gsi })), (Errno::EEXIST, "exists"));
    let set = |state| QpAttr { state, qkey: 0x8001_0000, ..QpAttr::ZERO };
    g.modify(1, QP_ATTR_STATE | QP_ATTR_PKEY_INDEX | QP_ATTR_QKEY, set(QP_STATE_INIT)).unwrap();
    g.modify(1, QP_ATTR_STATE, set(QP_STATE_RTR)).unwrap();
    g.modify(1, QP_ATTR_STATE | QP_ATTR_SQ_PSN, set(QP_STATE_RTS)).unwrap();
    g.destroy(OP_DESTROY_QP, 1).unwrap();
    g.send(OP_CREATE_QP, &gsi).unwrap();
    // Nobody else gets its number.
    for qp in 2..8 {
        let r = CreateQp { qp, ..g.qp_request(qp, 1, 1, 1) };
        g.send(OP_CREATE_QP, &r).unwrap();
        g.rnic.qp(qp, |q| assert!(q.init.wire_qpn != wire && !q.init.kernel));
    }
}

#[test]
fn a_completion_queue_gets_another_ring() {
    let mut g = ready();
    let pinned = g.used(Resource::PinnedBytes);
    let ring = g.memory.list(5);
    let r = ResizeCq { cq: 1, entries: 256, ring };
    g.send(OP_RESIZE_CQ, &r).unwrap();
    g.rnic.cq(1, |c| assert_eq!((c.entries, c.ring.pages.len()), (256, 5)));
    assert_eq!(g.used(Resource::PinnedBytes), pinned + 3 * 4096, "the old ring counts no more");
    for (what, r) in [
        ("no entries", ResizeCq { entries: 0, ..r }),
        ("not a power of two", ResizeCq { entries: 200, ..r }),
        ("too many", ResizeCq { entries: 8192, ..r }),
        ("a ring too long", ResizeCq { entries: 128, ..r }),
    ] {
        assert_eq!(refused(g.send(OP_RESIZE_CQ, &r)), EINVAL, "{what}");
    }
    assert_eq!(refused(g.send(OP_RESIZE_CQ, &ResizeCq { cq: 9, ..r })), ENOENT);
    g.rnic.fail(DriverError::Invalid("300 entries wait, and 256 fit".into()));
    assert_eq!(refused(g.send(OP_RESIZE_CQ, &r)), (Errno::EINVAL, "rnic"));
    assert_eq!(g.used(Resource::PinnedBytes), pinned + 3 * 4096);
    g.destroy(OP_DESTROY_CQ, 1).unwrap();
    assert_eq!((g.used(Resource::Cqs), g.used(Resource::PinnedBytes)), (0, pinned - 2 * 4096));
}
