//! Which vNIC or static endpoint has which virtual address.

use std::collections::{BTreeSet, HashMap};

use masq_model::Vnic;
use masq_types::{Gid, Vni};

use super::Directory;

/// An address that a vNIC has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Claim {
    /// The desired state gives it to it.
    Own(Gid),
    /// Its guest has taken it on, as it may.
    Taken(Gid),
}

impl Claim {
    pub(super) fn gid(self) -> Gid {
        match self {
            Claim::Own(gid) | Claim::Taken(gid) => gid,
        }
    }
}

/// Whose address it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner<'a> {
    Nobody,
    One(&'a str),
    /// Two vNICs claim it, so neither has it.
    Several(&'a str, &'a str),
}

/// The claims of all vNICs. What the desired state gives to somebody cannot be taken on by others.
#[derive(Clone, Debug, Default)]
pub(super) struct Addresses {
    claims: HashMap<String, Vec<(Vni, Claim)>>,
    claimants: HashMap<(Vni, Gid), BTreeSet<(IsTaken, String)>>,
}

/// Claims of own addresses come first.
type IsTaken = bool;

impl Addresses {
    /// The claims of a vNIC.
    pub(super) fn claims_of(&self, vnic: &str) -> &[(Vni, Claim)] {
        self.claims.get(vnic).map_or(&[], Vec::as_slice)
    }

    /// Replaces the claims of a vNIC.
    pub(super) fn set(&mut self, vnic: &str, claims: Vec<(Vni, Claim)>) {
        for (vni, claim) in self.claims.remove(vnic).into_iter().flatten() {
            let at = (vni, claim.gid());
            if let Some(claimants) = self.claimants.get_mut(&at) {
                claimants.remove(&entry(vnic, claim));
                if claimants.is_empty() {
                    self.claimants.remove(&at);
                }
            }
        }
        for (vni, claim) in &claims {
            self.claimants.entry((*vni, claim.gid())).or_default().insert(entry(vnic, *claim));
        }
        if !claims.is_empty() {
            self.claims.insert(vnic.into(), claims);
        }
    }

    /// Whose address `gid` is.
    pub(super) fn find(&self, vni: Vni, gid: Gid) -> Owner<'_> {
        let Some(claimants) = self.claimants.get(&(vni, gid)) else { return Owner::Nobody };
        let mut claimants = claimants.iter();
        match (claimants.next(), claimants.next()) {
            (Some((taken, one)), Some((other_taken, other))) if taken == other_taken => {
                Owner::Several(one, other)
            }
            (Some((_, one)), _) => Owner::One(one),
            (None, _) => Owner::Nobody,
        }
    }

    /// The one vNIC that has `gid`.
    pub(super) fn owner(&self, vni: Vni, gid: Gid) -> Option<&str> {
        match self.find(vni, gid) {
            Owner::One(name) => Some(name),
            _ => None,
        }
    }
}

fn entry(vnic: &str, claim: Claim) -> (IsTaken, String) {
    (matches!(claim, Claim::Taken(_)), vnic.into())
}

impl Directory {
    /// The addresses that a vNIC or a static endpoint has now.
    pub(super) fn claims(&self, name: &str) -> Vec<(Vni, Claim)> {
        if let Some(stranger) = self.strangers.get(name) {
            return stranger.gids.iter().map(|gid| (stranger.vni, Claim::Own(*gid))).collect();
        }
        let Some(vnic) = self.vnic(name) else { return Vec::new() };
        let Some(vpc) = self.vpc(&vnic.vpc) else { return Vec::new() };
        let own = vnic.gids();
        let taken = self.taken(vnic, vpc.vni, &own);
        let own = own.iter().map(|gid| (vpc.vni, Claim::Own(*gid)));
        own.chain(taken.into_iter().map(|gid| (vpc.vni, Claim::Taken(gid)))).collect()
    }

    /// The addresses that its guest has taken on where it is supposed to run.
    fn taken(&self, vnic: &Vnic, vni: Vni, own: &[Gid]) -> Vec<Gid> {
        let Some(endpoint) = self.endpoint(&vnic.name) else { return Vec::new() };
        if endpoint.vni != vni || !vnic.is_on(&endpoint.host) {
            return Vec::new();
        }
        endpoint.gids.iter().copied().filter(|gid| !own.contains(gid) && vnic.may_use(*gid)).collect()
    }
}
