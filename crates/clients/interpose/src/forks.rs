//! Forks of the process.

use std::ffi::c_int;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

static FORKED: AtomicBool = AtomicBool::new(false);

unsafe extern "C" {
    fn pthread_atfork(
        prepare: Option<extern "C" fn()>,
        parent: Option<extern "C" fn()>,
        child: Option<extern "C" fn()>,
    ) -> c_int;
}

extern "C" fn forked() {
    FORKED.store(true, Ordering::Relaxed);
}

/// Notes later forks, after which another process may have the same ports.
pub fn watch() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| at_fork(None, Some(forked), Some(forked)));
}

/// Whether there was one.
#[must_use]
pub fn happened() -> bool {
    FORKED.load(Ordering::Relaxed)
}

/// Calls functions at each later fork(2): before it, and after it in the parent and in the child,
/// where no other thread is left and locks that others held stay locked. vfork(2) and
/// `posix_spawn` call none of them.
pub fn at_fork(
    prepare: Option<extern "C" fn()>,
    parent: Option<extern "C" fn()>,
    child: Option<extern "C" fn()>,
) {
    // SAFETY: the handlers stay as long as the library, which is not unloaded. Without memory for
    // them there are none, and forks are not noticed.
    let _ = unsafe { pthread_atfork(prepare, parent, child) };
}
