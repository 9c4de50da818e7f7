//! How prefixes are read: with messages that tell what would be right.

use std::net::IpAddr;

use ipnet::IpNet;
use serde::de::Error;
use serde::{Deserialize, Deserializer};

/// A prefix; an address alone is one of full length.
struct Prefix(IpNet);

impl<'de> Deserialize<'de> for Prefix {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Prefix, D::Error> {
        let text = String::deserialize(d)?;
        let net = text.parse().or_else(|_| text.parse::<IpAddr>().map(IpNet::from));
        let wrong = |_| D::Error::custom(format_args!("{text:?} is not a prefix such as 192.168.0.0/24"));
        net.map(Prefix).map_err(wrong)
    }
}

pub(crate) fn one<'de, D: Deserializer<'de>>(d: D) -> Result<Option<IpNet>, D::Error> {
    Ok(Option::<Prefix>::deserialize(d)?.map(|p| p.0))
}

pub(crate) fn many<'de, D: Deserializer<'de>>(d: D) -> Result<Vec<IpNet>, D::Error> {
    Ok(Vec::<Prefix>::deserialize(d)?.into_iter().map(|p| p.0).collect())
}

/// An address with the length of its link's prefix.
pub(crate) fn address<'de, D: Deserializer<'de>>(d: D) -> Result<IpNet, D::Error> {
    let text = String::deserialize(d)?;
    let wrong = |_| {
        D::Error::custom(format_args!(
            "{text:?} is not an address with a prefix length, such as 10.78.0.1/24"
        ))
    };
    text.parse().map_err(wrong)
}
