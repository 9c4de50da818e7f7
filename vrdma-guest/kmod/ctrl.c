// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * The control queue: requests to the host, several in flight, answered in any order.
 *
 * A caller that gives up (timeout, killed) leaves its command with the device, since the host may
 * still read and write it. It comes back through vrdma_cmd.late, in process context: with the
 * host's answer, or, when the device has been reset, with -ENODEV.
 */
#include <linux/scatterlist.h>
#include <linux/slab.h>

#include "vrdma.h"

/* The reply was not one; nobody can say what the host did. */
#define VRDMA_BAD_REPLY (-EPROTO)

/* Elements of the virtqueue that a command takes at most, without indirect descriptors. */
#define VRDMA_CMD_ELEMENTS 2

static void vrdma_cmd_free_late(struct vrdma_cmd *cmd)
{
	kfree(cmd);
}

void __vrdma_cmd_init(struct vrdma_cmd *cmd, u16 opcode, size_t request_bytes, size_t reply_bytes)
{
	memset(&cmd->req, 0, sizeof(cmd->req));
	memset(&cmd->reply, 0, sizeof(cmd->reply));
	INIT_LIST_HEAD(&cmd->entry);
	init_completion(&cmd->done);
	cmd->late = vrdma_cmd_free_late;
	cmd->backing = NULL;
	cmd->insist = false;
	cmd->req.head.opcode = opcode;
	cmd->request_bytes = sizeof(cmd->req.head) + request_bytes;
	cmd->reply_bytes = sizeof(cmd->reply.head) + reply_bytes;
}

struct vrdma_cmd *vrdma_cmd_alloc(void)
{
	return kzalloc(sizeof(struct vrdma_cmd), GFP_KERNEL);
}

/* Says what a returned command means. @len is what the device claims to have written. */
static int vrdma_cmd_status(struct vrdma_cmd *cmd, unsigned int len)
{
	u32 status = READ_ONCE(cmd->reply.head.status);

	if (len < sizeof(cmd->reply.head) || cmd->reply.head.tag != cmd->req.head.tag)
		return VRDMA_BAD_REPLY;
	if (!status)
		return len < cmd->reply_bytes ? VRDMA_BAD_REPLY : 0;
	/* ENODEV is how a reset is told here. */
	if (status == ENODEV)
		return -EIO;
	/* Kernel-internal numbers, from ERESTARTSYS on, must not leak in. */
	return status < 512 ? -(int)status : VRDMA_BAD_REPLY;
}

/* The device has given back @cmd: wakes its caller, or hands it to the late work. */
static void vrdma_cmd_return(struct vrdma_dev *dev, struct vrdma_cmd *cmd, int status)
{
	struct vrdma_ctrl *ctrl = &dev->ctrl;

	lockdep_assert_held(&ctrl->lock);
	list_del_init(&cmd->entry);
	cmd->status = status;
	cmd->returned = true;
	if (cmd->abandoned) {
		list_add_tail(&cmd->entry, &ctrl->late);
		queue_work(dev->wq, &ctrl->late_work);
	} else {
		complete(&cmd->done);
	}
}

/* Callback of the control queue. */
void vrdma_ctrl_done(struct virtqueue *vq)
{
	struct vrdma_dev *dev = vq->vdev->priv;
	struct vrdma_ctrl *ctrl = &dev->ctrl;
	struct vrdma_cmd *cmd;
	unsigned long flags;
	bool stale = false;
	unsigned int len;

	spin_lock_irqsave(&ctrl->lock, flags);
	do {
		virtqueue_disable_cb(vq);
		while ((cmd = virtqueue_get_buf(vq, &len))) {
			int status = vrdma_cmd_status(cmd, len);

			if (status == -ESTALE) {
				stale = true;
				status = -EIO;
			}
			ctrl->stalled = false;
			vrdma_cmd_return(dev, cmd, status);
		}
	} while (!virtqueue_enable_cb(vq) && !virtqueue_is_broken(vq));
	spin_unlock_irqrestore(&ctrl->lock, flags);

	wake_up(&ctrl->space);
	/*
	 * The host lives in another epoch, which its configuration change may not have told us yet.
	 */
	if (stale)
		vrdma_poke_monitor(dev, 0);
}

static void vrdma_late_work(struct work_struct *work)
{
	struct vrdma_ctrl *ctrl = container_of(work, struct vrdma_ctrl, late_work);
	struct vrdma_cmd *cmd;

	spin_lock_irq(&ctrl->lock);
	while ((cmd = list_first_entry_or_null(&ctrl->late, struct vrdma_cmd, entry))) {
		list_del_init(&cmd->entry);
		spin_unlock_irq(&ctrl->lock);
		cmd->late(cmd);
		spin_lock_irq(&ctrl->lock);
	}
	spin_unlock_irq(&ctrl->lock);
}

static int vrdma_cmd_submit(struct vrdma_ctrl *ctrl, struct vrdma_cmd *cmd)
{
	struct scatterlist out, in, *sgs[2] = { &out, &in };
	int err = -ENODEV;

	sg_init_one(&out, &cmd->req, cmd->request_bytes);
	sg_init_one(&in, &cmd->reply, cmd->reply_bytes);

	spin_lock_irq(&ctrl->lock);
	if (ctrl->vq) {
		reinit_completion(&cmd->done);
		cmd->returned = false;
		cmd->abandoned = false;
		cmd->req.head.tag = ctrl->next_tag++;
		cmd->req.head.epoch = ctrl->epoch;
		err = virtqueue_add_sgs(ctrl->vq, sgs, 1, 1, cmd, GFP_ATOMIC);
		if (!err) {
			list_add_tail(&cmd->entry, &ctrl->inflight);
			/* Under the lock: the queue is deleted once it has been closed. */
			virtqueue_kick(ctrl->vq);
		}
	}
	spin_unlock_irq(&ctrl->lock);
	return err;
}

static bool vrdma_ctrl_has_space(struct vrdma_ctrl *ctrl)
{
	bool space;

	spin_lock_irq(&ctrl->lock);
	space = !ctrl->vq || virtqueue_is_broken(ctrl->vq) ||
		ctrl->vq->num_free >= VRDMA_CMD_ELEMENTS;
	spin_unlock_irq(&ctrl->lock);
	return space;
}

/* Both return the time that is left, 0 when it is over, or an error for a caller that is killed. */
static long vrdma_wait_for_space(struct vrdma_ctrl *ctrl, const struct vrdma_cmd *cmd, long left)
{
	if (cmd->insist)
		return wait_event_timeout(ctrl->space, vrdma_ctrl_has_space(ctrl), left);
	return wait_event_killable_timeout(ctrl->space, vrdma_ctrl_has_space(ctrl), left);
}

static long vrdma_wait_for_reply(struct vrdma_cmd *cmd, long left)
{
	if (cmd->insist)
		return wait_for_completion_timeout(&cmd->done, left);
	return wait_for_completion_killable_timeout(&cmd->done, left);
}

/*
 * Sends *@pcmd and waits for the answer, at most @timeout jiffies and, unless the command insists,
 * no longer than the caller may live; a timeout of MAX_SCHEDULE_TIMEOUT ends with the device only.
 * Returns 0 or a negative errno: the host's, -ENODEV when the device is gone, -ETIMEDOUT, -EINTR.
 * When the command has been left with the device, *@pcmd is NULL, and what hangs on it belongs to
 * its late function.
 */
int vrdma_ctrl_exec(struct vrdma_dev *dev, struct vrdma_cmd **pcmd, unsigned long timeout)
{
	struct vrdma_ctrl *ctrl = &dev->ctrl;
	struct vrdma_cmd *cmd = *pcmd;
	long left = timeout;
	bool returned;
	int err;

	while ((err = vrdma_cmd_submit(ctrl, cmd)) == -ENOSPC) {
		left = vrdma_wait_for_space(ctrl, cmd, left);
		if (left <= 0)
			return left ? -EINTR : -ETIMEDOUT;
	}
	if (err)
		return err;

	left = vrdma_wait_for_reply(cmd, left);

	spin_lock_irq(&ctrl->lock);
	returned = cmd->returned;
	if (!returned) {
		cmd->abandoned = true;
		/* Whoever waits for less says nothing of the host by giving up. */
		if (!left && timeout >= VRDMA_REMOVE_TIMEOUT)
			ctrl->stalled = true;
	}
	spin_unlock_irq(&ctrl->lock);
	if (returned)
		return cmd->status;

	*pcmd = NULL;
	/* Woken without an answer: the queue has been closed. */
	if (left > 0)
		return -ENODEV;
	return left ? -EINTR : -ETIMEDOUT;
}

void vrdma_ctrl_init(struct vrdma_dev *dev)
{
	struct vrdma_ctrl *ctrl = &dev->ctrl;

	spin_lock_init(&ctrl->lock);
	INIT_LIST_HEAD(&ctrl->inflight);
	INIT_LIST_HEAD(&ctrl->late);
	INIT_WORK(&ctrl->late_work, vrdma_late_work);
	init_waitqueue_head(&ctrl->space);
}

/* Lets commands through, in the name of @epoch. */
void vrdma_ctrl_open(struct vrdma_dev *dev, struct virtqueue *vq, u64 epoch)
{
	struct vrdma_ctrl *ctrl = &dev->ctrl;

	spin_lock_irq(&ctrl->lock);
	if (!dev->removing)
		ctrl->vq = vq;
	ctrl->epoch = epoch;
	ctrl->stalled = false;
	spin_unlock_irq(&ctrl->lock);
}

/*
 * Refuses commands from now on. Those in flight stay with the device, but nobody waits for them any
 * more.
 */
void vrdma_ctrl_close(struct vrdma_dev *dev)
{
	struct vrdma_ctrl *ctrl = &dev->ctrl;
	struct vrdma_cmd *cmd;

	spin_lock_irq(&ctrl->lock);
	ctrl->vq = NULL;
	list_for_each_entry(cmd, &ctrl->inflight, entry)
		complete(&cmd->done);
	spin_unlock_irq(&ctrl->lock);
	wake_up_all(&ctrl->space);
}

/* Takes back all commands from a device that has been closed and reset. */
void vrdma_ctrl_drain(struct vrdma_dev *dev, struct virtqueue *vq)
{
	struct vrdma_ctrl *ctrl = &dev->ctrl;
	struct vrdma_cmd *cmd, *next;

	spin_lock_irq(&ctrl->lock);
	while (virtqueue_detach_unused_buf(vq))
		;
	list_for_each_entry_safe(cmd, next, &ctrl->inflight, entry)
		vrdma_cmd_return(dev, cmd, -ENODEV);
	spin_unlock_irq(&ctrl->lock);
	flush_work(&ctrl->late_work);
}
