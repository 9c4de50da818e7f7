//! A model of a queue pair's group: whatever the order in which chunks are done, memory and receives must look as if every request had
//! been executed alone and in order.

use proptest::prelude::*;
use std::collections::VecDeque;
use std::vec::Vec;
use std::{format, vec};

use super::*;

const MEMORY: usize = 160;
/// Two keys name the same memory by different addresses.
const BASES: [u64; 2] = [0, 5000];
const SPINE: u32 = 128;

fn small(chunk_entries: u32) -> Limits {
    Limits {
        threshold_bytes: 12,
        chunk_shift_min: 2,
        chunk_shift_max: 4,
        chunks_per_path: 2,
        tail_bytes: 4,
        chunk_entries,
    }
}

#[derive(Clone, Copy, Debug)]
struct Op {
    kind: Kind,
    bytes: usize,
    remote: usize,
    local: usize,
    key: usize,
    scattered: bool,
    fence: bool,
}

fn any_op() -> impl Strategy<Value = Op> {
    let kind = prop_oneof![
        4 => Just(Kind::Write),
        1 => Just(Kind::WriteImm),
        4 => Just(Kind::Read),
        1 => Just(Kind::Send),
    ];
    (kind, 1usize..=80, 0usize..=80, 0usize..=80, prop_oneof![9 => Just(0usize), 1 => Just(1)], 0u8..20)
        .prop_map(|(kind, bytes, remote, local, key, odd)| Op {
            kind,
            bytes,
            // Places are coarse, so that messages often have the same.
            remote: remote / 8 * 8,
            local: local / 8 * 8,
            key,
            scattered: odd == 0,
            fence: odd == 1,
        })
}

/// What verbs leave open is not asked: who sends from the target of a READ that may be under way has a fence (IBTA Vol 1 §10.8.3.3).
fn fenced(mut ops: Vec<Op>) -> Vec<Op> {
    let meets = |a: &Op, b: &Op| a.local < b.local + b.bytes && b.local < a.local + a.bytes;
    for i in 0..ops.len() {
        let (before, rest) = ops.split_at_mut(i);
        let op = &mut rest[0];
        op.fence |=
            op.kind != Kind::Read && before.iter().any(|old| old.kind == Kind::Read && meets(old, op));
    }
    ops
}

#[derive(Clone, Debug, PartialEq)]
struct Memory {
    remote: Vec<u8>,
    local: Vec<u8>,
    receives: Vec<Vec<u8>>,
}

impl Memory {
    fn new() -> Self {
        let pattern = |salt: usize| (0..MEMORY).map(|i| (i * 7 + salt) as u8).collect();
        Self { remote: pattern(1), local: pattern(100), receives: vec![] }
    }

    fn fetch(&self, part: &Part) -> Vec<u8> {
        let (from, memory) = match part.op.kind {
            Kind::Read => (part.op.remote, &self.remote),
            _ => (part.op.local, &self.local),
        };
        memory[from + part.offset..][..part.bytes].to_vec()
    }

    fn store(&mut self, part: &Part, data: &[u8]) {
        let to = match part.op.kind {
            Kind::Write | Kind::WriteImm => &mut self.remote[part.op.remote..],
            Kind::Read => &mut self.local[part.op.local..],
            Kind::Send => {
                let receive = part.receive as usize;
                if self.receives.len() <= receive {
                    self.receives.resize(receive + 1, vec![]);
                }
                let buffer = &mut self.receives[receive];
                buffer.resize(buffer.len().max(part.offset + part.bytes), 0);
                buffer
            }
        };
        to[part.offset..][..part.bytes].copy_from_slice(data);
    }
}

#[derive(Clone, Copy, Debug)]
struct Part {
    op: Op,
    offset: usize,
    bytes: usize,
    receive: u32,
}

#[derive(Debug)]
enum Spine {
    Wait(u32),
    Request(Part),
}

#[derive(Debug)]
enum Step {
    Taken,
    Fetched(Vec<u8>),
    Stored,
}

struct Group {
    chunk_entries: u32,
    splitter: Splitter,
    memory: Memory,
    spine: VecDeque<Spine>,
    spine_done: u32,
    /// The chunks that wait, and those under way, by index.
    waiting: VecDeque<Chunk>,
    parts: VecDeque<Part>,
    under_way: Vec<(u32, Part, Step)>,
    taken: u32,
    done: Vec<u32>,
    prefix: u32,
    receives_taken: u32,
    /// What the guest knows.
    known: (u32, u32),
    split: usize,
}

impl Group {
    fn new(paths: u32, chunk_entries: u32, start: u32) -> Self {
        let mut splitter = Splitter::new(small(chunk_entries));
        splitter.connect(paths);
        splitter.at.chunk_next = start;
        splitter.at.spine_next = start;
        Self {
            chunk_entries,
            splitter,
            memory: Memory::new(),
            spine: VecDeque::new(),
            spine_done: start,
            waiting: VecDeque::new(),
            parts: VecDeque::new(),
            under_way: vec![],
            taken: start,
            done: vec![],
            prefix: start,
            receives_taken: 0,
            known: (start, start),
            split: 0,
        }
    }

    fn progress(&self) -> Progress {
        let spine_next = self.spine_done.wrapping_add(self.spine.len() as u32);
        let spine_free = SPINE - spine_next.wrapping_sub(self.known.0);
        Progress {
            spine_next,
            spine_done: self.known.0,
            spine_free,
            chunks_done: self.known.1,
            chunks_kept: 0,
            messages: 0,
        }
    }

    fn message(op: &Op) -> Message {
        let key = op.key as u32;
        Message {
            kind: op.kind,
            bytes: op.bytes as u32,
            remote: Place { key, addr: BASES[op.key] + op.remote as u64 },
            local: (!op.scattered).then(|| Place { key, addr: BASES[op.key] + op.local as u64 }),
            fence: op.fence,
        }
    }

    /// Posts a request, if the spine has room.
    fn post(&mut self, op: Op) -> Result<bool, TestCaseError> {
        let progress = self.progress();
        if progress.spine_free == 0 {
            return Ok(false);
        }
        let whole = Part { op, offset: 0, bytes: op.bytes, receive: u32::MAX };
        let first = self.splitter.chunk_next();
        let Some(mut split) = self.splitter.split(&Self::message(&op), progress) else {
            self.splitter.plain(op.kind.takes_receive().into());
            self.spine.push_back(Spine::Request(whole));
            return Ok(true);
        };
        let (wait, tail, receive) = (split.wait(), split.tail(), split.receive());
        let (chunks, _) = split.size_hint();
        let mut at = 0;
        for chunk in split.by_ref() {
            prop_assert_eq!(chunk.offset, at);
            prop_assert!(chunk.bytes > 0);
            at += chunk.bytes;
            self.waiting.push_back(chunk);
            self.parts.push_back(Part {
                offset: chunk.offset as usize,
                bytes: chunk.bytes as usize,
                receive,
                ..whole
            });
        }
        prop_assert_eq!((tail.offset, tail.bytes), (at, op.bytes as u32 - at));
        prop_assert!((1..=4).contains(&tail.bytes));
        prop_assert_eq!(wait, first.wrapping_add(chunks as u32));
        prop_assert_eq!(wait, self.splitter.chunk_next());
        prop_assert!(wait.wrapping_sub(self.known.1) <= self.chunk_entries);
        self.spine.push_back(Spine::Wait(wait));
        self.spine.push_back(Spine::Request(Part {
            offset: at as usize,
            bytes: tail.bytes as usize,
            receive,
            ..whole
        }));
        self.split += 1;
        Ok(true)
    }

    /// Splits some requests and takes them back.
    fn post_in_vain(&mut self, ops: &[Op]) {
        let checkpoint = self.splitter.checkpoint();
        let mut progress = self.progress();
        for op in ops {
            let entries = match self.splitter.split(&Self::message(op), progress) {
                Some(_) => 2,
                None => {
                    self.splitter.plain(op.kind.takes_receive().into());
                    1
                }
            };
            progress.spine_next = progress.spine_next.wrapping_add(entries);
            progress.spine_free = progress.spine_free.saturating_sub(entries);
        }
        self.splitter.roll_back(checkpoint);
    }

    fn reached(&self, index: u32, done: u32) -> bool {
        done.wrapping_sub(index) < 1 << 31
    }

    /// One of the things that can happen, by chance. False if nothing can.
    fn step(&mut self, chance: usize) -> Result<bool, TestCaseError> {
        for turn in 0..3 {
            let moved = match (chance + turn) % 3 {
                0 => self.step_spine()?,
                1 => self.take_chunk(),
                _ => self.step_chunk(chance / 3),
            };
            if moved {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn step_spine(&mut self) -> Result<bool, TestCaseError> {
        match self.spine.front() {
            Some(Spine::Wait(prefix)) if !self.reached(*prefix, self.prefix) => return Ok(false),
            Some(Spine::Wait(_)) => {}
            Some(Spine::Request(part)) => {
                let mut part = *part;
                if part.op.kind.takes_receive() {
                    prop_assert!(part.offset == 0 || part.receive == self.receives_taken);
                    part.receive = self.receives_taken;
                    self.receives_taken += 1;
                }
                let data = self.memory.fetch(&part);
                self.memory.store(&part, &data);
            }
            None => return Ok(false),
        }
        self.spine.pop_front();
        self.spine_done = self.spine_done.wrapping_add(1);
        Ok(true)
    }

    fn take_chunk(&mut self) -> bool {
        let Some(chunk) = self.waiting.front() else { return false };
        let may_start = chunk.after_chunk.is_none_or(|index| self.reached(index, self.prefix))
            && chunk.after_spine.is_none_or(|index| self.reached(index, self.spine_done));
        if !may_start {
            return false;
        }
        self.waiting.pop_front();
        self.under_way.extend(self.parts.pop_front().map(|part| (self.taken, part, Step::Taken)));
        self.taken = self.taken.wrapping_add(1);
        true
    }

    fn step_chunk(&mut self, chance: usize) -> bool {
        if self.under_way.is_empty() {
            return false;
        }
        let which = chance % self.under_way.len();
        let (index, part, step) = &mut self.under_way[which];
        match step {
            Step::Taken => *step = Step::Fetched(self.memory.fetch(part)),
            Step::Fetched(data) => {
                self.memory.store(part, data);
                *step = Step::Stored;
            }
            Step::Stored => {
                self.done.push(*index);
                self.under_way.swap_remove(which);
                while let Some(at) = self.done.iter().position(|index| *index == self.prefix) {
                    self.done.swap_remove(at);
                    self.prefix = self.prefix.wrapping_add(1);
                }
            }
        }
        true
    }
}

fn in_order(ops: &[Op]) -> Memory {
    let mut memory = Memory::new();
    let mut receive = 0;
    for op in ops {
        let part = Part { op: *op, offset: 0, bytes: op.bytes, receive };
        receive += u32::from(op.kind.takes_receive());
        let data = memory.fetch(&part);
        memory.store(&part, &data);
    }
    memory
}

/// Returns how many messages were split.
fn check(ops: &[Op], chances: &[u16], mut group: Group) -> Result<usize, TestCaseError> {
    let mut next = 0;
    // No round is like the one before, so that everything has its turn.
    let mut chances = chances.iter().cycle().enumerate().map(|(i, c)| usize::from(*c) + i + i / 64);
    loop {
        let chance = chances.next().unwrap_or(0);
        if chance.is_multiple_of(5) {
            group.known = (group.spine_done, group.prefix);
        }
        if chance.is_multiple_of(31) {
            group.post_in_vain(&ops[..chance % ops.len()]);
        }
        if next < ops.len() && chance.is_multiple_of(8) && group.post(ops[next])? {
            next += 1;
        } else if !group.step(chance / 8)? {
            if next == ops.len() {
                break;
            }
            // All is done that was posted.
            prop_assert!(group.spine.is_empty() && group.waiting.is_empty(), "nothing can go on");
            group.known = (group.spine_done, group.prefix);
        }
    }
    prop_assert!(group.spine.is_empty() && group.waiting.is_empty() && group.under_way.is_empty());
    prop_assert_eq!(group.prefix, group.splitter.chunk_next());
    prop_assert_eq!(&group.memory, &in_order(ops));
    Ok(group.split)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, ..ProptestConfig::default() })]

    #[test]
    fn a_split_looks_like_requests_in_order(
        ops in prop::collection::vec(any_op(), 1..60).prop_map(fenced),
        chances in prop::collection::vec(any::<u16>(), 64),
        paths in 2u32..6,
        chunk_entries in prop::sample::select(&[16, 64, 256][..]),
        start in prop_oneof![Just(0u32), u32::MAX - 60..=u32::MAX],
    ) {
        check(&ops, &chances, Group::new(paths, chunk_entries, start))?;
    }
}

/// With chunks of 32 KiB as long as there is room.
const LIMITS: Limits = Limits { chunk_shift_min: 15, chunk_shift_max: 15, ..Limits::new(1024) };
const MIB: u32 = 1 << 20;

fn connected(paths: u32) -> Splitter {
    let mut splitter = Splitter::new(LIMITS);
    splitter.connect(paths);
    splitter
}

fn idle(spine_next: u32) -> Progress {
    Progress { spine_next, spine_done: 0, spine_free: 64, chunks_done: 0, chunks_kept: 0, messages: 0 }
}

fn write(addr: u64, bytes: u32) -> Message {
    let place = Place { key: 7, addr };
    Message { kind: Kind::Write, bytes, remote: place, local: Some(place), fence: false }
}

fn read(addr: u64, bytes: u32) -> Message {
    Message { kind: Kind::Read, ..write(addr, bytes) }
}

/// Splits a message as the next that is posted; what stands in the spine before it is split as well.
fn chunks(splitter: &mut Splitter, message: Message) -> Vec<Chunk> {
    let next = splitter.at.spine_next;
    splitter.split(&message, idle(next)).map(Iterator::collect).unwrap_or_default()
}

#[test]
fn small_messages_and_single_paths_are_left_alone() {
    let mut splitter = connected(4);
    assert!(!splitter.is_large((128 << 10) - 1) && splitter.is_large(128 << 10));
    assert!(splitter.split(&write(0, (128 << 10) - 1), idle(0)).is_none());
    splitter.connect(1);
    assert!(!splitter.is_large(u64::from(u32::MAX)));
    assert!(splitter.split(&write(0, MIB), idle(0)).is_none());
    splitter.connect(4);
    splitter.reset();
    assert!(!splitter.is_large(u64::from(MIB)));
}

#[test]
fn chunks_grow_with_the_message_and_shrink_with_the_paths() {
    let size = |paths, bytes| {
        let mut splitter = Splitter::new(Limits::new(1024));
        splitter.connect(paths);
        chunks(&mut splitter, write(0, bytes))[0].bytes
    };
    let kib = |bytes| [2, 4, 8, 10, 16].map(|paths| size(paths, bytes) >> 10);
    assert_eq!(kib(128 << 10), [24, 32, 16, 16, 16]);
    assert_eq!(kib(256 << 10), [32, 24, 32, 28, 16]);
    // Each path has its share of few chunks, or of many.
    assert_eq!(kib(MIB), [128, 88, 128, 104, 64]);
    assert_eq!(kib(8 * MIB), [256, 256, 256, 208, 128]);
    assert_eq!(kib(64 * MIB), [256; 5]);
    // 4,095 MiB are more than 1,024 chunks of 256 KiB.
    assert_eq!(kib(u32::MAX), [4 << 10; 5]);
}

#[test]
fn where_many_are_under_way_each_has_its_share() {
    let splitter = connected(4);
    let with =
        |messages| splitter.clone().split(&write(0, MIB), Progress { messages, ..idle(0) }).unwrap().count();
    assert_eq!([0, 31, 32, 127, 200, 1000].map(with), [32, 32, 29, 8, 5, 4]);
    assert_eq!(with(u32::MAX), 4);
}

#[test]
fn no_room_leaves_a_message_whole_and_forgets_nothing() {
    let mut splitter = connected(4);
    let before = splitter.checkpoint();
    assert!(splitter.split(&write(0, MIB), Progress { spine_free: 1, ..idle(0) }).is_none());
    let mut full = connected(4);
    full.at.chunk_next = 1024;
    assert!(full.split(&write(0, MIB), idle(0)).is_none());
    assert_eq!(splitter.checkpoint(), before);
    // Room for few chunks makes them larger, and so does what is kept for others; even one chunk that takes any path is better than a message that takes the first.
    full.at.chunk_next = 1014;
    assert_eq!(chunks(&mut full.clone(), write(0, MIB)).len(), 10);
    let keeps = |chunks_kept| {
        full.clone().split(&write(0, MIB), Progress { chunks_kept, ..idle(0) }).map(Iterator::count)
    };
    assert_eq!([0, 3, 6, 7, u32::MAX].map(keeps), [Some(10), Some(7), Some(4), Some(3), None]);
}

#[test]
fn a_message_to_the_same_place_waits_chunk_by_chunk() {
    let mut splitter = connected(4);
    let first = chunks(&mut splitter, write(0, MIB));
    assert!(first.iter().all(|chunk| chunk.after_chunk.is_none() && chunk.after_spine.is_none()));
    let second = chunks(&mut splitter, write(0, MIB));
    let after: Vec<_> = second.iter().map(|chunk| (chunk.after_chunk, chunk.after_spine)).collect();
    assert_eq!(after, (1..=second.len() as u32).map(|i| (Some(i), None)).collect::<Vec<_>>());
    // The newest of several is the one that counts.
    let third = chunks(&mut splitter, write(0, MIB));
    assert_eq!(third[0].after_chunk, Some(first.len() as u32 + 1));
}

#[test]
fn messages_that_do_not_meet_wait_for_nothing() {
    let mut splitter = connected(4);
    for i in 0..OUTSTANDING as u64 {
        let kind = [Kind::Write, Kind::Read, Kind::WriteImm][i as usize % 3];
        let message = Message { kind, ..write(i << 20, MIB) };
        for chunk in chunks(&mut splitter, message) {
            assert_eq!((chunk.after_chunk, chunk.after_spine), (None, None));
        }
    }
    // The next one waits for the oldest alone.
    let chunk = chunks(&mut splitter, write(1 << 40, MIB))[3];
    assert_eq!((chunk.after_chunk, chunk.after_spine), (Some(32), Some(2)));
}

#[test]
fn what_meets_a_tail_waits_for_the_spine() {
    let mut splitter = connected(4);
    chunks(&mut splitter, write(0, MIB));
    let longer = chunks(&mut splitter, write(0, 2 * MIB));
    let (meets, rest) = longer.split_at(longer.iter().position(|c| c.offset >= MIB).unwrap_or(0));
    assert_eq!(meets.last().map(|chunk| (chunk.after_chunk, chunk.after_spine)), Some((Some(32), Some(2))));
    assert!(rest.iter().all(|chunk| chunk.after_chunk.is_none() && chunk.after_spine.is_none()));
}

#[test]
fn reads_watch_their_own_memory_and_writes_do_not() {
    let far = |kind, local| {
        let remote = Place { key: 7, addr: 1 << 40 };
        Message { kind, local: Some(Place { key: 7, addr: local }), remote, ..write(0, MIB) }
    };
    let mut splitter = connected(4);
    chunks(&mut splitter, write(0, MIB));
    assert_eq!(chunks(&mut splitter.clone(), far(Kind::Write, 0))[0].after_chunk, None);
    assert_eq!(chunks(&mut splitter.clone(), far(Kind::Read, 0))[0].after_chunk, Some(1));
    assert_eq!(chunks(&mut splitter.clone(), far(Kind::Read, 4 << 20))[0].after_chunk, None);
    let scattered = Message { local: None, ..far(Kind::Read, 0) };
    let whole = chunks(&mut splitter, scattered)[0];
    assert_eq!((whole.after_chunk, whole.after_spine), (Some(32), Some(2)));
}

#[test]
fn other_keys_may_name_the_same_memory() {
    let mut splitter = connected(4);
    chunks(&mut splitter, write(0, MIB));
    let other = Message { remote: Place { key: 8, addr: 1 << 30 }, ..write(0, MIB) };
    let chunk = chunks(&mut splitter, other)[0];
    assert_eq!((chunk.after_chunk, chunk.after_spine), (Some(32), Some(2)));
}

#[test]
fn requests_that_are_not_split_are_waited_for() {
    let mut splitter = connected(4);
    splitter.plain(1);
    let mut split =
        splitter.split(&Message { kind: Kind::Send, ..write(0, MIB) }, idle(5)).expect("there is room");
    assert_eq!(split.receive(), 1);
    assert_eq!(split.tail(), Tail { offset: MIB - 4096, bytes: 4096 });
    assert_eq!(split.next().map(|chunk| chunk.after_spine), Some(Some(5)));
    // The next one too, though none stands between.
    assert_eq!(chunks(&mut splitter, write(0, MIB))[0].after_spine, Some(5));
    // Until it is known that they are done.
    let later = Progress { spine_done: 5, ..idle(9) };
    let mut split = splitter.split(&write(4 << 20, MIB), later).expect("there is room");
    assert_eq!(split.receive(), 2);
    assert_eq!(split.next().map(|chunk| chunk.after_spine), Some(None));
}

#[test]
fn a_fence_waits_for_reads() {
    let mut splitter = connected(4);
    chunks(&mut splitter, read(0, MIB));
    chunks(&mut splitter, write(4 << 20, MIB));
    assert_eq!(chunks(&mut splitter, write(8 << 20, MIB))[0].after_spine, None);
    let fenced = Message { fence: true, ..write(12 << 20, MIB) };
    assert_eq!(chunks(&mut splitter, fenced)[0].after_spine, Some(2));
}

#[test]
fn a_tail_is_remembered_when_its_chunks_are_done() {
    let mut splitter = connected(4);
    chunks(&mut splitter, write(0, MIB));
    let progress = Progress { chunks_done: 32, ..idle(2) };
    let last = splitter.split(&write(0, 2 * MIB), progress).and_then(|split| split.take(32).last());
    assert_eq!(last.map(|chunk| (chunk.after_chunk, chunk.after_spine)), Some((None, Some(2))));
}

#[test]
fn what_a_batch_made_forgotten_is_waited_for_when_the_batch_is_taken_back() {
    let mut splitter = connected(4);
    for i in 0..4 {
        chunks(&mut splitter, write(i << 20, MIB));
    }
    let checkpoint = splitter.checkpoint();
    let (chunk_end, spine_end) = (splitter.chunk_next(), splitter.at.spine_next);
    for i in 0..20 {
        assert!(!chunks(&mut splitter, write(i << 30, MIB)).is_empty());
    }
    splitter.roll_back(checkpoint);
    assert_eq!(splitter.checkpoint(), checkpoint);
    let chunk = chunks(&mut splitter, write(1 << 50, MIB))[0];
    assert_eq!((chunk.after_chunk, chunk.after_spine), (Some(chunk_end), Some(spine_end)));
}

#[test]
fn an_idle_while_leaves_nothing_to_wait_for() {
    let mut splitter = connected(4);
    chunks(&mut splitter, write(0, MIB));
    // Billions of small requests later, old indexes mean nothing.
    for spine in [1u32 << 31, u32::MAX, 2, 3] {
        let progress = Progress { spine_done: spine, chunks_done: 32, ..idle(spine) };
        let mut next = splitter.clone();
        let chunk = next
            .split(&Message { fence: true, ..write(0, MIB) }, progress)
            .and_then(|mut split| split.next());
        assert_eq!(chunk.map(|chunk| (chunk.after_chunk, chunk.after_spine)), Some((None, None)), "{spine}");
    }
}

#[test]
fn the_model_splits() {
    // The property above says nothing if nothing is split.
    let op = Op { kind: Kind::Write, bytes: 80, remote: 0, local: 0, key: 0, scattered: false, fence: false };
    let chances: Vec<u16> = (0..64).map(|i| i * 37 % 101).collect();
    let split = check(&[op; 30], &chances, Group::new(3, 256, 0));
    assert!(matches!(split, Ok(25..)), "{}", format!("{split:?}"));
}
