/// A path MTU: the payload bytes that one packet carries at most (IBTA Vol 1 §9.4.3 PMTU).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Mtu {
    /// 256 bytes.
    B256 = 1,
    /// 512 bytes.
    B512 = 2,
    /// 1024 bytes.
    B1024 = 3,
    /// 2048 bytes.
    B2048 = 4,
    /// 4096 bytes.
    B4096 = 5,
}

impl Mtu {
    /// All values, smallest first.
    pub const ALL: [Mtu; 5] = [Mtu::B256, Mtu::B512, Mtu::B1024, Mtu::B2048, Mtu::B4096];

    /// Bytes of headers that RoCEv2 adds at most to a payload on an IPv4 or IPv6 link: IPv6 40, UDP 8,
    /// BTH 12, the longest extension headers of an RC packet 28, ICRC 4, rounded up as Linux does for
    /// its active MTU.
    pub const OVERHEAD_BYTES: u32 = 96;

    /// The MTU with the verbs encoding `code` (1 = 256 … 5 = 4096).
    pub const fn from_code(code: u8) -> Option<Self> {
        match code {
            1 => Some(Mtu::B256),
            2 => Some(Mtu::B512),
            3 => Some(Mtu::B1024),
            4 => Some(Mtu::B2048),
            5 => Some(Mtu::B4096),
            _ => None,
        }
    }

    /// The verbs encoding (1 = 256 … 5 = 4096).
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// The payload size in bytes.
    pub const fn bytes(self) -> u32 {
        128 << self as u32
    }

    /// The largest MTU that fits a link with `link_mtu_bytes`, or `None` below 256 bytes of payload.
    pub fn for_link(link_mtu_bytes: u32) -> Option<Self> {
        let payload = link_mtu_bytes.saturating_sub(Self::OVERHEAD_BYTES);
        Self::ALL.into_iter().rev().find(|m| m.bytes() <= payload)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_and_sizes() {
        for m in Mtu::ALL {
            assert_eq!(Mtu::from_code(m.code()), Some(m));
        }
        assert_eq!(Mtu::ALL.map(Mtu::bytes), [256, 512, 1024, 2048, 4096]);
        assert_eq!(Mtu::from_code(0), None);
        assert_eq!(Mtu::from_code(6), None);
    }

    #[test]
    fn follows_the_link() {
        assert_eq!(Mtu::for_link(9000), Some(Mtu::B4096));
        assert_eq!(Mtu::for_link(4200), Some(Mtu::B4096));
        assert_eq!(Mtu::for_link(1500), Some(Mtu::B1024));
        assert_eq!(Mtu::for_link(576), Some(Mtu::B256));
        assert_eq!(Mtu::for_link(300), None);
    }
}
