//! Port security: frames with false addresses or roles reach no receiver, each is counted under its
//! drop reason, and honest frames pass.

use std::net::Ipv6Addr;
use std::time::{Duration, Instant};

use e2e::guest::{Guest, two_guests};
use e2e::lasthop::Lasthop;
use e2e::stats::Stats;
use e2e::traffic::{ping, unreachable};
use e2e::{beside, machine};
use testkit::wait::{LIMIT, within};
use testkit::{FakeGuest, GuestConfig};
use wire::build::{PacketBuilder, TcpFields};
use wire::{EtherType, MacAddr};

/// Configuration of the switch, with an unrestricted observer; `security` are keys of the guest's
/// port.
fn config(security: &str) -> String {
    format!(
        r#"
[switch]
name = "host1"

[[port]]
name = "vm1"
kind = "vhost-user"
socket = "vm1.sock"
{security}

[[port]]
name = "observer"
kind = "vhost-user"
socket = "observer.sock"
port_security = {{ macs = "any", dhcp_server = true, router = true }}
"#
    )
}

const OWN: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
const OTHER: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);
const ALL: MacAddr = MacAddr::BROADCAST;

fn ip6(text: &str) -> Ipv6Addr {
    text.parse().expect("an address")
}

/// The guest under test, and an observer that receives its frames.
struct Scene {
    lasthop: Lasthop,
    guest: FakeGuest,
    observer: FakeGuest,
    /// Of the honest frames.
    number: u16,
}

impl Scene {
    fn new(security: &str) -> Self {
        Self::start(&config(security))
    }

    fn start(config: &str) -> Self {
        let lasthop = Lasthop::start(config);
        let connect = |name| lasthop.connect_as(name, GuestConfig::default());
        let [guest, observer] = ["vm1", "observer"].map(connect);
        Self {
            lasthop,
            guest,
            observer,
            number: 0,
        }
    }

    fn send(&mut self, frame: &PacketBuilder) {
        self.guest
            .send(&frame.clone().pad_to(60).build())
            .expect("the guest can send");
    }

    /// Sends a frame that is to arrive, and gives all that arrived until it did.
    fn until_received(&mut self, frame: &PacketBuilder) -> usize {
        let sent = frame.clone().pad_to(60).build();
        self.guest.send(&sent).expect("the guest can send");
        let mut others = 0;
        while let Some(got) = self
            .observer
            .recv(LIMIT)
            .expect("the device keeps the rules")
        {
            if got.frame == sent {
                return others;
            }
            others += 1;
        }
        panic!("the frame did not arrive: {}", self.lasthop.ok(&["stats"]));
    }

    /// An honest frame of the guest; each is another one.
    fn honest(&mut self) -> PacketBuilder {
        self.number += 1;
        let packet = PacketBuilder::new(OWN, ALL).ipv4([10, 0, 0, 1], [10, 0, 0, 9]);
        packet.udp(4000, 4000).payload(&self.number.to_be_bytes())
    }

    /// Sends all of these, several times; nothing of them arrives, and all are counted under this
    /// name.
    fn refused(&mut self, reason: &str, frames: &[PacketBuilder]) {
        const TIMES: usize = 3;
        let before = self.lasthop.stats();
        for frame in (0..TIMES).flat_map(|_| frames) {
            self.send(frame);
        }
        self.drops(&before, reason, TIMES * frames.len());
        let honest = self.honest();
        assert_eq!(self.until_received(&honest), 0, "{reason}");
    }

    /// Waits until so many frames of the guest were dropped, all for this reason: control may have
    /// to be asked first.
    fn drops(&self, before: &Stats, reason: &str, count: usize) {
        let key = format!("vm1.drops.{reason}");
        let mut moved = Stats::default();
        let done = within(LIMIT, || {
            moved = self.lasthop.stats().since(before);
            (moved.get(&key) >= count as u64).then_some(())
        });
        assert!(done.is_some(), "{count} {reason}: {moved:?}");
        assert_eq!(moved.drops(), [(reason, count as u64)].into(), "{moved:?}");
    }

    /// Each of these arrives.
    fn passed(&mut self, frames: &[PacketBuilder]) {
        for frame in frames {
            assert_eq!(self.until_received(frame), 0, "{frame:?}");
        }
    }

    /// Applies a configuration with these keys.
    fn apply(&self, security: &str) {
        let file = self.lasthop.socket("new.toml");
        std::fs::write(&file, config(security)).expect("the file can be written");
        self.lasthop.ok(&["apply", &file.display().to_string()]);
    }

    /// Waits for a state of the forwarding database.
    fn until_fdb(&self, is_so: impl Fn(&str) -> bool) {
        let mut list = String::new();
        let done = within(LIMIT, || {
            list = self.lasthop.ok(&["fdb", "list"]);
            is_so(&list).then_some(())
        });
        assert!(done.is_some(), "{list}");
    }
}

fn spoofed() -> PacketBuilder {
    PacketBuilder::new(OTHER, ALL)
        .ipv4([10, 0, 0, 2], [10, 0, 0, 9])
        .udp(1, 2)
}

fn arp(mac: MacAddr, sender: [u8; 4]) -> PacketBuilder {
    PacketBuilder::new(mac, ALL).arp_request(sender, [10, 0, 0, 9])
}

/// ARP of the guest's own MAC address, about another's address.
fn poison() -> PacketBuilder {
    let others = PacketBuilder::new(OTHER, ALL).arp(2, [10, 0, 0, 2], ALL, [10, 0, 0, 2]);
    PacketBuilder::new(OWN, ALL)
        .ethertype(EtherType::ARP)
        .payload(&others.build()[14..])
}

/// An advertisement of `target` that says: I am at `mac`.
fn advertisement(target: &str, mac: MacAddr) -> PacketBuilder {
    let option = [&[2, 1][..], &mac.0].concat();
    let body = [&ip6(target).octets()[..], &option].concat();
    PacketBuilder::new(OWN, MacAddr([0x33, 0x33, 0, 0, 0, 1]))
        .ipv6(ip6("fe80::1"), ip6("ff02::1"))
        .ttl(255)
        .icmp(136, 0, [0x20, 0, 0, 0])
        .payload(&body)
}

fn router_advertisement() -> PacketBuilder {
    PacketBuilder::new(OWN, MacAddr([0x33, 0x33, 0, 0, 0, 1]))
        .ipv6(ip6("fe80::1"), ip6("ff02::1"))
        .ttl(255)
        .icmp(134, 0, [64, 0, 7, 8])
        .payload(&[0; 8])
}

/// Over IPv4 (RFC 1256).
fn router_advertisement_v4() -> PacketBuilder {
    PacketBuilder::new(OWN, ALL)
        .ipv4([10, 0, 0, 1], [224, 0, 0, 1])
        .icmp(9, 0, [1, 2, 0, 60])
        .payload(&[10, 0, 0, 1, 0, 0, 0, 0])
}

fn redirect() -> PacketBuilder {
    PacketBuilder::new(OWN, ALL)
        .ipv4([10, 0, 0, 254], [10, 0, 0, 9])
        .icmp(5, 1, [10, 0, 0, 1])
        .payload(&[0x45; 28])
}

fn offer() -> PacketBuilder {
    PacketBuilder::new(OWN, ALL)
        .ipv4([10, 0, 0, 1], [255; 4])
        .udp(67, 68)
        .payload(&[2; 240])
}

fn offer6() -> PacketBuilder {
    PacketBuilder::new(OWN, OTHER)
        .ipv6(ip6("fe80::1"), ip6("fe80::2"))
        .udp(547, 546)
        .payload(&[2; 40])
}

/// ARP behind LLC and SNAP, and behind a tag that means nothing.
fn wrapped() -> [PacketBuilder; 2] {
    let arp = &arp(OWN, [10, 0, 0, 2]).build()[12..];
    let frame = |ethertype, before: &[u8]| {
        let payload = [before, arp].concat();
        PacketBuilder::new(OWN, ALL)
            .ethertype(EtherType(ethertype))
            .payload(&payload)
    };
    [frame(36, &[0xaa, 0xaa, 3, 0, 0, 0]), frame(0x88a8, &[0, 0])]
}

#[test]
fn a_guest_is_one_host_by_default() {
    let turn = beside();
    let mut scene = Scene::new("");
    turn.step("what a host sends");
    let honest = scene.honest();
    scene.passed(&[
        honest,
        arp(OWN, [10, 0, 0, 1]),
        advertisement("fe80::1", OWN),
    ]);

    turn.step("what it does not");
    scene.refused("spoofed-mac", &[spoofed(), arp(OTHER, [10, 0, 0, 2])]);
    let lies = [poison(), advertisement("fe80::1", OTHER)];
    scene.refused("spoofed-neighbour", &lies);
    scene.refused("dhcp-server", &[offer(), offer6()]);
    let icmp = [redirect(), router_advertisement_v4()];
    scene.refused("router-advert", &[router_advertisement()]);
    scene.refused("router-advert", &icmp);
    scene.refused("unparseable", &wrapped());

    turn.step("control dies, and knows what was bound");
    scene.lasthop.replace_control();
    let third = PacketBuilder::new(MacAddr([2, 0, 0, 0, 0, 3]), ALL);
    scene.refused("spoofed-mac", &[spoofed(), third]);
    scene.refused("dhcp-server", &[offer()]);

    turn.step("the switch dies");
    let control = scene.lasthop.pid("lasthop-control").expect("control runs");
    scene.lasthop.kill_switch();
    scene.passed_again();
    scene.lasthop.wait_control(control);
    scene.refused("spoofed-mac", &[spoofed()]);

    turn.step("it may be a router and a server now, and is still one host");
    scene.apply("port_security = { dhcp_server = true, router = true }");
    scene.passed(&[offer(), offer6(), router_advertisement()]);
    scene.passed(&icmp);
    scene.refused("spoofed-mac", &[spoofed()]);
    scene.apply("");
    scene.refused("dhcp-server", &[offer()]);

    turn.step("any address is permitted");
    scene.apply("port_security = { macs = \"any\" }");
    scene.passed(&[spoofed(), poison()]);
    scene.refused("router-advert", &[router_advertisement()]);
    scene.lasthop.stop();
}

impl Scene {
    /// The switch was killed: until its successor is there frames may be lost, but none may pass
    /// that is forbidden.
    fn passed_again(&mut self) {
        let end = Instant::now() + LIMIT;
        loop {
            let honest = self.honest();
            self.send(&spoofed());
            self.send(&honest);
            let heard = self.observer.recv(Duration::from_millis(100));
            if let Some(got) = heard.expect("the device keeps the rules") {
                assert_eq!(got.frame[6..12], OWN.0, "a frame of another source");
                break;
            }
            assert!(Instant::now() < end, "no frame arrives");
        }
        let honest = self.honest();
        self.until_received(&honest);
    }
}

/// Lists to the observer that drop what is said to be dropped, and let all else pass.
fn no(rules: &[&str]) -> String {
    let mut text =
        "[[acl]]\nname = \"no\"\ndirection = \"to-guest\"\nports = [\"observer\"]\n".to_owned();
    for (number, rule) in rules.iter().enumerate() {
        text += &format!("[[acl.rule]]\nname = \"r{number}\"\naction = \"drop\"\n{rule}\n");
    }
    text
}

/// TCP behind all that a receiver may take off.
fn wrapped_tcp() -> Vec<PacketBuilder> {
    let packet = PacketBuilder::new(OWN, ALL)
        .ipv4([10, 0, 0, 1], [10, 0, 0, 9])
        .tcp(TcpFields::default())
        .build();
    let frame = |ethertype, before: &[u8], from| {
        let payload = [before, &packet[from..]].concat();
        PacketBuilder::new(OWN, ALL)
            .ethertype(EtherType(ethertype))
            .payload(&payload)
    };
    vec![
        frame(48, &[0xaa, 0xaa, 3, 0, 0, 0], 12),
        frame(48, &[0xaa, 0xaa, 3, 0, 0, 0xf8], 12),
        frame(43, &[6, 6, 3], 14),
        frame(0x88a8, &[0, 0], 12),
        frame(0x8100, &[0, 0, 0x88, 0xa8, 0xe0, 0], 12),
        frame(0x88a8, &[0, 0, 0x88, 0xa8, 0, 0], 12),
    ]
}

#[test]
fn a_list_drops_what_hides_ip_whatever_port_security_lets_pass() {
    let turn = beside();
    let open = "port_security = { macs = \"any\", dhcp_server = true, router = true }";
    let mut scene = Scene::start(&(config(open) + &no(&["protocol = \"tcp\""])));
    let like = |ethertype: u16, payload: &[u8]| {
        PacketBuilder::new(OWN, ALL)
            .ethertype(EtherType(ethertype))
            .payload(payload)
    };
    let v6 = |protocol: u8| {
        PacketBuilder::new(OWN, ALL)
            .ipv6(ip6("2001:db8::1"), ip6("2001:db8::9"))
            .protocol(protocol)
            .payload(&[0; 32])
    };
    let authenticated = |packet: PacketBuilder| packet.extension(51, &[0; 22]);
    // Of the same types as what is dropped, so that flows of theirs are there.
    let others = [
        like(48, &[0xaa, 0xaa, 3, 0, 0, 0, 0x81, 0x37]),
        like(43, &[0xe0, 0xe0, 3, 0, 0, 0, 0, 0]),
        like(0x88a8, &[0, 7, 8, 0, 0x45, 0]),
        authenticated(v6(17)),
        arp(OWN, [10, 0, 0, 1]),
    ];
    let later = v6(51).fragment(2, false);
    let mut hidden = wrapped_tcp();
    hidden.push(later);
    for again in 0..2 {
        turn.step(&format!("other frames pass, hidden ones do not, {again}"));
        scene.passed(&others);
        scene.refused("unparseable", &hidden);
        let tcp = v6(6).tcp(TcpFields::default());
        scene.refused(
            "acl-denied",
            &[
                authenticated(tcp.clone()),
                authenticated(tcp).extension(60, &[0; 6]),
            ],
        );
    }
    let output = scene.lasthop.ok(&[
        "trace",
        "--port",
        "vm1",
        &format!("ether {OWN} > {OTHER} type 0x88a8"),
    ]);
    assert!(output.contains("dropped, unparseable"), "{output}");

    turn.step("no list looks at what is in frames");
    let text = config(open) + &no(&["destination_mac = \"02:00:00:00:00:07\""]);
    let file = scene.lasthop.socket("new.toml");
    std::fs::write(&file, text).expect("the file can be written");
    scene.lasthop.ok(&["apply", &file.display().to_string()]);
    // The port is untagged: a priority tag is taken off.
    let untagged = |frame: &PacketBuilder| frame.build()[12..14] != [0x81, 0];
    let hidden: Vec<_> = wrapped_tcp().into_iter().filter(untagged).collect();
    scene.passed(&hidden);
    scene.lasthop.stop();
}

#[test]
fn another_guest_at_the_same_port_is_another_host() {
    let turn = beside();
    let mut scene = Scene::new("");
    let honest = scene.honest();
    scene.passed(&[honest]);
    scene.refused("spoofed-mac", &[spoofed()]);
    turn.step("the connection ends, and another guest comes");
    scene.guest.disconnect().expect("the guest leaves");
    scene.lasthop.wait_port("vm1", "waiting");
    scene
        .guest
        .reconnect(&scene.lasthop.socket("vm1.sock"))
        .expect("the port takes a guest");
    scene.passed(&[spoofed()]);
    let before = scene.lasthop.stats();
    let first = scene.honest();
    scene.send(&first);
    scene.passed(&[spoofed()]);
    scene.drops(&before, "spoofed-mac", 1);
    scene.lasthop.stop();
}

#[test]
fn a_listed_address_is_taken_by_no_other_port() {
    let turn = beside();
    let security = format!("mac = \"{OWN}\"");
    let mut scene = Scene::new(&security);
    let claims = |scene: &mut Scene| {
        scene.until_fdb(|list| list.contains("static"));
        let before = scene.lasthop.stats();
        for number in 0..3 {
            let claim = PacketBuilder::new(OWN, ALL).payload(&[number; 46]);
            scene.observer.send(&claim.build()).expect("it can send");
        }
        let mut moved = Stats::default();
        let done = within(LIMIT, || {
            moved = scene.lasthop.stats().since(&before);
            (moved.get("observer.drops.spoofed-source") == 3).then_some(())
        });
        assert!(done.is_some(), "{moved:?}");
        // The first frame that the owner receives is for it alone, and none of the above.
        let to_owner = PacketBuilder::new(OTHER, OWN).payload(b"for the owner");
        let to_owner = to_owner.pad_to(60).build();
        scene.observer.send(&to_owner).expect("it can send");
        assert_eq!(arrives(&mut scene.guest, 1), [to_owner]);
        let moved = scene.lasthop.stats().since(&before);
        assert_eq!(moved.drops(), [("spoofed-source", 3)].into(), "{moved:?}");
    };
    turn.step("it has not said a word");
    claims(&mut scene);
    let frame = format!("ether {OWN} > {OTHER} type 0x88b5");
    let output = scene.lasthop.ok(&["trace", "--port", "observer", &frame]);
    let says = format!("{OWN} is a static address of vm1, which is up");
    assert!(output.contains(&says), "{output}");

    turn.step("it has");
    let honest = scene.honest();
    scene.passed(&[honest]);
    claims(&mut scene);

    turn.step("control dies");
    scene.lasthop.replace_control();
    claims(&mut scene);

    turn.step("it is gone: who speaks then has the address, until it is back");
    scene.guest.disconnect().expect("the guest leaves");
    scene.until_fdb(|list| !list.contains("static"));
    let taken = PacketBuilder::new(OWN, ALL).payload(&[9; 46]).build();
    let before = scene.lasthop.stats();
    scene.observer.send(&taken).expect("it can send");
    let mut moved = Stats::default();
    let flooded = within(LIMIT, || {
        moved = scene.lasthop.stats().since(&before);
        (!moved.drops().is_empty()).then_some(())
    });
    assert!(flooded.is_some());
    assert_eq!(moved.drops(), [("receiver-down", 1)].into(), "{moved:?}");
    let holder = format!("{OWN}  observer");
    scene.until_fdb(|list| list.contains(&holder));
    let socket = scene.lasthop.socket("vm1.sock");
    scene
        .guest
        .reconnect(&socket)
        .expect("the port takes a guest");
    claims(&mut scene);
    scene.lasthop.stop();
}

#[test]
fn a_guest_has_the_addresses_of_its_list() {
    let turn = beside();
    let security = r#"
[port.port_security]
macs = ["02:00:00:00:00:01"]
addresses = ["10.0.0.1", "2001:db8::/64"]
"#;
    let mut scene = Scene::new(security);
    let v4 = |src: [u8; 4]| {
        PacketBuilder::new(OWN, ALL)
            .ipv4(src, [10, 0, 0, 9])
            .udp(1, 2)
    };
    let v6 = |src: &str| {
        PacketBuilder::new(OWN, OTHER)
            .ipv6(ip6(src), ip6("2001:db8::9"))
            .udp(1, 2)
    };
    let discover = PacketBuilder::new(OWN, ALL)
        .ipv4([0; 4], [255; 4])
        .udp(68, 67);
    let probe = |target: [u8; 4]| PacketBuilder::new(OWN, ALL).arp_request([0; 4], target);

    turn.step("what is its own");
    scene.passed(&[
        v4([10, 0, 0, 1]),
        arp(OWN, [10, 0, 0, 1]),
        probe([10, 0, 0, 1]),
        discover,
        v6("fe80::1"),
        v6("2001:db8::7"),
        advertisement("2001:db8::7", OWN),
        advertisement("fe80::1", OWN),
    ]);

    turn.step("what is another's");
    let others = [
        v4([10, 0, 0, 2]),
        v4([192, 168, 0, 1]),
        v4([0; 4]),
        v6("2001:db9::1"),
        v6("fe80::2"),
        v6("::"),
    ];
    scene.refused("spoofed-ip", &others);
    let claims = [
        arp(OWN, [10, 0, 0, 2]),
        probe([10, 0, 0, 2]),
        advertisement("2001:db9::1", OWN),
        advertisement("fe80::2", OWN),
    ];
    scene.refused("spoofed-neighbour", &claims);
    turn.step("a lie behind a true one that is the same up to its target");
    for _ in 0..20 {
        let before = scene.lasthop.stats();
        scene.send(&advertisement("2001:db8::7", OWN));
        scene.send(&advertisement("2001:db9::1", OWN));
        scene.drops(&before, "spoofed-neighbour", 1);
        let heard = scene.observer.recv_count(1, LIMIT);
        let heard = heard.expect("the true one arrives");
        assert_eq!(heard[0].frame, advertisement("2001:db8::7", OWN).build());
        let honest = scene.honest();
        scene.passed(&[honest]);
    }

    turn.step("control dies, and the list changes");
    scene.lasthop.replace_control();
    scene.refused("spoofed-ip", &others);
    scene.apply(r#"port_security = { macs = ["02:00:00:00:00:01"], addresses = ["10.0.0.0/24"] }"#);
    scene.passed(&[v4([10, 0, 0, 2]), arp(OWN, [10, 0, 0, 3])]);
    scene.refused("spoofed-ip", &[v6("2001:db8::7")]);
    scene.lasthop.stop();
}

#[test]
fn real_guests_are_hosts_and_spoofed_frames_are_dropped() {
    let turn = machine();
    let lasthop = Lasthop::start(
        r#"
[switch]
name = "host1"

[[port]]
name = "vm1"
kind = "vhost-user"
socket = "vm1.sock"
port_security = { addresses = ["10.0.0.1"] }

[[port]]
name = "vm2"
kind = "vhost-user"
socket = "vm2.sock"
"#,
    );
    turn.step("boot two guests");
    let (mut vm1, mut vm2) = two_guests(&lasthop);
    turn.step("they reach one another, over IPv4 and IPv6");
    assert_eq!(ping(&mut vm1, "10.0.0.2", 20).lost(), 0);
    assert_eq!(ping(&mut vm2, "10.0.0.1", 20).lost(), 0);
    turn.step("an address that is not its own");
    vm1.run("ip address add 10.0.0.77/24 dev eth0");
    let before = lasthop.stats();
    assert!(unreachable(&mut vm2, "10.0.0.77"));
    let moved = lasthop.stats().since(&before);
    assert!(moved.get("vm1.drops.spoofed-neighbour") > 0, "{moved:?}");
    turn.step("a hardware address that is not its own");
    let before = lasthop.stats();
    vm2.run(
        "ip link set eth0 down; ip link set eth0 address 02:aa:00:00:00:99; ip link set eth0 up",
    );
    assert!(unreachable(&mut vm2, "10.0.0.1"));
    let moved = lasthop.stats().since(&before);
    assert!(moved.get("vm2.drops.spoofed-mac") > 0, "{moved:?}");
    lasthop.stop();
}

/// A segment that answers, its uplink-like observer, a guest who asks and one who has an address.
fn answering(owner: &str) -> String {
    format!(
        r#"{}
[[port]]
name = "owner"
kind = "vhost-user"
socket = "owner.sock"
port_security = {{ macs = ["{OTHER}"], addresses = ["{owner}", "2001:db8::2"] }}

[[segment]]
name = "default"
neighbour_suppression = true
"#,
        config("port_security = { macs = \"any\" }")
    )
}

/// The frames that the next few that arrive are, and no more.
fn arrives(guest: &mut FakeGuest, count: usize) -> Vec<Vec<u8>> {
    let got = guest.recv_count(count, LIMIT);
    let got = got.expect("the device keeps the rules");
    assert_eq!(got.len(), count);
    got.into_iter().map(|got| got.frame).collect()
}

fn asks(sender: [u8; 4], target: [u8; 4]) -> PacketBuilder {
    PacketBuilder::new(OWN, ALL).arp_request(sender, target)
}

fn solicits() -> PacketBuilder {
    let option = [&[1, 1][..], &OWN.0].concat();
    let body = [&ip6("2001:db8::2").octets()[..], &option].concat();
    PacketBuilder::new(OWN, MacAddr([0x33, 0x33, 0xff, 0, 0, 2]))
        .ipv6(ip6("2001:db8::1"), ip6("ff02::1:ff00:2"))
        .ttl(255)
        .icmp(135, 0, [0; 4])
        .payload(&body)
}

#[test]
fn requests_for_known_addresses_are_answered_and_not_flooded() {
    let turn = beside();
    let mut scene = Scene::start(&answering("10.0.0.2"));
    let mut owner = scene.lasthop.connect_as("owner", GuestConfig::default());
    scene.lasthop.wait_port("owner", "up");
    let known = [
        asks([10, 0, 0, 1], [10, 0, 0, 2]),
        asks([0; 4], [10, 0, 0, 2]),
        solicits(),
    ];
    let reply = |tell: [u8; 4]| {
        let reply = PacketBuilder::new(OTHER, OWN);
        reply.arp(2, [10, 0, 0, 2], OWN, tell).build()
    };
    let answered = |scene: &mut Scene| {
        let before = scene.lasthop.stats();
        known.iter().for_each(|frame| scene.send(frame));
        let got = arrives(&mut scene.guest, known.len());
        assert_eq!(got[..2], [reply([10, 0, 0, 1]), reply([0; 4])]);
        let option = [&[2, 1][..], &OTHER.0].concat();
        assert_eq!(
            (got[2][54], got[2][58], &got[2][78..]),
            (136, 0x60, &option[..])
        );
        let replies = || {
            scene
                .lasthop
                .stats()
                .since(&before)
                .get("vm1.neighbour_replies")
        };
        let counted = within(LIMIT, || (replies() == known.len() as u64).then_some(()));
        assert!(counted.is_some(), "{} replies", replies());
        assert!(scene.lasthop.stats().since(&before).drops().is_empty());
        let honest = scene.honest();
        scene.passed(&[honest]);
    };
    turn.step("what is known, three times");
    (0..3).for_each(|_| answered(&mut scene));
    turn.step("what is not, each time");
    for _ in 0..3 {
        scene.passed(&[asks([10, 0, 0, 1], [10, 0, 0, 7])]);
    }

    turn.step("a trace shows the reply");
    let output = |scene: &Scene, who: &str| {
        let asked = format!("ether {OWN} > {ALL} arp who-has {who} tell 10.0.0.1");
        scene.lasthop.ok(&["trace", "--port", "vm1", &asked])
    };
    let answer = format!("answered to vm1 alone: 10.0.0.2 is at {OTHER}");
    assert!(output(&scene, "10.0.0.2").contains(&answer));
    assert!(output(&scene, "10.0.0.7").contains("flooded to"));

    turn.step("control dies");
    scene.lasthop.replace_control();
    answered(&mut scene);

    turn.step("the owner has another address");
    let file = scene.lasthop.socket("new.toml");
    std::fs::write(&file, answering("10.0.0.7")).expect("the file can be written");
    scene.lasthop.ok(&["apply", &file.display().to_string()]);
    scene.passed(&[asks([10, 0, 0, 1], [10, 0, 0, 2])]);
    scene.send(&asks([10, 0, 0, 1], [10, 0, 0, 7]));
    let got = arrives(&mut scene.guest, 1);
    assert_eq!(
        (&got[0][6..12], &got[0][28..32]),
        (&OTHER.0[..], &[10, 0, 0, 7][..])
    );

    turn.step("the owner is gone");
    owner.disconnect().expect("the guest leaves");
    scene.lasthop.wait_port("owner", "waiting");
    scene.passed(&[asks([10, 0, 0, 1], [10, 0, 0, 7])]);

    turn.step("it is over");
    let off = [
        "segment",
        "set",
        "default",
        "--neighbour-suppression",
        "false",
    ];
    scene.lasthop.ok(&off);
    scene.passed(&[asks([10, 0, 0, 1], [10, 0, 0, 7]), solicits()]);
    scene.lasthop.stop();
}

#[test]
fn real_guests_resolve_addresses_with_neighbour_suppression() {
    let turn = machine();
    let lasthop = Lasthop::start(
        r#"
[switch]
name = "host1"

[[segment]]
name = "default"
neighbour_suppression = true

[[port]]
name = "vm1"
kind = "vhost-user"
socket = "vm1.sock"
port_security = { addresses = "sticky" }

[[port]]
name = "vm2"
kind = "vhost-user"
socket = "vm2.sock"
port_security = { addresses = ["10.0.0.2"] }
"#,
    );
    turn.step("boot two guests");
    let (mut vm1, mut vm2) = two_guests(&lasthop);
    turn.step("each finds the other");
    let finds = |guest: &mut Guest, other: &str, answered: u64| {
        guest.run("ip neigh flush all");
        let before = lasthop.stats();
        // All may wait for the answer, and their replies come at once then: a dozen are what the
        // socket of busybox has room for.
        let lost = ping(guest, other, 10).lost();
        let moved = lasthop.stats().since(&before);
        let count = moved.sum("neighbour_replies");
        assert_eq!((lost, count.min(1)), (0, answered), "{moved:?}");
    };
    // Who has not spoken yet has no MAC address that is known.
    finds(&mut vm1, "10.0.0.2", 0);
    finds(&mut vm2, "10.0.0.1", 1);
    finds(&mut vm1, "10.0.0.2", 1);
    lasthop.stop();
}
