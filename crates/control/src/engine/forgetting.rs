//! What is forgotten because somebody says so.

use api::v1::{FdbFilter, FdbFlushed, Problem};
use channel::switching::Order;
use policy::Outdated;
use port::PortId;

use super::{Engine, unavailable};

impl Engine {
    /// Forgets what was learned, and the flows that go by it; pinned addresses stay. 404 where there is no such port or segment.
    pub(super) fn flush_fdb(&mut self, filter: &FdbFilter) -> Result<FdbFlushed, Problem> {
        filter.check(&self.saved.wanted)?;
        let numbers = &self.saved.numbers;
        let segment = filter.segment.as_ref();
        let segment = segment.and_then(|name| numbers.segments.get(name)).copied();
        let port = filter.port.as_ref();
        let port = port.and_then(|name| numbers.ports.get(name)).copied();
        let (flushed, effects) = self.fdb.flush(segment, port);
        self.carry_out(effects);
        // The next control would know them by the file.
        self.save().map_err(unavailable)?;
        let flushed = flushed as u64;
        Ok(FdbFlushed { flushed })
    }

    /// Has the switch forget its flows, all or those from and to a port. They are decided anew, and what waits for that is not
    /// lost: it is as if the program had changed for all of them.
    pub(super) fn purge_flows(&mut self, port: Option<&str>) -> Result<(), Problem> {
        let ports: Vec<PortId> = match port {
            Some(name) => {
                let port = self.saved.numbers.ports.get(name).copied();
                vec![port.ok_or_else(|| Problem::no_such_port(name))?]
            }
            None => self.ports.keys().copied().collect(),
        };
        self.order(Order::Program {
            program: self.program.without_rules(),
            outdated: Some(Outdated::ports(ports)),
        })
    }
}
