//! Metrics of connection tracking, where there is a table of connections.

use api::v1::{AccountStatus, PortConnections};

use super::Facts;
use super::families::{families, labels};
use super::text::{Kind, Page};

/// Returns the connections of both directions: those that the port has opened, and those that were
/// opened to it.
fn directions(of: &PortConnections) -> [(&'static str, &AccountStatus); 2] {
    [("opened", &of.opened), ("opened_to", &of.opened_to)]
}

/// Writes the families.
pub(super) fn write(facts: &Facts, page: &mut Page) {
    let Some(table) = &facts.connections else {
        return;
    };
    families! { page, Gauge,
        "lasthop_connection_table_max" "Maximum number of connections." table.max;
        "lasthop_connection_table_used" "Entries in use in the table of connections." table.used;
    }
    let ports = facts.status.ports.iter();
    let ports = ports.filter_map(|port| Some((&*port.name, port.connections.as_ref()?)));
    let ports: Vec<_> = ports.collect();
    numbers(&ports, page);
    counters(&ports, page);
}

/// Connections now, and their limits.
fn numbers(ports: &[(&str, &PortConnections)], page: &mut Page) {
    let accounts = || {
        ports.iter().flat_map(|(port, of)| {
            let all = directions(of).into_iter();
            all.map(move |(direction, account)| (port, direction, account))
        })
    };
    let states = accounts().flat_map(|(port, direction, account)| {
        let unreplied = account.unreplied;
        let replied = account.connections.saturating_sub(unreplied);
        let states = [("unreplied", unreplied), ("replied", replied)];
        states.map(|(state, number)| (port, direction, state, number))
    });
    families! { page, Gauge, (port, direction, state, number) in states,
        ["port" = port, "direction" = direction, "state" = state],
        "lasthop_connections"
            "Connections that a port has opened (opened), or that ports without guests have opened \
             to it (opened_to), by state: answered (replied) or not (unreplied)."
            number;
    }
    families! { page, Gauge, (port, direction, account) in accounts(),
        ["port" = port, "direction" = direction],
        "lasthop_connections_limit"
            "Limit of the connections of a port: its own, or its share of the table."
            account.limit;
        "lasthop_connections_full"
            "1 if the connections of a port have reached a bound, else 0."
            u8::from(account.reached().is_some());
    }
}

/// Events of connections so far.
fn counters(ports: &[(&str, &PortConnections)], page: &mut Page) {
    families! { page, Counter, (port, of) in ports, ["port" = port],
        "lasthop_connections_new" "Connections that were opened, charged to a port."
            of.opened_total;
        "lasthop_connections_refused"
            "Connections that the limits of a port, or a full table, have refused."
            of.refused;
        "lasthop_connections_invalid"
            "Frames of a port that belonged to no connection and opened none."
            of.invalid;
    }
    let evicted = ports.iter().flat_map(|(port, of)| {
        let reasons = [("unreplied", of.evicted_unreplied), ("oldest", of.evicted)];
        reasons.map(|(reason, connections)| (port, reason, connections))
    });
    families! { page, Counter, (port, reason, connections) in evicted,
        ["port" = port, "reason" = reason],
        "lasthop_connections_evicted"
            "Connections of a port that made room for others: unanswered ones (unreplied), or those \
             without a frame for the longest time (oldest)."
            connections;
    }
}
