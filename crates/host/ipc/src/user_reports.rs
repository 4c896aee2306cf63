//! Reports of user ports: their figures, and their tables of flows, leases and forwards in parts.
//!
//! ```text
//! driver     -- UserDriverRequest::Figures --> supervisor  after each answer to a ping
//! control    -- PortDriverRequest::States ---> supervisor  the answer has the figures
//! control    -- UserPortRequest::Table ------> supervisor  a part of a table
//! supervisor -- EventToDriver::UserQuestion -> driver      one at a time
//! driver     -- UserDriverRequest::Page -----> supervisor
//! supervisor -- UserPortAnswer::Page --------> control     or the reason why there is none
//! ```

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use port::DropReason;
use serde::{Deserialize, Serialize};

use crate::driving::Listen;

/// Drop reasons of user ports, in the order of [`UserTotals::refused`].
pub const USER_REFUSALS: [DropReason; 6] = [
    DropReason::UserDenied,
    DropReason::UserFlows,
    DropReason::UserFragment,
    DropReason::UserProtocol,
    DropReason::UserUnreachable,
    DropReason::UserPorts,
];

/// Protocols and states of flows, in the order of [`UserFigures::flows`].
pub const USER_STATES: [(&str, &str); 5] = [
    ("tcp", "half-open"),
    ("tcp", "established"),
    ("tcp", "half-closed"),
    ("tcp", "time-wait"),
    ("udp", "mapped"),
];

/// Results of new flows, in the order of [`UserTotals::results`]: connections that were established
/// and UDP mappings that were opened, connections that the other end refused, and those that failed
/// otherwise.
pub const USER_RESULTS: [&str; 3] = ["established", "refused", "failed"];

/// Most rows of a part of a table.
pub const USER_ROWS: usize = 64;

/// Maximum number of resolvers of a user port (`usernet::services::dns::RESOLVERS_MAX`).
pub const USER_RESOLVERS: usize = 8;

/// Figures of a user port.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct UserFigures {
    /// Connections and UDP mappings now, by [`USER_STATES`].
    pub flows: [u32; USER_STATES.len()],
    /// Maximum number of them.
    pub flows_max: u32,
    /// Those that outlive the process.
    pub kept: u32,
    /// Maximum number of those.
    pub kept_max: u32,
    /// The resolvers, in the order of the configuration.
    pub resolvers: [Option<UserResolver>; USER_RESOLVERS],
    /// The system permits the process no echo requests to the outside
    /// (`net.ipv4.ping_group_range`, icmp(7)).
    pub echo_denied: bool,
    /// Counters: since the driver process started, or for control since the port exists.
    pub totals: UserTotals,
}

impl UserFigures {
    /// Returns the number of connections and UDP mappings now.
    #[must_use]
    pub fn all_flows(&self) -> u32 {
        self.flows.iter().fold(0, |sum, n| sum.saturating_add(*n))
    }
}

/// A resolver of a user port.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct UserResolver {
    /// Its address.
    pub address: SocketAddr,
    /// Its state by UDP.
    pub udp: UserWay,
    /// The same by TCP.
    pub tcp: UserWay,
}

/// The state of a resolver by one protocol.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct UserWay {
    /// The last thing.
    pub outcome: UserOutcome,
    /// It is asked after all others.
    pub is_last: bool,
}

/// The last thing that a resolver has done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum UserOutcome {
    /// It was not asked.
    NotAsked,
    /// It has answered.
    Answered,
    /// It has answered with this response code (RFC 6895, section 2.3), which is an error.
    Error(u16),
    /// It has answered that it knows nothing, and asks no other server.
    Lame,
    /// It has sent something else than an answer.
    Nonsense,
    /// Nothing listens there, or it has closed the connection.
    Closed,
    /// The host has no way to it.
    Unreachable,
    /// It has not answered in time.
    Silent,
}

/// Counters of a user port.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct UserTotals {
    /// Flows by [`USER_RESULTS`].
    pub results: [u64; USER_RESULTS.len()],
    /// Frames and connections that were refused, by [`USER_REFUSALS`].
    pub refused: [u64; USER_REFUSALS.len()],
    /// Bytes of payload that sockets took of guests.
    pub from_guests: u64,
    /// Bytes of payload that guests took of sockets.
    pub to_guests: u64,
    /// Questions of guests to the DNS server.
    pub dns_questions: u64,
}

impl UserTotals {
    /// Returns the sums of the counters of two processes.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        let sum = u64::saturating_add;
        Self {
            results: std::array::from_fn(|at| sum(self.results[at], other.results[at])),
            refused: std::array::from_fn(|at| sum(self.refused[at], other.refused[at])),
            from_guests: sum(self.from_guests, other.from_guests),
            to_guests: sum(self.to_guests, other.to_guests),
            dns_questions: sum(self.dns_questions, other.dns_questions),
        }
    }
}

/// A table of a user port.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum UserTable {
    /// Connections and UDP mappings.
    Flows,
    /// Those that wait for something, and have made no progress for so many milliseconds.
    StalledFlows(u32),
    /// Addresses that guests have by DHCP.
    Leases,
    /// Forwards that have a socket.
    Forwards,
}

/// A question for a part of a table, of at most [`USER_ROWS`] rows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct UserQuestion {
    /// The table.
    pub table: UserTable,
    /// The place where the part begins: 0, or [`UserPage::next`] of the part before.
    pub from: u32,
}

/// A part of a table.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct UserPage {
    /// The question that it answers.
    pub question: UserQuestion,
    /// The rows; there may be none although the table has more.
    pub rows: UserRows,
    /// The place where the next part begins; none behind the last.
    pub next: Option<u32>,
}

/// Rows of a table.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum UserRows {
    /// Of [`UserTable::Flows`] and [`UserTable::StalledFlows`].
    Flows(Vec<UserFlow>),
    /// Of [`UserTable::Leases`].
    Leases(Vec<UserLease>),
    /// Of [`UserTable::Forwards`].
    Forwards(Vec<UserForwardRow>),
}

/// A connection or UDP mapping.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct UserFlow {
    /// Its place in [`USER_STATES`].
    pub state: u8,
    /// The guest's MAC address.
    pub mac: [u8; 6],
    /// The guest's address and port.
    pub guest: SocketAddr,
    /// The other end as the guest sees it; of a mapping the first.
    pub peer: SocketAddr,
    /// Milliseconds since it was opened; none if that was before the driver process started.
    pub age_ms: Option<u64>,
    /// Bytes of payload from the guest and to it; none if they are not known.
    pub bytes: Option<[u64; 2]>,
    /// The reason why it waits.
    pub waits_for: UserWait,
    /// Milliseconds since its last progress.
    pub progress_ms: u64,
    /// Its next deadline in milliseconds, and the reason of it.
    pub timer: Option<(UserTimer, u64)>,
    /// How far it is, of TCP.
    pub tcp: Option<UserTcp>,
}

/// The reason why a flow waits (`usernet::WaitsFor`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum UserWait {
    /// Nothing.
    Nothing,
    /// The guest's window.
    GuestWindow,
    /// A free buffer for frames to guests.
    Buffer,
    /// Other flows that come first.
    Turn,
    /// An acknowledgement of the guest.
    Acknowledgement,
    /// The host's socket.
    HostSocket,
}

/// The reason of a deadline of a flow (`usernet::TimerKind`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum UserTimer {
    /// Something is sent to the guest again.
    Retransmission,
    /// The guest is asked for its window.
    Probe,
    /// The guest is asked whether it is there.
    KeepAlive,
    /// The flow ends.
    Expiry,
}

/// How far a TCP flow is, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct UserTcp {
    /// Sent to the guest, and not acknowledged by it.
    pub unacknowledged: u32,
    /// The guest's window.
    pub window: u32,
    /// In the socket for the guest, and not sent yet.
    pub pending: u32,
    /// In the socket for the peer, and not acknowledged by it.
    pub queued: u32,
    /// Free in the socket's send buffer.
    pub room: u32,
    /// Segments that were sent to the guest again.
    pub retransmissions: u32,
}

/// An address that a guest has.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct UserLease {
    /// The guest's MAC address.
    pub mac: [u8; 6],
    /// Its address.
    pub address: Ipv4Addr,
    /// Seconds until it ends; 0 if it has ended.
    pub seconds: u32,
}

/// A forward that has a socket, and the guest that it leads to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct UserForwardRow {
    /// Where it listens.
    pub listen: Listen,
    /// The guest's address, if it has one.
    pub address: Option<IpAddr>,
    /// The guest's MAC address is known: it was not asked for in vain.
    pub has_station: bool,
}

impl UserPage {
    /// Returns whether this may be the answer to a question. The driver is not trusted.
    #[must_use]
    pub fn answers(&self, question: UserQuestion) -> bool {
        let (count, fits) = match &self.rows {
            UserRows::Flows(rows) => {
                let known = |row: &UserFlow| usize::from(row.state) < USER_STATES.len();
                let tables = matches!(
                    question.table,
                    UserTable::Flows | UserTable::StalledFlows(_)
                );
                let fits = tables && rows.iter().all(known);
                (rows.len(), fits)
            }
            UserRows::Leases(rows) => (rows.len(), question.table == UserTable::Leases),
            UserRows::Forwards(rows) => (rows.len(), question.table == UserTable::Forwards),
        };
        let advances = self.next.is_none_or(|next| next > question.from);
        self.question == question && fits && count <= USER_ROWS && advances
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(state: u8) -> UserFlow {
        UserFlow {
            state,
            mac: [2; 6],
            guest: "10.0.2.15:1000".parse().unwrap(),
            peer: "192.0.2.1:80".parse().unwrap(),
            age_ms: None,
            bytes: None,
            waits_for: UserWait::Nothing,
            progress_ms: 0,
            timer: None,
            tcp: None,
        }
    }

    fn page(table: UserTable, rows: UserRows, next: Option<u32>) -> UserPage {
        let question = UserQuestion { table, from: 5 };
        UserPage {
            question,
            rows,
            next,
        }
    }

    #[test]
    fn only_a_sound_page_answers_a_question() {
        let flows = |rows| UserRows::Flows(rows);
        let question = UserQuestion {
            table: UserTable::Flows,
            from: 5,
        };
        let all = vec![flow(4); USER_ROWS];
        for (page, answers) in [
            (page(UserTable::Flows, flows(Vec::new()), None), true),
            (page(UserTable::Flows, flows(all.clone()), Some(6)), true),
            (page(UserTable::Flows, flows(all), Some(5)), false),
            (page(UserTable::Flows, flows(vec![flow(5)]), None), false),
            (
                page(UserTable::Flows, flows(vec![flow(0); USER_ROWS + 1]), None),
                false,
            ),
            (
                page(UserTable::StalledFlows(1), flows(vec![flow(0)]), None),
                false,
            ),
            (page(UserTable::Leases, flows(Vec::new()), None), false),
            (
                page(UserTable::Flows, UserRows::Leases(Vec::new()), None),
                false,
            ),
        ] {
            assert_eq!(page.answers(question), answers, "{page:?}");
        }
        let other = UserQuestion {
            from: 6,
            ..question
        };
        assert!(!page(UserTable::Flows, flows(Vec::new()), None).answers(other));
    }

    #[test]
    fn counters_of_processes_add_up() {
        let one = UserTotals {
            results: [1, 2, 3],
            refused: [1, 2, 3, 4, u64::MAX, 0],
            from_guests: 5,
            to_guests: 6,
            dns_questions: 7,
        };
        let both = one.plus(&one);
        assert_eq!(both.results, [2, 4, 6]);
        assert_eq!(both.refused, [2, 4, 6, 8, u64::MAX, 0]);
        let rest = (both.from_guests, both.to_guests, both.dns_questions);
        assert_eq!(rest, (10, 12, 14));
    }
}
