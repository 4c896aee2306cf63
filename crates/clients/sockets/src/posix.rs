//! Sockets as the C library has them: numbers of descriptors, blocking, errors.
//!
//! A socket's descriptor is an eventfd, so that it has a number of the system's and can be put in
//! any set. The port is plugged in by the first socket. Addresses of loopback stay the kernel's: a
//! socket that is bound or connected there is replaced by one of the kernel, under its number.
//!
//! After fork(2) the sockets are the parent's: a child gets `EBADF` for those that it inherits, and
//! may plug in where the parent has not.

pub mod address;
mod calls;
mod options;
mod programs;
mod resolve;
mod waits;

use std::net::IpAddr;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use interpose::forks;
use interpose::table::Table;
use libc::c_int;
use rustix::event::EventfdFlags;
use rustix::io::Errno;

use crate::SAY;
use crate::config::Config;
use crate::link;
use crate::net::Net;
use crate::stack::{Family, Id, Kind};

pub use calls::{
    accept, bind, connect, getpeername, getsockname, listen, receive, room, send, shutdown,
};
pub use options::{get_option, request, set_option};
pub use programs::{loaded, may_run};
pub use resolve::resolve;
pub use waits::Sockets;

/// The descriptors of this process that are sockets of ours.
static SOCKETS: Table<Socket> = Table::new();
/// The port; null: none is plugged in.
static NET: AtomicPtr<Net> = AtomicPtr::new(std::ptr::null_mut());
/// Held to plug in.
static PLUG: Mutex<()> = Mutex::new(());
static CONFIG: OnceLock<Option<Config>> = OnceLock::new();
/// Counts forks: sockets of an earlier number are another process's.
static GENERATION: AtomicU32 = AtomicU32::new(0);
/// The process that the sockets are of. A child of vfork(2) shares all this with its parent.
static OWNER: AtomicI32 = AtomicI32::new(0);

/// A socket option that was set, as the program gave it.
#[derive(Debug)]
pub(crate) struct Setting {
    level: c_int,
    name: c_int,
    value: Vec<u8>,
}

/// A socket of a program.
#[derive(Debug)]
pub(crate) struct Socket {
    net: &'static Net,
    id: Id,
    kind: Kind,
    /// `AF_INET` or `AF_INET6`.
    domain: c_int,
    /// `O_NONBLOCK`.
    is_nonblocking: AtomicBool,
    generation: u32,
    /// `SO_RCVTIMEO` and `SO_SNDTIMEO`, microseconds; 0: none.
    limits: [AtomicU64; 2],
    settings: Mutex<Vec<Setting>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn generation() -> u32 {
    GENERATION.load(Ordering::Relaxed)
}

/// The socket behind a descriptor.
///
/// # Errors
/// `EBADF`: it is a parent's.
fn socket(fd: RawFd) -> Result<Arc<Socket>, Errno> {
    let socket = SOCKETS.get(fd).ok_or(Errno::BADF)?;
    match socket.generation == generation() {
        true => Ok(socket),
        false => Err(Errno::BADF),
    }
}

impl Socket {
    fn limit(&self, sends: bool) -> Option<Duration> {
        let micros = self.limits[usize::from(sends)].load(Ordering::Relaxed);
        (micros > 0).then(|| Duration::from_micros(micros))
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if self.generation == generation() {
            self.net.close(self.id);
        }
    }
}

/// Takes settings from a program, in place of those of the environment. They count until the first
/// socket is opened.
///
/// # Errors
/// `EALREADY`: there are settings already.
pub fn configure(config: Config) -> Result<(), Errno> {
    CONFIG.set(Some(config)).map_err(|_| Errno::ALREADY)
}

fn config() -> Option<&'static Config> {
    let config = CONFIG.get_or_init(|| {
        Config::from_environment().unwrap_or_else(|error| {
            SAY.once(&error);
            None
        })
    });
    config.as_ref()
}

fn net() -> Option<&'static Net> {
    // SAFETY: the pointer is null, or was made of an `Arc` that is never dropped.
    unsafe { NET.load(Ordering::Acquire).as_ref() }
}

/// The port, plugged in by the first call.
///
/// # Errors
/// `ENETDOWN`, after a line that says why.
fn plug_in(config: &Config) -> Result<&'static Net, Errno> {
    if let Some(net) = net() {
        return Ok(net);
    }
    let _plug = lock(&PLUG);
    if let Some(net) = net() {
        return Ok(net);
    }
    let plugged = Net::plug_in(config.clone()).map_err(|error| {
        SAY.once(&format!("{}: {error}", config.socket.display()));
        Errno::NETDOWN
    })?;
    link::note_session(plugged.session());
    OWNER.store(own_pid(), Ordering::Relaxed);
    watch_ends();
    NET.store(Arc::into_raw(plugged).cast_mut(), Ordering::Release);
    net().ok_or(Errno::NETDOWN)
}

/// The port, plugged in.
///
/// # Errors
/// `ENETDOWN`, after a line that says why; `ENXIO`: there are no settings.
pub fn open_port() -> Result<&'static Net, Errno> {
    plug_in(config().ok_or(Errno::NXIO)?)
}

fn own_pid() -> i32 {
    rustix::process::getpid().as_raw_nonzero().get()
}

/// Whether this process is the one that the sockets are of.
fn is_owner() -> bool {
    OWNER.load(Ordering::Relaxed) == own_pid()
}

/// Notes forks, and the end of the program.
fn watch_ends() {
    static ONCE: OnceLock<()> = OnceLock::new();
    ONCE.get_or_init(|| {
        forks::at_fork(None, None, Some(is_child));
        // SAFETY: the function stays as long as the library, which is not unloaded.
        unsafe { libc::atexit(ends) };
    });
}

/// After fork(2), in the child. Only atomics and a system call: no lock can be trusted.
extern "C" fn is_child() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
    waits::ENTRIES.forget();
    NET.store(std::ptr::null_mut(), Ordering::Relaxed);
    OWNER.store(own_pid(), Ordering::Relaxed);
    if let Some(session) = link::forget_session() {
        // SAFETY: the descriptor is the library's, of which nothing in this process is used any
        // more. With it open the switch would not notice the end of the parent.
        unsafe { libc::syscall(libc::SYS_close, session) };
    }
}

/// At the end of the program: what was sent last is to arrive.
extern "C" fn ends() {
    if let Some(net) = net().filter(|_| is_owner()) {
        net.finish();
    }
}

/// socket(2). `None`: it is the kernel's.
#[must_use]
pub fn open(domain: c_int, kind: c_int, protocol: c_int) -> Option<Result<RawFd, Errno>> {
    if !matches!(domain, libc::AF_INET | libc::AF_INET6) {
        return None;
    }
    let config = config()?;
    let kind_alone = kind & !(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC);
    let stack_kind = match (kind_alone, protocol) {
        (libc::SOCK_STREAM, 0 | libc::IPPROTO_TCP) => Kind::Stream,
        (libc::SOCK_DGRAM, 0 | libc::IPPROTO_UDP) => Kind::Datagram,
        _ => {
            SAY.once(&format!(
                "a socket of type {kind_alone} and protocol {protocol} is the kernel's"
            ));
            return None;
        }
    };
    Some(plug_in(config).and_then(|net| {
        let id = net.open(stack_kind)?;
        if domain == libc::AF_INET {
            net.change(id, |options| options.only = Some(Family::Ipv4))?;
        }
        let options = (domain, kind & libc::SOCK_NONBLOCK != 0);
        insert(net, id, stack_kind, options)
    }))
}

/// Gives a socket of the stack a descriptor.
fn insert(
    net: &'static Net,
    id: Id,
    kind: Kind,
    (domain, is_nonblocking): (c_int, bool),
) -> Result<RawFd, Errno> {
    let socket = Arc::new(Socket {
        net,
        id,
        kind,
        domain,
        is_nonblocking: AtomicBool::new(is_nonblocking),
        generation: generation(),
        limits: Default::default(),
        settings: Mutex::default(),
    });
    // The next program would not know that the number is a socket: it is closed by exec(2) even
    // where the program does not request that.
    let fd = rustix::event::eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
    SOCKETS.insert(fd.as_raw_fd(), socket)?;
    Ok(fd.into_raw_fd())
}

/// Whether an address stays the kernel's.
fn is_kernels(address: IpAddr) -> bool {
    address.to_canonical().is_loopback()
}

/// Replaces a socket by one of the kernel with the same number and options, if it was not used yet
/// and the address is the kernel's. Returns whether it did.
///
/// # Errors
/// The system's refusal.
pub fn give_to_kernel(fd: RawFd, address: IpAddr) -> Result<bool, Errno> {
    if !is_kernels(address) {
        return Ok(false);
    }
    let socket = socket(fd)?;
    if !socket.net.is_fresh(socket.id) {
        return Ok(false);
    }
    let kind = match socket.kind {
        Kind::Stream => libc::SOCK_STREAM,
        Kind::Datagram => libc::SOCK_DGRAM,
    };
    let mut kind = kind | libc::SOCK_CLOEXEC;
    if socket.is_nonblocking.load(Ordering::Relaxed) {
        kind |= libc::SOCK_NONBLOCK;
    }
    // SAFETY: the call has no pointers.
    let new = unsafe { libc::syscall(libc::SYS_socket, socket.domain, kind, 0) };
    let new = RawFd::try_from(new).ok().filter(|new| *new >= 0);
    // SAFETY: the system has just returned the number.
    let new = unsafe { OwnedFd::from_raw_fd(new.ok_or(Errno::NFILE)?) };
    for setting in &*lock(&socket.settings) {
        let value = &setting.value;
        // SAFETY: the value is as long as it says. An option that the kernel refuses was taken by
        // us already, and the program has been answered.
        unsafe {
            libc::syscall(
                libc::SYS_setsockopt,
                new.as_raw_fd(),
                setting.level,
                setting.name,
                value.as_ptr(),
                value.len(),
            )
        };
    }
    SOCKETS.remove(fd);
    // SAFETY: the program's number is put in another file's place, as the program requests.
    let put = unsafe { libc::syscall(libc::SYS_dup3, new.as_raw_fd(), fd, libc::O_CLOEXEC) };
    if put < 0 {
        return Err(Errno::BADF);
    }
    waits::give_to_kernel(fd);
    Ok(true)
}
