use std::net::IpAddr;

use ipnet::IpNet;
use masq_types::{Gid, MacAddr, QpnBlock, Vni};
use serde::{Deserialize, Serialize};

use crate::{Key, Kind};

/// Priority of a rule that does not state one; the smallest number decides first.
pub const DEFAULT_PRIORITY: u32 = 1000;

/// A machine that runs masqd.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Host {
    /// Its name, unique among hosts.
    pub name: String,
    /// Its underlay addresses: address `i` belongs to path `i`.
    pub underlay: Vec<IpAddr>,
}

/// A tenant's network.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Vpc {
    /// Its name, unique among networks.
    pub name: String,
    /// Its identifier, unique among networks.
    pub vni: Vni,
}

/// A tenant's virtual NIC, and the RDMA device beside it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Vnic {
    /// Its name, unique among all vNICs; also the name of its socket.
    pub name: String,
    /// Name of its network.
    pub vpc: String,
    /// Name of the host on which its VM runs.
    pub host: String,
    /// MAC address of the NIC, unique in its network.
    pub mac: MacAddr,
    /// Virtual addresses of the NIC, unique in its network. The link-local address of the MAC
    /// comes on top of them.
    pub addresses: Vec<IpAddr>,
    /// How many underlay paths it uses, from 1; 1 when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paths: Option<u8>,
}

impl Vnic {
    /// All GIDs that the vNIC may use: the link-local GID of its MAC, then its addresses.
    pub fn gids(&self) -> Vec<Gid> {
        let mut gids = vec![Gid::from(self.mac.link_local())];
        gids.extend(self.addresses.iter().copied().map(Gid::from));
        gids
    }

    /// How many underlay paths it uses.
    pub fn path_count(&self) -> u8 {
        self.paths.unwrap_or(1)
    }
}

/// What a rule does with the connections that it matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Action {
    /// They may be made.
    Allow,
    /// They may not.
    Deny,
}

/// A rule of a network about traffic from `source` to `destination`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// Its name, unique in its network.
    pub name: String,
    /// Name of its network.
    pub vpc: String,
    /// Who sends.
    pub source: IpNet,
    /// Who receives.
    pub destination: IpNet,
    /// What happens.
    pub action: Action,
    /// The rule with the smallest number that matches decides; among equals a `deny` does.
    #[serde(default = "default_priority")]
    pub priority: u32,
}

fn default_priority() -> u32 {
    DEFAULT_PRIORITY
}

/// A vNIC that a host has realised: where its peers find it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Endpoint {
    /// Name of the vNIC.
    pub vnic: String,
    /// Its network.
    pub vni: Vni,
    /// Its virtual addresses.
    pub gids: Vec<Gid>,
    /// Name of the host.
    pub host: String,
    /// Underlay addresses: address `i` belongs to path `i`.
    pub addresses: Vec<IpAddr>,
    /// Blocks of wire QPNs that it owns on that host.
    pub qpn_blocks: Vec<QpnBlock>,
    /// Grows whenever the blocks change hands.
    pub generation: u64,
}

/// Any object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Object {
    /// A host.
    Host(Host),
    /// A network.
    Vpc(Vpc),
    /// A virtual NIC.
    Vnic(Vnic),
    /// A rule.
    Rule(Rule),
    /// An endpoint.
    Endpoint(Endpoint),
}

impl Object {
    /// Where the store keeps it.
    pub fn key(&self) -> Key {
        match self {
            Object::Host(h) => Key::host(&h.name),
            Object::Vpc(v) => Key::vpc(&v.name),
            Object::Vnic(v) => Key::vnic(&v.name),
            Object::Rule(r) => Key::rule(&r.vpc, &r.name),
            Object::Endpoint(e) => Key::endpoint(&e.vnic),
        }
    }

    /// Its form in the store: JSON.
    pub fn to_json(&self) -> Vec<u8> {
        let json = match self {
            Object::Host(o) => serde_json::to_vec(o),
            Object::Vpc(o) => serde_json::to_vec(o),
            Object::Vnic(o) => serde_json::to_vec(o),
            Object::Rule(o) => serde_json::to_vec(o),
            Object::Endpoint(o) => serde_json::to_vec(o),
        };
        json.expect("objects have string keys and no failing serialiser")
    }

    /// The object that the store keeps under `key`.
    pub fn from_entry(key: &Key, json: &[u8]) -> Result<Object, ObjectError> {
        let wrong = |source| ObjectError::Json { key: key.clone(), source };
        let object = match key.kind() {
            Kind::Host => Object::Host(serde_json::from_slice(json).map_err(wrong)?),
            Kind::Vpc => Object::Vpc(serde_json::from_slice(json).map_err(wrong)?),
            Kind::Vnic => Object::Vnic(serde_json::from_slice(json).map_err(wrong)?),
            Kind::Rule => Object::Rule(serde_json::from_slice(json).map_err(wrong)?),
            Kind::Endpoint => Object::Endpoint(serde_json::from_slice(json).map_err(wrong)?),
        };
        if object.key() != *key {
            return Err(ObjectError::Misplaced { key: key.clone(), actual: object.key() });
        }
        if let Object::Endpoint(e) = &object {
            if let Some(b) = e.qpn_blocks.iter().find(|b| QpnBlock::new(b.first, b.len).is_none()) {
                return Err(ObjectError::Block { key: key.clone(), first: b.first, len: b.len });
            }
        }
        Ok(object)
    }
}

/// An entry of the store that is no object.
#[derive(Debug, thiserror::Error)]
pub enum ObjectError {
    /// The value does not parse.
    #[error("{key}: {source}")]
    Json {
        /// Where.
        key: Key,
        /// Why.
        source: serde_json::Error,
    },
    /// The value belongs under another key.
    #[error("{key} holds the object of {actual}")]
    Misplaced {
        /// Where it stands.
        key: Key,
        /// Where it belongs.
        actual: Key,
    },
    /// A block of QPNs is not aligned, too small or too large.
    #[error("{key}: field qpn_blocks: {len} QPNs from {first} are no block")]
    Block {
        /// Where.
        key: Key,
        /// First QPN.
        first: u32,
        /// How many.
        len: u32,
    },
}
