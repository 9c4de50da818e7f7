//! The declarative file: what is accepted, and that everything wrong with it is reported.

use masq_model::{Action, DesiredState, Key, Kind, Object, ObjectError, Problems};

const GOOD: &str = r#"
[[host]]
name = "h1"
underlay = ["10.77.0.1", "10.78.0.1"]
[[host]]
name = "h2"
underlay = ["fd00::2"]

[[vpc]]
name = "blue"
vni = 100
[[vpc]]
name = "red"
vni = 200

[[vnic]]
name = "blue-1"
vpc = "blue"
host = "h1"
mac = "52:54:00:64:00:01"
addresses = ["192.168.0.1", "fd01::1"]
paths = 2
[[vnic]]
name = "red-1"
vpc = "red"
host = "h1"
mac = "52:54:00:64:00:01"
addresses = ["192.168.0.1"]

[[rule]]
vpc = "blue"
source = "192.168.0.0/24"
destination = "192.168.0.0/24"
action = "allow"
[[rule]]
name = "not-you"
vpc = "blue"
source = "192.168.0.7"
destination = "0.0.0.0/0"
action = "deny"
priority = 5
"#;

fn problems(text: &str) -> Vec<String> {
    match DesiredState::from_toml(text) {
        Err(Problems::Content(problems)) => problems.iter().map(ToString::to_string).collect(),
        other => panic!("{other:?}"),
    }
}

/// The problems of the good file with one text replaced.
fn spoilt(find: &str, replace: &str) -> Vec<String> {
    assert!(GOOD.contains(find), "{find}");
    problems(&GOOD.replacen(find, replace, 1))
}

#[test]
fn the_file_is_read_as_written() {
    let d = DesiredState::from_toml(GOOD).unwrap();
    assert_eq!((d.hosts().len(), d.vpcs().len(), d.vnics().len(), d.rules().len()), (2, 2, 2, 2));
    assert_eq!(d.vpcs()[0].vni.get(), 100);
    let v = &d.vnics()[0];
    assert_eq!((v.path_count(), d.vnics()[1].path_count()), (2, 1));
    let gids: Vec<String> = v.gids().iter().map(ToString::to_string).collect();
    assert_eq!(gids, ["fe80::5054:ff:fe64:1", "192.168.0.1", "fd01::1"]);
    let [allow, deny] = d.rules() else { panic!() };
    assert_eq!((allow.action, allow.priority), (Action::Allow, 1000));
    assert_eq!(allow.name, "allow-1000-192.168.0.0-24-192.168.0.0-24");
    assert_eq!(
        (deny.action, deny.priority, deny.source.to_string()),
        (Action::Deny, 5, "192.168.0.7/32".into())
    );
}

#[test]
fn the_same_file_in_json_means_the_same() {
    let json = serde_json::to_string(&toml::from_str::<toml::Value>(GOOD).unwrap()).unwrap();
    assert_eq!(DesiredState::from_json(&json).unwrap(), DesiredState::from_toml(GOOD).unwrap());
    assert_eq!(DesiredState::from_toml("").unwrap(), DesiredState::default());
}

#[test]
fn unknown_missing_and_misspelt_fields_tell_where() {
    for (text, found) in [
        (
            GOOD.replace("underlay = [\"fd00::2\"]", "underlay = [\"fd00::2\"]\nrack = 7"),
            "unknown field `rack`",
        ),
        (GOOD.replace("vni = 200", ""), "missing field `vni`"),
        (GOOD.replace("[[rule]]", "[[rules]]"), "unknown field `rules`"),
        (GOOD.replace("vni = 200", "vni = \"200\""), "invalid type"),
        ("[[host]".into(), "TOML parse error at line 1"),
    ] {
        let Err(Problems::Syntax(message)) = DesiredState::from_toml(&text) else { panic!("{found}") };
        assert!(message.contains(found) && message.contains("line"), "{message}");
    }
    assert!(matches!(DesiredState::from_json("{\"host\": [1]}"), Err(Problems::Syntax(_))));
}

#[test]
fn each_mistake_names_object_and_field() {
    for (find, replace, expected) in [
        ("name = \"h2\"", "name = \"h1\"", "host \"h1\": field name: h1 is in use by host \"h1\" already"),
        ("[\"fd00::2\"]", "[]", "host \"h2\": field underlay: at least one address is needed"),
        ("[\"fd00::2\"]", "[\"h2\"]", "host \"h2\": field underlay: \"h2\" is not an IP address"),
        ("fd00::2", "10.77.0.1", "host \"h2\": field underlay: 10.77.0.1 is in use by host \"h1\" already"),
        (
            "fd00::2",
            "224.0.0.1",
            "host \"h2\": field underlay: 224.0.0.1 is not the address of a single station",
        ),
        ("fd00::2", "0.0.0.0", "host \"h2\": field underlay: 0.0.0.0 is not the address of a single station"),
        (
            "fd00::2",
            "::ffff:1.2.3.4",
            "host \"h2\": field underlay: ::ffff:1.2.3.4 is an IPv4 address; write it as 1.2.3.4",
        ),
        ("vni = 200", "vni = 100", "vpc \"red\": field vni: 100 is in use by vpc \"blue\" already"),
        ("vni = 200", "vni = 0", "vpc \"red\": field vni: 0 lies outside 1 to 16777215"),
        ("vni = 200", "vni = 16777216", "vpc \"red\": field vni: 16777216 lies outside 1 to 16777215"),
        ("vni = 200", "vni = -1", "vpc \"red\": field vni: -1 lies outside 1 to 16777215"),
        ("vpc = \"red\"", "vpc = \"green\"", "vnic \"red-1\": field vpc: there is no vpc \"green\""),
        ("host = \"h1\"\nmac", "host = \"h9\"\nmac", "vnic \"blue-1\": field host: there is no host \"h9\""),
        (
            "vpc = \"red\"",
            "vpc = \"blue\"",
            "vnic \"red-1\": field mac: 52:54:00:64:00:01 is in use by vnic \"blue-1\" already",
        ),
        (
            "mac = \"52:54:00:64:00:01\"",
            "mac = \"53:54:00:64:00:01\"",
            "vnic \"blue-1\": field mac: 53:54:00:64:00:01 is a multicast or zero address, which no NIC can have",
        ),
        (
            "mac = \"52:54:00:64:00:01\"",
            "mac = \"x\"",
            "vnic \"blue-1\": field mac: \"x\": a MAC address is six hexadecimal octets separated by colons",
        ),
        (
            "\"fd01::1\"]",
            "\"192.168.0.1\"]",
            "vnic \"blue-1\": field addresses: 192.168.0.1 is in use by vnic \"blue-1\" already",
        ),
        (
            "\"fd01::1\"]",
            "\"fe80::5054:ff:fe64:1\"]",
            "vnic \"blue-1\": field addresses: fe80::5054:ff:fe64:1 is in use by vnic \"blue-1\" already",
        ),
        (
            "\"fd01::1\"]",
            "\"127.0.0.1\"]",
            "vnic \"blue-1\": field addresses: 127.0.0.1 is a loopback address",
        ),
        (
            "\"fd01::1\"]",
            "\"255.255.255.255\"]",
            "vnic \"blue-1\": field addresses: 255.255.255.255 is not the address of a single station",
        ),
        (
            "addresses = [\"192.168.0.1\"]",
            "addresses = []",
            "vnic \"red-1\": field addresses: at least one address is needed",
        ),
        (
            "paths = 2",
            "paths = 3",
            "vnic \"blue-1\": field paths: 3 lies outside 1 to 2, the underlay addresses of its host",
        ),
        (
            "paths = 2",
            "paths = 0",
            "vnic \"blue-1\": field paths: 0 lies outside 1 to 2, the underlay addresses of its host",
        ),
        (
            "name = \"red-1\"",
            "name = \"masqd\"",
            "vnic \"masqd\": field name: \"masqd\" is the name of masqd's own socket",
        ),
        (
            "name = \"not-you\"\nvpc = \"blue\"",
            "name = \"not-you\"\nvpc = \"x\"",
            "rule \"not-you\": field vpc: there is no vpc \"x\"",
        ),
        (
            "source = \"192.168.0.0/24\"",
            "source = \"192.168.0.1/24\"",
            "rule \"allow-1000-192.168.0.1-24-192.168.0.0-24\": field source: 192.168.0.1/24 has bits set beyond its length; write 192.168.0.0/24",
        ),
        (
            "source = \"192.168.0.7\"",
            "source = \"192.168.0.0/33\"",
            "rule \"not-you\": field source: \"192.168.0.0/33\" is not a prefix such as \"192.168.0.0/24\"",
        ),
        (
            "source = \"192.168.0.7\"",
            "source = \"fd00::/8\"",
            "rule \"not-you\": field destination: 0.0.0.0/0 and the source fd00::/8 are of different families",
        ),
        (
            "\"deny\"",
            "\"drop\"",
            "rule \"not-you\": field action: \"drop\" is neither \"allow\" nor \"deny\"",
        ),
        (
            "priority = 5",
            "priority = -5",
            "rule \"not-you\": field priority: -5 lies outside 0 to 4294967295",
        ),
    ] {
        assert_eq!(spoilt(find, replace)[0], expected);
    }
}

#[test]
fn names_are_fit_for_keys_and_sockets() {
    for bad in ["", "../x", "a/b", ".hidden", "-x", "Blue", "a b", &"x".repeat(64)] {
        let found = spoilt("name = \"red-1\"", &format!("name = {bad:?}"));
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains("field name: a name has 1 to 63 lower-case letters"), "{found:?}");
    }
    assert!(spoilt("name = \"red-1\"", "name = \"\"")[0].starts_with("vnic number 2: "));
    DesiredState::from_toml(&GOOD.replace("red-1", &"x".repeat(63))).unwrap();
}

#[test]
fn every_mistake_is_reported_not_only_the_first() {
    let text = GOOD
        .replace("vni = 200", "vni = 100")
        .replace("fd00::2", "nowhere")
        .replace("\"deny\"", "\"drop\"")
        .replace("paths = 2", "paths = 9")
        .replace("192.168.0.0/24", "192.168.0.0/99");
    let found = problems(&text);
    assert_eq!(found.len(), 6, "{found:#?}");
    let Err(all) = DesiredState::from_toml(&text) else { panic!() };
    assert_eq!(all.to_string().lines().count(), 6);
}

#[test]
fn sixteen_addresses_and_nine_paths_are_too_many() {
    let many = |n: usize| (1..=n).map(|i| format!("\"10.0.0.{i}\"")).collect::<Vec<_>>().join(", ");
    let text = |n| GOOD.replace("[\"192.168.0.1\"]", &format!("[{}]", many(n)));
    DesiredState::from_toml(&text(15)).unwrap();
    assert_eq!(
        problems(&text(16)),
        ["vnic \"red-1\": field addresses: 16 addresses; at most 15 are possible"]
    );
    let hosts = |n| GOOD.replace("\"fd00::2\"", &many(n));
    DesiredState::from_toml(&hosts(8)).unwrap();
    assert_eq!(problems(&hosts(9)), ["host \"h2\": field underlay: 9 addresses; at most 8 are possible"]);
}

#[test]
fn objects_come_back_from_the_store() {
    let objects = DesiredState::from_toml(GOOD).unwrap().objects();
    assert_eq!(objects.len(), 8);
    assert!(objects.keys().is_sorted_by_key(|k| k.kind()) && objects.keys().all(|k| k.kind().is_desired()));
    for (key, object) in &objects {
        assert_eq!(Object::from_entry(key, &object.to_json()).unwrap(), *object);
    }
    let text = String::from_utf8(objects[&Key::vnic("red-1")].to_json()).unwrap();
    assert_eq!(
        text,
        r#"{"name":"red-1","vpc":"red","host":"h1","mac":"52:54:00:64:00:01","addresses":["192.168.0.1"]}"#
    );
}

#[test]
fn entries_that_are_no_objects_are_refused() {
    let key = Key::endpoint("blue-1");
    let endpoint = |vnic: &str, first: u32, len: u32| {
        format!(
            r#"{{"vnic":"{vnic}","vni":100,"gids":["192.168.0.1"],"host":"h1","addresses":["10.77.0.1"],
            "qpn_blocks":[{{"first":{first},"len":{len}}}],"generation":1}}"#
        )
    };
    let from = |key: &Key, json: &str| Object::from_entry(key, json.as_bytes());
    let Ok(Object::Endpoint(e)) = from(&key, &endpoint("blue-1", 4096, 4096)) else { panic!() };
    assert_eq!(e.gids, [masq_types::Gid::from(std::net::Ipv4Addr::new(192, 168, 0, 1))]);
    assert!(matches!(from(&key, &endpoint("blue-2", 4096, 4096)), Err(ObjectError::Misplaced { .. })));
    for (first, len) in [(4096, 0), (4097, 4096), (0x100_0000, 4096), (0, 1 << 25)] {
        let e = from(&key, &endpoint("blue-1", first, len)).unwrap_err();
        assert!(e.to_string().contains("field qpn_blocks"), "{e}");
    }
    for bad in ["", "{}", "[]", "{\"name\":\"h1\",\"underlay\":[],\"more\":1}", "\u{0}"] {
        assert!(matches!(from(&Key::host("h1"), bad), Err(ObjectError::Json { .. })), "{bad}");
    }
    assert!(Kind::ALL.iter().all(|k| k.prefix().ends_with('/')));
}

proptest::proptest! {
    #![proptest_config(proptest::test_runner::Config { failure_persistence: None, ..Default::default() })]

    /// Whatever an API client sends is answered.
    #[test]
    fn damaged_files_are_read_or_refused(damage in proptest::collection::vec((0usize..2000, ".{0,3}"), 1..6)) {
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
    fn damaged_entries_are_read_or_refused(at: usize, with: u8, key in 0usize..8) {
        let objects = DesiredState::from_toml(GOOD).unwrap().objects();
        let (key, object) = objects.iter().nth(key).unwrap();
        let mut json = object.to_json();
        let at = at % json.len();
        json[at] = with;
        if let Ok(read) = Object::from_entry(key, &json) {
            proptest::prop_assert_eq!(read.key(), key.clone());
        }
    }
}
