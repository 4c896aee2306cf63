//! Processes on memif ports: DPDK's testpmd, and a client of our own that also breaks rules. Every
//! frame that the switch took from one it gave to the other, also when the switch is killed.

use std::collections::BTreeMap;
use std::time::Duration;

use e2e::lasthop::Lasthop;
use e2e::stats::Stats;
use e2e::testpmd::{Counts, Driver, Testpmd, TestpmdSpec, bounce_enough};
use e2e::{Turn, beside, machine};
use testkit::FakeGuest;
use testkit::memif::{Descriptor, Dialog, MemifClient, NO_INTERRUPT, Spec, code};
use testkit::packets::{Flow, mac, tcp_partial, udp, verify_checksums};
use testkit::wait::{LIMIT, wait_for, wait_until};

const SIZES: [u32; 5] = [64, 65, 512, 1500, 1514];
/// The Ethernet type of reverse ARP.
const RARP: [u8; 2] = [0x80, 0x35];
/// Most frames that the death of a switch can duplicate, of each port.
const BATCH: u64 = 64;

const CONFIG: &str = r#"
[switch]
name = "host1"

[[port]]
name = "p0"
kind = "memif"
queues = 2
port_security = { macs = "any" }

[[port]]
name = "p1"
kind = "memif"
id = 7
secret = "swordfish"
port_security = { macs = "any" }

[[port]]
name = "vm"
kind = "vhost-user"
socket = "vm.sock"
port_security = { macs = "any" }
"#;

/// Two ports for testpmd, of which it knows one id and one secret.
const PAIR: &str = r#"
[switch]
name = "host1"

[[port]]
name = "p0"
kind = "memif"
secret = "swordfish"
port_security = { macs = "any" }

[[port]]
name = "p1"
kind = "memif"
secret = "swordfish"
port_security = { macs = "any" }
"#;

fn testpmd(lasthop: &Lasthop, zero_copy: bool, secret: &str) -> Testpmd {
    let sockets = ["p0.memif", "p1.memif"].map(|name| lasthop.socket(name));
    let secret = Some(secret.to_owned());
    Testpmd::start(&TestpmdSpec {
        sockets,
        driver: Driver::Memif { zero_copy, secret },
    })
}

fn both_are_up(lasthop: &Lasthop) {
    for port in ["p0", "p1"] {
        let port = lasthop.wait_port(port, "up");
        assert_eq!(port["ring"], "memif");
        let program = port["client"]["program"].as_str().expect("a name");
        assert!(program.starts_with("DPDK 22."), "{program}");
        assert!(port["client"]["pid"].as_u64().expect("a process") > 1);
    }
}

/// Waits until the switch has taken as many frames as testpmd has sent, and is done with them, and
/// gives its counts.
fn taken(lasthop: &Lasthop, before: &Stats, counts: &Counts) -> Stats {
    wait_for("the switch has taken all that testpmd sent", || {
        let moved = lasthop.stats().since(before);
        let dropped: u64 = moved.drops().values().sum();
        let is_done = |port: &str, peer: &str, of: u64| {
            moved.sent(port) >= of && moved.received(peer) + dropped >= of
        };
        let both = is_done("p0", "p1", counts.sent[0]) && is_done("p1", "p0", counts.sent[1]);
        both.then_some(moved)
    })
}

fn bounce(turn: &Turn, lasthop: &Lasthop, testpmd: &mut Testpmd, size: u32) {
    bounce_enough(|time| bounce_for(turn, lasthop, testpmd, size, time));
}

/// How many frames each port has sent, all of which have arrived.
fn bounce_for(
    turn: &Turn,
    lasthop: &Lasthop,
    testpmd: &mut Testpmd,
    size: u32,
    time: Duration,
) -> [u64; 2] {
    let before = lasthop.stats();
    let counts = testpmd.bounce(size, 4, time);
    turn.step(&format!("    {size} bytes: {counts:?}"));
    let moved = taken(lasthop, &before, &counts);
    assert_eq!([moved.sent("p0"), moved.sent("p1")], counts.sent);
    assert_eq!([moved.received("p1"), moved.received("p0")], counts.sent);
    assert_eq!(moved.drops(), BTreeMap::new());
    let bytes = moved.get("p0.from_guest.bytes");
    assert_eq!(bytes, counts.sent[0] * u64::from(size));
    counts.sent
}

#[test]
fn testpmd_bounces_frames_and_survives_the_switch() {
    let turn = machine();
    let lasthop = Lasthop::start(PAIR);
    turn.step("another secret is refused, and the status has the reason");
    let other = testpmd(&lasthop, false, "swordfis");
    for port in ["p0", "p1"] {
        lasthop.wait_reason(port, "INIT refused: wrong secret");
    }
    other.quit();

    for zero_copy in [false, true] {
        turn.step(&format!("zero copy: {zero_copy}"));
        let mut testpmd = testpmd(&lasthop, zero_copy, "swordfish");
        both_are_up(&lasthop);
        testpmd.bounce(64, 1, Duration::from_millis(200));
        for size in SIZES {
            bounce(&turn, &lasthop, &mut testpmd, size);
        }
        turn.step("the switch is killed and replaced under load");
        let before = lasthop.stats();
        let counts = testpmd.bounce_while(64, 4, || {
            for _ in 0..2 {
                std::thread::sleep(Duration::from_millis(300));
                lasthop.replace_switch();
                both_are_up(&lasthop);
            }
            lasthop.ok(&["upgrade"]);
            both_are_up(&lasthop);
            std::thread::sleep(Duration::from_millis(300));
        });
        let moved = taken(&lasthop, &before, &counts);
        turn.step(&format!("    {counts:?}, {moved:?}"));
        for (port, peer, sent) in [("p0", "p1", counts.sent[0]), ("p1", "p0", counts.sent[1])] {
            let twice = 2 * BATCH;
            assert!(moved.sent(port) <= sent + twice, "{port}: {moved:?}");
            assert!(moved.received(peer) >= sent, "lost: {moved:?}");
            assert!(moved.received(peer) <= sent + twice, "{peer}: {moved:?}");
        }
        bounce(&turn, &lasthop, &mut testpmd, 64);
        let events = lasthop.ok(&["port", "show", "p0"]);
        assert!(events.contains("DPDK 22."), "{events}");
        if zero_copy {
            turn.step("a client is killed, and its port waits");
            testpmd.kill();
            lasthop.wait_port("p0", "waiting");
        } else {
            testpmd.quit();
        }
    }
    turn.step("another client comes");
    let mut again = testpmd(&lasthop, false, "swordfish");
    both_are_up(&lasthop);
    again.bounce(64, 1, Duration::from_millis(200));
    bounce(&turn, &lasthop, &mut again, 64);
    again.quit();
    lasthop.stop();
}

fn spec(port: &str) -> Spec {
    match port {
        "p1" => Spec {
            id: 7,
            secret: "swordfish".into(),
            ..Spec::default()
        },
        _ => Spec::default(),
    }
}

fn connect(lasthop: &Lasthop, port: &str, spec: &Spec) -> MemifClient {
    let path = lasthop.socket(&format!("{port}.memif"));
    let client = MemifClient::connect(&path, spec, LIMIT).expect("connected");
    lasthop.wait_port(port, "up");
    client
}

fn dial(lasthop: &Lasthop, port: &str) -> Dialog {
    let path = lasthop.socket(&format!("{port}.memif"));
    Dialog::connect(&path, LIMIT).expect("a listener")
}

/// The next frame, by any pair, that is no announcement of another's.
fn receive(client: &mut MemifClient) -> Vec<u8> {
    wait_for("a frame", || next(client))
}

fn next(client: &mut MemifClient) -> Option<Vec<u8>> {
    let mut pairs = 0..client.from_server.len();
    let got = pairs.find_map(|pair| client.receive(pair))?;
    (got.get(12..14) != Some(&RARP)).then_some(got)
}

fn announce(client: &mut MemifClient, number: u8) {
    let frame = testkit::packets::rarp(mac(number));
    assert!(client.send(0, &frame).expect("an interrupt"));
}

/// Waits until the stations that were announced are known.
fn are_known(lasthop: &Lasthop, numbers: &[u8]) {
    wait_until("the stations are known", || {
        let fdb = lasthop.cli(&["fdb", "list", "--json"]).stdout;
        let fdb = String::from_utf8_lossy(&fdb);
        let is_known = |number: &u8| {
            let mac = mac(*number).map(|byte| format!("{byte:02x}")).join(":");
            fdb.contains(&mac)
        };
        numbers.iter().all(is_known)
    });
}

#[test]
fn processes_and_a_guest_talk() {
    let turn = machine();
    let mut lasthop = Lasthop::start(CONFIG);
    turn.step("a client with small buffers in a region of their own, one with another id, a guest");
    let small = Spec {
        buffer: 256,
        pairs: 2,
        own_region: true,
        program: "cnf".into(),
        ..spec("p0")
    };
    let mut p0 = connect(&lasthop, "p0", &small);
    let mut p1 = connect(&lasthop, "p1", &spec("p1"));
    let mut vm: FakeGuest = lasthop.connect("vm", 3);
    lasthop.wait_port("vm", "up");
    let show = lasthop.port("p0");
    assert_eq!(show["client"]["program"], "cnf");
    assert_eq!(show["client"]["pid"], std::process::id());
    assert_eq!(show["queue_pairs"], 2);
    announce(&mut p0, 1);
    announce(&mut p1, 2);
    vm.send(&testkit::packets::rarp(mac(3))).expect("sent");
    are_known(&lasthop, &[1, 2, 3]);

    turn.step("frames of several buffers, in both directions, and a guest's unfinished checksums");
    for len in [18, 200, 214, 215, 700, 1472] {
        let payload: Vec<u8> = (0..len).map(|n| n as u8).collect();
        let frame = udp(&Flow::v4(1, 2), &payload);
        assert!(p0.send(1, &frame).expect("an interrupt"));
        assert_eq!(receive(&mut p1), frame);
        let frame = udp(&Flow::v4(2, 1), &payload);
        assert!(p1.send(0, &frame).expect("an interrupt"));
        assert_eq!(receive(&mut p0), frame);
    }
    let (frame, header) = tcp_partial(&Flow::v4(3, 1), 1, &[7; 900]);
    vm.send_on(0, &frame, &header).expect("sent");
    let got = receive(&mut p0);
    assert_eq!(got.len(), frame.len());
    verify_checksums(&got).expect("a whole checksum");

    turn.step("interrupts for a client that wants them");
    let event = |p0: &MemifClient| {
        let event = p0.from_server.iter().map(|ring| ring.event());
        let read = |fd| rustix::io::read(fd, &mut [0; 8]).is_ok();
        event.map(read).filter(|rang| *rang).count()
    };
    let frame = udp(&Flow::v4(2, 1), &[3; 100]);
    for (flags, wants) in [(NO_INTERRUPT, false), (0, true), (NO_INTERRUPT, false)] {
        p0.from_server.iter().for_each(|ring| ring.set_flags(flags));
        event(&p0);
        assert!(p1.send(0, &frame).expect("an interrupt"));
        if wants {
            wait_until("an interrupt", || event(&p0) > 0);
        }
        assert_eq!(receive(&mut p0), frame);
        assert!(wants || event(&p0) == 0, "an interrupt that nobody wants");
    }

    turn.step("the switch dies while a client connects");
    drop(p0);
    lasthop.wait_port("p0", "waiting");
    let mut p0 = MemifClient::prepare(dial(&lasthop, "p0"), &small).expect("memory");
    p0.dialog.expect(code::HELLO).expect("greeted");
    p0.introduce_in_steps(&small, || {
        let old = lasthop.pid("lasthop-switch");
        lasthop.kill_switch();
        wait_until("a new switch", || {
            let new = lasthop.pid("lasthop-switch");
            new.is_some() && new != old
        });
    })
    .expect("acknowledged");
    p0.finish().expect("connected");
    lasthop.wait_port("p0", "up");
    announce(&mut p0, 1);
    are_known(&lasthop, &[1]);
    let frame = udp(&Flow::v4(1, 2), &[4; 100]);
    assert!(p0.send(0, &frame).expect("an interrupt"));
    assert_eq!(receive(&mut p1), frame);

    turn.step("a second client is refused with a reason");
    let second = dial(&lasthop, "p0");
    let refused = second.expect(code::HELLO).expect_err("refused").to_string();
    assert_eq!(refused, "disconnected: another client is connected");

    turn.step("Lasthop dies whole and is started again; clients dial");
    lasthop.start_again();
    assert_eq!(p0.dialog.receive().expect("the end"), None);
    let mut p0 = connect(&lasthop, "p0", &small);
    let mut p1 = connect(&lasthop, "p1", &spec("p1"));
    announce(&mut p0, 1);
    announce(&mut p1, 2);
    are_known(&lasthop, &[1, 2]);
    let frame = udp(&Flow::v4(1, 2), &[1; 100]);
    assert!(p0.send(0, &frame).expect("an interrupt"));
    assert_eq!(receive(&mut p1), frame);
    drop((p0, p1, vm));
    lasthop.stop();
}

/// Breaks a rule on port p0, and returns the reason in the `DISCONNECT`; the status has it too.
fn broken(lasthop: &Lasthop, text: &str, rule: impl FnOnce(&mut MemifClient)) {
    let mut client = connect(lasthop, "p0", &spec("p0"));
    rule(&mut client);
    let said = client.dialog.receive().expect("a message").expect("words");
    assert_eq!(said.code, code::DISCONNECT);
    assert!(said.reason().contains(text), "{}", said.reason());
    assert_eq!(client.dialog.receive().expect("the end"), None);
    lasthop.wait_reason("p0", text);
    lasthop.wait_port("p0", "waiting");
}

/// Publishes one descriptor from the client, and interrupts the server.
fn publish(client: &mut MemifClient, descriptor: Descriptor) {
    let ring = &client.to_server[0];
    let head = ring.head();
    ring.set_descriptor(head, descriptor);
    ring.set_head(head.wrapping_add(1));
    rustix::io::write(ring.event(), &1_u64.to_ne_bytes()).expect("an interrupt");
}

/// An honest client and a guest, beside clients of port p0 that break rules.
struct Others {
    lasthop: Lasthop,
    p1: MemifClient,
    vm: FakeGuest,
    before: Stats,
}

impl Others {
    fn start() -> Self {
        let lasthop = Lasthop::start(CONFIG);
        let mut p1 = connect(&lasthop, "p1", &spec("p1"));
        let mut vm = lasthop.connect("vm", 3);
        lasthop.wait_port("vm", "up");
        announce(&mut p1, 2);
        vm.send(&testkit::packets::rarp(mac(3))).expect("sent");
        are_known(&lasthop, &[2, 3]);
        let before = lasthop.stats();
        Self {
            lasthop,
            p1,
            vm,
            before,
        }
    }

    /// They have lost nothing, and talk.
    fn end(mut self) {
        let frame = udp(&Flow::v4(2, 3), &[5; 200]);
        assert!(self.p1.send(0, &frame).expect("an interrupt"));
        wait_for("a frame", || {
            let got = self.vm.recv(Duration::from_millis(50)).expect("a guest");
            got.filter(|got| got.frame == frame)
        });
        let moved = self.lasthop.stats().since(&self.before);
        assert_eq!(moved.drops_of("p1"), BTreeMap::new(), "{moved:?}");
        assert_eq!(self.lasthop.port("p1")["front_ends"]["connections"], 1);
        drop((self.p1, self.vm));
        self.lasthop.stop();
    }
}

#[test]
fn vpp_e36567760d6_sum_of_offset_and_length_in_32_bits() {
    let _turn = beside();
    let others = Others::start();
    broken(&others.lasthop, "queue 1 stopped", |client| {
        let descriptor = Descriptor {
            offset: u32::MAX - 63,
            length: 128,
            ..Descriptor::default()
        };
        publish(client, descriptor);
    });
    others.end();
}

#[test]
fn vpp_76d102d1ad2_producer_overruns_the_ring() {
    let _turn = beside();
    let others = Others::start();
    broken(&others.lasthop, "queue 1 stopped", |client| {
        let ring = &client.to_server[0];
        ring.set_head(ring.size() + 1);
        rustix::io::write(ring.event(), &1_u64.to_ne_bytes()).expect("an interrupt");
    });
    others.end();
}

#[test]
fn vpp_fc025725b89_bad_descriptor() {
    let _turn = beside();
    let mut others = Others::start();
    let Others { lasthop, p1, .. } = &mut others;
    broken(lasthop, "queue 1 stopped", |client| {
        announce(client, 1);
        let frame = udp(&Flow::v4(1, 2), &[9; 64]);
        let is_whole = |got: &Vec<u8>| got.len() == frame.len();
        // Frames without a cached decision wait, and leave with the port.
        assert!(client.send(0, &frame).expect("an interrupt"));
        wait_for("the first frame", || p1.receive(0).filter(is_whole));
        let ring = &mut client.to_server[0];
        for _ in 0..3 {
            assert!(ring.put(&frame));
        }
        let last = ring.head().wrapping_add(2);
        let bad = Descriptor {
            region: 9,
            ..ring.descriptor(last)
        };
        ring.set_descriptor(last, bad);
        ring.publish();
        rustix::io::write(ring.event(), &1_u64.to_ne_bytes()).expect("an interrupt");
        // Those in front of it are delivered.
        for _ in 0..2 {
            let got = wait_for("a frame", || p1.receive(0).filter(is_whole));
            assert_eq!(got, frame);
        }
    });
    others.end();
}

#[test]
fn a_client_that_breaks_a_rule_gets_the_reason() {
    let turn = beside();
    let mut others = Others::start();
    let Others { lasthop, vm, .. } = &mut others;
    turn.step("bad INITs");
    let good = || spec("p0");
    for (change, text) in [
        (Spec { id: 1, ..good() }, "interface 1, this port has id 0"),
        (Spec { mode: 1, ..good() }, "interface mode 1"),
        (
            Spec {
                version: 0x100,
                ..good()
            },
            "memif version 1.0",
        ),
    ] {
        let path = lasthop.socket("p0.memif");
        let error = MemifClient::connect(&path, &change, LIMIT).expect_err("refused");
        assert!(error.to_string().contains(text), "{error}");
        lasthop.wait_reason("p0", text);
    }
    turn.step("a buffer that does not exist, for the switch to write to");
    broken(lasthop, "queue 0 stopped", |client| {
        announce(client, 1);
        are_known(lasthop, &[1]);
        let ring = &client.from_server[0];
        for slot in 0..ring.size() {
            let bad = Descriptor {
                region: 3,
                ..ring.descriptor(slot)
            };
            ring.set_descriptor(slot, bad);
        }
        vm.send(&udp(&Flow::v4(3, 1), &[1; 64])).expect("sent");
    });
    turn.step("a wrong cookie");
    let mut client = MemifClient::prepare(dial(lasthop, "p0"), &good()).expect("memory");
    client.dialog.expect(code::HELLO).expect("greeted");
    client.introduce(&good()).expect("acknowledged");
    client.from_server[0].set_cookie(1);
    client.dialog.send(code::CONNECT, &[], None).expect("sent");
    let error = client.dialog.expect(code::CONNECTED).expect_err("refused");
    assert!(
        error.to_string().contains("M2S ring 0 has cookie 0x1"),
        "{error}"
    );
    turn.step("memory that is cut off");
    let unsealed = Spec {
        sealed: false,
        ..good()
    };
    let client = connect(lasthop, "p0", &unsealed);
    rustix::fs::ftruncate(&client.files()[0], 0).expect("a size");
    let event = client.to_server[0].event();
    rustix::io::write(event, &1_u64.to_ne_bytes()).expect("an interrupt");
    let said = client.dialog.receive().expect("a message").expect("words");
    assert!(said.reason().contains("taken away"), "{}", said.reason());
    lasthop.wait_reason("p0", "taken away");
    drop(client);
    turn.step("a message after CONNECT, a message that does not exist");
    broken(lasthop, "INIT refused: it comes after CONNECT", |client| {
        let said = client.dialog.send(code::INIT, &good().init(), None);
        said.expect("sent");
    });
    broken(lasthop, "message 9 refused", |client| {
        client.dialog.send(9, &[], None).expect("sent");
    });
    others.end();
}
