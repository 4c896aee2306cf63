//! Handlers of the paths of the forwarding database.

use api::v1::{ChangeOptions, FdbDocument, FdbFilter, FdbFlushed, StaticEntry};
use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;

use super::extractors::{ChangeRequest, Client, Document, Filter, PathName};
use super::handlers::{IfMatch, with_tag};
use super::requests::{HandlerResult, same_name};
use crate::command::EngineHandle;
use config::desired::{Change, FdbChange};

/// List the forwarding database
#[utoipa::path(
    get,
    operation_id = "list_fdb",
    path = "/v1/fdb",
    params(FdbFilter),
    responses((status = 200, body = FdbDocument)),
)]
pub(super) async fn list(
    State(engine): State<EngineHandle>,
    Filter(filter): Filter<FdbFilter>,
) -> HandlerResult<Json<FdbDocument>> {
    Ok(Json(engine.fdb(filter).await?))
}

/// Flush the forwarding database
///
/// Removes the learned entries of a segment, of a port, or all. Static entries and addresses that
/// port security lists stay. Frames to a removed address are flooded until it is learned again.
#[utoipa::path(
    delete,
    operation_id = "flush_fdb",
    path = "/v1/fdb",
    params(FdbFilter),
    responses((status = 200, body = FdbFlushed)),
)]
pub(super) async fn flush(
    Client(engine): Client,
    Filter(filter): Filter<FdbFilter>,
) -> HandlerResult<Json<FdbFlushed>> {
    Ok(Json(engine.flush_fdb(filter).await?))
}

/// List static FDB entries
#[utoipa::path(
    get,
    operation_id = "list_static_entries",
    path = "/v1/fdb/static",
    responses((status = 200, body = [StaticEntry])),
)]
pub(super) async fn list_static(State(engine): State<EngineHandle>) -> HandlerResult<Response> {
    let desired = engine.desired().await?;
    Ok(with_tag(&desired, Json(&desired.state.fdb)))
}

/// Create or replace a static FDB entry
#[utoipa::path(
    put,
    operation_id = "put_static_entry",
    path = "/v1/fdb/static/{segment}/{mac}",
    params(StaticPath, ChangeOptions, IfMatch),
    request_body = StaticEntry,
    responses((status = 200, body = StaticEntry)),
)]
pub(super) async fn put_static(
    request: ChangeRequest,
    PathName((segment, mac)): PathName<(String, String)>,
    Document(entry): Document<StaticEntry>,
) -> HandlerResult<Response> {
    same_name(&segment, &entry.segment).map_err(|problem| problem.with_field("segment"))?;
    same_name(&mac, &entry.mac).map_err(|problem| problem.with_field("mac"))?;
    let change = Change::Fdb(FdbChange::Put(entry.clone()));
    let desired = request.apply_one(change).await?;
    Ok(with_tag(&desired, Json(entry)))
}

/// Remove a static FDB entry
#[utoipa::path(
    delete,
    operation_id = "remove_static_entry",
    path = "/v1/fdb/static/{segment}/{mac}",
    params(StaticPath, ChangeOptions, IfMatch),
    responses((status = 204)),
)]
pub(super) async fn remove_static(
    request: ChangeRequest,
    PathName((segment, mac)): PathName<(String, String)>,
) -> HandlerResult<Response> {
    let change = Change::Fdb(FdbChange::Remove { segment, mac });
    let desired = request.apply_one(change).await?;
    Ok(with_tag(&desired, StatusCode::NO_CONTENT))
}

/// The segment and the address in a path.
#[derive(utoipa::IntoParams)]
#[into_params(parameter_in = Path)]
#[expect(dead_code, reason = "it is there to be described")]
pub(super) struct StaticPath {
    /// Name of the segment.
    segment: String,
    /// MAC address.
    mac: String,
}
