//! Queue pairs for datagrams, and what they receive.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use masq_types::Gid;
use vrdma_abi::control::*;
use vrdma_abi::ring::*;
use vrdma_rings::SendRequest;

use super::{Side, assert_same, assert_status};
use crate::verbs::{ConnectAttr, GRH_BYTES, GSI_QKEY, Grh, Mr, Qp, QpCaps, To, wr};

/// Bytes between two receive buffers.
const ROOM: usize = 8192;

/// A queue pair that takes part in datagrams, with buffers.
pub struct DatagramEnd<'s> {
    /// Whose it is.
    pub side: &'s Side,
    /// The queue pair.
    pub qp: Arc<Qp>,
    /// Its Q_Key.
    pub qkey: u32,
    /// What is sent.
    pub here: Mr,
    into: Mr,
    places: usize,
}

/// A received datagram.
#[derive(Debug)]
pub struct Received {
    /// Its completion.
    pub cqe: Cqe,
    /// From whom, to whom.
    pub grh: Grh,
    /// What was sent.
    pub data: Vec<u8>,
}

impl<'s> DatagramEnd<'s> {
    /// One with the default attributes, and `receives` buffers posted.
    ///
    /// # Panics
    /// When it cannot be created.
    #[track_caller]
    pub fn open(side: &'s Side, receives: usize) -> Self {
        Self::open_with(side, &QpCaps { recv_wr: 256, ..QpCaps::of(QP_TYPE_UD) }, receives)
    }

    /// The QP1 of a guest, whose kernel `side` is.
    ///
    /// # Panics
    /// When it cannot be created, or is not number 1.
    #[track_caller]
    pub fn gsi(side: &'s Side, receives: usize) -> Self {
        let end = Self::open_with(side, &QpCaps { recv_wr: 256, ..QpCaps::of(QP_TYPE_GSI) }, receives);
        assert_eq!(end.qp.qpn, 1, "guests see their QP1 under this number");
        DatagramEnd { qkey: GSI_QKEY, ..end }
    }

    /// One that holds what `caps` say.
    ///
    /// # Panics
    /// When it cannot be created.
    #[track_caller]
    pub fn open_with(side: &'s Side, caps: &QpCaps, receives: usize) -> Self {
        let attr = ConnectAttr::default();
        let qp = side.qp(caps, 1024);
        qp.activate(&attr).expect("RESET to RTS");
        let places = receives.max(1);
        let end = DatagramEnd {
            side,
            qp,
            qkey: attr.qkey,
            here: side.buffer(ROOM),
            into: side.buffer(places * ROOM),
            places,
        };
        (0..receives as u64).for_each(|k| end.post_recv(k));
        end
    }

    /// Posts the buffer of a number, modulo the number of buffers.
    ///
    /// # Panics
    /// When the receive queue is full.
    #[track_caller]
    pub fn post_recv(&self, number: u64) {
        let place = number as usize % self.places;
        self.qp.post_recv(number, &[self.into.sge(place * ROOM, ROOM)]).expect("room");
    }

    /// The address handle, number and key of this one, from GID 0 of whoever uses it.
    pub fn name(&self) -> To {
        To::new(self.side.address, self.qp.qpn, self.qkey)
    }

    /// The same by another of its GIDs.
    pub fn name_by(&self, gid: Gid, sgid_index: u8) -> To {
        To { dgid: gid, sgid_index, ..self.name() }
    }

    /// Sends a datagram, which succeeds whether it arrives or not.
    ///
    /// # Panics
    /// When it does not succeed.
    #[track_caller]
    pub fn send(&self, to: &To, data: &[u8]) {
        self.send_as(wr::datagram(SEND_OP_SEND, 1, to), data);
    }

    /// Sends a datagram by any request, likewise.
    ///
    /// # Panics
    /// When it does not succeed.
    #[track_caller]
    pub fn send_as(&self, request: SendRequest, data: &[u8]) {
        self.here.write(0, data);
        self.qp.post_send(&request, &[self.here.sge(0, data.len())]).expect("room");
        let cqe = self.qp.send_completion();
        assert_status(&cqe, WC_SUCCESS);
        assert_eq!((cqe.wr_id, cqe.opcode), (request.wr_id, WC_SEND));
    }

    /// The next datagram.
    ///
    /// # Panics
    /// When none comes, or it is not as it must be.
    #[track_caller]
    pub fn receive(&self) -> Received {
        self.received(self.qp.recv_completion())
    }

    /// The next datagram, if one comes within `timeout`.
    ///
    /// # Panics
    /// When it is not as it must be.
    #[track_caller]
    pub fn receive_within(&self, timeout: Duration) -> Option<Received> {
        let cqe = self.qp.recv_cq().wait(timeout)?;
        self.qp.retire(&cqe);
        Some(self.received(cqe))
    }

    #[track_caller]
    fn received(&self, cqe: Cqe) -> Received {
        assert_status(&cqe, WC_SUCCESS);
        assert_eq!(cqe.opcode, WC_RECV, "{cqe:?}");
        let place = cqe.wr_id as usize % self.places;
        let bytes = self.into.read(place * ROOM, cqe.byte_len as usize);
        let (area, data) = bytes.split_at(GRH_BYTES);
        Received { cqe, grh: Grh::read(area, &cqe), data: data.to_vec() }
    }
}

impl Received {
    /// It is `data` from `from`, an address and a number, to `to`.
    ///
    /// # Panics
    /// When it is another.
    #[track_caller]
    pub fn assert_is(&self, data: &[u8], from: (IpAddr, u32), to: IpAddr) {
        assert_eq!(self.grh, Grh { source: from.0, destination: to });
        assert_eq!(self.cqe.src_qpn, from.1, "the sender's number: {:?}", self.cqe);
        assert_same(&self.data, data, "the datagram");
    }
}
