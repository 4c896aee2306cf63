//! Handlers of events: an endless response, until the client or control ends it.

use api::v1::{EventsFilter, Problem};
use axum::body::Body;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::http::{HeaderMap, HeaderName};
use axum::response::IntoResponse;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::connections::Streaming;
use super::extractors::{Engine, Filter};
use super::requests::{Answer, malformed};
use crate::command::EngineHandle;
use crate::events::{EventStream, Start};

/// Header with the last event that a client has received (WHATWG HTML, 9.2.4).
const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

/// Returns the router of these handlers, with their descriptions.
pub(super) fn routes() -> OpenApiRouter<EngineHandle> {
    OpenApiRouter::new().routes(routes!(watch_events))
}

/// Watch events
///
/// Server-sent events: the `event` of each is its kind, its `data` a document `Event`, its `id`
/// the one of that document. Without `last` and `Last-Event-ID` the stream starts with the next
/// event. The last 4096 are kept; an event of kind `missed` stands for those that a client has
/// not received and that are gone. A comment is sent after 15 seconds without an event. At most
/// 16 clients at once. An upgrade ends all streams: clients resume with `Last-Event-ID`.
#[utoipa::path(
    get, path = "/v1/events", params(EventsFilter, LastEventId),
    responses((status = 200, body = String, content_type = "text/event-stream"))
)]
async fn watch_events(
    engine: Engine,
    Filter(filter): Filter<EventsFilter>,
    headers: HeaderMap,
) -> Answer<impl IntoResponse> {
    filter.check()?;
    let start = start(&headers)?;
    let events = engine.events().clone();
    let slot = events.slot()?;
    let headers = [
        (CONTENT_TYPE, "text/event-stream"),
        (CACHE_CONTROL, "no-store"),
    ];
    let body = Body::new(EventStream::new(events, filter, start, slot));
    let mut answer = (headers, body).into_response();
    answer.extensions_mut().insert(Streaming);
    Ok(answer)
}

/// Returns the start of a client's stream.
fn start(headers: &HeaderMap) -> Result<Start, Problem> {
    let Some(id) = headers.get(LAST_EVENT_ID) else {
        return Ok(Start::default());
    };
    let start = id.to_str().ok().and_then(Start::after);
    start.ok_or_else(|| {
        let detail = format!("{LAST_EVENT_ID}: expected the id of an event, found {id:?}");
        malformed(detail)
    })
}

/// The header with which a client resumes a stream.
#[derive(utoipa::IntoParams)]
#[into_params(parameter_in = Header)]
#[expect(dead_code, reason = "it is there to be described")]
pub(super) struct LastEventId {
    /// The `id` of the last event that the client has received.
    #[param(rename = "Last-Event-ID", required = false)]
    last_event_id: Option<String>,
}
