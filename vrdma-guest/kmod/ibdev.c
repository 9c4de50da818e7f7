// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * The RDMA device of one epoch: registration, and what it says of itself and its port.
 */
#include <linux/dma-mapping.h>
#include <linux/etherdevice.h>
#include <linux/gfp.h>
#include <linux/netdevice.h>
#include <net/addrconf.h>
#include <rdma/ib_addr.h>
#include <rdma/ib_mad.h>

#include "kverbs.h"

#define VRDMA_PKEY 0xffff
#define VRDMA_VENDOR_ID 0x1af4
/* The PCI device id of virtio id 42. Tools that tune for known hardware do not know it. */
#define VRDMA_PART_ID (0x1040 + VRDMA_VIRTIO_ID)
/* Local CA ACK delay: 4.096 us * 2^15, about 134 ms, as software devices need on a busy host. */
#define VRDMA_ACK_DELAY 15
/* Completions are timed in nanoseconds. */
#define VRDMA_CLOCK_KHZ 1000000

static const struct vrdma_config *vrdma_cfg(struct ib_device *ib)
{
	return &to_vibdev(ib)->dev->cfg;
}

static int vrdma_query_device(struct ib_device *ib, struct ib_device_attr *attr,
			      struct ib_udata *udata)
{
	const struct vrdma_config *cfg = vrdma_cfg(ib);

	attr->fw_ver = (u64)cfg->abi_major << 32 | (u64)cfg->abi_minor << 16;
	attr->sys_image_guid = ib->node_guid;
	attr->vendor_id = VRDMA_VENDOR_ID;
	attr->vendor_part_id = VRDMA_PART_ID;
	attr->hw_ver = 1;
	attr->device_cap_flags = IB_DEVICE_CURR_QP_STATE_MOD | IB_DEVICE_PORT_ACTIVE_EVENT |
				 IB_DEVICE_SYS_IMAGE_GUID | IB_DEVICE_RC_RNR_NAK_GEN |
				 IB_DEVICE_MEM_MGT_EXTENSIONS;
	if (cfg->max_mws)
		attr->device_cap_flags |= IB_DEVICE_MEM_WINDOW | IB_DEVICE_MEM_WINDOW_TYPE_2B;
	if (cfg->max_srqs)
		attr->device_cap_flags |= IB_DEVICE_XRC;
	attr->atomic_cap = IB_ATOMIC_HCA;
	attr->max_mr_size = cfg->max_mr_bytes;
	attr->page_size_cap = cfg->page_size_cap;
	attr->max_qp = min_t(u32, cfg->max_qps, INT_MAX);
	attr->max_qp_wr = min_t(u32, cfg->max_qp_wr, INT_MAX);
	attr->max_send_sge = cfg->max_send_sge;
	attr->max_recv_sge = cfg->max_recv_sge;
	attr->max_sge_rd = cfg->max_send_sge;
	attr->max_cq = min_t(u32, cfg->max_cqs, INT_MAX);
	attr->max_cqe = min_t(u32, cfg->max_cqe, INT_MAX);
	attr->max_mr = min_t(u32, cfg->max_mrs, INT_MAX);
	attr->max_mw = min_t(u32, cfg->max_mws, INT_MAX);
	attr->max_pd = min_t(u32, cfg->max_pds, INT_MAX);
	attr->max_srq = min_t(u32, cfg->max_srqs, INT_MAX);
	attr->max_srq_wr = min_t(u32, cfg->max_srq_wr, INT_MAX);
	attr->max_srq_sge = cfg->max_srq_sge;
	/* Address handles are the guest's alone. */
	attr->max_ah = INT_MAX;
	attr->max_qp_rd_atom = cfg->max_dest_rd_atomic;
	attr->max_qp_init_rd_atom = cfg->max_rd_atomic;
	attr->max_res_rd_atom = min_t(u64, (u64)cfg->max_qps * cfg->max_dest_rd_atomic, INT_MAX);
	attr->max_fast_reg_page_list_len = VRDMA_FAST_REG_MAX_PAGES;
	attr->max_pkeys = 1;
	attr->local_ca_ack_delay = VRDMA_ACK_DELAY;
	attr->timestamp_mask = U64_MAX;
	attr->hca_core_clock = VRDMA_CLOCK_KHZ;
	return 0;
}

static void vrdma_get_fw_str(struct ib_device *ib, char *str)
{
	const struct vrdma_config *cfg = vrdma_cfg(ib);

	snprintf(str, IB_FW_VERSION_NAME_MAX, "%u.%u", cfg->abi_major, cfg->abi_minor);
}

/* States the fastest rate that verbs can name and the link reaches. */
static void vrdma_link_rate(u32 mbits_per_sec, struct ib_port_attr *attr)
{
	static const struct {
		u32 mbits_per_sec;
		u16 speed;
		u8 width;
	} rates[] = {
		{ 400000, IB_SPEED_NDR, IB_WIDTH_4X },
		{ 200000, IB_SPEED_HDR, IB_WIDTH_4X },
		{ 100000, IB_SPEED_EDR, IB_WIDTH_4X },
		{ 50000, IB_SPEED_EDR, IB_WIDTH_2X },
		{ 40000, IB_SPEED_QDR, IB_WIDTH_4X },
		{ 25000, IB_SPEED_EDR, IB_WIDTH_1X },
		{ 10000, IB_SPEED_QDR, IB_WIDTH_1X },
	};

	attr->active_speed = IB_SPEED_SDR;
	attr->active_width = IB_WIDTH_1X;
	for (int i = 0; i < ARRAY_SIZE(rates); i++) {
		if (mbits_per_sec >= rates[i].mbits_per_sec) {
			attr->active_speed = rates[i].speed;
			attr->active_width = rates[i].width;
			return;
		}
	}
}

/* The largest path MTU that both the network interface and the underlay carry. */
enum ib_mtu vrdma_active_mtu(struct vrdma_ibdev *ibd)
{
	enum ib_mtu underlay = clamp_t(u8, READ_ONCE(ibd->dev->cfg.active_mtu), IB_MTU_256,
				       IB_MTU_4096);
	int netdev_mtu = READ_ONCE(ibd->netdev_mtu);
	enum ib_mtu mtu;

	if (!netdev_mtu)
		return underlay;
	mtu = iboe_get_mtu(netdev_mtu) ?: IB_MTU_256;
	return min(mtu, underlay);
}

bool vrdma_port_is_active(struct vrdma_ibdev *ibd)
{
	return READ_ONCE(ibd->netdev_up) &&
	       READ_ONCE(ibd->dev->cfg.link_state) == VRDMA_LINK_ACTIVE;
}

/* Never fails: an error during registration would end it, and the port may come up later. */
static int vrdma_query_port(struct ib_device *ib, u32 port, struct ib_port_attr *attr)
{
	struct vrdma_ibdev *ibd = to_vibdev(ib);
	const struct vrdma_config *cfg = &ibd->dev->cfg;

	if (vrdma_port_is_active(ibd)) {
		attr->state = IB_PORT_ACTIVE;
		attr->phys_state = IB_PORT_PHYS_STATE_LINK_UP;
	} else {
		attr->state = IB_PORT_DOWN;
		attr->phys_state = IB_PORT_PHYS_STATE_DISABLED;
	}
	attr->max_mtu = IB_MTU_4096;
	attr->active_mtu = vrdma_active_mtu(ibd);
	attr->gid_tbl_len = VRDMA_GID_TABLE_LEN;
	attr->ip_gids = true;
	attr->port_cap_flags = IB_PORT_CM_SUP;
	attr->max_msg_sz = cfg->max_msg_bytes;
	attr->pkey_tbl_len = 1;
	attr->max_vl_num = 1;
	vrdma_link_rate(cfg->link_mbits_per_sec, attr);
	return 0;
}

/* RoCE v2 only, with MADs and the connection manager. */
static int vrdma_get_port_immutable(struct ib_device *ib, u32 port,
				    struct ib_port_immutable *immutable)
{
	immutable->gid_tbl_len = VRDMA_GID_TABLE_LEN;
	immutable->pkey_tbl_len = 1;
	immutable->core_cap_flags = RDMA_CORE_PORT_IBA_ROCE_UDP_ENCAP;
	immutable->max_mad_size = IB_MGMT_MAD_SIZE;
	return 0;
}

static enum rdma_link_layer vrdma_get_link_layer(struct ib_device *ib, u32 port)
{
	return IB_LINK_LAYER_ETHERNET;
}

static int vrdma_query_pkey(struct ib_device *ib, u32 port, u16 index, u16 *pkey)
{
	if (index)
		return -EINVAL;
	*pkey = VRDMA_PKEY;
	return 0;
}

static const struct ib_device_ops vrdma_ops = {
	.owner = THIS_MODULE,
	.driver_id = RDMA_DRIVER_UNKNOWN,
	.uverbs_abi_ver = VRDMA_UVERBS_ABI,

	.add_gid = vrdma_add_gid,
	.alloc_hw_port_stats = vrdma_alloc_port_stats,
	.alloc_mr = vrdma_alloc_mr,
	.alloc_mw = vrdma_alloc_mw,
	.alloc_pd = vrdma_alloc_pd,
	.alloc_ucontext = vrdma_alloc_ucontext,
	.alloc_xrcd = vrdma_alloc_xrcd,
	.create_ah = vrdma_create_ah,
	.create_cq = vrdma_create_cq,
	.create_qp = vrdma_create_qp,
	.create_srq = vrdma_create_srq,
	.create_user_ah = vrdma_create_ah,
	.dealloc_mw = vrdma_dealloc_mw,
	.dealloc_pd = vrdma_dealloc_pd,
	.dealloc_ucontext = vrdma_dealloc_ucontext,
	.dealloc_xrcd = vrdma_dealloc_xrcd,
	.del_gid = vrdma_del_gid,
	.dereg_mr = vrdma_dereg_mr,
	.destroy_ah = vrdma_destroy_ah,
	.destroy_cq = vrdma_destroy_cq,
	.destroy_qp = vrdma_destroy_qp,
	.destroy_srq = vrdma_destroy_srq,
	.disassociate_ucontext = vrdma_disassociate_ucontext,
	.get_dev_fw_str = vrdma_get_fw_str,
	.get_dma_mr = vrdma_get_dma_mr,
	.get_hw_stats = vrdma_get_hw_stats,
	.get_link_layer = vrdma_get_link_layer,
	.get_port_immutable = vrdma_get_port_immutable,
	.map_mr_sg = vrdma_map_mr_sg,
	.mmap = vrdma_mmap,
	.mmap_free = vrdma_mmap_free,
	.modify_qp = vrdma_modify_qp,
	.modify_srq = vrdma_modify_srq,
	.poll_cq = vrdma_poll_cq,
	.post_recv = vrdma_post_recv,
	.post_send = vrdma_post_send,
	.post_srq_recv = vrdma_post_srq_recv,
	.query_device = vrdma_query_device,
	.query_pkey = vrdma_query_pkey,
	.query_port = vrdma_query_port,
	.query_qp = vrdma_query_qp,
	.query_srq = vrdma_query_srq,
	.reg_user_mr = vrdma_reg_user_mr,
	.req_notify_cq = vrdma_req_notify_cq,
	.rereg_user_mr = vrdma_rereg_user_mr,
	.resize_cq = vrdma_resize_cq,

	INIT_RDMA_OBJ_SIZE(ib_ah, vrdma_ah, ib),
	INIT_RDMA_OBJ_SIZE(ib_cq, vrdma_cq, ib),
	INIT_RDMA_OBJ_SIZE(ib_mw, vrdma_mw, ib),
	INIT_RDMA_OBJ_SIZE(ib_pd, vrdma_pd, ib),
	INIT_RDMA_OBJ_SIZE(ib_qp, vrdma_qp, ib),
	INIT_RDMA_OBJ_SIZE(ib_srq, vrdma_srq, ib),
	INIT_RDMA_OBJ_SIZE(ib_ucontext, vrdma_ucontext, ib),
	INIT_RDMA_OBJ_SIZE(ib_xrcd, vrdma_xrcd, ib),
};

static void vrdma_set_live(struct vrdma_ibdev *ibd, u32 live)
{
	u32 *line = page_address(ibd->status_page) +
		    VRDMA_STATUS_LIVE_LINE * VRDMA_STATUS_LINE_BYTES;

	WRITE_ONCE(*line, live);
}

/* Tells user space, which posts without asking us, that nobody listens any more. */
void vrdma_ibdev_set_gone(struct vrdma_ibdev *ibd)
{
	vrdma_set_live(ibd, 0);
}

struct vrdma_ibdev *vrdma_ibdev_alloc(struct vrdma_dev *dev)
{
	struct vrdma_ibdev *ibd = ib_alloc_device(vrdma_ibdev, ib);

	if (!ibd)
		return NULL;
	ibd->status_page = alloc_page(GFP_KERNEL | __GFP_ZERO);
	if (!ibd->status_page) {
		ib_dealloc_device(&ibd->ib);
		return NULL;
	}
	ibd->dev = dev;
	vrdma_set_live(ibd, 1);
	xa_init_flags(&ibd->objects, XA_FLAGS_ALLOC1 | XA_FLAGS_LOCK_IRQ);
	vrdma_zombies_init(ibd);
	vrdma_kverbs_init(ibd);
	vrdma_gid_init(ibd);
	vrdma_netdev_init(ibd);
	return ibd;
}

int vrdma_ibdev_register(struct vrdma_ibdev *ibd)
{
	struct virtio_device *vdev = ibd->dev->vdev;
	struct ib_device *ib = &ibd->ib;
	int err;

	ib->node_type = RDMA_NODE_IB_CA;
	ib->phys_port_cnt = 1;
	ib->num_comp_vectors = ibd->dev->cfg.num_comp_vectors;
	/* The provider finds the device by this parent's modalias. */
	ib->dev.parent = &vdev->dev;
	addrconf_addr_eui48((u8 *)&ib->node_guid, ibd->dev->cfg.mac);
	strscpy(ib->node_desc, "vrdma", sizeof(ib->node_desc));
	ib_set_device_ops(ib, &vrdma_ops);

	err = vrdma_kctx_create(ibd);
	if (err)
		return err;

	/* Without this the block layer's default of 64 KiB would bound the page size of regions. */
	dma_set_max_seg_size(vdev->dev.parent, UINT_MAX);

	/*
	 * Finds the network interface, if it is there, so that the GID table is complete from the
	 * start.
	 */
	err = register_netdevice_notifier(&ibd->netdev_nb);
	if (err)
		goto err_kctx;

	/* The PCI device does DMA; with the virtio device the core would warn and refuse. */
	err = ib_register_device(ib, "vrdma%d", vdev->dev.parent);
	if (err)
		goto err_notifier;
	ibd->port_active = vrdma_port_is_active(ibd);
	WRITE_ONCE(ibd->registered, true);
	/* The interface may have come or gone meanwhile. */
	vrdma_link_changed(ibd);
	return 0;

err_notifier:
	unregister_netdevice_notifier(&ibd->netdev_nb);
err_kctx:
	vrdma_kctx_destroy(ibd);
	return err;
}

/*
 * Ends all objects and user contexts. Done before the control queue is closed, the host is told of
 * each; done after the reset, there is nobody to tell.
 */
void vrdma_ibdev_unregister(struct vrdma_ibdev *ibd)
{
	if (!ibd->registered)
		return;
	/* First of all: no event may reach the core once it has begun to forget the device. */
	WRITE_ONCE(ibd->registered, false);
	unregister_netdevice_notifier(&ibd->netdev_nb);
	cancel_work_sync(&ibd->link_work);
	ib_unregister_device(&ibd->ib);
	vrdma_kctx_destroy(ibd);
}

/* The device has been reset, and the zombies are freed. */
void vrdma_ibdev_free(struct vrdma_ibdev *ibd)
{
	cancel_work_sync(&ibd->link_work);
	cancel_work_sync(&ibd->gid_work);
	vrdma_kverbs_exit(ibd);
	WARN_ON(!xa_empty(&ibd->objects));
	xa_destroy(&ibd->objects);
	/*
	 * Processes that have mapped the page keep it, and with it the word that says that we are
	 * gone.
	 */
	put_page(ibd->status_page);
	ib_dealloc_device(&ibd->ib);
}

void vrdma_dispatch(struct vrdma_ibdev *ibd, enum ib_event_type type)
{
	struct ib_event event = {
		.device = &ibd->ib,
		.element.port_num = VRDMA_PORT,
		.event = type,
	};

	ib_dispatch_event(&event);
}
