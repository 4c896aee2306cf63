//! Switch and drivers in one process, to measure what the boundary between them costs. For nothing else: nobody in it gives
//! any right up, and whatever ends a driver may end the switch.
//!
//! Its file takes the places of `lasthop-switch` and `lasthop-driver` in a folder with `lasthop` and `lasthop-control`, and it
//! does what it is called. As a driver it only tells the switch, its sibling, where the link to the supervisor is; the switch
//! takes that and starts the driver as a thread.

#[path = "../src/process.rs"]
mod process;

use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::process::ExitCode;

use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

fn main() -> ExitCode {
    let name = std::env::args().next().unwrap_or_default();
    if name.ends_with("lasthop-driver") {
        return process::main("lasthop-driver", None, stand_in);
    }
    process::main("lasthop-switch", None, |link| {
        let listener = UnixListener::bind_addr(&meeting_place()?)?;
        std::thread::spawn(move || listener.incoming().flatten().for_each(adopt));
        datapath::process::run(link, || Ok(()))
    })
}

/// Where switch and drivers of one supervisor meet.
fn meeting_place() -> io::Result<SocketAddr> {
    let supervisor = std::os::unix::process::parent_id();
    SocketAddr::from_abstract_name(format!("lasthop-inside-{supervisor}"))
}

/// A driver's process: says where its link is, and lasts as long as the switch.
fn stand_in(link: OwnedFd) -> io::Result<()> {
    let mut switch = UnixStream::connect_addr(&meeting_place()?)?;
    for number in [std::process::id(), link.as_raw_fd() as u32] {
        switch.write_all(&number.to_ne_bytes())?;
    }
    switch.read(&mut [0]).map(drop)
}

/// Takes the link of a driver, and starts it. The stand-in ends with it.
fn adopt(mut stand_in: UnixStream) {
    std::thread::spawn(move || {
        if let Err(error) = take_link(&mut stand_in).and_then(driver::run_inside) {
            eprintln!("inside: {error}");
        }
        drop(stand_in);
    });
}

fn take_link(stand_in: &mut UnixStream) -> io::Result<OwnedFd> {
    let mut numbers = [[0; 4]; 2];
    for number in &mut numbers {
        stand_in.read_exact(number)?;
    }
    let [process, link] = numbers.map(i32::from_ne_bytes);
    let process = Pid::from_raw(process).ok_or(io::ErrorKind::InvalidData)?;
    let process = pidfd_open(process, PidfdFlags::empty())?;
    Ok(pidfd_getfd(&process, link, PidfdGetfdFlags::empty())?)
}
