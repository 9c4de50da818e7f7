//! Verbs between two guests of one RNIC.

mod common;

use common::*;
use masq_rnic::RnicConfig;
use vrdma_abi::ring::*;

struct Two {
    net: Net,
    a: Guest,
    b: Guest,
    a_cq: TestCq,
    b_cq: TestCq,
    a_qp: TestQp,
    b_qp: TestQp,
    a_mr: Mr,
    b_mr: Mr,
}

const MEMORY: u64 = 16 << 20;
const MR: u64 = 4 << 20;

fn two(options: Options) -> Two {
    let mut net = Net::new(&[RnicConfig::default()]);
    let address = fresh_address();
    let mut a = Guest::attach(&mut net, 0, 1, 100, &address, MEMORY);
    let mut b = Guest::attach(&mut net, 0, 2, 100, &address, MEMORY);
    let (a_cq, b_cq) = (a.cq(&mut net, 64), b.cq(&mut net, 64));
    let (a_qp, b_qp) = (a.qp(&mut net, &a_cq, &a_cq), b.qp(&mut net, &b_cq, &b_cq));
    let (a_mr, b_mr) = (a.mr(&mut net, MR, all_access()), b.mr(&mut net, MR, all_access()));
    connect(&mut net, (&a, &a_qp), (&b, &b_qp), &options);
    Two { net, a, b, a_cq, b_cq, a_qp, b_qp, a_mr, b_mr }
}

#[test]
fn send_receive() {
    let mut t = two(Options::default());
    t.a.write(t.a_mr.gpa, &pattern(5000, 1));
    t.b.post_recv(&mut t.b_qp, 7, &[sge(&t.b_mr, 0, 3000), sge(&t.b_mr, 8192, 3000)]);
    let send = vrdma_rings::SendRequest { imm_or_inv: 0x1234, ..request(SEND_OP_SEND_IMM, 42) };
    t.a.post(&mut t.a_qp, &send, &[sge(&t.a_mr, 0, 1), sge(&t.a_mr, 1, 4999)]);
    let r = wait(&mut t.net, &mut t.b_cq);
    assert_eq!(
        (r.wr_id, r.status, r.opcode, r.byte_len, r.imm_or_inv),
        (7, WC_SUCCESS, WC_RECV, 5000, 0x1234)
    );
    assert_eq!((r.flags, r.cookie, r.consumer), (CQE_RECV | CQE_WITH_IMM, 0xc0 + t.b_qp.handle.0, 1));
    let s = wait(&mut t.net, &mut t.a_cq);
    assert_eq!((s.wr_id, s.status, s.opcode, s.consumer), (42, WC_SUCCESS, WC_SEND, 1));
    let mut got = t.b.read(t.b_mr.gpa, 3000);
    got.extend(t.b.read(t.b_mr.gpa + 8192, 2000));
    assert_eq!(got, pattern(5000, 1));
}

#[test]
fn write_read_atomic() {
    let mut t = two(Options::default());
    let len = 3_000_001;
    t.a.write(t.a_mr.gpa + 3, &pattern(len, 2));
    t.a.post(&mut t.a_qp, &to(&t.b_mr, 9, request(SEND_OP_RDMA_WRITE, 1)), &[sge(&t.a_mr, 3, len as u32)]);
    let c = wait(&mut t.net, &mut t.a_cq);
    assert_eq!((c.status, c.opcode), (WC_SUCCESS, WC_RDMA_WRITE));
    assert_eq!(t.b.read(t.b_mr.gpa + 9, len), pattern(len, 2));

    t.b.post_inline(&mut t.b_qp, &to(&t.a_mr, 0, request(SEND_OP_RDMA_WRITE, 2)), b"inline");
    assert_eq!(wait(&mut t.net, &mut t.b_cq).status, WC_SUCCESS);
    assert_eq!(t.a.read(t.a_mr.gpa, 6), b"inline");

    t.a.post(&mut t.a_qp, &to(&t.b_mr, 9, request(SEND_OP_RDMA_READ, 3)), &[sge(&t.a_mr, 1 << 16, 70_000)]);
    let c = wait(&mut t.net, &mut t.a_cq);
    assert_eq!((c.status, c.opcode, c.byte_len), (WC_SUCCESS, WC_RDMA_READ, 70_000));
    assert_eq!(t.a.read(t.a_mr.gpa + (1 << 16), 70_000), pattern(len, 2)[..70_000]);

    t.b.write(t.b_mr.gpa + 64, &5u64.to_ne_bytes());
    let atomic = |opcode, compare_add, swap| vrdma_rings::SendRequest {
        operands: vrdma_rings::Operands::Atomic(AtomicSegment { compare_add, swap }),
        ..request(opcode, 4)
    };
    for (r, before, after) in [
        (atomic(SEND_OP_FETCH_ADD, 10, 0), 5, 15),
        (atomic(SEND_OP_CMP_SWAP, 15, 99), 15, 99),
        (atomic(SEND_OP_CMP_SWAP, 15, 1), 99, 99),
    ] {
        t.a.post(&mut t.a_qp, &to(&t.b_mr, 64, r), &[sge(&t.a_mr, 128, 8)]);
        let c = wait(&mut t.net, &mut t.a_cq);
        assert_eq!((c.status, c.byte_len), (WC_SUCCESS, 8));
        assert_eq!((t.a.read_u64(t.a_mr.gpa + 128), t.b.read_u64(t.b_mr.gpa + 64)), (before, after));
    }
}

/// A guest with much to copy does not hold up another: the vNICs take turns.
#[test]
fn vnics_share_the_engine() {
    let mut t = two(Options::default());
    let address = fresh_address();
    let mut small = Guest::attach(&mut t.net, 0, 3, 200, &address, 1 << 20);
    let mut cq = small.cq(&mut t.net, 64);
    let mut qp = small.qp(&mut t.net, &cq, &cq);
    let mr = small.mr(&mut t.net, 4096, all_access());
    connect(&mut t.net, (&small, &qp), (&small, &qp), &Options::default());
    for i in 0..16 {
        t.a.post(&mut t.a_qp, &to(&t.b_mr, 0, request(SEND_OP_RDMA_WRITE, i)), &[sge(&t.a_mr, 0, MR as u32)]);
    }
    let turn = |t: &mut Two| {
        t.net.now += 1000;
        t.net.engines[0].turn(masq_rnic::transport::Time::from_nanos(t.net.now))
    };
    turn(&mut t);
    let mut turns = 0;
    for i in 0..20 {
        small.post(&mut qp, &to(&mr, 0, request(SEND_OP_RDMA_WRITE, i)), &[sge(&mr, 64, 8)]);
        while cq.ring.poll().is_none() {
            assert!(turn(&mut t));
            turns += 1;
        }
        cq.ring.publish();
    }
    assert_eq!(turns, 20, "each small write is done in the turn after it is posted");
    // What a turn copies is bounded: 16 messages of 4 MiB take at least 256 turns of 256 KiB.
    let mut more = 1 + turns;
    let mut done = 0;
    while done < 16 {
        turn(&mut t);
        more += 1;
        while t.a_cq.ring.poll().is_some() {
            done += 1;
        }
        t.a_cq.ring.publish();
    }
    assert!((256..300).contains(&more), "{more}");
}

/// So do the queue pairs of one vNIC.
#[test]
fn queue_pairs_share_their_vnics_turns() {
    let mut t = two(Options::default());
    let mut other = t.a.qp(&mut t.net, &t.a_cq, &t.a_cq);
    connect(&mut t.net, (&t.a, &other), (&t.a, &other), &Options::default());
    t.a.post(&mut t.a_qp, &to(&t.b_mr, 0, request(SEND_OP_RDMA_WRITE, 1)), &[sge(&t.a_mr, 0, MR as u32)]);
    t.a.post(&mut other, &to(&t.a_mr, 0, request(SEND_OP_RDMA_WRITE, 2)), &[sge(&t.a_mr, 64, 8)]);
    let order = [wait(&mut t.net, &mut t.a_cq), wait(&mut t.net, &mut t.a_cq)].map(|c| c.wr_id);
    assert_eq!(order, [2, 1]);
}

/// A completion queue gets another ring in the middle of traffic; times of completion never go back.
#[test]
fn a_completion_queue_moves() {
    use masq_driver::Command;
    let mut t = two(Options::default());
    let (mut posted, mut polled, mut latest) = (0, 0, 0);
    for (round, entries) in [128u32, 64, 256, 64, 512].into_iter().enumerate() {
        for _ in 0..30 {
            t.a.post(
                &mut t.a_qp,
                &to(&t.b_mr, 0, request(SEND_OP_RDMA_WRITE, posted)),
                &[sge(&t.a_mr, 0, 8)],
            );
            posted += 1;
        }
        t.net.run(1);
        let pages = ring_pages(entries, 6);
        let gpa = t.a.alloc(pages);
        let (vnic, cq, ring) = (t.a.id, t.a_cq.handle, t.a.pages(gpa, pages));
        t.net.execute(0, Command::ResizeCq { vnic, cq, entries, ring }).unwrap();
        t.a_cq.ring.move_to(t.a.mapping(gpa, pages), entries).unwrap();
        // Some are left for the next ring.
        let keep = if round == 4 { 0 } else { 10 };
        while polled + keep < posted {
            let c = t.a_cq.ring.poll().expect("all are done");
            assert_eq!((c.wr_id, c.status), (polled, WC_SUCCESS));
            assert!(c.timestamp_ns >= latest && c.timestamp_ns > 0);
            (polled, latest) = (polled + 1, c.timestamp_ns);
            t.a_qp.sq.complete(c.consumer);
        }
        t.a_cq.ring.publish();
    }
    assert!(t.a_cq.ring.poll().is_none());
    let (vnic, cq) = (t.a.id, masq_driver::CqHandle(NOBODY));
    let ring = t.a.pages(t.a_mr.gpa, 1);
    assert!(t.net.execute(0, Command::ResizeCq { vnic, cq, entries: 8, ring }).is_err());
}
