//! Datagrams that wait for their peer to become known.

use std::collections::VecDeque;

use masq_driver::PeerName;

use super::Direction;
use super::names::ANSWER_TIME;
use crate::transport::Time;

/// Datagrams to unknown peers that wait at most. A sender for whose datagram there is no room waits itself.
const MAX_OUT: usize = 16;
/// Datagrams from unknown peers that wait at most; others are lost.
const MAX_IN: usize = 48;

/// What waits at one vNIC, oldest first, each for [`ANSWER_TIME`] at most.
#[derive(Debug)]
pub struct Parking<T> {
    waiting: VecDeque<Parked<T>>,
}

#[derive(Debug)]
struct Parked<T> {
    name: PeerName,
    until: Time,
    datagram: T,
}

impl<T> Default for Parking<T> {
    fn default() -> Self {
        Self { waiting: VecDeque::new() }
    }
}

impl<T> Parking<T> {
    /// Whether there is room for one more.
    pub fn has_room(&self, direction: Direction) -> bool {
        let max = match direction {
            Direction::Out => MAX_OUT,
            Direction::In => MAX_IN,
        };
        self.waiting.iter().filter(|p| Direction::of(&p.name) == direction).count() < max
    }

    /// Adds a datagram, for which there is room.
    pub fn park(&mut self, now: Time, name: PeerName, datagram: T) {
        self.waiting.push_back(Parked { name, until: now.plus(ANSWER_TIME), datagram });
    }

    /// Takes those whose peer is meant, in their order.
    pub fn take(&mut self, is_meant: impl Fn(&PeerName) -> bool) -> Vec<T> {
        let mut taken = Vec::new();
        for _ in 0..self.waiting.len() {
            match self.waiting.pop_front() {
                Some(parked) if is_meant(&parked.name) => taken.push(parked.datagram),
                Some(parked) => self.waiting.push_back(parked),
                None => break,
            }
        }
        taken
    }

    /// Drops those that have waited for too long.
    pub fn expire(&mut self, now: Time, mut dropped: impl FnMut(Direction)) {
        let late = self.waiting.iter().take_while(|p| p.until <= now).count();
        self.waiting.drain(..late).for_each(|p| dropped(Direction::of(&p.name)));
    }

    /// Keeps only some.
    pub fn retain(&mut self, keep: impl Fn(&T) -> bool) {
        self.waiting.retain(|p| keep(&p.datagram));
    }

    /// All that waits.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.waiting.iter_mut().map(|p| &mut p.datagram)
    }

    /// When [`Parking::expire`] has something to drop.
    pub fn deadline(&self) -> Option<Time> {
        self.waiting.front().map(|p| p.until)
    }
}

#[cfg(test)]
mod tests {
    use masq_types::{Gid, WireQpn};

    use super::*;

    fn source(qpn: u32) -> PeerName {
        PeerName::Source([192, 0, 2, 1].into(), WireQpn::from_wire(qpn))
    }

    fn gid(last: u8) -> PeerName {
        PeerName::Gid(Gid([last; 16]))
    }

    #[test]
    fn bounded_in_each_direction() {
        let mut parking = Parking::default();
        let mut parked = 0;
        while parking.has_room(Direction::In) {
            parking.park(Time::ZERO, source(parked), parked);
            parked += 1;
        }
        assert_eq!(parked as usize, MAX_IN);
        while parking.has_room(Direction::Out) {
            parking.park(Time::ZERO, gid(1), 0);
            parked += 1;
        }
        assert_eq!(parked, 64);
    }

    #[test]
    fn in_order_and_not_for_long() {
        let at = |ms: u64| Time::from_nanos(ms * 1_000_000);
        let mut parking = Parking::default();
        for (ms, name, n) in [(0, gid(1), 1), (1, gid(2), 2), (2, gid(1), 3), (3, source(4), 4)] {
            parking.park(at(ms), name, n);
        }
        assert_eq!(parking.take(|n| *n == gid(1)), [1, 3]);
        assert_eq!(parking.take(|n| *n == gid(1)), []);
        assert_eq!(parking.deadline(), Some(at(101)));
        let mut dropped = Vec::new();
        parking.expire(at(100), |d| dropped.push(d));
        assert_eq!(dropped, []);
        parking.expire(at(102), |d| dropped.push(d));
        assert_eq!(dropped, [Direction::Out]);
        parking.park(at(103), gid(5), 5);
        parking.retain(|n| *n != 5);
        assert_eq!(parking.take(|_| true), [4]);
        assert_eq!(parking.deadline(), None);
    }
}
