//! What a guest may have at most.

use std::fmt;
use std::num::NonZeroU32;
use std::time::Duration;

/// Something that is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Resource {
    /// Contexts (opens of the device).
    Contexts,
    /// Protection domains.
    Pds,
    /// Memory regions.
    Mrs,
    /// Completion queues.
    Cqs,
    /// Queue pairs.
    Qps,
    /// Shared receive queues.
    Srqs,
    /// Memory windows.
    Mws,
    /// XRC domains.
    Xrcds,
    /// Bytes of guest memory in regions, rings and doorbell pages.
    PinnedBytes,
    /// Guest pages whose addresses the host keeps: what a guest costs the host's own memory.
    ListedPages,
}

impl Resource {
    /// All of them.
    pub const ALL: [Resource; 10] = [
        Resource::Contexts,
        Resource::Pds,
        Resource::Mrs,
        Resource::Cqs,
        Resource::Qps,
        Resource::Srqs,
        Resource::Mws,
        Resource::Xrcds,
        Resource::PinnedBytes,
        Resource::ListedPages,
    ];

    /// The name in messages.
    pub const fn name(self) -> &'static str {
        match self {
            Resource::Contexts => "contexts",
            Resource::Pds => "protection domains",
            Resource::Mrs => "memory regions",
            Resource::Cqs => "completion queues",
            Resource::Qps => "queue pairs",
            Resource::Srqs => "shared receive queues",
            Resource::Mws => "memory windows",
            Resource::Xrcds => "XRC domains",
            Resource::PinnedBytes => "bytes of memory in regions and rings",
            Resource::ListedPages => "pages in regions and rings",
        }
    }
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The most of each resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quotas([u64; Resource::ALL.len()]);

impl Quotas {
    /// Nothing at all.
    pub const NONE: Quotas = Quotas([0; Resource::ALL.len()]);

    /// The same with at most `most` of `resource`.
    #[must_use]
    pub const fn with(mut self, resource: Resource, most: u64) -> Quotas {
        self.0[resource as usize] = most;
        self
    }

    /// The most of `resource`.
    pub const fn get(&self, resource: Resource) -> u64 {
        self.0[resource as usize]
    }
}

/// A quota is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the quota of {most} {resource} is reached: {used} are in use and {asked} more were asked for")]
pub struct QuotaExceeded {
    /// Of what.
    pub resource: Resource,
    /// The quota.
    pub most: u64,
    /// In use.
    pub used: u64,
    /// Asked for on top.
    pub asked: u64,
}

/// How much of each resource is in use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Usage {
    quotas: Quotas,
    used: [u64; Resource::ALL.len()],
}

impl Usage {
    /// Nothing in use yet.
    pub const fn new(quotas: Quotas) -> Usage {
        Usage { quotas, used: [0; Resource::ALL.len()] }
    }

    /// Other quotas from now on. What is in use stays, also above them.
    pub fn set_quotas(&mut self, quotas: Quotas) {
        self.quotas = quotas;
    }

    /// Whether `amount` more of `resource` is within its quota.
    pub fn check(&self, resource: Resource, amount: u64) -> Result<(), QuotaExceeded> {
        let (most, used) = (self.quotas.get(resource), self.used(resource));
        if amount <= most.saturating_sub(used) {
            Ok(())
        } else {
            Err(QuotaExceeded { resource, most, used, asked: amount })
        }
    }

    /// Takes several resources, all or none.
    pub fn take(&mut self, amounts: &[(Resource, u64)]) -> Result<(), QuotaExceeded> {
        let before = self.used;
        for &(resource, amount) in amounts {
            if let Err(exceeded) = self.check(resource, amount) {
                self.used = before;
                return Err(exceeded);
            }
            self.used[resource as usize] += amount;
        }
        Ok(())
    }

    /// Gives resources back.
    pub fn give(&mut self, amounts: &[(Resource, u64)]) {
        for &(resource, amount) in amounts {
            let used = &mut self.used[resource as usize];
            debug_assert!(*used >= amount, "{resource}: {amount} given back of {used}");
            *used = used.saturating_sub(amount);
        }
    }

    /// How much of `resource` is in use.
    pub fn used(&self, resource: Resource) -> u64 {
        self.used[resource as usize]
    }
}

/// Commands come faster than the quota allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the quota of {per_sec} control commands per second is reached")]
pub struct TooFast {
    /// The quota.
    pub per_sec: NonZeroU32,
}

/// Counts commands against a rate: a bucket that holds one second's worth.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandRate {
    per_sec: Option<NonZeroU32>,
    /// When the bucket will be full again.
    full_at: Duration,
}

impl CommandRate {
    const DEPTH: Duration = Duration::from_secs(1);

    /// A full bucket; without a rate everything passes.
    pub const fn new(per_sec: Option<NonZeroU32>) -> CommandRate {
        CommandRate { per_sec, full_at: Duration::ZERO }
    }

    /// Another rate from now on; what has been used stays used.
    pub fn set(&mut self, per_sec: Option<NonZeroU32>) {
        self.per_sec = per_sec;
    }

    /// One command at `now`, on a clock that does not run backwards.
    pub fn take(&mut self, now: Duration) -> Result<(), TooFast> {
        let Some(per_sec) = self.per_sec else { return Ok(()) };
        let full_at = self.full_at.max(now) + Duration::from_secs(1) / per_sec.get();
        if full_at > now + Self::DEPTH {
            return Err(TooFast { per_sec });
        }
        self.full_at = full_at;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_resource_has_its_own_quota_and_refusal() {
        for resource in Resource::ALL {
            let mut usage = Usage::new(Quotas::NONE.with(resource, 2));
            assert_eq!(usage.take(&[(resource, 2)]), Ok(()));
            let refused = QuotaExceeded { resource, most: 2, used: 2, asked: 1 };
            assert_eq!(usage.take(&[(resource, 1)]), Err(refused));
            usage.give(&[(resource, 1)]);
            assert_eq!((usage.take(&[(resource, 1)]), usage.used(resource)), (Ok(()), 2));
            let other = Resource::ALL.into_iter().find(|r| *r != resource).unwrap();
            assert!(usage.take(&[(other, 1)]).is_err());
        }
    }

    #[test]
    fn all_or_nothing() {
        let quotas = Quotas::NONE.with(Resource::Mrs, 1).with(Resource::PinnedBytes, 10);
        let mut usage = Usage::new(quotas);
        assert!(usage.take(&[(Resource::Mrs, 1), (Resource::PinnedBytes, 11)]).is_err());
        assert_eq!(usage.used(Resource::Mrs), 0);
        assert!(usage.take(&[(Resource::Mrs, u64::MAX)]).is_err(), "no overflow");
        let e = usage.check(Resource::Mrs, 2).unwrap_err();
        assert_eq!(
            e.to_string(),
            "the quota of 1 memory regions is reached: 0 are in use and 2 more were asked for"
        );
    }

    #[test]
    fn a_second_s_worth_may_come_at_once_and_then_the_rate_holds() {
        let mut rate = CommandRate::new(NonZeroU32::new(10));
        let at = Duration::from_millis;
        let passed = |rate: &mut CommandRate, now| (0..100).filter(|_| rate.take(now).is_ok()).count();
        assert_eq!(passed(&mut rate, at(0)), 10);
        assert_eq!(passed(&mut rate, at(99)), 0);
        assert_eq!(passed(&mut rate, at(100)), 1);
        assert_eq!(passed(&mut rate, at(1100)), 10);
        assert_eq!(passed(&mut rate, at(60_000)), 10, "no more than a second's worth is saved up");
        let refused = rate.take(at(60_000)).unwrap_err();
        assert_eq!(refused.to_string(), "the quota of 10 control commands per second is reached");
        rate.set(None);
        assert_eq!(passed(&mut rate, at(60_000)), 100);
    }
}
