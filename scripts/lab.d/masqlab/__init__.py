"""The masq lab: set-up, topology, hosts, VMs and the ways into them."""
