//! Resources of Lasthop's processes, from `/proc`.

use super::MAPPINGS_SLACK;
use testkit::procfs;

/// The processes that are watched, by their programs' names.
pub const PROCESSES: [&str; 3] = ["lasthop", "lasthop-control", "lasthop-switch"];

/// Resources of all of Lasthop at a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Each of [`PROCESSES`].
    pub processes: [Seen; PROCESSES.len()],
    /// Lines that all of Lasthop has logged.
    pub log_lines: usize,
}

impl Snapshot {
    /// Of the Lasthop whose supervisor is `supervisor`.
    pub(super) fn of(supervisor: u32, log_lines: usize) -> Self {
        let below = procfs::programs_below(supervisor);
        let pid = |name| {
            let found = below.iter().find(|(_, program)| program == name);
            found.map_or(0, |(pid, _)| *pid)
        };
        let processes = PROCESSES.map(|name| {
            let is_supervisor = name == PROCESSES[0];
            Seen::of(if is_supervisor { supervisor } else { pid(name) })
        });
        Self {
            processes,
            log_lines,
        }
    }

    /// The switch.
    #[must_use]
    pub fn switch(&self) -> &Seen {
        &self.processes[PROCESSES.len() - 1]
    }

    /// Processes whose descriptors or mappings cannot be counted.
    pub(super) fn unreadable(&self) -> Vec<&'static str> {
        let of = self.named().filter(|(_, seen)| !seen.is_there());
        of.map(|(name, _)| name).collect()
    }

    /// Returns whether a process is not the one that it was `before`.
    #[must_use]
    pub fn has_replaced(&self, before: &Self) -> bool {
        self.pids() != before.pids()
    }

    pub(super) fn holds_no_more_than(&self, before: &Self) -> bool {
        let mut pairs = self.processes.iter().zip(&before.processes);
        pairs.all(|(now, before)| now.holds_no_more_than(before))
    }

    /// The processes that were replaced or hold more than `before`, in words. Once one was
    /// replaced, the others hold what they need for that: then it is not counted.
    #[must_use]
    pub fn harm(&self, before: &Self) -> Vec<String> {
        let replaced = self.has_replaced(before);
        let pairs = self.named().zip(&before.processes);
        let harm = |now: &Seen, before| {
            if replaced {
                now.replacement(before)
            } else {
                now.surplus(before)
            }
        };
        pairs
            .filter_map(|((name, now), before)| Some(format!("{name} {}", harm(now, before)?)))
            .collect()
    }

    fn pids(&self) -> [u32; PROCESSES.len()] {
        self.processes.map(|seen| seen.pid)
    }

    fn named(&self) -> impl Iterator<Item = (&'static str, &Seen)> {
        PROCESSES.into_iter().zip(&self.processes)
    }
}

/// Resources of a process at a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Its process id; 0 while there is none.
    pub pid: u32,
    /// Lines of its `/proc/PID/maps`.
    pub mappings: usize,
    /// Open descriptors.
    pub descriptors: usize,
    /// Resident memory in KiB.
    pub rss_kib: u64,
    /// Processor time since its start, in milliseconds.
    pub cpu_ms: u64,
}

impl Seen {
    /// Returns zeros when there is no such process, or it is a zombie.
    fn of(pid: u32) -> Self {
        let mappings = procfs::mappings(pid);
        if mappings == 0 {
            return Self::default();
        }
        Self {
            pid,
            mappings,
            descriptors: procfs::descriptors(pid).unwrap_or(0) as usize,
            rss_kib: procfs::resident_kib(pid),
            cpu_ms: (1e3 * procfs::cpu_seconds(pid)) as u64,
        }
    }

    fn is_there(&self) -> bool {
        self.mappings > 0 && self.descriptors > 0
    }

    fn holds_no_more_than(&self, before: &Self) -> bool {
        self.mappings <= before.mappings + MAPPINGS_SLACK && self.descriptors <= before.descriptors
    }

    fn replacement(&self, before: &Self) -> Option<String> {
        let old = before.pid;
        match self.pid {
            0 => Some(format!("is gone: it was process {old}")),
            new if new != old => Some(format!("was replaced: process {old} by {new}")),
            _ => None,
        }
    }

    fn surplus(&self, before: &Self) -> Option<String> {
        let surplus = !self.holds_no_more_than(before);
        surplus.then(|| {
            format!(
                "keeps {} mappings and {} descriptors, at first {} and {}",
                self.mappings, self.descriptors, before.mappings, before.descriptors
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot() -> Snapshot {
        let seen = |pid| Seen {
            pid,
            mappings: 50,
            descriptors: 20,
            ..Seen::default()
        };
        Snapshot {
            processes: [1, 2, 3].map(seen),
            log_lines: 0,
        }
    }

    #[test]
    fn harm_is_found_in_every_process() {
        let before = snapshot();
        for (index, name) in PROCESSES.into_iter().enumerate() {
            let harms: [fn(&mut Seen); 4] = [
                |seen| *seen = Seen::default(),
                |seen| seen.pid = 9,
                |seen| seen.mappings += MAPPINGS_SLACK + 1,
                |seen| seen.descriptors += 1,
            ];
            for harm in harms {
                let mut now = before;
                harm(&mut now.processes[index]);
                let found = now.harm(&before);
                assert_eq!(found.len(), 1, "{found:?}");
                assert!(found[0].starts_with(&format!("{name} ")), "{found:?}");
            }
        }
        let mut now = before;
        now.processes[2].mappings += MAPPINGS_SLACK;
        assert_eq!(now.harm(&before), Vec::<String>::new());
    }
}
