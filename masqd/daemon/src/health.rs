//! What keeps masqd from doing all its work.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use masq_control::HOST_PROBLEMS;
use tracing::{info, warn};

/// Present problems by what they are about; a change of one is logged once.
#[derive(Debug, Default)]
pub struct Health(Mutex<BTreeMap<String, String>>);

impl Health {
    /// `about` has this problem now.
    pub fn problem(&self, about: &str, problem: impl ToString) {
        let problem = problem.to_string();
        let mut problems = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if problems.get(about) != Some(&problem) {
            warn!("{about}: {problem}");
            problems.insert(about.into(), problem);
        }
    }

    /// `about` has no problem any more.
    pub fn fine(&self, about: &str) {
        let mut problems = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if problems.remove(about).is_some() {
            info!("{about}: recovered");
        }
    }

    /// The problem of `about`.
    pub fn of(&self, about: &str) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(about).cloned()
    }

    /// All problems, a sentence each.
    pub fn problems(&self) -> Vec<String> {
        let problems = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        problems.iter().map(|(about, problem)| format!("{about}: {problem}")).collect()
    }

    /// What other hosts may want to know: what keeps this host, or single vNICs, from being as desired. A sentence each.
    pub fn problems_to_publish(&self) -> Vec<String> {
        let about =
            |p: &str| p.starts_with("vnic ") || HOST_PROBLEMS.iter().any(|about| p.starts_with(about));
        self.problems().into_iter().filter(|p| about(p)).collect()
    }
}
