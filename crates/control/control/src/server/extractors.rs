//! Parts of requests as the arguments of handlers, with the problems of malformed ones.

use std::convert::Infallible;

use api::v1::{ChangeOptions, Problem};
use axum::Json;
use axum::body::Bytes;
use axum::extract::path::ErrorKind;
use axum::extract::rejection::PathRejection;
use axum::extract::{DefaultBodyLimit, FromRequest, FromRequestParts, Path, Query, Request, State};
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::response::Response;
use ipc::peer::Peer;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::BODY_MAX;
use super::handlers::with_tag;
use super::requests::{Answer, Failure, condition, document, invalid_query, malformed};
use crate::command::{self, Condition, DesiredSnapshot, EngineHandle};
use config::desired::{Change, Difference};

/// The engine.
pub(super) type Engine = State<EngineHandle>;

/// The engine, with the requester for the audit log.
pub(super) struct Client(pub(super) EngineHandle);

impl FromRequestParts<EngineHandle> for Client {
    type Rejection = Infallible;

    async fn from_request_parts(
        parts: &mut Parts,
        engine: &EngineHandle,
    ) -> Result<Self, Infallible> {
        let peer = parts.extensions.get::<Peer>().copied();
        Ok(Self(engine.on_behalf_of(peer)))
    }
}

/// The name in the path, or another parameter or several of them.
pub(super) struct PathName<T = String>(pub(super) T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for PathName<T> {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Failure> {
        let path = Path::from_request_parts(parts, state).await;
        let Path(name) = path.map_err(|error| invalid_path(&error))?;
        Ok(Self(name))
    }
}

/// Returns the problem of a path whose parameters cannot be read.
fn invalid_path(error: &PathRejection) -> Problem {
    if let PathRejection::FailedToDeserializePathParams(error) = error
        && let ErrorKind::ParseError { value, .. } = error.kind()
    {
        let expected = "expected an integer from 0 to 4294967295";
        return malformed(format!("{expected} in the path, found {value:?}"));
    }
    malformed("expected UTF-8 in the path, found a byte that is not")
}

/// The query.
pub(super) struct Filter<T>(pub(super) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Filter<T> {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Failure> {
        let query = Query::from_request_parts(parts, state).await;
        let Query(query) = query.map_err(|error| invalid_query(&error.body_text(), &parts.uri))?;
        Ok(Self(query))
    }
}

/// The query of a request that has none: every parameter is refused.
pub(super) struct NoQuery;

/// No parameter.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Nothing {}

impl<S: Send + Sync> FromRequestParts<S> for NoQuery {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Failure> {
        let Filter(Nothing {}) = Filter::from_request_parts(parts, state).await?;
        Ok(Self)
    }
}

/// The document in the body.
pub(super) struct Document<T, const MAX: usize = BODY_MAX>(pub(super) T);

impl<T, S, const MAX: usize> FromRequest<S> for Document<T, MAX>
where
    T: DeserializeOwned,
    S: Send + Sync,
{
    type Rejection = Failure;

    async fn from_request(mut request: Request, state: &S) -> Result<Self, Failure> {
        DefaultBodyLimit::max(MAX).apply(&mut request);
        let headers = request.headers().clone();
        let body = Bytes::from_request(request, state).await;
        Ok(Self(document(&headers, body)?))
    }
}

/// A request for a change, without the change itself.
pub(super) struct ChangeRequest {
    engine: EngineHandle,
    condition: Condition,
    pub(super) options: ChangeOptions,
}

impl FromRequestParts<EngineHandle> for ChangeRequest {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, engine: &EngineHandle) -> Result<Self, Failure> {
        let Ok(Client(engine)) = Client::from_request_parts(parts, engine).await;
        let Filter(options) = Filter::from_request_parts(parts, &engine).await?;
        Ok(Self {
            condition: condition(&parts.headers)?,
            engine,
            options,
        })
    }
}

impl ChangeRequest {
    /// Makes a change under the client's condition, or previews it; adds the list of differences
    /// where the client requests it.
    pub(super) async fn apply(self, change: Change) -> Result<DesiredSnapshot, Failure> {
        let request = command::Request {
            change,
            condition: self.condition,
        };
        let (before, mut desired) = if self.options.dry_run {
            self.engine.preview(&request).await?
        } else {
            self.engine.change(request).await?
        };
        if self.options.changes {
            desired.changes = Some(Difference::between(&before, &desired.state).changes);
        }
        Ok(desired)
    }

    /// Makes or previews a change whose preview has no other result than the differences.
    pub(super) async fn apply_one(mut self, change: Change) -> Result<DesiredSnapshot, Failure> {
        self.options.changes |= self.options.dry_run;
        self.apply(change).await
    }

    /// Removes an object of the desired state; the response has no document.
    ///
    /// # Errors
    /// As `apply`.
    pub(super) async fn remove(self, change: Change) -> Answer<Response> {
        let desired = self.apply_one(change).await?;
        Ok(with_tag(&desired, StatusCode::NO_CONTENT))
    }

    /// Creates or replaces an object of the desired state; the response is the object.
    ///
    /// # Errors
    /// As `apply`.
    pub(super) async fn put(self, change: Change, of: impl Serialize) -> Answer<Response> {
        let desired = self.apply_one(change).await?;
        Ok(with_tag(&desired, Json(of)))
    }
}
