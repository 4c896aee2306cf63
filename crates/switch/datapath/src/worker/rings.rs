//! The rings between a worker and control.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use ipc::records::Upcall;
use ipc::shared;

use crate::forward::switch::UpcallSink;

/// Attempts to get the upcall ring, which another worker has for as long as a record takes. A
/// worker that has it for longer is not running.
const ATTEMPTS: u32 = 64;

/// The upcall ring, which all workers share.
pub(super) type UpcallRing = Arc<Mutex<Option<shared::Sender>>>;

/// The rings of a worker, if control is connected. No worker waits for another one that has the
/// upcall ring: it continues with its frames, and tries again in its next pass.
#[derive(Debug, Default)]
pub(super) struct ControlRings {
    upcalls: UpcallRing,
    /// The answer ring. Only the first worker reads it, and passes the answers on.
    pub(super) answers: Option<shared::Receiver>,
    /// Upcalls were sent since the last ring of the bell.
    bell_pending: bool,
    /// An upcall was not sent because another worker had the ring.
    missed: bool,
}

impl ControlRings {
    /// Returns the rings of a worker with this upcall ring.
    pub(super) fn sharing(upcalls: UpcallRing) -> Self {
        Self {
            upcalls,
            ..Self::default()
        }
    }

    /// Replaces the upcall ring: waits for a worker that sends an upcall now.
    pub(super) fn set_upcalls(&self, ring: Option<shared::Sender>) {
        let upcalls = self.upcalls.lock();
        *upcalls.unwrap_or_else(PoisonError::into_inner) = ring;
    }

    /// Returns the upcall ring, unless another worker has it.
    fn try_upcalls(&self) -> Option<MutexGuard<'_, Option<shared::Sender>>> {
        for _ in 0..ATTEMPTS {
            match self.upcalls.try_lock() {
                Ok(ring) => return Some(ring),
                Err(TryLockError::Poisoned(ring)) => return Some(ring.into_inner()),
                Err(TryLockError::WouldBlock) => std::hint::spin_loop(),
            }
        }
        None
    }

    /// Wakes control, if upcalls were sent.
    pub(super) fn ring_bell(&mut self) {
        if !self.bell_pending {
            return;
        }
        let Some(mut upcalls) = self.try_upcalls() else {
            return;
        };
        if let Some(upcalls) = &mut *upcalls {
            upcalls.ring_bell();
        }
        drop(upcalls);
        self.bell_pending = false;
    }

    /// Returns whether an upcall or the bell is left because another worker had the ring: the next
    /// pass is due at once. An upcall is returned once.
    pub(super) fn take_unfinished(&mut self) -> bool {
        std::mem::take(&mut self.missed) || self.bell_pending
    }
}

impl UpcallSink for ControlRings {
    fn send(&mut self, upcall: &Upcall) -> bool {
        let ring = self.try_upcalls();
        let missed = ring.is_none();
        let sent = ring.is_some_and(|mut ring| ring.as_mut().is_some_and(|ring| ring.send(upcall)));
        self.missed |= missed;
        self.bell_pending |= sent;
        sent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_does_not_wait_for_another_one_that_has_the_ring() {
        let ring = UpcallRing::default();
        let mut worker = ControlRings::sharing(Arc::clone(&ring));
        let (upcalls, _answers) = shared::Region::create().unwrap().switch_ends().unwrap();
        worker.set_upcalls(Some(upcalls));
        let upcall = Upcall {
            id: 1,
            key: [0; 8],
            frame_len: 60,
            headers: vec![0; 60],
            connection: None,
        };
        let held = ring.lock().unwrap();
        assert!(!worker.send(&upcall));
        assert_eq!(
            [worker.take_unfinished(), worker.take_unfinished()],
            [true, false]
        );
        drop(held);
        assert!(worker.send(&upcall));
        let held = ring.lock().unwrap();
        worker.ring_bell();
        assert!(worker.take_unfinished());
        drop(held);
        worker.ring_bell();
        assert!(!worker.take_unfinished());
    }

    #[test]
    fn without_control_nothing_is_left_to_do() {
        let mut worker = ControlRings::default();
        let upcall = Upcall {
            id: 1,
            key: [0; 8],
            frame_len: 0,
            headers: Vec::new(),
            connection: None,
        };
        assert!(!worker.send(&upcall) && !worker.take_unfinished());
    }
}
