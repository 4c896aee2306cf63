//! `lasthop events`: changes are reported with their requester, also across the death of control.

use std::fs::Permissions;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};

use rustix::process::{Signal, Uid, geteuid};
use rustix::thread::set_thread_uid;
use serde_json::{Value, json};
use testkit::lasthop::{Place, Running, port};
use testkit::process::send;
use testkit::wait::{LIMIT, wait_until};

/// Another user than that of the tests.
const NOBODY: u32 = 65534;

fn config() -> String {
    format!("[switch]\nname = \"host1\"\n{}", port("vm1", ""))
}

/// Running `lasthop events`.
struct Watcher {
    child: Child,
    lines: Receiver<String>,
}

impl Watcher {
    fn new(place: &Place, args: &str) -> Self {
        let mut child = Command::new(testkit::programs::program("lasthop"))
            .env_remove("LASTHOP_RUNTIME_DIR")
            .arg("--runtime-dir")
            .arg(place.run_dir())
            .arg("events")
            .args(args.split_whitespace())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (sender, lines) = channel();
        let out = BufReader::new(child.stdout.take().unwrap());
        std::thread::spawn(move || {
            for line in out.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Self { child, lines }
    }

    /// Returns a watcher with `--json` that is connected before the next event.
    fn of_documents(lasthop: &Running, place: &Place, args: &str) -> Self {
        let watcher = Self::new(place, &format!("--json --last 4096 {args}"));
        // After this event it has received all earlier ones.
        lasthop.prints("fdb flush");
        watcher.until(|event| event["kind"] == "fdb_flushed");
        watcher
    }

    /// Reads until there is such an event, and returns it.
    fn until(&self, mut desired: impl FnMut(&Value) -> bool) -> Value {
        let mut seen = Vec::new();
        loop {
            let line = self.lines.recv_timeout(LIMIT);
            let Ok(line) = line else {
                panic!("timeout after {seen:#?}");
            };
            let event: Value = serde_json::from_str(&line).unwrap();
            if desired(&event) {
                return event;
            }
            seen.push(line);
        }
    }

    fn ends(&mut self) -> Option<i32> {
        let mut status = None;
        wait_until("it ends", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap().code()
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the number of log lines with a text.
fn logged_count(lasthop: &Running, text: &str) -> usize {
    lasthop
        .log()
        .lines()
        .filter(|line| line.contains(text))
        .count()
}

#[test]
fn a_change_is_reported_with_its_requester_and_fields() {
    let place = Place::new();
    let mut lasthop = place.start(&config());
    let watcher = Watcher::of_documents(&lasthop, &place, "");
    lasthop.prints("port add vm2 --kind vhost-user --socket vm2.sock --mtu 9000");
    let added = watcher.until(|event| event["kind"] == "change");
    let uid = geteuid().as_raw();
    let short = json!([
        added["action"],
        added["subject"],
        added["name"],
        added["by"]["uid"]
    ]);
    assert_eq!(short, json!(["add", "port", "vm2", uid]));
    let pid = added["by"]["pid"].as_u64().unwrap();
    let fields = added["fields"].as_array().unwrap();
    assert!(fields.contains(&json!({"field": "mtu", "from": null, "to": 9000})));
    // The log has the same line once.
    let line = format!(" INFO lasthop::audit: port vm2 added uid={uid} pid={pid}");
    assert_eq!(logged_count(&lasthop, &line), 1, "{}", lasthop.log());
    assert_eq!(
        logged_count(&lasthop, "port vm2 added"),
        1,
        "{}",
        lasthop.log()
    );

    lasthop.prints("port set vm2 --down");
    let down = watcher.until(|event| event["kind"] == "change");
    let field = json!([{"field": "admin_state", "from": null, "to": "down"}]);
    assert_eq!(down["fields"], field);
    assert_eq!(
        logged_count(
            &lasthop,
            "port vm2 changed: admin_state none -> \"down\" uid="
        ),
        1
    );

    // A connection is an event of its port.
    let guest = UnixStream::connect(place.run_dir().join("vm1.sock")).unwrap();
    let state = |state: &str| {
        watcher.until(|event| {
            event["kind"] == "port" && event["port"] == "vm1" && event["state"] == *state
        });
    };
    state("connected");
    drop(guest);
    state("waiting");
    lasthop.end(Signal::TERM);
}

#[test]
fn a_change_by_another_user_has_that_users_number() {
    if !geteuid().is_root() {
        // Only root can act as another user.
        return;
    }
    let place = Place::new();
    let lasthop = place.start(&config());
    let socket = place.run_dir().join("api.sock");
    for (path, mode) in [
        (place.path(""), 0o755),
        (place.run_dir(), 0o755),
        (socket.clone(), 0o666),
    ] {
        std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }
    let ask = move || {
        // Of this thread alone.
        set_thread_uid(Uid::from_raw(NOBODY)).unwrap();
        let mut client = UnixStream::connect(socket).unwrap();
        let request = b"DELETE /v1/ports/vm1 HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
        client.write_all(request).unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).unwrap();
        answer
    };
    let answer = std::thread::spawn(ask).join().unwrap();
    assert!(answer.starts_with("HTTP/1.1 204"), "{answer}");
    let output = lasthop.prints("events --json --last 1 --kind change --no-follow");
    let event: Value = serde_json::from_str(&output).unwrap();
    let by = json!({"uid": NOBODY, "pid": std::process::id()});
    assert_eq!((&event["name"], &event["by"]), (&json!("vm1"), &by));
    let line = format!("lasthop::audit: port vm1 removed uid={NOBODY} pid=");
    assert_eq!(logged_count(&lasthop, &line), 1, "{}", lasthop.log());
}

#[test]
fn filters_select_events() {
    let place = Place::new();
    let lasthop = place.start(&config());
    for name in ["vm2", "vm3"] {
        lasthop.prints(&format!(
            "port add {name} --kind vhost-user --socket {name}.sock"
        ));
    }
    lasthop.prints("flows purge");
    let watcher = Watcher::new(
        &place,
        "--json --port vm3 --kind change,flows_purged --last 1",
    );
    let event = watcher.until(|_| true);
    assert_eq!(
        (&event["kind"], &event["name"]),
        (&json!("change"), &json!("vm3"))
    );
    let all = lasthop.prints("events --kind change --last 9 --no-follow");
    let lines: Vec<&str> = all.lines().collect();
    assert_eq!(lines.len(), 2, "{all}");
    assert!(lines[0].contains("Z info  port vm2 added (uid "), "{all}");
    let wrong = lasthop.cli("events --kind ports");
    assert_eq!(wrong.status.code(), Some(2));
    let words = Watcher::new(&place, "--kind flows_purged --last 5");
    let line = words.lines.recv_timeout(LIMIT).unwrap();
    assert!(
        line.contains("Z info  cached flows were purged (uid "),
        "{line}"
    );
}

#[test]
fn the_death_of_the_switch_is_reported_with_its_status() {
    let place = Place::new();
    let mut lasthop = place.start(&config());
    let watcher = Watcher::of_documents(&lasthop, &place, "");
    lasthop.kill_and_wait("switch");
    // Control dies with it, so that the number of missed events is unknown.
    let missed = watcher.until(|event| event["kind"] == "missed");
    assert_eq!(missed["count"], Value::Null);
    let ended = watcher.until(|event| event["kind"] == "process" && event["process"] == "switch");
    let short = json!([ended["state"], ended["level"], ended["reason"]]);
    assert_eq!(short, json!(["ended", "warn", "signal: 9 (SIGKILL)"]));
    let again = watcher.until(|event| event["process"] == "switch");
    assert_eq!(again["state"], "restarted");
    assert_eq!(again["pid"].as_i64(), Some(lasthop.pid("switch").into()));
    for line in ["switch ended (signal: 9 (SIGKILL))", "switch restarted"] {
        assert_eq!(
            logged_count(&lasthop, &format!("lasthop::audit: {line}")),
            1,
            "{line}"
        );
        assert_eq!(logged_count(&lasthop, line), 1, "{line}");
    }
    lasthop.end(Signal::TERM);
}

#[test]
fn it_continues_after_a_restart_of_control_and_reports_missed_events() {
    let place = Place::new();
    let lasthop = place.start(&config());
    let watcher = Watcher::of_documents(&lasthop, &place, "--kind change,process,fdb_flushed");
    lasthop.kill_and_wait("control");
    watcher.until(|event| event["kind"] == "missed");
    watcher.until(|event| event["process"] == "control" && event["state"] == "restarted");
    lasthop.prints("port remove vm1");
    let removed = watcher.until(|event| event["kind"] == "change");
    assert_eq!(
        (&removed["action"], &removed["name"]),
        (&json!("remove"), &json!("vm1"))
    );
}

#[test]
fn an_upgrade_and_a_reload_are_reported_with_their_requester() {
    let place = Place::new();
    let mut lasthop = place.start(&config());
    let watcher = Watcher::of_documents(&lasthop, &place, "");
    let by = |event: &Value| event["by"]["uid"].as_u64();
    let uid = Some(u64::from(geteuid().as_raw()));
    lasthop.signal(Signal::HUP);
    let reload = watcher.until(|event| event["kind"] == "reload");
    let own = u64::from(std::process::id());
    assert_eq!(
        (by(&reload), reload["by"]["pid"].as_u64()),
        (uid, Some(own))
    );
    watcher.until(|event| event["kind"] == "reload" && event["progress"] == "done");

    lasthop.prints("upgrade");
    let begun = watcher.until(|event| event["kind"] == "upgrade");
    assert_eq!((&begun["progress"], by(&begun)), (&json!("started"), uid));
    watcher.until(|event| event["kind"] == "missed");
    let done = watcher.until(|event| event["kind"] == "upgrade");
    assert_eq!((&done["progress"], by(&done)), (&json!("done"), uid));
    assert_eq!(done["version"], env!("CARGO_PKG_VERSION"));
    lasthop.end(Signal::TERM);
}

#[test]
fn it_ends_on_a_signal_and_when_its_output_is_closed() {
    let place = Place::new();
    let lasthop = place.start(&config());
    for how in [Signal::INT, Signal::TERM] {
        let mut watcher = Watcher::of_documents(&lasthop, &place, "");
        send(watcher.child.id(), how);
        assert_eq!(watcher.ends(), Some(0), "{how:?}");
    }
    // Without an event that it could fail to write.
    let mut watcher = Command::new(testkit::programs::program("lasthop"));
    watcher.arg("--runtime-dir").arg(place.run_dir());
    let child = watcher.arg("events").stdout(Stdio::piped()).spawn();
    let mut watcher = Watcher {
        child: child.unwrap(),
        lines: channel().1,
    };
    drop(watcher.child.stdout.take());
    assert_eq!(watcher.ends(), Some(0));
}

#[test]
fn without_a_lasthop_it_says_so() {
    let place = Place::new();
    let mut lasthop = place.start(&config());
    lasthop.end(Signal::TERM);
    let output = lasthop.cli("events");
    assert_eq!(output.status.code(), Some(1));
    let complaint = String::from_utf8(output.stderr).unwrap();
    assert!(complaint.contains("cannot reach Lasthop"), "{complaint}");
}

#[test]
fn a_client_that_does_not_read_is_ended_by_an_upgrade_and_does_not_hold_it_up() {
    let place = Place::new();
    let mut lasthop = place.start(&config());
    let mut client = UnixStream::connect(place.run_dir().join("api.sock")).unwrap();
    let request = b"GET /v1/events HTTP/1.1\r\nhost: x\r\n\r\n";
    client.write_all(request).unwrap();
    let mut begin = [0; 12];
    client.read_exact(&mut begin).unwrap();
    assert_eq!(&begin, b"HTTP/1.1 200");
    lasthop.prints("upgrade");
    client.set_read_timeout(Some(LIMIT)).unwrap();
    assert!(client.read_to_end(&mut Vec::new()).is_ok(), "it has ended");
    lasthop.end(Signal::TERM);
}
