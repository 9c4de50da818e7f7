//! What the rest of masqd tells a device's thread, and what that answers. It knows neither: so host and router, which write to devices,
//! need not know them, though devices know both.

use std::collections::VecDeque;
use std::io;
use std::ops::RangeInclusive;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

use ipnet::IpNet;
use masq_control::{Link, Settings, Ticket};
use masq_driver::{Event, QpHandle, VnicId};
use masq_model::api::{ConnectionStatus, ObjectCounts, QueuePair, Traffic, VnicState};
use masq_policy::conntrack::Touched;
use masq_types::Gid;
use rustix::event::{EventfdFlags, eventfd};
use tokio::sync::{mpsc, oneshot};

/// Most events of the RNIC that wait here. Above it the device's thread is stuck, and its guest's
/// events are lost; they are counted.
const MAX_EVENTS: usize = 4096;

/// Something to do for a device.
#[derive(Debug)]
pub enum Message {
    /// The RNIC reports something.
    Rnic(Event),
    /// The addresses that the vNIC may use have changed.
    Addresses {
        /// Its own.
        gids: Vec<Gid>,
        /// Prefixes of further ones.
        allowed: Vec<IpNet>,
    },
    /// Quotas or QoS have changed.
    Settings(Settings),
    /// The underlay's link has changed.
    Link(Link),
    /// The store has been read anew, or could not be, for the request with this ticket.
    Resolved(Ticket),
    /// There may be more requests on the control queue.
    MoreRequests,
    /// Tell how the device is.
    Report(oneshot::Sender<Report>),
    /// Tell how the first few of the guest's queue pairs with these numbers are.
    QueuePairs(RangeInclusive<u32>, oneshot::Sender<QueuePairPage>),
    /// The vNIC is taken away: tell the guest, then end.
    Withdraw,
    /// End at once.
    Stop,
}

/// How a device is.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// What it is doing.
    pub state: VnicState,
    /// The lifetime of its objects, while a front end is connected.
    pub epoch: Option<u64>,
    /// What its guest has.
    pub objects: ObjectCounts,
    /// How many of them the RNIC has, by its own books.
    pub rnic_objects: masq_driver::ObjectCounts,
    /// How many peers of datagrams the RNIC was told of.
    pub peers: u64,
    /// Its guest's connections.
    pub connections: Vec<ConnectionStatus>,
    /// What its guest's queue pairs have counted, by name.
    pub events: Vec<(&'static str, u64)>,
    /// What its guest has sent and received; without names and rate, which the desired state tells.
    pub traffic: Traffic,
}

/// A queue pair, and what the RNIC calls it.
#[derive(Clone, Debug)]
pub struct NamedQueuePair {
    /// Its device.
    pub vnic: VnicId,
    /// Its handle.
    pub handle: QpHandle,
    /// How it is.
    pub status: QueuePair,
}

/// Some queue pairs of a device.
#[derive(Clone, Debug, Default)]
pub struct QueuePairPage {
    /// The queue pairs, by number.
    pub qps: Vec<NamedQueuePair>,
    /// The numbers that are to be asked for next, if there are more.
    pub rest: Option<RangeInclusive<u32>>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    bell: OwnedFd,
}

#[derive(Debug, Default)]
struct State {
    messages: VecDeque<Message>,
    events: usize,
    lost: u64,
    touched: Touched,
    settled: Vec<Settled>,
}

/// Dropped when a change has taken effect. Whoever waits for it has the receiving half: it ends when all are dropped.
pub type Settled = mpsc::Sender<()>;

/// What was in an inbox.
#[derive(Debug, Default)]
pub struct Mail {
    /// The messages, oldest first.
    pub messages: VecDeque<Message>,
    /// How many events of the RNIC have been lost.
    pub lost: u64,
    /// What changes of desired and realised state can have touched.
    pub touched: Touched,
    /// To be dropped when all that has been dealt with.
    pub settled: Vec<Settled>,
}

/// A queue of messages with a descriptor to wait on. Clones share it.
#[derive(Clone, Debug)]
pub struct Inbox(Arc<Shared>);

impl Inbox {
    /// An empty queue.
    pub fn new() -> io::Result<Self> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Inbox(Arc::new(Shared { state: Mutex::default(), bell })))
    }

    /// Adds a message; never blocks.
    pub fn push(&self, message: Message) {
        {
            let mut state = self.0.state.lock().unwrap_or_else(PoisonError::into_inner);
            match &message {
                Message::Rnic(_) if state.events == MAX_EVENTS => {
                    state.lost += 1;
                    return;
                }
                Message::Rnic(_) => state.events += 1,
                _ => {}
            }
            state.messages.push_back(message);
        }
        self.ring();
    }

    /// Desired or realised state has changed; several changes add up.
    pub fn touch(&self, touched: Touched) {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner).touched.merge(touched);
        self.ring();
    }

    /// Drops `settled` when everything that came before has been dealt with.
    pub fn settle(&self, settled: Settled) {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner).settled.push(settled);
        self.ring();
    }

    fn ring(&self) {
        // A full counter means that the bell rings already.
        let _ = rustix::io::write(&self.0.bell, &1u64.to_ne_bytes());
    }

    /// Takes everything.
    pub fn take(&self) -> Mail {
        let mut counter = [0; 8];
        let _ = rustix::io::read(&self.0.bell, &mut counter);
        let mut state = self.0.state.lock().unwrap_or_else(PoisonError::into_inner);
        let State { messages, lost, touched, settled, .. } = std::mem::take(&mut *state);
        Mail { messages, lost, touched, settled }
    }
}

impl AsFd for Inbox {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.bell.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use masq_driver::VnicId;

    use super::*;

    #[test]
    fn a_flood_of_events_is_bounded_and_counted() {
        let inbox = Inbox::new().unwrap();
        let event = || Event::VnicFatal { vnic: VnicId(1), reason: String::new() };
        for _ in 0..MAX_EVENTS + 7 {
            inbox.push(Message::Rnic(event()));
        }
        inbox.push(Message::Stop);
        inbox.touch(Touched::everything());
        let mail = inbox.take();
        assert_eq!((mail.messages.len(), mail.lost), (MAX_EVENTS + 1, 7));
        assert!(!mail.touched.is_nothing());
        let mail = inbox.take();
        assert!(mail.lost == 0 && mail.touched.is_nothing() && mail.messages.is_empty());
        inbox.push(Message::Rnic(event()));
        assert_eq!(inbox.take().messages.len(), 1);
    }
}
