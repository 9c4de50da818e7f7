// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * What user space maps: the status page, doorbell areas and rings, which are ordinary memory and
 * stay readable after the device has gone; and the doorbell registers, whose mappings are zapped
 * when it goes.
 */
#include <linux/mm.h>
#include <linux/slab.h>

#include "vrdma.h"

static struct vrdma_mmap_entry *to_ventry(struct rdma_user_mmap_entry *rdma)
{
	return container_of(rdma, struct vrdma_mmap_entry, rdma);
}

/*
 * Makes @count pages mappable at *@offset. @pages are those of VRDMA_MMAP_PAGES. Returns an error
 * pointer on failure.
 */
struct vrdma_mmap_entry *vrdma_mmap_insert(struct ib_ucontext *ucontext, enum vrdma_mmap_kind kind,
					   struct vrdma_pages *pages, u32 count, u64 *offset)
{
	struct vrdma_mmap_entry *entry = kzalloc(sizeof(*entry), GFP_KERNEL_ACCOUNT);
	int err;

	if (!entry)
		return ERR_PTR(-ENOMEM);
	entry->kind = kind;
	entry->pages = pages;
	if (pages)
		vrdma_pages_get(pages);

	err = rdma_user_mmap_entry_insert(ucontext, &entry->rdma, (size_t)count * PAGE_SIZE);
	if (err) {
		vrdma_pages_put(pages);
		kfree(entry);
		return ERR_PTR(err);
	}
	*offset = rdma_user_mmap_get_offset(&entry->rdma);
	return entry;
}

/* Takes back what may be NULL or an error pointer. */
void vrdma_mmap_remove(struct vrdma_mmap_entry *entry)
{
	if (!IS_ERR_OR_NULL(entry))
		rdma_user_mmap_entry_remove(&entry->rdma);
}

/* The last reference has gone: the entry was removed, and no doorbell mapping of it is left. */
void vrdma_mmap_free(struct rdma_user_mmap_entry *rdma_entry)
{
	struct vrdma_mmap_entry *entry = to_ventry(rdma_entry);

	vrdma_pages_put(entry->pages);
	kfree(entry);
}

int vrdma_mmap(struct ib_ucontext *ucontext, struct vm_area_struct *vma)
{
	struct vrdma_ibdev *ibd = to_vibdev(ucontext->device);
	struct rdma_user_mmap_entry *rdma_entry;
	struct vrdma_mmap_entry *entry;
	unsigned long count;
	int err = -EINVAL;

	/* Finds only what belongs to this context, and only for MAP_SHARED and the exact length. */
	rdma_entry = rdma_user_mmap_entry_get(ucontext, vma);
	if (!rdma_entry)
		return -EINVAL;
	entry = to_ventry(rdma_entry);

	/* A child that wrote to its parent's rings would corrupt them. */
	vm_flags_set(vma, VM_DONTCOPY | VM_DONTEXPAND | VM_DONTDUMP);

	switch (entry->kind) {
	case VRDMA_MMAP_STATUS:
		if (vma->vm_flags & VM_WRITE) {
			err = -EPERM;
			break;
		}
		vm_flags_clear(vma, VM_MAYWRITE);
		err = vm_insert_page(vma, vma->vm_start, ibd->status_page);
		break;
	case VRDMA_MMAP_PAGES:
		count = entry->pages->count;
		err = vm_insert_pages(vma, vma->vm_start, entry->pages->page, &count);
		break;
	case VRDMA_MMAP_KICK:
		err = rdma_user_mmap_io(ucontext, vma, PHYS_PFN(ibd->dev->kick_base),
					(unsigned long)ibd->dev->cfg.num_db_slots * PAGE_SIZE,
					pgprot_noncached(vma->vm_page_prot), rdma_entry);
		break;
	}
	rdma_user_mmap_entry_put(rdma_entry);
	return err;
}
