//! Queue pairs with several paths, some of which die: what was under way there goes by others, and comes home.

mod common;

use std::time::Duration;

use common::links::*;
use common::multipath::*;
use common::*;
use masq_driver::*;
use masq_rnic::RnicConfig;
use masq_types::WireQpn;
use vrdma_abi::ring::*;
use vrdma_rings::{Operands, SendRequest};

const CHUNK: u32 = 64 << 10;
const LEN: u32 = 3 << 20;

/// Two hosts, four links.
struct Net4 {
    m: Multi,
    links: Links,
}

impl Net4 {
    fn new() -> Self {
        Self::with(&Options::default())
    }

    fn with(options: &Options) -> Self {
        let links = Links::default();
        let config = RnicConfig { network: std::sync::Arc::new(links.clone()), ..RnicConfig::default() };
        let net = Net::new(&[config.clone(), config]);
        Self { m: Multi::on(net, 1, 4, options), links }
    }

    fn set(&self, path: usize, fate: Option<Fate>) {
        self.links.set(self.m.addresses[0][path], self.m.addresses[1][path], fate);
    }

    fn cut(&self, path: usize) {
        self.set(path, Some(Fate::Lost));
    }

    fn mend(&self, path: usize) {
        self.set(path, None);
    }

    /// Runs until B has received so many more packets.
    fn run_packets(&mut self, packets: u64) {
        let end = self.m.net.counter(1, "rcvd_pkts") + packets;
        assert!(self.m.net.run_until(1000, |net| net.counter(1, "rcvd_pkts") >= end));
    }

    /// A message of A's with these bytes, from begin to end, with `between` when it has begun.
    fn message(&mut self, opcode: u8, seed: u8, between: impl FnOnce(&mut Self)) {
        let data = pattern(LEN as usize, seed);
        let (from, to) = if opcode == SEND_OP_RDMA_WRITE { (0, 1) } else { (1, 0) };
        let place = [self.m.a_mr.gpa, self.m.b_mr.gpa];
        for end in [0, 1] {
            let guest = if end == 0 { &self.m.a } else { &self.m.b };
            guest.write(place[end], &if end == from { data.clone() } else { vec![0; LEN as usize] });
        }
        self.m.message(opcode, seed.into(), 0, LEN, CHUNK);
        if opcode == SEND_OP_RDMA_WRITE {
            self.run_packets(200);
        } else {
            let end = self.m.net.counter(0, "rcvd_pkts") + 200;
            assert!(self.m.net.run_until(1000, |net| net.counter(0, "rcvd_pkts") >= end));
        }
        between(self);
        assert_eq!(self.m.completion(), (seed.into(), WC_SUCCESS));
        let target = if to == 0 { &self.m.a } else { &self.m.b };
        assert!(target.read(place[to], LEN as usize) == data, "message {seed}");
        let (sent, chunks) = (self.m.a_qp.qp.sq.producer(), self.m.a_qp.chunks.producer());
        self.m.a_qp.qp.sq.complete(sent);
        assert_eq!(self.m.a_qp.chunks.done(), chunks);
    }

    /// What was told of A's paths since this was asked last: number, and whether it is up.
    fn told(&mut self) -> Vec<(u8, bool)> {
        let told = |event| match event {
            Event::PathChanged { path, is_up, local, remote } => {
                assert_eq!(local, self.m.addresses[0][usize::from(path)]);
                assert_eq!(remote, self.m.addresses[1][usize::from(path)]);
                Some((path, is_up))
            }
            _ => None,
        };
        self.m.net.events[0].take().into_iter().filter_map(told).collect()
    }

    /// Which path each member of A's takes.
    fn taken(&mut self) -> Vec<u8> {
        self.m.paths().iter().map(|p| p.taken).collect()
    }
}

/// A path dies in the middle of a message: what was under way there goes by others within three timeouts, the peer's answers as well, and nobody sees an error.
/// When the path is back, its member comes home.
#[test]
fn a_path_that_dies_is_left_and_found_again() {
    for opcode in [SEND_OP_RDMA_WRITE, SEND_OP_RDMA_READ] {
        for dead in 0..4usize {
            let mut n = Net4::new();
            n.message(opcode, 1, |_| {});
            let before = n.m.paths();
            assert!(before.iter().all(|p| (p.state, p.changes) == (PathState::Up, 0)));
            let timeout = before[dead].answer_timeout;
            let mut cut_at = 0;
            n.message(opcode, 2, |n| {
                n.cut(dead);
                cut_at = n.m.net.now;
                assert!(n.m.net.run_until(1000, |net| net.counter(0, "path_migrations") > 0));
                let took = Duration::from_nanos(n.m.net.now - cut_at);
                assert!(
                    took <= 3 * timeout,
                    "{opcode} by path {dead}: {took:?}, with a timeout of {timeout:?}"
                );
            });
            n.m.net.run(100);
            let then = n.m.paths();
            assert_eq!(n.told(), [(dead as u8, false)]);
            for (number, path) in then.iter().enumerate() {
                let is_dead = number == dead;
                assert_eq!(path.state, if is_dead { PathState::Down } else { PathState::Up });
                assert_eq!(usize::from(path.taken) != number, is_dead);
                assert_eq!(path.changes, u64::from(is_dead));
            }
            // Nothing but checks goes by the dead path, all four queue pairs carry chunks, and nobody waits for anything.
            let now = n.m.net.now;
            n.message(opcode, 3, |_| {});
            assert!(n.m.net.now - now < 50_000_000);
            let later = n.m.paths();
            assert!(later[dead].traffic.tx_bytes - then[dead].traffic.tx_bytes < 1000);
            assert_eq!(later[dead].traffic.rx_bytes, then[dead].traffic.rx_bytes);
            assert!((0..4).all(|i| later[i].chunks > then[i].chunks));

            n.mend(dead);
            let (a, a_qp) = (&n.m.a, &n.m.a_qp);
            let is_home = |net: &mut Net| usize::from(paths(net, a, a_qp)[dead].taken) == dead;
            assert!(n.m.net.run_until(6000, is_home));
            assert_eq!(n.told(), [(dead as u8, true)]);
            n.message(opcode, 4, |_| {});
            let last = n.m.paths();
            assert!(last[dead].traffic.rx_bytes > later[dead].traffic.rx_bytes + 300);
            assert!(last[dead].last_change < Some(Duration::from_secs(1)));
            assert_eq!(n.m.states(), [QpState::Rts; 2]);
        }
    }
}

/// SENDs and atomics take each receive and change the number once, whichever path they were sent by before.
#[test]
fn nothing_is_carried_out_twice() {
    let mut n = Net4::new();
    let total = 60u64;
    let counter = n.m.b_mr.gpa + MR - 8;
    for round in 0..total {
        n.m.b.post_recv(&mut n.m.b_qp.qp, round, &[sge(&n.m.b_mr, 64 * round, 64)]);
        let place = 4096 + 64 * round;
        n.m.a.write(n.m.a_mr.gpa + place, &[round as u8; 64]);
        let send = request(SEND_OP_SEND, 2 * round);
        n.m.a.post(&mut n.m.a_qp.qp, &send, &[sge(&n.m.a_mr, place, 64)]);
        let operands = Operands::Atomic(AtomicSegment { compare_add: 1, swap: 0 });
        let add = SendRequest { operands, ..request(SEND_OP_FETCH_ADD, 2 * round + 1) };
        let add = to(&n.m.b_mr, MR - 8, add);
        n.m.a.post(&mut n.m.a_qp.qp, &add, &[sge(&n.m.a_mr, 8 * round, 8)]);
        match round % 20 {
            // First the answers are lost, and then everything.
            5 => {
                let [a, b] = [n.m.addresses[0][0], n.m.addresses[1][0]];
                n.links.set_one_way(b, a, Some(Fate::Lost));
            }
            7 => n.cut(0),
            15 => n.mend(0),
            _ => {}
        }
        assert_eq!(n.m.completion(), (2 * round, WC_SUCCESS));
        assert_eq!(n.m.completion(), (2 * round + 1, WC_SUCCESS));
        let sent = n.m.a_qp.qp.sq.producer();
        n.m.a_qp.qp.sq.complete(sent);
        let received = wait(&mut n.m.net, &mut n.m.b_cq);
        assert_eq!((received.wr_id, received.status), (round, WC_SUCCESS));
        assert_eq!(n.m.b.read(n.m.b_mr.gpa + 64 * round, 64), [round as u8; 64]);
        assert_eq!(n.m.a.read_u64(n.m.a_mr.gpa + 8 * round), round, "what the atomic has found");
    }
    assert_eq!(n.m.b.read_u64(counter), total);
    n.m.net.run(100);
    assert!(n.m.b_cq.ring.poll().is_none() && n.m.a_cq.ring.poll().is_none());
    assert!(n.m.net.counter(0, "path_migrations") >= 1);
}

/// What a dead path held back comes when the application has long written something else to the same place: it changes nothing.
#[test]
fn packets_that_come_late_change_nothing() {
    let mut n = Net4::new();
    n.message(SEND_OP_RDMA_WRITE, 1, |_| {});
    n.message(SEND_OP_RDMA_WRITE, 2, |n| (0..3).for_each(|path| n.set(path, Some(Fate::Held))));
    let new = pattern(LEN as usize, 77);
    n.m.b.write(n.m.b_mr.gpa, &new);
    let received = n.m.net.counter(1, "duplicate_request");
    (0..3).for_each(|path| n.mend(path));
    assert!(n.links.release() > 0);
    n.m.net.run(20);
    assert!(n.m.net.counter(1, "duplicate_request") > received + 10, "they have come");
    assert!(n.m.b.read(n.m.b_mr.gpa, LEN as usize) == new);
    n.m.net.run(6000);
    assert_eq!(n.taken(), [0, 1, 2, 3]);
    n.message(SEND_OP_RDMA_WRITE, 3, |_| {});
}

/// Paths that go and come, one after another and several at once.
#[test]
fn paths_that_flap_lose_nothing() {
    let mut n = Net4::new();
    let mut seed = 7u32;
    for round in 0..40u8 {
        let opcode = if round % 3 == 2 { SEND_OP_RDMA_READ } else { SEND_OP_RDMA_WRITE };
        n.message(opcode, round, |n| {
            for path in 0..4 {
                seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                // One is always left.
                if path != usize::from(round) % 4 && seed >> 16 & 1 == 0 {
                    n.cut(path);
                } else {
                    n.mend(path);
                }
            }
        });
    }
    (0..4).for_each(|path| n.mend(path));
    n.m.net.run(6000);
    assert_eq!(n.taken(), [0, 1, 2, 3]);
    assert!(n.m.paths().iter().all(|p| p.state == PathState::Up));
    let mut up = [true; 4];
    for (path, is_up) in n.told() {
        let state = &mut up[usize::from(path)];
        assert_ne!(*state, is_up, "path {path} is told to be what it was");
        *state = is_up;
    }
    assert_eq!(up, [true; 4]);
    assert_eq!(n.m.states(), [QpState::Rts; 2]);
}

/// Where all paths are dead, it is as with one: the peer does not answer, and no path is blamed for it.
#[test]
fn without_any_path_the_retries_end() {
    let mut n = Net4::with(&Options { retry_cnt: 3, timeout: 12, ..Options::default() });
    n.message(SEND_OP_RDMA_WRITE, 1, |_| {});
    (0..4).for_each(|path| n.cut(path));
    n.m.message(SEND_OP_RDMA_WRITE, 7, 0, LEN, CHUNK);
    let before = n.m.net.now;
    assert_eq!(n.m.completions().first(), Some(&(7, WC_RETRY_EXC_ERR)));
    // 16.8 ms each (IBTA Vol 1 §11.2.5.3: 4.096 µs · 2^12), on each path, and no longer than twice that.
    let told = n.told();
    assert!(told.is_empty(), "{told:?}");
    assert_eq!(n.m.states()[0], QpState::Err);
    assert!(n.m.net.now - before < 4 * 4 * 34_000_000 + 1_500_000_000);
}

/// Paths that carry nothing but small packets seem alive: a request ends all the same.
#[test]
fn paths_for_small_packets_only_do_not_go_on_for_ever() {
    let mut n = Net4::with(&Options { retry_cnt: 3, timeout: 12, ..Options::default() });
    n.message(SEND_OP_RDMA_WRITE, 1, |_| {});
    (0..4).for_each(|path| n.set(path, Some(Fate::SmallOnly)));
    n.m.message(SEND_OP_RDMA_WRITE, 7, 0, LEN, CHUNK);
    assert_eq!(n.m.completions().first(), Some(&(7, WC_RETRY_EXC_ERR)));
}

/// All paths are dead for a while, shorter than the retries last.
#[test]
fn all_paths_come_back() {
    let mut n = Net4::new();
    n.message(SEND_OP_RDMA_WRITE, 1, |_| {});
    n.message(SEND_OP_RDMA_WRITE, 2, |n| {
        (0..4).for_each(|path| n.cut(path));
        n.m.net.run(120);
        (0..4).for_each(|path| n.mend(path));
    });
    n.m.net.run(6000);
    assert_eq!(n.taken(), [0, 1, 2, 3]);
    assert_eq!(n.told(), []);
}

/// A path that is slow holds two chunks and no more.
#[test]
fn a_slow_path_holds_little() {
    let mut n = Net4::new();
    n.set(3, Some(Fate::Held));
    let until = n.m.message(SEND_OP_RDMA_WRITE, 1, 0, LEN, CHUNK);
    let others = |net: &mut Net, n: &(Guest, GroupQp)| {
        paths(net, &n.0, &n.1)[..3].iter().map(|p| p.chunks).sum::<u64>()
    };
    let Multi { mut net, a, a_qp, mut a_cq, .. } = n.m;
    let ends = (a, a_qp);
    assert!(net.run_until(4, |net| others(net, &ends) + 2 == u64::from(until)));
    let slow = paths(&mut net, &ends.0, &ends.1)[3];
    assert_eq!((slow.chunks, slow.chunks_under_way), (0, 2));
    n.links.release();
    assert_eq!(wait(&mut net, &mut a_cq).status, WC_SUCCESS);
}

/// Packets count from both ends of a path, and from no other pair of addresses.
#[test]
fn packets_from_elsewhere_are_nobodys() {
    let mut n = Net4::new();
    n.message(SEND_OP_RDMA_WRITE, 1, |_| {});
    let [from, to, other] = [n.m.addresses[0][1], n.m.addresses[1][1], n.m.addresses[0][2]];
    n.message(SEND_OP_RDMA_WRITE, 2, |n| n.links.set_one_way(from, to, Some(Fate::From(other))));
    assert!(n.m.net.counter(1, "rx_wrong_peer") > 0);
    n.m.net.run(100);
    assert_eq!(n.told(), [(1, false)]);
    n.m.net.run(6000);
    assert_ne!(n.taken()[1], 1, "answers to probes by a crossed path are none");
    // A stranger's, by another path.
    let stranger = fresh_address().parse().unwrap();
    let [from, to] = [n.m.addresses[0][2], n.m.addresses[1][2]];
    let before = n.m.net.counter(1, "rx_wrong_peer");
    n.message(SEND_OP_RDMA_WRITE, 3, |n| n.links.set_one_way(from, to, Some(Fate::From(stranger))));
    assert!(n.m.net.counter(1, "rx_wrong_peer") > before);
    n.m.net.run(6000);
    assert_eq!(n.told(), [(2, false)]);
    assert!(n.taken()[1..3].iter().all(|path| ![1, 2].contains(path)));
}

/// A neighbour at the same address names one of the peer's hidden queue pairs, which takes packets by all paths: nothing of it gets there.
#[test]
fn a_neighbour_does_not_speak_to_a_sibling() {
    let mut n = Net4::new();
    let (wire, addresses) = (n.m.b_qp.qp.wire.get(), n.m.addresses[0].clone());
    let own: Vec<String> = addresses.iter().map(ToString::to_string).collect();
    let own: Vec<&str> = own.iter().map(String::as_str).collect();
    let mut c = Guest::attach_at(&mut n.m.net, 0, 3, 100, &own, 4 << 20);
    let mut cq = c.cq(&mut n.m.net, 64);
    let mr = c.mr(&mut n.m.net, 4096, all_access());
    c.write(mr.gpa, &[0xee; 4096]);
    let options = Options { retry_cnt: 1, timeout: 10, ..Options::default() };
    for path in 0..4 {
        let mut qp = c.qp(&mut n.m.net, &cq, &cq);
        let sibling = WireQpn::new(wire + (path as u32 + 1) % 4).unwrap();
        let connection =
            n.m.connection(0, 4, &options).on_path(path).unwrap_or(n.m.connection(0, 1, &options));
        let connection = Connection { remote_qpn: sibling, ..connection };
        c.to_rtr_by(&mut n.m.net, &qp, connection, &options);
        c.to_rts(&mut n.m.net, &qp, &options);
        let write = to(&n.m.b_mr, 0, request(SEND_OP_RDMA_WRITE, 9));
        c.post(&mut qp, &write, &[sge(&mr, 0, 4096)]);
        assert_eq!(wait(&mut n.m.net, &mut cq).status, WC_RETRY_EXC_ERR);
    }
    assert!(n.m.b.read(n.m.b_mr.gpa, 4096).iter().all(|b| *b == 0));
    n.message(SEND_OP_RDMA_WRITE, 1, |_| {});
}

/// A guest changes engines while one of its paths is dead.
#[test]
fn a_migrated_group_moves_to_another_engine() {
    let links = Links::default();
    let config = RnicConfig { network: std::sync::Arc::new(links.clone()), ..RnicConfig::default() };
    let mut net = Net::group(&config, 2);
    net.add(&config);
    let mut m = Multi::on(net, 2, 4, &Options::default());
    let [a, b] = [m.addresses[0][1], m.addresses[1][1]];
    for round in 0..8u64 {
        let data = pattern(LEN as usize, round as u8);
        m.a.write(m.a_mr.gpa, &data);
        m.message(SEND_OP_RDMA_WRITE, round, 0, LEN, CHUNK);
        let before = m.net.counter(2, "rcvd_pkts");
        m.net.run_until(1000, |net| net.counter(2, "rcvd_pkts") > before + 200);
        links.set(a, b, (round % 4 < 2).then_some(Fate::Lost));
        if round % 4 == 1 {
            assert_ne!(m.paths()[1].taken, 1);
        }
        m.net.move_guest(&mut m.a, (round as usize + 1) % 2);
        assert_eq!(m.completion(), (round, WC_SUCCESS));
        assert!(m.b.read(m.b_mr.gpa, LEN as usize) == data, "round {round}");
        let sent = m.a_qp.qp.sq.producer();
        m.a_qp.qp.sq.complete(sent);
        if round % 4 == 3 {
            m.net.run(6000);
            assert_eq!(m.paths()[1].taken, 1);
        }
    }
}
