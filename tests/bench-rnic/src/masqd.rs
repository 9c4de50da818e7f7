//! What the kernel tells of a running masqd.

use std::time::Duration;

use bench_record::Res;
use guest_sim::Cluster;

/// What is measured, in records of what guests see of a masqd, or of two.
pub const ENGINE: &str = "masqd, as guests see it";

/// CPU time that the threads of a host's masqd have used: all of them, and those of the RNIC's engines alone.
pub fn cpu(cluster: &Cluster, host: u8) -> Res<(Duration, Duration)> {
    let pid = cluster.masqd_pid(host).ok_or("masqd does not run")?;
    let (mut all, mut engines) = (Duration::ZERO, Duration::ZERO);
    for task in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        let path = task?.path();
        let text = std::fs::read_to_string(path.join("schedstat"))?;
        let nanos = text.split(' ').next().ok_or("the time of a thread")?.parse()?;
        all += Duration::from_nanos(nanos);
        // Several engines' threads have numbers behind the name.
        if std::fs::read_to_string(path.join("comm"))?.starts_with(masq_rnic::THREAD_NAME) {
            engines += Duration::from_nanos(nanos);
        }
    }
    Ok((all, engines))
}

/// Memory that belongs to a host's masqd alone, in bytes: not guests' memory, which it maps.
pub fn private_bytes(cluster: &Cluster, host: u8) -> Res<u64> {
    let pid = cluster.masqd_pid(host).ok_or("masqd does not run")?;
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find(|l| l.starts_with("RssAnon:")).ok_or("no RssAnon")?;
    let kib: u64 = line.split_whitespace().nth(1).ok_or("RssAnon has no value")?.parse()?;
    Ok(kib << 10)
}
