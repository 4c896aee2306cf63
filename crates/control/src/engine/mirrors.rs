//! Mirrors: makes those of the switch match the desired ones.

use api::v1::{AdminState, MirrorDirection, MirrorSpec, MirrorStats, Problem, Traffic};
use channel::capture::Way;
use channel::mirrors::Mirror;
use channel::switching::SwitchCommand;
use port::PortId;
use port::counters::{COPY_LOSSES, MirrorCounts};

use super::Engine;

impl Engine {
    /// Sends the desired mirrors to the switch, after their ports.
    pub(super) fn reconcile_mirrors(&mut self) -> Result<(), Problem> {
        let desired = self.desired_mirrors();
        if desired != self.mirrors {
            self.order(SwitchCommand::SetMirrors(desired.clone()))?;
            self.mirrors = desired;
        }
        Ok(())
    }

    /// Returns the counters of mirrors, in the operator's order.
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
        self.saved.desired.mirrors.iter().map(one).collect()
    }

    /// Removes a port from the mirrors, as the switch does with a removed port.
    pub(super) fn remove_from_mirrors(&mut self, port: PortId) {
        let all = std::mem::take(&mut self.mirrors).into_iter();
        self.mirrors = all.filter_map(|mirror| mirror.without(port)).collect();
    }

    fn desired_mirrors(&mut self) -> Vec<Mirror> {
        let desired = &self.saved.desired;
        let is_down = |name: &str| {
            let port = desired.port(name);
            port.is_some_and(|port| port.admin_state == AdminState::Down)
        };
        // A port that is administratively down gets no copies either.
        let specs = desired.mirrors.iter().filter(|spec| !is_down(&spec.to));
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
