//! Paths of unequal rates, and paths whose rate changes while a message is under way.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::sleep;
use std::time::{Duration, Instant};

use bench_record::{Record, Res, Samples};
use guest_sim::suite::World;

use super::transfer::{Ends, Verb};
use super::{LONGEST, MB, RATE, ends, mbit_per_sec, scope, shape, times};
use crate::Effort;
use crate::masqd::ENGINE;

/// Of three links, in Mbit/s.
const RATES: [u32; 3] = [RATE, RATE / 2, RATE / 4];
/// The least share of what the links offer.
const BAR: f64 = 0.9;

const PATHS: u8 = 4;
/// The path that changes; not the one that a message's tail takes.
const CHANGED: u8 = 1;
/// Its rate in Mbit/s when it is slow.
const SLOW: u32 = RATE / 10;

/// How long a path that flaps is up, and then down.
const FLAP: Duration = Duration::from_secs(1);
/// Of what is written over paths one of which flaps; two of them are under way.
const PIECE: usize = 20 * MB;

/// A long message over links of 100, 50 and 25 Mbit/s, beside one link of 100 Mbit/s.
pub fn unequal(effort: &Effort, world: &World) -> Res<Vec<Record>> {
    let len = effort.pick(LONGEST, LONGEST / 20);
    for (path, rate) in (0..).zip(RATES) {
        shape(world, path, rate)?;
    }
    let ends = [ends(world, 1)?, ends(world, 3)?];
    let (mut one, mut three) = (ends[0].connect()?, ends[1].connect()?);
    let mut samples: [Samples; 2] = Default::default();
    three.time(len)?;
    one.time(len / 10)?;
    for _ in 0..effort.pick(15, 2) {
        samples[0].push(mbit_per_sec(len, one.time(len)?));
        samples[1].push(mbit_per_sec(len, three.time(len)?));
    }
    ends.iter().try_for_each(Ends::close)?;
    (0..3).try_for_each(|path| shape(world, path, RATE))?;
    let sum = RATES.iter().sum::<u32>() as f64 / f64::from(RATE);
    let scope = scope("100mbit, 50mbit, 25mbit");
    Ok(vec![
        Record::new(format!("write_rate_{}MB_unequal_paths", len / MB), scope, &samples[1], "Mbit/s")
            .of(ENGINE)
            .beside(format!("{sum} times one path of {RATE} Mbit/s"), &times(sum, &samples[0]))
            .at_least(BAR),
    ])
}

/// One of four paths slows down to a tenth after a third of the longest message. Beside it what the links offer: four times a path's rate until then, and
/// 3.1 times afterwards.
pub fn slows(effort: &Effort, world: &World) -> Res<Vec<Record>> {
    let len = LONGEST;
    let ends = ends(world, PATHS)?;
    let mut transfer = ends.connect()?;
    transfer.time(len)?;
    let (mut whole, mut hurt, mut offered) = (Samples::EMPTY, Samples::EMPTY, Samples::EMPTY);
    for _ in 0..effort.pick(15, 2) {
        let undisturbed = transfer.time(len)?;
        let rate = mbit_per_sec(len, undisturbed);
        whole.push(rate);
        ends.forget(len, Verb::Write);

        let start = Instant::now();
        transfer.post(len)?;
        sleep(undisturbed / 3);
        let before = start.elapsed();
        shape(world, CHANGED, SLOW)?;
        transfer.finish()?;
        hurt.push(mbit_per_sec(len, start.elapsed()));
        if !ends.has_arrived(len, Verb::Write) {
            return Err("a message has not arrived as it was sent".into());
        }
        let share = before.as_secs_f64() / undisturbed.as_secs_f64();
        let slower = f64::from(PATHS) / (f64::from(PATHS - 1) + f64::from(SLOW) / f64::from(RATE));
        offered.push(rate / (share + (1.0 - share) * slower));
        shape(world, CHANGED, RATE)?;
        // What waits there goes by the slow link; then the path's rate is found again.
        sleep(Duration::from_millis(200));
        transfer.time(len)?;
    }
    ends.close()?;
    let scope = scope(format!("{PATHS} x {RATE}mbit"));
    let name = format!("write_rate_{}MB_one_of_{PATHS}_paths_slows", len / MB);
    Ok(vec![
        Record::new(&name, &scope, &hurt, "Mbit/s")
            .of(ENGINE)
            .beside("what the links offer", &offered)
            .at_least(BAR),
        Record::new(format!("{name}_down"), &scope, &hurt, "Mbit/s")
            .of(ENGINE)
            .beside(format!("all {PATHS} paths"), &whole),
    ])
}

/// One of four paths goes down for a second, up for a second, and so on.
pub fn flaps(effort: &Effort, world: &World) -> Res<Vec<Record>> {
    let turns = effort.pick(6, 1);
    let ends = ends(world, PATHS)?;
    let mut transfer = ends.connect()?;
    transfer.time(LONGEST)?;
    let (mut steady, mut flapping) = (Samples::EMPTY, Samples::EMPTY);
    for _ in 0..effort.pick(7, 2) {
        steady.push(mbit_per_sec(LONGEST, transfer.time(LONGEST)?));
        ends.forget(PIECE, Verb::Write);
        let ended = AtomicBool::new(false);
        let (bytes, time) = std::thread::scope(|scope| {
            let writer = scope.spawn(|| transfer.walk(PIECE, &ended));
            let flap = || -> Res<()> {
                for up in [false, true].into_iter().cycle().take(2 * turns) {
                    world.cluster.set_path(CHANGED, up)?;
                    sleep(FLAP);
                }
                Ok(())
            };
            let flapped = flap();
            ended.store(true, Relaxed);
            let moved = writer.join().map_err(|_| "the writer has panicked")?;
            flapped.and(moved)
        })?;
        flapping.push(mbit_per_sec(bytes, time));
        if !ends.has_arrived(PIECE, Verb::Write) {
            return Err("a message has not arrived as it was sent".into());
        }
        // The path is checked again after five seconds at most.
        sleep(Duration::from_secs(6));
        transfer.time(LONGEST)?;
    }
    ends.close()?;
    let scope = scope(format!("{PATHS} x {RATE}mbit"));
    let share = f64::from(PATHS - 1) / f64::from(PATHS);
    Ok(vec![
        Record::new(format!("write_rate_one_of_{PATHS}_paths_flaps"), &scope, &flapping, "Mbit/s")
            .of(ENGINE)
            .beside(format!("{} of {PATHS} paths", PATHS - 1), &times(share, &steady))
            .at_least(BAR),
    ])
}
