//! Messages in guest memory.

use super::{Accessor, KeyTable, MrSpans, Need};
use crate::memory::{GuestMemory, Span};
use crate::transport::{MemoryFault, Sge};

/// The guest memory of a message that scatter/gather entries name, in order.
#[derive(Clone, Debug)]
pub struct SgeSpans<'m> {
    keys: &'m KeyTable,
    memory: &'m GuestMemory,
    who: Accessor,
    need: Need,
    sges: std::slice::Iter<'m, Sge>,
    skip: u64,
    left: u64,
    current: Option<MrSpans<'m>>,
}

impl<'m> SgeSpans<'m> {
    /// The `len` bytes at `offset` of the message. Keys, domain and rights are checked as each entry is reached;
    /// the series ends early when the entries hold less.
    pub fn new(
        keys: &'m KeyTable,
        memory: &'m GuestMemory,
        who: Accessor,
        need: Need,
        sges: &'m [Sge],
        offset: u64,
        len: u64,
    ) -> Self {
        Self { keys, memory, who, need, sges: sges.iter(), skip: offset, left: len, current: None }
    }
}

impl<'m> Iterator for SgeSpans<'m> {
    type Item = Result<Span<'m>, MemoryFault>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(span) = self.current.as_mut().and_then(Iterator::next) {
                return Some(span);
            }
            self.current = None;
            if self.left == 0 {
                return None;
            }
            let sge = self.sges.next()?;
            let length = u64::from(sge.length);
            if self.skip >= length {
                self.skip -= length;
                continue;
            }
            match self.keys.resolve(self.who, sge.lkey.0, sge.addr, length, self.need) {
                Ok((mr, start)) => {
                    let take = (length - self.skip).min(self.left);
                    self.current = Some(mr.spans(self.memory, start + self.skip, take));
                    self.skip = 0;
                    self.left -= take;
                }
                Err(fault) => {
                    self.left = 0;
                    return Some(Err(fault));
                }
            }
        }
    }
}
