//! Every target over the described inputs in `regressions/`, and over seeded random ones.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use fuzz_targets::TARGETS;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

fn folder() -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "regressions"].iter().collect()
}

/// The inputs of a target, by name.
fn regressions(target: &str) -> BTreeMap<String, Vec<u8>> {
    let files = fs::read_dir(folder().join(target)).expect("each target has a folder");
    files
        .map(|file| {
            let path = file.expect("it can be listed").path();
            let name = path.file_name().expect("it has a name").to_string_lossy().into_owned();
            (name, fs::read(path).expect("it can be read"))
        })
        .collect()
}

/// Runs a target over its regressions, and over `count` inputs that are random or made of them.
fn test(target: &str, count: usize) {
    let (_, run) = TARGETS.into_iter().find(|(name, _)| *name == target).expect("it exists");
    let regressions: Vec<_> = regressions(target).into_values().collect();
    assert!(!regressions.is_empty());
    run(&[]);
    regressions.iter().for_each(|input| run(input));
    let mut random = ChaCha8Rng::seed_from_u64(0x6d61_7371);
    for i in 0..count {
        let mut input = match i % 2 {
            0 => Vec::new(),
            _ => regressions[random.next_u32() as usize % regressions.len()].clone(),
        };
        let mut tail = vec![0; random.next_u32() as usize % 500];
        random.fill_bytes(&mut tail);
        if i % 4 != 3 {
            input.extend(&tail);
        }
        if i % 2 == 1 && !input.is_empty() {
            for _ in 0..1 + random.next_u32() % 8 {
                let at = random.next_u32() as usize % input.len();
                input[at] = random.next_u32() as u8;
            }
        }
        run(&input);
    }
}

#[test]
fn control() {
    test("control", 1500);
}

#[test]
fn front_end() {
    test("front_end", 2000);
}

#[test]
fn rings() {
    test("rings", 300);
}

#[test]
fn verbs() {
    test("verbs", 400);
}

#[test]
fn groups() {
    test("groups", 300);
}

#[test]
fn packets() {
    test("packets", 600);
}

#[test]
fn datagrams() {
    test("datagrams", 300);
}

#[test]
fn wire() {
    test("wire", 20_000);
}

#[test]
fn model() {
    test("model", 3000);
}

/// Each input stands in the README with what it is, and each that stands there exists.
#[test]
fn regressions_are_described() {
    let readme = fs::read_to_string(folder().join("README.md")).expect("there is one");
    let mut described: Vec<&str> = readme
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split_once("` | ").map(|(name, _)| name))
        .collect();
    let mut names: Vec<String> = TARGETS
        .iter()
        .flat_map(|(target, _)| regressions(target).into_keys().map(move |name| format!("{target}/{name}")))
        .collect();
    described.sort_unstable();
    names.sort_unstable();
    assert_eq!(names, described);
}
