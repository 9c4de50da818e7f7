//! Starting and stopping a guest's virtqueues: two are masqd's own, the others the RNIC's.

use std::fs::File;
use std::os::fd::OwnedFd;

use masq_driver::{Command, DriverError, QueueRole, Reply, Virtqueue};
use masq_rnic::limits;
use tracing::{debug, warn};
use vrdma_abi::config::{QUEUE_CONTROL, QUEUE_EVENTS, QUEUE_FIRST_COMP};

use super::guest::Guest;
use super::memory::GuestRam;
use super::poller::Source;
use super::ring::{EVENT_IDX, Ring, RingPlace};
use super::vring::Kick;

fn own(index: u16) -> bool {
    index < QUEUE_FIRST_COMP
}

fn role(index: u16) -> QueueRole {
    let vector = index - QUEUE_FIRST_COMP;
    match vector.checked_sub(limits::COMP_VECTORS) {
        Some(slot) => QueueRole::Doorbell { slot },
        None => QueueRole::Completion { vector },
    }
}

fn duplicate(file: &File) -> Option<OwnedFd> {
    match file.try_clone() {
        Ok(copy) => Some(copy.into()),
        Err(e) => {
            warn!("cannot duplicate a descriptor: {e}");
            None
        }
    }
}

impl Guest {
    /// Gives the guest other memory, here and in the RNIC.
    pub(super) fn set_ram(&mut self, ram: GuestRam) -> Result<(), DriverError> {
        let regions = ram.for_rnic().map_err(|source| DriverError::Os {
            what: "duplicating descriptors of guest memory".into(),
            source,
        })?;
        self.host.rnic.execute(Command::SetMemory { vnic: self.vnic, regions })?;
        self.ram = ram;
        Ok(())
    }

    /// Starts each queue that has become ready.
    pub(super) fn start_ready_queues(&mut self) {
        for index in 0..self.vrings.len() {
            self.start_if_ready(index as u16);
        }
    }

    /// Starts a queue if it is ready and does not run. A queue that the guest has placed wrongly does not start.
    pub(super) fn start_if_ready(&mut self, index: u16) {
        let vring = &self.vrings[usize::from(index)];
        if vring.running {
            return;
        }
        let ram = &self.ram;
        let Some(place) = vring.ready(self.features & EVENT_IDX != 0, |user| ram.translate(user)) else {
            return;
        };
        let started =
            if own(index) { self.start_own(index, &place) } else { self.start_rnics(index, &place) };
        match started {
            Ok(()) => {
                debug!(vnic = %self.name, queue = index, base = place.base, "queue started");
                self.vrings[usize::from(index)].running = true;
                if own(index) {
                    self.kicked(index);
                }
            }
            Err(reason) => {
                self.say(|name| warn!(vnic = %name, queue = index, "the queue does not start: {reason}"));
            }
        }
    }

    fn start_own(&mut self, index: u16, place: &RingPlace) -> Result<(), String> {
        let vring = &self.vrings[usize::from(index)];
        let call = vring.call.as_ref().map(File::try_clone).transpose().map_err(|e| e.to_string())?;
        let ring = Ring::start(place, call, self.ram.mapped()).map_err(|e| e.to_string())?;
        if let Kick::Eventfd(kick) = &vring.kick {
            self.poller.add(kick, Source::Kick(index)).map_err(|e| e.to_string())?;
        }
        *self.ring(index) = Some(ring);
        Ok(())
    }

    fn start_rnics(&mut self, index: u16, place: &RingPlace) -> Result<(), String> {
        let vring = &self.vrings[usize::from(index)];
        let kick = match &vring.kick {
            Kick::Eventfd(kick) => duplicate(kick),
            Kick::Polling | Kick::Unset => None,
        };
        let queue = Virtqueue {
            index,
            role: role(index),
            size: place.size,
            desc: place.desc,
            avail: place.avail,
            used: place.used,
            base: place.base,
            event_idx: place.event_idx,
            kick,
            call: vring.call.as_ref().and_then(duplicate),
        };
        let attach = Command::AttachQueue { vnic: self.vnic, queue };
        self.host.rnic.execute(attach).map(drop).map_err(|e| e.to_string())
    }

    /// Stops a queue. Returns the next available index to take.
    pub(super) fn stop_queue(&mut self, index: u16) -> u16 {
        let vring = &mut self.vrings[usize::from(index)];
        if !std::mem::take(&mut vring.running) {
            return vring.base;
        }
        let stored = vring.base;
        let base = if own(index) {
            if let Kick::Eventfd(kick) = &vring.kick {
                // The front end has the eventfd open as well, so closing it here would leave it in the set.
                let _ = self.poller.remove(kick);
            }
            if index == QUEUE_CONTROL {
                self.resolve_all();
            }
            self.ring(index).take().map_or(stored, |ring| ring.base())
        } else {
            match self.host.rnic.execute(Command::DetachQueue { vnic: self.vnic, index }) {
                Ok(Reply::QueueBase { base }) => base,
                Ok(_) => stored,
                Err(e) => {
                    warn!(vnic = %self.name, queue = index, "the RNIC cannot stop the queue: {e}");
                    stored
                }
            }
        };
        self.vrings[usize::from(index)].base = base;
        debug!(vnic = %self.name, queue = index, base, "queue stopped");
        base
    }

    /// A new kick descriptor; starts the queue when that was all that it needed.
    pub(super) fn set_kick(&mut self, index: u16, kick: Kick) {
        let vring = &mut self.vrings[usize::from(index)];
        let old = std::mem::replace(&mut vring.kick, kick);
        if !vring.running {
            return self.start_if_ready(index);
        }
        if own(index) {
            if let Kick::Eventfd(old) = &old {
                let _ = self.poller.remove(old);
            }
            if let Kick::Eventfd(new) = &vring.kick
                && let Err(e) = self.poller.add(new, Source::Kick(index))
            {
                warn!(vnic = %self.name, queue = index, "cannot wait for kicks: {e}");
            }
            // A kick may have gone to the old descriptor.
            self.kicked(index);
        } else {
            let kick = match &vring.kick {
                Kick::Eventfd(kick) => duplicate(kick),
                Kick::Polling | Kick::Unset => None,
            };
            let replace = Command::ReplaceKick { vnic: self.vnic, index, kick };
            self.execute_or_warn(replace, "the RNIC cannot take the queue's new kick descriptor");
        }
    }

    /// A new call descriptor.
    pub(super) fn set_call(&mut self, index: u16, call: Option<File>) {
        let vring = &mut self.vrings[usize::from(index)];
        vring.call = call;
        if !vring.running {
            return;
        }
        let copy = vring.call.as_ref().and_then(duplicate);
        if own(index) {
            if let Some(ring) = self.ring(index) {
                ring.set_call(copy.map(File::from));
            }
        } else {
            let replace = Command::ReplaceCall { vnic: self.vnic, index, call: copy };
            self.execute_or_warn(replace, "the RNIC cannot take the queue's new call descriptor");
        }
    }

    fn ring(&mut self, index: u16) -> &mut Option<Ring> {
        debug_assert!(index == QUEUE_CONTROL || index == QUEUE_EVENTS);
        if index == QUEUE_CONTROL { &mut self.control } else { &mut self.events }
    }

    fn execute_or_warn(&self, command: Command, what: &str) {
        if let Err(e) = self.host.rnic.execute(command) {
            warn!(vnic = %self.name, "{what}: {e}");
        }
    }
}
