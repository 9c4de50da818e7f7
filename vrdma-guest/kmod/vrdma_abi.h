/* SPDX-License-Identifier: (GPL-2.0 WITH Linux-syscall-note) OR BSD-2-Clause */
/*
 * The contract between a vrdma guest and its host.
 *
 * Generated from the Rust crate vrdma-abi, which explains it; do not edit.
 */
#ifndef VRDMA_ABI_H
#define VRDMA_ABI_H

#ifdef __KERNEL__
#include <linux/types.h>
#include <linux/build_bug.h>
#else
#include <assert.h>
#include <stddef.h>
#include <linux/types.h>
#endif

/* ---- Config space and queues ---- */

/* Virtio device id of an RDMA device. */
#define VRDMA_VIRTIO_ID 42
/* First bytes of the config space: "VRDM". */
#define VRDMA_MAGIC 0x4d445256U
/* Incompatible changes of the contract; a driver refuses a major version that it does not know. */
#define VRDMA_ABI_MAJOR 1
/* Additive changes of the contract. */
#define VRDMA_ABI_MINOR 4
/* Queue of control commands. */
#define VRDMA_QUEUE_CONTROL 0
/* Queue of asynchronous events. */
#define VRDMA_QUEUE_EVENTS 1
/* First completion-event queue; there is one for each completion vector. */
#define VRDMA_QUEUE_FIRST_COMP 2
/* Most virtqueues that a device has: control, events, completion vectors and doorbell slots. */
#define VRDMA_MAX_QUEUES 64
/* Port is down. */
#define VRDMA_LINK_DOWN 0
/* Port is active. */
#define VRDMA_LINK_ACTIVE 1
/* Entries of the GID table. */
#define VRDMA_GID_TABLE_LEN 16
/* Most pages of a region that a work request registers (SEND_OP_REG_MR): their list is one page. */
#define VRDMA_FAST_REG_MAX_PAGES 512
/* Bytes of a page in every list of guest pages, whatever the guest's own page size is. */
#define VRDMA_PAGE_BYTES 4096
/* Config::features: sends of queue pairs with several paths can be split (SEND_OP_STEER, SEND_STEERED). */
#define VRDMA_FEATURE_STEER 1

/*
 * The device's config space, read-only for the guest. The host notifies a change of epoch,
 * link_state or active_mtu by a configuration interrupt.
 */
struct vrdma_config {
	/* MAGIC. */
	__u32 magic;
	/* ABI_MAJOR of the host. */
	__u16 abi_major;
	/* ABI_MINOR of the host. */
	__u16 abi_minor;
	/* FEATURE_ bits: optional parts of the contract that the host offers. */
	__u64 features;
	/* Names the lifetime of the RNIC's objects, never 0. A new value tells the guest that all its objects are gone. */
	__u64 epoch;
	/* The vNIC's MAC address: the driver pairs the device with the network interface that has it. */
	__u8 mac[6];
	/* Completion vectors, at least 1. */
	__u16 num_comp_vectors;
	/* Doorbell slots, at least 1. Their queues follow those of the completion vectors. */
	__u16 num_db_slots;
	/* LINK_DOWN or LINK_ACTIVE. */
	__u8 link_state;
	/* Largest path MTU of the underlay, in the verbs encoding (1 = 256 bytes … 5 = 4096 bytes). */
	__u8 active_mtu;
	/* Speed of the link in Mbit/s, 0 when unknown. */
	__u32 link_mbits_per_sec;
	/* Page sizes that a memory region can use, a bit for each power of two. */
	__u64 page_size_cap;
	/* Largest memory region in bytes. */
	__u64 max_mr_bytes;
	/* Largest message in bytes. */
	__u32 max_msg_bytes;
	/* Most contexts (opens of the device). */
	__u32 max_contexts;
	/* Most protection domains. */
	__u32 max_pds;
	/* Most memory regions. */
	__u32 max_mrs;
	/* Most completion queues. */
	__u32 max_cqs;
	/* Most queue pairs. */
	__u32 max_qps;
	/* Most shared receive queues, 0 when they are not supported. */
	__u32 max_srqs;
	/* Most entries of a send or receive queue. */
	__u32 max_qp_wr;
	/* Most entries of a completion queue. */
	__u32 max_cqe;
	/* Most scatter/gather entries of a send. */
	__u16 max_send_sge;
	/* Most scatter/gather entries of a receive. */
	__u16 max_recv_sge;
	/* Most bytes of inline data. */
	__u16 max_inline_bytes;
	/* Most RDMA reads and atomics that a QP can serve as responder. */
	__u8 max_dest_rd_atomic;
	/* Most RDMA reads and atomics that a QP can have outstanding as initiator. */
	__u8 max_rd_atomic;
	/* Paths of the underlay that the vNIC has; a queue pair with QP_MULTIPATH uses several. At least 1. */
	__u8 paths;
	/* Zero. */
	__u8 reserved;
	/* Most scatter/gather entries of a receive in a shared receive queue. */
	__u16 max_srq_sge;
	/* Most entries of a shared receive queue. */
	__u32 max_srq_wr;
	/* Most memory windows, 0 when they are not supported. */
	__u32 max_mws;
};
static_assert(sizeof(struct vrdma_config) == 112, "size of vrdma_config");
static_assert(offsetof(struct vrdma_config, magic) == 0, "offset of vrdma_config.magic");
static_assert(offsetof(struct vrdma_config, abi_major) == 4, "offset of vrdma_config.abi_major");
static_assert(offsetof(struct vrdma_config, abi_minor) == 6, "offset of vrdma_config.abi_minor");
static_assert(offsetof(struct vrdma_config, features) == 8, "offset of vrdma_config.features");
static_assert(offsetof(struct vrdma_config, epoch) == 16, "offset of vrdma_config.epoch");
static_assert(offsetof(struct vrdma_config, mac) == 24, "offset of vrdma_config.mac");
static_assert(offsetof(struct vrdma_config, num_comp_vectors) == 30, "offset of vrdma_config.num_comp_vectors");
static_assert(offsetof(struct vrdma_config, num_db_slots) == 32, "offset of vrdma_config.num_db_slots");
static_assert(offsetof(struct vrdma_config, link_state) == 34, "offset of vrdma_config.link_state");
static_assert(offsetof(struct vrdma_config, active_mtu) == 35, "offset of vrdma_config.active_mtu");
static_assert(offsetof(struct vrdma_config, link_mbits_per_sec) == 36, "offset of vrdma_config.link_mbits_per_sec");
static_assert(offsetof(struct vrdma_config, page_size_cap) == 40, "offset of vrdma_config.page_size_cap");
static_assert(offsetof(struct vrdma_config, max_mr_bytes) == 48, "offset of vrdma_config.max_mr_bytes");
static_assert(offsetof(struct vrdma_config, max_msg_bytes) == 56, "offset of vrdma_config.max_msg_bytes");
static_assert(offsetof(struct vrdma_config, max_contexts) == 60, "offset of vrdma_config.max_contexts");
static_assert(offsetof(struct vrdma_config, max_pds) == 64, "offset of vrdma_config.max_pds");
static_assert(offsetof(struct vrdma_config, max_mrs) == 68, "offset of vrdma_config.max_mrs");
static_assert(offsetof(struct vrdma_config, max_cqs) == 72, "offset of vrdma_config.max_cqs");
static_assert(offsetof(struct vrdma_config, max_qps) == 76, "offset of vrdma_config.max_qps");
static_assert(offsetof(struct vrdma_config, max_srqs) == 80, "offset of vrdma_config.max_srqs");
static_assert(offsetof(struct vrdma_config, max_qp_wr) == 84, "offset of vrdma_config.max_qp_wr");
static_assert(offsetof(struct vrdma_config, max_cqe) == 88, "offset of vrdma_config.max_cqe");
static_assert(offsetof(struct vrdma_config, max_send_sge) == 92, "offset of vrdma_config.max_send_sge");
static_assert(offsetof(struct vrdma_config, max_recv_sge) == 94, "offset of vrdma_config.max_recv_sge");
static_assert(offsetof(struct vrdma_config, max_inline_bytes) == 96, "offset of vrdma_config.max_inline_bytes");
static_assert(offsetof(struct vrdma_config, max_dest_rd_atomic) == 98, "offset of vrdma_config.max_dest_rd_atomic");
static_assert(offsetof(struct vrdma_config, max_rd_atomic) == 99, "offset of vrdma_config.max_rd_atomic");
static_assert(offsetof(struct vrdma_config, paths) == 100, "offset of vrdma_config.paths");
static_assert(offsetof(struct vrdma_config, reserved) == 101, "offset of vrdma_config.reserved");
static_assert(offsetof(struct vrdma_config, max_srq_sge) == 102, "offset of vrdma_config.max_srq_sge");
static_assert(offsetof(struct vrdma_config, max_srq_wr) == 104, "offset of vrdma_config.max_srq_wr");
static_assert(offsetof(struct vrdma_config, max_mws) == 108, "offset of vrdma_config.max_mws");

/* ---- Control commands ---- */

/* DeviceInit: agree on the contract; the first command of an epoch. */
#define VRDMA_OP_DEVICE_INIT 1
/* AddGid: fill an entry of the GID table. */
#define VRDMA_OP_ADD_GID 2
/* DelGid: clear an entry of the GID table. */
#define VRDMA_OP_DEL_GID 3
/* CreateContext: an open of the device. */
#define VRDMA_OP_CREATE_CONTEXT 16
/* Destroy: end a context and everything in it. */
#define VRDMA_OP_DESTROY_CONTEXT 17
/* CreatePd: a protection domain. */
#define VRDMA_OP_CREATE_PD 18
/* Destroy: a protection domain. */
#define VRDMA_OP_DESTROY_PD 19
/* CreateMr: a memory region; replies with CreateMrReply. */
#define VRDMA_OP_CREATE_MR 20
/* Destroy: a memory region. */
#define VRDMA_OP_DESTROY_MR 21
/* CreateCq: a completion queue; replies with CreateCqReply. */
#define VRDMA_OP_CREATE_CQ 22
/* Destroy: a completion queue. */
#define VRDMA_OP_DESTROY_CQ 23
/* CreateQp: a queue pair; replies with CreateQpReply. */
#define VRDMA_OP_CREATE_QP 24
/* ModifyQp: change a QP's state and attributes. */
#define VRDMA_OP_MODIFY_QP 25
/* Destroy (as the name of an object): asks for a QP's attributes; replies with QueryQpReply. */
#define VRDMA_OP_QUERY_QP 26
/* Destroy: a queue pair. */
#define VRDMA_OP_DESTROY_QP 27
/* ReregMr: change a memory region; replies with CreateMrReply. */
#define VRDMA_OP_REREG_MR 28
/* ResizeCq: give a completion queue another ring. */
#define VRDMA_OP_RESIZE_CQ 29
/* CreateSrq: a shared receive queue; replies with CreateSrqReply. */
#define VRDMA_OP_CREATE_SRQ 30
/* ModifySrq: arm a shared receive queue's limit. */
#define VRDMA_OP_MODIFY_SRQ 31
/* Destroy (as the name of an object): asks for a shared receive queue's limit; replies with QuerySrqReply. */
#define VRDMA_OP_QUERY_SRQ 32
/* Destroy: a shared receive queue. */
#define VRDMA_OP_DESTROY_SRQ 33
/* CreateMw: a memory window; replies with CreateMwReply. */
#define VRDMA_OP_CREATE_MW 34
/* Destroy: a memory window, bound or not. */
#define VRDMA_OP_DESTROY_MW 35
/* CreateXrcd: an XRC domain. */
#define VRDMA_OP_CREATE_XRCD 36
/* Destroy: an XRC domain. */
#define VRDMA_OP_DESTROY_XRCD 37
/* QueryCounters: what the device has counted; replies with QueryCountersReply. Since version 1.2. */
#define VRDMA_OP_QUERY_COUNTERS 38
/* Places in QueryCountersReply. */
#define VRDMA_COUNTERS_MAX 128
/* The handle that means "none", for instance CreateQp::srq. */
#define VRDMA_HANDLE_NONE 0xffffffffU
/* The context is the kernel's own; only its objects may use kernel-only features. */
#define VRDMA_CONTEXT_KERNEL 1
/*
 * QP1, the General Services Interface: unreliable datagrams with the well-known Q_Key. One of a device, in a context with
 * CONTEXT_KERNEL; its number is 1.
 */
#define VRDMA_QP_TYPE_GSI 1
/* Reliable connected. */
#define VRDMA_QP_TYPE_RC 2
/* Unreliable connected. */
#define VRDMA_QP_TYPE_UC 3
/* Unreliable datagram. */
#define VRDMA_QP_TYPE_UD 4
/* Extended reliable connected, initiator: it has no receive queue. */
#define VRDMA_QP_TYPE_XRC_INI 9
/* Extended reliable connected, target: it has no queues, and each message names a shared receive queue of its XRC domain. */
#define VRDMA_QP_TYPE_XRC_TGT 10
/* A shared receive queue for queue pairs of any kind but XRC. */
#define VRDMA_SRQ_TYPE_BASIC 0
/* A shared receive queue that XRC messages name, with a completion queue of its own. */
#define VRDMA_SRQ_TYPE_XRC 1
/*
 * CreateMr::flags: the region is all of the guest's memory, addresses are guest-physical, and there are no pages. Only in a context
 * with CONTEXT_KERNEL.
 */
#define VRDMA_MR_ALL_MEMORY 1
/*
 * CreateMr::flags: the region is filled by work requests (SEND_OP_REG_MR): at first it is invalid, iova and pages are zero, and length is the most
 * that it will have: FAST_REG_MAX_PAGES pages at most. Only in a context with CONTEXT_KERNEL.
 */
#define VRDMA_MR_FAST_REG 2
/* ReregMr::flags: iova, length and pages are given (IBV_REREG_MR_CHANGE_TRANSLATION). */
#define VRDMA_REREG_TRANSLATION 1
/* ReregMr::flags: pd is given. */
#define VRDMA_REREG_PD 2
/* ReregMr::flags: access is given. */
#define VRDMA_REREG_ACCESS 4
/* A window that every queue pair of its domain may bind and use (IBV_MW_TYPE_1). */
#define VRDMA_MW_TYPE_1 1
/* A window that belongs to the queue pair that binds it (IBV_MW_TYPE_2; 2B of IBTA Vol 1 §10.6.7.2.2). */
#define VRDMA_MW_TYPE_2 2
/* Every send is signalled, whatever its flags say. */
#define VRDMA_QP_SIGNAL_ALL 1
/* The queue pair may use all paths (module ring, Multipath). Reliable connected only; EOPNOTSUPP when Config::paths is 1. Since version 1.3. */
#define VRDMA_QP_MULTIPATH 2
/* The region accepts local writes (IBV_ACCESS_LOCAL_WRITE). */
#define VRDMA_ACCESS_LOCAL_WRITE 1
/* The region or QP accepts RDMA writes (IBV_ACCESS_REMOTE_WRITE). */
#define VRDMA_ACCESS_REMOTE_WRITE 2
/* The region or QP accepts RDMA reads (IBV_ACCESS_REMOTE_READ). */
#define VRDMA_ACCESS_REMOTE_READ 4
/* The region or QP accepts atomics (IBV_ACCESS_REMOTE_ATOMIC). */
#define VRDMA_ACCESS_REMOTE_ATOMIC 8
/* Memory windows can be bound to the region (IBV_ACCESS_MW_BIND). */
#define VRDMA_ACCESS_MW_BIND 16
/* A region's or window's addresses begin at 0 (IBV_ACCESS_ZERO_BASED). */
#define VRDMA_ACCESS_ZERO_BASED 32
/* Reset. */
#define VRDMA_QP_STATE_RESET 0
/* Initialised. */
#define VRDMA_QP_STATE_INIT 1
/* Ready to receive. */
#define VRDMA_QP_STATE_RTR 2
/* Ready to send. */
#define VRDMA_QP_STATE_RTS 3
/* Send queue drained. */
#define VRDMA_QP_STATE_SQD 4
/* Send queue error. */
#define VRDMA_QP_STATE_SQE 5
/* Error. */
#define VRDMA_QP_STATE_ERR 6
/* The format of rings that is described in the module ring. */
#define VRDMA_RING_FORMAT_1 1
/* Most levels of a PageTable. */
#define VRDMA_PAGE_TABLE_MAX_LEVELS 3
/* Bits of ModifyQp::mask: the values of enum ibv_qp_attr_mask. */
#define VRDMA_QP_ATTR_STATE 1
/* QpAttr::cur_state is given. */
#define VRDMA_QP_ATTR_CUR_STATE 2
/* QpAttr::sq_drained_notify is given. */
#define VRDMA_QP_ATTR_EN_SQD_ASYNC_NOTIFY 4
/* QpAttr::access is given. */
#define VRDMA_QP_ATTR_ACCESS_FLAGS 8
/* QpAttr::pkey_index is given; only index 0 exists. */
#define VRDMA_QP_ATTR_PKEY_INDEX 16
/* The port is given; only port 1 exists, so no field carries it. */
#define VRDMA_QP_ATTR_PORT 32
/* QpAttr::qkey is given. */
#define VRDMA_QP_ATTR_QKEY 64
/* The address vector is given: sgid_index, sgid, dgid, flow_label, hop_limit, traffic_class, sl. */
#define VRDMA_QP_ATTR_AV 128
/* QpAttr::path_mtu is given. */
#define VRDMA_QP_ATTR_PATH_MTU 256
/* QpAttr::timeout is given. */
#define VRDMA_QP_ATTR_TIMEOUT 512
/* QpAttr::retry_cnt is given. */
#define VRDMA_QP_ATTR_RETRY_CNT 1024
/* QpAttr::rnr_retry is given. */
#define VRDMA_QP_ATTR_RNR_RETRY 2048
/* QpAttr::rq_psn is given. */
#define VRDMA_QP_ATTR_RQ_PSN 4096
/* QpAttr::max_rd_atomic is given. */
#define VRDMA_QP_ATTR_MAX_RD_ATOMIC 8192
/* QpAttr::min_rnr_timer is given. */
#define VRDMA_QP_ATTR_MIN_RNR_TIMER 32768
/* QpAttr::sq_psn is given. */
#define VRDMA_QP_ATTR_SQ_PSN 0x10000U
/* QpAttr::max_dest_rd_atomic is given. */
#define VRDMA_QP_ATTR_MAX_DEST_RD_ATOMIC 0x20000U
/* QpAttr::dest_qpn is given. */
#define VRDMA_QP_ATTR_DEST_QPN 0x100000U

/* Head of every request. */
struct vrdma_request {
	/* One of the OP_ numbers. */
	__u16 opcode;
	/* Zero. */
	__u16 flags;
	/* The guest's name for this request, returned in the reply; it stands in the host's log. */
	__u32 tag;
	/* The epoch in which the guest asks. */
	__u64 epoch;
};
static_assert(sizeof(struct vrdma_request) == 16, "size of vrdma_request");
static_assert(offsetof(struct vrdma_request, opcode) == 0, "offset of vrdma_request.opcode");
static_assert(offsetof(struct vrdma_request, flags) == 2, "offset of vrdma_request.flags");
static_assert(offsetof(struct vrdma_request, tag) == 4, "offset of vrdma_request.tag");
static_assert(offsetof(struct vrdma_request, epoch) == 8, "offset of vrdma_request.epoch");

/* Head of every reply. */
struct vrdma_reply {
	/* 0, or a positive Linux errno. */
	__u32 status;
	/* The request's tag. */
	__u32 tag;
};
static_assert(sizeof(struct vrdma_reply) == 8, "size of vrdma_reply");
static_assert(offsetof(struct vrdma_reply, status) == 0, "offset of vrdma_reply.status");
static_assert(offsetof(struct vrdma_reply, tag) == 4, "offset of vrdma_reply.tag");

/*
 * A list of guest pages, as a radix tree of 4096-byte tables that hold 512 guest-physical addresses each.
 * With levels 0, addr is the only page (count 1). With levels 1, addr is a table of count addresses. With levels 2 or 3,
 * addr is a table of tables. The last table of each level may be partly filled. Tables are read once, while the command runs.
 */
struct vrdma_page_table {
	/* Guest-physical address of the page or of the top table, aligned to what it is. */
	__u64 addr;
	/* Pages in the list. */
	__u32 count;
	/* Size of each page: a power of two, 12 or more. */
	__u8 page_shift;
	/* Levels of tables above the pages, 0 to PAGE_TABLE_MAX_LEVELS. */
	__u8 levels;
	/* Zero. */
	__u16 reserved;
};
static_assert(sizeof(struct vrdma_page_table) == 16, "size of vrdma_page_table");
static_assert(offsetof(struct vrdma_page_table, addr) == 0, "offset of vrdma_page_table.addr");
static_assert(offsetof(struct vrdma_page_table, count) == 8, "offset of vrdma_page_table.count");
static_assert(offsetof(struct vrdma_page_table, page_shift) == 12, "offset of vrdma_page_table.page_shift");
static_assert(offsetof(struct vrdma_page_table, levels) == 13, "offset of vrdma_page_table.levels");
static_assert(offsetof(struct vrdma_page_table, reserved) == 14, "offset of vrdma_page_table.reserved");

/* OP_DEVICE_INIT. */
struct vrdma_device_init {
	/* ABI_MAJOR of the guest. */
	__u16 abi_major;
	/* ABI_MINOR of the guest. */
	__u16 abi_minor;
	/* Zero. */
	__u32 reserved;
	/* The subset of Config::features that the guest will use; other bits are refused with EOPNOTSUPP. */
	__u64 features;
	/* Guest-physical address of the page of StatusLines, which only the RNIC writes from now on. */
	__u64 status_page;
};
static_assert(sizeof(struct vrdma_device_init) == 24, "size of vrdma_device_init");
static_assert(offsetof(struct vrdma_device_init, abi_major) == 0, "offset of vrdma_device_init.abi_major");
static_assert(offsetof(struct vrdma_device_init, abi_minor) == 2, "offset of vrdma_device_init.abi_minor");
static_assert(offsetof(struct vrdma_device_init, reserved) == 4, "offset of vrdma_device_init.reserved");
static_assert(offsetof(struct vrdma_device_init, features) == 8, "offset of vrdma_device_init.features");
static_assert(offsetof(struct vrdma_device_init, status_page) == 16, "offset of vrdma_device_init.status_page");

/* OP_ADD_GID. */
struct vrdma_add_gid {
	/* Entry of the table, below GID_TABLE_LEN. */
	__u32 index;
	/* Zero. */
	__u32 reserved;
	/* The GID; it must belong to the vNIC. */
	__u8 gid[16];
};
static_assert(sizeof(struct vrdma_add_gid) == 24, "size of vrdma_add_gid");
static_assert(offsetof(struct vrdma_add_gid, index) == 0, "offset of vrdma_add_gid.index");
static_assert(offsetof(struct vrdma_add_gid, reserved) == 4, "offset of vrdma_add_gid.reserved");
static_assert(offsetof(struct vrdma_add_gid, gid) == 8, "offset of vrdma_add_gid.gid");

/* OP_DEL_GID. */
struct vrdma_del_gid {
	/* Entry of the table, below GID_TABLE_LEN. */
	__u32 index;
	/* Zero. */
	__u32 reserved;
};
static_assert(sizeof(struct vrdma_del_gid) == 8, "size of vrdma_del_gid");
static_assert(offsetof(struct vrdma_del_gid, index) == 0, "offset of vrdma_del_gid.index");
static_assert(offsetof(struct vrdma_del_gid, reserved) == 4, "offset of vrdma_del_gid.reserved");

/* Names one object: all OP_DESTROY_ and OP_QUERY_ commands. */
struct vrdma_destroy {
	/* The object's handle. */
	__u32 handle;
	/* Zero. */
	__u32 reserved;
};
static_assert(sizeof(struct vrdma_destroy) == 8, "size of vrdma_destroy");
static_assert(offsetof(struct vrdma_destroy, handle) == 0, "offset of vrdma_destroy.handle");
static_assert(offsetof(struct vrdma_destroy, reserved) == 4, "offset of vrdma_destroy.reserved");

/* OP_CREATE_CONTEXT. */
struct vrdma_create_context {
	/* Handle of the new context. */
	__u32 ctx;
	/* CONTEXT_ bits. */
	__u32 flags;
	/* The doorbell area: one DoorbellPage for each slot, in order, zeroed. */
	struct vrdma_page_table doorbells;
};
static_assert(sizeof(struct vrdma_create_context) == 24, "size of vrdma_create_context");
static_assert(offsetof(struct vrdma_create_context, ctx) == 0, "offset of vrdma_create_context.ctx");
static_assert(offsetof(struct vrdma_create_context, flags) == 4, "offset of vrdma_create_context.flags");
static_assert(offsetof(struct vrdma_create_context, doorbells) == 8, "offset of vrdma_create_context.doorbells");

/* OP_CREATE_PD. */
struct vrdma_create_pd {
	/* Handle of the new protection domain. */
	__u32 pd;
	/* Its context. */
	__u32 ctx;
};
static_assert(sizeof(struct vrdma_create_pd) == 8, "size of vrdma_create_pd");
static_assert(offsetof(struct vrdma_create_pd, pd) == 0, "offset of vrdma_create_pd.pd");
static_assert(offsetof(struct vrdma_create_pd, ctx) == 4, "offset of vrdma_create_pd.ctx");

/* OP_CREATE_MR. The byte at address iova + k lies in page (iova % page_size + k) / page_size of the list. */
struct vrdma_create_mr {
	/* Handle of the new region. */
	__u32 mr;
	/* Its protection domain. */
	__u32 pd;
	/* ACCESS_ bits; bits from 1 << 20 up are optional (IBV_ACCESS_OPTIONAL_RANGE) and ignored, others are refused. */
	__u32 access;
	/* MR_ bits. */
	__u32 flags;
	/* The address by which work requests name the first byte. */
	__u64 iova;
	/* Length in bytes; may be 0. */
	__u64 length;
	/* The pages. */
	struct vrdma_page_table pages;
};
static_assert(sizeof(struct vrdma_create_mr) == 48, "size of vrdma_create_mr");
static_assert(offsetof(struct vrdma_create_mr, mr) == 0, "offset of vrdma_create_mr.mr");
static_assert(offsetof(struct vrdma_create_mr, pd) == 4, "offset of vrdma_create_mr.pd");
static_assert(offsetof(struct vrdma_create_mr, access) == 8, "offset of vrdma_create_mr.access");
static_assert(offsetof(struct vrdma_create_mr, flags) == 12, "offset of vrdma_create_mr.flags");
static_assert(offsetof(struct vrdma_create_mr, iova) == 16, "offset of vrdma_create_mr.iova");
static_assert(offsetof(struct vrdma_create_mr, length) == 24, "offset of vrdma_create_mr.length");
static_assert(offsetof(struct vrdma_create_mr, pages) == 32, "offset of vrdma_create_mr.pages");

/* Reply to OP_CREATE_MR. */
struct vrdma_create_mr_reply {
	/* Key for scatter/gather entries. */
	__u32 lkey;
	/* Key for peers. */
	__u32 rkey;
};
static_assert(sizeof(struct vrdma_create_mr_reply) == 8, "size of vrdma_create_mr_reply");
static_assert(offsetof(struct vrdma_create_mr_reply, lkey) == 0, "offset of vrdma_create_mr_reply.lkey");
static_assert(offsetof(struct vrdma_create_mr_reply, rkey) == 4, "offset of vrdma_create_mr_reply.rkey");

/* OP_REREG_MR. What is not given stays; the keys stay too. When it is refused, nothing has changed. */
struct vrdma_rereg_mr {
	/* The region. */
	__u32 mr;
	/* REREG_ bits. */
	__u32 flags;
	/* Its new protection domain, or HANDLE_NONE. */
	__u32 pd;
	/* Its new ACCESS_ bits. */
	__u32 access;
	/* Its new first address. */
	__u64 iova;
	/* Its new length in bytes. */
	__u64 length;
	/* Its new pages. */
	struct vrdma_page_table pages;
};
static_assert(sizeof(struct vrdma_rereg_mr) == 48, "size of vrdma_rereg_mr");
static_assert(offsetof(struct vrdma_rereg_mr, mr) == 0, "offset of vrdma_rereg_mr.mr");
static_assert(offsetof(struct vrdma_rereg_mr, flags) == 4, "offset of vrdma_rereg_mr.flags");
static_assert(offsetof(struct vrdma_rereg_mr, pd) == 8, "offset of vrdma_rereg_mr.pd");
static_assert(offsetof(struct vrdma_rereg_mr, access) == 12, "offset of vrdma_rereg_mr.access");
static_assert(offsetof(struct vrdma_rereg_mr, iova) == 16, "offset of vrdma_rereg_mr.iova");
static_assert(offsetof(struct vrdma_rereg_mr, length) == 24, "offset of vrdma_rereg_mr.length");
static_assert(offsetof(struct vrdma_rereg_mr, pages) == 32, "offset of vrdma_rereg_mr.pages");

/* OP_CREATE_MW. A window gives no access before a work request binds it (SEND_OP_BIND_MW). */
struct vrdma_create_mw {
	/* Handle of the new window. */
	__u32 mw;
	/* Its protection domain. */
	__u32 pd;
	/* MW_TYPE_. */
	__u8 mw_type;
	/* Zero. */
	__u8 reserved[7];
};
static_assert(sizeof(struct vrdma_create_mw) == 16, "size of vrdma_create_mw");
static_assert(offsetof(struct vrdma_create_mw, mw) == 0, "offset of vrdma_create_mw.mw");
static_assert(offsetof(struct vrdma_create_mw, pd) == 4, "offset of vrdma_create_mw.pd");
static_assert(offsetof(struct vrdma_create_mw, mw_type) == 8, "offset of vrdma_create_mw.mw_type");
static_assert(offsetof(struct vrdma_create_mw, reserved) == 9, "offset of vrdma_create_mw.reserved");

/* Reply to OP_CREATE_MW. */
struct vrdma_create_mw_reply {
	/* The window's first key. A binding may choose another low byte; the upper 24 bits name the window. */
	__u32 rkey;
	/* Zero. */
	__u32 reserved;
};
static_assert(sizeof(struct vrdma_create_mw_reply) == 8, "size of vrdma_create_mw_reply");
static_assert(offsetof(struct vrdma_create_mw_reply, rkey) == 0, "offset of vrdma_create_mw_reply.rkey");
static_assert(offsetof(struct vrdma_create_mw_reply, reserved) == 4, "offset of vrdma_create_mw_reply.reserved");

/* OP_CREATE_XRCD. Contexts share XRC domains, so it belongs to none. */
struct vrdma_create_xrcd {
	/* Handle of the new XRC domain. */
	__u32 xrcd;
	/* Zero. */
	__u32 reserved;
};
static_assert(sizeof(struct vrdma_create_xrcd) == 8, "size of vrdma_create_xrcd");
static_assert(offsetof(struct vrdma_create_xrcd, xrcd) == 0, "offset of vrdma_create_xrcd.xrcd");
static_assert(offsetof(struct vrdma_create_xrcd, reserved) == 4, "offset of vrdma_create_xrcd.reserved");

/* OP_CREATE_SRQ. */
struct vrdma_create_srq {
	/* Handle of the new shared receive queue. */
	__u32 srq;
	/* Its protection domain. */
	__u32 pd;
	/* With SRQ_TYPE_XRC: the completion queue of its receives; else HANDLE_NONE. */
	__u32 cq;
	/* With SRQ_TYPE_XRC: its XRC domain; else HANDLE_NONE. */
	__u32 xrcd;
	/* Number of entries: a power of two, at most Config::max_srq_wr. */
	__u32 entries;
	/* Most scatter/gather entries of a receive, at most Config::max_srq_sge. */
	__u16 max_sge;
	/* Bytes between two entries, as a power of two: 6 (64 bytes) to 10 (1024 bytes). */
	__u8 stride_shift;
	/* SRQ_TYPE_. */
	__u8 srq_type;
	/* The limit, as with OP_MODIFY_SRQ. */
	__u32 limit;
	/* Zero. */
	__u32 reserved;
	/* The ring: WorkHeader in the first stride, then the entries; zeroed. */
	struct vrdma_page_table ring;
};
static_assert(sizeof(struct vrdma_create_srq) == 48, "size of vrdma_create_srq");
static_assert(offsetof(struct vrdma_create_srq, srq) == 0, "offset of vrdma_create_srq.srq");
static_assert(offsetof(struct vrdma_create_srq, pd) == 4, "offset of vrdma_create_srq.pd");
static_assert(offsetof(struct vrdma_create_srq, cq) == 8, "offset of vrdma_create_srq.cq");
static_assert(offsetof(struct vrdma_create_srq, xrcd) == 12, "offset of vrdma_create_srq.xrcd");
static_assert(offsetof(struct vrdma_create_srq, entries) == 16, "offset of vrdma_create_srq.entries");
static_assert(offsetof(struct vrdma_create_srq, max_sge) == 20, "offset of vrdma_create_srq.max_sge");
static_assert(offsetof(struct vrdma_create_srq, stride_shift) == 22, "offset of vrdma_create_srq.stride_shift");
static_assert(offsetof(struct vrdma_create_srq, srq_type) == 23, "offset of vrdma_create_srq.srq_type");
static_assert(offsetof(struct vrdma_create_srq, limit) == 24, "offset of vrdma_create_srq.limit");
static_assert(offsetof(struct vrdma_create_srq, reserved) == 28, "offset of vrdma_create_srq.reserved");
static_assert(offsetof(struct vrdma_create_srq, ring) == 32, "offset of vrdma_create_srq.ring");

/* Reply to OP_CREATE_SRQ. */
struct vrdma_create_srq_reply {
	/* Its number, by which XRC messages name it; 0 with SRQ_TYPE_BASIC. */
	__u32 srqn;
	/* RING_FORMAT_1. */
	__u32 ring_format;
};
static_assert(sizeof(struct vrdma_create_srq_reply) == 8, "size of vrdma_create_srq_reply");
static_assert(offsetof(struct vrdma_create_srq_reply, srqn) == 0, "offset of vrdma_create_srq_reply.srqn");
static_assert(offsetof(struct vrdma_create_srq_reply, ring_format) == 4, "offset of vrdma_create_srq_reply.ring_format");

/* OP_MODIFY_SRQ. */
struct vrdma_modify_srq {
	/* The shared receive queue. */
	__u32 srq;
	/* When fewer receives than this are left, one EVENT_SRQ_LIMIT is sent and the limit is 0 again; 0: none. */
	__u32 limit;
};
static_assert(sizeof(struct vrdma_modify_srq) == 8, "size of vrdma_modify_srq");
static_assert(offsetof(struct vrdma_modify_srq, srq) == 0, "offset of vrdma_modify_srq.srq");
static_assert(offsetof(struct vrdma_modify_srq, limit) == 4, "offset of vrdma_modify_srq.limit");

/* Reply to OP_QUERY_SRQ. */
struct vrdma_query_srq_reply {
	/* The limit, 0 when none is armed. */
	__u32 limit;
	/* Zero. */
	__u32 reserved;
};
static_assert(sizeof(struct vrdma_query_srq_reply) == 8, "size of vrdma_query_srq_reply");
static_assert(offsetof(struct vrdma_query_srq_reply, limit) == 0, "offset of vrdma_query_srq_reply.limit");
static_assert(offsetof(struct vrdma_query_srq_reply, reserved) == 4, "offset of vrdma_query_srq_reply.reserved");

/* OP_CREATE_CQ. */
struct vrdma_create_cq {
	/* Handle of the new completion queue. */
	__u32 cq;
	/* Its context. */
	__u32 ctx;
	/* Number of entries: a power of two, at most Config::max_cqe. */
	__u32 entries;
	/* The completion vector, below Config::num_comp_vectors. */
	__u32 vector;
	/* The ring: CqHeader in the first stride, then the entries; zeroed. */
	struct vrdma_page_table ring;
};
static_assert(sizeof(struct vrdma_create_cq) == 32, "size of vrdma_create_cq");
static_assert(offsetof(struct vrdma_create_cq, cq) == 0, "offset of vrdma_create_cq.cq");
static_assert(offsetof(struct vrdma_create_cq, ctx) == 4, "offset of vrdma_create_cq.ctx");
static_assert(offsetof(struct vrdma_create_cq, entries) == 8, "offset of vrdma_create_cq.entries");
static_assert(offsetof(struct vrdma_create_cq, vector) == 12, "offset of vrdma_create_cq.vector");
static_assert(offsetof(struct vrdma_create_cq, ring) == 16, "offset of vrdma_create_cq.ring");

/* Reply to OP_CREATE_CQ. */
struct vrdma_create_cq_reply {
	/* RING_FORMAT_1. */
	__u32 ring_format;
	/* Zero. */
	__u32 reserved;
};
static_assert(sizeof(struct vrdma_create_cq_reply) == 8, "size of vrdma_create_cq_reply");
static_assert(offsetof(struct vrdma_create_cq_reply, ring_format) == 0, "offset of vrdma_create_cq_reply.ring_format");
static_assert(offsetof(struct vrdma_create_cq_reply, reserved) == 4, "offset of vrdma_create_cq_reply.reserved");

/*
 * OP_RESIZE_CQ. Indexes begin at 0 in the new ring, where the entries stand that the guest has not read yet, and its CqHeader takes over
 * arm. From the reply on the old ring is the guest's. The guest does not poll or arm the queue meanwhile. Refused with EINVAL when more
 * entries wait than the new ring has, and with EBUSY when so many wait that moving them would hold up others.
 */
struct vrdma_resize_cq {
	/* The completion queue. */
	__u32 cq;
	/* Number of entries: a power of two, at most Config::max_cqe. */
	__u32 entries;
	/* The new ring, zeroed. */
	struct vrdma_page_table ring;
};
static_assert(sizeof(struct vrdma_resize_cq) == 24, "size of vrdma_resize_cq");
static_assert(offsetof(struct vrdma_resize_cq, cq) == 0, "offset of vrdma_resize_cq.cq");
static_assert(offsetof(struct vrdma_resize_cq, entries) == 4, "offset of vrdma_resize_cq.entries");
static_assert(offsetof(struct vrdma_resize_cq, ring) == 8, "offset of vrdma_resize_cq.ring");

/* OP_CREATE_QP. */
struct vrdma_create_qp {
	/* Handle of the new queue pair. */
	__u32 qp;
	/* Its protection domain; HANDLE_NONE with QP_TYPE_XRC_TGT, which uses that of the shared receive queue. */
	__u32 pd;
	/* Completion queue of sends; HANDLE_NONE with QP_TYPE_XRC_TGT. */
	__u32 send_cq;
	/* Completion queue of receives; HANDLE_NONE with QP_TYPE_XRC_INI and QP_TYPE_XRC_TGT. */
	__u32 recv_cq;
	/* Shared receive queue, or HANDLE_NONE. */
	__u32 srq;
	/* QP_ bits. */
	__u32 flags;
	/* A number of the guest's choice that stands in every completion of this QP. */
	__u32 cookie;
	/* Entries of the send queue: a power of two, at most Config::max_qp_wr; 0, and no ring, with QP_TYPE_XRC_TGT. */
	__u32 sq_entries;
	/* Entries of the receive queue, likewise; 0, and no ring, with a shared receive queue and with XRC. */
	__u32 rq_entries;
	/* Most scatter/gather entries of a send. */
	__u16 max_send_sge;
	/* Most scatter/gather entries of a receive. */
	__u16 max_recv_sge;
	/* Most bytes of inline data. */
	__u16 max_inline_bytes;
	/* Bytes between two entries of the send queue, as a power of two: 6 (64 bytes) to 10 (1024 bytes). */
	__u8 sq_stride_shift;
	/* Bytes between two entries of the receive queue, as a power of two: 6 (64 bytes) to 10 (1024 bytes). */
	__u8 rq_stride_shift;
	/* QP_TYPE_. */
	__u8 qp_type;
	/* Zero. */
	__u8 reserved0[3];
	/* With QP_TYPE_XRC_TGT: its XRC domain; else HANDLE_NONE. */
	__u32 xrcd;
	/* With QP_MULTIPATH: entries of the chunk ring, a power of two, at most Config::max_qp_wr; else 0. Since version 1.3. */
	__u32 chunk_entries;
	/* The send queue: WorkHeader in the first stride, then the entries; zeroed. */
	struct vrdma_page_table sq;
	/* The receive queue, likewise. */
	struct vrdma_page_table rq;
	/*
	 * With QP_MULTIPATH: the chunk ring, likewise, with the stride of the send queue; else zero. Since version 1.3: the structure of older versions
	 * ends before it.
	 */
	struct vrdma_page_table chunks;
};
static_assert(sizeof(struct vrdma_create_qp) == 104, "size of vrdma_create_qp");
static_assert(offsetof(struct vrdma_create_qp, qp) == 0, "offset of vrdma_create_qp.qp");
static_assert(offsetof(struct vrdma_create_qp, pd) == 4, "offset of vrdma_create_qp.pd");
static_assert(offsetof(struct vrdma_create_qp, send_cq) == 8, "offset of vrdma_create_qp.send_cq");
static_assert(offsetof(struct vrdma_create_qp, recv_cq) == 12, "offset of vrdma_create_qp.recv_cq");
static_assert(offsetof(struct vrdma_create_qp, srq) == 16, "offset of vrdma_create_qp.srq");
static_assert(offsetof(struct vrdma_create_qp, flags) == 20, "offset of vrdma_create_qp.flags");
static_assert(offsetof(struct vrdma_create_qp, cookie) == 24, "offset of vrdma_create_qp.cookie");
static_assert(offsetof(struct vrdma_create_qp, sq_entries) == 28, "offset of vrdma_create_qp.sq_entries");
static_assert(offsetof(struct vrdma_create_qp, rq_entries) == 32, "offset of vrdma_create_qp.rq_entries");
static_assert(offsetof(struct vrdma_create_qp, max_send_sge) == 36, "offset of vrdma_create_qp.max_send_sge");
static_assert(offsetof(struct vrdma_create_qp, max_recv_sge) == 38, "offset of vrdma_create_qp.max_recv_sge");
static_assert(offsetof(struct vrdma_create_qp, max_inline_bytes) == 40, "offset of vrdma_create_qp.max_inline_bytes");
static_assert(offsetof(struct vrdma_create_qp, sq_stride_shift) == 42, "offset of vrdma_create_qp.sq_stride_shift");
static_assert(offsetof(struct vrdma_create_qp, rq_stride_shift) == 43, "offset of vrdma_create_qp.rq_stride_shift");
static_assert(offsetof(struct vrdma_create_qp, qp_type) == 44, "offset of vrdma_create_qp.qp_type");
static_assert(offsetof(struct vrdma_create_qp, reserved0) == 45, "offset of vrdma_create_qp.reserved0");
static_assert(offsetof(struct vrdma_create_qp, xrcd) == 48, "offset of vrdma_create_qp.xrcd");
static_assert(offsetof(struct vrdma_create_qp, chunk_entries) == 52, "offset of vrdma_create_qp.chunk_entries");
static_assert(offsetof(struct vrdma_create_qp, sq) == 56, "offset of vrdma_create_qp.sq");
static_assert(offsetof(struct vrdma_create_qp, rq) == 72, "offset of vrdma_create_qp.rq");
static_assert(offsetof(struct vrdma_create_qp, chunks) == 88, "offset of vrdma_create_qp.chunks");

/* Reply to OP_CREATE_QP. */
struct vrdma_create_qp_reply {
	/* The QP number. */
	__u32 qpn;
	/* RING_FORMAT_1. */
	__u32 ring_format;
	/* Doorbell slot that the QP belongs to. */
	__u16 db_slot;
	/* The QP's index in its context's DoorbellPage of that slot. */
	__u16 db_index;
	/* Zero. */
	__u32 reserved;
};
static_assert(sizeof(struct vrdma_create_qp_reply) == 16, "size of vrdma_create_qp_reply");
static_assert(offsetof(struct vrdma_create_qp_reply, qpn) == 0, "offset of vrdma_create_qp_reply.qpn");
static_assert(offsetof(struct vrdma_create_qp_reply, ring_format) == 4, "offset of vrdma_create_qp_reply.ring_format");
static_assert(offsetof(struct vrdma_create_qp_reply, db_slot) == 8, "offset of vrdma_create_qp_reply.db_slot");
static_assert(offsetof(struct vrdma_create_qp_reply, db_index) == 10, "offset of vrdma_create_qp_reply.db_index");
static_assert(offsetof(struct vrdma_create_qp_reply, reserved) == 12, "offset of vrdma_create_qp_reply.reserved");

/* A QP's attributes, as in struct ibv_qp_attr. */
struct vrdma_qp_attr {
	/* QP_STATE_. */
	__u8 state;
	/* QP_STATE_ that the guest believes the QP to be in. */
	__u8 cur_state;
	/* Path MTU, in the verbs encoding. */
	__u8 path_mtu;
	/* 1: report SQ_DRAINED. */
	__u8 sq_drained_notify;
	/* ACCESS_REMOTE_ bits. */
	__u32 access;
	/* The peer's QP number. */
	__u32 dest_qpn;
	/* First PSN to receive, 24 bits. */
	__u32 rq_psn;
	/* First PSN to send, 24 bits. */
	__u32 sq_psn;
	/* Q_Key of a UD QP. */
	__u32 qkey;
	/* Local GID, as bytes: the entry that sgid_index named when the guest asked. */
	__u8 sgid[16];
	/* The peer's GID. */
	__u8 dgid[16];
	/* Flow label, 20 bits. */
	__u32 flow_label;
	/* P_Key index: 0. */
	__u16 pkey_index;
	/* Entry of the GID table. */
	__u8 sgid_index;
	/* Hop limit. */
	__u8 hop_limit;
	/* Traffic class. */
	__u8 traffic_class;
	/* Service level. */
	__u8 sl;
	/* RDMA reads and atomics outstanding as initiator, at most. */
	__u8 max_rd_atomic;
	/* RDMA reads and atomics served as responder, at most. */
	__u8 max_dest_rd_atomic;
	/* RNR NAK timer code, 0 to 31 (IBTA Vol 1 table 45). */
	__u8 min_rnr_timer;
	/* Local ACK timeout: 4.096 µs · 2^timeout, 0 = none, at most 31. */
	__u8 timeout;
	/* Retries after a timeout or sequence error, 0 to 7. */
	__u8 retry_cnt;
	/* Retries after RNR NAK, 0 to 7; 7 = without end. */
	__u8 rnr_retry;
};
static_assert(sizeof(struct vrdma_qp_attr) == 72, "size of vrdma_qp_attr");
static_assert(offsetof(struct vrdma_qp_attr, state) == 0, "offset of vrdma_qp_attr.state");
static_assert(offsetof(struct vrdma_qp_attr, cur_state) == 1, "offset of vrdma_qp_attr.cur_state");
static_assert(offsetof(struct vrdma_qp_attr, path_mtu) == 2, "offset of vrdma_qp_attr.path_mtu");
static_assert(offsetof(struct vrdma_qp_attr, sq_drained_notify) == 3, "offset of vrdma_qp_attr.sq_drained_notify");
static_assert(offsetof(struct vrdma_qp_attr, access) == 4, "offset of vrdma_qp_attr.access");
static_assert(offsetof(struct vrdma_qp_attr, dest_qpn) == 8, "offset of vrdma_qp_attr.dest_qpn");
static_assert(offsetof(struct vrdma_qp_attr, rq_psn) == 12, "offset of vrdma_qp_attr.rq_psn");
static_assert(offsetof(struct vrdma_qp_attr, sq_psn) == 16, "offset of vrdma_qp_attr.sq_psn");
static_assert(offsetof(struct vrdma_qp_attr, qkey) == 20, "offset of vrdma_qp_attr.qkey");
static_assert(offsetof(struct vrdma_qp_attr, sgid) == 24, "offset of vrdma_qp_attr.sgid");
static_assert(offsetof(struct vrdma_qp_attr, dgid) == 40, "offset of vrdma_qp_attr.dgid");
static_assert(offsetof(struct vrdma_qp_attr, flow_label) == 56, "offset of vrdma_qp_attr.flow_label");
static_assert(offsetof(struct vrdma_qp_attr, pkey_index) == 60, "offset of vrdma_qp_attr.pkey_index");
static_assert(offsetof(struct vrdma_qp_attr, sgid_index) == 62, "offset of vrdma_qp_attr.sgid_index");
static_assert(offsetof(struct vrdma_qp_attr, hop_limit) == 63, "offset of vrdma_qp_attr.hop_limit");
static_assert(offsetof(struct vrdma_qp_attr, traffic_class) == 64, "offset of vrdma_qp_attr.traffic_class");
static_assert(offsetof(struct vrdma_qp_attr, sl) == 65, "offset of vrdma_qp_attr.sl");
static_assert(offsetof(struct vrdma_qp_attr, max_rd_atomic) == 66, "offset of vrdma_qp_attr.max_rd_atomic");
static_assert(offsetof(struct vrdma_qp_attr, max_dest_rd_atomic) == 67, "offset of vrdma_qp_attr.max_dest_rd_atomic");
static_assert(offsetof(struct vrdma_qp_attr, min_rnr_timer) == 68, "offset of vrdma_qp_attr.min_rnr_timer");
static_assert(offsetof(struct vrdma_qp_attr, timeout) == 69, "offset of vrdma_qp_attr.timeout");
static_assert(offsetof(struct vrdma_qp_attr, retry_cnt) == 70, "offset of vrdma_qp_attr.retry_cnt");
static_assert(offsetof(struct vrdma_qp_attr, rnr_retry) == 71, "offset of vrdma_qp_attr.rnr_retry");

/* OP_MODIFY_QP. */
struct vrdma_modify_qp {
	/* The queue pair. */
	__u32 qp;
	/* QP_ATTR_ bits: which attributes are given. */
	__u32 mask;
	/* The attributes. */
	struct vrdma_qp_attr attr;
};
static_assert(sizeof(struct vrdma_modify_qp) == 80, "size of vrdma_modify_qp");
static_assert(offsetof(struct vrdma_modify_qp, qp) == 0, "offset of vrdma_modify_qp.qp");
static_assert(offsetof(struct vrdma_modify_qp, mask) == 4, "offset of vrdma_modify_qp.mask");
static_assert(offsetof(struct vrdma_modify_qp, attr) == 8, "offset of vrdma_modify_qp.attr");

/* Reply to OP_QUERY_QP. */
struct vrdma_query_qp_reply {
	/* The attributes. sq_psn and rq_psn are the next PSNs to send and to receive. */
	struct vrdma_qp_attr attr;
	/* 1 while a QP in SQD still has sends to finish. */
	__u8 sq_draining;
	/* Zero. */
	__u8 reserved[7];
};
static_assert(sizeof(struct vrdma_query_qp_reply) == 80, "size of vrdma_query_qp_reply");
static_assert(offsetof(struct vrdma_query_qp_reply, attr) == 0, "offset of vrdma_query_qp_reply.attr");
static_assert(offsetof(struct vrdma_query_qp_reply, sq_draining) == 72, "offset of vrdma_query_qp_reply.sq_draining");
static_assert(offsetof(struct vrdma_query_qp_reply, reserved) == 73, "offset of vrdma_query_qp_reply.reserved");

/* OP_QUERY_COUNTERS. */
struct vrdma_query_counters {
	/* Zero. */
	__u64 reserved;
};
static_assert(sizeof(struct vrdma_query_counters) == 8, "size of vrdma_query_counters");
static_assert(offsetof(struct vrdma_query_counters, reserved) == 0, "offset of vrdma_query_counters.reserved");

/* Reply to OP_QUERY_COUNTERS: what this guest's traffic has been since its device was attached. */
struct vrdma_query_counters_reply {
	/*
	 * How many of the values the host knows; at most COUNTERS_MAX. Later versions append, so a guest and its host have the first of them in
	 * common.
	 */
	__u32 count;
	/* Zero. */
	__u32 reserved;
	/* The counters, in the order of their names in COUNTER_NAMES; zero from count on. */
	__u64 values[128];
};
static_assert(sizeof(struct vrdma_query_counters_reply) == 1032, "size of vrdma_query_counters_reply");
static_assert(offsetof(struct vrdma_query_counters_reply, count) == 0, "offset of vrdma_query_counters_reply.count");
static_assert(offsetof(struct vrdma_query_counters_reply, reserved) == 4, "offset of vrdma_query_counters_reply.reserved");
static_assert(offsetof(struct vrdma_query_counters_reply, values) == 8, "offset of vrdma_query_counters_reply.values");

/* ---- Events ---- */

/* A QP failed for a reason that no completion tells (IBV_EVENT_QP_FATAL). */
#define VRDMA_EVENT_QP_FATAL 1
/* A request violated the QP's transport (IBV_EVENT_QP_REQ_ERR). */
#define VRDMA_EVENT_QP_REQ_ERR 2
/* A request violated access rights (IBV_EVENT_QP_ACCESS_ERR). */
#define VRDMA_EVENT_QP_ACCESS_ERR 3
/* A packet arrived on a QP that was not yet ready to send (IBV_EVENT_COMM_EST). */
#define VRDMA_EVENT_COMM_EST 4
/* The send queue is drained (IBV_EVENT_SQ_DRAINED). */
#define VRDMA_EVENT_SQ_DRAINED 5
/* A completion queue overran (IBV_EVENT_CQ_ERR). */
#define VRDMA_EVENT_CQ_ERR 6
/* The device cannot go on; its epoch will change (IBV_EVENT_DEVICE_FATAL). */
#define VRDMA_EVENT_DEVICE_FATAL 7
/* A shared receive queue has fewer receives than its limit (IBV_EVENT_SRQ_LIMIT_REACHED). */
#define VRDMA_EVENT_SRQ_LIMIT 8
/* A shared receive queue failed (IBV_EVENT_SRQ_ERR). */
#define VRDMA_EVENT_SRQ_ERR 9
/* A QP with a shared receive queue is in error and takes no more receives from it (IBV_EVENT_QP_LAST_WQE_REACHED). */
#define VRDMA_EVENT_QP_LAST_WQE 10

/* A buffer of the queue QUEUE_EVENTS. */
struct vrdma_async_event {
	/* EVENT_. */
	__u32 kind;
	/* Handle of the QP, CQ or SRQ. */
	__u32 handle;
	/* The epoch to which the handle belongs. */
	__u64 epoch;
};
static_assert(sizeof(struct vrdma_async_event) == 16, "size of vrdma_async_event");
static_assert(offsetof(struct vrdma_async_event, kind) == 0, "offset of vrdma_async_event.kind");
static_assert(offsetof(struct vrdma_async_event, handle) == 4, "offset of vrdma_async_event.handle");
static_assert(offsetof(struct vrdma_async_event, epoch) == 8, "offset of vrdma_async_event.epoch");

/* A buffer of a completion-event queue: an armed completion queue got a completion. */
struct vrdma_comp_event {
	/* Handle of the completion queue. */
	__u32 cq;
	/* Zero. */
	__u32 reserved;
	/* The epoch to which the handle belongs. */
	__u64 epoch;
};
static_assert(sizeof(struct vrdma_comp_event) == 16, "size of vrdma_comp_event");
static_assert(offsetof(struct vrdma_comp_event, cq) == 0, "offset of vrdma_comp_event.cq");
static_assert(offsetof(struct vrdma_comp_event, reserved) == 4, "offset of vrdma_comp_event.reserved");
static_assert(offsetof(struct vrdma_comp_event, epoch) == 8, "offset of vrdma_comp_event.epoch");

/* ---- Doorbells ---- */

/* QPs in one group of dirty bytes, which share a summary byte. */
#define VRDMA_QPS_PER_GROUP 64
/* Groups in a doorbell page. */
#define VRDMA_DB_GROUPS 63
/* Most QPs that one context can have in one slot. */
#define VRDMA_QPS_PER_SLOT 4032
/* Bytes between the StatusLines of two slots. */
#define VRDMA_STATUS_LINE_BYTES 64
/*
 * The last line of the status page belongs to no slot. The guest's kernel stores 1 to its first word before user space can map
 * the page, and 0 when the RNIC's objects are gone (a new epoch, or the device is removed), so that user space stops
 * posting. A new epoch gets a new page. A mapping that the kernel has taken away reads as zero, which says the same.
 */
#define VRDMA_STATUS_LIVE_LINE 63

/* A page of a context's doorbell area. */
struct vrdma_doorbell_page {
	/* Byte g is not 0 when a dirty byte of group g is set. The last byte belongs to no group. */
	__u8 summary[64];
	/* Byte i is not 0 when the QP with index i has new work. */
	__u8 dirty[4032];
};
static_assert(sizeof(struct vrdma_doorbell_page) == 4096, "size of vrdma_doorbell_page");
static_assert(offsetof(struct vrdma_doorbell_page, summary) == 0, "offset of vrdma_doorbell_page.summary");
static_assert(offsetof(struct vrdma_doorbell_page, dirty) == 64, "offset of vrdma_doorbell_page.dirty");

/* One slot's line in the device's status page; line s stands at s * STATUS_LINE_BYTES. */
struct vrdma_status_line {
	/* Not 0 when the slot's engine sleeps and wants its doorbell to be rung. */
	__u32 need_kick;
	/* Zero. */
	__u32 reserved[15];
};
static_assert(sizeof(struct vrdma_status_line) == 64, "size of vrdma_status_line");
static_assert(offsetof(struct vrdma_status_line, need_kick) == 0, "offset of vrdma_status_line.need_kick");
static_assert(offsetof(struct vrdma_status_line, reserved) == 4, "offset of vrdma_status_line.reserved");

/* ---- Rings ---- */

/* Bytes of a completion queue entry. */
#define VRDMA_CQE_BYTES 64
/* Smallest stride of a work queue, as a power of two. */
#define VRDMA_STRIDE_SHIFT_MIN 6
/* Largest stride of a work queue, as a power of two. */
#define VRDMA_STRIDE_SHIFT_MAX 10
/* Send opcodes: the values of enum ibv_wr_opcode. RDMA write. */
#define VRDMA_SEND_OP_RDMA_WRITE 0
/* RDMA write with immediate data. */
#define VRDMA_SEND_OP_RDMA_WRITE_IMM 1
/* Send. */
#define VRDMA_SEND_OP_SEND 2
/* Send with immediate data. */
#define VRDMA_SEND_OP_SEND_IMM 3
/* RDMA read. */
#define VRDMA_SEND_OP_RDMA_READ 4
/* Atomic compare and swap. */
#define VRDMA_SEND_OP_CMP_SWAP 5
/* Atomic fetch and add. */
#define VRDMA_SEND_OP_FETCH_ADD 6
/* Local invalidate: imm_or_inv is the key of a window of type 2 or of a region with MR_FAST_REG. */
#define VRDMA_SEND_OP_LOCAL_INV 7
/* Bind a memory window: rkey is its key from then on. */
#define VRDMA_SEND_OP_BIND_MW 8
/* Send with remote invalidate of the key imm_or_inv. */
#define VRDMA_SEND_OP_SEND_INV 9
/* Fast registration (IB_WR_REG_MR): rkey is the key of the region from then on. Only QPs of a context with CONTEXT_KERNEL. */
#define VRDMA_SEND_OP_REG_MR 32
/*
 * In the send queue of a queue pair with QP_MULTIPATH: what is behind it starts when the chunks below the index rkey of the chunk ring are
 * done. It never writes a completion: what it stands for is told by the request behind it. Since version 1.3.
 */
#define VRDMA_SEND_OP_WAIT 128
/*
 * In a chunk ring: data of a message that the peer places into one of its receives. rkey is that receive's number, counted from 0 at RTS over the
 * requests of the send queue that take one (sends, and writes with immediate data); remote_addr is the offset in the message. The chunks of a
 * message have each byte before its end once, and are done before the end starts; otherwise the peer refuses it. It also refuses a number that is 64 or
 * more beyond that of the first receive whose message it does not have whole. Only with FEATURE_STEER. Since version 1.3.
 */
#define VRDMA_SEND_OP_STEER 129
/* The request writes a completion even if it succeeds. */
#define VRDMA_SEND_SIGNALED 1
/* The peer's completion is solicited. */
#define VRDMA_SEND_SOLICITED 2
/* Wait for earlier reads and atomics of this QP. */
#define VRDMA_SEND_FENCE 4
/* The data stands in the entry. */
#define VRDMA_SEND_INLINE 8
/* In a chunk ring: the chunk starts when the chunks below the index imm_or_inv of that ring are done. */
#define VRDMA_SEND_AFTER_CHUNK 16
/* In a chunk ring: the chunk starts when the entries of the send queue below the index in the low half of wr_id are done. */
#define VRDMA_SEND_AFTER_SQ 32
/*
 * In a send queue, with SEND_OP_SEND and SEND_OP_SEND_IMM: the end of a message whose beginning chunks have placed (SEND_OP_STEER). remote_addr is
 * the offset of its data in the message; the peer's completion tells the length of the whole.
 */
#define VRDMA_SEND_STEERED 64
/*
 * WorkHeader::splits: RDMA writes with immediate data. Their chunks are SEND_OP_RDMA_WRITE, and the end is a SEND_OP_RDMA_WRITE_IMM with
 * SendHeader::inline_bytes; the peer's completion tells the length of the whole.
 */
#define VRDMA_SPLIT_WRITE_IMM 1
/* Completion opcodes: the values of enum ibv_wc_opcode. */
#define VRDMA_WC_SEND 0
/* RDMA write. */
#define VRDMA_WC_RDMA_WRITE 1
/* RDMA read. */
#define VRDMA_WC_RDMA_READ 2
/* Compare and swap. */
#define VRDMA_WC_COMP_SWAP 3
/* Fetch and add. */
#define VRDMA_WC_FETCH_ADD 4
/* Bind a memory window. */
#define VRDMA_WC_BIND_MW 5
/* Local invalidate. */
#define VRDMA_WC_LOCAL_INV 6
/* Fast registration (IB_WC_REG_MR has another value in some kernels: the module translates). */
#define VRDMA_WC_REG_MR 8
/* A received send. */
#define VRDMA_WC_RECV 128
/* A received RDMA write with immediate data. */
#define VRDMA_WC_RECV_RDMA_WITH_IMM 129
/* Completion status: the values of enum ibv_wc_status. */
#define VRDMA_WC_SUCCESS 0
/* Local length error. */
#define VRDMA_WC_LOC_LEN_ERR 1
/* Local QP operation error. */
#define VRDMA_WC_LOC_QP_OP_ERR 2
/* Local protection error. */
#define VRDMA_WC_LOC_PROT_ERR 4
/* Work request flushed. */
#define VRDMA_WC_WR_FLUSH_ERR 5
/* Memory window bind error. */
#define VRDMA_WC_MW_BIND_ERR 6
/* Bad response. */
#define VRDMA_WC_BAD_RESP_ERR 7
/* Local access error. */
#define VRDMA_WC_LOC_ACCESS_ERR 8
/* Remote invalid request. */
#define VRDMA_WC_REM_INV_REQ_ERR 9
/* Remote access error. */
#define VRDMA_WC_REM_ACCESS_ERR 10
/* Remote operation error. */
#define VRDMA_WC_REM_OP_ERR 11
/* Transport retry counter exceeded. */
#define VRDMA_WC_RETRY_EXC_ERR 12
/* RNR retry counter exceeded. */
#define VRDMA_WC_RNR_RETRY_EXC_ERR 13
/* Remote aborted. */
#define VRDMA_WC_REM_ABORT_ERR 16
/* Fatal error. */
#define VRDMA_WC_FATAL_ERR 19
/* General error. */
#define VRDMA_WC_GENERAL_ERR 21
/* Cqe::flags: imm_or_inv holds immediate data. */
#define VRDMA_CQE_WITH_IMM 1
/* Cqe::flags: the entry belongs to a receive queue. */
#define VRDMA_CQE_RECV 2
/* Cqe::flags: the received message was solicited (or the entry reports an error). */
#define VRDMA_CQE_SOLICITED 4
/* Cqe::flags: the received data begins with a GRH (always so for datagrams). */
#define VRDMA_CQE_GRH 8
/* Cqe::flags: imm_or_inv holds a key that the peer has invalidated. */
#define VRDMA_CQE_WITH_INV 16
/* Cqe::flags: the receive came from a shared receive queue. */
#define VRDMA_CQE_SRQ 32
/* Cqe::flags: the GRH's network header is IPv4. */
#define VRDMA_CQE_IPV4 64
/* DatagramSegment::qkey: with this bit the QP's own Q_Key is sent instead (IBTA Vol 1 §10.2.5). */
#define VRDMA_QKEY_OF_QP 0xffffffff80000000U
/* CqHeader::arm: no event wanted. */
#define VRDMA_ARM_NONE 0
/* CqHeader::arm: an event for the next solicited or failed completion. */
#define VRDMA_ARM_SOLICITED 1
/* CqHeader::arm: an event for the next completion. */
#define VRDMA_ARM_NEXT 2

/* First stride of a send or receive queue. */
struct vrdma_work_header {
	/* Index of the next entry that the guest will write; only the guest stores it. */
	__u32 producer;
	/*
	 * In a shared receive queue, index of the next entry that the RNIC will take; in a chunk ring, index of the first chunk that is not
	 * done. Only the RNIC stores it.
	 */
	__u32 taken;
	/* In a chunk ring, from RTR on: how many paths are used, at least 1. With 1 the ring is not used. Only the RNIC stores it. */
	__u32 paths;
	/* In a chunk ring: how many paths may carry chunks at a time; 0: as many as there are. Only the guest stores it, before RTR. Since version 1.4. */
	__u32 most_paths;
	/*
	 * In a chunk ring, from RTR on: what can be split towards this peer besides WRITEs, READs and, with FEATURE_STEER, SENDs: SPLIT_ bits, of which
	 * those that the guest does not know mean nothing. Only the RNIC stores it, before `paths`. Since version 1.4.
	 */
	__u32 splits;
	/* Zero. */
	__u32 reserved[11];
};
static_assert(sizeof(struct vrdma_work_header) == 64, "size of vrdma_work_header");
static_assert(offsetof(struct vrdma_work_header, producer) == 0, "offset of vrdma_work_header.producer");
static_assert(offsetof(struct vrdma_work_header, taken) == 4, "offset of vrdma_work_header.taken");
static_assert(offsetof(struct vrdma_work_header, paths) == 8, "offset of vrdma_work_header.paths");
static_assert(offsetof(struct vrdma_work_header, most_paths) == 12, "offset of vrdma_work_header.most_paths");
static_assert(offsetof(struct vrdma_work_header, splits) == 16, "offset of vrdma_work_header.splits");
static_assert(offsetof(struct vrdma_work_header, reserved) == 20, "offset of vrdma_work_header.reserved");

/* First stride of a completion queue. */
struct vrdma_cq_header {
	/* Index of the next entry that the guest will read; only the guest stores it. */
	__u32 consumer;
	/* ARM_. */
	__u32 arm;
	/* Zero. */
	__u32 reserved[14];
};
static_assert(sizeof(struct vrdma_cq_header) == 64, "size of vrdma_cq_header");
static_assert(offsetof(struct vrdma_cq_header, consumer) == 0, "offset of vrdma_cq_header.consumer");
static_assert(offsetof(struct vrdma_cq_header, arm) == 4, "offset of vrdma_cq_header.arm");
static_assert(offsetof(struct vrdma_cq_header, reserved) == 8, "offset of vrdma_cq_header.reserved");

/* A scatter/gather entry. */
struct vrdma_sge {
	/* Address within the region (its iova counts). */
	__u64 addr;
	/* Bytes. */
	__u32 length;
	/* The region. */
	__u32 lkey;
};
static_assert(sizeof(struct vrdma_sge) == 16, "size of vrdma_sge");
static_assert(offsetof(struct vrdma_sge, addr) == 0, "offset of vrdma_sge.addr");
static_assert(offsetof(struct vrdma_sge, length) == 8, "offset of vrdma_sge.length");
static_assert(offsetof(struct vrdma_sge, lkey) == 12, "offset of vrdma_sge.lkey");

/* Head of a send entry. */
struct vrdma_send_header {
	/* SEND_OP_. */
	__u8 opcode;
	/* SEND_ bits. */
	__u8 flags;
	/* Scatter/gather entries that follow; 0 with SEND_INLINE. */
	__u8 num_sge;
	/* Zero. */
	__u8 reserved;
	/* Immediate data, as four bytes in the order of the wire; or the key to invalidate. */
	__u32 imm_or_inv;
	/* Returned in the completion. */
	__u64 wr_id;
	/* The peer's address of an RDMA request. */
	__u64 remote_addr;
	/* The peer's key of an RDMA request. */
	__u32 rkey;
	/*
	 * Bytes of inline data, with SEND_INLINE. Of a SEND_OP_RDMA_READ in the send queue of a queue pair with QP_MULTIPATH: bytes of the message that chunks
	 * have read; its completion counts them. Of a SEND_OP_RDMA_WRITE_IMM there, where SPLIT_WRITE_IMM is set: bytes that chunks have written. Else zero.
	 */
	__u32 inline_bytes;
};
static_assert(sizeof(struct vrdma_send_header) == 32, "size of vrdma_send_header");
static_assert(offsetof(struct vrdma_send_header, opcode) == 0, "offset of vrdma_send_header.opcode");
static_assert(offsetof(struct vrdma_send_header, flags) == 1, "offset of vrdma_send_header.flags");
static_assert(offsetof(struct vrdma_send_header, num_sge) == 2, "offset of vrdma_send_header.num_sge");
static_assert(offsetof(struct vrdma_send_header, reserved) == 3, "offset of vrdma_send_header.reserved");
static_assert(offsetof(struct vrdma_send_header, imm_or_inv) == 4, "offset of vrdma_send_header.imm_or_inv");
static_assert(offsetof(struct vrdma_send_header, wr_id) == 8, "offset of vrdma_send_header.wr_id");
static_assert(offsetof(struct vrdma_send_header, remote_addr) == 16, "offset of vrdma_send_header.remote_addr");
static_assert(offsetof(struct vrdma_send_header, rkey) == 24, "offset of vrdma_send_header.rkey");
static_assert(offsetof(struct vrdma_send_header, inline_bytes) == 28, "offset of vrdma_send_header.inline_bytes");

/*
 * Follows SendHeader in the queue of a UD or GSI QP: where the datagram goes. An address handle is these fields; the RNIC checks
 * them when it sends.
 */
struct vrdma_datagram_segment {
	/* The destination GID. */
	__u8 dgid[16];
	/* The destination QP; 1 is the destination's GSI. */
	__u32 dest_qpn;
	/* Q_Key; see QKEY_OF_QP. */
	__u32 qkey;
	/* Flow label, 20 bits. */
	__u32 flow_label;
	/* Entry of the GID table. */
	__u8 sgid_index;
	/* Hop limit. */
	__u8 hop_limit;
	/* Traffic class. */
	__u8 traffic_class;
	/* Service level. */
	__u8 sl;
};
static_assert(sizeof(struct vrdma_datagram_segment) == 32, "size of vrdma_datagram_segment");
static_assert(offsetof(struct vrdma_datagram_segment, dgid) == 0, "offset of vrdma_datagram_segment.dgid");
static_assert(offsetof(struct vrdma_datagram_segment, dest_qpn) == 16, "offset of vrdma_datagram_segment.dest_qpn");
static_assert(offsetof(struct vrdma_datagram_segment, qkey) == 20, "offset of vrdma_datagram_segment.qkey");
static_assert(offsetof(struct vrdma_datagram_segment, flow_label) == 24, "offset of vrdma_datagram_segment.flow_label");
static_assert(offsetof(struct vrdma_datagram_segment, sgid_index) == 28, "offset of vrdma_datagram_segment.sgid_index");
static_assert(offsetof(struct vrdma_datagram_segment, hop_limit) == 29, "offset of vrdma_datagram_segment.hop_limit");
static_assert(offsetof(struct vrdma_datagram_segment, traffic_class) == 30, "offset of vrdma_datagram_segment.traffic_class");
static_assert(offsetof(struct vrdma_datagram_segment, sl) == 31, "offset of vrdma_datagram_segment.sl");

/* Follows SendHeader in the queue of an XRC initiator. */
struct vrdma_xrc_segment {
	/* The number of the destination's shared receive queue. */
	__u32 srqn;
	/* Zero. */
	__u32 reserved[3];
};
static_assert(sizeof(struct vrdma_xrc_segment) == 16, "size of vrdma_xrc_segment");
static_assert(offsetof(struct vrdma_xrc_segment, srqn) == 0, "offset of vrdma_xrc_segment.srqn");
static_assert(offsetof(struct vrdma_xrc_segment, reserved) == 4, "offset of vrdma_xrc_segment.reserved");

/* Follows SendHeader with SEND_OP_BIND_MW. A length of 0 unbinds a window of type 1. */
struct vrdma_bind_segment {
	/* The region's key; it needs ACCESS_MW_BIND. */
	__u32 mr_lkey;
	/* ACCESS_REMOTE_ bits, and ACCESS_ZERO_BASED. */
	__u32 access;
	/* First address, in the region. */
	__u64 addr;
	/* Bytes. */
	__u64 length;
	/* Zero. */
	__u64 reserved;
};
static_assert(sizeof(struct vrdma_bind_segment) == 32, "size of vrdma_bind_segment");
static_assert(offsetof(struct vrdma_bind_segment, mr_lkey) == 0, "offset of vrdma_bind_segment.mr_lkey");
static_assert(offsetof(struct vrdma_bind_segment, access) == 4, "offset of vrdma_bind_segment.access");
static_assert(offsetof(struct vrdma_bind_segment, addr) == 8, "offset of vrdma_bind_segment.addr");
static_assert(offsetof(struct vrdma_bind_segment, length) == 16, "offset of vrdma_bind_segment.length");
static_assert(offsetof(struct vrdma_bind_segment, reserved) == 24, "offset of vrdma_bind_segment.reserved");

/* Follows SendHeader with SEND_OP_REG_MR. */
struct vrdma_reg_segment {
	/* The address by which work requests name the first byte. */
	__u64 iova;
	/* Length in bytes. */
	__u64 length;
	/* ACCESS_ bits. */
	__u32 access;
	/* Size of each page: a power of two, 12 or more. */
	__u32 page_shift;
	/* Guest-physical address of the list: up to FAST_REG_MAX_PAGES guest-physical addresses, all in one page. */
	__u64 list;
};
static_assert(sizeof(struct vrdma_reg_segment) == 32, "size of vrdma_reg_segment");
static_assert(offsetof(struct vrdma_reg_segment, iova) == 0, "offset of vrdma_reg_segment.iova");
static_assert(offsetof(struct vrdma_reg_segment, length) == 8, "offset of vrdma_reg_segment.length");
static_assert(offsetof(struct vrdma_reg_segment, access) == 16, "offset of vrdma_reg_segment.access");
static_assert(offsetof(struct vrdma_reg_segment, page_shift) == 20, "offset of vrdma_reg_segment.page_shift");
static_assert(offsetof(struct vrdma_reg_segment, list) == 24, "offset of vrdma_reg_segment.list");

/* Follows SendHeader when the opcode is an atomic. */
struct vrdma_atomic_segment {
	/* What to compare with, or to add. */
	__u64 compare_add;
	/* What to store if the comparison holds. */
	__u64 swap;
};
static_assert(sizeof(struct vrdma_atomic_segment) == 16, "size of vrdma_atomic_segment");
static_assert(offsetof(struct vrdma_atomic_segment, compare_add) == 0, "offset of vrdma_atomic_segment.compare_add");
static_assert(offsetof(struct vrdma_atomic_segment, swap) == 8, "offset of vrdma_atomic_segment.swap");

/* Head of a receive entry. */
struct vrdma_recv_header {
	/* Returned in the completion. */
	__u64 wr_id;
	/* Scatter/gather entries that follow. */
	__u32 num_sge;
	/* Zero. */
	__u32 reserved;
};
static_assert(sizeof(struct vrdma_recv_header) == 16, "size of vrdma_recv_header");
static_assert(offsetof(struct vrdma_recv_header, wr_id) == 0, "offset of vrdma_recv_header.wr_id");
static_assert(offsetof(struct vrdma_recv_header, num_sge) == 8, "offset of vrdma_recv_header.num_sge");
static_assert(offsetof(struct vrdma_recv_header, reserved) == 12, "offset of vrdma_recv_header.reserved");

/* A completion queue entry. */
struct vrdma_cqe {
	/* The work request's. */
	__u64 wr_id;
	/* The QP's number. */
	__u32 qpn;
	/* CreateQp::cookie of the QP. */
	__u32 cookie;
	/* Bytes received, read or swapped. */
	__u32 byte_len;
	/* Immediate data, as four bytes in the order of the wire. */
	__u32 imm_or_inv;
	/* The sender's QP number, for UD. */
	__u32 src_qpn;
	/* Index of the work queue's entry after this one: all entries below it may be reused. */
	__u32 consumer;
	/* Why the request failed, for people: an RNIC's own number, 0 on success. */
	__u32 vendor_err;
	/* Zero. */
	__u32 reserved0;
	/* Time of completion in nanoseconds of the host's monotonic clock, or 0. */
	__u64 timestamp_ns;
	/* Service level of a datagram. */
	__u8 sl;
	/* Zero. */
	__u8 reserved1[11];
	/* WC_ status. */
	__u8 status;
	/* WC_ opcode. */
	__u8 opcode;
	/* CQE_ bits. */
	__u8 flags;
	/* The phase: see the module's text. */
	__u8 phase;
};
static_assert(sizeof(struct vrdma_cqe) == 64, "size of vrdma_cqe");
static_assert(offsetof(struct vrdma_cqe, wr_id) == 0, "offset of vrdma_cqe.wr_id");
static_assert(offsetof(struct vrdma_cqe, qpn) == 8, "offset of vrdma_cqe.qpn");
static_assert(offsetof(struct vrdma_cqe, cookie) == 12, "offset of vrdma_cqe.cookie");
static_assert(offsetof(struct vrdma_cqe, byte_len) == 16, "offset of vrdma_cqe.byte_len");
static_assert(offsetof(struct vrdma_cqe, imm_or_inv) == 20, "offset of vrdma_cqe.imm_or_inv");
static_assert(offsetof(struct vrdma_cqe, src_qpn) == 24, "offset of vrdma_cqe.src_qpn");
static_assert(offsetof(struct vrdma_cqe, consumer) == 28, "offset of vrdma_cqe.consumer");
static_assert(offsetof(struct vrdma_cqe, vendor_err) == 32, "offset of vrdma_cqe.vendor_err");
static_assert(offsetof(struct vrdma_cqe, reserved0) == 36, "offset of vrdma_cqe.reserved0");
static_assert(offsetof(struct vrdma_cqe, timestamp_ns) == 40, "offset of vrdma_cqe.timestamp_ns");
static_assert(offsetof(struct vrdma_cqe, sl) == 48, "offset of vrdma_cqe.sl");
static_assert(offsetof(struct vrdma_cqe, reserved1) == 49, "offset of vrdma_cqe.reserved1");
static_assert(offsetof(struct vrdma_cqe, status) == 60, "offset of vrdma_cqe.status");
static_assert(offsetof(struct vrdma_cqe, opcode) == 61, "offset of vrdma_cqe.opcode");
static_assert(offsetof(struct vrdma_cqe, flags) == 62, "offset of vrdma_cqe.flags");
static_assert(offsetof(struct vrdma_cqe, phase) == 63, "offset of vrdma_cqe.phase");

/* ---- Kernel module and provider ---- */

/* uverbs ABI version of the module (ib_device_ops.uverbs_abi_ver). */
#define VRDMA_UVERBS_ABI 2

/* Reply to alloc_ucontext. */
struct vrdma_user_context_reply {
	/* The device's status page (one page, read-only). */
	__u64 status_offset;
	/* The doorbell area: num_db_slots pages of DoorbellPage. */
	__u64 doorbell_offset;
	/* The doorbell registers: num_db_slots pages; writing kick_value + slot as 16 bits at the start of page slot rings it. */
	__u64 kick_offset;
	/* Doorbell slots. */
	__u32 num_db_slots;
	/* Virtqueue index of slot 0. */
	__u32 kick_value;
	/* Most bytes of inline data. */
	__u32 max_inline_bytes;
	/* Most scatter/gather entries of a send. */
	__u32 max_send_sge;
	/* The features in use: those of Config::features that the module knows. */
	__u64 features;
	/* Config::max_msg_bytes. This and what follows: 0 from modules that know no queue pairs with several paths. */
	__u32 max_msg_bytes;
	/* Paths that a queue pair can have; with less than 2 there are no chunk rings. */
	__u32 paths;
};
static_assert(sizeof(struct vrdma_user_context_reply) == 56, "size of vrdma_user_context_reply");
static_assert(offsetof(struct vrdma_user_context_reply, status_offset) == 0, "offset of vrdma_user_context_reply.status_offset");
static_assert(offsetof(struct vrdma_user_context_reply, doorbell_offset) == 8, "offset of vrdma_user_context_reply.doorbell_offset");
static_assert(offsetof(struct vrdma_user_context_reply, kick_offset) == 16, "offset of vrdma_user_context_reply.kick_offset");
static_assert(offsetof(struct vrdma_user_context_reply, num_db_slots) == 24, "offset of vrdma_user_context_reply.num_db_slots");
static_assert(offsetof(struct vrdma_user_context_reply, kick_value) == 28, "offset of vrdma_user_context_reply.kick_value");
static_assert(offsetof(struct vrdma_user_context_reply, max_inline_bytes) == 32, "offset of vrdma_user_context_reply.max_inline_bytes");
static_assert(offsetof(struct vrdma_user_context_reply, max_send_sge) == 36, "offset of vrdma_user_context_reply.max_send_sge");
static_assert(offsetof(struct vrdma_user_context_reply, features) == 40, "offset of vrdma_user_context_reply.features");
static_assert(offsetof(struct vrdma_user_context_reply, max_msg_bytes) == 48, "offset of vrdma_user_context_reply.max_msg_bytes");
static_assert(offsetof(struct vrdma_user_context_reply, paths) == 52, "offset of vrdma_user_context_reply.paths");

/* Reply to create_cq and resize_cq. */
struct vrdma_user_cq_reply {
	/* The ring: header and entries. */
	__u64 ring_offset;
	/* Its length in bytes, whole pages. */
	__u32 ring_bytes;
	/* Number of entries. */
	__u32 entries;
	/* RING_FORMAT_1. */
	__u32 ring_format;
	/* Zero. */
	__u32 reserved;
};
static_assert(sizeof(struct vrdma_user_cq_reply) == 24, "size of vrdma_user_cq_reply");
static_assert(offsetof(struct vrdma_user_cq_reply, ring_offset) == 0, "offset of vrdma_user_cq_reply.ring_offset");
static_assert(offsetof(struct vrdma_user_cq_reply, ring_bytes) == 8, "offset of vrdma_user_cq_reply.ring_bytes");
static_assert(offsetof(struct vrdma_user_cq_reply, entries) == 12, "offset of vrdma_user_cq_reply.entries");
static_assert(offsetof(struct vrdma_user_cq_reply, ring_format) == 16, "offset of vrdma_user_cq_reply.ring_format");
static_assert(offsetof(struct vrdma_user_cq_reply, reserved) == 20, "offset of vrdma_user_cq_reply.reserved");

/* Reply to create_srq and create_xsrq. */
struct vrdma_user_srq_reply {
	/* The ring: header and entries. */
	__u64 ring_offset;
	/* Its length in bytes, whole pages. */
	__u32 ring_bytes;
	/* Entries. */
	__u32 entries;
	/* RING_FORMAT_1. */
	__u32 ring_format;
	/* Bytes between entries, as a power of two. */
	__u8 stride_shift;
	/* Zero. */
	__u8 reserved[3];
};
static_assert(sizeof(struct vrdma_user_srq_reply) == 24, "size of vrdma_user_srq_reply");
static_assert(offsetof(struct vrdma_user_srq_reply, ring_offset) == 0, "offset of vrdma_user_srq_reply.ring_offset");
static_assert(offsetof(struct vrdma_user_srq_reply, ring_bytes) == 8, "offset of vrdma_user_srq_reply.ring_bytes");
static_assert(offsetof(struct vrdma_user_srq_reply, entries) == 12, "offset of vrdma_user_srq_reply.entries");
static_assert(offsetof(struct vrdma_user_srq_reply, ring_format) == 16, "offset of vrdma_user_srq_reply.ring_format");
static_assert(offsetof(struct vrdma_user_srq_reply, stride_shift) == 20, "offset of vrdma_user_srq_reply.stride_shift");
static_assert(offsetof(struct vrdma_user_srq_reply, reserved) == 21, "offset of vrdma_user_srq_reply.reserved");

/* Request of create_qp. */
struct vrdma_user_qp_request {
	/* CreateQp::cookie: the provider's number for the QP. */
	__u32 cookie;
	/*
	 * Entries of a chunk ring that the QP is to have (QP_MULTIPATH), a power of two, at most Config::max_qp_wr; 0: none. EOPNOTSUPP from modules and hosts
	 * that have none, and for QPs of other types than RC.
	 */
	__u32 chunk_entries;
};
static_assert(sizeof(struct vrdma_user_qp_request) == 8, "size of vrdma_user_qp_request");
static_assert(offsetof(struct vrdma_user_qp_request, cookie) == 0, "offset of vrdma_user_qp_request.cookie");
static_assert(offsetof(struct vrdma_user_qp_request, chunk_entries) == 4, "offset of vrdma_user_qp_request.chunk_entries");

/* Reply to create_qp. */
struct vrdma_user_qp_reply {
	/* The send queue: header and entries. */
	__u64 sq_offset;
	/* The receive queue: header and entries. */
	__u64 rq_offset;
	/* Length of the send queue in bytes, whole pages; 0 when there is none. */
	__u32 sq_bytes;
	/* Length of the receive queue in bytes, whole pages; 0 when there is none. */
	__u32 rq_bytes;
	/* Entries of the send queue. With a chunk ring up to twice the max_send_wr of the QP, as a split message takes two. */
	__u32 sq_entries;
	/* Entries of the receive queue. */
	__u32 rq_entries;
	/* Bytes between entries of the send queue, as a power of two. */
	__u8 sq_stride_shift;
	/* Bytes between entries of the receive queue, as a power of two. */
	__u8 rq_stride_shift;
	/* Doorbell slot. */
	__u16 db_slot;
	/* Index in the context's DoorbellPage of that slot. */
	__u16 db_index;
	/* Most bytes of inline data. */
	__u16 max_inline_bytes;
	/* RING_FORMAT_1. */
	__u32 ring_format;
	/* Entries of the chunk ring; 0 when there is none. Its stride is that of the send queue. */
	__u32 chunk_entries;
	/* The chunk ring: header and entries. */
	__u64 chunks_offset;
	/* Length of the chunk ring in bytes, whole pages. */
	__u32 chunks_bytes;
	/* Zero. */
	__u32 reserved;
};
static_assert(sizeof(struct vrdma_user_qp_reply) == 64, "size of vrdma_user_qp_reply");
static_assert(offsetof(struct vrdma_user_qp_reply, sq_offset) == 0, "offset of vrdma_user_qp_reply.sq_offset");
static_assert(offsetof(struct vrdma_user_qp_reply, rq_offset) == 8, "offset of vrdma_user_qp_reply.rq_offset");
static_assert(offsetof(struct vrdma_user_qp_reply, sq_bytes) == 16, "offset of vrdma_user_qp_reply.sq_bytes");
static_assert(offsetof(struct vrdma_user_qp_reply, rq_bytes) == 20, "offset of vrdma_user_qp_reply.rq_bytes");
static_assert(offsetof(struct vrdma_user_qp_reply, sq_entries) == 24, "offset of vrdma_user_qp_reply.sq_entries");
static_assert(offsetof(struct vrdma_user_qp_reply, rq_entries) == 28, "offset of vrdma_user_qp_reply.rq_entries");
static_assert(offsetof(struct vrdma_user_qp_reply, sq_stride_shift) == 32, "offset of vrdma_user_qp_reply.sq_stride_shift");
static_assert(offsetof(struct vrdma_user_qp_reply, rq_stride_shift) == 33, "offset of vrdma_user_qp_reply.rq_stride_shift");
static_assert(offsetof(struct vrdma_user_qp_reply, db_slot) == 34, "offset of vrdma_user_qp_reply.db_slot");
static_assert(offsetof(struct vrdma_user_qp_reply, db_index) == 36, "offset of vrdma_user_qp_reply.db_index");
static_assert(offsetof(struct vrdma_user_qp_reply, max_inline_bytes) == 38, "offset of vrdma_user_qp_reply.max_inline_bytes");
static_assert(offsetof(struct vrdma_user_qp_reply, ring_format) == 40, "offset of vrdma_user_qp_reply.ring_format");
static_assert(offsetof(struct vrdma_user_qp_reply, chunk_entries) == 44, "offset of vrdma_user_qp_reply.chunk_entries");
static_assert(offsetof(struct vrdma_user_qp_reply, chunks_offset) == 48, "offset of vrdma_user_qp_reply.chunks_offset");
static_assert(offsetof(struct vrdma_user_qp_reply, chunks_bytes) == 56, "offset of vrdma_user_qp_reply.chunks_bytes");
static_assert(offsetof(struct vrdma_user_qp_reply, reserved) == 60, "offset of vrdma_user_qp_reply.reserved");

/* ---- Counters ---- */

/* The elements of an array, made of their names, in the order of struct vrdma_query_counters_reply. */
#define VRDMA_COUNTERS(counter) \
	counter("tx_bytes"), \
	counter("tx_pkts"), \
	counter("rx_bytes"), \
	counter("rx_pkts"), \
	counter("sent_pkts"), \
	counter("rcvd_pkts"), \
	counter("sent_msgs"), \
	counter("rcvd_msgs"), \
	counter("duplicate_request"), \
	counter("out_of_sequence"), \
	counter("send_rnr_err"), \
	counter("rcvd_rnr_err"), \
	counter("packet_seq_err"), \
	counter("implied_nak_request"), \
	counter("local_ack_timeout_err"), \
	counter("retransmitted_pkts"), \
	counter("retry_exceeded_err"), \
	counter("rnr_nak_retry_err"), \
	counter("req_cqe_error"), \
	counter("req_cqe_flush_error"), \
	counter("resp_cqe_error"), \
	counter("resp_cqe_flush_error"), \
	counter("resp_local_length_error"), \
	counter("resp_remote_invalid_request"), \
	counter("resp_remote_access_errors"), \
	counter("req_remote_invalid_request"), \
	counter("req_remote_access_errors"), \
	counter("np_ecn_marked_roce_packets"), \
	counter("rx_dropped"), \
	counter("sent_selective_acks"), \
	counter("rcvd_selective_acks"), \
	counter("selective_repairs"), \
	counter("probes"), \
	counter("early_pkts_kept"), \
	counter("early_pkts_dropped"), \
	counter("np_cnp_sent"), \
	counter("rp_cnp_handled"), \
	counter("rp_cnp_ignored"),

#endif /* VRDMA_ABI_H */
