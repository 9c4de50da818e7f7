//! The host's side of the underlay: do its addresses exist, how large are its packets, is it up; and the aliases
//! by which a connection has several paths.
//!
//! # Aliases
//!
//! [`Underlay::reconcile_aliases`] gives the host the wanted [`Alias`]es and takes away those that are no longer
//! wanted. It touches only what masqd has put there, and finds that again after a crash by marks in the kernel:
//!
//! | | value |
//! |---|---|
//! | protocol of addresses, rules and routes | 213 |
//! | priority of rules | 2130 |
//! | routing tables | 0x6d610000 to 0x6d61ffff, one for each alias that needs routes; never one in use by others |
//! | metric of addresses (`IFA_RT_PRIORITY`) | 0x6d617371 |
//!
//! So `ip rule show` and `ip route show table all proto 213` show them. An address that somebody else has put on the
//! link is used as it is, and stays. The host's other tables stay as they are.
//!
//! Aliases outlive masqd: a restart would otherwise interrupt each path twice. To be rid of them,
//! reconcile with none wanted. There can be one masqd in a network namespace: two would remove each
//! other's aliases.

mod alias;
mod netlink;
mod plan;

use std::collections::BTreeMap;
use std::future::ready;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;

use futures_util::FutureExt;
use futures_util::stream::{Stream, StreamExt};
use masq_types::Mtu;
use rtnetlink::{Handle, MulticastGroup};

pub use alias::{Alias, AliasError, AliasProblem};

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
    #[error("cannot ask the kernel about network interfaces, addresses and routes: {0}")]
    Netlink(#[from] rtnetlink::Error),
    /// No netlink socket.
    #[error("cannot open a netlink socket: {0}")]
    Socket(#[from] io::Error),
}

/// What [`Underlay::reconcile_aliases`] has done.
#[derive(Debug, Default)]
#[must_use]
pub struct Reconciled {
    /// Changes made to the host: addresses, rules and routes, added and removed.
    pub changes: usize,
    /// What is not as it should be. Another attempt is due when [`Underlay::changed`] returns, or after a while.
    pub problems: Vec<AliasProblem>,
}

#[derive(Clone, Debug)]
struct Link {
    name: String,
    mtu_bytes: u32,
    /// Administratively up.
    enabled: bool,
    /// Enabled, and able to carry packets.
    up: bool,
}

/// Asks the kernel about this host's addresses and links, tells when they may have changed, and keeps aliases.
pub struct Underlay {
    handle: Handle,
    changes: Pin<Box<dyn Stream<Item = ()> + Send + Sync>>,
}

impl Underlay {
    /// Begins to watch the network namespace of the calling thread; needs a tokio runtime.
    pub fn open() -> Result<Self, UnderlayError> {
        let groups = [
            MulticastGroup::Link,
            MulticastGroup::Ipv4Ifaddr,
            MulticastGroup::Ipv6Ifaddr,
            MulticastGroup::Ipv4Rule,
            MulticastGroup::Ipv6Rule,
            MulticastGroup::Ipv4Route,
            MulticastGroup::Ipv6Route,
        ];
        // Requests have a socket of their own: a burst of notifications must not cost an answer.
        let (watch, _, messages) = rtnetlink::new_multicast_connection(&groups)?;
        let (connection, handle, _) = rtnetlink::new_connection()?;
        tokio::spawn(watch);
        tokio::spawn(connection);
        let changes = messages.filter(|(message, _)| ready(netlink::matters(&message.payload))).map(|_| ());
        Ok(Underlay { handle, changes: Box::pin(changes) })
    }

    /// Waits until a link, an address, or a rule or route of an alias has changed.
    pub async fn changed(&mut self) {
        if self.changes.next().await.is_none() {
            // The netlink connection has ended; there is nothing more to follow.
            std::future::pending::<()>().await;
        }
        // One look serves all that has happened so far.
        while let Some(Some(())) = self.changes.next().now_or_never() {}
    }

    /// The state of the links that have `addresses`.
    pub async fn state(&self, addresses: &[IpAddr]) -> Result<LinkState, UnderlayError> {
        let present = netlink::addresses(&self.handle).await?;
        let by_address = present.into_iter().map(|a| (a.address, a.link)).collect();
        summarise(addresses, &by_address, &netlink::links(&self.handle).await?)
    }

    /// Gives the host exactly the `wanted` aliases, in whatever order they are named.
    ///
    /// Nothing is sent to the kernel but questions if the host has them already. What does not work for one alias
    /// does not hold up the others. Needs `CAP_NET_ADMIN` if anything is to be changed.
    ///
    /// # Errors
    ///
    /// Fails if the kernel does not say what there is; nothing has been changed then.
    pub async fn reconcile_aliases(&mut self, wanted: &[Alias]) -> Result<Reconciled, UnderlayError> {
        let plan = plan::plan(&netlink::host(&self.handle).await?, wanted);
        let mut done = Reconciled { changes: 0, problems: plan.problems };
        for operation in plan.removals {
            match netlink::execute(&self.handle, &operation).await {
                Ok(()) => done.changes += 1,
                Err(source) => {
                    let operation = operation.to_string();
                    done.problems.push(AliasProblem::Unwanted { operation, source });
                }
            }
        }
        for (alias, operations) in plan.additions {
            for operation in operations {
                if let Err(source) = netlink::execute(&self.handle, &operation).await {
                    let reason = AliasError::Refused { operation: operation.to_string(), source };
                    done.problems.push(AliasProblem::Wanted { alias, reason });
                    break;
                }
                done.changes += 1;
            }
        }
        Ok(done)
    }
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
        let link = |name: &str, mtu_bytes, up| Link { name: name.into(), mtu_bytes, enabled: true, up };
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
