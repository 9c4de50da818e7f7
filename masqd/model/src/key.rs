use std::fmt;
use std::str::FromStr;

/// What every key of the store begins with.
pub const PREFIX: &str = "masq/v1/";

/// Kinds of objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// [`Host`](crate::Host).
    Host,
    /// [`Vpc`](crate::Vpc).
    Vpc,
    /// [`Vnic`](crate::Vnic).
    Vnic,
    /// [`Rule`](crate::Rule).
    Rule,
    /// [`Endpoint`](crate::Endpoint).
    Endpoint,
}

impl Kind {
    /// All kinds; an object refers to objects of earlier kinds only.
    pub const ALL: [Kind; 5] = [Kind::Host, Kind::Vpc, Kind::Vnic, Kind::Rule, Kind::Endpoint];

    /// The name in keys, files and messages.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Host => "host",
            Kind::Vpc => "vpc",
            Kind::Vnic => "vnic",
            Kind::Rule => "rule",
            Kind::Endpoint => "endpoint",
        }
    }

    /// The prefix of the keys of this kind.
    pub fn prefix(self) -> String {
        format!("{PREFIX}{self}/")
    }

    /// Whether a user wrote it (a host writes the others).
    pub const fn is_desired(self) -> bool {
        !matches!(self, Kind::Endpoint)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Where the store keeps an object: `masq/v1/<kind>/<name>`, for a rule `masq/v1/rule/<vpc>/<name>`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    kind: Kind,
    name: String,
}

impl Key {
    /// Key of a host.
    pub fn host(name: &str) -> Key {
        Key { kind: Kind::Host, name: name.into() }
    }

    /// Key of a network.
    pub fn vpc(name: &str) -> Key {
        Key { kind: Kind::Vpc, name: name.into() }
    }

    /// Key of a vNIC.
    pub fn vnic(name: &str) -> Key {
        Key { kind: Kind::Vnic, name: name.into() }
    }

    /// Key of a rule.
    pub fn rule(vpc: &str, name: &str) -> Key {
        Key { kind: Kind::Rule, name: format!("{vpc}/{name}") }
    }

    /// Key of the endpoint of a vNIC.
    pub fn endpoint(vnic: &str) -> Key {
        Key { kind: Kind::Endpoint, name: vnic.into() }
    }

    /// The kind of object.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// What comes after the kind.
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}/{}", self.kind, self.name)
    }
}

/// The text is not the key of an object.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not the key of an object")]
pub struct ParseKeyError(String);

impl FromStr for Key {
    type Err = ParseKeyError;

    fn from_str(s: &str) -> Result<Key, ParseKeyError> {
        let wrong = || ParseKeyError(s.into());
        let rest = s.strip_prefix(PREFIX).ok_or_else(wrong)?;
        let (kind, name) = rest.split_once('/').ok_or_else(wrong)?;
        let kind = Kind::ALL.into_iter().find(|k| k.name() == kind).ok_or_else(wrong)?;
        let parts = if kind == Kind::Rule { 2 } else { 1 };
        if name.split('/').count() != parts || name.split('/').any(str::is_empty) {
            return Err(wrong());
        }
        Ok(Key { kind, name: name.into() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_come_back_from_their_text() {
        let keys = [
            Key::host("h1"),
            Key::vpc("blue"),
            Key::vnic("blue-1"),
            Key::rule("blue", "r"),
            Key::endpoint("blue-1"),
        ];
        for (key, kind) in keys.into_iter().zip(Kind::ALL) {
            assert_eq!(key.kind(), kind);
            assert!(key.to_string().starts_with(&kind.prefix()));
            assert_eq!(key.to_string().parse(), Ok(key));
        }
    }

    #[test]
    fn other_texts_are_no_keys() {
        for bad in [
            "",
            "masq/v1/",
            "masq/v1/vnic",
            "masq/v1/vnic/",
            "masq/v1/vnic/a/b",
            "masq/v1/rule/a",
            "masq/v1/rule/a/",
            "masq/v1/rule//b",
            "masq/v2/vnic/a",
            "masq/v1/pod/a",
            "other/v1/vnic/a",
        ] {
            assert_eq!(bad.parse::<Key>(), Err(ParseKeyError(bad.into())), "{bad}");
        }
    }
}
