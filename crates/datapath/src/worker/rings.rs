//! The way to control and back.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use channel::records::Upcall;
use channel::shared;

use crate::switch::UpcallSink;

/// The rings to control, if there is one.
#[derive(Debug, Default)]
pub(super) struct ControlRings {
    /// All workers ask by one ring.
    upcalls: Arc<Mutex<Option<shared::Sender>>>,
    /// The first worker alone hears the answers, and passes them on.
    pub(super) answers: Option<shared::Receiver>,
    /// Something was sent since the bell was rung.
    unrung: bool,
}

impl ControlRings {
    /// Rings of a worker that asks by this one.
    pub(super) fn asking_by(upcalls: Arc<Mutex<Option<shared::Sender>>>) -> Self {
        Self {
            upcalls,
            ..Self::default()
        }
    }

    pub(super) fn upcalls(&self) -> MutexGuard<'_, Option<shared::Sender>> {
        self.upcalls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes control, if it was asked something.
    pub(super) fn ring_bell(&mut self) {
        if std::mem::take(&mut self.unrung)
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
        self.unrung |= sent;
        sent
    }
}
