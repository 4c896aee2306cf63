//! Handlers of each path and method; the table is in the parent module.

pub(super) mod trace;

use api::v1::{
    ChangeOptions, ChangesDocument, DesiredState, PortPatch, PortSpec, PortStats, PortStatus,
    PortsDocument, Problem, ProblemKind, SegmentPatch, SegmentSpec, SegmentStatus,
    SegmentsDocument, StatsDocument, StatusDocument, SwitchSpec, WarningsDocument,
};
use axum::Json;
use axum::extract::State;
use axum::http::header::{ACCEPT, CONTENT_TYPE, ETAG, LOCATION};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use serde_json::Value;

use super::extractors::{ChangeRequest, Document, PathName};
use super::openapi;
use super::requests::{Failure, HandlerResult, is_known};
use crate::command::{Desired, EngineHandle};
use crate::metrics::{self, Format};
use config::desired::{self, Change};

/// Get status
#[utoipa::path(
    get,
    operation_id = "get_status",
    path = "/v1/status",
    responses((status = 200, body = StatusDocument)),
)]
pub(super) async fn status(
    State(engine): State<EngineHandle>,
) -> HandlerResult<Json<StatusDocument>> {
    Ok(Json(engine.status().await?))
}

/// Get traffic and drops
#[utoipa::path(
    get,
    operation_id = "get_stats",
    path = "/v1/stats",
    responses((status = 200, body = StatsDocument)),
)]
pub(super) async fn stats(
    State(engine): State<EngineHandle>,
) -> HandlerResult<Json<StatsDocument>> {
    Ok(Json(engine.stats().await?))
}

/// Get traffic and drops of a port
#[utoipa::path(
    get,
    operation_id = "get_port_stats",
    path = "/v1/ports/{name}/stats",
    params(NamePath),
    responses((status = 200, body = PortStats)),
)]
pub(super) async fn port_stats(
    State(engine): State<EngineHandle>,
    PathName(port): PathName,
) -> HandlerResult<Json<PortStats>> {
    let mut all = engine.stats().await?.ports.into_iter();
    let found = all.find(|one| one.name == port);
    Ok(Json(found.ok_or_else(|| Problem::no_such("port", &port))?))
}

/// Get metrics for Prometheus
///
/// In text format 0.0.4, or in OpenMetrics 1.0 for clients that accept it.
#[utoipa::path(
    get,
    operation_id = "get_metrics",
    path = "/metrics",
    responses((status = 200, body = String, content_type = "text/plain")),
)]
pub(super) async fn metrics(
    State(engine): State<EngineHandle>,
    headers: HeaderMap,
) -> HandlerResult<impl IntoResponse> {
    let accept = headers.get(ACCEPT).and_then(|value| value.to_str().ok());
    let format = Format::accepted(accept.unwrap_or_default());
    let page = metrics::page(&engine.metrics().await?, format);
    Ok(([(CONTENT_TYPE, format.content_type())], page))
}

/// Get this document
#[utoipa::path(
    get,
    operation_id = "get_openapi",
    path = "/v1/openapi.json",
    responses((status = 200, body = Value)),
)]
pub(super) async fn openapi() -> impl IntoResponse {
    ([(CONTENT_TYPE, "application/json")], openapi::COMMITTED)
}

/// Get the desired state
#[utoipa::path(
    get,
    operation_id = "get_state",
    path = "/v1/state",
    params(IfNoneMatch),
    responses(
        (status = 200, body = DesiredState),
        (status = 304, description = "The version is one of If-None-Match."),
    ),
)]
pub(super) async fn desired(
    State(engine): State<EngineHandle>,
    headers: HeaderMap,
) -> HandlerResult<Response> {
    let desired = engine.desired().await?;
    if is_known(&headers, &desired.version)? {
        return Ok(with_tag(&desired, StatusCode::NOT_MODIFIED));
    }
    Ok(with_tag(&desired, Json(&desired.state)))
}

/// List warnings about the desired state
///
/// Valid configuration that is probably a mistake: one MAC address at two ports of a segment, rules
/// that never decide anything, unattached access lists.
#[utoipa::path(
    get,
    operation_id = "list_warnings",
    path = "/v1/warnings",
    responses((status = 200, body = WarningsDocument)),
)]
pub(super) async fn warnings(State(engine): State<EngineHandle>) -> HandlerResult<Response> {
    let desired = engine.desired().await?;
    let warnings = desired::warnings(&desired.state);
    Ok(with_tag(&desired, Json(WarningsDocument { warnings })))
}

/// Replace the desired state
///
/// Missing fields get their defaults. The change is made as a whole or not at all; ports and
/// segments without a difference are not disturbed.
#[utoipa::path(
    put,
    operation_id = "replace_state",
    path = "/v1/state",
    params(ChangeOptions, IfMatch),
    request_body = DesiredState,
    responses((status = 200, body = DesiredState)),
)]
pub(super) async fn put_state(
    request: ChangeRequest,
    Document(state): Document<DesiredState>,
) -> HandlerResult<Response> {
    let change = Change::State(Box::new(state));
    let desired = request.apply(change).await?;
    Ok(with_tag(&desired, Json(&desired.state)))
}

/// Update the desired state (JSON merge patch)
///
/// A JSON merge patch (RFC 7396) of the document that `GET` returns: arrays are replaced as a
/// whole.
#[utoipa::path(
    patch,
    path = "/v1/state",
    params(ChangeOptions, IfMatch),
    request_body = Value,
    responses((status = 200, body = DesiredState)),
)]
pub(super) async fn patch_state(
    request: ChangeRequest,
    Document(patch): Document<Value>,
) -> HandlerResult<Response> {
    let change = Change::PatchState(patch);
    let desired = request.apply(change).await?;
    Ok(with_tag(&desired, Json(&desired.state)))
}

/// Get the switch's configuration
#[utoipa::path(
    get,
    operation_id = "get_switch",
    path = "/v1/switch",
    responses((status = 200, body = SwitchSpec)),
)]
pub(super) async fn switch(State(engine): State<EngineHandle>) -> HandlerResult<Response> {
    let desired = engine.desired().await?;
    Ok(with_tag(&desired, Json(&desired.state.switch)))
}

/// Update the switch's configuration (JSON merge patch)
///
/// Only the name can change while Lasthop runs; other changes get a 409.
#[utoipa::path(
    patch,
    path = "/v1/switch",
    params(ChangeOptions, IfMatch),
    request_body = Value,
    responses((status = 200, body = SwitchSpec)),
)]
pub(super) async fn patch_switch(
    request: ChangeRequest,
    Document(patch): Document<Value>,
) -> HandlerResult<Response> {
    let change = Change::PatchSwitch(patch);
    let desired = request.apply(change).await?;
    Ok(with_tag(&desired, Json(&desired.state.switch)))
}

/// List segments
#[utoipa::path(
    get,
    operation_id = "list_segments",
    path = "/v1/segments",
    responses((status = 200, body = SegmentsDocument)),
)]
pub(super) async fn segments(State(engine): State<EngineHandle>) -> HandlerResult<Response> {
    let desired = engine.desired().await?;
    let segments = desired::segments(&desired.state);
    Ok(with_tag(&desired, Json(SegmentsDocument { segments })))
}

/// Get a segment
#[utoipa::path(
    get,
    operation_id = "get_segment",
    path = "/v1/segments/{name}",
    params(NamePath),
    responses((status = 200, body = SegmentStatus)),
)]
pub(super) async fn show_segment(
    State(engine): State<EngineHandle>,
    PathName(name): PathName,
) -> HandlerResult<Response> {
    let desired = engine.desired().await?;
    let segment = segment(&desired, &name)?;
    Ok(with_tag(&desired, Json(segment)))
}

/// Add a segment
#[utoipa::path(
    post,
    path = "/v1/segments",
    params(ChangeOptions, IfMatch),
    request_body = SegmentSpec,
    responses((status = 201, body = SegmentStatus)),
)]
pub(super) async fn add_segment(
    request: ChangeRequest,
    Document(spec): Document<SegmentSpec>,
) -> HandlerResult<Response> {
    let name = spec.name.clone();
    let desired = request.apply_one(Change::AddSegment(spec)).await?;
    let location = [(LOCATION, format!("/v1/segments/{name}"))];
    let created = (
        StatusCode::CREATED,
        location,
        Json(segment(&desired, &name)?),
    );
    Ok(with_tag(&desired, created))
}

/// Update a segment
#[utoipa::path(
    patch,
    operation_id = "change_segment",
    path = "/v1/segments/{name}",
    params(NamePath, ChangeOptions, IfMatch),
    request_body = SegmentPatch,
    responses((status = 200, body = SegmentStatus)),
)]
pub(super) async fn set_segment(
    request: ChangeRequest,
    PathName(name): PathName,
    Document(patch): Document<SegmentPatch>,
) -> HandlerResult<Response> {
    let change = Change::SetSegment(name.clone(), patch);
    let desired = request.apply_one(change).await?;
    let segment = segment(&desired, &name)?;
    Ok(with_tag(&desired, Json(segment)))
}

/// Remove a segment; no port may be in it
#[utoipa::path(
    delete,
    path = "/v1/segments/{name}",
    params(NamePath, ChangeOptions, IfMatch),
    responses((status = 204)),
)]
pub(super) async fn remove_segment(
    request: ChangeRequest,
    PathName(name): PathName,
) -> HandlerResult<Response> {
    let change = Change::RemoveSegment(name);
    let desired = request.apply_one(change).await?;
    Ok(with_tag(&desired, StatusCode::NO_CONTENT))
}

/// List ports
#[utoipa::path(
    get,
    operation_id = "list_ports",
    path = "/v1/ports",
    responses((status = 200, body = PortsDocument)),
)]
pub(super) async fn ports(
    State(engine): State<EngineHandle>,
) -> HandlerResult<Json<PortsDocument>> {
    Ok(Json(engine.ports().await?))
}

/// Get a port
#[utoipa::path(
    get,
    operation_id = "get_port",
    path = "/v1/ports/{name}",
    params(NamePath),
    responses((status = 200, body = PortStatus)),
)]
pub(super) async fn show_port(
    State(engine): State<EngineHandle>,
    PathName(name): PathName,
) -> HandlerResult<Json<PortStatus>> {
    let mut ports = engine.ports().await?.ports.into_iter();
    let port = ports.find(|port| port.name == name);
    Ok(Json(port.ok_or_else(|| Problem::no_such("port", &name))?))
}

/// Add a port
#[utoipa::path(
    post,
    path = "/v1/ports",
    params(ChangeOptions, IfMatch),
    request_body = PortSpec,
    responses((status = 201, body = PortStatus)),
)]
pub(super) async fn add_port(
    request: ChangeRequest,
    Document(port): Document<PortSpec>,
) -> HandlerResult<Response> {
    let location = [(LOCATION, format!("/v1/ports/{}", port.name))];
    let desired = request.apply_one(Change::AddPort(Box::new(port))).await?;
    let created = (StatusCode::CREATED, location, Json(&desired.port));
    Ok(with_tag(&desired, created))
}

/// Update a port
#[utoipa::path(
    patch,
    operation_id = "change_port",
    path = "/v1/ports/{name}",
    params(NamePath, ChangeOptions, IfMatch),
    request_body = PortPatch,
    responses((status = 200, body = PortStatus)),
)]
pub(super) async fn set_port(
    request: ChangeRequest,
    PathName(name): PathName,
    Document(patch): Document<PortPatch>,
) -> HandlerResult<Response> {
    let change = Change::SetPort(name, Box::new(patch));
    let desired = request.apply_one(change).await?;
    Ok(with_tag(&desired, Json(&desired.port)))
}

/// Remove a port; its guest is disconnected
#[utoipa::path(
    delete,
    path = "/v1/ports/{name}",
    params(NamePath, ChangeOptions, IfMatch),
    responses((status = 204)),
)]
pub(super) async fn remove_port(
    request: ChangeRequest,
    PathName(name): PathName,
) -> HandlerResult<Response> {
    let change = Change::RemovePort(name);
    let desired = request.apply_one(change).await?;
    Ok(with_tag(&desired, StatusCode::NO_CONTENT))
}

pub(super) async fn unknown_path() -> Failure {
    Problem::new(ProblemKind::NotFound, "no such path").into()
}

pub(super) async fn unknown_method() -> Failure {
    let detail = "this path does not support the method";
    Problem::new(ProblemKind::MethodNotAllowed, detail).into()
}

/// The name at the end of a path.
#[derive(utoipa::IntoParams)]
#[into_params(parameter_in = Path)]
#[expect(dead_code, reason = "it is there to be described")]
pub(super) struct NamePath {
    /// Name of the object.
    name: String,
}

/// The header that makes a change conditional.
#[derive(utoipa::IntoParams)]
#[into_params(parameter_in = Header)]
#[expect(dead_code, reason = "it is there to be described")]
pub(super) struct IfMatch {
    /// ETags of the desired state, from `GET /v1/state` or the last change: the change is made only
    /// if the desired state still has one of these, and else the response is 412.
    #[param(rename = "If-Match", required = false)]
    if_match: Option<String>,
}

/// The header that makes a response conditional.
#[derive(utoipa::IntoParams)]
#[into_params(parameter_in = Header)]
#[expect(dead_code, reason = "it is there to be described")]
pub(super) struct IfNoneMatch {
    /// ETags that the client knows: where the desired state still has one of these, the response is
    /// 304, without a body.
    #[param(rename = "If-None-Match", required = false)]
    if_none_match: Option<String>,
}

/// Returns a segment of the desired state.
fn segment(desired: &Desired, name: &str) -> Result<SegmentStatus, Problem> {
    let mut all = desired::segments(&desired.state).into_iter();
    let segment = all.find(|segment| segment.name == name);
    segment.ok_or_else(|| Problem::no_such("segment", name))
}

/// Adds the ETag of the desired state to a response, or replaces it by the requested differences.
pub(super) fn with_tag(desired: &Desired, answer: impl IntoResponse) -> Response {
    let tag = [(ETAG, format!("\"{}\"", desired.version))];
    let Some(changes) = &desired.changes else {
        return (tag, answer).into_response();
    };
    let document = ChangesDocument {
        desired: desired.state.clone(),
        changes: changes.clone(),
    };
    (tag, Json(document)).into_response()
}
