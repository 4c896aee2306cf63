//! Changes of classes and groups of senders.

use api::v1::{DEFAULT_CLASS, DesiredState, Problem, ProblemKind, QosClassSpec, QosGroupSpec};
use serde_json::Value;

use super::super::invalid::Place;
use super::super::patch::patched_object;
use super::super::references;

/// A change of a class or of a group.
#[derive(Clone, Debug, PartialEq)]
pub enum QosChange {
    /// Adds a class.
    AddClass(QosClassSpec),
    /// Updates the class of this name with a merge patch.
    SetClass(String, Value),
    /// Removes a class.
    RemoveClass(String),
    /// Adds a group.
    AddGroup(QosGroupSpec),
    /// Updates the group of this name with a merge patch.
    SetGroup(String, Value),
    /// Removes a group.
    RemoveGroup(String),
}

impl QosChange {
    /// Returns the state after the change, unchecked.
    ///
    /// # Errors
    /// 404 for an unknown name, 409 for a name that is taken and for the removal of the default
    /// class, 422 for the removal of a class or group that is in use.
    pub(in crate::desired) fn apply(&self, state: &DesiredState) -> Result<DesiredState, Problem> {
        let mut new = state.clone();
        match self {
            Self::AddClass(spec) => new.qos_classes.push(spec.clone()),
            Self::SetClass(name, patch) => {
                let class = class(&mut new, name)?;
                *class = patched_object(class, patch)?;
            }
            Self::RemoveClass(name) => {
                class(&mut new, name)?;
                if name == DEFAULT_CLASS {
                    let detail = format!("there always is a class `{name}`");
                    return Err(Problem::new(ProblemKind::Fixed, detail).with_field("name"));
                }
                references::qos_class(state, name)?;
                new.qos_classes.retain(|class| class.name != *name);
            }
            Self::AddGroup(spec) => new.qos_groups.push(spec.clone()),
            Self::SetGroup(name, patch) => {
                let group = group(&mut new, name)?;
                *group = patched_object(group, patch)?;
            }
            Self::RemoveGroup(name) => {
                group(&mut new, name)?;
                references::qos_group(state, name)?;
                new.qos_groups.retain(|group| group.name != *name);
            }
        }
        Ok(new)
    }

    /// Returns whether a place in a state is the object that the change adds or updates.
    pub(in crate::desired) fn is_about(&self, state: &DesiredState, place: Place) -> bool {
        match (self, place) {
            (Self::AddClass(_), Place::QosClass(at)) => at + 1 == state.qos_classes.len(),
            (Self::AddGroup(_), Place::QosGroup(at)) => at + 1 == state.qos_groups.len(),
            (Self::SetClass(name, _), Place::QosClass(at)) => state.qos_classes[at].name == *name,
            (Self::SetGroup(name, _), Place::QosGroup(at)) => state.qos_groups[at].name == *name,
            _ => false,
        }
    }
}

/// Returns a class of a state. The default class is there, listed or not.
fn class<'a>(state: &'a mut DesiredState, name: &str) -> Result<&'a mut QosClassSpec, Problem> {
    if name == DEFAULT_CLASS && state.qos_class(name).is_none() {
        state.qos_classes.insert(0, QosClassSpec::new(name));
    }
    let found = state
        .qos_classes
        .iter_mut()
        .find(|class| class.name == name);
    found.ok_or_else(|| Problem::no_such("class", name))
}

fn group<'a>(state: &'a mut DesiredState, name: &str) -> Result<&'a mut QosGroupSpec, Problem> {
    let found = state.qos_groups.iter_mut().find(|group| group.name == name);
    found.ok_or_else(|| Problem::no_such("group", name))
}
