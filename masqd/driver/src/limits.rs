//! What a vNIC may send.

/// A rate of bytes as IP packets, their headers and ICRC included. A connection between two vNICs of one RNIC counts
/// the bytes that its messages would have as packets of its path MTU.
///
/// Over any time `t`, at most `bits_per_sec · t / 8 + burst_bytes` bytes are sent. Who always has something to send
/// gets `bits_per_sec`, as long as the RNIC is never kept from running for longer than the burst lasts at that rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rate {
    /// Bits a second, [`Rate::MIN_BITS_PER_SEC`] to [`Rate::MAX_BITS_PER_SEC`].
    pub bits_per_sec: u64,
    /// Bytes that can be sent at once after a pause, [`Rate::MIN_BURST_BYTES`] to [`Rate::MAX_BURST_BYTES`].
    pub burst_bytes: u64,
}

impl Rate {
    /// Lowest rate: 64 kbit/s.
    pub const MIN_BITS_PER_SEC: u64 = 64_000;
    /// Highest rate: 1 Tbit/s.
    pub const MAX_BITS_PER_SEC: u64 = 1_000_000_000_000;
    /// Smallest burst: 16 KiB, so that a packet of any size fits.
    pub const MIN_BURST_BYTES: u64 = 16 << 10;
    /// Largest burst: 1 GiB.
    pub const MAX_BURST_BYTES: u64 = 1 << 30;

    /// `bits_per_sec` with a burst that suits it: one train of 64 KiB, and what 20 ms bring, so that an engine that others
    /// keep from its CPU for some time slices can catch up.
    pub const fn with_default_burst(bits_per_sec: u64) -> Self {
        let slack = bits_per_sec / 8 / 50;
        let room = Self::MAX_BURST_BYTES - (64 << 10);
        Self { bits_per_sec, burst_bytes: (64 << 10) + if slack < room { slack } else { room } }
    }

    /// Whether both values are in range.
    pub fn check(&self) -> Result<(), LimitsError> {
        if !(Self::MIN_BITS_PER_SEC..=Self::MAX_BITS_PER_SEC).contains(&self.bits_per_sec) {
            return Err(LimitsError::Rate(self.bits_per_sec));
        }
        if !(Self::MIN_BURST_BYTES..=Self::MAX_BURST_BYTES).contains(&self.burst_bytes) {
            return Err(LimitsError::Burst(self.burst_bytes));
        }
        Ok(())
    }
}

/// What a vNIC may send, and whom it yields to.
///
/// It pays for what its memory sends: requests, and the answers to its peers' RDMA READs. Acknowledgements count, but never
/// wait, unless answers that must go before them do. A vNIC that has used up its rate waits as a whole; no other waits for it.
/// A request that waits has not been sent: no ACK timeout runs. A READ has been sent by its peer, whose timeout should
/// allow for the rate at which the answer comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Its rate; `None` is without limit.
    pub rate: Option<Rate>,
    /// Its share beside others of its class that have something to send, 1 to [`Limits::MAX_WEIGHT`] (deficit round robin).
    pub weight: u16,
    /// Its class, 0 to 7. A higher class is always served before a lower one, which gets what the higher leave. The vNICs of a class share
    /// the class's rate ([`Command::SetClassRate`](crate::Command::SetClassRate)) by their weights.
    pub class: u8,
    /// Differentiated services code point (RFC 2474) of all that it sends, 0 to 63, in place of what its connections
    /// say; the ECN bits stay.
    pub dscp: Option<u8>,
    /// Without `dscp`: its datagrams keep the code point that its guest asks for; else they have 0. (What its connections keep stands
    /// in their traffic class.)
    pub trust_dscp: bool,
}

impl Limits {
    /// Largest weight.
    pub const MAX_WEIGHT: u16 = 256;
    /// How many classes there are.
    pub const CLASSES: u8 = 8;

    /// Whether all values are in range.
    pub fn check(&self) -> Result<(), LimitsError> {
        if let Some(rate) = &self.rate {
            rate.check()?;
        }
        if !(1..=Self::MAX_WEIGHT).contains(&self.weight) {
            return Err(LimitsError::Weight(self.weight));
        }
        check_class(self.class)?;
        match self.dscp {
            Some(dscp) if dscp > 63 => Err(LimitsError::Dscp(dscp)),
            _ => Ok(()),
        }
    }
}

/// No limit, weight 1, class 0, and the DSCP of each connection; 0 for datagrams.
impl Default for Limits {
    fn default() -> Self {
        Self { rate: None, weight: 1, class: 0, dscp: None, trust_dscp: false }
    }
}

/// Whether there is such a class.
pub fn check_class(class: u8) -> Result<(), LimitsError> {
    if class < Limits::CLASSES { Ok(()) } else { Err(LimitsError::Class(class)) }
}

/// Which limit is out of range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LimitsError {
    /// The rate.
    #[error(
        "a rate of {0} bit/s is not possible, only {min} to {max}",
        min = Rate::MIN_BITS_PER_SEC,
        max = Rate::MAX_BITS_PER_SEC
    )]
    Rate(u64),
    /// The burst.
    #[error(
        "a burst of {0} bytes is not possible, only {min} to {max}",
        min = Rate::MIN_BURST_BYTES,
        max = Rate::MAX_BURST_BYTES
    )]
    Burst(u64),
    /// The weight.
    #[error("a weight of {0} is not possible, only 1 to {max}", max = Limits::MAX_WEIGHT)]
    Weight(u16),
    /// The class.
    #[error("there is no class {0}, only 0 to 7")]
    Class(u8),
    /// The code point.
    #[error("a DSCP of {0} is not possible, only 0 to 63")]
    Dscp(u8),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_out_of_range_is_named() {
        assert_eq!(Limits::default().check(), Ok(()));
        for (bits_per_sec, fits) in
            [(0, false), (63_999, false), (64_000, true), (1_000_000_000_000, true), (u64::MAX, false)]
        {
            let rate = Rate::with_default_burst(bits_per_sec);
            let limits = Limits { rate: Some(rate), ..Limits::default() };
            let expected = if fits { Ok(()) } else { Err(LimitsError::Rate(bits_per_sec)) };
            assert_eq!(limits.check(), expected);
        }
        for burst_bytes in [0, (16 << 10) - 1, (1 << 30) + 1, u64::MAX] {
            let rate = Rate { bits_per_sec: 1_000_000, burst_bytes };
            assert_eq!(rate.check(), Err(LimitsError::Burst(burst_bytes)));
        }
        let with = |weight, class, dscp| Limits { weight, class, dscp, ..Limits::default() }.check();
        assert_eq!(with(256, 7, Some(63)), Ok(()));
        assert_eq!(with(0, 0, None), Err(LimitsError::Weight(0)));
        assert_eq!(with(257, 0, None), Err(LimitsError::Weight(257)));
        assert_eq!(with(1, 8, None), Err(LimitsError::Class(8)));
        assert_eq!(with(1, 0, Some(64)), Err(LimitsError::Dscp(64)));
        let text = LimitsError::Rate(0).to_string();
        assert_eq!(text, "a rate of 0 bit/s is not possible, only 64000 to 1000000000000");
    }
}
