//! What is done for the paths of mirrors.

use api::v1::{ChangeOptions, MirrorSpec, MirrorsDocument, Problem};
use axum::Json;
use axum::extract::{Query, State};
use axum::http::header::LOCATION;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;

use super::handlers::{Body, IfMatch, Name, NamePath, Options, order, query, with_tag};
use super::requests::{Client, Done, document, name, same_name};
use crate::command::EngineHandle;
use crate::wanted::{self, Change, MirrorChange};

/// All mirrors, with what each has copied, and what the ports have got that get the copies
#[utoipa::path(get, operation_id = "list_mirrors", path = "/v1/mirrors", responses((status = 200, body = MirrorsDocument)))]
pub(super) async fn list(State(engine): State<EngineHandle>) -> Done<Json<MirrorsDocument>> {
    let wanted = engine.wanted().await?;
    let stats = engine.stats().await?;
    let mirrors = wanted::mirrors(&wanted.state, &stats);
    Ok(Json(MirrorsDocument { mirrors }))
}

/// One mirror, as it is wanted
#[utoipa::path(get, operation_id = "get_mirror", path = "/v1/mirrors/{name}", params(NamePath), responses((status = 200, body = MirrorSpec)))]
pub(super) async fn show(State(engine): State<EngineHandle>, path: Name) -> Done<Response> {
    let name = name(path)?;
    let wanted = engine.wanted().await?;
    let mirror = wanted.state.mirror(&name);
    let mirror = mirror.ok_or_else(|| Problem::no_such_mirror(&name))?;
    Ok(with_tag(&wanted, Json(mirror)))
}

/// Add a mirror; no other has its name
#[utoipa::path(post, operation_id = "add_mirror", path = "/v1/mirrors", params(ChangeOptions, IfMatch), request_body = MirrorSpec, responses(
    (status = 201, body = MirrorSpec),
    (status = 200, body = MirrorSpec, description = "It was only looked at.")
))]
pub(super) async fn add(
    Client(engine): Client,
    options: Options,
    headers: HeaderMap,
    body: Body,
) -> Done<Response> {
    let mirror: MirrorSpec = document(&headers, body)?;
    let options: ChangeOptions = query(options)?;
    let change = Change::Mirror(MirrorChange::Add(mirror.clone()));
    let wanted = order(&engine, &headers, Ok(Query(options)), change).await?;
    if options.dry_run {
        return Ok(with_tag(&wanted, Json(mirror)));
    }
    let location = [(LOCATION, format!("/v1/mirrors/{}", mirror.name))];
    let created = (StatusCode::CREATED, location, Json(mirror));
    Ok(with_tag(&wanted, created))
}

/// Want this mirror; a new one goes behind the others
#[utoipa::path(put, operation_id = "put_mirror", path = "/v1/mirrors/{name}", params(NamePath, ChangeOptions, IfMatch), request_body = MirrorSpec, responses(
    (status = 200, body = MirrorSpec)
))]
pub(super) async fn put(
    Client(engine): Client,
    path: Name,
    options: Options,
    headers: HeaderMap,
    body: Body,
) -> Done<Response> {
    let mirror: MirrorSpec = document(&headers, body)?;
    same_name(&name(path)?, &mirror.name)?;
    let change = Change::Mirror(MirrorChange::Put(mirror.clone()));
    let wanted = order(&engine, &headers, options, change).await?;
    Ok(with_tag(&wanted, Json(mirror)))
}

/// Remove a mirror
#[utoipa::path(delete, operation_id = "remove_mirror", path = "/v1/mirrors/{name}", params(NamePath, ChangeOptions, IfMatch), responses((status = 204)))]
pub(super) async fn remove(
    Client(engine): Client,
    path: Name,
    options: Options,
    headers: HeaderMap,
) -> Done<Response> {
    let change = Change::Mirror(MirrorChange::Remove(name(path)?));
    let wanted = order(&engine, &headers, options, change).await?;
    Ok(with_tag(&wanted, StatusCode::NO_CONTENT))
}
