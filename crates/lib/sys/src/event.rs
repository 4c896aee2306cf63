//! Event descriptors (eventfd(2)): one thread or process wakes another.

use std::io;
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::sync::OnceLock;

use rustix::event::EventfdFlags;
use rustix::fs::OFlags;
use rustix::io::Errno;

/// Creates an event descriptor that never blocks and is close-on-exec.
///
/// # Errors
/// The error of the system call.
pub fn create() -> io::Result<OwnedFd> {
    let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
    Ok(rustix::event::eventfd(0, flags)?)
}

/// Makes an event descriptor readable: adds one to its counter. A full one is readable already.
///
/// # Errors
/// The error of the system call: the descriptor is no event descriptor.
pub fn ring(event: impl AsFd) -> io::Result<()> {
    match rustix::io::write(event, &1u64.to_ne_bytes()) {
        Ok(_) | Err(Errno::AGAIN) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Sets the counter of an event descriptor to zero: it is no longer readable.
pub fn clear(event: impl AsFd) {
    // A counter that is zero already is the one error of a descriptor of `create`.
    let _ = rustix::io::read(event, &mut [0u8; 8]);
}

/// Checks that a descriptor of another process is an event descriptor, and makes it non-blocking.
/// A write to another kind of file could block or have side effects, and a look at another epoll
/// instance could take long.
///
/// Files without a name have a file system of their own. Of its kinds an event descriptor alone
/// takes eight bytes of zero, which do not change it; most take no bytes at all. Descriptors of
/// VFIO devices may take them as well: they can do no more to a device than their owner can, and
/// epoll refuses them. Until the file system is known only calls are made that the kernel answers
/// itself: another one may keep its answer back. A link in `/proc/self/fd` has the exact name, but
/// the kernel removes it when the process ends, before it reports that end.
///
/// # Errors
/// A reason, as text.
pub fn check(fd: &OwnedFd) -> Result<(), String> {
    check_again(fd)?;
    match rustix::io::write(fd, &0u64.to_ne_bytes()) {
        // A counter that the kernel has filled takes nothing.
        Ok(8) | Err(Errno::AGAIN) => Ok(()),
        Ok(_) | Err(_) => Err(NO_EVENT.into()),
    }
}

/// As [`check`], for a descriptor that a process of ours has checked and another one may watch: an
/// edge-triggered watch would take the write for an event. It must be one of the kinds that have no
/// name.
///
/// # Errors
/// A reason, as text.
pub fn check_again(fd: &OwnedFd) -> Result<(), String> {
    let cannot = |error: Errno| format!("the descriptor cannot be checked: {error}");
    // Regular files and FIFOs may be of any file system; neither is unnamed.
    if !is_special(fd) || rustix::pipe::fcntl_getpipe_size(fd).is_ok() {
        return Err(NO_EVENT.into());
    }
    if rustix::fs::fstat(fd).map_err(cannot)?.st_dev != unnamed().map_err(cannot)? {
        return Err(NO_EVENT.into());
    }
    let flags = rustix::fs::fcntl_getfl(fd).map_err(cannot)?;
    if !flags.contains(OFlags::NONBLOCK) {
        let set = rustix::fs::fcntl_setfl(fd, flags | OFlags::NONBLOCK);
        set.map_err(|error| format!("event descriptor: {error}"))?;
    }
    Ok(())
}

/// Returns whether a file is neither regular nor a directory nor a link: the kernel knows no size
/// of it. The file system is not asked.
fn is_special(fd: &OwnedFd) -> bool {
    let mut size: libc::loff_t = 0;
    // SAFETY: the call writes a `loff_t` at most.
    let known = unsafe { libc::ioctl(fd.as_raw_fd(), libc::FIOQSIZE, &raw mut size) };
    known < 0 && io::Error::last_os_error().raw_os_error() == Some(libc::ENOTTY)
}

const NO_EVENT: &str = "the descriptor is no eventfd";

/// Returns the device of the file system of files without a name.
fn unnamed() -> Result<u64, Errno> {
    static DEVICE: OnceLock<u64> = OnceLock::new();
    if let Some(device) = DEVICE.get() {
        return Ok(*device);
    }
    let event = rustix::event::eventfd(0, EventfdFlags::CLOEXEC)?;
    let device = rustix::fs::fstat(event)?.st_dev;
    Ok(*DEVICE.get_or_init(|| device))
}

#[cfg(test)]
mod tests {
    use std::os::fd::FromRawFd as _;
    use std::os::unix::fs::OpenOptionsExt as _;
    use std::time::Instant;

    use rustix::event::PollFlags;

    use super::*;
    use crate::wait;

    #[test]
    fn a_ring_is_readable_until_it_is_cleared() {
        let event = create().unwrap();
        let is_readable = || {
            let ready = wait::ready(&event, PollFlags::IN, Some(Instant::now()));
            ready.unwrap() == PollFlags::IN
        };
        assert!(!is_readable());
        clear(&event);
        ring(&event).unwrap();
        ring(&event).unwrap();
        assert!(is_readable());
        clear(&event);
        assert!(!is_readable());
    }

    #[test]
    fn a_full_counter_is_no_error() {
        let event = create().unwrap();
        rustix::io::write(&event, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        ring(&event).unwrap();
    }

    /// A check changes no counter, whatever that is, and an event descriptor does not block.
    #[test]
    fn event_descriptors_pass_the_check_unchanged() {
        for count in [0, 1, u64::MAX - 1] {
            let event = rustix::event::eventfd(0, EventfdFlags::CLOEXEC).unwrap();
            rustix::io::write(&event, &u64::to_ne_bytes(count)).unwrap();
            check(&event).unwrap();
            let mut left = [0; 8];
            let read = rustix::io::read(&event, &mut left);
            assert_eq!(read, if count == 0 { Err(Errno::AGAIN) } else { Ok(8) });
            assert_eq!(u64::from_ne_bytes(left), count);
        }
    }

    /// A switch that serves a guest watches its kicks so, and counts them.
    #[test]
    fn a_second_check_is_no_event_for_others() {
        use rustix::event::epoll;
        let event = create().unwrap();
        ring(&event).unwrap();
        let watch = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        let (data, flags) = (
            epoll::EventData::new_u64(1),
            epoll::EventFlags::IN | epoll::EventFlags::ET,
        );
        epoll::add(&watch, &event, data, flags).unwrap();
        let seen = || {
            let mut events = [std::mem::MaybeUninit::uninit(); 4];
            wait::events(&watch, &mut events, Some(std::time::Duration::ZERO))
                .unwrap()
                .len()
        };
        assert_eq!((seen(), seen()), (1, 0));
        check_again(&event).unwrap();
        assert_eq!(seen(), 0);
        check(&event).unwrap();
        assert_eq!(seen(), 1, "the first check may be");
    }

    #[test]
    fn other_files_do_not_pass_the_check() {
        let flags = rustix::fs::MemfdFlags::CLOEXEC;
        let (from, to) = rustix::pipe::pipe().unwrap();
        let (one, two) = std::os::unix::net::UnixStream::pair().unwrap();
        let clock = rustix::time::TimerfdClockId::Monotonic;
        // SAFETY: calls that return descriptors, of nobody else.
        let [signals, inotify, pidfd] = unsafe {
            let mut mask = std::mem::zeroed();
            libc::sigemptyset(&raw mut mask);
            let pidfd = libc::syscall(libc::SYS_pidfd_open, libc::getpid(), 0);
            let all = [
                libc::signalfd(-1, &raw const mask, libc::SFD_CLOEXEC),
                libc::inotify_init1(libc::IN_CLOEXEC),
                pidfd as i32,
            ];
            all.map(|fd| OwnedFd::from_raw_fd(fd))
        };
        let null = std::fs::File::options().write(true).open("/dev/null");
        let path = std::fs::File::options()
            .read(true)
            .custom_flags(libc::O_PATH)
            .open("/");
        let all = [
            ("path", path.unwrap().into()),
            ("folder", std::fs::File::open("/").unwrap().into()),
            ("null", null.unwrap().into()),
            ("memory", rustix::fs::memfd_create("m", flags).unwrap()),
            ("pipe, read", from),
            ("pipe, written", to),
            ("socket", one.into()),
            (
                "timer",
                rustix::time::timerfd_create(clock, rustix::time::TimerfdFlags::CLOEXEC).unwrap(),
            ),
            (
                "epoll",
                rustix::event::epoll::create(rustix::event::epoll::CreateFlags::CLOEXEC).unwrap(),
            ),
            ("signals", signals),
            ("inotify", inotify),
            ("process", pidfd),
        ];
        let unnamed = ["timer", "epoll", "signals", "inotify"];
        for (kind, fd) in &all {
            assert_eq!(check(fd), Err(NO_EVENT.into()), "{kind}");
            assert_eq!(check_again(fd).is_ok(), unnamed.contains(kind), "{kind}");
        }
        // Nothing was written.
        two.set_nonblocking(true).unwrap();
        let read = rustix::io::read(&two, &mut [0u8; 8]);
        assert_eq!(read, Err(Errno::AGAIN));
    }

    #[test]
    fn another_file_is_an_error() {
        let file = std::fs::File::open("/dev/null").unwrap();
        assert!(ring(&file).is_err());
    }
}
