//! Handlers of captures: an endless response, until client or operator end it or the port is
//! removed.

use api::v1::{CaptureQuery, Problem};
use axum::body::Body;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::{CONTENT_TYPE, LOCATION};
use axum::response::{IntoResponse, Response};
use channel::capture::MAX_CAPTURES;

use super::connections::Streaming;
use super::extractors::{Client, Filter, PathName};
use super::handlers::NamePath;
use super::requests::HandlerResult;
use crate::capture::{CaptureBody, CaptureSource};
use crate::command::EngineHandle;

/// Capture the frames of a port
///
/// A pcapng file that ends when the port is removed, after `count` frames, or on a `DELETE` of the
/// path in `Location`. At most eight captures at once.
#[utoipa::path(
    get,
    operation_id = "capture_port",
    path = "/v1/ports/{name}/capture",
    params(NamePath, CaptureQuery),
    responses(
        (
            status = 200,
            body = inline(File),
            content_type = "application/x-pcapng",
            headers(("Location" = String, description = "DELETE this path to end the capture.")),
        ),
    ),
)]
pub(super) async fn capture(
    Client(engine): Client,
    PathName(port): PathName,
    Filter(request): Filter<CaptureQuery>,
) -> HandlerResult<Response> {
    let full = || Problem::unavailable(format!("{MAX_CAPTURES} captures are open already"));
    let slot = engine.capture_slots().acquire().ok_or_else(full)?;
    let (filter, snaplen, count) = (request.filter.clone(), request.snaplen, request.count);
    let started = engine.capture(port.clone(), request).await?;
    let (number, held) = (started.number, started.held);
    let (name, text) = (port.clone(), filter.clone());
    let source = CaptureSource {
        reader: started.reader,
        port,
        filter,
        snaplen,
        count,
        ended: Box::new(move || {
            drop(held);
            engine.capture_ended(number, &name, &text);
        }),
    };
    let headers = [
        (CONTENT_TYPE, "application/x-pcapng".to_owned()),
        (LOCATION, format!("/v1/captures/{number}")),
    ];
    let mut answer = (headers, Body::new(CaptureBody::new(slot, source))).into_response();
    answer.extensions_mut().insert(Streaming);
    Ok(answer)
}

/// Body of the response of `capture`.
#[derive(utoipa::ToSchema)]
#[schema(value_type = String, format = Binary)]
#[expect(dead_code, reason = "it is there to be described")]
struct File(Vec<u8>);

/// End a capture; frames already copied are still sent
#[utoipa::path(
    delete,
    operation_id = "end_capture",
    path = "/v1/captures/{number}",
    params(("number" = u32, Path)),
    responses((status = 204)),
)]
pub(super) async fn end(
    State(engine): State<EngineHandle>,
    PathName(number): PathName<u32>,
) -> HandlerResult<StatusCode> {
    engine.end_capture(number).await?;
    Ok(StatusCode::NO_CONTENT)
}
