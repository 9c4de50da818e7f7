// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Memory regions: user memory, pinned, and handed to the host as a list of pages as large as its
 * layout allows.
 */
#include <linux/log2.h>
#include <linux/slab.h>

#include "vrdma.h"

#define VRDMA_ACCESS_MASK                                                                          \
	(VRDMA_ACCESS_LOCAL_WRITE | VRDMA_ACCESS_REMOTE_WRITE | VRDMA_ACCESS_REMOTE_READ |         \
	 VRDMA_ACCESS_REMOTE_ATOMIC)

/* Pins the memory and writes its pages into the command. */
static int vrdma_mr_pin(struct vrdma_ibdev *ibd, struct vrdma_backing *backing, u64 start,
			u64 length, u64 iova, int access, struct vrdma_create_mr *req)
{
	struct ib_block_iter block;
	unsigned long page_size;
	struct ib_umem *umem;
	int err;

	umem = ib_umem_get(&ibd->ib, start, length, access);
	if (IS_ERR(umem))
		return PTR_ERR(umem);
	backing->umem = umem;

	/* Same offset in a page by address and by iova: that is how the host finds a byte. */
	page_size = ib_umem_find_best_pgsz(umem, ibd->dev->cfg.page_size_cap, iova);
	if (!page_size)
		return -EINVAL;
	rdma_umem_for_each_dma_block(umem, &block, page_size) {
		err = vrdma_table_add(&backing->table[0], rdma_block_iter_dma_address(&block));
		if (err)
			return err;
	}
	return vrdma_table_finish(&backing->table[0], ilog2(page_size), &req->pages);
}

struct ib_mr *vrdma_reg_user_mr(struct ib_pd *ibpd, u64 start, u64 length, u64 iova, int access,
				struct ib_udata *udata)
{
	struct vrdma_ibdev *ibd = to_vibdev(ibpd->device);
	struct vrdma_backing *backing;
	struct vrdma_cmd *cmd = NULL;
	struct vrdma_mr *mr;
	int err;

	/* Optional rights may be ignored, and are. */
	access &= ~IB_ACCESS_OPTIONAL;
	if (access & ~VRDMA_ACCESS_MASK)
		return ERR_PTR(-EOPNOTSUPP);
	if (length > ibd->dev->cfg.max_mr_bytes)
		return ERR_PTR(-EINVAL);

	mr = kzalloc(sizeof(*mr), GFP_KERNEL_ACCOUNT);
	if (!mr)
		return ERR_PTR(-ENOMEM);
	backing = vrdma_backing_alloc(ibd, VRDMA_OP_DESTROY_MR);
	if (IS_ERR(backing)) {
		err = PTR_ERR(backing);
		goto err_mr;
	}
	cmd = vrdma_cmd_alloc();
	if (!cmd) {
		err = -ENOMEM;
		goto err_backing;
	}
	vrdma_cmd_init_reply(cmd, VRDMA_OP_CREATE_MR, create_mr, create_mr);
	cmd->req.create_mr.mr = backing->handle;
	cmd->req.create_mr.pd = to_vpd(ibpd)->backing->handle;
	cmd->req.create_mr.access = access;
	cmd->req.create_mr.iova = iova;
	cmd->req.create_mr.length = length;
	err = vrdma_mr_pin(ibd, backing, start, length, iova, access, &cmd->req.create_mr);
	if (err)
		goto err_backing;

	err = vrdma_backing_create(backing, &cmd);
	if (err)
		goto err_mr;
	mr->backing = backing;
	mr->ib.lkey = cmd->reply.create_mr.lkey;
	mr->ib.rkey = cmd->reply.create_mr.rkey;
	kfree(cmd);
	return &mr->ib;

err_backing:
	vrdma_backing_free(backing);
err_mr:
	kfree(cmd);
	kfree(mr);
	return ERR_PTR(err);
}

int vrdma_dereg_mr(struct ib_mr *ibmr, struct ib_udata *udata)
{
	struct vrdma_mr *mr = to_vmr(ibmr);

	vrdma_backing_retire(mr->backing);
	kfree(mr);
	return 0;
}
