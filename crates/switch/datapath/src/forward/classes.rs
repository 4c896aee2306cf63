//! Settings of traffic classes: the priorities (PCP) of their tags.

use flow_table::Class;
use wire::vlan::VlanTci;

use crate::forward::tap::Taps;

/// Settings of classes.
#[derive(Debug, Default)]
pub(crate) struct Classes {
    /// Priorities of tags by class; `None`: those of the received tags are kept.
    pub(crate) priorities: Vec<Option<u8>>,
    /// Whether any queue pair has a class.
    pub(crate) by_pair: bool,
}

impl Classes {
    /// Returns the priority of tags of a class.
    pub(crate) fn priority(&self, class: Class) -> Option<u8> {
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
