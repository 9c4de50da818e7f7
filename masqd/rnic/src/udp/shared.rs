use std::io;
use std::net::{IpAddr, UdpSocket};
use std::ops::Deref;
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
    /// Those that are open; who finds one that nobody has any more waits until it is closed.
    sockets: FxHashMap<(IpAddr, u16), Weak<SharedSocket>>,
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
        self: &Arc<Self>,
        address: IpAddr,
        port: u16,
        open: impl FnOnce() -> io::Result<UdpSocket>,
    ) -> io::Result<Arc<SharedSocket>> {
        let at = (address, port);
        loop {
            let mut inner = self.lock();
            match inner.sockets.get(&at).map(Weak::upgrade) {
                Some(Some(socket)) => return Ok(socket),
                // Another engine is about to close it: until then the port is taken.
                Some(None) => {
                    drop(inner);
                    std::thread::yield_now();
                }
                None => {
                    let socket = open()?;
                    let _place = Place { shared: self.clone(), at };
                    let socket = Arc::new(SharedSocket { socket, _place });
                    inner.sockets.insert(at, Arc::downgrade(&socket));
                    return Ok(socket);
                }
            }
        }
    }
}

/// A socket, until the last engine lets go of it.
#[derive(Debug)]
pub(super) struct SharedSocket {
    // Fields are dropped in this order: the place is free when the socket has been closed.
    socket: UdpSocket,
    _place: Place,
}

impl Deref for SharedSocket {
    type Target = UdpSocket;

    fn deref(&self) -> &UdpSocket {
        &self.socket
    }
}

/// An address and port whose socket is open.
#[derive(Debug)]
struct Place {
    shared: Arc<SharedAddresses>,
    at: (IpAddr, u16),
}

impl Drop for Place {
    fn drop(&mut self) {
        self.shared.lock().sockets.remove(&self.at);
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
        let shared = Arc::<SharedAddresses>::default();
        let address = IpAddr::from([127, 0, 201, 31]);
        let open = || UdpSocket::bind((address, 0xc111));
        let socket = shared.socket(address, 0xc111, open).unwrap();
        let same = shared.socket(address, 0xc111, open).unwrap();
        assert!(Arc::ptr_eq(&socket, &same));
        drop((socket, same));
        let failing = || Err(io::Error::other("not now"));
        assert!(shared.socket(address, 0xc111, failing).is_err());
        assert!(shared.socket(address, 0xc111, open).is_ok(), "it was closed, and can be opened again");
    }

    /// Engines that close and open the same port at the same time do not find it taken.
    #[test]
    fn a_socket_is_closed_before_it_is_opened_again() {
        let shared = Arc::<SharedAddresses>::default();
        let address = IpAddr::from([127, 0, 201, 32]);
        let open = || UdpSocket::bind((address, 0xc111));
        let engine = || (0..3000).for_each(|_| drop(shared.socket(address, 0xc111, open).unwrap()));
        std::thread::scope(|scope| {
            (0..3).for_each(|_| drop(scope.spawn(engine)));
        });
        assert!(shared.lock().sockets.is_empty());
    }
}
