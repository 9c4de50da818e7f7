//! Messages from their posting to their completion.

use alloc::collections::VecDeque;

use super::control::Control;
use super::flight::Load;
use super::{Completed, Completion, Endpoint, Kind, Op, Request, Status, Work};
use crate::Nanos;
use crate::decompose::decompose;
use crate::split::Place;

/// A message.
#[derive(Clone, Copy, Debug)]
pub(super) struct Message {
    request: Request,
    small: bool,
    /// Which receive of the peer a SEND is for.
    sequence: u32,
    /// Something of it is under way.
    started: bool,
    /// Its first so many bytes have been posted, at least once. A small one's `data_posted` says more.
    posted: u32,
    data_posted: bool,
    /// Bytes that are complete.
    complete: u32,
    data_done: bool,
    notice_posted: bool,
    notice_done: bool,
}

impl Message {
    pub fn is_done(&self) -> bool {
        self.data_done && (self.notice_done || !self.is_send())
    }

    pub fn is_send(&self) -> bool {
        self.request.kind == Kind::Send
    }

    pub fn completion(&self, status: Status) -> Completion {
        let Request { wr_id, kind, bytes, .. } = self.request;
        let bytes = if status == Status::SUCCESS { bytes } else { 0 };
        Completion { wr_id, what: Completed::Sent(kind), status, bytes }
    }

    /// Whether one of the two must be complete before the other starts. Receives of SENDs are nobody else's.
    fn meets(&self, other: &Self) -> bool {
        let (a, b) = (&self.request, &other.request);
        let overlap = |own: Place, other: Place| {
            own.key != other.key
                || (own.addr < other.addr.saturating_add(u64::from(b.bytes))
                    && other.addr < own.addr.saturating_add(u64::from(a.bytes)))
        };
        let remote = a.kind != Kind::Send && b.kind != Kind::Send && overlap(a.remote, b.remote);
        let reads = a.kind == Kind::Read || b.kind == Kind::Read;
        remote || (reads && overlap(a.local, b.local))
    }
}

/// A part of a message that must be posted again.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    message: u64,
    offset: u32,
    bytes: u32,
}

/// Messages in the order of posting.
///
/// Those before the cursor are under way or done. Of those under way, either all are small and on one path, or all are large.
#[derive(Debug, Default)]
pub(super) struct Outbound {
    messages: VecDeque<Message>,
    /// Number of the first of them; messages are counted from 0.
    base: u64,
    /// Number of the message that is being posted.
    cursor: u64,
    /// Number of the next SEND.
    sends: u32,
    small_open: u32,
    large_open: u32,
    small_path: usize,
    again: VecDeque<Piece>,
}

impl Outbound {
    pub fn len(&self) -> usize {
        self.messages.len()
    }

    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    pub fn push(&mut self, request: Request, small: bool) {
        let sequence = self.sends;
        self.sends = sequence.wrapping_add(u32::from(request.kind == Kind::Send));
        // A SEND of no bytes is its end alone.
        let data_done = request.kind == Kind::Send && request.bytes == 0;
        self.messages.push_back(Message {
            request,
            small,
            sequence,
            started: false,
            posted: 0,
            data_posted: false,
            complete: 0,
            data_done,
            notice_posted: false,
            notice_done: false,
        });
    }

    fn get(&mut self, message: u64) -> Option<&mut Message> {
        let index = usize::try_from(message.checked_sub(self.base)?).ok()?;
        self.messages.get_mut(index)
    }

    pub fn data_done(&mut self, message: u64, bytes: u32) {
        if let Some(state) = self.get(message) {
            state.complete += bytes;
            state.data_done = state.complete == state.request.bytes;
            self.close(message);
        }
    }

    pub fn notice_done(&mut self, message: u64) {
        if let Some(state) = self.get(message) {
            state.notice_done = true;
            self.close(message);
        }
    }

    /// Counts a message that is done as no longer under way.
    fn close(&mut self, message: u64) {
        let Some(state) = self.get(message) else { return };
        if state.started && state.is_done() {
            state.started = false;
            match state.small {
                true => self.small_open -= 1,
                false => self.large_open -= 1,
            }
        }
    }

    /// Takes out the oldest message, if it is done.
    pub fn pop_done(&mut self) -> Option<Message> {
        self.messages.front().filter(|message| message.is_done())?;
        self.base += 1;
        self.cursor = self.cursor.max(self.base);
        self.messages.pop_front()
    }

    /// Takes out all, with their numbers.
    pub fn drain(&mut self) -> impl Iterator<Item = (u64, Message)> {
        self.again.clear();
        (self.small_open, self.large_open) = (0, 0);
        (self.base..).zip(core::mem::take(&mut self.messages))
    }

    /// Whether there are small messages under way on `path`.
    pub fn is_small_path(&self, path: usize) -> bool {
        self.small_open > 0 && self.small_path == path
    }

    /// A part's path has failed.
    pub fn piece(message: u64, offset: u32, bytes: u32) -> Piece {
        Piece { message, offset, bytes }
    }

    pub fn is_small(&mut self, message: u64) -> bool {
        self.get(message).is_some_and(|message| message.small)
    }

    /// A part can be posted again.
    pub fn again(&mut self, piece: Piece) {
        self.again.push_back(piece);
    }

    /// A large SEND's end can be told again: it is numbered, so that twice is not too often.
    pub fn end_again(&mut self, message: u64) {
        if let Some(state) = self.get(message) {
            state.notice_posted = false;
        }
    }

    /// The fate of the small messages that were under way is known: the peer has received so many SENDs. What was posted on the same queue pair
    /// before one of those has been done as well, READs because of its fence. The rest begins anew.
    pub fn restart_small(&mut self, received: u32) {
        let is_lost = |message: &Message| message.small && message.started;
        let executed = self.messages.iter().rposition(|message| {
            is_lost(message) && message.request.kind == Kind::Send && is_before(message.sequence, received)
        });
        self.small_open = 0;
        let mut first = None;
        for (index, message) in self.messages.iter_mut().enumerate().filter(|(_, message)| is_lost(message)) {
            message.started = false;
            if executed.is_some_and(|executed| index <= executed) {
                (message.data_done, message.notice_done) = (true, true);
            } else {
                (message.data_posted, message.notice_posted) = (false, false);
                first = first.or(Some(index));
            }
        }
        if let Some(first) = first {
            self.cursor = self.base + first as u64;
        }
    }

    #[cfg(test)]
    pub fn is_idle(&self) -> bool {
        self.messages.is_empty() && self.again.is_empty() && self.small_open == 0 && self.large_open == 0
    }
}

/// Whether the number comes before a count of the same kind.
fn is_before(sequence: u32, count: u32) -> bool {
    count.wrapping_sub(sequence).wrapping_sub(1) < 1 << 31
}

impl Endpoint {
    /// Parts that must be posted again.
    pub(super) fn again_work(&mut self, now: Nanos) -> Option<Work> {
        let Piece { message, offset, bytes } = *self.out.again.front()?;
        let path = self.choose(bytes)?;
        let part = self.chunk_bytes(path, bytes);
        self.out.again.pop_front();
        if part < bytes {
            let rest = Piece { message, offset: offset + part, bytes: bytes - part };
            self.out.again.push_front(rest);
        }
        self.data_work(path, message, offset, part, now)
    }

    /// The end of the oldest message, if it is a large SEND all of whose data have come.
    pub(super) fn done_work(&mut self, now: Nanos) -> Option<Work> {
        let message = self.out.base;
        let front = self.out.messages.front().filter(|front| {
            !front.small && front.request.kind == Kind::Send && front.data_done && !front.notice_posted
        });
        let end = front.map(|front| (front.sequence, front.request.bytes))?;
        let path = self.choose(0)?;
        self.end_work(path, message, end, now)
    }

    /// The next part of the message that is being posted, or of the one after it.
    pub(super) fn cursor_work(&mut self, now: Nanos) -> Option<Work> {
        loop {
            let number = self.out.cursor;
            let message = *self.out.get(number)?;
            let Request { kind, bytes, .. } = message.request;
            let is_posted = match message.small {
                _ if message.is_done() => true,
                true => {
                    message.started && message.data_posted && (kind != Kind::Send || message.notice_posted)
                }
                false => message.posted == bytes,
            };
            if is_posted {
                self.out.cursor += 1;
                continue;
            }
            if kind == Kind::Send {
                let (_, room) = self.grant_of(message.sequence)?;
                if bytes > room {
                    self.fail(Some(number), Status::REM_INV_REQ_ERR);
                    return None;
                }
            }
            if !message.started && !self.may_start(number) {
                return None;
            }
            if !message.small {
                let left = bytes - message.posted;
                let path = self.choose(left)?;
                let part = self.chunk_bytes(path, left);
                self.open(number);
                if let Some(message) = self.out.get(number) {
                    message.posted += part;
                }
                return self.data_work(path, number, message.posted, part, now);
            }
            let path = if self.out.small_open > 0 { self.small_path()? } else { self.choose_small(bytes)? };
            self.out.small_path = path;
            self.open(number);
            if !message.data_posted {
                self.out.get(number)?.data_posted = true;
                if !message.data_done {
                    return self.data_work(path, number, 0, bytes, now);
                }
                continue;
            }
            return self.end_work(path, number, (message.sequence, bytes), now);
        }
    }

    /// The path of the small messages that are under way, if it can take one more work request.
    fn small_path(&self) -> Option<usize> {
        let path = &self.paths[self.out.small_path];
        (path.is_alive() && path.flights < self.config.depth).then_some(self.out.small_path)
    }

    /// A path for a small message when none is under way.
    fn choose_small(&mut self, bytes: u32) -> Option<usize> {
        self.choose(bytes.max(1))
    }

    fn open(&mut self, number: u64) {
        let Some(message) = self.out.get(number) else { return };
        if !message.started {
            message.started = true;
            match message.small {
                true => self.out.small_open += 1,
                false => self.out.large_open += 1,
            }
        }
    }

    /// Whether what is under way allows a message to start.
    fn may_start(&mut self, number: u64) -> bool {
        let Some(message) = self.out.get(number).copied() else { return false };
        if message.small {
            return self.out.large_open == 0;
        }
        // All that are under way stand before the cursor.
        self.out.small_open == 0 && !self.out.messages.iter().any(|old| old.started && old.meets(&message))
    }

    /// How much of `left` bytes a path gets, for which it has room: as much as makes all paths be done at the same time with what is left and what
    /// is in flight (equation 1), in whole units.
    fn chunk_bytes(&mut self, path: usize, left: u32) -> u32 {
        let known = |i: usize| self.policies.monitor.bytes_per_sec(i);
        let all_known = (0..self.paths.len()).all(|i| !self.paths[i].is_alive() || known(i) > 0);
        self.capacities.clear();
        self.capacities.extend(self.paths.iter().enumerate().map(|(i, path)| match path.is_alive() {
            true if all_known => known(i),
            alive => u64::from(alive),
        }));
        let in_flight: u64 = self.paths.iter().map(|path| path.in_flight_bytes).sum();
        self.shares.clear();
        self.shares.resize(self.paths.len(), 0);
        let unit = u64::from(self.config.unit_bytes);
        decompose(u64::from(left) + in_flight, &self.capacities, 1, &mut self.shares);
        let share = self.shares[path].saturating_sub(self.paths[path].in_flight_bytes);
        let bytes = share.next_multiple_of(unit).max(unit).min(self.views[path].room_bytes);
        bytes.min(u64::from(left)) as u32 // at most `left`
    }

    /// Where the SEND of this number goes, if the peer has said so.
    fn grant_of(&self, sequence: u32) -> Option<(Place, u32)> {
        let ahead = sequence.wrapping_sub(self.granted) as usize;
        self.grants.get(ahead).copied().flatten()
    }

    fn data_work(&mut self, path: usize, number: u64, offset: u32, bytes: u32, now: Nanos) -> Option<Work> {
        let message = *self.out.get(number)?;
        let Request { kind, local, remote, .. } = message.request;
        let remote = if kind == Kind::Send { self.grant_of(message.sequence)?.0 } else { remote };
        let at = |place: Place| Place { addr: place.addr.wrapping_add(u64::from(offset)), ..place };
        let (local, remote) = (at(local), at(remote));
        let op = match kind {
            Kind::Read => Op::Read { local, remote, bytes },
            Kind::Write | Kind::Send => Op::Write { local, remote, bytes },
        };
        Some(self.fly(path, Load::Data { message: number, offset, bytes }, op, now))
    }

    fn end_work(
        &mut self,
        path: usize,
        number: u64,
        (sequence, bytes): (u32, u32),
        now: Nanos,
    ) -> Option<Work> {
        self.out.get(number)?.notice_posted = true;
        let done = Op::Control(Control::Done { sequence, bytes });
        Some(self.fly(path, Load::Done { message: number }, done, now))
    }
}
