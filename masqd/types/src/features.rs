use core::ops::BitOr;

/// What an RNIC of masq can do beyond standard RoCEv2, as a set of bits. A host publishes its RNIC's in the endpoint records of its
/// vNICs; towards a peer a queue pair uses what both ends have. Bits without a name here are a later version's, and mean nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(transparent))]
pub struct Features(u32);

impl Features {
    /// Nothing: a stranger, who gets standard RoCEv2.
    pub const NONE: Features = Features(0);
    /// Timed and selective acknowledgements: the manufacturer opcodes 0xc0 and 0xc1.
    pub const SELECTIVE: Features = Features(1);
    /// Groups of queue pairs, by which a connection uses several paths of the underlay: within them, the manufacturer opcodes 0xc2 to 0xc8, and between
    /// hosts probes of those paths, 0xce and 0xcf, and questions who is connected, 0xd8 and 0xd9. 2 and 8 were those of earlier versions, which had groups and answered no
    /// probes, or no such questions.
    pub const MULTIPATH: Features = Features(32);
    /// Ends of WRITEs with immediate data of which parts have come by other paths: the manufacturer opcodes 0xc9 and 0xca.
    pub const WRITE_ENDS: Features = Features(4);
    /// READs whose requests tell that their message goes on behind them, and whose answers tell, when the request has AckReq set, how long the responder held
    /// it: the manufacturer opcodes 0xcb to 0xcd.
    pub const TIMED_READS: Features = Features(16);

    /// The set with these bits.
    pub const fn from_bits(bits: u32) -> Self {
        Self(bits)
    }

    /// The bits.
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// Whether all of `others` are in the set.
    pub const fn contains(self, others: Features) -> bool {
        self.0 & others.0 == others.0
    }

    /// Those in both sets.
    #[must_use]
    pub const fn common(self, other: Features) -> Features {
        Self(self.0 & other.0)
    }

    /// Whether it is empty.
    pub const fn is_none(&self) -> bool {
        self.0 == 0
    }
}

impl BitOr for Features {
    type Output = Features;

    fn bitor(self, other: Features) -> Features {
        Self(self.0 | other.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_two_ends_have_in_common() {
        let later = Features::from_bits(1 << 31);
        let both = later | Features::SELECTIVE;
        assert!(both.contains(Features::SELECTIVE) && both.contains(Features::NONE));
        assert!(!later.contains(Features::SELECTIVE) && !later.contains(both));
        assert_eq!(both.common(Features::SELECTIVE), Features::SELECTIVE);
        assert!(later.common(Features::SELECTIVE).is_none());
        assert_eq!(both.bits(), 0x8000_0001);
    }
}
