//! vCPU threads by KVM's tracepoints: a thread that enters a guest of KVM is a vCPU.
//!
//! ```text
//! kvm_entry, kvm_vcpu_wakeup, kvm_userspace_exit:
//!     if armed: seen[thread id, lower bits] = process id, thread id
//! ```
//!
//! One BPF program (`programs/seen.c`) is attached to all three, because not each occurs on each
//! host: `kvm_entry` is missing where KVM is emulated in software, the others do not occur for a
//! vCPU that never halts. The program is disarmed as long as all VMMs are known, and then costs a
//! load and a branch (and the call of the program) at each of these events. [`Tracepoints::seen`]
//! maps the threads to their VMM by its process id.
//!
//! ```text
//! 0        magic, version (u32 each)
//! ARMED_AT 1: armed (u32). Written by the supervisor
//! SEEN_AT  entries of process id (upper half) and thread id (u64). Written by the program, and
//!          set to 0 by the supervisor. Threads that share an entry replace each other: each is
//!          seen again at its next event
//! ```

use std::collections::BTreeMap;
use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;

use bpf::object;
use mapping::SharedWords;

use super::MOST_FOLLOWED;
use crate::load::{LoadError, attach_raw, load_raw};

/// The object with the program.
const OBJECT: &[u8] = include_bytes!("../../programs/seen.o");

/// "LHKT".
const MAGIC: u32 = u32::from_le_bytes(*b"LHKT");
/// Of this layout.
const VERSION: u32 = 1;
/// Offset of the word that arms the program.
pub(crate) const ARMED_AT: usize = 64;
/// Offset of the entries.
pub(crate) const SEEN_AT: usize = 128;
/// Number of entries; a power of two.
pub(crate) const SEEN: usize = 8192;
/// Bytes of the memory, in whole pages.
pub(crate) const SIZE: usize = (SEEN_AT + SEEN * 8).next_multiple_of(4096);

/// The tracepoints, `include/trace/events/kvm.h` and `arch/x86/kvm/trace.h` of Linux.
const NAMES: [&CStr; 3] = [c"kvm_entry", c"kvm_vcpu_wakeup", c"kvm_userspace_exit"];

/// The attached program, which runs until this is dropped.
#[derive(Debug)]
pub struct Tracepoints {
    memory: SharedWords<SIZE>,
    map: OwnedFd,
    links: Vec<OwnedFd>,
}

impl Tracepoints {
    /// Loads the program and attaches it to those of the tracepoints that exist. It is disarmed.
    ///
    /// # Errors
    /// The reason; nothing was changed then. [`LoadError::NoKvm`] where no tracepoint exists.
    pub fn load() -> Result<Self, LoadError> {
        let map = bpf::load::memory(SIZE as u32)?;
        let maps = [(".bss.seen", map.as_fd())];
        let program = load_raw(&object::program(OBJECT, "at_entry", &maps)?)?;
        let mut links = Vec::new();
        for name in NAMES {
            links.extend(attach_raw(&program, name)?);
        }
        if links.is_empty() {
            return Err(LoadError::NoKvm);
        }
        let memory = SharedWords::map_at(map.as_fd(), 0, true)?;
        memory.half(0).store(MAGIC, Ordering::Relaxed);
        memory.half(4).store(VERSION, Ordering::Relaxed);
        Ok(Self { memory, map, links })
    }

    /// Continues with a program that another process has attached: its memory, and its links
    /// ([`Self::descriptors`]).
    ///
    /// # Errors
    /// The memory cannot be mapped, or has another layout.
    pub fn over(map: OwnedFd, links: Vec<OwnedFd>) -> io::Result<Self> {
        let memory = SharedWords::<SIZE>::map_at(map.as_fd(), 0, true)?;
        let field = |at| memory.half(at).load(Ordering::Relaxed);
        if [field(0), field(4)] != [MAGIC, VERSION] {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok(Self { memory, map, links })
    }

    /// Returns what another process needs to continue: the memory, and the links.
    pub fn descriptors(&self) -> (BorrowedFd<'_>, impl Iterator<Item = BorrowedFd<'_>>) {
        (self.map.as_fd(), self.links.iter().map(OwnedFd::as_fd))
    }

    /// Arms or disarms the program.
    pub fn arm(&self, on: bool) {
        let word = self.memory.half(ARMED_AT);
        word.store(u32::from(on), Ordering::Relaxed);
    }

    /// Returns whether the program is armed.
    #[must_use]
    pub fn is_armed(&self) -> bool {
        self.memory.half(ARMED_AT).load(Ordering::Relaxed) != 0
    }

    /// Takes the threads that were seen since the last call, by process.
    #[must_use]
    pub fn seen(&self) -> BTreeMap<u32, Vec<u32>> {
        let mut seen: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for entry in 0..SEEN {
            let word = self.memory.word(SEEN_AT + entry * 8);
            if word.load(Ordering::Relaxed) == 0 {
                continue;
            }
            let entry = word.swap(0, Ordering::Relaxed);
            let threads = seen.entry((entry >> 32) as u32).or_default();
            if threads.len() < MOST_FOLLOWED {
                threads.push(entry as u32);
            }
        }
        seen
    }
}

const _: () = assert!(SEEN.is_power_of_two() && SEEN_AT.is_multiple_of(8));

#[cfg(test)]
mod tests {
    use super::*;

    /// Memory as the program leaves it, after events of these threads of these processes.
    fn after(events: &[(u32, u32)]) -> Tracepoints {
        let map = sys::file::fixed("test", SIZE as u64).unwrap();
        let memory = SharedWords::<SIZE>::map_at(map.as_fd(), 0, true).unwrap();
        memory.half(0).store(MAGIC, Ordering::Relaxed);
        memory.half(4).store(VERSION, Ordering::Relaxed);
        for (process, thread) in events {
            let entry = *thread as usize & (SEEN - 1);
            let word = u64::from(*process) << 32 | u64::from(*thread);
            let at = SEEN_AT + entry * 8;
            memory.word(at).store(word, Ordering::Relaxed);
        }
        Tracepoints::over(map, Vec::new()).unwrap()
    }

    #[test]
    fn threads_belong_to_their_vmms_and_are_taken_once() {
        let other = SEEN as u32;
        let tracepoints = after(&[(10, 11), (20, 21), (10, 12), (20, 12 + other)]);
        let seen = BTreeMap::from([(10, vec![11]), (20, vec![12 + other, 21])]);
        assert_eq!(tracepoints.seen(), seen, "the later thread has the entry");
        assert_eq!(tracepoints.seen(), BTreeMap::new());
    }

    #[test]
    fn no_more_threads_are_taken_than_are_followed() {
        let events: Vec<_> = (1..2000).map(|thread| (1, thread)).collect();
        assert_eq!(after(&events).seen()[&1].len(), MOST_FOLLOWED);
    }

    #[test]
    fn it_is_armed_and_disarmed_by_its_word() {
        let tracepoints = after(&[]);
        assert!(!tracepoints.is_armed());
        tracepoints.arm(true);
        let (map, _) = tracepoints.descriptors();
        let successor = Tracepoints::over(map.try_clone_to_owned().unwrap(), Vec::new()).unwrap();
        assert!(successor.is_armed());
        successor.arm(false);
        assert!(!tracepoints.is_armed());
    }

    #[test]
    fn memory_of_another_layout_is_refused() {
        let map = sys::file::fixed("test", SIZE as u64).unwrap();
        assert!(Tracepoints::over(map, Vec::new()).is_err());
    }
}
