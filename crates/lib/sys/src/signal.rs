//! Signal handlers (sigaction(2)).

use std::ffi::{c_int, c_void};
use std::io;
use std::ptr::null_mut;

/// A signal handler: signal, information about it, context.
pub type Handler = extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);

/// Installs a handler for the whole process; returns the former action. Without `SA_RESTART` in
/// `flags` the signal interrupts system calls.
///
/// # Safety
/// The handler makes async-signal-safe calls only (signal-safety(7)).
///
/// # Errors
/// The error of the system call.
pub unsafe fn handle(signal: c_int, handler: Handler, flags: c_int) -> io::Result<libc::sigaction> {
    // SAFETY: both actions are zeroed, which is a valid value, before they are used; the handler
    // has the signature that SA_SIGINFO asks for, and the caller vouches for what it does.
    unsafe {
        let mut before: libc::sigaction = std::mem::zeroed();
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | flags;
        libc::sigemptyset(&raw mut action.sa_mask);
        match libc::sigaction(signal, &raw const action, &raw mut before) {
            0 => Ok(before),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// Installs the action that [`handle`] has returned, or else the default one. A handler may call
/// this.
///
/// # Safety
/// The handler of the action, if it has one, still exists.
pub unsafe fn restore(signal: c_int, action: Option<&libc::sigaction>) {
    // SAFETY: both calls are async-signal-safe, and the action is a valid one.
    unsafe {
        match action {
            Some(action) => drop(libc::sigaction(signal, action, null_mut())),
            None => drop(libc::signal(signal, libc::SIG_DFL)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    static COUNT: AtomicUsize = AtomicUsize::new(0);

    extern "C" fn count(_: c_int, _: *mut libc::siginfo_t, _: *mut c_void) {
        COUNT.fetch_add(1, Ordering::Relaxed);
    }

    #[test]
    fn a_handler_is_called_until_the_former_action_is_back() {
        // SIGWINCH is ignored without a handler.
        // SAFETY: the handler only counts; raise has no conditions.
        unsafe {
            let before = handle(libc::SIGWINCH, count, 0).unwrap();
            libc::raise(libc::SIGWINCH);
            assert_eq!(COUNT.load(Ordering::Relaxed), 1);
            restore(libc::SIGWINCH, Some(&before));
            libc::raise(libc::SIGWINCH);
            handle(libc::SIGWINCH, count, 0).unwrap();
            restore(libc::SIGWINCH, None);
            libc::raise(libc::SIGWINCH);
        }
        assert_eq!(COUNT.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn a_signal_without_handlers_is_an_error() {
        // SAFETY: the handler only counts.
        assert!(unsafe { handle(libc::SIGKILL, count, 0) }.is_err());
    }
}
