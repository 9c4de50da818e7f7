use core::fmt;

/// A virtual network identifier: names a tenant's network, 1..2^24.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(try_from = "u32", into = "u32"))]
pub struct Vni(u32);

impl Vni {
    /// The largest VNI (24 bits, as in VXLAN, RFC 7348 §5).
    pub const MAX: u32 = 0xff_ffff;

    /// A VNI, or `None` for zero and for values above [`Vni::MAX`].
    pub const fn new(value: u32) -> Option<Self> {
        if value == 0 || value > Self::MAX { None } else { Some(Self(value)) }
    }

    /// The value.
    pub const fn get(self) -> u32 {
        self.0
    }
}

impl TryFrom<u32> for Vni {
    type Error = &'static str;

    fn try_from(value: u32) -> Result<Self, Self::Error> {
        Vni::new(value).ok_or("a VNI lies between 1 and 16777215")
    }
}

impl From<Vni> for u32 {
    fn from(v: Vni) -> u32 {
        v.0
    }
}

impl fmt::Display for Vni {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
