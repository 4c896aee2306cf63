//! The connections that a port does not accept, and the pauses in which it accepts none.

use std::time::Instant;

use super::pause::Pauses;
use super::peer::PeerCheck;
use super::rejected::RejectedConnections;

/// The admission of connections to one port.
#[derive(Debug)]
pub(super) struct Admission {
    pub(super) rejected: RejectedConnections,
    pub(super) peer_check: PeerCheck,
    /// Pauses after connections that did harm.
    pub(super) pauses: Pauses,
    /// Pauses after connections that ended before features were chosen, or by breaking a rule.
    pub(super) failure_pauses: Pauses,
    /// Pauses after connections that could not be accepted, and wait.
    pub(super) accept_pauses: Pauses,
}

impl Default for Admission {
    fn default() -> Self {
        Self {
            rejected: RejectedConnections::default(),
            peer_check: PeerCheck::default(),
            pauses: Pauses::after_fault(),
            failure_pauses: Pauses::after_failure(),
            accept_pauses: Pauses::after_failed_accept(),
        }
    }
}

impl Admission {
    /// Returns the end of the present pause.
    pub(super) fn paused_until(&self) -> Option<Instant> {
        let all = [
            &self.pauses,
            &self.failure_pauses,
            &self.accept_pauses,
            &self.rejected.pauses,
        ];
        all.into_iter().filter_map(Pauses::until).max()
    }

    /// Ends a pause that is over. Returns whether the port accepts connections again.
    pub(super) fn end_pause(&mut self, now: Instant) -> bool {
        let all = [
            &mut self.pauses,
            &mut self.failure_pauses,
            &mut self.accept_pauses,
            &mut self.rejected.pauses,
        ];
        let over = all.map(|pauses| pauses.is_over(now));
        over.contains(&true) && self.paused_until().is_none()
    }
}
