//! Descriptors that outlive the program that opened them.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use rustix::io::{FdFlags, fcntl_dupfd_cloexec, fcntl_getfd, fcntl_setfd};
use serde::{Deserialize, Serialize};

/// The place of a descriptor in the list of all.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(in crate::supervisor) struct Place(u32);

/// Those that are to be passed on.
#[derive(Default)]
pub(in crate::supervisor) struct Giving<'a>(Vec<BorrowedFd<'a>>);

impl<'a> Giving<'a> {
    /// Adds one.
    pub(in crate::supervisor) fn give(&mut self, fd: BorrowedFd<'a>) -> Place {
        self.0.push(fd);
        Place(self.0.len() as u32 - 1)
    }

    /// Their numbers, by their places.
    pub(super) fn numbers(&self) -> Vec<RawFd> {
        self.0.iter().map(AsRawFd::as_raw_fd).collect()
    }

    /// Has them stay open, or not, when this process becomes another program.
    pub(super) fn outlive_exec(&self, on: bool) -> io::Result<()> {
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

/// Open descriptors beside those that are passed on, and those of the processes that are started meanwhile.
const OTHERS: u64 = 256;

/// Whether so many can be passed on where `most` may be open: while they are taken, each is open twice.
///
/// # Errors
/// They cannot.
pub(super) fn fit(count: usize, most: Option<u64>) -> Result<(), String> {
    match most {
        Some(most) if 2 * count as u64 + OTHERS > most => Err(format!(
            "{count} descriptors are too many to pass on where {most} may be open"
        )),
        _ => Ok(()),
    }
}

/// Those that were passed on. What is taken out is a copy: until [`Taking::done`] the program before this one could be
/// given all of them again.
pub(in crate::supervisor) struct Taking {
    numbers: Vec<RawFd>,
    taken: BTreeSet<u32>,
}

impl Taking {
    /// Those of these numbers.
    ///
    /// # Errors
    /// One is not open, or named twice.
    pub(in crate::supervisor) fn new(numbers: Vec<RawFd>) -> Result<Self, String> {
        let different: BTreeSet<_> = numbers.iter().collect();
        if different.len() != numbers.len() {
            return Err("a descriptor is there twice".into());
        }
        for number in &numbers {
            let is_open = *number > 2 && fcntl_getfd(borrow(*number)).is_ok();
            if !is_open {
                return Err(format!("descriptor {number} is not there"));
            }
        }
        Ok(Self {
            numbers,
            taken: BTreeSet::new(),
        })
    }

    /// Takes the one of a place.
    ///
    /// # Errors
    /// There is none, it was taken already, or there is no room for a copy.
    pub(in crate::supervisor) fn take(&mut self, place: Place) -> Result<OwnedFd, String> {
        let number = self.numbers.get(place.0 as usize);
        let number = number.ok_or("a descriptor that was not passed on")?;
        if !self.taken.insert(place.0) {
            return Err("a descriptor for two purposes".into());
        }
        fcntl_dupfd_cloexec(borrow(*number), 3).map_err(|e| io::Error::from(e).to_string())
    }

    /// There is no way back: the originals are closed.
    pub(super) fn done(self) {
        for number in self.numbers {
            // SAFETY: `new` has found each open and there once; they came from the program before, and nothing in this
            // one knows them but through `take`, which made copies.
            drop(unsafe { OwnedFd::from_raw_fd(number) });
        }
    }
}

fn borrow<'a>(number: RawFd) -> BorrowedFd<'a> {
    // SAFETY: it is only used to ask the system about the number, which finds out whether it is open; -1, which is not
    // allowed here, is none that `Giving` gives and fails `new`'s comparison before.
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
    fn what_was_given_is_taken_once() {
        let (a, b) = (file(), file());
        let mut giving = Giving::default();
        let (first, second) = (giving.give(a.as_fd()), giving.give(b.as_fd()));
        giving.outlive_exec(true).unwrap();
        assert_eq!(fcntl_getfd(&a).unwrap(), FdFlags::empty());
        let numbers = giving.numbers();
        drop(giving);
        let numbers_of = [a.into_raw_fd(), b.into_raw_fd()];
        assert_eq!(numbers, numbers_of);
        let mut taking = Taking::new(numbers).unwrap();
        let copy = taking.take(first).unwrap();
        assert!(taking.take(first).is_err(), "twice");
        assert!(taking.take(Place(2)).is_err(), "nobody gave it");
        taking.take(second).unwrap();
        taking.done();
        assert_eq!(fcntl_getfd(&copy).unwrap(), FdFlags::CLOEXEC);
    }

    #[test]
    fn there_must_be_room_for_all_of_them_twice() {
        assert!(fit(1000, Some(2256)).is_ok());
        assert!(fit(1001, Some(2256)).is_err());
        assert!(fit(1001, None).is_ok());
    }

    #[test]
    fn what_is_not_open_is_found_out() {
        let open = file();
        let number = open.as_raw_fd();
        assert!(Taking::new(vec![number, number]).is_err());
        assert!(Taking::new(vec![number, 1_000_000]).is_err());
        assert!(Taking::new(vec![-1]).is_err());
        assert!(Taking::new(vec![number]).is_ok());
    }
}
