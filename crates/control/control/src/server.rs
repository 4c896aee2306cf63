//! The API server: HTTP and JSON on a unix socket, under `/v1/`.
//!
//! | method and path | body | answer |
//! |---|---|---|
//! | `GET /v1/status` | | 200 `StatusDocument` |
//! | `GET /v1/state` | | 200 `DesiredState` |
//! | `PUT /v1/state?dry_run=true` | `DesiredState` | 200 `DesiredState` |
//! | `PATCH /v1/state?dry_run=true` | merge patch (RFC 7396) | 200 `DesiredState` |
//! | `GET /v1/warnings` | | 200 `WarningsDocument` |
//! | `GET /v1/switch` | | 200 `SwitchSpec` |
//! | `PATCH /v1/switch?dry_run=true` | merge patch | 200 `SwitchSpec` |
//! | `GET /v1/segments` | | 200 `SegmentsDocument` |
//! | `POST /v1/segments?dry_run=true` | `SegmentSpec` | 201 `SegmentStatus` |
//! | `GET /v1/segments/{name}` | | 200 `SegmentStatus` |
//! | `PATCH /v1/segments/{name}?dry_run=true` | `SegmentPatch` | 200 `SegmentStatus` |
//! | `DELETE /v1/segments/{name}?dry_run=true` | | 204 |
//! | `GET /v1/qos/classes` | | 200 `QosClassesDocument` |
//! | `POST /v1/qos/classes?dry_run=true` | `QosClassSpec` | 201 `QosClassSpec` |
//! | `GET /v1/qos/classes/{name}` | | 200 `QosClassSpec` |
//! | `PATCH /v1/qos/classes/{name}?dry_run=true` | `QosClassPatch` | 200 `QosClassSpec` |
//! | `DELETE /v1/qos/classes/{name}?dry_run=true` | | 204 |
//! | `GET /v1/qos/groups` | | 200 `QosGroupsDocument` |
//! | `POST /v1/qos/groups?dry_run=true` | `QosGroupSpec` | 201 `QosGroupStatus` |
//! | `GET /v1/qos/groups/{name}` | | 200 `QosGroupStatus` |
//! | `PATCH /v1/qos/groups/{name}?dry_run=true` | `QosGroupPatch` | 200 `QosGroupStatus` |
//! | `DELETE /v1/qos/groups/{name}?dry_run=true` | | 204 |
//! | `GET /v1/ports` | | 200 `PortsDocument` |
//! | `POST /v1/ports?dry_run=true` | `PortSpec` | 201 `PortStatus` |
//! | `GET /v1/ports/{name}` | | 200 `PortStatus` |
//! | `PATCH /v1/ports/{name}?dry_run=true` | `PortPatch` | 200 `PortStatus` |
//! | `DELETE /v1/ports/{name}?dry_run=true` | | 204 |
//! | `GET /v1/access` | | 200 `AccessModel` |
//! | `PUT /v1/access?dry_run=true` | `AccessModel` | 200 `AccessModel` |
//! | `PATCH /v1/access?dry_run=true` | merge patch | 200 `AccessModel` |
//! | `GET /v1/access/warnings` | | 200 `AccessWarnings` |
//! | `GET /v1/access/lists/{name}` | | 200 `AccessListSpec` |
//! | `PUT /v1/access/lists/{name}?dry_run=true` | `AccessListSpec` | 200 `AccessListSpec` |
//! | `DELETE /v1/access/lists/{name}?dry_run=true` | | 204 |
//! | `PUT /v1/access/lists/{list}/rules/{rule}?dry_run=true` | `RuleSpec` | 200 `RuleSpec` |
//! | `DELETE /v1/access/lists/{list}/rules/{rule}?dry_run=true` | | 204 |
//! | `GET /v1/access/counts?list=L&limit=N` | | 200 `AccessCounts` |
//! | `GET /v1/access/address_sets/{name}` | | 200 `AddressSet` |
//! | `PUT /v1/access/address_sets/{name}?dry_run=true` | `AddressSet` | 200 `AddressSet` |
//! | `DELETE /v1/access/address_sets/{name}?dry_run=true` | | 204 |
//! | `GET /v1/access/groups/{name}` | | 200 `Group` |
//! | `PUT /v1/access/groups/{name}?dry_run=true` | `Group` | 200 `Group` |
//! | `DELETE /v1/access/groups/{name}?dry_run=true` | | 204 |
//! | `GET /v1/pipes` | | 200 `PipesDocument` |
//! | `GET /v1/mirrors` | | 200 `MirrorsDocument` |
//! | `POST /v1/mirrors?dry_run=true` | `MirrorSpec` | 201 `MirrorSpec`, 200 for a dry run |
//! | `GET /v1/mirrors/{name}` | | 200 `MirrorSpec` |
//! | `PUT /v1/mirrors/{name}?dry_run=true` | `MirrorSpec` | 200 `MirrorSpec` |
//! | `DELETE /v1/mirrors/{name}?dry_run=true` | | 204 |
//! | `GET /v1/ports/{name}/capture?filter=F` | | 200 an endless pcapng file, see [`crate::capture`] |
//! | `DELETE /v1/captures/{number}` | | 204 |
//! | `GET /v1/events?port=P&kind=K&last=N&follow=true` | | 200 endless server-sent events, each an `Event`, see [`crate::events`] |
//! | `GET /v1/stats` | | 200 `StatsDocument` |
//! | `GET /v1/egress` | | 200 `EgressPortsDocument` |
//! | `GET /v1/fdb?segment=S&port=P` | | 200 `FdbDocument` |
//! | `GET /v1/flows?port=P&limit=N` | | 200 `FlowsDocument` |
//! | `GET /v1/connections?port=P&segment=S&filter=F&limit=N` | | 200 `ConnectionsDocument` |
//! | `GET /v1/connections/count?port=P&segment=S&filter=F` | | 200 `ConnectionsCount` |
//! | `DELETE /v1/connections?port=P&segment=S&filter=F` | | 200 or 202 `ConnectionsFlush` |
//! | `GET /v1/ports/{name}/prefilter` | | 200 `PrefilterDocument` |
//! | `GET /v1/ports/{name}/user/flows?limit=N` | | 200 `UserFlowsDocument` |
//! | `GET /v1/ports/{name}/user/leases` | | 200 `UserLeasesDocument` |
//! | `GET /v1/ports/{name}/user/forwards` | | 200 `UserForwardsDocument` |
//! | `GET /v1/fdb/static` | | 200 `[StaticEntry]` |
//! | `PUT /v1/fdb/static/{segment}/{mac}?dry_run=true` | `StaticEntry` | 200 `StaticEntry` |
//! | `DELETE /v1/fdb/static/{segment}/{mac}?dry_run=true` | | 204 |
//! | `DELETE /v1/fdb?segment=S&port=P` | | 200 `FdbFlushResult` |
//! | `DELETE /v1/flows?port=P` | | 204 |
//! | `GET /v1/ports/{name}/stats` | | 200 `PortStats` |
//! | `GET /v1/ports/{name}/egress` | | 200 `EgressDocument` |
//! | `POST /v1/trace` | `TraceRequest` | 200 `TraceDocument` |
//! | `GET /metrics` | | 200 text for Prometheus, see [`crate::metrics`] |
//! | `GET /v1/openapi.json` | | 200 all this as an OpenAPI document, see `openapi` |
//!
//! `dry_run=true` returns the result of a change without making it. With `changes=true` the
//! response is 200 with a `ChangesDocument`; so it is for the dry run of a change of a port, a
//! segment, or a part of the access lists.
//!
//! Responses to changes, and those with the desired state or a part of it, have an `ETag`: that of
//! the whole desired state. Every change may have an `If-Match` (RFC 9110, 13.1.1), and is then
//! only made if the desired state still has that tag. A change is made as a whole or not at all.
//!
//! Every other response is a `Problem` (RFC 9457): 400 and 422 for requests, 404, 405, 408, 409,
//! 412, 413, 415, and 503 when the engine does not reply. The server has no state: each request
//! becomes a command to the engine. It runs in a thread of its own, beside the engine's. The
//! socket's directory and mode decide who may connect.

mod access;
pub(crate) mod api_thread;
mod captures;
mod connections;
mod events;
mod extractors;
mod fdb;
mod handlers;
mod mirrors;
mod openapi;
mod qos;
mod requests;
#[cfg(test)]
mod tests;
mod tracked;
mod unix;

use std::future::Future;
use std::io;
use std::sync::LazyLock;

use axum::Router;
use axum::routing::get;
use ipc::timeouts;
use rustix::net::AddressFamily;
use sys::foreign::ForeignFd;
use tokio::net::TcpListener;
use utoipa_axum::router::OpenApiRouter;

use crate::command::EngineHandle;

pub use connections::Listener;
use handlers as h;
pub use openapi::document as openapi_document;
pub use unix::UnixServer;

/// Most bytes of the body of a request about one object.
const BODY_MAX: usize = 64 * 1024;
/// Most bytes of the body of a request about the desired state or all access lists: 1024 ports with
/// every field, as many segments, and 100 000 rules of 300 bytes each.
const STATE_MAX: usize = 32 * 1024 * 1024;

/// Prepares a bound and listening unix socket for [`serve`]. Call it inside the runtime.
///
/// # Errors
/// The descriptor is no such socket.
pub fn listener(socket: ForeignFd) -> io::Result<Listener> {
    Ok(Listener::Unix(UnixServer::new(socket)?))
}

/// Prepares a bound and listening unix or TCP socket for [`serve`].
///
/// # Errors
/// As [`listener`].
pub fn any_listener(socket: ForeignFd) -> io::Result<Listener> {
    if rustix::net::sockopt::socket_domain(&socket)? == AddressFamily::UNIX {
        return listener(socket);
    }
    let listener = std::net::TcpListener::from(socket.vouch());
    listener.set_nonblocking(true)?;
    Ok(Listener::Tcp(TcpListener::from_std(listener)?))
}

/// Serves the API until `shutdown` completes. Requests under way are completed first, but a stalled
/// client does not delay the end by more than [`timeouts::API_SHUTDOWN`].
pub async fn serve(listener: Listener, engine: EngineHandle, shutdown: impl Future<Output = ()>) {
    connections::serve(listener, router(engine), shutdown, timeouts::API_SHUTDOWN).await;
}

/// Serves metrics only, otherwise like [`serve`].
pub async fn serve_metrics(
    listener: Listener,
    engine: EngineHandle,
    shutdown: impl Future<Output = ()>,
) {
    let router = Router::new()
        .route("/metrics", get(h::get_metrics))
        .fallback(h::unknown_path)
        .method_not_allowed_fallback(h::unknown_method)
        .with_state(engine);
    connections::serve(listener, router, shutdown, timeouts::API_SHUTDOWN).await;
}

/// Returns all handlers with their descriptions.
fn routes() -> OpenApiRouter<EngineHandle> {
    h::routes()
        .merge(access::routes())
        .merge(mirrors::routes())
        .merge(fdb::routes())
        .merge(qos::routes())
        .merge(tracked::routes())
        .merge(captures::routes())
        .merge(events::routes())
}

/// The routes of the table in this module's documentation.
static ROUTES: LazyLock<Router<EngineHandle>> = LazyLock::new(|| {
    let (router, _) = routes().split_for_parts();
    router
        .fallback(h::unknown_path)
        .method_not_allowed_fallback(h::unknown_method)
});

/// Builds the routes, which takes milliseconds.
pub(crate) fn build_routes() {
    LazyLock::force(&ROUTES);
}

/// Returns the routes for an engine.
pub fn router(engine: EngineHandle) -> Router {
    ROUTES.clone().with_state(engine)
}
