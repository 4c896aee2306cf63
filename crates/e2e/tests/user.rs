//! User ports: guests reach the outside by sockets of the host.
//!
//! The sockets are in a network namespace of the test's own, and the outside, with its servers and
//! its resolver, in a second one.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::thread;
use std::time::Duration;

use e2e::guest::{Guest, GuestSpec};
use e2e::lasthop::Lasthop;
use e2e::netns::Netns;
use e2e::turn;
use e2e::uplinks::{driver_pid, pattern};
use rustix::process::Signal;
use testkit::lasthop::port;
use testkit::process::send as signal;
use testkit::wait::wait_for;

/// Bytes of the file that goes both ways.
const FILE: usize = 4 << 20;
/// Addresses of the outside and of the host towards it.
const OUTSIDE: &str = "192.0.2.1";
const HOST: &str = "192.0.2.2";
/// The metadata services of clouds have this address.
const METADATA: &str = "169.254.169.254";

/// The script of `udhcpc`: it sets address and route, and leaves the rest to be looked at.
const DHCP_SCRIPT: &str = "#!/bin/sh\n\
    [ \"$1\" = bound ] || exit 0\n\
    ip address flush dev eth0; ip address add $ip/$mask dev eth0\n\
    ip route add default via $router; env >/tmp/lease\n";

/// Two namespaces: the host's, and the outside behind it.
fn namespaces(folder: &std::path::Path) -> (Netns, Netns) {
    let (host, outside) = (Netns::new("host", folder), Netns::new("outside", folder));
    host.ip(&format!(
        "link add out0 type veth peer name in0 netns {}",
        outside.pid()
    ));
    for (netns, interface, address) in [(&host, "out0", HOST), (&outside, "in0", OUTSIDE)] {
        netns.ip(&format!("address add {address}/24 dev {interface}"));
        netns.ip(&format!("link set {interface} up"));
    }
    host.ip(&format!("route add {METADATA} via {OUTSIDE}"));
    outside.ip(&format!("address add {METADATA}/32 dev in0"));
    let range = "/proc/sys/net/ipv4/ping_group_range";
    host.run(|| std::fs::write(range, "0 2147483647").expect("rights"));
    (host, outside)
}

/// Serves a file by HTTP to everybody, without end.
fn serve_file(listener: TcpListener) {
    let file: Vec<u8> = (0..FILE).map(pattern).collect();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, file) = (stream.expect("a connection"), file.clone());
            thread::spawn(move || {
                let mut lines = BufReader::new(stream.try_clone().expect("a copy")).lines();
                while lines
                    .next()
                    .is_some_and(|line| line.is_ok_and(|line| !line.is_empty()))
                {}
                let head = format!("HTTP/1.0 200 OK\r\nContent-Length: {FILE}\r\n\r\n");
                // A guest that is refused does not read.
                let _ = stream.write_all(&[head.as_bytes(), &file].concat());
            });
        }
    });
}

/// Serves the file slowly, so that what happens meanwhile falls into it.
fn serve_slowly(listener: TcpListener) {
    let file: Vec<u8> = (0..FILE).map(pattern).collect();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.expect("a connection");
            for part in file.chunks(FILE / 64) {
                thread::sleep(Duration::from_millis(100));
                stream.write_all(part).expect("a connection that stays");
            }
        }
    });
}

/// Takes the file, and answers whether all its bytes are right.
fn check_file(listener: TcpListener) {
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.expect("a connection");
            let mut got = Vec::new();
            stream.read_to_end(&mut got).expect("the file");
            let is_right = got.len() == FILE && (0..FILE).all(|at| got[at] == pattern(at));
            let answer = if is_right { "right" } else { "wrong" };
            let _ = stream.write_all(answer.as_bytes());
        }
    });
}

/// A resolver that knows one address for every name.
fn resolve(socket: UdpSocket) {
    thread::spawn(move || {
        let mut bytes = [0; 512];
        while let Ok((len, from)) = socket.recv_from(&mut bytes) {
            let Some(end) = bytes[12..len].iter().position(|byte| *byte == 0) else {
                continue;
            };
            let question = &bytes[12..12 + end + 5];
            let is_a = question[question.len() - 4..] == [0, 1, 0, 1];
            let head = [0x81, 0x80, 0, 1, 0, u8::from(is_a), 0, 0, 0, 0];
            let record = [0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 192, 0, 2, 77];
            let record = if is_a { &record[..] } else { &[] };
            let answer = [&bytes[..2], &head, question, record].concat();
            let _ = socket.send_to(&answer, from);
        }
    });
}

/// Lasthop with guests "vm1" and "vm2", and the user port "out" whose sockets are in `host`.
fn start(host: &Netns) -> Lasthop {
    let user = format!(
        "[[port]]\nname = \"out\"\nkind = \"user\"\nnetns = \"{}\"\ndns = \"{OUTSIDE}\"\n\
         host = [\"tcp 7001\"]\ndeny = [\"192.0.2.0/24 tcp 7002\"]\n\
         [[port.forward]]\nlisten = \"tcp 127.0.0.1:2222\"\nto = \"vm1:8080\"\n",
        host.path().display()
    );
    let vm1 = port("vm1", "mac = \"52:54:00:00:00:01\"");
    Lasthop::start(&format!("[switch]\nname = \"host1\"\n{vm1}\n{user}"))
}

fn guest(lasthop: &Lasthop, name: &str, mac: &str) -> GuestSpec {
    GuestSpec::dialing(name, lasthop.socket_of(name)).mac(mac)
}

/// Has the guest ask for an address; returns what it got.
fn lease(guest: &mut Guest) -> String {
    guest.run(&format!(
        "cat >/tmp/dhcp <<'E'\n{DHCP_SCRIPT}E\nchmod 755 /tmp/dhcp; \
         udhcpc -i eth0 -n -q -t 10 -T 1 -s /tmp/dhcp && cat /tmp/lease"
    ))
}

fn reaches(guest: &mut Guest, address: &str, port: u16) -> bool {
    let url = format!("http://{address}:{port}/");
    guest.status(&format!("timeout 5 wget -q -O /dev/null {url}")) == 0
}

#[test]
fn a_guest_reaches_the_outside_and_nothing_else() {
    if !Netns::allowed() {
        return;
    }
    let turn = turn();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (host, outside) = namespaces(folder.path());
    serve_file(outside.listen(&format!("{OUTSIDE}:8000")));
    serve_file(outside.listen(&format!("{OUTSIDE}:7002")));
    serve_file(outside.listen(&format!("{METADATA}:80")));
    check_file(outside.listen(&format!("{OUTSIDE}:9000")));
    serve_slowly(outside.listen(&format!("{OUTSIDE}:8002")));
    resolve(outside.udp(&format!("{OUTSIDE}:53")));
    for address in ["127.0.0.1:7000", "127.0.0.1:7001"] {
        serve_file(host.listen(address));
    }
    serve_file(host.listen(&format!("{HOST}:7003")));

    turn.step("a guest gets an address by DHCP");
    let lasthop = start(&host);
    let mut vm1 = guest(&lasthop, "vm1", "52:54:00:00:00:01").start().ready();
    let got = lease(&mut vm1);
    for part in [
        "router=10.0.2.2\n",
        "dns=10.0.2.3\n",
        "lease=3600\n",
        "mtu=1500\n",
    ] {
        assert!(got.contains(part), "{got}");
    }
    let address = got
        .lines()
        .find_map(|line| line.strip_prefix("ip="))
        .expect("an address");
    let address = address.to_owned();
    assert!(address.starts_with("10.0.2."), "{got}");

    turn.step("ping of the gateway, and of the outside");
    for to in ["10.0.2.2", "10.0.2.3", OUTSIDE] {
        vm1.run(&format!("ping -c 2 -W 5 {to}"));
    }

    turn.step("names");
    let got = vm1.run("nslookup web.example 10.0.2.3");
    assert!(got.contains("192.0.2.77"), "{got}");
    let got = vm1.run("nslookup vm1.internal 10.0.2.3");
    assert!(got.contains(&address), "{got}");
    // By a mapping of the guest's own.
    let got = vm1.run(&format!("nslookup web.example {OUTSIDE}"));
    assert!(got.contains("192.0.2.77"), "{got}");

    turn.step("a file comes, and goes back");
    vm1.run(&format!("wget -q -O /tmp/file http://{OUTSIDE}:8000/"));
    let answer = vm1.run(&format!("nc {OUTSIDE} 9000 </tmp/file"));
    assert_eq!(answer, "right");

    turn.step("services of the host, as far as they are named");
    assert!(reaches(&mut vm1, "10.0.2.2", 7001));
    for (address, port) in [
        ("10.0.2.2", 7000),
        (HOST, 7003),
        (METADATA, 80),
        (OUTSIDE, 7002),
        (OUTSIDE, 8001),
    ] {
        assert!(!reaches(&mut vm1, address, port), "{address}:{port}");
    }

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
    serving.wait(Duration::from_secs(10));

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
    serving.wait(Duration::from_secs(10));
    lasthop.run(&["port", "set", "out", "--no-host", "--no-deny"]);
    wait_for("the driver follows", || {
        reaches(&mut vm1, OUTSIDE, 7002).then_some(())
    });
    assert!(!reaches(&mut vm1, "10.0.2.2", 7001));
    assert_eq!(lasthop.port("out")["driver_process"]["restarts"], 0);

    turn.step("driver and switch are killed, and a connection stays");
    let transfer = vm1.start(&format!(
        "nc {OUTSIDE} 8002 </dev/null >/tmp/slow; nc {OUTSIDE} 9000 </tmp/slow"
    ));
    for kills_switch in [false, true, false] {
        thread::sleep(Duration::from_millis(1500));
        let pid = driver_pid(&lasthop, "out").expect("a driver");
        if kills_switch {
            // Its successor continues the driver's connection.
            lasthop.kill_switch();
            continue;
        }
        signal(pid, Signal::KILL);
        wait_for("another driver", || {
            driver_pid(&lasthop, "out").filter(|new| *new != pid)
        });
    }
    assert_eq!(transfer.wait(Duration::from_secs(30)), "right");
    wait_for("it serves", || {
        reaches(&mut vm1, OUTSIDE, 8000).then_some(())
    });
    let again = lease(&mut vm1);
    assert!(again.contains(&format!("ip={address}\n")), "{again}");
}
