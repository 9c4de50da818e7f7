//! How long a work request may be before the network loses some of it, on more and more paths (Virtuoso's table of chunk sizes).
//!
//! A host's link carries what ten links between the switches do, and so fills one of them ten times as fast as it empties. As in Virtuoso, each path is an
//! ordinary queue pair with an underlay address of its own, the RNIC repairs nothing by itself (no masq features, no control, no retries), and
//! [`Lossy`] decides how long the one work request of each path is.

use std::collections::VecDeque;
use std::thread::sleep;
use std::time::{Duration, Instant};

use bench_record::{Record, Res, Samples};
use guest_sim::suite::{Conn, Pair, Placement, Setup, Side, World, layout, status_name};
use guest_sim::verbs::{ConnectAttr, Cq, Mr, QpCaps, wr};
use guest_sim::{Layout, VnicSpec};
use mp_core::pace::{ChunkControl, Lossy};
use vrdma_abi::control::QP_STATE_RESET;
use vrdma_abi::ring::{Cqe, SEND_OP_RDMA_WRITE, WC_RETRY_EXC_ERR, WC_SUCCESS, WC_WR_FLUSH_ERR};

use super::{LINKS, RATE, shape};
use crate::Effort;
use crate::link::limit_host;
use crate::masqd::ENGINE;
use crate::stream::{KIB, MIB, MTU_4096};

const PATHS: [u8; 6] = [1, 2, 4, 6, 8, LINKS];
/// Sizes begin with this, and grow by [`STEP`] after the first loss.
const START: u64 = 64 * KIB as u64;
const STEP: u64 = 16 * KIB as u64;
const MOST: u64 = 4 * MIB as u64;
/// A queue pair's number in its PSNs, so that packets of the one before are none of its own.
const LIFE: u32 = 0x01_0000;

/// One path: two guests of their own, and a queue pair between them.
struct Path<'w> {
    pair: Pair<'w>,
    conn: Conn,
    here: Mr,
    there: Mr,
    setup: Setup,
    /// Bytes of the work request that is under way, if one is.
    under_way: Option<u64>,
    /// When others had come to an end, and how long they were.
    done: VecDeque<(Instant, u64)>,
    losses: u32,
}

/// Sizes at which the control arrives, for each number of paths.
pub fn measure(effort: &Effort) -> Res<Vec<Record>> {
    let world = start(effort)?;
    let run = Duration::from_secs(effort.pick(20, 4));
    let mut settled: [[Samples; 4]; PATHS.len()] = Default::default();
    for _ in 0..effort.pick(5, 1) {
        for (paths, samples) in PATHS.into_iter().zip(&mut settled) {
            let found = settle(&world, paths, run)?;
            for (samples, value) in samples.iter_mut().zip(found) {
                samples.push(value);
            }
        }
    }
    let mut records = Vec::new();
    for (paths, [total, each, rate, losses]) in PATHS.into_iter().zip(&settled) {
        let scope = format!(
            "two switches, host {}mbit, tbf {paths} x {RATE}mbit burst 64k latency 10ms",
            u32::from(LINKS) * RATE
        );
        let record = |name: &str, samples, unit| {
            Record::new(format!("{name}_{paths}_paths"), &scope, samples, unit).of(ENGINE)
        };
        records.push(record("lossless_chunk_total", total, "KB"));
        records.push(record("lossless_chunk_mean", each, "KB"));
        records.push(record("lossless_chunk_rate", rate, "Mbit/s"));
        records.push(record("lossless_chunk_losses", losses, "1/s"));
    }
    Ok(records)
}

/// In the second half of a run: what all paths together have under way, in KB; each; the rate in Mbit/s; and work requests that were lost, in each second.
fn settle(world: &World, paths: u8, run: Duration) -> Res<[f64; 4]> {
    let mut paths: Vec<Path> = (0..paths).map(|path| Path::open(world, path)).collect::<Res<_>>()?;
    let mut control = Lossy::new(START, STEP, MOST);
    let start = Instant::now();
    let mut half = None;
    while start.elapsed() < run {
        if start.elapsed() > run / 2 && half.is_none() {
            half = Some(Instant::now());
            paths.iter_mut().for_each(|path| path.losses = 0);
        }
        let mut news = false;
        for (number, path) in paths.iter_mut().enumerate() {
            news |= path.go_on(number, &mut control)?;
        }
        if !news {
            sleep(Duration::from_micros(50));
        }
    }
    let half = half.ok_or("the run was too short")?;
    let seconds = half.elapsed().as_secs_f64();
    let (mut total, mut bytes, mut losses) = (0.0, 0, 0);
    for path in &paths {
        let sizes: Vec<u64> = path.done.iter().filter(|(at, _)| *at > half).map(|(_, size)| *size).collect();
        if sizes.is_empty() {
            return Err("a path has completed nothing for half of a run".into());
        }
        let sum: u64 = sizes.iter().sum();
        total += sum as f64 / sizes.len() as f64 / 1e3;
        bytes += sum;
        losses += path.losses;
        path.pair.close()?;
    }
    let each = total / paths.len() as f64;
    Ok([total, each, bytes as f64 * 8.0 / seconds / 1e6, f64::from(losses) / seconds])
}

impl<'w> Path<'w> {
    fn open(world: &'w World, path: u8) -> Res<Self> {
        let [a, b] = names(path);
        let pair =
            Pair { world, placement: Placement::Remote, a: Side::open(world, a), b: Side::open(world, b) };
        let (here, there) = (pair.a.buffer(MOST as usize), pair.b.buffer(MOST as usize));
        here.fill(0, MOST as usize, 0x5a);
        there.fill(0, MOST as usize, 0);
        // The first loss is told, as a sign of the network's, and not repaired.
        let attr = ConnectAttr { path_mtu: MTU_4096, retry_cnt: 0, ..ConnectAttr::default() };
        let setup = Setup { a: attr.clone(), b: attr, ..Setup::caps(QpCaps::default()) };
        let conn = pair.connect_with(&setup);
        Ok(Path { pair, conn, here, there, setup, under_way: None, done: VecDeque::new(), losses: 0 })
    }

    /// Takes a completion, or posts the next work request; whether there was anything to do.
    fn go_on(&mut self, number: usize, control: &mut Lossy) -> Res<bool> {
        let qp = &self.conn.a;
        let Some(bytes) = self.under_way else {
            let bytes = control.room_bytes(number, 0);
            let write = wr::rdma(SEND_OP_RDMA_WRITE, 1, &self.there, 0);
            qp.post_send(&write, &[self.here.sge(0, bytes as usize)]).map_err(|e| format!("{e:?}"))?;
            self.under_way = Some(bytes);
            return Ok(true);
        };
        let Some(cqe) = qp.send_cq().poll() else { return Ok(false) };
        qp.retire(&cqe);
        self.under_way = None;
        match cqe.status {
            WC_SUCCESS => {
                control.completed(number, bytes);
                self.done.push_back((Instant::now(), bytes));
            }
            WC_RETRY_EXC_ERR => {
                control.lost(number, bytes);
                self.losses += 1;
                self.reconnect()?;
            }
            status => return Err(format!("a work request fails: {}", status_name(status)).into()),
        }
        Ok(true)
    }

    /// A new life for both queue pairs.
    fn reconnect(&mut self) -> Res<()> {
        let other = |e| format!("a queue pair cannot be reset: {e}");
        for qp in [&self.conn.a, &self.conn.b] {
            qp.to_state(QP_STATE_RESET).map_err(other)?;
            drain(qp.send_cq())?;
        }
        for attr in [&mut self.setup.a, &mut self.setup.b] {
            attr.sq_psn = (attr.sq_psn + LIFE) & 0xff_ffff;
            attr.rq_psn = attr.sq_psn;
        }
        self.conn.connect(&self.pair, &self.setup);
        Ok(())
    }
}

/// What a queue pair that has failed leaves behind.
fn drain(cq: &Cq) -> Res<()> {
    while let Some(Cqe { status, .. }) = cq.poll() {
        if status != WC_WR_FLUSH_ERR {
            return Err(format!("after a loss: {}", status_name(status)).into());
        }
    }
    Ok(())
}

/// Two hosts whose vNICs have an underlay address each, on a path each.
fn start(effort: &Effort) -> Res<World> {
    let (mut vnics, mut aliases) = (Vec::new(), Vec::new());
    for path in 0..LINKS {
        for (host, name) in [1, 2].into_iter().zip(names(path)) {
            vnics.push(VnicSpec { name, vpc: "blue", host, address: [192, 168, 0, 2 * path + host].into() });
            aliases.push((name, path));
        }
    }
    let masqd_args = ["--congestion", "none", "--standard"].map(String::from).to_vec();
    let groups = vec!["blue"];
    let layout = Layout { vnics, groups, paths: LINKS, switches: true, aliases, masqd_args, ..layout() };
    let fewer_paths = layout.vnics.iter().map(|vnic| (vnic.name, 1)).collect();
    let world = World::start(&effort.programs, Layout { fewer_paths, ..layout })?;
    (0..LINKS).try_for_each(|path| shape(&world, path, RATE))?;
    limit_host(&world, LINKS, u32::from(LINKS) * RATE)?;
    Ok(world)
}

/// The vNICs of a path.
fn names(path: u8) -> [&'static str; 2] {
    const NAMES: [[&str; 2]; 10] = [
        ["a0", "b0"],
        ["a1", "b1"],
        ["a2", "b2"],
        ["a3", "b3"],
        ["a4", "b4"],
        ["a5", "b5"],
        ["a6", "b6"],
        ["a7", "b7"],
        ["a8", "b8"],
        ["a9", "b9"],
    ];
    NAMES[usize::from(path)]
}
