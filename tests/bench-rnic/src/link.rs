//! Links that are slow.

use std::process::Command;

use bench_record::Res;
use guest_sim::suite::World;

/// What the first host sends by a path passes a token bucket (tc-tbf) with these parameters.
pub fn limit(world: &World, path: u8, tbf: &[&str]) -> Res<()> {
    let status = Command::new("tc")
        .args(["-n", &world.cluster.netns(1), "qdisc", "replace", "dev", &format!("ul{path}"), "root", "tbf"])
        .args(tbf)
        .status()?;
    if status.success() { Ok(()) } else { Err("tc cannot limit the link".into()) }
}
