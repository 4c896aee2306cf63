//! Switch and drivers in one process, to measure the price of the boundary between them. Not for
//! use: it keeps all its rights, and a driver that fails may end the switch.
//!
//! Its file takes the places of `lasthop-switch` and `lasthop-driver` in a folder with the other
//! programs, and it does what its name says. As a driver it only sends its link to the supervisor
//! to the switch, which runs the driver in a thread.

use std::io::{self, IoSlice, IoSliceMut, Read as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

/// How often a driver tries to reach the switch, and the pause between two tries.
const TRIES: u32 = 500;
const PAUSE: Duration = Duration::from_millis(10);

fn main() -> ExitCode {
    let name = std::env::args().next().unwrap_or_default();
    if name.ends_with("lasthop-driver") {
        return process::main("lasthop-driver", None, hand_over);
    }
    process::main("lasthop-switch", None, |link| {
        let listener = UnixListener::bind_addr(&address()?)?;
        thread::spawn(move || listener.incoming().flatten().for_each(start_driver));
        datapath::process::run(link, || Ok(()))
    })
}

/// The socket of the switch of this supervisor.
fn address() -> io::Result<SocketAddr> {
    let supervisor = std::os::unix::process::parent_id();
    SocketAddr::from_abstract_name(format!("lasthop-in-process-{supervisor}"))
}

fn connect() -> io::Result<UnixStream> {
    let address = address()?;
    for _ in 1..TRIES {
        if let Ok(stream) = UnixStream::connect_addr(&address) {
            return Ok(stream);
        }
        thread::sleep(PAUSE);
    }
    UnixStream::connect_addr(&address)
}

/// The process of a driver: sends its link to the switch, and lasts as long as the thread there.
fn hand_over(link: OwnedFd) -> io::Result<()> {
    let mut switch = connect()?;
    let fds = [link.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut message = SendAncillaryBuffer::new(&mut space);
    message.push(SendAncillaryMessage::ScmRights(&fds));
    sendmsg(
        &switch,
        &[IoSlice::new(&[0])],
        &mut message,
        SendFlags::empty(),
    )?;
    drop(link);
    switch.read(&mut [0]).map(drop)
}

fn start_driver(process: UnixStream) {
    thread::spawn(move || {
        if let Err(error) = receive_link(&process).and_then(driver::run_in_process) {
            eprintln!("in-process: {error}");
        }
        drop(process);
    });
}

fn receive_link(process: &UnixStream) -> io::Result<OwnedFd> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut message = RecvAncillaryBuffer::new(&mut space);
    recvmsg(
        process,
        &mut [IoSliceMut::new(&mut [0])],
        &mut message,
        RecvFlags::CMSG_CLOEXEC,
    )?;
    let fds = message.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(fds) => Some(fds),
        _ => None,
    });
    fds.flatten()
        .next()
        .ok_or_else(|| io::Error::other("a driver without a link"))
}
