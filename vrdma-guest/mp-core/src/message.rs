//! Large messages, as the application posts them.

/// A request that can be split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// RDMA WRITE.
    Write,
    /// RDMA WRITE with immediate data: the tail has them. The receiver's byte count must be that of the tail and what lies before it.
    WriteImm,
    /// RDMA READ. The completion's byte count must be that of the tail and what lies before it.
    Read,
    /// SEND, with or without immediate data: chunks are steered into the receive that [`Split::receive`](crate::split::Split::receive) names.
    Send,
}

impl Kind {
    /// Whether it consumes a receive of the peer.
    #[inline]
    pub const fn takes_receive(self) -> bool {
        matches!(self, Self::WriteImm | Self::Send)
    }
}

/// Where a message's bytes begin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// Key of the region or window.
    pub key: u32,
    /// Address of the first byte.
    pub addr: u64,
}

/// A large message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// What it is.
    pub kind: Kind,
    /// Its length.
    pub bytes: u32,
    /// The peer's memory; of a SEND it does not matter.
    pub remote: Place,
    /// This side's memory if it is in one piece. Otherwise READs into it, and READs after it, wait for whole messages.
    pub local: Option<Place>,
    /// IBV_SEND_FENCE.
    pub fence: bool,
}
