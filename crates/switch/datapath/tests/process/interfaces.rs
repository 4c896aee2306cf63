//! Ports with an interface of the host. A socket pair is the interface: as with a TAP device, each
//! call moves a frame with its header.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::time::Duration;

use ipc::driving::DriverCounters;
use ipc::limits::{Limit, Limits, Rate};
use ipc::supervision::{EventToSwitch, SwitchRequest};
use ipc::switching::{PortPhase, Role, SwitchCommand};
use port::{DropReason, PortId};
use rustix::io::{read, write};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use testkit::packets::{Flow, udp};
use testkit::wait::wait_until;
use testkit::{FakeGuest, GuestConfig};

use crate::host::{Host, LIMIT};
use crate::traffic::{disconnect, numbered};

const HEADER: [u8; 12] = [0; 12];

/// Returns the queues of an interface, and the system's ends of them.
pub(crate) fn interface(queues: usize) -> (Vec<OwnedFd>, Vec<OwnedFd>) {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let pair = |_| socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
    (0..queues).map(pair).unzip()
}

pub(crate) fn arrives(system: &OwnedFd, frame: &[u8]) {
    let bytes = [&HEADER, frame].concat();
    wait_until("the interface takes a frame", || {
        write(system, &bytes).is_ok()
    });
}

/// Returns the next frame that the switch has written to one of these.
#[track_caller]
pub(crate) fn left(systems: &[OwnedFd]) -> Vec<u8> {
    let mut buffer = vec![0; 70_000];
    let mut found = None;
    wait_until("a frame leaves", || {
        let mut lens = systems.iter().map(|system| read(system, &mut buffer[..]));
        found = lens.find_map(Result::ok);
        found.is_some()
    });
    buffer[HEADER.len()..found.unwrap()].to_vec()
}

#[track_caller]
pub(crate) fn is_up(host: &mut Host, id: u32) {
    wait_until("the interface is attached", || {
        host.state(id).phase == PortPhase::Up
    });
}

fn counters_of(requests: &[SwitchRequest]) -> Option<DriverCounters> {
    requests.iter().rev().find_map(|request| match request {
        SwitchRequest::InterfaceCounters { counters, .. } => Some(*counters),
        _ => None,
    })
}

#[test]
fn frames_pass_between_an_interface_and_a_guest() {
    let mut host = Host::with_ports([1]);
    let (queues, systems) = interface(1);
    host.add_interface(2, queues);
    is_up(&mut host, 2);
    let mut guest = host.guest(1, GuestConfig::default());
    for seq in 0..300 {
        let len = [16, 200, 1400][seq as usize % 3];
        arrives(&systems[0], &numbered(2, 1, seq, len));
        let frame = guest.recv(LIMIT).unwrap().expect("a frame");
        assert!(frame.frame == numbered(2, 1, seq, len), "frame {seq}");
        guest.send(&numbered(1, 2, seq, len)).expect("room");
        assert!(left(&systems) == numbered(1, 2, seq, len), "reply {seq}");
    }
    let state = host.state(2);
    assert_eq!(state.queues.len(), 2);
    assert_eq!(state.queues[1].counts.frames, 300);
    assert_eq!(host.counts(2).from_guest.packets, 300);
    assert_eq!(host.counts(2).to_guest.packets, 300);
    host.send_event(&EventToSwitch::Ping);
    let mut counters = None;
    wait_until("counters come with a heartbeat", || {
        counters = counters_of(&host.interface_requests());
        counters.is_some()
    });
    let counters = counters.unwrap();
    assert_eq!((counters.received.frames, counters.sent.frames), (300, 300));
    disconnect([guest]);
}

#[test]
fn conversations_are_spread_over_the_queues_of_an_interface() {
    let mut host = Host::with_ports([1]);
    let (queues, systems) = interface(5);
    host.add_interface(2, queues);
    is_up(&mut host, 2);
    let mut guest = host.guest(1, GuestConfig::default());
    // By each of its queues, which have different workers.
    for (seq, system) in (0..).zip(&systems) {
        arrives(system, &numbered(2, 1, seq, 100));
        let frame = guest.recv(LIMIT).unwrap().expect("a frame");
        assert!(frame.frame == numbered(2, 1, seq, 100));
    }
    let mut used = BTreeSet::new();
    for src_port in 1000..1038 {
        let flow = Flow {
            src_port,
            ..Flow::v4(1, 2)
        };
        guest.send(&udp(&flow, &[7; 58])).expect("room");
        let mut frame = vec![0; 2000];
        wait_until("a frame leaves", || {
            let found = (0..5).find(|at| read(&systems[*at], &mut frame[..]).is_ok());
            used.extend(found);
            found.is_some()
        });
    }
    assert_eq!(host.counts(2).to_guest.packets, 38);
    assert_eq!(used.len(), 5, "{used:?}");
    disconnect([guest]);
}

#[test]
fn a_lost_interface_is_reported_and_its_successor_serves() {
    let mut host = Host::with_ports([1]);
    let (queues, systems) = interface(2);
    host.add_interface(2, queues);
    is_up(&mut host, 2);
    let mut guest = host.guest(1, GuestConfig::default());
    arrives(&systems[0], &numbered(2, 1, 0, 100));
    assert!(guest.recv(LIMIT).unwrap().is_some());
    let (queues, next) = interface(1);
    host.set_interface(2, queues);
    drop(systems);
    let mut requests = Vec::new();
    wait_until("the loss is reported", || {
        requests.extend(host.interface_requests());
        let is_loss =
            |request: &SwitchRequest| matches!(request, SwitchRequest::InterfaceLost { .. });
        requests.iter().any(is_loss)
    });
    let [.., SwitchRequest::InterfaceCounters { counters, .. }, lost] = &requests[..] else {
        panic!("{requests:?}");
    };
    assert_eq!(counters.received.frames, 1, "the last counters come before");
    let SwitchRequest::InterfaceLost {
        port,
        reason,
        device_lost,
    } = lost
    else {
        panic!("{lost:?}");
    };
    assert_eq!((*port, *device_lost), (PortId(2), true), "{reason}");
    arrives(&next[0], &numbered(2, 1, 1, 100));
    assert!(guest.recv(LIMIT).unwrap().is_some());
    guest.send(&numbered(1, 2, 0, 100)).expect("room");
    assert!(left(&next) == numbered(1, 2, 0, 100));
    disconnect([guest]);
}

#[test]
fn a_changed_interface_is_closed_and_dialled_again() {
    let mut host = Host::with_ports([1]);
    let (queues, systems) = interface(1);
    host.add_interface(2, queues);
    is_up(&mut host, 2);
    let (queues, next) = interface(1);
    host.set_interface(2, queues);
    let reason = "its MTU has changed".to_owned();
    let port = PortId(2);
    host.send_event(&EventToSwitch::CloseInterface { port, reason });
    let mut guest = host.guest(1, GuestConfig::default());
    arrives(&next[0], &numbered(2, 1, 0, 100));
    assert!(guest.recv(LIMIT).unwrap().is_some());
    assert!(counters_of(&host.interface_requests()).is_some());
    let mut byte = [0; 1];
    wait_until("the former one is closed", || {
        read(&systems[0], &mut byte) == Ok(0)
    });
    // For a port without an interface it does nothing.
    let reason = "no reason".to_owned();
    host.send_event(&EventToSwitch::CloseInterface {
        port: PortId(1),
        reason,
    });
    guest.send(&numbered(1, 2, 0, 100)).expect("room");
    assert!(left(&next) == numbered(1, 2, 0, 100));
    disconnect([guest]);
}

#[test]
fn frames_for_an_interface_that_takes_none_wait_and_then_are_dropped() {
    let mut host = Host::with_ports([1]);
    let (queues, systems) = interface(1);
    host.add_interface(2, queues);
    is_up(&mut host, 2);
    let mut guest = host.guest(1, GuestConfig::default());
    // The first one waits for a decision, and others with it would.
    guest.send(&numbered(1, 2, 0, 1400)).expect("room");
    left(&systems);
    const FRAMES: u64 = 2000;
    for seq in 1..FRAMES {
        let frame = numbered(1, 2, seq, 1400);
        wait_until("room", || guest.send(&frame).is_ok());
    }
    let full = DropReason::ReceiverFull as usize;
    wait_until("all are settled", || {
        let counts = host.counts(2);
        counts.drops[full] > 0 && host.counts(1).from_guest.packets == FRAMES
    });
    let mut seen = 1;
    let mut buffer = vec![0; 2000];
    wait_until("the others leave", || {
        while read(&systems[0], &mut buffer[..]).is_ok() {
            seen += 1;
        }
        let (_, _, dropped) = host.totals();
        seen + dropped == FRAMES && host.counts(2).to_guest.packets == seen
    });
    assert!(seen > 256);
    host.remove_port(2);
    guest.send(&numbered(1, 2, 0, 60)).expect("room");
    disconnect([guest]);
}

#[test]
fn an_interface_with_more_queues_than_its_port_is_refused() {
    let mut host = Host::new();
    let (queues, _systems) = interface(1);
    host.add_interface(2, queues);
    is_up(&mut host, 2);
    let (queues, _others) = interface(2);
    host.set_interface(2, queues);
    let reason = "another".to_owned();
    let port = PortId(2);
    host.send_event(&EventToSwitch::CloseInterface { port, reason });
    let mut found = None;
    wait_until("the refusal is its reason", || {
        found = host.state(2).reason;
        found.as_deref() == Some("an interface with 2 queue pairs")
    });
}

fn copies(queues: &[OwnedFd]) -> Vec<OwnedFd> {
    let copy = |fd: &OwnedFd| fd.try_clone().unwrap();
    queues.iter().map(copy).collect()
}

#[test]
fn a_new_switch_serves_no_frame_before_it_has_all_interfaces() {
    const WAITING: u64 = 60;
    for waits in [true, false] {
        let mut host = Host::successor(waits);
        let [(first, from), (second, to)] = [1, 9].map(interface);
        let frame = |seq| numbered(1, 2, seq, 200);
        (0..WAITING).for_each(|seq| arrives(&from[0], &frame(seq)));
        let give_both = |host: &Host| {
            host.give_interface(1, 1, &first);
            host.give_interface(2, 2, &second);
        };
        if !waits {
            give_both(&host);
        }
        host.start_control();
        for (id, queues) in [(1, &first), (2, &second)] {
            host.register(host.config(id, queues.len() as u16, Role::Client));
        }
        host.publish();
        if waits {
            give_both(&host);
            host.send_event(&EventToSwitch::TakeOver);
        }
        for seq in 0..WAITING {
            assert!(left(&to) == frame(seq), "frame {seq}");
        }
        wait_until("all are counted", || host.totals() == (WAITING, WAITING, 0));
        for id in [1, 2] {
            let state = host.state(id);
            assert_eq!((state.phase, state.connections), (PortPhase::Up, 1));
        }
    }
}

#[test]
fn an_interface_that_changes_before_it_serves_is_closed_and_dialled_for() {
    let close = EventToSwitch::CloseInterface {
        port: PortId(1),
        reason: "it was changed".to_owned(),
    };
    // Before its port is added, after that, and that of another port with the number.
    for (is_added, of) in [(false, 1), (true, 1), (false, 7)] {
        let mut host = Host::successor(false);
        let [(queues, systems), (next, _systems)] = [1, 1].map(interface);
        host.give_interface(1, of, &queues);
        drop(queues);
        host.set_interface(1, next);
        if of == 1 && !is_added {
            host.send_event(&close);
        }
        host.start_control();
        host.register(host.config(1, 1, Role::Client));
        if is_added {
            host.send_event(&close);
        }
        wait_until("it is closed", || {
            read(&systems[0], &mut [0; 1][..]) == Ok(0)
        });
        host.publish();
        is_up(&mut host, 1);
    }
}

/// Returns whether the switch has quiesced since the last call.
fn has_quiesced(host: &Host) -> bool {
    let requests = host.interface_requests();
    let mut requests = requests.iter();
    requests.any(|request| matches!(request, SwitchRequest::Quiesced { .. }))
}

/// Frames that a switch sends to an interface which takes none of them for now.
struct Full {
    host: Host,
    systems: Vec<OwnedFd>,
    guest: FakeGuest,
    sent: u64,
}

impl Full {
    /// Sends until frames wait: not as many as may wait.
    fn new() -> Self {
        let mut host = Host::with_ports([1]);
        let (queues, systems) = interface(1);
        host.add_interface(2, queues);
        is_up(&mut host, 2);
        let guest = host.guest(1, GuestConfig::default());
        let sent = 0;
        let mut full = Self {
            host,
            systems,
            guest,
            sent,
        };
        full.send();
        // It waits for a decision, and the next one would be behind it.
        assert!(left(&full.systems) == full.frame(0));
        while full.waiting() < 60 {
            full.send();
        }
        full
    }

    fn frame(&self, seq: u64) -> Vec<u8> {
        numbered(1, 2, seq, 1400)
    }

    /// Sends a frame, and waits until the switch has taken it.
    fn send(&mut self) {
        self.guest.send(&self.frame(self.sent)).expect("room");
        self.sent += 1;
        wait_until("the frame is taken", || {
            let (taken, reached, dropped) = self.host.totals();
            assert_eq!(dropped, 0);
            taken == self.sent && reached <= self.sent
        });
    }

    /// Frames that the interface has not taken.
    fn waiting(&self) -> u64 {
        self.sent - self.host.counts(2).to_guest.packets
    }

    /// Reads the next frame, if there is one.
    fn read(&self, seq: u64) -> bool {
        let mut frame = [0; 2000];
        let len = read(&self.systems[0], &mut frame[..]);
        len.is_ok_and(|len| {
            assert!(frame[HEADER.len()..len] == self.frame(seq), "frame {seq}");
            true
        })
    }

    fn dropped(&self) -> u64 {
        self.host.counts(2).drops[DropReason::ReceiverFull as usize]
    }
}

/// On a busy machine the interface may be late for once, or the switch.
#[test]
fn frames_that_wait_for_a_full_interface_leave_before_a_hand_over() {
    let leave = |_: &i32| {
        let full = Full::new();
        full.host.send_event(&EventToSwitch::Quiesce);
        std::thread::sleep(Duration::from_millis(10));
        let mut seen = 1;
        while !has_quiesced(&full.host) {
            seen += u64::from(full.read(seen));
        }
        while full.read(seen) {
            seen += 1;
        }
        let dropped = full.dropped();
        assert_eq!((seen + dropped, full.waiting()), (full.sent, dropped));
        dropped == 0
    };
    let times = (0..5).filter(leave).count();
    assert!(times >= 3, "all have left {times} times of 5");
}

#[test]
fn an_interface_that_takes_nothing_does_not_prevent_a_hand_over() {
    let mut full = Full::new();
    full.host.send_event(&EventToSwitch::Quiesce);
    wait_until("the switch has quiesced", || has_quiesced(&full.host));
    let dropped = full.dropped();
    assert!(dropped > 50 && dropped == full.waiting(), "{dropped}");
    let mut seen = 1;
    while full.read(seen) {
        seen += 1;
    }
    assert_eq!(seen + dropped, full.sent);
    full.host.send_event(&EventToSwitch::Resume);
    full.guest.send(&full.frame(full.sent)).expect("room");
    assert!(left(&full.systems) == full.frame(full.sent));
    disconnect([full.guest]);
}

#[test]
fn what_was_read_from_an_interface_with_a_limit_is_forwarded_before_a_hand_over() {
    const FRAMES: u64 = 100;
    let mut host = Host::with_ports([1]);
    let (queues, systems) = interface(1);
    let kernel = copies(&queues);
    host.add_interface(2, queues);
    is_up(&mut host, 2);
    let mut guest = host.guest(1, GuestConfig::default());
    let few = Rate {
        per_second: 5,
        burst: 5,
    };
    let limits = Limits {
        from_guest: Limit {
            packets: Some(few),
            bits: None,
        },
        ..Limits::default()
    };
    let order = SwitchCommand::SetLimits(PortId(2), limits);
    host.order(order, &[]).unwrap();
    let frame = |seq| numbered(2, 1, seq, 200);
    (0..FRAMES).for_each(|seq| arrives(&systems[0], &frame(seq)));
    assert!(guest.recv(LIMIT).unwrap().expect("a frame").frame == frame(0));
    host.send_event(&EventToSwitch::Quiesce);
    wait_until("the switch has quiesced", || has_quiesced(&host));
    let mut seq = 1;
    for got in guest.recv_all().unwrap() {
        assert!(got.frame == frame(seq), "frame {seq}");
        seq += 1;
    }
    // The rest waits in the interface.
    let mut bytes = [0; 2000];
    while let Ok(len) = read(&kernel[0], &mut bytes[..]) {
        assert!(bytes[HEADER.len()..len] == frame(seq), "frame {seq}");
        seq += 1;
    }
    assert_eq!(seq, FRAMES);
    assert_eq!(host.totals().2, 0);
    host.send_event(&EventToSwitch::Resume);
    disconnect([guest]);
}
