//! Hosts in network namespaces, a masqd on each, an etcd that all of them reach.
//!
//! Everything is made under one temporary directory and one namespace prefix, and is gone when the
//! [`Cluster`] is dropped.

mod api;
mod layout;
mod network;
mod switches;

use std::fs;
use std::io;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

pub use api::CtlOutput;
pub use layout::{Layout, VnicSpec};
use network::{Network, ip};

/// A running cluster.
pub struct Cluster {
    dir: PathBuf,
    network: Network,
    programs: PathBuf,
    layout: Layout,
    etcd: Mutex<Option<Child>>,
    masqd: Vec<Mutex<Option<Child>>>,
}

impl Cluster {
    /// Starts a cluster with the programs masqd and masqctl in `programs`.
    pub fn start(programs: &Path, layout: Layout) -> io::Result<Self> {
        network::remove_leftovers()?;
        static STARTED: AtomicU32 = AtomicU32::new(0);
        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        let network = Network::new(number, &layout)?;
        let dir = std::env::temp_dir().join(network.prefix());
        fs::create_dir_all(&dir)?;
        let c = Cluster {
            dir,
            network,
            programs: programs.to_path_buf(),
            etcd: Mutex::default(),
            masqd: (0..layout.hosts).map(|_| Mutex::default()).collect(),
            layout,
        };
        c.start_etcd()?;
        for host in c.hosts() {
            c.start_masqd(host)?;
        }
        c.wait_for_api(1)?;
        c.apply(&[], 0)?;
        for host in c.hosts() {
            c.wait_for_api(host)?;
        }
        Ok(c)
    }

    /// The numbers of the hosts.
    pub fn hosts(&self) -> impl Iterator<Item = u8> + use<> {
        1..=self.layout.hosts
    }

    /// Waits until a host's masqd answers.
    pub fn wait_for_api(&self, host: u8) -> io::Result<()> {
        self.wait_for("masqd's API socket", |c| c.api_socket(host).exists())
    }

    /// Where masqd and masqctl are.
    pub fn programs(&self) -> &Path {
        &self.programs
    }

    /// The vhost-user socket of a vNIC of the layout.
    pub fn socket(&self, vnic: &str) -> PathBuf {
        self.socket_on(self.spec(vnic).host, vnic)
    }

    /// The vhost-user socket that a vNIC has on a host while it runs there.
    pub fn socket_on(&self, host: u8, vnic: &str) -> PathBuf {
        self.host_dir(host).join(format!("{vnic}.sock"))
    }

    /// A vNIC's entry in the layout.
    pub fn spec(&self, vnic: &str) -> &VnicSpec {
        self.layout.vnics.iter().find(|v| v.name == vnic).expect("a vNIC of the layout")
    }

    /// The network namespace of a host.
    pub fn netns(&self, host: u8) -> String {
        self.network.host(host)
    }

    /// The underlay address of a host.
    pub fn underlay(host: u8) -> Ipv4Addr {
        network::underlay(host)
    }

    /// The underlay address of a host's vNIC that has one of its own on a path.
    pub fn alias(host: u8, path: u8) -> Ipv4Addr {
        network::alias(host, path)
    }

    /// Cuts a path between the two hosts, or makes it whole again. What is sent over it meanwhile vanishes.
    pub fn set_path(&self, path: u8, up: bool) -> io::Result<()> {
        self.network.set_path(path, up)
    }

    /// The namespace and the name of the link where what a host sends takes a path.
    pub fn path_link(&self, host: u8, path: u8) -> (String, String) {
        self.network.path_link(host, path)
    }

    /// Bytes that a host has sent over a path, as the link counts them.
    pub fn sent_bytes(&self, host: u8, path: u8) -> io::Result<u64> {
        self.network.sent_bytes(host, path)
    }

    /// Where masqd of a host logs.
    pub fn log_path(&self, host: u8) -> PathBuf {
        self.host_dir(host).join("masqd.log")
    }

    /// What masqd of a host has logged so far.
    pub fn log(&self, host: u8) -> String {
        fs::read_to_string(self.log_path(host)).unwrap_or_default()
    }

    /// A line of a host's log from byte `from` on that holds all of `words`.
    ///
    /// # Panics
    /// When none appears within five seconds.
    #[track_caller]
    pub fn expect_log(&self, host: u8, from: usize, words: &[&str]) -> String {
        let deadline = Instant::now() + Duration::from_secs(5);
        loop {
            let log = self.log(host);
            let news = log.get(from..).unwrap_or_default();
            if let Some(line) = news.lines().find(|l| words.iter().all(|w| l.contains(w))) {
                return line.to_owned();
            }
            assert!(
                Instant::now() < deadline,
                "masqd on host {host} logs no line with all of {words:?}, but:\n{news}"
            );
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Where all logs are, for a failure's report.
    pub fn tails(&self) -> LogTails {
        LogTails(self.hosts().map(|host| self.log_path(host)).collect())
    }

    /// Adds an underlay address to a host of which masqd does not know.
    pub fn add_address(&self, host: u8, address: Ipv4Addr) -> io::Result<()> {
        ip(&["-n", &self.netns(host), "address", "replace", &format!("{address}/24"), "dev", "ul0"])
    }

    /// Separates a host from the store, or joins them again. What is sent meanwhile vanishes without a word.
    pub fn set_store_link(&self, host: u8, up: bool) -> io::Result<()> {
        self.network.set_store_link(host, up)
    }

    /// A command that runs in a host's namespace, and dies with this process.
    pub fn command(&self, host: u8, program: &Path) -> Command {
        command_in(&self.netns(host), program)
    }

    /// Changes which tenants' vNICs are in a common group, and applies.
    pub fn set_groups(&mut self, groups: &[&'static str]) -> io::Result<()> {
        self.layout.groups = groups.to_vec();
        self.apply(&[], 0)
    }

    /// Kills a host's masqd with SIGKILL.
    pub fn kill_masqd(&self, host: u8) -> io::Result<()> {
        kill(&mut self.masqd(host))
    }

    /// Whether a host's masqd still runs.
    pub fn masqd_runs(&self, host: u8) -> bool {
        self.masqd(host).as_mut().is_some_and(|c| matches!(c.try_wait(), Ok(None)))
    }

    /// Process id of a host's masqd.
    pub fn masqd_pid(&self, host: u8) -> Option<u32> {
        self.masqd(host).as_ref().map(Child::id)
    }

    /// Starts a host's masqd.
    pub fn start_masqd(&self, host: u8) -> io::Result<()> {
        let run = self.host_dir(host);
        fs::create_dir_all(&run)?;
        let log = fs::OpenOptions::new().create(true).append(true).open(self.log_path(host))?;
        let child = self
            .command(host, &self.programs.join("masqd"))
            .args(["--host", &layout::host_name(host)])
            .args(["--store", &format!("etcd:http://{}:2379", network::store_address(host))])
            .arg("--run-dir")
            .arg(&run)
            .args(&self.layout.masqd_args)
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()?;
        *self.masqd(host) = Some(child);
        Ok(())
    }

    /// Kills the etcd with SIGKILL.
    pub fn kill_etcd(&self) -> io::Result<()> {
        kill(&mut lock(&self.etcd))
    }

    /// Starts the etcd, with what it had stored.
    pub fn start_etcd(&self) -> io::Result<()> {
        let path = self.dir.join("etcd.log");
        let log = fs::File::create(&path)?;
        let child = command_in(&self.network.store(), Path::new("etcd"))
            .arg("--data-dir")
            .arg(self.dir.join("etcd"))
            .args(["--listen-client-urls", "http://0.0.0.0:2379"])
            .args(["--advertise-client-urls", &format!("http://{}:2379", network::store_address(1))])
            .args(["--listen-peer-urls", "http://127.0.0.1:0", "--unsafe-no-fsync"])
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()?;
        *lock(&self.etcd) = Some(child);
        self.wait_for("etcd", |_| {
            fs::read_to_string(&path).unwrap_or_default().contains("ready to serve client requests")
        })
    }

    fn masqd(&self, host: u8) -> MutexGuard<'_, Option<Child>> {
        lock(&self.masqd[usize::from(host) - 1])
    }

    fn host_dir(&self, host: u8) -> PathBuf {
        self.dir.join(format!("h{host}"))
    }

    fn wait_for(&self, what: &str, ready: impl Fn(&Self) -> bool) -> io::Result<()> {
        let deadline = Instant::now() + Duration::from_secs(20);
        while !ready(self) {
            if Instant::now() > deadline {
                return Err(io::Error::other(format!("{what} did not appear; masqd says: {}", self.log(1))));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }
}

/// The logs of all hosts.
pub struct LogTails(Vec<PathBuf>);

impl LogTails {
    /// The last lines of each.
    pub fn read(&self, lines: usize) -> String {
        let mut text = String::new();
        for (path, host) in self.0.iter().zip(1..) {
            let log = fs::read_to_string(path).unwrap_or_default();
            let all: Vec<&str> = log.lines().collect();
            text += &format!("masqd on host {host}, last lines:\n");
            for line in &all[all.len().saturating_sub(lines)..] {
                text += &format!("    {line}\n");
            }
        }
        text
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for child in self.masqd.iter().chain([&self.etcd]) {
            let _ = kill(&mut lock(child));
        }
        let _ = fs::remove_dir_all(&self.dir);
    }
}

fn command_in(netns: &str, program: &Path) -> Command {
    let mut command = Command::new("ip");
    command
        .args(["netns", "exec", netns, "setpriv", "--pdeathsig", "KILL", "--"])
        .arg(program)
        .stdin(Stdio::null());
    command
}

fn kill(child: &mut Option<Child>) -> io::Result<()> {
    if let Some(mut child) = child.take() {
        child.kill()?;
        child.wait()?;
    }
    Ok(())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
