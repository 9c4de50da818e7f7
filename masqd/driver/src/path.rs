//! Queue pairs with several paths, as masqd describes them.

use std::net::IpAddr;

use masq_types::WireQpn;

use crate::{Connection, WorkQueueAttr};

/// What a queue pair has besides that may use several paths of the underlay: a chunk ring (`vrdma_abi::ring`, Multipath), and hidden queue
/// pairs of the RNIC, its siblings, one for each path but the first.
///
/// The number of a sibling is [`QpInit::wire_qpn`](crate::QpInit::wire_qpn) and the number of its path, so the peer's siblings follow from the peer's number as well. They have no
/// handles, and all that is done to the queue pair is done to them.
#[derive(Clone, Debug)]
pub struct GroupAttr {
    /// How many queue pairs it can have, itself included: from 2 to [`GroupAttr::MAX_MEMBERS`]. Their wire numbers are its own, which is a multiple of this number rounded up
    /// to a power of two, and those that follow.
    pub members: u8,
    /// The chunk ring, with the stride and the scatter/gather entries of the send queue.
    pub chunks: WorkQueueAttr,
}

impl GroupAttr {
    /// Most queue pairs of a group, and paths of a connection.
    pub const MAX_MEMBERS: u8 = 16;
}

/// One path of a connection: an underlay address at each end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnderlayPath {
    /// Local underlay address; one of the vNIC's.
    pub local: IpAddr,
    /// The peer's underlay address.
    pub remote: IpAddr,
    /// UDP source port, as [`Connection::udp_source_port`].
    pub udp_source_port: u16,
}

impl Connection {
    /// How many paths it has.
    pub fn path_count(&self) -> usize {
        1 + self.other_paths.len()
    }

    /// The connection of a sibling: path `number`, from 1, alone.
    pub fn on_path(&self, number: usize) -> Option<Connection> {
        let UnderlayPath { local, remote, udp_source_port } =
            *self.other_paths.get(number.checked_sub(1)?)?;
        let remote_qpn = WireQpn::from_wire(self.remote_qpn.get() + number as u32);
        Some(Connection {
            local,
            remote,
            remote_qpn,
            udp_source_port,
            other_paths: Vec::new(),
            ..self.clone()
        })
    }
}
