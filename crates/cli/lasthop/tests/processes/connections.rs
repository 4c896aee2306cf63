//! The table of tracked connections outlives the switch, control and an upgrade; nothing in its
//! file is trusted; and without memory for it nothing starts or changes.

use std::fs;
use std::io;
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;
use testkit::lasthop::{Place, Running, port};
use testkit::packets::{Flow, payload_of, udp};
use testkit::wait::wait_until;
use testkit::{FakeGuest, GuestConfig};

/// `vm1` may ask port 5000 of `vm2`, and the answers come back by state alone.
const RULES: &str = r#"
[[acl]]
name = "vm2-in"
direction = "to-guest"
ports = ["vm2"]
[[acl.rule]]
name = "service"
action = "allow-stateful"
protocol = "udp"
destination_ports = [5000]
[[acl]]
name = "vm1-in"
direction = "to-guest"
ports = ["vm1"]
[[acl.rule]]
name = "service"
action = "drop"
protocol = "udp"
source_ports = [5000]
"#;

fn config(switch: &str) -> String {
    let ports = [1, 2].map(|n| port(&format!("vm{n}"), ""));
    format!("[switch]\nname = \"host1\"\n{switch}{}", ports.concat())
}

fn flow(from: u8, to: u8, ports: (u16, u16)) -> Flow {
    Flow {
        src_port: ports.0,
        dst_port: ports.1,
        ..Flow::v4(from, to)
    }
}

/// Two guests, and the number of frames so far.
struct Guests {
    all: [FakeGuest; 2],
    sent: u32,
}

impl Guests {
    fn new(place: &Place) -> Self {
        let all = [1, 2].map(|n| {
            let path = place.run_dir().join(format!("vm{n}.sock"));
            let config = GuestConfig::default().guest(n);
            let mut guest = FakeGuest::connect(&path, config).unwrap();
            guest.wait_link().unwrap();
            guest
        });
        Self { all, sent: 0 }
    }

    /// Sends a frame; returns its payload.
    fn send(&mut self, from: u8, to: u8, ports: (u16, u16)) -> Vec<u8> {
        self.sent += 1;
        let payload = format!("frame {:8}", self.sent).into_bytes();
        let frame = udp(&flow(from, to, ports), &payload);
        self.all[usize::from(from) - 1].send(&frame).expect("room");
        payload
    }

    /// Returns the payloads that a guest has received since the last call.
    fn received(&mut self, to: u8) -> Vec<Vec<u8>> {
        let guest = &mut self.all[usize::from(to) - 1];
        let got = guest.recv_all().expect("a sound device");
        let payload = |frame: &[u8]| Some(payload_of(frame).ok()?.to_vec());
        got.iter().filter_map(|got| payload(&got.frame)).collect()
    }

    /// Sends frames until one arrives.
    fn pass(&mut self, from: u8, to: u8, ports: (u16, u16)) {
        let mut sent = Vec::new();
        wait_until(&format!("a frame from {from} to {to} by {ports:?}"), || {
            sent.push(self.send(from, to, ports));
            let received = self.received(to);
            received.iter().any(|payload| sent.contains(payload))
        });
    }

    /// Opens the connection.
    fn ask(&mut self) {
        self.pass(1, 2, (4000, 5000));
    }

    /// Answers, by state alone.
    fn answer(&mut self) {
        self.pass(2, 1, (5000, 4000));
    }

    /// Checks that no answer arrives, beside other frames.
    fn answer_in_vain(&mut self) {
        for _ in 0..3 {
            let denied = self.send(2, 1, (5000, 4000));
            let allowed = self.send(2, 1, (6000, 4000));
            let mut all = Vec::new();
            wait_until("another frame", || {
                all.extend(self.received(1));
                all.contains(&allowed)
            });
            assert!(!all.contains(&denied), "an answer without a connection");
        }
    }
}

/// Returns the path of the table's file.
fn table_of(lasthop: &Running) -> PathBuf {
    let fds = fs::read_dir(format!("/proc/{}/fd", lasthop.supervisor())).unwrap();
    let is_table = |path: &PathBuf| {
        let to = fs::read_link(path).unwrap_or_default();
        to.to_string_lossy().contains("memfd:lasthop-connections")
    };
    let mut paths = fds.map(|fd| fd.unwrap().path());
    paths.find(is_table).expect("the supervisor has the table")
}

/// Kills the switch after garbage was written to the table from this position on.
fn spoil(lasthop: &Running, from: u64) {
    let starts = || logged(lasthop, EMPTY) + logged(lasthop, CONTINUES);
    let before = starts();
    lasthop.kill_switch(Signal::STOP);
    let file = fs::OpenOptions::new()
        .write(true)
        .open(table_of(lasthop))
        .unwrap();
    let len = file.metadata().unwrap().len();
    let garbage: Vec<u8> = (0..1_u32 << 18)
        .flat_map(|n| n.wrapping_mul(0x9e37_79b9).to_le_bytes())
        .collect();
    let mut at = from;
    while at < len {
        let part = &garbage[..garbage.len().min((len - at) as usize)];
        file.write_all_at(part, at).unwrap();
        at += part.len() as u64;
    }
    lasthop.kill_switch(Signal::KILL);
    wait_until("a successor has the table", || starts() > before);
}

fn logged(lasthop: &Running, text: &str) -> usize {
    lasthop.log().matches(text).count()
}

const EMPTY: &str = "the table of connections is new: it starts empty";
const CONTINUES: &str = "the table of connections continues";

#[test]
fn connections_outlive_all_processes_and_garbage_is_not_trusted() {
    let place = Place::new();
    // A small table, which is quickly written over.
    let small = "[switch.connections]\nmax = 1024\n";
    let mut lasthop = place.start(&(config(small) + RULES));
    assert_eq!(logged(&lasthop, EMPTY), 1);
    let mut guests = Guests::new(&place);
    guests.answer_in_vain();
    guests.ask();
    guests.answer();
    for process in ["switch", "control"] {
        lasthop.kill_and_wait(process);
        guests.answer();
    }
    assert_eq!(
        (logged(&lasthop, EMPTY), logged(&lasthop, CONTINUES)),
        (1, 1)
    );
    let report = &lasthop.json("upgrade")["upgraded"];
    assert_eq!(report["table"]["is_new"], false, "{report}");
    assert!(
        report["table"]["connections"].as_u64() >= Some(1),
        "{report}"
    );
    guests.answer();
    // All of the file, and all but its header.
    for (from, empty) in [(0, 2), (4096, 2)] {
        spoil(&lasthop, from);
        guests.answer_in_vain();
        assert_eq!(logged(&lasthop, EMPTY), empty);
        guests.ask();
        guests.answer();
    }
    lasthop.end(Signal::TERM);
    assert_eq!(place.left(), [""; 0]);
}

/// A control group with a limit of memory; removed with the value.
struct Group(PathBuf);

impl Group {
    /// Makes a group; `None` where that is not possible.
    fn new(limit: u64) -> Option<Self> {
        let name = format!("lasthop-connections-{}", std::process::id());
        let kinds = [
            ("/sys/fs/cgroup", "memory.max"),
            ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
        ];
        let made = |(root, file): (&str, &str)| {
            let group = Self(PathBuf::from(root).join(&name));
            fs::create_dir(&group.0).ok()?;
            // Another file system may be mounted there.
            let is_group = group.0.join("cgroup.procs").exists() && group.0.join(file).exists();
            let limited = is_group && fs::write(group.0.join(file), limit.to_string()).is_ok();
            limited.then_some(group)
        };
        kinds.into_iter().find_map(made)
    }

    /// Has a command run in the group.
    fn holds(&self, command: &mut Command) {
        let processes = fs::OpenOptions::new()
            .write(true)
            .open(self.0.join("cgroup.procs"))
            .unwrap();
        let enter = move || match processes.write_at(b"0", 0) {
            Ok(_) => Ok(()),
            Err(error) => Err(io::Error::from_raw_os_error(
                error.raw_os_error().unwrap_or(1),
            )),
        };
        // SAFETY: it makes one system call, which is async-signal-safe.
        unsafe { command.pre_exec(enter) };
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // A process that has ended may be in it for a moment.
        for _ in 0..500 {
            if fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

#[test]
fn without_memory_for_the_table_nothing_starts_or_changes() {
    // The usual table has more, and Lasthop less.
    let Some(group) = Group::new(48 << 20) else {
        eprintln!("skipped: no control group with a limit of memory can be made");
        return;
    };
    let place = Place::new();
    let in_group = |config: &str, more: &[&str]| {
        let mut command = place.command(config);
        command.args(more);
        group.holds(&mut command);
        place.spawn(command)
    };
    let whole = config("") + RULES;
    let place_of_rule = "lasthop.toml:";
    let why = "\"allow-stateful\" needs the table of connections, which there cannot be: it needs ";
    for more in [&["--check"][..], &[]] {
        let mut refused = in_group(&whole, more);
        assert_eq!(refused.wait().code(), Some(2), "{}", refused.log());
        let log = refused.log();
        for part in [
            place_of_rule,
            why,
            " bytes of memory, and there are ",
            "control group",
        ] {
            assert!(log.contains(part), "{part}: {log}");
        }
    }
    let mut lasthop = in_group(&config(""), &[]);
    lasthop.wait_ready();
    let before = (
        lasthop.pid("control"),
        lasthop.pid("switch"),
        lasthop.prints("export"),
    );
    let file = place.path("rules.toml");
    fs::write(&file, &whole).unwrap();
    let refused = lasthop.cli(&format!("apply {}", file.display()));
    let complaint = String::from_utf8(refused.stderr).unwrap();
    assert!(complaint.contains(why), "{complaint}");
    let after = (
        lasthop.pid("control"),
        lasthop.pid("switch"),
        lasthop.prints("export"),
    );
    assert_eq!(before, after, "nothing has changed");
    lasthop.end(Signal::TERM);
    let small = config("[switch.connections]\nmax = 1024\n") + RULES;
    let mut lasthop = in_group(&small, &[]);
    lasthop.wait_ready();
    lasthop.end(Signal::TERM);
}
