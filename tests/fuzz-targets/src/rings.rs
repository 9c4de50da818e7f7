//! A guest that writes anything into its rings, doorbells and all its other memory, while two honest guests beside
//! it, on the same address, must not notice. It may reach all its memory by RDMA as well, so that rings change
//! while the engine works on them.

use std::net::IpAddr;

use masq_driver::{Command, MrHandle, QpChange, QpState};
use vrdma_abi::ring::{CqHeader, SEND_INLINE};
use vrdma_rings::SharedMemory;

use crate::aim::{Aim, publish};
use crate::engine::{self, Honest, MEMORY, answered, devices, to_stranger, turns};
use crate::guests::{BASE, Guest, Mr, Net, Options, PAGE, PD, SLOTS, TestCq, TestQp, all_access, connect};
use crate::input::Input;

/// Steps of one input, so that none takes for ever.
const MAX_STEPS: usize = 64;
/// Pages at the start of its memory, where rings and doorbells are.
const BUSY_PAGES: u64 = 64;
const SQ_SHIFT: u8 = 9;
const RQ_SHIFT: u8 = 7;
const ENTRIES: u32 = 64;

/// One input: what the guest does, step by step.
pub fn run(data: &[u8]) {
    let input = &mut Input::new(data);
    let (address, stranger) = engine::addresses();
    let mut net = engine::net();
    let mut honest = Honest::new(&mut net, &address);
    // In the network of the honest guests, or in another one.
    let vni = 100 + u32::from(input.u8() % 2);
    let mut hostile = Hostile::new(&mut net, vni, &address, &stranger, &honest);
    let mut steps = 0;
    while !input.is_empty() && steps < MAX_STEPS {
        steps += 1;
        hostile.step(&mut net, input);
    }
    turns(&mut net, 24);
    honest.check(&mut net);
    hostile.guest.detach(&mut net);
    honest.check(&mut net);
    assert_eq!(devices(&mut net), [1, 2], "a device that is gone is still there");
}

struct Hostile {
    guest: Guest,
    /// Two that are connected to each other, one to itself, one to a host that is not there.
    qps: Vec<TestQp>,
    cqs: Vec<TestCq>,
    /// All its memory, and a little.
    mrs: [Mr; 2],
    aim: Aim,
    options: Options,
    stranger: IpAddr,
}

impl Hostile {
    fn new(net: &mut Net, vni: u32, address: &str, stranger: &str, honest: &Honest) -> Self {
        let stranger = stranger.parse().expect("an address");
        let mut guest = Guest::attach(net, 0, 9, vni, address, MEMORY);
        let cqs: Vec<_> = (0..2).map(|_| guest.cq(net, 32)).collect();
        let qps: Vec<_> = (0..4).map(|_| guest.qp(net, &cqs[0], &cqs[1])).collect();
        let all = guest.mr_at(net, BASE, MEMORY, all_access(), PD);
        let few = guest.mr(net, 3 * PAGE, all_access());
        let mut keys = vec![all.key, few.key];
        let mut places = vec![all.gpa, few.gpa];
        for mr in honest.regions() {
            keys.push(mr.key);
            places.push(mr.gpa);
        }
        let options = Options { timeout: 1, retry_cnt: 1, rnr_retry: 1, ..Options::default() };
        let hostile =
            Hostile { guest, qps, cqs, mrs: [all, few], aim: Aim { keys, places }, options, stranger };
        hostile.connect(net);
        hostile
    }

    fn connect(&self, net: &mut Net) {
        let [a, b, own, far] = self.qps.as_slice() else { unreachable!("there are four") };
        connect(net, (&self.guest, a), (&self.guest, b), &self.options);
        connect(net, (&self.guest, own), (&self.guest, own), &self.options);
        for change in to_stranger(&self.guest, self.stranger, &self.options) {
            self.guest.modify(net, far, change).expect("a legal change");
        }
    }

    fn step(&mut self, net: &mut Net, input: &mut Input<'_>) {
        match input.u8() {
            0..0x50 => self.post_send(input),
            0x50..0x68 => self.post_recv(input),
            0x68..0x78 => self.producer(input),
            0x78..0x88 => self.completion_header(input),
            0x88..0x98 => self.doorbell(input),
            0x98..0xa8 => self.scribble(input),
            0xa8..0xd8 => turns(net, 1 + input.below(8)),
            0xd8..0xe8 => self.modify(net, input),
            0xe8..0xf4 => self.command(net, input),
            _ => self.revive(net),
        }
    }

    fn qp(&self, input: &mut Input<'_>) -> &TestQp {
        &self.qps[input.below(self.qps.len())]
    }

    /// Writes an entry at the producer's place, publishes it and rings, as an honest guest does; what the entry says
    /// is another matter.
    fn post_send(&self, input: &mut Input<'_>) {
        let qp = self.qp(input);
        let (opcode, flags, count) = (input.u8(), input.u8(), input.u8());
        let opcode = if opcode < 0xf0 { opcode % 8 } else { input.u8() };
        let count = if count < 0xf0 { count % 5 } else { count };
        let reserved = if flags & 0xf0 == 0xf0 { input.u8() } else { 0 };
        let flags = if flags & 0xf0 == 0xf0 { flags } else { flags & 0xf };
        let inline = if flags & SEND_INLINE != 0 { input.length(256) } else { 0 };
        let mut entry = vec![opcode, flags, count, reserved];
        entry.extend(input.exactly(12));
        entry.extend(self.aim.address(input).to_le_bytes());
        entry.extend(input.key(&self.aim.keys).to_le_bytes());
        entry.extend(inline.to_le_bytes());
        if matches!(opcode, 5 | 6) {
            entry.extend(input.exactly(16));
        }
        for _ in 0..count.min(30) {
            entry.extend(self.aim.sge(input));
        }
        publish(&self.guest, qp.sq_gpa, ENTRIES, SQ_SHIFT, &entry);
        self.guest.mark(qp.slot, qp.index);
    }

    fn post_recv(&self, input: &mut Input<'_>) {
        let qp = self.qp(input);
        let count = input.u8();
        let count = if count < 0xf0 { u32::from(count % 5) } else { input.u32() };
        let reserved = if input.below(16) == 0 { input.u32() } else { 0 };
        let mut entry = input.exactly(8);
        entry.extend(count.to_le_bytes());
        entry.extend(reserved.to_le_bytes());
        for _ in 0..count.min(7) {
            entry.extend(self.aim.sge(input));
        }
        publish(&self.guest, qp.rq_gpa, ENTRIES, RQ_SHIFT, &entry);
    }

    /// A producer's index jumps.
    fn producer(&self, input: &mut Input<'_>) {
        let qp = self.qp(input);
        let gpa = if input.below(2) == 0 { qp.sq_gpa } else { qp.rq_gpa };
        let ring = self.guest.mapping(gpa, 1);
        let value = match input.u8() {
            by @ ..0x80 => ring.load_acquire(0).wrapping_add(by.into()),
            by @ 0x80..0xe0 => ring.load_acquire(0).wrapping_sub((by - 0x80).into()),
            _ => input.u32(),
        };
        ring.store_release(0, value);
        self.guest.mark(qp.slot, qp.index);
    }

    /// A completion queue is said to have been read, and armed.
    fn completion_header(&self, input: &mut Input<'_>) {
        let ring = self.guest.mapping(self.cqs[input.below(self.cqs.len())].gpa, 1);
        let mut header = [0; CqHeader::SIZE];
        ring.read(0, &mut header);
        let consumer = match input.u8() {
            by @ ..0xe0 => ring.load_acquire(0).wrapping_add((by % 8).into()),
            _ => input.u32(),
        };
        ring.store_release(0, consumer);
        ring.store_release(4, if input.below(8) == 0 { input.u32() } else { u32::from(input.u8() % 3) });
    }

    /// A doorbell of any index rings.
    fn doorbell(&self, input: &mut Input<'_>) {
        self.guest.mark(input.u8() as u16 % SLOTS as u16, input.u16() % 4032);
    }

    /// Any byte of its memory changes.
    fn scribble(&self, input: &mut Input<'_>) {
        let page = u64::from(input.u8()) % BUSY_PAGES;
        let at = u64::from(input.u16()) % PAGE;
        let len = usize::from(input.u8());
        self.guest.write(BASE + page * PAGE + at, input.bytes(len));
    }

    /// A queue pair is asked to change its state, by a legal transition or not.
    fn modify(&self, net: &mut Net, input: &mut Input<'_>) {
        const STATES: [QpState; 7] = [
            QpState::Reset,
            QpState::Init,
            QpState::Rtr,
            QpState::Rts,
            QpState::Sqd,
            QpState::Sqe,
            QpState::Err,
        ];
        let qp = self.qp(input);
        let to = STATES[input.below(STATES.len())];
        let change = match to {
            QpState::Init | QpState::Rtr | QpState::Rts if input.below(2) == 0 => {
                let steps = to_stranger(&self.guest, self.stranger, &self.options);
                steps.into_iter().find(|c| c.to == Some(to)).unwrap_or_default()
            }
            _ => QpChange { to: Some(to), ..QpChange::default() },
        };
        answered(self.guest.modify(net, qp, change));
    }

    /// Memory or regions come and go under the engine's hands.
    fn command(&mut self, net: &mut Net, input: &mut Input<'_>) {
        let vnic = self.guest.id;
        match input.below(4) {
            0 => answered(net.execute(0, Command::SetMemory { vnic, regions: Vec::new() })),
            1 => self.guest.set_memory(net),
            2 => {
                let mr = MrHandle(self.mrs[input.below(2)].handle.0);
                answered(net.execute(0, Command::DestroyMr { vnic, mr }));
            }
            _ => {
                let qp = self.qp(input).handle;
                answered(net.execute(0, Command::RevokeQp { vnic, qp }));
            }
        }
    }

    /// All queue pairs begin anew.
    fn revive(&self, net: &mut Net) {
        for qp in &self.qps {
            let reset = QpChange { to: Some(QpState::Reset), ..QpChange::default() };
            self.guest.modify(net, qp, reset).expect("a reset is always possible");
            for gpa in [qp.sq_gpa, qp.rq_gpa] {
                self.guest.mapping(gpa, 1).store_release(0, 0);
            }
        }
        self.connect(net);
    }
}
