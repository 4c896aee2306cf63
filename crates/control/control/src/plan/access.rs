//! Compiled access lists. A change recompiles only what it affects.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::v1::{AccessListSpec, AccessModel};
use policy::acl::{AccessError, Names, Rules, few_changes};
use policy::{PortId, Segment, SegmentId};

/// The access lists that were compiled last, with the names that they were compiled for.
#[derive(Clone, Debug, Default)]
pub(crate) struct Access {
    model: Arc<AccessModel>,
    segments: BTreeMap<SegmentId, Segment>,
    ports: BTreeMap<String, PortId>,
    classes: BTreeMap<String, u8>,
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
        let class = |(name, number): (&String, &u8)| {
            names.classes.get(name).is_none_or(|now| now == number)
        };
        self.ports.iter().all(port)
            && self.segments.iter().all(segment)
            && self.classes.iter().all(class)
    }

    /// Compiles another model with these names.
    ///
    /// # Errors
    /// The first error in the model.
    pub(crate) fn compiled(
        &self,
        model: &Arc<AccessModel>,
        names: Names<'_>,
    ) -> Result<Self, AccessError> {
        Ok(Self {
            rules: self.compile(model, names)?,
            model: Arc::clone(model),
            segments: names.segments.clone(),
            ports: names.ports.clone(),
            classes: names.classes.clone(),
        })
    }

    /// Returns the compiled lists.
    pub(crate) fn rules(&self) -> Rules {
        self.rules.clone()
    }

    /// Returns whether these lists were compiled from `model`.
    pub(crate) fn was_compiled_from(&self, model: &AccessModel) -> bool {
        *self.model == *model
    }

    /// Returns whether these lists were compiled for exactly these names.
    pub(crate) fn has_names(&self, names: Names<'_>) -> bool {
        self.segments == *names.segments
            && self.ports == *names.ports
            && self.classes == *names.classes
    }

    /// Returns whether all segments, ports and classes of these lists still exist.
    fn all_exist(&self, names: Names<'_>) -> bool {
        let segment = |was: &Segment| names.segments.values().any(|s| s.name == was.name);
        let mut ports = self.ports.keys();
        let mut classes = self.classes.keys();
        ports.all(|name| names.ports.contains_key(name))
            && classes.all(|name| names.classes.contains_key(name))
            && self.segments.values().all(segment)
    }

    /// Compiles a model, incrementally where possible.
    fn compile(&self, model: &Arc<AccessModel>, names: Names<'_>) -> Result<Rules, AccessError> {
        if self.has_same_numbers(names) && (self.all_exist(names) || names_exist(model, names)) {
            if Arc::ptr_eq(&self.model, model) || self.model == *model {
                return Ok(self.rules.with_names(names));
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
            changes.try_fold(self.rules.with_names(names), |rules, change| {
                Ok(rules.change(change)?.rules)
            }),
        )
    }
}

/// Returns whether all segments, ports and classes that a model names exist.
fn names_exist(model: &AccessModel, names: Names<'_>) -> bool {
    let segment = |name: &String| names.segments.values().any(|s| s.name == *name);
    let port = |name: &String| names.ports.contains_key(name);
    let list = |list: &AccessListSpec| {
        let rules = list.rules.iter();
        let mut peers = rules.clone().flat_map(|rule| &rule.peer_ports);
        let mut classes = rules.filter_map(|rule| rule.class.as_ref());
        list.segments.iter().all(segment)
            && list.ports.iter().all(port)
            && peers.all(port)
            && classes.all(|name| names.classes.contains_key(name))
    };
    model.lists.iter().all(list)
        && model.groups.iter().flat_map(|group| &group.ports).all(port)
        && model.defaults.iter().map(|d| &d.segment).all(segment)
}
