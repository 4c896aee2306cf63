//! Connections of clients, and their limits: a client that floods, stalls or sends garbage can only
//! affect other clients of the same socket, never guests.
//!
//! ```text
//! connections   at most MAX_CLIENTS; a new one replaces the one that has been idle for longest;
//!               if all are busy, it is rejected with 503, at most MAX_REJECTIONS at a time
//! head          at most BUFFER bytes and HEADERS lines, within API_HEAD; else 431, 400, 408
//! body          bounded by the router, within API_EXCHANGE; else 413, 408
//! response      at most MAX_RESPONSES are made at a time, or are longer than LONG_RESPONSE and
//!               being written; a client that does not read its own within API_EXCHANGE is
//!               disconnected
//! ```

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll};
use std::time::Duration;

use api::v1::{Problem, ProblemKind};
use axum::Router;
use axum::body::{Body, Bytes};
use axum::response::{IntoResponse, Response};
use hyper::body::{Body as HttpBody, Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use ipc::peer::Peer;
use ipc::timeouts::{API_EXCHANGE, API_HEAD};
use rustix::net::sockopt::set_socket_send_buffer_size;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::requests::Failure;
use super::unix::UnixServer;

/// Most connections of one socket.
pub(super) const MAX_CLIENTS: usize = 64;
/// Most clients beyond [`MAX_CLIENTS`] that get the reason of their rejection at a time.
const MAX_REJECTIONS: usize = 16;
/// Most responses that are made at a time.
const MAX_RESPONSES: usize = 8;
/// Most bytes of a head, and of a response that waits to be written.
const BUFFER: usize = 32 * 1024;
/// Most lines of a head.
const HEADERS: usize = 64;
/// Bytes beyond which a response counts against [`MAX_RESPONSES`] until the client has read it:
/// more than the API's own document has.
const LONG_RESPONSE: u64 = 512 * 1024;
/// Bytes of a response that are passed to the connection at a time.
const CHUNK: usize = 16 * 1024;
/// Bytes in the send buffer of a unix socket, which the system doubles: its default maximum. The
/// client need not run while they are written, so there are fewer context switches.
const SEND_BUFFER: usize = 208 * 1024;
/// Interval, 100 ms, after a connection could not be accepted, for want of descriptors as
/// a rule.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// A listening socket.
pub enum Listener {
    /// A unix socket.
    Unix(UnixServer),
    /// A TCP socket.
    Tcp(TcpListener),
}

/// A connection of either kind.
trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

impl Listener {
    /// Accepts a connection; the peer is known for a unix socket.
    async fn accept(&self) -> io::Result<(Box<dyn Stream>, Option<Peer>)> {
        match self {
            Self::Unix(listener) => {
                let client = listener.accept().await?;
                set_socket_send_buffer_size(client.stream()?, SEND_BUFFER)?;
                let peer = Peer::of(client.stream()?).ok();
                Ok((Box::new(client), peer))
            }
            Self::Tcp(listener) => Ok((Box::new(listener.accept().await?.0), None)),
        }
    }
}

/// Time of a client's last activity, and whether it waits for a response.
#[derive(Debug)]
struct Activity {
    start: Instant,
    /// Milliseconds since the start; the lowest bit: a response is being made.
    last: AtomicU64,
    /// The client receives an endless response.
    is_streaming: AtomicBool,
}

impl Activity {
    fn new() -> Self {
        Self {
            start: Instant::now(),
            last: AtomicU64::new(0),
            is_streaming: AtomicBool::new(false),
        }
    }

    fn note(&self, waits: bool) {
        let now = self.start.elapsed().as_millis() as u64;
        self.last.store(now << 1 | u64::from(waits), Relaxed);
    }

    /// Returns the time of the last activity of an idle client.
    fn idle_since(&self) -> Option<Instant> {
        let last = self.last.load(Relaxed);
        let idle = last & 1 == 0 && !self.is_streaming.load(Relaxed);
        idle.then(|| self.start + Duration::from_millis(last >> 1))
    }

    fn last(&self) -> Instant {
        self.start + Duration::from_millis(self.last.load(Relaxed) >> 1)
    }
}

/// One client.
struct Client {
    activity: Arc<Activity>,
    task: AbortHandle,
}

/// All clients of a socket.
struct ConnectionPool {
    router: Router,
    clients: Vec<Client>,
    tasks: JoinSet<()>,
    responses: Arc<Semaphore>,
    rejections: Arc<Semaphore>,
    closing: watch::Sender<bool>,
}

/// Serves all clients until `shutdown` completes, and then for at most `grace` those with requests
/// under way.
pub(super) async fn serve(
    listener: Listener,
    router: Router,
    shutdown: impl Future<Output = ()>,
    grace: Duration,
) {
    let mut shutdown = pin!(shutdown);
    let mut pool = ConnectionPool::new(router);
    loop {
        tokio::select! {
            () = &mut shutdown => break,
            accepted = listener.accept() => match accepted {
                Ok((stream, peer)) => pool.admit(stream, peer),
                Err(error) => {
                    tracing::debug!("accept failed: {error}");
                    sleep(RETRY_INTERVAL).await;
                }
            },
            Some(_) = pool.tasks.join_next(), if !pool.tasks.is_empty() => {
                pool.clients.retain(|client| !client.task.is_finished());
            }
        }
    }
    drop(listener);
    pool.closing.send_replace(true);
    let all = async { while pool.tasks.join_next().await.is_some() {} };
    // The connections of clients that have not read their responses by then are closed.
    let _ = timeout(grace, all).await;
}

impl ConnectionPool {
    fn new(router: Router) -> Self {
        Self {
            router,
            clients: Vec::new(),
            tasks: JoinSet::new(),
            responses: Arc::new(Semaphore::new(MAX_RESPONSES)),
            rejections: Arc::new(Semaphore::new(MAX_REJECTIONS)),
            closing: watch::Sender::new(false),
        }
    }

    fn admit(&mut self, stream: Box<dyn Stream>, peer: Option<Peer>) {
        if self.clients.len() >= MAX_CLIENTS && !self.make_room() {
            // In a flood, further clients are disconnected without a reason.
            if let Ok(permit) = Arc::clone(&self.rejections).try_acquire_owned() {
                self.tasks.spawn(reject(stream, permit));
            }
            return;
        }
        let activity = Arc::new(Activity::new());
        let responses = Arc::clone(&self.responses);
        let closing = self.closing.subscribe();
        let service = TowerToHyperService::new(self.router.clone());
        let served = serve_client(
            stream,
            peer,
            service,
            Arc::clone(&activity),
            responses,
            closing,
        );
        let task = self.tasks.spawn(served);
        self.clients.push(Client { activity, task });
    }

    /// Closes the connection that has been idle for the longest time; `false` where none is idle.
    fn make_room(&mut self) -> bool {
        let clients = self.clients.iter().enumerate();
        let idle = clients.filter_map(|(at, client)| Some((client.activity.idle_since()?, at)));
        let Some((_, at)) = idle.min() else {
            return false;
        };
        self.clients.swap_remove(at).task.abort();
        true
    }
}

/// Serves one client until it disconnects, the server ends, or its time is over.
async fn serve_client(
    stream: Box<dyn Stream>,
    peer: Option<Peer>,
    service: TowerToHyperService<Router>,
    activity: Arc<Activity>,
    responses: Arc<Semaphore>,
    mut closing: watch::Receiver<bool>,
) {
    let noted = Arc::clone(&activity);
    let service = service_fn(move |mut request: hyper::Request<Incoming>| {
        noted.note(true);
        peer.map(|peer| request.extensions_mut().insert(peer));
        let (noted, responses) = (Arc::clone(&noted), Arc::clone(&responses));
        let service = service.clone();
        async move {
            let response = response(service, request, responses).await;
            let response = track_stream(response, &noted);
            noted.note(false);
            Ok::<_, Infallible>(response)
        }
    });
    let mut connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(API_HEAD)
        .max_buf_size(BUFFER)
        .max_headers(HEADERS)
        .serve_connection(TokioIo::new(stream), service);
    let mut closed = pin!(async { closing.wait_for(|closing| *closing).await.is_ok() });
    let mut is_closing = false;
    loop {
        // A stalled client shows no activity; a client that waits for a response gets one in time.
        let deadline = activity.last() + 2 * API_EXCHANGE;
        let done = tokio::select! {
            done = &mut connection => done,
            _ = &mut closed, if !is_closing => {
                is_closing = true;
                Pin::new(&mut connection).graceful_shutdown();
                continue;
            }
            () = sleep_until(deadline) => {
                if activity.is_streaming.load(Relaxed) {
                    // A stream may be silent for long; the number of streams is bounded.
                    activity.note(false);
                } else if activity.last() + 2 * API_EXCHANGE <= Instant::now() {
                    return;
                }
                continue;
            }
        };
        if done.is_err_and(|error| error.is_timeout()) {
            let seconds = API_HEAD.as_secs();
            let detail = format!("no complete request head within {seconds} s");
            let problem = Problem::new(ProblemKind::Timeout, detail);
            send_problem(connection.into_parts().io.into_inner(), problem).await;
        }
        return;
    }
}

/// Makes the response to one request, in time, and not too many at once.
async fn response(
    service: TowerToHyperService<Router>,
    request: hyper::Request<Incoming>,
    responses: Arc<Semaphore>,
) -> Response {
    let made = timeout(API_EXCHANGE, async {
        let permit = responses.acquire_owned().await;
        let response = service.call(request).await;
        let response = response.unwrap_or_else(|never| match never {});
        if response.extensions().get::<Streaming>().is_some() {
            return response;
        }
        response.map(|inner| {
            let is_long = inner
                .size_hint()
                .exact()
                .is_none_or(|size| size > LONG_RESPONSE);
            Body::new(ChunkedBody {
                inner,
                rest: Bytes::new(),
                _permit: permit.ok().filter(|_| is_long),
            })
        })
    });
    let late = |_| {
        let seconds = API_EXCHANGE.as_secs();
        let detail = format!("the request was not completed within {seconds} s");
        Failure::from(Problem::new(ProblemKind::Timeout, detail)).into_response()
    };
    made.await.unwrap_or_else(late)
}

/// Marks an endless response: it does not count against [`MAX_RESPONSES`], and its handler bounds
/// the number of such responses.
#[derive(Clone, Copy, Debug)]
pub(super) struct Streaming;

/// Marks the client of an endless response as busy until its end.
fn track_stream(response: Response, activity: &Arc<Activity>) -> Response {
    if response.extensions().get::<Streaming>().is_none() {
        return response;
    }
    activity.is_streaming.store(true, Relaxed);
    let activity = Arc::clone(activity);
    response.map(|inner| Body::new(StreamingBody { inner, activity }))
}

/// The body of an endless response.
struct StreamingBody {
    inner: Body,
    activity: Arc<Activity>,
}

impl Drop for StreamingBody {
    fn drop(&mut self) {
        self.activity.is_streaming.store(false, Relaxed);
        self.activity.note(false);
    }
}

impl HttpBody for StreamingBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.inner).poll_frame(context)
    }
}

/// Sends a client the reason of its rejection.
async fn reject(stream: Box<dyn Stream>, _permit: OwnedSemaphorePermit) {
    send_problem(stream, Problem::unavailable("too many clients")).await;
}

/// Sends a problem to a client without a complete request, and closes the connection.
async fn send_problem(mut stream: Box<dyn Stream>, problem: Problem) {
    let (status, title) = (problem.status, &problem.title);
    let body = serde_json::to_string(&problem).unwrap_or_default();
    let length = body.len();
    let text = format!(
        "HTTP/1.1 {status} {title}\r\nconnection: close\r\n\
         content-type: application/problem+json\r\n\
         content-length: {length}\r\n\r\n{body}"
    );
    // The client may be gone.
    let _ = timeout(RETRY_INTERVAL, stream.write_all(text.as_bytes())).await;
}

/// A body in chunks: only the bytes that a client reads are copied for it. A long one keeps its
/// permit until the client has read it.
struct ChunkedBody {
    inner: Body,
    rest: Bytes,
    _permit: Option<OwnedSemaphorePermit>,
}

impl HttpBody for ChunkedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if self.rest.is_empty() {
            match Pin::new(&mut self.inner).poll_frame(context) {
                Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                    Ok(data) => self.rest = data,
                    Err(other) => return Poll::Ready(Some(Ok(other))),
                },
                other => return other,
            }
        }
        let length = self.rest.len().min(CHUNK);
        Poll::Ready(Some(Ok(Frame::data(self.rest.split_to(length)))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let rest = self.rest.len() as u64;
        match self.inner.size_hint().exact() {
            Some(inner) => SizeHint::with_exact(inner + rest),
            None => SizeHint::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_flood_of_clients_that_read_nothing_holds_a_bounded_number_of_connections() {
        let mut pool = ConnectionPool::new(Router::new());
        let mut others = Vec::new();
        for _ in 0..MAX_CLIENTS {
            pool.admit(stalled(&mut others), None);
        }
        for client in &pool.clients {
            client.activity.note(true);
        }
        for _ in 0..10 * MAX_REJECTIONS {
            pool.admit(stalled(&mut others), None);
        }
        assert_eq!(pool.tasks.len(), MAX_CLIENTS + MAX_REJECTIONS);
    }

    /// Returns the server's end of a connection that holds one byte.
    fn stalled(others: &mut Vec<tokio::io::DuplexStream>) -> Box<dyn Stream> {
        let (ours, other) = tokio::io::duplex(1);
        others.push(other);
        Box::new(ours)
    }
}
