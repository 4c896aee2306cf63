//! Handlers of the paths of the forwarding database.

use api::v1::{ChangeOptions, FdbDocument, FdbFilter, FdbFlushed, StaticEntry};
use axum::Json;
use axum::extract::State;

use super::endpoints::{endpoint, endpoints};
use super::extractors::{ChangeRequest, Client, Document, Filter, PathName};
use super::handlers::{IfMatch, with_tag};
use super::requests::same_name;
use crate::command::EngineHandle;
use config::desired::{Change, FdbChange};

endpoints! {
    /// List the forwarding database
    get "/v1/fdb" => list_fdb(engine: Engine, filter: Query<FdbFilter>) -> 200 FdbDocument {
        Ok(Json(engine.fdb(filter).await?))
    }

    /// Flush the forwarding database
    ///
    /// Removes the learned entries of a segment, of a port, or all. Static entries and addresses
    /// that port security lists stay. Frames to a removed address are flooded until it is learned
    /// again.
    delete "/v1/fdb" => flush_fdb(engine: Client, filter: Query<FdbFilter>) -> 200 FdbFlushed {
        Ok(Json(engine.flush_fdb(filter).await?))
    }

    /// List static FDB entries
    get "/v1/fdb/static" =>
        list_static_entries(engine: Engine) -> ((status = 200, body = [StaticEntry])) {
        let desired = engine.desired().await?;
        Ok(with_tag(&desired, Json(&desired.state.fdb)))
    }

    /// Create or replace a static FDB entry
    put "/v1/fdb/static/{segment}/{mac}" =>
        put_static_entry(request: Change, path: Path<StaticPath>, entry: Body<StaticEntry>)
            -> 200 StaticEntry {
        let segment = same_name(&path.segment, &entry.segment);
        segment.map_err(|problem| problem.with_field("segment"))?;
        same_name(&path.mac, &entry.mac).map_err(|problem| problem.with_field("mac"))?;
        request.put(Change::Fdb(FdbChange::Put(entry.clone())), entry).await
    }

    /// Remove a static FDB entry
    delete "/v1/fdb/static/{segment}/{mac}" =>
        remove_static_entry(request: Change, path: Path<StaticPath>) -> 204 {
        let StaticPath { segment, mac } = path;
        request.remove(Change::Fdb(FdbChange::Remove { segment, mac })).await
    }
}

/// The segment and the address in a path.
#[derive(serde::Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Path)]
pub(super) struct StaticPath {
    /// Name of the segment.
    segment: String,
    /// MAC address.
    mac: String,
}
