//! What a vNIC may send, and whether it may now.

use masq_driver::{Limits, Rate};

use crate::bucket::TokenBucket;
use crate::lent::ClassBucket;
use crate::transport::Time;

/// What a vNIC may send, and what came of it.
#[derive(Debug)]
pub struct Shaping {
    /// Its own rate.
    pub bucket: Option<TokenBucket>,
    /// Its share beside others of its class.
    pub weight: u16,
    /// Its class.
    pub class: usize,
    /// The DSCP of all that it sends.
    pub dscp: Option<u8>,
    /// Datagrams keep the DSCP that the guest asks for.
    trust_dscp: bool,
    /// It has used up its rate, and has its turn again then.
    pub parked_until: Option<Time>,
    /// Since when it has been held back.
    held_since: Option<Time>,
    held_ns: u64,
}

impl Default for Shaping {
    fn default() -> Self {
        let Limits { rate: _, weight, class, dscp, trust_dscp } = Limits::default();
        let class = usize::from(class);
        Self {
            bucket: None,
            weight,
            class,
            dscp,
            trust_dscp,
            parked_until: None,
            held_since: None,
            held_ns: 0,
        }
    }
}

impl Shaping {
    /// Other limits, which have been checked.
    pub fn set(&mut self, now: Time, limits: &Limits) {
        set_rate(&mut self.bucket, now, limits.rate);
        (self.weight, self.class) = (limits.weight, limits.class.into());
        (self.dscp, self.trust_dscp) = (limits.dscp, limits.trust_dscp);
    }

    /// The traffic class with which a datagram leaves whose guest asks for `asked`. The ECN bits are the underlay's.
    pub fn datagram_class(&self, asked: u8) -> u8 {
        const DSCP: u8 = 0xfc;
        if self.trust_dscp { asked & DSCP } else { 0 }
    }

    /// It has something to send that it may not.
    pub fn hold(&mut self, now: Time) {
        self.held_since.get_or_insert(now);
    }

    /// It goes on.
    pub fn resume(&mut self, now: Time) {
        if let Some(since) = self.held_since.take() {
            self.held_ns += nanos_between(since, now);
        }
    }

    /// Nanoseconds in which it was held back.
    pub fn held_ns(&self, now: Time) -> u64 {
        self.held_ns + self.held_since.map_or(0, |since| nanos_between(since, now))
    }
}

fn nanos_between(since: Time, now: Time) -> u64 {
    now.as_nanos().saturating_sub(since.as_nanos())
}

/// Gives a bucket another rate, or none; one that was not limited begins full.
fn set_rate(bucket: &mut Option<TokenBucket>, now: Time, rate: Option<Rate>) {
    match (bucket.as_mut(), rate) {
        (Some(bucket), Some(rate)) => bucket.set_rate(now, rate),
        (None, Some(rate)) => *bucket = Some(TokenBucket::new(rate, now)),
        (_, None) => *bucket = None,
    }
}

/// Why something may not be sent now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Short {
    /// The vNIC has used up its rate; when to try again.
    Vnic(Time),
    /// Its class has.
    Class(Time),
    /// Only what needs no leave is done.
    Closed,
}

/// Where a vNIC's packets ask for leave.
#[derive(Debug)]
pub struct Gate<'a> {
    /// The vNIC's own rate.
    pub vnic: Option<&'a mut TokenBucket>,
    /// Its class's.
    pub class: Option<&'a mut ClassBucket>,
    /// Nothing gets leave.
    pub closed: bool,
}

impl Gate<'_> {
    /// Most bytes that may be sent now.
    pub fn available(&mut self, now: Time) -> u64 {
        if self.closed {
            return 0;
        }
        let vnic = self.vnic.as_deref_mut().map_or(u64::MAX, |b| b.available(now));
        let class = self.class.as_deref_mut().map_or(u64::MAX, |b| b.available(now));
        vnic.min(class)
    }

    /// Who is to blame that `bytes` may not be sent now, if they may not.
    pub fn check(&mut self, now: Time, bytes: u64) -> Result<(), Short> {
        if self.closed {
            return Err(Short::Closed);
        }
        let lacks = |b: &mut TokenBucket| (b.available(now) < bytes).then(|| b.worth_trying(bytes));
        if let Some(until) = self.vnic.as_deref_mut().and_then(lacks) {
            return Err(Short::Vnic(until));
        }
        let class_lacks =
            |b: &mut ClassBucket| (b.available(now) < bytes).then(|| b.worth_trying(now, bytes));
        match self.class.as_deref_mut().and_then(class_lacks) {
            Some(until) => Err(Short::Class(until)),
            None => Ok(()),
        }
    }

    /// Asks for leave to send `bytes`, which have been paid for if it is given.
    pub fn take(&mut self, now: Time, bytes: u64) -> Result<(), Short> {
        self.check(now, bytes)?;
        self.charge(now, bytes);
        Ok(())
    }

    /// `bytes` are sent in any case.
    pub fn charge(&mut self, now: Time, bytes: u64) {
        if let Some(bucket) = self.vnic.as_deref_mut() {
            bucket.charge(now, bytes);
        }
        if let Some(bucket) = self.class.as_deref_mut() {
            bucket.charge(now, bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn datagrams_keep_a_dscp_only_where_the_guest_is_trusted_with_it() {
        let mut shaping = Shaping::default();
        assert_eq!(shaping.datagram_class(0xbb), 0);
        shaping.set(Time::ZERO, &Limits { trust_dscp: true, ..Limits::default() });
        assert_eq!(shaping.datagram_class(0xbb), 0xb8, "the ECN bits are the underlay's");
        shaping.set(Time::ZERO, &Limits::default());
        assert_eq!(shaping.datagram_class(0xbb), 0);
    }
}
