//! A client of the API: one HTTP exchange over the Unix socket at a time. Its failures have texts
//! and exit statuses.
#![forbid(unsafe_code)]

mod failure;
pub mod rates;
mod reader;
pub mod units;

use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};

use api::v1::Problem;
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper::header::{CONTENT_TYPE, ETAG, HOST, HeaderName, IF_MATCH, LOCATION};
use hyper::http::request::Builder;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use ipc::timeouts::API_CLIENT;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::net::UnixStream;
use tokio::task::JoinHandle;
use tokio::time::timeout;

pub use failure::Failure;
pub use reader::{end_without_reader, has_reader};

/// The header with the last event received (WHATWG HTML, 9.2.4).
const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

/// The end of a command: success, or a failure with its exit status.
pub type ExitStatus = Result<(), Failure>;

/// Returns a request without a body.
fn request(method: Method, path: &str) -> Builder {
    Request::builder()
        .method(method)
        .uri(path)
        .header(HOST, "lasthop")
        .header(CONTENT_TYPE, "application/json")
}

fn json(document: &impl Serialize) -> Result<Bytes, Failure> {
    let body = serde_json::to_vec(document);
    Ok(body
        .map_err(|error| Failure::Failed(error.to_string()))?
        .into())
}

/// A streamed response.
pub struct Download {
    /// The stream.
    pub body: Incoming,
    /// The path whose deletion ends the stream.
    pub location: String,
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
pub struct Client {
    socket: PathBuf,
}

impl Client {
    /// Returns a client of the Lasthop that runs in a directory.
    pub fn new(runtime_dir: &Path) -> Self {
        Self {
            socket: runtime_dir.join(ipc::sockets::API_SOCKET),
        }
    }

    /// Returns the runtime directory.
    pub fn runtime_dir(&self) -> &Path {
        self.socket.parent().unwrap_or(Path::new(""))
    }

    /// Gets a document.
    pub async fn get(&self, path: &str) -> Result<Bytes, Failure> {
        Ok(self.get_tagged(path).await?.0)
    }

    /// Gets a document and its `ETag`.
    pub async fn get_tagged(&self, path: &str) -> Result<(Bytes, Option<String>), Failure> {
        let get = || self.exchange(request(Method::GET, path), Bytes::new());
        match get().await {
            // Control has ended. A GET is idempotent and may be repeated (RFC 9110, 9.2.2); the
            // next control replies.
            Err(Failure::BrokenOff(_)) => get().await,
            result => result,
        }
    }

    /// Gets and parses a document.
    pub async fn read<T: DeserializeOwned>(&self, path: &str) -> Result<T, Failure> {
        read(&self.get(path).await?)
    }

    /// Replaces a document if its `ETag` is unchanged.
    pub async fn put_if(
        &self,
        path: &str,
        tag: Option<&str>,
        document: &impl Serialize,
    ) -> ExitStatus {
        let done = self.send_if(Method::PUT, path, tag, document);
        done.await.map(drop)
    }

    /// Sends a document if the desired state still has this `ETag`.
    pub async fn send_if(
        &self,
        method: Method,
        path: &str,
        tag: Option<&str>,
        document: &impl Serialize,
    ) -> Result<Bytes, Failure> {
        let request = with(request(method, path), IF_MATCH, tag);
        Ok(self.exchange(request, json(document)?).await?.0)
    }

    /// Sends a document.
    pub async fn send(
        &self,
        method: Method,
        path: &str,
        document: &impl Serialize,
    ) -> Result<Bytes, Failure> {
        self.send_if(method, path, None, document).await
    }

    /// Deletes a resource; returns the response's document, if there is one.
    pub async fn delete(&self, path: &str) -> Result<Bytes, Failure> {
        let request = request(Method::DELETE, path);
        Ok(self.exchange(request, Bytes::new()).await?.0)
    }

    /// Opens a stream; of events, after the given one.
    pub async fn open(&self, path: &str, event: Option<&str>) -> Result<Download, Failure> {
        let request = with(request(Method::GET, path), LAST_EVENT_ID, event);
        let started = self.start(request, Bytes::new());
        let (response, connection) = self.with_timeout(started).await?;
        let status = response.status();
        if !status.is_success() {
            let body = self.with_timeout(self.read_body(response)).await?;
            return Err(refusal(status, &body));
        }
        Ok(Download {
            location: header(&response, LOCATION).unwrap_or_default(),
            body: response.into_body(),
            _connection: connection,
        })
    }

    /// Sends a request and returns the response's body and `ETag`.
    async fn exchange(
        &self,
        request: Builder,
        body: Bytes,
    ) -> Result<(Bytes, Option<String>), Failure> {
        let round_trip = async {
            let (response, _connection) = self.start(request, body).await?;
            let (status, tag) = (response.status(), header(&response, ETAG));
            Ok((status, self.read_body(response).await?, tag))
        };
        let (status, body, tag) = self.with_timeout(round_trip).await?;
        if status.is_success() {
            Ok((body, tag))
        } else {
            Err(refusal(status, &body))
        }
    }

    /// Waits for the server, with the time limit.
    async fn with_timeout<T>(
        &self,
        reply: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        timeout(API_CLIENT, reply).await.map_err(|_| {
            let seconds = API_CLIENT.as_secs();
            let socket = self.socket.display();
            Failure::Failed(format!("no response from {socket} within {seconds} s"))
        })?
    }

    fn broken_off(&self, error: &hyper::Error) -> Failure {
        let socket = self.socket.display();
        Failure::BrokenOff(format!("the connection to {socket} broke off: {error}"))
    }

    async fn read_body(&self, response: Response<Incoming>) -> Result<Bytes, Failure> {
        let body = response.into_body().collect().await;
        let body = body.map_err(|error| self.broken_off(&error))?;
        Ok(body.to_bytes())
    }

    /// Connects, sends the request and reads the response's head.
    async fn start(
        &self,
        request: Builder,
        body: Bytes,
    ) -> Result<(Response<Incoming>, Connection), Failure> {
        let stream = UnixStream::connect(&self.socket).await;
        let stream = stream.map_err(|e| unreachable(&self.socket, &e))?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|error| self.broken_off(&error))?;
        // An error of the connection is also reported by `send_request` or the body.
        let connection = Connection(tokio::spawn(connection));
        let request = request.body(Full::new(body));
        let request = request.map_err(|error| Failure::Failed(error.to_string()))?;
        let response = sender.send_request(request).await;
        let response = response.map_err(|error| self.broken_off(&error))?;
        Ok((response, connection))
    }
}

/// Adds a header with a value, if there is one.
fn with(request: Builder, name: HeaderName, value: Option<&str>) -> Builder {
    match value {
        Some(value) => request.header(name, value),
        None => request,
    }
}

/// Returns a header of a response.
fn header(response: &Response<Incoming>, name: HeaderName) -> Option<String> {
    let value = response.headers().get(name)?;
    value.to_str().ok().map(str::to_owned)
}

/// Runs a command that needs a running Lasthop.
pub fn block_on(
    runtime_dir: &Path,
    command: impl AsyncFnOnce(&Client) -> ExitStatus,
) -> ExitStatus {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::Failed(format!("cannot start: {error}")))?;
    runtime.block_on(command(&Client::new(runtime_dir)))
}

/// Parses a response.
pub fn read<T: DeserializeOwned>(response: &[u8]) -> Result<T, Failure> {
    serde_json::from_slice(response)
        .map_err(|error| Failure::Failed(format!("malformed response from the server: {error}")))
}

/// Returns the failure to connect to a socket of Lasthop, which may yet be started.
pub fn unreachable(socket: &Path, error: &io::Error) -> Failure {
    let text = format!("cannot reach Lasthop at {}: ", socket.display());
    match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
            Failure::Failed(text + "is `lasthop run` running?")
        }
        _ => Failure::of_system(text + &error.to_string(), error),
    }
}

/// Returns the error of a response without success.
fn refusal(status: StatusCode, body: &[u8]) -> Failure {
    match serde_json::from_slice::<Problem>(body) {
        Ok(problem) => problem.into(),
        Err(_) => Failure::Failed(format!("the server returned {status}")),
    }
}

/// Returns a path with a query.
pub fn with_query(path: &str, query: &impl Serialize) -> Result<String, Failure> {
    let query = serde_urlencoded::to_string(query);
    let query = query.map_err(|error| Failure::Failed(error.to_string()))?;
    Ok(format!("{path}?{query}"))
}
