//! Lines for the user of the program: why something was refused. Each is said once.

use std::collections::BTreeSet;
use std::os::fd::AsFd;
use std::sync::{Mutex, PoisonError};

/// Lines at most: a program with ever new requests does not fill its terminal.
const MOST: usize = 64;

/// The lines of one library.
#[derive(Debug)]
pub struct Lines {
    name: &'static str,
    said: Mutex<BTreeSet<String>>,
}

impl Lines {
    /// Lines that begin with a name.
    #[must_use]
    pub const fn new(name: &'static str) -> Self {
        Self {
            name,
            said: Mutex::new(BTreeSet::new()),
        }
    }

    /// Writes a line to standard error, unless it was written before.
    pub fn once(&self, line: &str) {
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        if said.len() < MOST && said.insert(line.to_owned()) {
            self.each_time(line);
        }
    }

    /// Writes a line to standard error. It takes no lock: a child after fork(2) may use it.
    pub fn each_time(&self, line: &str) {
        let line = format!("{}: {line}\n", self.name);
        // The system call: write(2) of the C library may be the library's own, with a lock that is
        // held. A program without standard error is none of our business.
        let _ = rustix::io::write(std::io::stderr().as_fd(), line.as_bytes());
    }
}
