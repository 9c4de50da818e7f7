//! Guest devices: one socket and one thread for each vNIC of this host.
//!
//! ```text
//!   QEMU ──socket──→ serve ──→ conversation ──→ front, vhost (requests of the front end) ─┐
//!   guest ──kick──→                 │                                                     ├→ guest ─→ Session, RNIC
//!   RNIC, store ──inbox──→          └─────────→ (control queue, events) ──────────────────┘
//! ```
//!
//! A device's thread waits for all of its descriptors at once ([`poller`]) and owns all of its state, so that
//! a hostile or dead front end stops nothing but its own device. While a front end is connected its guest is
//! attached to the RNIC; when it leaves, everything of the guest's is gone, and the next one gets a new epoch.

mod channel;
mod conversation;
mod front;
mod guest;
mod memory;
mod poller;
mod queue_pair;
mod queues;
mod report;
mod ring;
mod serve;
/// The session's tests bring a driver and an RNIC that keeps books.
#[cfg(test)]
#[path = "../../../control/tests/common/mod.rs"]
mod session_support;
mod throttle;
mod vhost;
mod vring;

pub use conversation::serve_front_end;
use masq_rnic::limits;
pub use serve::Device;
use vrdma_abi::config::QUEUE_FIRST_COMP;
use vrdma_abi::control;

use crate::host::Host;

/// Virtqueues of a device.
const QUEUES: u16 = QUEUE_FIRST_COMP + limits::COMP_VECTORS + limits::SLOTS;

const _: () = assert!(QUEUES <= vrdma_abi::config::MAX_QUEUES);

/// Bytes of config space: the most that vhost-user carries.
pub const SPACE_BYTES: usize = 256;

const _: () = assert!(vrdma_abi::config::Config::SIZE <= SPACE_BYTES);

/// The longest control request.
const MAX_REQUEST_BYTES: usize = {
    let commands = [
        control::DeviceInit::SIZE,
        control::AddGid::SIZE,
        control::CreateContext::SIZE,
        control::CreatePd::SIZE,
        control::CreateMr::SIZE,
        control::CreateCq::SIZE,
        control::CreateQp::SIZE,
        control::ModifyQp::SIZE,
        control::Destroy::SIZE,
        control::ReregMr::SIZE,
        control::ResizeCq::SIZE,
        control::CreateSrq::SIZE,
        control::ModifySrq::SIZE,
        control::CreateMw::SIZE,
        control::CreateXrcd::SIZE,
        control::QueryCounters::SIZE,
    ];
    let mut longest = 0;
    let mut i = 0;
    while i < commands.len() {
        if commands[i] > longest {
            longest = commands[i];
        }
        i += 1;
    }
    control::Request::SIZE + longest
};
