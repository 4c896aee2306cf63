//! A VM, a program of the netmap API and testpmd on memif in one segment: each talks to the others.

use e2e::guest::GuestSpec;
use e2e::lasthop::Lasthop;
use e2e::machine;
use e2e::slotgen::Slotgen;
use e2e::testpmd::{Driver, Testpmd, TestpmdSpec};
use e2e::traffic::ping;

const CONFIG: &str = r#"
[switch]
name = "host1"

[[segment]]
name = "nfv"

[[segment]]
name = "other"

[[port]]
name = "vm"
kind = "vhost-user"
socket = "vm.sock"
segment = "nfv"

[[port]]
name = "program"
kind = "netmap"
segment = "nfv"

[[port]]
name = "cnf"
kind = "memif"
segment = "nfv"
port_security = { macs = "any" }

[[port]]
name = "spare"
kind = "memif"
segment = "other"
port_security = { macs = "any" }
"#;

/// The addresses of testpmd's first port, and of the program.
const CNF: &str = "02:00:00:00:00:01";
const PROGRAM: &str = "02:00:00:00:00:77";

#[test]
fn a_vm_a_netmap_program_and_a_memif_client_talk() {
    let turn = machine();
    let lasthop = Lasthop::start(CONFIG);
    turn.step("boot a guest; a program on netmap, testpmd on memif");
    let vm = GuestSpec::at(&lasthop, "vm", 1).start();
    let mut testpmd = Testpmd::start(&TestpmdSpec {
        sockets: ["cnf.memif", "spare.memif"].map(|name| lasthop.socket(name)),
        driver: Driver::Memif {
            zero_copy: false,
            secret: None,
        },
    });
    let folder = lasthop.folder();
    let answers = format!("pong -i netmap:program -a 10.0.0.77 -S {PROGRAM}");
    let program = Slotgen::start(&folder, &answers);
    lasthop.wait_port("cnf", "up");
    let port = lasthop.wait_port("program", "up");
    assert_eq!(port["client"]["program"], "slotgen");
    let mut vm = vm.ready();

    turn.step("the VM and the program");
    assert_eq!(ping(&mut vm, "10.0.0.77", 30).lost(), 0);

    turn.step("the VM and testpmd, which answers for any address");
    testpmd.forward("icmpecho");
    assert_eq!(ping(&mut vm, "10.0.0.50", 30).lost(), 0);
    testpmd.stop_forwarding();

    turn.step("the program and testpmd, which sends frames back");
    drop(program);
    testpmd.forward("macswap");
    let asks = format!("ping -i netmap:program -n 200 -S {PROGRAM} -D {CNF}");
    let printed = Slotgen::start(&folder, &asks).printed();
    assert_eq!(printed.counts(), [200, 0, 0, 0], "{printed:?}");
    testpmd.stop_forwarding();

    testpmd.quit();
    drop(vm);
    lasthop.stop();
}
