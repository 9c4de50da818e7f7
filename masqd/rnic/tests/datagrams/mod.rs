//! Two guests that exchange datagrams.
#![allow(dead_code)] // Each test file uses its part.

use std::net::{IpAddr, SocketAddr};

use masq_driver::*;
use masq_rnic::RnicConfig;
use masq_rnic::transport::Time;
use masq_types::{Gid, Mtu, Psn, Qpn, QpnBlock, WireQpn};
use masq_wire::{DethRepr, Extension, IcrcFlow, MAX_HEADER_BYTES, Opcode, PacketRepr};
use vrdma_abi::ring::{self, DatagramSegment, SEND_OP_SEND};
use vrdma_rings::{SendRequest, Target};

use crate::common::two::Way;
use crate::common::*;

/// The Q_Key of all ordinary queue pairs.
pub const QKEY: u32 = 0x1111_1111;

/// Entry of the GID table with an IPv6 address.
pub const V6: u8 = 0;
/// Entry with an IPv4 address.
pub const V4: u8 = 1;

pub const A: usize = 0;
pub const B: usize = 1;

pub fn gid(address: &str) -> Gid {
    Gid::from(address.parse::<IpAddr>().unwrap())
}

pub fn into(state: QpState) -> QpChange {
    QpChange { to: Some(state), ..QpChange::default() }
}

pub fn ring_sge(addr: u64, length: u32, lkey: u32) -> ring::Sge {
    ring::Sge { addr, length, lkey }
}

/// A signalled send.
pub fn datagram(sgid_index: u8, dgid: Gid, dest_qpn: u32, wr_id: u64) -> SendRequest {
    let segment = DatagramSegment { dgid: dgid.0, dest_qpn, qkey: QKEY, sgid_index, ..DatagramSegment::ZERO };
    SendRequest { target: Target::Datagram(segment), ..request(SEND_OP_SEND, wr_id) }
}

pub fn segment(request: &mut SendRequest) -> &mut DatagramSegment {
    match &mut request.target {
        Target::Datagram(segment) => segment,
        other => panic!("{other:?}"),
    }
}

/// That an end asks for somebody.
pub fn asks(end: usize, name: PeerName) -> Event {
    Event::UnknownPeer { vnic: VnicId(end as u32 + 1), name }
}

/// A guest with one UD queue pair in RTS.
pub struct End {
    pub guest: Guest,
    pub cq: TestCq,
    pub qp: TestQp,
    pub mr: Mr,
    pub gids: [Gid; 2],
}

impl End {
    fn new(net: &mut Net, engine: usize, id: u32, vni: u32, addresses: &[&str]) -> Self {
        let mut guest = Guest::attach_at(net, engine, id, vni, addresses, 4 << 20);
        let cq = guest.cq(net, 128);
        let mr = guest.mr(net, 1 << 20, all_access());
        let gids = [gid(&format!("fe80::{id}")), gid(&format!("10.0.0.{id}"))];
        let (table, published) = (gids.to_vec(), gids.to_vec());
        net.execute(engine, Command::SetGids { vnic: guest.id, table, published }).unwrap();
        let qp = guest.qp_with(net, &cq, &cq, |init| init.qp_type = QpType::Ud);
        let end = End { guest, cq, qp, mr, gids };
        end.to_rts(net, &end.qp, None);
        end
    }

    fn first_qpn(&self) -> u32 {
        0x1000 * (self.guest.id.0 + 1)
    }

    /// Another queue pair in RTS.
    pub fn more(&mut self, net: &mut Net, qp_type: QpType) -> TestQp {
        let qp = self.guest.qp_with(net, &self.cq, &self.cq, |init| init.qp_type = qp_type);
        self.to_rts(net, &qp, None);
        qp
    }

    /// The vNIC's GSI in RTS.
    pub fn gsi(&mut self, net: &mut Net) -> TestQp {
        self.gsi_with(net, WireQpn::from_wire(self.first_qpn()))
    }

    /// The vNIC's GSI in RTS, with this wire number.
    pub fn gsi_with(&mut self, net: &mut Net, wire: WireQpn) -> TestQp {
        let mut qp = self.guest.qp_with(net, &self.cq, &self.cq, |init| {
            (init.qp_type, init.kernel) = (QpType::Gsi, true);
            (init.qpn, init.wire_qpn) = (Qpn::new(1).unwrap(), wire);
        });
        qp.wire = wire;
        self.to_rts(net, &qp, None);
        qp
    }

    pub fn to_rts(&self, net: &mut Net, qp: &TestQp, path_mtu: Option<Mtu>) {
        let changes = [
            QpChange { qkey: Some(QKEY), ..into(QpState::Init) },
            QpChange { path_mtu, ..into(QpState::Rtr) },
            QpChange { sq_psn: Some(Psn::new(0xff_ffff)), ..into(QpState::Rts) },
        ];
        for change in changes {
            self.guest.modify(net, qp, change).unwrap();
        }
    }

    /// As others see it, with everything allowed.
    pub fn peer(&self) -> Peer {
        Peer {
            id: PeerId(self.guest.id.0.into()),
            gids: self.gids.to_vec(),
            addresses: vec![self.guest.address],
            qpn_blocks: vec![QpnBlock::new(self.first_qpn(), 4096).unwrap()],
            gsi_qpn: WireQpn::from_wire(self.first_qpn()),
            is_stranger: false,
            verdict: Verdict { send: true, receive: true, cm: true },
            exceptions: Vec::new(),
        }
    }
}

/// Guests A and B.
pub struct Ends {
    pub net: Net,
    pub a: End,
    pub b: End,
    seen: Vec<(&'static str, u64)>,
}

impl Ends {
    /// Two who do not know each other.
    pub fn new(way: Way) -> Self {
        Self::with_networks(way, [100, 100])
    }

    /// Two who know each other.
    pub fn known(way: Way) -> Self {
        let mut ends = Self::new(way);
        ends.introduce();
        ends
    }

    pub fn with_networks(way: Way, vnis: [u32; 2]) -> Self {
        Self::at(way, vnis, [&[&fresh_address()], &[&fresh_address()]])
    }

    /// Two who know each other, both at ::1, if it exists.
    pub fn at_ipv6_loopback() -> Option<Self> {
        std::net::UdpSocket::bind(("::1", 0)).ok()?;
        let mut ends = Self::at(Way::Local, [100, 100], [&["::1"], &["::1"]]);
        ends.introduce();
        Some(ends)
    }

    /// Two RNICs' ends who know each other: one at ::1, if it exists, and at an IPv4 address after that, the other at one of IPv4.
    pub fn of_two_families() -> Option<Self> {
        std::net::UdpSocket::bind(("::1", 0)).ok()?;
        let mut ends = Self::at(Way::Remote, [100, 100], [&["::1", &fresh_address()], &[&fresh_address()]]);
        ends.introduce();
        Some(ends)
    }

    /// Two of one RNIC who do not know each other, and their underlay addresses: each has one alone, and then one that both have.
    pub fn sharing_an_address() -> (Self, [Vec<IpAddr>; 2]) {
        let [a, b, both] = [fresh_address(), fresh_address(), fresh_address()];
        let ends = Self::at(Way::Local, [100, 100], [&[&a, &both], &[&b, &both]]);
        let parsed = |own: &str| [own, &both].map(|address| address.parse().unwrap()).to_vec();
        (ends, [parsed(&a), parsed(&b)])
    }

    fn at(way: Way, vnis: [u32; 2], addresses: [&[&str]; 2]) -> Self {
        let b_engine = usize::from(way != Way::Local);
        let mut net = match way {
            Way::Local => Net::new(&[RnicConfig::default()]),
            Way::Across => Net::group(&RnicConfig::default(), 2),
            Way::Remote => Net::new(&vec![RnicConfig::default(); 2]),
        };
        let a = End::new(&mut net, 0, 1, vnis[0], addresses[0]);
        let b = End::new(&mut net, b_engine, 2, vnis[1], addresses[1]);
        Ends { net, a, b, seen: Vec::new() }
    }

    fn introduce(&mut self) {
        let (a, b) = (self.a.peer(), self.b.peer());
        self.set_peer(A, b);
        self.set_peer(B, a);
    }

    fn end(&self, end: usize) -> &End {
        if end == A { &self.a } else { &self.b }
    }

    pub fn execute(&mut self, end: usize, command: impl FnOnce(VnicId) -> Command) {
        let (engine, id) = (self.end(end).guest.engine, self.end(end).guest.id);
        self.net.execute(engine, command(id)).unwrap();
    }

    /// Tells an end of a peer.
    pub fn set_peer(&mut self, end: usize, peer: Peer) {
        self.execute(end, |vnic| Command::SetPeer { vnic, peer });
    }

    /// A send from A to B's queue pair.
    pub fn to_b(&self, family: u8, wr_id: u64) -> SendRequest {
        datagram(family, self.b.gids[usize::from(family)], self.b.qp.wire.get(), wr_id)
    }

    /// Events since the last call.
    pub fn events(&self) -> Vec<Event> {
        self.net.events.iter().flat_map(|e| e.take()).collect()
    }

    /// Losses since the last call, of all engines.
    pub fn losses(&mut self) -> Vec<(&'static str, u64)> {
        let mut now: Vec<(&'static str, u64)> = Vec::new();
        for engine in 0..self.net.engines.len() {
            let Ok(Reply::Counters(all)) = self.net.execute(engine, Command::Counters) else { panic!() };
            for (name, n) in all.into_iter().filter(|(name, _)| name.starts_with("ud_")) {
                match now.iter_mut().find(|(other, _)| *other == name) {
                    Some((_, sum)) => *sum += n,
                    None => now.push((name, n)),
                }
            }
        }
        let before = std::mem::replace(&mut self.seen, now.clone());
        let since = |name| before.iter().find(|(other, _)| *other == name).map_or(0, |(_, n)| *n);
        now.into_iter().map(|(name, n)| (name, n - since(name))).filter(|(_, n)| *n > 0).collect()
    }

    /// A datagram to B's queue pair.
    pub fn packet(&self, src_qp: WireQpn, payload: &[u8]) -> (PacketRepr, Vec<u8>) {
        let ext = Extension::Deth(DethRepr { qkey: QKEY, src_qp, check: 0 });
        let mut repr = PacketRepr::new(Opcode::UD_SEND_ONLY, self.b.qp.wire, Psn::new(7), ext);
        repr.set_payload_len(payload.len());
        (repr, payload.to_vec())
    }

    /// A packet comes to an end from anywhere.
    pub fn inject(&mut self, end: usize, source: IpAddr, port: u16, packet: (PacketRepr, Vec<u8>)) {
        let local = self.end(end).guest.address;
        self.deliver((end, local), source, port, packet, 0);
    }

    /// A packet comes to one of an end's other addresses.
    pub fn inject_at(
        &mut self,
        end: usize,
        local: IpAddr,
        source: IpAddr,
        port: u16,
        packet: (PacketRepr, Vec<u8>),
    ) {
        self.deliver((end, local), source, port, packet, 0);
    }

    /// The same, with a bit of it flipped on the way.
    pub fn inject_spoilt(&mut self, end: usize, source: IpAddr, port: u16, packet: (PacketRepr, Vec<u8>)) {
        let local = self.end(end).guest.address;
        self.deliver((end, local), source, port, packet, 1);
    }

    fn deliver(
        &mut self,
        (end, local): (usize, IpAddr),
        source: IpAddr,
        port: u16,
        packet: (PacketRepr, Vec<u8>),
        flip: u8,
    ) {
        let engine = self.end(end).guest.engine;
        let (repr, payload) = packet;
        let mut bytes = vec![0; MAX_HEADER_BYTES];
        let headers = repr.emit_headers(&mut bytes).unwrap();
        bytes.truncate(headers);
        bytes.extend(payload);
        bytes.extend(repr.bth.pad.bytes());
        let icrc = IcrcFlow::new(source, local, port).unwrap().compute(&bytes, 0);
        bytes.extend(icrc.to_le_bytes());
        bytes[9] ^= flip;
        let now = Time::from_nanos(self.net.now);
        self.net.engines[engine].handle_datagram(now, local, SocketAddr::new(source, port), &bytes);
    }
}
