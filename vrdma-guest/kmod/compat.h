/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Differences between the kernels that this module is built for (6.1 to 6.12).
 */
#ifndef VRDMA_COMPAT_H
#define VRDMA_COMPAT_H

#include <linux/mm.h>
#include <linux/version.h>
#include <linux/virtio_config.h>
#include <rdma/ib_umem.h>
#include <rdma/ib_verbs.h>
#include <rdma/uverbs_ioctl.h>

/* Stable 6.12.y moved the block iterator out of ib_verbs.h. */
#if __has_include(<rdma/iter.h>)
#include <rdma/iter.h>
#endif

#ifndef __counted_by
#define __counted_by(member)
#endif

#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 3, 0)
static inline void vm_flags_set(struct vm_area_struct *vma, vm_flags_t flags)
{
	vma->vm_flags |= flags;
}

static inline void vm_flags_clear(struct vm_area_struct *vma, vm_flags_t flags)
{
	vma->vm_flags &= ~flags;
}
#endif

#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 11, 0)

#define VRDMA_CREATE_CQ_ARG struct uverbs_attr_bundle *attrs
#define VRDMA_CREATE_CQ_UDATA (&attrs->driver_udata)

static inline int vrdma_find_vqs(struct virtio_device *vdev, unsigned int count,
				 struct virtqueue **vqs, struct virtqueue_info *info)
{
	return virtio_find_vqs(vdev, count, vqs, info, NULL);
}

#else /* before 6.11 */

#define VRDMA_CREATE_CQ_ARG struct ib_udata *attrs
#define VRDMA_CREATE_CQ_UDATA attrs

struct virtqueue_info {
	const char *name;
	vq_callback_t *callback;
};

static inline int vrdma_find_vqs(struct virtio_device *vdev, unsigned int count,
				 struct virtqueue **vqs,
				 const struct virtqueue_info *info)
{
	const char **names;
	vq_callback_t **callbacks;
	unsigned int i;
	int err = -ENOMEM;

	names = kcalloc(count, sizeof(*names), GFP_KERNEL);
	callbacks = kcalloc(count, sizeof(*callbacks), GFP_KERNEL);
	if (names && callbacks) {
		for (i = 0; i < count; i++) {
			names[i] = info[i].name;
			callbacks[i] = info[i].callback;
		}
		err = virtio_find_vqs(vdev, count, vqs, callbacks, names, NULL);
	}
	kfree(callbacks);
	kfree(names);
	return err;
}

#endif

#endif /* VRDMA_COMPAT_H */
