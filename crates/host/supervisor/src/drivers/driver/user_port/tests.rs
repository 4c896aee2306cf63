//! User ports with idle processes.

use ipc::driving::{DriverKind, DriverSpec};
use ipc::link::{Link, LinkEvent};
use ipc::supervision::DriverRequest;
use rustix::thread::UnshareFlags;
use testkit::skip::skipped;

use super::super::Driver;
use super::*;
use crate::child::DriverChild;
use crate::drivers::Drivers;
use crate::drivers::tests::{network, spec};

/// A user port with an idle process, whose sockets are in this thread's namespace.
fn user_port(name: &str) -> (Driver, Link<DriverRequest, EventToDriver>) {
    let mut driver = Driver::reopen(DriverSpec {
        name: name.parse().unwrap(),
        kind: DriverKind::User {
            netns: None,
            queues: 1,
        },
        ..spec()
    });
    assert!(driver.device.is_some());
    let (child, link) = DriverChild::idle();
    link.set_nonblocking().unwrap();
    driver.child = Some(child);
    (driver, link)
}

/// The number of ports that share a namespace, as their process has it last.
fn known(link: &mut Link<DriverRequest, EventToDriver>) -> Option<u32> {
    let mut known = None;
    while let Ok(LinkEvent::Message(event, _)) = link.recv() {
        if let EventToDriver::UserNetwork(network) = event {
            known = Some(network.sharers);
        }
    }
    known
}

#[test]
fn user_ports_know_how_many_have_sockets_in_their_namespace() {
    let other = std::thread::spawn(|| {
        // SAFETY: the flag is not `FILES`; a thread of a test may have a network of its own.
        let alone = unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) };
        alone.map(|()| user_port("other"))
    });
    let Ok(other) = other.join().unwrap() else {
        return skipped("no network namespaces here");
    };
    let (drivers, links): (Vec<_>, Vec<_>) =
        [user_port("a"), user_port("b"), other].into_iter().unzip();
    let mut all = Drivers {
        all: drivers,
        ..Drivers::default()
    };
    let names = ["a", "b", "other"].map(|name| name.parse().unwrap());
    all.set_networks(names.map(|name| (name, network(&[]))).into());
    for driver in &mut all.all {
        let process = driver.child.as_ref().unwrap();
        driver.user.start(process).unwrap();
    }
    let mut links = links;
    let all_known = |links: &mut Vec<Link<_, _>>| links.iter_mut().map(known).collect();
    let at_start: Vec<_> = all_known(&mut links);
    assert_eq!(at_start, [Some(2), Some(2), Some(1)]);
    // One goes: the rest of its namespace knows it, and no other.
    all.all.remove(1);
    all.follow_networks();
    let after: Vec<_> = all_known(&mut links);
    assert_eq!(after, [Some(1), None, None]);
}
