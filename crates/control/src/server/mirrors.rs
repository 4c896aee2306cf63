//! Handlers of the paths of mirrors.

use api::v1::{ChangeOptions, MirrorSpec, MirrorsDocument, Problem};
use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::LOCATION;

use super::endpoints::{endpoint, endpoints};
use super::extractors::{ChangeRequest, Document, PathName};
use super::handlers::{IfMatch, NamePath, with_tag};
use super::requests::same_name;
use crate::command::EngineHandle;
use config::desired::{self, Change, MirrorChange};

endpoints! {
    /// List mirrors, with their counters and those of their target ports
    get "/v1/mirrors" => list_mirrors(engine: Engine) -> 200 MirrorsDocument {
        let desired = engine.desired().await?;
        let stats = engine.stats().await?;
        let mirrors = desired::mirrors(&desired.state, &stats);
        Ok(Json(MirrorsDocument { mirrors }))
    }

    /// Get a mirror
    get "/v1/mirrors/{name}" => get_mirror(engine: Engine, name: Name) -> 200 MirrorSpec {
        let desired = engine.desired().await?;
        let mirror = desired.state.mirror(&name);
        let mirror = mirror.ok_or_else(|| Problem::no_such("mirror", &name))?;
        Ok(with_tag(&desired, Json(mirror)))
    }

    /// Add a mirror; its name must be new
    post "/v1/mirrors" => add_mirror(request: Change, mirror: Body<MirrorSpec>) -> (
        (status = 201, body = MirrorSpec),
        (status = 200, body = MirrorSpec, description = "Result of a dry run."),
    ) {
        let dry_run = request.options.dry_run;
        let change = Change::Mirror(MirrorChange::Add(mirror.clone()));
        let desired = request.apply(change).await?;
        if dry_run {
            return Ok(with_tag(&desired, Json(mirror)));
        }
        let location = [(LOCATION, format!("/v1/mirrors/{}", mirror.name))];
        let created = (StatusCode::CREATED, location, Json(mirror));
        Ok(with_tag(&desired, created))
    }

    /// Create or replace a mirror; a new one is added at the end
    put "/v1/mirrors/{name}" =>
        put_mirror(request: Change, name: Name, mirror: Body<MirrorSpec>) -> 200 MirrorSpec {
        same_name(&name, &mirror.name)?;
        let change = Change::Mirror(MirrorChange::Put(mirror.clone()));
        let desired = request.apply(change).await?;
        Ok(with_tag(&desired, Json(mirror)))
    }

    /// Remove a mirror
    delete "/v1/mirrors/{name}" => remove_mirror(request: Change, name: Name) -> 204 {
        let change = Change::Mirror(MirrorChange::Remove(name));
        let desired = request.apply(change).await?;
        Ok(with_tag(&desired, StatusCode::NO_CONTENT))
    }
}
