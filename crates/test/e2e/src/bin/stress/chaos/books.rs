//! Results of the storm.

use std::collections::BTreeMap;

use anyhow::{Result, bail};
use serde::Serialize;

use super::operator::Tally;
use crate::faults::Victim;
use crate::footprint::{self, Growth};
use e2e::machine::Machine;
use e2e::table::table;

const MEANING: &str = "Lost are frames in the hands of who was killed or left, and those that had \
    nowhere to go meanwhile. \
    \"Before\" is after the first ten seconds, with everybody replaced at least once in most \
    cases; at both times the \
    operator's ports are gone.";

/// All that is reported.
#[derive(Debug, Serialize)]
pub(super) struct Books {
    machine: Machine,
    pub(super) seconds: f64,
    killed: BTreeMap<&'static str, u64>,
    /// Guests that reset their device, and VMMs that went away and came back.
    pub(super) reboots: u64,
    pub(super) crashes: u64,
    pub(super) sent: u64,
    pub(super) received: u64,
    pub(super) twice: u64,
    pub(super) damaged: u64,
    /// Connections that were made anew; beyond `crashes` they are Lasthop's doing.
    pub(super) redials: u64,
    pub(super) operator: Tally,
    pub(super) growth: Vec<Growth>,
}

impl Books {
    pub(super) fn new(machine: &Machine) -> Self {
        Self {
            machine: machine.clone(),
            seconds: 0.0,
            killed: BTreeMap::new(),
            reboots: 0,
            crashes: 0,
            sent: 0,
            received: 0,
            twice: 0,
            damaged: 0,
            redials: 0,
            operator: Tally::default(),
            growth: Vec::new(),
        }
    }

    pub(super) fn killed(&mut self, victim: Victim) {
        *self.killed.entry(victim.name()).or_default() += 1;
    }

    /// For standard error.
    pub(super) fn summary(&self) -> String {
        format!(
            "killed {:?}, {} of {} frames arrived",
            self.killed, self.received, self.sent
        )
    }

    /// The tables for people.
    pub(super) fn markdown(&self) -> String {
        let mut rows: Vec<(String, u64)> =
            vec![("**damaged**".into(), self.damaged + self.operator.damaged)];
        rows.push(("**descriptors left over**".into(), self.leaked()));
        rows.push(("**connections that Lasthop ended**".into(), self.ended()));
        let killed = self.killed.iter();
        rows.extend(killed.map(|(name, times)| (format!("{name} killed"), *times)));
        let rest = [
            ("guests rebooted", self.reboots),
            ("VMMs gone and back", self.crashes),
            ("ports added and removed", self.operator.ports),
            ("regions of memory plugged", self.operator.plugged),
            ("settings changed", self.operator.settings),
            ("upgrades", self.operator.upgrades),
            (
                "commands repeated, because a process had died",
                self.operator.repeated,
            ),
            (
                "connections ended in the moment of being accepted, and made again",
                self.operator.refused,
            ),
            ("frames sent by the three that stay", self.sent),
            ("received", self.received),
            ("lost", self.sent.saturating_sub(self.received)),
            ("received twice", self.twice),
            (
                "received by those that came and went",
                self.operator.received,
            ),
        ];
        rows.extend(rest.map(|(name, number)| (name.to_owned(), number)));
        let rows: Vec<Vec<String>> = rows
            .into_iter()
            .map(|(name, number)| vec![name, number.to_string()])
            .collect();
        format!(
            "\n## Chaos, {:.1} minutes\n\n{}\n{MEANING}\n\n{}",
            self.seconds / 60.0,
            table(&["what", "number"].map(str::to_owned), &rows),
            footprint::table(&self.growth),
        )
    }

    fn leaked(&self) -> u64 {
        self.growth.iter().map(Growth::leaked).sum()
    }

    fn ended(&self) -> u64 {
        self.redials.saturating_sub(self.crashes)
    }

    /// # Errors
    /// When something happened that must not.
    pub(super) fn verdict(&self) -> Result<()> {
        let damaged = self.damaged + self.operator.damaged;
        match (damaged, self.leaked(), self.ended()) {
            (0, 0, 0) => Ok(()),
            (damaged, leaked, ended) => bail!(
                "{damaged} frames damaged, {leaked} descriptors left over, {ended} connections \
                 ended by Lasthop"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::footprint::Footprint;

    #[test]
    fn what_must_not_happen_fails() {
        let sound = || Books::new(&Machine::here());
        assert!(sound().verdict().is_ok());
        assert!(
            Books {
                damaged: 1,
                ..sound()
            }
            .verdict()
            .is_err()
        );
        assert!(
            Books {
                redials: 3,
                crashes: 2,
                ..sound()
            }
            .verdict()
            .is_err()
        );
        let growth =
            Footprint::of_one("lasthop", [1, 5]).growth_to(&Footprint::of_one("lasthop", [1, 6]));
        let leaky = Books { growth, ..sound() };
        assert!(leaky.verdict().is_err());
        assert!(
            leaky
                .markdown()
                .contains("| **descriptors left over** | 1 |")
        );
    }
}
