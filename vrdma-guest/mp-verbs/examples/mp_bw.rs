//! Moves data over a connection of several paths, and checks every byte.
//!
//! The server first, on either machine:
//!
//!     mp_bw -d vrdma0 -o write -s 1048576 -n 50
//!     mp_bw -d vrdma0 -o write -s 1048576 -n 50 SERVER
//!
//! The client sends (`write`, `send`) or fetches (`read`). Options: `-d DEVICE`, `-x I,J,…` indexes of GIDs (by default all RoCEv2 ones that are no link-local
//! addresses), `-i PORT` of the device, `-p PORT` of TCP, `-o write|read|send`, `-s BYTES`, `-n MESSAGES`, `-q DEPTH` messages at a time, `-u TIMEOUT` local ACK timeout
//! (4.096 µs times 2 to its power), `-e` sleeps for events instead of polling.

use std::error::Error;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use mp_verbs::device::{Device, Region};
use mp_verbs::{Attr, Completed, Completion, Kind, MpQp, Place, Receive, Request, Status};

struct Options {
    device: Option<String>,
    gids: Vec<u8>,
    ib_port: u8,
    tcp_port: u16,
    kind: Kind,
    bytes: u32,
    messages: u32,
    depth: u32,
    timeout: Option<u8>,
    sleeps: bool,
    server: Option<String>,
}

type Outcome<T> = Result<T, Box<dyn Error>>;

fn options() -> Outcome<Options> {
    let mut options = Options {
        device: None,
        gids: vec![],
        ib_port: 1,
        tcp_port: 18555,
        kind: Kind::Write,
        bytes: 1 << 20,
        messages: 20,
        depth: 4,
        timeout: None,
        sleeps: false,
        server: None,
    };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or(format!("{word} wants a value"));
        match word.as_str() {
            "-d" => options.device = Some(value()?),
            "-x" => options.gids = value()?.split(',').map(str::parse).collect::<Result<_, _>>()?,
            "-i" => options.ib_port = value()?.parse()?,
            "-p" => options.tcp_port = value()?.parse()?,
            "-s" => options.bytes = value()?.parse()?,
            "-n" => options.messages = value()?.parse()?,
            "-q" => options.depth = value()?.parse::<u32>()?.max(1),
            "-u" => options.timeout = Some(value()?.parse()?),
            "-e" => options.sleeps = true,
            "-o" => {
                options.kind = match value()?.as_str() {
                    "write" => Kind::Write,
                    "read" => Kind::Read,
                    "send" => Kind::Send,
                    other => return Err(format!("-o write|read|send, not {other}").into()),
                }
            }
            host if !host.starts_with('-') => options.server = Some(host.to_owned()),
            other => return Err(format!("unknown option {other}").into()),
        }
    }
    Ok(options)
}

/// Byte `i` of message `number`.
fn fill(number: u32, bytes: &mut [u8]) {
    let mut word = u64::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    for chunk in bytes.chunks_mut(8) {
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
        chunk.copy_from_slice(&word.to_le_bytes()[..chunk.len()]);
    }
}

/// The buffers of the messages under way, each of which has a place of its own.
struct Buffers {
    region: Region,
    bytes: usize,
    slots: u32,
    scratch: Vec<u8>,
}

impl Buffers {
    fn offset(&self, number: u32) -> usize {
        (number % self.slots) as usize * self.bytes
    }

    fn fill(&mut self, number: u32) {
        fill(number, &mut self.scratch);
        self.region.write(self.offset(number), &self.scratch);
    }

    /// Checks what has come, which must be what `fill` makes for `expected`, and spoils it, so that the next message in this place is not mistaken.
    fn check(&mut self, number: u32, expected: u32) -> Outcome<()> {
        let mut found = vec![0; self.bytes];
        self.region.read(self.offset(number), &mut found);
        fill(expected, &mut self.scratch);
        if let Some(at) = (0..self.bytes).find(|i| found[*i] != self.scratch[*i]) {
            return Err(format!("message {number}: byte {at} is wrong").into());
        }
        found.fill(0);
        self.region.write(self.offset(number), &found);
        Ok(())
    }
}

fn next(qp: &mut MpQp, sleeps: bool) -> Outcome<Completion> {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(completion) = qp.poll_cq() {
            if completion.status != Status::SUCCESS {
                let why = (qp.failure(), qp.error());
                return Err(format!("{:?} of {:?}: {why:?}", completion.status, completion.what).into());
            }
            return Ok(completion);
        }
        if qp.has_ended() || Instant::now() > deadline {
            return Err(format!("no completion: {:?}, {:?}", qp.failure(), qp.error()).into());
        }
        if sleeps {
            qp.get_cq_event(Some(Duration::from_secs(1)))?;
        }
    }
}

fn main() -> Outcome<()> {
    let options = options()?;
    let device = Device::open(options.device.as_deref())?;
    let gids = if options.gids.is_empty() { device.gids(options.ib_port) } else { options.gids.clone() };
    let mut attr = Attr::new(gids.into_iter().take(16).collect());
    attr.port = options.ib_port;
    attr.timeout = options.timeout.unwrap_or(attr.timeout);

    let mut stream = match &options.server {
        Some(server) => TcpStream::connect((server.as_str(), options.tcp_port))?,
        None => TcpListener::bind(("0.0.0.0", options.tcp_port))?.accept()?.0,
    };
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    let bytes = options.bytes as usize;
    let region = device.region(bytes * options.depth as usize)?;
    let mut buffers = Buffers { region, bytes, slots: options.depth, scratch: vec![0; bytes] };
    let mut qp = MpQp::connect(&device, &mut stream, &attr)?;

    if options.server.is_none() && options.kind == Kind::Read {
        // Who knows the place may read there.
        (0..options.depth).for_each(|number| buffers.fill(number));
    }
    // Where the peer's buffers are.
    let mine = buffers.region.remote(0);
    stream.write_all(&[mine.addr.to_be_bytes().as_slice(), &mine.key.to_be_bytes()].concat())?;
    let mut theirs = [0; 12];
    stream.read_exact(&mut theirs)?;
    let [a, b, c, d, e, f, g, h, i, j, k, l] = theirs;
    let remote =
        Place { addr: u64::from_be_bytes([a, b, c, d, e, f, g, h]), key: u32::from_be_bytes([i, j, k, l]) };

    // Of a message that is written there are two completions, its own and the note's, before the answer. Notes live until the connection has ended.
    let mut notes = match options.kind {
        Kind::Write => Some(Notes::new(&device, &mut qp, 2 * options.depth)?),
        Kind::Read | Kind::Send => None,
    };
    let took = match options.server {
        Some(_) => client(&mut qp, &mut buffers, &mut notes, remote, &options)?,
        None => server(&mut qp, &mut buffers, &mut notes, &options)?,
    };
    let moved = u64::from(options.bytes) * u64::from(options.messages);
    println!(
        "{moved} bytes in {:.3} s: {:.1} Mbit/s, all right",
        took.as_secs_f64(),
        moved as f64 * 8.0 / 1e6 / took.as_secs_f64()
    );
    for path in 0..qp.paths() {
        let stats = qp.path(path);
        println!("path {path}: {} bytes, alive {}, failures {}", stats.bytes, stats.alive, stats.failures);
    }
    // The client leaves; the server sees it leave.
    if options.server.is_some() {
        if !qp.disconnect(Duration::from_secs(20))? {
            return Err("the connection does not end".into());
        }
    } else {
        let deadline = Instant::now() + Duration::from_secs(30);
        while !qp.has_ended() && Instant::now() < deadline {
            qp.get_cq_event(Some(Duration::from_millis(200)))?;
            while qp.poll_cq().is_some() {}
        }
    }
    match qp.failure() {
        Some(status) => Err(format!("the connection has failed: {status:?}").into()),
        None if !qp.has_ended() => Err("the connection has not ended".into()),
        None => Ok(()),
    }
}

/// Small SENDs: the client says with one that it has written a message, the server that it has checked it, so that its place is free.
struct Notes {
    region: Region,
    slots: u32,
    sent: u32,
    awaited: u32,
}

impl Notes {
    /// With receives for as many as can be under way.
    fn new(device: &Arc<Device>, qp: &mut MpQp, slots: u32) -> Outcome<Self> {
        let region = device.region(slots as usize * 8)?;
        let mut notes = Self { region, slots, sent: 0, awaited: 0 };
        for _ in 0..slots {
            notes.await_one(qp)?;
        }
        Ok(notes)
    }

    fn await_one(&mut self, qp: &mut MpQp) -> Outcome<()> {
        let place = self.region.remote((self.awaited % self.slots) as usize * 4);
        qp.post_recv(Receive { wr_id: u64::from(self.awaited), bytes: 4, place })?;
        self.awaited += 1;
        Ok(())
    }

    /// What the received note says.
    fn take(&mut self, completion: &Completion, qp: &mut MpQp) -> Outcome<u32> {
        let mut number = [0; 4];
        self.region.read((completion.wr_id % u64::from(self.slots)) as usize * 4, &mut number);
        self.await_one(qp)?;
        Ok(u32::from_be_bytes(number))
    }

    fn send(&mut self, number: u32, qp: &mut MpQp) -> Outcome<()> {
        let offset = (self.slots + self.sent % self.slots) as usize * 4;
        self.sent += 1;
        self.region.write(offset, &number.to_be_bytes());
        let local = self.region.local(offset);
        let remote = Place { key: 0, addr: 0 };
        qp.post_send(Request { wr_id: NOTE, kind: Kind::Send, bytes: 4, local, remote })?;
        Ok(())
    }
}

/// `wr_id` of notes that are sent.
const NOTE: u64 = u64::MAX;

fn client(
    qp: &mut MpQp,
    buffers: &mut Buffers,
    notes: &mut Option<Notes>,
    remote: Place,
    options: &Options,
) -> Outcome<Duration> {
    let began = Instant::now();
    let (mut posted, mut complete, mut free) = (0, 0, 0);
    while free < options.messages {
        while posted < options.messages && posted - free < options.depth {
            if options.kind != Kind::Read {
                buffers.fill(posted);
            }
            let offset = buffers.offset(posted);
            let local = buffers.region.local(offset);
            let remote = Place { addr: remote.addr + offset as u64, ..remote };
            let (kind, bytes) = (options.kind, options.bytes);
            qp.post_send(Request { wr_id: u64::from(posted), kind, bytes, local, remote })?;
            if let Some(notes) = notes {
                notes.send(posted, qp)?;
            }
            posted += 1;
        }
        let completion = next(qp, options.sleeps)?;
        match completion.what {
            Completed::Received => {
                let number = notes.as_mut().ok_or("a note that nobody awaits")?.take(&completion, qp)?;
                if number != free {
                    return Err(format!("a note of message {number} instead of {free}").into());
                }
                free += 1;
            }
            Completed::Sent(Kind::Send) if completion.wr_id == NOTE => {}
            Completed::Sent(kind) => {
                if kind != options.kind || completion.wr_id != u64::from(complete) {
                    return Err(format!("{completion:?} instead of message {complete}").into());
                }
                if kind == Kind::Read {
                    buffers.check(complete, complete % options.depth)?;
                }
                if kind != Kind::Write {
                    free += 1;
                }
                complete += 1;
            }
        }
    }
    Ok(began.elapsed())
}

fn server(
    qp: &mut MpQp,
    buffers: &mut Buffers,
    notes: &mut Option<Notes>,
    options: &Options,
) -> Outcome<Duration> {
    let receive = |buffers: &Buffers, number: u32| {
        let place = buffers.region.remote(buffers.offset(number));
        Receive { wr_id: u64::from(number), bytes: options.bytes, place }
    };
    if options.kind == Kind::Send {
        for number in 0..options.depth.min(options.messages) {
            qp.post_recv(receive(buffers, number))?;
        }
    }
    let began = Instant::now();
    let mut checked = 0;
    while options.kind != Kind::Read && checked < options.messages {
        let completion = next(qp, options.sleeps)?;
        if completion.what != Completed::Received {
            continue;
        }
        let number = match notes {
            Some(notes) => notes.take(&completion, qp)?,
            None => completion.wr_id as u32, // one of ours
        };
        if number != checked {
            return Err(format!("message {number} instead of {checked}").into());
        }
        buffers.check(number, number)?;
        match notes {
            Some(notes) => notes.send(number, qp)?,
            None if number + options.depth < options.messages => {
                qp.post_recv(receive(buffers, number + options.depth))?
            }
            None => {}
        }
        checked += 1;
    }
    Ok(began.elapsed())
}
