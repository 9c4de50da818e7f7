//! How a cluster is laid out, and the desired state that makes it so.

use std::net::{IpAddr, Ipv4Addr};

use ipnet::IpNet;
use masq_model::{Alias, Host, Object, Quota, SecurityGroup, Vnic, Vpc};
use masq_types::{MacAddr, Vni};

use super::{network, switches};

/// One vNIC of the cluster's desired state.
#[derive(Clone, Debug)]
pub struct VnicSpec {
    /// Name, and name of its socket.
    pub name: &'static str,
    /// Tenant.
    pub vpc: &'static str,
    /// Number of its host, from 1.
    pub host: u8,
    /// Virtual address.
    pub address: Ipv4Addr,
}

/// How a cluster is laid out.
#[derive(Clone, Debug)]
pub struct Layout {
    /// How many hosts there are, from 1.
    pub hosts: u8,
    /// The vNICs.
    pub vnics: Vec<VnicSpec>,
    /// The tenants whose vNICs are in a common security group, and so may talk to one another; by default all.
    pub groups: Vec<&'static str>,
    /// MTU of the links between the hosts.
    pub link_mtu: u32,
    /// Paths between two hosts: underlay addresses of each, on links of their own.
    pub paths: u8,
    /// The vNICs that use fewer paths than there are, and how many.
    pub fewer_paths: Vec<(&'static str, u8)>,
    /// Each of the two hosts is behind a switch, and paths are links between the switches; else paths are links between the hosts.
    pub switches: bool,
    /// The vNICs that have an underlay address of their own, which takes a path; behind switches.
    pub aliases: Vec<(&'static str, u8)>,
    /// More arguments for each masqd.
    pub masqd_args: Vec<String>,
}

impl Default for Layout {
    /// Two tenants on the same addresses, each with two vNICs on host 1 and one on host 2.
    fn default() -> Self {
        let mut vnics = Vec::new();
        for vpc in ["blue", "red"] {
            for (n, host) in [(1, 1), (2, 1), (3, 2)] {
                let name: &'static str = match (vpc, n) {
                    ("blue", 1) => "blue-1",
                    ("blue", 2) => "blue-2",
                    ("blue", _) => "blue-3",
                    (_, 1) => "red-1",
                    (_, 2) => "red-2",
                    _ => "red-3",
                };
                vnics.push(VnicSpec { name, vpc, host, address: Ipv4Addr::new(192, 168, 0, n) });
            }
        }
        Layout {
            hosts: 2,
            vnics,
            groups: vec!["blue", "red"],
            link_mtu: 9000,
            paths: 1,
            fewer_paths: Vec::new(),
            switches: false,
            aliases: Vec::new(),
            masqd_args: Vec::new(),
        }
    }
}

impl Layout {
    /// The desired state: the hosts, h1 and so on, the tenants with VNIs 100, 200 and so on, and their vNICs.
    pub(super) fn desired(&self) -> Vec<Object> {
        let mut objects: Vec<Object> = (1..=self.hosts)
            .map(|n| {
                let underlay = (0..self.paths).map(|path| network::on_path(n, path).into()).collect();
                let aliases = self.aliases.iter().filter(|(vnic, _)| self.host_of(vnic) == Some(n));
                let aliases = aliases.map(|(_, path)| alias_on(n, *path)).collect();
                Object::Host(Host { name: host_name(n), underlay, aliases, class_rates: vec![] })
            })
            .collect();
        let mut vpcs: Vec<&str> = Vec::new();
        for v in &self.vnics {
            let known = vpcs.iter().position(|name| *name == v.vpc);
            let number = known.unwrap_or_else(|| {
                vpcs.push(v.vpc);
                vpcs.len() - 1
            });
            let fewer = self.fewer_paths.iter().find(|(name, _)| *name == v.name);
            let paths = fewer.map_or(self.paths, |(_, paths)| *paths);
            let alias = self.aliases.iter().find(|(name, _)| *name == v.name);
            let group = self.groups.contains(&v.vpc).then(|| v.vpc.to_owned());
            objects.push(Object::Vnic(Vnic {
                name: v.name.into(),
                vpc: v.vpc.into(),
                host: Some(host_name(v.host)),
                mac: MacAddr([0x52, 0x54, 0, 0, number as u8, v.address.octets()[3]]),
                addresses: vec![v.address.into()],
                allowed_address_pairs: vec![],
                security_groups: group.into_iter().collect(),
                qos_policy: None,
                quota: Quota::default(),
                paths: (paths > 1).then_some(paths),
                dedicated_alias: alias.map(|(_, path)| network::alias(v.host, *path).into()),
            }));
        }
        for (vni, vpc) in (1..).map(|n| Vni::new(100 * n).expect("few tenants")).zip(vpcs) {
            objects.push(Object::Vpc(Vpc { name: vpc.into(), vni }));
            objects.push(Object::SecurityGroup(SecurityGroup { name: vpc.into(), vpc: vpc.into() }));
        }
        objects
    }

    fn host_of(&self, vnic: &str) -> Option<u8> {
        self.vnics.iter().find(|v| v.name == vnic).map(|v| v.host)
    }
}

/// The alias of a host that takes a path, for one of its vNICs alone.
fn alias_on(host: u8, path: u8) -> Alias {
    let address = IpNet::from(IpAddr::V4(network::alias(host, path)));
    Alias { address, link: "ul0".into(), gateway: Some(switches::gateway(host).into()) }
}

/// The name of a host in the desired state.
pub(super) fn host_name(number: u8) -> String {
    format!("h{number}")
}
