//! Handlers of the paths of mirrors.

use api::v1::{ChangeOptions, MirrorSpec, MirrorsDocument, Problem};
use axum::Json;
use axum::extract::{Query, State};
use axum::http::header::LOCATION;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;

use super::handlers::{Body, IfMatch, Name, NamePath, Options, apply, query, with_tag};
use super::requests::{Client, HandlerResult, document, name, same_name};
use crate::command::EngineHandle;
use crate::desired::{self, Change, MirrorChange};

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
    path: Name,
) -> HandlerResult<Response> {
    let name = name(path)?;
    let desired = engine.desired().await?;
    let mirror = desired.state.mirror(&name);
    let mirror = mirror.ok_or_else(|| Problem::no_such_mirror(&name))?;
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
    Client(engine): Client,
    options: Options,
    headers: HeaderMap,
    body: Body,
) -> HandlerResult<Response> {
    let mirror: MirrorSpec = document(&headers, body)?;
    let options: ChangeOptions = query(options)?;
    let change = Change::Mirror(MirrorChange::Add(mirror.clone()));
    let desired = apply(&engine, &headers, Ok(Query(options)), change).await?;
    if options.dry_run {
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
    Client(engine): Client,
    path: Name,
    options: Options,
    headers: HeaderMap,
    body: Body,
) -> HandlerResult<Response> {
    let mirror: MirrorSpec = document(&headers, body)?;
    same_name(&name(path)?, &mirror.name)?;
    let change = Change::Mirror(MirrorChange::Put(mirror.clone()));
    let desired = apply(&engine, &headers, options, change).await?;
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
    Client(engine): Client,
    path: Name,
    options: Options,
    headers: HeaderMap,
) -> HandlerResult<Response> {
    let change = Change::Mirror(MirrorChange::Remove(name(path)?));
    let desired = apply(&engine, &headers, options, change).await?;
    Ok(with_tag(&desired, StatusCode::NO_CONTENT))
}
