//! Where threads run. A command wakes three threads, and to wake one on another CPU, which may be idle, takes a VM several times as
//! long as all that the command does. Where the scheduler puts them is not what a comparison is about.

use bench_record::Res;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Does something on one CPU: this program's threads and the programs that it starts stay there.
pub fn on_one_cpu<T: Send>(what: impl FnOnce() -> Res<T> + Send) -> Res<T> {
    let pinned = || {
        let allowed = sched_getaffinity(None)?;
        let last = (0..CpuSet::MAX_CPU).rev().find(|cpu| allowed.is_set(*cpu)).ok_or("there is no CPU")?;
        let mut one = CpuSet::new();
        one.set(last);
        sched_setaffinity(None, &one)?;
        what()
    };
    // A thread of its own, so that nothing has to be undone.
    std::thread::scope(|scope| scope.spawn(pinned).join().expect("a panic has told of itself"))
}
