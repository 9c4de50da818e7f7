// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Contexts (opens of the device, and the module's own) and protection domains.
 */
#include <linux/slab.h>

#include "vrdma.h"

/*
 * Copies of a reply what user space knows of it. It cannot work without the first @least bytes, which say
 * where the rings are.
 */
int vrdma_reply_to_user(struct ib_udata *udata, const void *reply, size_t bytes, size_t least)
{
	if (udata->outlen < least)
		return -EINVAL;
	return ib_copy_to_udata(udata, (void *)reply, min(bytes, udata->outlen));
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
		.features = vrdma_features(cfg),
		.max_msg_bytes = cfg->max_msg_bytes,
		.paths = vrdma_paths(cfg),
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
	return vrdma_reply_to_user(udata, &reply, sizeof(reply),
				   offsetof(struct vrdma_user_context_reply, features));
}

/* Makes a context at the host, with its doorbell area. Returns an error pointer on failure. */
static struct vrdma_backing *vrdma_context_create(struct vrdma_ibdev *ibd, u32 flags)
{
	struct vrdma_backing *backing;
	struct vrdma_pages *doorbells;
	struct vrdma_cmd *cmd;
	int err;

	backing = vrdma_backing_alloc(ibd, VRDMA_OP_DESTROY_CONTEXT, &cmd);
	if (IS_ERR(backing))
		return backing;
	vrdma_cmd_init(cmd, VRDMA_OP_CREATE_CONTEXT, create_context);
	cmd->req.create_context.ctx = backing->handle;
	cmd->req.create_context.flags = flags;

	doorbells = vrdma_pages_alloc(ibd->dev->cfg.num_db_slots, !(flags & VRDMA_CONTEXT_KERNEL));
	if (IS_ERR(doorbells)) {
		err = PTR_ERR(doorbells);
		goto err_cmd;
	}
	backing->pages[0] = doorbells;
	err = vrdma_table_write(&backing->table[0], doorbells, &cmd->req.create_context.doorbells);
	if (err)
		goto err_cmd;

	err = vrdma_backing_create(backing, &cmd);
	kfree(cmd);
	return err ? ERR_PTR(err) : backing;

err_cmd:
	kfree(cmd);
	vrdma_backing_free(backing);
	return ERR_PTR(err);
}

int vrdma_alloc_ucontext(struct ib_ucontext *ibcontext, struct ib_udata *udata)
{
	struct vrdma_ucontext *context = to_vucontext(ibcontext);
	int err;

	context->backing = vrdma_context_create(to_vibdev(ibcontext->device), 0);
	if (IS_ERR(context->backing))
		return PTR_ERR(context->backing);
	err = vrdma_ucontext_map(context, udata);
	if (err) {
		vrdma_ucontext_unmap(context);
		vrdma_backing_retire(context->backing);
	}
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

/* Done before the device is registered, which makes the first kernel objects. */
int vrdma_kctx_create(struct vrdma_ibdev *ibd)
{
	struct vrdma_backing *backing = vrdma_context_create(ibd, VRDMA_CONTEXT_KERNEL);

	if (IS_ERR(backing))
		return PTR_ERR(backing);
	ibd->kctx.backing = backing;
	return 0;
}

/* Done when the device has been unregistered, and with it all that was in the context. */
void vrdma_kctx_destroy(struct vrdma_ibdev *ibd)
{
	vrdma_backing_retire(ibd->kctx.backing);
	ibd->kctx.backing = NULL;
}

/* The host's handle of the context that a verb is called in; the kernel's calls have no @udata. */
u32 vrdma_context_handle(struct vrdma_ibdev *ibd, struct ib_udata *udata)
{
	struct vrdma_ucontext *context;

	if (!udata)
		return ibd->kctx.backing->handle;
	context = rdma_udata_to_drv_context(udata, struct vrdma_ucontext, ib);
	return context->backing->handle;
}

int vrdma_alloc_pd(struct ib_pd *ibpd, struct ib_udata *udata)
{
	struct vrdma_ibdev *ibd = to_vibdev(ibpd->device);
	struct vrdma_backing *backing;
	struct vrdma_cmd *cmd;
	int err;

	backing = vrdma_backing_alloc(ibd, VRDMA_OP_DESTROY_PD, &cmd);
	if (IS_ERR(backing))
		return PTR_ERR(backing);
	vrdma_cmd_init(cmd, VRDMA_OP_CREATE_PD, create_pd);
	cmd->req.create_pd.pd = backing->handle;
	cmd->req.create_pd.ctx = vrdma_context_handle(ibd, udata);
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
