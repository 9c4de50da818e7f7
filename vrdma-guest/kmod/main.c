// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * The virtio device: queues, configuration, and the coming and going of epochs.
 *
 * A start reads the configuration, sets up the queues, agrees with the host (DEVICE_INIT), and
 * registers an RDMA device. A stop undoes that, and begins with a reset: after it the host touches
 * nothing of ours any more, so that all memory can be freed whether or not the host was there to
 * confirm. A new epoch is a stop and a start: requests and buffers that the host had taken before
 * it went down would not come back otherwise.
 */
#include <linux/iommu.h>
#include <linux/module.h>
#include <linux/slab.h>
#include <linux/virtio_config.h>

#include "kverbs.h"

/*
 * Time between attempts to start while the host is not there or refuses; doubles up to the maximum.
 */
#define VRDMA_RETRY_MIN (2 * HZ)
#define VRDMA_RETRY_MAX (10 * HZ)

/* Time until a host that the kernel's consumers wait for is asked whether it is there. */
#define VRDMA_WATCH_DELAY (10 * HZ)

/* Makes the monitor look at the configuration. */
void vrdma_poke_monitor(struct vrdma_dev *dev, unsigned long delay)
{
	unsigned long flags;

	spin_lock_irqsave(&dev->ctrl.lock, flags);
	if (!dev->removing)
		/* Freezable: devices cannot be registered while the system resumes. */
		mod_delayed_work(system_freezable_wq, &dev->monitor, delay);
	spin_unlock_irqrestore(&dev->ctrl.lock, flags);
}

static void vrdma_config_changed(struct virtio_device *vdev)
{
	vrdma_poke_monitor(vdev->priv, 0);
}

static void vrdma_read_config(struct vrdma_dev *dev, struct vrdma_config *cfg)
{
	virtio_cread_bytes(dev->vdev, 0, cfg, sizeof(*cfg));
}

/*
 * Returns 0, -EAGAIN when the host has not written the configuration yet or has only that of an
 * epoch that is over, or an error with a reason.
 */
static int vrdma_check_config(struct vrdma_dev *dev, const struct vrdma_config *cfg)
{
	struct device *log = &dev->vdev->dev;

	if (!cfg->magic && !cfg->epoch)
		return -EAGAIN;
	if (cfg->epoch && cfg->epoch == READ_ONCE(dev->dead_epoch))
		return -EAGAIN;
	if (cfg->magic != VRDMA_MAGIC) {
		dev_err(log, "not an RDMA device: magic %#x\n", cfg->magic);
		return -ENODEV;
	}
	if (cfg->abi_major != VRDMA_ABI_MAJOR) {
		dev_err(log, "the host speaks version %u of the device's contract, this driver %u\n",
			cfg->abi_major, VRDMA_ABI_MAJOR);
		return -EOPNOTSUPP;
	}
	if (!cfg->epoch || !cfg->num_comp_vectors || !cfg->num_db_slots ||
	    VRDMA_QUEUE_FIRST_COMP + cfg->num_comp_vectors + cfg->num_db_slots > VRDMA_MAX_QUEUES ||
	    !(cfg->page_size_cap & PAGE_SIZE)) {
		dev_err(log, "bad configuration: epoch %llu, %u vectors, %u slots, page sizes %#llx\n",
			cfg->epoch, cfg->num_comp_vectors, cfg->num_db_slots, cfg->page_size_cap);
		return -EINVAL;
	}
	return 0;
}

/* The host is told guest-physical addresses, also of user memory that has been mapped for DMA. */
static int vrdma_check_iommu(struct vrdma_dev *dev)
{
	struct iommu_domain *domain = iommu_get_domain_for_dev(dev->vdev->dev.parent);

	if (!domain || domain->type == IOMMU_DOMAIN_IDENTITY)
		return 0;
	dev_err(&dev->vdev->dev, "cannot work behind a translating IOMMU: boot with iommu=pt\n");
	return -EOPNOTSUPP;
}

static int vrdma_find_queues(struct vrdma_dev *dev)
{
	unsigned int vectors = dev->cfg.num_comp_vectors;
	struct virtqueue_info *info;
	int err;

	dev->num_vqs = VRDMA_QUEUE_FIRST_COMP + vectors + dev->cfg.num_db_slots;
	dev->vqs = kcalloc(dev->num_vqs, sizeof(*dev->vqs), GFP_KERNEL);
	info = kcalloc(dev->num_vqs, sizeof(*info), GFP_KERNEL);
	if (!dev->vqs || !info) {
		err = -ENOMEM;
		goto out;
	}

	for (unsigned int i = 0; i < dev->num_vqs; i++) {
		/* Doorbell queues carry no buffers, and so need no callback and no vector. */
		info[i].name = "doorbell";
		if (i == VRDMA_QUEUE_CONTROL) {
			info[i].name = "control";
			info[i].callback = vrdma_ctrl_done;
		} else if (i == VRDMA_QUEUE_EVENTS) {
			info[i].name = "events";
			info[i].callback = vrdma_async_done;
		} else if (i < VRDMA_QUEUE_FIRST_COMP + vectors) {
			info[i].name = "completions";
			info[i].callback = vrdma_comp_done;
		}
	}
	err = vrdma_find_vqs(dev->vdev, dev->num_vqs, dev->vqs, info);
	dev->vqs_found = !err;
out:
	kfree(info);
	return err;
}

/* Repeats what the virtio core does before it probes a driver. */
static int vrdma_renegotiate(struct vrdma_dev *dev)
{
	struct virtio_device *vdev = dev->vdev;
	int err;

	virtio_reset_device(vdev);
	virtio_add_status(vdev, VIRTIO_CONFIG_S_ACKNOWLEDGE);
	virtio_add_status(vdev, VIRTIO_CONFIG_S_DRIVER);
	err = vdev->config->finalize_features(vdev);
	if (err)
		return err;
	virtio_add_status(vdev, VIRTIO_CONFIG_S_FEATURES_OK);
	if (!(vdev->config->get_status(vdev) & VIRTIO_CONFIG_S_FEATURES_OK))
		return -ENODEV;
	return 0;
}

static int vrdma_device_init(struct vrdma_dev *dev)
{
	struct vrdma_cmd *cmd = vrdma_cmd_alloc();
	int err;

	if (!cmd)
		return -ENOMEM;
	vrdma_cmd_init(cmd, VRDMA_OP_DEVICE_INIT, device_init);
	cmd->req.device_init.abi_major = VRDMA_ABI_MAJOR;
	cmd->req.device_init.abi_minor = VRDMA_ABI_MINOR;
	cmd->req.device_init.features = vrdma_features(&dev->cfg);
	cmd->req.device_init.status_page = page_to_phys(dev->ibd->status_page);
	err = vrdma_ctrl_exec(dev, &cmd, VRDMA_TIMEOUT);
	kfree(cmd);
	return err;
}

/* Asks for the end of an object that does not exist, which succeeds. */
static bool vrdma_host_answers(struct vrdma_dev *dev, unsigned long timeout)
{
	struct vrdma_cmd *cmd = vrdma_cmd_alloc();
	int err;

	if (!cmd)
		return false;
	vrdma_cmd_init(cmd, VRDMA_OP_DESTROY_PD, destroy);
	cmd->req.destroy.handle = VRDMA_HANDLE_NONE;
	err = vrdma_ctrl_exec(dev, &cmd, timeout);
	kfree(cmd);
	return !err;
}

/*
 * Has it looked after, in a while, whether the host is still there. Consumers in the kernel are about
 * to wait for it without end: whoever closes a connection for the end of its MADs, and we, when we
 * unregister, for the consumers. Callable from any context, and often.
 */
void vrdma_watch_host(struct vrdma_dev *dev)
{
	queue_delayed_work(dev->wq, &dev->watch, VRDMA_WATCH_DELAY);
}

static void vrdma_watch(struct work_struct *work)
{
	struct vrdma_dev *dev = container_of(to_delayed_work(work), struct vrdma_dev, watch);

	bool answers = vrdma_host_answers(dev, VRDMA_TIMEOUT);

	if (READ_ONCE(dev->up)) {
		/* The device is reset before consumers get back what the host may still write. */
		WRITE_ONCE(dev->silent, !answers);
		if (!answers)
			vrdma_poke_monitor(dev, 0);
	} else if (answers) {
		vrdma_watch_host(dev);
	} else {
		/* Without this the reset would not come. */
		vrdma_kverbs_lost(dev->ibd);
	}
}

static void vrdma_stop(struct vrdma_dev *dev)
{
	struct virtio_device *vdev = dev->vdev;
	struct vrdma_ibdev *ibd = dev->ibd;

	WRITE_ONCE(dev->up, false);
	if (ibd)
		vrdma_ibdev_set_gone(ibd);
	/*
	 * A host that is there is asked to end each object. It might hear of the reset only after we
	 * have: not all vhost-user front ends wait for its answer. One that has given the device up
	 * has ended them.
	 */
	if (ibd && READ_ONCE(dev->dead_epoch) != dev->cfg.epoch &&
	    vrdma_host_answers(dev, VRDMA_REMOVE_TIMEOUT)) {
		vrdma_watch_host(dev);
		vrdma_ibdev_unregister(ibd);
	}
	vrdma_ctrl_close(dev);
	virtio_reset_device(vdev);
	dev->need_reset = true;
	if (ibd)
		vrdma_kverbs_lost(ibd);
	if (dev->vqs_found)
		vrdma_ctrl_drain(dev, dev->vqs[VRDMA_QUEUE_CONTROL]);

	if (ibd) {
		vrdma_ibdev_unregister(ibd);
		cancel_delayed_work_sync(&dev->watch);
		vrdma_zombies_free(ibd);
		dev->ibd = NULL;
		vrdma_ibdev_free(ibd);
	}
	if (dev->vqs_found)
		vdev->config->del_vqs(vdev);
	dev->vqs_found = false;
	vrdma_events_free(dev);
	kfree(dev->vqs);
	dev->vqs = NULL;
}

/* Returns 0, or an error after which nothing is left started. */
static int vrdma_start(struct vrdma_dev *dev)
{
	struct virtio_device *vdev = dev->vdev;
	int err;

	dev->silent = false;
	vrdma_read_config(dev, &dev->cfg);
	err = vrdma_check_config(dev, &dev->cfg);
	if (err)
		return err;

	if (dev->need_reset) {
		err = vrdma_renegotiate(dev);
		if (err)
			return err;
	}

	dev->ibd = vrdma_ibdev_alloc(dev);
	if (!dev->ibd) {
		err = -ENOMEM;
		goto stop;
	}
	err = vrdma_find_queues(dev);
	if (err)
		goto stop;
	err = vrdma_find_doorbells(dev, &dev->kick_base);
	if (err)
		goto stop;
	err = vrdma_events_post(dev);
	if (err)
		goto stop;
	virtio_device_ready(vdev);
	vrdma_events_kick(dev);

	vrdma_ctrl_open(dev, dev->vqs[VRDMA_QUEUE_CONTROL], dev->cfg.epoch);
	err = vrdma_device_init(dev);
	if (err) {
		dev_err(&vdev->dev, "the host did not accept the device: %d\n", err);
		goto stop;
	}
	err = vrdma_ibdev_register(dev->ibd);
	if (err) {
		dev_err(&vdev->dev, "cannot register an RDMA device: %d\n", err);
		goto stop;
	}
	WRITE_ONCE(dev->up, true);
	return 0;

stop:
	vrdma_stop(dev);
	return err;
}

/* Starts, or has it tried again later. */
static void vrdma_try_start(struct vrdma_dev *dev)
{
	if (!vrdma_start(dev)) {
		dev->retry = VRDMA_RETRY_MIN;
		return;
	}
	dev->need_reset = true;
	vrdma_poke_monitor(dev, dev->retry);
	dev->retry = min_t(unsigned long, dev->retry * 2, VRDMA_RETRY_MAX);
}

/* Whether another attempt to start may have more luck: the host was away, or in another epoch. */
static bool vrdma_is_transient(int err)
{
	return err == -EAGAIN || err == -ETIMEDOUT || err == -EIO || err == -EPROTO;
}

/* Follows the configuration: starts, or starts again, when the host's epoch demands it. */
static void vrdma_monitor(struct work_struct *work)
{
	struct vrdma_dev *dev = container_of(to_delayed_work(work), struct vrdma_dev, monitor);
	struct vrdma_config cfg;

	if (dev->ibd) {
		bool dead = READ_ONCE(dev->dead_epoch) == dev->cfg.epoch;
		bool over = dead || READ_ONCE(dev->silent);

		vrdma_read_config(dev, &cfg);
		/* No epoch: the host is away. */
		if (!cfg.epoch && !over)
			return;
		if (cfg.epoch == dev->cfg.epoch && !over) {
			WRITE_ONCE(dev->cfg.link_state, cfg.link_state);
			WRITE_ONCE(dev->cfg.active_mtu, cfg.active_mtu);
			vrdma_link_changed(dev->ibd);
			return;
		}
		dev_warn(&dev->vdev->dev, dead ?
			 "the host has given this device up; waiting until it is back\n" : over ?
			 "the host does not answer; waiting until it does\n" :
			 "the host has lost this device's objects; starting again\n");
		vrdma_stop(dev);
	}
	vrdma_try_start(dev);
}

static int vrdma_probe(struct virtio_device *vdev)
{
	struct vrdma_dev *dev;
	int err;

	if (!virtio_has_feature(vdev, VIRTIO_F_VERSION_1)) {
		dev_err(&vdev->dev, "needs a virtio 1 device\n");
		return -ENODEV;
	}

	dev = kzalloc(sizeof(*dev), GFP_KERNEL);
	if (!dev)
		return -ENOMEM;
	dev->vdev = vdev;
	vdev->priv = dev;
	dev->retry = VRDMA_RETRY_MIN;
	INIT_DELAYED_WORK(&dev->monitor, vrdma_monitor);
	INIT_DELAYED_WORK(&dev->watch, vrdma_watch);
	vrdma_ctrl_init(dev);

	err = vrdma_check_iommu(dev);
	if (err)
		goto err_dev;
	dev->wq = alloc_workqueue("vrdma", WQ_UNBOUND, 0);
	if (!dev->wq) {
		err = -ENOMEM;
		goto err_dev;
	}

	err = vrdma_start(dev);
	if (err && !vrdma_is_transient(err))
		goto err_wq;
	if (err) {
		dev_warn(&vdev->dev, "the host is not ready; still trying\n");
		dev->need_reset = true;
		vrdma_poke_monitor(dev, VRDMA_RETRY_MIN);
	}
	return 0;

err_wq:
	spin_lock_irq(&dev->ctrl.lock);
	dev->removing = true;
	spin_unlock_irq(&dev->ctrl.lock);
	cancel_delayed_work_sync(&dev->monitor);
	destroy_workqueue(dev->wq);
err_dev:
	vdev->priv = NULL;
	kfree(dev);
	return err;
}

/* Ends the monitor and stops the device. */
static void vrdma_halt(struct vrdma_dev *dev)
{
	spin_lock_irq(&dev->ctrl.lock);
	dev->removing = true;
	spin_unlock_irq(&dev->ctrl.lock);
	/* The monitor may be waiting for the host's consent to a start. */
	if (!READ_ONCE(dev->up))
		vrdma_ctrl_close(dev);
	cancel_delayed_work_sync(&dev->monitor);
	vrdma_stop(dev);
}

static void vrdma_remove(struct virtio_device *vdev)
{
	struct vrdma_dev *dev = vdev->priv;

	vrdma_halt(dev);
	destroy_workqueue(dev->wq);
	vdev->priv = NULL;
	kfree(dev);
}

#ifdef CONFIG_PM_SLEEP
static int vrdma_freeze(struct virtio_device *vdev)
{
	vrdma_halt(vdev->priv);
	return 0;
}

static int vrdma_restore(struct virtio_device *vdev)
{
	struct vrdma_dev *dev = vdev->priv;

	dev->removing = false;
	vrdma_poke_monitor(dev, 0);
	return 0;
}
#endif

static const struct virtio_device_id vrdma_ids[] = {
	{ VRDMA_VIRTIO_ID, VIRTIO_DEV_ANY_ID },
	{ 0 },
};
MODULE_DEVICE_TABLE(virtio, vrdma_ids);

static struct virtio_driver vrdma_driver = {
	.driver.name = KBUILD_MODNAME,
	.driver.owner = THIS_MODULE,
	.id_table = vrdma_ids,
	.probe = vrdma_probe,
	.remove = vrdma_remove,
	.config_changed = vrdma_config_changed,
#ifdef CONFIG_PM_SLEEP
	.freeze = vrdma_freeze,
	.restore = vrdma_restore,
#endif
};
module_virtio_driver(vrdma_driver);

MODULE_DESCRIPTION("RDMA device over virtio, with its verbs executed by the host");
MODULE_LICENSE("Dual BSD/GPL");
