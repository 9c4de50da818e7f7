//! What each verb costs a guest, and how much of it the way there and back and the RNIC take.

use std::collections::BTreeMap;
use std::net::IpAddr;

use bench_record::{Record, Res, Samples};
use guest_sim::ControlError;
use vrdma_abi::control::*;

use crate::driver;
use crate::verbs::{GIB, Opened, Verbs, timed};
use crate::world::World;

/// The times of each verb.
pub type Times = BTreeMap<&'static str, Samples>;

/// A command that does nothing takes what the channel takes.
const NOTHING: &str = "nothing";

/// Microseconds of each verb, one right after the other, with what the RNIC takes of it. The world, and whoever calls, are on
/// one CPU.
pub fn measure(world: &World, rounds: u32) -> Res<Vec<Record>> {
    let mut times = lives(world, rounds)?;
    large_regions(&Verbs::new(world.guest(1)?), rounds, &mut times)?;
    let mut in_rnic = driver::times(rounds)?;
    let mut records = Vec::new();
    for (verb, times) in &times {
        records.extend(told(verb, times, "one CPU"));
        if let Some(rnic) = in_rnic.remove(verb) {
            let record =
                Record::new(format!("rnic_{verb}"), "driver call, one CPU, p50", rnic.median(), "us");
            records.push(record.beside("the verb", times.median()));
        }
    }
    Ok(records)
}

/// The same where threads run wherever the scheduler puts them.
pub fn wherever(world: &World, rounds: u32) -> Res<Vec<Record>> {
    let times = lives(world, rounds)?;
    Ok(times.iter().flat_map(|(verb, times)| told(verb, times, "any CPU")).collect())
}

fn told(verb: &str, times: &Samples, scope: &str) -> [Record; 2] {
    [("p50", 50.0), ("p99", 99.0)].map(|(which, percent)| {
        let scope = format!("{scope}, {which}, n={}", times.len());
        Record::new(format!("verb_{verb}"), scope, times.percentile(percent), "us")
    })
}

/// Lives of a context with a region, a queue and a connected queue pair. The guest of vNIC 2 is the peer.
fn lives(world: &World, rounds: u32) -> Res<Times> {
    let [verbs, peer] = [1, 2].map(|n| world.guest(n).map(Verbs::new));
    let (verbs, peer) = (verbs?, peer?);
    let theirs = peer.create_qp(peer.open()?)?;
    let mut times = Times::new();
    for _ in 0..rounds {
        life(&verbs, World::address(2), theirs.qpn, &mut times)?;
    }
    Ok(times)
}

macro_rules! time {
    ($times:expr, $name:expr, $verb:expr) => {{
        let (done, time) = timed(|| $verb)?;
        $times.entry($name).or_default().push_us(time);
        done
    }};
}

fn life(v: &Verbs, peer: IpAddr, qpn: u32, times: &mut Times) -> Result<(), ControlError> {
    time!(times, NOTHING, v.nothing());
    let ctx = time!(times, "create_context", v.create_context());
    let pd = time!(times, "create_pd", v.create_pd(ctx));
    let mr = time!(times, "create_mr_4KiB", v.create_small_mr(pd));
    let cq = time!(times, "create_cq", v.create_cq(ctx));
    let qp = time!(times, "create_qp", v.create_qp(Opened { ctx, pd, cq }));
    time!(times, "init", v.init(qp));
    time!(times, "rtr", v.rtr(qp, peer, qpn));
    time!(times, "rts", v.rts(qp));
    time!(times, "query_qp", v.state(qp));
    time!(times, "destroy_qp", v.destroy(OP_DESTROY_QP, qp.qp));
    time!(times, "destroy_cq", v.destroy(OP_DESTROY_CQ, cq));
    time!(times, "destroy_mr_4KiB", v.destroy(OP_DESTROY_MR, mr));
    time!(times, "destroy_pd", v.destroy(OP_DESTROY_PD, pd));
    time!(times, "destroy_context", v.destroy(OP_DESTROY_CONTEXT, ctx));
    Ok(())
}

/// Regions of one GiB, in small pages and in large ones. Nobody touches the memory.
fn large_regions(v: &Verbs, rounds: u32, times: &mut Times) -> Result<(), ControlError> {
    let opened = v.open()?;
    for (create, destroy, shift) in [
        ("create_mr_1GiB", "destroy_mr_1GiB", 12),
        ("create_mr_1GiB_2MiB_pages", "destroy_mr_1GiB_2MiB_pages", 21),
    ] {
        let gpas: Vec<u64> = (0..GIB >> shift).map(|n| n << shift).collect();
        let (pages, _tables) = v.guest.control().page_table(&gpas, shift);
        for _ in 0..rounds {
            let mr = time!(times, create, v.create_mr(opened.pd, pages, GIB));
            time!(times, destroy, v.destroy(OP_DESTROY_MR, mr));
        }
    }
    v.destroy(OP_DESTROY_CONTEXT, opened.ctx)
}
