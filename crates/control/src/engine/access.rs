//! Compiled access lists. A change recompiles only what it affects.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::v1::{AccessListSpec, AccessModel, Problem};
use policy::acl::{AccessError, Names, Rules, few_changes};
use policy::{Model, PortId, Segment, SegmentId};

use super::Engine;
use config::desired::placed;

/// The access lists that were compiled last, with the names that they were compiled for.
#[derive(Clone, Debug, Default)]
pub(crate) struct Access {
    model: Arc<AccessModel>,
    segments: BTreeMap<SegmentId, Segment>,
    ports: BTreeMap<String, PortId>,
    rules: Rules,
}

impl Access {
    /// Returns whether all names still have the same numbers. Names that are new cannot occur in
    /// lists that were valid before.
    fn has_same_numbers(&self, names: Names<'_>) -> bool {
        let port =
            |(name, id): (&String, &PortId)| names.ports.get(name).is_none_or(|now| now == id);
        let segment = |(id, was): (&SegmentId, &Segment)| {
            let mut segments = names.segments.iter();
            let now = segments.find(|(_, segment)| segment.name == was.name);
            now.is_none_or(|(now, _)| now == id)
        };
        self.ports.iter().all(port) && self.segments.iter().all(segment)
    }

    /// Compiles another model with these names.
    ///
    /// # Errors
    /// The first error in the model.
    pub(super) fn compiled(
        &self,
        model: &Arc<AccessModel>,
        names: Names<'_>,
    ) -> Result<Self, AccessError> {
        Ok(Self {
            rules: self.compile(model, names)?,
            model: Arc::clone(model),
            segments: names.segments.clone(),
            ports: names.ports.clone(),
        })
    }

    /// Returns whether these lists were compiled from `model`.
    fn was_compiled_from(&self, model: &AccessModel) -> bool {
        *self.model == *model
    }

    /// Returns whether these lists were compiled for exactly these names.
    pub(super) fn has_names(&self, names: Names<'_>) -> bool {
        self.segments == *names.segments && self.ports == *names.ports
    }

    /// Returns whether all segments and ports of these lists still exist.
    fn all_exist(&self, names: Names<'_>) -> bool {
        let segment = |was: &Segment| names.segments.values().any(|s| s.name == was.name);
        let mut ports = self.ports.keys();
        ports.all(|name| names.ports.contains_key(name)) && self.segments.values().all(segment)
    }

    /// Compiles a model, incrementally where possible.
    fn compile(&self, model: &Arc<AccessModel>, names: Names<'_>) -> Result<Rules, AccessError> {
        if self.has_same_numbers(names) && (self.all_exist(names) || names_exist(model, names)) {
            if Arc::ptr_eq(&self.model, model) || self.model == *model {
                return Ok(self.rules.with_ports(names));
            }
            // Changes that fail one by one may be valid together.
            if let Some(Ok(rules)) = self.apply_few_changes(model, names) {
                return Ok(rules);
            }
        }
        Ok(Rules::compile(model, names)?.rules)
    }

    /// Applies the differences of a model to the rules, if they are few.
    fn apply_few_changes(
        &self,
        model: &AccessModel,
        names: Names<'_>,
    ) -> Option<Result<Rules, AccessError>> {
        let changes = few_changes(&self.model, model)?;
        let mut changes = changes.iter();
        Some(
            changes.try_fold(self.rules.with_ports(names), |rules, change| {
                Ok(rules.change(change)?.rules)
            }),
        )
    }
}

/// Returns whether all segments and ports that a model names exist.
fn names_exist(model: &AccessModel, names: Names<'_>) -> bool {
    let segment = |name: &String| names.segments.values().any(|s| s.name == *name);
    let port = |name: &String| names.ports.contains_key(name);
    let list = |list: &AccessListSpec| {
        let rules = list.rules.iter();
        let mut peers = rules.flat_map(|rule| &rule.peer_ports);
        list.segments.iter().all(segment) && list.ports.iter().all(port) && peers.all(port)
    };
    model.lists.iter().all(list)
        && model.groups.iter().flat_map(|group| &group.ports).all(port)
        && model.defaults.iter().map(|d| &d.segment).all(segment)
}

impl Engine {
    /// Compiles the desired access lists for [`Engine::rules`].
    ///
    /// # Errors
    /// The first error in them; nothing has changed then.
    pub(super) fn compile_access(&mut self, model: &Model) -> Result<(), Problem> {
        let desired = &self.saved.desired;
        let access = Arc::clone(&desired.access);
        let names = Names {
            segments: &model.segments,
            ports: &self.saved.numbers.ports,
        };
        let precompiled = self.precompiled.take();
        let precompiled = precompiled.filter(|precompiled| {
            precompiled.has_names(names) && precompiled.was_compiled_from(&access)
        });
        let compiled = match precompiled {
            Some(precompiled) => Ok(precompiled),
            None => self.access.compiled(&access, names),
        };
        self.access = compiled.map_err(|error| placed(&access, &error).to_problem_in(None))?;
        Ok(())
    }

    /// Returns the access lists that were compiled last.
    pub(super) fn rules(&self) -> Rules {
        self.access.rules.clone()
    }
}
