//! How a structure of the contract describes itself, so that the C header can be generated.

/// One field of a structure.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// The name.
    pub name: &'static str,
    /// The Rust type, as written.
    pub ty: &'static str,
    /// Offset in bytes.
    pub offset: usize,
    /// Size in bytes.
    pub size: usize,
    /// The doc comment's lines.
    pub doc: &'static [&'static str],
}

/// The layout of one structure.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// The Rust name.
    pub name: &'static str,
    /// Size in bytes.
    pub size: usize,
    /// All fields, in order.
    pub fields: &'static [Field],
    /// The doc comment's lines.
    pub doc: &'static [&'static str],
}

/// A named number of the contract.
#[derive(Clone, Copy, Debug)]
pub struct Constant {
    /// The name.
    pub name: &'static str,
    /// The value.
    pub value: u64,
    /// The doc comment's lines.
    pub doc: &'static [&'static str],
}

/// Defines structures of the contract: `repr(C)`, plain bytes (zerocopy proves that there is no
/// padding and that every bit pattern is valid), with a [`Layout`] to generate C from.
macro_rules! abi_structs {
    ($(
        $(#[doc = $doc:literal])*
        pub struct $name:ident {
            $( $(#[doc = $fdoc:literal])* pub $field:ident : $ty:ty, )*
        }
    )*) => {
        $(
            $(#[doc = $doc])*
            #[derive(
                Clone, Copy, Debug, PartialEq, Eq,
                zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable, zerocopy::KnownLayout,
            )]
            #[repr(C)]
            pub struct $name {
                $( $(#[doc = $fdoc])* pub $field: $ty, )*
            }

            impl $name {
                /// Size in bytes.
                pub const SIZE: usize = core::mem::size_of::<$name>();

                /// All bytes zero: the state in which reserved fields must be.
                pub const ZERO: $name = {
                    // The derive of FromBytes above proves that zeroes are a valid value.
                    zerocopy::transmute!([0u8; core::mem::size_of::<$name>()])
                };
            }

            impl Default for $name {
                fn default() -> Self {
                    Self::ZERO
                }
            }
        )*

        /// The layouts of this module's structures.
        pub const LAYOUTS: &[$crate::Layout] = &[
            $( $crate::Layout {
                name: stringify!($name),
                size: core::mem::size_of::<$name>(),
                doc: &[$($doc),*],
                fields: &[
                    $( $crate::Field {
                        name: stringify!($field),
                        ty: stringify!($ty),
                        offset: core::mem::offset_of!($name, $field),
                        size: {
                            // The size of a field's type, without naming a value of it.
                            core::mem::size_of::<$ty>()
                        },
                        doc: &[$($fdoc),*],
                    }, )*
                ],
            }, )*
        ];
    };
}

/// Defines numbers of the contract, and lists them to generate C from.
macro_rules! abi_constants {
    ($( $(#[doc = $doc:literal])* pub const $name:ident : $ty:ty = $value:expr; )*) => {
        $( $(#[doc = $doc])* pub const $name: $ty = $value; )*

        /// This module's numbers.
        pub const CONSTANTS: &[$crate::Constant] = &[
            $( $crate::Constant { name: stringify!($name), value: $value as u64, doc: &[$($doc),*] }, )*
        ];
    };
}
