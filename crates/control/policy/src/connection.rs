//! Connections in decisions: how the state of a frame's connection enters the decision, and the
//! effect of the decision on the connection.
//!
//! ```text
//!   untracked  stateful rules allow, as others do
//!   new        both sides allow, one of them by a stateful rule: the connection is committed
//!   known      no rule is asked
//!   anew       the rules have changed, or a station has moved: asked as for the first frame
//!   invalid    stateful rules do not match
//! ```
//!
//! The state is a field of the key ([`wire::flow::Ct`]), which connection tracking has set before
//! the flow is looked up. It counts in tracked segments only
//! ([`Program::tracks`](crate::Program::tracks)).

use std::cell::Cell;

use port::PortId;
use serde::{Deserialize, Serialize};
use wire::flow::{Ct, CtState, FlowKey};
use wire::{EtherType, MacAddr, icmp, tcp};

use crate::decide::Lookup;
use crate::model::SegmentId;
use crate::port_security::Bindings;

/// TCP flags of the first segment of a connection: SYN.
const SYN: u16 = 0x02;
/// ICMP types of echo requests (RFC 792; RFC 4443, 4.1).
pub(crate) const ECHO_REQUEST: u8 = 8;
pub(crate) const ECHO_REQUEST_V6: u8 = 128;

/// Standing of a frame in its connection, as far as decisions depend on it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Standing {
    /// Connection tracking has not seen the frame.
    Untracked,
    /// It belongs to no known connection and may open one.
    New {
        /// It may also be a reply of a connection that was forgotten.
        maybe_reply: bool,
    },
    /// Its connection is known and stands.
    Known,
    /// Its connection is known and must be decided as its first frame would be now: the rules have
    /// changed, one of its stations has moved, or its far port is not known yet.
    Anew {
        /// The frame comes from the answering side.
        reply: bool,
    },
    /// It belongs to no connection and opens none. So does an error about a connection that must be
    /// decided anew: a frame of the connection itself decides it.
    Invalid,
}

impl Standing {
    /// Returns the standing of frames with this state.
    #[must_use]
    pub fn of(ct: Ct) -> Self {
        let state = ct.state();
        let reply = state.contains(CtState::REPLY);
        if !state.contains(CtState::TRACKED) {
            Self::Untracked
        } else if state.is_known() {
            Self::Known
        } else if state.contains(CtState::INVALID) {
            Self::Invalid
        } else if state.contains(CtState::ESTABLISHED) {
            Self::Anew { reply }
        } else if state.contains(CtState::NEW) {
            Self::New { maybe_reply: reply }
        } else {
            Self::Invalid
        }
    }
}

/// Effect of a decision on the connection of its frames.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ConnectionChange {
    /// None.
    #[default]
    None,
    /// The connection is let in by the rules of now: it becomes known, or stands again.
    Commit {
        /// Its mark, see [`mark_of`].
        mark: u8,
        /// The frame comes from its answering side.
        reply: bool,
    },
    /// The rules of now do not let the connection in. It stays known: without it, a frame of the
    /// other side might open it anew. Only with [`Action::Drop`](crate::Action::Drop).
    Deny,
}

impl ConnectionChange {
    /// Returns whether the connection changes.
    #[must_use]
    pub const fn is_some(&self) -> bool {
        !matches!(self, Self::None)
    }
}

/// Returns the low byte of the mark of a connection that has this class by a rule. Zero: no rule
/// names a class.
#[must_use]
pub const fn mark_of(class: Option<u8>) -> u8 {
    match class {
        Some(class) => class.saturating_add(1),
        None => 0,
    }
}

/// Returns the class in the low byte of a connection's mark; the inverse of [`mark_of`].
#[must_use]
pub const fn class_of(mark: u8) -> Option<u8> {
    mark.checked_sub(1)
}

/// Returns the key of the first frame of a connection from the key of any frame of its original
/// direction: a SYN of TCP, an echo request of ICMP.
pub(crate) const fn first_of(key: &FlowKey) -> FlowKey {
    let flags = match (key.ethertype(), key.ip_proto()) {
        (_, tcp::PROTOCOL) => SYN,
        (EtherType::IPV4, icmp::PROTOCOL_V4) => (ECHO_REQUEST as u16) << 8,
        (EtherType::IPV6, icmp::PROTOCOL_V6) => (ECHO_REQUEST_V6 as u16) << 8,
        _ => key.l4_flags(),
    };
    key.with_l4_flags(flags).with_ct(Ct::UNTRACKED)
}

/// Returns the key of a frame that goes back from the receiver of a frame, which has this tag
/// there.
pub(crate) const fn reversed(key: &FlowKey, receiver: PortId, tag: Option<u16>) -> FlowKey {
    key.with_in_port(receiver.0)
        .with_vlan(tag)
        .with_smac(key.dmac())
        .with_dmac(key.smac())
        .with_src_ip(key.dst_ip())
        .with_dst_ip(key.src_ip())
        .with_l4_ports(key.l4_dst(), key.l4_src())
}

/// A forwarding database, and the far port of the frame's connection for an address that it does
/// not know: a known connection outlives the entries of its stations.
pub struct WithFarPort<'a> {
    fdb: &'a dyn Lookup,
    far: Option<PortId>,
    is_used: Cell<bool>,
}

impl<'a> WithFarPort<'a> {
    /// Returns a forwarding database with this far port, if the frame belongs to a known connection
    /// that has one.
    #[must_use]
    pub fn new(fdb: &'a dyn Lookup, far: Option<PortId>) -> Self {
        Self {
            fdb,
            far,
            is_used: Cell::new(false),
        }
    }

    /// Returns whether a decision about this key with this database holds for no other connection,
    /// because it goes to the far port. If the connection stands, the switch compares the two.
    #[must_use]
    pub fn is_for_one(&self, key: &FlowKey) -> bool {
        self.is_used.get() && !key.ct().state().is_known()
    }
}

impl Lookup for WithFarPort<'_> {
    fn port_of(&self, segment: SegmentId, mac: MacAddr) -> Option<PortId> {
        let found = self.fdb.port_of(segment, mac);
        if found.is_none() && self.far.is_some() {
            self.is_used.set(true);
            return self.far;
        }
        found
    }

    fn is_barred(&self, segment: SegmentId, mac: MacAddr, port: PortId) -> bool {
        self.fdb.is_barred(segment, mac, port)
    }

    fn bound(&self, port: PortId) -> Bindings {
        self.fdb.bound(port)
    }
}
