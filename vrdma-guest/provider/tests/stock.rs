//! The built library in the hands of a libibverbs that is not ours: it is loaded, registers itself, and is matched with a device
//! that a made-up sysfs tree shows.
//!
//! That is the installed one, or the one below `VRDMA_STOCK_ROOT`: a folder into which the distribution's packages ibverbs-utils, libibverbs1,
//! libnl-3-200, libnl-route-3-200 and libc6 have been unpacked. It must have the private ABI that the library was built for.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use vrdma_abi::uapi::UVERBS_ABI;

/// The name of the library that cargo builds, the one under which libibverbs looks for it, and the version of the latter's private symbols.
const NAMES: [&str; 3] = if cfg!(feature = "pabi65") {
    ["libvrdma65.so", "libvrdma-rdmav65.so", "IBVERBS_PRIVATE_65"]
} else {
    ["libvrdma.so", "libvrdma-rdmav34.so", "IBVERBS_PRIVATE_34"]
};
const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";

/// The library that cargo has built beside this test.
fn built() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let deps = test.parent().unwrap();
    [deps, deps.parent().unwrap()]
        .map(|folder| folder.join(NAMES[0]))
        .into_iter()
        .find(|library| library.exists())
        .expect("cargo builds the library for its tests")
}

/// A sysfs tree with one verbs device, whose parent has this modalias.
fn sysfs(root: &Path, modalias: &str) {
    let abi = UVERBS_ABI.to_string();
    let files = [
        ("class/infiniband_verbs/abi_version", "6"),
        ("class/infiniband_verbs/uverbs0/ibdev", "rocep0s9"),
        ("class/infiniband_verbs/uverbs0/dev", "231:192"),
        ("class/infiniband_verbs/uverbs0/abi_version", abi.as_str()),
        ("class/infiniband/rocep0s9/node_type", "1: CA"),
        ("class/infiniband/rocep0s9/node_guid", "5254:00ff:fe64:0001"),
        ("class/infiniband/rocep0s9/device/modalias", modalias),
    ];
    for (path, content) in files {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("{content}\n")).unwrap();
    }
}

/// A libibverbs with its programs.
struct Stock {
    root: Option<PathBuf>,
}

impl Stock {
    /// `None`, with the reason, when there is none that the built library can serve.
    fn find() -> Option<Self> {
        let root = std::env::var_os("VRDMA_STOCK_ROOT").map(PathBuf::from);
        let library = root.as_deref().unwrap_or(Path::new("/")).join(LIBRARIES).join("libibverbs.so.1");
        let serves = |library: Vec<u8>| library.windows(NAMES[2].len()).any(|at| at == NAMES[2].as_bytes());
        let is_served = fs::read(&library).is_ok_and(serves);
        let unshares = Command::new("unshare").args(["--map-root-user", "--mount", "true"]).status();
        // Where the kernel has RDMA devices, libibverbs asks it and not sysfs.
        let is_bare = !Path::new("/sys/class/infiniband").exists();
        let stock = Self { root };
        let has_programs = Command::new(&stock.command("ibv_devices")[0]).output().is_ok();
        if is_served && has_programs && unshares.is_ok_and(|status| status.success()) && is_bare {
            return Some(stock);
        }
        eprintln!(
            "not checked: this needs ibverbs-utils with {}, user namespaces and a machine without RDMA",
            NAMES[2]
        );
        None
    }

    /// How to run one of its programs.
    fn command(&self, program: &str) -> Vec<OsString> {
        let Some(root) = &self.root else { return vec![program.into()] };
        vec![
            root.join(LIBRARIES).join("ld-linux-x86-64.so.2").into(),
            "--library-path".into(),
            root.join(LIBRARIES).into(),
            root.join("usr/bin").join(program).into(),
        ]
    }

    /// What a program prints when there is one device, with this modalias. Programs also look for a device file, so it runs in a mount
    /// namespace of its own.
    fn run(&self, program: &str, root: &Path, modalias: &str) -> String {
        sysfs(root, modalias);
        fs::copy(built(), root.join(NAMES[1])).unwrap();
        let script = "mount -t tmpfs none /dev && mkdir /dev/infiniband && touch /dev/infiniband/uverbs0 && exec \"$@\"";
        let output = Command::new("unshare")
            .args(["--map-root-user", "--mount", "sh", "-c", script, "sh"])
            .args(self.command(program))
            .env("SYSFS_PATH", root)
            .env("IBV_DRIVERS", root.join("libvrdma"))
            .output()
            .unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        // Of drivers that cannot be loaded, or do not match, libibverbs warns here, by name. A program that failed has an exit code, not a signal.
        let printed = text(&output.stdout) + &text(&output.stderr);
        assert!(output.status.code().is_some(), "{:?}: {printed}", output.status);
        printed
    }
}

#[test]
fn libibverbs_matches_the_provider_by_virtio_id() {
    let Some(stock) = Stock::find() else { return };
    let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("stock-{}", std::process::id()));
    let ours = stock.run("ibv_devices", &root.join("ours"), "virtio:d0000002Av00001AF4");
    let other = stock.run("ibv_devices", &root.join("other"), "virtio:d00000001v00001AF4");
    // The device file is none, so the command that opens a context fails, and the provider undoes what it has begun.
    let opened = stock.run("ibv_devinfo", &root.join("opened"), "virtio:d0000002Av00001AF4");
    fs::remove_dir_all(&root).unwrap();
    assert!(ours.contains("rocep0s9") && ours.contains("525400fffe640001"), "{ours}");
    assert!(!ours.contains("libvrdma") && !ours.contains("Driver vrdma"), "{ours}");
    // Without a match the device is not listed, which also shows that no other provider took ours.
    assert!(!other.contains("525400fffe640001"), "{other}");
    assert!(opened.contains("Failed to open device"), "{opened}");
}
