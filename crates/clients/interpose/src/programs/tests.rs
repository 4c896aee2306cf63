use std::fs;
use std::fs::Permissions;

use super::elf::{
    DT_NEEDED, GO_BUILD, HEADER, LINKER, MACHINE, PF_W, PROGRAM_HEADER, PT_DYNAMIC, PT_INTERP,
    PT_LOAD, PT_NOTE, SECTION_HEADER, SHT_NOTE,
};
use super::*;

fn said(path: &Path) -> String {
    check(path).map_or_else(|refusal| refusal.to_string(), |()| String::new())
}

/// Writes an executable file.
fn program(dir: &Path, name: &str, bytes: &[u8], mode: u32) -> PathBuf {
    let path = dir.join(name);
    fs::write(&path, bytes).unwrap();
    fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
    path
}

/// An ELF file that is made of parts.
struct Made {
    machine: u16,
    segments: Vec<(u32, u32, Vec<u8>)>,
    /// Kind, name and bytes; the last one has the names.
    sections: Vec<(u32, &'static str, Vec<u8>)>,
}

impl Made {
    fn of(segments: &[(u32, &[u8])]) -> Self {
        let segment = |(kind, bytes): &(u32, &[u8])| (*kind, PF_W, bytes.to_vec());
        Self {
            machine: MACHINE,
            segments: segments.iter().map(segment).collect(),
            sections: Vec::new(),
        }
    }

    /// A dynamic program, and more segments.
    fn dynamic(more: &[(u32, &[u8])]) -> Self {
        let linker = format!("/lib64/{LINKER}\0");
        let linked = [DT_NEEDED.to_le_bytes(), 1_u64.to_le_bytes()].concat();
        let own = [(PT_INTERP, linker.as_bytes()), (PT_DYNAMIC, &linked)];
        Self::of(&[&own, more].concat())
    }

    fn with_section(mut self, kind: u32, name: &'static str, bytes: &[u8]) -> Self {
        self.sections.push((kind, name, bytes.to_vec()));
        self
    }

    fn bytes(mut self) -> Vec<u8> {
        let mut names = Vec::new();
        if !self.sections.is_empty() {
            self.sections.push((3, ".shstrtab", Vec::new()));
            for (_, name, _) in &self.sections {
                names.extend(name.bytes().chain([0]));
            }
            self.sections.last_mut().unwrap().2.clone_from(&names);
        }
        let count = (self.segments.len(), self.sections.len());
        let mut bytes = vec![0; HEADER];
        bytes[..6].copy_from_slice(b"\x7fELF\x02\x01");
        bytes[18..20].copy_from_slice(&self.machine.to_le_bytes());
        let sections_at = HEADER + PROGRAM_HEADER * count.0;
        bytes[32] = HEADER as u8;
        bytes[40..44].copy_from_slice(&(sections_at as u32).to_le_bytes());
        bytes[54] = PROGRAM_HEADER as u8;
        bytes[56] = count.0 as u8;
        bytes[58] = SECTION_HEADER as u8;
        bytes[60] = count.1 as u8;
        bytes[62] = count.1.saturating_sub(1) as u8;
        let mut at = (sections_at + SECTION_HEADER * count.1).next_multiple_of(16) as u64;
        let begin = at as usize;
        let mut contents = Vec::new();
        let mut place = |content: &[u8]| {
            let here = at;
            contents.extend(content);
            contents.resize(contents.len().next_multiple_of(16), 0);
            at += content.len().next_multiple_of(16) as u64;
            (here, content.len() as u64)
        };
        for (kind, flags, content) in &self.segments {
            let (offset, len) = place(content);
            let mut header = [0; PROGRAM_HEADER];
            header[..4].copy_from_slice(&kind.to_le_bytes());
            header[4..8].copy_from_slice(&flags.to_le_bytes());
            header[8..16].copy_from_slice(&offset.to_le_bytes());
            header[32..40].copy_from_slice(&len.to_le_bytes());
            bytes.extend(header);
        }
        let mut name_at = 0_u32;
        for (kind, name, content) in &self.sections {
            let (offset, len) = place(content);
            let mut header = [0; SECTION_HEADER];
            header[..4].copy_from_slice(&name_at.to_le_bytes());
            header[4..8].copy_from_slice(&kind.to_le_bytes());
            header[24..32].copy_from_slice(&offset.to_le_bytes());
            header[32..40].copy_from_slice(&len.to_le_bytes());
            bytes.extend(header);
            name_at += name.len() as u32 + 1;
        }
        bytes.resize(begin, 0);
        bytes.extend(&contents);
        bytes
    }
}

/// A note of this owner, with so many bytes.
fn note(owner: &[u8], len: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    for number in [owner.len() as u32, len, 1] {
        bytes.extend(number.to_le_bytes());
    }
    bytes.extend(owner);
    bytes.resize(bytes.len().next_multiple_of(4) + len as usize, 0xa5);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
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
fn a_program_whose_calls_would_not_come_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let own = || Made::dynamic(&[]).bytes();
    let foreign = Made {
        machine: 3,
        ..Made::dynamic(&[])
    };
    let of_musl = Made::of(&[(PT_INTERP, b"/lib/ld-musl-x86_64.so.1\0")]);
    let linker = format!("/lib64/{LINKER}\0");
    let alone = Made::of(&[(PT_INTERP, linker.as_bytes()), (PT_DYNAMIC, &[0; 16])]);
    for (name, bytes, mode, reason) in [
        ("dynamic", own(), 0o755, ""),
        (
            "static",
            Made::of(&[(PT_LOAD, b"")]).bytes(),
            0o755,
            "a static program",
        ),
        (
            "static-pie",
            Made::of(&[(PT_DYNAMIC, &[0; 16])]).bytes(),
            0o755,
            "a static program",
        ),
        ("setuid", own(), 0o4755, "a set-user-id program"),
        ("setgid", own(), 0o2755, "a set-group-id program"),
        ("locked", own(), 0o2745, ""),
        (
            "foreign",
            foreign.bytes(),
            0o755,
            "a program for another machine",
        ),
        (
            "musl",
            of_musl.bytes(),
            0o755,
            "a program of another C library than the library: its dynamic linker is /lib/ld-musl",
        ),
        (
            "alone",
            alone.bytes(),
            0o755,
            "a program that is linked with no library",
        ),
        (
            "text",
            b"hello".to_vec(),
            0o755,
            "neither an ELF program nor a script",
        ),
        ("short", own()[..70].to_vec(), 0o755, "a static program"),
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
fn a_program_of_go_is_recognised_by_any_trace_of_its_linker() {
    let dir = tempfile::tempdir().unwrap();
    let go = note(b"Go\0\0", 83);
    let gnu = note(b"GNU\0", 20);
    // That of the external linker is behind those of the C compiler, whose lengths are odd here.
    let third = [gnu.clone(), note(b"GNU\0", 17), go.clone()].concat();
    let endless = [&u32::MAX.to_le_bytes()[..], &[0xff; 8], &go].concat();
    let mut data = vec![0; 70_000];
    let aside = [&data, &b"\0"[..], GO_BUILD].concat();
    data.extend(GO_BUILD);
    for (name, file, is_go) in [
        ("first", Made::dynamic(&[(PT_NOTE, &go)]), true),
        ("third", Made::dynamic(&[(PT_NOTE, &third)]), true),
        (
            "other-segment",
            Made::dynamic(&[(PT_NOTE, &gnu), (PT_NOTE, &go)]),
            true,
        ),
        ("static", Made::of(&[(PT_NOTE, &third)]), true),
        (
            "section",
            Made::dynamic(&[]).with_section(SHT_NOTE, ".notes", &third),
            true,
        ),
        (
            "build",
            Made::dynamic(&[]).with_section(1, ".go.buildinfo", b"x"),
            true,
        ),
        (
            "table",
            Made::dynamic(&[]).with_section(1, ".gopclntab", b"x"),
            true,
        ),
        ("stripped", Made::dynamic(&[(PT_LOAD, &data)]), true),
        (
            "of-c",
            Made::dynamic(&[(PT_NOTE, &gnu)]).with_section(SHT_NOTE, ".note", &gnu),
            false,
        ),
        ("a-word", Made::dynamic(&[(PT_LOAD, &aside)]), false),
        ("endless", Made::dynamic(&[(PT_NOTE, &endless)]), false),
    ] {
        let path = program(dir.path(), name, &file.bytes(), 0o755);
        let said = said(&path);
        let expected = if is_go { "a Go program" } else { "" };
        assert!(
            said.contains(expected) && said.is_empty() != is_go,
            "{name}: {said}"
        );
    }
}

#[test]
fn the_interpreter_of_a_script_counts() {
    let dir = tempfile::tempdir().unwrap();
    let still = program(dir.path(), "static", &Made::of(&[]).bytes(), 0o755);
    let script = |name: &str, first: &str| {
        let text = format!("{first}\necho\n");
        program(dir.path(), name, text.as_bytes(), 0o755)
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
fn the_program_that_env_finds_for_a_script_counts() {
    let dir = tempfile::tempdir().unwrap();
    let still = program(dir.path(), "static", &Made::of(&[]).bytes(), 0o755);
    let still = still.display();
    for (first, expected) in [
        ("#!/usr/bin/env sh".to_owned(), ""),
        (format!("#!/usr/bin/env {still}"), "a static program"),
        (
            format!("#!/usr/bin/env -S A=1 {still} -x"),
            "a static program",
        ),
        (format!("#!/usr/bin/env -S{still} -x"), "a static program"),
        (
            format!("#!/usr/bin/env -i -u HOME\t{still}"),
            "a static program",
        ),
        // env(1) says itself that there is none.
        ("#!/usr/bin/env no-such-program".to_owned(), ""),
        ("#!/usr/bin/env".to_owned(), ""),
    ] {
        let script = program(dir.path(), "script", format!("{first}\n").as_bytes(), 0o755);
        let said = said(&script);
        assert!(
            said.contains(expected) && said.is_empty() == expected.is_empty(),
            "{first}: {said}"
        );
    }
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
