//! Numbers and states of flows.

/// A flow. A number is used again, but never with the same generation soon after.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FlowId {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

impl FlowId {
    /// The number of the slot, below the bound of flows: the driver's own table has the same.
    #[must_use]
    pub fn index(self) -> usize {
        self.index as usize
    }
}

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
