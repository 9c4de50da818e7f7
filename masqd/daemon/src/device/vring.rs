//! What a front end has said about a virtqueue, until it is complete enough to start.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};

use masq_driver::Gpa;
use rustix::fs::OFlags;

use super::ring::RingPlace;

/// Largest queue that a front end may set up.
pub const MAX_QUEUE_SIZE: u16 = 256;

/// Why a front end's message about a queue is refused.
#[derive(Debug, thiserror::Error)]
pub enum VringError {
    /// There is no such queue.
    #[error("queue {0} does not exist")]
    Index(u32),
    /// The size is not a power of two up to [`MAX_QUEUE_SIZE`].
    #[error("a queue of {0} descriptors is refused: a power of two up to {MAX_QUEUE_SIZE} is allowed")]
    Size(u32),
    /// The base does not fit a ring index.
    #[error("queue base {0} is not a ring index")]
    Base(u32),
    /// Only eventfds are accepted: masqd must never block on a descriptor of a front end.
    #[error("a kick or call descriptor is not an eventfd")]
    NotEventfd,
    /// The descriptor's flags cannot be set.
    #[error("cannot use a kick or call descriptor: {0}")]
    Descriptor(io::Error),
}

/// Whether a kick descriptor has come.
#[derive(Debug, Default)]
pub enum Kick {
    /// Nothing has been said yet: the queue is stopped.
    #[default]
    Unset,
    /// The guest does not kick.
    Polling,
    /// The guest kicks here.
    Eventfd(File),
}

/// One virtqueue's set-up.
#[derive(Debug, Default)]
pub struct Vring {
    size: Option<u16>,
    /// Descriptor table, available ring, used ring, as the front end's own addresses.
    addresses: Option<[u64; 3]>,
    /// Next available index to take.
    pub base: u16,
    /// The kick descriptor.
    pub kick: Kick,
    /// The call descriptor; `None` when the guest polls.
    pub call: Option<File>,
    /// SET_VRING_ENABLE.
    pub enabled: bool,
    /// Whether the queue has been started.
    pub running: bool,
}

impl Vring {
    /// SET_VRING_NUM.
    pub fn set_size(&mut self, size: u32) -> Result<(), VringError> {
        let ok = size.is_power_of_two() && size <= u32::from(MAX_QUEUE_SIZE);
        self.size = Some(if ok { size as u16 } else { return Err(VringError::Size(size)) });
        Ok(())
    }

    /// SET_VRING_BASE.
    pub fn set_base(&mut self, base: u32) -> Result<(), VringError> {
        self.base = u16::try_from(base).map_err(|_| VringError::Base(base))?;
        Ok(())
    }

    /// SET_VRING_ADDR.
    pub fn set_addresses(&mut self, desc: u64, avail: u64, used: u64) {
        self.addresses = Some([desc, avail, used]);
    }

    /// Where the queue is, when it is ready to start: size, addresses and a kick descriptor are known and
    /// it is enabled. `translate` gives guest-physical addresses.
    pub fn ready(&self, event_idx: bool, translate: impl Fn(u64) -> Option<Gpa>) -> Option<RingPlace> {
        if !self.enabled || matches!(self.kick, Kick::Unset) {
            return None;
        }
        let [desc, avail, used] = self.addresses?;
        Some(RingPlace {
            size: self.size?,
            desc: translate(desc)?,
            avail: translate(avail)?,
            used: translate(used)?,
            base: self.base,
            event_idx,
        })
    }

    /// Forgets descriptors and addresses, as a stopped queue does; the size stays.
    pub fn stop(&mut self) {
        *self = Vring { size: self.size, base: self.base, ..Vring::default() };
    }
}

/// Makes sure that a descriptor of a front end can never block masqd or an engine.
pub fn checked_eventfd(file: File) -> Result<File, VringError> {
    let link = format!("/proc/self/fd/{}", file.as_fd().as_raw_fd());
    let target = std::fs::read_link(link).map_err(VringError::Descriptor)?;
    if target.as_os_str() != "anon_inode:[eventfd]" {
        return Err(VringError::NotEventfd);
    }
    let flags = rustix::fs::fcntl_getfl(&file).map_err(|e| VringError::Descriptor(e.into()))?;
    rustix::fs::fcntl_setfl(&file, flags | OFlags::NONBLOCK).map_err(|e| VringError::Descriptor(e.into()))?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use rustix::event::{EventfdFlags, eventfd};

    use super::*;

    fn event() -> File {
        File::from(eventfd(0, EventfdFlags::empty()).unwrap())
    }

    #[test]
    fn ready_only_when_all_is_known() {
        let mut v = Vring::default();
        let translate = |a: u64| a.checked_sub(0x1000).map(Gpa);
        v.set_addresses(0x1000, 0x2000, 0x3000);
        v.set_size(128).unwrap();
        v.set_base(5).unwrap();
        v.enabled = true;
        assert_eq!(v.ready(true, translate), None);
        v.kick = Kick::Eventfd(event());
        let place = v.ready(true, translate).unwrap();
        assert_eq!((place.size, place.base, place.desc, place.used), (128, 5, Gpa(0), Gpa(0x2000)));
        v.set_addresses(0, 0x2000, 0x3000);
        assert_eq!(v.ready(true, translate), None, "an address outside memory");
        v.set_addresses(0x1000, 0x2000, 0x3000);
        v.enabled = false;
        assert_eq!(v.ready(true, translate), None);
        v.enabled = true;
        v.stop();
        assert_eq!(v.ready(true, translate), None);
        assert_eq!(v.base, 5);
    }

    #[test]
    fn impossible_sizes_and_bases_are_refused() {
        let mut v = Vring::default();
        for size in [0, 3, 512, 0x1_0000, u32::MAX] {
            assert!(matches!(v.set_size(size), Err(VringError::Size(s)) if s == size));
        }
        assert!(matches!(v.set_base(0x1_0000), Err(VringError::Base(0x1_0000))));
    }

    #[test]
    fn only_eventfds_are_accepted_and_never_block() {
        let e = checked_eventfd(event()).unwrap();
        assert!(rustix::fs::fcntl_getfl(&e).unwrap().contains(OFlags::NONBLOCK));
        let (_reader, writer) = rustix::pipe::pipe().unwrap();
        assert!(matches!(checked_eventfd(File::from(writer)), Err(VringError::NotEventfd)));
    }
}
