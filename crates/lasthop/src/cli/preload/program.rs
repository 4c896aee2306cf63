//! The search for a program, and the check that the dynamic linker loads a library into it.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use client::Failure;

/// Directories that are searched without `PATH` (`_CS_PATH`, confstr(3)).
const DEFAULT_PATH: &str = "/bin:/usr/bin";
/// Interpreters of interpreters that the system follows (`BINPRM_MAX_RECURSION`).
const INTERPRETERS: usize = 4;
/// Bytes of a script's first line that the system reads (`BINPRM_BUF_SIZE`).
const LINE: usize = 256;

const SET_USER: u32 = 0o4000;
const SET_GROUP: u32 = 0o2000;
/// Attribute of a file with capabilities (xattr(7)).
const CAPABILITIES: &str = "security.capability";

/// Program headers that name the dynamic linker (elf(5)).
const PT_INTERP: u32 = 3;
/// Program headers of notes.
const PT_NOTE: u32 = 4;
/// Bytes of the header of a 64-bit ELF file, and of a program header.
const HEADER: usize = 64;
const PROGRAM_HEADER: usize = 56;
/// This machine in ELF files: `EM_X86_64`, or `EM_AARCH64`.
const MACHINE: u16 = if cfg!(target_arch = "x86_64") {
    62
} else {
    183
};

fn refuse(path: &Path, reason: &str) -> Failure {
    Failure::Invalid(format!("{}: {reason}", path.display()))
}

/// Finds a program as execvp(3) does.
///
/// # Errors
/// There is none of this name that may be executed.
pub(super) fn find(name: &OsStr) -> Result<PathBuf, Failure> {
    if name.as_bytes().contains(&b'/') {
        let path = PathBuf::from(name);
        return match executable(&path) {
            Ok(()) => Ok(path),
            Err(reason) => Err(refuse(&path, reason)),
        };
    }
    let dirs = std::env::var_os("PATH").unwrap_or_else(|| OsString::from(DEFAULT_PATH));
    let mut paths = std::env::split_paths(&dirs).map(|dir| dir.join(name));
    let found = paths.find(|path| executable(path).is_ok());
    found.ok_or_else(|| {
        let name = Path::new(name).display();
        Failure::Invalid(format!("{name}: there is no such program in PATH"))
    })
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

/// Checks that the dynamic linker loads a library into a program. For a script, its interpreter
/// counts.
///
/// # Errors
/// The reason why it does not.
pub(super) fn check(path: &Path) -> Result<(), Failure> {
    let mut path = path.to_owned();
    for _ in 0..=INTERPRETERS {
        let mut file = File::open(&path).map_err(|error| {
            refuse(
                &path,
                &format!("it cannot be read, to see whether it is static: {error}"),
            )
        })?;
        let mut head = Vec::with_capacity(LINE);
        let read = Read::by_ref(&mut file)
            .take(LINE as u64)
            .read_to_end(&mut head);
        read.map_err(|error| refuse(&path, &error.to_string()))?;
        match interpreter(&head) {
            Some(next) => {
                executable(&next).map_err(|reason| {
                    let interpreter = next.display();
                    refuse(&path, &format!("its interpreter {interpreter}: {reason}"))
                })?;
                path = next;
            }
            None => {
                let is_loaded = rights(&path, &file).and_then(|()| dynamic(&head, &file));
                return is_loaded.map_err(|reason| refuse(&path, reason));
            }
        }
    }
    Err(refuse(&path, "too many interpreters of interpreters"))
}

/// Returns the interpreter of a script, from its beginning.
fn interpreter(head: &[u8]) -> Option<PathBuf> {
    let line = head.strip_prefix(b"#!")?;
    let line = line.split(|byte| *byte == b'\n').next()?;
    let mut words = line.split(|byte| matches!(byte, b' ' | b'\t'));
    let word = words.find(|word| !word.is_empty())?;
    Some(PathBuf::from(OsString::from_vec(word.to_vec())))
}

/// Checks that a program runs with the rights of its caller only: else the dynamic linker ignores
/// the variable.
fn rights(path: &Path, file: &File) -> Result<(), &'static str> {
    let mode = file.metadata().map_or(0, |file| file.mode());
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

/// Checks that a program has a dynamic linker, from its beginning.
fn dynamic(head: &[u8], file: &File) -> Result<(), &'static str> {
    let Some(header) = head
        .first_chunk::<HEADER>()
        .filter(|h| h.starts_with(b"\x7fELF"))
    else {
        return Err("neither an ELF program nor a script");
    };
    let u16_at = |at: usize| u16::from_le_bytes([header[at], header[at + 1]]);
    // EI_CLASS and EI_DATA: 64 bits, little-endian.
    if header[4..6] != [2, 1] || u16_at(18) != MACHINE {
        return Err("a program for another machine than the library");
    }
    let offset = header[32..40].try_into().map_or(0, u64::from_le_bytes);
    let (size, count) = (u64::from(u16_at(54)), u64::from(u16_at(56)));
    let mut has_linker = false;
    for index in 0..count {
        let mut program_header = [0; PROGRAM_HEADER];
        let at = offset.checked_add(index * size);
        let read = at.map(|at| file.read_exact_at(&mut program_header, at));
        if read.is_none_or(|read| read.is_err()) {
            continue;
        }
        let kind = program_header.first_chunk().copied();
        match kind.map_or(0, u32::from_le_bytes) {
            PT_INTERP => has_linker = true,
            PT_NOTE if is_of_go(&program_header, file) => {
                return Err("a Go program: it makes system calls itself, past the library");
            }
            _ => {}
        }
    }
    match has_linker {
        true => Ok(()),
        false => Err("a static program: there is no dynamic linker that loads the library"),
    }
}

/// Whether a program header of notes has that of Go's linker: the name comes behind three numbers.
fn is_of_go(program_header: &[u8; PROGRAM_HEADER], file: &File) -> bool {
    let offset = program_header[8..16]
        .try_into()
        .map_or(0, u64::from_le_bytes);
    let mut note = [0; 16];
    file.read_exact_at(&mut note, offset).is_ok() && note.ends_with(b"Go\0\0")
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn said(path: &Path) -> String {
        check(path).map_or_else(|failure| failure.to_string(), |()| String::new())
    }

    /// Writes an executable file.
    fn program(dir: &Path, name: &str, bytes: &[u8], mode: u32) -> PathBuf {
        let path = dir.join(name);
        fs::write(&path, bytes).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        path
    }

    /// Returns an ELF file with one program header.
    fn elf(kind: u32, machine: u16) -> Vec<u8> {
        let mut bytes = vec![0; HEADER + PROGRAM_HEADER];
        bytes[..6].copy_from_slice(b"\x7fELF\x02\x01");
        bytes[18..20].copy_from_slice(&machine.to_le_bytes());
        bytes[32] = HEADER as u8;
        bytes[54] = PROGRAM_HEADER as u8;
        bytes[56] = 1;
        bytes[HEADER..HEADER + 4].copy_from_slice(&kind.to_le_bytes());
        bytes
    }

    /// Returns an ELF file with a note of Go's linker.
    fn go() -> Vec<u8> {
        let mut bytes = elf(PT_NOTE, MACHINE);
        bytes[HEADER + 8] = bytes.len() as u8;
        for number in [4_u32, 0, 4] {
            bytes.extend(number.to_le_bytes());
        }
        bytes.extend(b"Go\0\0");
        bytes
    }

    #[test]
    fn programs_of_the_system_are_dynamic() {
        for name in ["sh", "/bin/true", "env"] {
            let path = find(OsStr::new(name)).unwrap();
            assert_eq!(said(&path), "", "{name}");
        }
    }

    #[test]
    fn a_program_that_would_run_without_the_library_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let own = elf(PT_INTERP, MACHINE);
        for (name, bytes, mode, reason) in [
            ("dynamic", own.clone(), 0o755, ""),
            ("static", elf(1, MACHINE), 0o755, "a static program"),
            ("setuid", own.clone(), 0o4755, "a set-user-id program"),
            ("setgid", own.clone(), 0o2755, "a set-group-id program"),
            ("locked", own.clone(), 0o2745, ""),
            (
                "foreign",
                elf(PT_INTERP, 3),
                0o755,
                "a program for another machine",
            ),
            (
                "text",
                b"hello".to_vec(),
                0o755,
                "neither an ELF program nor a script",
            ),
            ("short", own[..70].to_vec(), 0o755, "a static program"),
            ("go", go(), 0o755, "a Go program"),
        ] {
            let path = program(dir.path(), name, &bytes, mode);
            let said = said(&path);
            let expected = format!("{}: {reason}", path.display());
            assert!(
                said == reason || said.starts_with(&expected),
                "{name}: {said}"
            );
        }
    }

    #[test]
    fn the_interpreter_of_a_script_counts() {
        let dir = tempfile::tempdir().unwrap();
        let still = program(dir.path(), "static", &elf(1, MACHINE), 0o755);
        let script = |name: &str, first: &str| {
            program(
                dir.path(),
                name,
                format!("{first}\necho\n").as_bytes(),
                0o755,
            )
        };
        assert_eq!(said(&script("sh", "#! /bin/sh -e")), "");
        let of_static = script("of-static", &format!("#!{}", still.display()));
        assert!(said(&of_static).contains("static: a static program"));
        let twice = script("twice", &format!("#!{}", of_static.display()));
        assert!(said(&twice).contains("a static program"));
        let nothing = script("nothing", "#!/no/such/interpreter");
        assert!(said(&nothing).contains("its interpreter /no/such/interpreter"));
        let itself = dir.path().join("itself");
        let itself = script("itself", &format!("#!{}", itself.display()));
        assert!(said(&itself).contains("too many interpreters"));
    }

    #[test]
    fn a_program_that_is_not_there_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let plain = program(dir.path(), "plain", b"#!/bin/sh\n", 0o644);
        let said = |name: &OsStr| find(name).unwrap_err().to_string();
        assert!(said(plain.as_os_str()).ends_with("no file that may be executed"));
        assert!(said(dir.path().as_os_str()).contains("it is no program"));
        assert!(said(OsStr::new("/no/such")).ends_with("there is no such program"));
        let missing = said(OsStr::new("no-such-program"));
        assert_eq!(missing, "no-such-program: there is no such program in PATH");
    }
}
