//! `lasthop upgrade` under traffic: every process is replaced, and guests have no lost, duplicate
//! or reordered frames. If the new version fails, the old one continues.
//!
//! Senders never have more frames in flight than fit into the receiver's queue, so that no frame
//! may be dropped for any reason. `LASTHOP_UPGRADES=1000` increases the number of upgrades.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use crate::crashes::{crash_switch, send_until};
use rustix::process::Signal;
use serde_json::Value;
use testkit::lasthop::{Place, Running, port};
use testkit::packets::{Flow, Numbered, SequenceChecker, numbered_payload, payload_of, udp};
use testkit::process::send;
use testkit::stop::Stop;
use testkit::table::rows;
use testkit::wait::{LIMIT, wait_until};
use testkit::{FakeGuest, GuestConfig};

/// Frames in flight in one direction: fewer than a receiver's 256 buffers.
const WINDOW: u64 = 200;

/// The programs of an installation that an upgrade replaces.
const PROGRAMS: [&str; 5] = [
    "lasthop",
    "lasthop-supervisor",
    "lasthop-control",
    "lasthop-switch",
    "lasthop-driver",
];

/// Returns the number of upgrades of each test.
fn upgrades() -> usize {
    let desired = std::env::var("LASTHOP_UPGRADES").ok();
    desired.map_or(6, |n| n.parse().expect("LASTHOP_UPGRADES is a number"))
}

fn config(workers: u16) -> String {
    let switch = format!("[switch]\nname = \"host1\"\nworkers = {workers}\n");
    let segment = "[[segment]]\nname = \"blue\"\n";
    let ports = [1, 2].map(|n| port(&format!("vm{n}"), "segment = \"blue\""));
    format!("{switch}{segment}{}", ports.concat())
}

fn guest(place: &Place, n: u8, config: GuestConfig) -> FakeGuest {
    let path = place.run_dir().join(format!("vm{n}.sock"));
    let mut guest = FakeGuest::connect(&path, config.guest(n)).unwrap();
    guest.wait_link().unwrap();
    guest
}

/// Runs a closure while two guests exchange frames; all frames must arrive.
fn under_traffic<T>(
    place: &Place,
    guest_config: GuestConfig,
    during: impl FnOnce(&dyn Fn()) -> T,
) -> T {
    let (result, seen) = talking(place, guest_config, during);
    for (stream, sent, checker) in &seen {
        let clean = checker.is_clean(*stream, *sent);
        assert!(clean, "{sent} were sent: {checker:?}");
    }
    result
}

/// Runs a closure while two guests exchange frames. Returns for each direction its stream, the
/// number of sent frames, and the received ones.
fn talking<T>(
    place: &Place,
    guest_config: GuestConfig,
    during: impl FnOnce(&dyn Fn()) -> T,
) -> (T, [(u16, u64, SequenceChecker); 2]) {
    let mut guests = [1, 2].map(|n| guest(place, n, guest_config.clone()));
    let progress = [Progress::new(), Progress::new()];
    let stop = Stop::new();
    let [a, b] = &mut guests;
    let (result, seen) = std::thread::scope(|scope| {
        let first = scope.spawn(|| talk(a, 1, 2, [&progress[0], &progress[1]], &stop));
        let second = scope.spawn(|| talk(b, 2, 1, [&progress[1], &progress[0]], &stop));
        let more = || {
            let received = || [0, 1].map(|n: usize| progress[n].received.load(SeqCst));
            let before = received();
            wait_until("both guests see traffic", || {
                let now = received();
                (0..2).all(|n| now[n] > before[n] + 2 * WINDOW)
            });
        };
        let stopping = stop.at_end();
        more();
        let result = during(&more);
        more();
        drop(stopping);
        (result, [first.join().unwrap(), second.join().unwrap()])
    });
    for guest in &mut guests {
        guest.wait_link().expect("the same connection");
        guest.disconnect().expect("a good end");
    }
    let [(from_a, at_a), (from_b, at_b)] = seen;
    println!("{} frames", from_a + from_b);
    (result, [(1, from_a, at_b), (2, from_b, at_a)])
}

/// Progress of a guest.
struct Progress {
    /// Frames that it received.
    received: AtomicU64,
    /// Frames that it sent, known when it has stopped.
    sent: AtomicU64,
}

impl Progress {
    fn new() -> Self {
        Self {
            received: AtomicU64::new(0),
            sent: AtomicU64::new(u64::MAX),
        }
    }
}

/// Sends numbered frames to `peer` as fits into the window, and checks the received ones. `own` and
/// `peers` are the progress of this guest and its peer. After the stop, waits for all frames of the
/// peer, and a while for frames that come twice. Returns the number of sent frames, and the
/// received ones.
fn talk(
    guest: &mut FakeGuest,
    n: u8,
    peer: u8,
    [own, peers]: [&Progress; 2],
    stop: &Stop,
) -> (u64, SequenceChecker) {
    let mut checker = SequenceChecker::default();
    let flow = Flow::v4(n, peer);
    let (stream, mut seq) = (u16::from(n), 0);
    let (mut quiet, mut end) = (0, None);
    while quiet < 100 {
        let room = WINDOW - (seq - peers.received.load(SeqCst)).min(WINDOW);
        let stopped = stop.is_set();
        for _ in 0..if stopped { 0 } else { room.min(32) } {
            let len = 64 + (seq as usize * 37) % 1300;
            let payload = numbered_payload(Numbered { stream, seq }, len);
            guest.send(&udp(&flow, &payload)).expect("room");
            seq += 1;
        }
        let before = checker.received;
        for got in guest.recv_all().expect("a sound device") {
            let payload = payload_of(&got.frame).expect("a sound frame");
            checker.see(payload).expect("a sound payload");
        }
        own.received.store(checker.received, SeqCst);
        if stopped && checker.received == before {
            own.sent.store(seq, SeqCst);
            let has_all = checker.received - checker.duplicated >= peers.sent.load(SeqCst);
            let is_late = Instant::now() > *end.get_or_insert_with(|| Instant::now() + LIMIT);
            quiet += u32::from(has_all || is_late);
            std::thread::sleep(Duration::from_millis(2));
        }
    }
    (seq, checker)
}

/// Returns the number of drops of both ports for all reasons.
fn drops(lasthop: &Running) -> u64 {
    let stats = lasthop.json("stats");
    let ports = stats["ports"].as_array().unwrap().iter();
    let of_port = |port: &Value| {
        let drops = port["drops"].as_object().unwrap().values();
        drops.map(|n| n.as_u64().unwrap()).sum::<u64>()
    };
    ports.map(of_port).sum()
}

/// Returns the directory of the binaries of this build.
fn built() -> PathBuf {
    let mut folder = testkit::programs::program("lasthop");
    folder.pop();
    folder
}

/// Copies an executable file. This process does not open the copy: a process that another test
/// starts meanwhile would inherit the descriptor for a moment, and a file that is open for writing
/// cannot be executed.
fn copy(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg(from).arg(to).status();
    assert!(copied.unwrap().success());
}

/// Makes a directory with binaries of a simulated version. `faults` has names of binaries and their
/// faults; see `examples/faulty.rs`.
fn version(place: &Place, name: &str, faults: &[(&str, &str)]) -> PathBuf {
    let dir = place.path(name);
    std::fs::create_dir(&dir).unwrap();
    let real = built();
    std::os::unix::fs::symlink(&real, dir.join("real")).unwrap();
    for name in PROGRAMS {
        let own = std::env::current_exe().unwrap();
        let faulty = own.ancestors().nth(2).unwrap().join("examples/faulty");
        let built = faulty.exists();
        assert!(
            built,
            "`cargo test` without `--test`, or `cargo build --example faulty`"
        );
        copy(&faulty, &dir.join(name));
    }
    for (name, fault) in faults {
        std::fs::write(dir.join(format!("{name}.fault")), fault).unwrap();
    }
    dir
}

/// Makes a directory with copies of the binaries.
fn copies(place: &Place, name: &str) -> PathBuf {
    let dir = place.path(name);
    std::fs::create_dir(&dir).unwrap();
    let real = built();
    for name in PROGRAMS {
        copy(&real.join(name), &dir.join(name));
    }
    dir
}

/// Requests an upgrade that fails. Returns exit status and error message.
fn fails(lasthop: &Running, to: &Path) -> (Option<i32>, String) {
    let output = lasthop.cli(&format!("upgrade --to {}", to.display()));
    let complaint = String::from_utf8(output.stderr).unwrap();
    (output.status.code(), complaint)
}

/// Returns the executable file of a process.
fn file_of(pid: u32) -> PathBuf {
    std::fs::read_link(format!("/proc/{pid}/exe")).unwrap()
}

/// Returns the files of the supervisor, control and the switch.
fn files(lasthop: &Running) -> Vec<PathBuf> {
    let all = ["supervisor", "control", "switch"].into_iter();
    all.map(|name| file_of(lasthop.pid(name))).collect()
}

fn pids(lasthop: &Running) -> [u32; 2] {
    ["control", "switch"].map(|name| lasthop.pid(name))
}

/// Upgrades to the running binaries. Returns the gap in milliseconds.
fn upgrade(lasthop: &Running, connections: u64) -> f64 {
    let before = pids(lasthop);
    let report = lasthop.json("upgrade");
    let after = pids(lasthop);
    assert_ne!(before[0], after[0]);
    assert_ne!(before[1], after[1]);
    let report = &report["upgraded"];
    assert_eq!(report["connections"], connections, "{report}");
    assert_eq!(report["to"], env!("CARGO_PKG_VERSION"));
    report["gap_ms"].as_f64().unwrap()
}

/// Upgrades repeatedly with guests under load.
fn upgrade_under_load(what: &str, workers: u16, guests: GuestConfig) {
    let place = Place::new();
    let mut lasthop = place.start(&config(workers));
    let mut gaps = under_traffic(&place, guests, |more| {
        let mut gaps = Vec::new();
        for _ in 0..upgrades() {
            gaps.push(upgrade(&lasthop, 2));
            more();
        }
        gaps
    });
    gaps.sort_by(f64::total_cmp);
    println!(
        "{what}, {workers} workers: gap p50 {:.2} ms, max {:.2} ms",
        gaps[gaps.len() / 2],
        gaps[gaps.len() - 1]
    );
    assert_eq!(drops(&lasthop), 0, "{}", lasthop.prints("stats"));
    let log = lasthop.log();
    for bad in ["connection rejected", "disconnected:", "ERROR"] {
        assert!(!log.contains(bad), "{bad}: {log}");
    }
    lasthop.end(Signal::TERM);
    assert_eq!(place.left(), [""; 0]);
}

#[test]
fn split_queues() {
    upgrade_under_load("split", 1, GuestConfig::default());
}

#[test]
fn split_queues_in_order_with_three_workers() {
    upgrade_under_load("split, in order", 3, GuestConfig::default().in_order());
}

#[test]
fn packed_queues() {
    upgrade_under_load("packed", 1, GuestConfig::default().packed());
}

#[test]
fn packed_queues_in_order_with_three_workers() {
    upgrade_under_load(
        "packed, in order",
        3,
        GuestConfig::default().packed().in_order(),
    );
}

#[test]
fn an_incompatible_version_is_refused_without_changes() {
    let place = Place::new();
    let mut lasthop = place.start(&config(1));
    let before = (pids(&lasthop), files(&lasthop));
    let cases = rows(
        r"
        lasthop-control    | check   | lasthop-control failed its self-check
        lasthop-supervisor | check   | lasthop-supervisor failed its self-check
        lasthop            | check   | lasthop failed its self-check
        lasthop-driver     | version | lasthop-driver is not of the same version as the others
        lasthop-switch     | hang    | lasthop-switch did not finish its self-check in time
    ",
    );
    under_traffic(&place, GuestConfig::default(), |more| {
        for (at, [name, fault, expected]) in cases.iter().enumerate() {
            let dir = version(&place, &at.to_string(), &[(name, fault)]);
            let (status, complaint) = fails(&lasthop, &dir);
            assert_eq!(status, Some(2), "{complaint}");
            assert!(complaint.contains(expected), "{complaint}");
            more();
        }
        let (_, complaint) = fails(&lasthop, &place.path("nowhere"));
        assert!(complaint.contains("nowhere: No such file"), "{complaint}");
    });
    assert_eq!((pids(&lasthop), files(&lasthop)), before);
    lasthop.end(Signal::TERM);
}

/// For each format, a build with its number before, whose supervisor reads no record of today's.
/// Formats come before the configuration file, which such a build would refuse, too.
#[test]
fn a_build_with_another_number_of_a_format_is_refused_and_guests_keep_their_connections() {
    let place = Place::new();
    let mut lasthop = place.start(&config(1));
    let before = (pids(&lasthop), files(&lasthop));
    let mut report = Command::new(built().join("lasthop"));
    let report = report.arg("--self-check").output().unwrap();
    let report: Value = serde_json::from_slice(&report.stdout).unwrap();
    let formats = report["formats"].as_object().unwrap();
    assert!(formats.contains_key("supervisor"), "{report}");
    std::fs::write(place.path("lasthop.toml"), "[switch]\nnew = 1\n").unwrap();
    under_traffic(&place, GuestConfig::default(), |more| {
        for (format, numbers) in formats {
            let fault = format!("format {format}");
            let all = PROGRAMS.map(|name| (name, &*fault));
            let dir = version(&place, format, &all);
            let (status, complaint) = fails(&lasthop, &dir);
            assert_eq!(status, Some(2), "{complaint}");
            let own = numbers["writes"].as_u64().unwrap();
            let expected = format!(
                "refused: the format `{format}` has number {own} in the running build and {} in \
                 the new one, and neither reads the other's; restart Lasthop to change to it",
                own - 1
            );
            assert!(complaint.contains(&expected), "{complaint}");
        }
        more();
    });
    assert_eq!((pids(&lasthop), files(&lasthop)), before);
    let log = lasthop.log();
    for bad in ["disconnected:", "ERROR"] {
        assert!(!log.contains(bad), "{bad}: {log}");
    }
    lasthop.end(Signal::TERM);
}

#[test]
fn a_version_that_does_not_accept_the_configuration_file_is_refused() {
    let place = Place::new();
    let mut lasthop = place.start(&config(1));
    let before = (pids(&lasthop), files(&lasthop));
    let file = place.path("lasthop.toml");
    let refusal = |file: &Path, what: &str| {
        let file = file.display();
        format!("refused: the new version does not accept the configuration file: {file}:{what}")
    };
    under_traffic(&place, GuestConfig::default(), |more| {
        std::fs::write(&file, config(1).replace("workers", "wrokers")).unwrap();
        let (status, complaint) = fails(&lasthop, &built());
        assert_eq!(status, Some(2), "{complaint}");
        let expected = refusal(&file, "3:1: switch.wrokers: ");
        assert!(complaint.contains(&expected), "{complaint}");
        assert_eq!(complaint.lines().count(), 1, "{complaint}");
        more();
        std::fs::remove_file(&file).unwrap();
        let (status, complaint) = fails(&lasthop, &built());
        assert_eq!(status, Some(2), "{complaint}");
        let expected = refusal(&file, " expected a file that can be read, found ");
        assert!(complaint.contains(&expected), "{complaint}");
        more();
        assert_eq!((pids(&lasthop), files(&lasthop)), before);
        // A changed but valid file is accepted.
        std::fs::write(&file, format!("{}{}", config(1), port("vm3", ""))).unwrap();
        upgrade(&lasthop, 2);
        more();
    });
    assert_eq!(drops(&lasthop), 0, "{}", lasthop.prints("stats"));
    let log = lasthop.log();
    assert!(log.contains("switch.wrokers: "), "{log}");
    lasthop.end(Signal::TERM);
}

#[test]
fn a_configuration_that_can_be_read_only_once_does_not_prevent_an_upgrade() {
    let place = Place::new();
    let pipe = place.path("pipe");
    assert!(
        Command::new("mkfifo")
            .arg(&pipe)
            .status()
            .unwrap()
            .success()
    );
    let mut command = Command::new(built().join("lasthop"));
    command.arg("run").arg("--config").arg(&pipe);
    command.arg("--runtime-dir").arg(place.run_dir());
    let mut lasthop = place.spawn(command);
    std::fs::write(&pipe, config(1)).unwrap();
    lasthop.wait_ready();
    upgrade(&lasthop, 0);
    lasthop.end(Signal::TERM);
}

#[test]
fn a_version_that_fails_is_rolled_back() {
    let place = Place::new();
    let mut lasthop = place.start(&config(1));
    let before = (pids(&lasthop), files(&lasthop));
    let cases = [
        ("lasthop-control", "crash", "the new control ended"),
        ("lasthop-switch", "crash", "the new switch ended"),
        ("lasthop-supervisor", "back", "simulated failure"),
    ];
    under_traffic(&place, GuestConfig::default().packed(), |more| {
        for (at, (name, fault, expected)) in cases.into_iter().enumerate() {
            let dir = version(&place, &at.to_string(), &[(name, fault)]);
            let (status, complaint) = fails(&lasthop, &dir);
            assert_eq!(status, Some(1), "{complaint}");
            let rolled_back = complaint.contains("rolled back: ") && complaint.contains(expected);
            assert!(rolled_back, "{complaint}");
            more();
            // Changes are possible, and reach the old switch.
            let port =
                format!("port add new{at} --kind vhost-user --socket new{at}.sock --segment blue");
            lasthop.prints(&port);
            assert_eq!(lasthop.state(&format!("new{at}")), "waiting");
        }
        assert_eq!((pids(&lasthop), files(&lasthop)), before);
        upgrade(&lasthop, 2);
        more();
    });
    assert_eq!(drops(&lasthop), 0, "{}", lasthop.prints("stats"));
    lasthop.end(Signal::TERM);
}

#[test]
fn every_process_is_of_the_new_version() {
    let place = Place::new();
    let mut lasthop = place.start(&config(1));
    let supervisor = lasthop.pid("supervisor");
    under_traffic(&place, GuestConfig::default(), |more| {
        for name in ["first", "second"] {
            let dir = copies(&place, name);
            let output = lasthop.prints(&format!("upgrade --to {}", dir.display()));
            assert!(output.contains(": 2 connections kept, "), "{output}");
            more();
            let names = ["lasthop-supervisor", "lasthop-control", "lasthop-switch"];
            assert_eq!(files(&lasthop), names.map(|n| dir.join(n)));
            assert_eq!(lasthop.pid("supervisor"), supervisor);
        }
    });
    lasthop.end(Signal::TERM);
    assert_eq!(place.left(), [""; 0]);
}

#[test]
fn to_another_version_and_back() {
    let place = Place::new();
    let mut lasthop = place.start(&config(1));
    let all = PROGRAMS;
    let other = version(&place, "other", &all.map(|name| (name, "version")));
    let new = built().display().to_string();
    under_traffic(&place, GuestConfig::default().packed(), |more| {
        for _ in 0..2 {
            let output = lasthop.prints(&format!("upgrade --to {}", other.display()));
            let own = env!("CARGO_PKG_VERSION");
            assert!(
                output.contains(&format!("to 9{own}: 2 connections kept")),
                "{output}"
            );
            more();
            lasthop.prints(&format!("upgrade --to {new}"));
            more();
        }
    });
    assert_eq!(drops(&lasthop), 0, "{}", lasthop.prints("stats"));
    lasthop.end(Signal::TERM);
}

#[test]
fn new_files_are_used_after_an_upgrade_only() {
    let place = Place::new();
    let dir = copies(&place, "installed");
    let mut command = Command::new(dir.join("lasthop"));
    let config_file = place.path("lasthop.toml");
    std::fs::write(&config_file, config(1)).unwrap();
    command.arg("run").arg("--config").arg(config_file);
    command.arg("--runtime-dir").arg(place.run_dir());
    let mut lasthop = place.spawn(command);
    lasthop.wait_ready();
    // As a package manager does.
    let new = copies(&place, "new");
    for name in PROGRAMS {
        std::fs::rename(new.join(name), dir.join(name)).unwrap();
    }
    lasthop.kill_and_wait("switch");
    let deleted = |name: &str| dir.join(format!("{name} (deleted)"));
    let names = ["lasthop-supervisor", "lasthop-control", "lasthop-switch"];
    assert_eq!(files(&lasthop), names.map(deleted));
    upgrade(&lasthop, 0);
    assert_eq!(files(&lasthop), names.map(|n| dir.join(n)));
    lasthop.end(Signal::TERM);
}

#[test]
fn one_at_a_time() {
    let place = Place::new();
    let mut lasthop = place.start(&config(1));
    let hangs = version(&place, "hangs", &[("lasthop-switch", "hang")]);
    std::thread::scope(|scope| {
        let first = scope.spawn(|| fails(&lasthop, &hangs));
        wait_until("it is under way", || {
            lasthop.log().contains("upgrade to the binaries")
        });
        let (status, complaint) = fails(&lasthop, &hangs);
        assert_eq!(status, Some(2));
        assert!(
            complaint.contains("another upgrade is under way"),
            "{complaint}"
        );
        assert_eq!(first.join().unwrap().0, Some(2));
    });
    upgrade(&lasthop, 0);
    upgrade(&lasthop, 0);
    lasthop.end(Signal::TERM);
}

#[test]
fn processes_may_die_in_the_middle_of_it() {
    let place = Place::new();
    let mut lasthop = place.start(&config(1));
    let rounds = upgrades();
    let names = ["lasthop-switch", "lasthop-control"];
    let ((), seen) = talking(&place, GuestConfig::default().packed(), |more| {
        for round in 0..rounds {
            std::thread::scope(|scope| {
                let upgrade = scope.spawn(|| lasthop.cli("upgrade"));
                std::thread::sleep(Duration::from_millis(3 * round as u64));
                // Old or new process.
                let victims = lasthop.children();
                let mut victims = victims.into_iter().filter(|pid| {
                    let name = std::fs::read_to_string(format!("/proc/{pid}/comm"));
                    name.is_ok_and(|name| name.trim() == names[round % 2])
                });
                if let Some(victim) = victims.next_back() {
                    send(victim, Signal::KILL);
                }
                let status = upgrade.join().unwrap().status.code();
                assert!(matches!(status, Some(0..=2)), "{status:?}");
            });
            more();
        }
    });
    for (_, sent, checker) in seen {
        assert_eq!(checker.received - checker.duplicated, sent, "{checker:?}");
        // A batch that was delivered but not completed is delivered again.
        assert!(checker.duplicated <= 64 * rounds as u64, "{checker:?}");
    }
    upgrade(&lasthop, 0);
    lasthop.end(Signal::TERM);
}

/// Crashes the switch until one more crash of a port is counted. Returns the crash count.
fn crash_again(lasthop: &Running) -> u32 {
    let crash_counts = || {
        let log = lasthop.log();
        let crashes = log
            .lines()
            .filter(|line| line.contains("switch crashed while serving this port"));
        let number = |line: &str| line.rsplit_once("crashes=")?.1.trim().parse().ok();
        crashes.filter_map(number).collect::<Vec<u32>>()
    };
    let before = crash_counts().len();
    wait_until("a crash is counted", || {
        crash_switch(lasthop);
        crash_counts().len() > before
    });
    crash_counts().pop().unwrap()
}

#[test]
fn crash_counts_survive_an_upgrade() {
    let place = Place::new();
    let mut lasthop = place.start(&config(1));
    let mut sender = guest(&place, 1, GuestConfig::default());
    let stop = Stop::new();
    std::thread::scope(|scope| {
        scope.spawn(|| send_until(&mut sender, &stop));
        let stopping = stop.at_end();
        assert_eq!(crash_again(&lasthop), 1);
        assert_eq!(crash_again(&lasthop), 2);
        upgrade(&lasthop, 1);
        assert_eq!(crash_again(&lasthop), 3);
        wait_until("its connection ends", || {
            lasthop.log().contains("crashed repeatedly")
        });
        drop(stopping);
    });
    lasthop.end(Signal::TERM);
}

/// Starts the process of a command in its own network namespace.
fn in_own_network(command: &mut Command) -> &mut Command {
    // SAFETY: one system call; a process that is being started has one thread.
    unsafe {
        command.pre_exec(|| match libc::unshare(libc::CLONE_NEWNET) {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        })
    }
}

/// Starts Lasthop with ports for two guests and two for the host; `None` where the machine does not
/// permit that.
fn with_drivers(place: &Place) -> Option<Running> {
    let allowed = in_own_network(&mut Command::new("true")).status();
    if !allowed.is_ok_and(|status| status.success()) || !Path::new("/dev/net/tun").exists() {
        testkit::skip::skipped("no network namespaces here");
        return None;
    }
    let host = |name: &str| {
        format!(
            "[[port]]\nname = \"{name}\"\nkind = \"tap\"\ndriver_process = true\n\
             segment = \"host\"\n"
        )
    };
    let hosts = ["t0", "t1"].map(host).concat();
    let segment = "[[segment]]\nname = \"host\"\n";
    let mut command = place.command(&format!("{}{segment}{hosts}", config(1)));
    in_own_network(&mut command);
    let mut lasthop = place.spawn(command);
    lasthop.wait_ready();
    for port in ["t0", "t1"] {
        wait_until("its driver runs", || lasthop.state(port) == "up");
    }
    Some(lasthop)
}

/// Returns the files of both drivers, and their restart counters.
fn drivers(lasthop: &Running) -> [(PathBuf, u64); 2] {
    ["t0", "t1"].map(|port| {
        let process = &lasthop.json(&format!("port show {port}"))["driver_status"];
        let pid = process["pid"].as_i64().unwrap();
        let restarts = process["restarts"].as_u64().unwrap();
        (file_of(u32::try_from(pid).unwrap()), restarts)
    })
}

#[test]
fn drivers_are_of_the_new_version_too() {
    let place = Place::new();
    let Some(mut lasthop) = with_drivers(&place) else {
        return;
    };
    under_traffic(&place, GuestConfig::default(), |more| {
        for name in ["first", "second"] {
            let dir = copies(&place, name);
            let report = lasthop.json(&format!("upgrade --to {}", dir.display()));
            let report = &report["upgraded"];
            assert_eq!(report["drivers_stay"], Value::Null);
            let gaps = report["drivers"].as_array().unwrap();
            let ports: Vec<_> = gaps.iter().map(|gap| gap["port"].as_str()).collect();
            assert_eq!(ports, [Some("t0"), Some("t1")]);
            println!("{gaps:?}");
            let own = dir.join("lasthop-driver");
            assert_eq!(drivers(&lasthop), [(own.clone(), 0), (own, 0)]);
            more();
            for port in ["t0", "t1"] {
                assert_eq!(lasthop.state(port), "up");
            }
        }
    });
    let log = lasthop.log();
    for bad in ["ERROR", "driver ended", "is killed"] {
        assert!(!log.contains(bad), "{bad}: {log}");
    }
    lasthop.end(Signal::TERM);
    assert_eq!(place.left(), [""; 0]);
}

#[test]
fn a_faulty_new_driver_is_rolled_back() {
    let place = Place::new();
    let Some(mut lasthop) = with_drivers(&place) else {
        return;
    };
    let [(before, _), _] = drivers(&lasthop);
    under_traffic(&place, GuestConfig::default(), |more| {
        for fault in ["crash", "sleep"] {
            let dir = version(&place, fault, &[("lasthop-driver", fault)]);
            let output = lasthop.prints(&format!("upgrade --to {}", dir.display()));
            assert!(output.contains("drivers stay at version "), "{output}");
            assert!(output.contains(": driver of t0: "), "{output}");
            for port in ["t0", "t1"] {
                wait_until("its driver runs", || lasthop.state(port) == "up");
            }
            more();
            let files = drivers(&lasthop).map(|(file, _)| file);
            assert_eq!(files, [before.clone(), before.clone()]);
            send(lasthop.pid("driver t1"), Signal::KILL);
            wait_until("there is another one", || {
                lasthop
                    .try_process("driver t1")
                    .is_some_and(|p| p["restarts"] != 0)
                    && lasthop.state("t1") == "up"
            });
            assert_eq!(drivers(&lasthop).map(|(file, _)| file)[1], before);
        }
    });
    lasthop.end(Signal::TERM);
}
