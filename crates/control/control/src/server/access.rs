//! Handlers of the paths of access lists.

use api::v1::{
    AccessCounts, AccessListSpec, AccessModel, AccessWarnings, AddressSet, ChangeOptions,
    CountsFilter, Group, Patch, Problem, RuleSpec, Shadow,
};
use axum::Json;
use axum::response::IntoResponse;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::STATE_MAX;
use super::extractors::{ChangeRequest, Document, Engine, Filter, NoQuery, PathName};
use super::handlers::{IfMatch, NamePath, with_tag};
use super::requests::{Answer, same_name};
use crate::command::EngineHandle;
use config::desired::{AccessChange, Change, check_access};

/// Returns the router of these handlers, with their descriptions.
pub(super) fn routes() -> OpenApiRouter<EngineHandle> {
    OpenApiRouter::new()
        .routes(routes!(get_access, replace_access, patch_access))
        .routes(routes!(list_access_warnings))
        .routes(routes!(list_access_counts))
        .routes(routes!(
            get_access_list,
            put_access_list,
            remove_access_list
        ))
        .routes(routes!(put_access_rule, remove_access_rule))
        .routes(routes!(
            get_address_set,
            put_address_set,
            remove_address_set
        ))
        .routes(routes!(get_group, put_group, remove_group))
}

/// Get the access lists
#[utoipa::path(get, path = "/v1/access", responses((status = 200, body = AccessModel)))]
async fn get_access(_: NoQuery, engine: Engine) -> Answer<impl IntoResponse> {
    let desired = engine.desired().await?;
    Ok(with_tag(&desired, Json(&*desired.state.access)))
}

/// Replace the access lists
#[utoipa::path(
    put, path = "/v1/access", params(ChangeOptions, IfMatch), request_body = AccessModel,
    responses((status = 200, body = AccessModel))
)]
async fn replace_access(
    request: ChangeRequest,
    Document(all): Document<AccessModel, STATE_MAX>,
) -> Answer<impl IntoResponse> {
    let change = AccessChange::All(Box::new(all));
    let desired = request.apply(Change::Access(change)).await?;
    Ok(with_tag(&desired, Json(&*desired.state.access)))
}

/// Update the access lists (JSON merge patch)
///
/// A JSON merge patch (RFC 7396) of the document that `GET` returns: arrays are replaced as a
/// whole.
#[utoipa::path(
    patch, path = "/v1/access", params(ChangeOptions, IfMatch), request_body = Value,
    responses((status = 200, body = AccessModel))
)]
async fn patch_access(
    request: ChangeRequest,
    Document(patch): Document<Patch<AccessModel>, STATE_MAX>,
) -> Answer<impl IntoResponse> {
    let change = Change::PatchAccess(patch.into_value());
    let desired = request.apply(change).await?;
    Ok(with_tag(&desired, Json(&*desired.state.access)))
}

/// List warnings about access lists
#[utoipa::path(get, path = "/v1/access/warnings", responses((status = 200, body = AccessWarnings)))]
async fn list_access_warnings(_: NoQuery, engine: Engine) -> Answer<impl IntoResponse> {
    let desired = engine.desired().await?;
    let checked = check_access(&desired.state);
    let warnings = checked.map_err(|invalid| invalid.to_problem_in(Some("access")))?;
    let shadow = |of: policy::acl::ShadowedRule| Shadow {
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
/// Frames that each rule has decided, their bytes, and the time since the last of them. A rule
/// that is changed keeps its counters.
#[utoipa::path(
    get, path = "/v1/access/counts", params(CountsFilter),
    responses((status = 200, body = AccessCounts))
)]
async fn list_access_counts(
    engine: Engine,
    Filter(filter): Filter<CountsFilter>,
) -> Answer<impl IntoResponse> {
    let counted = engine.rule_counts().await?;
    Ok(Json(counted.document(&filter)?))
}

/// Get an access list
#[utoipa::path(
    get, path = "/v1/access/lists/{name}", params(NamePath),
    responses((status = 200, body = AccessListSpec))
)]
async fn get_access_list(
    _: NoQuery,
    engine: Engine,
    PathName(name): PathName,
) -> Answer<impl IntoResponse> {
    let desired = engine.desired().await?;
    let list = desired.state.access.list(&name);
    let list = list.ok_or_else(|| Problem::no_such("access list", &name))?;
    Ok(with_tag(&desired, Json(list)))
}

/// Create or replace an access list; a new one is added at the end
#[utoipa::path(
    put, path = "/v1/access/lists/{name}", params(NamePath, ChangeOptions, IfMatch),
    request_body = AccessListSpec, responses((status = 200, body = AccessListSpec))
)]
async fn put_access_list(
    request: ChangeRequest,
    PathName(name): PathName,
    Document(list): Document<AccessListSpec, STATE_MAX>,
) -> Answer<impl IntoResponse> {
    same_name(&name, &list.name)?;
    let change = AccessChange::PutList(Box::new(list.clone()));
    request.put(Change::Access(change), list).await
}

/// Remove an access list
#[utoipa::path(
    delete, path = "/v1/access/lists/{name}", params(NamePath, ChangeOptions, IfMatch),
    responses((status = 204))
)]
async fn remove_access_list(
    request: ChangeRequest,
    PathName(name): PathName,
) -> Answer<impl IntoResponse> {
    request
        .remove(Change::Access(AccessChange::RemoveList(name)))
        .await
}

/// Create or replace a rule; a new one is added at the end of its list
#[utoipa::path(
    put, path = "/v1/access/lists/{list}/rules/{rule}", params(RulePath, ChangeOptions, IfMatch),
    request_body = RuleSpec, responses((status = 200, body = RuleSpec))
)]
async fn put_access_rule(
    request: ChangeRequest,
    PathName(path): PathName<RulePath>,
    Document(rule): Document<RuleSpec>,
) -> Answer<impl IntoResponse> {
    same_name(&path.rule, &rule.name)?;
    let change = AccessChange::PutRule(path.list, Box::new(rule.clone()));
    request.put(Change::Access(change), rule).await
}

/// Remove a rule
#[utoipa::path(
    delete, path = "/v1/access/lists/{list}/rules/{rule}", params(RulePath, ChangeOptions, IfMatch),
    responses((status = 204))
)]
async fn remove_access_rule(
    request: ChangeRequest,
    PathName(path): PathName<RulePath>,
) -> Answer<impl IntoResponse> {
    let change = AccessChange::RemoveRule(path.list, path.rule);
    request.remove(Change::Access(change)).await
}

/// Get an address set
#[utoipa::path(
    get, path = "/v1/access/address_sets/{name}", params(NamePath),
    responses((status = 200, body = AddressSet))
)]
async fn get_address_set(
    _: NoQuery,
    engine: Engine,
    PathName(name): PathName,
) -> Answer<impl IntoResponse> {
    let desired = engine.desired().await?;
    let mut sets = desired.state.access.address_sets.iter();
    let set = sets.find(|set| set.name == name);
    let set = set.ok_or_else(|| Problem::no_such("address set", &name))?;
    Ok(with_tag(&desired, Json(set)))
}

/// Create or replace an address set
#[utoipa::path(
    put, path = "/v1/access/address_sets/{name}", params(NamePath, ChangeOptions, IfMatch),
    request_body = AddressSet, responses((status = 200, body = AddressSet))
)]
async fn put_address_set(
    request: ChangeRequest,
    PathName(name): PathName,
    Document(set): Document<AddressSet>,
) -> Answer<impl IntoResponse> {
    same_name(&name, &set.name)?;
    let change = AccessChange::PutSet(set.clone());
    request.put(Change::Access(change), set).await
}

/// Remove an address set; no rule may refer to it
#[utoipa::path(
    delete, path = "/v1/access/address_sets/{name}", params(NamePath, ChangeOptions, IfMatch),
    responses((status = 204))
)]
async fn remove_address_set(
    request: ChangeRequest,
    PathName(name): PathName,
) -> Answer<impl IntoResponse> {
    request
        .remove(Change::Access(AccessChange::RemoveSet(name)))
        .await
}

/// Get a port group
#[utoipa::path(
    get, path = "/v1/access/groups/{name}", params(NamePath),
    responses((status = 200, body = Group))
)]
async fn get_group(
    _: NoQuery,
    engine: Engine,
    PathName(name): PathName,
) -> Answer<impl IntoResponse> {
    let desired = engine.desired().await?;
    let mut groups = desired.state.access.groups.iter();
    let group = groups.find(|group| group.name == name);
    let group = group.ok_or_else(|| Problem::no_such("group", &name))?;
    Ok(with_tag(&desired, Json(group)))
}

/// Create or replace a port group
#[utoipa::path(
    put, path = "/v1/access/groups/{name}", params(NamePath, ChangeOptions, IfMatch),
    request_body = Group, responses((status = 200, body = Group))
)]
async fn put_group(
    request: ChangeRequest,
    PathName(name): PathName,
    Document(group): Document<Group>,
) -> Answer<impl IntoResponse> {
    same_name(&name, &group.name)?;
    let change = AccessChange::PutGroup(group.clone());
    request.put(Change::Access(change), group).await
}

/// Remove a port group; no list may refer to it
#[utoipa::path(
    delete, path = "/v1/access/groups/{name}", params(NamePath, ChangeOptions, IfMatch),
    responses((status = 204))
)]
async fn remove_group(
    request: ChangeRequest,
    PathName(name): PathName,
) -> Answer<impl IntoResponse> {
    request
        .remove(Change::Access(AccessChange::RemoveGroup(name)))
        .await
}

/// The names in a path.
#[derive(serde::Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Path)]
pub(super) struct RulePath {
    /// Name of the list.
    list: String,
    /// Name of the rule.
    rule: String,
}
