//! The query of events.

use model::{Event, EventKind};
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;
use utoipa::IntoParams;

use super::{Problem, ProblemKind};

/// Maximum number of kept events, and of past events in an answer.
pub const EVENTS_KEPT: u16 = 4096;

/// Query of `GET /v1/events`: selects events.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct EventsFilter {
    /// Only events that concern this port.
    pub port: Option<String>,
    /// Only events of these kinds, separated by commas: `port,change`. Events of kind `missed` are
    /// always sent.
    pub kind: Option<String>,
    /// Number of past events to start with, at most 4096. A client that resumes with
    /// `Last-Event-ID` gets the events after that one instead.
    pub last: Option<u16>,
    /// Whether the stream continues with new events; if not, it ends after the past ones.
    #[param(default = true)]
    pub follow: Option<bool>,
}

impl EventsFilter {
    /// Checks the values.
    ///
    /// # Errors
    /// 422 for an unknown kind, or for too many events.
    pub fn check(&self) -> Result<(), Problem> {
        let invalid = |field, detail| {
            let problem = Problem::new(ProblemKind::Invalid, detail);
            Err(problem.with_field(field))
        };
        if let Some(last) = self.last.filter(|last| *last > EVENTS_KEPT) {
            let detail = format!("expected 0 to {EVENTS_KEPT}, found {last}");
            return invalid("last", detail);
        }
        let unknown = self.kinds().find(|kind| !EventKind::NAMES.contains(kind));
        let Some(kind) = unknown else {
            return Ok(());
        };
        let kinds = EventKind::NAMES.join(", ");
        let detail = format!("expected some of {kinds}; found `{kind}`");
        invalid("kind", detail)
    }

    /// Returns whether the stream continues with new events.
    #[must_use]
    pub fn follows(&self) -> bool {
        self.follow.unwrap_or(true)
    }

    /// Returns whether the filter selects an event.
    #[must_use]
    pub fn accepts(&self, event: &Event) -> bool {
        let is_its = |port: &String| event.what.ports().contains(&port.as_str());
        let kind = event.what.name();
        matches!(event.what, EventKind::Missed { .. })
            || self.port.as_ref().is_none_or(is_its)
                && (self.kind.is_none() || self.kinds().any(|one| one == kind))
    }

    fn kinds(&self) -> impl Iterator<Item = &str> {
        self.kind.iter().flat_map(|kinds| kinds.split(','))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn event(what: EventKind) -> Event {
        Event {
            id: "1-2".to_owned(),
            time: "2026-01-02T03:04:05.006Z".to_owned(),
            level: what.level(),
            suppressed: 0,
            what,
        }
    }

    fn moved() -> Event {
        event(EventKind::MacMoved {
            segment: "blue".to_owned(),
            mac: "52:54:00:00:00:01".to_owned(),
            from: "vm1".to_owned(),
            to: "vm2".to_owned(),
        })
    }

    #[test]
    fn an_event_is_one_flat_object() {
        let document = json!({
            "id": "1-2", "time": "2026-01-02T03:04:05.006Z", "level": "info", "kind": "mac_moved",
            "segment": "blue", "mac": "52:54:00:00:00:01", "from": "vm1", "to": "vm2",
        });
        assert_eq!(serde_json::to_value(moved()).unwrap(), document);
        assert_eq!(serde_json::from_value::<Event>(document).unwrap(), moved());
    }

    #[test]
    fn an_older_client_understands_that_there_is_more() {
        let newer = json!({"id": "1-2", "time": "t", "kind": "eclipse", "moon": 1});
        let event: Event = serde_json::from_value(newer).unwrap();
        assert_eq!(event.what, EventKind::Unknown);
    }

    #[test]
    fn a_filter_means_kinds_and_ports_and_never_hides_what_was_missed() {
        let filter = |port: &str, kind: &str| EventsFilter {
            port: Some(port.to_owned()).filter(|port| !port.is_empty()),
            kind: Some(kind.to_owned()).filter(|kind| !kind.is_empty()),
            ..EventsFilter::default()
        };
        for (port, kind, accepted) in [
            ("", "", true),
            ("vm1", "", true),
            ("vm2", "port,mac_moved", true),
            ("vm3", "", false),
            ("vm1", "port", false),
        ] {
            assert_eq!(
                filter(port, kind).accepts(&moved()),
                accepted,
                "{port} {kind}"
            );
        }
        let missed = event(EventKind::Missed { count: None });
        assert!(filter("vm3", "port").accepts(&missed));
    }

    #[test]
    fn what_cannot_be_meant_is_refused_by_name() {
        let filter = |kind: &str, last| EventsFilter {
            kind: Some(kind.to_owned()),
            last,
            ..EventsFilter::default()
        };
        assert_eq!(filter("port,upgrade", Some(EVENTS_KEPT)).check(), Ok(()));
        let problem = filter("port,ports", None).check().unwrap_err();
        assert_eq!(
            (problem.status, problem.field.as_deref()),
            (422, Some("kind"))
        );
        assert!(problem.detail.ends_with("found `ports`"), "{problem}");
        let problem = filter("port", Some(EVENTS_KEPT + 1)).check().unwrap_err();
        assert_eq!(problem.field.as_deref(), Some("last"));
    }
}
