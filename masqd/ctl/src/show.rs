//! What `apply`, `status`, `connections` and `counters` print for people.

use std::collections::BTreeMap;
use std::fmt::Display;

use masq_model::api::{Applied, ChangeKind, ConnectionStatus, FieldChange, Status};
use serde_json::Value;

use crate::form::Form;
use crate::kinds::{KINDS, word_of};
use crate::table::Table;
use crate::units;

fn join(items: &[impl Display]) -> String {
    items.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

/// What an apply has changed.
pub fn applied(applied: &Applied) -> String {
    let mut text = String::new();
    for change in &applied.changes {
        let verb = match change.change {
            ChangeKind::Created => "created",
            ChangeKind::Changed => "changed",
            ChangeKind::Deleted => "deleted",
        };
        text += &format!("{verb} {} {}\n", word_of(&change.kind), change.name);
        for field in &change.fields {
            text += &field_change(&change.kind, field);
        }
    }
    if applied.changes.is_empty() {
        text += "nothing to change\n";
    }
    if applied.dry_run {
        text += "(dry run: nothing has been written)\n";
    }
    if let Some(status) = applied.status.as_ref().filter(|_| !applied.changes.is_empty()) {
        text += &format!("generation {}, {}\n", status.generation, status.state);
    }
    text
}

/// A line for the field, or for each part of it that differs.
fn field_change(kind: &str, change: &FieldChange) -> String {
    let fields = KINDS.iter().find(|k| k.kind.name() == kind).map_or(&[][..], |k| k.fields);
    let part_of = |path: &'static str| path.strip_prefix(change.field.as_str())?.strip_prefix('.');
    let parts: Vec<String> = fields
        .iter()
        .filter_map(|f| Some((f, part_of(f.path)?)))
        .map(|(f, part)| (f, change.old.get(part), change.new.get(part)))
        .filter(|(_, old, new)| old != new)
        .map(|(f, old, new)| line(f.path, Some(f.form), old, new))
        .collect();
    if !parts.is_empty() {
        return parts.concat();
    }
    let form = fields.iter().find(|f| f.path == change.field).map(|f| f.form);
    line(&change.field, form, Some(&change.old), Some(&change.new))
}

fn line(field: &str, form: Option<Form>, old: Option<&Value>, new: Option<&Value>) -> String {
    let shown = |value: Option<&Value>| {
        let text = match (value, form) {
            (None | Some(Value::Null), _) => String::new(),
            (Some(value), Some(form)) => form.show(value),
            (Some(value), None) => value.to_string(),
        };
        if text.is_empty() { "-".into() } else { text }
    };
    format!("    {field}: {} -> {}\n", shown(old), shown(new))
}

/// What an RNIC has counted.
pub fn counters(counters: &BTreeMap<String, Value>) -> String {
    let mut table = Table::new(["COUNTER", ">VALUE"]);
    counters.iter().for_each(|(name, value)| table.row([name.clone(), value.to_string()]));
    table.to_string()
}

/// How a host is.
pub fn status(status: &Status) -> String {
    let link = match status.link {
        Some(link) => {
            format!("{}, path MTU {}", if link.up { "up" } else { "down" }, link.active_mtu_bytes)
        }
        None => "unknown".into(),
    };
    let underlay = if status.underlay.is_empty() { "none".into() } else { join(&status.underlay) };
    let mut table = Table::default();
    let mut line = |title: &str, value: String| table.row([title.to_owned(), value]);
    line("host", status.host.clone());
    line("ready", if status.ready { "yes" } else { "no" }.into());
    line("underlay", format!("{underlay} ({link})"));
    line("store", format!("{} at revision {}", status.store, status.revision));
    line("version", status.version.clone());
    status.problems.iter().for_each(|p| line("problem", p.clone()));
    let mut text = table.to_string();
    if status.vnics.is_empty() {
        return text;
    }
    let mut table = Table::new([
        "VNIC",
        "VPC",
        "VNI",
        "ADDRESSES",
        "STATE",
        ">CONTEXTS",
        ">PDS",
        ">MRS",
        ">CQS",
        ">QPS",
        ">SRQS",
        ">MWS",
        ">PEERS",
    ]);
    for v in &status.vnics {
        let o = &v.objects;
        let objects = [o.contexts, o.pds, o.mrs, o.cqs, o.qps, o.srqs, o.mws, v.peers];
        let words =
            [v.name.clone(), v.vpc.clone(), v.vni.to_string(), join(&v.addresses), v.state.to_string()];
        table.row(words.into_iter().chain(objects.map(|n| n.to_string())));
    }
    text += &format!("\n{table}");
    for v in &status.vnics {
        if let Some(problem) = &v.problem {
            text += &format!("{}: {problem}\n", v.name);
        }
    }
    text
}

/// Connections of queue pairs, as they are at a time in seconds since 1970.
pub fn connections(connections: &[ConnectionStatus], now_unix_seconds: u64) -> String {
    let mut table = Table::new([
        "VNIC",
        "VPC",
        "TYPE",
        "LOCAL",
        "QPN",
        "PEER",
        "REMOTE",
        "REMOTE-QPN",
        "PATH",
        "UNDERLAY",
        "ALLOWED-BY",
        ">SENT",
        ">RECEIVED",
        ">AGE",
    ]);
    for c in connections {
        table.row([
            c.vnic.clone(),
            c.vpc.clone(),
            c.transport.clone(),
            c.local.to_string(),
            format!("{:#x}", c.local_qpn),
            c.peer.clone(),
            c.remote.to_string(),
            format!("{:#x}", c.remote_qpn),
            c.path.to_string(),
            c.remote_underlay.to_string(),
            c.allowed_by.clone(),
            units::about_bytes(c.tx_bytes),
            units::about_bytes(c.rx_bytes),
            units::age(now_unix_seconds.saturating_sub(c.since_unix_seconds)),
        ]);
    }
    table.to_string()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn from<T: serde::de::DeserializeOwned>(value: Value) -> T {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn an_apply_tells_each_field() {
        let told: Applied = from(json!({
            "dry_run": true,
            "changes": [
                {"change": "created", "kind": "host", "name": "h1"},
                {"change": "changed", "kind": "vnic", "name": "blue-1", "fields": [
                    {"field": "host", "old": "h1", "new": "h2"},
                    {"field": "qos_policy", "old": null, "new": "gold"},
                    {"field": "quota", "old": {"qps": 1, "cqs": 3, "pinned_bytes": 1u64 << 30},
                     "new": {"qps": 2, "cqs": 3}},
                    {"field": "later", "old": {"a": 1}, "new": null},
                    {"field": "addresses", "old": ["10.0.0.1"], "new": ["10.0.0.1", "fd00::1"]}]},
                {"change": "changed", "kind": "qos_policy", "name": "gold", "fields": [
                    {"field": "rate_bits_per_sec", "old": 1_000_000_000u64, "new": 2_500_000_000u64}]},
                {"change": "deleted", "kind": "security_group_rule", "name": "blue/in"}]
        }));
        let expected = "\
created host h1
changed vnic blue-1
    host: h1 -> h2
    qos_policy: - -> gold
    quota.qps: 1 -> 2
    quota.pinned_bytes: 1 GiB -> -
    later: {\"a\":1} -> -
    addresses: 10.0.0.1 -> 10.0.0.1,fd00::1
changed qos-policy gold
    rate_bits_per_sec: 1 Gbit/s -> 2.5 Gbit/s
deleted rule blue/in
(dry run: nothing has been written)
";
        assert_eq!(applied(&told), expected);
        let nothing = json!({"dry_run": false, "changes": [], "status": {"generation": 4, "realised_generation": 4,
            "state": "realised"}});
        assert_eq!(applied(&from(nothing)), "nothing to change\n");
        let one = json!({"dry_run": false, "changes": [{"change": "created", "kind": "vpc", "name": "blue"}],
            "status": {"generation": 4, "realised_generation": 0, "state": "pending"}});
        assert_eq!(applied(&from(one)), "created vpc blue\ngeneration 4, pending\n");
    }

    #[test]
    fn a_host_is_shown_with_its_vnics() {
        let mut told = json!({
            "host": "h1", "version": "0.1.0", "ready": false, "problems": ["the store is away"],
            "store": "etcd", "revision": 42, "underlay": ["10.77.0.1", "10.78.0.1"],
            "link": {"up": true, "active_mtu_bytes": 4096},
            "vnics": [{"name": "blue-1", "vpc": "blue", "vni": 100, "mac": "52:54:00:64:00:01",
                "addresses": ["192.168.0.1"], "socket": "/run/masqd/blue-1.sock", "state": "failed",
                "problem": "its socket is taken",
                "objects": {"contexts": 1, "pds": 2, "mrs": 3, "cqs": 4, "qps": 5, "srqs": 6, "mws": 7, "xrcds": 8}, "peers": 9}]
        });
        let expected = "\
host      h1
ready     no
underlay  10.77.0.1,10.78.0.1 (up, path MTU 4096)
store     etcd at revision 42
version   0.1.0
problem   the store is away

VNIC    VPC   VNI  ADDRESSES    STATE   CONTEXTS  PDS  MRS  CQS  QPS  SRQS  MWS  PEERS
blue-1  blue  100  192.168.0.1  failed         1    2    3    4    5     6    7      9
blue-1: its socket is taken
";
        assert_eq!(status(&from(told.clone())), expected);
        told["vnics"] = json!([]);
        told["underlay"] = json!([]);
        told["link"] = Value::Null;
        assert!(status(&from(told)).ends_with("version   0.1.0\nproblem   the store is away\n"));
    }

    #[test]
    fn connections_have_units_and_ages() {
        let told = json!([{"vnic": "blue-1", "vpc": "blue", "transport": "rc", "local": "192.168.0.1",
            "local_qpn": 17, "remote": "192.168.0.2", "remote_qpn": 256, "peer": "blue-2", "path": 1,
            "remote_underlay": "10.77.0.2", "allowed_by": "rule blue/in", "since_unix_seconds": 1000,
            "tx_bytes": 1536, "rx_bytes": 0}]);
        let expected = "\
VNIC    VPC   TYPE  LOCAL        QPN   PEER    REMOTE       REMOTE-QPN  PATH  UNDERLAY   ALLOWED-BY        \
SENT  RECEIVED    AGE
blue-1  blue  rc    192.168.0.1  0x11  blue-2  192.168.0.2  0x100       1     10.77.0.2  rule blue/in  \
1.50 KiB       0 B  3m12s
";
        assert_eq!(connections(&from::<Vec<_>>(told), 1192), expected);
        assert_eq!(connections(&[], 0).lines().count(), 1);
    }

    #[test]
    fn counters_are_aligned_to_the_right() {
        let told = from(json!({"rx_packets": 1234, "tx": 5}));
        assert_eq!(counters(&told), "COUNTER     VALUE\nrx_packets   1234\ntx              5\n");
    }
}
