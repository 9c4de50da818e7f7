// Keeping host addresses beside what owns the mapping that they lie in is what this module is for.
#![allow(unsafe_code)]

use std::ptr::NonNull;
use std::sync::Arc;

use super::{GuestMemory, Span};

/// Ranges of a guest's memory, and the memory table that maps them, for another engine: the table lives as long as this is not
/// [cleared](Self::clear) or dropped, whatever becomes of the guest meanwhile.
#[derive(Debug, Default)]
pub struct Pinned {
    memory: Option<Arc<GuestMemory>>,
    parts: Vec<(NonNull<u8>, usize)>,
}

// SAFETY: the addresses point into mappings that `memory` owns and that any thread may use; their bytes are accessed through `Span` only,
// which assumes that others change them at any time.
unsafe impl Send for Pinned {}

impl Pinned {
    /// Begins anew, with ranges of `memory`.
    pub fn begin(&mut self, memory: &Arc<GuestMemory>) {
        self.parts.clear();
        self.memory = Some(memory.clone());
    }

    /// Adds a range. Returns whether it is one of the table's.
    pub fn push(&mut self, span: &Span<'_>) -> bool {
        let (host, len) = span.parts();
        let ours = self.memory.as_ref().is_some_and(|m| m.contains(host, len));
        if ours {
            self.parts.push((host, len));
        }
        ours
    }

    /// Lets the table go.
    pub fn clear(&mut self) {
        self.parts.clear();
        self.memory = None;
    }

    /// The ranges, in order.
    pub fn spans(&self) -> impl Iterator<Item = Span<'_>> {
        // SAFETY: `push` has seen that the range lies in a mapping of `memory`, which lives as long as self is neither changed nor
        // dropped, and which nothing refers to by reference.
        self.parts.iter().map(|(host, len)| unsafe { Span::new(*host, *len) })
    }
}

#[cfg(test)]
mod tests {
    use masq_driver::Gpa;

    use super::*;
    use crate::testing::guest_memory;

    #[test]
    fn ranges_outlive_the_guests_table() {
        let memory = Arc::new(guest_memory(&[(0, 0x2000)]));
        let other = guest_memory(&[(0, 0x2000)]);
        memory.span(Gpa(0x1000), 4).unwrap().write(b"abcd");
        let mut pinned = Pinned::default();
        assert!(!pinned.push(&memory.span(Gpa(0), 1).unwrap()), "there is no table");
        pinned.begin(&memory);
        assert!(pinned.push(&memory.span(Gpa(0x1000), 4).unwrap()));
        assert!(!pinned.push(&other.span(Gpa(0x1000), 4).unwrap()), "another table's");
        drop(memory);
        let mut read = Vec::new();
        pinned.spans().for_each(|s| s.append_to(&mut read));
        assert_eq!(read, b"abcd");
        pinned.clear();
        assert_eq!(pinned.spans().count(), 0);
    }
}
