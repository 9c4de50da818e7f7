//! Any object, with its key: what a store holds.

use masq_types::{QpnBlock, WireQpn};
use serde_json::Value;
use serde_path_to_error::Segment;

use crate::object::{
    Endpoint, Host, HostState, QosPolicy, SecurityGroup, SecurityGroupRule, StaticEndpoint, Vnic, Vpc,
};
use crate::{Key, Kind};

/// Any object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Object {
    /// A host.
    Host(Host),
    /// A network.
    Vpc(Vpc),
    /// A security group.
    SecurityGroup(SecurityGroup),
    /// A rule of one.
    SecurityGroupRule(SecurityGroupRule),
    /// A QoS policy.
    QosPolicy(QosPolicy),
    /// A virtual NIC.
    Vnic(Vnic),
    /// A machine that is no host of masq.
    StaticEndpoint(StaticEndpoint),
    /// An endpoint.
    Endpoint(Endpoint),
    /// How far a host has come.
    HostState(HostState),
}

/// Does the same with every kind of object.
macro_rules! each {
    ($object:expr, $o:ident => $body:expr) => {
        match $object {
            Object::Host($o) => $body,
            Object::Vpc($o) => $body,
            Object::SecurityGroup($o) => $body,
            Object::SecurityGroupRule($o) => $body,
            Object::QosPolicy($o) => $body,
            Object::Vnic($o) => $body,
            Object::StaticEndpoint($o) => $body,
            Object::Endpoint($o) => $body,
            Object::HostState($o) => $body,
        }
    };
}

/// The object as one of a certain kind.
macro_rules! views {
    ($($name:ident: $kind:ident),* $(,)?) => {
        impl Object {
            $(
                #[doc = concat!("The [`", stringify!($kind), "`] that it is, if it is one.")]
                pub fn $name(&self) -> Option<&$kind> {
                    match self {
                        Object::$kind(o) => Some(o),
                        _ => None,
                    }
                }
            )*
        }
    };
}

views! {
    as_host: Host,
    as_vpc: Vpc,
    as_security_group: SecurityGroup,
    as_qos_policy: QosPolicy,
    as_vnic: Vnic,
    as_static_endpoint: StaticEndpoint,
    as_endpoint: Endpoint,
    as_host_state: HostState,
}

/// What stands in for infallible code.
const INFALLIBLE: &str = "objects have string keys and no failing serialiser";

impl Object {
    /// Where the store keeps it.
    pub fn key(&self) -> Key {
        match self {
            Object::Host(o) => Key::new(Kind::Host, &o.name),
            Object::Vpc(o) => Key::new(Kind::Vpc, &o.name),
            Object::SecurityGroup(o) => Key::new(Kind::SecurityGroup, &o.name),
            Object::SecurityGroupRule(o) => Key::rule(&o.security_group, &o.name),
            Object::QosPolicy(o) => Key::new(Kind::QosPolicy, &o.name),
            Object::Vnic(o) => Key::new(Kind::Vnic, &o.name),
            Object::StaticEndpoint(o) => Key::new(Kind::StaticEndpoint, &o.name),
            Object::Endpoint(o) => Key::new(Kind::Endpoint, &o.vnic),
            Object::HostState(o) => Key::new(Kind::HostState, &o.host),
        }
    }

    /// Its form in the store: JSON.
    pub fn to_json(&self) -> Vec<u8> {
        each!(self, o => serde_json::to_vec(o)).expect(INFALLIBLE)
    }

    /// Its form in the API.
    pub fn to_value(&self) -> Value {
        each!(self, o => serde_json::to_value(o)).expect(INFALLIBLE)
    }

    /// The object of a kind that a JSON value describes.
    pub fn from_value(kind: Kind, value: Value) -> Result<Object, FieldError> {
        Ok(match kind {
            Kind::Host => Object::Host(parse(&value)?),
            Kind::Vpc => Object::Vpc(parse(&value)?),
            Kind::SecurityGroup => Object::SecurityGroup(parse(&value)?),
            Kind::SecurityGroupRule => Object::SecurityGroupRule(parse(&value)?),
            Kind::QosPolicy => Object::QosPolicy(parse(&value)?),
            Kind::Vnic => Object::Vnic(parse(&value)?),
            Kind::StaticEndpoint => Object::StaticEndpoint(parse(&value)?),
            Kind::Endpoint => Object::Endpoint(parse(&value)?),
            Kind::HostState => Object::HostState(parse(&value)?),
        })
    }

    /// The object that the store keeps under `key`.
    pub fn from_entry(key: &Key, json: &[u8]) -> Result<Object, ObjectError> {
        let syntax = |e: serde_json::Error| FieldError { field: String::new(), reason: e.to_string() };
        let object = serde_json::from_slice(json)
            .map_err(syntax)
            .and_then(|value| Object::from_value(key.kind(), value))
            .map_err(|source| ObjectError::Json { key: key.clone(), source })?;
        if object.key() != *key {
            return Err(ObjectError::Misplaced { key: key.clone(), actual: object.key() });
        }
        if let Object::Endpoint(e) = &object
            && let Some(b) = e.qpn_blocks.iter().find(|b| QpnBlock::new(b.first, b.len).is_none())
        {
            return Err(ObjectError::Block { key: key.clone(), first: b.first, len: b.len });
        }
        if let Object::Endpoint(e) = &object
            && e.gsi_qpn.get() > 1
            && !e.qpn_blocks.iter().any(|b| b.contains(e.gsi_qpn))
        {
            return Err(ObjectError::Gsi { key: key.clone(), qpn: e.gsi_qpn });
        }
        Ok(object)
    }
}

fn parse<'a, T: serde::Deserialize<'a>>(value: &'a Value) -> Result<T, FieldError> {
    // Serde would take a list of a struct's fields for it, in the order in which they are declared.
    if !value.is_object() {
        return Err(FieldError { field: String::new(), reason: "it is not a JSON object".into() });
    }
    serde_path_to_error::deserialize(value).map_err(|e| {
        let (path, mut reason) = (e.path().clone(), e.inner().to_string());
        let field = path.to_string();
        if let Some(text) = at(value, &path).and_then(Value::as_str)
            && ![format!("{text:?}"), format!("`{text}`")].iter().any(|quoted| reason.contains(quoted))
        {
            reason = format!("{text:?}: {reason}");
        }
        FieldError { field: if field == "." { String::new() } else { field }, reason }
    })
}

/// The part of a value that a path leads to.
fn at<'a>(value: &'a Value, path: &serde_path_to_error::Path) -> Option<&'a Value> {
    path.iter().try_fold(value, |value, segment| match segment {
        Segment::Seq { index } => value.get(index),
        Segment::Map { key } => value.get(key),
        Segment::Enum { .. } | Segment::Unknown => None,
    })
}

/// A JSON value is no object of its kind.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct FieldError {
    /// The field, as a path; empty when it is not about a single one.
    pub field: String,
    /// What is wrong.
    pub reason: String,
}

impl std::fmt::Display for FieldError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if !self.field.is_empty() {
            write!(f, "field {}: ", self.field)?;
        }
        f.write_str(&self.reason)
    }
}

/// An entry of the store that is no object.
#[derive(Debug, thiserror::Error)]
pub enum ObjectError {
    /// The value does not parse.
    #[error("{key}: {source}")]
    Json {
        /// Where.
        key: Key,
        /// Why.
        source: FieldError,
    },
    /// The value belongs under another key.
    #[error("{key} holds the object of {actual}")]
    Misplaced {
        /// Where it stands.
        key: Key,
        /// Where it belongs.
        actual: Key,
    },
    /// A block of QPNs is not aligned, too small or too large.
    #[error("{key}: field qpn_blocks: {len} QPNs from {first} are no block")]
    Block {
        /// Where.
        key: Key,
        /// First QPN.
        first: u32,
        /// How many.
        len: u32,
    },
    /// The GSI has a QPN of somebody else.
    #[error("{key}: field gsi_qpn: {qpn} lies outside of its blocks")]
    Gsi {
        /// Where.
        key: Key,
        /// The QPN.
        qpn: WireQpn,
    },
}
