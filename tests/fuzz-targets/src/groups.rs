//! Queue pairs with several paths. A guest says anything in its chunk ring and in its send queue, and a network forges packets of its paths, repeats
//! and changes what it has overheard, and cuts links. The peer, at another RNIC, and two guests beside the attacker are honest: nobody writes what
//! is closed to him, each receive of the peer's completes once at most, and the guests beside do not notice.

use std::cell::OnceCell;
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use masq_driver::{Access, Command, Connection, PdHandle, QpChange, QpState, Receives, Reply, UnderlayPath};
use masq_rnic::RnicConfig;
use masq_rnic::transport::Time;
use masq_types::{Psn, WireQpn};
use masq_wire::{Bth, ICRC_BYTES, IcrcFlow, Opcode};
use vrdma_abi::ring::*;
use vrdma_rings::{SendRequest, SharedMemory};

use crate::aim::{Aim, publish};
use crate::engine::{Honest, MEMORY, answered, devices, turns};
use crate::forge::{self, Victim};
use crate::guests::links::{Fate, Links};
use crate::guests::multipath::{CHUNKS, GroupQp};
use crate::guests::{
    BASE, Guest, Mr, Net, Options, PAGE, PD, TestCq, TestSrq, all_access, fresh_address, pattern, request,
    sge, to,
};
use crate::input::Input;

/// Steps of one input, so that none takes for ever.
const MAX_STEPS: usize = 64;
/// Paths of the connection at most.
const PATHS: usize = 4;
const ENTRIES: u32 = 64;
const SHIFT: u8 = 9;
const _: () = assert!(CHUNKS == ENTRIES, "both rings are written alike");
/// Pages at the start of the attacker's memory, where rings and doorbells are.
const BUSY_PAGES: u64 = 110;
/// Pages of the region that the peers may write.
const OPEN_PAGES: u64 = 64;
/// Pages of each of the peer's regions that nobody may write.
const CLOSED_PAGES: u64 = 2;
/// Datagrams that the network remembers.
const OVERHEARD: usize = 24;
const SOURCE_PORT: u16 = 0xc100;
/// First PSN of all members, in both directions.
const FIRST_PSN: u32 = 0xff_fff0;

/// One input: how the two are connected, then what happens.
pub fn run(data: &[u8]) {
    after(data).end();
}

/// What has become of it all when the input has ended.
fn after(data: &[u8]) -> Scene {
    let input = &mut Input::new(data);
    let mut scene = Scene::new(input);
    let mut steps = 0;
    while !input.is_empty() && steps < MAX_STEPS {
        steps += 1;
        scene.step(input);
        scene.poll();
    }
    turns(&mut scene.net, 24);
    scene.poll();
    scene
}

/// Addresses of this thread's two hosts, one for each path.
fn addresses() -> [Vec<String>; 2] {
    thread_local! { static ADDRESSES: OnceCell<[Vec<String>; 2]> = const { OnceCell::new() } }
    let fresh = || [(); 2].map(|()| (0..PATHS).map(|_| fresh_address()).collect());
    ADDRESSES.with(|a| a.get_or_init(fresh).clone())
}

struct Scene {
    net: Net,
    links: Links,
    honest: Honest,
    addresses: [Vec<IpAddr>; 2],
    paths: usize,
    options: Options,
    /// Who attacks, at engine 0.
    attacker: Guest,
    attacker_cq: TestCq,
    attacker_qp: GroupQp,
    aim: Aim,
    /// How many requests of the attacker's take a receive, if it counts as honest guests do.
    number: u32,
    /// Its peer, at engine 1.
    peer: Peer,
}

/// The honest end.
struct Peer {
    guest: Guest,
    cq: TestCq,
    qp: GroupQp,
    srq: Option<TestSrq>,
    open: Mr,
    read_only: Mr,
    /// Of another protection domain.
    foreign: Mr,
    /// Its receives that have not completed, and their bytes.
    outstanding: HashMap<u64, u32>,
    /// The bytes of messages that have come whole.
    received: Vec<u32>,
    next: u64,
}

impl Scene {
    fn new(input: &mut Input<'_>) -> Self {
        let texts = addresses();
        let links = Links::default();
        links.overhear(OVERHEARD);
        let config = RnicConfig { network: Arc::new(links.clone()), ..RnicConfig::default() };
        let mut net = Net::new(&[config.clone(), config]);
        let honest = Honest::new(&mut net, &texts[0][0]);
        let [own, others] =
            [0, 1].map(|end: usize| texts[end].iter().map(String::as_str).collect::<Vec<_>>());
        let mut attacker = Guest::attach_at(&mut net, 0, 9, 100, &own, MEMORY);
        let attacker_cq = attacker.cq(&mut net, 256);
        let attacker_qp = attacker.group(&mut net, &attacker_cq);
        // It reaches all its memory by RDMA as well, so that rings change while the engine works on them.
        let all = attacker.mr_at(&mut net, BASE, MEMORY, all_access(), PD);
        let how = input.u8();
        let peer = Peer::new(&mut net, &others, how & 1 != 0);
        let regions = [&all, &peer.open, &peer.read_only, &peer.foreign];
        let [first, second] = honest.regions();
        let regions = regions.into_iter().chain([first, second]);
        let (keys, places) = regions.map(|mr| (mr.key, mr.gpa)).unzip();
        let options = match how & 2 {
            0 => Options { timeout: 1, retry_cnt: 1, rnr_retry: 1, ..Options::default() },
            _ => Options::default(),
        };
        let paths = 2 + usize::from(how >> 2) % (PATHS - 1);
        let addresses = texts.map(|own| own.iter().map(|a| a.parse().expect("an address")).collect());
        let aim = Aim { keys, places };
        let mut scene = Scene {
            net,
            links,
            honest,
            addresses,
            paths,
            options,
            attacker,
            attacker_cq,
            attacker_qp,
            aim,
            number: 0,
            peer,
        };
        scene.connect();
        scene
    }

    /// From RESET to RTS at both ends.
    fn connect(&mut self) {
        let options = self.options;
        let [forth, back] = [self.connection(0), self.connection(1)];
        self.attacker.to_rtr_by(&mut self.net, &self.attacker_qp.qp, forth, &options);
        self.peer.guest.to_rtr_by(&mut self.net, &self.peer.qp.qp, back, &options);
        self.attacker.to_rts(&mut self.net, &self.attacker_qp.qp, &options);
        self.peer.guest.to_rts(&mut self.net, &self.peer.qp.qp, &options);
        // The RNICs confirm the connection to each other, if the links let them.
        turns(&mut self.net, 12);
    }

    fn connection(&self, end: usize) -> Connection {
        let (guest, own, peer) = match end {
            0 => (&self.attacker, &self.attacker_qp.qp, &self.peer.qp.qp),
            _ => (&self.peer.guest, &self.peer.qp.qp, &self.attacker_qp.qp),
        };
        let path = |i: usize| UnderlayPath {
            local: self.addresses[end][i],
            remote: self.addresses[1 - end][i],
            udp_source_port: SOURCE_PORT + i as u16,
        };
        let other_paths = (1..self.paths).map(path).collect();
        Connection { other_paths, ..guest.connection(own, peer, &self.options) }
    }

    fn step(&mut self, input: &mut Input<'_>) {
        match input.u8() {
            0..0x40 => self.post_chunk(input),
            0x40..0x68 => self.post_send(input),
            0x68..0x80 => self.message(input),
            0x80..0x88 => self.header(input),
            0x88..0x90 => self.scribble(input),
            0x90..0xa4 => turns(&mut self.net, 1 + input.below(12)),
            0xa4..0xb0 => self.peer.post_recv(input),
            0xb0..0xb8 => self.peer.post(&self.aim, input),
            0xb8..0xd0 => self.forge(input),
            0xd0..0xe8 => self.repeat(input),
            0xe8..0xf0 => self.link(input),
            0xf0..0xf8 => self.modify(input),
            0xf8..0xfc => self.revive(),
            _ => self.net.now += 1_000_000 << input.below(10),
        }
    }

    /// Writes an entry at a ring's producer's place, publishes it and rings, as an honest guest does; what it says is another matter.
    fn publish(&self, gpa: u64, entry: &[u8]) {
        publish(&self.attacker, gpa, ENTRIES, SHIFT, entry);
        self.attacker.mark(self.attacker_qp.qp.slot, self.attacker_qp.qp.index);
    }

    /// An index around a ring's producer.
    fn index(&self, gpa: u64, input: &mut Input<'_>) -> u32 {
        match input.u8() {
            by @ ..0xf0 => {
                let producer = self.attacker.mapping(gpa, 1).load_acquire(0);
                producer.wrapping_add(u32::from(by % 8)).wrapping_sub(5)
            }
            _ => input.u32(),
        }
    }

    /// Scatter/gather entries behind a header whose third byte says how many.
    fn with_sges(&self, mut entry: Vec<u8>, input: &mut Input<'_>) -> Vec<u8> {
        for _ in 0..entry[2].min(20) {
            entry.extend(match input.below(3) {
                0 => self.aim.sge(input),
                _ => {
                    // Many packets of its own memory.
                    let (addr, length) = (BASE + PAGE * BUSY_PAGES, u32::from(input.u16()) % 0xc000);
                    [&addr.to_le_bytes()[..], &length.to_le_bytes(), &self.aim.keys[0].to_le_bytes()].concat()
                }
            });
        }
        entry
    }

    fn post_chunk(&mut self, input: &mut Input<'_>) {
        const OPCODES: [u8; 8] = [
            SEND_OP_RDMA_WRITE,
            SEND_OP_RDMA_READ,
            SEND_OP_STEER,
            SEND_OP_STEER,
            SEND_OP_RDMA_WRITE,
            SEND_OP_STEER,
            SEND_OP_RDMA_READ,
            SEND_OP_WAIT,
        ];
        let (chunks, queue) = (self.attacker_qp.chunks_gpa, self.attacker_qp.qp.sq_gpa);
        let (opcode, flags, count) = (input.u8(), input.u8(), input.u8());
        let opcode = if opcode < 0xf0 { OPCODES[usize::from(opcode) % OPCODES.len()] } else { input.u8() };
        let flags = match flags {
            ..0xa0 => 0,
            0xa0..0xf0 => flags & (SEND_AFTER_CHUNK | SEND_AFTER_SQ),
            _ => flags,
        };
        let count = if count < 0xf8 { count % 3 } else { count };
        let mut entry = vec![opcode, flags, count, 0];
        entry.extend(self.index(chunks, input).to_le_bytes());
        entry.extend(u64::from(self.index(queue, input)).to_le_bytes());
        entry.extend(self.place(opcode == SEND_OP_STEER, input));
        entry.extend([0; 4]);
        let entry = self.with_sges(entry, input);
        self.publish(chunks, &entry);
    }

    /// The peer's address and key; or an offset in a message, and the number of a receive.
    fn place(&self, is_steered: bool, input: &mut Input<'_>) -> Vec<u8> {
        let (addr, key) = match (is_steered, input.u8()) {
            (true, by @ ..0xf0) => {
                let number = self.number.wrapping_add(u32::from(by % 8)).wrapping_sub(2);
                (u64::from(input.length(0x4000)), if by < 0xe0 { number } else { number.wrapping_add(64) })
            }
            (false, ..0xc0) => (self.peer.open.gpa + u64::from(input.u16()), self.peer.open.key),
            _ => (self.aim.address(input), input.key(&self.aim.keys)),
        };
        [&addr.to_le_bytes()[..], &key.to_le_bytes()].concat()
    }

    fn post_send(&mut self, input: &mut Input<'_>) {
        const OPCODES: [u8; 12] = [0, 1, 2, 3, 4, 5, 6, 7, 9, SEND_OP_WAIT, SEND_OP_WAIT, 2];
        let (opcode, flags, count) = (input.u8(), input.u8(), input.u8());
        let opcode = if opcode < 0xf0 { OPCODES[usize::from(opcode) % OPCODES.len()] } else { input.u8() };
        let flags = match opcode {
            _ if flags >= 0xf0 => flags,
            SEND_OP_WAIT => 0,
            SEND_OP_SEND | SEND_OP_SEND_IMM => flags & (0xf ^ SEND_INLINE | SEND_STEERED),
            _ => flags & (0xf ^ SEND_INLINE),
        };
        let count = if count < 0xf8 { count % 3 } else { count };
        let is_steered = flags & SEND_STEERED != 0;
        self.number += u32::from(matches!(opcode, 1 | SEND_OP_SEND | SEND_OP_SEND_IMM | SEND_OP_SEND_INV));
        let mut entry = vec![opcode, flags, count, 0];
        entry.extend(input.exactly(12));
        if opcode == SEND_OP_WAIT {
            entry.extend([0; 8]);
            entry.extend(self.index(self.attacker_qp.chunks_gpa, input).to_le_bytes());
        } else {
            entry.extend(self.place(is_steered, input));
        }
        let before = if input.below(4) == 0 { input.length(0x4000) } else { 0 };
        entry.extend(before.to_le_bytes());
        if matches!(opcode, SEND_OP_CMP_SWAP | SEND_OP_FETCH_ADD) {
            entry.extend(input.exactly(AtomicSegment::SIZE));
        }
        let entry = self.with_sges(entry, input);
        self.publish(self.attacker_qp.qp.sq_gpa, &entry);
    }

    /// A whole message, as an honest guest's library posts it, perhaps with an end that does not fit.
    fn message(&mut self, input: &mut Input<'_>) {
        let kind = input.below(5);
        let (chunks, bytes) = (1 + input.below(6) as u32, 1 + u32::from(input.u16()) % 0x1800);
        let (chunk_op, end_op, flags) = match kind {
            0 => (SEND_OP_RDMA_WRITE, SEND_OP_RDMA_WRITE, 0),
            1 => (SEND_OP_RDMA_WRITE, SEND_OP_RDMA_WRITE_IMM, 0),
            2 => (SEND_OP_RDMA_READ, SEND_OP_RDMA_READ, 0),
            3 => (SEND_OP_STEER, SEND_OP_SEND, SEND_STEERED),
            _ => (SEND_OP_STEER, SEND_OP_SEND_IMM, SEND_STEERED),
        };
        let is_steered = flags != 0;
        let place = |at: u32, number: u32| match is_steered {
            true => [&u64::from(at).to_le_bytes()[..], &number.to_le_bytes()].concat(),
            false => {
                let addr = self.peer.open.gpa + u64::from(at);
                [&addr.to_le_bytes()[..], &self.peer.open.key.to_le_bytes()].concat()
            }
        };
        let data = |at: u32, length: u32| {
            let addr = BASE + PAGE * BUSY_PAGES + u64::from(at);
            [&addr.to_le_bytes()[..], &length.to_le_bytes(), &self.aim.keys[0].to_le_bytes()].concat()
        };
        let rings = (self.attacker_qp.chunks_gpa, self.attacker_qp.qp.sq_gpa);
        let number = self.number;
        for i in 0..chunks {
            let at = i * bytes;
            let head = [&[chunk_op, 0, 1, 0][..], &[0; 12]].concat();
            let entry = [head, place(at, number), vec![0; 4], data(at, bytes)].concat();
            self.publish(rings.0, &entry);
        }
        let until = self.attacker.mapping(rings.0, 1).load_acquire(0);
        let wait = [&[SEND_OP_WAIT, 0, 0, 0][..], &[0; 20], &until.to_le_bytes(), &[0; 4]].concat();
        self.publish(rings.1, &wait);
        // Mostly right.
        let at = match input.u8() {
            ..0xd0 => chunks * bytes,
            _ => input.length(chunks * bytes),
        };
        let before = if matches!(kind, 1 | 2) { at } else { 0 };
        let head = [&[end_op, SEND_SIGNALED | flags, 1, 0][..], &[0; 12]].concat();
        let end = [head, place(at, number), before.to_le_bytes().to_vec(), data(0, 64)].concat();
        self.publish(rings.1, &end);
        self.number += u32::from(!matches!(kind, 0 | 2));
    }

    /// A word of a ring's header changes: indexes, numbers of paths, and what is told at RTR.
    fn header(&self, input: &mut Input<'_>) {
        let rings = [self.attacker_qp.chunks_gpa, self.attacker_qp.chunks_gpa, self.attacker_qp.qp.sq_gpa];
        let ring = self.attacker.mapping(rings[input.below(rings.len())], 1);
        let word = 4 * input.below(5);
        let value = match input.u8() {
            by @ ..0xe0 => ring.load_acquire(word).wrapping_add(u32::from(by)).wrapping_sub(0x60),
            _ => input.u32(),
        };
        ring.store_release(word, value);
        self.attacker.mark(self.attacker_qp.qp.slot, self.attacker_qp.qp.index);
    }

    /// Any byte of the attacker's rings changes.
    fn scribble(&self, input: &mut Input<'_>) {
        let page = u64::from(input.u8()) % BUSY_PAGES;
        let at = u64::from(input.u16()) % (PAGE - 256);
        let len = usize::from(input.u8()) % 64;
        self.attacker.write(BASE + page * PAGE + at, input.bytes(len));
    }

    /// A packet that the network has made arrives at one of the members, or at nobody.
    fn forge(&mut self, input: &mut Input<'_>) {
        let (which, path) = (input.u8(), input.below(PATHS));
        let end = usize::from(which & 1);
        let (guest, qp, mr) = match end {
            0 => (&self.attacker, &self.attacker_qp.qp, &self.peer.open),
            _ => (&self.peer.guest, &self.peer.qp.qp, &self.peer.open),
        };
        let (id, handle, wire) = (guest.id, qp.handle, qp.wire.get());
        let describe = Command::QueryQp { vnic: id, qp: handle };
        let Ok(Reply::Qp(status)) = self.net.execute(end, describe) else { panic!("a queue pair is gone") };
        // Of the leader, or of a sibling that has carried little.
        let (expected, next_send) = match path {
            0 => (status.rq_psn, status.sq_psn),
            _ => {
                let by = u32::from(input.u8());
                (Psn::new(FIRST_PSN.wrapping_add(by)), Psn::new(FIRST_PSN.wrapping_add(by)))
            }
        };
        let opcode = match input.u8() {
            byte @ ..0x60 => Opcode(byte % 0x18),
            byte @ ..0xe0 => Opcode(0xc0 + byte % 0x10),
            byte => Opcode([0xd8, 0xd9, 0xce, 0xcf][usize::from(byte % 4)]),
        };
        let is_steered = (0xc2..0xc9).contains(&opcode.0);
        let numbers: Vec<u32> = (0..8).map(|n| self.number.wrapping_add(n).wrapping_sub(3)).collect();
        let victim = Victim {
            qpn: WireQpn::from_wire(if which & 0xf0 == 0xf0 { 0 } else { wire + path as u32 }),
            expected,
            next_send,
            keys: if is_steered { &numbers } else { &self.aim.keys },
            base: if is_steered { 0 } else { mr.gpa },
            len: OPEN_PAGES * PAGE,
        };
        let datagram = forge::packet(input, &victim, opcode);
        let from = if which & 0xc == 0xc { input.below(PATHS) } else { path };
        self.deliver(1 - end, from, (end, path), datagram, SOURCE_PORT + path as u16);
    }

    /// What was sent comes once more, changed or not.
    fn repeat(&mut self, input: &mut Input<'_>) {
        let overheard = self.links.overheard();
        if overheard.is_empty() {
            return;
        }
        let heard = &overheard[input.below(overheard.len())];
        let place = |address: IpAddr| {
            let ends = self.addresses.iter().enumerate();
            let mut places =
                ends.filter_map(|(end, all)| Some((end, all.iter().position(|a| *a == address)?)));
            places.next()
        };
        let (Some(from), Some(mut to)) = (place(heard.from.ip()), place(heard.to)) else { return };
        let mut bytes = heard.bytes.clone();
        let how = input.u8();
        if how & 0x40 != 0 {
            to.1 = input.below(PATHS);
        }
        if let Some(psn) = bytes.get_mut(9..Bth::LEN).filter(|_| how & 0x20 != 0) {
            let [a, b, c] = [psn[0], psn[1], psn[2]];
            let changed = u32::from_be_bytes([0, a, b, c]).wrapping_add(input.u8().into()).wrapping_sub(0x80);
            psn.copy_from_slice(&changed.to_be_bytes()[1..]);
        }
        for _ in 0..how % 4 {
            // Mostly headers.
            let bound = if how & 0x10 != 0 { bytes.len() } else { bytes.len().min(48) };
            let at = usize::from(input.u16()) % bound.max(1);
            if let Some(byte) = bytes.get_mut(at) {
                *byte = input.u8();
            }
        }
        if how & 0x88 == 0x88 {
            bytes.truncate(input.u16().into());
        }
        let port = heard.from.port();
        self.deliver(from.0, from.1, to, bytes, port);
    }

    /// A datagram arrives with the right ICRC.
    fn deliver(
        &mut self,
        from_end: usize,
        from_path: usize,
        (end, path): (usize, usize),
        mut datagram: Vec<u8>,
        port: u16,
    ) {
        let (source, own) = (self.addresses[from_end][from_path], self.addresses[end][path]);
        if let (Some((covered, sum)), Some(flow)) =
            (datagram.split_last_chunk_mut::<ICRC_BYTES>(), IcrcFlow::new(source, own, port))
        {
            *sum = flow.compute(covered, 0).to_le_bytes();
        }
        let now = Time::from_nanos(self.net.now);
        self.net.engines[end].handle_datagram(now, own, SocketAddr::new(source, port), &datagram);
    }

    /// A link is cut, mended, or holds up what it carries.
    fn link(&mut self, input: &mut Input<'_>) {
        let (how, path) = (input.u8(), input.below(PATHS));
        let fate = match how % 8 {
            0 | 1 => None,
            2 | 3 => Some(Fate::Lost),
            4 => Some(Fate::Held),
            5 => Some(Fate::SmallOnly),
            6 => Some(Fate::From(self.addresses[0][input.below(PATHS)])),
            _ => {
                self.links.release();
                return;
            }
        };
        let [one, other] = [self.addresses[0][path], self.addresses[1][path]];
        match how & 0xc0 {
            0 => self.links.set_one_way(one, other, fate),
            0x40 => self.links.set_one_way(other, one, fate),
            _ => self.links.set(one, other, fate),
        }
    }

    /// The attacker's queue pair is asked to change its state, by a legal transition or not; or its memory goes and comes, or its connection is revoked.
    fn modify(&mut self, input: &mut Input<'_>) {
        const STATES: [QpState; 5] = [QpState::Rts, QpState::Sqd, QpState::Err, QpState::Sqe, QpState::Reset];
        let qp = &self.attacker_qp.qp;
        match input.below(16) {
            0 => self.attacker.set_memory(&mut self.net),
            1 => {
                let revoke = Command::RevokeQp { vnic: self.attacker.id, qp: qp.handle };
                answered(self.net.execute(0, revoke));
            }
            2 => {
                let connection = Some(self.connection(0));
                let change = QpChange { to: Some(QpState::Sqd), connection, ..QpChange::default() };
                answered(self.attacker.modify(&mut self.net, qp, change));
            }
            other => {
                let to = Some(STATES[other % STATES.len()]);
                answered(self.attacker.modify(&mut self.net, qp, QpChange { to, ..QpChange::default() }));
            }
        }
    }

    /// Both ends begin anew.
    fn revive(&mut self) {
        let reset = QpChange { to: Some(QpState::Reset), ..QpChange::default() };
        let own = &self.attacker_qp;
        self.attacker.modify(&mut self.net, &own.qp, reset.clone()).expect("a reset is always possible");
        for gpa in [own.chunks_gpa, own.qp.sq_gpa, own.qp.rq_gpa] {
            self.attacker.mapping(gpa, 1).store_release(0, 0);
        }
        self.number = 0;
        // What has completed before the reset.
        self.peer.poll();
        let qp = &self.peer.qp.qp;
        self.peer.guest.modify(&mut self.net, qp, reset).expect("a reset is always possible");
        self.peer.reset();
        self.connect();
    }

    fn poll(&mut self) {
        // As many as the queue has: its memory says anything.
        for _ in 0..256 {
            if self.attacker_cq.ring.poll().is_none() {
                break;
            }
        }
        self.attacker_cq.ring.publish();
        self.peer.poll();
    }

    fn end(mut self) {
        self.peer.check();
        self.honest.check(&mut self.net);
        self.attacker.detach(&mut self.net);
        self.honest.check(&mut self.net);
        self.peer.check();
        self.peer.guest.detach(&mut self.net);
        assert_eq!(devices(&mut self.net), [1, 2], "a device that is gone is still there");
    }
}

impl Peer {
    fn new(net: &mut Net, addresses: &[&str], shares: bool) -> Self {
        let mut guest = Guest::attach_at(net, 1, 5, 100, addresses, MEMORY);
        let cq = guest.cq(net, 256);
        let srq = shares.then(|| guest.srq(net, None));
        let receives = srq.as_ref().map(|srq| Receives::Shared(srq.handle));
        let adjust = |init: &mut masq_driver::QpInit| {
            if let Some(receives) = receives {
                init.receives = receives;
            }
        };
        let qp = guest.try_group(net, &cq, adjust).expect("a queue pair");
        let open = guest.mr(net, OPEN_PAGES * PAGE, all_access());
        let readable = Access { remote_read: true, ..Access::default() };
        let read_only = guest.mr(net, CLOSED_PAGES * PAGE, readable);
        let at = guest.alloc(CLOSED_PAGES);
        let foreign = guest.mr_at(net, at, CLOSED_PAGES * PAGE, all_access(), PdHandle(PD.0 + 1));
        for mr in [&read_only, &foreign] {
            guest.write(mr.gpa, &pattern((CLOSED_PAGES * PAGE) as usize, 9));
        }
        let (outstanding, received, next) = (HashMap::new(), Vec::new(), 0);
        let mut peer = Peer { guest, cq, qp, srq, open, read_only, foreign, outstanding, received, next };
        for _ in 0..4 {
            peer.receive(0x8000);
        }
        peer
    }

    fn post_recv(&mut self, input: &mut Input<'_>) {
        self.receive(u32::from(input.u16()) % 0x8000);
    }

    /// Posts a receive of two pieces.
    fn receive(&mut self, bytes: u32) {
        let first = bytes / 3;
        let pieces = [sge(&self.open, 0, first), sge(&self.open, 0x1_0000, bytes - first)];
        let posted = match &mut self.srq {
            Some(srq) => {
                let posted = srq.ring.post(self.next, &pieces);
                srq.ring.publish();
                posted
            }
            None => {
                let posted = self.qp.qp.rq.post(self.next, &pieces);
                self.qp.qp.rq.publish();
                posted
            }
        };
        if posted.is_ok() {
            self.outstanding.insert(self.next, bytes);
            self.next += 1;
        }
    }

    /// Sends something itself, of which there are answers to forge.
    fn post(&mut self, aim: &Aim, input: &mut Input<'_>) {
        let opcode = [SEND_OP_RDMA_WRITE, SEND_OP_RDMA_READ][input.below(2)];
        let (chunks, bytes) = (input.below(5) as u32, 1 + u32::from(input.u16()) % 0x1800);
        let target = Mr { gpa: aim.places[0] + PAGE * BUSY_PAGES, key: aim.keys[0], ..self.open };
        for i in 0..chunks {
            let offset = u64::from(i * bytes);
            let chunk = to(&target, offset, SendRequest { opcode, ..SendRequest::default() });
            let _ = self.qp.chunks.post(&chunk, &[sge(&self.open, offset, bytes)]);
        }
        self.qp.chunks.publish();
        let wait =
            SendRequest { opcode: SEND_OP_WAIT, rkey: self.qp.chunks.producer(), ..SendRequest::default() };
        let end = to(&target, 0, request(opcode, u64::MAX));
        if self.qp.qp.sq.free() >= 2 {
            let _ = self.qp.qp.sq.post(&wait, &[]);
            let _ = self.qp.qp.sq.post(&end, &[sge(&self.open, 0, 64)]);
        }
        self.guest.ring(&mut self.qp.qp);
    }

    fn poll(&mut self) {
        while let Some(cqe) = self.cq.ring.poll() {
            assert_eq!(cqe.cookie, self.qp.qp.handle.0 + 0xc0, "a completion of nobody's");
            if cqe.flags & CQE_RECV == 0 {
                assert_eq!(cqe.wr_id, u64::MAX, "a send that was not posted");
                self.qp.qp.sq.complete(cqe.consumer);
                continue;
            }
            let bytes = self.outstanding.remove(&cqe.wr_id).expect("a receive completes once");
            if cqe.status == WC_SUCCESS && cqe.opcode == WC_RECV {
                assert!(cqe.byte_len <= bytes, "{} bytes in a receive of {bytes}", cqe.byte_len);
            }
            if cqe.status == WC_SUCCESS {
                self.received.push(cqe.byte_len);
            }
            if self.srq.is_none() {
                self.qp.qp.rq.complete(cqe.consumer);
            }
        }
        self.cq.ring.publish();
    }

    /// The queue pair is in RESET: what was in its own queues is nobody's.
    fn reset(&mut self) {
        self.poll();
        self.qp.qp.sq.reset();
        self.qp.chunks.reset();
        if self.srq.is_none() {
            self.qp.qp.rq.reset();
            self.outstanding.clear();
        }
    }

    fn check(&self) {
        let untouched = pattern((CLOSED_PAGES * PAGE) as usize, 9);
        for mr in [&self.read_only, &self.foreign] {
            assert!(self.guest.read(mr.gpa, untouched.len()) == untouched, "what is closed has changed");
        }
    }
}

#[cfg(test)]
mod tests {
    use masq_driver::{Command, Reply};

    use super::{PATHS, after};

    /// Unhindered messages arrive whole, and by all paths: the target reaches what it is about.
    #[test]
    fn messages_take_all_paths() {
        for shares in [0, 1] {
            let mut data = vec![0xa | shares];
            for kind in [0, 1, 2, 3, 4] {
                data.extend([0x68, kind, 5, 0xff, 0xf, 0]);
                data.extend([0x90, 11].repeat(4));
            }
            let mut scene = after(&data);
            assert_eq!(scene.peer.received, [6 * 0x1000 + 64; 3]);
            let qps = vec![scene.attacker_qp.qp.handle];
            let Ok(Reply::QpDetails(details)) =
                scene.net.execute(0, Command::DescribeQps { vnic: scene.attacker.id, qps })
            else {
                panic!("no details")
            };
            let carried: Vec<u64> = details[0].paths.iter().map(|p| p.chunks).collect();
            assert!(carried.len() == PATHS && carried.iter().all(|chunks| *chunks > 0), "{carried:?}");
            assert_eq!(carried.iter().sum::<u64>(), 5 * 6);
            scene.end();
        }
    }
}
