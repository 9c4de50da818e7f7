//! Path aliases as the rest of masqd names them, and what can be wrong with one.

use std::fmt;
use std::io;
use std::net::IpAddr;

use masq_model::IpNet;

/// An address of this host for one path, and the link by which that path leaves.
///
/// | | effect |
/// |---|---|
/// | `address` alone, of full length (/32, /128) | the address is on `link`; the host's own routes decide how packets leave |
/// | `address` with a shorter prefix | as well, what is sent from it to its prefix leaves by `link` |
/// | `gateway` | as well, what is sent from it to anywhere else leaves by `link` through the gateway |
///
/// Only packets with `address` as their source are concerned: a socket has to be bound to it. Routes of the
/// host's other traffic, and which source address that takes, stay as they are.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Alias {
    /// The address, with the length of the prefix that is reached without a gateway.
    pub address: IpNet,
    /// Name of the network interface.
    pub link: String,
    /// Next hop beyond the prefix, of the same address family. It need not lie in the prefix, but has to answer
    /// on `link`.
    pub gateway: Option<IpAddr>,
}

impl fmt::Display for Alias {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} on interface {}", self.address, self.link)?;
        match self.gateway {
            Some(gateway) => write!(f, " through {gateway}"),
            None => Ok(()),
        }
    }
}

/// What keeps the host from having exactly the wanted aliases.
#[derive(Debug, thiserror::Error)]
pub enum AliasProblem {
    /// A wanted alias does not work, or not wholly.
    #[error("path alias {alias}: {reason}")]
    Wanted {
        /// The alias.
        alias: Alias,
        /// What is wrong with it.
        reason: AliasError,
    },
    /// Something that masqd had made for an alias that is no longer wanted is still there.
    #[error("path alias that is no longer wanted: cannot {operation}: {source}")]
    Unwanted {
        /// What was tried.
        operation: String,
        /// The kernel's answer.
        source: io::Error,
    },
}

/// Why a wanted alias does not work. Of one with a problem that is found before the kernel is asked, the host has
/// nothing of masqd's (of one whose interface is down: all but routes).
#[derive(Debug, thiserror::Error)]
pub enum AliasError {
    /// Several wanted aliases have this address.
    #[error("its address is wanted more than once, with other links, prefixes or gateways")]
    Ambiguous,
    /// One is IPv4, the other IPv6.
    #[error("address and gateway are not of the same family")]
    GatewayFamily,
    /// There is no such interface.
    #[error("there is no such interface")]
    LinkMissing,
    /// The interface is not set up, so that it cannot have routes. Until it is, the host's own routes decide.
    #[error("the interface is down, so that the alias has no routes")]
    LinkDown,
    /// Somebody else has put the address on another interface.
    #[error("its address is already on interface {link}, where masqd did not put it")]
    Elsewhere {
        /// Name of the other interface.
        link: String,
    },
    /// Every routing table of masqd's range holds routes or serves rules of others.
    #[error("no routing table is free: others use all of those that masqd may use")]
    NoTable,
    /// The kernel refused an operation.
    #[error("cannot {operation}: {source}{}", advice(.source))]
    Refused {
        /// What was tried.
        operation: String,
        /// The kernel's answer.
        source: io::Error,
    },
}

fn advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied => "; masqd needs CAP_NET_ADMIN",
        _ => "",
    }
}
