//! Neighbour proxy: ARP requests and neighbour solicitations for known owners get a reply from the
//! switch instead of being flooded (RFC 9161; RFC 7432, 10).

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;

use ipc::records::Upcall;
use ipc::switching::PortPhase;
use policy::neighbour_request::NeighbourRequest;
use policy::port_security::{Bindings, Owner};
use policy::{Action, Decision, Ingress, Lookup, PortId, SegmentId, decide};
use wire::{FlowKey, MacAddr, ParsedHeaders};

use super::port_security::KnownAddresses;
use super::{Directory, Forwarding};

/// A reply, and the owner of the address.
#[derive(Debug)]
pub(in crate::engine) struct Reply {
    pub(in crate::engine) frame: Vec<u8>,
    pub(in crate::engine) target: IpAddr,
    pub(in crate::engine) owner: MacAddr,
    /// The owner's port.
    pub(in crate::engine) port: PortId,
}

/// Index of addresses, so that a request does not look at each port.
#[derive(Debug, Default)]
pub(super) struct Owners {
    /// Epoch of the program that the index was made from; `None` after a new binding.
    epoch: Option<u64>,
    /// Segments with neighbour suppression.
    suppressing: BTreeSet<SegmentId>,
    /// Ports at which an address is listed or was bound. The binding may have ended since.
    ports: HashMap<IpAddr, Vec<PortId>>,
}

impl Owners {
    /// Marks the index as outdated, after a new binding.
    pub(super) fn invalidate(&mut self) {
        self.epoch = None;
    }
}

/// The state for decisions, with the requester as if it were learned.
struct WithRequester<'a> {
    known: KnownAddresses<'a>,
    requester: (MacAddr, PortId),
}

impl Lookup for WithRequester<'_> {
    fn port_of(&self, segment: SegmentId, mac: MacAddr) -> Option<PortId> {
        match self.requester {
            (requester, port) if requester == mac => Some(port),
            _ => self.known.port_of(segment, mac),
        }
    }

    fn is_barred(&self, segment: SegmentId, mac: MacAddr, port: PortId) -> bool {
        self.known.is_barred(segment, mac, port)
    }

    fn bound(&self, port: PortId) -> Bindings {
        self.known.bound(port)
    }
}

impl Forwarding {
    /// Rebuilds the index of owners where it is outdated.
    pub(in crate::engine) fn refresh_owners(&mut self, directory: Directory<'_>) {
        let epoch = Some(self.program.epoch());
        if self.owners.epoch == epoch {
            return;
        }
        let saved = &directory.store.saved;
        let segments = saved.desired.segments.iter();
        let suppressing = segments.filter(|spec| spec.neighbour_suppression);
        let number = |name| saved.numbers.segments.get(name).copied();
        let mut owners = Owners {
            epoch,
            suppressing: suppressing.filter_map(|spec| number(&spec.name)).collect(),
            ports: HashMap::new(),
        };
        for port in saved.numbers.ports.values().copied() {
            let bound = self.bound.get(&port).map(Bindings::addresses);
            let listed = self.program.port_security(port).listed();
            for address in listed.chain(bound.into_iter().flatten()) {
                owners.ports.entry(address).or_default().push(port);
            }
        }
        self.owners = owners;
    }

    /// Returns the reply to a neighbour request that would be flooded, if the segment has neighbour
    /// suppression and the address has a single known owner. Access lists or port security may keep
    /// requester and owner apart; there is no reply then. Call
    /// [`Forwarding::refresh_owners`] first.
    pub(in crate::engine) fn reply_to(
        &self,
        headers: &[u8],
        frame_len: usize,
        key: &FlowKey,
        decision: &Decision,
    ) -> Option<Reply> {
        let Action::Flood { segment, .. } = decision.action else {
            return None;
        };
        let requester = PortId(key.in_port());
        let one_by_one = self.program.port_security(requester).needs_upcalls(key);
        if !one_by_one || !self.owners.suppressing.contains(&segment) {
            return None;
        }
        let request = NeighbourRequest::in_frame(headers, frame_len)?;
        let target = request.target();
        let (port, owner) = self.owner_of(segment, target)?;
        if port == requester || decision.excluded().any(|excluded| excluded == port) {
            return None;
        }
        let frame = request.reply(owner);
        let reply = Reply {
            frame,
            target,
            owner,
            port,
        };
        self.would_arrive(&reply, (key.smac(), requester))
            .then_some(reply)
    }

    /// Returns the reply to an upcall, if it gets one. The upcall must be about a single frame: a
    /// switch that does not know yet that the segment has neighbour suppression has queued other
    /// requests behind it, for other addresses.
    pub(super) fn reply_to_upcall(
        &mut self,
        upcall: &Upcall,
        key: &FlowKey,
        decision: &Decision,
        directory: Directory<'_>,
    ) -> Option<Reply> {
        let sent_key = upcall.flow_key();
        if (sent_key.l4_src(), sent_key.l4_dst()) == (0, 0) {
            return None;
        }
        self.refresh_owners(directory);
        self.reply_to(&upcall.headers, upcall.frame_len as usize, key, decision)
    }

    /// Returns the port and MAC address of the single known owner of an address, if it is up.
    /// Entries of a trunk port do not say in which segment its guest is, and those of two ports
    /// contradict each other. A binding counts less than a listed address, and nothing if another
    /// MAC address was seen with the IP address last.
    fn owner_of(&self, segment: SegmentId, address: IpAddr) -> Option<(PortId, MacAddr)> {
        let known = self.known(self.now());
        let ports = self.owners.ports.get(&address)?.iter().copied();
        let here = ports.filter(|port| self.program.member(segment, *port).is_some());
        let owner = |port| {
            let owner = self
                .program
                .port_security(port)
                .owner_of(&known.bound(port), address);
            owner.map(|owner| (port, owner))
        };
        let owners: Vec<(PortId, Owner)> = here.filter_map(owner).collect();
        let any_listed = owners.iter().any(|(_, owner)| owner.listed);
        let mut best = owners.iter().filter(|(_, o)| o.listed == any_listed);
        let (Some((port, owner)), None) = (best.next(), best.next()) else {
            return None;
        };
        let seen = self.seen.find(segment, address);
        let contested = !owner.listed && seen.is_some_and(|(mac, _)| mac != owner.mac);
        let is_access = *self.program.ingress(*port) == Ingress::Access(segment);
        let is_up = self.connected.get(port) == Some(&PortPhase::Up);
        (is_access && is_up && !contested).then_some((*port, owner.mac))
    }

    /// Returns whether the owner's own reply would reach the requester: port security and access
    /// lists apply as to any frame.
    fn would_arrive(&self, reply: &Reply, requester: (MacAddr, PortId)) -> bool {
        let (frame, len) = (&reply.frame, reply.frame.len());
        let key = FlowKey::new(reply.port.0, &ParsedHeaders::parse(frame, len));
        let key = self.classified_key(key, frame, len);
        let known = self.known(self.now());
        let decision = decide(&self.program, &WithRequester { known, requester }, &key);
        let (_, requester) = requester;
        match decision.action {
            Action::Unicast { port, .. } => port == requester,
            Action::Flood { .. } => !decision.excluded().any(|excluded| excluded == requester),
            Action::Drop(_) => false,
        }
    }
}
