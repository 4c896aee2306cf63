//! Handlers of most paths and methods; the table is in the parent module.

use api::v1::{
    ChangeOptions, ChangesDocument, DesiredState, FlowsDocument, FlowsFilter, PipesDocument,
    PortPatch, PortSpec, PortStats, PortStatus, PortsDocument, Problem, ProblemKind, PurgeFilter,
    SegmentPatch, SegmentSpec, SegmentStatus, SegmentsDocument, StatsDocument, StatusDocument,
    SwitchSpec, TraceDocument, TraceRequest, UserFlowsDocument, UserFlowsFilter,
    UserLeasesDocument, WarningsDocument,
};
use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::{ACCEPT, CONTENT_TYPE, ETAG, LOCATION};
use axum::response::{IntoResponse, Response};
use serde_json::Value;

use super::endpoints::{endpoint, endpoints};
use super::extractors::{ChangeRequest, Client, Document, Filter, PathName};
use super::requests::{Failure, is_known};
use super::{STATE_MAX, openapi};
use crate::command::{Desired, EngineHandle};
use crate::metrics::{self, Format};
use config::desired::{self, Change};

endpoints! {
    /// Get status
    get "/v1/status" => get_status(engine: Engine) -> 200 StatusDocument {
        Ok(Json(engine.status().await?))
    }

    /// List pipes, with their connected ends
    get "/v1/pipes" => list_pipes(engine: Engine) -> 200 PipesDocument {
        Ok(Json(engine.pipes().await?))
    }

    /// Get traffic and drops
    get "/v1/stats" => get_stats(engine: Engine) -> 200 StatsDocument {
        Ok(Json(engine.stats().await?))
    }

    /// Get traffic and drops of a port
    get "/v1/ports/{name}/stats" => get_port_stats(engine: Engine, port: Name) -> 200 PortStats {
        let mut all = engine.stats().await?.ports.into_iter();
        let found = all.find(|one| one.name == port);
        Ok(Json(found.ok_or_else(|| Problem::no_such("port", &port))?))
    }

    /// Get metrics for Prometheus
    ///
    /// In text format 0.0.4, or in OpenMetrics 1.0 for clients that accept it.
    get "/metrics" => get_metrics(engine: Engine, headers: Headers)
        -> ((status = 200, body = String, content_type = "text/plain")) {
        let accept = headers.get(ACCEPT).and_then(|value| value.to_str().ok());
        let format = Format::accepted(accept.unwrap_or_default());
        let page = metrics::page(&engine.metrics().await?, format);
        Ok(([(CONTENT_TYPE, format.content_type())], page))
    }

    /// Get this document
    get "/v1/openapi.json" => get_openapi() -> 200 Value {
        Ok(([(CONTENT_TYPE, "application/json")], openapi::COMMITTED))
    }

    /// Get the desired state
    get "/v1/state" => get_state(engine: Engine, headers: Headers<IfNoneMatch>) -> (
        (status = 200, body = DesiredState),
        (status = 304, description = "The version is one of If-None-Match."),
    ) {
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
    get "/v1/warnings" => list_warnings(engine: Engine) -> 200 WarningsDocument {
        let desired = engine.desired().await?;
        let warnings = desired::warnings(&desired.state);
        Ok(with_tag(&desired, Json(WarningsDocument { warnings })))
    }

    /// Replace the desired state
    ///
    /// Missing fields get their defaults. The change is made as a whole or not at all; ports and
    /// segments without a difference are not disturbed.
    put "/v1/state" =>
        replace_state(request: Change, state: Body<DesiredState, STATE_MAX>) -> 200 DesiredState {
        let desired = request.apply(Change::State(Box::new(state))).await?;
        Ok(with_tag(&desired, Json(&desired.state)))
    }

    /// Update the desired state (JSON merge patch)
    ///
    /// A JSON merge patch (RFC 7396) of the document that `GET` returns: arrays are replaced as a
    /// whole.
    patch "/v1/state" =>
        patch_state(request: Change, patch: Body<Value, STATE_MAX>) -> 200 DesiredState {
        let desired = request.apply(Change::PatchState(patch)).await?;
        Ok(with_tag(&desired, Json(&desired.state)))
    }

    /// Get the switch's configuration
    get "/v1/switch" => get_switch(engine: Engine) -> 200 SwitchSpec {
        let desired = engine.desired().await?;
        Ok(with_tag(&desired, Json(&desired.state.switch)))
    }

    /// Update the switch's configuration (JSON merge patch)
    ///
    /// Only the name can change while Lasthop runs; other changes get a 409.
    patch "/v1/switch" => patch_switch(request: Change, patch: Body<Value>) -> 200 SwitchSpec {
        let desired = request.apply(Change::PatchSwitch(patch)).await?;
        Ok(with_tag(&desired, Json(&desired.state.switch)))
    }

    /// List segments
    get "/v1/segments" => list_segments(engine: Engine) -> 200 SegmentsDocument {
        let desired = engine.desired().await?;
        let segments = desired::segments(&desired.state);
        Ok(with_tag(&desired, Json(SegmentsDocument { segments })))
    }

    /// Get a segment
    get "/v1/segments/{name}" => get_segment(engine: Engine, name: Name) -> 200 SegmentStatus {
        let desired = engine.desired().await?;
        Ok(with_tag(&desired, Json(segment(&desired, &name)?)))
    }

    /// Add a segment
    post "/v1/segments" =>
        add_segment(request: Change, spec: Body<SegmentSpec>) -> 201 SegmentStatus {
        let name = spec.name.clone();
        let desired = request.apply_one(Change::AddSegment(spec)).await?;
        let location = [(LOCATION, format!("/v1/segments/{name}"))];
        let created = Json(segment(&desired, &name)?);
        let created = (StatusCode::CREATED, location, created);
        Ok(with_tag(&desired, created))
    }

    /// Update a segment
    patch "/v1/segments/{name}" =>
        change_segment(request: Change, name: Name, patch: Body<SegmentPatch>)
            -> 200 SegmentStatus {
        let change = Change::SetSegment(name.clone(), patch);
        let desired = request.apply_one(change).await?;
        Ok(with_tag(&desired, Json(segment(&desired, &name)?)))
    }

    /// Remove a segment; no port may be in it
    delete "/v1/segments/{name}" => remove_segment(request: Change, name: Name) -> 204 {
        request.remove(Change::RemoveSegment(name)).await
    }

    /// List ports
    get "/v1/ports" => list_ports(engine: Engine) -> 200 PortsDocument {
        Ok(Json(engine.ports().await?))
    }

    /// Get a port
    get "/v1/ports/{name}" => get_port(engine: Engine, name: Name) -> 200 PortStatus {
        let mut ports = engine.ports().await?.ports.into_iter();
        let port = ports.find(|port| port.name == name);
        Ok(Json(port.ok_or_else(|| Problem::no_such("port", &name))?))
    }

    /// Add a port
    post "/v1/ports" => add_port(request: Change, port: Body<PortSpec>) -> 201 PortStatus {
        let location = [(LOCATION, format!("/v1/ports/{}", port.name))];
        let desired = request.apply_one(Change::AddPort(Box::new(port))).await?;
        let created = (StatusCode::CREATED, location, Json(&desired.port));
        Ok(with_tag(&desired, created))
    }

    /// Update a port
    patch "/v1/ports/{name}" =>
        change_port(request: Change, name: Name, patch: Body<PortPatch>) -> 200 PortStatus {
        let change = Change::SetPort(name, Box::new(patch));
        let desired = request.apply_one(change).await?;
        Ok(with_tag(&desired, Json(&desired.port)))
    }

    /// Remove a port; its guest is disconnected
    delete "/v1/ports/{name}" => remove_port(request: Change, name: Name) -> 204 {
        request.remove(Change::RemovePort(name)).await
    }

    /// List flows of a user port
    ///
    /// Connections and UDP mappings of its guests, as its driver process has them.
    get "/v1/ports/{name}/user/flows" =>
        list_user_flows(engine: Engine, name: Name, filter: Query<UserFlowsFilter>)
            -> 200 UserFlowsDocument {
        Ok(Json(engine.user_flows(name, filter).await?))
    }

    /// List DHCP leases of a user port
    get "/v1/ports/{name}/user/leases" =>
        list_user_leases(engine: Engine, name: Name) -> 200 UserLeasesDocument {
        Ok(Json(engine.user_leases(name).await?))
    }

    /// Trace a frame
    ///
    /// Predicts the path of a frame and gives the reason of each step. Nothing is sent, learned or
    /// counted.
    post "/v1/trace" =>
        trace_frame(engine: Engine, request: Body<TraceRequest>) -> 200 TraceDocument {
        Ok(Json(engine.trace(request).await?))
    }

    /// Purge cached flows
    ///
    /// Removes all flows, or those from and to a port. They are decided again when their next
    /// frames arrive; no frame is lost.
    delete "/v1/flows" => purge_flows(engine: Client, filter: Query<PurgeFilter>) -> 204 {
        engine.purge_flows(filter.port).await?;
        Ok(StatusCode::NO_CONTENT)
    }

    /// Show the busiest cached flows
    get "/v1/flows" =>
        list_flows(engine: Engine, filter: Query<FlowsFilter>) -> 200 FlowsDocument {
        Ok(Json(engine.flows(filter).await?))
    }
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
