//! Nothing is leaked over fifty repetitions: descriptors and mappings are counted in a process of
//! its own, which is this test binary again.

use std::process::Command;

use testkit::{GuestConfig, procfs};

use crate::host::{Host, wait_for};
use crate::traffic::{stray, talk};

const CHILD: &str = "LASTHOP_LEAK_TEST";

/// Open descriptors and mapped files.
fn held() -> (Option<u64>, usize) {
    let own = std::process::id();
    (procfs::descriptors(own), procfs::mapped(own, "memfd:"))
}

#[test]
fn nothing_leaks_over_fifty_cycles_of_connect_traffic_and_crash() {
    if std::env::var_os(CHILD).is_some() {
        return cycles();
    }
    let name = "leaks::nothing_leaks_over_fifty_cycles_of_connect_traffic_and_crash";
    let output = Command::new(std::env::current_exe().expect("a path"))
        .args(["--exact", name, "--nocapture"])
        .env(CHILD, "1")
        .output()
        .expect("a child");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

fn cycles() {
    let mut host = Host::with_ports([1, 2]);
    let before = {
        cycle(&mut host, 0);
        cycle(&mut host, 1);
        cycle(&mut host, 2);
        held()
    };
    for n in 0..50 {
        cycle(&mut host, n);
    }
    wait_for("descriptors and mappings as before", || held() == before);
}

fn cycle(host: &mut Host, n: usize) {
    let config = GuestConfig {
        memory_slots: n % 5 == 1,
        ..GuestConfig::default()
    };
    let config = if n.is_multiple_of(2) {
        config.packed()
    } else {
        config
    };
    let mut a = host.guest(1, config.clone());
    let mut b = host.guest(2, config);
    talk(&mut a, &mut b, 20);
    match n % 5 {
        0 => b.reset().expect("a reboot"),
        1 => drop(b.start_log().expect("a log")),
        2 => {
            // A fault on the way.
            let at = a.ram().alloc(64, 64);
            let short = testkit::driver::RawDesc {
                gpa: at,
                len: 3,
                flags: 0,
            };
            a.pairs[0].nic.tx.add_raw(&[short], 0).expect("room");
            a.pairs[0].nic.tx.publish();
            a.pairs[0].tx_kick.signal();
            host.wait_fault(1, 1);
        }
        3 => {
            host.kill_control();
            host.start_control();
        }
        _ => {
            host.remove_port(2);
            host.add_port(2, 1);
        }
    }
    if n % 5 != 2 {
        (0..10).for_each(|_| drop(a.send(&stray(1, 2, 1000))));
    }
    a.crash();
    host.gone((a, b), 2);
}
