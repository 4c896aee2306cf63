//! `poll`, `select` and their relatives over netmap's descriptors and others.
//!
//! A wait first syncs, as netmap's poll does, and returns at once when something is ready: without
//! a system call, if all descriptors are netmap's. Else it looks on for as long as that has been
//! cheaper than sleeping lately (crate `polling`, the rule of the switch's workers), requests
//! notifications, looks once more, and sleeps in the kernel.

use std::cell::RefCell;
use std::ffi::{c_int, c_short};
use std::os::fd::AsRawFd;
use std::sync::OnceLock;
use std::time::Duration;

use interpose::{Mask, system};
use libc::{POLLERR, POLLIN, POLLOUT, POLLRDNORM, POLLWRNORM, pollfd};
use polling::{LONGEST_LOOK, Look, SleepSample, Waiter};
use rustix::io::Errno;

use crate::device::{DEVICES, Device};
use crate::port::REDIAL;
use crate::registration::Registration;
use crate::ring::SyncResult;

/// Descriptors of a wait that are copied without an allocation.
const FEW: usize = 64;
/// Looks between two looks at descriptors of others, while looking on.
const LOOKS_PER_SYSTEM_CALL: u32 = 64;
/// Limit of a sleep until more than one slot is free: the other side may not free as many.
const PATIENCE: Duration = Duration::from_millis(1);

/// How a thread waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mode {
    Adaptive,
    Sleep,
    Spin,
}

/// Returns the mode of `LASTHOP_NETMAP_POLL`.
fn mode() -> Mode {
    static MODE: OnceLock<Mode> = OnceLock::new();
    *MODE.get_or_init(|| match std::env::var("LASTHOP_NETMAP_POLL").as_deref() {
        Ok("sleep") => Mode::Sleep,
        Ok("spin") => Mode::Spin,
        Ok("adaptive") | Err(_) => Mode::Adaptive,
        Ok(other) => {
            crate::SAY.once(&format!(
                "LASTHOP_NETMAP_POLL={other}: expected adaptive, sleep or spin"
            ));
            Mode::Adaptive
        }
    })
}

thread_local! {
    static WAITING: RefCell<Option<Waiter>> = const { RefCell::new(None) };
}

fn with_waiting<T>(act: impl FnOnce(&mut Waiter) -> T) -> Option<T> {
    // A wait within a signal handler that interrupts another does without.
    let found = WAITING.try_with(|waiting| {
        let mut waiting = waiting.try_borrow_mut().ok()?;
        let waiting = waiting
            .get_or_insert_with(|| Waiter::new(Look::Memory, LONGEST_LOOK).with_timer_slack());
        Some(act(waiting))
    });
    found.ok().flatten()
}

/// The events of a device, after the syncs that they imply (netmap(4), "SELECT, POLL, EPOLL").
pub(crate) fn look(device: &Device, events: c_short) -> c_short {
    let Some(registration) = device.registration() else {
        return POLLERR;
    };
    let wants_out = events & (POLLOUT | POLLWRNORM);
    let wants_in = events & (POLLIN | POLLRDNORM);
    let (sends_always, receives_always) = registration.always();
    let mut found = 0;
    if sends_always || wants_out != 0 {
        for ring in registration.rings(true) {
            let is_open = wants_out != 0 && found & wants_out == 0;
            if is_open || ring.has_moved() {
                found |= of_sync(ring.sync(), wants_out);
            }
        }
    }
    // A sender with room never sleeps, and would not see that the switch is gone, or has stopped.
    if registration.rings(true).iter().any(|ring| ring.is_stuck()) {
        device.drain();
        registration.tend();
    }
    if receives_always || wants_in != 0 {
        for ring in registration.rings(false) {
            found |= of_sync(ring.sync(), wants_in);
        }
    }
    found
}

fn of_sync(synced: Result<SyncResult, Errno>, wanted: c_short) -> c_short {
    match synced {
        Ok(SyncResult::Ready) => wanted,
        Ok(SyncResult::Nothing | SyncResult::Busy) => 0,
        Err(_) => POLLERR,
    }
}

/// Requests notifications for the events of a device. Returns `None` if there is something to look
/// at already, else whether more than one slot is waited for.
fn request(registration: &Registration, events: c_short, patient: bool) -> Option<bool> {
    let mut is_patient = false;
    if events & (POLLOUT | POLLWRNORM) != 0 {
        for ring in registration.rings(true) {
            is_patient |= ring.request(patient)? > 1;
        }
    }
    let receives = events & (POLLIN | POLLRDNORM) != 0 || registration.always().1;
    if receives {
        for ring in registration.rings(false) {
            ring.request(false)?;
        }
    }
    Some(is_patient)
}

/// Looks at all devices; returns how many have events.
fn look_all(fds: &mut [pollfd]) -> usize {
    let mut ready = 0;
    for fd in fds {
        if let Some(device) = DEVICES.get(fd.fd) {
            fd.revents = look(&device, fd.events);
            ready += usize::from(fd.revents != 0);
        }
    }
    ready
}

/// Looks at descriptors that are not netmap's, and waits for nothing. `copy` has room for all.
fn look_at_others(fds: &mut [pollfd], copy: &mut [pollfd]) -> Result<usize, Errno> {
    let mut any = false;
    for (to, from) in copy.iter_mut().zip(&*fds) {
        *to = *from;
        if DEVICES.is_ours(from.fd) {
            to.fd = -1;
        } else {
            any |= from.fd >= 0;
        }
    }
    if !any {
        return Ok(0);
    }
    let ready = system::poll(copy, Some(Duration::ZERO), Mask::NONE)?;
    for (to, from) in fds.iter_mut().zip(&*copy) {
        if from.fd >= 0 {
            to.revents = from.revents;
        }
    }
    Ok(ready)
}

/// ppoll(2) over descriptors, netmap's among them. `limit`: `None` waits without end.
///
/// # Errors
/// Those of ppoll(2).
pub fn poll(fds: &mut [pollfd], limit: Option<Duration>, mask: Mask) -> Result<usize, Errno> {
    let none = pollfd {
        fd: -1,
        events: 0,
        revents: 0,
    };
    if fds.len() <= FEW {
        let mut copy = [none; FEW];
        let copy = &mut copy[..fds.len()];
        wait(fds, copy, limit, mask)
    } else {
        wait(fds, &mut vec![none; fds.len()], limit, mask)
    }
}

fn wait(
    fds: &mut [pollfd],
    copy: &mut [pollfd],
    limit: Option<Duration>,
    mask: Mask,
) -> Result<usize, Errno> {
    for fd in &mut *fds {
        fd.revents = 0;
    }
    let ready = look_all(fds);
    let is_over = ready > 0 || limit == Some(Duration::ZERO);
    if is_over {
        note_ready(ready);
        tend_if_due(fds);
        return Ok(ready + look_at_others(fds, copy)?);
    }
    let end = limit.and_then(|limit| sys::time::monotonic().checked_add(limit));
    let mut patient = true;
    loop {
        if let Some(ready) = look_on(fds, copy, end)? {
            return Ok(ready);
        }
        let Some(is_patient) = request_all(fds, patient) else {
            let ready = look_all(fds);
            if ready > 0 {
                note_ready(ready);
                return Ok(ready + look_at_others(fds, copy)?);
            }
            patient = false;
            continue;
        };
        let left = end.map(|end| end.saturating_sub(sys::time::monotonic()));
        let others = sleep(fds, copy, sleep_limit(fds, left, is_patient), mask)?;
        patient = false;
        let ready = look_all(fds) + others;
        if ready > 0 {
            note_ready(ready);
            return Ok(ready);
        }
        if end.is_some_and(|end| sys::time::monotonic() >= end) {
            return Ok(0);
        }
    }
}

/// Looks at the connections of a program that finds something in every wait, and so never sleeps.
#[inline]
fn tend_if_due(fds: &[pollfd]) {
    for device in fds.iter().filter_map(|fd| DEVICES.get(fd.fd)) {
        device.tend_if_due();
    }
}

/// Notes for the adaptive rule that something was there.
#[inline]
fn note_ready(ready: usize) {
    if ready > 0 && mode() == Mode::Adaptive {
        with_waiting(Waiter::found);
    }
}

/// Looks on as the mode says. Returns the number of ready descriptors, or `None` when it is time to
/// sleep.
fn look_on(
    fds: &mut [pollfd],
    copy: &mut [pollfd],
    end: Option<Duration>,
) -> Result<Option<usize>, Errno> {
    let mode = mode();
    let mut looks: u32 = 0;
    loop {
        let now = match mode {
            Mode::Sleep => return Ok(None),
            _ => sys::time::monotonic(),
        };
        // A program that spins has a core of its own.
        if mode == Mode::Adaptive && with_waiting(|waiting| waiting.looks_on(now)) != Some(true) {
            return Ok(None);
        }
        if end.is_some_and(|end| now >= end) {
            return Ok(Some(0));
        }
        if mode == Mode::Spin {
            std::hint::spin_loop();
        }
        let mut ready = look_all(fds);
        looks = looks.wrapping_add(1);
        if looks.is_multiple_of(LOOKS_PER_SYSTEM_CALL) {
            ready += look_at_others(fds, copy)?;
            for device in fds.iter().filter_map(|fd| DEVICES.get(fd.fd)) {
                device.drain();
            }
        }
        if ready > 0 {
            note_ready(ready);
            return Ok(Some(ready));
        }
    }
}

fn request_all(fds: &[pollfd], patient: bool) -> Option<bool> {
    let mut is_patient = false;
    for fd in fds {
        if let Some(device) = DEVICES.get(fd.fd)
            && let Some(registration) = device.registration()
        {
            is_patient |= request(registration, fd.events, patient)?;
        }
    }
    Some(is_patient)
}

/// The longest sleep: a lost connection is dialled again, and a sender that waits for several slots
/// does not wait without end.
fn sleep_limit(fds: &[pollfd], left: Option<Duration>, is_patient: bool) -> Option<Duration> {
    let mut limit = left;
    let mut at_most = |most: Duration| limit = Some(limit.map_or(most, |limit| limit.min(most)));
    if is_patient {
        at_most(PATIENCE);
    }
    for device in fds.iter().filter_map(|fd| DEVICES.get(fd.fd)) {
        if let Some(registration) = device.registration()
            && !registration.is_connected()
            && !registration.tend()
        {
            at_most(REDIAL);
        }
    }
    limit
}

/// Sleeps until a descriptor is ready; takes the events of devices. The caller looks at their rings
/// then. Returns the number of others that are ready.
fn sleep(
    fds: &mut [pollfd],
    copy: &mut [pollfd],
    limit: Option<Duration>,
    mask: Mask,
) -> Result<usize, Errno> {
    let measured = measure_sleep();
    let slept = match fds {
        [fd] if DEVICES.is_ours(fd.fd) => sleep_on_one(fd.fd, limit, mask),
        _ => sleep_on_all(fds, copy, limit, mask),
    };
    if let Some(measured) = measured {
        with_waiting(|waiting| waiting.slept(measured));
    }
    slept
}

/// Measures the price of a sleep, now and then.
fn measure_sleep() -> Option<SleepSample> {
    if mode() != Mode::Adaptive {
        return None;
    }
    with_waiting(Waiter::before_sleep)
}

/// One system call: the epoll instance of a device is waited for directly.
fn sleep_on_one(fd: c_int, limit: Option<Duration>, mask: Mask) -> Result<usize, Errno> {
    let Some(device) = DEVICES.get(fd) else {
        return Ok(0);
    };
    let mut events = [libc::epoll_event { events: 0, u64: 0 }; 8];
    let count = system::epoll_wait(device.epoll().as_raw_fd(), &mut events, limit, mask)?;
    device.handle(events[..count].iter().map(|event| event.u64));
    Ok(0)
}

fn sleep_on_all(
    fds: &mut [pollfd],
    copy: &mut [pollfd],
    limit: Option<Duration>,
    mask: Mask,
) -> Result<usize, Errno> {
    for (to, from) in copy.iter_mut().zip(&*fds) {
        *to = *from;
        if DEVICES.is_ours(from.fd) {
            to.events = POLLIN;
        }
    }
    system::poll(copy, limit, mask)?;
    let mut others = 0;
    for (to, from) in fds.iter_mut().zip(&*copy) {
        if let Some(device) = DEVICES.get(to.fd) {
            if from.revents != 0 {
                device.drain();
            }
        } else {
            to.revents = from.revents;
            others += usize::from(from.revents != 0);
        }
    }
    Ok(others)
}
