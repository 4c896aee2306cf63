//! Descriptors whose close waits: what a hostile process sends to have another one wait.

use std::ffi::CStr;
use std::fs::File;
use std::io::{self, Write};
use std::mem::MaybeUninit;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
use rustix::mount::{
    MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_change, unmount,
};
use rustix::net::sockopt::{
    set_socket_linger, set_socket_recv_buffer_size, set_socket_send_buffer_size,
};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use rustix::process::{Pid, WaitOptions, waitpid};
use rustix::thread::{UnshareFlags, unshare_unsafe};

use crate::frontend::wire;
use crate::wait::wait_until;

/// Time that a close of a TCP socket waits.
const LINGER: Duration = Duration::from_secs(60);
/// Bytes of its buffers, as far as the system allows.
const SMALL: usize = 4096;

/// A TCP socket whose last close waits for a minute, with its peer, which does not read; or a Unix
/// socket that holds one.
#[derive(Debug)]
pub struct Lingering {
    socket: OwnedFd,
    peers: Vec<OwnedFd>,
}

impl Lingering {
    /// Connects to itself over the loopback interface, and sends what the peer will not read.
    ///
    /// # Errors
    /// Those of the sockets.
    pub fn new() -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        // Small buffers, so that a test can have many.
        set_socket_recv_buffer_size(&listener, SMALL)?;
        let mut socket = TcpStream::connect(listener.local_addr()?)?;
        set_socket_send_buffer_size(&socket, SMALL)?;
        let (peer, _) = listener.accept()?;
        set_socket_linger(&socket, Some(LINGER))?;
        socket.set_nonblocking(true)?;
        while socket.write(&[0; 1 << 16]).is_ok() {}
        Ok(Self {
            socket: socket.into(),
            peers: vec![peer.into()],
        })
    }

    /// Moves the descriptor into the queue of a Unix socket, which takes its place.
    ///
    /// # Errors
    /// Those of the sockets.
    pub fn queued(self) -> io::Result<Self> {
        let (one, other) = UnixStream::pair()?;
        wire::send(&other, b"x", &[self.socket.as_fd()]).map_err(io::Error::other)?;
        let mut peers = self.peers;
        peers.push(other.into());
        let socket = one.into();
        Ok(Self { socket, peers })
    }

    /// Returns the descriptor.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Closes the descriptor, of which another process has a copy or a message holds one: the close
    /// of the last waits. Returns what must stay open for that.
    #[must_use]
    pub fn into_peers(self) -> Vec<OwnedFd> {
        self.peers
    }

    /// Closes all without a wait.
    pub fn defuse(self) {
        let Self { socket, peers } = self;
        drop(peers);
        drop(socket);
    }
}

/// Operations of FUSE (`enum fuse_opcode` in `linux/fuse.h`).
mod op {
    pub(super) const GETATTR: u32 = 3;
    pub(super) const OPEN: u32 = 14;
    pub(super) const RELEASE: u32 = 18;
    pub(super) const FLUSH: u32 = 25;
    pub(super) const INIT: u32 = 26;
}

/// Bytes of `fuse_in_header`.
const IN_HEADER: usize = 40;
/// Bytes of the longest request, as the system demands.
const REQUEST: usize = 128 * 1024;
/// Most closes that wait.
const CLOSES: usize = 1024;
/// Time between two looks at what the processes share: 5 milliseconds.
const TICK: Duration = Duration::from_millis(5);
/// Time after which the daemon ends by itself, and with it all waits: 90 seconds.
const LIFETIME: Duration = Duration::from_secs(90);

/// Memory that a test and its processes share.
#[derive(Debug, Default)]
struct Shared {
    /// Messages that were sent, plus one when all were.
    sent: AtomicU32,
    waiting: AtomicU32,
    released: AtomicBool,
}

/// A file system of one file, whose daemon does not answer a close of it until [`Stuck::release`].
///
/// Each process that has the file waits when it ends, and each child of such a process in exec(2).
/// So the test has none: one process is the daemon, and another one sends.
#[derive(Debug)]
pub struct Stuck {
    shared: &'static Shared,
    children: Vec<Pid>,
}

impl Stuck {
    /// Mounts the file system, in a mount namespace that ends with the file, and sends each of
    /// these messages with the file. Returns how many the system took. It needs root and
    /// `/dev/fuse`.
    ///
    /// # Errors
    /// Those of the system.
    pub fn send(messages: &[(BorrowedFd<'_>, &[u8])]) -> io::Result<(Self, usize)> {
        let shared = share()?;
        // The namespace is the thread's alone, and so is the mount.
        let children = std::thread::scope(|scope| {
            let started = scope.spawn(|| start(shared, messages));
            let failed = |_| io::Error::other("the mount failed");
            started.join().map_err(failed)?
        })?;
        let sent = shared.sent.load(SeqCst) as usize - 1;
        Ok((Self { shared, children }, sent))
    }

    /// Returns the number of closes that have waited until [`Stuck::release`].
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.shared.waiting.load(SeqCst) as usize
    }

    /// Ends the daemon, and with it all waits.
    pub fn release(&self) {
        self.shared.released.store(true, SeqCst);
    }
}

impl Drop for Stuck {
    fn drop(&mut self) {
        self.release();
        for child in &self.children {
            // It ends in some milliseconds.
            let _ = waitpid(Some(*child), WaitOptions::empty());
        }
    }
}

/// Mounts the file system, and starts the daemon and the process that sends.
fn start(shared: &Shared, messages: &[(BorrowedFd<'_>, &[u8])]) -> io::Result<Vec<Pid>> {
    let device = File::options().read(true).write(true).open("/dev/fuse")?;
    let place = mount_at(&device)?;
    let path = std::ffi::CString::new(place.path().as_os_str().as_encoded_bytes())?;
    // SAFETY: both children make system calls only, on memory of their stacks, until their ends.
    let children = unsafe {
        let daemon = match libc::fork() {
            0 => serve(&device, shared),
            daemon => daemon,
        };
        drop(device);
        let sender = match libc::fork() {
            0 => send_all(&path, messages, shared),
            sender => sender,
        };
        [daemon, sender].map(Pid::from_raw)
    };
    let children = children.into_iter().flatten().collect();
    wait_until("all messages", || shared.sent.load(SeqCst) > 0);
    // The file system stays as long as the file is open.
    unmount(place.path(), UnmountFlags::DETACH)?;
    Ok(children)
}

/// The process that sends: until the daemon is released.
fn send_all(path: &CStr, messages: &[(BorrowedFd<'_>, &[u8])], shared: &Shared) -> ! {
    let file = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
    let mut sent = 1;
    for (socket, bytes) in messages {
        let Ok(file) = &file else { break };
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let files = [file.as_fd()];
        control.push(SendAncillaryMessage::ScmRights(&files));
        let (bytes, flags) = ([io::IoSlice::new(bytes)], SendFlags::NOSIGNAL);
        sent += u32::from(sendmsg(socket, &bytes, &mut control, flags).is_ok());
    }
    shared.sent.store(sent, SeqCst);
    while !shared.released.load(SeqCst) {
        std::thread::sleep(TICK);
    }
    // SAFETY: the call ends the child, without the handlers of the process that it copied.
    unsafe { libc::_exit(0) }
}

/// Returns memory that a child of this process shares.
fn share() -> io::Result<&'static Shared> {
    let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
    // SAFETY: a new mapping of zeros, never unmapped, which are a valid value of its atomics.
    unsafe {
        let base = mmap_anonymous(std::ptr::null_mut(), size_of::<Shared>(), access, flags)?;
        Ok(&*base.cast::<Shared>())
    }
}

/// Mounts the file system over a file, in a new mount namespace; returns the file.
fn mount_at(device: &File) -> io::Result<tempfile::NamedTempFile> {
    // SAFETY: only this thread gets new namespaces; it has no descriptor table of its own.
    unsafe { unshare_unsafe(UnshareFlags::NEWNS | UnshareFlags::FS)? };
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    mount_change("/", private)?;
    let place = tempfile::NamedTempFile::new()?;
    let number = device.as_raw_fd();
    let options = format!("fd={number},rootmode=100644,user_id=0,group_id=0,allow_other");
    let options = std::ffi::CString::new(options)?;
    let (path, none) = (place.path(), MountFlags::empty());
    mount("stuck", path, "fuse", none, options.as_c_str())?;
    Ok(place)
}

/// The daemon: until it is released, the file system is gone, or its time is over.
fn serve(device: &File, shared: &Shared) -> ! {
    // SAFETY: the calls take numbers; the child needs no descriptor but the device.
    unsafe {
        let number = device.as_raw_fd() as libc::c_uint;
        libc::syscall(libc::SYS_close_range, 0, number - 1, 0);
        libc::syscall(libc::SYS_close_range, number + 1, libc::c_uint::MAX, 0);
        libc::alarm(LIFETIME.as_secs() as libc::c_uint);
    }
    let (mut request, mut closes, mut number) = ([0; REQUEST], [0; CLOSES], 0);
    loop {
        if shared.released.load(SeqCst) {
            closes[..number]
                .iter()
                .for_each(|unique| answer(device, *unique, &[]));
            number = 0;
        }
        let mut ready = [PollFd::new(device, PollFlags::IN)];
        let soon = Timespec {
            tv_sec: 0,
            tv_nsec: TICK.subsec_nanos().into(),
        };
        match poll(&mut ready, Some(&soon)) {
            Ok(0) => continue,
            Ok(_) => {}
            Err(_) => break,
        }
        let Ok(len @ IN_HEADER..) = rustix::io::read(device, &mut request[..]) else {
            break;
        };
        let request = &request[..len];
        let (opcode, unique) = (le(&request[4..8]) as u32, le(&request[8..16]));
        match opcode {
            op::INIT => answer(device, unique, &init()),
            op::GETATTR => answer(device, unique, &attributes()),
            op::OPEN => answer(device, unique, &[0; 16]),
            op::FLUSH if number < CLOSES => {
                closes[number] = unique;
                number += 1;
                shared.waiting.fetch_add(1, SeqCst);
            }
            op::FLUSH | op::RELEASE => answer(device, unique, &[]),
            // FORGET and INTERRUPT have no answer; the others are not needed.
            _ => {}
        }
    }
    // SAFETY: the call ends the child, without the handlers of the process that it copied.
    unsafe { libc::_exit(0) }
}

fn le(bytes: &[u8]) -> u64 {
    let digits = bytes.iter().rev();
    digits.fold(0, |sum, byte| sum << 8 | u64::from(*byte))
}

/// `fuse_init_out`: version 7.31, small reads and writes, no features.
fn init() -> [u8; 64] {
    let mut bytes = [0; 64];
    for (at, word) in [(0, 7u32), (4, 31), (8, 4096), (20, 4096)] {
        bytes[at..at + 4].copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

/// `fuse_attr_out` of a regular file: inode 1, with one link.
fn attributes() -> [u8; 104] {
    let mut bytes = [0; 104];
    bytes[16] = 1;
    bytes[76..80].copy_from_slice(&0o100_644_u32.to_le_bytes());
    bytes[80] = 1;
    bytes
}

fn answer(device: &File, unique: u64, payload: &[u8]) {
    let mut header = [0; 16];
    header[..4].copy_from_slice(&(16 + payload.len() as u32).to_le_bytes());
    header[8..].copy_from_slice(&unique.to_le_bytes());
    let parts = [io::IoSlice::new(&header), io::IoSlice::new(payload)];
    // The request may have been withdrawn.
    let _ = rustix::io::writev(device, &parts);
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn a_close_waits_for_the_daemon() {
        if !rustix::process::geteuid().is_root() || !Path::new("/dev/fuse").exists() {
            return crate::skip::skipped("mounting a file system takes root and /dev/fuse");
        }
        let (ours, theirs) = UnixStream::pair().unwrap();
        let message = wire::packed(1, 1, &[]);
        let (stuck, sent) = match Stuck::send(&[(theirs.as_fd(), &message)]) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                return crate::skip::skipped(format!("no file system can be mounted: {error}"));
            }
            mounted => mounted.unwrap(),
        };
        assert_eq!(sent, 1);
        let closer = std::thread::spawn(move || {
            let received = wire::receive(&ours).expect("a message");
            assert_eq!(received.fds.len(), 1);
        });
        wait_until("a close", || stuck.waiting() == 1);
        assert!(!closer.is_finished());
        stuck.release();
        closer.join().unwrap();
    }
}
