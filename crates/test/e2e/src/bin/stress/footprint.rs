//! Memory and descriptors of Lasthop's processes, before and after.

use std::collections::BTreeMap;

use serde::Serialize;

use e2e::table;
use testkit::procfs;

/// KiB of memory and number of descriptors of processes, by name.
#[derive(Debug)]
pub(crate) struct Footprint(BTreeMap<String, [u64; 2]>);

impl Footprint {
    /// Of a process and all below it.
    pub(crate) fn of(pid: u32) -> Self {
        let mut family = procfs::descendants(pid);
        family.push(pid);
        let one = |pid| {
            let held = [procfs::memory_kib(pid)?, procfs::descriptors(pid)?];
            Some((procfs::name(pid)?, held))
        };
        Self(family.into_iter().filter_map(one).collect())
    }

    #[cfg(test)]
    pub(crate) fn of_one(name: &str, held: [u64; 2]) -> Self {
        Self(BTreeMap::from([(name.to_owned(), held)]))
    }

    pub(crate) fn growth_to(&self, after: &Self) -> Vec<Growth> {
        let one = |(process, &before): (&String, &[u64; 2])| Growth {
            process: process.clone(),
            before,
            after: after.0.get(process).copied(),
        };
        self.0.iter().map(one).collect()
    }
}

/// KiB of memory and number of descriptors of one process.
#[derive(Debug, Serialize)]
pub(crate) struct Growth {
    process: String,
    before: [u64; 2],
    /// None when it is gone.
    after: Option<[u64; 2]>,
}

impl Growth {
    /// Descriptors that it has more than before; all that it had, when it is gone.
    pub(crate) fn leaked(&self) -> u64 {
        let [_, before] = self.before;
        self.after
            .map_or(before, |[_, after]| after.saturating_sub(before))
    }
}

/// For people.
pub(crate) fn table(growth: &[Growth]) -> String {
    let head = [
        "process",
        "memory before, KiB",
        "after",
        "descriptors before",
        "after",
    ];
    let line = |growth: &Growth| {
        let [memory, descriptors] = growth.after.map_or_else(
            || ["gone", "gone"].map(str::to_owned),
            |held| held.map(|n| n.to_string()),
        );
        let [memory_before, descriptors_before] = growth.before.map(|n| n.to_string());
        vec![
            growth.process.clone(),
            memory_before,
            memory,
            descriptors_before,
            descriptors,
        ]
    };
    let rows: Vec<Vec<String>> = growth.iter().map(line).collect();
    table::table(&head.map(str::to_owned), &rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_that_stay_are_leaked() {
        let before = Footprint::of_one("lasthop", [500, 18]);
        let leaked = |name, descriptors| {
            let after = Footprint::of_one(name, [400, descriptors]);
            before.growth_to(&after)[0].leaked()
        };
        assert_eq!(leaked("lasthop", 18), 0);
        assert_eq!(leaked("lasthop", 17), 0);
        assert_eq!(leaked("lasthop", 20), 2);
        assert_eq!(leaked("another", 18), 18);
    }
}
