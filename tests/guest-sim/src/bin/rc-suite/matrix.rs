//! What the suite covers: completion statuses and operations, each on one host and between two.

use guest_sim::suite::{Pair, Placement};
use vrdma_abi::ring;

use crate::Test;

/// Something that must be tested in both placements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cell {
    /// A completion status.
    Status(u8),
    /// A send operation.
    Op(u8),
}

impl Cell {
    /// Whether it happened on either side of a pair.
    pub fn was_seen(self, pair: &Pair) -> bool {
        [&pair.a, &pair.b].iter().any(|side| match self {
            Cell::Status(status) => side.ctx.seen().status(status),
            Cell::Op(opcode) => side.ctx.seen().operation(opcode),
        })
    }
}

/// Completion statuses that a reliable connection can give, with their names in the verbs.
const STATUSES: &[(u8, &str)] = &[
    (ring::WC_SUCCESS, "IBV_WC_SUCCESS"),
    (ring::WC_LOC_LEN_ERR, "IBV_WC_LOC_LEN_ERR"),
    (ring::WC_LOC_QP_OP_ERR, "IBV_WC_LOC_QP_OP_ERR"),
    (ring::WC_LOC_PROT_ERR, "IBV_WC_LOC_PROT_ERR"),
    (ring::WC_WR_FLUSH_ERR, "IBV_WC_WR_FLUSH_ERR"),
    (ring::WC_MW_BIND_ERR, "IBV_WC_MW_BIND_ERR"),
    (ring::WC_BAD_RESP_ERR, "IBV_WC_BAD_RESP_ERR"),
    (ring::WC_LOC_ACCESS_ERR, "IBV_WC_LOC_ACCESS_ERR"),
    (ring::WC_REM_INV_REQ_ERR, "IBV_WC_REM_INV_REQ_ERR"),
    (ring::WC_REM_ACCESS_ERR, "IBV_WC_REM_ACCESS_ERR"),
    (ring::WC_REM_OP_ERR, "IBV_WC_REM_OP_ERR"),
    (ring::WC_RETRY_EXC_ERR, "IBV_WC_RETRY_EXC_ERR"),
    (ring::WC_RNR_RETRY_EXC_ERR, "IBV_WC_RNR_RETRY_EXC_ERR"),
];

/// Statuses of the verbs that no reliable connection of this device can give, and why.
const NEVER: &[(&str, &str)] = &[
    ("IBV_WC_LOC_EEC_OP_ERR", "reliable datagrams only"),
    ("IBV_WC_LOC_RDD_VIOL_ERR", "reliable datagrams only"),
    ("IBV_WC_REM_INV_RD_REQ_ERR", "reliable datagrams only"),
    ("IBV_WC_REM_ABORT_ERR", "datagrams, or unreliable connections with a shared receive queue, only"),
    ("IBV_WC_INV_EECN_ERR", "reliable datagrams only"),
    ("IBV_WC_INV_EEC_STATE_ERR", "reliable datagrams only"),
    ("IBV_WC_FATAL_ERR", "a fault of an RNIC's own; ours has none that it survives"),
    ("IBV_WC_RESP_TIMEOUT_ERR", "reliable datagrams only"),
    ("IBV_WC_GENERAL_ERR", "a fault of an RNIC's own; ours has none that it survives"),
    ("IBV_WC_TM_ERR", "tag matching is not supported"),
    ("IBV_WC_TM_RNDV_INCOMPLETE", "tag matching is not supported"),
];

const OPS: &[(u8, &str)] = &[
    (ring::SEND_OP_SEND, "SEND"),
    (ring::SEND_OP_SEND_IMM, "SEND_WITH_IMM"),
    (ring::SEND_OP_RDMA_WRITE, "RDMA_WRITE"),
    (ring::SEND_OP_RDMA_WRITE_IMM, "RDMA_WRITE_WITH_IMM"),
    (ring::SEND_OP_RDMA_READ, "RDMA_READ"),
    (ring::SEND_OP_CMP_SWAP, "ATOMIC_CMP_AND_SWP"),
    (ring::SEND_OP_FETCH_ADD, "ATOMIC_FETCH_AND_ADD"),
    (ring::SEND_OP_BIND_MW, "BIND_MW"),
    (ring::SEND_OP_LOCAL_INV, "LOCAL_INV"),
    (ring::SEND_OP_SEND_INV, "SEND_WITH_INV"),
];

/// Cells that no test can fill.
const EXCEPTIONS: &[(Cell, Placement, &str)] = &[(
    Cell::Status(ring::WC_BAD_RESP_ERR),
    Placement::Local,
    "impossible: there are no response packets on one host",
)];

/// Prints the matrix. Returns whether no cell is empty.
pub fn print(tests: &[Test]) -> bool {
    println!(
        "RC suite, {} tests. What each completion status and each operation is provoked by:\n",
        tests.len()
    );
    println!("{:<26} {:<54} remote", "", "local");
    let mut complete = true;
    let statuses = STATUSES.iter().map(|&(s, name)| (Cell::Status(s), name));
    let ops = OPS.iter().map(|&(o, name)| (Cell::Op(o), name));
    for (cell, name) in statuses.chain(ops) {
        let texts = Placement::ALL.map(|placement| text(tests, cell, placement));
        complete &= texts.iter().all(Option::is_some);
        let [local, remote] = texts.map(|t| t.unwrap_or_else(|| "EMPTY".into()));
        println!("{name:<26} {local:<54} {remote}");
    }
    println!("\nStatuses that a reliable connection of this device cannot give:\n");
    for (name, why) in NEVER {
        println!("{name:<26} {why}");
    }
    complete
}

fn text(tests: &[Test], cell: Cell, placement: Placement) -> Option<String> {
    let mut names = tests
        .iter()
        .filter(|t| t.covers.contains(&cell) && t.placements.contains(&placement))
        .map(|t| t.name);
    if let Some(first) = names.next() {
        return Some(match names.count() {
            0 => first.to_owned(),
            more => format!("{first} (+{more})"),
        });
    }
    EXCEPTIONS.iter().find(|(c, p, _)| *c == cell && *p == placement).map(|(_, _, why)| format!("({why})"))
}

#[cfg(test)]
mod tests {
    #[test]
    fn no_cell_is_empty() {
        assert!(super::print(&crate::all_tests()));
    }

    #[test]
    fn the_bad_links_tests_exist() {
        let tests = crate::all_tests();
        for name in crate::ON_OTHER_LINKS {
            assert!(tests.iter().any(|t| t.name == *name), "{name}");
        }
    }

    #[test]
    fn names_are_unique() {
        let mut names: Vec<_> = crate::all_tests().iter().map(|t| t.name).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}
