//! Drivers with idle processes, whose messages the tests send.

use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::Command;

use ipc::driving::{
    Choice, DeviceSpec, DriverCounters, DriverKind, ForwardProtocol, Listen, UserBuffers,
    UserForward, UserNetwork,
};
use ipc::forwards::ForwardReach;
use ipc::link::{Link, LinkEvent};
use ipc::supervision::{
    ControlRequest, DriverRequest, EventToControl, EventToSwitch, SocketRequest, UserDriverRequest,
};
use ipc::user_reports::{UserPage, UserRows, UserTable};
use rustix::process::Signal;
use testkit::skip::skipped;
use testkit::wait::{LIMIT, wait_until};

use super::*;
use crate::child::DriverChild;

/// Driver of a port with a process; the interface does not exist.
struct World {
    drivers: Drivers,
    /// The process's end of its link.
    link: Link<DriverRequest, EventToDriver>,
}

pub(super) fn spec() -> DriverSpec {
    DriverSpec {
        port: PortId(3),
        name: "p".parse().unwrap(),
        kind: DriverKind::Interface(DeviceSpec {
            choice: Choice::Packet,
            own: false,
            interface: "no-such-if0".parse().unwrap(),
            netns: None,
            address: None,
            mac: None,
            mtu: None,
            queues: 1,
        }),
        process: true,
        prefilter: ipc::driving::PrefilterChoice::Off,
        cpu_weight: None,
    }
}

/// The driver of an interface that differs from [`spec`].
fn with(change: impl FnOnce(&mut DeviceSpec)) -> DriverSpec {
    let mut spec = spec();
    let DriverKind::Interface(device) = &mut spec.kind else {
        panic!("not an interface: {spec:?}")
    };
    change(device);
    spec
}

fn world() -> World {
    let mut driver = Driver::reopen(spec());
    let (child, link) = DriverChild::idle();
    driver.child = Some(child);
    let mut drivers = Drivers::default();
    drivers.all.push(driver);
    World { drivers, link }
}

impl World {
    fn sends(&self, request: &DriverRequest) {
        self.link.send(request, &[]).unwrap();
    }

    fn reports_end(&self, reason: &str) {
        self.sends(&DriverRequest::Ends {
            reason: reason.to_owned(),
            device_lost: true,
        });
    }

    /// Polls until the process is gone; returns the reason.
    fn end_reason(&mut self) -> String {
        wait_until("its process ends", || {
            self.drivers.poll(&Binaries::of_nothing(), None);
            self.drivers.all[0].state().pid.is_none()
        });
        self.drivers.states()[0].reason.clone().unwrap()
    }

    fn has_ended(&mut self) -> bool {
        let mut child = self.drivers.all.remove(0).child.unwrap();
        child.wait(Instant::now() + LIMIT);
        !child.is_alive()
    }
}

#[test]
fn an_unexpected_message_kills_the_driver() {
    let mut world = world();
    world.sends(&DriverRequest::Pong(DriverCounters::default()));
    let reason = world.end_reason();
    assert_eq!(reason, "unexpected message: killed");
    let page = DriverRequest::User(UserDriverRequest::Page(UserPage {
        question: UserQuestion {
            table: UserTable::Leases,
            from: 0,
        },
        rows: UserRows::Leases(Vec::new()),
        next: None,
    }));
    let mut world = self::world();
    world.sends(&page);
    assert_eq!(world.end_reason(), reason);
}

/// The requests of control are no messages of a driver.
#[test]
fn a_driver_that_requests_a_socket_is_malformed() {
    let listen = SocketRequest::Listen {
        path: "vm.sock".parse().unwrap(),
    };
    let set = PortDriverRequest::Set(Vec::new());
    let table = UserPortRequest::Table {
        port: "p".parse().unwrap(),
        question: UserQuestion {
            table: UserTable::Leases,
            from: 0,
        },
    };
    for request in [listen.into(), set.into(), table.into()] {
        let mut world = world();
        let copy = world.link.as_fd().try_clone_to_owned().unwrap();
        let forger: Link<ControlRequest, EventToControl> = Link::new(copy);
        forger.send(&request, &[]).unwrap();
        let reason = world.end_reason();
        assert_ne!(reason, "unexpected message: killed", "it is none");
    }
}

#[test]
fn a_driver_with_a_full_link_is_killed_without_waiting() {
    let mut world = world();
    let child = world.drivers.all[0].child.as_ref().unwrap();
    while child.try_send(&EventToDriver::Ping, &[]).is_ok() {}
    let reason = world.end_reason();
    assert_eq!(reason, "link full: killed");
}

#[test]
fn messages_after_the_end_of_a_driver_are_ignored() {
    let mut world = world();
    world.reports_end("the interface\nis lost");
    world.reports_end("something else");
    assert_eq!(world.end_reason(), "the interfaceis lost");
}

#[test]
fn a_dial_is_answered_though_its_driver_goes() {
    let mut world = world();
    let path = ipc::driving::address("p");
    assert!(world.drivers.dial(PortId(3), false));
    world.drivers.set(Vec::new()).unwrap();
    assert!(world.drivers.due().is_some(), "at once");
    let answers = world.drivers.poll(&Binaries::of_nothing(), None);
    assert_eq!(answers.len(), 1);
    assert!(answers[0].fds.is_empty());
    let error = Some("its driver was replaced".to_owned());
    let port = PortId(3);
    assert_eq!(
        answers[0].event,
        EventToSwitch::Dialed { port, path, error }
    );
    assert!(world.drivers.poll(&Binaries::of_nothing(), None).is_empty());
}

#[test]
fn a_live_process_goes_before_the_interface_is_opened_for_another() {
    let mut world = world();
    assert!(world.drivers.dial(PortId(3), false));
    // The interface cannot be opened, which would be the answer.
    assert!(world.drivers.poll(&Binaries::of_nothing(), None).is_empty());
    wait_until("an answer", || {
        !world.drivers.poll(&Binaries::of_nothing(), None).is_empty()
    });
    assert!(world.drivers.states()[0].pid.is_none());
    assert!(world.has_ended());
}

#[test]
fn counters_of_a_driver_come_with_its_answer_to_a_ping() {
    let mut world = world();
    let counters = DriverCounters {
        dropped_by_kernel: Some(9),
        ..DriverCounters::from_array([3, 4, 500, 6, 700, 8])
    };
    // It sends the first ping.
    world.drivers.poll(&Binaries::of_nothing(), None);
    world.sends(&DriverRequest::Pong(counters));
    wait_until("its counters come", || {
        world.drivers.poll(&Binaries::of_nothing(), None);
        world.drivers.states()[0].counters == counters
    });
}

#[test]
fn a_driver_with_another_interface_is_stopped_and_its_counters_continue() {
    let mut world = world();
    let driver = &mut world.drivers.all[0];
    let counters = DriverCounters::from_array([3, 4, 500, 6, 700, 8]);
    driver.inherit(History {
        counters,
        restarts: 0,
    });
    driver.child = driver.child.take().map(|child| child.restarted(2));
    let other = with(|device| device.interface = "no-such-if1".parse().unwrap());
    if let Err((_, reason)) = world.drivers.set(vec![other]) {
        return skipped(format!("no interface can be opened here ({reason})"));
    }
    let stop = world.link.recv().unwrap();
    assert!(matches!(stop, LinkEvent::Message(EventToDriver::Stop, _)));
    let state = &world.drivers.states()[0];
    assert_eq!(
        (state.pid, state.counters, state.restarts),
        (None, counters, 2)
    );
    let reason = state.reason.as_deref().unwrap();
    assert!(reason.contains("no-such-if1"), "{reason}");
}

#[test]
fn another_back_end_of_an_own_interface_takes_another_process() {
    let own = |choice| with(|device| (device.own, device.choice) = (true, choice));
    let mut world = world();
    let driver = &mut world.drivers.all[0];
    driver.spec = own(Choice::Auto);
    driver.child = driver.child.take().map(|child| child.restarted(2));
    let pid = world.drivers.states()[0].pid;
    world.drivers.set(vec![own(Choice::Auto)]).unwrap();
    assert_eq!(world.drivers.states()[0].pid, pid);
    world.drivers.set(vec![own(Choice::Tap)]).unwrap();
    let stop = world.link.recv().unwrap();
    assert!(matches!(stop, LinkEvent::Message(EventToDriver::Stop, _)));
    let state = &world.drivers.states()[0];
    assert_eq!((state.pid, state.restarts), (None, 2));
}

#[test]
fn another_cpu_weight_takes_no_other_process() {
    let mut world = world();
    let pid = world.drivers.states()[0].pid;
    let weighted = DriverSpec {
        cpu_weight: Some(200),
        ..spec()
    };
    world.drivers.set(vec![weighted.clone()]).unwrap();
    let state = &world.drivers.states()[0];
    assert_eq!((state.pid, &world.drivers.all[0].spec), (pid, &weighted));
    assert!(state.cpu_weight_error.is_some() || world.drivers.groups.take().is_ok());
    world.drivers.set(vec![spec()]).unwrap();
    let state = &world.drivers.states()[0];
    assert_eq!((state.pid, &state.cpu_weight_error), (pid, &None));
}

#[test]
fn an_interface_that_cannot_be_used_leaves_the_driver_as_it_is() {
    let mut world = world();
    let pid = world.drivers.states()[0].pid;
    let other = with(|device| device.interface = "lo".parse().unwrap());
    let (port, reason) = world.drivers.set(vec![other]).unwrap_err();
    assert_eq!(port, "p");
    assert!(reason.contains("lo"), "{reason}");
    assert_eq!(world.drivers.states()[0].pid, pid);
    assert_eq!(world.drivers.all[0].spec, spec());
}

#[test]
fn a_replacement_whose_driver_gets_another_interface_is_over() {
    let mut world = world();
    assert_eq!(world.drivers.renewed("p"), Some(RenewalResult::Gone));
    assert_eq!(world.drivers.renewed("q"), Some(RenewalResult::Gone));
}

/// Keeps a process from dying as long as the returned tracer lives: the death stops at its last
/// step (ptrace(2), `PTRACE_EVENT_EXIT`). `None` where tracing is not permitted.
fn keep_from_dying(pid: u32) -> Option<std::process::Child> {
    let mut tracer = Command::new("sleep");
    tracer.arg("infinity");
    let (request, options) = (libc::PTRACE_SEIZE, libc::PTRACE_O_TRACEEXIT);
    // SAFETY: the closure makes system calls only, on numbers. The tracer traces until its own end.
    unsafe {
        tracer.pre_exec(move || {
            rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
            match libc::ptrace(request, pid, 0usize, options as usize) {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            }
        });
    }
    let tracer = tracer.spawn();
    tracer
        .inspect_err(|error| skipped(format!("nothing can be traced here ({error})")))
        .ok()
}

#[test]
fn the_link_of_a_killed_driver_is_not_polled() {
    let mut world = world();
    let pid = world.drivers.states()[0].pid.unwrap();
    let Some(mut tracer) = keep_from_dying(pid) else {
        return;
    };
    assert_eq!(world.drivers.sources().count(), 2);
    world.reports_end("it is over");
    // These are not received.
    world.reports_end("it is over");
    world.reports_end("it is over");
    wait_until("its link is not polled", || {
        world.drivers.poll(&Binaries::of_nothing(), None);
        world.drivers.sources().count() == 1
    });
    tracer.kill().unwrap();
    tracer.wait().unwrap();
}

#[test]
fn a_driver_that_does_not_die_blocks_nothing() {
    let mut world = world();
    let pid = world.drivers.states()[0].pid.unwrap();
    let Some(mut tracer) = keep_from_dying(pid) else {
        return;
    };
    world.drivers.set(Vec::new()).unwrap();
    assert_eq!(world.drivers.dying.len(), 1);
    assert_eq!(world.drivers.sources().count(), 1, "its end will be seen");
    tracer.kill().unwrap();
    tracer.wait().unwrap();
    wait_until("it is dead", || {
        world.drivers.poll(&Binaries::of_nothing(), None);
        world.drivers.dying.is_empty()
    });
}

#[test]
fn a_port_without_a_driver_answers_no_question() {
    let mut world = world();
    let question = UserQuestion {
        table: UserTable::Flows,
        from: 0,
    };
    for port in ["p", "q"] {
        world.drivers.ask(&port.parse().unwrap(), question);
        let pages = world.drivers.take_pages();
        let page = Err("it has no driver".to_owned());
        let port = port.to_owned();
        let expected = UserPortAnswer::Page {
            port,
            question,
            page,
        };
        assert_eq!(pages, [expected]);
    }
}

/// Returns the network of a user port with these forwards of TCP.
pub(super) fn network(listens: &[SocketAddr]) -> UserNetwork {
    let forward = |address: &SocketAddr| UserForward {
        listen: Listen {
            protocol: ForwardProtocol::Tcp,
            address: *address,
        },
        to: "10.0.2.15".to_owned(),
        port: 22,
    };
    UserNetwork {
        network: "10.0.2.0/24".to_owned(),
        network6: None,
        mac: [2, 0, 0, 0, 0, 1],
        mtu: 1500,
        dns: false,
        resolvers: Vec::new(),
        search: "internal".to_owned(),
        allow: Vec::new(),
        deny: Vec::new(),
        host: Vec::new(),
        guests: Vec::new(),
        forwards: listens.iter().map(forward).collect(),
        times: Vec::new(),
        buffers: UserBuffers {
            guest: 256 << 20,
            port: 1 << 30,
        },
        sharers: 1,
    }
}

/// Returns an address with a port that is free now.
fn free(ip: &str) -> SocketAddr {
    let socket = TcpListener::bind((ip, 0)).unwrap();
    socket.local_addr().unwrap()
}

#[test]
fn forwards_are_bound_where_the_start_permits_and_nowhere_else() {
    let user = |netns: Option<&str>| {
        let netns = netns.map(|path| path.parse().unwrap());
        vec![DriverSpec {
            kind: DriverKind::User { netns, queues: 1 },
            ..spec()
        }]
    };
    let name = || "p".parse::<PortName>().unwrap();
    let (loopback, wildcard, own) = (free("127.0.0.1"), free("0.0.0.0"), "/proc/self/ns/net");
    let is_bound = |address| TcpListener::bind(address).is_err();
    let low = SocketAddr::from(([127, 0, 0, 1], 7));
    let mut drivers = Drivers::default();
    drivers.set(user(None)).unwrap();
    drivers.set_networks(vec![(name(), network(&[loopback, wildcard, low]))]);
    assert!(is_bound(loopback) && !is_bound(wildcard));
    let reason = drivers.states()[0].reason.clone().unwrap();
    for refused in [wildcard, low] {
        assert!(
            reason.contains(&format!("tcp {refused}: neither")),
            "{reason}"
        );
    }
    // The network namespace counts, too: this one is ours, but by a path of control's choice.
    drivers.set(user(Some(own))).unwrap();
    assert!(!is_bound(loopback), "{:?}", drivers.states()[0].reason);
    let listens = network(&[wildcard])
        .forwards
        .iter()
        .map(|of| of.listen)
        .collect();
    let mut drivers = Drivers::within(ForwardReach::new(listens, &[], Vec::new()));
    drivers.set(user(None)).unwrap();
    drivers.set_networks(vec![(name(), network(&[wildcard]))]);
    assert!(is_bound(wildcard), "{:?}", drivers.states()[0].reason);
}
