//! Whose turn it is: classes in strict order, vNICs of a class by their weights, queue pairs of a vNIC in turn; and who
//! waits because a rate does not allow it to send.
//!
//! ```text
//!  schedule ─► vNIC's list of queue pairs ─► class's list of vNICs ─► turn ─► out of tokens: parked until its bucket has some
//!         └──► errands: what needs no leave (acknowledgements, flushes, failures) of those that had no turn
//! ```
//!
//! Within a class it is deficit round robin. The vNIC with the largest weight of those with something to do gets
//! [`QUANTUM_BYTES`] in its turn, the others in proportion, so that a turn is bounded whatever the weights are.

use super::schedule::{CLASSES, Class};
use super::{Engine, World};
use crate::local::Held;
use crate::qp::QpKey;
use crate::shaping::Short;
use crate::transport::Time;

/// Bytes that a vNIC may move in its turn.
const QUANTUM_BYTES: i64 = 256 << 10;
/// What a message or a turn without any bytes counts as, so that small ones are not free.
const MESSAGE_COST_BYTES: i64 = 512;

/// How the round of a class went.
enum Round {
    /// There was nothing to do, or nothing may be sent.
    Idle,
    /// What there was is done.
    Done,
    /// There is more.
    More,
}

/// How the turn of a vNIC went.
enum Turn {
    /// It has had its share, has nothing more to do, or waits for its own rate.
    Over,
    /// The class has used up its rate until then.
    Interrupted(Time),
}

impl World {
    /// `vnic` has something to send, for which its own or its class's rate has no room.
    fn hold(&mut self, vnic_key: usize, short: Short) {
        let now = self.now;
        let Some(vnic) = self.vnics.get_mut(vnic_key) else { return };
        match short {
            Short::Closed => {}
            Short::Vnic(until) => {
                vnic.shaping.hold(now);
                vnic.shaping.parked_until = Some(until);
                // Shares that it could not use do not add up.
                vnic.deficit = vnic.deficit.min(0);
                self.schedule.waiting.push(until, vnic_key);
                let vnics = &self.vnics;
                let counts = |t, k| vnics.get(k).is_some_and(|v| v.shaping.parked_until == Some(t));
                self.schedule.waiting.prune(vnics.len(), counts);
            }
            Short::Class(until) => {
                vnic.shaping.hold(now);
                let Some(class) = self.schedule.classes.get_mut(vnic.shaping.class) else { return };
                class.blocked_until = Some(until);
                for other in &class.ready {
                    if let Some(vnic) = self.vnics.get_mut(*other) {
                        vnic.shaping.hold(now);
                    }
                }
            }
        }
    }

    /// Queue pair `key` is held back for `payer`: it has its next turn when that vNIC has one.
    fn wait_for(&mut self, payer: usize, key: QpKey, first: bool) {
        let (Some(qp), Some(vnic)) = (self.qps.get_mut(key), self.vnics.get_mut(payer)) else { return };
        if !std::mem::replace(&mut qp.scheduled, true) {
            qp.waits_for_other = payer != qp.io.vnic;
            if first { vnic.ready.push_front(key) } else { vnic.ready.push_back(key) }
        }
    }

    /// A vNIC that has waited for its rate has turns again.
    pub(super) fn unpark(&mut self, vnic_key: usize) {
        let Some(vnic) = self.vnics.get_mut(vnic_key) else { return };
        if vnic.shaping.parked_until.take().is_some() {
            self.schedule.enqueue(vnic.shaping.class, vnic_key);
        }
    }

    /// Lets those have turns again whose rates have room. Returns whether there were any.
    pub(super) fn give_leave(&mut self) -> bool {
        let now = self.now;
        let mut any = false;
        while let Some((until, vnic_key)) = self.schedule.waiting.pop_due(now) {
            let counts = |v: &crate::vnic::Vnic| v.shaping.parked_until == Some(until);
            if self.vnics.get(vnic_key).is_some_and(counts) {
                self.unpark(vnic_key);
                any = true;
            }
        }
        for class in &mut self.schedule.classes {
            if class.blocked_until.is_some_and(|t| t <= now) {
                class.blocked_until = None;
                any |= !class.ready.is_empty();
            }
        }
        any
    }

    /// Queue pairs of others that wait in the list of a vNIC that goes.
    pub(super) fn release_waiting(&mut self, vnic_key: usize) {
        let Some(vnic) = self.vnics.get_mut(vnic_key) else { return };
        for key in std::mem::take(&mut vnic.ready) {
            if let Some(qp) = self.qps.get_mut(key) {
                (qp.scheduled, qp.waits_for_other) = (false, false);
            }
            self.schedule(key);
        }
    }

    /// The largest weight of those of a class with something to do.
    fn largest_weight(&self, class: usize) -> i64 {
        let ready = self.schedule.classes.get(class).into_iter().flat_map(|c| &c.ready);
        let weights = ready.filter_map(|v| self.vnics.get(*v)).map(|v| v.shaping.weight);
        weights.max().unwrap_or(1).max(1).into()
    }
}

impl Engine {
    /// Gives each vNIC with something to do its turn. Returns whether there was one.
    pub(super) fn run_ready(&mut self) -> bool {
        let mut worked = false;
        // Classes below have no turn: a higher one has more to do.
        let mut lowest = 0;
        for class in (0..CLASSES).rev() {
            match self.run_class(class) {
                Round::Idle => {}
                Round::Done => worked = true,
                Round::More => {
                    (worked, lowest) = (true, class);
                    break;
                }
            }
        }
        self.run_errands(lowest);
        worked
    }

    fn run_class(&mut self, number: usize) -> Round {
        let is_open = |c: &&mut Class| c.blocked_until.is_none() && !c.ready.is_empty();
        let Some(class) = self.world.schedule.classes.get_mut(number).filter(is_open) else {
            return Round::Idle;
        };
        let turns = class.ready.len();
        let largest_weight = self.world.largest_weight(number);
        for _ in 0..turns {
            let class = self.world.schedule.classes.get_mut(number);
            let Some(vnic) = class.and_then(|c| c.ready.pop_front()) else { break };
            if let Turn::Interrupted(until) = self.run_vnic(vnic, largest_weight) {
                if let Some(class) = self.world.schedule.classes.get_mut(number) {
                    class.ready.push_front(vnic);
                }
                self.world.hold(vnic, Short::Class(until));
                return Round::Done;
            }
        }
        match self.world.schedule.classes.get(number) {
            Some(class) if class.blocked_until.is_none() && !class.ready.is_empty() => Round::More,
            _ => Round::Done,
        }
    }

    fn run_vnic(&mut self, vnic_key: usize, largest_weight: i64) -> Turn {
        if let Some(vnic) = self.world.vnics.get_mut(vnic_key)
            && !std::mem::take(&mut vnic.interrupted)
        {
            vnic.deficit += (QUANTUM_BYTES * i64::from(vnic.shaping.weight) / largest_weight).max(1);
        }
        while let Some(vnic) = self.world.vnics.get_mut(vnic_key) {
            if vnic.deficit <= 0 {
                // Its turn comes again.
                self.world.schedule.enqueue(vnic.shaping.class, vnic_key);
                return Turn::Over;
            }
            let Some(key) = vnic.ready.pop_front() else {
                vnic.scheduled = false;
                vnic.deficit = 0;
                return Turn::Over;
            };
            if let Some(qp) = self.world.qps.get_mut(key) {
                (qp.scheduled, qp.waits_for_other) = (false, false);
            }
            let ran = self.run_qp(key);
            let now = self.world.now;
            if let Some(vnic) = self.world.vnics.get_mut(vnic_key) {
                vnic.deficit -= ran.bytes as i64 + MESSAGE_COST_BYTES * (1 + ran.messages as i64);
                if ran.bytes > 0 {
                    vnic.shaping.resume(now);
                }
            }
            if let Some(Held { payer, short }) = ran.held {
                self.world.wait_for(payer, key, ran.bytes == 0);
                if payer != vnic_key {
                    self.world.activate(payer);
                } else if let Short::Class(until) = short {
                    if let Some(vnic) = self.world.vnics.get_mut(vnic_key) {
                        vnic.interrupted = true;
                    }
                    return Turn::Interrupted(until);
                } else {
                    self.world.hold(vnic_key, short);
                    return Turn::Over;
                }
            }
            if ran.more {
                self.world.schedule(key);
            }
        }
        Turn::Over
    }

    /// Does what needs no leave for queue pairs whose vNICs had no turn, or not long enough a one.
    fn run_errands(&mut self, lowest_class: usize) {
        let mut errands = std::mem::take(&mut self.world.schedule.errands);
        self.world.gate_closed = true;
        let mut more = Vec::new();
        for key in errands.drain(..) {
            let Some(qp) = self.world.qps.get_mut(key) else { continue };
            qp.errand = false;
            let (waits, elsewhere) = (qp.scheduled, qp.waits_for_other);
            let Some(vnic) = self.world.vnics.get(qp.io.vnic) else { continue };
            let class = vnic.shaping.class;
            let blocked = self.world.schedule.classes.get(class).is_some_and(|c| c.blocked_until.is_some());
            let had_turn = !elsewhere
                && vnic.shaping.parked_until.is_none()
                && vnic.deficit > 0
                && class >= lowest_class
                && !blocked;
            if waits && !had_turn && self.run_qp(key).more {
                more.push(key);
            }
        }
        self.world.gate_closed = false;
        // What was noted meanwhile comes next time.
        errands.append(&mut self.world.schedule.errands);
        self.world.schedule.errands = errands;
        for key in more {
            self.world.schedule(key);
        }
    }
}
