//! The records in the rings between the switch and control.

use policy::acl::RuleId;
use policy::{Action, SegmentId};
use port::PortId;
use serde::{Deserialize, Serialize};
use wire::flow::{FlowKey, FlowMask};

/// A frame without a flow, as control sees it: no payload, which stays parked in the switch.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Upcall {
    /// Names the parked frames; echoed in the answer.
    pub id: u64,
    /// [`FlowKey::words`] of the frame, exact.
    pub key: [u64; 8],
    /// Length of the whole frame in bytes.
    pub frame_len: u32,
    /// Its first bytes.
    pub headers: Vec<u8>,
}

impl Upcall {
    /// The frame's flow key.
    #[must_use]
    pub fn flow_key(&self) -> FlowKey {
        key_from_words(&self.key)
    }
}

/// What control wants with a flow.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Answer {
    /// Cache this decision, replacing one with the same key and mask, and execute it for the parked
    /// frames.
    Install {
        /// The upcall that it answers, if any.
        upcall: Option<u64>,
        /// Key, masked.
        key: [u64; 8],
        /// The fields that the decision looked at.
        mask: [u64; 8],
        /// The decision.
        action: Action,
        /// The segment it was made in.
        segment: Option<SegmentId>,
        /// Control knows the source as a station of the ingress port: it wants to hear of the flow's use, see
        /// [`Order::Stations`](crate::switching::Order::Stations).
        learned: bool,
        /// Whom a flood leaves out.
        except: Vec<PortId>,
        /// The rules of access lists that decided, [`MAX_RULES`](crate::rules::MAX_RULES) at most: the flow's frames are counted for them.
        rules: Vec<RuleId>,
        /// The program by which it was decided. If another one runs by now, nothing is cached, and only this upcall is
        /// answered.
        epoch: u64,
    },
    /// Execute once for the parked frames, cache nothing.
    Once {
        /// The upcall that it answers.
        upcall: u64,
        /// The decision.
        action: Action,
        /// Whom a flood leaves out.
        except: Vec<PortId>,
        /// The rules that decided.
        rules: Vec<RuleId>,
        /// Of the program by which it was decided: another one floods to others.
        epoch: u64,
    },
    /// Give the sender of the parked frame this one, in the owner's place whom it asks for, and the frame to nobody.
    Reply {
        /// The upcall that it answers.
        upcall: u64,
        /// What the sender gets, untagged.
        frame: Vec<u8>,
    },
    /// Forget flows that were installed so far; those that are installed by later answers stay.
    Forget(Stale),
}

/// Which flows are to be forgotten. Control keeps no list of flows: the switch finds them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Stale {
    /// Those from and to a station, among the flows that were decided in its segment.
    Station {
        /// Its segment.
        segment: SegmentId,
        /// Its address.
        mac: [u8; 6],
    },
    /// Those from and to a port.
    Port(PortId),
}

/// A key from its words.
#[must_use]
pub fn key_from_words(words: &[u64; 8]) -> FlowKey {
    FlowKey::from_bytes(&words_to_bytes(words))
}

/// A mask from its words.
#[must_use]
pub fn mask_from_words(words: &[u64; 8]) -> FlowMask {
    FlowMask::from_bytes(&words_to_bytes(words))
}

fn words_to_bytes(words: &[u64; 8]) -> [u8; 64] {
    let mut bytes = [0; 64];
    for (chunk, word) in bytes.chunks_exact_mut(8).zip(words) {
        chunk.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}
