//! Events of the switch, and its periodic requests: FDB entries in use, flows to revalidate.

use std::io;
use std::time::Duration;

use channel::switching::{self, StationUse, SwitchCommand, SwitchEvent};
use wire::MacAddr;

use super::Engine;

/// Difference, 1 s, that the clocks of switch and control may have between two requests.
const OVERLAP: Duration = Duration::from_secs(1);

impl Engine {
    /// Handles the events that the switch has sent.
    pub(super) fn handle_switch_events(&mut self) -> io::Result<()> {
        while let Some(report) = self.switch.poll()? {
            match report {
                SwitchEvent::Stations(uses) => self.refresh_stations(&uses),
                SwitchEvent::Done { number, error } => {
                    self.finish_rule_counts(number, error.as_deref())?;
                    self.finish_flow_dump(number, error);
                    if let Some((_, sent_at)) = self.stations_request.take_if(|(n, _)| *n == number)
                    {
                        self.last_stations_request = sent_at;
                    }
                }
                SwitchEvent::Phase {
                    port,
                    phase,
                    reason,
                } => {
                    self.record_phase(port, phase)?;
                    self.pending_phases.insert(port, (phase, reason));
                    self.emit_phase(port);
                }
                SwitchEvent::Rules(uses) => self.add_rule_counts(&uses),
                SwitchEvent::Flows(number, part) => self.queries.flows.add(number, part),
                SwitchEvent::Adopted { .. }
                | SwitchEvent::PortStates(..)
                | SwitchEvent::Found(_)
                | SwitchEvent::Capture { .. } => {}
            }
        }
        Ok(())
    }

    /// Requests the FDB entries that were in use since the last reply.
    pub(super) fn request_stations(&mut self) -> io::Result<()> {
        let now = self.now();
        let within = now.saturating_sub(self.last_stations_request) + OVERLAP;
        let within_ms = u32::try_from(within.as_millis()).unwrap_or(u32::MAX);
        let number = self
            .switch
            .send(SwitchCommand::Stations { within_ms }, &[])?;
        self.stations_request = Some((number, now));
        Ok(())
    }

    /// Refreshes FDB entries whose flows are in use.
    fn refresh_stations(&mut self, uses: &[StationUse]) {
        let now = self.now();
        for StationUse { station, idle_ms } in uses {
            let seen = now.saturating_sub(Duration::from_millis((*idle_ms).into()));
            let mac = MacAddr(station.mac);
            self.fdb.refresh(seen, station.segment, mac, station.port);
        }
    }

    /// Makes the switch remove the flows that would be decided differently now. That repairs flows
    /// whose invalidation was lost, also by a predecessor.
    pub(super) fn check_flows(&mut self) -> io::Result<()> {
        let stations = self.fdb.list(self.now()).into_iter();
        let stations = stations.map(|s| switching::Station {
            segment: s.segment,
            mac: s.mac.0,
            port: s.port,
        });
        let bound = self.saved.bound.iter();
        let bound = bound.map(|(port, bound)| (*port, *bound));
        let order = SwitchCommand::Check(stations.collect(), bound.collect());
        self.switch.send(order, &[])?;
        Ok(())
    }
}
