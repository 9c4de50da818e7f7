// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Events from the host: asynchronous ones, and completions of armed completion queues.
 *
 * Handlers are called under the lock of the table of objects, which an object takes to leave it: so
 * none is called for an object that is being destroyed. They are the RDMA core's, short and safe in
 * interrupt context.
 */
#include <linux/cpumask.h>
#include <linux/scatterlist.h>
#include <linux/slab.h>

#include "kverbs.h"

/* Buffers of the queue of asynchronous events. The host waits for one when it has none. */
#define VRDMA_ASYNC_BUFFERS 64

static struct vrdma_object *vrdma_object_find(struct vrdma_ibdev *ibd, u32 handle,
					      enum vrdma_object_kind kind)
{
	struct vrdma_object *object = xa_load(&ibd->objects, handle);

	return object && object->kind == kind ? object : NULL;
}

static void vrdma_object_event(struct vrdma_ibdev *ibd, u32 handle, enum vrdma_object_kind kind,
			       enum ib_event_type type)
{
	struct ib_event event = { .device = &ibd->ib, .event = type };
	struct vrdma_object *object;
	struct ib_srq *srq;
	struct ib_cq *cq;
	struct ib_qp *qp;
	unsigned long flags;

	xa_lock_irqsave(&ibd->objects, flags);
	object = vrdma_object_find(ibd, handle, kind);
	if (!object)
		goto out;
	switch (kind) {
	case VRDMA_OBJECT_QP:
		qp = &container_of(object, struct vrdma_qp, object)->ib;
		event.element.qp = qp;
		if (qp->event_handler)
			qp->event_handler(&event, qp->qp_context);
		break;
	case VRDMA_OBJECT_CQ:
		cq = &container_of(object, struct vrdma_cq, object)->ib;
		event.element.cq = cq;
		if (cq->event_handler)
			cq->event_handler(&event, cq->cq_context);
		break;
	case VRDMA_OBJECT_SRQ:
		srq = &container_of(object, struct vrdma_srq, object)->ib;
		event.element.srq = srq;
		if (srq->event_handler)
			srq->event_handler(&event, srq->srq_context);
		break;
	}
out:
	xa_unlock_irqrestore(&ibd->objects, flags);
}

static void vrdma_completion(struct vrdma_ibdev *ibd, u32 handle)
{
	struct vrdma_object *object;
	unsigned long flags;

	xa_lock_irqsave(&ibd->objects, flags);
	object = vrdma_object_find(ibd, handle, VRDMA_OBJECT_CQ);
	if (object)
		vrdma_cq_call(container_of(object, struct vrdma_cq, object));
	xa_unlock_irqrestore(&ibd->objects, flags);
}

/* Whom an event is for, and what it is there called. */
static const struct {
	enum vrdma_object_kind kind;
	enum ib_event_type type;
} vrdma_object_events[] = {
	[VRDMA_EVENT_QP_FATAL] = { VRDMA_OBJECT_QP, IB_EVENT_QP_FATAL },
	[VRDMA_EVENT_QP_REQ_ERR] = { VRDMA_OBJECT_QP, IB_EVENT_QP_REQ_ERR },
	[VRDMA_EVENT_QP_ACCESS_ERR] = { VRDMA_OBJECT_QP, IB_EVENT_QP_ACCESS_ERR },
	[VRDMA_EVENT_COMM_EST] = { VRDMA_OBJECT_QP, IB_EVENT_COMM_EST },
	[VRDMA_EVENT_SQ_DRAINED] = { VRDMA_OBJECT_QP, IB_EVENT_SQ_DRAINED },
	[VRDMA_EVENT_QP_LAST_WQE] = { VRDMA_OBJECT_QP, IB_EVENT_QP_LAST_WQE_REACHED },
	[VRDMA_EVENT_CQ_ERR] = { VRDMA_OBJECT_CQ, IB_EVENT_CQ_ERR },
	[VRDMA_EVENT_SRQ_LIMIT] = { VRDMA_OBJECT_SRQ, IB_EVENT_SRQ_LIMIT_REACHED },
	[VRDMA_EVENT_SRQ_ERR] = { VRDMA_OBJECT_SRQ, IB_EVENT_SRQ_ERR },
};

static void vrdma_device_fatal(struct vrdma_ibdev *ibd, u64 epoch)
{
	vrdma_ibdev_set_gone(ibd);
	vrdma_kverbs_lost(ibd);
	if (READ_ONCE(ibd->registered))
		vrdma_dispatch(ibd, IB_EVENT_DEVICE_FATAL);
	/* Nothing of this epoch comes back. */
	WRITE_ONCE(ibd->dev->dead_epoch, epoch);
	vrdma_poke_monitor(ibd->dev, 0);
}

static void vrdma_async_event(struct vrdma_ibdev *ibd, const struct vrdma_async_event *event)
{
	u32 kind = event->kind;

	if (kind == VRDMA_EVENT_DEVICE_FATAL)
		vrdma_device_fatal(ibd, event->epoch);
	else if (kind && kind < ARRAY_SIZE(vrdma_object_events))
		vrdma_object_event(ibd, event->handle, vrdma_object_events[kind].kind,
				   vrdma_object_events[kind].type);
	else
		ibdev_dbg(&ibd->ib, "unknown event %u\n", kind);
}

static int vrdma_post(struct virtqueue *vq, void *buffer, unsigned int bytes, gfp_t gfp)
{
	struct scatterlist sg;

	sg_init_one(&sg, buffer, bytes);
	return virtqueue_add_inbuf(vq, &sg, 1, buffer, gfp);
}

/* Callback of the queue of asynchronous events. */
void vrdma_async_done(struct virtqueue *vq)
{
	struct vrdma_dev *dev = vq->vdev->priv;
	struct vrdma_async_event *buffer, event;
	unsigned int len;

	do {
		virtqueue_disable_cb(vq);
		while ((buffer = virtqueue_get_buf(vq, &len))) {
			event = *buffer;
			if (len >= sizeof(event) && event.epoch == dev->cfg.epoch)
				vrdma_async_event(dev->ibd, &event);
			vrdma_post(vq, buffer, sizeof(*buffer), GFP_ATOMIC);
		}
	} while (!virtqueue_enable_cb(vq) && !virtqueue_is_broken(vq));
	virtqueue_kick(vq);
}

/* Callback of a queue of completion events. */
void vrdma_comp_done(struct virtqueue *vq)
{
	struct vrdma_dev *dev = vq->vdev->priv;
	struct vrdma_comp_event *buffer, event;
	unsigned int len;

	do {
		virtqueue_disable_cb(vq);
		while ((buffer = virtqueue_get_buf(vq, &len))) {
			event = *buffer;
			if (len >= sizeof(event) && event.epoch == dev->cfg.epoch)
				vrdma_completion(dev->ibd, event.cq);
			vrdma_post(vq, buffer, sizeof(*buffer), GFP_ATOMIC);
		}
	} while (!virtqueue_enable_cb(vq) && !virtqueue_is_broken(vq));
	virtqueue_kick(vq);
}

/* Gives the host buffers for events; the queues have been found but do not run yet. */
int vrdma_events_post(struct vrdma_dev *dev)
{
	struct virtqueue *vq = dev->vqs[VRDMA_QUEUE_EVENTS];
	unsigned int vectors = dev->cfg.num_comp_vectors;
	unsigned int count = min_t(unsigned int, VRDMA_ASYNC_BUFFERS, vq->num_free);
	int err;

	dev->events = kcalloc(count, sizeof(*dev->events), GFP_KERNEL);
	dev->comp_events = kcalloc(vectors, sizeof(*dev->comp_events), GFP_KERNEL);
	if (!dev->events || !dev->comp_events)
		return -ENOMEM;

	for (unsigned int i = 0; i < count; i++) {
		err = vrdma_post(vq, &dev->events[i], sizeof(*dev->events), GFP_KERNEL);
		if (err)
			return err;
	}

	for (unsigned int v = 0; v < vectors; v++) {
		struct vrdma_comp_event *buffers;

		vq = dev->vqs[VRDMA_QUEUE_FIRST_COMP + v];
		count = vq->num_free;
		buffers = kcalloc(count, sizeof(*buffers), GFP_KERNEL);
		if (!buffers)
			return -ENOMEM;
		dev->comp_events[v] = buffers;
		for (unsigned int i = 0; i < count; i++) {
			err = vrdma_post(vq, &buffers[i], sizeof(*buffers), GFP_KERNEL);
			if (err)
				return err;
		}
		/* Spread the vectors over the CPUs, as users of comp_vector expect. */
		virtqueue_set_affinity(vq, cpumask_of(cpumask_local_spread(v, NUMA_NO_NODE)));
	}
	return 0;
}

/* Tells the host of the buffers; the queues run. */
void vrdma_events_kick(struct vrdma_dev *dev)
{
	for (unsigned int i = 0; i < 1 + dev->cfg.num_comp_vectors; i++)
		virtqueue_kick(dev->vqs[VRDMA_QUEUE_EVENTS + i]);
}

/* Frees the buffers; the device has been reset and its queues deleted. */
void vrdma_events_free(struct vrdma_dev *dev)
{
	if (dev->comp_events)
		for (unsigned int v = 0; v < dev->cfg.num_comp_vectors; v++)
			kfree(dev->comp_events[v]);
	kfree(dev->comp_events);
	dev->comp_events = NULL;
	kfree(dev->events);
	dev->events = NULL;
}
