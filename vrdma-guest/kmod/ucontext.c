// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Contexts (opens of the device) and protection domains.
 */
#include <linux/slab.h>

#include "vrdma.h"

/* User space cannot work without the whole reply: it says where the rings are. */
int vrdma_reply_to_user(struct ib_udata *udata, const void *reply, size_t bytes)
{
	if (udata->outlen < bytes)
		return -EINVAL;
	return ib_copy_to_udata(udata, (void *)reply, bytes);
}

static void vrdma_ucontext_unmap(struct vrdma_ucontext *context)
{
	vrdma_mmap_remove(context->kick);
	vrdma_mmap_remove(context->doorbells);
	vrdma_mmap_remove(context->status);
}

static int vrdma_ucontext_map(struct vrdma_ucontext *context, struct ib_udata *udata)
{
	const struct vrdma_config *cfg = &to_vibdev(context->ib.device)->dev->cfg;
	struct vrdma_user_context_reply reply = {
		.num_db_slots = cfg->num_db_slots,
		.kick_value = VRDMA_QUEUE_FIRST_COMP + cfg->num_comp_vectors,
		.max_inline_bytes = cfg->max_inline_bytes,
		.max_send_sge = cfg->max_send_sge,
	};

	context->status = vrdma_mmap_insert(&context->ib, VRDMA_MMAP_STATUS, NULL, 1,
					    &reply.status_offset);
	if (IS_ERR(context->status))
		return PTR_ERR(context->status);
	context->doorbells = vrdma_mmap_insert(&context->ib, VRDMA_MMAP_PAGES,
					       context->backing->pages[0], cfg->num_db_slots,
					       &reply.doorbell_offset);
	if (IS_ERR(context->doorbells))
		return PTR_ERR(context->doorbells);
	context->kick = vrdma_mmap_insert(&context->ib, VRDMA_MMAP_KICK, NULL, cfg->num_db_slots,
					  &reply.kick_offset);
	if (IS_ERR(context->kick))
		return PTR_ERR(context->kick);
	return vrdma_reply_to_user(udata, &reply, sizeof(reply));
}

int vrdma_alloc_ucontext(struct ib_ucontext *ibcontext, struct ib_udata *udata)
{
	struct vrdma_ibdev *ibd = to_vibdev(ibcontext->device);
	struct vrdma_ucontext *context = to_vucontext(ibcontext);
	struct vrdma_backing *backing;
	struct vrdma_cmd *cmd;
	int err;

	backing = vrdma_backing_alloc(ibd, VRDMA_OP_DESTROY_CONTEXT);
	if (IS_ERR(backing))
		return PTR_ERR(backing);
	cmd = vrdma_cmd_alloc();
	if (!cmd) {
		err = -ENOMEM;
		goto err_backing;
	}
	vrdma_cmd_init(cmd, VRDMA_OP_CREATE_CONTEXT, create_context);
	cmd->req.create_context.ctx = backing->handle;

	backing->pages[0] = vrdma_pages_alloc(ibd->dev->cfg.num_db_slots);
	if (IS_ERR(backing->pages[0])) {
		err = PTR_ERR(backing->pages[0]);
		backing->pages[0] = NULL;
		goto err_cmd;
	}
	err = vrdma_table_write(&backing->table[0], backing->pages[0],
				&cmd->req.create_context.doorbells);
	if (err)
		goto err_cmd;

	err = vrdma_backing_create(backing, &cmd);
	kfree(cmd);
	if (err)
		return err;

	context->backing = backing;
	err = vrdma_ucontext_map(context, udata);
	if (err) {
		vrdma_ucontext_unmap(context);
		vrdma_backing_retire(backing);
	}
	return err;

err_cmd:
	kfree(cmd);
err_backing:
	vrdma_backing_free(backing);
	return err;
}

void vrdma_dealloc_ucontext(struct ib_ucontext *ibcontext)
{
	struct vrdma_ucontext *context = to_vucontext(ibcontext);

	vrdma_ucontext_unmap(context);
	vrdma_backing_retire(context->backing);
}

/*
 * Its presence lets the device go while contexts are open. The RDMA core does the work: it ends all
 * objects and zaps the doorbell registers. The status page says so to whoever polls.
 */
void vrdma_disassociate_ucontext(struct ib_ucontext *ibcontext)
{
}

int vrdma_alloc_pd(struct ib_pd *ibpd, struct ib_udata *udata)
{
	struct vrdma_ucontext *context =
		rdma_udata_to_drv_context(udata, struct vrdma_ucontext, ib);
	struct vrdma_backing *backing;
	struct vrdma_cmd *cmd;
	int err;

	backing = vrdma_backing_alloc(to_vibdev(ibpd->device), VRDMA_OP_DESTROY_PD);
	if (IS_ERR(backing))
		return PTR_ERR(backing);
	cmd = vrdma_cmd_alloc();
	if (!cmd) {
		vrdma_backing_free(backing);
		return -ENOMEM;
	}
	vrdma_cmd_init(cmd, VRDMA_OP_CREATE_PD, create_pd);
	cmd->req.create_pd.pd = backing->handle;
	cmd->req.create_pd.ctx = context->backing->handle;
	err = vrdma_backing_create(backing, &cmd);
	kfree(cmd);
	if (!err)
		to_vpd(ibpd)->backing = backing;
	return err;
}

int vrdma_dealloc_pd(struct ib_pd *ibpd, struct ib_udata *udata)
{
	vrdma_backing_retire(to_vpd(ibpd)->backing);
	return 0;
}
