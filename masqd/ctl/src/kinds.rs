//! The kinds of objects and their fields: one table, from which options, help, requests and tables are made.

use masq_model::{CLASSES, Kind, MAX_PATHS, MAX_WEIGHT};
use masq_types::Vni;

use crate::form::{Form, Part};

/// A kind of object.
#[derive(Debug)]
pub struct KindSpec {
    /// The kind.
    pub kind: Kind,
    /// Its name on the command line.
    pub word: &'static str,
    /// Its collection in the API.
    pub collection: &'static str,
    /// What it is.
    pub about: &'static str,
    /// The field that holds an object's name.
    pub name_field: &'static str,
    /// Its other fields.
    pub fields: &'static [Field],
}

/// A field of a kind.
#[derive(Debug)]
pub struct Field {
    /// Its option, also its title in tables.
    pub flag: &'static str,
    /// Where it stands in the object; parts are separated by dots.
    pub path: &'static str,
    /// Its form.
    pub form: Form,
    /// Whether it is a list of values of that form.
    pub many: bool,
    /// Whether lists of objects show it.
    pub column: bool,
    /// What it is.
    pub help: &'static str,
    /// What holds when it is absent; none: it must not be absent.
    pub default: Option<&'static str>,
}

impl Field {
    const fn required(flag: &'static str, path: &'static str, form: Form, help: &'static str) -> Field {
        Field { flag, path, form, help, many: false, column: false, default: None }
    }

    const fn optional(
        flag: &'static str,
        path: &'static str,
        form: Form,
        help: &'static str,
        default: &'static str,
    ) -> Field {
        Field { flag, path, form, help, many: false, column: false, default: Some(default) }
    }

    const fn many(mut self) -> Field {
        self.many = true;
        self
    }

    const fn column(mut self) -> Field {
        self.column = true;
        self
    }
}

const NAME: Form = Form::Text("NAME");
const CLASS: Form = Form::Number(0, CLASSES as u64 - 1);
const COUNT: Form = Form::Number(0, u64::MAX);

/// An address that masqd puts on a link.
pub const ALIAS: Form = Form::Parts(&[
    Part { key: "address", field: "address", form: Form::Interface, optional: false },
    Part { key: "link", field: "link", form: Form::Text("LINK"), optional: false },
    Part { key: "gateway", field: "gateway", form: Form::Address, optional: true },
]);

/// The rate of a class.
pub const CLASS_RATE: Form = Form::Parts(&[
    Part { key: "class", field: "class", form: CLASS, optional: false },
    Part { key: "rate", field: "rate_bits_per_sec", form: Form::Rate, optional: false },
    Part { key: "burst", field: "burst_bits", form: Form::Bits, optional: true },
]);

/// Default of bursts.
const BURST: &str = "20 ms worth and 524288";

/// All kinds.
pub static KINDS: &[KindSpec] = &[
    KindSpec {
        kind: Kind::Host,
        word: "host",
        collection: "hosts",
        about: "Machines that run masqd",
        name_field: "name",
        fields: &[
            Field::required(
                "underlay",
                "underlay",
                Form::Address,
                "Underlay address; the first one belongs to path 0, the next to path 1, and so on",
            )
            .many()
            .column(),
            Field::optional(
                "alias",
                "aliases",
                ALIAS,
                "Address that masqd itself puts on a link of the host, with the gateway of the link's network if it has one",
                "none",
            )
            .many(),
            Field::optional(
                "class-rate",
                "class_rates",
                CLASS_RATE,
                "What all vNICs of a class, 0 to 7, may send together, in bit/s and bits of IP packets",
                "unlimited",
            )
            .many(),
        ],
    },
    KindSpec {
        kind: Kind::Vpc,
        word: "vpc",
        collection: "vpcs",
        about: "Tenants' networks",
        name_field: "name",
        fields: &[Field::required(
            "vni",
            "vni",
            Form::Number(1, Vni::MAX as u64),
            "Virtual network identifier, unique among networks",
        )
        .column()],
    },
    KindSpec {
        kind: Kind::SecurityGroup,
        word: "security-group",
        collection: "security-groups",
        about: "vNICs of one network to which the same rules apply",
        name_field: "name",
        fields: &[Field::required("vpc", "vpc", NAME, "Its network").column()],
    },
    KindSpec {
        kind: Kind::SecurityGroupRule,
        word: "rule",
        collection: "security-group-rules",
        about: "Rules of security groups: who may connect to whom",
        name_field: "name",
        fields: &[
            Field::required(
                "direction",
                "direction",
                Form::Switch(&[
                    ("ingress", "The rule is about what members receive"),
                    ("egress", "The rule is about what members send"),
                ]),
                "Whether it is about what members receive or send",
            )
            .column(),
            Field::optional(
                "remote-prefix",
                "remote_prefix",
                Form::Prefix,
                "Only traffic from or to these addresses; not together with a remote group",
                "all addresses",
            )
            .column(),
            Field::optional(
                "remote-group",
                "remote_group",
                NAME,
                "Only traffic from or to members of this security group",
                "all vNICs",
            )
            .column(),
            Field::optional(
                "transport",
                "transport",
                Form::Word(&["any", "rc", "uc", "ud"]),
                "Only traffic of this transport service",
                "any",
            )
            .column(),
            Field::optional(
                "priority",
                "priority",
                Form::Number(0, u32::MAX as u64),
                "The rule with the smallest number that matches decides; among equals a denying one does",
                "1000",
            )
            .column(),
            Field::required(
                "action",
                "action",
                Form::Switch(&[
                    ("allow", "What matches may pass, if the other end allows it as well"),
                    ("deny", "What matches may not pass"),
                ]),
                "Whether what matches may pass",
            )
            .column(),
        ],
    },
    KindSpec {
        kind: Kind::QosPolicy,
        word: "qos-policy",
        collection: "qos-policies",
        about: "How much vNICs may send, and who comes first",
        name_field: "name",
        fields: &[
            Field::optional(
                "rate",
                "rate_bits_per_sec",
                Form::Rate,
                "What each vNIC may send, in bit/s of IP packets",
                "unlimited",
            )
            .column(),
            Field::optional(
                "burst",
                "burst_bits",
                Form::Bits,
                "How much may be sent at once after a pause, in bits",
                BURST,
            )
            .column(),
            Field::optional(
                "weight",
                "weight",
                Form::Number(1, MAX_WEIGHT as u64),
                "Share among vNICs of the same class that all have something to send",
                "1",
            )
            .column(),
            Field::optional("class", "class", CLASS, "Class: a higher one is served first", "0").column(),
            Field::optional("dscp", "dscp", Form::Number(0, 63), "DSCP of what is sent", "0, or see trust-dscp").column(),
            Field::optional(
                "trust-dscp",
                "trust_dscp",
                Form::YesNo,
                "Without --dscp, whether what is sent has the DSCP that the guest asks for",
                "no",
            ),
        ],
    },
    KindSpec {
        kind: Kind::Vnic,
        word: "vnic",
        collection: "vnics",
        about: "Tenants' virtual NICs, each with its RDMA device",
        name_field: "name",
        fields: &[
            Field::required("vpc", "vpc", NAME, "Its network").column(),
            Field::optional("host", "host", NAME, "The host on which its VM runs", "it runs nowhere").column(),
            Field::required("mac", "mac", Form::Mac, "MAC address, unique in its network").column(),
            Field::required(
                "address",
                "addresses",
                Form::Address,
                "Virtual address, unique in its network; the link-local one of the MAC comes on top",
            )
            .many()
            .column(),
            Field::optional(
                "allowed-address-pair",
                "allowed_address_pairs",
                Form::Prefix,
                "Further addresses that its guest may take on",
                "none",
            )
            .many(),
            Field::optional(
                "security-group",
                "security_groups",
                NAME,
                "Security group",
                "none: it can connect to nobody",
            )
            .many()
            .column(),
            Field::optional("qos", "qos_policy", NAME, "QoS policy", "none: unlimited").column(),
            Field::optional("quota-qps", "quota.qps", COUNT, "Most queue pairs", "16384"),
            Field::optional("quota-cqs", "quota.cqs", COUNT, "Most completion queues", "32768"),
            Field::optional("quota-mrs", "quota.mrs", COUNT, "Most memory regions", "65536"),
            Field::optional("quota-srqs", "quota.srqs", COUNT, "Most shared receive queues", "16384"),
            Field::optional("quota-mws", "quota.mws", COUNT, "Most memory windows", "65536"),
            Field::optional("quota-xrcds", "quota.xrcds", COUNT, "Most XRC domains", "1024"),
            Field::optional(
                "quota-pinned-bytes",
                "quota.pinned_bytes",
                Form::Bytes,
                "Most guest memory in regions and rings, in bytes",
                "1 TiB",
            ),
            Field::optional(
                "quota-commands",
                "quota.commands_per_sec",
                Form::Number(1, 1_000_000),
                "Most control commands per second",
                "unlimited",
            ),
            Field::optional(
                "paths",
                "paths",
                Form::Number(1, MAX_PATHS as u64),
                "How many underlay paths it uses; its host has at least as many",
                "1",
            ),
            Field::optional(
                "dedicated-alias",
                "dedicated_alias",
                Form::Address,
                "Alias of its host that no other vNIC uses; takes the place of the host's first underlay address",
                "none",
            ),
        ],
    },
    KindSpec {
        kind: Kind::StaticEndpoint,
        word: "static-endpoint",
        collection: "static-endpoints",
        about: "Machines of the underlay that run no masqd and belong to a network",
        name_field: "name",
        fields: &[
            Field::required("vpc", "vpc", NAME, "Its network").column(),
            Field::required(
                "address",
                "addresses",
                Form::Address,
                "Virtual address that leads to it, unique in its network",
            )
            .many()
            .column(),
            Field::required(
                "underlay",
                "underlay_address",
                Form::Address,
                "Where it is on the underlay; no host and no other static endpoint has this address",
            )
            .column(),
            Field::optional(
                "security-group",
                "security_groups",
                NAME,
                "Security group, enforced where its peers are",
                "none: nobody can connect to it",
            )
            .many()
            .column(),
        ],
    },
    KindSpec {
        kind: Kind::Endpoint,
        word: "endpoint",
        collection: "endpoints",
        about: "vNICs that a host has realised: where peers find them",
        name_field: "vnic",
        fields: &[
            Field::required("vni", "vni", Form::Number(1, Vni::MAX as u64), "Its network").column(),
            Field::required("host", "host", NAME, "Its host").column(),
            Field::required("underlay", "addresses", Form::Address, "Its underlay addresses").many().column(),
            Field::required("qpns", "qpn_blocks", Form::Block, "Its blocks of wire QPNs").many().column(),
            Field::required("gsi-qpn", "gsi_qpn", COUNT, "Wire QPN of its GSI"),
            Field::optional("features", "features", COUNT, "What its RNIC can do beyond standard RoCEv2, as bits", "0"),
            Field::required("gid", "gids", Form::Address, "Its virtual addresses").many().column(),
            Field::required("block-generation", "generation", COUNT, "Grows when blocks change hands"),
        ],
    },
    KindSpec {
        kind: Kind::HostState,
        word: "host-state",
        collection: "host-states",
        about: "How far the hosts that are up have come",
        name_field: "host",
        fields: &[
            Field::required("realised-revision", "realised_revision", COUNT, "In force up to this revision")
                .column(),
            Field::required("problem", "problems", Form::Text("PROBLEM"), "What is in the way").many().column(),
        ],
    },
];

/// The kind with this name on the command line.
pub fn by_word(word: &str) -> Option<&'static KindSpec> {
    KINDS.iter().find(|k| k.word == word)
}

/// The kind's name on the command line, for its name in the API; that one itself when it is not known.
pub fn word_of(api_name: &str) -> &str {
    KINDS.iter().find(|k| k.kind.name() == api_name).map_or(api_name, |k| k.word)
}

impl KindSpec {
    /// Whether an object is named by group and name.
    pub fn is_rule(&self) -> bool {
        self.kind == Kind::SecurityGroupRule
    }

    /// The field with this option.
    pub fn field(&self, flag: &str) -> Option<&'static Field> {
        self.fields.iter().find(|f| f.flag == flag)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use masq_model::{
        Alias, ClassRate, DEFAULT_PRIORITY, Direction, Endpoint, Host, HostState, Object, QosPolicy, Quota,
        SecurityGroup, SecurityGroupRule, StaticEndpoint, Transport, Vnic, Vpc,
    };
    use masq_types::{Features, Gid, MacAddr, QpnBlock, WireQpn};
    use serde_json::Value;

    use super::*;

    /// An object of each kind without anything absent.
    fn full() -> Vec<Object> {
        let text = String::from;
        let ip = "10.0.0.1".parse().unwrap();
        let net = "10.0.0.1/24".parse().unwrap();
        let vni = Vni::new(1).unwrap();
        vec![
            Object::Host(Host {
                name: text("h"),
                underlay: vec![ip],
                aliases: vec![Alias { address: net, link: text("eth1"), gateway: Some(ip) }],
                class_rates: vec![ClassRate {
                    class: 1,
                    rate_bits_per_sec: 1_000_000,
                    burst_bits: Some(72_000),
                }],
            }),
            Object::Vpc(Vpc { name: text("v"), vni }),
            Object::SecurityGroup(SecurityGroup { name: text("g"), vpc: text("v") }),
            Object::SecurityGroupRule(SecurityGroupRule {
                name: text("r"),
                security_group: text("g"),
                direction: Direction::Ingress,
                remote_prefix: Some(net),
                remote_group: Some(text("g")),
                transport: Transport::Rc,
                priority: DEFAULT_PRIORITY,
                action: masq_model::Action::Allow,
            }),
            Object::QosPolicy(QosPolicy {
                name: text("q"),
                rate_bits_per_sec: Some(1_000_000),
                burst_bits: Some(72_000),
                weight: 1,
                class: 0,
                dscp: Some(8),
                trust_dscp: true,
            }),
            Object::Vnic(Vnic {
                name: text("n"),
                vpc: text("v"),
                host: Some(text("h")),
                mac: MacAddr([2, 0, 0, 0, 0, 1]),
                addresses: vec![ip],
                allowed_address_pairs: vec![net],
                security_groups: vec![text("g")],
                qos_policy: Some(text("q")),
                quota: Quota {
                    qps: Some(1),
                    cqs: Some(1),
                    mrs: Some(1),
                    srqs: Some(1),
                    mws: Some(1),
                    xrcds: Some(1),
                    pinned_bytes: Some(4096),
                    commands_per_sec: Some(1),
                },
                paths: Some(1),
                dedicated_alias: Some(ip),
            }),
            Object::StaticEndpoint(StaticEndpoint {
                name: text("s"),
                vpc: text("v"),
                addresses: vec![ip],
                underlay_address: ip,
                security_groups: vec![text("g")],
            }),
            Object::Endpoint(Endpoint {
                vnic: text("n"),
                vni,
                gids: vec![Gid::from(ip)],
                host: text("h"),
                addresses: vec![ip],
                qpn_blocks: vec![QpnBlock { first: 256, len: 256 }],
                gsi_qpn: WireQpn::from_wire(256),
                features: Features::SELECTIVE,
                generation: 1,
            }),
            Object::HostState(HostState { host: text("h"), realised_revision: 1, problems: vec![text("p")] }),
        ]
    }

    fn leaves(value: &Value, path: String, found: &mut BTreeSet<String>) {
        match value {
            Value::Object(fields) => {
                for (name, value) in fields {
                    let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                    leaves(value, path, found);
                }
            }
            _ => {
                found.insert(path);
            }
        }
    }

    #[test]
    fn the_table_has_every_field_of_the_model_and_no_other() {
        let mut kinds = BTreeSet::new();
        for object in full() {
            let kind = object.key().kind();
            kinds.insert(kind);
            let spec = KINDS.iter().find(|k| k.kind == kind).unwrap();
            let mut actual = BTreeSet::new();
            leaves(&object.to_value(), String::new(), &mut actual);
            let mut table: BTreeSet<String> = spec.fields.iter().map(|f| f.path.into()).collect();
            table.insert(spec.name_field.into());
            if spec.is_rule() {
                table.insert("security_group".into());
            }
            assert_eq!(table, actual, "{kind}");
            assert_eq!(word_of(kind.name()), spec.word);
            assert!(std::ptr::eq(by_word(spec.word).unwrap(), spec));
        }
        assert_eq!(kinds.len(), KINDS.len());
        assert_eq!(word_of("pod"), "pod");
    }

    #[test]
    fn what_the_table_calls_optional_is_optional() {
        for object in full().into_iter().filter(|o| o.key().kind().is_desired()) {
            let spec = KINDS.iter().find(|k| k.kind == object.key().kind()).unwrap();
            for field in spec.fields {
                let mut value = object.to_value();
                let pointer = format!("/{}", field.path.replace('.', "/"));
                let (parent, name) = pointer.rsplit_once('/').unwrap();
                value.pointer_mut(parent).unwrap().as_object_mut().unwrap().remove(name).unwrap();
                let parsed = Object::from_value(spec.kind, value);
                assert_eq!(parsed.is_ok(), field.default.is_some(), "{} {}", spec.word, field.flag);
            }
        }
    }

    #[test]
    fn the_default_priority_is_the_models() {
        let rule = by_word("rule").unwrap();
        assert_eq!(rule.field("priority").unwrap().default, Some(DEFAULT_PRIORITY.to_string().as_str()));
    }
}
