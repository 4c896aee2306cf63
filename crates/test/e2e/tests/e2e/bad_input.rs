//! Invalid input is refused with a message and its place; nothing else changes.

use std::io::{Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};

use e2e::guest::GuestSpec;
use e2e::lasthop::Lasthop;
use e2e::{beside, machine};
use serde_json::Value;
use testkit::features::{PROTOCOL_FEATURES, VERSION_1};
use testkit::frontend::FrontEnd;
use testkit::table::rows;
use testkit::wait::{LIMIT, wait_for};

/// Request number of SET_MEM_TABLE in the vhost-user specification.
const SET_MEM_TABLE: u32 = 5;

const GOOD: &str = r#"
[switch]
name = "host1"

[[segment]]
name = "blue"
vlan = 10

[[port]]
name = "vm1"
kind = "vhost-user"
socket = "vm1.sock"
segment = "blue"
"#;

/// Each wrong configuration: what is put in place of what, the line that the complaint must name,
/// and words of it.
const WRONG: &str = r#"
    [switch]            | [swich]                          | 2  | swich
    name = "blue"       | name = 7                         | 6  | name characters
    vlan = 10           | vlan = 4095                      | 7  | vlan 4094
    vlan = 10           | vlan = "ten"                     | 7  | vlan
    kind = "vhost-user" | kind = "veth"                    | 11 | kind vhost-user
    socket = "vm1.sock" | sockett = "vm1.sock"             | 12 | sockett socket
    segment = "blue"    | segment = "green"                | 13 | green segment
    segment = "blue"    | segment = "blue"\nqueues = 65    | 14 | queues 64
    segment = "blue"    | segment = "blue"\nmac = "52:54"  | 14 | mac
    segment = "blue"
        | segment = "blue"\n[[port]]\nname = "vm1"\nkind = "vhost-user"\nsocket = "vm2.sock"
        | 15 | vm1 name
"#;

#[test]
fn wrong_configurations_are_refused_by_line() {
    let turn = beside();
    for [right, wrong, line, words] in &rows(WRONG) {
        turn.step(wrong.lines().last().unwrap_or_default());
        let (status, complaint) = Lasthop::refused(&GOOD.replacen(right, wrong, 1));
        assert_eq!(status, 2, "{complaint}");
        assert!(
            complaint.contains("lasthop.toml"),
            "no file in: {complaint}"
        );
        assert!(
            complaint.contains(&format!(":{line}")) || complaint.contains(&format!("line {line}")),
            "line {line}: {complaint}"
        );
        for word in words.split(' ') {
            assert!(complaint.contains(word), "no {word:?} in: {complaint}");
        }
    }
}

#[test]
fn sockets_that_cannot_be_are_refused() {
    let turn = beside();
    turn.step("a path that is too long");
    let long = format!("{}.sock", "x".repeat(120));
    let (status, complaint) = Lasthop::refused(&GOOD.replace("vm1.sock", &long));
    assert_eq!(status, 2, "{complaint}");
    assert!(
        complaint.contains("socket") && complaint.contains("107 bytes"),
        "{complaint}"
    );

    turn.step("a path with a listening socket");
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("taken.sock");
    let _holder = UnixListener::bind(&path).expect("a socket of our own");
    let (status, complaint) =
        Lasthop::refused(&GOOD.replace("vm1.sock", &path.display().to_string()));
    assert_eq!(status, 2, "{complaint}");
    assert!(complaint.contains("taken.sock"), "{complaint}");
    assert!(path.exists(), "a foreign socket was removed");

    turn.step("a configuration file that is not there");
    let output = std::process::Command::new(e2e::paths::binary("lasthop"))
        .args([
            "run",
            "--config",
            "/nonexistent/lasthop.toml",
            "--runtime-dir",
        ])
        .arg(folder.path())
        .output()
        .expect("lasthop runs");
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("/nonexistent/lasthop.toml"));
}

#[test]
fn commands_that_cannot_be_are_refused_and_change_nothing() {
    let turn = beside();
    let lasthop = Lasthop::start(GOOD);
    let before = lasthop.json(&["port", "list"]);
    for [rest, word] in &rows(
        r"
        vm1 --kind vhost-user --socket other.sock               | vm1
        vm2 --kind vhost-user --socket vm1.sock                 | vm1.sock
        vm2 --kind vhost-user --socket vm2.sock --segment green | green
        vm2 --kind vhost-user --socket vm2.sock --queues 65     | 64
    ",
    ) {
        turn.step(rest);
        let words: Vec<&str> = ["port", "add"].into_iter().chain(rest.split(' ')).collect();
        let output = lasthop.cli(&words);
        let complaint = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{complaint}");
        assert!(complaint.contains(word), "no {word:?} in: {complaint}");
    }
    assert!(!lasthop.cli(&["port", "remove", "missing"]).status.success());
    assert_eq!(lasthop.json(&["port", "list"]), before);
    lasthop.stop();
}

/// A vhost-user message: request, flags with version 1, size, payload.
fn message(request: u32, payload: &[u8]) -> Vec<u8> {
    let size = u32::try_from(payload.len()).expect("a short payload");
    [
        &request.to_ne_bytes()[..],
        &1_u32.to_ne_bytes(),
        &size.to_ne_bytes(),
        payload,
    ]
    .concat()
}

/// Waits until the other side hangs up.
fn hung_up(stream: &mut UnixStream) {
    stream
        .set_read_timeout(Some(LIMIT))
        .expect("a non-zero time-out");
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).expect("the switch hangs up");
}

#[test]
fn a_vmm_with_a_bad_message_is_disconnected_and_the_port_listens_again() {
    let turn = beside();
    let lasthop = Lasthop::start(GOOD);
    lasthop.wait_port("vm1", "waiting");
    let bad: [(&str, Vec<u8>); 4] = [
        ("a request that does not exist", message(200, &[])),
        ("a payload of the wrong size", message(2, &[0; 3])),
        (
            "a payload that is too long",
            [
                &2_u32.to_ne_bytes()[..],
                &1_u32.to_ne_bytes(),
                &u32::MAX.to_ne_bytes(),
            ]
            .concat(),
        ),
        (
            "another protocol version",
            [
                &1_u32.to_ne_bytes()[..],
                &3_u32.to_ne_bytes(),
                &0_u32.to_ne_bytes(),
            ]
            .concat(),
        ),
    ];
    for (what, bytes) in bad {
        turn.step(what);
        let mut stream = UnixStream::connect(lasthop.socket("vm1.sock")).expect("the port listens");
        stream.write_all(&bytes).expect("the switch reads");
        hung_up(&mut stream);
        wait_for("the reason", || {
            let port = lasthop.wait_port("vm1", "waiting");
            let reason = port["reason"].as_str()?;
            (!reason.is_empty()).then_some(())
        });
    }
    turn.step("logged once a time");
    let reason = lasthop.port("vm1")["reason"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    let log = lasthop.log();
    assert!(log.contains("vm1"), "nothing in the log about vm1:\n{log}");
    assert!(
        log.matches(&reason).count() <= 2,
        "{reason:?} floods the log:\n{log}"
    );
    lasthop.stop();
}

#[test]
fn guest_memory_that_is_not_shared_gets_a_hint() {
    let turn = machine();
    let lasthop = Lasthop::start(GOOD);
    turn.step("a VMM that has no file for its memory");
    let mut front =
        FrontEnd::connect(&lasthop.socket("vm1.sock"), LIMIT).expect("the port listens");
    front
        .negotiate(VERSION_1 | PROTOCOL_FEATURES, 0)
        .expect("the switch negotiates");
    let table = [1, 0, 0, 16 << 20, 0, 0].map(u64::to_ne_bytes).concat();
    front
        .send_raw(SET_MEM_TABLE, 1, 40, &table[..40], &[])
        .expect("the switch reads");
    assert!(
        front.closes_within(LIMIT),
        "the switch continues without memory"
    );
    lasthop.wait_reason("vm1", "share=on");
    drop(front);
    turn.step("a guest of a QEMU without shared memory");
    let mut bare = GuestSpec::dialing("vm1", lasthop.socket_of("vm1"))
        .memory_without_file()
        .start()
        .ready();
    let port = lasthop.wait_reason(
        "vm1",
        "shares no memory: QEMU needs -object memory-backend-memfd",
    );
    assert_eq!(port["state"], "connected", "{port}");
    let output = lasthop.log();
    assert_eq!(output.matches("shares no memory").count(), 1, "{output}");
    turn.step("another switch says so, too");
    lasthop.kill_switch();
    wait_for("it is said again", || {
        (lasthop.log().matches("shares no memory").count() == 2).then_some(())
    });
    lasthop.wait_reason("vm1", "shares no memory");
    turn.step("it ends as VMMs do, which is no fault");
    bare.quit();
    assert_eq!(lasthop.wait_port("vm1", "waiting")["reason"], Value::Null);
    turn.step("a guest whose QEMU keeps its memory to itself");
    // It speaks of its own accord when its interface comes up with IPv6.
    let private = GuestSpec::dialing("vm1", lasthop.socket_of("vm1"))
        .private_memory()
        .ipv6()
        .start()
        .ready();
    lasthop.wait_port("vm1", "faulted");
    lasthop.wait_reason("vm1", "share=on");
    drop(private);
    turn.step("the port still works for one that shares, and nothing is said of how that ends");
    let mut guest = GuestSpec::dialing("vm1", lasthop.socket_of("vm1"))
        .start()
        .ready();
    assert_eq!(lasthop.wait_port("vm1", "up")["reason"], Value::Null);
    let before = lasthop.log().len();
    guest.quit();
    assert_eq!(lasthop.wait_port("vm1", "waiting")["reason"], Value::Null);
    let output = wait_for("its end is logged", || {
        let output = lasthop.log().split_off(before);
        output.contains("front end disconnected").then_some(output)
    });
    assert!(!output.contains("WARN"), "{output}");
    lasthop.stop();
}
