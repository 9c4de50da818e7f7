use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};

use crate::udp::LocalId;

/// What a descriptor is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Token {
    /// Somebody wakes the engine.
    Wake,
    /// A local address has received.
    Receive(LocalId),
    /// A guest kicked a virtqueue: key of the vNIC, index.
    Kick(usize, u16),
}

impl Token {
    fn encode(self) -> u64 {
        match self {
            Token::Wake => 0,
            Token::Receive(id) => 1 << 56 | u64::from(id.0),
            Token::Kick(vnic, index) => 2 << 56 | (vnic as u64) << 16 | u64::from(index),
        }
    }

    fn decode(data: u64) -> Self {
        match data >> 56 {
            1 => Token::Receive(LocalId(data as u32)),
            2 => Token::Kick((data >> 16 & 0xff_ffff_ffff) as usize, data as u16),
            _ => Token::Wake,
        }
    }
}

/// All descriptors that can wake the engine.
///
/// Event descriptors are waited for by edges and never read: a kick is a hint, the truth stands in the rings, and a
/// read could block on a descriptor that others share.
#[derive(Debug)]
pub struct Poller {
    epoll: OwnedFd,
}

impl Poller {
    /// Descriptors that one call reports at most; the others come with the next.
    const BATCH: usize = 64;

    /// Waits for nothing yet, save `wake`.
    pub fn new(wake: &Waker) -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let poller = Self { epoll };
        poller.add(wake.0.as_fd(), Token::Wake)?;
        Ok(poller)
    }

    /// Waits for a descriptor as well.
    pub fn add(&self, fd: BorrowedFd<'_>, token: Token) -> io::Result<()> {
        let flags = match token {
            Token::Receive(_) => EventFlags::IN,
            Token::Wake | Token::Kick(..) => EventFlags::IN | EventFlags::ET,
        };
        Ok(epoll::add(&self.epoll, fd, EventData::new_u64(token.encode()), flags)?)
    }

    /// Waits for a descriptor no more. To be called before it is closed: others may hold it open.
    pub fn remove(&self, fd: BorrowedFd<'_>) {
        let _ = epoll::delete(&self.epoll, fd);
    }

    /// Waits up to `timeout` (`None`: without end) and appends what has happened.
    pub fn wait(&self, timeout: Option<Duration>, happened: &mut Vec<Token>) {
        let timeout = timeout.map(|t| Timespec {
            tv_sec: i64::try_from(t.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: t.subsec_nanos().into(),
        });
        let mut events = [const { MaybeUninit::<Event>::uninit() }; Self::BATCH];
        // A signal, the only failure there is, is as good as nothing.
        if let Ok((events, _)) = epoll::wait(&self.epoll, &mut events, timeout.as_ref()) {
            happened.extend(events.iter().map(|e| Token::decode(e.data.u64())));
        }
    }
}

/// Wakes the engine from another thread.
#[derive(Clone, Debug)]
pub struct Waker(std::sync::Arc<OwnedFd>);

impl Waker {
    /// A waker.
    pub fn new() -> io::Result<Self> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self(fd.into()))
    }

    /// Wakes the engine, or keeps it from sleeping next time.
    pub fn wake(&self) {
        // The counter cannot overflow within the life of a machine.
        let _ = rustix::io::write(&*self.0, &1u64.to_ne_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_survive_the_kernel() {
        for token in
            [Token::Wake, Token::Receive(LocalId(u32::MAX)), Token::Kick(70_000, 13), Token::Kick(0, 0)]
        {
            assert_eq!(Token::decode(token.encode()), token);
        }
    }

    #[test]
    fn each_wake_is_seen_without_reading() {
        let waker = Waker::new().unwrap();
        let poller = Poller::new(&waker).unwrap();
        let poll = || {
            let mut happened = Vec::new();
            poller.wait(Some(Duration::ZERO), &mut happened);
            happened
        };
        assert_eq!(poll(), []);
        for _ in 0..3 {
            waker.wake();
            assert_eq!(poll(), [Token::Wake]);
            assert_eq!(poll(), []);
        }
    }
}
