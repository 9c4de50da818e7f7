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
    check!(c, ibv_ah sized (), { context, pd, handle });
    check!(c, ibv_ah_attr sized (), { grh, dlid, sl, src_path_bits, static_rate, is_global, port_num });
    check!(c, ibv_global_route sized (), { dgid, flow_label, sgid_index, hop_limit, traffic_class });
    check!(c, ibv_mw sized (), { context, pd, rkey, handle });
    check!(c, ibv_mw_bind sized (), { wr_id, send_flags, bind_info });
    check!(c, ibv_mw_bind_info sized (), { mr, addr, length, mw_access_flags });
    check!(c, ibv_xrcd sized (), { context });
    check!(c, ibv_srq sized (), { context, srq_context, pd, handle, mutex, cond, events_completed });
    check!(c, ibv_srq_attr sized (), { max_wr, max_sge, srq_limit });
    check!(c, ibv_srq_init_attr sized (), { srq_context, attr });
    check!(c, ibv_srq_init_attr_ex sized (), {
        srq_context, attr, comp_mask, srq_type, pd, xrcd, cq, tm_cap
    });
    check!(c, ibv_qp_init_attr_ex sized (), {
        qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all, comp_mask, pd, xrcd, create_flags, max_tso_header,
        rwq_ind_tbl, rx_hash_conf, source_qpn, send_ops_flags
    });
    check!(c, ibv_qp_open_attr sized (), { comp_mask, qp_num, xrcd, qp_context, qp_type });
    // The size grew when wr_flush came.
    check!(c, ibv_qp_ex, {
        qp_base, comp_mask, wr_id, wr_flags, wr_atomic_cmp_swp, wr_atomic_fetch_add, wr_bind_mw, wr_local_inv, wr_rdma_read,
        wr_rdma_write, wr_rdma_write_imm, wr_send, wr_send_imm, wr_send_inv, wr_send_tso, wr_set_ud_addr, wr_set_xrc_srqn,
        wr_set_inline_data, wr_set_inline_data_list, wr_set_sge, wr_set_sge_list, wr_start, wr_complete, wr_abort,
        wr_atomic_write
    });
    check!(c, ibv_data_buf sized (), { addr, length });
    check!(c, ibv_cq_init_attr_ex sized (), {
        cqe, cq_context, channel, comp_vector, wc_flags, comp_mask, flags, parent_domain
    });
    check!(c, ibv_poll_cq_attr sized (), { comp_mask });
    check!(c, ibv_cq_ex sized (), {
        comp_mask, status, wr_id, start_poll, next_poll, end_poll, read_opcode, read_vendor_err, read_byte_len,
        read_imm_data, read_qp_num, read_src_qp, read_wc_flags, read_slid, read_sl, read_dlid_path_bits,
        read_completion_ts, read_cvlan, read_flow_tag, read_tm_info, read_completion_wallclock_ns
    });
    check!(c, ibv_device_attr_ex, { completion_timestamp_mask, hca_core_clock });
    check!(c, ibv_async_event sized (), { element, event_type });
    for (field, offset) in [
        ("rdma.remote_addr", offset_of!(rdma_wr, remote_addr)),
        ("rdma.rkey", offset_of!(rdma_wr, rkey)),
        ("atomic.remote_addr", offset_of!(atomic_wr, remote_addr)),
        ("atomic.compare_add", offset_of!(atomic_wr, compare_add)),
        ("atomic.swap", offset_of!(atomic_wr, swap)),
        ("atomic.rkey", offset_of!(atomic_wr, rkey)),
        ("ud.ah", offset_of!(ud_wr, ah)),
        ("ud.remote_qpn", offset_of!(ud_wr, remote_qpn)),
        ("ud.remote_qkey", offset_of!(ud_wr, remote_qkey)),
    ] {
        let offset = offset_of!(ibv_send_wr, wr) + offset;
        writeln!(c, "_Static_assert(offsetof(struct ibv_send_wr, wr.{field}) == {offset}, \"{field}\");")
            .unwrap();
    }
    let bind_mw = |field| offset_of!(ibv_send_wr, bind_mw) + field;
    for (field, offset) in [
        ("qp_type.xrc.remote_srqn", offset_of!(ibv_send_wr, remote_srqn)),
        ("bind_mw.mw", bind_mw(offset_of!(bind_mw_wr, mw))),
        ("bind_mw.rkey", bind_mw(offset_of!(bind_mw_wr, rkey))),
        ("bind_mw.bind_info", bind_mw(offset_of!(bind_mw_wr, bind_info))),
    ] {
        writeln!(c, "_Static_assert(offsetof(struct ibv_send_wr, {field}) == {offset}, \"{field}\");")
            .unwrap();
    }
    macro_rules! values {
        ($($name:ident),* $(,)?) => {
            $( writeln!(c, "_Static_assert({0} == {1}, \"{0}\");", stringify!($name), $name).unwrap(); )*
        };
    }
    values! {
        IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD, IBV_QPT_XRC_SEND, IBV_QPT_XRC_RECV, IBV_QP_INIT_ATTR_PD, IBV_QP_INIT_ATTR_XRCD,
        IBV_QP_INIT_ATTR_CREATE_FLAGS, IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, IBV_QP_EX_WITH_RDMA_WRITE,
        IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM, IBV_QP_EX_WITH_SEND, IBV_QP_EX_WITH_SEND_WITH_IMM, IBV_QP_EX_WITH_RDMA_READ,
        IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP, IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD, IBV_QP_EX_WITH_LOCAL_INV,
        IBV_QP_EX_WITH_BIND_MW, IBV_QP_EX_WITH_SEND_WITH_INV, IBV_SRQT_BASIC, IBV_SRQT_XRC, IBV_SRQ_INIT_ATTR_TYPE,
        IBV_SRQ_INIT_ATTR_PD, IBV_SRQ_INIT_ATTR_XRCD, IBV_SRQ_INIT_ATTR_CQ, IBV_CQ_INIT_ATTR_MASK_FLAGS,
        IBV_CREATE_CQ_ATTR_SINGLE_THREADED, IBV_WC_EX_WITH_BYTE_LEN, IBV_WC_EX_WITH_IMM, IBV_WC_EX_WITH_QP_NUM,
        IBV_WC_EX_WITH_SRC_QP, IBV_WC_EX_WITH_SLID, IBV_WC_EX_WITH_SL, IBV_WC_EX_WITH_DLID_PATH_BITS,
        IBV_WC_EX_WITH_COMPLETION_TIMESTAMP, IBV_MW_TYPE_1, IBV_MW_TYPE_2, IBV_ACCESS_REMOTE_WRITE, IBV_ACCESS_REMOTE_READ,
        IBV_ACCESS_REMOTE_ATOMIC, IBV_ACCESS_ZERO_BASED, IBV_REREG_MR_CHANGE_TRANSLATION, IBV_QPS_UNKNOWN, IBV_WR_LOCAL_INV,
        IBV_WR_BIND_MW, IBV_WR_SEND_WITH_INV, IBV_WC_GRH, IBV_WC_WITH_INV, IBV_QP_STATE, IBV_QPS_RESET, IBV_QPS_RTR, IBV_QPS_RTS,
        IBV_QPS_ERR, IBV_SEND_FENCE, IBV_SEND_SIGNALED, IBV_SEND_SOLICITED, IBV_SEND_INLINE, IBV_WR_RDMA_WRITE,
        IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_SEND, IBV_WR_SEND_WITH_IMM, IBV_WR_RDMA_READ, IBV_WR_ATOMIC_CMP_AND_SWP,
        IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WC_WITH_IMM, IBV_EVENT_QP_FATAL, IBV_EVENT_QP_REQ_ERR, IBV_EVENT_QP_ACCESS_ERR,
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
