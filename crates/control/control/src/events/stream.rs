//! Body of an event stream (`text/event-stream`).

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use api::v1::EventsFilter;
use axum::body::Bytes;
use hyper::body::{Body, Frame};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::timeout;

use super::Events;
use super::ring::Id;

/// Interval, 15 s, after which a comment is sent in the absence of events: it shows that the
/// connection works, and carries the position.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(15);
/// Time, in milliseconds, after which a client should reconnect.
const RETRY_MS: u32 = 1000;

/// Start of a client's stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Start(Option<Id>);

impl Start {
    /// Starts after the last event that the client has received, by its id.
    #[must_use]
    pub fn after(id: &str) -> Option<Self> {
        Id::parse(id).map(|id| Self(Some(id)))
    }
}

/// Waits for a new event; `false` after [`KEEP_ALIVE_INTERVAL`] without one.
type Wait = Pin<Box<dyn Future<Output = bool> + Send>>;

/// The body of the response. Nothing is encoded while the client reads nothing.
pub struct EventStream {
    events: Events,
    filter: EventsFilter,
    /// Number of the next event to read.
    next: u64,
    /// The stream ends when the head's round differs.
    round: u64,
    /// Text to send next.
    out: String,
    wait: Option<Wait>,
    _slot: OwnedSemaphorePermit,
}

impl EventStream {
    /// Creates the stream of the events that a filter accepts. Call it inside the runtime.
    #[must_use]
    pub fn new(
        events: Events,
        filter: EventsFilter,
        start: Start,
        slot: OwnedSemaphorePermit,
    ) -> Self {
        let mut out = format!("retry: {RETRY_MS}\n");
        let round = events.0.head.borrow().round;
        let next = {
            let ring = events.ring();
            let (next, missed) = match start.0 {
                Some(id) => ring.after(id),
                None => (ring.last(filter.last.unwrap_or(0), &filter), None),
            };
            out.push_str(&format!("id: {}\n\n", ring.id_before(next)));
            if let Some(count) = missed {
                ring.write_missed(next, count, &mut out);
            }
            next
        };
        Self {
            events,
            filter,
            next,
            round,
            out,
            wait: None,
            _slot: slot,
        }
    }

    /// Returns the text to send, if there is any.
    fn take(&mut self) -> Option<String> {
        let from = self.next;
        self.next = self.events.ring().read(from, &self.filter, &mut self.out);
        let out = std::mem::take(&mut self.out);
        (!out.is_empty()).then_some(out)
    }

    fn has_more(&self) -> bool {
        self.events.0.head.borrow().last >= self.next
    }

    fn is_over(&self) -> bool {
        self.events.0.head.borrow().round != self.round
    }

    fn wait(&self) -> Wait {
        let (next, round) = (self.next, self.round);
        let mut head = self.events.0.head.subscribe();
        Box::pin(async move {
            let news = head.wait_for(|head| head.last >= next || head.round != round);
            timeout(KEEP_ALIVE_INTERVAL, news).await.is_ok()
        })
    }

    /// Returns a comment with the client's position.
    fn keep_alive(&self) -> String {
        let id = self.events.ring().id_before(self.next);
        format!(": nothing new\nid: {id}\n\n")
    }
}

impl Body for EventStream {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let frame = |text: String| Poll::Ready(Some(Ok(Frame::data(Bytes::from(text)))));
        loop {
            if let Some(wait) = &mut self.wait {
                let news = ready!(wait.as_mut().poll(context));
                self.wait = None;
                if !news {
                    return frame(self.keep_alive());
                }
            }
            if let Some(text) = self.take() {
                return frame(text);
            }
            if self.has_more() {
                continue;
            }
            if self.is_over() || !self.filter.follows() {
                return Poll::Ready(None);
            }
            self.wait = Some(self.wait());
        }
    }
}
