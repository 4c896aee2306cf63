//! Events: what has happened, for those who watch, and as lines of the log.
//!
//! ```text
//! engine ------+                           +--> GET /v1/events, each client with a place of its own
//! API server --+--> Events: the last ones -+
//! supervisor --+    and a line of the log
//! ```
//!
//! Nothing is kept for a client but where it is: one that is slow, or was away, finds that the oldest are gone, and is told how many.

mod feed;
mod ring;
mod words;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use api::v1::{Action, Asker, Event, EventKind, EventLevel, FieldChange, Problem, Step, Subject};
use channel::AUDIT;
use channel::peer::Peer;
use rustix::time::{ClockId, clock_gettime};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

pub use feed::{Feed, Start};
use ring::Ring;
pub use words::{asked_by, words};

use crate::wanted::Difference;

/// Clients at once.
pub const CLIENTS: usize = 16;
/// Bytes of the fields of a change that are told, as JSON.
const FIELDS_MAX: usize = 8192;
/// Characters of a text whose length others choose.
const TEXT_MAX: usize = 512;

/// The last events, and who waits for the next. Clones are of the same.
#[derive(Clone, Debug)]
pub struct Events(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    ring: Mutex<Ring>,
    head: watch::Sender<Head>,
    places: Arc<Semaphore>,
}

/// What those who wait look at.
#[derive(Clone, Copy, Debug, Default)]
struct Head {
    /// The number of the last event.
    last: u64,
    /// How often all clients were ended.
    round: u64,
}

impl Default for Events {
    /// None yet. The numbers of others, made before, are told from those of this one.
    fn default() -> Self {
        let (seconds, nanoseconds) = now();
        Self::of_epoch(seconds * 1_000_000 + nanoseconds / 1000)
    }
}

impl Events {
    fn of_epoch(epoch: u64) -> Self {
        Self(Arc::new(Shared {
            ring: Mutex::new(Ring::new(epoch)),
            head: watch::Sender::default(),
            places: Arc::new(Semaphore::new(CLIENTS)),
        }))
    }

    /// Tells those who watch, and the log. `left_out`: how many like it were not told before.
    pub fn tell(&self, what: EventKind, left_out: u64) {
        self.adopt(told(what, left_out));
    }

    /// Tells those who watch what the log knows already.
    pub fn adopt(&self, event: Event) {
        let last = self.ring().push(event);
        // Two threads may come here in another order than they got their numbers.
        self.0
            .head
            .send_modify(|head| head.last = head.last.max(last));
    }

    /// Tells what somebody has changed.
    pub(crate) fn tell_difference(
        &self,
        by: Option<Peer>,
        (difference, more_rules): (Difference, u64),
    ) {
        let by = by.map(asker);
        if more_rules > 0 {
            self.tell(many_rules_changed(by, more_rules), 0);
        }
        for step in difference.changes {
            self.tell(change(by, step), 0);
        }
    }

    /// Ends the streams of all clients. They come back.
    pub fn end_clients(&self) {
        self.0.head.send_modify(|head| head.round += 1);
    }

    /// A place for one client more.
    ///
    /// # Errors
    /// 503 when there is none.
    pub fn place(&self) -> Result<OwnedSemaphorePermit, Problem> {
        let place = Arc::clone(&self.0.places).try_acquire_owned();
        place.map_err(|_| {
            let detail = format!("there are {CLIENTS} clients that watch events already");
            Problem::unavailable(detail)
        })
    }

    /// All that are kept.
    #[cfg(test)]
    pub(crate) fn kept(&self) -> Vec<Event> {
        self.ring().kept()
    }

    fn ring(&self) -> MutexGuard<'_, Ring> {
        // Whoever has died of something else has left it whole.
        self.0.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An event of now, of which the log has its line. It gets its number when it is told to those who watch.
pub fn told(what: EventKind, left_out: u64) -> Event {
    let event = untold(what, left_out);
    let text = words(&event.what);
    let by = event.what.by();
    let (uid, pid) = (by.map(|by| by.uid), by.and_then(|by| by.pid));
    let left_out = Some(left_out).filter(|count| *count > 0);
    match event.level {
        EventLevel::Info => tracing::info!(target: AUDIT, uid, pid, left_out, "{text}"),
        EventLevel::Warn => tracing::warn!(target: AUDIT, uid, pid, left_out, "{text}"),
        EventLevel::Error => tracing::error!(target: AUDIT, uid, pid, left_out, "{text}"),
    }
    event
}

/// The same of what somebody else has logged.
pub fn untold(what: EventKind, left_out: u64) -> Event {
    Event {
        id: String::new(),
        time: words::time(now()),
        level: what.level(),
        left_out,
        what,
    }
}

/// A text whose length and characters others choose, as far as it is told: no control characters, and not too long.
pub fn text(text: &str) -> String {
    let visible = |c: char| if c.is_control() { '\u{fffd}' } else { c };
    text.chars().take(TEXT_MAX).map(visible).collect()
}

/// Who has asked.
pub fn asker(peer: Peer) -> Asker {
    let pid = peer.process.map(|pid| pid.as_raw_nonzero().get());
    Asker {
        uid: peer.user.as_raw(),
        pid: pid.and_then(|pid| u32::try_from(pid).ok()),
    }
}

/// So many that they are not told one by one.
fn many_rules_changed(by: Option<Asker>, more_rules: u64) -> EventKind {
    EventKind::Change {
        by,
        action: Action::Change,
        subject: Subject::Acl,
        name: None,
        fields: Vec::new(),
        more_fields: 0,
        more_rules,
        disconnects: false,
    }
}

fn change(by: Option<Asker>, step: Step) -> EventKind {
    let mut room = FIELDS_MAX;
    let all = step.fields.len();
    let mut fits = |field: &FieldChange| {
        let length = serde_json::to_string(field).map_or(usize::MAX, |text| text.len());
        let left = room.checked_sub(length);
        room = left.unwrap_or(room);
        left.is_some()
    };
    let fields = step.fields.into_iter();
    let fields: Vec<_> = fields.filter(|field| fits(field)).collect();
    EventKind::Change {
        by,
        action: step.action,
        subject: step.subject,
        name: step.name,
        more_fields: (all - fields.len()) as u64,
        more_rules: 0,
        fields,
        disconnects: step.disconnects,
    }
}

/// Seconds since 1970, and nanoseconds.
fn now() -> (u64, u64) {
    let now = clock_gettime(ClockId::Realtime);
    (now.tv_sec as u64, now.tv_nsec as u64)
}

#[cfg(test)]
mod tests;
