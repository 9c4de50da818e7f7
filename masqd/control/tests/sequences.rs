//! Random sequences of commands: handles stay unique, nothing is used twice, nothing is left behind.

mod common;

use std::collections::BTreeSet;

use common::*;
use masq_control::{Directory, Outcome};
use masq_driver::DriverError;
use masq_policy::conntrack::Touched;
use masq_policy::quota::Resource;
use proptest::prelude::*;
use vrdma_abi::control::*;

#[derive(Clone, Debug)]
enum Step {
    Context(u32),
    Pd(u32, u32),
    Mr(u32, u32),
    Cq(u32, u32),
    /// A shared receive queue, perhaps for XRC.
    Srq(u32, u32, bool),
    Mw(u32, u32),
    Xrcd(u32),
    Rereg {
        mr: u32,
        pd: u32,
        translate: bool,
    },
    Resize(u32, bool),
    /// Of another kind than RC, or with a shared receive queue.
    OtherQp {
        qp: u32,
        parent: u32,
        kind: usize,
    },
    Qp {
        qp: u32,
        pd: u32,
        send_cq: u32,
        recv_cq: u32,
    },
    Modify {
        qp: u32,
        state: u8,
        to: usize,
    },
    Query(u32),
    Destroy {
        opcode: u16,
        handle: u32,
    },
    /// The same request again.
    Replay(usize),
    DelGid(u32),
    AddGid(u32),
    Break(u32),
    /// The RNIC fails the next command.
    Fail,
    Reevaluate(bool),
    Reset,
}

fn handle() -> impl Strategy<Value = u32> {
    0u32..4
}

fn step() -> impl Strategy<Value = Step> {
    let destroys = [
        OP_DESTROY_CONTEXT,
        OP_DESTROY_PD,
        OP_DESTROY_MR,
        OP_DESTROY_CQ,
        OP_DESTROY_QP,
        OP_DESTROY_QP,
        OP_DESTROY_SRQ,
        OP_DESTROY_MW,
        OP_DESTROY_XRCD,
    ];
    prop_oneof![
        3 => handle().prop_map(Step::Context),
        4 => (handle(), handle()).prop_map(|(a, b)| Step::Pd(a, b)),
        3 => (handle(), handle()).prop_map(|(a, b)| Step::Mr(a, b)),
        4 => (handle(), handle()).prop_map(|(a, b)| Step::Cq(a, b)),
        8 => (handle(), handle(), handle(), handle())
            .prop_map(|(qp, pd, send_cq, recv_cq)| Step::Qp { qp, pd, send_cq, recv_cq }),
        4 => (handle(), handle(), any::<bool>()).prop_map(|(a, b, xrc)| Step::Srq(a, b, xrc)),
        3 => (handle(), handle()).prop_map(|(a, b)| Step::Mw(a, b)),
        3 => handle().prop_map(Step::Xrcd),
        3 => (handle(), handle(), any::<bool>()).prop_map(|(mr, pd, translate)| Step::Rereg { mr, pd, translate }),
        3 => (handle(), any::<bool>()).prop_map(|(cq, larger)| Step::Resize(cq, larger)),
        8 => (handle(), handle(), 0usize..6).prop_map(|(qp, parent, kind)| Step::OtherQp { qp, parent, kind }),
        16 => (handle(), 0u8..8, 0usize..5).prop_map(|(qp, state, to)| Step::Modify { qp, state, to }),
        2 => handle().prop_map(Step::Query),
        6 => (prop::sample::select(destroys.to_vec()), handle())
            .prop_map(|(opcode, handle)| Step::Destroy { opcode, handle }),
        4 => any::<prop::sample::Index>().prop_map(|i| Step::Replay(i.index(1 << 16))),
        1 => (0u32..17).prop_map(Step::DelGid),
        2 => (0u32..17).prop_map(Step::AddGid),
        1 => handle().prop_map(Step::Break),
        1 => Just(Step::Fail),
        1 => any::<bool>().prop_map(Step::Reevaluate),
        1 => Just(Step::Reset),
    ]
}

/// A guest and what it has sent.
struct Run {
    guest: Guest,
    sent: Vec<Vec<u8>>,
}

impl Run {
    fn send<T: zerocopy::IntoBytes + zerocopy::Immutable>(&mut self, opcode: u16, body: &T) {
        let bytes = self.guest.bytes(opcode, body);
        self.request(bytes);
    }

    fn request(&mut self, bytes: Vec<u8>) {
        if let Outcome::Pending(ticket) = self.guest.raw(&bytes) {
            self.guest.resolve(ticket).unwrap().unwrap_err();
        }
        self.sent.push(bytes);
    }

    fn step(&mut self, step: &Step) {
        let g = &mut self.guest;
        match *step {
            Step::Context(ctx) => {
                let doorbells = g.memory.list(8);
                // Context 3 is the kernel's.
                let flags = if ctx == 3 { CONTEXT_KERNEL } else { 0 };
                self.send(OP_CREATE_CONTEXT, &CreateContext { ctx, flags, doorbells });
            }
            Step::Pd(pd, ctx) => self.send(OP_CREATE_PD, &CreatePd { pd, ctx }),
            Step::Mr(mr, pd) => {
                let r = g.mr_request(mr, pd);
                self.send(OP_CREATE_MR, &r);
            }
            Step::Cq(cq, ctx) => {
                let r = g.cq_request(cq, ctx);
                self.send(OP_CREATE_CQ, &r);
            }
            Step::Srq(srq, parent, xrc) => {
                let r = g.srq_request(srq, parent);
                let r = match xrc {
                    true => CreateSrq { srq_type: SRQ_TYPE_XRC, cq: parent, xrcd: parent, ..r },
                    false => r,
                };
                self.send(OP_CREATE_SRQ, &r);
            }
            Step::Mw(mw, pd) => {
                self.send(OP_CREATE_MW, &CreateMw { mw, pd, mw_type: MW_TYPE_1, reserved: [0; 7] });
            }
            Step::Xrcd(xrcd) => self.send(OP_CREATE_XRCD, &CreateXrcd { xrcd, reserved: 0 }),
            Step::Rereg { mr, pd, translate } => {
                let flags = if translate { REREG_TRANSLATION | REREG_PD } else { REREG_PD };
                let pages = g.memory.list(1);
                let r = ReregMr { mr, flags, pd, length: 4096, pages, ..ReregMr::ZERO };
                self.send(OP_REREG_MR, &r);
            }
            Step::Resize(cq, larger) => {
                let (entries, pages) = if larger { (128, 3) } else { (32, 1) };
                let ring = g.memory.list(pages);
                self.send(OP_RESIZE_CQ, &ResizeCq { cq, entries, ring });
            }
            Step::OtherQp { qp, parent, kind } => {
                let r = g.qp_request(qp, parent, parent, parent);
                let (rq_entries, rq) = (0, PageTable::ZERO);
                let r = match kind {
                    0 => CreateQp { srq: parent, rq_entries, rq, ..r },
                    1 => CreateQp { qp_type: QP_TYPE_UC, ..r },
                    2 => CreateQp { qp_type: QP_TYPE_UD, sq_stride_shift: 7, sq: g.memory.list(3), ..r },
                    3 => CreateQp { qp_type: QP_TYPE_GSI, sq_stride_shift: 7, sq: g.memory.list(3), ..r },
                    4 => CreateQp {
                        qp_type: QP_TYPE_XRC_INI,
                        recv_cq: HANDLE_NONE,
                        rq_entries,
                        rq,
                        sq_stride_shift: 7,
                        sq: g.memory.list(3),
                        ..r
                    },
                    _ => g.target_request(qp, parent),
                };
                self.send(OP_CREATE_QP, &r);
            }
            Step::Qp { qp, pd, send_cq, recv_cq } => {
                let r = g.qp_request(qp, pd, send_cq, recv_cq);
                self.send(OP_CREATE_QP, &r);
            }
            Step::Modify { qp, state, to } => {
                let (address, peer) = [
                    ("192.168.0.2", "blue-2"),
                    ("192.168.0.1", "blue-1"),
                    ("192.168.9.9", "blue-9"),
                    ("192.168.0.3", "red-3"),
                    ("192.168.0.2", "red-3"),
                ][to];
                let rtr = g.rtr_attr(gid(address), g.qpn_of(peer));
                let (mask, attr) = match state {
                    QP_STATE_INIT => (INIT_MASK, init_attr()),
                    QP_STATE_RTR => (RTR_MASK, rtr),
                    QP_STATE_RTS => (RTS_MASK, rts_attr()),
                    _ => (QP_ATTR_STATE, QpAttr { state, ..QpAttr::ZERO }),
                };
                self.send(OP_MODIFY_QP, &ModifyQp { qp, mask, attr });
            }
            Step::Query(qp) => self.send(OP_QUERY_QP, &Destroy { handle: qp, reserved: 0 }),
            Step::Destroy { opcode, handle } => self.send(opcode, &Destroy { handle, reserved: 0 }),
            Step::Replay(i) if !self.sent.is_empty() => {
                let bytes = self.sent[i % self.sent.len()].clone();
                self.request(bytes);
            }
            Step::Replay(_) => {}
            Step::DelGid(index) => self.send(OP_DEL_GID, &DelGid { index, reserved: 0 }),
            Step::AddGid(index) => {
                let gid = gid("192.168.0.1").0;
                self.send(OP_ADD_GID, &AddGid { index, reserved: 0, gid });
            }
            Step::Break(qp) => {
                if g.session.usage().used(Resource::Qps) > 0 {
                    g.rnic.try_break_qp(qp);
                }
            }
            Step::Fail => g.rnic.fail(DriverError::Exhausted("one more".into())),
            Step::Reevaluate(known) => {
                let nothing = Directory::new();
                let directory = if known { &g.directory } else { &nothing };
                g.session.reevaluate(directory, &g.rnic, &Touched::everything());
            }
            Step::Reset => {
                g.rnic.forgive();
                let report = g.session.reset(&g.rnic);
                assert!(report.failures.is_empty(), "{report:?}");
                assert_eq!(g.rnic.held(), 0);
                g.begin();
            }
        }
        self.check();
    }

    /// What holds at any time.
    fn check(&self) {
        let g = &self.guest;
        use Resource::*;
        let counted: u64 =
            [Contexts, Mrs, Mws, Cqs, Srqs, Qps].into_iter().map(|r| g.session.usage().used(r)).sum();
        assert_eq!(g.rnic.held() as u64, counted + 1, "session and RNIC have the same objects");
        let qpns = g.rnic.wire_qpns();
        assert_eq!(qpns.iter().collect::<BTreeSet<_>>().len(), qpns.len());
        assert!(qpns.iter().all(|q| g.session.identity().qpn_blocks[0].contains(*q)));
        for (qp, c) in g.session.connections() {
            let (vni, identity) = (c.vni, g.session.identity());
            assert_eq!(vni, identity.vni);
            assert!(g.directory.evaluate(vni, &identity.vnic, c.transport, c.local, c.remote).is_allowed());
            let owner = g.directory.endpoint(&c.peer).unwrap();
            assert!(owner.vni == vni && owner.qpn_blocks.iter().any(|b| b.contains(c.remote_qpn)));
            g.rnic.qp(qp.0, |q| assert_eq!(q.init.wire_qpn, c.local_qpn));
        }
        for resource in Resource::ALL {
            assert!(g.session.usage().used(resource) <= quotas().get(resource));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 96, failure_persistence: None, rng_seed: prop::test_runner::RngSeed::Fixed(0x6d61_7371),
        ..ProptestConfig::default()
    })]

    #[test]
    fn any_order_of_commands_keeps_the_books_and_leaves_nothing(steps in prop::collection::vec(step(), 1..120)) {
        let mut run = Run { guest: Guest::ready("blue-1"), sent: Vec::new() };
        for step in &steps {
            run.step(step);
        }
        let mut g = run.guest;
        g.rnic.forgive();
        let report = g.session.reset(&g.rnic);
        prop_assert!(report.failures.is_empty(), "{:?}", report);
        prop_assert_eq!(g.rnic.held(), 0);
        prop_assert_eq!(g.session.connections().count(), 0);
        for resource in Resource::ALL {
            prop_assert_eq!(g.session.usage().used(resource), 0);
        }
    }

    #[test]
    fn destroying_everything_in_any_order_gives_everything_back(
        order in Just((1u32..=3).flat_map(|h| {
            [OP_DESTROY_CONTEXT, OP_DESTROY_PD, OP_DESTROY_MR, OP_DESTROY_CQ, OP_DESTROY_QP].map(|o| (o, h))
        }).collect::<Vec<_>>()).prop_shuffle()
    ) {
        let mut g = Guest::ready("blue-1");
        for i in 1..=3 {
            g.context(i).unwrap();
            g.pd(i, i).unwrap();
            g.cq(i, i).unwrap();
            g.mr(i, i).unwrap();
            g.qp(i, i, i).unwrap();
        }
        // What is in use at first is not any more later.
        let mut left = order;
        while !left.is_empty() {
            let before = left.len();
            left.retain(|(opcode, handle)| g.destroy(*opcode, *handle).is_err());
            prop_assert!(left.len() < before);
        }
        prop_assert_eq!(g.rnic.held(), 1);
        for resource in Resource::ALL {
            prop_assert_eq!(g.session.usage().used(resource), 0);
        }
    }
}
