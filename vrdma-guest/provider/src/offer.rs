//! How many paths queue pairs can have, by the device and by who runs the program.
//!
//! `VRDMA_MULTIPATH=K` in the environment limits what queue pairs send to K paths at a time, and `VRDMA_MULTIPATH=0` or `1` leaves them with one path.

use std::ffi::OsStr;
use std::io::{self, Write as _};
use std::sync::Once;

use vrdma_abi::config::FEATURE_STEER;
use vrdma_abi::uapi::UserContextReply;

/// Name of the variable in the environment that says how many paths queue pairs use at most.
pub const LIMIT: &str = "VRDMA_MULTIPATH";

/// How many paths are wanted at most, by the value of [`LIMIT`]. `None` if it is not a number.
pub fn most_paths(value: Option<&OsStr>) -> Option<u32> {
    let Some(value) = value else { return Some(u32::MAX) };
    let digits = value.to_str().filter(|v| !v.is_empty() && v.bytes().all(|b| b.is_ascii_digit()))?;
    // What is too large for a number is more than any device has.
    Some(digits.parse().unwrap_or(u32::MAX))
}

/// The same, by the environment of this process. What is not a number is told on stderr, once, and means all paths.
pub fn most_paths_wanted() -> u32 {
    static TOLD: Once = Once::new();
    let value = std::env::var_os(LIMIT);
    most_paths(value.as_deref()).unwrap_or_else(|| {
        // Where nobody reads stderr, nobody is told.
        TOLD.call_once(|| {
            let value = value.unwrap_or_default();
            let value = value.display();
            let _ = writeln!(
                io::stderr(),
                "libvrdma: {LIMIT}={value} is not a number of paths (0 to 16): queue pairs use all that their device has"
            );
        });
        u32::MAX
    })
}

/// What a device has for queue pairs with several paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// The longest message that there is.
    pub max_message_bytes: u32,
    /// Most paths of a queue pair.
    pub paths: u32,
    /// The device has more.
    pub is_limited: bool,
    /// Whether sends can be split.
    pub steers: bool,
}

impl Offer {
    /// What the device has, if queue pairs can have several paths, and that is wanted.
    pub fn of(reply: &UserContextReply, most_paths: u32) -> Option<Self> {
        (most_paths.min(reply.paths) > 1).then_some(Self {
            max_message_bytes: reply.max_msg_bytes,
            paths: reply.paths.min(most_paths),
            is_limited: most_paths < reply.paths,
            steers: reply.features & FEATURE_STEER != 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_with_one_path_and_a_limit_of_one_leave_all_as_it_was() {
        let reply = |paths| UserContextReply { paths, max_msg_bytes: 9, ..UserContextReply::ZERO };
        let offer = |features, most| Offer::of(&UserContextReply { features, ..reply(4) }, most);
        let expected =
            |paths, is_limited, steers| Some(Offer { max_message_bytes: 9, paths, is_limited, steers });
        assert_eq!([0, 1].map(|paths| Offer::of(&reply(paths), u32::MAX)), [None; 2]);
        assert_eq!([0, 1].map(|most| offer(FEATURE_STEER, most)), [None; 2]);
        assert_eq!(offer(0, 2), expected(2, true, false));
        assert_eq!(offer(FEATURE_STEER, 3), expected(3, true, true));
        assert_eq!([4, 5, 16, u32::MAX].map(|most| offer(0, most)), [expected(4, false, false); 4]);
    }

    #[test]
    fn the_environment_limits_paths_by_a_number() {
        let most = |value: &str| most_paths(Some(OsStr::new(value)));
        assert_eq!(most_paths(None), Some(u32::MAX));
        assert_eq!(["0", "1", "2", "16", "017", "99"].map(most), [0, 1, 2, 16, 17, 99].map(Some));
        assert_eq!(most("99999999999"), Some(u32::MAX));
        assert_eq!(["", "all", "-1", "+2", " 2", "2 ", "0x4", "4,5", "\u{0664}"].map(most), [None; 9]);
        use std::os::unix::ffi::OsStrExt;
        assert_eq!(most_paths(Some(OsStr::from_bytes(b"\xff"))), None);
    }
}
