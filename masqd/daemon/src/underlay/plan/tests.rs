//! Plans, carried out on a host that is a value and refuses what the kernel would refuse.

use proptest::prelude::*;

use super::*;

impl Host {
    fn follow(&mut self, plan: &Plan) {
        let additions = plan.additions.iter().flat_map(|(_, operations)| operations);
        for operation in plan.removals.iter().chain(additions) {
            self.execute(operation);
        }
    }

    fn execute(&mut self, operation: &Operation) {
        match operation {
            Operation::AddAddress(a) => {
                assert!(self.links.contains_key(&a.link), "{a:?}");
                assert!(!self.has(a.address, a.link), "{a:?} exists");
                self.addresses.push(a.clone());
            }
            Operation::AddRule(r) => {
                assert!(self.rules.iter().all(|o| (o.from, o.table) != (r.from, r.table)), "{r:?} exists");
                self.rules.push(r.clone());
            }
            Operation::AddRoute(r) => {
                let same = |o: &Route| (o.table, o.destination) == (r.table, r.destination);
                assert!(!self.routes.iter().any(same), "{r:?} exists");
                assert!(r.link.is_some_and(|l| self.links.get(&l).is_some_and(|l| l.enabled)), "{r:?}");
                assert!(self.addresses.iter().any(|a| Some(a.address) == r.source), "{r:?} has no source");
                self.routes.push(r.clone());
            }
            Operation::RemoveAddress(a) => remove(&mut self.addresses, a, a.ours),
            Operation::RemoveRule(r) => remove(&mut self.rules, r, r.ours),
            Operation::RemoveRoute(r) => remove(&mut self.routes, r, r.ours),
        }
    }

    /// All objects, ordered, that satisfy.
    fn objects(&self, ours: bool) -> (Vec<Address>, Vec<Rule>, Vec<Route>) {
        let mut host = self.clone();
        host.addresses.retain(|a| a.ours == ours);
        host.rules.retain(|r| r.ours == ours);
        host.routes.retain(|r| r.ours == ours);
        host.addresses.sort();
        host.rules.sort();
        host.routes.sort();
        (host.addresses, host.rules, host.routes)
    }
}

fn remove<T: PartialEq + std::fmt::Debug>(all: &mut Vec<T>, one: &T, ours: bool) {
    assert!(ours, "{one:?} is not ours");
    let at = all.iter().position(|o| o == one).expect("what is removed exists");
    all.swap_remove(at);
}

fn alias(address: &str, link: &str, gateway: Option<&str>) -> Alias {
    let gateway = gateway.map(|g| g.parse().unwrap());
    Alias { address: address.parse().unwrap(), link: link.into(), gateway }
}

/// Links a (1) and b (2), and c (3), which is down.
fn host() -> Host {
    let link = |name: &str, enabled| Link { name: name.into(), mtu_bytes: 9000, enabled, up: enabled };
    let links = [(1, link("a", true)), (2, link("b", true)), (3, link("c", false))];
    Host { links: links.into(), ..Host::default() }
}

fn words(operations: &[Operation]) -> Vec<String> {
    operations.iter().map(Operation::to_string).collect()
}

const T: u32 = *TABLES.start();

#[test]
fn an_alias_with_a_gateway_has_a_table_that_is_complete_before_a_rule_leads_to_it() {
    let plan = plan(&host(), &[alias("10.0.0.2/24", "a", Some("10.0.0.254"))]);
    let [(_, operations)] = plan.additions.as_slice() else { panic!("{plan:?}") };
    assert_eq!(
        words(operations),
        [
            "add the address 10.0.0.2".into(),
            format!("add the route to 10.0.0.0/24 in table {T}"),
            format!("add the route to 0.0.0.0/0 via 10.0.0.254 in table {T}"),
            format!("add the rule from 10.0.0.2/32 lookup {T}"),
        ]
    );
    assert!(plan.removals.is_empty() && plan.problems.is_empty(), "{plan:?}");
}

#[test]
fn the_prefix_decides_what_needs_no_gateway() {
    for (address, gateway, count) in [
        ("10.0.0.2/32", None, 1),
        ("10.0.0.2/32", Some("10.9.9.9"), 3),
        ("10.0.0.2/24", None, 3),
        ("fd00::2/128", None, 1),
        ("fd00::2/64", Some("fe80::1"), 4),
    ] {
        let plan = plan(&host(), &[alias(address, "a", gateway)]);
        assert_eq!(plan.additions[0].1.len(), count, "{address} {gateway:?}");
    }
}

#[test]
fn a_table_with_something_of_others_is_left_alone() {
    let mut host = host();
    let wanted = [alias("10.0.0.2/24", "a", None)];
    host.follow(&plan(&host, &wanted));
    assert_eq!(host.rules[0].table, T);
    host.routes.push(Route {
        table: T,
        destination: "192.0.2.0/24".parse().unwrap(),
        link: Some(2),
        gateway: None,
        source: None,
        ours: false,
    });
    host.rules.push(Rule { from: "192.0.2.1/32".parse().unwrap(), table: T + 1, ours: false });
    let foreign = host.objects(false);
    host.follow(&plan(&host, &wanted));
    let (_, rules, routes) = host.objects(true);
    assert_eq!((rules.len(), rules[0].table), (1, T + 2));
    assert_eq!((routes.len(), routes[0].table), (1, T + 2));
    assert_eq!(host.objects(false), foreign);
}

#[test]
fn when_all_tables_are_taken_the_alias_says_so() {
    let mut host = host();
    let from = "192.0.2.1/32".parse().unwrap();
    host.rules.extend(TABLES.map(|table| Rule { from, table, ours: false }));
    let wanted = [alias("10.0.0.2/24", "a", None), alias("10.0.0.3/32", "a", None)];
    let plan = plan(&host, &wanted);
    assert!(matches!(
        plan.problems.as_slice(),
        [AliasProblem::Wanted { alias, reason: AliasError::NoTable }] if *alias == wanted[0]
    ));
    assert_eq!(plan.additions.len(), 1, "the other needs none");
}

#[test]
fn an_address_of_others_is_used_and_stays() {
    let mut host = host();
    host.addresses.push(Address { address: "10.0.0.2".parse().unwrap(), link: 1, ours: false });
    host.follow(&plan(&host, &[alias("10.0.0.2/24", "a", None)]));
    assert_eq!((host.addresses.len(), host.rules.len(), host.routes.len()), (1, 1, 1));
    host.follow(&plan(&host, &[]));
    assert_eq!((host.addresses.len(), host.rules.len(), host.routes.len()), (1, 0, 0));
}

#[test]
fn a_change_of_gateway_or_link_replaces_no_more_than_it_must() {
    let mut host = host();
    host.follow(&plan(&host, &[alias("10.0.0.2/24", "a", Some("10.0.0.254"))]));
    let gateway = plan(&host, &[alias("10.0.0.2/24", "a", Some("10.0.0.253"))]);
    assert_eq!((gateway.removals.len(), gateway.additions[0].1.len()), (1, 1), "{gateway:?}");
    let link = plan(&host, &[alias("10.0.0.2/24", "b", Some("10.0.0.254"))]);
    assert_eq!((link.removals.len(), link.additions[0].1.len()), (3, 3), "all but the rule: {link:?}");
}

#[test]
fn a_lost_rule_comes_back_with_the_table_that_has_its_routes() {
    let mut host = host();
    let wanted = [alias("10.0.0.2/24", "a", None), alias("10.0.1.2/24", "b", None)];
    host.follow(&plan(&host, &wanted));
    let lost = host.rules.remove(0);
    let plan = plan(&host, &wanted);
    assert!(plan.removals.is_empty(), "{plan:?}");
    assert_eq!(plan.additions, [(wanted[0].clone(), vec![Operation::AddRule(lost)])]);
}

#[test]
fn problems_name_alias_link_and_reason() {
    let mut host = host();
    host.addresses.push(Address { address: "10.0.3.1".parse().unwrap(), link: 2, ours: false });
    let wanted = [
        alias("10.0.0.1/24", "x", None),
        alias("10.0.1.1/24", "a", Some("fd00::1")),
        alias("10.0.2.1/24", "a", None),
        alias("10.0.2.1/24", "b", None),
        alias("10.0.3.1/24", "a", None),
        alias("10.0.4.1/24", "c", None),
    ];
    let plan = plan(&host, &wanted);
    let text: Vec<_> = plan.problems.iter().map(AliasProblem::to_string).collect();
    assert_eq!(
        text,
        [
            "path alias 10.0.0.1/24 on interface x: there is no such interface",
            "path alias 10.0.1.1/24 on interface a through fd00::1: address and gateway are not of the same family",
            "path alias 10.0.2.1/24 on interface a: its address is wanted more than once, with other links, \
             prefixes or gateways",
            "path alias 10.0.2.1/24 on interface b: its address is wanted more than once, with other links, \
             prefixes or gateways",
            "path alias 10.0.3.1/24 on interface a: its address is already on interface b, where masqd did not \
             put it",
            "path alias 10.0.4.1/24 on interface c: the interface is down, so that the alias has no routes",
        ]
    );
}

const ADDRESSES: [&str; 5] = ["10.0.0.1", "10.0.0.2", "10.0.1.1", "fd00::1", "fd00::2"];

fn an_address() -> impl Strategy<Value = IpAddr> {
    prop::sample::select(&ADDRESSES[..]).prop_map(|a| a.parse().unwrap())
}

fn an_alias() -> impl Strategy<Value = Alias> {
    let gateway = prop::option::of(prop::sample::select(&["10.0.0.254", "10.0.0.253", "fe80::1"][..]));
    let link = prop::sample::select(&["a", "b", "c", "x"][..]);
    (an_address(), 0..4_u8, link, gateway).prop_map(|(address, length, link, gateway)| {
        let max = IpNet::from(address).max_prefix_len();
        let length = [max, max - 8, max - 1, 0][usize::from(length)];
        let address = IpNet::new(address, length).unwrap();
        Alias { address, link: link.into(), gateway: gateway.map(|g| g.parse().unwrap()) }
    })
}

fn wanted() -> impl Strategy<Value = Vec<Alias>> {
    prop::collection::vec(an_alias(), 0..6)
}

prop_compose! {
    fn a_route()(
        table in T..T + 4,
        address in an_address(),
        length in prop::option::of(0..=32_u8),
        link in prop::option::of(1..4_u32),
        source in prop::option::of(an_address()),
        ours: bool,
    ) -> Route {
        let length = length.unwrap_or_else(|| IpNet::from(address).max_prefix_len());
        let destination = IpNet::new(address, length).unwrap().trunc();
        Route { table, destination, link, gateway: None, source, ours }
    }
}

prop_compose! {
    /// A host with objects of others, with remains of ours, and with what an earlier desired state has made.
    fn a_host()(
        earlier in wanted(),
        addresses in prop::collection::vec((an_address(), 1..4_u32, any::<bool>()), 0..4),
        rules in prop::collection::vec((an_address(), T..T + 4, any::<bool>()), 0..4),
        routes in prop::collection::vec(a_route(), 0..4),
    ) -> Host {
        let mut host = host();
        host.follow(&plan(&host, &earlier));
        for (address, link, ours) in addresses {
            if !host.has(address, link) {
                host.addresses.push(Address { address, link, ours });
            }
        }
        for (from, table, ours) in rules {
            let from = IpNet::from(from);
            if host.rules.iter().all(|r| (r.from, r.table) != (from, table)) {
                host.rules.push(Rule { from, table, ours });
            }
        }
        for route in routes {
            if host.routes.iter().all(|r| (r.table, r.destination) != (route.table, route.destination)) {
                host.routes.push(route);
            }
        }
        host
    }
}

proptest! {
    #[test]
    fn a_plan_is_idempotent_and_spares_others(mut host in a_host(), wanted in wanted()) {
        let foreign = host.objects(false);
        host.follow(&plan(&host, &wanted));
        let again = plan(&host, &wanted);
        prop_assert!(again.removals.is_empty() && again.additions.is_empty(), "{again:?}");
        prop_assert_eq!(host.objects(false), foreign);
    }

    #[test]
    fn a_plan_does_not_depend_on_the_order(host in a_host(), wanted in wanted(), turn in 0..6_usize) {
        let mut other = wanted.clone();
        other.reverse();
        other.rotate_left(turn.min(wanted.len()));
        let (plan, other) = (plan(&host, &wanted), plan(&host, &other));
        prop_assert_eq!(plan.removals, other.removals);
        prop_assert_eq!(plan.additions, other.additions);
        prop_assert_eq!(format!("{:?}", plan.problems), format!("{:?}", other.problems));
    }

    #[test]
    fn with_nothing_wanted_nothing_of_ours_is_left(mut host in a_host(), wanted in wanted()) {
        let foreign = host.objects(false);
        host.follow(&plan(&host, &wanted));
        host.follow(&plan(&host, &[]));
        prop_assert_eq!(host.objects(true), Default::default());
        prop_assert_eq!(host.objects(false), foreign);
    }

    #[test]
    fn an_alias_without_a_problem_is_whole(mut host in a_host(), wanted in wanted()) {
        let plan = plan(&host, &wanted);
        host.follow(&plan);
        let failed = |alias: &Alias| {
            let is_it = |p: &AliasProblem| matches!(p, AliasProblem::Wanted { alias: a, .. } if a == alias);
            plan.problems.iter().any(is_it)
        };
        for alias in wanted.iter().filter(|alias| !failed(alias)) {
            let address = alias.address.addr();
            let (&index, _) = host.links.iter().find(|(_, l)| l.name == alias.link).unwrap();
            prop_assert!(host.has(address, index));
            let tables: Vec<_> = host.rules.iter().filter(|r| r.ours && r.from == IpNet::from(address)).collect();
            prop_assert_eq!(tables.len(), usize::from(needs_table(alias)));
            let routes = host.routes.iter().filter(|r| tables.iter().any(|t| t.table == r.table));
            prop_assert_eq!(
                routes.clone().count(),
                usize::from(alias.gateway.is_some()) + usize::from(on_link(alias).is_some())
            );
            prop_assert!(routes.clone().all(|r| r.ours && r.link == Some(index)));
        }
    }
}
