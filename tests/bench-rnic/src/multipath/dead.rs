//! One of four paths dies in the middle of a message.

use std::time::{Duration, Instant};

use bench_record::{Record, Res, Samples};
use guest_sim::suite::World;
use serde_json::Value;

use super::transfer::{Ends, Verb};
use super::{LONGEST, MB, RATE, VNICS, ends, mbit_per_sec, scope};
use crate::Effort;
use crate::masqd::ENGINE;

const PATHS: u8 = 4;
/// The path that dies: not the one whose queue pair the guest knows, so that both cases of a message's end are met: its tail goes by path 0.
const DEAD: u8 = 1;
/// The least share of four paths' rate.
const RATE_BAR: f64 = 0.7;
/// The most that a switch takes, as a multiple of the time after which it is due.
const SWITCH_BAR: f64 = 3.0;
/// How long a path that has come back may be left alone.
const HOME: Duration = Duration::from_secs(20);

/// The longest message, with and without the death of a path after about a third of it.
pub fn measure(effort: &Effort, world: &World) -> Res<Vec<Record>> {
    let len = LONGEST;
    let ends: Ends = ends(world, PATHS)?;
    let mut transfer = ends.connect()?;
    transfer.time(len)?;
    ends.forget(len, Verb::Write);
    let (mut whole, mut hurt) = (Samples::EMPTY, Samples::EMPTY);
    let (mut switches, mut due, mut told) = (Samples::EMPTY, Samples::EMPTY, Samples::EMPTY);
    for _ in 0..effort.pick(15, 2) {
        let undisturbed = transfer.time(len)?;
        whole.push(mbit_per_sec(len, undisturbed));
        ends.forget(len, Verb::Write);

        let start = Instant::now();
        transfer.post(len)?;
        std::thread::sleep(undisturbed / 3);
        let before = path(world)?;
        let cut = Instant::now();
        world.cluster.set_path(DEAD, false)?;
        let after = loop {
            let now = path(world)?;
            if now.changes > before.changes && now.taken != DEAD {
                break now;
            }
            if cut.elapsed() > HOME {
                return Err("nothing leaves the dead path".into());
            }
        };
        told.push(cut.elapsed().as_secs_f64() * 1e3);
        let switch = after.unanswered.ok_or("the path was left for another reason than silence")?;
        switches.push(switch.as_secs_f64() * 1e3);
        due.push(before.timeout.as_secs_f64() * 1e3);
        transfer.finish()?;
        hurt.push(mbit_per_sec(len, start.elapsed()));
        if !ends.has_arrived(len, Verb::Write) {
            return Err("a message has not arrived as it was sent".into());
        }
        world.cluster.set_path(DEAD, true)?;
        let back = Instant::now();
        while path(world)?.taken != DEAD {
            if back.elapsed() > HOME {
                return Err("nothing comes back to the path".into());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
    ends.close()?;
    let scope = scope(format!("{PATHS} x {RATE}mbit"));
    let name = format!("write_rate_{}MB_one_of_{PATHS}_paths_dies", len / MB);
    Ok(vec![
        Record::new(name, &scope, &hurt, "Mbit/s")
            .of(ENGINE)
            .beside(format!("all {PATHS} paths"), &whole)
            .at_least(RATE_BAR),
        Record::new("path_switch", &scope, &switches, "ms")
            .of("from the first request that is not answered until requests go by another path")
            .beside("timeout of an answer", &due)
            .at_most(SWITCH_BAR),
        Record::new("path_switch_told", &scope, &told, "ms")
            .of("from before the command that cuts the link until the API tells"),
    ])
}

/// Where the requests of a path's queue pair go.
struct Taken {
    /// The path that they take.
    taken: u8,
    /// After how long without an answer they take another one.
    timeout: Duration,
    /// How often they have done so, or come home.
    changes: u64,
    /// How long they had been unanswered then, the last time.
    unanswered: Option<Duration>,
}

/// Of the path that dies, of the one queue pair of the sending guest.
fn path(world: &World) -> Res<Taken> {
    let (_, vnic, _) = VNICS.into_iter().find(|(n, ..)| *n == PATHS).ok_or("no vNIC has so many paths")?;
    let (status, body) = world.cluster.get(1, &format!("/v1/queue-pairs?vnic={vnic}"))?;
    let all: Value = serde_json::from_str(&body).map_err(|e| format!("{status}: {e}: {body}"))?;
    let path = &all[0]["paths"][usize::from(DEAD)];
    let number = |name: &str| path[name].as_u64().ok_or_else(|| format!("no {name} of a path: {body}"));
    Ok(Taken {
        taken: number("taken")? as u8,
        timeout: Duration::from_nanos(number("answer_timeout_ns")?),
        changes: number("changes")?,
        unanswered: path["last_change_unanswered_ns"].as_u64().map(Duration::from_nanos),
    })
}
