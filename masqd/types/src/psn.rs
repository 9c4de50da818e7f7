use core::cmp::Ordering;
use core::fmt;

/// A packet sequence number: 24 bits that wrap (IBTA Vol 1 §9.7.2).
///
/// Order is modular: `a` precedes `b` when the shortest way from `a` to `b` goes forward. There is
/// deliberately no `Ord`, because modular order is not transitive.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Psn(u32);

impl Psn {
    /// One more than the largest PSN.
    pub const MODULUS: u32 = 1 << 24;
    const MASK: u32 = Self::MODULUS - 1;
    /// Half of the number space: the furthest that two PSNs of one connection may lie apart.
    pub const HALF: u32 = Self::MODULUS / 2;

    /// The PSN in the low 24 bits of `value`; higher bits are dropped, as on the wire.
    pub const fn new(value: u32) -> Self {
        Self(value & Self::MASK)
    }

    /// The value, below 2^24.
    pub const fn get(self) -> u32 {
        self.0
    }

    /// The PSN `packets` later.
    #[must_use]
    pub const fn plus(self, packets: u32) -> Self {
        Self(self.0.wrapping_add(packets) & Self::MASK)
    }

    /// The PSN `packets` earlier.
    #[must_use]
    pub const fn minus(self, packets: u32) -> Self {
        Self(self.0.wrapping_sub(packets) & Self::MASK)
    }

    /// How many packets after `earlier` this PSN lies, in 0..2^24.
    pub const fn since(self, earlier: Psn) -> u32 {
        self.0.wrapping_sub(earlier.0) & Self::MASK
    }

    /// Modular comparison: `Less` when `self` precedes `other`.
    pub const fn cmp_modular(self, other: Psn) -> Ordering {
        match self.since(other) {
            0 => Ordering::Equal,
            d if d < Self::HALF => Ordering::Greater,
            _ => Ordering::Less,
        }
    }

    /// Whether this PSN precedes `other`.
    pub const fn precedes(self, other: Psn) -> bool {
        matches!(self.cmp_modular(other), Ordering::Less)
    }
}

impl fmt::Debug for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Psn({:#08x})", self.0)
    }
}

impl fmt::Display for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wraps_at_24_bits() {
        let last = Psn::new(0xff_ffff);
        assert_eq!(last.plus(1), Psn::new(0));
        assert_eq!(Psn::new(0).minus(1), last);
        assert_eq!(Psn::new(0x0100_0005), Psn::new(5));
        assert_eq!(Psn::new(2).since(last), 3);
    }

    #[test]
    fn orders_across_the_wrap() {
        let (a, b) = (Psn::new(0xff_fff0), Psn::new(0x10));
        assert!(a.precedes(b));
        assert!(!b.precedes(a));
        assert!(!a.precedes(a));
        assert_eq!(Psn::new(Psn::HALF).cmp_modular(Psn::new(0)), Ordering::Less);
    }
}
