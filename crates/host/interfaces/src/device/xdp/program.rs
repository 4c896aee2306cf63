//! The XDP program: each frame is redirected to the `AF_XDP` socket of its receive queue, and
//! passed to the host if there is none (`programs/redirect.c`).
//!
//! It is attached by a link (`BPF_LINK_CREATE`), so that it is detached with the last descriptor of
//! it, however the process ends, and replaces no other program: if another one is attached, the
//! link is refused.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use bpf::object::{self, ObjectError};
use bpf::{Attribute, Command, Instruction, LICENSE, number};

/// The object with the program.
const OBJECT: &[u8] = include_bytes!("../../../programs/redirect.o");

// `linux/bpf.h`.
const MAP_TYPE_XSKMAP: u32 = 17;
const PROG_TYPE_XDP: u32 = 6;
const ATTACH_XDP: u32 = 37;
/// `XDP_FLAGS_DRV_MODE` of `linux/if_link.h`: by the interface's driver, before the system makes a
/// packet of a frame.
const DRIVER_MODE: u32 = 1 << 2;

/// Returns the program.
fn instructions(map: BorrowedFd<'_>) -> Result<Vec<Instruction>, ObjectError> {
    object::program(OBJECT, "redirect", &[("sockets", map)])
}

/// The sockets by receive queue (`BPF_MAP_TYPE_XSKMAP`). One that is closed leaves it.
#[derive(Debug)]
pub(super) struct Map(pub(super) OwnedFd);

impl Map {
    pub(super) fn new(queues: u32) -> io::Result<Self> {
        // Kind, bytes of a key, bytes of a value, entries, flags.
        let mut attribute = Attribute::new(&[MAP_TYPE_XSKMAP, 4, 4, queues, 0]);
        Ok(Self(attribute.make(Command::MapCreate)?))
    }

    /// Gives the frames of a queue to a bound socket.
    pub(super) fn insert(&self, queue: u32, socket: BorrowedFd<'_>) -> io::Result<()> {
        let value = number(&socket);
        // The map, two pointers, flags.
        let attribute = Attribute::new(&[number(&self.0)]);
        let mut attribute = attribute.point(1, &queue).point(2, &value);
        attribute.run(Command::MapUpdate).map(drop)
    }

    /// Loads the program that redirects to the sockets of this map.
    pub(super) fn program(&self) -> io::Result<OwnedFd> {
        let code = instructions(self.0.as_fd()).map_err(io::Error::other)?;
        // Kind, instructions, pointers to them and to the license.
        let attribute = Attribute::new(&[PROG_TYPE_XDP, code.len() as u32]);
        let mut attribute = attribute.point(1, &code[..]).point(2, &LICENSE);
        attribute.make(Command::ProgramLoad)
    }
}

/// Attaches a program to an interface of this thread's network namespace; it is detached with the
/// last descriptor.
pub(in crate::device) fn attach(program: &OwnedFd, index: u32) -> io::Result<OwnedFd> {
    let mut attribute = Attribute::new(&[number(program), index, ATTACH_XDP, DRIVER_MODE]);
    attribute.make(Command::LinkCreate)
}

/// Puts a program in the place of the one that a link attaches.
pub(super) fn replace(link: &OwnedFd, program: &OwnedFd) -> io::Result<()> {
    // The link, the program, flags.
    let mut attribute = Attribute::new(&[number(link), number(program), 0]);
    attribute.run(Command::LinkUpdate).map(drop)
}

impl AsFd for Map {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_has_as_many_instructions_as_its_source_says() {
        let map = std::fs::File::open("/dev/null").unwrap();
        assert_eq!(instructions(map.as_fd()).unwrap().len(), 6);
    }
}
