//! What a tracker answers for a frame.

use wire::MacAddr;
use wire::flow::CtState;

use crate::packet::Exemption;
use crate::tuple::Station;
use crate::{Direction, Invalid, Seed};

/// A port.
pub type Port = u16;

/// The port that a frame comes from, and its stations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ingress {
    /// The port.
    pub port: Port,
    /// Whether learning says that the frame's source is a station of this port.
    pub is_home: bool,
    /// The stations of its Ethernet header, for frames that may move or commit a connection.
    pub stations: Stations,
}

/// The stations of an Ethernet header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stations {
    /// Of the source address.
    pub source: Station,
    /// Of the destination address.
    pub destination: Station,
}

impl Stations {
    /// Returns the stations of these addresses in the table with this seed.
    pub(crate) fn new(seed: &Seed, source: MacAddr, destination: MacAddr) -> Self {
        let mut head = [0; 16];
        head[..6].copy_from_slice(&destination.0);
        head[6..12].copy_from_slice(&source.0);
        Self::of(seed, &head)
    }

    /// Returns the stations of a frame with these first bytes.
    #[inline(always)]
    pub(crate) fn of(seed: &Seed, head: &[u8; 16]) -> Self {
        let addresses = u128::from_le_bytes(*head);
        Self {
            source: seed.station((addresses >> 48) as u64),
            destination: seed.station(addresses as u64),
        }
    }
}

/// A frame's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connection {
    /// Direction of the frame.
    pub direction: Direction,
    /// Whether the answering side had sent a frame before this one.
    pub replied: bool,
    /// Whether rules have changed since the connection was let in, or have denied a frame of it.
    pub stale: bool,
    /// Whether its station has moved to the frame's port, or the port of one of its sides is not
    /// known yet. Such a frame changes nothing before it is committed.
    pub moved: bool,
    /// The port of the other side, if it is known.
    pub far: Option<Port>,
}

/// The judgement of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Judgement {
    /// It is not tracked.
    Untracked(Exemption),
    /// It may open a connection.
    New,
    /// It belongs to a connection. `refused`: the connection ends with it.
    Known {
        /// The connection.
        connection: Connection,
        /// Whether it refuses the connection.
        refused: bool,
    },
    /// It is an error about a connection.
    Related(Connection),
    /// It belongs to none.
    Invalid(Invalid),
    /// A later fragment, and the first one is not known.
    EarlyFragment,
}

impl Judgement {
    /// The state as flow keys have it.
    #[must_use]
    pub fn state(&self) -> CtState {
        let of = |kind: CtState, connection: &Connection| {
            let mut state = CtState::TRACKED | kind;
            state.set(CtState::REPLY, connection.direction == Direction::Reply);
            state.set(CtState::STALE, connection.stale);
            state.set(CtState::MOVED, connection.moved);
            state
        };
        match self {
            Self::Untracked(_) => CtState::empty(),
            Self::New => CtState::TRACKED | CtState::NEW,
            Self::Known { connection, .. } => of(CtState::ESTABLISHED, connection),
            Self::Related(connection) => of(CtState::RELATED, connection),
            Self::Invalid(_) | Self::EarlyFragment => CtState::TRACKED | CtState::INVALID,
        }
    }
}
