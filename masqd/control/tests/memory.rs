//! Regions that change, windows, and what only the guest's kernel may have.

mod common;

use common::*;
use masq_control::Errno;
use masq_driver::{DriverError, MrKind, PdHandle};
use masq_policy::quota::Resource;
use vrdma_abi::control::*;
use zerocopy::FromBytes;

const EINVAL: (Errno, &str) = (Errno::EINVAL, "malformed");
const ENOENT: (Errno, &str) = (Errno::ENOENT, "no_such_object");

fn ready() -> Guest {
    let mut g = Guest::ready("blue-1");
    g.base();
    g
}

#[test]
fn a_region_is_changed_as_a_whole_or_not_at_all() {
    let mut g = ready();
    let keys = g.mr(1, 1).unwrap();
    g.pd(2, 1).unwrap();
    let pages = g.memory.list(1);
    let all = REREG_TRANSLATION | REREG_PD | REREG_ACCESS;
    let access = ACCESS_LOCAL_WRITE | ACCESS_REMOTE_WRITE | ACCESS_MW_BIND;
    let r = ReregMr { mr: 1, flags: all, pd: 2, access, iova: 0x5000, length: 0x800, pages };
    assert_eq!(g.send(OP_REREG_MR, &r).unwrap(), keys, "the keys stay");
    g.rnic.mr(1, |m| {
        assert!(m.access.remote_write && m.access.mw_bind && !m.access.remote_read && m.pd == PdHandle(2));
        assert!(matches!(m.kind, MrKind::Pages { iova: 0x5000, length: 0x800, .. }));
    });
    assert_eq!(g.used(Resource::ListedPages), 8 + 2 + 1, "context, completion queue, region");
    g.destroy(OP_DESTROY_PD, 1).unwrap();
    assert_eq!(refused(g.destroy(OP_DESTROY_PD, 2)), (Errno::EBUSY, "busy"));
    for (what, r) in [
        ("nothing", ReregMr { flags: 0, ..r }),
        ("a page too few", ReregMr { length: 0x1001, ..r }),
        ("too long", ReregMr { length: u64::MAX, ..r }),
        ("remote writes alone", ReregMr { access: ACCESS_REMOTE_WRITE, ..r }),
    ] {
        assert_eq!(refused(g.send(OP_REREG_MR, &r)), EINVAL, "{what}");
    }
    assert_eq!(refused(g.send(OP_REREG_MR, &ReregMr { flags: 8, ..r })).1, "unsupported");
    assert_eq!(refused(g.send(OP_REREG_MR, &ReregMr { mr: 9, ..r })), ENOENT);
    assert_eq!(refused(g.send(OP_REREG_MR, &ReregMr { pd: 9, ..r })), ENOENT);
    g.context(2).unwrap();
    g.pd(3, 2).unwrap();
    assert_eq!(refused(g.send(OP_REREG_MR, &ReregMr { pd: 3, ..r })).1, "foreign_context");
    let usage = g.session.usage().clone();
    g.rnic.fail(DriverError::Busy("it".into()));
    assert_eq!(refused(g.send(OP_REREG_MR, &r)), (Errno::EBUSY, "rnic"));
    assert_eq!(*g.session.usage(), usage);
    // What is not given does not matter.
    let one = ReregMr { flags: REREG_ACCESS, pd: 99, access: 0, length: u64::MAX, ..r };
    g.send(OP_REREG_MR, &one).unwrap();
    g.rnic.mr(1, |m| assert!(m.pd == PdHandle(2) && !m.access.local_write));
    g.destroy(OP_DESTROY_MR, 1).unwrap();
    g.destroy(OP_DESTROY_PD, 2).unwrap();
}

#[test]
fn windows_have_a_key_and_a_domain() {
    let mut g = ready();
    let r = CreateMw { mw: 1, pd: 1, mw_type: MW_TYPE_1, reserved: [0; 7] };
    let reply = g.send(OP_CREATE_MW, &r).unwrap();
    assert_eq!(g.send(OP_CREATE_MW, &r).unwrap(), reply, "a replay");
    assert_ne!(CreateMwReply::read_from_bytes(&reply).unwrap().rkey, 0);
    let two = CreateMw { mw_type: MW_TYPE_2, ..r };
    assert_eq!(refused(g.send(OP_CREATE_MW, &two)), (Errno::EEXIST, "exists"));
    assert_eq!(refused(g.send(OP_CREATE_MW, &CreateMw { mw: 2, mw_type: 3, ..r })), EINVAL);
    assert_eq!(refused(g.send(OP_CREATE_MW, &CreateMw { mw: 2, reserved: [1; 7], ..r })), EINVAL);
    assert_eq!(refused(g.send(OP_CREATE_MW, &CreateMw { mw: 2, pd: 9, ..r })), ENOENT);
    assert_eq!(refused(g.destroy(OP_DESTROY_PD, 1)), (Errno::EBUSY, "busy"));
    (2..6).for_each(|mw| drop(g.mw(mw, 1).unwrap()));
    assert_eq!(refused(g.mw(6, 1)), (Errno::EDQUOT, "quota"));
    g.destroy(OP_DESTROY_MW, 1).unwrap();
    g.destroy(OP_DESTROY_MW, 1).unwrap();
    g.mw(6, 1).unwrap();
    g.destroy(OP_DESTROY_CONTEXT, 1).unwrap();
    assert!(Resource::ALL.iter().all(|r| g.used(*r) == 0));
}

#[test]
fn only_the_kernel_has_regions_of_all_memory_or_for_work_requests() {
    let mut g = ready();
    g.kernel();
    let base = CreateMr {
        mr: 1,
        pd: 7,
        access: ACCESS_LOCAL_WRITE,
        flags: MR_ALL_MEMORY,
        iova: 0,
        length: 0,
        pages: PageTable::ZERO,
    };
    let fast = CreateMr { flags: MR_FAST_REG, access: 0, length: 3 * 4096 - 1, ..base };
    for r in [base, fast] {
        assert_eq!(refused(g.send(OP_CREATE_MR, &CreateMr { pd: 1, ..r })), (Errno::EINVAL, "kernel_only"));
    }
    g.send(OP_CREATE_MR, &base).unwrap();
    g.rnic.mr(1, |m| assert!(matches!(m.kind, MrKind::AllMemory)));
    let listed = g.used(Resource::ListedPages);
    g.send(OP_CREATE_MR, &CreateMr { mr: 2, ..fast }).unwrap();
    g.rnic.mr(2, |m| assert!(matches!(m.kind, MrKind::FastReg { max_pages: 3 })));
    assert_eq!(g.used(Resource::ListedPages), listed + 3, "the host keeps room for them");
    for (what, r) in [
        ("both", CreateMr { flags: MR_ALL_MEMORY | MR_FAST_REG, ..base }),
        ("no pages", CreateMr { length: 0, ..fast }),
        ("too many pages", CreateMr { length: 512 * 4096 + 1, ..fast }),
        ("pages of all memory", CreateMr { pages: g.memory.list(1), ..base }),
        ("pages already", CreateMr { pages: g.memory.list(3), ..fast }),
        ("an address already", CreateMr { iova: 4096, ..fast }),
    ] {
        assert_eq!(refused(g.send(OP_CREATE_MR, &CreateMr { mr: 3, ..r })), EINVAL, "{what}");
    }
    let rereg = ReregMr { mr: 2, flags: REREG_ACCESS, ..ReregMr::ZERO };
    assert_eq!(refused(g.send(OP_REREG_MR, &rereg)), EINVAL, "work requests change it");
    g.destroy(OP_DESTROY_CONTEXT, 7).unwrap();
    assert_eq!(g.used(Resource::Mrs), 0);
}
