//! Traces: the predicted action of a frame is the real one, and a trace changes nothing.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use e2e::beside;
use e2e::lasthop::Lasthop;
use e2e::numbered::{Stream, introduce, settle, trickle};
use rustix::process::Signal;
use serde_json::Value;
use testkit::FakeGuest;
use testkit::packets::{Flow, SequenceChecker, ethernet, mac, udp};
use testkit::process::Process;
use testkit::procfs;
use testkit::stop::Stop;
use testkit::wait::{LIMIT, wait_for};

const CONFIG: &str = r#"
[switch]
name = "host1"
[[segment]]
name = "lan"
vlan = 10
[[segment]]
name = "dmz"
vlan = 20
[[port]]
name = "vm1"
kind = "vhost-user"
socket = "vm1.sock"
segment = "lan"
[[port]]
name = "vm2"
kind = "vhost-user"
socket = "vm2.sock"
segment = "lan"
[[port]]
name = "vm3"
kind = "vhost-user"
socket = "vm3.sock"
segment = "dmz"
[[port]]
name = "trunk"
kind = "vhost-user"
socket = "trunk.sock"
trunk = ["lan", "dmz"]
"#;

fn trace(lasthop: &Lasthop, port: &str, frame: &str) -> Value {
    let document = lasthop.json(&["trace", "--port", port, frame]);
    document["traces"][0].clone()
}

/// Frames of a trace's flow in all workers.
fn packets(trace: &Value) -> u64 {
    let flows = trace["flows"].as_array().expect("a list of flows");
    let packets = |output: &Value| output["flow"]["packets"].as_u64().expect("a number");
    flows.iter().map(packets).sum()
}

fn receivers(trace: &Value) -> Vec<String> {
    let list = trace["outcome"]["receivers"].as_array().expect("receivers");
    let name = |receiver: &Value| receiver["port"].as_str().expect("a name").to_owned();
    list.iter().map(name).collect()
}

/// Returns exit status and standard error of a refused command.
fn refused(lasthop: &Lasthop, args: &[&str]) -> (Option<i32>, String) {
    let output = lasthop.cli(&[&["trace"], args].concat());
    let error = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    (output.status.code(), error)
}

/// Two guests that know each other, with flows both ways.
fn two_guests(lasthop: &Lasthop) -> (FakeGuest, FakeGuest) {
    let (mut a, mut b) = (lasthop.connect("vm1", 1), lasthop.connect("vm2", 2));
    introduce(&mut a, &mut b, Flow::v4(1, 2));
    // What was decided before both were known is forgotten.
    introduce(&mut a, &mut b, Flow::v4(1, 2));
    (a, b)
}

/// A classic pcap file.
fn pcap(frames: &[Vec<u8>]) -> Vec<u8> {
    let mut file = Vec::new();
    for word in [0xa1b2_c3d4u32, 0x0004_0002, 0, 0, 65_535, 1] {
        file.extend(word.to_le_bytes());
    }
    for frame in frames {
        for word in [0, 0, frame.len() as u32, frame.len() as u32] {
            file.extend(word.to_le_bytes());
        }
        file.extend(frame);
    }
    file
}

#[test]
fn predictions_are_right() {
    let turn = beside();
    let lasthop = Lasthop::start(CONFIG);
    let (mut a, mut b) = two_guests(&lasthop);
    let frame = "udp 10.0.0.1:1001 > 10.0.0.2:2002";

    turn.step("a frame to a known station, with the flow that it has");
    let before = lasthop.stats();
    let fdb = lasthop.ok(&["fdb", "list"]).lines().count();
    let first = trace(&lasthop, "vm1", frame);
    assert_eq!(receivers(&first), ["vm2"], "{first}");
    let addresses = "ether 02:1a:57:00:00:01 > 02:1a:57:00:00:02";
    let output = first["frame"].as_str().expect("words");
    assert_eq!(output, format!("{addresses} {frame}, 42 bytes"));
    assert_ne!(first["flows"][0], Value::Null, "{first}");
    for _ in 0..20 {
        let again = trace(&lasthop, "vm1", frame);
        assert_eq!(packets(&again), packets(&first), "asking is no use of it");
    }
    for _ in 0..50 {
        a.send(&udp(&Flow::v4(1, 2), b"more")).expect("room");
    }
    let got = b.recv_count(50, LIMIT).expect("50 frames");
    assert_eq!(got.len(), 50, "and nothing that was only asked about");
    let more = trace(&lasthop, "vm1", frame);
    assert_eq!(packets(&more), packets(&first) + 50);
    assert_eq!(more["flows"][0]["disagrees"], Value::Null);
    let text = lasthop.ok(&["trace", "--port", "vm1", frame]);
    turn.step(&format!("as an operator reads it:\n{text}"));
    assert!(text.contains("\nresult   to vm2\n"), "{text}");
    assert!(text.contains("\nflow     cached by worker "), "{text}");

    turn.step("drop, flood, the sender itself, no segment, and a tag");
    let unknown = "ether 02:1a:57:00:00:01 > 02:1a:57:00:00:09 type 0x88b5";
    let output = trace(&lasthop, "vm1", unknown);
    assert_eq!(output["outcome"]["action"], "flood");
    assert_eq!(receivers(&output), ["vm2", "trunk"]);
    let states = [
        &output["outcome"]["receivers"][0]["state"],
        &output["outcome"]["receivers"][1]["state"],
    ];
    assert_eq!(states, ["up", "waiting"]);
    assert_eq!(output["outcome"]["receivers"][1]["vlan"], 10);
    assert_eq!(
        output["flows"].as_array().map(Vec::len),
        Some(0),
        "{output}"
    );
    let itself = trace(&lasthop, "vm2", "icmp 10.0.0.2 > 10.0.0.2");
    assert_eq!(itself["outcome"]["reason"], "reflection", "{itself}");
    let foreign = trace(&lasthop, "vm1", &format!("vlan 20 {frame}"));
    assert_eq!(foreign["outcome"]["reason"], "vlan-not-allowed");
    let tagged = "ether 02:1a:57:00:00:07 > 02:1a:57:00:00:02 vlan 10 icmp 10.0.0.7 > 10.0.0.2";
    assert_eq!(receivers(&trace(&lasthop, "trunk", tagged)), ["vm2"]);
    let other = tagged.replace("vlan 10", "vlan 20");
    let other = trace(&lasthop, "trunk", &other);
    assert_eq!(receivers(&other), ["vm3"], "stations are of one segment");

    turn.step("the prediction becomes true");
    let reflected = || lasthop.stats().drops().get("reflection").copied();
    let was = reflected();
    b.send(&udp(&Flow::v4(2, 2), b"me")).expect("room");
    let counted = || (reflected() != was).then_some(());
    wait_for("the drop is counted", counted);
    a.send(&ethernet(mac(9), mac(1), 0x88b5, b"who?"))
        .expect("room");
    let flooded = b.recv(LIMIT).expect("the device keeps the rules");
    assert!(flooded.is_some(), "vm2 is one of those who get it");
    let output = trace(&lasthop, "vm1", unknown);
    assert_eq!(
        output["flows"][0]["flow"]["action"], "flooded in lan",
        "{output}"
    );
    assert_eq!(
        lasthop.ok(&["fdb", "list"]).lines().count(),
        fdb,
        "nothing was learned"
    );
    assert_eq!(
        lasthop.stats().since(&before).sent("vm2"),
        1,
        "nothing else was sent"
    );

    turn.step("frames of a file");
    let mut frames = vec![udp(&Flow::v4(1, 2), b"x"), vec![1, 2, 3]];
    frames.resize(20, udp(&Flow::v4(1, 1), b"x"));
    let file = lasthop.folder().join("frames.pcap");
    std::fs::write(&file, pcap(&frames)).expect("a file");
    let file = file.to_str().expect("a plain path");
    let text = lasthop.ok(&["trace", "--port", "vm1", "--pcap", file]);
    let results: Vec<&str> = text.lines().filter(|l| l.starts_with("result")).collect();
    assert_eq!(results.len(), 20, "{text}");
    assert_eq!(results[0], "result   to vm2");
    assert!(
        results[1].contains("runt") && results[19].contains("reflection"),
        "{text}"
    );
    assert!(text.contains("\nframe    20: ether 02:1a:57:00:00:01 > 02:1a:57:00:00:01 udp "));

    turn.step("garbage");
    let wrong = ["--port", "vm1", "icmp 10.0.0.1 > banana"];
    let says = "lasthop: expression: column 17: expected an IPv4 address, found `banana`";
    assert_eq!(refused(&lasthop, &wrong), (Some(2), says.to_owned()));
    let says = "lasthop: port: there is no port `vm9`";
    assert_eq!(
        refused(&lasthop, &["--port", "vm9", frame]),
        (Some(2), says.to_owned())
    );
    let (code, text) = refused(&lasthop, &["--port", "vm3", "icmp 10.0.0.1 > 10.0.0.2"]);
    assert_eq!(code, Some(2));
    assert!(text.contains("no MAC address is learned on vm3"), "{text}");
    let (code, text) = refused(&lasthop, &["--port", "vm1", "--pcap", "/dev/null"]);
    assert_eq!(
        (code, text.as_str()),
        (Some(2), "lasthop: /dev/null: neither pcap nor pcapng")
    );
    let deep = "(".repeat(5000);
    assert_eq!(refused(&lasthop, &["--port", "vm1", &deep]).0, Some(2));
    drop((a, b));
    lasthop.stop();
}

#[test]
fn the_busiest_flows_come_first() {
    let turn = beside();
    let lasthop = Lasthop::start(CONFIG);
    let (mut a, mut b) = two_guests(&lasthop);
    // From here on counts are recent ones.
    lasthop.json(&["flows"]);
    for _ in 0..90 {
        b.send(&udp(&Flow::v4(2, 1), b"more")).expect("room");
    }
    assert_eq!(a.recv_count(90, LIMIT).expect("90 frames").len(), 90);
    let flows = lasthop.json(&["flows", "--limit", "1"]);
    let flows = flows["flows"].as_array().expect("flows");
    assert_eq!(flows.len(), 1);
    let flow = &flows[0];
    assert_eq!(
        (&flow["from"], &flow["to"]),
        (&"vm2".into(), &"vm1".into()),
        "{flow}"
    );
    assert!(flow["packets"].as_u64() >= Some(90), "{flow}");
    assert!(flow["packets_per_1000_s"].as_u64() > Some(0), "{flow}");
    assert_eq!(
        flow["match"],
        "from vm2, untagged, 02:1a:57:00:00:02 > 02:1a:57:00:00:01"
    );
    let text = lasthop.ok(&["flows", "--port", "vm1"]);
    turn.step(&format!("as an operator reads it:\n{text}"));
    assert_eq!(lasthop.ok(&["flows", "--port", "vm3"]), "no cached flows\n");
    drop((a, b));
    lasthop.stop();
}

/// Requests traces without a break until the end; returns the number of replies.
fn flood(lasthop: &Lasthop, end: &Stop, answers: &AtomicU64) {
    let body = r#"{"port": "vm1", "expression": "icmp 10.0.0.1 > 10.0.0.2"}"#;
    let length = body.len();
    let trace =
        format!("POST /v1/trace HTTP/1.1\r\nhost: x\r\ncontent-length: {length}\r\n\r\n{body}");
    let ask = "GET /v1/flows?limit=1000 HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    while !end.is_set() {
        let Ok(mut stream) = UnixStream::connect(lasthop.socket("api.sock")) else {
            continue;
        };
        let _ = stream.set_read_timeout(Some(Duration::from_secs(20)));
        let _ = stream.write_all((trace.repeat(20) + ask).as_bytes());
        let mut all = Vec::new();
        let _ = stream.read_to_end(&mut all);
        let all = String::from_utf8_lossy(&all);
        answers.fetch_add(all.matches("HTTP/1.1 200").count() as u64, Relaxed);
    }
}

#[test]
fn guests_do_not_notice_those_who_ask() {
    let turn = beside();
    // One of them has many addresses.
    let socket = "socket = \"vm1.sock\"";
    let any = format!("{socket}\nport_security = {{ macs = \"any\" }}");
    let lasthop = Lasthop::start(&CONFIG.replace(socket, &any));
    let (mut a, mut b) = two_guests(&lasthop);
    let (mut checker, mut steady) = (SequenceChecker::default(), Stream::new(0, Flow::v4(1, 2)));
    let (control, before) = (lasthop.pid("lasthop-control"), lasthop.stats());
    let (end, answers) = (Stop::new(), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            let (lasthop, end, answers) = (&lasthop, &end, &answers);
            scope.spawn(move || flood(lasthop, end, answers));
        }
        let _end = end.at_end();
        let began = Instant::now();
        for round in 0u32.. {
            let enough = answers.load(Relaxed) > 100 || began.elapsed() > LIMIT;
            if round >= 10_000 && enough {
                break;
            }
            trickle(&mut steady, (&mut a, &mut b), &mut checker, 100);
            if round.is_multiple_of(100) {
                // A new station each time: its first frame is decided by who also answers
                // questions.
                let stranger = [2, 9, 0, 0, (round / 100) as u8, 1];
                a.send(&ethernet(mac(2), stranger, 0x88b5, b"new"))
                    .expect("room");
            }
            std::thread::sleep(Duration::from_micros(200));
        }
    });
    settle(&mut b, &mut checker, &steady, LIMIT);
    turn.step(&format!("{} answers meanwhile", answers.load(Relaxed)));
    assert_eq!(lasthop.stats().drops(), before.drops());
    assert!(answers.load(Relaxed) > 100);
    assert_eq!(
        lasthop.pid("lasthop-control"),
        control,
        "control was restarted"
    );
    drop((a, b));
    lasthop.stop();
}

/// vm2 takes nothing but UDP to one port, and no broadcasts.
const LISTS: &str = r#"
[[acl]]
name = "vm2-in"
direction = "to-guest"
ports = ["vm2"]
[[acl.rule]]
name = "service"
priority = 10
action = "allow"
protocol = "udp"
destination_ports = [2002]
[[acl.rule]]
name = "rest"
action = "drop"
ether_type = "ipv4"
"#;

#[test]
fn a_trace_names_the_deciding_rule_and_its_list() {
    let turn = beside();
    let lasthop = Lasthop::start(&format!("{CONFIG}{LISTS}"));
    let (mut a, _b) = two_guests(&lasthop);
    let allowed = trace(&lasthop, "vm1", "udp 10.0.0.1:1001 > 10.0.0.2:2002");
    assert_eq!(receivers(&allowed), ["vm2"], "{allowed}");
    let ruling = |trace: &Value| {
        let steps = trace["steps"].as_array().expect("steps");
        let asked = steps.iter().map(|step| &step["ruling"]);
        let mut receiver = asked.filter(|ruling| ruling["direction"] == "to-guest");
        receiver.next_back().expect("the receiver is asked").clone()
    };
    assert_eq!(ruling(&allowed)["rule"], "service");
    assert_ne!(allowed["flows"][0], Value::Null, "{allowed}");
    assert_eq!(allowed["flows"][0]["disagrees"], Value::Null, "{allowed}");

    turn.step("a frame that is denied, and its flow");
    let frame = "udp 10.0.0.1:1001 > 10.0.0.2:99";
    let denied = trace(&lasthop, "vm1", frame);
    assert_eq!(denied["outcome"]["reason"], "acl-denied", "{denied}");
    assert_eq!(ruling(&denied)["list"], "vm2-in");
    assert_eq!(ruling(&denied)["rule"], "rest");
    assert_eq!(ruling(&denied)["verdict"], "drop");
    let was = lasthop.stats().drops().get("acl-denied").copied();
    a.send(&udp(&Flow::v4(1, 2).ports(1001, 99), b"no"))
        .expect("room");
    let counted = || (lasthop.stats().drops().get("acl-denied").copied() != was).then_some(());
    wait_for("the drop is counted", counted);
    let text = lasthop.ok(&["trace", "--port", "vm1", frame]);
    turn.step(&format!("as an operator reads it:\n{text}"));
    let output = "policy   to vm2: dropped by rule rest of list vm2-in (lists: vm2-in)";
    assert!(text.lines().any(|line| line == output), "{text}");
    assert!(text.contains(": dropped: acl-denied\n"), "the flow: {text}");
    assert!(!text.contains("NOT"), "{text}");

    turn.step("a flood with an excluded port");
    let flood = "ether 02:1a:57:00:00:01 > ff:ff:ff:ff:ff:ff udp 10.0.0.1:1 > 10.0.0.255:9";
    assert_eq!(receivers(&trace(&lasthop, "vm1", flood)), ["trunk"]);
    drop((a, _b));
    lasthop.stop();
}

/// vm3 gets copies, and vm2 is limited.
const BESIDE: &str = r#"
[[mirror]]
name = "m1"
to = "vm3"
ports = ["vm1", "vm2"]
[[mirror]]
name = "m2"
to = "vm3"
segments = ["lan"]
filter = "dst port 2002"
"#;

#[test]
fn a_trace_names_limits_and_mirrors() {
    let turn = beside();
    let limits = "socket = \"vm2.sock\"\nlimits = { to_guest = { packets_per_second = 100000 } }";
    let config = CONFIG.replace("socket = \"vm2.sock\"", limits);
    let lasthop = Lasthop::start(&format!("{config}{BESIDE}"));
    let mut probe = lasthop.connect("vm3", 3);
    let (mut a, mut b) = two_guests(&lasthop);
    for (port, copies) in [(2002, 3), (99, 2)] {
        let output = trace(
            &lasthop,
            "vm1",
            &format!("udp 10.0.0.1:1001 > 10.0.0.2:{port}"),
        );
        let mirrors = output["mirrors"].as_array().expect("mirrors");
        assert_eq!(mirrors.len(), copies, "{output}");
        assert_eq!(output["limits"][0]["limit"], "to_guest", "{output}");
        turn.step("so many copies come");
        probe.recv_all().expect("the device keeps the rules");
        let frame = udp(&Flow::v4(1, 2).ports(1001, port), b"x");
        a.send(&frame).expect("room");
        assert!(b.recv(LIMIT).expect("the device keeps the rules").is_some());
        let got = probe.recv_count(copies, LIMIT);
        let got = got.expect("the device keeps the rules");
        assert!(got.iter().all(|got| got.frame == frame) && got.len() == copies);
        assert_eq!(
            probe.recv_all().expect("the device keeps the rules").len(),
            0
        );
    }
    let text = lasthop.ok(&[
        "trace",
        "--port",
        "vm1",
        "udp 10.0.0.1:1001 > 10.0.0.2:2002",
    ]);
    turn.step(&format!("as an operator reads it:\n{text}"));
    for line in [
        "limit    vm2 may be sent 100000 packets/s: more is dropped, rate-limited",
        "mirror   m1 copies it to vm3, as vm1 sends it",
        "mirror   m1 copies it to vm3, as it is delivered to vm2",
        "mirror   m2 copies it to vm3, as vm1 sends it",
    ] {
        assert!(text.lines().any(|output| output == line), "{line}: {text}");
    }
    drop((a, b, probe));
    lasthop.stop();
}

/// Starts a process beside the test, whose output goes to a file, so that it never blocks.
fn start(lasthop: &Lasthop, program: impl AsRef<Path>, args: &[String]) -> Process {
    let log = lasthop.folder().join("next.log");
    Process::start("trace", program, args, &log)
}

/// Starts `lasthop trace` of the next frames of vm1.
fn next(lasthop: &Lasthop, args: &[&str]) -> Process {
    let runtime = lasthop.folder().display().to_string();
    let args = [&["--runtime-dir", &runtime, "trace", "--port", "vm1"], args].concat();
    let args: Vec<String> = args.into_iter().map(str::to_owned).collect();
    start(lasthop, e2e::paths::binary("lasthop"), &args)
}

/// Sends frames of a guest again and again until a process has ended; returns its output. When the
/// switch begins to copy is unknown.
fn send_until_end(guest: &mut FakeGuest, frames: &[&[u8]], mut process: Process) -> String {
    let ended = wait_for("the end", || {
        for frame in frames {
            guest.send(frame).expect("room");
        }
        process.ended()
    });
    let said = process.output();
    assert!(ended.success(), "{ended}: {said}");
    said
}

fn results(text: &str) -> Vec<&str> {
    let lines = text.lines();
    lines.filter(|line| line.starts_with("result")).collect()
}

#[test]
fn a_trace_shows_the_next_frames_of_a_port() {
    let turn = beside();
    let lasthop = Lasthop::start(CONFIG);
    let (mut a, b) = two_guests(&lasthop);
    let to_b = udp(&Flow::v4(1, 2), b"x");
    let back = udp(&Flow::v4(1, 1), b"x");
    turn.step("any three");
    let text = send_until_end(&mut a, &[&to_b], next(&lasthop, &["--next", "3"]));
    assert_eq!(results(&text), ["result   to vm2"; 3], "{text}");
    let third = "\nframe    3: ether 02:1a:57:00:00:01 > 02:1a:57:00:00:02 udp ";
    assert!(text.contains(third), "{text}");
    assert!(!text.contains(" NOT "), "{text}");

    turn.step("two of many");
    let filter = ["--next", "2", "--filter", "ether dst 02:1a:57:00:00:01"];
    let text = send_until_end(&mut a, &[&to_b, &back], next(&lasthop, &filter));
    assert_eq!(results(&text).len(), 2, "{text}");
    for result in results(&text) {
        assert!(result.contains("reflection"), "{text}");
    }

    turn.step("those that came until it was interrupted");
    let process = next(&lasthop, &["--next", "1000"]);
    listens_to_interrupts(&process);
    let before = lasthop.stats();
    for _ in 0..20 {
        a.send(&to_b).expect("room");
    }
    let all = || (lasthop.stats().since(&before).sent("vm1") == 20).then_some(());
    wait_for("all are counted", all);
    process.signal(Signal::INT);
    let text = send_until_end(&mut a, &[], process);
    assert_eq!(results(&text).len(), 20, "{text}");

    turn.step("through a pipe");
    let command = r#""$1" --runtime-dir "$2" capture vm1 --direction in --count 3 -w - | "$1" --runtime-dir "$2" trace --port vm1 --pcap -"#;
    let binary = e2e::paths::binary("lasthop").display().to_string();
    let runtime = lasthop.folder().display().to_string();
    let args = ["-c", command, "sh", &binary, &runtime].map(str::to_owned);
    let text = send_until_end(&mut a, &[&to_b], start(&lasthop, "sh", &args));
    assert_eq!(results(&text), ["result   to vm2"; 3], "{text}");

    turn.step("a switch that dies meanwhile");
    let mut process = next(&lasthop, &["--next", "1000"]);
    listens_to_interrupts(&process);
    lasthop.kill_switch();
    let ended = process.end(LIMIT).expect("it ends");
    let said = process.output();
    assert_eq!(ended.code(), Some(1), "{said}");
    let broken = "no frames captured\nlasthop: the capture broke off after 0 frames\n";
    assert_eq!(said, broken);

    turn.step("what is wrong");
    let (code, text) = refused(&lasthop, &["--port", "vm9", "--next", "1"]);
    assert_eq!(code, Some(2), "{text}");
    assert!(text.contains("no port `vm9`"), "{text}");
    for wrong in [
        &["--next", "1", "--filter", "banana"][..],
        &["--next", "0"],
        &["--next", "1025"],
        &["--next", "1", "--pcap", "-"],
        &["--filter", "icmp", "icmp 10.0.0.1 > 10.0.0.2"],
    ] {
        let args = [&["--port", "vm1"], wrong].concat();
        assert_eq!(refused(&lasthop, &args).0, Some(2), "{wrong:?}");
    }
    drop((a, b));
    lasthop.stop();
}

/// Waits until a process has frames, and would not die of Ctrl-C.
fn listens_to_interrupts(process: &Process) {
    wait_for("it to listen", || {
        let caught = procfs::status(process.pid(), "SigCgt").expect("it runs");
        let caught = u64::from_str_radix(&caught, 16).expect("a mask");
        (caught & 1 << (Signal::INT.as_raw() - 1) != 0).then_some(())
    });
}
