//! Makes this host serve exactly the vNICs that the desired state gives it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use masq_control::store::Store;
use masq_control::{Identity, Link, Settings};
use masq_driver::{Command, Limits};
use masq_model::api::{LinkStatus, VnicState, VnicStatus};
use masq_model::{ClassRate, HostState, Key, Object, Vnic};
use tokio::sync::{Notify, oneshot, watch};
use tracing::{info, warn};

use crate::device::Device;
use crate::health::Health;
use crate::host::Host;
use crate::inbox::{Inbox, Message, NamedQueuePair, Report};
use crate::realise::Realiser;
use crate::underlay::{Alias, LinkState, Reconciled, Underlay, UnderlayError};

/// What failed is tried again after this time, even if nothing has changed.
const RETRY_INTERVAL: Duration = Duration::from_secs(2);
/// A device that has not answered by then is stuck.
const REPORT_PATIENCE: Duration = Duration::from_secs(1);
/// The devices deal with a change within this time, or one of them is stuck.
const SETTLE_PATIENCE: Duration = Duration::from_secs(10);
const UNDERLAY: &str = "underlay";
const DEVICES: &str = "devices";
const PUBLISHING: &str = "publishing";
const ALIASES: &str = "aliases";
const CLASSES: &str = "class rates";
const RULES: &str = "rules";
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
    settings: Settings,
}

/// A device's queue pairs with these numbers. It is asked for a few at a time: between them it serves its guest, and the RNIC moves data.
async fn all_pages(inbox: Inbox, numbers: RangeInclusive<u32>) -> Option<Vec<NamedQueuePair>> {
    let (mut all, mut next) = (Vec::new(), Some(numbers));
    while let Some(numbers) = next {
        let (reply, answer) = oneshot::channel();
        inbox.push(Message::QueuePairs(numbers, reply));
        let page = tokio::time::timeout(REPORT_PATIENCE, answer).await.ok()?.ok()?;
        all.extend(page.qps);
        next = page.rest;
    }
    Some(all)
}

/// Runs the devices.
pub struct Supervisor {
    /// Like no other process's.
    pub id: u128,
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
    /// The classes' rates that the RNIC has, once it has been told any.
    pub class_rates: Option<Vec<ClassRate>>,
}

impl Supervisor {
    /// Runs for ever.
    pub async fn run(mut self) {
        let realiser = Realiser::new(&self.host.name, self.id);
        // Nothing is known of the desired state before the first reading.
        if self.changed.changed().await.is_err() {
            return;
        }
        loop {
            self.changed.borrow_and_update();
            let revision = self.host.directory.read().desired_revision();
            let mut settled = self.reconcile(&realiser).await;
            settled &= self.tell_progress(&realiser, revision).await;
            tokio::select! {
                changed = self.changed.changed() => if changed.is_err() { return },
                () = self.underlay.changed() => {}
                () = self.host.taken.changed() => {}
                () = self.devices.left.notified() => {}
                () = tokio::time::sleep(RETRY_INTERVAL), if !settled => {}
            }
        }
    }

    /// One round; whether everything is as it should be.
    async fn reconcile(&mut self, realiser: &Realiser) -> bool {
        self.tell_unreadable_rules();
        let Some(host) = self.desired_host() else {
            self.devices.withdraw_all_but(|_| false);
            return true;
        };
        let mut settled = self.set_class_rates(host.class_rates);
        settled &= self.reconcile_aliases(host.aliases).await;
        let usable = self.look_at_underlay(&host.underlay).await;
        if !usable && self.devices.is_empty() {
            return false;
        }
        // Before their endpoints are withdrawn, which tells everybody that this host has let them go.
        {
            let directory = self.host.directory.read();
            let stays = |name: &str| directory.vnic(name).is_some_and(|v| v.is_on(&self.host.name));
            self.devices.withdraw_all_but(|running| stays(&running.identity.vnic));
        }
        settled &= usable && self.publish(realiser).await;
        let wanted = self.wanted();
        self.devices
            .withdraw_all_but(|running| wanted.iter().any(|(w, _)| same_device(w, &running.identity)));
        for (identity, settings) in wanted {
            settled &= self.serve(identity, settings);
        }
        settled
    }

    /// A rule that cannot be read denies all traffic of its group: somebody should know.
    fn tell_unreadable_rules(&self) {
        let directory = self.host.directory.read();
        let rules: Vec<&str> = directory.unreadable().map(Key::name).collect();
        if rules.is_empty() {
            self.health.fine(RULES);
        } else {
            let rules = rules.join(", ");
            self.health.problem(
                RULES,
                format!("they cannot be read, and so deny all traffic of their groups: {rules}"),
            );
        }
    }

    /// Waits until all devices have dealt with what is desired up to `revision`, and publishes that; whether it could be.
    async fn tell_progress(&self, realiser: &Realiser, revision: u64) -> bool {
        if !self.devices.leaving().is_empty() {
            // The end of the last one brings the next round.
            return true;
        }
        if tokio::time::timeout(SETTLE_PATIENCE, self.host.router.settle()).await.is_err() {
            self.health
                .problem(DEVICES, "one does not answer, so what is desired may not be in force everywhere");
            return false;
        }
        self.health.fine(DEVICES);
        let state = HostState {
            host: self.host.name.clone(),
            realised_revision: revision,
            problems: self.health.problems_to_publish(),
        };
        let object = Object::HostState(state);
        let key = object.key();
        // The store may have lost it, with this host's lease.
        if self.host.directory.read().get(key.kind(), key.name()) == Some(&object) {
            return true;
        }
        match realiser.tell(&*self.store, &object).await {
            Ok(()) => {
                self.health.fine(PUBLISHING);
                true
            }
            Err(e) => {
                self.health.problem(PUBLISHING, e);
                false
            }
        }
    }

    /// This host, if the desired state knows it.
    fn desired_host(&self) -> Option<masq_model::Host> {
        let host = self.host.directory.read().host(&self.host.name).cloned();
        match &host {
            Some(_) => self.health.fine(DESIRED),
            None => self
                .health
                .problem(DESIRED, format!("it has no host {:?}, which is this one", self.host.name)),
        }
        host
    }

    /// Makes the RNIC share its classes' rates as the desired state says; whether it does.
    fn set_class_rates(&mut self, rates: Vec<ClassRate>) -> bool {
        if self.class_rates.as_ref() == Some(&rates) {
            return true;
        }
        for class in 0..Limits::CLASSES {
            let rate = rates.iter().find(|r| r.class == class);
            let rate = rate.map(|r| masq_control::driver_rate(r.rate_bits_per_sec, r.burst_bits));
            if let Err(e) = self.host.rnic.execute(Command::SetClassRate { class, rate }) {
                self.health.problem(CLASSES, format!("class {class}: {e}"));
                return false;
            }
        }
        self.health.fine(CLASSES);
        self.class_rates = Some(rates);
        true
    }

    /// Puts the host's aliases on its links, and takes away those that are not wanted any more; whether all went well.
    async fn reconcile_aliases(&mut self, aliases: Vec<masq_model::Alias>) -> bool {
        let alias = |a: masq_model::Alias| Alias { address: a.address, link: a.link, gateway: a.gateway };
        let wanted: Vec<Alias> = aliases.into_iter().map(alias).collect();
        let problems = match self.underlay.reconcile_aliases(&wanted).await {
            Ok(Reconciled { changes, problems }) => {
                if changes > 0 {
                    info!(changes, aliases = wanted.len(), "path aliases brought up to date");
                }
                problems.iter().map(ToString::to_string).collect()
            }
            Err(e) => vec![e.to_string()],
        };
        if problems.is_empty() {
            self.health.fine(ALIASES);
        } else {
            self.health.problem(ALIASES, problems.join("; "));
        }
        problems.is_empty()
    }

    async fn look_at_underlay(&self, addresses: &[IpAddr]) -> bool {
        let state = self.underlay.state(addresses).await;
        let link = match &state {
            Ok(LinkState { up, active_mtu }) => Link { up: *up, active_mtu: *active_mtu, ..self.host.link() },
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
    async fn publish(&self, realiser: &Realiser) -> bool {
        let leaving = self.devices.leaving().clone();
        if !realiser.is_due(&self.host.directory.read(), &self.host, &leaving) {
            return true;
        }
        match realiser.realise(&*self.store, &self.host, &leaving).await {
            Ok(realised) => {
                self.health.fine(PUBLISHING);
                for (vnic, problem) in &realised.problems {
                    self.health.problem(&about(vnic), problem);
                }
                realised.problems.is_empty()
            }
            Err(e) => {
                self.health.problem(PUBLISHING, e);
                false
            }
        }
    }

    /// Who is to be served: the vNICs of this host whose endpoints are published.
    fn wanted(&self) -> Vec<(Identity, Settings)> {
        let directory = self.host.directory.read();
        let wanted =
            |v: &Vnic| Some((self.host.identity(&directory, &v.name).ok()?, directory.settings(&v.name)));
        directory.vnics_of_host(&self.host.name).filter_map(wanted).collect()
    }

    /// Starts a device, or brings it up to date; whether it runs.
    fn serve(&self, identity: Identity, settings: Settings) -> bool {
        let mut devices = self.devices.lock();
        if let Some(running) = devices.get_mut(&identity.vnic) {
            if running.settings != settings {
                running.device.inbox().push(Message::Settings(settings.clone()));
                running.settings = settings;
            }
            if running.identity != identity {
                let (gids, allowed) = (identity.gids.clone(), identity.allowed.clone());
                running.device.inbox().push(Message::Addresses { gids, allowed });
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
                devices.insert(name, Running { device, identity, settings });
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
    let addresses =
        Identity { gids: running.gids.clone(), allowed: running.allowed.clone(), ..wanted.clone() };
    addresses == *running
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

    /// The queue pairs with these numbers of the guest of `vnic`, or of all. A device that does not answer has none.
    pub async fn queue_pairs(&self, vnic: Option<&str>, numbers: RangeInclusive<u32>) -> Vec<NamedQueuePair> {
        let asked: Vec<_> = {
            let devices = self.lock();
            let wanted = devices.iter().filter(|(name, _)| vnic.is_none_or(|v| v == name.as_str()));
            wanted.map(|(_, running)| all_pages(running.device.inbox().clone(), numbers.clone())).collect()
        };
        join_all(asked).await.into_iter().flatten().flatten().collect()
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
        // One for all of them: those that are stuck do not add up.
        let deadline = tokio::time::Instant::now() + REPORT_PATIENCE;
        for (name, answer) in asked {
            let report = tokio::time::timeout_at(deadline, answer).await;
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
                peers: report.peers,
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
