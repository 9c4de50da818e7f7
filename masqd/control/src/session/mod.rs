use std::collections::HashMap;

use masq_driver::{Event, QpHandle, RnicDriver, VnicId};
use masq_policy::conntrack::{Connection, Conntrack, Touched};
use masq_policy::quota::Usage;
use masq_types::Mtu;
use vrdma_abi::control as abi;
use vrdma_abi::event::AsyncEvent;
use zerocopy::{FromBytes, IntoBytes};

use crate::refusal::RefusalCounters;
use crate::{Directory, Env, Identity, Limits, Reason, Refusal};

/// What a session needs to know of its device.
#[derive(Clone, Debug)]
pub struct SessionConfig {
    /// The RNIC's name for the device; it is attached there already.
    pub id: VnicId,
    /// Who the device is.
    pub identity: Identity,
    /// What it can do at most.
    pub limits: Limits,
    /// The epoch in config space.
    pub epoch: u64,
    /// The active MTU in config space.
    pub active_mtu: Mtu,
    /// Any number: where QPNs begin inside the device's blocks.
    pub seed: u32,
}

/// The state of one attached device: its objects, its GID table, its connections.
///
/// - [`handle_request`](Self::handle_request): a control command of the guest. Answers it, or asks for the store to be read
///   again; then [`handle_resolved`](Self::handle_resolved) with the ticket, once.
/// - [`handle_event`](Self::handle_event): the RNIC reports; gives what the guest is told.
/// - [`reevaluate`](Self::reevaluate): the directory has changed; revokes connections that are not allowed any more.
/// - [`reset`](Self::reset): the guest has reset the device, or its front end is gone.
pub struct Session {
    config: SessionConfig,
    usage: Usage,
    conntrack: Conntrack<QpHandle>,
    refusals: RefusalCounters,
    waiting: HashMap<Ticket, Vec<u8>>,
}

/// Names a request that waits for the store to be read again; never used twice in a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket(u64);

/// What becomes of a request.
#[derive(Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is done.
    Reply(Reply),
    /// The directory lacks something: read the store again, bring the directory up to date, and call
    /// [`Session::handle_resolved`], also when the reading has failed.
    Pending(Ticket),
}

/// The reply to a request.
#[derive(Debug, PartialEq, Eq)]
pub struct Reply {
    /// What goes into the writable part of the descriptor chain.
    pub bytes: Vec<u8>,
    /// Why the request was refused, for the log.
    pub refusal: Option<Refusal>,
}

/// A connection that is not allowed any more.
#[derive(Debug, PartialEq, Eq)]
pub struct Revocation {
    /// The queue pair.
    pub qp: QpHandle,
    /// The connection.
    pub connection: Connection,
    /// Why it is not allowed any more.
    pub reason: Reason,
    /// Why the RNIC did not revoke it, if it did not.
    pub failure: Option<String>,
}

/// What was left when a device was reset.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct ResetReport {
    /// How many objects were reaped.
    pub reaped: usize,
    /// What the RNIC did not destroy, and why; detach the device when there is any.
    pub failures: Vec<String>,
}

impl Session {
    /// A session of a device that the guest has not initialised yet.
    pub fn new(config: SessionConfig) -> Session {
        let usage = Usage::new(config.limits.quotas);
        Session {
            config,
            usage,
            conntrack: Conntrack::default(),
            refusals: RefusalCounters::default(),
            waiting: HashMap::new(),
        }
    }

    /// Handles the readable part of a control request.
    pub fn handle_request(&mut self, env: Env<'_>, request: &[u8]) -> Outcome {
        let _ = env;
        let tag = abi::Request::read_from_prefix(request).map_or(0, |(r, _)| r.tag);
        let reason = Reason::Unsupported("this command".into());
        self.refusals.count(&reason);
        let head = abi::Reply { status: reason.errno().0, tag };
        let refusal = Some(Refusal { verb: None, tag, peer: None, reason });
        Outcome::Reply(Reply { bytes: head.as_bytes().to_vec(), refusal })
    }

    /// The store has been read again, or could not be: finishes the request. `None` when the device was reset meanwhile; then
    /// nobody waits for a reply.
    pub fn handle_resolved(&mut self, env: Env<'_>, ticket: Ticket) -> Option<Reply> {
        let request = self.waiting.remove(&ticket)?;
        match self.handle_request(env, &request) {
            Outcome::Reply(reply) => Some(reply),
            Outcome::Pending(_) => None,
        }
    }

    /// What the guest is told of an event of this device, if anything.
    pub fn handle_event(&mut self, event: &Event) -> Option<AsyncEvent> {
        let _ = event;
        None
    }

    /// Judges the connections that `touched` covers again, and has those revoked that are not allowed any more.
    pub fn reevaluate(
        &mut self,
        directory: &Directory,
        rnic: &dyn RnicDriver,
        touched: &Touched,
    ) -> Vec<Revocation> {
        let _ = (directory, rnic, touched);
        Vec::new()
    }

    /// Destroys everything that the guest has, and forgets what it said. Requests that wait are dropped.
    pub fn reset(&mut self, rnic: &dyn RnicDriver) -> ResetReport {
        let _ = rnic;
        self.waiting.clear();
        ResetReport::default()
    }

    /// The active MTU has changed. Existing connections keep theirs.
    pub fn set_active_mtu(&mut self, mtu: Mtu) {
        self.config.active_mtu = mtu;
    }

    /// The GIDs that the vNIC may use have changed. GIDs that it may not use any more leave its table;
    /// [`reevaluate`](Self::reevaluate) deals with their connections.
    pub fn set_gids(&mut self, gids: Vec<masq_types::Gid>) {
        self.config.identity.gids = gids;
    }

    /// Whether the guest has initialised the device since the last reset.
    pub fn is_initialised(&self) -> bool {
        false
    }

    /// Who the device is.
    pub fn identity(&self) -> &Identity {
        &self.config.identity
    }

    /// How much the guest uses.
    pub fn usage(&self) -> &Usage {
        &self.usage
    }

    /// The guest's connections.
    pub fn connections(&self) -> impl Iterator<Item = (QpHandle, &Connection)> {
        self.conntrack.iter()
    }

    /// How often requests have been refused, by reason.
    pub fn refusals(&self) -> &RefusalCounters {
        &self.refusals
    }
}
