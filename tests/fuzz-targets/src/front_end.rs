//! The vhost-user messages of a front end, whole and broken, with file descriptors that fit and others.

use std::cell::RefCell;
use std::fs::File;
use std::io::{IoSlice, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, OnceLock};

use masq_control::Directory;
use masq_driver::{Command, DriverError, EventSink, Reply, RnicDriver};
use masq_rnic::transport::Time;
use masq_rnic::{Engine, RnicConfig};
use masqd::device::serve_front_end;
use masqd::host::{Host, Refresher, Watchdog};
use masqd::router::Router;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

use crate::engine;
use crate::input::Input;
use crate::session::{WORLD, directory};

/// Messages and pieces of an input, so that none takes for ever.
const MAX_STEPS: usize = 96;
/// Bytes of an input that are sent: so few that all answers to them fit into the socket, where nobody reads them.
const MAX_BYTES: usize = 2048;

/// Bytes of the memory that the front end has.
const MEMORY: u64 = 1 << 20;
/// Where it is for the guest, and for the front end.
const GPA: u64 = 0x10_0000;
const USER_ADDR: u64 = 0x7f00_0000_0000;

const VERSION: u32 = 1;
const NEED_REPLY: u32 = 1 << 3;

const GET_FEATURES: u32 = 1;
const SET_FEATURES: u32 = 2;
const SET_OWNER: u32 = 3;
const SET_MEM_TABLE: u32 = 5;
const SET_VRING_NUM: u32 = 8;
const SET_VRING_ADDR: u32 = 9;
const SET_VRING_BASE: u32 = 10;
const GET_VRING_BASE: u32 = 11;
const SET_VRING_KICK: u32 = 12;
const SET_VRING_CALL: u32 = 13;
const SET_VRING_ERR: u32 = 14;
const SET_PROTOCOL_FEATURES: u32 = 16;
const SET_VRING_ENABLE: u32 = 18;
const SET_BACKEND_REQ_FD: u32 = 21;
const GET_CONFIG: u32 = 24;
const RESET_DEVICE: u32 = 34;
const ADD_MEM_REG: u32 = 37;
const REM_MEM_REG: u32 = 38;
/// Above the last request that exists.
const REQUESTS: u8 = 48;

/// What masqd offers: VERSION_1, protocol features, indirect descriptors, event index.
const FEATURES: u64 = 1 << 32 | 1 << 30 | 1 << 29 | 1 << 28;
/// MQ, REPLY_ACK, BACKEND_REQ, CONFIG, RESET_DEVICE, CONFIGURE_MEM_SLOTS.
const PROTOCOL_FEATURES: u64 = 1 | 1 << 3 | 1 << 5 | 1 << 9 | 1 << 13 | 1 << 15;

/// One input: how far the front end has come, what its memory holds, and what it sends then. When it has left, nothing of it
/// stays, and the next one is served.
pub fn run(data: &[u8]) {
    let input = &mut Input::new(data);
    let world = World::new();
    let mut front = FrontEnd::new(&world);
    front.begin(input.u8());
    let mut steps = 0;
    while !input.is_empty() && steps < MAX_STEPS && front.left > 0 {
        steps += 1;
        front.step(input);
    }
    front.leave();

    let next = FrontEnd::new(&world);
    next.send(&message(GET_FEATURES, VERSION, &[]), &[]);
    let answer = next.leave();
    assert_eq!(answer.get(12..20), Some(&FEATURES.to_ne_bytes()[..]), "the next front end is served");
}

/// A host with one vNIC, and the engine of its RNIC, which runs when it is asked for something.
struct World {
    host: Arc<Host>,
    rnic: Arc<Rnic>,
}

struct Rnic(Mutex<(Engine, u64)>);

impl RnicDriver for Rnic {
    fn execute(&self, command: Command) -> Result<Reply, DriverError> {
        let (engine, now) = &mut *self.0.lock().expect("nobody has panicked");
        *now += 1_000_000;
        let answer = engine.execute(Time::from_nanos(*now), command);
        engine.turn(Time::from_nanos(*now));
        answer
    }
}

impl World {
    fn new() -> Self {
        static RUNTIME: OnceLock<tokio::runtime::Runtime> = OnceLock::new();
        let runtime = RUNTIME.get_or_init(|| {
            let mut builder = tokio::runtime::Builder::new_multi_thread();
            builder.worker_threads(1).enable_time().build().expect("a runtime")
        });
        thread_local! { static DIRECTORY: RefCell<Option<Directory>> = const { RefCell::new(None) } }
        let router = Arc::new(Router::default());
        let sink: Arc<dyn EventSink> = router.clone();
        let engine = Engine::new(RnicConfig::default(), sink).expect("an engine");
        let rnic = Arc::new(Rnic(Mutex::new((engine, 0))));
        // Nobody reads the store.
        let (refresher, _) = Refresher::new();
        let watchdog = Watchdog::new(runtime.handle().clone());
        let host = Host::new("h1".into(), rnic.clone(), router, refresher, watchdog);
        *host.directory.write() = DIRECTORY.with(|d| {
            d.borrow_mut()
                .get_or_insert_with(|| directory(&WORLD.replace("10.77.0.1", &engine::addresses().0)))
                .clone()
        });
        let endpoint = host.directory.read().endpoint("blue-1").expect("the world has realised it").clone();
        host.published.insert(endpoint);
        World { host: Arc::new(host), rnic }
    }
}

/// A front end whose messages wait in a socket until it leaves.
struct FrontEnd<'w> {
    world: &'w World,
    ours: UnixStream,
    theirs: UnixStream,
    memory: File,
    /// The other end of a channel that masqd is given.
    channel: (UnixStream, UnixStream),
    /// It has no other writers when masqd has closed what it was given.
    pipe: (OwnedFd, OwnedFd),
    kick: OwnedFd,
    left: usize,
}

impl<'w> FrontEnd<'w> {
    fn new(world: &'w World) -> Self {
        let (ours, theirs) = UnixStream::pair().expect("a socket");
        let memory = memfd_create("ram", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).expect("a memfd");
        ftruncate(&memory, MEMORY).expect("memory");
        fcntl_add_seals(&memory, SealFlags::SHRINK | SealFlags::GROW).expect("seals");
        FrontEnd {
            world,
            ours,
            theirs,
            memory: memory.into(),
            channel: UnixStream::pair().expect("a socket"),
            pipe: rustix::pipe::pipe().expect("a pipe"),
            kick: eventfd(1, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("an eventfd"),
            left: MAX_BYTES,
        }
    }

    /// Bit 0: it has negotiated, bit 1: everything. Bit 2: it has memory, bit 3: and queues that run.
    fn begin(&mut self, options: u8) {
        let send = |request, body: &[u8]| self.send(&message(request, VERSION, body), &[]);
        if options & 1 != 0 {
            send(SET_OWNER, &[]);
            send(GET_FEATURES, &[]);
            send(SET_FEATURES, &FEATURES.to_ne_bytes());
            let protocol = if options & 2 != 0 { PROTOCOL_FEATURES } else { 1 << 3 };
            // The request to ask what there is comes first.
            send(15, &[]);
            send(SET_PROTOCOL_FEATURES, &protocol.to_ne_bytes());
        }
        if options & 4 != 0 {
            let table = [&[1, 0, 0, 0, 0, 0, 0, 0][..], &region(GPA, MEMORY, USER_ADDR, 0)].concat();
            self.send(&message(SET_MEM_TABLE, VERSION, &table), &[self.memory.as_fd()]);
        }
        if options & 8 != 0 {
            for index in [0, 1, 2, 6] {
                let at = USER_ADDR + 0x1_0000 * u64::from(index);
                let words = |n: u32| [index, n].map(u32::to_ne_bytes).concat();
                let index = u64::from(index).to_ne_bytes();
                self.send(&message(SET_VRING_NUM, VERSION, &words(16)), &[]);
                self.send(&message(SET_VRING_ADDR, VERSION, &addresses(words(0), at)), &[]);
                self.send(&message(SET_VRING_BASE, VERSION, &words(0)), &[]);
                self.send(&message(SET_VRING_CALL, VERSION, &index), &[self.kick.as_fd()]);
                self.send(&message(SET_VRING_KICK, VERSION, &index), &[self.kick.as_fd()]);
                self.send(&message(SET_VRING_ENABLE, VERSION, &words(1)), &[]);
            }
        }
    }

    fn step(&mut self, input: &mut Input<'_>) {
        match input.u8() {
            0..0x20 => {
                let len = input.u8().into();
                self.split(input.bytes(len), 0, input);
            }
            0x20..0x40 => {
                let at = u64::from(input.u16()) * 16;
                let len = input.u8().into();
                let bytes = input.bytes(len);
                rustix::io::pwrite(&self.memory, bytes, at % MEMORY).expect("it is ours to write");
            }
            kind => {
                let request = u32::from(input.u8() % REQUESTS);
                let mut bytes = self.message(request, input);
                // Mostly none, so that requests are carried out.
                if kind >= 0xe0 {
                    let at = input.below(bytes.len());
                    bytes[at] = input.u8();
                }
                let fds = if kind % 8 == 7 { input.u8() } else { usual_fds(request) };
                self.split(&bytes, fds, input);
            }
        }
    }

    /// A request with a body that fits it.
    fn message(&self, request: u32, input: &mut Input<'_>) -> Vec<u8> {
        let flags = VERSION | if input.below(2) == 0 { NEED_REPLY } else { 0 };
        let mut state = || [u32::from(input.u8() % 16), input.u16().into()].map(u32::to_ne_bytes).concat();
        let body = match request {
            SET_FEATURES => (FEATURES & input.u64()).to_ne_bytes().to_vec(),
            SET_PROTOCOL_FEATURES => (PROTOCOL_FEATURES & input.u64()).to_ne_bytes().to_vec(),
            SET_VRING_NUM | SET_VRING_BASE | GET_VRING_BASE => state(),
            SET_VRING_ENABLE => {
                [u32::from(input.u8() % 16), input.below(2) as u32].map(u32::to_ne_bytes).concat()
            }
            SET_VRING_ADDR => {
                let state = [u32::from(input.u8() % 16), 0].map(u32::to_ne_bytes).concat();
                addresses(state, input.address(USER_ADDR, MEMORY) & !15)
            }
            SET_VRING_KICK | SET_VRING_CALL | SET_VRING_ERR => {
                let no_fd = u64::from(input.below(8) == 0) << 8;
                (u64::from(input.u8() % 16) | no_fd).to_ne_bytes().to_vec()
            }
            SET_MEM_TABLE => {
                let count = input.below(4) as u32;
                let mut body = [count, 0].map(u32::to_ne_bytes).concat();
                (0..count).for_each(|_| body.extend(self.region(input)));
                body
            }
            ADD_MEM_REG | REM_MEM_REG => [&[0; 8][..], &self.region(input)].concat(),
            GET_CONFIG => {
                let (offset, size) = (input.u16() % 300, input.u8());
                let mut body = [u32::from(offset), size.into(), 0].map(u32::to_ne_bytes).concat();
                body.resize(12 + usize::from(size), 0);
                body
            }
            GET_FEATURES | SET_OWNER | RESET_DEVICE => Vec::new(),
            SET_BACKEND_REQ_FD => Vec::new(),
            _ => {
                let len = usize::from(input.u8() % 72);
                input.exactly(len)
            }
        };
        message(request, flags, &body)
    }

    fn region(&self, input: &mut Input<'_>) -> [u8; 32] {
        match input.below(4) {
            0 => region(GPA, MEMORY, USER_ADDR, 0),
            1 => {
                let page = u64::from(input.u8()) * 4096;
                region(GPA + page, 0x8000, USER_ADDR + page, page)
            }
            2 => region(input.address(GPA, MEMORY), input.u32().into(), USER_ADDR, input.u16().into()),
            _ => region(input.u64(), input.u64(), input.u64(), input.u64()),
        }
    }

    /// Sends bytes whole, or in two pieces; the descriptors come with the one or the other.
    fn split(&mut self, bytes: &[u8], fds: u8, input: &mut Input<'_>) {
        let bytes = &bytes[..bytes.len().min(self.left)];
        self.left -= bytes.len();
        let other = self.memory.try_clone().expect("a descriptor");
        let all = [
            self.kick.as_fd(),
            self.memory.as_fd(),
            self.pipe.1.as_fd(),
            self.channel.1.as_fd(),
            other.as_fd(),
        ];
        // The low bits say how many, the high ones which is first.
        let fds: Vec<_> = all.into_iter().cycle().skip((fds >> 4).into()).take((fds & 15).into()).collect();
        let place = input.u8();
        if place < 0xc0 || bytes.len() < 2 {
            return self.send(bytes, &fds);
        }
        let (first, second) = bytes.split_at(1 + usize::from(place & 0x1f) % (bytes.len() - 1));
        let (with_first, with_second) =
            if place & 0x20 == 0 { (&fds[..], &[][..]) } else { (&[][..], &fds[..]) };
        self.send(first, with_first);
        self.send(second, with_second);
    }

    fn send(&self, bytes: &[u8], fds: &[std::os::fd::BorrowedFd<'_>]) {
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(16))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(fds.is_empty() || control.push(SendAncillaryMessage::ScmRights(fds)));
        if !bytes.is_empty() {
            sendmsg(&self.ours, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)
                .expect("there is room");
        }
    }

    /// Has all that it has sent served; gives the answers. It leaves nothing behind.
    fn leave(self) -> Vec<u8> {
        let FrontEnd { world, mut ours, theirs, memory, channel, pipe: (canary, writer), kick, .. } = self;
        ours.shutdown(std::net::Shutdown::Write).expect("it is open");
        serve_front_end("blue-1", world.host.clone(), theirs).expect("its guest can be attached");
        match world.rnic.execute(Command::List) {
            Ok(Reply::Objects(objects)) => assert!(objects.is_empty(), "the RNIC still has {objects:?}"),
            other => panic!("{other:?}"),
        }
        drop((writer, channel, kick));
        let closed = File::from(canary).read(&mut [0; 1]);
        assert_eq!(closed.ok(), Some(0), "masqd keeps a descriptor open");
        // Refused while anybody has a writable mapping.
        fcntl_add_seals(&memory, SealFlags::WRITE).expect("memory of a guest that is gone is still mapped");
        let mut answers = Vec::new();
        // Cut off with what masqd had not read, where it has hung up.
        let _ = ours.read_to_end(&mut answers);
        answers
    }
}

/// The descriptors that belong to a request, as [`FrontEnd::split`] reads them.
fn usual_fds(request: u32) -> u8 {
    match request {
        SET_VRING_KICK | SET_VRING_CALL | SET_VRING_ERR => 0x01,
        SET_MEM_TABLE | ADD_MEM_REG => 0x11,
        SET_BACKEND_REQ_FD => 0x31,
        _ => 0,
    }
}

fn message(request: u32, flags: u32, body: &[u8]) -> Vec<u8> {
    let mut bytes = [request, flags, body.len() as u32].map(u32::to_ne_bytes).concat();
    bytes.extend(body);
    bytes
}

fn region(gpa: u64, len: u64, user_addr: u64, offset: u64) -> [u8; 32] {
    let mut bytes = [0; 32];
    for (to, word) in bytes.chunks_exact_mut(8).zip([gpa, len, user_addr, offset]) {
        to.copy_from_slice(&word.to_ne_bytes());
    }
    bytes
}

/// Descriptor table, used and available ring of a queue of 16, side by side.
fn addresses(mut state: Vec<u8>, at: u64) -> Vec<u8> {
    for part in [at, at.wrapping_add(0x2000), at.wrapping_add(0x1000), 0] {
        state.extend(part.to_ne_bytes());
    }
    state
}
