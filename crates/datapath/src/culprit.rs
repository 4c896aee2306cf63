//! Whom a thread serves, and that it is named when the process dies of it.
//!
//! Every thread has a mark in memory that outlives the process (see [`channel::keeping::MARKS`]). Whoever serves a port
//! says so there. When a thread panics or gets a fatal signal, its own mark becomes the culprit: the ports that other
//! threads serve in that moment are not to blame.

use std::cell::Cell;
use std::io;
use std::sync::{Mutex, OnceLock, PoisonError};

use channel::keeping::Mark;
use port::PortId;

thread_local! {
    /// It has no destructor, so that a signal handler may look at it at any time.
    static OWN: Cell<Option<&'static Mark>> = const { Cell::new(None) };
}

/// The calling thread has this mark from now on. It is never freed: a signal may come at any time.
pub fn set_own(mark: Mark) {
    OWN.set(Some(Box::leak(Box::new(mark))));
}

/// Whom the calling thread serves.
#[must_use]
pub fn served() -> Option<PortId> {
    OWN.get()?.served()
}

/// Until the result is dropped, the calling thread serves this port, or nobody.
#[must_use]
pub fn serve(port: Option<PortId>) -> Served {
    let before = served();
    set(port);
    Served { before }
}

fn set(port: Option<PortId>) {
    match (OWN.get(), port) {
        (Some(mark), Some(port)) => mark.serve(port),
        (Some(mark), None) => mark.rest(),
        (None, _) => {}
    }
}

/// See [`serve`].
#[derive(Debug)]
pub struct Served {
    before: Option<PortId>,
}

impl Drop for Served {
    fn drop(&mut self) {
        set(self.before);
    }
}

/// Signals that end a process because of what it does.
const FATAL: [libc::c_int; 7] = [
    libc::SIGABRT,
    libc::SIGBUS,
    libc::SIGFPE,
    libc::SIGILL,
    libc::SIGSEGV,
    libc::SIGSYS,
    libc::SIGTRAP,
];

/// What was done on each before.
static BEFORE: [OnceLock<libc::sigaction>; FATAL.len()] = [const { OnceLock::new() }; FATAL.len()];

/// Has threads of this process name whom they serve when they panic or get a fatal signal. What happens then otherwise
/// stays as it is.
///
/// # Errors
/// The system's refusal of a signal handler.
pub fn name_on_death() -> io::Result<()> {
    // Several switches in one process, as tests have them, do it once.
    static DONE: Mutex<bool> = Mutex::new(false);
    let mut done = DONE.lock().unwrap_or_else(PoisonError::into_inner);
    if std::mem::replace(&mut *done, true) {
        return Ok(());
    }
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        confess();
        before(info);
    }));
    for (signal, before) in FATAL.into_iter().zip(&BEFORE) {
        let what_was_there = catch(signal)?;
        before.get_or_init(|| what_was_there);
    }
    Ok(())
}

/// Installs the handler; what was there before.
fn catch(signal: libc::c_int) -> io::Result<libc::sigaction> {
    // SAFETY: both actions are zeroed, which is a valid value, before they are used; the handler has the signature that
    // SA_SIGINFO asks for and makes async-signal-safe calls only. It runs on the stack that std gives each thread for
    // the case that the other one has run over.
    unsafe {
        let mut before: libc::sigaction = std::mem::zeroed();
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_fatal as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        libc::sigemptyset(&raw mut action.sa_mask);
        if libc::sigaction(signal, &raw const action, &raw mut before) != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(before)
    }
}

fn confess() {
    if let Some(mark) = OWN.get() {
        mark.confess();
    }
}

extern "C" fn on_fatal(signal: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid siginfo to an SA_SIGINFO handler, and the sender is valid where a process has
    // sent the signal; getpid, sigaction and raise are async-signal-safe.
    unsafe {
        let sent = (*info).si_code <= 0;
        // What comes from another process may have found any thread.
        if !sent || (*info).si_pid() == libc::getpid() {
            confess();
        }
        let at = FATAL.iter().position(|fatal| *fatal == signal);
        match at.and_then(|at| BEFORE[at].get()) {
            Some(before) => libc::sigaction(signal, before, std::ptr::null_mut()),
            None => libc::signal(signal, libc::SIG_DFL) as libc::c_int,
        };
        // A fault is repeated when this returns, what was sent is not.
        if sent {
            libc::raise(signal);
        }
    }
}
