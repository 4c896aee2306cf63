//! What is known of guests' processors: where the supervisor has their states kept, and which are whose.
//!
//! Each worker has a copy of the list, and all map the same memory. Asking is a load for each processor, without a system call.
//! What is said is a hint that may be out of date; where nothing is known, nothing is said.

use std::sync::Arc;

use port::PortId;
use port::counters::MAX_PORTS;
use sched::{Activity as State, Bells, Method, Slot, Vcpu, View};

use crate::batching::{Activity, Processor, Vcpus};

/// States, and bells where the kernel keeps them.
#[derive(Debug)]
pub struct States {
    /// What they do.
    pub view: View,
    /// By which it is heard that they sleep.
    pub bells: Option<Bells>,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct Guests {
    states: Option<Arc<States>>,
    /// Places of processors, by port.
    slots: Vec<Arc<[Slot]>>,
}

impl Guests {
    /// The states are here from now on; whose they are is said anew.
    pub fn set_states(&mut self, states: Arc<States>) {
        self.states = Some(states);
        self.slots.clear();
    }

    /// Where it is heard that processors sleep.
    #[must_use]
    pub fn bells(&self) -> Option<&Bells> {
        self.states.as_deref()?.bells.as_ref()
    }

    /// The processors of a port's guest, if the kernel says at once what they do.
    #[must_use]
    pub fn of(&self, port: PortId) -> Option<Arc<dyn Vcpus>> {
        let states = self.states.as_ref()?;
        let slots = self.slots.get(port.0 as usize)?;
        let known = self.exact().is_some() && !slots.is_empty();
        known.then(|| {
            Arc::new(Processors {
                states: Arc::clone(states),
                slots: Arc::clone(slots),
            }) as Arc<dyn Vcpus>
        })
    }

    /// The places of a port's processors, in place of those that were said before.
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

    /// The memory of states; `None` where they are not kept.
    #[inline]
    #[must_use]
    pub fn view(&self) -> Option<&View> {
        self.states.as_deref().map(|states| &states.view)
    }

    /// The same where the kernel says at once what happens: what was sampled is too old to go by.
    #[must_use]
    pub fn exact(&self) -> Option<&View> {
        self.view().filter(|view| view.method() == Method::Kernel)
    }

    /// What the processors of all guests do, as far as it is known.
    pub fn all_vcpus(&self) -> impl Iterator<Item = Vcpu> {
        let view = self.view();
        let slots = self.slots.iter().flat_map(|slots| slots.iter());
        slots.filter_map(move |slot| view?.state(*slot))
    }

    /// What the processors of a port's guest do, as far as it is known: none where it is not.
    #[inline]
    pub fn vcpus(&self, port: PortId) -> impl Iterator<Item = Vcpu> {
        let slots = self.slots.get(port.0 as usize);
        let slots = slots.map_or(&[][..], |slots| slots);
        let view = self.view();
        slots.iter().filter_map(move |slot| view?.state(*slot))
    }
}

/// The processors of one guest.
#[derive(Debug)]
struct Processors {
    states: Arc<States>,
    slots: Arc<[Slot]>,
}

impl Processors {
    /// Those that may serve a queue pair: where there are as many as pairs, guests give each its own; else it may be any.
    fn of_pair(&self, pair: u16, pairs: u16) -> &[Slot] {
        let pair = usize::from(pair);
        match self.slots.len() == usize::from(pairs) && pair < self.slots.len() {
            true => &self.slots[pair..=pair],
            false => &self.slots,
        }
    }
}

impl Vcpus for Processors {
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

    fn processor(&self, pair: u16, pairs: u16) -> Option<Processor> {
        let [slot] = self.of_pair(pair, pairs) else {
            return None;
        };
        let vcpu = self.states.view.state(*slot)?;
        Some(Processor {
            core: vcpu.core.into(),
            asleep: (vcpu.activity == State::Blocked).then_some(vcpu.since_ns),
        })
    }

    fn listen(&self, pair: u16, pairs: u16) -> bool {
        let Some(bells) = &self.states.bells else {
            return false;
        };
        bells.listen(self.of_pair(pair, pairs));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sched::{Activity, Table};

    #[test]
    fn processors_are_told_apart_by_their_ports() {
        let mut table = Table::in_memory().unwrap();
        let slots: Vec<Slot> = (1..4).map(|n| table.follow(n).unwrap()).collect();
        let state = |core| Vcpu {
            activity: Activity::Running,
            core,
            since_ns: 512,
        };
        for (core, slot) in (0..).zip(&slots) {
            table.set(*slot, state(core));
        }
        let (a, b) = (PortId(0), PortId(7));
        let mut guests = Guests::default();
        guests.set_slots(a, slots[..2].into());
        assert_eq!(guests.vcpus(a).count(), 0, "nobody keeps states");
        let states = |view| Arc::new(States { view, bells: None });
        guests.set_states(states(View::map(table.reader()).unwrap()));
        assert_eq!(guests.vcpus(a).count(), 0, "they were of another memory");
        guests.set_slots(a, slots[..2].into());
        guests.set_slots(b, slots[2..].into());
        guests.set_slots(PortId(u32::MAX), slots[2..].into());
        assert!(guests.vcpus(a).eq([state(0), state(1)]));
        assert!(guests.vcpus(b).eq([state(2)]));
        assert_eq!(guests.vcpus(PortId(3)).count(), 0);
        table.leave(1);
        assert!(guests.vcpus(a).eq([state(1)]), "it has ended");
        guests.set_slots(b, Arc::default());
        assert_eq!(guests.vcpus(b).count(), 0);
        assert!(guests.of(a).is_none(), "samples are too old");
    }

    #[test]
    fn a_guest_runs_while_none_of_its_processors_sleeps_that_may_matter() {
        use crate::batching::Activity::{Blocked, Running, Unknown};
        let mut table = Table::in_memory().unwrap();
        let slots: Vec<Slot> = (1..3).map(|n| table.follow(n).unwrap()).collect();
        let view = View::map(table.reader()).unwrap();
        let processors = Processors {
            states: Arc::new(States { view, bells: None }),
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
        assert_eq!(processors.activity(0, 1), Unknown);
        set(0, Activity::Running);
        assert_eq!(processors.activity(0, 1), Unknown);
        set(1, Activity::Runnable);
        assert_eq!(processors.activity(0, 1), Running);
        set(1, Activity::Blocked);
        assert_eq!(processors.activity(0, 1), Blocked);
        assert_eq!(
            [0, 1].map(|pair| processors.activity(pair, 2)),
            [Running, Blocked],
            "a processor for each pair"
        );
        assert!(!processors.listen(0, 1), "there is no bell");
        let processor = |pair, pairs| processors.processor(pair, pairs);
        let is = |asleep| Some(Processor { core: 0, asleep });
        assert_eq!(
            [processor(0, 2), processor(1, 2)],
            [is(None), is(Some(256))]
        );
        assert_eq!(processor(0, 1), None, "which of the two is not known");
    }
}
