//! A client of the API: one HTTP exchange over the unix socket at a time.

use std::fmt::Write;
use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use api::v1::{CaptureDirection, CaptureQuery, EventsFilter, FdbFilter, Problem};
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper::header::{CONTENT_TYPE, ETAG, HOST, IF_MATCH, LOCATION};
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use tokio::net::UnixStream;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::Failure;

/// How long one exchange may take. The server gives up on its engine before, and says so.
const PATIENCE: Duration = Duration::from_secs(15);

/// What is asked.
struct Question<'a> {
    method: Method,
    path: &'a str,
    /// For `If-Match`.
    tag: Option<&'a str>,
    /// For `Last-Event-ID`.
    event: Option<&'a str>,
    body: Bytes,
}

impl<'a> Question<'a> {
    fn of(method: Method, path: &'a str) -> Self {
        Self {
            method,
            path,
            tag: None,
            event: None,
            body: Bytes::new(),
        }
    }
}

/// What is answered.
struct Answer {
    status: StatusCode,
    tag: Option<String>,
    body: Bytes,
}

fn json(document: &impl Serialize) -> Result<Bytes, Failure> {
    let body = serde_json::to_vec(document);
    Ok(body
        .map_err(|error| Failure::Failed(error.to_string()))?
        .into())
}

/// An answer that is read as it comes.
pub(super) struct Download {
    /// What comes.
    pub(super) body: Incoming,
    /// What ends it when it is deleted.
    pub(super) location: String,
    _connection: Connection,
}

/// The task that keeps a connection going; it ends with this.
struct Connection(JoinHandle<hyper::Result<()>>);

impl Drop for Connection {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Where the API is.
pub(super) struct Client {
    socket: PathBuf,
}

impl Client {
    /// The client of the Lasthop that runs in a directory.
    pub(super) fn new(runtime_dir: &Path) -> Self {
        Self {
            socket: runtime_dir.join(control::wanted::API_SOCKET),
        }
    }

    /// Where it runs.
    pub(super) fn runtime_dir(&self) -> &Path {
        self.socket.parent().unwrap_or(Path::new(""))
    }

    /// Asks for a document.
    pub(super) async fn get(&self, path: &str) -> Result<Bytes, Failure> {
        let (body, _) = self.get_tagged(path).await?;
        Ok(body)
    }

    /// The same, with the `ETag` that came with it.
    pub(super) async fn get_tagged(&self, path: &str) -> Result<(Bytes, Option<String>), Failure> {
        let ask = || self.exchange(Question::of(Method::GET, path));
        match ask().await {
            // Control has died meanwhile. What only asks may be asked again (RFC 9110, 9.2.2), and its successor answers.
            Err(Failure::BrokenOff(_)) => ask().await,
            answered => answered,
        }
    }

    /// Puts a document in the place of one whose `ETag` is still the same.
    pub(super) async fn put_if(
        &self,
        path: &str,
        tag: Option<&str>,
        document: &impl Serialize,
    ) -> Result<Bytes, Failure> {
        let question = Question {
            tag,
            body: json(document)?,
            ..Question::of(Method::PUT, path)
        };
        let (body, _) = self.exchange(question).await?;
        Ok(body)
    }

    /// Sends a document.
    pub(super) async fn send(
        &self,
        method: Method,
        path: &str,
        document: &impl Serialize,
    ) -> Result<Bytes, Failure> {
        let question = Question {
            body: json(document)?,
            ..Question::of(method, path)
        };
        let (body, _) = self.exchange(question).await?;
        Ok(body)
    }

    /// Removes what is at a path.
    pub(super) async fn delete(&self, path: &str) -> Result<(), Failure> {
        let done = self.exchange(Question::of(Method::DELETE, path)).await;
        done.map(drop)
    }

    /// The same where something is told about it.
    pub(super) async fn delete_telling(&self, path: &str) -> Result<Bytes, Failure> {
        let (body, _) = self.exchange(Question::of(Method::DELETE, path)).await?;
        Ok(body)
    }

    /// Asks for a document without end.
    pub(super) async fn open(&self, path: &str) -> Result<Download, Failure> {
        self.open_behind(path, None).await
    }

    /// The same of events, behind the one that was had last.
    pub(super) async fn open_behind(
        &self,
        path: &str,
        event: Option<&str>,
    ) -> Result<Download, Failure> {
        let question = Question {
            event,
            ..Question::of(Method::GET, path)
        };
        let begun = self.in_time(self.begin(question)).await?;
        let (answer, connection) = begun;
        let status = answer.status();
        if !status.is_success() {
            let body = self.in_time(self.whole(answer)).await?;
            return Err(refusal(status, &body));
        }
        let location = answer.headers().get(LOCATION);
        let location = location.and_then(|value| value.to_str().ok());
        Ok(Download {
            location: location.unwrap_or_default().to_owned(),
            body: answer.into_body(),
            _connection: connection,
        })
    }

    /// One exchange, in time: the answer and its `ETag`.
    async fn exchange(&self, question: Question<'_>) -> Result<(Bytes, Option<String>), Failure> {
        let answer = self.in_time(self.converse(question)).await?;
        match answer.status.is_success() {
            true => Ok((answer.body, answer.tag)),
            false => Err(refusal(answer.status, &answer.body)),
        }
    }

    /// Waits for the server, but not for ever.
    async fn in_time<T>(
        &self,
        what: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        timeout(PATIENCE, what).await.map_err(|_| {
            let seconds = PATIENCE.as_secs();
            let socket = self.socket.display();
            Failure::Failed(format!("no answer from {socket} within {seconds} s"))
        })?
    }

    fn broken(&self, error: &hyper::Error) -> Failure {
        let socket = self.socket.display();
        Failure::BrokenOff(format!("the answer from {socket} broke off: {error}"))
    }

    /// Connects, asks, and reads the whole answer.
    async fn converse(&self, question: Question<'_>) -> Result<Answer, Failure> {
        let (answer, _connection) = self.begin(question).await?;
        let status = answer.status();
        let tag = answer.headers().get(ETAG);
        let tag = tag.and_then(|tag| tag.to_str().ok()).map(str::to_owned);
        let body = self.whole(answer).await?;
        Ok(Answer { status, tag, body })
    }

    async fn whole(&self, answer: Response<Incoming>) -> Result<Bytes, Failure> {
        let body = answer.into_body().collect().await;
        let body = body.map_err(|error| self.broken(&error))?;
        Ok(body.to_bytes())
    }

    /// Connects, asks, and reads the head of the answer.
    async fn begin(
        &self,
        question: Question<'_>,
    ) -> Result<(Response<Incoming>, Connection), Failure> {
        let stream = UnixStream::connect(&self.socket).await;
        let stream = stream.map_err(|error| self.unreachable(&error))?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|error| self.broken(&error))?;
        // Its error is the exchange's too, which reports it.
        let connection = Connection(tokio::spawn(connection));
        let mut request = Request::builder()
            .method(question.method)
            .uri(question.path)
            .header(HOST, "lasthop")
            .header(CONTENT_TYPE, "application/json");
        if let Some(tag) = question.tag {
            request = request.header(IF_MATCH, tag);
        }
        if let Some(event) = question.event {
            request = request.header("last-event-id", event);
        }
        let request = request
            .body(Full::new(question.body))
            .map_err(|error| Failure::Failed(error.to_string()))?;
        let answer = sender.send_request(request).await;
        let answer = answer.map_err(|error| self.broken(&error))?;
        Ok((answer, connection))
    }

    /// Why nobody answers.
    fn unreachable(&self, error: &io::Error) -> Failure {
        Failure::Failed(unreachable(&self.socket, error))
    }
}

/// Why nobody answers at a socket of Lasthop's.
pub(super) fn unreachable(socket: &Path, error: &io::Error) -> String {
    let socket = socket.display();
    let why = match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
            "is `lasthop run` running?".to_owned()
        }
        _ => error.to_string(),
    };
    format!("cannot reach Lasthop at {socket}: {why}")
}

/// What a server says that does not do what it was asked.
fn refusal(status: StatusCode, body: &[u8]) -> Failure {
    match serde_json::from_slice::<Problem>(body) {
        Ok(problem) => problem.into(),
        Err(_) => Failure::Failed(format!("the server answers {status}")),
    }
}

/// Path of a port. Its name needs no escapes: only such names get past the arguments.
pub(super) fn port_path(name: &str) -> String {
    format!("/v1/ports/{name}")
}

/// Path of what a port has counted, likewise.
pub(super) fn port_stats_path(name: &str) -> String {
    format!("{}/stats", port_path(name))
}

/// Path of a segment, likewise.
pub(super) fn segment_path(name: &str) -> String {
    format!("/v1/segments/{name}")
}

/// Path of a mirror, likewise.
pub(super) fn mirror_path(name: &str) -> String {
    format!("/v1/mirrors/{name}")
}

/// Path of an access list, likewise.
pub(super) fn access_list_path(name: &str) -> String {
    format!("/v1/access/lists/{name}")
}

/// Path of what was counted for the rules of an access list, or of all.
pub(super) fn counts_path(list: Option<&str>) -> String {
    let query = list.map(|name| format!("?list={name}"));
    format!("/v1/access/counts{}", query.unwrap_or_default())
}

/// Path of the forwarding database with a filter.
pub(super) fn fdb_path(filter: &FdbFilter) -> String {
    let segment = filter.segment.iter().map(|name| format!("segment={name}"));
    let port = filter.port.iter().map(|name| format!("port={name}"));
    let query: Vec<String> = segment.chain(port).collect();
    match query.is_empty() {
        true => "/v1/fdb".to_owned(),
        false => format!("/v1/fdb?{}", query.join("&")),
    }
}

/// Path of events with a filter.
pub(super) fn events_path(filter: &EventsFilter) -> String {
    let port = filter.port.iter().map(|name| format!("port={name}"));
    let kind = filter.kind.iter().map(|kinds| format!("kind={kinds}"));
    let last = filter.last.map(|last| format!("last={last}"));
    let follow = filter.follow.map(|follow| format!("follow={follow}"));
    let query: Vec<String> = port.chain(kind).chain(last).chain(follow).collect();
    format!("/v1/events?{}", query.join("&"))
}

/// Path of a capture of a port.
pub(super) fn capture_path(port: &str, query: &CaptureQuery) -> String {
    let direction = match query.direction {
        CaptureDirection::In => "in",
        CaptureDirection::Out => "out",
        CaptureDirection::Both => "both",
    };
    let mut path = format!(
        "{}/capture?snaplen={}&direction={direction}&drops={}&buffer={}",
        port_path(port),
        query.snaplen,
        query.drops,
        query.buffer,
    );
    if let Some(count) = query.count {
        let _ = write!(path, "&count={count}");
    }
    path.push_str("&filter=");
    for byte in query.filter.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' => path.push(byte.into()),
            _ => {
                let _ = write!(path, "%{byte:02X}");
            }
        }
    }
    path
}
