//! Connections over queue pairs in memory, which do everything at once.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};

use mp_core::endpoint::control::PathParams;
use mp_core::endpoint::{
    Completed, Completion, Config, Endpoint, Kind, Op, Policies, PostError, Receive, Request, Status, Work,
};
use mp_core::split::Place;

use crate::connection::Connection;
use crate::fabric::{Event, Fabric};

const SECOND: u64 = 1_000_000_000;

/// A queue pair: its number, and that of its peer.
type Qp = Option<(u32, Option<u32>)>;

#[derive(Debug, Default)]
struct End {
    memory: BTreeMap<u32, Vec<u8>>,
    qps: Vec<Qp>,
    events: VecDeque<Event>,
    /// What `post` is to say.
    refuses: Option<i32>,
    closed: usize,
}

#[derive(Debug, Default)]
struct World {
    ends: [End; 2],
    down: Vec<bool>,
    next_number: u32,
}

#[derive(Debug)]
struct Mock {
    world: Arc<Mutex<World>>,
    end: usize,
}

impl Mock {
    fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().expect("nobody panics with it")
    }
}

impl Fabric for Mock {
    fn paths(&self) -> usize {
        self.world().down.len()
    }

    fn post(&mut self, work: &Work) -> io::Result<()> {
        let end = self.end;
        let mut world = self.world();
        if let Some(errno) = world.ends[end].refuses {
            return Err(io::Error::from_raw_os_error(errno));
        }
        let own = world.ends[end].qps[work.path];
        let peer = world.ends[1 - end].qps[work.path];
        let connected = matches!((own, peer), (Some((a, Some(b))), Some((c, Some(d)))) if a == d && b == c);
        let status = if world.down[work.path] || !connected {
            Status::RETRY_EXC_ERR
        } else {
            world.execute(end, work)
        };
        world.ends[end].events.push_back(Event::Sent { token: work.token, status });
        Ok(())
    }

    fn poll(&mut self) -> io::Result<Option<Event>> {
        let end = self.end;
        Ok(self.world().ends[end].events.pop_front())
    }

    fn close(&mut self, path: usize) -> io::Result<()> {
        let end = self.end;
        let mut world = self.world();
        world.ends[end].qps[path] = None;
        world.ends[end].closed += 1;
        Ok(())
    }

    fn open(&mut self, path: usize) -> io::Result<PathParams> {
        let end = self.end;
        let mut world = self.world();
        world.next_number += 1;
        let qpn = world.next_number;
        world.ends[end].qps[path] = Some((qpn, None));
        Ok(PathParams { qpn, psn: 0 })
    }

    fn connect(&mut self, path: usize, peer: PathParams) -> io::Result<()> {
        let end = self.end;
        match &mut self.world().ends[end].qps[path] {
            Some((_, of)) => *of = Some(peer.qpn),
            None => return Err(io::ErrorKind::NotConnected.into()),
        }
        Ok(())
    }
}

impl World {
    fn memory(&mut self, end: usize, place: Place, bytes: u32) -> Option<&mut [u8]> {
        let start = place.addr as usize;
        self.ends[end].memory.get_mut(&place.key)?.get_mut(start..start + bytes as usize)
    }

    fn execute(&mut self, end: usize, work: &Work) -> Status {
        let (from, to, bytes) = match work.op {
            Op::Write { local, remote, bytes } => ((end, local), (1 - end, remote), bytes),
            Op::Read { local, remote, bytes } => ((1 - end, remote), (end, local), bytes),
            Op::Control(message) => {
                let path = work.path;
                self.ends[1 - end].events.push_back(Event::Received { path, message: Some(message) });
                return Status::SUCCESS;
            }
            Op::Probe(_) => return Status::SUCCESS,
        };
        let Some(data) = self.memory(from.0, from.1, bytes).map(|data| data.to_vec()) else {
            return Status(10);
        };
        match self.memory(to.0, to.1, bytes) {
            Some(memory) => memory.copy_from_slice(&data),
            None => return Status(10),
        }
        Status::SUCCESS
    }
}

const KEY: u32 = 3;
const BYTES: usize = 1 << 20;

fn pair(paths: usize) -> (Arc<Mutex<World>>, [Connection<Mock>; 2]) {
    let end = |salt: usize| End {
        memory: BTreeMap::from([(KEY, (0..BYTES).map(|i| (i / 251 + i + salt) as u8).collect())]),
        qps: (0..paths as u32).map(|i| Some((i, Some(i)))).collect(),
        ..End::default()
    };
    let world = World { ends: [end(0), end(100)], down: vec![false; paths], next_number: 100 };
    let world = Arc::new(Mutex::new(world));
    let connection = |end| {
        let endpoint = Endpoint::new(Config::new(paths, end == 0), Policies::default());
        Connection::new(endpoint, Mock { world: world.clone(), end })
    };
    let ends = [connection(0), connection(1)];
    (world, ends)
}

fn lock(world: &Arc<Mutex<World>>) -> MutexGuard<'_, World> {
    world.lock().expect("nobody panics with it")
}

fn request(kind: Kind, local: u64, remote: u64, bytes: u32) -> Request {
    let place = |addr| Place { key: KEY, addr };
    Request { wr_id: local, kind, bytes, local: place(local), remote: place(remote) }
}

/// Polls both ends until nothing happens any more.
fn settle(ends: &mut [Connection<Mock>; 2], now: u64) -> [Vec<Completion>; 2] {
    let mut completions = [vec![], vec![]];
    for _ in 0..50 {
        for (end, completions) in ends.iter_mut().zip(&mut completions) {
            completions.extend(std::iter::from_fn(|| end.poll(now)));
        }
    }
    completions
}

#[test]
fn messages_and_receives_complete_at_both_ends() {
    let (world, mut ends) = pair(4);
    let receive = Receive { wr_id: 9, bytes: 1000, place: Place { key: KEY, addr: 900_000 } };
    ends[1].post_receive(receive, 0).expect("there is room");
    ends[0].post(request(Kind::Write, 0, 100_000, 300_000), 0).expect("there is room");
    ends[0].post(request(Kind::Read, 400_000, 0, 50_000), 0).expect("there is room");
    ends[0].post(request(Kind::Send, 500, 0, 700), 0).expect("there is room");
    let [sent, received] = settle(&mut ends, 0);
    assert!(sent.iter().chain(&received).all(|completion| completion.status == Status::SUCCESS));
    let order = sent.iter().map(|completion| (completion.wr_id, completion.bytes)).collect::<Vec<_>>();
    assert_eq!(order, [(0, 300_000), (400_000, 50_000), (500, 700)]);
    assert_eq!(
        received.iter().map(|r| (r.wr_id, r.bytes, r.what)).collect::<Vec<_>>(),
        [(9, 700, Completed::Received)]
    );
    let world = lock(&world);
    let [a, b] = [0, 1].map(|end| &world.ends[end].memory[&KEY]);
    assert_eq!(a[..300_000], b[100_000..400_000]);
    assert_eq!(a[400_000..450_000], b[..50_000]);
    assert_eq!(a[500..1200], b[900_000..900_700]);
    assert!((0..4).all(|path| ends[0].path(path).bytes > 0), "not all paths were used");
}

#[test]
fn a_path_that_fails_gets_new_queue_pairs_at_both_ends() {
    let (world, mut ends) = pair(2);
    lock(&world).down[1] = true;
    ends[0].post(request(Kind::Write, 0, 0, 1_000_000), 0).expect("there is room");
    let [sent, _] = settle(&mut ends, 0);
    assert_eq!(sent.iter().map(|completion| completion.status).collect::<Vec<_>>(), [Status::SUCCESS]);
    {
        let world = lock(&world);
        assert_eq!(world.ends[0].memory[&KEY][..1_000_000], world.ends[1].memory[&KEY][..1_000_000]);
        assert!(world.ends.iter().all(|end| end.closed == 1));
    }
    // It was tried again at once, and rests now.
    assert!(!ends[0].path(1).alive);
    let retry = ends[0].next_timeout().expect("it will be tried again");
    assert!((1..=30 * SECOND).contains(&retry));
    lock(&world).down[1] = false;
    settle(&mut ends, retry);
    assert!([0, 1].iter().all(|end| ends[*end].path(1).alive), "{ends:?}");
}

#[test]
fn disconnecting_ends_both() {
    let (world, mut ends) = pair(2);
    let receive = Receive { wr_id: 9, bytes: 10, place: Place { key: KEY, addr: 0 } };
    ends[1].post_receive(receive, 0).expect("there is room");
    ends[0].post(request(Kind::Write, 0, 0, 10), 0).expect("there is room");
    ends[0].disconnect(0);
    let [sent, received] = settle(&mut ends, 0);
    assert_eq!(sent.iter().map(|completion| completion.status).collect::<Vec<_>>(), [Status::SUCCESS]);
    assert_eq!(
        received.iter().map(|completion| completion.status).collect::<Vec<_>>(),
        [Status::WR_FLUSH_ERR]
    );
    assert!(ends.iter().all(|end| end.has_ended() && end.failure().is_none() && end.error().is_none()));
    assert!(lock(&world).ends.iter().all(|end| end.qps.iter().all(Option::is_none)));
    assert_eq!(ends[0].post(request(Kind::Write, 0, 0, 10), 0), Err(PostError::Ended));
}

#[test]
fn an_error_of_memory_reaches_both_ends() {
    let (_, mut ends) = pair(2);
    ends[0].post(request(Kind::Write, 0, BYTES as u64, 10), 0).expect("there is room");
    let receive = Receive { wr_id: 9, bytes: 10, place: Place { key: KEY, addr: 0 } };
    ends[1].post_receive(receive, 0).expect("there is room");
    let [sent, received] = settle(&mut ends, 0);
    assert_eq!(sent.iter().map(|completion| completion.status).collect::<Vec<_>>(), [Status(10)]);
    assert_eq!(
        received.iter().map(|completion| completion.status).collect::<Vec<_>>(),
        [Status::WR_FLUSH_ERR]
    );
    assert_eq!(ends[0].failure(), Some(Status(10)));
    assert!(ends.iter().all(Connection::has_ended));
}

#[test]
fn a_device_that_refuses_ends_the_connection() {
    let (world, mut ends) = pair(2);
    lock(&world).ends[0].refuses = Some(libc::ENOMEM);
    ends[0].post(request(Kind::Write, 0, 0, 10), 0).expect("it is taken");
    assert!(ends[0].has_ended());
    assert_eq!(ends[0].error().and_then(io::Error::raw_os_error), Some(libc::ENOMEM));
    let completion = ends[0].poll(0).expect("the message has ended");
    assert_eq!(completion.status, Status::WR_FLUSH_ERR);
    assert!(lock(&world).ends[0].qps.iter().all(Option::is_none));
}
