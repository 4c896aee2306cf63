//! What happens of which only the supervisor knows, for those who watch events. The log has it at once; control tells everybody else,
//! when there is one.

use std::collections::VecDeque;
use std::mem;

use api::v1::{Asker, Event, EventKind, ProcessChange};
use channel::peer::Peer;
use channel::supervision::Tell;
use control::events;

use super::Supervisor;
use super::admin::Client;
use super::child::{Child, Death, Kind};

/// Events that wait for control at most.
const WAITING: usize = 256;

/// Events that control has not been told.
#[derive(Debug, Default)]
pub(super) struct Untold {
    all: VecDeque<Event>,
    /// Older ones for which there was no room.
    lost: u64,
}

impl Untold {
    fn add(&mut self, event: Event) {
        if self.all.len() == WAITING {
            self.all.pop_front();
            self.lost += 1;
        }
        self.all.push_back(event);
    }

    /// All, as control is told; none, where there are none.
    fn message(&self) -> Option<Tell> {
        let lost = (self.lost > 0).then(|| {
            let count = Some(self.lost);
            events::untold(EventKind::Missed { count }, 0)
        });
        let all = lost.iter().chain(&self.all);
        let documents = all.filter_map(|event| serde_json::to_string(event).ok());
        let documents: Vec<String> = documents.collect();
        (!documents.is_empty()).then_some(Tell::Events(documents))
    }
}

/// That a process has ended.
pub(super) fn ended(process: String, death: &Death, restarts: u32) -> EventKind {
    EventKind::Process {
        process,
        state: ProcessChange::Ended,
        pid: None,
        restarts: restarts.into(),
        reason: Some(death.how.clone()),
    }
}

/// Who is at the other end, where that is known.
pub(super) fn asker(client: &Client) -> Option<Asker> {
    Peer::of(client).ok().map(events::asker)
}

impl Supervisor {
    pub(super) fn tell_ended(&mut self, kind: Kind, death: &Death) {
        let restarts = self.of_kind(kind).info().restarts;
        self.tell(ended(kind.to_string(), death, restarts));
    }

    pub(super) fn tell_restarted(&mut self, kind: Kind) {
        let now = self.of_kind(kind).info();
        self.tell(EventKind::Process {
            process: now.name,
            state: ProcessChange::Restarted,
            pid: Some(now.pid),
            restarts: now.restarts.into(),
            reason: None,
        });
    }

    fn of_kind(&self, kind: Kind) -> &Child {
        match kind {
            Kind::Control => &self.control,
            _ => &self.switch,
        }
    }

    /// Tells the log, and those who watch.
    pub(super) fn tell(&mut self, what: EventKind) {
        self.events.add(events::told(what, 0));
    }

    /// Tells control what it has not been told, if it wants to know; what there is no room for waits.
    pub(super) fn tell_control(&mut self) {
        for event in self.drivers.take_events() {
            self.events.add(event);
        }
        if !self.control.hears_events() {
            return;
        }
        let Some(message) = self.events.message() else {
            return;
        };
        if self.control.tell_at_once(&message, &[]).is_ok() {
            drop(mem::take(&mut self.events));
        }
    }
}

#[cfg(test)]
mod tests {
    use api::v1::Progress;

    use super::*;

    fn event(file: usize) -> Event {
        let what = EventKind::Reload {
            by: None,
            file: file.to_string(),
            progress: Progress::Begun,
            reason: None,
        };
        events::untold(what, 0)
    }

    fn files(untold: &Untold) -> Vec<EventKind> {
        let Some(Tell::Events(all)) = untold.message() else {
            return Vec::new();
        };
        let read = |document: &String| serde_json::from_str::<Event>(document).unwrap().what;
        all.iter().map(read).collect()
    }

    #[test]
    fn while_there_is_no_control_the_last_events_are_kept_and_the_others_counted() {
        let mut untold = Untold::default();
        assert_eq!(files(&untold), []);
        (0..WAITING).for_each(|file| untold.add(event(file)));
        assert_eq!(files(&untold).len(), WAITING);
        (0..3).for_each(|file| untold.add(event(file)));
        let all = files(&untold);
        assert_eq!(all.len(), WAITING + 1);
        assert_eq!(all[0], EventKind::Missed { count: Some(3) });
        assert_eq!(all[1], event(3).what);
    }
}
