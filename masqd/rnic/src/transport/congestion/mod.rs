//! How fast a queue pair may send, so that what it shares with others on the way does not fill up.
//!
//! ```text
//!  acknowledgements (delay), CNPs, losses ──► Control: Swift or DCQCN ──► window, rate ──► Pacer ──► trains
//! ```
//!
//! A [`Flow`] is one direction of what a queue pair sends: its requests, or its answers to READs. Nobody acknowledges answers and what
//! an unreliable connection sends: those obey CNPs, whatever the requests of reliable ones obey.
//!
//! Everything here is arithmetic on a few words; time is an argument, and no timer has to run while nothing is held back: what
//! time alone changes is made up for when it is asked for.

mod dcqcn;
mod go_back;
mod pacer;
mod swift;

#[cfg(test)]
mod bottleneck;

use core::str::FromStr;
use core::time::Duration;

use self::dcqcn::Dcqcn;
use self::go_back::GoBack;
use self::pacer::Pacer;
use self::swift::Swift;
use super::rtt::{Sample, Told};
use super::time::Time;

/// What decides how fast queue pairs send.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Congestion {
    /// Nothing: as fast as the window of packets allows. After losses that window is smaller for a while, where the peer does not repair them.
    #[default]
    None,
    /// DCQCN (SIGCOMM'15): rates, by marks of switches (ECN), which the receiver reports with CNPs.
    Dcqcn,
    /// Swift (SIGCOMM'20): windows, by the delay of what is acknowledged. What nobody acknowledges obeys DCQCN.
    Swift,
}

impl FromStr for Congestion {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        match s {
            "none" => Ok(Self::None),
            "dcqcn" => Ok(Self::Dcqcn),
            "swift" => Ok(Self::Swift),
            _ => Err(format!("{s:?} is none of swift, dcqcn and none")),
        }
    }
}

/// Whatever is sent at a rate, a queue pair's or a vNIC's, leaves in trains of about as much as the rate brings in this time, and at least a packet: a
/// queue of the rate's own bottleneck is never longer because of one sender, and a train is still worth its wake-up and its system call.
pub const TRAIN: Duration = Duration::from_millis(1);

/// No flow is ever made slower, in bits per second: a peer that reports congestion without end makes a flow slow, and does not stop it. The
/// largest packet takes 34 ms then.
pub(super) const MIN_RATE: u64 = 1_000_000;

/// The same of what nobody acknowledges: a peer that waits for the answer to a READ counts on a packet in each of its ACK timeouts, the shortest of
/// which is 4 ms. The largest packet takes 0.7 ms.
const MIN_ANSWER_RATE: u64 = 50_000_000;

/// A READ of so many packets is not cut as long as the window holds it: whom it is asked of counts each request as a message.
const SHORT_READ: u32 = 8;

/// An algorithm. Moments never go back.
trait CongestionControl {
    /// `bytes` have been sent, or asked of the peer.
    fn on_sent(&mut self, _now: Time, _bytes: u64) {}

    /// A packet has been acknowledged that was timed.
    fn on_ack(&mut self, now: Time, sample: &Sample);

    /// Something has been acknowledged, and nothing that was timed: on a bad link what is sent again spoils most measurements. The delay of the network was this
    /// `at_most`, if the peer tells how long it held what it answers.
    fn on_progress(&mut self, _now: Time, _at_most: Option<Duration>) {}

    /// The peer reports a mark of congestion. Returns whether that changed anything.
    fn on_cnp(&mut self, now: Time) -> bool;

    /// A packet is known to be lost; `again` of those that were on their way when another was.
    fn on_loss(&mut self, _now: Time, _again: bool) {}

    /// The peer has not answered for as long as it may take.
    fn on_timeout(&mut self, now: Time);

    /// Bits per second, at least [`MIN_RATE`]; `None` without limit.
    fn rate(&mut self, now: Time) -> Option<u64>;

    /// The rate as it was when it was last asked for.
    fn last_rate(&self) -> Option<u64>;

    /// Bytes that may be unacknowledged, one packet in any case; `None` without limit.
    fn window_bytes(&self) -> Option<u64> {
        None
    }
}

/// What congestion control lets a queue pair's requests do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CongestionState {
    /// Bits per second; `None` without limit.
    pub rate_bits_per_sec: Option<u64>,
    /// Bytes that may be unacknowledged; `None` without limit.
    pub window_bytes: Option<u64>,
}

#[derive(Clone, Debug, Default)]
enum Control {
    #[default]
    None,
    Dcqcn(Dcqcn),
    Swift(Swift),
    GoBack(GoBack),
}

/// What one direction of a queue pair may send.
///
/// Ask [`Flow::may_send`] before each packet, and tell what came of it: [`Flow::sent`], [`Flow::acknowledged`], [`Flow::cnp`],
/// [`Flow::lost`], [`Flow::timed_out`].
#[derive(Clone, Debug, Default)]
pub(super) struct Flow {
    control: Control,
    pacer: Pacer,
    /// Bytes sent and not acknowledged, about.
    in_flight: u64,
    /// It is never slower, in bits per second.
    least_rate: u64,
}

/// Calls a method of the algorithm; without one, `$otherwise`.
macro_rules! ask {
    ($control:expr, $c:ident => $call:expr, $otherwise:expr) => {
        match &mut $control {
            Control::None => $otherwise,
            Control::Dcqcn($c) => $call,
            Control::Swift($c) => $call,
            Control::GoBack($c) => $call,
        }
    };
}

impl Flow {
    /// Requests that the peer acknowledges, in packets of at most `packet_bytes`, of which `window_packets` may be on their way. Whether the peer
    /// `repairs` losses, or takes packets in their order only.
    pub(super) fn acknowledged_by_peer(
        kind: Congestion,
        packet_bytes: u32,
        window_packets: u32,
        repairs: bool,
    ) -> Self {
        let control = match kind {
            Congestion::None if repairs => Control::None,
            Congestion::None => Control::GoBack(GoBack::new(packet_bytes, window_packets)),
            Congestion::Dcqcn => Control::Dcqcn(Dcqcn::default()),
            Congestion::Swift => Control::Swift(Swift::new(packet_bytes, window_packets)),
        };
        Self { control, ..Self::default() }
    }

    /// What nobody acknowledges.
    pub(super) fn unacknowledged(kind: Congestion) -> Self {
        let control = match kind {
            Congestion::None => Control::None,
            Congestion::Dcqcn | Congestion::Swift => Control::Dcqcn(Dcqcn::default()),
        };
        Self { control, least_rate: MIN_ANSWER_RATE, ..Self::default() }
    }

    fn is_controlled(&self) -> bool {
        !matches!(self.control, Control::None)
    }

    /// Whether `bytes` more may be sent now. If not, they may when something is acknowledged, or at [`Flow::deadline`]. Only when an
    /// answer is `awaited` can the window wait for it.
    pub(super) fn may_send(&mut self, now: Time, bytes: u64, awaited: bool) -> bool {
        let (rate, window) = ask!(self.control, c => (c.rate(now), c.window_bytes()), return true);
        if awaited && window.is_some_and(|window| self.in_flight.saturating_add(bytes) > window) {
            return false;
        }
        rate.is_none() || self.pacer.admits(now)
    }

    /// Whether behind a packet that is sent next another of `packet_bytes` may find the window full.
    pub(super) fn is_filled_by(&self, packet_bytes: u32) -> bool {
        let behind = self.in_flight.saturating_add(2 * u64::from(packet_bytes));
        self.window_bytes().is_some_and(|window| behind > window)
    }

    /// After how many packets of `packet_bytes` an acknowledgement is asked for, `most` or less: four times in a window.
    pub(super) fn ack_every(&self, packet_bytes: u32, most: u32) -> u32 {
        self.part_of_window(4, packet_bytes, most)
    }

    /// How many of the `rest` packets of `packet_bytes` that a READ still needs one request asks for, `most` or less, of a peer that answers `requests` of them at
    /// once. What is short is asked for whole. Of what is longer, four requests fill the window, or as many as the peer answers, so that it moves on with each
    /// answer, and none is longer than a queue has room for.
    pub(super) fn read_packets(&self, packet_bytes: u32, rest: u32, most: u32, requests: u8) -> u32 {
        let parts = if rest <= SHORT_READ { 1 } else { requests.clamp(1, 4) };
        self.part_of_window(parts, packet_bytes, most)
    }

    /// How many packets are one of `parts` of the window, one to `most`.
    fn part_of_window(&self, parts: u8, packet_bytes: u32, most: u32) -> u32 {
        let part = |window: u64| window / u64::from(parts) / u64::from(packet_bytes.max(1));
        self.window_bytes().map_or(most, |w| u32::try_from(part(w)).unwrap_or(most).clamp(1, most.max(1)))
    }

    fn window_bytes(&self) -> Option<u64> {
        match &self.control {
            Control::None | Control::Dcqcn(_) => None,
            Control::Swift(c) => c.window_bytes(),
            Control::GoBack(c) => c.window_bytes(),
        }
    }

    /// What it may do at the moment; `None` without control.
    pub(super) fn state(&self) -> Option<CongestionState> {
        let rate_bits_per_sec = match &self.control {
            Control::None => return None,
            Control::Dcqcn(c) => c.last_rate(),
            Control::Swift(c) => c.last_rate(),
            Control::GoBack(c) => c.last_rate(),
        };
        Some(CongestionState { rate_bits_per_sec, window_bytes: self.window_bytes() })
    }

    /// `bytes` are sent.
    pub(super) fn sent(&mut self, now: Time, bytes: u64) {
        if self.is_controlled() {
            self.in_flight = self.in_flight.saturating_add(bytes);
            self.sent_again(now, bytes);
        }
    }

    /// `bytes` are sent that count as being on their way already.
    pub(super) fn sent_again(&mut self, now: Time, bytes: u64) {
        let rate = ask!(self.control, c => { c.on_sent(now, bytes); c.rate(now) }, return);
        if let Some(rate) = rate {
            self.pacer.sent(now, bytes, rate.max(self.least_rate));
        }
    }

    /// Of `before` packets that were on their way, `after` still are; the answer has `told` something of the way, or nothing.
    pub(super) fn acknowledged(&mut self, now: Time, before: u32, after: u32, told: Option<&Told>) {
        ask!(self.control, c => match told {
            Some(Told::Sample(sample)) => c.on_ack(now, sample),
            Some(Told::Progress(at_most)) => c.on_progress(now, *at_most),
            None => {}
        }, return);
        // Packets differ in length; what is on its way is that share of the bytes, and nothing when there are none.
        self.in_flight = (self.in_flight / u64::from(before.max(1))).saturating_mul(after.into());
    }

    /// All that was on its way is to be sent again.
    pub(super) fn gone_back(&mut self) {
        self.in_flight = 0;
    }

    /// Nothing is sent any more, until it goes on with what is known of the way.
    pub(super) fn stop(&mut self) {
        (self.in_flight, self.pacer) = (0, Pacer::default());
    }

    /// A CNP has come. Returns whether that changed anything.
    pub(super) fn cnp(&mut self, now: Time) -> bool {
        ask!(self.control, c => c.on_cnp(now), false)
    }

    /// A packet is known to be lost; `again` of those that were on their way when another was.
    pub(super) fn lost(&mut self, now: Time, again: bool) {
        ask!(self.control, c => c.on_loss(now, again), ());
    }

    /// The peer has not answered in time.
    pub(super) fn timed_out(&mut self, now: Time) {
        ask!(self.control, c => c.on_timeout(now), ());
    }

    /// When what was refused for its rate may be sent.
    pub(super) fn deadline(&self) -> Option<Time> {
        self.pacer.deadline()
    }

    /// The deadline has come.
    pub(super) fn handle_timeout(&mut self, now: Time) {
        self.pacer.handle_timeout(now);
    }
}

/// Nanoseconds that `bytes` take at `rate` bits per second.
fn nanos_at(rate: u64, bytes: u64) -> u64 {
    bytes.saturating_mul(8_000_000_000) / rate.max(1)
}

/// The rate at which `bytes` take `time`, in bits per second.
fn rate_of(bytes: u64, time: Duration) -> u64 {
    let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX).max(1);
    bytes.saturating_mul(8_000_000_000) / nanos
}
