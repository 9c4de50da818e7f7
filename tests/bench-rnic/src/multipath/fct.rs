//! How long messages take over more and more paths, and longer and longer ones; and other messages than WRITEs.

use bench_record::{Record, Res, Samples};
use guest_sim::suite::World;

use super::transfer::{Ends, Transfer, Verb};
use super::{LINKS, LONGEST, MB, RATE, ends, ends_for, mbit_per_sec, scope, times};
use crate::Effort;
use crate::masqd::ENGINE;

const PATHS: [u8; 6] = [1, 2, 4, 6, 8, LINKS];
/// The least share of so many times one path's rate.
const BAR: f64 = 0.95;

/// In MB, and how often: the longest takes 80 s over one path.
const SIZES: [(usize, u32); 7] = [(1, 15), (3, 15), (10, 15), (30, 15), (100, 15), (300, 5), (1000, 3)];

/// With READs and SENDs.
const VERB_PATHS: [u8; 3] = [1, 4, LINKS];

/// The longest message over more and more paths.
pub fn over_paths(effort: &Effort, world: &World) -> Res<Vec<Record>> {
    let rounds = effort.pick(15, 2);
    of_verb(effort, world, Verb::Write, &PATHS, rounds)
}

/// The longest READ and SEND.
pub fn over_verbs(effort: &Effort, world: &World) -> Res<Vec<Record>> {
    let rounds = effort.pick(5, 1);
    let mut records = Vec::new();
    for verb in [Verb::Read, Verb::Send] {
        records.extend(of_verb(effort, world, verb, &VERB_PATHS, rounds)?);
    }
    Ok(records)
}

fn of_verb(effort: &Effort, world: &World, verb: Verb, paths: &[u8], rounds: u32) -> Res<Vec<Record>> {
    let len = effort.pick(LONGEST, LONGEST / 20);
    let ends: Vec<Ends> = paths.iter().map(|paths| ends(world, *paths)).collect::<Res<_>>()?;
    let mut transfers: Vec<Transfer> = ends.iter().map(Ends::connect).collect::<Res<_>>()?;
    let (mut fct, mut rate) = (vec![Samples::EMPTY; paths.len()], vec![Samples::EMPTY; paths.len()]);
    for (transfer, ends) in transfers.iter_mut().zip(&ends) {
        transfer.time(len / 10)?;
        transfer.time_of(verb, len / 10)?;
        ends.forget(len, verb);
        transfer.time_of(verb, len)?;
        if !ends.has_arrived(len, verb) {
            return Err("a message has not arrived as it was sent".into());
        }
    }
    for _ in 0..rounds {
        for (k, transfer) in transfers.iter_mut().enumerate() {
            let time = transfer.time_of(verb, len)?;
            fct[k].push(time.as_secs_f64());
            rate[k].push(mbit_per_sec(len, time));
        }
    }
    ends.iter().try_for_each(Ends::close)?;
    let mut records = Vec::new();
    for (k, paths) in paths.iter().enumerate() {
        let scope = scope(format!("{paths} x {RATE}mbit"));
        let name = |what: &str| format!("{}_{what}_{}MB_{paths}_paths", verb.name(), len / MB);
        records.push(Record::new(name("fct"), &scope, &fct[k], "s").of(ENGINE));
        if k > 0 {
            records.push(
                Record::new(name("rate"), &scope, &rate[k], "Mbit/s")
                    .of(ENGINE)
                    .beside(format!("{paths} times one path"), &times((*paths).into(), &rate[0]))
                    .at_least(BAR),
            );
        }
    }
    Ok(records)
}

/// Messages of 1 MB and more over one path and over all.
pub fn over_sizes(effort: &Effort, world: &World) -> Res<Vec<Record>> {
    let sizes = &SIZES[..effort.pick(SIZES.len(), 3)];
    let longest = sizes.iter().map(|(size, _)| size * MB).max().unwrap_or(LONGEST);
    let ends = [ends_for(world, 1, longest)?, ends_for(world, LINKS, longest)?];
    let mut transfers: Vec<Transfer> = ends.iter().map(Ends::connect).collect::<Res<_>>()?;
    transfers.iter_mut().try_for_each(|transfer| transfer.time(10 * MB).map(drop))?;
    let mut samples: Vec<[Samples; 2]> = vec![Default::default(); sizes.len()];
    for round in 0..effort.pick(15, 2) {
        for ((size, rounds), samples) in sizes.iter().zip(&mut samples) {
            if round >= *rounds {
                continue;
            }
            for (transfer, samples) in transfers.iter_mut().zip(samples) {
                samples.push(transfer.time(size * MB)?.as_secs_f64() * 1e3);
            }
        }
    }
    ends.iter().try_for_each(Ends::close)?;
    let scope = scope(format!("{LINKS} x {RATE}mbit"));
    let record = |((size, _), [one, all]): (&(usize, u32), &[Samples; 2])| {
        Record::new(format!("write_fct_by_size_{size}MB_{LINKS}_paths"), &scope, all, "ms")
            .of(ENGINE)
            .beside("one path", one)
    };
    Ok(sizes.iter().zip(&samples).map(record).collect())
}
