//! Tables about user ports.

use api::v1::{UserFlowEntry, UserFlowTcp, UserForwardEntry, UserLeaseEntry};

use super::super::tables::Table;
use super::{NONE, or_none};
use client::units::{bytes, count, duration};

/// `lasthop user flows`.
pub(in crate::cli) fn flows(flows: &[UserFlowEntry]) -> String {
    let size = |bytes_of: Option<u64>| bytes_of.map_or_else(|| NONE.to_owned(), bytes);
    ends(flows)
        .number("AGE", |flow| {
            let age = flow.age_ms.map(|ms| duration(ms / 1000));
            age.unwrap_or_else(|| NONE.to_owned())
        })
        .number("FROM GUEST", |flow| size(flow.from_guest_bytes))
        .number("TO GUEST", |flow| size(flow.to_guest_bytes))
        .text("WAITS FOR", |flow| flow.waits_for.as_str().to_owned())
        .format_or("no flows")
}

/// `lasthop user flows --stalled`.
pub(in crate::cli) fn stalled(flows: &[UserFlowEntry]) -> String {
    let of_tcp = |flow: &UserFlowEntry, number: fn(&UserFlowTcp) -> String| {
        flow.tcp.as_ref().map_or_else(|| NONE.to_owned(), number)
    };
    ends(flows)
        .text("WAITS FOR", |flow| flow.waits_for.as_str().to_owned())
        .number("PROGRESS", |flow| duration(flow.progress_ms / 1000))
        .number("UNACKED", |flow| {
            of_tcp(flow, |tcp| bytes(tcp.unacknowledged_bytes.into()))
        })
        .number("WINDOW", |flow| {
            of_tcp(flow, |tcp| bytes(tcp.window_bytes.into()))
        })
        .number("PENDING", |flow| {
            of_tcp(flow, |tcp| bytes(tcp.pending_bytes.into()))
        })
        .number("QUEUED", |flow| {
            of_tcp(flow, |tcp| bytes(tcp.queued_bytes.into()))
        })
        .number("ROOM", |flow| {
            of_tcp(flow, |tcp| bytes(tcp.room_bytes.into()))
        })
        .text("TIMER", |flow| match (flow.timer, flow.timer_ms) {
            (Some(timer), Some(ms)) => format!("{} in {}", timer.as_str(), duration(ms / 1000)),
            _ => NONE.to_owned(),
        })
        .number("RETRANSMITTED", |flow| {
            of_tcp(flow, |tcp| count(tcp.retransmissions.into()))
        })
        .format_or("no stalled flows")
}

/// The columns that say which flow it is.
fn ends(flows: &[UserFlowEntry]) -> Table<'_, UserFlowEntry> {
    Table::of(flows)
        .text("PROTOCOL", |flow| flow.protocol.clone())
        .text("GUEST", |flow| flow.guest.clone())
        .text("PORT", |flow| or_none(flow.port.as_ref()))
        .text("PEER", |flow| flow.peer.clone())
        .text("STATE", |flow| flow.state.clone())
}

/// `lasthop user leases`.
pub(in crate::cli) fn leases(leases: &[UserLeaseEntry]) -> String {
    Table::of(leases)
        .text("MAC", |lease| lease.mac.clone())
        .text("ADDRESS", |lease| lease.address.clone())
        .text("PORT", |lease| or_none(lease.port.as_ref()))
        .number("TIME LEFT", |lease| duration(lease.seconds.into()))
        .format_or("no leases")
}

/// `lasthop port forward list`: forwards with their states, or why they are not ready.
pub(in crate::cli) fn forwards(forwards: &[UserForwardEntry]) -> String {
    Table::of(forwards)
        .text("LISTEN", |forward| forward.listen.clone())
        .text("TO", |forward| forward.to.clone())
        .text("STATE", |forward| forward.state.as_str().to_owned())
        .text("REASON", |forward| or_none(forward.reason.as_ref()))
        .format_or("no forwards")
}
