// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * What verbs promise a program, asked of the installed libibverbs and provider in a real guest, on two QPs of one
 * device that are connected to each other.
 *
 *   contract DEVICE GID_INDEX         all checks
 *   contract DEVICE GID_INDEX gone    polls until the device is gone, then uses it again as soon as it is back
 */
#include <errno.h>
#include <infiniband/verbs.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "check.h"

enum { WRS = 64, SGES = 30, INLINE = 256, HALF = 1 << 16 };

struct side {
	struct ibv_qp *qp;
	struct ibv_qp_cap cap;
};

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_comp_channel *channel;
static struct ibv_cq *cq;
static struct ibv_mr *mr;
static struct side a, b;
static int gid_index;
static union ibv_gid gid;
/* The first half is what a sends from, the second what it sends to. */
static unsigned char memory[2 * HALF] __attribute__((aligned(4096)));

static int open_device(const char *name)
{
	struct ibv_device **list = ibv_get_device_list(NULL);

	context = NULL;
	for (int i = 0; list && list[i]; i++)
		if (!strcmp(ibv_get_device_name(list[i]), name))
			context = ibv_open_device(list[i]);
	if (list)
		ibv_free_device_list(list);
	if (!context || ibv_query_gid(context, 1, gid_index, &gid))
		return -1;
	pd = ibv_alloc_pd(context);
	channel = ibv_create_comp_channel(context);
	cq = channel ? ibv_create_cq(context, 4 * WRS, NULL, channel, 0) : NULL;
	mr = pd ? ibv_reg_mr(pd, memory, sizeof(memory), IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
			     IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_RELAXED_ORDERING) : NULL;
	return pd && channel && cq && mr ? 0 : -1;
}

static void create(struct side *side)
{
	struct ibv_qp_init_attr attr = {
		.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
		.cap = { WRS, WRS, SGES, SGES, INLINE },
	};

	side->qp = ibv_create_qp(pd, &attr);
	CHECK(side->qp);
	CHECK(attr.cap.max_send_wr >= WRS && attr.cap.max_send_sge >= SGES && attr.cap.max_inline_data >= INLINE);
	side->cap = attr.cap;
}

static void to_state(struct side *side, enum ibv_qp_state state, uint32_t peer)
{
	struct ibv_qp_attr attr = { .qp_state = state, .port_num = 1 };
	int mask = IBV_QP_STATE;

	switch (state) {
	case IBV_QPS_INIT:
		attr.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
		mask |= IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
		break;
	case IBV_QPS_RTR:
		attr.path_mtu = IBV_MTU_1024;
		attr.dest_qp_num = peer;
		attr.max_dest_rd_atomic = 8;
		attr.min_rnr_timer = 1;
		attr.ah_attr = (struct ibv_ah_attr){
			.is_global = 1, .port_num = 1,
			.grh = { .dgid = gid, .sgid_index = gid_index, .hop_limit = 64 },
		};
		mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
			IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
		break;
	case IBV_QPS_RTS:
		attr.timeout = 18;
		attr.retry_cnt = 7;
		attr.rnr_retry = 7;
		attr.max_rd_atomic = 8;
		mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC;
		break;
	default:
		break;
	}
	errno = ibv_modify_qp(side->qp, &attr, mask);
	CHECK(!errno);
}

static void connect_both(void)
{
	for (enum ibv_qp_state state = IBV_QPS_INIT; state <= IBV_QPS_RTS; state++) {
		to_state(&a, state, b.qp->qp_num);
		to_state(&b, state, a.qp->qp_num);
	}
}

static int post(struct side *side, struct ibv_send_wr *wr)
{
	struct ibv_send_wr *bad = NULL;
	int error = ibv_post_send(side->qp, wr, &bad);

	CHECK(!error || bad);
	return error;
}

static int post_recv(struct side *side, uint64_t id, uint32_t length)
{
	struct ibv_sge sge = { (uintptr_t)memory + HALF, length, mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = id, .sg_list = &sge, .num_sge = 1 }, *bad = NULL;

	return ibv_post_recv(side->qp, &wr, &bad);
}

/* Waits for one completion. */
static struct ibv_wc complete(void)
{
	struct ibv_wc wc;
	double end = now() + 20;
	int count;

	while ((count = ibv_poll_cq(cq, 1, &wc)) == 0)
		CHECK(now() < end);
	CHECK(count == 1);
	return wc;
}

static void complete_ok(uint64_t id, enum ibv_wc_opcode opcode)
{
	struct ibv_wc wc = complete();

	if (wc.status || wc.wr_id != id || (wc.opcode != opcode))
		fprintf(stderr, "wr_id %lu opcode %d: %s\n", wc.wr_id, wc.opcode, ibv_wc_status_str(wc.status));
	CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == id && wc.opcode == opcode);
}

static struct ibv_send_wr request(enum ibv_wr_opcode opcode, struct ibv_sge *sge, int count)
{
	struct ibv_send_wr wr = {
		.wr_id = opcode, .opcode = opcode, .sg_list = sge, .num_sge = count, .send_flags = IBV_SEND_SIGNALED,
	};

	if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD || opcode == IBV_WR_ATOMIC_CMP_AND_SWP) {
		wr.wr.atomic.remote_addr = (uintptr_t)memory + HALF;
		wr.wr.atomic.rkey = mr->rkey;
	} else {
		wr.wr.rdma.remote_addr = (uintptr_t)memory + HALF;
		wr.wr.rdma.rkey = mr->rkey;
	}
	return wr;
}

static void check_what_is_not_offered(void)
{
	/* A flow tag would come from steering raw packets. */
	struct ibv_cq_init_attr_ex cq_attr = { .cqe = 4, .wc_flags = IBV_WC_EX_WITH_FLOW_TAG };
	struct ibv_qp_init_attr attr = { .send_cq = cq, .recv_cq = cq, .cap = { 1, 1, 1, 1, 0 } };

	/* Programs fall back to what there is on this errno only. */
	errno = 0;
	CHECK(!ibv_create_cq_ex(context, &cq_attr) && errno == EOPNOTSUPP);
	attr.qp_type = IBV_QPT_RAW_PACKET;
	errno = 0;
	CHECK(!ibv_create_qp(pd, &attr) && errno == EOPNOTSUPP);
}

static void check_states(void)
{
	struct ibv_send_wr wr = request(IBV_WR_SEND, NULL, 0);

	CHECK(post(&a, &wr) == EINVAL && post_recv(&a, 0, 8) == EINVAL);
	to_state(&a, IBV_QPS_INIT, 0);
	CHECK(post(&a, &wr) == EINVAL && post_recv(&a, 0, 8) == 0);
	to_state(&a, IBV_QPS_RESET, 0);
	connect_both();
}

static void check_refusals(void)
{
	struct ibv_sge sges[SGES + 3];
	struct ibv_send_wr *bad, good = request(IBV_WR_RDMA_WRITE, NULL, 0), wrong = good;

	for (int i = 0; i < SGES + 3; i++)
		sges[i] = (struct ibv_sge){ (uintptr_t)memory, 300, mr->lkey };
	good.next = &wrong;

	wrong.opcode = IBV_WR_TSO;
	CHECK(ibv_post_send(a.qp, &good, &bad) == EINVAL && bad == &wrong);
	complete_ok(IBV_WR_RDMA_WRITE, IBV_WC_RDMA_WRITE);
	wrong.opcode = IBV_WR_RDMA_WRITE;
	wrong.sg_list = sges;
	wrong.num_sge = a.cap.max_send_sge + 1;
	CHECK(ibv_post_send(a.qp, &good, &bad) == EINVAL && bad == &wrong);
	complete_ok(IBV_WR_RDMA_WRITE, IBV_WC_RDMA_WRITE);
	wrong.num_sge = a.cap.max_inline_data / 300 + 1;
	wrong.send_flags |= IBV_SEND_INLINE;
	CHECK(ibv_post_send(a.qp, &good, &bad) == EINVAL && bad == &wrong);
	complete_ok(IBV_WR_RDMA_WRITE, IBV_WC_RDMA_WRITE);
}

static void check_operations(void)
{
	struct ibv_sge sges[SGES], whole = { (uintptr_t)memory, 1000, mr->lkey };
	struct ibv_send_wr wr;
	struct ibv_wc wc;
	uint64_t *counter = (uint64_t *)(memory + HALF), *old = (uint64_t *)memory;

	for (int i = 0; i < HALF; i++)
		memory[i] = i * 7 + 3;

	/* A send of thirty pieces, in reverse. */
	for (int i = 0; i < SGES; i++)
		sges[i] = (struct ibv_sge){ (uintptr_t)memory + 10 * (SGES - 1 - i), 10, mr->lkey };
	CHECK(!post_recv(&b, 77, HALF));
	wr = request(IBV_WR_SEND_WITH_IMM, sges, SGES);
	wr.imm_data = 0x04030201;
	CHECK(!post(&a, &wr));
	for (int i = 0; i < 2; i++) {
		wc = complete();
		CHECK(wc.status == IBV_WC_SUCCESS);
		if (wc.opcode == IBV_WC_SEND)
			CHECK(wc.wr_id == wr.wr_id && wc.qp_num == a.qp->qp_num);
		else
			CHECK(wc.opcode == IBV_WC_RECV && wc.wr_id == 77 && wc.byte_len == 10 * SGES &&
			      wc.wc_flags == IBV_WC_WITH_IMM && wc.imm_data == 0x04030201 &&
			      wc.qp_num == b.qp->qp_num);
	}
	for (int i = 0; i < 10 * SGES; i++)
		CHECK(memory[HALF + i] == memory[10 * (SGES - 1 - i / 10) + i % 10]);

	/* Inline data needs no key and may change at once. */
	unsigned char bytes[INLINE];
	memset(bytes, 0x5a, sizeof(bytes));
	sges[0] = (struct ibv_sge){ (uintptr_t)bytes, INLINE, 0 };
	wr = request(IBV_WR_RDMA_WRITE, sges, 1);
	wr.send_flags |= IBV_SEND_INLINE;
	CHECK(!post(&a, &wr));
	memset(bytes, 0, sizeof(bytes));
	complete_ok(IBV_WR_RDMA_WRITE, IBV_WC_RDMA_WRITE);
	for (int i = 0; i < INLINE; i++)
		CHECK(memory[HALF + i] == 0x5a);

	wr = request(IBV_WR_RDMA_WRITE, &whole, 1);
	CHECK(!post(&a, &wr));
	complete_ok(IBV_WR_RDMA_WRITE, IBV_WC_RDMA_WRITE);
	CHECK(!memcmp(memory, memory + HALF, 1000));

	memset(memory, 0, 1000);
	wr = request(IBV_WR_RDMA_READ, &whole, 1);
	CHECK(!post(&a, &wr));
	complete_ok(IBV_WR_RDMA_READ, IBV_WC_RDMA_READ);
	CHECK(!memcmp(memory, memory + HALF, 1000) && memory[1] == 10);

	*counter = 5;
	whole.length = 8;
	wr = request(IBV_WR_ATOMIC_FETCH_AND_ADD, &whole, 1);
	wr.wr.atomic.compare_add = 37;
	CHECK(!post(&a, &wr));
	complete_ok(IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WC_FETCH_ADD);
	CHECK(*counter == 42 && *old == 5);
	wr = request(IBV_WR_ATOMIC_CMP_AND_SWP, &whole, 1);
	wr.wr.atomic.compare_add = 42;
	wr.wr.atomic.swap = 99;
	CHECK(!post(&a, &wr));
	complete_ok(IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WC_COMP_SWAP);
	CHECK(*counter == 99 && *old == 42);
}

static void check_full_queues(void)
{
	struct ibv_send_wr wr = request(IBV_WR_RDMA_WRITE, NULL, 0);

	/* One signalled request among many frees them all; more than once round the ring. */
	for (int round = 0; round < 5; round++) {
		for (unsigned i = 0; i < a.cap.max_send_wr; i++) {
			wr.send_flags = i + 1 == a.cap.max_send_wr ? IBV_SEND_SIGNALED : 0;
			CHECK(!post(&a, &wr));
		}
		CHECK(post(&a, &wr) == ENOMEM);
		complete_ok(IBV_WR_RDMA_WRITE, IBV_WC_RDMA_WRITE);
	}
	for (unsigned i = 0; i < b.cap.max_recv_wr; i++)
		CHECK(!post_recv(&b, i, 8));
	CHECK(post_recv(&b, 0, 8) == ENOMEM);
	wr = request(IBV_WR_SEND, NULL, 0);
	wr.send_flags = 0;
	CHECK(!post(&a, &wr));
	complete_ok(0, IBV_WC_RECV);
	CHECK(!post_recv(&b, 0, 8) && post_recv(&b, 0, 8) == ENOMEM);
}

static void wait_event(void)
{
	struct ibv_cq *event_cq;
	void *event_context;

	CHECK(!ibv_get_cq_event(channel, &event_cq, &event_context) && event_cq == cq);
	ibv_ack_cq_events(cq, 1);
}

/* Leaves receives behind: check_full_queues has posted them. */
static void check_events(void)
{
	struct ibv_send_wr wr = request(IBV_WR_RDMA_WRITE, NULL, 0);

	for (int i = 0; i < 50; i++) {
		CHECK(!ibv_req_notify_cq(cq, 0));
		CHECK(!post(&a, &wr));
		wait_event();
		complete_ok(IBV_WR_RDMA_WRITE, IBV_WC_RDMA_WRITE);
	}
	/* Only the solicited one wakes. */
	CHECK(!ibv_req_notify_cq(cq, 1));
	wr = request(IBV_WR_SEND, NULL, 0);
	CHECK(!post(&a, &wr));
	for (int i = 0; i < 2; i++)
		CHECK(complete().status == IBV_WC_SUCCESS);
	wr.send_flags |= IBV_SEND_SOLICITED;
	CHECK(!post(&a, &wr));
	wait_event();
	for (int i = 0; i < 2; i++)
		CHECK(complete().status == IBV_WC_SUCCESS);
}

static void check_reset(void)
{
	struct ibv_send_wr wr = request(IBV_WR_RDMA_WRITE, NULL, 0);
	struct ibv_wc wc;

	for (int i = 0; i < 10; i++)
		CHECK(!post(&a, &wr));
	/* The last completion has been written when a later request has had its effect; none is polled. */
	usleep(200000);
	to_state(&a, IBV_QPS_RESET, 0);
	to_state(&b, IBV_QPS_RESET, 0);
	CHECK(ibv_poll_cq(cq, 1, &wc) == 0);
	connect_both();
	check_operations();
	check_full_queues();
}

static void check_error_state(void)
{
	struct ibv_send_wr wr = request(IBV_WR_RDMA_WRITE, NULL, 0);
	struct ibv_wc wc;
	unsigned flushed = 0;

	/* check_full_queues has filled the receive queue. */
	to_state(&b, IBV_QPS_ERR, 0);
	while (flushed < b.cap.max_recv_wr) {
		wc = complete();
		CHECK(wc.status == IBV_WC_WR_FLUSH_ERR && wc.qp_num == b.qp->qp_num);
		flushed++;
	}
	/* Requests that are posted in this state are flushed too. */
	CHECK(!post_recv(&b, 5, 8));
	wc = complete();
	CHECK(wc.status == IBV_WC_WR_FLUSH_ERR && wc.wr_id == 5);
	CHECK(!post(&b, &wr));
	wc = complete();
	CHECK(wc.status == IBV_WC_WR_FLUSH_ERR && wc.wr_id == wr.wr_id);
}

static void check_destroyed_completions(void)
{
	struct ibv_send_wr wr = request(IBV_WR_RDMA_WRITE, NULL, 0);
	struct ibv_wc wc;

	to_state(&a, IBV_QPS_RESET, 0);
	to_state(&b, IBV_QPS_RESET, 0);
	connect_both();
	for (int i = 0; i < 10; i++)
		CHECK(!post(&a, &wr));
	usleep(200000);
	CHECK(!ibv_destroy_qp(a.qp) && !ibv_destroy_qp(b.qp));
	create(&a);
	create(&b);
	CHECK(ibv_poll_cq(cq, 1, &wc) == 0);
	connect_both();
}

enum { THREADS = 4, EACH = 2000 };
static unsigned long polled;

static void *poster(void *number)
{
	struct ibv_sge sge = { (uintptr_t)memory, 64, mr->lkey };
	struct ibv_send_wr wr = request(IBV_WR_RDMA_WRITE, &sge, 1), *bad;

	for (int i = 0; i < EACH; i++) {
		wr.wr_id = (uintptr_t)number << 32 | i;
		int error;
		while ((error = ibv_post_send(a.qp, &wr, &bad)) == ENOMEM)
			sched_yield();
		CHECK(!error);
	}
	return NULL;
}

static void *poller(void *unused)
{
	double end = now() + 60;
	struct ibv_wc wc[8];

	while (__atomic_load_n(&polled, __ATOMIC_RELAXED) < THREADS * EACH) {
		int count = ibv_poll_cq(cq, 8, wc);

		CHECK(count >= 0 && now() < end);
		for (int i = 0; i < count; i++)
			CHECK(wc[i].status == IBV_WC_SUCCESS);
		__atomic_fetch_add(&polled, count, __ATOMIC_RELAXED);
		if (!count)
			sched_yield();
	}
	return unused;
}

static void check_threads(void)
{
	pthread_t threads[THREADS + 2];

	for (long i = 0; i < THREADS + 2; i++)
		CHECK(!pthread_create(&threads[i], NULL, i < THREADS ? poster : poller, (void *)i));
	for (int i = 0; i < THREADS + 2; i++)
		CHECK(!pthread_join(threads[i], NULL));
	CHECK(polled == THREADS * EACH);
}

static void close_device(void)
{
	CHECK(!ibv_destroy_qp(a.qp) && !ibv_destroy_qp(b.qp) && !ibv_destroy_cq(cq));
	CHECK(!ibv_destroy_comp_channel(channel) && !ibv_dereg_mr(mr) && !ibv_dealloc_pd(pd));
	CHECK(!ibv_close_device(context));
}

/* The device goes while it is used: this is an error everywhere, and a new open works when it is back. */
static void use_until_gone(const char *name)
{
	struct ibv_send_wr wr = request(IBV_WR_RDMA_WRITE, NULL, 0);
	struct ibv_async_event event;
	struct ibv_wc wc;
	double end = now() + 60;

	connect_both();
	puts("ready");
	fflush(stdout);
	while (ibv_poll_cq(cq, 1, &wc) >= 0)
		CHECK(now() < end);
	CHECK(post(&a, &wr) == EIO && post_recv(&a, 0, 8) == EIO && ibv_req_notify_cq(cq, 0) == EIO);
	do
		CHECK(!ibv_get_async_event(context, &event));
	while (event.event_type != IBV_EVENT_DEVICE_FATAL);
	ibv_ack_async_event(&event);
	close_device();

	for (end = now() + 60; open_device(name); usleep(300000))
		CHECK(now() < end);
	create(&a);
	create(&b);
	connect_both();
	check_operations();
	close_device();
}

int main(int argc, char **argv)
{
	CHECK(argc >= 3);
	gid_index = atoi(argv[2]);
	CHECK(!open_device(argv[1]));
	create(&a);
	create(&b);
	if (argc > 3) {
		use_until_gone(argv[1]);
		return 0;
	}
	check_what_is_not_offered();
	check_states();
	check_refusals();
	check_operations();
	check_full_queues();
	check_events();
	check_reset();
	check_error_state();
	check_destroyed_completions();
	check_threads();
	close_device();
	return 0;
}
