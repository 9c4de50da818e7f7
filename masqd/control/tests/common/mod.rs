//! A guest, its memory and an RNIC for tests of the session.
#![allow(dead_code)] // each test file uses its own part

mod guest;
mod rnic;

pub use guest::*;
pub use rnic::FakeRnic;
