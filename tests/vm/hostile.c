/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A hostile process in a guest. It opens the device like any program, then does all it can to reach
 * what is not its own: guesses keys, connects to queue pairs of others, and writes garbage over every page that the
 * driver lets it map. It must end by itself, and nobody else may notice.
 *
 * Usage: hostile DEVICE GID_INDEX SECONDS SEED [VICTIM_QPN]
 * Exit status: 0 when every attempt was refused, 1 when one succeeded, 2 when it could not begin.
 */
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define BUFFER 65536
#define MAPS 4096

static uint64_t state;

static uint64_t rnd(void)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return state;
}

struct own {
	struct ibv_context *ctx;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_mr *mr;
	union ibv_gid gid;
	int gid_index;
	char *buffer;
};

static void die(const char *what)
{
	fprintf(stderr, "hostile: %s: %s\n", what, strerror(errno));
	exit(2);
}

static struct ibv_qp *new_qp(struct own *o)
{
	struct ibv_qp_init_attr init = {
		.send_cq = o->cq, .recv_cq = o->cq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 4, .max_recv_sge = 4 },
	};

	return ibv_create_qp(o->pd, &init);
}

/* Connects to QP number dest at our own address; what it leads to is the host's decision. */
static int connect_qp(struct own *o, struct ibv_qp *qp, uint32_t dest)
{
	struct ibv_qp_attr init = { .qp_state = IBV_QPS_INIT, .port_num = 1,
		.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ };
	struct ibv_qp_attr rtr = { .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = dest,
		.max_dest_rd_atomic = 1, .min_rnr_timer = 1,
		.ah_attr = { .is_global = 1, .port_num = 1,
			.grh = { .dgid = o->gid, .sgid_index = o->gid_index, .hop_limit = 1 } } };
	struct ibv_qp_attr rts = { .qp_state = IBV_QPS_RTS, .timeout = 10, .retry_cnt = 1, .rnr_retry = 1,
		.max_rd_atomic = 1 };

	return ibv_modify_qp(qp, &init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) ||
	       ibv_modify_qp(qp, &rtr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
				       IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) ||
	       ibv_modify_qp(qp, &rts, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
				       IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
}

/* Posts one request and returns its status, or -1 when no completion comes within a second. */
static int attempt(struct own *o, struct ibv_qp *qp, enum ibv_wr_opcode op, uint32_t lkey, uint64_t addr,
		   uint32_t rkey, uint64_t remote)
{
	struct ibv_sge sge = { .addr = addr, .length = 64, .lkey = lkey };
	struct ibv_send_wr wr = { .opcode = op, .send_flags = IBV_SEND_SIGNALED, .sg_list = &sge, .num_sge = 1,
		.wr.rdma = { .remote_addr = remote, .rkey = rkey } };
	struct ibv_send_wr *bad;
	struct ibv_wc wc;
	time_t end = time(NULL) + 2;

	if (ibv_post_send(qp, &wr, &bad))
		return -1;
	while (time(NULL) < end) {
		if (ibv_poll_cq(o->cq, 1, &wc) == 1)
			return wc.status;
	}
	return -1;
}

static int guess_keys(struct own *o, int rounds)
{
	int got_in = 0;

	while (rounds--) {
		struct ibv_qp *qp = new_qp(o);
		uint64_t where = rnd() % 3 ? (uintptr_t)o->buffer : rnd();
		int status;

		if (!qp)
			return got_in;
		if (!connect_qp(o, qp, qp->qp_num)) {
			/* A remote key that is not ours, then a local one. Neighbours of our own keys are likely victims. */
			uint32_t key = rnd() % 2 ? (uint32_t)rnd() : o->mr->rkey + (uint32_t)(rnd() % 8193) - 4096;

			if (key == o->mr->rkey || key == o->mr->lkey)
				key ^= 0x100;
			status = rnd() % 2 ?
				attempt(o, qp, rnd() % 2 ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_READ, o->mr->lkey,
					(uintptr_t)o->buffer, key, where) :
				attempt(o, qp, IBV_WR_RDMA_WRITE, key, where, o->mr->rkey, (uintptr_t)o->buffer);
			if (status == IBV_WC_SUCCESS) {
				fprintf(stderr, "hostile: key %#x let us in\n", key);
				got_in = 1;
			}
		}
		ibv_destroy_qp(qp);
	}
	return got_in;
}

static int reach_victim(struct own *o, uint32_t victim)
{
	struct ibv_qp *qp = new_qp(o);
	int status = -1;

	if (!qp)
		return 0;
	if (!connect_qp(o, qp, victim))
		status = attempt(o, qp, IBV_WR_SEND, o->mr->lkey, (uintptr_t)o->buffer, 0, 0);
	ibv_destroy_qp(qp);
	if (status == IBV_WC_SUCCESS)
		fprintf(stderr, "hostile: queue pair %#x took our message\n", victim);
	return status == IBV_WC_SUCCESS;
}

/* Maps whatever the driver lets us map; garbage goes over all of it, doorbells and rings alike. */
static void spoil_mappings(struct own *o, int rounds)
{
	static struct { char *at; size_t len; } maps[MAPS];
	long page = sysconf(_SC_PAGESIZE);
	int n = 0;

	for (uint64_t offset = 0; offset < 4096 && n < MAPS; offset++) {
		for (size_t pages = 1; pages <= 16 && n < MAPS; pages++) {
			char *at = mmap(NULL, pages * page, PROT_READ | PROT_WRITE, MAP_SHARED, o->ctx->cmd_fd,
					offset * page);

			if (at == MAP_FAILED)
				continue;
			maps[n].at = at;
			maps[n++].len = pages * page;
		}
	}
	while (n && rounds--) {
		int m = rnd() % n;
		size_t words = maps[m].len / 8;

		for (int k = 0; k < 64; k++)
			((volatile uint64_t *)maps[m].at)[rnd() % words] = rnd() % 4 ? rnd() : ~0ull;
	}
	printf("hostile: spoiled %d mappings\n", n);
	while (n--)
		munmap(maps[n].at, maps[n].len);
}

int main(int argc, char **argv)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct own o = { 0 };
	time_t end;
	int got_in = 0;

	if (argc < 5 || !list)
		die("usage: hostile DEVICE GID_INDEX SECONDS SEED [VICTIM_QPN]");
	for (int i = 0; list[i]; i++)
		if (!strcmp(ibv_get_device_name(list[i]), argv[1]))
			o.ctx = ibv_open_device(list[i]);
	if (!o.ctx)
		die("cannot open the device");
	o.gid_index = atoi(argv[2]);
	end = time(NULL) + atoi(argv[3]);
	state = strtoull(argv[4], NULL, 0) | 1;
	if (ibv_query_gid(o.ctx, 1, o.gid_index, &o.gid))
		die("query_gid");
	o.buffer = mmap(NULL, BUFFER, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	o.pd = ibv_alloc_pd(o.ctx);
	o.cq = ibv_create_cq(o.ctx, 256, NULL, NULL, 0);
	if (o.buffer == MAP_FAILED || !o.pd || !o.cq)
		die("no objects");
	o.mr = ibv_reg_mr(o.pd, o.buffer, BUFFER, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ);
	if (!o.mr)
		die("reg_mr");
	/* What is ours must work, else a refusal proves nothing. */
	{
		struct ibv_qp *qp = new_qp(&o);

		if (!qp || connect_qp(&o, qp, qp->qp_num) ||
		    attempt(&o, qp, IBV_WR_RDMA_WRITE, o.mr->lkey, (uintptr_t)o.buffer, o.mr->rkey,
			    (uintptr_t)o.buffer + 4096) != IBV_WC_SUCCESS)
			die("a write into our own memory failed");
		ibv_destroy_qp(qp);
	}
	while (time(NULL) < end && !got_in) {
		got_in |= guess_keys(&o, 20);
		if (argc > 5)
			got_in |= reach_victim(&o, strtoul(argv[5], NULL, 0));
	}
	spoil_mappings(&o, 2000);
	return got_in;
}
