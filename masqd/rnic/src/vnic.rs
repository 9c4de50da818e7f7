//! One guest device: its memory, queues and objects.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use masq_driver::{CtxHandle, DriverError, Gpa, GroupAttr, QpHandle, VnicCounters, VnicId};
use masq_types::Vni;
use rustc_hash::FxHashMap;
use slab::Slab;
use vrdma_abi::doorbell::{DoorbellPage, QPS_PER_GROUP, QPS_PER_SLOT, STATUS_LINE_BYTES};

use crate::cqs::{CompQueues, CqTable};
use crate::datagram::Datagrams;
use crate::group::{Group, Member};
use crate::keys::KeyTable;
use crate::limits;
use crate::memory::{GuestMemory, PAGE_BYTES};
use crate::qp::QpKey;
use crate::shaping::Shaping;
use crate::srqs::SrqTable;
use crate::transport::Counters;
use crate::udp::LocalId;

const SLOTS: usize = limits::SLOTS as usize;
/// Groups of dirty bytes that one scan looks at: more than an honest guest has at a time, and a few microseconds.
const GROUPS_PER_SCAN: usize = 256;
const DIRTY: usize = std::mem::offset_of!(DoorbellPage, dirty);

/// A guest device.
#[derive(Debug)]
pub struct Vnic {
    /// Its id.
    pub id: VnicId,
    /// Its network.
    pub vni: Vni,
    /// Names the lifetime of its objects in completion events.
    pub epoch: u64,
    /// Its underlay addresses.
    pub addresses: Vec<(IpAddr, LocalId)>,
    /// Its memory; another engine that copies for one of its queue pairs keeps it as well.
    pub memory: Arc<GuestMemory>,
    /// Where the guest looks whether to ring.
    pub status_page: Option<Gpa>,
    /// Its virtqueues that belong to the RNIC, by index.
    pub queues: FxHashMap<u16, Queue>,
    /// The completion-event queues among them.
    pub comp_queues: CompQueues,
    /// Its contexts.
    pub contexts: FxHashMap<CtxHandle, Context>,
    /// Doorbell pages of its contexts that queue pairs use.
    bells: Vec<Bell>,
    /// Where the next scan of doorbells begins.
    next_context: usize,
    /// Its memory regions and windows.
    pub keys: KeyTable,
    /// Its completion queues.
    pub cqs: CqTable,
    /// Its shared receive queues.
    pub srqs: SrqTable,
    /// Its queue pairs, but for the hidden ones.
    pub qps: FxHashMap<QpHandle, QpKey>,
    /// Its queue pairs with several paths, and the hidden ones behind them.
    pub groups: Slab<Group>,
    /// What it knows for its datagrams.
    pub datagrams: Datagrams,
    /// What it may send.
    pub shaping: Shaping,
    /// What it has sent and received; what is counted elsewhere is 0.
    pub traffic: VnicCounters,
    /// What its queue pairs have counted that are gone.
    pub counters: Counters,
    /// Its queue pairs that have asked another engine for something.
    pub asked: Vec<QpKey>,
    /// Send requests whose memory its queue pairs keep.
    pub held_requests: usize,
    /// Bytes of packets that came before their turn that its queue pairs keep.
    pub early_bytes: usize,
    /// Receives that its queue pairs keep for messages to come.
    pub assigned_receives: usize,
    /// Queue pairs that have something to do for which this vNIC pays: its own, and those that read from it.
    pub ready: VecDeque<QpKey>,
    /// Bytes that may still be moved in this round, or that were moved too many.
    pub deficit: i64,
    /// It stands in its class's list of vNICs with something to do, or waits for its rate to allow it.
    pub scheduled: bool,
    /// Its class's rate has interrupted its turn.
    pub interrupted: bool,
    /// It stands in the list of those at whose queues something is left to settle.
    pub unsettled: bool,
}

/// A started virtqueue.
#[derive(Debug)]
pub struct Queue {
    /// Its completion vector, or `None` for a doorbell.
    pub vector: Option<u16>,
    /// The index to go on with, of a doorbell queue, from which nothing is taken.
    pub base: u16,
    /// The guest's kicks.
    pub kick: Option<OwnedFd>,
}

/// One open of the device.
#[derive(Debug)]
pub struct Context {
    slots: [Slot; SLOTS],
    /// Its first choice; contexts are spread over the slots.
    home_slot: usize,
}

/// What there is to look at in a doorbell page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Bell {
    page: Gpa,
    /// Of the summary, only what stands for queue pairs, in words of eight bytes: most guests have few.
    summary_words: usize,
}

/// What becomes of a page's [`Bell`].
#[derive(Clone, Copy, Debug, Default)]
struct BellChange {
    before: Option<Bell>,
    after: Option<Bell>,
}

/// A context's part in a doorbell slot.
#[derive(Debug)]
struct Slot {
    page: Gpa,
    /// Queue pairs by their index in the page.
    qps: Vec<Option<QpKey>>,
    free: Vec<u16>,
    used: usize,
}

impl Vnic {
    /// A device with nothing in it.
    pub fn new(id: VnicId, vni: Vni, epoch: u64, addresses: Vec<(IpAddr, LocalId)>) -> Self {
        Self {
            id,
            vni,
            epoch,
            addresses,
            memory: Arc::default(),
            status_page: None,
            queues: FxHashMap::default(),
            comp_queues: CompQueues::default(),
            contexts: FxHashMap::default(),
            bells: Vec::new(),
            next_context: 0,
            keys: KeyTable::default(),
            cqs: CqTable::default(),
            srqs: SrqTable::default(),
            qps: FxHashMap::default(),
            groups: Slab::new(),
            datagrams: Datagrams::default(),
            shaping: Shaping::default(),
            traffic: VnicCounters::default(),
            counters: Counters::default(),
            asked: Vec::new(),
            held_requests: 0,
            early_bytes: 0,
            assigned_receives: 0,
            ready: VecDeque::new(),
            deficit: 0,
            scheduled: false,
            interrupted: false,
            unsettled: false,
        }
    }

    /// It and its queue pairs have other keys.
    pub fn rename_qps(&mut self, vnic_key: usize, keys: &FxHashMap<QpKey, QpKey>) {
        let renamed = |key: &QpKey| keys.get(key).copied();
        self.qps.values_mut().for_each(|k| *k = renamed(k).unwrap_or(*k));
        self.groups.iter_mut().for_each(|(_, g)| g.rename(|k| renamed(&k).unwrap_or(k)));
        for slot in self.contexts.values_mut().flat_map(|c| &mut c.slots) {
            slot.qps.iter_mut().for_each(|k| *k = k.and_then(|k| renamed(&k)));
        }
        self.keys.rename_qps(keys);
        self.datagrams.rename_qps(vnic_key, keys);
    }

    /// The queue pair whose hidden sibling this member of a group is; none of the leader itself.
    pub fn leader_of(&self, member: Member) -> Option<QpKey> {
        self.groups.get(member.group).filter(|_| !member.is_leader())?.member(0)
    }

    /// How many queue pairs it has, where one that may use several paths counts as many as its group can have members.
    pub fn qp_count(&self) -> usize {
        self.qps.len() + self.groups.iter().map(|(_, g)| g.most() - 1).sum::<usize>()
    }

    /// Whether it may have so many queue pairs more, hidden ones included.
    pub fn has_room_for(&self, more: usize) -> bool {
        const MOST: usize = limits::MAX_QPS as usize;
        // They are added up only where it may matter.
        let at_most = self.qps.len() + self.groups.len() * usize::from(GroupAttr::MAX_MEMBERS - 1) + more;
        at_most <= MOST || self.qp_count() + more <= MOST
    }

    /// All its queue pairs, the hidden ones included.
    pub fn all_qps(&self) -> impl Iterator<Item = QpKey> + '_ {
        self.qps.values().copied().chain(self.groups.iter().flat_map(|(_, g)| g.siblings()))
    }

    /// Tells the guest whether to ring.
    pub fn set_need_kick(&self, wanted: bool) {
        let Some(page) = self.status_page.and_then(|p| self.memory.span(p, PAGE_BYTES as usize)) else {
            return;
        };
        for slot in 0..SLOTS {
            page.store_u32(slot * STATUS_LINE_BYTES as usize, u32::from(wanted));
        }
    }

    /// Gives a queue pair of a context a doorbell: slot and index.
    pub fn assign_doorbell(&mut self, ctx: CtxHandle, qp: QpKey) -> Option<(u16, u16)> {
        let context = self.contexts.get_mut(&ctx)?;
        let (doorbell, change) = context.assign(qp)?;
        change.apply(&mut self.bells);
        Some(doorbell)
    }

    /// Takes a doorbell back.
    pub fn unassign_doorbell(&mut self, ctx: CtxHandle, (slot, index): (u16, u16)) {
        if let Some(context) = self.contexts.get_mut(&ctx) {
            context.unassign(slot, index).apply(&mut self.bells);
        }
    }

    /// Calls `posted` for each queue pair whose doorbell the guest has marked since the last scan. Looks at a bounded
    /// number of groups, and returns whether it stopped for that; the next scan goes on with the context at which this one did, or
    /// with the one behind it when there was time for no other.
    ///
    /// Memory order (the guest's half stands in `vrdma_abi::doorbell`): a summary byte is cleared before its dirty
    /// bytes are looked at, and those before the producer index is read, by exchanges. The guest writes in the opposite
    /// order: so what it posts after the RNIC has looked leaves a summary byte set for the next scan.
    #[inline]
    pub fn scan_doorbells(&mut self, posted: impl FnMut(QpKey)) -> bool {
        // The same summaries, by loads alone: most guests are idle.
        self.bells.iter().any(|bell| bell.is_marked(&self.memory)) && self.scan_contexts(posted)
    }

    fn scan_contexts(&mut self, mut posted: impl FnMut(QpKey)) -> bool {
        let first = if self.next_context < self.contexts.len() { self.next_context } else { 0 };
        let contexts = self.contexts.values().skip(first).chain(self.contexts.values().take(first));
        let mut budget = GROUPS_PER_SCAN;
        for (passed, context) in contexts.enumerate() {
            for slot in &context.slots {
                slot.scan(&self.memory, &mut budget, &mut posted);
            }
            if budget == 0 {
                // One context alone may take all of it: then the next is another's.
                self.next_context = (first + passed.max(1)) % self.contexts.len();
                return true;
            }
        }
        false
    }
}

impl Context {
    /// A context whose doorbell pages are guest memory.
    pub fn new(ctx: CtxHandle, pages: &[Gpa], memory: &GuestMemory) -> Result<Self, DriverError> {
        let pages: &[Gpa; SLOTS] = pages.try_into().map_err(|_| {
            DriverError::Invalid(format!("{} doorbell pages were given for {SLOTS} slots", pages.len()))
        })?;
        memory.check_pages(&pages.map(|p| p.0))?;
        let slots = pages.map(|page| Slot { page, qps: Vec::new(), free: Vec::new(), used: 0 });
        Ok(Self { slots, home_slot: ctx.0 as usize % SLOTS })
    }

    /// Whether queue pairs use its doorbells.
    pub fn is_in_use(&self) -> bool {
        self.slots.iter().any(|s| s.used > 0)
    }

    /// Gives a queue pair a doorbell: slot and index. As long as there is room they share the context's own slot: each
    /// slot in use is a page to look at.
    fn assign(&mut self, qp: QpKey) -> Option<((u16, u16), BellChange)> {
        let home = self.home_slot;
        let has_room = |s: &Slot| s.used < QPS_PER_SLOT as usize;
        let number =
            (0..SLOTS).map(|n| (home + n) % SLOTS).find(|n| self.slots.get(*n).is_some_and(has_room))?;
        let slot = self.slots.get_mut(number)?;
        let before = slot.bell();
        let index = match slot.free.pop() {
            Some(index) => index,
            None if slot.qps.len() < QPS_PER_SLOT as usize => {
                slot.qps.push(None);
                (slot.qps.len() - 1) as u16
            }
            None => return None,
        };
        *slot.qps.get_mut(usize::from(index))? = Some(qp);
        slot.used += 1;
        Some(((number as u16, index), BellChange { before, after: slot.bell() }))
    }

    /// Takes a doorbell back.
    fn unassign(&mut self, slot: u16, index: u16) -> BellChange {
        let Some(slot) = self.slots.get_mut(usize::from(slot)) else { return BellChange::default() };
        let before = slot.bell();
        if slot.qps.get_mut(usize::from(index)).is_some_and(|q| q.take().is_some()) {
            slot.free.push(index);
            slot.used -= 1;
        }
        BellChange { before, after: slot.bell() }
    }
}

impl Bell {
    #[inline]
    fn is_marked(&self, memory: &GuestMemory) -> bool {
        let Some(summary) = memory.span(self.page, self.summary_words * 8) else { return false };
        (0..self.summary_words).any(|word| summary.load_u64(word * 8).is_some_and(|marks| marks != 0))
    }
}

impl BellChange {
    fn apply(self, bells: &mut Vec<Bell>) {
        if self.before == self.after {
            return;
        }
        if let Some(at) = self.before.and_then(|before| bells.iter().position(|bell| *bell == before)) {
            bells.swap_remove(at);
        }
        bells.extend(self.after);
    }
}

impl Slot {
    /// What there is to look at.
    fn bell(&self) -> Option<Bell> {
        const GROUP: usize = QPS_PER_GROUP as usize;
        let summary_words = self.qps.len().div_ceil(GROUP).div_ceil(8).min(DIRTY / 8);
        (self.used > 0).then_some(Bell { page: self.page, summary_words })
    }

    /// Looks at up to `budget` groups.
    fn scan(&self, memory: &GuestMemory, budget: &mut usize, posted: &mut impl FnMut(QpKey)) {
        const GROUP: usize = QPS_PER_GROUP as usize;
        let Some(Bell { page, summary_words }) = self.bell() else { return };
        let Some(page) = memory.span(page, PAGE_BYTES as usize) else { return };
        for_set_bytes(0, summary_words * 8, &|at| page.load_u64(at), &mut |group| {
            if *budget == 0 {
                return;
            }
            *budget -= 1;
            // The last summary byte belongs to no group.
            if page.swap_u8(group, 0) == Some(0) || group >= DIRTY - 1 {
                return;
            }
            let first = DIRTY + group * GROUP;
            for_set_bytes(first, first + GROUP, &|at| page.load_u64(at), &mut |at| {
                if page.swap_u8(at, 0) != Some(0)
                    && let Some(Some(qp)) = self.qps.get(at - DIRTY)
                {
                    posted(*qp);
                }
            });
        });
    }
}

/// Calls `found` with the offset of each byte in `from .. to`, multiples of eight, that is not 0.
fn for_set_bytes(from: usize, to: usize, load: &dyn Fn(usize) -> Option<u64>, found: &mut dyn FnMut(usize)) {
    for at in (from..to).step_by(8) {
        let mut word = load(at).unwrap_or(0);
        while word != 0 {
            let byte = word.trailing_zeros() as usize / 8;
            word &= !(0xff << (byte * 8));
            found(at + byte);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::guest_memory;

    const CTX: CtxHandle = CtxHandle(8);

    fn pages() -> Vec<Gpa> {
        (1..9).map(|p| Gpa(p * 0x1000)).collect()
    }

    /// A guest with a context whose 200 queue pairs are in slot 0.
    fn context() -> (Vnic, Vec<QpKey>) {
        let mut vnic = Vnic::new(VnicId(1), Vni::new(1).unwrap(), 1, Vec::new());
        vnic.memory = Arc::new(guest_memory(&[(0, 0x10_000)]));
        vnic.contexts.insert(CTX, Context::new(CTX, &pages(), &vnic.memory).unwrap());
        let keys: Vec<QpKey> = (0..200).map(QpKey::for_test).collect();
        for (i, key) in keys.iter().enumerate() {
            assert_eq!(vnic.assign_doorbell(CTX, *key), Some((0, i as u16)));
        }
        (vnic, keys)
    }

    fn scan(vnic: &mut Vnic) -> Vec<QpKey> {
        let mut seen = Vec::new();
        vnic.scan_doorbells(|k| seen.push(k));
        seen
    }

    fn mark(vnic: &Vnic, page: Gpa, index: usize) {
        let page = vnic.memory.span(page, 0x1000).unwrap();
        page.swap_u8(DIRTY + index, 1);
        page.swap_u8(index / 64, 1);
    }

    #[test]
    fn each_mark_is_seen_once() {
        let (mut vnic, keys) = context();
        assert_eq!(scan(&mut vnic), []);
        mark(&vnic, Gpa(0x1000), 0);
        mark(&vnic, Gpa(0x1000), 199);
        assert_eq!(scan(&mut vnic), [keys[0], keys[199]]);
        assert_eq!(scan(&mut vnic), []);
    }

    #[test]
    fn marks_that_mean_nothing_are_ignored() {
        let (mut vnic, keys) = context();
        vnic.memory.span(Gpa(0x1000), 0x1000).unwrap().write(&[0xff; 0x1000]);
        assert_eq!(scan(&mut vnic), keys);
        vnic.unassign_doorbell(CTX, (0, 1));
        mark(&vnic, Gpa(0x1000), 1);
        assert_eq!(scan(&mut vnic), []);
        vnic.unassign_doorbell(CTX, (0, 1));
        assert_eq!(vnic.assign_doorbell(CTX, keys[5]), Some((0, 1)));
        mark(&vnic, Gpa(0x1000), 1);
        assert_eq!(scan(&mut vnic), [keys[5]]);
    }

    /// Contexts that mark everything all the time do not hide another one.
    #[test]
    fn a_scan_is_bounded_and_the_next_goes_on() {
        let (mut vnic, _) = context();
        vnic.memory = Arc::new(guest_memory(&[(0, 0x20_000)]));
        let honest = QpKey::for_test(999);
        for i in 0..20u32 {
            let page = Gpa(0x8000 + u64::from(i) * 0x1000);
            let context = Context::new(CtxHandle(100 + i), &[page; SLOTS], &vnic.memory).unwrap();
            vnic.contexts.insert(CtxHandle(100 + i), context);
            let key = if i == 7 { honest } else { QpKey::for_test(i as usize) };
            // The others fill a slot: as much of its summary is looked at as there are queue pairs.
            let count = if i == 7 { 1 } else { QPS_PER_SLOT };
            (0..count).for_each(|_| assert!(vnic.assign_doorbell(CtxHandle(100 + i), key).is_some()));
        }
        mark(&vnic, Gpa(0xf000), 0);
        let mut seen = 0;
        for round in 0..20 {
            let before = seen;
            for i in (0..20).filter(|i| *i != 7) {
                vnic.memory.span(Gpa(0x8000 + i * 0x1000), 0x1000).unwrap().write(&[0xff; 0x1000]);
            }
            assert!(vnic.scan_doorbells(|k| seen += usize::from(k == honest)), "there is more to look at");
            assert!(seen <= before + 1);
            assert!(seen > 0 || round < 10, "it was never seen");
        }
        assert_eq!(seen, 1);
    }

    /// Nor does one that marks so much that a scan sees nothing else.
    #[test]
    fn a_context_with_more_marks_than_a_scan_sees_hides_no_other() {
        let (mut vnic, _) = context();
        vnic.memory = Arc::new(guest_memory(&[(0, 0x20_000)]));
        let flooded: Vec<Gpa> = (8..16).map(|p| Gpa(p * 0x1000)).collect();
        let hostile = Context::new(CtxHandle(0), &flooded, &vnic.memory).unwrap();
        vnic.contexts.insert(CtxHandle(0), hostile);
        for i in 0..5 * QPS_PER_SLOT as usize {
            vnic.assign_doorbell(CtxHandle(0), QpKey::for_test(1000 + i)).unwrap();
        }
        mark(&vnic, Gpa(0x1000), 3);
        let honest = QpKey::for_test(3);
        let seen = (0..4).any(|_| {
            for page in &flooded {
                vnic.memory.span(*page, 0x1000).unwrap().write(&[0xff; 0x1000]);
            }
            scan(&mut vnic).contains(&honest)
        });
        assert!(seen);
    }

    #[test]
    fn a_context_has_room_for_all_its_slots() {
        let (mut vnic, _) = context();
        assert!(Context::new(CTX, &pages()[1..], &vnic.memory).is_err());
        let ctx = CtxHandle(3);
        vnic.contexts.insert(ctx, Context::new(ctx, &pages(), &vnic.memory).unwrap());
        let mut assign = || vnic.assign_doorbell(ctx, QpKey::for_test(0));
        assert_eq!(assign(), Some((3, 0)));
        let most = SLOTS * QPS_PER_SLOT as usize;
        assert!((1..most).all(|_| assign().is_some()));
        assert_eq!(assign(), None);
        vnic.unassign_doorbell(ctx, (1, 17));
        assert_eq!(vnic.assign_doorbell(ctx, QpKey::for_test(0)), Some((1, 17)));
    }

    /// What is looked at is what queue pairs use.
    #[test]
    fn bells_follow_the_doorbells_in_use() {
        let (mut vnic, keys) = context();
        let bell = |page: u64, summary_words| Bell { page: Gpa(page), summary_words };
        assert_eq!(vnic.bells, [bell(0x1000, 1)], "200 queue pairs are four groups");
        let ctx = CtxHandle(3);
        vnic.contexts.insert(ctx, Context::new(ctx, &pages(), &vnic.memory).unwrap());
        let many: Vec<_> = (0..513).map(|_| vnic.assign_doorbell(ctx, keys[0]).unwrap()).collect();
        assert_eq!(vnic.bells, [bell(0x1000, 1), bell(0x4000, 2)]);
        many.into_iter().for_each(|doorbell| vnic.unassign_doorbell(ctx, doorbell));
        vnic.unassign_doorbell(ctx, (3, 0));
        assert_eq!(vnic.bells, [bell(0x1000, 1)]);
        (0..200).for_each(|index| vnic.unassign_doorbell(CTX, (0, index)));
        assert_eq!(vnic.bells, []);
        mark(&vnic, Gpa(0x1000), 0);
        assert_eq!(scan(&mut vnic), [], "nobody has this doorbell");
    }

    #[test]
    fn need_kick_reaches_every_slot() {
        let (mut vnic, _) = context();
        vnic.status_page = Some(Gpa(0xf000));
        vnic.set_need_kick(true);
        let page = vnic.memory.span(Gpa(0xf000), 0x1000).unwrap();
        assert!((0..SLOTS).all(|s| page.load_u32(s * 64) == Some(1)));
        assert_eq!(page.load_u32(SLOTS * 64), Some(0));
        vnic.set_need_kick(false);
        let page = vnic.memory.span(Gpa(0xf000), 0x1000).unwrap();
        assert!((0..SLOTS).all(|s| page.load_u32(s * 64) == Some(0)));
    }
}
