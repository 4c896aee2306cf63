//! Helpers on idle cores in the shipped programs, with their sandbox.

use testkit::lasthop::{Place, Running, port};
use testkit::lean::{Lean, LeanConfig, Until};
use testkit::wait::LIMIT;

fn start(place: &Place, helpers: &str) -> Running {
    // With known addresses no frame is flooded to a third guest.
    let known = |n| port(&format!("vm{n}"), &format!("mac = \"02:00:00:00:00:0{n}\""));
    let ports: String = (1..=4).map(known).collect();
    place.start(&format!(
        "[switch]\nname = \"host1\"\nworkers = 1\n{helpers}{ports}"
    ))
}

/// Super-frames between two pairs of guests: those that a worker hands to helpers.
fn bulk(place: &Place) {
    let socket = |n| place.run_dir().join(format!("vm{n}.sock"));
    let mut guests = Lean::connect(LeanConfig {
        sockets: (1..=4).map(socket).collect(),
        macs: (1..=4).map(|n| [2, 0, 0, 0, 0, n]).collect(),
        bulk: true,
        batch: 1,
        queue_size: 256,
        rx_buffer: 4096,
        patience: LIMIT,
        ..LeanConfig::default()
    })
    .unwrap();
    let report = guests.run(Until::Sent(1000)).unwrap();
    assert_eq!(
        (report.lost, report.received),
        (0, 4 * 1000),
        "none is lost"
    );
    assert!(report.payload_agrees(), "every byte is as it was sent");
}

fn helpers(lasthop: &Running) -> u64 {
    let status = lasthop.json("status");
    status["switch"]["helpers"].as_u64().unwrap()
}

#[test]
fn helpers_that_are_enabled_run_in_the_sandbox_or_the_log_has_the_reason() {
    let place = Place::new();
    let lasthop = start(&place, "[switch.helpers]\nenabled = true\n");
    let cores = std::thread::available_parallelism().unwrap().get() as u64;
    let refused = lasthop
        .log()
        .contains("no helpers: RLIMIT_NICE is below 20");
    let expected = if refused { 0 } else { cores };
    assert_eq!(helpers(&lasthop), expected, "{}", lasthop.log());
    bulk(&place);
}

#[test]
fn by_default_there_are_no_helpers() {
    let place = Place::new();
    let lasthop = start(&place, "");
    assert_eq!(helpers(&lasthop), 0);
    assert!(!lasthop.log().contains("helper"), "{}", lasthop.log());
    bulk(&place);
}
