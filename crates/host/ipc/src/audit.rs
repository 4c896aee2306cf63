//! Events: state changes with their requester. Every process that sees one logs it at once; control
//! publishes all of them.

use model::{Event, EventKind, EventLevel, Requester, event_text};

use crate::peer::Peer;

/// Target of the log lines, of any process, that are events.
pub const AUDIT: &str = "lasthop::audit";

/// Returns an event of the current time and writes its log line. Its number is assigned by
/// control's ring of events.
#[must_use]
pub fn logged(what: EventKind, suppressed: u64) -> Event {
    let event = unlogged(what, suppressed);
    let text = event_text::message(&event.what);
    let by = event.what.by();
    let (uid, pid) = (by.map(|by| by.uid), by.and_then(|by| by.pid));
    let suppressed = Some(suppressed).filter(|count| *count > 0);
    match event.level {
        EventLevel::Info => tracing::info!(target: AUDIT, uid, pid, suppressed, "{text}"),
        EventLevel::Warn => tracing::warn!(target: AUDIT, uid, pid, suppressed, "{text}"),
        EventLevel::Error => tracing::error!(target: AUDIT, uid, pid, suppressed, "{text}"),
    }
    event
}

/// Returns an event of the current time, which is in the log already.
#[must_use]
pub fn unlogged(what: EventKind, suppressed: u64) -> Event {
    Event {
        id: String::new(),
        time: event_text::time(sys::time::since_1970()),
        level: what.level(),
        suppressed,
        what,
    }
}

/// Returns the requester of a peer.
#[must_use]
pub fn requester(peer: Peer) -> Requester {
    let pid = peer.process.map(|pid| pid.as_raw_nonzero().get());
    Requester {
        uid: peer.user.as_raw(),
        pid: pid.and_then(|pid| u32::try_from(pid).ok()),
    }
}
