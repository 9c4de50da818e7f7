use std::collections::HashMap;
use std::net::IpAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};

use crate::verbs::Guest;
use crate::{Cluster, Error, Layout};

/// A guest has this much memory; it is not touched before it is used.
const RAM_BYTES: usize = 3 << 30;

/// A cluster, and guests on its vNICs.
pub struct World {
    /// The hosts.
    pub cluster: Cluster,
    guests: Mutex<HashMap<String, Arc<Guest>>>,
}

impl World {
    /// Starts a cluster of this layout; guests start when they are asked for.
    pub fn start(programs: &Path, layout: Layout) -> std::io::Result<Self> {
        Ok(World { cluster: Cluster::start(programs, layout)?, guests: Mutex::new(HashMap::new()) })
    }

    /// The guest on a vNIC.
    ///
    /// # Panics
    /// When it cannot start.
    #[track_caller]
    pub fn guest(&self, vnic: &str) -> Arc<Guest> {
        self.try_guest(vnic).unwrap_or_else(|e| panic!("guest {vnic} does not start: {e}"))
    }

    /// The guest on a vNIC, started if it is not.
    pub fn try_guest(&self, vnic: &str) -> Result<Arc<Guest>, Error> {
        let mut guests = self.guests.lock().unwrap();
        if let Some(guest) = guests.get(vnic) {
            return Ok(guest.clone());
        }
        let guest = Guest::start(&self.cluster.socket(vnic), RAM_BYTES, self.address(vnic))?;
        guests.insert(vnic.to_owned(), guest.clone());
        Ok(guest)
    }

    /// The host of a vNIC.
    pub fn host(&self, vnic: &str) -> u8 {
        self.cluster.spec(vnic).host
    }

    /// The virtual address of a vNIC.
    pub fn address(&self, vnic: &str) -> IpAddr {
        self.cluster.spec(vnic).address.into()
    }

    /// Forgets a guest: when nobody else holds it, it disconnects.
    pub fn stop_guest(&self, vnic: &str) {
        self.guests.lock().unwrap().remove(vnic);
    }

    /// Forgets all guests.
    pub fn stop_guests(&self) {
        self.guests.lock().unwrap().clear();
    }
}
