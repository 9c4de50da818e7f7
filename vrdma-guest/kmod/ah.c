// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Address handles: plain data, copied into each work request that names one. The RNIC checks them
 * when it sends, so that making one costs no command and may happen with interrupts off.
 */
#include "vrdma.h"

/* Of user space and of the kernel alike. */
int vrdma_create_ah(struct ib_ah *ibah, struct rdma_ah_init_attr *init, struct ib_udata *udata)
{
	const struct rdma_ah_attr *attr = init->ah_attr;
	const struct ib_global_route *grh = rdma_ah_read_grh(attr);
	struct vrdma_datagram_segment *av = &to_vah(ibah)->av;

	if (attr->type != RDMA_AH_ATTR_TYPE_ROCE || !(rdma_ah_get_ah_flags(attr) & IB_AH_GRH) ||
	    !grh->sgid_attr)
		return -EINVAL;
	memcpy(av->dgid, grh->dgid.raw, sizeof(av->dgid));
	av->flow_label = grh->flow_label & 0xfffff;
	av->sgid_index = grh->sgid_attr->index;
	av->hop_limit = grh->hop_limit;
	av->traffic_class = grh->traffic_class;
	av->sl = rdma_ah_get_sl(attr);
	return 0;
}

int vrdma_destroy_ah(struct ib_ah *ibah, u32 flags)
{
	return 0;
}
