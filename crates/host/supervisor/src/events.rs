//! Events that only the supervisor sees. They are logged immediately; control forwards them to
//! clients of the event stream.

use std::collections::VecDeque;

use ipc::audit;
use ipc::peer::Peer;
use ipc::supervision::{EventToControl, ProcessInfo};
use model::{Event, EventKind, ProcessChange, Requester};

use super::admin::Client;
use super::child::{ControlChild, Death};

/// Maximum number of queued events.
const MAX_QUEUED: usize = 256;

/// Events that control has not forwarded.
#[derive(Debug, Default)]
pub(super) struct PendingEvents {
    /// Events of the last message to control, which may die before it forwards them.
    unacknowledged: Vec<Event>,
    queued: VecDeque<Event>,
    /// Number of older events that were discarded.
    lost: u64,
}

impl PendingEvents {
    /// Logs an event, and queues it for clients.
    pub(super) fn emit(&mut self, what: EventKind) {
        self.add(audit::logged(what, 0));
    }

    /// Reports the end of a process.
    pub(super) fn emit_ended(&mut self, death: &Death) {
        self.emit(ended(death.kind.to_string(), death));
    }

    /// Reports a process that was restarted.
    pub(super) fn emit_restarted(&mut self, now: ProcessInfo) {
        self.emit(EventKind::Process {
            process: now.name,
            state: ProcessChange::Restarted,
            pid: Some(now.pid),
            restarts: now.restarts.into(),
            reason: None,
        });
    }

    /// Sends all events to a control that waits for them.
    pub(super) fn send_to(&mut self, control: &mut ControlChild) {
        if control.wants_events() && self.send(|event| control.try_send(event, &[]).is_ok()) {
            control.set_wants_events(false);
        }
    }

    /// Sends all events for the last time, whether control waits for them or not.
    pub(super) fn flush_to(&mut self, control: &mut ControlChild) {
        if self.unacknowledged.is_empty() {
            return self.send_to(control);
        }
        self.acknowledge();
        self.send(|event| control.try_send(event, &[]).is_ok());
    }

    pub(super) fn add(&mut self, event: Event) {
        if self.queued.len() == MAX_QUEUED {
            self.queued.pop_front();
            self.lost += 1;
        }
        self.queued.push_back(event);
    }

    /// Notes that control has forwarded the unacknowledged events.
    pub(super) fn acknowledge(&mut self) {
        self.unacknowledged.clear();
    }

    /// Returns all events in order.
    fn all(&self) -> Vec<Event> {
        let lost = (self.lost > 0).then(|| {
            let count = Some(self.lost);
            audit::unlogged(EventKind::Missed { count }, 0)
        });
        let queued = self.queued.iter().cloned();
        let unacknowledged = self.unacknowledged.iter().cloned();
        unacknowledged.chain(lost).chain(queued).collect()
    }

    /// Sends all events by `send`. Returns whether there were any and they were sent.
    fn send(&mut self, send: impl FnOnce(&EventToControl) -> bool) -> bool {
        let all = self.all();
        let documents = all
            .iter()
            .filter_map(|event| serde_json::to_string(event).ok());
        let documents: Vec<String> = documents.collect();
        if documents.is_empty() || !send(&EventToControl::Events(documents)) {
            return false;
        }
        // The number stays bounded, however often control dies.
        let most = all.len().saturating_sub(MAX_QUEUED);
        *self = Self {
            unacknowledged: all.into_iter().skip(most).collect(),
            ..Self::default()
        };
        true
    }
}

/// Returns the event of the end of a process.
pub(super) fn ended(process: String, death: &Death) -> EventKind {
    EventKind::Process {
        process,
        state: ProcessChange::Ended,
        pid: None,
        restarts: death.restarts.into(),
        reason: Some(death.how.clone()),
    }
}

/// Returns the peer of a client, if known.
pub(super) fn requester(client: &Client) -> Option<Requester> {
    Peer::of(client).ok().map(audit::requester)
}

#[cfg(test)]
mod tests {
    use model::Progress;

    use super::*;

    fn event(file: usize) -> Event {
        let what = EventKind::Reload {
            by: None,
            file: file.to_string(),
            progress: Progress::Started,
            reason: None,
        };
        audit::unlogged(what, 0)
    }

    /// Returns the events that are sent.
    fn sent(pending: &mut PendingEvents) -> Vec<EventKind> {
        let mut sent = Vec::new();
        pending.send(|event| {
            let EventToControl::Events(all) = event else {
                return false;
            };
            let read = |document: &String| serde_json::from_str::<Event>(document).unwrap().what;
            sent = all.iter().map(read).collect();
            true
        });
        sent
    }

    #[test]
    fn without_control_the_last_events_are_queued_and_the_others_counted() {
        let mut pending = PendingEvents::default();
        assert_eq!(sent(&mut pending), []);
        (0..MAX_QUEUED + 3).for_each(|file| pending.add(event(file)));
        let all = sent(&mut pending);
        assert_eq!(all.len(), MAX_QUEUED + 1);
        assert_eq!(all[0], EventKind::Missed { count: Some(3) });
        assert_eq!(all[1], event(3).what);
    }

    #[test]
    fn unacknowledged_events_are_sent_to_the_next_control() {
        let mut pending = PendingEvents::default();
        pending.add(event(1));
        assert_eq!(sent(&mut pending), [event(1).what]);
        pending.add(event(2));
        assert_eq!(sent(&mut pending), [event(1).what, event(2).what]);
        pending.acknowledge();
        assert_eq!(sent(&mut pending), []);
        pending.add(event(3));
        assert!(!pending.send(|_| false), "link full");
        assert_eq!(sent(&mut pending), [event(3).what]);
    }
}
