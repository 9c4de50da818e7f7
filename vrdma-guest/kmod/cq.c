// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Completion queues: the kernel makes them and passes on their events. User space polls and arms its
 * own in shared memory; for the kernel's consumers see kverbs_cq.c.
 */
#include <linux/log2.h>
#include <linux/slab.h>

#include "kverbs.h"

/*
 * What one page holds beside the ring's header. Smaller queues would cost as much, and overrun in programs
 * that count on more than they have asked for, as other devices give it.
 */
#define VRDMA_CQ_ENTRIES_MIN (PAGE_SIZE / VRDMA_CQE_BYTES / 2)

/* Returns the number of entries of a queue that holds @cqe, or an error. */
static int vrdma_cq_entries(const struct vrdma_config *cfg, u32 cqe)
{
	u32 max = min_t(u32, cfg->max_cqe, INT_MAX);

	if (!cqe || cqe > max || roundup_pow_of_two(cqe) > max)
		return -EINVAL;
	return max_t(u32, roundup_pow_of_two(cqe),
		     min_t(u32, VRDMA_CQ_ENTRIES_MIN, rounddown_pow_of_two(max)));
}

/*
 * Makes a ring mappable, and tells user space of it. Returns the entry, which is the caller's to
 * remove, or an error pointer.
 */
static struct vrdma_mmap_entry *vrdma_cq_map(struct vrdma_pages *ring, u32 entries, u32 ring_format,
					     struct ib_udata *udata)
{
	struct vrdma_user_cq_reply reply = {
		.ring_bytes = ring->count * PAGE_SIZE,
		.entries = entries,
		.ring_format = ring_format,
	};
	struct vrdma_mmap_entry *entry;
	int err;

	entry = vrdma_mmap_insert(&vrdma_udata_context(udata)->ib, VRDMA_MMAP_PAGES, ring,
				  ring->count, &reply.ring_offset);
	if (IS_ERR(entry))
		return entry;
	err = vrdma_reply_to_user(udata, &reply, sizeof(reply), sizeof(reply));
	if (err) {
		vrdma_mmap_remove(entry);
		return ERR_PTR(err);
	}
	return entry;
}

int vrdma_create_cq(struct ib_cq *ibcq, const struct ib_cq_init_attr *attr, VRDMA_CREATE_CQ_ARG)
{
	struct ib_udata *udata = VRDMA_CREATE_CQ_UDATA;
	struct vrdma_ibdev *ibd = to_vibdev(ibcq->device);
	struct vrdma_cq *cq = to_vcq(ibcq);
	struct vrdma_backing *backing;
	struct vrdma_create_cq *req;
	struct vrdma_cmd *cmd;
	int entries, err;

	/* All completions have a time. */
	if (attr->flags & ~IB_UVERBS_CQ_FLAGS_TIMESTAMP_COMPLETION)
		return -EOPNOTSUPP;
	if (attr->comp_vector >= ibd->dev->cfg.num_comp_vectors)
		return -EINVAL;
	entries = vrdma_cq_entries(&ibd->dev->cfg, attr->cqe);
	if (entries < 0)
		return entries;

	backing = vrdma_backing_alloc(ibd, VRDMA_OP_DESTROY_CQ, &cmd);
	if (IS_ERR(backing))
		return PTR_ERR(backing);
	vrdma_cmd_init_reply(cmd, VRDMA_OP_CREATE_CQ, create_cq, create_cq);
	req = &cmd->req.create_cq;
	req->cq = backing->handle;
	req->ctx = vrdma_context_handle(ibd, udata);
	req->entries = entries;
	req->vector = attr->comp_vector;
	err = vrdma_ring_alloc(backing, 0, entries, VRDMA_CQE_SHIFT, udata, &req->ring);
	if (err)
		goto err_backing;

	err = vrdma_backing_create(backing, &cmd);
	if (err)
		goto err_cmd;
	cq->backing = backing;
	cq->ring_format = cmd->reply.create_cq.ring_format;
	ibcq->cqe = entries;
	mutex_init(&cq->lock);
	if (udata) {
		cq->ring = vrdma_cq_map(backing->pages[0], entries, cq->ring_format, udata);
		err = PTR_ERR_OR_ZERO(cq->ring);
	} else {
		err = vrdma_kcq_init(cq);
	}
	if (err)
		goto err_retire;

	cq->object.kind = VRDMA_OBJECT_CQ;
	vrdma_object_publish(backing, &cq->object);
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

static int __vrdma_resize_cq(struct vrdma_cq *cq, int entries, struct ib_udata *udata)
{
	struct vrdma_backing *backing = cq->backing;
	struct vrdma_mmap_entry *ring;
	struct vrdma_resize_cq *req;
	struct vrdma_change *change;
	struct vrdma_pages *pages;
	int err;

	change = vrdma_change_alloc(backing);
	if (IS_ERR(change))
		return PTR_ERR(change);
	vrdma_cmd_init(&change->cmd, VRDMA_OP_RESIZE_CQ, resize_cq);
	req = &change->cmd.req.resize_cq;
	req->cq = backing->handle;
	req->entries = entries;
	pages = vrdma_ring_pages_alloc(entries, VRDMA_CQE_SHIFT, udata);
	if (IS_ERR(pages)) {
		err = PTR_ERR(pages);
		goto err_change;
	}
	backing->next_pages = pages;
	err = vrdma_table_write(&change->table, pages, &req->ring);
	if (err)
		goto err_change;

	/* Before the host is asked: once it has changed over, nothing may fail. */
	ring = vrdma_cq_map(pages, entries, cq->ring_format, udata);
	if (IS_ERR(ring)) {
		err = PTR_ERR(ring);
		goto err_change;
	}
	err = vrdma_change_exec(backing, change);
	if (err) {
		vrdma_mmap_remove(ring);
		return err;
	}
	/* What user space has mapped of the old ring stays until it unmaps it. */
	vrdma_mmap_remove(cq->ring);
	cq->ring = ring;
	cq->ib.cqe = entries;
	return 0;

err_change:
	vrdma_change_cancel(backing, change);
	return err;
}

int vrdma_resize_cq(struct ib_cq *ibcq, int cqe, struct ib_udata *udata)
{
	struct vrdma_cq *cq = to_vcq(ibcq);
	int entries, err;

	if (!udata)
		return -EOPNOTSUPP;
	entries = vrdma_cq_entries(&to_vibdev(ibcq->device)->dev->cfg, cqe);
	if (entries < 0)
		return entries;
	err = mutex_lock_killable(&cq->lock);
	if (err)
		return err;
	err = __vrdma_resize_cq(cq, entries, udata);
	mutex_unlock(&cq->lock);
	return err;
}

int vrdma_destroy_cq(struct ib_cq *ibcq, struct ib_udata *udata)
{
	struct vrdma_cq *cq = to_vcq(ibcq);

	vrdma_object_hide(cq->backing);
	vrdma_kcq_fini(cq);
	vrdma_mmap_remove(cq->ring);
	vrdma_backing_retire(cq->backing);
	return 0;
}
