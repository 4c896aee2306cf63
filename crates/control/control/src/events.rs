//! Events: state changes, for the event stream and as log lines.
//!
//! ```text
//! engine ------+                           +--> GET /v1/events, a position for each client
//! API server --+--> Events: the last ones -+
//! supervisor --+    and a line of the log
//! ```
//!
//! The position is all that is kept for a client: a slow or absent one finds that the oldest events
//! are gone, and gets their number.

mod ring;
mod stream;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use api::v1::{Action, Event, EventKind, FieldChange, Problem, Requester, Step, Subject};
use ipc::peer::Peer;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

pub use api::v1::event_text::{message, printable};
pub use ipc::audit::{logged, requester, unlogged};
use ring::Ring;
pub use stream::{EventStream, Start};

use config::desired::Difference;

/// Most clients at once.
pub const MAX_CLIENTS: usize = 16;
/// Most bytes of the fields of a change in an event, as JSON.
const FIELDS_MAX: usize = 8192;

/// The last events, and the clients that wait for the next. Clones share them.
#[derive(Clone, Debug)]
pub struct Events(Arc<SharedEvents>);

#[derive(Debug)]
struct SharedEvents {
    ring: Mutex<Ring>,
    head: watch::Sender<Head>,
    slots: Arc<Semaphore>,
}

/// The position that waiting clients watch.
#[derive(Clone, Copy, Debug, Default)]
struct Head {
    /// Number of the last event.
    last: u64,
    /// Number of times that all streams were ended.
    round: u64,
}

impl Default for Events {
    /// Creates an empty ring. Its epoch distinguishes its numbers from those of earlier rings.
    fn default() -> Self {
        Self::of_epoch(sys::time::since_1970().as_micros() as u64)
    }
}

impl Events {
    fn of_epoch(epoch: u64) -> Self {
        Self(Arc::new(SharedEvents {
            ring: Mutex::new(Ring::new(epoch)),
            head: watch::Sender::default(),
            slots: Arc::new(Semaphore::new(MAX_CLIENTS)),
        }))
    }

    /// Publishes an event and writes its log line. `suppressed`: number of similar events that were
    /// not published before.
    pub fn emit(&self, what: EventKind, suppressed: u64) {
        self.publish(logged(what, suppressed));
    }

    /// Publishes an event that is in the log already.
    pub fn publish(&self, event: Event) {
        let last = self.ring().push(event);
        // Two threads may get here in another order than they got their numbers.
        self.0
            .head
            .send_modify(|head| head.last = head.last.max(last));
    }

    /// Publishes the differences that a change has made.
    pub(crate) fn emit_difference(
        &self,
        by: Option<Peer>,
        (difference, more_rules): (Difference, u64),
    ) {
        let by = by.map(requester);
        if more_rules > 0 {
            self.emit(many_rules_changed(by, more_rules), 0);
        }
        for step in difference.changes {
            self.emit(change(by, step), 0);
        }
    }

    /// Ends the streams of all clients, which reconnect.
    pub fn end_clients(&self) {
        self.0.head.send_modify(|head| head.round += 1);
    }

    /// Takes the slot of one client.
    ///
    /// # Errors
    /// 503 when all are taken.
    pub fn slot(&self) -> Result<OwnedSemaphorePermit, Problem> {
        let slot = Arc::clone(&self.0.slots).try_acquire_owned();
        slot.map_err(|_| {
            let detail = format!("{MAX_CLIENTS} clients watch events already");
            Problem::unavailable(detail)
        })
    }

    /// Returns all events that are kept.
    #[cfg(test)]
    pub(crate) fn kept(&self) -> Vec<Event> {
        self.ring().kept()
    }

    fn ring(&self) -> MutexGuard<'_, Ring> {
        // The ring is consistent even if a thread panicked with the lock.
        self.0.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the event of a change with too many rules to list them.
fn many_rules_changed(by: Option<Requester>, more_rules: u64) -> EventKind {
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

fn change(by: Option<Requester>, step: Step) -> EventKind {
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

#[cfg(test)]
mod tests;
