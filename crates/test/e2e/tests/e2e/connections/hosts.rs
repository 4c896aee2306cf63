//! A guest that migrates to another host, over uplinks that are joined: the table there has never
//! seen its connections.

use std::path::Path;

use e2e::guest::{Guest, GuestSpec, two_guests};
use e2e::lasthop::Lasthop;
use e2e::traffic::{IperfRun, serve_iperf_at};
use e2e::{is_long, machine};
use testkit::lasthop::port;
use testkit::netns::Netns;

use super::{Transfer, config};

fn uplink(netns: &Path, interface: &str) -> String {
    format!(
        "[[port]]\nname = \"uplink\"\nkind = \"uplink\"\ninterface = \"{interface}\"\n\
         netns = \"{}\"\n",
        netns.display()
    )
}

#[test]
fn a_guest_that_migrates_to_another_host_keeps_its_transfers() {
    if !is_long() || !Netns::allowed() {
        return;
    }
    let turn = machine();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let [here, there] = ["here", "there"].map(|name| Netns::new(name, folder.path()));
    e2e::uplinks::wire(&here, &there);
    let ports = port("vm1", "") + &uplink(&here.path(), "up0");
    let first = Lasthop::start(&config("", &ports));
    let second = Lasthop::start(&config("", &uplink(&there.path(), "wire0")));
    for lasthop in [&first, &second] {
        lasthop.wait_port("uplink", "up");
    }
    turn.step("boot two guests");
    let (mut vm1, mut vm2) = two_guests(&first);
    serve_iperf_at(&mut vm2, 443);
    serve_iperf_at(&mut vm1, 5201);
    let runs = [
        IperfRun::start(&mut vm1, "10.0.0.2", 600, "-p 443 -b 8M"),
        IperfRun::start(&mut vm2, "10.0.0.1", 600, "-R -b 8M"),
    ];
    let upload = Transfer::to_port(&first, 443);
    let download = Transfer::to_port(&first, 5201);
    for transfer in [&upload, &download] {
        transfer.goes_on(&first);
    }

    turn.step("the server migrates");
    let way = folder.path().join("migration");
    let spec = GuestSpec::at(&first, "vm2", 2).arriving(second.socket_of("vm2"), &way);
    let mut next: Guest = spec.start();
    next.wait_ready_for_arrival();
    vm2.migrate(&way);
    vm2.let_go();
    let migrated = vm2.wait_migrated();
    turn.step(&format!("    {migrated:?}"));
    for transfer in [&upload, &download] {
        let look = transfer.goes_on(&second);
        turn.step(&format!("    there: {look:?}"));
        assert!(look.ports.contains(&"uplink".to_owned()), "{look:?}");
    }
    runs.into_iter().for_each(IperfRun::abandon);
    drop((vm1, vm2, next));
    first.stop();
    second.stop();
}
