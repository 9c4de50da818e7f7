//! The UDP source ports by which a vNIC's datagrams leave.

use std::collections::VecDeque;

use crate::udp::{Edge, LocalId, TxBatch};

/// Source ports that a vNIC has open at the same time: each is a socket.
const MAX_PORTS: usize = 32;

/// Open source ports, oldest first.
#[derive(Debug, Default)]
pub struct Ports(VecDeque<Open>);

#[derive(Debug)]
struct Open {
    local: LocalId,
    wanted: u16,
    /// What is used in its place, when that belongs to somebody else.
    used: u16,
}

/// A source port that is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Port {
    /// What to send from.
    pub number: u16,
    /// It was opened just now.
    pub is_new: bool,
}

impl Ports {
    /// Opens a source port, in place of the oldest if there are too many. `None` when what waits to be sent must be gone first,
    /// which may be about to leave by the oldest.
    pub fn open(&mut self, edge: &mut Edge, tx: &mut TxBatch, local: LocalId, wanted: u16) -> Option<Port> {
        if let Some(open) = self.0.iter().find(|o| o.wanted == wanted && o.local == local) {
            return Some(Port { number: open.used, is_new: false });
        }
        if self.0.len() >= MAX_PORTS {
            if !edge.flush(tx) {
                return None;
            }
            self.0.pop_front().inspect(|oldest| oldest.close(edge));
        }
        let used = edge.open_port(local, wanted);
        self.0.push_back(Open { local, wanted, used });
        Some(Port { number: used, is_new: true })
    }

    /// Calls `each` with what is open.
    pub fn for_each(&self, mut each: impl FnMut(LocalId, u16)) {
        self.0.iter().filter(|o| o.used == o.wanted).for_each(|o| each(o.local, o.wanted));
    }

    /// Closes all.
    pub fn close(&mut self, edge: &mut Edge) {
        self.0.drain(..).for_each(|open| open.close(edge));
    }
}

impl Open {
    fn close(&self, edge: &mut Edge) {
        // One that fell back to port 4791 opened nothing.
        if self.used == self.wanted {
            edge.close_port(self.local, self.wanted);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_gives_way() {
        let address = std::net::IpAddr::from([127, 0, 201, 9]);
        let (mut edge, mut tx, mut ports) = (Edge::default(), TxBatch::default(), Ports::default());
        let local = edge.attach(address).unwrap().local;
        let is_free = |port| std::net::UdpSocket::bind((address, port)).is_ok();
        let count = MAX_PORTS as u16;
        for port in 0xc000..0xc000 + count {
            for is_new in [true, false] {
                let opened = ports.open(&mut edge, &mut tx, local, port);
                assert_eq!(opened, Some(Port { number: port, is_new }));
            }
        }
        assert!(!is_free(0xc000));
        ports.open(&mut edge, &mut tx, local, 0xc000 + count);
        assert!(is_free(0xc000) && !is_free(0xc001) && !is_free(0xc000 + count));
        ports.close(&mut edge);
        assert!((0xc000..=0xc000 + count).all(is_free));
    }
}
