//! The frame class, a field of the flow key.

/// Class of a frame, as port security needs it: the sender role that its bytes show, from their own
/// contents alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum FrameClass {
    /// Frames that need no check.
    #[default]
    Ordinary = 0,
    /// Neighbour discovery that claims an address, and does not contradict itself. Its target is
    /// in no flow key.
    Neighbour = 1,
    /// ARP or neighbour discovery that contradicts itself, the frame that it is in, or the
    /// protocol.
    SpoofedNeighbour = 2,
    /// A message that DHCP servers send, for IPv4 or IPv6.
    DhcpServer = 3,
    /// An advertisement or a redirect, as routers send them, of IPv4 or IPv6.
    Router = 4,
    /// Headers that cannot be parsed.
    Unparseable = 5,
    /// A broadcast ARP request for another's address, which does not contradict itself.
    NeighbourRequest = 6,
}

impl FrameClass {
    /// Returns the class of this number; an unknown one is [`FrameClass::Unparseable`].
    #[must_use]
    pub const fn from_bits(bits: u8) -> Self {
        match bits {
            0 => Self::Ordinary,
            1 => Self::Neighbour,
            2 => Self::SpoofedNeighbour,
            3 => Self::DhcpServer,
            4 => Self::Router,
            6 => Self::NeighbourRequest,
            _ => Self::Unparseable,
        }
    }
}
