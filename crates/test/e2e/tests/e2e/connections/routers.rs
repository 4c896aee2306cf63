//! Routers behind a stateful guest: their errors come back, and datagrams in fragments.

use e2e::guest::GuestSpec;
use e2e::lasthop::Lasthop;
use e2e::machine;
use e2e::uplinks::tap;
use testkit::netns::Netns;

use super::{config, list};

/// The router's address for the guest, and a host behind it.
const ROUTER: &str = "10.0.0.254";
const FAR: &str = "192.0.2.9";

#[test]
fn traceroute_and_long_pings_of_a_guest_get_their_answers() {
    if !Netns::allowed() {
        return;
    }
    let turn = machine();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let [router, far] = ["router", "far"].map(|name| Netns::new(name, folder.path()));
    router.ip(&format!(
        "link add out0 type veth peer name in0 netns {}",
        far.pid()
    ));
    for (netns, interface, address) in [(&router, "out0", "192.0.2.1"), (&far, "in0", FAR)] {
        netns.ip(&format!("address add {address}/24 dev {interface}"));
        netns.ip(&format!("link set {interface} up"));
    }
    far.ip("route add default via 192.0.2.1");
    router.run(|| std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").expect("rights"));
    let gate = tap("gate", &router.path(), &format!("{ROUTER}/24"), "");
    let lasthop = Lasthop::start(&config("", &gate));
    lasthop.wait_port("gate", "up");
    turn.step("boot the guest");
    let mut guest = GuestSpec::at(&lasthop, "vm2", 2).start().ready();
    guest.run(&format!("ip route add default via {ROUTER}"));

    turn.step("traceroute");
    let hops = guest.run(&format!("traceroute -n -q 1 -w 2 -m 4 {FAR} 2>&1"));
    let lines: Vec<&str> = hops.lines().skip(1).collect();
    assert_eq!(lines.len(), 2, "{hops}");
    assert!(lines[0].contains(ROUTER), "{hops}");
    assert!(lines[1].contains(FAR), "{hops}");
    let probes = list(&lasthop, &format!("udp and host {FAR}"));
    assert_eq!(probes.len(), 2, "{probes:?}");

    turn.step("datagrams of six fragments");
    let pings = guest.run(&format!("ping -c 5 -i 0.1 -W 5 -s 8000 {FAR}"));
    assert!(pings.contains(" 0% packet loss"), "{pings}");
    let drops = lasthop.stats();
    assert_eq!(drops.get("drops.fragment-early"), 0, "{drops:?}");
    drop(guest);
    lasthop.stop();
}
