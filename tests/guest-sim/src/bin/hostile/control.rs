//! Control requests that make no sense.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use guest_sim::suite::{Rng, Side, World};
use guest_sim::verbs::Guest;
use guest_sim::{Device, GuestRam};
use vrdma_abi::control::*;
use zerocopy::IntoBytes;

use crate::{ATTACKERS, Test};

pub const TESTS: &[Test] = &[
    ("random_control_requests", random_requests),
    ("valid_control_requests_with_a_few_wrong_bits", mutated_requests),
    ("page_tables_that_cannot_be", bad_page_tables),
    ("page_tables_that_change_while_they_are_read", changing_page_tables),
    ("more_objects_than_the_quota", quotas),
    ("descriptors_that_lead_nowhere", bad_descriptors),
];

/// Sends bytes as a request; whatever comes back, something must, and soon.
#[track_caller]
fn answered(guest: &Guest, request: &[u8], reply_len: usize) {
    let started = Instant::now();
    let answer = guest.control().exchange(request, reply_len);
    assert!(answer.is_ok(), "no answer to {request:02x?}");
    assert!(started.elapsed() < Duration::from_secs(2), "{:?} for {request:02x?}", started.elapsed());
}

/// The guest, having misbehaved, can still use its device.
#[track_caller]
fn still_usable(guest: &std::sync::Arc<Guest>) {
    let ctx = guest.open().expect("a context");
    ctx.alloc_pd().expect("a protection domain").buffer(5000).expect("a region");
    ctx.destroy().expect("the context's end");
}

fn random_requests(world: &mut World) {
    let mut rng = Rng::new(1);
    for vnic in ATTACKERS {
        let guest = world.guest(vnic);
        for _ in 0..1500 {
            let len = rng.below(200) as usize;
            let mut request = rng.bytes(len);
            // Mostly an opcode and the epoch that exist, so that more than the first check is reached.
            if len >= Request::SIZE && rng.below(8) > 0 {
                let opcode = rng.below(40) as u16;
                request[..2].copy_from_slice(&opcode.to_le_bytes());
                request[2..4].fill(0);
                request[8..16].copy_from_slice(&guest.config.epoch.to_le_bytes());
            }
            answered(&guest, &request, rng.below(120) as usize);
        }
        still_usable(&guest);
    }
}

/// Requests as the kernel module sends them, of every kind that names memory or other objects.
fn valid_requests(side: &Side) -> Vec<(u16, Vec<u8>)> {
    let guest = &side.guest;
    let memory = guest.ram.alloc(4);
    let gpas = memory.gpas();
    let (table, _tables) = guest.control().page_table(&gpas, 12);
    let cq = side.ctx.create_cq(64, 0).unwrap().handle();
    let qp = side.qp(&Default::default(), 64);
    let h = guest.handle();
    let one = PageTable { addr: gpas[0], count: 1, page_shift: 12, levels: 0, reserved: 0 };
    let create_qp = CreateQp {
        qp: h,
        pd: side.pd.handle(),
        send_cq: cq,
        recv_cq: cq,
        srq: HANDLE_NONE,
        sq_entries: 32,
        rq_entries: 32,
        max_send_sge: 1,
        max_recv_sge: 1,
        sq_stride_shift: 6,
        rq_stride_shift: 6,
        qp_type: QP_TYPE_RC,
        sq: one,
        rq: one,
        ..CreateQp::ZERO
    };
    let mr = CreateMr {
        mr: h,
        pd: side.pd.handle(),
        access: 15,
        flags: 0,
        iova: 0x1234,
        length: 4 * 4096 - 0x234,
        pages: table,
    };
    let modify = ModifyQp {
        qp: qp.handle(),
        mask: QP_ATTR_STATE | QP_ATTR_PKEY_INDEX | QP_ATTR_PORT | QP_ATTR_ACCESS_FLAGS,
        attr: QpAttr { state: QP_STATE_INIT, ..QpAttr::ZERO },
    };
    let region = side.buffer(4096).handle();
    let rereg = ReregMr {
        mr: region,
        flags: REREG_TRANSLATION | REREG_PD | REREG_ACCESS,
        pd: side.pd.handle(),
        access: 7,
        iova: 0x1234,
        length: 4 * 4096 - 0x234,
        pages: table,
    };
    let create_srq = CreateSrq {
        srq: h,
        pd: side.pd.handle(),
        cq: HANDLE_NONE,
        xrcd: HANDLE_NONE,
        entries: 32,
        max_sge: 1,
        stride_shift: 6,
        srq_type: SRQ_TYPE_BASIC,
        limit: 3,
        reserved: 0,
        ring: one,
    };
    let srq = side.pd.create_srq(16, 1).unwrap().handle();
    let of_type = |qp_type| CreateQp { qp_type, ..create_qp };
    let initiator =
        CreateQp { recv_cq: HANDLE_NONE, rq_entries: 0, max_recv_sge: 0, ..of_type(QP_TYPE_XRC_INI) };
    let target = CreateQp {
        pd: HANDLE_NONE,
        send_cq: HANDLE_NONE,
        recv_cq: HANDLE_NONE,
        qp_type: QP_TYPE_XRC_TGT,
        xrcd: h,
        ..CreateQp::ZERO
    };
    let create_mw = CreateMw { mw: h, pd: side.pd.handle(), mw_type: MW_TYPE_2, reserved: [0; 7] };
    vec![
        (OP_REREG_MR, rereg.as_bytes().to_vec()),
        (OP_CREATE_SRQ, create_srq.as_bytes().to_vec()),
        (OP_CREATE_QP, CreateQp { srq, rq_entries: 0, max_recv_sge: 0, ..create_qp }.as_bytes().to_vec()),
        (OP_MODIFY_SRQ, ModifySrq { srq, limit: 5 }.as_bytes().to_vec()),
        (OP_QUERY_SRQ, Destroy { handle: srq, reserved: 0 }.as_bytes().to_vec()),
        (OP_RESIZE_CQ, ResizeCq { cq, entries: 32, ring: one }.as_bytes().to_vec()),
        (OP_CREATE_MW, create_mw.as_bytes().to_vec()),
        (OP_CREATE_XRCD, CreateXrcd { xrcd: h, reserved: 0 }.as_bytes().to_vec()),
        (OP_CREATE_QP, of_type(QP_TYPE_UD).as_bytes().to_vec()),
        (OP_CREATE_QP, of_type(QP_TYPE_UC).as_bytes().to_vec()),
        (OP_CREATE_QP, initiator.as_bytes().to_vec()),
        (OP_CREATE_QP, target.as_bytes().to_vec()),
        (OP_DESTROY_SRQ, Destroy { handle: h, reserved: 0 }.as_bytes().to_vec()),
        (OP_DESTROY_MW, Destroy { handle: h, reserved: 0 }.as_bytes().to_vec()),
        (OP_DESTROY_XRCD, Destroy { handle: h, reserved: 0 }.as_bytes().to_vec()),
        (OP_QUERY_COUNTERS, QueryCounters::ZERO.as_bytes().to_vec()),
        (OP_CREATE_CONTEXT, CreateContext { ctx: h, flags: 0, doorbells: table }.as_bytes().to_vec()),
        (OP_CREATE_MR, mr.as_bytes().to_vec()),
        (
            OP_CREATE_CQ,
            CreateCq { cq: h, ctx: side.ctx.handle(), entries: 32, vector: 0, ring: one }.as_bytes().to_vec(),
        ),
        (OP_CREATE_QP, create_qp.as_bytes().to_vec()),
        (OP_MODIFY_QP, modify.as_bytes().to_vec()),
        (OP_ADD_GID, AddGid { index: 3, reserved: 0, gid: guest.gid().0 }.as_bytes().to_vec()),
        (OP_DESTROY_QP, Destroy { handle: h, reserved: 0 }.as_bytes().to_vec()),
    ]
}

fn mutated_requests(world: &mut World) {
    let mut rng = Rng::new(2);
    let side = Side::open(world, ATTACKERS[0]);
    let guest = &side.guest;
    let valid = valid_requests(&side);
    for round in 0..5000 {
        let (opcode, body) = &valid[round % valid.len()];
        let head = Request { opcode: *opcode, flags: 0, tag: round as u32, epoch: guest.config.epoch };
        let mut request = head.as_bytes().to_vec();
        request.extend_from_slice(body);
        let start = Request::SIZE as u64;
        for _ in 0..1 + rng.below(3) {
            let at = (start + rng.below(request.len() as u64 - start)) as usize;
            request[at] ^= 1 << rng.below(8);
        }
        if rng.below(20) == 0 {
            request.truncate(rng.below(request.len() as u64) as usize);
        }
        answered(guest, &request, 200);
    }
    still_usable(guest);
}

fn bad_page_tables(world: &mut World) {
    let side = Side::open(world, ATTACKERS[0]);
    let guest = &side.guest;
    let page = guest.ram.alloc(1);
    let itself = page.gpa(0);
    for at in 0..512 {
        page.write(8 * at, &itself.to_le_bytes());
    }
    let good = PageTable { addr: itself, count: 1, page_shift: 12, levels: 0, reserved: 0 };
    let region = |length: u64, pages: PageTable| {
        let command = CreateMr {
            mr: guest.handle(),
            pd: side.pd.handle(),
            access: 1,
            flags: 0,
            iova: 0,
            length,
            pages,
        };
        let started = Instant::now();
        let result: Result<CreateMrReply, _> = guest.control().call(OP_CREATE_MR, &command);
        assert!(started.elapsed() < Duration::from_secs(2), "{:?} for {pages:?}", started.elapsed());
        result.map(drop).map_err(|e| e.errno())
    };
    assert_eq!(region(4096, good), Ok(()));
    for (what, length, pages) in [
        ("more pages than the length", 4096, PageTable { count: 2, levels: 1, ..good }),
        ("fewer pages than the length", 4097, good),
        ("no pages", 4096, PageTable { count: 0, ..good }),
        ("four levels", 4096, PageTable { levels: 4, ..good }),
        ("255 levels", 4096, PageTable { levels: 255, ..good }),
        ("pages of 2 KiB", 2048, PageTable { page_shift: 11, ..good }),
        ("pages of 2^63", 4096, PageTable { page_shift: 63, ..good }),
        ("pages of 2^64", 4096, PageTable { page_shift: 64, ..good }),
        ("pages of 2^255", 4096, PageTable { page_shift: 255, ..good }),
        ("a reserved field", 4096, PageTable { reserved: 1, ..good }),
        ("an address within a page", 4096, PageTable { addr: itself + 8, ..good }),
        ("a table within a page", 8192, PageTable { addr: itself + 8, count: 2, levels: 1, ..good }),
        ("an address beyond memory", 4096, PageTable { addr: 1 << 50, ..good }),
        ("a table beyond memory", 8192, PageTable { addr: 1 << 50, count: 2, levels: 1, ..good }),
        ("the last address of all", 4096, PageTable { addr: !4095, ..good }),
        ("too many pages for one level", 513 * 4096, PageTable { count: 513, levels: 1, ..good }),
        ("a length beyond all", u64::MAX, PageTable { count: u32::MAX, levels: 3, ..good }),
    ] {
        let errno = region(length, pages).expect_err(what);
        assert!([libc::EINVAL, libc::EFAULT].contains(&errno), "{what}: errno {errno}");
    }
    // The same page over and over: a region larger than all of the guest's memory. It may be had or not, but
    // must not cost the host more memory than the guest has.
    let huge = PageTable { count: 1 << 27, levels: 3, ..good };
    let _ = region((1 << 27) * 4096, huge);
    let pid = world.cluster.masqd_pid(1).expect("masqd");
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let rss = status.lines().find_map(|l| l.strip_prefix("VmRSS:")).expect("VmRSS");
    let kib: u64 = rss.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(kib < 1 << 20, "masqd has grown to {kib} KiB");
    still_usable(guest);
}

/// One thread writes tables, the other has them read.
fn changing_page_tables(world: &mut World) {
    let side = Side::open(world, ATTACKERS[0]);
    let guest = &side.guest;
    let memory = guest.ram.alloc(1024);
    let gpas = memory.gpas();
    let (pages, tables) = guest.control().page_table(&gpas, 12);
    let tables = tables.expect("1024 pages need tables");
    let stop = AtomicBool::new(false);
    std::thread::scope(|s| {
        s.spawn(|| {
            let mut rng = Rng::new(3);
            while !stop.load(Ordering::Relaxed) {
                let at = 8 * rng.below(tables.len() as u64 / 8) as usize;
                let before = tables.read(at, 8);
                let wild = rng.pick(&[0, 1, !4095, 1 << 40, 4095, gpas[5]]);
                tables.write(at, &wild.to_le_bytes());
                std::hint::spin_loop();
                tables.write(at, &before);
            }
        });
        for _ in 0..300 {
            let mr = guest.handle();
            let length = gpas.len() as u64 * 4096;
            let command = CreateMr { mr, pd: side.pd.handle(), access: 15, flags: 0, iova: 0, length, pages };
            // It may find all in order or not.
            let _: Result<CreateMrReply, _> = guest.control().call(OP_CREATE_MR, &command);
            guest.control().run(OP_DESTROY_MR, &Destroy { handle: mr, reserved: 0 }).unwrap();
        }
        stop.store(true, Ordering::Relaxed);
    });
    still_usable(guest);
}

fn quotas(world: &mut World) {
    let side = Side::open(world, ATTACKERS[0]);
    let guest = &side.guest;
    let mut contexts = Vec::new();
    let refused = loop {
        match guest.open() {
            Ok(ctx) => contexts.push(ctx),
            Err(e) => break e.errno(),
        }
        assert!(contexts.len() as u32 <= guest.config.max_contexts, "more contexts than announced");
    };
    assert_eq!(refused, libc::EDQUOT);
    for ctx in &contexts {
        ctx.destroy().unwrap();
    }
    let mut domains = 1;
    let refused = loop {
        match side.ctx.alloc_pd() {
            Ok(_) => domains += 1,
            Err(e) => break e.errno(),
        }
        assert!(domains <= guest.config.max_pds, "more protection domains than announced");
    };
    assert_eq!(refused, libc::EDQUOT);
    side.ctx.destroy().unwrap();
    still_usable(guest);
}

const DESC_NEXT: u16 = 1;
const DESC_WRITE: u16 = 2;
const DESC_INDIRECT: u16 = 4;

fn descriptor(addr: u64, len: u32, flags: u16, next: u16) -> [u8; 16] {
    let mut d = [0; 16];
    d[..8].copy_from_slice(&addr.to_le_bytes());
    d[8..12].copy_from_slice(&len.to_le_bytes());
    d[12..14].copy_from_slice(&flags.to_le_bytes());
    d[14..].copy_from_slice(&next.to_le_bytes());
    d
}

/// A control queue whose descriptors are wrong. It may stop working; nothing else may.
fn bad_descriptors(world: &mut World) {
    let socket = world.cluster.socket(ATTACKERS[0]);
    let mut rng = Rng::new(5);
    for round in 0..24 {
        let ram = GuestRam::new(16 << 20).unwrap();
        let device = Device::connect_with(&socket, ram.clone()).expect("the device starts");
        let page = ram.alloc(1).gpa(0);
        let chain: Vec<[u8; 16]> = match round {
            0 => vec![descriptor(page, 16, DESC_NEXT, 0)],
            1 => vec![descriptor(page, 16, DESC_NEXT, 1), descriptor(page, 16, DESC_NEXT, 0)],
            2 => vec![descriptor(page, 16, DESC_NEXT, 9999)],
            3 => vec![descriptor(1 << 50, 16, DESC_NEXT, 1), descriptor(page, 64, DESC_WRITE, 0)],
            4 => vec![descriptor(page, 16, DESC_NEXT, 1), descriptor(1 << 50, 64, DESC_WRITE, 0)],
            5 => vec![descriptor(page, u32::MAX, 0, 0)],
            6 => vec![descriptor(u64::MAX - 3, 16, DESC_WRITE, 0)],
            7 => vec![descriptor(page, 16, DESC_INDIRECT, 0)],
            8 => vec![descriptor(1 << 50, 1 << 20, DESC_INDIRECT, 0)],
            9 => {
                vec![descriptor(page, 16, DESC_INDIRECT | DESC_NEXT, 1), descriptor(page, 16, DESC_WRITE, 0)]
            }
            10 => vec![descriptor(page, 0, DESC_NEXT, 1), descriptor(page, 0, DESC_WRITE, 0)],
            11 => vec![descriptor(page, 64, DESC_WRITE | DESC_NEXT, 1), descriptor(page, 64, 0, 0)],
            _ => (0..8)
                .map(|_| {
                    let addr = rng.pick(&[page, 0, 1 << 32, 1 << 50, u64::MAX]);
                    let len = rng.pick(&[0, 16, 64, 4096, u32::MAX]);
                    descriptor(addr, len, rng.below(8) as u16, rng.below(10) as u16)
                })
                .collect(),
        };
        device.control().with_queue(|queue| {
            for (k, d) in chain.iter().enumerate() {
                queue.poke(16 * k, d);
            }
            queue.publish(0).unwrap();
            queue.publish(if round % 2 == 0 { 0xffff } else { 3 }).unwrap();
            queue.wait(Duration::from_millis(5));
        });
    }
    // Many more heads than the ring has.
    let device = Device::connect(&socket, 16 << 20).expect("the device starts");
    device.control().with_queue(|queue| (0..1000).for_each(|_| queue.publish(0).unwrap()));
    drop(device);
    still_usable(&world.guest(ATTACKERS[0]));
}
