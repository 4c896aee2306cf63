//! Handlers of the paths of mirrors.

use api::v1::{ChangeOptions, MirrorSpec, MirrorsDocument, Problem};
use axum::Json;
use axum::http::StatusCode;
use axum::http::header::LOCATION;
use axum::response::IntoResponse;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::extractors::{ChangeRequest, Document, Engine, NoQuery, PathName};
use super::handlers::{IfMatch, NamePath, with_tag};
use super::requests::{Answer, same_name};
use crate::command::EngineHandle;
use config::desired::{self, Change, MirrorChange};

/// Returns the router of these handlers, with their descriptions.
pub(super) fn routes() -> OpenApiRouter<EngineHandle> {
    OpenApiRouter::new()
        .routes(routes!(list_mirrors, add_mirror))
        .routes(routes!(get_mirror, put_mirror, remove_mirror))
}

/// List mirrors, with their counters and those of their target ports
#[utoipa::path(get, path = "/v1/mirrors", responses((status = 200, body = MirrorsDocument)))]
async fn list_mirrors(_: NoQuery, engine: Engine) -> Answer<impl IntoResponse> {
    let desired = engine.desired().await?;
    let stats = engine.stats().await?;
    let mirrors = desired::mirrors(&desired.state, &stats);
    Ok(Json(MirrorsDocument { mirrors }))
}

/// Get a mirror
#[utoipa::path(
    get, path = "/v1/mirrors/{name}", params(NamePath),
    responses((status = 200, body = MirrorSpec))
)]
async fn get_mirror(
    _: NoQuery,
    engine: Engine,
    PathName(name): PathName,
) -> Answer<impl IntoResponse> {
    let desired = engine.desired().await?;
    let mirror = desired.state.mirror(&name);
    let mirror = mirror.ok_or_else(|| Problem::no_such("mirror", &name))?;
    Ok(with_tag(&desired, Json(mirror)))
}

/// Add a mirror; its name must be new
#[utoipa::path(
    post, path = "/v1/mirrors", params(ChangeOptions, IfMatch), request_body = MirrorSpec,
    responses(
        (status = 201, body = MirrorSpec),
        (status = 200, body = MirrorSpec, description = "Result of a dry run."),
    )
)]
async fn add_mirror(
    request: ChangeRequest,
    Document(mirror): Document<MirrorSpec>,
) -> Answer<impl IntoResponse> {
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
    put, path = "/v1/mirrors/{name}", params(NamePath, ChangeOptions, IfMatch),
    request_body = MirrorSpec, responses((status = 200, body = MirrorSpec))
)]
async fn put_mirror(
    request: ChangeRequest,
    PathName(name): PathName,
    Document(mirror): Document<MirrorSpec>,
) -> Answer<impl IntoResponse> {
    same_name(&name, &mirror.name)?;
    let change = Change::Mirror(MirrorChange::Put(mirror.clone()));
    let desired = request.apply(change).await?;
    Ok(with_tag(&desired, Json(mirror)))
}

/// Remove a mirror
#[utoipa::path(
    delete, path = "/v1/mirrors/{name}", params(NamePath, ChangeOptions, IfMatch),
    responses((status = 204))
)]
async fn remove_mirror(
    request: ChangeRequest,
    PathName(name): PathName,
) -> Answer<impl IntoResponse> {
    let change = Change::Mirror(MirrorChange::Remove(name));
    let desired = request.apply(change).await?;
    Ok(with_tag(&desired, StatusCode::NO_CONTENT))
}
