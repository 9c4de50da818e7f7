//! What guests have asked for, been refused, and lost: counted by vNIC, across the lives of its guests.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The counts of all vNICs of this host.
#[derive(Debug, Default)]
pub struct Counts(Mutex<HashMap<String, VnicCounts>>);

/// The counts of one vNIC.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VnicCounts {
    /// Control commands.
    pub commands: u64,
    /// Refused commands, by verb and reason.
    pub refusals: BTreeMap<(&'static str, &'static str), u64>,
    /// Connections that were cut because they are no longer allowed.
    pub revocations: u64,
}

impl Counts {
    /// The guest of `vnic` has given a command.
    pub fn command(&self, vnic: &str) {
        self.change(vnic, |c| c.commands += 1);
    }

    /// One of them was refused.
    pub fn refused(&self, vnic: &str, verb: &'static str, reason: &'static str) {
        self.change(vnic, |c| *c.refusals.entry((verb, reason)).or_default() += 1);
    }

    /// A connection of it was cut.
    pub fn revoked(&self, vnic: &str) {
        self.change(vnic, |c| c.revocations += 1);
    }

    /// The counts of the vNICs that `keep` names; those of others are forgotten.
    pub fn of(&self, keep: impl Fn(&str) -> bool) -> BTreeMap<String, VnicCounts> {
        let mut counts = self.lock();
        counts.retain(|vnic, _| keep(vnic));
        counts.iter().map(|(vnic, c)| (vnic.clone(), c.clone())).collect()
    }

    fn change(&self, vnic: &str, change: impl FnOnce(&mut VnicCounts)) {
        let mut counts = self.lock();
        match counts.get_mut(vnic) {
            Some(c) => change(c),
            None => change(counts.entry(vnic.into()).or_default()),
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, VnicCounts>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
