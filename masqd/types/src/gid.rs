use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A RoCEv2 GID: an IPv6 address, or an IPv4 address in its mapped form `::ffff:a.b.c.d`
/// (RoCEv2 Annex A17 §A17.4.5.2).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// The zero GID, which marks an empty table entry and is never a valid address.
    pub const ZERO: Gid = Gid([0; 16]);

    /// Whether this is [`Gid::ZERO`].
    pub fn is_zero(self) -> bool {
        self == Self::ZERO
    }

    /// The IP address that this GID stands for.
    pub fn ip(self) -> IpAddr {
        let v6 = Ipv6Addr::from(self.0);
        match v6.to_ipv4_mapped() {
            Some(v4) => IpAddr::V4(v4),
            None => IpAddr::V6(v6),
        }
    }
}

impl From<Ipv4Addr> for Gid {
    fn from(a: Ipv4Addr) -> Self {
        Gid(a.to_ipv6_mapped().octets())
    }
}

impl From<Ipv6Addr> for Gid {
    fn from(a: Ipv6Addr) -> Self {
        Gid(a.octets())
    }
}

impl From<IpAddr> for Gid {
    fn from(a: IpAddr) -> Self {
        match a {
            IpAddr::V4(v4) => v4.into(),
            IpAddr::V6(v6) => v6.into(),
        }
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gid({})", self.ip())
    }
}

/// The IP address: what a person wrote in the configuration.
impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.ip().fmt(f)
    }
}

#[cfg(feature = "serde")]
impl serde::Serialize for Gid {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

#[cfg(feature = "serde")]
impl<'de> serde::Deserialize<'de> for Gid {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        IpAddr::deserialize(d).map(Gid::from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ipv4_is_mapped_and_comes_back() {
        let g = Gid::from(Ipv4Addr::new(192, 168, 0, 1));
        assert_eq!(g.0, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 168, 0, 1]);
        assert_eq!(g.ip(), IpAddr::V4(Ipv4Addr::new(192, 168, 0, 1)));
        assert!(!g.is_zero());
    }
}
