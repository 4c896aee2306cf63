//! The functions that ours stand in front of: those of the C library, or of another library that is
//! loaded between.

use std::ffi::CStr;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A function that is looked up once.
pub(crate) struct Next {
    name: &'static CStr,
    address: AtomicUsize,
}

impl Next {
    pub(crate) const fn new(name: &'static CStr) -> Self {
        Self {
            name,
            address: AtomicUsize::new(0),
        }
    }

    /// Its address; 0: the C library is older, and has none.
    #[inline]
    pub(crate) fn address(&self) -> usize {
        match self.address.load(Ordering::Relaxed) {
            0 => self.look_up(),
            address => address,
        }
    }

    #[cold]
    pub(crate) fn look_up(&self) -> usize {
        // SAFETY: the name is a string; dlsym calls none of our functions.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) } as usize;
        self.address.store(found, Ordering::Relaxed);
        found
    }
}

/// Declares, for each function, a module-level `Next`, and the list of all.
macro_rules! next {
    ($($name:ident)*) => {
        $(
            #[expect(non_upper_case_globals, reason = "the names of the C library")]
            pub(crate) static $name: $crate::next::Next = {
                const NAME: &std::ffi::CStr = {
                    match std::ffi::CStr::from_bytes_with_nul(
                        concat!(stringify!($name), "\0").as_bytes(),
                    ) {
                        Ok(name) => name,
                        Err(_) => panic!("a name without NUL"),
                    }
                };
                $crate::next::Next::new(NAME)
            };
        )*
        /// All of them, to look up when the library is loaded.
        pub(crate) static ALL: &[&$crate::next::Next] = &[$(&$name),*];
    };
}

/// Calls the next function: its type, its name, its arguments. Without one the call fails with
/// `ENOSYS`.
macro_rules! call_next {
    ($name:ident: $type:ty, $($argument:expr),*) => {{
        match $crate::next::table::$name.address() {
            0 => $crate::fail(libc::ENOSYS),
            address => {
                // SAFETY: dlsym returned the address of the function with this name, whose type
                // is the C library's documented one.
                let next = unsafe { std::mem::transmute::<usize, $type>(address) };
                // SAFETY: the arguments are the caller's, who called this very function.
                unsafe { next($($argument),*) }
            }
        }
    }};
}

pub(crate) mod table {
    next! {
        open open64 openat openat64 __open_2 __open64_2 __openat_2 __openat64_2
        close dup dup2 dup3 fcntl fcntl64 ioctl mmap mmap64 munmap
        poll __poll_chk ppoll __ppoll_chk select pselect
        epoll_ctl epoll_wait epoll_pwait epoll_pwait2
    }
}

pub(crate) use call_next;
