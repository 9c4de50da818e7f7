//! What is printed.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::io::Write;

use masq_model::api::{Applied, ConnectionStatus, Status};
use masq_model::{Action, Endpoint, Host, Rule, Vnic, Vpc};
use serde::Serialize;

use crate::table::Table;
use crate::{Failure, Output};

fn print(text: impl Display) -> Result<(), Failure> {
    Ok(write!(std::io::stdout().lock(), "{text}")?)
}

fn json(value: &impl Serialize) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    serde_json::to_writer_pretty(&mut out, value).map_err(std::io::Error::from)?;
    Ok(writeln!(out)?)
}

fn list<T: Serialize, const N: usize>(
    items: &[T],
    output: Output,
    header: [&str; N],
    row: impl Fn(&T) -> [String; N],
) -> Result<(), Failure> {
    match output {
        Output::Json => json(&items),
        Output::Table => {
            let mut table = Table::new(header);
            items.iter().for_each(|item| table.row(row(item)));
            print(table)
        }
    }
}

fn join(items: &[impl ToString]) -> String {
    items.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

/// What an RNIC has counted.
pub fn counters(counters: &BTreeMap<String, u64>, output: Output) -> Result<(), Failure> {
    match output {
        Output::Json => json(counters),
        Output::Table => {
            let mut table = Table::new(["COUNTER", "VALUE"]);
            counters.iter().for_each(|(name, value)| table.row([name.clone(), value.to_string()]));
            print(table)
        }
    }
}

/// What an apply has changed.
pub fn applied(applied: &Applied) -> Result<(), Failure> {
    let mut text = String::new();
    let keys = [("created", &applied.created), ("changed", &applied.changed), ("deleted", &applied.deleted)];
    for (what, keys) in keys {
        for key in keys {
            text += &format!("{what} {key}\n");
        }
    }
    if applied.is_nothing() {
        text += "nothing to change\n";
    }
    if applied.dry_run {
        text += "(dry run: nothing has been written)\n";
    }
    print(text)
}

/// How a host is.
pub fn status(status: &Status, output: Output) -> Result<(), Failure> {
    if matches!(output, Output::Json) {
        return json(status);
    }
    let link = match status.link {
        Some(link) => {
            format!("{}, path MTU {}", if link.up { "up" } else { "down" }, link.active_mtu_bytes)
        }
        None => "unknown".into(),
    };
    let underlay = if status.underlay.is_empty() { "none".into() } else { join(&status.underlay) };
    let mut text = format!(
        "host      {}\nready     {}\nunderlay  {underlay} ({link})\nstore     {} at revision {}\nversion   {}\n",
        status.host,
        if status.ready { "yes" } else { "no" },
        status.store,
        status.revision,
        status.version
    );
    for problem in &status.problems {
        text += &format!("problem   {problem}\n");
    }
    let mut table = Table::new(["VNIC", "VPC", "VNI", "ADDRESSES", "STATE", "CONTEXTS", "MRS", "CQS", "QPS"]);
    for v in &status.vnics {
        table.row([
            v.name.clone(),
            v.vpc.clone(),
            v.vni.to_string(),
            join(&v.addresses),
            v.state.to_string(),
            v.objects.contexts.to_string(),
            v.objects.mrs.to_string(),
            v.objects.cqs.to_string(),
            v.objects.qps.to_string(),
        ]);
    }
    if !status.vnics.is_empty() {
        text += &format!("\n{table}");
    }
    for v in &status.vnics {
        if let Some(problem) = &v.problem {
            text += &format!("{}: {problem}\n", v.name);
        }
    }
    print(text)
}

/// Machines that run masqd.
pub fn hosts(hosts: &[Host], output: Output) -> Result<(), Failure> {
    list(hosts, output, ["NAME", "UNDERLAY"], |h| [h.name.clone(), join(&h.underlay)])
}

/// Tenants' networks.
pub fn vpcs(vpcs: &[Vpc], output: Output) -> Result<(), Failure> {
    list(vpcs, output, ["NAME", "VNI"], |v| [v.name.clone(), v.vni.to_string()])
}

/// Virtual NICs.
pub fn vnics(vnics: &[Vnic], output: Output) -> Result<(), Failure> {
    list(vnics, output, ["NAME", "VPC", "HOST", "MAC", "ADDRESSES"], |v| {
        [v.name.clone(), v.vpc.clone(), v.host.clone(), v.mac.to_string(), join(&v.addresses)]
    })
}

/// Who may connect to whom.
pub fn rules(rules: &[Rule], output: Output) -> Result<(), Failure> {
    list(rules, output, ["VPC", "NAME", "PRIORITY", "SOURCE", "DESTINATION", "ACTION"], |r| {
        let action = match r.action {
            Action::Allow => "allow",
            Action::Deny => "deny",
        };
        [
            r.vpc.clone(),
            r.name.clone(),
            r.priority.to_string(),
            r.source.to_string(),
            r.destination.to_string(),
            action.into(),
        ]
    })
}

/// Realised vNICs.
pub fn endpoints(endpoints: &[Endpoint], output: Output) -> Result<(), Failure> {
    let header = ["VNIC", "VNI", "HOST", "UNDERLAY", "QPNS", "GIDS"];
    list(endpoints, output, header, |e| {
        let block = |b: &masq_types::QpnBlock| format!("{:#x}-{:#x}", b.first, b.first + (b.len - 1));
        let blocks: Vec<String> = e.qpn_blocks.iter().map(block).collect();
        [e.vnic.clone(), e.vni.to_string(), e.host.clone(), join(&e.addresses), join(&blocks), join(&e.gids)]
    })
}

/// Connections of queue pairs.
pub fn connections(connections: &[ConnectionStatus], output: Output) -> Result<(), Failure> {
    let header = ["VNIC", "VPC", "LOCAL", "QPN", "PEER", "REMOTE", "REMOTE-QPN"];
    list(connections, output, header, |c| {
        [
            c.vnic.clone(),
            c.vpc.clone(),
            c.local.to_string(),
            format!("{:#x}", c.local_qpn),
            c.peer.clone(),
            c.remote.to_string(),
            format!("{:#x}", c.remote_qpn),
        ]
    })
}
