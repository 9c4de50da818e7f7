//! Two hosts in network namespaces, a masqd on each, an etcd between them.
//!
//! Everything is made under one temporary directory and one namespace prefix, and is gone when the
//! [`Cluster`] is dropped.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

const PREFIX: &str = "masq-sim";

/// One vNIC of the cluster's desired state.
#[derive(Clone, Debug)]
pub struct VnicSpec {
    /// Name, and name of its socket.
    pub name: &'static str,
    /// Tenant.
    pub vpc: &'static str,
    /// 1 or 2.
    pub host: u8,
    /// Virtual address.
    pub address: Ipv4Addr,
}

/// How a cluster is laid out.
#[derive(Clone, Debug)]
pub struct Layout {
    /// The vNICs.
    pub vnics: Vec<VnicSpec>,
    /// The tenants whose vNICs are in a common security group, and so may talk to one another; by default all.
    pub groups: Vec<&'static str>,
    /// More of the desired state, as TOML.
    pub extra: String,
    /// MTU of the veth pair between the hosts.
    pub link_mtu: u32,
    /// More arguments for each masqd.
    pub masqd_args: Vec<String>,
}

impl Default for Layout {
    /// Two tenants on the same addresses, each with two vNICs on host 1 and one on host 2.
    fn default() -> Self {
        let mut vnics = Vec::new();
        for vpc in ["blue", "red"] {
            for (n, host) in [(1, 1), (2, 1), (3, 2)] {
                let name: &'static str = match (vpc, n) {
                    ("blue", 1) => "blue-1",
                    ("blue", 2) => "blue-2",
                    ("blue", _) => "blue-3",
                    (_, 1) => "red-1",
                    (_, 2) => "red-2",
                    _ => "red-3",
                };
                vnics.push(VnicSpec { name, vpc, host, address: Ipv4Addr::new(192, 168, 0, n) });
            }
        }
        let groups = vec!["blue", "red"];
        Layout { vnics, groups, extra: String::new(), link_mtu: 9000, masqd_args: Vec::new() }
    }
}

/// A running cluster.
pub struct Cluster {
    dir: PathBuf,
    prefix: String,
    programs: PathBuf,
    layout: Layout,
    etcd: Option<Child>,
    masqd: [Option<Child>; 2],
}

impl Cluster {
    /// Starts a cluster with the programs masqd and masqctl in `programs`.
    pub fn start(programs: &Path, layout: Layout) -> io::Result<Self> {
        remove_leftovers()?;
        static STARTED: AtomicU32 = AtomicU32::new(0);
        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        let prefix = format!("{PREFIX}{}-{number}", std::process::id());
        let dir = std::env::temp_dir().join(&prefix);
        fs::create_dir_all(&dir)?;
        let mut c = Cluster {
            dir,
            prefix,
            programs: programs.to_path_buf(),
            layout,
            etcd: None,
            masqd: [None, None],
        };
        c.make_network()?;
        c.start_etcd()?;
        fs::write(c.dir.join("desired.toml"), c.desired())?;
        c.wait_for("etcd", |c| {
            let log = fs::read_to_string(c.dir.join("etcd.log")).unwrap_or_default();
            log.contains("ready to serve client requests")
        })?;
        for host in [1, 2] {
            c.start_masqd(host)?;
        }
        c.wait_for_api(1)?;
        c.apply()?;
        c.wait_for_api(2)?;
        Ok(c)
    }

    /// Waits until a host's masqd answers.
    pub fn wait_for_api(&self, host: u8) -> io::Result<()> {
        self.wait_for("masqd's API socket", |c| c.host_dir(host).join("masqd.sock").exists())
    }

    /// Where masqd and masqctl are.
    pub fn programs(&self) -> &Path {
        &self.programs
    }

    /// The vhost-user socket of a vNIC.
    pub fn socket(&self, vnic: &str) -> PathBuf {
        self.host_dir(self.spec(vnic).host).join(format!("{vnic}.sock"))
    }

    /// A vNIC's entry in the layout.
    pub fn spec(&self, vnic: &str) -> &VnicSpec {
        self.layout.vnics.iter().find(|v| v.name == vnic).expect("a vNIC of the layout")
    }

    /// The network namespace of a host.
    pub fn netns(&self, host: u8) -> String {
        format!("{}-h{host}", self.prefix)
    }

    /// The underlay address of a host.
    pub fn underlay(host: u8) -> Ipv4Addr {
        Ipv4Addr::new(10, 77, 0, host)
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

    /// Where both logs are, for a failure's report.
    pub fn tails(&self) -> LogTails {
        LogTails([self.log_path(1), self.log_path(2)])
    }

    /// Runs masqctl against a host's masqd; its standard output.
    pub fn masqctl(&self, host: u8, args: &[&str]) -> io::Result<String> {
        let socket = self.host_dir(host).join("masqd.sock");
        let out =
            Command::new(self.programs.join("masqctl")).arg("--socket").arg(socket).args(args).output()?;
        if out.status.success() {
            return Ok(String::from_utf8_lossy(&out.stdout).into_owned());
        }
        Err(io::Error::other(format!("masqctl {}: {}", args.join(" "), String::from_utf8_lossy(&out.stderr))))
    }

    /// A counter of a host's RNIC.
    ///
    /// # Panics
    /// When there is none of that name.
    #[track_caller]
    pub fn counter(&self, host: u8, name: &str) -> u64 {
        let text = self.masqctl(host, &["counters", "-o", "json"]).expect("masqctl counters");
        let all: BTreeMap<String, u64> = serde_json::from_str(&text).expect("names and numbers");
        *all.get(name).unwrap_or_else(|| panic!("no counter {name}, but: {text}"))
    }

    /// Adds an underlay address to a host of which masqd does not know.
    pub fn add_address(&self, host: u8, address: Ipv4Addr) -> io::Result<()> {
        ip(&["-n", &self.netns(host), "address", "replace", &format!("{address}/24"), "dev", "ul0"])
    }

    /// A command that runs in a host's namespace, and dies with this process.
    pub fn command(&self, host: u8, program: &Path) -> Command {
        let mut command = Command::new("ip");
        command
            .args(["netns", "exec", &self.netns(host), "setpriv", "--pdeathsig", "KILL", "--"])
            .arg(program)
            .stdin(Stdio::null());
        command
    }

    /// Changes which tenants' vNICs are in a common group, and applies.
    pub fn set_groups(&mut self, groups: &[&'static str]) -> io::Result<()> {
        self.layout.groups = groups.to_vec();
        fs::write(self.dir.join("desired.toml"), self.desired())?;
        self.apply()
    }

    /// Kills a host's masqd with SIGKILL.
    pub fn kill_masqd(&mut self, host: u8) -> io::Result<()> {
        if let Some(mut child) = self.masqd[host as usize - 1].take() {
            child.kill()?;
            child.wait()?;
        }
        Ok(())
    }

    /// Whether a host's masqd still runs.
    pub fn masqd_runs(&mut self, host: u8) -> bool {
        self.masqd[host as usize - 1].as_mut().is_some_and(|c| matches!(c.try_wait(), Ok(None)))
    }

    /// Process id of a host's masqd.
    pub fn masqd_pid(&self, host: u8) -> Option<u32> {
        self.masqd[host as usize - 1].as_ref().map(Child::id)
    }

    /// Starts a host's masqd.
    pub fn start_masqd(&mut self, host: u8) -> io::Result<()> {
        let run = self.host_dir(host);
        fs::create_dir_all(&run)?;
        let log = fs::OpenOptions::new().create(true).append(true).open(self.log_path(host))?;
        let child = self
            .command(host, &self.programs.join("masqd"))
            .args(["--host", &format!("h{host}")])
            .args(["--store", &format!("etcd:http://{}:2379", Self::underlay(1))])
            .arg("--run-dir")
            .arg(&run)
            .args(&self.layout.masqd_args)
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()?;
        self.masqd[host as usize - 1] = Some(child);
        Ok(())
    }

    fn apply(&self) -> io::Result<()> {
        let file = self.dir.join("desired.toml");
        self.masqctl(1, &["apply", "--prune", "-f", &file.to_string_lossy()]).map(drop)
    }

    fn make_network(&self) -> io::Result<()> {
        let (h1, h2) = (self.netns(1), self.netns(2));
        let mtu = self.layout.link_mtu.to_string();
        ip(&["netns", "add", &h1])?;
        ip(&["netns", "add", &h2])?;
        ip(&["link", "add", "ul0", "netns", &h1, "type", "veth", "peer", "name", "ul0", "netns", &h2])?;
        for (host, ns) in [(1, &h1), (2, &h2)] {
            let address = format!("{}/24", Self::underlay(host));
            ip(&["-n", ns, "address", "add", &address, "dev", "ul0"])?;
            ip(&["-n", ns, "link", "set", "ul0", "mtu", &mtu, "up"])?;
            ip(&["-n", ns, "link", "set", "lo", "up"])?;
        }
        Ok(())
    }

    fn start_etcd(&mut self) -> io::Result<()> {
        let url = format!("http://{}:2379", Self::underlay(1));
        let log = fs::File::create(self.dir.join("etcd.log"))?;
        let child = self
            .command(1, Path::new("etcd"))
            .arg("--data-dir")
            .arg(self.dir.join("etcd"))
            .args(["--listen-client-urls", &url, "--advertise-client-urls", &url])
            .args(["--listen-peer-urls", "http://127.0.0.1:0", "--unsafe-no-fsync"])
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()?;
        self.etcd = Some(child);
        Ok(())
    }

    fn desired(&self) -> String {
        let mut text = String::new();
        for host in [1, 2] {
            text += &format!("[[host]]\nname = \"h{host}\"\nunderlay = [\"{}\"]\n\n", Self::underlay(host));
        }
        let mut vpcs: Vec<&str> = Vec::new();
        for v in &self.layout.vnics {
            if !vpcs.contains(&v.vpc) {
                vpcs.push(v.vpc);
            }
            let vpc = vpcs.iter().position(|n| *n == v.vpc).expect("just added") as u8;
            let group =
                if self.layout.groups.contains(&v.vpc) { format!("\"{}\"", v.vpc) } else { String::new() };
            text += &format!(
                "[[vnic]]\nname = \"{}\"\nvpc = \"{}\"\nhost = \"h{}\"\nmac = \"52:54:00:00:{vpc:02x}:{:02x}\"\naddresses = [\"{}\"]\nsecurity_groups = [{group}]\n\n",
                v.name,
                v.vpc,
                v.host,
                v.address.octets()[3],
                v.address
            );
        }
        for (n, vpc) in vpcs.iter().enumerate() {
            text += &format!("[[vpc]]\nname = \"{vpc}\"\nvni = {}\n\n", 100 * (n + 1));
            text += &format!("[[security_group]]\nname = \"{vpc}\"\nvpc = \"{vpc}\"\n\n");
        }
        text + &self.layout.extra
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

/// The logs of both hosts.
pub struct LogTails([PathBuf; 2]);

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
        for child in self.masqd.iter_mut().chain([&mut self.etcd]).flatten() {
            let _ = child.kill();
            let _ = child.wait();
        }
        for host in [1, 2] {
            let _ = ip(&["netns", "delete", &self.netns(host)]);
        }
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// Removes what runs that were killed have left behind: namespaces and directories of processes that are gone.
fn remove_leftovers() -> io::Result<()> {
    let orphaned = |name: &str| {
        let owner = name.strip_prefix(PREFIX).and_then(|rest| rest.split('-').next());
        owner.is_some_and(|pid| pid.parse::<u32>().is_ok() && !Path::new("/proc").join(pid).exists())
    };
    let list = Command::new("ip").args(["netns", "list"]).output()?;
    for line in String::from_utf8_lossy(&list.stdout).lines() {
        let name = line.split(' ').next().unwrap_or_default();
        if orphaned(name) {
            // Another run may be at it as well.
            let _ = ip(&["netns", "delete", name]);
        }
    }
    for entry in fs::read_dir(std::env::temp_dir())?.flatten() {
        if orphaned(&entry.file_name().to_string_lossy()) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
    Ok(())
}

fn ip(args: &[&str]) -> io::Result<()> {
    let out = Command::new("ip").args(args).output()?;
    if out.status.success() {
        return Ok(());
    }
    Err(io::Error::other(format!("ip {}: {}", args.join(" "), String::from_utf8_lossy(&out.stderr).trim())))
}
