//! Descriptors that stay open when another program is executed.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use rustix::io::{FdFlags, fcntl_dupfd_cloexec, fcntl_getfd, fcntl_setfd};
use serde::{Deserialize, Serialize};

use crate::shares::OTHERS;

/// Index of a descriptor in the record's list.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct FdIndex(u32);

/// Descriptors for the record.
#[derive(Default)]
pub(crate) struct OutgoingFds<'a>(Vec<BorrowedFd<'a>>);

impl<'a> OutgoingFds<'a> {
    /// Adds a descriptor.
    pub(crate) fn add(&mut self, fd: BorrowedFd<'a>) -> FdIndex {
        self.0.push(fd);
        FdIndex(self.0.len() as u32 - 1)
    }

    /// Returns the numbers by index.
    pub(crate) fn numbers(&self) -> Vec<RawFd> {
        self.0.iter().map(AsRawFd::as_raw_fd).collect()
    }

    /// Sets whether the descriptors stay open when another program is executed.
    pub(crate) fn set_inheritable(&self, on: bool) -> io::Result<()> {
        let flags = if on {
            FdFlags::empty()
        } else {
            FdFlags::CLOEXEC
        };
        for fd in &self.0 {
            fcntl_setfd(fd, flags)?;
        }
        Ok(())
    }
}

/// Reason why descriptors cannot be passed on or taken.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FdError {
    #[error(
        "too many descriptors to pass on: {count}, with a limit of {most}; it takes one of {needed}"
    )]
    TooMany {
        count: usize,
        most: u64,
        needed: u64,
    },
    #[error("duplicate descriptor")]
    Duplicate,
    #[error("descriptor {0} is not open")]
    NotOpen(RawFd),
    #[error("unknown descriptor index")]
    UnknownIndex,
    #[error("descriptor used twice")]
    UsedTwice,
    #[error("{0}")]
    Copy(io::Error),
}

/// Checks that `count` descriptors can be taken over with a limit of `most`: each is open twice
/// meanwhile.
///
/// # Errors
/// There are too many.
pub(crate) fn check_descriptor_limit(count: usize, most: Option<u64>) -> Result<(), FdError> {
    let needed = 2 * count as u64 + OTHERS;
    match most {
        Some(most) if needed > most => Err(FdError::TooMany {
            count,
            most,
            needed,
        }),
        _ => Ok(()),
    }
}

/// Descriptors of a record. [`IncomingFds::take`] returns copies: until
/// [`IncomingFds::close_originals`], a rollback finds all of them.
pub(crate) struct IncomingFds {
    numbers: Vec<RawFd>,
    taken: BTreeSet<u32>,
}

impl IncomingFds {
    /// Returns the descriptors with these numbers.
    ///
    /// # Errors
    /// A number is not open, or a duplicate.
    pub(crate) fn new(numbers: Vec<RawFd>) -> Result<Self, FdError> {
        let different: BTreeSet<_> = numbers.iter().collect();
        if different.len() != numbers.len() {
            return Err(FdError::Duplicate);
        }
        for number in &numbers {
            let is_open = *number > 2 && fcntl_getfd(borrow(*number)).is_ok();
            if !is_open {
                return Err(FdError::NotOpen(*number));
            }
        }
        Ok(Self {
            numbers,
            taken: BTreeSet::new(),
        })
    }

    /// Takes a descriptor by its index.
    ///
    /// # Errors
    /// There is none, it was taken already, or a copy is not possible.
    pub(crate) fn take(&mut self, index: FdIndex) -> Result<OwnedFd, FdError> {
        let number = self.numbers.get(index.0 as usize);
        let number = number.ok_or(FdError::UnknownIndex)?;
        if !self.taken.insert(index.0) {
            return Err(FdError::UsedTwice);
        }
        fcntl_dupfd_cloexec(borrow(*number), 3).map_err(|error| FdError::Copy(error.into()))
    }

    /// Closes the originals. A rollback is not possible any longer.
    pub(crate) fn close_originals(self) {
        for number in self.numbers {
            // SAFETY: `new` has found each number open and unique; they came from the previous
            // program, and this one uses them only through `take`, which made copies.
            drop(unsafe { OwnedFd::from_raw_fd(number) });
        }
    }
}

fn borrow<'a>(number: RawFd) -> BorrowedFd<'a> {
    // SAFETY: it is only used for system calls that check whether the number is open; -1, which is
    // not allowed here, is never in `OutgoingFds` and fails the comparison in `new` before.
    unsafe { BorrowedFd::borrow_raw(number) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::{AsFd, IntoRawFd};

    fn file() -> OwnedFd {
        rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC).unwrap()
    }

    #[test]
    fn descriptors_are_taken_once() {
        let (a, b) = (file(), file());
        let mut outgoing = OutgoingFds::default();
        let (first, second) = (outgoing.add(a.as_fd()), outgoing.add(b.as_fd()));
        outgoing.set_inheritable(true).unwrap();
        assert_eq!(fcntl_getfd(&a).unwrap(), FdFlags::empty());
        let numbers = outgoing.numbers();
        drop(outgoing);
        let numbers_of = [a.into_raw_fd(), b.into_raw_fd()];
        assert_eq!(numbers, numbers_of);
        let mut incoming = IncomingFds::new(numbers).unwrap();
        let copy = incoming.take(first).unwrap();
        assert!(incoming.take(first).is_err(), "twice");
        assert!(incoming.take(FdIndex(2)).is_err(), "unknown index");
        incoming.take(second).unwrap();
        incoming.close_originals();
        assert_eq!(fcntl_getfd(&copy).unwrap(), FdFlags::CLOEXEC);
    }

    #[test]
    fn there_must_be_room_for_all_of_them_twice() {
        assert!(check_descriptor_limit(1000, Some(2256)).is_ok());
        assert!(check_descriptor_limit(1001, Some(2256)).is_err());
        assert!(check_descriptor_limit(1001, None).is_ok());
    }

    #[test]
    fn closed_and_duplicate_descriptors_are_refused() {
        let open = file();
        let number = open.as_raw_fd();
        assert!(IncomingFds::new(vec![number, number]).is_err());
        assert!(IncomingFds::new(vec![number, 1_000_000]).is_err());
        assert!(IncomingFds::new(vec![-1]).is_err());
        assert!(IncomingFds::new(vec![number]).is_ok());
    }
}
