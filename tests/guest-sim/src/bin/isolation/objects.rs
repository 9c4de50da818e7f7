//! Objects of other processes of the same guest, and of other times.

use guest_sim::ControlError;
use guest_sim::suite::{Setup, Side, World};
use guest_sim::verbs::QpCaps;
use vrdma_abi::control::*;

use crate::Test;

pub const TESTS: &[Test] = &[
    ("objects_of_another_process_cannot_be_joined", foreign_objects),
    ("handles_that_do_not_exist", unknown_handles),
    ("a_replayed_request_gives_the_same_object", replay),
    ("requests_of_another_epoch", stale_epoch),
    ("objects_in_use_stay", in_use),
    ("a_process_leaves_nothing_behind", reaped),
];

/// A queue pair of one process on a protection domain or completion queues of another.
fn foreign_objects(world: &mut World) {
    let (mine, theirs) = (Side::open(world, "blue-1"), Side::open(world, "blue-1"));
    let caps = QpCaps::default();
    let own = mine.ctx.create_cq(64, 0).unwrap();
    let foreign = theirs.ctx.create_cq(64, 0).unwrap();
    for (send, recv) in [(&own, &foreign), (&foreign, &own), (&foreign, &foreign)] {
        let got = mine.pd.create_qp(send, recv, &caps).err().expect("a foreign completion queue");
        assert_eq!(got.errno(), libc::EINVAL);
    }
    let got = theirs.pd.create_qp(&own, &own, &caps).err().expect("a foreign protection domain");
    assert_eq!(got.errno(), libc::EINVAL);
    mine.pd.create_qp(&own, &own, &caps).expect("its own objects are fine");
    for side in [mine, theirs] {
        side.ctx.destroy().unwrap();
    }
}

fn errno<T>(result: Result<T, ControlError>) -> i32 {
    result.err().expect("refused").errno()
}

fn unknown_handles(world: &mut World) {
    let side = Side::open(world, "blue-1");
    let control = side.guest.control();
    const NOBODY: u32 = 0x7777_0000;
    let pd = CreatePd { pd: side.guest.handle(), ctx: NOBODY };
    assert_eq!(errno(control.run(OP_CREATE_PD, &pd)), libc::ENOENT);
    let query: Result<QueryQpReply, _> = control.call(OP_QUERY_QP, &Destroy { handle: NOBODY, reserved: 0 });
    assert_eq!(errno(query), libc::ENOENT);
    let modify = ModifyQp { qp: NOBODY, mask: QP_ATTR_STATE, attr: QpAttr::ZERO };
    assert_eq!(errno(control.run(OP_MODIFY_QP, &modify)), libc::ENOENT);
    for opcode in [OP_DESTROY_CONTEXT, OP_DESTROY_PD, OP_DESTROY_MR, OP_DESTROY_CQ, OP_DESTROY_QP] {
        control.run(opcode, &Destroy { handle: NOBODY, reserved: 0 }).expect("destroying nothing succeeds");
    }
    side.ctx.destroy().unwrap();
}

fn replay(world: &mut World) {
    let side = Side::open(world, "blue-1");
    let control = side.guest.control();
    let memory = side.guest.ram.alloc(2);
    let gpas = memory.gpas();
    let (pages, _tables) = control.page_table(&gpas, 12);
    let mr = side.guest.handle();
    let command = CreateMr {
        mr,
        pd: side.pd.handle(),
        access: ACCESS_LOCAL_WRITE,
        flags: 0,
        iova: 0x10_0000,
        length: 5000,
        pages,
    };
    let first: CreateMrReply = control.call(OP_CREATE_MR, &command).unwrap();
    let second: CreateMrReply = control.call(OP_CREATE_MR, &command).unwrap();
    assert_eq!(first, second);
    let other = CreateMr { length: 5001, ..command };
    assert_eq!(errno(control.call::<_, CreateMrReply>(OP_CREATE_MR, &other)), libc::EEXIST);
    side.ctx.destroy().unwrap();
}

fn stale_epoch(world: &mut World) {
    let side = Side::open(world, "blue-1");
    let guest = &side.guest;
    guest.control().set_epoch(guest.config.epoch ^ 1);
    let refused = guest.open().err().map(|e| e.errno());
    guest.control().set_epoch(guest.config.epoch);
    assert_eq!(refused, Some(libc::ESTALE));
    side.ctx.destroy().unwrap();
}

fn in_use(world: &mut World) {
    let side = Side::open(world, "blue-1");
    let qp = side.qp(&Setup::default().caps_a, 64);
    let region = side.buffer(64);
    assert_eq!(errno(side.pd.destroy()), libc::EBUSY);
    assert_eq!(errno(qp.send_cq().destroy()), libc::EBUSY);
    qp.destroy().unwrap();
    qp.send_cq().destroy().unwrap();
    region.destroy().unwrap();
    side.pd.destroy().unwrap();
    side.ctx.destroy().unwrap();
}

/// More processes, one after another, than fit at once.
fn reaped(world: &mut World) {
    for _ in 0..60 {
        let side = Side::open(world, "blue-1");
        for _ in 0..3 {
            let qp = side.qp(&Setup::default().caps_a, 64);
            qp.to_init(&Default::default()).unwrap();
        }
        let _region = side.buffer(100_000);
        side.ctx.destroy().unwrap();
        let gone: Result<QueryQpReply, _> =
            side.guest.control().call(OP_QUERY_QP, &Destroy { handle: side.pd.handle() + 3, reserved: 0 });
        assert_eq!(errno(gone), libc::ENOENT);
    }
}
