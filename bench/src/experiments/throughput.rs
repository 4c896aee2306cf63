//! Frames through each peer in turn: A B C A B C.

use std::time::{Duration, Instant};

use anyhow::Result;

use crate::clients::{self, Client};
use crate::hugepages::HugePages;
use crate::peers::{Kind, Peer};
use crate::plan::{Layout, Plan, Traffic, progress};
use crate::report::{Figures, Report, Throughput};
use crate::sample::{Cell, Sample, Verdict, take, wait_quiet};
use crate::stop;

const SIZES: [u32; 3] = [64, 256, 1500];
/// How long frames may take to arrive after a client was attached, and how long each look for them
/// is.
const ARRIVE: Duration = Duration::from_secs(10);
const PROBE: Duration = Duration::from_millis(100);
const FLOWS: &[u32] = &[1, 1024, 100_000];
const FLOWS_QUICK: &[u32] = &[1, 100_000];
const BRIDGE: &str = "The Linux bridge has TAP ports, so another client: a thread on each core \
    writes and reads a \
    frame with a system call, and the bridge works inside of these calls, on both cores; rows of \
    split queues only";
const BOUNCE: &str = "With testpmd 896 frames bounce between the ports, so many that no queue of \
    1024 can overflow: every \
    peer has the same number on its way. With small frames testpmd's own core is the limit";
const REPLAY: &str = "testpmd replays captures with the addresses of its ports, because its flow \
    generator has one \
    source address for both; with 100000 flows its own buffers no longer fit the caches, so that \
    it is the limit for every peer: lean has \
    the same number of flows without that";

/// By frame size, split and packed.
pub(crate) fn frames(plan: &Plan) -> Result<Report> {
    let mut run = Run::new(plan, "frames", &Kind::ALL);
    run.note(BRIDGE);
    run.note(BOUNCE);
    for layout in [Layout::Split, Layout::Packed] {
        run.setting(layout, Traffic::Bounce, &SIZES)?;
    }
    Ok(run.report("Throughput by frame size", by("bytes of a frame")))
}

/// By number of flows, 64 bytes, split.
pub(crate) fn flows(plan: &Plan) -> Result<Report> {
    let mut run = Run::new(plan, "flows", &Kind::ALL);
    for &flows in numbers_of_flows(plan) {
        run.setting(Layout::Split, Traffic::Flows(flows), &[64])?;
    }
    run.note(REPLAY);
    Ok(run.report(
        "Throughput by flows, 64-byte frames, split queues",
        by("flows"),
    ))
}

fn numbers_of_flows(plan: &Plan) -> &'static [u32] {
    if plan.quick { FLOWS_QUICK } else { FLOWS }
}

/// With a client that leaves the limit to the switch, by number of flows and size.
pub(crate) fn lean(plan: &Plan) -> Result<Report> {
    let mut run = Run::new(plan, "lean", &Kind::ALL);
    for &flows in numbers_of_flows(plan) {
        let sizes: &[u32] = if flows == 1 { &[64, 1500] } else { &[64] };
        run.setting(Layout::Split, Traffic::Lean(flows), sizes)?;
    }
    run.setting(Layout::Packed, Traffic::Lean(1024), &[64])?;
    run.setting(Layout::Split, Traffic::Guest(1024), &[64, 1500])?;
    if !plan.quick {
        run.setting(Layout::Packed, Traffic::Guest(1024), &[64])?;
    }
    Ok(run.report("Throughput with the lean client, by flows", by("flows")))
}

/// Throughput over `axis`.
fn by(axis: &'static str) -> impl FnOnce(Vec<Sample>) -> Throughput {
    move |samples| Throughput { axis, samples }
}

/// A peer with its client and what is measured there; both frozen but for their own samples. The
/// client goes first.
pub(crate) struct Pair {
    pub(crate) client: Box<dyn Client>,
    pub(crate) peer: Peer,
    pub(crate) cell: Cell,
}

/// Changes to frames of `size` bytes and waits until they arrive: a switch may take its time to
/// notice a port.
pub(super) fn prepare(peer: &Peer, client: &mut dyn Client, size: u32) -> Result<()> {
    peer.thaw();
    client.thaw()?;
    let ready = arrive(client, size);
    // Ready or not, it must not run while others are measured.
    client.freeze()?;
    peer.freeze();
    ready
}

fn arrive(client: &mut dyn Client, size: u32) -> Result<()> {
    client.set_size(size)?;
    stop::try_wait("frames arrive", ARRIVE, || {
        let mpps = client.mpps(PROBE)?;
        Ok((mpps > 0.0).then_some(()))
    })
}

/// An experiment that is being run: peers in turn, sample by sample.
pub(crate) struct Run<'a> {
    plan: &'a Plan,
    name: &'static str,
    samples: Vec<Sample>,
    notes: Vec<String>,
    pages: Option<HugePages>,
    /// Remaining time to wait for a quiet machine.
    patience: Duration,
}

impl<'a> Run<'a> {
    /// Makes room for these peers.
    pub(crate) fn new(plan: &'a Plan, name: &'static str, kinds: &[Kind]) -> Self {
        let mut notes = Vec::new();
        let desired = kinds.iter().map(|kind| kind.huge_pages()).sum();
        let pages = HugePages::reserve(desired)
            .map_err(|error| notes.push(format!("no huge pages, so no DPDK peers: {error:#}")))
            .ok();
        Self {
            plan,
            name,
            samples: Vec::new(),
            notes,
            pages,
            patience: plan.patience,
        }
    }

    /// Returns whether there are huge pages for this peer, if it needs any; a note says why not.
    pub(crate) fn has_room_for(&self, kind: Kind) -> bool {
        kind.huge_pages() == 0 || self.pages.is_some()
    }

    /// All sizes with one start of every peer and client.
    pub(super) fn setting(
        &mut self,
        layout: Layout,
        traffic: Traffic,
        sizes: &[u32],
    ) -> Result<()> {
        let mut pairs = Vec::new();
        for kind in Kind::ALL
            .into_iter()
            .filter(|kind| kind.takes(layout, traffic))
        {
            if !self.has_room_for(kind) {
                continue;
            }
            progress(&format!(
                "{}: {} starts, {}",
                self.name,
                kind.name(),
                layout.name()
            ));
            match start(self.plan, kind, layout, traffic) {
                Ok(pair) => pairs.push(pair),
                Err(error) => {
                    stop::check()?;
                    self.leave_out(format!("{}, {}: {error:#}", kind.name(), layout.name()));
                }
            }
        }
        for &size in sizes {
            for pair in &mut pairs {
                pair.cell = cell(layout, traffic, size);
            }
            self.turns(&mut pairs, size)?;
        }
        Ok(())
    }

    /// Samples of all pairs in turn with frames of `size` bytes. Those that do not count are taken
    /// again, within bounds.
    pub(crate) fn turns(&mut self, pairs: &mut [Pair], size: u32) -> Result<()> {
        let mut ready = Vec::new();
        for pair in pairs {
            match prepare(&pair.peer, &mut *pair.client, size) {
                Ok(()) => ready.push(pair),
                Err(error) => {
                    stop::check()?;
                    let name = pair.peer.kind().name();
                    self.leave_out(format!("{name}, {}: {error:#}", pair.cell.name));
                }
            }
        }
        for round in 1..=2 * self.plan.rounds {
            if ready.iter().all(|pair| self.enough(pair)) {
                break;
            }
            for pair in &mut ready {
                self.sample(&pair.peer, &mut *pair.client, &pair.cell, round)?;
            }
        }
        Ok(())
    }

    /// Takes one sample.
    pub(crate) fn sample(
        &mut self,
        peer: &Peer,
        client: &mut dyn Client,
        cell: &Cell,
        round: u32,
    ) -> Result<()> {
        self.wait_if_disturbed()?;
        let sample = take(self.plan, peer, client, cell, round)?;
        self.say(&sample);
        self.samples.push(sample);
        Ok(())
    }

    /// Adds what readers of the table should know.
    pub(crate) fn note(&mut self, note: &str) {
        self.notes.push(note.to_owned());
    }

    /// Continues without a measurement, and notes the reason.
    pub(crate) fn leave_out(&mut self, note: String) {
        progress(&note);
        self.notes.push(note);
    }

    /// After a sample that others disturbed, the next one waits for them to end.
    fn wait_if_disturbed(&mut self) -> Result<()> {
        let last = self.samples.last();
        if last.is_some_and(|sample| sample.verdict == Verdict::Disturbed)
            && !self.patience.is_zero()
        {
            progress("others use the machine: waiting for them");
            let begin = Instant::now();
            wait_quiet(self.patience)?;
            self.patience = self.patience.saturating_sub(begin.elapsed());
        }
        Ok(())
    }

    fn enough(&self, pair: &Pair) -> bool {
        self.has_enough(pair.peer.kind(), &pair.cell)
    }

    /// Returns whether there are as many valid samples as required.
    pub(crate) fn has_enough(&self, kind: Kind, cell: &Cell) -> bool {
        let kept = self.samples.iter().filter(|sample| {
            sample.peer == kind.name() && sample.cell == *cell && sample.verdict == Verdict::Kept
        });
        kept.count() >= self.plan.rounds as usize
    }

    fn say(&self, sample: &Sample) {
        let verdict = match sample.verdict {
            Verdict::Kept => sample.placement.map_or("", |placement| placement.name()),
            Verdict::Flipped => "flipped, dropped",
            Verdict::Disturbed => "disturbed by other load, dropped",
        };
        progress(&format!(
            "{} {}, round {}: {} {}, {verdict} ({:.0}/{:.0} ns, others {:.0} %)",
            self.name,
            sample.cell.name,
            sample.round,
            sample.peer,
            sample.figure(),
            sample.before_ns,
            sample.after_ns,
            sample.others_percent,
        ));
    }

    /// The report, with the samples in the figures that are asked for.
    pub(crate) fn report<F: Figures + 'static>(
        self,
        title: &str,
        figures: impl FnOnce(Vec<Sample>) -> F,
    ) -> Report {
        let figures = figures(self.samples);
        Report::new(self.plan, self.name, title, self.notes, figures)
    }
}

fn start(plan: &Plan, kind: Kind, layout: Layout, traffic: Traffic) -> Result<Pair> {
    let peer = Peer::start(kind, plan)?;
    let client = clients::start(plan, &peer, layout, traffic)?;
    client.freeze()?;
    peer.freeze();
    let cell = Cell::default();
    Ok(Pair { client, peer, cell })
}

fn cell(layout: Layout, traffic: Traffic, size: u32) -> Cell {
    match traffic {
        Traffic::Bounce => Cell {
            name: format!("{size} B {}", layout.name()),
            series: layout.name().to_owned(),
            x: f64::from(size),
        },
        Traffic::Lean(flows) => Cell {
            name: format!("{size} B {}, {flows} flows, lean client", layout.name()),
            series: format!("{size} B {}", layout.name()),
            x: f64::from(flows),
        },
        Traffic::Guest(flows) => Cell {
            name: format!(
                "{size} B {}, {flows} flows, lean client that reads and writes",
                layout.name()
            ),
            series: format!("{size} B {}, read and written", layout.name()),
            x: f64::from(flows),
        },
        Traffic::Bulk => Cell {
            name: format!("64 KiB {}", layout.name()),
            series: layout.name().to_owned(),
            x: f64::from(size),
        },
        Traffic::Paced(rate) => Cell {
            name: format!("{} kpps", rate / 1000),
            series: layout.name().to_owned(),
            x: f64::from(rate),
        },
        Traffic::Flows(flows) => Cell {
            name: format!("{flows} flows"),
            series: layout.name().to_owned(),
            x: f64::from(flows),
        },
    }
}
