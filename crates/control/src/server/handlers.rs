//! What is done for each path and method; the table is in the module above.

pub(super) mod trace;

use api::v1::{
    ChangeOptions, ChangesDocument, PortPatch, PortSpec, PortStats, PortStatus, PortsDocument,
    Problem, ProblemKind, SegmentPatch, SegmentSpec, SegmentStatus, SegmentsDocument,
    StatsDocument, StatusDocument, SwitchSpec, WantedState, WarningsDocument,
};
use axum::Json;
use axum::body::Bytes;
use axum::extract::rejection::{BytesRejection, PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::http::header::{ACCEPT, CONTENT_TYPE, ETAG, LOCATION};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};

use super::openapi;
use super::requests::{Client, Done, Failure, condition, document, is_known, misspelt, name};
use crate::command::{EngineHandle, Request, Wanted};
use crate::metrics::{self, Format};
use crate::wanted::{self, Change, Difference};

/// A name in a path, or why there is none.
pub(super) type Name = Result<Path<String>, PathRejection>;
/// A body, or why there is none.
pub(super) type Body = Result<Bytes, BytesRejection>;
/// The options of a change, or why there are none.
pub(super) type Options = Result<Query<ChangeOptions>, QueryRejection>;

/// What everything is doing
#[utoipa::path(get, operation_id = "get_status", path = "/v1/status", responses((status = 200, body = StatusDocument)))]
pub(super) async fn status(State(engine): State<EngineHandle>) -> Done<Json<StatusDocument>> {
    Ok(Json(engine.status().await?))
}

/// Traffic and drops
#[utoipa::path(get, operation_id = "get_stats", path = "/v1/stats", responses((status = 200, body = StatsDocument)))]
pub(super) async fn stats(State(engine): State<EngineHandle>) -> Done<Json<StatsDocument>> {
    Ok(Json(engine.stats().await?))
}

/// Traffic and drops of one port
#[utoipa::path(get, operation_id = "get_port_stats", path = "/v1/ports/{name}/stats", params(NamePath), responses((status = 200, body = PortStats)))]
pub(super) async fn port_stats(
    State(engine): State<EngineHandle>,
    port: Name,
) -> Done<Json<PortStats>> {
    let port = name(port)?;
    let mut all = engine.stats().await?.ports.into_iter();
    let found = all.find(|one| one.name == port);
    Ok(Json(found.ok_or_else(|| Problem::no_such_port(&port))?))
}

/// Metrics for Prometheus
///
/// In its text format 0.0.4, or in OpenMetrics 1.0 for those who accept that.
#[utoipa::path(get, operation_id = "get_metrics", path = "/metrics", responses((status = 200, body = String, content_type = "text/plain")))]
pub(super) async fn metrics(
    State(engine): State<EngineHandle>,
    headers: HeaderMap,
) -> Done<impl IntoResponse> {
    let accept = headers.get(ACCEPT).and_then(|value| value.to_str().ok());
    let format = Format::accepted(accept.unwrap_or_default());
    let page = metrics::page(&engine.metrics().await?, format);
    Ok(([(CONTENT_TYPE, format.content_type())], page))
}

/// This document
#[utoipa::path(get, operation_id = "get_openapi", path = "/v1/openapi.json", responses((status = 200, body = Value)))]
pub(super) async fn openapi() -> impl IntoResponse {
    ([(CONTENT_TYPE, "application/json")], openapi::COMMITTED)
}

/// Everything that is wanted
#[utoipa::path(get, operation_id = "get_state", path = "/v1/state", params(IfNoneMatch), responses(
    (status = 200, body = WantedState),
    (status = 304, description = "It is the one of If-None-Match.")
))]
pub(super) async fn wanted(
    State(engine): State<EngineHandle>,
    headers: HeaderMap,
) -> Done<Response> {
    let wanted = engine.wanted().await?;
    if is_known(&headers, &wanted.version)? {
        return Ok(with_tag(&wanted, StatusCode::NOT_MODIFIED));
    }
    Ok(with_tag(&wanted, Json(&wanted.state)))
}

/// What is wanted, is right, and may not be meant
///
/// One MAC address at two ports of a segment, rules that never decide anything, access lists that are nobody's.
#[utoipa::path(get, operation_id = "list_warnings", path = "/v1/warnings", responses((status = 200, body = WarningsDocument)))]
pub(super) async fn warnings(State(engine): State<EngineHandle>) -> Done<Response> {
    let wanted = engine.wanted().await?;
    let warnings = wanted::warnings(&wanted.state);
    Ok(with_tag(&wanted, Json(WarningsDocument { warnings })))
}

/// Want all this and nothing else
///
/// Fields that are not there have their defaults. Done as a whole or not at all; ports and segments that stay as they are notice
/// nothing.
#[utoipa::path(put, operation_id = "replace_state", path = "/v1/state", params(ChangeOptions, IfMatch), request_body = WantedState, responses(
    (status = 200, body = WantedState)
))]
pub(super) async fn put_state(
    Client(engine): Client,
    options: Options,
    headers: HeaderMap,
    body: Body,
) -> Done<Response> {
    let change = Change::State(Box::new(document(&headers, body)?));
    let wanted = order(&engine, &headers, options, change).await?;
    Ok(with_tag(&wanted, Json(&wanted.state)))
}

/// Want something else
///
/// A JSON merge patch (RFC 7396) of what `GET` gives: lists are replaced as a whole.
#[utoipa::path(patch, path = "/v1/state", params(ChangeOptions, IfMatch), request_body = Value, responses(
    (status = 200, body = WantedState)
))]
pub(super) async fn patch_state(
    Client(engine): Client,
    options: Options,
    headers: HeaderMap,
    body: Body,
) -> Done<Response> {
    let change = Change::PatchState(document(&headers, body)?);
    let wanted = order(&engine, &headers, options, change).await?;
    Ok(with_tag(&wanted, Json(&wanted.state)))
}

/// What is wanted of the switch
#[utoipa::path(get, operation_id = "get_switch", path = "/v1/switch", responses((status = 200, body = SwitchSpec)))]
pub(super) async fn switch(State(engine): State<EngineHandle>) -> Done<Response> {
    let wanted = engine.wanted().await?;
    Ok(with_tag(&wanted, Json(&wanted.state.switch)))
}

/// Want something else of the switch
///
/// A JSON merge patch. Only the name can change while Lasthop runs; other changes are answered with 409.
#[utoipa::path(patch, path = "/v1/switch", params(ChangeOptions, IfMatch), request_body = Value, responses(
    (status = 200, body = SwitchSpec)
))]
pub(super) async fn patch_switch(
    Client(engine): Client,
    options: Options,
    headers: HeaderMap,
    body: Body,
) -> Done<Response> {
    let change = Change::PatchSwitch(document(&headers, body)?);
    let wanted = order(&engine, &headers, options, change).await?;
    Ok(with_tag(&wanted, Json(&wanted.state.switch)))
}

/// All segments
#[utoipa::path(get, operation_id = "list_segments", path = "/v1/segments", responses((status = 200, body = SegmentsDocument)))]
pub(super) async fn segments(State(engine): State<EngineHandle>) -> Done<Response> {
    let wanted = engine.wanted().await?;
    let segments = wanted::segments(&wanted.state);
    Ok(with_tag(&wanted, Json(SegmentsDocument { segments })))
}

/// One segment
#[utoipa::path(get, operation_id = "get_segment", path = "/v1/segments/{name}", params(NamePath), responses((status = 200, body = SegmentStatus)))]
pub(super) async fn show_segment(State(engine): State<EngineHandle>, path: Name) -> Done<Response> {
    let name = name(path)?;
    let wanted = engine.wanted().await?;
    let segment = segment(&wanted, &name)?;
    Ok(with_tag(&wanted, Json(segment)))
}

/// Add a segment
#[utoipa::path(post, path = "/v1/segments", params(ChangeOptions, IfMatch), request_body = SegmentSpec, responses(
    (status = 201, body = SegmentStatus)
))]
pub(super) async fn add_segment(
    Client(engine): Client,
    options: Options,
    headers: HeaderMap,
    body: Body,
) -> Done<Response> {
    let spec: SegmentSpec = document(&headers, body)?;
    let name = spec.name.clone();
    let wanted = order_one(&engine, &headers, options, Change::AddSegment(spec)).await?;
    let location = [(LOCATION, format!("/v1/segments/{name}"))];
    let created = (
        StatusCode::CREATED,
        location,
        Json(segment(&wanted, &name)?),
    );
    Ok(with_tag(&wanted, created))
}

/// Change a segment
#[utoipa::path(patch, operation_id = "change_segment", path = "/v1/segments/{name}", params(NamePath, ChangeOptions, IfMatch), request_body = SegmentPatch, responses(
    (status = 200, body = SegmentStatus)
))]
pub(super) async fn set_segment(
    Client(engine): Client,
    path: Name,
    options: Options,
    headers: HeaderMap,
    body: Body,
) -> Done<Response> {
    let patch: SegmentPatch = document(&headers, body)?;
    let name = name(path)?;
    let change = Change::SetSegment(name.clone(), patch);
    let wanted = order_one(&engine, &headers, options, change).await?;
    let segment = segment(&wanted, &name)?;
    Ok(with_tag(&wanted, Json(segment)))
}

/// Remove a segment; no port may be in it
#[utoipa::path(delete, path = "/v1/segments/{name}", params(NamePath, ChangeOptions, IfMatch), responses((status = 204)))]
pub(super) async fn remove_segment(
    Client(engine): Client,
    path: Name,
    options: Options,
    headers: HeaderMap,
) -> Done<Response> {
    let change = Change::RemoveSegment(name(path)?);
    let wanted = order_one(&engine, &headers, options, change).await?;
    Ok(with_tag(&wanted, StatusCode::NO_CONTENT))
}

/// All ports
#[utoipa::path(get, operation_id = "list_ports", path = "/v1/ports", responses((status = 200, body = PortsDocument)))]
pub(super) async fn ports(State(engine): State<EngineHandle>) -> Done<Json<PortsDocument>> {
    Ok(Json(engine.ports().await?))
}

/// One port
#[utoipa::path(get, operation_id = "get_port", path = "/v1/ports/{name}", params(NamePath), responses((status = 200, body = PortStatus)))]
pub(super) async fn show_port(
    State(engine): State<EngineHandle>,
    path: Name,
) -> Done<Json<PortStatus>> {
    let name = name(path)?;
    let mut ports = engine.ports().await?.ports.into_iter();
    let port = ports.find(|port| port.name == name);
    Ok(Json(port.ok_or_else(|| Problem::no_such_port(&name))?))
}

/// Add a port
#[utoipa::path(post, path = "/v1/ports", params(ChangeOptions, IfMatch), request_body = PortSpec, responses(
    (status = 201, body = PortStatus)
))]
pub(super) async fn add_port(
    Client(engine): Client,
    options: Options,
    headers: HeaderMap,
    body: Body,
) -> Done<Response> {
    let port: PortSpec = document(&headers, body)?;
    let location = [(LOCATION, format!("/v1/ports/{}", port.name))];
    let wanted = order_one(&engine, &headers, options, Change::AddPort(Box::new(port))).await?;
    let created = (StatusCode::CREATED, location, Json(&wanted.port));
    Ok(with_tag(&wanted, created))
}

/// Change a port
#[utoipa::path(patch, operation_id = "change_port", path = "/v1/ports/{name}", params(NamePath, ChangeOptions, IfMatch), request_body = PortPatch, responses(
    (status = 200, body = PortStatus)
))]
pub(super) async fn set_port(
    Client(engine): Client,
    path: Name,
    options: Options,
    headers: HeaderMap,
    body: Body,
) -> Done<Response> {
    let patch: PortPatch = document(&headers, body)?;
    let change = Change::SetPort(name(path)?, patch);
    let wanted = order_one(&engine, &headers, options, change).await?;
    Ok(with_tag(&wanted, Json(&wanted.port)))
}

/// Remove a port; its guest loses the connection
#[utoipa::path(delete, path = "/v1/ports/{name}", params(NamePath, ChangeOptions, IfMatch), responses((status = 204)))]
pub(super) async fn remove_port(
    Client(engine): Client,
    path: Name,
    options: Options,
    headers: HeaderMap,
) -> Done<Response> {
    let change = Change::RemovePort(name(path)?);
    let wanted = order_one(&engine, &headers, options, change).await?;
    Ok(with_tag(&wanted, StatusCode::NO_CONTENT))
}

pub(super) async fn unknown_path() -> Failure {
    Problem::new(ProblemKind::NotFound, "there is nothing at this path").into()
}

pub(super) async fn unknown_method() -> Failure {
    let detail = "this path does not know this method";
    Problem::new(ProblemKind::MethodNotAllowed, detail).into()
}

/// The end of a path.
#[derive(utoipa::IntoParams)]
#[into_params(parameter_in = Path)]
#[expect(dead_code, reason = "it is there to be described")]
pub(super) struct NamePath {
    /// The name.
    name: String,
}

/// The header with which a change is done only if nothing else has changed.
#[derive(utoipa::IntoParams)]
#[into_params(parameter_in = Header)]
#[expect(dead_code, reason = "it is there to be described")]
pub(super) struct IfMatch {
    /// ETags of everything that is wanted, of `GET /v1/state` or of the last change: the change is done only if it still is one of
    /// these, and else answered with 412.
    #[param(rename = "If-Match", required = false)]
    if_match: Option<String>,
}

/// The header with which an answer comes only if it is not known already.
#[derive(utoipa::IntoParams)]
#[into_params(parameter_in = Header)]
#[expect(dead_code, reason = "it is there to be described")]
pub(super) struct IfNoneMatch {
    /// ETags of what the client has: where what is wanted is still one of these, the answer is 304, without a body.
    #[param(rename = "If-None-Match", required = false)]
    if_none_match: Option<String>,
}

/// Has a change done, on the client's condition, or looks at it; and says what it alters, where the client asks for that.
pub(super) async fn order(
    engine: &EngineHandle,
    headers: &HeaderMap,
    options: Options,
    change: Change,
) -> Result<Wanted, Failure> {
    let request = Request {
        change,
        condition: condition(headers)?,
    };
    let options = query(options)?;
    let (before, mut wanted) = match options.dry_run {
        true => engine.look_at(&request).await?,
        false => engine.change(request).await?,
    };
    if options.changes {
        wanted.changes = Some(Difference::between(&before, &wanted.state).changes);
    }
    Ok(wanted)
}

/// The same for a change of which nothing else can be said when it is only looked at.
pub(super) async fn order_one(
    engine: &EngineHandle,
    headers: &HeaderMap,
    options: Options,
    change: Change,
) -> Result<Wanted, Failure> {
    let mut options = query(options)?;
    options.changes |= options.dry_run;
    order(engine, headers, Ok(Query(options)), change).await
}

/// The query of a request.
pub(super) fn query<T>(query: Result<Query<T>, QueryRejection>) -> Result<T, Problem> {
    let Query(query) = query.map_err(|error| misspelt(&error.body_text()))?;
    Ok(query)
}

/// A segment of what is wanted.
fn segment(wanted: &Wanted, name: &str) -> Result<SegmentStatus, Problem> {
    let mut all = wanted::segments(&wanted.state).into_iter();
    let segment = all.find(|segment| segment.name == name);
    segment.ok_or_else(|| Problem::no_such_segment(name))
}

/// An answer that says of which wanted state it is; or what was changed, where that is asked for.
pub(super) fn with_tag(wanted: &Wanted, answer: impl IntoResponse) -> Response {
    let tag = [(ETAG, format!("\"{}\"", wanted.version))];
    let Some(changes) = &wanted.changes else {
        return (tag, answer).into_response();
    };
    let document = ChangesDocument {
        wanted: wanted.state.clone(),
        changes: changes.clone(),
    };
    (tag, Json(document)).into_response()
}
