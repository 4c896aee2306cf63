//! The topology of the host's cores: hardware threads, caches and memory nodes.
//!
//! [`read`] reads `/sys/devices/system`, so the supervisor calls it: the switch opens no path.
//! Missing or malformed parts (virtual machines show odd trees) count as not shared; only the
//! number of a core must be known.

#[cfg(test)]
mod tests;

use std::fs;
use std::path::Path;

use channel::cores::CoreFacts;

/// The folder in which the kernel describes processors and memory nodes.
pub const SYSTEM: &str = "/sys/devices/system";
/// Limit of core numbers; larger ones are ignored.
const MAX_CORES: u16 = 4096;

/// Returns the cores that the calling thread may run on, in ascending order.
#[must_use]
pub fn allowed() -> Vec<u16> {
    let Ok(set) = rustix::thread::sched_getaffinity(None) else {
        return Vec::new();
    };
    let most = rustix::thread::CpuSet::MAX_CPU.min(usize::from(MAX_CORES)) as u16;
    (0..most).filter(|c| set.is_set(usize::from(*c))).collect()
}

/// Returns all cores that are online.
#[must_use]
pub fn cores() -> Vec<CoreFacts> {
    read(SYSTEM.as_ref(), &allowed())
}

/// Most workers without a configured number.
const WORKERS_MAX: u16 = 8;

/// Returns the number of workers without a configured one: one for each core that this process may
/// use, at most eight. A quota of its control group is visible only where paths can be opened.
#[must_use]
pub fn workers() -> u16 {
    let cores = std::thread::available_parallelism().ok();
    let cores = cores.and_then(|cores| u16::try_from(cores.get()).ok());
    cores.unwrap_or(1).min(WORKERS_MAX)
}

/// Reads the tree at `root` (usually [`SYSTEM`]); returns the cores that are online. `allowed` are
/// those that the switch may use.
#[must_use]
pub fn read(root: &Path, allowed: &[u16]) -> Vec<CoreFacts> {
    let mut online = list(&root.join("cpu/online"));
    if online.is_empty() {
        online = allowed.to_vec();
    }
    let nodes = nodes(root);
    let facts = |core: &u16| facts(root, *core, &online, &nodes, allowed);
    online.iter().map(facts).collect()
}

fn facts(
    root: &Path,
    core: u16,
    online: &[u16],
    nodes: &[(u16, Vec<u16>)],
    allowed: &[u16],
) -> CoreFacts {
    let folder = root.join(format!("cpu/cpu{core}"));
    // An offline core may still be listed as a sharer.
    let first_of = |sharers: &[u16]| {
        let mut there = sharers.iter().filter(|other| online.contains(other));
        if sharers.contains(&core) {
            there.next().copied()
        } else {
            None
        }
    };
    let node = nodes.iter().find(|(_, cores)| cores.contains(&core));
    let caches = caches(&folder);
    let shared = |levels: std::ops::RangeInclusive<u16>| {
        let of_level = caches.iter().filter(|(level, _)| levels.contains(level));
        let widest = of_level.max_by_key(|(level, sharers)| (*level, sharers.len()));
        widest.and_then(|(_, sharers)| first_of(sharers))
    };
    let siblings = ["thread_siblings_list", "core_cpus_list"];
    let siblings = siblings.map(|name| list(&folder.join("topology").join(name)));
    CoreFacts {
        core,
        allowed: allowed.contains(&core),
        smt: siblings.iter().find_map(|s| first_of(s)).unwrap_or(core),
        l1: shared(1..=1).unwrap_or(core),
        l2: shared(2..=2).unwrap_or(core),
        l3: shared(3..=u16::MAX)
            .or_else(|| first_of(&node?.1))
            .unwrap_or(core),
        node: node.map_or(0, |(number, _)| *number),
    }
}

/// Returns level and sharers of each cache of a core.
fn caches(folder: &Path) -> Vec<(u16, Vec<u16>)> {
    let mut caches = Vec::new();
    // Usual trees have four or five caches.
    for index in 0..16 {
        let cache = folder.join(format!("cache/index{index}"));
        if let Some(level) = number(&cache.join("level")) {
            caches.push((level, list(&cache.join("shared_cpu_list"))));
        }
    }
    caches
}

/// Returns the NUMA nodes with their cores.
fn nodes(root: &Path) -> Vec<(u16, Vec<u16>)> {
    let node = root.join("node");
    let online = list(&node.join("online"));
    let cores = |number: &u16| list(&node.join(format!("node{number}/cpulist")));
    online.iter().map(|n| (*n, cores(n))).collect()
}

fn number(file: &Path) -> Option<u16> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

/// Reads a list like `0-3,8,10-11`, in ascending order; malformed parts are ignored.
fn list(file: &Path) -> Vec<u16> {
    let text = fs::read_to_string(file).unwrap_or_default();
    let mut all = Vec::new();
    for range in text.trim().split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        if let (Ok(first), Ok(last)) = (first.trim().parse::<u16>(), last.trim().parse::<u16>())
            && last < MAX_CORES
        {
            all.extend(first..=last);
        }
    }
    all.sort_unstable();
    all.dedup();
    all
}

/// All cores, by number.
#[derive(Clone, Debug, Default)]
pub struct Topology {
    cores: Vec<CoreFacts>,
}

impl Topology {
    /// Creates a topology of these cores, in any order; of two with the same number the first
    /// counts.
    #[must_use]
    pub fn new(mut cores: Vec<CoreFacts>) -> Self {
        cores.sort_by_key(|facts| facts.core);
        cores.dedup_by_key(|facts| facts.core);
        Self { cores }
    }

    /// Returns all cores, by number.
    #[must_use]
    pub fn cores(&self) -> &[CoreFacts] {
        &self.cores
    }

    /// Returns a core, if it is known.
    #[must_use]
    pub fn get(&self, core: u16) -> Option<&CoreFacts> {
        let at = self.cores.binary_search_by_key(&core, |facts| facts.core);
        self.cores.get(at.ok()?)
    }
}

/// Returns whether two cores are in one *module* (the paper's word): a hardware core, or a cache of
/// the first two levels.
#[must_use]
pub fn share_module(a: &CoreFacts, b: &CoreFacts) -> bool {
    a.smt == b.smt || a.l1 == b.l1 || a.l2 == b.l2
}
