//! The declarative file: what is accepted, and that everything wrong with it is reported.

use masq_model::{
    Action, DesiredState, Direction, Key, Kind, Object, ObjectError, Problems, Quota, SecurityGroupRule,
    Transport,
};

const GOOD: &str = r#"
[[host]]
name = "h1"
underlay = ["10.77.0.1", "10.78.0.1"]
[[host.aliases]]
address = "10.79.0.1/24"
link = "eth1"
gateway = "10.79.0.254"
[[host.class_rates]]
class = 7
rate_bits_per_sec = 8000000
burst_bits = 131072
[[host]]
name = "h2"
underlay = ["fd00::2"]

[[vpc]]
name = "blue"
vni = 100
[[vpc]]
name = "red"
vni = 200

[[security_group]]
name = "web"
vpc = "blue"
[[security_group]]
name = "db"
vpc = "blue"
[[security_group]]
name = "apart"
vpc = "red"

[[security_group_rule]]
name = "from-web"
security_group = "db"
direction = "ingress"
remote_group = "web"
action = "allow"
[[security_group_rule]]
name = "not-there"
security_group = "web"
direction = "egress"
remote_prefix = "192.168.7.0/24"
transport = "ud"
priority = 5
action = "deny"

[[qos_policy]]
name = "gold"
rate_bits_per_sec = 1000000000
burst_bits = 9000000
weight = 3
class = 2
dscp = 46

[[vnic]]
name = "blue-1"
vpc = "blue"
host = "h1"
mac = "52:54:00:64:00:01"
addresses = ["192.168.0.1", "fd01::1"]
allowed_address_pairs = ["192.168.0.100/32"]
security_groups = ["web", "db"]
qos_policy = "gold"
quota = { qps = 8, commands_per_sec = 1000 }
paths = 2
dedicated_alias = "10.79.0.1"
[[vnic]]
name = "red-1"
vpc = "red"
mac = "52:54:00:64:00:01"
addresses = ["192.168.0.1"]

[[static_endpoint]]
name = "metal"
vpc = "blue"
addresses = ["192.168.1.1", "fd01::2"]
underlay_address = "10.77.0.9"
security_groups = ["db"]
"#;

fn good() -> DesiredState {
    DesiredState::from_toml(GOOD).unwrap()
}

fn problems(text: &str) -> Vec<String> {
    match DesiredState::from_toml(text) {
        Err(Problems::Content(problems)) => problems.iter().map(ToString::to_string).collect(),
        other => panic!("{other:?} of {text}"),
    }
}

/// The problems of the good file with one text replaced.
fn spoilt(find: &str, replace: &str) -> Vec<String> {
    assert!(GOOD.contains(find), "{find}");
    problems(&GOOD.replacen(find, replace, 1))
}

fn rule<'a>(state: &'a DesiredState, name: &str) -> &'a SecurityGroupRule {
    match state.get(Kind::SecurityGroupRule, name) {
        Some(Object::SecurityGroupRule(rule)) => rule,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_file_is_read_as_written() {
    let d = good();
    let counts = Kind::desired().map(|kind| d.of_kind(kind).count());
    assert_eq!(counts.collect::<Vec<_>>(), [2, 2, 3, 2, 1, 2, 1]);
    assert_eq!(d.vpc("blue").unwrap().vni.get(), 100);
    let (one, other) = (d.vnic("blue-1").unwrap(), d.vnic("red-1").unwrap());
    assert_eq!((one.path_count(), other.path_count()), (2, 1));
    assert_eq!((one.is_on("h1"), one.is_on("h2"), other.is_on("h1")), (true, false, false));
    let gids: Vec<String> = one.gids().iter().map(ToString::to_string).collect();
    assert_eq!(gids, ["fe80::5054:ff:fe64:1", "192.168.0.1", "fd01::1"]);
    let may = |ip: &str| one.may_use(ip.parse::<std::net::IpAddr>().unwrap().into());
    assert!(may("fe80::5054:ff:fe64:1") && may("192.168.0.1") && may("192.168.0.100"));
    assert!(!may("192.168.0.2") && !may("fe80::1") && !may("::"));
    assert_eq!(one.quota, Quota { qps: Some(8), commands_per_sec: Some(1000), ..Quota::default() });
    assert!(other.quota.is_default());
    let host = d.host("h1").unwrap();
    assert_eq!((host.aliases[0].address.to_string(), host.class_rates[0].class), ("10.79.0.1/24".into(), 7));
    assert_eq!(d.static_endpoint("metal").unwrap().underlay_address.to_string(), "10.77.0.9");
    assert!(d.static_endpoint("blue-1").is_none() && d.vnic("metal").is_none());
    assert!(d.host("h3").is_none() && d.vpc("h1").is_none() && d.security_group("blue").is_none());
}

#[test]
fn what_is_absent_has_its_default() {
    let text = "[[qos_policy]]\nname = \"plain\"";
    let d = DesiredState::from_toml(text).unwrap();
    let plain = d.qos_policy("plain").unwrap();
    assert_eq!((plain.rate_bits_per_sec, plain.burst_bits, plain.dscp), (None, None, None));
    assert_eq!((plain.weight, plain.class), (1, 0));
    let d = good();
    let first = rule(&d, "db/from-web");
    assert_eq!(
        (first.priority, first.transport, first.direction),
        (1000, Transport::Any, Direction::Ingress)
    );
    let second = rule(&d, "web/not-there");
    assert_eq!((second.priority, second.transport, second.action), (5, Transport::Ud, Action::Deny));
}

#[test]
fn the_same_file_in_json_means_the_same() {
    let json = serde_json::to_string(&toml::from_str::<toml::Value>(GOOD).unwrap()).unwrap();
    assert_eq!(DesiredState::from_json(&json).unwrap(), good());
    assert_eq!(DesiredState::from_toml("").unwrap(), DesiredState::default());
    assert_eq!(DesiredState::from_json("{}").unwrap(), DesiredState::default());
}

#[test]
fn a_file_of_another_form_tells_where() {
    for (text, found) in [
        (GOOD.replace("[[qos_policy]]", "[[qos_policies]]"), "unknown field `qos_policies`, expected one of"),
        (GOOD.replace("[[vpc]]", "[[endpoint]]"), "unknown field `endpoint`, expected one of `host`, `vpc`"),
        ("[host]\nname = \"h1\"".into(), "invalid type: map, expected a sequence"),
        ("[[host]".into(), "TOML parse error at line 1"),
    ] {
        let Err(Problems::Syntax(message)) = DesiredState::from_toml(&text) else { panic!("{found}") };
        assert!(message.contains(found) && message.contains("line"), "{message}");
    }
    for (text, found) in [
        ("{\"host\": 1}", "invalid type: integer `1`, expected a sequence at line 1"),
        ("{\"host\": [], \"host\": []}", "duplicate field `host` at line 1"),
        ("[", "EOF while parsing"),
    ] {
        let Err(Problems::Syntax(message)) = DesiredState::from_json(text) else { panic!("{text}") };
        assert!(message.contains(found), "{message}");
    }
}

#[test]
fn what_is_wrong_with_a_long_line_is_told_in_short() {
    let long = "ü".repeat(1 << 20);
    for text in [
        format!("x = \"{long}"),
        format!("\"{long}\" = 1"),
        format!("\"{}\" = 1", "\\n".repeat(1 << 16)),
        format!("[[vpc]]\nname = {long}"),
    ] {
        let Err(Problems::Syntax(message)) = DesiredState::from_toml(&text) else { panic!() };
        assert!(message.contains("error at line") && message.contains("column"), "{message}");
        assert!(
            message.lines().count() < 10 && message.lines().all(|l| l.chars().count() <= 161),
            "{message}"
        );
    }
    let text = format!("{{\"{long}\": 1}}");
    let Err(Problems::Syntax(message)) = DesiredState::from_json(&text) else { panic!() };
    assert!(message.starts_with("unknown field `ü") && message.contains("… at line 1 column"), "{message}");
    assert!(message.chars().count() < 200, "{message}");
}

/// Replaces a text of the good file and says what must be the first problem.
const MISTAKES: &[(&str, &str, &str)] = &[
    // What cannot be read.
    (
        "underlay = [\"fd00::2\"]",
        "underlay = [\"fd00::2\"]\nrack = 7",
        "host \"h2\": field rack: unknown field `rack`, expected one of `name`, `underlay`, `aliases`, `class_rates`",
    ),
    ("vni = 200", "", "vpc \"red\": missing field `vni`"),
    ("vni = 200", "vni = \"200\"", "vpc \"red\": field vni: invalid type: string \"200\", expected u32"),
    ("name = \"h2\"\n", "", "host number 2: missing field `name`"),
    ("[\"fd00::2\"]", "[\"h2\"]", "host \"h2\": field underlay[0]: \"h2\": invalid IP address syntax"),
    ("vni = 200", "vni = 0", "vpc \"red\": field vni: a VNI lies between 1 and 16777215"),
    (
        "mac = \"52:54:00:64:00:01\"",
        "mac = \"x\"",
        "vnic \"blue-1\": field mac: \"x\": a MAC address is six hexadecimal octets separated by colons",
    ),
    (
        "\"192.168.7.0/24\"",
        "\"192.168.7.0/33\"",
        "security_group_rule \"web/not-there\": field remote_prefix: \"192.168.7.0/33\" is not a prefix such as 192.168.0.0/24",
    ),
    (
        "\"192.168.0.100/32\"",
        "\"192.168.0.x\"",
        "vnic \"blue-1\": field allowed_address_pairs[0]: \"192.168.0.x\" is not a prefix such as 192.168.0.0/24",
    ),
    (
        "\"10.79.0.1/24\"",
        "\"10.79.0.1\"",
        "host \"h1\": field aliases[0].address: \"10.79.0.1\" is not an address with a prefix length, such as 10.78.0.1/24",
    ),
    (
        "\"deny\"",
        "\"drop\"",
        "security_group_rule \"web/not-there\": field action: unknown variant `drop`, expected `allow` or `deny`",
    ),
    (
        "priority = 5",
        "priority = -5",
        "security_group_rule \"web/not-there\": field priority: invalid value: integer `-5`, expected u32",
    ),
    (
        "qps = 8",
        "qpz = 8",
        "vnic \"blue-1\": field quota.qpz: unknown field `qpz`, expected one of `qps`, `cqs`, `mrs`, `srqs`, `mws`, `xrcds`, `pinned_bytes`, `commands_per_sec`",
    ),
    // Hosts.
    ("name = \"h2\"", "name = \"h1\"", "host \"h1\": field name: another host has this name"),
    ("[\"fd00::2\"]", "[]", "host \"h2\": field underlay: at least one address is needed"),
    ("fd00::2", "10.77.0.1", "host \"h1\": field underlay: 10.77.0.1 is in use by host \"h2\" already"),
    ("fd00::2", "10.79.0.1", "host \"h1\": field aliases: 10.79.0.1 is in use by host \"h2\" already"),
    ("fd00::2", "224.0.0.1", "host \"h2\": field underlay: 224.0.0.1 is not the address of a single station"),
    ("fd00::2", "0.0.0.0", "host \"h2\": field underlay: 0.0.0.0 is not the address of a single station"),
    (
        "fd00::2",
        "::ffff:1.2.3.4",
        "host \"h2\": field underlay: ::ffff:1.2.3.4 is an IPv4 address; write it as 1.2.3.4",
    ),
    ("\"10.78.0.1\"", "\"10.77.0.1\"", "host \"h1\": field underlay: 10.77.0.1 stands there twice"),
    (
        "10.79.0.1/24",
        "::ffff:10.79.0.1/120",
        "host \"h1\": field aliases[0].address: ::ffff:10.79.0.1 is an IPv4 address; write it as 10.79.0.1",
    ),
    ("\"eth1\"", "\"eth/1\"", "host \"h1\": field aliases[0].link: \"eth/1\" is not the name of a link"),
    (
        "\"eth1\"",
        "\"sixteen-letters-\"",
        "host \"h1\": field aliases[0].link: \"sixteen-letters-\" is not the name of a link",
    ),
    ("\"eth1\"", "\"\"", "host \"h1\": field aliases[0].link: \"\" is not the name of a link"),
    (
        "gateway = \"10.79.0.254\"",
        "gateway = \"fd00::1\"",
        "host \"h1\": field aliases[0].gateway: fd00::1 and 10.79.0.1 are of different families",
    ),
    (
        "gateway = \"10.79.0.254\"",
        "gateway = \"255.255.255.255\"",
        "host \"h1\": field aliases[0].gateway: 255.255.255.255 is not the address of a single station",
    ),
    (
        "gateway = \"10.79.0.254\"",
        "[[host.aliases]]\naddress = \"10.79.0.1/16\"\nlink = \"eth2\"",
        "host \"h1\": field aliases: 10.79.0.1 stands there twice",
    ),
    ("class = 7", "class = 8", "host \"h1\": field class_rates[0].class: 8 lies outside 0 to 7"),
    (
        "= 8000000",
        "= 99999",
        "host \"h1\": field class_rates[0].rate_bits_per_sec: 99999 lies outside 100000 to 1000000000000",
    ),
    (
        "burst_bits = 131072",
        "burst_bits = 131071",
        "host \"h1\": field class_rates[0].burst_bits: 131071 lies outside 131072 to 8589934592",
    ),
    (
        "burst_bits = 131072",
        "[[host.class_rates]]\nclass = 7\nrate_bits_per_sec = 100000",
        "host \"h1\": field class_rates: 7 stands there twice",
    ),
    // Networks.
    ("name = \"red\"", "name = \"blue\"", "vpc \"blue\": field name: another vpc has this name"),
    ("vni = 200", "vni = 100", "vpc \"blue\": field vni: 100 is in use by vpc \"red\" already"),
    // Security groups and rules.
    (
        "name = \"web\"\nvpc = \"blue\"",
        "name = \"web\"\nvpc = \"green\"",
        "security_group \"web\": field vpc: there is no vpc \"green\"",
    ),
    (
        "security_group = \"db\"",
        "security_group = \"nobody\"",
        "security_group_rule \"nobody/from-web\": field security_group: there is no security_group \"nobody\"",
    ),
    (
        "remote_group = \"web\"",
        "remote_group = \"nobody\"",
        "security_group_rule \"db/from-web\": field remote_group: there is no security_group \"nobody\"",
    ),
    (
        "remote_group = \"web\"",
        "remote_group = \"apart\"",
        "security_group_rule \"db/from-web\": field remote_group: security_group \"apart\" belongs to vpc \"red\", not to \"blue\"",
    ),
    (
        "remote_group = \"web\"",
        "remote_group = \"web\"\nremote_prefix = \"10.0.0.0/8\"",
        "security_group_rule \"db/from-web\": field remote_group: a rule is about a prefix or a group, not about both",
    ),
    (
        "\"192.168.7.0/24\"",
        "\"192.168.7.1/24\"",
        "security_group_rule \"web/not-there\": field remote_prefix: 192.168.7.1/24 has bits set beyond its length; write 192.168.7.0/24",
    ),
    (
        "\"192.168.7.0/24\"",
        "\"::ffff:0:0/96\"",
        "security_group_rule \"web/not-there\": field remote_prefix: ::ffff:0.0.0.0/96 is a prefix of mapped IPv4 addresses; write it in IPv4",
    ),
    // QoS policies.
    (
        "= 1000000000\n",
        "= 99999\n",
        "qos_policy \"gold\": field rate_bits_per_sec: 99999 lies outside 100000 to 1000000000000",
    ),
    (
        "= 1000000000\n",
        "= 1000000000001\n",
        "qos_policy \"gold\": field rate_bits_per_sec: 1000000000001 lies outside 100000 to 1000000000000",
    ),
    (
        "= 9000000\n",
        "= 1000000000001\n",
        "qos_policy \"gold\": field burst_bits: 1000000000001 lies outside 131072 to 8589934592",
    ),
    (
        "rate_bits_per_sec = 1000000000\n",
        "",
        "qos_policy \"gold\": field burst_bits: without a rate there is no burst",
    ),
    ("weight = 3", "weight = 0", "qos_policy \"gold\": field weight: 0 lies outside 1 to 256"),
    ("weight = 3", "weight = 257", "qos_policy \"gold\": field weight: 257 lies outside 1 to 256"),
    ("class = 2", "class = 8", "qos_policy \"gold\": field class: 8 lies outside 0 to 7"),
    ("dscp = 46", "dscp = 64", "qos_policy \"gold\": field dscp: 64 lies outside 0 to 63"),
    // vNICs.
    ("name = \"red-1\"", "name = \"blue-1\"", "vnic \"blue-1\": field name: another vnic has this name"),
    ("name = \"red-1\"", "name = \"masqd\"", "vnic \"masqd\": field name: masqd's own socket has this name"),
    ("vpc = \"red\"\nmac", "vpc = \"green\"\nmac", "vnic \"red-1\": field vpc: there is no vpc \"green\""),
    ("host = \"h1\"\nmac", "host = \"h9\"\nmac", "vnic \"blue-1\": field host: there is no host \"h9\""),
    (
        "mac = \"52:54:00:64:00:01\"",
        "mac = \"53:54:00:64:00:01\"",
        "vnic \"blue-1\": field mac: 53:54:00:64:00:01 is a multicast or zero address, which no NIC can have",
    ),
    ("\"fd01::1\"]", "\"192.168.0.1\"]", "vnic \"blue-1\": field addresses: 192.168.0.1 stands there twice"),
    (
        "\"fd01::1\"]",
        "\"fe80::5054:ff:fe64:1\"]",
        "vnic \"blue-1\": field addresses: fe80::5054:ff:fe64:1 is the MAC's link-local address, which it has anyway",
    ),
    ("\"fd01::1\"]", "\"127.0.0.1\"]", "vnic \"blue-1\": field addresses: 127.0.0.1 is a loopback address"),
    (
        "\"fd01::1\"]",
        "\"255.255.255.255\"]",
        "vnic \"blue-1\": field addresses: 255.255.255.255 is not the address of a single station",
    ),
    (
        "\"fd01::1\"]",
        "\"::ffff:10.0.0.1\"]",
        "vnic \"blue-1\": field addresses: ::ffff:10.0.0.1 is an IPv4 address; write it as 10.0.0.1",
    ),
    (
        "addresses = [\"192.168.0.1\"]",
        "addresses = []",
        "vnic \"red-1\": field addresses: at least one address is needed",
    ),
    (
        "192.168.0.100/32",
        "192.168.0.101/31",
        "vnic \"blue-1\": field allowed_address_pairs: 192.168.0.101/31 has bits set beyond its length; write 192.168.0.100/31",
    ),
    (
        "[\"web\", \"db\"]",
        "[\"web\", \"nobody\"]",
        "vnic \"blue-1\": field security_groups: there is no security_group \"nobody\"",
    ),
    (
        "[\"web\", \"db\"]",
        "[\"web\", \"apart\"]",
        "vnic \"blue-1\": field security_groups: security_group \"apart\" belongs to vpc \"red\", not to \"blue\"",
    ),
    (
        "[\"web\", \"db\"]",
        "[\"web\", \"web\"]",
        "vnic \"blue-1\": field security_groups: web stands there twice",
    ),
    (
        "qos_policy = \"gold\"",
        "qos_policy = \"tin\"",
        "vnic \"blue-1\": field qos_policy: there is no qos_policy \"tin\"",
    ),
    (
        "commands_per_sec = 1000",
        "commands_per_sec = 0",
        "vnic \"blue-1\": field quota.commands_per_sec: 0 lies outside 1 to 1000000",
    ),
    (
        "commands_per_sec = 1000",
        "commands_per_sec = 1000001",
        "vnic \"blue-1\": field quota.commands_per_sec: 1000001 lies outside 1 to 1000000",
    ),
    (
        "paths = 2",
        "paths = 3",
        "vnic \"blue-1\": field paths: 3 lies outside 1 to 2, the underlay addresses of host \"h1\"",
    ),
    ("paths = 2", "paths = 0", "vnic \"blue-1\": field paths: 0 lies outside 1 to 16"),
    (
        "mac = \"52:54:00:64:00:01\"\naddresses = [\"192.168.0.1\"]",
        "mac = \"52:54:00:64:00:01\"\naddresses = [\"192.168.0.1\"]\npaths = 17",
        "vnic \"red-1\": field paths: 17 lies outside 1 to 16",
    ),
    (
        "dedicated_alias = \"10.79.0.1\"",
        "dedicated_alias = \"10.78.0.1\"",
        "vnic \"blue-1\": field dedicated_alias: 10.78.0.1 is a path of host \"h1\", which all its vNICs share",
    ),
    (
        "dedicated_alias = \"10.79.0.1\"",
        "dedicated_alias = \"10.79.0.9\"",
        "vnic \"blue-1\": field dedicated_alias: 10.79.0.9 is not among the aliases of host \"h1\"",
    ),
    // Static endpoints.
    (
        "name = \"metal\"\nvpc = \"blue\"",
        "name = \"metal\"\nvpc = \"green\"",
        "static_endpoint \"metal\": field vpc: there is no vpc \"green\"",
    ),
    (
        "[\"192.168.1.1\", \"fd01::2\"]",
        "[]",
        "static_endpoint \"metal\": field addresses: at least one address is needed",
    ),
    (
        "\"fd01::2\"]",
        "\"192.168.1.1\"]",
        "static_endpoint \"metal\": field addresses: 192.168.1.1 stands there twice",
    ),
    ("\"fd01::2\"]", "\"::1\"]", "static_endpoint \"metal\": field addresses: ::1 is a loopback address"),
    (
        "\"fd01::2\"]",
        "\"224.0.0.1\"]",
        "static_endpoint \"metal\": field addresses: 224.0.0.1 is not the address of a single station",
    ),
    (
        "underlay_address = \"10.77.0.9\"",
        "underlay_address = \"0.0.0.0\"",
        "static_endpoint \"metal\": field underlay_address: 0.0.0.0 is not the address of a single station",
    ),
    (
        "underlay_address = \"10.77.0.9\"",
        "underlay_address = \"::ffff:10.77.0.9\"",
        "static_endpoint \"metal\": field underlay_address: ::ffff:10.77.0.9 is an IPv4 address; write it as 10.77.0.9",
    ),
    (
        "underlay_address = \"10.77.0.9\"",
        "underlay_address = \"127.0.0.1\"",
        "static_endpoint \"metal\": field underlay_address: 127.0.0.1 is a loopback address",
    ),
    (
        "underlay_address = \"10.77.0.9\"",
        "underlay_address = \"fe80::9\"",
        "static_endpoint \"metal\": field underlay_address: fe80::9 is a link-local address, which says nothing without a link",
    ),
    (
        "security_groups = [\"db\"]",
        "security_groups = [\"nobody\"]",
        "static_endpoint \"metal\": field security_groups: there is no security_group \"nobody\"",
    ),
    (
        "security_groups = [\"db\"]",
        "security_groups = [\"apart\"]",
        "static_endpoint \"metal\": field security_groups: security_group \"apart\" belongs to vpc \"red\", not to \"blue\"",
    ),
    (
        "security_groups = [\"db\"]",
        "security_groups = [\"db\", \"db\"]",
        "static_endpoint \"metal\": field security_groups: db stands there twice",
    ),
];

#[test]
fn each_mistake_names_object_and_field() {
    for (find, replace, expected) in MISTAKES {
        assert_eq!(spoilt(find, replace)[0], *expected);
    }
}

#[test]
fn an_address_alone_is_a_prefix_of_full_length() {
    let text = GOOD.replace("192.168.0.100/32", "192.168.0.100").replace("192.168.7.0/24", "fd00::7");
    let d = DesiredState::from_toml(&text).unwrap();
    assert_eq!(d.vnic("blue-1"), good().vnic("blue-1"));
    assert_eq!(rule(&d, "web/not-there").remote_prefix, Some("fd00::7/128".parse().unwrap()));
}

#[test]
fn what_two_objects_claim_is_reported_with_both() {
    assert_eq!(
        spoilt("vni = 200", "vni = 100"),
        [
            "vpc \"blue\": field vni: 100 is in use by vpc \"red\" already",
            "vpc \"red\": field vni: 100 is in use by vpc \"blue\" already",
        ]
    );
    // Equal MACs are one report for each, although the link-local addresses are equal as well.
    let mac = "52:54:00:64:00:01";
    assert_eq!(
        spoilt("vpc = \"red\"\nmac", "vpc = \"blue\"\nmac"),
        [
            format!("vnic \"blue-1\": field mac: {mac} is in use by vnic \"red-1\" already"),
            "vnic \"blue-1\": field addresses: 192.168.0.1 is in use by vnic \"red-1\" already".into(),
            format!("vnic \"red-1\": field mac: {mac} is in use by vnic \"blue-1\" already"),
            "vnic \"red-1\": field addresses: 192.168.0.1 is in use by vnic \"blue-1\" already".into(),
        ]
    );
    let other_mac = "52:54:00:64:00:02";
    let sneaky = GOOD
        .replace(
            "vpc = \"red\"\nmac = \"52:54:00:64:00:01\"",
            &format!("vpc = \"blue\"\nmac = \"{other_mac}\""),
        )
        .replace("addresses = [\"192.168.0.1\"]", "addresses = [\"fe80::5054:ff:fe64:1\"]");
    assert_eq!(
        problems(&sneaky),
        [
            "vnic \"blue-1\": field mac: fe80::5054:ff:fe64:1 is in use by vnic \"red-1\" already",
            "vnic \"red-1\": field addresses: fe80::5054:ff:fe64:1 is in use by vnic \"blue-1\" already",
        ]
    );
    let dedicated = "addresses = [\"192.168.0.1\"]\ndedicated_alias = \"10.79.0.1\"\nhost = \"h1\"";
    assert_eq!(
        spoilt("addresses = [\"192.168.0.1\"]", dedicated),
        [
            "vnic \"blue-1\": field dedicated_alias: 10.79.0.1 is in use by vnic \"red-1\" already",
            "vnic \"red-1\": field dedicated_alias: 10.79.0.1 is in use by vnic \"blue-1\" already",
        ]
    );
}

#[test]
fn a_static_endpoint_shares_nothing_with_hosts_and_vnics() {
    let each = |field: &str, value: &str, metal: &str, other: &str| {
        let said = |who: &str, field: &str, whom: &str| {
            format!("{who}: field {field}: {value} is in use by {whom} already")
        };
        let (object, its_field) = other.split_once('.').unwrap();
        [said(object, its_field, metal), said(metal, field, object)]
    };
    let metal = "static_endpoint \"metal\"";
    for (address, host) in [
        ("10.77.0.1", "host \"h1\".underlay"),
        ("10.79.0.1", "host \"h1\".aliases"),
        ("fd00::2", "host \"h2\".underlay"),
    ] {
        assert_eq!(spoilt("10.77.0.9", address), each("underlay_address", address, metal, host));
    }
    assert_eq!(
        spoilt("\"fd01::2\"]", "\"fd01::1\"]"),
        each("addresses", "fd01::1", metal, "vnic \"blue-1\".addresses")
    );
    assert_eq!(
        spoilt("\"fd01::2\"]", "\"fe80::5054:ff:fe64:1\"]"),
        each("addresses", "fe80::5054:ff:fe64:1", metal, "vnic \"blue-1\".mac")
    );
    assert_eq!(
        spoilt("name = \"metal\"", "name = \"red-1\""),
        each("name", "red-1", "static_endpoint \"red-1\"", "vnic \"red-1\".name")
    );
    let another = "\n[[static_endpoint]]\nname = \"other\"\nvpc = \"red\"\naddresses = [\"192.168.1.1\"]\n\
                   underlay_address = \"10.77.0.8\"\n";
    DesiredState::from_toml(&format!("{GOOD}{another}")).unwrap();
    assert_eq!(
        problems(&format!("{GOOD}{}", another.replace("10.77.0.8", "10.77.0.9"))),
        each(
            "underlay_address",
            "10.77.0.9",
            "static_endpoint \"other\"",
            &format!("{metal}.underlay_address")
        )
    );
}

#[test]
fn an_alias_may_be_one_of_its_host_s_own_paths() {
    let text = GOOD.replace("\"10.78.0.1\"]", "\"10.78.0.1\", \"10.79.0.1\"]");
    assert_eq!(
        problems(&text),
        [
            "vnic \"blue-1\": field dedicated_alias: 10.79.0.1 is a path of host \"h1\", which all its vNICs share"
        ]
    );
    DesiredState::from_toml(&text.replace("dedicated_alias = \"10.79.0.1\"", "")).unwrap();
}

#[test]
fn names_are_fit_for_keys_and_sockets() {
    for (name, label) in [
        ("red-1", "vnic \"NAME\""),
        ("gold", "qos_policy \"NAME\""),
        ("not-there", "security_group_rule \"web/NAME\""),
        ("apart", "security_group \"NAME\""),
        ("h2", "host \"NAME\""),
        ("metal", "static_endpoint \"NAME\""),
    ] {
        let renamed = |new: &str| GOOD.replace(&format!("{name:?}"), &format!("{new:?}"));
        for bad in ["", "../x", "a/b", ".hidden", "-x", "Blue", "a b", "ä", &"x".repeat(64)] {
            let found = problems(&renamed(bad));
            let label = label.replace("NAME", bad);
            assert_eq!(
                found,
                [format!(
                    "{label}: field name: a name has 1 to 63 lower-case letters, digits, '-', '_' and '.', and \
                     begins with a letter or digit"
                )]
            );
        }
        DesiredState::from_toml(&renamed(&"x".repeat(63))).unwrap();
        DesiredState::from_toml(&renamed("0.a_b-c")).unwrap();
    }
}

#[test]
fn every_mistake_is_reported_not_only_the_first() {
    let text = GOOD
        .replace("vni = 200", "vni = 100")
        .replace("fd00::2", "nowhere")
        .replace("\"deny\"", "\"drop\"")
        .replace("paths = 2", "paths = 17")
        .replace("dscp = 46", "dscp = 99");
    let found = problems(&text);
    assert_eq!(found.len(), 7, "{found:#?}");
    let Err(all) = DesiredState::from_toml(&text) else { panic!() };
    assert_eq!(all.to_string().lines().count(), 7);
}

#[test]
fn what_cannot_be_read_is_not_called_missing() {
    let text = GOOD.replace("\"10.77.0.1\"", "\"nowhere\"").replace("dscp = 46", "dscp = 99");
    assert_eq!(
        problems(&text),
        [
            "host \"h1\": field underlay[0]: \"nowhere\": invalid IP address syntax",
            "qos_policy \"gold\": field dscp: 99 lies outside 0 to 63"
        ]
    );
}

#[test]
fn lists_are_bounded() {
    let addresses =
        |n: usize| (1..=n).map(|i| format!("10.0.{}.{}", i / 200, i % 200 + 1)).collect::<Vec<_>>();
    let list = |n| format!("[\"{}\"]", addresses(n).join("\", \""));
    let check = |text: &dyn Fn(usize) -> String, most: usize, expected: &str| {
        DesiredState::from_toml(&text(most)).unwrap();
        assert_eq!(problems(&text(most + 1)), [expected]);
    };
    check(
        &|n| GOOD.replace("addresses = [\"192.168.0.1\"]", &format!("addresses = {}", list(n))),
        15,
        "vnic \"red-1\": field addresses: 16 addresses; at most 15 are possible",
    );
    check(
        &|n| GOOD.replace("[\"192.168.1.1\", \"fd01::2\"]", &list(n)),
        16,
        "static_endpoint \"metal\": field addresses: 17 addresses; at most 16 are possible",
    );
    check(
        &|n| GOOD.replace("[\"fd00::2\"]", &list(n)),
        16,
        "host \"h2\": field underlay: 17 addresses; at most 16 are possible",
    );
    check(
        &|n| GOOD.replace("[\"192.168.0.100/32\"]", &list(n)),
        64,
        "vnic \"blue-1\": field allowed_address_pairs: 65 prefixes; at most 64 are possible",
    );
    check(
        &|n| {
            let names: Vec<String> = (0..n).map(|i| format!("\"g{i}\"")).collect();
            let groups: String =
                (0..n).map(|i| format!("[[security_group]]\nname = \"g{i}\"\nvpc = \"blue\"\n")).collect();
            GOOD.replace("[\"web\", \"db\"]", &format!("[{}]", names.join(", "))) + &groups
        },
        16,
        "vnic \"blue-1\": field security_groups: 17 groups; at most 16 are possible",
    );
    check(
        &|n| {
            let aliases: String = addresses(n)
                .iter()
                .map(|a| format!("[[host.aliases]]\naddress = \"{a}/16\"\nlink = \"eth0\"\n"))
                .collect();
            GOOD.replace("underlay = [\"fd00::2\"]", &format!("underlay = [\"fd00::2\"]\n{aliases}"))
        },
        4096,
        "host \"h2\": field aliases: 4097 aliases; at most 4096 are possible",
    );
}

#[test]
fn a_list_of_fields_is_no_object() {
    let list = serde_json::json!(["blue", 100]);
    let e = Object::from_value(Kind::Vpc, list).unwrap_err();
    assert_eq!((e.field.as_str(), e.reason.as_str()), ("", "it is not a JSON object"));
    let Err(Problems::Content(problems)) = DesiredState::from_json(r#"{"vpc": [["blue", 100]]}"#) else {
        panic!("it was taken for an object")
    };
    assert_eq!(problems[0].to_string(), "vpc number 1: it is not a JSON object");
}

#[test]
fn objects_come_back_from_the_store() {
    let state = good();
    let objects = state.objects();
    assert_eq!(objects.len(), 13);
    assert!(objects.keys().is_sorted_by_key(|k| k.kind()) && objects.keys().all(|k| k.kind().is_desired()));
    for (key, object) in objects {
        assert_eq!(Object::from_entry(key, &object.to_json()).unwrap(), *object);
        assert_eq!(Object::from_value(key.kind(), object.to_value()).unwrap(), *object);
    }
    let json = |key: &Key| String::from_utf8(objects[key].to_json()).unwrap();
    assert_eq!(
        json(&Key::new(Kind::Vnic, "red-1")),
        r#"{"name":"red-1","vpc":"red","mac":"52:54:00:64:00:01","addresses":["192.168.0.1"]}"#
    );
    assert_eq!(
        json(&Key::rule("db", "from-web")),
        r#"{"name":"from-web","security_group":"db","direction":"ingress","remote_group":"web","transport":"any","priority":1000,"action":"allow"}"#
    );
    assert_eq!(DesiredState::from_objects(objects.values().cloned()), state);
}

#[test]
fn entries_that_are_no_objects_are_refused() {
    let key = Key::new(Kind::Endpoint, "blue-1");
    let endpoint = |vnic: &str, first: u32, len: u32| {
        format!(
            r#"{{"vnic":"{vnic}","vni":100,"gids":["192.168.0.1"],"host":"h1","addresses":["10.77.0.1"],
            "qpn_blocks":[{{"first":{first},"len":{len}}}],"generation":1}}"#
        )
    };
    let from = |key: &Key, json: &str| Object::from_entry(key, json.as_bytes());
    let Ok(Object::Endpoint(e)) = from(&key, &endpoint("blue-1", 4096, 4096)) else { panic!() };
    assert_eq!(e.gids, [masq_types::Gid::from(std::net::Ipv4Addr::new(192, 168, 0, 1))]);
    let e = from(&key, &endpoint("blue-2", 4096, 4096)).unwrap_err();
    assert_eq!(e.to_string(), "masq/v1/endpoint/blue-1 holds the object of masq/v1/endpoint/blue-2");
    for (first, len) in [(4096, 0), (4097, 4096), (0x100_0000, 4096), (0, 1 << 25)] {
        let e = from(&key, &endpoint("blue-1", first, len)).unwrap_err();
        assert_eq!(
            e.to_string(),
            format!("masq/v1/endpoint/blue-1: field qpn_blocks: {len} QPNs from {first} are no block")
        );
    }
    for bad in ["", "{}", "[]", "{\"name\":\"h1\",\"underlay\":[],\"more\":1}", "\u{0}"] {
        let e = from(&Key::new(Kind::Host, "h1"), bad).unwrap_err();
        assert!(matches!(e, ObjectError::Json { .. }), "{bad}");
        assert!(e.to_string().starts_with("masq/v1/host/h1: "), "{e}");
    }
    // A store is no place for checks of single fields: what it holds is reported, not lost.
    assert!(from(&Key::new(Kind::Host, "h1"), r#"{"name":"h1","underlay":[]}"#).is_ok());
    assert!(matches!(
        from(
            &Key::rule("g", "r"),
            r#"{"name":"r","security_group":"other","direction":"egress","action":"deny"}"#
        ),
        Err(ObjectError::Misplaced { .. })
    ));
}

#[test]
fn realised_state_is_no_part_of_it() {
    let state = Object::from_value(
        Kind::HostState,
        serde_json::json!({"host": "h1", "realised_revision": 7, "problems": []}),
    )
    .unwrap();
    assert_eq!(DesiredState::from_objects([state.clone()]), DesiredState::default());
    let mut desired = good();
    let problems = desired.edit(vec![masq_model::Edit::Put(state)]).unwrap_err();
    assert_eq!(problems[0].to_string(), "host_state \"h1\": hosts write it, not users");
    assert_eq!(desired, good());
}

proptest::proptest! {
    #![proptest_config(proptest::test_runner::Config { failure_persistence: None, ..Default::default() })]

    /// Whatever an API client sends is answered.
    #[test]
    fn damaged_files_are_read_or_refused(damage in proptest::collection::vec((0usize..4000, ".{0,3}"), 1..6)) {
        let mut text = GOOD.to_string();
        for (at, with) in damage {
            let at = at % text.len();
            if text.is_char_boundary(at) && text.is_char_boundary(at + 1) {
                text.replace_range(at..at + 1, &with);
            }
        }
        if let Err(problems) = DesiredState::from_toml(&text) {
            proptest::prop_assert!(!problems.to_string().is_empty());
        }
    }

    /// Whatever stands in the store is read or refused.
    #[test]
    fn damaged_entries_are_read_or_refused(at: usize, with: u8, key in 0usize..13) {
        let state = good();
        let (key, object) = state.objects().iter().nth(key).unwrap();
        let mut json = object.to_json();
        let at = at % json.len();
        json[at] = with;
        if let Ok(read) = Object::from_entry(key, &json) {
            proptest::prop_assert_eq!(read.key(), key.clone());
        }
    }
}
