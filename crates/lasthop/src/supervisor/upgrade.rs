//! `lasthop upgrade`: every process gives way to one of another version, and guests do not notice.
//!
//! ```text
//! check       the new binaries start, agree with each other and with what runs; else nothing is touched
//! hand over   control and switch, see [`super::hand_over`]
//! drivers     one after the other; their interfaces are ours and stay
//! ```

use std::os::fd::BorrowedFd;
use std::path::Path;
use std::time::Instant;

use super::Supervisor;
use super::admin::Client;
use super::binaries::Binaries;
use super::check::Check;
use super::hand_over::{HandOver, Handed};
use crate::admin::{Answer, Report, Request};
use crate::self_check::SelfCheck;

/// How far it is.
enum Stage {
    Checking(Check),
    HandingOver,
}

/// One upgrade.
pub(super) struct Upgrade {
    client: Client,
    new: Binaries,
    stage: Stage,
    report: Report,
}

impl Upgrade {
    /// Opens the new binaries and has them check themselves.
    fn begin(client: Client, dir: &Path) -> Result<Self, (Client, String)> {
        let begun = Binaries::open(dir).map_err(|e| e.to_string());
        let begun = begun.and_then(|new| {
            new.are_trusted()?;
            Ok((Check::start(&new)?, new))
        });
        match begun {
            Err(reason) => Err((client, reason)),
            Ok((check, new)) => Ok(Self {
                client,
                new,
                stage: Stage::Checking(check),
                report: Report {
                    from: SelfCheck::own().version,
                    ..Report::default()
                },
            }),
        }
    }

    fn check(&self) -> Option<&Check> {
        match &self.stage {
            Stage::Checking(check) => Some(check),
            Stage::HandingOver => None,
        }
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
        let check = self.upgrade.as_ref().and_then(Upgrade::check);
        let all = [
            self.admin.due(),
            check.map(Check::due),
            self.next.as_ref().map(HandOver::due),
        ];
        all.into_iter().flatten().min()
    }

    /// Hears administrators, and goes on with what they asked for.
    pub(super) fn turn_upgrade(&mut self) {
        let ours: Vec<u32> = self.processes().iter().skip(1).map(|p| p.pid).collect();
        for (client, Request::Upgrade { to }) in self.admin.hear(&ours) {
            let dir = to.unwrap_or_else(|| self.binaries.dir().to_owned());
            self.begin_upgrade(client, &dir);
        }
        match self.upgrade.as_mut().map(|upgrade| &mut upgrade.stage) {
            Some(Stage::Checking(check)) => {
                let checked = check.turn();
                self.checked(checked);
            }
            Some(Stage::HandingOver) => {
                if let Some(handed) = self.handed.take() {
                    self.handed_over(handed);
                }
            }
            None => {}
        }
    }

    fn begin_upgrade(&mut self, client: Client, dir: &Path) {
        let why_not = if self.upgrade.is_some() {
            Some("another upgrade is under way")
        } else if !self.ready {
            Some("not everything is in place yet")
        } else {
            None
        };
        if let Some(reason) = why_not {
            return client.say(&Answer::Refused(reason.to_owned()));
        }
        tracing::info!("upgrade to the binaries in {}", dir.display());
        match Upgrade::begin(client, dir) {
            Ok(upgrade) => self.upgrade = Some(upgrade),
            Err((client, reason)) => refuse(&client, reason),
        }
    }

    fn checked(&mut self, checked: Result<Option<SelfCheck>, String>) {
        let version = match checked {
            Ok(None) => return,
            Ok(Some(SelfCheck { version, .. })) => version,
            Err(reason) => {
                if let Some(upgrade) = self.upgrade.take() {
                    refuse(&upgrade.client, reason);
                }
                return;
            }
        };
        let Some(mut upgrade) = self.upgrade.take() else {
            return;
        };
        upgrade.client.say(&Answer::Doing(format!(
            "version {version} passed its self-check"
        )));
        upgrade.report.to = version;
        upgrade.stage = Stage::HandingOver;
        match self.begin_hand_over(&upgrade.new) {
            Ok(()) => self.upgrade = Some(upgrade),
            Err(error) => roll_back(&upgrade.client, error.to_string()),
        }
    }

    fn handed_over(&mut self, handed: Handed) {
        let Some(mut upgrade) = self.upgrade.take() else {
            return;
        };
        match handed {
            Handed::Failed(reason) => roll_back(&upgrade.client, reason),
            Handed::Done {
                gap_ms,
                connections,
            } => {
                (upgrade.report.gap_ms, upgrade.report.connections) = (gap_ms, connections);
                self.binaries = upgrade.new;
                let version = &upgrade.report.to;
                tracing::info!(version, gap_ms, connections, "upgraded");
                upgrade.client.say(&Answer::Upgraded(upgrade.report));
            }
        }
    }
}

fn refuse(client: &Client, reason: String) {
    tracing::warn!("no upgrade: {reason}");
    client.say(&Answer::Refused(reason));
}

fn roll_back(client: &Client, reason: String) {
    tracing::error!("the upgrade was rolled back: {reason}");
    client.say(&Answer::RolledBack(reason));
}
