//! A switch before each of two hosts, and the paths between the switches.
//!
//! A host has one link, and an address on it for each path. Switches are network namespaces that forward: a route to each address of the other host takes
//! it by the link of its path. What has no route, because its link is down, vanishes without a word, as it does in a switch.

use std::io;
use std::net::Ipv4Addr;

use super::network::{alias, in_netns, ip, on_path, pair};

/// The switch's port to its host.
const PORT: &str = "host";

/// The two switches.
pub(super) struct Switches {
    prefix: String,
}

/// The switch's end of a path.
pub(super) fn link(path: u8) -> String {
    format!("l{path}")
}

/// The switch's address on the link to its host: where packets of the host's aliases go.
pub(super) fn gateway(host: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 79, host, 254)
}

/// A host's own address on its link.
fn station(host: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 79, host, 1)
}

/// The address of a host's switch on a path, and its link's address there.
fn on_link(host: u8, path: u8) -> (Ipv4Addr, String) {
    (Ipv4Addr::new(10, 81, path, host), format!("02:00:0a:51:{path:02x}:{host:02x}"))
}

fn other(host: u8) -> u8 {
    3 - host
}

impl Switches {
    /// Makes the namespaces, and joins them with each other and with those of the hosts. `host_netns` names these.
    pub(super) fn new(
        prefix: &str,
        host_netns: impl Fn(u8) -> String,
        paths: u8,
        mtu: &str,
    ) -> io::Result<Self> {
        let switches = Switches { prefix: prefix.to_owned() };
        for host in [1, 2] {
            let (server, switch) = (host_netns(host), switches.netns(host));
            ip(&["netns", "add", &switch])?;
            in_netns(&switch, "echo 1 > /proc/sys/net/ipv4/ip_forward")?;
            ip(&["-n", &switch, "route", "add", "blackhole", "default"])?;
            pair(("ul0", &server), (PORT, &switch))?;
            for (netns, link, address) in [(&server, "ul0", station(host)), (&switch, PORT, gateway(host))] {
                ip(&["-n", netns, "address", "add", &format!("{address}/24"), "dev", link])?;
                ip(&["-n", netns, "link", "set", link, "mtu", mtu, "up"])?;
            }
            ip(&["-n", &server, "route", "add", "default", "via", &gateway(host).to_string()])?;
            for path in 0..paths {
                ip(&["-n", &server, "address", "add", &format!("{}/32", on_path(host, path)), "dev", "ul0"])?;
                switches.route(host, host, path, station(host))?;
            }
        }
        for path in 0..paths {
            let link = link(path);
            pair((&link, &switches.netns(1)), (&link, &switches.netns(2)))?;
            for host in [1, 2] {
                let (switch, (address, mac)) = (switches.netns(host), on_link(host, path));
                ip(&["-n", &switch, "address", "add", &format!("{address}/24"), "dev", &link])?;
                ip(&["-n", &switch, "link", "set", &link, "address", &mac, "mtu", mtu, "up"])?;
            }
            for host in [1, 2] {
                switches.steer(host, path)?;
            }
        }
        Ok(switches)
    }

    /// The namespace of a host's switch.
    pub(super) fn netns(&self, host: u8) -> String {
        format!("{}-t{host}", self.prefix)
    }

    /// Cuts a path at the second host's switch, or makes it whole again. What waits before it at either end is lost.
    pub(super) fn set_path(&self, path: u8, up: bool) -> io::Result<()> {
        ip(&["-n", &self.netns(2), "link", "set", &link(path), if up { "up" } else { "down" }])?;
        // The kernel forgets what led by a link that goes down.
        if up { self.steer(2, path) } else { Ok(()) }
    }

    /// A switch sends what is for the other host's addresses of a path by that path's link. It does not ask who is there: an answer would be missing for a
    /// while after each time that the link was down.
    fn steer(&self, host: u8, path: u8) -> io::Result<()> {
        let (next, mac) = on_link(other(host), path);
        let (switch, link) = (self.netns(host), link(path));
        ip(&["-n", &switch, "neighbour", "replace", &next.to_string(), "lladdr", &mac, "dev", &link])?;
        self.route(host, other(host), path, next)
    }

    /// A switch sends what is for `to`'s addresses of a path to `next`.
    fn route(&self, host: u8, to: u8, path: u8, next: Ipv4Addr) -> io::Result<()> {
        for address in [on_path(to, path), alias(to, path)] {
            let (address, next) = (format!("{address}/32"), next.to_string());
            ip(&["-n", &self.netns(host), "route", "replace", &address, "via", &next])?;
        }
        Ok(())
    }
}

impl Drop for Switches {
    fn drop(&mut self) {
        for host in [1, 2] {
            let _ = ip(&["netns", "delete", &self.netns(host)]);
        }
    }
}
