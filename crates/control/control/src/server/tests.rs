//! The server on a real socket, with a fake engine.

mod access;
mod changes;
mod events;
mod fdb;
mod mirrors;
mod qos;

use api::v1::{DesiredState, Problem};
use serde_json::{Value, json};
use tempfile::TempDir;
use testkit::table::rows;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::*;
use crate::command::engine_channel;
use crate::events::Events;
use crate::fake_engine::FakeEngine;

/// A running server and how to end it.
struct Site {
    dir: TempDir,
    events: Events,
    stop: oneshot::Sender<()>,
    server: JoinHandle<()>,
}

impl Site {
    fn start() -> Self {
        Self::start_with(DesiredState::default())
    }

    fn start_with(desired: DesiredState) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let engine = FakeEngine::start(desired, dir.path());
        Self::with_engine(dir, engine)
    }

    fn with_engine(dir: TempDir, engine: EngineHandle) -> Self {
        let socket = dir.path().join("api.sock");
        let bound = std::os::unix::net::UnixListener::bind(socket).unwrap();
        let listener = listener(bound.into()).unwrap();
        let (stop, stopped) = oneshot::channel();
        let shutdown = async { drop(stopped.await) };
        Self {
            dir,
            events: engine.events().clone(),
            stop,
            server: tokio::spawn(serve(listener, engine, shutdown)),
        }
    }

    /// Sends one request; returns the status, the head, and the JSON body.
    async fn ask(&self, method: &str, path: &str, body: &str) -> (u16, String, Value) {
        self.ask_as(method, path, "application/json", body).await
    }

    /// Sends one request with more lines in the head.
    async fn ask_with(
        &self,
        method: &str,
        path: &str,
        headers: &str,
        body: &str,
    ) -> (u16, String, Value) {
        let kind = format!("application/json\r\n{}", headers.trim_end());
        self.ask_as(method, path, &kind, body).await
    }

    async fn ask_as(
        &self,
        method: &str,
        path: &str,
        kind: &str,
        body: &str,
    ) -> (u16, String, Value) {
        let socket = self.dir.path().join("api.sock");
        let mut stream = UnixStream::connect(socket).await.unwrap();
        let length = body.len();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\
             content-type: {kind}\r\ncontent-length: {length}\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        // The server may respond, and close, before it has read all of a body that is too long.
        let sent = stream.write_all(body.as_bytes()).await;
        let mut answer = Vec::new();
        let read = stream.read_to_end(&mut answer).await;
        assert!(!answer.is_empty(), "{sent:?} {read:?}");
        let answer = String::from_utf8(answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let body = match body {
            "" => Value::Null,
            body => serde_json::from_str(body).unwrap(),
        };
        (status, head.to_ascii_lowercase(), body)
    }

    /// Returns the version of the desired state.
    async fn tag(&self) -> String {
        tag_of(&self.ask("GET", "/v1/state", "").await.1)
    }

    /// Sends a request that has to fail; checks that the response is a problem.
    async fn refused(&self, method: &str, path: &str, body: &str) -> Problem {
        let (status, head, body) = self.ask(method, path, body).await;
        let kind = "content-type: application/problem+json";
        assert!(head.contains(kind), "{head}");
        let problem: Problem = serde_json::from_value(body).unwrap();
        assert_eq!(problem.status, status);
        problem
    }
}

const VM1: &str = r#"{"name":"vm1","kind":"vhost-user","socket":"vm1.sock"}"#;

#[tokio::test]
async fn a_port_is_added_shown_changed_and_removed() {
    let site = Site::start();
    let (status, head, body) = site.ask("POST", "/v1/ports", VM1).await;
    assert_eq!(status, 201);
    assert!(head.contains("location: /v1/ports/vm1"), "{head}");
    assert_eq!(body["state"], "waiting");
    assert_eq!(body["segment"], "default");

    let (status, _, shown) = site.ask("GET", "/v1/ports/vm1", "").await;
    assert_eq!((status, &shown), (200, &body));
    let (status, _, all) = site.ask("GET", "/v1/ports", "").await;
    assert_eq!((status, all), (200, json!({ "ports": [body] })));

    let patch = r#"{"queues":4,"mtu":9000}"#;
    let kind = "application/merge-patch+json; charset=utf-8";
    let (status, _, body) = site.ask_as("PATCH", "/v1/ports/vm1", kind, patch).await;
    assert_eq!(status, 200);
    assert_eq!((&body["queues"], &body["mtu"]), (&json!(4), &json!(9000)));
    let (_, _, body) = site.ask("PATCH", "/v1/ports/vm1", r#"{"mtu":null}"#).await;
    assert_eq!(body["mtu"], Value::Null);

    let (status, _, body) = site.ask("DELETE", "/v1/ports/vm1", "").await;
    assert_eq!((status, body), (204, Value::Null));
    assert_eq!(
        site.refused("DELETE", "/v1/ports/vm1", "").await.status,
        404
    );
}

#[tokio::test]
async fn the_desired_state_is_replaced_under_a_tag() {
    let site = Site::start();
    let (status, head, empty) = site.ask("GET", "/v1/state", "").await;
    let first = tag_of(&head);
    assert_eq!((status, &empty["ports"]), (200, &json!([])));

    let desired = format!(
        r#"{{"switch":{{"name":"host1"}},"segments":[{{"name":"blue","vlan":10}}],
            "ports":[{VM1}]}}"#
    );
    let (status, head, dry) = site.ask("PUT", "/v1/state?dry_run=true", &desired).await;
    assert_eq!((status, tag_of(&head)), (200, first.clone()));
    assert_eq!(dry["ports"][0]["segment"], "default");
    let (_, head, _) = site.ask("GET", "/v1/state", "").await;
    assert_eq!(tag_of(&head), first, "it was only looked at");

    let (status, head, done) = site.ask("PUT", "/v1/state", &desired).await;
    let second = tag_of(&head);
    assert_eq!((status, &done), (200, &dry));
    assert_ne!(first, second);
    let (_, head, again) = site.ask("PUT", "/v1/state", &done.to_string()).await;
    assert_eq!((tag_of(&head), again), (second.clone(), done), "idempotent");

    for (tags, expected) in [
        (format!("\"{first}\""), 412),
        (format!("W/\"{second}\""), 412),
        (second.clone(), 400),
        (format!("\"{first}\" , \"{second}\""), 200),
        ("*".to_owned(), 200),
    ] {
        let header = format!("if-match: {tags}\r\n");
        let (status, _, body) = site.ask_with("PATCH", "/v1/state", &header, "{}").await;
        assert_eq!(status, expected, "{tags}: {body}");
    }
    let header = format!("if-match: \"{first}\"\r\n");
    for (method, path, body) in [
        ("POST", "/v1/ports", VM1),
        ("DELETE", "/v1/ports/vm1", ""),
        ("PUT", "/v1/state", &desired),
        ("POST", "/v1/segments", r#"{"name":"red"}"#),
    ] {
        let (status, _, body) = site.ask_with(method, path, &header, body).await;
        assert_eq!(status, 412, "{method} {path}: {body}");
        assert_eq!(body["type"], "urn:lasthop:problem:outdated");
    }
    let header = format!("if-none-match: \"{second}\"\r\n");
    let (status, _, body) = site.ask_with("GET", "/v1/state", &header, "").await;
    assert_eq!((status, body), (304, Value::Null));
}

#[tokio::test]
async fn a_wrong_document_names_the_field_and_changes_nothing() {
    let site = Site::start();
    site.ask("POST", "/v1/ports", VM1).await;
    let (_, head, _) = site.ask("GET", "/v1/state", "").await;
    let tag = tag_of(&head);
    let vm2 = r#"{"name":"vm2","kind":"vhost-user","socket":"vm2.sock""#;
    // Method, path, body, status, field, part of the detail.
    for [method, path, body, status, field, detail] in &rows(
        r#"
        PUT | /v1/state | {"ports":[VM1,VM2,"queues":65}]} | 422 | ports[1].queues | 65
        PUT | /v1/state | {"ports":[VM1,VM2,"queue":5}]} | 422 | ports[1].queue | unknown key
        PUT | /v1/state | {"ports":[VM1,VM1]} | 409 | ports[1].name | a second time
        PUT | /v1/state | {"ports":[VM2,"trunk":["default","red"]}]} | 422 | ports[0].trunk[1] | red
        PUT | /v1/state | {"port":[]} | 422 | port | unknown key
        PUT | /v1/state | {"switch":{"name":"a","workers":3}} | 409 | switch.workers
          | takes a restart
        PUT | /v1/state | {"switch":{"name":"a","coalescing":{"period_us":0}}} | 422
          | switch.coalescing.period_us | found 0
        PATCH | /v1/state | {"segments":[{"name":"a","vlan":0}]} | 422 | segments[0].vlan | found 0
        PATCH | /v1/state | {"ports":5} | 422 | ports | expected an array
        PATCH | /v1/state | {"ports":[],"ports":[]} | 422 | - | expected each key once
        PATCH | /v1/switch | {"name":"a","name":"b"} | 422 | - | expected each key once
        PATCH | /v1/access | {"lists":[],"lists":[]} | 422 | - | expected each key once
        PATCH | /v1/access | {"bogus":null} | 422 | bogus | unknown key
        PATCH | /v1/switch | {"coalescing":{"bogus":null}} | 422 | coalescing.bogus | unknown key
        PATCH | /v1/switch | {"workers":3} | 409 | workers | takes a restart
        PATCH | /v1/switch | {"coalescing":{"frames":1025}} | 422 | coalescing.frames | 1025
        PATCH | /v1/segments/default | {"vlan":4095} | 422 | vlan | 4095
        PATCH | /v1/segments/default | {"vlan":"7"} | 422 | vlan | found "7"
        PATCH | /v1/segments/default | {"vlan":1,"vlan":2} | 422 | - | expected each key once
        PATCH | /v1/segments/default | {"name":"a"} | 422 | name | which does not change, found "a"
        PATCH | /v1/segments/default | {"tag":null} | 422 | tag | unknown key
        PATCH | /v1/segments/default | [7] | 422 | - | expected an object, found an array
        PATCH | /v1/qos/classes/default | {"name":"a"} | 422 | name | which does not change
        PATCH | /v1/qos/classes/default | {"dscp":[64]} | 422 | dscp | 64
        PATCH | /v1/qos/classes/default | {"dscp":7} | 422 | dscp | expected an array
        PATCH | /v1/qos/groups/none | {} | 404 | - | no group `none`
        POST | /v1/segments | {"name":"default"} | 409 | name | a second time
        DELETE | /v1/segments/default |  | 409 | name | always
    "#,
    ) {
        let body = body.replace("VM1", VM1).replace("VM2", vm2);
        let problem = site.refused(method, path, &body).await;
        let text = format!("{method} {path} {body}: {problem:?}");
        assert_problem(&problem, status, field, detail, &text);
        let (_, head, _) = site.ask("GET", "/v1/state", "").await;
        assert_eq!(tag_of(&head), tag, "{text}");
    }
    let problem = site.refused("PUT", "/v1/state?dry=1", "{}").await;
    assert_eq!(problem.status, 422, "{problem:?}");
    let problem = site.refused("DELETE", "/v1/segments/red", "").await;
    assert_eq!(problem.status, 404, "{problem:?}");
}

#[tokio::test]
async fn segments_and_the_switch_have_paths_of_their_own() {
    let site = Site::start();
    let blue = r#"{"name":"blue","vlan":10}"#;
    let (status, head, body) = site.ask("POST", "/v1/segments", blue).await;
    assert_eq!(status, 201);
    assert!(head.contains("location: /v1/segments/blue"), "{head}");
    assert_eq!(body, json!({"name":"blue","vlan":10,"ports":[]}));
    site.ask(
        "POST",
        "/v1/ports",
        &VM1.replace('}', r#","segment":"blue"}"#),
    )
    .await;
    let (_, _, body) = site.ask("GET", "/v1/segments/blue", "").await;
    assert_eq!(body["ports"], json!(["vm1"]));
    let problem = site.refused("DELETE", "/v1/segments/blue", "").await;
    assert_eq!(
        (problem.status, &*problem.detail),
        (
            409,
            "segment `blue` cannot be removed: port `vm1` is in it; change or remove that first"
        )
    );
    let (_, _, body) = site
        .ask("PATCH", "/v1/segments/blue", r#"{"vlan":null}"#)
        .await;
    assert_eq!(body["vlan"], Value::Null);
    let both = r#"{"trunk":["blue","default"]}"#;
    site.ask("PATCH", "/v1/segments/blue", r#"{"vlan":10}"#)
        .await;
    site.ask("PATCH", "/v1/ports/vm1", both).await;
    let problem = site
        .refused("PATCH", "/v1/segments/blue", r#"{"vlan":null}"#)
        .await;
    assert_eq!(
        (problem.status, problem.field.as_deref()),
        (409, Some("vlan"))
    );
    assert!(
        problem.detail.contains("port `vm1` needs it otherwise"),
        "{problem}"
    );
    site.ask("DELETE", "/v1/ports/vm1", "").await;
    let (status, _, _) = site.ask("DELETE", "/v1/segments/blue", "").await;
    assert_eq!(status, 204);
    let (_, _, body) = site.ask("GET", "/v1/segments", "").await;
    assert_eq!(body["segments"].as_array().unwrap().len(), 1);

    let (status, _, body) = site.ask("PATCH", "/v1/switch", r#"{"name":"host2"}"#).await;
    assert_eq!((status, &body["name"]), (200, &json!("host2")));
    let (_, _, body) = site.ask("GET", "/v1/switch", "").await;
    assert_eq!(body["name"], "host2");
    let (status, _, body) = site.ask("GET", "/v1/openapi.json", "").await;
    assert_eq!((status, &body["openapi"]), (200, &json!("3.1.0")));
}

/// Asserts what a problem says: its status, its field (`-` for none) and a part of its detail.
fn assert_problem(problem: &Problem, status: &str, field: &str, detail: &str, text: &str) {
    assert_eq!(problem.status.to_string(), status, "{text}");
    assert_eq!(problem.field.as_deref().unwrap_or("-"), field, "{text}");
    assert!(problem.detail.contains(detail), "{text}");
}

/// Returns the `ETag` of a response.
fn tag_of(head: &str) -> String {
    let line = head.lines().find_map(|line| line.strip_prefix("etag: "));
    line.unwrap().trim_matches('"').to_owned()
}

#[tokio::test]
async fn documents_are_served() {
    let site = Site::start();
    let (status, head, body) = site.ask("GET", "/v1/status", "").await;
    assert_eq!(status, 200);
    assert!(head.contains("content-type: application/json"), "{head}");
    assert_eq!(body["name"], "lasthop");
    assert_eq!(body["processes"][0]["state"], "running");
    assert_eq!(body["switch"]["connected"], true);
    let (_, _, body) = site.ask("GET", "/v1/stats", "").await;
    assert_eq!(
        body["ports"][0]["from_guest"],
        json!({"packets":0,"bytes":0})
    );
    let (status, _, _) = site.ask("GET", "/v1/ports/vm9/stats", "").await;
    assert_eq!(status, 404);
    let red = r#"{"name":"red"}"#;
    assert_eq!(site.ask("POST", "/v1/segments", red).await.0, 201);
    let (status, _, body) = site.ask("DELETE", "/v1/fdb?segment=red", "").await;
    assert_eq!((status, body), (200, json!({"flushed": 1})));
    let (status, _, _) = site.ask("DELETE", "/v1/flows", "").await;
    assert_eq!(status, 204);
    let (status, _, _) = site.ask("DELETE", "/v1/flows?port=vm9", "").await;
    assert_eq!(status, 404);
    let (_, _, body) = site.ask("GET", "/v1/fdb?segment=red", "").await;
    assert_eq!(body["entries"].as_array().unwrap().len(), 2);
    assert_eq!(body["entries"][0]["port"], "vm2");
    assert_eq!(body["entries"][1]["static"], true);
}

/// A filter that does not exist must not look like one that works.
#[tokio::test]
async fn an_unknown_query_is_refused_everywhere() {
    let site = Site::start();
    site.ask("POST", "/v1/ports", VM1).await;
    let document: Value = serde_json::from_str(openapi::COMMITTED).unwrap();
    let mut all = 0;
    for (path, item) in document["paths"].as_object().unwrap() {
        let path = path.replace("{number}", "1").replace("{name}", "vm1");
        let path: String = path.replace(['{', '}'], "");
        for method in item.as_object().unwrap().keys() {
            for query in ["no_such=1", "no_such", "no_such=1&port=vm1"] {
                let path = format!("{path}?{query}");
                let problem = site.refused(&method.to_uppercase(), &path, "{}").await;
                let found = (problem.status, problem.field.as_deref());
                assert_eq!(found, (422, Some("no_such")), "{method} {path}");
            }
            all += 1;
        }
    }
    assert!(all > 60, "{all}");
}

/// The socket for collectors has this path only.
#[tokio::test]
async fn an_unknown_query_of_a_collector_is_refused() {
    let site = Site::start();
    let path = site.dir.path().join("metrics.sock");
    let bound = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let listener = listener(bound.into()).unwrap();
    let engine = FakeEngine::start(DesiredState::default(), site.dir.path());
    tokio::spawn(serve_metrics(listener, engine, std::future::pending()));
    std::fs::rename(path, site.dir.path().join("api.sock")).unwrap();
    let problem = site.refused("GET", "/metrics?name=vm1", "").await;
    assert_eq!(
        (problem.status, problem.field.as_deref()),
        (422, Some("name"))
    );
}

#[tokio::test]
async fn wrong_requests_get_problems() {
    let site = Site::start();
    site.ask("POST", "/v1/ports", VM1).await;
    // Method, path, body, status, field, part of the detail.
    let table = rows(
        r#"
        GET | / |  | 404 | - | no such path
        GET | /v1/ports/ |  | 404 | - | no such path
        GET | /v1/ports/vm9 |  | 404 | - | there is no port `vm9`
        PATCH | /v1/ports/vm9 | {} | 404 | - | there is no port `vm9`
        GET | /v1/ports/%ff |  | 400 | - | UTF-8
        PUT | /v1/ports |  | 405 | - | method
        GET | /v1/fdb?colour=red |  | 422 | colour | unknown key "colour"
        GET | /v1/ports?name=vm1 |  | 422 | name | expected no key, found the unknown key "name"
        GET | /v1/fdb?port=a&port=b |  | 422 | port | found "port" a second time
        DELETE | /v1/captures/x |  | 400 | - | expected an integer from 0 to 4294967295 in the path
        GET | /v1/flows?limit=x |  | 422 | limit | expected an integer, found "x"
        GET | /v1/flows?limit=65536 |  | 422 | limit | expected a smaller integer, found "65536"
        PUT | /v1/state?dry_run=maybe | {} | 422 | dry_run | expected true or false, found "maybe"
        GET | /v1/trace |  | 405 | - | method
        POST | /v1/trace | {} | 422 | port | no such key
        POST | /v1/trace | {"port":1} | 422 | port | expected a string
        POST | /v1/ports | { | 400 | - | found its end at line 1 column
        POST | /v1/ports |  | 400 | - | found its end at line 1 column
        POST | /v1/ports | VM1 1 | 400 | - | expected one value and nothing behind it
        POST | /v1/ports | [] | 422 | - | expected an object
        PUT | /v1/state | [] | 422 | - | expected an object
        PATCH | /v1/state | [] | 422 | - | expected an object
        PATCH | /v1/state | {"switch":["x"]} | 422 | switch | expected an object
        PATCH | /v1/ports/vm1 | [null] | 422 | - | expected an object
        PATCH | /v1/state | {"switch":{"workers":1.5}} | 422 | switch.workers
          | expected an integer from 1 to 64, or "auto"
        POST | /v1/ports | {} | 422 | name | -, found no such key
        POST | /v1/ports | VM1 | 409 | name | "vm1" a second time
        POST | /v1/ports | {"name":"a","kind":"veth","socket":"a"} | 422 | kind
          | expected "vhost-user", "uplink", "tap", "netmap", "memif" or "user", found "veth"
        POST | /v1/ports | {"name":"a","kind":"vhost-user","socket":"a","queues":65} | 422 | queues
          | expected an integer from 1 to 64, found 65
        POST | /v1/ports | {"name":"a","kind":"vhost-user"} | 422 | socket
          | expected the path of a socket, found no such key
        PATCH | /v1/ports/vm1 | {"socket":""} | 422 | socket
          | expected the path of a socket, found ""
        PATCH | /v1/ports/vm1 | {"weight":"7"} | 422 | weight
          | expected an integer from 1 to 1000, found "7"
        POST | /v1/ports | {"name":"a","kind":"vhost-user","socket":"vm1.sock"} | 409 | socket
          | the socket of port "vm1"
        POST | /v1/ports | {"name":"a","kind":"vhost-user","socket":"api.sock"} | 409 | socket
          | which Lasthop has for itself
        POST | /v1/ports | {"name":"a","kind":"vhost-user","socket":"./supervisor.sock"} | 409
          | socket | which Lasthop has for itself
        POST | /v1/ports | {"name":"a","kind":"vhost-user","socket":"/elsewhere/a.sock"} | 422
          | socket | socket_dirs
        PATCH | /v1/ports/vm1 | {"socket":"../a.sock"} | 422 | socket | without ".."
        PATCH | /v1/state | {"metrics":{"listen":"unix:/elsewhere/m.sock"}} | 422 | metrics.listen
          | socket_dirs
        PATCH | /v1/ports/vm1 | {"segment":"a","trunk":["b"]} | 422 | trunk | found both
        PATCH | /v1/ports/vm1 | {"name":"vm2"} | 422 | name | which does not change, found "vm2"
        PATCH | /v1/ports/vm1 | {"wieght":null} | 422 | wieght | expected the key weight
        PATCH | /v1/ports/vm1 | {"qos":{"wieght":null}} | 422 | qos.wieght | expected the key weight
        PATCH | /v1/ports/vm1 | {"mtu":1500,"mtu":1600} | 422 | - | expected each key once
        PATCH | /v1/ports/vm1 | ["mtu"] | 422 | - | expected an object, found an array
    "#,
    );
    for [method, path, body, status, field, detail] in &table {
        let body = body.replace("VM1", VM1);
        let problem = site.refused(method, path, &body).await;
        let text = format!("{method} {path} {body}: {problem:?}");
        assert_problem(&problem, status, field, detail, &text);
    }
    let (_, _, all) = site.ask("GET", "/v1/ports", "").await;
    assert_eq!(all["ports"].as_array().unwrap().len(), 1);
    assert_eq!(all["ports"][0]["segment"], "default");
}

#[tokio::test]
async fn bodies_are_bounded_and_json() {
    let site = Site::start();
    let long = format!("{VM1}{}", " ".repeat(BODY_MAX));
    assert_eq!(site.refused("POST", "/v1/ports", &long).await.status, 413);
    let kind = "application/x-www-form-urlencoded";
    let (status, _, body) = site.ask_as("POST", "/v1/ports", kind, VM1).await;
    assert_eq!(status, 415);
    assert_eq!(body["type"], "urn:lasthop:problem:unsupported-media");
}

#[tokio::test]
async fn an_engine_that_is_gone_is_503() {
    let (engine, commands) = engine_channel(1, Events::default());
    drop(commands);
    let site = Site::with_engine(tempfile::tempdir().unwrap(), engine);
    let problem = site.refused("GET", "/v1/status", "").await;
    assert_eq!(problem.status, 503);
    assert_eq!(problem.detail, "control is shutting down");
}

#[tokio::test(start_paused = true)]
async fn an_engine_that_does_not_reply_is_503() {
    let (engine, _commands) = engine_channel(1, Events::default());
    for _ in 0..3 {
        let problem = engine.stats().await.unwrap_err();
        assert_eq!(problem.status, 503);
        assert_eq!(problem.detail, "no reply from control within 10 s");
    }
}

#[tokio::test]
async fn the_server_ends_on_shutdown() {
    let site = Site::start();
    site.ask("GET", "/v1/status", "").await;
    site.stop.send(()).unwrap();
    site.server.await.unwrap();
}

#[tokio::test]
async fn a_stalled_client_does_not_hold_up_the_end() {
    let site = Site::start();
    let socket = site.dir.path().join("api.sock");
    let mut stalled = UnixStream::connect(socket).await.unwrap();
    let head = b"POST /v1/ports HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n";
    stalled.write_all(head).await.unwrap();
    // A response to another client: the server has seen the stalled one by then.
    site.ask("GET", "/v1/status", "").await;
    site.stop.send(()).unwrap();
    let end = tokio::time::timeout(ipc::timeouts::API_SHUTDOWN * 10, site.server).await;
    end.unwrap().unwrap();
}

/// Connects to the socket and sends nothing.
async fn connect(site: &Site) -> UnixStream {
    let socket = site.dir.path().join("api.sock");
    UnixStream::connect(socket).await.unwrap()
}

/// Reads everything until the server closes the connection.
async fn rest(mut stream: UnixStream) -> String {
    let mut answer = Vec::new();
    // A reset is an end, too.
    let _ = stream.read_to_end(&mut answer).await;
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test]
async fn idle_clients_are_disconnected_for_new_ones() {
    let site = Site::start();
    let mut idle = Vec::new();
    for _ in 0..3 * connections::MAX_CLIENTS {
        idle.push(connect(&site).await);
        let (status, _, _) = site.ask("GET", "/v1/status", "").await;
        assert_eq!(status, 200);
    }
    // The oldest connections were closed first.
    assert_eq!(rest(idle.remove(0)).await, "");
    let last = idle.pop().unwrap();
    last.try_write(b"GET /v1/status HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        .unwrap();
    assert!(rest(last).await.starts_with("HTTP/1.1 200"));
}

#[tokio::test]
async fn many_busy_clients_are_served_a_few_at_a_time_and_the_rest_is_rejected() {
    // An engine that never replies.
    let (engine, _commands) = engine_channel(1, Events::default());
    let site = Site::with_engine(tempfile::tempdir().unwrap(), engine);
    let ask = b"GET /v1/status HTTP/1.1\r\nhost: x\r\n\r\n";
    let mut busy = Vec::new();
    for _ in 0..connections::MAX_CLIENTS {
        let mut stream = connect(&site).await;
        stream.write_all(ask).await.unwrap();
        busy.push(stream);
    }
    // All of them are known to be busy by then, or their heads are read in time.
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    let answer = rest(connect(&site).await).await;
    assert!(answer.starts_with("HTTP/1.1 503"), "{answer:?}");
    assert!(answer.contains("too many clients"), "{answer}");
    drop(busy);
    site.stop.send(()).unwrap();
    site.server.await.unwrap();
}

#[tokio::test]
async fn garbage_is_400_and_long_heads_are_431() {
    let site = Site::start();
    let long = format!("GET / HTTP/1.1\r\nx: {}", "y".repeat(100_000));
    let many = format!("GET / HTTP/1.1\r\n{}\r\n", "x: y\r\n".repeat(200));
    for (garbage, status) in [
        (&b"\0\xff\r\n\r\n"[..], "400"),
        (b"GET\r\n\r\n", "400"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc", "400"),
        (
            b"GET /v1/status HTTP/1.1\r\ncontent-length: -1\r\n\r\n",
            "400",
        ),
        (long.as_bytes(), "431"),
        (many.as_bytes(), "431"),
    ] {
        let mut stream = connect(&site).await;
        // The server may close the connection before all is sent.
        let _ = stream.write_all(garbage).await;
        let answer = rest(stream).await;
        let start = format!("HTTP/1.1 {status}");
        assert!(
            answer.starts_with(&start),
            "{:?}: {answer:?}",
            garbage.get(..30)
        );
    }
    assert_eq!(site.ask("GET", "/v1/status", "").await.0, 200);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_takes_too_long_gets_a_timeout() {
    let site = Site::start();
    let mut head = connect(&site).await;
    head.write_all(b"GET /v1/status HT").await.unwrap();
    let answer = rest(head).await;
    assert!(answer.starts_with("HTTP/1.1 408"), "{answer:?}");
    assert!(answer.contains("no complete request head within 10 s"));
    let mut body = connect(&site).await;
    let text = b"POST /v1/ports HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n{";
    body.write_all(text).await.unwrap();
    let answer = rest(body).await;
    assert!(answer.starts_with("HTTP/1.1 408"), "{answer:?}");
    assert!(answer.contains("urn:lasthop:problem:timeout"), "{answer}");
}

/// A client that does not read its responses keeps its connection until others need it.
#[tokio::test]
async fn a_client_that_does_not_read_delays_no_other() {
    let site = Site::start();
    let mut deaf = Vec::new();
    for _ in 0..connections::MAX_CLIENTS / 2 {
        let stream = connect(&site).await;
        let ask = "GET /v1/openapi.json HTTP/1.1\r\nhost: x\r\n\r\n".repeat(50);
        let _ = stream.try_write(ask.as_bytes());
        deaf.push(stream);
    }
    for _ in 0..50 {
        assert_eq!(site.ask("GET", "/v1/status", "").await.0, 200);
    }
}

#[tokio::test]
async fn metrics_are_text() {
    let site = Site::start();
    let mut stream = connect(&site).await;
    let text = "GET /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\
        accept: application/openmetrics-text\r\n\r\n";
    stream.write_all(text.as_bytes()).await.unwrap();
    let answer = rest(stream).await;
    assert!(
        answer.contains("content-type: application/openmetrics-text; version=1.0.0"),
        "{answer}"
    );
    assert!(answer.ends_with("# EOF\n"), "{answer}");
}

#[tokio::test]
async fn a_capture_is_a_file_that_names_what_ends_it() {
    let site = Site::start();
    let query = "filter=udp%20port%2053&snaplen=60&direction=in&count=1";
    let path = format!("/v1/ports/vm1/capture?{query}");
    let mut stream = connect(&site).await;
    let head = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    let text = String::from_utf8_lossy(&answer).to_ascii_lowercase();
    assert!(text.starts_with("http/1.1 200"), "{text}");
    assert!(text.contains("content-type: application/x-pcapng"));
    assert!(text.contains("location: /v1/captures/5"));
    let magic = 0x0a0d_0d0a_u32.to_ne_bytes();
    assert!(answer.windows(4).any(|bytes| bytes == magic));
    // The last block, the end of its chunk, and the last chunk.
    assert!(answer.ends_with(b"\r\n0\r\n\r\n"));

    let (status, ..) = site.ask("DELETE", "/v1/captures/5", "").await;
    assert_eq!(status, 204);
    for (path, expected) in [
        ("/v1/ports/vm2/capture", 404),
        ("/v1/ports/vm1/capture?filtre=x", 422),
        ("/v1/ports/vm1/capture?direction=up", 422),
        ("/v1/ports/vm1/capture?snaplen=x", 422),
    ] {
        assert_eq!(
            site.refused("GET", path, "").await.status,
            expected,
            "{path}"
        );
    }
    assert_eq!(
        site.refused("DELETE", "/v1/captures/x", "").await.status,
        400
    );
}
