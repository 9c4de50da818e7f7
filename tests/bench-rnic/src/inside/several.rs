//! A queue pair with several paths, and its large messages, split as the guest's library splits them.

use masq_driver::{Connection, GroupAttr, QpInit, UnderlayPath, WorkQueueAttr};
use masq_types::{Qpn, WireQpn};
use mp_core::split::{Kind, Limits, Message, Place, Progress, Splitter};
use vrdma_abi::ring::{SEND_OP_WAIT, ring_pages};
use vrdma_rings::{ChunkRing, Mapping, SendRequest};

use super::guests::{Guest, Mr, Net, Options, TestCq, TestQp, sge};

/// Entries of a chunk ring, as the provider has them for queue pairs with many requests.
const CHUNKS: u32 = 1024;
/// Entries are so far apart, as those of the test guests' send queues are.
const STRIDE_SHIFT: u8 = 9;

/// What the writer has for its queue pair with several paths.
pub struct Several {
    paths: usize,
    splitter: Splitter,
    /// From the moment when it is connected.
    chunks: Option<ChunkRing<Mapping>>,
}

impl Several {
    /// For a queue pair with so many paths.
    pub fn new(paths: usize) -> Self {
        Several { paths, splitter: Splitter::new(Limits::new(CHUNKS)), chunks: None }
    }

    /// Pages of a chunk ring.
    pub fn pages() -> u64 {
        ring_pages(CHUNKS, STRIDE_SHIFT)
    }

    /// Makes a queue pair at either end, and connects them by all paths: path by path, an address of the one with that of the other.
    pub fn connect(
        &mut self,
        net: &mut Net,
        (writer, cq): (&mut Guest, &TestCq),
        (peer, peer_cq): (&mut Guest, &TestCq),
        options: &Options,
    ) -> (TestQp, TestQp) {
        let (here, chunks) = self.qp(net, writer, cq);
        let (there, _) = self.qp(net, peer, peer_cq);
        for (guest, own, other_guest, other) in
            [(&*writer, &here, &*peer, &there), (&*peer, &there, &*writer, &here)]
        {
            let other_paths = (1..self.paths).map(|path| UnderlayPath {
                local: guest.addresses[path],
                remote: other_guest.addresses[path],
                udp_source_port: 0xc100 + path as u16,
            });
            let other_paths = other_paths.collect();
            let connection = Connection { other_paths, ..guest.connection(own, other, options) };
            guest.to_rtr_by(net, own, connection, options);
        }
        writer.to_rts(net, &here, options);
        peer.to_rts(net, &there, options);
        assert_eq!(chunks.paths() as usize, self.paths, "all paths are used");
        self.splitter.connect(chunks.paths());
        self.chunks = Some(chunks);
        (here, there)
    }

    fn qp(&self, net: &mut Net, guest: &mut Guest, cq: &TestCq) -> (TestQp, ChunkRing<Mapping>) {
        let gpa = guest.alloc(Self::pages());
        let ring = guest.pages(gpa, Self::pages());
        // Numbers of its own, for all members.
        let numbers = self.paths.next_power_of_two() as u32;
        let number = 0x4000 * (guest.id.0 + 1) + numbers * guest.handle();
        let several = |init: &mut QpInit| {
            let chunks = WorkQueueAttr { entries: CHUNKS, stride_shift: STRIDE_SHIFT, max_sge: 26, ring };
            init.group = Some(GroupAttr { members: self.paths as u8, chunks });
            (init.qpn, init.wire_qpn) = (Qpn::new(number).unwrap(), WireQpn::new(number).unwrap());
            init.max_inline_bytes = 16;
        };
        let qp = guest.qp_with(net, cq, cq, several);
        let chunks = guest.mapping(gpa, Self::pages());
        (qp, ChunkRing::new(chunks, CHUNKS, STRIDE_SHIFT).unwrap())
    }

    /// Posts a write of `len` bytes from the start of a region in parts, if it is large. Nothing is under way that it would have to wait for.
    pub fn post(&mut self, qp: &mut TestQp, whole: &SendRequest, from: &Mr, len: usize) -> bool {
        let Some(chunks) = &mut self.chunks else { return false };
        if !self.splitter.is_large(len as u64) {
            return false;
        }
        let message = Message {
            kind: Kind::Write,
            bytes: len as u32,
            remote: Place { key: whole.rkey, addr: whole.remote_addr },
            local: Some(Place { key: from.key, addr: from.gpa }),
            fence: false,
        };
        let progress = Progress {
            spine_next: qp.sq.producer(),
            spine_done: qp.sq.consumer(),
            spine_free: qp.sq.free(),
            chunks_done: chunks.done(),
            chunks_kept: 0,
            messages: 0,
        };
        let split = self.splitter.split(&message, progress).expect("the rings have room");
        let part = |offset: u32| SendRequest { remote_addr: whole.remote_addr + u64::from(offset), ..*whole };
        let (until, tail) = (split.wait(), split.tail());
        for chunk in split {
            assert_eq!((chunk.after_chunk, chunk.after_spine), (None, None), "one message at a time");
            let part = SendRequest { flags: 0, ..part(chunk.offset) };
            chunks.post(&part, &[sge(from, chunk.offset.into(), chunk.bytes)]).unwrap();
        }
        chunks.publish();
        let wait =
            SendRequest { opcode: SEND_OP_WAIT, wr_id: whole.wr_id, rkey: until, ..SendRequest::default() };
        qp.sq.post(&wait, &[]).unwrap();
        qp.sq.post(&part(tail.offset), &[sge(from, tail.offset.into(), tail.bytes)]).unwrap();
        true
    }
}
