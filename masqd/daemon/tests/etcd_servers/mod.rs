//! etcd clusters of a test's own: the distribution's etcd on loopback, or in a network namespace.
#![allow(dead_code)] // Each test uses a part.

use std::fs::File;
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use masqd::store::{Etcd, EtcdConfig};

/// How long anything may take that should come soon.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// What a cluster is made of.
#[derive(Clone, Debug, Default)]
pub struct Layout {
    /// The namespace in which it runs; with its address there.
    pub netns: Option<(String, String)>,
    /// Further options of each member.
    pub options: Vec<String>,
    /// Whether clients come with TLS.
    pub tls: bool,
}

/// A cluster; dies with the test.
pub struct Cluster {
    members: Vec<Option<Child>>,
    layout: Layout,
    host: String,
    ports: Vec<(u16, u16)>,
    pub dir: tempfile::TempDir,
}

impl Cluster {
    /// Starts a cluster with this number of members.
    pub fn start(members: usize) -> Self {
        Cluster::with(members, Layout::default())
    }

    /// Starts a cluster.
    pub fn with(members: usize, layout: Layout) -> Self {
        let host = layout.netns.as_ref().map_or("127.0.0.1".to_owned(), |(_, address)| address.clone());
        // All of them are held until the last is known; nobody else picks ports in this range by number.
        let held: Vec<_> = (0..2 * members).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        let ports: Vec<u16> = held.iter().map(|l| l.local_addr().unwrap().port()).collect();
        let ports = ports.chunks(2).map(|p| (p[0], p[1])).collect();
        drop(held);
        let dir = tempfile::tempdir().unwrap();
        let mut cluster = Cluster { members: (0..members).map(|_| None).collect(), layout, host, ports, dir };
        for member in 0..members {
            cluster.boot(member);
        }
        cluster
    }

    /// The members' client URLs.
    pub fn urls(&self) -> Vec<String> {
        (0..self.members.len()).map(|m| self.url(m)).collect()
    }

    /// A member's client URL.
    pub fn url(&self, member: usize) -> String {
        let scheme = if self.layout.tls { "https" } else { "http" };
        format!("{scheme}://{}:{}", self.host, self.ports[member].0)
    }

    fn peer(&self, member: usize) -> String {
        format!("http://{}:{}", self.host, self.ports[member].1)
    }

    /// Starts a member, with the data that it had.
    pub fn boot(&mut self, member: usize) {
        let all: Vec<_> = (0..self.members.len()).map(|m| format!("m{m}={}", self.peer(m))).collect();
        let (url, peer) = (self.url(member), self.peer(member));
        let mut command = match &self.layout.netns {
            Some((netns, _)) => {
                let mut command = Command::new("ip");
                command.args(["netns", "exec", netns, "setpriv"]);
                command
            }
            None => Command::new("setpriv"),
        };
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.dir.path().join(format!("m{member}.log")))
            .unwrap();
        let child = command
            .args(["--pdeathsig", "KILL", "--", "etcd", "--name", &format!("m{member}"), "--data-dir"])
            .arg(self.dir.path().join(format!("m{member}")))
            .args(["--listen-client-urls", &url, "--advertise-client-urls", &url])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &all.join(","), "--unsafe-no-fsync"])
            .args(["--heartbeat-interval", "50", "--election-timeout", "500"])
            .args(&self.layout.options)
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap_or_else(|e| panic!("cannot start etcd (Debian package etcd-server): {e}"));
        self.members[member] = Some(child);
    }

    /// Kills a member.
    pub fn kill(&mut self, member: usize) {
        if let Some(mut child) = self.members[member].take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Waits until the members have a leader, and says which one it is.
    pub async fn leader(&self) -> usize {
        let deadline = Instant::now() + PATIENCE;
        loop {
            for member in (0..self.members.len()).filter(|m| self.members[*m].is_some()) {
                if self.leads(member).await.unwrap_or(false) {
                    return member;
                }
            }
            assert!(Instant::now() < deadline, "no leader");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    async fn leads(&self, member: usize) -> Result<bool, etcd_client::Error> {
        let mut client = self.raw(member).await?;
        let status = client.status().await?;
        Ok(status.header().is_some_and(|h| h.member_id() == status.leader()))
    }

    /// A client that is not ours.
    pub async fn raw(&self, member: usize) -> Result<etcd_client::Client, etcd_client::Error> {
        etcd_client::Client::connect([self.url(member)], None).await
    }

    /// The way to the whole cluster: 2 s for a request.
    pub fn config(&self, lease: Duration) -> EtcdConfig {
        EtcdConfig { timeout: Duration::from_secs(2), lease, ..EtcdConfig::new(self.urls()) }
    }

    /// A store in the cluster, which is up.
    pub async fn connect(&self, lease: Duration) -> Etcd {
        let store = Etcd::open(self.config(lease)).unwrap();
        answers(&store).await;
        store
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for member in 0..self.members.len() {
            self.kill(member);
        }
    }
}

/// Waits until a store answers.
pub async fn answers(store: &dyn masq_control::store::Store) {
    let deadline = Instant::now() + PATIENCE;
    while let Err(e) = store.get("masq/v1/none").await {
        assert!(Instant::now() < deadline, "etcd does not answer: {e}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
