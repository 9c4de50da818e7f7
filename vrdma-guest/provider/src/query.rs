//! Attributes of the device and of its port.
#![allow(unsafe_code)] // The library calls in by pointers, and is called by pointers.

use std::ffi::{c_int, c_void};
use std::mem::{size_of, size_of_val};

use crate::abi::*;
use crate::errno::{Errno, status};
use crate::shared::shared;
use crate::verbs::*;

/// Timestamps of completions count nanoseconds.
const TIMESTAMP_KHZ: u64 = 1_000_000;

pub unsafe extern "C" fn query_device_ex(
    context: *mut ibv_context,
    input: *const c_void,
    attr: *mut ibv_device_attr_ex,
    attr_size: usize,
) -> c_int {
    // SAFETY: the library passes an open context and attributes of the size given; the response is as long as said.
    status(unsafe {
        let Some(shared) = shared(context) else { return libc::EINVAL };
        let mut response: ib_uverbs_ex_query_device_resp = [0; 38];
        let mut response_size = size_of_val(&response);
        let query = shared.library.ibv_cmd_query_device_any;
        Errno::check(query(context, input, attr, attr_size, &mut response, &mut response_size)).map(|()| {
            let [fw_ver, ..] = response;
            (&raw mut (*attr).fw_ver).write(firmware_version(fw_ver));
            if attr_size >= ibv_device_attr_ex::BYTES_WITH_CLOCK {
                (&raw mut (*attr).completion_timestamp_mask).write(u64::MAX);
                (&raw mut (*attr).hca_core_clock).write(TIMESTAMP_KHZ);
            }
        })
    })
}

/// The version as text: three numbers of 16 bits, as most kernel drivers report them.
fn firmware_version(version: u64) -> [u8; 64] {
    let text = format!("{}.{}.{}", version >> 32, (version >> 16) & 0xffff, version & 0xffff);
    let mut field = [0; 64];
    field[..text.len()].copy_from_slice(text.as_bytes());
    field
}

pub unsafe extern "C" fn query_port(context: *mut ibv_context, port: u8, attr: *mut ibv_port_attr) -> c_int {
    let mut command: ibv_query_port = Default::default();
    // SAFETY: the library passes an open context and attributes to fill in; the command is as long as said.
    status(unsafe {
        let Some(shared) = shared(context) else { return libc::EINVAL };
        let query = shared.library.ibv_cmd_query_port;
        Errno::check(query(context, port, attr, &mut command, size_of::<ibv_query_port>()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn firmware_versions_are_text() {
        let text = |version| String::from_utf8(firmware_version(version).to_vec()).unwrap();
        assert_eq!(text(0).trim_end_matches('\0'), "0.0.0");
        assert_eq!(text(0x0001_0002_0003).trim_end_matches('\0'), "1.2.3");
        assert_eq!(text(u64::MAX).trim_end_matches('\0'), "4294967295.65535.65535");
    }
}
