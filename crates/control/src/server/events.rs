//! Events: an answer that goes on until its client ends it, or control does.

use api::v1::{EventsFilter, Problem};
use axum::body::Body;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::http::{HeaderMap, HeaderName};
use axum::response::{IntoResponse, Response};

use super::connections::Endless;
use super::handlers::query;
use super::requests::{Done, malformed};
use crate::command::EngineHandle;
use crate::events::{Feed, Start};

/// What a client has had last (WHATWG HTML, 9.2.4).
const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

/// What happens, as it happens
///
/// Server-sent events: the `event` of each is its kind, its `data` a document `Event`, its `id` the one of that
/// document. Without `last` and `Last-Event-ID` it begins with the next. The last 4096 are kept; where some are gone that a client has not
/// had there is one of kind `missed`. A comment comes after 15 seconds of silence. At most 16 at once. An upgrade ends them: clients come back with `Last-Event-ID`.
#[utoipa::path(get, operation_id = "watch_events", path = "/v1/events", params(EventsFilter, LastEventId), responses(
    (status = 200, body = String, content_type = "text/event-stream")
))]
pub(super) async fn watch(
    State(engine): State<EngineHandle>,
    filter: Result<Query<EventsFilter>, QueryRejection>,
    headers: HeaderMap,
) -> Done<Response> {
    let filter = query(filter)?;
    filter.check()?;
    let start = start(&headers)?;
    let events = engine.events().clone();
    let place = events.place()?;
    let headers = [
        (CONTENT_TYPE, "text/event-stream"),
        (CACHE_CONTROL, "no-store"),
    ];
    let body = Body::new(Feed::new(events, filter, start, place));
    let mut answer = (headers, body).into_response();
    answer.extensions_mut().insert(Endless);
    Ok(answer)
}

/// Where a client begins, as it says.
fn start(headers: &HeaderMap) -> Result<Start, Problem> {
    let Some(id) = headers.get(LAST_EVENT_ID) else {
        return Ok(Start::default());
    };
    let start = id.to_str().ok().and_then(Start::behind);
    start.ok_or_else(|| {
        let detail = format!("{LAST_EVENT_ID}: expected the id of an event, found {id:?}");
        malformed(detail)
    })
}

/// The header with which a client goes on where it was.
#[derive(utoipa::IntoParams)]
#[into_params(parameter_in = Header)]
#[expect(dead_code, reason = "it is there to be described")]
pub(super) struct LastEventId {
    /// The `id` of the last event that the client has had.
    #[param(rename = "Last-Event-ID", required = false)]
    last_event_id: Option<String>,
}
