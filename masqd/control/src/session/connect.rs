//! Who may be connected to whom: the checks at RTR, and again whenever something changes.

use std::net::IpAddr;

use masq_driver::{Command, Connection as Renamed, DriverError, QpHandle, QpType, RnicDriver, UnderlayPath};
use masq_policy::conntrack::{Connection, Touched};
use masq_policy::multipath::{self, OnePath, Own};
use masq_policy::rename::{Peer, Resolution, Unreachable, resolve};
use masq_policy::rules::{Transport, Verdict};
use masq_types::{Gid, PathId, WireQpn};
use vrdma_abi::control as abi;

use super::decode::{malformed, within};
use super::objects::find;
use super::{Revocation, Revoked, Session, Stop};
use crate::{BYPASSED, Directory, Env, Reason};

/// Hop limit on the underlay, whatever the tenant's is: routers there are not the tenant's.
const UNDERLAY_HOP_LIMIT: u8 = 64;
/// The part of a traffic class that a tenant may choose, if a QoS policy says so: priority. ECN is the underlay's.
const DSCP_BITS: u8 = 0xfc;

/// A connection that may be made.
pub(super) struct Connect {
    /// What the RNIC gets.
    pub renamed: Renamed,
    /// What is tracked.
    pub entry: Connection,
    /// Why it uses one path, though it could use several.
    pub one_path: Option<OnePath>,
}

impl Session {
    /// Judges the connection that `attr` describes and renames it.
    pub(super) fn connect(
        &self,
        env: Env<'_>,
        qp: QpHandle,
        attr: &abi::QpAttr,
        may_wait: bool,
    ) -> Result<Connect, Stop> {
        let directory = env.directory;
        within("the destination QPN", attr.dest_qpn.into(), 0, WireQpn::MAX.into())?;
        within("the flow label", attr.flow_label.into(), 0, 0xf_ffff)?;
        within("the service level", attr.sl.into(), 0, 15)?;
        let (local, remote) = (Gid(attr.sgid), Gid(attr.dgid));
        if local.is_zero() || !self.gid_table.contains(&local) {
            return Err(Reason::SourceGid { gid: local }.into());
        }
        if local.ip().is_ipv4() != remote.ip().is_ipv4() {
            return Err(malformed(format_args!("{local} and {remote} are of different families")).into());
        }
        let q = find(&self.objects.qps, qp)?;
        let local_qpn = q.wire_qpn;
        // Guest-visible and wire QPNs are the same today.
        let remote_qpn = WireQpn::from_wire(attr.dest_qpn);
        let wait = |reason: Reason| if may_wait { Stop::Wait } else { Stop::from(reason) };
        let identity = &self.config.identity;
        let resolution = resolve(directory, identity.vni, remote, &identity.addresses, PathId(0));
        let Resolution { peer, local: local_address, remote: remote_address } =
            resolution.map_err(|e| match e {
                Unreachable::UnknownGid { .. } | Unreachable::NotRealised { .. } => wait(e.into()),
                _ => Stop::from(Reason::from(e)),
            })?;
        self.check_reach(&peer.vnic, peer.is_stranger)?;
        // Before the QPN: what a rule denies is not worth reading the store for.
        let transport = transport_of(q.qp_type);
        let allowed_by = if BYPASSED {
            "nobody was asked".into()
        } else {
            match directory.evaluate(identity.vni, &identity.vnic, transport, local, remote) {
                Verdict::Deny(denied) => return Err(Reason::Denied(Box::new(denied)).into()),
                Verdict::Allow(flow) => flow.to_string().into(),
                Verdict::SameVnic => "both ends are one vNIC".into(),
            }
        };
        if !peer.owns(remote_qpn) {
            if peer.is_stranger {
                return Err(malformed(format_args!("no queue pair is connected to QP {remote_qpn}")).into());
            }
            return Err(wait(Reason::ForeignQpn { qpn: remote_qpn, vnic: peer.vnic.to_string() }));
        }
        let udp_source_port = udp_source_port(attr.flow_label, local_qpn, remote_qpn);
        let (paths, one_path) = match q.is_group().then(|| self.paths_to(directory, peer, remote_qpn)) {
            None => (1, None),
            Some(Ok(paths)) => (paths, None),
            Some(Err(why)) => (1, Some(why)),
        };
        let pairs = identity.addresses.iter().zip(&peer.addresses).enumerate();
        let other_paths: Vec<UnderlayPath> = pairs
            .take(paths)
            .skip(1)
            .map(|(number, (local, remote))| UnderlayPath {
                local: *local,
                remote: *remote,
                udp_source_port: port_of_path(udp_source_port, number),
            })
            .collect();
        let other_addresses = other_paths.iter().map(|path| path.remote).collect();
        let renamed = Renamed {
            local: local_address,
            remote: remote_address,
            remote_qpn,
            other_paths,
            udp_source_port,
            traffic_class: if self.trusts_dscp() { attr.traffic_class & DSCP_BITS } else { 0 },
            hop_limit: UNDERLAY_HOP_LIMIT,
            features: self.config.limits.features.common(peer.features),
            virtual_local: local,
            virtual_remote: remote,
        };
        let entry = Connection {
            vni: identity.vni,
            transport,
            local,
            local_qpn,
            remote,
            remote_qpn,
            peer: peer.vnic.clone(),
            peer_host: peer.host.clone(),
            remote_address,
            other_addresses,
            allowed_by,
            since: env.now,
        };
        Ok(Connect { renamed, entry, one_path })
    }

    /// How many paths a queue pair with several of them uses towards a peer's; or why it uses one.
    fn paths_to(&self, directory: &Directory, peer: &Peer, remote: WireQpn) -> Result<usize, OnePath> {
        let identity = &self.config.identity;
        let host = directory.endpoint(&identity.vnic).map(|e| &*e.host);
        let features = self.config.limits.features;
        multipath::paths_in_use(Own { addresses: &identity.addresses, features, host }, peer, remote)
    }

    /// Judges the connections and peers that `touched` covers again, and has those revoked that are not allowed any more: the
    /// RNIC moves connections to ERR, and lets no more datagrams pass. A connection that the RNIC fails to revoke is judged
    /// again the next time.
    pub fn reevaluate(&mut self, directory: &Directory, rnic: &dyn RnicDriver, touched: &Touched) -> Revoked {
        let judged = self.conntrack.reevaluate(touched, |c| self.judge(directory, c));
        let connections = self.revoke(rnic, judged);
        self.look_at_own_record(directory);
        let told = self.tell_gids(rnic).and_then(|()| self.reevaluate_peers(directory, rnic, touched));
        let (peers, failure) = match told {
            Ok(peers) => (peers, None),
            Err(e) => (Vec::new(), Some(e.to_string())),
        };
        Revoked { connections, peers, failure }
    }

    /// Has all connections revoked and lets no more datagrams pass, because the vNIC is taken away.
    pub fn revoke_all(&mut self, rnic: &dyn RnicDriver) -> Revoked {
        let all = self.conntrack.iter().map(|(qp, _)| (qp, Reason::Withdrawn)).collect();
        let connections = self.revoke(rnic, all);
        let failure = self.remove_peers(rnic).err().map(|e| e.to_string());
        Revoked { connections, peers: Vec::new(), failure }
    }

    /// Whether a peer can tell this vNIC from others.
    pub(super) fn check_reach(&self, peer: &str, is_stranger: bool) -> Result<(), Reason> {
        match is_stranger && !self.config.identity.has_own_address() {
            true => Err(Reason::NoAlias { endpoint: peer.into() }),
            false => Ok(()),
        }
    }

    /// Whether the tenant chooses the priority of its packets on the underlay.
    fn trusts_dscp(&self) -> bool {
        self.config.settings.qos.as_ref().is_some_and(|qos| qos.trust_dscp)
    }

    fn revoke(&mut self, rnic: &dyn RnicDriver, judged: Vec<(QpHandle, Reason)>) -> Vec<Revocation> {
        let mut revocations = Vec::new();
        for (qp, reason) in judged {
            let Some(connection) = self.conntrack.get(qp).cloned() else { continue };
            self.refusals.count(&reason);
            let failure = match rnic.execute(Command::RevokeQp { vnic: self.config.id, qp }) {
                Ok(_) | Err(DriverError::UnknownObject(_)) => {
                    self.conntrack.remove(qp);
                    if let Some(q) = self.objects.qps.get_mut(&qp) {
                        q.revoked = Some(reason.to_string());
                    }
                    None
                }
                Err(e) => Some(e.to_string()),
            };
            revocations.push(Revocation { qp, connection, reason, failure });
        }
        revocations
    }

    /// Whether a connection could still be made as it is.
    fn judge(&self, directory: &Directory, c: &Connection) -> Result<(), Reason> {
        let identity = &self.config.identity;
        if !identity.may_use(c.local) {
            return Err(Reason::SpoofedGid { gid: c.local });
        }
        // Its own addresses stay the vNIC's without a place in the table; those that it has only taken on do not.
        if !identity.gids.contains(&c.local) && !self.gid_table.contains(&c.local) {
            return Err(Reason::SourceGid { gid: c.local });
        }
        let found = match resolve(directory, c.vni, c.remote, &identity.addresses, PathId(0)) {
            Ok(found) => Some(found),
            // The store has lost sight of the peer's host: that alone ends no connection. If the host is gone, timeouts tell.
            Err(Unreachable::NotRealised { vnic, host, .. }) if *vnic == *c.peer && *host == *c.peer_host => {
                None
            }
            Err(e) => return Err(e.into()),
        };
        if let Some(found) = &found {
            // With any of the addresses that are used: nothing is to go where it is no more.
            let then = std::iter::once(&c.remote_address).chain(&c.other_addresses);
            for (path, then) in then.enumerate() {
                let now = found.peer.addresses.get(path);
                if found.peer.vnic != c.peer || now != Some(then) {
                    return Err(moved(c, *then, *now.unwrap_or(&found.remote)));
                }
            }
        }
        if let Some(found) = &found {
            self.check_reach(&found.peer.vnic, found.peer.is_stranger)?;
        }
        if let Verdict::Deny(denied) =
            directory.evaluate(c.vni, &identity.vnic, c.transport, c.local, c.remote)
        {
            return Err(Reason::Denied(Box::new(denied)));
        }
        match found {
            Some(found) if !found.peer.owns(c.remote_qpn) => {
                Err(Reason::ForeignQpn { qpn: c.remote_qpn, vnic: found.peer.vnic.to_string() })
            }
            _ => Ok(()),
        }
    }
}

/// The transport that the rules know: XRC is reliable connections that share receive queues.
fn transport_of(qp_type: QpType) -> Transport {
    match qp_type {
        QpType::Rc | QpType::XrcIni | QpType::XrcTgt => Transport::Rc,
        QpType::Uc => Transport::Uc,
        QpType::Ud | QpType::Gsi => Transport::Ud,
    }
}

fn moved(c: &Connection, from: IpAddr, to: IpAddr) -> Reason {
    Reason::Moved { gid: c.remote, vnic: c.peer.to_string(), from, to }
}

/// UDP source port of a further path: each has another.
fn port_of_path(first: u16, number: usize) -> u16 {
    // Odd, so that no two of the ports that there are coincide.
    const STEP: u16 = 0x0a5d;
    0xc000 | first.wrapping_add(STEP.wrapping_mul(number as u16))
}

/// UDP source port of a connection: from the flow label if there is one, else from both QPNs, so that flows spread
/// over the underlay's paths; computed as Linux does (rdma_flow_label_to_udp_sport, rdma_calc_flow_label).
fn udp_source_port(flow_label: u32, local: WireQpn, remote: WireQpn) -> u16 {
    let label = if flow_label != 0 {
        flow_label
    } else {
        let mut v = u64::from(local.get()) * u64::from(remote.get());
        v ^= v >> 20;
        v ^= v >> 40;
        (v & 0xf_ffff) as u32
    };
    let folded = (label & 0x3fff) ^ ((label & 0xf_c000) >> 14);
    0xc000 | folded as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn source_ports_stay_in_their_range_and_spread() {
        let q = WireQpn::from_wire;
        assert_eq!(udp_source_port(1, q(5), q(6)), 0xc001);
        assert_eq!(udp_source_port(0xf_ffff, q(5), q(6)), 0xc000 | (0x3fff ^ 0x3f));
        let ports: std::collections::HashSet<u16> =
            (0x11..0x31).map(|n| udp_source_port(0, q(n), q(0x5000 + n))).collect();
        assert!(ports.len() > 16 && ports.iter().all(|p| *p >= 0xc000), "{ports:?}");
        for first in [0xc000, 0xc001, 0xe5a3, 0xffff] {
            let ports: std::collections::HashSet<u16> = (1..16).map(|i| port_of_path(first, i)).collect();
            assert!(ports.len() == 15 && ports.iter().all(|p| *p >= 0xc000 && *p != first), "{ports:?}");
        }
    }
}
