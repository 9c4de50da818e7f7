//! Hosts whose vNICs and rules are written through the API.

use std::collections::{BTreeMap, HashMap};
use std::io::{Read, Write};
use std::net::IpAddr;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bench_record::Res;
use guest_sim::verbs::Guest;
use guest_sim::{Cluster, Layout};
use masq_model::api::{ItemStatus, RealisedState};
use masq_model::{Host, Key, Kind, Object};
use serde_json::{Value, json};

use crate::objects;

/// The most changes in one transaction: etcd takes requests of 1.5 MiB.
const PER_TRANSACTION: usize = 2000;
/// The longest time that a change may take until it is in force.
const WAIT_SECONDS: u32 = 60;
/// A guest's memory, sparse.
const RAM_BYTES: usize = 3 << 30;

/// A cluster, with guests on the vNICs that are called after their numbers: `v1`, `v2` and so on.
pub struct World {
    cluster: Cluster,
    /// The hosts of the vNICs.
    hosts: Vec<u8>,
    guests: Mutex<HashMap<u32, Arc<Guest>>>,
}

/// The name of vNIC `n`.
pub fn name(n: u32) -> String {
    format!("v{n}")
}

/// The object that a vNIC of the measurements is.
fn server(n: u32, host: u8) -> Object {
    Object::Vnic(objects::vnic(name(n), n, Some(&format!("h{host}")), &[objects::SERVERS]))
}

impl World {
    /// A cluster of so many hosts with a vNIC on each of `vnics`, numbered from 1, all servers with the least rules.
    pub fn start(programs: &Path, hosts: u8, vnics: &[u8]) -> Res<World> {
        let layout = Layout { hosts, vnics: vec![], groups: vec![], ..Layout::default() };
        let cluster = Cluster::start(programs, layout)?;
        let world = World { cluster, hosts: vnics.to_vec(), guests: Mutex::default() };
        let mut all: Vec<_> = objects::rules(10).into_iter().map(Object::SecurityGroupRule).collect();
        all.extend((1..).zip(vnics).map(|(n, host)| server(n, *host)));
        world.apply(&all)?;
        Ok(world)
    }

    /// The address of a vNIC.
    pub fn address(n: u32) -> IpAddr {
        objects::address(n).into()
    }

    /// The guest on a vNIC, started if it is not.
    pub fn guest(&self, n: u32) -> Res<Arc<Guest>> {
        let mut guests = self.guests.lock().unwrap_or_else(|e| e.into_inner());
        if let Some(guest) = guests.get(&n) {
            return Ok(guest.clone());
        }
        let host = self.hosts.get(n as usize - 1).copied().ok_or("no such vNIC")?;
        let guest = Guest::start(&self.cluster.socket_on(host, &name(n)), RAM_BYTES, Self::address(n))?;
        guests.insert(n, guest.clone());
        Ok(guest)
    }

    /// The hosts.
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// Adds or replaces objects, and waits until that is in force.
    pub fn apply(&self, objects: &[Object]) -> Res<()> {
        // A file has to hold what its objects refer to.
        let mut referred = objects::network();
        for n in self.cluster.hosts() {
            let underlay = vec![Cluster::underlay(n).into()];
            let (aliases, class_rates) = (vec![], vec![]);
            referred.push(Object::Host(Host { name: format!("h{n}"), underlay, aliases, class_rates }));
        }
        for chunk in objects.chunks(PER_TRANSACTION) {
            let mut file: BTreeMap<&str, Vec<Value>> = BTreeMap::new();
            for object in referred.iter().chain(chunk) {
                file.entry(object.key().kind().name()).or_default().push(object.to_value());
            }
            let path = format!("/v1/apply?wait={WAIT_SECONDS}");
            let applied = self.api(1, "POST", &path, Some(&json!(file)))?;
            if !applied["status"].is_null() {
                realised(&applied["status"])?;
            }
        }
        Ok(())
    }

    /// Writes an object, and waits until it is in force; how long both took together.
    pub fn put(&self, object: &Object) -> Res<Duration> {
        let path = format!("{}?wait={WAIT_SECONDS}", path_of(&object.key())?);
        let start = Instant::now();
        let item = self.api(1, "PUT", &path, Some(&object.to_value()))?;
        let time = start.elapsed();
        realised(&item["status"])?;
        Ok(time)
    }

    /// Changes fields of an object, and waits until that is in force.
    pub fn patch(&self, key: &Key, fields: &Value) -> Res<()> {
        let path = format!("{}?wait={WAIT_SECONDS}", path_of(key)?);
        realised(&self.api(1, "PATCH", &path, Some(fields))?["status"])
    }

    /// Deletes an object, and waits until that is in force.
    pub fn delete(&self, key: &Key) -> Res<()> {
        let path = format!("{}?wait={WAIT_SECONDS}", path_of(key)?);
        realised(&self.api(1, "DELETE", &path, None)?)
    }

    /// A request to a host's API.
    pub fn api(&self, host: u8, method: &str, path: &str, body: Option<&Value>) -> Res<Value> {
        let mut stream = UnixStream::connect(self.api_socket(host))?;
        let body = body.map(Value::to_string).unwrap_or_default();
        let length = body.len();
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: masqd\r\nConnection: close\r\nContent-Type: application/json\r\n\
             Content-Length: {length}\r\n\r\n{body}"
        )?;
        let mut reply = String::new();
        stream.read_to_string(&mut reply)?;
        let (head, body) = reply.split_once("\r\n\r\n").ok_or("not HTTP")?;
        if !head.starts_with("HTTP/1.1 2") {
            return Err(format!("{method} {path}: {reply}").into());
        }
        Ok(serde_json::from_str(body)?)
    }

    /// masqd listens beside the sockets of the vNICs.
    fn api_socket(&self, host: u8) -> PathBuf {
        self.cluster.socket_on(host, "masqd")
    }
}

fn realised(status: &Value) -> Res<()> {
    let status: ItemStatus = serde_json::from_value(status.clone())?;
    match status.state {
        RealisedState::Realised => Ok(()),
        _ => Err(format!("not in force after {WAIT_SECONDS} s: {status:?}").into()),
    }
}

fn path_of(key: &Key) -> Res<String> {
    let name = key.name();
    Ok(match key.kind() {
        Kind::Host => format!("/v1/hosts/{name}"),
        Kind::Vnic => format!("/v1/vnics/{name}"),
        Kind::QosPolicy => format!("/v1/qos-policies/{name}"),
        Kind::SecurityGroupRule => {
            let (group, rule) = name.split_once('/').ok_or("the key of a rule")?;
            format!("/v1/security-groups/{group}/rules/{rule}")
        }
        kind => return Err(format!("no path for a {kind}").into()),
    })
}
