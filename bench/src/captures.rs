//! Captures of a switch's port, by the programs that its operator would start. What they write goes
//! nowhere, so that no file system is measured, and no memory that the machine's own host has to
//! find first.
//!
//! Lasthop has a command for it. With Open vSwitch it is what `ovs-tcpdump` does: a mirror of the
//! port to a TAP device, from which `tcpdump` reads.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use serde::Serialize;
use tempfile::TempDir;

use crate::peers::{Kind, Peer, lasthop, ovs};
use crate::plan::Plan;
use crate::process::{self, Process, run, words};
use crate::{folders, procfs, stop};

/// How long a capture may take to begin.
const BEGIN: Duration = Duration::from_secs(10);
/// How long it may take to end, with all that waits for it.
const END: Duration = Duration::from_secs(20);
/// The kernel gives `tcpdump` what it has after a second at the latest, and what it has not got by
/// its end is missed.
const LATE: Duration = Duration::from_millis(1100);
/// Destination of captured frames.
const FILE: &str = "/dev/null";
/// Log line of Lasthop when the switch has started to copy.
const BEGUN: &str = " has begun";
/// KiB that may wait for `tcpdump`, as many as for our command.
const BUFFER_KIB: u32 = 16 * 1024;

/// Parameters of a capture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CaptureSpec {
    /// Lasthop's name of the port; of others it is the first one.
    pub(crate) port: &'static str,
    /// Bytes of each frame at most, if not all.
    pub(crate) snaplen: Option<u32>,
    /// In the words of tcpdump; empty: all frames.
    pub(crate) filter: &'static str,
}

/// Result of a capture.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub(crate) struct Outcome {
    /// Frames that it was about, as far as its program knows.
    pub(crate) meant: Option<u64>,
    /// Frames that it wrote.
    pub(crate) written: u64,
    /// CPU time of all that is behind the switch, up to when the traffic ended.
    pub(crate) seconds: f64,
}

/// How captures of a peer are made.
pub(crate) struct Captures {
    kind: Kind,
    program: PathBuf,
    /// Directory of the switch's sockets.
    runtime: PathBuf,
    /// The first of its processes.
    switch: u32,
    /// Process beside the program for a capture, other than the switch.
    helper: Option<u32>,
    cores: Vec<usize>,
    folder: TempDir,
}

/// A running capture.
pub(crate) struct Capture<'a> {
    of: &'a Captures,
    process: Process,
    helper: f64,
}

impl Captures {
    /// Prepares captures of this peer, whose capturing runs on [`cores`] from then on.
    pub(crate) fn of(plan: &Plan, peer: &Peer) -> Result<Self> {
        let socket = peer.sockets().first().context("a peer with sockets")?;
        let runtime = socket.parent().context("a socket in a folder")?.to_owned();
        let cores = cores(plan);
        let switch = *peer.pids().first().context("a running switch")?;
        let helper = match peer.kind() {
            Kind::Lasthop => Some(move_control(peer, &cores)?),
            Kind::Ovs => {
                ovs::add_tap(&runtime, switch)?;
                None
            }
            Kind::Forwarder | Kind::Bridge | Kind::Router => {
                bail!("{} has no captures", peer.kind().name())
            }
        };
        Ok(Self {
            kind: peer.kind(),
            program: plan.bin.join("lasthop"),
            runtime,
            switch,
            helper,
            cores,
            folder: folders::new("capture")?,
        })
    }

    /// Starts a capture of the frames that follow.
    pub(crate) fn begin(&self, spec: CaptureSpec) -> Result<Capture<'_>> {
        let log = self.folder.path().join("log");
        // Of the one before.
        let _ = fs::remove_file(&log);
        let before = self.begun();
        let words = match self.kind {
            Kind::Lasthop => self.our_words(spec),
            _ => {
                ovs::begin_mirror(&self.runtime)?;
                self.their_words(spec)
            }
        };
        let helper = self.helper_seconds();
        let mut process = process::start("capture", &self.cores, &words, &log)?;
        let begun = |output: &str| match self.kind {
            Kind::Lasthop => self.begun() > before,
            _ => output.contains("listening on"),
        };
        process.wait_output("a capture", BEGIN, |output| begun(output).then_some(()))?;
        Ok(Capture {
            of: self,
            process,
            helper,
        })
    }

    /// How many captures Lasthop has begun.
    fn begun(&self) -> usize {
        let log = self.runtime.with_file_name(lasthop::LOG);
        let log = fs::read_to_string(log).unwrap_or_default();
        log.lines().filter(|line| line.contains(BEGUN)).count()
    }

    fn our_words(&self, spec: CaptureSpec) -> Vec<String> {
        let text = |path: &Path| path.display().to_string();
        let mut words = vec![
            "env".to_owned(),
            format!("LASTHOP_RUNTIME_DIR={}", text(&self.runtime)),
            text(&self.program),
        ];
        words.extend(["capture", spec.port, "-w", FILE].map(str::to_owned));
        if let Some(bytes) = spec.snaplen {
            words.extend(["--snaplen".to_owned(), bytes.to_string()]);
        }
        if !spec.filter.is_empty() {
            words.extend(["--filter".to_owned(), spec.filter.to_owned()]);
        }
        words
    }

    fn their_words(&self, spec: CaptureSpec) -> Vec<String> {
        let (tap, bytes) = (ovs::TAP, spec.snaplen.unwrap_or(0));
        let tcpdump = format!("tcpdump -n -i {tap} -B {BUFFER_KIB} -s {bytes} -w {FILE}");
        let mut words = words(&ovs::inside(self.switch, &tcpdump));
        words.extend((!spec.filter.is_empty()).then(|| spec.filter.to_owned()));
        words
    }

    fn helper_seconds(&self) -> f64 {
        self.helper.map_or(0.0, procfs::cpu_seconds)
    }
}

impl Capture<'_> {
    /// Ends it in order, and says what came of it.
    pub(crate) fn end(mut self) -> Result<Outcome> {
        let command = procfs::family_seconds(self.process.pid());
        let seconds = command + self.of.helper_seconds() - self.helper;
        if self.of.kind != Kind::Lasthop {
            stop::sleep(LATE)?;
        }
        self.process.terminate(END);
        let output = self.process.output();
        if self.of.kind != Kind::Lasthop {
            ovs::end_mirror(&self.of.runtime)?;
        }
        let (written, meant) = match self.of.kind {
            Kind::Lasthop => our_counts(&output),
            _ => their_count(&output).map(|count| (count, None)),
        }
        .with_context(|| format!("a capture ended with: {output}"))?;
        Ok(Outcome {
            meant,
            written,
            seconds,
        })
    }
}

/// Returns the cores of captures: those that neither the switch nor the client has, or else the
/// client's.
pub(crate) fn cores(plan: &Plan) -> Vec<usize> {
    let mut cores: Vec<usize> = (0..plan.machine.cores).collect();
    cores.retain(|core| !plan.cores.contains(core));
    if cores.is_empty() {
        cores.push(plan.cores[1]);
    }
    cores
}

/// Moves Lasthop's control to these cores; returns its process.
fn move_control(peer: &Peer, cores: &[usize]) -> Result<u32> {
    let mut below = peer.pids().into_iter().flat_map(procfs::descendants);
    let is_control = |pid: &u32| procfs::name(*pid).is_some_and(|name| name == "lasthop-control");
    let control = below.find(is_control).context("control runs")?;
    let list: Vec<String> = cores.iter().map(ToString::to_string).collect();
    let list = list.join(",");
    run(&words(&format!("taskset -a -c -p {list} {control}")), &[])?;
    Ok(control)
}

/// Frames written, and meant: `7 frames captured, 2 of 9 were dropped because the ring was full`.
fn our_counts(output: &str) -> Option<(u64, Option<u64>)> {
    let line = output.lines().find(|line| line.contains(" captured, "))?;
    let numbers = line.split_whitespace().filter_map(|word| word.parse().ok());
    match numbers.collect::<Vec<u64>>()[..] {
        [written, lost, meant] if written + lost == meant => Some((written, Some(meant))),
        _ => None,
    }
}

/// Frames written: `7 packets captured`.
fn their_count(output: &str) -> Option<u64> {
    let mut lines = output.lines();
    let line = lines.find(|line| line.contains(" captured"))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_read_from_what_is_said_at_the_end() {
        let ours = "7 frames captured, 2 of 9 were dropped because the ring was full\n";
        assert_eq!(our_counts(ours), Some((7, Some(9))));
        let wrong = "7 frames captured, 3 of 9 were dropped because the ring was full\n";
        assert_eq!(our_counts(wrong), None);
        assert_eq!(our_counts("error: no\n"), None);
        let theirs =
            "tcpdump: listening on x\n12 packets captured\n14 packets received by filter\n";
        assert_eq!(their_count(theirs), Some(12));
    }
}
