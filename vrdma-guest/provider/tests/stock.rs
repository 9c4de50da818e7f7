//! The built library in the hands of the libibverbs that is installed: it is loaded, registers itself, and is matched with a device
//! that a made-up sysfs tree shows.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use vrdma_abi::uapi::UVERBS_ABI;

/// The name of the library that cargo builds, and the one under which the libibverbs of its private ABI looks for it.
const NAMES: [&str; 2] = if cfg!(feature = "pabi65") {
    ["libvrdma65.so", "libvrdma-rdmav65.so"]
} else {
    ["libvrdma.so", "libvrdma-rdmav34.so"]
};

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

/// What `ibv_devices` prints for such a device. It also looks for a device file, so it runs in a mount namespace of its own.
fn devices(root: &Path, modalias: &str) -> String {
    sysfs(root, modalias);
    fs::copy(built(), root.join(NAMES[1])).unwrap();
    let script = "mount -t tmpfs none /dev && mkdir /dev/infiniband && touch /dev/infiniband/uverbs0 && exec ibv_devices";
    let output = Command::new("unshare")
        .args(["--map-root-user", "--mount", "sh", "-c", script])
        .env("SYSFS_PATH", root)
        .env("IBV_DRIVERS", root.join("libvrdma"))
        .output()
        .unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
    // Of drivers that cannot be loaded, or do not match, libibverbs warns here.
    text(&output.stdout) + &text(&output.stderr)
}

fn can_run() -> bool {
    let installed = Command::new("ibv_devices").output().is_ok();
    let unshares = Command::new("unshare").args(["--map-root-user", "--mount", "true"]).status();
    // Where the kernel has RDMA devices, libibverbs asks it and not sysfs.
    let bare = !Path::new("/sys/class/infiniband").exists();
    let can = installed && unshares.is_ok_and(|status| status.success()) && bare;
    if !can {
        eprintln!("not checked: this needs ibverbs-utils, user namespaces and a machine without RDMA");
    }
    can
}

#[test]
fn libibverbs_matches_the_provider_by_virtio_id() {
    if !can_run() {
        return;
    }
    let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("stock-{}", std::process::id()));
    let ours = devices(&root.join("ours"), "virtio:d0000002Av00001AF4");
    let other = devices(&root.join("other"), "virtio:d00000001v00001AF4");
    fs::remove_dir_all(&root).unwrap();
    assert!(ours.contains("rocep0s9") && ours.contains("525400fffe640001"), "{ours}");
    assert!(!ours.contains("Warning"), "{ours}");
    // Without a match the device is not listed, which also shows that no other provider took ours.
    assert!(!other.contains("525400fffe640001"), "{other}");
}
