/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Verbs for consumers in the kernel: MADs and the connection manager, storage, file systems. They
 * post and poll here, in the rings that user space maps otherwise. Objects are made and ended by
 * the same code as those of user space, in the module's own context; what is below hangs on them.
 *
 * Locks. All of this may be called with interrupts off, and nothing sleeps.
 *
 * - vrdma_kwq.lock serialises those who post to a work queue, and protects its producer index.
 * - vrdma_kcq.lock serialises those who poll a completion queue. It protects that queue's consumer
 *   index, its list of work queues, and the consumer index of each of these.
 * - Neither is taken inside the other. Posters learn from a work queue's consumer index which
 *   entries are free, pollers from its producer index which are outstanding: each is stored with
 *   release by one side and loaded with acquire by the other, like the indexes shared with the host.
 * - Completion handlers are called under the lock of vrdma_ibdev.objects, and may post and poll. So
 *   these locks are taken inside that one, and a poller looks a queue pair up under RCU only.
 *
 * Memory order. The host is another processor even for a uniprocessor kernel: indexes shared with
 * it are accessed by virt_ functions, and the full fences of doorbells and arming are mb(), which no
 * kernel patches away (see ring.rs and doorbell.rs of the crate vrdma-abi).
 *
 * The end of a queue pair. First it leaves the table of objects, then, under their locks, the lists
 * of its completion queues: from then on no poller finds it, and completions of it that still wait
 * to be polled are skipped. Only then is the host asked to forget it.
 *
 * A lost host. Consumers wait for their completions, without end: a MAD that never completes hangs
 * whoever closes a connection. So once the host's objects are gone, polling invents what the host
 * can write no more: each outstanding request completes as flushed, in order, and so does what is
 * posted later. A request is never completed twice, whatever the host still writes: what a
 * completion claims must be outstanding.
 */
#ifndef VRDMA_KVERBS_H
#define VRDMA_KVERBS_H

#include "vrdma.h"

/* What the host need not tell of a posted request, because we know it. */
struct vrdma_kwork {
	u64 wr_id;
	enum ib_wc_opcode opcode;
};

/* A work queue: send, receive, or shared receive queue. */
struct vrdma_kwq {
	spinlock_t lock;
	const struct vrdma_pages *pages;
	u32 entries; /* a power of two */
	u8 stride_shift;
	u32 max_sge;
	u32 producer;

	/* The rest is not for shared receive queues, whose header says what has been taken. */
	struct vrdma_qp *qp;
	struct vrdma_cq *cq;
	struct list_head entry; /* in vrdma_kcq.queues */
	struct vrdma_kwork *work; /* by entry; NULL when there are none */
	u32 consumer;
};

/* How a queue pair tells the host of new work. */
struct vrdma_kdoorbell {
	u8 *dirty;
	u8 *summary;
	const u32 *need_kick;
	struct virtqueue *vq;
};

struct vrdma_kqp {
	struct vrdma_kwq sq;
	struct vrdma_kwq rq; /* with a shared receive queue: without entries and pages */
	struct vrdma_kdoorbell doorbell;
};

struct vrdma_kcq {
	spinlock_t lock;
	const struct vrdma_pages *pages;
	u32 entries; /* a power of two */
	u32 consumer;
	bool armed; /* the consumer waits for its handler to be called */
	struct list_head queues; /* whose completions come here */
};

/* The stride number @stride of a ring; number 0 is its header. */
static inline void *vrdma_ring_stride(const struct vrdma_pages *pages, u8 stride_shift, u32 stride)
{
	u64 offset = (u64)stride << stride_shift;

	return page_address(pages->page[offset >> PAGE_SHIFT]) + offset_in_page(offset);
}

/* ---- Device (kverbs_cq.c) ---- */

void vrdma_kverbs_init(struct vrdma_ibdev *ibd);
void vrdma_kverbs_exit(struct vrdma_ibdev *ibd);
void vrdma_kverbs_lost(struct vrdma_ibdev *ibd);

/* Whether the host's objects are gone, so that we flush what was posted. */
static inline bool vrdma_is_lost(struct vrdma_ibdev *ibd)
{
	return READ_ONCE(ibd->lost);
}

/* ---- Completion queues (kverbs_cq.c) ---- */

int vrdma_kcq_init(struct vrdma_cq *cq);
void vrdma_kcq_fini(struct vrdma_cq *cq);
void vrdma_kcq_add(struct vrdma_kwq *wq);
void vrdma_kcq_del(struct vrdma_kwq *wq);
void vrdma_kcq_restart(struct vrdma_kwq *wq);
void vrdma_cq_call(struct vrdma_cq *cq);
int vrdma_poll_cq(struct ib_cq *ibcq, int max, struct ib_wc *wc);
int vrdma_req_notify_cq(struct ib_cq *ibcq, enum ib_cq_notify_flags flags);

/* ---- Queue pairs and shared receive queues (kverbs_qp.c) ---- */

int vrdma_kqp_init(struct vrdma_qp *qp, const struct vrdma_create_qp *req,
		   const struct vrdma_create_qp_reply *reply);
void vrdma_kqp_fini(struct vrdma_qp *qp);
void vrdma_kqp_reset(struct vrdma_qp *qp);
int vrdma_ksrq_init(struct vrdma_srq *srq, const struct vrdma_create_srq *req);
void vrdma_ksrq_fini(struct vrdma_srq *srq);
int vrdma_post_send(struct ib_qp *ibqp, const struct ib_send_wr *wr, const struct ib_send_wr **bad);
int vrdma_post_recv(struct ib_qp *ibqp, const struct ib_recv_wr *wr, const struct ib_recv_wr **bad);
int vrdma_post_srq_recv(struct ib_srq *ibsrq, const struct ib_recv_wr *wr,
			const struct ib_recv_wr **bad);

/* ---- Memory regions (fastreg.c) ---- */

struct ib_mr *vrdma_get_dma_mr(struct ib_pd *ibpd, int access);
struct ib_mr *vrdma_alloc_mr(struct ib_pd *ibpd, enum ib_mr_type type, u32 max_num_sg);
int vrdma_map_mr_sg(struct ib_mr *ibmr, struct scatterlist *sg, int sg_nents,
		    unsigned int *sg_offset);
void vrdma_fill_reg(struct vrdma_reg_segment *out, const struct ib_reg_wr *wr);

#endif /* VRDMA_KVERBS_H */
