//! Upgrade in progress.

use std::os::fd::AsFd;

use ipc::admin::Report;

use crate::admin::Client;
use crate::binaries::Binaries;
use crate::check::Check;
use crate::record::{IncomingFds, OutgoingFds, PassedUpgrade, RecordError};
use crate::renew::Renewing;

/// Stage of an upgrade.
pub(crate) enum Stage {
    Checking(Check),
    /// The supervisor was replaced; with a reason, it is the old one again.
    Replaced(Option<String>),
    HandingOver,
    /// Only drivers are left to replace.
    Renewing(Renewing),
}

/// Upgrade in progress.
pub(crate) struct Upgrade {
    pub(crate) client: Client,
    /// New binaries; the old ones after the hand-over.
    pub(crate) new: Binaries,
    pub(crate) stage: Stage,
    pub(crate) report: Report,
}

impl Upgrade {
    /// Returns the check of the new binaries, if it is running.
    pub(crate) fn check(&self) -> Option<&Check> {
        match &self.stage {
            Stage::Checking(check) => Some(check),
            _ => None,
        }
    }

    /// Adds the upgrade to the record for the next supervisor.
    pub(crate) fn pass<'a>(
        &'a self,
        failed: Option<String>,
        outgoing: &mut OutgoingFds<'a>,
    ) -> PassedUpgrade {
        PassedUpgrade {
            client: outgoing.add(self.client.as_fd()),
            new: self.new.pass(outgoing),
            from: self.report.from.clone(),
            to: self.report.to.clone(),
            failed,
        }
    }

    /// Takes the upgrade from the previous supervisor's record. `failed` is the reason of a
    /// rollback.
    ///
    /// # Errors
    /// A descriptor is missing.
    pub(crate) fn take(
        from: PassedUpgrade,
        failed: Option<String>,
        fds: &mut IncomingFds,
    ) -> Result<Self, RecordError> {
        Ok(Self {
            client: Client::of(fds.take(from.client)?),
            new: Binaries::take(from.new, fds)?,
            stage: Stage::Replaced(failed.or(from.failed)),
            report: Report {
                from: from.from,
                to: from.to,
                ..Report::default()
            },
        })
    }
}
