//! A network that sends anything to an engine: right or wrong ICRCs, from the peer or from others, at a queue pair in
//! any state. Only memory that the peer may write is written, and other guests do not notice.

use std::net::{IpAddr, SocketAddr};

use masq_driver::{Access, Command, PdHandle, QpState, Reply};
use masq_rnic::transport::Time;
use masq_types::WireQpn;
use masq_wire::{ICRC_BYTES, IcrcFlow};
use vrdma_abi::ring::{
    AtomicSegment, SEND_OP_FETCH_ADD, SEND_OP_RDMA_READ, SEND_OP_RDMA_WRITE, SEND_OP_SEND,
};
use vrdma_rings::Operands;

use crate::engine::{self, Honest, MEMORY, to_stranger, turns};
use crate::forge::{self, Victim};
use crate::guests::{Guest, Mr, Net, Options, PAGE, PD, TestCq, TestQp, all_access, request, sge, to};
use crate::input::Input;

/// Steps of one input, so that none takes for ever.
const MAX_STEPS: usize = 48;
/// Pages of the region that the peer may write.
const PAGES: u64 = 8;
/// Pages of each region that it may not write.
const CLOSED_PAGES: u64 = 2;
const SOURCE_PORT: u16 = 0xc055;

/// One input: the queue pair's state, then what arrives and what its guest does.
pub fn run(data: &[u8]) {
    let input = &mut Input::new(data);
    let mut scene = Scene::new(input);
    let before = scene.closed_memory();
    let mut steps = 0;
    while !input.is_empty() && steps < MAX_STEPS {
        steps += 1;
        match input.u8() {
            0..0xc0 => scene.arrive(input),
            0xc0..0xd0 => {
                let length = input.length(600) % 4096;
                let entry = [sge(&scene.open, PAGE, length)];
                let _ = scene.qp.rq.post(7, &entry);
                scene.qp.rq.publish();
            }
            0xd0..0xe0 => scene.post(input),
            _ => turns(&mut scene.net, 1 + input.below(16)),
        }
        while let Some(completion) = scene.cq.ring.poll() {
            assert_eq!(completion.cookie, scene.qp.handle.0 + 0xc0, "a completion of nobody's");
            scene.cq.ring.publish();
        }
    }
    turns(&mut scene.net, 16);
    assert!(scene.closed_memory() == before, "memory that is closed to the peer has changed");
    scene.honest.check(&mut scene.net);
}

/// A guest whose peer is hostile, beside two honest ones.
struct Scene {
    net: Net,
    honest: Honest,
    guest: Guest,
    cq: TestCq,
    qp: TestQp,
    /// The peer may do everything here.
    open: Mr,
    /// The peer may read here.
    read_only: Mr,
    /// Of another protection domain.
    foreign: Mr,
    stranger: IpAddr,
}

impl Scene {
    fn new(input: &mut Input<'_>) -> Self {
        let (address, stranger) = engine::addresses();
        let stranger: IpAddr = stranger.parse().expect("an address");
        let mut net = engine::net();
        let honest = Honest::new(&mut net, &address);
        let mut guest = Guest::attach(&mut net, 0, 5, 100, &address, MEMORY);
        let cq = guest.cq(&mut net, 64);
        let mut qp = guest.qp(&mut net, &cq, &cq);
        let open = guest.mr(&mut net, PAGES * PAGE, all_access());
        let readable = Access { remote_read: true, ..Access::default() };
        let read_only = guest.mr(&mut net, CLOSED_PAGES * PAGE, readable);
        let at = guest.alloc(CLOSED_PAGES);
        let foreign = guest.mr_at(&mut net, at, CLOSED_PAGES * PAGE, all_access(), PdHandle(PD.0 + 1));
        qp.rq.post(1, &[sge(&open, 0, 600)]).expect("room in an empty queue");
        qp.rq.publish();
        let options = Options { timeout: 1, retry_cnt: 1, rnr_retry: 1, ..Options::default() };
        let states = [QpState::Rts, QpState::Rtr, QpState::Err];
        let state = states[input.below(states.len())];
        let changes = to_stranger(&guest, stranger, &options);
        for change in changes.into_iter().take(if state == QpState::Rts { 3 } else { 2 }) {
            guest.modify(&mut net, &qp, change).expect("a legal change");
        }
        if state == QpState::Err {
            net.execute(0, Command::RevokeQp { vnic: guest.id, qp: qp.handle }).expect("it exists");
        }
        Scene { net, honest, guest, cq, qp, open, read_only, foreign, stranger }
    }

    fn closed_memory(&self) -> Vec<u8> {
        let read = |mr: &Mr| self.guest.read(mr.gpa, (CLOSED_PAGES * PAGE) as usize);
        [read(&self.read_only), read(&self.foreign)].concat()
    }

    /// A datagram arrives.
    fn arrive(&mut self, input: &mut Input<'_>) {
        let command = Command::QueryQp { vnic: self.guest.id, qp: self.qp.handle };
        let Ok(Reply::Qp(status)) = self.net.execute(0, command) else { panic!("a queue pair is gone") };
        let [other, _] = self.honest.wire_qpns();
        let place = input.u8();
        let nobody = WireQpn::from_wire(place.into());
        let target = [&self.open, &self.open, &self.read_only, &self.foreign][usize::from(place % 4)];
        let pages = if place % 4 < 2 { PAGES } else { CLOSED_PAGES };
        let keys = [self.open.key, self.read_only.key, self.foreign.key, self.honest.regions()[0].key];
        let how = input.u8();
        let victim = Victim {
            qpn: [
                self.qp.wire,
                self.qp.wire,
                self.qp.wire,
                self.qp.wire,
                self.qp.wire,
                other,
                nobody,
                nobody,
            ][usize::from(how % 8)],
            expected: status.rq_psn,
            next_send: status.sq_psn,
            keys: &keys,
            base: target.gpa,
            len: pages * PAGE,
        };
        let mut datagram = forge::datagram(input, &victim);
        let own = self.guest.address;
        let right_peer = how & 0xf0 != 0xf0;
        let source = if right_peer { self.stranger } else { own };
        // The ICRC is right, or what the bytes happen to be.
        let wrong_sum = how & 8 != 0 && how & 0x80 != 0;
        if let (Some((covered, sum)), Some(flow)) = (
            datagram.split_last_chunk_mut::<ICRC_BYTES>().filter(|_| !wrong_sum),
            IcrcFlow::new(source, own, SOURCE_PORT),
        ) {
            *sum = flow.compute(covered, 0).to_le_bytes();
        }
        let open = (!right_peer).then(|| self.guest.read(self.open.gpa, (PAGES * PAGE) as usize));
        let now = Time::from_nanos(self.net.now);
        self.net.engines[0].handle_datagram(now, own, SocketAddr::new(source, SOURCE_PORT), &datagram);
        if let Some(open) = open {
            let same = self.guest.read(self.open.gpa, open.len()) == open;
            assert!(same, "a packet from another address was executed");
        }
    }

    /// The guest sends, so that there are answers to forge.
    fn post(&mut self, input: &mut Input<'_>) {
        let opcodes = [SEND_OP_SEND, SEND_OP_RDMA_WRITE, SEND_OP_RDMA_READ, SEND_OP_FETCH_ADD];
        let opcode = opcodes[input.below(opcodes.len())];
        let length = if opcode == SEND_OP_FETCH_ADD { 8 } else { u32::from(input.u16()) % 4096 };
        let mut work = to(&self.open, 0, request(opcode, 3));
        if opcode == SEND_OP_FETCH_ADD {
            work.operands = Operands::Atomic(AtomicSegment { compare_add: 1, swap: 0 });
        }
        if self.qp.sq.post(&work, &[sge(&self.open, 2 * PAGE, length)]).is_ok() {
            self.guest.ring(&mut self.qp);
        }
    }
}
