//! Guests that are killed, and a masqd that is.

use std::net::IpAddr;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use guest_sim::Device;
use guest_sim::suite::{Conn, Setup, Side, World, assert_same, assert_status, pattern};
use guest_sim::verbs::{ConnectAttr, Guest, QpCaps, wr};
use vrdma_abi::control::*;
use vrdma_abi::ring::*;

use crate::Test;

pub const TESTS: &[Test] = &[
    ("a_guest_that_is_killed_while_it_transfers", killed_guest),
    ("masqd_is_killed_and_starts_again", killed_masqd),
];

fn transfers(world: &World, from: &str, to: &str) {
    let (a, b) = (Side::open(world, from), Side::open(world, to));
    transfer(&a, &b);
    a.ctx.destroy().unwrap();
    b.ctx.destroy().unwrap();
}

fn transfer(a: &Side, b: &Side) {
    const LEN: usize = 50_000;
    let setup = Setup::default();
    let c = Conn { a: a.qp(&setup.caps_a, 64), b: b.qp(&setup.caps_b, 64) };
    c.a.connect(&setup.a, b.address, c.b.qpn).unwrap();
    c.b.connect(&setup.b, a.address, c.a.qpn).unwrap();
    let (here, there) = (a.buffer(LEN), b.buffer(LEN));
    let data = pattern(7, LEN);
    here.write(0, &data);
    c.a.post_send(&wr::rdma(SEND_OP_RDMA_WRITE, 1, &there, 0), &[here.sge(0, LEN)]).unwrap();
    assert_status(&c.a.send_completion(), WC_SUCCESS);
    assert_same(&there.read(0, LEN), &data, "written");
}

/// Processes that own the memory of two guests get SIGKILL, again and again, at different moments.
fn killed_guest(world: &mut World) {
    world.stop_guests();
    let program = std::env::current_exe().expect("this program");
    for round in 0..8u64 {
        let sockets = ["blue-4", "blue-5"].map(|vnic| world.cluster.socket(vnic));
        let mut child = Command::new(&program)
            .arg("--doomed")
            .args(sockets)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the doomed guests start");
        // It says a word when its transfer runs.
        let mut word = [0; 1];
        let out = child.stdout.as_mut().expect("a pipe");
        std::io::Read::read_exact(out, &mut word).expect("the doomed guests transfer");
        std::thread::sleep(Duration::from_micros(700 * round));
        child.kill().unwrap();
        child.wait().unwrap();
    }
    for host in [1, 2] {
        assert!(world.cluster.masqd_runs(host), "masqd on host {host} has died");
    }
    transfers(world, "blue-4", "blue-5");
}

/// The program with `--doomed`: two guests on two hosts that write to one another until they are killed.
pub fn doomed(first: &Path, second: &Path) -> ExitCode {
    match doomed_transfer(first, second) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("{e}");
            ExitCode::FAILURE
        }
    }
}

fn doomed_transfer(first: &Path, second: &Path) -> Result<(), Box<dyn std::error::Error>> {
    const LEN: usize = 1 << 20;
    let addresses: [IpAddr; 2] = [[192, 168, 0, 4].into(), [192, 168, 0, 5].into()];
    let mut ends = Vec::new();
    for (socket, address) in [first, second].into_iter().zip(addresses) {
        let guest = Guest::start(socket, 64 << 20, address)?;
        let ctx = guest.open()?;
        let pd = ctx.alloc_pd()?;
        let cq = ctx.create_cq(64, 0)?;
        let qp = pd.create_qp(&cq, &cq, &QpCaps::default())?;
        ends.push((qp, pd.buffer(LEN)?));
    }
    let attr = ConnectAttr::default();
    ends[0].0.connect(&attr, addresses[1], ends[1].0.qpn)?;
    ends[1].0.connect(&attr, addresses[0], ends[0].0.qpn)?;
    let mut said = false;
    loop {
        for (k, other) in [(0, 1), (1, 0)] {
            let (qp, memory) = &ends[k];
            while qp.send_room() > 60 {
                let opcode = if k == 0 { SEND_OP_RDMA_WRITE } else { SEND_OP_RDMA_READ };
                qp.post_send(&wr::rdma(opcode, 1, &ends[other].1, 0), &[memory.sge(0, LEN)])?;
            }
            if let Some(cqe) = qp.send_cq().poll() {
                qp.retire(&cqe);
                if !said {
                    said = true;
                    std::io::Write::write_all(&mut std::io::stdout(), b"!")?;
                    std::io::Write::flush(&mut std::io::stdout())?;
                }
            }
        }
    }
}

/// masqd and its RNIC die together, the guest and its memory live on: the device begins a new epoch, nothing of the old one is
/// left, and everything can be set up anew.
fn killed_masqd(world: &mut World) {
    let survivor = Side::open(world, "blue-3");
    let old = Side::open(world, "blue-1");
    let attr = ConnectAttr { timeout: 11, retry_cnt: 2, ..ConnectAttr::default() };
    let setup = Setup::attr(attr);
    let (a, b) = (survivor.qp(&setup.caps_a, 64), old.qp(&setup.caps_b, 64));
    a.connect(&setup.a, old.address, b.qpn).unwrap();
    b.connect(&setup.b, survivor.address, a.qpn).unwrap();
    let (here, there) = (survivor.buffer(64), old.buffer(64));
    here.write(0, b"before!!");
    a.post_send(&wr::rdma(SEND_OP_RDMA_WRITE, 1, &there, 0), &[here.sge(0, 8)]).unwrap();
    assert_status(&a.send_completion(), WC_SUCCESS);
    let epoch = old.guest.config.epoch;

    world.cluster.kill_masqd(1).unwrap();
    here.write(0, b"after!!!");
    a.post_send(&wr::rdma(SEND_OP_RDMA_WRITE, 2, &there, 0), &[here.sge(0, 8)]).unwrap();
    assert_status(&a.send_completion(), WC_RETRY_EXC_ERR);
    world.stop_guest("blue-1");
    world.cluster.start_masqd(1).unwrap();

    // A VM that lives on keeps its memory, and its front end connects again.
    let socket = world.cluster.socket("blue-1");
    let mut device = Device::connect_with(&socket, old.guest.ram.clone()).expect("masqd is back");
    assert_ne!(device.config.epoch, epoch, "all objects are gone, so the epoch is another");
    assert_eq!(device.read_config().unwrap().epoch, device.config.epoch, "and stays as it is");
    let new_epoch = device.config.epoch;
    let again = Guest::attach(device).expect("DEVICE_INIT");
    again.add_gid(0, old.address.into()).unwrap();

    // What the driver had sent in the old epoch, and QEMU replays, is refused by name; in the new one there is nothing.
    let (ctx, pd, qp) = (old.ctx.handle(), old.pd.handle(), b.handle());
    let create = |pd| again.control().run(OP_CREATE_PD, &CreatePd { pd, ctx }).map_err(|e| e.errno());
    again.control().set_epoch(epoch);
    assert_eq!(create(again.handle() + 1000), Err(libc::ESTALE));
    let query: Result<QueryQpReply, _> =
        again.control().call(OP_QUERY_QP, &Destroy { handle: qp, reserved: 0 });
    assert_eq!(query.map(drop).map_err(|e| e.errno()), Err(libc::ESTALE));
    again.control().set_epoch(new_epoch);
    assert_eq!(create(again.handle() + 1000), Err(libc::ENOENT), "its context is gone");
    let query: Result<QueryQpReply, _> =
        again.control().call(OP_QUERY_QP, &Destroy { handle: qp, reserved: 0 });
    assert_eq!(query.map(drop).map_err(|e| e.errno()), Err(libc::ENOENT), "its queue pair is gone");
    for (opcode, handle) in
        [(OP_DESTROY_QP, qp), (OP_DESTROY_MR, there.handle()), (OP_DESTROY_PD, pd), (OP_DESTROY_CONTEXT, ctx)]
    {
        let destroyed = again.control().run(opcode, &Destroy { handle, reserved: 0 });
        assert_eq!(destroyed, Ok(()), "the end of what is gone already succeeds");
    }

    // A peer cannot reach what was there, by its old number and key.
    let stranger = survivor.qp(&setup.caps_a, 64);
    stranger.connect(&setup.a, old.address, b.qpn).unwrap();
    stranger.post_send(&wr::rdma(SEND_OP_RDMA_WRITE, 3, &there, 0), &[here.sge(0, 8)]).unwrap();
    assert_status(&stranger.send_completion(), WC_RETRY_EXC_ERR);
    assert_eq!(there.read(0, 8), b"before!!");
    // The same guest, in the same memory, sets up what it likes.
    let new_ctx = again.open().unwrap();
    let new = Side { pd: new_ctx.alloc_pd().unwrap(), ctx: new_ctx, guest: again, address: old.address };
    transfer(&new, &survivor);
    transfer(&survivor, &new);
    assert_eq!(there.read(0, 8), b"before!!");
    new.ctx.destroy().unwrap();
    drop((new, old, b, there));
    transfers(world, "blue-1", "blue-2");
    transfers(world, "blue-1", "blue-3");
    survivor.ctx.destroy().unwrap();
}
