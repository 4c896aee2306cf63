//! The guest image by itself: two guests connected back to back, without a switch. When this fails,
//! nothing that the other end-to-end tests say means anything.

use std::time::{Duration, Instant};

use e2e::guest::GuestSpec;
use e2e::traffic::{iperf, ping, serve_iperf};
use e2e::turn;
use testkit::wait::wait_for;

#[test]
fn two_guests_talk_back_to_back() {
    let turn = turn();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let socket = folder.path().join("wire");

    turn.step("boot the first guest");
    let began = Instant::now();
    let mut one = GuestSpec::back_to_back("one", socket.clone(), true)
        .ip("10.0.0.1/24")
        .start();
    wait_for("QEMU listens", || socket.exists().then_some(()));
    one = one.ready();
    let alone = began.elapsed();
    turn.step(&format!("it took {alone:?}; boot the second"));
    let mut two = GuestSpec::back_to_back("two", socket, false)
        .ip("10.0.0.2/24")
        .start()
        .ready();

    turn.step("the agent reports output and exit status");
    assert_eq!(one.run("echo out; echo err >&2"), "out\nerr\n");
    assert_eq!(one.status("exit 7"), 7);
    assert_eq!(
        one.run("head -c 20000 /dev/zero | tr '\\0' x").len(),
        20_000
    );
    let slow = two.start("sleep 1; echo slow");
    assert_eq!(two.run("echo fast"), "fast\n");
    assert_eq!(slow.wait(Duration::from_secs(10)), "slow\n");

    turn.step("ping");
    assert_eq!(ping(&mut one, "10.0.0.2", 50).lost(), 0);

    turn.step("iperf3");
    serve_iperf(&mut two);
    let run = iperf(&mut one, "10.0.0.2", 2, "");
    assert!(run.bytes > 1_000_000, "{run:?}");

    turn.step("reset, and reboot from inside");
    one.reset();
    assert_eq!(ping(&mut one, "10.0.0.2", 5).lost(), 0);
    one.reboot();
    assert_eq!(ping(&mut one, "10.0.0.2", 5).lost(), 0);
}
