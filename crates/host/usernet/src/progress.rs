//! Positions of a flow, by its socket: nothing else knows them after a death.

/// Positions of a flow: bytes without SYN and FIN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Bytes taken from the guest.
    pub taken: u64,
    /// Bytes given to the guest and acknowledged by it.
    pub given: u64,
    /// Bytes that wait in the socket.
    pub unread: u32,
    /// Whether the guest has closed its half.
    pub guest_closed: bool,
    /// Whether the peer has closed its half.
    pub peer_closed: bool,
    /// Free bytes of the send buffer.
    pub room: u32,
}

/// Numbers of a TCP socket. They are read by several calls, between which they change: read them
/// until two readings agree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counters {
    /// `tcpi_state`.
    pub state: u8,
    /// `tcpi_bytes_acked`: with the SYN of a socket that connected, and a FIN.
    pub acked: u64,
    /// `tcpi_bytes_received`: with the peer's FIN.
    pub received: u64,
    /// `SIOCOUTQ`: bytes that are not acknowledged, with a FIN.
    pub unacknowledged: u32,
    /// `SIOCINQ`: bytes that wait, without a FIN.
    pub unread: u32,
    /// Free bytes of the send buffer.
    pub room: u32,
}

// States of Linux (`include/net/tcp_states.h`).
const ESTABLISHED: u8 = 1;
const FIN_WAIT_1: u8 = 4;
const FIN_WAIT_2: u8 = 5;
const TIME_WAIT: u8 = 6;
const CLOSE: u8 = 7;
const CLOSE_WAIT: u8 = 8;
const LAST_ACK: u8 = 9;
const CLOSING: u8 = 11;

impl Progress {
    /// The positions of a flow. Its socket `connected`, or was accepted. `None`: it is neither
    /// established nor closed by both ends, or its numbers contradict each other. A socket that
    /// failed is closed too: its error (`SO_ERROR`) is for the caller to read before.
    #[must_use]
    pub fn of(counters: &Counters, connected: bool) -> Option<Self> {
        let (guest_closed, peer_closed) = match counters.state {
            ESTABLISHED => (false, false),
            FIN_WAIT_1 | FIN_WAIT_2 => (true, false),
            CLOSE_WAIT => (false, true),
            LAST_ACK | CLOSING | TIME_WAIT | CLOSE => (true, true),
            _ => return None,
        };
        let queued = counters
            .acked
            .checked_add(u64::from(counters.unacknowledged))?;
        let taken = queued.checked_sub(u64::from(connected) + u64::from(guest_closed))?;
        let waiting = u64::from(counters.unread) + u64::from(peer_closed);
        Some(Self {
            taken,
            given: counters.received.checked_sub(waiting)?,
            unread: counters.unread,
            guest_closed,
            peer_closed,
            room: counters.room,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COUNTERS: Counters = Counters {
        state: ESTABLISHED,
        acked: 101,
        received: 60,
        unacknowledged: 7,
        unread: 10,
        room: 5,
    };

    #[test]
    fn a_syn_and_each_fin_are_no_bytes() {
        for (state, connected, taken, given) in [
            (ESTABLISHED, true, 107, 50),
            (ESTABLISHED, false, 108, 50),
            (FIN_WAIT_1, true, 106, 50),
            (FIN_WAIT_2, false, 107, 50),
            (CLOSE_WAIT, true, 107, 49),
            (LAST_ACK, true, 106, 49),
            (CLOSING, false, 107, 49),
            (CLOSE, true, 106, 49),
        ] {
            let counters = Counters { state, ..COUNTERS };
            let progress = Progress::of(&counters, connected).unwrap();
            assert_eq!((progress.taken, progress.given), (taken, given), "{state}");
            assert_eq!((progress.unread, progress.room), (10, 5));
        }
    }

    #[test]
    fn numbers_that_contradict_themselves_are_none() {
        for (state, acked, received) in [
            (2, 101, 60),
            (3, 101, 60),
            (10, 101, 60),
            (12, 101, 60),
            (ESTABLISHED, u64::MAX, 60),
            (ESTABLISHED, 101, 9),
            (CLOSE_WAIT, 101, 10),
        ] {
            let counters = Counters {
                state,
                acked,
                received,
                ..COUNTERS
            };
            assert_eq!(Progress::of(&counters, true), None, "{counters:?}");
        }
        let nothing = Counters {
            acked: 0,
            unacknowledged: 0,
            ..COUNTERS
        };
        assert_eq!(Progress::of(&nothing, true), None);
    }
}
