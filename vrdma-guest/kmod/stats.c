// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Counters of the port, as "rdma statistic" and hw_counters in sysfs show them: what the host has
 * counted of this guest's own traffic.
 */
#include <linux/slab.h>

#include "vrdma.h"

/*
 * How long to wait for the host. Whoever reads counters holds a lock of theirs, and may want many: a
 * host that is away must not hold up each of them.
 */
#define VRDMA_STATS_TIMEOUT HZ
/* After a wait in vain, how long the host is not asked again. */
#define VRDMA_STATS_PAUSE (10 * HZ)
/* Milliseconds for which an answer is good, so that those who read one file after another ask once. */
#define VRDMA_STATS_LIFESPAN 50

#define VRDMA_STAT(counter) { .name = (counter) }
static const struct rdma_stat_desc vrdma_stats[] = { VRDMA_COUNTERS(VRDMA_STAT) };
static_assert(ARRAY_SIZE(vrdma_stats) <= VRDMA_COUNTERS_MAX);

struct rdma_hw_stats *vrdma_alloc_port_stats(struct ib_device *ib, u32 port)
{
	return rdma_alloc_hw_stats_struct(vrdma_stats, ARRAY_SIZE(vrdma_stats),
					  VRDMA_STATS_LIFESPAN);
}

static int vrdma_ask_stats(struct vrdma_dev *dev, struct rdma_hw_stats *stats)
{
	const struct vrdma_query_counters_reply *reply;
	struct vrdma_cmd *cmd;
	int err;

	/* The reply is long: it goes on behind the command, where all others have room within it. */
	cmd = kzalloc(sizeof(*cmd) + sizeof(*reply), GFP_KERNEL);
	if (!cmd)
		return -ENOMEM;
	__vrdma_cmd_init(cmd, VRDMA_OP_QUERY_COUNTERS, sizeof(cmd->req.query_counters),
			 sizeof(*reply));
	err = vrdma_ctrl_exec(dev, &cmd, VRDMA_STATS_TIMEOUT);
	if (!err) {
		reply = (void *)cmd + offsetof(struct vrdma_cmd, reply) + sizeof(cmd->reply.head);
		/* What an older host does not count is 0. */
		for (int i = 0; i < stats->num_counters; i++)
			stats->value[i] = READ_ONCE(reply->values[i]);
	}
	kfree(cmd);
	return err;
}

static bool vrdma_stats_pause(struct vrdma_dev *dev)
{
	return READ_ONCE(dev->ctrl.stalled) ||
	       (READ_ONCE(dev->stats_pause) && time_before(jiffies, READ_ONCE(dev->stats_until)));
}

/*
 * Called under the lock of @stats. While the host is away, or does not want to be asked so often, the
 * last values stay as they are; whoever is killed while waiting does not get them.
 */
int vrdma_get_hw_stats(struct ib_device *ib, struct rdma_hw_stats *stats, u32 port, int index)
{
	struct vrdma_dev *dev = to_vibdev(ib)->dev;
	int err;

	if (vrdma_stats_pause(dev))
		return stats->num_counters;
	err = vrdma_ask_stats(dev, stats);
	if (err == -ETIMEDOUT)
		WRITE_ONCE(dev->stats_until, jiffies + VRDMA_STATS_PAUSE);
	WRITE_ONCE(dev->stats_pause, err == -ETIMEDOUT);
	/* Any other error would keep the device from being registered. */
	if (err == -EOPNOTSUPP || err == -EINTR)
		return err;
	return stats->num_counters;
}
