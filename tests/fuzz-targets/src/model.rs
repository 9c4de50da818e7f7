//! The desired state's text, and the entries of a store that somebody else has written to.

use std::collections::HashSet;

use masq_control::store::{Entry, Snapshot};
use masq_control::{Directory, identity, plan_endpoint};
use masq_model::{DesiredState, Key, MAX_ADDRESSES, MAX_PATHS, Object, Problems};

/// One input. Its first byte says what the rest is: TOML, JSON, or entries of a store, one a line: key, space, value.
pub fn run(data: &[u8]) {
    let Some((form, rest)) = data.split_first() else { return };
    match form % 3 {
        0 => desired(rest, DesiredState::from_toml),
        1 => desired(rest, DesiredState::from_json),
        _ => entries(rest),
    }
}

fn desired(text: &[u8], parse: fn(&str) -> Result<DesiredState, Problems>) {
    let Ok(text) = std::str::from_utf8(text) else { return };
    match parse(text) {
        Ok(state) => consistent(&state),
        Err(problems) => assert!(!problems.to_string().is_empty(), "no reason is given"),
    }
}

/// What a state that was accepted must be like.
fn consistent(state: &DesiredState) {
    let objects = state.objects();
    let count = state.hosts().len() + state.vpcs().len() + state.vnics().len() + state.rules().len();
    assert_eq!(objects.len(), count, "two objects have one key");
    for (key, object) in &objects {
        assert_eq!(key.to_string().parse().as_ref(), Ok(key));
        let again = Object::from_entry(key, &object.to_json()).expect("what was written can be read");
        assert_eq!(again, *object);
    }
    let mut taken = HashSet::new();
    for host in state.hosts() {
        assert!((1..=MAX_PATHS).contains(&host.underlay.len()));
        assert!(host.underlay.iter().all(|a| taken.insert(*a)), "an underlay address is in use twice");
    }
    let mut gids = HashSet::new();
    let directory = Directory::from(state);
    for vnic in state.vnics() {
        assert!((1..=MAX_ADDRESSES).contains(&vnic.addresses.len()));
        assert!(vnic.gids().into_iter().all(|g| gids.insert((&vnic.vpc, g))), "a GID is in use twice");
        let endpoint = plan_endpoint(&directory, &vnic.name, 0).expect("what was accepted can be realised");
        assert_eq!(endpoint.addresses.len(), usize::from(vnic.path_count()));
        for local in vnic.gids() {
            directory.evaluate(endpoint.vni, &vnic.name, local, local);
        }
    }
}

/// Entries of a store are judged one by one; a directory takes those that make sense, and answers for all it has.
fn entries(text: &[u8]) {
    let mut snapshot = Snapshot { entries: Vec::new(), revision: 1 };
    for line in text.split(|b| *b == b'\n') {
        let at = line.iter().position(|b| *b == b' ').unwrap_or(line.len());
        let (key, value) = line.split_at(at);
        let key = String::from_utf8_lossy(key).into_owned();
        let value = value.strip_prefix(b" ").unwrap_or(value).to_vec();
        if let Ok(parsed) = key.parse::<Key>() {
            if let Ok(object) = Object::from_entry(&parsed, &value) {
                assert_eq!(object.key(), parsed);
                assert_eq!(Object::from_entry(&parsed, &object.to_json()).ok(), Some(object));
            }
        }
        snapshot.entries.push(Entry { key, value, revision: 1 });
    }
    let (mut directory, bad) = Directory::from_snapshot(&snapshot);
    assert!(directory.objects().count() + bad.len() <= snapshot.entries.len());
    let vnics: Vec<String> =
        snapshot.entries.iter().filter_map(|e| e.key.strip_prefix("masq/v1/vnic/").map(Into::into)).collect();
    for vnic in &vnics {
        let _ = plan_endpoint(&directory, vnic, u32::MAX);
        if let Ok(identity) = identity(&directory, vnic) {
            for (local, remote) in identity.gids.iter().zip(identity.gids.iter().rev()) {
                directory.evaluate(identity.vni, vnic, *local, *remote);
            }
        }
    }
    let nothing = Snapshot { entries: Vec::new(), revision: 2 };
    directory.replace(&nothing);
    assert_eq!(directory.objects().count(), 0, "a directory forgets what is gone");
}
