//! Shares of ports, without threads and clocks: the tests set the cost of a batch.

use std::cell::Cell;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use ipc::records::{Answer, Upcall};
use memory::Segment;
use policy::DECISION_MASK;
use port::counters::Counters;
use port::{DropReason, Offload};
use proptest::prelude::*;
use testkit::packets::{Flow, udp};
use wire::flow::FlowKey;
use wire::packet::ParsedHeaders;

use super::*;
use crate::ports::batch::Batch;
use crate::ports::calls::{CallFd, PendingCalls};
use crate::ports::payload::Outgoing;
use crate::ports::port::Accepts;

/// The cost of a batch that its sender pays.
fn of_sender(ticks: u64) -> BatchCost {
    BatchCost {
        all: ticks,
        of_sender: ticks,
        notifying: 0,
        copied: true,
    }
}

/// The cost of a batch that its receivers pay but for one tick.
fn of_receivers(ticks: u64) -> BatchCost {
    BatchCost {
        of_sender: 1,
        ..of_sender(ticks)
    }
}

/// The traffic of a port, for the accounts alone.
#[derive(Clone, Debug)]
struct Guest {
    weight: u16,
    /// Ticks of each of its batches, repeated.
    costs: Vec<u64>,
    /// Rounds without a frame after each batch.
    pause: usize,
    /// Batches so far.
    used: u64,
    batches: usize,
    /// The next round in which it has frames.
    next: usize,
    /// The most rounds in a row with frames and without a turn.
    waited: usize,
    longest: usize,
}

impl Guest {
    fn new(weight: u16, costs: Vec<u64>, pause: usize) -> Self {
        Self {
            weight,
            costs,
            pause,
            used: 0,
            batches: 0,
            next: 0,
            waited: 0,
            longest: 0,
        }
    }

    fn cost(&self) -> u64 {
        self.costs[self.batches % self.costs.len()]
    }
}

/// Plays rounds as the worker does. Returns whether there was a round with frames after which the
/// worker would have slept.
fn play(guests: &mut [Guest], rounds: usize) -> bool {
    let mut fair = FairQueue::default();
    let id = |at: usize| PortId(at as u32);
    for (at, guest) in guests.iter().enumerate() {
        fair.set_weight(id(at), guest.weight);
    }
    let mut given_up = false;
    for round in 0..rounds {
        let (mut served, mut had_frames) = (false, false);
        for (at, guest) in guests.iter_mut().enumerate() {
            let has_frames = guest.next <= round;
            had_frames |= has_frames;
            if !fair.is_eligible(id(at)) {
                guest.waited += usize::from(has_frames);
                guest.longest = guest.longest.max(guest.waited);
                continue;
            }
            if has_frames {
                let cost = guest.cost();
                fair.charge(id(at), of_sender(cost), 1);
                guest.used += cost;
                guest.batches += 1;
                guest.next = round + 1 + guest.pause;
                guest.waited = 0;
                served = true;
            }
        }
        let more = fair.end_round();
        given_up |= had_frames && !served && !more;
    }
    given_up
}

fn costs() -> impl Strategy<Value = Vec<u64>> {
    let kind = prop_oneof![300..3000u64, 3000..30_000u64];
    prop::collection::vec(kind, 1..8)
}

fn greedy() -> impl Strategy<Value = Guest> {
    let weights = prop_oneof![Just(100u16), 10..=1000u16];
    (weights, costs()).prop_map(|(weight, costs)| Guest::new(weight, costs, 0))
}

fn any_guest() -> impl Strategy<Value = Guest> {
    let pauses = prop_oneof![2 => Just(0usize), 1 => 1..300usize];
    (greedy(), pauses).prop_map(|(guest, pause)| Guest { pause, ..guest })
}

proptest! {
    #[test]
    fn shares_become_those_of_the_weights(mut guests in prop::collection::vec(greedy(), 2..6)) {
        play(&mut guests, 60_000);
        let by_weight = |g: &Guest| g.used as f64 / f64::from(g.weight);
        let least = guests.iter().map(by_weight).fold(f64::MAX, f64::min);
        let most = guests.iter().map(by_weight).fold(0.0, f64::max);
        // One percent for the rounding of a weight's price; the rest is a few batches at the end.
        let costliest = |g: &Guest| *g.costs.iter().max().unwrap() as f64 / f64::from(g.weight);
        let dearest = guests.iter().map(costliest);
        let slack = 3.0 * dearest.fold(0.0, f64::max);
        prop_assert!(most - least <= 0.01 * most + slack, "{guests:?}");
    }

    #[test]
    fn no_port_starves_and_no_frame_waits_needlessly(
        mut guests in prop::collection::vec(any_guest(), 1..6),
    ) {
        prop_assert!(!play(&mut guests, 20_000), "the worker would have slept over frames");
        for guest in &guests {
            prop_assert!(guest.batches > 0);
            // The costliest batch at its weight is made up for by the cheapest batches of others.
            prop_assert!(guest.longest < 20_000 / 2, "{guest:?}");
        }
    }

    #[test]
    fn a_port_alone_never_waits(
        mut guest in greedy(),
        before in prop::collection::vec(greedy(), 0..3),
    ) {
        // The earlier batches of others do not matter.
        let mut all = before;
        all.push(guest.clone());
        play(&mut all, 100);
        let rounds = 1000;
        play(std::slice::from_mut(&mut guest), rounds);
        prop_assert_eq!(guest.batches, rounds);
    }

    #[test]
    fn a_port_with_rare_frames_does_not_wait_for_a_flooder(
        cost in 300..3000u64,
        pause in 1..100usize,
    ) {
        let flooder = Guest::new(100, vec![10 * cost], 0);
        let victim = Guest::new(100, vec![cost], pause);
        let mut guests = [flooder, victim];
        play(&mut guests, 10_000);
        prop_assert_eq!(guests[1].longest, 0);
        // The flooding port has all that is left.
        prop_assert!(guests[0].batches * (pause + 2) > 10_000 * pause / 2, "{:?}", guests);
    }
}

#[test]
fn time_without_frames_is_not_saved_up() {
    let mut fair = FairQueue::default();
    let (busy, idle) = (PortId(0), PortId(1));
    for _ in 0..1000 {
        assert!(fair.is_eligible(busy));
        fair.charge(busy, of_sender(1000), 1);
        fair.end_round();
    }
    // Both are greedy now, and neither is ahead.
    let mut turns = [0, 0];
    for _ in 0..100 {
        for (at, port) in [busy, idle].into_iter().enumerate() {
            if fair.is_eligible(port) {
                fair.charge(port, of_sender(1000), 1);
                turns[at] += 1;
            }
        }
        fair.end_round();
    }
    assert!(turns[0] >= 98 && turns[1] <= 101, "{turns:?}");
}

#[test]
fn a_port_that_was_charged_for_the_work_of_others_waits_less_than_a_second() {
    const SECOND: u64 = 1_000_000_000;
    let [charged, other] = [PortId(1), PortId(2)];
    // Both have frames all the time: small ones, or super-frames.
    for cost in [2000, 10_000, 300_000] {
        let mut fair = FairQueue::default();
        fair.set_ticks_per_second(SECOND);
        // Softirqs of foreign traffic took five seconds of a call.
        fair.charge(charged, of_sender(5 * SECOND), 1);
        let (mut now, mut served, mut longest) = (0, 0, 0);
        while now < 8 * SECOND {
            for port in [charged, other] {
                if fair.is_eligible(port) {
                    fair.charge(port, of_sender(cost), 1);
                    now += cost;
                    if port == charged {
                        longest = longest.max(now - served);
                        served = now;
                    }
                }
            }
            fair.end_round();
        }
        longest = longest.max(now - served);
        assert!(longest < SECOND, "{longest} ns with batches of {cost} ns");
    }
}

#[test]
fn a_batch_is_as_long_as_its_frames_allow() {
    let mut fair = FairQueue::default();
    let port = PortId(0);
    let frames = |fair: &mut FairQueue| fair.account(port).limit.frames;
    fair.charge(port, of_receivers(1 << 40), 64);
    assert_eq!(
        frames(&mut fair),
        64,
        "the rate of the counter is not known yet"
    );
    fair.set_ticks_per_second(1_000_000_000);
    // Each frame is flooded to a thousand ports: 50 us.
    for _ in 0..5 {
        let now = frames(&mut fair);
        fair.charge(port, of_receivers(now as u64 * 50_000), now);
    }
    assert_eq!(frames(&mut fair), 1);
    // Each frame takes 1 us: ten of them are enough, and a batch that was not full says nothing.
    for _ in 0..20 {
        let now = frames(&mut fair);
        fair.charge(port, of_receivers(now as u64 * 1000), now);
    }
    let some = frames(&mut fair);
    assert!((5..=10).contains(&some), "{some}");
    fair.charge(port, of_receivers(500), 1);
    assert_eq!(frames(&mut fair), some);
    // Dropped frames are cheap, and the next ones may not be.
    let dropped = BatchCost {
        copied: false,
        ..of_sender(some as u64 * 50)
    };
    fair.charge(port, dropped, some);
    assert_eq!(frames(&mut fair), some);
    // Small frames again.
    for _ in 0..8 {
        let now = frames(&mut fair);
        fair.charge(port, of_receivers(now as u64 * 50), now);
    }
    assert_eq!(frames(&mut fair), 64);
}

#[test]
fn notifications_shorten_no_batch() {
    let mut fair = FairQueue::default();
    let port = PortId(0);
    fair.set_ticks_per_second(1_000_000_000);
    fair.charge(port, of_receivers(300_000), 30);
    assert_eq!(fair.account(port).limit.frames, 1, "an interruption");
    // A frame takes 500 ns, and waking its receiver 20 us.
    for _ in 0..20 {
        let frames = fair.account(port).limit.frames;
        let cost = BatchCost {
            notifying: 20_000,
            ..of_receivers(frames as u64 * 500 + 20_000)
        };
        fair.charge(port, cost, frames);
    }
    let frames = fair.account(port).limit.frames;
    assert!((10..=20).contains(&frames), "{frames}");
}

#[test]
fn notifications_are_measured_apart() {
    /// Ticks between two readings of the counter without other work.
    const READING: u64 = 7;
    let mut scene = Scene::new(2, &[(0, 1, 100, 0)]);
    scene.switch.measure_with(|| {
        work(READING);
        CLOCK.get()
    });
    let serve = |scene: &mut Scene| {
        scene.switch.begin_batches();
        assert!(scene.switch.serve(PortId(0), 0, 0, &mut NoUpcalls));
        scene.switch.last_cost()
    };
    let silent = serve(&mut scene);
    assert_eq!(silent.notifying, 0);
    let event = sys::event::create().expect("an eventfd");
    let receiver = scene.switch.port_mut(PortId(1)).expect("a port");
    receiver.call = Some(Arc::new(CallFd::from(event)));
    let notified = serve(&mut scene);
    assert_eq!(notified.notifying, READING);
    assert_eq!(notified.all, silent.all + READING);
}

thread_local! {
    /// The counter of this test's processor.
    static CLOCK: Cell<u64> = const { Cell::new(0) };
}

fn work(ticks: u64) {
    CLOCK.set(CLOCK.get() + ticks);
}

/// Ticks to take a frame. To copy a byte takes one.
const FRAME: u64 = 100;
/// Frames that wait in a sender's ring at most.
const RING: u64 = 256;

/// A port whose guest sends the same frame as often as its rate allows, and discards what it
/// receives.
#[derive(Default)]
struct Sender {
    frame: Vec<u8>,
    /// Ticks from one frame to the next; 0: it has always frames.
    every: u64,
    /// The time of the next frame.
    next: u64,
    /// Notified of each batch that it receives.
    call: Option<Arc<CallFd>>,
}

impl Port for Sender {
    fn pairs(&self) -> u16 {
        1
    }

    fn accepts(&self) -> Accepts {
        Accepts::ALL
    }

    fn take(&mut self, _pair: u16, batch: &mut Batch) {
        let now = CLOCK.get();
        while !self.frame.is_empty() && !batch.is_full() && self.next <= now {
            work(FRAME);
            // Frames for which its ring has no room are lost.
            self.next = (self.next + self.every).max(now.saturating_sub(RING * self.every));
            let len = self.frame.len() as u32;
            let arena = batch.segments_mut();
            let at = arena.len() as u32;
            arena.push(Segment {
                ptr: self.frame.as_mut_ptr(),
                len,
                gpa: 0,
            });
            // SAFETY: the frame belongs to the port, which outlives every batch and never changes
            // it.
            unsafe { batch.push(at..at + 1, 0, len, Offload::default()) };
        }
    }

    fn leave(&mut self, _pair: u16, _kept: usize) {}

    fn release(&mut self, _pair: u16, _calls: &mut PendingCalls) {}

    fn deliver(&mut self, _pair: u16, frame: &Outgoing<'_>) -> Result<(), DropReason> {
        work(u64::from(frame.len()));
        Ok(())
    }

    fn flush(&mut self, _pair: u16, _now: u64, calls: &mut PendingCalls) -> Option<u64> {
        if let Some(call) = &self.call {
            calls.add(call);
        }
        None
    }

    fn arm(&mut self, _pair: u16, _on: bool) -> bool {
        true
    }
}

struct NoUpcalls;

impl UpcallSink for NoUpcalls {
    fn send(&mut self, _: &Upcall) -> bool {
        false
    }
}

/// A sender of a scenario: its number, its receiver, bytes of payload, ticks between frames.
type Traffic = (u32, u32, usize, u64);

/// A worker without threads, whose counter the work itself advances.
struct Scene {
    switch: Switch<Sender>,
    counters: Counters,
    fair: FairQueue,
    active: ActivePairs,
    /// The other pairs, where there are several.
    others: Others,
}

impl Scene {
    fn new(ports: u32, senders: &[Traffic]) -> Self {
        let counters = Counters::heap();
        let mut switch = Switch::new(counters.clone(), 5);
        switch.measure_with(|| CLOCK.get());
        let (mut fair, mut active) = (FairQueue::default(), ActivePairs::default());
        // A tick is a nanosecond.
        fair.set_ticks_per_second(1_000_000_000);
        for port in 0..ports {
            let traffic = senders.iter().find(|sender| sender.0 == port);
            let sender = traffic.map(|&(_, to, payload, every)| Sender {
                frame: udp(&Flow::v4(port as u8 + 1, to as u8 + 1), &vec![7; payload]),
                every,
                next: CLOCK.get(),
                call: None,
            });
            switch.add_port(PortId(port), sender.unwrap_or_default());
        }
        for &(from, to, payload, _) in senders {
            let frame = udp(&Flow::v4(from as u8 + 1, to as u8 + 1), &vec![7; payload]);
            let key = FlowKey::new(from, &ParsedHeaders::parse(&frame, frame.len()));
            switch.answer(Answer::unicast(&key, &DECISION_MASK, PortId(to)), 0);
            switch.continue_work(0);
            active.add(PortId(from), 0);
        }
        Self {
            switch,
            counters,
            fair,
            active,
            others: Others::Active,
        }
    }

    fn set_weight(&mut self, port: u32, weight: u16) {
        self.fair.set_weight(PortId(port), weight);
        self.switch.set_weight(PortId(port), weight);
    }

    /// Runs for so many ticks. A round without frames is idle time.
    fn run(&mut self, ticks: u64) {
        let end = CLOCK.get() + ticks;
        while CLOCK.get() < end {
            self.switch.begin_batches();
            let (mut at, mut found) = (0, false);
            while let Some(pair) = self.active.get(at) {
                let others = match self.active.len() {
                    1 => Others::Idle,
                    _ => self.others,
                };
                let turn = self
                    .fair
                    .serve(&mut self.switch, pair, others, 0, &mut NoUpcalls);
                found |= turn == Turn::Served;
                if turn == Turn::Waits {
                    self.active.waits(at);
                }
                at += 1;
            }
            let waits = self.fair.end_round();
            if self.switch.end_round(waits) {
                self.active.rotate();
            }
            if !found && !waits {
                work(100);
            }
        }
    }

    /// Returns frames and bytes to a port, and its frames dropped beyond its share.
    fn received(&self, port: u32) -> [u64; 3] {
        let counts = self.counters.read(PortId(port));
        let over = counts.dropped(DropReason::ReceiveShare);
        let all: u64 = counts.drops.iter().sum();
        assert_eq!(all, over, "frames are dropped for no other reason");
        [counts.to_guest.packets, counts.to_guest.bytes, over]
    }

    fn sent(&self, port: u32) -> u64 {
        self.counters.read(PortId(port)).from_guest.packets
    }

    fn copying(&self, port: u32) -> u64 {
        self.counters.read(PortId(port)).ticks.copying
    }
}

/// 100 ms.
const LONG: u64 = 100_000_000;

/// A victim and a third pair: port 0 sends to port 1, port 2 to port 3.
fn victim_and_third(payload: usize, every: u64) -> [Traffic; 2] {
    [(0, 1, payload, every), (2, 3, payload, every)]
}

/// Eight senders that flood port 0, with frames of this payload.
fn flooders(payload: usize) -> impl Iterator<Item = Traffic> {
    (4..12).map(move |port| (port, 0, payload, 0))
}

/// A victim and a third pair, each of which takes a tenth of the worker: alone, which has run, and
/// beside a flood of port 0, which has not.
fn calm_and_flooded(payload: usize, flood: usize) -> (Scene, Scene) {
    let every = 10 * (FRAME + payload as u64);
    let pairs = victim_and_third(payload, every);
    let mut calm = Scene::new(4, &pairs);
    calm.run(LONG);
    let senders: Vec<_> = pairs.into_iter().chain(flooders(flood)).collect();
    (calm, Scene::new(12, &senders))
}

#[test]
fn a_flood_of_one_port_costs_flooders_and_its_receive_share_only() {
    for (payload, flood) in [(100, 1400), (1400, 100), (1400, 1400), (1400, 60_000)] {
        let (calm, mut flooded) = calm_and_flooded(payload, flood);
        flooded.run(LONG);
        for port in [1, 3] {
            let [before, _, none] = calm.received(port);
            let [now, _, over] = flooded.received(port);
            let ratio = now as f64 / before as f64;
            assert!((0.98..1.02).contains(&ratio), "{ratio} at port {port}");
            assert_eq!([none, over], [0, 0]);
        }
    }
}

/// Senders to a port that is not to lose frames pay for the copies beyond its share.
#[test]
fn a_flood_of_a_lossless_port_costs_flooders_only() {
    for (payload, flood) in [(100, 1400), (1400, 100), (1400, 1400)] {
        let (calm, mut flooded) = calm_and_flooded(payload, flood);
        flooded.switch.fabric.shares.set_lossless(PortId(0), true);
        flooded.run(LONG);
        for port in [1, 3] {
            let [before, ..] = calm.received(port);
            let [now, _, over] = flooded.received(port);
            let ratio = now as f64 / before as f64;
            assert!((0.98..1.02).contains(&ratio), "{ratio} at port {port}");
            assert_eq!(over, 0);
        }
        let [_, bytes, over] = flooded.received(0);
        assert!(bytes > 0 && over == 0, "{over} dropped");
    }
}

#[test]
fn greedy_neighbours_of_a_flooded_port_have_what_they_had_beside_floods_of_many() {
    for (payload, flood) in [
        (100, 100),
        (100, 1400),
        (1400, 100),
        (1400, 1400),
        (1400, 60_000),
    ] {
        // Without a common victim: every flooder has a receiver of its own.
        let apart: Vec<_> = victim_and_third(payload, 0)
            .into_iter()
            .chain(
                flooders(flood).map(|(from, _, payload, every)| (from, from + 8, payload, every)),
            )
            .collect();
        let mut apart = Scene::new(20, &apart);
        apart.run(LONG);
        let senders: Vec<_> = victim_and_third(payload, 0)
            .into_iter()
            .chain(flooders(flood))
            .collect();
        let mut flooded = Scene::new(12, &senders);
        flooded.run(LONG);
        for port in [1, 3] {
            let [before, ..] = apart.received(port);
            let [now, ..] = flooded.received(port);
            let ratio = now as f64 / before as f64;
            assert!(ratio > 0.98, "{ratio} at port {port}");
        }
        let [arrived, _, over] = flooded.received(0);
        let sent: u64 = (4..12).map(|port| flooded.sent(port)).sum();
        assert_eq!(
            arrived + over,
            sent,
            "each is counted once, at the receiver"
        );
        // The victim, and the receivers of the two others, have about a third of the copies each.
        let copying = [0, 1, 3].map(|port| flooded.copying(port));
        let share = copying[0] as f64 / copying.iter().sum::<u64>() as f64;
        assert!(over == 0 || share < 0.51, "{copying:?}");
        assert!(over > sent / 2 || share < 0.34, "{copying:?}");
        // It is shared by the flooders.
        let each = (4..12).map(|port| flooded.counters.read(PortId(port)).ticks);
        assert!(each.clone().all(|ticks| ticks.copying == 0));
    }
}

#[test]
fn two_senders_to_one_receiver_have_the_whole_worker() {
    for payload in [100, 1400, 60_000] {
        let bulk = [(0, 1, payload, 0), (2, 1, payload, 0)];
        let mut alone = Scene::new(3, &bulk[..1]);
        alone.run(LONG);
        // Somebody who pings does not want more of the worker than he gets.
        let senders = [bulk[0], bulk[1], (3, 4, 100, 100_000)];
        let mut all = Scene::new(5, &senders);
        all.run(LONG);
        let ([alone, ..], [both, _, over], [pings, ..]) =
            (alone.received(1), all.received(1), all.received(4));
        assert_eq!(over, 0);
        assert!(both as f64 > 0.97 * alone as f64, "{both} after {alone}");
        assert!(pings >= 990, "{pings}");
    }
}

#[test]
fn bulk_beside_bulk_loses_nothing_and_small_frames_are_not_pushed_aside() {
    let mut bulk = Scene::new(4, &[(0, 1, 60_000, 0), (2, 3, 60_000, 0)]);
    bulk.run(LONG);
    assert_eq!([bulk.received(1)[2], bulk.received(3)[2]], [0, 0]);
    let mut mixed = Scene::new(4, &[(0, 1, 60_000, 0), (2, 3, 100, 0)]);
    mixed.run(LONG);
    let time = |scene: &Scene, from, to| {
        let of = |port| scene.counters.read(PortId(port)).ticks;
        of(from).switching + of(to).copying
    };
    // A pair of four ports that all want the worker has half of it.
    assert!(
        time(&mixed, 2, 3) > LONG * 45 / 100,
        "{}",
        time(&mixed, 2, 3)
    );
    let lost = [1, 3].map(|port| mixed.received(port)[2]);
    assert_eq!(lost, [0, 0], "the sender of the bulk waits");
}

#[test]
fn receive_shares_follow_the_weights() {
    // Two floods, of six senders each, and of them one receiver has thrice the weight.
    let senders = (2..14).map(|port| (port, port % 2, 1400, 0));
    let mut scene = Scene::new(14, &senders.collect::<Vec<_>>());
    scene.set_weight(1, 300);
    scene.run(LONG);
    let [light, heavy] = [0, 1].map(|port| scene.copying(port) as f64);
    // A quarter of the copies and an eighth more.
    let share = light / (light + heavy);
    assert!((0.27..0.29).contains(&share), "{share}");
    assert!(scene.received(0)[2] > 0);
}

#[test]
fn flooders_share_what_their_victim_may_receive() {
    let senders: Vec<_> = victim_and_third(1400, 0)
        .into_iter()
        .chain(flooders(1400))
        .collect();
    let mut scene = Scene::new(12, &senders);
    scene.run(LONG);
    let before = scene.received(0)[0];
    // One of them, by what the victim receives while it is silent.
    let Some(port) = scene.switch.port_mut(PortId(4)) else {
        panic!("no port")
    };
    port.frame.clear();
    scene.run(LONG);
    let without_one = scene.received(0)[0] - before;
    let ratio = without_one as f64 / before as f64;
    assert!((0.9..1.1).contains(&ratio), "{ratio}");
}

/// Super-frames of sixteen pairs, 2 us each: the numbers of their notifications and of frames in
/// the first `ticks` ticks.
fn notifications_of_bulk(others: Others, ticks: u64) -> (u64, u64) {
    let senders: Vec<_> = (0..16).map(|port| (port, port + 16, 60_000, 0)).collect();
    let mut scene = Scene::new(32, &senders);
    scene.fair.set_ticks_per_second(30_000_000_000);
    scene.others = others;
    let events = (16..32).map(|port| {
        let event = sys::event::create().expect("an eventfd");
        let call = event.try_clone().expect("a descriptor");
        let port = scene.switch.port_mut(PortId(port)).expect("a port");
        port.call = Some(Arc::new(CallFd::from(call)));
        event
    });
    let events: Vec<_> = events.collect();
    scene.run(ticks);
    let notified = |event: &OwnedFd| {
        let mut count = [0; 8];
        rustix::io::read(event, &mut count).expect("a notification");
        u64::from_ne_bytes(count)
    };
    let frames = (16..32).map(|port| scene.received(port)[0]).sum();
    (events.iter().map(notified).sum(), frames)
}

#[test]
fn super_frames_of_many_pairs_share_notifications() {
    let (calls, frames) = notifications_of_bulk(Others::Active, LONG);
    assert!(
        frames > 1000 && calls * 100 < frames * 30,
        "{calls} for {frames}"
    );
}

#[test]
fn a_super_frame_is_a_batch_beside_a_priority_and_before_its_cost_is_known() {
    let (calls, frames) = notifications_of_bulk(Others::WithPriority, LONG);
    assert!(frames > 1000 && calls == frames, "{calls} for {frames}");
    // A round: no port has a measured batch yet.
    let (calls, frames) = notifications_of_bulk(Others::Active, 1);
    assert_eq!((calls, frames), (16, 16));
}
