//! The table of flows for people: counts by state, and one flow after the other.

use std::net::SocketAddr;

use wire::MacAddr;

use super::table::Entry;
use crate::action::FlowId;
use crate::network::Protocol;

/// State of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowState {
    /// A TCP connection that is not yet established at both sides.
    HalfOpen,
    /// An established one.
    Established,
    /// One of which an end has closed its half.
    HalfClosed,
    /// One that both ends have closed: late segments are answered.
    TimeWait,
    /// A mapping of UDP.
    Mapped,
}

impl FlowState {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::HalfOpen,
        Self::Established,
        Self::HalfClosed,
        Self::TimeWait,
        Self::Mapped,
    ];

    /// Its word.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::HalfOpen => "half-open",
            Self::Established => "established",
            Self::HalfClosed => "half-closed",
            Self::TimeWait => "time-wait",
            Self::Mapped => "mapped",
        }
    }
}

/// Numbers of flows by state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct States(pub(super) [u32; FlowState::ALL.len()]);

impl States {
    /// A flow changes its state; one that begins had none, one that ends has none.
    pub(super) fn change(&mut self, from: Option<FlowState>, to: Option<FlowState>) {
        if from == to {
            return;
        }
        if let Some(from) = from {
            self.0[from as usize] = self.0[from as usize].saturating_sub(1);
        }
        if let Some(to) = to {
            self.0[to as usize] += 1;
        }
    }
}

/// A flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Its number.
    pub id: FlowId,
    /// Its protocol.
    pub protocol: Protocol,
    /// The host's socket has connected; it was not accepted.
    pub connected: bool,
    /// Station of the guest.
    pub station: MacAddr,
    /// Address and port of the guest.
    pub guest: SocketAddr,
    /// The other end as the guest sees it; of a mapping the first.
    pub peer: SocketAddr,
    /// Its state.
    pub state: FlowState,
}

impl Entry {
    pub(super) fn state(&self) -> FlowState {
        match self {
            Self::Tcp(flow) => flow.shown(),
            Self::Udp(_) => FlowState::Mapped,
        }
    }
}
