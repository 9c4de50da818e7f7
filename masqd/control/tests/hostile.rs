//! A guest that sends anything: no panic, no unbounded memory, nothing wrong reaches the RNIC (which checks that).

mod common;

use common::*;
use masq_control::Outcome;
use masq_policy::quota::Resource;
use proptest::prelude::*;
use vrdma_abi::control::*;
use zerocopy::{FromBytes, IntoBytes};

/// Sizes of all command structures.
const SIZES: [usize; 16] = [
    DeviceInit::SIZE,
    AddGid::SIZE,
    DelGid::SIZE,
    Destroy::SIZE,
    CreateContext::SIZE,
    CreatePd::SIZE,
    CreateMr::SIZE,
    CreateCq::SIZE,
    CreateQp::SIZE,
    ModifyQp::SIZE,
    ReregMr::SIZE,
    ResizeCq::SIZE,
    CreateSrq::SIZE,
    ModifySrq::SIZE,
    CreateMw::SIZE,
    CreateXrcd::SIZE,
];

fn ready() -> Guest {
    let mut g = Guest::ready("blue-1");
    g.base();
    g.mr(1, 1).unwrap();
    g.qp_in_init(1);
    g
}

/// Sends bytes and finishes what waits; the answer always has a head.
fn send(g: &mut Guest, bytes: &[u8]) {
    let reply = match g.raw(bytes) {
        Outcome::Reply(reply) => reply,
        Outcome::Pending(ticket) => return drop(g.resolve(ticket).unwrap()),
    };
    let (head, _) = Reply::read_from_prefix(&reply.bytes).unwrap();
    assert_eq!(head.status != 0, reply.refusal.is_some());
}

/// A request that is well-formed up to a few bytes that are not.
fn spoilt(g: &mut Guest, kind: usize, damage: &[(usize, u8)]) -> Vec<u8> {
    let (mr, cq, qp) = (g.mr_request(2, 1), g.cq_request(2, 1), g.qp_request(2, 1, 1, 1));
    let doorbells = g.memory.list(8);
    let rtr = g.rtr_attr(gid("192.168.0.2"), g.qpn_of("blue-2"));
    let mut bytes = match kind {
        0 => g.bytes(OP_CREATE_CONTEXT, &CreateContext { ctx: 2, flags: 0, doorbells }),
        1 => g.bytes(OP_CREATE_PD, &CreatePd { pd: 2, ctx: 1 }),
        2 => g.bytes(OP_CREATE_MR, &mr),
        3 => g.bytes(OP_CREATE_CQ, &cq),
        4 => g.bytes(OP_CREATE_QP, &qp),
        5 => g.bytes(OP_MODIFY_QP, &ModifyQp { qp: 1, mask: RTR_MASK, attr: rtr }),
        6 => g.bytes(OP_MODIFY_QP, &ModifyQp { qp: 1, mask: INIT_MASK, attr: init_attr() }),
        7 => g.bytes(OP_ADD_GID, &AddGid { index: 3, reserved: 0, gid: gid("192.168.0.1").0 }),
        10 => {
            let pages = g.memory.list(1);
            let (flags, access) = (REREG_TRANSLATION | REREG_ACCESS, ACCESS_LOCAL_WRITE);
            let r = ReregMr { mr: 1, flags, access, length: 4096, pages, ..ReregMr::ZERO };
            g.bytes(OP_REREG_MR, &r)
        }
        11 => {
            let ring = g.memory.list(3);
            g.bytes(OP_RESIZE_CQ, &ResizeCq { cq: 1, entries: 128, ring })
        }
        12 => {
            let r = g.srq_request(2, 1);
            g.bytes(OP_CREATE_SRQ, &r)
        }
        13 => g.bytes(OP_MODIFY_SRQ, &ModifySrq { srq: 2, limit: 3 }),
        14 => g.bytes(OP_CREATE_MW, &CreateMw { mw: 2, pd: 1, mw_type: MW_TYPE_2, reserved: [0; 7] }),
        15 => g.bytes(OP_CREATE_XRCD, &CreateXrcd { xrcd: 2, reserved: 0 }),
        16 => {
            let r = CreateQp { srq: 2, rq_entries: 0, rq: PageTable::ZERO, ..g.qp_request(3, 1, 1, 1) };
            g.bytes(OP_CREATE_QP, &r)
        }
        17 => {
            let r = g.target_request(4, 2);
            g.bytes(OP_CREATE_QP, &r)
        }
        8 => g.bytes(OP_DESTROY_CONTEXT, &Destroy { handle: 1, reserved: 0 }),
        _ => g.bytes(OP_QUERY_QP, &Destroy { handle: 1, reserved: 0 }),
    };
    for (at, value) in damage {
        let at = at % bytes.len();
        bytes[at] = *value;
    }
    bytes
}

fn config() -> ProptestConfig {
    ProptestConfig {
        cases: 80,
        failure_persistence: None,
        rng_seed: prop::test_runner::RngSeed::Fixed(0x766d),
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn random_bytes_are_answered(requests in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 1..20)) {
        let mut g = ready();
        for bytes in &requests {
            send(&mut g, bytes);
        }
    }

    #[test]
    fn random_structures_of_known_commands_are_answered(
        requests in prop::collection::vec((0u16..40, prop::collection::vec(any::<u8>(), 200)), 1..20)
    ) {
        let mut g = ready();
        for (opcode, body) in &requests {
            // Exactly as long as the command is, so that its checks and not its length decide.
            for len in SIZES {
                let head = Request { opcode: *opcode, flags: 0, tag: 1, epoch: EPOCH };
                send(&mut g, &[head.as_bytes(), &body[..len]].concat());
            }
        }
    }

    #[test]
    fn almost_right_requests_do_no_harm(
        requests in prop::collection::vec(
            (0usize..18, prop::collection::vec((any::<usize>(), prop_oneof![any::<u8>(), Just(0), Just(255), Just(1)]), 0..4)),
            1..40,
        ),
        changing: bool,
    ) {
        let mut g = ready();
        g.memory.changing.set(changing);
        for (kind, damage) in &requests {
            let bytes = spoilt(&mut g, *kind, damage);
            send(&mut g, &bytes);
            for resource in Resource::ALL {
                prop_assert!(g.session.usage().used(resource) <= quotas().get(resource));
            }
        }
        g.session.reset(&g.rnic);
        prop_assert_eq!(g.rnic.held(), 0);
    }

    #[test]
    fn garbage_in_page_tables_is_refused_or_harmless(
        words in prop::collection::vec(prop_oneof![any::<u64>(), (0u64..4).prop_map(|p| 0x10_0000 + p * 4096)], 512),
        levels in 0u8..5, count in prop_oneof![1u32..2000, any::<u32>()], shift in 10u8..32, changing: bool,
    ) {
        let mut g = ready();
        let top = g.memory.page(&words);
        g.memory.changing.set(changing);
        let pages = PageTable { addr: top, count, page_shift: shift, levels, reserved: 0 };
        let length = u64::from(count) << shift;
        let r = CreateMr { mr: 3, pd: 1, access: ACCESS_LOCAL_WRITE, flags: 0, iova: 0, length, pages };
        let bytes = g.bytes(OP_CREATE_MR, &r);
        send(&mut g, &bytes);
    }
}

#[test]
fn tables_that_change_while_they_are_read_are_read_once() {
    let mut g = ready();
    let pages: Vec<u64> = (0..600).map(|i| 0x4000_0000 + i * 4096).collect();
    let list = g.memory.list_of(&pages, 12);
    g.memory.changing.set(true);
    let r = CreateMr { iova: 0, length: 600 << 12, pages: list, ..g.mr_request(3, 1) };
    let before = g.memory.read.get();
    g.send(OP_CREATE_MR, &r).unwrap();
    assert_eq!(g.memory.read.get() - before, (2 + 600) * 8);
    g.rnic.mr(3, |m| {
        let masq_driver::MrKind::Pages { pages: read, .. } = &m.kind else { panic!("{m:?}") };
        assert_eq!(read.pages, pages, "what stood there at the reading");
    });
    let r = CreateMr { mr: 4, ..r };
    assert!(g.send(OP_CREATE_MR, &r).is_err(), "now there is garbage");
}
