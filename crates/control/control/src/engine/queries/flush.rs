//! Flushing the FDB and purging flows on request.

use api::v1::{FdbFilter, FdbFlushResult, Problem};
use ipc::switching::SwitchCommand;
use policy::OutdatedFlows;
use port::PortId;

use crate::engine::forwarding::Forwarding;
use crate::engine::store::Store;
use crate::engine::{SharedEngine, unavailable};

/// Removes learned entries and the flows that depend on them; pinned addresses stay. 404 where
/// there is no such port or segment.
pub(in crate::engine) fn flush_fdb(
    store: &mut Store,
    forwarding: &mut Forwarding,
    filter: &FdbFilter,
) -> Result<FdbFlushResult, Problem> {
    filter.check(&store.saved.desired)?;
    let numbers = &store.saved.numbers;
    let segment = filter.segment.as_ref();
    let segment = segment.and_then(|name| numbers.segments.get(name)).copied();
    let port = filter.port.as_ref();
    let port = port.and_then(|name| numbers.ports.get(name)).copied();
    let (flushed, effects) = forwarding.fdb.flush(segment, port);
    forwarding.apply_effects(effects);
    // A successor would restore the entries from the file.
    store.save(forwarding).map_err(unavailable)?;
    let flushed = flushed as u64;
    Ok(FdbFlushResult { flushed })
}

/// Makes the switch remove its flows, all or those from and to a port. They are decided again, and
/// frames that wait for a decision are not lost: the effect is that of a program that changes all
/// of them. As it sends the program in effect, no change may be under way.
pub(in crate::engine) async fn purge_flows(
    engine: &SharedEngine<'_>,
    port: Option<&str>,
) -> Result<(), Problem> {
    let order = engine.with(|e| {
        let ports: Vec<PortId> = match port {
            Some(name) => {
                let port = e.store.saved.numbers.ports.get(name).copied();
                vec![port.ok_or_else(|| Problem::no_such("port", name))?]
            }
            None => e.ports.configs.keys().copied().collect(),
        };
        Ok(SwitchCommand::Program {
            program: e.forwarding.program.without_rules(),
            outdated: Some(OutdatedFlows::ports(ports)),
        })
    })?;
    engine.order(order).await
}
