use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use masq_driver::{Connection, DriverError};
use masq_wire::{Ecn, IcrcFlow, ROCEV2_UDP_PORT};
use rustc_hash::FxHashMap;

use super::shared::{Joined, Left, SharedAddresses};
use super::{Arrival, Datagrams, MAX_SEGMENTS, Network, Train, UdpSockets, seal, seal_one};
use crate::transport::Transmit;

/// One of the RNIC's local addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LocalId(pub u32);

/// All local addresses of the RNIC, and the sockets of those that one engine uses.
#[derive(Debug)]
pub struct Edge {
    network: Arc<dyn Network>,
    by_address: FxHashMap<IpAddr, LocalId>,
    ports: FxHashMap<LocalId, Port>,
    shared: Arc<SharedAddresses>,
    /// The engine that this belongs to.
    engine: usize,
    /// Trains that were lost at addresses that are gone.
    lost_trains: u64,
}

/// A local address that is now used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attached {
    /// Its name.
    pub local: LocalId,
    /// No engine has used it before: this one receives there.
    pub is_new: bool,
}

#[derive(Debug)]
struct Port {
    sockets: Box<dyn Datagrams>,
    users: u32,
}

/// How the packets of one connection leave.
#[derive(Clone, Debug)]
pub struct Route {
    local: LocalId,
    destination: SocketAddr,
    source_port: u16,
    /// The port that was asked for, which counts this route among its users.
    opened: u16,
    traffic_class: u8,
    hop_limit: u8,
    flow: IcrcFlow,
}

impl Route {
    /// UDP source port of its packets.
    pub fn source_port(&self) -> u16 {
        self.source_port
    }

    /// The peer's address.
    pub fn peer(&self) -> IpAddr {
        self.destination.ip()
    }
}

/// Trains that wait to be sent.
#[derive(Debug, Default)]
pub struct TxBatch {
    bytes: Vec<u8>,
    trains: VecDeque<Queued>,
}

#[derive(Debug)]
struct Queued {
    local: LocalId,
    range: Range<usize>,
    segment_bytes: usize,
    destination: SocketAddr,
    source_port: u16,
    traffic_class: u8,
    hop_limit: u8,
}

impl TxBatch {
    /// Bytes beyond which the batch is to be sent before more is added.
    pub const FULL_BYTES: usize = 512 << 10;

    /// The buffer to append datagrams to; then call [`TxBatch::add`].
    pub fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// Whether it is time to send.
    pub fn is_full(&self) -> bool {
        self.bytes.len() >= Self::FULL_BYTES
    }

    /// The train that was added last, and the local address that it leaves from.
    pub fn last(&self) -> Option<(LocalId, Train<'_>)> {
        let queued = self.trains.back()?;
        Some((queued.local, queued.train(&self.bytes)))
    }

    /// Forgets the datagrams that were just appended to the buffer.
    pub fn discard(&mut self, transmit: Transmit) {
        self.bytes.truncate(self.bytes.len().saturating_sub(transmit.total_bytes));
    }

    /// Takes the datagrams that were just appended to the buffer. They leave with `dscp`, if there is one, in place of the route's.
    pub fn add(&mut self, edge: &Edge, route: &Route, dscp: Option<u8>, transmit: Transmit) {
        let range = self.bytes.len().saturating_sub(transmit.total_bytes)..self.bytes.len();
        let counted = edge.ports.get(&route.local).is_some_and(|p| p.sockets.counts_segments());
        if let Some(train) = self.bytes.get_mut(range.clone()) {
            seal(&route.flow, train, transmit.segment_bytes, counted);
        }
        self.trains.push_back(Queued {
            local: route.local,
            range,
            segment_bytes: transmit.segment_bytes.max(1),
            destination: route.destination,
            source_port: route.source_port,
            traffic_class: marked(route.traffic_class, dscp),
            hop_limit: route.hop_limit,
        });
    }

    /// Takes one datagram of `bytes` that was just appended to the buffer, as [`TxBatch::add`]. It joins the train before it where that goes the
    /// same way and has datagrams that are as long, or longer: then the kernel gets them at once.
    pub fn add_one(&mut self, edge: &Edge, route: &Route, dscp: Option<u8>, bytes: usize) {
        let range = self.bytes.len().saturating_sub(bytes)..self.bytes.len();
        let one = Queued {
            local: route.local,
            range: range.clone(),
            segment_bytes: bytes.max(1),
            destination: route.destination,
            source_port: route.source_port,
            traffic_class: marked(route.traffic_class, dscp),
            hop_limit: route.hop_limit,
        };
        let index = match self.trains.back_mut().filter(|last| last.admits(&one)) {
            Some(last) => {
                let index = last.range.len() / last.segment_bytes;
                last.range.end = range.end;
                index
            }
            None => {
                self.trains.push_back(one);
                0
            }
        };
        let counted = edge.ports.get(&route.local).is_some_and(|p| p.sockets.counts_segments());
        if let Some(datagram) = self.bytes.get_mut(range) {
            seal_one(&route.flow, datagram, if counted { index as u16 } else { 0 });
        }
    }
}

impl Queued {
    /// What is given to the sockets, out of the batch's `bytes`.
    fn train<'a>(&self, bytes: &'a [u8]) -> Train<'a> {
        Train {
            bytes: bytes.get(self.range.clone()).unwrap_or_default(),
            segment_bytes: self.segment_bytes,
            destination: self.destination,
            source_port: self.source_port,
            traffic_class: self.traffic_class,
            hop_limit: self.hop_limit,
        }
    }

    /// Whether the datagram `next` can be the next of this train.
    fn admits(&self, next: &Queued) -> bool {
        let way = |q: &Queued| (q.local, q.destination, q.source_port, q.traffic_class, q.hop_limit);
        let bytes = self.range.len();
        way(self) == way(next)
            && self.range.end == next.range.start
            && bytes.is_multiple_of(self.segment_bytes)
            && next.segment_bytes <= self.segment_bytes
            && bytes / self.segment_bytes < MAX_SEGMENTS
            && bytes + next.segment_bytes <= Transmit::MAX_BYTES
    }
}

/// A DSCP and ECN field with another DSCP.
fn marked(traffic_class: u8, dscp: Option<u8>) -> u8 {
    dscp.map_or(traffic_class, |dscp| Ecn::of(traffic_class).mark(dscp << 2))
}

impl Default for Edge {
    /// On the host's network.
    fn default() -> Self {
        Self::new(Arc::new(UdpSockets::default()))
    }
}

impl Edge {
    /// That of an engine alone in its RNIC.
    pub fn new(network: Arc<dyn Network>) -> Self {
        Self::shared(network, Arc::default(), 0)
    }

    /// That of one of an RNIC's engines, which share what they share.
    pub fn shared(network: Arc<dyn Network>, shared: Arc<SharedAddresses>, engine: usize) -> Self {
        Self {
            network,
            by_address: FxHashMap::default(),
            ports: FxHashMap::default(),
            shared,
            engine,
            lost_trains: 0,
        }
    }

    /// Begins to use a local address.
    pub fn attach(&mut self, address: IpAddr) -> Result<Attached, DriverError> {
        if let Some(local) = self.by_address.get(&address).copied()
            && let Some(port) = self.ports.get_mut(&local)
        {
            port.users += 1;
            return Ok(Attached { local, is_new: false });
        }
        let sockets = self
            .network
            .bind(address, &self.shared)
            .map_err(|source| DriverError::Address { address, source })?;
        let Joined { local, is_new } = self.shared.join(address, self.engine);
        self.by_address.insert(address, local);
        self.ports.insert(local, Port { sockets, users: 1 });
        Ok(Attached { local, is_new })
    }

    /// Ends one use of a local address. Returns what follows if it was this engine's last.
    pub fn detach(&mut self, id: LocalId) -> Option<Left> {
        let port = self.ports.get_mut(&id)?;
        port.users -= 1;
        if port.users > 0 {
            return None;
        }
        let address = port.sockets.address();
        self.lost_trains += port.sockets.lost_trains();
        self.ports.remove(&id);
        let left = self.shared.leave(address, self.engine);
        if left == Left::Gone {
            self.by_address.remove(&address);
        }
        Some(left)
    }

    /// Whether the next [`Edge::detach`] ends this engine's use of an address.
    pub fn is_last_use(&self, id: LocalId) -> bool {
        self.ports.get(&id).is_some_and(|p| p.users == 1)
    }

    /// Another engine uses this address.
    pub fn learn(&mut self, address: IpAddr, id: LocalId) {
        self.by_address.insert(address, id);
    }

    /// No engine uses this address any more.
    pub fn forget(&mut self, address: IpAddr, id: LocalId) {
        if self.by_address.get(&address) == Some(&id) {
            self.by_address.remove(&address);
        }
    }

    /// The address with this name, if this engine uses it.
    pub fn address(&self, id: LocalId) -> Option<IpAddr> {
        self.ports.get(&id).map(|p| p.sockets.address())
    }

    /// The local address with this name. O(n) in the addresses.
    pub fn find_name(&self, id: LocalId) -> Option<IpAddr> {
        self.by_address.iter().find_map(|(address, name)| (*name == id).then_some(*address))
    }

    /// The local address, if it is one of ours.
    pub fn find(&self, address: IpAddr) -> Option<LocalId> {
        self.by_address.get(&address).copied()
    }

    /// The socket that receives, to wait for.
    pub fn receiving(&self, id: LocalId) -> Option<BorrowedFd<'_>> {
        self.ports.get(&id).map(|p| p.sockets.receiving())
    }

    /// Where a local address receives.
    pub fn local_address(&self, id: LocalId) -> Option<SocketAddr> {
        self.ports.get(&id).map(|p| SocketAddr::new(p.sockets.address(), ROCEV2_UDP_PORT))
    }

    /// Whether the datagrams of a train from a local address get the IPv4 Identifications 0, 1, 2, …; else all get 0.
    pub fn counts_segments(&self, id: LocalId) -> bool {
        self.ports.get(&id).is_some_and(|p| p.sockets.counts_segments())
    }

    /// Opens the way to a connection's peer.
    pub fn open_route(&mut self, local: LocalId, connection: &Connection) -> Result<Route, DriverError> {
        let port = self
            .ports
            .get_mut(&local)
            .ok_or_else(|| DriverError::UnknownObject(format!("local address {}", connection.local)))?;
        let families_differ = || {
            let (local, remote) = (connection.local, connection.remote);
            DriverError::Invalid(format!("{local} and {remote} are of different address families"))
        };
        if connection.local.is_ipv4() != connection.remote.is_ipv4() {
            return Err(families_differ());
        }
        let opened = connection.udp_source_port;
        let source_port = port.sockets.open_source(opened);
        let flow =
            IcrcFlow::new(connection.local, connection.remote, source_port).ok_or_else(families_differ)?;
        Ok(Route {
            local,
            destination: SocketAddr::new(connection.remote, ROCEV2_UDP_PORT),
            source_port,
            opened,
            traffic_class: connection.traffic_class,
            hop_limit: connection.hop_limit,
            flow,
        })
    }

    /// A way that opens nothing: `source_port` is open ([`Edge::open_port`]). `None` when there is none, since one address is IPv4 and the
    /// other is not.
    pub fn route(
        &self,
        local: LocalId,
        remote: IpAddr,
        source_port: u16,
        traffic_class: u8,
        hop_limit: u8,
    ) -> Option<Route> {
        let address = self.ports.get(&local)?.sockets.address();
        Some(Route {
            local,
            destination: SocketAddr::new(remote, ROCEV2_UDP_PORT),
            source_port,
            opened: source_port,
            traffic_class,
            hop_limit,
            flow: IcrcFlow::new(address, remote, source_port)?,
        })
    }

    /// Opens a source port of a local address for one more user. Returns what is used: port 4791 when that one belongs to somebody else.
    pub fn open_port(&mut self, local: LocalId, port: u16) -> u16 {
        self.ports.get_mut(&local).map_or(ROCEV2_UDP_PORT, |p| p.sockets.open_source(port))
    }

    /// Closes a source port that was opened and is used.
    pub fn close_port(&mut self, local: LocalId, port: u16) {
        if let Some(p) = self.ports.get_mut(&local) {
            p.sockets.close_source(port);
        }
    }

    /// Opens the way of a connection that another engine has opened as well. Returns what that one is to close, if it has opened anything.
    pub fn open_again(&mut self, route: &Route) -> Option<(LocalId, u16)> {
        if route.source_port != route.opened {
            return None;
        }
        self.open_port(route.local, route.opened);
        Some((route.local, route.opened))
    }

    /// Closes a way.
    pub fn close_route(&mut self, route: &Route) {
        // A route that fell back to port 4791 opened nothing.
        if route.source_port == route.opened
            && let Some(port) = self.ports.get_mut(&route.local)
        {
            port.sockets.close_source(route.opened);
        }
    }

    /// Sends what waits. Returns whether all of it is gone.
    pub fn flush(&mut self, batch: &mut TxBatch) -> bool {
        while let Some(first) = batch.trains.front() {
            let local = first.local;
            let Some(port) = self.ports.get_mut(&local) else {
                // The address has gone, and with it what was to leave there.
                batch.trains.pop_front();
                continue;
            };
            const AT_ONCE: usize = 16;
            let nothing = Train {
                bytes: &[],
                segment_bytes: 1,
                destination: first.destination,
                source_port: 0,
                traffic_class: 0,
                hop_limit: 0,
            };
            let mut trains = [nothing; AT_ONCE];
            let mut count = 0;
            let same = batch.trains.iter().take_while(|q| q.local == local);
            for (slot, queued) in trains.iter_mut().zip(same) {
                *slot = queued.train(&batch.bytes);
                count += 1;
            }
            let sent = port.sockets.send(trains.get(..count).unwrap_or_default());
            batch.trains.drain(..sent.min(count));
            if sent < count {
                return false;
            }
        }
        batch.bytes.clear();
        true
    }

    /// Trains that the kernel refused to send.
    pub fn lost_trains(&self) -> u64 {
        self.lost_trains + self.ports.values().map(|p| p.sockets.lost_trains()).sum::<u64>()
    }

    /// Hands over what arrived at one local address. Returns whether there may be more.
    pub fn receive(&mut self, id: LocalId, sink: &mut dyn FnMut(Arrival<'_>)) -> bool {
        let Some(port) = self.ports.get_mut(&id) else { return false };
        port.sockets.receive(sink).unwrap_or_else(|error| {
            tracing::warn!(address = %port.sockets.address(), %error, "cannot receive");
            false
        })
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::os::fd::AsFd;
    use std::sync::Mutex;
    use std::time::Duration;

    use masq_types::{Features, Gid, WireQpn};

    use super::*;
    use crate::udp::{FlowCache, Seen};

    fn connection(address: IpAddr) -> Connection {
        Connection {
            local: address,
            remote: address,
            remote_qpn: WireQpn::from_wire(7),
            other_paths: Vec::new(),
            udp_source_port: 0xc123,
            traffic_class: 0x68,
            hop_limit: 64,
            features: Features::NONE,
            virtual_local: Gid::from(address),
            virtual_remote: Gid::from(address),
        }
    }

    fn attach(edge: &mut Edge, address: IpAddr) -> Option<LocalId> {
        match edge.attach(address) {
            Ok(attached) => Some(attached.local),
            Err(DriverError::Address { source, .. })
                if source.kind() == std::io::ErrorKind::AddrNotAvailable =>
            {
                eprintln!("{address} does not exist here: nothing to test");
                None
            }
            Err(e) => panic!("{e}"),
        }
    }

    /// Sends trains to itself through the kernel and checks what comes back: bytes, and the exact ICRC.
    fn send_to_itself(address: &str, segmentation: bool) {
        let address: IpAddr = address.parse().unwrap();
        let mut edge = Edge::new(Arc::new(UdpSockets { segmentation }));
        let Some(id) = attach(&mut edge, address) else { return };
        let route = edge.open_route(id, &connection(address)).unwrap();
        let mut batch = TxBatch::default();
        let mut sent: Vec<Vec<u8>> = Vec::new();
        for (segments, segment_bytes, last) in [(60, 1064, 1064), (1, 20, 20), (3, 300, 24), (40, 288, 288)] {
            let total_bytes = (segments - 1) * segment_bytes + last;
            let from = batch.buffer().len();
            batch.buffer().extend((0..total_bytes).map(|i| (i * 7 + segments) as u8));
            batch.add(
                &edge,
                &route,
                None,
                Transmit { segments, segment_bytes, total_bytes, is_answer: false },
            );
            sent.extend(batch.buffer()[from..].chunks(segment_bytes).map(<[u8]>::to_vec));
        }
        assert!(edge.flush(&mut batch));
        assert_eq!(received(&mut edge, id, address, sent.len()), sent);
        edge.close_route(&route);
        assert_eq!(edge.detach(id), Some(Left::Gone));
    }

    /// Sends a datagram with each congestion mark to itself, and lets them wait.
    fn send_marks_to_itself(address: &str) {
        const WAIT: Duration = Duration::from_millis(3);
        let address: IpAddr = address.parse().unwrap();
        let mut edge = Edge::default();
        let Some(id) = attach(&mut edge, address) else { return };
        let marks = [Ecn::NotEct, Ecn::Ect1, Ecn::Ect0, Ecn::Ce];
        // The kernel stamps packets from some moment after the first socket has asked for that.
        let all_have_waited = (0..1000).any(|_| {
            let mut batch = TxBatch::default();
            for ecn in marks {
                let route = edge.route(id, address, ROCEV2_UDP_PORT, ecn.mark(0xb8), 64).unwrap();
                batch.buffer().extend([0; 100]);
                batch.add(
                    &edge,
                    &route,
                    None,
                    Transmit { segments: 5, segment_bytes: 20, total_bytes: 100, is_answer: false },
                );
            }
            assert!(edge.flush(&mut batch));
            std::thread::sleep(WAIT);
            let (mut seen, mut waited) = (Vec::new(), true);
            while seen.len() < marks.len() {
                edge.receive(id, &mut |arrival| {
                    waited &= arrival.waited >= WAIT;
                    seen.push(arrival.ecn);
                });
            }
            assert_eq!(seen, marks);
            waited
        });
        assert!(all_have_waited);
    }

    #[test]
    fn ipv4_marks_and_waits() {
        send_marks_to_itself("127.0.201.6");
    }

    /// At least `count` datagrams that have come from the address itself, each with the Identification that is expected.
    fn received(edge: &mut Edge, id: LocalId, address: IpAddr, count: usize) -> Vec<Vec<u8>> {
        let local = edge.local_address(id).unwrap();
        let (mut flows, mut got) = (FlowCache::default(), Vec::new());
        for _ in 0..1000 {
            edge.receive(id, &mut |arrival| {
                assert_eq!((arrival.source.ip(), arrival.source.port()), (address, 0xc123));
                flows.select(arrival.source, local);
                for (index, datagram) in arrival.bytes.chunks(arrival.segment_bytes).enumerate() {
                    assert_eq!(flows.check(datagram, index), Seen::Exact);
                    got.push(datagram.to_vec());
                }
            });
            if got.len() >= count {
                break;
            }
            std::thread::yield_now();
        }
        got
    }

    #[test]
    fn a_dscp_replaces_the_routes_and_leaves_the_ecn_bits() {
        assert_eq!(marked(0x69, None), 0x69);
        assert_eq!([0, 3].map(|ecn| marked(0x68 | ecn, Some(46))), [46 << 2, 46 << 2 | 3]);
        assert_eq!(marked(0xff, Some(0)), 0b11);
        let mut edge = Edge::default();
        let address: IpAddr = "127.0.201.4".parse().unwrap();
        let id = edge.attach(address).unwrap().local;
        let route = edge.open_route(id, &connection(address)).unwrap();
        let mut batch = TxBatch::default();
        for dscp in [None, Some(10)] {
            batch.buffer().extend([0; 20]);
            batch.add(
                &edge,
                &route,
                dscp,
                Transmit { segments: 1, segment_bytes: 20, total_bytes: 20, is_answer: false },
            );
        }
        assert_eq!(batch.trains.iter().map(|t| t.traffic_class).collect::<Vec<_>>(), [0x68, 10 << 2]);
    }

    /// Single datagrams join as the kernel's segmentation allows, and have the Identifications that it gives.
    #[test]
    fn single_datagrams_join_into_trains() {
        let address: IpAddr = "127.0.201.5".parse().unwrap();
        let mut edge = Edge::default();
        let id = edge.attach(address).unwrap().local;
        let route = edge.open_route(id, &connection(address)).unwrap();
        let other = edge.route(id, address, 0xc123, 0x68, 65).unwrap();
        let mut batch = TxBatch::default();
        let mut sent = Vec::new();
        let lens = [vec![(&route, 300); 66], vec![(&route, 100), (&route, 100), (&other, 100)]].concat();
        for (route, bytes) in lens {
            let from = batch.buffer().len();
            batch.buffer().extend((0..bytes).map(|i| (i * 7 + from) as u8));
            batch.add_one(&edge, route, None, bytes);
            sent.push(batch.buffer()[from..].to_vec());
        }
        let trains: Vec<_> = batch.trains.iter().map(|t| (t.segment_bytes, t.range.len())).collect();
        assert_eq!(trains, [(300, 300 * 64), (300, 700), (100, 100), (100, 100)]);
        assert!(edge.flush(&mut batch));
        assert_eq!(received(&mut edge, id, address, sent.len()), sent);
    }

    /// A network that takes a few trains with each call and keeps them.
    #[derive(Debug)]
    struct Narrow(Arc<Mutex<Vec<Vec<u8>>>>);

    #[derive(Debug)]
    struct NarrowPort {
        address: IpAddr,
        taken: Arc<Mutex<Vec<Vec<u8>>>>,
        never_ready: UdpSocket,
    }

    impl Network for Narrow {
        fn bind(&self, address: IpAddr, _: &Arc<SharedAddresses>) -> std::io::Result<Box<dyn Datagrams>> {
            let never_ready = UdpSocket::bind("127.0.0.1:0")?;
            Ok(Box::new(NarrowPort { address, taken: self.0.clone(), never_ready }))
        }
    }

    impl Datagrams for NarrowPort {
        fn address(&self) -> IpAddr {
            self.address
        }

        fn receiving(&self) -> BorrowedFd<'_> {
            self.never_ready.as_fd()
        }

        fn open_source(&mut self, port: u16) -> u16 {
            port
        }

        fn close_source(&mut self, _: u16) {}

        fn send(&mut self, trains: &[Train<'_>]) -> usize {
            const ROOM: usize = 3;
            let taken = trains.iter().take(ROOM);
            self.taken.lock().unwrap().extend(taken.map(|t| t.bytes.to_vec()));
            trains.len().min(ROOM)
        }

        fn lost_trains(&self) -> u64 {
            0
        }

        fn counts_segments(&self) -> bool {
            true
        }

        fn receive(&mut self, _: &mut dyn FnMut(Arrival<'_>)) -> std::io::Result<bool> {
            Ok(false)
        }
    }

    #[test]
    fn what_the_network_does_not_take_waits_in_order() {
        let taken = Arc::default();
        let mut edge = Edge::new(Arc::new(Narrow(Arc::clone(&taken))));
        let ids = ["10.0.0.1", "10.0.0.2"].map(|a| edge.attach(a.parse().unwrap()).unwrap().local);
        let mut batch = TxBatch::default();
        let mut queued = Vec::new();
        for (len, id) in [20, 21, 22, 23, 24, 25].into_iter().zip([0, 0, 0, 0, 1, 0].map(|i| ids[i])) {
            let route = edge.route(id, "10.0.0.9".parse().unwrap(), 0xc000, 0, 64).unwrap();
            let from = batch.buffer().len();
            batch.buffer().extend(vec![len as u8; len]);
            batch.add(
                &edge,
                &route,
                None,
                Transmit { segments: 1, segment_bytes: len, total_bytes: len, is_answer: false },
            );
            queued.push(batch.buffer()[from..].to_vec());
        }
        let flushes = (0..9).take_while(|_| !edge.flush(&mut batch)).count();
        assert_eq!(flushes, 1, "four of the first address, of which three at once");
        assert_eq!(*taken.lock().unwrap(), queued);
        assert!(batch.buffer().is_empty());
    }

    #[test]
    fn ipv4_trains_have_counted_identifications() {
        send_to_itself("127.0.201.1", true);
    }

    #[test]
    fn ipv4_without_segmentation() {
        send_to_itself("127.0.201.2", false);
    }

    #[test]
    fn ipv6_trains_marks_and_waits() {
        // One behind another, since there is one such address.
        send_to_itself("::1", true);
        send_marks_to_itself("::1");
    }

    #[test]
    fn a_source_port_that_is_taken_falls_back() {
        let address: IpAddr = "127.0.201.3".parse().unwrap();
        let other = std::net::UdpSocket::bind((address, 0xc123)).unwrap();
        let mut edge = Edge::default();
        let id = edge.attach(address).unwrap().local;
        let taken = edge.open_route(id, &connection(address)).unwrap();
        assert_eq!(taken.source_port, ROCEV2_UDP_PORT);
        drop(other);
        let free = edge.open_route(id, &connection(address)).unwrap();
        assert_eq!(free.source_port, 0xc123);
        edge.close_route(&taken);
        assert!(std::net::UdpSocket::bind((address, 0xc123)).is_err(), "the second route still uses it");
        edge.close_route(&free);
        assert!(std::net::UdpSocket::bind((address, 0xc123)).is_ok());
    }

    #[test]
    fn an_address_that_is_not_ours_is_refused() {
        let e = Edge::default().attach("203.0.113.1".parse().unwrap()).unwrap_err();
        assert!(e.to_string().contains("UDP port 4791 of 203.0.113.1"), "{e}");
    }
}
