//! The objects themselves, in the form in which API and store carry them.

use std::net::IpAddr;

use ipnet::IpNet;
use masq_types::{Features, Gid, MacAddr, QpnBlock, Vni, WireQpn};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{prefix, schema};

/// Priority of a rule that does not state one; the smallest number decides first.
pub const DEFAULT_PRIORITY: u32 = 1000;

/// A machine that runs masqd.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Host {
    /// Its name, unique among hosts.
    #[schema(value_type = schema::Name)]
    pub name: String,
    /// Its underlay addresses, unique among hosts: address `i` belongs to path `i`.
    #[schema(value_type = Vec<schema::Address>, min_items = 1, max_items = 8)]
    pub underlay: Vec<IpAddr>,
    /// Addresses that masqd itself puts on the host's links: path addresses, or dedicated ones of vNICs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub aliases: Vec<Alias>,
    /// Rates that all vNICs of a class share on this host.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub class_rates: Vec<ClassRate>,
}

/// An address that masqd puts on a link of its host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Alias {
    /// The address with the length of its link's prefix, such as `10.78.0.1/24`.
    #[serde(deserialize_with = "prefix::address")]
    #[schema(value_type = schema::LinkAddress)]
    pub address: IpNet,
    /// The link, such as `eth1`.
    pub link: String,
    /// Where packets from this address leave the link's own network; none: they do not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::Address>)]
    pub gateway: Option<IpAddr>,
}

/// What the vNICs of one class may send together on one host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ClassRate {
    /// The class, 0 to 7.
    #[schema(maximum = 7)]
    pub class: u8,
    /// The rate in bits of IP packets per second.
    #[schema(minimum = 100_000, maximum = 1_000_000_000_000u64)]
    pub rate_bits_per_sec: u64,
    /// How much may be sent at once after a pause, in bits, 131072 to 8589934592; twenty milliseconds' worth and
    /// 524288 when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 131_072, maximum = 8_589_934_592u64)]
    pub burst_bits: Option<u64>,
}

/// A tenant's network.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Vpc {
    /// Its name, unique among networks.
    #[schema(value_type = schema::Name)]
    pub name: String,
    /// Its identifier, unique among networks, 1 to 16777215.
    #[schema(value_type = u32, minimum = 1, maximum = 16_777_215)]
    pub vni: Vni,
}

/// vNICs of one network to which the same rules apply, and which may connect to one another where no rule denies it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SecurityGroup {
    /// Its name, unique among all groups.
    #[schema(value_type = schema::Name)]
    pub name: String,
    /// Name of its network.
    #[schema(value_type = schema::Name)]
    pub vpc: String,
}

/// A rule about the traffic of a security group's members.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SecurityGroupRule {
    /// Its name, unique in its group.
    #[schema(value_type = schema::Name)]
    pub name: String,
    /// Name of its group.
    #[schema(value_type = schema::Name)]
    pub security_group: String,
    /// Whether it is about what members receive or what they send.
    pub direction: Direction,
    /// Only traffic from or to these addresses; an address alone is a prefix of full length.
    #[serde(default, deserialize_with = "prefix::one", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::Prefix>)]
    pub remote_prefix: Option<IpNet>,
    /// Only traffic from or to members of this group of the same network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::Name>)]
    pub remote_group: Option<String>,
    /// Only traffic of this transport.
    #[serde(default)]
    pub transport: Transport,
    /// The rule with the smallest number that matches decides; among equals a `deny` does.
    #[serde(default = "default_priority")]
    #[schema(maximum = 4_294_967_295u64)]
    pub priority: u32,
    /// What happens.
    pub action: Action,
}

fn default_priority() -> u32 {
    DEFAULT_PRIORITY
}

/// The direction of traffic, seen from a group's member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// What it receives.
    Ingress,
    /// What it sends.
    Egress,
}

/// The transport services that a rule is about.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, ToSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Transport {
    /// All of them.
    #[default]
    Any,
    /// Reliable connections.
    Rc,
    /// Unreliable connections.
    Uc,
    /// Datagrams.
    Ud,
}

/// What a rule does with the traffic that it matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Action {
    /// It may pass.
    Allow,
    /// It may not.
    Deny,
}

/// How much vNICs may send, and who comes first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct QosPolicy {
    /// Its name, unique among policies.
    #[schema(value_type = schema::Name)]
    pub name: String,
    /// What each vNIC may send, in bits of IP packets per second; unlimited when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 100_000, maximum = 1_000_000_000_000u64)]
    pub rate_bits_per_sec: Option<u64>,
    /// How much may be sent at once after a pause, in bits, 131072 to 8589934592; twenty milliseconds' worth and
    /// 524288 when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 131_072, maximum = 8_589_934_592u64)]
    pub burst_bits: Option<u64>,
    /// Share of the host's RNIC among vNICs of the same class that all have something to send, 1 to 256.
    #[serde(default = "default_weight")]
    #[schema(minimum = 1, maximum = 256)]
    pub weight: u16,
    /// Class, 0 to 7: a higher one is served first.
    #[serde(default)]
    #[schema(maximum = 7)]
    pub class: u8,
    /// DSCP of what is sent, 0 to 63; when absent, 0 or what `trust_dscp` says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(maximum = 63)]
    pub dscp: Option<u8>,
    /// Whether what is sent has the DSCP that the guest asks for, by the traffic class of its connections and address handles. Connections
    /// keep what they were made with.
    #[serde(default, skip_serializing_if = "is_false")]
    pub trust_dscp: bool,
}

fn is_false(value: &bool) -> bool {
    !value
}

fn default_weight() -> u16 {
    1
}

/// How much of the host a guest may use. What is absent has masqd's default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Quota {
    /// Queue pairs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(maximum = 18_446_744_073_709_551_615u64)]
    pub qps: Option<u64>,
    /// Completion queues.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(maximum = 18_446_744_073_709_551_615u64)]
    pub cqs: Option<u64>,
    /// Memory regions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(maximum = 18_446_744_073_709_551_615u64)]
    pub mrs: Option<u64>,
    /// Shared receive queues.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(maximum = 18_446_744_073_709_551_615u64)]
    pub srqs: Option<u64>,
    /// Memory windows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(maximum = 18_446_744_073_709_551_615u64)]
    pub mws: Option<u64>,
    /// XRC domains.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(maximum = 18_446_744_073_709_551_615u64)]
    pub xrcds: Option<u64>,
    /// Bytes of guest memory in regions and rings.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(maximum = 18_446_744_073_709_551_615u64)]
    pub pinned_bytes: Option<u64>,
    /// Control commands per second, 1 to 1000000; as many may come at once after a pause. Unlimited when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 1_000_000)]
    pub commands_per_sec: Option<u32>,
}

impl Quota {
    /// Whether it says nothing.
    pub fn is_default(&self) -> bool {
        *self == Quota::default()
    }
}

/// A tenant's virtual NIC, and the RDMA device beside it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Vnic {
    /// Its name, unique among all vNICs; also the name of its socket.
    #[schema(value_type = schema::Name)]
    pub name: String,
    /// Name of its network.
    #[schema(value_type = schema::Name)]
    pub vpc: String,
    /// Name of the host on which its VM runs; absent while it runs nowhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::Name>)]
    pub host: Option<String>,
    /// MAC address of the NIC, unique in its network.
    #[schema(value_type = schema::Mac)]
    pub mac: MacAddr,
    /// Virtual addresses of the NIC, unique in its network. The link-local address of the MAC comes on top of them.
    #[schema(value_type = Vec<schema::Address>, max_items = 15)]
    pub addresses: Vec<IpAddr>,
    /// Further addresses that the guest may take on, for instance one that moves between two guests. Peers find such an
    /// address while exactly one vNIC has it in its GID table. An address alone is a prefix of full length.
    #[serde(default, deserialize_with = "prefix::many", skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Vec<schema::Prefix>, max_items = 64)]
    pub allowed_address_pairs: Vec<IpNet>,
    /// Names of its security groups; without any it can connect to nobody.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Vec<schema::Name>, max_items = 16)]
    pub security_groups: Vec<String>,
    /// Name of its QoS policy; without one it is unlimited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::Name>)]
    pub qos_policy: Option<String>,
    /// How much of the host its guest may use.
    #[serde(default, skip_serializing_if = "Quota::is_default")]
    pub quota: Quota,
    /// How many underlay paths it uses, from 1; 1 when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 8)]
    pub paths: Option<u8>,
    /// An alias of its host that no other vNIC uses; takes the place of the host's first underlay address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::Address>)]
    pub dedicated_alias: Option<IpAddr>,
}

impl Vnic {
    /// The GIDs that are the vNIC's own: the link-local GID of its MAC, then its addresses.
    pub fn gids(&self) -> Vec<Gid> {
        let mut gids = vec![Gid::from(self.mac.link_local())];
        gids.extend(self.addresses.iter().copied().map(Gid::from));
        gids
    }

    /// Whether its guest may put `gid` into its table.
    pub fn may_use(&self, gid: Gid) -> bool {
        let ip = gid.ip();
        gid == Gid::from(self.mac.link_local())
            || self.addresses.contains(&ip)
            || self.allowed_address_pairs.iter().any(|net| net.contains(&ip))
    }

    /// How many underlay paths it uses.
    pub fn path_count(&self) -> u8 {
        self.paths.unwrap_or(1)
    }

    /// Whether it runs on the host with this name.
    pub fn is_on(&self, host: &str) -> bool {
        self.host.as_deref() == Some(host)
    }
}

/// A machine of the underlay that is no host of masq, and belongs to a network: any station that speaks RoCEv2. Which of its queue
/// pairs talks is its own affair, as is who there may.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct StaticEndpoint {
    /// Its name, unique among static endpoints and vNICs.
    #[schema(value_type = schema::Name)]
    pub name: String,
    /// Name of its network.
    #[schema(value_type = schema::Name)]
    pub vpc: String,
    /// Virtual addresses that lead to it, unique in its network.
    #[schema(value_type = Vec<schema::Address>, min_items = 1, max_items = 16)]
    pub addresses: Vec<IpAddr>,
    /// Where it is on the underlay: an address that no host and no other static endpoint has.
    #[schema(value_type = schema::Address)]
    pub underlay_address: IpAddr,
    /// Names of its security groups; without any, nobody can connect to it. They are enforced where its peers are: it has nobody that
    /// would.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Vec<schema::Name>, max_items = 16)]
    pub security_groups: Vec<String>,
}

/// A vNIC that a host has realised: where its peers find it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Endpoint {
    /// Name of the vNIC.
    pub vnic: String,
    /// Its network.
    #[schema(value_type = u32)]
    pub vni: Vni,
    /// Its virtual addresses: its own, then the allowed ones that its guest has taken on.
    #[schema(value_type = Vec<schema::Address>)]
    pub gids: Vec<Gid>,
    /// Name of the host.
    pub host: String,
    /// Underlay addresses: address `i` belongs to path `i`.
    #[schema(value_type = Vec<schema::Address>)]
    pub addresses: Vec<IpAddr>,
    /// Blocks of wire QPNs that it owns on that host.
    #[schema(value_type = Vec<schema::Block>)]
    pub qpn_blocks: Vec<QpnBlock>,
    /// Wire QPN of its GSI, the QP1 of its guest: 1 when it has an underlay address of its own, else one of its blocks. 0 in
    /// records of hosts whose masqd knows no GSI.
    #[serde(default = "no_gsi")]
    #[schema(value_type = u32, maximum = 16_777_215)]
    pub gsi_qpn: WireQpn,
    /// What its host's RNIC can do beyond standard RoCEv2: bit 0, timed and selective acknowledgements. Peers use what they can do,
    /// too, and ignore bits that they do not know. 0 in records of hosts whose masqd knows none.
    #[serde(default, skip_serializing_if = "Features::is_none")]
    #[schema(value_type = u32)]
    pub features: Features,
    /// Grows whenever the blocks change hands.
    pub generation: u64,
}

fn no_gsi() -> WireQpn {
    WireQpn::from_wire(0)
}

/// How far a host has come: written by the host, and gone when the host is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct HostState {
    /// Name of the host.
    pub host: String,
    /// Everything that was desired up to this revision of the store is in force there.
    pub realised_revision: u64,
    /// What keeps the host, or single vNICs, from being as desired: `<what>: <problem>`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<String>,
}
