//! Tables of a worker for people, part by part: frames wait while a part is made.

use ipc::user_reports::{
    USER_ROWS, UserFlow, UserForwardRow, UserLease, UserPage, UserQuestion, UserRows, UserTable,
    UserTcp, UserTimer, UserWait,
};
use usernet::network::Protocol;
use usernet::{ListedFlow, Nanos, SocketQueues, TimerKind, WaitsFor};

use super::forwards;
use super::gateway::Gateway;
use super::sockets::End;

/// Maximum number of slots that are looked at for a part: free ones have no rows.
const SLOTS: u32 = 4096;
/// Maximum number of sockets that are asked for a part.
const ASKED: u32 = 512;
const MS: Nanos = 1_000_000;
const SECOND: Nanos = 1_000_000_000;

/// Answers a question.
pub(super) fn page(gateway: &mut Gateway, question: UserQuestion, now: Nanos) -> UserPage {
    let (rows, next) = match question.table {
        UserTable::Flows => flow_rows(gateway, question.from, None, now),
        UserTable::StalledFlows(ms) => {
            let limit = Nanos::from(ms).saturating_mul(MS);
            flow_rows(gateway, question.from, Some(limit), now)
        }
        UserTable::Leases => lease_rows(gateway, question.from, now),
        UserTable::Forwards => forward_rows(gateway, question.from, now),
    };
    UserPage {
        question,
        rows,
        next,
    }
}

/// Returns flows; with a time, those that wait for something and have made no progress for it.
fn flow_rows(
    gateway: &mut Gateway,
    from: u32,
    stalled: Option<Nanos>,
    now: Nanos,
) -> (UserRows, Option<u32>) {
    let slots = gateway.translator.slots();
    let end = slots.min(from.saturating_add(SLOTS));
    let (mut rows, mut asked, mut at) = (Vec::new(), 0, from);
    while at < end && rows.len() < USER_ROWS && asked < ASKED {
        let listed = gateway.translator.listed(at);
        let is_old =
            |of: &ListedFlow| stalled.is_none_or(|limit| now.saturating_sub(of.progress) >= limit);
        if let Some(listed) = listed.filter(is_old) {
            asked += 1;
            let row = flow_row(gateway, &listed, now);
            let is_stalled = row.waits_for != UserWait::Nothing;
            rows.extend((stalled.is_none() || is_stalled).then_some(row));
        }
        at += 1;
    }
    (UserRows::Flows(rows), (at < slots).then_some(at))
}

fn flow_row(gateway: &mut Gateway, listed: &ListedFlow, now: Nanos) -> UserFlow {
    let has_buffer = gateway.guests.has_room();
    // A connection that both ends have closed has no socket.
    let end = gateway.sockets.get(listed.id);
    let is_tcp = listed.protocol == Protocol::Tcp;
    let (queues, has_datagrams) = match &end {
        Some(End::Socket(socket)) if is_tcp => (socket.queues(), false),
        Some(End::Socket(socket)) => (SocketQueues::default(), socket.has_datagrams()),
        Some(End::Stream(stream)) => (stream.queues(), false),
        None => (SocketQueues::default(), false),
    };
    let (opened, bytes) = match end {
        Some(End::Socket(socket)) if is_tcp => (socket.opened, socket.moved(listed.connected)),
        Some(End::Socket(socket)) => (socket.opened, socket.datagram_bytes()),
        _ => (None, None),
    };
    let waits_for = match has_datagrams {
        true if has_buffer => UserWait::Turn,
        true => UserWait::Buffer,
        false => {
            let translator = &gateway.translator;
            wait(translator.waits_for(listed.id, &queues, has_buffer))
        }
    };
    UserFlow {
        state: listed.state as u8,
        mac: listed.station.0,
        guest: listed.guest,
        peer: listed.peer,
        age_ms: opened.map(|opened| now.saturating_sub(opened) / MS),
        bytes,
        waits_for,
        progress_ms: now.saturating_sub(listed.progress) / MS,
        timer: listed
            .timer
            .map(|(kind, at)| (timer(kind), at.saturating_sub(now) / MS)),
        tcp: listed.tcp.map(|tcp| UserTcp {
            unacknowledged: tcp.unacknowledged,
            window: tcp.window,
            pending: queues.unread.saturating_sub(tcp.unacknowledged),
            queued: queues.unsent,
            room: tcp.room,
            retransmissions: tcp.retransmissions,
        }),
    }
}

fn wait(of: WaitsFor) -> UserWait {
    match of {
        WaitsFor::Nothing => UserWait::Nothing,
        WaitsFor::GuestWindow => UserWait::GuestWindow,
        WaitsFor::Buffer => UserWait::Buffer,
        WaitsFor::Turn => UserWait::Turn,
        WaitsFor::Acknowledgement => UserWait::Acknowledgement,
        WaitsFor::HostSocket => UserWait::HostSocket,
    }
}

fn timer(of: TimerKind) -> UserTimer {
    match of {
        TimerKind::Retransmission => UserTimer::Retransmission,
        TimerKind::Probe => UserTimer::Probe,
        TimerKind::KeepAlive => UserTimer::KeepAlive,
        TimerKind::Expiry => UserTimer::Expiry,
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

fn forward_rows(gateway: &Gateway, from: u32, now: Nanos) -> (UserRows, Option<u32>) {
    let (desired, services) = (&gateway.desired.network, &gateway.services);
    let mut all = gateway.forwards.all().skip(from as usize);
    let rows = all.by_ref().take(USER_ROWS).map(|spec| {
        let address = forwards::address_of(spec, desired, services);
        let station = address.and_then(|ip| forwards::station_of(ip, desired, services, now));
        UserForwardRow {
            listen: spec.listen,
            address,
            has_station: station.is_some(),
        }
    });
    let rows = rows.collect();
    let next = all.next().map(|_| from.saturating_add(USER_ROWS as u32));
    (UserRows::Forwards(rows), next)
}
