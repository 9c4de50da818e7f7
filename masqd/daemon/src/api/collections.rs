//! What resources there are.

use masq_model::Kind;

/// The objects of a kind.
#[derive(Clone, Copy, Debug)]
pub struct Collection {
    /// Its name in paths.
    pub name: &'static str,
    /// What is in it.
    pub kind: Kind,
}

/// All of them, but rules, which are found below their groups.
pub const COLLECTIONS: [Collection; 8] = [
    Collection { name: "hosts", kind: Kind::Host },
    Collection { name: "vpcs", kind: Kind::Vpc },
    Collection { name: "security-groups", kind: Kind::SecurityGroup },
    Collection { name: "qos-policies", kind: Kind::QosPolicy },
    Collection { name: "vnics", kind: Kind::Vnic },
    Collection { name: "static-endpoints", kind: Kind::StaticEndpoint },
    Collection { name: "endpoints", kind: Kind::Endpoint },
    Collection { name: "host-states", kind: Kind::HostState },
];
