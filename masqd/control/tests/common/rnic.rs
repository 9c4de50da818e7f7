use std::collections::BTreeMap;
use std::sync::Mutex;

use masq_driver::*;
use masq_types::{Gid, Lkey, Psn, Rkey, WireQpn};

/// An RNIC that keeps books: it refuses what `masq_driver` says an RNIC refuses, and panics over commands
/// that a session must never send.
#[derive(Default)]
pub struct FakeRnic(Mutex<Books>);

#[derive(Default)]
struct Books {
    status_page: Option<Gpa>,
    contexts: BTreeMap<CtxHandle, Vec<Gpa>>,
    mrs: BTreeMap<MrHandle, MrAttr>,
    mws: BTreeMap<MwHandle, (PdHandle, MwType)>,
    cqs: BTreeMap<CqHandle, CqAttr>,
    srqs: BTreeMap<SrqHandle, SrqAttr>,
    qps: BTreeMap<QpHandle, FakeQp>,
    next_key: u32,
    /// Errors to give instead of carrying out the next commands.
    failures: Vec<DriverError>,
    revoked: Vec<QpHandle>,
    commands: usize,
    limits: Option<Limits>,
    gids: Option<(Vec<Gid>, Vec<Gid>)>,
    peers: BTreeMap<PeerId, Peer>,
    /// Who was said not to exist, in order.
    nobody: Vec<PeerName>,
}

pub struct FakeQp {
    pub init: QpInit,
    pub state: QpState,
    pub change: QpChange,
}

impl FakeRnic {
    /// The limits of the last `SetLimits`.
    pub fn limits(&self) -> Option<Limits> {
        self.0.lock().unwrap().limits
    }

    /// How many objects exist; the status page counts.
    pub fn held(&self) -> usize {
        let b = self.0.lock().unwrap();
        let memory = b.mrs.len() + b.mws.len();
        let queues = b.cqs.len() + b.srqs.len() + b.qps.len();
        b.contexts.len() + memory + queues + usize::from(b.status_page.is_some())
    }

    /// How many commands were given.
    pub fn commands(&self) -> usize {
        self.0.lock().unwrap().commands
    }

    /// The next command fails.
    pub fn fail(&self, error: DriverError) {
        self.0.lock().unwrap().failures.push(error);
    }

    /// The queue pair fails, as after an error on the wire.
    pub fn break_qp(&self, qp: u32) {
        self.0.lock().unwrap().qps.get_mut(&QpHandle(qp)).unwrap().state = QpState::Err;
    }

    /// A send of the queue pair fails; it goes on receiving.
    pub fn fail_send(&self, qp: u32) {
        self.0.lock().unwrap().qps.get_mut(&QpHandle(qp)).unwrap().state = QpState::Sqe;
    }

    /// The queue pair fails, if there is one.
    pub fn try_break_qp(&self, qp: u32) {
        if let Some(q) = self.0.lock().unwrap().qps.get_mut(&QpHandle(qp)) {
            q.state = QpState::Err;
        }
    }

    /// The next command does not fail.
    pub fn forgive(&self) {
        self.0.lock().unwrap().failures.clear();
    }

    /// Runs `f` over a queue pair.
    pub fn qp<T>(&self, qp: u32, f: impl FnOnce(&FakeQp) -> T) -> T {
        f(&self.0.lock().unwrap().qps[&QpHandle(qp)])
    }

    /// The connection that a queue pair was given last.
    pub fn connection(&self, qp: u32) -> Option<Connection> {
        self.qp(qp, |q| q.change.connection.clone())
    }

    /// Wire QPNs of all queue pairs.
    pub fn wire_qpns(&self) -> Vec<WireQpn> {
        self.0.lock().unwrap().qps.values().map(|q| q.init.wire_qpn).collect()
    }

    /// The queue pairs that were revoked, in order.
    pub fn revoked(&self) -> Vec<u32> {
        self.0.lock().unwrap().revoked.iter().map(|q| q.0).collect()
    }

    /// Runs `f` over a memory region.
    pub fn mr<T>(&self, mr: u32, f: impl FnOnce(&MrAttr) -> T) -> T {
        f(&self.0.lock().unwrap().mrs[&MrHandle(mr)])
    }

    /// Runs `f` over a completion queue.
    pub fn cq<T>(&self, cq: u32, f: impl FnOnce(&CqAttr) -> T) -> T {
        f(&self.0.lock().unwrap().cqs[&CqHandle(cq)])
    }

    /// Runs `f` over a shared receive queue.
    pub fn srq<T>(&self, srq: u32, f: impl FnOnce(&SrqAttr) -> T) -> T {
        f(&self.0.lock().unwrap().srqs[&SrqHandle(srq)])
    }

    /// The GIDs of the table, without empty entries, and the published ones.
    pub fn gids(&self) -> (Vec<Gid>, Vec<Gid>) {
        let (table, published) = self.0.lock().unwrap().gids.clone().unwrap_or_default();
        (table.into_iter().filter(|gid| !gid.is_zero()).collect(), published)
    }

    /// The peers, by id.
    pub fn peers(&self) -> Vec<Peer> {
        self.0.lock().unwrap().peers.values().cloned().collect()
    }

    /// Who was said not to exist since the last call.
    pub fn nobody(&self) -> Vec<PeerName> {
        std::mem::take(&mut self.0.lock().unwrap().nobody)
    }

    /// It forgets its peers, as those that were not used for longest.
    pub fn forget_peers(&self) {
        self.0.lock().unwrap().peers.clear();
    }

    pub fn status_page(&self) -> Option<Gpa> {
        self.0.lock().unwrap().status_page
    }
}

fn unknown<T>(what: &str) -> Result<T, DriverError> {
    Err(DriverError::UnknownObject(what.into()))
}

fn check_pages(list: &PageList) {
    assert!((12..64).contains(&list.shift));
    for page in &list.pages {
        assert_eq!(page % (1 << list.shift), 0, "page {page:#x}");
    }
}

fn check_kind(kind: &MrKind) {
    match kind {
        MrKind::Pages { iova, length, pages } => {
            check_pages(pages);
            let size = 1u64 << pages.shift;
            assert!(*length == 0 || pages.pages.len() as u64 == (iova % size + length).div_ceil(size));
        }
        MrKind::FastReg { max_pages } => assert!((1..=512).contains(max_pages)),
        MrKind::AllMemory => {}
    }
}

fn check_ring(ring: &PageList, entries: u32, stride_shift: u8) {
    assert!(entries.is_power_of_two());
    assert_eq!(ring.shift, 12);
    assert_eq!(ring.pages.len() as u64, ((u64::from(entries) + 1) << stride_shift).div_ceil(4096));
    check_pages(ring);
}

impl RnicDriver for FakeRnic {
    fn execute(&self, command: Command) -> Result<Reply, DriverError> {
        let mut b = self.0.lock().unwrap();
        b.commands += 1;
        if let Some(error) = b.failures.pop() {
            return Err(error);
        }
        match command {
            Command::SetStatusPage { page, .. } => {
                assert!(page.is_none_or(|p| p.0 % 4096 == 0));
                b.status_page = page;
            }
            Command::CreateContext { ctx, doorbells, .. } => {
                assert_eq!(doorbells.len(), 8);
                if b.contexts.insert(ctx, doorbells).is_some() {
                    panic!("context {ctx:?} created twice");
                }
            }
            Command::DestroyContext { ctx, .. } => {
                if b.qps.values().any(|q| q.init.ctx == ctx) {
                    return Err(DriverError::Busy("context".into()));
                }
                b.contexts.remove(&ctx);
            }
            Command::CreateMr { mr, .. } => {
                check_kind(&mr.kind);
                b.next_key += 0x100;
                let (lkey, rkey) = (Lkey(b.next_key), Rkey(b.next_key));
                if b.mrs.insert(mr.mr, mr).is_some() {
                    panic!("region created twice");
                }
                return Ok(Reply::MrCreated { lkey, rkey });
            }
            Command::DestroyMr { mr, .. } => drop(b.mrs.remove(&mr)),
            Command::ReregMr { mr, pd, access, memory, .. } => {
                let Some(m) = b.mrs.get_mut(&mr) else { return unknown("memory region") };
                assert!(matches!(m.kind, MrKind::Pages { .. }));
                memory.iter().for_each(check_kind);
                m.pd = pd.unwrap_or(m.pd);
                m.access = access.unwrap_or(m.access);
                if let Some(kind) = memory {
                    m.kind = kind;
                }
            }
            Command::CreateMw { mw, pd, mw_type, .. } => {
                b.next_key += 0x100;
                let rkey = Rkey(b.next_key);
                if b.mws.insert(mw, (pd, mw_type)).is_some() {
                    panic!("memory window created twice");
                }
                return Ok(Reply::MwCreated { rkey });
            }
            Command::DestroyMw { mw, .. } => drop(b.mws.remove(&mw)),
            Command::CreateCq { cq, .. } => {
                check_ring(&cq.ring, cq.entries, 6);
                assert!(cq.vector < 4);
                if b.cqs.insert(cq.cq, cq).is_some() {
                    panic!("completion queue created twice");
                }
            }
            Command::ResizeCq { cq, entries, ring, .. } => {
                check_ring(&ring, entries, 6);
                let Some(c) = b.cqs.get_mut(&cq) else { return unknown("completion queue") };
                (c.entries, c.ring) = (entries, ring);
            }
            Command::CreateSrq { srq, .. } => {
                check_ring(&srq.queue.ring, srq.queue.entries, srq.queue.stride_shift);
                assert!(srq.limit <= srq.queue.entries);
                if let Some(xrc) = &srq.xrc {
                    assert!(b.cqs.contains_key(&xrc.cq) && (1..1 << 24).contains(&xrc.srqn));
                    let numbers = b.srqs.values().filter_map(|s| s.xrc);
                    assert!(
                        numbers.into_iter().all(|other| other.srqn != xrc.srqn),
                        "a number is in use twice"
                    );
                }
                if b.srqs.insert(srq.srq, srq).is_some() {
                    panic!("shared receive queue created twice");
                }
            }
            Command::ModifySrq { srq, limit, .. } => {
                let Some(s) = b.srqs.get_mut(&srq) else { return unknown("shared receive queue") };
                s.limit = limit;
            }
            Command::QuerySrq { srq, .. } => {
                let Some(s) = b.srqs.get(&srq) else { return unknown("shared receive queue") };
                return Ok(Reply::SrqLimit(s.limit));
            }
            Command::DestroySrq { srq, .. } => {
                let uses = |q: &FakeQp| matches!(q.init.receives, Receives::Shared(s) if s == srq);
                if b.qps.values().any(uses) {
                    return Err(DriverError::Busy("shared receive queue".into()));
                }
                b.srqs.remove(&srq);
            }
            Command::DestroyCq { cq, .. } => {
                let of_srq = b.srqs.values().any(|s| s.xrc.is_some_and(|xrc| xrc.cq == cq));
                let of_qp = |q: &FakeQp| q.init.send_cq == Some(cq) || q.init.recv_cq == Some(cq);
                if of_srq || b.qps.values().any(of_qp) {
                    return Err(DriverError::Busy("completion queue".into()));
                }
                b.cqs.remove(&cq);
            }
            Command::CreateQp { qp, .. } => {
                assert!(b.contexts.contains_key(&qp.ctx));
                assert!([qp.send_cq, qp.recv_cq].iter().flatten().all(|cq| b.cqs.contains_key(cq)));
                let target = qp.qp_type == QpType::XrcTgt;
                assert!(!(target && qp.kernel) && target == qp.sq.is_none() && target == qp.pd.is_none());
                let own = match &qp.receives {
                    Receives::Own(queue) => Some(queue),
                    Receives::Shared(srq) => {
                        assert!(b.srqs[srq].xrc.is_none());
                        None
                    }
                    Receives::Named(_) => {
                        assert!(target);
                        None
                    }
                    Receives::None => {
                        assert_eq!(qp.qp_type, QpType::XrcIni);
                        None
                    }
                };
                for queue in qp.sq.iter().chain(own) {
                    check_ring(&queue.ring, queue.entries, queue.stride_shift);
                }
                if let Some(group) = &qp.group {
                    let chunks = &group.chunks;
                    check_ring(&chunks.ring, chunks.entries, chunks.stride_shift);
                    assert!(
                        group.members > 1
                            && qp.wire_qpn.get().is_multiple_of(u32::from(group.members).next_power_of_two())
                    );
                }
                let numbers = |q: &QpInit| {
                    let first = q.wire_qpn.get();
                    first..first + q.group.as_ref().map_or(1, |g| g.members.into())
                };
                let apart = |a: &QpInit, c: &QpInit| {
                    let (a, c) = (numbers(a), numbers(c));
                    a.end <= c.start || c.end <= a.start
                };
                assert!(b.qps.values().all(|q| apart(&q.init, &qp)), "a QPN is in use twice");
                let index = b.qps.len() as u16;
                let new = FakeQp { state: QpState::Reset, change: QpChange::default(), init: qp };
                if b.qps.insert(new.init.qp, new).is_some() {
                    panic!("queue pair created twice");
                }
                return Ok(Reply::QpCreated { slot: index % 8, index });
            }
            Command::ModifyQp { qp, change, .. } => {
                let Some(q) = b.qps.get_mut(&qp) else { return unknown("queue pair") };
                if change.from.is_some_and(|from| from != q.state) {
                    return Err(DriverError::WrongState(q.state));
                }
                let to = change.to.unwrap_or(q.state);
                // Port and P_Key never reach an RNIC.
                let given = change.attributes() | AttrMask::PORT | AttrMask::PKEY_INDEX;
                let row = transition(q.init.qp_type, q.state, to).expect("a legal transition");
                assert!(given.contains(row.required), "{:?} to {to:?} with {given}", q.state);
                q.state = to;
                q.change = change;
            }
            Command::QueryQp { qp, .. } => {
                let Some(q) = b.qps.get(&qp) else { return unknown("queue pair") };
                let status = QpStatus {
                    state: q.state,
                    sq_psn: Psn::new(77),
                    rq_psn: Psn::new(88),
                    sq_draining: q.state == QpState::Sqd,
                };
                return Ok(Reply::Qp(status));
            }
            Command::DestroyQp { qp, .. } => drop(b.qps.remove(&qp)),
            Command::DescribeQps { qps, .. } => {
                assert!((1..=MAX_DESCRIBED_QPS).contains(&qps.len()));
                let known = qps.into_iter().filter_map(|qp| b.qps.get(&qp));
                let details = |q: &FakeQp| QpDetails {
                    qp: q.init.qp,
                    state: q.state,
                    path: None,
                    paths: Vec::new(),
                    protocol: None,
                    requests: 0,
                    retries_left: 7,
                    rnr_retries_left: 7,
                    waits_for: None,
                    traffic: QpTraffic::default(),
                    counters: Vec::new(),
                    last_error: None,
                };
                return Ok(Reply::QpDetails(known.map(details).collect()));
            }
            Command::RevokeQp { qp, .. } => {
                let Some(q) = b.qps.get_mut(&qp) else { return unknown("queue pair") };
                q.state = QpState::Err;
                b.revoked.push(qp);
            }
            Command::SetLimits { limits, .. } => b.limits = Some(limits),
            Command::SetGids { table, published, .. } => {
                assert_eq!(table.len(), 16);
                b.gids = Some((table, published));
            }
            Command::SetPeer { peer, .. } => {
                assert!(peer.exceptions.iter().all(|e| e.verdict != peer.verdict));
                b.peers.insert(peer.id, peer);
            }
            Command::RemovePeer { peer, .. } => drop(b.peers.remove(&peer)),
            Command::NoPeer { name, .. } => b.nobody.push(name),
            Command::VnicCounters { .. } => {
                let counters = VnicCounters { tx_ip_bytes: 1001, rx_packets: 4, ..VnicCounters::default() };
                return Ok(Reply::VnicCounters(counters));
            }
            Command::VnicEvents { .. } => {
                return Ok(Reply::Counters(vec![("unheard_of", 9), ("sent_msgs", 7)]));
            }
            other => panic!("a session never sends {other:?}"),
        }
        Ok(Reply::Done)
    }
}
