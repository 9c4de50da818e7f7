//! Short messages beside a long one: all on one path, and all over all paths.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use bench_record::{Record, Res, Samples};
use guest_sim::suite::World;

use super::transfer::{Ends, Transfer};
use super::{LINKS, MB, RATE, ends, mbit_per_sec, scope};
use crate::Effort;
use crate::masqd::ENGINE;

const MOUSE: usize = 256 << 10;
/// The elephant is a row of these, two of which are on their way.
const PIECE: usize = 10 * MB;
/// The most that the 99th percentile is of that on one path.
const BAR: f64 = 1.0 / 3.0;

/// Mice of 256 KiB, one after another.
pub fn measure(effort: &Effort, world: &World) -> Res<Vec<Record>> {
    let run = Duration::from_secs(effort.pick(10, 2));
    let ends = [ends(world, LINKS)?, ends(world, 1)?];
    let mut transfers: Vec<[Transfer; 2]> =
        ends.iter().map(|ends: &Ends| Ok([ends.connect()?, ends.connect()?])).collect::<Res<_>>()?;
    let mut all: [Samples; 2] = Default::default();
    let mut percentiles: [[Samples; 2]; 2] = Default::default();
    let mut rates: [Samples; 2] = Default::default();
    for _ in 0..effort.pick(15, 2) {
        for (k, [elephant, mouse]) in transfers.iter_mut().enumerate() {
            let (times, rate) = beside(elephant, mouse, run)?;
            times.values().iter().for_each(|time| all[k].push(*time));
            for (samples, percent) in percentiles.iter_mut().zip([50.0, 99.0]) {
                samples[k].push(times.percentile(percent));
            }
            rates[k].push(rate);
        }
    }
    ends.iter().try_for_each(Ends::close)?;
    let scope = scope(format!("{LINKS} x {RATE}mbit"));
    let record = |name: &str, [all, one]: &[Samples; 2], unit| {
        Record::new(format!("{name}_{LINKS}_paths"), &scope, all, unit).of(ENGINE).beside("one path", one)
    };
    let [p50, p99] = &percentiles;
    Ok(vec![
        record("write_fct_256KiB_each_beside_elephant", &all, "ms"),
        record("write_fct_256KiB_p50_beside_elephant", p50, "ms"),
        record("write_fct_256KiB_p99_beside_elephant", p99, "ms").at_most(BAR),
        record("elephant_rate_beside_mice", &rates, "Mbit/s"),
    ])
}

/// Milliseconds of each mouse, and Mbit/s of the elephant.
fn beside(elephant: &mut Transfer, mouse: &mut Transfer, run: Duration) -> Res<(Samples, f64)> {
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let elephant = scope.spawn(|| elephant.walk(PIECE, &ended));
        // It has found its rate by then.
        std::thread::sleep(Duration::from_secs(1));
        let (start, mut times) = (Instant::now(), Samples::EMPTY);
        let mice = || -> Res<Samples> {
            while start.elapsed() < run {
                times.push(mouse.time(MOUSE)?.as_secs_f64() * 1e3);
            }
            Ok(times)
        };
        let times = mice();
        ended.store(true, Relaxed);
        let (bytes, time) = elephant.join().map_err(|_| "the elephant has panicked")??;
        Ok((times?, mbit_per_sec(bytes, time)))
    })
}
