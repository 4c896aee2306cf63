//! Report of a soak: the counts, and the resources of Lasthop's processes before and after.

use std::collections::BTreeSet;

use serde::Serialize;

use super::account::{Account, Tally};
use crate::footprint::{self, Growth};
use e2e::machine::Machine;
use e2e::table::table;

const MISSING: &str = "Missing is sent less received and dropped. Of clients that left abruptly \
    nobody can count the last \
    frames: there it is taken less given and dropped, as of each first one of them.";

/// A number of an account.
type Count = fn(&Account) -> u64;

/// All that is reported.
#[derive(Debug, Serialize)]
pub(super) struct Outcome {
    pub(super) machine: Machine,
    pub(super) seconds: f64,
    pub(super) steady: Account,
    pub(super) churn: Tally,
    pub(super) growth: Vec<Growth>,
}

impl Outcome {
    /// Frames that cannot be explained.
    pub(super) fn wrong(&self) -> u64 {
        let churn = &self.churn;
        let astray = churn.clean.astray + churn.clean.altered + churn.cut.astray;
        self.steady.wrong() + churn.missing + churn.uncounted + astray
    }

    /// The tables for people.
    pub(super) fn markdown(&self) -> String {
        format!(
            "\n## Soak, {:.1} minutes\n\n\
             {} ports were added, driven and removed beside a pair under full load; {} \
             clients left with frames on their way.\n\n{}\n{MISSING}\n\n{}",
            self.seconds / 60.0,
            self.churn.ports,
            self.churn.abrupt,
            self.books(),
            footprint::table(&self.growth),
        )
    }

    fn books(&self) -> String {
        let churn = &self.churn;
        let all = [&self.steady, &churn.clean, &churn.cut];
        let missing = [self.steady.missing(), churn.missing, churn.uncounted];
        let mut rows = vec![row("**missing**", missing)];
        let lines: [(&str, Count); 6] = [
            ("altered", |account| account.altered),
            ("astray", |account| account.astray),
            ("sent", |account| account.sent),
            ("received", |account| account.received),
            ("taken by Lasthop", |account| account.taken),
            ("given by Lasthop", |account| account.given),
        ];
        rows.extend(lines.map(|(name, of)| row(name, all.map(of))));
        let reasons: BTreeSet<&String> = all
            .iter()
            .flat_map(|account| account.drops.keys())
            .collect();
        for reason in reasons {
            let of = |account: &Account| account.drops.get(reason).copied().unwrap_or_default();
            rows.push(row(&format!("dropped: {reason}"), all.map(of)));
        }
        let head = [
            "frames",
            "pair under load",
            "clients that came and went",
            "clients that left abruptly",
        ];
        table(&head.map(str::to_owned), &rows)
    }
}

fn row(name: &str, numbers: [u64; 3]) -> Vec<String> {
    let mut cells = vec![name.to_owned()];
    cells.extend(numbers.map(|number| number.to_string()));
    cells
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::footprint::Footprint;

    #[test]
    fn what_is_missing_comes_first() {
        let before = Footprint::of_one("lasthop", [500, 18]);
        let after = Footprint::of_one("lasthop", [508, 19]);
        let outcome = Outcome {
            machine: Machine::here(),
            seconds: 90.0,
            steady: Account {
                sent: 10,
                received: 7,
                drops: BTreeMap::from([("receiver-full".to_owned(), 2)]),
                ..Account::default()
            },
            churn: Tally::default(),
            growth: before.growth_to(&after),
        };
        assert_eq!(outcome.wrong(), 1);
        let text = outcome.markdown();
        let lines: Vec<&str> = text.lines().filter(|line| line.starts_with('|')).collect();
        assert_eq!(lines[2], "| **missing** | 1 | 0 | 0 |");
        assert!(lines.contains(&"| dropped: receiver-full | 2 | 0 | 0 |"));
        assert!(lines.contains(&"| lasthop | 500 | 508 | 18 | 19 |"));
        assert!(text.contains("Soak, 1.5 minutes"));
    }
}
