//! The table of flows for people: counts by state, and one flow after the other.

use std::net::SocketAddr;

use wire::MacAddr;

use super::Translator;
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
pub(super) struct States([u32; FlowState::ALL.len()]);

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

impl Translator {
    /// Returns the numbers of flows by state, in the order of [`FlowState::ALL`].
    #[must_use]
    pub fn states(&self) -> [u32; FlowState::ALL.len()] {
        self.states.0
    }

    /// Returns the number of slots, free ones included.
    #[must_use]
    pub fn slots(&self) -> u32 {
        self.slots.len() as u32
    }

    /// Returns the flow of a slot, see [`FlowId::index`]; `None` for a free one.
    #[must_use]
    pub fn listed(&self, slot: u32) -> Option<Listed> {
        let id = self.id(slot);
        let entry = self.entry(id)?;
        let ends = entry.ends();
        let (protocol, connected) = match entry {
            Entry::Tcp(flow) => (Protocol::Tcp, flow.has_connected()),
            Entry::Udp(_) => (Protocol::Udp, false),
        };
        Some(Listed {
            id,
            protocol,
            connected,
            station: ends.station,
            guest: ends.guest,
            peer: ends.peer,
            state: entry.state(),
        })
    }
}

impl Entry {
    pub(super) fn state(&self) -> FlowState {
        match self {
            Self::Tcp(flow) => flow.shown(),
            Self::Udp(_) => FlowState::Mapped,
        }
    }
}
