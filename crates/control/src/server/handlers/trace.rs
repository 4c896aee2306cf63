//! Questions about single frames and flows.

use api::v1::{FlowsDocument, FlowsFilter, PurgeFilter, TraceDocument, TraceRequest};
use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::{HeaderMap, StatusCode};

use super::{Body, query};
use crate::command::EngineHandle;
use crate::server::requests::{Client, Done, document};

/// What would become of a frame, and why
///
/// Nothing is sent, learned or counted.
#[utoipa::path(post, operation_id = "trace_frame", path = "/v1/trace", request_body = TraceRequest, responses((status = 200, body = TraceDocument)))]
pub(in crate::server) async fn trace(
    State(engine): State<EngineHandle>,
    headers: HeaderMap,
    body: Body,
) -> Done<Json<TraceDocument>> {
    let request: TraceRequest = document(&headers, body)?;
    Ok(Json(engine.trace(request).await?))
}

/// Forget the cached flows
///
/// All, or those from and to a port. They are decided anew when their next frames come, and nothing is lost.
#[utoipa::path(delete, operation_id = "purge_flows", path = "/v1/flows", params(PurgeFilter), responses((status = 204)))]
pub(in crate::server) async fn purge(
    Client(engine): Client,
    filter: Result<Query<PurgeFilter>, QueryRejection>,
) -> Done<StatusCode> {
    engine.purge_flows(query(filter)?.port).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// The busiest cached flows
#[utoipa::path(get, operation_id = "list_flows", path = "/v1/flows", params(FlowsFilter), responses((status = 200, body = FlowsDocument)))]
pub(in crate::server) async fn flows(
    State(engine): State<EngineHandle>,
    filter: Result<Query<FlowsFilter>, QueryRejection>,
) -> Done<Json<FlowsDocument>> {
    Ok(Json(engine.flows(query(filter)?).await?))
}
