//! The bound of a switch in user space: one thread reads frames from a TAP device, writes them to
//! another one, and decides nothing. It sleeps as soon as both are empty.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::thread::LinkNameSpaceType;

use crate::peers::bridge;

/// Names of the devices, in the order of the namespaces.
pub(super) const DEVICES: [&str; 2] = ["near0", "far0"];
/// The subcommand of this program.
pub(super) const COMMAND: &str = "one-thread";
/// Bytes of the longest frame with its header.
const BUFFER: usize = 70_000;
/// Bytes of the header in front of a frame: `struct virtio_net_hdr_mrg_rxbuf`.
const HEADER: libc::c_int = 12;
/// Reads of a device before the other one has its turn.
const TURN: usize = 64;

/// See the module.
#[derive(Debug, Args)]
pub(crate) struct OneThreadArguments {
    /// Network namespaces of the two devices.
    #[arg(num_args = 2)]
    namespaces: Vec<PathBuf>,
}

/// Carries frames until it is killed.
pub(crate) fn run(arguments: &OneThreadArguments) -> Result<()> {
    let taps = arguments.namespaces.iter().zip(DEVICES);
    let taps: Vec<File> = taps
        .map(|(at, name)| open(at, name))
        .collect::<Result<_>>()?;
    let [near, far] = &taps[..] else {
        anyhow::bail!("two namespaces are needed")
    };
    let events = epoll::create(CreateFlags::CLOEXEC)?;
    for tap in &taps {
        let flags = EventFlags::IN | EventFlags::ET;
        epoll::add(&events, tap, EventData::new_u64(0), flags)?;
    }
    let mut buffer = vec![0; BUFFER];
    loop {
        if !(carry(near, far, &mut buffer) | carry(far, near, &mut buffer)) {
            let mut one = [std::mem::MaybeUninit::uninit()];
            epoll::wait(&events, &mut one, None)?;
        }
    }
}

/// A new device in this namespace, with all offloads.
fn open(namespace: &PathBuf, name: &str) -> Result<File> {
    let kind = Some(LinkNameSpaceType::Network);
    let at = File::open(namespace).with_context(|| namespace.display().to_string())?;
    rustix::thread::move_into_link_name_space(at.as_fd(), kind)?;
    let tap = bridge::open(name, libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR)?;
    let offloads = libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6 | libc::TUN_F_TSO_ECN;
    let header = HEADER;
    // SAFETY: the first call reads an integer that lives until it has returned, the second one
    // takes its argument by value.
    let failed = unsafe {
        libc::ioctl(tap.as_raw_fd(), libc::TUNSETVNETHDRSZ, &raw const header) != 0
            || libc::ioctl(
                tap.as_raw_fd(),
                libc::TUNSETOFFLOAD,
                libc::c_ulong::from(offloads),
            ) != 0
    };
    ensure!(
        !failed,
        "offloads of {name}: {}",
        std::io::Error::last_os_error()
    );
    Ok(tap)
}

/// Writes the frames of one device to the other. Returns whether there were any.
fn carry(mut from: &File, mut to: &File, buffer: &mut [u8]) -> bool {
    for turn in 0..TURN {
        // A device that is down, as at first, is empty, too.
        let Ok(len) = from.read(buffer) else {
            return turn > 0;
        };
        // What a device does not take is lost.
        let _ = to.write(&buffer[..len]);
    }
    true
}
