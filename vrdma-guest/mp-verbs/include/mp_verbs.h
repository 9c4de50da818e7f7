/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * One RDMA connection over many paths, on any verbs device with several GIDs.
 *
 * A connection has an ordinary RC queue pair for each path, from the i-th GID of one end to the i-th GID of the other, with one protection
 * domain and one completion queue. Names follow verbs (and Virtuoso):
 *
 *     rdma_connect       mp_rdma_connect            ibv_poll_cq       mp_ibv_poll_cq
 *     rdma_disconnect    mp_rdma_disconnect         ibv_get_cq_event  mp_ibv_get_cq_event
 *     ibv_post_send      mp_ibv_post_send (RDMA_WRITE, RDMA_READ, SEND)
 *     ibv_post_recv      mp_ibv_post_recv
 *
 * Messages of any length up to 4 GiB - 1. Each has one completion, in the order of posting; receives have theirs in an order of their own. Effects are in order
 * as on one RC queue pair, save that the bytes of a message of more than small_bytes land in any order. Who waits for memory to change
 * waits for what a later small message brings, or for a completion.
 *
 * A path that fails costs time: what was under way there goes over the others, after both ends have closed it. A WRITE or READ that was under way may
 * be executed twice, before it is complete; a SEND never is. The path is taken up again when it answers. The connection fails when its last path does, or for
 * any other error of a work request; then all that is outstanding ends with IBV_WC_WR_FLUSH_ERR, save what failed.
 *
 * Memory and regions of a request belong to it until it is complete.
 *
 * Both ends must call mp_ibv_poll_cq or mp_ibv_get_cq_event now and then, also when they only receive or are only written to: receives are told
 * to the peer, and failed paths closed, in there. Functions may be called by any thread.
 */
#ifndef MP_VERBS_H
#define MP_VERBS_H

#include <stdint.h>
#include <infiniband/verbs.h>

#ifdef __cplusplus
extern "C" {
#endif

#define MP_PATHS_MAX 16

struct mp_qp;

/* Which path takes the next part of a message. */
enum mp_scheduler {
	MP_SCHED_LEAST_LOADED = 0,	/* the one that is done with it first */
	MP_SCHED_ROUND_ROBIN = 1,
	MP_SCHED_WEIGHTED = 2,		/* in proportion to weight[] */
};

/* What the network does with what comes too thick. */
enum mp_network {
	MP_NET_LOSSLESS = 0,	/* holds it back: a window bounds what is in flight */
	MP_NET_LOSSY = 1,	/* loses it: a path has one work request at a time, whose size doubles until one is lost, and then grows in steps */
};

struct mp_qp_attr {
	uint32_t size;			/* sizeof(struct mp_qp_attr) */
	uint32_t paths;			/* 1 to 16; the smaller number of the two ends counts */
	uint8_t gid_index[MP_PATHS_MAX];
	uint32_t weight[MP_PATHS_MAX];	/* MP_SCHED_WEIGHTED; 1 */
	uint8_t port;			/* 1 */
	uint8_t timeout;		/* local ACK timeout, 4.096 us << timeout, 1 to 31; 14 */
	uint8_t retry_cnt;		/* 0 to 7; 3 */
	uint8_t scheduler;		/* enum mp_scheduler; MP_SCHED_LEAST_LOADED */
	uint8_t network;		/* enum mp_network; MP_NET_LOSSLESS */
	uint8_t reserved[3];		/* 0 */
	uint32_t depth;			/* work requests on each path, 2 to 4096; 64 */
	uint32_t messages;		/* outstanding messages, and receives, not 0; 1024 */
	uint32_t small_bytes;		/* messages of no more bytes are not split; 32 KiB */
	uint32_t probe_bytes;		/* length of flows that measure paths, at least 512 KiB; 0: completions tell; 0 */
	uint32_t probe_interval_ms;	/* from one to the next on a path; 1000 */
	uint32_t connect_timeout_ms;	/* of each wait for the peer; 10000 */
	uint64_t chunk_bytes;		/* largest work request, or first one with MP_NET_LOSSY (then at least small_bytes); 256 KiB */
	uint64_t window_bytes;		/* MP_NET_LOSSLESS: bytes in flight on a path; 512 KiB */
	uint64_t step_bytes;		/* MP_NET_LOSSY: growth after the first loss; 64 KiB */
	uint64_t most_bytes;		/* MP_NET_LOSSY: largest work request; 64 MiB */
};

/* The defaults that stand above; paths and gid_index are for the caller to fill in. */
void mp_qp_attr_init(struct mp_qp_attr *attr);

/* The indexes of a port's GIDs that paths can have, in order, at most max: with RoCE those of RoCEv2 that are no link-local addresses. Returns how many. */
int mp_find_gids(struct ibv_context *context, uint8_t port, uint8_t *indexes, int max);

/*
 * Connects to the peer at the other end of a connected stream socket, which calls this as well. The parameters of all queue pairs cross the socket, which is
 * not used any more afterwards. pd must live longer than the connection.
 *
 * Returns NULL and sets errno: EINVAL attributes out of their range; EPROTO not a peer of this library and version; ETIMEDOUT, ECONNRESET and others
 * of the socket; ENOENT libibverbs is missing; else what the device says.
 */
struct mp_qp *mp_rdma_connect(struct ibv_pd *pd, int socket, const struct mp_qp_attr *attr);

/*
 * Ends the connection when all that was posted is complete, and waits for that. The peer's connection ends as well. Completions can be polled afterwards;
 * receives end flushed. Returns 0, ETIMEDOUT (it will end if polled), or an errno of the device.
 */
int mp_rdma_disconnect(struct mp_qp *qp, int timeout_ms);

/* Destroys the connection, ended or not, with what was not polled. After it, no memory is touched any more. */
void mp_destroy_qp(struct mp_qp *qp);

struct mp_send_wr {
	uint64_t wr_id;
	struct mp_send_wr *next;
	enum ibv_wr_opcode opcode;	/* IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ, IBV_WR_SEND */
	uint32_t length;
	void *addr;
	struct ibv_mr *mr;		/* of addr; may be NULL if length is 0 */
	uint64_t remote_addr;
	uint32_t rkey;
};

/* Posts requests; all are signalled. Returns 0, or an errno, and the request that was not taken: ENOMEM too many are outstanding; EINVAL the connection has
 * ended, or there is no region; EOPNOTSUPP the opcode. */
int mp_ibv_post_send(struct mp_qp *qp, struct mp_send_wr *wr, struct mp_send_wr **bad_wr);

struct mp_recv_wr {
	uint64_t wr_id;
	struct mp_recv_wr *next;
	void *addr;
	struct ibv_mr *mr;		/* of addr, registered with IBV_ACCESS_REMOTE_WRITE; may be NULL if length is 0 */
	uint32_t length;
};

/* Posts receives, and tells the peer, whose SENDs wait for them. Errors as above. A SEND that is longer than its receive ends the connection. */
int mp_ibv_post_recv(struct mp_qp *qp, struct mp_recv_wr *wr, struct mp_recv_wr **bad_wr);

/* Takes up to entries completions, and returns how many: wr_id, status, opcode and byte_len are set, the rest is 0. */
int mp_ibv_poll_cq(struct mp_qp *qp, int entries, struct ibv_wc *wc);

/* Sleeps until there is a completion, or the connection has ended, but no longer than timeout_ms (negative: for ever). Returns 0, ETIMEDOUT, or an errno. */
int mp_ibv_get_cq_event(struct mp_qp *qp, int timeout_ms);

/* A descriptor for poll or epoll: readable when mp_ibv_get_cq_event, which has returned ETIMEDOUT, is worth another call. It should be called every
 * second in any case, since a path that has failed is tried again by time. */
int mp_qp_fd(struct mp_qp *qp);

/* The number of paths that both ends have. */
unsigned int mp_qp_paths(struct mp_qp *qp);

struct mp_path_stats {
	uint64_t bytes;			/* of complete transfers that this end has asked for */
	uint64_t in_flight_bytes;
	uint64_t bytes_per_sec;		/* what the path carries; 0 if unknown */
	uint64_t failures;
	uint32_t alive;			/* whether it is in use */
	uint32_t reserved;
};

/* Returns 0, or EINVAL if there is no such path. */
int mp_query_path(struct mp_qp *qp, unsigned int path, struct mp_path_stats *stats);

#ifdef __cplusplus
}
#endif

#endif
