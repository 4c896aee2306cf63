//! Flows that a table before the switch may end: those that access lists deny whatever happens to
//! other frames.

use wire::flow::{Ct, CtState};
use wire::{EtherType, FlowKey, FlowMask, FrameClass, icmp, tcp, udp};

use crate::acl::RuleId;
use crate::connection::{ECHO_REQUEST, ECHO_REQUEST_V6};
use crate::decide::{Action, Decision, Lookup, decide_exact};
use crate::program::Program;
use port::{DropReason, PortId};

/// Ethernet addresses that access rules name. They are known for a program once, because all its
/// rules are looked at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NamedMacs {
    source: bool,
    destination: bool,
}

impl NamedMacs {
    /// Returns those of a program.
    #[must_use]
    pub fn of(program: &Program) -> Self {
        let (source, destination) = program.rules().named_macs();
        Self {
            source,
            destination,
        }
    }
}

/// A denial.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Denial {
    /// Bits of the key: all plain frames of the port that agree in them are dropped.
    pub mask: FlowMask,
    /// The rules that decide, which count each frame.
    pub rules: Vec<RuleId>,
    /// Only those of no known connection: the segment is tracked.
    pub is_of_new: bool,
}

/// Returns the denial of the plain frames with this key, if the access lists deny them.
///
/// Frames that differ in the ingress port are of no concern: a table has one. Nor does the source
/// address of Ethernet count where no rule names one, or the destination's where the sender's lists
/// deny: whatever they are, barred or reserved, the frame is dropped.
///
/// In a tracked segment this is said of frames of no known connection alone, and of those that can
/// neither be an answer nor an error: the first segment of TCP, UDP, echo requests.
///
/// Not denied in this sense, although dropped: frames of ports with port security; those that a
/// rule logs or rejects.
#[must_use]
pub fn denied(
    program: &Program,
    fdb: &dyn Lookup,
    key: &FlowKey,
    named: NamedMacs,
) -> Option<Denial> {
    let port = PortId(key.in_port());
    if !key.state().is_empty()
        || key.frame_class() != FrameClass::default()
        || !program.port_security(port).is_open()
    {
        return None;
    }
    let decision = denial(program, fdb, key)?;
    let (mut mask, rules) = (decision.mask, decision.rules());
    let is_of_new = program.tracks(decision.segment?).is_some();
    if is_of_new {
        // Frames to groups are not tracked; others are new, or of no connection by their checksum.
        for state in [CtState::NEW, CtState::INVALID] {
            let ct = Ct::new(CtState::TRACKED | state, 0);
            let of_state = denial(program, fdb, &key.with_ct(ct))?;
            if of_state.rules() != rules {
                return None;
            }
            mask = mask.union(&of_state.mask);
        }
        mask = mask.union(&beginnings(key)?);
        mask = mask.without(&FlowMask::NONE.with_ct());
    }
    let by_sender = decision.from_guest.as_ref().is_some_and(|r| !r.allows());
    let mut leaves_out = FlowMask::NONE.with_in_port();
    if !named.source {
        leaves_out = leaves_out.with_smac();
    }
    if by_sender && !named.destination {
        leaves_out = leaves_out.with_dmac();
    }
    Some(Denial {
        mask: mask.without(&leaves_out),
        rules,
        is_of_new,
    })
}

/// Returns the decision, if access lists deny and no rule logs.
fn denial(program: &Program, fdb: &dyn Lookup, key: &FlowKey) -> Option<Decision> {
    let decision = decide_exact(program, fdb, key);
    let is_logged = |ruling: &crate::acl::Ruling| ruling.rule().is_some_and(|r| r.log.is_some());
    let is_denied = decision.action == Action::Drop(DropReason::AclDenied)
        && !decision.rulings().any(is_logged);
    is_denied.then_some(decision)
}

/// Returns the bits that say of a frame with this key that it begins a connection, if it belongs to
/// none; `None` if it may do something else. A segment from the middle of an unknown connection may
/// be an answer while a port is new, and an error is one of a connection with other ends.
fn beginnings(key: &FlowKey) -> Option<FlowMask> {
    const KINDS: u16 = tcp::SYN | tcp::ACK | tcp::RST | tcp::FIN;
    let protocol = FlowMask::NONE.with_ethertype().with_ip_proto();
    let echo = |kind: u8| {
        let is_echo = key.l4_flags() >> 8 == u16::from(kind);
        is_echo.then_some(protocol.with_l4_flags_bits(0xff00))
    };
    match (key.ethertype(), key.ip_proto()) {
        (EtherType::IPV4 | EtherType::IPV6, tcp::PROTOCOL) => {
            let is_syn = key.l4_flags() & KINDS == tcp::SYN;
            is_syn.then_some(protocol.with_l4_flags_bits(KINDS))
        }
        (EtherType::IPV4 | EtherType::IPV6, udp::PROTOCOL) => Some(protocol),
        (EtherType::IPV4, icmp::PROTOCOL_V4) => echo(ECHO_REQUEST),
        (EtherType::IPV6, icmp::PROTOCOL_V6) => echo(ECHO_REQUEST_V6),
        _ => None,
    }
}
