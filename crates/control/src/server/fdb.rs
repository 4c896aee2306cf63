//! What is done for the paths of the forwarding database.

use api::v1::{ChangeOptions, FdbDocument, FdbFilter, FdbFlushed, Problem, StaticEntry};
use axum::Json;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;

use super::handlers::{Body, IfMatch, Options, order_one, query, with_tag};
use super::requests::{Client, Done, document, malformed, same_name};
use crate::command::EngineHandle;
use crate::wanted::{Change, FdbChange};

/// A segment's name and an address in a path, or why there are none.
type Place = Result<Path<(String, String)>, PathRejection>;

/// Which address was learned behind which port
#[utoipa::path(get, operation_id = "list_fdb", path = "/v1/fdb", params(FdbFilter), responses((status = 200, body = FdbDocument)))]
pub(super) async fn list(
    State(engine): State<EngineHandle>,
    filter: Result<Query<FdbFilter>, QueryRejection>,
) -> Done<Json<FdbDocument>> {
    Ok(Json(engine.fdb(query(filter)?).await?))
}

/// Forget what was learned
///
/// Of a segment, of a port, or all. Static entries and addresses that guards list stay. Frames to what is forgotten are flooded until it is
/// heard again.
#[utoipa::path(delete, operation_id = "flush_fdb", path = "/v1/fdb", params(FdbFilter), responses((status = 200, body = FdbFlushed)))]
pub(super) async fn flush(
    Client(engine): Client,
    filter: Result<Query<FdbFilter>, QueryRejection>,
) -> Done<Json<FdbFlushed>> {
    Ok(Json(engine.flush_fdb(query(filter)?).await?))
}

/// Static entries, as they are wanted
#[utoipa::path(get, operation_id = "list_static_entries", path = "/v1/fdb/static", responses((status = 200, body = [StaticEntry])))]
pub(super) async fn list_static(State(engine): State<EngineHandle>) -> Done<Response> {
    let wanted = engine.wanted().await?;
    Ok(with_tag(&wanted, Json(&wanted.state.fdb)))
}

/// Say where a station is
#[utoipa::path(put, operation_id = "put_static_entry", path = "/v1/fdb/static/{segment}/{mac}", params(StaticPath, ChangeOptions, IfMatch), request_body = StaticEntry, responses(
    (status = 200, body = StaticEntry)
))]
pub(super) async fn put_static(
    Client(engine): Client,
    place: Place,
    options: Options,
    headers: HeaderMap,
    body: Body,
) -> Done<Response> {
    let entry: StaticEntry = document(&headers, body)?;
    let (segment, mac) = read(place)?;
    same_name(&segment, &entry.segment).map_err(|problem| problem.with_field("segment"))?;
    same_name(&mac, &entry.mac).map_err(|problem| problem.with_field("mac"))?;
    let change = Change::Fdb(FdbChange::Put(entry.clone()));
    let wanted = order_one(&engine, &headers, options, change).await?;
    Ok(with_tag(&wanted, Json(entry)))
}

/// Have a station learned again
#[utoipa::path(delete, operation_id = "remove_static_entry", path = "/v1/fdb/static/{segment}/{mac}", params(StaticPath, ChangeOptions, IfMatch), responses((status = 204)))]
pub(super) async fn remove_static(
    Client(engine): Client,
    place: Place,
    options: Options,
    headers: HeaderMap,
) -> Done<Response> {
    let (segment, mac) = read(place)?;
    let change = Change::Fdb(FdbChange::Remove { segment, mac });
    let wanted = order_one(&engine, &headers, options, change).await?;
    Ok(with_tag(&wanted, StatusCode::NO_CONTENT))
}

fn read(place: Place) -> Result<(String, String), Problem> {
    let Path(place) = place.map_err(|error| malformed(error.body_text()))?;
    Ok(place)
}

/// An address in a path.
#[derive(utoipa::IntoParams)]
#[into_params(parameter_in = Path)]
#[expect(dead_code, reason = "it is there to be described")]
pub(super) struct StaticPath {
    /// The segment's name.
    segment: String,
    /// The MAC address.
    mac: String,
}
