//! The books: what clients sent and got, and what Lasthop says about it.

use std::collections::BTreeMap;

use load::lean::LeanReport;
use serde::Serialize;

use e2e::stats::Stats;

/// Frames between some ports without other senders.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Account {
    /// By the clients.
    pub(super) sent: u64,
    pub(super) received: u64,
    /// Arrived where they do not belong.
    pub(super) astray: u64,
    /// Bursts of which as many frames arrived as were sent, but not the same.
    pub(super) altered: u64,
    /// Frames that Lasthop received, delivered and dropped.
    pub(super) taken: u64,
    pub(super) given: u64,
    pub(super) drops: BTreeMap<String, u64>,
}

impl Account {
    /// Adds a client's counts.
    pub(super) fn add(&mut self, report: &LeanReport) {
        self.sent += report.sent;
        self.received += report.received;
        let sum = |of: fn(&load::lean::LeanPort) -> u64| report.ports.iter().map(of).sum::<u64>();
        self.astray += sum(|port| port.strange);
        let same = sum(|port| port.flows_sent) == sum(|port| port.flows_received);
        self.altered += u64::from(report.sent == report.received && !same);
    }

    /// Compares with Lasthop's counters of these ports, from their beginning.
    pub(super) fn compare(&mut self, stats: &Stats, ports: &[&str]) {
        (self.taken, self.given) = (0, 0);
        self.drops.clear();
        for port in ports {
            self.taken += stats.sent(port);
            self.given += stats.received(port);
            for (reason, frames) in stats.drops_of(port) {
                *self.drops.entry(reason.to_owned()).or_default() += frames;
            }
        }
    }

    pub(super) fn dropped(&self) -> u64 {
        self.drops.values().sum()
    }

    /// Frames that neither arrived nor were dropped by name, or that arrived without being sent.
    pub(super) fn missing(&self) -> u64 {
        self.sent.abs_diff(self.received + self.dropped())
    }

    /// Returns the uncounted frames as far as Lasthop itself can know.
    pub(super) fn uncounted(&self) -> u64 {
        self.taken.abs_diff(self.given + self.dropped())
    }

    /// Adds another account.
    pub(super) fn absorb(&mut self, other: Self) {
        self.sent += other.sent;
        self.received += other.received;
        self.astray += other.astray;
        self.altered += other.altered;
        self.taken += other.taken;
        self.given += other.given;
        for (reason, frames) in other.drops {
            *self.drops.entry(reason).or_default() += frames;
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "shown with one digit")]
    pub(super) fn millions_sent(&self) -> f64 {
        self.sent as f64 / 1e6
    }

    pub(super) fn wrong(&self) -> u64 {
        self.missing() + self.astray + self.altered
    }
}

/// Changes beside the pair under load.
#[derive(Debug, Default, Serialize)]
pub(super) struct Tally {
    /// Ports that were added and removed.
    pub(super) ports: u64,
    /// Clients that left while frames were on their way.
    pub(super) abrupt: u64,
    /// Of clients that waited for their last frames.
    pub(super) clean: Account,
    /// Frames without a trace, the sum over all pairs of ports: `clean` could hide one pair's
    /// behind another's.
    pub(super) missing: u64,
    /// Frames of clients that left abruptly, as Lasthop saw them.
    pub(super) cut: Account,
    pub(super) uncounted: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stats() -> Stats {
        let text = r#"{"ports": [
            {"name": "p0", "state": "up", "from_guest": {"packets": 60, "bytes": 1}, "to_guest": {"packets": 38, "bytes": 1},
             "drops": {"receiver-full": 2, "runt": 0}},
            {"name": "p1", "state": "up", "from_guest": {"packets": 40, "bytes": 1}, "to_guest": {"packets": 55, "bytes": 1},
             "drops": {"receiver-full": 4, "upcall-full": 1}},
            {"name": "p2", "state": "up", "from_guest": {"packets": 9, "bytes": 1}, "to_guest": {"packets": 9, "bytes": 1},
             "drops": {"runt": 7}}
        ], "drops": {"runt": 7}}"#;
        Stats::read(&serde_json::from_str(text).expect("statistics"))
    }

    #[test]
    fn books_that_balance() {
        let mut account = Account {
            sent: 100,
            received: 93,
            ..Account::default()
        };
        account.compare(&stats(), &["p0", "p1"]);
        assert_eq!((account.taken, account.given), (100, 93));
        let drops: Vec<(&str, u64)> = account
            .drops
            .iter()
            .map(|(reason, n)| (reason.as_str(), *n))
            .collect();
        assert_eq!(drops, [("receiver-full", 6), ("upcall-full", 1)]);
        assert_eq!(
            (account.missing(), account.uncounted(), account.wrong()),
            (0, 0, 0)
        );
        // Read again, nothing is counted twice.
        account.compare(&stats(), &["p0", "p1"]);
        assert_eq!(account.missing(), 0);
    }

    #[test]
    fn one_frame_too_few_or_too_many_is_seen() {
        for received in [92, 94] {
            let mut account = Account {
                sent: 100,
                received,
                ..Account::default()
            };
            account.compare(&stats(), &["p0", "p1"]);
            assert_eq!((account.missing(), account.wrong()), (1, 1));
        }
    }

    #[test]
    fn other_frames_than_those_sent_are_seen() {
        let mut report = LeanReport {
            sent: 5,
            received: 5,
            ports: vec![load::lean::LeanPort {
                flows_sent: 10,
                flows_received: 11,
                ..Default::default()
            }],
            ..LeanReport::default()
        };
        let mut account = Account::default();
        account.add(&report);
        assert_eq!(account.altered, 1);
        // With a frame lost the sums say nothing.
        report.received = 4;
        account.add(&report);
        assert_eq!(account.altered, 1);
    }
}
