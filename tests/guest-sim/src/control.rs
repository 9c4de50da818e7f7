//! The control queue, as the kernel module uses it.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use vrdma_abi::control::{PageTable, Reply, Request};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::memory::{GuestRam, Mapping, PAGE};
use crate::virtqueue::{Buffer, DriverQueue};

const TIMEOUT: Duration = Duration::from_secs(20);

/// Why a command failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ControlError {
    /// The host refused, with a Linux errno.
    #[error("errno {0}")]
    Errno(i32),
    /// The host did not answer.
    #[error("no answer")]
    Timeout,
    /// The answer is too short for what was asked.
    #[error("short answer of {0} bytes")]
    Short(u32),
}

impl ControlError {
    /// The errno, or 0 when there was none.
    pub fn errno(self) -> i32 {
        match self {
            ControlError::Errno(e) => e,
            _ => 0,
        }
    }
}

/// The control queue; one command at a time.
pub struct ControlQueue {
    ram: GuestRam,
    state: Mutex<State>,
}

struct State {
    queue: DriverQueue,
    request: Mapping,
    reply: Mapping,
    tag: u32,
    epoch: u64,
}

impl ControlQueue {
    pub(crate) fn new(ram: &GuestRam, queue: DriverQueue, epoch: u64) -> Self {
        let state = State { queue, request: ram.alloc(1), reply: ram.alloc(1), tag: 0, epoch };
        ControlQueue { ram: ram.clone(), state: Mutex::new(state) }
    }

    /// Names another epoch from now on.
    pub fn set_epoch(&self, epoch: u64) {
        self.state.lock().unwrap().epoch = epoch;
    }

    /// A command without a reply of its own.
    pub fn run<C: IntoBytes + Immutable>(&self, opcode: u16, command: &C) -> Result<(), ControlError> {
        self.raw(opcode, command.as_bytes(), 0).map(drop)
    }

    /// A command with a reply.
    pub fn call<C: IntoBytes + Immutable, R: FromBytes>(
        &self,
        opcode: u16,
        command: &C,
    ) -> Result<R, ControlError> {
        let bytes = self.raw(opcode, command.as_bytes(), size_of::<R>())?;
        R::read_from_bytes(&bytes).map_err(|_| ControlError::Short(bytes.len() as u32))
    }

    /// Any bytes as a command's structure; returns those that follow the head of the reply.
    pub fn raw(&self, opcode: u16, command: &[u8], reply_len: usize) -> Result<Vec<u8>, ControlError> {
        let mut s = self.state.lock().unwrap();
        s.tag = s.tag.wrapping_add(1);
        let head = Request { opcode, flags: 0, tag: s.tag, epoch: s.epoch };
        let mut bytes = head.as_bytes().to_vec();
        bytes.extend_from_slice(command);
        let reply = s.exchange(&bytes, Reply::SIZE + reply_len)?;
        let Ok((head, rest)) = Reply::read_from_prefix(&reply) else {
            return Err(ControlError::Short(reply.len() as u32));
        };
        assert_eq!(head.tag, s.tag, "the reply belongs to the request");
        if head.status != 0 {
            return Err(ControlError::Errno(head.status as i32));
        }
        if rest.len() < reply_len { Err(ControlError::Short(reply.len() as u32)) } else { Ok(rest.to_vec()) }
    }

    /// Sends any bytes, head included; returns what came back.
    pub fn exchange(&self, request: &[u8], reply_len: usize) -> Result<Vec<u8>, ControlError> {
        self.state.lock().unwrap().exchange(request, reply_len)
    }

    /// The virtqueue itself, for tests that spoil it.
    pub fn with_queue<T>(&self, use_it: impl FnOnce(&mut DriverQueue) -> T) -> T {
        use_it(&mut self.state.lock().unwrap().queue)
    }

    /// Tables that list `gpas`, which are pages of `1 << page_shift` bytes. Keep the mapping until the
    /// command is done.
    pub fn page_table(&self, gpas: &[u64], page_shift: u8) -> (PageTable, Option<Mapping>) {
        page_table(&self.ram, gpas, page_shift)
    }
}

impl State {
    fn exchange(&mut self, request: &[u8], reply_len: usize) -> Result<Vec<u8>, ControlError> {
        self.request.write(0, request);
        self.reply.fill(0, reply_len.max(1), 0);
        let chain = [
            Buffer { gpa: self.request.gpa(0), len: request.len() as u32, writable: false },
            Buffer { gpa: self.reply.gpa(0), len: reply_len as u32, writable: true },
        ];
        self.queue.add(&chain).expect("an eventfd can be written").expect("one command at a time");
        let deadline = Instant::now() + TIMEOUT;
        loop {
            if let Some((_, written)) = self.queue.pop() {
                return Ok(self.reply.read(0, written as usize));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(ControlError::Timeout);
            }
            self.queue.wait(left);
        }
    }
}

fn page_table(ram: &GuestRam, gpas: &[u64], page_shift: u8) -> (PageTable, Option<Mapping>) {
    const PER_TABLE: usize = PAGE / 8;
    let count = gpas.len() as u32;
    if let [only] = gpas {
        let table = PageTable { addr: *only, count, page_shift, levels: 0, reserved: 0 };
        return (table, None);
    }
    // All tables of all levels in one mapping: leaves first, the top last.
    let mut tables = 0;
    let mut width = gpas.len();
    let mut levels = 0;
    while levels == 0 || width > 1 {
        width = width.div_ceil(PER_TABLE).max(1);
        tables += width;
        levels += 1;
    }
    let mapping = ram.alloc(tables);
    let mut entries = gpas.to_vec();
    let mut at = 0;
    for _ in 0..levels {
        let mut above = Vec::new();
        for chunk in entries.chunks(PER_TABLE) {
            let bytes: Vec<u8> = chunk.iter().flat_map(|g| g.to_le_bytes()).collect();
            mapping.write(at * PAGE, &bytes);
            above.push(mapping.gpa(at * PAGE));
            at += 1;
        }
        entries = above;
    }
    let addr = entries.first().copied().unwrap_or_else(|| mapping.gpa(0));
    (PageTable { addr, count, page_shift, levels, reserved: 0 }, Some(mapping))
}
