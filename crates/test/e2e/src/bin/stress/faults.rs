//! Cost of a crash and of an upgrade: each of Lasthop's processes is killed under traffic, again
//! and again, all are upgraded, and the gap in the traffic and the lost frames are measured.
//!
//! ```text
//!   p0 <----------> p1      two guests, the pair
//!   p2 <----------> t0      a guest and the host, over a TAP port
//!   p3 <----------> u0      a guest and the host, over a packet socket
//! ```
//! The switch serves the interfaces, but for the TAP device where a driver is killed.
//!
//! Each kill has a Lasthop of its own: the restart of a driver that fails repeatedly is delayed,
//! and that delay would be measured. The client is one thread that does everything in turn and
//! never sleeps.

mod outcome;
pub(crate) mod probe;
pub(crate) mod stream;
pub(crate) mod traffic;
mod trial;

use anyhow::{Context as _, Result};
use clap::ValueEnum;
use serde::Serialize;

use self::outcome::Outcome;
use self::traffic::{Guests, Host, Interface};
use crate::{Plan, idle, progress};
use e2e::lasthop::port_table;
use e2e::machine::pin;

/// Process to kill.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Victim {
    Control,
    Switch,
    Driver,
    Supervisor,
    /// None: `lasthop upgrade` replaces all, the driver last.
    Upgrade,
}

impl Victim {
    pub(crate) const ALL: [Self; 5] = [
        Self::Control,
        Self::Switch,
        Self::Driver,
        Self::Supervisor,
        Self::Upgrade,
    ];

    /// As tables show it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Control => "control",
            Self::Switch => "switch",
            Self::Driver => "driver",
            Self::Supervisor => "supervisor",
            Self::Upgrade => "none (upgrade)",
        }
    }

    /// As `lasthop status` calls its process.
    pub(crate) fn process(self) -> String {
        match self {
            Self::Driver => format!("driver {}", Interface::Tap.port()),
            Self::Upgrade => Self::Switch.name().to_owned(),
            other => other.name().to_owned(),
        }
    }
}

/// Kills each of these processes so many times, in turn, prints the tables and writes every kill
/// to a file.
///
/// # Errors
/// When traffic does not come back.
pub(crate) fn faults(plan: &Plan, kills: u32, victims: &[Victim], guests: Guests) -> Result<()> {
    // A thread of its own, because it stays on its core.
    let outcome = std::thread::scope(|scope| {
        let client = scope.spawn(|| run(plan, kills, victims, guests));
        client.join().ok().context("a thread panicked")?
    })?;
    plan.save("faults", &outcome)?;
    println!("{}", outcome.markdown());
    Ok(())
}

fn run(plan: &Plan, kills: u32, victims: &[Victim], guests: Guests) -> Result<Outcome> {
    pin(plan.cores[1])?;
    let mut outcome = Outcome::new(plan);
    let host = match Host::new() {
        Ok(host) => Some(host),
        Err(error) => {
            outcome.note(format!("without interfaces of the host: {error:#}"));
            None
        }
    };
    if plan.idle > 0 {
        outcome.note(format!("{} idle guests beside them", plan.idle));
    }
    if guests == Guests::Strict {
        outcome.note("the guests of the pair have an IOMMU, and map a page for each frame".into());
    }
    for kill in 1..=kills {
        for &victim in victims {
            if victim == Victim::Driver && host.is_none() {
                continue;
            }
            // In the other trials the switch serves the TAP port.
            let ports = configuration(host.as_ref(), victim == Victim::Driver);
            let configuration = ports + &idle::tables(plan.idle);
            let trial = trial::run(plan, victim, guests, &configuration, host.as_ref())
                .with_context(|| format!("{}, kill {kill}", victim.name()))?;
            progress(&format!(
                "faults: kill {kill} of {kills}, {}",
                trial.summary()
            ));
            outcome.add(trial);
        }
    }
    Ok(outcome)
}

/// Pair and host are in segments of their own, so that neither sees frames of the other. `process`:
/// the TAP port has a driver process.
pub(crate) fn configuration(host: Option<&Host>, process: bool) -> String {
    let pair = ["p0", "p1"].map(|port| port_table(port, "pair")).concat();
    let host = host.map(|host| host.port_tables(process));
    format!(
        "[switch]\nname = \"faults\"\n\n[[segment]]\nname = \"pair\"\n{pair}{}",
        host.unwrap_or_default()
    )
}
