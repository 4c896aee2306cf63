//! Events over the API.

use std::time::Duration;

use api::v1::PortSpec;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::time::timeout;

use super::*;
use crate::events;

/// Longer than anything takes on a busy machine.
const SOON: Duration = Duration::from_secs(20);
const PORT: &str = r#"{"name":"vm1","kind":"vhost-user","socket":"vm1.sock"}"#;

/// A client that watches events.
struct Watcher {
    reader: OwnedReadHalf,
    /// Keeps the connection open.
    _writer: OwnedWriteHalf,
    text: String,
}

impl Watcher {
    async fn new(site: &Site, path: &str, headers: &str) -> Self {
        let stream = UnixStream::connect(site.dir.path().join("api.sock")).await;
        let (reader, mut writer) = stream.unwrap().into_split();
        let head = format!("GET {path} HTTP/1.1\r\nhost: x\r\n{headers}\r\n");
        writer.write_all(head.as_bytes()).await.unwrap();
        Self {
            reader,
            _writer: writer,
            text: String::new(),
        }
    }

    /// Reads until the input contains a text; returns all of it.
    async fn until(&mut self, what: &str) -> &str {
        let read = async {
            let mut searched = 0;
            while !self.text[searched..].contains(what) {
                // What is searched for may have begun to arrive.
                searched = self
                    .text
                    .floor_char_boundary(self.text.len().saturating_sub(what.len()));
                let mut bytes = [0; 4096];
                let count = self.reader.read(&mut bytes).await.unwrap();
                assert!(count > 0, "it ended: {}", self.text);
                self.text
                    .push_str(std::str::from_utf8(&bytes[..count]).unwrap());
            }
        };
        let came = timeout(SOON, read).await;
        assert!(came.is_ok(), "{what} is not in {}", self.text);
        &self.text
    }

    /// Returns whether its connection ends.
    async fn ends(&mut self) {
        let mut rest = Vec::new();
        let read = timeout(SOON, self.reader.read_to_end(&mut rest)).await;
        assert!(read.is_ok(), "the stream is stuck");
    }
}

#[tokio::test]
async fn change_events_name_the_requester() {
    let site = Site::start();
    let mut watcher = Watcher::new(&site, "/v1/events?port=vm1", "").await;
    let head = watcher.until("id: ").await;
    assert!(head.contains("HTTP/1.1 200"), "{head}");
    assert!(
        head.contains("content-type: text/event-stream\r\n"),
        "{head}"
    );
    assert_eq!(site.ask("POST", "/v1/ports", PORT).await.0, 201);
    let patch = r#"{"mtu":9000}"#;
    assert_eq!(site.ask("PATCH", "/v1/ports/vm1", patch).await.0, 200);
    let text = watcher.until("\"mtu\"").await.to_owned();
    let by = json!({"uid": rustix::process::geteuid().as_raw(), "pid": std::process::id()});
    let data = text.lines().filter_map(|line| line.split_once("data: "));
    let all: Vec<Value> = data
        .map(|(_, data)| serde_json::from_str(data).unwrap())
        .collect();
    let short = |event: &Value| json!([event["kind"], event["action"], event["name"]]);
    let result: Vec<Value> = all.iter().map(short).collect();
    assert_eq!(
        result,
        [
            json!(["change", "add", "vm1"]),
            json!(["change", "change", "vm1"])
        ]
    );
    assert!(all.iter().all(|event| event["by"] == by), "{text}");
    let field = json!([{"field": "mtu", "from": null, "to": 9000}]);
    assert_eq!(all[1]["fields"], field);
}

#[tokio::test]
async fn dry_runs_and_refused_changes_are_no_events() {
    let vm1 = PortSpec {
        segment: Some("default".to_owned()),
        ..PortSpec::vhost_user("vm1", "vm1.sock")
    };
    let site = Site::start_with(DesiredState {
        ports: vec![vm1].into(),
        ..DesiredState::default()
    });
    site.ask(
        "PUT",
        "/v1/state?dry_run=true",
        &format!("{{\"ports\":[{PORT}]}}"),
    )
    .await;
    site.ask("DELETE", "/v1/ports/vm9", "").await;
    site.ask("DELETE", "/v1/fdb?port=vm1", "").await;
    let mut watcher = Watcher::new(&site, "/v1/events?last=10", "").await;
    let text = watcher.until("data: ").await;
    assert_eq!(text.matches("event: ").count(), 1, "{text}");
    assert!(text.contains(r#""kind":"fdb_flushed""#), "{text}");
    assert!(text.contains(r#""port":"vm1","count":1}"#), "{text}");
}

#[tokio::test]
async fn start_and_end_of_a_capture_are_events() {
    let site = Site::start();
    let mut capture = Watcher::new(
        &site,
        "/v1/ports/vm1/capture?filter=arp",
        "connection: close\r\n",
    )
    .await;
    let mut bytes = Vec::new();
    capture.reader.read_to_end(&mut bytes).await.unwrap();
    let mut watcher = Watcher::new(&site, "/v1/events?kind=capture&last=10", "").await;
    let text = watcher.until(r#""progress":"done""#).await;
    assert!(
        text.contains(r#""number":5,"filter":"arp","progress":"started""#),
        "{text}"
    );
}

#[tokio::test]
async fn a_client_resumes_and_gets_the_missed_events() {
    let site = Site::start();
    let mut first = Watcher::new(&site, "/v1/events", "").await;
    let begin = first.until("id: ").await.to_owned();
    let begin = begin.rsplit_once("id: ").unwrap().1;
    drop(first);
    site.ask("POST", "/v1/ports", PORT).await;
    let header = format!("last-event-id: {}\r\n", begin.trim());
    let mut again = Watcher::new(&site, "/v1/events", &header).await;
    let text = again.until("data: ").await;
    assert!(text.contains(r#""action":"add""#), "{text}");
    assert!(!text.contains("missed"), "{text}");
    let mut other = Watcher::new(&site, "/v1/events", "last-event-id: 1-1\r\n").await;
    let text = other.until(r#""action":"add""#).await;
    assert!(text.contains(r#""kind":"missed","count":null"#), "{text}");
}

#[tokio::test]
async fn contradicting_requests_are_refused() {
    let site = Site::start();
    for (path, field) in [
        ("/v1/events?kind=ports", "kind"),
        ("/v1/events?last=5000", "last"),
    ] {
        let problem = site.refused("GET", path, "").await;
        assert_eq!(
            (problem.status, problem.field.as_deref()),
            (422, Some(field))
        );
    }
    assert_eq!(
        site.refused("GET", "/v1/events?ports=1", "").await.status,
        422
    );
    let (status, _, problem) = site
        .ask_with("GET", "/v1/events", "Last-Event-ID: yesterday\r\n", "")
        .await;
    assert_eq!(status, 400);
    let detail = "last-event-id: expected the id of an event, found \"yesterday\"";
    assert_eq!(problem["detail"], detail);
}

#[tokio::test]
async fn streams_are_bounded_and_other_clients_are_served() {
    let site = Site::start();
    let mut all = Vec::new();
    for _ in 0..events::MAX_CLIENTS {
        let mut watcher = Watcher::new(&site, "/v1/events", "").await;
        watcher.until("id: ").await;
        all.push(watcher);
    }
    let problem = site.refused("GET", "/v1/events", "").await;
    assert_eq!(problem.status, 503);
    assert!(problem.detail.contains("16 clients"), "{problem}");
    assert_eq!(site.ask("GET", "/v1/status", "").await.0, 200);
    all.pop();
    let mut watcher = Watcher::new(&site, "/v1/events", "").await;
    // The server notices only after a while that a client is gone.
    while watcher.until("HTTP/1.1 ").await.contains("503") {
        tokio::task::yield_now().await;
        watcher = Watcher::new(&site, "/v1/events", "").await;
    }
    watcher.until("id: ").await;
}

#[tokio::test]
async fn a_client_that_does_not_read_gets_the_number_of_missed_events() {
    let site = Site::start();
    let events = site.events.clone();
    let mut watcher = Watcher::new(&site, "/v1/events", "").await;
    watcher.until("id: ").await;
    let long = "y".repeat(500);
    for number in 0..20_000 {
        let what = api::v1::EventKind::Capture {
            by: None,
            port: "vm1".to_owned(),
            number,
            filter: long.clone(),
            progress: api::v1::Progress::Started,
        };
        events.publish(events::unlogged(what, 0));
        if number % 1000 == 0 {
            assert_eq!(site.ask("GET", "/v1/status", "").await.0, 200);
        }
    }
    watcher.until("\"kind\":\"missed\",\"count\":").await;
    watcher.until("\"number\":19999,").await;
}

#[tokio::test]
async fn an_end_of_all_streams_ends_connections_and_new_ones_are_served() {
    let site = Site::start();
    let events = site.events.clone();
    let mut watcher = Watcher::new(&site, "/v1/events", "connection: close\r\n").await;
    watcher.until("id: ").await;
    events.end_clients();
    watcher.ends().await;
    let mut next = Watcher::new(&site, "/v1/events", "").await;
    next.until("id: ").await;
}
