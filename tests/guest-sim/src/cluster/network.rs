//! The network namespaces of the hosts and of the store, and the links between them.
//!
//! ```text
//!   h1 ul0 ──── ul0 h2         two hosts: a veth pair for each path,
//!   h1 ul1 ──── ul1 h2
//!                              or a switch before each, which the paths join
//!   h1 ul0 ──── host t1 l0 ──── l0 t2 host ──── ul0 h2
//!                    t1 l1 ──── l1 t2
//!   h1 ul0 ─┐
//!   h2 ul0 ─┼─ br0             more: a bridge in a namespace of its own
//!   h3 ul0 ─┘
//!   h1 st0 ──── h1             and a link from each to the namespace of the store
//!   h2 st0 ──── h2
//! ```

use std::io;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::Command;

use super::Layout;
use super::switches::{self, Switches};

/// Namespaces and directories of all clusters begin like this.
const PREFIX: &str = "masq-sim";

/// The namespaces; gone when this is dropped.
pub(super) struct Network {
    prefix: String,
    hosts: u8,
    paths: u8,
    switches: Option<Switches>,
}

/// The underlay address of a host on its first path.
pub(super) fn underlay(host: u8) -> Ipv4Addr {
    on_path(host, 0)
}

/// The underlay address of a host on a path.
pub(super) fn on_path(host: u8, path: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 77, path, host)
}

/// An address that a host has on a path for a vNIC that has one of its own.
pub(super) fn alias(host: u8, path: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 80, path, host)
}

/// The link of a host that a path goes by.
fn link(path: u8) -> String {
    format!("ul{path}")
}

/// The store's address on its link to a host.
pub(super) fn store_address(host: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 78, host, 254)
}

impl Network {
    /// Makes the namespaces of a layout's hosts and of a store. `number` tells this process's clusters apart.
    pub(super) fn new(number: u32, layout: &Layout) -> io::Result<Self> {
        let Layout { hosts, paths, .. } = *layout;
        if hosts != 2 && (paths != 1 || layout.switches) {
            return Err(io::Error::other("only two hosts have several paths or switches"));
        }
        let prefix = format!("{PREFIX}{}-{number}", std::process::id());
        let mut net = Network { prefix, hosts, paths, switches: None };
        net.make(&layout.link_mtu.to_string(), layout.switches)?;
        Ok(net)
    }

    /// The name that all parts of the cluster begin with.
    pub(super) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The namespace of a host.
    pub(super) fn host(&self, host: u8) -> String {
        format!("{}-h{host}", self.prefix)
    }

    /// The namespace of the store.
    pub(super) fn store(&self) -> String {
        format!("{}-store", self.prefix)
    }

    /// Separates a host from the store, or joins them again. What is sent meanwhile vanishes.
    pub(super) fn set_store_link(&self, host: u8, up: bool) -> io::Result<()> {
        ip(&["-n", &self.store(), "link", "set", &format!("h{host}"), if up { "up" } else { "down" }])
    }

    /// The namespace and the name of the link where what a host sends takes a path.
    pub(super) fn path_link(&self, host: u8, path: u8) -> (String, String) {
        match &self.switches {
            Some(switches) => (switches.netns(host), switches::link(path)),
            None => (self.host(host), link(path)),
        }
    }

    /// Cuts a path, or makes it whole again. What is sent over it meanwhile vanishes.
    pub(super) fn set_path(&self, path: u8, up: bool) -> io::Result<()> {
        if let Some(switches) = &self.switches {
            return switches.set_path(path, up);
        }
        // Its other end stays up, and so does its address.
        ip(&["-n", &self.host(2), "link", "set", &link(path), if up { "up" } else { "down" }])
    }

    /// Bytes that a host has sent over a path, as the link counts them.
    pub(super) fn sent_bytes(&self, host: u8, path: u8) -> io::Result<u64> {
        let (netns, link) = self.path_link(host, path);
        let out = Command::new("ip").args(["-n", &netns, "-s", "-j", "link", "show", &link]).output()?;
        let links: serde_json::Value = serde_json::from_slice(&out.stdout)?;
        let bytes = links.pointer("/0/stats64/tx/bytes").and_then(serde_json::Value::as_u64);
        bytes.ok_or_else(|| io::Error::other(format!("no counters of {link}: {links}")))
    }

    fn bridge(&self) -> String {
        format!("{}-br", self.prefix)
    }

    fn make(&mut self, mtu: &str, switches: bool) -> io::Result<()> {
        ip(&["netns", "add", &self.store()])?;
        ip(&["-n", &self.store(), "link", "set", "lo", "up"])?;
        for host in 1..=self.hosts {
            let ns = self.host(host);
            ip(&["netns", "add", &ns])?;
            ip(&["-n", &ns, "link", "set", "lo", "up"])?;
            let name = format!("h{host}");
            pair(("st0", &ns), (&name, &self.store()))?;
            for (ns, link, address) in [
                (&ns, "st0", Ipv4Addr::new(10, 78, host, 1)),
                (&self.store(), name.as_str(), store_address(host)),
            ] {
                ip(&["-n", ns, "address", "add", &format!("{address}/24"), "dev", link])?;
                ip(&["-n", ns, "link", "set", link, "up"])?;
            }
        }
        if switches {
            self.switches = Some(Switches::new(&self.prefix, |host| self.host(host), self.paths, mtu)?);
            return Ok(());
        }
        if self.hosts == 2 {
            for path in 0..self.paths {
                pair((&link(path), &self.host(1)), (&link(path), &self.host(2)))?;
            }
        } else {
            let bridge = self.bridge();
            ip(&["netns", "add", &bridge])?;
            ip(&["-n", &bridge, "link", "add", "br0", "mtu", mtu, "type", "bridge"])?;
            ip(&["-n", &bridge, "link", "set", "br0", "up"])?;
            for host in 1..=self.hosts {
                let port = format!("h{host}");
                pair(("ul0", &self.host(host)), (&port, &bridge))?;
                ip(&["-n", &bridge, "link", "set", &port, "mtu", mtu, "master", "br0", "up"])?;
            }
        }
        for host in 1..=self.hosts {
            let ns = self.host(host);
            for path in 0..self.paths {
                let (address, link) = (on_path(host, path), link(path));
                ip(&["-n", &ns, "address", "add", &format!("{address}/24"), "dev", &link])?;
                ip(&["-n", &ns, "link", "set", &link, "mtu", mtu, "up"])?;
            }
        }
        Ok(())
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for host in 1..=self.hosts {
            let _ = ip(&["netns", "delete", &self.host(host)]);
        }
        let _ = ip(&["netns", "delete", &self.store()]);
        if self.hosts != 2 {
            let _ = ip(&["netns", "delete", &self.bridge()]);
        }
    }
}

/// Removes what runs that were killed have left behind: namespaces and directories of processes that are gone.
pub(super) fn remove_leftovers() -> io::Result<()> {
    let orphaned = |name: &str| {
        let owner = name.strip_prefix(PREFIX).and_then(|rest| rest.split('-').next());
        owner.is_some_and(|pid| pid.parse::<u32>().is_ok() && !Path::new("/proc").join(pid).exists())
    };
    let list = Command::new("ip").args(["netns", "list"]).output()?;
    for line in String::from_utf8_lossy(&list.stdout).lines() {
        let name = line.split(' ').next().unwrap_or_default();
        if orphaned(name) {
            // Another run may be at it as well.
            let _ = ip(&["netns", "delete", name]);
        }
    }
    for entry in std::fs::read_dir(std::env::temp_dir())?.flatten() {
        if orphaned(&entry.file_name().to_string_lossy()) {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
    Ok(())
}

/// Joins two namespaces.
pub(super) fn pair((a, in_a): (&str, &str), (b, in_b): (&str, &str)) -> io::Result<()> {
    ip(&["link", "add", a, "netns", in_a, "type", "veth", "peer", "name", b, "netns", in_b])
}

/// Runs a line of shell in a namespace.
pub(super) fn in_netns(netns: &str, line: &str) -> io::Result<()> {
    ip(&["netns", "exec", netns, "sh", "-ec", line])
}

/// Runs `ip`.
pub(super) fn ip(args: &[&str]) -> io::Result<()> {
    let out = Command::new("ip").args(args).output()?;
    if out.status.success() {
        return Ok(());
    }
    Err(io::Error::other(format!("ip {}: {}", args.join(" "), String::from_utf8_lossy(&out.stderr).trim())))
}
