//! Events and their streams.

use std::future::poll_fn;
use std::pin::Pin;

use api::v1::{EVENTS_KEPT, EventsFilter, PortState, Progress};
use hyper::body::Body;
use serde_json::json;

use api::v1::event_text;

use super::ring::Id;
use super::*;

/// Returns the next chunk of a stream; `None` at its end.
async fn piece(stream: &mut EventStream) -> Option<String> {
    let frame = poll_fn(|context| Pin::new(&mut *stream).poll_frame(context)).await;
    let bytes = frame?.unwrap().into_data().unwrap();
    Some(String::from_utf8(bytes.to_vec()).unwrap())
}

fn port(port: &str) -> EventKind {
    EventKind::Port {
        port: port.to_owned(),
        state: PortState::Up,
        reason: None,
    }
}

fn watch(events: &Events, filter: EventsFilter, start: &str) -> EventStream {
    let start = match start {
        "" => Start::default(),
        id => Start::after(id).unwrap(),
    };
    EventStream::new(events.clone(), filter, start, events.slot().unwrap())
}

fn all() -> EventsFilter {
    EventsFilter::default()
}

/// Returns the numbers and kinds of the events in a chunk.
fn seen(piece: &str) -> Vec<(String, String)> {
    let lines = |name: &str| -> Vec<String> {
        let lines = piece.split("\n\n").filter(|block| block.contains("data: "));
        let found = lines.filter_map(|block| {
            let line = block.lines().find_map(|line| line.strip_prefix(name))?;
            Some(line.to_owned())
        });
        found.collect()
    };
    let numbers = lines("id: ").into_iter();
    let numbers = numbers.map(|id| id.split_once('-').unwrap().1.to_owned());
    numbers.zip(lines("event: ")).collect()
}

fn pairs(all: &[(&str, &str)]) -> Vec<(String, String)> {
    let owned = all
        .iter()
        .map(|(n, kind)| ((*n).to_owned(), (*kind).to_owned()));
    owned.collect()
}

#[tokio::test]
async fn a_client_gets_later_events_in_order() {
    let events = Events::of_epoch(10);
    events.emit(port("before"), 0);
    let mut stream = watch(&events, all(), "");
    let begin = piece(&mut stream).await.unwrap();
    assert_eq!(begin, "retry: 1000\nid: a-1\n\n", "it knows where it is");
    events.emit(port("vm1"), 0);
    events.emit(port("vm2"), 3);
    let text = piece(&mut stream).await.unwrap();
    assert_eq!(seen(&text), pairs(&[("2", "port"), ("3", "port")]));
    let data = text.lines().find_map(|line| line.strip_prefix("data: "));
    let data: serde_json::Value = serde_json::from_str(data.unwrap()).unwrap();
    let time = data["time"].clone();
    let expected = json!({
        "id": "a-2", "time": time, "level": "info", "kind": "port", "port": "vm1", "state": "up",
    });
    assert_eq!(data, expected);
    assert!(text.contains("\"suppressed\":3"), "{text}");
}

#[tokio::test]
async fn a_client_that_waits_is_woken() {
    let events = Events::of_epoch(10);
    let mut stream = watch(&events, all(), "");
    piece(&mut stream).await;
    let waiting = tokio::spawn(async move { piece(&mut stream).await });
    tokio::task::yield_now().await;
    events.emit(port("vm1"), 0);
    let text = waiting.await.unwrap().unwrap();
    assert_eq!(seen(&text), pairs(&[("1", "port")]));
}

#[tokio::test]
async fn a_client_resumes_at_its_position() {
    let events = Events::of_epoch(10);
    for name in ["vm1", "vm2", "vm3"] {
        events.emit(port(name), 0);
    }
    let mut stream = watch(&events, all(), "a-1");
    let text = piece(&mut stream).await.unwrap();
    assert_eq!(seen(&text), pairs(&[("2", "port"), ("3", "port")]));
    let mut stream = watch(&events, all(), "a-3");
    assert!(seen(&piece(&mut stream).await.unwrap()).is_empty());
}

#[tokio::test]
async fn the_number_of_missed_events_of_another_control_is_unknown() {
    let events = Events::of_epoch(11);
    events.emit(port("vm1"), 0);
    for start in ["a-1", "a-99999", "b-99999"] {
        let mut stream = watch(&events, all(), start);
        let text = piece(&mut stream).await.unwrap();
        let expected = pairs(&[("0", "missed"), ("1", "port")]);
        assert_eq!(seen(&text), expected, "{start}");
        assert!(text.contains(r#""kind":"missed","count":null"#), "{text}");
    }
}

#[tokio::test]
async fn a_slow_client_gets_the_number_of_missed_events_and_nothing_is_kept_for_it() {
    let events = Events::of_epoch(10);
    let mut stream = watch(&events, all(), "");
    piece(&mut stream).await;
    let all = u64::from(EVENTS_KEPT) + 100;
    (0..all).for_each(|_| events.emit(port("vm1"), 0));
    let text = piece(&mut stream).await.unwrap();
    let first = &seen(&text)[..2];
    assert_eq!(first, pairs(&[("100", "missed"), ("101", "port")]));
    assert!(text.contains(r#""kind":"missed","count":100"#), "{text}");
    assert!(text.len() < 2 * ring::READ_BYTES, "in pieces");
    let mut count = seen(&text).len() - 1;
    let kept = usize::from(EVENTS_KEPT);
    while count < kept {
        count += seen(&piece(&mut stream).await.unwrap()).len();
    }
    assert_eq!(count, kept);
}

#[tokio::test]
async fn long_events_are_not_kept_for_as_long() {
    let events = Events::of_epoch(10);
    let filter = "x".repeat(1 << 20);
    for number in 0..10 {
        let event = EventKind::Capture {
            by: None,
            port: "vm1".to_owned(),
            number,
            filter: filter.clone(),
            progress: Progress::Started,
        };
        events.publish(unlogged(event, 0));
    }
    let mut stream = watch(&events, all(), "a-0");
    let text = piece(&mut stream).await.unwrap();
    assert_eq!(seen(&text)[0], pairs(&[("7", "missed")])[0]);
}

#[tokio::test]
async fn a_filter_and_the_last_ones() {
    let events = Events::of_epoch(10);
    for name in ["vm1", "vm2", "vm1", "vm1"] {
        events.emit(port(name), 0);
    }
    let filter = |last| EventsFilter {
        port: Some("vm1".to_owned()),
        last: Some(last),
        ..all()
    };
    for (last, expected) in [(0, &[][..]), (2, &["3", "4"]), (9, &["1", "3", "4"])] {
        let mut stream = watch(&events, filter(last), "");
        let text = piece(&mut stream).await.unwrap();
        let expected: Vec<_> = expected.iter().map(|n| (*n, "port")).collect();
        assert_eq!(seen(&text), pairs(&expected), "{last}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_keep_alive_has_the_position_of_the_client() {
    let events = Events::of_epoch(10);
    let filter = EventsFilter {
        kind: Some("upgrade".to_owned()),
        ..all()
    };
    let mut stream = watch(&events, filter, "");
    piece(&mut stream).await;
    events.emit(port("vm1"), 0);
    let text = piece(&mut stream).await.unwrap();
    assert_eq!(text, ": nothing new\nid: a-1\n\n");
}

#[tokio::test]
async fn all_clients_can_be_ended_after_what_there_is() {
    let events = Events::of_epoch(10);
    let mut stream = watch(&events, all(), "");
    events.emit(port("vm1"), 0);
    events.end_clients();
    assert_eq!(seen(&piece(&mut stream).await.unwrap()).len(), 1);
    assert_eq!(piece(&mut stream).await, None);
    let mut next = watch(&events, all(), "");
    assert!(piece(&mut next).await.is_some(), "who comes then stays");
}

#[tokio::test]
async fn a_stream_without_follow_ends() {
    let events = Events::of_epoch(10);
    (0..1000).for_each(|_| events.emit(port("vm1"), 0));
    let filter = EventsFilter {
        last: Some(700),
        follow: Some(false),
        ..all()
    };
    let mut stream = watch(&events, filter, "");
    let mut count = 0;
    while let Some(text) = piece(&mut stream).await {
        count += seen(&text).len();
    }
    assert_eq!(count, 700);
}

#[tokio::test]
async fn streams_are_bounded() {
    let events = Events::of_epoch(10);
    let streams: Vec<_> = (0..MAX_CLIENTS)
        .map(|_| watch(&events, all(), ""))
        .collect();
    assert_eq!(events.slot().unwrap_err().status, 503);
    drop(streams);
    assert!(events.slot().is_ok());
}

#[test]
fn ids_of_a_later_control_are_others() {
    let (one, other) = (Events::default(), Events::of_epoch(10));
    let id = |events: &Events| Id::parse(&events.ring().id_before(5)).unwrap();
    assert_ne!(id(&one).epoch, id(&other).epoch);
    assert_eq!(id(&one).number, 4);
    for wrong in ["", "a", "a-", "-1", "a-b", "a-1-", "+a-1", "a-+1", "x-1"] {
        assert_eq!(Start::after(wrong), None, "{wrong}");
    }
}

#[test]
fn times_are_utc() {
    for (seconds, expected) in [
        (0, "1970-01-01T00:00:00.007Z"),
        (951_782_399, "2000-02-28T23:59:59.007Z"),
        (951_782_400, "2000-02-29T00:00:00.007Z"),
        (951_868_800, "2000-03-01T00:00:00.007Z"),
        (4_107_542_399, "2100-02-28T23:59:59.007Z"),
        (4_107_542_400, "2100-03-01T00:00:00.007Z"),
        (1_767_225_599, "2025-12-31T23:59:59.007Z"),
    ] {
        assert_eq!(
            event_text::time(std::time::Duration::new(seconds, 7_999_999)),
            expected
        );
    }
}

#[test]
fn a_change_event_has_as_many_fields_as_fit() {
    let field = |name: &str, to: serde_json::Value| config::desired::FieldChange {
        field: name.to_owned(),
        from: serde_json::Value::Null,
        to,
    };
    let step = Step {
        action: Action::Change,
        subject: config::desired::Subject::Port,
        name: Some("vm1".to_owned()),
        fields: vec![
            field("long", json!("x".repeat(FIELDS_MAX))),
            field("mtu", json!(9000)),
            field("mode", json!("a\u{1b}[31m\nb")),
        ],
        disconnects: true,
        next_connection: Vec::new(),
    };
    let what = change(None, step);
    let line = message(&what);
    assert_eq!(
        line,
        "port vm1 changed: mtu none -> 9000, mode none -> \"a\\u001b[31m\\nb\", and 1 more field, \
         which ends its connection"
    );
    assert!(serde_json::to_string(&what).unwrap().len() < 2 * FIELDS_MAX);
}

#[test]
fn foreign_text_has_no_control_characters() {
    let reason = format!("\u{1b}]0;x\u{7}\n{}", "y".repeat(5000));
    let line = message(&EventKind::Port {
        port: "vm1".to_owned(),
        state: PortState::Faulted,
        reason: Some(reason),
    });
    assert!(
        !line.chars().any(char::is_control) && line.len() < 2 * event_text::TEXT_MAX,
        "{line}"
    );
}
