use std::fmt;
use std::str::FromStr;

/// What every key of an object begins with.
pub const PREFIX: &str = "masq/v1/";

/// Kinds of objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// [`Host`](crate::Host).
    Host,
    /// [`Vpc`](crate::Vpc).
    Vpc,
    /// [`SecurityGroup`](crate::SecurityGroup).
    SecurityGroup,
    /// [`SecurityGroupRule`](crate::SecurityGroupRule).
    SecurityGroupRule,
    /// [`QosPolicy`](crate::QosPolicy).
    QosPolicy,
    /// [`Vnic`](crate::Vnic).
    Vnic,
    /// [`StaticEndpoint`](crate::StaticEndpoint).
    StaticEndpoint,
    /// [`Endpoint`](crate::Endpoint).
    Endpoint,
    /// [`HostState`](crate::HostState).
    HostState,
}

impl Kind {
    /// All kinds; an object refers to objects of earlier kinds only.
    pub const ALL: [Kind; 9] = [
        Kind::Host,
        Kind::Vpc,
        Kind::SecurityGroup,
        Kind::SecurityGroupRule,
        Kind::QosPolicy,
        Kind::Vnic,
        Kind::StaticEndpoint,
        Kind::Endpoint,
        Kind::HostState,
    ];

    /// The kinds that users write, in the same order.
    pub fn desired() -> impl Iterator<Item = Kind> {
        Kind::ALL.into_iter().filter(|k| k.is_desired())
    }

    /// The name in keys, files and messages.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Host => "host",
            Kind::Vpc => "vpc",
            Kind::SecurityGroup => "security_group",
            Kind::SecurityGroupRule => "security_group_rule",
            Kind::QosPolicy => "qos_policy",
            Kind::Vnic => "vnic",
            Kind::StaticEndpoint => "static_endpoint",
            Kind::Endpoint => "endpoint",
            Kind::HostState => "host_state",
        }
    }

    /// The kind with this name.
    pub fn from_name(name: &str) -> Option<Kind> {
        Kind::ALL.into_iter().find(|k| k.name() == name)
    }

    /// The prefix of the keys of this kind.
    pub fn prefix(self) -> String {
        format!("{PREFIX}{self}/")
    }

    /// Whether a user wrote it (a host writes the others).
    pub const fn is_desired(self) -> bool {
        !matches!(self, Kind::Endpoint | Kind::HostState)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Where the store keeps an object: `masq/v1/<kind>/<name>`, for a rule
/// `masq/v1/security_group_rule/<group>/<name>`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    kind: Kind,
    name: String,
}

impl Key {
    /// Key of the object of a kind; the name of a rule is `<group>/<name>`, that of an endpoint its vNIC's.
    pub fn new(kind: Kind, name: &str) -> Key {
        Key { kind, name: name.into() }
    }

    /// Key of a rule.
    pub fn rule(group: &str, name: &str) -> Key {
        Key { kind: Kind::SecurityGroupRule, name: format!("{group}/{name}") }
    }

    /// The kind of object.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// What comes after the kind.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Kind and name, as messages tell them.
    pub fn label(&self) -> String {
        format!("{} {:?}", self.kind, self.name)
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
        let kind = Kind::from_name(kind).ok_or_else(wrong)?;
        let parts = if kind == Kind::SecurityGroupRule { 2 } else { 1 };
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
        for kind in Kind::ALL {
            let key =
                if kind == Kind::SecurityGroupRule { Key::rule("g", "r") } else { Key::new(kind, "a-1") };
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
            "masq/v1/security_group_rule/a",
            "masq/v1/security_group_rule/a/",
            "masq/v1/security_group_rule//b",
            "masq/v2/vnic/a",
            "masq/v1/pod/a",
            "other/v1/vnic/a",
        ] {
            assert_eq!(bad.parse::<Key>(), Err(ParseKeyError(bad.into())), "{bad}");
        }
    }
}
