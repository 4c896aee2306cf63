//! A client of the API: one HTTP exchange over the unix socket at a time.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use api::v1::{FdbFilter, Problem};
use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::header::{CONTENT_TYPE, HOST};
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use tokio::net::UnixStream;
use tokio::time::timeout;

use super::Failure;

/// How long one exchange may take. The server gives up on its engine before, and says so.
const PATIENCE: Duration = Duration::from_secs(15);

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

    /// Asks for a document.
    pub(super) async fn get(&self, path: &str) -> Result<Bytes, Failure> {
        self.exchange(Method::GET, path, Bytes::new()).await
    }

    /// Sends a document.
    pub(super) async fn send(
        &self,
        method: Method,
        path: &str,
        document: &impl Serialize,
    ) -> Result<Bytes, Failure> {
        let body = serde_json::to_vec(document);
        let body = body.map_err(|error| Failure::Failed(error.to_string()))?;
        self.exchange(method, path, body.into()).await
    }

    /// Removes what is at a path.
    pub(super) async fn delete(&self, path: &str) -> Result<(), Failure> {
        let done = self.exchange(Method::DELETE, path, Bytes::new()).await;
        done.map(drop)
    }

    /// One exchange, in time.
    async fn exchange(&self, method: Method, path: &str, body: Bytes) -> Result<Bytes, Failure> {
        let exchange = timeout(PATIENCE, self.converse(method, path, body));
        let (status, body) = exchange.await.map_err(|_| {
            let seconds = PATIENCE.as_secs();
            let socket = self.socket.display();
            Failure::Failed(format!("no answer from {socket} within {seconds} s"))
        })??;
        match status.is_success() {
            true => Ok(body),
            false => Err(refusal(status, &body)),
        }
    }

    /// Connects, asks, and reads the whole answer.
    async fn converse(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<(StatusCode, Bytes), Failure> {
        let stream = UnixStream::connect(&self.socket).await;
        let stream = stream.map_err(|error| self.unreachable(&error))?;
        let broken = |error: hyper::Error| {
            let socket = self.socket.display();
            Failure::Failed(format!("the answer from {socket} broke off: {error}"))
        };
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream))
            .await
            .map_err(broken)?;
        // Its error is the exchange's too, which reports it.
        let connection = tokio::spawn(connection);
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(HOST, "lasthop")
            .header(CONTENT_TYPE, "application/json")
            .body(Full::new(body))
            .map_err(|error| Failure::Failed(error.to_string()))?;
        let answer = sender.send_request(request).await.map_err(broken)?;
        let status = answer.status();
        let body = answer.into_body().collect().await.map_err(broken)?;
        connection.abort();
        Ok((status, body.to_bytes()))
    }

    /// Why nobody answers.
    fn unreachable(&self, error: &io::Error) -> Failure {
        let socket = self.socket.display();
        let why = match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
                "is `lasthop run` running?".to_owned()
            }
            _ => error.to_string(),
        };
        Failure::Failed(format!("cannot reach Lasthop at {socket}: {why}"))
    }
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

/// Path of a segment, likewise.
pub(super) fn segment_path(name: &str) -> String {
    format!("/v1/segments/{name}")
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
