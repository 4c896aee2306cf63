//! Connections of ports: their numbers, their limits, and events about limits that are reached.

use std::collections::BTreeMap;

use api::v1::{AccountStatus, ConnectionLimit, ConnectionOpener, EventKind, PortConnections};
use conntrack::table::{Account, Kind, LimitKind, Occupancy, Reader};
use port::PortId;

use crate::engine::Engine;

/// Both accounts of a port.
const ACCOUNTS: [(Kind, ConnectionOpener); 2] = [
    (Kind::Opened, ConnectionOpener::Opened),
    (Kind::OpenedTo, ConnectionOpener::OpenedTo),
];

/// Returns the connections of a port.
fn port_connections(reader: &Reader, occupancy: Occupancy, port: u16) -> PortConnections {
    let [opened, opened_to] = ACCOUNTS.map(|(kind, _)| {
        let counts = reader.counts(Account { port, kind });
        let (bound, limit) = occupancy.limit(reader.configured(port), counts.all);
        let bound = match bound {
            LimitKind::Configured => ConnectionLimit::Limit,
            _ => ConnectionLimit::Share,
        };
        AccountStatus {
            connections: counts.all,
            unreplied: counts.unreplied,
            limit,
            bound,
            unreplied_limit: occupancy.unreplied(),
        }
    });
    let totals = reader.totals(port);
    PortConnections {
        opened,
        opened_to,
        opened_total: totals.opened,
        evicted_unreplied: totals.evicted_unreplied,
        evicted: totals.evicted,
        refused: totals.refused,
        invalid: totals.invalid,
    }
}

/// Returns whether connections are below seven eighths of a bound, and of that of unanswered ones.
fn is_well_below(of: &AccountStatus) -> bool {
    let below = |number: u32, limit: u32| u64::from(number) * 8 < u64::from(limit) * 7;
    below(of.connections, of.limit) && below(of.unreplied, of.unreplied_limit)
}

/// Returns the connections of all ports, where there is a table.
pub(in crate::engine) fn connections(engine: &mut Engine) -> BTreeMap<PortId, PortConnections> {
    let Some(reader) = engine.connections.reader() else {
        return BTreeMap::new();
    };
    let occupancy = reader.occupancy();
    let ports = engine.store.saved.numbers.ports.values();
    ports
        .map(|port| (*port, port_connections(reader, occupancy, port.0 as u16)))
        .collect()
}

/// Sends an event for each port with connections at a bound, once until they are
/// well below it.
pub(in crate::engine) fn report_full(engine: &mut Engine) {
    let now = engine.now();
    for (port, of) in connections(engine) {
        let name = engine.ports.name(port).to_owned();
        let accounts = [&of.opened, &of.opened_to];
        for ((_, opener), account) in ACCOUNTS.into_iter().zip(accounts) {
            let Some((bound, limit)) = account.reached() else {
                if is_well_below(account) {
                    engine.events.no_longer_full((port, opener));
                }
                continue;
            };
            let what = EventKind::ConnectionsFull {
                port: name.clone(),
                opener,
                bound,
                limit,
            };
            engine.events.full(now, (port, opener), what);
        }
    }
}
