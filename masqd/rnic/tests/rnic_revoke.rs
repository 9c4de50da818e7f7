//! What a revoked queue pair still does: it flushes, and nothing else.

mod common;

use std::collections::BTreeMap;

use common::*;
use masq_driver::*;
use masq_rnic::RnicConfig;
use masq_rnic::transport::Time;
use masq_types::Mtu;
use vrdma_abi::ring::*;

const MR: u64 = 2 << 20;
const MESSAGE: u32 = 1 << 20;

struct Two {
    net: Net,
    a: Guest,
    b: Guest,
    a_cq: TestCq,
    b_cq: TestCq,
    a_qp: TestQp,
    b_qp: TestQp,
    a_mr: Mr,
    b_mr: Mr,
}

/// Small packets, so that a message takes hundreds, and a peer that is soon given up.
fn two(remote: bool) -> Two {
    let configs = [RnicConfig::default(), RnicConfig::default()];
    let mut net = Net::new(if remote { &configs } else { &configs[..1] });
    let mut a = Guest::attach(&mut net, 0, 1, 100, &fresh_address(), 8 << 20);
    let mut b = Guest::attach(&mut net, usize::from(remote), 2, 100, &fresh_address(), 8 << 20);
    let (a_cq, b_cq) = (a.cq(&mut net, 512), b.cq(&mut net, 512));
    let (a_qp, b_qp) = (a.qp(&mut net, &a_cq, &a_cq), b.qp(&mut net, &b_cq, &b_cq));
    let (a_mr, b_mr) = (a.mr(&mut net, MR, all_access()), b.mr(&mut net, MR, all_access()));
    a.write(a_mr.gpa, &vec![0xaa; MR as usize]);
    b.write(b_mr.gpa, &vec![0xbb; MR as usize]);
    let options = Options { mtu: Mtu::B1024, timeout: 1, retry_cnt: 1, ..Options::default() };
    connect(&mut net, (&a, &a_qp), (&b, &b_qp), &options);
    Two { net, a, b, a_cq, b_cq, a_qp, b_qp, a_mr, b_mr }
}

impl Two {
    /// Four messages on their way to or from the start of B's region, of each of which nothing but the first is begun
    /// when some of that has arrived.
    fn begin(&mut self, opcode: u8) {
        for wr_id in 0..4 {
            let r = to(&self.b_mr, 0, request(opcode, wr_id));
            self.a.post(&mut self.a_qp, &r, &[sge(&self.a_mr, 0, MESSAGE)]);
            self.b.post_recv(&mut self.b_qp, 100 + wr_id, &[sge(&self.b_mr, 0, MESSAGE)]);
        }
        let changed = match opcode {
            SEND_OP_RDMA_READ => (self.a_mr.gpa, 0xaa, true),
            _ => (self.b_mr.gpa, 0xbb, false),
        };
        for _ in 0..200 {
            self.net.now += 1000;
            let now = Time::from_nanos(self.net.now);
            for engine in &mut self.net.engines {
                engine.turn(now);
            }
            let guest = if changed.2 { &self.a } else { &self.b };
            let bytes = guest.read(changed.0, MESSAGE as usize);
            if bytes[0] != changed.1 {
                assert_eq!(bytes[MESSAGE as usize - 1], changed.1, "it was copied whole in one turn");
                return;
            }
        }
        panic!("nothing arrives");
    }

    fn revoke(&mut self, b_side: bool) {
        let (guest, qp) = if b_side { (&self.b, &self.b_qp) } else { (&self.a, &self.a_qp) };
        self.net.execute(guest.engine, Command::RevokeQp { vnic: guest.id, qp: qp.handle }).unwrap();
        assert_eq!(guest.state(&mut self.net, qp), QpState::Err);
    }

    fn memory(&self) -> (Vec<u8>, Vec<u8>) {
        (self.a.read(self.a_mr.gpa, MR as usize), self.b.read(self.b_mr.gpa, MR as usize))
    }

    /// The completions of both sides so far, by request: how often, and with which status.
    fn completions(&mut self) -> [BTreeMap<(bool, u64), Vec<u8>>; 2] {
        [&mut self.a_cq, &mut self.b_cq].map(|cq| {
            let mut all = BTreeMap::<_, Vec<u8>>::new();
            while let Some(c) = cq.ring.poll() {
                all.entry((c.flags & CQE_RECV != 0, c.wr_id)).or_default().push(c.status);
            }
            cq.ring.publish();
            all
        })
    }
}

fn statuses(from: u64, status: &[u8], recv: bool) -> BTreeMap<(bool, u64), Vec<u8>> {
    status.iter().zip(from..).map(|(s, id)| ((recv, id), vec![*s])).collect()
}

const FLUSHED: u8 = WC_WR_FLUSH_ERR;

/// The responder: not one byte more gets into its guest's memory; the initiator, which goes on sending, finds nobody.
#[test]
fn a_revoked_responder_takes_nothing_more() {
    for remote in [false, true] {
        for opcode in [SEND_OP_RDMA_WRITE, SEND_OP_SEND, SEND_OP_RDMA_WRITE_IMM] {
            let mut t = two(remote);
            t.begin(opcode);
            t.revoke(true);
            let (_, b_memory) = t.memory();
            t.net.run(2000);
            assert!(t.memory().1 == b_memory, "remote {remote}, opcode {opcode}");
            let [a, b] = t.completions();
            assert_eq!(a, statuses(0, &[WC_RETRY_EXC_ERR, FLUSHED, FLUSHED, FLUSHED], false));
            assert_eq!(b, statuses(100, &[FLUSHED; 4], true));
            assert_eq!(t.a.state(&mut t.net, &t.a_qp), QpState::Err);
        }
    }
}

/// The initiator of READs: answers that are on their way bring nothing more.
#[test]
fn a_revoked_reader_gets_nothing_more() {
    for remote in [false, true] {
        let mut t = two(remote);
        t.begin(SEND_OP_RDMA_READ);
        t.revoke(false);
        let memory = t.memory();
        t.net.run(2000);
        assert!(t.memory() == memory, "remote {remote}");
        let [a, b] = t.completions();
        assert_eq!(a, statuses(0, &[FLUSHED; 4], false));
        assert!(b.is_empty(), "the peer is not told: {b:?}");
        assert_eq!(t.b.state(&mut t.net, &t.b_qp), QpState::Rts);
    }
}

/// The initiator of writes: on one host the copy stops at once; nothing that is sent later leaves.
#[test]
fn a_revoked_writer_sends_nothing_more() {
    for remote in [false, true] {
        for opcode in [SEND_OP_RDMA_WRITE, SEND_OP_SEND] {
            let mut t = two(remote);
            t.begin(opcode);
            t.revoke(false);
            let memory = t.memory();
            let sent = t.net.counter(0, "sent_pkts");
            t.net.run(50);
            assert!(remote || t.memory() == memory);
            assert_eq!(t.net.counter(0, "sent_pkts"), sent);
            assert_eq!(t.completions()[0], statuses(0, &[FLUSHED; 4], false));
        }
    }
}

/// Who answers READs: no more of its memory leaves.
#[test]
fn a_revoked_responder_answers_no_read() {
    for remote in [false, true] {
        let mut t = two(remote);
        t.begin(SEND_OP_RDMA_READ);
        t.revoke(true);
        let memory = t.memory();
        let sent = t.net.counter(usize::from(remote), "sent_pkts");
        t.net.run(2000);
        assert!(remote || t.memory() == memory);
        assert_eq!(t.net.counter(usize::from(remote), "sent_pkts"), if remote { sent } else { 0 });
        let [a, b] = t.completions();
        assert_eq!(a, statuses(0, &[WC_RETRY_EXC_ERR, FLUSHED, FLUSHED, FLUSHED], false));
        assert_eq!(b, statuses(100, &[FLUSHED; 4], true));
    }
}

/// Whatever is posted afterwards is flushed, each request once, and touches nobody.
#[test]
fn posting_to_a_revoked_queue_pair_brings_flushes_only() {
    for remote in [false, true] {
        let mut t = two(remote);
        t.begin(SEND_OP_RDMA_WRITE);
        t.revoke(false);
        t.net.run(5);
        t.completions();
        let mut consumed = 0;
        let memory = t.memory();
        for round in 0..10u64 {
            let ids = 1000 + round * 32;
            for wr_id in ids..ids + 32 {
                // The ring has room again for what the completions have named.
                t.a_qp.sq.complete(4 + consumed);
                consumed += 1;
                let opcode = [SEND_OP_RDMA_WRITE, SEND_OP_SEND, SEND_OP_RDMA_READ][wr_id as usize % 3];
                let r = to(&t.b_mr, 0, request(opcode, wr_id));
                t.a.post(&mut t.a_qp, &r, &[sge(&t.a_mr, 0, 64)]);
            }
            t.net.run(10);
            assert_eq!(t.completions()[0], statuses(ids, &[FLUSHED; 32], false), "round {round}");
        }
        assert!(t.memory() == memory);
    }
}
