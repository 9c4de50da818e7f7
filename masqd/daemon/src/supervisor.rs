//! Makes this host serve exactly the vNICs that the desired state gives it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use masq_control::store::Store;
use masq_control::{Identity, Link, identity};
use masq_model::api::{LinkStatus, VnicState, VnicStatus};
use tokio::sync::{Notify, oneshot, watch};
use tracing::{info, warn};

use crate::device::{Device, Message, Report};
use crate::health::Health;
use crate::host::Host;
use crate::realise::Realiser;
use crate::sync::STORE;
use crate::underlay::{LinkState, Underlay, UnderlayError};

/// What failed is tried again after this time, even if nothing has changed.
const RETRY_INTERVAL: Duration = Duration::from_secs(2);
/// A device that has not answered by then is stuck.
const REPORT_PATIENCE: Duration = Duration::from_secs(1);
const UNDERLAY: &str = "underlay";
const DESIRED: &str = "desired state";

/// The devices of this host.
#[derive(Default)]
pub struct Devices {
    running: Mutex<BTreeMap<String, Running>>,
    /// vNICs whose devices are being taken away from their guests.
    leaving: Mutex<BTreeSet<String>>,
    /// One of them has left.
    left: Notify,
}

struct Running {
    device: Device,
    identity: Identity,
}

/// Runs the devices.
pub struct Supervisor {
    /// The host.
    pub host: Arc<Host>,
    /// The store.
    pub store: Arc<dyn Store>,
    /// Where problems are told.
    pub health: Arc<Health>,
    /// The devices.
    pub devices: Arc<Devices>,
    /// Where sockets are made.
    pub run_dir: PathBuf,
    /// The host's links.
    pub underlay: Underlay,
    /// Changes when the directory does.
    pub changed: watch::Receiver<u64>,
}

impl Supervisor {
    /// Runs for ever.
    pub async fn run(mut self) {
        let mut realiser = Realiser::new(&self.host.name);
        // Nothing is known of the desired state before the first reading.
        if self.changed.changed().await.is_err() {
            return;
        }
        loop {
            self.changed.borrow_and_update();
            let settled = self.reconcile(&mut realiser).await;
            tokio::select! {
                changed = self.changed.changed() => if changed.is_err() { return },
                () = self.underlay.changed() => {}
                () = self.devices.left.notified() => {}
                () = tokio::time::sleep(RETRY_INTERVAL), if !settled => {}
            }
        }
    }

    /// One round; whether everything is as it should be.
    async fn reconcile(&mut self, realiser: &mut Realiser) -> bool {
        let Some(addresses) = self.host_addresses() else {
            self.devices.withdraw_all_but(|_| false);
            return true;
        };
        let usable = self.look_at_underlay(&addresses).await;
        if !usable && self.devices.is_empty() {
            return false;
        }
        let mut settled = usable && self.publish(realiser).await;
        let wanted = self.wanted();
        self.devices.withdraw_all_but(|running| wanted.iter().any(|w| same_device(w, &running.identity)));
        for identity in wanted {
            settled &= self.serve(identity);
        }
        settled
    }

    /// The host's underlay addresses, if the desired state knows it.
    fn host_addresses(&self) -> Option<Vec<IpAddr>> {
        let addresses = self.host.directory.read().host(&self.host.name).map(|h| h.underlay.clone());
        match &addresses {
            Some(_) => self.health.fine(DESIRED),
            None => self
                .health
                .problem(DESIRED, format!("it has no host {:?}, which is this one", self.host.name)),
        }
        addresses
    }

    async fn look_at_underlay(&self, addresses: &[IpAddr]) -> bool {
        let state = self.underlay.state(addresses).await;
        let link = match &state {
            Ok(LinkState { up, active_mtu }) => Link { up: *up, active_mtu: *active_mtu, mbits_per_sec: 0 },
            // Guests that run already see their port go down.
            Err(_) => Link { up: false, ..self.host.link() },
        };
        match &state {
            Ok(LinkState { up: true, .. }) => self.health.fine(UNDERLAY),
            Ok(_) => self.health.problem(UNDERLAY, "an interface that has an underlay address is down"),
            Err(e) => self.health.problem(UNDERLAY, e),
        }
        if self.host.set_link(link) {
            info!(up = link.up, path_mtu = link.active_mtu.bytes(), "underlay link");
            self.devices.tell_all(|| Message::Link(link));
        }
        !matches!(state, Err(UnderlayError::Missing { .. } | UnderlayError::Narrow { .. }))
    }

    /// Writes the endpoints that are due; whether all could be.
    async fn publish(&self, realiser: &mut Realiser) -> bool {
        if !realiser.is_due(&self.host.directory.read()) {
            return true;
        }
        match realiser.realise(&*self.store).await {
            Ok(realised) => {
                for (vnic, problem) in &realised.problems {
                    self.health.problem(&about(vnic), problem);
                }
                realised.problems.is_empty()
            }
            Err(e) => {
                self.health.problem(STORE, e);
                false
            }
        }
    }

    /// Who is to be served: the vNICs of this host whose endpoints are published.
    fn wanted(&self) -> Vec<Identity> {
        let directory = self.host.directory.read();
        directory.vnics_of_host(&self.host.name).filter_map(|v| identity(&directory, &v.name).ok()).collect()
    }

    /// Starts a device, or brings it up to date; whether it runs.
    fn serve(&self, identity: Identity) -> bool {
        let mut devices = self.devices.lock();
        if let Some(running) = devices.get_mut(&identity.vnic) {
            if running.identity.gids != identity.gids {
                running.device.inbox().push(Message::Gids(identity.gids.clone()));
                running.identity = identity;
            }
            return true;
        }
        let name = identity.vnic.clone();
        if self.devices.leaving().contains(&name) {
            // Its end brings the next round.
            return false;
        }
        let socket = socket_path(&self.run_dir, &name);
        match Device::start(&name, socket.clone(), self.host.clone()) {
            Ok(device) => {
                info!(vnic = name, vpc = identity.vpc, socket = %socket.display(), "vNIC is served");
                self.health.fine(&about(&name));
                devices.insert(name, Running { device, identity });
                true
            }
            Err(e) => {
                self.health.problem(&about(&name), format!("cannot listen on {}: {e}", socket.display()));
                false
            }
        }
    }
}

/// Whether a running device can go on as `wanted`.
fn same_device(wanted: &Identity, running: &Identity) -> bool {
    Identity { gids: running.gids.clone(), ..wanted.clone() } == *running
}

fn about(vnic: &str) -> String {
    format!("vnic {vnic}")
}

/// Where the front end of a vNIC connects.
pub fn socket_path(run_dir: &Path, vnic: &str) -> PathBuf {
    run_dir.join(format!("{vnic}.sock"))
}

impl Devices {
    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Running>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn leaving(&self) -> std::sync::MutexGuard<'_, BTreeSet<String>> {
        self.leaving.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    fn tell_all(&self, message: impl Fn() -> Message) {
        self.lock().values().for_each(|r| r.device.inbox().push(message()));
    }

    /// Takes the devices that `keep` does not name away from their guests, without waiting for their ends.
    fn withdraw_all_but(self: &Arc<Self>, keep: impl Fn(&Running) -> bool) {
        let ending = {
            let mut running = self.lock();
            let (kept, ending): (BTreeMap<_, _>, BTreeMap<_, _>) =
                std::mem::take(&mut *running).into_iter().partition(|(_, r)| keep(r));
            *running = kept;
            ending
        };
        for (name, running) in ending {
            info!(vnic = name, "vNIC is no longer served");
            self.leaving().insert(name.clone());
            let devices = self.clone();
            // Waits for the device's thread.
            let end = tokio::task::spawn_blocking(move || running.device.withdraw());
            tokio::spawn(async move {
                if let Err(e) = end.await {
                    warn!(vnic = name, "taking a device away failed: {e}");
                }
                devices.leaving().remove(&name);
                devices.left.notify_one();
            });
        }
    }

    /// Stops all devices at the same time, waits for their ends, and removes their sockets.
    pub async fn stop_all(&self) {
        let ending = std::mem::take(&mut *self.lock());
        // Each waits for the device's thread.
        let ends = ending.into_values().map(|r| tokio::task::spawn_blocking(move || r.device.stop()));
        for end in ends.collect::<Vec<_>>() {
            if let Err(e) = end.await {
                warn!("stopping a device failed: {e}");
            }
        }
        while !self.leaving().is_empty() {
            self.left.notified().await;
        }
    }

    /// How each vNIC of this host is, with what its device tells.
    pub async fn report(&self, host: &Host, health: &Health, run_dir: &Path) -> Vec<(VnicStatus, Report)> {
        let asked: Vec<_> = {
            let devices = self.lock();
            let ask = |running: &Running| {
                let (reply, answer) = oneshot::channel();
                running.device.inbox().push(Message::Report(reply));
                answer
            };
            devices.iter().map(|(name, running)| (name.clone(), ask(running))).collect()
        };
        let mut reports = BTreeMap::new();
        for (name, answer) in asked {
            let report = tokio::time::timeout(REPORT_PATIENCE, answer).await;
            reports.insert(name, report.ok().and_then(Result::ok));
        }
        let directory = host.directory.read();
        let status = |vnic: &masq_model::Vnic| {
            let vni = directory.vpc(&vnic.vpc)?.vni;
            let served = reports.remove(&vnic.name);
            let mut problem = health.of(&about(&vnic.name));
            let (state, report) = match served {
                Some(Some(report)) => (report.state, report),
                Some(None) => {
                    problem = problem.or_else(|| Some("its device does not answer".into()));
                    (VnicState::Failed, Report::default())
                }
                None => (VnicState::Failed, Report::default()),
            };
            let status = VnicStatus {
                name: vnic.name.clone(),
                vpc: vnic.vpc.clone(),
                vni,
                mac: vnic.mac,
                addresses: vnic.addresses.clone(),
                socket: socket_path(run_dir, &vnic.name),
                state,
                epoch: report.epoch.map(|e| format!("{e:016x}")),
                problem: if state == VnicState::Failed {
                    problem.or_else(|| Some("it is not served yet".into()))
                } else {
                    problem
                },
                objects: report.objects,
            };
            Some((status, report))
        };
        directory.vnics_of_host(&host.name).filter_map(status).collect()
    }
}

/// The link, for people.
pub fn link_status(link: Link) -> LinkStatus {
    LinkStatus { up: link.up, active_mtu_bytes: link.active_mtu.bytes() }
}
