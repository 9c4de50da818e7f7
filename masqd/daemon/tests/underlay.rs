//! Path aliases on real links. Each test runs again, by itself, in a user and network namespace of its own.

use std::fs;
use std::future::Future;
use std::net::{IpAddr, UdpSocket};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use masqd::underlay::{Alias, AliasError, AliasProblem, Reconciled, Underlay};

const INSIDE: &str = "MASQ_TEST_INSIDE_NAMESPACE";
const PATIENCE: Duration = Duration::from_secs(10);

/// Runs `body` in a namespace of its own, as the test `name`, with `wrapper` around the program.
fn in_a_namespace(name: &str, wrapper: &[&str], body: impl Future<Output = ()>) {
    if std::env::var_os(INSIDE).is_some() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        return runtime.block_on(body);
    }
    let unshare = || {
        let mut command = Command::new("unshare");
        command.args(["--map-root-user", "--net"]).args(wrapper);
        command
    };
    let can = unshare().args(["ip", "link"]).output().is_ok_and(|o| o.status.success());
    if !can {
        eprintln!("not checked: this needs user and network namespaces, util-linux and iproute2");
        return;
    }
    let program = std::env::current_exe().unwrap();
    let output = unshare().arg(program).args(["--exact", name]).env(INSIDE, "1").output().unwrap();
    let text = text(&output);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

fn ip(arguments: &str) -> String {
    let output = Command::new("ip").args(arguments.split_whitespace()).output().unwrap();
    assert!(output.status.success(), "ip {arguments}: {}", text(&output));
    text(&output)
}

fn sysctl(path: &str, value: &str) {
    fs::write(format!("/proc/sys/net/{path}"), value).unwrap();
}

/// Links v0 and v1, up; what leaves by them arrives at p0 and p1.
fn make_links() {
    ip("link set lo up");
    for n in [0, 1] {
        make_link(n);
    }
}

fn make_link(n: u8) {
    ip(&format!("link add v{n} type veth peer name p{n}"));
    // No router solicitations or neighbours to come in between, and no wait for duplicates of link-local addresses.
    for link in [format!("v{n}"), format!("p{n}")] {
        sysctl(&format!("ipv6/conf/{link}/addr_gen_mode"), "1");
        ip(&format!("link set {link} up"));
    }
}

fn alias(address: &str, link: &str, gateway: Option<&str>) -> Alias {
    let gateway = gateway.map(|g| g.parse().unwrap());
    Alias { address: address.parse().unwrap(), link: link.into(), gateway }
}

/// Two paths of either family, and one without a gateway.
fn aliases() -> Vec<Alias> {
    vec![
        alias("10.1.0.2/24", "v0", Some("10.1.0.254")),
        alias("10.2.0.2/24", "v1", Some("10.2.0.254")),
        alias("fd01::2/64", "v0", Some("fd01::254")),
        alias("fd02::2/64", "v1", Some("fd02::254")),
        alias("10.3.0.2/24", "v1", None),
    ]
}

async fn reconcile(underlay: &mut Underlay, wanted: &[Alias]) -> usize {
    let Reconciled { changes, problems } = underlay.reconcile_aliases(wanted).await.unwrap();
    assert!(problems.is_empty(), "{problems:?}");
    changes
}

async fn one_problem(underlay: &mut Underlay, wanted: &[Alias]) -> AliasError {
    let done = underlay.reconcile_aliases(wanted).await.unwrap();
    let mut problems = done.problems;
    match (problems.pop(), problems.pop()) {
        (Some(AliasProblem::Wanted { reason, .. }), None) => reason,
        other => panic!("{other:?}"),
    }
}

/// All that the host has, in an order that does not depend on when it was added. Without what the kernel makes of
/// addresses; for IPv6 it does so some time later.
fn host() -> Vec<String> {
    let dumps = ["-4 rule", "-6 rule", "-4 route show table all", "-6 route show table all"];
    let mut lines: Vec<_> = dumps
        .iter()
        .flat_map(|dump| ip(dump).lines().map(|line| line.trim().to_owned()).collect::<Vec<_>>())
        .filter(|line| !line.contains("multicast") && !line.contains("table local proto kernel"))
        .collect();
    // Link, state of the link, addresses.
    let addresses = ip("-br address");
    let without_state = |line: &str| -> String {
        line.split_whitespace().enumerate().filter(|(n, _)| *n != 1).map(|(_, w)| format!("{w} ")).collect()
    };
    lines.extend(addresses.lines().map(without_state));
    lines.sort();
    lines
}

/// Waits until the links of all aliases carry packets.
async fn until_up(underlay: &mut Underlay) {
    let addresses: Vec<IpAddr> = aliases().iter().map(|a| a.address.addr()).collect();
    let up = async {
        while !underlay.state(&addresses).await.unwrap().up {
            underlay.changed().await;
        }
    };
    tokio::time::timeout(PATIENCE, up).await.expect("the links come up");
}

fn packets_in(link: &str) -> u64 {
    let table = fs::read_to_string("/proc/net/dev").unwrap();
    let line = table.lines().find_map(|l| l.trim().strip_prefix(&format!("{link}:")[..])).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
fn each_path_leaves_by_its_own_link() {
    in_a_namespace("each_path_leaves_by_its_own_link", &[], async {
        make_links();
        let before = host();
        let mut underlay = Underlay::open().unwrap();
        assert_eq!(reconcile(&mut underlay, &aliases()).await, 4 * 4 + 3);

        for (source, to, way) in [
            ("10.1.0.2", "203.0.113.9", "via 10.1.0.254 dev v0"),
            ("10.2.0.2", "203.0.113.9", "via 10.2.0.254 dev v1"),
            ("10.1.0.2", "10.1.0.7", "10.1.0.7 from 10.1.0.2 dev v0"),
            ("10.2.0.2", "10.1.0.7", "via 10.2.0.254 dev v1"),
            ("10.3.0.2", "10.3.0.7", "10.3.0.7 from 10.3.0.2 dev v1"),
            ("fd01::2", "2001:db8::9", "via fd01::254 dev v0"),
            ("fd02::2", "2001:db8::9", "via fd02::254 dev v1"),
            ("fd02::2", "fd02::7", "fd02::7 from fd02::2 dev v1"),
        ] {
            let route = ip(&format!("route get {to} from {source}"));
            assert!(route.contains(way), "{source} to {to}: {route}");
        }
        until_up(&mut underlay).await;

        // Other traffic has no new ways.
        let main = ip("route show table main") + &ip("-6 route show table main");
        assert!(!main.contains("10.") && !main.contains("fd0"), "{main}");
        let sources = ip("-6 -o address show scope global");
        assert!(sources.lines().count() == 2 && sources.matches("deprecated").count() == 2, "{sources}");

        assert!(reconcile(&mut underlay, &[]).await > 0);
        assert_eq!(host(), before);
    });
}

#[test]
fn packets_follow() {
    in_a_namespace("packets_follow", &[], async {
        make_links();
        let mut underlay = Underlay::open().unwrap();
        reconcile(&mut underlay, &aliases()).await;
        until_up(&mut underlay).await;
        for n in [1, 2] {
            ip(&format!("neighbour add 10.{n}.0.254 lladdr 02:00:00:00:00:01 dev v{}", n - 1));
        }
        for (source, own, other) in [("10.1.0.2", "p0", "p1"), ("10.2.0.2", "p1", "p0")] {
            let before = (packets_in(own), packets_in(other));
            let socket = UdpSocket::bind((source, 0)).unwrap();
            for _ in 0..100 {
                socket.send_to(b"x", "203.0.113.9:9").unwrap();
            }
            let deadline = Instant::now() + PATIENCE;
            while packets_in(own) < before.0 + 100 {
                assert!(Instant::now() < deadline, "{source} does not leave towards {own}");
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            // The kernel's own few multicasts come in between.
            assert!(packets_in(other) < before.1 + 100, "{source} leaves towards {other}");
        }
    });
}

#[test]
fn the_second_time_nothing_is_sent() {
    in_a_namespace("the_second_time_nothing_is_sent", &[], async {
        make_links();
        let mut wanted = aliases();
        reconcile(&mut Underlay::open().unwrap(), &wanted).await;
        let before = host();

        let mut again = Underlay::open().unwrap();
        wanted.reverse();
        assert_eq!(reconcile(&mut again, &wanted).await, 0, "another masqd, another order");
        assert_eq!(reconcile(&mut again, &wanted).await, 0);
        assert_eq!(host(), before);
    });
}

#[test]
fn a_restarted_masqd_knows_what_is_its_own() {
    in_a_namespace("a_restarted_masqd_knows_what_is_its_own", &[], async {
        make_links();
        let wanted = aliases();
        let mut first = Underlay::open().unwrap();
        reconcile(&mut first, &wanted).await;
        drop(first);
        // Others' objects, as near to ours as can be: in our subnets, with our number, with our priority.
        let foreign = [
            "address add 10.1.0.3/24 dev v0",
            "address add 10.1.0.4/24 dev v0",
            "address add fd01::3/64 dev v0 nodad",
            "rule add from 10.1.0.2 lookup 100 protocol 213 priority 2131",
            "rule add from 10.1.0.9 lookup 100 priority 2130",
            "-6 rule add from fd01::2 lookup main priority 2130",
            "route add 192.0.2.0/24 dev v0 protocol 213",
            "route add 192.0.2.0/24 dev v0 table 100",
            "-6 route add 2001:db8:1::/48 dev v0 protocol 213",
        ];
        for object in foreign {
            ip(object);
        }

        let mut second = Underlay::open().unwrap();
        assert_eq!(reconcile(&mut second, &wanted).await, 0);
        // Without the first.
        assert_eq!(reconcile(&mut second, &wanted[1..]).await, 4);
        assert!(!host().iter().any(|line| line.contains("10.1.0.2/32") || line.contains("via 10.1.0.254")));
        assert!(reconcile(&mut second, &[]).await > 0);
        let left = host();

        // The same without any masqd.
        for n in [0, 1] {
            ip(&format!("link delete v{n}"));
        }
        let rules =
            |family: &str| ip(&format!("{family} rule")).lines().filter(|l| l.contains("from")).count();
        assert_eq!((rules("-4"), rules("-6")), (3 + 2, 2 + 1));
        ip("-4 rule del priority 2130");
        ip("-4 rule del priority 2131");
        ip("-6 rule del priority 2130");
        make_links();
        for object in foreign {
            ip(object);
        }
        assert_eq!(left, host());
    });
}

#[test]
fn an_address_that_was_there_stays() {
    in_a_namespace("an_address_that_was_there_stays", &[], async {
        make_links();
        ip("address add 10.1.0.2/24 dev v0");
        ip("address add fd01::2/64 dev v0 nodad");
        let before = host();
        let mut underlay = Underlay::open().unwrap();
        reconcile(&mut underlay, &aliases()).await;
        let addresses = ip("address show dev v0");
        assert_eq!(addresses.matches("10.1.0.2").count(), 1, "{addresses}");
        assert!(ip("route get 203.0.113.9 from 10.1.0.2").contains("via 10.1.0.254 dev v0"));
        reconcile(&mut Underlay::open().unwrap(), &[]).await;
        assert_eq!(host(), before);

        let elsewhere = one_problem(&mut underlay, &[alias("10.1.0.2/24", "v1", None)]).await;
        assert!(matches!(elsewhere, AliasError::Elsewhere { link } if link == "v0"));
        assert_eq!(host(), before);
    });
}

#[test]
fn what_somebody_takes_away_comes_back() {
    in_a_namespace("what_somebody_takes_away_comes_back", &[], async {
        make_links();
        let wanted = aliases();
        reconcile(&mut Underlay::open().unwrap(), &wanted).await;
        let whole = host();
        let rule = ip("rule show from 10.1.0.2");
        let table = rule.split_whitespace().skip_while(|w| *w != "lookup").nth(1).unwrap();
        for taken in [
            "rule del from 10.1.0.2".to_owned(),
            "-6 rule del from fd02::2".to_owned(),
            format!("route del default table {table}"),
            format!("route del 10.1.0.0/24 table {table}"),
            format!("route flush table {table}"),
            "address del 10.1.0.2/32 dev v0".to_owned(),
            "address del fd01::2/128 dev v0".to_owned(),
        ] {
            // Its first news can only be this.
            let mut underlay = Underlay::open().unwrap();
            ip(&taken);
            let changed = tokio::time::timeout(PATIENCE, underlay.changed()).await;
            assert!(changed.is_ok(), "nothing is heard of: ip {taken}");
            assert_ne!(host(), whole, "{taken}");
            assert!(reconcile(&mut underlay, &wanted).await > 0, "{taken}");
            assert_eq!(host(), whole, "{taken}");
            assert_eq!(reconcile(&mut underlay, &wanted).await, 0, "{taken}");
        }
    });
}

#[test]
fn links_come_and_go() {
    in_a_namespace("links_come_and_go", &[], async {
        make_links();
        let wanted = aliases();
        let mut underlay = Underlay::open().unwrap();
        reconcile(&mut underlay, &wanted).await;
        let whole = host();

        ip("link set v0 down");
        let down = underlay.reconcile_aliases(&wanted).await.unwrap();
        assert_eq!(down.problems.len(), 2, "{down:?}");
        let is_down = |p: &AliasProblem| matches!(p, AliasProblem::Wanted { alias, reason: AliasError::LinkDown } if alias.link == "v0");
        assert!(down.problems.iter().all(is_down), "{down:?}");
        let still = underlay.reconcile_aliases(&wanted).await.unwrap();
        assert_eq!(still.changes, 0, "{still:?}");
        ip("link set v0 up");
        reconcile(&mut underlay, &wanted).await;
        assert_eq!(host(), whole);

        ip("link delete v0");
        let gone = underlay.reconcile_aliases(&wanted).await.unwrap();
        let is_gone = |p: &AliasProblem| matches!(p, AliasProblem::Wanted { alias, reason: AliasError::LinkMissing } if alias.link == "v0");
        assert!(gone.problems.len() == 2 && gone.problems.iter().all(is_gone), "{gone:?}");
        assert!(!host().iter().any(|line| line.contains("10.1.0.2") || line.contains("fd01::2")));
        assert!(ip("route get 203.0.113.9 from 10.2.0.2").contains("dev v1"), "the other path stays");
        make_link(0);
        reconcile(&mut underlay, &wanted).await;
        assert_eq!(host(), whole);
    });
}

#[test]
fn an_alias_moves() {
    in_a_namespace("an_alias_moves", &[], async {
        make_links();
        let mut underlay = Underlay::open().unwrap();
        for (link, gateway) in [("v0", "10.1.0.254"), ("v1", "10.1.0.254"), ("v1", "10.1.0.253")] {
            reconcile(&mut underlay, &[alias("10.1.0.2/24", link, Some(gateway))]).await;
            let route = ip("route get 203.0.113.9 from 10.1.0.2");
            assert!(route.contains(&format!("via {gateway} dev {link}")), "{route}");
            let addresses = ip("-4 -o address");
            assert_eq!(addresses.matches("10.1.0.2/32").count(), 1, "{addresses}");
        }
    });
}

#[test]
fn what_the_kernel_refuses_is_named() {
    in_a_namespace("what_the_kernel_refuses_is_named", &["setpriv", "--bounding-set=-net_admin"], async {
        let mut underlay = Underlay::open().unwrap();
        assert_eq!(reconcile(&mut underlay, &[]).await, 0);
        let wanted = [alias("10.1.0.2/24", "lo", None)];
        let done = underlay.reconcile_aliases(&wanted).await.unwrap();
        let text: Vec<_> = done.problems.iter().map(AliasProblem::to_string).collect();
        assert_eq!(done.changes, 0);
        assert_eq!(
            text.last().unwrap(),
            "path alias 10.1.0.2/24 on interface lo: cannot add the address 10.1.0.2: Operation not permitted \
             (os error 1); masqd needs CAP_NET_ADMIN"
        );
    });
}
