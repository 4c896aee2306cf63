//! A guest of a user port that is a router itself, and routers behind the host: TCP and ICMP of
//! Linux at both ends, in network namespaces of the test's own.
//!
//! ```text
//! client --(MTU 1300)-- guest ==[vm1 | out]== host -- hop -- outside
//! ```

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::path::Path;

use e2e::lasthop::Lasthop;
use e2e::outside::serve;
use e2e::uplinks::pattern;
use e2e::{beside, is_long};
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketType, sockopt};
use testkit::netns::{Netns, Sniffer};
use testkit::wait::{LIMIT, wait_until};

const OUTSIDE: &str = "203.0.113.1";
const OUTSIDE6: &str = "2001:db8:2::1";
/// Addresses of the router behind the host, towards it.
const HOP: [u8; 4] = [198, 51, 100, 254];
const GATEWAY: [u8; 4] = [10, 0, 2, 2];
/// Bytes of a download.
const BYTES: usize = 100_000;

/// The namespaces: client, guest, host, the router behind it, and the outside.
struct Places {
    client: Netns,
    guest: Netns,
    host: Netns,
    hop: Netns,
    outside: Netns,
}

/// A link between two namespaces: the name of each end, its addresses and its MTU.
fn link(ends: [(&Netns, &str, &[&str], u16); 2]) {
    let [(a, a_name, ..), (b, b_name, ..)] = ends;
    a.ip(&format!(
        "link add {a_name} type veth peer name {b_name} netns {}",
        b.pid()
    ));
    for (netns, name, addresses, mtu) in ends {
        for address in addresses {
            let nodad = if address.contains(':') { "nodad" } else { "" };
            netns.ip(&format!("address add {address} dev {name} {nodad}"));
        }
        netns.ip(&format!("link set {name} mtu {mtu} up"));
    }
}

/// Has a namespace send any number of errors. `icmp_msgs_per_sec` is of the whole host in older
/// kernels, and not here then.
fn unlimited(netns: &Netns) {
    for (file, value) in [
        ("ipv4/icmp_ratelimit", "0"),
        ("ipv4/icmp_msgs_per_sec", "1000000"),
        ("ipv4/icmp_msgs_burst", "1000000"),
        ("ipv6/icmp/ratelimit", "0"),
    ] {
        let file = format!("/proc/sys/net/{file}");
        netns.run(|| drop(std::fs::write(&file, value)));
    }
}

/// Makes a router of a namespace.
fn forwards(netns: &Netns) {
    for (file, value) in [("ipv4/ip_forward", "1"), ("ipv6/conf/all/forwarding", "1")] {
        let file = format!("/proc/sys/net/{file}");
        netns.run(|| std::fs::write(&file, value).expect("rights"));
    }
}

fn places(folder: &Path) -> Places {
    let netns = |name| Netns::new(name, folder);
    let places = Places {
        client: netns("client"),
        guest: netns("guest"),
        host: netns("host"),
        hop: netns("hop"),
        outside: netns("outside"),
    };
    let Places {
        client,
        guest,
        host,
        hop,
        outside,
    } = &places;
    link([
        (host, "out0", &["198.51.100.1/24", "2001:db8:1::1/64"], 1500),
        (
            hop,
            "in0",
            &["198.51.100.254/24", "2001:db8:1::fe/64"],
            1500,
        ),
    ]);
    link([
        (
            hop,
            "out0",
            &["203.0.113.254/24", "2001:db8:2::fe/64"],
            1500,
        ),
        (
            outside,
            "in0",
            &["203.0.113.1/24", "2001:db8:2::1/64"],
            1500,
        ),
    ]);
    // The client does not know of the MTU: its own is 1500.
    link([
        (guest, "inner0", &["10.99.0.1/24", "fd00:99::1/64"], 1300),
        (client, "eth0", &["10.0.2.77/32", "fd00:1::77/128"], 1500),
    ]);
    for netns in [client, guest, host, hop, outside] {
        unlimited(netns);
    }
    forwards(hop);
    forwards(guest);
    host.ip("route add default via 198.51.100.254");
    host.ip("-6 route add default via 2001:db8:1::fe");
    outside.ip("route add default via 203.0.113.254");
    outside.ip("-6 route add default via 2001:db8:2::fe");
    hop.ip("route add prohibit 192.0.2.0/25");
    hop.ip("route add unreachable 192.0.2.128/25");
    client.ip("route add default via 10.99.0.1 dev eth0 onlink");
    client.ip("-6 route add default via fd00:99::1 dev eth0 onlink");
    guest.ip("route add 10.0.2.77/32 dev inner0");
    guest.ip("-6 route add fd00:1::77/128 dev inner0");
    let range = "/proc/sys/net/ipv4/ping_group_range";
    host.run(|| std::fs::write(range, "0 2147483647").expect("rights"));
    places
}

fn start(places: &Places) -> Lasthop {
    let Places { guest, host, .. } = places;
    let config = format!(
        "[switch]\nname = \"s\"\n\
         [[port]]\nname = \"vm1\"\nkind = \"tap\"\ninterface = \"eth0\"\nnetns = \"{}\"\n\
         [[port]]\nname = \"out\"\nkind = \"user\"\nnetns = \"{}\"\nnetwork6 = \"fd00:1::/64\"\n\
         dns = \"off\"\n",
        guest.path().display(),
        host.path().display(),
    );
    let lasthop = Lasthop::start(&config);
    wait_until("the guest's interface", || {
        guest.ip("-o link").contains("eth0")
    });
    guest.ip("address add 10.0.2.15/24 dev eth0");
    guest.ip("address add fd00:1::15/64 dev eth0 nodad");
    guest.ip("link set eth0 up");
    guest.ip("route add default via 10.0.2.2");
    guest.ip("-6 route add default via fd00:1::2");
    lasthop
}

fn serve_bytes(listener: TcpListener) {
    serve(listener, |mut stream| {
        let bytes: Vec<u8> = (0..BYTES).map(pattern).collect();
        let _ = stream.write_all(&bytes);
    });
}

fn download(from: &Netns, address: &str) {
    let mut stream = from.connect(address);
    stream.set_read_timeout(Some(LIMIT)).expect("a limit");
    let mut got = Vec::new();
    stream.read_to_end(&mut got).expect("all bytes");
    assert_eq!(got.len(), BYTES);
    assert!((0..BYTES).all(|at| got[at] == pattern(at)));
}

/// Has the guest's errors about the link get lost.
fn silence(guest: &Netns) {
    guest.ip("rule add ipproto icmp blackhole");
}

/// A socket whose packets go so many hops, and its port.
fn socket(netns: &Netns, kind: SocketType, hops: u32) -> (OwnedFd, u16) {
    netns.run(|| {
        let socket = net::socket(AddressFamily::INET, kind, None).expect("a socket");
        sockopt::set_ip_ttl(&socket, hops).expect("a time to live");
        let any = SocketAddr::from(([0; 4], 0));
        net::bind(&socket, &any).expect("a free port");
        let bound = net::getsockname(&socket).expect("an address");
        let bound = SocketAddr::try_from(bound).expect("one of IP");
        (socket, bound.port())
    })
}

/// The router whose error about a packet from this port comes in next: its address, and the type
/// and code. Another socket may have sent its packet again before the error came, and its second
/// error comes late.
fn router(sniffer: &Sniffer, port: u16) -> ([u8; 4], [u8; 2]) {
    // Behind the headers of Ethernet, IP and ICMP stands the packet from its own IP header on.
    let is_error = |frame: &[u8]| {
        let is_icmp = frame.len() >= 66 && frame[12..14] == [8, 0] && frame[23] == 1;
        is_icmp && frame[34] != 0 && frame[62..64] == port.to_be_bytes()
    };
    let frames = sniffer.frames(1, LIMIT, is_error);
    let frame = frames.first().expect("an error");
    (
        std::array::from_fn(|at| frame[26 + at]),
        [frame[34], frame[35]],
    )
}

/// Each hop to the outside, by datagrams and by connections.
fn hops_are_seen(guest: &Netns) {
    let target: SocketAddr = format!("{OUTSIDE}:33434").parse().expect("an address");
    let outside = OUTSIDE
        .split('.')
        .map(|part| part.parse().expect("a number"));
    let outside: Vec<u8> = outside.collect();
    for (hops, from, what) in [
        (1, &GATEWAY[..], [11, 0]),
        (2, &HOP[..], [11, 0]),
        (3, &outside[..], [3, 3]),
    ] {
        let sniffer = guest.sniff();
        let (socket, port) = socket(guest, SocketType::DGRAM, hops);
        let flags = net::SendFlags::empty();
        net::sendto(&socket, b"probe", flags, &target).expect("it is sent");
        let (router, error) = router(&sniffer, port);
        assert_eq!((&router[..], error), (from, what), "{hops} hops");
    }
    for (hops, from) in [(1, GATEWAY), (2, HOP)] {
        let sniffer = guest.sniff();
        let (socket, port) = socket(guest, SocketType::STREAM, hops);
        let failed = net::connect(&socket, &target);
        assert_eq!(failed, Err(Errno::HOSTUNREACH), "{hops} hops");
        assert_eq!(router(&sniffer, port), (from, [11, 0]), "{hops} hops");
    }
    // It is far enough to be refused.
    let (last, _) = socket(guest, SocketType::STREAM, 3);
    assert_eq!(net::connect(&last, &target), Err(Errno::CONNREFUSED));
}

/// Connections that a router outside does not pass on fail as at the host, and say by whom.
fn connections_fail_as_at_the_host(places: &Places) {
    for (address, what) in [("192.0.2.1:80", [3, 13]), ("192.0.2.129:80", [3, 1])] {
        let target: SocketAddr = address.parse().expect("an address");
        let [guest, host] = [&places.guest, &places.host].map(|netns| {
            let sniffer = netns.sniff();
            let (socket, port) = socket(netns, SocketType::STREAM, 64);
            let failed = net::connect(&socket, &target).expect_err("no way");
            (failed, router(&sniffer, port))
        });
        assert_eq!(guest, host, "{address}");
        assert_eq!(guest.1, (HOP, what), "{address}");
    }
}

#[test]
fn a_guest_that_is_a_router_and_routers_outside_are_heard_of() {
    if !Netns::allowed() {
        return;
    }
    let turn = beside();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let places = places(folder.path());
    let lasthop = start(&places);
    let addresses = [format!("{OUTSIDE}:8000"), format!("[{OUTSIDE6}]:8000")];
    for address in &addresses {
        serve_bytes(places.outside.listen(address));
    }

    turn.step("downloads behind a link with a smaller MTU");
    for address in &addresses {
        download(&places.guest, address);
        download(&places.client, address);
    }

    turn.step("hops to the outside");
    hops_are_seen(&places.guest);

    turn.step("connections that routers refuse");
    connections_fail_as_at_the_host(&places);

    if is_long() {
        turn.step("a download behind a link that says nothing");
        silence(&places.guest);
        download(&places.client, &addresses[0]);
    }
    assert_eq!(lasthop.port("out")["driver_status"]["restarts"], 0);
}
