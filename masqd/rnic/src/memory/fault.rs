// Replacing a mapping from within a signal handler, and registering the handler, are what this module is for.
#![allow(unsafe_code)]

use std::io;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, compiler_fence};

/// Most mappings that are guarded at the same time, of all guests together: two for each region of a guest's memory.
const SLOTS: usize = 16384;

/// A mapping that its [`Guard`] keeps here for the signal handler, which can take no lock.
struct Slot {
    /// First byte; 0 when the slot is free.
    start: AtomicUsize,
    /// Bytes; 0 while the slot is being filled or emptied.
    len: AtomicUsize,
    poisoned: AtomicBool,
}

static MAPPINGS: [Slot; SLOTS] = [const {
    Slot { start: AtomicUsize::new(0), len: AtomicUsize::new(0), poisoned: AtomicBool::new(false) }
}; SLOTS];

/// Mappings that have been poisoned since the process began.
static POISONED: AtomicU64 = AtomicU64::new(0);

/// What SIGBUS meant before. The handler reads it, which takes no lock.
static PREVIOUS: OnceLock<libc::sigaction> = OnceLock::new();

/// Why a mapping cannot be guarded.
#[derive(Debug, thiserror::Error)]
pub enum GuardError {
    /// The handler cannot be installed.
    #[error("cannot handle SIGBUS: {0}")]
    Handler(io::Error),
    /// There is no room.
    #[error("all guests together have more than {SLOTS} mapped regions")]
    TooMany,
}

/// Keeps a page that cannot be had from ending the process: while the guard lives, a SIGBUS inside its mapping poisons
/// the mapping. Private zeroes take the place of all of it, and [`is_poisoned`](Self::is_poisoned) says so; whoever owns the
/// mapping looks after it has been used, and gives its guest up.
///
/// The guard must be dropped before the mapping is removed.
#[derive(Debug)]
pub struct Guard(&'static Slot);

impl std::fmt::Debug for Slot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:#x}+{:#x}", self.start.load(Ordering::Relaxed), self.len.load(Ordering::Relaxed))
    }
}

impl Guard {
    /// Guards the `len` bytes at `start`.
    ///
    /// # Safety
    ///
    /// They must be a whole mapping that nothing but guest memory lies in, and that outlives the guard.
    pub unsafe fn new(start: *const u8, len: usize) -> Result<Self, GuardError> {
        install()?;
        let start = start as usize;
        for slot in &MAPPINGS {
            if slot.start.compare_exchange(0, start, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                slot.poisoned.store(false, Ordering::Relaxed);
                slot.len.store(len, Ordering::Release);
                return Ok(Guard(slot));
            }
        }
        Err(GuardError::TooMany)
    }

    /// Whether a page could not be had.
    pub fn is_poisoned(&self) -> bool {
        // The fault was taken by an access before this call in program order.
        compiler_fence(Ordering::SeqCst);
        self.0.poisoned.load(Ordering::Acquire)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.len.store(0, Ordering::Release);
        self.0.start.store(0, Ordering::Release);
    }
}

/// How many mappings have been poisoned so far: when it has not changed, no [`Guard`] needs to be asked.
pub fn poisonings() -> u64 {
    compiler_fence(Ordering::SeqCst);
    POISONED.load(Ordering::Acquire)
}

fn install() -> Result<(), GuardError> {
    static INSTALLED: OnceLock<i32> = OnceLock::new();
    let errno = *INSTALLED.get_or_init(|| {
        // SAFETY: a sigaction is integers and an optional function, of which zeroes are values.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) = on_sigbus;
        action.sa_sigaction = handler as usize;
        // On the alternate stack, as Rust's own handler for overflown stacks, which may be called from here.
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        // SAFETY: as above.
        let mut previous: libc::sigaction = unsafe { std::mem::zeroed() };
        // SAFETY: both point to sigactions; the handler is safe at any moment (see there).
        if unsafe { libc::sigaction(libc::SIGBUS, &action, &mut previous) } != 0 {
            return io::Error::last_os_error().raw_os_error().unwrap_or(libc::EINVAL);
        }
        let _ = PREVIOUS.set(previous);
        0
    });
    if errno == 0 { Ok(()) } else { Err(GuardError::Handler(io::Error::from_raw_os_error(errno))) }
}

/// Only atomics and system calls: it may have interrupted anything.
extern "C" fn on_sigbus(signal: libc::c_int, info: *mut libc::siginfo_t, _context: *mut libc::c_void) {
    // SAFETY: the kernel hands over a siginfo of SIGBUS.
    let (code, address) = unsafe { ((*info).si_code, (*info).si_addr() as usize) };
    // A positive code is a fault's; others are sent by processes and have no address.
    if code > 0 && poison(address) {
        return;
    }
    // As if this handler had never been: the access faults again, and then the previous action has its turn.
    let mut previous = PREVIOUS.get().copied().unwrap_or_else(|| {
        // SAFETY: as in `install`.
        let mut default: libc::sigaction = unsafe { std::mem::zeroed() };
        default.sa_sigaction = libc::SIG_DFL;
        default
    });
    // SAFETY: a sigaction that was valid before, or the default.
    unsafe {
        libc::sigaction(signal, &previous, ptr::from_mut(&mut previous));
        if code <= 0 {
            libc::raise(signal);
        }
    }
}

/// Replaces the guarded mapping at `address`; whether there is one.
fn poison(address: usize) -> bool {
    for slot in &MAPPINGS {
        let len = slot.len.load(Ordering::Acquire);
        let start = slot.start.load(Ordering::Acquire);
        if address.wrapping_sub(start) >= len || slot.len.load(Ordering::Acquire) != len {
            continue;
        }
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_FIXED | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: the range is a whole mapping of guest memory, says `Guard::new`'s caller, and whoever accesses it at this
        // moment keeps it alive. Its bytes may change at any time anyway.
        let new = unsafe { libc::mmap(start as *mut libc::c_void, len, prot, flags, -1, 0) };
        if new == libc::MAP_FAILED {
            return false;
        }
        slot.poisoned.store(true, Ordering::Release);
        POISONED.fetch_add(1, Ordering::AcqRel);
        return true;
    }
    false
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    use super::*;

    const LEN: usize = 1 << 16;

    /// A mapping, and the file behind it, which nothing keeps from being truncated.
    fn mapping() -> (*mut u8, std::os::fd::OwnedFd) {
        let fd = memfd_create("faulty", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&fd, LEN as u64).unwrap();
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping.
        let at = unsafe { libc::mmap(ptr::null_mut(), LEN, prot, libc::MAP_SHARED, fd.as_raw_fd(), 0) };
        assert_ne!(at, libc::MAP_FAILED);
        (at.cast(), fd)
    }

    #[test]
    fn a_page_that_is_gone_poisons_its_mapping_and_no_other() {
        let ((bad, file), (good, _kept)) = (mapping(), mapping());
        // SAFETY: both are whole mappings, unmapped below.
        let (bad_guard, good_guard) =
            unsafe { (Guard::new(bad, LEN).unwrap(), Guard::new(good, LEN).unwrap()) };
        let before = poisonings();
        // SAFETY: mapped.
        unsafe {
            bad.write_volatile(7);
            good.write_volatile(7);
        }
        ftruncate(&file, 4096).unwrap();
        assert!(!bad_guard.is_poisoned());
        // SAFETY: mapped, and guarded against what must happen now.
        unsafe {
            bad.add(LEN / 2).write_volatile(9);
            assert_eq!(bad.add(LEN / 2).read_volatile(), 9);
            assert_eq!((bad.read_volatile(), good.read_volatile()), (0, 7), "all of it is private now");
        }
        assert!(bad_guard.is_poisoned() && !good_guard.is_poisoned());
        assert!(poisonings() > before);
        drop((bad_guard, good_guard));
        // SAFETY: nothing refers to them.
        unsafe {
            assert_eq!(libc::munmap(bad.cast(), LEN), 0);
            assert_eq!(libc::munmap(good.cast(), LEN), 0);
        }
    }

    #[test]
    fn other_faults_end_the_process_as_before() {
        const CHILD: &str = "MASQ_FAULT_OUTSIDE_OF_GUARDS";
        if std::env::var_os(CHILD).is_some() {
            let ((unguarded, file), (good, _kept)) = (mapping(), mapping());
            // SAFETY: a whole mapping that stays.
            let _guard = unsafe { Guard::new(good, LEN) }.unwrap();
            ftruncate(&file, 0).unwrap();
            // SAFETY: mapped; the fault is this test's purpose.
            unsafe { unguarded.write_volatile(1) };
            return;
        }
        let child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "memory::fault::tests::other_faults_end_the_process_as_before"])
            .env(CHILD, "1")
            .output()
            .unwrap();
        let signal = std::os::unix::process::ExitStatusExt::signal(&child.status);
        assert_eq!(signal, Some(libc::SIGBUS), "{child:?}");
    }
}
