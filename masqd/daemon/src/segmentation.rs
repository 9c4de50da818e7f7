//! Whether the RNIC gives the kernel whole trains of datagrams to cut, which saves most of what a datagram costs.
//!
//! The ICRC covers the IPv4 Identification, which the kernel writes: of a train that it cuts, 0, 1, 2, …, and 0 in a single datagram. Nothing
//! promises that, so it is looked at: in a network namespace of its own that ends with the thread that made it, a train is sent
//! through a veth device that cannot segment, and the other end shows what would be on the wire. A few milliseconds, at start.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use clap::ValueEnum;
use futures_util::stream::TryStreamExt;
use masq_rnic::{Network, Train, UdpSockets};
use masq_wire::ROCEV2_UDP_PORT;
use masq_wire::ip::{Ipv4Repr, PROTO_UDP};
use rtnetlink::packet_route::link::LinkAttribute;
use rtnetlink::{Handle, LinkUnspec, LinkVeth};
use rustix::net::{AddressFamily, Protocol, RecvFlags, SocketType, sockopt};
use tracing::{info, warn};

/// How datagrams leave and come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum UdpMode {
    /// With segmentation if the kernel numbers the segments as the ICRC needs it.
    Auto,
    /// With segmentation (UDP GSO and GRO).
    Gso,
    /// One by one, a batch with each system call.
    Plain,
}

/// What the kernel does with a train.
#[derive(Debug)]
enum Finding {
    /// It numbers its segments.
    Counts,
    /// It does something else.
    Differs(String),
    /// It was not possible to look.
    Unknown(io::Error),
}

/// Decides for the RNIC, and says why.
pub fn choose(mode: UdpMode) -> UdpSockets {
    let (segmentation, why) = match mode {
        UdpMode::Gso => (true, "as --udp says".into()),
        UdpMode::Plain => (false, "as --udp says".into()),
        UdpMode::Auto => match probe() {
            Finding::Counts => (true, "the kernel numbers segments as the ICRC needs it".into()),
            Finding::Differs(what) => {
                warn!("every datagram will cost a whole one in the kernel: {what}");
                (false, what)
            }
            Finding::Unknown(error) => (
                true,
                format!(
                    "it cannot be seen whether the kernel numbers segments as the ICRC needs it ({error}); if peers count \
                     rx_icrc_errors or rx_icrc_explained, --udp plain helps"
                ),
            ),
        },
    };
    let chosen = if segmentation { "gso" } else { "plain" };
    info!(udp = chosen, "datagrams leave {}: {why}", if segmentation { "in trains" } else { "one by one" });
    UdpSockets { segmentation }
}

/// Looks at what the kernel makes of a train.
fn probe() -> Finding {
    let thread = std::thread::Builder::new().name("udp-probe".into()).spawn(|| -> io::Result<Finding> {
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
        runtime.block_on(make_link())?;
        judge(&send_and_watch()?)
    });
    match thread.map(std::thread::JoinHandle::join) {
        Ok(Ok(Ok(finding))) => finding,
        Ok(Ok(Err(error))) | Err(error) => Finding::Unknown(error),
        Ok(Err(_)) => Finding::Unknown(io::Error::other("the look at it has failed")),
    }
}

const OURS: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const PEER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);
const PEER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];
/// Datagrams of the train, and bytes of each.
const TRAIN: (usize, usize) = (4, 300);

/// A veth pair: to send at one end, which cannot segment, and to look at the other.
async fn make_link() -> io::Result<()> {
    let (connection, handle, _) = rtnetlink::new_connection()?;
    let work = async {
        handle.link().add(LinkVeth::new("send", "watch").build()).execute().await?;
        let (sending, watching) = (index(&handle, "send").await?, index(&handle, "watch").await?);
        handle.link().set(LinkUnspec::new_with_index(watching).up().build()).execute().await?;
        let whole = LinkAttribute::GsoMaxSegs(1);
        let up = LinkUnspec::new_with_index(sending).append_extra_attribute(whole).up().build();
        handle.link().set(up).execute().await?;
        handle.address().add(sending, IpAddr::V4(OURS), 24).execute().await?;
        handle.neighbours().add(sending, IpAddr::V4(PEER)).link_layer_address(&PEER_MAC).execute().await
    };
    tokio::select! {
        done = work => done.map_err(io::Error::other),
        () = connection => Err(io::Error::other("the netlink socket has closed")),
    }
}

async fn index(handle: &Handle, name: &str) -> Result<u32, rtnetlink::Error> {
    let found = handle.link().get().match_name(name.to_owned()).execute().try_next().await?;
    found.map(|link| link.header.index).ok_or(rtnetlink::Error::RequestFailed)
}

/// Sends a train and a single datagram; returns the headers of what is seen, in order.
fn send_and_watch() -> io::Result<Vec<Ipv4Repr>> {
    const ETHERTYPE_IPV4: u16 = 0x0800;
    const PATIENCE: Duration = Duration::from_millis(30);
    const TRIES: usize = 3;
    let protocol = Protocol::from_raw(
        std::num::NonZeroU32::new(u16::to_be(ETHERTYPE_IPV4).into()).ok_or(io::ErrorKind::InvalidInput)?,
    );
    let watch = rustix::net::socket(AddressFamily::PACKET, SocketType::DGRAM, Some(protocol))?;
    sockopt::set_socket_timeout(&watch, sockopt::Timeout::Recv, Some(PATIENCE))?;
    let mut sockets = UdpSockets { segmentation: true }.bind(IpAddr::V4(OURS), &std::sync::Arc::default())?;
    let (segments, segment_bytes) = TRAIN;
    let bytes = vec![0; segments * segment_bytes];
    let destination = SocketAddr::new(IpAddr::V4(PEER), ROCEV2_UDP_PORT);
    let train = |bytes| Train {
        bytes,
        segment_bytes,
        destination,
        source_port: ROCEV2_UDP_PORT,
        traffic_class: 0,
        hop_limit: 0,
    };
    let single = bytes.get(..segment_bytes).unwrap_or_default();
    let mut seen = Vec::new();
    for _ in 0..TRIES {
        // Where others have the CPU, a part is seen in time, and the rest later: that is not what was asked for.
        seen.clear();
        sockets.send(&[train(&bytes), train(single)]);
        let mut packet = [0; 2048];
        while seen.len() <= segments {
            match rustix::net::recv(&watch, &mut packet[..], RecvFlags::empty()) {
                Ok((_, len)) => seen.extend(ours(packet.get(..len).unwrap_or_default())),
                Err(rustix::io::Errno::AGAIN) => break,
                Err(error) => return Err(error.into()),
            }
        }
        if seen.len() > segments || !expected().zip(&seen).all(|(id, header)| id == identification(header)) {
            return Ok(seen);
        }
        while rustix::net::recv(&watch, &mut packet[..], RecvFlags::empty()).is_ok() {}
    }
    Ok(Vec::new())
}

/// The Identifications and don't-fragment flags of the train and the single datagram behind it, as the ICRC assumes them.
fn expected() -> impl Iterator<Item = (u16, bool)> {
    let (segments, _) = TRAIN;
    (0..segments as u16).chain([0]).map(|id| (id, true))
}

fn identification(header: &Ipv4Repr) -> (u16, bool) {
    (header.ident.id, header.ident.dont_fragment)
}

/// The header of a packet that [`send_and_watch`] has sent.
fn ours(packet: &[u8]) -> Option<Ipv4Repr> {
    let (header, _) = Ipv4Repr::parse(packet).ok()?;
    (header.protocol == PROTO_UDP && header.dst == PEER).then_some(header)
}

/// What the headers of the train and the single datagram behind it say.
fn judge(seen: &[Ipv4Repr]) -> io::Result<Finding> {
    let (segments, _) = TRAIN;
    let got: Vec<_> = seen.iter().map(identification).collect();
    if got.is_empty() {
        return Err(io::Error::other("nothing was seen of a train that was sent"));
    }
    if got.iter().copied().eq(expected()) {
        return Ok(Finding::Counts);
    }
    let ids: Vec<_> = got.iter().map(|(id, _)| id).collect();
    Ok(Finding::Differs(format!(
        "the kernel gave a train of {segments} and a single datagram the Identifications {ids:?}"
    )))
}

#[cfg(test)]
mod tests {
    use masq_wire::Ipv4Ident;

    use super::*;

    fn header(id: u16, dont_fragment: bool) -> Ipv4Repr {
        let ident = Ipv4Ident { id, dont_fragment };
        Ipv4Repr { src: OURS, dst: PEER, protocol: PROTO_UDP, tos: 0, ident, ttl: 64, payload_len: 308 }
    }

    #[test]
    fn only_counted_segments_will_do() {
        let seen = [0, 1, 2, 3, 0].map(|id| header(id, true));
        assert!(matches!(judge(&seen), Ok(Finding::Counts)));
        for other in [[0; 5], [7, 8, 9, 10, 0], [0, 1, 2, 3, 4]] {
            let finding = judge(&other.map(|id| header(id, true)));
            assert!(matches!(finding, Ok(Finding::Differs(_))), "{other:?}");
        }
        assert!(matches!(judge(&seen[..1]), Ok(Finding::Differs(_))));
        assert!(matches!(judge(&seen.map(|h| header(h.ident.id, false))), Ok(Finding::Differs(_))));
        assert!(judge(&[]).is_err());
    }

    /// The real thing, where this test may make namespaces: it ends with a finding, and this thread is where it was.
    #[test]
    fn the_kernel_is_asked_in_a_namespace_of_its_own() {
        let links = || std::fs::read_to_string("/proc/thread-self/net/dev").unwrap().lines().count();
        let before = links();
        match probe() {
            Finding::Counts | Finding::Differs(_) => {}
            Finding::Unknown(error) => {
                let allowed = nix::unistd::geteuid().is_root();
                assert!(!allowed, "{error}");
                eprintln!("network namespaces are not to be had here: nothing to test");
            }
        }
        assert_eq!(links(), before);
    }

    #[test]
    fn what_the_command_line_says_is_done() {
        assert!(choose(UdpMode::Gso).segmentation);
        assert!(!choose(UdpMode::Plain).segmentation);
    }
}
