//! The access lists as the engine has them: compiled, and compiled again only as far as they have changed.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::v1::{AccessListSpec, AccessModel, Problem};
use policy::acl::{AccessError, Names, Rules, few_changes};
use policy::{Model, PortId, Segment, SegmentId};

use super::Engine;
use crate::wanted::placed;

/// What was compiled last.
#[derive(Clone, Debug, Default)]
pub(crate) struct Access {
    model: Arc<AccessModel>,
    segments: BTreeMap<SegmentId, Segment>,
    ports: BTreeMap<String, PortId>,
    rules: Rules,
}

impl Access {
    /// Whether names mean what they did. One that nobody knew then is in no list that was right.
    fn means_the_same(&self, names: Names<'_>) -> bool {
        let port =
            |(name, id): (&String, &PortId)| names.ports.get(name).is_none_or(|now| now == id);
        let segment = |(id, was): (&SegmentId, &Segment)| {
            let mut segments = names.segments.iter();
            let now = segments.find(|(_, segment)| segment.name == was.name);
            now.is_none_or(|(now, _)| now == id)
        };
        self.ports.iter().all(port) && self.segments.iter().all(segment)
    }

    /// Another model with these names.
    ///
    /// # Errors
    /// What is wrong with it.
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

    /// Whether this is what was compiled.
    fn is_of(&self, model: &AccessModel) -> bool {
        *self.model == *model
    }

    /// Whether these names are those with which it was compiled.
    pub(super) fn has_names(&self, names: Names<'_>) -> bool {
        self.segments == *names.segments && self.ports == *names.ports
    }

    /// Whether there is still everything that there was.
    fn has_lost_nothing(&self, names: Names<'_>) -> bool {
        let segment = |was: &Segment| names.segments.values().any(|s| s.name == was.name);
        let mut ports = self.ports.keys();
        ports.all(|name| names.ports.contains_key(name)) && self.segments.values().all(segment)
    }

    /// Compiles a model, or changes what was compiled last.
    fn compile(&self, model: &Arc<AccessModel>, names: Names<'_>) -> Result<Rules, AccessError> {
        if self.means_the_same(names) && (self.has_lost_nothing(names) || knows_all(model, names)) {
            if Arc::ptr_eq(&self.model, model) || self.model == *model {
                return Ok(self.rules.with_ports(names));
            }
            // What cannot be changed one by one may be right all the same as a whole.
            if let Some(Ok(rules)) = self.with_few_changes(model, names) {
                return Ok(rules);
            }
        }
        Ok(Rules::compile(model, names)?.rules)
    }

    /// The rules with what is different in a model, if that is little.
    fn with_few_changes(
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

/// Whether there is still everything that a model names.
fn knows_all(model: &AccessModel, names: Names<'_>) -> bool {
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
    /// Compiles the wanted access lists; [`Engine::rules`] has them then.
    ///
    /// # Errors
    /// What is wrong with them; nothing has changed then.
    pub(super) fn compile_access(&mut self, model: &Model) -> Result<(), Problem> {
        let wanted = &self.saved.wanted;
        let access = Arc::clone(&wanted.access);
        let names = Names {
            segments: &model.segments,
            ports: &self.saved.numbers.ports,
        };
        let ahead = self.ahead.take();
        let ahead = ahead.filter(|ahead| ahead.has_names(names) && ahead.is_of(&access));
        let compiled = match ahead {
            Some(ahead) => Ok(ahead),
            None => self.access.compiled(&access, names),
        };
        self.access = compiled.map_err(|error| placed(&access, &error).to_problem_in(None))?;
        Ok(())
    }

    /// The access lists that were compiled last.
    pub(super) fn rules(&self) -> Rules {
        self.access.rules.clone()
    }
}
