//! What the switch reports, and is asked for again and again: who is there, whose flows are in use, and whether they are right.

use std::io;
use std::time::Duration;

use channel::switching::{self, Order, Report, StationUse};
use wire::MacAddr;

use super::Engine;

/// What the switch's clock and this one may differ by between two questions.
const OVERLAP: Duration = Duration::from_secs(1);

impl Engine {
    /// Hears what the switch has to say.
    pub(super) fn hear_switch(&mut self) -> io::Result<()> {
        while let Some(report) = self.switch.poll()? {
            match report {
                Report::Stations(uses) => self.note_use(&uses),
                Report::Done { number, error } => {
                    self.rules_are_told(number, error.as_deref())?;
                    self.flows_are_told(number, error);
                    if let Some((_, asked)) = self.asked.take_if(|(n, _)| *n == number) {
                        self.heard = asked;
                    }
                }
                Report::Phase {
                    port,
                    phase,
                    reason,
                } => {
                    self.note_phase(port, phase)?;
                    self.phases_untold.insert(port, (phase, reason));
                    self.tell_phase(port);
                }
                Report::Rules(uses) => self.note_rules(&uses),
                Report::Flows(number, part) => self.inquiries.flows.note(number, part),
                Report::Adopted { .. }
                | Report::PortStates(..)
                | Report::Found(_)
                | Report::Capture { .. } => {}
            }
        }
        Ok(())
    }

    /// Asks which stations were in use since the last answer.
    pub(super) fn ask_for_stations(&mut self) -> io::Result<()> {
        let now = self.now();
        let within = now.saturating_sub(self.heard) + OVERLAP;
        let within_ms = u32::try_from(within.as_millis()).unwrap_or(u32::MAX);
        let number = self.switch.order(Order::Stations { within_ms }, &[])?;
        self.asked = Some((number, now));
        Ok(())
    }

    /// Stations whose flows are in use stay young.
    fn note_use(&mut self, uses: &[StationUse]) {
        let now = self.now();
        for StationUse { station, idle_ms } in uses {
            let seen = now.saturating_sub(Duration::from_millis((*idle_ms).into()));
            let mac = MacAddr(station.mac);
            self.fdb.refresh(seen, station.segment, mac, station.port);
        }
    }

    /// Has the switch forget the flows that would be decided otherwise now. That heals whatever was lost between
    /// it and us, or our predecessor.
    pub(super) fn check_flows(&mut self) -> io::Result<()> {
        let stations = self.fdb.list(self.now()).into_iter();
        let stations = stations.map(|s| switching::Station {
            segment: s.segment,
            mac: s.mac.0,
            port: s.port,
        });
        let bound = self.saved.bound.iter();
        let bound = bound.map(|(port, bound)| (*port, *bound));
        let order = Order::Check(stations.collect(), bound.collect());
        self.switch.order(order, &[])?;
        Ok(())
    }
}
