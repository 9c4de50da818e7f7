//! A guest device from outside: what front ends and guests see of masqd.

mod common;

use common::{Host, eventually};
use guest_sim::Device;
use vrdma_abi::config::{Config, LINK_ACTIVE};
use vrdma_abi::control::{DeviceInit, OP_DEVICE_INIT};

const RAM: usize = 16 << 20;

fn init(guest: &Device) -> Result<(), guest_sim::ControlError> {
    let command = DeviceInit {
        abi_major: guest.config.abi_major,
        abi_minor: guest.config.abi_minor,
        status_page: guest.ram.alloc(1).gpa(0),
        ..DeviceInit::ZERO
    };
    guest.control().run(OP_DEVICE_INIT, &command)
}

#[test]
fn a_guest_connects_reads_its_config_and_is_initialised() {
    let host = Host::start();
    let guest = Device::connect(&host.socket("blue-1"), RAM).unwrap();
    let Config { mac, link_state, active_mtu, num_comp_vectors, num_db_slots, epoch, .. } = guest.config;
    assert_eq!(mac, [0x52, 0x54, 0, 0x64, 0, 1]);
    assert_eq!((link_state, active_mtu), (LINK_ACTIVE, 5));
    assert_eq!((num_comp_vectors, num_db_slots), (4, 8));
    assert_ne!(epoch, 0);
    let books = host.rnic.books.lock().unwrap();
    assert_eq!(books.vnics.values().collect::<Vec<_>>(), [&(2..14).collect::<Vec<u16>>()]);
    drop(books);
    init(&guest).unwrap();
}
