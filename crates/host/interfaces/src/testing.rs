//! Interfaces of a test's own, where the machine lets us make them.

use std::process::Command;

use ipc::driving::{Choice, DeviceSpec};
use rustix::thread::UnshareFlags;

/// Returns the description of a device with the interface `up0` and one queue pair.
///
/// # Panics
/// Never: the name is one.
#[must_use]
pub fn spec(choice: Choice, own: bool) -> DeviceSpec {
    DeviceSpec {
        choice,
        own,
        interface: "up0".parse().expect("a name"),
        netns: None,
        address: None,
        mac: None,
        mtu: None,
        queues: 1,
    }
}

/// Runs in a network namespace of its own, with a veth pair, `up0` and `wire0`, that is up; prints
/// a note where that is impossible.
pub fn with_veth(test: impl FnOnce() + Send) {
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // SAFETY: the flag is not `FILES`.
            let own = unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) };
            let ip = |words: &str| {
                let done = Command::new("ip").args(words.split(' ')).status();
                done.is_ok_and(|status| status.success())
            };
            let made = own.is_ok()
                && ip("link add up0 type veth peer name wire0")
                && ip("link set up0 up")
                && ip("link set wire0 up");
            if made {
                test()
            } else {
                eprintln!("skipped: no network namespaces here")
            }
        });
    });
}
