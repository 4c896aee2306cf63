//! Figures, flows and leases of user ports, which their driver processes report. The tables come in
//! parts: a driver that is asked for much at once would have frames wait.

use std::collections::BTreeMap;

use api::v1::{
    PortKind, PortStatus, Problem, ProblemKind, USER_LIST_DEFAULT, USER_LIST_MAX, USER_STALLED_MAX,
    UserFlowCount, UserFlowEntry, UserFlowTcp, UserFlowTimer, UserFlowWait, UserFlowsDocument,
    UserFlowsFilter, UserLeaseEntry, UserLeasesDocument, UserPortStatus, UserResolverStatus,
    UserResolverWay, Warning, parse_mac,
};
use ipc::user_reports::{
    USER_REFUSALS, USER_RESULTS, USER_STATES, UserFigures, UserFlow, UserLease, UserOutcome,
    UserQuestion, UserResolver, UserRows, UserTable, UserTimer, UserWait, UserWay,
};
use port::counters::PortCounts;
use wire::MacAddr;

use crate::engine::{Engine, SharedEngine, unavailable};

/// Maximum number of parts of a table that are asked for. 64 have all leases; 144 have as many
/// stalled flows as an answer may have, of all flows of a port.
const PARTS_MAX: usize = 256;

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
        resolvers: of.resolvers.iter().flatten().map(resolver).collect(),
        echo_denied: of.echo_denied,
    }
}

fn resolver(of: &UserResolver) -> UserResolverStatus {
    let way = |of: &UserWay| UserResolverWay {
        state: outcome(of.outcome),
        asked_last: of.is_last,
    };
    UserResolverStatus {
        address: of.address.to_string(),
        udp: way(&of.udp),
        tcp: way(&of.tcp),
    }
}

/// Returns the word for an outcome; of response codes, the usual name (RFC 6895, section 2.3).
fn outcome(of: UserOutcome) -> String {
    let word = match of {
        UserOutcome::NotAsked => "not-asked",
        UserOutcome::Answered => "answers",
        UserOutcome::Error(1) => "FORMERR",
        UserOutcome::Error(2) => "SERVFAIL",
        UserOutcome::Error(4) => "NOTIMP",
        UserOutcome::Error(5) => "REFUSED",
        UserOutcome::Error(code) => return format!("rcode {code}"),
        UserOutcome::Lame => "lame",
        UserOutcome::Nonsense => "nonsense",
        UserOutcome::Closed => "closed",
        UserOutcome::Unreachable => "unreachable",
        UserOutcome::Silent => "silent",
    };
    word.to_owned()
}

/// Returns warnings about user ports to which the system denies what their guests may expect.
pub(super) fn warnings(ports: &[PortStatus]) -> impl Iterator<Item = Warning> {
    let is_denied = |port: &&PortStatus| {
        let driver = port.driver_status.as_ref();
        driver.is_some_and(|driver| driver.user.as_ref().is_some_and(|user| user.echo_denied))
    };
    ports.iter().filter(is_denied).map(|port| Warning {
        text: format!(
            "port {}: guests cannot ping the outside: the group of its driver process is not in \
             net.ipv4.ping_group_range",
            port.name
        ),
        ports: vec![port.name.clone()],
    })
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
    engine: &SharedEngine<'_>,
    port: &str,
    filter: &UserFlowsFilter,
) -> Result<UserFlowsDocument, Problem> {
    let limit = filter.limit.unwrap_or(USER_LIST_DEFAULT);
    if !(1..=USER_LIST_MAX).contains(&limit) {
        let detail = format!("must be from 1 to {USER_LIST_MAX}");
        return Err(Problem::new(ProblemKind::Invalid, detail).with_field("limit"));
    }
    let stalled = filter.stalled_seconds;
    if stalled.is_some_and(|seconds| seconds > USER_STALLED_MAX) {
        let detail = format!("must be from 0 to {USER_STALLED_MAX}");
        return Err(Problem::new(ProblemKind::Invalid, detail).with_field("stalled_seconds"));
    }
    let flows = stalled.map_or(UserTable::Flows, |seconds| {
        UserTable::StalledFlows(seconds.saturating_mul(1000))
    });
    let mut rows = Vec::new();
    let all = |part| match part {
        UserRows::Flows(part) => {
            rows.extend(part);
            rows.len() >= limit.into()
        }
        UserRows::Leases(_) | UserRows::Forwards(_) => true,
    };
    table(engine, port, flows, all).await?;
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
    engine: &SharedEngine<'_>,
    port: &str,
) -> Result<UserLeasesDocument, Problem> {
    let mut rows = Vec::new();
    let all = |part| match part {
        UserRows::Leases(part) => {
            rows.extend(part);
            false
        }
        UserRows::Flows(_) | UserRows::Forwards(_) => true,
    };
    table(engine, port, UserTable::Leases, all).await?;
    let names = engine.with(|e| names_of_stations(e, port));
    let present = rows.iter().filter(|lease| lease.seconds > 0);
    Ok(UserLeasesDocument {
        leases: present.map(|row| lease_entry(row, &names)).collect(),
    })
}

/// Asks for a table of a user port part by part, until `take` has enough.
pub(super) async fn table(
    engine: &SharedEngine<'_>,
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
        waits_for: wait(row.waits_for),
        progress_ms: row.progress_ms,
        timer: row.timer.map(|(kind, _)| timer(kind)),
        timer_ms: row.timer.map(|(_, ms)| ms),
        tcp: row.tcp.map(|tcp| UserFlowTcp {
            unacknowledged_bytes: tcp.unacknowledged,
            window_bytes: tcp.window,
            pending_bytes: tcp.pending,
            queued_bytes: tcp.queued,
            room_bytes: tcp.room,
            retransmissions: tcp.retransmissions,
        }),
    }
}

fn wait(of: UserWait) -> UserFlowWait {
    match of {
        UserWait::GuestWindow => UserFlowWait::GuestWindow,
        UserWait::Buffer => UserFlowWait::Buffer,
        UserWait::Turn => UserFlowWait::Turn,
        UserWait::Acknowledgement => UserFlowWait::Acknowledgement,
        UserWait::HostSocket => UserFlowWait::HostSocket,
        UserWait::Nothing => UserFlowWait::Nothing,
    }
}

fn timer(of: UserTimer) -> UserFlowTimer {
    match of {
        UserTimer::Retransmission => UserFlowTimer::Retransmission,
        UserTimer::Probe => UserFlowTimer::Probe,
        UserTimer::KeepAlive => UserFlowTimer::KeepAlive,
        UserTimer::Expiry => UserFlowTimer::Expiry,
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

pub(super) fn check_user_port(engine: &Engine, name: &str) -> Result<(), Problem> {
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
    use ipc::user_reports::UserTotals;
    use port::DropReason;

    use super::*;

    #[test]
    fn resolvers_have_their_states() {
        let way = |outcome, is_last| UserWay { outcome, is_last };
        let resolver = UserResolver {
            address: "[2001:db8::1]:53".parse().unwrap(),
            udp: way(UserOutcome::Silent, true),
            tcp: way(UserOutcome::Error(2), false),
        };
        let mut figures = UserFigures::default();
        figures.resolvers[0] = Some(resolver);
        let [status] = &status_of(&figures).resolvers[..] else {
            panic!("one resolver");
        };
        assert_eq!(status.address, "[2001:db8::1]:53");
        assert_eq!(
            (&*status.udp.state, status.udp.asked_last),
            ("silent", true)
        );
        assert_eq!(
            (&*status.tcp.state, status.tcp.asked_last),
            ("SERVFAIL", false)
        );
        assert_eq!(outcome(UserOutcome::Error(23)), "rcode 23");
    }

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
