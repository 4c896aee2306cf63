//! Last step of an upgrade: drivers are replaced by those of the new version, one after the other.

use std::collections::VecDeque;

use super::binaries::Binaries;
use super::drivers::{Drivers, RenewalResult};
use ipc::admin::{DriverGap, Report};

/// Replacement of all drivers.
pub(super) struct Renewing {
    /// Ports with drivers that were not replaced yet.
    waiting: VecDeque<String>,
    /// Port of the driver that is being replaced.
    now: Option<String>,
}

impl Renewing {
    /// Returns the replacement of all serving drivers.
    pub(super) fn all(drivers: &Drivers) -> Self {
        Self {
            waiting: drivers.serving().map(str::to_owned).collect(),
            now: None,
        }
    }

    /// Continues; returns `true` at the end, also after a failure. The results are in the report.
    pub(super) fn poll(
        &mut self,
        drivers: &mut Drivers,
        binaries: &Binaries,
        report: &mut Report,
    ) -> bool {
        loop {
            if let Some(port) = &self.now {
                match drivers.renewed(port) {
                    None => return false,
                    Some(RenewalResult::Done(gap)) => report.drivers.push(DriverGap {
                        port: port.clone(),
                        gap_ms: gap.as_secs_f64() * 1e3,
                    }),
                    Some(RenewalResult::Gone) => {}
                    Some(RenewalResult::Failed(reason)) => {
                        report.drivers_stay = Some(format!("driver of {port}: {reason}"));
                        return true;
                    }
                }
            }
            self.now = self.waiting.pop_front();
            let Some(port) = &self.now else { return true };
            match drivers.renew(port, binaries) {
                Ok(true) => return false,
                // It has ended meanwhile; its successor is of the new version.
                Ok(false) => self.now = None,
                Err(error) => {
                    report.drivers_stay = Some(format!("driver of {port}: {error}"));
                    return true;
                }
            }
        }
    }
}
