//! The API: what is refused and why, and what is told.

mod common;

use common::{DESIRED, Host, eventually, exchange, get, put};
use guest_sim::Device;
use masq_model::api::{Applied, ErrorReply, Status, VnicState};

const TOML: &str = "application/toml";

#[test]
fn a_desired_state_is_applied_once_and_told_back() {
    let host = Host::start();
    let api = host.api();
    let applied: Applied = serde_json::from_str(&put(&api, "/v1/desired", TOML, DESIRED)).unwrap();
    assert!(applied.is_nothing(), "it was there already");
    let more = format!("{DESIRED}\n[[vpc]]\nname = \"green\"\nvni = 300\n");
    let dry: Applied = serde_json::from_str(&put(&api, "/v1/desired?dry_run=true", TOML, &more)).unwrap();
    assert_eq!((dry.dry_run, dry.created.as_slice()), (true, ["masq/v1/vpc/green".to_owned()].as_slice()));
    let wet: Applied = serde_json::from_str(&put(&api, "/v1/desired", TOML, &more)).unwrap();
    assert_eq!((wet.dry_run, wet.created), (false, dry.created));
    eventually("the new network", || get(&api, "/v1/desired").contains("green"));
    // What is told can be applied as it is.
    let told = get(&api, "/v1/desired");
    let again: Applied = serde_json::from_str(&put(&api, "/v1/desired", "application/json", &told)).unwrap();
    assert!(again.is_nothing(), "{again:?}");
    let back: Applied = serde_json::from_str(&put(&api, "/v1/desired", TOML, DESIRED)).unwrap();
    assert_eq!(back.deleted, ["masq/v1/vpc/green"]);
}

#[test]
fn what_is_wrong_is_named_and_nothing_is_written() {
    let host = Host::start();
    let api = host.api();
    let before = get(&api, "/v1/desired");
    let bad = DESIRED.replace("vni = 200", "vni = 100").replace("52:54:00:64:00:01", "53:54:00:64:00:01");
    let (status, body) = exchange(&api, "PUT", "/v1/desired", TOML, &bad);
    assert_eq!(status, 422);
    let reply: ErrorReply = serde_json::from_str(&body).unwrap();
    assert!(reply.problems.iter().any(|p| p.contains("vni") && p.contains("red")), "{reply}");
    assert!(reply.problems.iter().any(|p| p.contains("blue-1") && p.contains("mac")), "{reply}");
    assert_eq!(exchange(&api, "PUT", "/v1/desired", TOML, "[[host]").0, 422);
    assert_eq!(exchange(&api, "PUT", "/v1/desired", "application/x-yaml", DESIRED).0, 415);
    assert_eq!(exchange(&api, "GET", "/v1/nothing", "", "").0, 404);
    assert_eq!(exchange(&api, "DELETE", "/v1/desired", "", "").0, 405);
    assert_eq!(get(&api, "/v1/desired"), before);
}

#[test]
fn status_follows_the_guests_and_readiness_the_problems() {
    let host = Host::start();
    let api = host.api();
    let status = || serde_json::from_str::<Status>(&get(&api, "/v1/status")).unwrap();
    let state = |name: &str| status().vnics.into_iter().find(|v| v.name == name).map(|v| v.state);
    eventually("the devices", || state("blue-1") == Some(VnicState::Waiting));
    assert_eq!(get(&api, "/healthz"), "ok\n");
    eventually("readiness", || exchange(&api, "GET", "/readyz", "", "").0 == 200);
    let guest = Device::connect(&host.socket("blue-1"), 16 << 20).unwrap();
    assert_eq!((state("blue-1"), state("red-1")), (Some(VnicState::Connected), Some(VnicState::Waiting)));
    assert_eq!(status().vnics[0].epoch, Some(format!("{:016x}", guest.config.epoch)));

    let elsewhere = DESIRED.replace("127.0.0.1", "192.0.2.77");
    put(&api, "/v1/desired", TOML, &elsewhere);
    eventually("the missing address to be noticed", || {
        let (status, body) = exchange(&api, "GET", "/readyz", "", "");
        status == 503 && body.contains("192.0.2.77")
    });
    put(&api, "/v1/desired", TOML, DESIRED);
    eventually("readiness", || exchange(&api, "GET", "/readyz", "", "").0 == 200);
}
