//! What a connection promises, whatever its paths do; and what it does with peers and schedulers that are none.

mod sim;

use std::vec;

use proptest::prelude::*;

use sim::{Event, LOCAL, Link, RECEIVES, SCRIBBLE, SECOND, Sim, TARGET};

use super::*;
use crate::monitor::Probing;
use crate::pace::Lossy;
use crate::schedule::{RoundRobin, Weighted};

fn place(key: u32, addr: u64) -> Place {
    Place { key, addr }
}

const MEMORY: usize = 4096;

fn any_request() -> impl Strategy<Value = (Kind, u32, u64, u64)> {
    let kind = prop_oneof![3 => Just(Kind::Write), 2 => Just(Kind::Read), 3 => Just(Kind::Send)];
    let bytes = prop_oneof![2 => 0u32..64, 3 => 64u32..2000];
    (kind, bytes, 0u64..16, 0u64..16)
        .prop_map(|(kind, bytes, remote, local)| (kind, bytes, remote * 128, local * 128))
}

/// Gives an end its script, and works out what both ends' memory and receives must be in the end.
fn prepare(sim: &mut Sim, index: usize, requests: &[(Kind, u32, u64, u64)]) -> (Vec<u8>, Vec<u8>) {
    let pattern = |salt: usize| -> Vec<u8> { (0..MEMORY).map(|i| (i * 31 + i / 256 + salt) as u8).collect() };
    let (mut local, mut target) = (pattern(index), pattern(50 + index));
    sim.ends[index].memory.insert(LOCAL, local.clone());
    sim.ends[1 - index].memory.insert(TARGET, target.clone());
    for (number, (kind, bytes, remote, at)) in requests.iter().enumerate() {
        let (own, other) = (
            *at as usize..*at as usize + *bytes as usize,
            *remote as usize..*remote as usize + *bytes as usize,
        );
        match kind {
            Kind::Write => target[other].copy_from_slice(&local[own]),
            Kind::Read => local[own].copy_from_slice(&target[other]),
            Kind::Send => {
                let peer = &mut sim.ends[1 - index];
                let wr_id = peer.expected.len() as u64;
                peer.expected.push_back(local[own].to_vec());
                peer.receives.push_back(Receive { wr_id, bytes: 2048, place: place(RECEIVES, wr_id * 4096) });
            }
        }
        sim.ends[index].script.push_back(Request {
            wr_id: number as u64,
            kind: *kind,
            bytes: *bytes,
            local: place(LOCAL, *at),
            remote: place(TARGET, *remote),
        });
    }
    let sends = sim.ends[1 - index].receives.len();
    sim.ends[1 - index].memory.insert(RECEIVES, vec![0; sends * 4096]);
    (local, target)
}

fn small_config() -> Config {
    Config { depth: 8, small_bytes: 64, unit_bytes: 32, messages: 24, ..Config::new(1, true) }
}

fn policies(which: usize) -> Policies {
    let scheduler: Box<dyn PathScheduler + Send> = match which % 3 {
        0 => Box::new(LeastLoaded),
        1 => Box::new(RoundRobin::default()),
        _ => Box::new(Weighted::new(vec![3, 2, 1])),
    };
    let control: Box<dyn ChunkControl + Send> = match which / 3 % 2 {
        0 => Box::new(Lossless { chunk_bytes: 128, window_bytes: 300 }),
        _ => Box::new(Lossy::new(64, 32, 4096)),
    };
    let monitor: Box<dyn PathMonitor + Send> = match which / 6 % 2 {
        0 => Box::new(Passive::default()),
        _ => Box::new(Probing::new(PROBE_BYTES_MIN, SECOND)),
    };
    Policies { scheduler, monitor, control }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    #[test]
    fn every_byte_comes_once_and_in_order_whatever_paths_do(
        requests in [prop::collection::vec(any_request(), 1..60), prop::collection::vec(any_request(), 0..30)],
        paths in prop::collection::vec((1u64..50, 1u64..50, any::<bool>()), 2..6),
        deaths in prop::collection::vec((0u64..4_000, 0usize..6, 1u64..8_000), 0..8),
        which in [0usize..12, 0usize..12],
        seed: u64,
        leaver in 0usize..2,
    ) {
        let mut links: Vec<_> = paths.iter().map(|(rate, delay, lossy)| Link {
            loses_above: if *lossy { 700 } else { u64::MAX },
            ..Link::new(rate * 1_000_000, delay * 1000)
        }).collect();
        // One path stays, so that the connection does.
        let immortal = seed as usize % links.len();
        links[immortal].loses_above = u64::MAX;
        if which.iter().any(|which| which / 3 % 2 == 0) {
            links.iter_mut().for_each(|link| link.loses_above = u64::MAX);
        }
        let config = Config { probe_bytes: if seed % 5 == 0 { 1 << 20 } else { 0 }, ..small_config() };
        let links_are_lossless = links.iter().all(|link| link.loses_above == u64::MAX);
        let config = if links_are_lossless { config } else { Config { probe_bytes: 0, ..config } };
        let count = links.len();
        let mut sim = Sim::new(links, seed, config, which.map(policies));
        let [a, b] = [prepare(&mut sim, 0, &requests[0]), prepare(&mut sim, 1, &requests[1])];
        for (from, path, time) in deaths {
            if path % count != immortal {
                sim.at(from * 1000, Event::Down(path % count));
                sim.at((from + time) * 1000, Event::Up(path % count));
            }
        }
        let counts = [0, 1].map(|index| {
            let end = &sim.ends[index];
            end.script.len() + end.receives.len()
        });
        sim.run(|sim| (0..2).all(|i| sim.ends[i].completions.len() == counts[i]), 100 * SECOND)?;

        for (index, end) in sim.ends.iter().enumerate() {
            prop_assert!(end.completions.iter().all(|completion| completion.status == Status::SUCCESS));
            for received in [false, true] {
                let of_kind = |completion: &&Completion| (completion.what == Completed::Received) == received;
                let order: Vec<_> = end.completions.iter().filter(of_kind).map(|completion| completion.wr_id).collect();
                prop_assert!(order.is_sorted() && order.iter().enumerate().all(|(i, wr_id)| i as u64 == *wr_id));
            }
            prop_assert!(end.endpoint.out.is_idle(), "{index}: {:?}", end.endpoint.out);
            prop_assert!(end.endpoint.grants.is_empty() && end.endpoint.receives.is_empty());
        }
        // All paths come back, late packets come, and change nothing.
        sim.pass(200 * SECOND)?;
        for (index, (local, target)) in [a, b].into_iter().enumerate() {
            for (end, key, expected) in [(index, LOCAL, local), (1 - index, TARGET, target)] {
                let wrong = sim.ends[end].memory[&key].iter().zip(&expected).position(|(is, should)| is != should);
                prop_assert!(wrong.is_none(), "memory {key} of end {end} is wrong at {wrong:?}");
            }
        }
        for end in &sim.ends {
            prop_assert!(end.memory[&RECEIVES].iter().all(|byte| *byte == SCRIBBLE));
            prop_assert!((0..count).all(|path| end.endpoint.path(path).alive), "{}", sim.state());
            let under_way = (0..count).map(|path| end.endpoint.path(path).in_flight_bytes).sum::<u64>();
            prop_assert!(under_way == 0 || config.probe_bytes > 0);
            prop_assert!(end.endpoint.flights.is_empty() || config.probe_bytes > 0);
        }
        sim.ends[leaver].leave = true;
        sim.wake(leaver, 0);
        sim.run(|sim| sim.ends.iter().all(|end| end.endpoint.has_ended()), 500 * SECOND)?;
        prop_assert!(sim.ends.iter().all(|end| end.endpoint.failure().is_none()));
        prop_assert!([0, 1].iter().all(|i| sim.ends[*i].completions.len() == counts[*i]));
    }

    #[test]
    fn late_packets_of_a_dead_path_change_nothing(
        deaths in prop::collection::vec((0u64..3_000, 0usize..3, 2_000u64..6_000), 1..6),
        sizes in prop::collection::vec(1u32..=512, 50),
        seed: u64,
    ) {
        let links = vec![Link::new(3_000_000, 20_000); 4];
        let mut sim = Sim::new(links, seed, small_config(), [0, 0].map(policies));
        let zeros = vec![0; 50 * 512];
        sim.ends[0].memory.insert(LOCAL, zeros.clone());
        sim.ends[1].memory.insert(TARGET, zeros);
        sim.ends[0].overwrites = true;
        for (i, bytes) in sizes.iter().enumerate() {
            let at = i as u64 * 512;
            let (local, remote) = (place(LOCAL, at), place(TARGET, at));
            sim.ends[0].script.push_back(Request { wr_id: i as u64, kind: Kind::Write, bytes: *bytes, local, remote });
        }
        for (from, path, time) in deaths {
            sim.at(from * 1000, Event::Down(path));
            sim.at((from + time) * 1000, Event::Up(path));
        }
        sim.run(|sim| sim.ends[0].completions.len() == 50, 100 * SECOND)?;
        sim.pass(200 * SECOND)?;
        prop_assert!(sim.ends[1].memory[&TARGET].iter().all(|byte| *byte == SCRIBBLE));
    }
}

/// Transfers `bytes` bytes by WRITE over such paths, and returns how long it took.
fn transfer(links: Vec<Link>, bytes: u32, policies: Policies) -> (Nanos, Sim) {
    let config = Config { probe_bytes: 1 << 20, ..Config::new(1, true) };
    let mut sim = Sim::new(links, 1, config, [policies, Policies::default()]);
    sim.ends[0].memory.insert(LOCAL, vec![7; bytes as usize]);
    sim.ends[1].memory.insert(TARGET, vec![0; bytes as usize]);
    let (local, remote) = (place(LOCAL, 0), place(TARGET, 0));
    sim.ends[0].script.push_back(Request { wr_id: 0, kind: Kind::Write, bytes, local, remote });
    let time = sim
        .run(|sim| !sim.ends[0].completions.is_empty(), 1000 * SECOND)
        .unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(sim.ends[0].completions[0].status, Status::SUCCESS);
    assert!(sim.ends[1].memory[&TARGET].iter().all(|byte| *byte == 7));
    (time, sim)
}

const MB: u32 = 1_000_000;

#[test]
fn equal_paths_add_up() {
    for paths in 1..=10 {
        let (time, _) = transfer(vec![Link::new(12_500_000, 50_000); paths], 25 * MB, Policies::default());
        let ideal = 2 * SECOND / paths as u64;
        assert!(time * 95 / 100 <= ideal, "{paths} paths: {time} ns");
    }
}

#[test]
fn unequal_paths_add_up_whether_one_asks_them_or_waits_for_them() {
    let links = || [12_500_000, 6_250_000, 3_125_000].map(|rate| Link::new(rate, 50_000)).to_vec();
    let ideal = 25 * SECOND * 1000 / 21_875;
    let (time, sim) = transfer(links(), 25 * MB, Policies::default());
    assert!(time * 90 / 100 <= ideal, "pulled: {time} ns of {ideal}");
    let shares = [0, 1, 2].map(|path| sim.ends[0].endpoint.path(path).bytes as f64 / 25e6 * 7.0);
    assert!(
        shares.iter().zip([4.0, 2.0, 1.0]).all(|(share, ideal)| (share - ideal).abs() < 0.4),
        "{shares:?}"
    );

    // One work request for each share, as the paper has it for lossless networks: probes tell the shares.
    let control = Box::new(Lossless { chunk_bytes: u64::MAX, window_bytes: u64::MAX });
    let monitor = Box::new(Probing::new(PROBE_BYTES_MIN, 1000 * SECOND));
    let policies = Policies { control, monitor, ..Policies::default() };
    let config = Config { probe_bytes: 1 << 20, ..Config::new(1, true) };
    let mut sim = Sim::new(links(), 1, config, [policies, Policies::default()]);
    sim.run(|sim| sim.ends[0].endpoint.path(2).bytes_per_sec > 0, SECOND).expect("probes come back");
    let began = sim.now;
    sim.ends[0].memory.insert(LOCAL, vec![7; 25_000_000]);
    sim.ends[1].memory.insert(TARGET, vec![0; 25_000_000]);
    let (local, remote) = (place(LOCAL, 0), place(TARGET, 0));
    sim.ends[0].script.push_back(Request { wr_id: 0, kind: Kind::Write, bytes: 25 * MB, local, remote });
    sim.wake(0, 0);
    sim.run(|sim| !sim.ends[0].endpoint.out.is_empty(), 10 * SECOND).expect("it is posted");
    let posted = [0, 1, 2].map(|path| sim.ends[0].qps[path].sent.len());
    assert!(posted.iter().all(|count| *count <= 2), "{posted:?}");
    sim.run(|sim| !sim.ends[0].completions.is_empty(), 1000 * SECOND).expect("it ends");
    let time = sim.now - began;
    assert!(time * 90 / 100 <= ideal, "asked: {time} ns of {ideal}");
}

#[test]
fn a_lossy_network_is_found_out() {
    let lossy = Link { loses_above: 700_000, ..Link::new(125_000_000, 20_000) };
    let control = Box::new(Lossy::new(64 << 10, 64 << 10, 64 << 20));
    let policies = Policies { control, ..Policies::default() };
    let (time, sim) = transfer(vec![lossy; 2], 100 * MB, policies);
    // 0.4 s at full rate; finding out costs failures of a path now and then, each a second or less.
    assert!(time < 8 * SECOND, "{time} ns");
    assert!(sim.ends[0].endpoint.path(0).failures > 0);
}

#[test]
fn a_path_that_dies_for_good_costs_its_time_and_no_more() {
    let links = vec![Link::new(12_500_000, 50_000); 4];
    let mut sim = Sim::new(links, 1, Config::new(1, true), [Policies::default(), Policies::default()]);
    sim.ends[0].memory.insert(LOCAL, vec![7; 25_000_000]);
    sim.ends[1].memory.insert(TARGET, vec![0; 25_000_000]);
    let (local, remote) = (place(LOCAL, 0), place(TARGET, 0));
    sim.ends[0].script.push_back(Request { wr_id: 0, kind: Kind::Write, bytes: 25 * MB, local, remote });
    sim.at(SECOND / 4, Event::Down(2));
    let time = sim.run(|sim| !sim.ends[0].completions.is_empty(), 100 * SECOND).expect("it ends");
    // Half over four paths, half over three.
    let ideal = SECOND / 4 + SECOND / 3;
    assert!(time < ideal * 11 / 10, "{time} ns of {ideal}");
    assert!(!sim.ends[0].endpoint.path(2).alive);
    // It is tried again, ever less often, and taken up when it answers.
    let at = sim.now;
    sim.pass(at + 100 * SECOND).expect("time passes");
    sim.at(sim.now, Event::Up(2));
    sim.run(|sim| sim.ends.iter().all(|end| end.endpoint.path(2).alive), sim.now + 40 * SECOND)
        .expect("it comes back");
}

#[test]
fn nothing_is_done_again_before_the_peer_has_closed_the_path() {
    let mut sim = Sim::new(vec![Link::new(3_000_000, 20_000); 2], 1, small_config(), [0, 0].map(policies));
    sim.ends[0].memory.insert(LOCAL, vec![7; 512]);
    sim.ends[1].memory.insert(TARGET, vec![0; 512]);
    sim.ends[0].overwrites = true;
    let (local, remote) = (place(LOCAL, 0), place(TARGET, 0));
    sim.ends[0].script.push_back(Request { wr_id: 0, kind: Kind::Write, bytes: 512, local, remote });
    // Packets of path 1 are held back, and the peer does not poll.
    sim.at(0, Event::Down(1));
    sim.ends[1].sleeps = true;
    sim.pass(SECOND / 2).expect("time passes");
    assert!(sim.ends[0].completions.is_empty());
    // They come, and may: the message is not complete. Then the peer wakes.
    sim.at(sim.now, Event::Up(1));
    sim.pass(sim.now + SECOND / 2).expect("time passes");
    assert!(sim.ends[0].completions.is_empty());
    sim.ends[1].sleeps = false;
    sim.wake(1, 0);
    sim.run(|sim| !sim.ends[0].completions.is_empty(), 10 * SECOND).expect("it completes");
    sim.pass(sim.now + 100 * SECOND).expect("time passes");
    assert!(sim.ends[1].memory[&TARGET].iter().all(|byte| *byte == SCRIBBLE));
}

#[test]
fn a_small_send_that_has_come_is_not_sent_again() {
    let mut sim = Sim::new(vec![Link::new(3_000_000, 500_000); 2], 1, small_config(), [0, 0].map(policies));
    let sends: Vec<_> = (0..4).map(|i| (Kind::Send, 40, 0, i * 128)).collect();
    prepare(&mut sim, 0, &sends);
    sim.run(|sim| sim.ends[1].completions.len() == 4, SECOND).expect("they come");
    assert!(sim.ends[0].completions.is_empty(), "the answers are under way");
    // The program has used the memory again. The answers never come.
    let path = (0..2).find(|path| sim.ends[0].endpoint.path(*path).in_flight_bytes > 0).expect("one is used");
    sim.at(sim.now, Event::Down(path));
    sim.run(|sim| sim.ends[0].completions.len() == 4, SECOND).expect("their fate is known");
    sim.pass(sim.now + 10 * SECOND).expect("time passes");
    assert!(sim.ends[0].completions.iter().all(|completion| completion.status == Status::SUCCESS));
    assert_eq!(sim.ends[1].completions.len(), 4);
    assert!(sim.ends[1].memory[&RECEIVES].iter().all(|byte| *byte == SCRIBBLE));
}

#[test]
fn a_queue_pair_that_only_flushes_ends_the_connection() {
    let mut end = one_end(2);
    let write = Request { kind: Kind::Write, remote: place(TARGET, 0), ..send(1, 10) };
    end.post(write).expect("there is room");
    let work = posted(&mut end, 0);
    end.handle_completion(work[0].token, Status::WR_FLUSH_ERR, 1);
    assert_eq!(end.failure(), Some(Status::WR_FLUSH_ERR));
}

#[test]
fn old_tokens_name_nothing() {
    let mut end = one_end(2);
    let write = Request { kind: Kind::Write, bytes: 2000, remote: place(TARGET, 0), ..send(1, 10) };
    end.post(write).expect("there is room");
    let old: Vec<_> = posted(&mut end, 0).into_iter().filter(|work| work.path == 1).collect();
    end.handle_completion(old[0].token, Status::RETRY_EXC_ERR, 1);
    end.handle_renewed(1, PathParams::default());
    // Others have their places now.
    let new = posted(&mut end, 2);
    assert!(!new.is_empty());
    let before = end.path(0);
    for work in &old {
        end.handle_completion(work.token, Status::SUCCESS, 3);
    }
    assert_eq!(end.path(0), before);
    assert!(new.iter().all(|work| end.flights.remove(work.token).is_some()));
}

#[test]
fn without_paths_the_connection_ends_and_says_how() {
    let mut sim = Sim::new(vec![Link::new(1_000_000, 1000); 2], 1, small_config(), [0, 0].map(policies));
    let requests = [(Kind::Write, 2000, 0, 0); 8];
    prepare(&mut sim, 0, &requests);
    prepare(&mut sim, 1, &[(Kind::Send, 10, 0, 0)]);
    sim.at(1000, Event::Down(0));
    sim.at(1000, Event::Down(1));
    sim.run(|sim| sim.ends[0].endpoint.has_ended(), SECOND).expect("it ends");
    let end = &sim.ends[0];
    assert_eq!(end.endpoint.failure(), Some(Status::RETRY_EXC_ERR));
    // All messages and the receive, in order.
    assert_eq!(end.completions.len(), 9);
    assert!(end.completions.iter().all(|completion| completion.status == Status::WR_FLUSH_ERR));
}

fn one_end(paths: usize) -> Endpoint {
    Endpoint::new(Config { paths, ..small_config() }, Policies::default())
}

fn posted(endpoint: &mut Endpoint, now: Nanos) -> Vec<Work> {
    core::iter::from_fn(|| endpoint.poll(now))
        .filter_map(|action| match action {
            Action::Post(work) => Some(work),
            _ => None,
        })
        .collect()
}

fn send(wr_id: u64, bytes: u32) -> Request {
    Request { wr_id, kind: Kind::Send, bytes, local: place(LOCAL, 0), remote: place(0, 0) }
}

#[test]
fn a_small_send_is_two_work_requests_on_one_path() {
    let mut end = one_end(2);
    end.post(send(1, 10)).expect("there is room");
    assert_eq!(posted(&mut end, 0), []);
    end.handle_control(1, Some(Control::Grant { sequence: 0, bytes: 10, place: place(9, 100) }));
    let work = posted(&mut end, 0);
    assert_eq!(work.len(), 2);
    assert_eq!(work[0].path, work[1].path);
    assert_eq!(work[0].op, Op::Write { local: place(LOCAL, 0), remote: place(9, 100), bytes: 10 });
    assert_eq!(work[1].op, Op::Control(Control::Done { sequence: 0, bytes: 10 }));
}

#[test]
fn errors_end_the_connection_with_the_message_that_had_them() {
    let mut end = one_end(2);
    let write = Request { kind: Kind::Write, remote: place(TARGET, 0), ..send(1, 10) };
    for wr_id in 1..=3 {
        end.post(Request { wr_id, ..write }).expect("there is room");
    }
    let work = posted(&mut end, 0);
    end.handle_completion(work[0].token, Status::SUCCESS, 1);
    end.handle_completion(work[1].token, Status(10), 1);
    end.handle_completion(work[2].token, Status::WR_FLUSH_ERR, 1);
    assert_eq!(end.post(write), Err(PostError::Ended));
    // The peer is told, by the path that lives.
    let told = posted(&mut end, 2);
    assert_eq!(
        told.iter().map(|work| work.op).collect::<Vec<_>>(),
        [Op::Control(Control::Abort { status: 10 })]
    );
    end.handle_completion(told[0].token, Status::SUCCESS, 3);
    assert_eq!(end.poll(3), Some(Action::Shut));
    end.handle_shut();
    let statuses: Vec<_> =
        core::iter::from_fn(|| end.poll_completion()).map(|done| (done.wr_id, done.status)).collect();
    assert_eq!(statuses, [(1, Status::SUCCESS), (2, Status(10)), (3, Status::WR_FLUSH_ERR)]);
    assert!(end.has_ended());
}

#[test]
fn peers_that_lie_end_the_connection() {
    let lies: [(Option<Control>, Status); 6] = [
        (None, Status::REM_INV_REQ_ERR),
        (Some(Control::Done { sequence: 1, bytes: 0 }), Status::REM_INV_REQ_ERR),
        (Some(Control::Done { sequence: 0, bytes: 101 }), Status::LOC_LEN_ERR),
        (
            Some(Control::Grant { sequence: RECEIVES_MAX, bytes: 0, place: place(0, 0) }),
            Status::REM_INV_REQ_ERR,
        ),
        (
            Some(Control::Reopen { path: 2, round: 1, params: PathParams::default(), received: 0 }),
            Status::REM_INV_REQ_ERR,
        ),
        (
            Some(Control::Reopened { path: 2, round: 1, params: PathParams::default(), received: 0 }),
            Status::REM_INV_REQ_ERR,
        ),
    ];
    for (lie, status) in lies {
        let mut end = one_end(2);
        end.post_receive(Receive { wr_id: 0, bytes: 100, place: place(RECEIVES, 0) }).expect("there is room");
        end.handle_control(0, lie);
        assert_eq!(end.failure(), Some(status), "{lie:?}");
    }
    // A SEND that its receive does not hold.
    let mut end = one_end(2);
    end.handle_control(0, Some(Control::Grant { sequence: 0, bytes: 9, place: place(9, 0) }));
    end.post(send(1, 10)).expect("there is room");
    posted(&mut end, 0);
    assert_eq!(end.failure(), Some(Status::REM_INV_REQ_ERR));
}

#[test]
fn what_is_told_twice_counts_once() {
    let mut end = one_end(2);
    for wr_id in 0..2 {
        end.post_receive(Receive { wr_id, bytes: 100, place: place(RECEIVES, 0) }).expect("there is room");
    }
    let done = Some(Control::Done { sequence: 0, bytes: 5 });
    end.handle_control(0, done);
    end.handle_control(1, done);
    assert_eq!(core::iter::from_fn(|| end.poll_completion()).count(), 1);
    let grant = Some(Control::Grant { sequence: 0, bytes: 10, place: place(9, 100) });
    end.handle_control(0, grant);
    end.post(send(1, 10)).expect("there is room");
    for work in posted(&mut end, 0) {
        end.handle_completion(work.token, Status::SUCCESS, 1);
    }
    end.handle_control(1, grant);
    end.post(send(2, 10)).expect("there is room");
    assert_eq!(posted(&mut end, 2), []);
    assert_eq!(end.failure(), None);
}

#[test]
fn rings_of_messages_and_receives_are_bounded() {
    let mut end = one_end(2);
    for wr_id in 0..24 {
        end.post(send(wr_id, 1)).expect("there is room");
        end.post_receive(Receive { wr_id, bytes: 1, place: place(RECEIVES, 0) }).expect("there is room");
    }
    assert_eq!(end.post(send(24, 1)), Err(PostError::Full));
    assert_eq!(
        end.post_receive(Receive { wr_id: 24, bytes: 1, place: place(RECEIVES, 0) }),
        Err(PostError::Full)
    );
}
