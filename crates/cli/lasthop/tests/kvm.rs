//! Guests of real KVM: they are known to idle although KVM polls in their threads, and to work.
//! Skipped where KVM does not run even a few instructions of real mode, or the rights are missing.

use std::time::Duration;

use testkit::kvm::{KvmError, KvmGuest, KvmGuestConfig, Task};
use testkit::lasthop::{Place, Running, port};
use testkit::packets::{Flow, udp};
use testkit::skip::skipped;
use testkit::stop::Stop;
use testkit::turn::{Turn, machine};
use testkit::wait::{LIMIT, wait_until};
use testkit::{FakeGuest, GuestConfig};

/// KVM's default on every host, in nanoseconds.
const POLLS: Option<u32> = Some(200_000);

/// Name of a thread that only calls itself a vCPU, of the other front end.
const LIAR: &str = "liar";

/// A guest that halts between interrupts.
fn idle() -> KvmGuestConfig {
    KvmGuestConfig {
        halt_poll_ns: POLLS,
        ..KvmGuestConfig::default()
    }
}

/// A running Lasthop with the package's defaults, and a front end that sends to the guest.
struct Scene {
    lasthop: Running,
    other: FakeGuest,
    place: Place,
    _turn: Turn,
}

impl Scene {
    /// Returns `None` where halts of vCPUs are not seen.
    fn start() -> Option<Self> {
        // All guests are of this process, whose threads are searched for vCPUs. They need an idle
        // core.
        let turn = machine();
        let place = Place::new();
        let ports = port("vm1", "") + &port("vm2", &format!("vcpu_threads = \"{LIAR}\""));
        let lasthop = place.start(&format!("[switch]\nname = \"host1\"\n{ports}"));
        let state = lasthop.json("status")["switch"]["guest_state"].clone();
        if state["by"] != "bpf" || !state["no_halts"].is_null() {
            skipped(format!("halts of vCPUs are not seen: {state}"));
            return None;
        }
        let socket = place.run_dir().join("vm2.sock");
        let other = FakeGuest::connect(&socket, GuestConfig::default().guest(2)).unwrap();
        Some(Self {
            lasthop,
            other,
            place,
            _turn: turn,
        })
    }

    /// As [`Scene::start`], with a guest.
    fn with(config: KvmGuestConfig) -> Option<(Self, KvmGuest)> {
        let mut scene = Self::start()?;
        let guest = scene.guest(config)?;
        Some((scene, guest))
    }

    /// Starts a guest; its vCPUs are known.
    fn guest(&mut self, config: KvmGuestConfig) -> Option<KvmGuest> {
        let vcpus = config.vcpus as u64;
        let socket = self.place.run_dir().join("vm1.sock");
        match KvmGuest::start(&socket, config) {
            Ok(guest) => {
                wait_until("its vCPUs are found", || {
                    // A vCPU that does nothing passes no tracepoint.
                    self.send();
                    self.port()["vcpus"].as_u64() == Some(vcpus)
                });
                let _ = guest.answered().take();
                Some(guest)
            }
            Err(KvmError::Unavailable(error)) => {
                skipped(format!("KVM does not work here: {error}"));
                None
            }
            Err(error) => panic!("{error}"),
        }
    }

    fn port(&self) -> serde_json::Value {
        let output = self.lasthop.cli("port show vm1 --json");
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// Returns the deferred interrupts of the guest, and those that it slept through.
    fn deferrals(&self) -> [u64; 2] {
        let notifications = &self.port()["notifications"];
        ["deferred", "slept_through"].map(|name| notifications[name].as_u64().unwrap())
    }

    fn send(&mut self) {
        self.other.send(&udp(&Flow::v4(2, 1), &[7; 18])).unwrap();
    }

    /// Sends so many frames, each after the guest has answered the one before.
    fn ask(&mut self, guest: &KvmGuest, frames: u64) {
        for frame in 0..frames {
            // Now and then the guest has halted, and KVM polls.
            std::thread::sleep(Duration::from_micros(frame % 4 * 20));
            self.send();
            assert!(guest.answered().wait(LIMIT) > 0, "an answer");
        }
    }

    /// Checks that interrupts of an idle guest are not deferred.
    fn interrupts_at_once(&mut self, guest: &KvmGuest) {
        const FRAMES: u64 = 2000;
        let [before, _] = self.deferrals();
        self.ask(guest, FRAMES);
        let [deferred, slept_through] = self.deferrals();
        let deferred = deferred.saturating_sub(before);
        assert!(
            deferred * 100 <= FRAMES,
            "{deferred} of {FRAMES} interrupts were deferred, {slept_through} slept through"
        );
    }
}

#[test]
fn an_idle_guest_is_interrupted_at_once_while_kvm_polls_for_it() {
    let Some(mut scene) = Scene::start() else {
        return;
    };
    for vcpus in [1, 2] {
        let config = KvmGuestConfig { vcpus, ..idle() };
        let Some(guest) = scene.guest(config) else {
            return;
        };
        assert_eq!(scene.port()["vcpu_search"]["by"], "names");
        scene.interrupts_at_once(&guest);
    }
}

#[test]
fn so_is_one_whose_threads_have_no_names() {
    let Some((mut scene, guest)) = Scene::with(KvmGuestConfig {
        thread_name: "anything".to_owned(),
        ..idle()
    }) else {
        return;
    };
    let by = scene.port()["vcpu_search"]["by"].clone();
    assert!(by == "debugfs" || by == "tracepoints", "{by}");
    scene.interrupts_at_once(&guest);
}

/// A VMM may name its threads as it likes, and let them compute: that is its own loss.
#[test]
fn so_is_one_beside_a_vmm_whose_thread_only_calls_itself_a_vcpu() {
    let Some((mut scene, guest)) = Scene::with(idle()) else {
        return;
    };
    let ends = Stop::new();
    std::thread::scope(|scope| {
        let liar = std::thread::Builder::new().name(LIAR.to_owned());
        let computes = || {
            while !ends.is_set() {
                std::thread::yield_now();
            }
        };
        liar.spawn_scoped(scope, computes).unwrap();
        let _end = ends.at_end();
        scene
            .lasthop
            .prints(&format!("port set vm2 --vcpu-threads {LIAR}*"));
        wait_until("the other front end's is found, too", || {
            let output = scene.lasthop.cli("port show vm2 --json");
            let port: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
            port["vcpus"].as_u64() == Some(1)
        });
        scene.interrupts_at_once(&guest);
        // The guest's frames reach the other one all the same.
        guest.order();
        assert!(scene.other.recv(LIMIT).unwrap().is_some());
    });
}

#[test]
fn a_guest_that_works_is_interrupted_once_for_several_frames() {
    const FRAMES: u32 = 2000;
    let Some((mut scene, guest)) = Scene::with(KvmGuestConfig {
        task: Task::Work,
        answers: false,
        ..idle()
    }) else {
        return;
    };
    wait_until("it is interrupted for every second frame at most", || {
        let before = guest.interrupts();
        for _ in 0..FRAMES {
            std::thread::sleep(Duration::from_micros(20));
            scene.send();
        }
        guest.interrupts().wrapping_sub(before) <= FRAMES / 2
    });
    let [deferred, slept_through] = scene.deferrals();
    assert!(deferred > 0);
    assert!(
        slept_through * 10 <= deferred,
        "it never slept: {slept_through} of {deferred}"
    );
}

#[test]
fn an_idle_guest_is_known_to_the_switch_after_one_that_was_killed() {
    let Some((mut scene, guest)) = Scene::with(idle()) else {
        return;
    };
    scene.interrupts_at_once(&guest);
    scene.lasthop.kill_and_wait("switch");
    wait_until("the guest answers again", || {
        scene.send();
        guest.answered().wait(Duration::from_millis(100)) > 0
    });
    // Answers to the frames before.
    while guest.answered().wait(Duration::from_millis(100)) > 0 {}
    scene.interrupts_at_once(&guest);
    scene.lasthop.prints("upgrade");
    scene.interrupts_at_once(&guest);
}

#[test]
fn a_vcpu_on_another_thread_and_another_vmm_are_idle_guests_again() {
    let Some((mut scene, mut guest)) = Scene::with(idle()) else {
        return;
    };
    scene.interrupts_at_once(&guest);
    guest.replace_vcpu(0).unwrap();
    scene.interrupts_at_once(&guest);
    drop(guest);
    let Some(guest) = scene.guest(idle()) else {
        return;
    };
    scene.interrupts_at_once(&guest);
}
