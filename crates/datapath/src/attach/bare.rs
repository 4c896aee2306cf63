//! A driver that has started, and no memory: the commonest mistake of all.
//!
//! QEMU says nothing about it: it negotiates features, finds no memory that it could share, and leaves the queues alone.

use std::time::{Duration, Instant};

use virtio::vhost_user::Session;

/// Between the choice of features and the memory there are some messages.
const PATIENCE: Duration = Duration::from_secs(1);

/// For people.
pub(super) const WORDS: &str = "the guest's driver has started, and the VMM shares no memory: QEMU needs \
     -object memory-backend-memfd,id=mem,size=SIZE,share=on and -numa node,memdev=mem (or -machine memory-backend=mem)";

/// Of one connection.
#[derive(Debug, Default)]
pub(super) struct BareDriver {
    since: Option<Instant>,
    said: bool,
}

impl BareDriver {
    /// Looks at the session after a message.
    pub(super) fn look(&mut self, session: &Session, now: Instant) {
        match session.has_chosen_features() && session.info().memory_bytes == 0 {
            true => self.since = self.since.or(Some(now)),
            false => self.since = None,
        }
    }

    /// Whether it has waited for so long that none will come.
    pub(super) fn is(&self, now: Instant) -> bool {
        self.due().is_some_and(|due| due <= now)
    }

    /// When it is to be said, if it has not been.
    pub(super) fn due_to_say(&self) -> Option<Instant> {
        self.due().filter(|_| !self.said)
    }

    /// It is said now; once for each connection.
    pub(super) fn say(&mut self) {
        self.said = true;
    }

    fn due(&self) -> Option<Instant> {
        self.since.map(|since| since + PATIENCE)
    }
}
