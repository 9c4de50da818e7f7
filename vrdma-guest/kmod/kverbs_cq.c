// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Completions for the kernel's consumers: the host's, and those that we write ourselves when the
 * host is lost. The rules about locks and memory order are in kverbs.h.
 */
#include <linux/slab.h>

#include "kverbs.h"

static_assert(VRDMA_WC_SUCCESS == (int)IB_WC_SUCCESS);
static_assert(VRDMA_WC_WR_FLUSH_ERR == (int)IB_WC_WR_FLUSH_ERR);
static_assert(VRDMA_WC_RNR_RETRY_EXC_ERR == (int)IB_WC_RNR_RETRY_EXC_ERR);
static_assert(VRDMA_WC_GENERAL_ERR == (int)IB_WC_GENERAL_ERR);

/* ---- Making and ending ---- */

/* The completion queue has been made; its ring is the pages of its backing. */
int vrdma_kcq_init(struct vrdma_cq *cq)
{
	struct vrdma_kcq *kcq = kzalloc(sizeof(*kcq), GFP_KERNEL);

	if (!kcq)
		return -ENOMEM;
	spin_lock_init(&kcq->lock);
	INIT_LIST_HEAD(&kcq->queues);
	kcq->pages = cq->backing->pages[0];
	kcq->entries = cq->ib.cqe;
	cq->kernel = kcq;
	return 0;
}

void vrdma_kcq_fini(struct vrdma_cq *cq)
{
	kfree(cq->kernel);
	cq->kernel = NULL;
}

/* Has the completions of @wq told by its completion queue. */
void vrdma_kcq_add(struct vrdma_kwq *wq)
{
	struct vrdma_kcq *kcq = wq->cq->kernel;
	unsigned long flags;

	spin_lock_irqsave(&kcq->lock, flags);
	list_add_tail(&wq->entry, &kcq->queues);
	spin_unlock_irqrestore(&kcq->lock, flags);
}

/* Ends that. The queue pair cannot be found any more, and after this no poller uses it. */
void vrdma_kcq_del(struct vrdma_kwq *wq)
{
	struct vrdma_kcq *kcq = wq->cq->kernel;
	unsigned long flags;

	spin_lock_irqsave(&kcq->lock, flags);
	list_del(&wq->entry);
	spin_unlock_irqrestore(&kcq->lock, flags);
}

/* ---- The ring ---- */

static struct vrdma_cq_header *vrdma_kcq_header(const struct vrdma_kcq *kcq)
{
	return vrdma_ring_stride(kcq->pages, VRDMA_CQE_SHIFT, 0);
}

/* The entry at @index, if the host has written it, or NULL. */
static struct vrdma_cqe *vrdma_kcq_entry(const struct vrdma_kcq *kcq, u32 index)
{
	struct vrdma_cqe *cqe = vrdma_ring_stride(kcq->pages, VRDMA_CQE_SHIFT,
						  1 + (index & (kcq->entries - 1)));
	u8 phase = !(index & kcq->entries);

	/* The host stores the last word, which ends in the phase, after all others. */
	return virt_load_acquire((u32 *)&cqe->status) >> 24 == phase ? cqe : NULL;
}

/*
 * Starts @wq over: completions of it that wait to be polled become nobody's, because the entries
 * that they give back will soon be those of other requests.
 */
void vrdma_kcq_restart(struct vrdma_kwq *wq)
{
	struct vrdma_kcq *kcq = wq->cq->kernel;
	struct vrdma_cqe *cqe;
	unsigned long flags;

	spin_lock_irqsave(&kcq->lock, flags);
	for (u32 index = kcq->consumer; (cqe = vrdma_kcq_entry(kcq, index)); index++) {
		if (cqe->cookie == wq->qp->backing->handle)
			cqe->cookie = VRDMA_HANDLE_NONE;
	}
	wq->consumer = 0;
	wq->producer = 0;
	spin_unlock_irqrestore(&kcq->lock, flags);
}

/* ---- Polling ---- */

static void vrdma_kwq_flush_one(struct vrdma_kwq *wq, struct ib_wc *wc)
{
	const struct vrdma_kwork *work = &wq->work[wq->consumer & (wq->entries - 1)];

	*wc = (struct ib_wc) {
		.wr_id = work->wr_id,
		.status = IB_WC_WR_FLUSH_ERR,
		.opcode = work->opcode,
		.qp = &wq->qp->ib,
		.port_num = VRDMA_PORT,
	};
	smp_store_release(&wq->consumer, wq->consumer + 1);
}

/* Completes what the host will not, in order: @max requests at most. */
static int vrdma_kcq_flush(struct vrdma_kcq *kcq, int max, struct ib_wc *wc)
{
	struct vrdma_kwq *wq;
	int n = 0;

	list_for_each_entry(wq, &kcq->queues, entry)
		while (n < max && wq->consumer != smp_load_acquire(&wq->producer))
			vrdma_kwq_flush_one(wq, &wc[n++]);
	return n;
}

/*
 * Takes back all requests below @consumer, of which the last has completed: @wc tells of that one.
 * Returns whether it was outstanding.
 */
static bool vrdma_kwq_retire(struct vrdma_kwq *wq, u32 consumer, struct ib_wc *wc)
{
	u32 outstanding = smp_load_acquire(&wq->producer) - wq->consumer;
	u32 done = consumer - wq->consumer;
	const struct vrdma_kwork *work;

	if (!done || done > outstanding)
		return false;
	work = &wq->work[(consumer - 1) & (wq->entries - 1)];
	wc->wr_id = work->wr_id;
	wc->opcode = work->opcode;
	smp_store_release(&wq->consumer, consumer);
	return true;
}

static void vrdma_fill_recv_wc(const struct vrdma_cqe *cqe, struct ib_wc *wc)
{
	wc->opcode = cqe->opcode == VRDMA_WC_RECV_RDMA_WITH_IMM ? IB_WC_RECV_RDMA_WITH_IMM :
								 IB_WC_RECV;
	wc->src_qp = cqe->src_qpn;
	wc->sl = cqe->sl;
	if (cqe->flags & VRDMA_CQE_WITH_IMM) {
		wc->wc_flags |= IB_WC_WITH_IMM;
		wc->ex.imm_data = (__force __be32)cqe->imm_or_inv;
	} else if (cqe->flags & VRDMA_CQE_WITH_INV) {
		wc->wc_flags |= IB_WC_WITH_INVALIDATE;
		wc->ex.invalidate_rkey = cqe->imm_or_inv;
	}
	if (cqe->flags & VRDMA_CQE_GRH) {
		wc->wc_flags |= IB_WC_GRH | IB_WC_WITH_NETWORK_HDR_TYPE;
		wc->network_hdr_type = cqe->flags & VRDMA_CQE_IPV4 ? RDMA_NETWORK_IPV4 :
								     RDMA_NETWORK_IPV6;
	}
}

/*
 * Translates a completion. Returns false for one that is nobody's: of a queue pair that is being
 * destroyed, or that claims what is not outstanding.
 */
static bool vrdma_fill_wc(struct vrdma_ibdev *ibd, struct vrdma_cq *cq,
			  const struct vrdma_cqe *cqe, struct ib_wc *wc)
{
	struct vrdma_object *object = xa_load(&ibd->objects, cqe->cookie);
	bool recv = cqe->flags & VRDMA_CQE_RECV;
	struct vrdma_kwq *wq;
	struct vrdma_qp *qp;

	if (!object || object->kind != VRDMA_OBJECT_QP)
		return false;
	qp = container_of(object, struct vrdma_qp, object);
	if (!qp->kernel)
		return false;

	*wc = (struct ib_wc) {
		.status = min_t(u8, cqe->status, IB_WC_GENERAL_ERR),
		.vendor_err = cqe->vendor_err,
		.byte_len = cqe->byte_len,
		.qp = &qp->ib,
		.port_num = VRDMA_PORT,
	};
	if (cqe->flags & VRDMA_CQE_SRQ) {
		if (!qp->ib.srq || qp->ib.recv_cq != &cq->ib)
			return false;
		wc->wr_id = cqe->wr_id;
	} else {
		wq = recv ? &qp->kernel->rq : &qp->kernel->sq;
		if (wq->cq != cq || !vrdma_kwq_retire(wq, cqe->consumer, wc))
			return false;
	}
	if (recv)
		vrdma_fill_recv_wc(cqe, wc);
	return true;
}

int vrdma_poll_cq(struct ib_cq *ibcq, int max, struct ib_wc *wc)
{
	struct vrdma_ibdev *ibd = to_vibdev(ibcq->device);
	struct vrdma_cq *cq = to_vcq(ibcq);
	struct vrdma_kcq *kcq = cq->kernel;
	const struct vrdma_cqe *entry;
	unsigned long flags;
	int n = 0;

	spin_lock_irqsave(&kcq->lock, flags);
	while (n < max && (entry = vrdma_kcq_entry(kcq, kcq->consumer))) {
		struct vrdma_cqe cqe = *entry;

		kcq->consumer++;
		if (vrdma_fill_wc(ibd, cq, &cqe, &wc[n]))
			n++;
	}
	virt_store_release(&vrdma_kcq_header(kcq)->consumer, kcq->consumer);
	if (n < max && vrdma_is_lost(ibd))
		n += vrdma_kcq_flush(kcq, max - n, &wc[n]);
	spin_unlock_irqrestore(&kcq->lock, flags);
	return n;
}

/* ---- Notification ---- */

static bool vrdma_kcq_waits(struct vrdma_ibdev *ibd, const struct vrdma_kcq *kcq)
{
	struct vrdma_kwq *wq;

	lockdep_assert_held(&kcq->lock);
	if (vrdma_kcq_entry(kcq, kcq->consumer))
		return true;
	if (!vrdma_is_lost(ibd))
		return false;
	list_for_each_entry(wq, &kcq->queues, entry)
		if (wq->consumer != smp_load_acquire(&wq->producer))
			return true;
	return false;
}

int vrdma_req_notify_cq(struct ib_cq *ibcq, enum ib_cq_notify_flags flags)
{
	struct vrdma_ibdev *ibd = to_vibdev(ibcq->device);
	struct vrdma_kcq *kcq = to_vcq(ibcq)->kernel;
	struct vrdma_cq_header *header = vrdma_kcq_header(kcq);
	bool solicited = (flags & IB_CQ_SOLICITED_MASK) == IB_CQ_SOLICITED;
	unsigned long irq;
	int missed;

	spin_lock_irqsave(&kcq->lock, irq);
	WRITE_ONCE(kcq->armed, true);
	/* Whoever waits for any completion must not miss it for one who waits for some. */
	if (!solicited)
		virt_store_release(&header->arm, VRDMA_ARM_NEXT);
	else if (READ_ONCE(header->arm) != VRDMA_ARM_NEXT)
		virt_store_release(&header->arm, VRDMA_ARM_SOLICITED);
	/* The host sees that we wait, or we see what it has written. */
	mb();
	missed = flags & IB_CQ_REPORT_MISSED_EVENTS && vrdma_kcq_waits(ibd, kcq);
	spin_unlock_irqrestore(&kcq->lock, irq);
	return missed;
}

/* Calls the handler of whoever armed the queue, under the lock of the table of objects. */
void vrdma_cq_call(struct vrdma_cq *cq)
{
	if (cq->kernel)
		WRITE_ONCE(cq->kernel->armed, false);
	if (cq->ib.comp_handler)
		cq->ib.comp_handler(&cq->ib, cq->ib.cq_context);
}

/* ---- The end of the host ---- */

/* Has consumers poll what is flushed. Those who poll without being called need no call. */
static void vrdma_flush_work(struct work_struct *work)
{
	struct vrdma_ibdev *ibd = container_of(work, struct vrdma_ibdev, flush_work);
	struct vrdma_object *object;
	unsigned long handle, flags;
	struct vrdma_cq *cq;

	xa_lock_irqsave(&ibd->objects, flags);
	xa_for_each(&ibd->objects, handle, object) {
		if (object->kind != VRDMA_OBJECT_CQ)
			continue;
		cq = container_of(object, struct vrdma_cq, object);
		if (cq->kernel && READ_ONCE(cq->kernel->armed))
			vrdma_cq_call(cq);
	}
	xa_unlock_irqrestore(&ibd->objects, flags);
}

/*
 * The host has lost its objects, or has been reset: from now on we flush. Called again for each
 * request that is posted later, from any context.
 */
void vrdma_kverbs_lost(struct vrdma_ibdev *ibd)
{
	WRITE_ONCE(ibd->lost, true);
	/*
	 * Queueing is a full barrier: a request that is not seen by those who are called now has
	 * been posted by one who sees that the host is lost.
	 */
	queue_work(ibd->dev->wq, &ibd->flush_work);
}

void vrdma_kverbs_init(struct vrdma_ibdev *ibd)
{
	INIT_WORK(&ibd->flush_work, vrdma_flush_work);
}

/* All consumers have gone. */
void vrdma_kverbs_exit(struct vrdma_ibdev *ibd)
{
	cancel_work_sync(&ibd->flush_work);
}
