// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Memory regions of user space: its memory, pinned, and handed to the host as a list of pages as
 * large as its layout allows.
 */
#include <linux/log2.h>
#include <linux/slab.h>

#include "vrdma.h"

static_assert(VRDMA_REREG_TRANSLATION == (int)IB_MR_REREG_TRANS);
static_assert(VRDMA_REREG_PD == (int)IB_MR_REREG_PD);
static_assert(VRDMA_REREG_ACCESS == (int)IB_MR_REREG_ACCESS);
static_assert(VRDMA_ACCESS_MW_BIND == (int)IB_ACCESS_MW_BIND);
static_assert(VRDMA_ACCESS_ZERO_BASED == (int)IB_ZERO_BASED);

#define VRDMA_ACCESS_MASK                                                                          \
	(VRDMA_ACCESS_LOCAL_WRITE | VRDMA_ACCESS_REMOTE_WRITE | VRDMA_ACCESS_REMOTE_READ |         \
	 VRDMA_ACCESS_REMOTE_ATOMIC | VRDMA_ACCESS_MW_BIND | VRDMA_ACCESS_ZERO_BASED)

/*
 * Pins memory and lists its pages for the host. Returns the memory, which is the caller's to release
 * once the host has let go of it, or an error pointer.
 */
static struct ib_umem *vrdma_pin(struct vrdma_ibdev *ibd, u64 start, u64 length, u64 iova,
				 int access, struct vrdma_table *table,
				 struct vrdma_page_table *out)
{
	struct ib_block_iter block;
	unsigned long page_size;
	struct ib_umem *umem;
	int err = 0;

	if (length > ibd->dev->cfg.max_mr_bytes)
		return ERR_PTR(-EINVAL);
	umem = ib_umem_get(&ibd->ib, start, length, access);
	if (IS_ERR(umem))
		return umem;

	/* Same offset in a page by address and by iova: that is how the host finds a byte. */
	page_size = ib_umem_find_best_pgsz(umem, ibd->dev->cfg.page_size_cap, iova);
	if (!page_size) {
		err = -EINVAL;
		goto err_umem;
	}
	rdma_umem_for_each_dma_block(umem, &block, page_size) {
		err = vrdma_table_add(table, rdma_block_iter_dma_address(&block));
		if (err)
			goto err_umem;
	}
	err = vrdma_table_finish(table, ilog2(page_size), out);
	if (err)
		goto err_umem;
	return umem;

err_umem:
	ib_umem_release(umem);
	return ERR_PTR(err);
}

struct ib_mr *vrdma_reg_user_mr(struct ib_pd *ibpd, u64 start, u64 length, u64 iova, int access,
				struct ib_udata *udata)
{
	struct vrdma_ibdev *ibd = to_vibdev(ibpd->device);
	struct vrdma_create_mr *req;
	struct vrdma_backing *backing;
	struct vrdma_cmd *cmd;
	struct ib_umem *umem;
	struct vrdma_mr *mr;
	int err;

	/* Optional rights may be ignored, and are. */
	access &= ~IB_ACCESS_OPTIONAL;
	if (access & ~VRDMA_ACCESS_MASK)
		return ERR_PTR(-EOPNOTSUPP);

	mr = kzalloc(sizeof(*mr), GFP_KERNEL_ACCOUNT);
	if (!mr)
		return ERR_PTR(-ENOMEM);
	backing = vrdma_backing_alloc(ibd, VRDMA_OP_DESTROY_MR, &cmd);
	if (IS_ERR(backing)) {
		err = PTR_ERR(backing);
		goto err_mr;
	}
	vrdma_cmd_init_reply(cmd, VRDMA_OP_CREATE_MR, create_mr, create_mr);
	req = &cmd->req.create_mr;
	req->mr = backing->handle;
	req->pd = to_vpd(ibpd)->backing->handle;
	req->access = access;
	req->iova = iova;
	req->length = length;
	umem = vrdma_pin(ibd, start, length, iova, access, &backing->table[0], &req->pages);
	if (IS_ERR(umem)) {
		err = PTR_ERR(umem);
		goto err_backing;
	}
	backing->umem = umem;

	err = vrdma_backing_create(backing, &cmd);
	if (err)
		goto err_mr;
	mr->backing = backing;
	mr->access = access;
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

/*
 * Changes a region in place, and keeps its keys: the host takes over all of the change or nothing of
 * it. Returns NULL for that, or an error pointer.
 */
struct ib_mr *vrdma_rereg_user_mr(struct ib_mr *ibmr, int flags, u64 start, u64 length, u64 iova,
				  int access, struct ib_pd *pd, struct ib_udata *udata)
{
	struct vrdma_ibdev *ibd = to_vibdev(ibmr->device);
	struct vrdma_mr *mr = to_vmr(ibmr);
	struct vrdma_backing *backing = mr->backing;
	struct vrdma_change *change;
	struct vrdma_rereg_mr *req;
	struct ib_umem *umem;
	int err;

	if (flags & ~(IB_MR_REREG_TRANS | IB_MR_REREG_PD | IB_MR_REREG_ACCESS))
		return ERR_PTR(-EOPNOTSUPP);
	/* The core drops the change to the domain that the region is in. */
	if (!flags)
		return NULL;
	if (flags & IB_MR_REREG_ACCESS)
		access &= ~IB_ACCESS_OPTIONAL;
	else
		access = mr->access;
	if (access & ~VRDMA_ACCESS_MASK)
		return ERR_PTR(-EOPNOTSUPP);
	/* Pages that were pinned to be read are not those that writes would go to. */
	if (!(flags & IB_MR_REREG_TRANS) && ib_access_writable(access) && !backing->umem->writable) {
		flags |= IB_MR_REREG_TRANS;
		start = backing->umem->address;
		length = backing->umem->length;
		iova = ibmr->iova;
	}

	change = vrdma_change_alloc(backing);
	if (IS_ERR(change))
		return ERR_CAST(change);
	vrdma_cmd_init_reply(&change->cmd, VRDMA_OP_REREG_MR, rereg_mr, create_mr);
	req = &change->cmd.req.rereg_mr;
	req->mr = backing->handle;
	req->flags = flags;
	req->pd = VRDMA_HANDLE_NONE;
	if (flags & IB_MR_REREG_PD)
		req->pd = to_vpd(pd)->backing->handle;
	if (flags & IB_MR_REREG_ACCESS)
		req->access = access;
	if (flags & IB_MR_REREG_TRANS) {
		req->iova = iova;
		req->length = length;
		umem = vrdma_pin(ibd, start, length, iova, access, &change->table, &req->pages);
		if (IS_ERR(umem)) {
			vrdma_change_cancel(backing, change);
			return ERR_CAST(umem);
		}
		backing->next_umem = umem;
	}
	err = vrdma_change_exec(backing, change);
	if (err)
		return ERR_PTR(err);
	mr->access = access;
	return NULL;
}

/* A region stays while windows are bound to it (IBTA Vol 1 11.2.8.5). */
int vrdma_dereg_mr(struct ib_mr *ibmr, struct ib_udata *udata)
{
	struct vrdma_mr *mr = to_vmr(ibmr);
	int err;

	err = vrdma_backing_try_retire(mr->backing);
	if (!err)
		kfree(mr);
	return err;
}
