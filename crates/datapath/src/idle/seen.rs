//! What cores do, as the kernel says (see `sched`): one look at the processors of all guests, for the questions of one choice.

use port::PortId;
use sched::layout::CORES;
use sched::{Activity, View};

use super::choice::CoreState;
use super::helper::Cores;
use crate::guests::Guests;

const BITS: usize = u64::BITS as usize;

/// See the module.
#[derive(Debug)]
pub(crate) struct Seen<'a> {
    guests: &'a Guests,
    view: &'a View,
    /// A bit for each core on which a guest's processor runs, or is about to.
    taken: [u64; CORES / BITS],
}

impl<'a> Seen<'a> {
    /// `None` where the kernel does not say: what was sampled is too old to go by. A load for each processor.
    pub(crate) fn now(guests: &'a Guests) -> Option<Self> {
        let view = guests.exact()?;
        let mut taken = [0; CORES / BITS];
        for vcpu in guests.all_vcpus() {
            let core = usize::from(vcpu.core);
            if vcpu.activity != Activity::Blocked
                && let Some(bits) = taken.get_mut(core / BITS)
            {
                *bits |= 1 << (core % BITS);
            }
        }
        Some(Self {
            guests,
            view,
            taken,
        })
    }
}

impl Cores for Seen<'_> {
    fn state(&self, core: u16) -> CoreState {
        let core = usize::from(core);
        let bits = self.taken.get(core / BITS).copied();
        match bits.is_some_and(|bits| bits >> (core % BITS) & 1 != 0) {
            true => CoreState::Guest,
            false if self.view.core_idles(core) => CoreState::Idle,
            false => CoreState::Busy,
        }
    }

    /// Of several processors that of one that runs, of those the latest; where none does, of the one that ran last: its caches
    /// still have the guest's memory.
    fn core_of(&self, port: PortId) -> Option<u16> {
        let vcpus = self.guests.vcpus(port);
        let last = vcpus.max_by_key(|vcpu| (vcpu.activity == Activity::Running, vcpu.since_ns));
        last.map(|vcpu| vcpu.core)
    }
}

#[cfg(test)]
mod tests;
