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

use std::os::fd::BorrowedFd;
use std::path::Path;
use std::time::Instant;

use model::{EventKind, Progress};

use super::admin::Client;
use super::binaries::{Binaries, BinaryError};
use super::check::{Check, CheckError};
use super::record::RecordError;
use super::renew::Renewing;
use super::replace::{self, ReplaceError};
use super::supervisor::Supervisor;
use super::supervisor::hand_over_state::HandOverResult;
use super::supervisor::upgrade_state::{Stage, Upgrade};
use super::{events, hand_over};
use ipc::admin::{Answer, Report, Request};
use process::self_check::SelfCheck;

/// Reason why an upgrade is refused, or goes no further.
#[derive(Debug, thiserror::Error)]
enum UpgradeError {
    #[error("another upgrade is under way")]
    Busy,
    #[error("not ready yet")]
    NotReady,
    #[error(transparent)]
    Binary(#[from] BinaryError),
    #[error(transparent)]
    Check(#[from] CheckError),
    #[error(transparent)]
    Record(#[from] RecordError),
    #[error(transparent)]
    Replace(#[from] ReplaceError),
    #[error("a process has ended")]
    ProcessEnded,
}

/// Returns the descriptors to poll.
pub(super) fn sources(supervisor: &Supervisor) -> impl Iterator<Item = BorrowedFd<'_>> {
    let check = supervisor.upgrade.as_ref().and_then(Upgrade::check);
    let checked = check.into_iter().flat_map(Check::sources);
    supervisor.admin.sources().chain(checked)
}

/// Returns the time of the next timer.
pub(super) fn due(supervisor: &Supervisor) -> Option<Instant> {
    let step = match supervisor.upgrade.as_ref().map(|upgrade| &upgrade.stage) {
        Some(Stage::Checking(check)) => Some(check.due()),
        Some(Stage::Replaced(_)) => Some(Instant::now()),
        Some(Stage::HandingOver) => supervisor.hand_over.due(),
        // Drivers have their own timers.
        Some(Stage::Renewing(_)) | None => None,
    };
    step.into_iter().chain(supervisor.admin.due()).min()
}

/// Handles requests of administrators, and continues the upgrade.
pub(super) fn poll(supervisor: &mut Supervisor) {
    for (client, request) in supervisor.admin.receive() {
        match request {
            Request::Upgrade { to } => {
                let dir = to.unwrap_or_else(|| supervisor.binaries.dir().to_owned());
                start(supervisor, client, &dir);
            }
            Request::Configuration => client.send(&match &supervisor.reload.config {
                Some(config) => Answer::Configuration(config.clone()),
                None => Answer::Refused("unknown configuration file".to_owned()),
            }),
        }
    }
    if let Some(upgrade) = supervisor.upgrade.take() {
        supervisor.upgrade = advance(supervisor, upgrade);
    }
}

/// Does the next step if it is due; returns the upgrade unless it is finished.
fn advance(supervisor: &mut Supervisor, mut upgrade: Upgrade) -> Option<Upgrade> {
    match &mut upgrade.stage {
        Stage::Checking(check) => match check.poll() {
            Ok(None) => Some(upgrade),
            Ok(Some(new)) => replace_supervisor(supervisor, upgrade, new),
            Err(error) => refuse(supervisor, &upgrade.client, &error.into()),
        },
        Stage::Replaced(None) => hand_over(supervisor, upgrade),
        Stage::Replaced(Some(reason)) => {
            let reason = std::mem::take(reason);
            roll_back(supervisor, &upgrade.client, reason)
        }
        Stage::HandingOver => match supervisor.hand_over.result.take() {
            None => Some(upgrade),
            Some(hand_over_result) => on_hand_over_result(supervisor, upgrade, hand_over_result),
        },
        Stage::Renewing(_) => renew_drivers(supervisor, upgrade),
    }
}

fn start(supervisor: &mut Supervisor, client: Client, dir: &Path) {
    let why_not = if supervisor.upgrade.is_some() {
        Some(UpgradeError::Busy)
    } else if !supervisor.ready || !supervisor.pair_is_complete() {
        Some(UpgradeError::NotReady)
    } else {
        None
    };
    if let Some(error) = why_not {
        return client.send(&Answer::Refused(error.to_string()));
    }
    let dir_text = model::event_text::printable(&dir.display().to_string());
    emit(supervisor, &client, Progress::Started, Some(dir_text), None);
    match check_binaries(supervisor, dir) {
        Err(error) => drop(refuse(supervisor, &client, &error)),
        Ok((new, check)) => {
            let from = SelfCheck::own().version;
            supervisor.upgrade = Some(Upgrade {
                client,
                new,
                stage: Stage::Checking(check),
                report: Report {
                    from,
                    ..Report::default()
                },
            });
        }
    }
}

/// Opens the new binaries and starts their self-checks.
fn check_binaries(supervisor: &Supervisor, dir: &Path) -> Result<(Binaries, Check), UpgradeError> {
    let new = Binaries::open(dir).map_err(BinaryError::from)?;
    new.are_trusted()?;
    let config = supervisor.reload.config.as_deref();
    let record = replace::trial_record(supervisor)?;
    let check = Check::start(&new, record, config, &supervisor.home.dir)?;
    Ok((new, check))
}

fn replace_supervisor(
    supervisor: &mut Supervisor,
    mut upgrade: Upgrade,
    new: SelfCheck,
) -> Option<Upgrade> {
    let passed = format!("version {} passed its self-check", new.version);
    upgrade.client.send(&Answer::Doing(passed));
    upgrade.report.to = new.version;
    // The last messages of a dead process were not handled.
    if !supervisor.pair_is_complete() {
        return refuse(supervisor, &upgrade.client, &UpgradeError::ProcessEnded);
    }
    supervisor.reload.stop();
    // The next supervisor would not know them.
    supervisor.end_spares();
    supervisor.flush_events();
    match replace::exec(supervisor, &upgrade, None) {
        Ok(()) => Some(upgrade),
        Err(error) => refuse(supervisor, &upgrade.client, &error.into()),
    }
}

fn hand_over(supervisor: &mut Supervisor, mut upgrade: Upgrade) -> Option<Upgrade> {
    let replaced = "the supervisor was replaced".to_owned();
    upgrade.client.send(&Answer::Doing(replaced));
    upgrade.stage = Stage::HandingOver;
    if !supervisor.pair_is_complete() {
        return revert(supervisor, upgrade, UpgradeError::ProcessEnded.to_string());
    }
    match hand_over::start(supervisor, &upgrade.new) {
        Ok(()) => Some(upgrade),
        Err(error) => revert(supervisor, upgrade, error.to_string()),
    }
}

fn on_hand_over_result(
    supervisor: &mut Supervisor,
    mut upgrade: Upgrade,
    hand_over_result: HandOverResult,
) -> Option<Upgrade> {
    let (gap_ms, connections, table) = match hand_over_result {
        HandOverResult::Failed(error) => return revert(supervisor, upgrade, error.to_string()),
        HandOverResult::Done {
            gap_ms,
            connections,
            table,
        } => (gap_ms, connections, table),
    };
    upgrade.report.table = table;
    (upgrade.report.gap_ms, upgrade.report.connections) = (gap_ms, connections);
    std::mem::swap(&mut supervisor.binaries, &mut upgrade.new);
    supervisor.guests.forget_others();
    supervisor.events.emit(EventKind::Upgrade {
        by: events::requester(&upgrade.client),
        progress: Progress::Done,
        version: Some(upgrade.report.to.clone()),
        dir: None,
        gap_us: Some((gap_ms * 1000.0) as u64),
        connections: Some(connections),
        reason: None,
    });
    upgrade.stage = Stage::Renewing(Renewing::all(&supervisor.drivers));
    renew_drivers(supervisor, upgrade)
}

fn renew_drivers(supervisor: &mut Supervisor, mut upgrade: Upgrade) -> Option<Upgrade> {
    let Stage::Renewing(renewing) = &mut upgrade.stage else {
        return Some(upgrade);
    };
    let done = renewing.poll(
        &mut supervisor.drivers,
        &supervisor.binaries,
        &mut upgrade.report,
    );
    if !done {
        return Some(upgrade);
    }
    if let Some(reason) = &upgrade.report.drivers_stay {
        tracing::error!("drivers not replaced: {reason}");
        supervisor.binaries.take_driver_of(upgrade.new);
    }
    upgrade.report.prefilters_stay = supervisor.drivers.has_other_prefilters();
    upgrade.client.send(&Answer::Upgraded(upgrade.report));
    None
}

/// Reverts to the old supervisor; the old control and switch resume.
fn revert(supervisor: &mut Supervisor, upgrade: Upgrade, reason: String) -> Option<Upgrade> {
    let Err(error) = replace::exec(supervisor, &upgrade, Some(reason.clone())) else {
        return Some(upgrade);
    };
    roll_back(
        supervisor,
        &upgrade.client,
        format!("{reason}; the new supervisor cannot be reverted: {error}"),
    )
}

fn refuse(supervisor: &mut Supervisor, client: &Client, error: &UpgradeError) -> Option<Upgrade> {
    let reason = error.to_string();
    emit_failure(supervisor, client, Progress::Refused, &reason);
    client.send(&Answer::Refused(reason));
    None
}

fn roll_back(supervisor: &mut Supervisor, client: &Client, reason: String) -> Option<Upgrade> {
    emit_failure(supervisor, client, Progress::RolledBack, &reason);
    client.send(&Answer::RolledBack(reason));
    None
}

fn emit_failure(supervisor: &mut Supervisor, client: &Client, progress: Progress, reason: &str) {
    let reason = model::event_text::printable(reason);
    emit(supervisor, client, progress, None, Some(reason));
}

/// Reports a step of an upgrade except for its success.
fn emit(
    supervisor: &mut Supervisor,
    client: &Client,
    progress: Progress,
    dir: Option<String>,
    reason: Option<String>,
) {
    supervisor.events.emit(EventKind::Upgrade {
        by: events::requester(client),
        progress,
        version: None,
        dir,
        gap_us: None,
        connections: None,
        reason,
    });
}
