//! The tenant of a test.

use std::cell::RefCell;
use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use guest_sim::suite::{Side, World};
use guest_sim::verbs::{Context, Guest};
use masq_model::{Object, Quota, SecurityGroup, SecurityGroupRule, Vnic, Vpc};
use masq_types::{MacAddr, Vni};

use crate::ctl::{WAIT_SECONDS, change};

/// Name of the tenant, of its network, and of the group that all of its vNICs are in unless a test says otherwise.
pub const NAME: &str = "green";
/// Other groups of the tenant, without members unless a test says otherwise.
pub const GROUPS: [&str; 3] = ["a", "b", "c"];

const RAM_BYTES: usize = 64 << 20;

/// A tenant whose vNIC `n`, from 1, is called `green-n` and has the address 192.168.0.n, as those of the bystanders.
pub struct Tenant<'w> {
    /// The cluster.
    pub world: &'w World,
    /// The hosts of its vNICs at the beginning.
    hosts: Vec<u8>,
    guests: RefCell<HashMap<u8, Arc<Guest>>>,
    /// Whoever drops a process without ending it must not give its doorbells' memory to others, where the RNIC looks on.
    contexts: RefCell<Vec<Arc<Context>>>,
}

/// The name of a vNIC.
pub fn vnic(n: u8) -> String {
    format!("{NAME}-{n}")
}

/// The address of a vNIC.
pub fn address(n: u8) -> IpAddr {
    Ipv4Addr::new(192, 168, 0, n).into()
}

impl<'w> Tenant<'w> {
    /// A tenant with a vNIC on each of these hosts, all in one group.
    ///
    /// # Panics
    /// When it cannot be created.
    #[track_caller]
    pub fn create(world: &'w World, hosts: &[u8]) -> Self {
        let tenant =
            Tenant { world, hosts: hosts.to_vec(), guests: RefCell::default(), contexts: RefCell::default() };
        tenant.apply(&vec![vec![NAME]; hosts.len()], &[]);
        tenant
    }

    /// Puts each vNIC into the groups that `groups` names, and makes the rules those of `rules`, in one transaction.
    ///
    /// # Panics
    /// When that is refused or not realised in time.
    #[track_caller]
    pub fn apply(&self, groups: &[Vec<&str>], rules: &[SecurityGroupRule]) {
        let vni = Vni::new(77).expect("a VNI");
        let mut objects = vec![Object::Vpc(Vpc { name: NAME.into(), vni })];
        let group = |name: &str| Object::SecurityGroup(SecurityGroup { name: name.into(), vpc: NAME.into() });
        objects.extend([NAME].into_iter().chain(GROUPS).map(group));
        objects.extend(rules.iter().cloned().map(Object::SecurityGroupRule));
        for (n, (host, groups)) in (1..).zip(self.hosts.iter().zip(groups)) {
            objects.push(Object::Vnic(Vnic {
                name: vnic(n),
                vpc: NAME.into(),
                host: Some(format!("h{host}")),
                mac: MacAddr([0x52, 0x54, 0, 0, 77, n]),
                addresses: vec![address(n)],
                allowed_address_pairs: vec![],
                security_groups: groups.iter().map(|g| (*g).to_owned()).collect(),
                qos_policy: None,
                quota: Quota::default(),
                paths: None,
                dedicated_alias: None,
            }));
        }
        self.world.cluster.apply(&objects, WAIT_SECONDS).expect("a change of the tenant");
    }

    /// Changes a vNIC: `masqctl vnic set`.
    #[track_caller]
    pub fn set(&self, n: u8, args: &[&str]) {
        change(self.world, &[&["vnic", "set", &vnic(n)], args].concat());
    }

    /// The host of a vNIC at the beginning.
    pub fn host(&self, n: u8) -> u8 {
        self.hosts[usize::from(n) - 1]
    }

    /// The guest of a vNIC, started on its first host if there is none.
    ///
    /// # Panics
    /// When it cannot start.
    #[track_caller]
    pub fn guest(&self, n: u8) -> Arc<Guest> {
        let known = self.guests.borrow().get(&n).cloned();
        known.unwrap_or_else(|| self.start_guest(n, self.host(n)))
    }

    /// Starts a guest on a vNIC that runs on `host`, in the place of the one that it may have had, of which nobody must hold
    /// anything any more if its device is still there.
    ///
    /// # Panics
    /// When it cannot start.
    #[track_caller]
    pub fn start_guest(&self, n: u8, host: u8) -> Arc<Guest> {
        if let Some(old) = self.guests.borrow_mut().remove(&n) {
            self.contexts.borrow_mut().retain(|ctx| !Arc::ptr_eq(ctx.guest(), &old));
        }
        let socket = self.world.cluster.socket_on(host, &vnic(n));
        let guest = Guest::start(&socket, RAM_BYTES, address(n));
        let guest = guest.unwrap_or_else(|e| panic!("guest {} does not start: {e}", vnic(n)));
        self.guests.borrow_mut().insert(n, guest.clone());
        guest
    }

    /// A process of the guest of a vNIC.
    #[track_caller]
    pub fn side(&self, n: u8) -> Side {
        let side = Side::of(self.guest(n), address(n));
        self.contexts.borrow_mut().push(side.ctx.clone());
        side
    }

    /// The kernel of the guest of a vNIC.
    #[track_caller]
    pub fn kernel(&self, n: u8) -> Side {
        let side = Side::kernel_of(self.guest(n), address(n));
        self.contexts.borrow_mut().push(side.ctx.clone());
        side
    }
}
