//! Random traces, at ours and at the kernel's tracker.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::answer::agree;
use crate::differences::{Differences, Observation};
use crate::kernel::Kernel;
use crate::ours::{Ours, tuple};
use crate::walk::{self, Packet, Trace};

/// Traces whose first parts run before the second one of the first: UDP becomes a stream meanwhile.
const BATCH: u32 = 1000;
/// Time between both parts of a trace.
const PAUSE: Duration = Duration::from_millis(2200);

/// The result of a run.
#[derive(Debug, Default)]
pub(crate) struct Report {
    pub(crate) packets: usize,
    pub(crate) traces: usize,
    /// Packets by verdict.
    pub(crate) verdicts: BTreeMap<String, usize>,
    /// Intended differences that were met, by name.
    pub(crate) intended: BTreeMap<&'static str, usize>,
    /// Other differences, each with its trace.
    pub(crate) wrong: Vec<String>,
}

struct Run {
    kernel: Kernel,
    ours: Ours,
    started: Instant,
    report: Report,
}

struct Running {
    number: u32,
    trace: Trace,
    /// Whether it has come to a difference: what follows is another connection.
    over: bool,
    differences: Differences,
    time: Duration,
    log: Vec<String>,
}

/// Compares this number of packets, and the rest of a batch.
///
/// # Errors
/// The reason why the kernel cannot be asked here.
pub(crate) fn run(seed: u64, packets: usize, folder: &Path) -> Result<Report, String> {
    let mut run = Run {
        kernel: Kernel::new(folder)?,
        ours: Ours::new(),
        started: Instant::now(),
        report: Report::default(),
    };
    let mut number = 0;
    while run.report.packets < packets && number < 60_000 {
        // One batch for a short run: traces have 25 packets each, in the mean.
        let left = (packets - run.report.packets) as u32;
        let end = number + BATCH.min(left.div_ceil(22));
        let batch = (number..end).map(|number| Running {
            number,
            trace: walk::trace(seed, number),
            over: false,
            differences: Differences::default(),
            time: Duration::ZERO,
            log: Vec::new(),
        });
        number = end;
        run.batch(batch.collect())?;
    }
    Ok(run.report)
}

impl Run {
    fn batch(&mut self, mut traces: Vec<Running>) -> Result<(), String> {
        for part in 0..2 {
            if part == 1 {
                std::thread::sleep(PAUSE);
            }
            for trace in &mut traces {
                self.part(trace, part);
            }
        }
        self.report.traces += traces.len();
        self.compare_entries(&traces)
    }

    fn part(&mut self, running: &mut Running, part: usize) {
        let packets = running.trace.parts[part].clone();
        for packet in &packets {
            if running.over {
                return;
            }
            self.packet(running, packet);
        }
    }

    fn packet(&mut self, running: &mut Running, packet: &Packet) {
        // No two packets of a trace come at one time: the later one decides the timeout.
        running.time = (running.time + Duration::from_millis(1)).max(self.started.elapsed());
        self.ours.set_time(running.time);
        let tuple = tuple(&packet.bytes);
        let connection = |ours: &Ours| tuple.and_then(|tuple| ours.connection(&tuple));
        let kernels = self.kernel.ask(packet.from, &packet.bytes, packet.held);
        let before = connection(&self.ours);
        let ours = self.ours.ask(packet.from, &packet.bytes);
        let after = connection(&self.ours);
        self.report.packets += 1;
        *self.report.verdicts.entry(kernels.clone()).or_default() += 1;
        let why = self.ours.why;
        let reason = why.map_or_else(String::new, |why| format!(" ({why})"));
        running.log.push(format!(
            "{:?} {}: ours {ours}{reason}, the kernel's {kernels}",
            packet.from, packet.text
        ));
        // Pieces that the kernel holds have the verdict of the last one.
        let agree = packet.held || ours.verdict == kernels;
        let intended = running.differences.of(&Observation {
            packet,
            before,
            after,
            verdicts: (
                &ours.verdict,
                if packet.held { &ours.verdict } else { &kernels },
            ),
            why,
        });
        if let Some(name) = intended {
            running.over = true;
            *self.report.intended.entry(name).or_default() += 1;
        } else if !agree {
            running.over = true;
            let log = running.log.join("\n  ");
            let wrong = format!("trace {}:\n  {log}", running.number);
            self.report.wrong.push(wrong);
        }
    }

    /// Compares the connections of traces that have come to no difference.
    fn compare_entries(&mut self, traces: &[Running]) -> Result<(), String> {
        let kernels = self.kernel.entries()?;
        self.ours.set_time(self.started.elapsed());
        for running in traces.iter().filter(|running| !running.over) {
            let packets = running.trace.parts.iter().flatten();
            let tuples = packets.filter_map(|packet| tuple(&packet.bytes));
            for tuple in tuples {
                let ours = self.ours.entry(&tuple);
                let kernels = kernels
                    .get(&tuple)
                    .or_else(|| kernels.get(&tuple.reversed()));
                if !agree(ours.as_ref(), kernels) {
                    if let Some(name) = running.differences.of_entries() {
                        *self.report.intended.entry(name).or_default() += 1;
                        break;
                    }
                    self.report.wrong.push(format!(
                        "trace {}, entry {tuple:?}: ours {ours:?}, the kernel's {kernels:?}\n  {}",
                        running.number,
                        running.log.join("\n  ")
                    ));
                    break;
                }
            }
        }
        Ok(())
    }
}
