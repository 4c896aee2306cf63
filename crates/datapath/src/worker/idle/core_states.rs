//! The states of cores, as the kernel reports them (see `sched`): one snapshot of all vCPUs for one
//! choice.

use port::PortId;
use sched::layout::CORES;
use sched::{Activity, View};

use super::choice::CoreState;
use super::helper::Cores;
use crate::worker::guests::Guests;

const BITS: usize = u64::BITS as usize;

/// A snapshot of the cores' states.
#[derive(Debug)]
pub(crate) struct CoreStates<'a> {
    guests: &'a Guests,
    view: &'a View,
    /// A bit for each core on which a vCPU runs, or is about to.
    taken: [u64; CORES / BITS],
}

impl<'a> CoreStates<'a> {
    /// Takes a snapshot, one load for each vCPU. Returns `None` where the kernel does not report
    /// the states.
    pub(crate) fn now(guests: &'a Guests) -> Option<Self> {
        let view = guests.view()?;
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

impl Cores for CoreStates<'_> {
    fn state(&self, core: u16) -> CoreState {
        let core = usize::from(core);
        let bits = self.taken.get(core / BITS).copied();
        if bits.is_some_and(|bits| bits >> (core % BITS) & 1 != 0) {
            CoreState::Guest
        } else if self.view.core_idles(core) {
            CoreState::Idle
        } else {
            CoreState::Busy
        }
    }

    /// Returns the core of the vCPU that runs, or of the one that ran last: its caches still have
    /// the guest's memory.
    fn core_of(&self, port: PortId) -> Option<u16> {
        let vcpus = self.guests.vcpus(port);
        let last = vcpus.max_by_key(|vcpu| (vcpu.activity == Activity::Running, vcpu.since_ns));
        last.map(|vcpu| vcpu.core)
    }
}

#[cfg(test)]
mod tests;
