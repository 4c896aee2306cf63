//! What a run does: its choices and durations, and the queues and the traffic of its clients.

use std::path::PathBuf;
use std::time::Duration;

use crate::machine::Machine;

/// The choices of a run, and how long its parts take.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    /// Of the switch, and of the client.
    pub(crate) cores: [usize; 2],
    /// Directory of Lasthop's binaries.
    pub(crate) bin: PathBuf,
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
}

impl Plan {
    /// A core that neither the switch nor the client has, if there is one.
    pub(crate) fn spare(&self) -> Option<usize> {
        let mut cores = (0..self.machine.cores).rev();
        cores.find(|core| !self.cores.contains(core))
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

/// Says on standard error what is being done: standard output is for tables.
pub(crate) fn progress(text: &str) {
    eprintln!("==> {text}");
}
