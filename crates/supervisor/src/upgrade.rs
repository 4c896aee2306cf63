//! `lasthop upgrade`: every process is replaced by one of another version, and guests stay
//! connected.
//!
//! ```text
//! check       the new binaries start, agree with each other and with the running ones, and accept
//!             the configuration file; else nothing is changed
//! replace     this process executes the new supervisor, see [`super::replace`]
//! hand over   control and switch, see [`super::hand_over`]
//! renew       the drivers, one after the other, see [`super::renew`]
//! ```
//!
//! After a failure before the new pair serves, the supervisor becomes the old one again, and the
//! old control and switch resume. If a new driver fails, it and all drivers that were not replaced
//! by then are started in the old version.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::time::Instant;

use api::v1::{EventKind, Progress};
use channel::formats;

use super::Supervisor;
use super::admin::Client;
use super::binaries::Binaries;
use super::check::Check;
use super::events;
use super::hand_over::{HandOver, HandOverResult};
use super::renew::Renewing;
use super::replace::{FdIndex, IncomingFds, OutgoingFds, PassedUpgrade};
use channel::admin::{Answer, Report, Request};
use process::self_check::SelfCheck;

/// Stage of an upgrade.
enum Stage {
    Checking(Check),
    /// The supervisor was replaced; with a reason, it is the old one again.
    Replaced(Option<String>),
    HandingOver,
    /// Only drivers are left to replace.
    Renewing(Renewing),
}

/// Upgrade in progress.
pub(super) struct Upgrade {
    pub(super) client: Client,
    /// New binaries; the old ones after the hand-over.
    pub(super) new: Binaries,
    stage: Stage,
    pub(super) report: Report,
    /// Record version that both supervisors understand.
    record_version: u32,
}

impl Upgrade {
    fn check(&self) -> Option<&Check> {
        match &self.stage {
            Stage::Checking(check) => Some(check),
            _ => None,
        }
    }

    /// Returns the new binaries.
    pub(super) fn new_binaries(&self) -> &Binaries {
        &self.new
    }

    /// Returns the record version that both supervisors understand.
    pub(super) fn record_version(&self) -> u32 {
        self.record_version
    }

    /// Adds the upgrade to the record for the next supervisor; the file of the new command line is
    /// beside it.
    pub(super) fn pass<'a>(
        &'a self,
        failed: Option<String>,
        outgoing: &mut OutgoingFds<'a>,
    ) -> (PassedUpgrade, FdIndex) {
        let (new, command_line) = self.new.pass(outgoing);
        let passed = PassedUpgrade {
            client: outgoing.add(self.client.as_fd()),
            new,
            from: self.report.from.clone(),
            to: self.report.to.clone(),
            failed,
        };
        (passed, command_line)
    }

    /// Takes the upgrade from the previous supervisor's record of this version. `failed` is the
    /// reason of a rollback.
    ///
    /// # Errors
    /// A descriptor is missing.
    pub(super) fn take(
        (from, command_line): (PassedUpgrade, Option<FdIndex>),
        record_version: u32,
        failed: Option<String>,
        fds: &mut IncomingFds,
    ) -> Result<Self, String> {
        Ok(Self {
            client: Client::of(fds.take(from.client)?),
            new: Binaries::take((from.new, command_line), fds)?,
            stage: Stage::Replaced(failed.or(from.failed)),
            report: Report {
                from: from.from,
                to: from.to,
                ..Report::default()
            },
            record_version,
        })
    }
}

impl Supervisor {
    /// Returns the descriptors to poll.
    pub(super) fn upgrade_sources(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let check = self.upgrade.as_ref().and_then(Upgrade::check);
        let checked = check.into_iter().flat_map(Check::sources);
        self.admin.sources().chain(checked)
    }

    /// Returns the time of the next timer.
    pub(super) fn upgrade_due(&self) -> Option<Instant> {
        let step = match self.upgrade.as_ref().map(|upgrade| &upgrade.stage) {
            Some(Stage::Checking(check)) => Some(check.due()),
            Some(Stage::Replaced(_)) => Some(Instant::now()),
            Some(Stage::HandingOver) => self.hand_over.next.as_ref().map(HandOver::due),
            // Drivers have their own timers.
            Some(Stage::Renewing(_)) | None => None,
        };
        step.into_iter().chain(self.admin.due()).min()
    }

    /// Handles requests of administrators, and continues the upgrade.
    pub(super) fn poll_upgrade(&mut self) {
        for (client, request) in self.admin.receive() {
            match request {
                Request::Upgrade { to } => {
                    let dir = to.unwrap_or_else(|| self.binaries.dir().to_owned());
                    self.start_upgrade(client, &dir);
                }
                Request::Configuration => client.send(&match &self.reload.config {
                    Some(config) => Answer::Configuration(config.clone()),
                    None => Answer::Refused("unknown configuration file".to_owned()),
                }),
            }
        }
        if let Some(upgrade) = self.upgrade.take() {
            self.upgrade = self.advance_upgrade(upgrade);
        }
    }

    /// Does the next step if it is due; returns the upgrade unless it is finished.
    fn advance_upgrade(&mut self, mut upgrade: Upgrade) -> Option<Upgrade> {
        match &mut upgrade.stage {
            Stage::Checking(check) => match check.poll() {
                Ok(None) => Some(upgrade),
                Ok(Some(new)) => self.replace_supervisor(upgrade, new),
                Err(reason) => self.refuse(&upgrade.client, reason),
            },
            Stage::Replaced(None) => self.hand_over(upgrade),
            Stage::Replaced(Some(reason)) => {
                let reason = std::mem::take(reason);
                self.roll_back(&upgrade.client, reason)
            }
            Stage::HandingOver => match self.hand_over.result.take() {
                None => Some(upgrade),
                Some(hand_over_result) => self.on_hand_over_result(upgrade, hand_over_result),
            },
            Stage::Renewing(_) => self.renew_drivers(upgrade),
        }
    }

    fn start_upgrade(&mut self, client: Client, dir: &Path) {
        let why_not = if self.upgrade.is_some() {
            Some("another upgrade is under way")
        } else if !self.ready || !self.pair_is_complete() {
            Some("not ready yet")
        } else {
            None
        };
        if let Some(reason) = why_not {
            return client.send(&Answer::Refused(reason.to_owned()));
        }
        let dir_text = api::v1::event_text::printable(&dir.display().to_string());
        self.emit_upgrade(&client, Progress::Started, Some(dir_text), None);
        match self.check_binaries(dir) {
            Err(reason) => drop(self.refuse(&client, reason)),
            Ok((new, check)) => {
                let from = SelfCheck::own().version;
                self.upgrade = Some(Upgrade {
                    client,
                    new,
                    stage: Stage::Checking(check),
                    report: Report {
                        from,
                        ..Report::default()
                    },
                    // Known after the self-check.
                    record_version: 0,
                });
            }
        }
    }

    /// Opens the new binaries and starts their self-checks.
    fn check_binaries(&self, dir: &Path) -> Result<(Binaries, Check), String> {
        let new = Binaries::open(dir).map_err(|e| e.to_string())?;
        new.are_trusted()?;
        let config = self.reload.config.as_deref();
        let check = Check::start(&new, self.trial_record()?, config, &self.home.dir)?;
        Ok((new, check))
    }

    fn replace_supervisor(&mut self, mut upgrade: Upgrade, new: SelfCheck) -> Option<Upgrade> {
        let passed = format!("version {} passed its self-check", new.version);
        upgrade.client.send(&Answer::Doing(passed));
        upgrade.report.to = new.version;
        let own = SelfCheck::own().formats;
        let Some(version) = formats::newest(&own, &new.formats, formats::SUPERVISOR) else {
            return self.refuse(&upgrade.client, "it cannot read our records".to_owned());
        };
        upgrade.record_version = version;
        // The last messages of a dead process were not handled.
        if !self.pair_is_complete() {
            return self.refuse(&upgrade.client, "a process has ended".to_owned());
        }
        self.reload.stop();
        self.flush_events();
        match self.exec_supervisor(&upgrade, None) {
            Ok(()) => Some(upgrade),
            Err(reason) => self.refuse(&upgrade.client, reason),
        }
    }

    fn hand_over(&mut self, mut upgrade: Upgrade) -> Option<Upgrade> {
        let replaced = "the supervisor was replaced".to_owned();
        upgrade.client.send(&Answer::Doing(replaced));
        upgrade.stage = Stage::HandingOver;
        if !self.pair_is_complete() {
            return self.revert_upgrade(upgrade, "a process has ended".to_owned());
        }
        match self.start_hand_over(&upgrade.new) {
            Ok(()) => Some(upgrade),
            Err(error) => self.revert_upgrade(upgrade, error.to_string()),
        }
    }

    fn on_hand_over_result(
        &mut self,
        mut upgrade: Upgrade,
        hand_over_result: HandOverResult,
    ) -> Option<Upgrade> {
        let (gap_ms, connections) = match hand_over_result {
            HandOverResult::Failed(reason) => return self.revert_upgrade(upgrade, reason),
            HandOverResult::Done {
                gap_ms,
                connections,
            } => (gap_ms, connections),
        };
        (upgrade.report.gap_ms, upgrade.report.connections) = (gap_ms, connections);
        std::mem::swap(&mut self.binaries, &mut upgrade.new);
        self.guests.forget_others();
        self.emit(EventKind::Upgrade {
            by: events::requester(&upgrade.client),
            progress: Progress::Done,
            version: Some(upgrade.report.to.clone()),
            dir: None,
            gap_us: Some((gap_ms * 1000.0) as u64),
            connections: Some(connections),
            reason: None,
        });
        upgrade.stage = Stage::Renewing(Renewing::all(&self.drivers));
        self.renew_drivers(upgrade)
    }

    fn renew_drivers(&mut self, mut upgrade: Upgrade) -> Option<Upgrade> {
        let Stage::Renewing(renewing) = &mut upgrade.stage else {
            return Some(upgrade);
        };
        let done = renewing.poll(&mut self.drivers, &self.binaries, &mut upgrade.report);
        if !done {
            return Some(upgrade);
        }
        if let Some(reason) = &upgrade.report.drivers_stay {
            tracing::error!("drivers not replaced: {reason}");
            self.binaries.take_driver_of(upgrade.new);
        }
        upgrade.client.send(&Answer::Upgraded(upgrade.report));
        None
    }

    /// Reverts to the old supervisor; the old control and switch resume.
    fn revert_upgrade(&mut self, upgrade: Upgrade, reason: String) -> Option<Upgrade> {
        let Err(error) = self.exec_supervisor(&upgrade, Some(reason.clone())) else {
            return Some(upgrade);
        };
        self.roll_back(
            &upgrade.client,
            format!("{reason}; the new supervisor cannot be reverted: {error}"),
        )
    }

    fn refuse(&mut self, client: &Client, reason: String) -> Option<Upgrade> {
        self.emit_not_upgraded(client, Progress::Refused, &reason);
        client.send(&Answer::Refused(reason));
        None
    }

    fn roll_back(&mut self, client: &Client, reason: String) -> Option<Upgrade> {
        self.emit_not_upgraded(client, Progress::RolledBack, &reason);
        client.send(&Answer::RolledBack(reason));
        None
    }

    fn emit_not_upgraded(&mut self, client: &Client, progress: Progress, reason: &str) {
        let reason = api::v1::event_text::printable(reason);
        self.emit_upgrade(client, progress, None, Some(reason));
    }

    /// Reports a step of an upgrade except for its success.
    fn emit_upgrade(
        &mut self,
        client: &Client,
        progress: Progress,
        dir: Option<String>,
        reason: Option<String>,
    ) {
        self.emit(EventKind::Upgrade {
            by: events::requester(client),
            progress,
            version: None,
            dir,
            gap_us: None,
            connections: None,
            reason,
        });
    }
}
