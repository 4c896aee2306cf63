//! Descriptors of every kind that a VMM can attach to a message.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::fs::{
    MemfdFlags, Mode, OFlags, SealFlags, fcntl_add_seals, fcntl_setfl, ftruncate, memfd_create,
};
use rustix::process::{PidfdFlags, getpid, pidfd_open};
use rustix::time::{TimerfdClockId, TimerfdFlags, timerfd_create};

use super::arena::Random;
use testkit::FakeGuest;
use testkit::guest::GuestError;

type Make = fn() -> io::Result<OwnedFd>;

/// All kinds.
const KINDS: [Make; 23] = [
    || Ok(rustix::pipe::pipe()?.0),
    || Ok(rustix::pipe::pipe()?.1),
    || Ok(UnixStream::pair()?.0.into()),
    || device("/dev/zero"),
    || device("/dev/full"),
    || device("/dev/null"),
    || memfd(0),
    || memfd(1 << 20),
    || memfd(1 << 40),
    sealed,
    write_sealed,
    || hugetlb(MemfdFlags::HUGE_2MB, 2 << 20),
    || hugetlb(MemfdFlags::HUGE_1GB, 1 << 30),
    || Ok(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?),
    || {
        Ok(eventfd(
            1 << 30,
            EventfdFlags::SEMAPHORE | EventfdFlags::NONBLOCK,
        )?)
    },
    || Ok(eventfd(0, EventfdFlags::CLOEXEC)?),
    full_event,
    || Ok(epoll::create(epoll::CreateFlags::CLOEXEC)?),
    || Ok(rustix::fs::open("/", OFlags::PATH, Mode::empty())?),
    || Ok(rustix::fs::open("/", OFlags::DIRECTORY, Mode::empty())?),
    || Ok(pidfd_open(getpid(), PidfdFlags::empty())?),
    || {
        Ok(timerfd_create(
            TimerfdClockId::Monotonic,
            TimerfdFlags::CLOEXEC,
        )?)
    },
    || Ok(File::open("/proc/self/mem")?.into()),
];

/// One of every kind that this system has.
pub(super) fn all() -> Vec<OwnedFd> {
    KINDS.iter().filter_map(|make| make().ok()).collect()
}

/// One of any kind.
pub(super) fn any(random: &mut Random) -> Option<OwnedFd> {
    KINDS[random.below(KINDS.len() as u64) as usize]().ok()
}

fn device(path: &str) -> io::Result<OwnedFd> {
    let file = File::options().read(true).write(true).open(path)?;
    Ok(file.into())
}

/// A file in memory; no page of it is there yet.
pub(super) fn memfd(size: u64) -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = memfd_create("hostile", flags)?;
    ftruncate(&file, size)?;
    Ok(file)
}

fn sealed() -> io::Result<OwnedFd> {
    let file = memfd(1 << 20)?;
    fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(file)
}

fn write_sealed() -> io::Result<OwnedFd> {
    let file = memfd(1 << 20)?;
    fcntl_add_seals(&file, SealFlags::WRITE)?;
    Ok(file)
}

/// A file of huge pages, of which the pool need not have one.
pub(super) fn hugetlb(page: MemfdFlags, size: u64) -> io::Result<OwnedFd> {
    let file = memfd_create("hostile", MemfdFlags::CLOEXEC | MemfdFlags::HUGETLB | page)?;
    ftruncate(&file, size)?;
    Ok(file)
}

/// An eventfd that takes nothing more: who writes to it gets EAGAIN, and waits once [`block`] was
/// called.
pub(super) fn full_event() -> io::Result<OwnedFd> {
    let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
    rustix::io::write(&event, &(u64::MAX - 1).to_ne_bytes())?;
    Ok(event)
}

/// Takes O_NONBLOCK away, also from all copies.
pub(super) fn block(file: &OwnedFd) {
    let _ = fcntl_setfl(file, OFlags::empty());
}

/// Gives the receive queue of a guest a call descriptor that takes nothing more: who writes to it
/// waits, from the next frame on.
///
/// # Errors
/// When the system or the session refuses.
pub fn blocking_calls(guest: &mut FakeGuest) -> Result<(), GuestError> {
    let call = full_event()?;
    guest.front()?.set_vring_call(0, Some(call.as_fd()))?;
    block(&call);
    // Its driver requests an interrupt for everything.
    guest.pairs[0].nic.rx.set_notifications(true);
    Ok(())
}
