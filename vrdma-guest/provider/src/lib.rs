//! libvrdma: the rdma-core provider of vrdma devices.
//!
//! libibverbs loads this library, which registers itself (`device`), matches devices by their virtio id and offers their verbs.
//! Setting up goes through the kernel module: `context`, `pd`, `mr`, `mw`, `cq`, `srq`, `xrcd`, `qp` send uverbs commands with the
//! driver's parts that [`vrdma_abi::uapi`] defines, and map the rings and doorbells that the module allocates; `shared` is what all of them use. Posting (`post`, `wr`),
//! polling (`poll`, `poll_ex`) and arming (`events`) make no system call: they write and read these rings through [`vrdma_rings`]. Address
//! handles (`ah`) are plain data. Large requests of queue pairs with several paths (`offer`) are split where they are posted (`multipath`).
//!
//! # Two libraries from one source
//!
//! libibverbs opens only providers of its own private ABI. The package `vrdma-provider` is built for ABI 34 (rdma-core v36 to v56), and
//! `vrdma-provider65`, the same source with the feature `pabi65`, for ABI 65 (rdma-core v65):
//!
//! ```text
//! cargo build --release -p vrdma-provider -p vrdma-provider65
//! target/release/libvrdma.so    ->  libvrdma-rdmav34.so
//! target/release/libvrdma65.so  ->  libvrdma-rdmav65.so
//! ```
//!
//! Both go where libibverbs has its providers, and a file under `/etc/libibverbs.d` says `driver vrdma`.
//!
//! The package `vrdma-provider-counted` is the same source once more, with what the tests have in the place of kernel and RNIC: a benchmark drives it.
//!
//! # Threads
//!
//! All verbs may be called from several threads. Each send queue, receive queue and completion queue has a lock
//! of its own, and no verb holds two of them at once but `ibv_resize_cq`, which keeps pollers and those who arm away; what a poller tells posters goes
//! through `table`. Two of these locks can be held over
//! several calls: that of a send queue from `ibv_wr_start` to `ibv_wr_complete` or `ibv_wr_abort`, that of a completion queue from
//! `ibv_start_poll` to `ibv_end_poll`. Meanwhile the thread must not post to the same QP, nor poll, resize or destroy the same queue or its QPs in another way; it may arm it.
//!
//! # Processes
//!
//! Rings and doorbells are not inherited: after fork(2) a child has a hole where they were mapped (VM_DONTCOPY). It can run anything but the
//! verbs of its parent's objects, and may open the device itself; a child that posts or polls all the same ends itself by SIGSEGV, and
//! changes nothing for its parent. Registered memory is the library's business: `ibv_fork_init` keeps the parent's pages in place as it does
//! for all devices.
//!
//! # Panics
//!
//! No function unwinds into the library: a panic in an `extern "C"` function aborts, and no input leads to one.

mod abi;
mod ah;
mod context;
mod cq;
mod device;
mod errno;
mod events;
mod library;
mod lock;
mod mapped;
mod mr;
mod multipath;
mod mw;
mod object;
mod offer;
mod pd;
mod poll;
mod poll_ex;
mod post;
mod qp;
mod query;
mod request;
mod shared;
mod srq;
mod table;
mod verbs;
mod wr;
mod xrcd;

#[cfg(any(test, feature = "counted"))]
#[cfg_attr(not(test), allow(dead_code))] // Tests use all of it.
mod tests;

#[cfg(feature = "counted")]
pub use tests::counted;
