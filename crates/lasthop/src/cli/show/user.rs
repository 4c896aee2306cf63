//! Tables about user ports.

use api::v1::{ForwardSpec, UserFlowEntry, UserLeaseEntry};

use super::super::tables::Table;
use super::{NONE, or_none};
use client::units::{bytes, duration};

/// `lasthop user flows`.
pub(in crate::cli) fn flows(flows: &[UserFlowEntry]) -> String {
    let size = |bytes_of: Option<u64>| bytes_of.map_or_else(|| NONE.to_owned(), bytes);
    Table::of(flows)
        .text("PROTOCOL", |flow| flow.protocol.clone())
        .text("GUEST", |flow| flow.guest.clone())
        .text("PORT", |flow| or_none(flow.port.as_ref()))
        .text("PEER", |flow| flow.peer.clone())
        .text("STATE", |flow| flow.state.clone())
        .number("AGE", |flow| {
            let age = flow.age_ms.map(|ms| duration(ms / 1000));
            age.unwrap_or_else(|| NONE.to_owned())
        })
        .number("FROM GUEST", |flow| size(flow.from_guest_bytes))
        .number("TO GUEST", |flow| size(flow.to_guest_bytes))
        .format_or("no flows")
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

/// `lasthop port forward list`: forwards with the refusals of the system.
pub(in crate::cli) fn forwards(forwards: &[(ForwardSpec, String)]) -> String {
    Table::of(forwards)
        .text("LISTEN", |(forward, _)| forward.listen.clone())
        .text("TO", |(forward, _)| forward.to.clone())
        .text("REFUSED", |(_, refusals)| match &**refusals {
            "" => NONE.to_owned(),
            some => some.to_owned(),
        })
        .format_or("no forwards")
}
