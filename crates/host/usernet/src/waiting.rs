//! Reasons why a flow waits, for people who look for the cause of a stall.

/// The reason why a flow waits. If several hold, the first in this order counts, after
/// [`Self::Nothing`]: the way to the guest comes before the way to the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitsFor {
    /// Nothing: all bytes of both ends are acknowledged, or both ends have closed.
    Nothing,
    /// Bytes wait for the guest, and its window is closed, or too small for the next segment.
    GuestWindow,
    /// Bytes wait for the guest, it would take them, and there is no free buffer of its queue.
    Buffer,
    /// Bytes wait for the guest, it would take them, and flows that are ready come first.
    Turn,
    /// All bytes for the guest, a SYN or a FIN are on their way, and the guest has not acknowledged
    /// them.
    Acknowledgement,
    /// The host's socket is not connected yet, or the peer has not acknowledged bytes of the guest.
    HostSocket,
}

/// The reason of the next deadline of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimerKind {
    /// Bytes, a SYN or a FIN are sent to the guest again (RFC 6298).
    Retransmission,
    /// The guest is asked for its window, which is closed (RFC 9293, section 3.8.6.1).
    Probe,
    /// The guest is asked whether it is there.
    KeepAlive,
    /// The flow ends.
    Expiry,
}

/// Bytes that lie in the socket of a TCP flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SocketQueues {
    /// Bytes for the guest that it has not acknowledged (`SIOCINQ`, tcp(7)).
    pub unread: u32,
    /// Bytes of the guest that the peer has not acknowledged; a FIN counts as one (`SIOCOUTQ`).
    pub unsent: u32,
}

/// How far a TCP flow is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpCounters {
    /// Bytes that were sent to the guest, and that it has not acknowledged.
    pub unacknowledged: u32,
    /// The guest's window in bytes, beginning with the first of those.
    pub window: u32,
    /// Free bytes of the socket's send buffer, as it was reported last: the guest's window.
    pub room: u32,
    /// Segments that were sent to the guest again, since the process has the flow; probes of a
    /// closed window do not count.
    pub retransmissions: u32,
}
