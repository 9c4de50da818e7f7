//! Changes through masqctl, and how far they are realised.

use guest_sim::suite::World;
use masq_model::api::{Explanation, Item, ItemStatus, RealisedState, Status};
use serde::de::DeserializeOwned;
use serde_json::Value;

/// The longest that a change may take until it is in force everywhere, in seconds.
pub const WAIT_SECONDS: u16 = 20;

/// Makes a change through host 1, and waits until it is realised.
///
/// # Panics
/// When it is refused or not realised in time.
#[track_caller]
pub fn change(world: &World, args: &[&str]) -> ItemStatus {
    let (code, status) = change_on(world, 1, WAIT_SECONDS, args);
    assert_eq!(code, 0, "masqctl {args:?}: {status:?}");
    assert_eq!(status.state, RealisedState::Realised, "masqctl {args:?}: {status:?}");
    assert_eq!(status.realised_generation, status.generation, "masqctl {args:?}: {status:?}");
    status
}

/// Makes a change through a host, and waits for at most `wait` seconds; masqctl's exit status, and how far it is realised.
///
/// # Panics
/// When it is refused.
#[track_caller]
pub fn change_on(world: &World, host: u8, wait: u16, args: &[&str]) -> (i32, ItemStatus) {
    let wait = wait.to_string();
    let done =
        world.cluster.ctl(host, &[args, &["--wait", &wait, "-o", "json"]].concat()).expect("masqctl runs");
    let reply: Value = serde_json::from_str(&done.out).unwrap_or_else(|e| panic!("{done:?}: {e}"));
    // A deletion is answered by the status alone.
    let status = reply.get("status").unwrap_or(&reply);
    let status = serde_json::from_value(status.clone()).unwrap_or_else(|e| panic!("{done:?}: {e}"));
    (done.code, status)
}

/// Asks a host for JSON; also the exit status.
#[track_caller]
fn ask<T: DeserializeOwned>(world: &World, host: u8, args: &[&str]) -> (i32, T) {
    let done = world.cluster.ctl(host, &[args, &["-o", "json"]].concat()).expect("masqctl runs");
    (done.code, serde_json::from_str(&done.out).unwrap_or_else(|e| panic!("{done:?}: {e}")))
}

/// How far an object is realised, as a host knows it: `masqctl KIND show NAME`.
#[track_caller]
pub fn status_of(world: &World, host: u8, kind: &str, name: &[&str]) -> ItemStatus {
    let (_, item) = ask::<Item<Value>>(world, host, &[&[kind, "show"], name].concat());
    item.status
}

/// How a host is.
#[track_caller]
pub fn host_status(world: &World, host: u8) -> Status {
    ask(world, host, &["status"]).1
}

/// `masqctl explain`; the exit status says the same as the answer.
#[track_caller]
pub fn explain(world: &World, host: u8, from: &str, to: &str) -> Explanation {
    explain_of(world, host, from, to, "rc")
}

/// The same about another transport service, or about `cm`.
#[track_caller]
pub fn explain_of(world: &World, host: u8, from: &str, to: &str, transport: &str) -> Explanation {
    let words = ["explain", from, to, "--transport", transport];
    let (code, explanation) = ask::<Explanation>(world, host, &words);
    assert_eq!(code, if explanation.allowed { 0 } else { 5 }, "{from} to {to}: {explanation:?}");
    explanation
}
