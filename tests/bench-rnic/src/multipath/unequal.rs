//! Paths of unequal rates.

use bench_record::{Record, Res, Samples};
use guest_sim::suite::World;

use super::{LONGEST, MB, RATE, ends, mbit_per_sec, scope, shape, times};
use crate::Effort;
use crate::masqd::ENGINE;

/// Of the three links, in Mbit/s.
const RATES: [u32; 3] = [RATE, RATE / 2, RATE / 4];
/// The least share of the sum.
const BAR: f64 = 0.9;

/// A long message over links of 100, 50 and 25 Mbit/s, beside one link of 100 Mbit/s.
pub fn measure(effort: &Effort, world: &World) -> Res<Vec<Record>> {
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
    for end in &ends {
        end.close()?;
    }
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
