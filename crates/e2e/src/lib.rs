//! End-to-end harness: a running Lasthop, QEMU guests, testpmd.
//!
//! Everything started here dies with the test: each process gets a parent-death signal and its own
//! process group, and is killed when its handle is dropped. On a failed test the handles print the
//! end of each process's log. Only network namespaces ([`netns`]) need root.
//!
//! The harness panics where a test would have to: it is test code, and its callers are `#[test]`s.

pub mod agent;
pub mod echo;
pub mod guest;
pub mod iommu;
pub mod lasthop;
pub mod libvirt;
pub mod machine;
pub mod migration;
pub mod namespace;
pub mod nested;
pub mod netboot;
pub mod netns;
pub mod nobody;
pub mod numbered;
pub mod outside;
pub mod paths;
pub mod pcapng;
pub mod qmp;
pub mod slotgen;
pub mod statistics;
pub mod stats;
pub mod stop;
pub mod table;
pub mod testpmd;
pub mod traffic;
pub mod uplinks;

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

static MACHINE: Mutex<()> = Mutex::new(());

/// The machine, taken by one test of a file at a time: guests under emulation share two cores
/// badly, and the times that tests check mean nothing then.
pub struct Turn {
    started: Instant,
    _machine: MutexGuard<'static, ()>,
}

/// Returns whether tests that take long are to run too. If not, says so.
pub fn is_long() -> bool {
    let long = testkit::is_complete_run();
    if !long {
        eprintln!("skipped: it takes long, and runs with LASTHOP_LONG=1");
    }
    long
}

/// Returns how often a test is to repeat something: the value of this environment variable, or
/// `few` without it.
pub fn repetitions(variable: &str, few: usize) -> usize {
    let desired = std::env::var(variable).ok();
    desired.map_or(few, |n| {
        n.parse()
            .unwrap_or_else(|_| panic!("{variable} is a number"))
    })
}

/// Waits until no other test of this file uses the machine.
pub fn turn() -> Turn {
    let machine = MACHINE.lock().unwrap_or_else(PoisonError::into_inner);
    Turn {
        started: Instant::now(),
        _machine: machine,
    }
}

impl Turn {
    /// Says what the test does next, with the time since it began: the last such line before a
    /// failure is the step that failed.
    pub fn step(&self, what: &str) {
        eprintln!("{:6.1} s  {what}", self.started.elapsed().as_secs_f64());
    }
}
