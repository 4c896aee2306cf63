//! An interface in the switch whose frames crash the switch. It is in a network namespace of the
//! test's own; where none can be had, the test says so and ends.

use std::time::Duration;

use port::PortId;
use rustix::process::Signal;
use testkit::lasthop::{Place, Running, port};
use testkit::netns::{Netns, Wire};
use testkit::packets::{Flow, ethernet, mac, udp};
use testkit::stop::Stop;
use testkit::wait::wait_until;
use testkit::{FakeGuest, GuestConfig};

use crate::crashes::{crash_switch_for, send_until};

/// The station beyond the interface.
const STATION: u8 = 9;

/// Two guests, and a TAP port in a namespace.
fn config(netns: &Netns) -> String {
    format!(
        "[switch]\nname = \"host1\"\nworkers = 1\n{}{}[[port]]\nname = \"t0\"\nkind = \"tap\"\n\
         netns = \"{}\"\n",
        port("vm1", ""),
        port("vm2", ""),
        netns.path().display()
    )
}

/// Has the station send a frame to guest 1.
fn speaks(wire: &Wire) {
    wire.send(&ethernet(mac(1), mac(STATION), 0x88b5, &[1; 60]));
}

/// Has the station send a frame after each pause, until `stop`.
fn speaks_until(wire: &Wire, stop: &Stop, pause: Duration) {
    while !stop.is_set() {
        speaks(wire);
        std::thread::sleep(pause);
    }
}

/// Returns the ports that were blamed, with a number each time.
fn blamed(lasthop: &Running) -> Vec<String> {
    let log = lasthop.log();
    let lines = log
        .lines()
        .filter(|line| line.contains("switch crashed while serving this port"));
    let number = |line: &str| Some(line.split_once("port=")?.1.split(' ').next()?.to_owned());
    lines.filter_map(number).collect()
}

/// Ends the switch while its worker serves `t0`, until the supervisor has had enough of that.
fn crash_until_refused(lasthop: &Running, t0: PortId) {
    for _ in 0..10 {
        if lasthop.log().contains("out of service") {
            break;
        }
        wait_until("the port is up", || lasthop.state("t0") == "up");
        crash_switch_for(lasthop, |port| port == t0);
    }
    wait_until("the port is out of service", || {
        lasthop
            .prints("port show t0")
            .contains("out of service: the switch has crashed 3 times")
    });
}

/// Guests that send to the interface are not blamed, nor is their connection lost, when the switch
/// dies in a call for it.
#[test]
fn an_interface_that_crashes_the_switch_is_taken_out_of_service_and_guests_continue() {
    if !Netns::allowed() {
        return;
    }
    let place = Place::new();
    let netns = Netns::new("near", &place.path(""));
    let mut lasthop = place.start(&config(&netns));
    wait_until("the interface is there", || lasthop.state("t0") == "up");
    let wire = netns.wire("t0");
    // No guest is connected: this is its number.
    let stop = Stop::new();
    let t0 = std::thread::scope(|scope| {
        let stopping = stop.at_end();
        scope.spawn(|| speaks_until(&wire, &stop, Duration::ZERO));
        let t0 = crash_switch_for(&lasthop, |_| true);
        drop(stopping);
        t0
    });
    let mut guests = [1, 2].map(|n| {
        let socket = place.run_dir().join(format!("vm{n}.sock"));
        FakeGuest::connect(&socket, GuestConfig::default().guest(n)).unwrap()
    });
    let stop = Stop::new();
    std::thread::scope(|scope| {
        let stopping = stop.at_end();
        // Each new switch has to learn where it is.
        scope.spawn(|| speaks_until(&wire, &stop, Duration::from_millis(20)));
        scope.spawn(|| send_until(&mut guests[0], &stop));
        crash_until_refused(&lasthop, t0);
        drop(stopping);
    });
    let blamed = blamed(&lasthop);
    assert!(blamed.len() >= 3, "{blamed:?}");
    assert!(
        blamed.iter().all(|port| *port == t0.0.to_string()),
        "{blamed:?}"
    );
    assert!(
        !lasthop.log().contains("crashed repeatedly"),
        "{}",
        lasthop.log()
    );
    // Connections are as they were, and the switch serves them.
    let [a, b] = &mut guests;
    let frame = udp(&Flow::v4(1, 2), b"hello");
    wait_until("frames pass between guests", || {
        a.send(&frame).unwrap();
        let got = b.recv_all().unwrap();
        got.iter().any(|got| got.frame == frame)
    });
    let listed = lasthop.prints("port list");
    assert!(listed.contains("out of service"), "{listed}");
    // A process of its own is no danger to others.
    lasthop.prints("port set t0 --driver-process=true");
    wait_until("the port is up", || lasthop.state("t0") == "up");
    let status = lasthop.json("port show t0");
    assert!(status["driver_status"]["pid"].is_number(), "{status}");
    let [a, _] = &mut guests;
    a.recv_all().unwrap();
    wait_until("frames come from the interface", || {
        speaks(&wire);
        !a.recv_all().unwrap().is_empty()
    });
    lasthop.end(Signal::TERM);
}
