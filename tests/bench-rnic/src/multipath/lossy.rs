//! Pieces of fixed sizes over paths that lose packets: masqd drops some of those that it receives, in both directions.

use bench_record::{Record, Res, Samples};
use guest_sim::suite::World;
use mp_core::split::Limits;

use super::transfer::{Ends, Transfer, Verb};
use super::{MB, RATE, ends, mbit_per_sec, scope, start_with};
use crate::Effort;
use crate::masqd::ENGINE;

const PATHS: u8 = 4;
/// Of a message.
const BYTES: usize = 50 * MB;
/// Of a chunk, as powers of two, 16 KiB to 1 MiB.
const SHIFTS: [u8; 4] = [14, 16, 18, 20];
/// Room for as many of the smallest as a message has.
const CHUNKS: u32 = 4096;
/// Lost packets in percent, and masqd's arguments.
const LOSSES: [(&str, &[&str]); 3] = [
    ("0", &["--congestion", "swift"]),
    ("0.1", &["--congestion", "swift", "--inject-faults", "drop=0.001,seed=7"]),
    ("1", &["--congestion", "swift", "--inject-faults", "drop=0.01,seed=7"]),
];

/// Rates of WRITEs in chunks of each size.
pub fn measure(effort: &Effort) -> Res<Vec<Record>> {
    let worlds: Vec<World> = LOSSES.iter().map(|(_, args)| start_with(effort, args)).collect::<Res<_>>()?;
    let ends: Vec<Ends> = worlds.iter().map(|world| ends(world, PATHS)).collect::<Res<_>>()?;
    let limits = |shift| Limits { chunk_shift_min: shift, chunk_shift_max: shift, ..Limits::new(CHUNKS) };
    // Of each size, one with each loss.
    let mut transfers: Vec<Vec<Transfer>> = SHIFTS
        .iter()
        .map(|shift| ends.iter().map(|ends| ends.connect_with(limits(*shift))).collect::<Res<_>>())
        .collect::<Res<_>>()?;
    for transfer in transfers.iter_mut().flatten() {
        transfer.time(BYTES / 5)?;
    }
    let mut samples: [[Samples; LOSSES.len()]; SHIFTS.len()] = Default::default();
    for _ in 0..effort.pick(7, 2) {
        for (transfers, samples) in transfers.iter_mut().zip(&mut samples) {
            for ((transfer, ends), samples) in transfers.iter_mut().zip(&ends).zip(samples) {
                ends.forget(BYTES, Verb::Write);
                samples.push(mbit_per_sec(BYTES, transfer.time(BYTES)?));
                if !ends.has_arrived(BYTES, Verb::Write) {
                    return Err("a message has not arrived as it was sent".into());
                }
            }
        }
    }
    ends.iter().try_for_each(Ends::close)?;
    let mut records = Vec::new();
    for (shift, samples) in SHIFTS.iter().zip(&samples) {
        let kib = (1 << shift) >> 10;
        for ((percent, _), rates) in LOSSES.iter().zip(samples) {
            let scope = format!("{}, {percent} % lost", scope(format!("{PATHS} x {RATE}mbit")));
            let record = Record::new(format!("write_rate_chunks_of_{kib}KiB"), scope, rates, "Mbit/s");
            records.push(record.of(ENGINE).beside("no loss", &samples[0]));
        }
    }
    Ok(records)
}
