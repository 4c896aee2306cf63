//! bpf(2): a command and its part of `union bpf_attr` (`linux/bpf.h`).

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// License of the programs: the kernel lets them call all helpers that it offers to free ones.
pub const LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";

/// `enum bpf_cmd`, as far as it is used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(i32)]
pub enum Command {
    /// Creates a map; returns a descriptor.
    MapCreate = 0,
    /// Writes an entry of a map.
    MapUpdate = 2,
    /// Loads a program; returns a descriptor.
    ProgramLoad = 5,
    /// Runs a program on given bytes, for tests; returns 0.
    ProgramTestRun = 10,
    /// Opens a program by its number; returns a descriptor.
    ProgramById = 13,
    /// Attaches a program to a tracepoint; returns a descriptor.
    RawTracepointOpen = 17,
    /// Attaches a program to another hook; returns a descriptor.
    LinkCreate = 28,
    /// Puts another program in the place of one that a link attaches.
    LinkUpdate = 29,
}

/// The part of `union bpf_attr` that a command reads, in 8-byte words as all its structures are
/// laid out.
#[derive(Debug)]
pub struct Attribute<'a> {
    words: [u64; 16],
    /// Borrow of the memory that the words point to.
    borrowed: std::marker::PhantomData<&'a ()>,
}

impl<'a> Attribute<'a> {
    /// Creates an attribute of 32-bit numbers; pointers and 64-bit numbers are two, the low half
    /// first.
    ///
    /// # Panics
    /// With more than 32 numbers.
    #[must_use]
    pub fn new(numbers: &[u32]) -> Self {
        let mut attribute = Self {
            words: [0; 16],
            borrowed: std::marker::PhantomData,
        };
        for (at, number) in numbers.iter().enumerate() {
            attribute = attribute.number(at, *number);
        }
        attribute
    }

    /// Sets a 32-bit number at its place, counted in such.
    ///
    /// # Panics
    /// Past the 32nd.
    #[must_use]
    pub fn number(mut self, at: usize, number: u32) -> Self {
        let mut halves = self.words[at / 2].to_ne_bytes();
        halves[at % 2 * 4..][..4].copy_from_slice(&number.to_ne_bytes());
        self.words[at / 2] = u64::from_ne_bytes(halves);
        self
    }

    /// Sets the address of memory that the command reads.
    ///
    /// # Panics
    /// Past the 16th word.
    #[must_use]
    pub fn point<T: ?Sized>(mut self, word: usize, to: &'a T) -> Self {
        self.words[word] = std::ptr::from_ref(to).cast::<u8>() as u64;
        self
    }

    /// Sets the address of bytes that the command writes; their number is another field.
    ///
    /// # Panics
    /// Past the 16th word.
    #[must_use]
    pub fn point_mut(mut self, word: usize, to: &'a mut [u8]) -> Self {
        self.words[word] = to.as_mut_ptr() as u64;
        self
    }

    /// Runs the command and returns its result: 0, or a descriptor.
    ///
    /// # Errors
    /// The error of the system call.
    pub fn run(&mut self, command: Command) -> io::Result<i32> {
        let size = size_of_val(&self.words);
        let words = self.words.as_mut_ptr();
        // SAFETY: the attribute has the given size; the memory that it points to is borrowed for
        // longer than this call, with the length that the caller set in it.
        let done = unsafe { libc::syscall(libc::SYS_bpf, command as i32, words, size) };
        match i32::try_from(done) {
            Ok(done @ 0..) => Ok(done),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Returns a 32-bit number that the command has written, at its place counted in such.
    ///
    /// # Panics
    /// Past the 32nd.
    #[must_use]
    pub fn result(&self, at: usize) -> u32 {
        (self.words[at / 2] >> (32 * (at % 2))) as u32
    }

    /// Runs a command that creates a descriptor.
    ///
    /// # Errors
    /// The error of the system call; a command that creates none.
    pub fn make(&mut self, command: Command) -> io::Result<OwnedFd> {
        let makes_none = matches!(
            command,
            Command::MapUpdate | Command::ProgramTestRun | Command::LinkUpdate
        );
        if makes_none {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let fd = self.run(command)?;
        // SAFETY: all other commands return a new descriptor, which has no other owner.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }
}

/// Returns a descriptor as the attributes have it.
pub fn number(fd: &impl AsRawFd) -> u32 {
    fd.as_raw_fd().cast_unsigned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_laid_out_as_the_system_reads_them() {
        let value = 7u32;
        let attribute = Attribute::new(&[1, 2, 3]).point(2, &value).number(7, 9);
        let bytes: Vec<u8> = attribute
            .words
            .iter()
            .flat_map(|w| w.to_ne_bytes())
            .collect();
        let at = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap());
        assert_eq!(
            [at(0), at(4), at(8), at(12), at(28), at(32)],
            [1, 2, 3, 0, 9, 0]
        );
        assert_eq!(attribute.words[2], &raw const value as u64);
    }

    #[test]
    fn only_what_is_a_descriptor_is_taken_for_one() {
        assert!(Attribute::new(&[]).make(Command::MapUpdate).is_err());
    }
}
