//! The API: objects, conditions, files, and what is told.

mod common;

use std::path::Path;

use common::{Answer, DESIRED, Host, apply, ask, eventually, get};
use guest_sim::Device;
use masq_model::api::{
    Applied, ChangeKind, ErrorReply, Explanation, Item, ItemList, ItemStatus, RealisedState, Status, Traffic,
    VnicState,
};
use masq_model::{Endpoint, HostState, SecurityGroupRule, Vnic, Vpc};
use serde_json::{Value, json};

const JSON: (&str, &str) = ("Content-Type", "application/json");
const TOML: (&str, &str) = ("Content-Type", "application/toml");
const PATCH: (&str, &str) = ("Content-Type", "application/merge-patch+json");

fn put(api: &Path, path: &str, body: &Value) -> Answer {
    ask(api, "PUT", path, &[JSON], &body.to_string())
}

fn patch(api: &Path, path: &str, body: &Value) -> Answer {
    ask(api, "PATCH", path, &[PATCH], &body.to_string())
}

fn delete(api: &Path, path: &str) -> Answer {
    ask(api, "DELETE", path, &[], "")
}

fn refused(answer: &Answer) -> String {
    answer.json::<ErrorReply>().to_string()
}

/// One object of each kind that users write, in an order in which each refers to earlier ones only.
fn objects() -> Vec<(&'static str, Value, Value)> {
    vec![
        (
            "/v1/hosts/h9",
            json!({"name": "h9", "underlay": ["192.0.2.9"]}),
            json!({"underlay": ["192.0.2.10"]}),
        ),
        ("/v1/vpcs/green", json!({"name": "green", "vni": 300}), json!({"vni": 301})),
        (
            "/v1/security-groups/web",
            json!({"name": "web", "vpc": "green"}),
            // A group has nothing that could change while it is in use.
            json!({}),
        ),
        (
            "/v1/security-groups/web/rules/in",
            json!({"name": "in", "security_group": "web", "direction": "ingress", "action": "allow",
                   "transport": "any", "priority": 1000}),
            json!({"remote_prefix": "10.0.0.0/8", "priority": 5}),
        ),
        ("/v1/qos-policies/slow", json!({"name": "slow", "weight": 1, "class": 0}), json!({"dscp": 8})),
        (
            "/v1/vnics/green-1",
            json!({"name": "green-1", "vpc": "green", "mac": "52:54:00:00:00:01", "addresses": ["10.0.0.1"],
                   "security_groups": ["web"], "qos_policy": "slow"}),
            json!({"addresses": ["10.0.0.1", "fd00::1"], "quota": {"qps": 4}}),
        ),
        (
            "/v1/static-endpoints/metal",
            json!({"name": "metal", "vpc": "green", "addresses": ["10.0.0.2"], "underlay_address": "192.0.2.100",
                   "security_groups": ["web"]}),
            json!({"addresses": ["10.0.0.2", "fd00::2"], "underlay_address": "2001:db8::100"}),
        ),
    ]
}

#[test]
fn objects_of_each_kind_come_change_and_go() {
    let host = Host::start();
    let api = host.api();
    for (path, spec, change) in objects() {
        ask(&api, "GET", path, &[], "").expect(404);
        patch(&api, path, &json!({})).expect(404);
        delete(&api, path).expect(404);

        let created = put(&api, path, &spec).expect(201);
        let item: Item<Value> = created.json();
        assert_eq!(item.spec, spec);
        assert_eq!(created.header("etag"), Some(format!("\"{}\"", item.status.generation).as_str()));
        assert_eq!(ask(&api, "GET", path, &[], "").expect(200).json::<Item<Value>>().spec, spec);

        let again: Item<Value> = put(&api, path, &spec).expect(200).json();
        assert_eq!(again.status.generation, item.status.generation, "what changes nothing writes nothing");

        let changed: Item<Value> = patch(&api, path, &change).expect(200).json();
        let mut expected = spec.clone();
        expected.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        assert_eq!(changed.spec, expected);
        let collection = path.rsplit_once('/').unwrap().0;
        let list: ItemList<Value> = ask(&api, "GET", collection, &[], "").expect(200).json();
        let listed = list.items.iter().find(|i| i.spec == expected).expect("it is listed");
        assert_eq!(listed.status.generation, changed.status.generation);
        put(&api, path, &spec).expect(200);
    }
    let rules: ItemList<SecurityGroupRule> =
        serde_json::from_str(&get(&api, "/v1/security-group-rules")).unwrap();
    assert_eq!(rules.items.len(), 1);
    for (path, ..) in objects().into_iter().rev() {
        let before = ask(&api, "GET", path, &[], "").expect(200).json::<Item<Value>>().status.generation;
        let gone: ItemStatus = delete(&api, path).expect(200).json();
        assert!(gone.generation > before);
        ask(&api, "GET", path, &[], "").expect(404);
    }
    assert!(apply(&api, DESIRED).changes.is_empty());
}

#[test]
fn a_patch_removes_fields_with_null() {
    let host = Host::start();
    let api = host.api();
    let patched: Item<Vnic> =
        patch(&api, "/v1/vnics/blue-1", &json!({"host": null, "quota": {"mrs": 7}})).expect(200).json();
    assert_eq!((patched.spec.host, patched.spec.quota.mrs), (None, Some(7)));
    let patched: Item<Vnic> =
        patch(&api, "/v1/vnics/blue-1", &json!({"quota": {"mrs": null}})).expect(200).json();
    assert_eq!(patched.spec.quota.mrs, None);
    let answer = patch(&api, "/v1/vnics/blue-1", &json!({"mac": null})).expect(400);
    assert!(refused(&answer).contains("mac"), "{answer:?}");
    patch(&api, "/v1/vnics/blue-1", &json!("no object")).expect(400);
}

#[test]
fn conditions_are_checked_where_the_write_is() {
    let host = Host::start();
    let api = host.api();
    let path = "/v1/vpcs/green";
    let with = |method: &str, header: (&str, &str), vni: u32| {
        ask(&api, method, path, &[JSON, header], &json!({"name": "green", "vni": vni}).to_string())
    };
    with("PUT", ("If-Match", "*"), 300).expect(412);
    with("PUT", ("If-Match", "\"1\""), 300).expect(412);
    let created = with("PUT", ("If-None-Match", "*"), 300).expect(201);
    let tag = created.header("etag").unwrap();
    with("PUT", ("If-None-Match", "*"), 301).expect(412);
    let changed = with("PUT", ("If-Match", tag), 301).expect(200);
    with("PUT", ("If-Match", tag), 302).expect(412);
    with("PATCH", ("If-Match", tag), 302).expect(412);
    with("DELETE", ("If-Match", tag), 0).expect(412);
    with("PUT", ("If-Match", "301"), 302).expect(400);
    assert_eq!(ask(&api, "GET", path, &[], "").json::<Item<Vpc>>().spec.vni.get(), 301);
    with("PATCH", ("If-Match", "*"), 302).expect(200);
    let latest = ask(&api, "GET", path, &[], "");
    assert_ne!(latest.header("etag"), changed.header("etag"));
    with("DELETE", ("If-Match", latest.header("etag").unwrap()), 0).expect(200);
}

#[test]
fn what_is_wrong_is_named_and_nothing_is_written() {
    let host = Host::start();
    let api = host.api();
    let before = get(&api, "/v1/desired");
    let vnic =
        json!({"name": "blue-2", "vpc": "blue", "mac": "52:54:00:00:00:02", "addresses": ["192.168.0.2"]});
    let with = |field: &str, value: Value| {
        let mut spec = vnic.clone();
        spec[field] = value;
        put(&api, "/v1/vnics/blue-2", &spec)
    };
    for (status, field, value) in [
        (400, "colour", json!("blue")),
        (400, "mac", json!("52:54")),
        (400, "mac", json!(7)),
        (400, "addresses", json!(["192.168.0"])),
        (400, "addresses", json!({})),
        (400, "paths", json!(300)),
        (400, "quota", json!({"qps": -1})),
        (422, "addresses", json!(["192.168.0.1"])),
        (422, "addresses", json!(["224.0.0.1"])),
        (422, "host", json!("h7")),
        (422, "security_groups", json!(["nobody"])),
        (422, "paths", json!(0)),
        (422, "name", json!("blue-3")),
    ] {
        let answer = with(field, value.clone()).expect(status);
        assert!(refused(&answer).contains(field), "{value}: {answer:?}");
    }
    let path = "/v1/vnics/blue-2";
    let body = vnic.to_string();
    for (status, answer) in [
        (400, ask(&api, "PUT", path, &[JSON], &body[1..])),
        (400, ask(&api, "PUT", path, &[JSON], "\u{1}")),
        (400, ask(&api, "PUT", path, &[JSON], &"[".repeat(100_000))),
        (400, ask(&api, "PUT", "/v1/vnics/%ff", &[JSON], &body)),
        (400, ask(&api, "PUT", "/v1/vnics/blue-2?wait=301", &[JSON], &body)),
        (400, ask(&api, "PUT", "/v1/vnics/blue-2?wait=soon", &[JSON], &body)),
        (400, ask(&api, "PUT", "/v1/vnics/blue-2?dry_run=true", &[JSON], &body)),
        (422, ask(&api, "PUT", "/v1/vnics/a%2Fb", &[JSON], &body)),
        (415, ask(&api, "PUT", path, &[TOML], &body)),
        (415, ask(&api, "PUT", path, &[], &body)),
        (404, ask(&api, "GET", "/v1/nothing", &[], "")),
        (404, ask(&api, "GET", "/v1/vnics/a%2Fb", &[], "")),
        (404, ask(&api, "GET", "/v1/security-groups/none/rules", &[], "")),
        (405, ask(&api, "PUT", "/v1/endpoints/blue-1", &[JSON], "{}")),
        (405, ask(&api, "POST", path, &[JSON], &body)),
        (405, ask(&api, "DELETE", "/v1/desired", &[], "")),
        (400, ask(&api, "POST", "/v1/apply", &[TOML], "[[host]")),
        (415, ask(&api, "POST", "/v1/apply", &[("Content-Type", "application/x-yaml")], DESIRED)),
    ] {
        assert_eq!(answer.status, status, "{answer:?}");
        assert!(!answer.json::<ErrorReply>().error.is_empty());
        assert_eq!(answer.header("allow").is_some(), status == 405, "{answer:?}");
    }
    let bad = DESIRED.replace("vni = 200", "vni = 100").replace("52:54:00:64:00:01", "53:54:00:64:00:01");
    let reply: ErrorReply = ask(&api, "POST", "/v1/apply", &[TOML], &bad).expect(422).json();
    assert!(reply.problems.iter().any(|p| p.contains("vni") && p.contains("red")), "{reply}");
    assert!(reply.problems.iter().any(|p| p.contains("blue-1") && p.contains("mac")), "{reply}");
    assert_eq!(get(&api, "/v1/desired"), before);
}

#[test]
fn what_is_in_use_stays_and_who_uses_it_is_told() {
    let host = Host::start();
    let api = host.api();
    for (path, user) in
        [("/v1/vpcs/red", "red-1"), ("/v1/hosts/h1", "blue-1"), ("/v1/security-groups/blue", "blue-1")]
    {
        let answer = delete(&api, path).expect(409);
        assert!(refused(&answer).contains(user), "{answer:?}");
        ask(&api, "GET", path, &[], "").expect(200);
    }
    delete(&api, "/v1/vnics/red-1").expect(200);
    delete(&api, "/v1/vpcs/red").expect(200);
}

#[test]
fn two_writers_lose_no_update() {
    let host = Host::start();
    let api = host.api();
    put(&api, "/v1/qos-policies/p", &json!({"name": "p", "weight": 1})).expect(201);
    // Each raises the weight by 20, one at a time, and tries again when the other one was faster.
    let raise = || {
        for _ in 0..20 {
            loop {
                let present = ask(&api, "GET", "/v1/qos-policies/p", &[], "").expect(200);
                let weight = present.json::<Item<Value>>().spec["weight"].as_u64().unwrap();
                let tag = present.header("etag").unwrap();
                let body = json!({"weight": weight + 1}).to_string();
                let answer = ask(&api, "PATCH", "/v1/qos-policies/p", &[PATCH, ("If-Match", tag)], &body);
                match answer.status {
                    200 => break,
                    status => assert_eq!(status, 412, "{answer:?}"),
                }
            }
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(raise);
        scope.spawn(raise);
    });
    let item: Item<Value> = serde_json::from_str(&get(&api, "/v1/qos-policies/p")).unwrap();
    assert_eq!(item.spec["weight"], 41);
}

#[test]
fn what_is_written_with_patience_is_in_force() {
    let host = Host::start();
    let api = host.api();
    let answer = ask(
        &api,
        "PATCH",
        "/v1/vnics/blue-1?wait=60",
        &[PATCH],
        &json!({"addresses": ["192.168.0.7"]}).to_string(),
    );
    let item: Item<Vnic> = answer.expect(200).json();
    assert_eq!(item.status.state, RealisedState::Realised, "{item:?}");
    assert_eq!(item.status.realised_generation, item.status.generation);
    let endpoint: Item<Endpoint> = serde_json::from_str(&get(&api, "/v1/endpoints/blue-1")).unwrap();
    assert!(endpoint.spec.gids.iter().any(|g| g.to_string() == "192.168.0.7"));
    let state: Item<HostState> = serde_json::from_str(&get(&api, "/v1/host-states/h1")).unwrap();
    assert!(state.spec.realised_revision >= item.status.generation);

    // A host that is not there brings nothing into force.
    put(&api, "/v1/hosts/h2", &json!({"name": "h2", "underlay": ["192.0.2.2"]})).expect(201);
    let red = json!({"name": "red-2", "vpc": "red", "host": "h2", "mac": "52:54:00:00:00:02",
                     "addresses": ["192.168.0.2"]});
    put(&api, "/v1/vnics/red-2", &red).expect(201);
    eventually("our part of it", || {
        let item: Item<Vnic> = serde_json::from_str(&get(&api, "/v1/vnics/red-2")).unwrap();
        assert_ne!(item.status.state, RealisedState::Realised);
        item.status.state == RealisedState::PartiallyRealised && item.status.waiting_for == ["h2"]
    });
    let gone: ItemStatus = ask(&api, "DELETE", "/v1/vnics/blue-1?wait=60", &[], "").expect(200).json();
    assert_eq!(gone.state, RealisedState::Realised);
    ask(&api, "GET", "/v1/endpoints/blue-1", &[], "").expect(404);
}

#[test]
fn files_are_applied_whole_told_field_by_field_and_pruned_on_request() {
    let host = Host::start();
    let api = host.api();
    assert!(apply(&api, DESIRED).changes.is_empty(), "it was there already");
    let more =
        format!("{}\n[[vpc]]\nname = \"green\"\nvni = 300\n", DESIRED.replace("vni = 200", "vni = 201"));
    let send = |query: &str, file: &str| -> Applied {
        ask(&api, "POST", &format!("/v1/apply{query}"), &[TOML], file).expect(200).json()
    };
    let before = get(&api, "/v1/desired");
    let dry = send("?dry_run=true", &more);
    assert_eq!(get(&api, "/v1/desired"), before);
    assert!(dry.dry_run && dry.status.is_none());
    let told: Vec<_> = dry.changes.iter().map(|c| (c.change, c.kind.as_str(), c.name.as_str())).collect();
    assert_eq!(told, [(ChangeKind::Created, "vpc", "green"), (ChangeKind::Changed, "vpc", "red")]);
    let fields = &dry.changes[1].fields;
    assert_eq!((fields.len(), fields[0].field.as_str()), (1, "vni"));
    assert_eq!((&fields[0].old, &fields[0].new), (&json!(200), &json!(201)));

    let wet = send("?wait=60", &more);
    assert_eq!((wet.dry_run, &wet.changes), (false, &dry.changes));
    assert_eq!(wet.status.unwrap().state, RealisedState::Realised);
    // Without pruning, what a file lacks stays.
    assert!(send("", "[[vpc]]\nname = \"green\"\nvni = 300\n").changes.is_empty());
    let told = get(&api, "/v1/desired");
    let again: Applied = ask(&api, "POST", "/v1/apply?prune=true", &[JSON], &told).expect(200).json();
    assert!(again.changes.is_empty(), "what is told can be applied as it is: {again:?}");

    let back = send("?prune=true&dry_run=true", DESIRED);
    assert_eq!(get(&api, "/v1/desired"), told);
    assert_eq!(send("?prune=true", DESIRED).changes, back.changes);
    assert_eq!(back.changes[0].change, ChangeKind::Deleted);
    assert_eq!(get(&api, "/v1/desired"), before);
    // Pruning something that is needed is an inconsistency like any other.
    let without = DESIRED.replace("[[vpc]]\nname = \"red\"\nvni = 200\n", "");
    ask(&api, "POST", "/v1/apply?prune=true", &[TOML], &without).expect(422);
}

#[test]
fn a_verdict_is_explained() {
    let host = Host::start();
    let api = host.api();
    let blue_2 = json!({"name": "blue-2", "vpc": "blue", "host": "h1", "mac": "52:54:00:00:00:02",
                        "addresses": ["192.168.0.2"], "security_groups": ["blue"]});
    ask(&api, "PUT", "/v1/vnics/blue-2?wait=60", &[JSON], &blue_2.to_string()).expect(201);
    let explain = |query: &str| ask(&api, "GET", &format!("/v1/explain?{query}"), &[], "");
    let allowed: Explanation = explain("from=blue-1&to=192.168.0.2").expect(200).json();
    assert!(allowed.allowed && allowed.obstacles.is_empty(), "{allowed:?}");
    assert_eq!((allowed.to.vnic.as_str(), allowed.flows.len()), ("blue-2", 2));
    assert_eq!(allowed.flows[0].egress, "membership in blue");
    let deny = json!({"name": "no", "security_group": "blue", "direction": "egress", "action": "deny"});
    ask(&api, "PUT", "/v1/security-groups/blue/rules/no?wait=60", &[JSON], &deny.to_string()).expect(201);
    let denied: Explanation = explain("from=192.168.0.1&to=blue-2&vpc=blue").expect(200).json();
    assert!(!denied.allowed && denied.summary.contains("rule blue/no"), "{denied:?}");
    let apart: Explanation = explain("from=blue-1&to=red-1").expect(200).json();
    assert!(!apart.allowed && apart.obstacles[0].contains("red"), "{apart:?}");
    patch(&api, "/v1/vnics/blue-2?wait=60", &json!({"host": null})).expect(200);
    let nowhere: Explanation = explain("from=blue-1&to=blue-2&transport=uc").expect(200).json();
    assert!(nowhere.obstacles.iter().any(|o| o.contains("assigned to no host")), "{nowhere:?}");
    for (status, query) in [
        (400, "from=blue-1"),
        (400, "from=blue-1&to=blue-2&transport=xrc"),
        (400, "from=192.168.0.1&to=192.168.0.2"),
        (400, "from=blue-1&to=blue-2&vpc=red"),
        (404, "from=blue-1&to=nobody"),
        (404, "from=blue-1&to=192.168.0.99"),
        (404, "from=192.168.0.1&to=192.168.0.2&vpc=none"),
    ] {
        explain(query).expect(status);
    }
}

#[test]
fn status_follows_the_guests_and_readiness_the_problems() {
    let host = Host::start();
    let api = host.api();
    let status = || serde_json::from_str::<Status>(&get(&api, "/v1/status")).unwrap();
    let state = |name: &str| status().vnics.into_iter().find(|v| v.name == name).map(|v| v.state);
    eventually("the devices", || state("blue-1") == Some(VnicState::Waiting));
    assert_eq!(get(&api, "/healthz"), "ok\n");
    eventually("readiness", || ask(&api, "GET", "/readyz", &[], "").status == 200);
    let guest = Device::connect(&host.socket("blue-1"), 16 << 20).unwrap();
    assert_eq!((state("blue-1"), state("red-1")), (Some(VnicState::Connected), Some(VnicState::Waiting)));
    assert_eq!(status().vnics[0].epoch, Some(format!("{:016x}", guest.config.epoch)));
    let traffic: Vec<Traffic> = serde_json::from_str(&get(&api, "/v1/traffic")).unwrap();
    assert_eq!(traffic.iter().map(|t| t.vnic.as_str()).collect::<Vec<_>>(), ["blue-1", "red-1"]);
    assert_eq!(get(&api, "/v1/connections?vnic=blue-1"), "[]");

    apply(&api, &DESIRED.replace("127.0.0.1", "192.0.2.77"));
    eventually("the missing address to be noticed", || {
        let answer = ask(&api, "GET", "/readyz", &[], "");
        answer.status == 503 && answer.body.contains("192.0.2.77")
    });
    apply(&api, DESIRED);
    eventually("readiness", || ask(&api, "GET", "/readyz", &[], "").status == 200);
}

#[test]
fn the_description_covers_what_there_is() {
    let host = Host::start();
    let api = host.api();
    let document: Value = serde_json::from_str(&get(&api, "/openapi.json")).unwrap();
    assert!(document["openapi"].as_str().unwrap().starts_with("3.1"));
    let text = document.to_string();
    let schemas = document["components"]["schemas"].as_object().unwrap();
    for reference in text.split("\"#/components/schemas/").skip(1) {
        let name = reference.split('"').next().unwrap();
        assert!(schemas.contains_key(name), "{name} is referred to, but not described");
    }
    let mut operations = 0;
    for (path, item) in document["paths"].as_object().unwrap() {
        let filled = path
            .replace("{group}", "blue")
            .replace("{name}", "none")
            .replace("{vnic}", "none")
            .replace("{qpn}", "1");
        // What a resource allows is what it is said to allow.
        let answer = ask(&api, "OPTIONS", &filled, &[], "").expect(405);
        let mut allowed: Vec<_> =
            answer.header("allow").unwrap().to_lowercase().split(',').map(str::to_owned).collect();
        allowed.retain(|method| method != "head");
        allowed.sort();
        let mut described: Vec<_> = item.as_object().unwrap().keys().cloned().collect();
        described.sort();
        assert_eq!(allowed, described, "{path}");
        operations += described.len();
    }
    assert!(operations > 40, "{operations}");
}

#[test]
fn what_is_counted_is_told_to_prometheus() {
    let host = Host::start();
    let api = host.api();
    let guest = Device::connect(&host.socket("blue-1"), 16 << 20).unwrap();
    ask(&api, "GET", "/v1/nothing", &[], "").expect(404);
    get(&api, "/v1/vnics/blue-1");
    // No guest may ask for this.
    assert!(guest.control().exchange(&[0xff; 64], 64).is_ok());
    let metrics = || get(&api, "/metrics");
    eventually("everything in force", || metrics().contains("masqd_realised_revision "));
    let text = metrics();
    for line in [
        "masqd_ready 1",
        "# TYPE masqd_vnic_commands_total counter",
        "masqd_vnic_commands_total{vpc=\"blue\",vnic=\"blue-1\"} 1",
        "masqd_vnic_events_total{vpc=\"blue\",vnic=\"blue-1\",counter=\"sent_msgs\"} 5",
        "masqd_vnic_objects{vpc=\"red\",vnic=\"red-1\",resource=\"qps\"} 0",
        "masqd_vnic_rnic_objects{vpc=\"blue\",vnic=\"blue-1\",resource=\"qps\"} 7",
        "masqd_api_requests_total{method=\"GET\",route=\"none\",code=\"404\"} 1",
        "masqd_api_requests_total{method=\"GET\",route=\"/v1/vnics/{name}\",code=\"200\"} 1",
    ] {
        assert!(text.lines().any(|l| l == line), "{line} is not in\n{text}");
    }
    let refusal = text.lines().find(|l| l.starts_with("masqd_vnic_refusals_total")).expect("a refusal");
    assert!(refusal.contains("verb=") && refusal.contains("reason=") && refusal.ends_with(" 1"), "{refusal}");
    let answer = ask(&api, "GET", "/metrics", &[], "");
    assert_eq!(answer.header("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
    assert!(!text.contains("masqd_vnic_tx_bytes_total{vpc=\"red\""), "it has no guest");
}

#[test]
fn queue_pairs_that_are_not_there_are_not_captured() {
    let host = Host::start();
    let api = host.api();
    assert_eq!(get(&api, "/v1/queue-pairs?vnic=blue-1"), "[]");
    let none = ask(&api, "GET", "/v1/queue-pairs/blue-1/17", &[], "").expect(404);
    assert!(none.body.contains("0x11"), "{none:?}");
    ask(&api, "GET", "/v1/queue-pairs/blue-1/17/capture", &[], "").expect(404);
    for query in
        ["seconds=0", "seconds=3601", "snaplen=127", "snaplen=65536", "count=0", "count=-1", "more=1"]
    {
        ask(&api, "GET", &format!("/v1/queue-pairs/blue-1/17/capture?{query}"), &[], "").expect(400);
    }
    ask(&api, "GET", "/v1/queue-pairs/blue-1/many", &[], "").expect(400);
}
