//! The table of flows for people: counts by state, and one flow after the other.

use std::net::SocketAddr;

use wire::MacAddr;

use super::table::Entry;
use crate::Nanos;
use crate::flow::{FlowId, FlowState};
use crate::network::Protocol;
use crate::waiting::{TcpCounters, TimerKind};

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
pub struct ListedFlow {
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
    /// The time of its last progress: bytes that the guest has acknowledged, bytes of it that the
    /// socket took, a datagram, or a new state.
    pub progress: Nanos,
    /// Its next deadline, and the reason.
    pub timer: Option<(TimerKind, Nanos)>,
    /// How far it is, of TCP.
    pub tcp: Option<TcpCounters>,
}

impl Entry {
    pub(super) fn state(&self) -> FlowState {
        match self {
            Self::Tcp(flow) => flow.shown(),
            Self::Udp(_) => FlowState::Mapped,
        }
    }
}
