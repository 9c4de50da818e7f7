//! What the two ends tell each other before they are connected: the parameters of all queue pairs at once, over a stream socket.
//!
//! Words are in network byte order. A message is 48 bytes, and 32 more for each path:
//!
//! | bytes | what |
//! |---|---|
//! | 0..4 | "MPV1" |
//! | 4 | number of paths, 1 to 16 |
//! | 5 | largest path MTU: a value of enum ibv_mtu |
//! | 6 | outstanding READs that a queue pair answers |
//! | 7 | 0 |
//! | 8..16 | a random number; the end with the larger one gives odd numbers to its attempts to reopen a path |
//! | 16..28 | memory for probing flows: address and key |
//! | 28..32 | its length |
//! | 32..48 | 0 |
//! | 48.. | for each path: GID (16), queue pair (4), first PSN (4), LID (2), 0 (6) |

use std::io::{self, Read, Write};

use mp_core::endpoint::control::PathParams;
use mp_core::split::Place;

/// The most paths that a connection can have.
pub const PATHS_MAX: usize = 16;

const MAGIC: &[u8; 4] = b"MPV1";
const HEAD_BYTES: usize = 48;
const PATH_BYTES: usize = 32;

/// A queue pair, and where it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PathAddress {
    /// Its GID.
    pub gid: [u8; 16],
    /// Its LID, on InfiniBand.
    pub lid: u16,
    /// The queue pair.
    pub params: PathParams,
}

/// One end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Its paths.
    pub paths: Vec<PathAddress>,
    /// Its port's active MTU: a value of enum ibv_mtu.
    pub mtu: u8,
    /// Outstanding READs that a queue pair answers.
    pub responder_reads: u8,
    /// A random number.
    pub nonce: u64,
    /// Memory that probing flows may be written to, and its length.
    pub probe: (Place, u32),
}

impl Hello {
    /// The message's bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; HEAD_BYTES + self.paths.len() * PATH_BYTES];
        bytes[..4].copy_from_slice(MAGIC);
        bytes[4] = self.paths.len() as u8; // at most 16
        (bytes[5], bytes[6]) = (self.mtu, self.responder_reads);
        bytes[8..16].copy_from_slice(&self.nonce.to_be_bytes());
        bytes[16..24].copy_from_slice(&self.probe.0.addr.to_be_bytes());
        bytes[24..28].copy_from_slice(&self.probe.0.key.to_be_bytes());
        bytes[28..32].copy_from_slice(&self.probe.1.to_be_bytes());
        for (to, path) in bytes[HEAD_BYTES..].chunks_exact_mut(PATH_BYTES).zip(&self.paths) {
            to[..16].copy_from_slice(&path.gid);
            to[16..20].copy_from_slice(&path.params.qpn.to_be_bytes());
            to[20..24].copy_from_slice(&path.params.psn.to_be_bytes());
            to[24..26].copy_from_slice(&path.lid.to_be_bytes());
        }
        bytes
    }

    /// Reads a message. InvalidData if it is none, or of another version.
    pub fn read(from: &mut impl Read) -> io::Result<Self> {
        let mut head = [0; HEAD_BYTES];
        from.read_exact(&mut head)?;
        let invalid =
            |what| io::Error::new(io::ErrorKind::InvalidData, format!("the peer's parameters: {what}"));
        if !head.starts_with(MAGIC) {
            return Err(invalid("not of this library, or of another version"));
        }
        let count = usize::from(head[4]);
        if !(1..=PATHS_MAX).contains(&count) {
            return Err(invalid("a number of paths that is not 1 to 16"));
        }
        if !(1..=5).contains(&head[5]) {
            return Err(invalid("no path MTU"));
        }
        let mut rest = vec![0; count * PATH_BYTES];
        from.read_exact(&mut rest)?;
        let word = |bytes: &[u8], at: usize| {
            u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        let long = |at: usize| u64::from(word(&head, at)) << 32 | u64::from(word(&head, at + 4));
        let mut paths = Vec::new();
        for bytes in rest.chunks_exact(PATH_BYTES) {
            let mut gid = [0; 16];
            gid.copy_from_slice(&bytes[..16]);
            let params = PathParams { qpn: word(bytes, 16), psn: word(bytes, 20) };
            if params.qpn >= 1 << 24 || params.psn >= 1 << 24 {
                return Err(invalid("a queue pair or PSN of more than 24 bits"));
            }
            paths.push(PathAddress { gid, lid: u16::from_be_bytes([bytes[24], bytes[25]]), params });
        }
        Ok(Self {
            paths,
            mtu: head[5],
            responder_reads: head[6],
            nonce: long(8),
            probe: (Place { addr: long(16), key: word(&head, 24) }, word(&head, 28)),
        })
    }

    /// Tells the peer, and returns what it tells.
    pub fn exchange(&self, stream: &mut (impl Read + Write)) -> io::Result<Self> {
        stream.write_all(&self.to_bytes())?;
        stream.flush()?;
        let peer = Self::read(stream)?;
        if peer.nonce == self.nonce {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "the peer has sent back what it was told",
            ));
        }
        Ok(peer)
    }
}

/// Returns when both ends have come here.
pub fn meet(stream: &mut (impl Read + Write)) -> io::Result<()> {
    const READY: [u8; 1] = *b"R";
    stream.write_all(&READY)?;
    stream.flush()?;
    let mut answer = [0];
    stream.read_exact(&mut answer)?;
    match answer {
        READY => Ok(()),
        _ => Err(io::Error::new(io::ErrorKind::InvalidData, "the peer did not connect")),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    fn hello(paths: usize) -> Hello {
        let path = |i: usize| PathAddress {
            gid: [i as u8; 16],
            lid: 0x102,
            params: PathParams { qpn: 0x30405, psn: 0x60708 + i as u32 },
        };
        Hello {
            paths: (0..paths).map(path).collect(),
            mtu: 5,
            responder_reads: 16,
            nonce: 0x0102030405060708,
            probe: (Place { addr: 0x1112131415161718, key: 0x21222324 }, 0x80000),
        }
    }

    #[test]
    fn bytes_are_as_written_down() {
        let bytes = hello(2).to_bytes();
        let mut expected = b"MPV1\x02\x05\x10\x00\x01\x02\x03\x04\x05\x06\x07\x08".to_vec();
        expected.extend(*b"\x11\x12\x13\x14\x15\x16\x17\x18\x21\x22\x23\x24\x00\x08\x00\x00");
        expected.extend([0; 16]);
        for i in 0..2 {
            expected.extend([i; 16]);
            expected.extend([0, 3, 4, 5, 0, 6, 7, 8 + i, 1, 2, 0, 0, 0, 0, 0, 0]);
        }
        assert_eq!(bytes, expected);
        assert_eq!(Hello::read(&mut &bytes[..]).ok(), Some(hello(2)));
    }

    #[test]
    fn what_is_no_message_is_refused() {
        let good = hello(2).to_bytes();
        for (at, value) in [
            (0, b'X'),
            (3, b'2'),
            (4, 0),
            (4, 17),
            (5, 0),
            (5, 6),
            (HEAD_BYTES + 16, 1),
            (HEAD_BYTES + 20, 1),
        ] {
            let mut bad = good.clone();
            bad[at] = value;
            // A number of paths beyond what follows is an end that comes too early: there is more than enough here.
            bad.resize(1000, 0);
            let error = Hello::read(&mut &bad[..]).map_err(|error| error.kind());
            assert_eq!(error, Err(io::ErrorKind::InvalidData), "{at}");
        }
        for length in 0..good.len() {
            let error = Hello::read(&mut &good[..length]).map_err(|error| error.kind());
            assert_eq!(error, Err(io::ErrorKind::UnexpectedEof), "{length}");
        }
    }

    #[test]
    fn ends_exchange_and_meet() {
        let (mut a, mut b) = UnixStream::pair().expect("a socket pair");
        let other = Hello { nonce: 1, ..hello(16) };
        let theirs = other.clone();
        let peer = std::thread::spawn(move || {
            let heard = theirs.exchange(&mut b)?;
            meet(&mut b).map(|()| heard)
        });
        assert_eq!(hello(2).exchange(&mut a).ok(), Some(other));
        assert!(meet(&mut a).is_ok());
        assert_eq!(peer.join().ok().and_then(Result::ok), Some(hello(2)));
        // A peer that only says what it hears.
        let (mut a, mut b) = UnixStream::pair().expect("a socket pair");
        assert!(b.write_all(&hello(2).to_bytes()).is_ok());
        assert!(hello(2).exchange(&mut a).is_err());
        assert!(b.write_all(b"X").is_ok());
        assert!(meet(&mut a).is_err());
    }
}
