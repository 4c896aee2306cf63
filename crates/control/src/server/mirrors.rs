//! Handlers of the paths of mirrors.

use api::v1::{ChangeOptions, MirrorSpec, MirrorsDocument, Problem};
use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::LOCATION;
use axum::response::Response;

use super::extractors::{ChangeRequest, Document, PathName};
use super::handlers::{IfMatch, NamePath, with_tag};
use super::requests::{HandlerResult, same_name};
use crate::command::EngineHandle;
use config::desired::{self, Change, MirrorChange};

/// List mirrors, with their counters and those of their target ports
#[utoipa::path(
    get,
    operation_id = "list_mirrors",
    path = "/v1/mirrors",
    responses((status = 200, body = MirrorsDocument)),
)]
pub(super) async fn list(
    State(engine): State<EngineHandle>,
) -> HandlerResult<Json<MirrorsDocument>> {
    let desired = engine.desired().await?;
    let stats = engine.stats().await?;
    let mirrors = desired::mirrors(&desired.state, &stats);
    Ok(Json(MirrorsDocument { mirrors }))
}

/// Get a mirror
#[utoipa::path(
    get,
    operation_id = "get_mirror",
    path = "/v1/mirrors/{name}",
    params(NamePath),
    responses((status = 200, body = MirrorSpec)),
)]
pub(super) async fn show(
    State(engine): State<EngineHandle>,
    PathName(name): PathName,
) -> HandlerResult<Response> {
    let desired = engine.desired().await?;
    let mirror = desired.state.mirror(&name);
    let mirror = mirror.ok_or_else(|| Problem::no_such("mirror", &name))?;
    Ok(with_tag(&desired, Json(mirror)))
}

/// Add a mirror; its name must be new
#[utoipa::path(
    post,
    operation_id = "add_mirror",
    path = "/v1/mirrors",
    params(ChangeOptions, IfMatch),
    request_body = MirrorSpec,
    responses(
        (status = 201, body = MirrorSpec),
        (status = 200, body = MirrorSpec, description = "Result of a dry run."),
    ),
)]
pub(super) async fn add(
    request: ChangeRequest,
    Document(mirror): Document<MirrorSpec>,
) -> HandlerResult<Response> {
    let dry_run = request.options.dry_run;
    let change = Change::Mirror(MirrorChange::Add(mirror.clone()));
    let desired = request.apply(change).await?;
    if dry_run {
        return Ok(with_tag(&desired, Json(mirror)));
    }
    let location = [(LOCATION, format!("/v1/mirrors/{}", mirror.name))];
    let created = (StatusCode::CREATED, location, Json(mirror));
    Ok(with_tag(&desired, created))
}

/// Create or replace a mirror; a new one is added at the end
#[utoipa::path(
    put,
    operation_id = "put_mirror",
    path = "/v1/mirrors/{name}",
    params(NamePath, ChangeOptions, IfMatch),
    request_body = MirrorSpec,
    responses((status = 200, body = MirrorSpec)),
)]
pub(super) async fn put(
    request: ChangeRequest,
    PathName(name): PathName,
    Document(mirror): Document<MirrorSpec>,
) -> HandlerResult<Response> {
    same_name(&name, &mirror.name)?;
    let change = Change::Mirror(MirrorChange::Put(mirror.clone()));
    let desired = request.apply(change).await?;
    Ok(with_tag(&desired, Json(mirror)))
}

/// Remove a mirror
#[utoipa::path(
    delete,
    operation_id = "remove_mirror",
    path = "/v1/mirrors/{name}",
    params(NamePath, ChangeOptions, IfMatch),
    responses((status = 204)),
)]
pub(super) async fn remove(
    request: ChangeRequest,
    PathName(name): PathName,
) -> HandlerResult<Response> {
    let change = Change::Mirror(MirrorChange::Remove(name));
    let desired = request.apply(change).await?;
    Ok(with_tag(&desired, StatusCode::NO_CONTENT))
}
