//! What is known of guests' processors: where the supervisor has their states kept, and which are whose.
//!
//! Each worker has a copy of the list, and all map the same memory. Asking is a load for each processor, without a system call.
//! What is said is a hint that may be out of date; where nothing is known, nothing is said.

use std::sync::Arc;

use port::PortId;
use port::counters::MAX_PORTS;
use sched::{Slot, Vcpu, View};

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct Guests {
    view: Option<Arc<View>>,
    /// Places of processors, by port.
    slots: Vec<Arc<[Slot]>>,
}

impl Guests {
    /// The states are here from now on; whose they are is said anew.
    pub fn set_view(&mut self, view: Arc<View>) {
        self.view = Some(view);
        self.slots.clear();
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
        self.view.as_deref()
    }

    /// What the processors of a port's guest do, as far as it is known: none where it is not.
    #[inline]
    pub fn vcpus(&self, port: PortId) -> impl Iterator<Item = Vcpu> {
        let slots = self.slots.get(port.0 as usize);
        let slots = slots.map_or(&[][..], |slots| slots);
        let view = self.view.as_deref();
        slots.iter().filter_map(move |slot| view?.state(*slot))
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
        let view = Arc::new(View::map(table.reader()).unwrap());
        guests.set_view(view);
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
    }
}
