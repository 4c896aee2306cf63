//! Crash attribution: each thread records the port that it serves, and the port is reported when
//! the process crashes.
//!
//! Every thread has a slot in memory that outlives the process (see
//! [`ipc::keeping::ThreadSlots`]). When a thread panics or gets a fatal signal, the port in its
//! own slot becomes the suspect; the ports that other threads serve at that moment do not.

use std::cell::Cell;
use std::io;
use std::sync::{Mutex, OnceLock, PoisonError};

use ipc::keeping::ThreadSlot;
use port::PortId;
use sys::signal;

thread_local! {
    /// The thread's slot. It has no destructor, so that a signal handler may read it at any time.
    static OWN: Cell<Option<&'static ThreadSlot>> = const { Cell::new(None) };
}

/// Sets the slot of the calling thread. It is never freed: a signal may come at any time.
pub fn set_thread_slot(slot: ThreadSlot) {
    OWN.set(Some(Box::leak(Box::new(slot))));
}

/// Returns the port that the calling thread serves.
#[must_use]
pub fn served() -> Option<PortId> {
    OWN.get()?.served()
}

/// Records the port that the calling thread serves, or none, until the result is dropped.
#[must_use]
pub fn serve(port: Option<PortId>) -> ServeScope {
    let before = served();
    set(port);
    ServeScope { before }
}

fn set(port: Option<PortId>) {
    match (OWN.get(), port) {
        (Some(slot), Some(port)) => slot.serve(port),
        (Some(slot), None) => slot.rest(),
        (None, _) => {}
    }
}

/// The scope of a [`serve`] call; restores the previous port.
#[derive(Debug)]
pub struct ServeScope {
    before: Option<PortId>,
}

impl Drop for ServeScope {
    fn drop(&mut self) {
        set(self.before);
    }
}

/// Signals that end a process because of its own fault.
const FATAL_SIGNALS: [libc::c_int; 7] = [
    libc::SIGABRT,
    libc::SIGBUS,
    libc::SIGFPE,
    libc::SIGILL,
    libc::SIGSEGV,
    libc::SIGSYS,
    libc::SIGTRAP,
];

/// The previous action of each fatal signal.
static PREVIOUS_ACTIONS: [OnceLock<libc::sigaction>; FATAL_SIGNALS.len()] =
    [const { OnceLock::new() }; FATAL_SIGNALS.len()];

/// Installs a panic hook and signal handlers that record a crash. The previous actions follow.
///
/// # Errors
/// A system error of `sigaction`.
pub fn install_handlers() -> io::Result<()> {
    // Several switches in one process, as in tests, install them once.
    static DONE: Mutex<bool> = Mutex::new(false);
    let mut done = DONE.lock().unwrap_or_else(PoisonError::into_inner);
    if std::mem::replace(&mut *done, true) {
        return Ok(());
    }
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        record_crash();
        before(info);
    }));
    for (signal, before) in FATAL_SIGNALS.into_iter().zip(&PREVIOUS_ACTIONS) {
        // SAFETY: the handler makes async-signal-safe calls only. It runs on the stack that std
        // gives each thread for the case that the other one has run over.
        let previous = unsafe { signal::handle(signal, on_fatal, libc::SA_ONSTACK) }?;
        before.get_or_init(|| previous);
    }
    Ok(())
}

fn record_crash() {
    if let Some(slot) = OWN.get() {
        slot.record_crash();
    }
}

extern "C" fn on_fatal(signal: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid siginfo to an SA_SIGINFO handler, and the sender is valid
    // where a process has sent the signal; getpid, sigaction and raise are async-signal-safe.
    unsafe {
        let sent = (*info).si_code <= 0;
        // A signal of another process may have been delivered to any thread.
        if !sent || (*info).si_pid() == libc::getpid() {
            record_crash();
        }
        let at = FATAL_SIGNALS.iter().position(|fatal| *fatal == signal);
        signal::restore(signal, at.and_then(|at| PREVIOUS_ACTIONS[at].get()));
        // A fault repeats when this returns; a sent signal does not.
        if sent {
            libc::raise(signal);
        }
    }
}
