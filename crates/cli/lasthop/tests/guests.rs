//! vCPU states: their source, the threads that are found, and their transfer to the switch.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use testkit::lasthop::{Place, Running, port};
use testkit::packets::{Flow, udp};
use testkit::skip::skipped;
use testkit::wait::wait_until;
use testkit::{FakeGuest, GuestConfig};

fn config(by: &str, pattern: &str) -> String {
    let switch = format!("[switch]\nname = \"host1\"\nguest_state = \"{by}\"\n");
    let threads = format!("vcpu_threads = \"{pattern}\"");
    format!("{switch}{}{}", port("vm1", &threads), port("vm2", ""))
}

/// Returns the source of states, and the reason why it is not BPF.
fn by(lasthop: &Running) -> (String, String) {
    let status = lasthop.json("status");
    let state = &status["switch"]["guest_state"];
    let text = |key: &str| state[key].as_str().unwrap_or_default().to_owned();
    (text("by"), text("reason"))
}

/// Returns the number of followed threads of a port.
fn threads(lasthop: &Running, port: &str) -> Option<u64> {
    let output = lasthop.cli(&format!("port show {port} --json"));
    let port: serde_json::Value = serde_json::from_slice(&output.stdout).ok()?;
    port["vcpus"].as_u64()
}

/// Returns whether the serving switch has mapped the memory of states.
fn has_states(lasthop: &Running) -> bool {
    let Some(switch) = lasthop.try_process("switch") else {
        return false;
    };
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", switch["pid"]));
    // The mapping is read-only.
    let fits = |line: &str| line.contains(" r--s ") && line.contains("bpf-map");
    maps.is_ok_and(|maps| maps.lines().any(fits))
}

/// Threads with a name, until they are ended.
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

#[test]
fn threads_are_found_by_name_and_known_to_the_switch() {
    let place = Place::new();
    let mut lasthop = place.start(&config("bpf", "lcore-found*"));
    if by(&lasthop).0 != "bpf" {
        return skipped(by(&lasthop).1);
    }
    assert_eq!(threads(&lasthop, "vm1"), Some(0));
    let named = Named::start("lcore-found", 3);
    let mut guest = connect(&place, 1);
    wait_until("its threads are found", || {
        threads(&lasthop, "vm1") == Some(3)
    });
    assert_eq!(threads(&lasthop, "vm2"), Some(0), "no guest");
    lasthop.prints("port set vm1 --vcpu-threads lcore-other*");
    wait_until("none has the new name", || {
        threads(&lasthop, "vm1") == Some(0)
    });
    lasthop.prints("port set vm1 --vcpu-threads lcore-found*");
    wait_until("its threads are found again", || {
        threads(&lasthop, "vm1") == Some(3)
    });
    assert!(
        lasthop
            .prints("port show vm1")
            .contains("3, found by names\n")
    );
    wait_until("the switch has them", || has_states(&lasthop));
    lasthop.kill_and_wait("switch");
    wait_until("its successor has them", || has_states(&lasthop));
    lasthop.kill_and_wait("control");
    wait_until("they are still known", || {
        threads(&lasthop, "vm1") == Some(3)
    });
    guest.disconnect().unwrap();
    wait_until("they are left", || threads(&lasthop, "vm1") == Some(0));
    named.end();
    lasthop.end(rustix::process::Signal::TERM);
}

/// Returns a port's search for vCPUs, and its notifications.
fn search(lasthop: &Running, port: &str) -> (String, String, serde_json::Value) {
    let output = lasthop.cli(&format!("port show {port} --json"));
    let port: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let text = |key: &str| {
        port["vcpu_search"][key]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    };
    (text("by"), text("reason"), port["notifications"].clone())
}

#[test]
fn without_names_vcpus_are_unknown_until_frames_show_them() {
    let place = Place::new();
    let lasthop = place.start(&config("auto", "*"));
    if by(&lasthop).0 != "bpf" {
        return skipped(by(&lasthop).1);
    }
    let (mut one, mut two) = (connect(&place, 1), connect(&place, 2));
    let frame = udp(&Flow::v4(1, 2), &[7; 100]);
    two.send(&udp(&Flow::v4(2, 1), &[7; 100])).unwrap();
    wait_until("the reason is known", || {
        !search(&lasthop, "vm2").1.is_empty()
    });
    let (by, reason, _) = search(&lasthop, "vm2");
    assert_eq!(
        (by.as_str(), threads(&lasthop, "vm2")),
        ("unknown", Some(0))
    );
    assert!(
        reason.contains("too few frames to tell by activity"),
        "{reason}"
    );
    assert!(
        lasthop
            .prints("port show vm2")
            .contains("vcpus        unknown (")
    );
    wait_until("this thread is found", || {
        for _ in 0..4 {
            one.send(&frame).unwrap();
            wait_until("the frame arrives", || {
                two.pairs[0].nic.receive().unwrap().is_some()
            });
            two.pairs[0].nic.offer();
        }
        search(&lasthop, "vm2").0 == "activity"
    });
    assert!(threads(&lasthop, "vm2") >= Some(1));
}

#[test]
fn without_a_source_nothing_is_watched() {
    let place = Place::new();
    let lasthop = place.start(&config("off", "*"));
    assert_eq!(by(&lasthop), ("off".into(), "as configured".into()));
    let text = lasthop.prints("status");
    let line = "vCPU states: off: as configured";
    assert!(text.lines().any(|l| l == line), "{text}");
    let off = ("unknown".to_owned(), "vCPU states are off".to_owned());
    let (by, reason, _) = search(&lasthop, "vm1");
    assert_eq!((by, reason), off);
    assert!(!has_states(&lasthop));
}

#[test]
fn loading_bpf_programs_is_logged_once() {
    for how in ["auto", "off"] {
        let place = Place::new();
        let lasthop = place.start(&config(how, "*"));
        let count = lasthop
            .log()
            .matches(" INFO lasthop_supervisor::guests: loaded BPF programs")
            .count();
        assert_eq!(
            count,
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
    if by(&lasthop).0 != "bpf" {
        return eprintln!("not tested: {}", by(&lasthop).1);
    }
    let named = Named::start("lcore-upgrade", 2);
    let _guest = connect(&place, 1);
    wait_until("its threads are found", || {
        threads(&lasthop, "vm1") == Some(2)
    });
    let before = lasthop.pid("switch");
    lasthop.prints("upgrade");
    wait_until("they are found again", || {
        threads(&lasthop, "vm1") == Some(2)
    });
    assert_ne!(lasthop.pid("switch"), before);
    wait_until("the new switch has them", || has_states(&lasthop));
    named.end();
    lasthop.end(rustix::process::Signal::TERM);
}

/// Thread with a name that spins until it is put to sleep.
struct Spinning {
    sleeps: Arc<AtomicBool>,
    ended: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Spinning {
    fn start(name: &str) -> Self {
        let sleeps = Arc::new(AtomicBool::new(false));
        let stop = Arc::clone(&sleeps);
        let (ended, wait) = mpsc::channel();
        let body = move || {
            while !stop.load(Ordering::Relaxed) {
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

/// Sends frames from one guest to the other, one at a time, and checks that each arrives. The
/// receiver requests notifications always. Returns the number of notifications.
fn frames_with_calls(from: &mut FakeGuest, to: &mut FakeGuest, frames: usize) -> u64 {
    let frame = udp(&Flow::v4(2, 1), &[7; 100]);
    let mut calls = 0;
    for _ in 0..frames {
        from.send(&frame).unwrap();
        wait_until("the frame arrives", || {
            to.pairs[0].nic.receive().unwrap().is_some()
        });
        calls += to.pairs[0].rx_call.take();
        to.pairs[0].nic.offer();
        to.pairs[0].arm_rx();
    }
    calls
}

#[test]
fn a_running_guest_is_notified_once_a_period_and_a_blocked_one_of_each_frame() {
    const PERIOD: Duration = Duration::from_millis(10);
    const FRAMES: usize = 200;
    let place = Place::new();
    let coalescing = format!("[switch.coalescing]\nperiod_us = {}\n", PERIOD.as_micros());
    let lasthop = place.start(&(config("bpf", "lcore-spin") + &coalescing));
    if by(&lasthop).0 != "bpf" {
        return skipped(by(&lasthop).1);
    }
    if let Some(reason) = lasthop.json("status")["switch"]["guest_state"]["no_halts"].as_str() {
        return skipped(reason);
    }
    let thread = Spinning::start("lcore-spin");
    let (mut to, mut from) = (connect(&place, 1), connect(&place, 2));
    wait_until("its thread is found", || {
        threads(&lasthop, "vm1") == Some(1)
    });
    let deferred = |lasthop: &Running| search(lasthop, "vm1").2["deferred"].as_u64();
    assert_eq!(deferred(&lasthop), Some(0));
    // The switch has learned both addresses, and received the threads.
    to.send(&udp(&Flow::v4(1, 2), &[7; 100])).unwrap();
    wait_until("the switch goes by it", || {
        let (begun, calls) = (
            Instant::now(),
            frames_with_calls(&mut from, &mut to, FRAMES),
        );
        let periods = begun.elapsed().as_nanos() / PERIOD.as_nanos();
        // The first four show that it works.
        u128::from(calls) <= periods + 6
    });
    assert!(
        deferred(&lasthop) > Some(0),
        "{:?}",
        search(&lasthop, "vm1")
    );
    thread.sleep();
    for _ in 0..FRAMES {
        frames_with_calls(&mut from, &mut to, 1);
    }
    wait_until("each frame is notified", || {
        frames_with_calls(&mut from, &mut to, FRAMES) == FRAMES as u64
    });
}
