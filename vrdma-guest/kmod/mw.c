// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Memory windows: the kernel makes them, work requests bind them.
 */
#include <linux/slab.h>

#include "vrdma.h"

static_assert(VRDMA_MW_TYPE_1 == (int)IB_MW_TYPE_1);
static_assert(VRDMA_MW_TYPE_2 == (int)IB_MW_TYPE_2);

int vrdma_alloc_mw(struct ib_mw *ibmw, struct ib_udata *udata)
{
	struct vrdma_backing *backing;
	struct vrdma_cmd *cmd;
	int err;

	backing = vrdma_backing_alloc(to_vibdev(ibmw->device), VRDMA_OP_DESTROY_MW, &cmd);
	if (IS_ERR(backing))
		return PTR_ERR(backing);
	vrdma_cmd_init_reply(cmd, VRDMA_OP_CREATE_MW, create_mw, create_mw);
	cmd->req.create_mw.mw = backing->handle;
	cmd->req.create_mw.pd = to_vpd(ibmw->pd)->backing->handle;
	cmd->req.create_mw.mw_type = ibmw->type;
	err = vrdma_backing_create(backing, &cmd);
	if (!err) {
		to_vmw(ibmw)->backing = backing;
		ibmw->rkey = cmd->reply.create_mw.rkey;
	}
	kfree(cmd);
	return err;
}

int vrdma_dealloc_mw(struct ib_mw *ibmw)
{
	vrdma_backing_retire(to_vmw(ibmw)->backing);
	return 0;
}
