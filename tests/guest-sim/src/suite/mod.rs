//! What the test programs share: a cluster with guests in it, pairs of connected queue pairs, and a runner.

mod datagram;
mod pair;
mod runner;
mod victim;
mod world;

pub use datagram::{DatagramEnd, Received};
pub use pair::{Conn, Pair, Placement, Setup, Side};
pub use runner::Runner;
pub use victim::Victims;
pub use world::World;

use std::path::PathBuf;

use vrdma_abi::ring::{self, Cqe};

use crate::{Layout, VnicSpec};

/// Where masqd and masqctl are if nobody says otherwise: beside this program.
pub fn programs() -> PathBuf {
    let own = std::env::current_exe().unwrap_or_default();
    own.parent().map(PathBuf::from).unwrap_or_default()
}

/// The suites' layout: that of [`Layout::default`], and for each tenant two more vNICs whose guests come and go, one on each host.
pub fn layout() -> Layout {
    let mut layout = Layout::default();
    for (vpc, names) in [("blue", ["blue-4", "blue-5"]), ("red", ["red-4", "red-5"])] {
        for (n, name) in (4..).zip(names) {
            layout.vnics.push(VnicSpec { name, vpc, host: n - 3, address: [192, 168, 0, n].into() });
        }
    }
    layout
}

/// Numbers that look random and are the same in every run.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// A sequence of its own for each seed.
    pub fn new(seed: u64) -> Self {
        Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// The next number.
    pub fn next_u64(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// A number below `end`, which is not 0.
    pub fn below(&mut self, end: u64) -> u64 {
        // The low bits of this generator are its worst.
        (self.next_u64() >> 11) % end
    }

    /// One of several.
    pub fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize]
    }

    /// Some bytes.
    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut data = Vec::with_capacity(len + 8);
        while data.len() < len {
            data.extend_from_slice(&self.next_u64().to_le_bytes());
        }
        data.truncate(len);
        data
    }
}

/// Bytes that differ from place to place and from seed to seed.
pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    Rng::new(seed).bytes(len)
}

/// Checks that two byte strings are equal; tells where they differ, not all that they hold.
///
/// # Panics
/// When they differ.
#[track_caller]
pub fn assert_same(got: &[u8], want: &[u8], what: &str) {
    assert_eq!(got.len(), want.len(), "{what}: length");
    if let Some(at) = (0..got.len()).find(|&k| got[k] != want[k]) {
        let wrong = (0..got.len()).filter(|&k| got[k] != want[k]).count();
        panic!(
            "{what}: {wrong} of {} bytes differ, first at {at}: {:#x}, not {:#x}",
            got.len(),
            got[at],
            want[at]
        );
    }
}

/// Checks a completion's status.
///
/// # Panics
/// When it is another.
#[track_caller]
pub fn assert_status(cqe: &Cqe, status: u8) {
    assert!(
        cqe.status == status,
        "status {} (vendor error {}), not {}: {cqe:?}",
        status_name(cqe.status),
        cqe.vendor_err,
        status_name(status)
    );
}

/// The verbs' name of a completion status.
pub fn status_name(status: u8) -> &'static str {
    match status {
        ring::WC_SUCCESS => "SUCCESS",
        ring::WC_LOC_LEN_ERR => "LOC_LEN_ERR",
        ring::WC_LOC_QP_OP_ERR => "LOC_QP_OP_ERR",
        ring::WC_LOC_PROT_ERR => "LOC_PROT_ERR",
        ring::WC_WR_FLUSH_ERR => "WR_FLUSH_ERR",
        ring::WC_MW_BIND_ERR => "MW_BIND_ERR",
        ring::WC_BAD_RESP_ERR => "BAD_RESP_ERR",
        ring::WC_LOC_ACCESS_ERR => "LOC_ACCESS_ERR",
        ring::WC_REM_INV_REQ_ERR => "REM_INV_REQ_ERR",
        ring::WC_REM_ACCESS_ERR => "REM_ACCESS_ERR",
        ring::WC_REM_OP_ERR => "REM_OP_ERR",
        ring::WC_RETRY_EXC_ERR => "RETRY_EXC_ERR",
        ring::WC_RNR_RETRY_EXC_ERR => "RNR_RETRY_EXC_ERR",
        ring::WC_REM_ABORT_ERR => "REM_ABORT_ERR",
        ring::WC_FATAL_ERR => "FATAL_ERR",
        ring::WC_GENERAL_ERR => "GENERAL_ERR",
        _ => "unknown",
    }
}
