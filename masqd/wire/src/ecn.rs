/// Explicit congestion notification: the two low bits of an IP header's type of service or traffic class (RFC 3168 §5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Ecn {
    /// The sender does not take part: a full queue drops.
    #[default]
    NotEct = 0b00,
    /// The sender takes part; for experiments (RFC 8311).
    Ect1 = 0b01,
    /// The sender takes part.
    Ect0 = 0b10,
    /// A queue on the way was filling up.
    Ce = 0b11,
}

impl Ecn {
    /// The bits of a type of service or traffic class that are this field.
    pub const MASK: u8 = 0b11;

    /// The field of a type of service or traffic class.
    pub const fn of(traffic_class: u8) -> Self {
        match traffic_class & Self::MASK {
            0b00 => Self::NotEct,
            0b01 => Self::Ect1,
            0b10 => Self::Ect0,
            _ => Self::Ce,
        }
    }

    /// `traffic_class` with this field in it.
    #[must_use]
    pub const fn mark(self, traffic_class: u8) -> u8 {
        traffic_class & !Self::MASK | self as u8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_four_both_ways() {
        for (bits, ecn) in [Ecn::NotEct, Ecn::Ect1, Ecn::Ect0, Ecn::Ce].into_iter().enumerate() {
            assert_eq!(Ecn::of(0xb8 | bits as u8), ecn);
            assert_eq!(ecn.mark(0xbb), 0xb8 | bits as u8);
        }
    }
}
