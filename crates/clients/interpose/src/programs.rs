//! Programs with calls that come to a library of this kind, and those without: a program that the
//! dynamic linker starts without the library, and one that makes system calls itself.

mod elf;
mod file;
#[cfg(test)]
mod tests;

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use file::File;

/// Directories that are searched without `PATH` (`_CS_PATH`, confstr(3)).
const DEFAULT_PATH: &str = "/bin:/usr/bin";
/// Interpreters of interpreters that the system follows (`BINPRM_MAX_RECURSION`).
const INTERPRETERS: usize = 4;
/// Bytes of a script's first line that the system reads (`BINPRM_BUF_SIZE`).
const LINE: usize = 256;
/// The program that searches for the program of a script's first line (env(1)).
const ENV: &str = "env";

const SET_USER: u32 = 0o4000;
const SET_GROUP: u32 = 0o2000;
/// Attribute of a file with capabilities (xattr(7)).
const CAPABILITIES: &str = "security.capability";

/// Why a program is not started.
#[derive(Debug)]
pub enum Refusal {
    /// The system does not start it either.
    NoProgram(String),
    /// It would run, and its calls would not come to the library.
    Past(String),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::NoProgram(text) | Self::Past(text)) = self;
        f.write_str(text)
    }
}

fn no_program(path: &Path, reason: &str) -> Refusal {
    Refusal::NoProgram(format!("{}: {reason}", path.display()))
}

fn past(path: &Path, reason: &str) -> Refusal {
    Refusal::Past(format!("{}: {reason}", path.display()))
}

/// Finds a program as execvp(3) does.
///
/// # Errors
/// [`Refusal::NoProgram`]: there is none of this name that may be executed.
pub fn find(name: &OsStr) -> Result<PathBuf, Refusal> {
    if name.as_bytes().contains(&b'/') {
        let path = PathBuf::from(name);
        return match executable(&path) {
            Ok(()) => Ok(path),
            Err(reason) => Err(no_program(&path, reason)),
        };
    }
    let dirs = std::env::var_os("PATH").unwrap_or_else(|| OsString::from(DEFAULT_PATH));
    let mut paths = std::env::split_paths(&dirs).map(|dir| dir.join(name));
    let found = paths.find(|path| executable(path).is_ok());
    found.ok_or_else(|| no_program(Path::new(name), "there is no such program in PATH"))
}

fn executable(path: &Path) -> Result<(), &'static str> {
    let Ok(file) = path.metadata() else {
        return Err("there is no such program");
    };
    match file.is_file() && file.permissions().mode() & 0o111 != 0 {
        true => Ok(()),
        false => Err("it is no program: no file that may be executed"),
    }
}

/// Checks that a program's calls come to a library that is loaded first. For a script its
/// interpreter counts, and the program that env(1) finds for it. What a program does itself cannot
/// be seen in its file: system calls of its own without Go, or a library that makes them.
///
/// # Errors
/// See [`Refusal`].
pub fn check(path: &Path) -> Result<(), Refusal> {
    let mut path = path.to_owned();
    for _ in 0..=INTERPRETERS {
        executable(&path).map_err(|reason| no_program(&path, reason))?;
        let file = File::open(&path).map_err(|error| {
            let reason = format!("it cannot be read, to see whether it is static: {error}");
            past(&path, &reason)
        })?;
        let head = file.read(0, LINE);
        let Some((interpreter, argument)) = interpreter(&head) else {
            rights(&path, &file).map_err(|reason| past(&path, reason))?;
            return match elf::check(&file) {
                Ok(()) => Ok(()),
                Err(elf::Reason::NoElf) => {
                    Err(no_program(&path, "neither an ELF program nor a script"))
                }
                Err(elf::Reason::Past(reason)) => Err(past(&path, &reason)),
            };
        };
        executable(interpreter).map_err(|reason| {
            let interpreter = interpreter.display();
            no_program(&path, &format!("its interpreter {interpreter}: {reason}"))
        })?;
        let by_env = interpreter.file_name() == Some(OsStr::new(ENV));
        // A name that env(1) does not find is its own to report.
        let found = by_env.then(|| program_of_env(argument)).flatten();
        let found = found.and_then(|name| find(name).ok());
        path = found.unwrap_or_else(|| interpreter.to_owned());
    }
    Err(no_program(&path, "too many interpreters of interpreters"))
}

/// The interpreter of a script, and the rest of the first line.
fn interpreter(head: &[u8]) -> Option<(&Path, &[u8])> {
    let line = head.strip_prefix(b"#!")?;
    let line = line.split(|byte| *byte == b'\n').next()?;
    let line = line.trim_ascii();
    let end = line.iter().position(u8::is_ascii_whitespace);
    let (word, rest) = line.split_at(end.unwrap_or(line.len()));
    (!word.is_empty()).then(|| (Path::new(OsStr::from_bytes(word)), rest))
}

/// The name in the arguments of env(1), after its options and variables.
fn program_of_env(arguments: &[u8]) -> Option<&OsStr> {
    let mut words = arguments.split(u8::is_ascii_whitespace);
    while let Some(word) = words.next() {
        match word {
            b"" => {}
            b"-u" | b"-C" | b"--unset" | b"--chdir" => drop(words.next()),
            _ if word.starts_with(b"-S") && word.len() > 2 => {
                return Some(OsStr::from_bytes(&word[2..]));
            }
            _ if word.starts_with(b"-") || word.contains(&b'=') => {}
            _ => return Some(OsStr::from_bytes(word)),
        }
    }
    None
}

/// Checks that a program runs with the rights of its caller only: else the dynamic linker ignores
/// `LD_PRELOAD` (ld.so(8), secure-execution mode).
fn rights(path: &Path, file: &File) -> Result<(), &'static str> {
    let mode = file.mode();
    if mode & SET_USER != 0 {
        return Err("a set-user-id program: the dynamic linker loads no library into it");
    }
    if mode & SET_GROUP != 0 && mode & 0o010 != 0 {
        return Err("a set-group-id program: the dynamic linker loads no library into it");
    }
    let mut value = [0_u8; 64];
    match rustix::fs::getxattr(path, CAPABILITIES, &mut value[..]) {
        Ok(_) => {
            Err("a program with file capabilities: the dynamic linker loads no library into it")
        }
        Err(_) => Ok(()),
    }
}
