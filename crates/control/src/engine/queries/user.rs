//! Figures, flows and leases of user ports, which their driver processes report. The tables come in
//! parts: a driver that is asked for much at once would have frames wait.

use std::collections::BTreeMap;

use api::v1::{
    PortKind, Problem, ProblemKind, USER_LIST_DEFAULT, USER_LIST_MAX, UserFlowCount, UserFlowEntry,
    UserFlowsDocument, UserFlowsFilter, UserLeaseEntry, UserLeasesDocument, UserPortStatus,
    parse_mac,
};
use channel::user_reports::{
    USER_REFUSALS, USER_RESULTS, USER_STATES, UserFigures, UserFlow, UserLease, UserQuestion,
    UserRows, UserTable,
};
use port::counters::PortCounts;
use wire::MacAddr;

use crate::engine::{Engine, Shared, unavailable};

/// Most parts of a table that are asked for; 64 have all leases, and half as many as many flows as
/// an answer may have.
const PARTS_MAX: usize = 128;

/// Returns the figures for the status of a port.
pub(super) fn status_of(of: &UserFigures) -> UserPortStatus {
    let states = USER_STATES.iter().zip(of.flows);
    let states = states.map(|((protocol, state), flows)| UserFlowCount {
        protocol: (*protocol).to_owned(),
        state: (*state).to_owned(),
        flows,
    });
    let results = USER_RESULTS.iter().zip(of.totals.results);
    let refused = USER_REFUSALS.iter().zip(of.totals.refused);
    UserPortStatus {
        flows: of.all_flows(),
        flows_max: of.flows_max,
        kept: of.kept,
        kept_max: of.kept_max,
        states: states.collect(),
        results: results
            .map(|(result, flows)| ((*result).to_owned(), flows))
            .collect(),
        refused: refused
            .map(|(reason, count)| (reason.name().to_owned(), count))
            .collect(),
        from_guests_bytes: of.totals.from_guests,
        to_guests_bytes: of.totals.to_guests,
        dns_questions: of.totals.dns_questions,
    }
}

/// Adds what the driver of a user port has refused to the drops that the switch has counted.
pub(super) fn add_refused(counts: &mut PortCounts, of: &UserPortStatus) {
    for reason in USER_REFUSALS {
        let refused = of.refused.get(reason.name()).copied().unwrap_or_default();
        let at = reason as usize;
        if counts.drops.len() <= at {
            counts.drops.resize(at + 1, 0);
        }
        counts.drops[at] = counts.drops[at].saturating_add(refused);
    }
}

/// Returns flows of a user port.
///
/// # Errors
/// There is no such port or limit, or its driver does not answer.
pub(in crate::engine) async fn flows(
    engine: &Shared<'_>,
    port: &str,
    filter: &UserFlowsFilter,
) -> Result<UserFlowsDocument, Problem> {
    let limit = filter.limit.unwrap_or(USER_LIST_DEFAULT);
    if !(1..=USER_LIST_MAX).contains(&limit) {
        let detail = format!("must be from 1 to {USER_LIST_MAX}");
        return Err(Problem::new(ProblemKind::Invalid, detail).with_field("limit"));
    }
    let mut rows = Vec::new();
    let all = |part| match part {
        UserRows::Flows(part) => {
            rows.extend(part);
            rows.len() >= limit.into()
        }
        UserRows::Leases(_) => true,
    };
    table(engine, port, UserTable::Flows, all).await?;
    rows.truncate(limit.into());
    let names = engine.with(|e| names_of_stations(e, port));
    let flows = rows.iter().map(|row| flow_entry(row, &names));
    Ok(UserFlowsDocument {
        flows: flows.collect(),
    })
}

/// Returns the leases of a user port.
///
/// # Errors
/// As [`flows`].
pub(in crate::engine) async fn leases(
    engine: &Shared<'_>,
    port: &str,
) -> Result<UserLeasesDocument, Problem> {
    let mut rows = Vec::new();
    let all = |part| match part {
        UserRows::Leases(part) => {
            rows.extend(part);
            false
        }
        UserRows::Flows(_) => true,
    };
    table(engine, port, UserTable::Leases, all).await?;
    let names = engine.with(|e| names_of_stations(e, port));
    let present = rows.iter().filter(|lease| lease.seconds > 0);
    Ok(UserLeasesDocument {
        leases: present.map(|row| lease_entry(row, &names)).collect(),
    })
}

/// Asks for a table of a user port part by part, until `take` has enough.
async fn table(
    engine: &Shared<'_>,
    port: &str,
    table: UserTable,
    mut take: impl FnMut(UserRows) -> bool,
) -> Result<(), Problem> {
    engine.with(|e| check_user_port(e, port))?;
    let mut from = 0;
    for _ in 0..PARTS_MAX {
        let question = UserQuestion { table, from };
        let page = engine.with(|e| e.links.supervisor.user_page(port, question));
        let page = page.await.map_err(unavailable)?;
        let page = page.map_err(|reason| Problem::unavailable(format!("port {port}: {reason}")))?;
        let has_enough = take(page.rows);
        match page.next {
            Some(next) if !has_enough => from = next,
            _ => break,
        }
    }
    Ok(())
}

type Names = BTreeMap<[u8; 6], String>;

fn flow_entry(row: &UserFlow, names: &Names) -> UserFlowEntry {
    let state = USER_STATES.get(usize::from(row.state));
    let (protocol, state) = state.copied().unwrap_or_default();
    let [from_guest, to_guest] = row.bytes.map_or([None; 2], |bytes| bytes.map(Some));
    UserFlowEntry {
        protocol: protocol.to_owned(),
        state: state.to_owned(),
        guest: row.guest.to_string(),
        mac: MacAddr(row.mac).to_string(),
        port: names.get(&row.mac).cloned(),
        peer: row.peer.to_string(),
        age_ms: row.age_ms,
        from_guest_bytes: from_guest,
        to_guest_bytes: to_guest,
    }
}

fn lease_entry(row: &UserLease, names: &Names) -> UserLeaseEntry {
    UserLeaseEntry {
        mac: MacAddr(row.mac).to_string(),
        address: row.address.to_string(),
        port: names.get(&row.mac).cloned(),
        seconds: row.seconds,
    }
}

fn check_user_port(engine: &Engine, name: &str) -> Result<(), Problem> {
    match engine.store.saved.desired.port(name) {
        None => Err(Problem::no_such("port", name)),
        Some(port) if port.kind == PortKind::User => Ok(()),
        Some(_) => {
            let detail = format!("port `{name}` is not of kind `user`");
            Err(Problem::new(ProblemKind::NotFound, detail))
        }
    }
}

/// Returns the names of ports by the MAC addresses of their guests in the segment of a port:
/// those that are configured, and those that were learned.
fn names_of_stations(engine: &Engine, port: &str) -> Names {
    let desired = &engine.store.saved.desired;
    let segments = |name: &str| {
        let port = desired.port(name);
        let all = port.map(|port| port.segments().map(str::to_owned).collect::<Vec<_>>());
        all.unwrap_or_default()
    };
    let own = segments(port);
    let in_segment = |name: &str| segments(name).iter().any(|of| own.contains(of));
    let configured = desired.ports.iter().filter(|other| in_segment(&other.name));
    let configured = configured.filter_map(|other| {
        let mac = parse_mac(other.mac.as_deref()?)?;
        Some((mac, other.name.clone()))
    });
    let learned = engine.forwarding.fdb.list(engine.now()).into_iter();
    let learned = learned.filter(|station| {
        let segment = engine.store.segment_name(station.segment);
        own.iter().any(|of| of == segment)
    });
    let learned = learned.map(|station| {
        let name = engine.ports.name(station.port).to_owned();
        (station.mac.0, name)
    });
    learned.chain(configured).collect()
}

#[cfg(test)]
mod tests {
    use channel::user_reports::UserTotals;
    use port::DropReason;

    use super::*;

    #[test]
    fn refusals_of_the_driver_are_drops_of_its_port() {
        let figures = UserFigures {
            flows: [1, 2, 0, 0, 4],
            totals: UserTotals {
                refused: [5, 0, 0, 0, 6, 0],
                ..UserTotals::default()
            },
            ..UserFigures::default()
        };
        let status = status_of(&figures);
        assert_eq!((status.flows, status.refused["user-denied"]), (7, 5));
        let mut counts = PortCounts::default();
        add_refused(&mut counts, &status);
        add_refused(&mut counts, &status);
        assert_eq!(counts.dropped(DropReason::UserDenied), 10);
        assert_eq!(counts.dropped(DropReason::UserUnreachable), 12);
        assert_eq!(counts.dropped(DropReason::UserFlows), 0);
    }
}
