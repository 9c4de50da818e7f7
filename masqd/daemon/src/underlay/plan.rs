//! From what the host has and what is wanted to a list of operations. Pure.
//!
//! An alias `A/len` on link `L` with gateway `G` is made of
//!
//! | object | when |
//! |---|---|
//! | address `A/32` (`/128`) on `L` | nobody else has put it there |
//! | in a routing table `T` of its own: `A/len dev L src A` | 0 < `len` < 32 (128) |
//! | in `T`: `default via G dev L onlink src A` | there is a gateway |
//! | rule `from A lookup T` | there is a route in `T` |
//!
//! The address has full length, so that it never is the primary one of a subnet: the kernel removes an IPv4
//! subnet's other addresses, whoever put them there, together with its primary one. For the same reason there is
//! no prefix route in the main table.
//!
//! `T` is found again by the rule. A table in which others have routes, or to which rules of others lead, is
//! never used.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::RangeInclusive;

use masq_model::IpNet;

use super::Link;
use super::alias::{Alias, AliasError, AliasProblem};

/// Routing tables that aliases may have, for both families. ("ma" in ASCII, then a number.)
pub(super) const TABLES: RangeInclusive<u32> = 0x6d61_0000..=0x6d61_ffff;

/// What concerns aliases of what the host has.
#[derive(Clone, Debug, Default)]
pub(super) struct Host {
    /// By interface index.
    pub(super) links: BTreeMap<u32, Link>,
    pub(super) addresses: Vec<Address>,
    /// Those that lead to one of [`TABLES`].
    pub(super) rules: Vec<Rule>,
    /// Those in one of [`TABLES`].
    pub(super) routes: Vec<Route>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Address {
    pub(super) address: IpAddr,
    pub(super) link: u32,
    pub(super) ours: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Rule {
    /// All of the family if the rule asks for no source.
    pub(super) from: IpNet,
    pub(super) table: u32,
    pub(super) ours: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Route {
    pub(super) table: u32,
    pub(super) destination: IpNet,
    pub(super) link: Option<u32>,
    pub(super) gateway: Option<IpAddr>,
    pub(super) source: Option<IpAddr>,
    pub(super) ours: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    AddAddress(Address),
    RemoveAddress(Address),
    AddRule(Rule),
    RemoveRule(Rule),
    AddRoute(Route),
    RemoveRoute(Route),
}

/// Completes "cannot …".
impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Operation::AddAddress(a) => write!(f, "add the address {}", a.address),
            Operation::RemoveAddress(a) => {
                write!(f, "remove the address {} from the interface with index {}", a.address, a.link)
            }
            Operation::AddRule(r) => write!(f, "add the rule from {} lookup {}", r.from, r.table),
            Operation::RemoveRule(r) => write!(f, "remove the rule from {} lookup {}", r.from, r.table),
            Operation::AddRoute(r) => write!(f, "add the route {r}"),
            Operation::RemoveRoute(r) => write!(f, "remove the route {r}"),
        }
    }
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "to {}", self.destination)?;
        if let Some(gateway) = self.gateway {
            write!(f, " via {gateway}")?;
        }
        write!(f, " in table {}", self.table)
    }
}

#[derive(Debug, Default)]
pub(super) struct Plan {
    /// To be done first, in this order.
    pub(super) removals: Vec<Operation>,
    /// For each alias that lacks something, what to do in this order. An operation needs those before it.
    pub(super) additions: Vec<(Alias, Vec<Operation>)>,
    pub(super) problems: Vec<AliasProblem>,
}

/// What an alias is made of.
struct Parts {
    address: Address,
    link_is_enabled: bool,
    rule: Option<Rule>,
    routes: Vec<Route>,
}

/// The plan does not depend on the order of `wanted`, and the one for a host that has followed it is empty.
pub(super) fn plan(host: &Host, wanted: &[Alias]) -> Plan {
    let mut plan = Plan::default();
    let possible = possible(host, wanted, &mut plan.problems);
    let mut tables = assign_tables(host, &possible);

    let mut parts = Vec::new();
    for (alias, link, link_is_enabled) in possible {
        let table = tables.remove(&alias.address.addr());
        if table.is_none() && needs_table(alias) {
            plan.problems.push(problem(alias, AliasError::NoTable));
        } else {
            parts.push((alias, self::parts(alias, link, link_is_enabled, table)));
        }
    }
    plan.removals = removals(host, &parts);
    for (alias, parts) in parts {
        let missing_routes: Vec<_> =
            parts.routes.into_iter().filter(|r| !host.routes.contains(r)).map(Operation::AddRoute).collect();
        let mut additions = Vec::new();
        if !host.has(parts.address.address, parts.address.link) {
            additions.push(Operation::AddAddress(parts.address));
        }
        if parts.link_is_enabled {
            additions.extend(missing_routes);
        } else if !missing_routes.is_empty() {
            plan.problems.push(problem(alias, AliasError::LinkDown));
        }
        // Last, so that it never leads to a table that is not complete.
        additions.extend(parts.rule.filter(|r| !host.rules.contains(r)).map(Operation::AddRule));
        if !additions.is_empty() {
            plan.additions.push((alias.clone(), additions));
        }
    }
    plan
}

/// The aliases that the host can have, ordered, with link index and whether the link is enabled.
fn possible<'a>(
    host: &Host,
    wanted: &'a [Alias],
    problems: &mut Vec<AliasProblem>,
) -> Vec<(&'a Alias, u32, bool)> {
    let wanted: BTreeSet<&Alias> = wanted.iter().collect();
    let mut count = BTreeMap::new();
    for alias in &wanted {
        *count.entry(alias.address.addr()).or_insert(0_u32) += 1;
    }
    let mut possible = Vec::new();
    for alias in wanted {
        let unique = count.get(&alias.address.addr()) == Some(&1);
        match link_for(host, alias, unique) {
            Ok((index, enabled)) => possible.push((alias, index, enabled)),
            Err(reason) => problems.push(problem(alias, reason)),
        }
    }
    possible
}

/// Index of the link that can have the alias, and whether it is enabled.
fn link_for(host: &Host, alias: &Alias, unique: bool) -> Result<(u32, bool), AliasError> {
    let address = alias.address.addr();
    if !unique {
        return Err(AliasError::Ambiguous);
    }
    if alias.gateway.is_some_and(|gateway| gateway.is_ipv4() != address.is_ipv4()) {
        return Err(AliasError::GatewayFamily);
    }
    let link = host.links.iter().find(|(_, link)| link.name == alias.link);
    let (&index, link) = link.ok_or(AliasError::LinkMissing)?;
    let other = host.addresses.iter().find(|a| a.address == address && !a.ours);
    if let Some(other) = other.filter(|_| !host.has(address, index)) {
        let name = host.links.get(&other.link).map(|link| link.name.clone());
        return Err(AliasError::Elsewhere { link: name.unwrap_or_else(|| other.link.to_string()) });
    }
    Ok((index, link.enabled))
}

fn problem(alias: &Alias, reason: AliasError) -> AliasProblem {
    AliasProblem::Wanted { alias: alias.clone(), reason }
}

fn needs_table(alias: &Alias) -> bool {
    alias.gateway.is_some() || on_link(alias).is_some()
}

/// The prefix that is reached without a gateway.
fn on_link(alias: &Alias) -> Option<IpNet> {
    let length = alias.address.prefix_len();
    (0 < length && length < alias.address.max_prefix_len()).then(|| alias.address.trunc())
}

/// Which table each alias that needs one gets: the one that its rule names, or else the lowest that is free.
fn assign_tables(host: &Host, possible: &[(&Alias, u32, bool)]) -> BTreeMap<IpAddr, u32> {
    let foreign_rules = host.rules.iter().filter(|r| !r.ours).map(|r| r.table);
    let foreign_routes = host.routes.iter().filter(|r| !r.ours).map(|r| r.table);
    let mut taken: BTreeSet<u32> = foreign_rules.chain(foreign_routes).collect();

    let addresses =
        || possible.iter().filter(|(alias, ..)| needs_table(alias)).map(|(a, ..)| a.address.addr());
    let mut tables = BTreeMap::new();
    for address in addresses() {
        let named = host.rules.iter().filter(|r| r.ours && r.from == IpNet::from(address)).map(|r| r.table);
        if let Some(table) = named.filter(|table| !taken.contains(table)).min() {
            taken.insert(table);
            tables.insert(address, table);
        }
    }
    let mut free = TABLES;
    for address in addresses() {
        if tables.contains_key(&address) {
            continue;
        }
        let Some(table) = free.find(|table| !taken.contains(table)) else { break };
        tables.insert(address, table);
    }
    tables
}

fn parts(alias: &Alias, link: u32, link_is_enabled: bool, table: Option<u32>) -> Parts {
    let address = alias.address.addr();
    let mut routes = Vec::new();
    if let Some(table) = table {
        let route = |destination, gateway| Route {
            table,
            destination,
            link: Some(link),
            gateway,
            source: Some(address),
            ours: true,
        };
        routes.extend(on_link(alias).map(|prefix| route(prefix, None)));
        routes.extend(alias.gateway.map(|gateway| route(everything(address), Some(gateway))));
    }
    Parts {
        address: Address { address, link, ours: true },
        link_is_enabled,
        rule: table.map(|table| Rule { from: address.into(), table, ours: true }),
        routes,
    }
}

/// The prefix of length 0 of an address's family.
pub(super) fn everything(address: IpAddr) -> IpNet {
    let unspecified = match address {
        IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    IpNet::new_assert(unspecified, 0)
}

/// All that is ours and part of no alias. Rules first, so that none leads to a table that is not complete.
fn removals(host: &Host, parts: &[(&Alias, Parts)]) -> Vec<Operation> {
    let rules: BTreeSet<_> = parts.iter().filter_map(|(_, p)| p.rule.as_ref()).collect();
    let routes: BTreeSet<_> = parts.iter().flat_map(|(_, p)| &p.routes).collect();
    let addresses: BTreeSet<_> = parts.iter().map(|(_, p)| &p.address).collect();

    let rules = host.rules.iter().filter(|r| r.ours && !rules.contains(r));
    let routes = host.routes.iter().filter(|r| r.ours && !routes.contains(r));
    let addresses = host.addresses.iter().filter(|a| a.ours && !addresses.contains(a));
    (rules.cloned().map(Operation::RemoveRule))
        .chain(routes.cloned().map(Operation::RemoveRoute))
        .chain(addresses.cloned().map(Operation::RemoveAddress))
        .collect()
}

impl Host {
    fn has(&self, address: IpAddr, link: u32) -> bool {
        self.addresses.iter().any(|a| a.address == address && a.link == link)
    }
}

#[cfg(test)]
mod tests;
