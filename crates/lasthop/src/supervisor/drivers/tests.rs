//! Drivers whose processes do nothing; their words are said here.

use std::os::unix::process::CommandExt;
use std::process::Command;

use channel::driving::{Choice, DeviceSpec, Refused};
use channel::link::Link;
use channel::supervision::Ask;
use rustix::process::Signal;

use super::*;
use crate::supervisor::child::Kind;

const SOON: Duration = Duration::from_secs(20);

/// A driver of a port for an interface that is not there, with a process.
struct World {
    drivers: Drivers,
    /// The process's end of its link.
    link: Link<Ask, Tell>,
}

fn spec() -> DriverSpec {
    DriverSpec {
        port: PortId(3),
        name: "p".to_owned(),
        device: DeviceSpec {
            choice: Choice::Packet,
            own: false,
            interface: "no-such-if0".to_owned(),
            netns: None,
            address: None,
            mac: None,
            mtu: None,
            queues: 1,
        },
    }
}

fn world() -> World {
    let mut driver = Driver::reopen(spec());
    let (child, link) = Child::idle(Kind::Driver);
    driver.child = Some(child);
    let mut drivers = Drivers::default();
    drivers.all.push(driver);
    World { drivers, link }
}

impl World {
    fn says(&self, ask: &Ask) {
        self.link.send(ask, &[]).unwrap();
    }

    fn gives_up(&self, reason: &str) {
        self.says(&Ask::DriverEnds {
            reason: reason.to_owned(),
            device_lost: true,
        });
    }

    /// Turns until the process is gone; why.
    fn why_it_ends(&mut self) -> String {
        let deadline = Instant::now() + SOON;
        while self.drivers.all[0].state().pid.is_some() {
            assert!(Instant::now() < deadline, "it lives");
            self.drivers.turn(&Binaries::of_nothing());
            std::thread::yield_now();
        }
        self.drivers.states()[0].reason.clone().unwrap()
    }

    fn has_ended(&mut self) -> bool {
        let mut child = self.drivers.all.remove(0).child.unwrap();
        child.wait(Instant::now() + SOON);
        !child.is_alive()
    }
}

#[test]
fn who_speaks_unasked_is_killed() {
    let mut world = world();
    world.says(&Ask::Pong(Refused::default()));
    let reason = world.why_it_ends();
    assert_eq!(reason, "it said what it was not asked for and was killed");
    let mut world = self::world();
    world.says(&Ask::Processes);
    assert_eq!(world.why_it_ends(), reason);
}

#[test]
fn who_does_not_listen_is_killed_and_not_waited_for() {
    let mut world = world();
    let child = world.drivers.all[0].child.as_ref().unwrap();
    while child.tell_at_once(&Tell::Ping, &[]).is_ok() {}
    let reason = world.why_it_ends();
    assert_eq!(reason, "it did not listen and was killed");
}

#[test]
fn who_gives_up_is_ended_and_not_heard_any_more() {
    let mut world = world();
    world.gives_up("the interface\nis lost");
    world.gives_up("something else");
    assert_eq!(world.why_it_ends(), "the interfaceis lost");
}

#[test]
fn a_dial_is_answered_though_its_driver_goes() {
    let mut world = world();
    let path = driving::address("p");
    assert!(world.drivers.dial(PortId(3)));
    world.drivers.want(Vec::new()).unwrap();
    assert!(world.drivers.due().is_some(), "at once");
    let answers = world.drivers.turn(&Binaries::of_nothing());
    assert_eq!(answers.len(), 1);
    assert!(answers[0].socket.is_none());
    let error = Some("its driver was replaced".to_owned());
    let port = PortId(3);
    assert_eq!(answers[0].tell, Tell::Dialed { port, path, error });
    assert!(world.drivers.turn(&Binaries::of_nothing()).is_empty());
}

#[test]
fn a_live_process_goes_before_the_interface_is_opened_for_another() {
    let mut world = world();
    assert!(world.drivers.dial(PortId(3)));
    // The interface cannot be had, which would be the answer.
    assert!(world.drivers.turn(&Binaries::of_nothing()).is_empty());
    let mut answers = Vec::new();
    let deadline = Instant::now() + SOON;
    while answers.is_empty() {
        assert!(Instant::now() < deadline, "no answer");
        answers = world.drivers.turn(&Binaries::of_nothing());
    }
    assert!(world.drivers.states()[0].pid.is_none());
    assert!(world.has_ended());
}

/// Keeps a process from dying, for as long as the one lives that is returned: its death stops at its last step, and waits for
/// who traces it (ptrace(2), `PTRACE_EVENT_EXIT`). None where we must not trace.
fn keep_from_dying(pid: u32) -> Option<std::process::Child> {
    let mut tracer = Command::new("sleep");
    tracer.arg("infinity");
    let (request, options) = (libc::PTRACE_SEIZE, libc::PTRACE_O_TRACEEXIT);
    // SAFETY: the closure makes system calls only, on numbers. Who traces a process does so until its own end.
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
        .inspect_err(|error| eprintln!("skipped: nothing can be traced here ({error})"))
        .ok()
}

#[test]
fn who_is_doomed_is_not_waited_for_to_speak() {
    let mut world = world();
    let pid = world.drivers.states()[0].pid.unwrap();
    let Some(mut tracer) = keep_from_dying(pid) else {
        return;
    };
    assert_eq!(world.drivers.sources().count(), 2);
    world.gives_up("it is over");
    // Nobody hears these.
    world.gives_up("it is over");
    world.gives_up("it is over");
    let deadline = Instant::now() + SOON;
    while world.drivers.sources().count() > 1 {
        assert!(Instant::now() < deadline, "its link is looked at");
        world.drivers.turn(&Binaries::of_nothing());
    }
    tracer.kill().unwrap();
    tracer.wait().unwrap();
}

#[test]
fn who_does_not_die_holds_nobody_up() {
    let mut world = world();
    let pid = world.drivers.states()[0].pid.unwrap();
    let Some(mut tracer) = keep_from_dying(pid) else {
        return;
    };
    world.drivers.want(Vec::new()).unwrap();
    assert_eq!(world.drivers.dying.len(), 1);
    assert_eq!(world.drivers.sources().count(), 1, "its end will be seen");
    tracer.kill().unwrap();
    tracer.wait().unwrap();
    let deadline = Instant::now() + SOON;
    while !world.drivers.dying.is_empty() {
        assert!(Instant::now() < deadline, "it lives");
        world.drivers.turn(&Binaries::of_nothing());
    }
}
