//! Handlers of most paths and methods; the table is in the parent module.

use api::v1::{
    ChangeOptions, ChangesDocument, DesiredState, FlowsDocument, FlowsFilter, Patch, PipesDocument,
    PortPatch, PortSpec, PortStats, PortStatus, PortsDocument, PrefilterDocument, Problem,
    ProblemKind, PurgeFilter, SegmentPatch, SegmentSpec, SegmentStatus, SegmentsDocument,
    StatsDocument, StatusDocument, SwitchSpec, TraceDocument, TraceRequest, UserFlowsDocument,
    UserFlowsFilter, UserForwardsDocument, UserLeasesDocument, WarningsDocument,
};
use axum::Json;
use axum::http::header::{ACCEPT, CONTENT_TYPE, ETAG, LOCATION};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::extractors::{ChangeRequest, Client, Document, Engine, Filter, NoQuery, PathName};
use super::requests::{Answer, Failure, is_known};
use super::{STATE_MAX, openapi};
use crate::command::{DesiredSnapshot, EngineHandle};
use crate::metrics::{self, Format};
use config::desired::{self, Change};

/// Returns the router of these handlers, with their descriptions.
pub(super) fn routes() -> OpenApiRouter<EngineHandle> {
    OpenApiRouter::new()
        .routes(routes!(get_status))
        .routes(routes!(list_pipes))
        .routes(routes!(get_stats))
        .routes(routes!(get_port_stats))
        .routes(routes!(get_metrics))
        .routes(routes!(get_openapi))
        .routes(routes!(get_state, replace_state, patch_state))
        .routes(routes!(list_warnings))
        .routes(routes!(get_switch, patch_switch))
        .routes(routes!(list_segments, add_segment))
        .routes(routes!(get_segment, change_segment, remove_segment))
        .routes(routes!(list_ports, add_port))
        .routes(routes!(get_port, change_port, remove_port))
        .routes(routes!(get_prefilter))
        .routes(routes!(list_user_flows))
        .routes(routes!(list_user_leases))
        .routes(routes!(list_user_forwards))
        .routes(routes!(trace_frame))
        .routes(routes!(purge_flows, list_flows))
}

/// Get status
#[utoipa::path(get, path = "/v1/status", responses((status = 200, body = StatusDocument)))]
async fn get_status(_: NoQuery, engine: Engine) -> Answer<impl IntoResponse> {
    Ok(Json(engine.status().await?))
}

/// List pipes, with their connected ends
#[utoipa::path(get, path = "/v1/pipes", responses((status = 200, body = PipesDocument)))]
async fn list_pipes(_: NoQuery, engine: Engine) -> Answer<impl IntoResponse> {
    Ok(Json(engine.pipes().await?))
}

/// Get traffic and drops
#[utoipa::path(get, path = "/v1/stats", responses((status = 200, body = StatsDocument)))]
async fn get_stats(_: NoQuery, engine: Engine) -> Answer<impl IntoResponse> {
    Ok(Json(engine.stats().await?))
}

/// Get traffic and drops of a port
#[utoipa::path(
    get, path = "/v1/ports/{name}/stats", params(NamePath),
    responses((status = 200, body = PortStats))
)]
async fn get_port_stats(
    _: NoQuery,
    engine: Engine,
    PathName(port): PathName,
) -> Answer<impl IntoResponse> {
    let mut all = engine.stats().await?.ports.into_iter();
    let found = all.find(|one| one.name == port);
    Ok(Json(found.ok_or_else(|| Problem::no_such("port", &port))?))
}

/// Get metrics for Prometheus
///
/// In text format 0.0.4, or in OpenMetrics 1.0 for clients that accept it.
#[utoipa::path(
    get, path = "/metrics", responses((status = 200, body = String, content_type = "text/plain"))
)]
pub(super) async fn get_metrics(
    _: NoQuery,
    engine: Engine,
    headers: HeaderMap,
) -> Answer<impl IntoResponse> {
    let accept = headers.get(ACCEPT).and_then(|value| value.to_str().ok());
    let format = Format::accepted(accept.unwrap_or_default());
    let page = metrics::page(&engine.metrics().await?, format);
    Ok(([(CONTENT_TYPE, format.content_type())], page))
}

/// Get this document
#[utoipa::path(get, path = "/v1/openapi.json", responses((status = 200, body = Value)))]
async fn get_openapi(_: NoQuery) -> Answer<impl IntoResponse> {
    Ok(([(CONTENT_TYPE, "application/json")], openapi::COMMITTED))
}

/// Get the desired state
#[utoipa::path(
    get, path = "/v1/state", params(IfNoneMatch),
    responses(
        (status = 200, body = DesiredState),
        (status = 304, description = "The version is one of If-None-Match."),
    )
)]
async fn get_state(_: NoQuery, engine: Engine, headers: HeaderMap) -> Answer<impl IntoResponse> {
    let desired = engine.desired().await?;
    if is_known(&headers, &desired.version)? {
        return Ok(with_tag(&desired, StatusCode::NOT_MODIFIED));
    }
    Ok(with_tag(&desired, Json(&desired.state)))
}

/// List warnings about the desired state
///
/// Valid configuration that is probably a mistake: one MAC address at two ports of a segment,
/// rules that never decide anything, unattached access lists.
#[utoipa::path(get, path = "/v1/warnings", responses((status = 200, body = WarningsDocument)))]
async fn list_warnings(_: NoQuery, engine: Engine) -> Answer<impl IntoResponse> {
    let desired = engine.desired().await?;
    let warnings = desired::warnings(&desired.state);
    Ok(with_tag(&desired, Json(WarningsDocument { warnings })))
}

/// Replace the desired state
///
/// Missing fields get their defaults. The change is made as a whole or not at all; ports and
/// segments without a difference are not disturbed.
#[utoipa::path(
    put, path = "/v1/state", params(ChangeOptions, IfMatch), request_body = DesiredState,
    responses((status = 200, body = DesiredState))
)]
async fn replace_state(
    request: ChangeRequest,
    Document(state): Document<DesiredState, STATE_MAX>,
) -> Answer<impl IntoResponse> {
    let desired = request.apply(Change::State(Box::new(state))).await?;
    Ok(with_tag(&desired, Json(&desired.state)))
}

/// Update the desired state (JSON merge patch)
///
/// A JSON merge patch (RFC 7396) of the document that `GET` returns: arrays are replaced as a
/// whole.
#[utoipa::path(
    patch, path = "/v1/state", params(ChangeOptions, IfMatch), request_body = Value,
    responses((status = 200, body = DesiredState))
)]
async fn patch_state(
    request: ChangeRequest,
    Document(patch): Document<Patch<DesiredState>, STATE_MAX>,
) -> Answer<impl IntoResponse> {
    let change = Change::PatchState(patch.into_value());
    let desired = request.apply(change).await?;
    Ok(with_tag(&desired, Json(&desired.state)))
}

/// Get the switch's configuration
#[utoipa::path(get, path = "/v1/switch", responses((status = 200, body = SwitchSpec)))]
async fn get_switch(_: NoQuery, engine: Engine) -> Answer<impl IntoResponse> {
    let desired = engine.desired().await?;
    Ok(with_tag(&desired, Json(&desired.state.switch)))
}

/// Update the switch's configuration (JSON merge patch)
///
/// Only the name can change while Lasthop runs; other changes get a 409.
#[utoipa::path(
    patch, path = "/v1/switch", params(ChangeOptions, IfMatch), request_body = Value,
    responses((status = 200, body = SwitchSpec))
)]
async fn patch_switch(
    request: ChangeRequest,
    Document(patch): Document<Patch<SwitchSpec>>,
) -> Answer<impl IntoResponse> {
    let change = Change::PatchSwitch(patch.into_value());
    let desired = request.apply(change).await?;
    Ok(with_tag(&desired, Json(&desired.state.switch)))
}

/// List segments
#[utoipa::path(get, path = "/v1/segments", responses((status = 200, body = SegmentsDocument)))]
async fn list_segments(_: NoQuery, engine: Engine) -> Answer<impl IntoResponse> {
    let desired = engine.desired().await?;
    let segments = desired::segments(&desired.state);
    Ok(with_tag(&desired, Json(SegmentsDocument { segments })))
}

/// Get a segment
#[utoipa::path(
    get, path = "/v1/segments/{name}", params(NamePath),
    responses((status = 200, body = SegmentStatus))
)]
async fn get_segment(
    _: NoQuery,
    engine: Engine,
    PathName(name): PathName,
) -> Answer<impl IntoResponse> {
    let desired = engine.desired().await?;
    Ok(with_tag(&desired, Json(segment(&desired, &name)?)))
}

/// Add a segment
#[utoipa::path(
    post, path = "/v1/segments", params(ChangeOptions, IfMatch), request_body = SegmentSpec,
    responses((status = 201, body = SegmentStatus))
)]
async fn add_segment(
    request: ChangeRequest,
    Document(spec): Document<SegmentSpec>,
) -> Answer<impl IntoResponse> {
    let name = spec.name.clone();
    let desired = request.apply_one(Change::AddSegment(spec)).await?;
    let location = [(LOCATION, format!("/v1/segments/{name}"))];
    let created = Json(segment(&desired, &name)?);
    let created = (StatusCode::CREATED, location, created);
    Ok(with_tag(&desired, created))
}

/// Update a segment
#[utoipa::path(
    patch, path = "/v1/segments/{name}", params(NamePath, ChangeOptions, IfMatch),
    request_body = SegmentPatch, responses((status = 200, body = SegmentStatus))
)]
async fn change_segment(
    request: ChangeRequest,
    PathName(name): PathName,
    Document(patch): Document<SegmentPatch>,
) -> Answer<impl IntoResponse> {
    let change = Change::SetSegment(name.clone(), patch.into_value());
    let desired = request.apply_one(change).await?;
    Ok(with_tag(&desired, Json(segment(&desired, &name)?)))
}

/// Remove a segment; no port may be in it
#[utoipa::path(
    delete, path = "/v1/segments/{name}", params(NamePath, ChangeOptions, IfMatch),
    responses((status = 204))
)]
async fn remove_segment(
    request: ChangeRequest,
    PathName(name): PathName,
) -> Answer<impl IntoResponse> {
    request.remove(Change::RemoveSegment(name)).await
}

/// List ports
#[utoipa::path(get, path = "/v1/ports", responses((status = 200, body = PortsDocument)))]
async fn list_ports(_: NoQuery, engine: Engine) -> Answer<impl IntoResponse> {
    Ok(Json(engine.ports().await?))
}

/// Get a port
#[utoipa::path(
    get, path = "/v1/ports/{name}", params(NamePath), responses((status = 200, body = PortStatus))
)]
async fn get_port(
    _: NoQuery,
    engine: Engine,
    PathName(name): PathName,
) -> Answer<impl IntoResponse> {
    let mut ports = engine.ports().await?.ports.into_iter();
    let port = ports.find(|port| port.name == name);
    Ok(Json(port.ok_or_else(|| Problem::no_such("port", &name))?))
}

/// Add a port
#[utoipa::path(
    post, path = "/v1/ports", params(ChangeOptions, IfMatch), request_body = PortSpec,
    responses((status = 201, body = PortStatus))
)]
async fn add_port(
    request: ChangeRequest,
    Document(port): Document<PortSpec>,
) -> Answer<impl IntoResponse> {
    let location = [(LOCATION, format!("/v1/ports/{}", port.name))];
    let desired = request.apply_one(Change::AddPort(Box::new(port))).await?;
    let created = (StatusCode::CREATED, location, Json(&desired.port));
    Ok(with_tag(&desired, created))
}

/// Update a port
#[utoipa::path(
    patch, path = "/v1/ports/{name}", params(NamePath, ChangeOptions, IfMatch),
    request_body = PortPatch, responses((status = 200, body = PortStatus))
)]
async fn change_port(
    request: ChangeRequest,
    PathName(name): PathName,
    Document(patch): Document<PortPatch>,
) -> Answer<impl IntoResponse> {
    let change = Change::SetPort(name, patch.into_value());
    let desired = request.apply_one(change).await?;
    Ok(with_tag(&desired, Json(&desired.port)))
}

/// Remove a port; its guest is disconnected
#[utoipa::path(
    delete, path = "/v1/ports/{name}", params(NamePath, ChangeOptions, IfMatch),
    responses((status = 204))
)]
async fn remove_port(
    request: ChangeRequest,
    PathName(name): PathName,
) -> Answer<impl IntoResponse> {
    request.remove(Change::RemovePort(name)).await
}

/// List entries of an uplink's prefilter
///
/// Flows of denied frames that end before the switch.
#[utoipa::path(
    get, path = "/v1/ports/{name}/prefilter", params(NamePath),
    responses((status = 200, body = PrefilterDocument))
)]
async fn get_prefilter(
    _: NoQuery,
    engine: Engine,
    PathName(name): PathName,
) -> Answer<impl IntoResponse> {
    Ok(Json(engine.prefilter(name).await?))
}

/// List flows of a user port
///
/// Connections and UDP mappings of its guests, as its driver process has them.
#[utoipa::path(
    get, path = "/v1/ports/{name}/user/flows", params(NamePath, UserFlowsFilter),
    responses((status = 200, body = UserFlowsDocument))
)]
async fn list_user_flows(
    engine: Engine,
    PathName(name): PathName,
    Filter(filter): Filter<UserFlowsFilter>,
) -> Answer<impl IntoResponse> {
    Ok(Json(engine.user_flows(name, filter).await?))
}

/// List DHCP leases of a user port
#[utoipa::path(
    get, path = "/v1/ports/{name}/user/leases", params(NamePath),
    responses((status = 200, body = UserLeasesDocument))
)]
async fn list_user_leases(
    _: NoQuery,
    engine: Engine,
    PathName(name): PathName,
) -> Answer<impl IntoResponse> {
    Ok(Json(engine.user_leases(name).await?))
}

/// List forwards of a user port
///
/// With their states: whether connections reach the guest, and else why not.
#[utoipa::path(
    get, path = "/v1/ports/{name}/user/forwards", params(NamePath),
    responses((status = 200, body = UserForwardsDocument))
)]
async fn list_user_forwards(
    _: NoQuery,
    engine: Engine,
    PathName(name): PathName,
) -> Answer<impl IntoResponse> {
    Ok(Json(engine.user_forwards(name).await?))
}

/// Trace a frame
///
/// Predicts the path of a frame and gives the reason of each step. Nothing is sent, learned or
/// counted.
#[utoipa::path(
    post, path = "/v1/trace", request_body = TraceRequest,
    responses((status = 200, body = TraceDocument))
)]
async fn trace_frame(
    _: NoQuery,
    engine: Engine,
    Document(request): Document<TraceRequest>,
) -> Answer<impl IntoResponse> {
    Ok(Json(engine.trace(request).await?))
}

/// Purge cached flows
///
/// Removes all flows, or those from and to a port. They are decided again when their next
/// frames arrive; no frame is lost.
#[utoipa::path(delete, path = "/v1/flows", params(PurgeFilter), responses((status = 204)))]
async fn purge_flows(
    Client(engine): Client,
    Filter(filter): Filter<PurgeFilter>,
) -> Answer<impl IntoResponse> {
    engine.purge_flows(filter.port).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Show the busiest cached flows
#[utoipa::path(
    get, path = "/v1/flows", params(FlowsFilter), responses((status = 200, body = FlowsDocument))
)]
async fn list_flows(
    engine: Engine,
    Filter(filter): Filter<FlowsFilter>,
) -> Answer<impl IntoResponse> {
    Ok(Json(engine.flows(filter).await?))
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
fn segment(desired: &DesiredSnapshot, name: &str) -> Result<SegmentStatus, Problem> {
    let mut all = desired::segments(&desired.state).into_iter();
    let segment = all.find(|segment| segment.name == name);
    segment.ok_or_else(|| Problem::no_such("segment", name))
}

/// Adds the ETag of the desired state to a response, or replaces it by the requested differences.
pub(super) fn with_tag(desired: &DesiredSnapshot, answer: impl IntoResponse) -> Response {
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
