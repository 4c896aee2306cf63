//! Interfaces that the switch serves, in a network namespace of their own.

use interfaces::testing::{spec, with_veth};
use ipc::driving::{Choice, DriverCounters, DriverKind, DriverSpec};
use ipc::keeping::ThreadSlots;
use rustix::process::{Pid, Signal, kill_process};

use super::*;
use crate::serve;

const PORT: PortId = PortId(1);
const DIAL: SwitchRequest = SwitchRequest::Dial { port: PORT };

type SwitchLink = Link<SwitchRequest, EventToSwitch>;

/// A supervisor with a switch that gets the interface `up0` when it dials.
fn world_with_interface() -> World {
    let mut world = world();
    let spec = DriverSpec {
        port: PORT,
        name: "up".parse().unwrap(),
        kind: DriverKind::Interface(spec(Choice::Packet, false)),
        process: false,
        prefilter: ipc::driving::PrefilterChoice::Off,
        cpu_weight: None,
    };
    world.supervisor.drivers.set(vec![spec]).unwrap();
    world
}

impl World {
    /// Has the supervisor receive requests of the switch of a pair; polls the drivers once.
    fn hears(&mut self, pair: PairRef, link: &SwitchLink, all: &[SwitchRequest]) {
        for request in all {
            link.send(request, &[]).unwrap();
        }
        self.supervisor.receive::<Switch>(pair, MAX_MESSAGES);
        serve::poll_drivers(&mut self.supervisor);
    }

    /// Starts an idle switch of the serving pair.
    fn starts_switch(&mut self) -> SwitchLink {
        let (switch, link) = SwitchChild::idle();
        link.set_nonblocking().unwrap();
        self.supervisor.pair.switch = switch;
        link
    }

    /// Has the switch crash while it serves the port.
    fn switch_crashes(&mut self) {
        let slots = ThreadSlots::map(&self.supervisor.setup.thread_slots).unwrap();
        slots.of(1).serve(PORT);
        slots.of(1).record_crash();
        let pid = self.supervisor.pair.switch.info().pid.cast_signed();
        kill_process(Pid::from_raw(pid).unwrap(), Signal::SEGV).unwrap();
        self.dies::<Switch>();
        self.supervisor.reap_switch().unwrap();
    }

    /// Returns the number of frames that the interface has received.
    fn frames(&self) -> u64 {
        self.supervisor.drivers.states()[0].counters.received.frames
    }
}

fn counted(frames: u64) -> SwitchRequest {
    SwitchRequest::InterfaceCounters {
        port: PORT,
        counters: DriverCounters::from_array([0, 0, frames, 1, 0, 0]),
    }
}

fn hears_nothing(link: &mut SwitchLink) -> bool {
    matches!(link.recv().unwrap(), LinkEvent::Nothing)
}

/// Returns whether the next message is the interface.
fn gets_interface(link: &mut SwitchLink) -> bool {
    let (event, fds) = answer(link);
    matches!(event, EventToSwitch::Interface { .. }) && fds.len() == 1
}

#[test]
fn interfaces_are_those_of_the_serving_switch() {
    with_veth(|| {
        let mut world = world_with_interface();
        let mut old = world.starts_switch();
        world.hears(PairRef::Serving, &old, &[DIAL]);
        assert!(gets_interface(&mut old));
        world.hears(PairRef::Serving, &old, &[counted(3)]);
        assert_eq!(world.frames(), 3);
        let (_control, mut new) = world.begin_hand_over(Stage::Restoring);
        new.set_nonblocking().unwrap();
        world.hears(PairRef::Next, &new, &[DIAL, counted(100)]);
        assert!(hears_nothing(&mut new) && world.frames() == 3, "not yet");
        hand_over::poll(&mut world.supervisor);
        assert_eq!(answer(&mut new).0, EventToSwitch::TakeOver);
        world.hears(PairRef::Serving, &old, &[DIAL, counted(100)]);
        assert!(
            hears_nothing(&mut old) && world.frames() == 3,
            "its time is over"
        );
        world.hears(PairRef::Next, &new, &[DIAL]);
        assert!(gets_interface(&mut new));
        world.hears(PairRef::Next, &new, &[counted(5)]);
        assert_eq!(world.frames(), 8);
    });
}

#[test]
fn the_next_switch_gets_interfaces_before_it_takes_over() {
    with_veth(|| {
        let mut world = world_with_interface();
        let mut old = world.starts_switch();
        world.hears(PairRef::Serving, &old, &[DIAL]);
        assert!(gets_interface(&mut old));
        let at_ns = 0;
        let quiesced = [counted(3), SwitchRequest::Quiesced { at_ns }];
        // The first one fails: the old switch goes on.
        for is_late in [true, false] {
            let (_control, mut new) = world.begin_hand_over(Stage::Quiescing);
            new.set_nonblocking().unwrap();
            world.hears(PairRef::Serving, &old, &quiesced);
            if is_late {
                let next = world.supervisor.hand_over.next.as_mut().unwrap();
                next.milestone = None;
                next.enter(Stage::Restoring, Duration::ZERO);
                world.supervisor.queue_all();
                hand_over::poll(&mut world.supervisor);
                assert_eq!(answer(&mut old).0, EventToSwitch::Resume);
                assert!(!world.supervisor.has_queued() && world.frames() == 3);
                continue;
            }
            hand_over::poll(&mut world.supervisor);
            assert!(gets_interface(&mut new));
            assert_eq!(answer(&mut new).0, EventToSwitch::TakeOver);
            world.hears(PairRef::Serving, &old, &[counted(100)]);
            world.hears(PairRef::Next, &new, &[counted(5)]);
            assert_eq!(world.frames(), 8);
            assert!(hears_nothing(&mut new));
        }
    });
}

#[test]
fn a_port_that_crashes_the_switch_three_times_gets_no_interface() {
    with_veth(|| {
        let mut world = world_with_interface();
        for crash in 1..=3 {
            let mut link = world.starts_switch();
            if crash > 1 {
                world.supervisor.set_up_switch().unwrap();
                assert!(matches!(answer(&mut link).0, EventToSwitch::Start(_)));
                world.supervisor.send_queued(PairRef::Serving).unwrap();
                assert!(gets_interface(&mut link), "{crash}");
            }
            world.hears(PairRef::Serving, &link, &[DIAL]);
            assert!(gets_interface(&mut link), "{crash}");
            // Its last message.
            link.send(&counted(1), &[]).unwrap();
            world.switch_crashes();
            assert_eq!(world.frames(), crash);
        }
        let mut link = world.starts_switch();
        world.supervisor.set_up_switch().unwrap();
        assert!(matches!(answer(&mut link).0, EventToSwitch::Start(_)));
        world.supervisor.send_queued(PairRef::Serving).unwrap();
        assert!(hears_nothing(&mut link));
        world.hears(PairRef::Serving, &link, &[DIAL]);
        assert!(!gets_interface(&mut link));
        let reason = world.supervisor.drivers.states()[0].reason.clone();
        let reason = reason.unwrap();
        assert!(reason.starts_with("out of service: "), "{reason}");
    });
}
