//! The host's side of the underlay: do its addresses exist, how large are its packets, is it up.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;

use futures_util::stream::{Stream, StreamExt, TryStreamExt};
use masq_types::Mtu;
use rtnetlink::packet_route::address::{AddressAttribute, AddressMessage};
use rtnetlink::packet_route::link::{LinkAttribute, LinkFlags};
use rtnetlink::{Handle, MulticastGroup};

/// What guests are told of the underlay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkState {
    /// Whether every underlay address is on a link that is up.
    pub up: bool,
    /// Largest path MTU that all links carry.
    pub active_mtu: Mtu,
}

/// Why the underlay cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum UnderlayError {
    /// An address of the host is on no interface.
    #[error(
        "underlay address {address} of this host is on no network interface: add it, or correct the host's \
         underlay addresses in the desired state"
    )]
    Missing {
        /// The address.
        address: IpAddr,
    },
    /// Not even the smallest path MTU fits.
    #[error("interface {interface} has an MTU of {mtu_bytes} bytes; RDMA needs {} or more", Mtu::B256.bytes() + Mtu::OVERHEAD_BYTES)]
    Narrow {
        /// Name of the interface.
        interface: String,
        /// Its MTU.
        mtu_bytes: u32,
    },
    /// The kernel did not answer.
    #[error("cannot ask the kernel about network interfaces: {0}")]
    Netlink(#[from] rtnetlink::Error),
    /// No netlink socket.
    #[error("cannot open a netlink socket: {0}")]
    Socket(#[from] io::Error),
}

#[derive(Clone, Debug)]
struct Link {
    name: String,
    mtu_bytes: u32,
    up: bool,
}

/// Asks the kernel about this host's addresses and links, and tells when they may have changed.
pub struct Underlay {
    handle: Handle,
    changes: Pin<Box<dyn Stream<Item = ()> + Send + Sync>>,
}

impl Underlay {
    /// Begins to watch; needs a tokio runtime.
    pub fn open() -> Result<Self, UnderlayError> {
        let groups = [MulticastGroup::Link, MulticastGroup::Ipv4Ifaddr, MulticastGroup::Ipv6Ifaddr];
        let (connection, handle, messages) = rtnetlink::new_multicast_connection(&groups)?;
        tokio::spawn(connection);
        Ok(Underlay { handle, changes: Box::pin(messages.map(|_| ())) })
    }

    /// Waits until a link or an address has changed.
    pub async fn changed(&mut self) {
        if self.changes.next().await.is_none() {
            // The netlink connection has ended; there is nothing more to follow.
            std::future::pending::<()>().await;
        }
    }

    /// The state of the links that have `addresses`.
    pub async fn state(&self, addresses: &[IpAddr]) -> Result<LinkState, UnderlayError> {
        let mut by_address = BTreeMap::new();
        let mut dump = self.handle.address().get().execute();
        while let Some(message) = dump.try_next().await? {
            if let Some(address) = own_address(&message) {
                by_address.insert(address, message.header.index);
            }
        }
        let mut links = BTreeMap::new();
        let mut dump = self.handle.link().get().execute();
        while let Some(message) = dump.try_next().await? {
            let up = message.header.flags.contains(LinkFlags::Up | LinkFlags::Running);
            let mut link = Link { name: message.header.index.to_string(), mtu_bytes: 0, up };
            for attribute in message.attributes {
                match attribute {
                    LinkAttribute::IfName(name) => link.name = name,
                    LinkAttribute::Mtu(bytes) => link.mtu_bytes = bytes,
                    _ => {}
                }
            }
            links.insert(message.header.index, link);
        }
        summarise(addresses, &by_address, &links)
    }
}

/// A point-to-point link has its peer in `Address` and its own one in `Local`; an IPv6 address has only
/// the former.
fn own_address(message: &AddressMessage) -> Option<IpAddr> {
    let local = message.attributes.iter().find_map(|a| match a {
        AddressAttribute::Local(address) => Some(*address),
        _ => None,
    });
    local.or_else(|| {
        message.attributes.iter().find_map(|a| match a {
            AddressAttribute::Address(address) => Some(*address),
            _ => None,
        })
    })
}

fn summarise(
    addresses: &[IpAddr],
    by_address: &BTreeMap<IpAddr, u32>,
    links: &BTreeMap<u32, Link>,
) -> Result<LinkState, UnderlayError> {
    let mut state = LinkState { up: true, active_mtu: Mtu::B4096 };
    for &address in addresses {
        let link = by_address.get(&address).and_then(|index| links.get(index));
        let link = link.ok_or(UnderlayError::Missing { address })?;
        let mtu = Mtu::for_link(link.mtu_bytes).ok_or_else(|| UnderlayError::Narrow {
            interface: link.name.clone(),
            mtu_bytes: link.mtu_bytes,
        })?;
        state.active_mtu = state.active_mtu.min(mtu);
        state.up &= link.up;
    }
    Ok(state)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn links() -> (BTreeMap<IpAddr, u32>, BTreeMap<u32, Link>) {
        let by_address = [("10.0.0.1", 1), ("10.0.1.1", 2), ("10.0.2.1", 3), ("10.0.3.1", 4)];
        let link = |name: &str, mtu_bytes, up| Link { name: name.into(), mtu_bytes, up };
        (
            by_address.map(|(a, i)| (a.parse().unwrap(), i)).into(),
            [
                (1, link("a", 9000, true)),
                (2, link("b", 1500, true)),
                (3, link("c", 9000, false)),
                (4, link("d", 300, true)),
            ]
            .into(),
        )
    }

    fn state(addresses: &[&str]) -> Result<LinkState, UnderlayError> {
        let (by_address, links) = links();
        let addresses: Vec<_> = addresses.iter().map(|a| a.parse().unwrap()).collect();
        summarise(&addresses, &by_address, &links)
    }

    #[test]
    fn the_narrowest_link_decides() {
        assert_eq!(state(&["10.0.0.1"]).unwrap(), LinkState { up: true, active_mtu: Mtu::B4096 });
        assert_eq!(state(&["10.0.0.1", "10.0.1.1"]).unwrap(), LinkState { up: true, active_mtu: Mtu::B1024 });
        assert!(!state(&["10.0.0.1", "10.0.2.1"]).unwrap().up);
    }

    #[test]
    fn errors_name_address_and_interface() {
        let e = state(&["10.0.0.1", "10.9.9.9"]).unwrap_err().to_string();
        assert!(e.contains("10.9.9.9"), "{e}");
        let e = state(&["10.0.3.1"]).unwrap_err().to_string();
        assert!(e.contains("interface d") && e.contains("300"), "{e}");
    }

    #[tokio::test]
    async fn the_kernel_knows_loopback() {
        let underlay = Underlay::open().unwrap();
        let state = underlay.state(&["127.0.0.1".parse().unwrap()]).await.unwrap();
        assert_eq!(state.active_mtu, Mtu::B4096);
        let missing = underlay.state(&["192.0.2.77".parse().unwrap()]).await.unwrap_err();
        assert!(matches!(missing, UnderlayError::Missing { .. }), "{missing}");
    }
}
