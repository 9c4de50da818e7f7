//! An engine without work sleeps. Alone in its file, because it looks for the engine's thread in its process.

mod common;

use std::sync::Arc;
use std::time::{Duration, Instant};

use common::*;
use masq_rnic::{Rnic, RnicConfig};

/// Time that the engine's thread has run.
fn run_time() -> Duration {
    let is_engine = |comm: String| comm.trim() == "rnic-engine";
    let engine = std::fs::read_dir("/proc/self/task")
        .unwrap()
        .flatten()
        .find(|task| std::fs::read_to_string(task.path().join("comm")).is_ok_and(is_engine))
        .expect("the engine has a thread");
    let schedstat = std::fs::read_to_string(engine.path().join("schedstat")).unwrap();
    Duration::from_nanos(schedstat.split(' ').next().unwrap().parse().unwrap())
}

#[test]
fn an_idle_engine_uses_no_processor() {
    let events = Arc::new(Events::default());
    let rnic = Rnic::start(RnicConfig::default(), events.clone()).unwrap();
    let mut net = Net::running(rnic, events);
    let mut guest = Guest::attach(&mut net, 0, 1, 100, &fresh_address(), 4 << 20);
    let cq = guest.cq(&mut net, 64);
    let qp = guest.qp(&mut net, &cq, &cq);
    guest.to_rtr(&mut net, &qp, &qp, &Options::default());
    guest.to_rts(&mut net, &qp, &Options::default());
    let end = Instant::now() + Duration::from_secs(20);
    while !guest.need_kick(qp.slot) {
        assert!(Instant::now() < end, "the engine does not sleep");
        std::thread::sleep(Duration::from_millis(1));
    }
    let before = run_time();
    std::thread::sleep(Duration::from_millis(300));
    let used = run_time() - before;
    assert!(used < Duration::from_millis(30), "{used:?} of 300 ms");
}
