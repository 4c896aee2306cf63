//! The API server: HTTP and JSON on a unix socket, under `/v1/`.
//!
//! | method and path | body | answer |
//! |---|---|---|
//! | `GET /v1/status` | | 200 `StatusDocument` |
//! | `GET /v1/ports` | | 200 `PortsDocument` |
//! | `POST /v1/ports` | `PortSpec` | 201 `PortStatus` |
//! | `GET /v1/ports/{name}` | | 200 `PortStatus` |
//! | `PATCH /v1/ports/{name}` | `PortPatch` | 200 `PortStatus` |
//! | `DELETE /v1/ports/{name}` | | 204 |
//! | `GET /v1/stats` | | 200 `StatsDocument` |
//! | `GET /v1/fdb?segment=S&port=P` | | 200 `FdbDocument` |
//!
//! Every other answer is a `Problem` (RFC 9457): 400 and 422 for requests, 404, 405, 409, 413, 415, and
//! 503 when the engine does not answer. The server holds no state: it asks the engine for everything.
//! Who may connect is decided by the socket's directory and mode.

#[cfg(test)]
mod tests;

use std::future::{Future, IntoFuture};
use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use api::v1::{
    FdbDocument, FdbFilter, PortPatch, PortSpec, PortStatus, PortsDocument, Problem, ProblemKind,
    StatsDocument, StatusDocument,
};
use axum::Json;
use axum::Router;
use axum::body::Bytes;
use axum::extract::rejection::{BytesRejection, PathRejection, QueryRejection};
use axum::extract::{DefaultBodyLimit, Path, Query, State};
use axum::http::header::{CONTENT_TYPE, LOCATION};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use serde::de::DeserializeOwned;
use tokio::net::UnixListener;
use tokio::sync::oneshot;

use crate::command::EngineHandle;

/// The most bytes that the body of a request may have.
const BODY_MAX: usize = 64 * 1024;

/// How long the end waits for requests that are under way.
pub const GRACE: Duration = Duration::from_secs(1);

/// Makes an already bound and listening socket fit for [`serve`]. Call it inside the runtime.
///
/// # Errors
/// When the descriptor is no such socket.
pub fn listener(socket: OwnedFd) -> io::Result<UnixListener> {
    let listener = std::os::unix::net::UnixListener::from(socket);
    listener.set_nonblocking(true)?;
    UnixListener::from_std(listener)
}

/// Serves the API until `shutdown` is over. Requests that are under way are answered first, but a client
/// that stalls does not hold the end up for more than [`GRACE`].
///
/// # Errors
/// When the socket itself fails.
pub async fn serve(
    listener: UnixListener,
    engine: EngineHandle,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    let (tell, told) = oneshot::channel();
    let shutdown = async move {
        shutdown.await;
        // Nobody hears it when the server has ended by itself.
        let _ = tell.send(());
    };
    let server = axum::serve(listener, router(engine)).with_graceful_shutdown(shutdown);
    let patience = async move {
        match told.await {
            Ok(()) => tokio::time::sleep(GRACE).await,
            Err(_) => std::future::pending().await,
        }
    };
    tokio::select! {
        done = server.into_future() => done,
        () = patience => Ok(()),
    }
}

/// The table of this module's documentation.
pub fn router(engine: EngineHandle) -> Router {
    let port = get(show_port).patch(set_port).delete(remove_port);
    Router::new()
        .route("/v1/status", get(status))
        .route("/v1/ports", get(ports).post(add_port))
        .route("/v1/ports/{name}", port)
        .route("/v1/stats", get(stats))
        .route("/v1/fdb", get(fdb))
        .fallback(unknown_path)
        .method_not_allowed_fallback(unknown_method)
        .layer(DefaultBodyLimit::max(BODY_MAX))
        .with_state(engine)
}

/// A problem on its way to the client.
struct Failure(Problem);

impl From<Problem> for Failure {
    fn from(problem: Problem) -> Self {
        Self(problem)
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.0.status);
        let status = status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let kind = [(CONTENT_TYPE, "application/problem+json")];
        (status, kind, Json(self.0)).into_response()
    }
}

/// What a handler gives back.
type Done<T> = Result<T, Failure>;

async fn status(State(engine): State<EngineHandle>) -> Done<Json<StatusDocument>> {
    Ok(Json(engine.status().await?))
}

async fn ports(State(engine): State<EngineHandle>) -> Done<Json<PortsDocument>> {
    Ok(Json(engine.ports().await?))
}

async fn stats(State(engine): State<EngineHandle>) -> Done<Json<StatsDocument>> {
    Ok(Json(engine.stats().await?))
}

async fn fdb(
    State(engine): State<EngineHandle>,
    filter: Result<Query<FdbFilter>, QueryRejection>,
) -> Done<Json<FdbDocument>> {
    let malformed = |error: QueryRejection| malformed(error.body_text());
    let Query(filter) = filter.map_err(malformed)?;
    Ok(Json(engine.fdb(filter).await?))
}

async fn show_port(
    State(engine): State<EngineHandle>,
    name: Result<Path<String>, PathRejection>,
) -> Done<Json<PortStatus>> {
    let name = port_name(name)?;
    let mut ports = engine.ports().await?.ports.into_iter();
    let port = ports.find(|port| port.name == name);
    Ok(Json(port.ok_or_else(|| Problem::no_such_port(&name))?))
}

async fn add_port(
    State(engine): State<EngineHandle>,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Done<Response> {
    let port: PortSpec = document(&headers, body)?;
    let status = engine.add_port(port).await?;
    let location = [(LOCATION, format!("/v1/ports/{}", status.name))];
    Ok((StatusCode::CREATED, location, Json(status)).into_response())
}

async fn set_port(
    State(engine): State<EngineHandle>,
    name: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Done<Json<PortStatus>> {
    let patch: PortPatch = document(&headers, body)?;
    Ok(Json(engine.set_port(port_name(name)?, patch).await?))
}

async fn remove_port(
    State(engine): State<EngineHandle>,
    name: Result<Path<String>, PathRejection>,
) -> Done<StatusCode> {
    engine.remove_port(port_name(name)?).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn unknown_path() -> Failure {
    Problem::new(ProblemKind::NotFound, "there is nothing at this path").into()
}

async fn unknown_method() -> Failure {
    let detail = "this path does not know this method";
    Problem::new(ProblemKind::MethodNotAllowed, detail).into()
}

/// A request that cannot be read.
fn malformed(detail: impl Into<String>) -> Problem {
    Problem::new(ProblemKind::Malformed, detail)
}

/// The port's name in the path.
fn port_name(name: Result<Path<String>, PathRejection>) -> Result<String, Problem> {
    let Path(name) = name.map_err(|error| malformed(error.body_text()))?;
    Ok(name)
}

/// The document in a request's body.
fn document<T: DeserializeOwned>(
    headers: &HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Result<T, Problem> {
    let body = body.map_err(|error| unread(&error))?;
    if !is_json(headers) {
        let detail = "the content type has to be application/json";
        return Err(Problem::new(ProblemKind::UnsupportedMedia, detail));
    }
    let mut json = serde_json::Deserializer::from_slice(&body);
    let document = serde_path_to_error::deserialize(&mut json).map_err(|error| unfit(&error))?;
    json.end().map_err(|error| malformed(error.to_string()))?;
    Ok(document)
}

/// Says whether the body claims to be JSON; a body without a claim is believed to be.
fn is_json(headers: &HeaderMap) -> bool {
    let Some(value) = headers.get(CONTENT_TYPE) else {
        return true;
    };
    let kind = value.to_str().unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim();
    ["application/json", "application/merge-patch+json"]
        .iter()
        .any(|known| kind.eq_ignore_ascii_case(known))
}

/// A body that did not arrive whole.
fn unread(error: &BytesRejection) -> Problem {
    match error.status() {
        StatusCode::PAYLOAD_TOO_LARGE => {
            let detail = format!("the body may have {BODY_MAX} bytes");
            Problem::new(ProblemKind::TooLarge, detail)
        }
        _ => malformed(error.body_text()),
    }
}

/// A body that is no JSON (400), or JSON that is not the document that was asked for (422).
fn unfit(error: &serde_path_to_error::Error<serde_json::Error>) -> Problem {
    let detail = error.inner().to_string();
    if !error.inner().is_data() {
        return malformed(detail);
    }
    let problem = Problem::new(ProblemKind::Invalid, detail);
    match error.path().to_string().as_str() {
        "." | "?" => problem,
        field => problem.with_field(field),
    }
}
