// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Work requests of the kernel's consumers, written into send and receive queues. The rules about
 * locks and memory order are in kverbs.h.
 */
#include <linux/slab.h>
#include <linux/virtio.h>

#include "kverbs.h"

/* Opcodes and scatter/gather entries of the contract are those of verbs, and pass as they are. */
static_assert(VRDMA_SEND_OP_RDMA_WRITE == (int)IB_WR_RDMA_WRITE);
static_assert(VRDMA_SEND_OP_SEND_IMM == (int)IB_WR_SEND_WITH_IMM);
static_assert(VRDMA_SEND_OP_FETCH_ADD == (int)IB_WR_ATOMIC_FETCH_AND_ADD);
static_assert(VRDMA_SEND_OP_LOCAL_INV == (int)IB_WR_LOCAL_INV);
static_assert(VRDMA_SEND_OP_SEND_INV == (int)IB_WR_SEND_WITH_INV);
static_assert(VRDMA_SEND_OP_REG_MR == (int)IB_WR_REG_MR);
static_assert(sizeof(struct ib_sge) == sizeof(struct vrdma_sge));
static_assert(offsetof(struct ib_sge, length) == offsetof(struct vrdma_sge, length));
static_assert(offsetof(struct ib_sge, lkey) == offsetof(struct vrdma_sge, lkey));

/* ---- Work queues ---- */

static void vrdma_kwq_init(struct vrdma_kwq *wq, const struct vrdma_pages *pages, u32 entries,
			   u8 stride_shift, u32 max_sge)
{
	spin_lock_init(&wq->lock);
	INIT_LIST_HEAD(&wq->entry);
	wq->pages = pages;
	wq->entries = entries;
	wq->stride_shift = stride_shift;
	wq->max_sge = max_sge;
}

/* Makes a work queue of a queue pair one whose requests @ibcq tells of. */
static int vrdma_kwq_join(struct vrdma_kwq *wq, struct vrdma_qp *qp, struct ib_cq *ibcq)
{
	wq->qp = qp;
	wq->cq = to_vcq(ibcq);
	if (!wq->entries)
		return 0;
	wq->work = kvcalloc(wq->entries, sizeof(*wq->work), GFP_KERNEL);
	return wq->work ? 0 : -ENOMEM;
}

static struct vrdma_work_header *vrdma_kwq_header(const struct vrdma_kwq *wq)
{
	return vrdma_ring_stride(wq->pages, wq->stride_shift, 0);
}

static void *vrdma_kwq_entry(const struct vrdma_kwq *wq, u32 index)
{
	return vrdma_ring_stride(wq->pages, wq->stride_shift, 1 + (index & (wq->entries - 1)));
}

static bool vrdma_kwq_full(const struct vrdma_kwq *wq, u32 producer)
{
	u32 consumer = wq->work ? smp_load_acquire(&wq->consumer) :
				  virt_load_acquire(&vrdma_kwq_header(wq)->taken);

	return producer - consumer >= wq->entries;
}

/* Hands all entries below @producer to the host, and to our own pollers. */
static void vrdma_kwq_publish(struct vrdma_kwq *wq, u32 producer)
{
	smp_store_release(&wq->producer, producer);
	virt_store_release(&vrdma_kwq_header(wq)->producer, producer);
}

/* Empties the queue, after the host has moved its queue pair to RESET; nobody posts meanwhile. */
static void vrdma_kwq_reset(struct vrdma_kwq *wq)
{
	vrdma_kcq_restart(wq);
	if (wq->work)
		virt_store_release(&vrdma_kwq_header(wq)->producer, 0);
}

/* ---- Doorbells ---- */

static int vrdma_kdoorbell_init(struct vrdma_kdoorbell *bell, struct vrdma_ibdev *ibd,
				const struct vrdma_create_qp_reply *reply)
{
	const struct vrdma_config *cfg = &ibd->dev->cfg;
	struct vrdma_doorbell_page *page;

	if (reply->db_slot >= cfg->num_db_slots || reply->db_index >= VRDMA_QPS_PER_SLOT)
		return -EPROTO;
	page = page_address(ibd->kctx.backing->pages[0]->page[reply->db_slot]);
	bell->dirty = &page->dirty[reply->db_index];
	bell->summary = &page->summary[reply->db_index / VRDMA_QPS_PER_GROUP];
	bell->need_kick = page_address(ibd->status_page) +
			  reply->db_slot * VRDMA_STATUS_LINE_BYTES;
	bell->vq = ibd->dev->vqs[VRDMA_QUEUE_FIRST_COMP + cfg->num_comp_vectors + reply->db_slot];
	return 0;
}

/* Tells the host that the queue pair has work, or, without one, ourselves. */
static void vrdma_kqp_ring(struct vrdma_qp *qp)
{
	struct vrdma_ibdev *ibd = to_vibdev(qp->ib.device);
	struct vrdma_kdoorbell *bell = &qp->kernel->doorbell;

	virt_store_release(bell->dirty, 1);
	virt_store_release(bell->summary, 1);
	/* Orders the stores before both loads: of the host's sleep, and of its end. */
	mb();
	if (vrdma_is_lost(ibd))
		vrdma_kverbs_lost(ibd);
	else if (READ_ONCE(*bell->need_kick))
		virtqueue_notify(bell->vq);
}

/* ---- Queue pairs ---- */

/* The queue pair has been made; its rings are the pages of its backing. */
int vrdma_kqp_init(struct vrdma_qp *qp, const struct vrdma_create_qp *req,
		   const struct vrdma_create_qp_reply *reply)
{
	struct vrdma_ibdev *ibd = to_vibdev(qp->ib.device);
	struct vrdma_kqp *kqp;
	int err;

	kqp = kzalloc(sizeof(*kqp), GFP_KERNEL);
	if (!kqp)
		return -ENOMEM;
	err = vrdma_kdoorbell_init(&kqp->doorbell, ibd, reply);
	if (err)
		goto err_free;

	vrdma_kwq_init(&kqp->sq, qp->backing->pages[0], req->sq_entries, req->sq_stride_shift,
		       req->max_send_sge);
	err = vrdma_kwq_join(&kqp->sq, qp, qp->ib.send_cq);
	if (err)
		goto err_free;
	vrdma_kwq_init(&kqp->rq, qp->backing->pages[1], req->rq_entries, req->rq_stride_shift,
		       req->max_recv_sge);
	err = vrdma_kwq_join(&kqp->rq, qp, qp->ib.recv_cq);
	if (err)
		goto err_work;
	vrdma_kcq_add(&kqp->sq);
	vrdma_kcq_add(&kqp->rq);
	/* Once it has been destroyed, consumers free the memory of its requests. */
	qp->backing->destroy.insist = true;
	qp->kernel = kqp;
	return 0;

err_work:
	kvfree(kqp->sq.work);
err_free:
	kfree(kqp);
	return err;
}

/* The queue pair has been hidden from events and pollers. */
void vrdma_kqp_fini(struct vrdma_qp *qp)
{
	struct vrdma_kqp *kqp = qp->kernel;

	if (!kqp)
		return;
	vrdma_kcq_del(&kqp->sq);
	vrdma_kcq_del(&kqp->rq);
	kvfree(kqp->sq.work);
	kvfree(kqp->rq.work);
	kfree(kqp);
	qp->kernel = NULL;
}

/* The host has moved the queue pair to RESET; nobody posts meanwhile. */
void vrdma_kqp_reset(struct vrdma_qp *qp)
{
	if (!qp->kernel)
		return;
	vrdma_kwq_reset(&qp->kernel->sq);
	vrdma_kwq_reset(&qp->kernel->rq);
}

/* ---- Sends ---- */

/* What a request's completion will be, or a negative errno for one that we cannot send. */
static int vrdma_wc_opcode(enum ib_wr_opcode opcode)
{
	switch (opcode) {
	case IB_WR_RDMA_WRITE:
	case IB_WR_RDMA_WRITE_WITH_IMM:
		return IB_WC_RDMA_WRITE;
	case IB_WR_SEND:
	case IB_WR_SEND_WITH_IMM:
	case IB_WR_SEND_WITH_INV:
		return IB_WC_SEND;
	case IB_WR_RDMA_READ:
		return IB_WC_RDMA_READ;
	case IB_WR_ATOMIC_CMP_AND_SWP:
		return IB_WC_COMP_SWAP;
	case IB_WR_ATOMIC_FETCH_AND_ADD:
		return IB_WC_FETCH_ADD;
	case IB_WR_LOCAL_INV:
		return IB_WC_LOCAL_INV;
	case IB_WR_REG_MR:
		return IB_WC_REG_MR;
	default:
		return -EOPNOTSUPP;
	}
}

/* The most scatter/gather entries that an entry has room for, and the operation use for. */
static u32 vrdma_send_max_sge(const struct vrdma_kwq *sq, enum ib_wr_opcode opcode)
{
	switch (opcode) {
	case IB_WR_ATOMIC_CMP_AND_SWP:
	case IB_WR_ATOMIC_FETCH_AND_ADD:
		return 1;
	case IB_WR_LOCAL_INV:
	case IB_WR_REG_MR:
		return 0;
	default:
		return sq->max_sge;
	}
}

static u8 vrdma_send_flags(int flags)
{
	return (flags & IB_SEND_SIGNALED ? VRDMA_SEND_SIGNALED : 0) |
	       (flags & IB_SEND_SOLICITED ? VRDMA_SEND_SOLICITED : 0) |
	       (flags & IB_SEND_FENCE ? VRDMA_SEND_FENCE : 0) |
	       (flags & IB_SEND_INLINE ? VRDMA_SEND_INLINE : 0);
}

static int vrdma_fill_datagram(struct vrdma_datagram_segment *out, const struct ib_ud_wr *wr)
{
	if (!wr->ah || wr->pkey_index)
		return -EINVAL;
	*out = to_vah(wr->ah)->av;
	out->dest_qpn = wr->remote_qpn;
	out->qkey = wr->remote_qkey;
	return 0;
}

/* Copies the data itself, which the entries name by the kernel's addresses. */
static int vrdma_fill_inline(struct vrdma_send_header *head, void *out, u32 max,
			     const struct ib_send_wr *wr)
{
	u32 bytes = 0;

	for (int i = 0; i < wr->num_sge; i++) {
		const struct ib_sge *sge = &wr->sg_list[i];

		if (sge->length > max - bytes)
			return -EINVAL;
		memcpy(out + bytes, (void *)(uintptr_t)sge->addr, sge->length);
		bytes += sge->length;
	}
	head->num_sge = 0;
	head->inline_bytes = bytes;
	return 0;
}

/* Writes what depends on the opcode. Returns where the data begin, or an error pointer. */
static void *vrdma_fill_operation(struct vrdma_send_header *head, void *next,
				  const struct ib_send_wr *wr)
{
	struct vrdma_atomic_segment *atomic = next;

	switch (wr->opcode) {
	case IB_WR_SEND:
		break;
	case IB_WR_SEND_WITH_IMM:
		head->imm_or_inv = (__force u32)wr->ex.imm_data;
		break;
	case IB_WR_RDMA_WRITE_WITH_IMM:
		head->imm_or_inv = (__force u32)wr->ex.imm_data;
		fallthrough;
	case IB_WR_RDMA_WRITE:
	case IB_WR_RDMA_READ:
		head->remote_addr = rdma_wr(wr)->remote_addr;
		head->rkey = rdma_wr(wr)->rkey;
		break;
	case IB_WR_ATOMIC_CMP_AND_SWP:
		head->remote_addr = atomic_wr(wr)->remote_addr;
		head->rkey = atomic_wr(wr)->rkey;
		atomic->compare_add = atomic_wr(wr)->compare_add;
		atomic->swap = atomic_wr(wr)->swap;
		return atomic + 1;
	case IB_WR_ATOMIC_FETCH_AND_ADD:
		head->remote_addr = atomic_wr(wr)->remote_addr;
		head->rkey = atomic_wr(wr)->rkey;
		atomic->compare_add = atomic_wr(wr)->compare_add;
		atomic->swap = 0;
		return atomic + 1;
	case IB_WR_SEND_WITH_INV:
	case IB_WR_LOCAL_INV:
		head->imm_or_inv = wr->ex.invalidate_rkey;
		break;
	case IB_WR_REG_MR:
		head->rkey = reg_wr(wr)->key;
		vrdma_fill_reg(next, reg_wr(wr));
		return next + sizeof(struct vrdma_reg_segment);
	default:
		return ERR_PTR(-EOPNOTSUPP);
	}
	return next;
}

static int vrdma_fill_send(struct vrdma_qp *qp, void *entry, const struct ib_send_wr *wr,
			   enum ib_wc_opcode *completion)
{
	struct vrdma_send_header *head = entry;
	void *next = head + 1;
	int opcode, err;

	opcode = vrdma_wc_opcode(wr->opcode);
	if (opcode < 0)
		return opcode;
	if (wr->num_sge < 0 || wr->num_sge > vrdma_send_max_sge(&qp->kernel->sq, wr->opcode))
		return -EINVAL;
	*head = (struct vrdma_send_header) {
		.opcode = wr->opcode,
		.flags = vrdma_send_flags(wr->send_flags),
		.num_sge = wr->num_sge,
		.wr_id = wr->wr_id,
	};
	*completion = opcode;

	if (qp->ib.qp_type == IB_QPT_UD || qp->ib.qp_type == IB_QPT_GSI) {
		err = vrdma_fill_datagram(next, ud_wr(wr));
		if (err)
			return err;
		next += sizeof(struct vrdma_datagram_segment);
	}
	next = vrdma_fill_operation(head, next, wr);
	if (IS_ERR(next))
		return PTR_ERR(next);

	if (!(wr->send_flags & IB_SEND_INLINE)) {
		memcpy(next, wr->sg_list, wr->num_sge * sizeof(struct vrdma_sge));
		return 0;
	}
	if (opcode != IB_WC_SEND && opcode != IB_WC_RDMA_WRITE)
		return -EINVAL;
	return vrdma_fill_inline(head, next, qp->cap.max_inline_data, wr);
}

int vrdma_post_send(struct ib_qp *ibqp, const struct ib_send_wr *wr, const struct ib_send_wr **bad)
{
	struct vrdma_qp *qp = to_vqp(ibqp);
	struct vrdma_kwq *sq = &qp->kernel->sq;
	unsigned long flags;
	u32 producer;
	int err = 0;

	if (READ_ONCE(qp->state) < IB_QPS_RTS) {
		*bad = wr;
		return -EINVAL;
	}

	spin_lock_irqsave(&sq->lock, flags);
	for (producer = sq->producer; wr; wr = wr->next, producer++) {
		struct vrdma_kwork *work = &sq->work[producer & (sq->entries - 1)];

		if (vrdma_kwq_full(sq, producer))
			err = -ENOMEM;
		else
			err = vrdma_fill_send(qp, vrdma_kwq_entry(sq, producer), wr, &work->opcode);
		if (err) {
			*bad = wr;
			break;
		}
		work->wr_id = wr->wr_id;
	}
	vrdma_kwq_publish(sq, producer);
	spin_unlock_irqrestore(&sq->lock, flags);

	vrdma_kqp_ring(qp);
	/* Who closes a connection waits for its MADs for ever. */
	if (ibqp->qp_type == IB_QPT_GSI)
		vrdma_watch_host(to_vibdev(ibqp->device)->dev);
	return err;
}

/* ---- Receives ---- */

static int vrdma_fill_recv(const struct vrdma_kwq *wq, u32 index, const struct ib_recv_wr *wr)
{
	struct vrdma_recv_header *head = vrdma_kwq_entry(wq, index);

	if (vrdma_kwq_full(wq, index))
		return -ENOMEM;
	if (wr->num_sge < 0 || wr->num_sge > wq->max_sge)
		return -EINVAL;
	*head = (struct vrdma_recv_header) { .wr_id = wr->wr_id, .num_sge = wr->num_sge };
	memcpy(head + 1, wr->sg_list, wr->num_sge * sizeof(struct vrdma_sge));
	return 0;
}

static int vrdma_kwq_post_recv(struct vrdma_kwq *wq, const struct ib_recv_wr *wr,
			       const struct ib_recv_wr **bad)
{
	unsigned long flags;
	u32 producer;
	int err = 0;

	spin_lock_irqsave(&wq->lock, flags);
	for (producer = wq->producer; wr; wr = wr->next, producer++) {
		err = vrdma_fill_recv(wq, producer, wr);
		if (err) {
			*bad = wr;
			break;
		}
		if (wq->work)
			wq->work[producer & (wq->entries - 1)] = (struct vrdma_kwork) {
				.wr_id = wr->wr_id,
				.opcode = IB_WC_RECV,
			};
	}
	vrdma_kwq_publish(wq, producer);
	spin_unlock_irqrestore(&wq->lock, flags);
	return err;
}

int vrdma_post_recv(struct ib_qp *ibqp, const struct ib_recv_wr *wr, const struct ib_recv_wr **bad)
{
	struct vrdma_qp *qp = to_vqp(ibqp);
	struct vrdma_kwq *rq = &qp->kernel->rq;
	int err;

	if (!rq->work || READ_ONCE(qp->state) == IB_QPS_RESET) {
		*bad = wr;
		return -EINVAL;
	}
	err = vrdma_kwq_post_recv(rq, wr, bad);
	/*
	 * The host reads receives when it needs them; only to be flushed they must be announced. The
	 * fence pairs with that of vrdma_kverbs_lost().
	 */
	smp_mb();
	if (READ_ONCE(qp->state) == IB_QPS_ERR || vrdma_is_lost(to_vibdev(ibqp->device)))
		vrdma_kqp_ring(qp);
	return err;
}

/* ---- Shared receive queues ---- */

/* The shared receive queue has been made; its ring is the pages of its backing. */
int vrdma_ksrq_init(struct vrdma_srq *srq, const struct vrdma_create_srq *req)
{
	struct vrdma_kwq *wq = kzalloc(sizeof(*wq), GFP_KERNEL);

	if (!wq)
		return -ENOMEM;
	vrdma_kwq_init(wq, srq->backing->pages[0], req->entries, req->stride_shift, req->max_sge);
	srq->kernel = wq;
	return 0;
}

void vrdma_ksrq_fini(struct vrdma_srq *srq)
{
	kfree(srq->kernel);
	srq->kernel = NULL;
}

int vrdma_post_srq_recv(struct ib_srq *ibsrq, const struct ib_recv_wr *wr,
			const struct ib_recv_wr **bad)
{
	return vrdma_kwq_post_recv(to_vsrq(ibsrq)->kernel, wr, bad);
}
