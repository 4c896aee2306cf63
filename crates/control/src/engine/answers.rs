//! Questions who has an address, answered in the owner's place: as RFC 7432, 10 has it for what is known of other hosts.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;

use channel::records::Upcall;
use channel::switching::PortPhase;
use policy::guard::{Bound, Owner};
use policy::{Action, Decision, Ingress, Lookup, PortId, SegmentId, decide};
use wire::question::Question;
use wire::{FlowKey, MacAddr, Parsed};

use super::Engine;
use super::guards::Known;

/// An answer, and whose it is.
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) frame: Vec<u8>,
    pub(super) target: IpAddr,
    pub(super) owner: MacAddr,
    /// Where the owner is.
    pub(super) port: PortId,
}

/// Where to look for owners: a question costs no look at each port.
#[derive(Debug, Default)]
pub(super) struct Owners {
    /// The program of which all is here; none: something was bound since.
    epoch: Option<u64>,
    /// Segments that answer.
    answering: BTreeSet<SegmentId>,
    /// The ports at which an address is listed or was bound. It may have been unbound since.
    ports: HashMap<IpAddr, Vec<PortId>>,
}

impl Owners {
    /// Something was bound.
    pub(super) fn outdate(&mut self) {
        self.epoch = None;
    }
}

/// What is known once the asker has been heard.
struct Heard<'a> {
    known: Known<'a>,
    asker: (MacAddr, PortId),
}

impl Lookup for Heard<'_> {
    fn port_of(&self, segment: SegmentId, mac: MacAddr) -> Option<PortId> {
        match self.asker {
            (asker, port) if asker == mac => Some(port),
            _ => self.known.port_of(segment, mac),
        }
    }

    fn is_barred(&self, segment: SegmentId, mac: MacAddr, port: PortId) -> bool {
        self.known.is_barred(segment, mac, port)
    }

    fn bound(&self, port: PortId) -> Bound {
        self.known.bound(port)
    }
}

impl Engine {
    /// Brings up to date where owners are looked for.
    pub(super) fn find_owners(&mut self) {
        let epoch = Some(self.program.epoch());
        if self.owners.epoch == epoch {
            return;
        }
        let segments = self.saved.wanted.segments.iter();
        let answering = segments.filter(|spec| spec.neighbour_suppression);
        let number = |name| self.saved.numbers.segments.get(name).copied();
        let mut owners = Owners {
            epoch,
            answering: answering.filter_map(|spec| number(&spec.name)).collect(),
            ports: HashMap::new(),
        };
        for port in self.saved.numbers.ports.values().copied() {
            let bound = self.saved.bound.get(&port).map(Bound::addresses);
            let listed = self.program.guard(port).listed();
            for address in listed.chain(bound.into_iter().flatten()) {
                owners.ports.entry(address).or_default().push(port);
            }
        }
        self.owners = owners;
    }

    /// What the sender of a frame with this key gets instead of having it flooded: the answer to its question, where the segment
    /// answers and the owner is known for sure. Who may not ask the owner, or may not hear it, gets none.
    /// [`Engine::find_owners`] comes first.
    pub(super) fn reply_to(
        &self,
        headers: &[u8],
        frame_len: usize,
        key: &FlowKey,
        decision: &Decision,
    ) -> Option<Reply> {
        let Action::Flood { segment, .. } = decision.action else {
            return None;
        };
        let asker = PortId(key.in_port());
        let one_by_one = self.program.guard(asker).asks_one_by_one(key);
        if !one_by_one || !self.owners.answering.contains(&segment) {
            return None;
        }
        let question = Question::in_frame(headers, frame_len)?;
        let target = question.target();
        let (port, owner) = self.owner_of(segment, target)?;
        if port == asker || decision.excluded().any(|excluded| excluded == port) {
            return None;
        }
        let frame = question.answer(owner);
        let reply = Reply {
            frame,
            target,
            owner,
            port,
        };
        self.could_come(&reply, (key.smac(), asker))
            .then_some(reply)
    }

    /// The reply to an upcall, if it gets one. The switch must have asked about this frame alone: one that does not know yet that
    /// the segment answers has put others behind it, which ask for other addresses.
    pub(super) fn reply_to_upcall(
        &mut self,
        upcall: &Upcall,
        key: &FlowKey,
        decision: &Decision,
    ) -> Option<Reply> {
        let asked = upcall.flow_key();
        if (asked.l4_src(), asked.l4_dst()) == (0, 0) {
            return None;
        }
        self.find_owners();
        self.reply_to(&upcall.headers, upcall.frame_len as usize, key, decision)
    }

    /// Where the one is who surely has an address, and is up. What is said of the guest of a trunk is not said of one segment, and
    /// what is said of two guests is not sure. What was bound is worth less than what is listed, and nothing if another station
    /// was heard with the address last.
    fn owner_of(&self, segment: SegmentId, address: IpAddr) -> Option<(PortId, MacAddr)> {
        let known = self.known(self.now());
        let ports = self.owners.ports.get(&address)?.iter().copied();
        let here = ports.filter(|port| self.program.member(segment, *port).is_some());
        let owner = |port| {
            let owner = self.program.guard(port).surely(&known.bound(port), address);
            owner.map(|owner| (port, owner))
        };
        let owners: Vec<(PortId, Owner)> = here.filter_map(owner).collect();
        let any_listed = owners.iter().any(|(_, owner)| owner.listed);
        let mut best = owners.iter().filter(|(_, o)| o.listed == any_listed);
        let (Some((port, owner)), None) = (best.next(), best.next()) else {
            return None;
        };
        let heard = self.inquiries.seen.find(segment, address);
        let contested = !owner.listed && heard.is_some_and(|(mac, _)| mac != owner.mac);
        let alone = *self.program.ingress(*port) == Ingress::Access(segment);
        let is_up = self.connected.get(port) == Some(&PortPhase::Up);
        (alone && is_up && !contested).then_some((*port, owner.mac))
    }

    /// Whether the owner's own answer would reach the asker: guards and access lists are asked as for any frame.
    fn could_come(&self, reply: &Reply, asker: (MacAddr, PortId)) -> bool {
        let (frame, len) = (&reply.frame, reply.frame.len());
        let key = FlowKey::new(reply.port.0, &Parsed::parse(frame, len));
        let key = self.guarded_key(key, frame, len);
        let known = self.known(self.now());
        let decision = decide(&self.program, &Heard { known, asker }, &key);
        let (_, asker) = asker;
        match decision.action {
            Action::Unicast { port, .. } => port == asker,
            Action::Flood { .. } => !decision.excluded().any(|excluded| excluded == asker),
            Action::Drop(_) => false,
        }
    }
}
