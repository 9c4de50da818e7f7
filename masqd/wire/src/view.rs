/// Fixed-size big-endian fields at constant offsets. Views hold `&[u8; N]`, so that every offset is
/// checked against the header's length at compile time or by an array access that cannot fail.
macro_rules! field {
    ($bytes:expr, $at:literal, u8) => {
        $bytes[$at]
    };
    ($bytes:expr, $at:literal, u16) => {
        u16::from_be_bytes([$bytes[$at], $bytes[$at + 1]])
    };
    ($bytes:expr, $at:literal, u24) => {
        u32::from_be_bytes([0, $bytes[$at], $bytes[$at + 1], $bytes[$at + 2]])
    };
    ($bytes:expr, $at:literal, u32) => {
        u32::from_be_bytes([$bytes[$at], $bytes[$at + 1], $bytes[$at + 2], $bytes[$at + 3]])
    };
    ($bytes:expr, $at:literal, u64) => {
        u64::from_be_bytes([
            $bytes[$at],
            $bytes[$at + 1],
            $bytes[$at + 2],
            $bytes[$at + 3],
            $bytes[$at + 4],
            $bytes[$at + 5],
            $bytes[$at + 6],
            $bytes[$at + 7],
        ])
    };
}

/// Stores the big-endian bytes of `$value` at offset `$at`; for `u24` the low three bytes.
macro_rules! put {
    ($bytes:expr, $at:literal, u24, $value:expr) => {
        $bytes[$at..$at + 3].copy_from_slice(&u32::to_be_bytes($value)[1..])
    };
    ($bytes:expr, $at:literal, $ty:ident, $value:expr) => {
        $bytes[$at..$at + size_of::<$ty>()].copy_from_slice(&$ty::to_be_bytes($value))
    };
}

/// A view type over the bytes of one header.
macro_rules! view {
    ($(#[$doc:meta])* $name:ident, $len:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq)]
        pub struct $name<'a>(&'a [u8; $len]);

        impl<'a> $name<'a> {
            /// Length of this header in bytes.
            pub const LEN: usize = $len;

            /// A view over exactly this header's bytes.
            pub const fn new(bytes: &'a [u8; $len]) -> Self {
                Self(bytes)
            }

            /// A view over the first bytes of `bytes`, or `None` when they are too few.
            pub fn from_prefix(bytes: &'a [u8]) -> Option<Self> {
                bytes.first_chunk().map(Self)
            }

            /// The bytes under the view.
            pub const fn as_bytes(self) -> &'a [u8; $len] {
                self.0
            }
        }
    };
}

pub(crate) use {field, put, view};
