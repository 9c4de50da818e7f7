//! A whole masqd whose etcd ends its lease, or cannot be reached: what it does meanwhile and afterwards.

mod common;
mod etcd_servers;

use std::fs::File;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::{Bookkeeper, DESIRED, ask, get};
use etcd_servers::{Cluster, Layout};
use guest_sim::Device;
use masq_control::store::Store;
use masq_driver::RnicDriver;
use masq_model::api::{Status, VnicState};
use masq_model::{DesiredState, Endpoint, Key, Kind, Object};
use masqd::api::server::Patience;
use masqd::store::EtcdConfig;
use masqd::store::StoreAddress;
use masqd::{Config, Masqd};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

const LEASE: Duration = Duration::from_secs(2);

/// Staleness takes 10 s to be noticed, and a new connection as long to be tried.
fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(40);
    while !holds() {
        assert!(Instant::now() < deadline, "{what} did not happen");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// A masqd on a cluster.
struct Host {
    dir: tempfile::TempDir,
    rnic: Bookkeeper,
    _masqd: Masqd,
}

impl Host {
    fn start(store: EtcdConfig) -> Self {
        let (dir, rnic) = (tempfile::tempdir().unwrap(), Bookkeeper::default());
        let config = Config {
            host: "h1".into(),
            store: StoreAddress::Etcd(store),
            run_dir: dir.path().join("run"),
            apply: Some(DesiredState::from_toml(DESIRED).unwrap()),
            tls: None,
            patience: Patience::default(),
            features: masq_rnic::limits::FEATURES,
        };
        let start = |sink| {
            *rnic.sink.lock().unwrap() = Some(sink);
            Ok(Arc::new(rnic.clone()) as Arc<dyn RnicDriver>)
        };
        let masqd = Masqd::start(config, start).unwrap();
        Host { dir, rnic, _masqd: masqd }
    }

    fn api(&self) -> PathBuf {
        self.dir.path().join("run/masqd.sock")
    }

    fn is_ready(&self) -> bool {
        ask(&self.api(), "GET", "/readyz", &[], "").status == 200
    }

    fn state(&self, vnic: &str) -> Option<VnicState> {
        let status: Status = serde_json::from_str(&get(&self.api(), "/v1/status")).unwrap();
        status.vnics.into_iter().find(|v| v.name == vnic).map(|v| v.state)
    }
}

/// The published endpoints, by vNIC.
async fn endpoints(store: &dyn Store) -> Vec<Endpoint> {
    let endpoint = |e: masq_control::store::Entry| match Object::from_entry(&e.key.parse().ok()?, &e.value) {
        Ok(Object::Endpoint(endpoint)) => Some(endpoint),
        _ => None,
    };
    let prefix = Kind::Endpoint.prefix();
    store.list(&prefix).await.unwrap().entries.into_iter().filter_map(endpoint).collect()
}

#[test]
fn a_host_whose_lease_ends_publishes_what_it_had_again() {
    let runtime = runtime();
    let cluster = Cluster::start(1);
    let observer = runtime.block_on(cluster.connect(Duration::from_secs(60)));
    let host = Host::start(cluster.config(LEASE));
    eventually("both endpoints", || runtime.block_on(endpoints(&observer)).len() == 2);
    eventually("readiness", || host.is_ready());
    let before = runtime.block_on(endpoints(&observer));
    let guest = Device::connect(&host.dir.path().join("run/blue-1.sock"), 16 << 20).unwrap();
    let progress = Key::new(Kind::HostState, "h1").to_string();
    for _ in 0..2 {
        let written = || runtime.block_on(observer.get(&progress)).unwrap().map(|e| e.revision);
        let last = written();
        runtime.block_on(async {
            let mut raw = cluster.raw(0).await.unwrap();
            for lease in raw.leases().await.unwrap().leases() {
                raw.lease_revoke(lease.id()).await.unwrap();
            }
        });
        eventually("the endpoints and the progress to come back", || {
            runtime.block_on(endpoints(&observer)) == before && written().is_some_and(|w| Some(w) > last)
        });
    }
    // What is there is kept alive.
    std::thread::sleep(2 * LEASE);
    assert_eq!(runtime.block_on(endpoints(&observer)), before);
    assert_eq!(host.state("blue-1"), Some(VnicState::Connected));
    assert_eq!(host.rnic.books.lock().unwrap().attached, 1, "the guest noticed nothing");
    drop(guest);
    // A host that ends takes what it had published with it.
    drop(host);
    assert_eq!(runtime.block_on(endpoints(&observer)), []);
}

#[test]
fn two_masqds_with_one_name_do_not_fight_and_the_younger_one_publishes() {
    let runtime = runtime();
    let cluster = Cluster::start(1);
    let observer = runtime.block_on(cluster.connect(Duration::from_secs(60)));
    let first = Host::start(cluster.config(LEASE));
    eventually("both endpoints", || runtime.block_on(endpoints(&observer)).len() == 2);
    eventually("readiness", || first.is_ready());
    let before = runtime.block_on(endpoints(&observer));
    let second = Host::start(cluster.config(LEASE));
    eventually("readiness", || second.is_ready());
    let progress = Key::new(Kind::HostState, "h1").to_string();
    // Both of them miss it; the older one is told, the younger one writes it.
    eventually("the older one to be told", || {
        runtime.block_on(observer.delete(&progress)).unwrap();
        std::thread::sleep(Duration::from_millis(100));
        let answer = ask(&first.api(), "GET", "/readyz", &[], "");
        answer.status == 503 && answer.body.contains("another masqd")
    });
    eventually("readiness", || second.is_ready());
    let revision = || runtime.block_on(observer.list("")).unwrap().revision;
    let now = revision();
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(revision(), now, "nobody writes without end");
    assert_eq!(runtime.block_on(endpoints(&observer)), before);
    // It takes its claim and its endpoints with it.
    drop(second);
    eventually("the older one to publish again", || runtime.block_on(endpoints(&observer)) == before);
    eventually("readiness", || first.is_ready());
}

fn ip(args: &[&str]) {
    let output = Command::new("ip").args(args).output().expect("ip (Debian package iproute2)");
    assert!(output.status.success(), "ip {}: {}", args.join(" "), String::from_utf8_lossy(&output.stderr));
}

/// Two network namespaces on one link: that of a host, and that of its etcd.
struct Link {
    host: String,
    etcd: String,
}

const HOST_ADDRESS: &str = "10.77.0.1";
const ETCD_ADDRESS: &str = "10.77.0.2";

impl Link {
    fn new() -> Self {
        let id = std::process::id();
        let link = Link { host: format!("masq-ph-{id}"), etcd: format!("masq-pe-{id}") };
        ip(&["netns", "add", &link.host]);
        ip(&["netns", "add", &link.etcd]);
        ip(&[
            "link", "add", "eth0", "netns", &link.host, "type", "veth", "peer", "name", "eth0", "netns",
            &link.etcd,
        ]);
        for (netns, address) in [(&link.host, HOST_ADDRESS), (&link.etcd, ETCD_ADDRESS)] {
            ip(&["-n", netns, "address", "add", &format!("{address}/24"), "dev", "eth0"]);
            ip(&["-n", netns, "link", "set", "eth0", "up"]);
            ip(&["-n", netns, "link", "set", "lo", "up"]);
        }
        link
    }

    /// Nothing of etcd's arrives at the host any more; nobody is told.
    fn cut(&self) {
        ip(&["-n", &self.etcd, "route", "add", "blackhole", &format!("{HOST_ADDRESS}/32")]);
    }

    fn heal(&self) {
        ip(&["-n", &self.etcd, "route", "delete", "blackhole", &format!("{HOST_ADDRESS}/32")]);
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        for netns in [&self.host, &self.etcd] {
            let _ = Command::new("ip").args(["netns", "delete", netns]).status();
        }
    }
}

/// Does something in a namespace; the threads that it starts stay there.
fn inside<T: Send>(netns: &str, work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let worker = scope.spawn(|| {
            let namespace = File::open(format!("/run/netns/{netns}")).unwrap();
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
            work()
        });
        worker.join().unwrap()
    })
}

#[test]
fn a_host_that_is_cut_off_from_etcd_goes_on_and_is_whole_again_afterwards() {
    let link = Link::new();
    let layout = Layout { netns: Some((link.etcd.clone(), ETCD_ADDRESS.into())), ..Layout::default() };
    let cluster = Cluster::with(1, layout);
    // The observer is on etcd's side.
    let observed = || {
        inside(&link.etcd, || {
            runtime().block_on(async {
                let observer = cluster.connect(Duration::from_secs(60)).await;
                (endpoints(&observer).await, observer.list("").await.unwrap().revision)
            })
        })
    };
    observed();
    let host = inside(&link.host, || Host::start(cluster.config(LEASE)));
    eventually("both endpoints", || observed().0.len() == 2);
    eventually("readiness", || host.is_ready());
    let (before, _) = observed();
    let guest = Device::connect(&host.dir.path().join("run/blue-1.sock"), 16 << 20).unwrap();
    assert_eq!(host.state("blue-1"), Some(VnicState::Connected));

    link.cut();
    let cut = Instant::now();
    // To the others, the host is gone with its lease.
    eventually("the lease to run out", || observed().0.is_empty());
    assert!(host.is_ready() || cut.elapsed() > masqd::sync::STALENESS_BOUND, "short absences do not matter");
    eventually("what is known to be stale", || {
        let answer = ask(&host.api(), "GET", "/readyz", &[], "");
        answer.status == 503 && answer.body.contains("stale")
    });
    assert!(cut.elapsed() > masqd::sync::STALENESS_BOUND);
    assert_eq!(host.state("blue-1"), Some(VnicState::Connected));
    // Guests that come now are served as well.
    let late = Device::connect(&host.dir.path().join("run/red-1.sock"), 16 << 20).unwrap();
    assert_eq!(host.state("red-1"), Some(VnicState::Connected));
    // What is desired changes meanwhile, and etcd forgets how.
    inside(&link.etcd, || {
        runtime().block_on(async {
            let observer = cluster.connect(Duration::from_secs(60)).await;
            let green = DesiredState::from_toml("[[vpc]]\nname = \"green\"\nvni = 300\n").unwrap();
            for object in green.objects().values() {
                observer.put(&object.key().to_string(), object.to_json()).await.unwrap();
            }
            let last = observer.delete("masq/v1/none").await.unwrap();
            cluster.raw(0).await.unwrap().compact(last as i64, None).await.unwrap();
        })
    });

    link.heal();
    eventually("readiness", || host.is_ready());
    eventually("what was desired meanwhile", || get(&host.api(), "/v1/desired").contains("green"));
    eventually("the same endpoints", || observed().0 == before);
    for vnic in ["blue-1", "red-1"] {
        assert_eq!(host.state(vnic), Some(VnicState::Connected));
    }
    assert_eq!(host.rnic.books.lock().unwrap().attached, 2, "the guests noticed nothing");
    drop((guest, late));
}
