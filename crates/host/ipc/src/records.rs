//! The records in the rings between the switch and control.

use policy::acl::RuleId;
use policy::connection::ConnectionChange;
use policy::{Action, SegmentId};
use port::PortId;
use serde::{Deserialize, Serialize};
use wire::flow::{FlowKey, FlowMask};

/// A frame without a flow, as control receives it: no payload, which stays pending in the switch.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Upcall {
    /// Number of the pending frame; repeated in the answer.
    pub id: u64,
    /// [`FlowKey::words`] of the frame, exact.
    pub key: [u64; 8],
    /// Length of the whole frame in bytes.
    pub frame_len: u32,
    /// Its first bytes.
    pub headers: Vec<u8>,
    /// The connection of the frame, if it is known. The key has the state of the frame in it, and
    /// the side that it comes from.
    pub connection: Option<Connection>,
}

/// A known connection, as connection tracking has it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Connection {
    /// The port of the other side; `None` until a reply has come.
    pub far: Option<PortId>,
    /// Epoch of the rules that let the connection in: [`policy::Program::tracks`].
    pub epoch: u16,
    /// Milliseconds since it was let in.
    pub age_ms: u32,
}

impl Upcall {
    /// The frame's flow key.
    #[must_use]
    pub fn flow_key(&self) -> FlowKey {
        key_from_words(&self.key)
    }
}

/// Role of a port for a source address that its guest uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum SourceRole {
    /// The address is not learned, and control needs no reports of the flow's use.
    #[default]
    Unlearned,
    /// Frames to the address go to the port.
    Holder,
    /// Frames to the address go to another port. It moves when its holder is silent.
    Rival,
}

/// Decision of control about a flow.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Answer {
    /// Cache this decision, replacing one with the same key and mask, and execute it for the
    /// pending frames.
    Install {
        /// The upcall that it answers, if any.
        upcall: Option<u64>,
        /// Key, masked.
        key: [u64; 8],
        /// The fields that the decision looked at.
        mask: [u64; 8],
        /// The decision.
        action: Action,
        /// Class of the frames, by number.
        class: u8,
        /// Effect on the connection of each of the frames.
        connection: ConnectionChange,
        /// The segment of the decision.
        segment: Option<SegmentId>,
        /// Role of the ingress port for the source address.
        source: SourceRole,
        /// Ports that a flood excludes.
        except: Vec<PortId>,
        /// The rules of access lists that decided, [`MAX_RULES`](crate::rules::MAX_RULES) at most:
        /// the flow's frames are counted for them.
        rules: Vec<RuleId>,
        /// Epoch of the program by which it was decided. If another one runs by now, nothing is
        /// cached, and only this upcall is answered.
        epoch: u64,
    },
    /// Execute once for the pending frames, cache nothing.
    Once {
        /// The upcall that it answers.
        upcall: u64,
        /// The decision.
        action: Action,
        /// Class of the frames, by number.
        class: u8,
        /// Effect on the connection of each of the frames.
        connection: ConnectionChange,
        /// Ports that a flood excludes.
        except: Vec<PortId>,
        /// The rules that decided.
        rules: Vec<RuleId>,
        /// Epoch of the program by which it was decided: another one floods to other ports.
        epoch: u64,
    },
    /// Send this frame to the sender of the pending frame, in place of the owner of the requested
    /// address, and drop the pending frame.
    Reply {
        /// The upcall that it answers.
        upcall: u64,
        /// The frame for the sender, untagged.
        frame: Vec<u8>,
    },
    /// Remove flows that were installed so far; those of later answers stay.
    Forget(StaleFlows),
}

#[cfg(any(test, feature = "test-utils"))]
impl Answer {
    /// Caches a flow to a port, without a tag, an upcall and rules, by the first program.
    #[must_use]
    pub fn unicast(key: &FlowKey, mask: &FlowMask, port: PortId) -> Self {
        Self::Install {
            upcall: None,
            key: *key.masked(mask).words(),
            mask: *mask.words(),
            action: Action::Unicast { port, tag: None },
            class: policy::DEFAULT_CLASS,
            connection: ConnectionChange::None,
            segment: None,
            source: SourceRole::Unlearned,
            except: Vec::new(),
            rules: Vec::new(),
            epoch: 0,
        }
    }
}

/// Selects flows to remove. Control keeps no list of flows: the switch finds them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum StaleFlows {
    /// Flows from and to a station, among those decided in its segment.
    Station {
        /// Its segment.
        segment: SegmentId,
        /// Its address.
        mac: [u8; 6],
    },
    /// Flows from and to a port.
    Port(PortId),
}

/// Builds a key from its words.
#[must_use]
pub fn key_from_words(words: &[u64; 8]) -> FlowKey {
    FlowKey::from_words(*words)
}

/// Builds a mask from its words.
#[must_use]
pub fn mask_from_words(words: &[u64; 8]) -> FlowMask {
    FlowMask::from_words(*words)
}
