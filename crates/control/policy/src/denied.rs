//! Flows that a table before the switch may end: those that access lists deny whatever happens to
//! other frames.

use wire::{FlowKey, FlowMask, FrameClass};

use crate::acl::RuleId;
use crate::decide::{Action, Lookup, decide_exact};
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
}

/// Returns the denial of the plain frames with this key, if the access lists deny them.
///
/// Frames that differ in the ingress port are of no concern: a table has one. Nor does the source
/// address of Ethernet count where no rule names one, or the destination's where the sender's lists
/// deny: whatever they are, barred or reserved, the frame is dropped.
///
/// Not denied in this sense, although dropped: frames of tracked segments, because replies with the
/// same bits may pass; those of ports with port security; those that a rule logs or rejects.
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
    let decision = decide_exact(program, fdb, key);
    let is_logged = |ruling: &crate::acl::Ruling| ruling.rule().is_some_and(|r| r.log.is_some());
    if decision.action != Action::Drop(DropReason::AclDenied)
        || program.tracks(decision.segment?).is_some()
        || decision.rulings().any(is_logged)
    {
        return None;
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
        mask: decision.mask.without(&leaves_out),
        rules: decision.rules(),
    })
}
