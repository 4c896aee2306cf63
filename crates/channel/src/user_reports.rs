//! Reports of user ports: their figures, and their tables of flows and leases in parts.
//!
//! ```text
//! driver     -- SupervisorRequest::UserFigures ----> supervisor  after each answer to a ping
//! control    -- SupervisorRequest::AllUserFigures -> supervisor  answer: UserFigures
//! control    -- SupervisorRequest::UserTable ------> supervisor  a part of a table
//! supervisor -- SupervisorEvent::UserQuestion -----> driver      one at a time
//! driver     -- SupervisorRequest::UserPage -------> supervisor
//! supervisor -- SupervisorEvent::UserPage ---------> control     or the reason why there is none
//! ```

use std::net::{Ipv4Addr, SocketAddr};

use port::DropReason;
use serde::{Deserialize, Serialize};

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

/// Figures of a user port.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct UserFigures {
    /// Connections and UDP mappings now, by [`USER_STATES`].
    pub flows: [u32; USER_STATES.len()],
    /// Most of them.
    pub flows_max: u32,
    /// Those that outlive the process.
    pub kept: u32,
    /// Most of them.
    pub kept_max: u32,
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
    /// Addresses that guests have by DHCP.
    Leases,
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
    /// Of [`UserTable::Flows`].
    Flows(Vec<UserFlow>),
    /// Of [`UserTable::Leases`].
    Leases(Vec<UserLease>),
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

impl UserPage {
    /// Returns whether this may be the answer to a question. The driver is not trusted.
    #[must_use]
    pub fn answers(&self, question: UserQuestion) -> bool {
        let (count, fits) = match &self.rows {
            UserRows::Flows(rows) => {
                let known = |row: &UserFlow| usize::from(row.state) < USER_STATES.len();
                let fits = question.table == UserTable::Flows && rows.iter().all(known);
                (rows.len(), fits)
            }
            UserRows::Leases(rows) => (rows.len(), question.table == UserTable::Leases),
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
