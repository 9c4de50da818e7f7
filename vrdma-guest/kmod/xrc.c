// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * XRC domains. Processes share them, so they belong to no context, as do the target queue pairs in
 * them.
 */
#include <linux/slab.h>

#include "vrdma.h"

int vrdma_alloc_xrcd(struct ib_xrcd *ibxrcd, struct ib_udata *udata)
{
	struct vrdma_backing *backing;
	struct vrdma_cmd *cmd;
	int err;

	backing = vrdma_backing_alloc(to_vibdev(ibxrcd->device), VRDMA_OP_DESTROY_XRCD, &cmd);
	if (IS_ERR(backing))
		return PTR_ERR(backing);
	vrdma_cmd_init(cmd, VRDMA_OP_CREATE_XRCD, create_xrcd);
	cmd->req.create_xrcd.xrcd = backing->handle;
	err = vrdma_backing_create(backing, &cmd);
	kfree(cmd);
	if (!err)
		to_vxrcd(ibxrcd)->backing = backing;
	return err;
}

int vrdma_dealloc_xrcd(struct ib_xrcd *ibxrcd, struct ib_udata *udata)
{
	vrdma_backing_retire(to_vxrcd(ibxrcd)->backing);
	return 0;
}
