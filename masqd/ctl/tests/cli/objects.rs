//! Single objects: what is asked of masqd, and what is told of its answers.

use crate::server::Recorder;
use serde_json::{Value, json};

fn status(generation: u64, state: &str, waiting_for: &[&str]) -> Value {
    json!({"generation": generation, "realised_generation": 0, "state": state, "waiting_for": waiting_for})
}

fn item(spec: Value, generation: u64) -> Value {
    json!({"spec": spec, "status": status(generation, "realised", &[])})
}

#[test]
fn create_puts_what_must_be_new() {
    let server = Recorder::new(&[(201, item(json!({"name": "blue-1"}), 7))]);
    let out = server.run(
        "vnic create blue-1 --vpc blue --host h1 --mac 52:54:00:64:00:01 --address 192.168.0.1 --security-group blue \
         --qos gold --quota-qps 100 --paths 2 --wait 5",
    );
    assert_eq!(out.ok(), "vnic blue-1 created: generation 7, realised\n");
    let request = server.request();
    assert_eq!(request.line, "PUT /v1/vnics/blue-1?wait=5");
    assert_eq!(request.header("if-none-match"), Some("*"));
    assert_eq!(request.header("content-type"), Some("application/json"));
    assert_eq!(
        request.json(),
        json!({
            "name": "blue-1", "vpc": "blue", "host": "h1", "mac": "52:54:00:64:00:01",
            "addresses": ["192.168.0.1"], "security_groups": ["blue"], "qos_policy": "gold",
            "quota": {"qps": 100}, "paths": 2
        })
    );
}

#[test]
fn rules_live_below_their_groups() {
    let reply = item(json!({"name": "in", "security_group": "blue"}), 8);
    let list = json!({"items": [reply.clone()]});
    let server =
        Recorder::new(&[(201, reply), (200, list.clone()), (200, list), (200, status(9, "realised", &[]))]);
    let out = server.run("rule create blue in --ingress --remote-prefix 10.0.0.1 --priority 5 --allow");
    assert_eq!(out.ok(), "rule blue/in created: generation 8, realised\n");
    assert!(server.run("rule list blue").ok().contains("\nblue   in "));
    server.run("rule list").ok();
    assert_eq!(server.run("rule delete blue in").ok(), "rule blue/in deleted: generation 9, realised\n");
    let requests = server.script.requests();
    let lines: Vec<&str> = requests.iter().map(|r| r.line.as_str()).collect();
    assert_eq!(
        lines,
        [
            "PUT /v1/security-groups/blue/rules/in",
            "GET /v1/security-groups/blue/rules",
            "GET /v1/security-group-rules",
            "DELETE /v1/security-groups/blue/rules/in"
        ]
    );
    assert_eq!(
        requests[0].json(),
        json!({"name": "in", "security_group": "blue", "direction": "ingress", "remote_prefix": "10.0.0.1/32",
               "priority": 5, "action": "allow"})
    );
}

#[test]
fn what_exists_is_not_created_again() {
    let server = Recorder::new(&[(412, json!({"error": "If-None-Match does not hold"}))]);
    let message = "masqctl: vpc blue exists already; masqctl vpc set changes it\n";
    assert_eq!(server.run("vpc create blue --vni 100").failed(), (1, message.into()));
}

#[test]
fn set_patches_what_is_mentioned() {
    let reply = item(json!({"name": "blue-1"}), 9);
    let server = Recorder::new(&[(200, reply.clone()), (200, reply)]);
    server.run("vnic set blue-1 --host h2 --unset qos").ok();
    server.run("vnic set blue-1 --paths 1 --if-generation 8").ok();
    let requests = server.script.requests();
    assert_eq!(requests[0].line, "PATCH /v1/vnics/blue-1");
    assert_eq!(requests[0].header("content-type"), Some("application/merge-patch+json"));
    assert_eq!(requests[0].header("if-match"), None);
    assert_eq!(requests[0].json(), json!({"host": "h2", "qos_policy": null}));
    assert_eq!(requests[1].header("if-match"), Some("\"8\""));
}

#[test]
fn a_list_that_changes_in_between_is_read_again() {
    let refused = json!({"error": "If-Match does not hold: the object's generation is 8"});
    let server = Recorder::new(&[
        (200, item(json!({"name": "blue-1", "security_groups": ["a"]}), 7)),
        (412, refused.clone()),
        (200, item(json!({"name": "blue-1", "security_groups": ["a", "b"]}), 8)),
        (200, item(json!({"name": "blue-1"}), 9)),
        (200, item(json!({"name": "blue-1", "security_groups": ["a"]}), 9)),
        (412, refused),
    ]);
    server.run("vnic set blue-1 --add-security-group c --remove-security-group a").ok();
    let requests = server.script.requests();
    assert_eq!(requests[1].header("if-match"), Some("\"7\""));
    assert_eq!(requests[1].json(), json!({"security_groups": ["c"]}));
    assert_eq!(requests[3].header("if-match"), Some("\"8\""));
    assert_eq!(requests[3].json(), json!({"security_groups": ["b", "c"]}));
    // Whoever names a generation is not satisfied by another one.
    let (code, message) = server.run("vnic set blue-1 --add-security-group c --if-generation 7").failed();
    assert_eq!(
        (code, message.as_str()),
        (
            1,
            "masqctl: vnic blue-1 does not have generation 7: If-Match does not hold: the object's generation is 8\n"
        )
    );
    assert_eq!(server.script.requests()[5].header("if-match"), Some("\"7\""));
}

#[test]
fn delete_may_be_limited_to_a_generation() {
    let server = Recorder::new(&[(200, status(9, "pending", &["h1"]))]);
    let out = server.run("qos-policy delete gold --if-generation 4");
    assert_eq!(out.ok(), "qos-policy gold deleted: generation 9, pending\n");
    assert_eq!(server.request().header("if-match"), Some("\"4\""));
}

#[test]
fn hosts_that_are_late_are_named() {
    let late = status(9, "partially-realised", &["h2", "h3"]);
    let reply = json!({"spec": {"name": "blue-1"}, "status": late});
    let server = Recorder::new(&[(200, reply.clone()), (200, late), (200, reply.clone())]);
    let out = server.run("vnic set blue-1 --host h2 --wait 1");
    assert_eq!(out.status, 4);
    assert_eq!(out.stdout, "vnic blue-1 changed: generation 9, partially-realised\n");
    assert_eq!(
        out.stderr,
        "masqctl: vnic blue-1 is partially-realised after 1 s; not in force on:\n  h2\n  h3\n"
    );
    assert_eq!(server.run("vnic delete blue-1 --wait 1").status, 4);
    // Programs get the answer all the same.
    let out = server.run("vnic set blue-1 --host h2 --wait 1 -o json");
    assert_eq!((out.status, serde_json::from_str(&out.stdout).ok()), (4, Some(reply)));
}

#[test]
fn what_programs_get_is_what_the_api_answers() {
    // Fields that this version does not know are not lost.
    let one =
        json!({"spec": {"name": "blue", "vni": 100, "later": [1]}, "status": status(3, "realised", &[])});
    let list = json!({"items": [one.clone()]});
    let server = Recorder::new(&[(200, one.clone()), (200, list.clone()), (201, one.clone())]);
    let get = |args: &str| serde_json::from_str::<Value>(&server.run(args).ok()).unwrap();
    assert_eq!(get("vpc show blue -o json"), one);
    assert_eq!(get("-o json vpc list"), list);
    assert_eq!(get("vpc create blue --vni 100 -o json"), one);
}

#[test]
fn realised_state_is_shown() {
    let state = item(json!({"host": "h1", "realised_revision": 42}), 5);
    let server = Recorder::new(&[(200, json!({"items": [state.clone()]})), (200, state)]);
    let list = "NAME  REALISED-REVISION  PROBLEM\nh1    42                 -\n";
    assert_eq!(server.run("host-state list").ok(), list);
    let block = "name               h1\nrealised-revision  42\nproblem            -\n";
    assert_eq!(server.run("host-state show h1").ok(), block);
    assert_eq!(server.run("host-state delete h1").failed().0, 2);
}

#[test]
fn refusals_are_told_problem_by_problem() {
    let reply = json!({"error": "the desired state would not be consistent:", "problems": [
        "vnic \"blue-1\": field vpc: there is no vpc \"blu\"", "vnic \"blue-1\": field paths: 17 lies outside 1 to 16"]});
    let server = Recorder::new(&[(422, reply)]);
    let expected = "masqctl: the desired state would not be consistent:\n  \
                    vnic \"blue-1\": field vpc: there is no vpc \"blu\"\n  \
                    vnic \"blue-1\": field paths: 17 lies outside 1 to 16\n";
    assert_eq!(server.run("vnic set blue-1 --vpc blu --paths 17").failed(), (1, expected.into()));
}
