//! Order of flows while everything around them changes: queue pairs move, answers of control are
//! late and come to the workers in any order, senders are held and released. Each flow's frames
//! arrive once, in its order. Only frames beyond a receiver's share of a worker's time may be lost,
//! which is what a machine with few cores does to receivers that several senders want.

use std::collections::BinaryHeap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::forwarding::moving::{LIMIT, attach};
use datapath::forward::egress::Output;
use datapath::forward::limits::PortLimits;
use datapath::worker::workers::Workers;
use ipc::egress::{Beyond, FullAction, MAX_CLASSES, OutputConfig, Rates, Sender, SenderQos};
use ipc::limits::{Limit, Limits, Rate};
use ipc::records::{Answer, StaleFlows};
use ipc::supervision::Poll;
use port::counters::Counters;
use port::{DropReason, PortId, REASONS};
use testkit::features::{RING_PACKED, VERSION_1};
use testkit::guest_ram::GuestRam;
use testkit::net::{NetHeader, NetPair};
use wire::MacAddr;
use wire::flow::{FlowKey, FlowMask};

const WORKERS: u16 = 4;
const GUESTS: usize = 32;
/// Distances to the receivers of each guest's flows.
const FLOWS: [usize; 2] = [1, 7];
/// Frames of a flow that are on their way at most: receivers have buffers for all of their flows.
/// When all of them seem lost, one more is sent: the next one that arrives opens the window.
const WINDOW: u64 = 16;
/// Frames that each flow sends at least; more as long as pairs have not moved often enough, and
/// been refused to.
const FRAMES: u64 = 500;
const MOVES: u64 = 500;
const SEEMS_LOST: Duration = Duration::from_millis(200);

/// Steps of a fixed sequence (xorshift64).
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 33) as usize % end
    }
}

/// A flow: its sender, and which one of [`FLOWS`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Flow {
    from: usize,
    number: usize,
}

impl Flow {
    fn all() -> impl Iterator<Item = Self> {
        (0..GUESTS).flat_map(|from| (0..FLOWS.len()).map(move |number| Self { from, number }))
    }

    fn to(self) -> usize {
        (self.from + FLOWS[self.number]) % GUESTS
    }

    fn frame(self, n: u64) -> Vec<u8> {
        let mut frame = vec![0; 64];
        frame[..6].copy_from_slice(&address(self.to()));
        frame[6..12].copy_from_slice(&address(self.from));
        frame[12..14].copy_from_slice(&[0x88, 0xb5]);
        frame[14..22].copy_from_slice(&n.to_be_bytes());
        frame[22] = self.number as u8;
        frame
    }

    /// Returns the flow and the number of a received frame.
    fn of(frame: &[u8]) -> (Self, u64) {
        let (from, number) = (usize::from(frame[11]), usize::from(frame[22]));
        let n = u64::from_be_bytes(frame[14..22].try_into().expect("8 bytes"));
        (Self { from, number }, n)
    }

    /// Returns control's answer to its upcalls.
    fn answer(self) -> Answer {
        let key = FlowKey::default()
            .with_in_port(self.from as u32)
            .with_dmac(MacAddr(address(self.to())));
        Answer::unicast(
            &key,
            &FlowMask::NONE.with_in_port().with_dmac(),
            port(self.to()),
        )
    }
}

fn port(guest: usize) -> PortId {
    PortId(guest as u32)
}

fn address(guest: usize) -> [u8; 6] {
    [2, 0, 0, 0, 1, guest as u8]
}

/// Control, as far as the workers see it: it has forgotten flows, and answers later.
struct Control {
    random: Random,
    /// Answers to come: when, to which worker, of which flow; the next one first.
    answers: BinaryHeap<std::cmp::Reverse<(Instant, usize, Flow)>>,
}

impl Control {
    /// Answers each worker at a time of its own, up to 20 ms from now.
    fn answer_later(&mut self, worker: usize, flow: Flow) {
        let after = Duration::from_micros(self.random.below(20_000) as u64);
        let at = Instant::now() + after;
        self.answers.push(std::cmp::Reverse((at, worker, flow)));
    }

    fn forget(&mut self, workers: &Workers, guest: usize) {
        let worker = self.random.below(usize::from(WORKERS));
        let stale = Answer::Forget(StaleFlows::Port(port(guest)));
        workers.on(worker, move |w| {
            let now = w.now();
            w.switch.answer(stale, now);
        });
        for flow in Flow::all().filter(|flow| flow.from == guest || flow.to() == guest) {
            self.answer_later(worker, flow);
        }
    }

    fn answer_due(&mut self, workers: &Workers) {
        while let Some(std::cmp::Reverse((at, worker, flow))) = self.answers.peek().copied()
            && at <= Instant::now()
        {
            self.answers.pop();
            workers.on(worker, move |w| {
                let now = w.now();
                w.switch.answer(flow.answer(), now);
            });
        }
    }
}

/// A limit that holds a guest's frames back in its queue.
fn limits() -> Option<Arc<PortLimits>> {
    let packets = Some(Rate {
        per_second: 20_000,
        burst: 10,
    });
    let from_guest = Limit {
        packets,
        ..Limit::default()
    };
    PortLimits::new(Limits {
        from_guest,
        ..Limits::default()
    })
}

/// An output slow enough that its senders wait.
fn output() -> Arc<Output> {
    let sender = |from: usize| Sender {
        port: from as u32,
        rates: Rates::usual(),
        priority: 0,
        group: None,
        beyond: Beyond::Hold,
        classes: Vec::new(),
    };
    let config = OutputConfig {
        rate: Some(20_000_000),
        overhead: 24,
        full: FullAction::Hold,
        room: 0,
        groups: Vec::new(),
        priorities: [0; MAX_CLASSES],
        senders: (0..GUESTS).map(sender).collect(),
    };
    Arc::new(Output::new(config, None))
}

/// Holds a guest's frames back or releases them, schedules what it receives or no longer, or gives
/// it a priority or none.
fn hold_or_release(workers: &Workers, random: &mut Random) {
    let (guest, on) = (random.below(GUESTS), random.below(2) == 0);
    match random.below(3) {
        0 => {
            let limits = on.then(limits).flatten();
            workers.each(move |w| w.set_limits(port(guest), limits.clone()));
        }
        1 => {
            let output = on.then(output);
            workers.each(move |w| w.set_output(port(guest), output.clone()));
        }
        _ => {
            let qos = SenderQos {
                priority: 6 * u8::from(on),
                ..SenderQos::default()
            };
            workers.each(move |w| w.set_qos(port(guest), qos.clone()));
        }
    }
}

/// Progress of a flow.
#[derive(Clone, Copy, Debug)]
struct Progress {
    /// The next numbers to send and to receive.
    send: u64,
    receive: u64,
    since: Instant,
}

impl Progress {
    fn may_send(&self, ends: bool) -> bool {
        let open = self.send - self.receive < WINDOW || self.since.elapsed() > SEEMS_LOST;
        open && (self.send < FRAMES || !ends)
    }
}

/// The guests, and how far their flows are.
struct Guests {
    nics: Vec<(GuestRam, NetPair)>,
    flows: [[Progress; FLOWS.len()]; GUESTS],
    arrived: u64,
}

impl Guests {
    fn new(workers: &Workers) -> Self {
        let features = |guest: usize| match guest % 2 {
            0 => VERSION_1,
            _ => VERSION_1 | RING_PACKED,
        };
        let begun = Progress {
            send: 0,
            receive: 0,
            since: Instant::now(),
        };
        let nic = |guest| attach(workers, port(guest), features(guest));
        Self {
            nics: (0..GUESTS).map(nic).collect(),
            flows: [[begun; FLOWS.len()]; GUESTS],
            arrived: 0,
        }
    }

    /// Sends frames of both flows of a guest by turns, within their windows, and no more than
    /// [`FRAMES`] of each where the test `ends`.
    fn send(&mut self, guest: usize, most: usize, ends: bool) {
        let (_, nic) = &mut self.nics[guest];
        nic.reclaim().expect("a correct device");
        for turn in 0..most {
            let number = turn % FLOWS.len();
            let progress = &mut self.flows[guest][number];
            if !progress.may_send(ends) {
                continue;
            }
            let flow = Flow {
                from: guest,
                number,
            };
            let staged = nic.stage(&flow.frame(progress.send), &NetHeader::default());
            if !staged.expect("a correct device") {
                break;
            }
            progress.send += 1;
            if progress.send - progress.receive > WINDOW {
                progress.since = Instant::now();
            }
        }
        nic.tx.publish();
    }

    fn receive(&mut self) {
        for (guest, (_, nic)) in self.nics.iter_mut().enumerate() {
            while let Some(got) = nic.receive().expect("a correct device") {
                let (flow, n) = Flow::of(&got.frame);
                assert_eq!(got.frame, flow.frame(n));
                assert_eq!(flow.to(), guest);
                let progress = &mut self.flows[flow.from][flow.number];
                assert!(n >= progress.receive, "{flow:?}: {n} after {progress:?}");
                (progress.receive, progress.since) = (n + 1, Instant::now());
                self.arrived += 1;
            }
            nic.offer();
        }
    }

    /// Returns whether each flow sent its frames, and all arrived but so many.
    fn is_done(&self, lost: u64) -> bool {
        let mut flows = self.flows.iter().flatten();
        let sent: u64 = flows.clone().map(|flow| flow.send).sum();
        flows.all(|flow| flow.send >= FRAMES) && self.arrived + lost == sent
    }
}

/// Returns the frames beyond the shares of receivers, which must be all that were dropped.
fn beyond_shares(counters: &Counters) -> u64 {
    let guests = (0..GUESTS).map(|guest| counters.read(port(guest)).drops);
    let counted = guests.flat_map(|drops| REASONS.iter().copied().zip(drops));
    let lost = counted.filter(|(_, frames)| *frames > 0);
    lost.map(|(reason, frames)| {
        assert_eq!(reason, DropReason::ReceiveShare);
        frames
    })
    .sum()
}

#[test]
fn no_frame_is_lost_reordered_or_twice_whatever_moves_waits_and_holds() {
    let counters = Counters::heap();
    let (workers, _notices) = Workers::start(WORKERS, Poll::Always, &counters, 7).expect("threads");
    let mut guests = Guests::new(&workers);
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let mut control = Control {
        random: Random(7),
        answers: BinaryHeap::new(),
    };
    for worker in 0..usize::from(WORKERS) {
        Flow::all().for_each(|flow| control.answer_later(worker, flow));
    }
    let (since, mut moved) = (Instant::now(), Instant::now());
    let (mut refused, mut done) = (0, 0);
    let ends = |refused, done| refused > 0 && done > MOVES;
    while !(ends(refused, done) && guests.is_done(beyond_shares(&counters))) {
        assert!(
            since.elapsed() < LIMIT,
            "{refused} moves refused, {done} done, {:?}",
            guests.flows
        );
        let guest = random.below(GUESTS);
        guests.send(guest, random.below(24), ends(refused, done));
        guests.receive();
        control.answer_due(&workers);
        if moved.elapsed() >= Duration::from_millis(1) {
            moved = Instant::now();
            let pair = (port(random.below(GUESTS)), 0);
            match workers.move_pair(pair, random.below(usize::from(WORKERS))) {
                true => done += 1,
                false => refused += 1,
            }
            match random.below(4) {
                0 => control.forget(&workers, random.below(GUESTS)),
                1 => hold_or_release(&workers, &mut random),
                _ => {}
            }
        }
    }
    let read = |guest| counters.read(port(guest));
    let sent: u64 = (0..GUESTS)
        .map(|guest| read(guest).from_guest.packets)
        .sum();
    let delivered: u64 = (0..GUESTS).map(|guest| read(guest).to_guest.packets).sum();
    assert_eq!(
        (sent, delivered),
        (guests.arrived + beyond_shares(&counters), guests.arrived)
    );
}
