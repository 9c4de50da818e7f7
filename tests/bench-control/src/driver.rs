//! What the RNIC's part of each verb costs: driver calls to an RNIC in this process, under the names of the verbs. MODIFY_QP
//! asks for the queue pair's state first, as masqd does.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Instant;

use bench_record::Res;
use masq_driver::*;
use masq_rnic::{Rnic, RnicConfig, limits};
use masq_types::{Features, Gid, Mtu, Psn, Qpn, WireQpn};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use vrdma_abi::ring::{CQE_BYTES, ring_pages};

use crate::latency::Times;
use crate::objects::vni;
use crate::verbs::{ENTRIES, GIB, INLINE, SGES, rq_shift, sq_shift};

const VNIC: VnicId = VnicId(1);
/// Sparse: next to nothing of it is touched.
const MEMORY_BYTES: u64 = 2 << 30;

struct Deaf;

impl EventSink for Deaf {
    fn event(&self, _: Event) {}
}

/// Microseconds of driver calls, by verb.
pub fn times(rounds: u32) -> Res<Times> {
    let config = RnicConfig { seed: [7; 32], ..RnicConfig::default() };
    let rnic = Rnic::start(config, Arc::new(Deaf))?;
    let underlay = IpAddr::from(Ipv4Addr::new(127, 0, 0, 77));
    rnic.execute(Command::AttachVnic { vnic: VNIC, vni: vni(), epoch: 1, addresses: vec![underlay] })?;
    let fd = memfd_create("guest", MemfdFlags::ALLOW_SEALING | MemfdFlags::CLOEXEC)?;
    ftruncate(&fd, MEMORY_BYTES)?;
    fcntl_add_seals(&fd, SealFlags::SHRINK)?;
    let memory = MemoryRegion { gpa: Gpa(0), len: MEMORY_BYTES, fd, offset: 0 };
    rnic.execute(Command::SetMemory { vnic: VNIC, regions: vec![memory] })?;
    let mut times = Times::new();
    for n in 0..rounds {
        life(&rnic, underlay, n, &mut times)?;
    }
    for n in rounds..2 * rounds {
        region(&rnic, n, GIB, ["create_mr_1GiB", "destroy_mr_1GiB"], &mut times)?;
    }
    Ok(times)
}

/// A page list that begins at `first`.
fn pages(first: u64, count: u64) -> PageList {
    PageList { shift: 12, pages: (first..first + count).map(|n| n << 12).collect() }
}

/// Executes commands, and notes how long they have taken together.
fn time(rnic: &Rnic, times: &mut Times, verb: &'static str, commands: Vec<Command>) -> Res<()> {
    let start = Instant::now();
    for command in commands {
        rnic.execute(command)?;
    }
    times.entry(verb).or_default().push_us(start.elapsed());
    Ok(())
}

/// A region comes and goes.
fn region(
    rnic: &Rnic,
    n: u32,
    length: u64,
    [create, destroy]: [&'static str; 2],
    times: &mut Times,
) -> Res<()> {
    let access = Access { local_write: true, remote_write: true, ..Access::default() };
    let (vnic, mr, pd) = (VNIC, MrHandle(n), PdHandle(n));
    let attr = MrAttr {
        mr,
        pd,
        access,
        kind: MrKind::Pages { iova: 1 << 32, length, pages: pages(0, length >> 12) },
    };
    time(rnic, times, create, vec![Command::CreateMr { vnic, mr: attr }])?;
    time(rnic, times, destroy, vec![Command::DestroyMr { vnic, mr }])
}

/// All handles are `base`.
fn life(rnic: &Rnic, underlay: IpAddr, base: u32, times: &mut Times) -> Res<()> {
    let vnic = VNIC;
    let (ctx, pd, cq, qp) = (CtxHandle(base), PdHandle(base), CqHandle(base), QpHandle(base));
    let doorbells = (0..u64::from(limits::SLOTS)).map(|n| Gpa(n << 12)).collect();
    time(rnic, times, "create_context", vec![Command::CreateContext { vnic, ctx, doorbells }])?;
    let ring = pages(64, ring_pages(ENTRIES, CQE_BYTES.trailing_zeros() as u8));
    time(
        rnic,
        times,
        "create_cq",
        vec![Command::CreateCq { vnic, cq: CqAttr { cq, entries: ENTRIES, vector: 0, ring } }],
    )?;
    let queue = |first, stride_shift| WorkQueueAttr {
        entries: ENTRIES,
        stride_shift,
        max_sge: SGES,
        ring: pages(first, ring_pages(ENTRIES, stride_shift)),
    };
    let number = 0x4000 + base % 4096;
    let init = QpInit {
        qp,
        ctx,
        pd: Some(pd),
        qp_type: QpType::Rc,
        kernel: false,
        qpn: Qpn::new(number).ok_or("a QPN")?,
        wire_qpn: WireQpn::from_wire(number),
        send_cq: Some(cq),
        recv_cq: Some(cq),
        cookie: base,
        signal_all: false,
        max_inline_bytes: INLINE,
        sq: Some(queue(80, sq_shift())),
        receives: Receives::Own(queue(96, rq_shift())),
        group: None,
    };
    time(rnic, times, "create_qp", vec![Command::CreateQp { vnic, qp: init }])?;
    for (verb, change) in changes(underlay, number) {
        let modify = Command::ModifyQp { vnic, qp, change };
        time(rnic, times, verb, vec![Command::QueryQp { vnic, qp }, modify])?;
    }
    time(rnic, times, "query_qp", vec![Command::QueryQp { vnic, qp }])?;
    time(rnic, times, "destroy_qp", vec![Command::DestroyQp { vnic, qp }])?;
    time(rnic, times, "destroy_cq", vec![Command::DestroyCq { vnic, cq }])?;
    time(rnic, times, "destroy_context", vec![Command::DestroyContext { vnic, ctx }])?;
    region(rnic, base, 4096, ["create_mr_4KiB", "destroy_mr_4KiB"], times)
}

/// From RESET to RTS; the peer is on the same host.
fn changes(underlay: IpAddr, number: u32) -> [(&'static str, QpChange); 3] {
    let step = |from, to| QpChange { from: Some(from), to: Some(to), ..QpChange::default() };
    let connection = Connection {
        local: underlay,
        remote: underlay,
        remote_qpn: WireQpn::from_wire(number),
        other_paths: Vec::new(),
        udp_source_port: 0xc000,
        traffic_class: 0,
        hop_limit: 64,
        features: Features::NONE,
        virtual_local: Gid::from(underlay),
        virtual_remote: Gid::from(underlay),
    };
    let init = QpChange {
        access: Some(Access { remote_write: true, ..Access::default() }),
        ..step(QpState::Reset, QpState::Init)
    };
    let rtr = QpChange {
        connection: Some(connection),
        path_mtu: Some(Mtu::B1024),
        rq_psn: Some(Psn::new(0)),
        max_dest_rd_atomic: Some(16),
        min_rnr_timer: Some(12),
        ..step(QpState::Init, QpState::Rtr)
    };
    let rts = QpChange {
        sq_psn: Some(Psn::new(0)),
        max_rd_atomic: Some(16),
        timeout: Some(14),
        retry_cnt: Some(7),
        rnr_retry: Some(7),
        ..step(QpState::Rtr, QpState::Rts)
    };
    [("init", init), ("rtr", rtr), ("rts", rts)]
}
