//! What two ends tell each other: SENDs of 40 bytes, words in network byte order.

use crate::split::Place;

/// Bytes of a control message.
pub const CONTROL_BYTES: usize = 40;

/// A queue pair, as its peer must know it. What does not change with the queue pair, as its GID, was told when the connection was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PathParams {
    /// Its number.
    pub qpn: u32,
    /// The first PSN that it sends.
    pub psn: u32,
}

/// One end to the other. Each may come twice, when the path that carries it fails: numbers tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// A receive has been posted: SENDs go there.
    Grant {
        /// The SEND that it is for, counted from 0.
        sequence: u32,
        /// Bytes of the buffer.
        bytes: u32,
        /// The buffer, for remote writes.
        place: Place,
    },
    /// A SEND's data are in its receive.
    Done {
        /// Which SEND, counted from 0.
        sequence: u32,
        /// Its length.
        bytes: u32,
    },
    /// A path has failed here: its queue pair is closed, and this is the new one. The other end shall do the same.
    Reopen {
        /// The path's number.
        path: u32,
        /// The attempt.
        round: u32,
        /// The new queue pair.
        params: PathParams,
        /// So many SENDs have been received.
        received: u32,
    },
    /// The answer to the attempt of the same number.
    Reopened {
        /// The path's number.
        path: u32,
        /// The attempt.
        round: u32,
        /// The new queue pair.
        params: PathParams,
        /// So many SENDs have been received.
        received: u32,
    },
    /// The path that this comes by works.
    Ping,
    /// The connection has failed, with this status.
    Abort {
        /// A value of enum ibv_wc_status.
        status: u32,
    },
    /// All that was posted is complete, and nothing more comes.
    Bye,
}

impl Control {
    /// The message's bytes.
    pub fn to_bytes(&self) -> [u8; CONTROL_BYTES] {
        // Tag, four words and a long one.
        let (tag, words, long) = match *self {
            Self::Grant { sequence, bytes, place } => (1, [sequence, bytes, place.key, 0], place.addr),
            Self::Done { sequence, bytes } => (2, [sequence, bytes, 0, 0], 0),
            Self::Reopen { path, round, params, received } => {
                (3, [path, round, params.qpn, params.psn], u64::from(received))
            }
            Self::Reopened { path, round, params, received } => {
                (4, [path, round, params.qpn, params.psn], u64::from(received))
            }
            Self::Ping => (5, [0; 4], 0),
            Self::Abort { status } => (6, [status, 0, 0, 0], 0),
            Self::Bye => (7, [0; 4], 0),
        };
        let mut bytes = [0; CONTROL_BYTES];
        bytes[..4].copy_from_slice(&u32::to_be_bytes(tag));
        for (to, word) in bytes[4..20].chunks_exact_mut(4).zip(words) {
            to.copy_from_slice(&word.to_be_bytes());
        }
        bytes[24..32].copy_from_slice(&long.to_be_bytes());
        bytes
    }

    /// The message that these bytes are; `None` if they are none.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; CONTROL_BYTES] = bytes.try_into().ok()?;
        let word = |i: usize| u32::from_be_bytes([bytes[i], bytes[i + 1], bytes[i + 2], bytes[i + 3]]);
        let [a, b, c, d] = [word(4), word(8), word(12), word(16)];
        let long = u64::from(word(24)) << 32 | u64::from(word(28));
        let message = match word(0) {
            1 => Self::Grant { sequence: a, bytes: b, place: Place { key: c, addr: long } },
            2 => Self::Done { sequence: a, bytes: b },
            tag @ (3 | 4) => {
                let (path, round, params) = (a, b, PathParams { qpn: c, psn: d });
                let received = u32::try_from(long).ok()?;
                match tag {
                    3 => Self::Reopen { path, round, params, received },
                    _ => Self::Reopened { path, round, params, received },
                }
            }
            5 => Self::Ping,
            6 => Self::Abort { status: a },
            7 => Self::Bye,
            _ => return None,
        };
        // What is not used is zero, so that it can mean something one day.
        (message.to_bytes() == *bytes).then_some(message)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn bytes_are_as_written_down() {
        let grant = Control::Grant {
            sequence: 0x01020304,
            bytes: 0x1000,
            place: Place { key: 0xa0b0c0d0, addr: 0x1122334455667788 },
        };
        let mut bytes = [0; CONTROL_BYTES];
        bytes[3] = 1;
        bytes[4..8].copy_from_slice(&[1, 2, 3, 4]);
        bytes[10] = 0x10;
        bytes[12..16].copy_from_slice(&[0xa0, 0xb0, 0xc0, 0xd0]);
        bytes[24..32].copy_from_slice(&[0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88]);
        assert_eq!(grant.to_bytes(), bytes);
        assert_eq!(Control::from_bytes(&bytes), Some(grant));
        // Of a wrong length, of no known kind, with something where nothing should be.
        assert_eq!(Control::from_bytes(&bytes[1..]), None);
        bytes[3] = 8;
        assert_eq!(Control::from_bytes(&bytes), None);
        bytes[3] = 1;
        bytes[39] = 1;
        assert_eq!(Control::from_bytes(&bytes), None);
    }

    proptest! {
        #[test]
        fn what_is_read_is_what_was_written(tag in 0u32..9, words: [u32; 4], long: u64, zeros: bool) {
            let mut bytes = [0; CONTROL_BYTES];
            bytes[..4].copy_from_slice(&tag.to_be_bytes());
            if !zeros {
                for (to, word) in bytes[4..20].chunks_exact_mut(4).zip(words) {
                    to.copy_from_slice(&word.to_be_bytes());
                }
                bytes[24..32].copy_from_slice(&long.to_be_bytes());
            }
            if let Some(message) = Control::from_bytes(&bytes) {
                prop_assert_eq!(message.to_bytes(), bytes);
            } else {
                prop_assert!(tag == 0 || tag == 8 || !zeros);
            }
        }
    }
}
