//! Mirrors, as an operator makes them: a probe gets the selected copies in order, and traffic is
//! not disturbed; also after control and switch were killed.

use std::fs;
use std::process::Output;
use std::time::Duration;

use e2e::beside;
use e2e::lasthop::Lasthop;
use e2e::numbered::{Stream, introduce, settle};
use e2e::stats::Stats;
use e2e::uplinks::{tap, uplink, wire};
use testkit::net::NetHeader;
use testkit::netns::{Netns, Sniffer};
use testkit::packets::{BROADCAST, Flow, SequenceChecker, ethernet, mac, udp};
use testkit::table::rows;
use testkit::wait::{LIMIT, wait_for};
use testkit::{FakeGuest, GuestConfig};

/// vm1 and vm2 in one segment, vm3 and vm4 in another, and the probe in one of its own.
fn config(mirrors: &str) -> String {
    let segment = |name: &str| format!("[[segment]]\nname = \"{name}\"\n");
    let port = |(name, segment): (&str, &str)| {
        format!(
            "[[port]]\nname = \"{name}\"\nkind = \"vhost-user\"\nsocket = \"{name}.sock\"\n\
             segment = \"{segment}\"\n"
        )
    };
    let ports = [
        ("vm1", "blue"),
        ("vm2", "blue"),
        ("vm3", "red"),
        ("vm4", "red"),
        ("probe", "probes"),
    ];
    let segments = ["blue", "red", "probes"].map(segment).concat();
    let ports = ports.map(port).concat();
    format!("[switch]\nname = \"host1\"\nworkers = 2\n{segments}{ports}{mirrors}")
}

fn mirror(name: &str, what: &str) -> String {
    format!("[[mirror]]\nname = \"{name}\"\nto = \"probe\"\n{what}\n")
}

struct World {
    lasthop: Lasthop,
    /// vm1 and vm2.
    blue: [FakeGuest; 2],
    /// vm3 and vm4.
    red: [FakeGuest; 2],
    probe: FakeGuest,
}

fn frame(a: u8, b: u8, n: u16) -> Vec<u8> {
    udp(&Flow::v4(a, b).ports(1000 + n, 53), &[n as u8; 200])
}

/// Returns the frames that have arrived, waiting a while for the first.
fn bytes(guest: &mut FakeGuest, count: usize) -> Vec<Vec<u8>> {
    let all = guest.recv_count(count, LIMIT).expect("a correct device");
    all.into_iter().map(|got| got.frame).collect()
}

/// Returns the test's frames that have arrived, waiting a while for the first: the kernel behind an
/// interface in the segment sends frames of its own.
fn ours(guest: &mut FakeGuest) -> Vec<Vec<u8>> {
    loop {
        let all = bytes(guest, 1);
        let silent = all.is_empty();
        let ours: Vec<_> = all.into_iter().filter(|frame| is_ours(frame)).collect();
        if silent || !ours.is_empty() {
            return ours;
        }
    }
}

/// Sends frame `n` between two guests, both ways; returns both frames.
fn exchange([a, b]: [&mut FakeGuest; 2], [one, other]: [u8; 2], n: u16) -> [Vec<u8>; 2] {
    let there = frame(one, other, n);
    let back = frame(other, one, n);
    a.send(&there).expect("room");
    assert_eq!(ours(b), std::slice::from_ref(&there));
    b.send(&back).expect("room");
    assert_eq!(ours(a), std::slice::from_ref(&back));
    [there, back]
}

impl World {
    /// All guests of a segment are known, and there is no mirror.
    fn start() -> World {
        Self::start_with(&config(""), 1)
    }

    /// Starts with another configuration, and guests that use so many queue pairs.
    fn start_with(config: &str, pairs: u16) -> World {
        let lasthop = Lasthop::start(config);
        let connect = |name: &str, number| {
            lasthop.connect_as(name, GuestConfig::default().guest(number).pairs(pairs))
        };
        let [mut a, mut b] = [connect("vm1", 1), connect("vm2", 2)];
        let [mut c, mut d] = [connect("vm3", 3), connect("vm4", 4)];
        let probe = connect("probe", 9);
        introduce(&mut a, &mut b, Flow::v4(1, 2));
        introduce(&mut c, &mut d, Flow::v4(3, 4));
        World {
            lasthop,
            blue: [a, b],
            red: [c, d],
            probe,
        }
    }

    fn try_apply(&self, mirrors: &str) -> Output {
        let file = self.lasthop.folder().join("new.toml");
        fs::write(&file, config(mirrors)).expect("a file");
        self.lasthop
            .cli(&["apply", file.to_str().expect("a path of ours")])
    }

    /// Applies the configuration with these mirrors; the difference that is shown.
    fn apply(&self, mirrors: &str) -> String {
        let output = self.try_apply(mirrors);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Exchanges frames `0..count` between the guests of a segment, one after the other; checks the
    /// received ones.
    fn talk(&mut self, which: u8, count: u16) {
        let (one, other, guests) = match which {
            0 => (1, 2, &mut self.blue),
            _ => (3, 4, &mut self.red),
        };
        let [a, b] = guests;
        for n in 0..count {
            exchange([a, b], [one, other], n);
        }
    }

    /// The probe has got these and nothing else.
    fn got(&mut self, expected: &[Vec<u8>]) {
        let got = bytes(&mut self.probe, expected.len());
        assert_eq!(got, expected);
        self.got_nothing();
    }

    /// Checks that nothing else has arrived. Copies are made before the frames' receivers are
    /// notified, or right after: never long behind.
    fn got_nothing(&mut self) {
        let all = self.probe.recv_all().expect("a correct device");
        assert!(all.is_empty(), "{all:?}");
    }
}

fn both(a: u8, b: u8, count: u16) -> Vec<Vec<u8>> {
    let pair = |n| [frame(a, b, n), frame(b, a, n)];
    (0..count).flat_map(pair).collect()
}

#[test]
fn a_probe_gets_what_the_mirrors_mean_as_long_as_there_are_any() {
    let turn = beside();
    let mut world = World::start();
    turn.step("both ways of a port");
    let shown = world.apply(&mirror("m1", "ports = [\"vm1\"]"));
    assert!(shown.contains("+ mirror m1"), "{shown}");
    let before = world.lasthop.stats();
    world.talk(0, 20);
    world.talk(1, 20);
    world.got(&both(1, 2, 20));
    let moved = world.lasthop.stats().since(&before);
    assert_eq!((moved.received("probe"), moved.drops().len()), (40, 0));

    turn.step("one way, with a filter");
    let what = "ports = [\"vm1\", \"vm3\"]\ndirection = \"out\"\n\
        filter = \"dst host 10.0.0.1 and src port 1003\"";
    let shown = world.apply(&mirror("m1", what));
    assert!(shown.contains("~ mirror m1"), "{shown}");
    let desired = Flow::v4(2, 1).ports(1003, 53);
    let desired = udp(&desired, &[3; 200]);
    world.talk(0, 5);
    world.talk(1, 5);
    world.got(&[desired]);

    turn.step("a segment: each frame once, also those for all");
    world.apply(&mirror("m1", "segments = [\"red\"]"));
    world.talk(0, 5);
    world.talk(1, 5);
    let to_all = ethernet(BROADCAST, mac(3), 0x88b5, &[0; 86]);
    world.red[0].send(&to_all).expect("room");
    assert_eq!(bytes(&mut world.red[1], 1), std::slice::from_ref(&to_all));
    let mut expected = both(3, 4, 5);
    expected.push(to_all);
    world.got(&expected);

    turn.step("a match anywhere");
    world.apply(&mirror("m1", "filter = \"src port 1001\""));
    world.talk(0, 3);
    world.talk(1, 3);
    let of = |a, b| [frame(a, b, 1), frame(b, a, 1)];
    world.got(&[of(1, 2), of(3, 4)].concat());

    turn.step("none any more");
    let shown = world.apply("");
    assert!(shown.contains("- mirror m1"), "{shown}");
    world.talk(0, 5);
    world.talk(1, 5);
    world.got_nothing();
    world.lasthop.stop();
}

#[test]
fn mirrors_stay_when_control_and_switch_are_killed() {
    let turn = beside();
    let mut world = World::start();
    let mirrors = [
        mirror("m1", "ports = [\"vm1\"]\ndirection = \"in\""),
        mirror("m2", "segments = [\"red\"]"),
    ];
    world.apply(&mirrors.concat());
    for kill in [Lasthop::kill_control, Lasthop::kill_switch] {
        turn.step("kill, and see the same");
        kill(&world.lasthop);
        wait_for("frames flow and are copied", || {
            let pause = Duration::from_millis(50);
            world.blue[0].send(&frame(1, 2, 99)).ok()?;
            world.blue[1].recv(pause).ok()??;
            world.probe.recv(pause).ok()?
        });
        let ([a, b], [c, d]) = (&mut world.blue, &mut world.red);
        introduce(a, b, Flow::v4(1, 2));
        introduce(c, d, Flow::v4(3, 4));
        world.probe.recv_all().expect("a correct device");
        world.talk(0, 5);
        let sent: Vec<_> = (0..5).map(|n| frame(1, 2, n)).collect();
        world.got(&sent);
        world.talk(1, 5);
        world.got(&both(3, 4, 5));
    }
    let state = world.lasthop.ok(&["status"]);
    assert!(state.contains("probe"), "{state}");
    world.lasthop.stop();
}

#[test]
fn a_full_probe_takes_nothing_from_those_that_are_mirrored() {
    let turn = beside();
    let mut world = World::start();
    world.apply(&mirror("m1", "ports = [\"vm1\"]"));
    turn.step("5000 frames past a probe that reads nothing");
    let before = world.lasthop.stats();
    let mut checker = SequenceChecker::default();
    let mut stream = Stream::new(1, Flow::v4(1, 2));
    let [a, b] = &mut world.blue;
    for _ in 0..100 {
        (0..50).for_each(|_| stream.send(a, 64));
        settle(b, &mut checker, &stream, LIMIT);
    }
    let copies = |moved: &Stats| {
        let lost = moved.get("probe.drops.receiver-full");
        (moved.received("probe"), lost)
    };
    let moved = wait_for("all copies are done with", || {
        let moved = world.lasthop.stats().since(&before);
        let (copied, lost) = copies(&moved);
        (copied + lost >= 5000).then_some(moved)
    });
    let (copied, lost) = copies(&moved);
    assert_eq!(
        (moved.received("vm2"), copied + lost),
        (5000, 5000),
        "{moved:?}"
    );
    assert!(lost > 0 && moved.drops().len() == 1, "{moved:?}");
    turn.step("a probe that reads gets the next ones");
    let had = world.probe.recv_all().expect("a correct device");
    assert_eq!(had.len() as u64, copied);
    world.talk(0, 5);
    world.got(&both(1, 2, 5));
    world.lasthop.stop();
}

#[test]
fn a_mirror_that_cannot_be_is_refused_and_nothing_changes() {
    let _turn = beside();
    let mut world = World::start();
    let good = mirror("m1", "ports = [\"vm1\"]");
    world.apply(&good);
    for (wrong, said) in [
        (
            mirror("m2", "ports = [\"vm9\"]"),
            "mirror.ports: expected the name of a port, found \"vm9\"",
        ),
        (
            mirror("m2", "ports = [\"probe\"]"),
            "found \"probe\", which gets the copies",
        ),
        (
            mirror("m2", "segments = [\"green\"]"),
            "mirror.segments: expected the name of a segment",
        ),
        (
            mirror("m2", "filter = \"tcp prot 80\""),
            "mirror.filter: column 5",
        ),
        (
            mirror("m2", ""),
            "mirror.ports: expected ports, segments or a filter",
        ),
        (
            mirror("m1", "filter = \"arp\""),
            "mirror.name: expected a name that no other mirror has",
        ),
        (
            mirror("m2", "from = \"vm1\""),
            "found the unknown key \"from\"",
        ),
        (
            mirror("m2", "ports = [\"vm2\"]").replace("probe", "vm1"),
            "mirror.ports: expected ports that get no copies, found \"vm1\", which gets the copies \
             of mirror \"m2\"",
        ),
    ] {
        let output = world.try_apply(&(good.clone() + &wrong));
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{wrong}: {error}");
        assert!(error.contains(said), "{wrong}: {error}");
        assert!(error.contains("new.toml:"), "{error}");
    }
    for (port, needs) in [
        ("probe", "mirror `m1` sends its copies there"),
        ("vm1", "mirror `m1` copies its frames"),
    ] {
        let refused = world.lasthop.cli(&["port", "remove", port]);
        let error = String::from_utf8_lossy(&refused.stderr);
        assert!(
            !refused.status.success() && error.contains(needs),
            "{error}"
        );
    }
    world.talk(0, 3);
    world.got(&both(1, 2, 3));
    world.lasthop.stop();
}

impl World {
    /// Exchanges frames of vm1 and vm2 during an action and five times after it; returns all sent
    /// frames, the number before the end of the action, and the probe's frames.
    fn talk_during(
        &mut self,
        act: impl FnOnce(&Lasthop) + Send,
    ) -> (Vec<Vec<u8>>, usize, Vec<Vec<u8>>) {
        let World {
            lasthop,
            blue: [a, b],
            probe,
            ..
        } = self;
        let (mut sent, mut got, mut before) = (Vec::new(), Vec::new(), 0);
        std::thread::scope(|scope| {
            let act = scope.spawn(|| act(lasthop));
            let mut rounds = 0..u16::MAX - 1000;
            let mut left = 5;
            while left > 0 {
                if act.is_finished() {
                    left -= 1
                } else {
                    before = sent.len() + 2
                }
                let n = rounds.next().expect("it does not take that long");
                sent.extend(exchange([&mut *a, &mut *b], [1, 2], n));
                let copies = probe.recv_all().expect("a correct device");
                got.extend(copies.into_iter().map(|copy| copy.frame));
            }
        });
        (sent, before, got)
    }
}

#[test]
fn commands_add_and_remove_mirrors_while_traffic_flows() {
    let turn = beside();
    let mut world = World::start();
    turn.step("add");
    let before = world.lasthop.stats();
    let add = |lasthop: &Lasthop| {
        let said = lasthop.ok(&["mirror", "add", "m1", "--to", "probe", "--ports", "vm1"]);
        assert_eq!(said, "mirror m1 added, copies go to probe\n");
    };
    let (sent, at, mut got) = world.talk_during(add);
    let after = sent.len() - at;
    assert_eq!(after, 10, "five rounds");
    wait_for("the copies are there", || {
        let copies = world.probe.recv_all().expect("a correct device");
        got.extend(copies.into_iter().map(|copy| copy.frame));
        (got.last() == sent.last()).then_some(())
    });
    assert!(
        got.ends_with(&sent[at..]),
        "{} of {}",
        got.len(),
        sent.len()
    );
    assert!(is_part_of(&got, &sent), "in their order, each once");
    let moved = world.lasthop.stats().since(&before);
    assert_eq!(
        (moved.received("probe"), moved.drops().len()),
        (got.len() as u64, 0)
    );
    let list = world.lasthop.json(&["mirror", "list"]);
    let m1 = &list["mirrors"][0];
    assert_eq!((&m1["name"], &m1["state"]), (&"m1".into(), &"up".into()));
    assert_eq!(
        m1["to_guest"]["packets"],
        world.lasthop.stats().received("probe")
    );
    assert_eq!(m1["copied"]["packets"], got.len());
    assert_eq!(m1["lost"], serde_json::json!({}));

    turn.step("bad ones change nothing");
    for [line, said] in &rows(
        r"
        add m1 --to probe --filter arp | name: expected a name that no other mirror has
        add m2 --to vm9 --filter arp | to: expected the name of a port
        add m2 --to probe --ports probe | ports[0]: expected another port
        add m2 --to vm1 --ports vm2 | to: expected a port that no mirror copies by name
        add m1 --replace --to probe --segments green
          | segments[0]: expected the name of a segment
        add m1 --replace --to probe --filter tcp( | filter: column 4
        remove m2 | there is no mirror `m2`
    ",
    ) {
        let words: Vec<&str> = ["mirror"].into_iter().chain(line.split(' ')).collect();
        let output = world.lasthop.cli(&words);
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{line}: {error}");
        assert!(error.contains(said), "{line}: {error}");
    }
    world.talk(0, 5);
    world.talk(1, 5);
    world.got(&both(1, 2, 5));

    turn.step("another in its place, without a moment that has none");
    let replace = |lasthop: &Lasthop| {
        let both = [
            "mirror",
            "add",
            "m1",
            "--replace",
            "--to",
            "probe",
            "--segments",
            "blue",
        ];
        lasthop.ok(&both);
    };
    let (sent, _, mut got) = world.talk_during(replace);
    got.extend(bytes(
        &mut world.probe,
        sent.len().saturating_sub(got.len()),
    ));
    assert_eq!(got, sent);

    turn.step("remove");
    let (sent, at, mut got) = world.talk_during(|lasthop| {
        assert_eq!(
            lasthop.ok(&["mirror", "remove", "m1"]),
            "mirror m1 removed\n"
        );
    });
    let copies = world.probe.recv_all().expect("a correct device");
    got.extend(copies.into_iter().map(|copy| copy.frame));
    // It may be gone before the first frame.
    assert!(is_part_of(&got, &sent[..at]), "{} of {at}", got.len());
    world.talk(0, 5);
    world.got_nothing();
    assert_eq!(world.lasthop.ok(&["mirror", "list"]), "no mirrors\n");
    world.lasthop.stop();
}

/// Returns whether these are some of `all`, in their order.
fn is_part_of(some: &[Vec<u8>], all: &[Vec<u8>]) -> bool {
    let mut all = all.iter();
    some.iter().all(|one| all.any(|other| other == one))
}

/// Returns whether a frame is one of [`frame`]: what else a host's kernel sends by itself is of
/// other kinds.
fn is_ours(frame: &[u8]) -> bool {
    frame.get(12..14) == Some(&[8, 0]) && frame.get(36..38) == Some(&53u16.to_be_bytes())
}

/// A probe behind an interface has got these and nothing else.
fn saw(sniffer: &Sniffer, expected: &[Vec<u8>]) {
    let mut got = sniffer.frames(expected.len(), LIMIT, is_ours);
    got.extend(sniffer.frames(1, Duration::from_millis(100), is_ours));
    assert_eq!(got, expected);
}

#[test]
fn probes_and_mirrored_ports_may_be_interfaces_of_the_host() {
    if !Netns::allowed() {
        return;
    }
    let turn = beside();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let [near, host, far, peer] =
        ["near", "host", "far", "peer"].map(|name| Netns::new(name, folder.path()));
    wire(&host, &far);
    let ports = [
        "[[segment]]\nname = \"near\"\n[[segment]]\nname = \"far\"\n".to_owned(),
        tap("t0", &near.path(), "10.9.0.1/24", "segment = \"near\""),
        uplink(&host.path(), "segment = \"far\"\ndriver = \"packet\""),
        tap(
            "t1",
            &peer.path(),
            "10.0.0.7/24",
            "segment = \"blue\"\nmac = \"02:1a:57:00:00:07\"",
        ),
    ];
    let ports = ports.concat();
    let mut world = World::start_with(&config(&ports), 1);
    for port in ["t0", "t1", "uplink"] {
        world.lasthop.wait_port(port, "up");
    }
    let by_tap = near.sniff();
    let by_uplink = far.sniff();
    turn.step("copies go to a TAP port and to an uplink");
    let to = |probe: &str, name: &str, what: &str| {
        mirror(name, what).replace("to = \"probe\"", &format!("to = \"{probe}\""))
    };
    let both_of = to("t0", "m1", "ports = [\"vm1\"]");
    let sent_by = to("uplink", "m2", "ports = [\"vm1\"]\ndirection = \"in\"");
    world.apply(&(ports.clone() + &both_of + &sent_by));
    let before = world.lasthop.stats();
    world.talk(0, 20);
    world.talk(1, 20);
    saw(&by_tap, &both(1, 2, 20));
    let sent: Vec<_> = (0..20).map(|n| frame(1, 2, n)).collect();
    saw(&by_uplink, &sent);
    world.got_nothing();
    let moved = world.lasthop.stats().since(&before);
    assert!(
        moved.received("t0") >= 40 && moved.received("uplink") >= 20,
        "{moved:?}"
    );

    turn.step("what the host sends by a TAP port is copied");
    world.apply(
        &(ports
            + &mirror(
                "m3",
                "ports = [\"t1\"]\ndirection = \"in\"\nfilter = \"udp port 53\"",
            )),
    );
    peer.ip("neigh add 10.0.0.1 lladdr 02:1a:57:00:00:01 dev t1");
    let socket = peer.udp("10.0.0.7:0");
    for n in 0..10u8 {
        socket.send_to(&[n; 100], "10.0.0.1:53").expect("a way");
        let ours = |guest: &mut FakeGuest| {
            wait_for("it comes", || {
                let all = guest.recv_all().expect("a correct device");
                all.into_iter()
                    .map(|got| got.frame)
                    .find(|got| is_ours(got))
            })
        };
        let got = ours(&mut world.blue[0]);
        assert_eq!(&got[42..], [n; 100]);
        assert_eq!(ours(&mut world.probe)[42..], got[42..]);
    }
    world.lasthop.stop();
}

#[test]
fn every_queue_is_mirrored_and_an_upgrade_changes_nothing() {
    const STREAMS: u16 = 8;
    let turn = beside();
    let mirrors = mirror("m1", "ports = [\"vm1\"]");
    let queues = |config: String| config.replace("[[port]]\n", "[[port]]\nqueues = 2\n");
    let mut world = World::start_with(&queues(config(&mirrors)), 2);
    for round in 0..3 {
        turn.step("frames by both queue pairs of each guest");
        let (mut sent, mut got) = (Vec::new(), Vec::new());
        // The flows that a new switch does not have are there, or a frame of theirs may be behind
        // the next one.
        let [a, b] = &mut world.blue;
        introduce(a, b, Flow::v4(1, 2));
        world.probe.recv_all().expect("a correct device");
        for n in 0..200 {
            let (pair, stream) = (usize::from(n % 2), n % STREAMS);
            let there = frame(1, 2, 100 * round + stream);
            let back = frame(2, 1, 100 * round + stream);
            for (guest, frame) in [(&mut *a, &there), (&mut *b, &back)] {
                let header = NetHeader::default();
                guest.send_on(pair, frame, &header).expect("room");
            }
            assert_eq!(bytes(a, 1), std::slice::from_ref(&back));
            assert_eq!(bytes(b, 1), std::slice::from_ref(&there));
            sent.extend([there, back]);
            // It has no room for all, if most take the same of its queues.
            let copies = world.probe.recv_all().expect("a correct device");
            got.extend(copies.into_iter().map(|copy| copy.frame));
        }
        got.extend(bytes(&mut world.probe, sent.len() - got.len()));
        // Each of the probe's own queues has its own order.
        got.sort();
        sent.sort();
        assert_eq!(got, sent);
        world.got_nothing();
        if round < 2 {
            let switch = world.lasthop.pid("lasthop-switch");
            let said = world.lasthop.ok(&["upgrade"]);
            turn.step(said.trim());
            assert!(said.contains(": 5 connections kept, "), "{said}");
            assert_ne!(world.lasthop.pid("lasthop-switch"), switch);
        }
    }
    let list = world.lasthop.json(&["mirror", "list"]);
    let m1 = &list["mirrors"][0];
    assert!(m1["copied"]["packets"].as_u64() >= Some(3 * 400), "{m1}");
    assert_eq!(m1["copied"], m1["to_guest"], "of all three switches");
    let shown = world
        .lasthop
        .json(&["trace", "--port", "vm1", "icmp 10.0.0.1 > 10.0.0.2"]);
    let mirrors = shown["traces"][0]["mirrors"].as_array().map(Vec::len);
    assert_eq!(mirrors, Some(1), "{shown}");
    world.lasthop.stop();
}
