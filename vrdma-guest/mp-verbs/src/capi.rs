//! The functions of `include/mp_verbs.h`, which documents them.
#![allow(unsafe_code)] // A C program calls in with pointers.
#![allow(non_camel_case_types)] // The names are those of the header.

use std::ffi::{CStr, c_int, c_uint};
use std::io;
use std::mem::ManuallyDrop;
use std::net::TcpStream;
use std::os::fd::FromRawFd;
use std::ptr::{self, NonNull};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use mp_core::endpoint::{Completed, Completion, Kind, PostError, Receive, Request};
use mp_core::split::Place;

use crate::device::usable_gids;
use crate::hello::PATHS_MAX;
use crate::session::{Attr, Monitoring, MpQp, Network, Scheduling, sleep};
use crate::sys::*;

/// `struct mp_qp`.
pub struct mp_qp(Mutex<MpQp>);

impl mp_qp {
    fn lock(&self) -> MutexGuard<'_, MpQp> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct mp_qp_attr {
    pub size: u32,
    pub paths: u32,
    pub gid_index: [u8; PATHS_MAX],
    pub weight: [u32; PATHS_MAX],
    pub port: u8,
    pub timeout: u8,
    pub retry_cnt: u8,
    pub scheduler: u8,
    pub network: u8,
    pub reserved: [u8; 3],
    pub depth: u32,
    pub messages: u32,
    pub small_bytes: u32,
    pub probe_bytes: u32,
    pub probe_interval_ms: u32,
    pub connect_timeout_ms: u32,
    pub chunk_bytes: u64,
    pub window_bytes: u64,
    pub step_bytes: u64,
    pub most_bytes: u64,
}

#[repr(C)]
pub struct mp_send_wr {
    pub wr_id: u64,
    pub next: *mut mp_send_wr,
    pub opcode: c_int,
    pub length: u32,
    pub addr: *mut u8,
    pub mr: *mut ibv_mr,
    pub remote_addr: u64,
    pub rkey: u32,
}

#[repr(C)]
pub struct mp_recv_wr {
    pub wr_id: u64,
    pub next: *mut mp_recv_wr,
    pub addr: *mut u8,
    pub mr: *mut ibv_mr,
    pub length: u32,
}

#[repr(C)]
#[derive(Default)]
pub struct mp_path_stats {
    pub bytes: u64,
    pub in_flight_bytes: u64,
    pub bytes_per_sec: u64,
    pub failures: u64,
    pub alive: u32,
    pub reserved: u32,
}

const MP_SCHED_LEAST_LOADED: u8 = 0;
const MP_SCHED_ROUND_ROBIN: u8 = 1;
const MP_SCHED_WEIGHTED: u8 = 2;
const MP_NET_LOSSLESS: u8 = 0;
const MP_NET_LOSSY: u8 = 1;

fn set_errno(errno: c_int) {
    // SAFETY: the place is this thread's own.
    unsafe { *libc::__errno_location() = errno };
}

/// The errno of an error, as near as there is one.
fn errno_of(error: &io::Error) -> c_int {
    match (error.kind(), error.raw_os_error()) {
        // A socket says EAGAIN when its time is over.
        (io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock, _) => libc::ETIMEDOUT,
        (_, Some(errno)) => errno,
        (io::ErrorKind::InvalidInput, _) => libc::EINVAL,
        (io::ErrorKind::InvalidData, _) => libc::EPROTO,
        (io::ErrorKind::UnexpectedEof, _) => libc::ECONNRESET,
        (io::ErrorKind::OutOfMemory, _) => libc::ENOMEM,
        (io::ErrorKind::NotFound, _) => libc::ENOENT,
        (io::ErrorKind::Unsupported, _) => libc::ENOSYS,
        _ => libc::EIO,
    }
}

/// # Safety
///
/// `attr` must be null or point to memory for the structure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mp_qp_attr_init(attr: *mut mp_qp_attr) {
    let Attr { port, timeout, retry_cnt, depth, messages, small_bytes, network, .. } = Attr::new(vec![]);
    let (chunk_bytes, window_bytes) = match network {
        Network::Lossless { chunk_bytes, window_bytes } => (chunk_bytes, window_bytes),
        Network::Lossy { start_bytes, .. } => (start_bytes, 0),
    };
    let defaults = mp_qp_attr {
        size: size_of::<mp_qp_attr>() as u32,
        paths: 0,
        gid_index: [0; PATHS_MAX],
        weight: [1; PATHS_MAX],
        port,
        timeout,
        retry_cnt,
        scheduler: MP_SCHED_LEAST_LOADED,
        network: MP_NET_LOSSLESS,
        reserved: [0; 3],
        depth,
        messages,
        small_bytes,
        probe_bytes: 0,
        probe_interval_ms: 1000,
        connect_timeout_ms: 10_000,
        chunk_bytes,
        window_bytes,
        step_bytes: 64 << 10,
        most_bytes: 64 << 20,
    };
    if !attr.is_null() {
        // SAFETY: the caller says that there is room.
        unsafe { attr.write(defaults) };
    }
}

fn attributes(attr: &mp_qp_attr) -> Result<Attr, c_int> {
    let paths = attr.paths as usize;
    if attr.size as usize != size_of::<mp_qp_attr>()
        || !(1..=PATHS_MAX).contains(&paths)
        || attr.reserved != [0; 3]
    {
        return Err(libc::EINVAL);
    }
    Ok(Attr {
        port: attr.port,
        gid_indexes: attr.gid_index[..paths].to_vec(),
        timeout: attr.timeout,
        retry_cnt: attr.retry_cnt,
        depth: attr.depth,
        messages: attr.messages,
        small_bytes: attr.small_bytes,
        scheduling: match attr.scheduler {
            MP_SCHED_LEAST_LOADED => Scheduling::LeastLoaded,
            MP_SCHED_ROUND_ROBIN => Scheduling::RoundRobin,
            MP_SCHED_WEIGHTED => Scheduling::Weighted(attr.weight[..paths].to_vec()),
            _ => return Err(libc::EINVAL),
        },
        monitoring: match attr.probe_bytes {
            0 => Monitoring::Passive,
            bytes => {
                Monitoring::Probing { bytes, interval_ns: u64::from(attr.probe_interval_ms) * 1_000_000 }
            }
        },
        network: match attr.network {
            MP_NET_LOSSLESS => {
                Network::Lossless { chunk_bytes: attr.chunk_bytes, window_bytes: attr.window_bytes }
            }
            MP_NET_LOSSY => Network::Lossy {
                start_bytes: attr.chunk_bytes,
                step_bytes: attr.step_bytes,
                most_bytes: attr.most_bytes,
            },
            _ => return Err(libc::EINVAL),
        },
    })
}

/// # Safety
///
/// `context` must be an open device, and `indexes` point to room for `max` indexes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mp_find_gids(
    context: *mut ibv_context,
    port: u8,
    indexes: *mut u8,
    max: c_int,
) -> c_int {
    let (Ok(library), false) = (library(), context.is_null() || indexes.is_null()) else { return 0 };
    // SAFETY: the caller says that the context is one; a device's name is a string.
    let name = unsafe { CStr::from_ptr((library.ibv_get_device_name)((*context).device)) };
    let mut count = 0;
    for index in
        usable_gids(&name.to_string_lossy(), port).into_iter().take(usize::try_from(max).unwrap_or(0))
    {
        // SAFETY: the caller says that there is room for so many.
        unsafe { indexes.add(count as usize).write(index) };
        count += 1;
    }
    count
}

/// # Safety
///
/// `pd` must be a protection domain that lives longer than the connection, `socket` a connected stream socket, and `attr` point to attributes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mp_rdma_connect(
    pd: *mut ibv_pd,
    socket: c_int,
    attr: *const mp_qp_attr,
) -> *mut mp_qp {
    // SAFETY: the caller says that they are valid.
    match unsafe { connect(pd, socket, attr) } {
        Ok(qp) => Box::into_raw(Box::new(mp_qp(Mutex::new(qp)))),
        Err(errno) => {
            set_errno(errno);
            ptr::null_mut()
        }
    }
}

/// # Safety
///
/// As for [`mp_rdma_connect`].
unsafe fn connect(pd: *mut ibv_pd, socket: c_int, attr: *const mp_qp_attr) -> Result<MpQp, c_int> {
    // SAFETY: the caller says that it is valid.
    let attr = unsafe { attr.as_ref() }.ok_or(libc::EINVAL)?;
    let pd = NonNull::new(pd).ok_or(libc::EINVAL)?;
    if socket < 0 {
        return Err(libc::EBADF);
    }
    let attributes = attributes(attr)?;
    // SAFETY: the caller's socket, of which only generic functions of sockets are used; it stays open and the caller's.
    let stream = ManuallyDrop::new(unsafe { TcpStream::from_raw_fd(socket) });
    let before = (stream.read_timeout(), stream.write_timeout());
    let timeout = Duration::from_millis(u64::from(attr.connect_timeout_ms.max(1)));
    let set = |read, write| {
        stream
            .set_read_timeout(read)
            .and_then(|()| stream.set_write_timeout(write))
            .map_err(|error| errno_of(&error))
    };
    set(Some(timeout), Some(timeout))?;
    // SAFETY: the caller says that the protection domain lives as long.
    let result = unsafe { MpQp::connect_pd(pd, &mut &*stream, &attributes) };
    let _ = set(before.0.ok().flatten(), before.1.ok().flatten());
    result.map_err(|error| errno_of(&error))
}

/// # Safety
///
/// `qp` must be a connection.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mp_rdma_disconnect(qp: *mut mp_qp, timeout_ms: c_int) -> c_int {
    // SAFETY: the caller says so.
    let Some(qp) = (unsafe { qp.as_ref() }) else { return libc::EINVAL };
    match qp.lock().disconnect(Duration::from_millis(u64::try_from(timeout_ms).unwrap_or(0))) {
        Ok(true) => 0,
        Ok(false) => libc::ETIMEDOUT,
        Err(error) => errno_of(&error),
    }
}

/// # Safety
///
/// `qp` must be null or a connection, which nobody uses any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mp_destroy_qp(qp: *mut mp_qp) {
    if !qp.is_null() {
        // SAFETY: it was made by mp_rdma_connect.
        drop(unsafe { Box::from_raw(qp) });
    }
}

fn errno_of_post(error: PostError) -> c_int {
    match error {
        PostError::Full => libc::ENOMEM,
        PostError::Ended => libc::EINVAL,
    }
}

/// The place of a request's memory; its key is the local one.
///
/// # Safety
///
/// `mr` must be null or a memory region.
unsafe fn local_place(mr: *mut ibv_mr, addr: *mut u8, length: u32) -> Result<(Place, u32), c_int> {
    match unsafe {
        // SAFETY: the caller says so.
        mr.as_ref()
    } {
        Some(mr) => Ok((Place { key: mr.lkey, addr: addr as u64 }, mr.rkey)),
        None if length == 0 => Ok((Place { key: 0, addr: 0 }, 0)),
        None => Err(libc::EINVAL),
    }
}

/// # Safety
///
/// `qp` must be a connection, `wr` a list of requests whose regions live until they are complete, `bad_wr` null or a place.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mp_ibv_post_send(
    qp: *mut mp_qp,
    mut wr: *mut mp_send_wr,
    bad_wr: *mut *mut mp_send_wr,
) -> c_int {
    // SAFETY: the caller says so.
    let Some(qp) = (unsafe { qp.as_ref() }) else { return libc::EINVAL };
    let mut qp = qp.lock();
    // SAFETY: as above.
    while let Some(request) = unsafe { wr.as_ref() } {
        // SAFETY: as above.
        let posted =
            unsafe { local_place(request.mr, request.addr, request.length) }.and_then(|(local, _)| {
                let kind = match request.opcode {
                    IBV_WR_RDMA_WRITE => Kind::Write,
                    IBV_WR_RDMA_READ => Kind::Read,
                    IBV_WR_SEND => Kind::Send,
                    _ => return Err(libc::EOPNOTSUPP),
                };
                let remote = Place { key: request.rkey, addr: request.remote_addr };
                let request = Request { wr_id: request.wr_id, kind, bytes: request.length, local, remote };
                qp.post_send(request).map_err(errno_of_post)
            });
        if let Err(errno) = posted {
            if !bad_wr.is_null() {
                // SAFETY: the caller says that it is a place.
                unsafe { bad_wr.write(wr) };
            }
            return errno;
        }
        wr = request.next;
    }
    0
}

/// # Safety
///
/// As for [`mp_ibv_post_send`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mp_ibv_post_recv(
    qp: *mut mp_qp,
    mut wr: *mut mp_recv_wr,
    bad_wr: *mut *mut mp_recv_wr,
) -> c_int {
    // SAFETY: the caller says so.
    let Some(qp) = (unsafe { qp.as_ref() }) else { return libc::EINVAL };
    let mut qp = qp.lock();
    // SAFETY: as above.
    while let Some(receive) = unsafe { wr.as_ref() } {
        // SAFETY: as above.
        let posted =
            unsafe { local_place(receive.mr, receive.addr, receive.length) }.and_then(|(local, rkey)| {
                let place = Place { key: rkey, ..local };
                let receive = Receive { wr_id: receive.wr_id, bytes: receive.length, place };
                qp.post_recv(receive).map_err(errno_of_post)
            });
        if let Err(errno) = posted {
            if !bad_wr.is_null() {
                // SAFETY: the caller says that it is a place.
                unsafe { bad_wr.write(wr) };
            }
            return errno;
        }
        wr = receive.next;
    }
    0
}

/// A completion in the words of verbs.
fn work_completion(completion: Completion) -> ibv_wc {
    ibv_wc {
        wr_id: completion.wr_id,
        status: completion.status.0 as c_int, // an enum in C
        opcode: match completion.what {
            Completed::Sent(Kind::Write) => IBV_WC_RDMA_WRITE,
            Completed::Sent(Kind::Read) => IBV_WC_RDMA_READ,
            Completed::Sent(Kind::Send) => IBV_WC_SEND,
            Completed::Received => IBV_WC_RECV,
        },
        byte_len: completion.bytes,
        ..ibv_wc::default()
    }
}

/// # Safety
///
/// `qp` must be a connection, and `wc` point to room for `entries` completions.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mp_ibv_poll_cq(qp: *mut mp_qp, entries: c_int, wc: *mut ibv_wc) -> c_int {
    // SAFETY: the caller says so.
    let Some(qp) = (unsafe { qp.as_ref() }) else { return -libc::EINVAL };
    let mut qp = qp.lock();
    let mut count = 0;
    while count < entries {
        let Some(completion) = qp.poll_cq() else { break };
        // SAFETY: the caller says that there is room.
        unsafe { wc.add(count as usize).write(work_completion(completion)) };
        count += 1;
    }
    count
}

/// # Safety
///
/// `qp` must be a connection.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mp_ibv_get_cq_event(qp: *mut mp_qp, timeout_ms: c_int) -> c_int {
    // SAFETY: the caller says so.
    let Some(qp) = (unsafe { qp.as_ref() }) else { return libc::EINVAL };
    let deadline =
        u64::try_from(timeout_ms).ok().map(|millis| Instant::now() + Duration::from_millis(millis));
    loop {
        // Others may post while this thread sleeps.
        let (fd, time) = {
            let mut qp = qp.lock();
            match qp.prepare_sleep() {
                Ok(true) => return 0,
                Ok(false) => {}
                Err(error) => return errno_of(&error),
            }
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return libc::ETIMEDOUT;
            }
            (qp.fd(), qp.sleep_time(left))
        };
        if let Err(error) = sleep(fd, time) {
            return errno_of(&error);
        }
    }
}

/// # Safety
///
/// `qp` must be a connection.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mp_qp_fd(qp: *mut mp_qp) -> c_int {
    // SAFETY: the caller says so.
    unsafe { qp.as_ref() }.map_or(-1, |qp| qp.lock().fd())
}

/// # Safety
///
/// `qp` must be a connection.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mp_qp_paths(qp: *mut mp_qp) -> c_uint {
    // SAFETY: the caller says so.
    unsafe { qp.as_ref() }.map_or(0, |qp| qp.lock().paths() as c_uint) // at most 16
}

/// # Safety
///
/// `qp` must be a connection, and `stats` point to room for the structure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mp_query_path(qp: *mut mp_qp, path: c_uint, stats: *mut mp_path_stats) -> c_int {
    // SAFETY: the caller says so.
    let (Some(qp), false) = (unsafe { qp.as_ref() }, stats.is_null()) else { return libc::EINVAL };
    let mut qp = qp.lock();
    if path as usize >= qp.paths() {
        return libc::EINVAL;
    }
    let path = qp.path(path as usize);
    let told = mp_path_stats {
        bytes: path.bytes,
        in_flight_bytes: path.in_flight_bytes,
        bytes_per_sec: path.bytes_per_sec,
        failures: path.failures,
        alive: u32::from(path.alive),
        reserved: 0,
    };
    // SAFETY: the caller says that there is room.
    unsafe { stats.write(told) };
    0
}
