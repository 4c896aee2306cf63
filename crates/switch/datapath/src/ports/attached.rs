//! What is attached to a port of a worker: a guest, or an interface of the host.
//!
//! A port has its guest side always, with no queue while an interface is attached: what concerns
//! guests alone is asked there, and finds nothing then.

use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};

use ipc::driving::DriverCounters;
use ipc::figures::QueueCounts;
use port::DropReason;
use port::counters::Traffic;

use super::batch::{Batch, Pieces};
use super::calls::PendingCalls;
use super::guest::{GuestFault, GuestPort};
use super::interface::{InterfaceFault, InterfacePort};
use super::payload::Outgoing;
use super::port::{Accepts, Buffers, Port, Settlement};

/// Reason of a queue's end.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum QueueFailure {
    /// The guest, or who serves it, has broken a rule.
    #[error(transparent)]
    Guest(#[from] GuestFault),
    /// The interface is of no use any more.
    #[error(transparent)]
    Interface(#[from] InterfaceFault),
}

/// Port of a worker; see the module.
#[derive(Debug)]
pub struct AttachedPort {
    /// The side of a guest.
    pub guest: GuestPort,
    interface: Option<Box<InterfacePort>>,
}

impl From<GuestPort> for AttachedPort {
    fn from(guest: GuestPort) -> Self {
        Self {
            guest,
            interface: None,
        }
    }
}

impl AttachedPort {
    /// Attaches an interface, or none; the guest has no queue. Returns the one before.
    pub fn set_interface(
        &mut self,
        interface: Option<InterfacePort>,
    ) -> Option<Box<InterfacePort>> {
        std::mem::replace(&mut self.interface, interface.map(Box::new))
    }

    /// Returns the interface.
    #[must_use]
    pub fn interface(&mut self) -> Option<&mut InterfacePort> {
        self.interface.as_deref_mut()
    }

    /// Sets the MTU.
    pub fn set_mtu(&mut self, mtu: Option<u16>) {
        self.guest.set_mtu(mtu);
        if let Some(interface) = self.interface() {
            interface.set_mtu(mtu);
        }
    }

    /// Notes a kick of `pair`, or an edge of its descriptor.
    pub fn note_kick(&mut self, pair: u16) {
        match &mut self.interface {
            None => self.guest.note_kick(pair),
            Some(interface) => interface.note_edge(pair),
        }
    }

    /// Calls `job` with the descriptor that reports frames of `pair`.
    pub fn with_event<R>(&mut self, pair: u16, job: impl FnOnce(BorrowedFd<'_>) -> R) -> Option<R> {
        match &mut self.interface {
            None => self.guest.with_kick(2 * pair + 1, job),
            Some(interface) => interface.with_descriptor(pair, |fd| job(fd.as_fd())),
        }
    }

    /// Returns whether `pair` has frames that were not taken yet, or may have.
    pub fn has_frames(&mut self, pair: u16) -> bool {
        match &mut self.interface {
            None => self.guest.has_frames(pair),
            Some(interface) => interface.has_frames(pair),
        }
    }

    /// Returns whether `pair` need not be polled: nothing is there, and an event tells when that
    /// changes, whether it was requested or not.
    pub fn rests(&mut self, pair: u16) -> bool {
        let interface = self.interface.as_deref_mut();
        interface.is_some_and(|interface| !interface.has_frames(pair))
    }

    /// Returns whether the worker leaves `pair`, which [rests](Self::rests), alone for the time of
    /// [`netio::PAUSE`]: its next frames are taken together then.
    pub fn gathers(&mut self, pair: u16) -> bool {
        let interface = self.interface.as_deref_mut();
        interface.is_some_and(|interface| interface.end_burst(pair))
    }

    /// Returns the next queue with a new fault. Each fault is returned once. Queues that another
    /// worker has locked are skipped: then `all` is set to false.
    pub fn take_fault(&mut self, all: &mut bool) -> Option<(u16, QueueFailure)> {
        match &mut self.interface {
            None => {
                let (queue, fault) = self.guest.take_fault(all)?;
                Some((queue, fault.into()))
            }
            Some(interface) => {
                let (queue, fault) = interface.take_fault(all)?;
                Some((queue, fault.into()))
            }
        }
    }

    /// Returns the counters of the interface, if there is one.
    pub fn interface_counters(&mut self) -> Option<DriverCounters> {
        Some(self.interface.as_mut()?.interface_counters())
    }

    /// Returns the counters of every queue by index, without drops, which are per worker.
    #[must_use]
    pub fn counts(&mut self) -> Vec<(u16, QueueCounts)> {
        match &mut self.interface {
            None => self.guest.counts(),
            Some(interface) => interface.counts(),
        }
    }

    /// Returns the drops of this worker since the queues were started: queue, reason, frames.
    pub(crate) fn drops(&self) -> Box<dyn Iterator<Item = (u16, DropReason, u64)> + '_> {
        match &self.interface {
            None => Box::new(self.guest.drops()),
            Some(interface) => Box::new(interface.drops()),
        }
    }
}

/// Calls a method of whichever side is attached.
macro_rules! attached {
    ($port:expr, $side:ident => $call:expr) => {
        match &mut $port.interface {
            None => {
                let $side = &mut $port.guest;
                $call
            }
            Some($side) => $call,
        }
    };
}

impl Port for AttachedPort {
    #[inline(always)]
    fn pairs(&self) -> u16 {
        match &self.interface {
            None => self.guest.pairs(),
            Some(interface) => interface.pairs(),
        }
    }

    #[inline(always)]
    fn accepts(&self) -> Accepts {
        match &self.interface {
            None => self.guest.accepts(),
            Some(interface) => interface.accepts(),
        }
    }

    #[inline(always)]
    fn mtu(&self) -> u32 {
        // The same on both sides.
        self.guest.mtu()
    }

    #[inline(always)]
    fn take(&mut self, pair: u16, batch: &mut Batch) {
        attached!(self, side => side.take(pair, batch));
    }

    fn leave(&mut self, pair: u16, kept: usize) {
        attached!(self, side => side.leave(pair, kept));
    }

    #[inline(always)]
    fn release(&mut self, pair: u16, calls: &mut PendingCalls) {
        attached!(self, side => side.release(pair, calls));
    }

    #[inline(always)]
    fn hold(&mut self, pair: u16, wait: bool) -> bool {
        attached!(self, side => side.hold(pair, wait))
    }

    #[inline(always)]
    fn expect(&mut self, pair: u16, frames: usize) {
        attached!(self, side => side.expect(pair, frames));
    }

    #[inline(always)]
    fn is_masked(&mut self, pair: u16) -> bool {
        attached!(self, side => side.is_masked(pair))
    }

    fn buffers(&mut self) -> Option<Buffers> {
        attached!(self, side => side.buffers())
    }

    fn note_dropped(&mut self, pair: u16, reason: DropReason, frames: u64) {
        attached!(self, side => side.note_dropped(pair, reason, frames));
    }

    fn note_refused(&mut self, pair: u16, reason: DropReason, frames: u64) {
        attached!(self, side => side.note_refused(pair, reason, frames));
    }

    #[inline(always)]
    fn deliver_pieces(&mut self, pair: u16, frames: Pieces<'_>) -> Traffic {
        self.guest.deliver_pieces(pair, frames)
    }

    #[inline(always)]
    fn deliver_range(
        &mut self,
        pair: u16,
        batch: &Batch,
        frames: Range<usize>,
        longest: u32,
    ) -> Option<Traffic> {
        self.interface
            .as_mut()?
            .deliver_range(pair, batch, frames, longest)
    }

    #[inline(always)]
    fn deliver(&mut self, pair: u16, frame: &Outgoing<'_>) -> Result<(), DropReason> {
        attached!(self, side => side.deliver(pair, frame))
    }

    #[inline(always)]
    fn settle(&mut self, pair: u16, now: u64) -> Option<Settlement> {
        attached!(self, side => side.settle(pair, now))
    }

    #[inline(always)]
    fn flush(&mut self, pair: u16, now: u64, calls: &mut PendingCalls) -> Option<u64> {
        attached!(self, side => side.flush(pair, now, calls))
    }

    fn notify(&mut self, pair: u16, now: u64, calls: &mut PendingCalls) -> Option<u64> {
        attached!(self, side => side.notify(pair, now, calls))
    }

    fn settle_deferred(&mut self, pair: u16) -> Option<Settlement> {
        self.interface.as_mut()?.settle_deferred(pair)
    }

    fn end_deferral(&mut self, pair: u16, calls: &mut PendingCalls) {
        attached!(self, side => side.end_deferral(pair, calls));
    }

    fn arm(&mut self, pair: u16, on: bool) -> bool {
        attached!(self, side => side.arm(pair, on))
    }
}
