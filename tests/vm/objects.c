// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * What the kernel module promises of each kind of object, asked of the installed libibverbs and provider in a real
 * guest: that it works on one device, that limits and refusals are as verbs say, and that nothing is left of it.
 *
 *   objects DEVICE GID_INDEX [TEST...]    the tests that are named, or all but the next two
 *   objects DEVICE GID_INDEX limit        to be run by a user without privileges
 *   objects DEVICE GID_INDEX hold         makes one of each, waits until the device is gone, and ends them
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "check.h"

/* A verb that returns an errno fails with just this one. */
#define REFUSED(call, error)                                                                        \
	do {                                                                                        \
		int got = (call);                                                                   \
		if (got != (error)) {                                                               \
			fprintf(stderr, "line %d: %s gave %d instead of %d\n", __LINE__, #call,     \
				got, (error));                                                      \
			exit(1);                                                                    \
		}                                                                                   \
	} while (0)

enum { QKEY = 0x11111111, SIZE = 1 << 16, GRH = 40 };

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_mr *mr;
static int gid_index;
static union ibv_gid gid;
static char *memory;

static const int ACCESS = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
			  IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_MW_BIND;

static const int WRITABLE = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;

/* ---- helpers ---- */

static struct ibv_ah_attr to_self(void)
{
	return (struct ibv_ah_attr){
		.is_global = 1, .port_num = 1,
		.grh = { .dgid = gid, .sgid_index = gid_index, .hop_limit = 64 },
	};
}

static struct ibv_qp *create(enum ibv_qp_type type, struct ibv_srq *srq)
{
	struct ibv_qp_init_attr attr = {
		.send_cq = cq, .recv_cq = cq, .srq = srq, .qp_type = type, .sq_sig_all = 1,
		.cap = { 16, srq ? 0 : 16, 2, srq ? 0 : 2, 64 },
	};
	struct ibv_qp *qp = ibv_create_qp(pd, &attr);

	CHECK(qp);
	CHECK(attr.cap.max_send_wr >= 16 && attr.cap.max_send_sge >= 2 && attr.cap.max_inline_data >= 64);
	CHECK(srq ? !attr.cap.max_recv_wr : attr.cap.max_recv_wr >= 16);
	return qp;
}

static void to_init(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY };
	int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT;

	if (qp->qp_type == IBV_QPT_UD) {
		mask |= IBV_QP_QKEY;
	} else {
		attr.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
		mask |= IBV_QP_ACCESS_FLAGS;
	}
	REFUSED(ibv_modify_qp(qp, &attr, mask), 0);
}

static void connect_to(struct ibv_qp *qp, uint32_t peer)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer, .ah_attr = to_self(),
		.max_dest_rd_atomic = 4, .min_rnr_timer = 1,
	};
	int mask = IBV_QP_STATE;

	to_init(qp);
	if (qp->qp_type != IBV_QPT_UD)
		mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
	if (qp->qp_type == IBV_QPT_RC || qp->qp_type == IBV_QPT_XRC_RECV)
		mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
	REFUSED(ibv_modify_qp(qp, &attr, mask), 0);

	attr = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTS, .timeout = 18, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 4,
	};
	mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
	if (qp->qp_type == IBV_QPT_RC || qp->qp_type == IBV_QPT_XRC_SEND)
		mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
	if (qp->qp_type == IBV_QPT_XRC_RECV)
		mask |= IBV_QP_TIMEOUT;
	REFUSED(ibv_modify_qp(qp, &attr, mask), 0);
}

static struct ibv_wc complete_of(struct ibv_cq *queue)
{
	double end = now() + 20;
	struct ibv_wc wc;
	int n;

	while (!(n = ibv_poll_cq(queue, 1, &wc)))
		CHECK(now() < end);
	CHECK(n == 1);
	return wc;
}

static struct ibv_wc complete(void)
{
	return complete_of(cq);
}

/* Polls one completion of each of a send and a receive, in whatever order. */
static struct ibv_wc receive(void)
{
	struct ibv_wc got = {}, wc;

	for (int i = 0; i < 2; i++) {
		wc = complete();
		if (wc.status != IBV_WC_SUCCESS)
			fprintf(stderr, "status %d (%s) opcode %d\n", wc.status, ibv_wc_status_str(wc.status), wc.opcode);
		CHECK(wc.status == IBV_WC_SUCCESS);
		if (wc.opcode & IBV_WC_RECV)
			got = wc;
	}
	CHECK(got.opcode & IBV_WC_RECV);
	return got;
}

static int post(struct ibv_qp *qp, struct ibv_send_wr wr)
{
	struct ibv_send_wr *bad;

	return ibv_post_send(qp, &wr, &bad);
}

static struct ibv_sge piece(size_t offset, uint32_t length)
{
	return (struct ibv_sge){ (uintptr_t)memory + offset, length, mr->lkey };
}

static void post_recv(struct ibv_qp *qp, struct ibv_srq *srq, size_t offset, uint32_t length, uint64_t id)
{
	struct ibv_sge sge = piece(offset, length);
	struct ibv_recv_wr wr = { .wr_id = id, .sg_list = &sge, .num_sge = 1 }, *bad;

	REFUSED(srq ? ibv_post_srq_recv(srq, &wr, &bad) : ibv_post_recv(qp, &wr, &bad), 0);
}

static enum ibv_event_type event(void)
{
	struct pollfd fd = { context->async_fd, POLLIN, 0 };
	struct ibv_async_event e;

	CHECK(poll(&fd, 1, 20000) == 1);
	CHECK(!ibv_get_async_event(context, &e));
	ibv_ack_async_event(&e);
	return e.event_type;
}

/* What this process has pinned, in KiB. */
static long pinned(void)
{
	char line[256];
	long kib = -1;
	FILE *f = fopen("/proc/self/status", "r");

	CHECK(f);
	while (fgets(line, sizeof(line), f))
		sscanf(line, "VmPin: %ld", &kib);
	fclose(f);
	CHECK(kib >= 0);
	return kib;
}

/* ---- tests ---- */

static void attributes(void)
{
	struct ibv_device_attr_ex ex = {};
	struct ibv_port_attr port;
	struct ibv_device_attr *a = &ex.orig_attr;

	REFUSED(ibv_query_device_ex(context, NULL, &ex), 0);
	CHECK(a->max_srq > 0 && a->max_srq_wr > 0 && a->max_srq_sge > 0 && a->max_mw > 0 && a->max_ah > 0);
	CHECK(a->device_cap_flags & IBV_DEVICE_XRC && a->device_cap_flags & IBV_DEVICE_MEM_WINDOW);
	CHECK(a->device_cap_flags & IBV_DEVICE_MEM_WINDOW_TYPE_2B);
	CHECK(!(a->device_cap_flags & IBV_DEVICE_SRQ_RESIZE) && a->max_mcast_grp == 0);
	CHECK(ex.completion_timestamp_mask == UINT64_MAX && ex.hca_core_clock == 1000000);
	REFUSED(ibv_query_port(context, 1, &port), 0);
	CHECK(port.flags & IBV_QPF_GRH_REQUIRED || port.port_cap_flags & IBV_PORT_CM_SUP);
}

static void datagrams(void)
{
	struct ibv_qp *a = create(IBV_QPT_UD, NULL), *b = create(IBV_QPT_UD, NULL);
	struct ibv_ah_attr where = to_self();
	struct ibv_ah *ah = ibv_create_ah(pd, &where);
	struct ibv_sge sge = piece(0, 256);
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr;
	struct ibv_wc wc;

	CHECK(ah);
	connect_to(a, 0);
	connect_to(b, 0);
	REFUSED(ibv_query_qp(a, &attr, IBV_QP_STATE | IBV_QP_QKEY | IBV_QP_AV, &init), 0);
	CHECK(attr.qp_state == IBV_QPS_RTS && attr.qkey == QKEY && init.qp_type == IBV_QPT_UD);

	memset(memory, 7, 256);
	memset(memory + 4096, 0, 512);
	post_recv(b, NULL, 4096, 512, 1);
	REFUSED(post(a, (struct ibv_send_wr){ .opcode = IBV_WR_SEND_WITH_IMM, .imm_data = 5, .sg_list = &sge, .num_sge = 1,
					      .wr.ud = { ah, b->qp_num, QKEY } }), 0);
	wc = receive();
	CHECK(wc.byte_len == 256 + GRH && wc.src_qp == a->qp_num && wc.wc_flags & IBV_WC_GRH && wc.imm_data == 5);
	CHECK(!memcmp(memory, memory + 4096 + GRH, 256));

	/* There are no multicast groups. */
	union ibv_gid group = { .raw = { 0xff, 0x0e } };
	REFUSED(ibv_attach_mcast(a, &group, 0), EOPNOTSUPP);

	REFUSED(ibv_destroy_ah(ah), 0);
	REFUSED(ibv_destroy_qp(a), 0);
	REFUSED(ibv_destroy_qp(b), 0);
}

static void unreliable_connections(void)
{
	struct ibv_qp *a = create(IBV_QPT_UC, NULL), *b = create(IBV_QPT_UC, NULL);
	struct ibv_sge sge = piece(0, 8192);

	connect_to(a, b->qp_num);
	connect_to(b, a->qp_num);
	memset(memory, 3, 8192);
	post_recv(b, NULL, 16384, 8192, 1);
	REFUSED(post(a, (struct ibv_send_wr){ .opcode = IBV_WR_SEND, .sg_list = &sge, .num_sge = 1 }), 0);
	CHECK(receive().byte_len == 8192 && !memcmp(memory, memory + 16384, 8192));
	REFUSED(ibv_destroy_qp(a), 0);
	REFUSED(ibv_destroy_qp(b), 0);
}

static void shared_receive_queue(void)
{
	struct ibv_srq_init_attr init = { .attr = { .max_wr = 60, .max_sge = 2, .srq_limit = 0 } };
	struct ibv_srq *srq = ibv_create_srq(pd, &init);
	struct ibv_sge sge = piece(0, 64);
	struct ibv_srq_attr attr;
	struct ibv_qp *a, *b;

	CHECK(srq && init.attr.max_wr >= 60 && init.attr.max_sge >= 2);
	a = create(IBV_QPT_RC, NULL);
	b = create(IBV_QPT_RC, srq);
	connect_to(a, b->qp_num);
	connect_to(b, a->qp_num);

	/* Sizes are out of range, or cannot be changed. */
	struct ibv_srq_init_attr large = { .attr = { .max_wr = 1U << 30, .max_sge = 1 } };
	CHECK(!ibv_create_srq(pd, &large) && errno == EINVAL);
	attr = (struct ibv_srq_attr){ .max_wr = 128 };
	REFUSED(ibv_modify_srq(srq, &attr, IBV_SRQ_MAX_WR), EOPNOTSUPP);
	attr = (struct ibv_srq_attr){ .srq_limit = 1000 };
	REFUSED(ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT), EINVAL);

	for (int i = 0; i < 10; i++)
		post_recv(NULL, srq, 4096 + 64 * i, 64, i);
	attr = (struct ibv_srq_attr){ .srq_limit = 8 };
	REFUSED(ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT), 0);
	REFUSED(ibv_query_srq(srq, &attr), 0);
	CHECK(attr.srq_limit == 8 && attr.max_wr == init.attr.max_wr);
	for (int i = 0; i < 4; i++) {
		REFUSED(post(a, (struct ibv_send_wr){ .opcode = IBV_WR_SEND, .sg_list = &sge, .num_sge = 1 }), 0);
		CHECK(receive().wr_id == (uint64_t)i);
	}
	CHECK(event() == IBV_EVENT_SRQ_LIMIT_REACHED);
	REFUSED(ibv_query_srq(srq, &attr), 0);
	CHECK(attr.srq_limit == 0);

	/* The other queue pair may be destroyed once this has come (IBTA Vol 1 11.6.3.3). */
	REFUSED(ibv_modify_qp(b, &(struct ibv_qp_attr){ .qp_state = IBV_QPS_ERR }, IBV_QP_STATE), 0);
	CHECK(event() == IBV_EVENT_QP_LAST_WQE_REACHED);
	REFUSED(ibv_destroy_srq(srq), EBUSY);
	REFUSED(ibv_destroy_qp(a), 0);
	REFUSED(ibv_destroy_qp(b), 0);
	REFUSED(ibv_destroy_srq(srq), 0);
}

struct xrc {
	struct ibv_xrcd *xrcd;
	struct ibv_srq *srq;
	struct ibv_qp *ini, *tgt;
	int fd;
};

static struct xrc make_xrc(void)
{
	struct xrc x = { .fd = open("/tmp/objects.xrcd", O_RDONLY | O_CREAT, 0600) };

	CHECK(x.fd >= 0);
	x.xrcd = ibv_open_xrcd(context, &(struct ibv_xrcd_init_attr){
		.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = x.fd, .oflags = O_CREAT });
	CHECK(x.xrcd);
	x.srq = ibv_create_srq_ex(context, &(struct ibv_srq_init_attr_ex){
		.attr = { .max_wr = 16, .max_sge = 1 }, .srq_type = IBV_SRQT_XRC, .pd = pd, .xrcd = x.xrcd, .cq = cq,
		.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ });
	CHECK(x.srq);
	x.ini = ibv_create_qp_ex(context, &(struct ibv_qp_init_attr_ex){
		.qp_type = IBV_QPT_XRC_SEND, .send_cq = cq, .pd = pd, .cap = { .max_send_wr = 16, .max_send_sge = 1 },
		.sq_sig_all = 1, .comp_mask = IBV_QP_INIT_ATTR_PD });
	CHECK(x.ini);
	x.tgt = ibv_create_qp_ex(context, &(struct ibv_qp_init_attr_ex){
		.qp_type = IBV_QPT_XRC_RECV, .xrcd = x.xrcd, .comp_mask = IBV_QP_INIT_ATTR_XRCD });
	CHECK(x.tgt);
	return x;
}

static void end_xrc(struct xrc *x)
{
	REFUSED(ibv_close_xrcd(x->xrcd), EBUSY);
	REFUSED(ibv_destroy_qp(x->ini), 0);
	REFUSED(ibv_destroy_qp(x->tgt), 0);
	REFUSED(ibv_destroy_srq(x->srq), 0);
	REFUSED(ibv_close_xrcd(x->xrcd), 0);
	close(x->fd);
}

static void extended_reliable_connections(void)
{
	struct xrc x = make_xrc();
	struct ibv_sge sge = piece(0, 4096);
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr;
	uint32_t number;

	REFUSED(ibv_get_srq_num(x.srq, &number), 0);
	CHECK(number);
	connect_to(x.ini, x.tgt->qp_num);
	connect_to(x.tgt, x.ini->qp_num);
	REFUSED(ibv_query_qp(x.tgt, &attr, IBV_QP_STATE, &init), 0);
	CHECK(attr.qp_state == IBV_QPS_RTS && attr.dest_qp_num == x.ini->qp_num);
	memset(memory, 9, 4096);
	post_recv(NULL, x.srq, 8192, 4096, 77);
	REFUSED(post(x.ini, (struct ibv_send_wr){ .opcode = IBV_WR_SEND, .sg_list = &sge, .num_sge = 1,
						  .qp_type.xrc.remote_srqn = number }), 0);
	CHECK(receive().wr_id == 77 && !memcmp(memory, memory + 8192, 4096));
	end_xrc(&x);
}

static void windows(void)
{
	struct ibv_qp *a = create(IBV_QPT_RC, NULL), *b = create(IBV_QPT_RC, NULL);
	struct ibv_sge sge = piece(0, 64);
	struct ibv_send_wr write = { .opcode = IBV_WR_RDMA_WRITE, .sg_list = &sge, .num_sge = 1 };
	struct ibv_mw_bind_info info = { mr, (uintptr_t)memory + 4096, 4096, IBV_ACCESS_REMOTE_WRITE };
	struct ibv_mw *one = ibv_alloc_mw(pd, IBV_MW_TYPE_1), *two = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
	struct ibv_mw_bind bind = { 1, IBV_SEND_SIGNALED, info };

	CHECK(one && two);
	connect_to(a, b->qp_num);
	connect_to(b, a->qp_num);

	REFUSED(ibv_bind_mw(b, one, &bind), 0);
	CHECK(complete().status == IBV_WC_SUCCESS);
	write.wr.rdma.remote_addr = (uintptr_t)memory + 4096;
	write.wr.rdma.rkey = one->rkey;
	memset(memory, 1, 64);
	REFUSED(post(a, write), 0);
	CHECK(complete().status == IBV_WC_SUCCESS && memory[4096] == 1 && memory[4159] == 1);

	two->rkey = ibv_inc_rkey(two->rkey);
	REFUSED(post(b, (struct ibv_send_wr){ .opcode = IBV_WR_BIND_MW, .send_flags = IBV_SEND_SIGNALED,
					      .bind_mw = { two, two->rkey, info } }), 0);
	CHECK(complete().status == IBV_WC_SUCCESS);
	/* The region is needed (IBTA Vol 1 11.2.8.5), and lives on. */
	REFUSED(ibv_dereg_mr(mr), EBUSY);
	write.wr.rdma.rkey = two->rkey;
	memset(memory, 2, 64);
	REFUSED(post(a, write), 0);
	CHECK(complete().status == IBV_WC_SUCCESS && memory[4096] == 2);
	REFUSED(post(b, (struct ibv_send_wr){ .opcode = IBV_WR_LOCAL_INV, .send_flags = IBV_SEND_SIGNALED,
					      .invalidate_rkey = two->rkey }), 0);
	CHECK(complete().status == IBV_WC_SUCCESS);
	REFUSED(post(a, write), 0);
	CHECK(complete().status == IBV_WC_REM_ACCESS_ERR);

	REFUSED(ibv_destroy_qp(a), 0);
	REFUSED(ibv_destroy_qp(b), 0);
	REFUSED(ibv_dealloc_mw(one), 0);
	REFUSED(ibv_dealloc_mw(two), 0);
}

static char *page_memory(size_t bytes, int prot)
{
	char *p = mmap(NULL, bytes, prot, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	CHECK(p != MAP_FAILED);
	return p;
}

static void reregistration(void)
{
	struct ibv_qp *a = create(IBV_QPT_RC, NULL), *b = create(IBV_QPT_RC, NULL);
	char *first = page_memory(3 * 4096, PROT_READ | PROT_WRITE), *second = page_memory(64 * 4096, PROT_READ | PROT_WRITE);
	char *constant = page_memory(4096, PROT_READ);
	struct ibv_mr *r = ibv_reg_mr(pd, first, 3 * 4096, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	struct ibv_sge sge = piece(0, 64);
	struct ibv_send_wr write = { .opcode = IBV_WR_RDMA_WRITE, .sg_list = &sge, .num_sge = 1 };
	struct ibv_pd *other = ibv_alloc_pd(context);
	uint32_t lkey, rkey;
	long before;

	CHECK(r && other);
	lkey = r->lkey;
	rkey = r->rkey;
	connect_to(a, b->qp_num);
	connect_to(b, a->qp_num);

	/* Other memory, under the same keys; the old is not pinned any more. */
	before = pinned();
	REFUSED(ibv_rereg_mr(r, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, second, 64 * 4096, 0), 0);
	CHECK(r->lkey == lkey && r->rkey == rkey && pinned() == before + 61 * 4);
	write.wr.rdma.rkey = rkey;
	write.wr.rdma.remote_addr = (uintptr_t)second + 63 * 4096;
	memset(memory, 4, 64);
	REFUSED(post(a, write), 0);
	CHECK(complete().status == IBV_WC_SUCCESS && second[63 * 4096] == 4);

	/* What is refused changes nothing. */
	CHECK(ibv_rereg_mr(r, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, (void *)0x1000, 4096, 0));
	CHECK(ibv_rereg_mr(r, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, constant, 4096, 0));
	CHECK(pinned() == before + 61 * 4);
	REFUSED(post(a, write), 0);
	CHECK(complete().status == IBV_WC_SUCCESS);

	/* Without rights, then with them again, then in another domain. */
	REFUSED(ibv_rereg_mr(r, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, IBV_ACCESS_LOCAL_WRITE), 0);
	REFUSED(ibv_rereg_mr(r, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, WRITABLE), 0);
	REFUSED(post(a, write), 0);
	CHECK(complete().status == IBV_WC_SUCCESS);
	REFUSED(ibv_rereg_mr(r, IBV_REREG_MR_CHANGE_PD, other, NULL, 0, 0), 0);
	REFUSED(ibv_dealloc_pd(other), EBUSY);
	REFUSED(post(a, write), 0);
	CHECK(complete().status == IBV_WC_REM_ACCESS_ERR);
	REFUSED(ibv_dereg_mr(r), 0);
	REFUSED(ibv_dealloc_pd(other), 0);

	/* Memory that was pinned to be read, of which a copy is due, is pinned anew to be written. */
	CHECK(mprotect(constant, 4096, PROT_READ | PROT_WRITE) == 0);
	r = ibv_reg_mr(pd, constant, 4096, IBV_ACCESS_REMOTE_READ);
	CHECK(r);
	before = pinned();
	REFUSED(ibv_rereg_mr(r, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, WRITABLE), 0);
	CHECK(pinned() == before);
	REFUSED(ibv_destroy_qp(a), 0);
	REFUSED(ibv_destroy_qp(b), 0);
	a = create(IBV_QPT_RC, NULL);
	b = create(IBV_QPT_RC, NULL);
	connect_to(a, b->qp_num);
	connect_to(b, a->qp_num);
	write.wr.rdma.rkey = r->rkey;
	write.wr.rdma.remote_addr = (uintptr_t)constant;
	REFUSED(post(a, write), 0);
	CHECK(complete().status == IBV_WC_SUCCESS && constant[0] == 4);
	REFUSED(ibv_dereg_mr(r), 0);

	REFUSED(ibv_destroy_qp(a), 0);
	REFUSED(ibv_destroy_qp(b), 0);
	munmap(first, 3 * 4096);
	munmap(second, 64 * 4096);
	munmap(constant, 4096);
}

static void resizing(void)
{
	struct ibv_cq *mine = ibv_create_cq(context, 4, NULL, NULL, 0), *all = cq;
	struct ibv_qp *a, *b;
	struct ibv_sge sge = piece(0, 64);
	struct ibv_send_wr write = { .opcode = IBV_WR_RDMA_WRITE, .sg_list = &sge, .num_sge = 1 };
	uint64_t sent = 0, polled = 0;
	struct ibv_qp_init_attr deep = { .qp_type = IBV_QPT_RC, .sq_sig_all = 1, .cap = { 128, 1, 1, 1, 0 } };

	CHECK(mine);
	cq = mine;
	deep.send_cq = deep.recv_cq = mine;
	a = ibv_create_qp(pd, &deep);
	CHECK(a);
	b = create(IBV_QPT_RC, NULL);
	connect_to(a, b->qp_num);
	connect_to(b, a->qp_num);
	write.wr.rdma.remote_addr = (uintptr_t)memory + 4096;
	write.wr.rdma.rkey = mr->rkey;

	/* Over several passes, so that each phase is met, with completions waiting. */
	static const int sizes[] = { 256, 64, 1024, 128, 512, 64, 4, 256 };
	for (unsigned i = 0; i < 4 * sizeof(sizes) / sizeof(*sizes); i++) {
		for (int n = 0; n < 3; n++, sent++) {
			write.wr_id = sent;
			REFUSED(post(a, write), 0);
		}
		usleep(20000);
		REFUSED(ibv_resize_cq(mine, sizes[i % 8]), 0);
		CHECK(mine->cqe >= sizes[i % 8]);
		for (; polled < sent; polled++) {
			struct ibv_wc wc = complete();

			CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == polled);
		}
		CHECK(!ibv_poll_cq(mine, 1, &(struct ibv_wc){}));
	}

	/* More than the smallest queue holds wait, and stay. */
	for (int n = 0; n < 70; n++, sent++) {
		write.wr_id = sent;
		REFUSED(post(a, write), 0);
	}
	sleep(1);
	REFUSED(ibv_resize_cq(mine, 4), EINVAL);
	for (; polled < sent; polled++)
		CHECK(complete().wr_id == polled);
	CHECK(ibv_resize_cq(mine, 1 << 30) == EINVAL);

	REFUSED(ibv_destroy_qp(a), 0);
	REFUSED(ibv_destroy_qp(b), 0);
	REFUSED(ibv_destroy_cq(mine), 0);
	cq = all;
}

/* Rings are charged, and what is destroyed is given back, however often. */
static void accounting(void)
{
	long before = pinned(), full;

	for (int i = 0; i < 40; i++) {
		struct ibv_srq_init_attr init = { .attr = { .max_wr = 1000, .max_sge = 4 } };
		struct ibv_srq *srq = ibv_create_srq(pd, &init);
		struct ibv_cq *queue = ibv_create_cq(context, 10, NULL, NULL, 0);
		struct ibv_qp *rc = create(IBV_QPT_RC, srq), *ud = create(IBV_QPT_UD, NULL), *uc = create(IBV_QPT_UC, NULL);
		struct ibv_mw *mw = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
		struct xrc x = make_xrc();

		CHECK(srq && queue && mw);
		full = pinned();
		CHECK(full > before + 1000 * 64 / 1024);
		REFUSED(ibv_resize_cq(queue, 4000), 0);
		CHECK(pinned() >= full + 3900 * 64 / 1024);
		end_xrc(&x);
		REFUSED(ibv_dealloc_mw(mw), 0);
		REFUSED(ibv_destroy_qp(rc), 0);
		REFUSED(ibv_destroy_qp(ud), 0);
		REFUSED(ibv_destroy_qp(uc), 0);
		REFUSED(ibv_destroy_cq(queue), 0);
		REFUSED(ibv_destroy_srq(srq), 0);
		CHECK(pinned() == before);
	}
}

/* To be run without CAP_IPC_LOCK. */
static void limit(void)
{
	struct rlimit few = { (pinned() + 64) << 10, (pinned() + 64) << 10 };
	struct ibv_srq_init_attr init = { .attr = { .max_wr = 4096, .max_sge = 4 } };
	struct ibv_cq *queue = ibv_create_cq(context, 10, NULL, NULL, 0);
	long before = pinned();

	CHECK(queue && geteuid());
	CHECK(!setrlimit(RLIMIT_MEMLOCK, &few));
	CHECK(!ibv_create_srq(pd, &init) && errno == ENOMEM);
	REFUSED(ibv_resize_cq(queue, 65000), ENOMEM);
	CHECK(pinned() == before);
	REFUSED(ibv_destroy_cq(queue), 0);
}

/* One of each is there when the device goes; ending them afterwards is in order. */
static void hold(void)
{
	struct ibv_srq_init_attr init = { .attr = { .max_wr = 64, .max_sge = 1 } };
	struct ibv_srq *srq = ibv_create_srq(pd, &init);
	struct ibv_qp *rc = create(IBV_QPT_RC, srq), *ud = create(IBV_QPT_UD, NULL), *uc = create(IBV_QPT_UC, NULL);
	struct ibv_mw *mw = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
	struct xrc x = make_xrc();

	CHECK(srq && mw);
	connect_to(uc, uc->qp_num);
	connect_to(ud, 0);
	CHECK(!ibv_resize_cq(cq, 2000));
	puts("ready");
	fflush(stdout);
	while (event() != IBV_EVENT_DEVICE_FATAL)
		;
	ibv_dealloc_mw(mw);
	ibv_destroy_qp(x.ini);
	ibv_destroy_qp(x.tgt);
	ibv_destroy_srq(x.srq);
	ibv_close_xrcd(x.xrcd);
	ibv_destroy_qp(rc);
	ibv_destroy_qp(ud);
	ibv_destroy_qp(uc);
	ibv_destroy_srq(srq);
	puts("gone");
}

static const struct {
	const char *name;
	void (*run)(void);
	int by_name_only;
} tests[] = {
	{ "attributes", attributes }, { "ud", datagrams }, { "uc", unreliable_connections },
	{ "srq", shared_receive_queue }, { "xrc", extended_reliable_connections }, { "mw", windows },
	{ "rereg", reregistration }, { "resize", resizing }, { "accounting", accounting },
	{ "limit", limit, 1 }, { "hold", hold, 1 },
};

static int wanted(int argc, char **argv, int i)
{
	for (int n = 3; n < argc; n++)
		if (!strcmp(argv[n], tests[i].name))
			return 1;
	return argc == 3 && !tests[i].by_name_only;
}

int main(int argc, char **argv)
{
	struct ibv_device **list = ibv_get_device_list(NULL);

	CHECK(argc >= 3 && list);
	gid_index = atoi(argv[2]);
	for (int i = 0; list[i]; i++)
		if (!strcmp(ibv_get_device_name(list[i]), argv[1]))
			context = ibv_open_device(list[i]);
	ibv_free_device_list(list);
	CHECK(context && !ibv_query_gid(context, 1, gid_index, &gid));
	memory = page_memory(SIZE, PROT_READ | PROT_WRITE);
	pd = ibv_alloc_pd(context);
	cq = ibv_create_cq(context, 256, NULL, NULL, 0);
	mr = pd ? ibv_reg_mr(pd, memory, SIZE, ACCESS) : NULL;
	CHECK(pd && cq && mr);
	for (unsigned i = 0; i < sizeof(tests) / sizeof(*tests); i++)
		if (wanted(argc, argv, i)) {
			tests[i].run();
			fprintf(stderr, "%s: ok\n", tests[i].name);
		}
	ibv_dereg_mr(mr);
	ibv_destroy_cq(cq);
	ibv_dealloc_pd(pd);
	ibv_close_device(context);
	return 0;
}
