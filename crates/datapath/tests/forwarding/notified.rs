//! Times at which a receiver is notified, by its vCPU states and by the clock, both simulated here.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

use channel::supervision::Coalescing;
use datapath::forward::switch::Switch;
use datapath::ports::calls::PendingCalls;
use datapath::ports::coalescing::{Activity, Processor, Rules, Vcpus};
use datapath::ports::guest::GuestPort;
use port::counters::Counters;
use rustix::event::{EventfdFlags, eventfd};
use testkit::features::{EVENT_IDX, RING_PACKED, VERSION_1};
use testkit::net::{NetHeader, NetOptions, NetPair};

use crate::common::{NoUpcalls, guest};
use crate::{FROM, MEMORY, TO, all_received, frame, one_way};

const PERIOD: u64 = 125_000;
const START: u64 = 1_000_000_000;

#[derive(Debug)]
struct FakeVcpus(AtomicU8);

impl Vcpus for FakeVcpus {
    fn activity(&self, _pair: u16, _pairs: u16) -> Activity {
        [Activity::Running, Activity::Blocked, Activity::Unknown][usize::from(self.0.load(Relaxed))]
    }

    fn processor(&self, _pair: u16, _pairs: u16) -> Option<Processor> {
        None
    }
}

struct Scene {
    switch: Switch<GuestPort>,
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
        switch.add_port(FROM, port);
        let (_ram, to, port) = guest(NetOptions::new(VERSION_1 | features, 256), MEMORY);
        let rules = Rules::of(Some(Coalescing {
            period_us: 125,
            threshold: 64,
            kick_us: 0,
        }));
        let mut port = port.with_rules(rules);
        let call = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
        port.set_call(0, Some(call.try_clone().unwrap().into()));
        let vcpus = Arc::new(FakeVcpus(AtomicU8::new(0)));
        port.set_vcpus(Some(vcpus.clone()));
        switch.add_port(TO, port);
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
        scene.pass(1, START);
        assert!(scene.is_notified());
        scene.is_doing(Activity::Blocked);
        scene.pass(1, START + 1);
        assert!(scene.is_notified());
        scene.is_doing(Activity::Running);
        scene.pass(1, START + 2);
        assert!(!scene.is_notified());
        scene.is_doing(Activity::Blocked);
        assert_eq!(scene.time_passes(START + 3), None);
        assert!(
            scene.is_notified(),
            "it sleeps with a frame of which it was not notified"
        );
    });
}

#[test]
fn a_polling_guest_is_not_deferred() {
    in_all_layouts(|mut scene| {
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
        for now in START + 1..START + 1001 {
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
        scene.pass(1, START);
        assert!(scene.is_notified());
        scene.pass(1, START + 1);
        assert!(!scene.is_notified());
        let port = scene.switch.port_mut(TO).unwrap();
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
