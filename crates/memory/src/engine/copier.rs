//! Tickets for copies, and how workers come by them.

use std::sync::Arc;

use super::slots::{Line, Slot};
use super::soft::Thread;
use super::{Copies, Device, LEAST, Outcome};
use crate::copy::copy_bytes;

/// Looks at a copy that is waited for before the core is offered to others.
const LOOKS: u32 = 1000;

/// Copies that were begun one after the other, none as a rule.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Tickets {
    line: u16,
    first: u64,
    end: u64,
}

impl Tickets {
    /// Whether there is nothing to wait for.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.first == self.end
    }
}

/// An engine and all that is under way in it, for all workers.
#[derive(Debug)]
pub struct Engines {
    lines: Arc<[Line]>,
    device: Box<dyn Device>,
    /// The software engine's.
    thread: Option<Thread>,
}

/// The device of an engine that copies when it is told to.
#[derive(Debug)]
struct ByHand;

impl Device for ByHand {
    fn submit(&self, _: &Slot) -> bool {
        true
    }

    fn look(&self, _: &Slot) -> Outcome {
        Outcome::Busy
    }

    fn can_be_helped(&self) -> bool {
        true
    }
}

impl Engines {
    /// Such a device for so many workers.
    #[must_use]
    pub fn of(device: Box<dyn Device>, workers: usize) -> Arc<Self> {
        Self::build(workers, |_| (device, None))
    }

    /// A thread that stands for a device: it copies in any order, which `seed` decides.
    #[must_use]
    pub fn thread(workers: usize, seed: u64) -> Arc<Self> {
        Self::build(workers, |lines| {
            let thread = Thread::start(lines, seed);
            (Box::new(thread.bell()), Some(thread))
        })
    }

    /// Copies nothing before [`Engines::finish_one`], or before somebody waits: for tests.
    #[must_use]
    pub fn by_hand(workers: usize) -> Arc<Self> {
        Self::of(Box::new(ByHand), workers)
    }

    fn build(
        workers: usize,
        device: impl FnOnce(&Arc<[Line]>) -> (Box<dyn Device>, Option<Thread>),
    ) -> Arc<Self> {
        let lines: Arc<[Line]> = (0..workers).map(|_| Line::new()).collect();
        let (device, thread) = device(&lines);
        Arc::new(Self {
            lines,
            device,
            thread,
        })
    }

    /// Finishes the copy at `pick`, counted through all that are under way, as an engine would. `false`: none is.
    pub fn finish_one(&self, pick: usize) -> bool {
        let all = || self.lines.iter().flat_map(|line| line.slots.iter());
        let busy: Vec<&Slot> = all().filter(|slot| slot.is_busy()).collect();
        let Some(slot) = busy.get(pick % busy.len().max(1)) else {
            return false;
        };
        if let Some(claim) = slot.claim() {
            claim.copy();
        }
        true
    }

    /// Copies under way.
    #[must_use]
    pub fn under_way(&self) -> usize {
        let all = self.lines.iter().flat_map(|line| line.slots.iter());
        all.filter(|slot| slot.is_busy()).count()
    }

    /// Whether all of these copies are done; what was found done is not looked at again.
    pub fn are_done(&self, tickets: &mut Tickets) -> bool {
        while !tickets.is_empty() && self.is_done(tickets.line, tickets.first) {
            tickets.first += 1;
        }
        tickets.is_empty()
    }

    fn is_done(&self, line: u16, number: u64) -> bool {
        let slot = self.lines[usize::from(line)].slot(number);
        if slot.is_done(number) {
            return true;
        }
        match self.device.look(slot) {
            Outcome::Busy => false,
            Outcome::Left { from, len } => {
                // Somebody else may have seen it too, and finishes it then; the slot may even be another copy's now.
                if let Some(claim) = slot.claim_of(number) {
                    claim.finish(from, len);
                }
                slot.is_done(number)
            }
        }
    }

    /// The slot of the first of these copies.
    pub(super) fn slot_of(&self, tickets: &Tickets) -> &Slot {
        self.lines[usize::from(tickets.line)].slot(tickets.first)
    }

    /// Returns when all of these copies are done. A device that never ends holds the caller here until its process is
    /// killed as one that hangs: as long as it may write, its memory cannot be let go.
    pub fn wait(&self, mut tickets: Tickets) {
        let mut looks = 0u32;
        while !self.are_done(&mut tickets) {
            if self.device.can_be_helped() {
                let slot = self.slot_of(&tickets);
                if let Some(claim) = slot.claim() {
                    claim.copy();
                }
            }
            looks = looks.wrapping_add(1);
            if looks.is_multiple_of(LOOKS) {
                std::thread::yield_now();
            } else {
                std::hint::spin_loop();
            }
        }
    }
}

impl Drop for Engines {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            thread.stop();
        }
        for (number, line) in self.lines.iter().enumerate() {
            let end = line.next();
            self.wait(Tickets {
                line: number as u16,
                first: end.saturating_sub(super::SLOTS as u64).max(1),
                end,
            });
        }
    }
}

/// One worker's way to the engines.
#[derive(Clone, Debug)]
pub struct Copier {
    engines: Arc<Engines>,
    line: u16,
}

impl Copier {
    /// The way of the worker of this number.
    ///
    /// # Panics
    /// When there is no such worker, or it has its way already: the copies of a line have one author.
    #[must_use]
    pub fn new(engines: &Arc<Engines>, worker: usize) -> Self {
        assert!(engines.lines[worker].take(), "a line with two owners");
        Self {
            engines: Arc::clone(engines),
            line: worker as u16,
        }
    }

    /// The engines.
    #[must_use]
    pub fn engines(&self) -> &Arc<Engines> {
        &self.engines
    }

    fn line(&self) -> &Line {
        &self.engines.lines[usize::from(self.line)]
    }

    /// From now on frames may be copied by the engine: their sender's memory stays until [`Copier::end_lease`] says
    /// what is to be waited for. Outside of leases the processor copies.
    pub fn begin_lease(&self) {
        self.line().begin_lease();
    }

    /// The copies that were begun since [`Copier::begin_lease`].
    pub fn end_lease(&self) -> Tickets {
        let (first, end) = self.line().end_lease();
        self.tickets(first, end)
    }

    fn tickets(&self, first: u64, end: u64) -> Tickets {
        Tickets {
            line: self.line,
            first,
            end,
        }
    }

    /// For the pieces of one frame.
    #[must_use]
    pub fn frame(&self) -> FrameCopy<'_> {
        FrameCopy {
            copier: self,
            first: self.line().next(),
        }
    }
}

/// Copies the pieces of one frame: long ones by the engine, if it takes them, others at once.
#[derive(Debug)]
pub struct FrameCopy<'a> {
    copier: &'a Copier,
    first: u64,
}

impl FrameCopy<'_> {
    /// What is to be waited for before the frame is there.
    #[must_use]
    pub fn tickets(self) -> Tickets {
        self.copier.tickets(self.first, self.copier.line().next())
    }
}

impl Copies for FrameCopy<'_> {
    unsafe fn copy(&mut self, from: *const u8, to: *mut u8, len: usize) {
        let line = self.copier.line();
        if len >= LEAST && line.is_leased() {
            // SAFETY: a line has one copier, which is not shared between threads while it is used; the memory is our
            // caller's business.
            if let Some(slot) = unsafe { line.fill(from, to, len as u32) } {
                if !self.copier.engines.device.submit(slot)
                    && let Some(claim) = slot.claim()
                {
                    claim.copy();
                }
                return;
            }
        }
        // SAFETY: passed on to our caller.
        unsafe { copy_bytes(from, to, len) }
    }
}
