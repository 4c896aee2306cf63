//! The rings between a worker and control.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use channel::records::Upcall;
use channel::shared;

use crate::forward::switch::UpcallSink;

/// The rings of a worker, if control is connected.
#[derive(Debug, Default)]
pub(super) struct ControlRings {
    /// The upcall ring, which all workers share.
    upcalls: Arc<Mutex<Option<shared::Sender>>>,
    /// The answer ring. Only the first worker reads it, and passes the answers on.
    pub(super) answers: Option<shared::Receiver>,
    /// Upcalls were sent since the last ring of the bell.
    bell_pending: bool,
}

impl ControlRings {
    /// Returns the rings of a worker with this upcall ring.
    pub(super) fn sharing(upcalls: Arc<Mutex<Option<shared::Sender>>>) -> Self {
        Self {
            upcalls,
            ..Self::default()
        }
    }

    pub(super) fn upcalls(&self) -> MutexGuard<'_, Option<shared::Sender>> {
        self.upcalls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes control, if upcalls were sent.
    pub(super) fn ring_bell(&mut self) {
        if std::mem::take(&mut self.bell_pending)
            && let Some(upcalls) = &mut *self.upcalls()
        {
            upcalls.ring_bell();
        }
    }
}

impl UpcallSink for ControlRings {
    fn send(&mut self, upcall: &Upcall) -> bool {
        let sent = self
            .upcalls()
            .as_mut()
            .is_some_and(|ring| ring.send(upcall));
        self.bell_pending |= sent;
        sent
    }
}
