//! A client of the API: one HTTP exchange over the Unix socket at a time.

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

/// Time limit of one exchange. The server's own limit for its engine is shorter, and gives a better
/// error.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(15);

/// A request to the API.
struct ApiRequest<'a> {
    method: Method,
    path: &'a str,
    /// Value of `If-Match`.
    tag: Option<&'a str>,
    /// Value of `Last-Event-ID`.
    event: Option<&'a str>,
    body: Bytes,
}

impl<'a> ApiRequest<'a> {
    fn new(method: Method, path: &'a str) -> Self {
        Self {
            method,
            path,
            tag: None,
            event: None,
            body: Bytes::new(),
        }
    }
}

/// A complete response of the API.
struct ApiResponse {
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

/// A streamed response.
pub(super) struct Download {
    /// The stream.
    pub(super) body: Incoming,
    /// The path whose deletion ends the stream.
    pub(super) location: String,
    _connection: Connection,
}

/// The task that drives a connection; aborted on drop.
struct Connection(JoinHandle<hyper::Result<()>>);

impl Drop for Connection {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// A client of one Lasthop.
pub(super) struct Client {
    socket: PathBuf,
}

impl Client {
    /// Returns a client of the Lasthop that runs in a directory.
    pub(super) fn new(runtime_dir: &Path) -> Self {
        Self {
            socket: runtime_dir.join(control::desired::API_SOCKET),
        }
    }

    /// Returns the runtime directory.
    pub(super) fn runtime_dir(&self) -> &Path {
        self.socket.parent().unwrap_or(Path::new(""))
    }

    /// Gets a document.
    pub(super) async fn get(&self, path: &str) -> Result<Bytes, Failure> {
        let (body, _) = self.get_tagged(path).await?;
        Ok(body)
    }

    /// Gets a document and its `ETag`.
    pub(super) async fn get_tagged(&self, path: &str) -> Result<(Bytes, Option<String>), Failure> {
        let get = || self.exchange(ApiRequest::new(Method::GET, path));
        match get().await {
            // Control has ended. A GET is idempotent and may be repeated (RFC 9110, 9.2.2); the
            // next control replies.
            Err(Failure::BrokenOff(_)) => get().await,
            result => result,
        }
    }

    /// Replaces a document if its `ETag` is unchanged.
    pub(super) async fn put_if(
        &self,
        path: &str,
        tag: Option<&str>,
        document: &impl Serialize,
    ) -> Result<Bytes, Failure> {
        let request = ApiRequest {
            tag,
            body: json(document)?,
            ..ApiRequest::new(Method::PUT, path)
        };
        let (body, _) = self.exchange(request).await?;
        Ok(body)
    }

    /// Sends a document.
    pub(super) async fn send(
        &self,
        method: Method,
        path: &str,
        document: &impl Serialize,
    ) -> Result<Bytes, Failure> {
        let request = ApiRequest {
            body: json(document)?,
            ..ApiRequest::new(method, path)
        };
        let (body, _) = self.exchange(request).await?;
        Ok(body)
    }

    /// Deletes a resource.
    pub(super) async fn delete(&self, path: &str) -> Result<(), Failure> {
        let done = self.exchange(ApiRequest::new(Method::DELETE, path)).await;
        done.map(drop)
    }

    /// Deletes a resource and returns the response's document.
    pub(super) async fn delete_for_response(&self, path: &str) -> Result<Bytes, Failure> {
        let (body, _) = self.exchange(ApiRequest::new(Method::DELETE, path)).await?;
        Ok(body)
    }

    /// Opens a stream.
    pub(super) async fn open(&self, path: &str) -> Result<Download, Failure> {
        self.open_after(path, None).await
    }

    /// Opens a stream of events, after the given one.
    pub(super) async fn open_after(
        &self,
        path: &str,
        event: Option<&str>,
    ) -> Result<Download, Failure> {
        let request = ApiRequest {
            event,
            ..ApiRequest::new(Method::GET, path)
        };
        let (response, connection) = self.with_timeout(self.start(request)).await?;
        let status = response.status();
        if !status.is_success() {
            let body = self.with_timeout(self.read_body(response)).await?;
            return Err(refusal(status, &body));
        }
        let location = response.headers().get(LOCATION);
        let location = location.and_then(|value| value.to_str().ok());
        Ok(Download {
            location: location.unwrap_or_default().to_owned(),
            body: response.into_body(),
            _connection: connection,
        })
    }

    /// Sends a request and returns the response's body and `ETag`.
    async fn exchange(&self, request: ApiRequest<'_>) -> Result<(Bytes, Option<String>), Failure> {
        let response = self.with_timeout(self.round_trip(request)).await?;
        if response.status.is_success() {
            Ok((response.body, response.tag))
        } else {
            Err(refusal(response.status, &response.body))
        }
    }

    /// Waits for the server, with the time limit.
    async fn with_timeout<T>(
        &self,
        reply: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        timeout(REQUEST_TIMEOUT, reply).await.map_err(|_| {
            let seconds = REQUEST_TIMEOUT.as_secs();
            let socket = self.socket.display();
            Failure::Failed(format!("no response from {socket} within {seconds} s"))
        })?
    }

    fn broken_off(&self, error: &hyper::Error) -> Failure {
        let socket = self.socket.display();
        Failure::BrokenOff(format!("the connection to {socket} broke off: {error}"))
    }

    /// Connects, sends the request and reads the whole response.
    async fn round_trip(&self, request: ApiRequest<'_>) -> Result<ApiResponse, Failure> {
        let (response, _connection) = self.start(request).await?;
        let status = response.status();
        let tag = response.headers().get(ETAG);
        let tag = tag.and_then(|tag| tag.to_str().ok()).map(str::to_owned);
        let body = self.read_body(response).await?;
        Ok(ApiResponse { status, tag, body })
    }

    async fn read_body(&self, response: Response<Incoming>) -> Result<Bytes, Failure> {
        let body = response.into_body().collect().await;
        let body = body.map_err(|error| self.broken_off(&error))?;
        Ok(body.to_bytes())
    }

    /// Connects, sends the request and reads the response's head.
    async fn start(
        &self,
        request: ApiRequest<'_>,
    ) -> Result<(Response<Incoming>, Connection), Failure> {
        let stream = UnixStream::connect(&self.socket).await;
        let stream = stream.map_err(|error| self.unreachable(&error))?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|error| self.broken_off(&error))?;
        // An error of the connection is also reported by `send_request` or the body.
        let connection = Connection(tokio::spawn(connection));
        let mut builder = Request::builder()
            .method(request.method)
            .uri(request.path)
            .header(HOST, "lasthop")
            .header(CONTENT_TYPE, "application/json");
        if let Some(tag) = request.tag {
            builder = builder.header(IF_MATCH, tag);
        }
        if let Some(event) = request.event {
            builder = builder.header("last-event-id", event);
        }
        let request = builder
            .body(Full::new(request.body))
            .map_err(|error| Failure::Failed(error.to_string()))?;
        let response = sender.send_request(request).await;
        let response = response.map_err(|error| self.broken_off(&error))?;
        Ok((response, connection))
    }

    /// Returns the error for a failed connect.
    fn unreachable(&self, error: &io::Error) -> Failure {
        Failure::Failed(unreachable(&self.socket, error))
    }
}

/// Returns the text for a failed connect to a socket of Lasthop.
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

/// Returns the error of a response without success.
fn refusal(status: StatusCode, body: &[u8]) -> Failure {
    match serde_json::from_slice::<Problem>(body) {
        Ok(problem) => problem.into(),
        Err(_) => Failure::Failed(format!("the server returned {status}")),
    }
}

/// Returns the path of a port. Names need no escapes: the argument parser accepts no others.
pub(super) fn port_path(name: &str) -> String {
    format!("/v1/ports/{name}")
}

/// Returns the path of a port's statistics.
pub(super) fn port_stats_path(name: &str) -> String {
    format!("{}/stats", port_path(name))
}

/// Returns the path of a segment.
pub(super) fn segment_path(name: &str) -> String {
    format!("/v1/segments/{name}")
}

/// Returns the path of a mirror.
pub(super) fn mirror_path(name: &str) -> String {
    format!("/v1/mirrors/{name}")
}

/// Returns the path of an access list.
pub(super) fn access_list_path(name: &str) -> String {
    format!("/v1/access/lists/{name}")
}

/// Returns the path of the rule counters of one access list, or of all.
pub(super) fn counts_path(list: Option<&str>) -> String {
    let query = list.map(|name| format!("?list={name}"));
    format!("/v1/access/counts{}", query.unwrap_or_default())
}

/// Returns the path of the FDB with a filter.
pub(super) fn fdb_path(filter: &FdbFilter) -> String {
    let segment = filter.segment.iter().map(|name| format!("segment={name}"));
    let port = filter.port.iter().map(|name| format!("port={name}"));
    let query: Vec<String> = segment.chain(port).collect();
    if query.is_empty() {
        return "/v1/fdb".to_owned();
    }
    format!("/v1/fdb?{}", query.join("&"))
}

/// Returns the path of events with a filter.
pub(super) fn events_path(filter: &EventsFilter) -> String {
    let port = filter.port.iter().map(|name| format!("port={name}"));
    let kind = filter.kind.iter().map(|kinds| format!("kind={kinds}"));
    let last = filter.last.map(|last| format!("last={last}"));
    let follow = filter.follow.map(|follow| format!("follow={follow}"));
    let query: Vec<String> = port.chain(kind).chain(last).chain(follow).collect();
    format!("/v1/events?{}", query.join("&"))
}

/// Returns the path of a capture of a port.
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
