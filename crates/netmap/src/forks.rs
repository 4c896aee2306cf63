//! Whether the process has forked: then another one may have the same ports.

use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

static FORKED: AtomicBool = AtomicBool::new(false);

unsafe extern "C" {
    fn pthread_atfork(
        prepare: Option<extern "C" fn()>,
        parent: Option<extern "C" fn()>,
        child: Option<extern "C" fn()>,
    ) -> libc::c_int;
}

extern "C" fn forked() {
    FORKED.store(true, Ordering::Relaxed);
}

/// Notes later forks.
pub(crate) fn watch() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the handlers store a flag. They stay as long as the library, which is not
        // unloaded. Without memory for them there are none, and forks are not noticed.
        let _ = unsafe { pthread_atfork(None, Some(forked), Some(forked)) };
    });
}

/// Whether there was one.
pub(crate) fn happened() -> bool {
    FORKED.load(Ordering::Relaxed)
}
