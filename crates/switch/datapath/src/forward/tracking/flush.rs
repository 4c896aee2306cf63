//! Flushes on request of control.

use conntrack::Millis;
use conntrack::table::ConnectionId;
use ipc::switching::{ConnectionFlush, MAX_FLUSHED};

use super::Tracking;

/// Attempts to remove connections: there is room for more when each worker has begun another
/// batch.
const ATTEMPTS: usize = 1000;

impl Tracking {
    /// Forgets connections. Those of a zone take one store; named ones are removed by this thread,
    /// beside the workers.
    ///
    /// # Errors
    /// Too many names, or a worker that begins no batch.
    pub(crate) fn flush(&self, flush: &ConnectionFlush, now: Millis) -> Result<(), String> {
        let names = match flush {
            ConnectionFlush::All => {
                self.table.flush();
                return Ok(());
            }
            ConnectionFlush::Segment(segment) => {
                self.table.flush_zone(segment.0);
                return Ok(());
            }
            ConnectionFlush::Named(names) if names.len() > MAX_FLUSHED => {
                return Err(format!("{} connections are too many", names.len()));
            }
            ConnectionFlush::Named(names) => names,
        };
        let mut left: Vec<_> = names.iter().copied().map(ConnectionId::from_bits).collect();
        for _ in 0..ATTEMPTS {
            let done = self.sweeper.remove(&left, (&self.settings, now));
            left.drain(..done);
            if left.is_empty() {
                return Ok(());
            }
            std::thread::yield_now();
        }
        Err("workers are busy with removed connections".to_owned())
    }
}
