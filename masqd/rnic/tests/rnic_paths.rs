//! Paths between two hosts that die, as seen by all queue pairs that use them.

mod common;

use common::links::*;
use common::multipath::*;
use common::*;
use masq_driver::*;
use masq_rnic::RnicConfig;
use masq_rnic::transport::Time;
use masq_types::WireQpn;
use vrdma_abi::ring::*;

const LEN: u32 = 1 << 20;
const CHUNK: u32 = 64 << 10;

/// Hosts of as many engines as told, over links in memory, and a connection with four paths between the first and the last.
fn on_links(engines: usize) -> (Multi, Links) {
    let links = Links::default();
    let config = RnicConfig { network: std::sync::Arc::new(links.clone()), ..RnicConfig::default() };
    let mut net = Net::group(&config, engines);
    net.add(&config);
    (Multi::on(net, engines, 4, &Options::default()), links)
}

/// Another guest of A's host, at this engine and in this network.
fn third(m: &mut Multi, engine: usize, vni: u32) -> (Guest, TestCq, Mr) {
    let own: Vec<String> = m.addresses[0].iter().map(ToString::to_string).collect();
    let own: Vec<&str> = own.iter().map(String::as_str).collect();
    let mut guest = Guest::attach_at(&mut m.net, engine, 3, vni, &own, 8 << 20);
    let cq = guest.cq(&mut m.net, 256);
    let mr = guest.mr(&mut m.net, 4096, all_access());
    (guest, cq, mr)
}

fn set(m: &Multi, links: &Links, path: usize, fate: Option<Fate>) {
    links.set(m.addresses[0][path], m.addresses[1][path], fate);
}

/// What an engine's RNIC has told of paths since this was asked last.
fn told(m: &mut Multi, engine: usize) -> Vec<(u8, bool)> {
    let told = |event| match event {
        Event::PathChanged { path, is_up, .. } => Some((path, is_up)),
        _ => None,
    };
    m.net.events[engine].take().into_iter().filter_map(told).collect()
}

fn connection(m: &Multi, end: usize, guest: &Guest, own: &GroupQp, peer: &GroupQp) -> Connection {
    let options = Options::default();
    let by = m.connection(end, 4, &options);
    Connection {
        remote: by.remote,
        other_paths: by.other_paths,
        ..guest.connection(&own.qp, &peer.qp, &options)
    }
}

/// One more connection of A's with B.
fn pair(m: &mut Multi) -> (GroupQp, GroupQp) {
    let own = m.a.group(&mut m.net, &m.a_cq);
    let peer = m.b.group(&mut m.net, &m.b_cq);
    let ways = [connection(m, 0, &m.a, &own, &peer), connection(m, 1, &m.b, &peer, &own)];
    let options = Options::default();
    let [to_b, to_a] = ways;
    m.a.to_rtr_by(&mut m.net, &own.qp, to_b, &options);
    m.b.to_rtr_by(&mut m.net, &peer.qp, to_a, &options);
    m.a.to_rts(&mut m.net, &own.qp, &options);
    m.b.to_rts(&mut m.net, &peer.qp, &options);
    (own, peer)
}

fn write(m: &mut Multi, qp: &mut GroupQp, id: u64) {
    let request = to(&m.b_mr, 0, request(SEND_OP_RDMA_WRITE, id));
    m.a.post(&mut qp.qp, &request, &[sge(&m.a_mr, 0, 64)]);
}

fn finish(m: &mut Multi, count: usize) {
    for _ in 0..count {
        assert_eq!(m.completion().1, WC_SUCCESS);
    }
}

/// All of a host's connections use the path that dies: it is told once, found dead once, and those that come later do without from the beginning.
#[test]
fn what_one_finds_serves_all() {
    const PAIRS: usize = 50;
    let (mut m, links) = on_links(1);
    let mut pairs: Vec<_> = (0..PAIRS).map(|_| pair(&mut m)).collect();
    for (id, (qp, _)) in pairs.iter_mut().enumerate() {
        write(&mut m, qp, id as u64);
    }
    finish(&mut m, PAIRS);
    set(&m, &links, 0, Some(Fate::Lost));
    // One of them has something to send.
    write(&mut m, &mut pairs[0].0, 100);
    finish(&mut m, 1);
    m.net.run(100);
    assert_eq!(told(&mut m, 0), [(0, false)]);
    let checks = m.net.counter(0, "path_checks");
    assert!(checks <= 4 * 4, "{checks}");
    assert_eq!(m.net.counter(0, "path_migrations"), 1);
    // The others lose no time when they have.
    let before = m.net.now;
    for (id, (qp, _)) in pairs.iter_mut().enumerate() {
        write(&mut m, qp, id as u64);
    }
    finish(&mut m, PAIRS);
    assert!(m.net.now - before < 1_000_000, "{} ns", m.net.now - before);
    // Nor does a new one.
    let (mut late, _) = pair(&mut m);
    let before = m.net.now;
    write(&mut m, &mut late, 1);
    finish(&mut m, 1);
    assert!(m.net.now - before < 1_000_000, "{} ns", m.net.now - before);
    let own = paths(&mut m.net, &m.a, &late);
    assert_eq!((own[0].state, own[0].unanswered_before), (PathState::Down, None));
    assert_ne!(own[0].taken, 0);

    // It is asked ever more rarely, by one for all.
    let before = m.net.counter(0, "path_checks");
    m.net.run(20_000);
    assert!(m.net.counter(0, "path_checks") - before <= 10);
    set(&m, &links, 0, None);
    m.net.run(6000);
    assert_eq!(told(&mut m, 0), [(0, true)]);
    for qp in [&pairs[0].0, &pairs[9].0, &late] {
        assert_eq!(paths(&mut m.net, &m.a, qp)[0].taken, 0);
    }
    let sent = paths(&mut m.net, &m.a, &late)[0].traffic.tx_bytes;
    write(&mut m, &mut late, 2);
    finish(&mut m, 1);
    assert!(paths(&mut m.net, &m.a, &late)[0].traffic.tx_bytes > sent);
}

/// Requests under way on a path that is found dead by others go on at once: their own patience may be hours.
#[test]
fn who_waits_on_a_dead_path_leaves_it() {
    let (mut m, links) = on_links(1);
    let (mut other, _) = pair(&mut m);
    for round in 0..2 {
        write(&mut m, &mut other, round);
        finish(&mut m, 1);
    }
    set(&m, &links, 0, Some(Fate::Lost));
    // Without a measured round trip it waits for 5 ms, and this one, which has one, for little more than 1.
    write(&mut m, &mut other, 8);
    m.post(SEND_OP_RDMA_WRITE, 9, 0, 64);
    let mut ids: Vec<u64> = (0..2).map(|_| m.completion().0).collect();
    ids.sort();
    assert_eq!(ids, [8, 9]);
    m.net.run(100);
    assert_eq!(told(&mut m, 0), [(0, false)]);
    let switch = paths(&mut m.net, &m.a, &other)[0];
    let took = switch.unanswered_before.unwrap();
    assert!(took <= 3 * switch.answer_timeout, "{took:?}");
}

/// A tenant whose peers do not answer, because there are none, takes no path from others.
#[test]
fn a_guest_with_silent_peers_blames_no_path() {
    let (mut m, _links) = on_links(1);
    let (mut c, mut cq, mr) = third(&mut m, 0, 200);
    let options = Options { retry_cnt: 7, timeout: 10, ..Options::default() };
    let mut liars: Vec<GroupQp> = (0..20).map(|_| c.group(&mut m.net, &cq)).collect();
    for (number, liar) in liars.iter().enumerate() {
        let nobody = WireQpn::new(0xab_0000 + 4 * number as u32).unwrap();
        let connection = Connection { remote_qpn: nobody, ..m.connection(0, 4, &options) };
        c.to_rtr_by(&mut m.net, &liar.qp, connection, &options);
        c.to_rts(&mut m.net, &liar.qp, &options);
    }
    for liar in &mut liars {
        let write = to(&m.b_mr, 0, request(SEND_OP_RDMA_WRITE, 9));
        c.post(&mut liar.qp, &write, &[sge(&mr, 0, 4096)]);
    }
    let began = m.net.now;
    for _ in &liars {
        assert_eq!(wait(&mut m.net, &mut cq).status, WC_RETRY_EXC_ERR);
    }
    let ms = (m.net.now - began) / 1_000_000;
    assert_eq!(m.net.counter(0, "path_migrations"), 0, "nobody has confirmed their connections");
    let checks = m.net.counter(0, "path_checks");
    assert!(checks > 0 && checks <= 4 * (ms / 10 + 2), "{checks} in {ms} ms");
    assert_eq!(told(&mut m, 0), []);
    m.message(SEND_OP_RDMA_WRITE, 1, 0, LEN, CHUNK);
    finish(&mut m, 1);
    assert!(m.paths().iter().all(|p| (p.state, p.changes) == (PathState::Up, 0)), "{:?}", m.paths());
}

/// A link whose MTU is less than both ends believe is dead, although small packets pass: large messages do without it.
#[test]
fn a_path_that_loses_large_packets_is_dead() {
    let (mut m, links) = on_links(1);
    let (mut other, _) = pair(&mut m);
    m.message(SEND_OP_RDMA_WRITE, 1, 0, LEN, CHUNK);
    finish(&mut m, 1);
    let sent = m.a_qp.qp.sq.producer();
    m.a_qp.qp.sq.complete(sent);
    set(&m, &links, 1, Some(Fate::SmallOnly));
    m.message(SEND_OP_RDMA_WRITE, 2, 0, LEN, CHUNK);
    // Short messages of others go by it all the time.
    finish(&mut m, 1);
    write(&mut m, &mut other, 3);
    finish(&mut m, 1);
    m.net.run(100);
    assert_eq!(told(&mut m, 0), [(1, false)]);
    let sent = m.a_qp.qp.sq.producer();
    m.a_qp.qp.sq.complete(sent);
    let before = (m.net.now, m.paths()[1].traffic.tx_bytes);
    m.message(SEND_OP_RDMA_WRITE, 4, 0, LEN, CHUNK);
    finish(&mut m, 1);
    assert!(m.net.now - before.0 < 50_000_000);
    assert_eq!(m.paths()[1].traffic.tx_bytes, before.1);
    m.net.run(20_000);
    assert_eq!(m.paths()[1].state, PathState::Down);
    set(&m, &links, 1, None);
    m.net.run(6000);
    assert_eq!(told(&mut m, 0), [(1, true)]);
}

/// Engines of one host tell each other, and the host tells of it once.
#[test]
fn engines_share_what_they_find() {
    let (mut m, links) = on_links(2);
    let (mut c, mut cq, mr) = third(&mut m, 1, 100);
    let (mut qp, peer) = (c.group(&mut m.net, &cq), m.b.group(&mut m.net, &m.b_cq));
    let options = Options::default();
    let to_b = Connection { remote_qpn: peer.qp.wire, ..m.connection(0, 4, &options) };
    let to_c = Connection { remote_qpn: qp.qp.wire, ..m.connection(1, 4, &options) };
    c.to_rtr_by(&mut m.net, &qp.qp, to_b, &options);
    m.b.to_rtr_by(&mut m.net, &peer.qp, to_c, &options);
    c.to_rts(&mut m.net, &qp.qp, &options);
    m.b.to_rts(&mut m.net, &peer.qp, &options);
    for round in 0..4 {
        set(&m, &links, 0, Some(Fate::Lost));
        m.post(SEND_OP_RDMA_WRITE, round, 0, 64);
        finish(&mut m, 1);
        m.net.run(60);
        // The other engine has sent nothing, and knows.
        assert_eq!(paths(&mut m.net, &c, &qp)[0].state, PathState::Down);
        let before = m.net.now;
        let write = to(&m.b_mr, 64, request(SEND_OP_RDMA_WRITE, round));
        c.post(&mut qp.qp, &write, &[sge(&mr, 0, 64)]);
        assert_eq!(wait(&mut m.net, &mut cq).status, WC_SUCCESS);
        assert!(m.net.now - before < 1_000_000, "round {round}: {} ns", m.net.now - before);
        m.net.run(1000);
        assert_eq!(told(&mut m, 0), [(0, false)]);
        set(&m, &links, 0, None);
        m.net.run(6000);
        assert_eq!(told(&mut m, 0), [(0, true)]);
        assert_eq!(paths(&mut m.net, &c, &qp)[0].state, PathState::Up);
        assert_eq!(m.paths()[0].state, PathState::Up);
    }
    let (sent, own) = (m.a_qp.qp.sq.producer(), qp.qp.sq.producer());
    m.a_qp.qp.sq.complete(sent);
    qp.qp.sq.complete(own);
}

/// An engine that did not run for longer than answers take reads what has come meanwhile before it judges anybody, also where much has come before.
#[test]
fn who_has_slept_blames_nobody() {
    let (mut m, _links) = on_links(1);
    let mut pairs: Vec<_> = (0..4).map(|_| pair(&mut m)).collect();
    for (qp, _) in &mut pairs {
        write(&mut m, qp, 0);
    }
    finish(&mut m, 4);
    for round in 1..20 {
        // The peer sends more than one turn of this engine takes.
        for (_, peer) in &mut pairs {
            let large = to(&m.a_mr, 0, request(SEND_OP_RDMA_WRITE, round));
            m.b.post(&mut peer.qp, &large, &[sge(&m.b_mr, 0, 200 << 10)]);
        }
        for _ in 0..10 {
            m.net.now += 1000;
            m.net.engines[1].turn(Time::from_nanos(m.net.now));
        }
        m.post(SEND_OP_RDMA_WRITE, round, 0, 64);
        m.net.engines[0].turn(Time::from_nanos(m.net.now));
        for _ in 0..100 {
            m.net.now += 100_000;
            m.net.engines[1].turn(Time::from_nanos(m.net.now));
        }
        finish(&mut m, 1);
        for _ in &pairs {
            assert_eq!(wait(&mut m.net, &mut m.b_cq).status, WC_SUCCESS);
        }
        let sent = m.a_qp.qp.sq.producer();
        m.a_qp.qp.sq.complete(sent);
        for (_, peer) in &mut pairs {
            let sent = peer.qp.sq.producer();
            peer.qp.sq.complete(sent);
        }
    }
    m.net.run(100);
    assert_eq!(told(&mut m, 0), []);
    assert_eq!(m.net.counter(0, "path_migrations"), 0);
}
