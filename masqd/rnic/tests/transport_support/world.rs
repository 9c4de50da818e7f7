use std::collections::VecDeque;

use masq_rnic::transport::*;
use masq_types::{Lkey, Rkey};

/// A region of model memory; its lkey and rkey are the same number.
#[derive(Clone, Debug)]
pub struct Region {
    pub key: u32,
    pub iova: u64,
    pub data: Vec<u8>,
    pub local_write: bool,
    pub remote_read: bool,
    pub remote_write: bool,
    pub remote_atomic: bool,
    /// It belongs to another protection domain.
    pub foreign: bool,
    /// The memory behind it is gone.
    pub unavailable: bool,
}

impl Region {
    /// A region with all rights.
    pub fn open(key: u32, iova: u64, len: usize) -> Self {
        Self {
            key,
            iova,
            data: vec![0; len],
            local_write: true,
            remote_read: true,
            remote_write: true,
            remote_atomic: true,
            foreign: false,
            unavailable: false,
        }
    }
}

/// The surroundings of one queue pair: memory, work queues, and all that came out.
#[derive(Clone, Debug, Default)]
pub struct World {
    pub regions: Vec<Region>,
    pub sq: VecDeque<SendWork>,
    pub rq: VecDeque<RecvWork>,
    pub completions: Vec<Completion>,
    pub events: Vec<QpEvent>,
    /// Every write into memory: region, offset, length.
    pub writes: Vec<(u32, usize, usize)>,
    /// Every change of a key, in order.
    pub changes: Vec<KeyChange>,
    /// Changes of keys are refused.
    pub refuses_changes: bool,
    /// Numbers of the shared receive queues that an XRC target may be asked for, and the one that was asked for last.
    pub srqns: Vec<u32>,
    pub selected_srqn: u32,
    /// Send requests whose memory may be kept.
    pub hold_at_most: Option<usize>,
    /// Bytes of packets that came too early that may be kept by each half.
    pub keep_at_most: Option<usize>,
    sq_index: u32,
    rq_index: u32,
}

impl World {
    pub fn post_send(&mut self, mut work: SendWork) {
        self.sq_index += 1;
        work.next_index = self.sq_index;
        self.sq.push_back(work);
    }

    pub fn post_recv(&mut self, mut work: RecvWork) {
        self.rq_index += 1;
        work.next_index = self.rq_index;
        self.rq.push_back(work);
    }

    pub fn region(&self, key: u32) -> &Region {
        self.regions.iter().find(|r| r.key == key).expect("region of the test")
    }

    pub fn region_mut(&mut self, key: u32) -> &mut Region {
        self.regions.iter_mut().find(|r| r.key == key).expect("region of the test")
    }

    pub fn of(&self, queue: WorkQueue) -> Vec<Completion> {
        self.completions.iter().copied().filter(|c| c.queue == queue).collect()
    }

    /// (wr_id, status) of a queue's completions.
    pub fn statuses(&self, queue: WorkQueue) -> Vec<(u64, Status)> {
        self.of(queue).iter().map(|c| (c.wr_id, c.status)).collect()
    }

    fn resolve(
        &self,
        key: u32,
        addr: u64,
        len: u64,
        right: impl Fn(&Region) -> bool,
    ) -> Result<(usize, usize), MemoryFault> {
        let index = self.regions.iter().position(|r| r.key == key).ok_or(MemoryFault::UnknownKey)?;
        let region = &self.regions[index];
        if region.foreign {
            return Err(MemoryFault::ForeignDomain);
        }
        if !right(region) {
            return Err(MemoryFault::NotPermitted);
        }
        let offset = addr.checked_sub(region.iova).ok_or(MemoryFault::OutOfRange)?;
        let end = offset.checked_add(len).ok_or(MemoryFault::OutOfRange)?;
        if end > region.data.len() as u64 {
            return Err(MemoryFault::OutOfRange);
        }
        if region.unavailable {
            return Err(MemoryFault::Unavailable);
        }
        Ok((index, offset as usize))
    }

    /// The runs of memory that `len` bytes at `offset` of the message cover.
    fn runs(
        &self,
        sges: &[Sge],
        offset: u64,
        len: usize,
        write: bool,
    ) -> Result<Vec<(usize, usize, usize)>, MemoryFault> {
        let (mut skip, mut left) = (offset, len as u64);
        let mut runs = Vec::new();
        for sge in sges {
            let length = u64::from(sge.length);
            if skip >= length {
                skip -= length;
                continue;
            }
            let take = left.min(length - skip);
            if take == 0 {
                break;
            }
            let (region, at) =
                self.resolve(sge.lkey.0, sge.addr.wrapping_add(skip), take, |r| !write || r.local_write)?;
            runs.push((region, at, take as usize));
            left -= take;
            skip = 0;
        }
        if left == 0 { Ok(runs) } else { Err(MemoryFault::OutOfRange) }
    }

    fn store(&mut self, region: usize, at: usize, data: &[u8]) {
        let region = &mut self.regions[region];
        region.data[at..at + data.len()].copy_from_slice(data);
        self.writes.push((region.key, at, data.len()));
    }
}

impl Env for World {
    fn may_keep(&self, own: usize, more: usize) -> bool {
        self.keep_at_most.is_none_or(|most| own + more <= most)
    }

    fn may_hold(&self, buffers: usize) -> bool {
        self.hold_at_most.is_none_or(|most| buffers < most)
    }

    fn next_send(&mut self, work: &mut SendWork) -> bool {
        self.sq.pop_front().map(|w| *work = w).is_some()
    }

    fn next_recv(&mut self, work: &mut RecvWork) -> bool {
        let taken = self.rq.pop_front().map(|w| *work = w).is_some();
        work.srqn = self.selected_srqn;
        taken
    }

    fn complete(&mut self, completion: &Completion) {
        self.completions.push(*completion);
    }

    fn event(&mut self, event: QpEvent) {
        self.events.push(event);
    }

    fn check_local(&mut self, sges: &[Sge], access: LocalAccess) -> Result<(), MemoryFault> {
        for sge in sges.iter().filter(|s| s.length > 0) {
            let write = access == LocalAccess::Write;
            self.resolve(sge.lkey.0, sge.addr, sge.length.into(), |r| !write || r.local_write)?;
        }
        Ok(())
    }

    fn gather(
        &mut self,
        sges: &[Sge],
        offset: u64,
        len: usize,
        out: &mut Vec<u8>,
    ) -> Result<(), MemoryFault> {
        for (region, at, len) in self.runs(sges, offset, len, false)? {
            out.extend_from_slice(&self.regions[region].data[at..at + len]);
        }
        Ok(())
    }

    fn scatter(&mut self, sges: &[Sge], offset: u64, data: &[u8]) -> Result<(), MemoryFault> {
        let mut from = 0;
        for (region, at, len) in self.runs(sges, offset, data.len(), true)? {
            self.store(region, at, &data[from..from + len]);
            from += len;
        }
        Ok(())
    }

    fn check_remote(&mut self, target: RemoteRange, access: RemoteAccess) -> Result<(), MemoryFault> {
        assert!(target.len > 0, "asked to check nothing");
        self.resolve(target.rkey.0, target.va, target.len.into(), |r| right(r, access)).map(|_| ())
    }

    fn read_remote(&mut self, source: RemoteRange, out: &mut Vec<u8>) -> Result<(), MemoryFault> {
        let (region, at) =
            self.resolve(source.rkey.0, source.va, source.len.into(), |r| right(r, RemoteAccess::Read))?;
        out.extend_from_slice(&self.regions[region].data[at..at + source.len as usize]);
        Ok(())
    }

    fn write_remote(&mut self, rkey: Rkey, va: u64, data: &[u8]) -> Result<(), MemoryFault> {
        let (region, at) = self.resolve(rkey.0, va, data.len() as u64, |r| right(r, RemoteAccess::Write))?;
        self.store(region, at, data);
        Ok(())
    }

    fn atomic_remote(&mut self, rkey: Rkey, va: u64, op: AtomicOp) -> Result<u64, MemoryFault> {
        assert_eq!(va % 8, 0, "asked for a misaligned atomic");
        let (region, at) = self.resolve(rkey.0, va, 8, |r| right(r, RemoteAccess::Atomic))?;
        let bytes = &self.regions[region].data[at..at + 8];
        let original = u64::from_ne_bytes(bytes.try_into().expect("eight bytes"));
        let value = match op {
            AtomicOp::FetchAdd { add } => original.wrapping_add(add),
            AtomicOp::CmpSwap { compare, swap } if compare == original => swap,
            AtomicOp::CmpSwap { .. } => original,
        };
        self.store(region, at, &value.to_ne_bytes());
        Ok(original)
    }

    fn change_key(&mut self, change: &KeyChange) -> Result<(), KeyFault> {
        if self.refuses_changes {
            return Err(KeyFault::InUse);
        }
        self.changes.push(*change);
        Ok(())
    }

    fn select_srq(&mut self, srqn: u32) -> bool {
        self.selected_srqn = srqn;
        self.srqns.contains(&srqn)
    }
}

fn right(region: &Region, access: RemoteAccess) -> bool {
    match access {
        RemoteAccess::Read => region.remote_read,
        RemoteAccess::Write => region.remote_write,
        RemoteAccess::Atomic => region.remote_atomic,
    }
}

/// One scatter/gather entry.
pub fn sge(key: u32, addr: u64, length: u32) -> Sge {
    Sge { addr, length, lkey: Lkey(key) }
}
