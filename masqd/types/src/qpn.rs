use core::fmt;

macro_rules! qpn {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
        #[cfg_attr(feature = "serde", serde(transparent))]
        pub struct $name(u32);

        impl $name {
            /// The largest queue pair number (24 bits).
            pub const MAX: u32 = 0xff_ffff;

            /// A queue pair number, or `None` when `value` does not fit 24 bits.
            pub const fn new(value: u32) -> Option<Self> {
                if value <= Self::MAX { Some(Self(value)) } else { None }
            }

            /// A queue pair number from the low 24 bits of a wire field.
            pub const fn from_wire(value: u32) -> Self {
                Self(value & Self::MAX)
            }

            /// The value, below 2^24.
            pub const fn get(self) -> u32 {
                self.0
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({:#08x})"), self.0)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:#08x}", self.0)
            }
        }
    };
}

qpn! {
    /// A queue pair number as a guest sees it.
    Qpn
}
qpn! {
    /// A queue pair number as it stands in packets on the underlay. Equal to the guest's [`Qpn`]
    /// today, save for QP1 and hidden siblings of a multipath group.
    WireQpn
}

/// An aligned block of wire QPNs that one vNIC owns. A QP can be connected only to a QPN inside
/// the blocks of the destination's endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct QpnBlock {
    /// First QPN; a multiple of `len`.
    pub first: u32,
    /// How many QPNs; a power of two.
    pub len: u32,
}

impl QpnBlock {
    /// The smallest block that is handed out.
    pub const MIN_LEN: u32 = 4096;

    /// A block, or `None` when `len` is not a power of two of at least [`QpnBlock::MIN_LEN`],
    /// `first` is not aligned to it, or the block would leave the 24-bit space.
    pub const fn new(first: u32, len: u32) -> Option<Self> {
        let fits = len >= Self::MIN_LEN
            && len.is_power_of_two()
            && first.is_multiple_of(len)
            && first <= WireQpn::MAX
            && len <= WireQpn::MAX + 1 - first;
        if fits { Some(Self { first, len }) } else { None }
    }

    /// Whether `qpn` lies in this block. QPNs 0 and 1 never do: they are reserved for management.
    pub const fn contains(self, qpn: WireQpn) -> bool {
        let q = qpn.get();
        q > 1 && q >= self.first && q - self.first < self.len
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_more_than_24_bits() {
        assert!(Qpn::new(0x100_0000).is_none());
        assert_eq!(Qpn::new(0xff_ffff).unwrap().get(), 0xff_ffff);
        assert_eq!(WireQpn::from_wire(0xab12_3456).get(), 0x12_3456);
    }

    #[test]
    fn blocks_are_aligned_and_bounded() {
        assert!(QpnBlock::new(4096, 4096).is_some());
        assert!(QpnBlock::new(4097, 4096).is_none());
        assert!(QpnBlock::new(4096, 1000).is_none());
        assert!(QpnBlock::new(0, 2048).is_none());
        let top = QpnBlock::new(0xff_f000, 4096).unwrap();
        assert!(top.contains(WireQpn::from_wire(0xff_ffff)));
        assert!(QpnBlock::new(0x100_0000, 4096).is_none());
    }

    #[test]
    fn management_qpns_are_in_no_block() {
        let b = QpnBlock::new(0, 4096).unwrap();
        assert!(!b.contains(WireQpn::from_wire(0)));
        assert!(!b.contains(WireQpn::from_wire(1)));
        assert!(b.contains(WireQpn::from_wire(2)));
        assert!(!b.contains(WireQpn::from_wire(4096)));
    }
}
