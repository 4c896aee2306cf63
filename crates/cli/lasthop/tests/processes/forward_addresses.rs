//! Forwards of user ports listen where the start permits it: at its own forwards, and at loopback,
//! their addresses and those of `forward_addresses` above the ports of the host's services.

use std::net::{TcpListener, TcpStream};

use rustix::process::Signal;
use testkit::lasthop::{Place, Running};
use testkit::wait::wait_until;

/// Error for a place that the start does not permit.
const BEYOND: &str = "further addresses are for forward_addresses of [switch], and take a restart";

/// Returns a configuration with these addresses, and forwards at these places.
fn config(addresses: &str, listens: &[&str]) -> String {
    let forward =
        |listen: &&str| format!("[[port.forward]]\nlisten = \"{listen}\"\nto = \"10.0.2.15:22\"\n");
    let forwards: String = listens.iter().map(forward).collect();
    format!(
        "[switch]\nname = \"host1\"\nforward_addresses = [{addresses}]\n\
         [[port]]\nname = \"out\"\nkind = \"user\"\n{forwards}"
    )
}

/// Returns a port that is free on all addresses now.
fn free() -> u16 {
    let socket = TcpListener::bind(("0.0.0.0", 0)).unwrap();
    socket.local_addr().unwrap().port()
}

fn listens(port: u16) -> bool {
    TcpStream::connect(("127.0.0.1", port)).is_ok()
}

/// Returns the words of a command that adds a forward there.
fn add(listen: &str) -> [&str; 6] {
    ["port", "forward", "add", "out", listen, "10.0.2.15:22"]
}

/// Checks that a command is refused, with exit status 2 and these words.
fn refused(lasthop: &Running, words: &[&str]) {
    let output = lasthop.run(words);
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{words:?}: {complaint}");
    assert!(complaint.contains(BEYOND), "{words:?}: {complaint}");
}

#[test]
fn other_addresses_are_refused_at_run_time() {
    let place = Place::new();
    let (all, more) = (free(), free());
    let (tcp, own) = (
        format!("tcp 0.0.0.0:{all}"),
        format!("tcp 127.0.0.1:{}", free()),
    );
    let mut lasthop = place.start(&config("", &[&own]));
    for how in ["", "control", "upgrade"] {
        match how {
            "" => {}
            "upgrade" => drop(lasthop.prints("upgrade")),
            process => drop(lasthop.kill_and_wait(process)),
        }
        wait_until("it answers", || lasthop.cli("status").status.success());
        refused(&lasthop, &add(&tcp));
        refused(&lasthop, &add("tcp 127.0.0.1:7"));
        std::fs::write(place.path("lasthop.toml"), config("", &[&own, &tcp])).unwrap();
        refused(&lasthop, &["reload"]);
        let loopback = format!("tcp 127.0.0.1:{more}");
        let added = lasthop.run(&add(&loopback));
        assert!(added.status.success(), "{added:?}");
        wait_until("loopback is permitted", || listens(more));
        lasthop.run(&["port", "forward", "remove", "out", &loopback]);
    }
    assert!(!listens(all));
    lasthop.end(Signal::TERM);
    let mut lasthop = place.start(&config("\"0.0.0.0\"", &[&own]));
    let added = lasthop.run(&add(&tcp));
    assert!(added.status.success(), "{added:?}");
    wait_until("the address is permitted", || listens(all));
    refused(&lasthop, &add("tcp 0.0.0.0:7"));
    lasthop.end(Signal::TERM);
    assert_eq!(place.left(), [""; 0]);
}
