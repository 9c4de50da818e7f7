// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Memory regions of the kernel's consumers: all memory, addressed as the device does DMA, and
 * regions that work requests fill again and again (fast registration).
 */
#include <linux/log2.h>
#include <linux/slab.h>

#include "kverbs.h"

static_assert(VRDMA_FAST_REG_MAX_PAGES * sizeof(u64) <= PAGE_SIZE);

#define VRDMA_DMA_ACCESS                                                                           \
	(VRDMA_ACCESS_LOCAL_WRITE | VRDMA_ACCESS_REMOTE_WRITE | VRDMA_ACCESS_REMOTE_READ |         \
	 VRDMA_ACCESS_REMOTE_ATOMIC)

/* Makes a region without pages of its own. @list is a page for the host to read, or NULL. */
static struct ib_mr *vrdma_kmr_create(struct ib_pd *ibpd, u32 flags, u32 access, u64 length,
				      struct vrdma_pages *list)
{
	struct vrdma_ibdev *ibd = to_vibdev(ibpd->device);
	struct vrdma_backing *backing;
	struct vrdma_cmd *cmd;
	struct vrdma_mr *mr;
	int err;

	mr = kzalloc(sizeof(*mr), GFP_KERNEL);
	if (!mr) {
		vrdma_pages_put(list);
		return ERR_PTR(-ENOMEM);
	}
	backing = vrdma_backing_alloc(ibd, VRDMA_OP_DESTROY_MR, &cmd);
	if (IS_ERR(backing)) {
		err = PTR_ERR(backing);
		vrdma_pages_put(list);
		goto err_mr;
	}
	backing->pages[0] = list;
	vrdma_cmd_init_reply(cmd, VRDMA_OP_CREATE_MR, create_mr, create_mr);
	cmd->req.create_mr.mr = backing->handle;
	cmd->req.create_mr.pd = to_vpd(ibpd)->backing->handle;
	cmd->req.create_mr.access = access;
	cmd->req.create_mr.flags = flags;
	cmd->req.create_mr.length = length;
	err = vrdma_backing_create(backing, &cmd);
	if (err)
		goto err_mr;
	/* Once it has been deregistered, consumers free its memory. */
	backing->destroy.insist = true;
	mr->backing = backing;
	mr->ib.lkey = cmd->reply.create_mr.lkey;
	mr->ib.rkey = cmd->reply.create_mr.rkey;
	kfree(cmd);
	return &mr->ib;

err_mr:
	kfree(cmd);
	kfree(mr);
	return ERR_PTR(err);
}

/* All memory. There is no IOMMU to translate, so DMA addresses are those that the host knows. */
struct ib_mr *vrdma_get_dma_mr(struct ib_pd *ibpd, int access)
{
	access &= ~IB_ACCESS_OPTIONAL;
	if (access & ~VRDMA_DMA_ACCESS)
		return ERR_PTR(-EOPNOTSUPP);
	return vrdma_kmr_create(ibpd, VRDMA_MR_ALL_MEMORY, access, 0, NULL);
}

/* A region for fast registration. The list of its pages is one page, as the contract wants it. */
struct ib_mr *vrdma_alloc_mr(struct ib_pd *ibpd, enum ib_mr_type type, u32 max_num_sg)
{
	struct vrdma_pages *list;
	struct ib_mr *ibmr;

	if (type != IB_MR_TYPE_MEM_REG)
		return ERR_PTR(-EOPNOTSUPP);
	if (!max_num_sg || max_num_sg > VRDMA_FAST_REG_MAX_PAGES)
		return ERR_PTR(-EINVAL);
	list = vrdma_pages_alloc(1, false);
	if (IS_ERR(list))
		return ERR_CAST(list);
	ibmr = vrdma_kmr_create(ibpd, VRDMA_MR_FAST_REG, 0, (u64)max_num_sg * PAGE_SIZE, list);
	if (!IS_ERR(ibmr))
		to_vmr(ibmr)->max_pages = max_num_sg;
	return ibmr;
}

static u64 *vrdma_mr_list(struct vrdma_mr *mr)
{
	return page_address(mr->backing->pages[0]->page[0]);
}

static int vrdma_mr_add_page(struct ib_mr *ibmr, u64 addr)
{
	struct vrdma_mr *mr = to_vmr(ibmr);

	if (mr->num_pages == mr->max_pages)
		return -ENOMEM;
	vrdma_mr_list(mr)[mr->num_pages++] = addr;
	return 0;
}

/* Writes the list that the next registration hands to the host. */
int vrdma_map_mr_sg(struct ib_mr *ibmr, struct scatterlist *sg, int sg_nents,
		    unsigned int *sg_offset)
{
	to_vmr(ibmr)->num_pages = 0;
	return ib_sg_to_pages(ibmr, sg, sg_nents, sg_offset, vrdma_mr_add_page);
}

/* The host reads the list when it executes the request: until then the region is the consumer's. */
void vrdma_fill_reg(struct vrdma_reg_segment *out, const struct ib_reg_wr *wr)
{
	struct ib_mr *ibmr = wr->mr;

	*out = (struct vrdma_reg_segment) {
		.iova = ibmr->iova,
		.length = ibmr->length,
		.access = wr->access & ~IB_ACCESS_OPTIONAL,
		.page_shift = ilog2(ibmr->page_size),
		.list = virt_to_phys(vrdma_mr_list(to_vmr(ibmr))),
	};
}
