//! Topology of the host's cores, from the supervisor, which may read it, to the switch.

use serde::{Deserialize, Serialize};

/// A core of the host that is online, and the resources that it shares with others. Each shared
/// resource is named by the lowest number of the cores that share it, so a core that shares it with
/// no other has its own number there.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CoreFacts {
    /// Its number, as the kernel counts CPUs.
    pub core: u16,
    /// The switch may run there.
    pub allowed: bool,
    /// Hardware threads of one core.
    pub smt: u16,
    /// First-level cache, of data or instructions.
    pub l1: u16,
    /// Second-level cache.
    pub l2: u16,
    /// Cache of the last level; where the kernel names none beyond the second: memory of one node.
    pub l3: u16,
    /// NUMA node, by its own number.
    pub node: u16,
}
