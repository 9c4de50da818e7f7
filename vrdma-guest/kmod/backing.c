// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * What the host may touch on behalf of an object, and when it may be freed.
 *
 * The host writes rings and regions at any time while it has the object. So memory is freed only
 * when the host has confirmed the object's end, or after a reset of the device. A verb that
 * destroys succeeds all the same: without a confirmation the backing becomes a zombie, which is
 * retried until the host answers. Only a region may be refused its end: windows are bound to it.
 */
#include <linux/sched.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>

#include "vrdma.h"

#define VRDMA_ZOMBIE_RETRY HZ

static void vrdma_destroy_late(struct vrdma_cmd *cmd);

/*
 * Returns a backing with a handle of its own, and in *@create an empty command for
 * vrdma_backing_create(), or an error pointer and no command.
 */
struct vrdma_backing *vrdma_backing_alloc(struct vrdma_ibdev *ibd, u16 destroy_op,
					  struct vrdma_cmd **create)
{
	const struct xa_limit limit = XA_LIMIT(1, VRDMA_HANDLE_NONE - 1);
	struct vrdma_backing *backing;
	int err;

	*create = NULL;
	backing = kzalloc(sizeof(*backing), GFP_KERNEL_ACCOUNT);
	if (!backing)
		return ERR_PTR(-ENOMEM);

	/* Cyclic, so that an event that is under way never meets a new object of the same name. */
	err = xa_alloc_cyclic_irq(&ibd->objects, &backing->handle, NULL, limit, &ibd->next_handle,
				  GFP_KERNEL_ACCOUNT);
	if (err < 0) {
		kfree(backing);
		return ERR_PTR(err);
	}

	backing->ibd = ibd;
	INIT_LIST_HEAD(&backing->entry);
	for (int i = 0; i < ARRAY_SIZE(backing->table); i++)
		vrdma_table_init(&backing->table[i]);

	/* Prepared now: the end of an object must not depend on free memory. */
	vrdma_cmd_init(&backing->destroy, destroy_op, destroy);
	backing->destroy.req.destroy.handle = backing->handle;
	backing->destroy.backing = backing;
	backing->destroy.late = vrdma_destroy_late;

	*create = vrdma_cmd_alloc();
	if (!*create) {
		vrdma_backing_free(backing);
		return ERR_PTR(-ENOMEM);
	}
	return backing;
}

static void vrdma_backing_free_tables(struct vrdma_backing *backing)
{
	for (int i = 0; i < ARRAY_SIZE(backing->table); i++)
		vrdma_table_free(&backing->table[i]);
}

/* Frees a backing that the host does not know, or knows no more. */
void vrdma_backing_free(struct vrdma_backing *backing)
{
	xa_erase_irq(&backing->ibd->objects, backing->handle);
	vrdma_backing_free_tables(backing);
	for (int i = 0; i < ARRAY_SIZE(backing->pages); i++)
		vrdma_pages_put(backing->pages[i]);
	vrdma_pages_put(backing->next_pages);
	if (backing->umem)
		ib_umem_release(backing->umem);
	if (backing->next_umem)
		ib_umem_release(backing->next_umem);
	kfree(backing);
}

static void vrdma_backing_destroyed(struct vrdma_backing *backing, int err)
{
	struct vrdma_ibdev *ibd = backing->ibd;

	if (!err) {
		vrdma_backing_free(backing);
		return;
	}

	spin_lock(&ibd->zombie_lock);
	list_add_tail(&backing->entry, &ibd->zombies);
	spin_unlock(&ibd->zombie_lock);
	/* -ENODEV: the device is about to be reset, which frees all zombies. */
	if (err != -ENODEV)
		queue_delayed_work(ibd->dev->wq, &ibd->zombie_work, VRDMA_ZOMBIE_RETRY);
}

static void vrdma_destroy_late(struct vrdma_cmd *cmd)
{
	/* After a reset the host has forgotten everything. */
	vrdma_backing_destroyed(cmd->backing, cmd->status == -ENODEV ? 0 : cmd->status);
}

static void __vrdma_backing_retire(struct vrdma_backing *backing, unsigned long timeout)
{
	struct vrdma_cmd *cmd = &backing->destroy;
	int err;

	err = vrdma_ctrl_exec(backing->ibd->dev, &cmd, timeout);
	if (cmd)
		vrdma_backing_destroyed(backing, err);
}

static unsigned long vrdma_retire_timeout(const struct vrdma_backing *backing)
{
	if (READ_ONCE(backing->ibd->dev->ctrl.stalled))
		return 0;
	if (READ_ONCE(backing->ibd->dev->removing))
		return VRDMA_REMOVE_TIMEOUT;
	return current->flags & PF_EXITING ? VRDMA_EXIT_TIMEOUT : VRDMA_TIMEOUT;
}

/* Ends an object: the host is asked to forget it, and the backing is freed when it has. */
void vrdma_backing_retire(struct vrdma_backing *backing)
{
	__vrdma_backing_retire(backing, vrdma_retire_timeout(backing));
}

/* The same, unless the object is in use by what only the host knows of: -EBUSY, and it lives on. */
int vrdma_backing_try_retire(struct vrdma_backing *backing)
{
	struct vrdma_cmd *cmd = &backing->destroy;
	int err;

	err = vrdma_ctrl_exec(backing->ibd->dev, &cmd, vrdma_retire_timeout(backing));
	if (!cmd)
		return 0;
	if (err == -EBUSY)
		return err;
	vrdma_backing_destroyed(backing, err);
	return 0;
}

static void vrdma_create_late(struct vrdma_cmd *cmd)
{
	struct vrdma_backing *backing = cmd->backing;
	int status = cmd->status;

	kfree(cmd);
	vrdma_backing_free_tables(backing);
	if (!status || status == -EPROTO)
		__vrdma_backing_retire(backing, 0);
	else
		vrdma_backing_free(backing);
}

/*
 * Sends the command that makes the object. Consumes the backing unless it succeeds; *@cmd is
 * the caller's to free in any case, and NULL when it has been left with the device.
 */
int vrdma_backing_create(struct vrdma_backing *backing, struct vrdma_cmd **cmd)
{
	int err;

	(*cmd)->backing = backing;
	(*cmd)->late = vrdma_create_late;
	err = vrdma_ctrl_exec(backing->ibd->dev, cmd, VRDMA_TIMEOUT);
	if (!*cmd)
		return err;
	vrdma_backing_free_tables(backing);
	if (err == -EPROTO)
		vrdma_backing_retire(backing);
	else if (err)
		vrdma_backing_free(backing);
	return err;
}

/*
 * Allocates the ring pages[@index] of @entries and their header, and describes it for the host. The
 * rings of user space (@udata) are charged.
 */
int vrdma_ring_alloc(struct vrdma_backing *backing, int index, u32 entries, u8 stride_shift,
		     struct ib_udata *udata, struct vrdma_page_table *out)
{
	struct vrdma_pages *pages = vrdma_ring_pages_alloc(entries, stride_shift, udata);

	if (IS_ERR(pages))
		return PTR_ERR(pages);
	backing->pages[index] = pages;
	return vrdma_table_write(&backing->table[index], pages, out);
}

/* Returns a change of the object's memory to be filled in, or an error pointer. */
struct vrdma_change *vrdma_change_alloc(struct vrdma_backing *backing)
{
	struct vrdma_change *change;

	/* The host has not said what became of an earlier change. */
	if (backing->next_umem || backing->next_pages)
		return ERR_PTR(-EIO);
	change = kzalloc(sizeof(*change), GFP_KERNEL);
	if (!change)
		return ERR_PTR(-ENOMEM);
	vrdma_table_init(&change->table);
	return change;
}

static void vrdma_change_free(struct vrdma_change *change)
{
	vrdma_table_free(&change->table);
	kfree(change);
}

static void vrdma_change_late(struct vrdma_cmd *cmd)
{
	vrdma_change_free(container_of(cmd, struct vrdma_change, cmd));
}

/* Drops what was to take the place of the object's memory. */
void vrdma_change_cancel(struct vrdma_backing *backing, struct vrdma_change *change)
{
	vrdma_pages_put(backing->next_pages);
	backing->next_pages = NULL;
	if (backing->next_umem)
		ib_umem_release(backing->next_umem);
	backing->next_umem = NULL;
	vrdma_change_free(change);
}

/*
 * Sends the command of a change, and consumes it. When the host agrees, next_umem and next_pages
 * take the place of umem and pages[0], which are freed. When it refuses, they are freed and nothing
 * has changed. When it does not answer, it may use both, which are kept until the object's end.
 */
int vrdma_change_exec(struct vrdma_backing *backing, struct vrdma_change *change)
{
	struct vrdma_cmd *cmd = &change->cmd;
	int err;

	cmd->late = vrdma_change_late;
	err = vrdma_ctrl_exec(backing->ibd->dev, &cmd, VRDMA_TIMEOUT);
	/* Left with the device. */
	if (!cmd)
		return err;
	if (err == -EPROTO) {
		vrdma_change_free(change);
		return err;
	}
	if (!err) {
		if (backing->next_umem)
			swap(backing->umem, backing->next_umem);
		if (backing->next_pages)
			swap(backing->pages[0], backing->next_pages);
	}
	vrdma_change_cancel(backing, change);
	return err;
}

/* Makes an object visible to events. */
void vrdma_object_publish(struct vrdma_backing *backing, struct vrdma_object *object)
{
	/* Cannot fail: the entry was reserved with the handle. */
	xa_store_irq(&backing->ibd->objects, backing->handle, object, GFP_KERNEL);
}

/* When this returns, no event is being delivered to the object, and none will be. */
void vrdma_object_hide(struct vrdma_backing *backing)
{
	/* A NULL entry keeps the handle reserved until the host has confirmed. */
	xa_store_irq(&backing->ibd->objects, backing->handle, NULL, GFP_KERNEL);
}

static void vrdma_take_zombies(struct vrdma_ibdev *ibd, struct list_head *list)
{
	spin_lock(&ibd->zombie_lock);
	list_splice_init(&ibd->zombies, list);
	spin_unlock(&ibd->zombie_lock);
}

static void vrdma_zombie_work(struct work_struct *work)
{
	struct vrdma_ibdev *ibd = container_of(to_delayed_work(work), struct vrdma_ibdev,
					       zombie_work);
	struct vrdma_backing *backing, *next;
	LIST_HEAD(list);

	vrdma_take_zombies(ibd, &list);
	list_for_each_entry_safe(backing, next, &list, entry) {
		list_del_init(&backing->entry);
		__vrdma_backing_retire(backing, 0);
	}
}

void vrdma_zombies_init(struct vrdma_ibdev *ibd)
{
	spin_lock_init(&ibd->zombie_lock);
	INIT_LIST_HEAD(&ibd->zombies);
	INIT_DELAYED_WORK(&ibd->zombie_work, vrdma_zombie_work);
}

/* Frees what is left after a reset of the device. */
void vrdma_zombies_free(struct vrdma_ibdev *ibd)
{
	struct vrdma_backing *backing, *next;
	LIST_HEAD(list);

	cancel_delayed_work_sync(&ibd->zombie_work);
	vrdma_take_zombies(ibd, &list);
	list_for_each_entry_safe(backing, next, &list, entry) {
		list_del_init(&backing->entry);
		vrdma_backing_free(backing);
	}
}
