//! How long it takes until a connection that a new rule forbids is cut at both ends, on two hosts, and whether nothing is written
//! afterwards.

use std::time::Duration;

use bench_record::{Record, Res, Samples};
use guest_sim::ControlError;
use masq_model::{Action, Direction, Object};
use vrdma_abi::control::{QP_STATE_ERR, QP_STATE_RTS};

use crate::flow::Flow;
use crate::objects::{SERVERS, rule};
use crate::verbs::{BareQp, Verbs};
use crate::world::World;

/// A sender that does not care gets this long to write all the same.
const AFTERMATH: Duration = Duration::from_secs(5);

/// How much to measure.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Numbers of connections, and how often each number is revoked.
    pub rounds: [(usize, u32); 3],
    /// How often the memory is looked at, for each number of connections.
    pub memory_runs: u32,
}

/// The rule that forbids everything.
fn deny() -> Object {
    let mut deny = rule(SERVERS, "receive-nothing", Direction::Ingress, Action::Deny);
    deny.priority = 0;
    Object::SecurityGroupRule(deny)
}

/// Milliseconds from a write to the API until its answer that it is realised; and whether the receiver's memory stays what it was
/// at that moment.
pub fn measure(programs: &std::path::Path, effort: Effort) -> Res<Vec<Record>> {
    let world = World::start(programs, 2, &[1, 2])?;
    let mut records = Vec::new();
    for (count, rounds) in effort.rounds {
        let links = Links::create(&world, count)?;
        let mut times = Samples::default();
        let mut unchanged = 0;
        for round in 0..rounds + effort.memory_runs {
            links.connect()?;
            let flow = (round >= rounds).then(|| writing(&world)).transpose()?;
            let time = world.put(&deny())?;
            match flow {
                None => times.push(time.as_secs_f64() * 1e3),
                Some(flow) => unchanged += u32::from(stays(&flow)),
            }
            links.expect(QP_STATE_ERR)?;
            world.delete(&deny().key())?;
            links.reset()?;
        }
        let scope = format!("two hosts, {count} connections");
        for (name, percent) in [("p50", 50.0), ("p99", 99.0)] {
            let scope = format!("{scope}, {name}, n={}", times.len());
            records.push(Record::new("revocation", scope, times.percentile(percent), "ms"));
        }
        let runs = f64::from(effort.memory_runs);
        let record = Record::new("memory_left_alone", &scope, f64::from(unchanged), "runs");
        records.push(record.beside("revocations under load", runs).within(0.0));
        links.destroy()?;
    }
    Ok(records)
}

/// A flow between the guests that has begun to write.
fn writing(world: &World) -> Res<Flow> {
    let flow = Flow::start(world, 1, 2)?;
    let end = std::time::Instant::now() + Duration::from_secs(10);
    while flow.written() < 8 << 20 {
        if std::time::Instant::now() > end {
            return Err("the sender does not write".into());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(flow)
}

/// Whether the memory stays what it is while the sender goes on.
fn stays(flow: &Flow) -> bool {
    let at_answer = flow.memory();
    std::thread::sleep(AFTERMATH);
    flow.posted_after_error() > 0 && flow.memory() == at_answer
}

/// Connections between the guests of vNICs 1 and 2.
struct Links {
    verbs: [Verbs; 2],
    contexts: [u32; 2],
    qps: [Vec<BareQp>; 2],
}

impl Links {
    fn create(world: &World, count: usize) -> Res<Links> {
        let verbs = [Verbs::new(world.guest(1)?), Verbs::new(world.guest(2)?)];
        let create = |v: &Verbs| {
            let opened = v.open()?;
            let qps = (0..count).map(|_| v.create_qp(opened)).collect::<Result<Vec<_>, _>>()?;
            Ok::<_, ControlError>((opened.ctx, qps))
        };
        let [(ctx, qps), (their_ctx, theirs)] = both(&verbs, |_, v| create(v))?;
        Ok(Links { verbs, contexts: [ctx, their_ctx], qps: [qps, theirs] })
    }

    /// From RESET to RTS, at both ends.
    fn connect(&self) -> Res<()> {
        both(&self.verbs, |k, v| {
            let peer = World::address(2 - k as u32);
            self.qps[k]
                .iter()
                .zip(&self.qps[1 - k])
                .try_for_each(|(qp, other)| v.connect(*qp, peer, other.qpn))
        })?;
        self.expect(QP_STATE_RTS)
    }

    fn reset(&self) -> Res<()> {
        both(&self.verbs, |k, v| {
            v.guest.drain_events();
            self.qps[k].iter().try_for_each(|qp| v.reset(*qp))
        })?;
        Ok(())
    }

    /// All are in this state.
    fn expect(&self, state: u8) -> Res<()> {
        for states in both(&self.verbs, |k, v| {
            self.qps[k].iter().map(|qp| v.state(*qp)).collect::<Result<Vec<_>, _>>()
        })? {
            if let Some(other) = states.iter().find(|s| **s != state) {
                return Err(format!("a queue pair in state {other}, not {state}").into());
            }
        }
        Ok(())
    }

    fn destroy(&self) -> Res<()> {
        both(&self.verbs, |k, v| v.destroy(vrdma_abi::control::OP_DESTROY_CONTEXT, self.contexts[k]))?;
        Ok(())
    }
}

/// Does something at both ends at the same time.
fn both<T: Send>(
    verbs: &[Verbs; 2],
    what: impl Fn(usize, &Verbs) -> Result<T, ControlError> + Sync,
) -> Result<[T; 2], ControlError> {
    let [a, b] = verbs;
    std::thread::scope(|scope| {
        let other = scope.spawn(|| what(1, b));
        let one = what(0, a);
        Ok([one?, other.join().expect("the other end")?])
    })
}
