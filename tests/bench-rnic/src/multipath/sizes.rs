//! How long messages take over more and more paths, and longer and longer ones.

use bench_record::{Record, Res, Samples};
use guest_sim::suite::World;

use super::transfer::{Ends, Transfer};
use super::{LONGEST, MB, RATE, ends, mbit_per_sec, scope, times};
use crate::Effort;
use crate::masqd::ENGINE;

const PATHS: [u8; 4] = [1, 2, 4, 8];
/// The least share of so many times one path's rate.
const BAR: f64 = 0.95;

/// In MB.
const SIZES: [usize; 5] = [1, 3, 10, 30, 100];

/// The longest message over 1 to 8 paths.
pub fn over_paths(effort: &Effort, world: &World) -> Res<Vec<Record>> {
    let len = effort.pick(LONGEST, LONGEST / 20);
    let ends: Vec<Ends> = PATHS.iter().map(|paths| ends(world, *paths)).collect::<Res<_>>()?;
    let mut transfers: Vec<Transfer> = ends.iter().map(Ends::connect).collect::<Res<_>>()?;
    let mut fct: [Samples; 4] = Default::default();
    let mut rate: [Samples; 4] = Default::default();
    for (transfer, ends) in transfers.iter_mut().zip(&ends) {
        transfer.time(len / 10)?;
        transfer.time(len)?;
        if !ends.has_arrived(len) {
            return Err("a message has not arrived as it was sent".into());
        }
    }
    for _ in 0..effort.pick(15, 2) {
        for (k, transfer) in transfers.iter_mut().enumerate() {
            let time = transfer.time(len)?;
            fct[k].push(time.as_secs_f64());
            rate[k].push(mbit_per_sec(len, time));
        }
    }
    ends.iter().try_for_each(Ends::close)?;
    let mut records = Vec::new();
    for (k, paths) in PATHS.into_iter().enumerate() {
        let scope = scope(format!("{paths} x {RATE}mbit"));
        let name = |what: &str| format!("write_{what}_{}MB_{paths}_paths", len / MB);
        records.push(Record::new(name("fct"), &scope, &fct[k], "s").of(ENGINE));
        if k > 0 {
            records.push(
                Record::new(name("rate"), &scope, &rate[k], "Mbit/s")
                    .of(ENGINE)
                    .beside(format!("{paths} times one path"), &times(paths.into(), &rate[0]))
                    .at_least(BAR),
            );
        }
    }
    Ok(records)
}

/// Messages of 1 MB and more over one path and over four.
pub fn over_sizes(effort: &Effort, world: &World) -> Res<Vec<Record>> {
    let sizes = &SIZES[..effort.pick(SIZES.len(), 3)];
    let ends = [ends(world, 1)?, ends(world, 4)?];
    let mut transfers: Vec<Transfer> = ends.iter().map(Ends::connect).collect::<Res<_>>()?;
    transfers.iter_mut().try_for_each(|transfer| transfer.time(10 * MB).map(drop))?;
    let mut samples: Vec<[Samples; 2]> = vec![Default::default(); sizes.len()];
    for _ in 0..effort.pick(5, 2) {
        for (size, samples) in sizes.iter().zip(&mut samples) {
            for (transfer, samples) in transfers.iter_mut().zip(samples) {
                samples.push(transfer.time(size * MB)?.as_secs_f64() * 1e3);
            }
        }
    }
    ends.iter().try_for_each(Ends::close)?;
    let scope = scope(format!("4 x {RATE}mbit"));
    let record = |(size, [one, four]): (&usize, &[Samples; 2])| {
        Record::new(format!("write_fct_{size}MB_4_paths"), &scope, four, "ms")
            .of(ENGINE)
            .beside("one path", one)
    };
    Ok(sizes.iter().zip(&samples).map(record).collect())
}
