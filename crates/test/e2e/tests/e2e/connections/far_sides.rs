//! Ports of other kinds as the far side of a stateful guest.

use std::net::{IpAddr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use e2e::beside;
use e2e::lasthop::Lasthop;
use e2e::outside::{OUTSIDE, echo, namespaces, serve, user_port};
use e2e::uplinks::{tap, uplink, wire};
use sockets::{Config, Errno, Id, Kind, Net};
use testkit::memif::{MemifClient, Spec};
use testkit::netns::Netns;
use testkit::packets::{Flow, UDP, arp_reply, mac, parse, payload_of, udp};
use testkit::wait::{LIMIT, wait_for, wait_until};

use super::{config, list};

/// Port of the echo servers of all far sides.
const ECHO: u16 = 7000;
const TAP: &str = "10.0.2.101";
const FAR: &str = "10.0.2.102";
const PROCESS: [u8; 4] = [10, 0, 2, 103];
/// How long a connection may take that is denied.
const DENIED: Duration = Duration::from_millis(300);

/// Answers of a DHCP server open no connection of the guest: its request is a broadcast.
const LEASES: &str = "[[acl.rule]]\nname = \"leases\"\naction = \"allow\"\nprotocol = \"udp\"\n\
    source_ports = [67]\n";

/// The guest `vm2` of the recipe, a stack of its own.
struct Server {
    net: Arc<Net>,
    /// Sockets that listen, open to others and not.
    open: Id,
    closed: Id,
}

impl Server {
    fn plug_in(lasthop: &Lasthop) -> Self {
        let net = Net::plug_in(Config::new(lasthop.socket_of("vm2"))).expect("a lease");
        let [open, closed] = [80, 22].map(|port| {
            let id = net.open(Kind::Stream).expect("room for a socket");
            let any = SocketAddr::from(([0; 4], port));
            net.bind(id, any).expect("a free port");
            net.listen(id, 8).expect("a bound socket");
            id
        });
        Self { net, open, closed }
    }

    fn address(&self) -> IpAddr {
        let all = self.net.addresses();
        let v4 = all.iter().find(|network| network.address.is_ipv4());
        v4.expect("a lease").address
    }

    /// Opens a connection to an echo server.
    fn connect(&self, host: &str) -> Id {
        let to: SocketAddr = format!("{host}:{ECHO}").parse().expect("an address");
        let id = self.net.open(Kind::Stream).expect("room for a socket");
        assert_eq!(self.net.connect(id, to), Err(Errno::INPROGRESS));
        wait_until("it is connected", || self.net.ready(id, libc::POLLOUT) != 0);
        assert_eq!(self.net.peer(id), Ok(to));
        id
    }

    /// Checks that bytes come back.
    fn check_echo(&self, id: Id) {
        let bytes = [7; 3000];
        assert_eq!(self.net.send(id, &bytes, None), Ok(bytes.len()));
        let mut left = bytes.len();
        while left > 0 {
            let mut got = [0; 3000];
            left -= wait_for("an echo", || match self.net.receive(id, &mut got, false) {
                Err(Errno::AGAIN) => None,
                received => Some(received.expect("an open connection").len),
            });
        }
    }

    /// Takes a connection that another side has opened.
    fn accepts(&self, what: &str) {
        let id = wait_for(what, || self.net.accept(self.open).ok());
        self.net.close(id);
    }
}

/// A station behind the memif port.
struct Process {
    client: MemifClient,
}

impl Process {
    /// Returns the next datagram; answers questions for the station's address.
    fn datagram(&mut self) -> Vec<u8> {
        wait_for("a datagram", || {
            let frame = self.client.receive(0)?;
            let is_udp = parse(&frame)
                .is_ok_and(|parsed| parsed.protocol == UDP && parsed.dst == IpAddr::from(PROCESS));
            if is_udp {
                return Some(frame);
            }
            // RFC 826: sender at 22 and 28, target at 38.
            if frame.get(12..14) == Some(&[8, 6]) && frame.get(38..42) == Some(&PROCESS) {
                let sender = frame[22..28].try_into().expect("an address");
                let address: [u8; 4] = frame[28..32].try_into().expect("an address");
                self.send(&arp_reply(
                    (mac(9), PROCESS.into()),
                    (sender, address.into()),
                ));
            }
            None
        })
    }

    fn send(&mut self, frame: &[u8]) {
        assert!(self.client.send(0, frame).expect("an interrupt"), "room");
    }
}

/// The way of a datagram.
fn flow_of(frame: &[u8]) -> Flow {
    let parsed = parse(frame).expect("a datagram");
    let port = |at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
    Flow {
        dst_mac: frame[..6].try_into().expect("six bytes"),
        src_mac: frame[6..12].try_into().expect("six bytes"),
        src: parsed.src,
        dst: parsed.dst,
        src_port: port(parsed.l4),
        dst_port: port(parsed.l4 + 2),
        vlan: None,
    }
}

/// A datagram and its answer cross the memif port; others that it sends do not arrive.
fn talks_with_a_process(lasthop: &Lasthop, server: &Server) {
    let path = lasthop.socket("process.memif");
    let client = MemifClient::connect(&path, &Spec::default(), LIMIT).expect("connected");
    let mut process = Process { client };
    let net = &server.net;
    let ids = [4000, 4001].map(|port| {
        let id = net.open(Kind::Datagram).expect("room for a socket");
        net.bind(id, SocketAddr::from(([0; 4], port)))
            .expect("a free port");
        id
    });
    let to = SocketAddr::from((PROCESS, ECHO));
    assert_eq!(net.send(ids[0], b"question", Some(to)), Ok(8));
    let question = process.datagram();
    assert_eq!(payload_of(&question), Ok(&b"question"[..]));
    let back = flow_of(&question).reversed();
    process.send(&udp(&back.ports(ECHO, 4001), b"to another port"));
    process.send(&udp(&back.ports(ECHO + 1, 4000), b"from another port"));
    process.send(&udp(&back, b"answer"));
    let mut got = [0; 100];
    let received = wait_for("an answer", || net.receive(ids[0], &mut got, false).ok());
    assert_eq!(&got[..received.len], b"answer");
    wait_until("the others are denied", || {
        lasthop.stats().get("process.drops.acl-denied") == 2
    });
    assert!(net.receive(ids[1], &mut got, false).is_err());
}

/// Whether a connection from a namespace to the guest is made.
fn knocks(from: &Netns, to: IpAddr, port: u16) -> bool {
    let limit = if port == 80 { LIMIT } else { DENIED };
    let to = SocketAddr::from((to, port));
    from.run(|| TcpStream::connect_timeout(&to, limit).is_ok())
}

#[test]
fn tap_uplink_user_and_memif_ports_are_far_sides() {
    if !Netns::allowed() {
        return;
    }
    let turn = beside();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (host, outside) = namespaces(folder.path());
    let [near, far] = ["near", "far"].map(|name| Netns::new(name, folder.path()));
    wire(&host, &far);
    far.ip(&format!("address add {FAR}/24 dev wire0"));
    let forwards = "[[port.forward]]\nlisten = \"tcp 127.0.0.1:2280\"\nto = \"vm2:80\"\n\
        [[port.forward]]\nlisten = \"tcp 127.0.0.1:2222\"\nto = \"vm2:22\"";
    let ports = [
        tap("tap", &near.path(), &format!("{TAP}/24"), ""),
        uplink(&host.path(), ""),
        user_port(&host, forwards),
        "[[port]]\nname = \"process\"\nkind = \"memif\"\n".to_owned(),
    ];
    let rest = "[[acl.rule]]\nname = \"rest\"";
    let config = config("", &ports.concat()).replace(rest, &format!("{LEASES}{rest}"));
    let lasthop = Lasthop::start(&config);
    for port in ["tap", "uplink", "out"] {
        lasthop.wait_port(port, "up");
    }
    let servers = [(&near, TAP), (&far, FAR), (&outside, OUTSIDE)];
    for (netns, address) in servers {
        serve(netns.listen(&format!("{address}:{ECHO}")), echo);
    }
    turn.step("the guest opens connections");
    let server = Server::plug_in(&lasthop);
    let ids = servers.map(|(_, address)| server.connect(address));
    ids.iter().for_each(|id| server.check_echo(*id));
    talks_with_a_process(&lasthop, &server);

    turn.step("others open connections to the guest, by its rule alone");
    let address = server.address();
    for netns in [&near, &far] {
        assert!(knocks(netns, address, 80));
        server.accepts("a connection to the open port");
        assert!(!knocks(netns, address, 22));
    }
    let local = IpAddr::from([127, 0, 0, 1]);
    let forwarded = [2280, 2222].map(|port| {
        let to = SocketAddr::from((local, port));
        host.run(|| TcpStream::connect_timeout(&to, LIMIT))
    });
    server.accepts("a forward");
    assert_eq!(server.net.accept(server.closed), Err(Errno::AGAIN));
    wait_until("all three are denied", || {
        let stats = lasthop.stats();
        let drops = |port| stats.get(&format!("{port}.drops.acl-denied"));
        ["tap", "uplink", "out"]
            .into_iter()
            .all(|port| drops(port) > 0)
    });
    drop(forwarded);

    turn.step("the operator sees both sides");
    let all = list(&lasthop, "");
    for far in ["tap", "uplink", "out", "process"] {
        let between = |from: &str, to: &str| {
            let is = |of: &&serde_json::Value| {
                of["original"]["port"] == from && of["reply"]["port"] == to
            };
            all.iter().filter(is).count()
        };
        assert!(between("vm2", far) > 0, "{far}: {all:?}");
        let opened = usize::from(far != "process");
        assert_eq!(between(far, "vm2"), opened, "{far}: {all:?}");
    }
    let status = &lasthop.port("vm2")["connections"];
    assert_eq!(status["opened_to"]["connections"], 3, "{status}");

    turn.step("the switch dies");
    lasthop.replace_switch();
    ids.iter().for_each(|id| server.check_echo(*id));
    drop(server);
    lasthop.stop();
}
