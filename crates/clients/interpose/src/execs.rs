//! Functions of the C library that start a program.

use std::ffi::{CStr, OsStr, c_char, c_int};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// A path or name of a program; empty: none.
///
/// # Safety
/// It is a string or null.
#[must_use]
pub unsafe fn text<'a>(text: *const c_char) -> &'a OsStr {
    if text.is_null() {
        return OsStr::new("");
    }
    // SAFETY: the caller says so.
    OsStr::from_bytes(unsafe { CStr::from_ptr(text) }.to_bytes())
}

/// The path of execveat(2): relative to a directory, or that of the descriptor itself.
#[must_use]
pub fn path_at(directory: c_int, path: &Path) -> PathBuf {
    if path.is_absolute() || directory == libc::AT_FDCWD {
        return path.to_owned();
    }
    let of_fd = PathBuf::from(format!("/proc/self/fd/{directory}"));
    match path.as_os_str().is_empty() {
        true => of_fd,
        false => of_fd.join(path),
    }
}

/// The environment of execle(3), which follows the end of the arguments.
///
/// # Safety
/// The arguments end with a null.
#[must_use]
pub unsafe fn environment_behind(arguments: *const *const c_char) -> *const *const c_char {
    let mut end = arguments;
    // SAFETY: the caller says so.
    unsafe {
        while !end.read().is_null() {
            end = end.add(1);
        }
        end.add(1).read().cast()
    }
}

/// Defines a function with a list of arguments that ends in a null. It calls `$array` with the
/// first argument and the address of the others in memory, one after the other.
#[macro_export]
macro_rules! interpose_list {
    ($name:ident, $array:ident) => {
        /// exec(3) with a list of arguments.
        #[cfg(target_arch = "x86_64")]
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name() {
            // The arguments in registers go below those on the stack, in place of the return
            // address.
            core::arch::naked_asm!(
                "pop rax",
                "push r9",
                "push r8",
                "push rcx",
                "push rdx",
                "push rsi",
                "mov rsi, rsp",
                "push rax",
                "call {array}",
                "pop rcx",
                "add rsp, 40",
                "push rcx",
                "ret",
                array = sym $array,
            )
        }

        /// exec(3) with a list of arguments.
        #[cfg(target_arch = "aarch64")]
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name() {
            core::arch::naked_asm!(
                "stp x29, x30, [sp, #-80]!",
                "str x1, [sp, #24]",
                "stp x2, x3, [sp, #32]",
                "stp x4, x5, [sp, #48]",
                "stp x6, x7, [sp, #64]",
                "add x1, sp, #24",
                "bl {array}",
                "ldp x29, x30, [sp], #80",
                "ret",
                array = sym $array,
            )
        }
    };
}

/// Defines exec(3), execve(2) and posix_spawn(3) for a library. `$may_run`: a function that checks
/// the path of a program, and returns the error of a call that is refused. They must be in the list
/// of [`functions`](crate::functions), but those with a list of arguments, which end in the others.
#[macro_export]
macro_rules! interpose_execs {
    ($may_run:path) => {
        mod interposed_execs {
            use std::ffi::{c_char, c_int};
            use std::path::Path;

            use $crate::execs::{environment_behind, path_at, text};
            use $crate::outcome::fail;

            use super::*;

            type Texts = *const *const c_char;

            /// Checks a program that is searched for as execvp(3) does. What is not found is not
            /// started.
            ///
            /// # Safety
            /// The name is a string or null.
            unsafe fn may_run_found(name: *const c_char) -> Result<(), Errno> {
                // SAFETY: the caller says so.
                match $crate::programs::find(unsafe { text(name) }) {
                    Ok(path) => $may_run(&path),
                    Err(_) => Ok(()),
                }
            }

            /// Checks a program at a path.
            ///
            /// # Safety
            /// The path is a string or null.
            unsafe fn may_run_at(path: *const c_char) -> Result<(), Errno> {
                // SAFETY: the caller says so.
                $may_run(Path::new(unsafe { text(path) }))
            }

            /// execve(2).
            #[unsafe(no_mangle)]
            unsafe extern "C" fn execve(path: *const c_char, with: Texts, set: Texts) -> c_int {
                // SAFETY: the path is the program's.
                if let Err(errno) = unsafe { may_run_at(path) } {
                    return fail(errno.raw_os_error());
                }
                type ExecveFn = unsafe extern "C" fn(*const c_char, Texts, Texts) -> c_int;
                $crate::call_next!(execve: ExecveFn, path, with, set)
            }

            /// execv(3).
            #[unsafe(no_mangle)]
            unsafe extern "C" fn execv(path: *const c_char, with: Texts) -> c_int {
                // SAFETY: the path is the program's.
                if let Err(errno) = unsafe { may_run_at(path) } {
                    return fail(errno.raw_os_error());
                }
                type ExecvFn = unsafe extern "C" fn(*const c_char, Texts) -> c_int;
                $crate::call_next!(execv: ExecvFn, path, with)
            }

            /// execvp(3).
            #[unsafe(no_mangle)]
            unsafe extern "C" fn execvp(name: *const c_char, with: Texts) -> c_int {
                // SAFETY: the name is the program's.
                if let Err(errno) = unsafe { may_run_found(name) } {
                    return fail(errno.raw_os_error());
                }
                type ExecvpFn = unsafe extern "C" fn(*const c_char, Texts) -> c_int;
                $crate::call_next!(execvp: ExecvpFn, name, with)
            }

            /// execvpe(3).
            #[unsafe(no_mangle)]
            unsafe extern "C" fn execvpe(name: *const c_char, with: Texts, set: Texts) -> c_int {
                // SAFETY: the name is the program's.
                if let Err(errno) = unsafe { may_run_found(name) } {
                    return fail(errno.raw_os_error());
                }
                type ExecvpeFn = unsafe extern "C" fn(*const c_char, Texts, Texts) -> c_int;
                $crate::call_next!(execvpe: ExecvpeFn, name, with, set)
            }

            /// fexecve(3).
            #[unsafe(no_mangle)]
            unsafe extern "C" fn fexecve(fd: c_int, with: Texts, set: Texts) -> c_int {
                if let Err(errno) = $may_run(&path_at(fd, Path::new(""))) {
                    return fail(errno.raw_os_error());
                }
                type FexecveFn = unsafe extern "C" fn(c_int, Texts, Texts) -> c_int;
                $crate::call_next!(fexecve: FexecveFn, fd, with, set)
            }

            /// execveat(2).
            #[unsafe(no_mangle)]
            unsafe extern "C" fn execveat(
                directory: c_int,
                path: *const c_char,
                with: Texts,
                set: Texts,
                flags: c_int,
            ) -> c_int {
                // SAFETY: the path is the program's.
                let at = path_at(directory, Path::new(unsafe { text(path) }));
                if let Err(errno) = $may_run(&at) {
                    return fail(errno.raw_os_error());
                }
                type ExecveatFn =
                    unsafe extern "C" fn(c_int, *const c_char, Texts, Texts, c_int) -> c_int;
                $crate::call_next!(execveat: ExecveatFn, directory, path, with, set, flags)
            }

            /// As [`execv`], for execl(3).
            unsafe extern "C" fn exec_list(path: *const c_char, with: Texts) -> c_int {
                // SAFETY: the arguments are the program's.
                unsafe { execv(path, with) }
            }

            /// As [`execvp`], for execlp(3).
            unsafe extern "C" fn exec_list_found(name: *const c_char, with: Texts) -> c_int {
                // SAFETY: the arguments are the program's.
                unsafe { execvp(name, with) }
            }

            /// As [`execve`], for execle(3).
            unsafe extern "C" fn exec_list_set(path: *const c_char, with: Texts) -> c_int {
                // SAFETY: the arguments are the program's, and end with a null.
                unsafe { execve(path, with, environment_behind(with)) }
            }

            $crate::interpose_list!(execl, exec_list);
            $crate::interpose_list!(execlp, exec_list_found);
            $crate::interpose_list!(execle, exec_list_set);

            macro_rules! spawn {
                ($name:ident, $check:ident) => {
                    /// posix_spawn(3), which returns an error number.
                    #[unsafe(no_mangle)]
                    unsafe extern "C" fn $name(
                        pid: *mut libc::pid_t,
                        program: *const c_char,
                        actions: *const libc::posix_spawn_file_actions_t,
                        attributes: *const libc::posix_spawnattr_t,
                        with: Texts,
                        set: Texts,
                    ) -> c_int {
                        // SAFETY: the path or name is the program's.
                        if let Err(errno) = unsafe { $check(program) } {
                            return errno.raw_os_error();
                        }
                        type SpawnFn = unsafe extern "C" fn(
                            *mut libc::pid_t,
                            *const c_char,
                            *const libc::posix_spawn_file_actions_t,
                            *const libc::posix_spawnattr_t,
                            Texts,
                            Texts,
                        ) -> c_int;
                        $crate::call_next!(
                            $name: SpawnFn, pid, program, actions, attributes, with, set
                        )
                    }
                };
            }

            spawn!(posix_spawn, may_run_at);
            spawn!(posix_spawnp, may_run_found);
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_relative_to_the_descriptor_of_a_directory() {
        let at = |directory, path| path_at(directory, Path::new(path));
        assert_eq!(at(libc::AT_FDCWD, "a/b"), Path::new("a/b"));
        assert_eq!(at(7, "/a"), Path::new("/a"));
        assert_eq!(at(7, "a"), Path::new("/proc/self/fd/7/a"));
        assert_eq!(at(7, ""), Path::new("/proc/self/fd/7"));
    }

    #[test]
    fn an_environment_is_behind_the_end_of_the_arguments() {
        let set = [c"A=1".as_ptr(), std::ptr::null()];
        let with = [
            c"sh".as_ptr(),
            c"-c".as_ptr(),
            std::ptr::null(),
            set.as_ptr().cast(),
        ];
        // SAFETY: the arguments end with a null, and the environment is behind it.
        assert_eq!(unsafe { environment_behind(with.as_ptr()) }, set.as_ptr());
    }
}
