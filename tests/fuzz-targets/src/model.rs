//! The desired state's text, and the entries of a store that somebody else has written to.

use std::collections::HashSet;

use masq_control::store::{Entry, Snapshot};
use masq_control::{Directory, Own, identity, plan_endpoint};
use masq_model::{DesiredState, Edit, Host, Key, Kind, MAX_ADDRESSES, MAX_PATHS, Object, Problems, Vnic};
use masq_policy::rules::Transport;

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
    for (key, object) in state.objects() {
        assert!(key.kind().is_desired(), "only hosts write {key}");
        assert_eq!(key.to_string().parse().as_ref(), Ok(key));
        let again = Object::from_entry(key, &object.to_json()).expect("what was written can be read");
        assert_eq!(again, *object);
    }
    let mut taken = HashSet::new();
    for host in hosts(state) {
        assert!((1..=MAX_PATHS).contains(&host.underlay.len()));
        assert!(host.underlay.iter().all(|a| taken.insert(*a)), "an underlay address is in use twice");
    }
    let mut gids = HashSet::new();
    let directory = Directory::from(state);
    for vnic in vnics(state) {
        assert!((1..=MAX_ADDRESSES).contains(&vnic.addresses.len()));
        assert!(vnic.gids().into_iter().all(|g| gids.insert((&vnic.vpc, g))), "a GID is in use twice");
        let vpc = state.vpc(&vnic.vpc).expect("its network exists");
        let endpoint = plan_endpoint(&directory, &vnic.name, Own::default());
        assert_eq!(endpoint.is_ok(), vnic.host.is_some(), "what was accepted can be realised: {endpoint:?}");
        if let Ok(endpoint) = endpoint {
            assert_eq!(endpoint.addresses.len(), usize::from(vnic.path_count()));
            assert_eq!(endpoint.vni, vpc.vni);
        }
        for local in vnic.gids() {
            directory.evaluate(vpc.vni, &vnic.name, Transport::Rc, local, local);
        }
    }
    gone_and_back(state);
}

fn hosts(state: &DesiredState) -> impl Iterator<Item = &Host> {
    state.of_kind(Kind::Host).filter_map(|(key, _)| state.host(key.name()))
}

fn vnics(state: &DesiredState) -> impl Iterator<Item = &Vnic> {
    state.of_kind(Kind::Vnic).filter_map(|(key, _)| state.vnic(key.name()))
}

/// What is consistent may go as a whole, and come back as a whole; what a change refuses leaves nothing behind.
fn gone_and_back(state: &DesiredState) {
    let mut edited = state.clone();
    for key in state.objects().keys() {
        if edited.edit(vec![Edit::Delete(key.clone())]).is_ok() {
            edited.edit(vec![Edit::Put(state.objects()[key].clone())]).expect("it was there before");
        }
        assert_eq!(edited, *state);
    }
    let deletes = state.objects().keys().cloned().map(Edit::Delete).collect();
    edited.edit(deletes).expect("nothing refers to what is gone");
    assert!(edited.objects().is_empty());
    edited.edit(state.objects().values().cloned().map(Edit::Put).collect()).expect("it was there before");
    assert_eq!(edited, *state);
}

/// Entries of a store are judged one by one; a directory takes those that make sense, and answers for all it has.
fn entries(text: &[u8]) {
    let mut snapshot = Snapshot { entries: Vec::new(), revision: 1 };
    let mut objects = Vec::new();
    for line in text.split(|b| *b == b'\n') {
        let at = line.iter().position(|b| *b == b' ').unwrap_or(line.len());
        let (key, value) = line.split_at(at);
        let key = String::from_utf8_lossy(key).into_owned();
        let value = value.strip_prefix(b" ").unwrap_or(value).to_vec();
        if let Ok(parsed) = key.parse::<Key>()
            && let Ok(object) = Object::from_entry(&parsed, &value)
        {
            assert_eq!(object.key(), parsed);
            assert_eq!(Object::from_entry(&parsed, &object.to_json()).ok().as_ref(), Some(&object));
            objects.push(object);
        }
        snapshot.entries.push(Entry { key, value, revision: 1 });
    }
    edits_of_anything(objects);
    let (mut directory, bad) = Directory::from_snapshot(&snapshot);
    assert!(directory.objects().count() + bad.len() <= snapshot.entries.len());
    let vnics: Vec<String> =
        snapshot.entries.iter().filter_map(|e| e.key.strip_prefix("masq/v1/vnic/").map(Into::into)).collect();
    for vnic in &vnics {
        let planned = plan_endpoint(&directory, vnic, Own { start: u32::MAX, ..Own::default() });
        if let Ok(identity) = planned.and_then(|endpoint| identity(&directory, &endpoint)) {
            for (local, remote) in identity.gids.iter().zip(identity.gids.iter().rev()) {
                directory.evaluate(identity.vni, vnic, Transport::Ud, *local, *remote);
            }
        }
    }
    let nothing = Snapshot { entries: Vec::new(), revision: 2 };
    directory.replace(&nothing);
    assert_eq!(directory.objects().count(), 0, "a directory forgets what is gone");
}

/// A store may hold what is not consistent; changes of it are answered, and those that are refused change nothing.
fn edits_of_anything(objects: Vec<Object>) {
    let mut state = DesiredState::from_objects(objects.iter().cloned());
    let held = state.clone();
    for object in objects {
        for edit in [Edit::Delete(object.key()), Edit::Put(object)] {
            let before = state.clone();
            if let Err(problems) = state.edit(vec![edit]) {
                assert!(!problems.is_empty(), "no reason is given");
                assert_eq!(state, before);
            }
        }
    }
    assert!(state.objects().keys().all(|key| held.objects().contains_key(key)));
}
