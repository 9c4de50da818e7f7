/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * vrdma: an RDMA device whose verbs are executed by the host.
 *
 * Who owns what, from the outside in:
 *
 * - struct vrdma_dev lives as long as the virtio device is bound. It has the virtqueues.
 * - struct vrdma_ibdev lives as long as the host's objects (one epoch). When the epoch changes, or
 *   the device goes away, it is unregistered, which disassociates all user contexts, and a new
 *   one takes its place.
 * - struct vrdma_backing is what the host may touch on behalf of one object: rings, pinned
 *   memory, and the object's handle. It outlives the verbs object when the host has not yet
 *   confirmed that the object is gone; only a reset of the device sets it free unconfirmed.
 *
 * vrdma_abi.h, generated from the Rust crate vrdma-abi, is the contract with host and user space.
 */
#ifndef VRDMA_H
#define VRDMA_H

#include <linux/completion.h>
#include <linux/list.h>
#include <linux/log2.h>
#include <linux/mutex.h>
#include <linux/notifier.h>
#include <linux/spinlock.h>
#include <linux/virtio.h>
#include <linux/wait.h>
#include <linux/workqueue.h>
#include <linux/xarray.h>
#include <asm/byteorder.h>

#include "compat.h"
#include "vrdma_abi.h"

/* Virtio is little-endian, and so is the contract; nothing here swaps bytes. */
#ifndef __LITTLE_ENDIAN
#error "vrdma supports little-endian machines only"
#endif
/* Rings, doorbell pages and notify pages are mapped one by one into user space. */
static_assert(PAGE_SIZE == VRDMA_PAGE_BYTES);

#define VRDMA_PORT 1

/* How long a verb waits for the host. */
#define VRDMA_TIMEOUT (30 * HZ)
/* The same for a dying process: what is not confirmed by then is kept until it is. */
#define VRDMA_EXIT_TIMEOUT (10 * HZ)
/* The same while the device is removed: a reset follows. */
#define VRDMA_REMOVE_TIMEOUT (2 * HZ)

struct vrdma_backing;
struct vrdma_dev;
struct vrdma_ibdev;
struct vrdma_kcq;
struct vrdma_kqp;
struct vrdma_kwq;
struct vrdma_pages;

/* ---- Control queue (ctrl.c) ---- */

/*
 * A request and its reply. Once submitted it belongs to the device, even if nobody waits any more,
 * until the device returns it or is reset.
 */
struct vrdma_cmd {
	struct list_head entry; /* in vrdma_ctrl.inflight or .late */
	struct completion done;
	/* Takes over a command that came back after its caller had given up; may sleep. */
	void (*late)(struct vrdma_cmd *cmd);
	struct vrdma_backing *backing;
	u32 request_bytes;
	u32 reply_bytes;
	int status;
	bool insist; /* the caller waits even when it is being killed */
	bool returned;
	bool abandoned;
	struct {
		struct vrdma_request head;
		union {
			struct vrdma_device_init device_init;
			struct vrdma_add_gid add_gid;
			struct vrdma_del_gid del_gid;
			struct vrdma_destroy destroy;
			struct vrdma_create_context create_context;
			struct vrdma_create_pd create_pd;
			struct vrdma_create_mr create_mr;
			struct vrdma_create_cq create_cq;
			struct vrdma_create_qp create_qp;
			struct vrdma_modify_qp modify_qp;
			struct vrdma_rereg_mr rereg_mr;
			struct vrdma_create_mw create_mw;
			struct vrdma_resize_cq resize_cq;
			struct vrdma_create_srq create_srq;
			struct vrdma_modify_srq modify_srq;
			struct vrdma_create_xrcd create_xrcd;
			struct vrdma_query_counters query_counters;
		};
	} req ____cacheline_aligned;
	struct {
		struct vrdma_reply head;
		union {
			struct vrdma_create_mr_reply create_mr;
			struct vrdma_create_cq_reply create_cq;
			struct vrdma_create_qp_reply create_qp;
			struct vrdma_query_qp_reply query_qp;
			struct vrdma_create_mw_reply create_mw;
			struct vrdma_create_srq_reply create_srq;
			struct vrdma_query_srq_reply query_srq;
		};
	} reply ____cacheline_aligned;
};

struct vrdma_ctrl {
	spinlock_t lock; /* protects all below and the virtqueue */
	struct virtqueue *vq; /* NULL: no command can be submitted */
	u64 epoch;
	u32 next_tag;
	bool stalled; /* a command timed out, and none came back since */
	struct list_head inflight;
	struct list_head late;
	struct work_struct late_work;
	wait_queue_head_t space;
};

/* Prepares the request with the given member of vrdma_cmd.req, without a reply body. */
#define vrdma_cmd_init(cmd, op, member) \
	__vrdma_cmd_init(cmd, op, sizeof((cmd)->req.member), 0)
/* The same, with the given member of vrdma_cmd.reply. */
#define vrdma_cmd_init_reply(cmd, op, member, answer) \
	__vrdma_cmd_init(cmd, op, sizeof((cmd)->req.member), sizeof((cmd)->reply.answer))

void __vrdma_cmd_init(struct vrdma_cmd *cmd, u16 opcode, size_t request_bytes, size_t reply_bytes);
struct vrdma_cmd *vrdma_cmd_alloc(void);
int vrdma_ctrl_exec(struct vrdma_dev *dev, struct vrdma_cmd **cmd, unsigned long timeout);
void vrdma_ctrl_init(struct vrdma_dev *dev);
void vrdma_ctrl_open(struct vrdma_dev *dev, struct virtqueue *vq, u64 epoch);
void vrdma_ctrl_close(struct vrdma_dev *dev);
void vrdma_ctrl_drain(struct vrdma_dev *dev, struct virtqueue *vq);
void vrdma_ctrl_done(struct virtqueue *vq);

/* ---- The virtio device (main.c, notify.c, event.c) ---- */

struct vrdma_dev {
	struct virtio_device *vdev;
	struct workqueue_struct *wq;
	struct delayed_work monitor;
	bool removing; /* written under ctrl.lock: the monitor is queued no more */
	bool need_reset; /* the device must be reset before it can be started again */
	bool vqs_found;
	struct delayed_work watch; /* looks after a host that the kernel's consumers wait for */
	bool silent; /* it does not answer */
	bool up; /* started, and not being stopped */
	u64 dead_epoch; /* the last one in which the host gave the device up, or 0 */
	unsigned long retry; /* time until the next attempt to start */
	struct vrdma_config cfg; /* of this epoch; link_state and active_mtu may change */
	unsigned int num_vqs;
	struct virtqueue **vqs;
	struct vrdma_ctrl ctrl;
	struct vrdma_async_event *events;
	struct vrdma_comp_event **comp_events;
	phys_addr_t kick_base; /* notify page of doorbell slot 0; the others follow */
	struct vrdma_ibdev *ibd; /* set before the queues run, cleared after the reset */
	bool stats_pause; /* the host did not tell its counters in time */
	unsigned long stats_until; /* then it is not asked before this time */
};

/* The host's optional parts of the contract that are used: all that there are, and not by this module itself. */
static inline u64 vrdma_features(const struct vrdma_config *cfg)
{
	return cfg->features & VRDMA_FEATURE_STEER;
}

/* Paths that a queue pair can have. Hosts before version 1.3 know only one. */
static inline u32 vrdma_paths(const struct vrdma_config *cfg)
{
	return cfg->abi_minor < 3 ? 1 : cfg->paths;
}

void vrdma_poke_monitor(struct vrdma_dev *dev, unsigned long delay);
void vrdma_watch_host(struct vrdma_dev *dev);

int vrdma_find_doorbells(struct vrdma_dev *dev, phys_addr_t *base);

int vrdma_events_post(struct vrdma_dev *dev);
void vrdma_events_kick(struct vrdma_dev *dev);
void vrdma_events_free(struct vrdma_dev *dev);
void vrdma_async_done(struct virtqueue *vq);
void vrdma_comp_done(struct virtqueue *vq);

/* ---- Memory for the host (pages.c) ---- */

/* Pages of a ring or doorbell area. */
struct vrdma_pages {
	refcount_t refs;
	u32 count;
	struct mm_struct *mm; /* whose RLIMIT_MEMLOCK is charged; NULL for the kernel's own */
	struct page *page[] __counted_by(count);
};

struct vrdma_pages *vrdma_pages_alloc(u32 count, bool charge);
struct vrdma_pages *vrdma_ring_pages_alloc(u32 entries, u8 stride_shift, struct ib_udata *udata);
void vrdma_pages_get(struct vrdma_pages *pages);
void vrdma_pages_put(struct vrdma_pages *pages);

/* Writes a list of pages as the contract's radix tree of tables. */
struct vrdma_table {
	struct list_head level; /* the tables of the level that is being written */
	struct list_head done; /* the tables of the levels below */
	u32 tables; /* in level */
	u32 fill; /* entries of the last table of level */
	u64 count; /* pages in the list */
};

void vrdma_table_init(struct vrdma_table *table);
int vrdma_table_add(struct vrdma_table *table, u64 addr);
int vrdma_table_finish(struct vrdma_table *table, u8 page_shift, struct vrdma_page_table *out);
void vrdma_table_free(struct vrdma_table *table);
int vrdma_table_write(struct vrdma_table *table, const struct vrdma_pages *pages,
		      struct vrdma_page_table *out);

/* ---- What the host may touch for one object (backing.c) ---- */

/* Those of a queue pair: send queue, receive queue, chunk ring. */
#define VRDMA_RINGS_MAX 3

struct vrdma_backing {
	struct vrdma_ibdev *ibd;
	struct list_head entry; /* in vrdma_ibdev.zombies */
	u32 handle;
	struct ib_umem *umem;
	struct vrdma_pages *pages[VRDMA_RINGS_MAX];
	/*
	 * What takes the place of umem or pages[0] when the host agrees to a change; without its answer
	 * they stay here.
	 */
	struct ib_umem *next_umem;
	struct vrdma_pages *next_pages;
	struct vrdma_table table[VRDMA_RINGS_MAX]; /* only while the object is created */
	struct vrdma_cmd destroy;
};

/* A command that changes the memory of an object. */
struct vrdma_change {
	struct vrdma_cmd cmd;
	struct vrdma_table table;
};

struct vrdma_backing *vrdma_backing_alloc(struct vrdma_ibdev *ibd, u16 destroy_op,
					  struct vrdma_cmd **create);
int vrdma_backing_create(struct vrdma_backing *backing, struct vrdma_cmd **cmd);
int vrdma_ring_alloc(struct vrdma_backing *backing, int index, u32 entries, u8 stride_shift,
		     struct ib_udata *udata, struct vrdma_page_table *out);
struct vrdma_change *vrdma_change_alloc(struct vrdma_backing *backing);
void vrdma_change_cancel(struct vrdma_backing *backing, struct vrdma_change *change);
int vrdma_change_exec(struct vrdma_backing *backing, struct vrdma_change *change);
void vrdma_backing_retire(struct vrdma_backing *backing);
int vrdma_backing_try_retire(struct vrdma_backing *backing);
void vrdma_backing_free(struct vrdma_backing *backing);
void vrdma_zombies_init(struct vrdma_ibdev *ibd);
void vrdma_zombies_free(struct vrdma_ibdev *ibd);

/* ---- The RDMA device of one epoch (ibdev.c, netdev.c, gid.c) ---- */

/* An entry of the GID table: what the RDMA core wants, and what the host has been told. */
struct vrdma_gid_slot {
	u8 gid[16];
	bool present;
	u32 wanted; /* version of gid and present */
	u32 told; /* version that the host has answered */
	int err; /* its answer */
	bool late; /* nobody waits for the answer */
};

/*
 * The module's own context at the host: what the kernel's consumers make is in it. pages[0] of the
 * backing are its doorbell pages, one for each slot.
 */
struct vrdma_kctx {
	struct vrdma_backing *backing;
};

struct vrdma_ibdev {
	struct ib_device ib;
	struct vrdma_dev *dev;
	bool registered;

	struct page *status_page;
	struct vrdma_kctx kctx;
	bool lost; /* the host has nothing of ours any more: see kverbs.h */
	struct work_struct flush_work;

	/* Objects by handle. Events use them under the lock, and thus never after their end. */
	struct xarray objects;
	u32 next_handle;

	spinlock_t zombie_lock;
	struct list_head zombies; /* backings whose end the host has refused to confirm */
	struct delayed_work zombie_work;

	/* The paired network interface: written under RTNL. */
	struct notifier_block netdev_nb;
	struct net_device *netdev;
	bool netdev_up;
	int netdev_mtu;
	bool rescan;
	bool port_active; /* as last reported */
	struct work_struct link_work;

	spinlock_t gid_lock;
	struct vrdma_gid_slot gids[VRDMA_GID_TABLE_LEN];
	wait_queue_head_t gid_wait;
	struct work_struct gid_work;
};

static inline struct vrdma_ibdev *to_vibdev(struct ib_device *ib)
{
	return container_of(ib, struct vrdma_ibdev, ib);
}

struct vrdma_ibdev *vrdma_ibdev_alloc(struct vrdma_dev *dev);
int vrdma_ibdev_register(struct vrdma_ibdev *ibd);
void vrdma_ibdev_unregister(struct vrdma_ibdev *ibd);
void vrdma_ibdev_free(struct vrdma_ibdev *ibd);
void vrdma_ibdev_set_gone(struct vrdma_ibdev *ibd);
bool vrdma_port_is_active(struct vrdma_ibdev *ibd);
enum ib_mtu vrdma_active_mtu(struct vrdma_ibdev *ibd);
void vrdma_dispatch(struct vrdma_ibdev *ibd, enum ib_event_type type);

void vrdma_netdev_init(struct vrdma_ibdev *ibd);
void vrdma_link_changed(struct vrdma_ibdev *ibd);

void vrdma_gid_init(struct vrdma_ibdev *ibd);
int vrdma_add_gid(const struct ib_gid_attr *attr, void **context);
int vrdma_del_gid(const struct ib_gid_attr *attr, void **context);

/* ---- Counters (stats.c) ---- */

struct rdma_hw_stats *vrdma_alloc_port_stats(struct ib_device *ib, u32 port);
int vrdma_get_hw_stats(struct ib_device *ib, struct rdma_hw_stats *stats, u32 port, int index);

/* ---- Verbs (ucontext.c, mmap.c, ah.c, mr.c, mw.c, cq.c, srq.c, xrc.c, qp.c) ---- */

#define VRDMA_CQE_SHIFT ilog2(VRDMA_CQE_BYTES)
static_assert(VRDMA_CQE_BYTES == sizeof(struct vrdma_cqe));

enum vrdma_object_kind {
	VRDMA_OBJECT_CQ,
	VRDMA_OBJECT_QP,
	VRDMA_OBJECT_SRQ,
};

/* What vrdma_ibdev.objects holds, embedded in the object. */
struct vrdma_object {
	enum vrdma_object_kind kind;
};

enum vrdma_mmap_kind {
	VRDMA_MMAP_STATUS, /* the device's status page, read-only */
	VRDMA_MMAP_PAGES, /* a ring or the doorbell area */
	VRDMA_MMAP_KICK, /* the doorbell registers */
};

struct vrdma_mmap_entry {
	struct rdma_user_mmap_entry rdma;
	enum vrdma_mmap_kind kind;
	struct vrdma_pages *pages;
};

struct vrdma_ucontext {
	struct ib_ucontext ib;
	struct vrdma_backing *backing;
	struct vrdma_mmap_entry *status;
	struct vrdma_mmap_entry *doorbells;
	struct vrdma_mmap_entry *kick;
};

struct vrdma_pd {
	struct ib_pd ib;
	struct vrdma_backing *backing;
};

/* The host knows no address handles: one is a part of each work request, without qkey and dest_qpn. */
struct vrdma_ah {
	struct ib_ah ib;
	struct vrdma_datagram_segment av;
};

struct vrdma_mr {
	struct ib_mr ib;
	struct vrdma_backing *backing;
	int access; /* VRDMA_ACCESS_ bits */
	/* Of fast registration: the pages in its list, and the most that it may have. */
	u32 num_pages;
	u32 max_pages;
};

struct vrdma_mw {
	struct ib_mw ib;
	struct vrdma_backing *backing;
};

struct vrdma_xrcd {
	struct ib_xrcd ib;
	struct vrdma_backing *backing;
};

struct vrdma_cq {
	struct ib_cq ib;
	struct vrdma_object object;
	struct vrdma_backing *backing;
	struct vrdma_kcq *kernel; /* NULL for one of user space */
	struct mutex lock; /* serialises resize_cq, and protects ring */
	struct vrdma_mmap_entry *ring;
	u32 ring_format;
};

struct vrdma_srq {
	struct ib_srq ib;
	struct vrdma_object object;
	struct vrdma_backing *backing;
	struct vrdma_kwq *kernel; /* NULL for one of user space */
	struct vrdma_mmap_entry *ring;
	u32 max_wr;
	u32 max_sge;
};

struct vrdma_qp {
	struct ib_qp ib;
	struct vrdma_object object;
	struct vrdma_backing *backing;
	struct vrdma_kqp *kernel; /* NULL for one of user space */
	struct vrdma_mmap_entry *sq;
	struct vrdma_mmap_entry *rq;
	struct vrdma_mmap_entry *chunks;
	struct ib_qp_cap cap;
	enum ib_sig_type sig_type;
	struct mutex lock; /* serialises modify_qp and query_qp, and protects state */
	enum ib_qp_state state; /* as far as the guest knows */
	u8 dmac[ETH_ALEN];
};

static inline struct vrdma_ucontext *to_vucontext(struct ib_ucontext *ib)
{
	return container_of(ib, struct vrdma_ucontext, ib);
}

/* The context of a call from user space. */
static inline struct vrdma_ucontext *vrdma_udata_context(struct ib_udata *udata)
{
	return rdma_udata_to_drv_context(udata, struct vrdma_ucontext, ib);
}

static inline struct vrdma_pd *to_vpd(struct ib_pd *ib)
{
	return container_of(ib, struct vrdma_pd, ib);
}

static inline struct vrdma_ah *to_vah(struct ib_ah *ib)
{
	return container_of(ib, struct vrdma_ah, ib);
}

static inline struct vrdma_mr *to_vmr(struct ib_mr *ib)
{
	return container_of(ib, struct vrdma_mr, ib);
}

static inline struct vrdma_mw *to_vmw(struct ib_mw *ib)
{
	return container_of(ib, struct vrdma_mw, ib);
}

static inline struct vrdma_xrcd *to_vxrcd(struct ib_xrcd *ib)
{
	return container_of(ib, struct vrdma_xrcd, ib);
}

static inline struct vrdma_srq *to_vsrq(struct ib_srq *ib)
{
	return container_of(ib, struct vrdma_srq, ib);
}

static inline struct vrdma_cq *to_vcq(struct ib_cq *ib)
{
	return container_of(ib, struct vrdma_cq, ib);
}

static inline struct vrdma_qp *to_vqp(struct ib_qp *ib)
{
	return container_of(ib, struct vrdma_qp, ib);
}

void vrdma_object_publish(struct vrdma_backing *backing, struct vrdma_object *object);
void vrdma_object_hide(struct vrdma_backing *backing);

int vrdma_reply_to_user(struct ib_udata *udata, const void *reply, size_t bytes, size_t least);

struct vrdma_mmap_entry *vrdma_mmap_insert(struct ib_ucontext *ucontext, enum vrdma_mmap_kind kind,
					   struct vrdma_pages *pages, u32 count, u64 *offset);
void vrdma_mmap_remove(struct vrdma_mmap_entry *entry);
int vrdma_mmap(struct ib_ucontext *ucontext, struct vm_area_struct *vma);
void vrdma_mmap_free(struct rdma_user_mmap_entry *rdma_entry);

int vrdma_alloc_ucontext(struct ib_ucontext *ucontext, struct ib_udata *udata);
void vrdma_dealloc_ucontext(struct ib_ucontext *ucontext);
void vrdma_disassociate_ucontext(struct ib_ucontext *ucontext);
int vrdma_kctx_create(struct vrdma_ibdev *ibd);
void vrdma_kctx_destroy(struct vrdma_ibdev *ibd);
u32 vrdma_context_handle(struct vrdma_ibdev *ibd, struct ib_udata *udata);
int vrdma_alloc_pd(struct ib_pd *ibpd, struct ib_udata *udata);
int vrdma_dealloc_pd(struct ib_pd *ibpd, struct ib_udata *udata);

int vrdma_create_ah(struct ib_ah *ibah, struct rdma_ah_init_attr *init, struct ib_udata *udata);
int vrdma_destroy_ah(struct ib_ah *ibah, u32 flags);

struct ib_mr *vrdma_reg_user_mr(struct ib_pd *ibpd, u64 start, u64 length, u64 iova, int access,
				struct ib_udata *udata);
struct ib_mr *vrdma_rereg_user_mr(struct ib_mr *ibmr, int flags, u64 start, u64 length, u64 iova,
				  int access, struct ib_pd *pd, struct ib_udata *udata);
int vrdma_dereg_mr(struct ib_mr *ibmr, struct ib_udata *udata);

int vrdma_alloc_mw(struct ib_mw *ibmw, struct ib_udata *udata);
int vrdma_dealloc_mw(struct ib_mw *ibmw);

int vrdma_create_cq(struct ib_cq *ibcq, const struct ib_cq_init_attr *attr, VRDMA_CREATE_CQ_ARG);
int vrdma_resize_cq(struct ib_cq *ibcq, int cqe, struct ib_udata *udata);
int vrdma_destroy_cq(struct ib_cq *ibcq, struct ib_udata *udata);

int vrdma_create_srq(struct ib_srq *ibsrq, struct ib_srq_init_attr *attr, struct ib_udata *udata);
int vrdma_modify_srq(struct ib_srq *ibsrq, struct ib_srq_attr *attr, enum ib_srq_attr_mask mask,
		     struct ib_udata *udata);
int vrdma_query_srq(struct ib_srq *ibsrq, struct ib_srq_attr *attr);
int vrdma_destroy_srq(struct ib_srq *ibsrq, struct ib_udata *udata);

int vrdma_alloc_xrcd(struct ib_xrcd *ibxrcd, struct ib_udata *udata);
int vrdma_dealloc_xrcd(struct ib_xrcd *ibxrcd, struct ib_udata *udata);

u8 vrdma_recv_stride_shift(u32 max_sge);

int vrdma_create_qp(struct ib_qp *ibqp, struct ib_qp_init_attr *attr, struct ib_udata *udata);
int vrdma_modify_qp(struct ib_qp *ibqp, struct ib_qp_attr *attr, int mask, struct ib_udata *udata);
int vrdma_query_qp(struct ib_qp *ibqp, struct ib_qp_attr *attr, int mask,
		   struct ib_qp_init_attr *init);
int vrdma_destroy_qp(struct ib_qp *ibqp, struct ib_udata *udata);

#endif /* VRDMA_H */
