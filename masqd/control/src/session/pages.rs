//! Lists of guest pages, copied out of tables in guest memory.
//!
//! The guest can change a table while it is read: each entry is read once, and only the copy is checked and
//! used. How much is read follows from the count in the request, which quotas have bounded before.

use masq_driver::PageList;
use vrdma_abi::config::PAGE_BYTES;
use vrdma_abi::control::{PAGE_TABLE_MAX_LEVELS, PageTable};

use super::decode::{malformed, reserved, within};
use crate::{GuestMemory, Reason};

/// Addresses in a table.
const FANOUT: u64 = 512;
const ENTRY_BYTES: usize = 8;
const TABLE_BYTES: usize = PAGE_BYTES as usize;

/// What a list is for, and what it must be like.
pub(super) struct Wanted {
    /// For messages.
    pub what: &'static str,
    /// Page sizes that are possible, a bit for each power of two.
    pub page_sizes: u64,
    /// Pages that the list must have.
    pub count: u64,
}

impl Wanted {
    /// A list of `count` pages of the contract's own size.
    pub fn ring(what: &'static str, count: u64) -> Wanted {
        Wanted { what, page_sizes: PAGE_BYTES.into(), count }
    }
}

/// Checks everything about a table that can be known without reading guest memory.
pub(super) fn check(table: &PageTable, wanted: &Wanted) -> Result<(), Reason> {
    let what = wanted.what;
    reserved(&table.reserved)?;
    if 1u64.checked_shl(table.page_shift.into()).is_none_or(|size| size & wanted.page_sizes == 0) {
        return Err(malformed(format_args!(
            "{what}: pages of 2^{} bytes are not possible",
            table.page_shift
        )));
    }
    if u64::from(table.count) != wanted.count {
        let (has, needs) = (table.count, wanted.count);
        return Err(malformed(format_args!("{what}: the list has {has} pages, and {needs} are needed")));
    }
    within("levels of a page table", table.levels.into(), 0, PAGE_TABLE_MAX_LEVELS.into())?;
    let capacity = FANOUT.pow(table.levels.into());
    if wanted.count > capacity {
        let levels = table.levels;
        return Err(malformed(format_args!("{what}: {} pages do not fit {levels} levels", wanted.count)));
    }
    Ok(())
}

/// Copies the list that `table` describes; [`check`] has been passed.
pub(super) fn read(
    memory: &dyn GuestMemory,
    table: &PageTable,
    what: &'static str,
) -> Result<PageList, Reason> {
    let count = u64::from(table.count);
    if count == 0 {
        return Ok(PageList { shift: table.page_shift, pages: Vec::new() });
    }
    let mut pages = vec![table.addr];
    for below in (0..table.levels).rev() {
        let tables = pages;
        let entries = count.div_ceil(FANOUT.pow(below.into()));
        pages = read_level(memory, &tables, entries, what)?;
    }
    let size = 1u64 << table.page_shift;
    for page in &pages {
        aligned(*page, size, what)?;
    }
    Ok(PageList { shift: table.page_shift, pages })
}

/// Refuses a list with a page that is not the guest's memory. The RNIC finds that only when the page is accessed.
pub(super) fn check_held(
    memory: &dyn GuestMemory,
    list: &PageList,
    what: &'static str,
) -> Result<(), Reason> {
    let size = 1u64 << list.shift;
    match list.pages.iter().find(|page| !memory.holds(**page, size)) {
        Some(page) => Err(Reason::BadAddress { what: what.into(), address: *page }),
        None => Ok(()),
    }
}

/// Reads `entries` addresses from as many of `tables` as hold them.
fn read_level(
    memory: &dyn GuestMemory,
    tables: &[u64],
    entries: u64,
    what: &'static str,
) -> Result<Vec<u64>, Reason> {
    let mut addresses = Vec::new();
    let mut left = entries;
    let mut buf = [0; TABLE_BYTES];
    for table in tables {
        aligned(*table, PAGE_BYTES.into(), what)?;
        let here = left.min(FANOUT);
        left -= here;
        // At most 512 entries of 8 bytes: what the buffer holds.
        let bytes = &mut buf[..here as usize * ENTRY_BYTES];
        memory.read(*table, bytes).map_err(|e| Reason::BadAddress { what: what.into(), address: e.0 })?;
        for entry in bytes.chunks_exact(ENTRY_BYTES) {
            let mut address = [0; ENTRY_BYTES];
            address.copy_from_slice(entry);
            addresses.push(u64::from_le_bytes(address));
        }
    }
    Ok(addresses)
}

fn aligned(address: u64, size: u64, what: &str) -> Result<(), Reason> {
    if !address.is_multiple_of(size) {
        return Err(malformed(format_args!("{what}: address {address:#x} is not aligned to {size} bytes")));
    }
    if address.checked_add(size).is_none() {
        return Err(Reason::BadAddress { what: what.into(), address });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryError;
    use std::cell::Cell;
    use std::collections::HashMap;

    /// Guest memory of single pages; counts what is read.
    #[derive(Default)]
    struct Pages {
        tables: HashMap<u64, Vec<u64>>,
        read: Cell<usize>,
    }

    impl Pages {
        fn with(mut self, at: u64, entries: impl IntoIterator<Item = u64>) -> Pages {
            let mut page: Vec<u64> = entries.into_iter().collect();
            page.resize(512, 0xbad);
            self.tables.insert(at, page);
            self
        }
    }

    impl GuestMemory for Pages {
        fn read(&self, gpa: u64, buf: &mut [u8]) -> Result<(), MemoryError> {
            let table = self.tables.get(&gpa).ok_or(MemoryError(gpa))?;
            self.read.set(self.read.get() + buf.len());
            for (to, from) in buf.chunks_exact_mut(8).zip(table) {
                to.copy_from_slice(&from.to_le_bytes());
            }
            Ok(())
        }

        fn holds(&self, gpa: u64, _len: u64) -> bool {
            self.tables.contains_key(&gpa)
        }
    }

    fn table(addr: u64, count: u32, levels: u8) -> PageTable {
        PageTable { addr, count, page_shift: 12, levels, reserved: 0 }
    }

    fn list(memory: &Pages, table: &PageTable) -> Result<Vec<u64>, Reason> {
        check(table, &Wanted::ring("the ring", table.count.into()))?;
        read(memory, table, "the ring").map(|l| l.pages)
    }

    #[test]
    fn each_number_of_levels_is_walked_and_no_more_is_read_than_counted() {
        let page = |i: u64| 0x100_0000 + i * 4096;
        let m = Pages::default()
            .with(0x1000, [page(0), page(1), page(2)])
            .with(0x2000, [0x3000, 0x4000])
            .with(0x3000, (0..512).map(page))
            .with(0x4000, [page(512)])
            .with(0x5000, [0x2000]);
        assert_eq!(list(&m, &table(0x7000, 1, 0)), Ok(vec![0x7000]));
        assert_eq!(list(&m, &table(0x1000, 3, 1)), Ok(vec![page(0), page(1), page(2)]));
        m.read.set(0);
        assert_eq!(list(&m, &table(0x2000, 513, 2)), Ok((0..513).map(page).collect()));
        assert_eq!(m.read.get(), (2 + 513) * 8);
        assert_eq!(list(&m, &table(0x5000, 513, 3)), Ok((0..513).map(page).collect()));
    }

    #[test]
    fn what_does_not_fit_or_is_not_aligned_is_refused() {
        let m = Pages::default().with(0x1000, [0x2000, 0x2001]).with(0x2000, [0x9000; 512]);
        let malformed = |r: Result<Vec<u64>, Reason>| matches!(r, Err(Reason::Malformed(_)));
        assert!(malformed(list(&m, &table(0x7001, 1, 0))), "page");
        assert!(malformed(list(&m, &table(0x1008, 1, 1))), "table");
        assert!(malformed(list(&m, &table(0x1000, 513, 2))), "table of the lower level");
        assert!(malformed(list(&m, &table(0x1000, 2, 1))), "page in a table");
        assert!(malformed(list(&m, &table(0x1000, 2, 0))), "two pages without a table");
        assert!(malformed(list(&m, &table(0x1000, 513, 1))), "more than a table holds");
        assert!(malformed(list(&m, &table(0x1000, 1, 4))), "too many levels");
        assert!(malformed(list(&m, &PageTable { reserved: 1, ..table(0x7000, 1, 0) })));
        for page_shift in [0, 11, 13, 63, 64, 255] {
            assert!(malformed(list(&m, &PageTable { page_shift, ..table(0, 1, 0) })), "{page_shift}");
        }
        let short = check(&table(0x7000, 1, 0), &Wanted::ring("the ring", 2));
        assert!(matches!(short, Err(Reason::Malformed(_))));
    }

    #[test]
    fn tables_outside_memory_and_pages_at_its_end_are_refused() {
        let m = Pages::default().with(0x1000, [0x8000]);
        let bad = |r: Result<Vec<u64>, Reason>| matches!(r, Err(Reason::BadAddress { .. }));
        assert!(bad(list(&m, &table(0xff00_0000, 1, 1))));
        assert!(bad(list(&m, &table(0x1000, 1, 2))), "the lower table");
        assert!(bad(list(&m, &table(u64::MAX - 4095, 1, 0))));
    }

    #[test]
    fn a_page_that_is_not_the_guests_is_refused_by_name() {
        let m = Pages::default().with(0x1000, []).with(0x2000, []);
        let list = |pages: &[u64]| PageList { shift: 12, pages: pages.to_vec() };
        assert_eq!(check_held(&m, &list(&[0x2000, 0x1000]), "the region"), Ok(()));
        let refused = check_held(&m, &list(&[0x2000, 0x3000]), "the region");
        assert!(matches!(refused, Err(Reason::BadAddress { address: 0x3000, .. })), "{refused:?}");
    }

    #[test]
    fn a_table_that_is_its_own_child_ends() {
        let m = Pages::default().with(0x1000, [0x1000; 512]);
        assert_eq!(list(&m, &table(0x1000, 1 << 18, 3)), Ok(vec![0x1000; 1 << 18]));
    }
}
