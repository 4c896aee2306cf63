//! What happens of which only the supervisor knows, for those who watch events. The log has it at once; control tells everybody else,
//! when there is one.

use std::collections::VecDeque;
use std::fmt;

use api::v1::{Asker, Event, EventKind, ProcessChange};
use channel::peer::Peer;
use channel::supervision::Tell;
use control::events;

use super::Supervisor;
use super::admin::Client;
use super::child::{Child, Kind};

/// Events that wait for control at most.
const WAITING: usize = 256;

/// Events that control has not told everybody.
#[derive(Debug, Default)]
pub(super) struct Untold {
    /// What control was told last, which may die before it has told others.
    on_the_way: Vec<Event>,
    waiting: VecDeque<Event>,
    /// Older ones for which there was no room.
    lost: u64,
}

impl Untold {
    fn add(&mut self, event: Event) {
        if self.waiting.len() == WAITING {
            self.waiting.pop_front();
            self.lost += 1;
        }
        self.waiting.push_back(event);
    }

    /// Control has told what was on the way.
    pub(super) fn were_told(&mut self) {
        self.on_the_way.clear();
    }

    /// All, in their order.
    fn all(&self) -> Vec<Event> {
        let lost = (self.lost > 0).then(|| {
            let count = Some(self.lost);
            events::untold(EventKind::Missed { count }, 0)
        });
        let waiting = self.waiting.iter().cloned();
        let on_the_way = self.on_the_way.iter().cloned();
        on_the_way.chain(lost).chain(waiting).collect()
    }

    /// Has all of them said by `say`, if there are any, and whether that was done.
    fn send(&mut self, say: impl FnOnce(&Tell) -> bool) -> bool {
        let all = self.all();
        let documents = all
            .iter()
            .filter_map(|event| serde_json::to_string(event).ok());
        let documents: Vec<String> = documents.collect();
        if documents.is_empty() || !say(&Tell::Events(documents)) {
            return false;
        }
        // However often control dies of it, it is no more than that.
        let most = all.len().saturating_sub(WAITING);
        *self = Self {
            on_the_way: all.into_iter().skip(most).collect(),
            ..Self::default()
        };
        true
    }
}

/// The end of a process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Death {
    /// Whose.
    pub(super) kind: Kind,
    /// Its exit status or signal, in words.
    pub(super) how: String,
}

impl fmt::Display for Death {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ended ({})", self.kind, self.how)
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

    /// Tells control what it has not been told, if it has asked; what there is no room for waits.
    pub(super) fn tell_control(&mut self) {
        for event in self.drivers.take_events() {
            self.events.add(event);
        }
        if !self.control.wants_events() {
            return;
        }
        let control = &self.control;
        let say = |tell: &Tell| control.tell_at_once(tell, &[]).is_ok();
        if self.events.send(say) {
            self.control.set_wants_events(false);
        }
    }

    /// The same for a supervisor that gives way to another one, which will know nothing of them: also where control has not said
    /// yet that it had those before.
    pub(super) fn tell_control_at_last(&mut self) {
        if self.events.on_the_way.is_empty() {
            return self.tell_control();
        }
        self.events.were_told();
        let control = &self.control;
        self.events
            .send(|tell| control.tell_at_once(tell, &[]).is_ok());
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

    /// What is said of all.
    fn said(untold: &mut Untold) -> Vec<EventKind> {
        let mut said = Vec::new();
        untold.send(|tell| {
            let Tell::Events(all) = tell else {
                return false;
            };
            let read = |document: &String| serde_json::from_str::<Event>(document).unwrap().what;
            said = all.iter().map(read).collect();
            true
        });
        said
    }

    #[test]
    fn while_there_is_no_control_the_last_events_are_kept_and_the_others_counted() {
        let mut untold = Untold::default();
        assert_eq!(said(&mut untold), []);
        (0..WAITING + 3).for_each(|file| untold.add(event(file)));
        let all = said(&mut untold);
        assert_eq!(all.len(), WAITING + 1);
        assert_eq!(all[0], EventKind::Missed { count: Some(3) });
        assert_eq!(all[1], event(3).what);
    }

    #[test]
    fn what_control_had_when_it_died_is_said_again_to_the_next() {
        let mut untold = Untold::default();
        untold.add(event(1));
        assert_eq!(said(&mut untold), [event(1).what]);
        untold.add(event(2));
        assert_eq!(said(&mut untold), [event(1).what, event(2).what]);
        untold.were_told();
        assert_eq!(said(&mut untold), []);
        untold.add(event(3));
        assert!(!untold.send(|_| false), "there was no room");
        assert_eq!(said(&mut untold), [event(3).what]);
    }
}
