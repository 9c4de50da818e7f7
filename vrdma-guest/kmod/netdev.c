// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * The pairing with the guest's network interface, which has the same permanent MAC address. The
 * RDMA core makes GIDs of its addresses, and the port is up when it is.
 */
#include <linux/etherdevice.h>
#include <linux/if_arp.h>
#include <linux/if_vlan.h>
#include <linux/netdevice.h>

#include "vrdma.h"

static bool vrdma_is_our_netdev(struct vrdma_ibdev *ibd, struct net_device *netdev)
{
	/* VLANs and macvlans take over the permanent address of what they stand on. */
	return netdev->type == ARPHRD_ETHER && !is_vlan_dev(netdev) && !netif_is_macvlan(netdev) &&
	       ether_addr_equal_unaligned(netdev->perm_addr, ibd->dev->cfg.mac);
}

/* Under RTNL. */
static void vrdma_pair(struct vrdma_ibdev *ibd, struct net_device *netdev)
{
	int err = ib_device_set_netdev(&ibd->ib, netdev, VRDMA_PORT);

	if (err) {
		dev_err(&ibd->dev->vdev->dev, "cannot pair with %s: %d\n",
			netdev ? netdev_name(netdev) : "no interface", err);
		return;
	}
	ibd->netdev = netdev;
	WRITE_ONCE(ibd->rescan, netdev != NULL);
}

/* Called under RTNL, also for the interfaces that exist when the notifier is registered. */
static int vrdma_netdev_event(struct notifier_block *nb, unsigned long event, void *ptr)
{
	struct vrdma_ibdev *ibd = container_of(nb, struct vrdma_ibdev, netdev_nb);
	struct net_device *netdev = netdev_notifier_info_to_dev(ptr);

	if (event == NETDEV_REGISTER && !ibd->netdev && vrdma_is_our_netdev(ibd, netdev))
		vrdma_pair(ibd, netdev);
	else if (!netdev || netdev != ibd->netdev)
		return NOTIFY_DONE;
	else if (event == NETDEV_UNREGISTER)
		/* At once: the interface waits until nobody refers to it. */
		vrdma_pair(ibd, NULL);

	WRITE_ONCE(ibd->netdev_up, ibd->netdev && netif_running(ibd->netdev) &&
				   netif_carrier_ok(ibd->netdev));
	WRITE_ONCE(ibd->netdev_mtu, ibd->netdev ? READ_ONCE(ibd->netdev->mtu) : 0);
	vrdma_link_changed(ibd);
	return NOTIFY_DONE;
}

/* Without RTNL, which the core takes to scan addresses and while it registers a device. */
static void vrdma_link_work(struct work_struct *work)
{
	struct vrdma_ibdev *ibd = container_of(work, struct vrdma_ibdev, link_work);
	bool active;

	if (!READ_ONCE(ibd->registered))
		return;
	if (xchg(&ibd->rescan, false))
		rdma_roce_rescan_device(&ibd->ib);

	active = vrdma_port_is_active(ibd);
	if (active != ibd->port_active) {
		ibd->port_active = active;
		vrdma_dispatch(ibd, active ? IB_EVENT_PORT_ACTIVE : IB_EVENT_PORT_ERR);
	}
}

/* Has the state of the port looked at. */
void vrdma_link_changed(struct vrdma_ibdev *ibd)
{
	queue_work(ibd->dev->wq, &ibd->link_work);
}

void vrdma_netdev_init(struct vrdma_ibdev *ibd)
{
	ibd->netdev_nb.notifier_call = vrdma_netdev_event;
	INIT_WORK(&ibd->link_work, vrdma_link_work);
}
