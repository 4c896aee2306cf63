//! Handlers of the paths of access lists.

use api::v1::{
    AccessCounts, AccessListSpec, AccessModel, AccessWarnings, AddressSet, ChangeOptions,
    CountsFilter, Group, Problem, RuleSpec, Shadow,
};
use axum::Json;
use axum::extract::State;
use serde_json::Value;

use super::STATE_MAX;
use super::endpoints::{endpoint, endpoints};
use super::extractors::{ChangeRequest, Document, Filter, PathName};
use super::handlers::{IfMatch, NamePath, with_tag};
use super::requests::same_name;
use crate::command::EngineHandle;
use config::desired::{AccessChange, Change, check_access};

endpoints! {
    /// Get the access lists
    get "/v1/access" => get_access(engine: Engine) -> 200 AccessModel {
        let desired = engine.desired().await?;
        Ok(with_tag(&desired, Json(&*desired.state.access)))
    }

    /// Replace the access lists
    put "/v1/access" =>
        replace_access(request: Change, all: Body<AccessModel, STATE_MAX>) -> 200 AccessModel {
        let change = AccessChange::All(Box::new(all));
        let desired = request.apply(Change::Access(change)).await?;
        Ok(with_tag(&desired, Json(&*desired.state.access)))
    }

    /// Update the access lists (JSON merge patch)
    ///
    /// A JSON merge patch (RFC 7396) of the document that `GET` returns: arrays are replaced as a
    /// whole.
    patch "/v1/access" =>
        patch_access(request: Change, patch: Body<Value, STATE_MAX>) -> 200 AccessModel {
        let desired = request.apply(Change::PatchAccess(patch)).await?;
        Ok(with_tag(&desired, Json(&*desired.state.access)))
    }

    /// List warnings about access lists
    get "/v1/access/warnings" => list_access_warnings(engine: Engine) -> 200 AccessWarnings {
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
    /// Frames that each rule has decided, their bytes, and the time since the last of them. A rule
    /// that is changed keeps its counters.
    get "/v1/access/counts" =>
        list_access_counts(engine: Engine, filter: Query<CountsFilter>) -> 200 AccessCounts {
        let counted = engine.rule_counts().await?;
        Ok(Json(counted.document(&filter)?))
    }

    /// Get an access list
    get "/v1/access/lists/{name}" =>
        get_access_list(engine: Engine, name: Name) -> 200 AccessListSpec {
        let desired = engine.desired().await?;
        let list = desired.state.access.list(&name);
        let list = list.ok_or_else(|| Problem::no_such("access list", &name))?;
        Ok(with_tag(&desired, Json(list)))
    }

    /// Create or replace an access list; a new one is added at the end
    put "/v1/access/lists/{name}" =>
        put_access_list(request: Change, name: Name, list: Body<AccessListSpec, STATE_MAX>)
            -> 200 AccessListSpec {
        same_name(&name, &list.name)?;
        let change = AccessChange::PutList(Box::new(list.clone()));
        request.put(Change::Access(change), list).await
    }

    /// Remove an access list
    delete "/v1/access/lists/{name}" => remove_access_list(request: Change, name: Name) -> 204 {
        request.remove(Change::Access(AccessChange::RemoveList(name))).await
    }

    /// Create or replace a rule; a new one is added at the end of its list
    put "/v1/access/lists/{list}/rules/{rule}" =>
        put_access_rule(request: Change, path: Path<RulePath>, rule: Body<RuleSpec>)
            -> 200 RuleSpec {
        same_name(&path.rule, &rule.name)?;
        let change = AccessChange::PutRule(path.list, Box::new(rule.clone()));
        request.put(Change::Access(change), rule).await
    }

    /// Remove a rule
    delete "/v1/access/lists/{list}/rules/{rule}" =>
        remove_access_rule(request: Change, path: Path<RulePath>) -> 204 {
        let change = AccessChange::RemoveRule(path.list, path.rule);
        request.remove(Change::Access(change)).await
    }

    /// Get an address set
    get "/v1/access/address_sets/{name}" =>
        get_address_set(engine: Engine, name: Name) -> 200 AddressSet {
        let desired = engine.desired().await?;
        let mut sets = desired.state.access.address_sets.iter();
        let set = sets.find(|set| set.name == name);
        let set = set.ok_or_else(|| Problem::no_such("address set", &name))?;
        Ok(with_tag(&desired, Json(set)))
    }

    /// Create or replace an address set
    put "/v1/access/address_sets/{name}" =>
        put_address_set(request: Change, name: Name, set: Body<AddressSet>) -> 200 AddressSet {
        same_name(&name, &set.name)?;
        let change = AccessChange::PutSet(set.clone());
        request.put(Change::Access(change), set).await
    }

    /// Remove an address set; no rule may refer to it
    delete "/v1/access/address_sets/{name}" =>
        remove_address_set(request: Change, name: Name) -> 204 {
        request.remove(Change::Access(AccessChange::RemoveSet(name))).await
    }

    /// Get a port group
    get "/v1/access/groups/{name}" => get_group(engine: Engine, name: Name) -> 200 Group {
        let desired = engine.desired().await?;
        let mut groups = desired.state.access.groups.iter();
        let group = groups.find(|group| group.name == name);
        let group = group.ok_or_else(|| Problem::no_such("group", &name))?;
        Ok(with_tag(&desired, Json(group)))
    }

    /// Create or replace a port group
    put "/v1/access/groups/{name}" =>
        put_group(request: Change, name: Name, group: Body<Group>) -> 200 Group {
        same_name(&name, &group.name)?;
        let change = AccessChange::PutGroup(group.clone());
        request.put(Change::Access(change), group).await
    }

    /// Remove a port group; no list may refer to it
    delete "/v1/access/groups/{name}" => remove_group(request: Change, name: Name) -> 204 {
        request.remove(Change::Access(AccessChange::RemoveGroup(name))).await
    }
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
