//! Connections of clients, and how much they may take: whoever floods, stalls or sends garbage takes from other clients
//! of the same socket at most, and nothing from guests.
//!
//! ```text
//! connections     at most CLIENTS; one more takes the place of the one that has been idle for longest, and where all are
//!                 busy it is turned away with 503; at most FAREWELLS are told so at once
//! head            at most BUFFER bytes and HEADERS lines, within HEAD; else 431, 400, 408
//! body            bounded by the router, within EXCHANGE; else 413, 408
//! answer          at most ANSWERS at once are being made, or are LONG and being written; a client that does not read its
//!                 own within EXCHANGE loses the connection
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
use channel::peer::Peer;
use hyper::body::{Body as HttpBody, Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use rustix::net::sockopt::set_socket_send_buffer_size;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::requests::Failure;

/// Connections of one socket.
pub(super) const CLIENTS: usize = 64;
/// Clients beyond that who are told at once why they are turned away.
const FAREWELLS: usize = 16;
/// Answers at once.
const ANSWERS: usize = 8;
/// For the head of a request.
pub(super) const HEAD: Duration = Duration::from_secs(10);
/// For all the rest; longer than the engine may take.
pub(super) const EXCHANGE: Duration = Duration::from_secs(20);
/// Bytes of a head, and of an answer that waits to be written.
const BUFFER: usize = 32 * 1024;
/// Lines of a head.
const HEADERS: usize = 64;
/// Bytes of an answer of which each client may have one that waits to be read.
const LONG: u64 = 256 * 1024;
/// Bytes of an answer that are handed over at once.
const PIECE: usize = 16 * 1024;
/// Bytes that a client by a path may have not read, of which the system makes twice as many: as long as all the system lets anybody
/// have where nothing else is set. What waits there is written while the client does not run, and so there are fewer turns.
const UNREAD: usize = 208 * 1024;
/// After a connection could not be accepted: descriptors are short, as a rule.
const PAUSE: Duration = Duration::from_millis(100);

/// A socket that listens.
pub enum Listener {
    /// With a path.
    Unix(UnixListener),
    /// With an address.
    Tcp(TcpListener),
}

/// A connection, whatever it comes by.
trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

impl Listener {
    /// A connection, and who it is by a path.
    async fn accept(&self) -> io::Result<(Box<dyn Stream>, Option<Peer>)> {
        match self {
            Self::Unix(listener) => {
                let (stream, _) = listener.accept().await?;
                set_socket_send_buffer_size(&stream, UNREAD)?;
                let peer = Peer::of(&stream).ok();
                Ok((Box::new(stream), peer))
            }
            Self::Tcp(listener) => Ok((Box::new(listener.accept().await?.0), None)),
        }
    }
}

/// When a client has last done something, and whether it waits for an answer.
#[derive(Debug)]
struct Activity {
    start: Instant,
    /// Milliseconds since then, and in the lowest bit that it waits.
    last: AtomicU64,
    /// It gets an answer that has no end.
    is_fed: AtomicBool,
}

impl Activity {
    fn new() -> Self {
        Self {
            start: Instant::now(),
            last: AtomicU64::new(0),
            is_fed: AtomicBool::new(false),
        }
    }

    fn note(&self, waits: bool) {
        let now = self.start.elapsed().as_millis() as u64;
        self.last.store(now << 1 | u64::from(waits), Relaxed);
    }

    /// The time; none of one that waits for an answer.
    fn idle_since(&self) -> Option<Instant> {
        let last = self.last.load(Relaxed);
        let idle = last & 1 == 0 && !self.is_fed.load(Relaxed);
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
struct Crowd {
    router: Router,
    clients: Vec<Client>,
    tasks: JoinSet<()>,
    answers: Arc<Semaphore>,
    farewells: Arc<Semaphore>,
    closing: watch::Sender<bool>,
}

/// Serves all who connect until `shutdown` is over, and then `grace` longer who waits for an answer.
pub(super) async fn serve(
    listener: Listener,
    router: Router,
    shutdown: impl Future<Output = ()>,
    grace: Duration,
) {
    let mut shutdown = pin!(shutdown);
    let mut crowd = Crowd::new(router);
    loop {
        tokio::select! {
            () = &mut shutdown => break,
            accepted = listener.accept() => match accepted {
                Ok((stream, peer)) => crowd.admit(stream, peer),
                Err(error) => {
                    tracing::debug!("a client could not be accepted: {error}");
                    sleep(PAUSE).await;
                }
            },
            Some(_) = crowd.tasks.join_next(), if !crowd.tasks.is_empty() => {
                crowd.clients.retain(|client| !client.task.is_finished());
            }
        }
    }
    drop(listener);
    crowd.closing.send_replace(true);
    let all = async { while crowd.tasks.join_next().await.is_some() {} };
    // Whoever has not read its answer by then does not get the rest.
    let _ = timeout(grace, all).await;
}

impl Crowd {
    fn new(router: Router) -> Self {
        Self {
            router,
            clients: Vec::new(),
            tasks: JoinSet::new(),
            answers: Arc::new(Semaphore::new(ANSWERS)),
            farewells: Arc::new(Semaphore::new(FAREWELLS)),
            closing: watch::Sender::new(false),
        }
    }

    fn admit(&mut self, stream: Box<dyn Stream>, peer: Option<Peer>) {
        if self.clients.len() >= CLIENTS && !self.make_room() {
            // Whoever comes in a flood is not even told.
            if let Ok(place) = Arc::clone(&self.farewells).try_acquire_owned() {
                self.tasks.spawn(turn_away(stream, place));
            }
            return;
        }
        let activity = Arc::new(Activity::new());
        let answers = Arc::clone(&self.answers);
        let closing = self.closing.subscribe();
        let service = TowerToHyperService::new(self.router.clone());
        let attended = attend(
            stream,
            peer,
            service,
            Arc::clone(&activity),
            answers,
            closing,
        );
        let task = self.tasks.spawn(attended);
        self.clients.push(Client { activity, task });
    }

    /// Ends the connection that has been idle for longest; `false` where none is.
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

/// Serves one client until it, we or its time is over.
async fn attend(
    stream: Box<dyn Stream>,
    peer: Option<Peer>,
    service: TowerToHyperService<Router>,
    activity: Arc<Activity>,
    answers: Arc<Semaphore>,
    mut closing: watch::Receiver<bool>,
) {
    let noted = Arc::clone(&activity);
    let service = service_fn(move |mut request: hyper::Request<Incoming>| {
        noted.note(true);
        peer.map(|peer| request.extensions_mut().insert(peer));
        let (noted, answers) = (Arc::clone(&noted), Arc::clone(&answers));
        let service = service.clone();
        async move {
            let answer = answer(service, request, answers).await;
            let answer = fed(answer, &noted);
            noted.note(false);
            Ok::<_, Infallible>(answer)
        }
    });
    let mut connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD)
        .max_buf_size(BUFFER)
        .max_headers(HEADERS)
        .serve_connection(TokioIo::new(stream), service);
    let mut closed = pin!(async { closing.wait_for(|closing| *closing).await.is_ok() });
    let mut told = false;
    loop {
        // A stalled one does nothing; whoever waits for an answer gets one in time.
        let deadline = activity.last() + 2 * EXCHANGE;
        let done = tokio::select! {
            done = &mut connection => done,
            _ = &mut closed, if !told => {
                told = true;
                Pin::new(&mut connection).graceful_shutdown();
                continue;
            }
            () = sleep_until(deadline) => {
                if activity.is_fed.load(Relaxed) {
                    // It may have nothing to get for long; there are few places for such.
                    activity.note(false);
                } else if activity.last() + 2 * EXCHANGE <= Instant::now() {
                    return;
                }
                continue;
            }
        };
        if done.is_err_and(|error| error.is_timeout()) {
            let seconds = HEAD.as_secs();
            let detail = format!("the head of the request did not come within {seconds} s");
            let problem = Problem::new(ProblemKind::Timeout, detail);
            tell(connection.into_parts().io.into_inner(), problem).await;
        }
        return;
    }
}

/// The answer to one request, in time, and not too many at once.
async fn answer(
    service: TowerToHyperService<Router>,
    request: hyper::Request<Incoming>,
    answers: Arc<Semaphore>,
) -> Response {
    let made = timeout(EXCHANGE, async {
        let permit = answers.acquire_owned().await;
        let answer = service.call(request).await;
        let answer = answer.unwrap_or_else(|never| match never {});
        if answer.extensions().get::<Endless>().is_some() {
            return answer;
        }
        answer.map(|inner| {
            let is_long = inner.size_hint().exact().is_none_or(|size| size > LONG);
            Body::new(Pieces {
                inner,
                rest: Bytes::new(),
                _permit: permit.ok().filter(|_| is_long),
            })
        })
    });
    let late = |_| {
        let seconds = EXCHANGE.as_secs();
        let detail = format!("the request did not come, or was not done, within {seconds} s");
        Failure::from(Problem::new(ProblemKind::Timeout, detail)).into_response()
    };
    made.await.unwrap_or_else(late)
}

/// Marks an answer without end: it counts as none of [`ANSWERS`], and whoever makes it bounds how many there are.
#[derive(Clone, Copy, Debug)]
pub(super) struct Endless;

/// An answer; where it has no end, its client is not idle until it is over.
fn fed(answer: Response, activity: &Arc<Activity>) -> Response {
    if answer.extensions().get::<Endless>().is_none() {
        return answer;
    }
    activity.is_fed.store(true, Relaxed);
    let activity = Arc::clone(activity);
    answer.map(|inner| Body::new(Fed { inner, activity }))
}

/// The body of an answer without end.
struct Fed {
    inner: Body,
    activity: Arc<Activity>,
}

impl Drop for Fed {
    fn drop(&mut self) {
        self.activity.is_fed.store(false, Relaxed);
        self.activity.note(false);
    }
}

impl HttpBody for Fed {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.inner).poll_frame(context)
    }
}

/// Tells a client that there are too many.
async fn turn_away(stream: Box<dyn Stream>, _place: OwnedSemaphorePermit) {
    tell(stream, Problem::unavailable("there are too many clients")).await;
}

/// Says what is wrong where there is no request that could be answered, and hangs up.
async fn tell(mut stream: Box<dyn Stream>, problem: Problem) {
    let (status, title) = (problem.status, &problem.title);
    let body = serde_json::to_string(&problem).unwrap_or_default();
    let length = body.len();
    let text = format!(
        "HTTP/1.1 {status} {title}\r\nconnection: close\r\ncontent-type: application/problem+json\r\n\
         content-length: {length}\r\n\r\n{body}"
    );
    // It hears it or not.
    let _ = timeout(PAUSE, stream.write_all(text.as_bytes())).await;
}

/// A body in pieces: what a client does not read is not copied for it. While one that is long is read, others that are wait.
struct Pieces {
    inner: Body,
    rest: Bytes,
    _permit: Option<OwnedSemaphorePermit>,
}

impl HttpBody for Pieces {
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
        let length = self.rest.len().min(PIECE);
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
        let mut crowd = Crowd::new(Router::new());
        let mut others = Vec::new();
        for _ in 0..CLIENTS {
            crowd.admit(deaf(&mut others), None);
        }
        for client in &crowd.clients {
            client.activity.note(true);
        }
        for _ in 0..10 * FAREWELLS {
            crowd.admit(deaf(&mut others), None);
        }
        assert_eq!(crowd.tasks.len(), CLIENTS + FAREWELLS);
    }

    /// Our end of a connection that takes a byte.
    fn deaf(others: &mut Vec<tokio::io::DuplexStream>) -> Box<dyn Stream> {
        let (ours, other) = tokio::io::duplex(1);
        others.push(other);
        Box::new(ours)
    }
}
