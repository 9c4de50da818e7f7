//! Commands of masqd.

use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use masq_driver::{
    Command, Connection, CtxHandle, DriverError, Gpa, Limits, MemoryRegion, ObjectCounts, QpChange, QpFault,
    QpHandle, QpState, QpStatus, QpTraffic, QueueRole, Rate, Reply, Virtqueue, VnicCounters, VnicId,
    VnicObjects, check_class,
};
use masq_types::{Lkey, Rkey, Vni, WireQpn};
use masq_wire::Ecn;

use super::create_qp::QueueUses;
use super::fabric::Note;
use super::{Engine, Token};
use crate::limits;
use crate::local::{self, Initiator};
use crate::memory::GuestMemory;
use crate::qp::{LocalPath, Path, Qp, QpKey, RecvSource};
use crate::transport::{Congestion, Time};
use crate::udp::Attached;
use crate::virtqueue::EventQueue;
use crate::vnic::{Context, Queue, Vnic};

impl Engine {
    /// Carries out one command at `now`. It has taken effect when this returns.
    pub fn execute(&mut self, now: Time, command: Command) -> Result<Reply, DriverError> {
        self.world.now = now;
        self.read_notes();
        self.settle(&command);
        let done = |()| Reply::Done;
        let reply = match command {
            Command::AttachVnic { vnic, vni, epoch, addresses } => {
                self.attach_vnic(vnic, vni, epoch, &addresses).map(done)
            }
            Command::DetachVnic { vnic } => self.detach_vnic(vnic).map(done),
            Command::SetMemory { vnic, regions } => self.set_memory(vnic, regions).map(done),
            Command::SetStatusPage { vnic, page } => self.set_status_page(vnic, page).map(done),
            Command::AttachQueue { vnic, queue } => self.attach_queue(vnic, queue).map(done),
            Command::ReplaceCall { vnic, index, call } => self.replace_call(vnic, index, call).map(done),
            Command::ReplaceKick { vnic, index, kick } => self.replace_kick(vnic, index, kick).map(done),
            Command::DetachQueue { vnic, index } => {
                self.detach_queue(vnic, index).map(|base| Reply::QueueBase { base })
            }
            Command::CreateContext { vnic, ctx, doorbells } => {
                self.create_context(vnic, ctx, &doorbells).map(done)
            }
            Command::DestroyContext { vnic, ctx } => self.destroy_context(vnic, ctx).map(done),
            Command::CreateMr { vnic, mr } => {
                let vnic = self.world.vnic_mut(vnic)?;
                let key = vnic.keys.create_mr(mr, &mut self.random)?;
                Ok(Reply::MrCreated { lkey: Lkey(key), rkey: Rkey(key) })
            }
            Command::ReregMr { vnic, mr, pd, access, memory } => {
                self.world.vnic_mut(vnic)?.keys.rereg_mr(mr, pd, access, memory).map(done)
            }
            Command::DestroyMr { vnic, mr } => self.world.vnic_mut(vnic)?.keys.destroy_mr(mr).map(done),
            Command::CreateMw { vnic, mw, pd, mw_type } => {
                let vnic = self.world.vnic_mut(vnic)?;
                let key = vnic.keys.create_mw(mw, pd, mw_type, &mut self.random)?;
                Ok(Reply::MwCreated { rkey: Rkey(key) })
            }
            Command::DestroyMw { vnic, mw } => {
                self.world.vnic_mut(vnic)?.keys.destroy_mw(mw);
                Ok(Reply::Done)
            }
            Command::CreateCq { vnic, cq } => {
                let vnic = self.world.vnic_mut(vnic)?;
                vnic.cqs.create(cq, &vnic.memory).map(done)
            }
            Command::DestroyCq { vnic, cq } => self.world.vnic_mut(vnic)?.cqs.destroy(cq).map(done),
            Command::CreateQp { vnic, qp } => {
                self.create_qp(vnic, qp).map(|(slot, index)| Reply::QpCreated { slot, index })
            }
            Command::ModifyQp { vnic, qp, change } => self.modify_qp(vnic, qp, &change).map(done),
            Command::QueryQp { vnic, qp } => self.query_qp(vnic, qp).map(Reply::Qp),
            Command::DestroyQp { vnic, qp } => self.destroy_qp(vnic, qp).map(done),
            Command::RevokeQp { vnic, qp } => self.revoke_qp(vnic, qp).map(done),
            Command::SetLimits { vnic, limits } => self.set_limits(vnic, &limits).map(done),
            Command::SetClassRate { class, rate } => self.set_class_rate(class, rate).map(done),
            Command::CreateSrq { vnic, srq } => {
                let vnic = self.world.vnic_mut(vnic)?;
                vnic.srqs.create(srq, &mut vnic.cqs, &vnic.memory).map(done)
            }
            Command::ModifySrq { vnic, srq, limit } => {
                self.world.vnic_mut(vnic)?.srqs.set_limit(srq, limit).map(done)
            }
            Command::QuerySrq { vnic, srq } => {
                self.world.vnic_mut(vnic)?.srqs.limit(srq).map(Reply::SrqLimit)
            }
            Command::DestroySrq { vnic, srq } => {
                let vnic = self.world.vnic_mut(vnic)?;
                vnic.srqs.destroy(srq, &mut vnic.cqs).map(done)
            }
            Command::ResizeCq { vnic, cq, entries, ring } => {
                let vnic = self.world.vnic_mut(vnic)?;
                vnic.cqs.resize(cq, entries, ring, &vnic.memory).map(done)
            }
            Command::SetGids { vnic, table, published } => {
                self.world.vnic_mut(vnic)?.datagrams.set_gids(table, published);
                Ok(Reply::Done)
            }
            Command::SetPeer { vnic, peer } => self.set_peer(vnic, peer).map(done),
            Command::RemovePeer { vnic, peer } => {
                self.world.vnic_mut(vnic)?.datagrams.remove_peer(peer);
                Ok(Reply::Done)
            }
            Command::NoPeer { vnic, name } => self.no_peer(vnic, name).map(done),
            Command::VnicCounters { vnic } => self.vnic_counters(vnic).map(Reply::VnicCounters),
            Command::QpTraffic { vnic } => self.qp_traffic(vnic).map(Reply::QpTraffic),
            Command::VnicEvents { vnic } => self.vnic_events(vnic).map(Reply::Counters),
            Command::DescribeQps { vnic, qps } => self.describe_qps(vnic, &qps).map(Reply::QpDetails),
            Command::StartCapture { vnic, qp, tap } => self.start_capture(vnic, qp, tap).map(done),
            Command::StopCapture { vnic, qp, tap } => self.stop_capture(vnic, qp, &tap).map(done),
            Command::List => Ok(Reply::Objects(self.list())),
            Command::Counters => Ok(Reply::Counters(self.counters())),
        };
        // A command changes queues by itself, too.
        let all: Vec<usize> = self.world.vnics.iter().map(|(key, _)| key).collect();
        all.into_iter().for_each(|key| self.world.unsettle(key));
        self.world.settle_queues();
        self.world.flush_fabric();
        reply
    }

    /// Before a command that ends a use of guest memory: no other engine works on it.
    fn settle(&mut self, command: &Command) {
        let vnic = match command {
            Command::DetachVnic { vnic }
            | Command::SetMemory { vnic, .. }
            | Command::ReregMr { vnic, .. }
            | Command::DestroyMr { vnic, .. }
            | Command::ModifyQp { vnic, .. }
            | Command::DestroyQp { vnic, .. }
            | Command::RevokeQp { vnic, .. } => *vnic,
            _ => return,
        };
        if let Ok(key) = self.world.vnic_key(vnic) {
            local::settle(&mut self.world, key);
        }
    }

    fn attach_vnic(
        &mut self,
        id: VnicId,
        vni: Vni,
        epoch: u64,
        addresses: &[IpAddr],
    ) -> Result<(), DriverError> {
        if self.world.vnic_ids.contains_key(&id) {
            return Err(DriverError::Exists(format!("vNIC {}", id.0)));
        }
        if addresses.is_empty() {
            return Err(DriverError::Invalid("a vNIC needs an underlay address".into()));
        }
        let mut attached = Vec::with_capacity(addresses.len());
        for address in addresses {
            match self.attach_address(*address) {
                Ok(local) => attached.push((*address, local)),
                Err(error) => {
                    attached.iter().for_each(|(_, local)| self.detach_address(*local));
                    return Err(error);
                }
            }
        }
        let key = self.world.vnics.insert(Vnic::new(id, vni, epoch, attached));
        self.world.vnic_ids.insert(id, key);
        self.world.watch.add(key);
        Ok(())
    }

    pub(super) fn attach_address(&mut self, address: IpAddr) -> Result<crate::udp::LocalId, DriverError> {
        let Attached { local, is_new } = self.edge.attach(address)?;
        if is_new {
            if let Some(fd) = self.edge.receiving(local)
                && let Err(source) = self.poller.add(fd, Token::Receive(local))
            {
                self.detach_address(local);
                return Err(DriverError::Os { what: format!("cannot wait for {address}"), source });
            }
            if let Some(fabric) = &mut self.world.fabric {
                fabric.note_all(|| Note::Address(address, local));
            }
        }
        Ok(local)
    }

    fn detach_vnic(&mut self, id: VnicId) -> Result<(), DriverError> {
        let key = self.world.vnic_key(id)?;
        let qps: Vec<QpHandle> =
            self.world.vnics.get(key).map_or(Vec::new(), |v| v.qps.keys().copied().collect());
        for qp in qps {
            self.destroy_qp(id, qp)?;
        }
        self.world.vnic_ids.remove(&id);
        self.world.schedule.dequeue(key);
        self.world.watch.remove(key);
        self.world.release_waiting(key);
        let Some(mut vnic) = self.world.vnics.try_remove(key) else { return Ok(()) };
        self.world.counters += vnic.counters;
        vnic.datagrams.close(&mut self.edge);
        for kick in vnic.queues.values().filter_map(|q| q.kick.as_ref()) {
            self.poller.remove(kick.as_fd());
        }
        for (_, local) in &vnic.addresses {
            self.detach_address(*local);
        }
        Ok(())
    }

    fn set_memory(&mut self, id: VnicId, regions: Vec<MemoryRegion>) -> Result<(), DriverError> {
        let asleep = self.asleep;
        let vnic = self.world.vnic_mut(id)?;
        vnic.memory = Arc::new(GuestMemory::map(regions)?);
        vnic.set_need_kick(asleep);
        Ok(())
    }

    fn set_status_page(&mut self, id: VnicId, page: Option<Gpa>) -> Result<(), DriverError> {
        let asleep = self.asleep;
        let vnic = self.world.vnic_mut(id)?;
        if let Some(page) = page {
            vnic.memory.check_pages(&[page.0])?;
        }
        vnic.status_page = page;
        vnic.set_need_kick(asleep);
        Ok(())
    }

    fn attach_queue(&mut self, id: VnicId, mut queue: Virtqueue) -> Result<(), DriverError> {
        let key = self.world.vnic_key(id)?;
        let vnic = self.world.vnic_mut(id)?;
        let index = queue.index;
        if vnic.queues.contains_key(&index) {
            return Err(DriverError::Exists(format!("virtqueue {index}")));
        }
        let no_such = |what: &str, n: u16| DriverError::Invalid(format!("there is no {what} {n}"));
        let vector = match queue.role {
            QueueRole::Doorbell { slot } if slot < limits::SLOTS => None,
            QueueRole::Doorbell { slot } => return Err(no_such("doorbell slot", slot)),
            QueueRole::Completion { vector } => {
                let place = vnic.comp_queues.0.get_mut(usize::from(vector));
                let place = place.ok_or_else(|| no_such("completion vector", vector))?;
                if place.is_some() {
                    return Err(DriverError::Exists(format!("a queue of completion vector {vector}")));
                }
                let call = queue.call.take();
                *place = Some(EventQueue::new(&queue, call, &vnic.memory)?);
                Some(vector)
            }
        };
        vnic.queues.insert(index, Queue { vector, base: queue.base, kick: None });
        if let Err(error) = self.replace_kick(id, index, queue.kick) {
            self.detach_queue(id, index)?;
            return Err(error);
        }
        if let Some(vnic) = self.world.vnics.get_mut(key) {
            // Events may have been waiting for the queue.
            vnic.cqs.deliver(&vnic.memory, &mut vnic.comp_queues, vnic.epoch);
        }
        Ok(())
    }

    fn queue_mut(&mut self, id: VnicId, index: u16) -> Result<&mut Queue, DriverError> {
        let unknown = || DriverError::UnknownObject(format!("virtqueue {index}"));
        self.world.vnic_mut(id)?.queues.get_mut(&index).ok_or_else(unknown)
    }

    fn replace_kick(&mut self, id: VnicId, index: u16, kick: Option<OwnedFd>) -> Result<(), DriverError> {
        let key = self.world.vnic_key(id)?;
        let old = self.queue_mut(id, index)?.kick.take();
        if let Some(old) = old {
            self.poller.remove(old.as_fd());
        }
        if let Some(kick) = &kick {
            self.poller.add(kick.as_fd(), Token::Kick(key, index)).map_err(|source| DriverError::Os {
                what: format!("cannot wait for kicks of virtqueue {index}"),
                source,
            })?;
        }
        self.queue_mut(id, index)?.kick = kick;
        Ok(())
    }

    fn replace_call(&mut self, id: VnicId, index: u16, call: Option<OwnedFd>) -> Result<(), DriverError> {
        let vector = self.queue_mut(id, index)?.vector;
        let vnic = self.world.vnic_mut(id)?;
        let place = vector.and_then(|v| vnic.comp_queues.0.get_mut(usize::from(v)));
        if let Some(Some(queue)) = place {
            queue.set_call(call);
            queue.notify(&vnic.memory);
        }
        Ok(())
    }

    fn detach_queue(&mut self, id: VnicId, index: u16) -> Result<u16, DriverError> {
        self.queue_mut(id, index)?;
        self.replace_kick(id, index, None)?;
        let vnic = self.world.vnic_mut(id)?;
        let Some(queue) = vnic.queues.remove(&index) else { return Ok(0) };
        let place = queue.vector.and_then(|v| vnic.comp_queues.0.get_mut(usize::from(v)));
        Ok(place.and_then(Option::take).map_or(queue.base, |q| q.base()))
    }

    fn create_context(&mut self, id: VnicId, ctx: CtxHandle, doorbells: &[Gpa]) -> Result<(), DriverError> {
        let vnic = self.world.vnic_mut(id)?;
        if vnic.contexts.contains_key(&ctx) {
            return Err(DriverError::Exists(format!("context {}", ctx.0)));
        }
        if vnic.contexts.len() >= limits::MAX_CONTEXTS as usize {
            return Err(DriverError::Exhausted("contexts".into()));
        }
        let context = Context::new(ctx, doorbells, &vnic.memory)?;
        vnic.contexts.insert(ctx, context);
        Ok(())
    }

    fn destroy_context(&mut self, id: VnicId, ctx: CtxHandle) -> Result<(), DriverError> {
        let vnic = self.world.vnic_mut(id)?;
        if vnic.contexts.get(&ctx).is_some_and(Context::is_in_use) {
            return Err(DriverError::Busy(format!("context {}", ctx.0)));
        }
        vnic.contexts.remove(&ctx);
        Ok(())
    }

    fn modify_qp(&mut self, id: VnicId, handle: QpHandle, change: &QpChange) -> Result<(), DriverError> {
        let key = self.world.qp_key(id, handle)?;
        let now = self.world.now;
        let paths = match &change.connection {
            Some(connection) => self.open_paths(key, connection)?,
            None => Vec::new(),
        };
        let datagrams = self.world.qps.get(key).is_some_and(|q| q.datagram.is_some());
        // A datagram queue pair has no path MTU among its attributes: masqd gives it that of the underlay.
        let judged = QpChange { path_mtu: change.path_mtu.filter(|_| !datagrams), ..change.clone() };
        if datagrams && change.to == Some(QpState::Rtr) {
            self.check_listen(key)?;
        }
        self.world.set_hands_off(key, true);
        let modified = self.world.with_env(key, |core, env| core.modify(now, env, &judged));
        if let Err(error) = modified.unwrap_or(Ok(())) {
            self.world.set_hands_off(key, false);
            self.close_paths(&paths);
            return Err(error);
        }
        if let Some(connection) = &change.connection {
            self.connect_paths(key, connection, paths, change.to == Some(QpState::Rtr));
        }
        self.modify_siblings(key, change);
        self.world.set_hands_off(key, false);
        if let Some(datagram) = self.world.qps.get_mut(key).and_then(|q| q.datagram.as_mut()) {
            datagram.change(change);
        }
        match change.to {
            Some(QpState::Reset) => self.reset_qp(key),
            Some(QpState::Rtr) if datagrams => self.listen(key),
            Some(QpState::Rts) => {
                if let Some(qp) = self.world.qps.get_mut(key).filter(|q| !q.io.held_send.present) {
                    qp.initiator.start(qp.core.attributes());
                }
            }
            _ => {}
        }
        // There may be work that was posted before, or something to flush.
        self.world.work_posted(key);
        Ok(())
    }

    /// Prepares the way of the queue pair with a wire number to a peer; nothing else sees it yet.
    pub(super) fn open_path(
        &mut self,
        key: QpKey,
        wire_qpn: WireQpn,
        connection: &Connection,
    ) -> Result<Path, DriverError> {
        let Some(vnic) = self.world.qps.get(key).and_then(|q| self.world.vnics.get(q.io.vnic)) else {
            return Err(DriverError::UnknownObject("queue pair".into()));
        };
        let own = vnic.addresses.iter().find(|(address, _)| *address == connection.local);
        let Some((_, local)) = own.copied() else {
            return Err(DriverError::Invalid(format!("{} is no address of the vNIC", connection.local)));
        };
        if self.world.is_taken(&(local, wire_qpn), key) {
            let what =
                format!("a connected queue pair with the wire number {wire_qpn} at {}", connection.local);
            return Err(DriverError::Exists(what));
        }
        match self.edge.find(connection.remote) {
            Some(remote) => {
                let incarnation = self.next_incarnation;
                self.next_incarnation += 1;
                let remote_qpn = connection.remote_qpn;
                Ok(Path::Local(LocalPath { local, remote, remote_qpn, incarnation, established: false }))
            }
            None => {
                // Switches mark what says that its sender takes part, and drop the rest.
                let ecn = match self.config.transport.congestion {
                    Congestion::None => Ecn::NotEct,
                    Congestion::Dcqcn | Congestion::Swift => Ecn::Ect0,
                };
                let traffic_class = ecn.mark(connection.traffic_class);
                let marked = Connection { traffic_class, ..connection.clone() };
                let route = self.edge.open_route(local, &marked)?;
                Ok(Path::Remote { local, route, remote_qpn: connection.remote_qpn })
            }
        }
    }

    /// Puts a connection in place of the old one.
    pub(super) fn connect(&mut self, key: QpKey, path: Path) {
        self.disconnect(key);
        let Some(wire_qpn) = self.world.qps.get(key).map(|q| q.io.wire_qpn) else { return };
        let peer = match &path {
            Path::Local(p) => Some((p.remote, p.remote_qpn)),
            _ => None,
        };
        if let Some(local) = path.local() {
            self.world.wire_up(local, wire_qpn, key, peer);
        }
        let peer = peer.and_then(|peer| self.world.wire.get(&peer)).copied();
        let remote = path.remote_qp();
        if let Some(qp) = self.world.qps.get_mut(key) {
            qp.path = path;
        }
        // A hidden one sends by its own path when the peer's RNIC has confirmed the connection.
        if let Some(remote) = remote.filter(|_| !self.world.qps.get(key).is_some_and(Qp::is_sibling)) {
            self.world.claim_remote(key, remote);
        }
        // A local peer may have been trying in vain.
        if let Some(peer) = peer {
            self.world.nudge(peer);
        }
    }

    fn disconnect(&mut self, key: QpKey) {
        self.silence_datagrams(key);
        self.world.forget_remote(key);
        self.world.unwire_other_paths(key);
        let Some(qp) = self.world.qps.get_mut(key) else { return };
        let (path, wire_qpn) = (std::mem::take(&mut qp.path), qp.io.wire_qpn);
        if let Some(local) = path.local() {
            self.world.unwire(local, wire_qpn);
        }
        if let Path::Remote { route, .. } = path {
            self.edge.close_route(&route);
        }
    }

    fn reset_qp(&mut self, key: QpKey) {
        self.world.give_back_shared(key);
        self.end_siblings(key);
        self.disconnect(key);
        let Some(qp) = self.world.qps.get_mut(key) else { return };
        if let Some(sq) = &mut qp.io.sq {
            sq.reset();
        }
        if let RecvSource::Own(rq) = &mut qp.io.receives {
            rq.reset();
        }
        qp.io.held_send.present = false;
        qp.io.held_recv.present = false;
        qp.io.drained_early = false;
        qp.initiator = Initiator::default();
    }

    fn query_qp(&self, id: VnicId, handle: QpHandle) -> Result<QpStatus, DriverError> {
        let key = self.world.qp_key(id, handle)?;
        let unknown = || DriverError::UnknownObject(format!("queue pair {}", handle.0));
        let qp = self.world.qps.get(key).ok_or_else(unknown)?;
        let mut status = qp.core.status();
        if let Some(datagram) = &qp.datagram {
            status.sq_psn = datagram.psn();
        }
        status.sq_draining |= status.state == QpState::Sqd && qp.io.held_send.present;
        status.sq_draining |= self.world.is_draining(qp);
        Ok(status)
    }

    fn destroy_qp(&mut self, id: VnicId, handle: QpHandle) -> Result<(), DriverError> {
        let vnic_key = self.world.vnic_key(id)?;
        let Some(key) = self.world.vnic_mut(id)?.qps.remove(&handle) else { return Ok(()) };
        self.end_siblings(key);
        let Some(qp) = self.remove_qp(key) else { return Ok(()) };
        if let Some(vnic) = self.world.vnics.get_mut(vnic_key) {
            if let Some(group) = qp.group {
                vnic.groups.try_remove(group);
            }
            QueueUses::of(&qp.io).release(vnic);
            vnic.unassign_doorbell(qp.ctx, qp.doorbell);
        }
        Ok(())
    }

    /// Takes a queue pair out of everything that knows it by its key.
    pub(super) fn remove_qp(&mut self, key: QpKey) -> Option<Qp> {
        self.disconnect(key);
        let qp = self.world.qps.remove(key)?;
        self.world.schedule.parked.retain(|k| *k != key);
        if let Some(vnic) = self.world.vnics.get_mut(qp.io.vnic) {
            vnic.counters += *qp.core.counters();
            vnic.held_requests = vnic.held_requests.saturating_sub(qp.core.buffers());
            vnic.early_bytes = vnic.early_bytes.saturating_sub(qp.core.early_bytes());
        }
        Some(qp)
    }

    fn revoke_qp(&mut self, id: VnicId, handle: QpHandle) -> Result<(), DriverError> {
        let key = self.world.qp_key(id, handle)?;
        let now = self.world.now;
        let reason = "its connection has been revoked";
        self.world.set_hands_off(key, true);
        self.world.with_env(key, |core, env| core.fail(now, env, Some(QpFault::Fatal), reason));
        self.world.with_siblings(key, |core, env| core.fail(now, env, None, reason));
        self.world.set_hands_off(key, false);
        self.world.schedule(key);
        Ok(())
    }

    fn set_limits(&mut self, id: VnicId, limits: &Limits) -> Result<(), DriverError> {
        limits.check().map_err(|e| DriverError::Invalid(e.to_string()))?;
        let key = self.world.vnic_key(id)?;
        let now = self.world.now;
        let Some(vnic) = self.world.vnics.get_mut(key) else { return Ok(()) };
        vnic.shaping.set(now, limits);
        // It may have waited for the old rate, or in the old class.
        vnic.shaping.parked_until = None;
        vnic.interrupted = false;
        if vnic.scheduled {
            self.world.schedule.dequeue(key);
            self.world.schedule.enqueue(limits.class.into(), key);
        }
        Ok(())
    }

    fn set_class_rate(&mut self, class: u8, rate: Option<Rate>) -> Result<(), DriverError> {
        let checked = check_class(class).and_then(|()| rate.as_ref().map_or(Ok(()), Rate::check));
        checked.map_err(|e| DriverError::Invalid(e.to_string()))?;
        let now = self.world.now;
        self.world.schedule.set_class_rate(now, class.into(), rate);
        Ok(())
    }

    fn vnic_counters(&mut self, id: VnicId) -> Result<VnicCounters, DriverError> {
        let now = self.world.now;
        let vnic = self.world.vnic_mut(id)?;
        let limited_ns = vnic.shaping.held_ns(now);
        let objects = ObjectCounts {
            contexts: vnic.contexts.len() as u64,
            mrs: vnic.keys.mr_count() as u64,
            mws: vnic.keys.mw_count() as u64,
            cqs: vnic.cqs.count() as u64,
            srqs: vnic.srqs.count() as u64,
            qps: vnic.qp_count() as u64,
        };
        let held_requests = vnic.held_requests as u64;
        let assigned_receives = vnic.assigned_receives as u64;
        Ok(VnicCounters { limited_ns, held_requests, assigned_receives, objects, ..vnic.traffic })
    }

    fn qp_traffic(&mut self, id: VnicId) -> Result<Vec<(QpHandle, QpTraffic)>, DriverError> {
        let key = self.world.vnic_key(id)?;
        let qps = self.world.vnics.get(key).into_iter().flat_map(|v| &v.qps);
        let mut all: Vec<_> =
            qps.filter_map(|(handle, k)| Some((*handle, self.traffic(self.world.qps.get(*k)?)))).collect();
        all.sort_unstable_by_key(|(handle, _)| *handle);
        Ok(all)
    }

    fn list(&self) -> Vec<VnicObjects> {
        let objects = |vnic: &Vnic| VnicObjects {
            vnic: vnic.id,
            contexts: vnic.contexts.keys().copied().collect(),
            mrs: vnic.keys.mr_handles(),
            mws: vnic.keys.mw_handles(),
            cqs: vnic.cqs.handles(),
            srqs: vnic.srqs.handles(),
            qps: vnic
                .qps
                .iter()
                .filter_map(|(h, k)| self.world.qps.get(*k).map(|q| (*h, q.io.wire_qpn, q.core.state())))
                .collect(),
        };
        self.world.vnics.iter().map(|(_, vnic)| objects(vnic)).collect()
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        let mut sum = self.world.counters;
        for (_, vnic) in self.world.vnics.iter() {
            sum += vnic.counters;
        }
        for (_, qp) in self.world.qps.iter() {
            sum += *qp.core.counters();
        }
        let inbound = self.inbound.counters;
        let mut named: Vec<_> = sum.named().collect();
        named.extend(self.world.losses.named());
        named.extend(self.world.paths.named());
        named.extend([
            ("rx_icrc_errors", inbound.rx_icrc_errors),
            ("rx_icrc_explained", inbound.rx_icrc_explained),
            ("rx_malformed", inbound.rx_malformed),
            ("rx_no_qp", inbound.rx_no_qp),
            ("rx_wrong_peer", inbound.rx_wrong_peer),
            ("rx_engine_full", inbound.rx_engine_full),
            ("tx_lost_trains", self.edge.lost_trains()),
        ]);
        named
    }
}

/// Bytes of the IP and UDP headers of a packet between addresses of this family.
pub fn ip_overhead(address: IpAddr) -> u64 {
    const UDP: u64 = 8;
    match address {
        IpAddr::V4(_) => 20 + UDP,
        IpAddr::V6(_) => 40 + UDP,
    }
}
