// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Shared receive queues. Receives are posted in shared memory; the kernel makes the queues, arms
 * their limits, and passes on their events.
 */
#include <linux/log2.h>
#include <linux/slab.h>

#include "kverbs.h"

static_assert(VRDMA_SRQ_TYPE_BASIC == (int)IB_SRQT_BASIC);
static_assert(VRDMA_SRQ_TYPE_XRC == (int)IB_SRQT_XRC);

/* Checks what was asked for and writes it, rounded up, into @req and back into @attr. */
static int vrdma_srq_size(const struct vrdma_config *cfg, struct ib_srq_attr *attr,
			  struct vrdma_create_srq *req)
{
	if (!attr->max_wr || attr->max_wr > cfg->max_srq_wr || attr->max_sge > cfg->max_srq_sge)
		return -EINVAL;
	attr->max_wr = roundup_pow_of_two(attr->max_wr);
	attr->max_sge = max(attr->max_sge, 1U);
	if (attr->max_wr > cfg->max_srq_wr)
		return -EINVAL;

	req->entries = attr->max_wr;
	req->max_sge = attr->max_sge;
	req->stride_shift = vrdma_recv_stride_shift(attr->max_sge);
	return req->stride_shift > VRDMA_STRIDE_SHIFT_MAX ? -EINVAL : 0;
}

static int vrdma_srq_map(struct vrdma_srq *srq, const struct vrdma_create_srq *req,
			 const struct vrdma_create_srq_reply *host, struct ib_udata *udata)
{
	struct vrdma_pages *ring = srq->backing->pages[0];
	struct vrdma_user_srq_reply reply = {
		.ring_bytes = ring->count * PAGE_SIZE,
		.entries = req->entries,
		.ring_format = host->ring_format,
		.stride_shift = req->stride_shift,
	};
	int err;

	srq->ring = vrdma_mmap_insert(&vrdma_udata_context(udata)->ib, VRDMA_MMAP_PAGES, ring,
				      ring->count, &reply.ring_offset);
	if (IS_ERR(srq->ring))
		return PTR_ERR(srq->ring);
	err = vrdma_reply_to_user(udata, &reply, sizeof(reply), sizeof(reply));
	if (err)
		vrdma_mmap_remove(srq->ring);
	return err;
}

int vrdma_create_srq(struct ib_srq *ibsrq, struct ib_srq_init_attr *attr, struct ib_udata *udata)
{
	struct vrdma_ibdev *ibd = to_vibdev(ibsrq->device);
	struct vrdma_srq *srq = to_vsrq(ibsrq);
	struct vrdma_create_srq *req;
	struct vrdma_backing *backing;
	struct vrdma_cmd *cmd;
	int err;

	if (attr->srq_type != IB_SRQT_BASIC && (attr->srq_type != IB_SRQT_XRC || !udata))
		return -EOPNOTSUPP;

	backing = vrdma_backing_alloc(ibd, VRDMA_OP_DESTROY_SRQ, &cmd);
	if (IS_ERR(backing))
		return PTR_ERR(backing);
	vrdma_cmd_init_reply(cmd, VRDMA_OP_CREATE_SRQ, create_srq, create_srq);
	req = &cmd->req.create_srq;
	req->srq = backing->handle;
	req->pd = to_vpd(ibsrq->pd)->backing->handle;
	req->cq = VRDMA_HANDLE_NONE;
	req->xrcd = VRDMA_HANDLE_NONE;
	req->srq_type = attr->srq_type;
	/* The limit that comes with the other attributes has no meaning here (IBTA Vol 1 11.2.3.1). */
	if (attr->srq_type == IB_SRQT_XRC) {
		req->cq = to_vcq(attr->ext.cq)->backing->handle;
		req->xrcd = to_vxrcd(attr->ext.xrc.xrcd)->backing->handle;
	}
	err = vrdma_srq_size(&ibd->dev->cfg, &attr->attr, req);
	if (err)
		goto err_backing;
	err = vrdma_ring_alloc(backing, 0, req->entries, req->stride_shift, udata, &req->ring);
	if (err)
		goto err_backing;

	err = vrdma_backing_create(backing, &cmd);
	if (err)
		goto err_cmd;
	srq->backing = backing;
	srq->max_wr = attr->attr.max_wr;
	srq->max_sge = attr->attr.max_sge;
	err = udata ? vrdma_srq_map(srq, req, &cmd->reply.create_srq, udata) :
		      vrdma_ksrq_init(srq, req);
	if (err)
		goto err_retire;

	if (attr->srq_type == IB_SRQT_XRC)
		ibsrq->ext.xrc.srq_num = cmd->reply.create_srq.srqn;
	srq->object.kind = VRDMA_OBJECT_SRQ;
	vrdma_object_publish(backing, &srq->object);
	kfree(cmd);
	return 0;

err_retire:
	vrdma_backing_retire(backing);
	goto err_cmd;
err_backing:
	vrdma_backing_free(backing);
err_cmd:
	kfree(cmd);
	return err;
}

int vrdma_modify_srq(struct ib_srq *ibsrq, struct ib_srq_attr *attr, enum ib_srq_attr_mask mask,
		     struct ib_udata *udata)
{
	struct vrdma_ibdev *ibd = to_vibdev(ibsrq->device);
	struct vrdma_srq *srq = to_vsrq(ibsrq);
	struct vrdma_cmd *cmd;
	int err;

	/* The size stays: IB_DEVICE_SRQ_RESIZE is not claimed. */
	if (mask & ~IB_SRQ_LIMIT)
		return -EOPNOTSUPP;
	if (!mask)
		return 0;
	if (attr->srq_limit > srq->max_wr)
		return -EINVAL;

	cmd = vrdma_cmd_alloc();
	if (!cmd)
		return -ENOMEM;
	vrdma_cmd_init(cmd, VRDMA_OP_MODIFY_SRQ, modify_srq);
	cmd->req.modify_srq.srq = srq->backing->handle;
	cmd->req.modify_srq.limit = attr->srq_limit;
	err = vrdma_ctrl_exec(ibd->dev, &cmd, VRDMA_TIMEOUT);
	kfree(cmd);
	return err;
}

int vrdma_query_srq(struct ib_srq *ibsrq, struct ib_srq_attr *attr)
{
	struct vrdma_ibdev *ibd = to_vibdev(ibsrq->device);
	struct vrdma_srq *srq = to_vsrq(ibsrq);
	struct vrdma_cmd *cmd;
	int err;

	cmd = vrdma_cmd_alloc();
	if (!cmd)
		return -ENOMEM;
	vrdma_cmd_init_reply(cmd, VRDMA_OP_QUERY_SRQ, destroy, query_srq);
	cmd->req.destroy.handle = srq->backing->handle;
	err = vrdma_ctrl_exec(ibd->dev, &cmd, VRDMA_TIMEOUT);
	if (!err) {
		attr->max_wr = srq->max_wr;
		attr->max_sge = srq->max_sge;
		attr->srq_limit = cmd->reply.query_srq.limit;
	}
	kfree(cmd);
	return err;
}

int vrdma_destroy_srq(struct ib_srq *ibsrq, struct ib_udata *udata)
{
	struct vrdma_srq *srq = to_vsrq(ibsrq);

	vrdma_object_hide(srq->backing);
	vrdma_ksrq_fini(srq);
	vrdma_mmap_remove(srq->ring);
	vrdma_backing_retire(srq->backing);
	return 0;
}
