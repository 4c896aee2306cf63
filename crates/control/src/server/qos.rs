//! Handlers of the paths of traffic classes, groups of senders and scheduled ports.

use api::v1::{
    ChangeOptions, EgressDocument, EgressPortsDocument, Problem, ProblemKind, QosClassPatch,
    QosClassSpec, QosClassesDocument, QosGroupPatch, QosGroupSpec, QosGroupStatus,
    QosGroupsDocument,
};
use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::LOCATION;

use super::endpoints::{endpoint, endpoints};
use super::extractors::{ChangeRequest, Document, PathName};
use super::handlers::{IfMatch, NamePath, with_tag};
use crate::command::{Desired, EngineHandle};
use config::desired::Change;
use config::desired::qos::{self, QosChange};

endpoints! {
    /// List traffic classes
    get "/v1/qos/classes" => list_qos_classes(engine: Engine) -> 200 QosClassesDocument {
        let desired = engine.desired().await?;
        let classes = qos::classes_of(&desired.state);
        Ok(with_tag(&desired, Json(QosClassesDocument { classes })))
    }

    /// Get a traffic class
    get "/v1/qos/classes/{name}" =>
        get_qos_class(engine: Engine, name: Name) -> 200 QosClassSpec {
        let desired = engine.desired().await?;
        Ok(with_tag(&desired, Json(class(&desired, &name)?)))
    }

    /// Add a traffic class
    post "/v1/qos/classes" =>
        add_qos_class(request: Change, spec: Body<QosClassSpec>) -> 201 QosClassSpec {
        let name = spec.name.clone();
        let change = Change::Qos(QosChange::AddClass(spec));
        let desired = request.apply_one(change).await?;
        let location = [(LOCATION, format!("/v1/qos/classes/{name}"))];
        let created = Json(class(&desired, &name)?);
        Ok(with_tag(&desired, (StatusCode::CREATED, location, created)))
    }

    /// Update a traffic class
    patch "/v1/qos/classes/{name}" =>
        change_qos_class(request: Change, name: Name, patch: Body<QosClassPatch>)
            -> 200 QosClassSpec {
        let change = Change::Qos(QosChange::SetClass(name.clone(), patch));
        let desired = request.apply_one(change).await?;
        Ok(with_tag(&desired, Json(class(&desired, &name)?)))
    }

    /// Remove a traffic class; no port or rule may name it
    delete "/v1/qos/classes/{name}" => remove_qos_class(request: Change, name: Name) -> 204 {
        request.remove(Change::Qos(QosChange::RemoveClass(name))).await
    }

    /// List groups of senders
    get "/v1/qos/groups" => list_qos_groups(engine: Engine) -> 200 QosGroupsDocument {
        let desired = engine.desired().await?;
        let groups = qos::groups_of(&desired.state);
        Ok(with_tag(&desired, Json(QosGroupsDocument { groups })))
    }

    /// Get a group of senders
    get "/v1/qos/groups/{name}" =>
        get_qos_group(engine: Engine, name: Name) -> 200 QosGroupStatus {
        let desired = engine.desired().await?;
        Ok(with_tag(&desired, Json(group(&desired, &name)?)))
    }

    /// Add a group of senders
    post "/v1/qos/groups" =>
        add_qos_group(request: Change, spec: Body<QosGroupSpec>) -> 201 QosGroupStatus {
        let name = spec.name.clone();
        let change = Change::Qos(QosChange::AddGroup(spec));
        let desired = request.apply_one(change).await?;
        let location = [(LOCATION, format!("/v1/qos/groups/{name}"))];
        let created = Json(group(&desired, &name)?);
        Ok(with_tag(&desired, (StatusCode::CREATED, location, created)))
    }

    /// Update a group of senders
    patch "/v1/qos/groups/{name}" =>
        change_qos_group(request: Change, name: Name, patch: Body<QosGroupPatch>)
            -> 200 QosGroupStatus {
        let change = Change::Qos(QosChange::SetGroup(name.clone(), patch));
        let desired = request.apply_one(change).await?;
        Ok(with_tag(&desired, Json(group(&desired, &name)?)))
    }

    /// Remove a group of senders; no port may be in it
    delete "/v1/qos/groups/{name}" => remove_qos_group(request: Change, name: Name) -> 204 {
        request.remove(Change::Qos(QosChange::RemoveGroup(name))).await
    }

    /// List the use of scheduled ports
    get "/v1/egress" => list_egress(engine: Engine) -> 200 EgressPortsDocument {
        Ok(Json(engine.egress().await?))
    }

    /// Get the use of a scheduled port
    ///
    /// Shares, use and waiting frames of each sender and class.
    get "/v1/ports/{name}/egress" => get_egress(engine: Engine, name: Name) -> 200 EgressDocument {
        let mut all = engine.egress().await?.ports.into_iter();
        if let Some(found) = all.find(|of| of.port == name) {
            return Ok(Json(found));
        }
        let desired = engine.desired().await?.state;
        let port = desired.port(&name).ok_or_else(|| Problem::no_such("port", &name))?;
        let detail = format!("port `{}` is not scheduled: it has no egress", port.name);
        Err(Problem::new(ProblemKind::NotFound, detail).into())
    }
}

fn class(desired: &Desired, name: &str) -> Result<QosClassSpec, Problem> {
    let mut all = qos::classes_of(&desired.state).into_iter();
    let class = all.find(|class| class.name == name);
    class.ok_or_else(|| Problem::no_such("class", name))
}

fn group(desired: &Desired, name: &str) -> Result<QosGroupStatus, Problem> {
    let mut all = qos::groups_of(&desired.state).into_iter();
    let group = all.find(|group| group.name == name);
    group.ok_or_else(|| Problem::no_such("group", name))
}
