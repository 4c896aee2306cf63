//! Classes of service: those of queue pairs, and the priorities (PCP) of their tags.

use std::ops::Range;

use flow_table::Class;
use port::PortId;
use wire::vlan::VlanTci;

use crate::forward::fabric::Fabric;
use crate::forward::flow_batch::ActionBatch;
use crate::forward::switch::Switch;
use crate::forward::tap::Taps;
use crate::ports::batch::Batch;
use crate::ports::port::Port;

/// Settings of classes.
#[derive(Debug, Default)]
pub(crate) struct Classes {
    /// Priorities of tags by class; `None`: those of the received tags are kept.
    priorities: Vec<Option<u8>>,
    /// Whether any queue pair has a class.
    pub(crate) by_pair: bool,
}

impl Classes {
    /// Returns the priority of tags of a class.
    fn priority(&self, class: Class) -> Option<u8> {
        let priority = self.priorities.get(usize::from(class.number()))?;
        *priority
    }

    /// Returns the tag of a frame with the priority of its class. Copies of mirrors keep theirs.
    ///
    /// Not inlined: untagged frames do not pay for it.
    #[inline(never)]
    pub(crate) fn remarked(&self, tag: VlanTci, class: Class, taps: &Option<Box<Taps>>) -> VlanTci {
        let copying = |taps: &Taps| taps.copying().is_some();
        match self.priority(class) {
            Some(pcp) if !taps.as_deref().is_some_and(copying) => VlanTci { pcp, ..tag },
            _ => tag,
        }
    }
}

impl<P: Port> Fabric<P> {
    /// Returns the class of all frames of a queue pair, if it has one.
    pub(crate) fn class_of_pair(&self, port: PortId, pair: u16) -> Option<Class> {
        let slot = self.slots.get(port.0 as usize)?.as_ref()?;
        let class = slot.qos.as_ref()?.class_by_pair.get(usize::from(pair))?;
        class.map(Class::new)
    }

    /// Notes whether any queue pair has a class, after settings of a port changed.
    pub(crate) fn update_classes(&mut self) {
        let mut senders = self
            .slots
            .iter()
            .flatten()
            .filter_map(|slot| slot.qos.as_ref());
        self.classes.by_pair = senders.any(|qos| qos.class_by_pair.iter().any(Option::is_some));
    }

    /// Sets the priorities of tags that were set for these frames of an action batch.
    #[inline(never)]
    pub(crate) fn mark(&self, group: &ActionBatch, frames: Range<usize>, batch: &mut Batch) {
        if let Some(pcp) = self.classes.priority(group.class()) {
            batch.set_priority(frames, pcp);
        }
    }
}

impl<P: Port> Switch<P> {
    /// Sets the priorities of tags by class, 0 to 7; `None`, and classes beyond: the priority of
    /// the received tag is kept.
    pub fn set_priorities(&mut self, priorities: Vec<Option<u8>>) {
        self.fabric.classes.priorities = priorities;
    }

    /// Gives the frames of the batch the class of their queue pair, if it has one.
    #[cold]
    pub(crate) fn classify_by_pair(&mut self, from: PortId) {
        if let Some(class) = self.fabric.class_of_pair(from, self.fabric.serving) {
            for group in &mut self.lookup.action_batches {
                group.set_class(class);
            }
        }
    }
}
