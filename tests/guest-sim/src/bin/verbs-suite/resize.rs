//! Completion queues that get another size.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use guest_sim::suite::{Conn, Pair, Setup, assert_status};
use guest_sim::verbs::{QpCaps, wr};
use vrdma_abi::control::*;
use vrdma_abi::ring::*;
use vrdma_rings::Arm;

use crate::Test;

pub const TESTS: &[Test] = &[
    ("a_queue_grows_with_completions_in_it", grows),
    ("a_queue_shrinks_to_what_is_in_it", shrinks),
    ("a_queue_is_resized_at_any_index", any_index),
    ("a_queue_is_resized_under_load", under_load),
    ("a_resized_queue_stays_armed", armed),
    ("sizes_that_a_queue_cannot_have", refused),
];

/// A connection whose completions of sends have `cqe` entries.
fn connect(p: &Pair, cqe: u32) -> Conn {
    p.connect_with(&Setup { cqe, ..Setup::caps(QpCaps { send_wr: 512, ..QpCaps::default() }) })
}

/// Sends empty writes with these numbers, and waits until all have been answered, not until they are polled.
fn complete(p: &Pair, c: &Conn, numbers: std::ops::Range<u64>) {
    if numbers.is_empty() {
        return;
    }
    let there = p.b.buffer(64);
    let last = numbers.end;
    for k in numbers {
        let write = wr::rdma(SEND_OP_RDMA_WRITE, k, &there, 0);
        c.a.post_inline(&write, &(k + 1).to_le_bytes()).unwrap();
    }
    let deadline = std::time::Instant::now() + Duration::from_secs(5);
    while there.read_u64(0) != last {
        assert!(std::time::Instant::now() < deadline, "the writes do not arrive");
        std::thread::sleep(Duration::from_millis(1));
    }
    // The last acknowledgement is on its way.
    std::thread::sleep(Duration::from_millis(20));
}

#[track_caller]
fn expect(c: &Conn, numbers: std::ops::Range<u64>) {
    for k in numbers {
        let cqe = c.a.send_completion();
        assert_status(&cqe, WC_SUCCESS);
        assert_eq!(cqe.wr_id, k);
    }
}

fn grows(p: &Pair) {
    let c = connect(p, 16);
    complete(p, &c, 0..10);
    expect(&c, 0..3);
    c.a.send_cq().resize(64).unwrap();
    expect(&c, 3..5);
    complete(p, &c, 10..50);
    expect(&c, 5..50);
    assert!(c.a.send_cq().poll().is_none());
    complete(p, &c, 50..114);
    expect(&c, 50..114);
}

fn shrinks(p: &Pair) {
    let c = connect(p, 256);
    complete(p, &c, 0..100);
    expect(&c, 0..84);
    c.a.send_cq().resize(16).expect("sixteen are in it");
    expect(&c, 84..100);
    complete(p, &c, 100..116);
    expect(&c, 100..116);
    complete(p, &c, 116..130);
    assert_eq!(c.a.send_cq().resize(8).expect_err("fourteen are in it").errno(), libc::EINVAL);
    expect(&c, 116..130);
    complete(p, &c, 130..146);
    expect(&c, 130..146);
}

/// From and to all sizes, at every place of a pass, with none and with some completions in it.
fn any_index(p: &Pair) {
    let c = connect(p, 4);
    let sizes = [4, 8, 4, 32, 2, 16, 64, 4];
    let mut done = 0;
    for round in 0..40u64 {
        let waiting = round % 3;
        complete(p, &c, done..done + waiting);
        c.a.send_cq().resize(sizes[round as usize % sizes.len()]).unwrap();
        expect(&c, done..done + waiting);
        done += waiting;
        complete(p, &c, done..done + 1);
        expect(&c, done..done + 1);
        done += 1;
    }
}

/// One thread sends without pause, the other polls and resizes.
fn under_load(p: &Pair) {
    const COUNT: u64 = 20_000;
    let c = connect(p, 512);
    let (here, there) = (p.a.buffer(64), p.b.buffer(64));
    let stop = AtomicBool::new(false);
    std::thread::scope(|s| {
        s.spawn(|| {
            let mut posted = 0;
            while posted < COUNT && !stop.load(Ordering::Relaxed) {
                let write = wr::rdma(SEND_OP_RDMA_WRITE, posted, &there, 0);
                match c.a.post_send(&write, &[here.sge(0, 8)]) {
                    Ok(()) => posted += 1,
                    Err(_) => std::thread::sleep(Duration::from_micros(50)),
                }
            }
        });
        let polled = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for k in 0..COUNT {
                if k % 250 == 0 {
                    let entries = [512, 1024, 4096][k as usize / 250 % 3];
                    c.a.send_cq().resize(entries).expect("RESIZE_CQ");
                }
                expect(&c, k..k + 1);
            }
        }));
        stop.store(true, Ordering::Relaxed);
        if let Err(panic) = polled {
            std::panic::resume_unwind(panic);
        }
    });
}

fn armed(p: &Pair) {
    let c = connect(p, 16);
    let cq = c.a.send_cq();
    for round in 0..10 {
        cq.arm(Arm::Next);
        cq.resize(16 << (round % 3)).unwrap();
        assert!(p.a.guest.next_comp_event(0, Duration::from_millis(10)).is_none(), "nothing has happened");
        complete(p, &c, round..round + 1);
        let event = p.a.guest.next_comp_event(0, Duration::from_secs(5)).expect("an event");
        assert_eq!(event.cq, cq.handle());
        expect(&c, round..round + 1);
        complete(p, &c, 100..101);
        assert!(p.a.guest.next_comp_event(0, Duration::from_millis(10)).is_none(), "once only");
        expect(&c, 100..101);
    }
}

fn refused(p: &Pair) {
    let c = connect(p, 16);
    complete(p, &c, 0..5);
    let (guest, cq) = (&p.a.guest, c.a.send_cq());
    let memory = guest.ram.alloc(1);
    let one = PageTable { addr: memory.gpa(0), count: 1, page_shift: 12, levels: 0, reserved: 0 };
    let good = ResizeCq { cq: cq.handle(), entries: 32, ring: one };
    let resize =
        |command: ResizeCq| guest.control().run(OP_RESIZE_CQ, &command).expect_err("refused").errno();
    for entries in [0, 3, 33, 4, u32::MAX, (guest.config.max_cqe + 1).next_power_of_two()] {
        assert_eq!(resize(ResizeCq { entries, ..good }), libc::EINVAL, "{entries} entries");
    }
    assert_eq!(resize(ResizeCq { entries: 64, ..good }), libc::EINVAL, "a ring of too few pages");
    assert_eq!(resize(ResizeCq { cq: 0x7777_0000, ..good }), libc::ENOENT);
    let nowhere = PageTable { addr: 1 << 50, ..one };
    let errno = resize(ResizeCq { ring: nowhere, ..good });
    assert!([libc::EFAULT, libc::EINVAL].contains(&errno), "errno {errno} for a ring outside of memory");
    expect(&c, 0..5);
    complete(p, &c, 5..12);
    expect(&c, 5..12);
}
