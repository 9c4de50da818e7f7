//! How the engines of one RNIC talk to one another.
//!
//! ```text
//!  engine A                                                   engine B
//!   initiators ── requests (boxes, bounded ring) ──────────►  responders
//!              ◄─ the same boxes, answered ────────────────
//!   inbound    ── parcels (packets, datagrams; ring) ──────►  queue pairs
//!              ◄─ the emptied buffers ─────────────────────
//!   commands   ── notes (unbounded) ───────────────────────►  directory, adoption of vNICs
//! ```
//!
//! Between each two engines there are rings of one producer and one consumer; nothing takes a lock, and boxes and buffers go back and forth, so that
//! nothing is allocated once there are enough. A request that was sent has a place in the ring by which its answer comes back. What is
//! full is full: a request waits, a packet is lost as on any network.
//!
//! Notes come with commands only, about what others must know: addresses, who owns which queue pair, whole vNICs that move. An engine reads its notes
//! before each command and in each turn, so what a command has done is known to whoever executes a later one.
//!
//! # Sleep
//!
//! Who has put something into a ring of a sleeping engine wakes it. Memory order: the sleeper stores `asleep`, then a full fence, then looks into its
//! rings; the other stores into a ring, then a full fence, then loads `asleep`. So one of them sees the other's store.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::mpsc::{Receiver, Sender, channel};

use masq_types::{Vni, WireQpn};
use rtrb::{Consumer, Producer, RingBuffer};

use super::Waker;
use super::moving::{Moving, Remains};
use super::world::RemoteQp;
use crate::datagram::Incoming;
use crate::local::Request;
use crate::peers::Ends;
use crate::qp::QpKey;
use crate::transport::Receipt;
use crate::udp::LocalId;

/// Requests to one other engine that are under way at most.
const REQUESTS: usize = 256;
/// Bytes that requests to one other engine may be about before larger ones wait: small ones do not queue behind many large ones.
const REQUEST_BYTES: usize = 512 << 10;
/// Requests of so few bytes do not wait for that.
const SMALL_BYTES: usize = 4096;
/// Buffers of packets under way to one other engine at most.
const PARCELS: usize = 128;
/// A parcel takes no more packets beyond so many bytes.
const PARCEL_BYTES: usize = 60 << 10;

/// One engine's links to all others of its RNIC.
pub struct Fabric {
    /// This engine's number.
    pub index: usize,
    links: Vec<Option<Link>>,
    notes: Receiver<Note>,
}

/// What others must know.
pub enum Note {
    /// An address is used that was not.
    Address(IpAddr, LocalId),
    /// An address is used no more.
    AddressGone(IpAddr, LocalId),
    /// The engine that reads this receives at the address from now on.
    Receive(LocalId),
    /// The sender has a queue pair with this number, connected to that one if it is of this RNIC.
    Wire { from: usize, local: LocalId, qpn: WireQpn, peer: Option<(LocalId, WireQpn)> },
    /// The sender has it no more.
    WireGone { from: usize, local: LocalId, qpn: WireQpn },
    /// Who sends to this queue pair behind the underlay may have changed: the reader has the one whose turn it is.
    Speaker(RemoteQp),
    /// A queue pair of the reader's has lost this claim to send to a queue pair behind the underlay.
    Silent { key: QpKey, remote: RemoteQp, age: u64 },
    /// The sender has found a path to a peer down, or up.
    Path(Ends, bool),
    /// A vNIC that has left the sender.
    Adopt(Box<Moving>),
    /// The vNIC that has left the reader is adopted; this is what it has left behind.
    Adopted(Remains),
}

/// Packets that go to the engine that has their queue pair, or a datagram.
#[derive(Debug)]
pub struct Parcel {
    /// Their bytes, one behind another.
    pub bytes: Vec<u8>,
    /// What is known of them.
    pub label: Label,
}

/// What is known of a [`Parcel`].
#[derive(Clone, Copy, Debug)]
pub enum Label {
    /// Packets as they came, all of one train.
    Packets(Packets),
    /// The payload of a datagram from a queue pair of this RNIC, of this network.
    Datagram(Incoming, Vni),
}

/// Packets of one train.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packets {
    /// Where they came to.
    pub local: LocalId,
    /// Who sent them.
    pub source: SocketAddr,
    /// Bytes of each but the last.
    pub segment_bytes: usize,
    /// The place of the first in its train.
    pub first: usize,
    /// How they came.
    pub receipt: Receipt,
}

struct Link {
    requests: Producer<Box<Request>>,
    answers: Consumer<Box<Request>>,
    asked: Consumer<Box<Request>>,
    answered: Producer<Box<Request>>,
    parcels: Producer<Parcel>,
    emptied: Consumer<Vec<u8>>,
    arrived: Consumer<Parcel>,
    empty: Producer<Vec<u8>>,
    notes: Sender<Note>,
    bell: Arc<Bell>,
    own_bell: Arc<Bell>,
    /// Boxes, since they go through the ring.
    #[expect(clippy::vec_box)]
    spare_requests: Vec<Box<Request>>,
    spare_buffers: Vec<Vec<u8>>,
    buffers: usize,
    /// A parcel that takes more packets of its train.
    open: Option<Parcel>,
    /// Requests that may be taken.
    admitted: usize,
    under_way: usize,
    bytes_under_way: usize,
    /// Initiators that wait for room.
    waiting: VecDeque<QpKey>,
    /// There is something for the other engine to look at.
    touched: bool,
}

/// Whether an engine sleeps, and how to wake it.
struct Bell {
    asleep: AtomicBool,
    waker: Waker,
}

impl Fabric {
    /// The links between engines with these wakers, for each engine its own.
    pub fn join(wakers: &[Waker]) -> Vec<Fabric> {
        let bells: Vec<Arc<Bell>> = wakers
            .iter()
            .map(|w| Arc::new(Bell { asleep: AtomicBool::new(false), waker: w.clone() }))
            .collect();
        let (senders, receivers): (Vec<_>, Vec<_>) = wakers.iter().map(|_| channel()).unzip();
        let mut fabrics: Vec<Fabric> = receivers
            .into_iter()
            .enumerate()
            .map(|(index, notes)| Fabric { index, links: wakers.iter().map(|_| None).collect(), notes })
            .collect();
        for a in 0..wakers.len() {
            for b in a + 1..wakers.len() {
                let (one, other) = Link::pair((a, b), &bells, &senders);
                let mut put = |at: usize, to: usize, link| {
                    if let Some(place) = fabrics.get_mut(at).and_then(|f| f.links.get_mut(to)) {
                        *place = Some(link);
                    }
                };
                put(a, b, one);
                put(b, a, other);
            }
        }
        fabrics
    }

    fn link(&mut self, engine: usize) -> Option<&mut Link> {
        self.links.get_mut(engine)?.as_mut()
    }

    /// Tells another engine.
    pub fn note(&mut self, engine: usize, note: Note) {
        if let Some(link) = self.link(engine) {
            // It has stopped when there is nobody to read.
            let _ = link.notes.send(note);
            link.touched = true;
        }
    }

    /// Tells all others.
    pub fn note_all(&mut self, note: impl Fn() -> Note) {
        for link in self.links.iter_mut().flatten() {
            let _ = link.notes.send(note());
            link.touched = true;
        }
    }

    /// The next note of others.
    pub fn next_note(&self) -> Option<Note> {
        self.notes.try_recv().ok()
    }

    /// A request to fill in, about `bytes`, if one may be sent to this engine now.
    pub fn open_request(&mut self, engine: usize, bytes: usize) -> Option<Box<Request>> {
        let link = self.link(engine)?;
        let crowded = bytes > SMALL_BYTES && link.bytes_under_way >= REQUEST_BYTES;
        if link.under_way >= REQUESTS || crowded {
            return None;
        }
        Some(link.spare_requests.pop().unwrap_or_default())
    }

    /// An initiator waits until more can be sent: it is among those that [`Fabric::next_waiting`] names.
    pub fn wait_for_room(&mut self, engine: usize, key: QpKey) {
        if let Some(link) = self.link(engine) {
            link.waiting.push_back(key);
        }
    }

    /// A request that was opened is not sent.
    pub fn discard_request(&mut self, engine: usize, request: Box<Request>) {
        if let Some(link) = self.link(engine) {
            link.spare_requests.push(request);
        }
    }

    /// Sends a request that was opened.
    pub fn send_request(&mut self, engine: usize, request: Box<Request>) {
        let Some(link) = self.link(engine) else { return };
        link.under_way += 1;
        link.bytes_under_way += request.room();
        // There is room: as many as the ring holds are under way at most.
        let _ = link.requests.push(request);
        link.touched = true;
    }

    /// An answer of another engine; it is to be [returned](Self::return_request).
    pub fn next_answer(&mut self, engine: usize) -> Option<Box<Request>> {
        let link = self.link(engine)?;
        let request = link.answers.pop().ok()?;
        link.under_way -= 1;
        link.bytes_under_way -= request.room();
        Some(request)
    }

    /// A request whose answer has been read can be filled in again.
    pub fn return_request(&mut self, engine: usize, mut request: Box<Request>) {
        request.clear();
        self.discard_request(engine, request);
    }

    /// An initiator that waited for room, after an answer.
    pub fn next_waiting(&mut self, engine: usize) -> Option<QpKey> {
        self.link(engine)?.waiting.pop_front()
    }

    /// From now on, [`Fabric::next_request`] gives what has come so far. Notes that are read after this are no older than those requests.
    pub fn admit_requests(&mut self) {
        for link in self.links.iter_mut().flatten() {
            link.admitted = link.asked.slots();
        }
    }

    /// A request of another engine that has been admitted; it is to be [answered](Self::answer).
    pub fn next_request(&mut self, engine: usize) -> Option<Box<Request>> {
        let link = self.link(engine)?;
        link.admitted = link.admitted.checked_sub(1)?;
        link.asked.pop().ok()
    }

    /// Sends an answered request back.
    pub fn answer(&mut self, engine: usize, request: Box<Request>) {
        if let Some(link) = self.link(engine) {
            // There is room, as the rings are of one size.
            let _ = link.answered.push(request);
            link.touched = true;
        }
    }

    /// Sends a packet to the engine that has its queue pair. Returns whether there was room.
    pub fn forward(&mut self, engine: usize, packet: &[u8], label: Packets) -> bool {
        let Some(link) = self.link(engine) else { return false };
        if let Some(Parcel { bytes, label: Label::Packets(open) }) = &mut link.open {
            let count = bytes.len() / open.segment_bytes.max(1);
            let next = Packets { first: open.first + count, segment_bytes: open.segment_bytes, ..label };
            let joins = bytes.len().is_multiple_of(open.segment_bytes.max(1))
                && packet.len() <= open.segment_bytes
                && label.first == next.first
                && Packets { first: open.first, ..next } == *open
                && bytes.len() + packet.len() <= PARCEL_BYTES;
            if joins {
                bytes.extend_from_slice(packet);
                return true;
            }
        }
        link.close();
        let Some(mut bytes) = link.buffer() else { return false };
        bytes.extend_from_slice(packet);
        link.open = Some(Parcel { bytes, label: Label::Packets(label) });
        true
    }

    /// A buffer for a datagram's payload, if there is room for one more.
    pub fn open_datagram(&mut self, engine: usize) -> Option<Vec<u8>> {
        let link = self.link(engine)?;
        link.close();
        link.buffer()
    }

    /// The datagram that was opened is not sent.
    pub fn discard_datagram(&mut self, engine: usize, mut buffer: Vec<u8>) {
        buffer.clear();
        if let Some(link) = self.link(engine) {
            link.spare_buffers.push(buffer);
        }
    }

    /// Sends a datagram that was opened.
    pub fn send_datagram(&mut self, engine: usize, bytes: Vec<u8>, incoming: Incoming, vni: Vni) {
        if let Some(link) = self.link(engine) {
            link.push(Parcel { bytes, label: Label::Datagram(incoming, vni) });
        }
    }

    /// A parcel of another engine; its buffer is to be [returned](Self::return_buffer).
    pub fn next_parcel(&mut self, engine: usize) -> Option<Parcel> {
        self.link(engine)?.arrived.pop().ok()
    }

    /// Gives the buffer of a parcel back.
    pub fn return_buffer(&mut self, engine: usize, mut buffer: Vec<u8>) {
        buffer.clear();
        if let Some(link) = self.link(engine) {
            let _ = link.empty.push(buffer);
        }
    }

    /// The numbers of the other engines.
    pub fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let own = self.index;
        (0..self.links.len()).filter(move |e| *e != own)
    }

    /// Sends what was begun, and wakes those that sleep and have something to look at.
    pub fn flush(&mut self) {
        let mut fenced = false;
        for link in self.links.iter_mut().flatten() {
            link.close();
            if !std::mem::take(&mut link.touched) {
                continue;
            }
            if !std::mem::replace(&mut fenced, true) {
                fence(Ordering::SeqCst);
            }
            if link.bell.asleep.load(Ordering::Relaxed) {
                link.bell.waker.wake();
            }
        }
    }

    /// This engine is going to sleep, or does not any more. Before it sleeps, [`Fabric::is_idle`] must be asked after a full fence.
    pub fn set_asleep(&self, asleep: bool) {
        if let Some(link) = self.links.iter().flatten().next() {
            link.own_bell.asleep.store(asleep, Ordering::Relaxed);
        }
    }

    /// Whether others have sent nothing that has not been read. Notes are not looked at: they come with a wake-up of whoever gave the command, or
    /// with the bell.
    pub fn is_idle(&self) -> bool {
        let idle = |l: &Link| l.asked.is_empty() && l.answers.is_empty() && l.arrived.is_empty();
        self.links.iter().flatten().all(idle)
    }
}

impl Link {
    /// Both ends of a link between two engines.
    fn pair((a, b): (usize, usize), bells: &[Arc<Bell>], notes: &[Sender<Note>]) -> (Link, Link) {
        let (a_requests, b_asked) = RingBuffer::new(REQUESTS);
        let (b_requests, a_asked) = RingBuffer::new(REQUESTS);
        let (a_answered, b_answers) = RingBuffer::new(REQUESTS);
        let (b_answered, a_answers) = RingBuffer::new(REQUESTS);
        let (a_parcels, b_arrived) = RingBuffer::new(PARCELS);
        let (b_parcels, a_arrived) = RingBuffer::new(PARCELS);
        let (a_empty, b_emptied) = RingBuffer::new(PARCELS);
        let (b_empty, a_emptied) = RingBuffer::new(PARCELS);
        let link =
            |to: usize, own: usize, requests, answers, asked, answered, parcels, emptied, arrived, empty| {
                Link {
                    requests,
                    answers,
                    asked,
                    answered,
                    parcels,
                    emptied,
                    arrived,
                    empty,
                    notes: notes[to].clone(),
                    bell: bells[to].clone(),
                    own_bell: bells[own].clone(),
                    spare_requests: Vec::with_capacity(REQUESTS),
                    spare_buffers: Vec::with_capacity(PARCELS),
                    buffers: 0,
                    open: None,
                    admitted: 0,
                    under_way: 0,
                    bytes_under_way: 0,
                    waiting: VecDeque::new(),
                    touched: false,
                }
            };
        (
            link(b, a, a_requests, a_answers, a_asked, a_answered, a_parcels, a_emptied, a_arrived, a_empty),
            link(a, b, b_requests, b_answers, b_asked, b_answered, b_parcels, b_emptied, b_arrived, b_empty),
        )
    }

    /// An empty buffer, if there is one.
    fn buffer(&mut self) -> Option<Vec<u8>> {
        while let Ok(buffer) = self.emptied.pop() {
            self.spare_buffers.push(buffer);
        }
        self.spare_buffers.pop().or_else(|| {
            (self.buffers < PARCELS).then(|| {
                self.buffers += 1;
                Vec::new()
            })
        })
    }

    /// Sends the parcel that is open.
    fn close(&mut self) {
        if let Some(parcel) = self.open.take() {
            self.push(parcel);
        }
    }

    fn push(&mut self, parcel: Parcel) {
        // There is room: there are no more buffers than places.
        let _ = self.parcels.push(parcel);
        self.touched = true;
    }
}
