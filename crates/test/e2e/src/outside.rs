//! The outside of a user port: two network namespaces, one with the port's sockets and one behind
//! it, and servers in them.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::path::Path;
use std::thread;
use std::time::Duration;

use crate::guest::Guest;
use crate::uplinks::pattern;
use testkit::netns::Netns;
use testkit::wait::{LIMIT, wait_for};

/// Bytes of the file that goes both ways.
pub const FILE: usize = 4 << 20;
/// Addresses of the outside and of the host towards it.
pub const OUTSIDE: &str = "192.0.2.1";
/// See [`OUTSIDE`].
pub const HOST: &str = "192.0.2.2";
/// As [`OUTSIDE`], of IPv6.
pub const OUTSIDE6: &str = "2001:db8::1";
/// As [`HOST`], of IPv6.
pub const HOST6: &str = "2001:db8::2";
/// The metadata services of clouds have this address.
pub const METADATA: &str = "169.254.169.254";
/// The address that [`resolve`] knows for every name.
pub const NAMED: [u8; 4] = [192, 0, 2, 77];
/// Parts of the file that [`serve_slowly`] sends, and the time before each.
const PARTS: usize = 64;
const PAUSE: Duration = Duration::from_millis(100);

/// The script of `udhcpc`: it sets address and route, and leaves the rest to be looked at.
const DHCP_SCRIPT: &str = "#!/bin/sh\n\
    [ \"$1\" = bound ] || exit 0\n\
    ip -4 address flush dev eth0; ip address add $ip/$mask dev eth0\n\
    ip route add default via $router; env >/tmp/lease\n";

/// Two namespaces: the host's, and the outside behind it.
#[must_use]
pub fn namespaces(folder: &Path) -> (Netns, Netns) {
    let (host, outside) = (Netns::new("host", folder), Netns::new("outside", folder));
    host.ip(&format!(
        "link add out0 type veth peer name in0 netns {}",
        outside.pid()
    ));
    let ends = [
        (&host, "out0", HOST, HOST6),
        (&outside, "in0", OUTSIDE, OUTSIDE6),
    ];
    for (netns, interface, v4, v6) in ends {
        netns.ip(&format!("address add {v4}/24 dev {interface}"));
        netns.ip(&format!("address add {v6}/64 dev {interface} nodad"));
        netns.ip(&format!("link set {interface} up"));
    }
    host.ip(&format!("route add {METADATA} via {OUTSIDE}"));
    host.ip(&format!("-6 route add default via {OUTSIDE6}"));
    outside.ip(&format!("address add {METADATA}/32 dev in0"));
    let range = "/proc/sys/net/ipv4/ping_group_range";
    host.run(|| fs::write(range, "0 2147483647").expect("rights"));
    (host, outside)
}

/// Serves connections by a thread each, without end.
pub fn serve(listener: TcpListener, each: impl Fn(TcpStream) + Copy + Send + 'static) {
    thread::spawn(move || {
        for stream in listener.incoming() {
            let stream = stream.expect("a connection");
            thread::spawn(move || each(stream));
        }
    });
}

fn file(len: usize) -> Vec<u8> {
    (0..len).map(pattern).collect()
}

/// Serves a file by HTTP to everybody.
pub fn serve_file(listener: TcpListener) {
    serve_bytes(listener, FILE);
}

/// Serves so many bytes by HTTP to everybody.
pub fn serve_bytes(listener: TcpListener, len: usize) {
    serve(listener, move |mut stream| {
        let mut lines = BufReader::new(stream.try_clone().expect("a copy")).lines();
        let is_more = |line: Option<Result<String, _>>| {
            line.is_some_and(|line| line.is_ok_and(|line| !line.is_empty()))
        };
        while is_more(lines.next()) {}
        let head = format!("HTTP/1.0 200 OK\r\nContent-Length: {len}\r\n\r\n");
        // A guest that is refused does not read.
        let _ = stream.write_all(&[head.as_bytes(), &file(len)].concat());
    });
}

/// Serves the file slowly, so that what happens meanwhile falls into it.
pub fn serve_slowly(listener: TcpListener) {
    serve(listener, |mut stream| {
        for part in file(FILE).chunks(FILE / PARTS) {
            thread::sleep(PAUSE);
            stream.write_all(part).expect("a connection that stays");
        }
    });
}

/// Takes the file, and answers whether all its bytes are right.
pub fn check_file(listener: TcpListener) {
    check_bytes(listener, FILE);
}

/// Takes so many bytes, and answers whether all are right.
pub fn check_bytes(listener: TcpListener, len: usize) {
    serve(listener, move |mut stream| {
        let mut got = Vec::new();
        stream.read_to_end(&mut got).expect("the bytes");
        let is_right = got.len() == len && (0..len).all(|at| got[at] == pattern(at));
        let answer = if is_right { "right" } else { "wrong" };
        let _ = stream.write_all(answer.as_bytes());
    });
}

/// Gives back what comes, until the other end has closed or is gone.
pub fn echo(mut stream: TcpStream) {
    let mut bytes = vec![0; 64 << 10];
    while let Ok(len @ 1..) = stream.read(&mut bytes) {
        if stream.write_all(&bytes[..len]).is_err() {
            break;
        }
    }
}

/// A resolver that knows one address for every name.
pub fn resolve(socket: UdpSocket, address: [u8; 4]) {
    thread::spawn(move || {
        let mut bytes = [0; 512];
        while let Ok((len, from)) = socket.recv_from(&mut bytes) {
            let Some(end) = bytes[12..len].iter().position(|byte| *byte == 0) else {
                continue;
            };
            let question = &bytes[12..12 + end + 5];
            let is_a = question[question.len() - 4..] == [0, 1, 0, 1];
            let head = [0x81, 0x80, 0, 1, 0, u8::from(is_a), 0, 0, 0, 0];
            let record = [&[0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4], &address[..]].concat();
            let record = if is_a { &record[..] } else { &[] };
            let answer = [&bytes[..2], &head, question, record].concat();
            let _ = socket.send_to(&answer, from);
        }
    });
}

/// The user port "out" whose sockets are in `host`, with more keys.
#[must_use]
pub fn user_port(host: &Netns, more: &str) -> String {
    format!(
        "[[port]]\nname = \"out\"\nkind = \"user\"\nnetns = \"{}\"\n{more}\n",
        host.path().display()
    )
}

/// Has a guest ask for an address; returns what it got, as lines of `key=value`.
pub fn lease(guest: &mut Guest) -> String {
    guest.run(&format!(
        "cat >/tmp/dhcp <<'E'\n{DHCP_SCRIPT}E\nchmod 755 /tmp/dhcp; \
         udhcpc -i eth0 -n -q -t 40 -T 1 -s /tmp/dhcp && cat /tmp/lease"
    ))
}

/// The address of a lease.
#[must_use]
pub fn address_of(lease: &str) -> &str {
    let address = lease.lines().find_map(|line| line.strip_prefix("ip="));
    address.unwrap_or_else(|| panic!("no address: {lease}"))
}

/// Whether a guest gets something by HTTP.
pub fn reaches(guest: &mut Guest, address: &str, port: u16) -> bool {
    gets(guest, 50, address, port)
}

/// Whether a guest gets nothing by HTTP, for some seconds.
pub fn is_denied(guest: &mut Guest, address: &str, port: u16) -> bool {
    !gets(guest, 5, address, port)
}

fn gets(guest: &mut Guest, seconds: u32, address: &str, port: u16) -> bool {
    let url = format!("http://{address}:{port}/");
    guest.status(&format!("timeout {seconds} wget -q -O /dev/null {url}")) == 0
}

/// The script of a guest at any user network: it gets an address, looks a name up, and fetches a
/// file, which is left for [`sends_file`]. The outside has a resolver, and servers at the ports
/// 8000 and 9000 ([`serve_file`], [`check_file`]).
pub fn usual_script(guest: &mut Guest, dns: &str) {
    let lease = lease(guest);
    assert!(lease.contains(&format!("dns={dns}")), "{lease}");
    let found = guest.run(&format!("nslookup -type=a web.example {dns}"));
    let [a, b, c, d] = NAMED;
    assert!(found.contains(&format!("{a}.{b}.{c}.{d}")), "{found}");
    guest.run(&format!("wget -q -O /tmp/file http://{OUTSIDE}:8000/"));
}

/// Whether a guest can send the file, close its half of the connection, and get an answer then.
pub fn sends_file(guest: &mut Guest) -> bool {
    let check = format!("timeout 50 nc {OUTSIDE} 9000 </tmp/file | grep -q right");
    guest.status(&check) == 0
}

/// The answer of a guest to a connection of the host, once there is one.
pub fn answer_of(guest: &mut Guest, port: u16, host: &Netns, address: &str) -> String {
    let serving = guest.start(&format!("echo it is me | nc -l -p {port}"));
    let answer = wait_for("the guest answers", || {
        let mut got = String::new();
        let stream = host.run(|| TcpStream::connect(address));
        let _ = stream.and_then(|mut stream| stream.read_to_string(&mut got));
        (!got.is_empty()).then_some(got)
    });
    serving.wait(LIMIT);
    answer
}
