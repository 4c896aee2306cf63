//! Handlers of the paths of tracked connections.

use api::v1::{
    ConnectionsCount, ConnectionsDocument, ConnectionsFilter, ConnectionsFlush,
    ConnectionsSelection,
};
use axum::Json;
use axum::http::StatusCode;
use axum::response::IntoResponse;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::extractors::{Client, Engine, Filter};
use super::requests::Answer;
use crate::command::EngineHandle;

/// Returns the router of these handlers, with their descriptions.
pub(super) fn routes() -> OpenApiRouter<EngineHandle> {
    OpenApiRouter::new()
        .routes(routes!(list_connections, flush_connections))
        .routes(routes!(count_connections))
}

/// List connections
///
/// The connections that rules with `allow-stateful` have let in, in no particular order.
#[utoipa::path(
    get, path = "/v1/connections", params(ConnectionsFilter),
    responses((status = 200, body = ConnectionsDocument))
)]
async fn list_connections(
    engine: Engine,
    Filter(filter): Filter<ConnectionsFilter>,
) -> Answer<impl IntoResponse> {
    Ok(Json(engine.connections(filter).await?))
}

/// Count connections
#[utoipa::path(
    get, path = "/v1/connections/count", params(ConnectionsSelection),
    responses((status = 200, body = ConnectionsCount))
)]
async fn count_connections(
    engine: Engine,
    Filter(selection): Filter<ConnectionsSelection>,
) -> Answer<impl IntoResponse> {
    Ok(Json(engine.count_connections(selection).await?))
}

/// Flush connections
///
/// All, or those of a segment, are gone with the response. Those of a port or a filter are removed
/// in parts after the response; an event of the kind `connections_flushed` has their number at
/// the end. The next frame of a connection is new: rules decide it.
#[utoipa::path(
    delete, path = "/v1/connections", params(ConnectionsSelection),
    responses(
        (status = 200, body = ConnectionsFlush),
        (status = 202, body = ConnectionsFlush, description = "They are removed in parts."),
    )
)]
async fn flush_connections(
    Client(engine): Client,
    Filter(selection): Filter<ConnectionsSelection>,
) -> Answer<impl IntoResponse> {
    let flushed = engine.flush_connections(selection).await?;
    let status = match flushed.done {
        true => StatusCode::OK,
        false => StatusCode::ACCEPTED,
    };
    Ok((status, Json(flushed)))
}
