use std::io;
use std::net::{IpAddr, UdpSocket};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use rustc_hash::FxHashMap;

use super::LocalId;

/// What the engines of one RNIC share of its local addresses: their names, who receives at each, and their sockets, since a port
/// can be bound once. The kernel lets any number of threads send through a socket at the same time.
///
/// The lock is taken by commands, and when a source port is opened; packets do without it.
#[derive(Debug, Default)]
pub struct SharedAddresses(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    addresses: FxHashMap<IpAddr, Entry>,
    next_id: u32,
    sockets: FxHashMap<(IpAddr, u16), Weak<UdpSocket>>,
}

#[derive(Debug)]
struct Entry {
    local: LocalId,
    /// The engine that takes from the socket on port 4791; it uses the address.
    receiver: usize,
    /// The engines that use the address, each once.
    users: Vec<usize>,
}

/// What an engine must know that has begun to use an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Joined {
    pub local: LocalId,
    /// No engine has used it before.
    pub is_new: bool,
}

/// What follows when an engine has ended its use of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    /// Another engine goes on receiving.
    Kept,
    /// This engine is to receive from now on, in place of the one that has left.
    HandedTo(usize),
    /// Nobody uses it any more; its name is never used again.
    Gone,
}

impl SharedAddresses {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Nothing that can panic runs under the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `engine` begins to use `address`.
    pub(super) fn join(&self, address: IpAddr, engine: usize) -> Joined {
        let mut inner = self.lock();
        if let Some(entry) = inner.addresses.get_mut(&address) {
            entry.users.push(engine);
            return Joined { local: entry.local, is_new: false };
        }
        let local = LocalId(inner.next_id);
        inner.next_id += 1;
        inner.addresses.insert(address, Entry { local, receiver: engine, users: vec![engine] });
        Joined { local, is_new: true }
    }

    /// `engine` uses `address` no more.
    pub(super) fn leave(&self, address: IpAddr, engine: usize) -> Left {
        let mut inner = self.lock();
        let Some(entry) = inner.addresses.get_mut(&address) else { return Left::Gone };
        entry.users.retain(|e| *e != engine);
        match entry.users.first() {
            None => {
                inner.addresses.remove(&address);
                Left::Gone
            }
            Some(heir) if entry.receiver == engine => {
                entry.receiver = *heir;
                Left::HandedTo(*heir)
            }
            Some(_) => Left::Kept,
        }
    }

    /// The socket on a port of an address: that of another engine, or one that `open` opens.
    pub(super) fn socket(
        &self,
        address: IpAddr,
        port: u16,
        open: impl FnOnce() -> io::Result<UdpSocket>,
    ) -> io::Result<Arc<UdpSocket>> {
        let mut inner = self.lock();
        if let Some(socket) = inner.sockets.get(&(address, port)).and_then(Weak::upgrade) {
            return Ok(socket);
        }
        let socket = Arc::new(open()?);
        // Those that were closed since take no more room than those that are open.
        if inner.sockets.len() >= 64 && inner.sockets.len().is_power_of_two() {
            inner.sockets.retain(|_, s| s.strong_count() > 0);
        }
        inner.sockets.insert((address, port), Arc::downgrade(&socket));
        Ok(socket)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_receives_is_among_those_who_use_the_address() {
        let shared = SharedAddresses::default();
        let address = IpAddr::from([192, 0, 2, 1]);
        let first = shared.join(address, 3);
        assert!(first.is_new);
        assert_eq!(shared.join(address, 1), Joined { is_new: false, ..first });
        assert_eq!(shared.join(address, 2), Joined { is_new: false, ..first });
        assert_eq!(shared.leave(address, 1), Left::Kept);
        assert_eq!(shared.leave(address, 3), Left::HandedTo(2));
        assert_eq!(shared.leave(address, 2), Left::Gone);
        assert_ne!(shared.join(address, 3).local, first.local);
    }

    #[test]
    fn a_socket_is_shared_while_somebody_has_it() {
        let shared = SharedAddresses::default();
        let address = IpAddr::from([127, 0, 201, 31]);
        let open = || UdpSocket::bind((address, 0xc111));
        let socket = shared.socket(address, 0xc111, open).unwrap();
        let same = shared.socket(address, 0xc111, open).unwrap();
        assert!(Arc::ptr_eq(&socket, &same));
        drop((socket, same));
        assert!(shared.socket(address, 0xc111, open).is_ok(), "it was closed, and can be opened again");
    }
}
