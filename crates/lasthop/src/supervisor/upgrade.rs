//! `lasthop upgrade`: every process gives way to one of another version, and guests do not notice.
//!
//! ```text
//! check       the new binaries start, agree with each other and with what runs; else nothing is touched
//! replace     this process becomes the new supervisor, see [`super::replace`]
//! hand over   control and switch, see [`super::hand_over`]
//! renew       the drivers, one after the other, see [`super::renew`]
//! ```
//!
//! Whatever fails before the new pair serves, the supervisor becomes the old one again, and the old control and switch go on. A new
//! driver that fails has its predecessor's version again, and so have all that were not replaced by then.

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
use super::hand_over::{HandOver, Handed};
use super::renew::Renewing;
use super::replace::{Giving, PassedReport, PassedUpgrade, Taking};
use crate::admin::{Answer, Report, Request};
use crate::self_check::SelfCheck;

/// How far it is.
enum Stage {
    Checking(Check),
    /// The supervisor is a new one; or the old one again, with the reason.
    Replaced(Option<String>),
    HandingOver,
    /// The upgrade is done, but for drivers.
    Renewing(Renewing),
}

/// One upgrade.
pub(super) struct Upgrade {
    pub(super) client: Client,
    /// What it is to; once that serves, what it was from.
    pub(super) new: Binaries,
    stage: Stage,
    pub(super) report: Report,
    /// That of the record which the other side understands.
    record_version: u32,
}

impl Upgrade {
    fn check(&self) -> Option<&Check> {
        match &self.stage {
            Stage::Checking(check) => Some(check),
            _ => None,
        }
    }

    /// What it is to.
    pub(super) fn new_binaries(&self) -> &Binaries {
        &self.new
    }

    /// The version in which the other side is told what this one knows.
    pub(super) fn record_version(&self) -> u32 {
        self.record_version
    }

    /// For the supervisor that takes the place of this one, or gets it back.
    pub(super) fn pass<'a>(
        &'a self,
        failed: Option<String>,
        giving: &mut Giving<'a>,
    ) -> PassedUpgrade {
        PassedUpgrade {
            client: giving.give(self.client.as_fd()),
            new: self.new.pass(giving),
            report: PassedReport {
                from: self.report.from.clone(),
                to: self.report.to.clone(),
                ..PassedReport::default()
            },
            failed,
        }
    }

    /// The one that the supervisor before this one was about, which wrote a record of this version. `failed`: why that one
    /// could not go on.
    ///
    /// # Errors
    /// A descriptor is not there.
    pub(super) fn take(
        from: PassedUpgrade,
        record_version: u32,
        failed: Option<String>,
        fds: &mut Taking,
    ) -> Result<Self, String> {
        Ok(Self {
            client: Client::of(fds.take(from.client)?),
            new: Binaries::take(from.new, fds)?,
            stage: Stage::Replaced(failed.or(from.failed)),
            report: Report {
                from: from.report.from,
                to: from.report.to,
                ..Report::default()
            },
            record_version,
        })
    }
}

impl Supervisor {
    /// What says that there is something to do.
    pub(super) fn upgrade_sources(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let check = self.upgrade.as_ref().and_then(Upgrade::check);
        let checked = check.into_iter().flat_map(Check::sources);
        self.admin.sources().chain(checked)
    }

    /// When there is, at the latest.
    pub(super) fn upgrade_due(&self) -> Option<Instant> {
        let step = match self.upgrade.as_ref().map(|upgrade| &upgrade.stage) {
            Some(Stage::Checking(check)) => Some(check.due()),
            Some(Stage::Replaced(_)) => Some(Instant::now()),
            Some(Stage::HandingOver) => self.next.as_ref().map(HandOver::due),
            // Drivers say when they are due.
            Some(Stage::Renewing(_)) | None => None,
        };
        step.into_iter().chain(self.admin.due()).min()
    }

    /// Hears administrators, and goes on with what they asked for.
    pub(super) fn turn_upgrade(&mut self) {
        for (client, request) in self.admin.hear() {
            match request {
                Request::Upgrade { to } => {
                    let dir = to.unwrap_or_else(|| self.binaries.dir().to_owned());
                    self.begin_upgrade(client, &dir);
                }
                Request::Configuration => client.say(&match &self.config {
                    Some(config) => Answer::Configuration(config.clone()),
                    None => Answer::Refused("the file is not known".to_owned()),
                }),
            }
        }
        if let Some(upgrade) = self.upgrade.take() {
            self.upgrade = self.go_on_with(upgrade);
        }
    }

    /// The next step, if it is time; the upgrade, if it is not over.
    fn go_on_with(&mut self, mut upgrade: Upgrade) -> Option<Upgrade> {
        match &mut upgrade.stage {
            Stage::Checking(check) => match check.turn() {
                Ok(None) => Some(upgrade),
                Ok(Some(new)) => self.replace_supervisor(upgrade, new),
                Err(reason) => self.refuse(&upgrade.client, reason),
            },
            Stage::Replaced(None) => self.hand_over(upgrade),
            Stage::Replaced(Some(reason)) => {
                let reason = std::mem::take(reason);
                self.roll_back(&upgrade.client, reason)
            }
            Stage::HandingOver => match self.handed.take() {
                None => Some(upgrade),
                Some(handed) => self.handed_over(upgrade, handed),
            },
            Stage::Renewing(_) => self.go_on_renewing(upgrade),
        }
    }

    fn begin_upgrade(&mut self, client: Client, dir: &Path) {
        let why_not = if self.upgrade.is_some() {
            Some("another upgrade is under way")
        } else if !self.ready || !self.pair_is_whole() {
            Some("not everything is in place yet")
        } else {
            None
        };
        if let Some(reason) = why_not {
            return client.say(&Answer::Refused(reason.to_owned()));
        }
        self.tell(EventKind::Upgrade {
            by: events::asker(&client),
            progress: Progress::Begun,
            version: None,
            dir: Some(control::events::text(&dir.display().to_string())),
            gap_us: None,
            connections: None,
            reason: None,
        });
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
                    // Known once the new one has said what it reads.
                    record_version: 0,
                });
            }
        }
    }

    /// Opens the new binaries and has them check themselves.
    fn check_binaries(&self, dir: &Path) -> Result<(Binaries, Check), String> {
        let new = Binaries::open(dir).map_err(|e| e.to_string())?;
        new.are_trusted()?;
        let check = Check::start(&new, self.trial_record()?)?;
        Ok((new, check))
    }

    fn replace_supervisor(&mut self, mut upgrade: Upgrade, new: SelfCheck) -> Option<Upgrade> {
        let passed = format!("version {} passed its self-check", new.version);
        upgrade.client.say(&Answer::Doing(passed));
        upgrade.report.to = new.version;
        let own = SelfCheck::own().formats;
        let Some(version) = formats::newest(&own, &new.formats, formats::SUPERVISOR) else {
            return self.refuse(&upgrade.client, "it reads no record of ours".to_owned());
        };
        upgrade.record_version = version;
        // What the dead one said last has not been heard.
        if !self.pair_is_whole() {
            return self.refuse(&upgrade.client, "a process has ended meanwhile".to_owned());
        }
        self.reload.stop();
        self.tell_control_at_last();
        match self.become_another(&upgrade, None) {
            Ok(()) => Some(upgrade),
            Err(reason) => self.refuse(&upgrade.client, reason),
        }
    }

    fn hand_over(&mut self, mut upgrade: Upgrade) -> Option<Upgrade> {
        let replaced = "the supervisor was replaced".to_owned();
        upgrade.client.say(&Answer::Doing(replaced));
        upgrade.stage = Stage::HandingOver;
        if !self.pair_is_whole() {
            return self.go_back(upgrade, "a process has ended meanwhile".to_owned());
        }
        match self.begin_hand_over(&upgrade.new) {
            Ok(()) => Some(upgrade),
            Err(error) => self.go_back(upgrade, error.to_string()),
        }
    }

    fn handed_over(&mut self, mut upgrade: Upgrade, handed: Handed) -> Option<Upgrade> {
        let (gap_ms, connections) = match handed {
            Handed::Failed(reason) => return self.go_back(upgrade, reason),
            Handed::Done {
                gap_ms,
                connections,
            } => (gap_ms, connections),
        };
        (upgrade.report.gap_ms, upgrade.report.connections) = (gap_ms, connections);
        std::mem::swap(&mut self.binaries, &mut upgrade.new);
        self.tell(EventKind::Upgrade {
            by: events::asker(&upgrade.client),
            progress: Progress::Done,
            version: Some(upgrade.report.to.clone()),
            dir: None,
            gap_us: Some((gap_ms * 1000.0) as u64),
            connections: Some(connections),
            reason: None,
        });
        upgrade.stage = Stage::Renewing(Renewing::all(&self.drivers));
        self.go_on_renewing(upgrade)
    }

    fn go_on_renewing(&mut self, mut upgrade: Upgrade) -> Option<Upgrade> {
        let Stage::Renewing(renewing) = &mut upgrade.stage else {
            return Some(upgrade);
        };
        let done = renewing.turn(&mut self.drivers, &self.binaries, &mut upgrade.report);
        if !done {
            return Some(upgrade);
        }
        if let Some(reason) = &upgrade.report.drivers_stay {
            tracing::error!("drivers stay of the version before: {reason}");
            self.binaries.take_driver_of(upgrade.new);
        }
        upgrade.client.say(&Answer::Upgraded(upgrade.report));
        None
    }

    /// The old control and switch go on, and so does the old supervisor.
    fn go_back(&mut self, upgrade: Upgrade, reason: String) -> Option<Upgrade> {
        let Err(error) = self.become_another(&upgrade, Some(reason.clone())) else {
            return Some(upgrade);
        };
        self.roll_back(
            &upgrade.client,
            format!("{reason}; the supervisor stays the new one: {error}"),
        )
    }

    fn refuse(&mut self, client: &Client, reason: String) -> Option<Upgrade> {
        self.tell_not_upgraded(client, Progress::Refused, &reason);
        client.say(&Answer::Refused(reason));
        None
    }

    fn roll_back(&mut self, client: &Client, reason: String) -> Option<Upgrade> {
        self.tell_not_upgraded(client, Progress::RolledBack, &reason);
        client.say(&Answer::RolledBack(reason));
        None
    }

    fn tell_not_upgraded(&mut self, client: &Client, progress: Progress, reason: &str) {
        let by = events::asker(client);
        self.tell(EventKind::Upgrade {
            by,
            progress,
            version: None,
            dir: None,
            gap_us: None,
            connections: None,
            reason: Some(control::events::text(reason)),
        });
    }
}
