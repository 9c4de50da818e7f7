//! A guest device from outside: what front ends and guests see of masqd.

mod common;

use std::os::unix::net::UnixStream;
use std::time::Duration;

use common::{DESIRED, Host, ask, eventually};
use guest_sim::{ControlError, Device, GuestRam};
use masq_driver::{Event, QpFault, QpHandle, VnicId};
use masq_model::Endpoint;
use masq_model::api::{ItemList, QueuePair};
use vhost::vhost_user::message::{VhostUserConfigFlags, VhostUserProtocolFeatures, VhostUserVirtioFeatures};
use vhost::vhost_user::{Frontend, VhostUserFrontend};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo};
use vrdma_abi::config::{Config, LINK_ACTIVE};
use vrdma_abi::control::*;

const RAM: usize = 16 << 20;

fn init(guest: &Device) -> Result<(), ControlError> {
    let command = DeviceInit {
        abi_major: guest.config.abi_major,
        abi_minor: guest.config.abi_minor,
        status_page: guest.ram.alloc(1).gpa(0),
        ..DeviceInit::ZERO
    };
    guest.control().run(OP_DEVICE_INIT, &command)
}

/// A context with a protection domain; the pages must live as long as the context.
fn create_context(guest: &Device) {
    let doorbells = guest.ram.alloc(8);
    let (doorbells, _tables) = guest.control().page_table(&doorbells.gpas(), 12);
    guest.control().run(OP_CREATE_CONTEXT, &CreateContext { ctx: 1, flags: 0, doorbells }).unwrap();
    guest.control().run(OP_CREATE_PD, &CreatePd { pd: 1, ctx: 1 }).unwrap();
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
    let queues: Vec<_> = host.rnic.books.lock().unwrap().vnics.values().cloned().collect();
    assert_eq!(queues, [(2..14).collect::<Vec<u16>>()], "the RNIC serves all queues but the first two");
    init(&guest).unwrap();
    create_context(&guest);
}

#[test]
fn an_end_of_the_connection_reaps_and_the_next_one_starts_afresh() {
    let host = Host::start();
    let guest = Device::connect(&host.socket("blue-1"), RAM).unwrap();
    init(&guest).unwrap();
    create_context(&guest);
    let first = guest.config.epoch;
    drop(guest);
    eventually("the end of the guest", || host.rnic.books.lock().unwrap().vnics.is_empty());
    let guest = Device::connect(&host.socket("blue-1"), RAM).unwrap();
    assert_ne!(guest.config.epoch, first, "a guest that lived on learns that its objects are gone");
    assert_eq!(
        guest.control().run(OP_CREATE_PD, &CreatePd { pd: 2, ctx: 1 }).unwrap_err().errno(),
        libc::EINVAL
    );
    init(&guest).unwrap();
    assert_eq!(
        guest.control().run(OP_CREATE_PD, &CreatePd { pd: 2, ctx: 1 }).unwrap_err().errno(),
        libc::ENOENT
    );
    assert_eq!(host.rnic.books.lock().unwrap().attached, 2);
}

#[test]
fn one_front_end_is_served_after_the_other_and_devices_do_not_wait_for_one_another() {
    let host = Host::start();
    let first = Device::connect(&host.socket("blue-1"), RAM).unwrap();
    // A second front end of the same vNIC waits; it may connect, but nobody answers.
    let second = UnixStream::connect(host.socket("blue-1")).unwrap();
    let other = Device::connect(&host.socket("red-1"), RAM).unwrap();
    init(&first).unwrap();
    init(&other).unwrap();
    assert_eq!(host.rnic.books.lock().unwrap().vnics.len(), 2);
    drop(first);
    let served = Frontend::from_stream(second, 64);
    assert_ne!(served.get_features().unwrap(), 0);
}

#[test]
fn a_front_end_that_falls_silent_in_a_message_is_dropped_alone() {
    use std::io::{Read, Write};
    let host = Host::start();
    let other = Device::connect(&host.socket("red-1"), RAM).unwrap();
    let mut silent = UnixStream::connect(host.socket("blue-1")).unwrap();
    silent.write_all(&[1, 0, 0]).unwrap();
    init(&other).unwrap();
    silent.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    assert_eq!(silent.read(&mut [0]).unwrap_or(0), 0, "it has been disconnected");
    init(&Device::connect(&host.socket("blue-1"), RAM).unwrap()).unwrap();
}

#[test]
fn a_front_end_is_not_to_blame_for_what_takes_masqd_long() {
    use std::io::{Read, Write};
    let host = Host::start();
    let (rnic, socket) = (host.rnic.clone(), host.socket("blue-1"));
    let gate = rnic.memory_gate.lock().unwrap();
    let slow = std::thread::spawn(move || Device::connect(&socket, RAM));
    eventually("a memory table", || rnic.books.lock().unwrap().memory_tables == 1);
    // Longer than masqd waits for a front end: one that began to be silent later has been disconnected.
    eventually("the socket", || host.socket("red-1").exists());
    let mut silent = UnixStream::connect(host.socket("red-1")).unwrap();
    silent.write_all(&[1, 0, 0]).unwrap();
    assert_eq!(silent.read(&mut [0]).unwrap_or(0), 0);
    assert!(!slow.is_finished());
    drop(gate);
    init(&slow.join().unwrap().expect("its request is answered")).unwrap();
}

#[test]
fn a_front_end_that_takes_no_answers_is_dropped() {
    use std::io::Write;
    let host = Host::start();
    eventually("the socket", || host.socket("blue-1").exists());
    let mut deaf = UnixStream::connect(host.socket("blue-1")).unwrap();
    // VHOST_USER_GET_FEATURES, again and again, until the answers fill the socket and masqd hangs up.
    let get_features = [1u32, 1, 0].map(u32::to_ne_bytes).concat();
    while deaf.write_all(&get_features).is_ok() {}
    init(&Device::connect(&host.socket("blue-1"), RAM).unwrap()).unwrap();
}

#[test]
fn malformed_requests_are_answered_or_dropped_and_the_queue_goes_on() {
    let host = Host::start();
    let guest = Device::connect(&host.socket("blue-1"), RAM).unwrap();
    let control = guest.control();
    for len in [0, 1, 15, 16, 17, 4096] {
        let answer = control.exchange(&vec![0xff; len], 8).unwrap();
        assert!(answer.is_empty() || answer.len() == 8, "{len}: {answer:?}");
        if let [a, b, c, d, ..] = answer[..] {
            assert_ne!(u32::from_ne_bytes([a, b, c, d]), 0, "{len} bytes of nonsense are no success");
        }
    }
    for room in [0, 1, 7] {
        control.exchange(&[0; 16], room).unwrap();
    }
    init(&guest).unwrap();
}

#[test]
fn events_wait_for_buffers_and_reach_only_their_guest() {
    let host = Host::start();
    let mut guest = Device::connect(&host.socket("blue-1"), RAM).unwrap();
    let mut other = Device::connect(&host.socket("red-1"), RAM).unwrap();
    init(&guest).unwrap();
    init(&other).unwrap();
    let vnic = *host.rnic.books.lock().unwrap().vnics.keys().next().unwrap();
    assert_eq!(vnic, VnicId(1));
    let sink = host.rnic.sink.lock().unwrap().clone().unwrap();
    let qp = 7;
    create_qps(&guest, &[qp]);
    for _ in 0..300 {
        sink.event(Event::QpFault { vnic, qp: QpHandle(qp), fault: QpFault::Fatal, reason: "a test".into() });
    }
    for n in 0..300 {
        let event = guest.next_async_event(Duration::from_secs(5)).unwrap_or_else(|| panic!("event {n}"));
        assert_eq!((event.kind, event.handle), (vrdma_abi::event::EVENT_QP_FATAL, qp));
        assert_eq!(event.epoch, guest.config.epoch);
    }
    assert!(other.next_async_event(Duration::from_millis(50)).is_none());
}

/// Queue pairs with these handles, and their completion queue; returns their numbers.
fn create_qps(guest: &Device, handles: &[u32]) -> Vec<u32> {
    create_context(guest);
    let control = guest.control();
    let ring = |pages: usize| {
        let ring = guest.ram.alloc(pages);
        let (table, tables) = control.page_table(&ring.gpas(), 12);
        // The test reads neither again.
        std::mem::forget((ring, tables));
        table
    };
    let cq = CreateCq { cq: 1, ctx: 1, entries: 16, vector: 0, ring: ring(1) };
    let _: CreateCqReply = control.call(OP_CREATE_CQ, &cq).unwrap();
    let create = |qp: u32| {
        let qp = CreateQp {
            qp,
            pd: 1,
            send_cq: 1,
            recv_cq: 1,
            srq: HANDLE_NONE,
            xrcd: HANDLE_NONE,
            sq_entries: 16,
            rq_entries: 16,
            max_send_sge: 1,
            max_recv_sge: 1,
            sq_stride_shift: 6,
            rq_stride_shift: 6,
            qp_type: QP_TYPE_RC,
            sq: ring(1),
            rq: ring(1),
            ..CreateQp::ZERO
        };
        let reply: CreateQpReply = control.call(OP_CREATE_QP, &qp).unwrap();
        reply.qpn
    };
    handles.iter().copied().map(create).collect()
}

/// More than the RNIC tells of at once.
#[test]
fn all_queue_pairs_are_listed() {
    let host = Host::start();
    let guest = Device::connect(&host.socket("blue-1"), RAM).unwrap();
    init(&guest).unwrap();
    let mut qpns = create_qps(&guest, &(1..=100).rev().collect::<Vec<_>>());
    qpns.sort_unstable();
    let listed: Vec<QueuePair> = ask(&host.api(), "GET", "/v1/queue-pairs", &[], "").expect(200).json();
    assert_eq!(listed.iter().map(|q| q.qpn).collect::<Vec<_>>(), qpns);
    assert!(listed.iter().all(|q| q.vnic == "blue-1"));
    let path = format!("/v1/queue-pairs/blue-1/{}", qpns[70]);
    assert_eq!(ask(&host.api(), "GET", &path, &[], "").expect(200).json::<QueuePair>().qpn, qpns[70]);
}

/// A front end that has negotiated all that masqd offers.
fn negotiate(socket: &std::path::Path) -> Frontend {
    eventually("the socket", || socket.exists());
    let mut front = Frontend::connect(socket, 64).unwrap();
    front.set_owner().unwrap();
    let features = front.get_features().unwrap();
    assert_ne!(features & VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits(), 0);
    let protocol = front.get_protocol_features().unwrap();
    front.set_protocol_features(protocol).unwrap();
    front.set_features(features).unwrap();
    front.set_hdr_flags(vhost::vhost_user::message::VhostUserHeaderFlag::NEED_REPLY);
    front
}

#[test]
fn everything_that_qemu_needs_is_offered() {
    let host = Host::start();
    let mut front = negotiate(&host.socket("blue-1"));
    let protocol = front.get_protocol_features().unwrap();
    for needed in [
        VhostUserProtocolFeatures::MQ,
        VhostUserProtocolFeatures::CONFIG,
        VhostUserProtocolFeatures::REPLY_ACK,
        VhostUserProtocolFeatures::BACKEND_REQ,
        VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS,
        VhostUserProtocolFeatures::RESET_DEVICE,
    ] {
        assert!(protocol.contains(needed), "{needed:?}");
    }
    assert_eq!(front.get_queue_num().unwrap(), 14);
    let (_, space) = front.get_config(0, 256, VhostUserConfigFlags::empty(), &[0; 256]).unwrap();
    assert_eq!(space.len(), 256);
    assert!(space[Config::SIZE..].iter().all(|b| *b == 0));
    let (_, tail) = front.get_config(250, 6, VhostUserConfigFlags::empty(), &[0; 6]).unwrap();
    assert_eq!(tail, [0; 6]);
}

#[test]
fn memory_that_could_shrink_is_refused() {
    let host = Host::start();
    let file = tempfile::tempfile().unwrap();
    file.set_len(1 << 20).unwrap();
    let front = negotiate(&host.socket("blue-1"));
    let region = VhostUserMemoryRegionInfo {
        guest_phys_addr: 0,
        memory_size: 1 << 20,
        userspace_addr: 1 << 30,
        mmap_offset: 0,
        mmap_handle: std::os::fd::AsRawFd::as_raw_fd(&file),
    };
    front.set_mem_table(&[region]).unwrap_err();
}

#[test]
fn a_reset_reaps_and_a_pause_does_not() {
    let host = Host::start();
    let ram = GuestRam::new(RAM).unwrap();
    let mut guest = Device::connect_with(&host.socket("blue-1"), ram).unwrap();
    init(&guest).unwrap();
    create_context(&guest);
    assert_eq!(host.rnic.books.lock().unwrap().objects, 1);
    // This front end does not negotiate RESET_DEVICE, so that stopping the control queue is a reset.
    guest.frontend().get_vring_base(0).unwrap();
    eventually("the reaping", || host.rnic.books.lock().unwrap().objects == 0);
    drop(guest);

    let mut front = negotiate(&host.socket("red-1"));
    assert!(front.get_vring_base(0).is_ok());
    front.reset_device().unwrap();
    assert_eq!(host.rnic.books.lock().unwrap().vnics.len(), 1, "the front end stays connected");
}

#[test]
fn a_killed_and_restarted_masqd_is_another_epoch_on_the_same_blocks() {
    let mut host = Host::start();
    let guest = Device::connect(&host.socket("blue-1"), RAM).unwrap();
    let (epoch, ram) = (guest.config.epoch, guest.ram.clone());
    let blocks = endpoints(&host);
    host.shutdown();
    assert!(!host.socket("blue-1").exists() && !host.api().exists());
    // A killed one leaves its sockets behind.
    drop(std::os::unix::net::UnixListener::bind(host.socket("blue-1")).unwrap());
    drop(std::os::unix::net::UnixListener::bind(host.socket("gone-1")).unwrap());
    host.boot(None);
    eventually("the devices", || host.socket("red-1").exists());
    assert!(!host.socket("gone-1").exists());
    let guest = Device::connect_with(&host.socket("blue-1"), ram).unwrap();
    assert_ne!(guest.config.epoch, epoch);
    init(&guest).unwrap();
    assert_eq!(endpoints(&host), blocks);
}

fn endpoints(host: &Host) -> Vec<Endpoint> {
    let mut found = Vec::new();
    eventually("the endpoints", || {
        let list: ItemList<Endpoint> =
            serde_json::from_str(&common::get(&host.api(), "/v1/endpoints")).unwrap();
        found = list.items.into_iter().map(|item| item.spec).collect();
        found.len() == 2
    });
    found
}

#[test]
fn devices_follow_the_desired_state() {
    let host = Host::start();
    let mut guest = Device::connect(&host.socket("red-1"), RAM).unwrap();
    assert!(guest.read_config().is_ok());
    let text =
        DESIRED.replace("host = \"h1\"\nmac = \"52:54:00:c8", "host = \"h2\"\nmac = \"52:54:00:c8").replace(
            "[[vpc]]\nname = \"red\"",
            "[[host]]\nname = \"h2\"\nunderlay = [\"127.0.0.2\"]\n\n[[vpc]]\nname = \"red\"",
        );
    common::apply(&host.api(), &text);
    eventually("the end of a device that moved away", || guest.read_config().is_err());
    assert!(!host.socket("red-1").exists());
    assert!(host.socket("blue-1").exists());
    common::apply(&host.api(), DESIRED);
    eventually("its return", || host.socket("red-1").exists());
}

#[test]
fn a_guest_is_told_when_its_vnic_is_taken_away() {
    let host = Host::start();
    let mut guest = Device::connect(&host.socket("blue-1"), RAM).unwrap();
    let other = Device::connect(&host.socket("red-1"), RAM).unwrap();
    init(&guest).unwrap();
    create_context(&guest);
    let (without, _) = DESIRED.split_once("[[vnic]]").unwrap();
    let red = DESIRED.split("[[vnic]]").nth(2).unwrap();
    common::apply(&host.api(), &format!("{without}[[vnic]]{red}"));
    // The port goes down first, while all else still works.
    eventually("the port's end", || guest.read_config().unwrap().link_state == vrdma_abi::config::LINK_DOWN);
    assert!(guest.next_async_event(Duration::ZERO).is_none());
    assert_eq!(host.rnic.books.lock().unwrap().objects, 1);
    init(&other).unwrap();
    let event = guest.next_async_event(Duration::from_secs(5)).unwrap();
    assert_eq!((event.kind, event.epoch), (vrdma_abi::event::EVENT_DEVICE_FATAL, guest.config.epoch));
    assert_eq!(host.rnic.books.lock().unwrap().objects, 0, "by then nothing of the guest's is used any more");
    assert!(!host.socket("blue-1").exists());
    eventually("the end of the connection", || guest.read_config().is_err());
    assert_eq!(host.rnic.books.lock().unwrap().vnics.len(), 1);
    // It comes back, also when it does so at once. A front end that was early meets the old device, and tries again.
    for _ in 0..2 {
        common::apply(&host.api(), DESIRED);
        eventually("a device that works", || {
            Device::connect_with(&host.socket("blue-1"), guest.ram.clone())
                .is_ok_and(|again| again.config.epoch != guest.config.epoch && init(&again).is_ok())
        });
        common::apply(&host.api(), &format!("{without}[[vnic]]{red}"));
    }
    init(&other).unwrap();
}

#[test]
fn a_device_that_the_rnic_gives_up_tells_its_guest_and_comes_back_in_another_epoch() {
    let host = Host::start();
    let mut guest = Device::connect(&host.socket("blue-1"), RAM).unwrap();
    let other = Device::connect(&host.socket("red-1"), RAM).unwrap();
    init(&guest).unwrap();
    let sink = host.rnic.sink.lock().unwrap().clone().unwrap();
    sink.event(Event::VnicFatal { vnic: VnicId(1), reason: "a test".into() });
    let event = guest.next_async_event(Duration::from_secs(5)).unwrap();
    assert_eq!((event.kind, event.epoch), (vrdma_abi::event::EVENT_DEVICE_FATAL, guest.config.epoch));
    eventually("the end of the device", || !host.rnic.books.lock().unwrap().vnics.contains_key(&VnicId(1)));
    let again = Device::connect_with(&host.socket("blue-1"), guest.ram.clone()).unwrap();
    assert_ne!(again.config.epoch, guest.config.epoch);
    init(&again).unwrap();
    init(&other).unwrap();
}

#[test]
fn the_guest_is_told_when_its_link_changes() {
    use std::io::Read;
    let host = Host::start();
    let mut front = negotiate(&host.socket("blue-1"));
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    front.set_backend_request_fd(&theirs).unwrap();
    // The address leaves the host, as far as it can see.
    let elsewhere = DESIRED.replace("127.0.0.1", "192.0.2.77");
    common::apply(&host.api(), &elsewhere);
    ours.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let mut message = [0; 12];
    ours.read_exact(&mut message).unwrap();
    assert_eq!(message, [2, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0], "VHOST_USER_BACKEND_CONFIG_CHANGE_MSG");
    let (_, space) = front.get_config(0, 256, VhostUserConfigFlags::empty(), &[0; 256]).unwrap();
    let config = <Config as zerocopy::FromBytes>::read_from_prefix(&space).unwrap().0;
    assert_eq!(config.link_state, vrdma_abi::config::LINK_DOWN);
}
