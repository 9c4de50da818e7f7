// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Where the doorbell registers are. Each doorbell slot has a virtqueue, and its register is that
 * queue's notification address, which user space maps: so each must have a page of its own.
 */
#include <linux/io.h>
#include <linux/pci.h>
#include <linux/virtio_pci.h>

#include "vrdma.h"

struct vrdma_region {
	u8 bar;
	u32 offset;
	u32 length;
};

/* Finds the virtio capability of the given type; returns its place in PCI config space, or 0. */
static int vrdma_find_cap(struct pci_dev *pdev, u8 type, struct vrdma_region *region)
{
	int pos;

	for (pos = pci_find_capability(pdev, PCI_CAP_ID_VNDR); pos > 0;
	     pos = pci_find_next_capability(pdev, pos, PCI_CAP_ID_VNDR)) {
		u8 found;

		pci_read_config_byte(pdev, pos + offsetof(struct virtio_pci_cap, cfg_type), &found);
		if (found != type)
			continue;
		pci_read_config_byte(pdev, pos + offsetof(struct virtio_pci_cap, bar),
				     &region->bar);
		pci_read_config_dword(pdev, pos + offsetof(struct virtio_pci_cap, offset),
				      &region->offset);
		pci_read_config_dword(pdev, pos + offsetof(struct virtio_pci_cap, length),
				      &region->length);
		/*
		 * Other BARs are reserved, and devices may have more than one capability of a type.
		 */
		if (region->bar < PCI_STD_NUM_BARS && region->length)
			return pos;
	}
	return 0;
}

/*
 * Returns in @base the address of the page of slot 0. The transport knows these addresses but keeps
 * them to itself; queue_select is free while no queue is being set up or torn down.
 */
int vrdma_find_doorbells(struct vrdma_dev *dev, phys_addr_t *base)
{
	unsigned int first = VRDMA_QUEUE_FIRST_COMP + dev->cfg.num_comp_vectors;
	struct device *parent = dev->vdev->dev.parent;
	struct vrdma_region notify, common;
	void __iomem *cfg;
	struct pci_dev *pdev;
	u32 multiplier;
	u16 offset = 0;
	int pos, err = 0;

	if (!dev_is_pci(parent)) {
		dev_err(&dev->vdev->dev, "needs virtio over PCI\n");
		return -ENODEV;
	}
	pdev = to_pci_dev(parent);

	pos = vrdma_find_cap(pdev, VIRTIO_PCI_CAP_NOTIFY_CFG, &notify);
	if (!pos || !vrdma_find_cap(pdev, VIRTIO_PCI_CAP_COMMON_CFG, &common)) {
		dev_err(&dev->vdev->dev, "needs a virtio 1 device\n");
		return -ENODEV;
	}
	pci_read_config_dword(pdev, pos + offsetof(struct virtio_pci_notify_cap,
						   notify_off_multiplier), &multiplier);
	if (multiplier != PAGE_SIZE) {
		dev_err(&dev->vdev->dev,
			"the doorbells of queues are %u bytes apart instead of %lu: use page-per-vq=on\n",
			multiplier, PAGE_SIZE);
		return -EOPNOTSUPP;
	}

	cfg = pci_iomap_range(pdev, common.bar, common.offset, common.length);
	if (!cfg)
		return -ENOMEM;
	for (unsigned int slot = 0; slot < dev->cfg.num_db_slots; slot++) {
		u16 queue_offset;

		iowrite16(first + slot, cfg + offsetof(struct virtio_pci_common_cfg, queue_select));
		queue_offset = ioread16(cfg + offsetof(struct virtio_pci_common_cfg,
						       queue_notify_off));
		if (!slot)
			offset = queue_offset;
		/* One mapping covers all slots. */
		if (queue_offset != offset + slot)
			err = -EOPNOTSUPP;
	}
	pci_iounmap(pdev, cfg);

	*base = pci_resource_start(pdev, notify.bar) + notify.offset + (u64)offset * multiplier;
	if (offset_in_page(*base) ||
	    ((u64)offset + dev->cfg.num_db_slots) * multiplier > notify.length)
		err = -EOPNOTSUPP;
	if (err)
		dev_err(&dev->vdev->dev, "the doorbells do not lie in consecutive pages\n");
	return err;
}
