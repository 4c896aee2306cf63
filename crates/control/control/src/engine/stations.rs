//! The periodic request for the FDB entries whose flows are in use.

use std::io;
use std::time::Duration;

use ipc::switching::SwitchCommand;

use super::links::switch::SwitchLink;

/// Difference, 1 s, that the clocks of switch and control may have between two requests.
const OVERLAP: Duration = Duration::from_secs(1);

/// See the module documentation.
#[derive(Debug)]
pub(super) struct StationReports {
    /// Number and time of the open request.
    pub(super) open: Option<(u64, Duration)>,
    /// Time of the last request that was completed.
    last: Duration,
}

impl StationReports {
    /// Starts at this time.
    pub(super) fn new(now: Duration) -> Self {
        let open = None;
        Self { open, last: now }
    }

    /// Requests the entries that were in use since the last reply, unless a request is open.
    ///
    /// # Errors
    /// The switch is gone.
    pub(super) fn request(&mut self, now: Duration, switch: &mut SwitchLink) -> io::Result<()> {
        if self.open.is_some() {
            return Ok(());
        }
        let within = now.saturating_sub(self.last) + OVERLAP;
        let within_ms = u32::try_from(within.as_millis()).unwrap_or(u32::MAX);
        let number = switch.send(SwitchCommand::Stations { within_ms })?;
        self.open = Some((number, now));
        Ok(())
    }

    /// Completes the request, if this command is the one for it; returns whether it is.
    pub(super) fn finish(&mut self, number: u64) -> bool {
        let finished = self.open.take_if(|(open, _)| *open == number);
        self.last = finished.map_or(self.last, |(_, sent_at)| sent_at);
        finished.is_some()
    }
}
