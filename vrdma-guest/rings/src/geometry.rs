//! Where the entries of a ring stand.

use core::fmt;

use vrdma_abi::ring::{STRIDE_SHIFT_MAX, STRIDE_SHIFT_MIN, ring_bytes};

/// Why memory cannot hold a ring of the wanted shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GeometryError {
    /// The number of entries is not a power of two.
    Entries(u32),
    /// The stride is outside of what the format allows.
    Stride(u8),
    /// The memory is shorter than the ring.
    Memory {
        /// Bytes that the ring takes.
        needed: u64,
        /// Bytes that there are.
        len: usize,
    },
}

impl fmt::Display for GeometryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Entries(entries) => write!(f, "{entries} entries are no power of two"),
            Self::Stride(shift) => write!(f, "a stride of 2^{shift} bytes is not allowed"),
            Self::Memory { needed, len } => write!(f, "the ring takes {needed} bytes, but there are {len}"),
        }
    }
}

impl core::error::Error for GeometryError {}

/// The checked shape of a ring: entries are a power of two, and all of them stand in the memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Geometry {
    entries: u32,
    stride_shift: u8,
}

impl Geometry {
    pub(crate) fn new(entries: u32, stride_shift: u8, len: usize) -> Result<Self, GeometryError> {
        if !entries.is_power_of_two() {
            return Err(GeometryError::Entries(entries));
        }
        if !(STRIDE_SHIFT_MIN..=STRIDE_SHIFT_MAX).contains(&stride_shift) {
            return Err(GeometryError::Stride(stride_shift));
        }
        let needed = ring_bytes(entries, stride_shift);
        if needed > len as u64 {
            return Err(GeometryError::Memory { needed, len });
        }
        Ok(Self { entries, stride_shift })
    }

    #[inline]
    pub(crate) fn entries(&self) -> u32 {
        self.entries
    }

    #[inline]
    pub(crate) fn stride(&self) -> usize {
        1 << self.stride_shift
    }

    /// Offset of the entry with a free-running index.
    #[inline]
    pub(crate) fn offset(&self, index: u32) -> usize {
        let slot = index & (self.entries - 1);
        (slot as usize + 1) << self.stride_shift
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_that_cannot_be_are_refused() {
        assert_eq!(Geometry::new(0, 6, 4096).unwrap_err(), GeometryError::Entries(0));
        assert_eq!(Geometry::new(12, 6, 4096).unwrap_err(), GeometryError::Entries(12));
        assert_eq!(Geometry::new(8, 5, 4096).unwrap_err(), GeometryError::Stride(5));
        assert_eq!(Geometry::new(8, 11, 1 << 20).unwrap_err(), GeometryError::Stride(11));
        assert_eq!(
            Geometry::new(64, 6, 4096).unwrap_err(),
            GeometryError::Memory { needed: 4160, len: 4096 }
        );
        assert_eq!(
            Geometry::new(1 << 31, 10, 4096).unwrap_err(),
            GeometryError::Memory { needed: ((1 << 31) + 1) << 10, len: 4096 }
        );
        assert!(Geometry::new(32, 6, 4096).is_ok());
    }

    #[test]
    fn entries_follow_the_header_and_wrap() {
        let ring = Geometry::new(4, 7, 4096).unwrap();
        assert_eq!([0, 1, 3, 4, 7, u32::MAX].map(|index| ring.offset(index)), [128, 256, 512, 128, 512, 512]);
    }
}
