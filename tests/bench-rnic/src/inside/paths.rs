//! What several paths take beside one: instructions of the guest's library and of an engine at either end, for each byte of large messages, and for short messages.

use std::num::NonZero;
use std::thread;

use bench_record::{Record, Res};

use super::count::{Case, Run, count};
use crate::Effort;
use crate::stream::MIB;

/// The most that several paths may take of large messages, beside one path.
const LARGE: f64 = 1.15;
/// The shortest message of which that is asked.
const FROM: usize = MIB;
/// The most that several paths may take of short messages.
const SHORT: f64 = 1.05;
/// Bytes of a short message.
const BYTES: usize = 2;
/// Paths that a connection has beside which short messages are looked at.
const PATHS: usize = 4;

const ENGINE: &str = "bench-rnic under callgrind: turns of an engine";
const LIBRARY: &str = "bench-rnic under callgrind: ibv_post_send and ibv_poll_cq of the guest's library";
const BOTH: &str = "bench-rnic under callgrind: the guest's library, and turns of the sender's engine";

/// All of it.
pub fn measure(effort: &Effort) -> Res<Vec<Record>> {
    let mut records = large(effort)?;
    records.extend(short()?);
    Ok(records)
}

/// Large writes, one after another: by number of paths and length.
fn large(effort: &Effort) -> Res<Vec<Record>> {
    let sizes: &[usize] = effort.pick(&[128 << 10, MIB, 8 * MIB, 100_000_000], &[MIB]);
    let paths: &[usize] = effort.pick(&[1, 2, 4, 8, 10, 16], &[1, 4]);
    let cases = [Case::BytesSending, Case::BytesReceiving, Case::Library];
    let mut runs = Vec::new();
    for &size in sizes {
        for &paths in paths {
            runs.extend(cases.map(|case| Run { case, size, paths, depth: Some(1) }));
        }
    }
    let counted = count_all(&runs)?;
    let mut records = Vec::new();
    for (&size, of_size) in sizes.iter().zip(counted.chunks(cases.len() * paths.len())) {
        let mut one = None;
        for (&paths, counted) in paths.iter().zip(of_size.chunks(cases.len())) {
            let [sending, receiving, library] = counted else { return Err("too few".into()) };
            let each = [*sending, *receiving, *library, sending + library].map(|n| n / size as f64);
            let one = one.get_or_insert(each);
            let scope = format!("WRITE of {}, {}", length(size), of_paths(paths));
            let names = [
                ("multipath_cpu_engine_sending", ENGINE),
                ("multipath_cpu_engine_receiving", ENGINE),
                ("multipath_cpu_library_posting", LIBRARY),
                ("multipath_cpu_sender", BOTH),
            ];
            for (k, (name, process)) in names.into_iter().enumerate() {
                let record = Record::new(name, &scope, each[k], "instr/B").of(process);
                records.push(match paths {
                    1 => record,
                    // One request takes the library as long whatever its length: chunks are more than that, of however little.
                    _ if k == 2 || size < FROM => record.beside("one path", one[k]),
                    _ => record.beside("one path", one[k]).at_most(LARGE),
                });
            }
        }
    }
    Ok(records)
}

/// Short writes: of a queue pair that has several paths, and of one that has not.
fn short() -> Res<Vec<Record>> {
    let what = [
        ("multipath_short_library_post", "", Case::Post, None),
        ("multipath_short_library_post", ", inline", Case::PostInline, None),
        ("multipath_short_library_post", ", in parts", Case::PostInParts, None),
        ("multipath_short_library_poll", "", Case::Poll, None),
        ("multipath_short_engine_sending", ", one after another", Case::BytesSending, Some(1)),
        ("multipath_short_engine_sending", ", 32 posted at once", Case::BytesSending, Some(32)),
        ("multipath_short_engine_receiving", ", one after another", Case::BytesReceiving, Some(1)),
        ("multipath_short_engine_receiving", ", 32 posted at once", Case::BytesReceiving, Some(32)),
    ];
    let mut runs = Vec::new();
    for (_, _, case, depth) in what {
        runs.extend([1, PATHS].map(|paths| Run { case, size: BYTES, paths, depth }));
    }
    let counted = count_all(&runs)?;
    let record = |((name, how, case, _), counted): (_, &[f64])| {
        let [off, on] = counted else { return Err("too few".into()) };
        let process =
            if matches!(case, Case::BytesSending | Case::BytesReceiving) { ENGINE } else { LIBRARY };
        let scope = format!("WRITE of {BYTES} B{how}, {}", of_paths(PATHS));
        Ok(Record::new(name, scope, *on, "instr").of(process).beside("one path", *off).at_most(SHORT))
    };
    what.into_iter().zip(counted.chunks(2)).map(record).collect()
}

/// What is counted does not depend on what else runs: as many at a time as there are processors.
fn count_all(runs: &[Run]) -> Res<Vec<f64>> {
    let at_once = thread::available_parallelism().map_or(1, NonZero::get);
    let mut all = Vec::with_capacity(runs.len());
    for some in runs.chunks(at_once) {
        thread::scope(|scope| {
            let counted = some.iter().map(|run| scope.spawn(|| count(run))).collect::<Vec<_>>();
            for it in counted {
                all.push(it.join().map_err(|_| "a count has failed")??);
            }
            Res::Ok(())
        })?;
    }
    Ok(all)
}

fn length(bytes: usize) -> String {
    match bytes {
        MIB.. if bytes.is_multiple_of(MIB) => format!("{} MiB", bytes / MIB),
        1_000_000.. => format!("{} MB", bytes / 1_000_000),
        _ => format!("{} KiB", bytes >> 10),
    }
}

fn of_paths(paths: usize) -> String {
    if paths == 1 { "one path".into() } else { format!("{paths} paths") }
}
