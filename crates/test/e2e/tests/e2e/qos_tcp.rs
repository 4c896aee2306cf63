//! TCP from interfaces to a scheduled port: frames of a TAP port wait, those of an uplink are
//! dropped beyond a burst, and neither takes the connection its rate.

use std::time::Instant;

use e2e::lasthop::Lasthop;
use e2e::machine;
use e2e::uplinks::{LOAD, tap, transfer, uplink, wire};
use testkit::netns::Netns;

/// Bytes of a transfer.
const SIZE: usize = LOAD / 4;
/// Retransmission time-outs of a transfer, at most: one that lives on them has hundreds.
const TIME_OUTS: u64 = 40;

/// Retransmission time-outs in a namespace so far.
fn time_outs(netns: &Netns) -> u64 {
    let counters = netns.run(|| std::fs::read_to_string("/proc/thread-self/net/netstat"));
    let counters = counters.expect("the counters of TCP");
    let words = |line: &str| -> Vec<String> { line.split(' ').map(str::to_owned).collect() };
    let lines: Vec<Vec<String>> = counters.lines().map(words).collect();
    let tables = lines.chunks_exact(2);
    let mut all = tables.flat_map(|pair| pair[0].iter().zip(&pair[1]));
    let (_, count) = all
        .find(|(name, _)| *name == "TCPTimeouts")
        .expect("one of them");
    count.parse().expect("a number")
}

#[test]
fn tcp_of_a_tap_port_and_of_an_uplink_gets_to_a_scheduled_port() {
    if !Netns::allowed() {
        return;
    }
    let turn = machine();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let [host, near, far] = ["host", "near", "far"].map(|name| Netns::new(name, folder.path()));
    wire(&host, &far);
    far.ip("address add 10.0.0.9/24 dev wire0");
    let ports = [
        tap(
            "t0",
            &near.path(),
            "10.0.0.1/24",
            "egress = { rate = \"50M\" }",
        ),
        tap("t1", &host.path(), "10.0.0.2/24", ""),
        uplink(&host.path(), "driver = \"packet\""),
    ];
    let lasthop = Lasthop::start(&format!("[switch]\nname = \"host1\"\n{}", ports.concat()));
    for port in ["t0", "t1", "uplink"] {
        lasthop.wait_port(port, "up");
    }
    for (port, from, number) in [("t1", &host, 5001), ("uplink", &far, 5002)] {
        let (before, waited) = (lasthop.stats(), time_outs(from));
        let began = Instant::now();
        transfer(from, &near, &format!("10.0.0.1:{number}"), SIZE);
        let took = began.elapsed();
        turn.step(&format!(
            "{port}: {:.0} Mbit/s",
            8e-6 * SIZE as f64 / took.as_secs_f64()
        ));
        let waited = time_outs(from) - waited;
        assert!(waited < TIME_OUTS, "{port}: {waited} time-outs in {took:?}");
        let dropped = lasthop
            .stats()
            .since(&before)
            .get(&format!("{port}.drops.rate-limited"));
        assert_eq!(dropped > 0, port == "uplink", "{dropped} of {port}");
    }
    lasthop.stop();
}
