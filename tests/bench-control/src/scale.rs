//! What 50,000 vNICs in one network cost a host, beside 500.

use std::time::{Duration, Instant};

use bench_record::{Record, Samples};
use masq_control::Directory;
use masq_control::store::{Batch, Change};
use masq_model::{DesiredState, Edit, Host, Object, Vnic};

use crate::objects::{CLIENTS, FEW, endpoint, network, snapshot, vnic};

const COUNTS: [u32; 2] = [500, 50_000];
/// How much longer a change may take among a hundred times as many vNICs: look-ups in trees and caches that miss.
const BAR: f64 = 3.0;

fn member(n: u32, flip: bool) -> Vnic {
    let groups: &[&str] = if flip { &[CLIENTS, FEW] } else { &[CLIENTS] };
    vnic(format!("vnic-{n}"), n, Some(if n.is_multiple_of(2) { "h1" } else { "h2" }), groups)
}

/// The desired state.
fn desired(count: u32) -> Vec<Object> {
    let mut objects = network();
    for (n, name) in (1..).zip(["h1", "h2"]) {
        let underlay = vec![[10, 77, 0, n].into()];
        objects.push(Object::Host(Host {
            name: name.into(),
            underlay,
            aliases: vec![],
            class_rates: vec![],
        }));
    }
    objects.extend((0..count).map(|n| Object::Vnic(member(n, false))));
    objects
}

/// The desired state, and the endpoints that hosts have published.
fn realised(count: u32) -> Vec<Object> {
    let mut objects = desired(count);
    objects.extend((0..count).map(|n| Object::Endpoint(endpoint(&member(n, false), n))));
    objects
}

/// Bytes that this program has allocated.
#[allow(unsafe_code)] // asks the C library, in which nobody else counts
fn allocated_bytes() -> f64 {
    // SAFETY: mallinfo2 has no preconditions.
    let info = unsafe { libc::mallinfo2() };
    (info.uordblks + info.hblkhd) as f64
}

/// Loading, memory and changes of the directory; changes of the desired state.
pub fn measure(rounds: u32) -> Vec<Record> {
    let [_, many] = COUNTS;
    let store = snapshot(&realised(many));
    let mut loading = Samples::default();
    let mut bytes = Samples::default();
    for _ in 0..3 {
        let before = allocated_bytes();
        let start = Instant::now();
        let (directory, bad) = Directory::from_snapshot(&store);
        loading.push(start.elapsed().as_secs_f64());
        bytes.push((allocated_bytes() - before) / f64::from(many));
        assert!(bad.is_empty() && directory.objects().count() == store.entries.len(), "{bad:?}");
    }
    let scope = "pure, 50000 in one network";
    let mut records = vec![
        Record::new("directory_load", scope, loading.median(), "s"),
        Record::new("directory_memory", format!("{scope}, per vNIC"), bytes.median(), "B"),
    ];
    drop(store);

    let mut directories = COUNTS.map(|count| Directory::from_snapshot(&snapshot(&realised(count))).0);
    records.push(compare("directory_apply", "vNIC changes groups", rounds, |k, n, flip| {
        apply(&mut directories[k], Object::Vnic(member(n, flip)))
    }));
    records.push(compare("directory_apply", "endpoint gets other QPNs", rounds, |k, n, flip| {
        let block = n + u32::from(flip);
        apply(&mut directories[k], Object::Endpoint(endpoint(&member(n, false), block)))
    }));
    drop(directories);

    let mut states = COUNTS.map(|count| {
        let mut state = DesiredState::default();
        state.edit(desired(count).into_iter().map(Edit::Put).collect()).expect("a consistent state");
        state
    });
    records.push(compare("desired_edit", "vNIC changes groups", rounds, |k, n, flip| {
        let edit = vec![Edit::Put(Object::Vnic(member(n, flip)))];
        let start = Instant::now();
        states[k].edit(edit).expect("a consistent state");
        start.elapsed()
    }));
    records
}

/// The times of changes among many vNICs beside those among few. `change` is given which of the two it is, the number of a
/// vNIC, and which way to change it.
fn compare(
    name: &str,
    what: &str,
    rounds: u32,
    mut change: impl FnMut(usize, u32, bool) -> Duration,
) -> Record {
    let mut samples = [Samples::default(), Samples::default()];
    for round in 0..rounds {
        // A change, and back to where it was.
        for flip in [true, false] {
            for (k, samples) in samples.iter_mut().enumerate() {
                let n = round.wrapping_mul(7919) % COUNTS[k];
                samples.push_us(change(k, n, flip));
            }
        }
    }
    let [few, many] = &samples;
    Record::new(name, format!("pure, {what}, 50000"), many.median(), "us")
        .beside("500", few.median())
        .at_most(BAR)
}

fn apply(directory: &mut Directory, object: Object) -> Duration {
    let put = Change::Put { key: object.key().to_string(), value: object.to_json() };
    let batch = Batch { changes: vec![put], revision: directory.revision() + 1 };
    let start = Instant::now();
    let delta = directory.apply(&batch);
    let time = start.elapsed();
    assert!(!delta.touched.is_nothing());
    time
}
