//! Neighbours of a guest that has its first address alone and shares the others, and that name the guest's peer as theirs.

mod common;

use common::multipath::*;
use common::*;
use masq_driver::*;
use vrdma_abi::ring::*;
use vrdma_rings::SendRequest;

const LEN: u32 = 1 << 20;

/// A queue pair of a neighbour of A's that has an address of its own, A's others, and B as its peer.
struct Neighbour {
    guest: Guest,
    qp: GroupQp,
    cq: TestCq,
    mr: Mr,
}

impl Neighbour {
    fn attach(m: &mut Multi, engine: usize) -> Self {
        let mut own: Vec<String> = m.addresses[0].iter().map(ToString::to_string).collect();
        own[0] = fresh_address();
        let own: Vec<&str> = own.iter().map(String::as_str).collect();
        let mut guest = Guest::attach_at(&mut m.net, engine, 3, 100, &own, 8 << 20);
        let (cq, mr) = (guest.cq(&mut m.net, 64), guest.mr(&mut m.net, MR, all_access()));
        let qp = guest.group(&mut m.net, &cq);
        guest.write(mr.gpa, &vec![0xee; LEN as usize]);
        Neighbour { guest, qp, cq, mr }
    }

    /// To RTS, with B's queue pair as its peer. Packet sequence numbers are those that A has.
    fn connect(&mut self, m: &mut Multi) {
        let options = options();
        let mut connection = m.connection(0, 4, &options);
        connection.local = self.guest.address;
        self.guest.to_rtr_by(&mut m.net, &self.qp.qp, connection, &options);
        self.guest.to_rts(&mut m.net, &self.qp.qp, &options);
    }

    /// Posts chunks for all members, which write where A's write.
    fn speak(&mut self, m: &mut Multi) {
        for at in 0..8 {
            let chunk = to(&m.b_mr, at << 12, request(SEND_OP_RDMA_WRITE, 0));
            let chunk = SendRequest { flags: 0, ..chunk };
            self.qp.chunks.post(&chunk, &[sge(&self.mr, at << 12, 1 << 12)]).unwrap();
        }
        self.qp.chunks.publish();
        self.guest.post(
            &mut self.qp.qp,
            &to(&m.b_mr, 0, request(SEND_OP_RDMA_WRITE, 7)),
            &[sge(&self.mr, 0, 1 << 12)],
        );
    }

    /// What it says changes nothing of B's, and A has all paths before it fails and afterwards.
    fn is_not_heard(&mut self, m: &mut Multi) {
        m.b.write(m.b_mr.gpa, &[0; LEN as usize]);
        self.speak(m);
        m.net.run(5);
        assert!(m.b.read(m.b_mr.gpa, LEN as usize).iter().all(|byte| *byte == 0));
        message(m, 1);
        self.fails(m);
        message(m, 2);
    }

    /// Nobody has answered what it has asked.
    fn fails(&mut self, m: &mut Multi) {
        assert_eq!(completions_within(&mut m.net, &mut self.cq, 3000), [(7, WC_RETRY_EXC_ERR)]);
    }
}

fn options() -> Options {
    Options { retry_cnt: 1, timeout: 12, ..Options::default() }
}

/// A message of A's by all of its paths.
fn message(m: &mut Multi, round: u8) {
    let before: Vec<u64> = m.paths().iter().map(|path| path.chunks).collect();
    let data = pattern(LEN as usize, round);
    m.a.write(m.a_mr.gpa, &data);
    m.message(SEND_OP_RDMA_WRITE, round.into(), 0, LEN, 32 << 10);
    assert_eq!(m.completion(), (round.into(), WC_SUCCESS));
    assert!(m.b.read(m.b_mr.gpa, LEN as usize) == data);
    for ((path, before), number) in m.paths().iter().zip(before).zip(0..) {
        assert!(path.chunks > before && path.taken == number, "round {round}: {path:?}");
    }
}

/// A neighbour has connected to A's peer before A does.
#[test]
fn who_was_there_first_speaks_by_no_path() {
    for engine in [0, 1] {
        let mut m = two_engines();
        let mut neighbour = Neighbour::attach(&mut m, engine);
        neighbour.connect(&mut m);
        m.renew(4);
        neighbour.is_not_heard(&mut m);
    }
}

/// B was connected to the neighbour, and is to A now: of which the neighbour's queue pair knows nothing.
#[test]
fn who_was_connected_before_speaks_no_more() {
    for engine in [0, 1] {
        let mut m = two_engines();
        let mut neighbour = Neighbour::attach(&mut m, engine);
        m.modify_a(QpState::Reset);
        let to_neighbour = |m: &Multi| {
            let own = m.connection(1, 4, &options());
            Connection { remote: neighbour.guest.address, remote_qpn: neighbour.qp.qp.wire, ..own }
        };
        let connection = to_neighbour(&m);
        let reset = QpChange { to: Some(QpState::Reset), ..QpChange::default() };
        m.b.modify(&mut m.net, &m.b_qp.qp, reset).unwrap();
        neighbour.connect(&mut m);
        m.b.to_rtr_by(&mut m.net, &m.b_qp.qp, connection, &options());
        m.b.to_rts(&mut m.net, &m.b_qp.qp, &options());
        m.net.run(5);
        let taken: Vec<u8> =
            paths(&mut m.net, &neighbour.guest, &neighbour.qp).iter().map(|p| p.taken).collect();
        assert_eq!(taken, [0, 1, 2, 3], "it is the peer");

        m.renew(4);
        neighbour.is_not_heard(&mut m);
    }
}

/// As long as B's queue pair has not heard from A's RNIC, it takes nothing by the paths that A shares, even from one that was its peer before.
#[test]
fn nothing_comes_by_shared_paths_before_the_peer_is_there() {
    let mut m = two_engines();
    let mut neighbour = Neighbour::attach(&mut m, 0);
    let reset = QpChange { to: Some(QpState::Reset), ..QpChange::default() };
    m.modify_a(QpState::Reset);
    m.b.modify(&mut m.net, &m.b_qp.qp, reset.clone()).unwrap();
    neighbour.connect(&mut m);
    let own = m.connection(1, 4, &options());
    let connection = Connection { remote: neighbour.guest.address, remote_qpn: neighbour.qp.qp.wire, ..own };
    m.b.to_rtr_by(&mut m.net, &m.b_qp.qp, connection, &options());
    m.net.run(5);
    m.b.modify(&mut m.net, &m.b_qp.qp, reset).unwrap();
    let connection = m.connection(1, 4, &options());
    m.b.to_rtr_by(&mut m.net, &m.b_qp.qp, connection, &options());
    neighbour.speak(&mut m);
    neighbour.fails(&mut m);
    assert!(m.b.read(m.b_mr.gpa, LEN as usize).iter().all(|byte| *byte == 0));
    assert!(m.net.counter(2, "rx_wrong_peer") > 0, "they came");
}

/// A at one of two engines of an RNIC, B on another RNIC.
fn two_engines() -> Multi {
    let mut net = Net::group(&masq_rnic::RnicConfig::default(), 2);
    net.add(&masq_rnic::RnicConfig::default());
    Multi::on(net, 2, 4, &Options::default())
}
