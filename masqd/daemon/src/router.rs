//! Carries the RNIC's events and news of the store to the threads of attached devices.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use masq_driver::{Event, EventSink, VnicId};
use masq_policy::conntrack::Touched;
use tokio::sync::mpsc;
use tracing::warn;

use crate::inbox::{Inbox, Message};

/// Knows the inbox of each attached device.
#[derive(Debug, Default)]
pub struct Router {
    inboxes: Mutex<HashMap<VnicId, Inbox>>,
    paths_down: AtomicU64,
    paths_up: AtomicU64,
}

impl Router {
    /// Events of `vnic` go to `inbox` from now on.
    pub fn attach(&self, vnic: VnicId, inbox: Inbox) {
        self.inboxes.lock().unwrap_or_else(PoisonError::into_inner).insert(vnic, inbox);
    }

    /// Events of `vnic` are dropped from now on.
    pub fn detach(&self, vnic: VnicId) {
        self.inboxes.lock().unwrap_or_else(PoisonError::into_inner).remove(&vnic);
    }

    /// How often paths to other hosts have gone down, and come up again.
    pub fn path_changes(&self) -> (u64, u64) {
        (self.paths_down.load(Ordering::Relaxed), self.paths_up.load(Ordering::Relaxed))
    }

    /// Desired or realised state has changed: all attached devices look whether it concerns them.
    pub fn touch(&self, touched: &Touched) {
        if !touched.is_nothing() {
            let inboxes = self.inboxes.lock().unwrap_or_else(PoisonError::into_inner);
            inboxes.values().for_each(|inbox| inbox.touch(touched.clone()));
        }
    }

    /// Returns when all attached devices have dealt with what they have been told so far.
    pub async fn settle(&self) {
        let (settled, mut waiting) = mpsc::channel(1);
        {
            let inboxes = self.inboxes.lock().unwrap_or_else(PoisonError::into_inner);
            inboxes.values().for_each(|inbox| inbox.settle(settled.clone()));
        }
        drop(settled);
        // Ends when every device has dropped its sender.
        waiting.recv().await;
    }
}

impl EventSink for Router {
    fn event(&self, event: Event) {
        let vnic = match &event {
            Event::QpFault { vnic, .. }
            | Event::CommEstablished { vnic, .. }
            | Event::SqDrained { vnic, .. }
            | Event::CqOverrun { vnic, .. }
            | Event::SrqLimit { vnic, .. }
            | Event::SrqFault { vnic, .. }
            | Event::LastWqe { vnic, .. }
            | Event::UnknownPeer { vnic, .. }
            | Event::VnicFatal { vnic, .. } => *vnic,
            Event::PathChanged { path, is_up, local, remote } => {
                // The host's own business, told once whoever uses the path.
                if *is_up {
                    self.paths_up.fetch_add(1, Ordering::Relaxed);
                    warn!(path, %local, %remote, "a path to another host is up again");
                } else {
                    self.paths_down.fetch_add(1, Ordering::Relaxed);
                    warn!(path, %local, %remote, "a path to another host is down, and packets go by others");
                }
                return;
            }
        };
        if let Some(inbox) = self.inboxes.lock().unwrap_or_else(PoisonError::into_inner).get(&vnic) {
            inbox.push(Message::Rnic(event));
        }
    }
}
