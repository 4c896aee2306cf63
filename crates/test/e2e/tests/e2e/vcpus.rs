//! vCPUs of QEMU guests are found, with named threads and without, and their states are used; kicks
//! of a guest that sends steadily are coalesced. Other kernels than this machine's load the BPF
//! programs, and keep the states of a thread of ours.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use e2e::guest::{GuestSpec, boot};
use e2e::lasthop::Lasthop;
use e2e::nested::{Host, Kernel, is_inside};
use e2e::traffic::{IperfRun, serve_iperf};
use e2e::{is_long, machine, paths};
use serde_json::Value;
use testkit::FakeGuest;
use testkit::lasthop::port;
use testkit::packets::{Flow, udp};
use testkit::skip::skipped;
use testkit::wait::{wait_until, within};

/// Time for the search, and for enough traffic.
const LIMIT: Duration = Duration::from_secs(120);
/// Seconds of traffic at once.
const TRAFFIC: u32 = 2;

/// Returns the number of vCPUs that were found at a port, the evidence, and deferred notifications.
fn vcpus(lasthop: &Lasthop, port: &str) -> (u64, String, u64) {
    let port = lasthop.json(&["port", "show", port]);
    let number = |value: &Value| value.as_u64().unwrap_or_default();
    let by = port["vcpu_search"]["by"].as_str().unwrap_or_default();
    let deferred = number(&port["notifications"]["deferred"]);
    (number(&port["vcpus"]), by.to_owned(), deferred)
}

#[test]
fn vcpus_of_qemu_are_found_and_notifications_deferred() {
    let turn = machine();
    // The window of kicks is long, because emulated guests send slowly.
    let states = "[switch]\nname = \"host1\"\nguest_state = \"bpf\"\n\
        [switch.coalescing]\nkick_us = 1000\n";
    let lasthop = Lasthop::start(&format!("{states}{}{}", port("vm1", ""), port("vm2", "")));
    let status = lasthop.json(&["status"]);
    let states = &status["switch"]["guest_state"];
    if states["by"] != "bpf" {
        return skipped(&states["reason"]);
    }
    turn.step("boot a guest with named threads, and one without");
    let named = GuestSpec::at(&lasthop, "vm1", 1);
    let plain = GuestSpec::at(&lasthop, "vm2", 2).without_thread_names();
    let [mut named, mut plain] = boot([named, plain]);
    serve_iperf(&mut named);
    serve_iperf(&mut plain);

    turn.step("traffic until both are found and their notifications are deferred");
    let done = within(LIMIT, || {
        // Each guest receives long frames in turn, which keep its vCPU busy.
        IperfRun::start(&mut named, "10.0.0.2", TRAFFIC, "").wait();
        IperfRun::start(&mut plain, "10.0.0.1", TRAFFIC, "").wait();
        let ports = ["vm1", "vm2"].map(|port| vcpus(&lasthop, port));
        let known = |(found, _, deferred): &(u64, String, u64)| *found > 0 && *deferred > 0;
        ports.iter().all(known).then_some(())
    });
    let ports = ["vm1", "vm2"].map(|port| vcpus(&lasthop, port));
    assert!(done.is_some(), "{ports:?}");

    turn.step("small frames at a steady rate until kicks are coalesced");
    let coalesced = within(LIMIT, || {
        IperfRun::start(&mut named, "10.0.0.2", 1, "-u -l 64 -b 4M").wait();
        let port = lasthop.json(&["port", "show", "vm1"]);
        port["notifications"]["coalesced_kicks"]
            .as_u64()
            .filter(|count| *count > 0)
    });
    assert!(
        coalesced.is_some(),
        "{}",
        lasthop.json(&["port", "show", "vm1"])
    );
    let [(of_named, by_names, _), (of_plain, by_evidence, _)] = ports;
    assert_eq!((of_named, by_names.as_str()), (1, "names"));
    let evidence: &[&str] = match paths::accelerator() {
        "kvm" => &["debugfs", "tracepoints", "activity"],
        _ => &["activity"],
    };
    assert!(
        of_plain == 1 && evidence.contains(&by_evidence.as_str()),
        "{by_evidence}"
    );
    lasthop.stop();
}

/// A thread with a name that spins when it must, and else sleeps.
struct Subject {
    spins: Arc<AtomicBool>,
    orders: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Subject {
    fn start(name: &str) -> Self {
        let spins = Arc::new(AtomicBool::new(false));
        let goes_on = Arc::clone(&spins);
        let (orders, inbox) = channel();
        let thread = std::thread::Builder::new().name(name.to_owned());
        let thread = thread.spawn(move || {
            while inbox.recv().is_ok() {
                while goes_on.load(Ordering::Relaxed) {
                    std::thread::yield_now();
                }
            }
        });
        Self {
            spins,
            orders: Some(orders),
            thread: Some(thread.expect("a thread")),
        }
    }

    fn spin(&self) {
        self.spins.store(true, Ordering::Relaxed);
        let orders = self.orders.as_ref().expect("it has not ended");
        orders.send(()).expect("it has not ended");
    }

    fn sleep(&self) {
        self.spins.store(false, Ordering::Relaxed);
    }
}

impl Drop for Subject {
    fn drop(&mut self) {
        self.sleep();
        self.orders = None;
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// Sends frames from one guest to another, one at a time. Returns how often the kicks of the first
/// one, at "vm1", were suppressed meanwhile.
fn suppressed(lasthop: &Lasthop, from: &mut FakeGuest, to: &mut FakeGuest, frames: u32) -> u64 {
    let count = || {
        let port = lasthop.json(&["port", "show", "vm1"]);
        port["notifications"]["suppressed_kicks"].as_u64()
    };
    let before = count().expect("a number");
    for _ in 0..frames {
        from.send(&udp(&Flow::v4(1, 2), &[7; 100])).expect("room");
        wait_until("the frame arrives", || {
            to.pairs[0].nic.receive().expect("a queue").is_some()
        });
        to.pairs[0].nic.offer();
    }
    count().expect("a number") - before
}

/// Kicks of a guest that only sends are suppressed while its thread is known to run, and never
/// while it is known to sleep. No KVM is needed for that.
#[test]
fn kicks_follow_the_states_of_a_thread() {
    // Frames after which a guest that runs has its kicks suppressed once more, although that did
    // not pay the first time.
    const FRAMES: u32 = 100;
    let turn = machine();
    let config = "[switch]\nname = \"host1\"\nguest_state = \"bpf\"\n\
        [switch.coalescing]\nperiod_us = 10000\n";
    let named = port("vm1", "vcpu_threads = \"lcore-subject\"");
    let lasthop = Lasthop::start(&format!("{config}{named}{}", port("vm2", "")));
    let status = lasthop.json(&["status"]);
    let states = &status["switch"]["guest_state"];
    if states["by"] != "bpf" {
        return skipped(&states["reason"]);
    }
    // The verifier has seen the program of KVM's halts before KVM is missed.
    let no_halts = states["no_halts"].as_str();
    assert!(no_halts.is_none_or(|reason| reason.contains("KVM was not loaded")));
    let subject = Subject::start("lcore-subject");
    let (mut from, mut to) = (lasthop.connect("vm1", 1), lasthop.connect("vm2", 2));
    wait_until("its thread is found", || vcpus(&lasthop, "vm1").0 == 1);
    let mut suppressed = |frames| suppressed(&lasthop, &mut from, &mut to, frames);
    turn.step("it sleeps");
    assert_eq!(suppressed(FRAMES), 0, "it has always slept");
    turn.step("it runs");
    subject.spin();
    wait_until("kicks are suppressed", || suppressed(1) > 0);
    turn.step("it sleeps");
    subject.sleep();
    wait_until("no kick is suppressed", || suppressed(FRAMES) == 0);
    turn.step("it ends");
    drop(subject);
    wait_until("it is left", || vcpus(&lasthop, "vm1").0 == 0);
    lasthop.stop();
}

#[test]
fn other_kernels_keep_states() {
    if is_inside() {
        return;
    }
    let turn = machine();
    for kernel in [Kernel::Debian, Kernel::Newer] {
        if kernel == Kernel::Newer && !(is_long() && kernel.has_image()) {
            continue;
        }
        turn.step("boot");
        let mut host = Host::start(kernel, module_path!());
        turn.step(host.run("uname -r").trim());
        host.test("kicks_follow_the_states_of_a_thread");
    }
}
