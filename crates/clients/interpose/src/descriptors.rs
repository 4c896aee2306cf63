//! Functions of the C library that duplicate and close descriptors.

/// Defines `close`, `dup`, `dup2`, `dup3` and `fcntl` for a [`Library`](crate::Library). They must
/// be in the list of [`functions`](crate::functions).
#[macro_export]
macro_rules! interpose_descriptors {
    ($library:ty) => {
        mod interposed_descriptors {
            use std::ffi::{c_int, c_long};

            use $crate::Library as _;
            use $crate::outcome::done;

            use super::*;

            type Ours = $library;

            /// Notes a new descriptor for what `old` is.
            fn duplicates(old: c_int, new: c_int) -> c_int {
                if new < 0 || !Ours::is_ours(old) {
                    return new;
                }
                done(Ours::duplicated(old, new).map(|()| new))
            }

            /// close(2).
            #[unsafe(no_mangle)]
            unsafe extern "C" fn close(fd: c_int) -> c_int {
                Ours::closed(fd);
                type CloseFn = unsafe extern "C" fn(c_int) -> c_int;
                $crate::call_next!(close: CloseFn, fd)
            }

            /// dup(2).
            #[unsafe(no_mangle)]
            unsafe extern "C" fn dup(fd: c_int) -> c_int {
                type DupFn = unsafe extern "C" fn(c_int) -> c_int;
                duplicates(fd, $crate::call_next!(dup: DupFn, fd))
            }

            /// dup2(2).
            #[unsafe(no_mangle)]
            unsafe extern "C" fn dup2(old: c_int, new: c_int) -> c_int {
                type Dup2Fn = unsafe extern "C" fn(c_int, c_int) -> c_int;
                let got: c_int = $crate::call_next!(dup2: Dup2Fn, old, new);
                if got >= 0 && old != new {
                    Ours::closed(new);
                }
                duplicates(old, got)
            }

            /// dup3(2).
            #[unsafe(no_mangle)]
            unsafe extern "C" fn dup3(old: c_int, new: c_int, flags: c_int) -> c_int {
                type Dup3Fn = unsafe extern "C" fn(c_int, c_int, c_int) -> c_int;
                let got: c_int = $crate::call_next!(dup3: Dup3Fn, old, new, flags);
                if got >= 0 {
                    Ours::closed(new);
                }
                duplicates(old, got)
            }

            /// fcntl(2); `next` is the next one.
            fn controls(
                fd: c_int,
                command: c_int,
                argument: c_long,
                next: impl FnOnce() -> c_int,
            ) -> c_int {
                let is_copy = matches!(command, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC);
                if !is_copy
                    && Ours::is_ours(fd)
                    && let Some(result) = Ours::control(fd, command, argument)
                {
                    return done(result);
                }
                let got = next();
                if is_copy { duplicates(fd, got) } else { got }
            }

            type FcntlFn = unsafe extern "C" fn(c_int, c_int, ...) -> c_int;

            /// fcntl(2). The argument is there or not, as for the C library's function.
            #[unsafe(no_mangle)]
            unsafe extern "C" fn fcntl(fd: c_int, command: c_int, argument: c_long) -> c_int {
                controls(
                    fd,
                    command,
                    argument,
                    || $crate::call_next!(fcntl: FcntlFn, fd, command, argument),
                )
            }

            /// fcntl(2) of a program with 64-bit offsets.
            #[unsafe(no_mangle)]
            unsafe extern "C" fn fcntl64(fd: c_int, command: c_int, argument: c_long) -> c_int {
                controls(
                    fd,
                    command,
                    argument,
                    || $crate::call_next!(fcntl64: FcntlFn, fd, command, argument),
                )
            }
        }
    };
}
