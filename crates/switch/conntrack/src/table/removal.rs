//! Removal of single connections that another process has named.

use crate::timeouts::{Millis, Settings};

use super::connection::Connection;
use super::word::{ENTRY_BITS, Life};
use super::worker::{Batch, Worker};

/// The name of a connection: its entry and the entry's generation. It names no other one before
/// the entry has been reused a million times.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ConnectionId(u64);

impl ConnectionId {
    /// The name of the connection in an entry.
    pub(crate) const fn new(entry: u32, life: Life) -> Self {
        Self(life.generation() << ENTRY_BITS | entry as u64)
    }

    /// Its bits, for messages.
    #[must_use]
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// The name with these bits: any are one.
    #[must_use]
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    const fn entry(self) -> u32 {
        (self.0 & ((1 << ENTRY_BITS) - 1)) as u32
    }
}

impl Worker {
    /// Removes connections by their names, from the first on, as many as a batch has room for.
    /// Returns how many names it has done with; those of connections that have ended are done.
    pub fn remove(
        &mut self,
        names: impl IntoIterator<Item = ConnectionId>,
        (settings, now): (&Settings, Millis),
    ) -> usize {
        let mut batch = self.begin(settings, now);
        let mut done = 0;
        for name in names {
            if !batch.stock.has_room() {
                break;
            }
            remove(&mut batch, name);
            done += 1;
        }
        done
    }
}

/// Removes the connection of a name, if it has not ended.
fn remove(batch: &mut Batch<'_>, name: ConnectionId) {
    let shared = batch.shared;
    let entry = shared.links.entries.get(name.entry() as usize);
    let Some(connection) = entry.and_then(Connection::read) else {
        return;
    };
    if ConnectionId::new(name.entry(), connection.life) == name {
        let hash = connection.hash(&shared.seed);
        batch.remove(name.entry(), connection.life, hash);
    }
}
