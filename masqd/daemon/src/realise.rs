//! Publishes the endpoints of this host's vNICs, and withdraws those of vNICs that it has no more.

use std::collections::HashSet;

use masq_control::store::{Change, Committed, Guard, Snapshot, Store, StoreError, Transaction};
use masq_control::{Directory, PlanError, plan_endpoint};
use masq_model::{Endpoint, Key, Kind, Object, PREFIX};
use tracing::{debug, info};

use crate::host::Taken;

/// Endpoints in one transaction.
const PER_TRANSACTION: usize = 50;
/// How often a transaction is planned again after another host has changed something meanwhile.
const ATTEMPTS: u32 = 5;

/// What has become of the endpoints.
#[derive(Debug, Default)]
pub struct Realised {
    /// vNICs that cannot be realised.
    pub problems: Vec<(String, PlanError)>,
}

/// Publishes the endpoints of one host.
#[derive(Debug)]
pub struct Realiser {
    host: String,
    /// vNICs whose endpoints this process has written: those of an earlier process may be bound to its lease,
    /// which ends.
    written: HashSet<String>,
}

impl Realiser {
    /// For the host with this name.
    pub fn new(host: &str) -> Self {
        Realiser { host: host.into(), written: HashSet::new() }
    }

    /// Whether what `directory` shows is not what this host wants to be published.
    pub fn is_due(&self, directory: &Directory, taken: &Taken) -> bool {
        directory.vnics_of_host(&self.host).any(|v| {
            match plan_endpoint(directory, &v.name, &taken.of(&v.name), 0) {
                Ok(plan) => !self.written.contains(&v.name) || directory.endpoint(&v.name) != Some(&plan),
                Err(_) => false,
            }
        }) || directory.endpoints_of_host(&self.host).any(|e| !self.wants(directory, &e.vnic))
    }

    fn wants(&self, directory: &Directory, vnic: &str) -> bool {
        directory.vnic(vnic).is_some_and(|v| v.is_on(&self.host))
            && plan_endpoint(directory, vnic, &[], 0).is_ok()
    }

    /// Writes what is due.
    pub async fn realise(&mut self, store: &dyn Store, taken: &Taken) -> Result<Realised, StoreError> {
        for _ in 0..ATTEMPTS {
            let snapshot = store.list(PREFIX).await?;
            let start =
                getrandom::u32().map_err(|e| StoreError::Failed(format!("no random numbers: {e}")))?;
            let plan = self.plan(&snapshot, taken, start);
            let mut all = true;
            for (guards, changes) in
                plan.guards.chunks(PER_TRANSACTION).zip(plan.changes.chunks(PER_TRANSACTION))
            {
                let transaction = Transaction { guards: guards.to_vec(), changes: changes.to_vec() };
                match store.commit(transaction).await? {
                    Committed::Yes(revision) => {
                        changes.iter().for_each(|c| self.note(c));
                        debug!("{} endpoints written at revision {revision}", changes.len());
                    }
                    Committed::No(_) => all = false,
                }
            }
            if all {
                return Ok(Realised { problems: plan.problems });
            }
        }
        Err(StoreError::Unavailable(
            "others keep changing this host's endpoints; is its name in use twice?".into(),
        ))
    }

    fn note(&mut self, change: &Change) {
        let Ok(key) = change.key().parse::<Key>() else { return };
        match change {
            Change::Put { .. } => {
                info!(vnic = key.name(), "endpoint published");
                self.written.insert(key.name().into());
            }
            Change::Delete { .. } => {
                info!(vnic = key.name(), "endpoint withdrawn");
                self.written.remove(key.name());
            }
        }
    }

    /// New blocks are looked for from `start` on.
    fn plan(&self, snapshot: &Snapshot, taken: &Taken, start: u32) -> Plan {
        let (mut draft, _) = Directory::from_snapshot(snapshot);
        let mut plan = Plan::default();
        let vnics: Vec<String> = draft.vnics_of_host(&self.host).map(|v| v.name.clone()).collect();
        for vnic in vnics {
            let endpoint = match plan_endpoint(&draft, &vnic, &taken.of(&vnic), start) {
                Ok(endpoint) => endpoint,
                Err(e) => {
                    plan.problems.push((vnic, e));
                    continue;
                }
            };
            if self.written.contains(&vnic) && draft.endpoint(&vnic) == Some(&endpoint) {
                continue;
            }
            // The next vNIC's plan must see the blocks of this one.
            let change = put(endpoint);
            draft.apply(&masq_control::store::Batch {
                changes: vec![change.clone()],
                revision: draft.revision() + 1,
            });
            plan.push(change, snapshot);
        }
        let left: Vec<String> = draft
            .endpoints_of_host(&self.host)
            .filter(|e| !self.wants(&draft, &e.vnic))
            .map(|e| Key::new(Kind::Endpoint, &e.vnic).to_string())
            .collect();
        for key in left {
            plan.push(Change::Delete { key }, snapshot);
        }
        plan
    }
}

#[derive(Debug, Default)]
struct Plan {
    guards: Vec<Guard>,
    changes: Vec<Change>,
    problems: Vec<(String, PlanError)>,
}

impl Plan {
    fn push(&mut self, change: Change, snapshot: &Snapshot) {
        let key = change.key().to_owned();
        self.guards.push(match snapshot.entries.iter().find(|e| e.key == key) {
            Some(e) => Guard::Unchanged { key, revision: e.revision },
            None => Guard::Absent { key },
        });
        self.changes.push(change);
    }
}

fn put(endpoint: Endpoint) -> Change {
    let object = Object::Endpoint(endpoint);
    Change::Put { key: object.key().to_string(), value: object.to_json() }
}
