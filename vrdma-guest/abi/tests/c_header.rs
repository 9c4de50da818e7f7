//! The kernel module's header is the one that this crate generates, and a C compiler agrees with
//! Rust about the size and offset of every field.

use std::io::Write;
use std::process::{Command, Stdio};

const COMMITTED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../kmod/vrdma_abi.h");

#[test]
fn committed_header_is_current() {
    let committed = std::fs::read_to_string(COMMITTED).expect("vrdma-guest/kmod/vrdma_abi.h is readable");
    assert!(
        committed == vrdma_abi::header::c_header(),
        "vrdma_abi.h is out of date: \
         cargo run -p vrdma-abi --features header --example header > vrdma-guest/kmod/vrdma_abi.h"
    );
}

/// The header carries a static assertion for each size and offset; compiling it checks them all.
#[test]
fn c_compiler_agrees_on_every_offset() {
    compile(&vrdma_abi::header::c_header()).expect("the generated header compiles");
}

#[test]
fn a_moved_field_is_noticed() {
    let header = vrdma_abi::header::c_header();
    let moved = header.replace("__u32 qpn;", "__u64 qpn;");
    assert_ne!(header, moved);
    compile(&moved).expect_err("a field of another size breaks an assertion");
}

fn compile(header: &str) -> Result<(), String> {
    let mut cc = Command::new("cc")
        .args(["-std=c11", "-Wall", "-Werror", "-fsyntax-only", "-x", "c", "-"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("a C compiler named cc");
    cc.stdin.take().unwrap().write_all(header.as_bytes()).unwrap();
    let out = cc.wait_with_output().unwrap();
    if out.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&out.stderr).into_owned()) }
}
