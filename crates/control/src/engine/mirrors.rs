//! Mirrors: the switch has those that are wanted.

use api::v1::{MirrorDirection, MirrorSpec, Problem};
use channel::capture::Way;
use channel::mirrors::Mirror;
use channel::switching::Order;
use port::PortId;

use super::Engine;

impl Engine {
    /// Has the switch copy what is wanted. The ports are there.
    pub(super) fn reconcile_mirrors(&mut self) -> Result<(), Problem> {
        let wanted = self.wanted_mirrors();
        if wanted != self.mirrors {
            self.order(Order::SetMirrors(wanted.clone()))?;
            self.mirrors = wanted;
        }
        Ok(())
    }

    /// The switch forgets a port that is removed, and who is mirrored to it.
    pub(super) fn forget_mirrors_of(&mut self, port: PortId) {
        let all = std::mem::take(&mut self.mirrors).into_iter();
        self.mirrors = all.filter_map(|mirror| mirror.without(port)).collect();
    }

    fn wanted_mirrors(&mut self) -> Vec<Mirror> {
        let specs = self.saved.wanted.mirrors.clone();
        let numbers = &mut self.saved.numbers;
        let one = |spec: &MirrorSpec| Mirror {
            to: numbers.port_id(&spec.to),
            ports: spec
                .ports
                .iter()
                .map(|name| numbers.port_id(name))
                .collect(),
            way: match spec.direction {
                MirrorDirection::Both => None,
                MirrorDirection::In => Some(Way::In),
                MirrorDirection::Out => Some(Way::Out),
            },
            segments: spec
                .segments
                .iter()
                .map(|name| numbers.segment_id(name))
                .collect(),
            everything: spec.ports.is_empty() && spec.segments.is_empty(),
            filter: spec.filter.clone().unwrap_or_default(),
        };
        specs.iter().map(one).collect()
    }
}
