//! The plan of a run: its choices and durations, and the queues and the traffic of its clients.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::machine::Machine;

/// Names of the two builds of Lasthop.
pub(crate) const OURS: &str = "Lasthop";
pub(crate) const BEFORE: &str = "before";

/// The choices of a run, and how long its parts take.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    /// Of the switch, and of the client.
    pub(crate) cores: [usize; 2],
    /// More cores of the switch, each for a forwarding thread of its own.
    pub(crate) more: Vec<usize>,
    /// Directory of Lasthop's binaries.
    pub(crate) bin: PathBuf,
    /// Directory of another build's binaries, where an experiment compares builds.
    pub(crate) before: Option<PathBuf>,
    pub(crate) out: PathBuf,
    pub(crate) near_below: f64,
    pub(crate) machine: Machine,
    pub(crate) quick: bool,
    /// Enable super-frames at peers where they are an option.
    pub(crate) super_frames: bool,
    /// Samples required of each peer in each row.
    pub(crate) rounds: u32,
    /// The user has chosen that number: no experiment takes more.
    pub(crate) exact: bool,
    /// Traffic before a sample begins.
    pub(crate) settle: Duration,
    /// The time of a sample.
    pub(crate) window: Duration,
    /// How long one experiment waits, all in all, for others to leave the machine alone.
    pub(crate) patience: Duration,
    /// How long CPU use without traffic is watched.
    pub(crate) idle: Duration,
    /// Numbers of idle guests of the experiment `dense`.
    pub(crate) guests: Vec<usize>,
    /// Parts of an experiment that figures of the papers ask for, or what their names begin with;
    /// empty: all parts, in all places.
    pub(crate) parts: Vec<&'static str>,
}

impl Plan {
    /// Returns whether a part is measured.
    pub(crate) fn asks(&self, part: &str) -> bool {
        self.parts.is_empty() || self.parts.iter().any(|name| part.starts_with(name))
    }

    /// Returns whether figures of the papers are asked, and nothing beside them.
    pub(crate) fn is_of_figures(&self) -> bool {
        !self.parts.is_empty()
    }

    /// The builds that are compared, as columns of tables name them: another one first, if it is
    /// named.
    pub(crate) fn builds(&self) -> Vec<(&'static str, Self)> {
        let other = self.before.clone().map(|bin| (BEFORE, bin));
        let all = other.into_iter().chain([(OURS, self.bin.clone())]);
        let of = |bin| Self {
            bin,
            ..self.clone()
        };
        all.map(|(name, bin)| (name, of(bin))).collect()
    }

    /// A core that neither the switch nor the client has, if there is one.
    pub(crate) fn spare(&self) -> Option<usize> {
        self.spares().next()
    }

    /// The cores that neither the switch nor the client has, the last first.
    pub(crate) fn spares(&self) -> impl Iterator<Item = usize> {
        let cores = (0..self.machine.cores).rev();
        cores.filter(|core| !self.cores.contains(core) && !self.more.contains(core))
    }

    /// All cores of the switch, each for a forwarding thread.
    pub(crate) fn switch_cores(&self) -> Vec<usize> {
        [&self.cores[..1], &self.more[..]].concat()
    }

    /// The cores of guests: all that the switch does not have.
    pub(crate) fn guest_cores(&self) -> Vec<usize> {
        let switch = self.switch_cores();
        let cores = 0..self.machine.cores;
        cores.filter(|core| !switch.contains(core)).collect()
    }

    /// The cores of a switch whose ends the kernel places: those of switch and client where there
    /// are no others, and none in particular, as for its peers, where there are.
    pub(crate) fn shared_cores(&self) -> &[usize] {
        match self.spare() {
            Some(_) => &[],
            None => &self.cores,
        }
    }
}

/// The layout of the client's queues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Layout {
    Split,
    Packed,
    /// Slot queues, of ports for netmap clients.
    Slots,
}

impl Layout {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Split => "split",
            Self::Packed => "packed",
            Self::Slots => "slots",
        }
    }
}

/// Traffic of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Traffic {
    /// Frames bounce between the two ports.
    Bounce,
    /// Both ports send frames of this many flows as fast as they can.
    Flows(u32),
    /// Frames of this size from the lean client.
    Lean(u32),
    /// Frames of this size, each read and written by the lean client, as a guest does.
    Guest(u32),
    /// The lean client sends this many frames a second from one port to the other.
    Paced(u32),
    /// The lean client exchanges TCP super-frames of 64 KiB.
    Bulk,
}

/// When all will be done, where that is known.
static END: Mutex<Option<Instant>> = Mutex::new(None);

/// Has [`progress`] say how much time is left.
pub(crate) fn expect_end(left: Option<Duration>) {
    let mut end = END.lock().unwrap_or_else(PoisonError::into_inner);
    *end = left.and_then(|left| Instant::now().checked_add(left));
}

/// Says on standard error what is being done: standard output is for tables.
pub(crate) fn progress(text: &str) {
    let end = *END.lock().unwrap_or_else(PoisonError::into_inner);
    match end {
        None => eprintln!("==> {text}"),
        Some(end) => {
            let left = end.saturating_duration_since(Instant::now()).as_secs();
            eprintln!("==> [{:3} min left] {text}", left.div_ceil(60));
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::path::Path;

    use super::*;

    /// For results in this folder.
    pub(crate) fn plan(out: &Path) -> Plan {
        let time = Duration::from_millis(1);
        Plan {
            cores: [0, 1],
            more: Vec::new(),
            bin: PathBuf::new(),
            before: None,
            out: out.to_owned(),
            near_below: 200.0,
            machine: Machine::here(),
            quick: true,
            super_frames: false,
            rounds: 1,
            exact: false,
            settle: time,
            window: time,
            patience: time,
            idle: time,
            guests: Vec::new(),
            parts: Vec::new(),
        }
    }

    #[test]
    fn cores_are_the_switchs_or_of_guests() {
        let mut plan = plan(Path::new("."));
        plan.machine.cores = 2;
        assert_eq!((plan.spare(), plan.shared_cores()), (None, &[0, 1][..]));
        plan.machine.cores = 6;
        plan.more = vec![4, 5];
        assert_eq!(plan.switch_cores(), [0, 4, 5]);
        assert_eq!(plan.guest_cores(), [1, 2, 3]);
        assert_eq!(plan.spares().collect::<Vec<_>>(), [3, 2]);
        assert!(plan.shared_cores().is_empty());
    }

    #[test]
    fn parts_are_asked_by_the_beginning_of_their_names() {
        let mut plan = plan(Path::new("."));
        assert!(plan.asks("batch") && !plan.is_of_figures());
        plan.parts = vec!["batch", "stream, "];
        assert!(plan.asks("batch") && plan.asks("stream, 64 B"));
        assert!(!plan.asks("slots") && !plan.asks("streams"));
        plan.parts = vec![""];
        assert!(plan.asks("anything") && plan.is_of_figures());
    }
}
