//! Captures: from the middle of the data path to a client that may be slow.
//!
//! ```text
//!  engine ─► Tap: headers, copy ─► queue (bounded; what does not fit is counted) ─► Capture: blocks of a pcapng file ─► client
//! ```
//!
//! There are few captures at the same time, so a client that takes next to nothing does not keep one: see [`Capture::pieces`].

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime};

use futures_util::{Stream, stream};
use masq_driver::{Command, DriverError, PacketTap, QpHandle, RnicDriver, TappedPacket, VnicId};
use masq_wire::ip::{IPV4_LEN, IPV6_LEN, Ipv4Repr, Ipv6Repr, PROTO_UDP, UDP_LEN, UdpRepr, udp_checksum_v6};
use masq_wire::{Ipv4Ident, pcapng};
use tokio::sync::mpsc::error::SendTimeoutError;
use tokio::sync::{OwnedSemaphorePermit, mpsc, watch};
use tokio::time::{Instant, sleep_until};
use tracing::warn;

/// Packets that wait for the client.
const MAX_PACKETS: usize = 8192;
/// Bytes of them.
const MAX_BYTES: usize = 16 << 20;
/// Packets that leave as one piece.
const PACKETS_AT_ONCE: usize = 256;
/// How long a client may take for a piece when the next one is there.
const PIECE_PATIENCE: Duration = Duration::from_secs(10);
/// What is written where nobody knows: received packets do not tell.
const USUAL_HOP_LIMIT: u8 = 64;

const TIME_OVER: &str = "its time was over";

/// How much is wanted.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    /// Packets; `None` is any number.
    pub packets: Option<u64>,
    /// For how long.
    pub duration: Duration,
    /// Bytes of each packet, IP header included.
    pub snaplen: u32,
}

/// Whose packets are wanted.
#[derive(Clone)]
pub struct Target {
    /// The RNIC.
    pub rnic: Arc<dyn RnicDriver>,
    /// The device.
    pub vnic: VnicId,
    /// The queue pair.
    pub qp: QpHandle,
    /// What is said of it in the file.
    pub comment: String,
    /// What the file calls it.
    pub name: String,
}

/// A packet as it stands in the file, but for what was dropped before it.
#[derive(Debug)]
struct Kept {
    time_ns: u64,
    is_sent: bool,
    original_len: u32,
    dropped_before: u64,
    bytes: Vec<u8>,
}

/// What engine and client both know.
#[derive(Debug, Default)]
struct Counts {
    /// Packets of the connection.
    seen: AtomicU64,
    /// Those that did not fit.
    dropped: AtomicU64,
    /// Bytes that wait.
    waiting_bytes: AtomicUsize,
    /// There have been as many as were wanted.
    enough: AtomicBool,
}

/// The engine's side.
#[derive(Debug)]
struct Tap {
    queue: mpsc::Sender<Kept>,
    counts: Arc<Counts>,
    most: u64,
    snaplen: usize,
    deadline: Instant,
    /// Packets that were dropped since one was kept.
    lost: AtomicU64,
}

impl PacketTap for Tap {
    fn packet(&self, packet: &TappedPacket<'_>) -> bool {
        // The client's side, too, ends it in time, when it runs: a client that takes little holds that up.
        if self.queue.is_closed() || Instant::now() >= self.deadline {
            return false;
        }
        let counts = &self.counts;
        counts.seen.fetch_add(1, Ordering::Relaxed);
        if self.queue.capacity() == 0 || counts.waiting_bytes.load(Ordering::Relaxed) >= MAX_BYTES {
            self.drop_packet();
            return true;
        }
        let kept = self.keep(packet);
        let len = kept.bytes.len();
        let has_room = counts.waiting_bytes.fetch_add(len, Ordering::Relaxed) + len <= MAX_BYTES;
        if has_room && self.queue.try_send(kept).is_ok() {
            self.lost.store(0, Ordering::Relaxed);
            let kept = counts.seen.load(Ordering::Relaxed) - counts.dropped.load(Ordering::Relaxed);
            let enough = kept >= self.most;
            counts.enough.store(enough, Ordering::Relaxed);
            return !enough;
        }
        counts.waiting_bytes.fetch_sub(len, Ordering::Relaxed);
        self.drop_packet();
        true
    }
}

impl Tap {
    fn drop_packet(&self) {
        self.counts.dropped.fetch_add(1, Ordering::Relaxed);
        self.lost.fetch_add(1, Ordering::Relaxed);
    }

    fn keep(&self, packet: &TappedPacket<'_>) -> Kept {
        let mut bytes = Vec::with_capacity((IPV6_LEN + UDP_LEN + packet.bytes.len()).min(self.snaplen));
        put_headers(&mut bytes, packet);
        let original_len = (bytes.len() + packet.bytes.len()) as u32;
        bytes.truncate(self.snaplen);
        let room = self.snaplen - bytes.len();
        bytes.extend(packet.bytes.iter().take(room));
        Kept {
            time_ns: unix_ns(SystemTime::now()).saturating_sub(packet.age.as_nanos() as u64),
            is_sent: packet.is_sent,
            original_len,
            dropped_before: self.lost.load(Ordering::Relaxed),
            bytes,
        }
    }
}

/// The IP and UDP headers, as they are or were on the way as far as that is known.
fn put_headers(out: &mut Vec<u8>, packet: &TappedPacket<'_>) {
    let payload_len = packet.bytes.len().min(usize::from(u16::MAX) - IPV6_LEN - UDP_LEN) as u16;
    let (src, dst): (SocketAddr, SocketAddr) = (packet.source, packet.destination);
    let ttl = packet.hop_limit.unwrap_or(USUAL_HOP_LIMIT);
    let mut udp = UdpRepr { src_port: src.port(), dst_port: dst.port(), payload_len, checksum: 0 };
    let ip_payload_len = payload_len + UDP_LEN as u16;
    match (src.ip(), dst.ip()) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            let ident = Ipv4Ident { id: packet.ipv4_id, dont_fragment: packet.dont_fragment };
            let mut header = [0; IPV4_LEN];
            let tos = packet.traffic_class;
            Ipv4Repr { src, dst, protocol: PROTO_UDP, tos, ident, ttl, payload_len: ip_payload_len }
                .emit(&mut header);
            out.extend_from_slice(&header);
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            let mut header = [0; IPV6_LEN];
            let traffic_class = packet.traffic_class;
            let next_header = PROTO_UDP;
            let ip = Ipv6Repr {
                src,
                dst,
                next_header,
                traffic_class,
                flow_label: 0,
                hop_limit: ttl,
                payload_len: ip_payload_len,
            };
            ip.emit(&mut header);
            out.extend_from_slice(&header);
            // Over IPv6 there must be one.
            udp.checksum = udp_checksum_v6(src, dst, &udp, packet.bytes);
        }
        _ => {}
    }
    let mut header = [0; UDP_LEN];
    udp.emit(&mut header);
    out.extend_from_slice(&header);
}

fn unix_ns(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |d| d.as_nanos() as u64)
}

/// The client has not taken a piece of the file in time.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the client left what was captured lying for {} s", PIECE_PATIENCE.as_secs())]
pub struct TooSlow;

/// The client's side: the pieces of a file. Dropping it ends the capture.
pub struct Capture {
    target: Target,
    tap: Weak<Tap>,
    queue: mpsc::Receiver<Kept>,
    counts: Arc<Counts>,
    began: SystemTime,
    deadline: Instant,
    ending: watch::Receiver<bool>,
    snaplen: u32,
    /// Why it has ended, once it has.
    end: Option<&'static str>,
    stage: Stage,
    _permit: OwnedSemaphorePermit,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Begin,
    Packets,
    Done,
}

impl Capture {
    /// Begins to capture.
    pub async fn start(
        target: Target,
        wanted: Wanted,
        ending: watch::Receiver<bool>,
        permit: OwnedSemaphorePermit,
    ) -> Result<Capture, DriverError> {
        let (sender, queue) = mpsc::channel(MAX_PACKETS);
        let counts = Arc::new(Counts::default());
        let deadline = Instant::now() + wanted.duration;
        let tap = Arc::new(Tap {
            queue: sender,
            counts: counts.clone(),
            most: wanted.packets.unwrap_or(u64::MAX),
            snaplen: wanted.snaplen as usize,
            deadline,
            lost: AtomicU64::new(0),
        });
        let capture = Capture {
            tap: Arc::downgrade(&tap),
            queue,
            counts,
            began: SystemTime::now(),
            deadline,
            ending,
            snaplen: wanted.snaplen,
            end: None,
            stage: Stage::Begin,
            _permit: permit,
            target,
        };
        let Target { rnic, vnic, qp, .. } = capture.target.clone();
        let start = move || rnic.execute(Command::StartCapture { vnic, qp, tap });
        let started = tokio::task::spawn_blocking(start).await;
        started.map_err(|_| DriverError::Stopped)??;
        Ok(capture)
    }

    /// The pieces of the file, for a client. One that leaves the next piece lying for [`PIECE_PATIENCE`] loses the capture: it is over then, whatever
    /// becomes of the client, and its stream ends with an error. So is one whose client has gone away.
    pub fn pieces(self) -> impl Stream<Item = Result<Vec<u8>, TooSlow>> + Send + 'static {
        let (sender, receiver) = mpsc::channel(1);
        let writing = tokio::spawn(self.write_to(sender));
        stream::unfold(Some((receiver, writing)), async |state| {
            let (mut receiver, writing) = state?;
            if let Some(piece) = receiver.recv().await {
                return Some((Ok(piece), Some((receiver, writing))));
            }
            // It does not panic.
            writing.await.unwrap_or(Err(TooSlow)).err().map(|slow| (Err(slow), None))
        })
    }

    async fn write_to(mut self, client: mpsc::Sender<Vec<u8>>) -> Result<(), TooSlow> {
        loop {
            let piece = tokio::select! {
                piece = self.next() => piece,
                () = client.closed() => None,
            };
            let Some(piece) = piece else { return Ok(()) };
            match client.send_timeout(piece, PIECE_PATIENCE).await {
                Ok(()) => {}
                Err(SendTimeoutError::Closed(_)) => return Ok(()),
                Err(SendTimeoutError::Timeout(_)) => {
                    warn!(
                        capture = self.target.name,
                        "a capture has ended: its client takes too little of it"
                    );
                    return Err(TooSlow);
                }
            }
        }
    }

    /// The next piece of the file; `None` when there is no more.
    async fn next(&mut self) -> Option<Vec<u8>> {
        let mut out = Vec::new();
        match self.stage {
            Stage::Begin => {
                pcapng::section_header(&mut out, "masqd", &self.target.comment);
                pcapng::interface(&mut out, &self.target.name, self.snaplen);
                self.stage = Stage::Packets;
            }
            Stage::Packets => {
                let kept = self.wait().await;
                for packet in &kept {
                    self.counts.waiting_bytes.fetch_sub(packet.bytes.len(), Ordering::Relaxed);
                    let block = pcapng::Packet {
                        time_ns: packet.time_ns,
                        is_sent: packet.is_sent,
                        parts: [&packet.bytes, &[]],
                        original_len: packet.original_len,
                        dropped: packet.dropped_before,
                    };
                    pcapng::packet(&mut out, &block);
                }
                if kept.is_empty() {
                    self.put_end(&mut out);
                    self.stage = Stage::Done;
                }
            }
            Stage::Done => return None,
        }
        Some(out)
    }

    /// The next packets; none when it has ended.
    async fn wait(&mut self) -> Vec<Kept> {
        let mut kept = Vec::new();
        while self.end.is_none() {
            let mut ending = self.ending.clone();
            let over = async move {
                let _ = ending.wait_for(|ending| *ending).await;
            };
            tokio::select! {
                _ = self.queue.recv_many(&mut kept, PACKETS_AT_ONCE) => return kept,
                () = sleep_until(self.deadline) => self.stop(TIME_OVER).await,
                () = over => self.stop("masqd ended").await,
            }
        }
        // What came before it ended.
        self.queue.recv_many(&mut kept, PACKETS_AT_ONCE).await;
        kept
    }

    async fn stop(&mut self, why: &'static str) {
        self.end = Some(why);
        if let Some(stop) = self.stopping()
            && tokio::task::spawn_blocking(stop).await.is_err()
        {
            warn!("a capture could not be stopped");
        }
    }

    /// What ends it in the RNIC, unless it has ended there.
    fn stopping(&self) -> Option<impl FnOnce() + Send + 'static> {
        let tap = self.tap.upgrade()?;
        let Target { rnic, vnic, qp, .. } = self.target.clone();
        Some(move || {
            if let Err(error) = rnic.execute(Command::StopCapture { vnic, qp, tap }) {
                warn!(%error, "a capture could not be stopped");
            }
        })
    }

    fn put_end(&self, out: &mut Vec<u8>) {
        let enough = self.counts.enough.load(Ordering::Relaxed);
        let why = match self.end {
            Some(why) => why,
            None if enough => "there were as many packets as were asked for",
            None if Instant::now() >= self.deadline => TIME_OVER,
            None => "the queue pair, or its device, was gone",
        };
        let (seen, dropped) =
            (self.counts.seen.load(Ordering::Relaxed), self.counts.dropped.load(Ordering::Relaxed));
        let comment = format!("The capture ended because {why}.");
        let statistics = pcapng::Statistics {
            start_ns: unix_ns(self.began),
            end_ns: unix_ns(SystemTime::now()),
            seen,
            dropped,
            comment: &comment,
        };
        pcapng::statistics(out, &statistics);
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        if let Some(stop) = self.stopping() {
            match tokio::runtime::Handle::try_current() {
                // It waits for the RNIC.
                Ok(runtime) => drop(runtime.spawn_blocking(stop)),
                Err(_) => stop(),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::{Mutex, PoisonError};

    use futures_util::StreamExt;
    use masq_driver::Reply;
    use masq_wire::IcrcVerdict;
    use masq_wire::ip::Datagram;
    use tokio::sync::Semaphore;

    use super::*;

    /// Keeps the tap that it was given.
    #[derive(Default)]
    struct Rnic(Mutex<Option<Arc<dyn PacketTap>>>);

    impl RnicDriver for Rnic {
        fn execute(&self, command: Command) -> Result<Reply, DriverError> {
            let mut present = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            match command {
                Command::StartCapture { tap, .. } => *present = Some(tap),
                Command::StopCapture { tap, .. } => drop(present.take_if(|p| Arc::ptr_eq(p, &tap))),
                other => panic!("{other:?}"),
            }
            Ok(Reply::Done)
        }
    }

    impl Rnic {
        /// Shows a packet, as an engine does. Returns whether there is a tap.
        fn show(&self, p: &TappedPacket<'_>) -> bool {
            let mut tap = self.0.lock().unwrap();
            if tap.as_ref().is_some_and(|tap| !tap.packet(p)) {
                *tap = None;
            }
            tap.is_some()
        }

        fn has_tap(&self) -> bool {
            self.0.lock().unwrap().is_some()
        }
    }

    fn packet(bytes: &[u8], is_sent: bool) -> TappedPacket<'_> {
        TappedPacket {
            is_sent,
            age: Duration::from_millis(5),
            source: "10.0.0.1:50000".parse().unwrap(),
            destination: "10.0.0.2:4791".parse().unwrap(),
            traffic_class: 0x6a,
            hop_limit: Some(9),
            ipv4_id: 3,
            dont_fragment: true,
            bytes,
        }
    }

    struct World {
        rnic: Arc<Rnic>,
        slots: Arc<Semaphore>,
        ending: watch::Sender<bool>,
    }

    impl World {
        fn new() -> World {
            World {
                rnic: Arc::default(),
                slots: Arc::new(Semaphore::new(1)),
                ending: watch::Sender::new(false),
            }
        }

        async fn capture(&self, packets: Option<u64>, duration: Duration, snaplen: u32) -> Capture {
            let target = Target {
                rnic: self.rnic.clone(),
                vnic: VnicId(1),
                qp: QpHandle(2),
                comment: "who".into(),
                name: "what".into(),
            };
            let permit = self.slots.clone().try_acquire_owned().unwrap();
            let wanted = Wanted { packets, duration, snaplen };
            Capture::start(target, wanted, self.ending.subscribe(), permit).await.unwrap()
        }
    }

    const LONG: Duration = Duration::from_secs(100);

    /// Types of the blocks of a file.
    fn blocks(file: &[u8]) -> Vec<(u32, Vec<u8>)> {
        let mut rest = file;
        let mut all = Vec::new();
        while !rest.is_empty() {
            let word = |at: usize| u32::from_le_bytes(rest[at..at + 4].try_into().unwrap());
            let len = word(4) as usize;
            all.push((word(0), rest[..len].to_vec()));
            rest = &rest[len..];
        }
        all
    }

    async fn whole(capture: Capture) -> Vec<(u32, Vec<u8>)> {
        let mut pieces = pin!(capture.pieces());
        let mut file = Vec::new();
        while let Some(piece) = pieces.next().await {
            file.extend(piece.unwrap());
        }
        blocks(&file)
    }

    fn kinds(blocks: &[(u32, Vec<u8>)]) -> Vec<u32> {
        blocks.iter().map(|(kind, _)| *kind).collect()
    }

    fn says(blocks: &[(u32, Vec<u8>)], what: &str) -> bool {
        blocks.last().unwrap().1.windows(what.len()).any(|w| w == what.as_bytes())
    }

    #[tokio::test]
    async fn a_file_has_as_many_packets_as_were_asked_for() {
        let w = World::new();
        let capture = w.capture(Some(2), LONG, 65_535).await;
        assert!(w.rnic.show(&packet(&[1; 20], true)));
        assert!(!w.rnic.show(&packet(&[2; 20], false)), "that was enough");
        let file = whole(capture).await;
        assert_eq!(kinds(&file), [0x0a0d_0d0a, 1, 6, 6, 5]);
        assert!(says(&file, "as many packets as were asked for"));
        assert_eq!(w.slots.available_permits(), 1);
    }

    /// What a packet was on the way is in the file: headers with right lengths and checksums, and an ICRC that fits them.
    #[tokio::test]
    async fn packets_have_the_headers_that_they_had() {
        for (source, destination) in [("10.0.0.1", "10.0.0.2"), ("fd00::1", "fd00::2")] {
            let (src, dst): (IpAddr, IpAddr) = (source.parse().unwrap(), destination.parse().unwrap());
            let flow = masq_wire::IcrcFlow::new(src, dst, 50_000).unwrap();
            let mut bytes = vec![0x11, 0, 0xff, 0xff, 0, 0, 0, 7, 0, 0, 0, 1, 0x1f, 0, 0, 1];
            let icrc = flow.compute(&bytes, 3).to_le_bytes();
            bytes.extend(icrc);
            let shown = TappedPacket {
                source: SocketAddr::new(src, 50_000),
                destination: SocketAddr::new(dst, 4791),
                ..packet(&bytes, true)
            };
            let w = World::new();
            let capture = w.capture(Some(1), LONG, 65_535).await;
            w.rnic.show(&shown);
            let file = whole(capture).await;
            let block = &file[2].1;
            let len = u32::from_le_bytes(block[20..24].try_into().unwrap()) as usize;
            let ip = &block[28..28 + len];
            let parsed = Datagram::parse(ip).unwrap();
            assert_eq!((parsed.src, parsed.dst, parsed.tos, parsed.payload), (src, dst, 0x6a, &bytes[..]));
            assert_eq!(parsed.check_icrc(), IcrcVerdict::Exact);
        }
    }

    #[tokio::test]
    async fn a_short_snaplen_keeps_the_true_length() {
        let w = World::new();
        let capture = w.capture(Some(1), LONG, 128).await;
        w.rnic.show(&packet(&[7; 4000], true));
        let block = &whole(capture).await[2].1;
        let word = |at: usize| u32::from_le_bytes(block[at..at + 4].try_into().unwrap());
        assert_eq!((word(20), word(24)), (128, 4028));
    }

    /// A client that takes nothing holds up nobody: what does not fit is counted, and the next packet in the file tells.
    #[tokio::test(start_paused = true)]
    async fn what_does_not_fit_is_counted() {
        let w = World::new();
        let capture = w.capture(None, Duration::from_secs(2), 65_535).await;
        let big = [7; 4096];
        for _ in 0..2 * MAX_PACKETS {
            assert!(w.rnic.show(&packet(&big, true)));
        }
        let counts = capture.counts.clone();
        assert!(counts.waiting_bytes.load(Ordering::Relaxed) <= MAX_BYTES);
        let file = whole(capture).await;
        let kept = kinds(&file).iter().filter(|k| **k == 6).count();
        let dropped = counts.dropped.load(Ordering::Relaxed) as usize;
        assert!(kept > 1000 && dropped > 1000, "{kept} and {dropped}");
        assert_eq!((kept + dropped, counts.waiting_bytes.load(Ordering::Relaxed)), (2 * MAX_PACKETS, 0));
        assert!(says(&file, "its time was over"));
        assert!(!w.rnic.has_tap());
    }

    #[tokio::test]
    async fn it_ends_with_its_queue_pair_and_with_masqd() {
        let w = World::new();
        let capture = w.capture(None, LONG, 65_535).await;
        w.rnic.show(&packet(&[1; 20], true));
        *w.rnic.0.lock().unwrap() = None;
        let file = whole(capture).await;
        assert_eq!(kinds(&file), [0x0a0d_0d0a, 1, 6, 5]);
        assert!(says(&file, "was gone"));
        let capture = w.capture(None, LONG, 65_535).await;
        w.ending.send_replace(true);
        assert!(says(&whole(capture).await, "masqd ended"));
        assert!(!w.rnic.has_tap());
    }

    /// Also while there is nothing to send it.
    #[tokio::test]
    async fn a_client_that_goes_away_ends_it() {
        let w = World::new();
        let mut pieces = Box::pin(w.capture(None, LONG, 65_535).await.pieces());
        pieces.next().await.unwrap().unwrap();
        assert!(w.rnic.has_tap());
        drop(pieces);
        while w.rnic.has_tap() {
            tokio::task::yield_now().await;
        }
        assert_eq!(w.slots.available_permits(), 1);
    }

    /// It keeps its connection, and nothing else.
    #[tokio::test(start_paused = true)]
    async fn a_client_that_takes_too_little_loses_it() {
        let w = World::new();
        let mut pieces = pin!(w.capture(None, LONG, 65_535).await.pieces());
        // As long as there is nothing to take, nobody is slow.
        pieces.next().await.unwrap().unwrap();
        tokio::time::sleep(2 * PIECE_PATIENCE).await;
        for _ in 0..2 {
            w.rnic.show(&packet(&[1; 20], true));
            // The second one finds the first still there.
            tokio::time::sleep(PIECE_PATIENCE / 2).await;
        }
        assert!(w.rnic.has_tap() && w.slots.available_permits() == 0);
        pieces.next().await.unwrap().unwrap();
        w.rnic.show(&packet(&[1; 20], true));
        tokio::time::sleep(PIECE_PATIENCE * 3 / 4).await;
        assert!(w.rnic.has_tap(), "what was taken in time counts");
        tokio::time::sleep(PIECE_PATIENCE / 2).await;
        while w.rnic.has_tap() {
            tokio::task::yield_now().await;
        }
        assert_eq!(w.slots.available_permits(), 1);
        pieces.next().await.unwrap().unwrap();
        assert!(pieces.next().await.unwrap().is_err(), "it does not look like the file's end");
        assert!(pieces.next().await.is_none());
    }
}
