//! vCPUs of QEMU guests are found, with named threads and without, and their states are used; kicks
//! of a guest that sends steadily are coalesced.

use std::time::Duration;

use e2e::guest::{GuestSpec, boot};
use e2e::lasthop::Lasthop;
use e2e::traffic::{IperfRun, serve_iperf};
use e2e::{machine, paths};
use serde_json::Value;
use testkit::lasthop::port;
use testkit::skip::skipped;
use testkit::wait::within;

/// Time for the search, and for enough traffic.
const LIMIT: Duration = Duration::from_secs(120);
/// Seconds of traffic at once.
const TRAFFIC: u32 = 2;

/// Returns the number of vCPUs that were found at a port, the evidence, and deferred notifications.
fn vcpus(lasthop: &Lasthop, port: &str) -> (u64, String, u64) {
    let port = lasthop.json(&["port", "show", port]);
    let number = |value: &Value| value.as_u64().unwrap_or_default();
    let by = port["vcpu_search"]["by"].as_str().unwrap_or_default();
    let deferred = number(&port["notifications"]["deferred"]);
    (number(&port["vcpus"]), by.to_owned(), deferred)
}

#[test]
fn vcpus_of_qemu_are_found_and_notifications_deferred() {
    let turn = machine();
    // The window of kicks is long, because emulated guests send slowly.
    let states = "[switch]\nname = \"host1\"\nguest_state = \"bpf\"\n\
        [switch.coalescing]\nkick_us = 1000\n";
    let lasthop = Lasthop::start(&format!("{states}{}{}", port("vm1", ""), port("vm2", "")));
    let status = lasthop.json(&["status"]);
    let states = &status["switch"]["guest_state"];
    if states["by"] != "bpf" {
        return skipped(&states["reason"]);
    }
    turn.step("boot a guest with named threads, and one without");
    let named = GuestSpec::at(&lasthop, "vm1", 1);
    let plain = GuestSpec::at(&lasthop, "vm2", 2).without_thread_names();
    let [mut named, mut plain] = boot([named, plain]);
    serve_iperf(&mut named);
    serve_iperf(&mut plain);

    turn.step("traffic until both are found and their notifications are deferred");
    let done = within(LIMIT, || {
        // Each guest receives long frames in turn, which keep its vCPU busy.
        IperfRun::start(&mut named, "10.0.0.2", TRAFFIC, "").wait();
        IperfRun::start(&mut plain, "10.0.0.1", TRAFFIC, "").wait();
        let ports = ["vm1", "vm2"].map(|port| vcpus(&lasthop, port));
        let known = |(found, _, deferred): &(u64, String, u64)| *found > 0 && *deferred > 0;
        ports.iter().all(known).then_some(())
    });
    let ports = ["vm1", "vm2"].map(|port| vcpus(&lasthop, port));
    assert!(done.is_some(), "{ports:?}");

    turn.step("small frames at a steady rate until kicks are coalesced");
    let coalesced = within(LIMIT, || {
        IperfRun::start(&mut named, "10.0.0.2", 1, "-u -l 64 -b 4M").wait();
        let port = lasthop.json(&["port", "show", "vm1"]);
        port["notifications"]["coalesced_kicks"]
            .as_u64()
            .filter(|count| *count > 0)
    });
    assert!(
        coalesced.is_some(),
        "{}",
        lasthop.json(&["port", "show", "vm1"])
    );
    let [(of_named, by_names, _), (of_plain, by_evidence, _)] = ports;
    assert_eq!((of_named, by_names.as_str()), (1, "names"));
    let evidence: &[&str] = match paths::accelerator() {
        "kvm" => &["debugfs", "tracepoints", "activity"],
        _ => &["activity"],
    };
    assert!(
        of_plain == 1 && evidence.contains(&by_evidence.as_str()),
        "{by_evidence}"
    );
    lasthop.stop();
}
