//! Links that are slow.

use std::process::Command;

use bench_record::Res;
use guest_sim::Cluster;
use guest_sim::suite::World;

/// What a host sends by a path passes a token bucket (tc-tbf) with these parameters.
pub fn limit(world: &World, host: u8, path: u8, tbf: &[&str]) -> Res<()> {
    let (netns, link) = world.cluster.path_link(host, path);
    let line = format!("qdisc replace dev {link} root tbf {}", tbf.join(" "));
    tc(&netns, &line)
}

/// What the first host sends to the second one's aliases leaves it at a rate in Mbit/s and no faster, of each path in turn, as a NIC takes from its queue pairs. It waits
/// as long as it takes.
pub fn limit_host(world: &World, paths: u8, mbit_per_sec: u32) -> Res<()> {
    const LINK: &str = "dev ul0";
    let netns = world.cluster.netns(1);
    let all = format!("ceil {mbit_per_sec}mbit cburst 64k");
    tc(&netns, &format!("qdisc replace {LINK} root handle 1: htb"))?;
    tc(
        &netns,
        &format!(
            "class add {LINK} parent 1: classid 1:1 htb rate {mbit_per_sec}mbit burst 64k {all} quantum 9000"
        ),
    )?;
    for path in 0..paths {
        let class = format!("1:{:x}", 0x10 + path);
        let to = Cluster::alias(2, path);
        tc(
            &netns,
            &format!("class add {LINK} parent 1:1 classid {class} htb rate 1mbit {all} quantum 9000"),
        )?;
        tc(&netns, &format!("qdisc add {LINK} parent {class} pfifo limit 20000"))?;
        tc(
            &netns,
            &format!("filter add {LINK} parent 1: protocol ip u32 match ip dst {to}/32 flowid {class}"),
        )?;
    }
    Ok(())
}

fn tc(netns: &str, line: &str) -> Res<()> {
    let status = Command::new("tc").args(["-n", netns]).args(line.split(' ')).status()?;
    if status.success() { Ok(()) } else { Err(format!("tc {line}: {status}").into()) }
}
