//! libvrdma: the rdma-core provider of vrdma devices.
//!
//! libibverbs loads this library, which registers itself (`device`), matches devices by their virtio id and offers their verbs.
//! Setting up goes through the kernel module: `context`, `pd`, `mr`, `cq`, `qp` send uverbs commands with the
//! driver's parts that [`vrdma_abi::uapi`] defines, and map the rings and doorbells that the module allocates. Posting (`post`),
//! polling (`poll`) and arming (`events`) make no system call: they write and read these rings through [`vrdma_rings`].
//!
//! All verbs may be called from several threads. Each send queue, receive queue and completion queue has a lock
//! of its own, and no verb holds two of them at once; what a poller tells posters goes through `table`.
//!
//! No function unwinds into the library: a panic in an `extern "C"` function aborts, and no input leads to one.

mod abi34;
mod context;
mod cq;
mod device;
mod errno;
mod events;
mod library;
mod mapped;
mod mr;
mod object;
mod pd;
mod poll;
mod post;
mod qp;
mod table;
mod verbs;

#[cfg(test)]
mod tests;
