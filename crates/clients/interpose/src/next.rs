//! The functions that a library's stand in front of: those of the C library, or of another library
//! that is loaded between.

use std::ffi::CStr;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A function that is looked up once.
#[derive(Debug)]
pub struct NextFunction {
    name: &'static CStr,
    address: AtomicUsize,
}

impl NextFunction {
    /// The next function of this name.
    #[must_use]
    pub const fn new(name: &'static CStr) -> Self {
        Self {
            name,
            address: AtomicUsize::new(0),
        }
    }

    /// Its address; 0: the C library is older, and has none.
    #[inline]
    pub fn address(&self) -> usize {
        match self.address.load(Ordering::Relaxed) {
            0 => self.look_up(),
            address => address,
        }
    }

    /// Looks it up. A library does that for all when it is loaded: the program's first call may
    /// come from a signal handler.
    #[cold]
    pub fn look_up(&self) -> usize {
        // SAFETY: the name is a string; dlsym calls none of our functions.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) } as usize;
        self.address.store(found, Ordering::Relaxed);
        found
    }
}

/// Declares module `next` of a library: for each function a [`NextFunction`], and `ALL`, their
/// list; and looks them up when the library is loaded, before `$load` is called.
#[macro_export]
macro_rules! functions {
    ($load:path; $($name:ident)*) => {
        pub(crate) mod next {
            $(
                #[expect(non_upper_case_globals, reason = "the names of the C library")]
                pub(crate) static $name: $crate::next::NextFunction = {
                    const NAME: &std::ffi::CStr = {
                        match std::ffi::CStr::from_bytes_with_nul(
                            concat!(stringify!($name), "\0").as_bytes(),
                        ) {
                            Ok(name) => name,
                            Err(_) => panic!("a name without NUL"),
                        }
                    };
                    $crate::next::NextFunction::new(NAME)
                };
            )*
            static ALL: &[&$crate::next::NextFunction] = &[$(&$name),*];

            extern "C" fn load() {
                for next in ALL {
                    next.look_up();
                }
                $load();
            }

            #[used]
            // SAFETY: the dynamic loader calls the functions in this section when it has loaded
            // the library.
            #[unsafe(link_section = ".init_array")]
            static LOAD: extern "C" fn() = load;
        }
    };
}

/// Calls the next function: its type, its name, its arguments. Without one the call fails with
/// `ENOSYS`. Needs the module of [`functions`] at the root of the crate.
#[expect(
    clippy::crate_in_macro_def,
    reason = "the functions are those of the library that calls"
)]
#[macro_export]
macro_rules! call_next {
    ($name:ident: $type:ty, $($argument:expr),*) => {{
        match crate::next::$name.address() {
            0 => $crate::outcome::fail(libc::ENOSYS),
            address => {
                // SAFETY: dlsym returned the address of the function with this name, and its type
                // is the C library's documented one.
                let next = unsafe { std::mem::transmute::<usize, $type>(address) };
                // SAFETY: the arguments are the caller's, who called this very function.
                unsafe { next($($argument),*) }
            }
        }
    }};
}
