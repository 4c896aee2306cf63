//! Handlers of captures: an endless response, until client or operator end it or the port is
//! removed.

use api::v1::{CaptureQuery, Problem};
use axum::body::Body;
use axum::http::StatusCode;
use axum::http::header::{CONTENT_TYPE, LOCATION};
use axum::response::IntoResponse;
use ipc::capture::MAX_CAPTURES;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::connections::Streaming;
use super::extractors::{Client, Engine, Filter, NoQuery, PathName};
use super::handlers::NamePath;
use super::requests::Answer;
use crate::capture::{CaptureBody, CaptureSource};
use crate::command::EngineHandle;

/// Returns the router of these handlers, with their descriptions.
pub(super) fn routes() -> OpenApiRouter<EngineHandle> {
    OpenApiRouter::new()
        .routes(routes!(capture_port))
        .routes(routes!(end_capture))
}

/// Capture the frames of a port
///
/// A pcapng file that ends when the port is removed, after `count` frames, or on a `DELETE` of
/// the path in `Location`. At most eight captures at once.
#[utoipa::path(
    get, path = "/v1/ports/{name}/capture", params(NamePath, CaptureQuery),
    responses(
        (
            status = 200,
            body = inline(File),
            content_type = "application/x-pcapng",
            headers(("Location" = String, description = "DELETE this path to end the capture.")),
        ),
    )
)]
async fn capture_port(
    Client(engine): Client,
    PathName(port): PathName,
    Filter(request): Filter<CaptureQuery>,
) -> Answer<impl IntoResponse> {
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

/// End a capture; frames already copied are still sent
#[utoipa::path(
    delete, path = "/v1/captures/{number}", params(("number" = u32, Path)),
    responses((status = 204))
)]
async fn end_capture(
    _: NoQuery,
    engine: Engine,
    PathName(number): PathName<u32>,
) -> Answer<impl IntoResponse> {
    engine.end_capture(number).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Body of the response of `capture`.
#[derive(utoipa::ToSchema)]
#[schema(value_type = String, format = Binary)]
#[expect(dead_code, reason = "it is there to be described")]
struct File(Vec<u8>);
