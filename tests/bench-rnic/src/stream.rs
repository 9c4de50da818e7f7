//! Queue pairs that keep writing or reading, and what they have moved.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bench_record::{Record, Res, Samples};
use guest_sim::suite::{Conn, Pair, Placement, Setup, World, layout};
use guest_sim::verbs::{ConnectAttr, Cq, Mr, QpCaps, wr};
use guest_sim::{Cluster, Layout};
use vrdma_abi::ring::{SEND_OP_RDMA_WRITE, WC_SUCCESS};

use crate::Effort;
use crate::masqd::ENGINE;

/// Bytes of a KiB.
pub const KIB: usize = 1 << 10;
/// Bytes of a MiB.
pub const MIB: usize = 1 << 20;
/// Messages walk through this much memory on both sides, as the memcpy beside them does.
const WALK: usize = 64 << 20;
/// Path MTU of 4096 bytes, in the verbs' encoding.
pub const MTU_4096: u8 = 5;
/// Path MTU of 1024 bytes.
pub const MTU_1024: u8 = 3;

/// Two hosts and their guests; the link between them has this MTU, each masqd these arguments.
pub fn world(effort: &Effort, link_mtu: u32, masqd_args: &[&str]) -> Res<World> {
    let masqd_args = masqd_args.iter().map(|a| (*a).to_owned()).collect();
    let layout = Layout { link_mtu, masqd_args, ..layout() };
    Ok(World::start(&effort.programs, layout)?)
}

/// The name of a placement in records.
pub fn scope(placement: Placement) -> &'static str {
    match placement {
        Placement::Local => "one host",
        Placement::Remote => "two namespaces",
    }
}

/// What to keep on the way.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// RDMA WRITE or READ.
    pub opcode: u8,
    /// Bytes of a message.
    pub len: usize,
    /// Messages of each queue pair that are on their way at once.
    pub depth: usize,
}

impl Load {
    /// Writes with 4 MiB on their way, 2 to 128 of them.
    pub fn writes(len: usize) -> Self {
        Load { opcode: SEND_OP_RDMA_WRITE, len, depth: (4 * MIB / len).clamp(2, 128) }
    }
}

/// What was moved in a run.
#[derive(Debug)]
pub struct Moved {
    /// By each queue pair that took part.
    pub messages: Vec<u64>,
    /// From the first post to the last completion.
    pub time: Duration,
}

impl Moved {
    /// Messages a second, of all.
    pub fn rate(&self) -> f64 {
        self.messages.iter().sum::<u64>() as f64 / self.time.as_secs_f64()
    }
}

/// Connections between two guests that share a completion queue at each side, and memory to transfer.
pub struct Streams {
    conns: Vec<Conn>,
    by_cookie: HashMap<u32, usize>,
    cq: Arc<Cq>,
    here: Mr,
    there: Mr,
}

impl Streams {
    /// `count` connections with room for `depth` messages each.
    pub fn new(pair: &Pair, count: usize, depth: usize, path_mtu: u8) -> Res<Self> {
        let caps = QpCaps {
            send_wr: depth as u32,
            recv_wr: 1,
            send_sge: 1,
            recv_sge: 1,
            inline_bytes: 16,
            ..QpCaps::default()
        };
        let attr = ConnectAttr { path_mtu, ..ConnectAttr::default() };
        let setup = Setup { caps_a: caps.clone(), caps_b: caps.clone(), a: attr.clone(), b: attr, cqe: 0 };
        let cq = pair.a.ctx.create_cq((count * depth) as u32 + 16, 0)?;
        let peers_cq = pair.b.ctx.create_cq(count as u32 + 16, 0)?;
        let (here, there) = (pair.a.buffer(WALK), pair.b.buffer(WALK));
        here.fill(0, WALK, 0x5a);
        let mut conns = Vec::with_capacity(count);
        for _ in 0..count {
            let conn = Conn {
                a: pair.a.pd.create_qp(&cq, &cq, &caps)?,
                b: pair.b.pd.create_qp(&peers_cq, &peers_cq, &caps)?,
            };
            conn.connect(pair, &setup);
            conns.push(conn);
        }
        let by_cookie = conns.iter().enumerate().map(|(k, c)| (c.a.cookie, k)).collect();
        Ok(Streams { conns, by_cookie, cq, here, there })
    }

    /// Lets the first `active` of the connections work for `run`.
    pub fn run(&self, active: usize, load: Load, run: Duration) -> Res<Moved> {
        let active = active.min(self.conns.len());
        let mut flight = Flight { load, posted: 0, on_way: 0, messages: vec![0; active] };
        let start = Instant::now();
        for _ in 0..load.depth {
            for k in 0..active {
                self.post(k, &mut flight)?;
            }
        }
        while flight.on_way > 0 {
            let on = start.elapsed() < run;
            if self.take(on, &mut flight)? {
                continue;
            }
            // Short messages come at once, and long ones need the processor more than this program does.
            if load.len <= KIB {
                std::thread::yield_now()
            } else {
                std::thread::sleep(Duration::from_micros(30))
            }
        }
        Ok(Moved { time: start.elapsed(), messages: flight.messages })
    }

    /// Takes the completions that are there, and posts again instead of them if `on`. Returns whether there were any.
    fn take(&self, on: bool, flight: &mut Flight) -> Res<bool> {
        let mut any = false;
        while let Some(cqe) = self.cq.poll() {
            if cqe.status != WC_SUCCESS {
                return Err(format!(
                    "a queue pair gave up: status {}, vendor error {}",
                    cqe.status, cqe.vendor_err
                )
                .into());
            }
            let k = *self.by_cookie.get(&cqe.cookie).ok_or("a completion of nobody")?;
            self.conns[k].a.retire(&cqe);
            flight.messages[k] += 1;
            flight.on_way -= 1;
            any = true;
            if on {
                self.post(k, flight)?;
            }
        }
        Ok(any)
    }

    fn post(&self, k: usize, flight: &mut Flight) -> Res<()> {
        let Load { opcode, len, .. } = flight.load;
        let at = (flight.posted as usize * len) % WALK;
        let request = wr::rdma(opcode, flight.posted, &self.there, at);
        let qp = &self.conns[k].a;
        let posted = if opcode == SEND_OP_RDMA_WRITE && len <= 16 {
            qp.post_inline(&request, &[0x5a; 16][..len])
        } else {
            qp.post_send(&request, &[self.here.sge(at, len)])
        };
        posted.map_err(|e| format!("a request does not fit: {e:?}"))?;
        flight.posted += 1;
        flight.on_way += 1;
        Ok(())
    }

    /// Speed of the first connection, in bytes a second.
    pub fn bytes_per_sec(&self, load: Load, run: Duration) -> Res<f64> {
        Ok(self.run(1, load, run)?.rate() * load.len as f64)
    }
}

/// Writes of 8 bytes by the first connection, in thousands a second. Nothing is compared with it.
pub fn short_writes(streams: &Streams, effort: &Effort, scope: &str) -> Res<Record> {
    let load = Load { opcode: SEND_OP_RDMA_WRITE, len: 8, depth: 128 };
    let mut rate = Samples::default();
    for _ in 0..effort.runs() {
        rate.push(streams.run(1, load, effort.run())?.rate() / 1e3);
    }
    Ok(Record::new("write_rate_8B", scope, &rate, "k/s").of(ENGINE))
}

struct Flight {
    load: Load,
    posted: u64,
    on_way: u64,
    messages: Vec<u64>,
}

/// iperf3 between the hosts of a world.
pub fn tcp(world: &World) -> Res<crate::tcp::Tcp<'_>> {
    let cluster: &Cluster = &world.cluster;
    Ok(crate::tcp::Tcp::start(cluster)?)
}
