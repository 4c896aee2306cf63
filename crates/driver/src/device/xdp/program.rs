//! The XDP program: each frame goes to the `AF_XDP` socket of the receive queue that it came by, and to the host where there
//! is none. Six instructions, so nothing but bpf(2) is needed to have it.
//!
//! It is attached by a link (`BPF_LINK_CREATE`), so that it goes with the last descriptor of it, however we end, and takes
//! nobody else's place: where another program is attached, the link cannot be had.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

// `linux/bpf.h`.
const MAP_CREATE: i32 = 0;
const MAP_UPDATE_ELEM: i32 = 2;
const PROG_LOAD: i32 = 5;
const LINK_CREATE: i32 = 28;
const MAP_TYPE_XSKMAP: u32 = 17;
const PROG_TYPE_XDP: u32 = 6;
const ATTACH_XDP: u32 = 37;
/// `XDP_FLAGS_DRV_MODE` of `linux/if_link.h`: by the interface's driver, before the system makes a packet of a frame.
const DRIVER_MODE: u32 = 1 << 2;
/// `XDP_PASS`: to the host.
const PASS: i32 = 2;
/// `BPF_FUNC_redirect_map`.
const REDIRECT_MAP: i32 = 51;
/// Where `struct xdp_md` has the number of the receive queue.
const RX_QUEUE_INDEX: i16 = 16;

/// `struct bpf_insn`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Instruction {
    code: u8,
    /// Destination in the low half, source in the high one.
    registers: u8,
    offset: i16,
    immediate: i32,
}

const fn instruction(code: u8, registers: u8, offset: i16, immediate: i32) -> Instruction {
    Instruction {
        code,
        registers,
        offset,
        immediate,
    }
}

/// `return bpf_redirect_map(&map, context->rx_queue_index, XDP_PASS)`: the third argument is what becomes of a frame whose
/// queue has no socket.
fn instructions(map: i32) -> [Instruction; 6] {
    [
        // r2 = *(u32 *)(r1 + rx_queue_index)
        instruction(0x61, 0x12, RX_QUEUE_INDEX, 0),
        // r1 = map, in two words
        instruction(0x18, 0x11, 0, map),
        instruction(0, 0, 0, 0),
        // r3 = XDP_PASS
        instruction(0xb7, 0x03, 0, PASS),
        instruction(0x85, 0, 0, REDIRECT_MAP),
        instruction(0x95, 0, 0, 0),
    ]
}

/// The part of `union bpf_attr` that a command reads, in 8-byte words as all its structures are laid out.
struct Attribute([u64; 16]);

impl Attribute {
    /// From 32-bit numbers; pointers and 64-bit numbers are two, the low half first.
    fn new(numbers: &[u32]) -> Self {
        let mut words = [0; 16];
        for (word, pair) in words.iter_mut().zip(numbers.chunks(2)) {
            let second = pair.get(1).copied().unwrap_or(0);
            let [a, b, c, d] = pair[0].to_ne_bytes();
            let [e, f, g, h] = second.to_ne_bytes();
            *word = u64::from_ne_bytes([a, b, c, d, e, f, g, h]);
        }
        Self(words)
    }

    /// With the address of something that must live until the command is done.
    fn point<T>(mut self, word: usize, to: &T) -> Self {
        self.0[word] = std::ptr::from_ref(to) as u64;
        self
    }

    /// What the command returns: 0, or a descriptor.
    fn run(&mut self, command: i32) -> io::Result<i32> {
        let size = size_of_val(&self.0);
        // SAFETY: the attribute has the size that is given; what it points to was lent by the caller for longer than
        // this call, with the length that is said in it.
        let done = unsafe { libc::syscall(libc::SYS_bpf, command, self.0.as_mut_ptr(), size) };
        match i32::try_from(done) {
            Ok(done @ 0..) => Ok(done),
            _ => Err(io::Error::last_os_error()),
        }
    }

    fn make(&mut self, command: i32) -> io::Result<OwnedFd> {
        let fd = self.run(command)?;
        // SAFETY: the commands that this is called for return a new descriptor, which nobody else owns.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }
}

fn number(fd: &impl AsRawFd) -> u32 {
    fd.as_raw_fd() as u32
}

/// The sockets by receive queue (`BPF_MAP_TYPE_XSKMAP`). One that is closed leaves it.
#[derive(Debug)]
pub(super) struct Map(OwnedFd);

impl Map {
    pub(super) fn new(queues: u32) -> io::Result<Self> {
        // Kind, bytes of a key, bytes of a value, entries, flags.
        let mut attribute = Attribute::new(&[MAP_TYPE_XSKMAP, 4, 4, queues, 0]);
        Ok(Self(attribute.make(MAP_CREATE)?))
    }

    /// Gives the frames of a queue to a bound socket.
    pub(super) fn insert(&self, queue: u32, socket: BorrowedFd<'_>) -> io::Result<()> {
        let value = number(&socket);
        // The map, two pointers, flags.
        let attribute = Attribute::new(&[number(&self.0)]);
        let mut attribute = attribute.point(1, &queue).point(2, &value);
        attribute.run(MAP_UPDATE_ELEM).map(drop)
    }

    /// Attaches the program to an interface of this thread's network namespace; it is detached with the last descriptor.
    pub(super) fn attach(&self, index: u32) -> io::Result<OwnedFd> {
        let code = instructions(self.0.as_raw_fd());
        let license = *b"Dual MIT/GPL\0";
        // Kind, instructions, pointers to them and to the license.
        let attribute = Attribute::new(&[PROG_TYPE_XDP, code.len() as u32]);
        let mut attribute = attribute.point(1, &code).point(2, &license);
        let program = attribute.make(PROG_LOAD)?;
        let mut attribute = Attribute::new(&[number(&program), index, ATTACH_XDP, DRIVER_MODE]);
        attribute.make(LINK_CREATE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_laid_out_as_the_system_reads_them() {
        let value = 7u32;
        let attribute = Attribute::new(&[1, 2, 3]).point(2, &value);
        let bytes: Vec<u8> = attribute.0.iter().flat_map(|w| w.to_ne_bytes()).collect();
        let at = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap());
        assert_eq!([at(0), at(4), at(8), at(12)], [1, 2, 3, 0]);
        assert_eq!(attribute.0[2], &raw const value as u64);
        assert_eq!(size_of::<Instruction>(), 8);
    }
}
