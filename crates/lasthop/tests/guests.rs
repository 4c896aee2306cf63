//! Knowing what guests' processors do: who says so, whose threads are found, and that the switch gets it.

#[allow(dead_code, reason = "the other tests of this folder use the rest")]
mod running;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use running::{Place, Running, eventually, port};
use testkit::packets::{Flow, udp};
use testkit::{FakeGuest, GuestConfig};

fn config(by: &str, pattern: &str) -> String {
    let switch = format!("[switch]\nname = \"host1\"\nguest_state = \"{by}\"\n");
    let threads = format!("vcpu_threads = \"{pattern}\"");
    format!("{switch}{}{}", port("vm1", &threads), port("vm2", ""))
}

/// Who notes states, and why it is not the kernel.
fn by(lasthop: &Running) -> (String, String) {
    let status = lasthop.json("status");
    let state = &status["switch"]["guest_state"];
    let text = |key: &str| state[key].as_str().unwrap_or_default().to_owned();
    (text("by"), text("reason"))
}

/// Threads of a port that are followed.
fn threads(lasthop: &Running, port: &str) -> Option<u64> {
    let output = lasthop.cli(&format!("port show {port} --json"));
    let port: serde_json::Value = serde_json::from_slice(&output.stdout).ok()?;
    port["vcpu_threads"].as_u64()
}

/// Whether the switch that serves has the memory of states mapped.
fn is_mapped(lasthop: &Running, what: &str) -> bool {
    let Some(switch) = lasthop.try_process("switch") else {
        return false;
    };
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", switch["pid"]));
    // Only to be read.
    let fits = |line: &str| line.contains(" r--s ") && line.contains(what);
    maps.is_ok_and(|maps| maps.lines().any(fits))
}

/// Threads with a name, until they are let go.
struct Named(Vec<(mpsc::Sender<()>, JoinHandle<()>)>);

impl Named {
    fn start(name: &str, count: usize) -> Self {
        let start = |_| {
            let (keep, wait) = mpsc::channel();
            let body = move || wait.recv().unwrap_or_default();
            let thread = std::thread::Builder::new().name(name.to_owned());
            (keep, thread.spawn(body).unwrap())
        };
        Self((0..count).map(start).collect())
    }

    fn end(self) {
        for (keep, thread) in self.0 {
            drop(keep);
            thread.join().unwrap();
        }
    }
}

fn connect(place: &Place, n: u8) -> FakeGuest {
    let path = place.run_dir().join(format!("vm{n}.sock"));
    let mut guest = FakeGuest::connect(&path, GuestConfig::default().guest(n)).unwrap();
    guest.wait_link().unwrap();
    guest
}

/// The threads of a guest are found, the switch gets to know of them, and so does its successor.
fn found(by_word: &str, memory: &str) {
    let place = Place::new();
    let name = format!("lcore-{by_word}");
    let mut lasthop = place.start(&config(by_word, &format!("{name}*")));
    if by_word == "bpf" && by(&lasthop).0 != "bpf" {
        return eprintln!("not tested: {}", by(&lasthop).1);
    }
    assert_eq!(by(&lasthop).0, by_word);
    assert_eq!(threads(&lasthop, "vm1"), Some(0));
    let named = Named::start(&name, 3);
    let mut guest = connect(&place, 1);
    eventually("its threads are found", || {
        threads(&lasthop, "vm1") == Some(3)
    });
    assert_eq!(threads(&lasthop, "vm2"), Some(0), "nobody is there");
    assert!(
        lasthop
            .prints("port show vm1")
            .contains("processors   3 threads")
    );
    eventually("the switch has them", || is_mapped(&lasthop, memory));
    lasthop.kill_and_wait("switch");
    eventually("its successor has them", || is_mapped(&lasthop, memory));
    lasthop.kill_and_wait("control");
    eventually("they are still known", || {
        threads(&lasthop, "vm1") == Some(3)
    });
    guest.disconnect().unwrap();
    eventually("they are left", || threads(&lasthop, "vm1") == Some(0));
    named.end();
    lasthop.end(rustix::process::Signal::TERM);
}

#[test]
fn threads_are_found_by_their_names_and_looked_at_in_proc() {
    found("proc", "lasthop-guests");
}

#[test]
fn threads_are_found_by_their_names_and_watched_by_the_kernel() {
    found("bpf", "bpf-map");
}

/// The capabilities that a unit's file names, as setpriv(1) wants them.
fn bounding_set(file: &str) -> String {
    let path = format!("{}/../../packaging/{file}", env!("CARGO_MANIFEST_DIR"));
    let unit = std::fs::read_to_string(path).unwrap();
    let lines = unit.lines();
    let sets = lines.filter_map(|line| line.strip_prefix("CapabilityBoundingSet="));
    sets.flat_map(|set| set.split(' '))
        .map(|name| format!(",+{}", name.strip_prefix("CAP_").unwrap().to_lowercase()))
        .collect()
}

/// Who notes states under a unit with these rights; `None` where that cannot be tried.
fn by_with(rights: &str) -> Option<(String, String)> {
    let place = Place::new();
    let plain = place.command(&config("auto", "*"));
    let mut command = std::process::Command::new("setpriv");
    command
        .arg("--no-new-privs")
        .arg(format!("--bounding-set=-all{rights}"));
    command.arg(plain.get_program()).args(plain.get_args());
    command
        .env_remove("LASTHOP_RUNTIME_DIR")
        .env_remove("LASTHOP_LOG");
    let may = std::process::Command::new("setpriv")
        .args(["--bounding-set=-all", "true"])
        .output();
    if !may.is_ok_and(|output| output.status.success()) {
        return None;
    }
    let mut lasthop = place.spawn(command);
    lasthop.wait_ready();
    let by = by(&lasthop);
    lasthop.end(rustix::process::Signal::TERM);
    Some(by)
}

#[test]
fn the_kernel_notes_states_with_the_rights_of_the_drop_in_and_not_with_those_of_the_unit() {
    let unit = bounding_set("lasthop.service");
    let both = unit.clone() + &bounding_set("guest-states.conf");
    let (Some(without), Some(with)) = (by_with(&unit), by_with(&both)) else {
        return eprintln!("not tested: rights cannot be given up here");
    };
    assert_eq!(without.0, "proc");
    assert!(without.1.contains("no right"), "{}", without.1);
    // With all rights it may not be possible either.
    let place = Place::new();
    let mut lasthop = place.start(&config("auto", "*"));
    assert_eq!(with.0, by(&lasthop).0, "{}", with.1);
    lasthop.end(rustix::process::Signal::TERM);
}

#[test]
fn without_a_name_all_threads_of_the_vmm_count() {
    let place = Place::new();
    let lasthop = place.start(&config("auto", "*"));
    let _guest = connect(&place, 2);
    eventually("all are found", || threads(&lasthop, "vm2") >= Some(2));
}

#[test]
fn nobody_is_looked_at_who_should_not() {
    let place = Place::new();
    let lasthop = place.start(&config("off", "*"));
    assert_eq!(by(&lasthop), ("off".into(), "as configured".into()));
    let text = lasthop.prints("status");
    let line = "guests' processors not watched: as configured";
    assert!(text.lines().any(|l| l == line), "{text}");
    assert!(!is_mapped(&lasthop, "bpf-map") && !is_mapped(&lasthop, "lasthop-guests"));
}

#[test]
fn the_log_says_once_when_programs_are_loaded_into_the_kernel() {
    for how in ["auto", "proc"] {
        let place = Place::new();
        let lasthop = place.start(&config(how, "*"));
        let said = lasthop
            .log()
            .matches(" INFO lasthop::supervisor::guests: loaded programs into the kernel")
            .count();
        assert_eq!(
            said,
            usize::from(by(&lasthop).0 == "bpf"),
            "{how}: {}",
            lasthop.log()
        );
    }
}

#[test]
fn an_upgrade_watches_on() {
    let place = Place::new();
    let mut lasthop = place.start(&config("auto", "lcore-upgrade"));
    let memory = match by(&lasthop).0.as_str() {
        "bpf" => "bpf-map",
        _ => "lasthop-guests",
    };
    let named = Named::start("lcore-upgrade", 2);
    let _guest = connect(&place, 1);
    eventually("its threads are found", || {
        threads(&lasthop, "vm1") == Some(2)
    });
    let before = lasthop.pid("switch");
    lasthop.prints("upgrade");
    eventually("they are found again", || {
        threads(&lasthop, "vm1") == Some(2)
    });
    assert_ne!(lasthop.pid("switch"), before);
    eventually("the new switch has them", || is_mapped(&lasthop, memory));
    named.end();
    lasthop.end(rustix::process::Signal::TERM);
}

/// A thread with a name that spins until it is told to sleep.
struct Spinning {
    sleeps: Arc<AtomicBool>,
    ended: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Spinning {
    fn start(name: &str) -> Self {
        let sleeps = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&sleeps);
        let (ended, wait) = mpsc::channel();
        let body = move || {
            while !told.load(Ordering::Relaxed) {
                std::thread::yield_now();
            }
            wait.recv().unwrap_or_default();
        };
        let thread = std::thread::Builder::new().name(name.to_owned());
        Self {
            sleeps,
            ended: Some(ended),
            thread: Some(thread.spawn(body).unwrap()),
        }
    }

    fn sleep(&self) {
        self.sleeps.store(true, Ordering::Relaxed);
    }
}

impl Drop for Spinning {
    fn drop(&mut self) {
        self.sleep();
        self.ended = None;
        let _ = self.thread.take().unwrap().join();
    }
}

/// Frames that one guest sends to the other, one at a time: each arrives, whether it is told of or not. The receiver always wants
/// to be. How often it was told.
fn told_of(from: &mut FakeGuest, to: &mut FakeGuest, frames: usize) -> u64 {
    let frame = udp(&Flow::v4(2, 1), &[7; 100]);
    let mut calls = 0;
    for _ in 0..frames {
        from.send(&frame).unwrap();
        eventually("the frame arrives", || {
            to.pairs[0].nic.receive().unwrap().is_some()
        });
        calls += to.pairs[0].rx_call.take();
        to.pairs[0].nic.offer();
        to.pairs[0].arm_rx();
    }
    calls
}

#[test]
fn a_guest_that_runs_is_told_of_frames_once_a_period_and_one_that_sleeps_of_each() {
    const PERIOD: Duration = Duration::from_millis(10);
    const FRAMES: usize = 200;
    let place = Place::new();
    let batching = format!("[switch.batching]\nperiod_us = {}\n", PERIOD.as_micros());
    let lasthop = place.start(&(config("bpf", "lcore-told") + &batching));
    if by(&lasthop).0 != "bpf" {
        return eprintln!("not tested: {}", by(&lasthop).1);
    }
    let thread = Spinning::start("lcore-told");
    let (mut to, mut from) = (connect(&place, 1), connect(&place, 2));
    eventually("its thread is found", || {
        threads(&lasthop, "vm1") == Some(1)
    });
    // Both are known, and the switch has heard whose the thread is.
    to.send(&udp(&Flow::v4(1, 2), &[7; 100])).unwrap();
    eventually("the switch goes by it", || {
        let (begun, calls) = (Instant::now(), told_of(&mut from, &mut to, FRAMES));
        let periods = begun.elapsed().as_nanos() / PERIOD.as_nanos();
        u128::from(calls) <= periods + 2
    });
    thread.sleep();
    for _ in 0..FRAMES {
        told_of(&mut from, &mut to, 1);
    }
    eventually("each is told of", || {
        told_of(&mut from, &mut to, FRAMES) == FRAMES as u64
    });
}
