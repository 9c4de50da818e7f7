//! What is not about single objects: files, explanations, rates, and what goes wrong on the way to masqd.

use std::io::Write;

use crate::server::{Recorder, background, ended, masqctl};
use serde_json::{Value, json};

fn applied(changes: Value, dry_run: bool) -> Value {
    json!({"dry_run": dry_run, "changes": changes})
}

#[test]
fn a_file_is_applied_in_its_form() {
    let created = json!([{"change": "created", "kind": "security_group_rule", "name": "blue/in"}]);
    let server = Recorder::new(&[
        (200, applied(created.clone(), true)),
        (200, applied(created, false)),
        (200, applied(json!([]), false)),
    ]);
    let toml = "[[vpc]]\nname = \"blue\"\nvni = 100\n";
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(toml.as_bytes()).unwrap();
    let dry = server.run(&format!("apply --dry-run -f {}", file.path().display())).ok();
    assert_eq!(dry, "created rule blue/in\n(dry run: nothing has been written)\n");
    assert_eq!(
        server.run_with_input("apply -f - --prune --wait 9", " {\"vpc\": []}").ok(),
        "created rule blue/in\n"
    );
    let out = server.run_with_input("apply -f - -o json", toml).ok();
    assert_eq!(serde_json::from_str::<Value>(&out).unwrap(), applied(json!([]), false));
    let requests = server.script.requests();
    let told: Vec<_> = requests
        .iter()
        .map(|r| (r.line.as_str(), r.header("content-type").unwrap(), r.body.as_str()))
        .collect();
    assert_eq!(
        told,
        [
            ("POST /v1/apply?prune=false&dry_run=true", "application/toml", toml),
            ("POST /v1/apply?prune=true&dry_run=false&wait=9", "application/json", " {\"vpc\": []}"),
            ("POST /v1/apply?prune=false&dry_run=false", "application/toml", toml),
        ]
    );
}

#[test]
fn an_apply_that_is_late_ends_with_4() {
    let status =
        json!({"generation": 4, "realised_generation": 0, "state": "pending", "waiting_for": ["h1"]});
    let changes = json!([{"change": "deleted", "kind": "vnic", "name": "blue-1"}]);
    let server = Recorder::new(&[(200, json!({"dry_run": false, "changes": changes, "status": status}))]);
    let out = server.run_with_input("apply -f - --wait 1", "");
    assert_eq!((out.status, out.stdout.as_str()), (4, "deleted vnic blue-1\ngeneration 4, pending\n"));
    assert_eq!(out.stderr, "masqctl: what was applied is pending after 1 s; not in force on:\n  h1\n");
}

#[test]
fn an_export_can_be_applied() {
    let desired = json!({"host": [{"name": "h1", "underlay": ["10.0.0.1"]}], "later": []});
    let server = Recorder::new(&[(200, desired.clone()), (200, applied(json!([]), false))]);
    let exported = server.run("export").ok();
    server.run_with_input("apply -f -", &exported).ok();
    let requests = server.script.requests();
    assert_eq!(requests[0].line, "GET /v1/desired");
    assert_eq!(requests[1].header("content-type"), Some("application/json"));
    assert_eq!(requests[1].json(), desired);
}

#[test]
fn explain_ends_with_what_it_says() {
    let end = |vnic: &str| json!({"vnic": vnic, "address": "192.168.0.1", "security_groups": []});
    let told = |allowed: bool| {
        json!({"allowed": allowed, "summary": "because", "from": end("a"), "to": end("b"), "flows": [],
               "obstacles": []})
    };
    let server = Recorder::new(&[(200, told(true)), (200, told(false)), (200, told(false))]);
    assert!(server.run("explain a b").ok().starts_with("allowed: because\n"));
    let out = server.run("explain fd00::1 b --vpc blue --transport ud");
    assert_eq!((out.status, out.stderr.as_str()), (5, ""));
    assert!(out.stdout.starts_with("denied: because\n"), "{}", out.stdout);
    assert_eq!(server.run("explain a b -o json").status, 5);
    let requests = server.script.requests();
    assert_eq!(requests[0].line, "GET /v1/explain?from=a&to=b");
    assert_eq!(requests[1].line, "GET /v1/explain?from=fd00%3A%3A1&to=b&vpc=blue&transport=ud");
}

#[test]
fn connections_and_counters_are_asked_for() {
    let server = Recorder::new(&[(200, json!([])), (200, json!([])), (200, json!({"tx_packets": 5}))]);
    assert_eq!(server.run("connections --vnic blue-1 --vpc blue -o json").ok(), "[]\n");
    assert_eq!(server.run("connections").ok().lines().count(), 1);
    assert_eq!(server.run("counters").ok(), "COUNTER     VALUE\ntx_packets      5\n");
    let requests = server.script.requests();
    assert_eq!(requests[0].line, "GET /v1/connections?vnic=blue-1&vpc=blue");
    assert_eq!(requests[1].line, "GET /v1/connections");
}

#[test]
fn top_compares_samples() {
    let sample = |bytes: u64| {
        json!([{"vnic": "blue-1", "vpc": "blue", "tx_bytes": bytes, "rx_bytes": 0, "tx_packets": 0,
                "rx_packets": 0, "limited_ns": 0}])
    };
    let replies: Vec<_> = [0, 1_000_000, 1_000_000, 1_000_000, 9_000_000].map(|b| (200, sample(b))).into();
    let server = Recorder::new(&replies);
    let out = server.run("top --once --interval 0.1").ok();
    let line: Vec<&str> = out.lines().nth(1).unwrap().split_whitespace().collect();
    assert_eq!(line[..2], ["blue-1", "blue"]);
    assert_ne!(line[2], "0");
    let out = server.run("top --interval 0.1 -o json");
    // It goes on until masqd fails it: three samples make two intervals.
    assert_eq!((out.status, out.stdout.lines().count()), (1, 2));
    let rates: Vec<Value> = out.stdout.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    assert_eq!(rates[0][0]["tx_bits_per_sec"], 0);
    assert!(rates[1][0]["tx_bits_per_sec"].as_u64() > Some(0));
    assert_eq!(server.run("top --interval 0").failed().0, 2);
}

#[test]
fn completions_need_no_masqd() {
    for shell in ["bash", "zsh", "fish"] {
        let mut command = masqctl();
        command.args(["completion", shell]);
        let script = ended(command, "").ok();
        assert!(script.contains("security-group") && script.contains("quota-qps"), "{shell}");
    }
}

#[test]
fn answers_that_make_no_sense_are_failures() {
    let server = Recorder::new(&[(200, json!([1])), (404, json!({"error": "there is no vpc \"x\""}))]);
    let (code, message) = server.run("status").failed();
    assert!(code == 1 && message.contains("same version"), "{message}");
    assert_eq!(server.run("vpc show x").failed(), (1, "masqctl: there is no vpc \"x\"\n".into()));
    // The script is at its end, which is a status with a text.
    assert_eq!(
        server.run("status").failed(),
        (1, "masqctl: masqd answered 500 Internal Server Error\n".into())
    );
}

#[test]
fn a_masqd_that_is_not_there_ends_with_3() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("none.sock");
    let mut command = masqctl();
    command.arg("status").env("MASQD_SOCKET", &socket);
    let (code, message) = ended(command, "").failed();
    assert_eq!(code, 3);
    assert!(message.contains("is it running") && message.contains("none.sock"), "{message}");

    let socket = dir.path().join("mute.sock");
    let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    background(move || async move { drop(listener.accept()) });
    let mut command = masqctl();
    command.arg("status").arg("--socket").arg(&socket);
    let (code, message) = ended(command, "").failed();
    assert!(code == 3 && message.contains("broke the connection off"), "{message}");
}

#[test]
fn wrong_usage_ends_with_2() {
    let server = Recorder::new(&[]);
    for args in [
        "",
        "vnic",
        "vnic create",
        "vnic set blue-1",
        "vnic set blue-1 --host h1 --unset host",
        "pod list",
        "qos-policy create gold --rate 1MB",
        "apply -f /nowhere.toml",
        "apply -f - --dry-run --wait 1",
        "vpc create blue --vni 1 --wait 301",
        "status --server https://127.0.0.1:1",
        "explain a",
    ] {
        assert_eq!(server.run(args).failed().0, 2, "{args}");
    }
    assert!(server.script.requests().is_empty());
    let (_, message) = server.run("apply -f /nowhere.toml").failed();
    assert!(message.starts_with("masqctl: cannot read /nowhere.toml: "), "{message}");
}
