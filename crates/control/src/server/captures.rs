//! Captures: a file that goes on until its client, the port or somebody else ends it.

use api::v1::{CaptureQuery, Problem};
use axum::body::Body;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::http::header::{CONTENT_TYPE, LOCATION};
use axum::response::{IntoResponse, Response};
use channel::capture::MAX_CAPTURES;

use super::connections::Endless;
use super::handlers::{Name, NamePath, query};
use super::requests::{Client, Done, malformed, name};
use crate::capture::{Feed, Pieces};
use crate::command::EngineHandle;

/// The frames of a port, as they come
///
/// A pcapng file that ends when the port goes, after `count` frames, or when somebody deletes what `Location` names. At most eight at
/// once.
#[utoipa::path(get, operation_id = "capture_port", path = "/v1/ports/{name}/capture", params(NamePath, CaptureQuery), responses(
    (status = 200, body = inline(File), content_type = "application/x-pcapng",
     headers(("Location" = String, description = "To be deleted to end it.")))
))]
pub(super) async fn capture(
    Client(engine): Client,
    path: Name,
    wish: Result<Query<CaptureQuery>, QueryRejection>,
) -> Done<Response> {
    let (port, wish) = (name(path)?, query(wish)?);
    let full = || Problem::unavailable(format!("there are {MAX_CAPTURES} captures already"));
    let place = engine.places().take().ok_or_else(full)?;
    let (filter, snaplen, count) = (wish.filter.clone(), wish.snaplen, wish.count);
    let begun = engine.capture(port.clone(), wish).await?;
    let (number, held) = (begun.number, begun.held);
    let (name, means) = (port.clone(), filter.clone());
    let feed = Feed {
        reader: begun.reader,
        port,
        filter,
        snaplen,
        count,
        ended: Box::new(move || {
            drop(held);
            engine.capture_ended(number, &name, &means);
        }),
    };
    let headers = [
        (CONTENT_TYPE, "application/x-pcapng".to_owned()),
        (LOCATION, format!("/v1/captures/{number}")),
    ];
    let mut answer = (headers, Body::new(Pieces::new(place, feed))).into_response();
    answer.extensions_mut().insert(Endless);
    Ok(answer)
}

/// What `capture` answers with.
#[derive(utoipa::ToSchema)]
#[schema(value_type = String, format = Binary)]
#[expect(dead_code, reason = "it is there to be described")]
struct File(Vec<u8>);

/// End a capture; what was copied still comes
#[utoipa::path(delete, operation_id = "end_capture", path = "/v1/captures/{number}", params(("number" = u32, Path)), responses((status = 204)))]
pub(super) async fn end(
    State(engine): State<EngineHandle>,
    number: Result<Path<u32>, PathRejection>,
) -> Done<StatusCode> {
    let Path(number) = number.map_err(|error| malformed(error.body_text()))?;
    engine.end_capture(number).await?;
    Ok(StatusCode::NO_CONTENT)
}
