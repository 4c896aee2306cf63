//! Shares of ports, without threads and clocks: the tests set the cost of a batch.

use std::cell::Cell;

use channel::records::{Answer, Upcall};
use memory::Segment;
use policy::DECISION_MASK;
use port::counters::Counters;
use port::{DropReason, Offload};
use proptest::prelude::*;
use testkit::packets::{Flow, udp};
use wire::flow::FlowKey;
use wire::packet::Parsed;

use super::*;
use crate::ports::batch::Batch;
use crate::ports::payload::Outgoing;
use crate::ports::port::Accepts;

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
                fair.charge(id(at), cost, 1);
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
        fair.charge(busy, 1000, 1);
        fair.end_round();
    }
    // Both are greedy now, and neither is ahead.
    let mut turns = [0, 0];
    for _ in 0..100 {
        for (at, port) in [busy, idle].into_iter().enumerate() {
            if fair.is_eligible(port) {
                fair.charge(port, 1000, 1);
                turns[at] += 1;
            }
        }
        fair.end_round();
    }
    assert!(turns[0] >= 98 && turns[1] <= 101, "{turns:?}");
}

#[test]
fn a_batch_is_as_long_as_its_frames_allow() {
    let mut fair = FairQueue::default();
    let port = PortId(0);
    let frames = |fair: &mut FairQueue| fair.account(port).frames;
    fair.charge(port, 1 << 40, 64);
    assert_eq!(
        frames(&mut fair),
        64,
        "the rate of the counter is not known yet"
    );
    fair.set_ticks_per_second(1_000_000_000);
    // Each frame is flooded to a thousand ports: 50 us.
    for _ in 0..5 {
        let now = frames(&mut fair);
        fair.charge(port, now as u64 * 50_000, now);
    }
    assert_eq!(frames(&mut fair), 1);
    // Each frame takes 1 us: ten of them are enough, and a batch that was not full says nothing.
    for _ in 0..20 {
        let now = frames(&mut fair);
        fair.charge(port, now as u64 * 1000, now);
    }
    let some = frames(&mut fair);
    assert!((5..=10).contains(&some), "{some}");
    fair.charge(port, 500, 1);
    assert_eq!(frames(&mut fair), some);
    // Small frames again.
    for _ in 0..8 {
        let now = frames(&mut fair);
        fair.charge(port, now as u64 * 50, now);
    }
    assert_eq!(frames(&mut fair), 64);
}

thread_local! {
    /// The counter of this test's processor.
    static CLOCK: Cell<u64> = const { Cell::new(0) };
}

fn work(ticks: u64) {
    CLOCK.set(CLOCK.get() + ticks);
}

/// Ticks to take a frame, and to copy a byte.
const FRAME: u64 = 100;

/// A port whose guest always sends the same frame, or discards what it receives.
#[derive(Default)]
struct Greedy {
    frame: Vec<u8>,
}

impl Port for Greedy {
    fn pairs(&self) -> u16 {
        1
    }

    fn accepts(&self) -> Accepts {
        Accepts::ALL
    }

    fn take(&mut self, _pair: u16, batch: &mut Batch) {
        while !self.frame.is_empty() && !batch.is_full() {
            work(FRAME);
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

    fn release(&mut self, _pair: u16) {}

    fn deliver(&mut self, _pair: u16, frame: &Outgoing<'_>) -> Result<(), DropReason> {
        work(u64::from(frame.len()));
        Ok(())
    }

    fn flush(&mut self, _pair: u16, _now: u64) -> Option<u64> {
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

/// Runs rounds in which port 0 floods port 1 with TSO frames, and port 2 sends small frames to port
/// 3. Returns the costs and results of the senders: ticks of switching, of copying, and bytes.
fn flooder_and_victim(weights: [u16; 2], rounds: usize) -> [[u64; 3]; 2] {
    let counters = Counters::heap();
    let mut switch = Switch::new(counters.clone(), 5);
    switch.measure_with(|| CLOCK.get());
    let (mut fair, mut active) = (FairQueue::default(), ActivePairs::default());
    for (at, payload) in [(0u32, 64_000), (2, 100)] {
        let frame = udp(&Flow::v4(at as u8 + 1, at as u8 + 2), &vec![7; payload]);
        let key = FlowKey::new(at, &Parsed::parse(&frame, frame.len()));
        switch.add_port(PortId(at), Greedy { frame });
        switch.add_port(PortId(at + 1), Greedy::default());
        let port = PortId(at + 1);
        let answer = Answer::unicast(&key, &DECISION_MASK, port);
        switch.answer(answer, 0);
        switch.continue_work(0);
        fair.set_weight(PortId(at), weights[at as usize / 2]);
        active.add(PortId(at), 0);
    }
    for _ in 0..rounds {
        switch.begin_batches();
        let mut at = 0;
        while let Some(pair) = active.get(at) {
            if fair.serve(&mut switch, pair, false, 0, &mut NoUpcalls) == Turn::Waits {
                active.waits(at);
            }
            at += 1;
        }
        fair.end_round();
    }
    [0, 2].map(|at| {
        let (from, to) = (counters.read(PortId(at)), counters.read(PortId(at + 1)));
        assert_eq!((from.ticks.copying, to.ticks.switching), (0, 0));
        assert_eq!(from.from_guest, to.to_guest, "nothing is lost");
        [from.ticks.switching, to.ticks.copying, to.to_guest.bytes]
    })
}

#[test]
fn a_flooder_and_its_victim_share_by_weight() {
    for weights in [[100, 100], [100, 300], [1000, 100]] {
        let [flooder, victim] = flooder_and_victim(weights, 50_000);
        let cost = |[switching, copying, _]: [u64; 3]| (switching + copying) as f64;
        let ratio = cost(flooder) / cost(victim);
        let desired = f64::from(weights[0]) / f64::from(weights[1]);
        assert!(
            (0.97..1.03).contains(&(ratio / desired)),
            "{ratio} for {weights:?}"
        );
        // Each port was charged for its own frames only: a tick a byte.
        for [_, copying, bytes] in [flooder, victim] {
            assert_eq!(copying, bytes);
        }
    }
}
