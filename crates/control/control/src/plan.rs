//! Planned changes of the desired state. Everything that takes time but not the switch is done by
//! the requester, before the engine gets the change. The engine handles upcalls meanwhile.

mod access;

use std::path::Path;

use api::v1::{DesiredState, Problem, ProblemKind};
use policy::acl::Names;

use crate::saved::{EncodedChunks, Numbers};
use config::desired::qos::{self, Speeds};
use config::desired::{Change, Place, changed, check_reach, placed, reach_of, version};
use ipc::sockets::Reach;

pub(crate) use access::Access;

/// A change that a client requests.
#[derive(Clone, Debug)]
pub struct Request {
    /// The change.
    pub change: Change,
    /// Its condition.
    pub condition: Condition,
}

impl Request {
    /// Returns the desired state after the change of `state`; checked and normalised.
    ///
    /// # Errors
    /// 412 when the condition does not hold, and those of [`config::desired::changed`].
    pub fn apply_to(
        &self,
        state: &DesiredState,
        runtime_dir: &Path,
    ) -> Result<DesiredState, Problem> {
        self.condition.check(&version(state))?;
        changed(state, &self.change, runtime_dir)
    }
}

/// Versions of the desired state that a change may start from (`If-Match`, RFC 9110, 13.1.1).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Condition {
    /// Any version.
    #[default]
    Any,
    /// One of these versions ([`config::desired::version`]); an empty list matches none.
    OneOf(Vec<String>),
}

impl Condition {
    /// Returns a 412 unless the condition holds.
    fn check(&self, version: &str) -> Result<(), Problem> {
        match self {
            Self::OneOf(versions) if !versions.iter().any(|v| v == version) => {
                let detail = format!(
                    "the desired state has changed: its ETag \"{version}\" is not in If-Match"
                );
                Err(Problem::new(ProblemKind::Outdated, detail))
            }
            _ => Ok(()),
        }
    }
}

/// The state that a change starts from.
#[derive(Clone, Debug, Default)]
pub struct Basis {
    pub(crate) desired: DesiredState,
    pub(crate) access: Access,
    pub(crate) numbers: Numbers,
    pub(crate) reach: Reach,
    pub(crate) speeds: Speeds,
}

/// A prepared change.
#[derive(Clone, Debug)]
pub struct Plan {
    before: (DesiredState, Numbers),
    pub(crate) after: DesiredState,
    pub(crate) access: Access,
    pub(crate) encoded: EncodedChunks,
}

impl Basis {
    /// Creates a basis without access lists, for tests without an engine.
    #[must_use]
    pub fn new(desired: DesiredState, runtime_dir: &Path) -> Self {
        Self {
            reach: reach_of(&desired, runtime_dir),
            desired,
            ..Self::default()
        }
    }

    /// Returns the desired state.
    #[must_use]
    pub fn desired(&self) -> &DesiredState {
        &self.desired
    }
}

impl Plan {
    /// Does the part of a change that does not need the switch.
    ///
    /// # Errors
    /// 412 when the condition does not hold, and any error in the change or in its result.
    pub fn new(basis: &Basis, request: &Request) -> Result<Self, Problem> {
        let after = request.apply_to(&basis.desired, basis.reach.runtime_dir())?;
        let within = check_reach(&basis.reach, &after);
        within.map_err(|beyond| match request.change.port() {
            Some(_) => beyond.to_problem(),
            None => beyond.to_problem_in(None),
        })?;
        let promised = qos::foresee(&after, &basis.desired, &basis.speeds);
        promised.map_err(|invalid| match (request.change.port(), invalid.place) {
            (Some(_), Place::Qos(_)) => invalid.to_problem(),
            _ => invalid.to_problem_in(None),
        })?;
        let mut numbers = basis.numbers.clone();
        let model = numbers.model(&after);
        let names = Names {
            segments: &model.segments,
            ports: &numbers.ports,
            classes: &numbers.classes,
        };
        let access = basis.access.compiled(&after.access, names);
        let access = access.map_err(|error| placed(&after.access, &error).to_problem_in(None))?;
        // Computes the version here: the parts of it are cached with the rules.
        let _ = version(&after);
        Ok(Self {
            before: (basis.desired.clone(), basis.numbers.clone()),
            encoded: EncodedChunks::new(&basis.desired.access, &after.access)
                .map_err(|error| Problem::internal(error.to_string()))?,
            after,
            access,
        })
    }

    /// Plans the same change on another basis. Compiled access lists are reused where they still
    /// hold.
    ///
    /// # Errors
    /// As [`Plan::new`].
    pub fn replan(&self, basis: Basis, request: &Request) -> Result<Self, Problem> {
        let basis = Basis {
            access: self.access.clone(),
            ..basis
        };
        Self::new(&basis, request)
    }

    /// Returns the desired state after the change.
    #[must_use]
    pub fn after(&self) -> &DesiredState {
        &self.after
    }

    /// Returns whether this basis is the one that the change was planned on.
    pub(crate) fn is_based_on(&self, basis: &Basis) -> bool {
        let (desired, numbers) = &self.before;
        (desired, numbers) == (&basis.desired, &basis.numbers)
    }
}
