//! Publishes the endpoints of this host's vNICs, and withdraws those of vNICs that it has no more.

use std::collections::BTreeSet;

use masq_control::store::{Change, Committed, Guard, Snapshot, Store, StoreError, Transaction};
use masq_control::{Directory, Own, PlanError, plan_endpoint};
use masq_model::{Endpoint, Key, Kind, Object, PREFIX};
use tracing::{debug, info};

use crate::claim::Claim;
use crate::host::Host;

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
    claim: Claim,
}

impl Realiser {
    /// For the host with this name; `id` is like no other process's (from random numbers).
    pub fn new(host: &str, id: u128) -> Self {
        Realiser { host: host.into(), claim: Claim::new(host, id) }
    }

    /// Whether what `directory` shows is not what this host wants to be published. The endpoints of vNICs whose devices are
    /// `leaving` stay until those have left.
    pub fn is_due(&self, directory: &Directory, shared: &Host, leaving: &BTreeSet<String>) -> bool {
        let differs = |vnic: &str| match self.wish(directory, shared, vnic, 0) {
            Ok(wish) => {
                shared.published.of(vnic).as_ref() != Some(&wish) || directory.endpoint(vnic) != Some(&wish)
            }
            Err(_) => false,
        };
        directory.vnics_of_host(&self.host).any(|v| differs(&v.name))
            || directory.endpoints_of_host(&self.host).any(|e| !self.keeps(directory, &e.vnic, leaving))
    }

    /// What this host wants to be published of a vNIC.
    fn wish(
        &self,
        directory: &Directory,
        shared: &Host,
        vnic: &str,
        start: u32,
    ) -> Result<Endpoint, PlanError> {
        let (taken, last) = (shared.taken.of(vnic), shared.published.of(vnic));
        let features = shared.limits.features;
        plan_endpoint(directory, vnic, Own { taken: &taken, last: last.as_ref(), start, features })
    }

    fn keeps(&self, directory: &Directory, vnic: &str, leaving: &BTreeSet<String>) -> bool {
        let wanted = directory.vnic(vnic).is_some_and(|v| v.is_on(&self.host))
            && plan_endpoint(directory, vnic, Own::default()).is_ok();
        wanted || leaving.contains(vnic)
    }

    /// Writes what is due.
    pub async fn realise(
        &self,
        store: &dyn Store,
        shared: &Host,
        leaving: &BTreeSet<String>,
    ) -> Result<Realised, StoreError> {
        for _ in 0..ATTEMPTS {
            let claim = self.claim.guard(store).await?;
            let snapshot = store.list(PREFIX).await?;
            let start =
                getrandom::u32().map_err(|e| StoreError::Failed(format!("no random numbers: {e}")))?;
            let plan = self.plan(&snapshot, shared, leaving, start);
            let mut all = true;
            for (guards, changes) in
                plan.guards.chunks(PER_TRANSACTION).zip(plan.changes.chunks(PER_TRANSACTION))
            {
                let guards = std::iter::once(&claim).chain(guards).cloned().collect();
                match store.commit(Transaction { guards, changes: changes.to_vec() }).await? {
                    Committed::Yes(revision) => {
                        changes.iter().for_each(|c| note(shared, c));
                        debug!("{} endpoints written at revision {revision}", changes.len());
                    }
                    Committed::No(_) => all = false,
                }
            }
            if all {
                return Ok(Realised { problems: plan.problems });
            }
            self.claim.doubt().await;
        }
        Err(StoreError::Unavailable("others keep changing this host's endpoints".into()))
    }

    /// Writes something else that this host alone tells, whatever was there.
    pub async fn tell(&self, store: &dyn Store, object: &Object) -> Result<(), StoreError> {
        for _ in 0..ATTEMPTS {
            let guards = vec![self.claim.guard(store).await?];
            let changes = vec![Change::Put { key: object.key().to_string(), value: object.to_json() }];
            if let Committed::Yes(_) = store.commit(Transaction { guards, changes }).await? {
                return Ok(());
            }
            self.claim.doubt().await;
        }
        Err(StoreError::Unavailable("others keep claiming this host's name".into()))
    }

    /// New blocks are looked for from `start` on.
    fn plan(&self, snapshot: &Snapshot, shared: &Host, leaving: &BTreeSet<String>, start: u32) -> Plan {
        let (mut draft, _) = Directory::from_snapshot(snapshot);
        let mut plan = Plan::default();
        let mut vnics: Vec<String> = draft.vnics_of_host(&self.host).map(|v| v.name.clone()).collect();
        // The store may have lost records, whose blocks are nobody else's while peers go on by them: they come first.
        vnics.sort_by_key(|vnic| shared.published.of(vnic).is_none());
        for vnic in vnics {
            let endpoint = match self.wish(&draft, shared, &vnic, start) {
                Ok(endpoint) => endpoint,
                Err(e) => {
                    plan.problems.push((vnic, e));
                    continue;
                }
            };
            // What an earlier process has written may be bound to its lease, which ends.
            let written = shared.published.of(&vnic).as_ref() == Some(&endpoint);
            if written && draft.endpoint(&vnic) == Some(&endpoint) {
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
            .filter(|e| !self.keeps(&draft, &e.vnic, leaving))
            .map(|e| Key::new(Kind::Endpoint, &e.vnic).to_string())
            .collect();
        for key in left {
            plan.push(Change::Delete { key }, snapshot);
        }
        plan
    }
}

/// Remembers what has been written.
fn note(shared: &Host, change: &Change) {
    let Ok(key) = change.key().parse::<Key>() else { return };
    match change {
        Change::Put { value, .. } => {
            if let Ok(Object::Endpoint(endpoint)) = Object::from_entry(&key, value) {
                info!(vnic = key.name(), "endpoint published");
                shared.published.insert(endpoint);
            }
        }
        Change::Delete { .. } => {
            info!(vnic = key.name(), "endpoint withdrawn");
            shared.published.remove(key.name());
        }
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use masq_control::store::Entry;
    use masq_driver::{Command, DriverError, Reply, RnicDriver};
    use masq_model::DesiredState;

    use super::*;
    use crate::host::{Refresher, Watchdog};
    use crate::router::Router;

    struct NoRnic;

    impl RnicDriver for NoRnic {
        fn execute(&self, _: Command) -> Result<Reply, DriverError> {
            Err(DriverError::Stopped)
        }
    }

    fn snapshot(vnics: &[&str]) -> Snapshot {
        let mut text = String::from(
            "[[host]]\nname = \"h1\"\nunderlay = [\"10.77.0.1\"]\n[[vpc]]\nname = \"blue\"\nvni = 100\n",
        );
        for (i, name) in vnics.iter().enumerate() {
            text += &format!(
                "[[vnic]]\nname = \"{name}\"\nvpc = \"blue\"\nhost = \"h1\"\nmac = \"52:54:00:64:00:0{i}\"\naddresses = [\"192.168.0.1{i}\"]\n"
            );
        }
        let desired = DesiredState::from_toml(&text).unwrap();
        let entry = |o: &Object| Entry { key: o.key().to_string(), value: o.to_json(), revision: 1 };
        Snapshot { entries: desired.objects().values().map(entry).collect(), revision: 1 }
    }

    fn planned(plan: &Plan) -> Vec<Endpoint> {
        let endpoint = |change: &Change| match change {
            Change::Put { key, value } => {
                let object = Object::from_entry(&key.parse().unwrap(), value).unwrap();
                object.as_endpoint().unwrap().clone()
            }
            Change::Delete { key } => panic!("{key} is withdrawn"),
        };
        plan.changes.iter().map(endpoint).collect()
    }

    /// Peers go on with what they know while the store has lost a host's records, with its lease.
    #[test]
    fn a_new_vnic_gets_no_block_of_one_whose_record_is_lost() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let (refresher, _misses) = Refresher::new();
        let watchdog = Watchdog::new(runtime.handle().clone());
        let host = Host::new("h1".into(), Arc::new(NoRnic), Arc::new(Router::default()), refresher, watchdog);
        let realiser = Realiser::new("h1", 1);
        let leaving = BTreeSet::new();
        let first = realiser.plan(&snapshot(&["old"]), &host, &leaving, 0x10_0000);
        first.changes.iter().for_each(|change| note(&host, change));
        let old = planned(&first).remove(0);
        // The random number is the same, and the new one's name comes first.
        let second = planned(&realiser.plan(&snapshot(&["old", "new"]), &host, &leaving, 0x10_0000));
        assert_eq!(second.len(), 2);
        assert!(second.contains(&old), "it is published again as it was: {second:?}");
        assert!(second.iter().all(|e| e.vnic == "old" || e.qpn_blocks != old.qpn_blocks), "{second:?}");
    }
}
