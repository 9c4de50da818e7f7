//! masqctl against a masqd in the same process: what is printed, and exit statuses.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use masq_driver::{DriverError, Reply, RnicDriver};
use masqd::cli::StoreAddress;
use masqd::{Config, Masqd};

const DESIRED: &str = r#"
[[host]]
name = "h1"
underlay = ["127.0.0.1"]

[[vpc]]
name = "blue"
vni = 100

[[vnic]]
name = "blue-1"
vpc = "blue"
host = "h1"
mac = "52:54:00:64:00:01"
addresses = ["192.168.0.1"]

[[rule]]
name = "members"
vpc = "blue"
source = "192.168.0.0/24"
destination = "192.168.0.0/24"
action = "allow"
"#;

/// No guest comes, so no command does.
struct Idle;

impl RnicDriver for Idle {
    fn execute(&self, _command: masq_driver::Command) -> Result<Reply, DriverError> {
        Ok(Reply::Done)
    }
}

fn start(dir: &Path) -> Masqd {
    let config = Config {
        host: "h1".into(),
        store: StoreAddress::Embedded(dir.join("store")),
        run_dir: dir.join("run"),
        apply: None,
    };
    Masqd::start(config, |_| Ok(Arc::new(Idle))).unwrap()
}

fn masqctl(dir: &Path, args: &[&str], input: &str) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_masqctl"))
        .arg("--socket")
        .arg(dir.join("run/masqd.sock"))
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // It may end without reading.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    child.wait_with_output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[test]
fn apply_tells_what_changed_and_get_shows_it() {
    let dir = tempfile::tempdir().unwrap();
    let _masqd = start(dir.path());
    let ctl = |args: &[&str], input: &str| {
        let out = masqctl(dir.path(), args, input);
        assert!(out.status.success(), "{args:?}: {}", text(&out.stderr));
        text(&out.stdout).to_owned()
    };
    let created = "created masq/v1/host/h1\ncreated masq/v1/vpc/blue\ncreated masq/v1/vnic/blue-1\n\
                   created masq/v1/rule/blue/members\n";
    let dry = ctl(&["apply", "--dry-run", "-f", "-"], DESIRED);
    assert_eq!(dry, format!("{created}(dry run: nothing has been written)\n"));
    assert_eq!(ctl(&["apply", "-f", "-"], DESIRED), created);
    assert_eq!(ctl(&["apply", "-f", "-"], DESIRED), "nothing to change\n");
    let denied = DESIRED.replace("allow", "deny");
    assert_eq!(ctl(&["apply", "-f", "-"], &denied), "changed masq/v1/rule/blue/members\n");
    // JSON is taken as well, also what was given out.
    let told = ctl(&["get", "rules", "-o", "json"], "");
    assert!(told.contains("\"deny\""), "{told}");

    assert_eq!(ctl(&["get", "vpcs"], ""), "NAME  VNI\nblue  100\n");
    assert_eq!(ctl(&["get", "hosts"], ""), "NAME  UNDERLAY\nh1    127.0.0.1\n");
    assert!(ctl(&["get", "vnics"], "").contains("blue-1  blue  h1    52:54:00:64:00:01  192.168.0.1"));
    assert_eq!(ctl(&["connections"], "").lines().count(), 1);
    let deadline = Instant::now() + Duration::from_secs(10);
    while !ctl(&["status"], "").contains("waiting") {
        assert!(Instant::now() < deadline, "{}", ctl(&["status"], ""));
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(ctl(&["get", "endpoints"], "").contains("blue-1  100  h1    127.0.0.1"));
    let status = ctl(&["status", "-o", "json"], "");
    let status: masq_model::api::Status = serde_json::from_str(&status).unwrap();
    assert!(status.ready, "{:?}", status.problems);
}

#[test]
fn failures_are_sentences_with_exit_statuses() {
    let dir = tempfile::tempdir().unwrap();
    let out = masqctl(dir.path(), &["status"], "");
    assert_eq!(out.status.code(), Some(3));
    assert!(text(&out.stderr).contains("is it running"), "{}", text(&out.stderr));

    let _masqd = start(dir.path());
    let out = masqctl(
        dir.path(),
        &["apply", "-f", "-"],
        &DESIRED.replace("vpc = \"blue\"\nhost", "vpc = \"blu\"\nhost"),
    );
    assert_eq!(out.status.code(), Some(1));
    let message = text(&out.stderr);
    assert!(
        message.contains("blue-1") && message.contains("vpc") && message.contains("\"blu\""),
        "{message}"
    );
    let out = masqctl(dir.path(), &["apply", "-f", "/nowhere.toml"], "");
    assert_eq!(out.status.code(), Some(2));
    assert!(text(&out.stderr).contains("/nowhere.toml"));
    assert_eq!(masqctl(dir.path(), &["get", "pods"], "").status.code(), Some(2));
}
