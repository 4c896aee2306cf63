//! Handlers of traces and cached flows.

use api::v1::{FlowsDocument, FlowsFilter, PurgeFilter, TraceDocument, TraceRequest};
use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;

use crate::command::EngineHandle;
use crate::server::extractors::{Client, Document, Filter};
use crate::server::requests::HandlerResult;

/// Trace a frame
///
/// Predicts the path of a frame and gives the reason of each step. Nothing is sent, learned or
/// counted.
#[utoipa::path(
    post,
    operation_id = "trace_frame",
    path = "/v1/trace",
    request_body = TraceRequest,
    responses((status = 200, body = TraceDocument)),
)]
pub(in crate::server) async fn trace(
    State(engine): State<EngineHandle>,
    Document(request): Document<TraceRequest>,
) -> HandlerResult<Json<TraceDocument>> {
    Ok(Json(engine.trace(request).await?))
}

/// Purge cached flows
///
/// Removes all flows, or those from and to a port. They are decided again when their next frames
/// arrive; no frame is lost.
#[utoipa::path(
    delete,
    operation_id = "purge_flows",
    path = "/v1/flows",
    params(PurgeFilter),
    responses((status = 204)),
)]
pub(in crate::server) async fn purge(
    Client(engine): Client,
    Filter(filter): Filter<PurgeFilter>,
) -> HandlerResult<StatusCode> {
    engine.purge_flows(filter.port).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Show the busiest cached flows
#[utoipa::path(
    get,
    operation_id = "list_flows",
    path = "/v1/flows",
    params(FlowsFilter),
    responses((status = 200, body = FlowsDocument)),
)]
pub(in crate::server) async fn flows(
    State(engine): State<EngineHandle>,
    Filter(filter): Filter<FlowsFilter>,
) -> HandlerResult<Json<FlowsDocument>> {
    Ok(Json(engine.flows(filter).await?))
}
