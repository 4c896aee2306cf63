//! Tables of a worker for people, part by part: a part takes little of the time in which frames
//! wait.

use channel::user_reports::{
    USER_ROWS, UserFlow, UserLease, UserPage, UserQuestion, UserRows, UserTable,
};
use usernet::network::Protocol;
use usernet::{Listed, Nanos};

use super::gateway::Gateway;

/// Most slots that are looked at for a part: free ones have no rows.
const SLOTS: u32 = 4096;
const MS: Nanos = 1_000_000;
const SECOND: Nanos = 1_000_000_000;

/// Answers a question.
pub(super) fn page(gateway: &mut Gateway, question: UserQuestion, now: Nanos) -> UserPage {
    let (rows, next) = match question.table {
        UserTable::Flows => flow_rows(gateway, question.from, now),
        UserTable::Leases => lease_rows(gateway, question.from, now),
    };
    UserPage {
        question,
        rows,
        next,
    }
}

fn flow_rows(gateway: &mut Gateway, from: u32, now: Nanos) -> (UserRows, Option<u32>) {
    let slots = gateway.translator.slots();
    let end = slots.min(from.saturating_add(SLOTS));
    let (mut rows, mut at) = (Vec::new(), from);
    while at < end && rows.len() < USER_ROWS {
        let listed = gateway.translator.listed(at);
        rows.extend(listed.map(|listed| flow_row(gateway, &listed, now)));
        at += 1;
    }
    (UserRows::Flows(rows), (at < slots).then_some(at))
}

fn flow_row(gateway: &mut Gateway, listed: &Listed, now: Nanos) -> UserFlow {
    // A connection that both ends have closed has no socket.
    let socket = gateway.sockets.get(listed.id);
    let (opened, bytes) = socket.map_or((None, None), |socket| {
        let bytes = match listed.protocol {
            Protocol::Tcp => socket.moved(listed.connected),
            _ => socket.datagram_bytes(),
        };
        (socket.opened, bytes)
    });
    UserFlow {
        state: listed.state as u8,
        mac: listed.station.0,
        guest: listed.guest,
        peer: listed.peer,
        age_ms: opened.map(|opened| now.saturating_sub(opened) / MS),
        bytes,
    }
}

fn lease_rows(gateway: &Gateway, from: u32, now: Nanos) -> (UserRows, Option<u32>) {
    let mut leases = gateway.services.leases().iter().skip(from as usize);
    let part = leases.by_ref().take(USER_ROWS);
    let rows = part.map(|lease| UserLease {
        mac: lease.mac.0,
        address: lease.address,
        seconds: u32::try_from(lease.until.saturating_sub(now) / SECOND).unwrap_or(u32::MAX),
    });
    let rows = rows.collect();
    let next = leases.next().map(|_| from.saturating_add(USER_ROWS as u32));
    (UserRows::Leases(rows), next)
}
