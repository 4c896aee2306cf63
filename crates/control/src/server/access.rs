//! What is done for the paths of access lists.

use api::v1::{
    AccessCounts, AccessListSpec, AccessModel, AccessWarnings, AddressSet, ChangeOptions,
    CountsFilter, Group, Problem, ProblemKind, RuleSpec, Shadow,
};
use axum::Json;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;

use super::handlers::{Body, IfMatch, Name, NamePath, Options, order, order_one, query, with_tag};
use super::requests::{Client, Done, document, malformed, name, same_name};
use crate::command::EngineHandle;
use crate::wanted::{AccessChange, Change, check_access};

/// A list's and a rule's name in a path, or why there are none.
type Names = Result<Path<(String, String)>, PathRejection>;

/// Who may talk to whom
#[utoipa::path(get, operation_id = "get_access", path = "/v1/access", responses((status = 200, body = AccessModel)))]
pub(super) async fn show(State(engine): State<EngineHandle>) -> Done<Response> {
    let wanted = engine.wanted().await?;
    Ok(with_tag(&wanted, Json(&*wanted.state.access)))
}

/// Want these access lists and no others
#[utoipa::path(put, operation_id = "replace_access", path = "/v1/access", params(ChangeOptions, IfMatch), request_body = AccessModel, responses(
    (status = 200, body = AccessModel)
))]
pub(super) async fn put(
    Client(engine): Client,
    options: Options,
    headers: HeaderMap,
    body: Body,
) -> Done<Response> {
    let all = Box::new(document(&headers, body)?);
    let change = Change::Access(AccessChange::All(all));
    let wanted = order(&engine, &headers, options, change).await?;
    Ok(with_tag(&wanted, Json(&*wanted.state.access)))
}

/// Want other access lists
///
/// A JSON merge patch (RFC 7396) of what `GET` gives: lists are replaced as a whole.
#[utoipa::path(patch, operation_id = "patch_access", path = "/v1/access", params(ChangeOptions, IfMatch), request_body = Value, responses(
    (status = 200, body = AccessModel)
))]
pub(super) async fn patch(
    Client(engine): Client,
    options: Options,
    headers: HeaderMap,
    body: Body,
) -> Done<Response> {
    let change = Change::PatchAccess(document(&headers, body)?);
    let wanted = order(&engine, &headers, options, change).await?;
    Ok(with_tag(&wanted, Json(&*wanted.state.access)))
}

/// Rules that never decide anything, and lists that are nobody's
#[utoipa::path(get, operation_id = "list_access_warnings", path = "/v1/access/warnings", responses((status = 200, body = AccessWarnings)))]
pub(super) async fn warnings(State(engine): State<EngineHandle>) -> Done<Response> {
    let wanted = engine.wanted().await?;
    let checked = check_access(&wanted.state);
    let doubts = checked.map_err(|invalid| invalid.to_problem_in(Some("access")))?;
    let shadow = |of: policy::acl::Shadowed| Shadow {
        list: of.rule.list,
        rule: of.rule.rule,
        by: of.by.rule,
    };
    let warnings = AccessWarnings {
        shadowed: doubts.shadowed.into_iter().map(shadow).collect(),
        unattached: doubts.unattached,
    };
    Ok(with_tag(&wanted, Json(warnings)))
}

/// What was counted for rules
///
/// Frames about which each rule has decided, their bytes, and when the last of them came. A rule that is changed keeps its counts.
#[utoipa::path(get, operation_id = "list_access_counts", path = "/v1/access/counts", params(CountsFilter), responses((status = 200, body = AccessCounts)))]
pub(super) async fn counts(
    State(engine): State<EngineHandle>,
    filter: Result<Query<CountsFilter>, QueryRejection>,
) -> Done<Json<AccessCounts>> {
    let filter = query(filter)?;
    let counted = engine.rule_counts().await?;
    Ok(Json(counted.document(&filter)?))
}

/// One access list
#[utoipa::path(get, operation_id = "get_access_list", path = "/v1/access/lists/{name}", params(NamePath), responses((status = 200, body = AccessListSpec)))]
pub(super) async fn show_list(State(engine): State<EngineHandle>, path: Name) -> Done<Response> {
    let name = name(path)?;
    let wanted = engine.wanted().await?;
    let list = wanted.state.access.list(&name);
    let list = list.ok_or_else(|| Problem::no_such_list(&name))?;
    Ok(with_tag(&wanted, Json(list)))
}

/// Want this access list; a new one goes behind the others
#[utoipa::path(put, operation_id = "put_access_list", path = "/v1/access/lists/{name}", params(NamePath, ChangeOptions, IfMatch), request_body = AccessListSpec, responses(
    (status = 200, body = AccessListSpec)
))]
pub(super) async fn put_list(
    Client(engine): Client,
    path: Name,
    options: Options,
    headers: HeaderMap,
    body: Body,
) -> Done<Response> {
    let list: AccessListSpec = document(&headers, body)?;
    same_name(&name(path)?, &list.name)?;
    let change = AccessChange::PutList(Box::new(list.clone()));
    let wanted = order_one(&engine, &headers, options, Change::Access(change)).await?;
    Ok(with_tag(&wanted, Json(list)))
}

/// Remove an access list
#[utoipa::path(delete, operation_id = "remove_access_list", path = "/v1/access/lists/{name}", params(NamePath, ChangeOptions, IfMatch), responses((status = 204)))]
pub(super) async fn remove_list(
    Client(engine): Client,
    path: Name,
    options: Options,
    headers: HeaderMap,
) -> Done<Response> {
    gone(
        &engine,
        &headers,
        options,
        AccessChange::RemoveList(name(path)?),
    )
    .await
}

/// Want this rule in a list; a new one goes behind the others
#[utoipa::path(put, operation_id = "put_access_rule", path = "/v1/access/lists/{list}/rules/{rule}", params(RulePath, ChangeOptions, IfMatch), request_body = RuleSpec, responses(
    (status = 200, body = RuleSpec)
))]
pub(super) async fn put_rule(
    Client(engine): Client,
    path: Names,
    options: Options,
    headers: HeaderMap,
    body: Body,
) -> Done<Response> {
    let rule: RuleSpec = document(&headers, body)?;
    let (list, name) = names(path)?;
    same_name(&name, &rule.name)?;
    let change = AccessChange::PutRule(list, Box::new(rule.clone()));
    let wanted = order_one(&engine, &headers, options, Change::Access(change)).await?;
    Ok(with_tag(&wanted, Json(rule)))
}

/// Remove a rule from a list
#[utoipa::path(delete, operation_id = "remove_access_rule", path = "/v1/access/lists/{list}/rules/{rule}", params(RulePath, ChangeOptions, IfMatch), responses((status = 204)))]
pub(super) async fn remove_rule(
    Client(engine): Client,
    path: Names,
    options: Options,
    headers: HeaderMap,
) -> Done<Response> {
    let (list, rule) = names(path)?;
    gone(
        &engine,
        &headers,
        options,
        AccessChange::RemoveRule(list, rule),
    )
    .await
}

/// One set of addresses
#[utoipa::path(get, operation_id = "get_address_set", path = "/v1/access/address_sets/{name}", params(NamePath), responses((status = 200, body = AddressSet)))]
pub(super) async fn show_set(State(engine): State<EngineHandle>, path: Name) -> Done<Response> {
    let name = name(path)?;
    let wanted = engine.wanted().await?;
    let mut sets = wanted.state.access.address_sets.iter();
    let set = sets.find(|set| set.name == name);
    let set = set.ok_or_else(|| nothing("address set", &name))?;
    Ok(with_tag(&wanted, Json(set)))
}

/// Want this set of addresses
#[utoipa::path(put, operation_id = "put_address_set", path = "/v1/access/address_sets/{name}", params(NamePath, ChangeOptions, IfMatch), request_body = AddressSet, responses(
    (status = 200, body = AddressSet)
))]
pub(super) async fn put_set(
    Client(engine): Client,
    path: Name,
    options: Options,
    headers: HeaderMap,
    body: Body,
) -> Done<Response> {
    let set: AddressSet = document(&headers, body)?;
    same_name(&name(path)?, &set.name)?;
    let change = Change::Access(AccessChange::PutSet(set.clone()));
    let wanted = order_one(&engine, &headers, options, change).await?;
    Ok(with_tag(&wanted, Json(set)))
}

/// Remove a set of addresses; no rule may name it
#[utoipa::path(delete, operation_id = "remove_address_set", path = "/v1/access/address_sets/{name}", params(NamePath, ChangeOptions, IfMatch), responses((status = 204)))]
pub(super) async fn remove_set(
    Client(engine): Client,
    path: Name,
    options: Options,
    headers: HeaderMap,
) -> Done<Response> {
    gone(
        &engine,
        &headers,
        options,
        AccessChange::RemoveSet(name(path)?),
    )
    .await
}

/// One group of ports
#[utoipa::path(get, operation_id = "get_group", path = "/v1/access/groups/{name}", params(NamePath), responses((status = 200, body = Group)))]
pub(super) async fn show_group(State(engine): State<EngineHandle>, path: Name) -> Done<Response> {
    let name = name(path)?;
    let wanted = engine.wanted().await?;
    let mut groups = wanted.state.access.groups.iter();
    let group = groups.find(|group| group.name == name);
    let group = group.ok_or_else(|| nothing("group", &name))?;
    Ok(with_tag(&wanted, Json(group)))
}

/// Want this group of ports
#[utoipa::path(put, path = "/v1/access/groups/{name}", params(NamePath, ChangeOptions, IfMatch), request_body = Group, responses(
    (status = 200, body = Group)
))]
pub(super) async fn put_group(
    Client(engine): Client,
    path: Name,
    options: Options,
    headers: HeaderMap,
    body: Body,
) -> Done<Response> {
    let group: Group = document(&headers, body)?;
    same_name(&name(path)?, &group.name)?;
    let change = Change::Access(AccessChange::PutGroup(group.clone()));
    let wanted = order_one(&engine, &headers, options, change).await?;
    Ok(with_tag(&wanted, Json(group)))
}

/// Remove a group of ports; no list may name it
#[utoipa::path(delete, path = "/v1/access/groups/{name}", params(NamePath, ChangeOptions, IfMatch), responses((status = 204)))]
pub(super) async fn remove_group(
    Client(engine): Client,
    path: Name,
    options: Options,
    headers: HeaderMap,
) -> Done<Response> {
    gone(
        &engine,
        &headers,
        options,
        AccessChange::RemoveGroup(name(path)?),
    )
    .await
}

/// Has something taken away.
async fn gone(
    engine: &EngineHandle,
    headers: &HeaderMap,
    options: Options,
    change: AccessChange,
) -> Done<Response> {
    let wanted = order_one(engine, headers, options, Change::Access(change)).await?;
    Ok(with_tag(&wanted, StatusCode::NO_CONTENT))
}

fn nothing(what: &str, name: &str) -> Problem {
    Problem::new(
        ProblemKind::NotFound,
        format!("there is no {what} `{name}`"),
    )
}

fn names(path: Names) -> Result<(String, String), Problem> {
    let Path(names) = path.map_err(|error| malformed(error.body_text()))?;
    Ok(names)
}

/// Names in a path.
#[derive(utoipa::IntoParams)]
#[into_params(parameter_in = Path)]
#[expect(dead_code, reason = "it is there to be described")]
pub(super) struct RulePath {
    /// The list's name.
    list: String,
    /// The rule's name.
    rule: String,
}
