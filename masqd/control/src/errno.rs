use std::fmt;

/// A positive Linux errno value, as it stands in a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Errno(pub u32);

macro_rules! errnos {
    ($($(#[$doc:meta])* $name:ident = $value:literal;)*) => {
        impl Errno {
            $($(#[$doc])* pub const $name: Errno = Errno($value);)*
        }

        /// The name in C.
        impl fmt::Display for Errno {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match *self {
                    $(Errno::$name => f.write_str(stringify!($name)),)*
                    Errno(n) => write!(f, "errno {n}"),
                }
            }
        }
    };
}

errnos! {
    /// A handle does not exist.
    ENOENT = 2;
    /// The RNIC failed.
    EIO = 5;
    /// The destination QPN lies outside the blocks of the destination.
    ENXIO = 6;
    /// Too many requests wait for the store.
    EAGAIN = 11;
    /// The RNIC has no room.
    ENOMEM = 12;
    /// A rule denies the connection, or the GID is not the vNIC's.
    EACCES = 13;
    /// An address lies outside the guest's memory.
    EFAULT = 14;
    /// The object is still in use.
    EBUSY = 16;
    /// The handle names an object with other parameters.
    EEXIST = 17;
    /// A field is out of range, or reserved and not zero.
    EINVAL = 22;
    /// The host does not know the command, feature or bit.
    EOPNOTSUPP = 95;
    /// The source GID is not in the vNIC's table.
    EADDRNOTAVAIL = 99;
    /// The destination GID is unknown in this network.
    EHOSTUNREACH = 113;
    /// The request names another epoch.
    ESTALE = 116;
    /// A quota is reached.
    EDQUOT = 122;
}
