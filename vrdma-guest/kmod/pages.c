// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Memory that the host reads and writes: the pages of rings, and the tables that name pages.
 */
#include <linux/capability.h>
#include <linux/mm.h>
#include <linux/sched/mm.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>

#include "vrdma.h"

#define VRDMA_TABLE_ENTRIES (VRDMA_PAGE_BYTES / sizeof(u64))

static void vrdma_uncharge(struct mm_struct *mm, u32 count)
{
	atomic64_sub(count, &mm->pinned_vm);
}

/* Charges as ib_umem_get() does, so that rings and regions share one limit. */
static int vrdma_charge(struct mm_struct *mm, u32 count)
{
	unsigned long limit = rlimit(RLIMIT_MEMLOCK) >> PAGE_SHIFT;

	if (atomic64_add_return(count, &mm->pinned_vm) > limit && !capable(CAP_IPC_LOCK)) {
		vrdma_uncharge(mm, count);
		return -ENOMEM;
	}
	return 0;
}

/*
 * Returns zeroed pages, or an error pointer. They need not be contiguous. Those for user space are
 * to be charged, to the calling process.
 */
struct vrdma_pages *vrdma_pages_alloc(u32 count, bool charge)
{
	struct mm_struct *mm = charge ? current->mm : NULL;
	struct vrdma_pages *pages;
	int err = 0;

	if (mm)
		err = vrdma_charge(mm, count);
	if (err)
		return ERR_PTR(err);

	pages = kvzalloc(struct_size(pages, page, count), GFP_KERNEL_ACCOUNT);
	if (!pages) {
		if (mm)
			vrdma_uncharge(mm, count);
		return ERR_PTR(-ENOMEM);
	}
	refcount_set(&pages->refs, 1);
	pages->count = count;
	if (mm)
		mmgrab(mm);
	pages->mm = mm;

	for (u32 i = 0; i < count; i++) {
		pages->page[i] = alloc_page(GFP_KERNEL_ACCOUNT | __GFP_ZERO);
		err = pages->page[i] ? 0 : -ENOMEM;
		if (fatal_signal_pending(current))
			err = -EINTR;
		if (err) {
			vrdma_pages_put(pages);
			return ERR_PTR(err);
		}
		cond_resched();
	}
	return pages;
}

/*
 * Returns the pages of a ring of @entries and the header before them, which takes the place of one.
 * User space, which has @udata, is charged.
 */
struct vrdma_pages *vrdma_ring_pages_alloc(u32 entries, u8 stride_shift, struct ib_udata *udata)
{
	u32 count = DIV_ROUND_UP_ULL(((u64)entries + 1) << stride_shift, PAGE_SIZE);

	return vrdma_pages_alloc(count, udata != NULL);
}

void vrdma_pages_get(struct vrdma_pages *pages)
{
	refcount_inc(&pages->refs);
}

/* Mappings hold the pages themselves, so user space may keep what it has mapped. */
void vrdma_pages_put(struct vrdma_pages *pages)
{
	if (!pages || !refcount_dec_and_test(&pages->refs))
		return;
	for (u32 i = 0; i < pages->count && pages->page[i]; i++)
		put_page(pages->page[i]);
	if (pages->mm) {
		vrdma_uncharge(pages->mm, pages->count);
		mmdrop(pages->mm);
	}
	kvfree(pages);
}

void vrdma_table_init(struct vrdma_table *table)
{
	INIT_LIST_HEAD(&table->level);
	INIT_LIST_HEAD(&table->done);
	table->tables = 0;
	table->fill = 0;
	table->count = 0;
}

/* Appends an address to the level that is being written. */
static int vrdma_table_append(struct vrdma_table *table, u64 addr)
{
	struct page *page;
	u64 *entries;

	if (!table->tables || table->fill == VRDMA_TABLE_ENTRIES) {
		page = alloc_page(GFP_KERNEL | __GFP_ZERO);
		if (!page)
			return -ENOMEM;
		list_add_tail(&page->lru, &table->level);
		table->tables++;
		table->fill = 0;
	}
	page = list_last_entry(&table->level, struct page, lru);
	entries = page_address(page);
	entries[table->fill++] = addr;
	return 0;
}

/* Appends a page to the list. */
int vrdma_table_add(struct vrdma_table *table, u64 addr)
{
	table->count++;
	return vrdma_table_append(table, addr);
}

/* Writes the levels above the pages and describes the whole for the host. */
int vrdma_table_finish(struct vrdma_table *table, u8 page_shift, struct vrdma_page_table *out)
{
	struct page *page;
	LIST_HEAD(below);
	u8 levels = 1;
	int err = 0;

	if (!table->count)
		return -EINVAL;
	if (table->count > U32_MAX)
		return -E2BIG;

	while (table->tables > 1 && !err) {
		list_splice_tail_init(&table->level, &below);
		table->tables = 0;
		list_for_each_entry(page, &below, lru) {
			err = vrdma_table_append(table, page_to_phys(page));
			if (err)
				break;
		}
		list_splice_tail_init(&below, &table->done);
		levels++;
	}
	if (err)
		return err;
	if (levels > VRDMA_PAGE_TABLE_MAX_LEVELS)
		return -E2BIG;

	page = list_first_entry(&table->level, struct page, lru);
	out->count = table->count;
	out->page_shift = page_shift;
	out->reserved = 0;
	if (table->count == 1) {
		out->addr = *(u64 *)page_address(page);
		out->levels = 0;
	} else {
		out->addr = page_to_phys(page);
		out->levels = levels;
	}
	return 0;
}

static void vrdma_table_free_list(struct list_head *list)
{
	struct page *page, *next;

	list_for_each_entry_safe(page, next, list, lru) {
		list_del(&page->lru);
		__free_page(page);
	}
}

void vrdma_table_free(struct vrdma_table *table)
{
	vrdma_table_free_list(&table->level);
	vrdma_table_free_list(&table->done);
	vrdma_table_init(table);
}

/* Lists the pages of a ring or doorbell area. */
int vrdma_table_write(struct vrdma_table *table, const struct vrdma_pages *pages,
		      struct vrdma_page_table *out)
{
	int err;

	for (u32 i = 0; i < pages->count; i++) {
		err = vrdma_table_add(table, page_to_phys(pages->page[i]));
		if (err)
			return err;
	}
	return vrdma_table_finish(table, PAGE_SHIFT, out);
}
