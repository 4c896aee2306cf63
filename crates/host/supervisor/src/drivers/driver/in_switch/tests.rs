//! Interfaces in the switch, in a network namespace of their own. Each test is skipped where none
//! can be made.

use std::fs::File;
use std::os::fd::AsFd;
use std::process::Command;
use std::time::{Duration, Instant};

use interfaces::testing::{spec, with_veth};
use ipc::driving::{BackEnd, DeviceSpec, DriverCounters, DriverKind, DriverState};
use ipc::forwards::ForwardReach;

use super::*;
use crate::binaries::Binaries;
use crate::drivers::Drivers;
use crate::record::{IncomingFds, OutgoingFds};

const PORT: PortId = PortId(3);

/// The driver of `up0`, which the switch serves.
fn packet() -> DriverSpec {
    driver_of(spec(Choice::Packet, false))
}

fn driver_of(device: DeviceSpec) -> DriverSpec {
    DriverSpec {
        port: PORT,
        name: "p".parse().unwrap(),
        kind: DriverKind::Interface(device),
        process: false,
        prefilter: ipc::driving::PrefilterChoice::Off,
        cpu_weight: None,
    }
}

/// The own TAP device `own0` with this number of queue pairs.
fn own_tap(queues: u16) -> DriverSpec {
    driver_of(DeviceSpec {
        interface: "own0".parse().unwrap(),
        queues,
        ..spec(Choice::Auto, true)
    })
}

fn counters(frames: u64) -> DriverCounters {
    DriverCounters::from_array([0, 0, frames, 1, 0, 0])
}

fn drivers(spec: DriverSpec) -> Drivers {
    let mut drivers = Drivers::default();
    drivers.set(vec![spec]).unwrap();
    drivers
}

/// Switches features of `up0`.
fn ethtool(words: &str) {
    let words = words.split(' ');
    let done = Command::new("ethtool")
        .args(["-K", "up0"])
        .args(words)
        .status();
    assert!(done.unwrap().success());
}

fn ip(words: &str) {
    let done = Command::new("ip").args(words.split(' ')).status().unwrap();
    assert!(done.success(), "ip {words}");
}

impl Drivers {
    /// Returns the messages to the switch.
    fn says(&mut self) -> Vec<Reply> {
        self.poll(&Binaries::of_nothing(), None)
    }

    /// Dials for the port; returns the only message to the switch.
    fn dials(&mut self, is_quarantined: bool) -> Reply {
        assert!(self.dial(PORT, is_quarantined));
        let mut all = self.says();
        assert_eq!(all.len(), 1, "{all:?}");
        all.remove(0)
    }

    /// Dials for the port, which the switch gets; returns its queues.
    fn given(&mut self) -> Vec<ForeignFd> {
        let Reply { event, fds } = self.dials(false);
        let path = ipc::driving::address("p");
        match event {
            EventToSwitch::Interface {
                port, path: sent, ..
            } => assert_eq!((port, sent), (PORT, path)),
            other => panic!("{other:?}"),
        }
        fds
    }

    /// Returns why the switch must close the interface.
    fn close_reason(&mut self) -> String {
        let mut all = self.says();
        match all.pop().map(|reply| reply.event) {
            Some(EventToSwitch::CloseInterface { port, reason }) if all.is_empty() => {
                assert_eq!(port, PORT);
                reason
            }
            other => panic!("{all:?}, {other:?}"),
        }
    }

    fn state(&self) -> DriverState {
        self.states().remove(0)
    }
}

/// Messages about the interface that a new switch has received, and the queues in them.
type Received = Vec<(EventToSwitch, usize)>;

impl Drivers {
    /// Offers the interfaces to a new switch with room for this number of messages; returns those
    /// that it gets.
    fn offers(&mut self, is_quarantined: bool, room: usize) -> Received {
        self.offer_interfaces(|port| port == PORT && is_quarantined);
        self.sends(room)
    }

    fn sends(&mut self, room: usize) -> Received {
        let got = std::cell::RefCell::new(Received::new());
        let send = |event: &EventToSwitch, fds: &[std::os::fd::BorrowedFd<'_>]| {
            let mut got = got.borrow_mut();
            if got.len() == room {
                return Err(std::io::ErrorKind::WouldBlock.into());
            }
            got.push((event.clone(), fds.len()));
            Ok(())
        };
        self.send_offers(send).unwrap();
        got.into_inner()
    }
}

fn is_interface((event, _): &(EventToSwitch, usize)) -> bool {
    let address = ipc::driving::address("p");
    matches!(event, EventToSwitch::Interface { port: PORT, path, .. } if *path == address)
}

/// Returns the identity of an open file.
fn inode(fd: impl AsFd) -> u64 {
    rustix::fs::fstat(fd).unwrap().st_ino
}

fn error_of(reply: Reply) -> String {
    assert!(reply.fds.is_empty());
    match reply.event {
        EventToSwitch::Dialed { error, .. } => error.unwrap(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_dial_gives_the_switch_the_queues_and_starts_no_process() {
    with_veth(|| {
        let mut drivers = drivers(packet());
        let reply = drivers.dials(false);
        let EventToSwitch::Interface { interface, .. } = reply.event else {
            panic!("{reply:?}");
        };
        assert_eq!((interface.back_end, reply.fds.len()), (BackEnd::Packet, 1));
        let state = drivers.state();
        assert_eq!(
            (state.in_switch, state.pid, state.reason),
            (true, None, None)
        );
        assert!(drivers.says().is_empty() && drivers.processes().next().is_none());
    });
}

#[test]
fn counters_continue_over_interfaces_and_switches() {
    with_veth(|| {
        let mut drivers = drivers(packet());
        let frames = |drivers: &Drivers| drivers.state().counters.received.frames;
        drivers.count_interface(PORT, counters(100));
        assert_eq!(frames(&drivers), 0, "it has none yet");
        drivers.given();
        drivers.count_interface(PORT, counters(3));
        drivers.count_interface(PORT, counters(5));
        drivers.count_interface(PortId(4), counters(100));
        assert_eq!(frames(&drivers), 5);
        drivers.lose_interface(PORT, "a reason", false);
        drivers.count_interface(PORT, counters(100));
        drivers.given();
        drivers.count_interface(PORT, counters(2));
        assert_eq!(frames(&drivers), 7);
        // The switch dials without a word about the interface that it had.
        drivers.given();
        drivers.count_interface(PORT, counters(4));
        assert_eq!(frames(&drivers), 11);
        drivers.lose_switch();
        assert!(!drivers.state().in_switch);
        drivers.given();
        assert_eq!(frames(&drivers), 11);
        // Another driver of the port continues them.
        let other = driver_of(DeviceSpec {
            queues: 2,
            ..spec(Choice::Packet, false)
        });
        drivers.count_interface(PORT, counters(1));
        drivers.set(vec![other]).unwrap();
        assert_eq!(frames(&drivers), 12);
    });
}

#[test]
fn a_dial_of_a_dead_switch_is_not_answered() {
    with_veth(|| {
        let mut drivers = drivers(packet());
        assert!(drivers.dial(PORT, false));
        drivers.lose_switch();
        assert!(drivers.says().is_empty());
    });
}

#[test]
fn the_next_supervisor_knows_that_the_switch_has_the_interface() {
    with_veth(|| {
        let mut before = drivers(packet());
        before.given();
        before.count_interface(PORT, counters(3));
        let mut passed = before.pass(&mut OutgoingFds::default());
        assert!(passed[0].in_switch);
        // It would take descriptors.
        passed[0].device = None;
        let mut fds = IncomingFds::new(Vec::new()).unwrap();
        let mut next = Drivers::take(passed, ForwardReach::default(), &mut fds).unwrap();
        next.count_interface(PORT, counters(4));
        let state = next.state();
        assert_eq!((state.in_switch, state.counters), (true, counters(4)));
        next.set(Vec::new()).unwrap();
        assert_eq!(next.close_reason(), "its driver was removed or replaced");
    });
}

#[test]
fn a_lost_interface_has_a_printable_reason_and_is_opened_again() {
    with_veth(|| {
        let mut drivers = drivers(packet());
        let first = inode(&drivers.given()[0]);
        let long = format!("it is\ngone {}", "x".repeat(10_000));
        drivers.lose_interface(PORT, &long, false);
        let state = drivers.state();
        let reason = state.reason.unwrap();
        assert!(
            !state.in_switch && reason.starts_with("it isgone x"),
            "{reason}"
        );
        assert_eq!(reason.len(), ipc::driving::REASON_CHARS_MAX);
        assert_eq!(inode(&drivers.given()[0]), first, "it stays open");
        assert_eq!(drivers.state().reason, None);
        drivers.lose_interface(PORT, "gone", true);
        assert_ne!(inode(&drivers.given()[0]), first, "it is opened again");
        // Ports without an interface in the switch lose nothing.
        drivers.lose_switch();
        let before = drivers.state();
        for port in [PORT, PortId(4)] {
            drivers.lose_interface(port, "a lie", true);
        }
        assert_eq!(drivers.state(), before);
    });
}

#[test]
fn a_port_waits_for_an_interface_that_is_down_or_removed() {
    with_veth(|| {
        let mut drivers = drivers(packet());
        drivers.given();
        ip("link set up0 down");
        drivers.lose_interface(PORT, "it is down", false);
        let error = error_of(drivers.dials(false));
        assert_eq!(error, "interface up0 is down");
        assert_eq!(drivers.state().reason, Some(error));
        ip("link set up0 up");
        drivers.given();
        ip("link del up0");
        drivers.lose_interface(PORT, "it was removed", true);
        let error = error_of(drivers.dials(false));
        assert!(error.contains("No such device"), "{error}");
        ip("link add up0 type veth peer name wire1");
        ip("link set up0 up");
        drivers.given();
    });
}

#[test]
fn a_port_goes_to_a_process_and_back_at_run_time() {
    with_veth(|| {
        let mut drivers = drivers(packet());
        drivers.given();
        drivers.count_interface(PORT, counters(3));
        let with_process = DriverSpec {
            process: true,
            ..packet()
        };
        drivers.set(vec![with_process.clone()]).unwrap();
        assert_eq!(drivers.close_reason(), "its driver was changed");
        assert!(drivers.says().is_empty(), "once");
        // Its last ones come before it dials.
        drivers.count_interface(PORT, counters(4));
        assert_eq!(drivers.state().counters, counters(4));
        let reply = drivers.dials(false);
        assert!(
            matches!(reply.event, EventToSwitch::Dialed { .. }),
            "{reply:?}"
        );
        let state = drivers.state();
        assert_eq!((state.in_switch, state.counters), (false, counters(4)));
        // Its process, if one could be started here, goes.
        drivers.set(vec![packet()]).unwrap();
        assert!(drivers.says().is_empty(), "the switch has no copies");
        drivers.given();
        assert_eq!(drivers.state().counters, counters(4));
        assert_eq!(drivers.state().pid, None);
        // A dial that crosses the request makes it void.
        drivers.set(vec![with_process]).unwrap();
        drivers.set(vec![packet()]).unwrap();
        drivers.given();
        assert!(drivers.says().is_empty());
    });
}

#[test]
fn the_switch_closes_the_interface_of_a_removed_port() {
    with_veth(|| {
        let mut drivers = drivers(packet());
        let _copies = drivers.given();
        drivers.set(Vec::new()).unwrap();
        assert_eq!(drivers.close_reason(), "its driver was removed or replaced");
        drivers.lose_interface(PORT, "late", true);
        drivers.count_interface(PORT, counters(1));
        assert!(!drivers.dial(PORT, false));
    });
}

#[test]
fn the_name_of_an_own_interface_is_free_though_the_switch_has_it_open() {
    with_veth(|| {
        if File::open("/dev/net/tun").is_err() {
            return testkit::skip::skipped("no TAP devices here");
        }
        let mut drivers = drivers(own_tap(1));
        assert_eq!(drivers.state().back_end, Some(BackEnd::Tap));
        let copies = drivers.given();
        drivers.set(vec![own_tap(2)]).unwrap();
        assert_eq!(drivers.close_reason(), "its driver was removed or replaced");
        assert_eq!(drivers.given().len(), 2);
        drop(copies);
        drivers.set(Vec::new()).unwrap();
    });
}

#[test]
fn a_port_that_crashes_the_switch_is_refused_with_one_event() {
    with_veth(|| {
        let mut drivers = drivers(packet());
        for _ in 0..2 {
            let error = error_of(drivers.dials(true));
            assert_eq!(
                error,
                "out of service: the switch has crashed 3 times while it served this port; it is \
                 served again 30 seconds after the last crash, and at once by a process of its own \
                 (driver_process = true)"
            );
            assert_eq!(drivers.state().reason, Some(error));
        }
        let events = drivers.take_events();
        assert_eq!(events.len(), 1, "{events:?}");
        drivers.given();
        assert!(drivers.take_events().is_empty());
        // A process is its own.
        let process = DriverSpec {
            process: true,
            ..packet()
        };
        drivers.set(vec![process]).unwrap();
        drivers.close_reason();
        drivers.dials(true);
        let reason = drivers.state().reason.unwrap_or_default();
        assert!(!reason.contains("out of service"), "{reason}");
    });
}

/// The switch has no right to ask, and none of it is a reason to close the interface: the system
/// refuses frames that are too long, and cuts what the interface cannot.
#[test]
fn an_interface_that_changes_while_the_switch_has_it_is_watched() {
    with_veth(|| {
        let mut drivers = drivers(packet());
        let mut now = Instant::now();
        let mut lines = |drivers: &mut Drivers| {
            // It is looked at once a second.
            now += Duration::from_secs(2);
            let mut lines = drivers.of(PORT).unwrap().switched_offloads(now);
            lines.sort();
            lines
        };
        ethtool("gso off");
        assert!(lines(&mut drivers).is_empty(), "nobody serves it");
        drivers.given();
        let off = "offload generic-segmentation-offload of interface up0 is off: ";
        let said = lines(&mut drivers);
        assert!(said.iter().any(|line| line.starts_with(off)), "{said:?}");
        assert!(lines(&mut drivers).is_empty(), "once");
        ethtool("gso on");
        let on = "offload generic-segmentation-offload of interface up0 is on again";
        assert!(lines(&mut drivers).iter().any(|line| line == on));
        ip("link set up0 mtu 1000");
        assert!(lines(&mut drivers).is_empty() && drivers.says().is_empty());
        assert!(drivers.state().in_switch);
        drivers.lose_switch();
        ethtool("gso off");
        assert!(lines(&mut drivers).is_empty());
    });
}

#[test]
fn vhost_devices_need_a_process() {
    with_veth(|| {
        let vhost = driver_of(DeviceSpec {
            choice: Choice::VhostNet,
            ..spec(Choice::Auto, true)
        });
        let device = Device::open(&spec(Choice::Packet, false)).unwrap();
        assert!(is_for_switch(&packet(), &device));
        assert!(!is_for_switch(&vhost, &device));
    });
}

#[test]
fn a_new_switch_has_the_interface_without_a_dial() {
    with_veth(|| {
        let mut drivers = drivers(packet());
        let frames = |drivers: &Drivers| drivers.state().counters.received.frames;
        drivers.given();
        drivers.count_interface(PORT, counters(3));
        // An upgrade: until it takes over, the interface is the old switch's.
        let got = drivers.offers(false, 9);
        assert!(matches!(&got[..], [one] if is_interface(one) && one.1 == 1));
        assert!(!drivers.has_offers());
        drivers.count_interface(PORT, counters(4));
        drivers.change_switch();
        assert!(drivers.state().in_switch && frames(&drivers) == 4);
        drivers.count_interface(PORT, counters(2));
        assert_eq!(frames(&drivers), 6);
        // A death.
        drivers.lose_switch();
        assert!(!drivers.state().in_switch);
        assert_eq!(drivers.offers(false, 9).len(), 1);
        drivers.change_switch();
        assert!(drivers.state().in_switch && drivers.says().is_empty());
        drivers.lose_interface(PORT, "a reason", false);
        assert!(!drivers.state().in_switch);
        drivers.given();
        // An upgrade that is cancelled.
        drivers.count_interface(PORT, counters(1));
        assert_eq!(drivers.offers(false, 0).len(), 0);
        assert!(drivers.has_offers());
        drivers.withdraw_offers();
        assert!(!drivers.has_offers() && drivers.sends(9).is_empty());
        drivers.count_interface(PORT, counters(2));
        assert!(drivers.state().in_switch && frames(&drivers) == 8);
    });
}

#[test]
fn only_an_interface_that_the_switch_may_serve_now_is_offered() {
    with_veth(|| {
        let offered = |drivers: &mut Drivers, is_quarantined| {
            let got = drivers.offers(is_quarantined, 9).len();
            drivers.change_switch();
            assert_eq!(drivers.state().in_switch, got == 1);
            got == 1
        };
        let mut drivers = drivers(packet());
        assert!(offered(&mut drivers, false), "it was not dialled for");
        assert!(!offered(&mut drivers, true), "the switch has crashed by it");
        drivers.given();
        drivers.lose_interface(PORT, "gone", true);
        assert!(!offered(&mut drivers, false), "it is opened again");
        drivers.given();
        ip("link set up0 down");
        assert!(!offered(&mut drivers, false), "it is down");
        ip("link set up0 up");
        assert!(offered(&mut drivers, false));
        assert_eq!(drivers.state().reason, None);
        let process = DriverSpec {
            process: true,
            ..packet()
        };
        drivers.set(vec![process]).unwrap();
        assert!(!offered(&mut drivers, false), "a process serves it");
    });
}

#[test]
fn a_new_switch_gets_as_many_queues_as_there_is_room_for_and_the_others_later() {
    with_veth(|| {
        if File::open("/dev/net/tun").is_err() {
            return testkit::skip::skipped("no TAP devices here");
        }
        let mut drivers = drivers(own_tap(20));
        let more = EventToSwitch::InterfaceQueues { port: PORT };
        let first = drivers.offers(false, 1);
        assert_eq!(first, [(more.clone(), 8)]);
        assert!(drivers.has_offers() && drivers.sends(0).is_empty());
        assert_eq!(drivers.sends(1), [(more, 8)]);
        let last = drivers.sends(9);
        assert!(matches!(&last[..], [one] if is_interface(one) && one.1 == 4));
        assert!(!drivers.has_offers());
    });
}
