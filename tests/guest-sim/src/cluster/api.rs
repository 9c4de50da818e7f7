//! masqd's API, through masqctl where it can say it, else as HTTP over the socket.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Command;

use masq_model::Object;
use serde_json::Value;

use super::Cluster;

/// How masqctl has ended.
#[derive(Clone, Debug)]
pub struct CtlOutput {
    /// What it was asked.
    pub command: String,
    /// Its exit status.
    pub code: i32,
    /// Standard output.
    pub out: String,
    /// Standard error.
    pub err: String,
}

impl Cluster {
    /// masqctl against a host's masqd, to be run.
    pub fn ctl_command(&self, host: u8, args: &[&str]) -> Command {
        let mut command = Command::new(self.programs.join("masqctl"));
        command.arg("--socket").arg(self.api_socket(host)).args(args);
        command
    }

    /// Runs masqctl against a host's masqd.
    pub fn ctl(&self, host: u8, args: &[&str]) -> io::Result<CtlOutput> {
        let out = self.ctl_command(host, args).output()?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let code = out.status.code().ok_or_else(|| io::Error::other("masqctl was killed"))?;
        Ok(CtlOutput { command: args.join(" "), code, out: text(&out.stdout), err: text(&out.stderr) })
    }

    /// Runs masqctl against a host's masqd; its standard output. An error when it does not exit with 0.
    pub fn masqctl(&self, host: u8, args: &[&str]) -> io::Result<String> {
        let done = self.ctl(host, args)?;
        if done.code == 0 {
            return Ok(done.out);
        }
        Err(io::Error::other(format!("masqctl {}: exit status {}: {}", done.command, done.code, done.err)))
    }

    /// Makes the desired state that of the layout and `more`, and waits until it is realised, at most `wait_seconds`.
    pub fn apply(&self, more: &[Object], wait_seconds: u16) -> io::Result<()> {
        let mut state: BTreeMap<&str, Vec<Value>> = BTreeMap::new();
        for object in self.layout.desired().iter().chain(more) {
            state.entry(object.key().kind().name()).or_default().push(object.to_value());
        }
        let file = self.dir.join("desired.json");
        std::fs::write(&file, serde_json::to_vec_pretty(&state)?)?;
        let wait = wait_seconds.to_string();
        self.masqctl(1, &["apply", "--prune", "-f", &file.to_string_lossy(), "--wait", &wait]).map(drop)
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

    /// The sum of a metric's samples that have all of `labels`, such as `reason="denied"`; 0 when there is none.
    ///
    /// # Panics
    /// When masqd does not tell its metrics.
    #[track_caller]
    pub fn metric(&self, host: u8, name: &str, labels: &[&str]) -> f64 {
        self.samples(host, name, labels).iter().map(|(_, value)| value).sum()
    }

    /// How many objects of each kind a vNIC's guest has.
    ///
    /// # Panics
    /// When masqd does not tell its metrics.
    #[track_caller]
    pub fn objects(&self, vnic: &str) -> BTreeMap<String, u64> {
        let label = format!("vnic=\"{vnic}\"");
        let samples = self.samples(self.spec(vnic).host, "masqd_vnic_objects", &[&label]);
        let resource = |line: &str| {
            let (_, rest) = line.split_once("resource=\"").expect("a kind of object");
            rest.split('"').next().unwrap_or_default().to_owned()
        };
        samples.iter().map(|(line, value)| (resource(line), *value as u64)).collect()
    }

    /// A metric's samples that have all of `labels`, whole lines, and their values.
    #[track_caller]
    fn samples(&self, host: u8, name: &str, labels: &[&str]) -> Vec<(String, f64)> {
        let (status, text) = self.get(host, "/metrics").expect("masqd answers");
        assert_eq!(status, 200, "/metrics: {text}");
        let wanted = |line: &&str| {
            line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' ']))
                && labels.iter().all(|label| line.contains(label))
        };
        let value = |line: &str| line.rsplit(' ').next().and_then(|n| n.parse().ok()).expect("a number");
        text.lines().filter(wanted).map(|line| (line.to_owned(), value(line))).collect()
    }

    /// GET of a path of a host's API: status and body.
    pub fn get(&self, host: u8, path: &str) -> io::Result<(u16, String)> {
        let mut stream = UnixStream::connect(self.api_socket(host))?;
        write!(stream, "GET {path} HTTP/1.1\r\nHost: masqd\r\nConnection: close\r\n\r\n")?;
        let mut reply = String::new();
        stream.read_to_string(&mut reply)?;
        let malformed = || io::Error::other(format!("GET {path}: not HTTP: {reply:?}"));
        let (head, body) = reply.split_once("\r\n\r\n").ok_or_else(malformed)?;
        let status = head.split(' ').nth(1).and_then(|s| s.parse().ok()).ok_or_else(malformed)?;
        Ok((status, body.to_owned()))
    }

    pub(super) fn api_socket(&self, host: u8) -> PathBuf {
        self.host_dir(host).join("masqd.sock")
    }
}
