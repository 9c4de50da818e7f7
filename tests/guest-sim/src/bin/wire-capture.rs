//! Captures our own traffic between two hosts, for software that is not ours to judge.
//!
//! `wire-capture --programs DIR --out FILE.pcap` runs every operation with every path MTU between two guests on two
//! hosts, while tcpdump listens on the underlay with segmentation switched off. With `--captured FILE.pcapng` masqctl captures the last
//! of these connections, too.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use guest_sim::Layout;
use guest_sim::suite::{Conn, Pair, Placement, Setup, World};
use guest_sim::verbs::{ConnectAttr, Mr, wr};
use vrdma_abi::ring::{
    SEND_OP_CMP_SWAP, SEND_OP_FETCH_ADD, SEND_OP_RDMA_READ, SEND_OP_RDMA_WRITE, SEND_OP_RDMA_WRITE_IMM,
    SEND_OP_SEND, SEND_OP_SEND_IMM,
};

fn main() -> Result<(), Box<dyn Error>> {
    let (mut programs, mut out, mut captured) = (PathBuf::from("target/release"), None, None);
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let value = args.next().ok_or_else(|| format!("{arg} needs a value"))?;
        match arg.as_str() {
            "--programs" => programs = value.into(),
            "--out" => out = Some(PathBuf::from(value)),
            "--captured" => captured = Some(PathBuf::from(value)),
            _ => return Err(format!("unknown argument {arg}").into()),
        }
    }
    let out = out.ok_or("--out FILE is missing")?;

    let world = World::start(&programs, Layout::default())?;
    for host in [1, 2] {
        // Frames on the wire as a NIC would send them: one datagram each.
        let ns = world.cluster.netns(host);
        let status =
            Command::new("ip").args(["-n", &ns, "link", "set", "ul0", "gso_max_segs", "1"]).status()?;
        if !status.success() {
            return Err("cannot switch segmentation off".into());
        }
    }
    let mut tcpdump = world
        .cluster
        .command(1, "tcpdump".as_ref())
        .args(["-i", "ul0", "-U", "-s", "0", "-w"])
        .arg(&out)
        .args(["udp", "port", "4791"])
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    let deadline = Instant::now() + Duration::from_secs(10);
    while !out.exists() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(20));
    }

    let pair = Pair::open(&world, Placement::Remote);
    for path_mtu in 1..=5 {
        let conn = pair.connect_with(&Setup::attr(ConnectAttr { path_mtu, ..Default::default() }));
        let capture = match captured.as_deref().filter(|_| path_mtu == 5) {
            Some(file) => Some(capture(&world, &conn, file)?),
            None => None,
        };
        exchange(&pair, &conn, path_mtu)?;
        // With its queue pair the capture ends.
        conn.a.destroy()?;
        if let Some(mut capture) = capture
            && !capture.wait()?.success()
        {
            return Err("masqctl capture has failed".into());
        }
    }
    // tcpdump writes packet by packet; give the last ones a moment.
    std::thread::sleep(Duration::from_millis(300));
    tcpdump.kill()?;
    tcpdump.wait()?;
    Ok(())
}

/// masqctl, that captures a connection, once it does.
fn capture(world: &World, conn: &Conn, file: &Path) -> Result<Child, Box<dyn Error>> {
    let (qpn, path) = (conn.a.qpn.to_string(), file.to_str().ok_or("a path that is no text")?);
    let mut child = world.cluster.ctl_command(1, &["capture", "blue-1", &qpn, "-w", path]).spawn()?;
    let deadline = Instant::now() + Duration::from_secs(20);
    // Its first block is written when it has begun.
    while !std::fs::metadata(file).is_ok_and(|m| m.len() > 0) {
        if Instant::now() > deadline || child.try_wait()?.is_some() {
            return Err("masqctl capture does not begin".into());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(child)
}

/// Every operation, with lengths around the path MTU and with every pad count.
fn exchange(pair: &Pair, conn: &Conn, path_mtu: u8) -> Result<(), Box<dyn Error>> {
    let mtu = 128usize << path_mtu;
    let lengths = [0, 1, 2, 3, 4, mtu - 1, mtu, mtu + 1, 2 * mtu, 3 * mtu + 5];
    let (from, to) = (pair.a.buffer(4 * mtu), pair.b.buffer(4 * mtu));
    from.fill(0, 4 * mtu, 0xa5);
    for len in lengths {
        for opcode in
            [SEND_OP_SEND, SEND_OP_SEND_IMM, SEND_OP_RDMA_WRITE, SEND_OP_RDMA_WRITE_IMM, SEND_OP_RDMA_READ]
        {
            if matches!(opcode, SEND_OP_SEND | SEND_OP_SEND_IMM | SEND_OP_RDMA_WRITE_IMM) {
                conn.b.post_recv(1, &[to.sge(0, 4 * mtu)])?;
            }
            one(conn, opcode, &from, &to, len)?;
            if matches!(opcode, SEND_OP_SEND | SEND_OP_SEND_IMM | SEND_OP_RDMA_WRITE_IMM) {
                conn.b.recv_completion();
            }
        }
    }
    for opcode in [SEND_OP_CMP_SWAP, SEND_OP_FETCH_ADD] {
        let request = wr::atomic(opcode, 1, &to, 0, 1, 2);
        conn.a.post_send(&request, &[from.sge(0, 8)])?;
        succeed(conn)?;
    }
    Ok(())
}

fn one(conn: &Conn, opcode: u8, from: &Mr, to: &Mr, len: usize) -> Result<(), Box<dyn Error>> {
    conn.a.post_send(&wr::rdma(opcode, 1, to, 0), &[from.sge(0, len)])?;
    succeed(conn)
}

fn succeed(conn: &Conn) -> Result<(), Box<dyn Error>> {
    let cqe = conn.a.send_completion();
    if cqe.status != 0 { Err(format!("{cqe:?}").into()) } else { Ok(()) }
}
