//! Handlers of the paths of traffic classes, groups of senders and scheduled ports.

use api::v1::{
    ChangeOptions, EgressDocument, EgressPortsDocument, Problem, ProblemKind, QosClassPatch,
    QosClassSpec, QosClassesDocument, QosGroupPatch, QosGroupSpec, QosGroupStatus,
    QosGroupsDocument,
};
use axum::Json;
use axum::http::StatusCode;
use axum::http::header::LOCATION;
use axum::response::IntoResponse;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::extractors::{ChangeRequest, Document, Engine, NoQuery, PathName};
use super::handlers::{IfMatch, NamePath, with_tag};
use super::requests::Answer;
use crate::command::{DesiredSnapshot, EngineHandle};
use config::desired::Change;
use config::desired::qos::{self, QosChange};

/// Returns the router of these handlers, with their descriptions.
pub(super) fn routes() -> OpenApiRouter<EngineHandle> {
    OpenApiRouter::new()
        .routes(routes!(list_qos_classes, add_qos_class))
        .routes(routes!(get_qos_class, change_qos_class, remove_qos_class))
        .routes(routes!(list_qos_groups, add_qos_group))
        .routes(routes!(get_qos_group, change_qos_group, remove_qos_group))
        .routes(routes!(list_egress))
        .routes(routes!(get_egress))
}

/// List traffic classes
#[utoipa::path(get, path = "/v1/qos/classes", responses((status = 200, body = QosClassesDocument)))]
async fn list_qos_classes(_: NoQuery, engine: Engine) -> Answer<impl IntoResponse> {
    let desired = engine.desired().await?;
    let classes = qos::classes_of(&desired.state);
    Ok(with_tag(&desired, Json(QosClassesDocument { classes })))
}

/// Get a traffic class
#[utoipa::path(
    get, path = "/v1/qos/classes/{name}", params(NamePath),
    responses((status = 200, body = QosClassSpec))
)]
async fn get_qos_class(
    _: NoQuery,
    engine: Engine,
    PathName(name): PathName,
) -> Answer<impl IntoResponse> {
    let desired = engine.desired().await?;
    Ok(with_tag(&desired, Json(class(&desired, &name)?)))
}

/// Add a traffic class
#[utoipa::path(
    post, path = "/v1/qos/classes", params(ChangeOptions, IfMatch), request_body = QosClassSpec,
    responses((status = 201, body = QosClassSpec))
)]
async fn add_qos_class(
    request: ChangeRequest,
    Document(spec): Document<QosClassSpec>,
) -> Answer<impl IntoResponse> {
    let name = spec.name.clone();
    let change = Change::Qos(QosChange::AddClass(spec));
    let desired = request.apply_one(change).await?;
    let location = [(LOCATION, format!("/v1/qos/classes/{name}"))];
    let created = Json(class(&desired, &name)?);
    Ok(with_tag(&desired, (StatusCode::CREATED, location, created)))
}

/// Update a traffic class
#[utoipa::path(
    patch, path = "/v1/qos/classes/{name}", params(NamePath, ChangeOptions, IfMatch),
    request_body = QosClassPatch, responses((status = 200, body = QosClassSpec))
)]
async fn change_qos_class(
    request: ChangeRequest,
    PathName(name): PathName,
    Document(patch): Document<QosClassPatch>,
) -> Answer<impl IntoResponse> {
    let change = Change::Qos(QosChange::SetClass(name.clone(), patch.into_value()));
    let desired = request.apply_one(change).await?;
    Ok(with_tag(&desired, Json(class(&desired, &name)?)))
}

/// Remove a traffic class; no port or rule may name it
#[utoipa::path(
    delete, path = "/v1/qos/classes/{name}", params(NamePath, ChangeOptions, IfMatch),
    responses((status = 204))
)]
async fn remove_qos_class(
    request: ChangeRequest,
    PathName(name): PathName,
) -> Answer<impl IntoResponse> {
    request
        .remove(Change::Qos(QosChange::RemoveClass(name)))
        .await
}

/// List groups of senders
#[utoipa::path(get, path = "/v1/qos/groups", responses((status = 200, body = QosGroupsDocument)))]
async fn list_qos_groups(_: NoQuery, engine: Engine) -> Answer<impl IntoResponse> {
    let desired = engine.desired().await?;
    let groups = qos::groups_of(&desired.state);
    Ok(with_tag(&desired, Json(QosGroupsDocument { groups })))
}

/// Get a group of senders
#[utoipa::path(
    get, path = "/v1/qos/groups/{name}", params(NamePath),
    responses((status = 200, body = QosGroupStatus))
)]
async fn get_qos_group(
    _: NoQuery,
    engine: Engine,
    PathName(name): PathName,
) -> Answer<impl IntoResponse> {
    let desired = engine.desired().await?;
    Ok(with_tag(&desired, Json(group(&desired, &name)?)))
}

/// Add a group of senders
#[utoipa::path(
    post, path = "/v1/qos/groups", params(ChangeOptions, IfMatch), request_body = QosGroupSpec,
    responses((status = 201, body = QosGroupStatus))
)]
async fn add_qos_group(
    request: ChangeRequest,
    Document(spec): Document<QosGroupSpec>,
) -> Answer<impl IntoResponse> {
    let name = spec.name.clone();
    let change = Change::Qos(QosChange::AddGroup(spec));
    let desired = request.apply_one(change).await?;
    let location = [(LOCATION, format!("/v1/qos/groups/{name}"))];
    let created = Json(group(&desired, &name)?);
    Ok(with_tag(&desired, (StatusCode::CREATED, location, created)))
}

/// Update a group of senders
#[utoipa::path(
    patch, path = "/v1/qos/groups/{name}", params(NamePath, ChangeOptions, IfMatch),
    request_body = QosGroupPatch, responses((status = 200, body = QosGroupStatus))
)]
async fn change_qos_group(
    request: ChangeRequest,
    PathName(name): PathName,
    Document(patch): Document<QosGroupPatch>,
) -> Answer<impl IntoResponse> {
    let change = Change::Qos(QosChange::SetGroup(name.clone(), patch.into_value()));
    let desired = request.apply_one(change).await?;
    Ok(with_tag(&desired, Json(group(&desired, &name)?)))
}

/// Remove a group of senders; no port may be in it
#[utoipa::path(
    delete, path = "/v1/qos/groups/{name}", params(NamePath, ChangeOptions, IfMatch),
    responses((status = 204))
)]
async fn remove_qos_group(
    request: ChangeRequest,
    PathName(name): PathName,
) -> Answer<impl IntoResponse> {
    request
        .remove(Change::Qos(QosChange::RemoveGroup(name)))
        .await
}

/// List the use of scheduled ports
#[utoipa::path(get, path = "/v1/egress", responses((status = 200, body = EgressPortsDocument)))]
async fn list_egress(_: NoQuery, engine: Engine) -> Answer<impl IntoResponse> {
    Ok(Json(engine.egress().await?))
}

/// Get the use of a scheduled port
///
/// Shares, use and waiting frames of each sender and class.
#[utoipa::path(
    get, path = "/v1/ports/{name}/egress", params(NamePath),
    responses((status = 200, body = EgressDocument))
)]
async fn get_egress(
    _: NoQuery,
    engine: Engine,
    PathName(name): PathName,
) -> Answer<impl IntoResponse> {
    let mut all = engine.egress().await?.ports.into_iter();
    if let Some(found) = all.find(|of| of.port == name) {
        return Ok(Json(found));
    }
    let desired = engine.desired().await?.state;
    let port = desired
        .port(&name)
        .ok_or_else(|| Problem::no_such("port", &name))?;
    let detail = format!("port `{}` is not scheduled: it has no egress", port.name);
    Err(Problem::new(ProblemKind::NotFound, detail).into())
}

fn class(desired: &DesiredSnapshot, name: &str) -> Result<QosClassSpec, Problem> {
    let mut all = qos::classes_of(&desired.state).into_iter();
    let class = all.find(|class| class.name == name);
    class.ok_or_else(|| Problem::no_such("class", name))
}

fn group(desired: &DesiredSnapshot, name: &str) -> Result<QosGroupStatus, Problem> {
    let mut all = qos::groups_of(&desired.state).into_iter();
    let group = all.find(|group| group.name == name);
    group.ok_or_else(|| Problem::no_such("group", name))
}
