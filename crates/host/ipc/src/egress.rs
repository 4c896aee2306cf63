//! Scheduled ports, from control to the switch, and their use, from the switch to control.

use port::PortId;
use serde::{Deserialize, Serialize};

pub use egress::{Beyond, FullAction, Group, MAX_CLASSES, OutputConfig, Rates, Sender};

/// Settings of a port as a sender that hold at every scheduled port.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct SenderQos {
    /// Its priority, 0 to 7: queue pairs of ports above 0 are looked at between two batches of
    /// others.
    pub priority: u8,
    /// The class of all frames of a queue pair, by number; `None`: frames are classified each.
    pub class_by_pair: Vec<Option<u8>>,
}

/// Use of a scheduled port by one class of a sender, since the switch or its output started.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct EgressUse {
    /// The sender.
    pub sender: PortId,
    /// The class, by number.
    pub class: u8,
    /// Bits that were sent, as on the wire.
    pub bits: u64,
    /// Time in which frames waited for their turn, nanoseconds.
    pub held_ns: u64,
    /// Frames that were dropped instead.
    pub dropped_frames: u64,
    /// Bits of the frame that waits now; 0 if none does.
    pub waiting_bits: u64,
}
