//! User ports: guests reach the outside by sockets of the host.
//!
//! The sockets are in a network namespace of the test's own, and the outside, with its servers and
//! its resolver, in a second one. Lasthop and QEMU run as an ordinary user there, if that one may
//! run the programs.

use std::io::Read as _;
use std::net::TcpStream;
use std::thread;
use std::time::Duration;

use e2e::guest::{Guest, GuestSpec, boot};
use e2e::lasthop::Lasthop;
use e2e::outside::{
    FILE, HOST, HOST6, METADATA, NAMED, OUTSIDE, OUTSIDE6, address_of, check_bytes, check_file,
    is_denied, lease, namespaces, reaches, resolve, serve_bytes, serve_file, serve_slowly,
    user_port,
};
use e2e::uplinks::driver_pid;
use e2e::{is_long, machine, nobody, paths};
use rustix::process::Signal;
use testkit::lasthop::port;
use testkit::netns::Netns;
use testkit::process::send as signal;
use testkit::wait::{LIMIT, wait_for, wait_until};

/// Lasthop with guests "vm1" and "vm2", and the user port "out" whose sockets are in `host`, as
/// `nobody` if it may.
fn start(host: &Netns, as_nobody: bool) -> Lasthop {
    let keys = format!(
        "dns = \"{OUTSIDE}\"\nhost = [\"tcp 7001\"]\ndeny = [\"192.0.2.0/24 tcp 7002\"]\n\
         [[port.forward]]\nlisten = \"tcp 127.0.0.1:2222\"\nto = \"vm1:8080\""
    );
    let user = match as_nobody {
        true => format!("[[port]]\nname = \"out\"\nkind = \"user\"\n{keys}\n"),
        false => user_port(host, &keys),
    };
    let vm1 = port("vm1", "mac = \"52:54:00:00:00:01\"");
    let vm2 = port("vm2", "");
    let config = format!("[switch]\nname = \"host1\"\n{vm1}{vm2}{user}");
    match as_nobody {
        true => Lasthop::start_as_nobody(&config, host),
        false => Lasthop::start(&config),
    }
}

/// A guest has an address by router advertisements, and reaches the outside and not the host.
fn has_ipv6(guest: &mut Guest) {
    wait_until("an address", || {
        let shown = guest.run("ip -6 address show dev eth0 scope global");
        shown.contains("inet6 fd") && !shown.contains("tentative")
    });
    guest.run(&format!("ping -6 -c 1 -W 20 {OUTSIDE6}"));
    guest.run(&format!("wget -q -O /tmp/file6 http://[{OUTSIDE6}]:8000/"));
    let len = guest.run("wc -c </tmp/file6");
    assert_eq!(len.trim(), FILE.to_string());
    assert!(is_denied(guest, &format!("[{HOST6}]"), 7003));
}

/// The operator sees what was refused, and the guest's address.
fn sees_refusals_and_lease(lasthop: &Lasthop, address: &str) {
    // The driver reports its figures twice a second.
    let user = wait_for("the driver reports", || {
        let user = lasthop.port("out")["driver_status"]["user"].take();
        let has = |kind: &str, of: &str| user[kind][of].as_u64() > Some(0);
        let all = has("refused", "user-denied") && has("results", "refused");
        (all && has("results", "established")).then_some(user)
    });
    assert!(
        user["to_guests_bytes"].as_u64() >= Some(FILE as u64),
        "{user}"
    );
    assert!(user["dns_questions"].as_u64() > Some(1), "{user}");
    let stats = lasthop.ok(&["stats", "out"]);
    assert!(stats.contains("user-denied"), "{stats}");
    sees_lease(lasthop, address);
}

/// The operator sees a guest's address.
fn sees_lease(lasthop: &Lasthop, address: &str) {
    let leases = lasthop.json(&["user", "leases", "out"]);
    let lease = &leases["leases"][0];
    assert_eq!(
        (&lease["address"], &lease["port"]),
        (&address.into(), &"vm1".into())
    );
    assert!(
        (3000..=3600).contains(&lease["seconds"].as_u64().unwrap()),
        "{leases}"
    );
}

/// The operator sees a connection that stays.
fn sees_flow(lasthop: &Lasthop, address: &str) {
    let peer = format!("{OUTSIDE}:8002");
    let flow = wait_for("its flow", || {
        let flows = lasthop.json(&["user", "flows", "out", "--limit", "50"]);
        let all = flows["flows"].as_array().expect("flows").clone();
        let mut all = all.into_iter();
        all.find(|flow| flow["peer"] == *peer && flow["to_guest_bytes"].as_u64() > Some(0))
    });
    assert_eq!(
        (&flow["port"], &flow["protocol"]),
        (&"vm1".into(), &"tcp".into())
    );
    let guest = flow["guest"].as_str().expect("an address");
    assert!(guest.starts_with(&format!("{address}:")), "{flow}");
}

/// 100 MB come and go back at once, by a connection each.
fn much_comes_and_goes_back(outside: &Netns, vm1: &mut Guest) {
    const MUCH: usize = 100_000_000;
    serve_bytes(outside.listen(&format!("{OUTSIDE}:8003")), MUCH);
    check_bytes(outside.listen(&format!("{OUTSIDE}:9003")), MUCH);
    let copying = vm1.start(&format!(
        "wget -q -O - http://{OUTSIDE}:8003/ | nc {OUTSIDE} 9003"
    ));
    assert_eq!(copying.wait(Duration::from_secs(100)), "right");
}

/// A forward is added and removed beside another; one that the system refuses says so.
fn forwards_change_one_by_one(lasthop: &Lasthop, host: &Netns, vm2: &mut Guest) {
    let forward = |line: &[&str]| lasthop.cli(&[&["port", "forward"], line].concat());
    let second = "tcp 127.0.0.1:2223";
    // Its port has no MAC address in the configuration.
    lasthop.run(&["port", "forward", "add", "out", second, "vm2:8081"]);
    let serving = vm2.start("echo third | nc -l -p 8081");
    let got = wait_for("the guest answers at another port", || {
        let mut got = String::new();
        let stream = host.run(|| TcpStream::connect("127.0.0.1:2223"));
        let _ = stream.and_then(|mut stream| stream.read_to_string(&mut got));
        (!got.is_empty()).then_some(got)
    });
    assert_eq!(got, "third\n");
    serving.wait(LIMIT);
    let taken = forward(&["add", "out", "tcp 127.0.0.1:7000", "vm1:1"]);
    let error = String::from_utf8_lossy(&taken.stderr);
    assert_eq!(taken.status.code(), Some(1), "{error}");
    assert!(
        error.contains("tcp 127.0.0.1:7000: Address already in use"),
        "{error}"
    );
    let list = lasthop.ok(&["port", "forward", "list", "out"]);
    assert!(list.contains("Address already in use"), "{list}");
    for listen in ["tcp 127.0.0.1:7000", second] {
        lasthop.run(&["port", "forward", "remove", "out", listen]);
    }
    wait_for("its socket is closed", || {
        let stream = host.run(|| TcpStream::connect("127.0.0.1:2223"));
        stream.is_err().then_some(())
    });
}

#[test]
fn a_guest_reaches_the_outside_and_nothing_else() {
    if !Netns::allowed() {
        return;
    }
    let turn = machine();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (host, outside) = namespaces(folder.path());
    serve_file(outside.listen(&format!("{OUTSIDE}:8000")));
    serve_file(outside.listen(&format!("[{OUTSIDE6}]:8000")));
    serve_file(outside.listen(&format!("{OUTSIDE}:7002")));
    serve_file(outside.listen(&format!("{METADATA}:80")));
    check_file(outside.listen(&format!("{OUTSIDE}:9000")));
    serve_slowly(outside.listen(&format!("{OUTSIDE}:8002")));
    resolve(outside.udp(&format!("{OUTSIDE}:53")), NAMED);
    for address in ["127.0.0.1:7000", "127.0.0.1:7001"] {
        serve_file(host.listen(address));
    }
    serve_file(host.listen(&format!("{HOST}:7003")));
    serve_file(host.listen(&format!("[{HOST6}]:7003")));

    turn.step("a guest gets an address by DHCP");
    let as_nobody = nobody::may_run(&paths::binary("lasthop"), &host.path());
    let lasthop = start(&host, as_nobody);
    let guest = |name: &str, mac: &str| {
        let spec = GuestSpec::dialing(name, lasthop.socket_of(name)).mac(mac);
        match as_nobody {
            true => spec.as_nobody(&host),
            false => spec,
        }
    };
    let specs = [
        guest("vm1", "52:54:00:00:00:01"),
        guest("vm2", "52:54:00:00:00:02").ipv6(),
    ];
    let [mut vm1, mut vm2] = boot(specs);
    let got = lease(&mut vm1);
    for part in [
        "router=10.0.2.2\n",
        "dns=10.0.2.3\n",
        "domain=internal\n",
        "lease=3600\n",
        "mtu=1500\n",
    ] {
        assert!(got.contains(part), "{got}");
    }
    let address = address_of(&got).to_owned();
    assert!(address.starts_with("10.0.2."), "{got}");

    turn.step("another guest, with IPv6 too");
    let other = address_of(&lease(&mut vm2)).to_owned();
    assert_ne!(other, address);
    vm1.run(&format!("ping -c 1 -W 20 {other}"));
    wait_until("its name", || {
        let found = vm1.run("nslookup vm2.internal 10.0.2.3 || true");
        found.contains(&other)
    });
    has_ipv6(&mut vm2);

    turn.step("ping of the gateway, and of the outside");
    for to in ["10.0.2.2", "10.0.2.3", OUTSIDE] {
        vm1.run(&format!("ping -c 2 -W 20 {to}"));
    }

    turn.step("names");
    let got = vm1.run("nslookup web.example 10.0.2.3");
    assert!(got.contains("192.0.2.77"), "{got}");
    let got = vm1.run("nslookup vm1.internal 10.0.2.3");
    assert!(got.contains(&address), "{got}");
    // In the domain that it was offered.
    vm1.run("mkdir -p /etc; printf 'search internal\\nnameserver 10.0.2.3\\n' >/etc/resolv.conf");
    vm1.run("ping -c 1 -W 20 vm2");
    // By a mapping of the guest's own.
    let got = vm1.run(&format!("nslookup web.example {OUTSIDE}"));
    assert!(got.contains("192.0.2.77"), "{got}");

    turn.step("a file comes, and goes back");
    vm1.run(&format!("wget -q -O /tmp/file http://{OUTSIDE}:8000/"));
    let answer = vm1.run(&format!("nc {OUTSIDE} 9000 </tmp/file"));
    assert_eq!(answer, "right");
    if is_long() {
        much_comes_and_goes_back(&outside, &mut vm1);
    }

    turn.step("services of the host, as far as they are named");
    assert!(reaches(&mut vm1, "10.0.2.2", 7001));
    for (address, port) in [
        ("10.0.2.2", 7000),
        (HOST, 7003),
        (METADATA, 80),
        (OUTSIDE, 7002),
        (OUTSIDE, 8001),
    ] {
        assert!(is_denied(&mut vm1, address, port), "{address}:{port}");
    }

    turn.step("refusals and the lease are seen");
    sees_refusals_and_lease(&lasthop, &address);

    turn.step("a forward leads to the guest");
    let answer = |text: &str| format!("echo {text} | nc -l -p 8080");
    let serving = vm1.start(&answer("first"));
    let forwarded = || {
        let mut got = String::new();
        let stream = host.run(|| TcpStream::connect("127.0.0.1:2222"));
        let _ = stream.and_then(|mut stream| stream.read_to_string(&mut got));
        (!got.is_empty()).then_some(got)
    };
    assert_eq!(wait_for("the guest answers", forwarded), "first\n");
    serving.wait(LIMIT);

    turn.step("access and forwards change live");
    lasthop.run(&[
        "port",
        "set",
        "out",
        "--forward",
        "tcp 127.0.0.1:2222 10.0.2.99:1",
    ]);
    let serving = vm1.start(&answer("second"));
    lasthop.run(&[
        "port",
        "set",
        "out",
        "--forward",
        "tcp 127.0.0.1:2222 vm1:8080",
    ]);
    assert_eq!(wait_for("the guest answers again", forwarded), "second\n");
    serving.wait(LIMIT);
    lasthop.run(&["port", "set", "out", "--no-host", "--no-deny"]);
    wait_for("the driver follows", || {
        reaches(&mut vm1, OUTSIDE, 7002).then_some(())
    });
    assert!(is_denied(&mut vm1, "10.0.2.2", 7001));
    assert_eq!(lasthop.port("out")["driver_status"]["restarts"], 0);

    turn.step("forwards are added and removed one by one");
    forwards_change_one_by_one(&lasthop, &host, &mut vm2);

    turn.step("driver and switch are killed, and a connection stays");
    let transfer = vm1.start(&format!(
        "nc {OUTSIDE} 8002 </dev/null >/tmp/slow; nc {OUTSIDE} 9000 </tmp/slow"
    ));
    sees_flow(&lasthop, &address);
    for kills_switch in [false, true, false] {
        thread::sleep(Duration::from_millis(1500));
        let pid = wait_for("a driver", || driver_pid(&lasthop, "out"));
        if kills_switch {
            // Its successor continues the driver's connection.
            lasthop.replace_switch();
            continue;
        }
        signal(pid, Signal::KILL);
        lasthop.other_driver("out", pid);
    }
    assert_eq!(transfer.wait(LIMIT), "right");

    turn.step("the lease outlives drivers, and Lasthop before an upgrade");
    for upgrades in [false, true] {
        if upgrades {
            lasthop.ok(&["upgrade"]);
        }
        wait_for("its driver", || driver_pid(&lasthop, "out"));
        sees_lease(&lasthop, &address);
        // By its name, which leads to the lease; the guest has not asked for one again.
        let serving = vm1.start(&answer("third"));
        assert_eq!(
            wait_for("the guest answers by its name", forwarded),
            "third\n"
        );
        serving.wait(LIMIT);
    }
    wait_for("it serves", || {
        reaches(&mut vm1, OUTSIDE, 8000).then_some(())
    });
    let again = lease(&mut vm1);
    assert!(again.contains(&format!("ip={address}\n")), "{again}");
}
