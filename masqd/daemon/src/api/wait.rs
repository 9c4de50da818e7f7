//! Waiting until something is realised.

use std::time::Duration;

use masq_control::{Concern, Judge};
use masq_model::api::{ItemStatus, RealisedState};

use super::Api;

impl Api {
    /// How far a change is realised, now.
    pub fn status_of(&self, concern: &Concern, generation: u64) -> ItemStatus {
        Judge::new(&self.host.directory.read()).status(concern, generation)
    }

    /// How far a change is realised: when it is, or when the time is up; at once, when as many as may already wait.
    pub async fn wait_for(&self, concern: &Concern, generation: u64, patience: Duration) -> ItemStatus {
        let Ok(_waiter) = self.waiters.try_acquire() else { return self.status_of(concern, generation) };
        let mut changed = self.changed.clone();
        let mut ending = self.ending.clone();
        let deadline = tokio::time::Instant::now() + patience;
        loop {
            // Marked as seen before looking, so that what comes in between wakes us again.
            changed.borrow_and_update();
            let status = self.status_of(concern, generation);
            if status.state == RealisedState::Realised {
                return status;
            }
            tokio::select! {
                changed = changed.changed() => if changed.is_err() { return status },
                () = tokio::time::sleep_until(deadline) => return status,
                () = async { drop(ending.wait_for(|ending| *ending).await) } => return status,
            }
        }
    }
}
