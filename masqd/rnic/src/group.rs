//! Groups: a queue pair with several paths of the underlay, and its hidden siblings, one for each path but the first.
//!
//! ```text
//!  send queue ─► spine: requests in order, WAITs ──► leader  ═ path 0 ═╗
//!                        ▲ first chunk not done          │             ╠═► the peer's group
//!  chunk ring ─► chunks ─┴─► whoever has room takes the next one       ║
//!                                                        └─► siblings ═╝ path i each
//! ```
//!
//! This is what they share. A member is a whole queue pair of its own, with its transport and its PSNs; that it takes the next chunk when
//! it has room makes fast paths carry more than slow ones. How members come and go, and fail together, is the engine's part (`engine/groups`).

use std::net::IpAddr;
use std::time::Duration;

use masq_driver::{DriverError, GroupAttr};
use masq_types::Features;
use masq_wire::Inquiry;
use vrdma_abi::ring::SPLIT_WRITE_IMM;

use crate::assigned::Assigned;
use crate::memory::GuestMemory;
use crate::qp::{Held, QpKey};
use crate::ring::{After, ChunkRing, Entry, RingBroken, SendRing};
use crate::transport::{Completion, Failure, SendOp, SendWork, Status, Time};
use crate::udp::{LocalId, Route};

mod done;
mod paths;

use done::Done;
pub use paths::{Arrivals, Described, Paths, Verdict};

/// Members of a group: a bit for each number.
pub type MemberSet = u16;

const _: () = assert!(GroupAttr::MAX_MEMBERS as u32 <= MemberSet::BITS);

/// A queue pair's place in a group of its vNIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// Key of the group in the vNIC's table.
    pub group: usize,
    /// Its number, and that of its path; the leader's is 0.
    pub number: u8,
}

impl Member {
    /// Whether it is the guest's queue pair, and no hidden one.
    pub fn is_leader(self) -> bool {
        self.number == 0
    }
}

/// What the queue pairs of a group share.
#[derive(Debug)]
pub struct Group {
    chunks: ChunkRing,
    /// It may have something that nobody has looked at: it was not found empty after the doorbell was rung last.
    has_chunks: bool,
    /// The same of the leader's send queue.
    has_requests: bool,
    /// How many members it can have.
    most: u8,
    /// Members below this number take chunks.
    takers: u32,
    /// The peer understands the ends of WRITEs with immediate data.
    splits_write_imm: bool,
    /// By number, from RTR on. None as long as there is one path only: then the queue pair is like any other.
    members: Vec<Sub>,
    /// The ways of the paths, by number; as many as members.
    ways: Vec<Way>,
    /// Who uses which.
    pub paths: Paths,
    /// Where they lead, in the engine's table.
    pub peer: Option<usize>,
    /// The question whether the peer is connected to it.
    pub question: Question,
    /// The next chunk, when it was looked at and must not start yet, or finds nobody with room.
    next: Held<SendWork>,
    /// What must be done before it starts.
    after: After,
    /// Which chunks are done.
    done: Done,
    spine: Spine,
    /// Receives of messages that arrive by several paths.
    pub assigned: Assigned,
    /// The leader has left the next chunk to others.
    left_by_leader: bool,
    /// Who has asked for a chunk in vain, and has none.
    hungry: MemberSet,
    /// Who has one, and has left the next to those that are hungry.
    modest: MemberSet,
    failure: Option<GroupFailure>,
    /// Which members have no request of those that were begun before SQD any more: a bit for each.
    drained: MemberSet,
    /// Who has something to do by what came of others: a bit for each member.
    wakes: MemberSet,
    /// Its members' failures are dealt with by whoever has set this.
    pub hands_off: bool,
}

/// A member.
#[derive(Clone, Copy, Debug)]
struct Sub {
    key: QpKey,
    /// Chunks that it has taken and that are not done.
    under_way: u32,
    /// Chunks that it has carried.
    carried: u64,
}

/// The question to the peer's RNIC whether its queue pair is connected to this one.
#[derive(Clone, Copy, Debug, Default)]
pub struct Question {
    /// What an answer repeats: another one for each connection.
    pub token: [u8; Inquiry::TOKEN_BYTES],
    /// When it may be asked again.
    next: Time,
    /// How long after that the next time.
    pause: Duration,
}

impl Question {
    /// A connection begins.
    pub fn new(token: [u8; Inquiry::TOKEN_BYTES]) -> Self {
        Self { token, next: Time::ZERO, pause: FIRST_ASKED_AGAIN }
    }

    /// It is to be asked again soon.
    pub fn reopen(&mut self) {
        self.pause = FIRST_ASKED_AGAIN;
    }

    /// Whether it is to be asked now.
    pub fn is_due(&mut self, now: Time) -> bool {
        let is_due = now >= self.next;
        if is_due {
            self.next = now.plus(self.pause);
            self.pause = (self.pause * 2).min(LAST_ASKED_AGAIN);
        }
        is_due
    }
}

/// How a path leads to the peer.
#[derive(Debug)]
pub struct Way {
    /// This side's address.
    pub local: LocalId,
    /// The way out. The member whose home it is keeps its port open.
    pub route: Route,
}

/// The leader's send queue.
#[derive(Debug, Default)]
struct Spine {
    /// A WAIT that it has come to.
    wait: Option<Wait>,
    /// Requests that were taken out of it and are not done.
    outstanding: u32,
    /// Index behind the last entry that was taken out of it or passed.
    passed: u32,
    /// All entries below this index are done. While requests are outstanding, WAITs behind the last one that is done do not count yet.
    done: u32,
    /// Requests that were taken out of it and take a receive of the peer's.
    receives: u32,
    /// Those of them that are done: the peer has had their receives.
    receives_done: u32,
}

#[derive(Clone, Copy, Debug)]
struct Wait {
    until: u32,
    next_index: u32,
}

/// Why a group cannot go on.
#[derive(Clone, Copy, Debug)]
struct GroupFailure {
    failure: Failure,
    at: Time,
    /// It was found at this end, and the peer still carries out what it is asked for.
    peer_goes_on: bool,
    /// A request of the leader's has it in its completion.
    told: bool,
}

/// How long until the peer's RNIC is asked a second time whether its queue pair is connected to this one, when something is sent.
const FIRST_ASKED_AGAIN: Duration = Duration::from_millis(1);
/// The same at most, as the pause doubles.
const LAST_ASKED_AGAIN: Duration = Duration::from_secs(1);
/// How many chunks one member has under way: one that it sends, and one behind it, so that a slow path holds little.
const MOST_UNDER_WAY: u32 = 2;
/// WAITs that one look at the spine passes.
const WAITS_AT_ONCE: usize = 64;
/// When a chunk has failed: how long the leader's requests before it are given to be done, as they, or their acknowledgements, may be under way on another path.
const FAILURE_GRACE: Duration = Duration::from_millis(100);

impl Group {
    /// A group without members.
    pub fn new(what: &str, attr: GroupAttr, memory: &GuestMemory) -> Result<Self, DriverError> {
        let GroupAttr { members, chunks } = attr;
        if !(2..=GroupAttr::MAX_MEMBERS).contains(&members) {
            return Err(DriverError::Invalid(format!("{what}: a group does not have {members} members")));
        }
        let chunks = ChunkRing::new(&format!("{what}, chunk ring"), chunks, memory)?;
        Ok(Self {
            done: Done::new(chunks.entries()),
            chunks,
            has_chunks: false,
            has_requests: false,
            most: members,
            takers: 0,
            splits_write_imm: false,
            members: Vec::new(),
            ways: Vec::new(),
            paths: Paths::new(0),
            peer: None,
            question: Question::default(),
            next: Held::default(),
            after: After::default(),
            spine: Spine::default(),
            assigned: Assigned::default(),
            left_by_leader: false,
            hungry: 0,
            modest: 0,
            failure: None,
            drained: 0,
            wakes: 0,
            hands_off: false,
        })
    }

    /// How many members it can have.
    pub fn most(&self) -> usize {
        self.most.into()
    }

    /// It begins, at RTR: with these members, the leader first, or without siblings. The guest is told how many paths that makes, but no more than it wants: then
    /// the others carry none of its chunks, and are there for the peer's. What may be split depends on what both ends can do.
    pub fn start(
        &mut self,
        memory: &GuestMemory,
        members: &[QpKey],
        features: Features,
    ) -> Result<(), RingBroken> {
        self.clear();
        if members.len() > 1 {
            let sub = |key: &QpKey| Sub { key: *key, under_way: 0, carried: 0 };
            self.members = members.iter().map(sub).collect();
        }
        self.chunks.publish_done(memory, self.done.prefix())?;
        let (most, present) = (self.chunks.most_paths(memory)?, members.len() as u32);
        self.takers = if most == 0 { present } else { present.min(most) };
        self.splits_write_imm = features.contains(Features::WRITE_ENDS);
        self.chunks.publish_paths(
            memory,
            self.takers,
            if self.splits_write_imm { SPLIT_WRITE_IMM } else { 0 },
        )
    }

    /// The queue pair is reset: it has no siblings, and its rings begin at 0.
    pub fn clear(&mut self) {
        self.members.clear();
        self.ways.clear();
        self.chunks.reset();
        (self.has_chunks, self.has_requests) = (true, true);
        self.next.present = false;
        self.done.clear();
        self.spine = Spine::default();
        self.assigned = Assigned::default();
        self.left_by_leader = false;
        self.hungry = 0;
        self.modest = 0;
        self.failure = None;
        self.drained = 0;
        self.wakes = 0;
    }

    /// The members, the leader first.
    pub fn members(&self) -> impl ExactSizeIterator<Item = QpKey> + '_ {
        self.members.iter().map(|sub| sub.key)
    }

    /// The hidden members.
    pub fn siblings(&self) -> impl Iterator<Item = QpKey> + '_ {
        self.members().skip(1)
    }

    /// The member with this number.
    pub fn member(&self, number: usize) -> Option<QpKey> {
        self.members.get(number).map(|sub| sub.key)
    }

    /// The members have other keys.
    pub fn rename(&mut self, renamed: impl Fn(QpKey) -> QpKey) {
        self.members.iter_mut().for_each(|sub| sub.key = renamed(sub.key));
    }

    /// Of a member: how many chunks it has carried, and how many it has under way.
    pub fn describe(&self, number: usize) -> Option<(u64, u32)> {
        self.members.get(number).map(|sub| (sub.carried, sub.under_way))
    }

    /// Its paths lead this way from now on, to this peer.
    pub fn lead(&mut self, ways: Vec<Way>, peer: Option<usize>) {
        self.paths.begin(ways.len());
        (self.ways, self.peer) = (ways, peer);
    }

    /// The ways of its paths, by number.
    pub fn ways(&self) -> &[Way] {
        &self.ways
    }

    /// By which path a packet has come from `source` to `local`; by none, if those are not the ends of one.
    pub fn path_between(&self, local: LocalId, source: IpAddr) -> Option<u8> {
        let is_it = |way: &Way| way.local == local && way.route.peer() == source;
        self.ways.iter().position(is_it).map(|path| path as u8)
    }

    /// The members leave SQD: when they come there again, each is to be drained anew.
    pub fn drains_anew(&mut self) {
        self.drained = 0;
    }

    /// A member in SQD is drained. Returns whether all are now.
    pub fn is_drained(&mut self, number: u8) -> bool {
        self.drained |= 1 << number;
        let all = self.drained.count_ones() as usize == self.members.len();
        if all {
            self.drained = 0;
        }
        all
    }

    /// Who has something to do since this was asked last: a bit for each number.
    pub fn take_wakes(&mut self) -> MemberSet {
        std::mem::take(&mut self.wakes)
    }

    /// Whether somebody has something to do by what came of others.
    pub fn has_wakes(&self) -> bool {
        self.wakes != 0
    }

    /// Whether a member may find something to take in the rings. If not, nothing is looked at before the doorbell is rung.
    #[inline]
    pub fn may_have_work(&self, number: u8) -> bool {
        let is_leader = number == 0;
        self.may_have_chunk() || is_leader && (self.has_requests || self.spine.wait.is_some())
    }

    #[inline]
    fn may_have_chunk(&self) -> bool {
        self.has_chunks || self.next.present
    }

    /// The guest has rung the doorbell. If there are chunks that nobody has looked at, all members may have something to do.
    pub fn posted(&mut self, memory: &GuestMemory) {
        self.has_requests = true;
        // Whoever takes the next one finds out why it cannot be read.
        if self.chunks.has_work(memory).unwrap_or(true) {
            (self.has_chunks, self.wakes) = (true, !0);
            // A short message takes as many paths as it has chunks. The leader has its turn first; later it may have to leave chunks to others.
            for (sub, number) in self.members.iter().zip(0..self.takers).skip(1) {
                self.hungry |= MemberSet::from(sub.under_way == 0) << number;
            }
        }
    }

    /// Takes the next chunk for a member: when there is one that may start, and the member has room. Who has one already leaves it to those that have none:
    /// where few may start at once, because the others wait for them, each path shall carry one.
    #[inline]
    pub fn take_chunk(
        &mut self,
        number: u8,
        memory: &GuestMemory,
        work: &mut SendWork,
    ) -> Result<bool, RingBroken> {
        if self.may_have_chunk() { self.take_next_chunk(number, memory, work) } else { Ok(false) }
    }

    fn take_next_chunk(
        &mut self,
        number: u8,
        memory: &GuestMemory,
        work: &mut SendWork,
    ) -> Result<bool, RingBroken> {
        let Some(sub) = self.members.get(usize::from(number)) else { return Ok(false) };
        let (bit, under_way): (MemberSet, _) = (1 << number, sub.under_way);
        if self.failure.is_some() || under_way >= MOST_UNDER_WAY || u32::from(number) >= self.takers {
            return Ok(false);
        }
        if !self.has_next(memory)? || !self.next_may_start() {
            self.hungry |= if under_way == 0 { bit } else { 0 };
            return Ok(false);
        }
        // The peer may have no receive for it, because of requests that take receives before its message does and have not been sent. The leader leaves it to
        // others: they would come behind it, and wait for a receive that the peer posts only when it has them.
        let not_for_leader = is_ahead_of(&self.next.work, self.spine.receives);
        if number == 0 && not_for_leader {
            self.left_by_leader = true;
            return Ok(false);
        }
        let hungry = self.hungry & !bit & !MemberSet::from(not_for_leader);
        if under_way > 0 && hungry != 0 {
            self.modest |= bit;
            self.wakes |= hungry;
            return Ok(false);
        }
        self.hungry &= !bit;
        if self.hungry & !1 == 0 {
            self.wakes |= std::mem::take(&mut self.modest) & !bit;
        }
        if std::mem::take(&mut self.left_by_leader) {
            self.wakes |= 1;
        }
        if let Some(sub) = self.members.get_mut(usize::from(number)) {
            sub.under_way += 1;
        }
        Ok(self.next.take_into(work))
    }

    /// Looks at the next chunk, if there is one.
    fn has_next(&mut self, memory: &GuestMemory) -> Result<bool, RingBroken> {
        if self.next.present {
            return Ok(true);
        }
        // Entries that are not done are not to be used again, whatever the guest says.
        if self.chunks.taken().wrapping_sub(self.done.prefix()) >= self.chunks.entries() {
            return Ok(false);
        }
        let Some(after) = self.chunks.take(memory, &mut self.next.work)? else {
            self.has_chunks = false;
            return Ok(false);
        };
        (self.after, self.next.present) = (after, true);
        Ok(true)
    }

    fn next_may_start(&self) -> bool {
        let After { chunks, requests } = self.after;
        chunks.is_none_or(|index| has_reached(self.done.prefix(), index))
            && requests.is_none_or(|index| has_reached(self.spine.done, index))
    }

    /// Whether the peer may have no receive for this chunk, because of requests that take receives before its message does and are not done: it may post one
    /// when it has them, and they may be lost, held up or not sent yet.
    pub fn is_ahead(&self, chunk: &SendWork) -> bool {
        is_ahead_of(chunk, self.spine.receives_done)
    }

    /// Takes the leader's next request, if it may start.
    #[inline]
    pub fn take_request(
        &mut self,
        queue: &mut SendRing,
        memory: &GuestMemory,
        work: &mut SendWork,
    ) -> Result<bool, RingBroken> {
        // What does not wait for the chunk that has failed comes before it.
        let held = self.failure.is_some_and(|f| !f.peer_goes_on);
        if held || !(self.has_requests || self.spine.wait.is_some()) {
            return Ok(false);
        }
        for _ in 0..WAITS_AT_ONCE {
            if let Some(wait) = self.spine.wait {
                if !has_reached(self.done.prefix(), wait.until) {
                    return Ok(false);
                }
                self.spine.wait = None;
                self.spine.passed = wait.next_index;
                if self.spine.outstanding == 0 {
                    self.requests_done(wait.next_index);
                }
            }
            match queue.take_of_group(memory, work)? {
                None => {
                    self.has_requests = false;
                    return Ok(false);
                }
                Some(Entry::Request) => {
                    // Of a READ it is this end's own affair.
                    if work.op == SendOp::WriteImm && work.before_bytes > 0 && !self.splits_write_imm {
                        work.defect = Some(Status::LocQpOpErr);
                    }
                    // It is busy: no chunk is left for it.
                    self.hungry &= !1;
                    self.spine.outstanding += 1;
                    self.spine.passed = work.next_index;
                    self.spine.receives = self.spine.receives.wrapping_add(work.op.takes_receive().into());
                    return Ok(true);
                }
                Some(Entry::Wait { until }) => {
                    self.spine.wait = Some(Wait { until, next_index: work.next_index });
                }
            }
        }
        self.wakes |= 1;
        Ok(false)
    }

    /// Takes the leader's next request, to flush it.
    pub fn take_to_flush(
        &mut self,
        queue: &mut SendRing,
        memory: &GuestMemory,
        work: &mut SendWork,
    ) -> Result<bool, RingBroken> {
        self.spine.wait = None;
        // A WAIT has no completion of its own: it belongs to the request behind it.
        for _ in 0..WAITS_AT_ONCE {
            match queue.take_of_group(memory, work)? {
                None => return Ok(false),
                Some(Entry::Request) => return Ok(true),
                Some(Entry::Wait { .. }) => {}
            }
        }
        self.wakes |= 1;
        Ok(false)
    }

    /// A member's request is done.
    #[inline]
    pub fn done(&mut self, number: u8, memory: &GuestMemory, work: &SendWork) -> Result<(), RingBroken> {
        if work.is_chunk {
            return self.chunk_done(number, memory, work);
        }
        self.spine.outstanding = self.spine.outstanding.saturating_sub(1);
        self.spine.receives_done = self.spine.receives_done.wrapping_add(work.op.takes_receive().into());
        // WAITs behind the last one have been passed meanwhile.
        let is_last = self.spine.outstanding == 0;
        self.requests_done(if is_last { self.spine.passed } else { work.next_index });
        Ok(())
    }

    fn chunk_done(&mut self, number: u8, memory: &GuestMemory, work: &SendWork) -> Result<(), RingBroken> {
        if let Some(sub) = self.members.get_mut(usize::from(number)) {
            sub.under_way = sub.under_way.saturating_sub(1);
            sub.carried += 1;
            self.wakes |= 1 << number;
        }
        if !self.done.add(work.next_index.wrapping_sub(1)) {
            return Ok(());
        }
        if self.spine.wait.is_some_and(|wait| has_reached(self.done.prefix(), wait.until)) {
            self.wakes |= 1;
        }
        self.wake_for_next();
        self.chunks.publish_done(memory, self.done.prefix())
    }

    /// All entries of the send queue below `index` are done.
    fn requests_done(&mut self, index: u32) {
        self.spine.done = index;
        self.wake_for_next();
    }

    /// Whoever has room may take the chunk that had to wait.
    fn wake_for_next(&mut self) {
        if self.next.present && self.next_may_start() {
            for (sub, number) in self.members.iter().zip(0..) {
                self.wakes |= MemberSet::from(sub.under_way < MOST_UNDER_WAY) << number;
            }
        }
    }

    /// A member's chunk has failed.
    pub fn chunk_failed(&mut self, at: Time, failure: Failure) {
        let refusals = [Status::RemInvReqErr, Status::RemAccessErr, Status::RemOpErr];
        let peer_goes_on = !refusals.contains(&failure.status);
        self.failure.get_or_insert(GroupFailure { failure, at, peer_goes_on, told: false });
        self.wakes |= 1;
    }

    /// Whether a chunk has failed.
    pub fn has_failed(&self) -> bool {
        self.failure.is_some()
    }

    /// Whether the leader is still to go on although a chunk has failed: with requests that come before the failure, also those that it has not taken out of its
    /// `queue` yet. Without one it takes none.
    pub fn leader_has_grace(&self, now: Time, queue: Option<&mut SendRing>, memory: &GuestMemory) -> bool {
        let Some(failure) = self.failure.filter(|f| now.since(f.at) < FAILURE_GRACE) else { return false };
        let may_take = |queue: &mut SendRing| match self.spine.wait {
            Some(wait) => has_reached(self.done.prefix(), wait.until),
            // If the next entry waits for the chunk that has failed, the leader finds that out when it takes it.
            None => queue.has_work(memory).unwrap_or(false),
        };
        self.spine.outstanding > 0 || (failure.peer_goes_on && queue.is_some_and(may_take))
    }

    /// What a completion of the leader's says: the first that does not succeed tells why a chunk has failed, if one has.
    pub fn told(&mut self, completion: &Completion) -> Completion {
        match &mut self.failure {
            Some(f) if !f.told && completion.status != Status::Success => {
                f.told = true;
                if completion.status != Status::WrFlushErr {
                    return *completion;
                }
                let Failure { status, cause } = f.failure;
                Completion { status, cause, ..*completion }
            }
            _ => *completion,
        }
    }
}

/// Whether a chunk is for a later receive than that behind so many.
fn is_ahead_of(chunk: &SendWork, receives: u32) -> bool {
    chunk.op == SendOp::Steer && chunk.rkey.0 != receives
}

/// Whether a free-running index that is at `at` has reached `index`.
fn has_reached(at: u32, index: u32) -> bool {
    index.wrapping_sub(at) as i32 <= 0
}
