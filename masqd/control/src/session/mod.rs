//! The session of one device: requests in, replies out.
//!
//! | module | what is in it |
//! |---|---|
//! | `decode` | bytes to structures, checks of single fields |
//! | `pages` | page lists copied out of guest memory |
//! | `objects` | the tree of objects |
//! | `create`, `memory`, `queues`, `modify`, `destroy` | the verbs |
//! | `connect` | who may be connected to whom, at RTR and after each change |
//! | `peers` | whom datagrams go to and come from |
//! | `events` | what the RNIC reports |
//! | `inspect` | what the device has counted, and how queue pairs are |

mod connect;
mod create;
mod decode;
mod destroy;
mod events;
mod inspect;
mod memory;
mod modify;
mod objects;
mod pages;
mod peers;
mod queues;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use masq_driver::{
    Command, CqHandle, CtxHandle, DriverError, MrHandle, MwHandle, PdHandle, QpHandle, RnicDriver, SrqHandle,
    VnicId, XrcdHandle,
};
use masq_policy::conntrack::{Connection, Conntrack};
use masq_policy::multipath::{OnePath, group_len};
use masq_policy::qpn::QpnPool;
use masq_policy::quota::{CommandRate, Usage};
use masq_types::{Features, Gid, Mtu, WireQpn};
use vrdma_abi::config::GID_TABLE_LEN;
use vrdma_abi::control as abi;
use zerocopy::IntoBytes;

use crate::refresh::Backoff;
use crate::refusal::RefusalCounters;
use crate::{Env, Identity, Limits, Peer, Reason, Refusal, Settings, Verb, driver_limits};
use decode::{body, grown_body, reserved};
pub use inspect::{QpPage, QpView};
use objects::Objects;
use peers::Peers;
pub use peers::{Asked, PeerAnswer, PeerRevocation};

const GID_TABLE: usize = GID_TABLE_LEN as usize;

/// Bytes of CREATE_QP before version 1.3 of the contract.
const CREATE_QP_BYTES_1_2: usize = std::mem::offset_of!(abi::CreateQp, chunks);

/// Most requests of one guest that wait for the store: as many as its control queue holds.
const MAX_WAITING: usize = 256;

/// What a session needs to know of its device.
#[derive(Clone, Debug)]
pub struct SessionConfig {
    /// The RNIC's name for the device; it is attached there already.
    pub id: VnicId,
    /// Who the device is.
    pub identity: Identity,
    /// What the RNIC can do at most.
    pub limits: Limits,
    /// What its guest may have, at first.
    pub settings: Settings,
    /// The epoch in config space.
    pub epoch: u64,
    /// The active MTU in config space.
    pub active_mtu: Mtu,
    /// Any number: where QPNs begin inside the device's blocks.
    pub seed: u32,
}

impl SessionConfig {
    /// How many paths of the underlay its queue pairs may use.
    fn paths(&self) -> usize {
        if self.limits.features.contains(Features::MULTIPATH) { self.identity.addresses.len() } else { 1 }
    }
}

/// The state of one attached device: its objects, its GID table, its connections.
///
/// - [`handle_request`](Self::handle_request): a control command of the guest. Answers it, or asks for the store to be read
///   again; then [`handle_resolved`](Self::handle_resolved) with the ticket, once.
/// - [`handle_event`](Self::handle_event): the RNIC reports; gives what the guest is told.
/// - [`handle_unknown_peer`](Self::handle_unknown_peer): the RNIC asks whom datagrams go to or come from; then
///   [`handle_peer_resolved`](Self::handle_peer_resolved) with the ticket, if there is one.
/// - [`reevaluate`](Self::reevaluate): the directory has changed; revokes what is not allowed any more.
/// - [`reset`](Self::reset): the guest has reset the device, or its front end is gone.
pub struct Session {
    config: SessionConfig,
    init: Option<abi::DeviceInit>,
    gid_table: [Gid; GID_TABLE],
    objects: Objects,
    usage: Usage,
    command_rate: CommandRate,
    qpns: QpnPool,
    last_srqn: u32,
    conntrack: Conntrack<QpHandle>,
    refusals: RefusalCounters,
    peers: Peers,
    misses: Backoff,
    /// Requests that wait for the store to be read again.
    waiting: HashMap<Ticket, Vec<u8>>,
    next_ticket: u64,
    /// What the guest was last told of its traffic, and when.
    counted: Option<(Duration, abi::QueryCountersReply)>,
    one_paths: OnePaths,
}

/// Names a request, or a question of the RNIC, that waits for the store to be read again; never used twice in a session.
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

/// What is not allowed any more.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Revoked {
    /// The connections.
    pub connections: Vec<Revocation>,
    /// The peers of datagrams.
    pub peers: Vec<PeerRevocation>,
    /// Why the RNIC did not take what it was told of peers and addresses, if it did not: detach the device.
    pub failure: Option<String>,
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

/// Why a verb did not succeed.
enum Stop {
    /// It is refused.
    Refuse(Reason),
    /// The directory lacks something that the store may have.
    Wait,
}

impl From<Reason> for Stop {
    fn from(reason: Reason) -> Stop {
        Stop::Refuse(reason)
    }
}

/// What the RNIC's reply to a command must be; another one is its mistake.
macro_rules! driver_reply {
    ($reply:expr, $pattern:pat => $value:expr) => {
        match $reply {
            $pattern => Ok($value),
            other => Err($crate::Reason::Rnic {
                errno: $crate::Errno::EIO,
                message: format!("it answered {other:?}"),
            }),
        }
    };
}
use driver_reply;

impl Session {
    /// A session of a device that the guest has not initialised yet.
    pub fn new(config: SessionConfig) -> Session {
        let usage = Usage::new(config.settings.quotas);
        let command_rate = CommandRate::new(config.settings.commands_per_sec);
        let identity = &config.identity;
        let group_len = group_len(config.paths());
        let qpns = QpnPool::new(identity.qpn_blocks.clone(), Some(identity.gsi_qpn), group_len, config.seed);
        let last_srqn = WireQpn::from_wire(config.seed).get();
        Session {
            config,
            init: None,
            gid_table: [Gid::ZERO; GID_TABLE],
            objects: Objects::default(),
            usage,
            command_rate,
            qpns,
            last_srqn,
            conntrack: Conntrack::default(),
            refusals: RefusalCounters::default(),
            peers: Peers::default(),
            misses: Backoff::default(),
            waiting: HashMap::new(),
            next_ticket: 0,
            counted: None,
            one_paths: OnePaths::default(),
        }
    }

    /// Handles the readable part of a control request.
    pub fn handle_request(&mut self, env: Env<'_>, request: &[u8]) -> Outcome {
        match self.answer(env, request, true) {
            Answer::Reply(reply) => Outcome::Reply(reply),
            Answer::Wait if self.waiting.len() >= MAX_WAITING => {
                Outcome::Reply(self.refuse(env, request, Reason::TooManyWaiting(self.waiting.len())))
            }
            Answer::Wait => {
                let ticket = self.next_ticket();
                self.waiting.insert(ticket, request.to_vec());
                Outcome::Pending(ticket)
            }
        }
    }

    /// The store has been read again, or could not be: finishes the request. `None` when the device was reset
    /// meanwhile; then nobody waits for a reply.
    pub fn handle_resolved(&mut self, env: Env<'_>, ticket: Ticket) -> Option<Reply> {
        let request = self.waiting.remove(&ticket)?;
        // From the start: the device may have changed while the request waited.
        match self.answer(env, &request, false) {
            Answer::Reply(reply) => {
                let missed = reply.refusal.as_ref().is_some_and(|refusal| refusal.reason.is_miss());
                self.misses.read(env.now, !missed);
                Some(reply)
            }
            // No verb waits a second time; if one did, the guest would still get an answer.
            Answer::Wait => Some(self.refuse(env, &request, Reason::TooManyWaiting(self.waiting.len()))),
        }
    }

    fn next_ticket(&mut self) -> Ticket {
        self.next_ticket += 1;
        Ticket(self.next_ticket)
    }

    /// The active MTU has changed. Existing connections keep theirs.
    pub fn set_active_mtu(&mut self, mtu: Mtu) {
        self.config.active_mtu = mtu;
    }

    /// The addresses that the vNIC may use have changed. GIDs that it may not use any more leave its table;
    /// [`reevaluate`](Self::reevaluate) deals with their connections.
    pub fn set_addresses(&mut self, gids: Vec<Gid>, allowed: Vec<IpNet>) {
        let identity = &mut self.config.identity;
        (identity.gids, identity.allowed) = (gids, allowed);
        for entry in &mut self.gid_table {
            if !identity.may_use(*entry) {
                *entry = Gid::ZERO;
            }
        }
    }

    /// Quotas or QoS have changed. What the guest has already stays, also above its quotas.
    pub fn set_settings(&mut self, rnic: &dyn RnicDriver, settings: Settings) -> Result<(), DriverError> {
        self.usage.set_quotas(settings.quotas);
        self.command_rate.set(settings.commands_per_sec);
        self.config.settings = settings;
        self.apply_limits(rnic)
    }

    /// Tells the RNIC what the vNIC may send; at first, and whenever that changes.
    pub fn apply_limits(&self, rnic: &dyn RnicDriver) -> Result<(), DriverError> {
        let limits = driver_limits(self.config.settings.qos.as_ref());
        rnic.execute(Command::SetLimits { vnic: self.config.id, limits }).map(drop)
    }

    /// What the guest may have.
    pub fn settings(&self) -> &Settings {
        &self.config.settings
    }

    /// The addresses in the guest's table that are allowed to it, but are not its own.
    pub fn taken_gids(&self) -> Vec<Gid> {
        let own = &self.config.identity.gids;
        self.gid_table.iter().copied().filter(|gid| !gid.is_zero() && !own.contains(gid)).collect()
    }

    /// Whether the guest has initialised the device since the last reset.
    pub fn is_initialised(&self) -> bool {
        self.init.is_some()
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

    /// Towards whom queue pairs with several paths have come to use one since this was asked last, and why: each peer once, until the
    /// reason is another.
    pub fn take_one_paths(&mut self) -> Vec<(Arc<str>, OnePath)> {
        std::mem::take(&mut self.one_paths.untold)
    }

    /// How often requests have been refused, and connections revoked, by reason.
    pub fn refusals(&self) -> &RefusalCounters {
        &self.refusals
    }

    fn answer(&mut self, env: Env<'_>, request: &[u8], may_wait: bool) -> Answer {
        match self.dispatch(env, request, may_wait) {
            Ok(body) => {
                let mut bytes = reply_head(0, request);
                bytes.extend(body);
                Answer::Reply(Reply { bytes, refusal: None })
            }
            Err(Stop::Wait) => Answer::Wait,
            Err(Stop::Refuse(reason)) => Answer::Reply(self.refuse(env, request, reason)),
        }
    }

    /// Carries out a request; gives what follows the head of its reply.
    fn dispatch(&mut self, env: Env<'_>, request: &[u8], may_wait: bool) -> Result<Vec<u8>, Stop> {
        let (head, rest) = decode::head(request)?;
        reserved(&head.flags)?;
        let verb = Verb::from_opcode(head.opcode)
            .ok_or_else(|| Reason::Unsupported(format!("command {}", head.opcode)))?;
        let current = self.config.epoch;
        if head.epoch != current {
            return Err(Reason::StaleEpoch { asked: head.epoch, current }.into());
        }
        if self.init.is_none() && verb != Verb::DeviceInit {
            return Err(decode::malformed("the device has not been initialised").into());
        }
        // What gives something back is never too much, and a request that waited has been counted.
        if may_wait && !verb.gives_back() {
            self.command_rate.take(env.now).map_err(Reason::from)?;
        }
        let rnic = env.rnic;
        Ok(match verb {
            Verb::DeviceInit => nothing(self.device_init(env, body(rest)?)?),
            Verb::AddGid => nothing(self.add_gid(env, body(rest)?)?),
            Verb::DelGid => nothing(self.del_gid(env, body(rest)?)?),
            Verb::CreateContext => nothing(self.create_context(env, body(rest)?)?),
            Verb::DestroyContext => nothing(self.destroy_context(rnic, CtxHandle(destroyed(rest)?))?),
            Verb::CreatePd => nothing(self.create_pd(body(rest)?)?),
            Verb::DestroyPd => nothing(self.destroy_pd(PdHandle(destroyed(rest)?))?),
            Verb::CreateMr => self.create_mr(env, body(rest)?)?.as_bytes().to_vec(),
            Verb::DestroyMr => nothing(self.destroy_mr(rnic, MrHandle(destroyed(rest)?))?),
            Verb::CreateCq => self.create_cq(env, body(rest)?)?.as_bytes().to_vec(),
            Verb::DestroyCq => nothing(self.destroy_cq(rnic, CqHandle(destroyed(rest)?))?),
            Verb::CreateQp => {
                self.create_qp(env, grown_body(rest, CREATE_QP_BYTES_1_2)?)?.as_bytes().to_vec()
            }
            Verb::ModifyQp => {
                let may_wait = may_wait && self.misses.admits(env.now);
                nothing(self.modify_qp(env, &body(rest)?, may_wait)?)
            }
            Verb::QueryQp => self.query_qp(env, body(rest)?)?.as_bytes().to_vec(),
            Verb::DestroyQp => nothing(self.destroy_qp(rnic, QpHandle(destroyed(rest)?))?),
            Verb::ReregMr => self.rereg_mr(env, body(rest)?)?.as_bytes().to_vec(),
            Verb::ResizeCq => nothing(self.resize_cq(env, body(rest)?)?),
            Verb::CreateSrq => self.create_srq(env, body(rest)?)?.as_bytes().to_vec(),
            Verb::ModifySrq => nothing(self.modify_srq(env, body(rest)?)?),
            Verb::QuerySrq => self.query_srq(env, body(rest)?)?.as_bytes().to_vec(),
            Verb::DestroySrq => nothing(self.destroy_srq(rnic, SrqHandle(destroyed(rest)?))?),
            Verb::CreateMw => self.create_mw(env, body(rest)?)?.as_bytes().to_vec(),
            Verb::DestroyMw => nothing(self.destroy_mw(rnic, MwHandle(destroyed(rest)?))?),
            Verb::CreateXrcd => nothing(self.create_xrcd(body(rest)?)?),
            Verb::DestroyXrcd => nothing(self.destroy_xrcd(XrcdHandle(destroyed(rest)?))?),
            Verb::QueryCounters => self.query_counters(env, body(rest)?)?.as_bytes().to_vec(),
        })
    }

    fn refuse(&mut self, env: Env<'_>, request: &[u8], reason: Reason) -> Reply {
        self.refusals.count(&reason);
        let head = decode::head(request).ok();
        let verb = head.and_then(|(head, _)| Verb::from_opcode(head.opcode));
        let peer = head.and_then(|(_, rest)| self.peer_of_refused(env, verb?, rest));
        let bytes = reply_head(reason.errno().0, request);
        let tag = head.map_or(0, |(head, _)| head.tag);
        Reply { bytes, refusal: Some(Refusal { verb, tag, peer, reason }) }
    }

    fn peer_of_refused(&self, env: Env<'_>, verb: Verb, rest: &[u8]) -> Option<Peer> {
        if verb != Verb::ModifyQp {
            return None;
        }
        self.peer_of(env, &body(rest).ok()?)
    }
}

/// Peers towards whom one path is used.
#[derive(Default)]
struct OnePaths {
    noted: HashMap<Arc<str>, OnePath>,
    untold: Vec<(Arc<str>, OnePath)>,
}

impl OnePaths {
    /// So many peers are remembered; then they may be told of again.
    const MOST: usize = 1024;

    fn note(&mut self, peer: &Arc<str>, why: OnePath) {
        if self.noted.len() >= Self::MOST {
            self.noted.clear();
        }
        if self.noted.insert(peer.clone(), why) != Some(why) {
            self.untold.push((peer.clone(), why));
        }
    }
}

enum Answer {
    Reply(Reply),
    Wait,
}

/// The handle in an OP_DESTROY_ command.
fn destroyed(rest: &[u8]) -> Result<u32, Reason> {
    let r: abi::Destroy = body(rest)?;
    reserved(&r.reserved)?;
    Ok(r.handle)
}

/// The body of a reply that has none.
fn nothing((): ()) -> Vec<u8> {
    Vec::new()
}

fn reply_head(status: u32, request: &[u8]) -> Vec<u8> {
    let tag = decode::head(request).map_or(0, |(head, _)| head.tag);
    abi::Reply { status, tag }.as_bytes().to_vec()
}
