//! Changes of uplinks at run time that need another driver process, or change the present one: the
//! interface, what moves its frames, the CPU weight.
//!
//! Everything is in network namespaces of the test's own; where they cannot be had, a test says so
//! and ends.

use std::net::UdpSocket;
use std::path::Path;
use std::time::Duration;

use e2e::lasthop::Lasthop;
use e2e::nested::{Host, Kernel, enter_group, is_inside};
use e2e::uplinks::{LOAD, OWN_PROCESS, both_ways, driver_pid, tap, transfer, uplink, wire};
use e2e::{beside, is_long, machine};
use rustix::process::Signal;
use testkit::FakeGuest;
use testkit::netns::Netns;
use testkit::packets::{self, Flow, Numbered, SequenceChecker, numbered_payload};
use testkit::process::send as signal;
use testkit::stop::Stop;
use testkit::wait::{wait_for, wait_until};

/// A command that Lasthop must refuse with these words, and this exit status.
fn refuses(lasthop: &Lasthop, command: &str, (words, status): (&str, i32)) {
    let output = lasthop.cli(&command.split(' ').collect::<Vec<_>>());
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(complaint.contains(words), "{command}: {complaint}");
    assert_eq!(output.status.code(), Some(status), "{command}: {complaint}");
}

/// Stops a process.
fn stop(pid: u32) {
    signal(pid, Signal::STOP);
    wait_until("it is stopped", || {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"));
        stat.expect("a process").contains(") T ")
    });
}

/// The number of packet sockets in a namespace.
fn packet_sockets(netns: &Netns) -> usize {
    let table = netns.run(|| std::fs::read_to_string("/proc/thread-self/net/packet"));
    table.expect("the table of packet sockets").lines().count() - 1
}

#[test]
fn an_uplink_moves_to_another_interface() {
    if !Netns::allowed() {
        return;
    }
    let turn = beside();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let names = ["host", "far", "other", "near"];
    let [host, far, other, near] = names.map(|name| Netns::new(name, folder.path()));
    wire(&host, &far);
    far.ip("address add 10.1.0.9/24 dev wire0");
    let link = format!(
        "link add up1 type veth peer name wire1 netns {}",
        other.pid()
    );
    host.ip(&link);
    host.ip("link set up1 up");
    other.ip("link set wire1 up");
    other.ip("address add 10.1.0.8/24 dev wire1");
    let ports = |interface: &str| {
        let more = format!("driver = \"packet\"\nmtu = 1500\n{OWN_PROCESS}");
        let uplink = uplink(&host.path(), &more);
        let uplink = uplink.replace("\"up0\"", &format!("{interface:?}"));
        tap("t0", &near.path(), "10.1.0.1/24", "") + &uplink
    };
    let lasthop = Lasthop::start(&ports("up0"));
    lasthop.wait_port("uplink", "up");
    transfer(&near, &far, "10.1.0.9:5001", 1 << 20);
    turn.step("a driver that died once");
    let first = driver_pid(&lasthop, "uplink").expect("a driver");
    signal(first, Signal::KILL);
    let second = lasthop.other_driver("uplink", first);
    lasthop.wait_port("uplink", "up");
    let (before, t0) = (lasthop.stats(), driver_pid(&lasthop, "t0"));

    turn.step("another interface: number, counters and settings stay");
    lasthop.ok(&["port", "set", "uplink", "--interface", "up1"]);
    let third = lasthop.other_driver("uplink", second);
    let status = lasthop.wait_port("uplink", "up");
    assert_eq!(
        (&status["interface"], &status["mtu"]),
        (&"up1".into(), &1500.into())
    );
    assert_eq!(status["driver_status"]["restarts"], 1, "{status}");
    transfer(&near, &other, "10.1.0.8:5001", 1 << 20);
    let after = lasthop.stats();
    for counter in ["uplink.from_guest.packets", "uplink.to_guest.packets"] {
        assert!(after.get(counter) > before.get(counter), "{counter}");
    }
    assert_eq!(packet_sockets(&host), 1, "the old interface is free");
    let moved = after.since(&before);
    assert_eq!(moved.get("uplink.drops.driver-ended"), 0, "{moved:?}");

    turn.step("another driver and namespace, by the command");
    lasthop.ok(&["port", "set", "uplink", "--driver", "auto", "--no-netns"]);
    lasthop.wait_reason("uplink", "interface up1: No such device");
    let path = host.path();
    let back = ["--driver", "packet", "--netns", &path.to_string_lossy()];
    lasthop.ok(&[&["port", "set", "uplink"][..], &back].concat());
    let third = lasthop.other_driver("uplink", third);
    lasthop.wait_port("uplink", "up");

    turn.step("interfaces that cannot be had change nothing");
    let conflict = ("lo: not an Ethernet interface", 2);
    refuses(&lasthop, "port set uplink --interface lo", conflict);
    refuses(
        &lasthop,
        "port set uplink --interface a/b",
        ("the name of an interface", 2),
    );
    assert_eq!(driver_pid(&lasthop, "uplink"), Some(third));
    assert_eq!(lasthop.port("uplink")["interface"], "up1");

    turn.step("one that is missing is waited for, as at the start");
    let printed = lasthop.ok(&["port", "set", "uplink", "--interface", "up2"]);
    let missing = "port uplink changed, dialing: interface up2: No such device";
    assert!(printed.starts_with(missing), "{printed}");
    lasthop.wait_reason("uplink", "interface up2: No such device");
    host.ip("link set up1 down");
    host.ip("link set up1 name up2");
    host.ip("link set up2 up");
    lasthop.wait_port("uplink", "up");
    transfer(&near, &other, "10.1.0.8:5002", 1 << 20);

    turn.step("frames that wait when the interface changes");
    let dropped = |port: &str| lasthop.port(port)["driver_status"]["dropped_by_kernel"].as_u64();
    let stopped = driver_pid(&lasthop, "uplink").expect("a driver");
    let before = wait_for("a report of the driver", || dropped("uplink"));
    assert_eq!(dropped("t0"), None, "TAP devices report nothing");
    stop(stopped);
    other.run(|| {
        let socket = UdpSocket::bind("10.1.0.8:0").expect("a socket");
        socket.set_broadcast(true).expect("the right");
        for _ in 0..5 {
            socket.send_to(b"lost", "10.1.0.255:9").expect("room");
        }
    });

    turn.step("the file has the first one again");
    let file = folder.path().join("lasthop.toml");
    std::fs::write(&file, ports("up0")).expect("a file");
    let printed = lasthop.ok(&["apply", &file.to_string_lossy()]);
    assert!(printed.contains("interface up2 -> up0"), "{printed}");
    lasthop.wait_port("uplink", "up");
    wait_until("they are counted", || dropped("uplink") >= Some(before + 5));
    transfer(&near, &far, "10.1.0.9:5002", 1 << 20);
    assert_eq!(
        driver_pid(&lasthop, "t0"),
        t0,
        "the other port is not touched"
    );
    lasthop.stop();
}

#[test]
fn frames_in_the_rings_of_a_driver_that_dies_are_counted() {
    if !Netns::allowed() {
        return;
    }
    let _turn = beside();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let [host, far] = ["host", "far"].map(|name| Netns::new(name, folder.path()));
    wire(&host, &far);
    let guest = "[[port]]\nname = \"a\"\nkind = \"vhost-user\"\nsocket = \"a.sock\"\n";
    let uplink = uplink(&host.path(), OWN_PROCESS);
    let lasthop = Lasthop::start(&format!("{guest}{uplink}"));
    lasthop.wait_port("uplink", "up");
    let mut a = lasthop.connect("a", 1);
    let frame = packets::udp(&Flow::v4(1, 9), b"hello");
    a.send(&frame).expect("room");
    wait_until("the first frame is on the wire", || {
        lasthop.port("uplink")["driver_status"]["sent_frames"].as_u64() > Some(0)
    });
    let driver = driver_pid(&lasthop, "uplink").expect("a driver");
    stop(driver);
    let before = lasthop.stats().received("uplink");
    for _ in 0..7 {
        a.send(&frame).expect("room");
    }
    wait_until("the frames are in the ring", || {
        lasthop.stats().received("uplink") == before + 7
    });
    signal(driver, Signal::KILL);
    lasthop.other_driver("uplink", driver);
    lasthop.wait_port("uplink", "up");
    assert_eq!(lasthop.stats().get("uplink.drops.driver-ended"), 7);
    lasthop.stop();
}

/// Checks what moves the frames of a port, in its status, its metrics and the words for it.
fn is_served(lasthop: &Lasthop, port: &str, back_end: &str, by_process: bool) {
    let status = lasthop.wait_port(port, "up");
    let driver = &status["driver_status"];
    assert_eq!(
        driver["in_switch"].as_bool() == Some(true),
        !by_process,
        "{status}"
    );
    assert_eq!(driver["pid"].is_number(), by_process, "{status}");
    let in_switch = lasthop
        .metrics()
        .get(&format!("lasthop_driver_in_switch{{port=\"{port}\"}}"));
    assert_eq!(in_switch, f64::from(u8::from(!by_process)));
    let show = lasthop.ok(&["port", "show", port]);
    let words = if by_process { "" } else { ", in the switch" };
    let line = format!("\nback end     {back_end}{words}\n");
    assert!(show.contains(&line), "{show}");
}

/// The file of the start is changed and read again. Bytes that were on their way are sent again by
/// TCP; the interfaces, their addresses and the counters stay.
#[test]
fn ports_go_to_processes_and_back_under_traffic() {
    if !Netns::allowed() {
        return;
    }
    let turn = machine();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let [host, far, near] = ["host", "far", "near"].map(|name| Netns::new(name, folder.path()));
    wire(&host, &far);
    far.ip("address add 10.1.0.9/24 dev wire0");
    let ports = |process: &str| {
        let uplink = uplink(&host.path(), &format!("driver = \"packet\"\n{process}"));
        tap("t0", &near.path(), "10.1.0.1/24", process) + &uplink
    };
    let lasthop = Lasthop::start(&ports(""));
    let file = lasthop.folder().with_file_name("lasthop.toml");
    let received = || {
        let driver = &lasthop.port("uplink")["driver_status"];
        driver["received_frames"].as_u64().expect("a number")
    };
    let load = || both_ways((&near, "10.1.0.1"), (&far, "10.1.0.9"), LOAD / 16);
    load();
    let over = Stop::new();
    std::thread::scope(|scope| {
        let loaded = scope.spawn(|| {
            while !over.is_set() {
                load();
            }
        });
        let end = over.at_end();
        for by_process in [true, false, true, false] {
            let had = received();
            turn.step(&format!("driver_process = {by_process}"));
            let process = if by_process { OWN_PROCESS } else { "" };
            std::fs::write(&file, ports(process)).expect("a file");
            let said = lasthop.ok(&["reload"]);
            assert!(said.contains("2 changes applied"), "{said}");
            is_served(&lasthop, "t0", "tap", by_process);
            is_served(&lasthop, "uplink", "packet", by_process);
            wait_until("frames flow", || received() > had + 50);
        }
        drop(end);
        loaded.join().expect("every byte arrives");
    });
    turn.step("a weight is for a process");
    let weight = "port set t0 --cpu-weight 7";
    let words = "expected no cpu_weight without driver_process = true";
    refuses(&lasthop, weight, (words, 2));
    lasthop.stop();
}

/// Between two that serve a port its frames have a name; with the switch before, all have.
#[test]
fn frames_between_the_switch_and_a_process_are_named() {
    if !Netns::allowed() {
        return;
    }
    let turn = beside();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let [host, far] = ["host", "far"].map(|name| Netns::new(name, folder.path()));
    wire(&host, &far);
    let guest = "[[port]]\nname = \"a\"\nkind = \"vhost-user\"\nsocket = \"a.sock\"\n";
    let uplink = uplink(&host.path(), "driver = \"packet\"");
    let lasthop = Lasthop::start(&format!("{guest}{uplink}"));
    lasthop.wait_port("uplink", "up");
    let (mut a, wire) = (lasthop.connect("a", 1), far.wire("wire0"));
    let hello = packets::ethernet(packets::mac(1), packets::mac(9), 0x88b5, &[1; 60]);
    wait_until("the station is known", || {
        wire.send(&hello);
        let got = a.recv_all().expect("a sound device");
        got.iter().any(|got| got.frame == hello)
    });
    let mut checker = SequenceChecker::default();
    let collect = |checker: &mut SequenceChecker| {
        while let Some(frame) = wire.take() {
            if frame[6..12] == packets::mac(1) {
                checker.see(&frame[14..]);
            }
        }
    };
    let mut sent = 0;
    let mut send = |a: &mut FakeGuest| {
        let key = Numbered {
            stream: 1,
            seq: sent,
        };
        let payload = numbered_payload(key, 300);
        let frame = packets::ethernet(packets::mac(9), packets::mac(1), 0x88b5, &payload);
        a.send(&frame).expect("room");
        sent += 1;
        sent
    };
    for by_process in [true, false] {
        let option = format!("--driver-process={by_process}");
        turn.step(&option);
        let before = lasthop.stats();
        let (first, missing) = (send(&mut a), checker.lost());
        let done = Stop::new();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let _done = done.at_end();
                lasthop.ok(&["port", "set", "uplink", &option]);
                is_served(&lasthop, "uplink", "packet", by_process);
            });
            while !done.is_set() {
                send(&mut a);
                collect(&mut checker);
                std::thread::sleep(Duration::from_micros(100));
            }
        });
        let last = wait_for("a frame after the change", || {
            let last = send(&mut a);
            std::thread::sleep(Duration::from_millis(5));
            collect(&mut checker);
            (checker.next_of(1) == last).then_some(last)
        });
        let lost = checker.lost() - missing;
        let moved = lasthop.stats().since(&before);
        let named: u64 = moved.drops_of("uplink").values().sum();
        turn.step(&format!("{lost} of {} lost, {named} named", last - first));
        assert_eq!(moved.sent("a"), last - first + 1, "{moved:?}");
        // A process may have handled frames that it had in its hand at the end.
        assert!(lost == named || !by_process && lost < named, "{moved:?}");
        assert_eq!(
            (checker.reordered, checker.duplicated, checker.damaged),
            (0, 0, 0)
        );
    }
    lasthop.stop();
}

/// The weight in the control group of a process (cgroups(7)), if it has one of version 2.
fn weight_of(pid: u32) -> Option<String> {
    let groups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    let group = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let file = Path::new("/sys/fs/cgroup").join(group).join("cpu.weight");
    Some(std::fs::read_to_string(file).ok()?.trim().to_owned())
}

#[test]
fn a_driver_has_a_cpu_weight_or_says_why_not() {
    if Netns::allowed() {
        use_cpu_weights();
    }
}

/// In the host of the last test.
#[test]
fn a_cpu_weight_is_written_to_the_group_of_the_driver() {
    if is_inside() {
        enter_group("with-cpu", &["cpu", "memory", "pids"]);
        assert_eq!(use_cpu_weights(), None);
    }
}

/// In the host of the last test.
#[test]
fn a_cpu_weight_has_no_effect_without_the_cpu_controller() {
    if is_inside() {
        enter_group("without-cpu", &["memory", "pids"]);
        let reason = "the service manager has not delegated the controller cpu";
        assert_eq!(use_cpu_weights().as_deref(), Some(reason));
    }
}

#[test]
fn cpu_weights_with_control_groups_of_version_2() {
    if is_inside() || !is_long() {
        return;
    }
    let _turn = machine();
    let mut host = Host::start(Kernel::Debian, module_path!());
    host.test("a_cpu_weight_has_no_effect_without_the_cpu_controller");
    host.test("a_cpu_weight_is_written_to_the_group_of_the_driver");
}

/// Gives a driver weights by the file and by commands, and has wrong ones refused. Returns the
/// reason why they have no effect, if they have none.
fn use_cpu_weights() -> Option<String> {
    let turn = beside();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let near = Netns::new("near", folder.path());
    let port = |weight: u32| {
        let weight = format!("cpu_weight = {weight}\n{OWN_PROCESS}");
        tap("t0", &near.path(), "10.1.0.1/24", &weight)
    };
    let lasthop = Lasthop::start(&port(300));
    lasthop.wait_port("t0", "up");
    let pid = driver_pid(&lasthop, "t0").expect("a driver");
    let check = |weight: &str| {
        let status = lasthop.port("t0");
        let error = status["driver_status"]["cpu_weight_error"].as_str();
        let show = lasthop.ok(&["port", "show", "t0"]);
        let line = match error {
            Some(error) => format!("\ncpu weight   {weight} (no effect: {error})\n"),
            None => format!("\ncpu weight   {weight}\n"),
        };
        assert!(show.contains(&line), "{show}");
        if error.is_none() {
            assert_eq!(weight_of(pid).as_deref(), Some(weight));
        }
        turn.step(line.trim());
        error.map(str::to_owned)
    };
    let reason = check("300");
    lasthop.ok(&["port", "set", "t0", "--cpu-weight", "10000"]);
    assert_eq!(check("10000"), reason);
    assert_eq!(driver_pid(&lasthop, "t0"), Some(pid), "the same process");
    lasthop.ok(&["port", "set", "t0", "--no-cpu-weight"]);
    let show = lasthop.ok(&["port", "show", "t0"]);
    assert!(!show.contains("cpu weight"), "{show}");
    let file = folder.path().join("lasthop.toml");
    for weight in [0, 20_000] {
        std::fs::write(&file, port(weight)).expect("a file");
        let path = file.display();
        let range = "expected an integer from 1 to 10000";
        let words = format!("{path}:6:14: port.cpu_weight: {range}, found {weight}");
        refuses(&lasthop, &format!("apply {path}"), (&words, 2));
    }
    lasthop.stop();
    reason
}
