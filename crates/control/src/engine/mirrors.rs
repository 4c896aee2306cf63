//! Mirrors: the switch has those that are wanted.

use api::v1::{AdminState, MirrorDirection, MirrorSpec, MirrorStats, Problem, Traffic};
use channel::capture::Way;
use channel::mirrors::Mirror;
use channel::switching::Order;
use port::PortId;
use port::counters::{COPY_LOSSES, MirrorCounts};

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

    /// What mirrors have copied, in the operator's order.
    pub(super) fn mirror_stats(&self) -> Vec<MirrorStats> {
        let one = |spec: &MirrorSpec| {
            let number = self.saved.numbers.mirrors.get(&spec.name);
            let counts = number.map(|number| self.counters.read_mirror(*number));
            let MirrorCounts { copied, lost } = counts.unwrap_or_default();
            let lost = COPY_LOSSES.iter().zip(lost);
            let lost = lost.filter(|(_, count)| *count > 0);
            MirrorStats {
                name: spec.name.clone(),
                copied: Traffic {
                    packets: copied.packets,
                    bytes: copied.bytes,
                },
                lost: lost
                    .map(|(reason, count)| (reason.name().to_owned(), count))
                    .collect(),
            }
        };
        self.saved.wanted.mirrors.iter().map(one).collect()
    }

    /// The switch forgets a port that is removed, and who is mirrored to it.
    pub(super) fn forget_mirrors_of(&mut self, port: PortId) {
        let all = std::mem::take(&mut self.mirrors).into_iter();
        self.mirrors = all.filter_map(|mirror| mirror.without(port)).collect();
    }

    fn wanted_mirrors(&mut self) -> Vec<Mirror> {
        let wanted = &self.saved.wanted;
        let is_down = |name: &str| {
            let port = wanted.port(name);
            port.is_some_and(|port| port.admin_state == AdminState::Down)
        };
        // A port that is down gets no copies either.
        let specs = wanted.mirrors.iter().filter(|spec| !is_down(&spec.to));
        let specs: Vec<MirrorSpec> = specs.cloned().collect();
        let (numbers, counters) = (&mut self.saved.numbers, &self.counters);
        let mut number = |name: &str| {
            let (number, is_new) = numbers.mirror_number(name);
            if is_new {
                counters.clear_mirror(number);
            }
            number
        };
        let mirrors: Vec<u8> = specs.iter().map(|spec| number(&spec.name)).collect();
        let one = |(spec, number): (&MirrorSpec, u8)| Mirror {
            number,
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
        specs.iter().zip(mirrors).map(one).collect()
    }
}
