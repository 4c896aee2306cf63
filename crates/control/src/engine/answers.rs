//! Questions who has an address, answered in the owner's place: as RFC 7432, 10 has it for what is known of other hosts.

use channel::records::Upcall;
use policy::{Action, Decision, Ingress, Lookup, PortId, SegmentId};
use wire::question::Question;
use wire::{FlowKey, MacAddr};

use super::Engine;

impl Engine {
    /// What the sender of a frame gets instead of having it flooded: the answer to its question, where the segment answers and the
    /// owner is known for sure. Who may not ask, or not this owner, gets none.
    pub(super) fn answer_to(
        &self,
        upcall: &Upcall,
        key: &FlowKey,
        decision: &Decision,
    ) -> Option<Vec<u8>> {
        let Action::Flood { segment, .. } = decision.action else {
            return None;
        };
        let asker = PortId(key.in_port());
        if !self.program.guard(asker).asks_one_by_one(key) || !self.answers_in(segment) {
            return None;
        }
        let question = Question::in_frame(&upcall.headers, upcall.frame_len as usize)?;
        let (port, owner) = self.owner_of(segment, &question)?;
        let hears = port != asker && !decision.excluded().any(|excluded| excluded == port);
        hears.then(|| question.answer(owner))
    }

    /// Whether questions are answered in a segment.
    fn answers_in(&self, segment: SegmentId) -> bool {
        let mut segments = self.saved.wanted.segments.iter();
        segments.any(|spec| {
            spec.neighbour_suppression && self.saved.segments.get(&spec.name) == Some(&segment)
        })
    }

    /// Where the one is who surely has the address that is asked about, and is there. What is said of the guest of a trunk is not said
    /// of one segment, and what is said of two guests is not sure.
    fn owner_of(&self, segment: SegmentId, question: &Question) -> Option<(PortId, MacAddr)> {
        let known = self.known(self.now());
        let members = self.program.members(segment).iter().map(|m| m.port);
        let mut owners = members.filter_map(|port| {
            let guard = self.program.guard(port);
            let owner = guard.surely(&known.bound(port), question.target())?;
            let alone = *self.program.ingress(port) == Ingress::Access(segment);
            alone.then_some((port, owner))
        });
        let first = owners.next();
        let only = first.filter(|_| owners.next().is_none());
        only.filter(|(port, _)| self.connected.contains(port))
    }
}
