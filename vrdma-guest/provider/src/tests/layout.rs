//! The structures of verbs.h are declared as the header has them: a C compiler checks size and offsets.

use std::fmt::Write as _;
use std::io::Write as _;
use std::mem::{offset_of, size_of};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::verbs::*;

/// Adds assertions for a structure and its fields: Rust's path and, where it differs, C's.
macro_rules! check {
    ($c:ident, $name:ident $(sized $sized:tt)?, { $($field:ident),* $(,)? }) => {
        $( let _ = $sized; writeln!($c, "_Static_assert(sizeof(struct {0}) == {1}, \"{0}\");", stringify!($name), size_of::<$name>()).unwrap(); )?
        $( writeln!(
            $c, "_Static_assert(offsetof(struct {0}, {1}) == {2}, \"{0}.{1}\");",
            stringify!($name), stringify!($field), offset_of!($name, $field)
        ).unwrap(); )*
    };
}

fn assertions() -> String {
    let mut c = String::from("#include <stddef.h>\n#include <infiniband/verbs.h>\n");
    check!(c, ibv_device sized (), { node_type, transport_type, name, dev_name, dev_path, ibdev_path });
    check!(c, ibv_context sized (), { device, ops, cmd_fd, async_fd, num_comp_vectors, mutex, abi_compat });
    check!(c, ibv_pd sized (), { context, handle });
    check!(c, ibv_mr sized (), { context, pd, addr, length, handle, lkey, rkey });
    check!(c, ibv_cq sized (), {
        context, channel, cq_context, handle, cqe, mutex, cond, comp_events_completed, async_events_completed
    });
    check!(c, ibv_qp sized (), {
        context, qp_context, pd, send_cq, recv_cq, srq, handle, qp_num, state, qp_type, mutex, cond, events_completed
    });
    check!(c, ibv_comp_channel sized (), { context, fd, refcnt });
    check!(c, ibv_sge sized (), { addr, length, lkey });
    check!(c, ibv_send_wr sized (), {
        wr_id, next, sg_list, num_sge, opcode, send_flags, imm_data, wr
    });
    check!(c, ibv_recv_wr sized (), { wr_id, next, sg_list, num_sge });
    check!(c, ibv_wc sized (), {
        wr_id, status, opcode, vendor_err, byte_len, imm_data, qp_num, src_qp, wc_flags, pkey_index, slid, sl, dlid_path_bits
    });
    check!(c, ibv_qp_cap sized (), {
        max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data
    });
    check!(c, ibv_qp_init_attr sized (), {
        qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all
    });
    check!(c, ibv_qp_attr, { qp_state });
    check!(c, ibv_async_event sized (), { element, event_type });
    for (field, offset) in [
        ("rdma.remote_addr", offset_of!(rdma_wr, remote_addr)),
        ("rdma.rkey", offset_of!(rdma_wr, rkey)),
        ("atomic.remote_addr", offset_of!(atomic_wr, remote_addr)),
        ("atomic.compare_add", offset_of!(atomic_wr, compare_add)),
        ("atomic.swap", offset_of!(atomic_wr, swap)),
        ("atomic.rkey", offset_of!(atomic_wr, rkey)),
    ] {
        let offset = offset_of!(ibv_send_wr, wr) + offset;
        writeln!(c, "_Static_assert(offsetof(struct ibv_send_wr, wr.{field}) == {offset}, \"{field}\");")
            .unwrap();
    }
    for (name, value) in [
        ("IBV_QP_STATE", IBV_QP_STATE),
        ("IBV_QPS_RESET", IBV_QPS_RESET),
        ("IBV_QPS_RTS", IBV_QPS_RTS),
        ("IBV_QPS_ERR", IBV_QPS_ERR),
        ("IBV_SEND_FENCE", IBV_SEND_FENCE as i32),
        ("IBV_SEND_SIGNALED", IBV_SEND_SIGNALED as i32),
        ("IBV_SEND_SOLICITED", IBV_SEND_SOLICITED as i32),
        ("IBV_SEND_INLINE", IBV_SEND_INLINE as i32),
        ("IBV_WR_RDMA_WRITE", IBV_WR_RDMA_WRITE),
        ("IBV_WR_RDMA_WRITE_WITH_IMM", IBV_WR_RDMA_WRITE_WITH_IMM),
        ("IBV_WR_SEND", IBV_WR_SEND),
        ("IBV_WR_SEND_WITH_IMM", IBV_WR_SEND_WITH_IMM),
        ("IBV_WR_RDMA_READ", IBV_WR_RDMA_READ),
        ("IBV_WR_ATOMIC_CMP_AND_SWP", IBV_WR_ATOMIC_CMP_AND_SWP),
        ("IBV_WR_ATOMIC_FETCH_AND_ADD", IBV_WR_ATOMIC_FETCH_AND_ADD),
        ("IBV_WC_WITH_IMM", IBV_WC_WITH_IMM as i32),
        ("IBV_EVENT_QP_FATAL", IBV_EVENT_QP_FATAL),
        ("IBV_EVENT_QP_REQ_ERR", IBV_EVENT_QP_REQ_ERR),
        ("IBV_EVENT_QP_ACCESS_ERR", IBV_EVENT_QP_ACCESS_ERR),
    ] {
        writeln!(c, "_Static_assert({name} == {value}, \"{name}\");").unwrap();
    }
    c
}

/// Whether a C compiler accepts the source.
fn compiles(source: &str) -> bool {
    let mut compiler = Command::new("cc")
        .args(["-std=gnu11", "-fsyntax-only", "-x", "c", "-"])
        .stdin(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("a C compiler is installed: Rust links with it");
    compiler.stdin.take().unwrap().write_all(source.as_bytes()).unwrap();
    compiler.wait().unwrap().success()
}

#[test]
fn structures_are_those_of_the_header() {
    if !Path::new("/usr/include/infiniband/verbs.h").exists() {
        eprintln!("not checked: libibverbs-dev is not installed");
        return;
    }
    let source = assertions();
    assert!(compiles(&source), "the header says otherwise; compile this to see where:\n{source}");
    // A field that moves is noticed.
    let offset = format!("offsetof(struct ibv_wc, src_qp) == {}", offset_of!(ibv_wc, src_qp));
    let moved = source.replace(&offset, "offsetof(struct ibv_wc, src_qp) == 0");
    assert_ne!(source, moved);
    assert!(!compiles(&moved));
}
