//! Carries the RNIC's events and news of the store to the threads of attached devices.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use masq_driver::{Event, EventSink, VnicId};
use masq_policy::conntrack::Touched;
use tokio::sync::mpsc;

use crate::device::{Inbox, Message};

/// Knows the inbox of each attached device.
#[derive(Debug, Default)]
pub struct Router {
    inboxes: Mutex<HashMap<VnicId, Inbox>>,
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
            | Event::PathChanged { vnic, .. }
            | Event::VnicFatal { vnic, .. } => *vnic,
        };
        if let Some(inbox) = self.inboxes.lock().unwrap_or_else(PoisonError::into_inner).get(&vnic) {
            inbox.push(Message::Rnic(event));
        }
    }
}
