// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * The C interface of libmp_verbs: both ends of a connection in one process, on one device.
 *
 *   multipath DEVICE PATHS
 */
#include <infiniband/verbs.h>
#include <pthread.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "check.h"
#include "mp_verbs.h"

enum { SIZE = 3000001, SMALL = 100 };

struct end {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_mr *mr;
	struct mp_qp *qp;
	unsigned char *memory;
	int socket;
	int first;
	unsigned int paths;
	uint64_t peer_addr;
	uint32_t peer_rkey;
};

static struct ibv_context *opened(const char *name)
{
	struct ibv_context *context = NULL;
	struct ibv_device **list = ibv_get_device_list(NULL);

	CHECK(list);
	for (int i = 0; list[i]; i++)
		if (!strcmp(ibv_get_device_name(list[i]), name))
			context = ibv_open_device(list[i]);
	ibv_free_device_list(list);
	CHECK(context);
	return context;
}

static unsigned char pattern(int first, size_t i)
{
	return i * 31 + i / 255 + first * 77;
}

/* The next completion, by sleeping. */
static struct ibv_wc completion(struct end *end)
{
	struct ibv_wc wc = { 0 };

	while (mp_ibv_poll_cq(end->qp, 1, &wc) == 0)
		CHECK(mp_ibv_get_cq_event(end->qp, 20000) == 0);
	return wc;
}

static void completes(struct end *end, uint64_t wr_id, enum ibv_wc_opcode opcode, uint32_t bytes)
{
	struct ibv_wc wc = completion(end);

	CHECK(wc.status == IBV_WC_SUCCESS);
	CHECK(wc.wr_id == wr_id && wc.opcode == opcode && wc.byte_len == bytes);
}

static void post(struct end *end, uint64_t wr_id, enum ibv_wr_opcode opcode, size_t at, size_t there, uint32_t bytes)
{
	struct mp_send_wr *bad = NULL, wr = {
		.wr_id = wr_id, .opcode = opcode, .length = bytes, .addr = end->memory + at, .mr = end->mr,
		.remote_addr = end->peer_addr + there, .rkey = end->peer_rkey,
	};

	CHECK(mp_ibv_post_send(end->qp, &wr, &bad) == 0 && !bad);
}

static void receive(struct end *end, uint64_t wr_id, size_t at, uint32_t bytes)
{
	struct mp_recv_wr wr = { .wr_id = wr_id, .addr = end->memory + at, .mr = end->mr, .length = bytes };

	CHECK(mp_ibv_post_recv(end->qp, &wr, NULL) == 0);
}

static void has(struct end *end, size_t at, int first, size_t from, size_t bytes)
{
	for (size_t i = 0; i < bytes; i++)
		CHECK(end->memory[at + i] == pattern(first, from + i));
}

static void swap(struct end *end)
{
	struct { uint64_t addr; uint32_t rkey; } mine = { (uintptr_t)end->memory, end->mr->rkey }, theirs;

	CHECK(write(end->socket, &mine, sizeof(mine)) == sizeof(mine));
	CHECK(recv(end->socket, &theirs, sizeof(theirs), MSG_WAITALL) == sizeof(theirs));
	end->peer_addr = theirs.addr;
	end->peer_rkey = theirs.rkey;
}

static void connect_end(struct end *end)
{
	struct mp_qp_attr attr;

	end->memory = calloc(4, SIZE);
	CHECK(end->memory);
	end->pd = ibv_alloc_pd(end->context);
	CHECK(end->pd);
	end->mr = ibv_reg_mr(end->pd, end->memory, 4 * SIZE,
			     IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ);
	CHECK(end->mr);
	for (size_t i = 0; i < SIZE; i++)
		end->memory[i] = pattern(end->first, i);
	mp_qp_attr_init(&attr);
	CHECK(!mp_rdma_connect(end->pd, end->socket, &attr) && errno == EINVAL);
	attr.paths = mp_find_gids(end->context, 1, attr.gid_index, MP_PATHS_MAX);
	CHECK(attr.paths == end->paths);
	attr.reserved[1] = 1;
	CHECK(!mp_rdma_connect(end->pd, end->socket, &attr) && errno == EINVAL);
	attr.reserved[1] = 0;
	end->qp = mp_rdma_connect(end->pd, end->socket, &attr);
	CHECK(end->qp);
	CHECK(mp_qp_paths(end->qp) == end->paths && mp_qp_fd(end->qp) >= 0);
}

static void *run(void *argument)
{
	struct end *end = argument;
	struct mp_send_wr *bad, wr = { .opcode = IBV_WR_ATOMIC_FETCH_AND_ADD, .length = 8 };
	struct mp_path_stats stats;

	connect_end(end);
	/* A quarter is ours; the others are where the peer writes, where we read to, and where SENDs come. */
	receive(end, 1, 3 * SIZE, SIZE);
	receive(end, 2, 2 * SIZE, SMALL);
	swap(end);
	CHECK(mp_ibv_post_send(end->qp, &wr, &bad) == EINVAL && bad == &wr);
	wr.mr = end->mr;
	CHECK(mp_ibv_post_send(end->qp, &wr, &bad) == EOPNOTSUPP);
	if (end->first) {
		post(end, 10, IBV_WR_RDMA_WRITE, 0, SIZE, SIZE);
		post(end, 11, IBV_WR_SEND, 5, 0, SIZE - 5);
		post(end, 12, IBV_WR_SEND, 7, 0, SMALL);
		post(end, 13, IBV_WR_RDMA_READ, 2 * SIZE, 0, SIZE);
		completes(end, 10, IBV_WC_RDMA_WRITE, SIZE);
		completes(end, 11, IBV_WC_SEND, SIZE - 5);
		completes(end, 12, IBV_WC_SEND, SMALL);
		completes(end, 13, IBV_WC_RDMA_READ, SIZE);
		has(end, 2 * SIZE, 0, 0, SIZE);
		for (unsigned int path = 0; path < end->paths; path++) {
			CHECK(mp_query_path(end->qp, path, &stats) == 0);
			CHECK(stats.alive && stats.bytes && !stats.failures && !stats.in_flight_bytes);
		}
		CHECK(mp_query_path(end->qp, end->paths, &stats) == EINVAL);
		CHECK(mp_ibv_get_cq_event(end->qp, 10) == ETIMEDOUT);
		CHECK(mp_rdma_disconnect(end->qp, 20000) == 0);
	} else {
		completes(end, 1, IBV_WC_RECV, SIZE - 5);
		has(end, SIZE, 1, 0, SIZE);
		has(end, 3 * SIZE, 1, 5, SIZE - 5);
		completes(end, 2, IBV_WC_RECV, SMALL);
		has(end, 2 * SIZE, 1, 7, SMALL);
		receive(end, 3, 2 * SIZE, SMALL);
		/* The READ goes on while this end sleeps, and then the peer leaves. */
		CHECK(completion(end).status == IBV_WC_WR_FLUSH_ERR);
	}
	wr.opcode = IBV_WR_SEND;
	CHECK(mp_ibv_post_send(end->qp, &wr, NULL) == EINVAL);
	mp_destroy_qp(end->qp);
	CHECK(ibv_dereg_mr(end->mr) == 0 && ibv_dealloc_pd(end->pd) == 0);
	free(end->memory);
	return NULL;
}

int main(int argc, char **argv)
{
	struct end ends[2] = { { .first = 1 }, { .first = 0 } };
	pthread_t threads[2];
	int sockets[2];

	CHECK(argc == 3 && socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) == 0);
	for (int i = 0; i < 2; i++) {
		ends[i].context = opened(argv[1]);
		ends[i].socket = sockets[i];
		ends[i].paths = atoi(argv[2]);
		CHECK(pthread_create(&threads[i], NULL, run, &ends[i]) == 0);
	}
	for (int i = 0; i < 2; i++) {
		CHECK(pthread_join(threads[i], NULL) == 0);
		CHECK(ibv_close_device(ends[i].context) == 0);
	}
	/* A peer of another kind. */
	ends[0].context = opened(argv[1]);
	ends[0].pd = ibv_alloc_pd(ends[0].context);
	struct mp_qp_attr attr;
	mp_qp_attr_init(&attr);
	attr.paths = mp_find_gids(ends[0].context, 1, attr.gid_index, 1);
	attr.connect_timeout_ms = 200;
	CHECK(!mp_rdma_connect(ends[0].pd, sockets[0], &attr) && errno == ETIMEDOUT);
	for (int i = 0; i < 100; i++)
		CHECK(write(sockets[1], "nonsense", 8) == 8);
	CHECK(!mp_rdma_connect(ends[0].pd, sockets[0], &attr) && errno == EPROTO);
	CHECK(!mp_rdma_connect(ends[0].pd, -1, &attr) && errno == EBADF);
	CHECK(ibv_dealloc_pd(ends[0].pd) == 0 && ibv_close_device(ends[0].context) == 0);
	return 0;
}
