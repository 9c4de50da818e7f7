//! Each verb: what it does, what it refuses, and that replays change nothing.

mod common;

use std::time::Duration;

use common::*;
use masq_control::{Errno, Outcome, QpPage, Settings};
use masq_driver::{AttrMask, DriverError, Gpa, MAX_DESCRIBED_QPS, MrKind, QpState};
use masq_policy::quota::Resource;
use masq_types::Gid;
use vrdma_abi::control::*;
use vrdma_abi::counters::COUNTER_NAMES;
use zerocopy::{FromBytes, IntoBytes};

const EINVAL: (Errno, &str) = (Errno::EINVAL, "malformed");

fn ready() -> Guest {
    let mut g = Guest::ready("blue-1");
    g.base();
    g
}

#[test]
fn nothing_happens_before_device_init() {
    let mut g = Guest::new("blue-1");
    assert_eq!(refused(g.context(1)), EINVAL);
    assert!(!g.session.is_initialised());
    assert_eq!(
        refused(
            g.send(OP_DEVICE_INIT, &DeviceInit { abi_major: 1, status_page: 0x8001, ..DeviceInit::ZERO })
        ),
        EINVAL
    );
    g.init().unwrap();
    assert_eq!((g.session.is_initialised(), g.rnic.status_page()), (true, Some(Gpa(0x8000))));
    let commands = g.rnic.commands();
    g.init().unwrap();
    assert_eq!(g.rnic.commands(), commands, "a replay");
    let other = DeviceInit { abi_major: 1, status_page: 0x9000, ..DeviceInit::ZERO };
    assert_eq!(refused(g.send(OP_DEVICE_INIT, &other)), (Errno::EEXIST, "exists"));
}

#[test]
fn the_head_of_a_request_is_checked() {
    let mut g = ready();
    let mut wrong = |edit: &dyn Fn(&mut Request), tag_known: bool| {
        let mut bytes = g.bytes(OP_CREATE_PD, &CreatePd { pd: 5, ctx: 1 });
        let (mut head, _) = Request::read_from_prefix(&bytes).unwrap();
        head.tag = 0xfeed;
        edit(&mut head);
        bytes[..Request::SIZE].copy_from_slice(head.as_bytes());
        let Outcome::Reply(reply) = g.raw(&bytes) else { panic!() };
        let (head, _) = Reply::read_from_prefix(&reply.bytes).unwrap();
        assert_eq!(head.tag, if tag_known { 0xfeed } else { 0 });
        reply.refusal.map(|r| (r.errno(), r.reason.label()))
    };
    assert_eq!(wrong(&|h| h.epoch += 1, true), Some((Errno::ESTALE, "stale_epoch")));
    assert_eq!(wrong(&|h| h.epoch = 0, true), Some((Errno::ESTALE, "stale_epoch")));
    assert_eq!(wrong(&|h| h.flags = 1, true), Some(EINVAL));
    assert_eq!(wrong(&|h| h.opcode = 39, true), Some((Errno::EOPNOTSUPP, "unsupported")));
    assert_eq!(wrong(&|_| (), true), None);
}

#[test]
fn a_command_has_exactly_its_length() {
    let mut g = ready();
    let bytes = g.bytes(OP_CREATE_PD, &CreatePd { pd: 5, ctx: 1 });
    for len in 0..bytes.len() {
        let Outcome::Reply(reply) = g.raw(&bytes[..len]) else { panic!() };
        assert_eq!(reply.refusal.unwrap().errno(), Errno::EINVAL, "{len}");
    }
    let Outcome::Reply(reply) = g.raw(&[&bytes[..], &[0]].concat()) else { panic!() };
    assert_eq!(reply.refusal.unwrap().errno(), Errno::EINVAL);
    assert_eq!(g.used(Resource::Pds), 1);
}

#[test]
fn reserved_fields_are_zero() {
    let mut g = Guest::new("blue-1");
    let init = DeviceInit { abi_major: 1, status_page: 0x8000, reserved: 1, ..DeviceInit::ZERO };
    assert_eq!(refused(g.send(OP_DEVICE_INIT, &init)), EINVAL);
    g.begin();
    g.base();
    g.qp_in_init(1);
    let own = g.session.identity().gids[0];
    assert_eq!(refused(g.send(OP_ADD_GID, &AddGid { index: 0, reserved: 1, gid: own.0 })), EINVAL);
    assert_eq!(refused(g.send(OP_DEL_GID, &DelGid { index: 0, reserved: 1 })), EINVAL);
    for opcode in
        [OP_DESTROY_CONTEXT, OP_DESTROY_PD, OP_DESTROY_MR, OP_DESTROY_CQ, OP_DESTROY_QP, OP_QUERY_QP]
    {
        assert_eq!(refused(g.send(opcode, &Destroy { handle: 1, reserved: 1 })), EINVAL, "{opcode}");
    }
    let mut doorbells = g.memory.list(8);
    doorbells.reserved = 1;
    assert_eq!(refused(g.send(OP_CREATE_CONTEXT, &CreateContext { ctx: 9, flags: 0, doorbells })), EINVAL);
    for i in 0..3 {
        let mut r = g.qp_request(9, 1, 1, 1);
        r.reserved0[i] = 1;
        assert_eq!(refused(g.send(OP_CREATE_QP, &r)), EINVAL);
    }
}

#[test]
fn the_gid_table_has_sixteen_entries() {
    let mut g = Guest::ready("blue-1");
    let own = gid("192.168.0.1");
    assert_eq!(own, g.session.identity().gids[1]);
    assert!(g.add_gid(15, own).is_ok());
    assert!(g.add_gid(15, own).is_ok(), "a replay");
    assert_eq!(refused(g.add_gid(16, own)), EINVAL);
    assert_eq!(refused(g.add_gid(u32::MAX, own)), EINVAL);
    assert_eq!(refused(g.send(OP_DEL_GID, &DelGid { index: 16, reserved: 0 })), EINVAL);
    g.send(OP_DEL_GID, &DelGid { index: 15, reserved: 0 }).unwrap();
    g.send(OP_DEL_GID, &DelGid { index: 15, reserved: 0 }).unwrap();
}

#[test]
fn creating_again_gives_the_same_reply_and_changes_nothing() {
    let mut g = ready();
    let doorbells = g.memory.list(8);
    let requests: Vec<Vec<u8>> = vec![
        g.bytes(OP_CREATE_CONTEXT, &CreateContext { ctx: 2, flags: CONTEXT_KERNEL, doorbells }),
        g.bytes(OP_CREATE_PD, &CreatePd { pd: 2, ctx: 1 }),
        {
            let r = g.mr_request(2, 1);
            g.bytes(OP_CREATE_MR, &r)
        },
        {
            let r = g.cq_request(2, 1);
            g.bytes(OP_CREATE_CQ, &r)
        },
        {
            let r = g.qp_request(2, 1, 1, 1);
            g.bytes(OP_CREATE_QP, &r)
        },
    ];
    for bytes in &requests {
        let first = g.raw(bytes);
        assert!(matches!(&first, Outcome::Reply(r) if r.refusal.is_none()), "{first:?}");
        let (held, commands, usage) = (g.rnic.held(), g.rnic.commands(), g.session.usage().clone());
        assert_eq!(g.raw(bytes), first);
        assert_eq!((g.rnic.held(), g.rnic.commands()), (held, commands));
        assert_eq!(*g.session.usage(), usage);
        // The last byte of the structure belongs to a parameter or must be zero; the one before a parameter is changed here.
        let mut other = bytes.clone();
        let at =
            if bytes.len() == Request::SIZE + CreatePd::SIZE { bytes.len() - 4 } else { Request::SIZE + 8 };
        other[at] ^= 1;
        let Outcome::Reply(reply) = g.raw(&other) else { panic!() };
        assert_eq!(reply.refusal.unwrap().errno(), Errno::EEXIST);
    }
}

#[test]
fn parents_must_exist() {
    let mut g = ready();
    let missing = (Errno::ENOENT, "no_such_object");
    assert_eq!(refused(g.pd(5, 9)), missing);
    assert_eq!(refused(g.mr(5, 9)), missing);
    assert_eq!(refused(g.cq(5, 9)), missing);
    for (pd, send_cq, recv_cq) in [(9, 1, 1), (1, 9, 1), (1, 1, 9)] {
        let r = g.qp_request(5, pd, send_cq, recv_cq);
        assert_eq!(refused(g.send(OP_CREATE_QP, &r)), missing);
    }
    assert_eq!(refused(g.modify(9, INIT_MASK, init_attr())), missing);
    assert_eq!(refused(g.destroy(OP_QUERY_QP, 9)), missing);
    let doorbells = g.memory.list(8);
    assert_eq!(
        refused(g.send(OP_CREATE_CONTEXT, &CreateContext { ctx: HANDLE_NONE, flags: 0, doorbells })),
        EINVAL
    );
}

#[test]
fn destroying_what_does_not_exist_succeeds_and_what_is_used_does_not() {
    let mut g = ready();
    for opcode in [OP_DESTROY_CONTEXT, OP_DESTROY_PD, OP_DESTROY_MR, OP_DESTROY_CQ, OP_DESTROY_QP] {
        assert!(g.destroy(opcode, 77).is_ok());
    }
    let busy = (Errno::EBUSY, "busy");
    g.mr(1, 1).unwrap();
    assert_eq!(refused(g.destroy(OP_DESTROY_PD, 1)), busy);
    g.destroy(OP_DESTROY_MR, 1).unwrap();
    g.qp(1, 1, 1).unwrap();
    assert_eq!(refused(g.destroy(OP_DESTROY_PD, 1)), busy);
    assert_eq!(refused(g.destroy(OP_DESTROY_CQ, 1)), busy);
    g.destroy(OP_DESTROY_QP, 1).unwrap();
    for opcode in [OP_DESTROY_PD, OP_DESTROY_CQ, OP_DESTROY_CONTEXT] {
        assert!(g.destroy(opcode, 1).is_ok(), "{opcode}");
        assert!(g.destroy(opcode, 1).is_ok(), "a replay of {opcode}");
    }
    assert_eq!(g.rnic.held(), 1, "the status page");
    assert!(Resource::ALL.iter().all(|r| g.used(*r) == 0));
}

#[test]
fn a_context_takes_its_objects_along_and_no_others() {
    let mut g = ready();
    g.mr(1, 1).unwrap();
    g.qp(1, 1, 1).unwrap();
    g.context(2).unwrap();
    g.pd(2, 2).unwrap();
    g.cq(2, 2).unwrap();
    g.mr(2, 2).unwrap();
    g.qp(2, 2, 2).unwrap();
    g.destroy(OP_DESTROY_CONTEXT, 1).unwrap();
    assert_eq!(g.rnic.held(), 1 + 4);
    for (resource, left) in [
        (Resource::Contexts, 1),
        (Resource::Pds, 1),
        (Resource::Mrs, 1),
        (Resource::Cqs, 1),
        (Resource::Qps, 1),
    ] {
        assert_eq!(g.used(resource), left, "{resource}");
    }
    g.query(2);
    assert_eq!(refused(g.destroy(OP_QUERY_QP, 1)).0, Errno::ENOENT);
}

#[test]
fn each_quota_refuses_with_edquot_and_leaves_nothing() {
    let quota = (Errno::EDQUOT, "quota");
    let mut g = ready();
    let last = |r: Resource| quotas().get(r) as u32;
    for i in 2..=last(Resource::Contexts) {
        g.context(i).unwrap();
    }
    assert_eq!(refused(g.context(99)), quota);
    for i in 2..=last(Resource::Pds) {
        g.pd(i, 1).unwrap();
    }
    assert_eq!(refused(g.pd(99, 1)), quota);
    for i in 1..=last(Resource::Mrs) {
        g.mr(i, 1).unwrap();
    }
    assert_eq!(refused(g.mr(99, 1)), quota);
    for i in 2..=last(Resource::Cqs) {
        g.cq(i, 1).unwrap();
    }
    assert_eq!(refused(g.cq(99, 1)), quota);
    for i in 1..=last(Resource::Qps) {
        g.qp(i, 1, 1).unwrap();
    }
    assert_eq!(refused(g.qp(99, 1, 1)), quota);
    g.destroy(OP_DESTROY_MR, 1).unwrap();
    let held = g.rnic.held();
    // 5000 pages are more than may be listed; 40 of 2 MiB more than may be pinned.
    let small: Vec<u64> = (0..5000).map(|i| i << 12).collect();
    let large: Vec<u64> = (0..40).map(|i| i << 21).collect();
    for (pages, shift) in [(small, 12), (large, 21)] {
        let list = g.memory.list_of(&pages, shift);
        let read = g.memory.read.get();
        let length = (pages.len() as u64) << shift;
        let r = CreateMr { iova: 0, length, pages: list, ..g.mr_request(99, 1) };
        assert_eq!(refused(g.send(OP_CREATE_MR, &r)), quota);
        assert_eq!(g.memory.read.get(), read, "refused before anything is read");
    }
    assert_eq!(g.rnic.held(), held);
    g.mr(1, 1).unwrap();
}

#[test]
fn a_guest_without_qpns_gets_no_queue_pairs() {
    let d = directory(WORLD);
    let mut identity = masq_control::identity(&d, d.endpoint("blue-1").unwrap()).unwrap();
    identity.qpn_blocks.clear();
    let mut g = Guest::with_identity(identity, limits());
    g.begin();
    g.base();
    assert_eq!(refused(g.qp(1, 1, 1)), (Errno::EDQUOT, "no_qpn"));
    assert_eq!((g.used(Resource::Qps), g.used(Resource::ListedPages)), (0, 8 + 2));
}

#[test]
fn qpns_come_back_when_queue_pairs_go() {
    let d = directory(WORLD);
    let mut identity = masq_control::identity(&d, d.endpoint("blue-1").unwrap()).unwrap();
    identity.qpn_blocks = vec![masq_types::QpnBlock::new(1 << 20, 4096).unwrap()];
    let mut g = Guest::with_identity(identity, limits());
    let doorbells = g.memory.list(8);
    let (cq, qp) = (g.cq_request(1, 1), g.qp_request(1, 1, 1, 1));
    // The same bytes every time, so that the guest needs no more memory.
    let requests = [
        g.bytes(OP_DEVICE_INIT, &DeviceInit { abi_major: 1, status_page: 0x8000, ..DeviceInit::ZERO }),
        g.bytes(OP_CREATE_CONTEXT, &CreateContext { ctx: 1, flags: 0, doorbells }),
        g.bytes(OP_CREATE_PD, &CreatePd { pd: 1, ctx: 1 }),
        g.bytes(OP_CREATE_CQ, &cq),
        g.bytes(OP_CREATE_QP, &qp),
    ];
    // One more than there are, each way.
    for round in 0..2 * (4096 + 1) {
        for bytes in &requests {
            let Outcome::Reply(reply) = g.raw(bytes) else { panic!() };
            assert_eq!(reply.refusal, None, "round {round}");
        }
        if round % 2 == 0 {
            g.destroy(OP_DESTROY_QP, 1).unwrap();
        } else {
            g.session.reset(&g.rnic);
        }
    }
}

#[test]
fn each_reason_has_a_counter_of_its_own() {
    let mut g = ready();
    let labels: Vec<&str> = g.session.refusals().iter().map(|(label, _)| label).collect();
    assert_eq!(labels.iter().collect::<std::collections::BTreeSet<_>>().len(), labels.len());
    assert!(g.session.refusals().iter().all(|(_, count)| count == 0));
    let (_, label) = refused(g.destroy(OP_QUERY_QP, 9));
    for (counted, count) in g.session.refusals().iter() {
        assert_eq!(count, u64::from(counted == label), "{counted}");
    }
}

#[test]
fn regions_are_described_consistently() {
    let mut g = ready();
    let base = g.mr_request(2, 1);
    let mut refuse = |what: &str, r: CreateMr| {
        assert_eq!(refused(g.send(OP_CREATE_MR, &r)), EINVAL, "{what}");
    };
    refuse("a page too many", CreateMr { length: 0x1000, ..base });
    refuse("a page too few", CreateMr { length: 0x2201, ..base });
    refuse("beyond the address space", CreateMr { iova: u64::MAX - 0x1ff, ..base });
    refuse("too long", CreateMr { length: (1 << 42) + 1, ..base });
    refuse("remote writes alone", CreateMr { access: ACCESS_REMOTE_WRITE, ..base });
    refuse("remote atomics alone", CreateMr { access: ACCESS_REMOTE_ATOMIC, ..base });
    refuse("pages of 2 KiB", CreateMr { pages: PageTable { page_shift: 11, ..base.pages }, ..base });
    refuse("pages of 2 GiB", CreateMr { pages: PageTable { page_shift: 31, ..base.pages }, ..base });
    refuse("no pages", CreateMr { pages: PageTable { count: 0, levels: 0, ..base.pages }, ..base });
    refuse("no handle", CreateMr { mr: HANDLE_NONE, ..base });
    g.send(OP_CREATE_MR, &CreateMr { access: base.access | 1 << 20 | 1 << 29, ..base }).unwrap();
    g.rnic.mr(2, |m| {
        assert!(
            m.access.local_write && m.access.remote_read && !m.access.remote_write && !m.access.remote_atomic
        );
        let MrKind::Pages { iova, length, pages } = &m.kind else { panic!("{m:?}") };
        assert_eq!((*iova, *length, pages.pages.len()), (0x7f00_0000_0e00, 0x2000, 3));
    });
    let empty = CreateMr { mr: 3, length: 0, pages: PageTable { page_shift: 12, ..PageTable::ZERO }, ..base };
    g.send(OP_CREATE_MR, &empty).unwrap();
    // Huge pages that are not aligned to their size.
    let list = g.memory.list_of(&[0x4000_0000, 0x4020_1000], 21);
    assert_eq!(
        refused(g.send(OP_CREATE_MR, &CreateMr { mr: 4, iova: 0, length: 1 << 22, pages: list, ..base })),
        EINVAL
    );
    let lost = PageTable { addr: 0xdead_0000, ..base.pages };
    assert_eq!(
        refused(g.send(OP_CREATE_MR, &CreateMr { mr: 4, pages: lost, ..base })),
        (Errno::EFAULT, "bad_address")
    );
}

#[test]
fn completion_queues_are_described_consistently() {
    let mut g = ready();
    let base = g.cq_request(2, 1);
    for (what, r) in [
        ("no entries", CreateCq { entries: 0, ..base }),
        ("not a power of two", CreateCq { entries: 63, ..base }),
        ("too many", CreateCq { entries: 8192, ..base }),
        ("ring too short", CreateCq { entries: 128, ..base }),
        ("no such vector", CreateCq { vector: 4, ..base }),
        ("vector of many bits", CreateCq { vector: 0x1_0000, ..base }),
        ("large pages", CreateCq { ring: PageTable { page_shift: 13, ..base.ring }, ..base }),
    ] {
        assert_eq!(refused(g.send(OP_CREATE_CQ, &r)), EINVAL, "{what}");
    }
    let reply = g.send(OP_CREATE_CQ, &base).unwrap();
    assert_eq!(CreateCqReply::read_from_bytes(&reply).unwrap().ring_format, RING_FORMAT_1);
}

#[test]
fn queue_pairs_are_described_consistently() {
    let mut g = ready();
    let base = g.qp_request(2, 1, 1, 1);
    for (what, r) in [
        ("no send entries", CreateQp { sq_entries: 0, ..base }),
        ("not a power of two", CreateQp { rq_entries: 48, ..base }),
        ("too many", CreateQp { sq_entries: 2048, ..base }),
        ("ring too short", CreateQp { sq_entries: 128, ..base }),
        ("stride below 64", CreateQp { sq_stride_shift: 5, ..base }),
        ("stride above 1024", CreateQp { rq_stride_shift: 11, ..base }),
        ("stride too short for the sends", CreateQp { max_send_sge: 30, ..base }),
        ("stride too short for inline data", CreateQp { max_inline_bytes: 256, ..base }),
        ("stride too short for the receives", CreateQp { max_recv_sge: 30, ..base }),
        ("too many entries of a send", CreateQp { max_send_sge: 31, sq_stride_shift: 10, ..base }),
        ("too much inline data", CreateQp { max_inline_bytes: 257, sq_stride_shift: 10, ..base }),
        ("no transport", CreateQp { qp_type: 0, ..base }),
    ] {
        assert_eq!(refused(g.send(OP_CREATE_QP, &r)), EINVAL, "{what}");
    }
    let reply = CreateQpReply::read_from_bytes(&g.send(OP_CREATE_QP, &base).unwrap()).unwrap();
    assert_eq!(reply.ring_format, RING_FORMAT_1);
    let block = g.session.identity().qpn_blocks[0];
    assert!(block.contains(masq_types::WireQpn::new(reply.qpn).unwrap()));
    g.rnic.qp(2, |q| {
        assert_eq!((q.init.cookie, q.init.signal_all, q.init.ctx.0), (42, true, 1));
        assert_eq!((q.init.qpn.get(), q.init.wire_qpn.get()), (reply.qpn, reply.qpn));
    });
}

#[test]
fn a_queue_pair_goes_through_its_life_and_tells_what_it_was_given() {
    let mut g = ready();
    let own = g.qp_in_init(1);
    let peer = g.qpn_of("blue-2");
    g.connect(1, gid("192.168.0.2"), peer).unwrap();
    let (_, c) = g.session.connections().next().unwrap();
    assert_eq!((c.local_qpn.get(), c.remote_qpn.get(), &*c.peer), (own, peer, "blue-2"));
    g.modify(1, RTS_MASK, rts_attr()).unwrap();
    let reply = g.query(1);
    let a = reply.attr;
    assert_eq!((a.state, a.cur_state, a.path_mtu, a.dest_qpn), (QP_STATE_RTS, QP_STATE_RTS, 3, peer));
    assert_eq!((a.sq_psn, a.rq_psn), (77, 88), "as far as the RNIC has come");
    assert_eq!((a.timeout, a.retry_cnt, a.rnr_retry, a.min_rnr_timer), (14, 7, 7, 12));
    assert_eq!((a.max_rd_atomic, a.max_dest_rd_atomic, a.sgid_index), (1, 4, 1));
    assert_eq!(a.access, ACCESS_REMOTE_WRITE | ACCESS_LOCAL_WRITE);
    g.modify(
        1,
        QP_ATTR_STATE | QP_ATTR_EN_SQD_ASYNC_NOTIFY,
        QpAttr { state: QP_STATE_SQD, sq_drained_notify: 1, ..QpAttr::ZERO },
    )
    .unwrap();
    assert_eq!(g.query(1).sq_draining, 1);
    g.rnic.qp(1, |q| assert_eq!(q.change.sq_drained_notify, Some(true)));
    g.modify(1, QP_ATTR_STATE, QpAttr { state: QP_STATE_RESET, ..QpAttr::ZERO }).unwrap();
    assert_eq!(g.query(1).attr.dgid, Gid::ZERO.0);
    assert_eq!(g.session.connections().count(), 0);
    g.modify(1, INIT_MASK, init_attr()).unwrap();
    g.connect(1, gid("192.168.0.2"), peer).unwrap();
    g.destroy(OP_DESTROY_QP, 1).unwrap();
    assert_eq!(g.session.connections().count(), 0);
}

#[test]
fn only_legal_changes_reach_the_rnic() {
    let mut g = ready();
    let transition = (Errno::EINVAL, "transition");
    g.qp(1, 1, 1).unwrap();
    let peer = g.qpn_of("blue-2");
    assert_eq!(refused(g.connect(1, gid("192.168.0.2"), peer)), transition, "not from RESET");
    assert_eq!(
        refused(g.modify(1, INIT_MASK & !QP_ATTR_PORT, init_attr())),
        transition,
        "a missing attribute"
    );
    assert_eq!(
        refused(g.modify(1, INIT_MASK | QP_ATTR_PATH_MTU, init_attr())),
        transition,
        "a surplus attribute"
    );
    assert_eq!(refused(g.modify(1, INIT_MASK, QpAttr { state: 7, ..init_attr() })), EINVAL);
    g.modify(1, INIT_MASK, init_attr()).unwrap();
    g.modify(1, INIT_MASK, init_attr()).unwrap();
    g.connect(1, gid("192.168.0.2"), peer).unwrap();
    let believed = QpAttr { cur_state: QP_STATE_SQD, ..rts_attr() };
    assert_eq!(
        refused(g.modify(1, RTS_MASK | QP_ATTR_CUR_STATE, believed)),
        (Errno::EINVAL, "current_state")
    );
    let believed = QpAttr { cur_state: QP_STATE_RTR, ..rts_attr() };
    g.modify(1, RTS_MASK | QP_ATTR_CUR_STATE, believed).unwrap();
    // The RNIC knows better than the guest in what state a queue pair is.
    g.rnic.break_qp(1);
    let access = QpAttr { access: 0, ..QpAttr::ZERO };
    assert_eq!(refused(g.modify(1, QP_ATTR_ACCESS_FLAGS, access)), transition);
    assert_eq!(g.query(1).attr.state, QP_STATE_ERR);
    g.rnic.qp(1, |q| assert_eq!(q.state, QpState::Err));
}

#[test]
fn attributes_stay_in_their_ranges() {
    let mut g = ready();
    let peer = g.qpn_of("blue-2");
    g.qp_in_init(1);
    let good = g.rtr_attr(gid("192.168.0.2"), peer);
    for (what, attr) in [
        ("rq_psn", QpAttr { rq_psn: 1 << 24, ..good }),
        ("max_dest_rd_atomic", QpAttr { max_dest_rd_atomic: 17, ..good }),
        ("min_rnr_timer", QpAttr { min_rnr_timer: 32, ..good }),
        ("path_mtu 0", QpAttr { path_mtu: 0, ..good }),
        ("path_mtu 6", QpAttr { path_mtu: 6, ..good }),
        ("flow label", QpAttr { flow_label: 1 << 20, ..good }),
        ("service level", QpAttr { sl: 16, ..good }),
        ("families", QpAttr { dgid: gid("fe80::5054:ff:fe64:2").0, ..good }),
    ] {
        assert_eq!(refused(g.modify(1, RTR_MASK, attr)), EINVAL, "{what}");
    }
    assert_eq!(refused(g.modify(1, INIT_MASK, QpAttr { pkey_index: 1, ..init_attr() })), EINVAL);
    g.modify(1, RTR_MASK, good).unwrap();
    for attr in [
        QpAttr { sq_psn: 1 << 24, ..rts_attr() },
        QpAttr { timeout: 32, ..rts_attr() },
        QpAttr { retry_cnt: 8, ..rts_attr() },
        QpAttr { rnr_retry: 8, ..rts_attr() },
        QpAttr { max_rd_atomic: 17, ..rts_attr() },
    ] {
        assert_eq!(refused(g.modify(1, RTS_MASK, attr)), EINVAL, "{attr:?}");
    }
    // What the mask does not name does not matter.
    g.modify(1, RTS_MASK, QpAttr { path_mtu: 99, dest_qpn: u32::MAX, access: u32::MAX, ..rts_attr() })
        .unwrap();
    assert_eq!(g.query(1).attr.path_mtu, 3);
}

#[test]
fn a_path_mtu_above_the_active_one_is_refused_with_the_remedy() {
    let mut g = ready();
    let peer = g.qpn_of("blue-2");
    g.qp_in_init(1);
    let large = QpAttr { path_mtu: 4, ..g.rtr_attr(gid("192.168.0.2"), peer) };
    let refusal = g.modify(1, RTR_MASK, large).unwrap_err();
    assert_eq!((refusal.errno(), refusal.reason.label()), (Errno::EINVAL, "path_mtu"));
    let text = refusal.to_string();
    assert!(
        text.contains("2048 bytes") && text.contains("1024 bytes") && text.contains("lower the MTU"),
        "{text}"
    );
    g.session.set_active_mtu(masq_types::Mtu::B2048);
    g.modify(1, RTR_MASK, large).unwrap();
}

#[test]
fn what_the_rnic_refuses_is_not_there() {
    let mut g = Guest::ready("blue-1");
    let driver = |e: DriverError| masq_control::Reason::from(e).errno();
    for (error, errno) in [
        (DriverError::Exhausted("x".into()), Errno::ENOMEM),
        (DriverError::BadAddress(1), Errno::EFAULT),
        (DriverError::Busy("x".into()), Errno::EBUSY),
        (DriverError::Invalid("x".into()), Errno::EINVAL),
        (DriverError::WrongState(QpState::Err), Errno::EINVAL),
        (DriverError::Unsupported("x".into()), Errno::EOPNOTSUPP),
        (DriverError::UnusableMemory { gpa: 0, reason: "x".into() }, Errno::EFAULT),
        (DriverError::UnknownObject("x".into()), Errno::EIO),
        (DriverError::Exists("x".into()), Errno::EIO),
        (DriverError::Stopped, Errno::EIO),
    ] {
        assert_eq!(driver(error), errno);
    }
    let enomem = (Errno::ENOMEM, "rnic");
    let fail = |g: &Guest| g.rnic.fail(DriverError::Exhausted("one more".into()));
    fail(&g);
    assert_eq!(refused(g.context(1)), enomem);
    g.base();
    fail(&g);
    assert_eq!(refused(g.mr(1, 1)), enomem);
    fail(&g);
    assert_eq!(refused(g.cq(2, 1)), enomem);
    fail(&g);
    assert_eq!(refused(g.qp(1, 1, 1)), enomem);
    assert_eq!(g.used(Resource::Qps) + g.used(Resource::Mrs), 0);
    g.qp_in_init(1);
    // An object that the RNIC did not destroy is still there.
    fail(&g);
    assert_eq!(refused(g.destroy(OP_DESTROY_QP, 1)), enomem);
    g.query(1);
    fail(&g);
    assert_eq!(refused(g.destroy(OP_DESTROY_CONTEXT, 1)), enomem);
    g.destroy(OP_DESTROY_CONTEXT, 1).unwrap();
    assert_eq!(g.rnic.held(), 1);
}

#[test]
fn a_reset_reaps_everything_and_can_be_repeated() {
    let mut g = ready();
    g.mr(1, 1).unwrap();
    g.qp_in_init(1);
    let peer = g.qpn_of("blue-2");
    g.connect(1, gid("192.168.0.2"), peer).unwrap();
    let report = g.session.reset(&g.rnic);
    assert_eq!((report.reaped, report.failures.len()), (5, 0));
    assert_eq!((g.rnic.held(), g.session.connections().count(), g.session.is_initialised()), (0, 0, false));
    assert!(Resource::ALL.iter().all(|r| g.used(*r) == 0));
    assert_eq!(g.session.reset(&g.rnic), Default::default());
    assert_eq!(refused(g.context(1)), EINVAL, "the guest must begin anew");
    g.init().unwrap();
    g.base();
    g.qp_in_init(1);
    assert_eq!(
        refused(g.connect(1, gid("192.168.0.2"), peer)).0,
        Errno::EADDRNOTAVAIL,
        "the GID table is empty"
    );
    g.rnic.fail(DriverError::Stopped);
    assert_eq!(g.session.reset(&g.rnic).failures[0], "queue pair 0x1: the RNIC has stopped");
    assert_eq!(g.session.usage().used(Resource::Qps), 0, "the device is to be detached");
}

#[test]
fn events_name_objects_that_the_guest_has() {
    use masq_driver::{CqHandle, Event, QpFault, QpHandle, SrqHandle, VnicId};
    use vrdma_abi::event::*;
    let mut g = ready();
    g.qp(1, 1, 1).unwrap();
    g.srq(1, 1).unwrap();
    let (vnic, qp, cq, srq) = (VnicId(1), QpHandle(1), CqHandle(1), SrqHandle(1));
    let fault = |fault| Event::QpFault { vnic, qp, fault, reason: String::new() };
    for (event, kind) in [
        (fault(QpFault::Fatal), EVENT_QP_FATAL),
        (fault(QpFault::Request), EVENT_QP_REQ_ERR),
        (fault(QpFault::Access), EVENT_QP_ACCESS_ERR),
        (Event::CommEstablished { vnic, qp }, EVENT_COMM_EST),
        (Event::SqDrained { vnic, qp }, EVENT_SQ_DRAINED),
        (Event::CqOverrun { vnic, cq }, EVENT_CQ_ERR),
        (Event::LastWqe { vnic, qp }, EVENT_QP_LAST_WQE),
        (Event::SrqLimit { vnic, srq }, EVENT_SRQ_LIMIT),
        (Event::SrqFault { vnic, srq, reason: String::new() }, EVENT_SRQ_ERR),
    ] {
        assert_eq!(g.session.handle_event(&event), Some(AsyncEvent { kind, handle: 1, epoch: EPOCH }));
    }
    let fatal = Event::VnicFatal { vnic, reason: String::new() };
    assert_eq!(g.session.handle_event(&fatal).unwrap().kind, EVENT_DEVICE_FATAL);
    assert_eq!(g.session.handle_event(&Event::CqOverrun { vnic, cq: CqHandle(9) }), None);
    assert_eq!(g.session.handle_event(&Event::SqDrained { vnic: VnicId(2), qp }), None, "another device");
    g.destroy(OP_DESTROY_QP, 1).unwrap();
    assert_eq!(g.session.handle_event(&Event::SqDrained { vnic, qp }), None);
    g.destroy(OP_DESTROY_SRQ, 1).unwrap();
    assert_eq!(g.session.handle_event(&Event::SrqLimit { vnic, srq }), None);
    g.session.reset(&g.rnic);
    assert_eq!(g.session.handle_event(&fatal), None);
}

#[test]
fn config_space_shows_limits_and_quotas() {
    use masq_control::{Link, config_space};
    let g = Guest::new("blue-1");
    let link = Link { up: true, active_mtu: masq_types::Mtu::B4096, mbits_per_sec: 10_000 };
    let c = config_space(g.session.identity().mac, EPOCH, &limits(), &quotas(), link, 1);
    assert_eq!((c.magic, c.abi_major, c.epoch), (0x4d44_5256, 1, EPOCH));
    assert_eq!(c.mac, [0x52, 0x54, 0, 0x64, 0, 1]);
    assert_eq!((c.num_comp_vectors, c.num_db_slots, c.link_state, c.active_mtu, c.paths), (4, 8, 1, 5, 1));
    assert_eq!((c.max_contexts, c.max_pds, c.max_mrs, c.max_cqs, c.max_qps, c.max_srqs), (4, 8, 8, 8, 8, 6));
    assert_eq!((c.max_srq_wr, c.max_srq_sge, c.max_mws), (512, 16, 5));
    assert_eq!((c.max_qp_wr, c.max_cqe, c.max_send_sge, c.max_inline_bytes), (1024, 4096, 30, 256));
    let down =
        config_space(g.session.identity().mac, EPOCH, &limits(), &quotas(), Link { up: false, ..link }, 1);
    assert_eq!((down.link_state, down.reserved), (0, 0));
}

#[test]
fn the_masks_of_these_tests_are_those_of_the_table() {
    let row = |from, to| {
        masq_driver::transition(masq_driver::QpType::Rc, from, to).unwrap().required | AttrMask::STATE
    };
    assert_eq!(row(QpState::Reset, QpState::Init).0, INIT_MASK);
    assert_eq!(row(QpState::Init, QpState::Rtr).0, RTR_MASK);
    assert_eq!(row(QpState::Rtr, QpState::Rts).0, RTS_MASK);
}

/// The guest learns what is its own, in the contract's order; what the RNIC counts besides has no place there, and what it does not count is 0.
#[test]
fn counters_have_the_places_of_their_names() {
    let mut g = Guest::ready("blue-1");
    let reply = g.send(OP_QUERY_COUNTERS, &QueryCounters::ZERO).unwrap();
    let reply = QueryCountersReply::read_from_bytes(&reply).unwrap();
    assert_eq!(reply.count as usize, COUNTER_NAMES.len());
    let known = [("tx_bytes", 1001), ("rx_pkts", 4), ("sent_msgs", 7)];
    for (i, value) in reply.values.iter().enumerate() {
        let name = COUNTER_NAMES.get(i).copied().unwrap_or_default();
        let expected = known.iter().find(|(n, _)| *n == name).map_or(0, |(_, n)| *n);
        assert_eq!(*value, expected, "{name}");
    }
    let refusal = refused(g.send(OP_QUERY_COUNTERS, &QueryCounters { reserved: 1 }));
    assert_eq!(refusal, (Errno::EINVAL, "malformed"));
    // For a moment the RNIC is not asked again.
    g.rnic.fail(DriverError::Stopped);
    let again = g.send(OP_QUERY_COUNTERS, &QueryCounters::ZERO).unwrap();
    assert_eq!(QueryCountersReply::read_from_bytes(&again).unwrap().values, reply.values);
    g.now += Duration::from_millis(50);
    assert!(g.send(OP_QUERY_COUNTERS, &QueryCounters::ZERO).is_err());
}

/// The structure of CREATE_QP has grown: guests of version 1.2 end it before the chunk ring.
#[test]
fn older_guests_create_queue_pairs_without_what_they_do_not_know() {
    let mut g = ready();
    let request = g.qp_request(2, 1, 1, 1);
    let whole = g.bytes(OP_CREATE_QP, &request);
    let old = whole.len() - PageTable::SIZE;
    let reply = |outcome| match outcome {
        masq_control::Outcome::Reply(reply) => reply,
        other => panic!("{other:?}"),
    };
    for short in [old - 1, old + 1, whole.len() - 1] {
        let refusal = reply(g.raw(&whole[..short])).refusal.expect("it is refused");
        assert_eq!(refusal.reason.errno(), Errno::EINVAL);
    }
    assert_eq!(reply(g.raw(&whole[..old])).refusal, None);
    // The same queue pair, whichever version says so.
    g.send(OP_CREATE_QP, &request).unwrap();
}

/// However many queue pairs there are, the RNIC is asked for a few at a time, and each is told of once, by number.
#[test]
fn queue_pairs_are_told_of_in_pages() {
    let mut g = Guest::ready("blue-1");
    let (few, many) = (MAX_DESCRIBED_QPS as u32, 2 * MAX_DESCRIBED_QPS as u32 + 5);
    let quotas = quotas().with(Resource::Qps, many.into());
    g.session.set_settings(&g.rnic, Settings { quotas, ..Settings::default() }).unwrap();
    g.base();
    let told = |g: &Guest, numbers| g.session.queue_pairs(&g.rnic, numbers).unwrap();
    let numbers = |page: &QpPage| page.qps.iter().map(|q| q.qpn).collect::<Vec<_>>();
    let commands = g.rnic.commands();
    assert!(told(&g, 0..=u32::MAX).qps.is_empty());
    assert_eq!(g.rnic.commands(), commands, "nobody is asked about nothing");
    // The guest's handles are in no order with numbers.
    let mut all: Vec<u32> = (0..many).map(|i| g.qp_in_init(1 + i * 7 % many)).collect();
    all.sort_unstable();
    let mut next = Some(0..=u32::MAX);
    let mut pages = Vec::new();
    while let Some(wanted) = next {
        let page = told(&g, wanted);
        pages.push(numbers(&page));
        next = page.rest;
    }
    assert_eq!(pages.iter().map(Vec::len).collect::<Vec<_>>(), [few as usize, few as usize, 5]);
    assert_eq!(pages.concat(), all);
    let single = told(&g, all[40]..=all[40]);
    assert_eq!((numbers(&single), single.rest), (vec![all[40]], None));
    let full = told(&g, all[3]..=all[2 + few as usize]);
    assert_eq!((numbers(&full), full.rest), (all[3..3 + few as usize].to_vec(), None), "just a page");
}
