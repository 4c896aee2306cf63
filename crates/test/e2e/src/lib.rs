//! End-to-end harness: a running Lasthop, QEMU guests, testpmd.
//!
//! Everything started here dies with the test: each process gets a parent-death signal and its own
//! process group, and is killed when its handle is dropped. On a failed test the handles print the
//! end of each process's log. Only network namespaces (`testkit::netns`) need root.
//!
//! The harness panics where a test would have to: it is test code, and its callers are `#[test]`s.

pub mod agent;
pub mod documents;
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
pub mod nobody;
pub mod numbered;
pub mod outside;
pub mod paths;
pub mod pcapng;
pub mod qmp;
pub mod slotgen;
pub mod sockets;
pub mod statistics;
pub mod stats;
pub mod stop;
pub mod table;
pub mod testpmd;
pub mod traffic;
pub mod uplinks;

pub use testkit::turn::{Turn, beside, machine};

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
