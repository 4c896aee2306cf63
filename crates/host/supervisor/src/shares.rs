//! Shares of the limit of open descriptors (`RLIMIT_NOFILE`). Things of which guests, or the
//! settings of one port, can have many have shares, and of a share a port has at most as many as
//! are left: so there are some for the next port, and for sockets, processes and an upgrade, which
//! needs each descriptor twice.
//!
//! ```text
//! |<------------------------- the limit ------------------------->|
//! | OTHERS | 1/4 forwards | 1/8 kept flows | saved sessions       |
//!            \____ with user ports ______/   all of it without them
//! ```

use sys::limit::{self, SETTINGS};

/// Descriptors that no share has: of sockets, processes and files.
pub(crate) const OTHERS: u64 = 256;
/// Parts of the rest for forwards and for kept flows of all user ports.
const FORWARDS: u64 = 4;
const FLOWS: u64 = 8;

/// The shares of a limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Shares {
    limit: u64,
}

impl Shares {
    /// Returns those of this process.
    pub(crate) fn now() -> Self {
        Self::of(limit::descriptors())
    }

    pub(crate) fn of(limit: u64) -> Self {
        Self { limit }
    }

    fn rest(self) -> u64 {
        self.limit.saturating_sub(OTHERS)
    }

    /// Returns the number of forwards of all user ports.
    pub(crate) fn forwards(self) -> u64 {
        self.rest() / FORWARDS
    }

    /// Returns the number of flows of all user ports that outlive their drivers.
    pub(crate) fn flows(self) -> u64 {
        self.rest() / FLOWS
    }

    /// Returns the number of descriptors in saved sessions.
    pub(crate) fn sessions(self, has_user_ports: bool) -> u64 {
        match has_user_ports {
            true => self.rest() - self.forwards() - self.flows(),
            false => self.rest(),
        }
    }

    /// Returns why a port that asks for so many forwards has only a part of them; `others` are
    /// those of other ports.
    pub(crate) fn too_many_forwards(self, asked: u64, others: u64) -> String {
        let most = of_one(self.forwards(), others);
        let needed = OTHERS + FORWARDS * (2 * asked + others);
        format!(
            "no descriptors left: the limit of {} leaves this port {most} forwards, and {asked} \
             need one of {needed} ({SETTINGS})",
            self.limit
        )
    }
}

/// Returns the most that one may have of a share while others have so many: at most as many as are
/// left.
pub(crate) fn of_one(share: u64, others: u64) -> u64 {
    share.saturating_sub(others) / 2
}

/// Descriptors that a Lasthop without ports has open, and those of a start.
const AT_START: u64 = 64;
/// Descriptors of a driver: interface, process, link, and those of its connection to the switch.
const OF_DRIVER: u64 = 14;

/// The limit of open descriptors is too low for a start.
#[derive(PartialEq, Eq, Debug, thiserror::Error)]
#[error("{users} need {needed} descriptors, and the limit is {limit} ({SETTINGS})")]
pub(crate) struct LimitError {
    users: String,
    needed: u64,
    limit: u64,
}

/// Checks that so many sockets and drivers can be opened.
///
/// # Errors
/// The limit is too low.
pub(crate) fn check(
    sockets: u64,
    drivers: u64,
    Shares { limit }: Shares,
) -> Result<(), LimitError> {
    let needed = AT_START + sockets + OF_DRIVER * drivers;
    if needed <= limit {
        return Ok(());
    }
    let users = match drivers {
        0 => format!("{sockets} sockets"),
        _ => format!("{sockets} sockets and {drivers} drivers"),
    };
    Err(LimitError {
        users,
        needed,
        limit,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_port_leaves_as_many_as_it_has() {
        for limit in [0, 100, 256, 512, 1024, 4096, 524_288] {
            let shares = Shares::of(limit);
            let (forwards, flows) = (shares.forwards(), shares.flows());
            let parts = forwards + flows + shares.sessions(true);
            assert!(parts + OTHERS <= limit.max(OTHERS), "{limit}");
            // An upgrade needs each twice.
            assert!(2 * (forwards + flows) <= limit.saturating_sub(OTHERS));
            let mut taken = 0;
            while taken < forwards.saturating_sub(1) {
                let next = of_one(forwards, taken);
                assert!(next > 0 && next <= forwards - taken - next, "{limit}");
                taken += next;
            }
        }
        assert_eq!(Shares::of(1024).forwards(), 192);
        assert_eq!(of_one(192, 0), 96);
        assert_eq!(of_one(192, 200), 0);
    }

    #[test]
    fn the_limit_that_is_said_is_enough_and_no_more() {
        for (asked, others) in [(1000, 0), (1000, 30), (33, 0), (1, 7)] {
            let needed = OTHERS + FORWARDS * (2 * asked + others);
            let of = |limit| of_one(Shares::of(limit).forwards(), others);
            assert!(of(needed) >= asked && of(needed - 1) < asked);
            let text = Shares::of(512).too_many_forwards(asked, others);
            assert!(text.contains(&format!("need one of {needed} (LimitNOFILE=")));
        }
    }

    #[test]
    fn a_start_says_which_limit_is_too_low() {
        assert_eq!(check(1000, 0, Shares::of(1064)), Ok(()));
        let refused = check(1000, 0, Shares::of(1024)).unwrap_err();
        let expected = "1000 sockets need 1064 descriptors, and the limit is 1024 \
                        (LimitNOFILE= of the unit, or ulimit -Hn)";
        assert_eq!(refused.to_string(), expected);
        let refused = check(2, 300, Shares::of(1024)).unwrap_err();
        assert!(
            refused
                .to_string()
                .starts_with("2 sockets and 300 drivers need 4266 ")
        );
    }
}
