//! bpf(2): a command and its part of `union bpf_attr` (`linux/bpf.h`).

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// What programs of ours say of their license: the kernel lets them call all that it offers to free ones.
pub const LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";

/// `enum bpf_cmd`, as far as it is used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(i32)]
pub enum Command {
    /// Makes a map; a descriptor.
    MapCreate = 0,
    /// Writes an entry of a map.
    MapUpdate = 2,
    /// Loads a program; a descriptor.
    ProgramLoad = 5,
    /// Attaches a program to a tracepoint; a descriptor.
    RawTracepointOpen = 17,
    /// Attaches a program to something else; a descriptor.
    LinkCreate = 28,
}

/// The part of `union bpf_attr` that a command reads, in 8-byte words as all its structures are laid out.
#[derive(Debug)]
pub struct Attribute<'a> {
    words: [u64; 16],
    /// What the words point to.
    lent: std::marker::PhantomData<&'a ()>,
}

impl<'a> Attribute<'a> {
    /// From 32-bit numbers; pointers and 64-bit numbers are two, the low half first.
    ///
    /// # Panics
    /// With more than 32 numbers.
    #[must_use]
    pub fn new(numbers: &[u32]) -> Self {
        let mut attribute = Self {
            words: [0; 16],
            lent: std::marker::PhantomData,
        };
        for (at, number) in numbers.iter().enumerate() {
            attribute = attribute.number(at, *number);
        }
        attribute
    }

    /// With a 32-bit number at its place, counted in such.
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

    /// With the address of something that the command reads.
    ///
    /// # Panics
    /// Past the 16th word.
    #[must_use]
    pub fn point<T: ?Sized>(mut self, word: usize, to: &'a T) -> Self {
        self.words[word] = std::ptr::from_ref(to).cast::<u8>() as u64;
        self
    }

    /// With the address of bytes that the command writes; their number is another field.
    ///
    /// # Panics
    /// Past the 16th word.
    #[must_use]
    pub fn point_mut(mut self, word: usize, to: &'a mut [u8]) -> Self {
        self.words[word] = to.as_mut_ptr() as u64;
        self
    }

    /// What the command returns: 0, or a descriptor.
    ///
    /// # Errors
    /// The system's refusal.
    pub fn run(&mut self, command: Command) -> io::Result<i32> {
        let size = size_of_val(&self.words);
        let words = self.words.as_mut_ptr();
        // SAFETY: the attribute has the size that is given; what it points to was lent to it for longer than this call,
        // with the length that its user says in it.
        let done = unsafe { libc::syscall(libc::SYS_bpf, command as i32, words, size) };
        match i32::try_from(done) {
            Ok(done @ 0..) => Ok(done),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// The descriptor that the command makes.
    ///
    /// # Errors
    /// The system's refusal; a command that makes none.
    pub fn make(&mut self, command: Command) -> io::Result<OwnedFd> {
        if command == Command::MapUpdate {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let fd = self.run(command)?;
        // SAFETY: all other commands return a new descriptor, which nobody else owns.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }
}

/// A descriptor as the attributes have it.
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
