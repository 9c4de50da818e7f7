// sendmmsg and recvmmsg with control messages: libc's structures full of pointers are filled and read here only.
#![allow(unsafe_code)]

use std::io;
use std::mem::{size_of, zeroed};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

use libc::{
    c_int, c_void, cmsghdr, iovec, mmsghdr, msghdr, sockaddr_in, sockaddr_in6, sockaddr_storage, timespec,
};
use masq_wire::Ecn;
use rustix::time::{ClockId, clock_gettime};

use super::{Arrival, Train};

/// Messages of one system call.
const SEND_BATCH: usize = 16;
const RECV_BATCH: usize = 8;
/// The longest train that the kernel hands over.
const RECV_BYTES: usize = 1 << 16;
const CONTROL_BYTES: usize = 96;

/// Room for control messages, aligned as cmsghdr.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
struct Control([u8; CONTROL_BYTES]);

/// Sends the first messages of `trains`, each of which the kernel cuts if it is longer than its segments; returns how many went out, at
/// least one unless there are none or it fails.
pub(super) fn send<'a>(
    socket: BorrowedFd<'_>,
    trains: impl IntoIterator<Item = Train<'a>>,
) -> io::Result<usize> {
    // SAFETY: all of these are plain structures for which zeroes are a value.
    let (mut names, mut vectors, mut headers) = unsafe {
        (
            zeroed::<[sockaddr_storage; SEND_BATCH]>(),
            zeroed::<[iovec; SEND_BATCH]>(),
            zeroed::<[mmsghdr; SEND_BATCH]>(),
        )
    };
    let mut controls = [Control([0; CONTROL_BYTES]); SEND_BATCH];
    let slots = names.iter_mut().zip(&mut vectors).zip(&mut headers).zip(&mut controls);
    let mut n = 0;
    for ((((name, vector), header), control), train) in slots.zip(trains) {
        n += 1;
        vector.iov_base = train.bytes.as_ptr().cast_mut().cast();
        vector.iov_len = train.bytes.len();
        let h = &mut header.msg_hdr;
        h.msg_name = (&raw mut *name).cast();
        h.msg_namelen = put_name(name, train.destination);
        h.msg_iov = vector;
        h.msg_iovlen = 1;
        h.msg_control = (&raw mut *control).cast();
        h.msg_controllen = CONTROL_BYTES as _;
        put_controls(h, &train);
    }
    // SAFETY: the first n headers point at names, vectors and controls above, and at payloads that the trains
    // borrow; all live until the call returns. sendmmsg does not write through iov_base.
    let sent = unsafe {
        libc::sendmmsg(socket.as_raw_fd(), headers.as_mut_ptr(), n, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL)
    };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

fn put_controls(h: &mut msghdr, train: &Train<'_>) {
    let Train { bytes, destination, segment_bytes, traffic_class, hop_limit, .. } = *train;
    let mut controls = ControlWriter { used: 0, next: first_control(h) };
    if bytes.len() > segment_bytes {
        controls.put(h, libc::SOL_UDP, libc::UDP_SEGMENT, segment_bytes as u16);
    }
    let (level, class, hops) = match destination {
        SocketAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_TOS, libc::IP_TTL),
        SocketAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_TCLASS, libc::IPV6_HOPLIMIT),
    };
    if traffic_class != 0 {
        controls.put(h, level, class, c_int::from(traffic_class));
    }
    if hop_limit != 0 {
        controls.put(h, level, hops, c_int::from(hop_limit));
    }
    h.msg_controllen = controls.used as _;
    if controls.used == 0 {
        h.msg_control = std::ptr::null_mut();
    }
}

fn first_control(h: &msghdr) -> *mut cmsghdr {
    // SAFETY: the header's control pointer and length describe a Control.
    unsafe { libc::CMSG_FIRSTHDR(h) }
}

struct ControlWriter {
    used: usize,
    next: *mut cmsghdr,
}

impl ControlWriter {
    fn put<T: Copy>(&mut self, h: &msghdr, level: c_int, kind: c_int, value: T) {
        let len = size_of::<T>() as u32;
        // SAFETY: `next` is null or points at a cmsghdr inside the Control that `h` describes, with
        // room for its data: CMSG_FIRSTHDR and CMSG_NXTHDR see to the first, the assertion to the second. Three
        // messages of at most 24 bytes fit CONTROL_BYTES, and zeroes behind them keep CMSG_NXTHDR from
        // running into old lengths.
        unsafe {
            if self.next.is_null() {
                return;
            }
            debug_assert!(self.used + libc::CMSG_SPACE(len) as usize <= CONTROL_BYTES);
            (*self.next).cmsg_level = level;
            (*self.next).cmsg_type = kind;
            (*self.next).cmsg_len = libc::CMSG_LEN(len) as _;
            libc::CMSG_DATA(self.next).cast::<T>().write_unaligned(value);
            self.used += libc::CMSG_SPACE(len) as usize;
            self.next = libc::CMSG_NXTHDR(h, self.next);
        }
    }
}

fn put_name(name: &mut sockaddr_storage, address: SocketAddr) -> libc::socklen_t {
    let to: *mut sockaddr_storage = name;
    match address {
        SocketAddr::V4(a) => {
            // SAFETY: sockaddr_storage is large enough and aligned for any address.
            let sin = unsafe { &mut *to.cast::<sockaddr_in>() };
            sin.sin_family = libc::AF_INET as _;
            sin.sin_port = a.port().to_be();
            sin.sin_addr.s_addr = u32::from_ne_bytes(a.ip().octets());
            size_of::<sockaddr_in>() as _
        }
        SocketAddr::V6(a) => {
            // SAFETY: as above.
            let sin6 = unsafe { &mut *to.cast::<sockaddr_in6>() };
            sin6.sin6_family = libc::AF_INET6 as _;
            sin6.sin6_port = a.port().to_be();
            sin6.sin6_addr.s6_addr = a.ip().octets();
            sin6.sin6_scope_id = a.scope_id();
            size_of::<sockaddr_in6>() as _
        }
    }
}

fn get_name(name: &sockaddr_storage) -> Option<SocketAddr> {
    let from: *const sockaddr_storage = name;
    match c_int::from(name.ss_family) {
        libc::AF_INET => {
            // SAFETY: the kernel stored a sockaddr_in, and sockaddr_storage is aligned for it.
            let sin = unsafe { &*from.cast::<sockaddr_in>() };
            let ip = Ipv4Addr::from(sin.sin_addr.s_addr.to_ne_bytes());
            Some(SocketAddrV4::new(ip, u16::from_be(sin.sin_port)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: as above, a sockaddr_in6.
            let sin6 = unsafe { &*from.cast::<sockaddr_in6>() };
            let ip = Ipv6Addr::from(sin6.sin6_addr.s6_addr);
            Some(SocketAddrV6::new(ip, u16::from_be(sin6.sin6_port), 0, sin6.sin6_scope_id).into())
        }
        _ => None,
    }
}

/// Buffers for [`receive`], made once.
pub(super) struct RecvBuffers {
    bytes: Vec<u8>,
}

impl RecvBuffers {
    pub(super) fn new() -> Self {
        Self { bytes: vec![0; RECV_BATCH * RECV_BYTES] }
    }
}

/// Receives at most one batch of trains; returns how many there were.
pub(super) fn receive(
    socket: BorrowedFd<'_>,
    buffers: &mut RecvBuffers,
    sink: &mut dyn FnMut(Arrival<'_>),
) -> io::Result<usize> {
    // SAFETY: all of these are plain structures for which zeroes are a value.
    let (mut names, mut vectors, mut headers) = unsafe {
        (
            zeroed::<[sockaddr_storage; RECV_BATCH]>(),
            zeroed::<[iovec; RECV_BATCH]>(),
            zeroed::<[mmsghdr; RECV_BATCH]>(),
        )
    };
    let mut controls = [Control([0; CONTROL_BYTES]); RECV_BATCH];
    let slots = names.iter_mut().zip(&mut vectors).zip(&mut headers).zip(&mut controls);
    for (chunk, (((name, vector), header), control)) in buffers.bytes.chunks_exact_mut(RECV_BYTES).zip(slots)
    {
        vector.iov_base = chunk.as_mut_ptr().cast::<c_void>();
        vector.iov_len = chunk.len();
        let h = &mut header.msg_hdr;
        h.msg_name = (&raw mut *name).cast();
        h.msg_namelen = size_of::<sockaddr_storage>() as _;
        h.msg_iov = vector;
        h.msg_iovlen = 1;
        h.msg_control = (&raw mut *control).cast();
        h.msg_controllen = CONTROL_BYTES as _;
    }
    let now = clock_gettime(ClockId::Realtime);
    // SAFETY: each header points at a name, a vector, a control and a chunk of its own; all live until the
    // call returns.
    let got = unsafe {
        libc::recvmmsg(
            socket.as_raw_fd(),
            headers.as_mut_ptr(),
            RECV_BATCH as _,
            libc::MSG_DONTWAIT,
            std::ptr::null_mut(),
        )
    };
    let got = match usize::try_from(got) {
        Ok(got) => got,
        Err(_) => {
            let error = io::Error::last_os_error();
            return if error.kind() == io::ErrorKind::WouldBlock { Ok(0) } else { Err(error) };
        }
    };
    let chunks = buffers.bytes.chunks_exact(RECV_BYTES);
    for ((chunk, name), header) in chunks.zip(&names).zip(&headers).take(got) {
        let len = header.msg_len as usize;
        let truncated = header.msg_hdr.msg_flags & libc::MSG_TRUNC != 0;
        let (Some(source), Some(bytes)) = (get_name(name), chunk.get(..len)) else { continue };
        if truncated || bytes.is_empty() {
            continue;
        }
        let told = Told::by(&header.msg_hdr);
        sink(Arrival {
            bytes,
            segment_bytes: told.segment_bytes.unwrap_or(len).clamp(1, len),
            source,
            ecn: Ecn::of(told.traffic_class),
            waited: told.stamp.map_or(Duration::ZERO, |stamp| wait_since(stamp, now)),
        });
    }
    Ok(got)
}

/// What control messages tell of a received train.
#[derive(Default)]
struct Told {
    /// Bytes of each segment, when there are several.
    segment_bytes: Option<usize>,
    traffic_class: u8,
    /// When the kernel received it, by CLOCK_REALTIME.
    stamp: Option<timespec>,
}

impl Told {
    fn by(h: &msghdr) -> Self {
        let mut told = Self::default();
        // SAFETY: the kernel filled the control buffer that `h` describes and set its length; the walk stays
        // inside as CMSG_NXTHDR checks.
        let mut next = unsafe { libc::CMSG_FIRSTHDR(h) };
        // SAFETY: as above, not null is a whole cmsghdr.
        while let Some(control) = unsafe { next.as_ref() } {
            match (control.cmsg_level, control.cmsg_type) {
                (libc::SOL_UDP, libc::UDP_GRO) => {
                    told.segment_bytes = get::<c_int>(control).and_then(|size| usize::try_from(size).ok());
                }
                (libc::IPPROTO_IP, libc::IP_TOS) => {
                    told.traffic_class = get::<u8>(control).unwrap_or_default();
                }
                (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                    told.traffic_class = get::<c_int>(control).unwrap_or_default() as u8;
                }
                (libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS) => told.stamp = get(control),
                _ => {}
            }
            // SAFETY: `control` is a message of the buffer that `h` describes.
            next = unsafe { libc::CMSG_NXTHDR(h, control) };
        }
        told
    }
}

/// The value of a control message that the kernel has written, if it is long enough. `T` is an integer or made of them.
fn get<T: Copy>(control: &cmsghdr) -> Option<T> {
    // SAFETY: this only adds up lengths.
    let needed = unsafe { libc::CMSG_LEN(size_of::<T>() as u32) };
    // SAFETY: the message's length says that a T follows its header; any bytes are one.
    (control.cmsg_len >= needed as _)
        .then(|| unsafe { libc::CMSG_DATA(control).cast::<T>().read_unaligned() })
}

/// How long ago `stamp` was at `now`, both by CLOCK_REALTIME, which can be set: nothing where it must have been.
fn wait_since(stamp: timespec, now: rustix::time::Timespec) -> Duration {
    const LONGEST: i128 = 1_000_000_000;
    let nanos = |s: i64, ns: i64| i128::from(s) * 1_000_000_000 + i128::from(ns);
    let waited = nanos(now.tv_sec, now.tv_nsec) - nanos(stamp.tv_sec, stamp.tv_nsec);
    match waited {
        0..=LONGEST => Duration::from_nanos(waited as u64),
        _ => Duration::ZERO,
    }
}

/// Sets an integer socket option.
pub(super) fn set_option(
    socket: BorrowedFd<'_>,
    level: c_int,
    option: c_int,
    value: c_int,
) -> io::Result<()> {
    let value: *const c_int = &value;
    // SAFETY: `value` points at a c_int that lives until the call returns.
    let result =
        unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, value.cast(), size_of::<c_int>() as _) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Lets the socket receive nothing: a filter that keeps no byte of any packet.
pub(super) fn refuse_packets(socket: BorrowedFd<'_>) -> io::Result<()> {
    let mut ret_0 = libc::sock_filter { code: (libc::BPF_RET | libc::BPF_K) as u16, jt: 0, jf: 0, k: 0 };
    let program = libc::sock_fprog { len: 1, filter: &raw mut ret_0 };
    let program: *const libc::sock_fprog = &program;
    // SAFETY: the program and its one instruction live until the call returns, which copies them.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_FILTER,
            program.cast(),
            size_of::<libc::sock_fprog>() as _,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
