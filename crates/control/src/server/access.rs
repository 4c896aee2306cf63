//! Handlers of the paths of access lists.

use api::v1::{
    AccessCounts, AccessListSpec, AccessModel, AccessWarnings, AddressSet, ChangeOptions,
    CountsFilter, Group, Problem, RuleSpec, Shadow,
};
use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use serde_json::Value;

use super::extractors::{ChangeRequest, Document, Filter, PathName};
use super::handlers::{IfMatch, NamePath, with_tag};
use super::requests::{HandlerResult, same_name};
use crate::command::EngineHandle;
use config::desired::{AccessChange, Change, check_access};

/// Get the access lists
#[utoipa::path(
    get,
    operation_id = "get_access",
    path = "/v1/access",
    responses((status = 200, body = AccessModel)),
)]
pub(super) async fn show(State(engine): State<EngineHandle>) -> HandlerResult<Response> {
    let desired = engine.desired().await?;
    Ok(with_tag(&desired, Json(&*desired.state.access)))
}

/// Replace the access lists
#[utoipa::path(
    put,
    operation_id = "replace_access",
    path = "/v1/access",
    params(ChangeOptions, IfMatch),
    request_body = AccessModel,
    responses((status = 200, body = AccessModel)),
)]
pub(super) async fn put(
    request: ChangeRequest,
    Document(all): Document<AccessModel>,
) -> HandlerResult<Response> {
    let all = Box::new(all);
    let change = Change::Access(AccessChange::All(all));
    let desired = request.apply(change).await?;
    Ok(with_tag(&desired, Json(&*desired.state.access)))
}

/// Update the access lists (JSON merge patch)
///
/// A JSON merge patch (RFC 7396) of the document that `GET` returns: arrays are replaced as a
/// whole.
#[utoipa::path(
    patch,
    operation_id = "patch_access",
    path = "/v1/access",
    params(ChangeOptions, IfMatch),
    request_body = Value,
    responses((status = 200, body = AccessModel)),
)]
pub(super) async fn patch(
    request: ChangeRequest,
    Document(patch): Document<Value>,
) -> HandlerResult<Response> {
    let change = Change::PatchAccess(patch);
    let desired = request.apply(change).await?;
    Ok(with_tag(&desired, Json(&*desired.state.access)))
}

/// List warnings about access lists
#[utoipa::path(
    get,
    operation_id = "list_access_warnings",
    path = "/v1/access/warnings",
    responses((status = 200, body = AccessWarnings)),
)]
pub(super) async fn warnings(State(engine): State<EngineHandle>) -> HandlerResult<Response> {
    let desired = engine.desired().await?;
    let checked = check_access(&desired.state);
    let warnings = checked.map_err(|invalid| invalid.to_problem_in(Some("access")))?;
    let shadow = |of: policy::acl::Shadowed| Shadow {
        list: of.rule.list,
        rule: of.rule.rule,
        by: of.by.rule,
    };
    let warnings = AccessWarnings {
        shadowed: warnings.shadowed.into_iter().map(shadow).collect(),
        unattached: warnings.unattached,
    };
    Ok(with_tag(&desired, Json(warnings)))
}

/// Get the counters of rules
///
/// Frames that each rule has decided, their bytes, and the time since the last of them. A rule that
/// is changed keeps its counters.
#[utoipa::path(
    get,
    operation_id = "list_access_counts",
    path = "/v1/access/counts",
    params(CountsFilter),
    responses((status = 200, body = AccessCounts)),
)]
pub(super) async fn counts(
    State(engine): State<EngineHandle>,
    Filter(filter): Filter<CountsFilter>,
) -> HandlerResult<Json<AccessCounts>> {
    let counted = engine.rule_counts().await?;
    Ok(Json(counted.document(&filter)?))
}

/// Get an access list
#[utoipa::path(
    get,
    operation_id = "get_access_list",
    path = "/v1/access/lists/{name}",
    params(NamePath),
    responses((status = 200, body = AccessListSpec)),
)]
pub(super) async fn show_list(
    State(engine): State<EngineHandle>,
    PathName(name): PathName,
) -> HandlerResult<Response> {
    let desired = engine.desired().await?;
    let list = desired.state.access.list(&name);
    let list = list.ok_or_else(|| Problem::no_such("access list", &name))?;
    Ok(with_tag(&desired, Json(list)))
}

/// Create or replace an access list; a new one is added at the end
#[utoipa::path(
    put,
    operation_id = "put_access_list",
    path = "/v1/access/lists/{name}",
    params(NamePath, ChangeOptions, IfMatch),
    request_body = AccessListSpec,
    responses((status = 200, body = AccessListSpec)),
)]
pub(super) async fn put_list(
    request: ChangeRequest,
    PathName(name): PathName,
    Document(list): Document<AccessListSpec>,
) -> HandlerResult<Response> {
    same_name(&name, &list.name)?;
    let change = AccessChange::PutList(Box::new(list.clone()));
    let desired = request.apply_one(Change::Access(change)).await?;
    Ok(with_tag(&desired, Json(list)))
}

/// Remove an access list
#[utoipa::path(
    delete,
    operation_id = "remove_access_list",
    path = "/v1/access/lists/{name}",
    params(NamePath, ChangeOptions, IfMatch),
    responses((status = 204)),
)]
pub(super) async fn remove_list(
    request: ChangeRequest,
    PathName(name): PathName,
) -> HandlerResult<Response> {
    remove(request, AccessChange::RemoveList(name)).await
}

/// Create or replace a rule; a new one is added at the end of its list
#[utoipa::path(
    put,
    operation_id = "put_access_rule",
    path = "/v1/access/lists/{list}/rules/{rule}",
    params(RulePath, ChangeOptions, IfMatch),
    request_body = RuleSpec,
    responses((status = 200, body = RuleSpec)),
)]
pub(super) async fn put_rule(
    request: ChangeRequest,
    PathName((list, name)): PathName<(String, String)>,
    Document(rule): Document<RuleSpec>,
) -> HandlerResult<Response> {
    same_name(&name, &rule.name)?;
    let change = AccessChange::PutRule(list, Box::new(rule.clone()));
    let desired = request.apply_one(Change::Access(change)).await?;
    Ok(with_tag(&desired, Json(rule)))
}

/// Remove a rule
#[utoipa::path(
    delete,
    operation_id = "remove_access_rule",
    path = "/v1/access/lists/{list}/rules/{rule}",
    params(RulePath, ChangeOptions, IfMatch),
    responses((status = 204)),
)]
pub(super) async fn remove_rule(
    request: ChangeRequest,
    PathName((list, rule)): PathName<(String, String)>,
) -> HandlerResult<Response> {
    remove(request, AccessChange::RemoveRule(list, rule)).await
}

/// Get an address set
#[utoipa::path(
    get,
    operation_id = "get_address_set",
    path = "/v1/access/address_sets/{name}",
    params(NamePath),
    responses((status = 200, body = AddressSet)),
)]
pub(super) async fn show_set(
    State(engine): State<EngineHandle>,
    PathName(name): PathName,
) -> HandlerResult<Response> {
    let desired = engine.desired().await?;
    let mut sets = desired.state.access.address_sets.iter();
    let set = sets.find(|set| set.name == name);
    let set = set.ok_or_else(|| Problem::no_such("address set", &name))?;
    Ok(with_tag(&desired, Json(set)))
}

/// Create or replace an address set
#[utoipa::path(
    put,
    operation_id = "put_address_set",
    path = "/v1/access/address_sets/{name}",
    params(NamePath, ChangeOptions, IfMatch),
    request_body = AddressSet,
    responses((status = 200, body = AddressSet)),
)]
pub(super) async fn put_set(
    request: ChangeRequest,
    PathName(name): PathName,
    Document(set): Document<AddressSet>,
) -> HandlerResult<Response> {
    same_name(&name, &set.name)?;
    let change = Change::Access(AccessChange::PutSet(set.clone()));
    let desired = request.apply_one(change).await?;
    Ok(with_tag(&desired, Json(set)))
}

/// Remove an address set; no rule may refer to it
#[utoipa::path(
    delete,
    operation_id = "remove_address_set",
    path = "/v1/access/address_sets/{name}",
    params(NamePath, ChangeOptions, IfMatch),
    responses((status = 204)),
)]
pub(super) async fn remove_set(
    request: ChangeRequest,
    PathName(name): PathName,
) -> HandlerResult<Response> {
    remove(request, AccessChange::RemoveSet(name)).await
}

/// Get a port group
#[utoipa::path(
    get,
    operation_id = "get_group",
    path = "/v1/access/groups/{name}",
    params(NamePath),
    responses((status = 200, body = Group)),
)]
pub(super) async fn show_group(
    State(engine): State<EngineHandle>,
    PathName(name): PathName,
) -> HandlerResult<Response> {
    let desired = engine.desired().await?;
    let mut groups = desired.state.access.groups.iter();
    let group = groups.find(|group| group.name == name);
    let group = group.ok_or_else(|| Problem::no_such("group", &name))?;
    Ok(with_tag(&desired, Json(group)))
}

/// Create or replace a port group
#[utoipa::path(
    put,
    path = "/v1/access/groups/{name}",
    params(NamePath, ChangeOptions, IfMatch),
    request_body = Group,
    responses((status = 200, body = Group)),
)]
pub(super) async fn put_group(
    request: ChangeRequest,
    PathName(name): PathName,
    Document(group): Document<Group>,
) -> HandlerResult<Response> {
    same_name(&name, &group.name)?;
    let change = Change::Access(AccessChange::PutGroup(group.clone()));
    let desired = request.apply_one(change).await?;
    Ok(with_tag(&desired, Json(group)))
}

/// Remove a port group; no list may refer to it
#[utoipa::path(
    delete,
    path = "/v1/access/groups/{name}",
    params(NamePath, ChangeOptions, IfMatch),
    responses((status = 204)),
)]
pub(super) async fn remove_group(
    request: ChangeRequest,
    PathName(name): PathName,
) -> HandlerResult<Response> {
    remove(request, AccessChange::RemoveGroup(name)).await
}

/// Removes an object of the access lists.
async fn remove(request: ChangeRequest, change: AccessChange) -> HandlerResult<Response> {
    let desired = request.apply_one(Change::Access(change)).await?;
    Ok(with_tag(&desired, StatusCode::NO_CONTENT))
}

/// The names in a path.
#[derive(utoipa::IntoParams)]
#[into_params(parameter_in = Path)]
#[expect(dead_code, reason = "it is there to be described")]
pub(super) struct RulePath {
    /// Name of the list.
    list: String,
    /// Name of the rule.
    rule: String,
}
