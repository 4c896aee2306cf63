//! An ELF file (elf(5)) and how its program makes its calls.

use super::file::File;

/// Bytes of the header of a 64-bit file, of a program header and of a section header.
pub(super) const HEADER: usize = 64;
pub(super) const PROGRAM_HEADER: usize = 56;
pub(super) const SECTION_HEADER: usize = 64;
/// This machine: `EM_X86_64`, or `EM_AARCH64`.
pub(super) const MACHINE: u16 = if cfg!(target_arch = "x86_64") {
    62
} else {
    183
};
/// The dynamic linker of the GNU C library, which the libraries are linked with.
pub(super) const LINKER: &str = if cfg!(target_arch = "x86_64") {
    "ld-linux-x86-64.so.2"
} else {
    "ld-linux-aarch64.so.1"
};

/// Kinds of program headers.
pub(super) const PT_LOAD: u32 = 1;
pub(super) const PT_DYNAMIC: u32 = 2;
pub(super) const PT_INTERP: u32 = 3;
pub(super) const PT_NOTE: u32 = 4;
/// A segment that the program may write to.
pub(super) const PF_W: u32 = 2;
/// A section of notes.
pub(super) const SHT_NOTE: u32 = 7;
/// The tag of a library that is linked.
pub(super) const DT_NEEDED: u64 = 1;

/// The owner's name in the notes of Go's linker.
const GO_NOTE: &[u8] = b"Go\0\0";
/// Sections that only Go's linker makes.
const GO_SECTIONS: [&[u8]; 3] = [b".go.buildinfo", b".gopclntab", b".note.go.buildid"];
/// The beginning of what Go's linker says about a build, in the data of the program, at a multiple
/// of its length (package debug/buildinfo of Go).
pub(super) const GO_BUILD: &[u8] = b"\xff Go buildinf:";
const GO_ALIGN: usize = 16;

/// Bytes of a table or a segment that are read at a time.
const PIECE: usize = 64 << 10;
/// Bytes of notes, of names, and of the dynamic section at most: a linker makes a few hundred.
const MOST: u64 = 16 << 20;

/// Why the calls of a program are not taken.
pub(super) enum Reason {
    /// It is no ELF file.
    NoElf,
    /// In words.
    Past(String),
}

fn past(reason: &str) -> Reason {
    Reason::Past(reason.to_owned())
}

/// A part of a file: where it is, and its kind, flags and name.
#[derive(Clone, Copy)]
struct Part {
    kind: u32,
    flags: u32,
    name: u32,
    offset: u64,
    len: u64,
    align: u64,
}

/// The tables of an ELF file.
struct Elf<'a> {
    file: &'a File,
    header: [u8; HEADER],
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    let found = bytes.get(at..).and_then(<[u8]>::first_chunk);
    found.copied().map_or(0, u16::from_le_bytes)
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let found = bytes.get(at..).and_then(<[u8]>::first_chunk);
    found.copied().map_or(0, u32::from_le_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let found = bytes.get(at..).and_then(<[u8]>::first_chunk);
    found.copied().map_or(0, u64::from_le_bytes)
}

/// Checks that a program has a dynamic linker that loads a library for the GNU C library, and makes
/// its calls by that.
pub(super) fn check(file: &File) -> Result<(), Reason> {
    let header = file.read(0, HEADER);
    let header = header.first_chunk().copied();
    let Some(header) = header.filter(|header: &[u8; HEADER]| header.starts_with(b"\x7fELF")) else {
        return Err(Reason::NoElf);
    };
    // EI_CLASS and EI_DATA: 64 bits, little-endian.
    if header[4..6] != [2, 1] || u16_at(&header, 18) != MACHINE {
        return Err(past("a program for another machine than the library"));
    }
    let elf = Elf { file, header };
    let segments = elf.segments();
    if elf.is_of_go(&segments) {
        return Err(past(
            "a Go program: it makes system calls itself, past the library",
        ));
    }
    let of_kind = |kind| segments.iter().find(|part| part.kind == kind);
    let Some(linker) = of_kind(PT_INTERP) else {
        return Err(past(
            "a static program: there is no dynamic linker that loads the library",
        ));
    };
    let linker = elf.bytes(linker);
    let linker = linker.split(|byte| *byte == 0).next().unwrap_or_default();
    if linker.rsplit(|byte| *byte == b'/').next() != Some(LINKER.as_bytes()) {
        let linker = String::from_utf8_lossy(linker);
        return Err(Reason::Past(format!(
            "a program of another C library than the library: its dynamic linker is {linker}"
        )));
    }
    match of_kind(PT_DYNAMIC).is_some_and(|dynamic| elf.links(dynamic)) {
        true => Ok(()),
        false => Err(past(
            "a program that is linked with no library: it makes system calls itself",
        )),
    }
}

impl Elf<'_> {
    /// The bytes of a part, as far as they are there.
    fn bytes(&self, part: &Part) -> Vec<u8> {
        self.read(part.offset, part.len.min(MOST))
    }

    fn read(&self, offset: u64, len: u64) -> Vec<u8> {
        self.file.read(offset, usize::try_from(len).unwrap_or(0))
    }

    /// A table of the header: its offset, and the size and number of its entries.
    fn table(&self, offset: usize, size: usize, count: u16) -> (Vec<u8>, usize) {
        let size = usize::from(u16_at(&self.header, size));
        let len = size as u64 * u64::from(count);
        (self.read(u64_at(&self.header, offset), len), size.max(1))
    }

    fn segments(&self) -> Vec<Part> {
        let (table, size) = self.table(32, 54, u16_at(&self.header, 56));
        let entries = table.chunks_exact(size);
        let entries = entries.filter(|entry| entry.len() >= PROGRAM_HEADER);
        let part = |entry: &[u8]| Part {
            kind: u32_at(entry, 0),
            flags: u32_at(entry, 4),
            name: 0,
            offset: u64_at(entry, 8),
            len: u64_at(entry, 32),
            align: u64_at(entry, 48),
        };
        entries.map(part).collect()
    }

    fn sections(&self) -> Vec<Part> {
        let (table, size) = self.table(40, 58, u16_at(&self.header, 60));
        let entries = table.chunks_exact(size);
        let entries = entries.filter(|entry| entry.len() >= SECTION_HEADER);
        let part = |entry: &[u8]| Part {
            kind: u32_at(entry, 4),
            flags: 0,
            name: u32_at(entry, 0),
            offset: u64_at(entry, 24),
            len: u64_at(entry, 32),
            align: u64_at(entry, 48),
        };
        entries.map(part).collect()
    }

    /// Whether Go's linker was here: by a note in a segment or a section, by the name of a section,
    /// or by what it writes into the data of each program.
    fn is_of_go(&self, segments: &[Part]) -> bool {
        let sections = self.sections();
        let notes = segments.iter().filter(|part| part.kind == PT_NOTE);
        let more = sections.iter().filter(|part| part.kind == SHT_NOTE);
        if notes.chain(more).any(|part| self.has_go_note(part)) {
            return true;
        }
        let names = sections.get(usize::from(u16_at(&self.header, 62)));
        let names = names.map_or_else(Vec::new, |part| self.bytes(part));
        let has_name = |part: &Part| {
            let name = names.get(part.name as usize..).unwrap_or_default();
            let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
            GO_SECTIONS.contains(&name)
        };
        let is_data = |part: &&Part| part.kind == PT_LOAD && part.flags & PF_W != 0;
        sections.iter().any(has_name)
            || segments
                .iter()
                .filter(is_data)
                .any(|part| self.has_go_build(part))
    }

    /// Walks notes: three numbers (length of the name, length of the rest, kind), name and rest,
    /// each rounded up to the alignment of the part.
    fn has_go_note(&self, part: &Part) -> bool {
        let align = if part.align == 8 { 8 } else { 4 };
        let bytes = self.bytes(part);
        let mut rest = &bytes[..];
        while rest.len() >= 12 {
            let name_len = u32_at(rest, 0) as usize;
            let len = u32_at(rest, 4) as usize;
            if rest.get(12..12 + name_len) == Some(GO_NOTE) {
                return true;
            }
            let end = (12 + name_len).next_multiple_of(align) + len;
            rest = rest.get(end.next_multiple_of(align)..).unwrap_or_default();
        }
        false
    }

    fn has_go_build(&self, part: &Part) -> bool {
        let first = part.offset.checked_next_multiple_of(GO_ALIGN as u64);
        // Every file is shorter.
        let mut at = first.unwrap_or(u64::MAX);
        let end = part.offset.saturating_add(part.len);
        while at < end {
            let bytes = self.read(at, (end - at).min(PIECE as u64));
            let mut places = bytes.chunks(GO_ALIGN);
            if places.any(|place| place.starts_with(GO_BUILD)) {
                return true;
            }
            if bytes.is_empty() {
                return false;
            }
            at += bytes.len().next_multiple_of(GO_ALIGN) as u64;
        }
        false
    }

    /// Whether a dynamic section names a library.
    fn links(&self, dynamic: &Part) -> bool {
        let bytes = self.bytes(dynamic);
        let mut entries = bytes.chunks_exact(16);
        entries.any(|entry| u64_at(entry, 0) == DT_NEEDED)
    }
}
