//! Flushing the FDB and purging flows on request.

use api::v1::{FdbFilter, FdbFlushed, Problem};
use channel::switching::SwitchCommand;
use policy::Outdated;
use port::PortId;

use super::{Engine, unavailable};

impl Engine {
    /// Removes learned entries and the flows that depend on them; pinned addresses stay. 404 where
    /// there is no such port or segment.
    pub(super) fn flush_fdb(&mut self, filter: &FdbFilter) -> Result<FdbFlushed, Problem> {
        filter.check(&self.saved.desired)?;
        let numbers = &self.saved.numbers;
        let segment = filter.segment.as_ref();
        let segment = segment.and_then(|name| numbers.segments.get(name)).copied();
        let port = filter.port.as_ref();
        let port = port.and_then(|name| numbers.ports.get(name)).copied();
        let (flushed, effects) = self.fdb.flush(segment, port);
        self.apply_effects(effects);
        // A successor would restore the entries from the file.
        self.save().map_err(unavailable)?;
        let flushed = flushed as u64;
        Ok(FdbFlushed { flushed })
    }

    /// Makes the switch remove its flows, all or those from and to a port. They are decided again,
    /// and frames that wait for a decision are not lost: the effect is that of a program that
    /// changes all of them.
    pub(super) fn purge_flows(&mut self, port: Option<&str>) -> Result<(), Problem> {
        let ports: Vec<PortId> = match port {
            Some(name) => {
                let port = self.saved.numbers.ports.get(name).copied();
                vec![port.ok_or_else(|| Problem::no_such("port", name))?]
            }
            None => self.ports.keys().copied().collect(),
        };
        self.order(SwitchCommand::Program {
            program: self.program.without_rules(),
            outdated: Some(Outdated::ports(ports)),
        })
    }
}
