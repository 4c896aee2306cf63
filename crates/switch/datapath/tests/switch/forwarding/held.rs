//! Queue pairs that wait for their turn at a scheduled port: workers look at them again by
//! themselves, whatever the turn depends on, and a pair that is gone leaves nothing there.
//!
//! All frames are in the queues before these start, so that no kick wakes a worker.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use datapath::forward::egress::Output;
use datapath::ports::guest::{GuestPort, GuestQueue};
use datapath::worker::workers::Workers;
use ipc::egress::{Beyond, EgressUse, FullAction, MAX_CLASSES, OutputConfig, Rates, Sender};
use ipc::supervision::Poll;
use port::counters::Counters;
use port::{DropReason, PortId, REASONS};
use testkit::features::{RING_PACKED, VERSION_1};
use testkit::guest_ram::{GuestRam, RegionSpec};
use testkit::net::{NetHeader, NetOptions, NetPair};
use wire::virtio::features::Features;

use crate::common::{queue, queue_at};
use crate::forwarding::moving::{LIMIT, SENDERS, TO, everything_to_one_port, frame};

const FEATURES: [u64; 2] = [VERSION_1, VERSION_1 | RING_PACKED];
const LEN: usize = 1400;
const FRAMES: usize = 120;
/// A rate at which both senders wait, but not for long, bits a second.
const RATE: u64 = 20_000_000;
/// A rate at which a test can do something while both wait.
const SLOW: u64 = 4_000_000;
/// A rate at which nothing goes that has to wait.
const STILL: u64 = 1_000;

fn long_frame(sender: usize, n: usize) -> Vec<u8> {
    let mut frame = frame(sender, n);
    frame.resize(LEN, n as u8);
    frame
}

/// Returns an output with these priorities of the senders, of which a missing one is not scheduled.
fn output(rate: u64, priorities: &[u8], old: Option<&Output>) -> Arc<Output> {
    let sender = |(port, priority): (&PortId, &u8)| Sender {
        port: port.0,
        rates: Rates::usual(),
        priority: *priority,
        group: None,
        beyond: Beyond::Hold,
        classes: Vec::new(),
    };
    let config = OutputConfig {
        rate: Some(rate),
        overhead: 24,
        full: FullAction::Drop,
        room: 0,
        groups: Vec::new(),
        priorities: [0; MAX_CLASSES],
        senders: SENDERS.iter().zip(priorities).map(sender).collect(),
    };
    Arc::new(Output::new(config, old))
}

/// One test at a time: workers that poll take a core each.
static CORES: Mutex<()> = Mutex::new(());

/// Two senders and their receiver.
struct Scene {
    workers: Workers,
    counters: Counters,
    output: Arc<Output>,
    senders: Vec<(GuestRam, NetPair)>,
    receiver: (GuestRam, NetPair),
    /// Frames that have arrived of each sender.
    next: [usize; 2],
    _cores: MutexGuard<'static, ()>,
}

impl Scene {
    /// Starts both senders, each with all of its frames in its queue.
    fn start(poll: Poll, rate: u64, priorities: &[u8]) -> Self {
        let cores = CORES.lock().unwrap_or_else(PoisonError::into_inner);
        let counters = Counters::heap();
        let (workers, notices) = Workers::start(2, poll, &counters, 7).expect("threads");
        // Not read in this test.
        std::mem::forget(notices);
        for port in [SENDERS[0], SENDERS[1], TO] {
            workers.each(move |w| w.switch.add_port(port, GuestPort::new(None).into()));
        }
        everything_to_one_port(&workers);
        // It has a buffer for each frame.
        let (ram, mut nic) = guest(VERSION_1, 256);
        nic.offer();
        let mut scene = Self {
            workers,
            counters,
            output: output(rate, priorities, None),
            senders: Vec::new(),
            receiver: (ram, nic),
            next: [0; 2],
            _cores: cores,
        };
        scene.set_output(Some(Arc::clone(&scene.output)));
        scene.start_queues(TO, &scene.receiver, VERSION_1);
        for (sender, features) in FEATURES.into_iter().enumerate() {
            let (ram, mut nic) = guest(features, 128);
            stage(&mut nic, sender, 0..FRAMES);
            scene.senders.push((ram, nic));
            scene.start_again(sender);
        }
        scene
    }

    fn start_queues(&self, port: PortId, (ram, nic): &(GuestRam, NetPair), features: u64) {
        for (index, driver) in [(0, &nic.rx), (1, &nic.tx)] {
            let queue = queue(ram, driver, features);
            self.start_queue(port, index, queue, features);
        }
    }

    fn start_queue(&self, port: PortId, index: u16, queue: GuestQueue, features: u64) {
        let features = Features::from_bits_truncate(features);
        let started = self.workers.start_queue(port, index, queue, features);
        started.expect("the port is there");
    }

    /// Starts the queues of a sender, as new ones.
    fn start_again(&self, sender: usize) {
        let port = SENDERS[sender];
        self.start_queues(port, &self.senders[sender], FEATURES[sender]);
    }

    fn set_output(&mut self, output: Option<Arc<Output>>) {
        self.workers.each({
            let output = output.clone();
            move |w| w.set_output(TO, output.clone())
        });
        self.output = output.unwrap_or_else(|| Arc::clone(&self.output));
    }

    /// Takes in frames that have arrived: whole, and in the order of their sender.
    fn receive(&mut self) {
        let (_, nic) = &mut self.receiver;
        while let Some(got) = nic.receive().expect("a correct device") {
            let sender = usize::from(got.frame[11]);
            let expected = long_frame(sender, self.next[sender]);
            assert!(got.frame == expected, "{sender}: {}", self.summary());
            self.next[sender] += 1;
        }
        nic.offer();
    }

    /// Frames that arrived, frames that were dropped, and the use of the output.
    fn summary(&self) -> String {
        let ports = [SENDERS[0], SENDERS[1], TO];
        let dropped = ports.map(|port| self.dropped(port));
        let uses = self.output.uses();
        format!("{:?} arrived, {dropped:?} dropped, {uses:?}", self.next)
    }

    fn dropped(&self, port: PortId) -> Vec<(DropReason, u64)> {
        let drops = self.counters.read(port).drops;
        let counted = REASONS.iter().copied().zip(drops);
        counted.filter(|(_, frames)| *frames > 0).collect()
    }

    fn until(&mut self, what: &str, mut holds: impl FnMut(&Self) -> bool) {
        let since = Instant::now();
        while !holds(self) {
            assert!(since.elapsed() < LIMIT, "{what}: {}", self.summary());
            self.receive();
            std::thread::yield_now();
        }
    }

    fn until_all_arrive(&mut self) {
        self.until("all arrive", |scene| scene.next == [FRAMES; 2]);
        for port in [SENDERS[0], SENDERS[1], TO] {
            assert_eq!(self.dropped(port), [], "{}", self.summary());
        }
        // The worker notes it after the frames have arrived.
        self.until("no frame waits", |scene| scene.waiting() == [0; 2]);
    }

    fn use_of(&self, sender: usize) -> Option<EgressUse> {
        let uses = self.output.uses();
        uses.into_iter().find(|of| of.sender == SENDERS[sender])
    }

    /// Bits of the frame of each sender that waits.
    fn waiting(&self) -> [u64; 2] {
        [0, 1].map(|sender| self.use_of(sender).map_or(0, |of| of.waiting_bits))
    }

    fn until_both_wait(&mut self) {
        self.until("both wait", Self::both_wait);
    }

    fn both_wait(&self) -> bool {
        self.waiting().iter().all(|bits| *bits > 0)
    }

    /// Starts both senders, and stops one while both wait. Returns the position at which it stops.
    ///
    /// Starts anew where this thread did not run before all frames had arrived.
    fn stopped(poll: Poll, priorities: &[u8], sender: usize) -> (Self, u32) {
        let since = Instant::now();
        loop {
            let mut scene = Self::start(poll, SLOW, priorities);
            scene.until("both wait, or have sent", |scene| {
                scene.both_wait() || scene.next == [FRAMES; 2]
            });
            let position = scene.stop(sender);
            assert_eq!(scene.waiting()[sender], 0, "{}", scene.summary());
            scene.receive();
            if scene.next[sender] < FRAMES {
                return (scene, position);
            }
            assert!(since.elapsed() < LIMIT, "both wait: {}", scene.summary());
        }
    }

    /// Stops the queues of a sender. Returns the position of the one by which it sends.
    fn stop(&self, sender: usize) -> u32 {
        let port = SENDERS[sender];
        let position = self.workers.stop_queue(port, 1);
        self.workers.stop_queue(port, 0).expect("it ran");
        position.expect("it ran")
    }
}

fn guest(features: u64, queue_size: u16) -> (GuestRam, NetPair) {
    let ram = GuestRam::heap(&[RegionSpec::at(0x10_0000, 24 << 20)]);
    let nic = NetPair::new(&ram, NetOptions::new(features, queue_size));
    (ram, nic)
}

fn stage(nic: &mut NetPair, sender: usize, numbers: std::ops::Range<usize>) {
    for n in numbers {
        let staged = nic.stage(&long_frame(sender, n), &NetHeader::default());
        assert!(staged.expect("a correct device"));
    }
    nic.tx.publish();
}

#[test]
fn the_turn_comes_after_that_of_a_sender_with_a_priority() {
    for poll in [Poll::Always, Poll::Adaptive] {
        let mut scene = Scene::start(poll, RATE, &[7, 0]);
        scene.until_all_arrive();
        let held = [0, 1].map(|sender| scene.use_of(sender).expect("it has sent").held_ns);
        assert!(held.iter().all(|held| *held > 0), "{held:?}");
    }
}

#[test]
fn the_turn_comes_with_other_settings() {
    // Another rate, the second one no sender any more, no schedule.
    for new in [Some(&[0u8, 0][..]), Some(&[0]), None] {
        let mut scene = Scene::start(Poll::Adaptive, STILL, &[0, 0]);
        scene.until_both_wait();
        let former = Arc::clone(&scene.output);
        scene.set_output(new.map(|new| output(RATE, new, Some(&former))));
        scene.until("all arrive", |scene| scene.next == [FRAMES; 2]);
    }
}

/// Moves pairs from worker to worker until all frames have arrived. Returns the number of moves.
fn move_those_that_wait(poll: Poll) -> usize {
    let mut scene = Scene::start(poll, RATE, &[0, 0]);
    let mut moves = 0;
    while scene.next != [FRAMES; 2] {
        scene.until("a sender waits", |scene| {
            scene.waiting() != [0; 2] || scene.next == [FRAMES; 2]
        });
        for sender in SENDERS {
            moves += usize::from(scene.workers.move_pair((sender, 0), moves % 2));
        }
        let before = scene.next;
        scene.until("more arrive", |scene| {
            scene.next != before || scene.next == [FRAMES; 2]
        });
    }
    scene.until_all_arrive();
    moves
}

#[test]
fn a_pair_that_waits_is_looked_at_by_its_new_worker() {
    for poll in [Poll::Always, Poll::Adaptive] {
        let since = Instant::now();
        // A busy machine may leave time for few moves only.
        while move_those_that_wait(poll) <= 10 {
            assert!(since.elapsed() < LIMIT, "few moves each time");
        }
    }
}

#[test]
fn a_sender_that_leaves_before_its_turn_lets_the_others_go_on() {
    for poll in [Poll::Always, Poll::Adaptive] {
        let (mut scene, _) = Scene::stopped(poll, &[7, 0], 0);
        scene.workers.each(|w| w.switch.remove_port(SENDERS[0], 0));
        scene.until("the other's arrive", |scene| scene.next[1] == FRAMES);
        assert!(scene.next[0] < FRAMES, "it had to wait: {:?}", scene.next);
    }
}

#[test]
fn a_pair_that_is_gone_waits_no_longer() {
    let mut scene = Scene::start(Poll::Adaptive, STILL, &[0, 0]);
    scene.until_both_wait();
    scene.stop(1);
    let [other, gone] = scene.waiting();
    assert!(other > 0 && gone == 0, "{other}, {gone}");
    let held = scene.use_of(1).expect("it has sent").held_ns;
    assert!(held > 0, "the time until its end counts");
}

#[test]
fn a_queue_that_comes_back_continues_with_the_frames_that_waited() {
    for sender in [0, 1] {
        // As for a guest that is stopped, or moves: its ring stays as it is.
        let (mut scene, position) = Scene::stopped(Poll::Adaptive, &[0, 0], sender);
        let (ram, nic) = &scene.senders[sender];
        let rest = queue_at(ram, &nic.tx, FEATURES[sender], position);
        scene.start_queue(SENDERS[sender], 1, rest, FEATURES[sender]);
        scene.until_all_arrive();
    }
}

#[test]
fn a_guest_that_starts_again_leaves_nothing_of_the_frames_that_waited() {
    for sender in [0, 1] {
        let (mut scene, _) = Scene::stopped(Poll::Adaptive, &[0, 0], sender);
        scene.until("the other's arrive", |scene| {
            scene.next[1 - sender] == FRAMES
        });
        let arrived = scene.next[sender];
        assert!(arrived < FRAMES, "it had to wait");
        let (_, nic) = &mut scene.senders[sender];
        nic.reset();
        stage(nic, sender, arrived..FRAMES);
        scene.start_again(sender);
        scene.until_all_arrive();
    }
}
