//! Handlers of the paths of the forwarding database.

use api::v1::{ChangeOptions, FdbDocument, FdbFilter, FdbFlushResult, StaticEntry};
use axum::Json;
use axum::response::IntoResponse;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::extractors::{ChangeRequest, Client, Document, Engine, Filter, NoQuery, PathName};
use super::handlers::{IfMatch, with_tag};
use super::requests::{Answer, same_name};
use crate::command::EngineHandle;
use config::desired::{Change, FdbChange};

/// Returns the router of these handlers, with their descriptions.
pub(super) fn routes() -> OpenApiRouter<EngineHandle> {
    OpenApiRouter::new()
        .routes(routes!(list_fdb, flush_fdb))
        .routes(routes!(list_static_entries))
        .routes(routes!(put_static_entry, remove_static_entry))
}

/// List the forwarding database
#[utoipa::path(
    get, path = "/v1/fdb", params(FdbFilter), responses((status = 200, body = FdbDocument))
)]
async fn list_fdb(engine: Engine, Filter(filter): Filter<FdbFilter>) -> Answer<impl IntoResponse> {
    Ok(Json(engine.fdb(filter).await?))
}

/// Flush the forwarding database
///
/// Removes the learned entries of a segment, of a port, or all. Static entries and addresses
/// that port security lists stay. Frames to a removed address are flooded until it is learned
/// again.
#[utoipa::path(
    delete, path = "/v1/fdb", params(FdbFilter), responses((status = 200, body = FdbFlushResult))
)]
async fn flush_fdb(
    Client(engine): Client,
    Filter(filter): Filter<FdbFilter>,
) -> Answer<impl IntoResponse> {
    Ok(Json(engine.flush_fdb(filter).await?))
}

/// List static FDB entries
#[utoipa::path(get, path = "/v1/fdb/static", responses((status = 200, body = [StaticEntry])))]
async fn list_static_entries(_: NoQuery, engine: Engine) -> Answer<impl IntoResponse> {
    let desired = engine.desired().await?;
    Ok(with_tag(&desired, Json(&desired.state.fdb)))
}

/// Create or replace a static FDB entry
#[utoipa::path(
    put, path = "/v1/fdb/static/{segment}/{mac}", params(StaticPath, ChangeOptions, IfMatch),
    request_body = StaticEntry, responses((status = 200, body = StaticEntry))
)]
async fn put_static_entry(
    request: ChangeRequest,
    PathName(path): PathName<StaticPath>,
    Document(entry): Document<StaticEntry>,
) -> Answer<impl IntoResponse> {
    let segment = same_name(&path.segment, &entry.segment);
    segment.map_err(|problem| problem.with_field("segment"))?;
    same_name(&path.mac, &entry.mac).map_err(|problem| problem.with_field("mac"))?;
    request
        .put(Change::Fdb(FdbChange::Put(entry.clone())), entry)
        .await
}

/// Remove a static FDB entry
#[utoipa::path(
    delete, path = "/v1/fdb/static/{segment}/{mac}", params(StaticPath, ChangeOptions, IfMatch),
    responses((status = 204))
)]
async fn remove_static_entry(
    request: ChangeRequest,
    PathName(path): PathName<StaticPath>,
) -> Answer<impl IntoResponse> {
    let StaticPath { segment, mac } = path;
    request
        .remove(Change::Fdb(FdbChange::Remove { segment, mac }))
        .await
}

/// The segment and the address in a path.
#[derive(serde::Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Path)]
pub(super) struct StaticPath {
    /// Name of the segment.
    segment: String,
    /// MAC address.
    mac: String,
}
