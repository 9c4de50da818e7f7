use masq_driver::PageList;
use masq_types::Lkey;
use rand_chacha::rand_core::SeedableRng;

use super::*;
use crate::testing::guest_memory;
use crate::transport::Sge;

const PD: PdHandle = PdHandle(1);
const WHO: Accessor = Accessor { pd: Some(PD), qp: QpKey::for_test(0), kernel: false };

fn attr(mr: u32, iova: u64, length: u64, pages: &[u64]) -> MrAttr {
    MrAttr {
        mr: MrHandle(mr),
        pd: PD,
        access: Access { local_write: true, ..Access::default() },
        kind: MrKind::Pages { iova, length, pages: PageList { shift: 12, pages: pages.to_vec() } },
    }
}

fn setup() -> (GuestMemory, KeyTable, ChaCha20Rng) {
    (guest_memory(&[(0, 0x8000)]), KeyTable::default(), ChaCha20Rng::from_seed([7; 32]))
}

#[test]
fn keys_are_checked_for_everything() {
    let (_, mut keys, mut random) = setup();
    let key = keys.create_mr(attr(1, 0x1_0010, 0x1000, &[0x3000, 0x1000]), &mut random).unwrap();
    assert_eq!(key & 0xff, 0);
    let at = |pd, key, addr, len, need| {
        keys.resolve(Accessor { pd: Some(pd), ..WHO }, key, addr, len, need).map(|r| r.1)
    };
    assert_eq!(at(PD, key, 0x1_0010, 0x1000, Need::LocalWrite), Ok(0));
    assert_eq!(at(PD, key, 0x1_100f, 1, Need::LocalRead), Ok(0xfff));
    assert_eq!(at(PD, key, 0x1_000f, 1, Need::LocalRead), Err(MemoryFault::OutOfRange));
    assert_eq!(at(PD, key, 0x1_1010, 1, Need::LocalRead), Err(MemoryFault::OutOfRange));
    assert_eq!(at(PD, key, 0x1_0011, u64::MAX, Need::LocalRead), Err(MemoryFault::OutOfRange));
    assert_eq!(at(PD, key ^ 1, 0x1_0010, 1, Need::LocalRead), Err(MemoryFault::UnknownKey));
    assert_eq!(at(PdHandle(2), key, 0x1_0010, 1, Need::LocalRead), Err(MemoryFault::ForeignDomain));
    for need in [Need::RemoteRead, Need::RemoteWrite, Need::RemoteAtomic] {
        assert_eq!(at(PD, key, 0x1_0010, 1, need), Err(MemoryFault::NotPermitted));
    }
    keys.destroy_mr(MrHandle(1)).unwrap();
    assert!(matches!(keys.resolve(WHO, key, 0x1_0010, 1, Need::LocalRead), Err(MemoryFault::UnknownKey)));
}

#[test]
fn pages_must_fit() {
    let (_, mut keys, mut random) = setup();
    let mut create = |a| keys.create_mr(a, &mut random);
    assert!(matches!(create(attr(1, 0, 0x1001, &[0])), Err(DriverError::Invalid(_))));
    assert!(matches!(create(attr(1, 0, 0x1000, &[0, 0x1000])), Err(DriverError::Invalid(_))));
    assert!(matches!(create(attr(1, u64::MAX, 2, &[0])), Err(DriverError::Invalid(_))));
    let mut odd = attr(1, 0, 0x1000, &[0]);
    if let MrKind::Pages { pages, .. } = &mut odd.kind {
        pages.shift = 64;
    }
    assert!(matches!(create(odd), Err(DriverError::Invalid(_))));
    assert!(create(attr(1, 0, 0, &[])).is_ok());
    assert!(create(attr(2, 0x10, 0, &[])).is_ok());
    assert!(create(attr(3, 0, 0, &[0x1000])).is_ok());
    assert!(matches!(create(attr(4, 0, 0, &[0x1000, 0x2000])), Err(DriverError::Invalid(_))));
    assert!(matches!(create(attr(1, 0, 0, &[])), Err(DriverError::Exists(_))));
}

#[test]
fn contiguous_pages_become_one_span() {
    let (memory, mut keys, mut random) = setup();
    let pages = [0x1000, 0x2000, 0x3000, 0x6000, 0x7000];
    let key = keys.create_mr(attr(1, 0x800, 0x4800, &pages), &mut random).unwrap();
    let (mr, offset) = keys.resolve(WHO, key, 0x800, 0x4800, Need::LocalRead).unwrap();
    let lens: Vec<usize> = mr.spans(&memory, offset, 0x4800).map(|s| s.unwrap().len()).collect();
    assert_eq!(lens, [0x2800, 0x2000]);
    let lens: Vec<usize> = mr.spans(&memory, 0x100, 0x3000).map(|s| s.unwrap().len()).collect();
    assert_eq!(lens, [0x2700, 0x900]);
    assert_eq!(mr.spans(&memory, 0, 0).count(), 0);
}

#[test]
fn memory_that_has_gone_is_an_error() {
    let (_, mut keys, mut random) = setup();
    let key = keys.create_mr(attr(1, 0, 0x2000, &[0x1000, 0x7000]), &mut random).unwrap();
    let smaller = guest_memory(&[(0, 0x2000)]);
    let (mr, _) = keys.resolve(WHO, key, 0, 0x2000, Need::LocalRead).unwrap();
    let seen: Vec<_> = mr.spans(&smaller, 0, 0x2000).map(|s| s.map(|s| s.len())).collect();
    assert_eq!(seen, [Ok(0x1000), Err(MemoryFault::Unavailable)]);
}

/// Wherever a page lies, at most its part that is guest memory is handed out.
#[test]
fn pages_outside_guest_memory_are_never_handed_out() {
    let (memory, mut keys, mut random) = setup();
    for (i, page) in [0x8000, 0x7001, 0x7fff, u64::MAX, u64::MAX - 0xfff, 1 << 63].into_iter().enumerate() {
        let key = keys.create_mr(attr(i as u32, 0, 0x2000, &[0x1000, page]), &mut random).unwrap();
        let (mr, _) = keys.resolve(WHO, key, 0, 0x2000, Need::LocalWrite).unwrap();
        let inside = 0x8000u64.saturating_sub(page).min(0x1000) as usize;
        let seen: Vec<_> = mr.spans(&memory, 0x1000, 0x1000).map(|s| s.map(|s| s.len())).collect();
        let expected = [(inside > 0).then_some(Ok(inside)), Some(Err(MemoryFault::Unavailable))];
        assert_eq!(seen, expected.into_iter().flatten().collect::<Vec<_>>(), "{page:#x}");
        assert!(mr.spans(&memory, 0x1ffc, 4).any(|s| s.is_err()), "{page:#x}");
        assert_eq!(
            mr.spans(&memory, 0, 0x1000).map(|s| s.map(|s| s.len())).collect::<Vec<_>>(),
            [Ok(0x1000)]
        );
    }
}

#[test]
fn messages_span_entries() {
    let (memory, mut keys, mut random) = setup();
    let key = keys.create_mr(attr(1, 0, 0x4000, &[0, 0x1000, 0x2000, 0x3000]), &mut random).unwrap();
    let sge = |addr, length| Sge { addr, length, lkey: Lkey(key) };
    let sges = [sge(0x10, 4), Sge { lkey: Lkey(0), ..sge(0, 0) }, sge(0x2000, 0x1800), sge(0x4000, 1)];
    let lens = |offset, len| {
        SgeSpans::new(&keys, &memory, WHO, Need::LocalRead, &sges, offset, len)
            .map(|s| s.map(|s| s.len()))
            .collect::<Vec<_>>()
    };
    assert_eq!(lens(0, 4), [Ok(4)]);
    assert_eq!(lens(2, 3), [Ok(2), Ok(1)]);
    assert_eq!(lens(4, 0x1800), [Ok(0x1800)]);
    assert_eq!(lens(5, 0x1800), [Ok(0x17ff), Err(MemoryFault::OutOfRange)]);
    assert_eq!(lens(0x9999, 1), []);
}
