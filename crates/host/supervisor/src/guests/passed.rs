//! Hand-over of the source of vCPU states to the next supervisor.

use ipc::supervision::GuestStates;
use vcpus::Table;
use vcpus::load::{Descriptors, LoadError, Programs};

use super::search::Search;
use super::{Guests, StateSource};
use crate::record::{IncomingFds, OutgoingFds, PassedGuests, RecordError};

/// Reason of a supervisor that cannot use the programs of the version before.
const OTHER_LAYOUT: &str = "the version before has recorded them differently; restart to have them";

impl Guests {
    /// Adds settings and programs to the record for the next supervisor.
    pub(crate) fn pass<'a>(&'a self, outgoing: &mut OutgoingFds<'a>) -> PassedGuests {
        let threads = self.patterns.iter();
        let mut passed = PassedGuests {
            by: self.by,
            threads: threads.map(|(port, name)| (*port, name.clone())).collect(),
            programs: Vec::new(),
            reason: self.reason.clone(),
        };
        let mut add = |name: &str, fd| passed.programs.push((name.to_owned(), outgoing.add(fd)));
        if let StateSource::Programs(programs) = &self.source {
            programs.descriptors().for_each(|(name, fd)| add(name, fd));
        }
        self.search
            .descriptors()
            .for_each(|(name, fd)| add(&name, fd));
        for (name, fd) in &self.others {
            add(name, std::os::fd::AsFd::as_fd(fd));
        }
        passed
    }

    /// Takes them over. The first search is due at once.
    ///
    /// # Errors
    /// A descriptor is missing.
    pub(crate) fn take(passed: PassedGuests, fds: &mut IncomingFds) -> Result<Self, RecordError> {
        let mut others = Descriptors::new();
        for (name, index) in passed.programs {
            others.insert(name, fds.take(index)?);
        }
        let mut search = Search::default();
        if passed.by != GuestStates::Off {
            search.adopt(&mut others);
        }
        let (source, reason) = adopt(&mut others, passed.by, passed.reason);
        let counts = source.table().is_none_or(Table::counts_halts);
        Ok(Self {
            source,
            no_halts: (!counts).then(|| LoadError::NoKvm.to_string()),
            search,
            by: passed.by,
            reason,
            others,
            patterns: passed.threads.into_iter().collect(),
            ..Self::default()
        })
    }

    /// Ends programs that only the version before could use: it does not come back.
    pub(crate) fn forget_others(&mut self) {
        self.others.clear();
    }
}

/// Adopts the programs; returns also the reason why there are none.
fn adopt(
    passed: &mut Descriptors,
    by: GuestStates,
    reason: Option<String>,
) -> (StateSource, Option<String>) {
    if passed.is_empty() || by == GuestStates::Off {
        return (StateSource::Off, reason);
    }
    match Programs::adopt(passed) {
        Ok(programs) => (StateSource::Programs(programs), None),
        Err(error) => {
            tracing::warn!("vCPU states are off: {OTHER_LAYOUT} ({error})");
            (StateSource::Off, Some(OTHER_LAYOUT.to_owned()))
        }
    }
}
