//! Experiments, and their durations.

pub(crate) mod bulk;
pub(crate) mod capture;
pub(crate) mod external;
pub(crate) mod load;
pub(crate) mod migration;
pub(crate) mod neighbours;
pub(crate) mod policy;
pub(crate) mod ports;
pub(crate) mod scaling;
pub(crate) mod scheduling;
pub(crate) mod throughput;
pub(crate) mod wakeups;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use crate::Arguments;
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
    pub(crate) fn new(arguments: &Arguments) -> Result<Self> {
        let [switch, client] = [arguments.switch_core, arguments.client_core];
        let machine = Machine::here();
        if switch == client {
            bail!("switch and client need a core each");
        }
        let bin = match &arguments.bin {
            Some(folder) => folder.clone(),
            None => std::env::current_exe()?
                .parent()
                .context("a program lies in a folder")?
                .to_owned(),
        };
        let pick = |quick: u64, full: u64| {
            Duration::from_millis(if arguments.quick { quick } else { full })
        };
        Ok(Self {
            cores: [switch, client],
            bin,
            out: arguments.out.clone(),
            near_below: arguments.near_below,
            machine,
            quick: arguments.quick,
            super_frames: false,
            rounds: if arguments.quick { 3 } else { 9 },
            settle: pick(100, 500),
            window: pick(300, 2000),
            patience: pick(20_000, 600_000),
            idle: pick(2000, 20_000),
        })
    }

    /// A core that neither the switch nor the client has, if there is one.
    pub(crate) fn spare(&self) -> Option<usize> {
        let mut cores = (0..self.machine.cores).rev();
        cores.find(|core| !self.cores.contains(core))
    }
}

/// Says on standard error what is being done: standard output is for tables.
pub(crate) fn progress(text: &str) {
    eprintln!("==> {text}");
}
