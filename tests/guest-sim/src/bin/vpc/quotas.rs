//! Quotas: enforced, told, and changed while the guest runs.

use std::sync::Arc;
use std::time::Instant;

use guest_sim::ControlError;
use guest_sim::suite::{Side, World};
use guest_sim::verbs::{Cq, Mr, Qp, QpCaps};

use crate::Test;
use crate::link::Link;
use crate::stream::Stream;
use crate::tenant::{NAME, Tenant, vnic};

pub const TESTS: &[Test] = &[
    ("quotas_of_objects_and_memory", objects),
    ("a_quota_of_commands_per_second", commands),
    ("a_guest_above_a_lowered_quota_keeps_what_it_has", lowered),
];

/// A quota of one thing. `take` gives one more, to be kept as long as it is to count.
struct Quota {
    option: &'static str,
    unit: u64,
    told: &'static str,
    take: fn(&Side) -> Result<Taken, ControlError>,
}

enum Taken {
    Qp(Arc<Qp>),
    Cq(Arc<Cq>),
    Mr(Mr),
}

impl Taken {
    fn destroy(&self) -> Result<(), ControlError> {
        match self {
            Taken::Qp(qp) => qp.destroy(),
            Taken::Cq(cq) => cq.destroy(),
            Taken::Mr(mr) => mr.destroy(),
        }
    }
}

/// One megabyte: far more than anything else in these tests pins.
const MEGABYTE: u64 = 1 << 20;

const QUOTAS: [Quota; 4] = [
    Quota {
        option: "quota-qps",
        unit: 1,
        told: "queue pairs",
        take: |side| {
            let cq = side.ctx.create_cq(16, 0)?;
            side.pd.create_qp(&cq, &cq, &QpCaps::default()).map(Taken::Qp)
        },
    },
    Quota {
        option: "quota-cqs",
        unit: 1,
        told: "completion queues",
        take: |side| side.ctx.create_cq(16, 0).map(Taken::Cq),
    },
    Quota {
        option: "quota-mrs",
        unit: 1,
        told: "memory regions",
        take: |side| side.pd.buffer(4096).map(Taken::Mr),
    },
    Quota {
        option: "quota-pinned-bytes",
        unit: MEGABYTE,
        told: "bytes of memory",
        take: |side| side.pd.buffer(MEGABYTE as usize - (64 << 10)).map(Taken::Mr),
    },
];

fn objects(world: &World) {
    let t = Tenant::create(world, &[2]);
    for quota in QUOTAS {
        let set = |n: u64| t.set(1, &[&format!("--{}", quota.option), &(n * quota.unit).to_string()]);
        // With a new guest, whose refusals are not too many yet to be logged.
        t.start_guest(1, 2);
        let side = t.side(1);
        let mut taken = Vec::new();
        let refused = |side: &Side, taken: &[Taken], most: u64| {
            let mark = world.cluster.log(2).len();
            let got = (quota.take)(side).err().unwrap_or_else(|| {
                panic!("{} of {most}: {} are in use, and one more is given", quota.option, taken.len())
            });
            assert_eq!(got.errno(), libc::EDQUOT, "{}", quota.option);
            let words = [NAME, &vnic(1), "EDQUOT", quota.told, &(most * quota.unit).to_string()];
            world.cluster.expect_log(2, mark, &words);
        };
        let full = |taken: &mut Vec<Taken>, most: u64| {
            while (taken.len() as u64) < most {
                taken.push((quota.take)(&side).unwrap_or_else(|e| panic!("within {}: {e}", quota.option)));
            }
        };
        set(2);
        full(&mut taken, 2);
        refused(&side, &taken, 2);
        // More, at once.
        set(4);
        full(&mut taken, 4);
        refused(&side, &taken, 4);
        // Fewer than are in use: what there is stays, until it is given back.
        set(2);
        refused(&side, &taken, 2);
        for _ in 0..2 {
            taken.pop().expect("four").destroy().expect("what there is can be given back");
            refused(&side, &taken, 2);
        }
        taken.pop().expect("two").destroy().expect("what there is can be given back");
        full(&mut taken, 2);
        refused(&side, &taken, 2);
        t.set(1, &["--unset", quota.option]);
        full(&mut taken, 8);
        side.ctx.destroy().expect("DESTROY_CONTEXT");
    }
}

fn commands(world: &World) {
    const PER_SECOND: usize = 10;
    const MANY: usize = 40 * PER_SECOND;
    let t = Tenant::create(world, &[1]);
    let side = t.side(1);
    let qp = side.qp(&QpCaps::default(), 16);
    let ask = |n: usize| -> usize {
        let answers = (0..n).map(|_| match qp.query() {
            Ok(_) => 1,
            Err(e) => {
                assert_eq!(e.errno(), libc::EDQUOT);
                0
            }
        });
        answers.sum()
    };
    assert_eq!(ask(MANY), MANY, "unlimited at first");
    t.set(1, &["--quota-commands", &PER_SECOND.to_string()]);
    let mark = world.cluster.log(1).len();
    let started = Instant::now();
    let answered = ask(MANY);
    let most = (started.elapsed().as_secs() as usize + 2) * PER_SECOND;
    assert!(
        (1..=most).contains(&answered),
        "{answered} of {MANY} commands are answered, at most {most} may be"
    );
    world.cluster.expect_log(
        1,
        mark,
        &[NAME, &vnic(1), "query_qp", "EDQUOT", "10 control commands per second"],
    );
    // What gives something back is never too much.
    qp.destroy().expect("DESTROY_QP");
    side.ctx.destroy().expect("DESTROY_CONTEXT");
    t.set(1, &["--unset", "quota-commands"]);
    let side = t.side(1);
    let qp = side.qp(&QpCaps::default(), 16);
    assert!((0..MANY).all(|_| qp.query().is_ok()), "unlimited again");
}

fn lowered(world: &World) {
    let t = Tenant::create(world, &[1, 1, 2]);
    let links = [Link::connect(t.side(1), t.side(2)), Link::connect(t.side(1), t.side(3))];
    let streams = links.each_ref().map(Stream::start);
    for option in QUOTAS.map(|q| q.option) {
        t.set(1, &[&format!("--{option}"), "0"]);
        let refused = t.guest(1).open().err().map(|e| e.errno());
        assert_eq!(refused, (option == "quota-pinned-bytes").then_some(libc::EDQUOT), "with no {option}");
        streams.iter().for_each(Stream::assert_writing);
    }
    for stream in streams {
        let report = stream.finish(true);
        assert_eq!((report.completed.len(), report.missing), (1, 0), "{report:?}");
        assert!(report.completed.contains_key("SUCCESS"), "{report:?}");
    }
    links.iter().for_each(Link::assert_alive);
    for option in QUOTAS.map(|q| q.option) {
        t.set(1, &["--unset", option]);
    }
    links.iter().for_each(Link::works);
}
