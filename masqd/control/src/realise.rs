use std::net::IpAddr;

use ipnet::IpNet;
use masq_model::{Endpoint, Host, Vnic};
use masq_policy::qpn::{allocate_block, overlap};
use masq_types::{Features, Gid, MacAddr, QpnBlock, Vni, WireQpn};

use crate::Directory;

/// Who a guest device is: everything about it that does not change while it is attached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Name of its vNIC.
    pub vnic: String,
    /// Name of its network.
    pub vpc: String,
    /// Its network.
    pub vni: Vni,
    /// Its MAC address.
    pub mac: MacAddr,
    /// The GIDs that are its own.
    pub gids: Vec<Gid>,
    /// Prefixes of further addresses that its guest may take on.
    pub allowed: Vec<IpNet>,
    /// Its underlay addresses: address `i` belongs to path `i`.
    pub addresses: Vec<IpAddr>,
    /// Blocks of QPNs that it owns.
    pub qpn_blocks: Vec<QpnBlock>,
    /// Wire QPN of its GSI.
    pub gsi_qpn: WireQpn,
}

impl Identity {
    /// Whether `endpoint` is the record of this device, whatever addresses it has there.
    pub fn is_of(&self, endpoint: &Endpoint) -> bool {
        endpoint.vnic == self.vnic
            && endpoint.vni == self.vni
            && endpoint.addresses == self.addresses
            && endpoint.qpn_blocks == self.qpn_blocks
    }

    /// Whether no other vNIC shares its first underlay address, so that strangers can tell it from others.
    pub fn has_own_address(&self) -> bool {
        self.gsi_qpn == WELL_KNOWN_GSI
    }

    /// Whether the guest may use `gid`.
    pub fn may_use(&self, gid: Gid) -> bool {
        self.gids.contains(&gid) || self.allowed.iter().any(|net| net.contains(&gid.ip()))
    }
}

/// Why a vNIC cannot be realised.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// It is not desired.
    #[error("there is no vnic {0:?}")]
    NoVnic(String),
    /// Its network does not exist.
    #[error("vnic {vnic:?} refers to the vpc {vpc:?}, which does not exist")]
    NoVpc {
        /// The vNIC.
        vnic: String,
        /// The network.
        vpc: String,
    },
    /// It runs nowhere.
    #[error("vnic {0:?} is assigned to no host")]
    Unassigned(String),
    /// Its host does not exist.
    #[error("vnic {vnic:?} refers to the host {host:?}, which does not exist")]
    NoHost {
        /// The vNIC.
        vnic: String,
        /// The host.
        host: String,
    },
    /// The host has too few underlay addresses.
    #[error("vnic {vnic:?} wants {paths} paths, but host {host:?} has only {addresses} underlay addresses")]
    TooFewPaths {
        /// The vNIC.
        vnic: String,
        /// The host.
        host: String,
        /// Wanted.
        paths: u8,
        /// Present.
        addresses: usize,
    },
    /// Its dedicated address is not among the host's aliases.
    #[error("vnic {vnic:?} has the dedicated alias {alias}, which host {host:?} does not have")]
    NoAlias {
        /// The vNIC.
        vnic: String,
        /// The host.
        host: String,
        /// The address.
        alias: IpAddr,
    },
    /// All QPNs of the host are taken.
    #[error("host {0:?} has no free block of QPNs")]
    NoQpns(String),
    /// It is not realised.
    #[error("vnic {0:?} is not realised on its host")]
    NotRealised(String),
}

/// The number of the GSI of who has an underlay address alone.
const WELL_KNOWN_GSI: WireQpn = WireQpn::from_wire(1);

/// QPNs in the block that a vNIC gets.
const QPNS_PER_VNIC: u32 = 1 << 14;

/// What only the host of a vNIC knows.
#[derive(Clone, Copy, Debug, Default)]
pub struct Own<'a> {
    /// The allowed addresses that its guest has taken on.
    pub taken: &'a [Gid],
    /// The record that this host has published last; the store may have lost it since.
    pub last: Option<&'a Endpoint>,
    /// Where a block of QPNs is looked for when there is none yet: any number, the caller's randomness.
    pub start: u32,
    /// What its RNIC can do beyond standard RoCEv2.
    pub features: Features,
}

/// The endpoint record that the host of `vnic` shall publish. Blocks of an earlier record of the same host and network are kept.
/// Equal to the record that exists if nothing is to be done.
pub fn plan_endpoint(directory: &Directory, vnic: &str, own: Own<'_>) -> Result<Endpoint, PlanError> {
    let v = directory.vnic(vnic).ok_or_else(|| PlanError::NoVnic(vnic.into()))?;
    let vpc =
        directory.vpc(&v.vpc).ok_or_else(|| PlanError::NoVpc { vnic: vnic.into(), vpc: v.vpc.clone() })?;
    let host = v.host.as_deref().ok_or_else(|| PlanError::Unassigned(vnic.into()))?;
    let host =
        directory.host(host).ok_or_else(|| PlanError::NoHost { vnic: vnic.into(), host: host.into() })?;
    let addresses = underlay_addresses(v, host)?;
    let old = directory.endpoint(vnic).or(own.last);
    let others: Vec<QpnBlock> = directory
        .endpoints_of_host(&host.name)
        .filter(|e| e.vnic != vnic)
        .flat_map(|e| e.qpn_blocks.iter().copied())
        .collect();
    let keep = old.filter(|e| {
        e.host == host.name
            && e.vni == vpc.vni
            && !e.qpn_blocks.is_empty()
            && !e.qpn_blocks.iter().any(|b| others.iter().any(|o| overlap(*b, *o)))
    });
    let (qpn_blocks, generation) = match keep {
        Some(e) => (e.qpn_blocks.clone(), e.generation),
        None => {
            // Rather not the one that it had either: packets for its old self may still be under way.
            let used = [&others[..], old.map_or(&[], |e| &e.qpn_blocks)].concat();
            let block = allocate_block(&used, QPNS_PER_VNIC, own.start)
                .or_else(|| allocate_block(&others, QPNS_PER_VNIC, own.start))
                .ok_or_else(|| PlanError::NoQpns(host.name.clone()))?;
            (vec![block], old.map_or(1, |e| e.generation + 1))
        }
    };
    let mut gids = v.gids();
    for gid in own.taken {
        if v.may_use(*gid) && !gids.contains(gid) {
            gids.push(*gid);
        }
    }
    Ok(Endpoint {
        vnic: vnic.into(),
        vni: vpc.vni,
        gids,
        host: host.name.clone(),
        addresses,
        gsi_qpn: gsi_qpn(v, &qpn_blocks),
        qpn_blocks,
        features: own.features,
        generation,
    })
}

/// Who has an underlay address alone has the GSI's well-known number there; others have the first that their blocks have.
fn gsi_qpn(v: &Vnic, blocks: &[QpnBlock]) -> WireQpn {
    match (v.dedicated_alias, blocks.first()) {
        // 0 and 1 are in no block.
        (None, Some(block)) => WireQpn::from_wire(block.first.max(2)),
        _ => WELL_KNOWN_GSI,
    }
}

/// The underlay addresses of a vNIC on its host: path by path, the first one its dedicated alias if it has one.
fn underlay_addresses(v: &Vnic, host: &Host) -> Result<Vec<IpAddr>, PlanError> {
    let paths = v.path_count();
    let shared = host.underlay.get(..usize::from(paths)).ok_or_else(|| PlanError::TooFewPaths {
        vnic: v.name.clone(),
        host: host.name.clone(),
        paths,
        addresses: host.underlay.len(),
    })?;
    let mut addresses = shared.to_vec();
    if let (Some(alias), Some(first)) = (v.dedicated_alias, addresses.first_mut()) {
        if !host.aliases.iter().any(|a| a.address.addr() == alias) {
            return Err(PlanError::NoAlias { vnic: v.name.clone(), host: host.name.clone(), alias });
        }
        *first = alias;
    }
    Ok(addresses)
}

/// The identity of the vNIC for which this host has published `endpoint`.
pub fn identity(directory: &Directory, endpoint: &Endpoint) -> Result<Identity, PlanError> {
    let vnic = &endpoint.vnic;
    let v = directory.vnic(vnic).ok_or_else(|| PlanError::NoVnic(vnic.clone()))?;
    if !v.is_on(&endpoint.host) {
        return Err(PlanError::NotRealised(vnic.clone()));
    }
    Ok(Identity {
        vnic: v.name.clone(),
        vpc: v.vpc.clone(),
        vni: endpoint.vni,
        mac: v.mac,
        gids: v.gids(),
        allowed: v.allowed_address_pairs.clone(),
        addresses: endpoint.addresses.clone(),
        qpn_blocks: endpoint.qpn_blocks.clone(),
        gsi_qpn: endpoint.gsi_qpn,
    })
}
