//! Changes of what is wanted, made ready by whoever asks for them: all that needs time, but not the switch, is done before the engine
//! hears of a change. It answers upcalls meanwhile.

use std::path::Path;

use api::v1::{Problem, WantedState};
use policy::acl::Names;

use super::access::Access;
use super::numbers::Numbers;
use super::saved::Written;
use crate::command::Request;
use crate::wanted::{Reach, placed, version};

/// What a change starts from.
#[derive(Clone, Debug, Default)]
pub struct Basis {
    pub(super) wanted: WantedState,
    pub(super) access: Access,
    pub(super) numbers: Numbers,
    pub(super) reach: Reach,
}

/// What a change leads to.
#[derive(Clone, Debug)]
pub struct Plan {
    before: (WantedState, Numbers),
    pub(super) after: WantedState,
    pub(super) access: Access,
    pub(super) written: Written,
}

impl Basis {
    /// A state that has no access lists, for tests without an engine.
    #[must_use]
    pub fn new(wanted: WantedState, runtime_dir: &Path) -> Self {
        Self {
            reach: Reach::of(&wanted, runtime_dir),
            wanted,
            ..Self::default()
        }
    }

    /// What is wanted.
    #[must_use]
    pub fn wanted(&self) -> &WantedState {
        &self.wanted
    }
}

impl Plan {
    /// Does of a change what can be done without the switch.
    ///
    /// # Errors
    /// 412 when the condition does not hold, and what is wrong with the change or what it would lead to.
    pub fn new(basis: &Basis, request: &Request) -> Result<Self, Problem> {
        let after = request.against(&basis.wanted, basis.reach.runtime_dir())?;
        let within = basis.reach.check(&after);
        within.map_err(|beyond| match request.change.port() {
            Some(_) => beyond.to_problem(),
            None => beyond.to_problem_in(None),
        })?;
        let mut numbers = basis.numbers.clone();
        let model = numbers.model(&after);
        let names = Names {
            segments: &model.segments,
            ports: &numbers.ports,
        };
        let access = basis.access.compiled(&after.access, names);
        let access = access.map_err(|error| placed(&after.access, &error).to_problem_in(None))?;
        // What it takes to know that is kept with the rules.
        let _ = version(&after);
        Ok(Self {
            before: (basis.wanted.clone(), basis.numbers.clone()),
            written: Written::new(&basis.wanted.access, &after.access)
                .map_err(|error| Problem::internal(error.to_string()))?,
            after,
            access,
        })
    }

    /// Plans the same from another basis. What was compiled is not compiled again, if it still holds.
    ///
    /// # Errors
    /// As [`Plan::new`].
    pub fn anew(&self, basis: Basis, request: &Request) -> Result<Self, Problem> {
        let basis = Basis {
            access: self.access.clone(),
            ..basis
        };
        Self::new(&basis, request)
    }

    /// What would be wanted.
    #[must_use]
    pub fn after(&self) -> &WantedState {
        &self.after
    }

    /// Whether it starts from this.
    pub(super) fn starts_from(&self, basis: &Basis) -> bool {
        let (wanted, numbers) = &self.before;
        (wanted, numbers) == (&basis.wanted, &basis.numbers)
    }
}
