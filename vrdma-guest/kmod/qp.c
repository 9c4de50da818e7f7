// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Queue pairs: the kernel makes them and moves them through their states.
 */
#include <linux/etherdevice.h>
#include <linux/log2.h>
#include <linux/slab.h>
#include <rdma/ib_cache.h>

#include "kverbs.h"

/* The values of the contract are those of verbs, so states, masks and rights pass as they are. */
static_assert(VRDMA_QP_TYPE_RC == (int)IB_QPT_RC);
static_assert(VRDMA_QP_TYPE_UC == (int)IB_QPT_UC);
static_assert(VRDMA_QP_TYPE_UD == (int)IB_QPT_UD);
static_assert(VRDMA_QP_TYPE_XRC_INI == (int)IB_QPT_XRC_INI);
static_assert(VRDMA_QP_TYPE_XRC_TGT == (int)IB_QPT_XRC_TGT);
static_assert(VRDMA_QP_STATE_RESET == (int)IB_QPS_RESET);
static_assert(VRDMA_QP_STATE_ERR == (int)IB_QPS_ERR);
static_assert(VRDMA_QP_ATTR_STATE == (int)IB_QP_STATE);
static_assert(VRDMA_QP_ATTR_AV == (int)IB_QP_AV);
static_assert(VRDMA_QP_ATTR_MIN_RNR_TIMER == (int)IB_QP_MIN_RNR_TIMER);
static_assert(VRDMA_QP_ATTR_DEST_QPN == (int)IB_QP_DEST_QPN);
static_assert(VRDMA_ACCESS_REMOTE_ATOMIC == (int)IB_ACCESS_REMOTE_ATOMIC);

#define VRDMA_QP_ATTR_KNOWN                                                                        \
	(VRDMA_QP_ATTR_STATE | VRDMA_QP_ATTR_CUR_STATE | VRDMA_QP_ATTR_EN_SQD_ASYNC_NOTIFY |       \
	 VRDMA_QP_ATTR_ACCESS_FLAGS | VRDMA_QP_ATTR_PKEY_INDEX | VRDMA_QP_ATTR_PORT |              \
	 VRDMA_QP_ATTR_QKEY | VRDMA_QP_ATTR_AV | VRDMA_QP_ATTR_PATH_MTU | VRDMA_QP_ATTR_TIMEOUT |  \
	 VRDMA_QP_ATTR_RETRY_CNT | VRDMA_QP_ATTR_RNR_RETRY | VRDMA_QP_ATTR_RQ_PSN |                \
	 VRDMA_QP_ATTR_MAX_RD_ATOMIC | VRDMA_QP_ATTR_MIN_RNR_TIMER | VRDMA_QP_ATTR_SQ_PSN |        \
	 VRDMA_QP_ATTR_MAX_DEST_RD_ATOMIC | VRDMA_QP_ATTR_DEST_QPN)

#define VRDMA_REMOTE_ACCESS                                                                        \
	(VRDMA_ACCESS_REMOTE_WRITE | VRDMA_ACCESS_REMOTE_READ | VRDMA_ACCESS_REMOTE_ATOMIC)

/* The smallest stride that holds an entry of @bytes, as a power of two. */
static u8 vrdma_stride_shift(u32 bytes)
{
	return max_t(u32, order_base_2(bytes), VRDMA_STRIDE_SHIFT_MIN);
}

/* What stands before the data in each entry of a send queue. */
static u32 vrdma_send_head_bytes(u8 qp_type)
{
	switch (qp_type) {
	case VRDMA_QP_TYPE_UD:
	case VRDMA_QP_TYPE_GSI:
		return sizeof(struct vrdma_send_header) + sizeof(struct vrdma_datagram_segment);
	case VRDMA_QP_TYPE_XRC_INI:
		return sizeof(struct vrdma_send_header) + sizeof(struct vrdma_xrc_segment);
	default:
		return sizeof(struct vrdma_send_header);
	}
}

/* An atomic has one scatter/gather entry behind its segment, whatever was asked for. */
#define VRDMA_ATOMIC_BYTES (sizeof(struct vrdma_atomic_segment) + sizeof(struct vrdma_sge))
/* Bindings and registrations fit where an atomic does. */
static_assert(sizeof(struct vrdma_bind_segment) <= VRDMA_ATOMIC_BYTES);
static_assert(sizeof(struct vrdma_reg_segment) <= VRDMA_ATOMIC_BYTES);

static u8 vrdma_send_stride_shift(u8 qp_type, u32 max_sge, u32 max_inline)
{
	u32 data = max3(max_sge * (u32)sizeof(struct vrdma_sge), max_inline,
			(u32)VRDMA_ATOMIC_BYTES);

	return vrdma_stride_shift(vrdma_send_head_bytes(qp_type) + data);
}

u8 vrdma_recv_stride_shift(u32 max_sge)
{
	return vrdma_stride_shift(sizeof(struct vrdma_recv_header) +
				  max_sge * sizeof(struct vrdma_sge));
}

/* Checks what was asked for and writes it, rounded up, into @req and back into @cap. */
static int vrdma_sq_size(const struct vrdma_config *cfg, struct ib_qp_cap *cap,
			 struct vrdma_create_qp *req)
{
	if (cap->max_send_wr > cfg->max_qp_wr || cap->max_send_sge > cfg->max_send_sge ||
	    cap->max_inline_data > cfg->max_inline_bytes)
		return -EINVAL;
	cap->max_send_wr = roundup_pow_of_two(max(cap->max_send_wr, 1U));
	cap->max_send_sge = max(cap->max_send_sge, 1U);
	if (cap->max_send_wr > cfg->max_qp_wr)
		return -EINVAL;

	req->sq_entries = cap->max_send_wr;
	req->max_send_sge = cap->max_send_sge;
	req->sq_stride_shift = vrdma_send_stride_shift(req->qp_type, cap->max_send_sge,
						       cap->max_inline_data);
	if (req->sq_stride_shift > VRDMA_STRIDE_SHIFT_MAX)
		return -EINVAL;

	/* What the stride has room for may as well be used. */
	cap->max_inline_data =
		min_t(u32, cfg->max_inline_bytes,
		      (1U << req->sq_stride_shift) - vrdma_send_head_bytes(req->qp_type));
	req->max_inline_bytes = cap->max_inline_data;
	return 0;
}

/* The same for the receive queue. */
static int vrdma_rq_size(const struct vrdma_config *cfg, struct ib_qp_cap *cap,
			 struct vrdma_create_qp *req)
{
	if (cap->max_recv_wr > cfg->max_qp_wr || cap->max_recv_sge > cfg->max_recv_sge)
		return -EINVAL;
	cap->max_recv_wr = roundup_pow_of_two(max(cap->max_recv_wr, 1U));
	cap->max_recv_sge = max(cap->max_recv_sge, 1U);
	if (cap->max_recv_wr > cfg->max_qp_wr)
		return -EINVAL;

	req->rq_entries = cap->max_recv_wr;
	req->max_recv_sge = cap->max_recv_sge;
	req->rq_stride_shift = vrdma_recv_stride_shift(cap->max_recv_sge);
	return req->rq_stride_shift > VRDMA_STRIDE_SHIFT_MAX ? -EINVAL : 0;
}

/*
 * What a user's queue pair of several paths has more: a chunk ring, and in the send queue room for
 * the entry with which a split message waits for its chunks.
 */
static int vrdma_add_chunks(struct vrdma_backing *backing, const struct ib_qp_cap *cap,
			    struct ib_udata *udata, struct vrdma_create_qp *req)
{
	const struct vrdma_config *cfg = &backing->ibd->dev->cfg;

	if (!req->chunk_entries)
		return 0;
	if (req->qp_type != VRDMA_QP_TYPE_RC || vrdma_paths(cfg) < 2)
		return -EOPNOTSUPP;
	if (!is_power_of_2(req->chunk_entries) || req->chunk_entries > cfg->max_qp_wr)
		return -EINVAL;
	req->flags |= VRDMA_QP_MULTIPATH;
	if (cap->max_send_wr <= cfg->max_qp_wr / 2)
		req->sq_entries = cap->max_send_wr * 2;
	return vrdma_ring_alloc(backing, 2, req->chunk_entries, req->sq_stride_shift, udata,
				&req->chunks);
}

static bool vrdma_has_sq(const struct ib_qp_init_attr *attr)
{
	return attr->qp_type != IB_QPT_XRC_TGT;
}

static bool vrdma_has_rq(const struct ib_qp_init_attr *attr)
{
	return !attr->srq && attr->qp_type != IB_QPT_XRC_INI && attr->qp_type != IB_QPT_XRC_TGT;
}

/* Sizes the queues that the queue pair has, and makes them. */
static int vrdma_qp_rings(struct vrdma_backing *backing, struct ib_qp_init_attr *attr,
			  struct ib_udata *udata, struct vrdma_create_qp *req)
{
	const struct vrdma_config *cfg = &backing->ibd->dev->cfg;
	struct ib_qp_cap *cap = &attr->cap;
	int err;

	if (vrdma_has_sq(attr)) {
		err = vrdma_sq_size(cfg, cap, req);
		if (!err)
			err = vrdma_add_chunks(backing, cap, udata, req);
		if (!err)
			err = vrdma_ring_alloc(backing, 0, req->sq_entries, req->sq_stride_shift,
					       udata, &req->sq);
		if (err)
			return err;
	} else if (req->chunk_entries) {
		return -EOPNOTSUPP;
	} else {
		cap->max_send_wr = 0;
		cap->max_send_sge = 0;
		cap->max_inline_data = 0;
	}
	if (vrdma_has_rq(attr)) {
		err = vrdma_rq_size(cfg, cap, req);
		if (!err)
			err = vrdma_ring_alloc(backing, 1, req->rq_entries, req->rq_stride_shift,
					       udata, &req->rq);
		if (err)
			return err;
	} else {
		cap->max_recv_wr = 0;
		cap->max_recv_sge = 0;
	}
	return 0;
}

/* Names the objects that the queue pair works with. */
static void vrdma_qp_parts(const struct ib_qp *ibqp, const struct ib_qp_init_attr *attr,
			   struct vrdma_create_qp *req)
{
	req->pd = VRDMA_HANDLE_NONE;
	req->send_cq = VRDMA_HANDLE_NONE;
	req->recv_cq = VRDMA_HANDLE_NONE;
	req->srq = VRDMA_HANDLE_NONE;
	req->xrcd = VRDMA_HANDLE_NONE;
	if (attr->qp_type == IB_QPT_XRC_TGT) {
		req->xrcd = to_vxrcd(attr->xrcd)->backing->handle;
		return;
	}
	req->pd = to_vpd(ibqp->pd)->backing->handle;
	req->send_cq = to_vcq(attr->send_cq)->backing->handle;
	if (attr->qp_type != IB_QPT_XRC_INI)
		req->recv_cq = to_vcq(attr->recv_cq)->backing->handle;
	if (attr->srq)
		req->srq = to_vsrq(attr->srq)->backing->handle;
}

/* Makes a ring, of which there may be none, mappable. */
static int vrdma_qp_map_ring(struct vrdma_pages *pages, struct ib_udata *udata,
			     struct vrdma_mmap_entry **entry, u64 *offset, u32 *bytes)
{
	if (!pages)
		return 0;
	*entry = vrdma_mmap_insert(&vrdma_udata_context(udata)->ib, VRDMA_MMAP_PAGES, pages,
				   pages->count, offset);
	*bytes = pages->count * PAGE_SIZE;
	return PTR_ERR_OR_ZERO(*entry);
}

static int vrdma_qp_map(struct vrdma_qp *qp, const struct vrdma_create_qp *req,
			const struct vrdma_create_qp_reply *host, struct ib_udata *udata)
{
	struct vrdma_user_qp_reply reply = {
		.sq_entries = req->sq_entries,
		.rq_entries = req->rq_entries,
		.sq_stride_shift = req->sq_stride_shift,
		.rq_stride_shift = req->rq_stride_shift,
		.db_slot = host->db_slot,
		.db_index = host->db_index,
		.max_inline_bytes = req->max_inline_bytes,
		.ring_format = host->ring_format,
		.chunk_entries = req->chunk_entries,
	};
	int err;

	err = vrdma_qp_map_ring(qp->backing->pages[0], udata, &qp->sq, &reply.sq_offset,
				&reply.sq_bytes);
	if (!err)
		err = vrdma_qp_map_ring(qp->backing->pages[1], udata, &qp->rq, &reply.rq_offset,
					&reply.rq_bytes);
	if (!err)
		err = vrdma_qp_map_ring(qp->backing->pages[2], udata, &qp->chunks,
					&reply.chunks_offset, &reply.chunks_bytes);
	if (!err)
		err = vrdma_reply_to_user(udata, &reply, sizeof(reply),
					  offsetof(struct vrdma_user_qp_reply, chunks_offset));
	return err;
}

static void vrdma_qp_unmap(struct vrdma_qp *qp)
{
	vrdma_mmap_remove(qp->chunks);
	vrdma_mmap_remove(qp->rq);
	vrdma_mmap_remove(qp->sq);
}

static int vrdma_qp_user_request(struct ib_udata *udata, struct vrdma_user_qp_request *user)
{
	int err;

	if (udata->inlen < sizeof(*user))
		return -EINVAL;
	err = ib_copy_from_udata(user, udata, sizeof(*user));
	if (err)
		return err;
	/* A newer provider asks for what this driver does not know. */
	if (udata->inlen > sizeof(*user) &&
	    !ib_is_udata_cleared(udata, sizeof(*user), udata->inlen - sizeof(*user)))
		return -EOPNOTSUPP;
	return 0;
}

static bool vrdma_qp_type_is_known(enum ib_qp_type type, bool kernel)
{
	switch (type) {
	case IB_QPT_RC:
	case IB_QPT_UC:
	case IB_QPT_UD:
		return true;
	case IB_QPT_XRC_INI:
		return !kernel;
	case IB_QPT_GSI:
	case IB_QPT_XRC_TGT: /* processes share it, so the RDMA core makes it in the kernel's name */
		return kernel;
	default:
		return false;
	}
}

/* What stands in each completion: pollers in the kernel look queue pairs up by their handles. */
static u32 vrdma_qp_cookie(const struct ib_qp_init_attr *attr, u32 handle,
			   const struct vrdma_user_qp_request *user)
{
	/* Completions of an XRC domain's receives are told by other means. */
	if (attr->qp_type == IB_QPT_XRC_TGT)
		return 0;
	return user ? user->cookie : handle;
}

/* Hands the queues to whoever posts: user space, a consumer in the kernel, or nobody. */
static int vrdma_qp_hand_out(struct vrdma_qp *qp, const struct vrdma_create_qp *req,
			     const struct vrdma_create_qp_reply *reply, struct ib_udata *udata)
{
	if (req->qp_type == VRDMA_QP_TYPE_XRC_TGT)
		return 0;
	return udata ? vrdma_qp_map(qp, req, reply, udata) : vrdma_kqp_init(qp, req, reply);
}

/* Hosts before version 1.3 know nothing of chunk rings, and take no more than they know. */
static size_t vrdma_create_qp_bytes(const struct vrdma_config *cfg)
{
	return cfg->abi_minor < 3 ? offsetof(struct vrdma_create_qp, chunks) :
				    sizeof(struct vrdma_create_qp);
}

int vrdma_create_qp(struct ib_qp *ibqp, struct ib_qp_init_attr *attr, struct ib_udata *udata)
{
	struct vrdma_ibdev *ibd = to_vibdev(ibqp->device);
	struct vrdma_user_qp_request user = {};
	struct vrdma_qp *qp = to_vqp(ibqp);
	struct vrdma_create_qp *req;
	struct vrdma_backing *backing;
	struct vrdma_cmd *cmd;
	int err;

	if (!vrdma_qp_type_is_known(attr->qp_type, !udata) || attr->create_flags ||
	    attr->rwq_ind_tbl)
		return -EOPNOTSUPP;
	if (udata) {
		err = vrdma_qp_user_request(udata, &user);
		if (err)
			return err;
	}

	backing = vrdma_backing_alloc(ibd, VRDMA_OP_DESTROY_QP, &cmd);
	if (IS_ERR(backing))
		return PTR_ERR(backing);
	__vrdma_cmd_init(cmd, VRDMA_OP_CREATE_QP, vrdma_create_qp_bytes(&ibd->dev->cfg),
			 sizeof(cmd->reply.create_qp));
	req = &cmd->req.create_qp;
	req->qp = backing->handle;
	req->flags = attr->sq_sig_type == IB_SIGNAL_ALL_WR ? VRDMA_QP_SIGNAL_ALL : 0;
	req->cookie = vrdma_qp_cookie(attr, backing->handle, udata ? &user : NULL);
	req->qp_type = attr->qp_type;
	req->chunk_entries = user.chunk_entries;
	vrdma_qp_parts(ibqp, attr, req);
	err = vrdma_qp_rings(backing, attr, udata, req);
	if (err)
		goto err_backing;

	err = vrdma_backing_create(backing, &cmd);
	if (err)
		goto err_cmd;
	qp->backing = backing;
	err = vrdma_qp_hand_out(qp, req, &cmd->reply.create_qp, udata);
	if (err)
		goto err_retire;

	ibqp->qp_num = cmd->reply.create_qp.qpn;
	qp->cap = attr->cap;
	qp->sig_type = attr->sq_sig_type;
	qp->state = IB_QPS_RESET;
	mutex_init(&qp->lock);
	qp->object.kind = VRDMA_OBJECT_QP;
	vrdma_object_publish(backing, &qp->object);
	kfree(cmd);
	return 0;

err_retire:
	vrdma_qp_unmap(qp);
	vrdma_backing_retire(backing);
	goto err_cmd;
err_backing:
	vrdma_backing_free(backing);
err_cmd:
	kfree(cmd);
	return err;
}

/* Copies the address vector whole: GIDs are deleted at any time, and a QP must not notice. */
static int vrdma_fill_av(struct vrdma_qp_attr *out, const struct rdma_ah_attr *ah)
{
	const struct ib_global_route *grh = rdma_ah_read_grh(ah);

	if (ah->type != RDMA_AH_ATTR_TYPE_ROCE || !(rdma_ah_get_ah_flags(ah) & IB_AH_GRH) ||
	    !grh->sgid_attr)
		return -EINVAL;
	memcpy(out->sgid, grh->sgid_attr->gid.raw, sizeof(out->sgid));
	memcpy(out->dgid, grh->dgid.raw, sizeof(out->dgid));
	out->sgid_index = grh->sgid_attr->index;
	out->flow_label = grh->flow_label & 0xfffff;
	out->hop_limit = grh->hop_limit;
	out->traffic_class = grh->traffic_class;
	out->sl = rdma_ah_get_sl(ah);
	return 0;
}

/* Checks what the RDMA core does not, and translates. */
static int vrdma_fill_attr(struct vrdma_ibdev *ibd, struct vrdma_qp_attr *out,
			   const struct ib_qp_attr *attr, int mask)
{
	const struct vrdma_config *cfg = &ibd->dev->cfg;
	int err;

	if ((mask & IB_QP_PORT && attr->port_num != VRDMA_PORT) ||
	    (mask & IB_QP_PKEY_INDEX && attr->pkey_index) ||
	    (mask & IB_QP_MAX_QP_RD_ATOMIC && attr->max_rd_atomic > cfg->max_rd_atomic) ||
	    (mask & IB_QP_MAX_DEST_RD_ATOMIC && attr->max_dest_rd_atomic > cfg->max_dest_rd_atomic))
		return -EINVAL;
	if (mask & IB_QP_PATH_MTU) {
		enum ib_mtu active = vrdma_active_mtu(ibd);

		if (attr->path_mtu > active) {
			ibdev_warn_ratelimited(&ibd->ib,
					       "path MTU %d is above the port's active MTU %d\n",
					       ib_mtu_enum_to_int(attr->path_mtu),
					       ib_mtu_enum_to_int(active));
			return -EINVAL;
		}
		out->path_mtu = attr->path_mtu;
	}
	if (mask & IB_QP_AV) {
		err = vrdma_fill_av(out, &attr->ah_attr);
		if (err)
			return err;
	}
	if (mask & IB_QP_STATE)
		out->state = attr->qp_state;
	if (mask & IB_QP_CUR_STATE)
		out->cur_state = attr->cur_qp_state;
	if (mask & IB_QP_EN_SQD_ASYNC_NOTIFY)
		out->sq_drained_notify = !!attr->en_sqd_async_notify;
	if (mask & IB_QP_ACCESS_FLAGS)
		/* Local write is always allowed, and asked for by many. */
		out->access = attr->qp_access_flags & VRDMA_REMOTE_ACCESS;
	if (mask & IB_QP_DEST_QPN)
		out->dest_qpn = attr->dest_qp_num;
	if (mask & IB_QP_RQ_PSN)
		out->rq_psn = attr->rq_psn & 0xffffff;
	if (mask & IB_QP_SQ_PSN)
		out->sq_psn = attr->sq_psn & 0xffffff;
	if (mask & IB_QP_QKEY)
		out->qkey = attr->qkey;
	if (mask & IB_QP_MAX_QP_RD_ATOMIC)
		out->max_rd_atomic = attr->max_rd_atomic;
	if (mask & IB_QP_MAX_DEST_RD_ATOMIC)
		out->max_dest_rd_atomic = attr->max_dest_rd_atomic;
	if (mask & IB_QP_MIN_RNR_TIMER)
		out->min_rnr_timer = attr->min_rnr_timer;
	if (mask & IB_QP_TIMEOUT)
		out->timeout = attr->timeout;
	if (mask & IB_QP_RETRY_CNT)
		out->retry_cnt = attr->retry_cnt;
	if (mask & IB_QP_RNR_RETRY)
		out->rnr_retry = attr->rnr_retry;
	return 0;
}

/* The kernel's consumers do not expect that a signal keeps them from the state of error. */
static int vrdma_qp_lock(struct vrdma_qp *qp)
{
	if (!qp->kernel)
		return mutex_lock_killable(&qp->lock);
	mutex_lock(&qp->lock);
	return 0;
}

/* Has the host move the queue pair to state @to. */
static int vrdma_qp_move(struct vrdma_qp *qp, struct vrdma_cmd **cmd, enum ib_qp_state to)
{
	struct vrdma_ibdev *ibd = to_vibdev(qp->ib.device);
	/* The kernel's consumers wait for what the error state flushes: they are not refused it. */
	bool flush = qp->kernel && to == IB_QPS_ERR;
	int err;

	if (flush && vrdma_is_lost(ibd))
		return 0;
	(*cmd)->insist = flush;
	err = vrdma_ctrl_exec(ibd->dev, cmd, VRDMA_TIMEOUT);
	/* The device is about to be reset: we flush then. */
	return flush && err == -ENODEV ? 0 : err;
}

int vrdma_modify_qp(struct ib_qp *ibqp, struct ib_qp_attr *attr, int mask, struct ib_udata *udata)
{
	struct vrdma_ibdev *ibd = to_vibdev(ibqp->device);
	struct vrdma_qp *qp = to_vqp(ibqp);
	enum ib_qp_state from, to;
	struct vrdma_cmd *cmd;
	int err;

	if (mask & ~VRDMA_QP_ATTR_KNOWN)
		return -EOPNOTSUPP;

	cmd = vrdma_cmd_alloc();
	if (!cmd)
		return -ENOMEM;
	vrdma_cmd_init(cmd, VRDMA_OP_MODIFY_QP, modify_qp);
	cmd->req.modify_qp.qp = qp->backing->handle;
	cmd->req.modify_qp.mask = mask;
	err = vrdma_fill_attr(ibd, &cmd->req.modify_qp.attr, attr, mask);
	if (err)
		goto out;

	err = vrdma_qp_lock(qp);
	if (err)
		goto out;
	from = mask & IB_QP_CUR_STATE ? attr->cur_qp_state : qp->state;
	to = mask & IB_QP_STATE ? attr->qp_state : from;
	err = ib_modify_qp_is_ok(from, to, ibqp->qp_type, mask) ? 0 : -EINVAL;
	if (!err)
		err = vrdma_qp_move(qp, &cmd, to);
	if (!err) {
		if (to == IB_QPS_RESET)
			vrdma_kqp_reset(qp);
		WRITE_ONCE(qp->state, to);
		if (mask & IB_QP_AV)
			ether_addr_copy(qp->dmac, attr->ah_attr.roce.dmac);
	}
	mutex_unlock(&qp->lock);
out:
	kfree(cmd);
	return err;
}

/* The reverse of vrdma_fill_av(). */
static void vrdma_read_av(struct rdma_ah_attr *ah, const struct vrdma_qp_attr *host, const u8 *dmac)
{
	union ib_gid dgid;

	memcpy(dgid.raw, host->dgid, sizeof(dgid.raw));
	ah->type = RDMA_AH_ATTR_TYPE_ROCE;
	rdma_ah_set_grh(ah, &dgid, host->flow_label, host->sgid_index, host->hop_limit,
			host->traffic_class);
	rdma_ah_set_sl(ah, host->sl);
	rdma_ah_set_port_num(ah, VRDMA_PORT);
	ether_addr_copy(ah->roce.dmac, dmac);
}

/* Others name their destination in each work request. */
static bool vrdma_qp_is_connected(enum ib_qp_type type)
{
	return type != IB_QPT_UD && type != IB_QPT_GSI;
}

int vrdma_query_qp(struct ib_qp *ibqp, struct ib_qp_attr *attr, int mask,
		   struct ib_qp_init_attr *init)
{
	struct vrdma_ibdev *ibd = to_vibdev(ibqp->device);
	struct vrdma_qp *qp = to_vqp(ibqp);
	const struct vrdma_qp_attr *host;
	struct vrdma_cmd *cmd;
	int err;

	cmd = vrdma_cmd_alloc();
	if (!cmd)
		return -ENOMEM;
	vrdma_cmd_init_reply(cmd, VRDMA_OP_QUERY_QP, destroy, query_qp);
	cmd->req.destroy.handle = qp->backing->handle;

	err = mutex_lock_killable(&qp->lock);
	if (err)
		goto out;
	err = vrdma_ctrl_exec(ibd->dev, &cmd, VRDMA_TIMEOUT);
	/* The host may have moved it to an error state by itself. */
	if (!err)
		WRITE_ONCE(qp->state, cmd->reply.query_qp.attr.state);
	mutex_unlock(&qp->lock);
	if (err)
		goto out;

	host = &cmd->reply.query_qp.attr;
	attr->qp_state = host->state;
	attr->cur_qp_state = host->state;
	attr->path_mtu = host->path_mtu;
	attr->path_mig_state = IB_MIG_MIGRATED;
	attr->en_sqd_async_notify = host->sq_drained_notify;
	attr->sq_draining = cmd->reply.query_qp.sq_draining;
	attr->qp_access_flags = host->access;
	attr->dest_qp_num = host->dest_qpn;
	attr->rq_psn = host->rq_psn;
	attr->sq_psn = host->sq_psn;
	attr->qkey = host->qkey;
	attr->pkey_index = host->pkey_index;
	attr->port_num = VRDMA_PORT;
	attr->max_rd_atomic = host->max_rd_atomic;
	attr->max_dest_rd_atomic = host->max_dest_rd_atomic;
	attr->min_rnr_timer = host->min_rnr_timer;
	attr->timeout = host->timeout;
	attr->retry_cnt = host->retry_cnt;
	attr->rnr_retry = host->rnr_retry;
	attr->cap = qp->cap;

	if (vrdma_qp_is_connected(ibqp->qp_type))
		vrdma_read_av(&attr->ah_attr, host, qp->dmac);

	init->cap = qp->cap;
	init->qp_type = ibqp->qp_type;
	init->sq_sig_type = qp->sig_type;
	init->send_cq = ibqp->send_cq;
	init->recv_cq = ibqp->recv_cq;
	init->srq = ibqp->srq;
	init->port_num = VRDMA_PORT;
out:
	kfree(cmd);
	return err;
}

int vrdma_destroy_qp(struct ib_qp *ibqp, struct ib_udata *udata)
{
	struct vrdma_qp *qp = to_vqp(ibqp);

	vrdma_object_hide(qp->backing);
	vrdma_kqp_fini(qp);
	vrdma_qp_unmap(qp);
	vrdma_backing_retire(qp->backing);
	return 0;
}
