//! Desired and realised state for the measurements: one network with servers, to which many rules apply, and clients.

use std::net::Ipv4Addr;

use masq_control::store::{Entry, Snapshot};
use masq_model::{
    Action, Direction, Endpoint, Object, QosPolicy, Quota, SecurityGroup, SecurityGroupRule, Transport, Vnic,
    Vpc,
};
use masq_types::{Features, MacAddr, QpnBlock, Vni, WireQpn};

/// The network.
pub const VPC: &str = "bench";
/// The group with the rules.
pub const SERVERS: &str = "servers";
/// A group whose members talk to whoever lets them.
pub const CLIENTS: &str = "clients";
/// A group that rules name, with few members.
pub const FEW: &str = "few";

/// The network's identifier.
pub fn vni() -> Vni {
    Vni::new(4711).expect("a VNI")
}

/// The address of vNIC `n`, below 65,536.
pub fn address(n: u32) -> Ipv4Addr {
    Ipv4Addr::from(0x0a01_0000 + n)
}

/// vNIC `n`, called `name`.
pub fn vnic(name: impl Into<String>, n: u32, host: Option<&str>, groups: &[&str]) -> Vnic {
    let [a, b, c, d] = n.to_be_bytes();
    Vnic {
        name: name.into(),
        vpc: VPC.into(),
        host: host.map(Into::into),
        mac: MacAddr([0x52, 0x54, a, b, c, d]),
        addresses: vec![address(n).into()],
        allowed_address_pairs: vec![],
        security_groups: groups.iter().map(|g| (*g).into()).collect(),
        qos_policy: None,
        quota: Quota::default(),
        paths: None,
        dedicated_alias: None,
    }
}

/// The record that the host of vNIC `n` would publish, with a block of QPNs of the host's `block`.
pub fn endpoint(v: &Vnic, block: u32) -> Endpoint {
    let host = v.host.clone().unwrap_or_default();
    let blocks = (WIRE_QPNS / QpnBlock::MIN_LEN) - 1;
    let first = (1 + block % blocks) * QpnBlock::MIN_LEN;
    Endpoint {
        vnic: v.name.clone(),
        vni: vni(),
        gids: v.gids(),
        host,
        addresses: vec![Ipv4Addr::new(10, 77, 0, 2).into()],
        qpn_blocks: QpnBlock::new(first, QpnBlock::MIN_LEN).into_iter().collect(),
        gsi_qpn: WireQpn::from_wire(first),
        features: Features::NONE,
        generation: 1,
    }
}

const WIRE_QPNS: u32 = 1 << 24;

/// The network and its groups; clients may send and receive.
pub fn network() -> Vec<Object> {
    let mut objects = vec![Object::Vpc(Vpc { name: VPC.into(), vni: vni() })];
    let group = |name: &str| Object::SecurityGroup(SecurityGroup { name: name.into(), vpc: VPC.into() });
    objects.extend([SERVERS, CLIENTS, FEW].map(group));
    for direction in [Direction::Ingress, Direction::Egress] {
        let name = format!("any-{direction:?}").to_lowercase();
        objects.push(Object::SecurityGroupRule(rule(CLIENTS, &name, direction, Action::Allow)));
    }
    objects
}

/// A rule about everybody.
pub fn rule(group: &str, name: &str, direction: Direction, action: Action) -> SecurityGroupRule {
    SecurityGroupRule {
        name: name.into(),
        security_group: group.into(),
        direction,
        remote_prefix: None,
        remote_group: None,
        transport: Transport::Any,
        priority: masq_model::DEFAULT_PRIORITY,
        action,
    }
}

/// `count` rules of the servers, 10 or more. The first two let them talk to the network's addresses. Of the others four fifths
/// name prefixes of five lengths, half of them in the network (these allow), half elsewhere (these deny); one fifth name a group.
pub fn rules(count: u32) -> Vec<SecurityGroupRule> {
    let make = |i: u32| {
        let direction = if i.is_multiple_of(2) { Direction::Ingress } else { Direction::Egress };
        let mut r = rule(SERVERS, &format!("r{i}"), direction, Action::Allow);
        r.priority = 100 + i;
        let prefix = |base: u32, len: u8| masq_model::IpNet::new(Ipv4Addr::from(base).into(), len).ok();
        // Fibonacci hashing: spread, and the same each time.
        let spread = i.wrapping_mul(0x9e37_79b9) >> 16;
        let len = [32, 28, 24, 20, 16][i as usize / 2 % 5];
        match i {
            0 | 1 => r.remote_prefix = prefix(0x0a00_0000, 8),
            _ if i % 10 > 7 => r.remote_group = Some(FEW.into()),
            _ if i % 4 < 2 => r.remote_prefix = prefix(0x0a01_0000 | spread, len),
            _ => {
                r.action = Action::Deny;
                r.remote_prefix = prefix(0xac10_0000 | spread, len);
            }
        }
        r.remote_prefix = r.remote_prefix.map(|net| net.trunc());
        r
    };
    (0..count).map(make).collect()
}

/// A QoS policy without a rate.
pub fn policy(name: &str, weight: u16, class: u8) -> QosPolicy {
    QosPolicy {
        name: name.into(),
        rate_bits_per_sec: None,
        burst_bits: None,
        weight,
        class,
        dscp: None,
        trust_dscp: false,
    }
}

/// What a store with these objects holds.
pub fn snapshot(objects: &[Object]) -> Snapshot {
    let entry = |o: &Object| Entry { key: o.key().to_string(), value: o.to_json(), revision: 1 };
    Snapshot { entries: objects.iter().map(entry).collect(), revision: 1 }
}
