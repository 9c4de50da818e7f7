// The only code that reads and writes guest memory. It works on raw pointers, because the guest changes
// the bytes at any time: a reference into them would promise what nobody keeps.
#![allow(unsafe_code)]

use std::marker::PhantomData;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering, fence};

/// A range of guest memory that has been checked to be mapped.
///
/// The guest reads and writes the bytes at the same time: two reads of one byte may differ, and a copy
/// may mix old and new bytes. Offsets are checked against the span; a method returns `None`
/// or `false` when they leave it or, for words, are not aligned.
#[derive(Clone, Copy, Debug)]
pub struct Span<'m> {
    host: NonNull<u8>,
    len: usize,
    memory: PhantomData<&'m ()>,
}

impl<'m> Span<'m> {
    /// A span of `len` bytes at `host`.
    ///
    /// # Safety
    ///
    /// The bytes must be mapped readable and writable for as long as `'m`, and nothing may hold a
    /// reference to them.
    pub(super) unsafe fn new(host: NonNull<u8>, len: usize) -> Self {
        Self { host, len, memory: PhantomData }
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Where it is, and how long.
    pub(super) fn parts(&self) -> (NonNull<u8>, usize) {
        (self.host, self.len)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The part `offset .. offset + len`.
    pub fn part(&self, offset: usize, len: usize) -> Option<Span<'m>> {
        let end = offset.checked_add(len)?;
        // SAFETY: end <= self.len, and self's bytes are mapped for 'm.
        (end <= self.len).then(|| unsafe { Span::new(self.host.add(offset), len) })
    }

    /// Splits in two; the first part has at most `at` bytes.
    pub fn split(self, at: usize) -> (Span<'m>, Span<'m>) {
        let at = at.min(self.len);
        // SAFETY: at <= self.len, and self's bytes are mapped for 'm.
        unsafe { (Span::new(self.host, at), Span::new(self.host.add(at), self.len - at)) }
    }

    /// Whether `next` begins in host memory where this span ends.
    pub(crate) fn joins(&self, next: &Span<'_>) -> bool {
        self.host.as_ptr().wrapping_add(self.len) == next.host.as_ptr()
    }

    /// This span and `next`, which [`joins`](Self::joins) it.
    pub(crate) fn join(self, next: Span<'m>) -> Option<Span<'m>> {
        // SAFETY: both are mapped for 'm and lie side by side.
        self.joins(&next).then(|| unsafe { Span::new(self.host, self.len + next.len) })
    }

    /// Copies the span's bytes out, as many as `to` takes; returns how many.
    pub fn read(&self, to: &mut [u8]) -> usize {
        let n = self.len.min(to.len());
        // SAFETY: n bytes are mapped at host, `to` is ours, and guest memory never overlaps it.
        unsafe { ptr::copy_nonoverlapping(self.host.as_ptr(), to.as_mut_ptr(), n) };
        n
    }

    /// Appends the span's bytes to `to`.
    pub fn append_to(&self, to: &mut Vec<u8>) {
        to.reserve(self.len);
        let old = to.len();
        // SAFETY: reserve made room for len bytes behind the old ones; they are written before set_len
        // declares them.
        unsafe {
            ptr::copy_nonoverlapping(self.host.as_ptr(), to.as_mut_ptr().add(old), self.len);
            to.set_len(old + self.len);
        }
    }

    /// Copies `from` into the span, as much as fits; returns how much.
    pub fn write(&self, from: &[u8]) -> usize {
        let n = self.len.min(from.len());
        // SAFETY: `from` is ours, so it does not overlap guest memory; n bytes of it are read.
        self.change(n, |to| unsafe { ptr::copy_nonoverlapping(from.as_ptr(), to, n) });
        n
    }

    /// Copies `from`'s bytes into the span, as many as fit; returns how many. The two may overlap.
    pub fn write_span(&self, from: &Span<'_>) -> usize {
        let n = self.len.min(from.len);
        let source = from.host.as_ptr();
        // SAFETY: n bytes are mapped at both ends; `copy` allows overlap.
        self.change(n, |to| unsafe { ptr::copy(source, to, n) });
        n
    }

    /// As [`write`](Self::write), but the last aligned eight bytes become visible after all others, and the
    /// last byte after all of those: programs poll it to see that a message has arrived.
    pub fn write_tail_last(&self, from: &[u8]) -> usize {
        let n = self.len.min(from.len());
        let (head, tail) = from[..n].split_at(self.tail_at(n));
        let (first, last) = self.split(head.len());
        first.write(head);
        fence(Ordering::Release);
        last.store_tail(tail);
        n
    }

    /// As [`write_span`](Self::write_span), with the last bytes stored last as in
    /// [`write_tail_last`](Self::write_tail_last).
    pub fn write_span_tail_last(&self, from: &Span<'_>) -> usize {
        let n = self.len.min(from.len);
        let at = self.tail_at(n);
        let mut tail = [0; 8];
        // Taken before the rest is written, for the case that the two overlap.
        let tail_len = match from.part(at, n - at) {
            Some(t) => t.read(&mut tail),
            None => 0,
        };
        let (first, last) = self.split(at);
        first.write_span(from);
        fence(Ordering::Release);
        last.store_tail(&tail[..tail_len]);
        n
    }

    /// Where the last aligned word of the first `n` bytes begins.
    fn tail_at(&self, n: usize) -> usize {
        let end = self.host.as_ptr() as usize + n;
        let word = end.saturating_sub(1) & !7;
        word.saturating_sub(self.host.as_ptr() as usize)
    }

    /// Stores at most eight bytes inside one aligned word: all at once when they fill it, else one by one.
    fn store_tail(&self, tail: &[u8]) {
        let whole = <[u8; 8]>::try_from(tail).map(u64::from_ne_bytes);
        if whole.is_ok_and(|word| self.store_u64(0, word)) {
            return;
        }
        for (i, byte) in tail.iter().enumerate() {
            if let Some(cell) = self.word::<AtomicU8>(i) {
                self.change(1, |_| cell.store(*byte, Ordering::Release));
            }
        }
    }

    /// Loads a word with acquire.
    pub fn load_u32(&self, offset: usize) -> Option<u32> {
        Some(self.word::<AtomicU32>(offset)?.load(Ordering::Acquire))
    }

    /// Loads a word with acquire.
    pub fn load_u64(&self, offset: usize) -> Option<u64> {
        Some(self.word::<AtomicU64>(offset)?.load(Ordering::Acquire))
    }

    /// Stores a word with release.
    pub fn store_u32(&self, offset: usize, value: u32) -> bool {
        let Some(cell) = self.word::<AtomicU32>(offset) else { return false };
        self.change(4, |_| cell.store(value, Ordering::Release));
        true
    }

    /// Stores a word with release.
    pub fn store_u64(&self, offset: usize, value: u64) -> bool {
        let Some(cell) = self.word::<AtomicU64>(offset) else { return false };
        self.change(8, |_| cell.store(value, Ordering::Release));
        true
    }

    /// Exchanges a byte.
    pub fn swap_u8(&self, offset: usize, value: u8) -> Option<u8> {
        let cell = self.word::<AtomicU8>(offset)?;
        Some(self.change(1, |_| cell.swap(value, Ordering::SeqCst)))
    }

    /// Exchanges a word.
    pub fn swap_u32(&self, offset: usize, value: u32) -> Option<u32> {
        let cell = self.word::<AtomicU32>(offset)?;
        Some(self.change(4, |_| cell.swap(value, Ordering::SeqCst)))
    }

    /// Stores `swap` if the word holds `compare`; returns what it held. Atomic towards the guest's CPUs.
    pub fn compare_swap_u64(&self, offset: usize, compare: u64, swap: u64) -> Option<u64> {
        let cell = self.word::<AtomicU64>(offset)?;
        let exchange = |_| cell.compare_exchange(compare, swap, Ordering::SeqCst, Ordering::SeqCst);
        Some(self.change(8, exchange).unwrap_or_else(|held| held))
    }

    /// Adds to the word, modulo 2^64; returns what it held. Atomic towards the guest's CPUs.
    pub fn fetch_add_u64(&self, offset: usize, add: u64) -> Option<u64> {
        let cell = self.word::<AtomicU64>(offset)?;
        Some(self.change(8, |_| cell.fetch_add(add, Ordering::SeqCst)))
    }

    /// The atomic cell at `offset`, if it lies in the span and is aligned.
    fn word<T: Word>(&self, offset: usize) -> Option<&'m T> {
        let end = offset.checked_add(size_of::<T>())?;
        let cell = self.host.as_ptr().wrapping_add(offset).cast::<T>();
        // SAFETY: the cell lies inside the span, is mapped for 'm and aligned; Word is implemented only for
        // atomic integers, which any bytes are a value of and which may be shared with other writers.
        (end <= self.len && cell.is_aligned()).then(|| unsafe { &*cell })
    }

    /// Every store into guest memory runs inside this function: a log of dirtied pages would be kept here.
    #[inline(always)]
    fn change<R>(&self, _bytes: usize, store: impl FnOnce(*mut u8) -> R) -> R {
        store(self.host.as_ptr())
    }
}

/// The atomic integers.
trait Word {}
impl Word for AtomicU8 {}
impl Word for AtomicU32 {}
impl Word for AtomicU64 {}

/// Copies the bytes of one series of spans to another, which cuts them differently, and returns how many
/// were copied: as many as the shorter has. With `tail_last` the last word written becomes visible last.
/// Stops at the first error of either.
pub fn copy_spans<'s, 'd, E>(
    from: impl IntoIterator<Item = Result<Span<'s>, E>>,
    to: impl IntoIterator<Item = Result<Span<'d>, E>>,
    total: usize,
    tail_last: bool,
) -> Result<usize, E> {
    let (mut from, mut to) = (from.into_iter(), to.into_iter());
    let mut source: Option<Span<'s>> = None;
    let mut target: Option<Span<'d>> = None;
    let mut copied = 0;
    while copied < total {
        let s = match source.take().filter(|s| !s.is_empty()) {
            Some(s) => s,
            None => match from.next() {
                Some(s) => s?,
                None => break,
            },
        };
        let t = match target.take().filter(|t| !t.is_empty()) {
            Some(t) => t,
            None => match to.next() {
                Some(t) => t?,
                None => break,
            },
        };
        let n = s.len().min(t.len()).min(total - copied);
        let ((s, s_rest), (t, t_rest)) = (s.split(n), t.split(n));
        if tail_last && copied + n == total {
            // A piece shorter than a word may not hold the whole tail: then order all of it behind what came before.
            fence(Ordering::Release);
            t.write_span_tail_last(&s);
        } else {
            t.write_span(&s);
        }
        copied += n;
        source = Some(s_rest);
        target = Some(t_rest);
    }
    Ok(copied)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Memory that nothing refers to otherwise, aligned to a word.
    struct Memory(Box<[u64]>);

    impl Memory {
        fn new(words: usize) -> Self {
            Memory(vec![0; words].into())
        }
        fn span(&mut self) -> Span<'_> {
            let len = self.0.len() * 8;
            // SAFETY: the box lives as long as the borrow and only the span is used meanwhile.
            unsafe { Span::new(NonNull::from(self.0.as_mut()).cast(), len) }
        }
    }

    #[test]
    fn parts_and_words_stay_inside() {
        let mut m = Memory::new(2);
        let s = m.span();
        assert!(s.part(8, 8).is_some() && s.part(9, 8).is_none() && s.part(usize::MAX, 2).is_none());
        assert!(s.store_u64(8, 7) && !s.store_u64(16, 7) && !s.store_u64(9, 7) && !s.store_u32(2, 7));
        assert_eq!(s.load_u64(8), Some(7));
        assert_eq!(s.load_u64(12), None);
        assert_eq!(s.load_u32(12), Some(0));
        assert_eq!(s.swap_u8(8, 0), Some(7));
        assert_eq!(s.swap_u8(16, 0), None);
    }

    #[test]
    fn atomics_wrap_and_return_the_old_value() {
        let mut m = Memory::new(1);
        let s = m.span();
        assert_eq!(s.fetch_add_u64(0, u64::MAX), Some(0));
        assert_eq!(s.fetch_add_u64(0, 2), Some(u64::MAX));
        assert_eq!(s.compare_swap_u64(0, 0, 9), Some(1));
        assert_eq!(s.compare_swap_u64(0, 1, 9), Some(1));
        assert_eq!(s.load_u64(0), Some(9));
    }

    #[test]
    fn tail_last_writes_the_same_bytes() {
        let data: Vec<u8> = (1..=40).collect();
        for start in 0..8 {
            for len in 0..=32 {
                let mut m = Memory::new(6);
                let s = m.span();
                assert_eq!(s.part(start, len).unwrap().write_tail_last(&data), len);
                let mut seen = [0; 48];
                s.read(&mut seen);
                let mut expected = [0; 48];
                expected[start..start + len].copy_from_slice(&data[..len]);
                assert_eq!(seen, expected, "start {start} len {len}");
            }
        }
    }

    #[test]
    fn copies_across_differing_cuts() {
        for tail_last in [false, true] {
            let (mut a, mut b) = (Memory::new(8), Memory::new(8));
            let (s, d) = (a.span(), b.span());
            s.write(&(0..64).collect::<Vec<u8>>());
            let from = [(0, 5), (5, 0), (5, 1), (30, 20)].map(|(o, l)| Ok::<_, ()>(s.part(o, l).unwrap()));
            let to = [(40, 3), (0, 9), (50, 14)].map(|(o, l)| Ok(d.part(o, l).unwrap()));
            assert_eq!(copy_spans(from, to, 100, tail_last), Ok(26));
            let mut out = [0; 64];
            d.read(&mut out);
            assert_eq!(out[40..43], [0, 1, 2]);
            assert_eq!(out[..9], [3, 4, 5, 30, 31, 32, 33, 34, 35]);
            assert_eq!(out[50..64], (36..50).collect::<Vec<u8>>());
        }
    }

    #[test]
    fn an_overlapping_copy_is_a_move() {
        for tail_last in [false, true] {
            let mut m = Memory::new(4);
            let s = m.span();
            s.write(&(0..32).collect::<Vec<u8>>());
            let (from, to) = (s.part(0, 16).unwrap(), s.part(3, 16).unwrap());
            copy_spans([Ok::<_, ()>(from)], [Ok(to)], 16, tail_last).unwrap();
            let mut out = [0; 16];
            to.read(&mut out);
            assert_eq!(out, core::array::from_fn(|i| i as u8));
        }
    }
}
