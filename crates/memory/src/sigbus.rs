//! Surviving a memory file that is cut off under us.
//!
//! A VMM keeps its memory file and may truncate it or punch holes into it at any time; the next access here
//! raises SIGBUS. The handler puts zeroed private pages (dummy pages) in place of the whole mapping and notes that it is lost;
//! the access then goes on, on memory that nobody else sees. Whoever serves that guest looks at
//! [`Mapping::is_lost`](crate::Mapping::is_lost) now and then and closes its port.
//!
//! The table of mappings is static and lock-free, because a signal handler reads it.

use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Mappings of shared files at a time.
const MAX_MAPPINGS: usize = 16_384;
/// Base address of a slot that is being filled.
const RESERVED: usize = 1;

#[derive(Debug)]
struct Slot {
    /// 0: free.
    base: AtomicUsize,
    len: AtomicUsize,
    lost: AtomicBool,
}

static SLOTS: [Slot; MAX_MAPPINGS] = [const {
    Slot {
        base: AtomicUsize::new(0),
        len: AtomicUsize::new(0),
        lost: AtomicBool::new(false),
    }
}; MAX_MAPPINGS];

/// What was done on SIGBUS before.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

/// How many mappings were lost since the start.
static LOST: AtomicUsize = AtomicUsize::new(0);

/// How many mappings of this process were ever lost: a cheap look before a thorough one.
#[must_use]
pub fn lost_mappings() -> usize {
    LOST.load(Ordering::Acquire)
}

/// A mapping's entry in the table; leaves it when dropped, which must come before the memory is unmapped.
#[derive(Debug)]
pub(crate) struct Entry(usize);

impl Entry {
    /// Enters a mapping; `None` when the table is full.
    pub(crate) fn new(base: usize, len: usize) -> Option<Self> {
        let free = |slot: &Slot| {
            let claim =
                slot.base
                    .compare_exchange(0, RESERVED, Ordering::Acquire, Ordering::Relaxed);
            claim.is_ok()
        };
        let index = SLOTS.iter().position(free)?;
        let slot = &SLOTS[index];
        slot.len.store(len, Ordering::Relaxed);
        slot.lost.store(false, Ordering::Relaxed);
        slot.base.store(base, Ordering::Release);
        Some(Self(index))
    }

    pub(crate) fn is_lost(&self) -> bool {
        SLOTS[self.0].lost.load(Ordering::Acquire)
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        SLOTS[self.0].base.store(0, Ordering::Release);
    }
}

/// Installs the handler for the whole process. A SIGBUS anywhere else does what it did before: as a rule, it ends it.
///
/// # Errors
/// The system's refusal.
pub fn survive_truncation() -> io::Result<()> {
    // SAFETY: the action is zeroed, which is a valid value, before its fields are set; the handler has the
    // signature that SA_SIGINFO asks for and makes async-signal-safe calls only.
    let (done, before) = unsafe {
        let mut before: libc::sigaction = std::mem::zeroed();
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_sigbus as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        libc::sigemptyset(&raw mut action.sa_mask);
        let done = libc::sigaction(libc::SIGBUS, &raw const action, &raw mut before);
        (done, before)
    };
    if done != 0 {
        return Err(io::Error::last_os_error());
    }
    // The second time it is this very handler.
    BEFORE.get_or_init(|| before);
    Ok(())
}

extern "C" fn on_sigbus(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid siginfo to an SA_SIGINFO handler; errno is this thread's own and is
    // put back, because the interrupted code may be about to read it.
    unsafe {
        let errno = *libc::__errno_location();
        if !replace((*info).si_addr() as usize) {
            match BEFORE.get() {
                Some(before) => libc::sigaction(libc::SIGBUS, before, std::ptr::null_mut()),
                None => libc::signal(libc::SIGBUS, libc::SIG_DFL) as libc::c_int,
            };
        }
        *libc::__errno_location() = errno;
    }
}

/// Puts dummy pages in place of the mapping around `address`, if it is one of ours.
fn replace(address: usize) -> bool {
    for slot in &SLOTS {
        let base = slot.base.load(Ordering::Acquire);
        let len = slot.len.load(Ordering::Relaxed);
        if base <= RESERVED || address.wrapping_sub(base) >= len {
            continue;
        }
        let flags = libc::MAP_FIXED | libc::MAP_ANONYMOUS | libc::MAP_PRIVATE | libc::MAP_NORESERVE;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: the range is exactly one mapping of ours, whose users hold raw pointers and expect its bytes
        // to change under them; mmap is a bare system call.
        let new = unsafe { libc::mmap(base as *mut libc::c_void, len, protection, flags, -1, 0) };
        slot.lost.store(true, Ordering::Release);
        LOST.fetch_add(1, Ordering::Release);
        return new != libc::MAP_FAILED;
    }
    false
}
