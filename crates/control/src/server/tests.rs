//! The server over a real socket, with an engine that only remembers.

use std::path::PathBuf;

use api::v1::{
    FdbEntry, PortState, PortStats, ProcessState, ProcessStatus, SwitchStatus, WantedState,
};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use super::*;
use crate::command::{Command, engine_channel};
use crate::wanted;

/// An engine without a switch.
struct FakeEngine {
    wanted: WantedState,
    dir: PathBuf,
}

impl FakeEngine {
    async fn run(mut self, mut commands: mpsc::Receiver<Command>) {
        while let Some(command) = commands.recv().await {
            self.obey(command);
        }
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Status(reply) => drop(reply.send(Ok(self.status()))),
            Command::Ports(reply) => drop(reply.send(Ok(PortsDocument {
                ports: self.ports(),
            }))),
            Command::AddPort(port, reply) => drop(reply.send(self.add(port))),
            Command::SetPort(name, patch, reply) => drop(reply.send(self.set(&name, &patch))),
            Command::RemovePort(name, reply) => drop(reply.send(self.remove(&name))),
            Command::Stats(reply) => drop(reply.send(Ok(StatsDocument {
                ports: vec![PortStats::default()],
                ..StatsDocument::default()
            }))),
            Command::Fdb(filter, reply) => drop(reply.send(Ok(fdb_of(&filter)))),
        }
    }

    fn status(&self) -> StatusDocument {
        StatusDocument {
            name: self.wanted.switch.name.clone(),
            processes: vec![ProcessStatus {
                name: "control".to_owned(),
                state: ProcessState::Running,
                pid: Some(1),
                uptime_seconds: 2,
                restarts: 0,
            }],
            switch: SwitchStatus {
                connected: true,
                ..SwitchStatus::default()
            },
            ports: self.ports(),
            ..StatusDocument::default()
        }
    }

    fn ports(&self) -> Vec<PortStatus> {
        let ports = self.wanted.ports.iter();
        ports
            .map(|p| PortStatus::new(p, PortState::Waiting))
            .collect()
    }

    fn show(&self, name: &str) -> Result<PortStatus, Problem> {
        let port = self.wanted.port(name);
        let port = port.ok_or_else(|| Problem::no_such_port(name))?;
        Ok(PortStatus::new(port, PortState::Waiting))
    }

    fn add(&mut self, port: PortSpec) -> Result<PortStatus, Problem> {
        let name = port.name.clone();
        self.wanted = wanted::add_port(&self.wanted, port, &self.dir)?;
        self.show(&name)
    }

    fn set(&mut self, name: &str, patch: &PortPatch) -> Result<PortStatus, Problem> {
        self.wanted = wanted::set_port(&self.wanted, name, patch, &self.dir)?;
        self.show(name)
    }

    fn remove(&mut self, name: &str) -> Result<(), Problem> {
        self.wanted = wanted::remove_port(&self.wanted, name)?;
        Ok(())
    }
}

fn fdb_of(filter: &FdbFilter) -> FdbDocument {
    let entry = |segment: &str, port: &str| FdbEntry {
        segment: segment.to_owned(),
        mac: "52:54:00:00:00:01".to_owned(),
        port: port.to_owned(),
        age_seconds: 3,
    };
    let mut entries = vec![entry("blue", "vm1"), entry("red", "vm2")];
    entries.retain(|entry| filter.accepts(entry));
    FdbDocument { entries }
}

/// A running server and how to end it.
struct Site {
    dir: TempDir,
    stop: oneshot::Sender<()>,
    server: JoinHandle<io::Result<()>>,
}

impl Site {
    fn start() -> Self {
        let (engine, commands) = engine_channel(4);
        let dir = tempfile::tempdir().unwrap();
        let fake = FakeEngine {
            wanted: WantedState::default(),
            dir: dir.path().to_owned(),
        };
        tokio::spawn(fake.run(commands));
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
            stop,
            server: tokio::spawn(serve(listener, engine, shutdown)),
        }
    }

    /// Sends one request; gives back the status, the head, and the JSON body.
    async fn ask(&self, method: &str, path: &str, body: &str) -> (u16, String, Value) {
        self.ask_as(method, path, "application/json", body).await
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
        // The server may answer, and close, before it has read all of a body that is too long.
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

    /// Sends a request that has to fail; checks that the answer is a problem.
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
    let (_, _, body) = site.ask("GET", "/v1/fdb?segment=red", "").await;
    assert_eq!(body["entries"].as_array().unwrap().len(), 1);
    assert_eq!(body["entries"][0]["port"], "vm2");
}

#[tokio::test]
async fn wrong_requests_get_problems() {
    let site = Site::start();
    site.ask("POST", "/v1/ports", VM1).await;
    // Method, path, body, status, field, part of the detail.
    let table = [
        ("GET", "/", "", 404, None, "nothing at this path"),
        ("GET", "/v1/ports/", "", 404, None, "nothing at this path"),
        (
            "GET",
            "/v1/ports/vm9",
            "",
            404,
            None,
            "there is no port `vm9`",
        ),
        (
            "PATCH",
            "/v1/ports/vm9",
            "{}",
            404,
            None,
            "there is no port `vm9`",
        ),
        ("GET", "/v1/ports/%ff", "", 400, None, "UTF-8"),
        ("PUT", "/v1/ports", "", 405, None, "method"),
        (
            "GET",
            "/v1/fdb?colour=red",
            "",
            400,
            None,
            "unknown field `colour`",
        ),
        ("POST", "/v1/ports", "{", 400, None, "EOF"),
        ("POST", "/v1/ports", "", 400, None, "EOF"),
        (
            "POST",
            "/v1/ports",
            &format!("{VM1} 1"),
            400,
            None,
            "trailing",
        ),
        ("POST", "/v1/ports", "[]", 422, None, "invalid length 0"),
        ("POST", "/v1/ports", "{}", 422, None, "missing field `name`"),
        (
            "POST",
            "/v1/ports",
            VM1,
            409,
            Some("name"),
            "\"vm1\" a second time",
        ),
        (
            "POST",
            "/v1/ports",
            r#"{"name":"a","kind":"veth","socket":"a"}"#,
            422,
            Some("kind"),
            "expected one of `vhost-user`, `uplink`, `tap`",
        ),
        (
            "POST",
            "/v1/ports",
            r#"{"name":"a","kind":"vhost-user","socket":"a","queues":65}"#,
            422,
            Some("queues"),
            "expected an integer from 1 to 64, found 65",
        ),
        (
            "POST",
            "/v1/ports",
            r#"{"name":"a","kind":"vhost-user","socket":"vm1.sock"}"#,
            409,
            Some("socket"),
            "the socket of port \"vm1\"",
        ),
        (
            "POST",
            "/v1/ports",
            r#"{"name":"a","kind":"vhost-user","socket":"api.sock"}"#,
            409,
            Some("socket"),
            "the socket of the API",
        ),
        (
            "PATCH",
            "/v1/ports/vm1",
            r#"{"segment":"a","trunk":["b"]}"#,
            422,
            Some("trunk"),
            "found both",
        ),
        (
            "PATCH",
            "/v1/ports/vm1",
            r#"{"name":"vm2"}"#,
            422,
            Some("name"),
            "unknown field `name`",
        ),
    ];
    for (method, path, body, status, field, detail) in table {
        let problem = site.refused(method, path, body).await;
        let text = format!("{method} {path} {body}: {problem:?}");
        assert_eq!(problem.status, status, "{text}");
        assert_eq!(problem.field.as_deref(), field, "{text}");
        assert!(problem.detail.contains(detail), "{text}");
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
    let (engine, commands) = engine_channel(1);
    drop(commands);
    let site = Site::with_engine(tempfile::tempdir().unwrap(), engine);
    let problem = site.refused("GET", "/v1/status", "").await;
    assert_eq!(problem.status, 503);
    assert_eq!(problem.detail, "control is shutting down");
}

#[tokio::test(start_paused = true)]
async fn an_engine_that_is_silent_is_503() {
    let (engine, _commands) = engine_channel(1);
    for _ in 0..3 {
        let problem = engine.stats().await.unwrap_err();
        assert_eq!(problem.status, 503);
        assert_eq!(problem.detail, "control did not answer within 10 s");
    }
}

#[tokio::test]
async fn the_server_ends_when_told() {
    let site = Site::start();
    site.ask("GET", "/v1/status", "").await;
    site.stop.send(()).unwrap();
    site.server.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_stalled_client_does_not_hold_up_the_end() {
    let site = Site::start();
    let socket = site.dir.path().join("api.sock");
    let mut stalled = UnixStream::connect(socket).await.unwrap();
    let head = b"POST /v1/ports HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n";
    stalled.write_all(head).await.unwrap();
    // An answer to another client: the server has seen the stalled one by then.
    site.ask("GET", "/v1/status", "").await;
    site.stop.send(()).unwrap();
    let end = tokio::time::timeout(GRACE * 10, site.server).await;
    end.unwrap().unwrap().unwrap();
}
