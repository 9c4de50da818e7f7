// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Completion queues. User space polls and arms them in shared memory; the kernel makes them and
 * passes on their events.
 */
#include <linux/log2.h>
#include <linux/slab.h>

#include "vrdma.h"

static u32 vrdma_cq_pages(u32 entries)
{
	/* The header takes the place of one entry. */
	return DIV_ROUND_UP_ULL(((u64)entries + 1) * VRDMA_CQE_BYTES, PAGE_SIZE);
}

int vrdma_create_cq(struct ib_cq *ibcq, const struct ib_cq_init_attr *attr, VRDMA_CREATE_CQ_ARG)
{
	struct ib_udata *udata = VRDMA_CREATE_CQ_UDATA;
	struct vrdma_ucontext *context =
		rdma_udata_to_drv_context(udata, struct vrdma_ucontext, ib);
	struct vrdma_ibdev *ibd = to_vibdev(ibcq->device);
	struct vrdma_cq *cq = to_vcq(ibcq);
	struct vrdma_user_cq_reply reply = {};
	struct vrdma_backing *backing;
	struct vrdma_cmd *cmd = NULL;
	u32 entries;
	int err;

	if (attr->flags)
		return -EOPNOTSUPP;
	if (!attr->cqe || attr->cqe > ibd->dev->cfg.max_cqe ||
	    attr->comp_vector >= ibd->dev->cfg.num_comp_vectors)
		return -EINVAL;
	entries = roundup_pow_of_two(attr->cqe);
	if (entries > ibd->dev->cfg.max_cqe)
		return -EINVAL;

	backing = vrdma_backing_alloc(ibd, VRDMA_OP_DESTROY_CQ);
	if (IS_ERR(backing))
		return PTR_ERR(backing);
	cmd = vrdma_cmd_alloc();
	if (!cmd) {
		err = -ENOMEM;
		goto err_backing;
	}
	vrdma_cmd_init_reply(cmd, VRDMA_OP_CREATE_CQ, create_cq, create_cq);
	cmd->req.create_cq.cq = backing->handle;
	cmd->req.create_cq.ctx = context->backing->handle;
	cmd->req.create_cq.entries = entries;
	cmd->req.create_cq.vector = attr->comp_vector;

	backing->pages[0] = vrdma_pages_alloc(vrdma_cq_pages(entries), true);
	if (IS_ERR(backing->pages[0])) {
		err = PTR_ERR(backing->pages[0]);
		backing->pages[0] = NULL;
		goto err_backing;
	}
	err = vrdma_table_write(&backing->table[0], backing->pages[0], &cmd->req.create_cq.ring);
	if (err)
		goto err_backing;

	err = vrdma_backing_create(backing, &cmd);
	if (err)
		goto err_cmd;
	cq->backing = backing;
	ibcq->cqe = entries;

	reply.ring_bytes = backing->pages[0]->count * PAGE_SIZE;
	reply.entries = entries;
	reply.ring_format = cmd->reply.create_cq.ring_format;
	cq->ring = vrdma_mmap_insert(&context->ib, VRDMA_MMAP_PAGES, backing->pages[0],
				     backing->pages[0]->count, &reply.ring_offset);
	if (IS_ERR(cq->ring)) {
		err = PTR_ERR(cq->ring);
		goto err_retire;
	}
	err = vrdma_reply_to_user(udata, &reply, sizeof(reply));
	if (err)
		goto err_retire;

	cq->object.kind = VRDMA_OBJECT_CQ;
	vrdma_object_publish(backing, &cq->object);
	kfree(cmd);
	return 0;

err_retire:
	vrdma_mmap_remove(cq->ring);
	vrdma_backing_retire(backing);
	goto err_cmd;
err_backing:
	vrdma_backing_free(backing);
err_cmd:
	kfree(cmd);
	return err;
}

int vrdma_destroy_cq(struct ib_cq *ibcq, struct ib_udata *udata)
{
	struct vrdma_cq *cq = to_vcq(ibcq);

	vrdma_object_hide(cq->backing);
	vrdma_mmap_remove(cq->ring);
	vrdma_backing_retire(cq->backing);
	return 0;
}
