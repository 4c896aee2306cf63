//! Times at which a receiver is notified, by its vCPU states and by the clock, both simulated here.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};

use datapath::forward::switch::Switch;
use datapath::ports::attached::AttachedPort;
use datapath::ports::calls::PendingCalls;
use datapath::ports::coalescing::{Activity, Processor, Rules, Vcpus};
use ipc::supervision::Coalescing;
use port::counters::Counters;
use rustix::event::{EventfdFlags, eventfd};
use testkit::features::{EVENT_IDX, RING_PACKED, VERSION_1};
use testkit::net::{NetHeader, NetOptions, NetPair};

use crate::common::{NoUpcalls, guest};
use crate::forwarding::{FROM, MEMORY, TO, all_received, frame, one_way};

const PERIOD: u64 = 125_000;
const START: u64 = 1_000_000_000;

/// Halts of a guest that are not counted.
const UNKNOWN: u64 = u64::MAX;

/// The state of a guest's vCPUs, and the number of their halts.
#[derive(Debug)]
struct FakeVcpus(AtomicU8, AtomicU64);

impl Vcpus for FakeVcpus {
    fn activity(&self, _pair: u16, _pairs: u16) -> Activity {
        [Activity::Running, Activity::Blocked, Activity::Unknown][usize::from(self.0.load(Relaxed))]
    }

    fn halts(&self, _pair: u16, _pairs: u16) -> Option<u64> {
        Some(self.1.load(Relaxed)).filter(|halts| *halts != UNKNOWN)
    }

    fn processor(&self, _pair: u16, _pairs: u16) -> Option<Processor> {
        None
    }
}

struct Scene {
    switch: Switch<AttachedPort>,
    from: NetPair,
    to: NetPair,
    call: OwnedFd,
    vcpus: Arc<FakeVcpus>,
    sent: usize,
}

impl Scene {
    fn new(features: u64) -> Self {
        let mut switch = one_way(Counters::heap());
        let (_ram, from, port) = guest(NetOptions::new(VERSION_1 | features, 256), MEMORY);
        switch.add_port(FROM, port.into());
        let (_ram, to, port) = guest(NetOptions::new(VERSION_1 | features, 256), MEMORY);
        let rules = Rules::of(Some(Coalescing {
            period_us: 125,
            threshold: 64,
            kick_us: 0,
        }));
        let mut port = port.with_rules(rules);
        let call = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
        port.set_call(0, Some(call.try_clone().unwrap().into()));
        let vcpus = Arc::new(FakeVcpus(AtomicU8::new(0), AtomicU64::new(0)));
        port.set_vcpus(Some(vcpus.clone()));
        switch.add_port(TO, port.into());
        let mut scene = Self {
            switch,
            from,
            to,
            call,
            vcpus,
            sent: 0,
        };
        assert!(scene.is_notified(), "of its call descriptor");
        scene
    }

    fn is_doing(&self, activity: Activity) {
        let all = [Activity::Running, Activity::Blocked, Activity::Unknown];
        let at = all.iter().position(|one| *one == activity).unwrap();
        self.vcpus.0.store(at as u8, Relaxed);
    }

    /// A halt ends, as KVM counts it.
    fn wakes(&self) {
        self.vcpus.1.fetch_add(1, Relaxed);
    }

    /// Sends notifications that find the guest at work, the last a long time before `now`.
    fn works_before(&mut self, now: u64) {
        self.is_doing(Activity::Running);
        for n in (1..=4).rev() {
            self.pass(1, now - n * 2 * PERIOD);
            assert!(self.is_notified());
        }
    }

    /// Returns how many deferrals the guest has slept through.
    fn slept_through(&mut self) -> u64 {
        let port = self.switch.guest_mut(TO).unwrap();
        port.counts().iter().map(|(_, of)| of.slept_through).sum()
    }

    /// Forwards so many frames at this time. The receiver has them at once, but does not poll.
    fn pass(&mut self, frames: usize, now: u64) {
        self.switch.set_clock(now);
        for _ in 0..frames {
            let (sent, _) = frame(self.sent, 60, false);
            assert!(self.from.stage(&sent, &NetHeader::default()).unwrap());
            self.sent += 1;
        }
        self.from.tx.publish();
        while self.switch.serve(FROM, 0, 0, &mut NoUpcalls) {}
        self.from.reclaim().unwrap();
        assert!(usize::from(self.to.rx.used_waiting()) >= frames);
    }

    /// Sends the notifications that are due. Returns the time of the next one.
    fn time_passes(&mut self, now: u64) -> Option<u64> {
        self.switch.set_clock(now);
        self.switch.flush_deferred()
    }

    /// Returns whether the receiver was notified since the last call. If so, it takes all frames
    /// and requests the next notification.
    fn is_notified(&mut self) -> bool {
        let notified = rustix::io::read(&self.call, &mut [0; 8]).is_ok();
        if notified {
            all_received(&mut self.to);
            self.to.offer();
            self.to.rx.set_notifications(true);
        }
        notified
    }
}

fn in_all_layouts(test: impl Fn(Scene)) {
    for features in [0, EVENT_IDX, RING_PACKED, RING_PACKED | EVENT_IDX] {
        test(Scene::new(features));
    }
}

#[test]
fn one_that_runs_is_notified_once_a_period() {
    in_all_layouts(|mut scene| {
        scene.works_before(START);
        scene.pass(1, START);
        assert!(scene.is_notified(), "the first after silence");
        assert_eq!(scene.time_passes(START), None);
        for n in 1..10 {
            scene.pass(1, START + n * 10_000);
            assert!(!scene.is_notified());
            let due = scene.time_passes(START + n * 10_000);
            assert_eq!(due, Some(START + PERIOD));
        }
        assert_eq!(scene.time_passes(START + PERIOD), None);
        assert!(scene.is_notified(), "of all of them");
        scene.pass(1, START + PERIOD + 1);
        assert!(
            !scene.is_notified(),
            "a period from the last notification on"
        );
        assert_eq!(
            scene.time_passes(START + PERIOD + 1),
            Some(START + 2 * PERIOD)
        );
    });
}

#[test]
fn one_that_blocks_is_notified_at_once() {
    in_all_layouts(|mut scene| {
        scene.works_before(START);
        scene.pass(1, START);
        assert!(scene.is_notified());
        scene.is_doing(Activity::Blocked);
        scene.pass(1, START + 1);
        assert!(scene.is_notified());
        let later = 2 * START;
        scene.works_before(later);
        scene.pass(2, later);
        assert!(scene.is_notified());
        scene.pass(1, later + 2);
        assert!(!scene.is_notified());
        scene.is_doing(Activity::Blocked);
        assert_eq!(scene.time_passes(later + 3), None);
        assert!(
            scene.is_notified(),
            "it sleeps with a frame of which it was not notified"
        );
    });
}

#[test]
fn a_polling_guest_is_not_deferred() {
    in_all_layouts(|mut scene| {
        scene.works_before(START);
        scene.pass(1, START);
        assert!(scene.is_notified());
        scene.to.rx.set_notifications(false);
        // Of a packed queue, or of a split one without the event index, that is a flag; with it, it
        // is an index long past.
        scene.pass(1, START + 1);
        assert!(!scene.is_notified());
        assert_eq!(
            scene.time_passes(START + 1),
            None,
            "no timer, and no block event"
        );
    });
}

#[test]
fn deferral_ends_for_a_guest_that_sleeps_whenever_it_is_deferred() {
    in_all_layouts(|mut scene| {
        scene.pass(1, START);
        assert!(scene.is_notified());
        let mut put_off = 0;
        for now in (1..1001).map(|n| START + n * 10_000) {
            scene.is_doing(Activity::Running);
            scene.pass(1, now);
            if !scene.is_notified() {
                put_off += 1;
                scene.is_doing(Activity::Blocked);
                assert_eq!(scene.time_passes(now), None);
                assert!(scene.is_notified());
            }
        }
        assert!((1..12).contains(&put_off), "{put_off}");
    });
}

#[test]
fn without_vcpu_states_the_driver_flags_decide() {
    in_all_layouts(|mut scene| {
        scene.is_doing(Activity::Unknown);
        for now in START..START + 5 {
            scene.pass(1, now);
            assert!(scene.is_notified());
        }
    });
}

#[test]
fn many_frames_do_not_wait() {
    in_all_layouts(|mut scene| {
        scene.works_before(START);
        scene.pass(1, START);
        assert!(scene.is_notified());
        scene.pass(63, START + 1);
        assert!(!scene.is_notified());
        scene.pass(1, START + 2);
        assert!(scene.is_notified());
        assert_eq!(scene.time_passes(START + PERIOD), None);
        assert!(!scene.is_notified());
    });
}

#[test]
fn a_deferred_notification_is_sent_when_the_queue_ends() {
    in_all_layouts(|mut scene| {
        scene.works_before(START);
        scene.pass(1, START);
        assert!(scene.is_notified());
        scene.pass(1, START + 1);
        assert!(!scene.is_notified());
        let port = scene.switch.guest_mut(TO).unwrap();
        let mut queue = port.stop(0).unwrap();
        queue.with(|queue| queue.end(&mut PendingCalls::default()));
        assert!(scene.is_notified());
        assert_eq!(scene.time_passes(START + PERIOD), None);
    });
}

/// Another process serves the queues next, or this one again.
#[test]
fn deferred_notifications_are_sent_once_before_a_hand_over() {
    in_all_layouts(|mut scene| {
        scene.works_before(START);
        scene.pass(1, START);
        assert!(scene.is_notified());
        scene.switch.end_deferrals();
        assert!(!scene.is_notified(), "none is deferred");
        scene.pass(2, START + 1);
        assert!(!scene.is_notified());
        scene.switch.end_deferrals();
        assert!(scene.is_notified());
        assert_eq!(scene.time_passes(START + PERIOD), None);
        assert!(!scene.is_notified(), "and not once more");
        scene.pass(1, START + 2 * PERIOD);
        assert!(scene.is_notified(), "it continues as before");
    });
}

/// KVM polls in the place of a vCPU that has halted: to the scheduler it runs all the time.
#[test]
fn one_that_halts_is_notified_at_once_although_it_seems_to_run() {
    for gap in [1_000, 20_000, 60_000, 124_000, 200_000] {
        in_all_layouts(|mut scene| {
            for n in 0..1000 {
                scene.pass(1, START + n * gap);
                assert!(scene.is_notified(), "frame {n}");
                scene.wakes();
            }
            assert_eq!(scene.slept_through(), 0);
        });
    }
}

/// Interrupts take their time: frames come before the first one has woken the guest.
#[test]
fn frames_that_come_while_an_interrupt_is_on_its_way_are_notified_at_once() {
    in_all_layouts(|mut scene| {
        for burst in 0..100 {
            for n in 0..10 {
                scene.pass(1, START + burst * 100_000 + n * 5_000);
                assert!(scene.is_notified());
            }
            scene.wakes();
        }
    });
}

#[test]
fn one_that_halts_after_long_work_waits_once() {
    in_all_layouts(|mut scene| {
        scene.works_before(START);
        scene.pass(1, START);
        assert!(scene.is_notified());
        // Now it halts, which nobody sees.
        scene.pass(1, START + 10_000);
        assert!(!scene.is_notified());
        assert_eq!(scene.time_passes(START + PERIOD), None);
        assert!(scene.is_notified());
        scene.wakes();
        for n in 1..100 {
            scene.pass(1, START + PERIOD + n * 20_000);
            assert!(scene.is_notified());
            scene.wakes();
        }
        assert_eq!(scene.slept_through(), 1);
    });
}

#[test]
fn a_guest_that_works_for_a_while_is_known_to_work() {
    in_all_layouts(|mut scene| {
        let mut notified = |until_us: usize| {
            let mut notified = 0;
            while scene.sent < until_us / 10 {
                let now = START + scene.sent as u64 * 10_000;
                scene.time_passes(now);
                notified += u32::from(scene.is_notified());
                scene.pass(1, now);
                notified += u32::from(scene.is_notified());
            }
            notified
        };
        assert_eq!(notified(800), 80, "nothing is known");
        let in_periods = notified(10_800);
        assert!((75..=81).contains(&in_periods), "{in_periods}");
        assert_eq!(scene.slept_through(), 0);
    });
}

/// A guest that works and halts in turn may be taken for one that works, and that is learned from.
#[test]
fn one_that_halts_soon_after_short_work_is_seldom_deferred() {
    in_all_layouts(|mut scene| {
        for n in 0..10_000u64 {
            let now = START + n * 10_000;
            let halted = n % 200 >= 90;
            if n % 200 == 0 {
                scene.wakes();
            }
            scene.time_passes(now);
            scene.pass(1, now);
            if scene.is_notified() && halted {
                scene.wakes();
            }
        }
        let slept = scene.slept_through();
        assert!((1..40).contains(&slept), "{slept}");
    });
}

#[test]
fn where_halts_are_not_counted_nothing_waits() {
    in_all_layouts(|mut scene| {
        scene.vcpus.1.store(UNKNOWN, Relaxed);
        for n in 0..1000 {
            scene.pass(1, START + n * 10_000);
            assert!(scene.is_notified());
        }
    });
}
