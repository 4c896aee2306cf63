//! vCPU states of guests: the memory in which the supervisor keeps them, and the slots of each
//! port.
//!
//! Each worker has a copy of the list, and all map the same memory. A query is a load for each
//! vCPU, without a system call. States are hints that may be out of date; unknown ones are left
//! out.

use std::sync::Arc;

use port::PortId;
use port::counters::MAX_PORTS;
use vcpus::{Activity as State, BlockEvents, Slot, View};

use crate::ports::coalescing::{Activity, Processor, Vcpus};

/// The states of vCPUs, and block events where the kernel reports them.
#[derive(Debug)]
pub struct States {
    /// The states.
    pub view: View,
    /// The ring of block events.
    pub block_events: Option<BlockEvents>,
}

/// The vCPU states of all guests.
#[derive(Clone, Debug, Default)]
pub struct Guests {
    states: Option<Arc<States>>,
    /// Slots of vCPUs, by port.
    slots: Vec<Arc<[Slot]>>,
}

impl Guests {
    /// Sets the memory of states; the slots have to be set again.
    pub fn set_states(&mut self, states: Arc<States>) {
        self.states = Some(states);
        self.slots.clear();
    }

    /// Returns the ring of block events.
    #[must_use]
    pub fn block_events(&self) -> Option<&BlockEvents> {
        self.states.as_deref()?.block_events.as_ref()
    }

    /// Returns the vCPUs of a port's guest, if they are known.
    #[must_use]
    pub fn of(&self, port: PortId) -> Option<Arc<dyn Vcpus>> {
        let states = self.states.as_ref()?;
        let slots = self.slots.get(port.0 as usize)?;
        (!slots.is_empty()).then(|| {
            Arc::new(GuestVcpus {
                states: Arc::clone(states),
                slots: Arc::clone(slots),
            }) as Arc<dyn Vcpus>
        })
    }

    /// Sets the slots of a port's vCPUs.
    pub fn set_slots(&mut self, port: PortId, slots: Arc<[Slot]>) {
        let at = port.0 as usize;
        if at >= MAX_PORTS {
            return;
        }
        if at >= self.slots.len() {
            self.slots.resize_with(at + 1, Arc::default);
        }
        self.slots[at] = slots;
    }
}

/// The vCPUs of one guest.
#[derive(Debug)]
struct GuestVcpus {
    states: Arc<States>,
    slots: Arc<[Slot]>,
}

impl GuestVcpus {
    /// Returns the vCPUs that may serve a queue pair: its own one where there are as many as pairs,
    /// as guests assign them; else any.
    fn of_pair(&self, pair: u16, pairs: u16) -> &[Slot] {
        let pair = usize::from(pair);
        if self.slots.len() == usize::from(pairs) && pair < self.slots.len() {
            &self.slots[pair..=pair]
        } else {
            &self.slots
        }
    }
}

impl Vcpus for GuestVcpus {
    fn activity(&self, pair: u16, pairs: u16) -> Activity {
        let mut all = Activity::Running;
        for slot in self.of_pair(pair, pairs) {
            match self.states.view.state(*slot).map(|vcpu| vcpu.activity) {
                Some(State::Running | State::Runnable) => {}
                Some(State::Blocked) => return Activity::Blocked,
                None => all = Activity::Unknown,
            }
        }
        all
    }

    fn halts(&self, pair: u16, pairs: u16) -> Option<u64> {
        let view = &self.states.view;
        let halts = self
            .of_pair(pair, pairs)
            .iter()
            .map(|slot| view.halts(*slot));
        view.counts_halts()
            .then(|| halts.fold(0, u64::wrapping_add))
    }

    fn processor(&self, pair: u16, pairs: u16) -> Option<Processor> {
        let [slot] = self.of_pair(pair, pairs) else {
            return None;
        };
        let vcpu = self.states.view.state(*slot)?;
        Some(Processor {
            core: vcpu.core.into(),
            asleep: (vcpu.activity == State::Blocked).then_some(vcpu.since_ns),
            polled_for: self.states.view.polls_for(*slot),
        })
    }

    fn listen(&self, pair: u16, pairs: u16) -> bool {
        let Some(block_events) = &self.states.block_events else {
            return false;
        };
        block_events.subscribe(self.of_pair(pair, pairs));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vcpus::{Activity, Table, Vcpu};

    #[test]
    fn vcpus_belong_to_their_ports() {
        let mut table = Table::in_memory().unwrap();
        let slots: Vec<Slot> = (1..4).map(|n| table.follow(n).unwrap()).collect();
        for (core, slot) in (0..).zip(&slots) {
            let state = Vcpu {
                activity: Activity::Running,
                core,
                since_ns: 512,
            };
            table.set(*slot, state);
        }
        // The cores of the vCPUs of two queue pairs.
        let cores = |guests: &Guests, port| {
            let vcpus = guests.of(port)?;
            let core = |pair| Some(vcpus.processor(pair, 2)?.core);
            Some([0, 1].map(core))
        };
        let (a, b) = (PortId(0), PortId(7));
        let mut guests = Guests::default();
        guests.set_slots(a, slots[..2].into());
        assert_eq!(cores(&guests, a), None, "there are no states");
        let states = |view| {
            Arc::new(States {
                view,
                block_events: None,
            })
        };
        guests.set_states(states(View::map(table.reader()).unwrap()));
        assert_eq!(cores(&guests, a), None, "they were of another memory");
        guests.set_slots(a, slots[..2].into());
        guests.set_slots(b, slots[2..].into());
        guests.set_slots(PortId(u32::MAX), slots[2..].into());
        assert_eq!(cores(&guests, a), Some([Some(0), Some(1)]));
        assert_eq!(cores(&guests, b), Some([Some(2), Some(2)]));
        assert_eq!(cores(&guests, PortId(3)), None);
        table.unfollow(1);
        assert_eq!(cores(&guests, a), Some([None, Some(1)]), "it has ended");
        guests.set_slots(b, Arc::default());
        assert!(guests.of(a).is_some() && guests.of(b).is_none());
    }

    #[test]
    fn halts_are_those_of_the_vcpus_of_the_queue() {
        let mut table = Table::in_memory().unwrap();
        let slots: Vec<Slot> = (1..4).map(|n| table.follow(n).unwrap()).collect();
        let vcpus = GuestVcpus {
            states: Arc::new(States {
                view: View::map(table.reader()).unwrap(),
                block_events: None,
            }),
            slots: slots[..2].into(),
        };
        assert_eq!(vcpus.halts(0, 1), None, "they are not counted");
        table.set_counts_halts();
        for slot in [slots[0], slots[1], slots[1], slots[2]] {
            table.count_halt(slot);
        }
        assert_eq!(vcpus.halts(0, 1), Some(3), "another guest's do not count");
        assert_eq!([0, 1].map(|pair| vcpus.halts(pair, 2)), [Some(1), Some(2)]);
    }

    #[test]
    fn a_guest_runs_while_no_vcpu_of_the_queue_sleeps() {
        use crate::ports::coalescing::Activity::{Blocked, Running, Unknown};
        let mut table = Table::in_memory().unwrap();
        let slots: Vec<Slot> = (1..3).map(|n| table.follow(n).unwrap()).collect();
        let view = View::map(table.reader()).unwrap();
        let vcpus_of_guest = GuestVcpus {
            states: Arc::new(States {
                view,
                block_events: None,
            }),
            slots: slots.clone().into(),
        };
        let set = |n: usize, activity| {
            let (core, since_ns) = (0, 256);
            table.set(
                slots[n],
                Vcpu {
                    activity,
                    core,
                    since_ns,
                },
            );
        };
        assert_eq!(vcpus_of_guest.activity(0, 1), Unknown);
        set(0, Activity::Running);
        assert_eq!(vcpus_of_guest.activity(0, 1), Unknown);
        set(1, Activity::Runnable);
        assert_eq!(vcpus_of_guest.activity(0, 1), Running);
        set(1, Activity::Blocked);
        assert_eq!(vcpus_of_guest.activity(0, 1), Blocked);
        assert_eq!(
            [0, 1].map(|pair| vcpus_of_guest.activity(pair, 2)),
            [Running, Blocked],
            "a vCPU for each pair"
        );
        assert!(!vcpus_of_guest.listen(0, 1), "there is no bell");
        let processor = |pair, pairs| vcpus_of_guest.processor(pair, pairs);
        table.set_polls_for(slots[1], true);
        let is = |asleep, polled_for| {
            Some(Processor {
                core: 0,
                asleep,
                polled_for,
            })
        };
        assert_eq!(
            [processor(0, 2), processor(1, 2)],
            [is(None, false), is(Some(256), true)]
        );
        assert_eq!(processor(0, 1), None, "which of the two is not known");
    }
}
