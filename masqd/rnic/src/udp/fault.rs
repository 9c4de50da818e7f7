//! Loss, duplication, reordering and corruption on purpose, for tests on links that do none of it.

use std::collections::VecDeque;
use std::str::FromStr;
use std::time::Duration;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

use crate::transport::Time;

/// What a received packet may suffer, each with its probability in 0..=1.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct FaultInjection {
    /// Seed of the decisions.
    pub seed: u64,
    /// It is lost.
    pub drop: f64,
    /// It comes twice.
    pub duplicate: f64,
    /// It comes after packets that were sent later.
    pub reorder: f64,
    /// A bit of it is flipped.
    pub corrupt: f64,
    /// It is marked (ECN CE), if its sender takes part.
    pub ecn: f64,
    /// Every packet comes so much later.
    pub delay: Duration,
}

/// `drop=P,duplicate=P,reorder=P,corrupt=P,ecn=P,delay=MICROSECONDS,seed=N`, of which any can be left out.
impl FromStr for FaultInjection {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        let mut faults = Self::default();
        for part in s.split(',') {
            let (name, value) = part.split_once('=').ok_or_else(|| format!("{part:?} has no value"))?;
            if name == "seed" {
                faults.seed = value.parse().map_err(|e| format!("seed: {e}"))?;
                continue;
            }
            if name == "delay" {
                faults.delay = Duration::from_micros(value.parse().map_err(|e| format!("delay: {e}"))?);
                continue;
            }
            let probability = match name {
                "drop" => &mut faults.drop,
                "duplicate" => &mut faults.duplicate,
                "reorder" => &mut faults.reorder,
                "corrupt" => &mut faults.corrupt,
                "ecn" => &mut faults.ecn,
                _ => return Err(format!("{name:?} is no fault")),
            };
            *probability = value.parse().map_err(|e| format!("{name}: {e}"))?;
            if !(0.0..=1.0).contains(probability) {
                return Err(format!("{name}: {value} is no probability"));
            }
        }
        Ok(faults)
    }
}

/// What else is known of a packet, as far as faults change it.
pub trait CongestionMark: Copy {
    /// A switch marks it, if its sender takes part.
    fn mark(&mut self);

    /// It is received at another time.
    fn receive_at(&mut self, at: Time);
}

/// Applies a [`FaultInjection`] to received packets; `M` is what else is known of one.
#[derive(Debug)]
pub struct FaultShim<M> {
    faults: FaultInjection,
    random: ChaCha8Rng,
    held: VecDeque<Held<M>>,
    /// What is still on its way, in the order in which it comes.
    delayed: VecDeque<(Time, Vec<u8>, M)>,
}

#[derive(Debug)]
struct Held<M> {
    packet: Vec<u8>,
    meta: M,
    /// Later packets to let pass first.
    behind: u32,
    /// When it comes even if no later packet does.
    until: Time,
}

impl<M: CongestionMark> FaultShim<M> {
    const HOLD: Duration = Duration::from_millis(1);

    /// A shim with its own random sequence.
    pub fn new(faults: FaultInjection) -> Self {
        Self {
            faults,
            random: ChaCha8Rng::seed_from_u64(faults.seed),
            held: VecDeque::new(),
            delayed: VecDeque::new(),
        }
    }

    fn happens(&mut self, probability: f64) -> bool {
        probability > 0.0 && f64::from(self.random.next_u32()) < probability * (f64::from(u32::MAX) + 1.0)
    }

    /// A packet has come.
    pub fn pass(&mut self, now: Time, packet: &[u8], meta: M, deliver: &mut dyn FnMut(&[u8], M)) {
        if self.faults.delay.is_zero() {
            self.arrive(now, packet, meta, deliver);
        } else {
            self.delayed.push_back((now.plus(self.faults.delay), packet.to_vec(), meta));
        }
    }

    fn arrive(&mut self, now: Time, packet: &[u8], mut meta: M, deliver: &mut dyn FnMut(&[u8], M)) {
        if self.happens(self.faults.ecn) {
            meta.mark();
        }
        if self.happens(self.faults.drop) {
            return;
        }
        let copies = if self.happens(self.faults.duplicate) { 2 } else { 1 };
        for _ in 0..copies {
            let corrupted = self.happens(self.faults.corrupt).then(|| self.corrupt(packet));
            let packet = corrupted.as_deref().unwrap_or(packet);
            if self.happens(self.faults.reorder) {
                let behind = 1 + self.random.next_u32() % 8;
                let until = now.plus(Self::HOLD);
                self.held.push_back(Held { packet: packet.to_vec(), meta, behind, until });
            } else {
                deliver(packet, meta);
                self.held.iter_mut().for_each(|h| h.behind = h.behind.saturating_sub(1));
                self.release(|h| h.behind == 0, deliver);
            }
        }
    }

    /// Delivers what has been held for too long.
    pub fn handle_timeout(&mut self, now: Time, deliver: &mut dyn FnMut(&[u8], M)) {
        while self.delayed.front().is_some_and(|(at, ..)| *at <= now) {
            let Some((at, packet, mut meta)) = self.delayed.pop_front() else { break };
            meta.receive_at(at);
            self.arrive(now, &packet, meta, deliver);
        }
        self.release(|h| h.until <= now, deliver);
    }

    /// When [`FaultShim::handle_timeout`] wants to be called.
    pub fn poll_timeout(&self) -> Option<Time> {
        let delayed = self.delayed.front().map(|(at, ..)| *at);
        self.held.iter().map(|h| h.until).chain(delayed).min()
    }

    fn release(&mut self, due: impl Fn(&Held<M>) -> bool, deliver: &mut dyn FnMut(&[u8], M)) {
        for _ in 0..self.held.len() {
            match self.held.pop_front() {
                Some(h) if due(&h) => deliver(&h.packet, h.meta),
                Some(h) => self.held.push_back(h),
                None => break,
            }
        }
    }

    fn corrupt(&mut self, packet: &[u8]) -> Vec<u8> {
        let mut packet = packet.to_vec();
        let bit = self.random.next_u32() as usize % (packet.len() * 8).max(1);
        if let Some(byte) = packet.get_mut(bit / 8) {
            *byte ^= 1 << (bit % 8);
        }
        packet
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A packet's number, its mark, and when it was received.
    #[derive(Clone, Copy, Debug, Default, PartialEq)]
    struct Meta {
        number: u32,
        marked: bool,
        at: Time,
    }

    impl CongestionMark for Meta {
        fn mark(&mut self) {
            self.marked = true;
        }

        fn receive_at(&mut self, at: Time) {
            self.at = at;
        }
    }

    fn run(faults: FaultInjection) -> Vec<u32> {
        let mut shim = FaultShim::new(faults);
        let mut seen = Vec::new();
        for i in 0..1000u32 {
            let meta = Meta { number: i, ..Meta::default() };
            shim.pass(Time::ZERO, &i.to_ne_bytes(), meta, &mut |_, m| seen.push(m.number));
        }
        if let Some(t) = shim.poll_timeout() {
            shim.handle_timeout(t, &mut |_, m| seen.push(m.number));
        }
        seen
    }

    #[test]
    fn does_what_it_is_told_and_nothing_else() {
        let none = FaultInjection { seed: 1, ..FaultInjection::default() };
        assert_eq!(run(none), (0..1000).collect::<Vec<_>>());
        let kept = run(FaultInjection { drop: 0.2, ..none }).len();
        assert!((700..900).contains(&kept), "{kept}");
        let doubled = run(FaultInjection { duplicate: 0.2, ..none });
        assert!((1100..1300).contains(&doubled.len()) && doubled.is_sorted());
        let mut shuffled = run(FaultInjection { reorder: 0.2, ..none });
        assert!(!shuffled.is_sorted());
        shuffled.sort_unstable();
        assert_eq!(shuffled, (0..1000).collect::<Vec<_>>());
        assert!(run(FaultInjection { drop: 1.0, ..none }).is_empty());
    }

    #[test]
    fn a_share_is_marked_and_all_come_late() {
        let delay = Duration::from_micros(300);
        let faults = FaultInjection { ecn: 0.2, delay, ..FaultInjection::default() };
        let mut shim = FaultShim::new(faults);
        let at = Time::from_nanos;
        let mut seen: Vec<Meta> = Vec::new();
        for number in 0..1000 {
            let meta = Meta { number, ..Meta::default() };
            shim.pass(at(number.into()), &[], meta, &mut |_, _| panic!("it comes later"));
        }
        assert_eq!(shim.poll_timeout(), Some(at(300_000)));
        shim.handle_timeout(at(300_499), &mut |_, m| seen.push(m));
        assert_eq!((seen.len(), shim.poll_timeout()), (500, Some(at(300_500))));
        shim.handle_timeout(at(400_000), &mut |_, m| seen.push(m));
        assert!(seen.iter().enumerate().all(|(i, m)| m.number == i as u32 && m.at == at(300_000 + i as u64)));
        let marked = seen.iter().filter(|m| m.marked).count();
        assert!((100..300).contains(&marked), "{marked}");
    }

    #[test]
    fn faults_as_text() {
        let faults = FaultInjection { drop: 0.05, reorder: 1.0, seed: 7, ..FaultInjection::default() };
        assert_eq!("drop=0.05,reorder=1,seed=7".parse(), Ok(faults));
        let faults =
            FaultInjection { ecn: 0.5, delay: Duration::from_millis(2), ..FaultInjection::default() };
        assert_eq!("ecn=0.5,delay=2000".parse(), Ok(faults));
        for bad in [
            "",
            "drop",
            "drop=2",
            "drop=-1",
            "drop=NaN",
            "drop=x",
            "seed=-1",
            "delay=-1",
            "loss=0.1",
            "drop=0.1,",
        ] {
            assert!(bad.parse::<FaultInjection>().is_err(), "{bad}");
        }
    }

    #[test]
    fn corruption_flips_one_bit() {
        let mut shim = FaultShim::new(FaultInjection { corrupt: 1.0, ..FaultInjection::default() });
        let mut flipped = 0;
        shim.pass(Time::ZERO, &[0; 64], Meta::default(), &mut |p, _| {
            flipped = p.iter().map(|b| b.count_ones()).sum();
        });
        assert_eq!(flipped, 1);
    }
}
