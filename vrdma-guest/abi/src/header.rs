//! Writes the C header of the contract, `vrdma_abi.h`.
//!
//! `cargo run -p vrdma-abi --features header --example header > vrdma-guest/kmod/vrdma_abi.h`

extern crate alloc;

use alloc::format;
use alloc::string::String;
use core::fmt::Write;

use crate::{Constant, Layout, config, control, counters, doorbell, event, ring, uapi};

/// The text of the header.
pub fn c_header() -> String {
    let mut out = String::from(
        "/* SPDX-License-Identifier: (GPL-2.0 WITH Linux-syscall-note) OR BSD-2-Clause */\n\
         /*\n * The contract between a vrdma guest and its host.\n *\n\x20* Generated from the Rust crate vrdma-abi, which explains it; do not edit.\n */\n\
         #ifndef VRDMA_ABI_H\n#define VRDMA_ABI_H\n\n\
         #ifdef __KERNEL__\n#include <linux/types.h>\n#include <linux/build_bug.h>\n#else\n#include <assert.h>\n#include <stddef.h>\n#include <linux/types.h>\n#endif\n\n",
    );
    let modules: [(&str, &[Constant], &[Layout]); 6] = [
        ("Config space and queues", config::CONSTANTS, config::LAYOUTS),
        ("Control commands", control::CONSTANTS, control::LAYOUTS),
        ("Events", event::CONSTANTS, event::LAYOUTS),
        ("Doorbells", doorbell::CONSTANTS, doorbell::LAYOUTS),
        ("Rings", ring::CONSTANTS, ring::LAYOUTS),
        ("Kernel module and provider", uapi::CONSTANTS, uapi::LAYOUTS),
    ];
    for (title, constants, layouts) in modules {
        // Writing to a String cannot fail, here and below.
        let _ = writeln!(out, "/* ---- {title} ---- */\n");
        for constant in constants {
            write_constant(&mut out, constant);
        }
        out.push('\n');
        for layout in layouts {
            write_struct(&mut out, layout);
        }
    }
    write_counter_names(&mut out);
    out.push_str("#endif /* VRDMA_ABI_H */\n");
    out
}

/// The names of counters, each as the argument of a macro that makes an element of an array of it.
fn write_counter_names(out: &mut String) {
    out.push_str("/* ---- Counters ---- */\n\n/* The elements of an array, made of their names, in the order of struct vrdma_query_counters_reply. */\n");
    out.push_str("#define VRDMA_COUNTERS(counter)");
    for name in counters::COUNTER_NAMES {
        let _ = write!(out, " \\\n\tcounter(\"{name}\"),");
    }
    out.push_str("\n\n");
}

fn write_constant(out: &mut String, constant: &Constant) {
    write_comment(out, "", constant.doc);
    let value = match constant.value {
        v if v > 0xffff => format!("{v:#x}U"),
        v => format!("{v}"),
    };
    let _ = writeln!(out, "#define VRDMA_{} {value}", constant.name);
}

fn write_struct(out: &mut String, layout: &Layout) {
    let name = snake_case(layout.name);
    write_comment(out, "", layout.doc);
    let _ = writeln!(out, "struct vrdma_{name} {{");
    for field in layout.fields {
        write_comment(out, "\t", field.doc);
        let (ty, dimension) = c_type(field.ty);
        let _ = writeln!(out, "\t{ty} {}{dimension};", field.name);
    }
    out.push_str("};\n");
    let _ = writeln!(
        out,
        "static_assert(sizeof(struct vrdma_{name}) == {}, \"size of vrdma_{name}\");",
        layout.size
    );
    for field in layout.fields {
        let _ = writeln!(
            out,
            "static_assert(offsetof(struct vrdma_{name}, {0}) == {1}, \"offset of vrdma_{name}.{0}\");",
            field.name, field.offset
        );
    }
    out.push('\n');
}

/// The C type and array suffix of a Rust type as `stringify!` gives it.
fn c_type(ty: &str) -> (String, String) {
    if let Some((element, len)) =
        ty.strip_prefix('[').and_then(|t| t.strip_suffix(']')).and_then(|t| t.split_once(';'))
    {
        let (element, inner) = c_type(element.trim());
        return (element, format!("[{}]{inner}", len.trim()));
    }
    let c = match ty {
        "u8" => "__u8".into(),
        "u16" => "__u16".into(),
        "u32" => "__u32".into(),
        "u64" => "__u64".into(),
        structure => format!("struct vrdma_{}", snake_case(structure)),
    };
    (c, String::new())
}

fn write_comment(out: &mut String, indent: &str, doc: &[&str]) {
    match doc {
        [] => {}
        [line] => {
            let _ = writeln!(out, "{indent}/*{line} */");
        }
        lines => {
            let _ = writeln!(out, "{indent}/*");
            for line in lines.iter() {
                let _ = writeln!(out, "{indent} *{line}");
            }
            let _ = writeln!(out, "{indent} */");
        }
    }
}

fn snake_case(camel: &str) -> String {
    let mut out = String::new();
    for (i, c) in camel.chars().enumerate() {
        if c.is_ascii_uppercase() && i > 0 {
            out.push('_');
        }
        out.push(c.to_ascii_lowercase());
    }
    out
}
