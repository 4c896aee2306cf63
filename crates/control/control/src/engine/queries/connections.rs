//! Connections: lists, counts and flushes. The table may have millions, so each looks at a part of
//! it at a time, and the engine does everything else between two parts.

mod entry;
mod flush;
pub(in crate::engine) mod ports;

use api::v1::{
    CONNECTIONS_DEFAULT, CONNECTIONS_MAX, ConnectionTable, ConnectionsCount, ConnectionsDocument,
    ConnectionsFilter, ConnectionsSelection, Problem, ProblemKind,
};
use conntrack::table::{Connection, ConnectionId, Walk};
use filter::{ConnectionEnds, ConnectionFilter};

pub(in crate::engine) use entry::rule_names;
pub(in crate::engine) use flush::flush;

use crate::connections::now;
use crate::engine::{Engine, SharedEngine};

/// Entries that a part looks at: a fraction of a millisecond.
const LOOKS: usize = 1024;

/// Selects connections.
#[derive(Clone, Debug, Default)]
struct Selector {
    port: Option<u16>,
    zone: Option<u16>,
    filter: ConnectionFilter,
}

impl Selector {
    /// Reads a request.
    ///
    /// # Errors
    /// 404 for a port or segment that does not exist, 422 for a filter that is none.
    fn new(of: &ConnectionsSelection, engine: &Engine) -> Result<Self, Problem> {
        let saved = &engine.store.saved;
        of.check(&saved.desired)?;
        let text = of.filter.as_deref().unwrap_or_default();
        let filter = ConnectionFilter::parse(text).map_err(|error| {
            let problem = Problem::new(ProblemKind::Invalid, error.to_string());
            problem.with_column("filter", error.column)
        })?;
        let port = of.port.as_ref();
        let port = port.and_then(|name| saved.numbers.ports.get(name));
        let segment = of.segment.as_ref();
        let segment = segment.and_then(|name| saved.numbers.segments.get(name));
        Ok(Self {
            port: port.map(|port| port.0 as u16),
            zone: segment.map(|segment| segment.0),
            filter,
        })
    }

    fn matches(&self, connection: &Connection) -> bool {
        let tuple = &connection.tuple;
        let is_of = |port: u16| connection.opener() == port || connection.far() == Some(port);
        let ends = || ConnectionEnds {
            protocol: tuple.protocol(),
            source: (tuple.src(), tuple.src_port()),
            destination: (tuple.dst(), tuple.dst_port()),
        };
        self.zone.is_none_or(|zone| zone == tuple.zone())
            && self.port.is_none_or(is_of)
            && self.filter.matches(&ends())
    }
}

/// Shows the selected connections of the next part. Returns whether it is the last one.
fn read(
    engine: &mut Engine,
    walk: &mut Walk,
    selector: &Selector,
    mut show: impl FnMut(ConnectionId, &Connection),
) -> bool {
    let settings = engine.connections.settings();
    let Some(reader) = engine.connections.reader() else {
        return true;
    };
    let part = reader.read(walk, LOOKS, (&settings, now()), |name, connection| {
        if selector.matches(connection) {
            show(name, connection);
        }
    });
    part.finished
}

/// Returns the use of the table.
pub(in crate::engine) fn table(engine: &mut Engine) -> Option<ConnectionTable> {
    let occupancy = engine.connections.reader()?.occupancy();
    Some(ConnectionTable {
        max: occupancy.capacity,
        used: occupancy.taken,
    })
}

/// Returns connections.
///
/// # Errors
/// 404 and 422 for what cannot be selected.
pub(in crate::engine) async fn list(
    engine: &SharedEngine<'_>,
    filter: &ConnectionsFilter,
) -> Result<ConnectionsDocument, Problem> {
    let limit = filter.limit.unwrap_or(CONNECTIONS_DEFAULT);
    if !(1..=CONNECTIONS_MAX).contains(&limit) {
        let detail = format!("must be from 1 to {CONNECTIONS_MAX}");
        return Err(Problem::new(ProblemKind::Invalid, detail).with_field("limit"));
    }
    let limit = usize::from(limit);
    let selector = engine.with(|e| Selector::new(&filter.selection(), e))?;
    let (mut walk, mut found) = (Walk::default(), Vec::new());
    loop {
        // One beyond the limit shows that there are more.
        let take = |_, connection: &Connection| {
            if found.len() <= limit {
                found.push(*connection);
            }
        };
        let is_last = engine.with(|e| read(e, &mut walk, &selector, take));
        if is_last || found.len() > limit {
            break;
        }
        tokio::task::yield_now().await;
    }
    let more = found.len() > limit;
    found.truncate(limit);
    Ok(engine.with(|e| ConnectionsDocument {
        connections: entry::entries(e, &found),
        more,
        table: table(e),
    }))
}

/// Returns the number of connections.
///
/// # Errors
/// As [`list`].
pub(in crate::engine) async fn count(
    engine: &SharedEngine<'_>,
    selection: &ConnectionsSelection,
) -> Result<ConnectionsCount, Problem> {
    let selector = engine.with(|e| Selector::new(selection, e))?;
    let (mut walk, mut count) = (Walk::default(), 0);
    while !engine.with(|e| read(e, &mut walk, &selector, |_, _| count += 1)) {
        tokio::task::yield_now().await;
    }
    Ok(ConnectionsCount {
        count,
        table: engine.with(table),
    })
}
