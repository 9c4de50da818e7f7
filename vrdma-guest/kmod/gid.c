// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * The GID table, told to the host.
 *
 * The RDMA core adds and deletes GIDs, often under RTNL, which must not wait for a host that is
 * away. So its wish is written into a table, and one work tells the host entry by entry, waiting as
 * long as it takes; requests for one entry thus never overtake each other. The core waits for the
 * answer for a moment only.
 */
#include <rdma/ib_cache.h>

#include "vrdma.h"

/* How long a GID change may hold up RTNL. */
#define VRDMA_GID_WAIT (HZ / 2)

/* Tells the host of entry @index, whose wish is copied to @wish. */
static int vrdma_gid_tell(struct vrdma_ibdev *ibd, u32 index, const struct vrdma_gid_slot *wish)
{
	struct vrdma_cmd *cmd = vrdma_cmd_alloc();
	int err;

	if (!cmd)
		return -ENOMEM;
	if (wish->present) {
		vrdma_cmd_init(cmd, VRDMA_OP_ADD_GID, add_gid);
		cmd->req.add_gid.index = index;
		memcpy(cmd->req.add_gid.gid, wish->gid, sizeof(wish->gid));
	} else {
		vrdma_cmd_init(cmd, VRDMA_OP_DEL_GID, del_gid);
		cmd->req.del_gid.index = index;
	}
	err = vrdma_ctrl_exec(ibd->dev, &cmd, MAX_SCHEDULE_TIMEOUT);
	kfree(cmd);
	return err;
}

static void vrdma_gid_work(struct work_struct *work)
{
	struct vrdma_ibdev *ibd = container_of(work, struct vrdma_ibdev, gid_work);

	for (u32 i = 0; i < VRDMA_GID_TABLE_LEN; i++) {
		struct vrdma_gid_slot *slot = &ibd->gids[i], wish;
		bool late;
		int err;

		spin_lock(&ibd->gid_lock);
		wish = *slot;
		spin_unlock(&ibd->gid_lock);
		if (wish.told == wish.wanted)
			continue;

		err = vrdma_gid_tell(ibd, i, &wish);
		spin_lock(&ibd->gid_lock);
		slot->told = wish.wanted;
		slot->err = err;
		late = slot->late;
		slot->late = false;
		spin_unlock(&ibd->gid_lock);
		wake_up_all(&ibd->gid_wait);
		/* Not when it has another epoch or is gone: a new table follows. */
		if (err && err != -EIO && err != -ENODEV && wish.present && late)
			ibdev_warn(&ibd->ib, "the host refuses GID %pI6c: %d\n", wish.gid, err);
	}
}

static bool vrdma_gid_told(struct vrdma_ibdev *ibd, u32 index, u32 version, int *err)
{
	struct vrdma_gid_slot *slot = &ibd->gids[index];
	bool told;

	spin_lock(&ibd->gid_lock);
	/* Versions count up, so a later answer includes this one. */
	told = (s32)(slot->told - version) >= 0;
	*err = slot->err;
	spin_unlock(&ibd->gid_lock);
	return told;
}

static int vrdma_gid_set(struct ib_device *ib, u32 index, const union ib_gid *gid)
{
	struct vrdma_ibdev *ibd = to_vibdev(ib);
	struct vrdma_gid_slot *slot;
	u32 version;
	int err;

	if (index >= VRDMA_GID_TABLE_LEN)
		return -EINVAL;
	slot = &ibd->gids[index];

	spin_lock(&ibd->gid_lock);
	slot->present = gid != NULL;
	if (gid)
		memcpy(slot->gid, gid->raw, sizeof(slot->gid));
	version = ++slot->wanted;
	spin_unlock(&ibd->gid_lock);
	queue_work(ibd->dev->wq, &ibd->gid_work);

	if (!READ_ONCE(ibd->dev->ctrl.stalled) &&
	    wait_event_timeout(ibd->gid_wait, vrdma_gid_told(ibd, index, version, &err),
			       VRDMA_GID_WAIT))
		return err;

	/* The work goes on; it has nobody to report to but the log. */
	spin_lock(&ibd->gid_lock);
	slot->late = slot->told != version;
	spin_unlock(&ibd->gid_lock);
	return 0;
}

int vrdma_add_gid(const struct ib_gid_attr *attr, void **context)
{
	return vrdma_gid_set(attr->device, attr->index, &attr->gid);
}

/* QPs that use the GID have copied it; the core does not expect us to refuse. */
int vrdma_del_gid(const struct ib_gid_attr *attr, void **context)
{
	vrdma_gid_set(attr->device, attr->index, NULL);
	return 0;
}

void vrdma_gid_init(struct vrdma_ibdev *ibd)
{
	spin_lock_init(&ibd->gid_lock);
	init_waitqueue_head(&ibd->gid_wait);
	INIT_WORK(&ibd->gid_work, vrdma_gid_work);
}
