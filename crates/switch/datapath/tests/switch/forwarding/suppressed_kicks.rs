//! Suppressed kicks: a guest that has kicked, and runs, does not have to kick again; its frames are
//! taken when it is about to sleep.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};

use datapath::ports::coalescing::{Activity, Processor, Rules, Vcpus};
use datapath::ports::guest::GuestPort;
use datapath::worker::workers::Workers;
use ipc::supervision::{Coalescing, Poll};
use port::PortId;
use port::counters::Counters;
use rustix::event::{EventfdFlags, eventfd};
use testkit::features::{EVENT_IDX, RING_PACKED, VERSION_1};
use testkit::net::{NetHeader, NetPair};
use testkit::wait::wait_until;

use crate::forwarding::frame;
use crate::forwarding::moving::{SENDERS, TO, attach_as, everything_to_one_port};

/// Longer than any test: the clock has no effect.
const PERIOD_US: u32 = 600_000_000;

#[derive(Debug, Default)]
struct FakeVcpus {
    blocked: AtomicBool,
    /// The guest blocks just before the worker subscribes: there is no block event.
    blocks_first: AtomicBool,
    /// The guest runs on a core that the worker may not use.
    elsewhere: AtomicBool,
    /// KVM polls in its place when it halts.
    polled_for: AtomicBool,
    listened: AtomicU32,
}

impl Vcpus for FakeVcpus {
    fn activity(&self, _pair: u16, _pairs: u16) -> Activity {
        if self.blocked.load(SeqCst) {
            Activity::Blocked
        } else {
            Activity::Running
        }
    }

    fn halts(&self, _pair: u16, _pairs: u16) -> Option<u64> {
        Some(0)
    }

    fn processor(&self, _pair: u16, _pairs: u16) -> Option<Processor> {
        let asleep = self.blocked.load(SeqCst).then_some(1);
        let processor = || Processor {
            core: own_core(),
            asleep,
            polled_for: self.polled_for.load(SeqCst),
        };
        (!self.elsewhere.load(SeqCst)).then(processor)
    }

    fn listen(&self, _pair: u16, _pairs: u16) -> bool {
        if self.blocks_first.load(SeqCst) {
            self.blocked.store(true, SeqCst);
        }
        self.listened.fetch_add(1, SeqCst);
        true
    }
}

/// Returns a core that this process may use.
fn own_core() -> usize {
    let cores = rustix::thread::sched_getaffinity(None).unwrap();
    (0..).find(|core| cores.is_set(*core)).unwrap()
}

/// Stages a frame. Returns whether it requires a kick.
fn send(nic: &mut NetPair) -> bool {
    let (bytes, _) = frame(0, 60, false);
    assert!(nic.send(&bytes, &NetHeader::default()).unwrap());
    nic.tx.needs_kick()
}

/// Takes a frame, if there is one, and offers its buffer again.
pub(crate) fn has_received(nic: &mut NetPair) -> bool {
    let received = nic.receive().unwrap().is_some();
    nic.offer();
    received
}

pub(crate) fn kick(workers: &Workers) {
    workers.first(|w| {
        let guest = w.switch.guest_mut(SENDERS[0]).unwrap();
        let ring = |kick: std::os::fd::BorrowedFd<'_>| rustix::io::write(kick, &1u64.to_ne_bytes());
        guest.with_kick(1, ring).unwrap().unwrap();
    });
}

#[test]
fn a_running_sender_is_served_before_it_sleeps() {
    for features in [0, EVENT_IDX, RING_PACKED | EVENT_IDX] {
        served_before_it_sleeps(VERSION_1 | features);
    }
}

/// Returns a sending and a receiving guest; the vCPU of the one at port `watched` has the state of
/// `vcpus`.
fn scene(
    watched: PortId,
    sender_has: u64,
    vcpus: &Arc<FakeVcpus>,
) -> (Workers, [NetPair; 2], impl Sized) {
    let (workers, notices) = Workers::start(1, Poll::Adaptive, &Counters::heap(), 7).unwrap();
    let rules = Rules::of(Some(Coalescing {
        period_us: PERIOD_US,
        threshold: 64,
        kick_us: 0,
    }));
    let guest = |id: PortId, features| {
        let given = vcpus.clone();
        attach_as(&workers, id, features, move || {
            let mut port = GuestPort::new(None);
            if id == watched {
                port = port.with_rules(rules);
                port.set_vcpus(Some(given.clone()));
            }
            port
        })
    };
    let (to_ram, to) = guest(TO, VERSION_1);
    let (from_ram, from) = guest(SENDERS[0], sender_has);
    everything_to_one_port(&workers);
    (workers, [from, to], (notices, to_ram, from_ram))
}

#[test]
fn a_sender_on_a_core_of_its_own_has_to_kick() {
    let vcpus = Arc::new(FakeVcpus::default());
    vcpus.elsewhere.store(true, SeqCst);
    has_to_kick(&vcpus);
}

#[test]
fn a_sender_for_which_kvm_polls_has_to_kick() {
    let vcpus = Arc::new(FakeVcpus::default());
    vcpus.polled_for.store(true, SeqCst);
    has_to_kick(&vcpus);
}

fn has_to_kick(vcpus: &Arc<FakeVcpus>) {
    let (workers, [mut from, mut to], _kept) = scene(SENDERS[0], VERSION_1, vcpus);
    // Twice: the worker has slept at least once in between.
    for _ in 0..2 {
        wait_until("kicks are requested", || {
            let desired = send(&mut from);
            if desired {
                kick(&workers);
            }
            wait_until("a frame", || has_received(&mut to));
            desired
        });
    }
    assert_eq!(vcpus.listened.load(SeqCst), 0);
}

fn served_before_it_sleeps(features: u64) {
    let vcpus = Arc::new(FakeVcpus::default());
    let (workers, [mut from, mut to], _kept) = scene(SENDERS[0], features, &vcpus);
    let mut received = || has_received(&mut to);

    // While the worker polls, the sender need not kick.
    wait_until("a frame was kicked for", || {
        let desired = send(&mut from);
        if desired {
            kick(&workers);
        }
        wait_until("a frame", &mut received);
        desired
    });
    wait_until("the worker sleeps", || vcpus.listened.load(SeqCst) > 0);
    assert!(!send(&mut from), "it kicked a moment ago");
    // Wakes the worker.
    workers.first(|_| ());
    workers.first(|_| ());
    assert!(!received(), "its time is not up, and it runs");

    vcpus.blocked.store(true, SeqCst);
    workers.first(|_| ());
    wait_until("it sleeps, and a frame lay there", &mut received);
    wait_until("kicks are requested again", || {
        let desired = send(&mut from);
        wait_until("looked for or kicked for", || {
            if desired {
                kick(&workers);
            }
            received()
        });
        desired
    });
}

#[test]
fn a_guest_that_was_sent_something_need_not_kick_for_its_reply() {
    let vcpus = Arc::new(FakeVcpus::default());
    let (workers, [mut from, mut to], _kept) = scene(TO, VERSION_1, &vcpus);
    workers.first(|worker| worker.switch.remember_served());
    send(&mut from);
    kick(&workers);
    wait_until("a frame", || has_received(&mut to));
    wait_until("the worker sleeps", || vcpus.listened.load(SeqCst) > 0);
    workers.first(|_| ());
    assert!(
        !send(&mut to),
        "it runs, and a block event wakes the worker"
    );
    workers.first(|_| ());
    workers.first(|_| ());
    assert_eq!(to.reclaim().unwrap(), 0, "its time is not up, and it runs");
    vcpus.blocked.store(true, SeqCst);
    workers.first(|_| ());
    wait_until("it sleeps, and its answer is taken", || {
        to.reclaim().unwrap() == 1
    });
}

#[test]
fn a_receiver_that_blocks_before_the_subscription_is_notified() {
    let vcpus = Arc::new(FakeVcpus::default());
    let (workers, [mut from, mut to], _kept) = scene(TO, VERSION_1, &vcpus);
    let call = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
    let ours = call.try_clone().unwrap();
    workers.on_port(TO, move |port| port.set_call(0, Some(call.into())));
    let is_notified = || rustix::io::read(&ours, &mut [0; 8]).is_ok();
    wait_until("of the descriptor", is_notified);
    let mut pass = || {
        send(&mut from);
        kick(&workers);
        wait_until("a frame", || has_received(&mut to));
    };
    pass();
    wait_until("the first notification", is_notified);
    vcpus.blocks_first.store(true, SeqCst);
    pass();
    wait_until("a notification after the missed block event", is_notified);
}
