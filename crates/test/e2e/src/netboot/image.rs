//! Programs for machines without an operating system: they work out a digest of the bytes behind
//! their code, and say it on [`PORT`].

/// I/O port of the output, a byte at a time: QEMU's `isa-debugcon`.
pub(super) const PORT: u8 = 0xe9;

/// A program as a file.
#[derive(Debug, Clone)]
pub struct Image {
    /// The file.
    pub bytes: Vec<u8>,
    /// Output when every byte of its load arrived.
    pub digest: u32,
}

/// The digest: four bytes, each bit of the load in one of them.
fn digest(load: &[u8]) -> u32 {
    load.iter()
        .fold(0, |sum: u32, byte| sum.rotate_left(5) ^ u32::from(*byte))
}

/// Works out the digest in `eax` and says it; `r8` or `esi` points to the load.
fn code(start: &[u8], next_byte: &[u8], len: usize, end: &[u8]) -> Vec<u8> {
    let len = (len as u32).to_le_bytes();
    let each = [
        next_byte,
        &[0xc1, 0xc0, 5], // rol eax, 5
        &[0x31, 0xd0],    // xor eax, edx
        &[0xff, 0xc9],    // dec ecx
    ]
    .concat();
    let say = [0xee, 0xc1, 0xe8, 8, 0xff, 0xc9]; // out dx, al; shr eax, 8; dec ecx
    let again = |body: &[u8]| [0x75, (-2 - body.len() as i8) as u8]; // jnz
    [
        start,
        &[0x31, 0xc0, 0xb9], // xor eax, eax; mov ecx, len
        &len,
        &each,
        &again(&each),
        &[0xb9, 4, 0, 0, 0, 0x66, 0xba, PORT, 0], // mov ecx, 4; mov dx, PORT
        &say,
        &again(&say),
        end,
    ]
    .concat()
}

/// A UEFI application with `load` behind its code (PE/COFF specification; UEFI, 2.1.1).
#[must_use]
pub fn efi(load: &[u8]) -> Image {
    const SECTION: usize = 0x1000;
    const CODE: usize = 0x100;
    // lea r8, [rip + to]
    let start = |to: u32| [&[0x4c, 0x8d, 0x05][..], &to.to_le_bytes()].concat();
    let next_byte = [0x41, 0x0f, 0xb6, 0x10, 0x49, 0xff, 0xc0]; // movzx edx, byte [r8]; inc r8
    let end = [0x31, 0xc0, 0xc3]; // xor eax, eax; ret
    let text = code(&start((CODE - 7) as u32), &next_byte, load.len(), &end);
    let mut section = text;
    section.resize(CODE, 0);
    section.extend(load);
    section.resize(section.len().next_multiple_of(SECTION), 0);
    let size = section.len() as u32;
    let mut bytes = efi_headers(size, SECTION as u32);
    bytes.resize(SECTION, 0);
    bytes.extend(section);
    Image {
        bytes,
        digest: digest(load),
    }
}

/// The headers of an application of one section, which begins at `at` in the file and in memory.
fn efi_headers(size: u32, at: u32) -> Vec<u8> {
    let mut head = vec![0; 0x40];
    head[..2].copy_from_slice(b"MZ");
    head[0x3c] = 0x40;
    let mut put = |bytes: &[u8]| head.extend(bytes);
    let u16s = |all: &[u16]| {
        all.iter()
            .flat_map(|n| n.to_le_bytes())
            .collect::<Vec<u8>>()
    };
    let u32s = |all: &[u32]| {
        all.iter()
            .flat_map(|n| n.to_le_bytes())
            .collect::<Vec<u8>>()
    };
    put(b"PE\0\0");
    // x86-64, one section; no symbols; 240 bytes of optional header; executable, large addresses.
    put(&u16s(&[0x8664, 1]));
    put(&u32s(&[0, 0, 0]));
    put(&u16s(&[240, 0x22]));
    // PE32+; sizes of code and data; the entry, and where the code begins.
    put(&u16s(&[0x20b, 0]));
    put(&u32s(&[size, 0, 0, at, at]));
    // It may lie anywhere; alignments in memory and in the file; versions; sizes of it all and of
    // the headers.
    put(&u32s(&[0, 0, at, at, 0, 0, 0, 0, at + size, at, 0]));
    // A UEFI application; sizes of stack and heap; sixteen directories, all empty.
    put(&u16s(&[10, 0]));
    put(&[0; 32]);
    put(&u32s(&[0, 16]));
    put(&[0; 128]);
    put(b".text\0\0\0");
    put(&u32s(&[size, at, size, at, 0, 0, 0]));
    // Code that is read, written and run.
    put(&u32s(&[0xe000_0020]));
    head
}

/// A Multiboot kernel with `load` behind its code (Multiboot specification 0.6.96), which iPXE
/// boots on a BIOS.
#[must_use]
pub fn multiboot(load: &[u8]) -> Image {
    const AT: u32 = 4 << 20;
    const CODE: u32 = 0x100;
    const MAGIC: u32 = 0x1bad_b002;
    /// The header says where everything is to be.
    const ADDRESSES: u32 = 1 << 16;
    // lea r8, [rip + to]
    let start = [&[0xbe][..], &(AT + CODE).to_le_bytes()].concat(); // mov esi, load
    let next_byte = [0x0f, 0xb6, 0x16, 0x46]; // movzx edx, byte [esi]; inc esi
    let end = [0xf4, 0xeb, 0xfd]; // hlt, for ever
    let text = code(&start, &next_byte, load.len(), &end);
    let all = CODE + load.len() as u32;
    let checksum = 0u32.wrapping_sub(MAGIC).wrapping_sub(ADDRESSES);
    let header = [
        MAGIC,
        ADDRESSES,
        checksum,
        AT,
        AT,
        AT + all,
        AT + all,
        AT + 32,
    ];
    let mut bytes: Vec<u8> = header.iter().flat_map(|n| n.to_le_bytes()).collect();
    bytes.extend(text);
    bytes.resize(CODE as usize, 0);
    bytes.extend(load);
    Image {
        bytes,
        digest: digest(load),
    }
}
