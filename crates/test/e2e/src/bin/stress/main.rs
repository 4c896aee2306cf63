//! `lasthop-stress`: Lasthop under load while its processes are killed, guests reboot and leave,
//! and ports come and go.
//!
//! ```text
//!   faults      each process is killed under traffic: gap and frames lost
//!   chaos       random kills, reboots, ports and memory that come and go, all at once
//!   soak        full load while ports come and go: every frame is accounted for
//!   footprint   memory and descriptors of Lasthop's processes, before and after
//! ```

mod chaos;
mod faults;
mod footprint;
mod idle;
mod soak;

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::{Parser, Subcommand};
use e2e::lasthop::Lasthop;
use e2e::machine::{Machine, raise_open_files};
use e2e::{paths, stop};
use serde::Serialize;
use testkit::lasthop::Place;

use self::faults::Victim;
use self::faults::traffic::Guests;

/// Run Lasthop under load while its processes die and its ports come and go.
#[derive(Debug, Parser)]
#[command(name = "lasthop-stress", version, max_term_width = 100)]
struct Arguments {
    #[command(subcommand)]
    what: What,
    /// The core of the switch
    #[arg(long, default_value_t = 0, value_name = "CORE", global = true)]
    switch_core: usize,
    /// The core of the client
    #[arg(long, default_value_t = 1, value_name = "CORE", global = true)]
    client_core: usize,
    /// So many guests more, connected and idle: of faults and chaos
    #[arg(long, default_value_t = 0, value_name = "NUMBER", global = true,
          value_parser = clap::value_parser!(u16).range(..=1000))]
    guests: u16,
    /// Directory of the JSON documents
    #[arg(
        long,
        value_name = "DIR",
        default_value = "bench/results",
        global = true
    )]
    out: PathBuf,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Each of Lasthop's processes killed under traffic: how long is the gap, what is lost?
    Faults {
        /// Three kills of each process instead of a hundred
        #[arg(long)]
        quick: bool,
        /// How often each process is killed; default: 100, or 3 with --quick
        #[arg(long, value_name = "TIMES", value_parser = clap::value_parser!(u32).range(1..=100_000))]
        kills: Option<u32>,
        /// Kill this process only
        #[arg(long, value_name = "PROCESS")]
        only: Option<Victim>,
        /// Two guests with an IOMMU that map a page for each frame (strict), at a tenth of the rate
        #[arg(long)]
        iommu: bool,
    },
    /// Processes killed, guests rebooted, ports and memory plugged, all at random and all at once
    Chaos {
        /// How long it runs
        #[arg(long, default_value_t = 10.0, value_name = "MINUTES", value_parser = minutes)]
        minutes: f64,
    },
    /// Full load while ports come and go: is every frame accounted for?
    Soak {
        /// How long it runs
        #[arg(long, default_value_t = 10.0, value_name = "MINUTES", value_parser = minutes)]
        minutes: f64,
    },
}

/// More than none, and less than a year.
fn minutes(text: &str) -> Result<f64, String> {
    let value: f64 = text.parse().map_err(|error| format!("{error}"))?;
    if value > 0.0 && value < 525_600.0 {
        Ok(value)
    } else {
        Err("minutes are more than 0".to_owned())
    }
}

/// The choices of a run.
struct Plan {
    /// Of the switch, and of the client.
    cores: [usize; 2],
    out: PathBuf,
    machine: Machine,
    quick: bool,
    /// Idle guests beside those with traffic.
    idle: u16,
}

impl Plan {
    /// Starts Lasthop on the switch's core.
    fn start(&self, configuration: &str) -> Result<Lasthop> {
        let folder = tempfile::Builder::new().prefix("lasthop-").tempdir()?;
        let place = Place::within(paths::binary("lasthop"), folder, &self.cores[..1]);
        Ok(Lasthop::start_in(place, configuration)?)
    }

    /// Writes a document beside those of benchmarks.
    fn save(&self, name: &str, document: &impl Serialize) -> Result<()> {
        let name = format!("{}-{name}.json", self.machine.stamp());
        let path = self.out.join(name);
        fs::write(&path, serde_json::to_vec_pretty(document)?)
            .with_context(|| path.display().to_string())?;
        progress(&format!("{} is written", path.display()));
        Ok(())
    }
}

/// Says on standard error what is being done: standard output is for tables.
fn progress(text: &str) {
    eprintln!("==> {text}");
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<()> {
    stop::on_signals()?;
    raise_open_files();
    let plan = Plan {
        cores: [arguments.switch_core, arguments.client_core],
        out: arguments.out.clone(),
        machine: Machine::here(),
        quick: matches!(arguments.what, What::Faults { quick: true, .. }),
        idle: arguments.guests,
    };
    fs::create_dir_all(&plan.out)?;
    let time = |minutes: f64| Duration::from_secs_f64(60.0 * minutes);
    plan.machine.print_heading(plan.cores);
    match arguments.what {
        What::Faults {
            quick,
            kills,
            only,
            iommu,
        } => {
            let usual = if quick { 3 } else { 100 };
            let victims = only.map_or_else(|| Victim::ALL.to_vec(), |only| vec![only]);
            let guests = if iommu { Guests::Strict } else { Guests::Plain };
            faults::faults(&plan, kills.unwrap_or(usual), &victims, guests)
        }
        What::Chaos { minutes } => chaos::chaos(&plan, time(minutes)),
        What::Soak { minutes } => soak::soak(&plan, time(minutes)),
    }
}
