//! Captures of a port, as an operator makes them: the file has all frames of the port and can be
//! read however the capture ends, and traffic is not disturbed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use e2e::guest::two_guests;
use e2e::lasthop::{Lasthop, guest_ports, same_footprint};
use e2e::numbered::{Stream, introduce, settle};
use e2e::pcapng::{self, Way};
use e2e::traffic::ping;
use e2e::{beside, machine, paths};
use rustix::process::Signal;
use tempfile::TempDir;
use testkit::FakeGuest;
use testkit::packets::{Flow, SequenceChecker, udp};
use testkit::process::Process;
use testkit::wait::{LIMIT, wait_for};

/// Two guests who know each other.
fn guests(lasthop: &Lasthop) -> (FakeGuest, FakeGuest) {
    let (mut a, mut b) = (lasthop.connect("vm1", 1), lasthop.connect("vm2", 2));
    introduce(&mut a, &mut b, Flow::v4(1, 2));
    (a, b)
}

/// A running `lasthop capture`.
struct Capture {
    process: Process,
    file: PathBuf,
    _folder: TempDir,
}

impl Capture {
    /// Starts it, and waits until the switch copies.
    fn start(lasthop: &Lasthop, args: &[&str]) -> Capture {
        Self::start_after("", lasthop, args)
    }

    /// Starts a capture in a shell with a command before it.
    fn start_after(before: &str, lasthop: &Lasthop, args: &[&str]) -> Capture {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let file = folder.path().join("file");
        let runtime = lasthop.folder();
        let script = format!("{before} exec \"$0\" \"$@\"");
        let program = paths::binary("lasthop");
        let mut all = vec![
            "-c",
            &script,
            text(&program),
            "--runtime-dir",
            text(&runtime),
            "capture",
            "-w",
            text(&file),
        ];
        all.extend(args);
        let all: Vec<String> = all.into_iter().map(str::to_owned).collect();
        let log = folder.path().join("log");
        let process = Process::start("capture", "sh", &all, &log);
        wait_for("the file to begin", || {
            fs::metadata(&file)
                .is_ok_and(|file| file.len() > 0)
                .then_some(())
        });
        Capture {
            process,
            file,
            _folder: folder,
        }
    }

    /// Waits for the end; the exit status, what it said, and the file.
    fn end(mut self) -> (i32, String, pcapng::Section) {
        let status = self.process.end(LIMIT).expect("a capture ends");
        let section = pcapng::read(&fs::read(&self.file).expect("a file"));
        (status.code().unwrap_or(-1), self.process.output(), section)
    }

    /// Ends it as Ctrl-C does.
    fn interrupt(self) -> (i32, String, pcapng::Section) {
        self.process.signal(Signal::INT);
        self.end()
    }
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a path of ours")
}

fn frame(a: u8, b: u8, n: u16) -> Vec<u8> {
    udp(&Flow::v4(a, b).ports(1000 + n, 53), &[n as u8; 200])
}

/// Exchanges frames `0..count` both ways, and waits until all have arrived.
fn talk(a: &mut FakeGuest, b: &mut FakeGuest, count: u16) {
    for n in 0..count {
        a.send(&frame(1, 2, n)).expect("room");
        b.send(&frame(2, 1, n)).expect("room");
        for guest in [&mut *a, &mut *b] {
            let got = guest.recv(LIMIT).expect("a correct device");
            assert!(got.is_some(), "frame {n} came");
        }
    }
}

#[test]
fn a_capture_has_everything_both_ways_until_it_is_interrupted() {
    let turn = beside();
    let lasthop = Lasthop::start(&guest_ports("workers = 2", &["vm1", "vm2"]));
    let (mut a, mut b) = guests(&lasthop);
    turn.step("three captures at once");
    let all = Capture::start(&lasthop, &["vm1"]);
    let sent = Capture::start(&lasthop, &["vm2", "--direction", "in", "--snaplen", "60"]);
    let some = Capture::start(
        &lasthop,
        &["vm1", "--filter", "src port 1003 or 1005", "--count", "4"],
    );
    talk(&mut a, &mut b, 20);

    let (status, said, file) = all.interrupt();
    assert_eq!(
        (status, said.trim()),
        (
            0,
            "40 frames captured, 0 of 40 were dropped because the ring was full"
        )
    );
    assert_eq!(file.interface, "vm1");
    let of = |way: Way| {
        let frames = file.packets.iter().filter(|packet| packet.way == way);
        frames
            .map(|packet| packet.bytes.clone())
            .collect::<Vec<_>>()
    };
    assert_eq!(
        of(Way::In),
        (0..20).map(|n| frame(1, 2, n)).collect::<Vec<_>>()
    );
    assert_eq!(
        of(Way::Out),
        (0..20).map(|n| frame(2, 1, n)).collect::<Vec<_>>()
    );
    // Those of one thread; between threads a frame may be some microseconds late.
    let sent_by = file.packets.iter().filter(|packet| packet.way == Way::In);
    assert!(sent_by.is_sorted_by_key(|packet| packet.at_ns), "{file:?}");

    let (status, _, file) = sent.interrupt();
    assert_eq!((status, file.packets.len()), (0, 20));
    for (n, packet) in (0..).zip(&file.packets) {
        let whole = frame(2, 1, n);
        assert_eq!(
            (&packet.bytes[..], packet.len as usize),
            (&whole[..60], whole.len())
        );
    }

    turn.step("one ends by itself");
    let (status, said, file) = some.end();
    assert_eq!((status, file.packets.len()), (0, 4), "{said}");
    assert_eq!(file.filter, "src port 1003 or 1005");
    lasthop.stop();
}

#[test]
fn pings_of_real_guests_are_complete_and_a_pipe_gets_them_too() {
    let turn = machine();
    let lasthop = Lasthop::start(&guest_ports("workers = 2", &["vm1", "vm2"]));
    turn.step("boot two guests");
    let (mut vm1, _vm2) = two_guests(&lasthop);
    let capture = Capture::start(&lasthop, &["vm1", "--filter", "icmp and net 10.0.0.0/24"]);
    let mut piped = Command::new(paths::binary("lasthop"))
        .arg("--runtime-dir")
        .arg(lasthop.folder())
        .args([
            "capture", "vm2", "-w", "-", "--filter", "icmp", "--count", "40",
        ])
        .stdout(Stdio::piped())
        .spawn()
        .expect("the command line runs");
    turn.step("ping");
    wait_for("the second capture", || {
        lasthop.log().matches(" has begun").nth(1).map(drop)
    });
    assert_eq!(ping(&mut vm1, "10.0.0.2", 20).lost(), 0);

    let (status, said, file) = capture.interrupt();
    assert_eq!(status, 0, "{said}");
    // Type 8 is an echo request, 0 its reply; behind Ethernet and IPv4.
    let of = |way: Way, kind: u8| {
        let all = file.packets.iter();
        all.filter(|p| p.way == way && p.bytes[34] == kind && p.dropped.is_none())
            .count()
    };
    // One request more, if a reply came late.
    let (asked, answered) = (of(Way::In, 8), of(Way::Out, 0));
    assert!(asked >= 20, "{asked} requests");
    assert_eq!((answered, file.packets.len()), (asked, 2 * asked));

    let mut out = Vec::new();
    let mut pipe = piped.stdout.take().expect("a pipe");
    std::io::Read::read_to_end(&mut pipe, &mut out).expect("a whole file");
    assert!(piped.wait().expect("it ends").success());
    assert_eq!(pcapng::read(&out).packets.len(), 40);
    lasthop.stop();
}

#[test]
fn what_is_dropped_is_seen_and_a_tiny_ring_costs_the_guests_nothing() {
    let turn = beside();
    let lasthop = Lasthop::start(&guest_ports("workers = 2", &["vm1", "vm2"]));
    let (mut a, mut b) = guests(&lasthop);
    turn.step("a frame that the policy drops");
    let drops = Capture::start(&lasthop, &["vm1", "--drops"]);
    let mut bad = frame(1, 2, 0);
    bad[6] |= 1;
    a.send(&bad).expect("room");
    talk(&mut a, &mut b, 3);
    let (status, said, file) = drops.interrupt();
    assert_eq!((status, file.packets.len()), (0, 1), "{said}");
    assert_eq!(file.packets[0].dropped.as_deref(), Some("bad-source"));
    assert_eq!(file.packets[0].bytes, bad);

    turn.step("more than a tiny ring takes");
    let before = lasthop.stats();
    let tiny = Capture::start(&lasthop, &["vm1", "--buffer", "4096"]);
    let (mut stream, mut checker) = (Stream::new(7, Flow::v4(1, 2)), SequenceChecker::default());
    for _ in 0..50 {
        (0..40).for_each(|_| stream.send(&mut a, 1000));
        settle(&mut b, &mut checker, &stream, LIMIT);
    }
    let (status, said, file) = tiny.interrupt();
    let counts = file.statistics.expect("a whole file");
    assert_eq!((status, counts.meant), (0, 2000), "{said}");
    assert_eq!(counts.meant - counts.lost, file.packets.len() as u64);
    assert!(counts.lost > 0, "{said}");
    let moved = lasthop.stats().since(&before);
    assert!(moved.drops().is_empty(), "dropped: {:?}", moved.drops());
    lasthop.stop();
}

#[test]
fn a_file_without_room_ends_behind_a_whole_block() {
    let _turn = beside();
    let lasthop = Lasthop::start(&guest_ports("workers = 2", &["vm1", "vm2"]));
    let (mut a, mut b) = guests(&lasthop);
    // A file that may have eight blocks of 512 bytes, which is said as a full disk says it.
    let small = Capture::start_after("trap '' XFSZ; ulimit -f 8;", &lasthop, &["vm1"]);
    talk(&mut a, &mut b, 20);
    let (status, said, file) = small.end();
    assert_eq!(status, 1, "{said}");
    assert!(said.contains("cannot write "), "{said}");
    assert!((1..40).contains(&file.packets.len()), "{said}");
    assert!(file.statistics.is_none(), "{said}");
    lasthop.stop();
}

#[test]
fn a_capture_ends_with_its_client_its_port_control_and_the_switch() {
    let turn = beside();
    let lasthop = Lasthop::start(&guest_ports("workers = 2", &["vm1", "vm2"]));
    let (mut a, mut b) = guests(&lasthop);
    // What is mapped and started at the first time stays.
    Capture::start(&lasthop, &["vm1"]).interrupt();
    let before = lasthop.footprint();

    turn.step("kill -9 of the client, again and again");
    for _ in 0..12 {
        let capture = Capture::start(&lasthop, &["vm1"]);
        capture.process.signal(Signal::KILL);
        talk(&mut a, &mut b, 2);
    }
    wait_for("all to end", || {
        let ended = lasthop.log().matches(" has ended").count();
        (ended >= 13).then_some(())
    });
    same_footprint("after killed clients", &before, &lasthop);

    turn.step("its port goes");
    lasthop.ok(&[
        "port",
        "add",
        "late",
        "--kind",
        "vhost-user",
        "--socket",
        "late.sock",
    ]);
    let capture = Capture::start(&lasthop, &["late"]);
    lasthop.ok(&["port", "remove", "late"]);
    let (status, said, file) = capture.end();
    assert_eq!((status, file.statistics.is_some()), (0, true), "{said}");

    for (name, kill) in [
        ("lasthop-control", Lasthop::kill_control as fn(&Lasthop)),
        ("lasthop-switch", Lasthop::kill_switch),
    ] {
        turn.step(&format!("kill -9 of {name}"));
        let capture = Capture::start(&lasthop, &["vm1"]);
        talk(&mut a, &mut b, 5);
        wait_for("frames to come", || {
            let file = fs::read(&capture.file).expect("a file");
            (pcapng::read(&file).packets.len() == 10).then_some(())
        });
        let control = lasthop.pid("lasthop-control").expect("control runs");
        kill(&lasthop);
        let (status, said, file) = capture.end();
        assert_eq!((status, file.packets.len()), (1, 10), "{said}");
        assert!(
            said.contains("the capture broke off after 10 frames"),
            "{said}"
        );
        lasthop.wait_control(control);
        lasthop.wait_port("vm1", "up");
        let again = Capture::start(&lasthop, &["vm1"]);
        talk(&mut a, &mut b, 2);
        let (status, said, file) = again.interrupt();
        assert_eq!((status, file.packets.len()), (0, 4), "{said}");
    }
    lasthop.stop();
}

#[test]
fn what_cannot_be_is_said_and_nothing_is_left() {
    let turn = beside();
    let lasthop = Lasthop::start(&guest_ports("workers = 2", &["vm1", "vm2"]));
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("file");
    let refused = |args: &[&str]| {
        let output = lasthop.cli(&[&["capture"], args].concat());
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code().unwrap_or(-1), said)
    };
    let name = text(&file);
    for (args, status, text) in [
        (
            ["vm1", "-w", name, "--filter", "tcp prt 80"],
            2,
            "column 5: expected `and`, `or` or the end, found `prt`",
        ),
        (
            ["vm9", "-w", name, "--filter", ""],
            2,
            "there is no port `vm9`",
        ),
        (["vm1", "-w", name, "--buffer", "5000"], 2, "a power of two"),
        (
            ["vm1", "-w", "/nowhere/file", "--count", "1"],
            2,
            "cannot write /nowhere/file",
        ),
        (["vm1", "-w", name, "--snaplen", "0"], 2, "--snaplen"),
    ] {
        let (code, said) = refused(&args);
        assert_eq!(code, status, "{args:?}: {said}");
        assert!(said.contains(text), "{args:?}: {said}");
        assert!(!file.exists(), "{args:?} left a file");
    }
    fs::write(&file, "precious").expect("a file");
    let (code, said) = refused(&["vm1", "-w", name]);
    assert_eq!(code, 2, "{said}");
    assert!(said.contains("exists already"), "{said}");
    assert_eq!(fs::read(&file).expect("it is there"), b"precious");

    turn.step("one too many");
    let open: Vec<_> = (0..8).map(|_| Capture::start(&lasthop, &["vm1"])).collect();
    fs::remove_file(&file).expect("it is ours");
    let (code, said) = refused(&["vm1", "-w", name]);
    assert_eq!(code, 1, "{said}");
    assert!(said.contains("8 captures are open already"), "{said}");
    // The others, and all else that the API has, are served.
    lasthop.ok(&["status"]);
    for capture in open {
        let (status, said, _) = capture.interrupt();
        assert_eq!(status, 0, "{said}");
    }
    lasthop.stop();
}
