//! The kernel's bridge between TAP devices, in a network namespace of its own.
//!
//! Nothing of it has a name that others see: the namespace lives as long as the descriptors of its
//! devices, so that the kernel removes it all with this process, whatever that dies of.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;
use std::path::Path;

use anyhow::{Context as _, Result, bail};

use super::{Kind, Peer, Ports};
use crate::folders;
use crate::namespace;
use crate::process::{run, words};
use crate::rules::RuleSet;

pub(super) const DEVICE: &str = "/dev/net/tun";
/// Frames that wait in a device, as in the queues of the other peers.
const QUEUE: u32 = 1024;

pub(super) fn start(ports: u32) -> Result<Peer> {
    with(ports, Vec::new())
}

/// With these commands of `tc`, for the devices `tap0`, `tap1`, ….
pub(crate) fn with(ports: u32, commands: Vec<String>) -> Result<Peer> {
    let commands = commands.iter().map(|command| format!("tc {command}"));
    after(ports, commands.collect())
}

/// With these rules of nftables.
pub(super) fn with_rules(ports: u32, rules: &RuleSet) -> Result<Peer> {
    let folder = folders::new("bridge")?;
    let file = folder.path().join("rules.nft");
    std::fs::write(&file, rules.nftables())?;
    after(ports, vec![format!("nft -f {}", file.display())])
}

/// After these commands in its namespace.
fn after(ports: u32, commands: Vec<String>) -> Result<Peer> {
    let none: [(&str, &Path); 0] = [];
    let taps = namespace::inside_new(move || {
        let taps = make(ports)?;
        for command in commands {
            run(&words(&command), &none)?;
        }
        Ok(taps)
    })?;
    Ok(Peer {
        kind: Kind::Bridge,
        lasthop: None,
        processes: Vec::new(),
        ports: Ports::Taps(taps),
        _guests: Vec::new(),
        folder: None,
    })
}

fn make(ports: u32) -> Result<Vec<File>> {
    let names: Vec<String> = (0..ports).map(|port| format!("tap{port}")).collect();
    let taps: Result<Vec<File>> = names.iter().map(|name| open(name, PLAIN)).collect();
    ip("link add br0 type bridge stp_state 0 mcast_snooping 0")?;
    for name in &names {
        ip(&format!(
            "link set {name} mtu 9000 txqueuelen {QUEUE} master br0 up"
        ))?;
    }
    ip("link set br0 up")?;
    taps
}

pub(super) fn ip(arguments: &str) -> Result<()> {
    let none: [(&str, &Path); 0] = [];
    run(&words(&format!("ip {arguments}")), &none).map(drop)
}

/// Of a TAP device that gives and takes frames as they are.
pub(crate) const PLAIN: libc::c_int = libc::IFF_TAP | libc::IFF_NO_PI;

/// `struct ifreq` of `linux/if.h`, as TUNSETIFF reads it.
#[repr(C)]
struct Request {
    name: [u8; 16],
    flags: u16,
    /// The rest of a union of 24 bytes.
    rest: [u8; 22],
}

/// A new TAP device with these flags.
pub(crate) fn open(name: &str, flags: libc::c_int) -> Result<File> {
    let mut options = File::options();
    options.read(true).write(true);
    std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, libc::O_NONBLOCK);
    let file = options.open(DEVICE).context(DEVICE)?;
    let mut request = Request {
        name: [0; 16],
        flags: u16::try_from(flags)?,
        rest: [0; 22],
    };
    request.name[..name.len()].copy_from_slice(name.as_bytes());
    // SAFETY: the request is as long as the kernel's `struct ifreq`, which is what it reads and
    // writes, and lives until the call has returned.
    if unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, &raw mut request) } != 0 {
        bail!("TAP device {name}: {}", io::Error::last_os_error());
    }
    Ok(file)
}
