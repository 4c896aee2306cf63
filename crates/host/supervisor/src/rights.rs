//! Rights that the supervisor needs only once: those to load BPF programs.
//!
//! With them an attacker who controls the supervisor could read the kernel's memory. They are given
//! up before the first message of another process is read; a successor in an upgrade gets the
//! loaded programs instead.

use std::io;

use process::sandbox::{self, CapabilitySet};
use rustix::net::{AddressFamily, SocketType, socket};

/// Gives up the rights to load BPF programs, and bpf(2). What fails is logged.
///
/// `AF_XDP` sockets, where they are possible, need a program for each interface, which may be added
/// at any time: there `CAP_BPF` and the system call stay.
pub(super) fn give_up() {
    let xdp = socket(AddressFamily::XDP, SocketType::RAW, None).is_ok();
    let given_up = if xdp {
        sandbox::give_up(CapabilitySet::PERFMON)
    } else {
        without_bpf()
    };
    if let Err(error) = given_up {
        tracing::warn!("the rights to load BPF programs cannot be given up: {error}");
    }
}

fn without_bpf() -> io::Result<()> {
    sandbox::give_up(CapabilitySet::BPF | CapabilitySet::PERFMON)?;
    sandbox::filter::refuse(libc::SYS_bpf)
}
