//! A timer that signals the thread that made it (timer_create(2), `SIGEV_THREAD_ID`).

use std::ffi::{c_int, c_void};
use std::io;
use std::mem::MaybeUninit;
use std::ptr::null_mut;
use std::time::Duration;

use crate::signal;

/// The signal: by default it is ignored, so none that is late ends the process.
const SIGNAL: c_int = libc::SIGURG;

/// Time between two signals, 1 millisecond. The system sends none while one is pending.
const INTERVAL: Duration = Duration::from_millis(1);

extern "C" fn nothing(_: c_int, _: *mut libc::siginfo_t, _: *mut c_void) {}

/// Installs a handler, without which the signal ends no wait.
pub(super) fn handle_signal() -> io::Result<()> {
    // SAFETY: the handler makes no calls.
    unsafe { signal::handle(SIGNAL, nothing, 0) }.map(drop)
}

/// A timer of the thread that made it; that thread blocks all other signals.
pub(super) struct Timer(libc::timer_t);

impl Timer {
    pub(super) fn new() -> io::Result<Self> {
        let mut timer = null_mut();
        // SAFETY: the signal set and the event are initialised before they are used, zero being a
        // valid value of the event; the kernel writes the timer's number.
        let failed = unsafe {
            let mut all = MaybeUninit::<libc::sigset_t>::uninit();
            libc::sigfillset(all.as_mut_ptr());
            libc::sigdelset(all.as_mut_ptr(), SIGNAL);
            libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), null_mut());
            let mut event: libc::sigevent = std::mem::zeroed();
            event.sigev_notify = libc::SIGEV_THREAD_ID;
            event.sigev_signo = SIGNAL;
            event.sigev_notify_thread_id = libc::gettid();
            libc::timer_create(libc::CLOCK_MONOTONIC, &raw mut event, &raw mut timer)
        };
        match failed {
            0 => Ok(Self(timer)),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Signals the thread after this time, less than a second, and then each [`INTERVAL`].
    pub(super) fn start(&self, after: Duration) {
        self.set(after);
    }

    pub(super) fn stop(&self) {
        self.set(Duration::ZERO);
    }

    /// Sets the time of the first signal; zero stops the timer.
    fn set(&self, after: Duration) {
        let spec = |time: Duration| libc::timespec {
            tv_sec: 0,
            tv_nsec: time.subsec_nanos().into(),
        };
        let times = libc::itimerspec {
            it_interval: spec(INTERVAL),
            it_value: spec(after),
        };
        // SAFETY: the timer exists as long as `self`; the call fails for no valid interval.
        unsafe { libc::timer_settime(self.0, 0, &raw const times, null_mut()) };
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        // SAFETY: the timer exists, and is not used again.
        unsafe { libc::timer_delete(self.0) };
    }
}
