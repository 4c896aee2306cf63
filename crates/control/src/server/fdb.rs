//! Handlers of the paths of the forwarding database.

use api::v1::{ChangeOptions, FdbDocument, FdbFilter, FdbFlushed, Problem, StaticEntry};
use axum::Json;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;

use super::handlers::{Body, IfMatch, Options, apply_one, query, with_tag};
use super::requests::{Client, HandlerResult, document, malformed, same_name};
use crate::command::EngineHandle;
use crate::desired::{Change, FdbChange};

/// A segment's name and an address in a path, or why they cannot be read.
type EntryPath = Result<Path<(String, String)>, PathRejection>;

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
    filter: Result<Query<FdbFilter>, QueryRejection>,
) -> HandlerResult<Json<FdbDocument>> {
    Ok(Json(engine.fdb(query(filter)?).await?))
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
    filter: Result<Query<FdbFilter>, QueryRejection>,
) -> HandlerResult<Json<FdbFlushed>> {
    Ok(Json(engine.flush_fdb(query(filter)?).await?))
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
    Client(engine): Client,
    path: EntryPath,
    options: Options,
    headers: HeaderMap,
    body: Body,
) -> HandlerResult<Response> {
    let entry: StaticEntry = document(&headers, body)?;
    let (segment, mac) = entry_path(path)?;
    same_name(&segment, &entry.segment).map_err(|problem| problem.with_field("segment"))?;
    same_name(&mac, &entry.mac).map_err(|problem| problem.with_field("mac"))?;
    let change = Change::Fdb(FdbChange::Put(entry.clone()));
    let desired = apply_one(&engine, &headers, options, change).await?;
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
    Client(engine): Client,
    path: EntryPath,
    options: Options,
    headers: HeaderMap,
) -> HandlerResult<Response> {
    let (segment, mac) = entry_path(path)?;
    let change = Change::Fdb(FdbChange::Remove { segment, mac });
    let desired = apply_one(&engine, &headers, options, change).await?;
    Ok(with_tag(&desired, StatusCode::NO_CONTENT))
}

fn entry_path(path: EntryPath) -> Result<(String, String), Problem> {
    let Path(path) = path.map_err(|error| malformed(error.body_text()))?;
    Ok(path)
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
