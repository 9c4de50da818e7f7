//! Several engines of one RNIC: what goes between them, and vNICs that move.

mod common;

use common::two::{MR, Two, Way};
use common::*;
use masq_driver::*;
use masq_rnic::RnicConfig;
use masq_rnic::transport::Time;
use vrdma_abi::ring::*;

struct Pair {
    two: Two,
    a_qp: TestQp,
    b_qp: TestQp,
}

fn across() -> Pair {
    let mut two = Two::new(Way::Across);
    let a_qp = two.a.qp(&mut two.net, &two.a_cq, &two.a_cq);
    let b_qp = two.b.qp(&mut two.net, &two.b_cq, &two.b_cq);
    connect(&mut two.net, (&two.a, &a_qp), (&two.b, &b_qp), &Options::default());
    Pair { two, a_qp, b_qp }
}

impl Pair {
    fn write(&mut self, wr_id: u64, len: u32) {
        let t = &mut self.two;
        let write = to(&t.b_mr, 0, request(SEND_OP_RDMA_WRITE, wr_id));
        t.a.post(&mut self.a_qp, &write, &[sge(&t.a_mr, 0, len)]);
    }

    fn turn(&mut self, engine: usize) -> bool {
        self.two.net.now += 1_000;
        let now = Time::from_nanos(self.two.net.now);
        self.two.net.engines[engine].turn(now)
    }

    fn move_a(&mut self, to: usize) {
        self.two.net.move_guest(&mut self.two.a, to);
    }

    fn move_b(&mut self, to: usize) {
        self.two.net.move_guest(&mut self.two.b, to);
    }
}

/// The peer's engine does its half, and only that: nothing is copied before it has its turn.
#[test]
fn the_peers_engine_copies() {
    let mut p = across();
    p.two.a.write(p.two.a_mr.gpa, &pattern(3000, 1));
    p.write(1, 3000);
    for _ in 0..5 {
        p.turn(0);
    }
    assert!(p.two.a_cq.ring.poll().is_none());
    assert_eq!(p.two.b.read(p.two.b_mr.gpa, 3000), vec![0; 3000]);
    assert_eq!(wait(&mut p.two.net, &mut p.two.a_cq).status, WC_SUCCESS);
    assert_eq!(p.two.b.read(p.two.b_mr.gpa, 3000), pattern(3000, 1));
}

/// What has been destroyed is not read or written any more, also by the other engine.
#[test]
fn a_request_is_taken_back_before_its_memory_goes() {
    let mut p = across();
    p.two.a.write(p.two.a_mr.gpa, &[7; 64]);
    p.write(1, 64);
    // The peer's connection is new to the initiator, which learns of it by its first request.
    while p.two.a_cq.ring.poll().is_none() {
        p.turn(0);
        p.turn(1);
    }
    p.two.a_cq.ring.publish();
    p.two.a.write(p.two.a_mr.gpa, &[8; 64]);
    p.write(2, 64);
    p.turn(0);
    let (vnic, mr) = (p.two.a.id, p.two.a_mr.handle);
    p.two.net.execute(0, Command::DestroyMr { vnic, mr }).unwrap();
    let c = wait(&mut p.two.net, &mut p.two.a_cq);
    assert_eq!((c.wr_id, c.status), (2, WC_LOC_PROT_ERR));
    assert_eq!(p.two.b.read(p.two.b_mr.gpa, 64), [7; 64]);
}

/// The same when the guest's memory is replaced, its queue pair reset or the guest goes while a request is under way.
#[test]
fn a_request_under_way_does_not_outlive_its_queue_pair() {
    for end in 0..3 {
        let mut p = across();
        p.write(1, 64);
        while p.two.a_cq.ring.poll().is_none() {
            p.turn(0);
            p.turn(1);
        }
        p.two.a_cq.ring.publish();
        p.two.a.write(p.two.a_mr.gpa, &[9; 64]);
        p.write(2, 64);
        p.turn(0);
        let (vnic, qp) = (p.two.a.id, p.a_qp.handle);
        let command = match end {
            0 => {
                let change = QpChange { to: Some(QpState::Reset), ..QpChange::default() };
                Command::ModifyQp { vnic, qp, change }
            }
            1 => Command::DestroyQp { vnic, qp },
            _ => Command::DetachVnic { vnic },
        };
        p.two.net.execute(0, command).unwrap();
        p.two.net.run(5);
        assert_eq!(p.two.b.read(p.two.b_mr.gpa, 64), [0; 64], "{end}");
        assert!(p.two.a_cq.ring.poll().is_none(), "{end}");
    }
}

/// In the middle of a long message, in each direction, each end moves to the other's engine and back.
#[test]
fn ends_move_in_the_middle_of_messages() {
    let mut p = across();
    let len = MR as u32;
    for (round, opcode) in [SEND_OP_RDMA_WRITE, SEND_OP_RDMA_READ].repeat(4).into_iter().enumerate() {
        let data = pattern(len as usize, round as u8);
        let (from, into) = match opcode {
            SEND_OP_RDMA_WRITE => ((&p.two.a, p.two.a_mr.gpa), (&p.two.b, p.two.b_mr.gpa)),
            _ => ((&p.two.b, p.two.b_mr.gpa), (&p.two.a, p.two.a_mr.gpa)),
        };
        from.0.write(from.1, &data);
        into.0.write(into.1, &vec![0; len as usize]);
        let r = to(&p.two.b_mr, 0, request(opcode, round as u64));
        p.two.a.post(&mut p.a_qp, &r, &[sge(&p.two.a_mr, 0, len)]);
        for step in 0..4 {
            for turn in 0..3 {
                p.turn((turn + step) % 2);
            }
            match (step + round) % 4 {
                0 => p.move_a(1),
                1 => p.move_b(0),
                2 => p.move_a(0),
                _ => p.move_b(1),
            }
        }
        let c = wait(&mut p.two.net, &mut p.two.a_cq);
        assert_eq!((c.wr_id, c.status), (round as u64, WC_SUCCESS), "round {round}");
        let (guest, gpa) = match opcode {
            SEND_OP_RDMA_WRITE => (&p.two.b, p.two.b_mr.gpa),
            _ => (&p.two.a, p.two.a_mr.gpa),
        };
        assert_eq!(guest.read(gpa, len as usize), data, "round {round}");
    }
}

/// A guest of one RNIC with several engines moves while packets of another RNIC come to it, and go out.
#[test]
fn packets_follow_a_guest_that_moves() {
    let mut net = Net::group(&RnicConfig::default(), 3);
    net.add(&RnicConfig::default());
    const STRANGER: usize = 3;
    let (at, far) = (fresh_address(), fresh_address());
    let mut other = Guest::attach(&mut net, 1, 7, 100, &at, 8 << 20);
    let mut a = Guest::attach(&mut net, 0, 1, 100, &at, 8 << 20);
    let mut b = Guest::attach(&mut net, STRANGER, 2, 100, &far, 8 << 20);
    let (mut a_cq, mut b_cq) = (a.cq(&mut net, 128), b.cq(&mut net, 128));
    let (mut a_qp, mut b_qp) = (a.qp(&mut net, &a_cq, &a_cq), b.qp(&mut net, &b_cq, &b_cq));
    let (a_mr, b_mr) = (a.mr(&mut net, MR, all_access()), b.mr(&mut net, MR, all_access()));
    connect(&mut net, (&a, &a_qp), (&b, &b_qp), &Options::default());
    for round in 0..12u8 {
        a.write(a_mr.gpa, &pattern(400_000, round));
        a.post(&mut a_qp, &to(&b_mr, 0, request(SEND_OP_RDMA_WRITE, 1)), &[sge(&a_mr, 0, 400_000)]);
        b.write(b_mr.gpa + 500_000, &pattern(400_000, round + 100));
        let back = to(&a_mr, 500_000, request(SEND_OP_RDMA_WRITE, 2));
        b.post(&mut b_qp, &back, &[sge(&b_mr, 500_000, 400_000)]);
        net.turn_all();
        // What has left the stranger finds the guest elsewhere.
        let now = Time::from_nanos(net.now);
        net.engines[STRANGER].turn(now);
        // The one who received for both leaves that to the other, which may be here or there.
        let to = [1, 2, 0][usize::from(round) % 3];
        net.move_guest(&mut a, to);
        if round % 2 == 1 {
            net.move_guest(&mut other, 3 - to.max(1));
        }
        assert_eq!(wait(&mut net, &mut a_cq).status, WC_SUCCESS, "{round}");
        assert_eq!(wait(&mut net, &mut b_cq).status, WC_SUCCESS, "{round}");
        assert_eq!(b.read(b_mr.gpa, 400_000), pattern(400_000, round));
        assert_eq!(a.read(a_mr.gpa + 500_000, 400_000), pattern(400_000, round + 100));
    }
    let lost = [0, 1, 2].map(|e| net.counter(e, "rx_no_qp") + net.counter(e, "rx_engine_full"));
    assert_eq!(lost, [0; 3], "nothing is lost on the way");
    a.detach(&mut net);
    other.detach(&mut net);
    let address: std::net::IpAddr = at.parse().unwrap();
    net.turn_all();
    assert!(
        std::net::UdpSocket::bind((address, 4791)).is_ok(),
        "the last one's engine has closed the socket"
    );
}

/// A queue pair moves, and ends where it has come to, before it is heard at a third engine that it has moved: its number is free there.
#[test]
fn what_is_heard_late_of_a_queue_pair_is_not_believed() {
    let mut net = Net::group(&RnicConfig::default(), 3);
    let mut a = Guest::attach(&mut net, 0, 1, 100, &fresh_address(), 8 << 20);
    let at = fresh_address();
    let mut b = Guest::attach(&mut net, 1, 2, 100, &at, 8 << 20);
    let mut next = Guest::attach(&mut net, 0, 3, 100, &at, 8 << 20);
    let (mut a_cq, b_cq, next_cq) = (a.cq(&mut net, 64), b.cq(&mut net, 64), next.cq(&mut net, 64));
    let (mut a_qp, b_qp) = (a.qp(&mut net, &a_cq, &a_cq), b.qp(&mut net, &b_cq, &b_cq));
    let (a_mr, b_mr) = (a.mr(&mut net, MR, all_access()), b.mr(&mut net, MR, all_access()));
    connect(&mut net, (&a, &a_qp), (&b, &b_qp), &Options { timeout: 1, retry_cnt: 0, ..Options::default() });
    let turn = |net: &mut Net, engine: usize| {
        net.now += 1_000;
        let now = Time::from_nanos(net.now);
        net.engines[engine].turn(now);
    };
    a.post(&mut a_qp, &to(&b_mr, 0, request(SEND_OP_RDMA_WRITE, 1)), &[sge(&a_mr, 0, 8)]);
    // The request is sent to where B was, which says where it is now.
    turn(&mut net, 0);
    net.move_guest(&mut b, 2);
    turn(&mut net, 1);
    turn(&mut net, 2);
    net.execute(2, Command::DestroyQp { vnic: b.id, qp: b_qp.handle }).unwrap();
    assert_eq!(wait(&mut net, &mut a_cq).status, WC_RETRY_EXC_ERR);
    let again = next.qp_with(&mut net, &next_cq, &next_cq, |init| init.wire_qpn = b_qp.wire);
    next.to_rtr(&mut net, &again, &a_qp, &Options::default());
}

/// An initiator is told where its peer has gone, and moves there itself, while the peer has gone on: it asks where the peer is now.
#[test]
fn an_initiator_that_moves_to_where_its_peer_was_finds_it() {
    let mut net = Net::group(&RnicConfig::default(), 3);
    let mut a = Guest::attach(&mut net, 0, 1, 100, &fresh_address(), 8 << 20);
    let mut b = Guest::attach(&mut net, 1, 2, 100, &fresh_address(), 8 << 20);
    let (a_cq, mut b_cq) = (a.cq(&mut net, 64), b.cq(&mut net, 64));
    let (a_qp, mut b_qp) = (a.qp(&mut net, &a_cq, &a_cq), b.qp(&mut net, &b_cq, &b_cq));
    let (a_mr, b_mr) = (a.mr(&mut net, MR, all_access()), b.mr(&mut net, MR, all_access()));
    connect(&mut net, (&a, &a_qp), (&b, &b_qp), &Options::default());
    b.post(&mut b_qp, &to(&a_mr, 0, request(SEND_OP_RDMA_READ, 1)), &[sge(&b_mr, 0, 8)]);
    net.engines[1].turn(Time::from_nanos(net.now));
    net.move_guest(&mut a, 2);
    net.move_guest(&mut a, 1);
    net.engines[0].turn(Time::from_nanos(net.now));
    net.move_guest(&mut b, 2);
    assert_eq!(wait(&mut net, &mut b_cq).status, WC_SUCCESS);
}

/// Two guests at one address are connected to the same queue pair of another host, which cannot tell them apart: the older connection alone sends, whichever
/// engines have the two, and until it ends.
#[test]
fn a_neighbours_connection_is_not_written_into() {
    const STRANGER: usize = 2;
    for (own_engine, end) in [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (1, 3), (1, 4)] {
        let what = format!("engine {own_engine}, end {end}");
        let mut net = Net::group(&RnicConfig::default(), 2);
        net.add(&RnicConfig::default());
        let (at, far) = (fresh_address(), fresh_address());
        let mut a = Guest::attach(&mut net, 0, 1, 100, &at, 8 << 20);
        let mut neighbour = Guest::attach(&mut net, own_engine, 3, 100, &at, 8 << 20);
        let mut b = Guest::attach(&mut net, STRANGER, 2, 100, &far, 8 << 20);
        let (mut a_cq, b_cq) = (a.cq(&mut net, 64), b.cq(&mut net, 64));
        let mut cq = neighbour.cq(&mut net, 64);
        let (mut a_qp, b_qp) = (a.qp(&mut net, &a_cq, &a_cq), b.qp(&mut net, &b_cq, &b_cq));
        let (a_mr, b_mr) = (a.mr(&mut net, MR, all_access()), b.mr(&mut net, MR, all_access()));
        let own = neighbour.mr(&mut net, MR, all_access());
        connect(&mut net, (&a, &a_qp), (&b, &b_qp), &Options::default());
        neighbour.write(own.gpa, &[9; 8]);
        let write = |wr_id| to(&b_mr, 0, request(SEND_OP_RDMA_WRITE, wr_id));
        let mut intrude = |net: &mut Net, cq: &TestCq, options: &Options| {
            let mut qp = neighbour.qp(net, cq, cq);
            neighbour.to_rtr(net, &qp, &b_qp, options);
            neighbour.to_rts(net, &qp, options);
            neighbour.post(&mut qp, &write(1), &[sge(&own, 0, 8)]);
            qp.handle
        };
        let sent = |net: &mut Net, qp: QpHandle| match net
            .execute(own_engine, Command::QpTraffic { vnic: VnicId(3) })
        {
            Ok(Reply::QpTraffic(all)) => all.iter().find(|(h, _)| *h == qp).unwrap().1.tx_bytes,
            other => panic!("{other:?}"),
        };
        // It has the number that comes next, and the right key.
        let first = intrude(&mut net, &cq, &Options { timeout: 1, retry_cnt: 0, ..Options::default() });
        assert_eq!(wait(&mut net, &mut cq).status, WC_RETRY_EXC_ERR, "{what}");
        assert_eq!((sent(&mut net, first), b.read(b_mr.gpa, 8)), (0, vec![0; 8]), "{what}");
        a.write(a_mr.gpa, &[1; 8]);
        let (vnic, qp) = (a.id, a_qp.handle);
        let mut write_as_owner = |net: &mut Net, a: &Guest| {
            a.post(&mut a_qp, &write(1), &[sge(&a_mr, 0, 8)]);
            assert_eq!(wait(net, &mut a_cq).status, WC_SUCCESS, "{what}");
        };
        write_as_owner(&mut net, &a);
        assert_eq!(b.read(b_mr.gpa, 8), [1; 8], "{what}");
        // One that goes on trying has its turn when the older one has ended.
        let fail = || {
            let change = QpChange { to: Some(QpState::Err), ..QpChange::default() };
            Command::ModifyQp { vnic, qp, change }
        };
        if end == 0 {
            net.execute(0, fail()).unwrap();
        }
        let patient = Options { timeout: 12, ..Options::default() };
        let second = intrude(&mut net, &cq, &patient);
        net.run(20);
        assert_eq!(sent(&mut net, second) > 0, end == 0, "{what}");
        match end {
            0 => {}
            1 => drop(net.execute(0, fail()).unwrap()),
            2 => drop(net.execute(0, Command::DestroyQp { vnic, qp }).unwrap()),
            3 => drop(net.execute(0, Command::DetachVnic { vnic }).unwrap()),
            _ => {
                // Where it is does not matter.
                for to in [1, 0, 1] {
                    net.move_guest(&mut a, to);
                    net.run(20);
                    assert_eq!(sent(&mut net, second), 0, "{what}");
                }
                write_as_owner(&mut net, &a);
                net.execute(1, Command::DestroyQp { vnic, qp }).unwrap();
            }
        }
        net.run(20);
        assert!(sent(&mut net, second) > 0, "{what}");
        // It comes before those that come later.
        let third = intrude(&mut net, &cq, &patient);
        net.run(20);
        assert_eq!(sent(&mut net, third), 0, "{what}");
    }
}

/// The kicks of a guest that has moved wake the engine that it has moved to.
#[test]
fn kicks_follow_a_guest_that_moves() {
    let mut p = across();
    let (kick, ours) = event_pair();
    let queue = Virtqueue {
        index: 5,
        role: QueueRole::Doorbell { slot: p.a_qp.slot },
        size: 16,
        desc: Gpa(p.two.a.alloc(1)),
        avail: Gpa(p.two.a.alloc(1)),
        used: Gpa(p.two.a.alloc(1)),
        base: 0,
        event_idx: false,
        kick: Some(kick),
        call: None,
    };
    p.two.net.execute(0, Command::AttachQueue { vnic: p.two.a.id, queue }).unwrap();
    p.move_a(1);
    while p.turn(1) | p.turn(0) {}
    while !p.two.net.engines[1].prepare_sleep() {
        p.turn(1);
    }
    assert!(p.two.a.need_kick(p.a_qp.slot), "the engine that has it sleeps");
    rustix::io::write(&ours, &1u64.to_ne_bytes()).unwrap();
    let now = Time::from_nanos(p.two.net.now);
    p.two.net.engines[1].sleep(now, Some(Time::from_nanos(p.two.net.now + 1_000_000_000)));
    assert!(p.turn(1), "the kick has ended the sleep");
    assert!(!p.two.a.need_kick(p.a_qp.slot));
}

/// A window that only its queue pair gives access through knows it where it has moved to.
#[test]
fn a_window_of_type_2_moves_with_its_queue_pair() {
    let mut p = across();
    let vnic = p.two.b.id;
    let (mw, pd) = (MwHandle(p.two.b.handle()), PD);
    let Ok(Reply::MwCreated { rkey }) =
        p.two.net.execute(1, Command::CreateMw { vnic, mw, pd, mw_type: MwType::Two })
    else {
        panic!("no window")
    };
    let bound = (rkey.0 & !0xff) | 5;
    let (mr_lkey, addr, access) = (p.two.b_mr.key, p.two.b_mr.gpa, vrdma_abi::control::ACCESS_REMOTE_WRITE);
    let segment = BindSegment { mr_lkey, access, addr, length: 4096, reserved: 0 };
    let bind = vrdma_rings::SendRequest {
        rkey: bound,
        operands: vrdma_rings::Operands::Bind(segment),
        ..request(SEND_OP_BIND_MW, 50)
    };
    p.two.b.post(&mut p.b_qp, &bind, &[]);
    assert_eq!(wait(&mut p.two.net, &mut p.two.b_cq).status, WC_SUCCESS);
    p.move_b(0);
    let write = vrdma_rings::SendRequest {
        remote_addr: p.two.b_mr.gpa,
        rkey: bound,
        ..request(SEND_OP_RDMA_WRITE, 1)
    };
    p.two.a.post(&mut p.a_qp, &write, &[sge(&p.two.a_mr, 0, 8)]);
    assert_eq!(wait(&mut p.two.net, &mut p.two.a_cq).status, WC_SUCCESS);
}

/// A step of a random history.
#[derive(Clone, Copy, Debug)]
enum Step {
    Turn(usize),
    MoveA(usize),
    MoveB(usize),
    /// A message of so many bytes, from A to B.
    Send(u32),
    /// A READ of so many bytes by B.
    Read(u32),
    Receive,
    /// A region of A comes and goes, which waits for other engines' work on its memory.
    Command,
}

fn step() -> impl proptest::strategy::Strategy<Value = Step> {
    use proptest::prelude::*;
    let len = prop_oneof![Just(0u32), 1u32..64, 1u32..5000, 200_000u32..MR as u32];
    prop_oneof![
        8 => (0usize..3).prop_map(Step::Turn),
        1 => (0usize..3).prop_map(Step::MoveA),
        1 => (0usize..3).prop_map(Step::MoveB),
        2 => len.clone().prop_map(Step::Send),
        1 => len.prop_map(Step::Read),
        2 => Just(Step::Receive),
        1 => Just(Step::Command),
    ]
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig { cases: 48, ..Default::default() })]

    /// Whatever the engines' turns, moves and posts are: each message arrives once, whole, in order.
    #[test]
    fn random_histories(steps in proptest::collection::vec(step(), 1..120)) {
        let mut net = Net::group(&RnicConfig::default(), 3);
        let mut a = Guest::attach(&mut net, 0, 1, 100, &fresh_address(), 8 << 20);
        let mut b = Guest::attach(&mut net, 1, 2, 100, &fresh_address(), 8 << 20);
        let (mut a_cq, mut b_cq) = (a.cq(&mut net, 128), b.cq(&mut net, 128));
        let mut receives = b.cq(&mut net, 128);
        let mut a_qp = a.qp(&mut net, &a_cq, &a_cq);
        let mut b_qp = b.qp(&mut net, &b_cq, &receives);
        let (a_mr, b_mr) = (a.mr(&mut net, MR, all_access()), b.mr(&mut net, MR, all_access()));
        let b_own = b.mr(&mut net, MR, all_access());
        connect(&mut net, (&a, &a_qp), (&b, &b_qp), &Options::default());
        a.write(a_mr.gpa, &pattern(MR as usize, 3));
        let (mut sent, mut reads, mut posted) = (Vec::new(), 0u64, 0u64);
        for step in steps {
            match step {
                Step::Turn(engine) => {
                    net.now += 1_000;
                    let now = Time::from_nanos(net.now);
                    net.engines[engine].turn(now);
                }
                Step::MoveA(to) => net.move_guest(&mut a, to),
                Step::MoveB(to) => net.move_guest(&mut b, to),
                Step::Send(len) if sent.len() < 40 => {
                    a.post(&mut a_qp, &request(SEND_OP_SEND, sent.len() as u64), &[sge(&a_mr, 0, len)]);
                    sent.push(len);
                }
                Step::Read(len) if reads < 40 => {
                    b.post(&mut b_qp, &to(&a_mr, 0, request(SEND_OP_RDMA_READ, reads)), &[sge(&b_own, 0, len)]);
                    reads += 1;
                }
                Step::Receive if posted < 40 => {
                    b.post_recv(&mut b_qp, posted, &[sge(&b_mr, 0, MR as u32)]);
                    posted += 1;
                }
                Step::Command => {
                    let mr = a.mr_at(&mut net, a_mr.gpa, 4096, all_access(), PD).handle;
                    net.execute(a.engine, Command::DestroyMr { vnic: a.id, mr }).unwrap();
                }
                _ => {}
            }
        }
        while posted < sent.len() as u64 {
            b.post_recv(&mut b_qp, posted, &[sge(&b_mr, 0, MR as u32)]);
            posted += 1;
        }
        for wr_id in 0..reads {
            let c = wait(&mut net, &mut b_cq);
            proptest::prop_assert_eq!((c.wr_id, c.status), (wr_id, WC_SUCCESS));
        }
        for (wr_id, len) in (0u64..).zip(&sent) {
            let c = wait(&mut net, &mut a_cq);
            proptest::prop_assert_eq!((c.wr_id, c.status), (wr_id, WC_SUCCESS));
            let c = wait(&mut net, &mut receives);
            proptest::prop_assert_eq!((c.wr_id, c.status, c.byte_len), (wr_id, WC_SUCCESS, *len));
        }
        if let Some(len) = sent.last().map(|l| *l as usize) {
            proptest::prop_assert_eq!(b.read(b_mr.gpa, len), pattern(MR as usize, 3)[..len].to_vec());
        }
        net.run(2);
        let more = [a_cq.ring.poll(), b_cq.ring.poll(), receives.ring.poll()];
        proptest::prop_assert!(more.iter().all(Option::is_none));
        a.detach(&mut net);
        b.detach(&mut net);
    }
}
