//! Two guests on two RNICs, with several addresses each and a queue pair that uses them all.

use masq_rnic::{FaultInjection, RnicConfig};
use masq_types::{Qpn, WireQpn};
use vrdma_abi::ring::*;
use vrdma_rings::ChunkRing;

use super::*;

/// Entries of a chunk ring.
pub const CHUNKS: u32 = 64;
/// Bytes of each region.
pub const MR: u64 = 4 << 20;
const SHIFT: u8 = 9;

/// A queue pair with a chunk ring.
pub struct GroupQp {
    pub qp: TestQp,
    pub chunks: ChunkRing<Mapping>,
    pub chunks_gpa: u64,
}

/// All completions of a queue that come within `limit_ms`: wr_id and status.
pub fn completions_within(net: &mut Net, cq: &mut TestCq, limit_ms: u64) -> Vec<(u64, u8)> {
    let mut all = Vec::new();
    net.run_until(limit_ms, |_| {
        while let Some(cqe) = cq.ring.poll() {
            all.push((cqe.wr_id, cqe.status));
        }
        false
    });
    cq.ring.publish();
    all
}

/// Two ends.
pub struct Multi {
    pub net: Net,
    pub a: Guest,
    pub b: Guest,
    pub a_cq: TestCq,
    pub b_cq: TestCq,
    pub a_mr: Mr,
    pub b_mr: Mr,
    pub a_qp: GroupQp,
    pub b_qp: GroupQp,
    pub addresses: [Vec<IpAddr>; 2],
}

impl Multi {
    /// Connected by `paths` paths, of four or as many.
    pub fn new(paths: usize) -> Self {
        Self::with(paths, None, &Options::default())
    }

    /// What B receives suffers `faults`.
    pub fn with(paths: usize, faults: Option<FaultInjection>, options: &Options) -> Self {
        let configs = [RnicConfig::default(), RnicConfig { faults, ..RnicConfig::default() }];
        Self::on(Net::new(&configs), 1, paths, options)
    }

    /// A at engine 0, B at another.
    pub fn on(mut net: Net, b_engine: usize, paths: usize, options: &Options) -> Self {
        const MEMORY: u64 = 16 << 20;
        const VNI: u32 = 100;
        let addresses = [(); 2].map(|()| (0..paths.max(4)).map(|_| fresh_address()).collect::<Vec<_>>());
        let mut attach = |engine, id, own: &Vec<String>| {
            let own: Vec<&str> = own.iter().map(String::as_str).collect();
            Guest::attach_at(&mut net, engine, id, VNI, &own, MEMORY)
        };
        let mut a = attach(0, 1, &addresses[0]);
        let mut b = attach(b_engine, 2, &addresses[1]);
        let (a_cq, b_cq) = (a.cq(&mut net, 256), b.cq(&mut net, 256));
        let (a_mr, b_mr) = (a.mr(&mut net, MR, all_access()), b.mr(&mut net, MR, all_access()));
        let members = |init: &mut QpInit| init.group.as_mut().unwrap().members = paths.max(4) as u8;
        let a_qp = a.try_group(&mut net, &a_cq, members).unwrap();
        let b_qp = b.try_group(&mut net, &b_cq, members).unwrap();
        let addresses = addresses.map(|own| own.iter().map(|a| a.parse().unwrap()).collect());
        let mut multi = Multi { net, a, b, a_cq, b_cq, a_mr, b_mr, a_qp, b_qp, addresses };
        multi.connect(paths, options);
        multi
    }

    /// From RESET to RTS at both ends.
    pub fn connect(&mut self, paths: usize, options: &Options) {
        let [a, b] = [self.connection(0, paths, options), self.connection(1, paths, options)];
        self.a.to_rtr_by(&mut self.net, &self.a_qp.qp, a, options);
        self.b.to_rtr_by(&mut self.net, &self.b_qp.qp, b, options);
        self.a.to_rts(&mut self.net, &self.a_qp.qp, options);
        self.b.to_rts(&mut self.net, &self.b_qp.qp, options);
        // The RNICs have confirmed the connection to each other: before that it has one path.
        self.net.run(20);
    }

    /// Back to RESET at both ends, and connected again.
    pub fn renew(&mut self, paths: usize) {
        self.modify_a(QpState::Reset);
        let reset = QpChange { to: Some(QpState::Reset), ..QpChange::default() };
        self.b.modify(&mut self.net, &self.b_qp.qp, reset).unwrap();
        for qp in [&mut self.a_qp, &mut self.b_qp] {
            qp.qp.sq.reset();
            qp.chunks.reset();
        }
        while self.a_cq.ring.poll().is_some() {}
        self.connect(paths, &Options::default());
    }

    /// How an end is connected to the other.
    pub fn connection(&self, end: usize, paths: usize, options: &Options) -> Connection {
        let (guest, own, peer) = match end {
            0 => (&self.a, &self.a_qp.qp, &self.b_qp.qp),
            _ => (&self.b, &self.b_qp.qp, &self.a_qp.qp),
        };
        let path = |i: usize| UnderlayPath {
            local: self.addresses[end][i],
            remote: self.addresses[1 - end][i],
            udp_source_port: 0xc100 + i as u16,
        };
        let other_paths = (1..paths).map(path).collect();
        Connection { other_paths, ..guest.connection(own, peer, options) }
    }

    /// Posts a chunk of A's: `len` bytes at `offset` of both regions.
    pub fn chunk(&mut self, opcode: u8, offset: u64, len: u32) -> u32 {
        let chunk = to(&self.b_mr, offset, SendRequest { opcode, ..SendRequest::default() });
        self.chunk_as(&chunk, offset, len)
    }

    /// Posts a chunk whose data is `len` bytes at `offset` of A's region. Returns the index behind it.
    pub fn chunk_as(&mut self, chunk: &SendRequest, offset: u64, len: u32) -> u32 {
        self.a_qp.chunks.post(chunk, &[sge(&self.a_mr, offset, len)]).unwrap();
        self.a_qp.chunks.publish();
        self.a_qp.chunks.producer()
    }

    /// Posts `bytes` at `offset` of both regions as chunks. Returns the index behind them.
    pub fn chunks(&mut self, opcode: u8, offset: u64, bytes: u32, chunk: u32) -> u32 {
        for at in (0..bytes).step_by(chunk as usize) {
            self.chunk(opcode, offset + u64::from(at), chunk.min(bytes - at));
        }
        self.a_qp.chunks.producer()
    }

    /// Posts a WAIT for the chunks below `until`.
    pub fn wait_for(&mut self, wr_id: u64, until: u32) {
        let wait = SendRequest { opcode: SEND_OP_WAIT, wr_id, rkey: until, ..SendRequest::default() };
        self.a_qp.qp.sq.post(&wait, &[]).unwrap();
    }

    /// Posts a request of A's, `len` bytes at `offset` of both regions, and rings.
    pub fn post(&mut self, opcode: u8, wr_id: u64, offset: u64, len: u32) {
        let request = to(&self.b_mr, offset, request(opcode, wr_id));
        self.a.post(&mut self.a_qp.qp, &request, &[sge(&self.a_mr, offset, len)]);
    }

    /// A large message as a guest's library posts it: chunks, a WAIT for them, and a tail; returns the index behind its chunks.
    pub fn message(&mut self, opcode: u8, wr_id: u64, offset: u64, len: u32, chunk: u32) -> u32 {
        const TAIL: u32 = 4096;
        let at = len - TAIL;
        let until = self.chunks(opcode, offset, at, chunk);
        self.wait_for(wr_id, until);
        let before_bytes = if opcode == SEND_OP_RDMA_READ { at } else { 0 };
        let (offset, tail) = (offset + u64::from(at), SendRequest { before_bytes, ..request(opcode, wr_id) });
        let tail = to(&self.b_mr, offset, tail);
        self.a.post(&mut self.a_qp.qp, &tail, &[sge(&self.a_mr, offset, TAIL)]);
        until
    }

    /// A's next completion.
    pub fn completion(&mut self) -> (u64, u8) {
        let cqe = wait(&mut self.net, &mut self.a_cq);
        (cqe.wr_id, cqe.status)
    }

    /// All completions of A's that come within some time: wr_id and status.
    pub fn completions(&mut self) -> Vec<(u64, u8)> {
        completions_within(&mut self.net, &mut self.a_cq, 1500)
    }

    /// Of which kinds the faults are that an engine has told its guest of since this was asked last.
    pub fn faults(&mut self, engine: usize) -> Vec<QpFault> {
        let fault = |e| match e {
            Event::QpFault { fault, .. } => Some(fault),
            _ => None,
        };
        self.net.events[engine].take().into_iter().filter_map(fault).collect()
    }

    /// What A's paths have carried.
    pub fn paths(&mut self) -> Vec<PathDetails> {
        paths(&mut self.net, &self.a, &self.a_qp)
    }

    pub fn states(&mut self) -> [QpState; 2] {
        [self.a.state(&mut self.net, &self.a_qp.qp), self.b.state(&mut self.net, &self.b_qp.qp)]
    }

    pub fn modify_a(&mut self, to: QpState) {
        let change = QpChange { to: Some(to), ..QpChange::default() };
        self.a.modify(&mut self.net, &self.a_qp.qp, change).unwrap();
    }
}

/// What the paths of a queue pair have carried.
pub fn paths(net: &mut Net, guest: &Guest, qp: &GroupQp) -> Vec<PathDetails> {
    let command = Command::DescribeQps { vnic: guest.id, qps: vec![qp.qp.handle] };
    match net.execute(guest.engine, command) {
        Ok(Reply::QpDetails(mut all)) => all.remove(0).paths,
        other => panic!("{other:?}"),
    }
}

impl Guest {
    /// A queue pair of which four paths can be used.
    pub fn group(&mut self, net: &mut Net, cq: &TestCq) -> GroupQp {
        self.try_group(net, cq, |_| {}).unwrap()
    }

    pub fn try_group(
        &mut self,
        net: &mut Net,
        cq: &TestCq,
        adjust: impl FnOnce(&mut QpInit),
    ) -> Result<GroupQp, DriverError> {
        let pages = ring_pages(CHUNKS, SHIFT);
        let chunks_gpa = self.alloc(pages);
        let ring = self.pages(chunks_gpa, pages);
        let number = 0x4000 * (self.id.0 + 1) + 16 * self.handle();
        let qp = self.try_qp_with(net, cq, cq, |init| {
            let chunks = WorkQueueAttr { entries: CHUNKS, stride_shift: SHIFT, max_sge: 26, ring };
            init.group = Some(GroupAttr { members: 4, chunks });
            init.wire_qpn = WireQpn::new(number).unwrap();
            init.qpn = Qpn::new(number).unwrap();
            adjust(init);
        })?;
        let chunks = ChunkRing::new(self.mapping(chunks_gpa, pages), CHUNKS, SHIFT).unwrap();
        Ok(GroupQp { qp, chunks, chunks_gpa })
    }
}
