//! What the kernel says of links, addresses, rules and routes, and changing them.
//!
//! What is ours is marked in the kernel itself, so that a masqd that was killed finds it again:
//!
//! | object | is ours if |
//! |---|---|
//! | address | full length, `IFA_RT_PRIORITY` [`MARK`], and `IFA_PROTO` [`PROTOCOL`] or, before Linux 5.18, none |
//! | rule | `FRA_PROTOCOL` [`PROTOCOL`], priority [`PRIORITY`], a table of [`TABLES`] |
//! | route | `rtm_protocol` [`PROTOCOL`], a table of [`TABLES`] |

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;

use futures_util::stream::TryStreamExt;
use masq_model::IpNet;
use rtnetlink::packet_core::NetlinkPayload;
use rtnetlink::packet_route::address::{
    AddressAttribute, AddressFlags, AddressMessage, AddressProtocol, CacheInfo,
};
use rtnetlink::packet_route::link::{LinkAttribute, LinkFlags};
use rtnetlink::packet_route::route::{
    RouteAddress, RouteAttribute, RouteFlags, RouteMessage, RouteProtocol, RouteScope, RouteType,
};
use rtnetlink::packet_route::rule::{RuleAction, RuleAttribute, RuleMessage};
use rtnetlink::packet_route::{AddressFamily, RouteNetlinkMessage};
use rtnetlink::{Handle, IpVersion};

use super::Link;
use super::plan::{Address, Host, Operation, Route, Rule, TABLES, everything};

/// Who made an address, a rule or a route. No program of iproute2's list (`rt_protos`) has this number.
pub(super) const PROTOCOL: u8 = 213;

/// Of the rules: before those of the main table (32766), after that of local addresses (0) and of VRFs (1000).
const PRIORITY: u32 = 2130;

/// The metric that an address would give to its prefix route. Our addresses have none; that leaves the field to
/// mark them, on kernels without `IFA_PROTO` too. ("masq" in ASCII.)
const MARK: u32 = 0x6d61_7371;

const FOREVER: u32 = u32::MAX;

/// Whether a notification may be about something that matters here. Other programs' routes and rules may be
/// many.
pub(super) fn matters(payload: &NetlinkPayload<RouteNetlinkMessage>) -> bool {
    let NetlinkPayload::InnerMessage(message) = payload else { return true };
    match message {
        RouteNetlinkMessage::NewRoute(route) | RouteNetlinkMessage::DelRoute(route) => {
            route.header.protocol == RouteProtocol::Other(PROTOCOL)
        }
        RouteNetlinkMessage::NewRule(rule) | RouteNetlinkMessage::DelRule(rule) => {
            rule.attributes.contains(&RuleAttribute::Protocol(RouteProtocol::Other(PROTOCOL)))
        }
        _ => true,
    }
}

/// All links, by index.
pub(super) async fn links(handle: &Handle) -> Result<BTreeMap<u32, Link>, rtnetlink::Error> {
    let mut links = BTreeMap::new();
    let mut dump = handle.link().get().execute();
    while let Some(message) = dump.try_next().await? {
        let flags = message.header.flags;
        let mut link = Link {
            name: message.header.index.to_string(),
            mtu_bytes: 0,
            enabled: flags.contains(LinkFlags::Up),
            up: flags.contains(LinkFlags::Up | LinkFlags::Running),
        };
        for attribute in message.attributes {
            match attribute {
                LinkAttribute::IfName(name) => link.name = name,
                LinkAttribute::Mtu(bytes) => link.mtu_bytes = bytes,
                _ => {}
            }
        }
        links.insert(message.header.index, link);
    }
    Ok(links)
}

/// All addresses.
pub(super) async fn addresses(handle: &Handle) -> Result<Vec<Address>, rtnetlink::Error> {
    let mut addresses = Vec::new();
    let mut dump = handle.address().get().execute();
    while let Some(message) = dump.try_next().await? {
        addresses.extend(read_address(&message));
    }
    Ok(addresses)
}

/// All that concerns aliases.
pub(super) async fn host(handle: &Handle) -> Result<Host, rtnetlink::Error> {
    let mut host =
        Host { links: links(handle).await?, addresses: addresses(handle).await?, ..Host::default() };
    // Of all families at once: asking for one that the kernel does not have is an error.
    let mut request = handle.rule().get(IpVersion::V4);
    request.message_mut().header.family = AddressFamily::Unspec;
    let mut dump = request.execute();
    while let Some(message) = dump.try_next().await? {
        host.rules.extend(read_rule(&message));
    }
    let mut dump = handle.route().get(RouteMessage::default()).execute();
    while let Some(message) = dump.try_next().await? {
        host.routes.extend(read_route(&message));
    }
    Ok(host)
}

/// Does one operation. To remove what is already gone is no error.
pub(super) async fn execute(handle: &Handle, operation: &Operation) -> io::Result<()> {
    let (result, gone) = match operation {
        Operation::AddAddress(address) => {
            let mut request = handle.address().add(address.link, address.address, full(address.address));
            *request.message_mut() = write_address(address);
            (request.execute().await, false)
        }
        Operation::RemoveAddress(address) => {
            (handle.address().del(write_address(address)).execute().await, true)
        }
        Operation::AddRule(rule) => {
            let mut request = handle.rule().add();
            *request.message_mut() = write_rule(rule);
            (request.execute().await, false)
        }
        Operation::RemoveRule(rule) => (handle.rule().del(write_rule(rule)).execute().await, true),
        Operation::AddRoute(route) => (handle.route().add(write_route(route)).execute().await, false),
        Operation::RemoveRoute(route) => {
            let mut message = write_route(route);
            // Any type, any scope.
            message.header.kind = RouteType::Unspec;
            message.header.scope = RouteScope::NoWhere;
            message.header.flags = RouteFlags::empty();
            (handle.route().del(message).execute().await, true)
        }
    };
    match result.map_err(to_io) {
        Err(e) if gone && is_gone(&e) => Ok(()),
        result => result,
    }
}

fn is_gone(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let gone = [Errno::NOENT, Errno::SRCH, Errno::NODEV, Errno::NXIO, Errno::ADDRNOTAVAIL];
    Errno::from_io_error(error).is_some_and(|errno| gone.contains(&errno))
}

fn to_io(error: rtnetlink::Error) -> io::Error {
    match error {
        rtnetlink::Error::NetlinkError(message) => message.to_io(),
        other => io::Error::other(other),
    }
}

fn full(address: IpAddr) -> u8 {
    IpNet::from(address).max_prefix_len()
}

fn family(address: IpAddr) -> AddressFamily {
    match address {
        IpAddr::V4(_) => AddressFamily::Inet,
        IpAddr::V6(_) => AddressFamily::Inet6,
    }
}

/// The unspecified address of a family; `None` for families other than IP.
fn unspecified(family: AddressFamily) -> Option<IpAddr> {
    match family {
        AddressFamily::Inet => Some(IpAddr::from([0; 4])),
        AddressFamily::Inet6 => Some(IpAddr::from([0; 16])),
        _ => None,
    }
}

/// A point-to-point link has its peer in `Address` and its own one in `Local`; an IPv6 address has only
/// the former.
fn read_address(message: &AddressMessage) -> Option<Address> {
    let (mut address, mut local, mut metric, mut protocol) = (None, None, None, None);
    for attribute in &message.attributes {
        match attribute {
            AddressAttribute::Address(a) => address = Some(*a),
            AddressAttribute::Local(a) => local = Some(*a),
            AddressAttribute::RoutePriority(m) => metric = Some(*m),
            AddressAttribute::Protocol(p) => protocol = Some(u8::from(*p)),
            _ => {}
        }
    }
    let address = local.or(address)?;
    let ours = message.header.prefix_len == full(address)
        && metric == Some(MARK)
        && protocol.is_none_or(|p| p == PROTOCOL);
    Some(Address { address, link: message.header.index, ours })
}

fn write_address(address: &Address) -> AddressMessage {
    let mut message = AddressMessage::default();
    message.header.family = family(address.address);
    message.header.prefix_len = full(address.address);
    message.header.index = address.link;
    let mut flags = AddressFlags::Noprefixroute;
    let mut attributes = vec![
        AddressAttribute::Address(address.address),
        AddressAttribute::Local(address.address),
        AddressAttribute::RoutePriority(MARK),
        AddressAttribute::Protocol(AddressProtocol::Other(PROTOCOL)),
    ];
    if address.address.is_ipv6() {
        flags |= AddressFlags::Nodad;
        // Deprecated from the start: other traffic does not choose it as a source. IPv4 does not because of its
        // length.
        let mut lifetime = CacheInfo::default();
        lifetime.ifa_preferred = 0;
        lifetime.ifa_valid = FOREVER;
        attributes.push(AddressAttribute::CacheInfo(lifetime));
    }
    attributes.push(AddressAttribute::Flags(flags));
    message.attributes = attributes;
    message
}

fn read_rule(message: &RuleMessage) -> Option<Rule> {
    let mut from = unspecified(message.header.family)?;
    let (mut table, mut priority, mut protocol) = (u32::from(message.header.table), None, None);
    for attribute in &message.attributes {
        match attribute {
            RuleAttribute::Source(source) => from = *source,
            RuleAttribute::Table(t) => table = *t,
            RuleAttribute::Priority(p) => priority = Some(*p),
            RuleAttribute::Protocol(p) => protocol = Some(u8::from(*p)),
            _ => {}
        }
    }
    let from = IpNet::new(from, message.header.src_len).ok()?;
    let ours = protocol == Some(PROTOCOL) && priority == Some(PRIORITY);
    (message.header.action == RuleAction::ToTable && TABLES.contains(&table)).then_some(Rule {
        from,
        table,
        ours,
    })
}

fn write_rule(rule: &Rule) -> RuleMessage {
    let mut message = RuleMessage::default();
    message.header.family = family(rule.from.addr());
    message.header.src_len = rule.from.prefix_len();
    message.header.action = RuleAction::ToTable;
    message.attributes = vec![
        RuleAttribute::Table(rule.table),
        RuleAttribute::Priority(PRIORITY),
        RuleAttribute::Protocol(RouteProtocol::Other(PROTOCOL)),
    ];
    if rule.from.prefix_len() > 0 {
        message.attributes.push(RuleAttribute::Source(rule.from.addr()));
    }
    message
}

fn read_route(message: &RouteMessage) -> Option<Route> {
    let any = unspecified(message.header.address_family)?;
    let mut route = Route {
        table: u32::from(message.header.table),
        destination: everything(any),
        link: None,
        gateway: None,
        source: None,
        ours: message.header.protocol == RouteProtocol::Other(PROTOCOL),
    };
    let mut destination = any;
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Table(table) => route.table = *table,
            RouteAttribute::Destination(to) => destination = ip(to)?,
            RouteAttribute::Oif(index) => route.link = Some(*index),
            RouteAttribute::Gateway(gateway) => route.gateway = ip(gateway),
            RouteAttribute::PrefSource(source) => route.source = ip(source),
            _ => {}
        }
    }
    route.destination = IpNet::new(destination, message.header.destination_prefix_length).ok()?;
    TABLES.contains(&route.table).then_some(route)
}

fn ip(address: &RouteAddress) -> Option<IpAddr> {
    match address {
        RouteAddress::Inet(address) => Some(IpAddr::V4(*address)),
        RouteAddress::Inet6(address) => Some(IpAddr::V6(*address)),
        _ => None,
    }
}

fn write_route(route: &Route) -> RouteMessage {
    let mut message = RouteMessage::default();
    message.header.address_family = family(route.destination.addr());
    message.header.destination_prefix_length = route.destination.prefix_len();
    message.header.protocol = RouteProtocol::Other(PROTOCOL);
    message.header.kind = RouteType::Unicast;
    message.header.scope = RouteScope::Link;
    message.attributes.push(RouteAttribute::Table(route.table));
    if route.destination.prefix_len() > 0 {
        message.attributes.push(RouteAttribute::Destination(route.destination.addr().into()));
    }
    message.attributes.extend(route.link.map(RouteAttribute::Oif));
    message.attributes.extend(route.source.map(|s| RouteAttribute::PrefSource(s.into())));
    if let Some(gateway) = route.gateway {
        message.header.scope = RouteScope::Universe;
        // The gateway answers on the link, whether or not a prefix says so.
        message.header.flags = RouteFlags::Onlink;
        message.attributes.push(RouteAttribute::Gateway(gateway.into()));
    }
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> AddressMessage {
        write_address(&Address { address: text.parse().unwrap(), link: 7, ours: true })
    }

    fn is_ours(message: &AddressMessage) -> bool {
        read_address(message).unwrap().ours
    }

    #[test]
    fn an_address_of_ours_is_known_by_its_marks() {
        for text in ["10.0.0.2", "fd00::2"] {
            let ours = address(text);
            let read = read_address(&ours).unwrap();
            assert_eq!(read, Address { address: text.parse().unwrap(), link: 7, ours: true });

            let mut older_kernel = ours.clone();
            older_kernel.attributes.retain(|a| !matches!(a, AddressAttribute::Protocol(_)));
            assert!(is_ours(&older_kernel));

            let mut other_protocol = older_kernel.clone();
            other_protocol.attributes.push(AddressAttribute::Protocol(AddressProtocol::Other(PROTOCOL + 1)));
            assert!(!is_ours(&other_protocol));
            let mut no_mark = ours.clone();
            no_mark.attributes.retain(|a| !matches!(a, AddressAttribute::RoutePriority(_)));
            assert!(!is_ours(&no_mark));
            let mut shorter = ours;
            shorter.header.prefix_len -= 1;
            assert!(!is_ours(&shorter));
        }
    }

    #[test]
    fn of_a_point_to_point_link_the_near_address_counts() {
        let mut message = AddressMessage::default();
        let [near, far] = ["10.0.0.1", "10.0.0.2"].map(|a| a.parse().unwrap());
        message.attributes = vec![AddressAttribute::Address(far), AddressAttribute::Local(near)];
        assert_eq!(read_address(&message).unwrap().address, near);
    }

    #[test]
    fn a_rule_of_ours_is_known_by_protocol_priority_and_table() {
        for from in ["10.0.0.2/32", "fd00::2/128", "0.0.0.0/0"] {
            let rule = Rule { from: from.parse().unwrap(), table: *TABLES.end(), ours: true };
            let message = write_rule(&rule);
            assert_eq!(read_rule(&message), Some(rule.clone()));

            let foreign = Some(Rule { ours: false, ..rule.clone() });
            let change = |from: RuleAttribute, to: RuleAttribute| {
                let mut message = message.clone();
                *message.attributes.iter_mut().find(|a| **a == from).unwrap() = to;
                message
            };
            let priority = RuleAttribute::Priority;
            assert_eq!(read_rule(&change(priority(PRIORITY), priority(PRIORITY + 1))), foreign);
            let protocol = |p| RuleAttribute::Protocol(RouteProtocol::Other(p));
            assert_eq!(read_rule(&change(protocol(PROTOCOL), protocol(PROTOCOL + 1))), foreign);
            let table = RuleAttribute::Table;
            assert_eq!(read_rule(&change(table(rule.table), table(rule.table + 1))), None);
        }
    }

    #[test]
    fn a_route_of_ours_is_known_by_protocol_and_table() {
        let news = |m: &RouteMessage| NetlinkPayload::InnerMessage(RouteNetlinkMessage::DelRoute(m.clone()));
        for (destination, gateway) in [
            ("10.0.0.0/24", None),
            ("0.0.0.0/0", Some("10.0.0.1")),
            ("fd00::/64", None),
            ("::/0", Some("fe80::1")),
        ] {
            let destination: IpNet = destination.parse().unwrap();
            let route = Route {
                table: *TABLES.start(),
                destination,
                link: Some(7),
                gateway: gateway.map(|g| g.parse().unwrap()),
                source: destination.hosts().next(),
                ours: true,
            };
            let mut message = write_route(&route);
            assert_eq!(read_route(&message), Some(route.clone()));
            assert!(matters(&news(&message)));

            message.header.protocol = RouteProtocol::Static;
            assert_eq!(read_route(&message), Some(Route { ours: false, ..route.clone() }));
            assert!(!matters(&news(&message)));
            message.attributes.retain(|a| !matches!(a, RouteAttribute::Table(_)));
            message.header.table = 254;
            assert_eq!(read_route(&message), None);
        }
    }

    #[test]
    fn news_of_others_rules_does_not_matter() {
        let rule = Rule { from: "10.0.0.2/32".parse().unwrap(), table: *TABLES.start(), ours: true };
        let news = |message| NetlinkPayload::InnerMessage(RouteNetlinkMessage::DelRule(message));
        let mut message = write_rule(&rule);
        assert!(matters(&news(message.clone())));
        message.attributes.retain(|a| !matches!(a, RuleAttribute::Protocol(_)));
        assert!(!matters(&news(message)));
        assert!(matters(&NetlinkPayload::Overrun(Vec::new())), "something may have been missed");
    }
}
