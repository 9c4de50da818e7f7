//! A connection on a device, with a clock.
#![allow(unsafe_code)] // A protection domain may come from a program in C.

use std::io::{self, Read, Write};
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mp_core::Nanos;
use mp_core::endpoint::{
    Completion, Config, Endpoint, PathStats, Policies, PostError, Receive, Request, Status,
};
use mp_core::monitor::{Passive, Probing};
use mp_core::pace::{Lossless, Lossy};
use mp_core::schedule::{LeastLoaded, RoundRobin, Weighted};

use crate::connection::Connection;
use crate::device::Device;
use crate::hello::{Hello, PATHS_MAX, meet};
use crate::queue_pairs::{Agreed, QueuePairs, Settings, random};
use crate::sys::ibv_pd;

/// Which path takes the next part of a message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Scheduling {
    /// The one that is done with it first.
    #[default]
    LeastLoaded,
    /// Each in turn.
    RoundRobin,
    /// In proportion to weights, one for each path in order.
    Weighted(Vec<u32>),
}

/// How capacities are found out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Monitoring {
    /// From completions.
    #[default]
    Passive,
    /// By probing flows of so many bytes (at least 512 KiB) on each path, so many nanoseconds apart.
    Probing {
        /// A flow's length.
        bytes: u32,
        /// From one flow on a path to the next.
        interval_ns: u64,
    },
}

/// What the network does with what comes too thick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Network {
    /// It holds back. Bytes in flight on a path are bounded by a window.
    Lossless {
        /// Bytes of the largest work request, not 0.
        chunk_bytes: u64,
        /// Bytes in flight on a path; one work request is always allowed.
        window_bytes: u64,
    },
    /// It loses it. A path has one work request at a time, whose size is found out.
    Lossy {
        /// The first size in bytes; at least `small_bytes`.
        start_bytes: u64,
        /// Growth after the first loss, in bytes.
        step_bytes: u64,
        /// The largest size in bytes.
        most_bytes: u64,
    },
}

impl Default for Network {
    fn default() -> Self {
        let Lossless { chunk_bytes, window_bytes } = Lossless::default();
        Self::Lossless { chunk_bytes, window_bytes }
    }
}

/// What a connection is to be like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attr {
    /// The device's port; 1 by default.
    pub port: u8,
    /// Indexes of the GIDs of the paths in order, 1 to 16; the peer has as many, or the smaller number counts.
    pub gid_indexes: Vec<u8>,
    /// Local ACK timeout: 4.096 µs times 2 to the power of this, 1 to 31; 14 (67 ms) by default.
    pub timeout: u8,
    /// Retries after the first, 0 to 7; 3 by default: a path is given up after (retries + 1) timeouts, or what the device makes of it.
    pub retry_cnt: u8,
    /// Work requests that each path takes, 2 to 4096; 64 by default.
    pub depth: u32,
    /// Outstanding messages, and receives; 1024 by default, and at least 1.
    pub messages: u32,
    /// Messages of no more bytes are not split; 32 KiB by default.
    pub small_bytes: u32,
    /// Which path is next.
    pub scheduling: Scheduling,
    /// How capacities are found out.
    pub monitoring: Monitoring,
    /// What the network is like.
    pub network: Network,
}

impl Attr {
    /// The defaults, with paths from these GIDs.
    pub fn new(gid_indexes: Vec<u8>) -> Self {
        Self {
            port: 1,
            gid_indexes,
            timeout: 14,
            retry_cnt: 3,
            depth: 64,
            messages: 1024,
            small_bytes: 32 << 10,
            scheduling: Scheduling::default(),
            monitoring: Monitoring::default(),
            network: Network::default(),
        }
    }

    fn check(&self) -> io::Result<()> {
        let bad = |what| Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        if !(1..=PATHS_MAX).contains(&self.gid_indexes.len()) {
            return bad("a connection has 1 to 16 paths");
        }
        if !(1..=31).contains(&self.timeout) || self.retry_cnt > 7 {
            return bad("timeout is 1 to 31, retry_cnt 0 to 7");
        }
        if !(2..=4096).contains(&self.depth) || self.messages == 0 {
            return bad("depth is 2 to 4096, messages not 0");
        }
        match self.network {
            Network::Lossless { chunk_bytes: 0, .. } => bad("chunk_bytes is not 0"),
            Network::Lossy { start_bytes, most_bytes, .. }
                if start_bytes < u64::from(self.small_bytes).max(1) || most_bytes < start_bytes =>
            {
                bad("start_bytes is small_bytes or more, most_bytes is start_bytes or more")
            }
            _ => Ok(()),
        }
    }

    fn policies(&self) -> Policies {
        Policies {
            scheduler: match &self.scheduling {
                Scheduling::LeastLoaded => Box::new(LeastLoaded),
                Scheduling::RoundRobin => Box::new(RoundRobin::default()),
                Scheduling::Weighted(weights) => Box::new(Weighted::new(weights.clone())),
            },
            monitor: match self.monitoring {
                Monitoring::Passive => Box::new(Passive::default()),
                Monitoring::Probing { bytes, interval_ns } => Box::new(Probing::new(bytes, interval_ns)),
            },
            control: match self.network {
                Network::Lossless { chunk_bytes, window_bytes } => {
                    Box::new(Lossless { chunk_bytes, window_bytes })
                }
                Network::Lossy { start_bytes, step_bytes, most_bytes } => {
                    Box::new(Lossy::new(start_bytes, step_bytes, most_bytes))
                }
            },
        }
    }

    fn probe_bytes(&self) -> u32 {
        match self.monitoring {
            Monitoring::Passive => 0,
            Monitoring::Probing { bytes, .. } => bytes.max(mp_core::monitor::PROBE_BYTES_MIN),
        }
    }
}

/// One end of a connection over several paths.
///
/// It does nothing by itself: [`poll_cq`](Self::poll_cq) or [`get_cq_event`](Self::get_cq_event) must be called at both ends for anything to go on that
/// the peer waits for, such as receives that were posted, or a path that has failed.
#[derive(Debug)]
pub struct MpQp {
    connection: Connection<QueuePairs>,
    began: Instant,
    /// The protection domain's owner; dropped after the queue pairs.
    _device: Option<Arc<Device>>,
}

impl MpQp {
    /// Connects to the peer at the other end of a stream socket, which does the same. The socket is not used afterwards; what is read or written there takes
    /// as long as the socket's own timeouts allow.
    ///
    /// InvalidInput for attributes out of their range, InvalidData for a peer of another kind, else the device's and the socket's errors.
    pub fn connect(device: &Arc<Device>, stream: &mut (impl Read + Write), attr: &Attr) -> io::Result<Self> {
        // SAFETY: the connection holds the device.
        let connection = unsafe { Self::connect_pd(device.pd(), stream, attr) }?;
        Ok(Self { _device: Some(device.clone()), ..connection })
    }

    /// The same with a protection domain of libibverbs.
    ///
    /// # Safety
    ///
    /// `pd` must be one, and live longer than the connection.
    pub unsafe fn connect_pd(
        pd: NonNull<ibv_pd>,
        stream: &mut (impl Read + Write),
        attr: &Attr,
    ) -> io::Result<Self> {
        attr.check()?;
        // Either end may probe, so both have memory for it.
        let settings = Settings {
            port: attr.port,
            depth: attr.depth,
            timeout: attr.timeout,
            retry_cnt: attr.retry_cnt,
            probe_bytes: attr.probe_bytes(),
        };
        // SAFETY: the caller says so.
        let mut queue_pairs = unsafe { QueuePairs::new(pd, settings, &attr.gid_indexes) }?;
        let (mtu, responder_reads, probe) = queue_pairs.capabilities();
        let hello = Hello {
            paths: (0..attr.gid_indexes.len()).map(|path| queue_pairs.address(path)).collect(),
            mtu,
            responder_reads,
            nonce: random()?,
            probe: (probe, settings.probe_bytes),
        };
        let peer = hello.exchange(stream)?;
        let paths = hello.paths.len().min(peer.paths.len());
        let agreed =
            Agreed { mtu: mtu.min(peer.mtu), peer_reads: peer.responder_reads, peer_probe: peer.probe.0 };
        queue_pairs.agree(agreed, &peer.paths[..paths])?;
        for (path, address) in peer.paths[..paths].iter().enumerate() {
            crate::fabric::Fabric::connect(&mut queue_pairs, path, address.params)?;
        }
        // Nobody sends before the other is ready to receive.
        meet(stream)?;

        let config = Config {
            depth: attr.depth,
            small_bytes: attr.small_bytes,
            messages: attr.messages,
            probe_bytes: settings.probe_bytes.min(peer.probe.1),
            ..Config::new(paths, hello.nonce > peer.nonce)
        };
        let connection = Connection::new(Endpoint::new(config, attr.policies()), queue_pairs);
        Ok(Self { connection, began: Instant::now(), _device: None })
    }

    /// Posts a WRITE, READ or SEND.
    pub fn post_send(&mut self, request: Request) -> Result<(), PostError> {
        let now = self.now();
        self.connection.post(request, now)
    }

    /// Posts a receive.
    pub fn post_recv(&mut self, receive: Receive) -> Result<(), PostError> {
        let now = self.now();
        self.connection.post_receive(receive, now)
    }

    /// The next completion, if there is one.
    pub fn poll_cq(&mut self) -> Option<Completion> {
        let now = self.now();
        self.connection.poll(now)
    }

    /// Sleeps until there is a completion, but not longer than `timeout`; tells whether there is one, or the connection has ended.
    pub fn get_cq_event(&mut self, timeout: Option<Duration>) -> io::Result<bool> {
        let deadline = timeout.map(|timeout| Instant::now() + timeout);
        loop {
            if self.prepare_sleep()? {
                return Ok(true);
            }
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return Ok(false);
            }
            sleep(self.fd(), self.sleep_time(left))?;
        }
    }

    /// Asks for an event, and looks once more: true if there is nothing to sleep for.
    pub(crate) fn prepare_sleep(&mut self) -> io::Result<bool> {
        let ready =
            |connection: &mut Connection<QueuePairs>, now| connection.progress(now) || connection.has_ended();
        // An event that has come is taken, so that the descriptor tells of what comes later.
        if sleep(self.fd(), Some(Duration::ZERO))? {
            self.connection.fabric().take_event()?;
        }
        let now = self.now();
        if ready(&mut self.connection, now) {
            return Ok(true);
        }
        self.connection.fabric().arm()?;
        Ok(ready(&mut self.connection, now))
    }

    /// How long may be slept, of `left`: until something is to be done without an event.
    pub(crate) fn sleep_time(&self, left: Option<Duration>) -> Option<Duration> {
        let next =
            self.connection.next_timeout().map(|at| Duration::from_nanos(at.saturating_sub(self.now())));
        // Not at once again, when a timeout is due that nothing can be done about yet.
        let next = next.map(|next| next.max(Duration::from_millis(1)));
        next.into_iter().chain(left).min()
    }

    /// A descriptor for poll(2) or epoll(7): readable when [`get_cq_event`](Self::get_cq_event), having been called without success, may have it.
    pub fn fd(&mut self) -> i32 {
        self.connection.fabric().fd()
    }

    /// Ends the connection when what was posted is complete, and waits for that, but no longer than `timeout`; tells whether it has ended. Completions
    /// can be polled afterwards; receives end flushed, at both ends.
    pub fn disconnect(&mut self, timeout: Duration) -> io::Result<bool> {
        let deadline = Instant::now() + timeout;
        let now = self.now();
        self.connection.disconnect(now);
        loop {
            if sleep(self.fd(), Some(Duration::ZERO))? {
                self.connection.fabric().take_event()?;
            }
            self.connection.fabric().arm()?;
            let now = self.now();
            self.connection.progress(now);
            let left = deadline.saturating_duration_since(Instant::now());
            if self.connection.has_ended() || left.is_zero() {
                return Ok(self.connection.has_ended());
            }
            sleep(self.fd(), self.sleep_time(Some(left)))?;
        }
    }

    /// Whether the connection has ended, and its queue pairs with it.
    pub fn has_ended(&self) -> bool {
        self.connection.has_ended()
    }

    /// The status that ended the connection, if it was neither end's wish.
    pub fn failure(&self) -> Option<Status> {
        self.connection.failure()
    }

    /// The device's error that ended the connection, if it was one.
    pub fn error(&self) -> Option<&io::Error> {
        self.connection.error()
    }

    /// Number of paths.
    pub fn paths(&mut self) -> usize {
        crate::fabric::Fabric::paths(self.connection.fabric())
    }

    /// A path as it is.
    pub fn path(&self, path: usize) -> PathStats {
        self.connection.path(path)
    }

    fn now(&self) -> Nanos {
        u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(Nanos::MAX)
    }
}

/// Waits until a descriptor is readable, or the time is over; tells whether it is.
pub(crate) fn sleep(fd: i32, time: Option<Duration>) -> io::Result<bool> {
    let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // Rounded up, so that nobody wakes before the time.
    let millis =
        time.map_or(-1, |time| i32::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(i32::MAX));
    // SAFETY: there is one entry.
    match unsafe { libc::poll(&mut poll, 1, millis) } {
        0 => Ok(false),
        1.. => Ok(true),
        _ => match io::Error::last_os_error() {
            error if error.kind() == io::ErrorKind::Interrupted => Ok(false),
            error => Err(error),
        },
    }
}
