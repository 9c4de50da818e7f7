//! What each verb costs a guest, and how much of it the way there and back and the RNIC take.

use std::collections::BTreeMap;

use guest_sim::ControlError;
use vrdma_abi::control::*;

use crate::driver;
use crate::record::{Record, Samples};
use crate::verbs::{GIB_PAGES, Verbs, timed};
use crate::world::{Res, World};

/// The times of each verb.
pub type Times = BTreeMap<&'static str, Samples>;

/// What a command that does nothing takes.
const NOTHING: &str = "nothing";

/// Microseconds of each verb: `rounds` lives of a context with a region, a queue and a connected queue pair. The guest of
/// vNIC 2 is the peer.
pub fn measure(world: &World, rounds: u32) -> Res<Vec<Record>> {
    let [verbs, peer] = [1, 2].map(|n| world.guest(n).map(Verbs::new));
    let (verbs, peer) = (verbs?, peer?);
    let theirs = peer.create_qp(peer.open()?)?;
    let gib = Gib::new(&verbs);
    let mut times = Times::new();
    for _ in 0..rounds {
        life(&verbs, &gib, World::address(2), theirs.qpn, &mut times)?;
    }
    let mut in_rnic = driver::times(rounds)?;
    let nothing = times[NOTHING].median();
    let mut records = Vec::new();
    for (verb, times) in &times {
        let name = format!("verb_{verb}");
        let channel = format!("a command that does nothing (the channel), n={}", times.len());
        records.push(Record::new(&name, "one host, p50", times.median(), "us").beside(channel, nothing));
        records.push(Record::new(&name, "one host, p99", times.percentile(99.0), "us"));
        if let Some(rnic) = in_rnic.remove(verb) {
            let record = Record::new(format!("rnic_{verb}"), "driver call alone, p50", rnic.median(), "us");
            records.push(record.beside("the verb", times.median()));
        }
    }
    Ok(records)
}

/// One GiB of guest memory in pages of 4 KiB, which nobody touches.
struct Gib {
    pages: PageTable,
    _tables: Option<guest_sim::Mapping>,
}

impl Gib {
    fn new(verbs: &Verbs) -> Gib {
        let gpas: Vec<u64> = (0..GIB_PAGES as u64).map(|n| n * 4096).collect();
        let (pages, tables) = verbs.guest.control().page_table(&gpas, 12);
        Gib { pages, _tables: tables }
    }
}

fn life(
    v: &Verbs,
    gib: &Gib,
    peer: std::net::IpAddr,
    qpn: u32,
    times: &mut Times,
) -> Result<(), ControlError> {
    macro_rules! time {
        ($name:expr, $verb:expr) => {{
            let (done, time) = timed(|| $verb)?;
            times.entry($name).or_default().push_us(time);
            done
        }};
    }
    time!(NOTHING, v.nothing());
    let ctx = time!("create_context", v.create_context());
    let pd = time!("create_pd", v.create_pd(ctx));
    let mr = time!("create_mr_4KiB", v.create_small_mr(pd));
    let large = time!("create_mr_1GiB", v.create_mr(pd, gib.pages, 1 << 30));
    let cq = time!("create_cq", v.create_cq(ctx));
    let qp = time!("create_qp", v.create_qp(crate::verbs::Opened { ctx, pd, cq }));
    time!("init", v.init(qp));
    time!("rtr", v.rtr(qp, peer, qpn));
    time!("rts", v.rts(qp));
    time!("query_qp", v.state(qp));
    time!("destroy_qp", v.destroy(OP_DESTROY_QP, qp.qp));
    time!("destroy_cq", v.destroy(OP_DESTROY_CQ, cq));
    time!("destroy_mr_4KiB", v.destroy(OP_DESTROY_MR, mr));
    time!("destroy_mr_1GiB", v.destroy(OP_DESTROY_MR, large));
    time!("destroy_pd", v.destroy(OP_DESTROY_PD, pd));
    time!("destroy_context", v.destroy(OP_DESTROY_CONTEXT, ctx));
    Ok(())
}
