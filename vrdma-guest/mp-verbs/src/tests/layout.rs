//! The structures of verbs.h and mp_verbs.h are declared as the headers have them: a C compiler checks size and offsets.

use std::fmt::Write as _;
use std::io::Write as _;
use std::mem::{offset_of, size_of};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::capi::{mp_path_stats, mp_qp_attr, mp_recv_wr, mp_send_wr};
use crate::sys::*;

/// Adds assertions for a structure and its fields.
macro_rules! check {
    ($c:ident, $name:ident $(as $cname:literal)? $(sized $sized:tt)?, { $($field:ident),* $(,)? }) => {
        $( let _ = $sized; writeln!($c, "_Static_assert(sizeof(struct {0}) == {1}, \"{0}\");", stringify!($name), size_of::<$name>()).unwrap(); )?
        $( writeln!(
            $c, "_Static_assert(offsetof(struct {0}, {1}) == {2}, \"{0}.{1}\");",
            stringify!($name), stringify!($field), offset_of!($name, $field)
        ).unwrap(); )*
    };
}

fn assertions() -> String {
    let mut c = String::from("#include <stddef.h>\n#include \"mp_verbs.h\"\n");
    for (i, at) in [
        ("poll_cq", offset_of!(ibv_context_ops, poll_cq)),
        ("req_notify_cq", offset_of!(ibv_context_ops, req_notify_cq)),
        ("post_send", offset_of!(ibv_context_ops, post_send)),
        ("post_recv", offset_of!(ibv_context_ops, post_recv)),
    ] {
        writeln!(c, "_Static_assert(offsetof(struct ibv_context_ops, {i}) == {at}, \"{i}\");").unwrap();
    }
    check!(c, ibv_context_ops sized (), {});
    check!(c, ibv_context, { device, ops, cmd_fd, async_fd, num_comp_vectors });
    check!(c, ibv_pd sized (), { context, handle });
    check!(c, ibv_mr sized (), { context, pd, addr, length, handle, lkey, rkey });
    check!(c, ibv_comp_channel sized (), { context, fd, refcnt });
    check!(c, ibv_cq, { context });
    check!(c, ibv_qp, { context, qp_context, pd, send_cq, recv_cq, srq, handle, qp_num });
    check!(c, ibv_global_route sized (), { dgid, flow_label, sgid_index, hop_limit, traffic_class });
    check!(c, ibv_ah_attr sized (), { grh, dlid, sl, src_path_bits, static_rate, is_global, port_num });
    check!(c, ibv_qp_cap sized (), { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data });
    check!(c, ibv_qp_init_attr sized (), { qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all });
    check!(c, ibv_qp_attr sized (), {
        qp_state, cur_qp_state, path_mtu, path_mig_state, qkey, rq_psn, sq_psn, dest_qp_num, qp_access_flags, cap, ah_attr,
        alt_ah_attr, pkey_index, alt_pkey_index, en_sqd_async_notify, sq_draining, max_rd_atomic, max_dest_rd_atomic,
        min_rnr_timer, port_num, timeout, retry_cnt, rnr_retry, alt_port_num, alt_timeout, rate_limit
    });
    check!(c, ibv_device_attr sized (), {
        max_qp, max_qp_wr, device_cap_flags, max_sge, max_sge_rd, max_cq, max_cqe, max_mr, max_pd, max_qp_rd_atom,
        max_ee_rd_atom, max_res_rd_atom, max_qp_init_rd_atom
    });
    check!(c, ibv_sge sized (), { addr, length, lkey });
    check!(c, ibv_send_wr sized (), { wr_id, next, sg_list, num_sge, opcode, send_flags, imm_data });
    for (field, at) in [
        ("wr.rdma.remote_addr", offset_of!(ibv_send_wr, remote_addr)),
        ("wr.rdma.rkey", offset_of!(ibv_send_wr, rkey)),
    ] {
        writeln!(c, "_Static_assert(offsetof(struct ibv_send_wr, {field}) == {at}, \"{field}\");").unwrap();
    }
    check!(c, ibv_recv_wr sized (), { wr_id, next, sg_list, num_sge });
    check!(c, ibv_wc sized (), {
        wr_id, status, opcode, vendor_err, byte_len, imm_data, qp_num, src_qp, wc_flags, pkey_index, slid, sl, dlid_path_bits
    });
    writeln!(c, "_Static_assert(sizeof(union ibv_gid) == {}, \"ibv_gid\");", size_of::<ibv_gid>()).unwrap();
    // The header declares the newer structure, which begins with the fields of the older one.
    writeln!(c, "#define _compat_ibv_port_attr ibv_port_attr").unwrap();
    check!(c, _compat_ibv_port_attr, {
        state, max_mtu, active_mtu, gid_tbl_len, port_cap_flags, max_msg_sz, bad_pkey_cntr, qkey_viol_cntr, pkey_tbl_len, lid,
        sm_lid, lmc, max_vl_num, sm_sl, subnet_timeout, init_type_reply, active_width, active_speed, phys_state, link_layer, flags
    });
    for (name, value) in [
        ("IBV_QPT_RC", IBV_QPT_RC),
        ("IBV_QPS_INIT", IBV_QPS_INIT),
        ("IBV_QPS_RTR", IBV_QPS_RTR),
        ("IBV_QPS_RTS", IBV_QPS_RTS),
        ("IBV_QPS_ERR", IBV_QPS_ERR),
        ("IBV_QP_STATE", IBV_QP_STATE),
        ("IBV_QP_ACCESS_FLAGS", IBV_QP_ACCESS_FLAGS),
        ("IBV_QP_PKEY_INDEX", IBV_QP_PKEY_INDEX),
        ("IBV_QP_PORT", IBV_QP_PORT),
        ("IBV_QP_AV", IBV_QP_AV),
        ("IBV_QP_PATH_MTU", IBV_QP_PATH_MTU),
        ("IBV_QP_TIMEOUT", IBV_QP_TIMEOUT),
        ("IBV_QP_RETRY_CNT", IBV_QP_RETRY_CNT),
        ("IBV_QP_RNR_RETRY", IBV_QP_RNR_RETRY),
        ("IBV_QP_RQ_PSN", IBV_QP_RQ_PSN),
        ("IBV_QP_MAX_QP_RD_ATOMIC", IBV_QP_MAX_QP_RD_ATOMIC),
        ("IBV_QP_MIN_RNR_TIMER", IBV_QP_MIN_RNR_TIMER),
        ("IBV_QP_SQ_PSN", IBV_QP_SQ_PSN),
        ("IBV_QP_MAX_DEST_RD_ATOMIC", IBV_QP_MAX_DEST_RD_ATOMIC),
        ("IBV_QP_DEST_QPN", IBV_QP_DEST_QPN),
        ("IBV_ACCESS_LOCAL_WRITE", IBV_ACCESS_LOCAL_WRITE as i32),
        ("IBV_ACCESS_REMOTE_WRITE", IBV_ACCESS_REMOTE_WRITE as i32),
        ("IBV_ACCESS_REMOTE_READ", IBV_ACCESS_REMOTE_READ as i32),
        ("IBV_SEND_FENCE", IBV_SEND_FENCE as i32),
        ("IBV_SEND_SIGNALED", IBV_SEND_SIGNALED as i32),
        ("IBV_WR_RDMA_WRITE", IBV_WR_RDMA_WRITE),
        ("IBV_WR_SEND", IBV_WR_SEND),
        ("IBV_WR_RDMA_READ", IBV_WR_RDMA_READ),
        ("IBV_WC_SUCCESS", IBV_WC_SUCCESS),
        ("IBV_WC_SEND", IBV_WC_SEND),
        ("IBV_WC_RDMA_WRITE", IBV_WC_RDMA_WRITE),
        ("IBV_WC_RDMA_READ", IBV_WC_RDMA_READ),
        ("IBV_WC_RECV", IBV_WC_RECV),
        ("IBV_LINK_LAYER_ETHERNET", i32::from(IBV_LINK_LAYER_ETHERNET)),
        // What the core takes for granted.
        ("IBV_WC_LOC_LEN_ERR", mp_core::endpoint::Status::LOC_LEN_ERR.0 as i32),
        ("IBV_WC_WR_FLUSH_ERR", mp_core::endpoint::Status::WR_FLUSH_ERR.0 as i32),
        ("IBV_WC_REM_INV_REQ_ERR", mp_core::endpoint::Status::REM_INV_REQ_ERR.0 as i32),
        ("IBV_WC_RETRY_EXC_ERR", mp_core::endpoint::Status::RETRY_EXC_ERR.0 as i32),
    ] {
        writeln!(c, "_Static_assert({name} == {value}, \"{name}\");").unwrap();
    }

    check!(c, mp_qp_attr sized (), {
        size, paths, gid_index, weight, port, timeout, retry_cnt, scheduler, network, reserved, depth, messages, small_bytes,
        probe_bytes, probe_interval_ms, connect_timeout_ms, chunk_bytes, window_bytes, step_bytes, most_bytes
    });
    check!(c, mp_send_wr sized (), { wr_id, next, opcode, length, addr, mr, remote_addr, rkey });
    check!(c, mp_recv_wr sized (), { wr_id, next, addr, mr, length });
    check!(c, mp_path_stats sized (), { bytes, in_flight_bytes, bytes_per_sec, failures, alive, reserved });
    c
}

fn compiles(program: &str) -> bool {
    let include = concat!(env!("CARGO_MANIFEST_DIR"), "/include");
    let mut compiler = Command::new("cc")
        .args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-I", include, "-xc", "-fsyntax-only", "-"])
        .stdin(Stdio::piped())
        .spawn()
        .expect("a C compiler");
    let written = compiler.stdin.take().expect("a pipe").write_all(program.as_bytes());
    compiler.wait().expect("it ends").success() && written.is_ok()
}

#[test]
fn structures_are_those_of_the_headers() {
    // Without the headers there is nothing to compare with; packages of those who build have them.
    if !Path::new("/usr/include/infiniband/verbs.h").exists() {
        eprintln!("skipped: no infiniband/verbs.h");
        return;
    }
    assert!(compiles(&assertions()));
    let wrong = format!("{}_Static_assert(sizeof(struct mp_qp_attr) == 1, \"\");\n", assertions());
    assert!(!compiles(&wrong), "the check checks nothing");
}

#[test]
fn functions_are_those_of_the_header() {
    let header = include_str!("../../include/mp_verbs.h");
    let source = include_str!("../capi.rs");
    let exported: Vec<_> = source
        .lines()
        .filter_map(|line| line.strip_prefix("pub unsafe extern \"C\" fn "))
        .filter_map(|line| line.split('(').next())
        .collect();
    assert_eq!(exported.len(), 12);
    for name in exported {
        assert!(header.contains(&format!("{name}(")), "{name} is not in the header");
    }
}

#[test]
fn defaults_are_those_of_the_header() {
    let mut attr = std::mem::MaybeUninit::uninit();
    // SAFETY: the function fills in all of it.
    #[allow(unsafe_code)]
    let attr = unsafe {
        crate::capi::mp_qp_attr_init(attr.as_mut_ptr());
        attr.assume_init()
    };
    let header = include_str!("../../include/mp_verbs.h");
    for (field, value) in [
        ("timeout;", u64::from(attr.timeout)),
        ("retry_cnt;", u64::from(attr.retry_cnt)),
        ("depth;", u64::from(attr.depth)),
        ("messages;", u64::from(attr.messages)),
        ("probe_interval_ms;", u64::from(attr.probe_interval_ms)),
        ("connect_timeout_ms;", u64::from(attr.connect_timeout_ms)),
    ] {
        let line = header.lines().find(|line| line.contains(field)).unwrap_or_default();
        assert!(line.contains(&format!("; {value} */")), "{line}: {value}");
    }
}
