//! Sweeps over the table: connections that are over, and those of ports that are removed.
//!
//! All workers share one walk, and the tick of any takes its next part when that is due. So the
//! whole table is looked at in seconds while it has connections, whatever the number of workers,
//! and not at all while it has none.

use std::sync::{Arc, Mutex, PoisonError, TryLockError};

use conntrack::table::{ConnectionId, Walk, Worker};
use conntrack::{Millis, Settings, Table};
use policy::PortId;

/// Connections that a part looks at.
const LOOKS: usize = 4096;
/// Interval between two parts, milliseconds: 64 parts are the usual table.
pub(super) const INTERVAL: Millis = 150;

/// The walk that all workers share.
#[derive(Clone, Debug)]
pub(crate) struct Sweeper(Arc<Mutex<Sweeping>>);

#[derive(Debug)]
struct Sweeping {
    walker: Worker,
    walk: Walk,
    /// Time of the last part.
    last: Millis,
    /// Ports with connections that are removed until the walk has come to its end.
    leaving: Vec<PortId>,
    /// Number of walks that have begun anew because of such a port.
    begun: u64,
    /// The last of them that has come to its end.
    finished: u64,
}

/// A request to remove the connections of a port; done when the walk that it has begun is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Departure(u64);

impl Sweeper {
    /// Returns `None` when the table has too many threads.
    pub(crate) fn new(table: &Table) -> Option<Self> {
        Some(Self(Arc::new(Mutex::new(Sweeping {
            walker: table.walker()?,
            walk: Walk::default(),
            last: 0,
            leaving: Vec::new(),
            begun: 0,
            finished: 0,
        }))))
    }

    /// Calls `part` unless another worker has the walk.
    fn with<T>(&self, part: impl FnOnce(&mut Sweeping) -> T) -> Option<T> {
        match self.0.try_lock() {
            Ok(mut sweeping) => Some(part(&mut sweeping)),
            // What a thread that panicked has left is as good as ever.
            Err(TryLockError::Poisoned(left)) => Some(part(&mut left.into_inner())),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Takes the next part, if it is due.
    pub(crate) fn sweep(&self, settings: &Settings, now: Millis) {
        self.with(|sweeping| {
            if now.wrapping_sub(sweeping.last) >= INTERVAL {
                sweeping.part(settings, now);
            }
        });
    }

    /// Removes connections by their names, from the first on, and returns how many are done with.
    pub(crate) fn remove(&self, names: &[ConnectionId], time: (&Settings, Millis)) -> usize {
        let mut sweeping = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        sweeping.walker.remove(names.iter().copied(), time)
    }

    /// Begins to remove the connections of a port; `None`: another worker has the walk.
    pub(crate) fn leave(&self, port: PortId) -> Option<Departure> {
        self.with(|sweeping| {
            if !sweeping.leaving.contains(&port) {
                sweeping.leaving.push(port);
            }
            sweeping.walk = Walk::default();
            sweeping.begun += 1;
            Departure(sweeping.begun)
        })
    }

    /// Takes the next part of a removal. Returns whether it is done.
    pub(crate) fn continue_leave(
        &self,
        leave: Departure,
        settings: &Settings,
        now: Millis,
    ) -> bool {
        let done = self.with(|sweeping| {
            if sweeping.finished < leave.0 {
                sweeping.part(settings, now);
            }
            sweeping.finished >= leave.0
        });
        done.unwrap_or(false)
    }
}

impl Sweeping {
    fn part(&mut self, settings: &Settings, now: Millis) {
        self.last = now;
        let leaving = &self.leaving;
        let leaves = |port: u16| leaving.contains(&PortId(port.into()));
        let part = self
            .walker
            .walk(&mut self.walk, LOOKS, (settings, now), |connection| {
                !leaves(connection.opener()) && !connection.far().is_some_and(leaves)
            });
        if part.finished {
            self.leaving.clear();
            self.finished = self.begun;
        }
    }
}
