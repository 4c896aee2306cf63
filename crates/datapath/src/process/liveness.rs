//! Liveness of all threads. The supervisor sends pings, and ends a process that does not reply.
//!
//! The session thread replies when every worker has acknowledged a probe, that is, has done its
//! earlier jobs. It does not block on a worker. While the switch is quiesced, it replies at once.

use crate::worker::workers::Workers;

/// The probe of one ping.
#[derive(Debug, Default)]
pub(super) struct Liveness {
    /// Workers that have not acknowledged the probe.
    pending_acks: usize,
}

impl Liveness {
    /// Probes all workers for a ping of the supervisor.
    pub(super) fn probe(&mut self, workers: &Workers) {
        self.pending_acks = workers.threads();
        workers.probe();
    }

    /// Counts the acknowledgement of a worker. Returns whether it was the last one.
    pub(super) fn worker_acked(&mut self) -> bool {
        self.pending_acks = self.pending_acks.saturating_sub(1);
        self.pending_acks == 0
    }
}
