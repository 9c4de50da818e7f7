//! One connected guest: its memory, queues and session, from the front end's arrival to its end.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use masq_control::{
    Asked, Env, GuestMemory, Identity, Link, MemoryError, Outcome, PeerAnswer, Reason, Refusal, Reply,
    Revoked, Session, SessionConfig, Settings, Ticket, config_space,
};
use masq_driver::{Command, DriverError, Event, PeerName, VnicId};
use masq_policy::conntrack::Touched;
use tracing::{debug, info, warn};
use vhost::vhost_user::message::VhostUserProtocolFeatures;
use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend};
use vrdma_abi::config::{Config, QUEUE_CONTROL, QUEUE_EVENTS};
use vrdma_abi::event::AsyncEvent;
use zerocopy::IntoBytes;

use super::channel::Channel;
use super::memory::{GuestRam, Mapped};
use super::poller::Poller;
use super::ring::{Chain, Popped, Ring, RingError};
use super::throttle::Throttle;
use super::vring::{Kick, Vring};
use super::{Host, MAX_REQUEST_BYTES, QUEUES, SPACE_BYTES};
use crate::inbox::{Inbox, Message, Settled};

/// Requests that are served before the device's thread looks at anything else.
const REQUESTS_PER_TURN: usize = 64;
/// Events that wait for buffers of the guest's.
const MAX_BACKLOG: usize = 4096;

/// A connected guest.
pub(super) struct Guest {
    pub(super) host: Arc<Host>,
    pub(super) name: Arc<str>,
    /// The RNIC's name for it.
    pub(super) vnic: VnicId,
    pub(super) epoch: u64,
    link: Link,
    inbox: Inbox,
    pub(super) poller: Arc<Poller>,
    pub(super) features: u64,
    pub(super) protocol_features: VhostUserProtocolFeatures,
    pub(super) ram: GuestRam,
    pub(super) vrings: Vec<Vring>,
    pub(super) control: Option<Ring>,
    pub(super) events: Option<Ring>,
    pub(super) session: Session,
    /// Chains of requests that wait for the store.
    waiting: HashMap<Ticket, Chain>,
    /// Events that wait for buffers.
    backlog: VecDeque<AsyncEvent>,
    channel: Option<Channel>,
    throttle: Throttle,
    /// The RNIC has given the guest up; the front end must go.
    dead: bool,
    /// Whoever waits for this guest learns that it has settled when these are dropped: after the RNIC knows it no more.
    settled: Vec<Settled>,
    /// The vNIC is taken away: its port stays down.
    withdrawn: bool,
}

/// Why a guest cannot be attached.
#[derive(Debug, thiserror::Error)]
pub(super) enum AttachError {
    #[error("the RNIC cannot attach it: {0}")]
    Rnic(#[from] DriverError),
    #[error("no random numbers: {0}")]
    Random(#[from] getrandom::Error),
}

struct RamReader(Arc<Mapped>);

impl GuestMemory for RamReader {
    fn read(&self, gpa: u64, buf: &mut [u8]) -> Result<(), MemoryError> {
        self.0.read_slice(buf, GuestAddress(gpa)).map_err(|_| MemoryError(gpa))
    }

    fn holds(&self, gpa: u64, len: u64) -> bool {
        usize::try_from(len).is_ok_and(|len| self.0.check_range(GuestAddress(gpa), len))
    }
}

impl Guest {
    /// Makes the guest known to the RNIC. Its objects live in an epoch of their own.
    pub(super) fn attach(
        identity: Identity,
        settings: Settings,
        host: Arc<Host>,
        inbox: Inbox,
        poller: Arc<Poller>,
    ) -> Result<Self, AttachError> {
        let epoch = getrandom::u64()?.max(1);
        let seed = getrandom::u32()?;
        let link = host.link();
        let vnic = host.next_vnic();
        let name: Arc<str> = identity.vnic.as_str().into();
        let attach =
            Command::AttachVnic { vnic, vni: identity.vni, epoch, addresses: identity.addresses.clone() };
        let active_mtu = link.active_mtu;
        let session = Session::new(SessionConfig {
            id: vnic,
            identity,
            limits: host.limits,
            settings,
            epoch,
            active_mtu,
            seed,
        });
        host.router.attach(vnic, inbox.clone());
        // From here on, dropping the guest undoes what has been done.
        let guest = Guest {
            host,
            name,
            vnic,
            epoch,
            link,
            inbox,
            poller,
            features: 0,
            protocol_features: VhostUserProtocolFeatures::empty(),
            ram: GuestRam::default(),
            vrings: (0..QUEUES).map(|_| Vring::default()).collect(),
            control: None,
            events: None,
            session,
            waiting: HashMap::new(),
            backlog: VecDeque::new(),
            channel: None,
            throttle: Throttle::default(),
            dead: false,
            settled: Vec::new(),
            withdrawn: false,
        };
        guest.host.rnic.execute(attach)?;
        guest.session.apply_limits(&*guest.host.rnic)?;
        Ok(guest)
    }

    /// Whether the front end has to be disconnected.
    pub(super) fn is_dead(&self) -> bool {
        self.dead || self.ram.is_poisoned()
    }

    pub(super) fn has_protocol_feature(&self, feature: VhostUserProtocolFeatures) -> bool {
        self.protocol_features.contains(feature)
    }

    /// Whether the front end says so when the guest resets its device; else stopping the control queue means it.
    pub(super) fn front_end_resets(&self) -> bool {
        self.has_protocol_feature(VhostUserProtocolFeatures::RESET_DEVICE)
    }

    pub(super) fn set_channel(&mut self, channel: Channel) {
        self.channel = Some(channel);
    }

    /// The config space as it is now.
    pub(super) fn config_space(&self) -> [u8; SPACE_BYTES] {
        let identity = self.session.identity();
        let paths = identity.addresses.len() as u8;
        let config = config_space(
            identity.mac,
            self.epoch,
            &self.host.limits,
            &self.session.settings().quotas,
            self.link,
            paths,
        );
        let mut space = [0; SPACE_BYTES];
        space[..Config::SIZE].copy_from_slice(config.as_bytes());
        space
    }

    /// The guest has started anew, or is gone: nothing of it stays. The front end stays connected.
    pub(super) fn reset(&mut self, why: &str) {
        for index in 0..QUEUES {
            self.stop_queue(index);
            // It starts again when the front end has set it up again, and not before: its place is the last driver's.
            self.vrings[usize::from(index)].kick = Kick::Unset;
        }
        let report = self.session.reset(&*self.host.rnic);
        self.tell_taken();
        self.waiting.clear();
        self.backlog.clear();
        self.say(|name| info!(vnic = %name, reaped = report.reaped, "{why}"));
        for failure in &report.failures {
            warn!(vnic = %self.name, "the RNIC still has something of the guest's: {failure}");
        }
        // Detaching is sure to work, and ends everything.
        self.dead |= !report.failures.is_empty();
    }

    /// The vNIC is taken away: the guest sees its port go down.
    pub(super) fn withdraw(&mut self) {
        self.withdrawn = true;
        self.set_link(self.link);
        let host = self.host.clone();
        let revoked = self.session.revoke_all(&*host.rnic);
        self.tell_revoked(revoked);
    }

    /// The end of a guest whose vNIC has been taken away: nothing of it stays in the RNIC, and then it is told so.
    pub(super) fn take_leave(&mut self) {
        let reason = "the vNIC has been taken away from this host";
        let told = self.session.handle_event(&Event::VnicFatal { vnic: self.vnic, reason: reason.into() });
        let report = self.session.reset(&*self.host.rnic);
        self.waiting.clear();
        info!(vnic = %self.name, reaped = report.reaped, "{reason}");
        // What is left ends with the attachment; a guest that was told already might use its memory for other things before.
        if report.failures.is_empty() {
            self.backlog.extend(told);
            self.deliver_events();
        }
    }

    /// A kick on one of masqd's own queues, or anything else that may have made something available.
    pub(super) fn kicked(&mut self, index: u16) {
        if let Some(Vring { kick: Kick::Eventfd(kick), .. }) = self.vrings.get(usize::from(index)) {
            let mut counter = [0; 8];
            let _ = rustix::io::read(kick, &mut counter);
        }
        match index {
            QUEUE_CONTROL => self.serve_requests(),
            QUEUE_EVENTS => self.deliver_events(),
            _ => {}
        }
    }

    /// A message from the rest of masqd. How the device ends is the caller's.
    pub(super) fn message(&mut self, message: Message) {
        match message {
            Message::Rnic(event) => self.rnic_event(&event),
            Message::Addresses { gids, allowed } => {
                self.session.set_addresses(gids, allowed);
                self.tell_taken();
                // What was judged by the old ones stood in the directory before they came here.
                self.reevaluate(&Touched::everything());
            }
            Message::Settings(settings) => {
                let outcome = self.session.set_settings(&*self.host.rnic, settings);
                self.must_limit(outcome);
            }
            Message::Link(link) => self.set_link(link),
            Message::Resolved(ticket) => self.resolved(ticket),
            Message::MoreRequests => self.serve_requests(),
            // Whoever asked may have lost patience.
            Message::Report(reply) if reply.is_closed() => {}
            Message::QueuePairs(_, reply) if reply.is_closed() => {}
            Message::Report(reply) => {
                let _ = reply.send(self.report());
            }
            Message::QueuePairs(numbers, reply) => {
                let _ = reply.send(self.queue_pairs(numbers));
            }
            // The conversation's.
            Message::Withdraw | Message::Stop => {}
        }
    }

    /// Desired or realised state has changed.
    pub(super) fn reevaluate(&mut self, touched: &Touched) {
        let host = self.host.clone();
        let directory = host.directory.read();
        let revoked = self.session.reevaluate(&directory, &*host.rnic, touched);
        drop(directory);
        self.tell_revoked(revoked);
    }

    fn tell_revoked(&mut self, revoked: Revoked) {
        for peer in &revoked.peers {
            self.tell_datagrams("revoke", &format!("with vNIC {}", peer.vnic), &peer.reason);
        }
        if let Some(failure) = &revoked.failure {
            // Fail closed: datagrams that cannot be stopped take the device with them.
            warn!(vnic = %self.name, "the RNIC does not take what has changed about peers, so the device is detached: {failure}");
            self.dead = true;
        }
        for revoked in revoked.connections {
            self.host.counts.revoked(&self.name);
            let c = &revoked.connection;
            warn!(
                vpc = %self.session.identity().vpc,
                vnic = %self.name,
                verb = "revoke",
                peer = %c.peer,
                errno = %revoked.reason.errno(),
                reason = revoked.reason.label(),
                rule = revoked.reason.rules().as_deref(),
                "connection of QP {:#08x} to QP {:#08x} at {} revoked: {}",
                c.local_qpn.get(),
                c.remote_qpn.get(),
                c.remote,
                revoked.reason
            );
            if let Some(failure) = revoked.failure {
                // Fail closed: a connection that cannot be revoked takes the device with it.
                warn!(vnic = %self.name, "the RNIC did not revoke it, so the device is detached: {failure}");
                self.dead = true;
            }
        }
    }

    /// The RNIC has met somebody whom it does not know.
    fn unknown_peer(&mut self, peer: PeerName) {
        match self.in_session(|session, env| session.handle_unknown_peer(env, peer)) {
            Ok(Asked::Answered(answer)) => self.peer_answered(Ok(answer)),
            Ok(Asked::Pending(ticket)) => self.host.refresher.miss(self.inbox.clone(), ticket),
            Ok(Asked::Already) => {}
            Err(e) => self.peer_answered(Err(e)),
        }
    }

    fn peer_resolved(&mut self, ticket: Ticket) {
        if let Some(answer) = self.in_session(|session, env| session.handle_peer_resolved(env, ticket)) {
            self.peer_answered(answer);
        }
    }

    /// The RNIC was told about a peer, or did not take it: the log says what does not pass.
    fn peer_answered(&mut self, answer: Result<PeerAnswer, DriverError>) {
        let answer = match answer {
            Ok(answer) => answer,
            Err(e) => {
                return self
                    .say(|name| warn!(vnic = %name, "the RNIC does not take an answer about a peer: {e}"));
            }
        };
        let Some(reason) = &answer.reason else { return };
        let with = match (&answer.vnic, answer.name) {
            (Some(vnic), _) => format!("with vNIC {vnic}"),
            (None, PeerName::Gid(gid)) => format!("to {gid}"),
            (None, PeerName::Source(address, qpn)) => format!("from QP {qpn} at {address}"),
        };
        self.tell_datagrams("datagram", &with, reason);
    }

    /// Counts and tells why datagrams do not pass.
    fn tell_datagrams(&mut self, verb: &'static str, with: &str, reason: &Reason) {
        self.host.counts.refused(&self.name, verb, reason.label());
        let vpc = self.session.identity().vpc.clone();
        self.say(|name| {
            warn!(
                vpc,
                vnic = %name,
                verb,
                reason = reason.label(),
                rule = reason.rules().as_deref(),
                "not all datagrams {with} pass: {reason}"
            );
        });
    }

    /// Everything that came before has been dealt with; a guest that has to go must be gone first.
    pub(super) fn settle(&mut self, settled: Vec<Settled>) {
        self.settled.extend(settled);
        if !self.dead {
            self.settled.clear();
        }
    }

    /// Fail closed: a guest that cannot be limited goes.
    fn must_limit(&mut self, outcome: Result<(), DriverError>) {
        if let Err(e) = outcome {
            warn!(vnic = %self.name, "the RNIC does not take the vNIC's limits, so the device is detached: {e}");
            self.dead = true;
        }
    }

    /// Lets peers know which of the allowed addresses the guest has taken on.
    fn tell_taken(&self) {
        self.host.taken.set(&self.name, self.session.taken_gids());
    }

    /// Serves what is on the control queue, then lets peers know what that has changed for them.
    fn serve_requests(&mut self) {
        self.take_requests();
        self.tell_taken();
    }

    fn take_requests(&mut self) {
        for _ in 0..REQUESTS_PER_TURN {
            let Some(ring) = &mut self.control else { return };
            match ring.pop(self.ram.mapped(), MAX_REQUEST_BYTES) {
                Ok(Some(Popped::Chain(chain))) => self.request(chain),
                Ok(Some(Popped::Malformed(why))) => {
                    self.say(|name| warn!(vnic = %name, "a malformed control request was dropped: {why}"));
                }
                Ok(None) => return,
                Err(e) => return self.break_queue(QUEUE_CONTROL, &e),
            }
        }
        self.inbox.push(Message::MoreRequests);
    }

    fn request(&mut self, chain: Chain) {
        self.host.counts.command(&self.name);
        match self.in_session(|session, env| session.handle_request(env, &chain.request)) {
            Outcome::Reply(reply) => self.reply(chain, reply),
            Outcome::Pending(ticket) => {
                self.waiting.insert(ticket, chain);
                self.host.refresher.miss(self.inbox.clone(), ticket);
            }
        }
    }

    fn resolved(&mut self, ticket: Ticket) {
        let Some(chain) = self.waiting.remove(&ticket) else { return self.peer_resolved(ticket) };
        if let Some(reply) = self.in_session(|session, env| session.handle_resolved(env, ticket)) {
            self.reply(chain, reply);
        }
    }

    /// Calls the session with what it sees of its surroundings now.
    fn in_session<R>(&mut self, call: impl FnOnce(&mut Session, Env<'_>) -> R) -> R {
        let memory = RamReader(self.ram.mapped().clone());
        let host = &self.host;
        let directory = host.directory.read();
        let env = Env { memory: &memory, rnic: &*host.rnic, directory: &directory, now: host.now() };
        call(&mut self.session, env)
    }

    /// The control queue stops: whoever waits gets an answer from what is known now.
    pub(super) fn resolve_all(&mut self) {
        let tickets: Vec<Ticket> = self.waiting.keys().copied().collect();
        tickets.into_iter().for_each(|ticket| self.resolved(ticket));
    }

    fn reply(&mut self, chain: Chain, reply: Reply) {
        if let Some(refusal) = &reply.refusal {
            let vpc = self.session.identity().vpc.clone();
            self.host.counts.refused(&self.name, refusal.verb_name(), refusal.reason.label());
            self.say(|name| log_refusal(&vpc, name, refusal));
        }
        for (peer, why) in self.session.take_one_paths() {
            self.say(|name| info!(vnic = %name, %peer, "one path is used to this peer: {why}"));
        }
        let Some(ring) = &mut self.control else { return };
        match ring.answer(chain, &reply.bytes, self.ram.mapped()) {
            Ok(true) => {}
            Ok(false) => self.say(|name| warn!(vnic = %name, "a control request has no room for its reply")),
            Err(e) => self.break_queue(QUEUE_CONTROL, &e),
        }
    }

    fn rnic_event(&mut self, event: &Event) {
        match event {
            Event::QpFault { qp, fault, reason, .. } => {
                self.say(|name| info!(vnic = %name, qp = qp.0, "queue pair fault {fault:?}: {reason}"));
            }
            Event::SrqFault { srq, reason, .. } => {
                self.say(|name| info!(vnic = %name, srq = srq.0, "shared receive queue fault: {reason}"));
            }
            Event::UnknownPeer { name, .. } => return self.unknown_peer(*name),
            Event::VnicFatal { reason, .. } => {
                warn!(vnic = %self.name, "the RNIC has given the device up: {reason}");
                self.dead = true;
            }
            _ => {}
        }
        if let Some(event) = self.session.handle_event(event) {
            self.backlog.push_back(event);
            if self.backlog.len() > MAX_BACKLOG {
                self.backlog.pop_front();
                self.say(|name| warn!(vnic = %name, "the guest takes no events; the oldest one was dropped"));
            }
            self.deliver_events();
        }
    }

    fn deliver_events(&mut self) {
        while let (Some(event), Some(ring)) = (self.backlog.front(), &mut self.events) {
            match ring.pop(self.ram.mapped(), 0) {
                Ok(Some(Popped::Chain(chain))) if chain.room_bytes() >= AsyncEvent::SIZE => {
                    if let Err(e) = ring.answer(chain, event.as_bytes(), self.ram.mapped()) {
                        return self.break_queue(QUEUE_EVENTS, &e);
                    }
                    self.backlog.pop_front();
                }
                Ok(Some(Popped::Chain(chain))) => {
                    if let Err(e) = ring.answer(chain, &[], self.ram.mapped()) {
                        return self.break_queue(QUEUE_EVENTS, &e);
                    }
                    self.say(|name| warn!(vnic = %name, "a buffer for events is too small"));
                }
                Ok(Some(Popped::Malformed(why))) => {
                    self.say(|name| warn!(vnic = %name, "a malformed buffer for events was dropped: {why}"));
                }
                Ok(None) => return,
                Err(e) => return self.break_queue(QUEUE_EVENTS, &e),
            }
        }
    }

    /// The guest's queue makes no sense any more: it stays stopped until it is set up again.
    fn break_queue(&mut self, index: u16, error: &RingError) {
        self.say(|name| warn!(vnic = %name, queue = index, "{error}; the queue is stopped"));
        if let Kick::Eventfd(kick) = &self.vrings[usize::from(index)].kick {
            let _ = self.poller.remove(kick);
        }
        match index {
            QUEUE_CONTROL => {
                self.control = None;
                // The answers have nowhere to go, but the session is to forget the requests as well.
                self.resolve_all();
            }
            _ => self.events = None,
        }
    }

    fn set_link(&mut self, link: Link) {
        let link = Link { up: link.up && !self.withdrawn, ..link };
        if std::mem::replace(&mut self.link, link) == link {
            return;
        }
        self.session.set_active_mtu(link.active_mtu);
        if let Some(channel) = &self.channel {
            match channel.config_changed() {
                Ok(()) => debug!(vnic = %self.name, "the guest is told of a changed link"),
                Err(e) => warn!(vnic = %self.name, "cannot tell the guest of a changed link: {e}"),
            }
        }
    }

    /// Writes a line that a guest can provoke, unless there have been too many.
    pub(super) fn say(&mut self, line: impl FnOnce(&str)) {
        match self.throttle.admit(Instant::now()) {
            None => {}
            Some(0) => line(&self.name),
            Some(suppressed) => {
                warn!(vnic = %self.name, "{suppressed} lines about this guest were not written");
                line(&self.name);
            }
        }
    }
}

fn log_refusal(vpc: &str, vnic: &str, refusal: &Refusal) {
    let peer = refusal.peer.as_ref().map(ToString::to_string).unwrap_or_default();
    warn!(
        vpc,
        vnic,
        verb = refusal.verb_name(),
        peer,
        errno = %refusal.errno(),
        reason = refusal.reason.label(),
        rule = refusal.reason.rules().as_deref(),
        "{refusal}"
    );
}

impl Drop for Guest {
    fn drop(&mut self) {
        // The front end keeps the eventfds open, so they must leave the set explicitly.
        for index in [QUEUE_CONTROL, QUEUE_EVENTS] {
            if let Kick::Eventfd(kick) = &self.vrings[usize::from(index)].kick {
                let _ = self.poller.remove(kick);
            }
        }
        if let Err(e) = self.host.rnic.execute(Command::DetachVnic { vnic: self.vnic }) {
            warn!(vnic = %self.name, "the RNIC cannot detach the device: {e}");
        }
        self.host.router.detach(self.vnic);
        self.host.taken.set(&self.name, Vec::new());
    }
}

#[cfg(test)]
mod tests {
    use masq_driver::RnicDriver;
    use vrdma_abi::control::{ModifyQp, OP_MODIFY_QP};

    use super::*;
    use crate::device::session_support::{self as support, FakeRnic, RTR_MASK, WORLD, directory, gid};
    use crate::host::{Refresher, Watchdog};
    use crate::router::Router;

    /// Attaches and detaches; the rest is the session's.
    struct Rnic(FakeRnic);

    impl RnicDriver for Rnic {
        fn execute(&self, command: Command) -> Result<masq_driver::Reply, DriverError> {
            match command {
                Command::AttachVnic { .. } | Command::DetachVnic { .. } => Ok(masq_driver::Reply::Done),
                other => self.0.execute(other),
            }
        }
    }

    #[test]
    fn requests_that_wait_are_forgotten_with_a_queue_that_breaks() {
        let mut driver = support::Guest::ready("blue-1");
        driver.base();
        driver.qp_in_init(1);
        let attr = driver.rtr_attr(gid("192.168.0.77"), driver.qpn_of("blue-2"));
        let rtr = driver.bytes(OP_MODIFY_QP, &ModifyQp { qp: 1, mask: RTR_MASK, attr });

        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        // Nobody reads the store again.
        let (refresher, _misses) = Refresher::new();
        let watchdog = Watchdog::new(runtime.handle().clone());
        let router = Arc::new(Router::default());
        let host = Arc::new(Host::new("h1".into(), Arc::new(Rnic(driver.rnic)), router, refresher, watchdog));
        *host.directory.write() = directory(WORLD);
        host.published.insert(host.directory.read().endpoint("blue-1").unwrap().clone());
        let identity = host.identity(&host.directory.read(), "blue-1").unwrap();
        let settings = host.directory.read().settings("blue-1");
        let mut guest =
            Guest::attach(identity, settings, host, Inbox::new().unwrap(), Arc::new(Poller::new().unwrap()))
                .unwrap();
        guest.session = driver.session;
        // More often than requests may wait at the same time.
        for round in 0..300 {
            guest.request(Chain::of(rtr.clone()));
            assert_eq!(guest.waiting.len(), 1, "the request of round {round} waits for the store");
            guest.break_queue(QUEUE_CONTROL, &virtio_queue::Error::QueueNotReady.into());
            assert!(guest.waiting.is_empty());
        }
    }
}
