//! The events that a client gets, as the body of an answer (`text/event-stream`).

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

/// After so much silence the client is told that there is nothing new: it knows that the connection stands, and where it is.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// After how many milliseconds a client is to come back.
const RETRY_MS: u32 = 1000;

/// Where a client begins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Start(Option<Id>);

impl Start {
    /// Behind the last event that it has had, by the id that it was sent.
    #[must_use]
    pub fn behind(id: &str) -> Option<Self> {
        Id::parse(id).map(|id| Self(Some(id)))
    }
}

/// Waits for something new; `false` when there was nothing for long.
type Wait = Pin<Box<dyn Future<Output = bool> + Send>>;

/// See the module. While nobody asks for more of it, nothing is made.
pub struct Feed {
    events: Events,
    filter: EventsFilter,
    /// The number of the next event that it is to look at.
    next: u64,
    /// When this changes, the stream ends.
    round: u64,
    /// What is to be sent next.
    out: String,
    wait: Option<Wait>,
    _place: OwnedSemaphorePermit,
}

impl Feed {
    /// The events that a filter means, from where the client begins. Call it inside the runtime.
    #[must_use]
    pub fn new(
        events: Events,
        filter: EventsFilter,
        start: Start,
        place: OwnedSemaphorePermit,
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
            _place: place,
        }
    }

    /// Takes what there is to send; nothing, when there is nothing new.
    fn take(&mut self) -> Option<String> {
        let from = self.next;
        self.next = self.events.ring().look(from, &self.filter, &mut self.out);
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
            timeout(KEEP_ALIVE, news).await.is_ok()
        })
    }

    /// That there is nothing new, and where the client is.
    fn keep_alive(&self) -> String {
        let id = self.events.ring().id_before(self.next);
        format!(": nothing new\nid: {id}\n\n")
    }
}

impl Body for Feed {
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
            match (self.has_more(), self.is_over() || !self.filter.follows()) {
                (true, _) => {}
                (false, true) => return Poll::Ready(None),
                (false, false) => self.wait = Some(self.wait()),
            }
        }
    }
}
