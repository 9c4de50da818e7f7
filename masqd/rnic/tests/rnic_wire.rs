//! An engine on a network of the test's own: what the kernel may make of packets on their way, at will.

mod common;

use std::collections::{HashMap, HashSet, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::*;
use masq_driver::{Command, MrAttr, MrHandle, MrKind, PageList, Reply};
use masq_rnic::{Arrival, Datagrams, Network, RnicConfig, Train};
use masq_types::Mtu;
use masq_wire::{Bth, Ecn, ROCEV2_UDP_PORT};
use rustix::event::{EventfdFlags, eventfd};
use vrdma_abi::ring::*;

/// A network in memory that merges all it can, as the kernel does (UDP_GRO), and marks it.
#[derive(Debug, Default)]
struct Wire {
    waiting: Mutex<HashMap<IpAddr, VecDeque<Merged>>>,
    mark: Ecn,
    /// The most queue pairs that one arrival was for.
    most_qps: Mutex<usize>,
}

#[derive(Debug)]
struct Merged {
    bytes: Vec<u8>,
    segment_bytes: usize,
    source: SocketAddr,
}

#[derive(Clone, Debug)]
struct Shared(Arc<Wire>);

#[derive(Debug)]
struct Port {
    wire: Arc<Wire>,
    address: IpAddr,
    /// Can always be read from.
    ready: OwnedFd,
}

impl Network for Shared {
    fn bind(&self, address: IpAddr, _: &Arc<masq_rnic::SharedAddresses>) -> io::Result<Box<dyn Datagrams>> {
        let ready = eventfd(1, EventfdFlags::NONBLOCK)?;
        Ok(Box::new(Port { wire: self.0.clone(), address, ready }))
    }
}

impl Datagrams for Port {
    fn address(&self) -> IpAddr {
        self.address
    }

    fn receiving(&self) -> BorrowedFd<'_> {
        self.ready.as_fd()
    }

    /// All of them are somebody else's, so that all connections share one.
    fn open_source(&mut self, _: u16) -> u16 {
        ROCEV2_UDP_PORT
    }

    fn close_source(&mut self, _: u16) {}

    fn send(&mut self, trains: &[Train<'_>]) -> usize {
        let mut waiting = self.wire.waiting.lock().unwrap();
        for train in trains {
            let source = SocketAddr::new(self.address, train.source_port);
            let queue = waiting.entry(train.destination.ip()).or_default();
            let admits = |m: &&mut Merged| {
                let full = m.bytes.len().is_multiple_of(m.segment_bytes);
                full && m.source == source && train.segment_bytes == m.segment_bytes
            };
            match queue.back_mut().filter(admits) {
                Some(merged) => merged.bytes.extend(train.bytes),
                None => {
                    let (bytes, segment_bytes) = (train.bytes.to_vec(), train.segment_bytes);
                    queue.push_back(Merged { bytes, segment_bytes, source });
                }
            }
        }
        trains.len()
    }

    fn lost_trains(&self) -> u64 {
        0
    }

    fn counts_segments(&self) -> bool {
        true
    }

    fn receive(&mut self, sink: &mut dyn FnMut(Arrival<'_>)) -> io::Result<bool> {
        let next = self.wire.waiting.lock().unwrap().get_mut(&self.address).and_then(VecDeque::pop_front);
        let Some(Merged { bytes, segment_bytes, source }) = next else { return Ok(false) };
        let qps: HashSet<_> =
            bytes.chunks(segment_bytes).filter_map(|d| Bth::from_prefix(d).map(Bth::dest_qp)).collect();
        let mut most = self.wire.most_qps.lock().unwrap();
        *most = (*most).max(qps.len());
        let (ecn, waited) = (self.wire.mark, Duration::from_micros(3));
        sink(Arrival { bytes: &bytes, segment_bytes, source, ecn, waited });
        Ok(true)
    }
}

/// Four connections between two hosts with one source port. Over IPv6, where nothing in the header tells the packets of a train apart.
fn sends_of_four_connections(mark: Ecn) -> (Net, Arc<Wire>) {
    let wire = Arc::new(Wire { mark, ..Wire::default() });
    let config = RnicConfig { network: Arc::new(Shared(wire.clone())), ..RnicConfig::default() };
    let mut net = Net::new(&[config.clone(), config]);
    const MEMORY: u64 = 16 << 20;
    const LEN: usize = 10 * 1024;
    let mut a = Guest::attach(&mut net, 0, 1, 100, "fd00::1", MEMORY);
    let mut b = Guest::attach(&mut net, 1, 2, 100, "fd00::2", MEMORY);
    let (mut a_cq, mut b_cq) = (a.cq(&mut net, 64), b.cq(&mut net, 64));
    let (a_mr, b_mr) = (a.mr(&mut net, 1 << 20, all_access()), b.mr(&mut net, 1 << 20, all_access()));
    let options = Options { mtu: Mtu::B1024, ..Options::default() };
    a.write(a_mr.gpa, &pattern(4 * LEN, 1));
    let mut pairs = Vec::new();
    for i in 0..4u64 {
        let (mut a_qp, mut b_qp) = (a.qp(&mut net, &a_cq, &a_cq), b.qp(&mut net, &b_cq, &b_cq));
        connect(&mut net, (&a, &a_qp), (&b, &b_qp), &options);
        let place = i * LEN as u64;
        b.post_recv(&mut b_qp, i, &[sge(&b_mr, place, LEN as u32)]);
        a.post(&mut a_qp, &request(SEND_OP_SEND, i), &[sge(&a_mr, place, LEN as u32)]);
        // And one of many equal packets, which join those of the next connection.
        a.post(&mut a_qp, &to(&b_mr, 1 << 19, request(SEND_OP_RDMA_WRITE, 10 + i)), &[sge(&a_mr, 0, 8192)]);
        pairs.push((a_qp, b_qp));
    }
    for (cq, count) in [(&mut a_cq, 8), (&mut b_cq, 4)] {
        for _ in 0..count {
            assert_eq!(wait(&mut net, cq).status, WC_SUCCESS);
        }
    }
    assert_eq!(b.read(b_mr.gpa, 4 * LEN), pattern(4 * LEN, 1));
    (net, wire)
}

#[test]
fn a_train_for_several_queue_pairs() {
    let (mut net, wire) = sends_of_four_connections(Ecn::Ect0);
    assert!(*wire.most_qps.lock().unwrap() > 1, "no two connections' packets were merged");
    for engine in [0, 1] {
        for quiet in ["rx_icrc_errors", "rx_icrc_explained", "rx_malformed", "rx_no_qp", "retransmitted_pkts"]
        {
            assert_eq!(net.counter(engine, quiet), 0, "{quiet}");
        }
        assert_eq!(net.counter(engine, "np_ecn_marked_roce_packets"), 0);
    }
}

#[test]
fn congestion_marks_reach_the_queue_pairs() {
    let (mut net, _) = sends_of_four_connections(Ecn::Ce);
    for engine in [0, 1] {
        let (marked, received) =
            (net.counter(engine, "np_ecn_marked_roce_packets"), net.counter(engine, "rcvd_pkts"));
        // The mark of a CNP tells nothing that the CNP does not say.
        let cnps = net.counter(engine, "rp_cnp_handled") + net.counter(engine, "rp_cnp_ignored");
        assert!(marked > 0);
        assert_eq!(marked + cnps, received);
    }
}

/// Two guests on two hosts, connected, with a region each.
fn two_hosts() -> (Net, [Guest; 2], [TestQp; 2], TestCq, [Mr; 2]) {
    let config = RnicConfig { network: Arc::new(Shared(Arc::default())), ..RnicConfig::default() };
    let mut net = Net::new(&[config.clone(), config]);
    let mut a = Guest::attach(&mut net, 0, 1, 100, "10.0.0.1", 4 << 20);
    let mut b = Guest::attach(&mut net, 1, 2, 100, "10.0.0.2", 4 << 20);
    let (a_cq, b_cq) = (a.cq(&mut net, 64), b.cq(&mut net, 64));
    let mrs = [a.mr(&mut net, 1 << 20, all_access()), b.mr(&mut net, 1 << 20, all_access())];
    let qps = [a.qp(&mut net, &a_cq, &a_cq), b.qp(&mut net, &b_cq, &b_cq)];
    let options = Options { mtu: Mtu::B1024, ..Options::default() };
    connect(&mut net, (&a, &qps[0]), (&b, &qps[1]), &options);
    (net, [a, b], qps, a_cq, mrs)
}

/// Where entries and pages end has nothing to do with where packets do.
#[test]
fn long_messages_out_of_entries_of_any_length() {
    let (mut net, [a, b], [mut qp, _], mut cq, [from, to_mr]) = two_hosts();
    a.write(from.gpa, &pattern(1 << 18, 3));
    let entries = [(1, 1500), (9000, 1), (4095, 90_002), (150_000, 0), (5, 3001)];
    let sges = entries.map(|(at, len)| sge(&from, at, len));
    a.post(&mut qp, &to(&to_mr, 77, request(SEND_OP_RDMA_WRITE, 1)), &sges);
    assert_eq!(wait(&mut net, &mut cq).status, WC_SUCCESS);
    let part = |(at, len): (u64, u32)| a.read(from.gpa + at, len as usize);
    let expected: Vec<u8> = entries.into_iter().flat_map(part).collect();
    assert!(b.read(to_mr.gpa + 77, expected.len()) == expected);
}

/// What comes before a page that is no memory is sent, and nothing behind it.
#[test]
fn a_message_ends_at_a_page_that_is_no_memory() {
    let (mut net, [mut a, b], [mut qp, _], mut cq, [from, to_mr]) = two_hosts();
    a.write(from.gpa, &pattern(1 << 18, 3));
    let outside = BASE + (64 << 20);
    let pages = vec![from.gpa, from.gpa + PAGE, outside, from.gpa + 3 * PAGE];
    let mr = MrAttr {
        mr: MrHandle(a.handle()),
        pd: PD,
        access: all_access(),
        kind: MrKind::Pages { iova: from.gpa, length: 4 * PAGE, pages: PageList { shift: 12, pages } },
    };
    let Ok(Reply::MrCreated { lkey, .. }) = net.execute(0, Command::CreateMr { vnic: a.id, mr }) else {
        panic!("the region is not made");
    };
    let data = Sge { lkey: lkey.0, ..sge(&from, 0, 4 * PAGE as u32) };
    a.post(&mut qp, &to(&to_mr, 0, request(SEND_OP_RDMA_WRITE, 1)), &[data]);
    assert_eq!(wait(&mut net, &mut cq).status, WC_LOC_PROT_ERR);
    net.run(1);
    assert_eq!(net.counter(0, "sent_pkts"), 2 * PAGE / 1024);
    assert!(b.read(to_mr.gpa, 2 * PAGE as usize) == a.read(from.gpa, 2 * PAGE as usize));
    assert_eq!(b.read(to_mr.gpa + 2 * PAGE, 1024), [0; 1024]);
}
