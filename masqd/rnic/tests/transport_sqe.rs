//! SQE: what a failed send of an unreliable queue pair leads to.

mod transport_support;

use masq_driver::{QpChange, QpState, QpType};
use masq_rnic::transport::*;
use masq_types::Psn;
use transport_support::*;

fn to(state: QpState) -> QpChange {
    let qkey = (state == QpState::Init).then_some(1);
    let sq_psn = (state == QpState::Rts).then_some(Psn::new(1));
    QpChange { to: Some(state), qkey, sq_psn, ..QpChange::default() }
}

#[test]
fn sends_are_flushed_and_receives_stay() {
    let (now, mut world) = (Time::ZERO, World::default());
    let mut core = QpCore::new(QpConfig { qp_type: QpType::Ud, ..QpConfig::default() });
    for state in [QpState::Init, QpState::Rtr] {
        core.modify(now, &mut world, &to(state)).unwrap();
        core.fail_sends(&mut world);
        assert_eq!(core.state(), state, "nothing was sent that could have failed");
    }
    core.modify(now, &mut world, &to(QpState::Rts)).unwrap();
    (0..100).for_each(|wr_id| world.post_send(send(SendOp::Send, wr_id, 0)));
    world.post_recv(recv(1, 100));
    core.fail_sends(&mut world);
    assert_eq!(core.state(), QpState::Sqe);
    assert!(core.wants_work(), "a bounded number at a time");
    // What was not flushed by then is sent after all.
    let left = world.sq.len();
    assert!((1..100).contains(&left));
    core.modify(now, &mut world, &QpChange { to: Some(QpState::Rts), ..QpChange::default() }).unwrap();
    assert!(!core.wants_work());
    assert_eq!(world.sq.len(), left);
    core.fail_sends(&mut world);
    while core.handle_work(now, &mut world) {}
    let statuses = world.statuses(WorkQueue::Send);
    assert_eq!(statuses, (0..100).map(|i| (i, Status::WrFlushErr)).collect::<Vec<_>>());
    assert_eq!((world.rq.len(), world.events.len()), (1, 0));
    core.modify(now, &mut world, &to(QpState::Err)).unwrap();
    assert_eq!(world.statuses(WorkQueue::Recv), [(1, Status::WrFlushErr)]);
}
