//! Liveness of all threads. The supervisor sends pings, and ends a process that does not reply.
//!
//! The session thread replies when every worker has acknowledged a probe, that is, has done its
//! earlier jobs. It does not block on a worker. While the switch is quiesced, it replies at once.

use channel::supervision::SupervisorRequest;

use super::Process;

/// The probe of one ping.
#[derive(Debug, Default)]
pub(super) struct Liveness {
    /// Workers that have not acknowledged the probe.
    pending_acks: usize,
}

impl Process {
    /// Probes all workers for a ping of the supervisor.
    pub(super) fn probe(&mut self) {
        if self.quiesced {
            // Notices of workers are not read while the switch is quiesced.
            return self.send_heartbeat();
        }
        self.liveness.pending_acks = self.workers.threads();
        self.workers.probe();
    }

    /// Counts the acknowledgement of a worker. The last one is reported to the supervisor.
    pub(super) fn worker_acked(&mut self) {
        self.liveness.pending_acks = self.liveness.pending_acks.saturating_sub(1);
        if self.liveness.pending_acks == 0 {
            self.send_heartbeat();
        }
    }

    fn send_heartbeat(&self) {
        if let Err(error) = self.supervisor.send(&SupervisorRequest::Heartbeat, &[]) {
            tracing::warn!("sending to the supervisor failed: {error}");
        }
    }
}
