//! Whom datagrams go to and come from: the RNIC asks when it meets somebody, and is told of changes from then on.
//!
//! What the RNIC was given belongs to the vNIC, not to its guest's objects: it outlives a reset of the device.

use std::collections::{BTreeMap, HashMap};

use masq_driver::{Command, DriverError, PairVerdict, Peer, PeerId, PeerName, RnicDriver, Verdict};
use masq_model::Endpoint;
use masq_policy::conntrack::Touched;
use masq_policy::rename::{Endpoints, Found, Unreachable, locate};
use masq_policy::rules::Denied;
use masq_types::Gid;

use super::{Session, Ticket};
use crate::refresh::Backoff;
use crate::{Directory, Env, Reason};

/// Most peers that are kept up to date for one vNIC: as many as its RNIC remembers.
const MAX_PEERS: usize = 16_384;
/// Most questions of the RNIC that wait for the store, of each kind: about whom the guest sends to, and about who sends to it.
const MAX_ASKING: usize = 128;

/// What becomes of a question of the RNIC about a peer.
#[derive(Debug, PartialEq, Eq)]
pub enum Asked {
    /// It is answered.
    Answered(PeerAnswer),
    /// The directory lacks something: read the store again, bring the directory up to date, and call
    /// [`Session::handle_peer_resolved`], also when the reading has failed.
    Pending(Ticket),
    /// The same is being asked already; the answer will serve both.
    Already,
}

/// What the RNIC was told about a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerAnswer {
    /// Who was asked for.
    pub name: PeerName,
    /// The vNIC that it is, if there is one.
    pub vnic: Option<String>,
    /// Why datagrams do not pass, or not all.
    pub reason: Option<Reason>,
}

/// Datagrams with a peer are not allowed any more, or not all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerRevocation {
    /// The peer's vNIC.
    pub vnic: String,
    /// Why.
    pub reason: Reason,
}

/// The peers that the RNIC was told of.
#[derive(Default)]
pub(super) struct Peers {
    ids: HashMap<String, PeerId>,
    given: BTreeMap<PeerId, Given>,
    last: u64,
    /// Questions that wait for the store to be read again.
    asking: HashMap<Ticket, PeerName>,
    /// Judges the misses about who sends, apart from those that are the guest's doing: sources can be forged.
    strangers: Backoff,
    /// The vNIC's addresses as its endpoint record has them.
    published: Vec<Gid>,
    /// What the RNIC was told last of the vNIC's own addresses: table and published ones.
    gids: Option<(Vec<Gid>, Vec<Gid>)>,
    /// The vNIC is taken away: nobody is its peer any more.
    withdrawn: bool,
}

struct Given {
    vnic: String,
    host: String,
    peer: Peer,
}

impl Session {
    /// The RNIC holds datagrams to or from somebody: tells it who that is, or asks for the store to be read again.
    pub fn handle_unknown_peer(&mut self, env: Env<'_>, name: PeerName) -> Result<Asked, DriverError> {
        if self.peers.asking.values().any(|asked| *asked == name) {
            return Ok(Asked::Already);
        }
        match self.look_up(env.directory, name) {
            Err(reason)
                if reason.is_miss()
                    && self.misses_about(name).admits(env.now)
                    && self.peers.asking_like(name) < MAX_ASKING =>
            {
                let ticket = self.next_ticket();
                self.peers.asking.insert(ticket, name);
                Ok(Asked::Pending(ticket))
            }
            found => self.tell_peer(env, name, found.cloned()).map(Asked::Answered),
        }
    }

    /// The store has been read again, or could not be: answers the RNIC's question. `None` when the ticket is none of a
    /// question.
    pub fn handle_peer_resolved(
        &mut self,
        env: Env<'_>,
        ticket: Ticket,
    ) -> Option<Result<PeerAnswer, DriverError>> {
        let name = self.peers.asking.remove(&ticket)?;
        let found = self.look_up(env.directory, name).cloned();
        let missed = found.as_ref().is_err_and(Reason::is_miss);
        self.misses_about(name).read(env.now, !missed);
        Some(self.tell_peer(env, name, found))
    }

    /// How many peers the RNIC was told of.
    pub fn peer_count(&self) -> usize {
        self.peers.given.len()
    }

    fn misses_about(&mut self, name: PeerName) -> &mut Backoff {
        match name {
            PeerName::Gid(_) => &mut self.misses,
            PeerName::Source(..) => &mut self.peers.strangers,
        }
    }

    /// Who it is in the vNIC's network.
    fn look_up<'a>(&self, directory: &'a Directory, name: PeerName) -> Result<&'a Endpoint, Reason> {
        if self.peers.withdrawn {
            return Err(Reason::Withdrawn);
        }
        let vni = self.config.identity.vni;
        let endpoint = match name {
            PeerName::Gid(gid) => {
                let peer = locate(directory, vni, gid)?;
                directory.realised(vni, &peer.vnic).ok_or(Reason::from(Unreachable::UnknownGid { gid }))
            }
            PeerName::Source(address, qpn) => {
                directory.source(vni, address, qpn).ok_or(Reason::UnknownSource { address, qpn })
            }
        }?;
        self.check_reach(&endpoint.vnic, directory.is_stranger(&endpoint.vnic))?;
        Ok(endpoint)
    }

    fn tell_peer(
        &mut self,
        env: Env<'_>,
        name: PeerName,
        found: Result<Endpoint, Reason>,
    ) -> Result<PeerAnswer, DriverError> {
        let vnic = self.config.id;
        self.look_at_own_record(env.directory);
        self.tell_gids(env.rnic)?;
        let answer = match found {
            Ok(endpoint) => {
                let id = self.peers.id_of(&endpoint.vnic);
                let mut peer = describe(id, &endpoint, env.directory.is_stranger(&endpoint.vnic));
                let asked = match name {
                    PeerName::Gid(gid) => Some(gid),
                    PeerName::Source(..) => None,
                };
                let denied = self.judge_peer(env.directory, &endpoint.vnic, &mut peer, asked);
                env.rnic.execute(Command::SetPeer { vnic, peer: peer.clone() })?;
                let name_of_vnic = endpoint.vnic.clone();
                self.peers.keep(Given { vnic: endpoint.vnic, host: endpoint.host, peer });
                self.remove_oldest(env.rnic, MAX_PEERS)?;
                let reason = denied.map(|denied| Reason::Denied(Box::new(denied)));
                PeerAnswer { name, vnic: Some(name_of_vnic), reason }
            }
            Err(reason) => {
                env.rnic.execute(Command::NoPeer { vnic, name })?;
                PeerAnswer { name, vnic: None, reason: Some(reason) }
            }
        };
        if let Some(reason) = &answer.reason {
            self.refusals.count(reason);
        }
        Ok(answer)
    }

    /// Puts what the rules say into `peer`: for all pairs of addresses, and apart for those that differ. Gives why not, when
    /// something is not allowed; between the address that was `asked` for and ours, if one was.
    fn judge_peer(
        &self,
        directory: &Directory,
        name: &str,
        peer: &mut Peer,
        asked: Option<Gid>,
    ) -> Option<Denied> {
        let identity = &self.config.identity;
        let mut pairs = Vec::new();
        let mut denials = Vec::new();
        for remote in &peer.gids {
            // An address that two vNICs claim is nobody's, and one that has gone to another is not the peer's.
            let its = match directory.find(identity.vni, *remote) {
                Found::Realised(found) => *found.vnic == *name,
                Found::Desired { vnic, .. } => vnic == name,
                Found::Contested { .. } | Found::Unknown => false,
            };
            for local in &self.peers.published {
                let said = directory.datagrams(&identity.vnic, *local, name, *remote);
                let verdict = match its {
                    true => Verdict { send: said.send, receive: said.receive, cm: said.cm },
                    false => Verdict::default(),
                };
                pairs.push(PairVerdict { local: *local, remote: *remote, verdict });
                denials.extend(said.denied.map(|denied| (*local, *remote, denied)));
            }
        }
        peer.verdict = most_frequent(&pairs);
        peer.exceptions = pairs.into_iter().filter(|pair| pair.verdict != peer.verdict).collect();
        let alike = |a: &Gid, b: &Gid| a.ip().is_ipv4() == b.ip().is_ipv4();
        // The pair that a program would take.
        denials.sort_by_key(|(local, remote, _)| {
            (asked.is_some_and(|gid| gid != *remote), !alike(local, remote))
        });
        denials.into_iter().next().map(|(_, _, denied)| denied)
    }

    /// Brings what the RNIC knows of the vNIC's own addresses up to date.
    pub(super) fn tell_gids(&mut self, rnic: &dyn RnicDriver) -> Result<(), DriverError> {
        let gids = (self.gid_table.to_vec(), self.peers.published.clone());
        let nothing_yet = self.peers.gids.is_none() && self.gid_table.iter().all(|gid| gid.is_zero());
        if nothing_yet || self.peers.gids.as_ref() == Some(&gids) {
            return Ok(());
        }
        let (table, published) = gids.clone();
        rnic.execute(Command::SetGids { vnic: self.config.id, table, published })?;
        self.peers.gids = Some(gids);
        Ok(())
    }

    /// The addresses that peers know the vNIC by, in their order.
    pub(super) fn look_at_own_record(&mut self, directory: &Directory) {
        let identity = &self.config.identity;
        let own = directory.endpoint(&identity.vnic).filter(|e| identity.is_of(e));
        match own {
            Some(own) if own.gids == self.peers.published => {}
            Some(own) => self.peers.published = own.gids.clone(),
            // The store may have lost it. What a record begins with is known, too.
            None if self.peers.published.is_empty() => self.peers.published = identity.gids.clone(),
            None => {}
        }
    }

    /// Judges the peers that `touched` covers again, and tells the RNIC what has changed; gives those with whom
    /// something is not allowed any more.
    pub(super) fn reevaluate_peers(
        &mut self,
        directory: &Directory,
        rnic: &dyn RnicDriver,
        touched: &Touched,
    ) -> Result<Vec<PeerRevocation>, DriverError> {
        let (id, vni) = (self.config.id, self.config.identity.vni);
        let own = &self.peers.published;
        let covered = |g: &Given| touched.covers_ends(vni, own, &g.peer.gids);
        let covered: Vec<PeerId> =
            self.peers.given.iter().filter(|(_, g)| covered(g)).map(|(peer, _)| *peer).collect();
        let mut revoked = Vec::new();
        for peer in covered {
            let Some(given) = self.peers.given.get(&peer) else { continue };
            let name = given.vnic.clone();
            match self.peer_now(directory, given) {
                Ok(now) if now.peer == given.peer => {}
                Ok(mut now) => {
                    rnic.execute(Command::SetPeer { vnic: id, peer: now.peer.clone() })?;
                    let less = allows_less(&given.peer, &now.peer);
                    if let Some(denied) = now.denied.take().filter(|_| less) {
                        revoked.push(PeerRevocation { vnic: name, reason: Reason::Denied(Box::new(denied)) });
                    }
                    self.peers.keep(now.given());
                }
                Err(reason) => {
                    self.remove_peer(rnic, peer)?;
                    revoked.push(PeerRevocation { vnic: name, reason });
                }
            }
        }
        revoked.iter().for_each(|r| self.refusals.count(&r.reason));
        Ok(revoked)
    }

    /// What is known of a peer now.
    fn peer_now(&self, directory: &Directory, given: &Given) -> Result<Now, Reason> {
        let (vni, name) = (self.config.identity.vni, &given.vnic);
        let gid = given.peer.gids.first().copied().unwrap_or_default();
        let (host, mut peer) = match directory.realised(vni, name) {
            Some(endpoint) => {
                (endpoint.host.clone(), describe(given.peer.id, endpoint, directory.is_stranger(name)))
            }
            // The store has lost sight of the peer's host: that alone ends nothing.
            None if directory.endpoint(name).is_none() && is_desired(directory, vni, name, &given.host) => {
                (given.host.clone(), given.peer.clone())
            }
            None => {
                return Err(locate(directory, vni, gid)
                    .err()
                    .unwrap_or(Unreachable::UnknownGid { gid })
                    .into());
            }
        };
        let denied = self.judge_peer(directory, name, &mut peer, None);
        Ok(Now { vnic: name.clone(), host, peer, denied })
    }

    /// Takes all peers away, because the vNIC is.
    pub(super) fn remove_peers(&mut self, rnic: &dyn RnicDriver) -> Result<(), DriverError> {
        self.peers.withdrawn = true;
        self.remove_oldest(rnic, 0)
    }

    /// Takes the oldest peers away until there are no more than `most`.
    fn remove_oldest(&mut self, rnic: &dyn RnicDriver, most: usize) -> Result<(), DriverError> {
        while self.peers.given.len() > most {
            let Some(peer) = self.peers.given.keys().next().copied() else { break };
            self.remove_peer(rnic, peer)?;
        }
        Ok(())
    }

    fn remove_peer(&mut self, rnic: &dyn RnicDriver, peer: PeerId) -> Result<(), DriverError> {
        rnic.execute(Command::RemovePeer { vnic: self.config.id, peer })?;
        self.peers.forget(peer);
        Ok(())
    }
}

impl Peers {
    /// How many questions of the same kind wait.
    fn asking_like(&self, name: PeerName) -> usize {
        let kind = std::mem::discriminant(&name);
        self.asking.values().filter(|other| std::mem::discriminant(*other) == kind).count()
    }

    /// The RNIC's name for a vNIC: the one that it has, or a new one, which is larger than all before it.
    fn id_of(&mut self, vnic: &str) -> PeerId {
        if let Some(id) = self.ids.get(vnic) {
            return *id;
        }
        self.last += 1;
        PeerId(self.last)
    }

    fn keep(&mut self, given: Given) {
        self.ids.insert(given.vnic.clone(), given.peer.id);
        self.given.insert(given.peer.id, given);
    }

    fn forget(&mut self, peer: PeerId) {
        if let Some(given) = self.given.remove(&peer) {
            self.ids.remove(&given.vnic);
        }
    }
}

struct Now {
    vnic: String,
    host: String,
    peer: Peer,
    denied: Option<Denied>,
}

impl Now {
    fn given(self) -> Given {
        Given { vnic: self.vnic, host: self.host, peer: self.peer }
    }
}

fn is_desired(directory: &Directory, vni: masq_types::Vni, vnic: &str, host: &str) -> bool {
    directory
        .vnic(vnic)
        .is_some_and(|v| v.is_on(host) && directory.vpc(&v.vpc).is_some_and(|vpc| vpc.vni == vni))
}

/// A peer about which the rules have not been asked.
fn describe(id: PeerId, e: &Endpoint, is_stranger: bool) -> Peer {
    Peer {
        id,
        gids: e.gids.clone(),
        addresses: e.addresses.clone(),
        qpn_blocks: e.qpn_blocks.clone(),
        gsi_qpn: e.gsi_qpn,
        is_stranger,
        verdict: Verdict::default(),
        exceptions: Vec::new(),
    }
}

/// What holds for most pairs; of what is equally frequent, what comes first.
fn most_frequent(pairs: &[PairVerdict]) -> Verdict {
    // There are eight verdicts at most, but a thousand pairs of two vNICs that have all the addresses they can.
    let mut counts: Vec<(Verdict, usize)> = Vec::new();
    for pair in pairs {
        match counts.iter_mut().find(|(verdict, _)| *verdict == pair.verdict) {
            Some((_, n)) => *n += 1,
            None => counts.push((pair.verdict, 1)),
        }
    }
    // Of equals, `max_by_key` takes the last.
    counts.iter().rev().max_by_key(|(_, n)| *n).map_or(Verdict::default(), |(verdict, _)| *verdict)
}

/// Whether something that `old` allowed is not allowed by `new`.
fn allows_less(old: &Peer, new: &Peer) -> bool {
    let pairs = old.exceptions.iter().chain(&new.exceptions).map(|e| (e.local, e.remote));
    let lost = |a: Verdict, b: Verdict| (a.send && !b.send) || (a.receive && !b.receive) || (a.cm && !b.cm);
    lost(old.verdict, new.verdict)
        || pairs.into_iter().any(|(l, r)| lost(old.verdict_between(l, r), new.verdict_between(l, r)))
}
